//! Fork: handlers for the ordinary kind, a page that the kernel wipes for every other.
//!
//! - `fork(3)` runs the three handlers: every lock is taken before, released in the parent and made new in the
//!   child. They are registered at the first malloc, so ours is the last to run before and the first after.
//! - `_Fork(3)` runs no handlers; it is wrapped here and does the same.
//! - Signals are blocked from before the first lock is taken until the last is free, so that no handler finds its own
//!   thread holding what it wants; but those of faults, which nothing here makes. A handler may allocate and fork while its
//!   thread forks.
//! - A handler may fork that interrupted its thread within the heap. What that thread holds stays held, in the parent
//!   and in the child, until the handler returns and the thread goes on. Other locks, and the helper between two slices, are
//!   waited for shortly: they may wait for the thread. What is not to be had then is in the child as after a raw `clone`.
//! - `vfork` and `posix_spawn` share the parent's memory until they exec; nothing needs doing.
//! - A raw `clone` or `fork` system call cannot be seen. The child finds its copy of the `MADV_WIPEONFORK` page
//!   zeroed at its next slow path, makes the locks new and goes on. What another thread was changing inside the heap
//!   at that very moment is lost to the child.
//!
//! In every child the helper thread is gone; it is started again when the child's heap next grows.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::{HEAP, helper, libc, pagemill_stats, refresh, start, sys, tls};

/// What the page holds in the process that marked it.
const MARK: u32 = 0x5041_4745;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// States of a thread's fork (`tls::fork`): `_Fork` called by `fork` finds that the locks are taken.
const NONE: usize = 0;
/// The helper was not to be had.
const BESIDE_HELPER: usize = 1;
/// The helper is between two slices.
const WITHOUT_HELPER: usize = 2;

/// How long locks and the helper are waited for, nanoseconds: by a handler that interrupted its thread within the heap, for
/// which they may wait; and otherwise, when they are had in a moment unless their thread is stopped.
const WITHIN_NS: u64 = 20_000_000;
const PATIENCE_NS: u64 = 10_000_000_000;

/// All signals but SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS: a handler for these acts for the instruction or the
/// system call at hand.
pub(crate) const SIGNALS: u64 = !(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);

/// Makes and marks the page; once, at the start. Without it (an old kernel) only the handlers work.
pub(crate) fn mark() {
    use pagemill_heap::os::Os;
    let len = HEAP.os().page_size();
    let page = sys::map_anonymous(len, sys::PROT_READ | sys::PROT_WRITE, 0);
    if page.is_null() {
        return;
    }
    // SAFETY: a new private page that holds nothing yet.
    if sys::failed(unsafe { sys::advise(page, len, sys::MADV_WIPEONFORK) }) {
        // SAFETY: as above; nobody knows the page.
        unsafe { sys::unmap(page, len) };
        return;
    }
    let page = page.cast::<AtomicU32>();
    // SAFETY: a page holds and aligns the word, and it is never unmapped.
    unsafe { (*page).store(MARK, Ordering::Relaxed) };
    PAGE.store(page, Ordering::Release);
}

/// Registers the handlers; may allocate.
pub(crate) fn register() {
    libc::at_fork(before, in_parent, in_child);
}

/// If this process is a copy that no handler told: makes the locks new. Whether it was one.
pub(crate) fn repair_if_copied() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped once it is stored.
    if page.is_null() || unsafe { (*page).load(Ordering::Relaxed) } == MARK {
        return false;
    }
    renew(false);
    true
}

/// What every child does first; `told`: the handlers were around the fork.
fn renew(told: bool) {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: as in repair_if_copied.
        unsafe { (*page).store(MARK, Ordering::Relaxed) };
    }
    tls::set_fork(NONE);
    // SAFETY: a copy of a process has one thread, this one.
    unsafe { HEAP.reinitialise_locks() };
    pagemill_stats.pid.store(u64::from(sys::pid()), Ordering::Relaxed);
    // What the parent offered to `ksmd` is not offered once more by the copy.
    pagemill_stats.ksm_offered.store(0, Ordering::Relaxed);
    helper::forget(told);
    refresh::forget();
}

unsafe extern "C" fn before() {
    let mask = sys::set_signal_mask(SIGNALS);
    let patience = if HEAP.is_within() { WITHIN_NS } else { PATIENCE_NS };
    let helper = helper::lock(patience);
    HEAP.lock_all(patience);
    tls::set_fork_mask(mask);
    tls::set_fork(if helper { WITHOUT_HELPER } else { BESIDE_HELPER });
}

unsafe extern "C" fn in_parent() {
    let state = tls::fork();
    tls::set_fork(NONE);
    // SAFETY: `before` took the locks in this thread.
    unsafe { HEAP.unlock_all() };
    if state == WITHOUT_HELPER {
        helper::unlock();
    }
    sys::set_signal_mask(tls::fork_mask());
}

unsafe extern "C" fn in_child() {
    renew(tls::fork() == WITHOUT_HELPER);
    sys::set_signal_mask(tls::fork_mask());
}

type Fork = unsafe extern "C" fn() -> c_int;

/// The C library's `_Fork`, found when the library is loaded: looking it up may allocate, and `_Fork` may be called where
/// nothing may.
static REAL: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn find_real() {
    REAL.store(libc::next_definition(c"_Fork"), Ordering::Release);
}

/// `_Fork(3)`: fork without handlers, except the heap's own.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let mut real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        find_real();
        real = REAL.load(Ordering::Acquire);
    }
    if real.is_null() {
        libc::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: `_Fork` takes nothing and returns a process number.
    let real = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Fork>(real) };
    start::ensure();
    if tls::fork() != NONE {
        // SAFETY: the handlers of `fork` are around this call already.
        return unsafe { real() };
    }
    // SAFETY: the same steps in the same order as the C library's fork.
    unsafe {
        before();
        let child = real();
        if child == 0 {
            in_child()
        } else {
            in_parent()
        }
        child
    }
}

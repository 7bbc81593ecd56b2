//! Fork: handlers for the ordinary kind, a page that the kernel wipes for every other.
//!
//! - `fork(3)` runs the three handlers: every lock is taken before, released in the parent and made new in the
//!   child. They are registered at the first malloc, so ours is the last to run before and the first after.
//! - `_Fork(3)` runs no handlers; it is wrapped here and does the same.
//! - `vfork` and `posix_spawn` share the parent's memory until they exec; nothing needs doing.
//! - A raw `clone` or `fork` system call cannot be seen. The child finds its copy of the `MADV_WIPEONFORK` page
//!   zeroed at its next slow path, makes the locks new and goes on. What another thread was changing inside the heap
//!   at that very moment is lost to the child.
//!
//! In every child the helper thread is gone; it is started again when the child's heap next grows.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::{HEAP, helper, libc, pagemill_stats, refresh, start, sys};

/// What the page holds in the process that marked it.
const MARK: u32 = 0x5041_4745;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// The thread that holds every lock for a fork, so that `_Fork` called by `fork` does not take them twice.
static FORKING: AtomicU32 = AtomicU32::new(0);

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
    FORKING.store(0, Ordering::Relaxed);
    // SAFETY: a copy of a process has one thread, this one.
    unsafe { HEAP.reinitialise_locks() };
    pagemill_stats.pid.store(u64::from(sys::pid()), Ordering::Relaxed);
    // What the parent offered to `ksmd` is not offered once more by the copy.
    pagemill_stats.ksm_offered.store(0, Ordering::Relaxed);
    helper::forget(told);
    refresh::forget();
}

unsafe extern "C" fn before() {
    helper::lock();
    HEAP.lock_all();
    FORKING.store(sys::tid(), Ordering::Relaxed);
}

unsafe extern "C" fn in_parent() {
    FORKING.store(0, Ordering::Relaxed);
    // SAFETY: `before` took the locks in this thread.
    unsafe { HEAP.unlock_all() };
    helper::unlock();
}

unsafe extern "C" fn in_child() {
    renew(true);
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
/// As for the C library's. Called from a signal handler that interrupted malloc, it waits for ever for
/// a lock that its own thread holds; so does `fork`.
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
    if FORKING.load(Ordering::Relaxed) == sys::tid() {
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

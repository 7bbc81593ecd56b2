//! Fork: handlers for the ordinary kind, a page that the kernel wipes for every other.
//!
//! - `fork(3)` runs the three handlers: every lock is taken before, released in the parent and made new in the
//!   child. They are registered at the first malloc, so ours is the last to run before and the first after.
//! - `_Fork(3)` runs no handlers; it is wrapped (`raw_fork.rs`) and does the same.
//! - Signals are blocked from before the first lock is taken until the last is free, so that no handler finds its own
//!   thread holding what it wants; but those of faults, which nothing here makes. A handler may allocate and fork while
//!   its thread forks.
//! - A handler may fork that interrupted its thread within the heap (and allocate: `interim.rs`). What that thread
//!   holds stays held, in the parent and in the child, until the handler returns and the thread goes on. Other locks,
//!   and the helper between two slices, are waited for unless somebody waits for what the thread holds: they may be
//!   that one's. What is not had then is in the child as after a raw `clone`. So no wait is in vain: a timer that fires
//!   meanwhile would have its handler fork again before the thread can go on, for ever.
//! - `vfork` and `posix_spawn` share the parent's memory until they exec; nothing needs doing.
//! - A raw `clone` or `fork` system call cannot be seen. The child finds its copy of the `MADV_WIPEONFORK` page
//!   zeroed at its next slow path (`copied.rs`), makes the locks new and goes on. What another thread was changing
//!   inside the heap at that very moment is lost to the child.
//!
//! In every child the helper thread is gone; it is started again when the child's heap next grows.

use pagemill_preload_sys::{libc, sys};

use crate::heap::HEAP;
use crate::helper::work;
use crate::tls::NO_FORK;
use crate::{copied, tls};

// States of a thread's fork (`tls::fork`) while the locks are taken.

/// The helper was not to be had.
const BESIDE_HELPER: usize = 1;
/// The helper is between two slices.
const WITHOUT_HELPER: usize = 2;

/// How long locks and the helper are waited for, nanoseconds, which are had in a moment unless their thread is stopped.
const PATIENCE_NS: u64 = 10_000_000_000;

/// All signals but SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS: a handler for these acts for the instruction or
/// the system call at hand.
pub(crate) const SIGNALS: u64 = !(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);

/// Registers the handlers; may allocate.
pub(crate) fn register() {
    libc::at_fork(before, in_parent, in_child);
}

/// Takes every lock.
pub(crate) unsafe extern "C" fn before() {
    let mask = sys::set_signal_mask(SIGNALS);
    let deadline = sys::clock(sys::CLOCK_MONOTONIC).saturating_add(PATIENCE_NS);
    let in_vain = || HEAP.is_awaited() || sys::clock(sys::CLOCK_MONOTONIC) >= deadline;
    let helper = work::lock(in_vain);
    HEAP.lock_all(in_vain);
    tls::set_fork_mask(mask);
    tls::set_fork(if helper { WITHOUT_HELPER } else { BESIDE_HELPER });
}

/// Gives them up.
pub(crate) unsafe extern "C" fn in_parent() {
    let state = tls::fork();
    tls::set_fork(NO_FORK);
    // SAFETY: `before` took the locks in this thread.
    unsafe { HEAP.unlock_all() };
    if state == WITHOUT_HELPER {
        work::unlock();
    }
    sys::set_signal_mask(tls::fork_mask());
}

/// Makes them new.
pub(crate) unsafe extern "C" fn in_child() {
    copied::renew(tls::fork() == WITHOUT_HELPER);
    sys::set_signal_mask(tls::fork_mask());
}

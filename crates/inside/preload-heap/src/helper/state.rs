//! Whether there is a helper, as every thread may ask; `mod.rs` has the picture.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{pagemill_stats, sys};

pub(super) const OFF: u32 = 0;
pub(super) const STARTING: u32 = 1;
pub(super) const RUNNING: u32 = 2;
pub(super) const FAILED: u32 = 3;
/// Asked to end; whoever asked waits until the thread is gone and then says `OFF`.
pub(super) const ENDING: u32 = 4;

pub(super) static STATE: AtomicU32 = AtomicU32::new(OFF);

/// Changes when the helper is asked to look at once; it sleeps on this word.
pub(super) static BELL: AtomicU32 = AtomicU32::new(0);

/// The helper's thread number, while there is one.
pub(super) static THREAD: AtomicU32 = AtomicU32::new(0);

/// Set in a copy of the process that was made while the helper may have been within a slice.
static COPIED: AtomicBool = AtomicBool::new(false);

/// Least milliseconds between two passes.
static PERIOD_MS: AtomicU64 = AtomicU64::new(100);

/// Whether there is a helper, which then keeps the statistics.
#[inline]
pub(crate) fn works() -> bool {
    STATE.load(Ordering::Relaxed) == RUNNING
}

/// Whether the calling thread is the helper.
pub(crate) fn is_current() -> bool {
    THREAD.load(Ordering::Relaxed) == sys::tid()
}

/// Has the helper look at once.
pub(super) fn ring() {
    BELL.fetch_add(1, Ordering::Release);
    sys::futex_wake(&BELL, 1);
}

/// Whether this process is a copy that was made while the helper may have been within a slice. It is asked once.
pub(super) fn take_copied() -> bool {
    COPIED.swap(false, Ordering::Relaxed)
}

/// In a copy of the process: there is no helper here. `told`: handlers were around the fork.
pub(super) fn forget(told: bool) {
    THREAD.store(0, Ordering::Relaxed);
    if !told {
        COPIED.store(true, Ordering::Relaxed);
    }
    STATE.store(OFF, Ordering::Release);
    for counter in [
        &pagemill_stats.helper_cpu_ns,
        &pagemill_stats.backend,
        &pagemill_stats.barrier,
        &pagemill_stats.request,
        &pagemill_stats.request_done,
    ] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Makes `call`, a system call that is refused to a process of several threads, while there is no helper.
pub(crate) fn without(call: impl Fn() -> core::ffi::c_int) -> core::ffi::c_int {
    if !end() {
        return call();
    }
    let result = sys::retry(call);
    STATE.store(OFF, Ordering::Release);
    result
}

/// Ends the helper; whether there was one. Then the state stays `ENDING`, so that none is started.
fn end() -> bool {
    loop {
        match STATE.load(Ordering::Acquire) {
            OFF | FAILED => return false,
            RUNNING => {
                let thread = THREAD.load(Ordering::Relaxed);
                if STATE
                    .compare_exchange(RUNNING, ENDING, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
                {
                    continue;
                }
                ring();
                while sys::thread_exists(thread) {
                    sys::nap(50_000);
                }
                return true;
            }
            // Another thread ends it, or it is not set up yet.
            _ => sys::nap(50_000),
        }
    }
}

/// Least milliseconds between two passes; 0: only on request.
pub(crate) fn period_ms() -> u64 {
    PERIOD_MS.load(Ordering::Relaxed)
}

/// Sets what [`period_ms`] returns.
pub(crate) fn set_period_ms(period: u64) {
    PERIOD_MS.store(period, Ordering::Relaxed);
}

//! Whether there is a helper, as every thread may ask; `mod.rs` has the picture.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagemill_preload_sys::helper::{Helper, OFF, RUNNING};

use crate::stats::pagemill_stats;

pub(super) static HELPER: Helper = Helper::new(256 << 10);

/// Set in a copy of the process that was made while the helper may have been within a slice.
static COPIED: AtomicBool = AtomicBool::new(false);

/// Least milliseconds between two passes.
static PERIOD_MS: AtomicU64 = AtomicU64::new(100);

/// Whether there is a helper, which then keeps the statistics.
#[inline]
pub(crate) fn works() -> bool {
    HELPER.state.load(Ordering::Relaxed) == RUNNING
}

/// Whether the calling thread is the helper.
pub(crate) fn is_current() -> bool {
    HELPER.is_current()
}

/// Whether this process is a copy that was made while the helper may have been within a slice. It is asked once.
pub(super) fn take_copied() -> bool {
    COPIED.swap(false, Ordering::Relaxed)
}

/// In a copy of the process: there is no helper here. `told`: handlers were around the fork.
pub(super) fn forget(told: bool) {
    HELPER.thread.store(0, Ordering::Relaxed);
    if !told {
        COPIED.store(true, Ordering::Relaxed);
    }
    HELPER.state.store(OFF, Ordering::Release);
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
    HELPER.without(call).0
}

/// Least milliseconds between two passes; 0: only on request.
pub(crate) fn period_ms() -> u64 {
    PERIOD_MS.load(Ordering::Relaxed)
}

/// Sets what [`period_ms`] returns.
pub(crate) fn set_period_ms(period: u64) {
    PERIOD_MS.store(period, Ordering::Relaxed);
}

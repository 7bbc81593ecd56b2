//! The statistics page without a helper: the program's own threads refresh it, now and then, in their slow path.
//!
//! That is the case in the `n` configurations, in hardened mode and while the heap is small. A refresh looks at every
//! span, so the next one is at least ten milliseconds and two hundred times its own duration away: half a hundredth of
//! one CPU at most. Who finds another thread at it goes on.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagemill_preload_sys::sys;

use crate::heap::HEAP;
use crate::settings;

/// Slow paths between two looks at the clock.
const LOOK_EVERY: u32 = 64;
const LEAST_NS: u64 = 10_000_000;
const IDLE_SHARE: u64 = 200;

/// Slow paths so far. Counted by load and store: a count lost between two threads does no harm, and the line is not
/// fought for harder than it must be.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// When the next refresh is due.
static NEXT: AtomicU64 = AtomicU64::new(0);

static BUSY: AtomicBool = AtomicBool::new(false);

/// Called by a thread in its slow path; `now_ns` tells the time, coarsely.
#[inline]
pub(crate) fn due(now_ns: impl Fn() -> u64) {
    let count = COUNT.load(Ordering::Relaxed).wrapping_add(1);
    COUNT.store(count, Ordering::Relaxed);
    if count.is_multiple_of(LOOK_EVERY) && now_ns() >= NEXT.load(Ordering::Relaxed) {
        refresh();
    }
}

#[cold]
#[inline(never)]
fn refresh() {
    if !settings::ready() || BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    let began = sys::clock(sys::CLOCK_MONOTONIC);
    HEAP.refresh(false);
    let ended = sys::clock(sys::CLOCK_MONOTONIC);
    NEXT.store(ended + LEAST_NS.max((ended - began) * IDLE_SHARE), Ordering::Relaxed);
    BUSY.store(false, Ordering::Release);
}

/// In a copy of the process: the thread that was at it may not be here.
pub(crate) fn forget() {
    BUSY.store(false, Ordering::Release);
}

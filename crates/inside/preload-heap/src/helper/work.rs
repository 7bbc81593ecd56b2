//! The helper's work and the program's forks, which take turns: a fork waits until the helper is between two slices.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagemill_heap::stats::degraded;
use pagemill_preload_sys::helper::{ENDING, FAILED};
use pagemill_preload_sys::{confine, sys};

use super::state::{self, HELPER};
use crate::diagnostics;

/// Held by the helper while it works, and by a thread that forks.
static WORK: Lock = Lock(AtomicU32::new(0));

/// Threads that wait for `WORK` in order to fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process has forked.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A lock of one word: 0 free, 1 held, 2 held and waited for.
struct Lock(AtomicU32);

impl Lock {
    /// Whether it was taken before `in_vain`.
    fn take_until(&self, in_vain: impl Fn() -> bool) -> bool {
        const LOOK_NS: u64 = 1_000_000;
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return true;
        }
        while self.0.swap(2, Ordering::Acquire) != 0 {
            if in_vain() {
                return false;
            }
            sys::futex_wait(&self.0, 2, Some(sys::Timespec::from_ns(LOOK_NS)));
        }
        true
    }

    fn take(&self) {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                sys::futex_wait(&self.0, 2, None);
            }
        }
    }

    fn give(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            sys::futex_wake(&self.0, 1);
        }
    }
}

/// In a copy of the process: there is no helper here, and it holds no lock. `told`: handlers were around the fork.
pub(crate) fn forget(told: bool) {
    WORK.0.store(0, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    MADE.store(0, Ordering::Relaxed);
    state::forget(told);
}

/// There is no helper and will be none; `error`: 0 if it had to leave.
pub(super) fn fail(error: isize) {
    HELPER.state.store(FAILED, Ordering::Release);
    diagnostics::later(degraded::NO_THREAD, error);
}

/// In the helper, which holds nothing: ends it if it was asked to, or must.
pub(super) fn end_if_due() {
    if HELPER.state.load(Ordering::Acquire) == ENDING {
        leave();
    }
    if confine::filters_changed() {
        // A filter for all the program's threads may end the process for a call of the helper's.
        fail(0);
        leave();
    }
}

/// The helper's end. Its descriptors go with its table; the engine's next owner knows.
fn leave() -> ! {
    HELPER.thread.store(0, Ordering::Relaxed);
    sys::exit_thread()
}

/// Before a fork: waits until the helper is between two slices, and keeps it there. `false` if it is not before
/// `in_vain`: it may wait for a lock of the thread that forks.
pub(crate) fn lock(in_vain: impl Fn() -> bool) -> bool {
    MADE.fetch_add(1, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::AcqRel);
    let taken = WORK.take_until(in_vain);
    FORKS.fetch_sub(1, Ordering::AcqRel);
    sys::futex_wake(&FORKS, 1);
    taken
}

/// How often this process has forked.
pub(super) fn forks() -> u64 {
    MADE.load(Ordering::Relaxed)
}

/// After a fork, in the parent.
pub(crate) fn unlock() {
    WORK.give();
}

/// The helper begins to work.
pub(crate) fn hold() {
    WORK.take();
}

/// The helper ends its work.
pub(crate) fn release() {
    WORK.give();
}

/// The helper, between two slices: threads that want to fork go first.
pub(crate) fn yield_hold() {
    if FORKS.load(Ordering::Acquire) != 0 {
        WORK.give();
        let_forks_pass();
        WORK.take();
    }
}

/// The helper, between two slices: sleeps, and lets threads fork meanwhile.
pub(crate) fn breathe(ns: u64) {
    WORK.give();
    sys::sleep(ns);
    let_forks_pass();
    end_if_due();
    WORK.take();
}

fn let_forks_pass() {
    loop {
        let waiting = FORKS.load(Ordering::Acquire);
        if waiting == 0 {
            return;
        }
        sys::futex_wait(&FORKS, waiting, Some(sys::Timespec::from_ns(1_000_000)));
    }
}

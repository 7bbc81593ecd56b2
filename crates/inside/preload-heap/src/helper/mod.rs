//! The helper thread: refreshes the statistics, gives free memory back, compacts.
//!
//! What it shares with the program and how it starts and ends: `pagemill_preload_sys::helper`. It must not call the
//! library's own functions, nor libc's. It starts when the heap has grown past `PAGEMILL_HELPER_MIN`, in configurations
//! that compact, and again in a forked child when that child's heap grows; when the program confines all its threads it
//! is gone for good.
//!
//! It ends only while it holds no lock and the engine is between two slices.
//!
//! It wakes 25 times a second at most while the heap changes and once a second while it does not.

pub(crate) mod housekeeping;
pub(crate) mod state;
pub(crate) mod work;

use core::sync::atomic::Ordering;

use pagemill_heap::os::Os;
use pagemill_preload_sys::helper::{FAILED, OFF, RUNNING};
use pagemill_preload_sys::{confine, sys};

use self::state::HELPER;
use self::work::{end_if_due, fail};
use crate::heap::{HEAP, System};
use crate::stats::pagemill_stats;
use crate::{diagnostics, settings};

/// The one engine that compacts the heap.
static ENGINE: housekeeping::Shared<System> = housekeeping::Shared::new();

/// Starts the helper if the heap is large enough to be worth one. Called whenever it grows, perhaps
/// under a lock of the heap: starting waits for nothing.
pub(crate) fn wanted(mapped: usize) {
    if HELPER.state.load(Ordering::Relaxed) != OFF {
        diagnostics::pending();
    } else if settings::ready() {
        let settings = settings::get();
        if settings.config.compact && mapped >= settings.helper_min {
            launch();
        }
    }
}

#[cold]
fn launch() {
    if !HELPER.claim() {
        return;
    }
    // SAFETY: claimed; `run` keeps to system calls and the heap without a cache.
    if let Err(error) = unsafe { HELPER.spawn(HEAP.os().page_size(), run) } {
        fail(error);
    }
}

/// Asks for a pass of compaction and waits until it is done, a second at most.
pub(crate) fn request_pass() {
    const PATIENCE_MS: u32 = 1000;
    if !settings::get().config.compact {
        return;
    }
    if HELPER.state.load(Ordering::Relaxed) == OFF {
        launch();
    }
    let asked = pagemill_stats.request.fetch_add(1, Ordering::AcqRel) + 1;
    HELPER.ring();
    for _ in 0..PATIENCE_MS {
        if pagemill_stats.request_done.load(Ordering::Acquire) >= asked
            || HELPER.state.load(Ordering::Relaxed) == FAILED
        {
            return;
        }
        sys::sleep(1_000_000);
    }
}

/// The helper sleeps for `ns`, or until the bell rings or another process asks for a pass.
fn rest(bell: u32, ns: u64) {
    /// Another process can write the request but not ring the bell. Four looks a second cost an idle helper some twenty
    /// microseconds.
    const LOOK_NS: u64 = 250_000_000;
    let mut left = ns;
    while left > 0 && HELPER.bell.load(Ordering::Acquire) == bell {
        let nap = left.min(LOOK_NS);
        let woken = sys::futex_wait(&HELPER.bell, bell, Some(sys::Timespec::from_ns(nap)));
        let request = pagemill_stats.request.load(Ordering::Relaxed);
        if woken == 0 || request != pagemill_stats.request_done.load(Ordering::Relaxed) {
            return;
        }
        left -= nap;
    }
}

/// The thread's life.
extern "C" fn run() -> ! {
    if let Err(error) = HELPER.enter(c"pagemill") {
        fail(error);
        sys::exit_thread();
    }
    confine::note_filters();
    // SAFETY: this is the helper thread.
    let engine = unsafe { ENGINE.place() };
    let mut housekeeping = housekeeping::Housekeeping::new(engine, HEAP.os(), state::take_copied());
    confine::confine();
    HELPER.state.store(RUNNING, Ordering::Release);
    loop {
        let bell = HELPER.bell.load(Ordering::Acquire);
        end_if_due();
        let pause = housekeeping.round();
        rest(bell, pause);
    }
}

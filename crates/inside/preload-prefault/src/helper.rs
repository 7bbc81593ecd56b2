//! The helper thread, whose start and end are `pagemill_preload_sys::helper`'s: it starts when the library is loaded or
//! a forked child maps much, or, where the launcher says so, once the program has mapped much; it ends while a call
//! needs a single thread, and ends for good when the program confines all its threads or locks its memory.

use core::sync::atomic::Ordering;

use pagemill_prefault::board::{Head, ProcessWord, degraded};
use pagemill_preload_sys::helper::{ENDING, FAILED, Helper, OFF, RUNNING, STARTING};
use pagemill_preload_sys::{confine, sys};

use crate::regions::Regions;
use crate::{board, kernel, notes};

static HELPER: Helper = Helper::new(64 << 10);

/// Starts the helper where it is not to wait until the program has mapped much: a second thread costs a program that
/// ends at once more than it can gain.
pub(crate) fn start_at_load() {
    if board::whole_board().is_some_and(|board| board.get(Head::LeastMapped) == 0) {
        start();
    }
}

/// Whether the program has mapped as much as a helper waits for.
fn is_worth_it() -> bool {
    board::whole_board().is_some_and(|board| notes::noted() >= board.get(Head::LeastMapped))
}

/// Starts the helper, if there is none and may be one.
pub(crate) fn start() {
    if notes::is_quiet() {
        return;
    }
    if !HELPER.claim() {
        return;
    }
    let Some(process) = board::mine() else { return HELPER.state.store(FAILED, Ordering::Release) };
    if kernel::has_limited_address_space() {
        process.set(ProcessWord::Degraded, degraded::LIMITED);
        return HELPER.state.store(FAILED, Ordering::Release);
    }
    // SAFETY: claimed; `run` keeps to system calls.
    if unsafe { HELPER.spawn(pagemill_prefault::PAGE as usize, run) }.is_err() {
        process.set(ProcessWord::Degraded, degraded::NO_THREAD);
        HELPER.state.store(FAILED, Ordering::Release);
    }
}

/// Waits until the helper has acted on a note, a millisecond at most.
pub(crate) fn wait_for(note: u64) {
    const PATIENCE_NS: u64 = 1_000_000;
    if HELPER.state.load(Ordering::Relaxed) == RUNNING && !HELPER.is_current() && !notes::can_wait()
    {
        notes::wait_until_acted(note, PATIENCE_NS);
    }
}

/// There is news; where there is no helper yet, perhaps reason to start.
pub(crate) fn wanted() {
    match HELPER.state.load(Ordering::Relaxed) {
        OFF if is_worth_it() => start(),
        RUNNING if notes::can_wait() => {}
        RUNNING | STARTING => HELPER.ring(),
        _ => {}
    }
}

/// In a child: there is no helper here.
pub(crate) fn forget() {
    HELPER.thread.store(0, Ordering::Relaxed);
    notes::advise_small(false);
    notes::doze(false);
    if HELPER.state.load(Ordering::Relaxed) != FAILED {
        HELPER.state.store(OFF, Ordering::Release);
    }
}

/// Makes `call`, which is refused to a process of several threads, while there is no helper.
pub(crate) fn without(call: impl Fn() -> core::ffi::c_int) -> core::ffi::c_int {
    notes::advise_small(false);
    let (result, was) = HELPER.without(call);
    if was {
        start();
    }
    result
}

/// Ends the helper for good: memory is locked.
pub(crate) fn retire() {
    end_for(degraded::LIMITED);
}

/// Ends the helper for good: a filter for all threads may end the process for a call of the helper's.
pub(crate) fn leave() {
    end_for(degraded::NO_THREAD);
}

/// There will be no helper: the program was started under a filter that its launcher does not have, which may end it
/// for a call that few services make (`userfaultfd`).
pub(crate) fn refuse() {
    notes::keep_quiet();
    HELPER.state.store(FAILED, Ordering::Release);
    if let Some(process) = board::mine() {
        process.set(ProcessWord::Degraded, degraded::NO_THREAD);
    }
}

/// Ends the helper for good, and says why if there was one.
fn end_for(why: u64) {
    notes::advise_small(false);
    if HELPER.end() {
        HELPER.state.store(FAILED, Ordering::Release);
        if let Some(process) = board::mine() {
            process.set(ProcessWord::Degraded, process.get(ProcessWord::Degraded) | why);
        }
    } else {
        // None is started later.
        let _ = HELPER.state.compare_exchange(OFF, FAILED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The thread's life.
extern "C" fn run() -> ! {
    /// Longest time for which a filter for all threads goes unnoticed while there is much to do.
    const LOOK_NS: u64 = 10_000_000;
    if HELPER.enter(c"pagemill-huge").is_err() {
        fail();
    }
    kernel::lower_priority();
    let Some(process) = board::mine() else { fail() };
    confine::note_filters();
    let Some(mut regions) = Regions::new(process) else { fail() };
    confine::confine();
    process.set(ProcessWord::HelperThread, HELPER.thread.load(Ordering::Relaxed).into());
    process.set(ProcessWord::Running, 1);
    HELPER.state.store(RUNNING, Ordering::Release);
    let mut looked = 0;
    loop {
        let bell = HELPER.bell.load(Ordering::Acquire);
        if HELPER.state.load(Ordering::Acquire) == ENDING {
            drop(regions);
            process.set(ProcessWord::Running, 0);
            HELPER.thread.store(0, Ordering::Relaxed);
            sys::exit_thread();
        }
        let now = sys::clock(sys::CLOCK_MONOTONIC);
        if now >= looked + LOOK_NS {
            looked = now;
            if confine::filters_changed() {
                // A filter for all the program's threads may end the process for a call of the helper's: not even the
                // pool is given back.
                core::mem::forget(regions);
                fail();
            }
        }
        let pause = regions.round(now);
        if HELPER.bell.load(Ordering::Acquire) == bell {
            sys::futex_wait(&HELPER.bell, bell, Some(sys::Timespec::from_ns(pause)));
        }
    }
}

/// There is no helper and will be none.
fn fail() -> ! {
    notes::advise_small(false);
    if let Some(process) = board::mine() {
        process
            .set(ProcessWord::Degraded, process.get(ProcessWord::Degraded) | degraded::NO_THREAD);
        process.set(ProcessWord::Running, 0);
    }
    HELPER.state.store(FAILED, Ordering::Release);
    HELPER.thread.store(0, Ordering::Relaxed);
    sys::exit_thread()
}

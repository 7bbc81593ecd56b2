//! The helper thread: a raw `clone` that the C library knows nothing of, as in the preload library. It shares the
//! address space and signal dispositions, has a descriptor table of its own, all signals blocked and no thread-local
//! storage.
//!
//! ```text
//!  off ──library loaded, or a forked child maps much──► starting ──► running ──► failed (a filter, locked memory)
//!   ▲                                                                  │
//!   ├──────── fork, in the child ──────────────────────────────────────┤
//!   └──────── gone ◄── ending ◄── a call that needs a single thread ───┘
//! ```

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pagemill_prefault::board::{ProcessWord, degraded};

use crate::regions::Regions;
use crate::{board, confine, kernel, notes, sys};

const OFF: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const FAILED: u32 = 3;
const ENDING: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(OFF);

/// Changes when there is news; the helper sleeps on this word.
static BELL: AtomicU32 = AtomicU32::new(0);

static THREAD: AtomicU32 = AtomicU32::new(0);

/// The stack's upper end, kept for the next start.
static STACK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
const STACK_LEN: usize = 64 << 10;

/// Starts the helper, if there is none and may be one.
pub(crate) fn start() {
    if notes::is_quiet() {
        return;
    }
    if STATE.compare_exchange(OFF, STARTING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let Some(process) = board::mine() else { return STATE.store(FAILED, Ordering::Release) };
    if kernel::has_limited_address_space() {
        process.set(ProcessWord::Degraded, degraded::LIMITED);
        return STATE.store(FAILED, Ordering::Release);
    }
    let started = stack().is_some_and(|top| {
        let mask = sys::set_signal_mask(!0);
        // SAFETY: the stack is the helper's alone, for STATE lets one start at a time; `run` keeps to system calls.
        let thread = unsafe { sys::spawn(top, run) };
        sys::set_signal_mask(mask);
        !sys::failed(thread)
    });
    if !started {
        process.set(ProcessWord::Degraded, degraded::NO_THREAD);
        STATE.store(FAILED, Ordering::Release);
    }
}

/// Waits until the helper has acted on a note, a millisecond at most.
pub(crate) fn wait_for(note: u64) {
    const PATIENCE_NS: u64 = 1_000_000;
    if STATE.load(Ordering::Relaxed) == RUNNING && !is_current() {
        notes::wait_until_acted(note, PATIENCE_NS);
    }
}

/// Whether the calling thread is the helper.
fn is_current() -> bool {
    THREAD.load(Ordering::Relaxed) == sys::tid()
}

/// There is news; in a child that was forked, reason to start.
pub(crate) fn wanted() {
    match STATE.load(Ordering::Relaxed) {
        OFF if board::whole_board().is_some() => start(),
        RUNNING if notes::can_wait() => {}
        RUNNING | STARTING => ring(),
        _ => {}
    }
}

fn ring() {
    BELL.fetch_add(1, Ordering::Release);
    sys::futex_wake(&BELL, 1);
}

/// In a child: there is no helper here.
pub(crate) fn forget() {
    THREAD.store(0, Ordering::Relaxed);
    notes::advise_small(false);
    if STATE.load(Ordering::Relaxed) != FAILED {
        STATE.store(OFF, Ordering::Release);
    }
}

/// The helper's stack, above a page that nobody may touch; made once.
fn stack() -> Option<*mut u8> {
    const GUARD: usize = 4096;
    let made = STACK.load(Ordering::Acquire);
    if !made.is_null() {
        return Some(made);
    }
    let low = sys::map_anonymous(STACK_LEN + GUARD, sys::PROT_READ | sys::PROT_WRITE, 0);
    if low.is_null() {
        return None;
    }
    // SAFETY: the lowest page of a new mapping, whose other end is the stack's top.
    let top = unsafe {
        sys::forbid(low, GUARD);
        low.add(STACK_LEN + GUARD)
    };
    STACK.store(top, Ordering::Release);
    Some(top)
}

/// Makes `call`, which is refused to a process of several threads, while there is no helper.
pub(crate) fn without(call: impl Fn() -> core::ffi::c_int) -> core::ffi::c_int {
    if !end() {
        return call();
    }
    let result = sys::retry(call);
    STATE.store(OFF, Ordering::Release);
    start();
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
    STATE.store(FAILED, Ordering::Release);
    if let Some(process) = board::mine() {
        process.set(ProcessWord::Degraded, degraded::NO_THREAD);
    }
}

/// Ends the helper for good, and says why if there was one.
fn end_for(why: u64) {
    if end() {
        STATE.store(FAILED, Ordering::Release);
        if let Some(process) = board::mine() {
            process.set(ProcessWord::Degraded, process.get(ProcessWord::Degraded) | why);
        }
    } else {
        // None is started later.
        let _ = STATE.compare_exchange(OFF, FAILED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Ends the helper; whether there was one. Then the state stays `ENDING`, so that none is started.
fn end() -> bool {
    notes::advise_small(false);
    loop {
        match STATE.load(Ordering::Acquire) {
            OFF | FAILED => return false,
            RUNNING => {
                let thread = THREAD.load(Ordering::Relaxed);
                let asked =
                    STATE.compare_exchange(RUNNING, ENDING, Ordering::AcqRel, Ordering::Relaxed);
                if asked.is_err() {
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

/// The thread's life.
extern "C" fn run() -> ! {
    /// Longest time for which a filter for all threads goes unnoticed while there is much to do.
    const LOOK_NS: u64 = 10_000_000;
    // The descriptor table is shared until here. Without one of its own the helper would keep the program's pipes and
    // sockets open; then rather no helper.
    if sys::failed(sys::leave_descriptors()) {
        fail();
    }
    sys::leave_directory();
    THREAD.store(sys::tid(), Ordering::Relaxed);
    sys::name_thread(c"pagemill-huge");
    kernel::make_way();
    let Some(process) = board::mine() else { fail() };
    confine::note_filters();
    let Some(mut regions) = Regions::new(process) else { fail() };
    confine::confine();
    process.set(ProcessWord::Running, 1);
    STATE.store(RUNNING, Ordering::Release);
    let mut looked = 0;
    loop {
        let bell = BELL.load(Ordering::Acquire);
        if STATE.load(Ordering::Acquire) == ENDING {
            drop(regions);
            process.set(ProcessWord::Running, 0);
            THREAD.store(0, Ordering::Relaxed);
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
        if BELL.load(Ordering::Acquire) == bell {
            sys::futex_wait(&BELL, bell, Some(sys::Timespec::from_ns(pause)));
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
    STATE.store(FAILED, Ordering::Release);
    THREAD.store(0, Ordering::Relaxed);
    sys::exit_thread()
}

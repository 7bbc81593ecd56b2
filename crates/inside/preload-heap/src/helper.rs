//! The helper thread: refreshes the statistics, gives free memory back, compacts.
//!
//! It is a raw `clone` that the C library knows nothing of: an address space and signal dispositions shared, a descriptor table of
//! its own, all signals blocked, no thread-local storage (it must not call the library's own functions, nor libc's). It
//! starts when the heap has grown past `PAGEMILL_HELPER_MIN`, in configurations that compact, and again in a forked
//! child when that child's heap grows.
//!
//! ```text
//!  off ──heap grows──► starting ──set up──► running ──program confines all its threads──► failed
//!   ▲                     └─ refused ─► failed (said once)
//!   ├──────── fork, in the child ────────────┤
//!   └──────── gone ◄── ending ◄── a call that needs a single thread
//! ```
//!
//! It ends only while it holds no lock and the engine is between two slices.
//!
//! It wakes 25 times a second at most while the heap changes and once a second while it does not.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagemill_heap::os::Os;
use pagemill_heap::stats::degraded;

use crate::{HEAP, confine, pagemill_stats, rounds, say, start, sys};

const OFF: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const FAILED: u32 = 3;
/// Asked to end; whoever asked waits until the thread is gone and then says `OFF`.
const ENDING: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(OFF);

/// Changes when the helper is asked to look at once; it sleeps on this word.
static BELL: AtomicU32 = AtomicU32::new(0);

/// The stack's upper end, kept for the next start after a fork.
static STACK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
const STACK_LEN: usize = 256 << 10;

/// The helper's thread number, while there is one.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Least milliseconds between two passes.
static PERIOD_MS: AtomicU64 = AtomicU64::new(100);

/// Held by the helper while it works, and by a thread that forks.
static WORK: Lock = Lock(AtomicU32::new(0));

/// Threads that wait for `WORK` in order to fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Set in a copy of the process that was made while the helper may have been within a slice.
static COPIED: AtomicBool = AtomicBool::new(false);

/// A lock of one word: 0 free, 1 held, 2 held and waited for.
struct Lock(AtomicU32);

impl Lock {
    /// Whether it was taken within `patience` nanoseconds.
    fn take_within(&self, patience: u64) -> bool {
        const LOOK_NS: u64 = 1_000_000;
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return true;
        }
        let deadline = sys::clock(sys::CLOCK_MONOTONIC).saturating_add(patience);
        while self.0.swap(2, Ordering::Acquire) != 0 {
            if sys::clock(sys::CLOCK_MONOTONIC) >= deadline {
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

/// Starts the helper if the heap is large enough to be worth one. Called whenever it grows, perhaps
/// under a lock of the heap: starting waits for nothing.
pub(crate) fn wanted(mapped: usize) {
    if STATE.load(Ordering::Relaxed) != OFF {
        say::pending();
    } else if start::ready() {
        let settings = start::settings();
        if settings.config.compact && mapped >= settings.helper_min {
            launch();
        }
    }
}

#[cold]
fn launch() {
    if STATE.compare_exchange(OFF, STARTING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let Some(top) = stack() else { return fail(12) };
    let mask = sys::set_signal_mask(!0);
    // SAFETY: the stack is the helper's alone, for STATE lets one start at a time; `run` keeps to
    // system calls and the heap without a cache.
    let thread = unsafe { sys::spawn(top, run) };
    sys::set_signal_mask(mask);
    if sys::failed(thread) {
        fail(-thread);
    }
}

/// The helper's stack, above a page that nobody may touch; made once.
fn stack() -> Option<*mut u8> {
    let made = STACK.load(Ordering::Acquire);
    if !made.is_null() {
        return Some(made);
    }
    let page = HEAP.os().page_size();
    let low = sys::map_anonymous(STACK_LEN + page, sys::PROT_READ | sys::PROT_WRITE, 0);
    if low.is_null() {
        return None;
    }
    // SAFETY: the lowest page of a new mapping, whose other end is the stack's top.
    let top = unsafe {
        sys::forbid(low, page);
        low.add(STACK_LEN + page)
    };
    STACK.store(top, Ordering::Release);
    Some(top)
}

/// There is no helper and will be none; `error`: 0 if it had to leave.
fn fail(error: isize) {
    STATE.store(FAILED, Ordering::Release);
    say::later(degraded::NO_THREAD, error);
}

/// In a copy of the process: there is no helper here, and it holds no lock. `told`: handlers were around the fork.
pub(crate) fn forget(told: bool) {
    WORK.0.store(0, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
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

/// Whether there is a helper, which then keeps the statistics.
#[inline]
pub(crate) fn works() -> bool {
    STATE.load(Ordering::Relaxed) == RUNNING
}

/// Whether the calling thread is the helper.
pub(crate) fn is_current() -> bool {
    THREAD.load(Ordering::Relaxed) == sys::tid()
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
                BELL.fetch_add(1, Ordering::Release);
                sys::futex_wake(&BELL, 1);
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

/// In the helper, which holds nothing: ends it if it was asked to, or must.
fn end_if_due() {
    if STATE.load(Ordering::Acquire) == ENDING {
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
    THREAD.store(0, Ordering::Relaxed);
    sys::exit_thread()
}

/// Before a fork: waits until the helper is between two slices, and keeps it there. `false` if it is not within `patience`
/// nanoseconds: it may wait for a lock of the thread that forks.
pub(crate) fn lock(patience: u64) -> bool {
    FORKS.fetch_add(1, Ordering::AcqRel);
    let taken = WORK.take_within(patience);
    FORKS.fetch_sub(1, Ordering::AcqRel);
    sys::futex_wake(&FORKS, 1);
    taken
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
    sys::nap(ns);
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

/// Least milliseconds between two passes; 0: only on request.
pub(crate) fn period_ms() -> u64 {
    PERIOD_MS.load(Ordering::Relaxed)
}

/// Sets what [`period_ms`] returns.
pub(crate) fn set_period_ms(period: u64) {
    PERIOD_MS.store(period, Ordering::Relaxed);
}

/// Asks for a pass of compaction and waits until it is done, a second at most.
pub(crate) fn request_pass() {
    const PATIENCE_MS: u32 = 1000;
    if !start::settings().config.compact {
        return;
    }
    if STATE.load(Ordering::Relaxed) == OFF {
        launch();
    }
    let asked = pagemill_stats.request.fetch_add(1, Ordering::AcqRel) + 1;
    BELL.fetch_add(1, Ordering::Release);
    sys::futex_wake(&BELL, 1);
    for _ in 0..PATIENCE_MS {
        if pagemill_stats.request_done.load(Ordering::Acquire) >= asked
            || STATE.load(Ordering::Relaxed) == FAILED
        {
            return;
        }
        sys::nap(1_000_000);
    }
}

/// The helper sleeps for `ns`, or until the bell rings or another process asks for a pass.
fn rest(bell: u32, ns: u64) {
    /// Another process can write the request but not ring the bell. Four looks a second cost an idle helper some twenty
    /// microseconds.
    const LOOK_NS: u64 = 250_000_000;
    let mut left = ns;
    while left > 0 && BELL.load(Ordering::Acquire) == bell {
        let nap = left.min(LOOK_NS);
        let woken = sys::futex_wait(&BELL, bell, Some(sys::Timespec::from_ns(nap)));
        let request = pagemill_stats.request.load(Ordering::Relaxed);
        if woken == 0 || request != pagemill_stats.request_done.load(Ordering::Relaxed) {
            return;
        }
        left -= nap;
    }
}

/// The thread's life.
extern "C" fn run() -> ! {
    // The descriptor table is shared until here. Without one of its own the helper would keep the program's pipes and
    // sockets open; then rather no helper.
    let left = sys::leave_descriptors();
    if sys::failed(left) {
        fail(-left);
        sys::exit_thread();
    }
    // A directory of its own too: the program's may be unmounted once the program has left it.
    sys::leave_directory();
    THREAD.store(sys::tid(), Ordering::Relaxed);
    sys::name_thread(c"pagemill");
    confine::note_filters();
    // SAFETY: this is the helper thread.
    let mut rounds = unsafe { rounds::Rounds::new(COPIED.swap(false, Ordering::Relaxed)) };
    confine::confine();
    STATE.store(RUNNING, Ordering::Release);
    loop {
        let bell = BELL.load(Ordering::Acquire);
        end_if_due();
        let pause = rounds.round();
        rest(bell, pause);
    }
}

//! The helper thread: refreshes the statistics, gives free memory back, compacts.
//!
//! It is a raw `clone` that the C library knows nothing of: an address space and signal dispositions shared, a descriptor table of
//! its own, all signals blocked, no thread-local storage (it must not call the library's own functions, nor libc's). It
//! starts when the heap has grown past `PAGEMILL_HELPER_MIN`, in configurations that compact, and again in a forked
//! child when that child's heap grows.
//!
//! ```text
//!  off ──heap grows──► starting ──set up──► running
//!   ▲                     └─ refused ─► failed (said once)
//!   └──────── fork, in the child ────────────┘
//! ```
//!
//! It wakes ten times a second while the heap changes and once a second while it does not.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagemill_heap::os::Os;
use pagemill_heap::stats::degraded;

use crate::{HEAP, confine, kernel, pagemill_stats, say, start, sys};

const OFF: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const FAILED: u32 = 3;

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

/// A lock of one word: 0 free, 1 held, 2 held and waited for.
struct Lock(AtomicU32);

impl Lock {
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

fn fail(error: isize) {
    STATE.store(FAILED, Ordering::Release);
    say::later(degraded::NO_THREAD, error);
}

/// After a fork, in the child: there is no helper here, and it holds no lock.
pub(crate) fn forget() {
    WORK.0.store(0, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    STATE.store(OFF, Ordering::Release);
    pagemill_stats.helper_cpu_ns.store(0, Ordering::Relaxed);
    pagemill_stats.backend.store(0, Ordering::Relaxed);
    pagemill_stats.barrier.store(0, Ordering::Relaxed);
}

/// Whether the calling thread is the helper.
pub(crate) fn is_current() -> bool {
    THREAD.load(Ordering::Relaxed) == sys::tid()
}

/// Before a fork: waits until the helper is between two slices, and keeps it there.
pub(crate) fn lock() {
    WORK.take();
}

/// After a fork, in the parent.
pub(crate) fn unlock() {
    WORK.give();
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
    let never = AtomicU32::new(0);
    for _ in 0..PATIENCE_MS {
        if pagemill_stats.request_done.load(Ordering::Acquire) >= asked
            || STATE.load(Ordering::Relaxed) == FAILED
        {
            return;
        }
        sys::futex_wait(&never, 0, Some(sys::Timespec::from_ns(1_000_000)));
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
    THREAD.store(sys::tid(), Ordering::Relaxed);
    sys::name_thread(c"pagemill");
    let machine = kernel::Linux::open(HEAP.os().page_size());
    confine::confine();
    if STATE.compare_exchange(STARTING, RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        sys::exit_thread();
    }
    Rounds { machine, idle: 0, seen: (0, 0) }.run()
}

/// What the helper remembers from round to round.
struct Rounds {
    machine: kernel::Linux,
    idle: u32,
    seen: (usize, usize),
}

impl Rounds {
    fn run(mut self) -> ! {
        loop {
            let bell = BELL.load(Ordering::Acquire);
            WORK.take();
            self.round();
            WORK.give();
            sys::futex_wait(&BELL, bell, Some(sys::Timespec::from_ns(self.pause_ns())));
        }
    }

    /// A tenth of a second while the heap changes, up to a second while it does not.
    fn pause_ns(&self) -> u64 {
        100_000_000 * u64::from((1 + self.idle).min(10))
    }

    fn round(&mut self) {
        use pagemill_heap::compact::Kernel;
        let totals = HEAP.totals();
        let now = (totals.live, totals.mapped);
        self.idle = if now == self.seen { self.idle.saturating_add(1) } else { 0 };
        self.seen = now;
        let given_back = HEAP.purge(HEAP.os().now_ns());
        if self.idle <= 1 || given_back > 0 {
            HEAP.refresh();
        }
        pagemill_stats.refreshed_ns.store(self.machine.now_ns(), Ordering::Relaxed);
        pagemill_stats.helper_cpu_ns.store(self.machine.cpu_ns(), Ordering::Relaxed);
    }
}

//! The helper thread: refreshes the statistics, gives free memory back, compacts.
//!
//! It is a raw `clone` that the C library knows nothing of: an address space and signal dispositions shared, a
//! descriptor table of its own, all signals blocked, no thread-local storage (it must not call the library's own
//! functions, nor libc's). It starts when the heap has grown past `PAGEMILL_HELPER_MIN`, in configurations that
//! compact, and again in a forked child when that child's heap grows.
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

pub(crate) mod housekeeping;
pub(crate) mod state;
pub(crate) mod work;

use core::sync::atomic::{AtomicPtr, Ordering};

use pagemill_heap::os::Os;

use self::state::{BELL, FAILED, OFF, RUNNING, STARTING, STATE, THREAD, ring};
use self::work::{end_if_due, fail};
use crate::{ENGINE, HEAP, confine, pagemill_stats, say, settings, sys};

/// The stack's upper end, kept for the next start after a fork.
static STACK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
const STACK_LEN: usize = 256 << 10;

/// Starts the helper if the heap is large enough to be worth one. Called whenever it grows, perhaps
/// under a lock of the heap: starting waits for nothing.
pub(crate) fn wanted(mapped: usize) {
    if STATE.load(Ordering::Relaxed) != OFF {
        say::pending();
    } else if settings::ready() {
        let settings = settings::get();
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

/// Asks for a pass of compaction and waits until it is done, a second at most.
pub(crate) fn request_pass() {
    const PATIENCE_MS: u32 = 1000;
    if !settings::get().config.compact {
        return;
    }
    if STATE.load(Ordering::Relaxed) == OFF {
        launch();
    }
    let asked = pagemill_stats.request.fetch_add(1, Ordering::AcqRel) + 1;
    ring();
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
    let engine = unsafe { ENGINE.place() };
    let mut housekeeping = housekeeping::Housekeeping::new(engine, HEAP.os(), state::take_copied());
    confine::confine();
    STATE.store(RUNNING, Ordering::Release);
    loop {
        let bell = BELL.load(Ordering::Acquire);
        end_if_due();
        let pause = housekeeping.round();
        rest(bell, pause);
    }
}

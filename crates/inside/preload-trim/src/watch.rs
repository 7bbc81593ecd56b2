//! The thread's life: it looks how much CPU time the program uses, and trims when that is next to nothing.
//!
//! ```text
//!  works ──two looks with less than a twentieth of a CPU──► rests ──worked since, and the wait is over──► trim
//!    ▲                                                        │
//!    └────────────────────── more than that ──────────────────┘
//! ```
//!
//! The wait between two trims is a second at first. It doubles, to a minute at most, where a trim returned little, or
//! where half of what it returned had been needed again before the next; otherwise it halves.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use pagemill_preload_sys::helper::{ENDING, FAILED, Helper, RUNNING};
use pagemill_preload_sys::{confine, sys};

/// The thread.
pub(crate) static HELPER: Helper = Helper::new(0);
/// `malloc_trim`, as an address.
pub(crate) static TRIM: AtomicUsize = AtomicUsize::new(0);

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Between two looks at a program that works, and at one that rests.
const LOOK: u64 = 100 * MILLISECOND;
const LOOK_AT_REST: u64 = 400 * MILLISECOND;
/// Who uses less than this part of a CPU rests.
const PART: u64 = 20;
/// Looks in a row that make a rest.
const IN_A_ROW: u32 = 2;
/// CPU time since the last trim that makes another worth it.
const WORK: u64 = 5 * MILLISECOND;
/// The wait between two trims, at the least and at the most.
const WAIT: (u64, u64) = (SECOND, 64 * SECOND);
/// A trim that returns less than this part of memory returns little.
const LITTLE: u64 = 64;

/// The thread. It returns when it is asked to end.
pub(crate) extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // A thread of the C library shares the program's current directory, which is not to be left with it.
    let apart = sys::unshare(sys::CLONE_FS);
    if sys::failed(apart) || HELPER.enter(c"pagemill-trim").is_err() {
        HELPER.state.store(FAILED, Ordering::Release);
        return core::ptr::null_mut();
    }
    confine::note_filters();
    let mut watch = Watch::begin();
    HELPER.state.store(RUNNING, Ordering::Release);
    loop {
        let bell = HELPER.bell.load(Ordering::Acquire);
        if HELPER.state.load(Ordering::Acquire) == ENDING {
            HELPER.thread.store(0, Ordering::Relaxed);
            return core::ptr::null_mut();
        }
        if confine::filters_changed() {
            // The filter may end the process for a call by which a thread ends: this one sleeps from here on.
            HELPER.state.store(FAILED, Ordering::Release);
            loop {
                sys::sleep(1 << 60);
            }
        }
        let pause = watch.tick();
        if HELPER.bell.load(Ordering::Acquire) == bell {
            sys::futex_wait(&HELPER.bell, bell, Some(sys::Timespec::from_ns(pause)));
        }
    }
}

/// Calls `malloc_trim(0)`.
fn trim() {
    type Trim = unsafe extern "C" fn(usize) -> c_int;
    let address = core::ptr::with_exposed_provenance_mut(TRIM.load(Ordering::Relaxed));
    // SAFETY: a symbol of this name is, by the C library's interface, a function of this type; `Option` of a function
    // pointer is null for none.
    let trim = unsafe { core::mem::transmute::<*mut c_void, Option<Trim>>(address) };
    if let Some(trim) = trim {
        // SAFETY: it may be called by any thread at any time.
        unsafe { trim(0) };
    }
}

/// What is known of the program.
struct Watch {
    /// `/proc/self/statm`, or a negative number.
    memory: i32,
    /// The last look: when, and the program's CPU time until then.
    looked: (u64, u64),
    /// Looks in a row at which it rested.
    quiet: u32,
    /// The last trim: when, the program's CPU time until then, its memory before and after, pages.
    trimmed: Option<(u64, u64, [u64; 2])>,
    wait: u64,
}

/// CPU time of the program without this thread.
fn work() -> u64 {
    sys::clock(sys::CLOCK_PROCESS_CPUTIME_ID)
        .saturating_sub(sys::clock(sys::CLOCK_THREAD_CPUTIME_ID))
}

impl Watch {
    fn begin() -> Self {
        let memory = sys::open(c"/proc/self/statm", sys::O_RDONLY);
        let memory = if sys::failed(memory) { -1 } else { memory as i32 };
        let looked = (sys::clock(sys::CLOCK_MONOTONIC), work());
        Self { memory, looked, quiet: 0, trimmed: None, wait: WAIT.0 }
    }

    /// Looks, trims if it is time to, and says how long to sleep.
    fn tick(&mut self) -> u64 {
        let (now, work) = (sys::clock(sys::CLOCK_MONOTONIC), work());
        let (span, worked) = (now - self.looked.0, work.saturating_sub(self.looked.1));
        self.looked = (now, work);
        // Woken early, or at the very start: too short to tell.
        if span < LOOK / 2 {
            return LOOK;
        }
        self.quiet = if worked < span / PART { self.quiet + 1 } else { 0 };
        if self.quiet < IN_A_ROW {
            return LOOK;
        }
        let due = self.trimmed.is_none_or(|(when, until, _)| {
            now - when >= self.wait && work.saturating_sub(until) >= WORK
        });
        if due {
            self.trim(work);
        }
        LOOK_AT_REST
    }

    fn trim(&mut self, work: u64) {
        let before = self.pages();
        let needed = self
            .trimmed
            .is_some_and(|(_, _, [most, least])| before >= least + most.saturating_sub(least) / 2);
        trim();
        let after = self.pages();
        let little = before.saturating_sub(after) < before / LITTLE;
        self.wait = match needed || little {
            true => (self.wait * 2).min(WAIT.1),
            false => (self.wait / 2).max(WAIT.0),
        };
        self.trimmed = Some((sys::clock(sys::CLOCK_MONOTONIC), work, [before, after]));
    }

    /// Resident pages; 0 where nobody tells.
    fn pages(&self) -> u64 {
        let mut buffer = [0_u8; 128];
        let pages = sys::text_of(self.memory, &mut buffer).split(' ').nth(1);
        pages.and_then(|pages| pages.parse().ok()).unwrap_or(0)
    }
}

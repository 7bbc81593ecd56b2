//! What the library says: one line on standard error, once a reason, only when it does less than
//! asked or the program misuses the heap. Nothing on success.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use pagemill_heap::stats::degraded;
use pagemill_preload_sys::sys;

use crate::helper::state;
use crate::line::Line;
use crate::settings;
use crate::stats::pagemill_stats;

/// Writes `pagemill: ` and the text as one line to standard error.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // Writing to a Line cannot fail.
    let _ = write!(line, "pagemill: {text}");
    line.end();
    if state::is_current() {
        // The helper has no standard error of its own.
        let fd = sys::descriptor_of_process(2);
        if !sys::failed(fd) {
            sys::write(fd as i32, line.bytes());
        }
    } else {
        sys::write(2, line.bytes());
    }
}

/// Reasons said so far, as bits of [`degraded`].
static SAID: AtomicU64 = AtomicU64::new(0);

/// Reasons to be said by the next thread that may: the helper has no standard error.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// The error number of the last of them; 0 if there was none.
static ERROR: AtomicU64 = AtomicU64::new(0);

/// Notes a degradation in the statistics and says it, unless it was said before or the user asked
/// for silence (`PAGEMILL_QUIET=1`).
pub(crate) fn degraded(reason: u64, text: fmt::Arguments<'_>) {
    pagemill_stats.degraded.fetch_or(reason, Ordering::Relaxed);
    if SAID.fetch_or(reason, Ordering::Relaxed) & reason == 0 && !settings::get().quiet {
        line(text);
    }
}

/// Says that a setting cannot be used and notes in the statistics that there is such a one. Each is said.
pub(crate) fn unusable(text: fmt::Arguments<'_>) {
    pagemill_stats.degraded.fetch_or(degraded::BAD_CONFIG, Ordering::Relaxed);
    if !settings::get().quiet {
        line(text);
    }
}

/// As [`degraded`], for the helper: the program's next thread that grows the heap says it.
pub(crate) fn later(reason: u64, error: isize) {
    pagemill_stats.degraded.fetch_or(reason, Ordering::Relaxed);
    ERROR.store(error as u64, Ordering::Relaxed);
    PENDING.fetch_or(reason, Ordering::Release);
}

/// Says what is pending.
#[inline]
pub(crate) fn pending() {
    if PENDING.load(Ordering::Relaxed) != 0 {
        say_pending();
    }
}

#[cold]
fn say_pending() {
    if state::is_current() {
        return;
    }
    let reasons = PENDING.swap(0, Ordering::Acquire);
    let error = ERROR.load(Ordering::Relaxed);
    for reason in (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| reasons & bit != 0) {
        if error == 0 {
            let text = if reason == degraded::NO_THREAD { HAD_TO_LEAVE } else { why(reason) };
            degraded(reason, format_args!("{text}"));
        } else {
            degraded(reason, format_args!("{} (error {error})", why(reason)));
        }
    }
}

/// What the user reads about a helper that ended.
const HAD_TO_LEAVE: &str = "the program has put all its threads under a seccomp filter, \
     so the heap's thread has ended and the heap does not compact any more";

/// What the user reads about a reason, and what to do.
fn why(reason: u64) -> &'static str {
    match reason {
        degraded::NO_MEMFD => {
            "no memfd can be made here, so no memory is merged; raise the limits on open files and file sizes \
             (ulimit -n, -f), allow memfd_create in the sandbox, or run: pagemill run --ksm as root"
        }
        degraded::NO_BARRIER => {
            "no userfaultfd that also stops kernel writers, so no memory is merged; \
             run: setfacl -m u:$USER:rw /dev/userfaultfd (see pagemill doctor)"
        }
        degraded::NO_THREAD => {
            "the helper thread cannot be started, so the heap does not compact; it needs Linux 5.11, leave to clone \
             and room below the limit on processes (ulimit -u)"
        }
        degraded::VMA_BUDGET => {
            "the share of vm.max_map_count for merging is used up; run: sysctl vm.max_map_count=1048576"
        }
        degraded::NO_KSM => {
            "KSM was asked for and does not run, so no memory is merged; run: pagemill run --ksm as root"
        }
        degraded::PINS => {
            "memory may be pinned for devices and this kernel (before 6.8) cannot tell which, so no memory is merged"
        }
        _ => "the heap does less than asked",
    }
}

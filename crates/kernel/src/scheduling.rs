//! Scheduling (sched(7)): whether a thread of this process may be a real-time thread, and a thread that yields to
//! all others.
//!
//! It may be a real-time thread with `CAP_SYS_NICE` or an `RLIMIT_RTPRIO`, where its control group has a share of real time
//! (`CONFIG_RT_GROUP_SCHED`). A limit on the real time used without a sleep (`RLIMIT_RTTIME`) ends the process that
//! exceeds it, so under one nobody should try.

use std::io;
use std::thread;

use crate::{Error, Result};

/// Makes a thread of its own a real-time thread of the lowest priority, for as long as that takes to find out.
///
/// # Errors
/// The kernel refuses, or time spent as a real-time thread is limited.
pub fn real_time_is_allowed() -> Result<()> {
    let failed = |error| Error::io("make a real-time thread", "of this process", error);
    let tried = thread::Builder::new().spawn(try_real_time).map_err(failed)?;
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread failed"))).map_err(failed)
}

fn try_real_time() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes of its type.
    if unsafe { libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur != libc::RLIM_INFINITY || limit.rlim_max != libc::RLIM_INFINITY {
        return Err(io::Error::other("RLIMIT_RTTIME limits real-time threads"));
    }
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: `lowest` is valid for reads of its type; thread 0 is the calling one, which ends right after.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets the calling thread run when others of the same priority have what they want: for work that can wait. Where the
/// kernel refuses, it goes on as before.
pub fn yield_to_others() {
    /// The least that a processor gives.
    const NICEST: i32 = 19;
    // SAFETY: no memory; on Linux 0 is the calling thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_yields_is_the_only_one_that_does() {
        // SAFETY: no memory.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = priority();
        let yielding = thread::spawn(move || {
            yield_to_others();
            priority()
        });
        assert_eq!(yielding.join().ok(), Some(19));
        assert_eq!(priority(), before);
    }

    #[test]
    fn asking_changes_no_other_thread() {
        let answer = real_time_is_allowed();
        // SAFETY: thread 0 is the calling one; no memory.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER, "{answer:?}");
    }
}

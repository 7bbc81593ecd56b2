//! `CLOCK_MONOTONIC`: the clock of all stamps (clock_gettime(2)).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use pagemill_model::Pid;

use crate::{Error, Result};

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Time since some moment before this system's first process; it never goes back and does not run
/// while the machine is suspended. The same in all processes of a time namespace.
pub fn monotonic() -> Duration {
    time(ClockId::Monotonic)
}

/// The processor's time stamp counter, which runs at one speed; zero where there is none.
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it reads a counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// CPU time of process `pid` so far, all threads, user and system (clock_getcpuclockid(3)).
///
/// # Errors
/// There is no such process.
pub fn of_process(pid: Pid) -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The kernel's number for that clock.
    let clock = (!(pid.0 as i32) << 3) | 2;
    // SAFETY: `time` is valid for writes; a clock that does not exist is refused.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(Error::last("read", format_args!("the CPU time of process {pid}")));
    }
    Ok(Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0)))
}

/// CPU time of this thread so far, user and system.
pub fn of_thread() -> Duration {
    time(ClockId::ThreadCPUTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_as_fast_as_the_standard_librarys() {
        // Each reading is between two of the other clock's, so the bounds hold however busy the machine is.
        let outer = std::time::Instant::now();
        let before = monotonic();
        let inner = std::time::Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let inner = inner.elapsed();
        let ours = monotonic() - before;
        let outer = outer.elapsed();
        assert!(inner <= ours && ours <= outer, "{inner:?} {ours:?} {outer:?}");
    }
}

//! `CLOCK_MONOTONIC`: the clock of all stamps (clock_gettime(2)).

use std::time::Duration;

use crate::{Error, Result};

/// Time since some moment before this system's first process; it never goes back and does not run
/// while the machine is suspended. The same in all processes of a time namespace.
pub fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writes, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
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
pub fn of_process(pid: u32) -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The kernel's number for that clock.
    let clock = (!(pid as i32) << 3) | 2;
    // SAFETY: `time` is valid for writes; a clock that does not exist is refused.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(Error::last("read", format_args!("the CPU time of process {pid}")));
    }
    Ok(Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0)))
}

/// CPU time of this thread so far, user and system.
pub fn of_thread() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
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

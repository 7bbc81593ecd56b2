//! Touching memory on purpose: a known number of page faults, and how long each takes as the program
//! sees it. The difference to what the kernel's own events say is entry, exit and hypervisor.

use std::io;
use std::time::{Duration, Instant};

use crate::memory::mapped::Mapped;
use crate::{Error, Result, page_size};

/// Memory that no one has touched, on small pages where this kernel knows that advice.
fn fresh(length: usize) -> Result<Mapped> {
    let memory = Mapped::anonymous(length, 0).map_err(|error| not_mapped(length, error))?;
    let _ = memory.advise(libc::MADV_NOHUGEPAGE);
    Ok(memory)
}

fn not_mapped(length: usize, error: io::Error) -> Error {
    Error::io("map", format_args!("{length} bytes"), error)
}

/// Gives the pages back; the next touch of each is a fault again.
fn forget(memory: &Mapped) {
    let _ = memory.advise(libc::MADV_DONTNEED);
}

/// Touches `pages` new small pages once each: as many faults. Returns where they were.
///
/// # Errors
/// The pages cannot be mapped.
pub fn pages(pages: usize) -> Result<u64> {
    let memory = fresh(pages * page_size())?;
    for page in 0..pages {
        memory.touch(page * page_size());
    }
    Ok(memory.address())
}

/// How long each first touch of `pages` small pages takes, as the program sees it. The pages have
/// been in use a moment before, so the host has them too.
///
/// # Errors
/// The pages cannot be mapped.
pub fn timed(pages: usize) -> Result<Vec<Duration>> {
    let memory = fresh(pages * page_size())?;
    let mut times = Vec::with_capacity(pages);
    for warm in [false, true] {
        forget(&memory);
        for page in 0..pages {
            let begun = Instant::now();
            memory.touch(page * page_size());
            if warm {
                times.push(begun.elapsed());
            }
        }
    }
    Ok(times)
}

/// What a fault costs whose page is in memory: CPU time of this thread, user and system, for each write to one of
/// `pages` pages that were dropped before, in ns, once for each round. The memory is shared, so nothing is made zero.
///
/// # Errors
/// The pages cannot be mapped.
pub fn refault_costs(pages: usize, rounds: usize) -> Result<Vec<f64>> {
    let length = pages * page_size();
    let memory = Mapped::shared(length).map_err(|error| not_mapped(length, error))?;
    let mut costs = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        forget(&memory);
        let begun = crate::clock::of_thread();
        for page in 0..pages {
            memory.touch(page * page_size());
        }
        let took = crate::clock::of_thread().saturating_sub(begun);
        // The first round's pages come into being.
        if round > 0 {
            costs.push(took.as_nanos() as f64 / pages as f64);
        }
    }
    Ok(costs)
}

/// What mapping `bytes` of private memory and unmapping them again takes, `count` times.
///
/// # Errors
/// They cannot be mapped.
pub fn mapped_and_unmapped(bytes: usize, count: usize) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..count {
        drop(Mapped::anonymous(bytes, 0).map_err(|error| not_mapped(bytes, error))?);
    }
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::*;

    #[test]
    fn pages_that_are_dropped_are_faults_again() {
        let before = crate::Linux::live().stat(Pid::own()).unwrap().minor_faults;
        assert_eq!(refault_costs(100, 3).unwrap().len(), 3);
        mapped_and_unmapped(1 << 16, 5).unwrap();
        let after = crate::Linux::live().stat(Pid::own()).unwrap().minor_faults;
        assert!(after - before >= 400, "{} faults", after - before);
    }

    #[test]
    fn each_page_is_touched_and_timed_once() {
        let before = crate::Linux::live().stat(Pid::own()).unwrap().minor_faults;
        let times = timed(200).unwrap();
        let after = crate::Linux::live().stat(Pid::own()).unwrap().minor_faults;
        assert_eq!(times.len(), 200);
        assert!(after - before >= 400, "{} faults", after - before);
        assert_ne!(pages(1).unwrap(), 0);
    }
}

//! Touching memory on purpose: a known number of page faults, and how long each takes as the program
//! sees it. The difference to what the kernel's own events say is entry, exit and hypervisor.

use std::ptr;
use std::time::{Duration, Instant};

use crate::{Error, Result, page_size};

/// Memory that no one has touched, with or without huge pages.
struct Fresh {
    start: *mut u8,
    length: usize,
}

impl Fresh {
    fn map(length: usize, advice: libc::c_int) -> Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last("map", format_args!("{length} bytes")));
        }
        // SAFETY: the range is the mapping that was just made. Advice that this kernel does not know is
        // refused and changes nothing.
        unsafe { libc::madvise(start, length, advice) };
        Ok(Self { start: start.cast(), length })
    }

    /// Writes to the page at `offset`.
    fn write(&self, offset: usize) {
        assert!(offset < self.length, "inside the mapping");
        // SAFETY: `offset` is inside the mapping, which `self` owns and nobody else refers to.
        unsafe { self.start.add(offset).write_volatile(1) };
    }

    /// Gives the pages back; the next touch of each is a fault again.
    fn forget(&self) {
        // SAFETY: the range is this mapping, and no reference points into it.
        unsafe { libc::madvise(self.start.cast(), self.length, libc::MADV_DONTNEED) };
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: made by `map` with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Touches `pages` new small pages once each: as many faults. Returns where they were.
pub fn pages(pages: usize) -> Result<u64> {
    let memory = Fresh::map(pages * page_size(), libc::MADV_NOHUGEPAGE)?;
    for page in 0..pages {
        memory.write(page * page_size());
    }
    Ok(memory.start as u64)
}

/// How long each first touch of `pages` small pages takes, as the program sees it. The pages have
/// been in use a moment before, so the host has them too.
pub fn timed(pages: usize) -> Result<Vec<Duration>> {
    let memory = Fresh::map(pages * page_size(), libc::MADV_NOHUGEPAGE)?;
    let mut times = Vec::with_capacity(pages);
    for warm in [false, true] {
        memory.forget();
        for page in 0..pages {
            let begun = Instant::now();
            memory.write(page * page_size());
            if warm {
                times.push(begun.elapsed());
            }
        }
    }
    Ok(times)
}

/// What a fault costs whose page is in memory: CPU time of this thread, user and system, for each write to one of
/// `pages` pages that were dropped before, in ns, once for each round. The memory is shared, so nothing is made zero.
pub fn again(pages: usize, rounds: usize) -> Result<Vec<f64>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, length) = (libc::MAP_SHARED | libc::MAP_ANONYMOUS, pages * page_size());
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Error::last("map", format_args!("{length} bytes")));
    }
    let memory = Fresh { start: start.cast(), length };
    let mut costs = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        memory.forget();
        let begun = crate::clock::of_thread();
        for page in 0..pages {
            memory.write(page * page_size());
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
pub fn mapped_and_unmapped(bytes: usize, count: usize) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..count {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last("map", format_args!("{bytes} bytes")));
        }
        drop(Fresh { start: start.cast(), length: bytes });
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
        assert_eq!(again(100, 3).unwrap().len(), 3);
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

//! Huge pages of another process: which of its pages are there (`PAGEMAP_SCAN`, Linux 6.7), and making one huge page of those in a
//! chunk (`process_madvise(MADV_COLLAPSE)`, Linux 6.1). The program needs to know nothing of it.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::pagemap::{self, Pagemap};
use crate::{Error, Linux, Result, pidfd};

const ADVICE: &str = "run as root or as the user who owns the process; see pagemill doctor";

/// A run of present pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Whether they are huge.
    pub huge: bool,
}

/// The pages of a process.
#[derive(Debug)]
pub struct Pages {
    pid: u32,
    pagemap: Pagemap,
    process: OwnedFd,
}

impl Pages {
    /// Of process `pid`.
    pub fn of(linux: &Linux, pid: u32) -> Result<Self> {
        Ok(Self { pid, pagemap: Pagemap::open(linux, pid)?, process: pidfd::open(pid)? })
    }

    /// The runs of present pages in a range, in order.
    pub fn runs(&self, start: u64, end: u64) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.pagemap.scan(
            start,
            end,
            pagemap::PRESENT,
            pagemap::PRESENT | pagemap::HUGE,
            |region| {
                let huge = region.categories & pagemap::HUGE != 0;
                runs.push(Run { start: region.start, end: region.end, huge });
            },
        )?;
        Ok(runs)
    }

    /// Makes one huge page of what is in the chunk at `start`. Needs at least one page there.
    pub fn collapse(&self, start: u64, length: u64) -> Result<()> {
        const MADV_COLLAPSE: libc::c_int = 25;
        let range = libc::iovec { iov_base: start as usize as *mut _, iov_len: length as usize };
        let (fd, ranges) = (self.process.as_raw_fd(), &raw const range);
        // SAFETY: the kernel reads one iovec, which is alive; the address is one of the other process, which the
        // kernel checks, and the advice changes no byte there.
        let done = unsafe {
            libc::syscall(libc::SYS_process_madvise, fd, ranges, 1_usize, MADV_COLLAPSE, 0)
        };
        if done >= 0 {
            return Ok(());
        }
        let object = format!("the pages at {start:#x} of process {}", self.pid);
        Err(Error::last("collapse", object).advise(ADVICE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_this_process_are_found_where_they_are() {
        let memory = vec![1_u8; 1 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(4096);
        let end = start + (1 << 20) - 8192;
        let pages = Pages::of(&Linux::live(), std::process::id()).unwrap();
        let runs = match pages.runs(start, end) {
            Ok(runs) => runs,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        assert_eq!(bytes, end - start, "{runs:?}");
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}

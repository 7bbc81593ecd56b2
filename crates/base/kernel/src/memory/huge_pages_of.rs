//! Huge pages of another process: which of its pages are there (`PAGEMAP_SCAN`, Linux 6.7), and making one huge page of
//! those in a chunk (`process_madvise(MADV_COLLAPSE)`, Linux 6.1), and breaking one up (`MADV_COLD` on a part of it).
//! The program needs to know nothing of it.
//!
//! A huge page that is broken up gives back its pages that hold only zeros: since Linux 6.12 the kernel maps the shared
//! zero page in their place while no thread can write there.

use std::os::fd::{AsRawFd, OwnedFd};

use pagemill_model::{PageRange, Pid};

use crate::memory::pagemap::{self, Pagemap};
use crate::{
    Error, Kind, Linux, Result,
    process::{pidfd, process_vm},
};

/// `MADV_COLD`.
const COLD: libc::c_int = 20;

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
    pid: Pid,
    pagemap: Pagemap,
    process: OwnedFd,
}

impl Pages {
    /// Of process `pid`.
    ///
    /// # Errors
    /// There is no such process, or it may not be looked into.
    pub fn of(linux: &Linux, pid: Pid) -> Result<Self> {
        Ok(Self { pid, pagemap: Pagemap::open(linux, pid)?, process: pidfd::open(pid)? })
    }

    /// The runs of present pages in a range, in order.
    ///
    /// # Errors
    /// The process has ended, or its page tables cannot be read.
    pub fn runs(&self, range: PageRange) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.pagemap.scan_any(
            range,
            pagemap::PRESENT,
            pagemap::PRESENT | pagemap::PART_OF_HUGE,
            |region| {
                let huge = region.categories & pagemap::PART_OF_HUGE != 0;
                runs.push(Run { start: region.start, end: region.end, huge });
            },
        )?;
        Ok(runs)
    }

    /// Makes one huge page of what is in a chunk. Needs at least one page there.
    ///
    /// # Errors
    /// The process may not be advised or has ended, no huge page is free, or the chunk has no page.
    pub fn collapse(&self, chunk: PageRange) -> Result<()> {
        const MADV_COLLAPSE: libc::c_int = 25;
        self.advise("collapse", chunk, MADV_COLLAPSE)
    }

    /// An error that says why, if this process may not do so.
    ///
    /// # Errors
    /// It may not, or this kernel cannot.
    pub fn may_collapse(&self) -> Result<()> {
        // Rights are looked at first, even for no page at all.
        self.collapse(PageRange::default())
    }

    /// Marks the pages of a range as not accessed, and as the first to go where memory is short; huge pages in it must
    /// lie in it as a whole.
    ///
    /// # Errors
    /// The process may not be advised, or has ended.
    pub fn mark_untouched(&self, range: PageRange) -> Result<()> {
        self.advise("mark", range, COLD)
    }

    /// Breaks up a huge page. An error if it is still whole: shared with a forked process, or gone.
    ///
    /// # Errors
    /// It is still whole ([`Kind::Busy`]), or the process may not be advised or looked into.
    pub fn demote(&self, chunk: PageRange) -> Result<()> {
        // Advice for a part of a huge page is the one thing for which the kernel breaks it up without taking pages
        // away.
        let last = PageRange { start: chunk.end - crate::page_size() as u64, ..chunk };
        self.advise("break up", last, COLD)?;
        if self.runs(chunk)?.iter().any(|run| run.huge) {
            let object = format!("the huge page at {:#x} of process {}", chunk.start, self.pid);
            let reason = "the kernel leaves it whole: another process shares it";
            return Err(Error::new(Kind::Busy, "break up", object, reason));
        }
        Ok(())
    }

    /// How many of the pages in a range hold only zeros; the range must be there.
    ///
    /// # Errors
    /// The process has ended or may not be looked into, or a page of the range is not mapped.
    pub fn zeros(&self, range: PageRange) -> Result<u64> {
        let mut bytes = vec![0; range.bytes() as usize];
        process_vm::read(self.pid, range.start, &mut bytes)?;
        let pages = bytes.chunks(crate::page_size());
        Ok(pages.filter(|page| page.iter().all(|byte| *byte == 0)).count() as u64)
    }

    fn advise(&self, what: &'static str, pages: PageRange, advice: libc::c_int) -> Result<()> {
        let (start, bytes) = (pages.start as usize, pages.bytes() as usize);
        let range = libc::iovec { iov_base: start as *mut _, iov_len: bytes };
        let (fd, ranges) = (self.process.as_raw_fd(), &raw const range);
        // SAFETY: the kernel reads one iovec, which is alive; the address is one of the other process, which the
        // kernel checks, and neither advice changes a byte there.
        let done =
            unsafe { libc::syscall(libc::SYS_process_madvise, fd, ranges, 1_usize, advice, 0) };
        if done >= 0 {
            return Ok(());
        }
        let object = format!("the pages at {start:#x} of process {}", self.pid);
        Err(Error::last(what, object).advise(crate::error::not_permitted()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::anonymous::{Advice, Anonymous, HUGE, PAGE};
    use crate::memory::maps::Mapping;

    #[test]
    fn pages_that_are_marked_are_untouched_until_they_are_accessed() {
        let area = Anonymous::map(4 * HUGE, 0).unwrap();
        area.advise(0, area.len(), Advice::NoHuge).unwrap();
        let (linux, start) = (Linux::live(), area.address() as u64);
        let touch = || (0..area.len()).step_by(PAGE).for_each(|at| area.write(at, 1));
        let referenced = || {
            let entries = linux.smaps(Pid::own()).unwrap();
            let here = |map: &Mapping| map.start <= start && start < map.end;
            let entry = entries.into_iter().find(|entry| here(&entry.mapping)).unwrap();
            entry.usage.referenced.unwrap()
        };
        touch();
        let before = referenced();
        let marked = PageRange::new(start..start + 2 * HUGE as u64);
        match Pages::of(&linux, Pid::own()).unwrap().mark_untouched(marked) {
            Ok(()) => {}
            Err(error) => return eprintln!("skipped: {error}"),
        }
        // Another test's area may be a part of the same mapping.
        let marked = before.saturating_sub(referenced());
        touch();
        assert!(marked > HUGE as u64 && referenced() >= before - HUGE as u64, "{marked}");
    }

    #[test]
    fn the_pages_of_this_process_are_found_where_they_are() {
        let memory = vec![1_u8; 1 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(4096);
        let end = start + (1 << 20) - 8192;
        let pages = Pages::of(&Linux::live(), Pid::own()).unwrap();
        let runs = match pages.runs(PageRange::new(start..end)) {
            Ok(runs) => runs,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        assert_eq!(bytes, end - start, "{runs:?}");
        assert!(memory.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn a_huge_page_that_is_broken_up_keeps_its_contents() {
        let area = Anonymous::map(2 * HUGE, 0).unwrap();
        let start = (area.address() as u64).next_multiple_of(HUGE as u64);
        let offset = start as usize - area.address();
        if let Err(error) = area.advise(0, area.len(), Advice::Huge) {
            return eprintln!("skipped: {error}");
        }
        area.write(offset + 3 * PAGE, 7);
        let pages = Pages::of(&Linux::live(), Pid::own()).unwrap();
        let chunk = PageRange::of_huge(start);
        let huge = |runs: &[Run]| runs.iter().any(|run| run.huge);
        match pages.runs(chunk) {
            Ok(runs) if huge(&runs) => {}
            other => return eprintln!("skipped: no huge page was to be had: {other:?}"),
        }
        assert_eq!(pages.zeros(chunk).unwrap(), 511);
        // Or khugepaged may make it whole again before we look.
        area.advise(0, area.len(), Advice::NoHuge).unwrap();
        match pages.demote(chunk) {
            Ok(()) => assert!(!huge(&pages.runs(chunk).unwrap())),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert_eq!((area.read(offset + 3 * PAGE), area.read(offset)), (7, 0));
        assert_eq!(pages.zeros(chunk).unwrap(), 511);
    }
}

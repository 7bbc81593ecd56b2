//! A running program whose memory cannot be made droppable is watched from outside: each interval, what is in its page
//! tables was touched, and is paged out to swap.
//!
//! ```text
//!  scan   anonymous pages that are present = touched since the last tick, or kept by the kernel
//!  out    process_madvise(MADV_PAGEOUT) on them; the next access is a major fault
//!  drain  these faults
//! ```
//!
//! Nothing is put into the program and nothing stops it, but a fault costs ten times as much, and some pages the kernel
//! does not page out: pinned, locked, or shared with a forked process. They are told in each interval, and counted as
//! `kept`. Pages of files and of shared memory are left alone. Which pages were written is not known: the kernel maps a
//! page that it read from swap writable at once.
//!
//! Always true: an anonymous page that was touched is in the set of its interval.

use std::os::fd::OwnedFd;

use pagemill_kernel::memory::page_out::page_out;
use pagemill_kernel::memory::pagemap::{self, Categories, Pagemap};
use pagemill_kernel::{Linux, Result, page_size, process::pidfd};
use pagemill_model::{PageRange, Pid};

use crate::interval::{Interval, normal, now};

/// A process that is paged out.
#[derive(Debug)]
pub(crate) struct PagedOut {
    process: OwnedFd,
    pagemap: Pagemap,
    number: u64,
    began: u64,
    /// Pages that the last tick could not page out.
    stays: u64,
}

impl PagedOut {
    /// Begins with process `pid`. An error if it may not be paged out.
    pub(crate) fn begin(linux: &Linux, pid: Pid) -> Result<Self> {
        let mut paged = Self {
            process: pidfd::open(pid)?,
            pagemap: Pagemap::open(linux, pid)?,
            number: 0,
            began: now(),
            stays: 0,
        };
        // Whether it may be done is known before anything else is.
        page_out(&paged.process, &paged.present()?)?;
        paged.began = now();
        Ok(paged)
    }

    fn present(&self) -> Result<Vec<PageRange>> {
        let mut found = Vec::new();
        let asked = pagemap::PRESENT | pagemap::FILE;
        let present = Categories { all: pagemap::PRESENT, any: 0 };
        self.pagemap.scan(PageRange::new(0..0x7fff_ffff_f000), present, asked, |region| {
            if region.categories & pagemap::FILE == 0 {
                found.push(region.range());
            }
        })?;
        Ok(normal(found))
    }

    /// Ends the interval: what was touched; and pages that out, unless this is the last look.
    pub(crate) fn tick(&mut self, pid: Pid, last: bool) -> Result<Interval> {
        let scanned = now();
        let touched = self.present()?;
        let mut stays = 0;
        if !last {
            page_out(&self.process, &touched)?;
            let left = self.present()?;
            stays = left.iter().map(|pages| pages.bytes() / page_size() as u64).sum();
        }
        let ended = now();
        let interval = Interval {
            process: pid,
            number: self.number,
            began: self.began,
            scanned,
            ended,
            touched,
            kept: std::mem::replace(&mut self.stays, stays),
            stays,
            ..Interval::default()
        };
        (self.number, self.began) = (self.number + 1, ended);
        Ok(interval)
    }
}

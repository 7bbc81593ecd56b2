//! Anonymous memory of this process, laid out in huge pages that can be taken apart: the means of
//! whoever fragments memory on purpose.
//!
//! ```text
//!  touch        one write makes a whole huge page present, if the kernel has one free
//!  keep         |x·······|x·······|   of each block one page stays, the rest is given back; before the first
//!               one MADV_NOHUGEPAGE for all of the area, or khugepaged would put together again what was
//!               taken apart; what stays is
//!               written to, for a page of zeros would be replaced by the shared one in the split;
//!               MADV_COLD on a part makes the kernel split the huge page now, so that the
//!               rest is free memory in small blocks and not on the list of deferred splits
//!  pin          vmsplice(2) of a page into a pipe: as long as the pipe has it, nothing moves it
//! ```
//!
//! Whatever happens to the process, its memory and its pipes are free when it has ended.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;

use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::memory::mapped::Mapped;
use crate::{Error, Result, page_size};

/// Anonymous memory at a multiple of the huge page size.
#[derive(Debug)]
pub struct HugeArea {
    memory: Mapped,
    /// Of the first huge page in it.
    start: *mut u8,
    huge_size: usize,
    count: usize,
    /// Huge pages are still wanted: none was taken apart.
    huge: bool,
}

// SAFETY: the area is owned by this value alone, and every method that changes it takes `&mut self`.
unsafe impl Send for HugeArea {}

impl HugeArea {
    /// Address space for `count` huge pages of `huge_size` bytes, for which the kernel is advised to use
    /// huge pages. None is present.
    ///
    /// # Errors
    /// The size overflows, there is no address space left, or the kernel has no huge pages.
    pub fn map(count: usize, huge_size: usize) -> Result<Self> {
        let failed = |error| Error::io("map", format_args!("{count} huge pages"), error);
        let overflow = || Error::new(crate::Kind::OutOfMemory, "map", count, "the size overflows");
        let length = count.checked_mul(huge_size).ok_or_else(overflow)?;
        let with_slack = length.checked_add(huge_size).ok_or_else(overflow)?;
        let memory = Mapped::anonymous(with_slack, libc::MAP_NORESERVE).map_err(failed)?;
        let start = memory.start().wrapping_add(memory.start().align_offset(huge_size));
        let area = Self { memory, start, huge_size, count, huge: true };
        area.advise(0, length, libc::MADV_HUGEPAGE)?;
        Ok(area)
    }

    /// Huge pages that it has room for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes one byte to huge page `index`, and says whether all of it is present after that: a huge
    /// page, or what a fault around it brought. After the first [`HugeArea::keep`] none is made any more.
    ///
    /// # Errors
    /// The kernel does not say what is present.
    pub fn touch(&mut self, index: usize) -> Result<bool> {
        assert!(index < self.count, "huge page {index} of {}", self.count);
        let at = self.start.wrapping_add(index * self.huge_size);
        // SAFETY: the byte is in the area, which is mapped readable and writable and is ours alone.
        unsafe { at.write_volatile(1) };
        let mut present = vec![0_u8; self.huge_size / page_size()];
        // SAFETY: the range is mapped, and `present` has a byte for each of its pages.
        match unsafe { libc::mincore(at.cast(), self.huge_size, present.as_mut_ptr()) } {
            0 => Ok(present.iter().all(|page| page & 1 == 1)),
            _ => Err(Error::last("look at", "memory of this process")),
        }
    }

    /// Gives huge page `index` back whole.
    ///
    /// # Errors
    /// The kernel refuses the advice.
    pub fn release(&mut self, index: usize) -> Result<()> {
        self.advise(index * self.huge_size, self.huge_size, libc::MADV_DONTNEED)
    }

    /// Of huge page `index` keeps the first page of every `block` bytes and gives the rest back to the
    /// kernel, in pieces. Returns the offsets of the pages kept.
    ///
    /// # Errors
    /// The kernel refuses the advice.
    pub fn keep(&mut self, index: usize, block: usize) -> Result<Vec<usize>> {
        let page = page_size();
        if self.huge {
            self.advise(0, self.count * self.huge_size, libc::MADV_NOHUGEPAGE)?;
            self.huge = false;
        }
        let first = index * self.huge_size;
        let kept: Vec<usize> = (first..first + self.huge_size).step_by(block.max(page)).collect();
        for &offset in &kept {
            // SAFETY: the byte is in the area, which is mapped readable and writable and is ours alone.
            unsafe { self.start.wrapping_add(offset).write_volatile(1) };
            if block > page {
                self.advise(offset + page, block - page, libc::MADV_DONTNEED)?;
            }
        }
        // Of a part of a huge page: the kernel splits it. An older kernel leaves it to its shrinker.
        self.advise(first, page, libc::MADV_COLD)?;
        Ok(kept)
    }

    /// Has `pins` refer to the page at this offset.
    ///
    /// # Errors
    /// No more pipes can be had.
    pub fn pin(&self, offset: usize, pins: &mut Pins) -> Result<()> {
        assert!(offset < self.count * self.huge_size, "offset {offset}");
        pins.add(self.start.wrapping_add(offset))
    }

    fn advise(&self, offset: usize, length: usize, advice: libc::c_int) -> Result<()> {
        debug_assert!(offset + length <= self.count * self.huge_size);
        let offset = self.start.addr() - self.memory.start().addr() + offset;
        self.memory
            .advise_on(offset, length, advice)
            .map_err(|error| Error::io("advise on", "memory of this process", error))
    }
}

/// Pages that cannot be moved until they are released or this is dropped: they wait in pipes.
#[derive(Debug, Default)]
pub struct Pins {
    /// Oldest first; only the newest is written to.
    pipes: VecDeque<Pipe>,
    /// Pages for which the newest pipe has room.
    room: usize,
}

#[derive(Debug)]
struct Pipe {
    reader: io::PipeReader,
    writer: io::PipeWriter,
    pages: usize,
}

/// Bytes that a pipe is asked to hold. Beyond `fs.pipe-user-pages-soft` the kernel refuses, and the
/// pipe keeps its default size.
const PIPE_SIZE: usize = 1 << 20;

impl Pins {
    /// Pages pinned.
    pub fn pages(&self) -> usize {
        self.pipes.iter().map(|pipe| pipe.pages).sum()
    }

    /// Releases the `count` pages that have been pinned longest.
    ///
    /// # Errors
    /// A pipe cannot be read.
    pub fn release(&mut self, count: usize) -> Result<()> {
        let mut content = vec![0; page_size()];
        for _ in 0..count {
            let Some(pipe) = self.pipes.front_mut() else { break };
            let failed = |error| Error::io("read", "a pipe with pinned pages", error);
            pipe.reader.read_exact(&mut content).map_err(failed)?;
            pipe.pages -= 1;
            if pipe.pages == 0 {
                self.pipes.pop_front();
                if self.pipes.is_empty() {
                    self.room = 0;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, page: *mut u8) -> Result<()> {
        if self.room == 0 {
            let (reader, writer) = io::pipe().map_err(|error| {
                Error::io("open", "a pipe to pin pages with", error)
                    .advise("raise the limit of open files: ulimit -n 65536")
            })?;
            let grown = fcntl_setpipe_size(&writer, PIPE_SIZE);
            self.room = grown.or_else(|_| fcntl_getpipe_size(&writer)).unwrap_or(0) / page_size();
            self.pipes.push_back(Pipe { reader, writer, pages: 0 });
        }
        let Some(pipe) = self.pipes.back_mut() else {
            return Err(Error::new(crate::Kind::Other, "pin", "a page", "there is no pipe"));
        };
        let slice = libc::iovec { iov_base: page.cast(), iov_len: page_size() };
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: the writer is an open pipe; `slice` names one mapped page, which the kernel only
        // takes a reference to; whoever wrote to it later would change what the pipe holds, and nobody
        // reads that.
        let spliced = unsafe { libc::vmsplice(pipe.writer.as_raw_fd(), &slice, 1, flags) };
        if spliced != page_size() as isize {
            return Err(Error::last("pin", "a page in a pipe"));
        }
        self.room -= 1;
        pipe.pages += 1;
        Ok(())
    }
}

/// Raises the limit of open files of this process as far as it goes, and returns it.
///
/// # Errors
/// The kernel refuses it.
pub fn raise_open_files() -> Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
        .map_err(|error| Error::io("raise", "the limit of open files", error.into()))?;
    Ok(limit.current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use pagemill_model::{PageRange, Pid};

    use super::*;
    use crate::Linux;
    use crate::memory::anonymous::HUGE;
    use crate::memory::huge_pages_of::Pages;

    fn resident(area: &HugeArea) -> u64 {
        let maps = Linux::live().maps(Pid::own()).unwrap();
        let at = area.start as u64;
        assert!(maps.iter().any(|mapping| (mapping.start..mapping.end).contains(&at)));
        let mut present = vec![0_u8; area.count * HUGE / page_size()];
        // SAFETY: the area is mapped, and `present` has a byte for each of its pages.
        let done =
            unsafe { libc::mincore(area.start.cast(), area.count * HUGE, present.as_mut_ptr()) };
        assert_eq!(done, 0);
        present.iter().map(|page| u64::from(page & 1)).sum()
    }

    #[test]
    fn of_a_huge_page_one_page_a_block_is_kept() {
        let mut area = HugeArea::map(3, HUGE).unwrap();
        assert_eq!(area.start.align_offset(HUGE), 0);
        assert_eq!(resident(&area), 0);
        // Whether they are huge is the system's to say; one page is present in any case.
        let whole = area.touch(1).unwrap() & area.touch(2).unwrap();
        assert!(resident(&area) >= 2);
        let kept = area.keep(1, HUGE).unwrap();
        assert_eq!(kept, [HUGE]);
        let pages = Pages::of(&Linux::live(), Pid::own()).unwrap();
        let start = area.start as u64;
        // Of pages that hold zeros the kernel keeps none (Linux 6.12): these are the area's own.
        let own = |index: u64| -> u64 {
            let at = start + index * HUGE as u64;
            let runs = pages.runs(PageRange::new(at..at + HUGE as u64)).unwrap();
            runs.iter().map(|run| run.end - run.start).sum()
        };
        assert_eq!(own(1), 4096);
        if whole {
            assert_eq!(area.keep(2, 64 << 10).unwrap().len(), 32);
            assert_eq!(own(2), 32 * 4096);
        }
        // Nobody, khugepaged included, makes huge pages of it again.
        let second = PageRange::of_huge(start + HUGE as u64);
        assert!(pages.collapse(second).is_err());
        area.release(1).unwrap();
        area.release(2).unwrap();
        assert_eq!(resident(&area), 0);
    }

    #[test]
    fn a_pinned_page_stays_in_use_after_its_memory_is_gone() {
        let mut area = HugeArea::map(1, HUGE).unwrap();
        area.touch(0).unwrap();
        let mut pins = Pins::default();
        for _ in 0..300 {
            area.pin(0, &mut pins).unwrap();
        }
        assert_eq!(pins.pages(), 300);
        drop(area);
        assert!(pins.pipes.len() > 1, "300 pages do not fit in one pipe of 256");
        pins.release(299).unwrap();
        assert_eq!((pins.pages(), pins.pipes.len()), (1, 1));
        pins.release(5).unwrap();
        assert_eq!((pins.pages(), pins.pipes.len()), (0, 0));
    }
}

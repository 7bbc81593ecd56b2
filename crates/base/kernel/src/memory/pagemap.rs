//! `PAGEMAP_SCAN` (Linux 6.7) and `/proc/PID/pagemap`: which pages of a process are there.
//!
//! Works from outside on any process whose memory may be read; it walks page tables and stops nothing.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use pagemill_model::{PageRange, Pid};

use crate::{Error, Kind, Linux, Result, page_size};

/// Of memory in which protection against writing is told without a stop (`PAGE_IS_WPALLOWED`): elsewhere every page
/// counts as [`WRITTEN`].
pub const WRITES_SEEN: u64 = 1;
/// Not protected against writing ([`crate::memory::watched`]): written since it was, if it was (`PAGE_IS_WRITTEN`).
pub const WRITTEN: u64 = 1 << 1;
/// A page of a file or of shared memory (`PAGE_IS_FILE`).
pub const FILE: u64 = 1 << 2;
/// In memory and in the page table (`PAGE_IS_PRESENT`).
pub const PRESENT: u64 = 1 << 3;
/// Swapped out (`PAGE_IS_SWAPPED`).
pub const SWAPPED: u64 = 1 << 4;
/// Part of a huge page in the page table (`PAGE_IS_HUGE`).
pub const PART_OF_HUGE: u64 = 1 << 6;
/// A guard: every access is an error (`PAGE_IS_GUARD`, Linux 6.15).
const GUARD: u64 = 1 << 8;

/// Pages of the same categories, side by side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Which of the categories asked for.
    pub categories: u64,
}

/// Categories of which an entry has one if it was there when it was looked at: the kernel takes the entries of pages
/// that it moves elsewhere (compaction) away for a while, and what it leaves looks like one of swap. See
/// [`Region::is_mapped`].
pub const MAPPED: u64 = PRESENT | SWAPPED;

impl Region {
    /// Whether its pages are mapped, of a region by [`MAPPED`] with [`PRESENT`] and [`FILE`] returned: they are
    /// present, or about to be again. Of private memory that the kernel is moving this cannot be told from swap.
    pub fn is_mapped(&self) -> bool {
        self.categories & (PRESENT | FILE) != 0
    }

    /// Where they are.
    pub fn range(&self) -> PageRange {
        PageRange::new(self.start..self.end)
    }
}

/// Which categories a region has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Categories {
    /// All of these,
    pub all: u64,
    /// and any of these, unless that is 0.
    pub any: u64,
}

#[repr(C)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

// _IOWR('f', 16, struct pm_scan_arg)
const SCAN: libc::Ioctl =
    (3 << 30 | (size_of::<Argument>() as u64) << 16 | 0x66 << 8 | 16) as libc::Ioctl;

/// The page tables of a process, for reading.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    pid: Pid,
}

impl Pagemap {
    /// Opens those of `pid`.
    ///
    /// # Errors
    /// The process has ended, or may not be looked into.
    pub fn open(linux: &Linux, pid: Pid) -> Result<Self> {
        let path = linux.process_file(pid, "pagemap");
        let file = File::open(&path).map_err(|error| {
            Error::io("open", path.display(), error).advise(crate::error::not_permitted())
        })?;
        Ok(Self { file, pid })
    }

    /// Hands each region of `start..end` that has the categories of `with` to `each`, in address order; of its
    /// categories those in `returned`.
    ///
    /// # Errors
    /// The process has ended, or the kernel refuses to walk its page tables.
    pub fn scan(
        &self,
        range: PageRange,
        with: Categories,
        returned: u64,
        each: impl FnMut(Region),
    ) -> Result<()> {
        self.walk(range, with, returned, 0, each)
    }

    /// As [`Pagemap::scan`], and protects the pages that it finds against writing, each at the moment that it is
    /// found. Mappings that are not registered for it ([`crate::memory::watched`]) are left out.
    ///
    /// # Errors
    /// As of [`Pagemap::scan`]; the kernel is older than 6.7.
    pub fn scan_and_protect(
        &self,
        range: PageRange,
        with: Categories,
        returned: u64,
        each: impl FnMut(Region),
    ) -> Result<()> {
        const WRITE_PROTECT: u64 = 1;
        self.walk(range, with, returned, WRITE_PROTECT, each)
    }

    /// As [`Pagemap::scan`], for pages that have any of `any`.
    ///
    /// # Errors
    /// As of [`Pagemap::scan`].
    pub fn scan_any(
        &self,
        range: PageRange,
        any: u64,
        returned: u64,
        each: impl FnMut(Region),
    ) -> Result<()> {
        self.walk(range, Categories { all: 0, any }, returned, 0, each)
    }

    fn walk(
        &self,
        PageRange { mut start, end }: PageRange,
        with: Categories,
        returned: u64,
        flags: u64,
        mut each: impl FnMut(Region),
    ) -> Result<()> {
        let mut buffer = vec![Region::default(); 1024];
        while start < end {
            let mut argument = Argument {
                size: size_of::<Argument>() as u64,
                flags,
                start,
                end,
                walk_end: 0,
                vec: buffer.as_mut_ptr() as u64,
                vec_len: buffer.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: with.all,
                category_anyof_mask: with.any,
                return_mask: returned,
            };
            // SAFETY: `argument` has the layout of `struct pm_scan_arg` and lives through the call; `vec`
            // and `vec_len` are the buffer above, of `struct page_region`s.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), SCAN, &raw mut argument) };
            let Ok(found) = usize::try_from(found) else {
                return Err(Error::last(
                    "scan",
                    format_args!("the page tables of process {}", self.pid),
                )
                .advise("needs Linux 6.7; see pagemill doctor"));
            };
            buffer[..found].iter().copied().for_each(&mut each);
            if argument.walk_end <= start {
                break;
            }
            start = argument.walk_end;
        }
        Ok(())
    }

    /// The guards (`MADV_GUARD_INSTALL`) of the process in a range: none where the kernel does not tell, which has
    /// none in memory of files either.
    pub fn guards(&self, range: PageRange) -> Vec<PageRange> {
        let mut guards = Vec::new();
        let found = self.scan_any(range, GUARD, GUARD, |region| guards.push(region.range()));
        if found.is_err() {
            guards.clear();
        }
        guards
    }

    /// The frame of physical memory that holds the page at `address`; `None` if it is not in memory.
    /// [`Kind::Permission`] without `CAP_SYS_ADMIN`: the kernel hides frames then.
    ///
    /// # Errors
    /// [`Kind::Permission`] without `CAP_SYS_ADMIN`; the page tables cannot be read.
    pub fn frame(&self, address: u64) -> Result<Option<u64>> {
        let what = || format!("the page tables of process {}", self.pid);
        let mut entry = [0; 8];
        match self.file.read_exact_at(&mut entry, address / page_size() as u64 * 8) {
            Ok(()) => {}
            // The process has ended.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Error::io("read", what(), error)),
        }
        let entry = u64::from_ne_bytes(entry);
        let frame = entry & ((1 << 55) - 1);
        match (entry >> 63, frame) {
            (0, _) => Ok(None),
            (_, 0) => {
                Err(Error::new(Kind::Permission, "see the frames in", what(), "they are hidden")
                    .advise("run as root"))
            }
            _ => Ok(Some(frame)),
        }
    }

    /// For each page of a range, whether it is in memory or in swap.
    ///
    /// # Errors
    /// The page tables cannot be read.
    pub fn populated(&self, range: PageRange) -> Result<Vec<bool>> {
        self.bits(range, 6)
    }

    /// For each page of a range, whether it is in memory.
    ///
    /// # Errors
    /// As of [`Pagemap::populated`].
    pub fn resident(&self, range: PageRange) -> Result<Vec<bool>> {
        self.bits(range, 7)
    }

    /// For each page of a range, whether any of the bits of the last byte of its entry from `least` on is set.
    fn bits(&self, range: PageRange, least: u32) -> Result<Vec<bool>> {
        let page = page_size() as u64;
        let mut bytes = vec![0; (range.bytes() / page * 8) as usize];
        let read = self.file.read_at(&mut bytes, range.start / page * 8);
        read.map_err(|error| {
            Error::io("read", format_args!("the page tables of process {}", self.pid), error)
        })?;
        Ok(bytes.chunks_exact(8).map(|entry| entry[7] >> least != 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_being_moved_is_mapped_and_a_swapped_one_is_not() {
        let region = |categories| Region { start: 0, end: 4096, categories };
        for mapped in [PRESENT, PRESENT | FILE, SWAPPED | FILE] {
            assert!(region(mapped & (PRESENT | FILE)).is_mapped(), "{mapped:x}");
        }
        assert!(!region(SWAPPED & (PRESENT | FILE)).is_mapped());
    }

    #[test]
    fn pages_are_there_once_they_are_written() {
        let page = page_size();
        let mut memory = vec![0_u8; 16 * page];
        let first = (memory.as_ptr() as usize).next_multiple_of(page);
        let offset = first - memory.as_ptr() as usize;
        memory[offset + 2 * page] = 1;
        memory[offset + 3 * page] = 1;
        let me = Pagemap::open(&Linux::live(), Pid::own()).unwrap();
        let populated =
            me.populated(PageRange::new(first as u64..(first + 8 * page) as u64)).unwrap();
        assert!(populated[2] && populated[3]);
        // A page that is just being moved, or was swapped out, has no frame until it is touched.
        let frame = |at: usize| loop {
            std::hint::black_box(memory[offset + at * page]);
            match me.frame((first + at * page) as u64) {
                Ok(None) => std::thread::yield_now(),
                found => break found.map(Option::unwrap_or_default),
            }
        };
        match (frame(2), frame(3)) {
            (Ok(one), Ok(other)) => assert!(one > 0 && one != other, "{one} {other}"),
            (Err(error), _) | (_, Err(error)) => assert_eq!(error.kind(), Kind::Permission),
        }
        let mut regions = Vec::new();
        match me.scan_any(
            PageRange::new(first as u64..(first + 8 * page) as u64),
            MAPPED,
            PRESENT | FILE,
            |region| regions.push(region),
        ) {
            Ok(()) => assert!(regions.iter().any(|region| {
                region.is_mapped()
                    && region.start <= (first + 2 * page) as u64
                    && region.end >= (first + 4 * page) as u64
            })),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}

//! Private anonymous memory of this process (mmap(2), madvise(2), mremap(2)), aligned to huge pages, to measure on.
//!
//! Always true: an area is unmapped when it is dropped; all accesses are checked to lie in it.

use pagemill_model::page;

use crate::memory::mapped::Mapped;
use crate::{Error, Result};

/// Bytes of a base page here.
pub const PAGE: usize = page::BASE as usize;
/// Bytes of a huge page.
pub const HUGE: usize = page::HUGE as usize;

/// What to ask of the kernel for a part of an area (madvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Huge pages may be used.
    Huge,
    /// Huge pages may not be used.
    NoHuge,
    /// The content is not needed: the pages are given back.
    DontNeed,
    /// The part should be on huge pages now (Linux 6.1).
    Collapse,
    /// The pages should be there now, writable (Linux 5.14).
    Populate,
}

impl Advice {
    const fn number(self) -> libc::c_int {
        match self {
            Self::Huge => libc::MADV_HUGEPAGE,
            Self::NoHuge => libc::MADV_NOHUGEPAGE,
            Self::DontNeed => libc::MADV_DONTNEED,
            Self::Collapse => libc::MADV_COLLAPSE,
            Self::Populate => libc::MADV_POPULATE_WRITE,
        }
    }
}

/// An area of memory.
#[derive(Debug)]
pub struct Anonymous {
    mapped: Mapped,
    start: usize,
    length: usize,
}

impl Anonymous {
    /// Maps `length` bytes, readable and writable, that start at a multiple of a huge page plus `offset`.
    ///
    /// # Errors
    /// There is no address space left, or the kernel refuses so much.
    pub fn map(length: usize, offset: usize) -> Result<Self> {
        let mapped_length = length + HUGE + offset;
        let mapped = Mapped::anonymous(mapped_length, libc::MAP_NORESERVE)
            .map_err(|error| Error::io("map", format_args!("{mapped_length} bytes"), error))?;
        let start = (mapped.address() as usize).next_multiple_of(HUGE) + offset;
        Ok(Self { mapped, start, length })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.start
    }

    #[inline]
    fn checked(&self, offset: usize, length: usize) -> usize {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} do not lie in {} bytes",
            self.length
        );
        self.start + offset
    }

    /// Gives advice for a part. The content is lost only with [`Advice::DontNeed`].
    ///
    /// # Errors
    /// The kernel does not know the advice, or cannot follow it.
    pub fn advise(&self, offset: usize, length: usize, advice: Advice) -> Result<()> {
        let at = self.checked(offset, length) - self.mapped.address() as usize;
        self.mapped.advise_on(at, length, advice.number()).map_err(|error| {
            let object = format_args!("on {length} bytes of memory ({advice:?})");
            Error::io("advise the kernel", object, error)
        })
    }

    /// Writes a byte, so that its page is there.
    pub fn touch(&self, offset: usize) {
        let at = self.checked(offset, 1);
        // SAFETY: one byte of the mapping, which is writable and which no reference of the language points to.
        unsafe { (at as *mut u8).write_volatile(1) };
    }

    /// Writes a number.
    #[inline]
    pub fn write(&self, offset: usize, value: u64) {
        let at = self.checked(offset, 8);
        // SAFETY: eight bytes of the mapping, as in `touch`; the address need not be aligned.
        unsafe { (at as *mut u64).write_unaligned(value) };
    }

    /// Reads a number.
    #[inline]
    pub fn read(&self, offset: usize) -> u64 {
        let at = self.checked(offset, 8);
        // SAFETY: eight bytes of the mapping, which is readable; the address need not be aligned.
        unsafe { (at as *const u64).read_unaligned() }
    }

    /// Moves the first huge page of this area over the part at `offset` of another one; what was there is gone, and
    /// here zeros remain (Linux 5.7).
    ///
    /// # Errors
    /// The kernel is older, or has no memory for the page tables.
    pub fn remap(&self, target: &Self, offset: usize) -> Result<()> {
        let from = self.checked(0, HUGE);
        let to = target.checked(offset, HUGE);
        // SAFETY: source and target lie in two areas, to which no reference of the language points; both stay mapped,
        // the source because of MREMAP_DONTUNMAP.
        let done = unsafe {
            libc::mremap(
                from as *mut libc::c_void,
                HUGE,
                HUGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
                to as *mut libc::c_void,
            )
        };
        if done == libc::MAP_FAILED {
            return Err(Error::last("move", "a huge page of memory"));
        }
        Ok(())
    }
}

/// Touches so many bytes, on huge pages or on base pages, and gives them back, so that the host of a virtual machine
/// has provided them: free memory that the host has taken (a balloon, free page reporting) costs ten to fifty times as
/// much at its first touch, and the kernel hands out first what was given back last.
///
/// # Errors
/// As of [`Anonymous::map`] and [`Anonymous::advise`].
pub fn warm(length: usize, huge: bool) -> Result<()> {
    let (advice, step) = if huge { (Advice::Huge, HUGE) } else { (Advice::NoHuge, PAGE) };
    let area = Anonymous::map(length, 0)?;
    area.advise(0, length, advice)?;
    (0..length).step_by(step).for_each(|at| area.touch(at));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_until_it_is_given_back() {
        let area = Anonymous::map(2 * HUGE, 0).unwrap();
        assert_eq!(area.address() % HUGE, 0);
        area.write(HUGE - 4, 0x0123_4567_89ab_cdef);
        assert_eq!(area.read(HUGE - 4), 0x0123_4567_89ab_cdef);
        area.advise(0, 2 * HUGE, Advice::DontNeed).unwrap();
        assert_eq!(area.read(HUGE - 4), 0);
    }

    #[test]
    fn a_moved_part_keeps_its_content() {
        let (source, target) =
            (Anonymous::map(HUGE, 0).unwrap(), Anonymous::map(2 * HUGE, 0).unwrap());
        source.write(24, 77);
        target.write(HUGE + 24, 1);
        source.remap(&target, HUGE).unwrap();
        assert_eq!((target.read(HUGE + 24), target.read(24), source.read(24)), (77, 0, 0));
    }

    #[test]
    #[should_panic(expected = "do not lie in")]
    fn nothing_outside_is_touched() {
        Anonymous::map(HUGE, 0).unwrap().touch(HUGE);
    }
}

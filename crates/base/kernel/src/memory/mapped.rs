//! Memory of this process that is mapped for as long as a value lives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// A mapping that can be read and written, at an address of the kernel's choice.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the process, to none of its threads; the pointer is this value's alone.
unsafe impl Send for Mapped {}

impl Mapped {
    /// `length` bytes of zeros, for this process alone; with further flags (`MAP_…`).
    pub(crate) fn anonymous(length: usize, flags: libc::c_int) -> io::Result<Self> {
        Self::new(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)
    }

    /// `length` bytes of zeros that children share.
    pub(crate) fn shared(length: usize) -> io::Result<Self> {
        Self::new(length, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// `length` bytes of a file from `offset` on, shared with all who map it.
    pub(crate) fn file(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        Self::new(length, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t)
    }

    fn new(
        length: usize,
        flags: libc::c_int,
        file: libc::c_int,
        offset: libc::off_t,
    ) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        debug_assert_eq!(flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE), 0);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, file, offset) };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            at => Ok(Self { start: at.cast(), length }),
        }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Writes a byte, so that its page is there.
    pub(crate) fn touch(&self, offset: usize) {
        assert!(offset < self.length, "inside the mapping");
        // SAFETY: a byte of the mapping, which can be written; whoever has it has no reference into it.
        unsafe { self.start.add(offset).write_volatile(1) };
    }

    /// Gives advice (`MADV_…`) on all of it. Whoever has it has no reference into it.
    pub(crate) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise_on(0, self.length, advice)
    }

    /// Gives advice on a part.
    pub(crate) fn advise_on(
        &self,
        offset: usize,
        length: usize,
        advice: libc::c_int,
    ) -> io::Result<()> {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "inside the mapping");
        // SAFETY: the part lies in this mapping; advice changes no bytes but those of it, and unmaps none.
        match unsafe { libc::madvise(self.start.add(offset).cast(), length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, whole since it was made, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

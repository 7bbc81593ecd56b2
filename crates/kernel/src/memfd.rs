//! `memfd_create(2)`: a file in memory without a name, which can be mapped at several addresses.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::{Error, Result};

/// Creates an empty file in memory. `name` shows in `/proc/PID/maps` as `/memfd:name`.
pub fn create(name: &CStr) -> Result<File> {
    // SAFETY: `name` is a valid C string, which the kernel copies.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last("create", format_args!("memfd {name:?}"))
            .advise("allow memfd_create(2) in the container's seccomp profile"));
    }
    // SAFETY: `fd` was just created, is open, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives the pages of `length` bytes from `offset` back; the file reads as zeros there.
pub fn punch_hole(file: &File, offset: u64, length: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: `file` is an open descriptor; the call takes numbers only.
    let done = unsafe {
        libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, length as libc::off_t)
    };
    if done == 0 { Ok(()) } else { Err(Error::last("punch a hole in", "memfd")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_hole_gives_pages_back_and_reads_as_zeros() {
        let file = create(c"test").unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let before = file.metadata().unwrap().blocks();
        punch_hole(&file, 0, 4096).unwrap();
        assert!(file.metadata().unwrap().blocks() < before);
        let mut bytes = [1; 4097];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[0], bytes[4096]), (0, 7));
    }
}

//! `pidfd_open(2)` and `pidfd_getfd(2)`: a process as a descriptor, and descriptors of another process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Error, Result};

/// A process that is not confused with a later one of the same number.
pub fn open(pid: u32) -> Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Error::last("open", format_args!("process {pid}")));
    }
    // SAFETY: `fd` was just created and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A copy of descriptor `number` of a process. Needs the right to trace it.
pub fn descriptor(process: &OwnedFd, number: i32) -> Result<OwnedFd> {
    // SAFETY: `process` is an open descriptor; the call takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    if fd < 0 {
        return Err(Error::last("copy", format_args!("descriptor {number} of the program")));
    }
    // SAFETY: `fd` was just created and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

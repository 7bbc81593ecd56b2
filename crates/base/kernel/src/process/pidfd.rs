//! `pidfd_open(2)` and `pidfd_getfd(2)`: a process as a descriptor, and descriptors of another process.

use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use pagemill_model::Pid;

use crate::{Error, Result};

/// A process that is not confused with a later one of the same number.
///
/// # Errors
/// There is no such process, or no descriptor is left.
pub fn open(pid: Pid) -> Result<OwnedFd> {
    let process = i32::try_from(pid.0)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or(rustix::io::Errno::INVAL);
    process
        .and_then(|process| pidfd_open(process, PidfdFlags::empty()))
        .map_err(|error| Error::io("open", format_args!("process {pid}"), error.into()))
}

/// A copy of descriptor `number` of a process. Needs the right to trace it.
///
/// # Errors
/// The process may not be traced, or has no such descriptor.
pub fn descriptor(process: &OwnedFd, number: i32) -> Result<OwnedFd> {
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).map_err(|error| {
        Error::io("copy", format_args!("descriptor {number} of the program"), error.into())
    })
}

//! A mount without a place in the tree (fsopen(2), fsmount(2), kernel 5.2): reached through its
//! descriptor by whoever may mount, seen by nobody else, and gone with the process.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::{Error, Kind, Result};

/// Mounts the file system `kind`; `lacking` says what to do where the kernel does not have it.
pub(crate) fn detached(kind: &CStr, lacking: &'static str) -> Result<OwnedFd> {
    let name = kind.to_string_lossy();
    let refused = |error: Errno| {
        let error = Error::io("mount", &name, error.into());
        match error.kind() {
            Kind::Permission => error.advise("run as root"),
            _ => error.advise(lacking),
        }
    };
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused)?;
    fsconfig_create(&context).map_err(refused)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(refused)
}

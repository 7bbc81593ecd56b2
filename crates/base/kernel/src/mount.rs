//! A mount without a place in the tree (fsopen(2), fsmount(2), kernel 5.2): reached through its
//! descriptor by whoever may mount, seen by nobody else, and gone with the process.

use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::{Error, Kind, Result};

/// Mounts the file system `kind`; `lacking` says what to do where the kernel does not have it.
pub(crate) fn detached(kind: &CStr, lacking: &'static str) -> Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    let name = kind.to_string_lossy();
    let refused = || {
        let error = Error::last("mount", &name);
        match error.kind() {
            Kind::Permission => error.advise("run as root"),
            _ => error.advise(lacking),
        }
    };
    let owned = |fd: libc::c_long| {
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(refused)?;
        // SAFETY: the kernel has just opened `fd` for this call, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: `kind` is a C string; the call takes nothing else but flags.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })?;
    // SAFETY: `context` is open; this command takes no key, no value and no number.
    let created = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            std::ptr::null::<u8>(),
            std::ptr::null::<u8>(),
            0,
        )
    };
    if created != 0 {
        return Err(refused());
    }
    // SAFETY: `context` is open; the call takes flags otherwise.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

//! What `execve(2)` makes of a file's privilege bits. A program that gains privileges runs in
//! *secure-execution mode*: the loader ignores `LD_PRELOAD` (ld.so(8)).
//!
//! The kernel's rule (security/commoncap.c): the mode is on when the effective user or group would
//! differ from the caller's real one, or when a caller other than root gains file capabilities.
//! `no_new_privs` and a `nosuid` mount switch all of it off.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use pagemill_model::Pid;

use crate::{Error, Linux, Result};

/// Why a program would gain privileges when this process executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// Set-user-ID, to this user.
    User(u32),
    /// Set-group-ID, to this group.
    Group(u32),
    /// File capabilities.
    Capabilities,
}

/// What this process would gain by executing the file at `path`.
///
/// # Errors
/// The file, or this process, cannot be looked at.
pub fn gain(path: &Path) -> Result<Option<Gain>> {
    let failed = |error| Error::io("look at", path.display(), error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let me = Pid::own();
    if Linux::live().status(me)?.no_new_privileges == Some(true) || no_suid(path)? {
        return Ok(None);
    }
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    Ok(gain_of(&metadata, has_capabilities(path)?, user.as_raw(), group.as_raw()))
}

fn gain_of(file: &Metadata, capabilities: bool, user: u32, group: u32) -> Option<Gain> {
    let mode = file.mode();
    let all = |bits: u32| mode & bits == bits;
    if all(libc::S_ISUID) && file.uid() != user {
        return Some(Gain::User(file.uid()));
    }
    // Without the group's execute bit, set-group-ID once meant mandatory locking.
    if all(libc::S_ISGID | libc::S_IXGRP) && file.gid() != group {
        return Some(Gain::Group(file.gid()));
    }
    (capabilities && user != 0).then_some(Gain::Capabilities)
}

/// Whether the file system of `path` is mounted `nosuid`.
fn no_suid(path: &Path) -> Result<bool> {
    let answer = rustix::fs::statvfs(path)
        .map_err(|error| Error::io("look at the file system of", path.display(), error.into()))?;
    Ok(answer.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID))
}

/// Whether the file carries capabilities (`security.capability`).
fn has_capabilities(path: &Path) -> Result<bool> {
    match rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 0][..]) {
        Ok(length) => Ok(length > 0),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(Error::io("read the capabilities of", path.display(), error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Metadata of a file of ours with this mode.
    fn file(mode: u32) -> (tempfile::NamedTempFile, Metadata) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
        let metadata = file.as_file().metadata().unwrap();
        (file, metadata)
    }

    #[test]
    fn set_user_id_counts_only_for_other_users() {
        let (_file, metadata) = file(0o4755);
        let (owner, group) = (metadata.uid(), metadata.gid());
        assert_eq!(gain_of(&metadata, false, owner + 1, group), Some(Gain::User(owner)));
        assert_eq!(gain_of(&metadata, false, owner, group), None);
    }

    #[test]
    fn set_group_id_counts_only_with_the_execute_bit_of_the_group() {
        let (_file, metadata) = file(0o2755);
        let (owner, group) = (metadata.uid(), metadata.gid());
        assert_eq!(gain_of(&metadata, false, owner, group + 1), Some(Gain::Group(group)));
        let (_file, metadata) = file(0o2745);
        assert_eq!(gain_of(&metadata, false, owner, group + 1), None);
    }

    #[test]
    fn file_capabilities_count_for_everyone_but_root() {
        let (_file, metadata) = file(0o755);
        let (owner, group) = (metadata.uid(), metadata.gid());
        assert_eq!(gain_of(&metadata, true, owner.max(1), group), Some(Gain::Capabilities));
        assert_eq!(gain_of(&metadata, true, 0, group), None);
    }

    #[test]
    fn an_ordinary_program_gains_nothing() {
        assert_eq!(gain(Path::new("/bin/sh")).unwrap(), None);
    }
}

//! What ties a process to its pages, not to its addresses.

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::seccomp::OWN_DESCRIPTORS;
use pagemill_kernel::{Error, Linux, Result};
use pagemill_model::Pid;

/// What a process may have that is tied to its pages, not to its addresses, by the name of its descriptor.
const PINS: &[(&str, &str)] = &[
    ("anon_inode:[userfaultfd]", "it has a userfaultfd of its own, whose ranges would be lost"),
    (
        "anon_inode:[io_uring]",
        "it has an io_uring, whose transfers go to pages that would be replaced",
    ),
];

/// Why pages of a process may not be replaced by others of the same bytes, if they may not: the kernel holds some of
/// them for transfers that it will make. Descriptors of ours are those from `own` on.
pub(crate) fn pins(linux: &Linux, pid: Pid, own: Option<u32>) -> Result<Option<&'static str>> {
    let directory = linux.process_file(pid, "fd");
    let entries = std::fs::read_dir(&directory)
        .map_err(|error| Error::io("list", directory.display(), error))?;
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if own.is_some_and(|own| number.is_some_and(|fd| fd.wrapping_sub(own) < OWN_DESCRIPTORS)) {
            continue;
        }
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        if let Some((_, why)) = PINS.iter().find(|(name, _)| target == *name) {
            return Ok(Some(why));
        }
    }
    let asynchronous = |mapping: &Mapping| mapping.name.starts_with("/[aio]");
    Ok(linux.maps(pid)?.iter().any(asynchronous).then_some(
        "it has asynchronous I/O (io_setup), whose transfers go to pages that would be replaced",
    ))
}

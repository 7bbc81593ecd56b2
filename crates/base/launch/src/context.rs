//! What verbs begin with: the machine, a recording, room to work in.

use std::env::consts::ARCH;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use pagemill_kernel::process::limits::Resource;
use pagemill_kernel::{Linux, clock};
use pagemill_model::recording::{Meta, Reader};
use pagemill_model::{Bytes, TOOL};

/// The machine: the running kernel. In a build with debug assertions, which tests run, `PAGEMILL_ROOT` may name a tree
/// of files in its place; what users run reads no such variable.
pub fn machine() -> Linux {
    let tree = cfg!(debug_assertions).then(|| std::env::var_os("PAGEMILL_ROOT")).flatten();
    tree.map_or_else(Linux::live, Linux::at)
}

/// The head of a recording that is made here and now.
pub fn meta(linux: &Linux) -> Meta {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Meta {
        tool: TOOL.into(),
        kernel: linux.release().unwrap_or_default(),
        machine: ARCH.into(),
        page_size: Bytes(pagemill_kernel::page_size() as u64),
        clock: "CLOCK_MONOTONIC".into(),
        started: clock::monotonic().into(),
        started_unix: unix.into(),
        ..Meta::default()
    }
}

/// Opens a recording to be read. If parts of it are gone that is said, and the verb ends with 2: nothing may look like
/// the whole that is not. `redact`: it is not to say whose it is.
///
/// # Errors
/// As of [`Reader::open`].
pub fn recording(path: &Path, redact: bool) -> Result<Reader> {
    let mut reader = Reader::open(path)?;
    if redact {
        reader.redact();
    }
    if let Some(missing) = reader.missing() {
        notice!(
            "{}: {} gone since it was written; what follows is of the rest",
            path.display(),
            missing.named()
        );
        crate::stdio::is_partial();
    }
    Ok(reader)
}

/// What a verb that stays beside the program that it starts needs at the least.
const DESCRIPTORS: u64 = 32;
const ADDRESS_SPACE: u64 = 256 << 20;

/// Refuses to start a program that would be left alone when this process reaches a limit of its own.
///
/// # Errors
/// Which limit that is, and how to raise it.
pub fn ensure_room() -> Result<()> {
    if let Some(most) = Resource::Descriptors.limit() {
        ensure!(
            most >= DESCRIPTORS,
            "this process may have {most} files open and needs {DESCRIPTORS} (run: ulimit -n {DESCRIPTORS})"
        );
    }
    if let Some(most) = Resource::AddressSpace.limit() {
        ensure!(
            most >= ADDRESS_SPACE,
            "this process may map {} and needs {} (run: ulimit -v unlimited; a limit for the program alone: \
             sh -c 'ulimit -v {}; exec PROGRAM')",
            Bytes(most).plain(),
            Bytes(ADDRESS_SPACE).plain(),
            most >> 10
        );
    }
    Ok(())
}

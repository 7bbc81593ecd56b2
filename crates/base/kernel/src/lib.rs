//! Every Linux interface pagemill uses, one file each, by kind, one safe wrapper a call.
//!
//! What lives in `/proc`, `/sys` and `/dev` is reached through a [`Linux`], whose root can be moved,
//! so that tests run on snapshots of real machines. System calls always go to the running kernel.
//!
//! All `unsafe` is inside; no wrapper needs its caller to uphold anything.
//!
//! # Errors
//! A wrapper fails where the kernel refuses the call or does not have the interface, where the process that it is
//! about has ended, and where what is read is not of the documented form; [`Kind`] says which. Where one fails
//! otherwise, too, its own documentation says so.

mod bytes;
pub mod clock;
mod error;
#[cfg(test)]
mod fixtures;
pub mod memory;
pub mod nodes;
pub mod poll;
pub mod process;
pub mod settings;
pub mod trace;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagemill_model::Pid;

pub use error::{Error, Kind, Result};

/// Bytes of a page on this machine.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// The file systems through which the kernel talks.
#[derive(Clone, Debug)]
pub struct Linux {
    root: PathBuf,
}

impl Default for Linux {
    fn default() -> Self {
        Self::live()
    }
}

impl Linux {
    /// The running kernel.
    pub fn live() -> Self {
        Self::at("/")
    }

    /// A tree that holds `proc`, `sys` and `dev` below `root`: a snapshot, or another mount namespace.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running kernel, as opposed to a snapshot.
    pub(crate) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where the absolute path `path` is in this tree.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The kernel's release, such as `6.1.0-18-amd64`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn release(&self) -> Result<String> {
        self.read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned())
    }

    /// Whether this process is root.
    pub fn is_root(&self) -> bool {
        self.status(Pid::own()).is_ok_and(|own| own.effective_uid == 0)
    }

    /// Where the file `name` of process `pid` is.
    pub fn process_file(&self, pid: Pid, name: &str) -> PathBuf {
        self.path(format!("/proc/{pid}/{name}"))
    }

    /// The whole content of a text file of the kernel, lossily decoded: names of files and commands
    /// that it quotes need not be UTF-8.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = self.path(path);
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(Error::io("read", path.display(), error)),
        }
    }

    /// As [`Linux::read`], for a file of process `pid`: a missing file of a missing process is
    /// [`Kind::Gone`].
    pub(crate) fn read_of(&self, pid: Pid, name: &str) -> Result<String> {
        self.read(format!("/proc/{pid}/{name}")).map_err(|error| match error.kind() {
            Kind::NotFound if !self.path(format!("/proc/{pid}")).exists() => Error::io(
                "read",
                self.process_file(pid, name).display(),
                io::Error::from_raw_os_error(libc::ESRCH),
            ),
            Kind::Permission => error.advise(crate::error::not_permitted()),
            _ => error,
        })
    }

    /// A file that holds one unsigned number.
    pub(crate) fn read_number(&self, path: impl AsRef<Path>) -> Result<u64> {
        let path = path.as_ref();
        let text = self.read(path)?;
        text.trim().parse().map_err(|_| {
            Error::malformed(path.display(), format_args!("{:?} is no number", text.trim()))
        })
    }

    /// Whether this process may write to a file: tried by opening it.
    pub(crate) fn may_write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = self.path(path);
        let opened = fs::OpenOptions::new().write(true).open(&path);
        opened.map(drop).map_err(|error| {
            Error::io("open", format_args!("{} for writing", path.display()), error)
        })
    }

    /// Writes `value` to a file of the kernel in one write.
    pub(crate) fn write(&self, path: impl AsRef<Path>, value: &str) -> Result<()> {
        let path = self.path(path);
        fs::write(&path, value).map_err(|error| {
            Error::io("write", format_args!("{value:?} to {}", path.display()), error)
        })
    }
}

/// The bytes that `123 kB` says. More of them than there can be are none: such a file is not the kernel's.
pub(crate) fn kibibytes(text: &str) -> Option<u64> {
    text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

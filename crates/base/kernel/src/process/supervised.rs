//! A process in two: what must not be killed halfway goes on in a child, under a parent that waits for it.
//!
//! Whoever kills or stops the process that they started hits the parent. The child sees that ([`Supervisor::lives`])
//! and puts in order what it has under way.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use pagemill_model::Pid;

use crate::{Error, Kind, Linux, Result};

/// Which of the two the caller is.
#[derive(Debug)]
pub enum Side {
    /// The parent.
    Parent(Supervised),
    /// The child.
    Child(Supervisor),
}

/// The child, to its parent.
#[derive(Clone, Copy, Debug)]
pub struct Supervised(libc::pid_t);

/// The parent, to its child.
#[derive(Clone, Copy, Debug)]
pub struct Supervisor(Pid);

/// Goes on in a child as well as here. The caller must be the only thread: an error otherwise.
///
/// # Errors
/// [`Kind::Busy`] if this process has several threads; no more processes may be started.
pub fn split() -> Result<Side> {
    let parent = Pid::own();
    if Linux::live().threads(parent)?.len() > 1 {
        let why = "it has several threads, of which a child would have one";
        return Err(Error::new(Kind::Busy, "fork", format_args!("process {parent}"), why));
    }
    // SAFETY: a copy of the only thread, which may do all that its parent may.
    match unsafe { libc::fork() } {
        child if child < 0 => Err(Error::last("fork", format_args!("process {parent}"))),
        0 => Ok(Side::Child(Supervisor(parent))),
        child => Ok(Side::Parent(Supervised(child))),
    }
}

impl Supervised {
    /// Its number.
    pub fn id(self) -> Pid {
        Pid(self.0 as u32)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// It has been waited for already.
    pub fn try_wait(self) -> io::Result<Option<ExitStatus>> {
        let mut status = 0;
        // SAFETY: `status` is valid for writes; the child was started here and is waited for here only.
        match unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) } {
            0 => Ok(None),
            ended if ended > 0 => Ok(Some(ExitStatus::from_raw(status))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Supervisor {
    /// Whether the parent lives.
    pub fn lives(self) -> bool {
        std::os::unix::process::parent_id() == self.0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_several_threads_is_not_made() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv().is_err());
        assert_eq!(split().unwrap_err().kind(), Kind::Busy);
        drop(end);
        assert!(other.join().unwrap());
    }
}

//! A program that is started but suspended before its first instruction, so that whoever watches it misses
//! nothing: the child of the fork waits in a `read(2)` just before its `execve(2)`.
//!
//! ```text
//!  spawn        fork ── child: write its number ── read …            parent: knows the number
//!  release      write a byte ──────────────────── execve            parent: waits for the exec
//!  drop         close ─────────────────────────── gives up, exits
//! ```
//!
//! Always true: a holder that is dropped or dies leaves no waiting child behind.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use pagemill_model::Pid;

use crate::{Error, Result};

/// A started program that waits.
#[derive(Debug)]
pub struct Suspended {
    pid: Pid,
    release: File,
    starting: JoinHandle<io::Result<Child>>,
}

fn pipe() -> Result<(File, File)> {
    let (read, write) = io::pipe().map_err(|error| Error::io("make", "a pipe", error))?;
    Ok((OwnedFd::from(read).into(), OwnedFd::from(write).into()))
}

impl Suspended {
    /// Starts `command` and holds it. The outer error means that nothing was started, the inner one
    /// is what [`Command::spawn`] would have returned.
    ///
    /// # Errors
    /// No descriptor or thread can be had, or the child says nothing.
    pub fn spawn(mut command: Command) -> Result<io::Result<Self>> {
        let (mut told, tell) = pipe()?;
        let (wait, release) = pipe()?;
        // The child inherits the writing end of its own pipe; it would never see it closed.
        let mine = release.as_raw_fd();
        let hold = move || {
            let mut byte = [0];
            // SAFETY: the descriptor is the child's copy, which only this closure knows of.
            unsafe { libc::close(mine) };
            (&tell).write_all(&Pid::own().0.to_ne_bytes())?;
            (&wait).read_exact(&mut byte)
        };
        // SAFETY: between fork and exec the closure makes the system calls close, getpid, write and
        // read; it neither allocates nor locks (its errors are made without allocation).
        unsafe { command.pre_exec(hold) };
        // `spawn` returns when the program executes or fails to.
        let start = move || {
            let spawned = command.spawn();
            // With it go this process's copies of the child's ends, so a failure is seen as one.
            drop(command);
            spawned
        };
        let starting = crate::process::thread::start(start)?;
        let mut pid = [0; 4];
        match told.read_exact(&mut pid) {
            Ok(()) => Ok(Ok(Self { pid: Pid(u32::from_ne_bytes(pid)), release, starting })),
            Err(error) => match starting.join() {
                Ok(Err(error)) => Ok(Err(error)),
                _ => Err(Error::io("start", "a program", error)),
            },
        }
    }

    /// The process that waits, and that the program will be.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the program run. Returns when it executes, or with the reason why it cannot.
    ///
    /// # Errors
    /// What [`Command::spawn`] would have returned, or the thread that starts the program has ended.
    pub fn release(mut self) -> io::Result<Child> {
        // If the child is gone, `spawn` says so.
        let _ = self.release.write_all(&[1]);
        let gone = || io::Error::other("the thread that starts the program has ended");
        self.starting.join().map_err(|_| gone())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Linux;

    #[test]
    fn a_held_program_runs_when_it_is_released_and_not_before() {
        let room = tempfile::tempdir().unwrap();
        let mark = room.path().join("mark");
        let mut command = Command::new("touch");
        command.arg(&mark);
        let suspended = Suspended::spawn(command).unwrap().unwrap();
        let pid = suspended.pid();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!mark.exists());
        assert_eq!(Linux::live().stat(pid).unwrap().parent, Pid::own());
        let mut child = suspended.release().unwrap();
        assert_eq!(Pid(child.id()), pid);
        assert!(child.wait().unwrap().success() && mark.exists());
    }

    #[test]
    fn a_program_that_cannot_be_executed_says_so_on_release() {
        let suspended = Suspended::spawn(Command::new("/no/such/program")).unwrap().unwrap();
        assert_eq!(suspended.release().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_program_that_is_never_released_ends() {
        let suspended = Suspended::spawn(Command::new("true")).unwrap().unwrap();
        let Suspended { release, starting, .. } = suspended;
        drop(release);
        assert!(starting.join().unwrap().is_err());
    }
}

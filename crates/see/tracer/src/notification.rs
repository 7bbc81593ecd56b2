//! A system call that the kernel tells of, as a mapper or the tracer received it, to be answered.

use std::os::fd::OwnedFd;

use pagemill_kernel::process::seccomp::{self, SyscallReply};
use pagemill_kernel::{Result, process::process_vm};
use pagemill_model::Pid;

use crate::calls::{CLONE, CLONE3, NO_SUCH_CALL};

/// The mapper's log is full.
pub(crate) const LOG: i32 = -1;

/// A call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyscallNotification {
    pub(crate) id: u64,
    /// Thread that makes the call.
    pub(crate) thread: Pid,
    /// System call, or [`LOG`].
    pub(crate) number: i32,
    pub(crate) argument: [u64; 6],
}

impl SyscallNotification {
    /// A call that the tracer received itself.
    pub(crate) fn of(notified: &seccomp::Notified) -> Self {
        let seccomp::Notified { id, thread, number, argument, .. } = *notified;
        Self { id, thread, number, argument }
    }

    /// As the keeper is told of it.
    pub(crate) fn notified(&self) -> seccomp::Notified {
        seccomp::Notified::new(self.id, self.thread, self.number, self.argument)
    }

    /// Has the caller, who was asked to stop, come back without having made the call: it makes it again (`hold.rs`).
    pub(crate) fn put_back(&self, listener: &OwnedFd) -> Result<()> {
        self.answer(listener, SyscallReply::Return(NO_SUCH_CALL))
    }

    /// Lets the call go on or return.
    pub(crate) fn answer(&self, listener: &OwnedFd, answer: SyscallReply) -> Result<()> {
        match self.number {
            LOG => Ok(()),
            _ => seccomp::answer(listener, self.id, answer),
        }
    }

    /// What a call that clones is asked for, by the memory of process `pid`; `None` for others.
    pub(crate) fn clones(&self, pid: Pid) -> Option<CloneArguments> {
        let [first, _, third, fourth, ..] = self.argument;
        match self.number {
            CLONE => {
                Some(CloneArguments { flags: first, pidfd: third, child: fourth, parent: third })
            }
            CLONE3 => {
                let mut bytes = [0; 32];
                process_vm::read(pid, first, &mut bytes).ok()?;
                let (words, _) = bytes.as_chunks();
                let word = |at: usize| u64::from_ne_bytes(words[at]);
                Some(CloneArguments {
                    flags: word(0),
                    pidfd: word(1),
                    child: word(2),
                    parent: word(3),
                })
            }
            _ => None,
        }
    }
}

/// What `clone` and `clone3` are asked for: flags, and where the kernel writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloneArguments {
    pub(crate) flags: u64,
    /// The number of a descriptor of the child.
    pub(crate) pidfd: u64,
    /// The child's number, in its own memory.
    pub(crate) child: u64,
    /// The same in its parent's.
    pub(crate) parent: u64,
}

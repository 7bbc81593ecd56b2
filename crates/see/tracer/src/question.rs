//! System calls that are asked about, and a question of a mapper.

use std::os::fd::OwnedFd;

use pagemill_kernel::Result;
use pagemill_kernel::seccomp::{self, Answer};
use pagemill_model::Pid;

pub(crate) const MMAP: i32 = 9;
pub(crate) const MPROTECT: i32 = 10;
pub(crate) const MUNMAP: i32 = 11;
pub(crate) const BRK: i32 = 12;
pub(crate) const MREMAP: i32 = 25;
pub(crate) const MADVISE: i32 = 28;
pub(crate) const CLONE: i32 = 56;
pub(crate) const FORK: i32 = 57;
pub(crate) const EXECVE: i32 = 59;
pub(crate) const PTRACE: i32 = 101;
pub(crate) const EXECVEAT: i32 = 322;
pub(crate) const USERFAULTFD: i32 = 323;
pub(crate) const CLONE3: i32 = 435;
pub(crate) const CLOSE_RANGE: i32 = 436;
/// -ENOSYS.
pub(crate) const NO_SUCH_CALL: i64 = -38;
/// The mapper's log is full.
pub(crate) const LOG: i32 = -1;

/// Advice that a fork follows.
pub(crate) const DONT_FORK: u64 = 10;
pub(crate) const WIPE_ON_FORK: u64 = 18;

/// A question of a mapper.
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
        self.answer(listener, Answer::Return(NO_SUCH_CALL))
    }

    /// Lets the call go on or return.
    pub(crate) fn answer(&self, listener: &OwnedFd, answer: Answer) -> Result<()> {
        match self.number {
            LOG => Ok(()),
            _ => seccomp::answer(listener, self.id, answer),
        }
    }
}

//! Answers to system calls that mappers were told of, and to those of programs that have none.

use pagemill_kernel::process::injected::Decided;
use pagemill_kernel::process::seccomp::{self, SyscallReply};
use pagemill_kernel::{Error, Kind, Result, poll};
use pagemill_model::Pid;

use crate::calls::{
    CLOSE_RANGE, EXECVE, EXECVEAT, MADVISE, MMAP, MPROTECT, MREMAP, NO_SUCH_CALL, PTRACE,
    USERFAULTFD,
};
use crate::notification::{LOG, SyscallNotification};
use crate::trace::{Sink, Untraced};
use crate::tracer::{HELPERS, Tracer};

/// What is to be done about a call.
enum Reply {
    Now(SyscallReply),
    /// It has its answer.
    Made,
    /// It is to be asked for again.
    Later,
}

impl Tracer {
    /// Whether the tracer receives calls itself, because no mapper does.
    pub(crate) fn receives(&self) -> bool {
        !self.released && self.processes.values().all(|process| process.mapper.is_none())
    }

    /// Receives the calls that wait.
    pub(crate) fn receive(&mut self) {
        if !self.receives() {
            return;
        }
        let Some((listener, _)) = &self.session.listener else { return };
        while let (true, _) = seccomp::waits(listener) {
            // Its caller may be gone.
            let Some(received) = seccomp::receive(listener) else { continue };
            if let Some(keeper) = &self.session.keeper {
                keeper.hold(&received);
            }
            self.unanswered.push(SyscallNotification::of(&received));
        }
    }

    pub(crate) fn notifications(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.unanswered.append(&mut self.session.received);
        for notification in std::mem::take(&mut self.unanswered) {
            if notification.number != LOG && !self.answer_one(None, &notification, sink)? {
                self.unanswered.push(notification);
            }
        }
        if let (Some(keeper), true) = (&self.session.keeper, self.unanswered.is_empty()) {
            keeper.hold_none();
        }
        let asking: Vec<(Pid, SyscallNotification)> = self
            .processes
            .iter()
            .filter_map(|(pid, process)| Some((*pid, process.notification()?)))
            .collect();
        for (pid, notification) in asking {
            if self.answer_one(Some(pid), &notification, sink)? {
                self.answered(pid);
            }
        }
        for process in self.processes.values() {
            poll::clear(&process.wake);
            if let Some(keeper) = &self.session.keeper {
                keeper.note(process.control.answered_last());
            }
        }
        Ok(())
    }

    /// Answers what the mapper of `asked` asks, or one that was ended; `false`: not now. Any mapper may
    /// receive the calls of every process.
    fn answer_one(
        &mut self,
        asked: Option<Pid>,
        notification: &SyscallNotification,
        sink: &mut dyn Sink,
    ) -> Result<bool> {
        let caller = self.threads.get(&notification.thread);
        // One that shares the memory is none of the process that its mapper knows.
        let shares = caller.is_some_and(|thread| thread.group != thread.process);
        let caller = caller.map(|thread| thread.process);
        let own = match notification.number {
            LOG => asked,
            // The process whose mapper received the call is another one than the caller's.
            _ => caller.or_else(|| self.who_shares_with(notification.thread)),
        };
        let pid = own.unwrap_or(Pid(0));
        if caller == Some(pid) && !shares && self.asks_for_untraced(pid, notification) {
            self.put_aside(pid, notification)?;
            return Ok(true);
        }
        if (asked != Some(pid) || shares)
            && notification.number != LOG
            && let Some(process) = self.processes.get(&pid)
        {
            match process.decide(notification, false)? {
                Decided::Busy => return Ok(false),
                Decided::Answered => return Ok(true),
                Decided::Left => {}
            }
        }
        if self.processes.get(&pid).is_some_and(|process| process.forks(notification))
            && !self.prepare_fork(pid, notification)?
        {
            return self.helpers_are_gone(pid, *notification);
        }
        let own_fds = u64::from(self.session.own_fds);
        let answer = match self.processes.get(&pid) {
            // The listener must survive until the child executes. Programs that are told so close one by
            // one, which the filter lets them do with all descriptors but ours.
            None if notification.number == CLOSE_RANGE && notification.argument[1] >= own_fds => {
                Some(SyscallReply::Return(NO_SUCH_CALL))
            }
            None => match self.children.get_mut(&pid) {
                Some(child) => Some(child.answer(&self.linux, notification)?),
                None => Some(SyscallReply::Continue),
            },
            Some(_) => match self.answer_of(pid, notification, shares, sink)? {
                Reply::Now(answer) => Some(answer),
                Reply::Made => None,
                Reply::Later => return Ok(false),
            },
        };
        if let (Some(answer), Some((listener, _))) = (answer, &self.session.listener) {
            notification.answer(listener, answer)?;
        }
        Ok(true)
    }

    /// Before there is a child: whatever becomes of us then, neither writes the other's memory. `false`: the memory
    /// could not be parted, for those who would do it have ended.
    fn prepare_fork(&mut self, pid: Pid, notification: &SyscallNotification) -> Result<bool> {
        if self.processes.get(&pid).is_some_and(|process| !process.awake()) {
            return Ok(false);
        }
        self.hold_others(pid, notification.thread);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.note_words(notification);
            // What cannot be done now is tried again when there is a child, which does not begin without it.
            let stays = process.stays_shared().unwrap_or(false);
            if !stays && process.freeze(&self.linux).is_err() && !process.awake() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a call of a traced process comes to.
    fn answer_of(
        &mut self,
        pid: Pid,
        notification: &SyscallNotification,
        shares: bool,
        sink: &mut dyn Sink,
    ) -> Result<Reply> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(Reply::Now(SyscallReply::Continue));
        };
        let answer = match notification.number {
            LOG => {
                let logged = process.control.take_log();
                process.left(logged);
                SyscallReply::Continue
            }
            MMAP | MREMAP => match process.own_file(notification)? {
                Decided::Busy => return Ok(Reply::Later),
                Decided::Answered => return Ok(Reply::Made),
                Decided::Left => {
                    let (answer, untraced) = process.map_apart(notification)?;
                    self.untraced.extend(untraced);
                    answer
                }
            },
            MPROTECT => process.protect(notification)?,
            MADVISE => process.advise(notification)?,
            EXECVE | EXECVEAT if shares => SyscallReply::Continue,
            EXECVE | EXECVEAT => {
                // Its memory is about to go. If the call fails, this was a short interval.
                let interval = process.tick(false)?;
                self.drain(sink);
                let _ = sink.interval(interval);
                SyscallReply::Continue
            }
            PTRACE | USERFAULTFD => {
                let what = if notification.number == PTRACE { "ptrace" } else { "userfaultfd" };
                let why = format!("the program uses {what} itself");
                self.untraced.push(Untraced::of(pid, why));
                SyscallReply::Continue
            }
            _ => SyscallReply::Continue,
        };
        Ok(Reply::Now(answer))
    }

    /// A call that nobody can answer is to be made again.
    fn helpers_are_gone(&mut self, pid: Pid, notification: SyscallNotification) -> Result<bool> {
        self.unanswered.push(notification);
        Err(Error::new(Kind::Gone, "trace", format_args!("process {pid}"), HELPERS))
    }

    fn answered(&self, asked: Pid) {
        if let Some(process) = self.processes.get(&asked) {
            process.control.answered();
        }
    }
}

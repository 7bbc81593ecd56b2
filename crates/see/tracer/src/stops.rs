//! What threads say when they stop: signals, programs executed, forks, ends.

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::ptrace::{self, Stop};
use pagemill_kernel::process::same_memory;
use pagemill_kernel::process::scheduling::PairAffinityGuard;
use pagemill_kernel::{Error, Kind, Linux, Result, process::signal};
use pagemill_model::Pid;

use crate::PATIENCE;
use crate::convert::Origin;
use crate::interval::now;
use crate::layout::{OURS, in_injected_code};
use crate::process::Process;
use crate::stopped::comes_out;
use crate::trace::{Ended, Sink, Untraced};
use crate::tracer::{Thread, Tracer};

impl Tracer {
    pub(crate) fn stopped(&mut self, thread: Pid, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
        let done = self.says(thread, stop, sink);
        if done.is_err()
            && let Some(state) = self.threads.get_mut(&thread)
        {
            // It stays stopped.
            state.held = true;
        }
        done
    }

    fn says(&mut self, thread: Pid, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
        if !self.threads.contains_key(&thread) && !stop.is_end() {
            if self.released {
                let signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
                // It may have been killed.
                let _ = ptrace::detach(thread, signal);
            } else {
                self.early.insert(thread);
            }
            return Ok(());
        }
        match stop {
            Stop::Exited(status) => return self.gone(thread, Ended::Exited(status)),
            Stop::Killed(signal) => return self.gone(thread, Ended::Killed(signal)),
            Stop::Exec => return self.execs(thread, sink),
            Stop::Fork | Stop::Vfork | Stop::Clone => return self.forks(thread, stop, sink),
            Stop::Exit => {
                self.exiting(thread, sink)?;
                self.go_on(thread, 0);
            }
            Stop::Interrupted => return self.interrupted(thread),
            Stop::Signal(signal) => self.go_on(thread, signal),
            Stop::Group(_) => {
                let _ = ptrace::listen(thread);
            }
            Stop::SystemCall | Stop::Filtered | Stop::Other(_) => self.go_on(thread, 0),
        }
        Ok(())
    }

    /// A process has executed a program.
    fn execs(&mut self, thread: Pid, sink: &mut dyn Sink) -> Result<()> {
        // Called by another thread than the first, it goes on as the first.
        let Ok(was) = ptrace::message(thread).map(|number| Pid(number as u32)) else {
            return Ok(());
        };
        if was != thread {
            self.threads.remove(&was);
        }
        if let Some(child) = self.children.get_mut(&thread) {
            // Seen before it executed the program.
            let interval = child.interval(false)?;
            self.drain(sink);
            let _ = sink.interval(interval);
        }
        if let Err(error) = self.executed(thread) {
            self.untouched(thread, &error);
        }
        self.introduce(sink);
        self.go_on(thread, 0);
        Ok(())
    }

    /// A thread has made a process or a thread.
    fn forks(&mut self, thread: Pid, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
        // One that was killed meanwhile says so next.
        let Ok(child) = ptrace::message(thread).map(|number| Pid(number as u32)) else {
            return Ok(());
        };
        if let Err(error) = self.born(thread, child, stop) {
            // Both stay stopped. A child whose memory could not be parted from its parent's does not run.
            self.midway.insert(thread);
            if let Some(state) = self.threads.get_mut(&child) {
                state.held = true;
            }
            let shared = |mapping: &Mapping| {
                mapping.shared && mapping.name.starts_with(OURS) && !in_injected_code(mapping)
            };
            if self.linux.maps(child).is_ok_and(|maps| maps.iter().any(shared)) {
                let _ = signal::send(child, 9);
            }
            return Err(error);
        }
        self.introduce(sink);
        self.fork_is_over(thread);
        self.go_on(thread, 0);
        Ok(())
    }

    /// A thread that was asked to stop has.
    fn interrupted(&mut self, thread: Pid) -> Result<()> {
        // Its fork has failed, or it would have said so.
        if self.forking.contains_key(&thread) {
            let state = self.threads.get_mut(&thread);
            let pid = state.map_or(Pid(0), |state| {
                state.held = true;
                state.process
            });
            self.forking.remove(&thread);
            // Who would do it may have been killed, which is for the next look to say.
            if self.processes.get(&pid).is_some_and(Process::awake) {
                self.thaw_unread(pid)?;
            }
            self.release(pid);
            return Ok(());
        }
        let pid = self.threads.get(&thread).map_or(Pid(0), |state| state.process);
        // It could not stop when the others were held.
        let late = self.forking.values().any(|(process, _)| *process == pid);
        match self.threads.get_mut(&thread) {
            Some(_) if late && comes_out(thread) => {}
            Some(state) if late => state.held = true,
            _ => self.go_on(thread, 0),
        }
        Ok(())
    }

    /// A thread has ended.
    fn gone(&mut self, thread: Pid, how: Ended) -> Result<()> {
        self.fork_is_over(thread);
        self.leaving.remove(&thread);
        let state = self.threads.remove(&thread);
        if thread == self.root {
            self.ended = Some(how);
        }
        if let Some(state) = state
            && !self.threads.values().any(|other| other.process == state.process)
        {
            self.forget(state.process)?;
        }
        Ok(())
    }

    /// A process has ended or executes another program: its memory is nobody's any more.
    pub(crate) fn forget(&mut self, pid: Pid) -> Result<()> {
        if let Some(process) = self.processes.remove(&pid) {
            self.untraced.extend(process.untraced());
            self.unanswered.extend(process.dismiss(&self.linux, self.session.keeper.as_ref()));
            self.tell_keeper();
        }
        self.children.remove(&pid);
        self.ending.remove(&pid);
        self.events.leave(pid);
        self.no_longer_reads(pid)
    }

    /// A new program: its memory becomes ours. `thread` is stopped at the event.
    pub(crate) fn executed(&mut self, thread: Pid) -> Result<()> {
        self.forget(thread)?;
        // Its number may have been that of a thread that has just ended.
        self.leaving.remove(&thread);
        self.threads.retain(|other, state| state.process != thread || *other == thread);
        self.threads.insert(thread, Thread { process: thread, group: thread, held: false });
        // Some twenty times it does something for us and we wait for it.
        let mut together = PairAffinityGuard::with(thread);
        // On the way out of execve the kernel still writes a register.
        ptrace::resume_to_system_call(thread, 0)?;
        ptrace::wait_for(thread, PATIENCE)?;
        if self.begun
            && let Some(why) = self.options.refuse.and_then(|refuse| refuse(&self.linux, thread))
        {
            return Err(Error::new(
                Kind::Unsupported,
                "trace",
                format_args!("process {thread}"),
                why,
            ));
        }
        self.events.follow(thread)?;
        let mut process = self.convert(thread, thread, &Origin::Executed)?;
        if let Some(together) = &mut together {
            together.also(process.injector);
            process.mapper.into_iter().for_each(|mapper| together.also(mapper));
        }
        drop(together);
        process.began = now();
        self.processes.insert(thread, process);
        self.tell_keeper();
        if !self.session.privileged && gains_privileges(&self.linux, thread) {
            let why = "executed a program that gains privileges, which it does not while it is traced by a user";
            self.untraced.push(Untraced::of(thread, why));
        }
        Ok(())
    }

    /// A program that was executed and whose memory could not become ours runs as it is.
    fn untouched(&mut self, pid: Pid, error: &Error) {
        self.events.leave(pid);
        if error.kind() != Kind::Gone {
            let why = format!("a program that it executed is not traced: {error}");
            self.untraced.push(Untraced::of(pid, why));
        }
    }

    /// A thread or a child.
    fn born(&mut self, parent: Pid, child: Pid, stop: Stop) -> Result<()> {
        let owner = self.threads.get(&parent).map_or(parent, |thread| thread.process);
        // Its first stop was seen already, or comes now.
        if !self.early.remove(&child) {
            ptrace::wait_for(child, PATIENCE)?;
        }
        let group = self.linux.thread_group(child).unwrap_or(child);
        let of_parent = self.threads.get(&parent).is_some_and(|thread| thread.group == group);
        // Which event it is says little: a child that shares the memory and ends by SIGCHLD is a fork, too.
        let shares = same_memory(parent, child).unwrap_or(stop == Stop::Vfork);
        let process = match of_parent || shares && stop != Stop::Vfork {
            true => owner,
            // One that borrows the memory for a moment, or has its own.
            false => group,
        };
        self.threads.insert(child, Thread { process, group, held: false });
        if process == owner && !of_parent {
            let why = format!(
                "it shares the memory of process {owner}, whose pages those that it touches are; its accesses are \
                 not told one by one"
            );
            self.untraced.push(Untraced::of(group, why));
        }
        if !of_parent && !shares {
            self.forked(owner, (parent, child))?;
        }
        self.go_on(child, 0);
        Ok(())
    }

    /// A thread is about to end, its memory still there.
    fn exiting(&mut self, thread: Pid, sink: &mut dyn Sink) -> Result<()> {
        let Some(pid) = self.threads.get(&thread).map(|state| state.process) else { return Ok(()) };
        // The last to say so still has the memory.
        self.leaving.insert(thread);
        let mut silent = self.siblings(pid, thread);
        silent.retain(|other| !self.leaving.contains(other));
        if !silent.is_empty() {
            // One that is killed while it ends says nothing: then this is the last look there is.
            if silent.iter().all(|other| self.linux.is_ending(*other)) && self.ending.insert(pid) {
                self.drain(sink);
                if let Some(Ok(interval)) = self.processes.get_mut(&pid).map(|it| it.tick(false)) {
                    self.drain(sink);
                    let _ = sink.interval(interval);
                }
            }
            return Ok(());
        }
        self.drain(sink);
        if let Some(process) = self.processes.get_mut(&pid) {
            let interval = process.tick(true)?;
            self.drain(sink);
            let _ = sink.interval(interval);
        } else if let Some(child) = self.children.get_mut(&pid) {
            let interval = child.interval(true)?;
            self.drain(sink);
            let _ = sink.interval(interval);
        }
        self.forget(pid)
    }
}

/// Whether the program that a process executes is set-user-ID or set-group-ID.
fn gains_privileges(linux: &Linux, pid: Pid) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::metadata(linux.process_file(pid, "exe"));
    metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o6000 != 0)
}

//! A running program taken over, and any program let go.
//!
//! ```text
//!  attach   refuse what cannot be converted ──► stop all threads ──► convert ──► go on
//!  let go   stop all threads ──► last scan ──► memory anonymous again ──► detach
//! ```
//!
//! What is let go has its own private memory again. The filter of its system calls cannot be taken off a
//! process: the mapper stays in it and lets every call go on as it is.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pagemill_kernel::{Error, Kind, Linux, Result, memory::memfd, process::ptrace};
use pagemill_model::{PageRange, Pid};

use crate::PATIENCE;
use crate::calls::{CLOSE, Call, MADVISE, call};
use crate::convert::Origin;
use crate::copy::make_own;
use crate::events::Events;
use crate::layout::guard;
use crate::pins::pins;
use crate::process::{ForkAdvice, Process};
use crate::stopped::calm;
use crate::trace::{Options, Sink, Untraced};
use crate::tracer::{Thread, Tracer};

/// How long threads of a running program may take to stop.
const STOP: Duration = Duration::from_secs(2);

/// Why a process cannot be taken over, found out without touching it: an error where it cannot be traced at all, else
/// why its memory cannot be made droppable.
fn refuse(linux: &Linux, pid: Pid) -> Result<Option<Error>> {
    let object = format!("process {pid}");
    let because = |why: &str| Error::new(Kind::Unsupported, "take over", &object, why);
    let no = |why: &str| Err(because(why));
    let stat = linux.stat(pid)?;
    if stat.kernel_thread {
        return no("it is a thread of the kernel");
    }
    if stat.state == 'Z' {
        return no("its first thread has ended");
    }
    if pid == Pid(1) || pid == Pid::own() {
        return no("stopping it would stop the machine, or this program");
    }
    let status = linux.status(pid)?;
    if status.seccomp.is_some_and(|mode| mode != 0) {
        return Ok(Some(because(
            "its system calls are filtered (seccomp), or it was traced before: start it with -- CMD",
        )));
    }
    let executable = linux.process_file(pid, "exe");
    let mut start = [0; 5];
    let read = std::fs::File::open(&executable)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    read.map_err(|error| {
        Error::io("open", executable.display(), error)
            .advise("run as root or as the user who owns the process")
    })?;
    if start != [0x7f, b'E', b'L', b'F', 2] {
        return no("it is no 64-bit program");
    }
    Ok(pins(linux, pid, None)?.map(because))
}

impl Tracer {
    /// Takes over process `pid`, which runs on.
    ///
    /// # Errors
    /// The process has ended or may not be traced, or no way to trace it works here.
    pub fn attach(linux: Linux, options: Options, pid: Pid) -> Result<Self> {
        match refuse(&linux, pid)? {
            None => {}
            Some(why) => return Self::from_outside(linux, options, pid, &why),
        }
        let mut tracer = Self::new(linux, options, pid)?;
        tracer.attached = true;
        if let Err(error) = tracer.take_over(pid) {
            tracer.detach_all();
            return Err(error);
        }
        tracer.release(pid);
        tracer.pace = tracer.start_interval();
        Ok(tracer)
    }

    fn take_over(&mut self, pid: Pid) -> Result<()> {
        let limit = Instant::now() + STOP;
        // Until no thread has been started meanwhile.
        loop {
            let mut fresh = false;
            for thread in self.linux.threads(pid)? {
                if self.threads.contains_key(&thread) {
                    continue;
                }
                match ptrace::seize(thread, ptrace::FOLLOW) {
                    Ok(()) => {}
                    // It has ended meanwhile.
                    Err(error) if thread != pid && error.kind() != Kind::Permission => continue,
                    Err(error) => return Err(error),
                }
                fresh = true;
                self.threads.insert(thread, Thread { process: pid, group: pid, held: false });
            }
            let threads = self.siblings(pid, Pid(0));
            let stopped = self.hold(&threads, limit.saturating_duration_since(Instant::now()));
            if !stopped {
                let why = "a thread does not stop: it waits for a device, or for a vfork";
                let object = format!("process {pid}");
                return Err(Error::new(Kind::Busy, "trace", object, why).advise("try again"));
            }
            if !fresh {
                break;
            }
        }
        let mut threads = self.siblings(pid, Pid(0));
        threads.retain(|thread| !self.deferred.iter().any(|(deferred, _)| deferred == thread));
        let thread = calm(&threads).ok_or_else(|| {
            Error::new(Kind::Gone, "trace", format_args!("process {pid}"), "it is ending")
        })?;
        self.events.follow(pid)?;
        let mut process = self.convert(pid, thread, &Origin::Running)?;
        // What is in its page tables by now was touched before.
        process.tick(false)?;
        process.intervals = 0;
        for child in self.linux.children(pid)? {
            // Ours are its children, too.
            if child != process.injector && Some(child) != process.mapper {
                let why = "a child that was running already";
                self.untraced.push(Untraced::of(child, why));
            }
        }
        self.processes.insert(pid, process);
        self.tell_keeper();
        Ok(())
    }

    /// Lets everything go: what was touched is told, and all programs run on by themselves.
    pub(crate) fn let_go(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.stop_all(sink, false)?;
        self.drain(sink);
        for process in self.processes.values_mut() {
            self.untraced.extend(process.untraced());
            let interval = process.tick(true)?;
            let _ = sink.interval(interval);
            process.give_back(&self.linux)?;
        }
        for child in self.children.values_mut() {
            let _ = sink.interval(child.interval(true)?);
        }
        self.detach_all();
        Ok(())
    }

    /// Who waits for an injector or mapper that is gone, and was asked to stop, does, and makes the call again.
    fn put_back(&mut self) {
        let Some((listener, _)) = &self.session.listener else { return };
        let mut waiting = std::mem::take(&mut self.unanswered);
        for process in self.processes.values().filter(|process| !process.awake()) {
            let asks = process.control.asks();
            let dead = |mapper| {
                self.linux.stat(mapper).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
            };
            // A mapper that lives and is at it answers by itself.
            if asks || process.mapper.is_none_or(dead) {
                waiting.extend(process.received());
                process.control.answered();
            }
        }
        for notification in waiting {
            self.again.insert(notification.thread);
            let _ = notification.put_back(listener);
        }
    }

    /// Stops all threads; `anyhow`: even if calls of theirs cannot be answered.
    fn stop_all(&mut self, sink: &mut dyn Sink, anyhow: bool) -> Result<()> {
        let limit = Instant::now() + PATIENCE;
        loop {
            // Who waits for an answer cannot stop.
            self.receive();
            match self.notifications(sink) {
                Err(_) if anyhow => self.put_back(),
                answered => answered?,
            }
            let threads: Vec<Pid> = self.threads.keys().copied().collect();
            let stopped = self.hold(&threads, Duration::from_millis(50));
            if stopped && self.deferred.is_empty() {
                return Ok(());
            }
            for (thread, stop) in std::mem::take(&mut self.deferred) {
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.held = false;
                }
                self.stopped(thread, stop, sink)?;
            }
            if Instant::now() >= limit {
                return Err(Error::new(
                    Kind::Busy,
                    "let go",
                    format_args!("process {}", self.root),
                    "a thread does not stop",
                ));
            }
        }
    }

    /// Tracing has failed: lets everything go, each process with what works of it. What could be is anonymous and
    /// private again; where the memory cannot be copied it is private over the file. Takes no longer than a bound for
    /// each.
    pub(crate) fn abandon(&mut self, error: &Error, sink: &mut dyn Sink) {
        self.lost = self.lost().unwrap_or(self.lost);
        self.released_because(error);
        let silent = |process: &&Process| !process.awake();
        let silent: Vec<Pid> =
            self.processes.values().filter(silent).map(|process| process.pid).collect();
        for thread in self.threads.keys() {
            let _ = ptrace::interrupt(*thread);
        }
        self.put_back();
        // One that has forked is still in that call; at its end it can be made to do things.
        for thread in std::mem::take(&mut self.midway) {
            let _ = ptrace::resume_to_system_call(thread, 0);
            let _ = ptrace::wait_for(thread, PATIENCE);
        }
        // A second failure is no other than the first.
        let _ = self.stop_all(sink, true);
        self.drain(sink);
        let threads_of: Vec<(Pid, Vec<Pid>)> =
            self.processes.keys().map(|&pid| (pid, self.siblings(pid, Pid(0)))).collect();
        for (pid, threads) in threads_of {
            let held = |thread: &Pid| self.threads.get(thread).is_some_and(|state| state.held);
            let own = |thread: &Pid| {
                self.threads.get(thread).is_some_and(|state| state.group == pid)
                    && !self.midway.contains(thread)
            };
            let all = threads.iter().all(held);
            let own: Vec<Pid> = threads.iter().copied().filter(own).collect();
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            let given = match calm(&own) {
                Some(thread) if all => {
                    let revived = !silent.contains(&pid) || {
                        process.dismiss(&self.linux, self.session.keeper.as_ref());
                        process.revive(thread, self.session.keeper.as_ref()).is_ok()
                    };
                    if revived && let Ok(interval) = process.tick(true) {
                        let _ = sink.interval(interval);
                    }
                    revived && process.give_back(&self.linux).is_ok()
                }
                _ => false,
            };
            if !given {
                process.control.abandon();
            }
        }
        for child in self.children.values_mut() {
            if let Ok(interval) = child.interval(true) {
                let _ = sink.interval(interval);
            }
        }
        self.detach_all();
    }

    pub(crate) fn detach_all(&mut self) {
        for &thread in self.threads.keys() {
            // It may have been killed; one that has not stopped is let go when it does.
            let _ = ptrace::detach(thread, 0);
        }
        // Mappers that were started anew, too.
        self.tell_keeper();
        if let Some(keeper) = &self.session.keeper {
            keeper.release();
        }
        self.released = true;
        self.threads.clear();
        self.deferred.clear();
        self.processes.clear();
        self.children.clear();
        self.forking.clear();
        self.events = Events::None;
    }
}

impl Process {
    /// Makes its memory anonymous and private again; all threads are stopped.
    pub(crate) fn give_back(&self, linux: &Linux) -> Result<()> {
        let mappings = self.mappings(linux, self.pid)?;
        let mut advice = guard(&self.pagemap.guards(PageRange::new(0..0x7fff_ffff_f000)));
        advice.extend(self.fork_advice.iter().flat_map(|&ForkAdvice { range, advice }| {
            mappings.iter().filter_map(move |mapping| {
                let first = mapping.offset.max(range.start);
                let last = (mapping.offset + mapping.len()).min(range.end);
                let start = mapping.start + first.saturating_sub(mapping.offset);
                let length = last.checked_sub(first)? as i64;
                Some(call(MADVISE, [start as i64, length, advice as i64]))
            })
        }));
        for mapping in mappings {
            let make = |call: &Call| Ok(self.serve(&[*call])?[0]);
            make_own(self.pid, (&mapping, &self.memory), &self.pagemap, make)?;
            if self.sharers.is_empty() {
                memfd::punch_hole(&self.memory, mapping.offset, mapping.len())?;
            }
        }
        self.serve(&advice)?;
        if let Some(arguments) = self.arguments {
            arguments.put_back(linux, self.pid, |calls| self.serve(calls));
        }
        let close = |fd: &std::sync::atomic::AtomicI32| call(CLOSE, [i64::from(fd.load(Relaxed))]);
        let control = &self.control;
        self.serve(&[
            close(&control.memory_fd),
            close(&control.userfault_fd),
            close(&control.pagemap_fd),
        ])?;
        control.leave_alone();
        Ok(())
    }
}

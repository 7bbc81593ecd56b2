//! The loop of the tracer: stops of threads, questions of mappers, ticks.
//!
//! One thread does everything, because only the thread that traces may. It sleeps until the next tick, a
//! stop (SIGCHLD) or a question.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use pagemill_kernel::bpf::accesses::{Access, Accesses};
use pagemill_kernel::maps::Mapping;
use pagemill_kernel::process::same_memory;
use pagemill_kernel::ptrace::{self, FOLLOW, Stop};
use pagemill_kernel::resident::Decided;
use pagemill_kernel::seccomp::Answer;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Linux, Result, clock, poll};

use crate::ask::{self, Question};
use crate::convert::{Session, convert, own_descriptors};
use crate::process::{Interval, Process};

/// What a trace is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of an interval in useful time: time that the program would have taken untraced.
    pub interval: Duration,
    /// At most this much slower, by longer intervals; `None`: intervals stay what they are.
    pub budget: Option<f64>,
    /// Whether faults are written down one by one, where the machine can.
    pub events: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { interval: Duration::from_millis(50), budget: None, events: true }
    }
}

/// A range of memory whose accesses are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untraced {
    /// Process.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Why not.
    pub why: String,
}

/// Who takes what the tracer finds.
pub trait Sink {
    /// A fault: the first access to a page in an interval, or its first write.
    fn access(&mut self, access: &Access) -> std::result::Result<(), Stopped>;
    /// The end of an interval of a process.
    fn interval(&mut self, interval: Interval) -> std::result::Result<(), Stopped>;
    /// A process is traced from now on; its memory was laid out like this.
    fn process(&mut self, pid: u32, mappings: &[Mapping]) -> std::result::Result<(), Stopped>;
}

/// The sink wants no more: the program goes on untraced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// What one fault costs the program, for counting useful time, until more is known.
const FAULT: Duration = Duration::from_nanos(1300);

/// An interval tells itself after this many times its length even if the program sleeps.
const IDLE: u32 = 10;

/// The interval under way.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    began: Option<Instant>,
    /// CPU time of the processes when it began.
    cpu: Duration,
    /// Useful time that the budget demands.
    at_least: Duration,
}

#[derive(Debug)]
struct Thread {
    process: u32,
    /// Stopped, because a fork or a thaw needs it.
    held: bool,
}

/// A program being traced.
pub struct Tracer {
    linux: Linux,
    options: Options,
    session: Session,
    root: u32,
    threads: BTreeMap<u32, Thread>,
    processes: BTreeMap<u32, Process>,
    /// For a child that is not traced itself: whose memory file it still reads.
    reads: BTreeMap<u32, u32>,
    /// Threads that will fork, with everything else of their process held.
    forking: BTreeMap<u32, u32>,
    /// Stopped at their first instruction before their parent told of them.
    early: BTreeSet<u32>,
    accesses: Option<Accesses>,
    /// Why there are no events, if they were asked for.
    without_events: Option<String>,
    untraced: Vec<Untraced>,
    pace: Pace,
    events: u64,
    events_at_tick: u64,
    ended: Option<Ended>,
}

impl Tracer {
    /// Starts `path` with these arguments (the first is its name) and environment, traced. `Err` of the
    /// inner result: it cannot be executed, and why.
    pub fn launch(
        linux: Linux,
        options: Options,
        path: &CString,
        arguments: &[CString],
        environment: &[CString],
    ) -> Result<std::result::Result<Self, std::io::Error>> {
        let (accesses, without_events) = match options.events.then(Accesses::load) {
            Some(Ok(accesses)) => (Some(accesses), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        let privileged =
            linux.status(std::process::id())?.can(pagemill_kernel::process::Capability::SysAdmin);
        let session = Session { own_fds: own_descriptors()?, listener: None, privileged };
        let launched = ptrace::launch(path, arguments, environment)?;
        let root = launched.pid;
        ptrace::seize(root, FOLLOW)?;
        launched.go()?;
        let mut tracer = Self {
            linux,
            options,
            session,
            root,
            threads: BTreeMap::from([(root, Thread { process: root, held: false })]),
            processes: BTreeMap::new(),
            reads: BTreeMap::new(),
            forking: BTreeMap::new(),
            early: BTreeSet::new(),
            accesses,
            without_events,
            untraced: Vec::new(),
            pace: Pace::default(),
            events: 0,
            events_at_tick: 0,
            ended: None,
        };
        if let Some(accesses) = &mut tracer.accesses {
            accesses.follow(root)?;
        }
        loop {
            match ptrace::wait_for(root)? {
                Stop::Exec => break,
                Stop::Exited(_) | Stop::Killed(_) => {
                    return Ok(Err(launched
                        .failure()
                        .unwrap_or_else(|| std::io::Error::from_raw_os_error(8))));
                }
                Stop::Signal(signal) => ptrace::resume(root, signal)?,
                _ => ptrace::resume(root, 0)?,
            }
        }
        tracer.executed(root)?;
        tracer.go_on(root, 0);
        tracer.pace = tracer.start_interval();
        Ok(Ok(tracer))
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.root
    }

    /// Ranges whose accesses are not seen.
    pub fn untraced(&self) -> &[Untraced] {
        &self.untraced
    }

    /// Why accesses are not told one by one, if that was asked for.
    pub fn without_events(&self) -> Option<&str> {
        self.without_events.as_deref()
    }

    /// Accesses that were lost so far.
    pub fn lost(&self) -> Result<u64> {
        self.accesses.as_ref().map_or(Ok(0), Accesses::lost)
    }

    /// Traces until the program has ended. Signals other than SIGCHLD are handed to the program.
    pub fn run(&mut self, signals: &Signals, sink: &mut dyn Sink) -> Result<Ended> {
        let pending = signals.descriptor()?;
        self.introduce(sink);
        loop {
            while let Some((thread, stop)) = ptrace::poll()? {
                self.stopped(thread, stop, sink)?;
            }
            self.questions()?;
            if let Some(ended) = self.ended
                && self.threads.is_empty()
            {
                self.drain(sink);
                return Ok(ended);
            }
            self.drain(sink);
            let left = self.left();
            if left.is_zero() {
                self.tick(sink)?;
            }
            // The ring must not fill up meanwhile.
            let wait = left.clamp(Duration::from_micros(200), Duration::from_millis(5));
            let mut descriptors: Vec<BorrowedFd<'_>> = vec![pending.as_fd()];
            descriptors.extend(self.processes.values().map(|process| process.wake.as_fd()));
            poll::sleep(&descriptors, wait)?;
            while let Some(received) = signals.wait(Duration::ZERO)? {
                if received.signal != signal::CHILD && !received.from_kernel {
                    // It may have ended a moment ago.
                    let _ = signal::send(self.root, received.signal);
                }
            }
        }
    }

    /// Tells of processes that were not told of yet.
    fn introduce(&mut self, sink: &mut dyn Sink) {
        for (pid, process) in &mut self.processes {
            let original = std::mem::take(&mut process.original);
            if !original.is_empty() {
                let _ = sink.process(*pid, &original);
            }
        }
    }

    /// Hands events on.
    fn drain(&mut self, sink: &mut dyn Sink) {
        let Some(accesses) = &mut self.accesses else { return };
        let events = &mut self.events;
        accesses.read(|access| {
            *events += 1;
            // A sink that wants no more is told so at the next interval.
            let _ = sink.access(&access);
        });
    }

    /// CPU time of the traced processes so far. One that has just ended counts no more.
    fn cpu(&self) -> Duration {
        self.processes.keys().filter_map(|&pid| clock::of_process(pid).ok()).sum()
    }

    fn start_interval(&self) -> Pace {
        Pace { began: Some(Instant::now()), cpu: self.cpu(), at_least: self.pace.at_least }
    }

    /// Faults of this interval, by what is known of them.
    fn faults(&self) -> u64 {
        self.events - self.events_at_tick
    }

    /// How much of the interval is left, in useful time: the time that the program ran, without what its
    /// faults cost. One that sleeps is looked at now and then all the same.
    fn left(&self) -> Duration {
        let wall = self.pace.began.map_or(Duration::MAX, |began| began.elapsed());
        let interval = self.options.interval.max(self.pace.at_least);
        if wall >= interval * IDLE {
            return Duration::ZERO;
        }
        let ran = self.cpu().saturating_sub(self.pace.cpu).min(wall);
        let cost = FAULT * u32::try_from(self.faults()).unwrap_or(u32::MAX);
        interval.saturating_sub(ran.saturating_sub(cost))
    }

    fn tick(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let began = Instant::now();
        let complete = self.accesses.is_some();
        let mut pages = 0;
        for process in self.processes.values_mut() {
            match process.tick(now, complete, false) {
                Ok(interval) => {
                    pages +=
                        interval.touched.iter().map(|pages| pages.1 - pages.0).sum::<u64>() / 4096;
                    let _ = sink.interval(interval);
                }
                // It ends at this very moment: its last scan is made when its last thread stops.
                Err(error) if error.kind() == pagemill_kernel::Kind::Gone => {}
                Err(error) => return Err(error),
            }
        }
        let seen = if complete { self.faults() } else { pages };
        self.events_at_tick = self.events;
        if let Some(budget) = self.options.budget {
            // What this interval cost, over its useful time, shall stay below the budget.
            let cost = began.elapsed() + FAULT * u32::try_from(seen).unwrap_or(u32::MAX);
            self.pace.at_least = cost.div_f64((budget - 1.0).max(0.01));
        }
        self.pace = self.start_interval();
        Ok(())
    }

    fn questions(&mut self) -> Result<()> {
        let asking: Vec<(u32, Question)> = self
            .processes
            .iter()
            .filter_map(|(pid, process)| Some((*pid, process.question()?)))
            .collect();
        for (pid, question) in asking {
            self.question(pid, &question)?;
        }
        for process in self.processes.values() {
            poll::clear(&process.wake);
        }
        Ok(())
    }

    /// Answers what the mapper of `asked` asks. Any mapper may receive the calls of every process.
    fn question(&mut self, asked: u32, question: &Question) -> Result<()> {
        let caller = self.threads.get(&question.thread).map_or(asked, |thread| thread.process);
        let pid = if question.number == ask::LOG { asked } else { caller };
        if pid != asked
            && let Some(process) = self.processes.get(&pid)
        {
            match process.decide(question)? {
                Decided::Busy => return Ok(()),
                Decided::Answered => {
                    self.answered(asked);
                    return Ok(());
                }
                Decided::Left => {}
            }
        }
        let forks = self.processes.get(&pid).is_some_and(|process| process.forks(question));
        if forks {
            self.hold_others(pid, question.thread)?;
        }
        let own_fds = u64::from(self.session.own_fds);
        let answer = match self.processes.get_mut(&pid) {
            // The listener must survive until the child executes. Programs that are told so close one by
            // one, which the filter lets them do with all descriptors but ours.
            None if question.number == ask::CLOSE_RANGE && question.argument[1] >= own_fds => {
                Answer::Return(ask::NO_SUCH_CALL)
            }
            // A child after its fork: its memory is its own.
            None => Answer::GoOn,
            Some(process) => match question.number {
                ask::LOG => {
                    let logged = process.control.take_log();
                    process.pending.extend(logged.into_iter().map(|(start, end, _)| (start, end)));
                    Answer::GoOn
                }
                ask::MMAP => process.map_file(&self.linux, question)?,
                ask::MPROTECT => process.protect(&self.linux, question)?,
                ask::MADVISE => process.advise_fork(question),
                ask::EXECVE | ask::EXECVEAT => {
                    // If it fails, what was touched is simply told in two intervals.
                    process.collect()?;
                    Answer::GoOn
                }
                ask::PTRACE | ask::USERFAULTFD => {
                    let what =
                        if question.number == ask::PTRACE { "ptrace" } else { "userfaultfd" };
                    let why = format!("the program uses {what} itself");
                    self.untraced.push(Untraced { process: pid, start: 0, end: 0, why });
                    Answer::GoOn
                }
                _ => Answer::GoOn,
            },
        };
        if let Some((listener, _)) = &self.session.listener {
            question.answer(listener, answer)?;
        }
        self.answered(asked);
        if forks && self.forking.contains_key(&question.thread) {
            // Whether it forks or fails: it comes back by this stop.
            let _ = ptrace::interrupt(question.thread);
        }
        Ok(())
    }

    fn answered(&self, asked: u32) {
        if let Some(process) = self.processes.get(&asked) {
            process.control.answered();
        }
    }

    fn siblings(&self, pid: u32, but: u32) -> Vec<u32> {
        let of = |(thread, state): (&u32, &Thread)| {
            (state.process == pid && *thread != but).then_some(*thread)
        };
        self.threads.iter().filter_map(of).collect()
    }

    /// Stops every other thread of a process, so that nobody writes between a fork and its freeze.
    fn hold_others(&mut self, pid: u32, forker: u32) -> Result<()> {
        let others = self.siblings(pid, forker);
        if others.is_empty() {
            return Ok(());
        }
        self.forking.insert(forker, pid);
        self.hold(&others)
    }

    /// Stops threads. One that waits for its mapper cannot stop, and cannot write either.
    fn hold(&mut self, threads: &[u32]) -> Result<()> {
        let mut waiting: Vec<u32> = Vec::new();
        for &thread in threads {
            if ptrace::interrupt(thread).is_ok() {
                waiting.push(thread);
            }
        }
        let limit = Instant::now() + Duration::from_millis(20);
        while !waiting.is_empty() && Instant::now() < limit {
            waiting.retain(|&thread| match ptrace::poll_one(thread) {
                Ok(Some(stop)) => {
                    self.held(thread, stop);
                    false
                }
                _ => true,
            });
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A thread that was to be held has stopped, for this or another reason.
    fn held(&mut self, thread: u32, stop: Stop) {
        match stop {
            Stop::Exited(_) | Stop::Killed(_) => {
                self.threads.remove(&thread);
            }
            Stop::Signal(number) => {
                // It gets its signal again when it goes on.
                let _ = ptrace::resume(thread, number);
            }
            Stop::Exit => {
                let _ = ptrace::resume(thread, 0);
            }
            _ => {
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.held = true;
                }
            }
        }
    }

    /// Lets held threads of a process go on.
    fn release(&mut self, pid: u32) {
        for (thread, state) in &mut self.threads {
            if state.process == pid && std::mem::take(&mut state.held) {
                // It may have been killed meanwhile.
                let _ = ptrace::resume(*thread, 0);
            }
        }
    }

    fn stopped(&mut self, thread: u32, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
        if !self.threads.contains_key(&thread) && !matches!(stop, Stop::Exited(_) | Stop::Killed(_))
        {
            self.early.insert(thread);
            return Ok(());
        }
        match stop {
            Stop::Exited(status) => self.gone(thread, Ended::Exited(status)),
            Stop::Killed(signal) => self.gone(thread, Ended::Killed(signal)),
            Stop::Exec => {
                // Called by another thread than the first, it goes on as the first.
                let was = ptrace::message(thread)? as u32;
                if was != thread {
                    self.threads.remove(&was);
                }
                self.executed(thread)?;
                self.introduce(sink);
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Fork | Stop::Vfork | Stop::Clone => {
                let child = ptrace::message(thread)? as u32;
                self.born(thread, child, stop)?;
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Exit => {
                self.exiting(thread, sink)?;
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Interrupted => {
                if let Some(pid) = self.forking.remove(&thread) {
                    self.release(pid);
                }
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Signal(signal) => {
                self.go_on(thread, signal);
                Ok(())
            }
            Stop::Group(_) => {
                let _ = ptrace::listen(thread);
                Ok(())
            }
            Stop::SystemCall | Stop::Other(_) => {
                self.go_on(thread, 0);
                Ok(())
            }
        }
    }

    /// A thread that was killed meanwhile says so by its next stop.
    fn go_on(&self, thread: u32, signal: i32) {
        let _ = ptrace::resume(thread, signal);
    }

    /// A thread has ended.
    fn gone(&mut self, thread: u32, how: Ended) -> Result<()> {
        self.forking.remove(&thread);
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
    fn forget(&mut self, pid: u32) -> Result<()> {
        if let Some(process) = self.processes.remove(&pid) {
            process.dismiss();
        }
        if let Some(accesses) = &mut self.accesses {
            accesses.leave(pid);
        }
        self.no_longer_reads(pid)
    }

    /// A child does not read its parent's file any more: the parent may write it again.
    fn no_longer_reads(&mut self, child: u32) -> Result<()> {
        let Some(parent) = self.reads.remove(&child) else { return Ok(()) };
        let Some(process) = self.processes.get_mut(&parent) else { return Ok(()) };
        process.sharers.retain(|sharer| *sharer != child);
        if !process.sharers.is_empty() || !process.frozen() {
            return Ok(());
        }
        let threads = self.siblings(parent, 0);
        self.hold(&threads)?;
        let all_held =
            threads.iter().all(|thread| self.threads.get(thread).is_none_or(|state| state.held));
        if all_held && let Some(process) = self.processes.get_mut(&parent) {
            process.thaw(&self.linux)?;
        }
        // One that could not be stopped keeps the memory frozen until the next child has gone.
        self.release(parent);
        Ok(())
    }

    /// A new program: its memory becomes ours. `thread` is stopped at the event.
    fn executed(&mut self, thread: u32) -> Result<()> {
        self.forget(thread)?;
        self.threads.retain(|other, state| state.process != thread || *other == thread);
        self.threads.insert(thread, Thread { process: thread, held: false });
        // On the way out of execve the kernel still writes a register.
        ptrace::resume_to_system_call(thread, 0)?;
        ptrace::wait_for(thread)?;
        if let Some(accesses) = &mut self.accesses {
            accesses.follow(thread)?;
        }
        let mut process =
            convert(&self.linux, &mut self.session, thread, thread, &mut self.untraced)?;
        process.began = now();
        self.processes.insert(thread, process);
        Ok(())
    }

    /// A thread or a child.
    fn born(&mut self, parent: u32, child: u32, stop: Stop) -> Result<()> {
        let owner = self.threads.get(&parent).map_or(parent, |thread| thread.process);
        // Its first stop was seen already, or comes now.
        if !self.early.remove(&child) {
            ptrace::wait_for(child)?;
        }
        let process = self.linux.thread_group(child).unwrap_or(child);
        self.threads.insert(child, Thread { process, held: false });
        if process != owner {
            let shares = stop == Stop::Vfork || stop == Stop::Clone && same_memory(owner, child);
            if !shares {
                self.forked(owner, child)?;
            }
        }
        self.go_on(child, 0);
        Ok(())
    }

    fn forked(&mut self, parent: u32, child: u32) -> Result<()> {
        // A child of a child that is not traced reads the same file.
        let owner = self.reads.get(&parent).copied().unwrap_or(parent);
        let Some(process) = self.processes.get_mut(&owner) else { return Ok(()) };
        if owner == parent {
            process.freeze(&self.linux, child)?;
        } else {
            process.sharers.push(child);
        }
        self.reads.insert(child, owner);
        self.untraced.push(Untraced {
            process: child,
            start: 0,
            end: 0,
            why: "a forked child, until it executes a program".into(),
        });
        Ok(())
    }

    /// A thread is about to end, its memory still there.
    fn exiting(&mut self, thread: u32, sink: &mut dyn Sink) -> Result<()> {
        let Some(pid) = self.threads.get(&thread).map(|state| state.process) else { return Ok(()) };
        if !self.siblings(pid, thread).is_empty() {
            return Ok(());
        }
        self.drain(sink);
        if let Some(process) = self.processes.get_mut(&pid) {
            let complete = self.accesses.is_some();
            let interval = process.tick(now, complete, true)?;
            let _ = sink.interval(interval);
        }
        self.forget(pid)
    }
}

fn now() -> u64 {
    u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

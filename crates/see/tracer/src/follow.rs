//! The loop of the tracer: stops of threads, questions of mappers, ticks.
//!
//! One thread does everything, because only the thread that traces may. It sleeps until the next tick, a
//! stop (SIGCHLD) or a question.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use pagemill_kernel::maps::Mapping;
use pagemill_kernel::process::same_memory;
use pagemill_kernel::ptrace::{self, FOLLOW, Setup, Stop};
use pagemill_kernel::resident::Decided;
use pagemill_kernel::scheduling::Together;
use pagemill_kernel::seccomp::Answer;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Error, Kind, Linux, Result, clock, heartbeat, poll, seccomp};

use crate::ask::{self, Question};
use crate::attach::pins;
use crate::child::Child;
use crate::convert::{OURS, Origin, Session, convert, in_resident, own_descriptors};
use crate::events::{Events, Rung};
use crate::hold::{SOON, comes_out};
use crate::page_out::PagedOut;
use crate::process::Process;
use crate::trace::{Ended, Options, Sink, Untraced};
use crate::{Granule, PATIENCE};

/// What one fault costs the program, for counting useful time, until more is known.
const FAULT: Duration = Duration::from_nanos(1300);

/// The same where its page comes back from swap.
const PAGED: Duration = Duration::from_nanos(6000);

const HELPERS: &str = "what runs for the tracer in it was killed";

/// Between two looks at servants and mappers.
const LOOK: Duration = Duration::from_secs(1);

/// An interval tells itself after this many times its length even if the program sleeps.
const IDLE: u32 = 10;

/// The interval under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    began: Option<Instant>,
    /// CPU time of the processes when it began.
    cpu: Duration,
    /// Useful time that the budget demands.
    at_least: Duration,
}

/// A traced thread.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The process whose memory it has: its own, or one that it shares the memory with.
    pub(crate) process: u32,
    /// The process that it is a thread of.
    pub(crate) group: u32,
    /// Stopped together with others (`hold`).
    pub(crate) held: bool,
}

/// A program being traced.
pub struct Tracer {
    pub(crate) linux: Linux,
    pub(crate) options: Options,
    pub(crate) session: Session,
    pub(crate) root: u32,
    pub(crate) threads: BTreeMap<u32, Thread>,
    pub(crate) processes: BTreeMap<u32, Process>,
    /// Forked, and not adopted yet.
    pub(crate) children: BTreeMap<u32, Child>,
    /// For these: whose memory file they still read.
    pub(crate) reads: BTreeMap<u32, u32>,
    /// Forks that the sink was not told of.
    pub(crate) parents: Vec<(u32, u32)>,
    /// Threads that will fork, with everything else of their process held, and since when.
    pub(crate) forking: BTreeMap<u32, (u32, Instant)>,
    /// Stops of threads that were to be held, to be looked at when they no longer are.
    pub(crate) deferred: Vec<(u32, Stop)>,
    /// Calls that a mapper had received when it was ended, and those that the tracer received itself.
    pub(crate) unanswered: Vec<Question>,
    /// Threads that come back from a call of theirs, asked to stop, and are to make it again.
    pub(crate) again: BTreeSet<u32>,
    /// Threads that a failure left stopped in the middle of a fork.
    pub(crate) midway: BTreeSet<u32>,
    /// Whether the program has begun to run.
    begun: bool,
    /// All was let go: who stops now is let go too.
    pub(crate) released: bool,
    /// Why all was let go before its time.
    abandoned: Option<String>,
    /// Helpers that had ended when they were looked at last, which is when.
    missed: (Instant, BTreeSet<u32>),
    /// Stopped at their first instruction before their parent told of them.
    early: BTreeSet<u32>,
    /// About to end. One that leads its process is told to have ended only after all others of it.
    pub(crate) leaving: BTreeSet<u32>,
    /// Processes that were looked at because all their threads end.
    ending: BTreeSet<u32>,
    pub(crate) events: Events,
    rung: Rung,
    /// Better ways to be told of faults, and why they are not used.
    not_used: Vec<String>,
    pub(crate) untraced: Vec<Untraced>,
    pub(crate) pace: Pace,
    /// Not started here: signals are for us.
    pub(crate) attached: bool,
    seen: u64,
    seen_at_tick: u64,
    pub(crate) lost: u64,
    /// The sink wants no more.
    pub(crate) full: bool,
    /// Instead of all this: a process that is watched from outside.
    pub(crate) paged: Option<PagedOut>,
    /// Why it is.
    pub(crate) paged_out: Option<String>,
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
        let mut tracer = Self::new(linux, options, 0)?;
        let launched = ptrace::launch(path, arguments, environment, &Setup::default())?;
        let root = launched.pid;
        ptrace::seize(root, FOLLOW)?;
        launched.go()?;
        tracer.root = root;
        tracer.threads.insert(root, Thread { process: root, group: root, held: false });
        tracer.events.follow(root)?;
        loop {
            match ptrace::wait_for(root, PATIENCE)? {
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
        if let Err(error) = tracer.executed(root) {
            // It has not begun, and is not to run unrecorded.
            let _ = signal::send(root, 9);
            return Err(error);
        }
        // What was told so far is of the process that was to become it.
        tracer.events.read(|_| {});
        tracer.begun = true;
        tracer.go_on(root, 0);
        tracer.pace = tracer.start_interval();
        Ok(Ok(tracer))
    }

    /// A tracer of nothing yet.
    pub(crate) fn new(linux: Linux, options: Options, root: u32) -> Result<Self> {
        own_processes(&linux)?;
        let (events, rung, not_used) = Events::best(&linux, options.events.unwrap_or(Rung::Bpf));
        let privileged =
            linux.status(std::process::id())?.can(pagemill_kernel::process::Capability::SysAdmin);
        let session =
            Session { own_fds: own_descriptors()?, listener: None, privileged, keeper: None };
        Ok(Self {
            linux,
            options,
            session,
            root,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            children: BTreeMap::new(),
            reads: BTreeMap::new(),
            parents: Vec::new(),
            forking: BTreeMap::new(),
            deferred: Vec::new(),
            unanswered: Vec::new(),
            again: BTreeSet::new(),
            midway: BTreeSet::new(),
            begun: false,
            released: false,
            abandoned: None,
            missed: (Instant::now(), BTreeSet::new()),
            early: BTreeSet::new(),
            leaving: BTreeSet::new(),
            ending: BTreeSet::new(),
            events,
            rung,
            not_used,
            untraced: Vec::new(),
            pace: Pace::default(),
            attached: false,
            seen: 0,
            seen_at_tick: 0,
            lost: 0,
            full: false,
            paged: None,
            paged_out: None,
            ended: None,
        })
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.root
    }

    /// Ranges whose accesses are not seen.
    pub fn untraced(&self) -> &[Untraced] {
        &self.untraced
    }

    /// How faults are told.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Better ways, and why they are not used.
    pub fn not_used(&self) -> &[String] {
        &self.not_used
    }

    /// How a program's memory is to be changed.
    pub(crate) fn how(&self) -> (Granule, bool) {
        let granule = self.options.granule;
        (granule, granule == Granule::Page && !self.rung.tells_writes())
    }

    /// Accesses that were lost so far.
    pub fn lost(&self) -> Result<u64> {
        match &self.events {
            Events::None => Ok(self.lost),
            events => events.lost(),
        }
    }

    /// Why the program was let go before its end, or before it was asked for.
    pub fn abandoned(&self) -> Option<&str> {
        self.abandoned.as_deref()
    }

    /// Traces until the program has ended, or is let go: after the time that the options say, or, where it
    /// was not started here, by a signal that asks for it. Other signals than SIGCHLD are handed to a
    /// program that was started here. Where tracing fails the program is let go, and runs on by itself.
    pub fn run(&mut self, signals: &Signals, sink: &mut dyn Sink) -> Result<Ended> {
        if let Some(paged) = self.paged.take() {
            return self.run_from_outside(paged, signals, sink);
        }
        let pending = signals.descriptor()?;
        let began = Instant::now();
        let hangs = crate::for_test("PAGEMILL_TEST_HANG");
        self.introduce(sink);
        loop {
            heartbeat::beat();
            while hangs.is_some_and(|after| began.elapsed() >= after) {
                std::thread::sleep(LOOK);
            }
            if let Err(error) = self.round(sink) {
                if self.released {
                    return Err(error);
                }
                self.abandon(&error, sink);
                if self.attached {
                    return Ok(Ended::LetGo);
                }
            }
            if let Some(ended) = self.ended
                && self.threads.is_empty()
            {
                self.drain(sink);
                return Ok(ended);
            }
            let mut wait = Duration::from_secs(1);
            if !self.released {
                // The ring must not fill up meanwhile.
                wait = self.left().clamp(Duration::from_micros(200), Duration::from_millis(5));
            }
            let mut descriptors: Vec<BorrowedFd<'_>> = vec![pending.as_fd()];
            descriptors.extend(self.processes.values().map(|process| process.wake.as_fd()));
            if let Some((listener, _)) = &self.session.listener
                && self.receives()
            {
                descriptors.push(listener.as_fd());
            }
            poll::sleep(&descriptors, wait)?;
            let over = |limit: Duration| began.elapsed() >= limit;
            let mut stop = self.full || self.options.duration.is_some_and(over);
            while let Some(received) = signals.wait(Duration::ZERO)? {
                if self.attached {
                    stop |= signal::ENDS.contains(&received.signal);
                } else if received.signal != signal::CHILD && !received.from_kernel {
                    // It may have ended a moment ago.
                    let _ = signal::send(self.root, received.signal);
                }
            }
            if stop && !self.released {
                self.lost = self.lost()?;
                if let Err(error) = self.let_go(sink) {
                    self.abandon(&error, sink);
                }
                if self.attached {
                    return Ok(Ended::LetGo);
                }
            }
        }
    }

    /// Says why all is let go.
    pub(crate) fn released_because(&mut self, error: &Error) {
        let why = format!("let go before its end: {error}");
        self.untraced.push(Untraced { process: self.root, start: 0, end: 0, why });
        self.abandoned.get_or_insert_with(|| error.to_string());
    }

    /// What has come to be done meanwhile.
    fn round(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.take_stops(sink)?;
        if self.released {
            return Ok(());
        }
        self.receive();
        self.questions(sink)?;
        self.hurry_forks();
        self.look_after_helpers()?;
        self.drain(sink);
        if self.left().is_zero() && !(self.ended.is_some() && self.threads.is_empty()) {
            self.tick(sink)?;
            self.adopt(sink)?;
        }
        Ok(())
    }

    /// Who answers when we are gone.
    pub(crate) fn tell_keeper(&self) {
        if let Some(keeper) = &self.session.keeper {
            keeper.tell(self.processes.values().filter_map(|process| process.mapper));
        }
    }

    /// Whether the tracer receives calls itself, because no mapper does.
    fn receives(&self) -> bool {
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
            self.unanswered.extend(seccomp::receive(listener).as_ref().map(Question::of));
        }
    }

    /// A servant or mapper that has ended, while its program has not, answers nobody any more.
    fn look_after_helpers(&mut self) -> Result<()> {
        let gone =
            |pid: u32| Err(Error::new(Kind::Gone, "trace", format_args!("process {pid}"), HELPERS));
        if let Some(process) = self.processes.values().find(|process| process.revived) {
            return gone(process.pid);
        }
        if self.missed.0.elapsed() < LOOK {
            return Ok(());
        }
        let lives =
            |pid: u32| self.linux.stat(pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'));
        let alone = |process: &&Process| !process.awake() && lives(process.pid);
        let missed: BTreeSet<u32> =
            self.processes.values().filter(alone).map(|process| process.pid).collect();
        let (_, before) = std::mem::replace(&mut self.missed, (Instant::now(), missed));
        match before.intersection(&self.missed.1).next() {
            // All of a process are killed at once: at the second look its own threads are gone, too.
            Some(&pid) => gone(pid),
            None => Ok(()),
        }
    }

    /// What threads have to say.
    fn take_stops(&mut self, sink: &mut dyn Sink) -> Result<()> {
        loop {
            let free = |(thread, _): &(u32, Stop)| {
                self.threads.get(thread).is_none_or(|state| !state.held)
            };
            let next = match self.deferred.iter().position(free) {
                Some(at) => Some(self.deferred.remove(at)),
                None => ptrace::poll()?,
            };
            let Some((thread, stop)) = next else { return Ok(()) };
            self.stopped(thread, stop, sink)?;
        }
    }

    /// Tells of processes that were not told of yet.
    fn introduce(&mut self, sink: &mut dyn Sink) {
        for (parent, child) in std::mem::take(&mut self.parents) {
            let _ = sink.forked(parent, child);
        }
        for (pid, process) in &mut self.processes {
            let original = std::mem::take(&mut process.original);
            if !original.is_empty() {
                let _ = sink.process(*pid, &original);
            }
        }
    }

    /// Hands events on.
    pub(crate) fn drain(&mut self, sink: &mut dyn Sink) {
        let (seen, full) = (&mut self.seen, &mut self.full);
        self.events.read(|access| {
            *seen += 1;
            *full |= sink.access(&access).is_err();
        });
    }

    /// CPU time of the traced processes so far. One that has just ended counts no more.
    fn cpu(&self) -> Duration {
        let outside = self.paged_out.as_ref().map(|_| &self.root);
        let followed = self.processes.keys().chain(self.children.keys()).chain(outside);
        followed.filter_map(|&pid| clock::of_process(pid).ok()).sum()
    }

    pub(crate) fn start_interval(&self) -> Pace {
        Pace { began: Some(Instant::now()), cpu: self.cpu(), at_least: self.pace.at_least }
    }

    /// Faults of this interval, by what is known of them.
    fn faults(&self) -> u64 {
        self.seen - self.seen_at_tick
    }

    /// How much of the interval is left, in useful time: the time that the program ran, without what its
    /// faults cost. One that sleeps is looked at now and then all the same.
    pub(crate) fn left(&self) -> Duration {
        let wall = self.pace.began.map_or(Duration::MAX, |began| began.elapsed());
        let interval = self.options.interval.max(self.pace.at_least);
        if wall >= interval * IDLE {
            return Duration::ZERO;
        }
        let ran = self.cpu().saturating_sub(self.pace.cpu).min(wall);
        let fault = if self.paged_out.is_some() { PAGED } else { FAULT };
        let cost = fault * u32::try_from(self.faults()).unwrap_or(u32::MAX);
        interval.saturating_sub(ran.saturating_sub(cost))
    }

    fn tick(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let began = Instant::now();
        let complete = self.rung != Rung::Scan;
        let mut pages = 0;
        let mut intervals = Vec::new();
        for process in self.processes.values_mut() {
            match process.tick(now, false) {
                Ok(interval) => intervals.push(interval),
                // It ends at this very moment: its last scan is made when its last thread stops.
                Err(error) if error.kind() == pagemill_kernel::Kind::Gone => {}
                Err(error) => return Err(error),
            }
        }
        // Faults until the end of an interval are told before it.
        self.drain(sink);
        for interval in intervals {
            pages += interval.touched.iter().map(|pages| pages.1 - pages.0).sum::<u64>() / 4096;
            self.full |= sink.interval(interval).is_err();
        }
        let seen = if complete { self.faults() } else { pages };
        if let Some(budget) = self.options.budget {
            // What this interval cost, over its useful time, shall stay below the budget.
            let cost = began.elapsed() + FAULT * u32::try_from(seen).unwrap_or(u32::MAX);
            self.pace.at_least = cost.div_f64((budget - 1.0).max(0.01));
        }
        self.next_interval();
        Ok(())
    }

    pub(crate) fn next_interval(&mut self) {
        self.seen_at_tick = self.seen;
        self.pace = self.start_interval();
    }

    pub(crate) fn questions(&mut self, sink: &mut dyn Sink) -> Result<()> {
        for question in std::mem::take(&mut self.unanswered) {
            if question.number != ask::LOG && !self.question(None, &question, sink)? {
                self.unanswered.push(question);
            }
        }
        let asking: Vec<(u32, Question)> = self
            .processes
            .iter()
            .filter_map(|(pid, process)| Some((*pid, process.question()?)))
            .collect();
        for (pid, question) in asking {
            if self.question(Some(pid), &question, sink)? {
                self.answered(pid);
            }
        }
        for process in self.processes.values() {
            poll::clear(&process.wake);
        }
        Ok(())
    }

    /// Answers what the mapper of `asked` asks, or one that was ended; `false`: not now. Any mapper may
    /// receive the calls of every process.
    fn question(
        &mut self,
        asked: Option<u32>,
        question: &Question,
        sink: &mut dyn Sink,
    ) -> Result<bool> {
        let caller = self.threads.get(&question.thread);
        // One that shares the memory is none of the process that its mapper knows.
        let shares = caller.is_some_and(|thread| thread.group != thread.process);
        let caller = caller.map(|thread| thread.process);
        let own = if question.number == ask::LOG { asked } else { caller.or(asked) };
        let pid = own.unwrap_or(0);
        if (asked != Some(pid) || shares)
            && question.number != ask::LOG
            && let Some(process) = self.processes.get(&pid)
        {
            match process.decide(question, false)? {
                Decided::Busy => return Ok(false),
                Decided::Answered => return Ok(true),
                Decided::Left => {}
            }
        }
        let forks = self.processes.get(&pid).is_some_and(|process| process.forks(question));
        if forks {
            // The child's memory could not be parted from its parent's.
            if self.processes.get(&pid).is_some_and(|process| !process.awake()) {
                self.unanswered.push(*question);
                let object = format!("process {pid}");
                return Err(Error::new(Kind::Gone, "trace", object, HELPERS));
            }
            self.hold_others(pid, question.thread);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.note_words(question);
            }
        }
        let own_fds = u64::from(self.session.own_fds);
        let answer = match self.processes.get_mut(&pid) {
            // The listener must survive until the child executes. Programs that are told so close one by
            // one, which the filter lets them do with all descriptors but ours.
            None if question.number == ask::CLOSE_RANGE && question.argument[1] >= own_fds => {
                Answer::Return(ask::NO_SUCH_CALL)
            }
            None => match self.children.get_mut(&pid) {
                Some(child) => child.answer(&self.linux, question)?,
                None => Answer::GoOn,
            },
            Some(process) => match question.number {
                ask::LOG => {
                    let logged = process.control.take_log();
                    process.left(logged);
                    Answer::GoOn
                }
                ask::MMAP | ask::MREMAP => match process.own_file(question)? {
                    Decided::Busy => return Ok(false),
                    Decided::Answered => return Ok(true),
                    Decided::Left => {
                        let (answer, untraced) = process.map_apart(question)?;
                        self.untraced.extend(untraced);
                        answer
                    }
                },
                ask::MPROTECT => process.protect(question)?,
                ask::MADVISE => process.advise(question)?,
                ask::EXECVE | ask::EXECVEAT if shares => Answer::GoOn,
                ask::EXECVE | ask::EXECVEAT => {
                    // Its memory is about to go. If the call fails, this was a short interval.
                    let _ = sink.interval(process.tick(now, false)?);
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
        Ok(true)
    }

    fn answered(&self, asked: u32) {
        if let Some(process) = self.processes.get(&asked) {
            process.control.answered();
        }
    }

    pub(crate) fn stopped(&mut self, thread: u32, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
        let done = self.says(thread, stop, sink);
        if done.is_err()
            && let Some(state) = self.threads.get_mut(&thread)
        {
            // It stays stopped.
            state.held = true;
        }
        done
    }

    fn says(&mut self, thread: u32, stop: Stop, sink: &mut dyn Sink) -> Result<()> {
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
            Stop::Exited(status) => self.gone(thread, Ended::Exited(status)),
            Stop::Killed(signal) => self.gone(thread, Ended::Killed(signal)),
            Stop::Exec => {
                // Called by another thread than the first, it goes on as the first.
                let Ok(was) = ptrace::message(thread).map(|number| number as u32) else {
                    return Ok(());
                };
                if was != thread {
                    self.threads.remove(&was);
                }
                if let Some(child) = self.children.get_mut(&thread) {
                    // Seen before it executed the program.
                    let _ = sink.interval(child.interval(false)?);
                }
                if let Err(error) = self.executed(thread) {
                    self.untouched(thread, &error);
                }
                self.introduce(sink);
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Fork | Stop::Vfork | Stop::Clone => {
                // One that was killed meanwhile says so next.
                let Ok(child) = ptrace::message(thread).map(|number| number as u32) else {
                    return Ok(());
                };
                if let Err(error) = self.born(thread, child, stop) {
                    // Both stay stopped. A child whose memory could not be parted from its parent's does not run.
                    self.midway.insert(thread);
                    if let Some(state) = self.threads.get_mut(&child) {
                        state.held = true;
                    }
                    let shared = |mapping: &Mapping| {
                        mapping.shared && mapping.name.starts_with(OURS) && !in_resident(mapping)
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
            Stop::Exit => {
                self.exiting(thread, sink)?;
                self.go_on(thread, 0);
                Ok(())
            }
            Stop::Interrupted => {
                self.fork_is_over(thread);
                let pid = self.threads.get(&thread).map_or(0, |state| state.process);
                // It could not stop when the others were held.
                let late = self.forking.values().any(|(process, _)| *process == pid);
                match self.threads.get_mut(&thread) {
                    Some(_) if late && comes_out(thread) => {}
                    Some(state) if late => state.held = true,
                    _ => self.go_on(thread, 0),
                }
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
            Stop::SystemCall | Stop::Filtered | Stop::Other(_) => {
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
    fn forget(&mut self, pid: u32) -> Result<()> {
        if let Some(process) = self.processes.remove(&pid) {
            self.untraced.extend(process.untraced());
            self.unanswered.extend(process.dismiss(&self.linux));
            self.tell_keeper();
        }
        self.children.remove(&pid);
        self.ending.remove(&pid);
        self.events.leave(pid);
        self.no_longer_reads(pid)
    }

    /// A child does not read its parent's file any more: the parent may write it again.
    pub(crate) fn no_longer_reads(&mut self, child: u32) -> Result<()> {
        let Some(parent) = self.reads.remove(&child) else { return Ok(()) };
        let Some(process) = self.processes.get_mut(&parent) else { return Ok(()) };
        process.sharers.retain(|sharer| *sharer != child);
        if !process.sharers.is_empty() || !process.frozen() {
            return Ok(());
        }
        // Somebody forks just now: then its child reads the file next.
        if self.forking.values().any(|(process, _)| *process == parent) {
            return Ok(());
        }
        // Nor are pages replaced that the kernel holds: the memory stays frozen.
        if !matches!(pins(&self.linux, parent, Some(process.own_fds)), Ok(None)) {
            return Ok(());
        }
        let threads = self.siblings(parent, 0);
        if self.hold(&threads, SOON)
            && let Some(process) = self.processes.get_mut(&parent)
        {
            process.thaw(&self.linux)?;
        }
        // One that could not be stopped keeps the memory frozen until the next child has gone.
        self.release(parent);
        Ok(())
    }

    /// A new program: its memory becomes ours. `thread` is stopped at the event.
    fn executed(&mut self, thread: u32) -> Result<()> {
        self.forget(thread)?;
        // Its number may have been that of a thread that has just ended.
        self.leaving.remove(&thread);
        self.threads.retain(|other, state| state.process != thread || *other == thread);
        self.threads.insert(thread, Thread { process: thread, group: thread, held: false });
        // Some twenty times it does something for us and we wait for it.
        let mut together = Together::with(thread);
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
        let how = self.how();
        let mut process = convert(
            &self.linux,
            &mut self.session,
            (thread, thread),
            &Origin::Executed,
            how,
            &mut self.untraced,
        )?;
        if let Some(together) = &mut together {
            together.also(process.servant);
            process.mapper.into_iter().for_each(|mapper| together.also(mapper));
        }
        drop(together);
        process.began = now();
        self.processes.insert(thread, process);
        self.tell_keeper();
        if !self.session.privileged && gains_privileges(&self.linux, thread) {
            let why = "executed a program that gains privileges, which it does not while it is traced by a user";
            self.untraced.push(Untraced { process: thread, start: 0, end: 0, why: why.into() });
        }
        Ok(())
    }

    /// A program that was executed and whose memory could not become ours runs as it is.
    fn untouched(&mut self, pid: u32, error: &Error) {
        self.events.leave(pid);
        if error.kind() != Kind::Gone {
            let why = format!("a program that it executed is not traced: {error}");
            self.untraced.push(Untraced { process: pid, start: 0, end: 0, why });
        }
    }

    /// A thread or a child.
    fn born(&mut self, parent: u32, child: u32, stop: Stop) -> Result<()> {
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
                "it shares the memory of process {owner}, whose pages those that it touches are; its accesses are not told one by one"
            );
            self.untraced.push(Untraced { process: group, start: 0, end: 0, why });
        }
        if !of_parent && !shares {
            self.forked(owner, (parent, child))?;
        }
        self.go_on(child, 0);
        Ok(())
    }

    /// A thread is about to end, its memory still there.
    fn exiting(&mut self, thread: u32, sink: &mut dyn Sink) -> Result<()> {
        let Some(pid) = self.threads.get(&thread).map(|state| state.process) else { return Ok(()) };
        // The last to say so still has the memory.
        self.leaving.insert(thread);
        let mut silent = self.siblings(pid, thread);
        silent.retain(|other| !self.leaving.contains(other));
        if !silent.is_empty() {
            // One that is killed while it ends says nothing: then this is the last look there is.
            if silent.iter().all(|other| self.linux.is_ending(*other)) && self.ending.insert(pid) {
                self.drain(sink);
                if let Some(Ok(interval)) =
                    self.processes.get_mut(&pid).map(|it| it.tick(now, false))
                {
                    self.drain(sink);
                    let _ = sink.interval(interval);
                }
            }
            return Ok(());
        }
        self.drain(sink);
        if let Some(process) = self.processes.get_mut(&pid) {
            let interval = process.tick(now, true)?;
            self.drain(sink);
            let _ = sink.interval(interval);
        } else if let Some(child) = self.children.get_mut(&pid) {
            let _ = sink.interval(child.interval(true)?);
        }
        self.forget(pid)
    }
}

/// Processes are looked at by the numbers that they have here.
fn own_processes(linux: &Linux) -> Result<()> {
    let myself = std::fs::read_link(linux.path("/proc/self"));
    if myself.is_ok_and(|link| link.as_os_str() == OsStr::new(&std::process::id().to_string())) {
        return Ok(());
    }
    let why = "it shows the processes of another PID namespace";
    Err(Error::new(Kind::Unsupported, "trace processes by", "/proc", why)
        .advise("mount one of this namespace: mount -t proc proc /proc, or unshare --mount-proc"))
}

/// Whether the program that a process executes is set-user-ID or set-group-ID.
fn gains_privileges(linux: &Linux, pid: u32) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::metadata(linux.process_file(pid, "exe"));
    metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o6000 != 0)
}

pub(crate) fn now() -> u64 {
    u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

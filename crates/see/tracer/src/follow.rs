//! The loop of the tracer: stops of threads, notifications of system calls, ticks.
//!
//! One thread does everything, because only the thread that traces may. It sleeps until the next tick, a
//! stop (SIGCHLD) or a notification.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use pagemill_kernel::process::ptrace::{self, FOLLOW, Setup, Stop};
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Error, Kind, Linux, Result, poll, process::heartbeat};
use pagemill_model::Pid;

use crate::PATIENCE;
use crate::events::FaultSource;
use crate::process::Process;
use crate::trace::{Ended, Options, Sink};
use crate::tracer::{FAULT, HELPERS, Thread, Tracer};

/// Between two looks at injectors and mappers.
const LOOK: Duration = Duration::from_secs(1);

impl Tracer {
    /// Starts `path` with these arguments (the first is its name) and environment, traced. `Err` of the
    /// inner result: it cannot be executed, and why.
    ///
    /// # Errors
    /// The program cannot be traced.
    pub fn launch(
        linux: Linux,
        options: Options,
        path: &CString,
        arguments: &[CString],
        environment: &[CString],
    ) -> Result<std::result::Result<Self, std::io::Error>> {
        let mut tracer = Self::new(linux, options, Pid(0))?;
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

    /// Traces until the program has ended, or is let go: after the time that the options say, or, where it
    /// was not started here, by a signal that asks for it. Other signals than SIGCHLD are handed to a
    /// program that was started here. Where tracing fails the program is let go, and runs on by itself.
    ///
    /// # Errors
    /// Tracing failed, or what the sink returned.
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
            // The end of one that was let go by itself and is no child of ours is not told.
            if self.attached && self.threads.is_empty() {
                self.drain(sink);
                return Ok(Ended::LetGo);
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
            let deserted = self.deserted();
            let mut stop = deserted || self.full || self.options.duration.is_some_and(over);
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
            }
            // Whose status could be passed on, to nobody.
            if self.released && (deserted || stop && self.attached) {
                return Ok(Ended::LetGo);
            }
        }
    }

    /// Who supervises us was killed.
    pub(crate) fn deserted(&self) -> bool {
        self.options.supervisor.is_some_and(|supervisor| !supervisor.lives())
    }

    /// What has come to be done meanwhile.
    fn round(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.take_stops(sink)?;
        if self.released {
            return Ok(());
        }
        self.receive();
        self.notifications(sink)?;
        self.withdraw_all(sink)?;
        self.hurry_forks();
        self.look_after_helpers()?;
        self.drain(sink);
        if self.left().is_zero() && !(self.ended.is_some() && self.threads.is_empty()) {
            self.tick(sink)?;
            self.adopt(sink)?;
            self.thaw_late()?;
        }
        Ok(())
    }

    /// An injector or mapper that has ended, while its program has not, answers nobody any more.
    fn look_after_helpers(&mut self) -> Result<()> {
        let gone =
            |pid: Pid| Err(Error::new(Kind::Gone, "trace", format_args!("process {pid}"), HELPERS));
        if let Some(process) = self.processes.values().find(|process| process.revived) {
            return gone(process.pid);
        }
        if self.missed.0.elapsed() < LOOK {
            return Ok(());
        }
        let lives =
            |pid: Pid| self.linux.stat(pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'));
        let alone = |process: &&Process| !process.awake() && lives(process.pid);
        let missed: BTreeSet<Pid> =
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
            let free = |(thread, _): &(Pid, Stop)| {
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

    fn tick(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let began = Instant::now();
        let complete = self.source != FaultSource::Scan;
        let mut pages = 0;
        let mut intervals = Vec::new();
        for process in self.processes.values_mut() {
            match process.tick(false) {
                Ok(interval) => intervals.push(interval),
                // It ends at this very moment: its last scan is made when its last thread stops.
                Err(error) if error.kind() == pagemill_kernel::Kind::Gone => {}
                Err(error) => return Err(error),
            }
        }
        // Faults until the end of an interval are told before it.
        self.drain(sink);
        for interval in intervals {
            pages += interval.touched.iter().map(|pages| pages.bytes()).sum::<u64>() / 4096;
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
}

//! A running process, looked at by the recorders of `record`, whose events nobody keeps.
//!
//! Recorders walk page tables, which holds the process up where it maps memory meanwhile: one that took long is asked
//! again after [`REST`] times as long at the earliest. A recorder that cannot work here is left out, with its reason.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pagemill_kernel::process::Stat;
use pagemill_kernel::{Linux, clock, process::signal};
use pagemill_launch::context;
use pagemill_model::fault::SUM;
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{Nanos, Pid};
use pagemill_record::recorders::{
    Options, Process, RECORDERS, Recorder, RecorderKind, Start, faults,
};

use super::{Condition, Feed};
use crate::state::State;
use crate::state::faults::STALL;

/// So many times as long as it took, a recorder rests.
const REST: u32 = 20;
/// Time between two samples of the accesses of a thread.
const PERIOD: Nanos = Nanos(4_000_000);

/// Time between two moments at which pages are marked as not accessed: at first, and at the most. Each is twice as long
/// as the one before, so that what a command fills its memory with is soon not taken for what it uses.
const WINDOW: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The next access to a page that is marked costs the process about a microsecond: the time is at least so many times
/// that, for all of its pages, and so it loses half a percent at the most.
const PER_PAGE: Duration = Duration::from_micros(200);

/// Whether it wants the first instruction of a program that is started: then it is attached before the others.
fn is_early(kind: &RecorderKind) -> bool {
    matches!(kind.start, Start::Suspended)
}

/// The recorders that panes are drawn of, with what each is for: those that are early, or the others.
fn recorders(early: bool) -> impl Iterator<Item = (&'static RecorderKind, &'static str)> {
    let of_panes = RECORDERS.iter().filter_map(|kind| Some((kind, kind.pane?)));
    of_panes.filter(move |(kind, _)| is_early(kind) == early)
}

/// A recorder, and when it looks next.
struct Timed {
    recorder: Box<dyn Recorder>,
    pane: &'static str,
    /// Recorders that fetch what the kernel has gathered keep their own interval.
    own: Option<Duration>,
    due: Instant,
}

/// A process whose first recorders are attached; a program that is started may still be suspended.
pub struct Attaching {
    linux: Linux,
    process: Process,
    interval: Duration,
    recorders: Vec<Timed>,
    lacks: Vec<NotMeasured>,
}

/// A process that is looked at.
pub struct Attached {
    linux: Linux,
    stat: Stat,
    writer: Writer,
    recorders: Vec<Timed>,
    lacks: Vec<NotMeasured>,
    interval: Duration,
    child: Option<Child>,
    ended: Option<String>,
    /// When pages are marked as not accessed next, and how long after that the next time is; never where they may not
    /// be.
    mark: Option<(Instant, Duration)>,
}

impl Attaching {
    /// Attaches what wants to see the beginning.
    pub fn begin(linux: &Linux, process: Process, interval: Duration) -> Self {
        let mut attaching = Self {
            linux: linux.clone(),
            process,
            interval,
            recorders: Vec::new(),
            lacks: Vec::new(),
        };
        for (kind, pane) in recorders(true) {
            // What cannot be measured here is said, and the rest is shown.
            if let Err(error) = attaching.add(kind, pane) {
                attaching.lack(pane, &error);
            }
        }
        attaching
    }

    fn lack(&mut self, pane: &str, error: &anyhow::Error) {
        self.lacks.push(NotMeasured { what: pane.into(), why: format!("{error:#}") });
    }

    fn add(&mut self, kind: &RecorderKind, pane: &'static str) -> Result<()> {
        let options = Options {
            interval: self.interval,
            faults: faults::Options {
                threshold: Nanos(STALL.0 / 10),
                sum: Some(SUM),
                back_end: None,
                interval: self.interval,
            },
            period: PERIOD,
            // What is looked at is never put on the heap for it.
            own_malloc: true,
            marks: true,
        };
        if let Some(recorder) = (kind.attach)(&self.linux, self.process, &options)? {
            let own = is_early(kind).then(|| recorder.interval());
            self.recorders.push(Timed { recorder, pane, own, due: Instant::now() });
        }
        Ok(())
    }

    /// Attaches the rest.
    ///
    /// # Errors
    /// There is no such process, it is a thread of the kernel, or it may not be looked into.
    pub fn join(mut self) -> Result<Attached> {
        let pid = self.process.pid;
        let stat = self.linux.living(pid)?;
        if stat.kernel_thread {
            let comm = stat.comm;
            bail!("process {pid} ({comm}) is a thread of the kernel: it has no memory of its own");
        }
        for (kind, pane) in recorders(false) {
            match self.add(kind, pane) {
                Ok(()) => {}
                // A command may have ended by now: that is no error of ours.
                Err(error) if pane == "memory" && !self.process.started => return Err(error),
                Err(error) => self.lack(pane, &error),
            }
        }
        let mut meta = Meta {
            pid: stat.pid.into(),
            comm: stat.comm.clone(),
            interval: Nanos::from(self.interval),
            ..context::meta(&self.linux)
        };
        self.recorders.iter().for_each(|timed| timed.recorder.begin(&mut meta));
        let Self { linux, recorders, lacks, interval, .. } = self;
        let writer = Writer::passing(meta);
        Ok(Attached {
            linux,
            stat,
            writer,
            recorders,
            lacks,
            interval,
            child: None,
            ended: None,
            mark: Some((Instant::now(), WINDOW.0)),
        })
    }
}

impl Attached {
    /// The same, of a command that was started for it.
    pub fn of(self, child: Child) -> Self {
        Self { child: Some(child), ..self }
    }

    /// The command.
    pub fn into_child(self) -> Option<Child> {
        self.child
    }

    /// Marks pages as not accessed, if it is time to. Recorders have looked before, and read files of the program for
    /// it: those pages count as accessed, too.
    fn begin_window(&mut self, state: &mut State) {
        let Some((_, length)) = self.mark.filter(|(due, _)| Instant::now() >= *due) else { return };
        for timed in &mut self.recorders {
            // What cannot be read now is said by the next look, if it lasts.
            let _ = timed.recorder.before_marks(&mut self.writer);
        }
        self.pass(state);
        match self.linux.clear_referenced(self.stat.pid) {
            Ok(()) => {
                state.heat.begin_window(Nanos::from(clock::monotonic()));
                let length = length.max(state.heat.pages() * PER_PAGE);
                self.mark = Some((Instant::now() + length, (2 * length).min(WINDOW.1)));
            }
            // What is sampled is shown all the same.
            Err(error) => {
                self.mark = None;
                self.lacks.push(NotMeasured { what: "heat".into(), why: format!("{error:#}") });
            }
        }
    }

    /// It is known by the name of the program that it has executed last.
    fn name(&mut self) {
        if let Ok(stat) = self.linux.stat(self.stat.pid)
            && stat.comm != self.writer.meta().comm
        {
            self.writer.meta_mut().comm = stat.comm;
        }
    }

    /// Hands over what the recorders wrote.
    fn pass(&mut self, state: &mut State) {
        for event in self.writer.take() {
            state.event(&event, self.writer.meta());
        }
        state.at(Nanos::from(clock::monotonic()));
    }

    /// How it ended, if it has.
    fn ending(&mut self) -> Option<String> {
        if let Some(child) = &mut self.child {
            let status = child.try_wait().ok().flatten()?;
            return Some(match status.code() {
                Some(code) => format!("ended with {code}"),
                None => format!("ended: {status}"),
            });
        }
        (!self.linux.runs(&self.stat)).then(|| "ended".to_owned())
    }
}

impl Feed for Attached {
    fn due(&self) -> Instant {
        let next = self.recorders.iter().map(|timed| timed.due).min();
        next.unwrap_or_else(|| Instant::now() + self.interval)
    }

    fn refresh(&mut self, state: &mut State) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let interval = self.interval;
        let mut failed = Vec::new();
        for timed in &mut self.recorders {
            let begun = Instant::now();
            if timed.due > begun {
                continue;
            }
            if let Err(error) = timed.recorder.collect(&mut self.writer) {
                failed.push((timed.pane, format!("{error:#}")));
            }
            let rest = begun.elapsed() * REST;
            timed.due = begun + timed.own.unwrap_or(interval).max(rest);
        }
        self.pass(state);
        self.ended = self.ending();
        if self.ended.is_none() {
            self.begin_window(state);
            self.name();
            for (pane, why) in failed {
                self.recorders.retain(|timed| timed.pane != pane);
                self.lacks.push(NotMeasured { what: pane.into(), why });
            }
        }
        Ok(())
    }

    fn flush(&mut self, state: &mut State) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        // What cannot be read now is said by the next look, if it lasts.
        for timed in &mut self.recorders {
            let _ = timed.recorder.flush(&mut self.writer);
        }
        self.pass(state);
        Ok(())
    }

    fn meta(&self) -> &Meta {
        self.writer.meta()
    }

    fn lacks(&self) -> Vec<NotMeasured> {
        self.lacks.clone()
    }

    fn condition(&self) -> Condition {
        match &self.ended {
            Some(words) => Condition { words: words.clone(), over: true },
            None => Condition { words: "running".into(), over: false },
        }
    }

    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        let soon = Instant::now() + interval;
        self.recorders.iter_mut().for_each(|timed| timed.due = timed.due.min(soon));
    }

    fn pass_on(&mut self, signal: i32) {
        if let Some(child) = &self.child {
            // It may have ended a moment ago.
            let _ = signal::send(Pid(child.id()), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pane_has_a_recorder_that_there_is() {
        let all =
            |early| recorders(early).map(|(kind, pane)| (kind.name, pane)).collect::<Vec<_>>();
        assert_eq!(all(true), [("faults", "faults"), ("accesses", "heat")]);
        let later = [("heap", "memory"), ("hugepages", "mappings"), ("frag", "frag")];
        assert_eq!(all(false), later);
    }
}

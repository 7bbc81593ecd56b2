//! A recording in the making: recorders begin with a program or come to a running one, and each looks at its own
//! moments until the process ends, the time is over or a signal asks to stop.
//!
//! ```text
//!  start ── suspended, or with a library ──► attach ──► Session::run ── collect, collect, … ──► finish
//! ```
//!
//! Always true: a signal that a program should get is passed on to it; one that is late looks at the next moment of its
//! raster, and counts those that it skipped.

use std::ffi::OsString;
use std::process::{Child, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, Result};
use pagemill_kernel::Linux;
use pagemill_kernel::process::Stat;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::suspended::Suspended;
use pagemill_launch::exit::Exit;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::progress::Progress;
use pagemill_launch::supervise;
use pagemill_model::Pid;
use pagemill_model::recording::{Meta, Writer};

use crate::recorders::{Options, Process, Recorder, RecorderKind, Start};

/// Those of one recording, in the order in which they were asked for.
pub type Recorders = Vec<Box<dyn Recorder>>;

/// A command, or why there is none.
pub enum Launched {
    /// It runs.
    Running(Child),
    /// Not started; the reason has been said.
    Refused(Exit),
}

/// Starts a command as its recorders want it started. Those that want its first instruction are attached while it is
/// suspended. `heap`: the configuration of our heap for recorders that want the command on it; none where it keeps its
/// own malloc.
///
/// # Errors
/// A suspended program cannot be let go on.
pub fn launch(
    words: &[OsString],
    heap: Option<Option<String>>,
    kinds: &[&'static RecorderKind],
    (options, signals): (&Options, &Signals),
    recorders: &mut Recorders,
) -> Result<Launched> {
    let starts = || kinds.iter().map(|kind| kind.start);
    let on_heap = starts().any(|start| matches!(start, Start::OnHeap));
    let prepared = match heap.filter(|_| on_heap) {
        Some(heap) => prepared_on_heap(words, heap),
        None => prepare::plain(words),
    };
    let (mut command, path) = match prepared {
        Ok(Prepared::Ready(command, path)) => (*command, path),
        Ok(Prepared::Refused(exit)) => return Ok(Launched::Refused(exit)),
        Err(error) => {
            notice!("{error:#}");
            return Ok(Launched::Refused(Exit::WrapperFailed));
        }
    };
    let refused = |error: anyhow::Error| {
        notice!("nothing is recorded: {error:#}");
        Ok(Launched::Refused(Exit::WrapperFailed))
    };
    signals.restore_in(&mut command);
    let linux = pagemill_launch::context::machine();
    for start in starts() {
        if let Start::With(add) = start {
            match add(&linux, &path, &mut command) {
                Ok(recorder) => recorders.push(recorder),
                Err(error) => return refused(error),
            }
        }
    }
    let spawned = if starts().any(|start| matches!(start, Start::Suspended)) {
        match Suspended::spawn(command) {
            Ok(Ok(suspended)) => {
                let process = Process { pid: suspended.pid(), started: true };
                let is_suspended = |kind: &&&RecorderKind| matches!(kind.start, Start::Suspended);
                for kind in kinds.iter().filter(is_suspended) {
                    match (kind.attach)(&linux, process, options) {
                        Ok(recorder) => recorders.extend(recorder),
                        Err(error) => return refused(error),
                    }
                }
                suspended.release()
            }
            Ok(Err(error)) => Err(error),
            Err(error) => {
                notice!("{error:#}");
                return Ok(Launched::Refused(Exit::WrapperFailed));
            }
        }
    } else {
        command.spawn()
    };
    Ok(match spawned {
        Ok(child) => Launched::Running(child),
        Err(error) => Launched::Refused(prepare::cannot_execute(&path, &error)),
    })
}

fn prepared_on_heap(words: &[OsString], heap: Option<String>) -> Result<Prepared> {
    let config = prepare::configuration(heap)?;
    let prepared = prepare::prepare(words, &config)?;
    if matches!(prepared, Prepared::Ready(..)) {
        notice!(
            "the command runs on pagemill's heap ({config}), in place of its own malloc (to record that: \
             --heap none)"
        );
    }
    Ok(prepared)
}

/// Adds the recorders that were asked for to those that were attached while the program was suspended, or are part of
/// its command; what they know by now goes into the header.
///
/// # Errors
/// The process may not be looked into.
pub fn attach(
    linux: &Linux,
    process: Process,
    kinds: &[&'static RecorderKind],
    options: &Options,
    (meta, recorders): (&mut Meta, &mut Recorders),
) -> Result<()> {
    for kind in kinds {
        let attached = matches!(kind.start, Start::Suspended | Start::With(_)) && process.started;
        if !attached {
            recorders.extend((kind.attach)(linux, process, options)?);
        }
    }
    recorders.iter().for_each(|recorder| recorder.begin(meta));
    Ok(())
}

/// How much each recorder has, in words.
pub fn amount(recorders: &Recorders) -> String {
    recorders.iter().map(|recorder| recorder.amount()).collect::<Vec<_>>().join(", ")
}

/// Whom a recording is of, and until when.
pub struct Session<'a> {
    /// The machine.
    pub linux: &'a Linux,
    /// The process, as it was at the beginning.
    pub stat: &'a Stat,
    /// What is passed on to a child, or ends the recording of a process that is none.
    pub signals: &'a Signals,
    /// When it is over.
    pub end: Option<Instant>,
}

impl Session<'_> {
    /// Records until the process ends, the time is over or a signal asks to stop, and has the recorders write what is
    /// left. The status of `child` if it has ended.
    ///
    /// # Errors
    /// What was recorded cannot be written, or the child not waited for.
    pub fn run(
        &self,
        mut child: Option<&mut Child>,
        recorders: &mut Recorders,
        writer: &mut Writer,
    ) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        let mut due = vec![begun; recorders.len()];
        let mut progress = Progress::new("recording");
        let mut status = None;
        loop {
            collect_due(recorders, &mut due, writer)?;
            if !progress.is_hidden() {
                progress.say(&format!("{}, {}", amount(recorders), writer.size().plain()));
            }
            if child.is_none() && !self.lives() {
                break;
            }
            let next = due.iter().min().copied().unwrap_or(begun);
            if self.wait(&mut child, next, &mut status)? {
                break;
            }
        }
        drop(progress);
        if let Some(child) = child.filter(|_| status.is_none()) {
            status = child.try_wait().context("cannot wait for the program")?;
        }
        for recorder in recorders {
            recorder.finish(writer)?;
        }
        Ok(status)
    }

    /// Waits for the next look, and passes signals on meanwhile; whether recording is over.
    fn wait(
        &self,
        child: &mut Option<&mut Child>,
        next: Instant,
        status: &mut Option<ExitStatus>,
    ) -> Result<bool> {
        let until = self.end.map_or(next, |end| end.min(next));
        loop {
            match self.signals.wait(until.saturating_duration_since(Instant::now()))? {
                None if Instant::now() < until => {}
                None => return Ok(self.end.is_some_and(|end| Instant::now() >= end)),
                Some(received) if received.signal == signal::CHILD => {
                    if let Some(child) = child.as_deref_mut() {
                        *status = child.try_wait().context("cannot wait for the program")?;
                        if status.is_some() {
                            return Ok(true);
                        }
                    }
                }
                Some(received) => match child {
                    Some(child) => supervise::pass(received, Pid(child.id())),
                    None if signal::ENDS.contains(&received.signal) => return Ok(true),
                    None => {}
                },
            }
        }
    }

    /// Whether the process still runs.
    fn lives(&self) -> bool {
        let now = self.linux.stat(self.stat.pid);
        now.is_ok_and(|now| now.started == self.stat.started && !matches!(now.state, 'Z' | 'X'))
    }
}

/// Has those collect whose moment has come, in their order.
fn collect_due(recorders: &mut Recorders, due: &mut [Instant], writer: &mut Writer) -> Result<()> {
    for (recorder, due) in recorders.iter_mut().zip(due) {
        if *due > Instant::now() {
            continue;
        }
        recorder.collect(writer)?;
        let interval = recorder.interval();
        *due += interval;
        // A late recorder looks next at the next moment of the raster and counts the ones it skipped.
        let now = Instant::now();
        while *due + interval < now {
            *due += interval;
            recorder.missed(writer);
        }
    }
    Ok(())
}

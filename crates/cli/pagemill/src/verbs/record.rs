//! `record`: what a program's memory does over time, written to a recording. `--with` names what is
//! recorded, each by its recorder (`recorders`), all in one recording.
//!
//! With a command this is a wrapper: the program keeps its terminal and signals, and its exit status
//! is passed on. With `-p` a running process is watched and, but for accesses, never touched. Ctrl-C, the
//! end of the process or `--for` end the recording; what was recorded stays.

mod arguments;
#[cfg(target_arch = "x86_64")]
mod exact;
mod import;
mod overhead;
#[cfg(target_arch = "x86_64")]
mod traced;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagemill_kernel::process::Stat;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::suspended::Suspended;
use pagemill_kernel::{Linux, clock};
use pagemill_launch::progress::Progress;
use pagemill_model::recording::{Meta, Reader, Writer};
use pagemill_model::{Nanos, Pid};

pub use arguments::Arguments;
use arguments::{AccessBackEnd, INTERVAL_FLOOR};
use pagemill_launch::exit::{self, Exit, of_wrapper, permitted};
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::supervise;
use pagemill_record::recorders::faults;
use pagemill_record::recorders::{Process, Recorder, RecorderKind, Start};
use pagemill_report::sections::{ReportOptions, Section, Sections};

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    of_wrapper(!arguments.command.is_empty(), recorded(arguments))
}

fn recorded(arguments: &Arguments) -> Result<Exit> {
    if let Some(file) = &arguments.import {
        return import::import(arguments, file);
    }
    if let Some(runs) = arguments.overhead.filter(|_| !arguments.command.is_empty()) {
        return overhead::measure(arguments, runs);
    }
    if arguments.pid.is_none() && arguments.command.is_empty() {
        anyhow::bail!(
            "nothing to record: give a command (-- CMD), a running process (-p PID), or a file of another tool \
             (--import FILE)"
        );
    }
    let of_accesses = [
        ("--backend", arguments.backend != AccessBackEnd::Faults),
        ("--access-events", arguments.access_events.is_some()),
        ("--budget", arguments.budget.is_some()),
        ("--every", arguments.every),
    ];
    if let Some((option, _)) = of_accesses.iter().find(|option| option.1)
        && !arguments.records("accesses")
    {
        eprintln!("pagemill: nothing is recorded: {option} is for accesses (add: --with accesses)");
        return Ok(Exit::Code(arguments.wrong_usage()));
    }
    if arguments.spike.is_some() && !arguments.records(faults::KIND.name) {
        eprintln!(
            "pagemill: nothing is recorded: --spike is about page faults (add: --with faults)"
        );
        return Ok(Exit::Code(arguments.wrong_usage()));
    }
    let mut ignored: Vec<i32> = signal::SENT_TO_PROGRAMS.to_vec();
    ignored.push(signal::CHILD);
    let signals = Signals::block(&ignored)?;
    let mut child = None;
    // Found out before a command is started: it was started to be recorded.
    let fits = match &arguments.output {
        Some(output) => Writer::check(output, arguments.force).and_then(|_| Writer::probe(output)),
        None => Writer::probe(Path::new("")),
    };
    let fits = fits.map_err(anyhow::Error::new).and_then(|_| match arguments.pid {
        Some(_) => Ok(()),
        None => pagemill_launch::context::ensure_room(),
    });
    if let Err(error) = fits {
        let error = error.context("nothing is recorded");
        eprintln!("pagemill: {error:#}");
        return Ok(Exit::Code(if arguments.pid.is_some() { 2 } else { 125 }));
    }
    if arguments.records("accesses") && arguments.backend != AccessBackEnd::Sample {
        return accesses(arguments, &signals);
    }
    let mut recorders = Vec::new();
    let pid = match arguments.pid {
        Some(pid) => pid,
        None => match launch(arguments, &signals, &mut recorders)? {
            Launched::Running(running) => Pid(child.insert(running).id()),
            Launched::Refused(exit) => return Ok(exit),
        },
    };
    let recorded = record(arguments, &signals, pid, child.as_mut(), recorders);
    let Some(mut child) = child else { return attached(recorded) };
    // The program is never left behind because recording it failed: it ends in its own time.
    let status = match &recorded {
        Ok(Some(status)) => *status,
        _ => {
            let pause = Duration::from_secs(1);
            supervise::pass_on(&signals, Pid(child.id()), pause, || child.try_wait())?
        }
    };
    if let Err(error) = recorded {
        eprintln!("pagemill: recording failed, the program was not disturbed: {error:#}");
    }
    Ok(Exit::of(status))
}

#[cfg(target_arch = "x86_64")]
use traced::record as accesses;

/// Accesses are traced on x86-64 only: the tracer's code in the program is written for it.
#[cfg(not(target_arch = "x86_64"))]
fn accesses(_: &Arguments, _: &Signals) -> Result<Exit> {
    eprintln!("pagemill: nothing is recorded: accesses are traced on x86-64 only");
    Ok(Exit::Code(3))
}

/// How recording an attached process ended.
fn attached(recorded: Result<Option<ExitStatus>>) -> Result<Exit> {
    permitted(recorded.map(|_| Exit::Ok))
}

enum Launched {
    Running(Child),
    /// Not started; the reason has been said.
    Refused(Exit),
}

/// Starts the command as its recorders want it started. Those that want its first instruction are attached while it is
/// suspended.
fn launch(arguments: &Arguments, signals: &Signals, recorders: &mut Recorders) -> Result<Launched> {
    let starts = || arguments.with.iter().map(|kind| kind.start);
    let on_heap = starts().any(|start| matches!(start, Start::OnHeap)) && !arguments.own_malloc();
    let prepared = if on_heap {
        prepare::configuration(arguments.heap.clone()).and_then(|config| {
            let prepared = prepare::prepare(&arguments.command, &config)?;
            if matches!(prepared, Prepared::Ready(..)) {
                eprintln!(
                    "pagemill: the command runs on pagemill's heap ({config}), in place of its own malloc (to record \
                     that: --heap none)"
                );
            }
            Ok(prepared)
        })
    } else {
        prepare::plain(&arguments.command)
    };
    let (mut command, path) = match prepared {
        Ok(Prepared::Ready(command, path)) => (*command, path),
        Ok(Prepared::Refused(exit)) => return Ok(Launched::Refused(exit)),
        Err(error) => {
            eprintln!("pagemill: {error:#}");
            return Ok(Launched::Refused(Exit::Code(125)));
        }
    };
    let refused = |error: anyhow::Error| {
        eprintln!("pagemill: nothing is recorded: {error:#}");
        Ok(Launched::Refused(Exit::Code(125)))
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
                for kind in arguments.with.iter().filter(is_suspended) {
                    match (kind.attach)(&linux, process, &arguments.options()) {
                        Ok(recorder) => recorders.extend(recorder),
                        Err(error) => return refused(error),
                    }
                }
                suspended.release()
            }
            Ok(Err(error)) => Err(error),
            Err(error) => {
                eprintln!("pagemill: {error:#}");
                return Ok(Launched::Refused(Exit::Code(125)));
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

type Recorders = Vec<Box<dyn Recorder>>;

/// Records until the process ends, `--for` is over or a signal asks to stop. The child's status if it
/// has ended.
fn record(
    arguments: &Arguments,
    signals: &Signals,
    pid: Pid,
    mut child: Option<&mut Child>,
    mut recorders: Recorders,
) -> Result<Option<ExitStatus>> {
    let linux = pagemill_launch::context::machine();
    let stat = linux.living(pid)?;
    let interval = Duration::from(arguments.interval.max(INTERVAL_FLOOR));
    let mut meta = arguments.meta(&stat, interval);
    // A process that may not be looked into is refused before anything is written.
    let process = Process { pid, started: child.is_some() };
    attach(arguments, &linux, process, &mut meta, &mut recorders)?;
    let output = arguments.directory(&stat.comm, pid);
    let mut writer = Writer::create(&output, meta, arguments.force, arguments.max_size)?;
    arguments.flush(&mut writer);
    let begun = Instant::now();
    let end = arguments.duration.map(|duration| begun + Duration::from(duration));
    let mut due = vec![begun; recorders.len()];
    let mut progress = Progress::new("recording");
    let mut status = None;
    loop {
        collect_due(&mut recorders, &mut due, &mut writer)?;
        if !progress.is_hidden() {
            progress.say(&format!("{}, {}", amount(&recorders), writer.size().plain()));
        }
        if child.is_none() && !same_process(&linux, &stat) {
            break;
        }
        let next = due.iter().min().copied().unwrap_or(begun);
        if wait(signals, &mut child, end, next, &mut status)? {
            break;
        }
    }
    drop(progress);
    if let Some(child) = child.filter(|_| status.is_none()) {
        status = child.try_wait().context("cannot wait for the program")?;
    }
    for recorder in &mut recorders {
        recorder.finish(&mut writer)?;
    }
    let meta = writer.meta_mut();
    if let Some(setup) = &mut meta.faults {
        setup.spike = arguments.spike;
    }
    meta.exit_status = status.map(|status| u64::from(exit::shown(status)));
    meta.exit_signal = status.and_then(|status| status.signal()).map(|signal| signal as u64);
    let comm = meta.comm.clone();
    if recorders.iter().all(|recorder| recorder.is_empty()) {
        let why = format!(
            "nothing was recorded, so {} is not kept: {comm} ended before it was first looked at, or did nothing{}",
            writer.path().display(),
            match arguments.backend {
                AccessBackEnd::Sample => format!(
                    ", or used little of a CPU: a thread is sampled each {} of its CPU time (--period)",
                    arguments.period.plain()
                ),
                _ => String::new(),
            }
        );
        writer.abandon();
        // A command's own status is passed on.
        anyhow::ensure!(arguments.pid.is_none(), "{why}");
        eprintln!("pagemill: {why}");
        return Ok(status);
    }
    let path = writer.finish(Nanos::from(clock::monotonic()))?;
    eprintln!("recorded {} of {comm} ({pid}) in {}", amount(&recorders), path.display());
    if arguments.records(faults::KIND.name) {
        closing(&path, arguments.spike);
    }
    eprintln!("next: pagemill report {}", path.display());
    Ok(status)
}

/// Says at once what a section of the report has to say at once.
fn closing(path: &Path, spike: Option<Nanos>) {
    let options = ReportOptions { allow_loss: false, spike };
    let read = Reader::open(path).and_then(|mut reader| Sections::read(path, &mut reader, options));
    match read {
        Ok(sections) => {
            sections.iter().filter_map(Section::closing).for_each(|text| eprint!("{text}"));
        }
        // It is kept all the same, and the report says what is wrong with it.
        Err(error) => eprintln!("pagemill: {error:#}"),
    }
}

/// Adds the recorders that were asked for to those that were attached while the program was suspended, or are part of
/// its command.
fn attach(
    arguments: &Arguments,
    linux: &Linux,
    process: Process,
    meta: &mut Meta,
    recorders: &mut Recorders,
) -> Result<()> {
    for kind in &arguments.with {
        let attached = matches!(kind.start, Start::Suspended | Start::With(_)) && process.started;
        if !attached {
            recorders.extend((kind.attach)(linux, process, &arguments.options())?);
        }
    }
    recorders.iter().for_each(|recorder| recorder.begin(meta));
    Ok(())
}

/// Has those collect whose moment has come, in the order of `--with`.
fn collect_due(recorders: &mut Recorders, due: &mut [Instant], writer: &mut Writer) -> Result<()> {
    for (recorder, due) in recorders.iter_mut().zip(due) {
        if *due > Instant::now() {
            continue;
        }
        recorder.collect(writer)?;
        let interval = recorder.interval();
        *due += interval;
        // A late recorder looks next at the next moment of the raster and counts the ones it
        // skipped.
        let now = Instant::now();
        while *due + interval < now {
            *due += interval;
            recorder.missed(writer);
        }
    }
    Ok(())
}

/// Waits for the next look, and passes signals on meanwhile; whether recording is over.
fn wait(
    signals: &Signals,
    child: &mut Option<&mut Child>,
    end: Option<Instant>,
    next: Instant,
    status: &mut Option<ExitStatus>,
) -> Result<bool> {
    let until = end.map_or(next, |end| end.min(next));
    loop {
        match signals.wait(until.saturating_duration_since(Instant::now()))? {
            None if Instant::now() < until => {}
            None => return Ok(end.is_some_and(|end| Instant::now() >= end)),
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
                None if ends(received.signal) => return Ok(true),
                None => {}
            },
        }
    }
}

/// Whether the process of `stat` still runs.
fn same_process(linux: &Linux, stat: &Stat) -> bool {
    linux
        .stat(stat.pid)
        .is_ok_and(|now| now.started == stat.started && !matches!(now.state, 'Z' | 'X'))
}

/// How much each recorder has.
fn amount(recorders: &Recorders) -> String {
    recorders.iter().map(|recorder| recorder.amount()).collect::<Vec<_>>().join(", ")
}

/// Whether a signal asks a recorder to stop, rather than telling it of the terminal.
fn ends(signal: i32) -> bool {
    // SIGHUP, SIGINT, SIGQUIT and SIGTERM have these numbers on every Linux.
    matches!(signal, 1 | 2 | 3 | 15)
}

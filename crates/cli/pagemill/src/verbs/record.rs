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

use anyhow::Result;
use pagemill_kernel::clock;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_model::recording::{Reader, Writer};
use pagemill_model::{Nanos, Pid};

pub use arguments::Arguments;
use arguments::{AccessBackEnd, INTERVAL_FLOOR};
use pagemill_launch::exit::{self, Exit, of_wrapper, permitted};
use pagemill_launch::supervise;
use pagemill_record::recorders::{ACCESSES, Process, faults};
use pagemill_record::session::{self, Launched, Recorders, Session};
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
        && !arguments.records(ACCESSES.name)
    {
        notice!("nothing is recorded: {option} is for accesses (add: --with accesses)");
        return Ok(arguments.wrong_usage());
    }
    if arguments.spike.is_some() && !arguments.records(faults::KIND.name) {
        notice!("nothing is recorded: --spike is about page faults (add: --with faults)");
        return Ok(arguments.wrong_usage());
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
        notice!("{error:#}");
        return Ok(arguments.wrong_usage());
    }
    if arguments.records(ACCESSES.name) && arguments.backend != AccessBackEnd::Sample {
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
        notice!("recording failed, the program was not disturbed: {error:#}");
    }
    Ok(Exit::of(status))
}

#[cfg(target_arch = "x86_64")]
use traced::record as accesses;

/// Accesses are traced on x86-64 only: the tracer's code in the program is written for it.
#[cfg(not(target_arch = "x86_64"))]
fn accesses(_: &Arguments, _: &Signals) -> Result<Exit> {
    notice!("nothing is recorded: accesses are traced on x86-64 only");
    Ok(Exit::Unsupported)
}

/// How recording an attached process ended.
fn attached(recorded: Result<Option<ExitStatus>>) -> Result<Exit> {
    permitted(recorded.map(|_| Exit::Ok))
}

/// Starts the command as its recorders want it started.
fn launch(arguments: &Arguments, signals: &Signals, recorders: &mut Recorders) -> Result<Launched> {
    let heap = (!arguments.own_malloc()).then(|| arguments.heap.clone());
    let how = (&arguments.options(), signals);
    session::launch(&arguments.command, heap, &arguments.with, how, recorders)
}

/// Records until the process ends, `--for` is over or a signal asks to stop. The child's status if it
/// has ended.
fn record(
    arguments: &Arguments,
    signals: &Signals,
    pid: Pid,
    child: Option<&mut Child>,
    mut recorders: Recorders,
) -> Result<Option<ExitStatus>> {
    let linux = pagemill_launch::context::machine();
    let stat = linux.living(pid)?;
    let interval = Duration::from(arguments.interval.max(INTERVAL_FLOOR));
    let mut meta = arguments.meta(&stat, interval);
    // A process that may not be looked into is refused before anything is written.
    let process = Process { pid, started: child.is_some() };
    let options = arguments.options();
    session::attach(&linux, process, &arguments.with, &options, (&mut meta, &mut recorders))?;
    let output = arguments.directory(&stat.comm, pid);
    let mut writer = Writer::create(&output, meta, arguments.force, arguments.max_size)?;
    arguments.flush(&mut writer);
    let end = arguments.duration.map(|duration| Instant::now() + Duration::from(duration));
    let session = Session { linux: &linux, stat: &stat, signals, end };
    let status = session.run(child, &mut recorders, &mut writer)?;
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
        notice!("{why}");
        return Ok(status);
    }
    let path = writer.finish(Nanos::from(clock::monotonic()))?;
    eprintln!("recorded {} of {comm} ({pid}) in {}", session::amount(&recorders), path.display());
    if arguments.records(faults::KIND.name) {
        closing(&path, arguments.spike);
    }
    eprintln!("next: pagemill report {}", pagemill_model::shell::quoted(path));
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
        Err(error) => notice!("{error:#}"),
    }
}

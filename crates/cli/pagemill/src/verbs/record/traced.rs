//! `record --with accesses`: a program traced, or one taken over.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::supervised::{self, Side, Supervisor};
use pagemill_kernel::{Error, Kind};
use pagemill_launch::context::machine;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::supervise;
use pagemill_model::Pid;
use pagemill_model::recording::Writer;
use pagemill_record::recorders::accesses::{self, Traced};
use pagemill_record::recorders::untraceable;
use pagemill_tracer::{Ended, Granule, Options};

use super::arguments::{AccessBackEnd, Arguments, INTERVAL_FLOOR};
use super::exact;
use crate::values::AccessEvents;
use pagemill_launch::exit::Exit;

/// What was asked for, or how this ends without it.
type OrExit<T> = Result<std::result::Result<T, Exit>>;

fn refused<T>(why: &str, exit: Exit) -> OrExit<T> {
    notice!("nothing is recorded: {why}");
    Ok(Err(exit))
}

/// Traces the accesses of a command or of a running process: in a child, so that whoever kills or stops the process
/// that they started does not do so to the tracer, in the middle of a change of the program's memory.
pub(super) fn record(arguments: &Arguments, signals: &Signals) -> Result<Exit> {
    let supervisor = match supervised::split() {
        Ok(Side::Parent(tracer)) => {
            let pause = Duration::from_secs(1);
            let status = supervise::pass_on(signals, tracer.id(), pause, || tracer.try_wait())?;
            return Ok(Exit::of(status));
        }
        Ok(Side::Child(supervisor)) => Some(supervisor),
        // Then it is done here: there may be no more processes.
        Err(_) => None,
    };
    match recorded(arguments, signals, supervisor)? {
        Ok(exit) | Err(exit) => Ok(exit),
    }
}

fn recorded(
    arguments: &Arguments,
    signals: &Signals,
    supervisor: Option<Supervisor>,
) -> OrExit<Exit> {
    let misused = arguments.wrong_usage();
    if arguments.with.len() > 1 {
        return refused("accesses are recorded by themselves (run it once for each)", misused);
    }
    let granule = match arguments.granule.0 {
        0x1000 => Granule::Page,
        accesses::AROUND => Granule::Around,
        _ => return refused("--granule must be 4K or 64K", misused),
    };
    if arguments.backend == AccessBackEnd::Exact {
        return emulated(arguments, signals);
    }
    let options = Options {
        interval: arguments.access_interval.max(INTERVAL_FLOOR).into(),
        budget: arguments.budget,
        events: arguments.access_events.map(AccessEvents::fault_source),
        granule,
        duration: arguments.duration.map(Duration::from),
        supervisor,
        refuse: Some(untraceable::executed),
    };
    let begun = match arguments.pid {
        Some(pid) => taken_over(pid, options),
        None => launched(arguments, options),
    };
    let traced = match begun? {
        Ok(traced) => traced,
        Err(exit) => return Ok(Err(exit)),
    };
    let pid = traced.pid();
    let stat = machine().stat(pid)?;
    let meta = arguments.meta(&stat, arguments.access_interval.into());
    let output = arguments.directory(&stat.comm, pid);
    let mut writer = match Writer::create(&output, meta, arguments.force, arguments.max_size) {
        Ok(writer) => writer,
        Err(error) => {
            if arguments.pid.is_none() {
                // It was started to be recorded, a moment ago.
                let _ = signal::send(pid, signal::KILL);
            }
            return refused(&format!("{error:#}"), arguments.wrong_usage());
        }
    };
    arguments.flush(&mut writer);
    let page = pagemill_kernel::page_size() as u64;
    let done = traced.record(signals, page, &mut writer)?;
    let ended = done.ended;
    let deserted = supervisor.is_some_and(|supervisor| !supervisor.lives());
    done.conclude(&stat, deserted, writer);
    // That of an attached process is not ours to pass on.
    Ok(Ok(match ended {
        _ if arguments.pid.is_some() => Exit::Ok,
        Ended::Exited(code) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(125)),
        Ended::Killed(signal) => Exit::Signal(signal),
        Ended::LetGo => Exit::Ok,
    }))
}

/// By an emulator, each access of the program and its time.
fn emulated(arguments: &Arguments, signals: &Signals) -> OrExit<Exit> {
    if arguments.pid.is_some() {
        return refused(
            "an emulator runs a program from its start (give it with -- CMD)",
            Exit::Unsupported,
        );
    }
    if arguments.duration.is_some() || arguments.max_size.is_some() {
        let why = "--for and --max-size do not go with --backend exact";
        return refused(why, arguments.wrong_usage());
    }
    match prepare::plain(&arguments.command) {
        Ok(Prepared::Ready(_, path)) => exact::record(arguments, signals, &path).map(Ok),
        Ok(Prepared::Refused(exit)) => Ok(Err(exit)),
        Err(error) => refused(&format!("{error:#}"), Exit::WrapperFailed),
    }
}

/// A running process.
fn taken_over(pid: Pid, options: Options) -> OrExit<Traced> {
    let attached = machine().living(pid).and_then(|_| Traced::attach(machine(), options, pid));
    attached.map(Ok).or_else(|error: Error| {
        let exit = match error.kind() {
            Kind::Permission => Exit::Permission,
            Kind::Unsupported => Exit::Unsupported,
            _ => Exit::Failed,
        };
        refused(&format!("{error:#}"), exit)
    })
}

/// A program, from its start.
fn launched(arguments: &Arguments, options: Options) -> OrExit<Traced> {
    let (command, path) = match prepare::plain(&arguments.command) {
        Ok(Prepared::Ready(command, path)) => (command, path),
        Ok(Prepared::Refused(exit)) => return Ok(Err(exit)),
        Err(error) => return refused(&format!("{error:#}"), Exit::WrapperFailed),
    };
    if let Some(why) = untraceable::started(&path)? {
        return refused(&why, Exit::WrapperFailed);
    }
    let name = arguments.command.first().map_or(OsStr::new(""), OsString::as_os_str);
    match Traced::launch(machine(), options, &path, &command, name, !arguments.no_sites) {
        Ok(Ok(traced)) => Ok(Ok(traced)),
        Ok(Err(error)) => Ok(Err(prepare::cannot_execute(&path, &error))),
        Err(error) => refused(&format!("{error:#}"), Exit::WrapperFailed),
    }
}

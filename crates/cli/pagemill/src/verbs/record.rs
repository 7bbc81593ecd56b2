//! `record`: what a program's memory does over time, written to a recording. `--with` names what is
//! recorded, each by its recorder (`recorders`), all in one recording.
//!
//! With a command this is a wrapper: the program keeps its terminal and signals, and its exit status
//! is passed on. With `-p` a running process is watched and, but for accesses, never touched. Ctrl-C, the
//! end of the process or `--for` end the recording; what was recorded stays.

#[cfg(target_arch = "x86_64")]
mod exact;
mod import;
mod overhead;
#[cfg(target_arch = "x86_64")]
mod traced;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use pagemill_kernel::process::Stat;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::suspended::Suspended;
use pagemill_kernel::{Error, Kind, Linux, clock};
use pagemill_launch::progress::Progress;
use pagemill_model::fault::SUM;
use pagemill_model::recording::{Meta, Reader, Writer};
use pagemill_model::whole::{self, TEXT};
use pagemill_model::{Bytes, Nanos, Pid};

use crate::values::{self, AccessEvents};
use pagemill_launch::exit::{Exit, of_wrapper, permitted};
use pagemill_launch::prepare::{self, Prepared};
use pagemill_record::recorders::faults::{self, BackEnd};
use pagemill_record::recorders::{Options, Process, Recorder, RecorderKind, Start};
use pagemill_report::sections::{Asked, Section, Sections};

const EXAMPLES: &str = "\
Examples:
  pagemill record --with heap -- redis-server --save ''
  pagemill record --with heap -p 4711 --for 30s
  pagemill record --with faults -- ./server          # latency of page faults, and why
  pagemill record --with faults --spike 5ms -p 4711 --for 10s    # do they explain stalls of 5 ms?
  pagemill record --with faults,hugepages -p 4711 --for 10s
  pagemill record --with faults,frag -- ./server     # and how fragmented memory was
  pagemill record --with faults,hugepages,sites --threshold 0ns -- ./server     # for pagemill plan
  pagemill record --with accesses -- ./kernel        # every page it touches, interval by interval
  pagemill record --with accesses --backend exact -- ./kernel    # every access, counted by page and thread
  pagemill record --with accesses --backend sample -p 4711 --for 10s
  pagemill record --import perf.data -o rec          # what perf mem record sampled, here or elsewhere
  pagemill record --with heap --mesh 2y --interval 10ms -o rec -- ruby churn.rb
";

const AFTER: &str = "\
Ctrl-C stops and keeps what was recorded. A command's exit status is passed through; 125 pagemill itself \
failed, 126 the command cannot be executed, 127 it was not found. With -p: 4 the process may not be looked into.";

/// What to record, and where to.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// What to record, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "heap", value_name = "WHAT", value_parser = values::recorder())]
    with: Vec<&'static RecorderKind>,
    /// Directory to write [default: pagemill-COMM.PID].
    #[arg(short, long, value_name = "DIR", value_parser = crate::values::directory())]
    output: Option<PathBuf>,
    /// Overwrite DIR if it is a recording.
    #[arg(short, long)]
    force: bool,
    /// Time between samples; of faults, between counts.
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = values::interval)]
    interval: Nanos,
    /// Stop recording after this long; a command goes on without being recorded.
    #[arg(long = "for", value_name = "TIME", value_parser = values::length)]
    duration: Option<Nanos>,
    /// Keep at most this much on disk: the oldest samples go first.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    max_size: Option<Bytes>,
    /// Write to disk what is this old: what is lost at most if the recorder is killed [default: 1s, doubling up to 30s]
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    flush: Option<Nanos>,
    /// Page faults that take this long or longer are recorded one by one; all are counted.
    #[arg(long, default_value = "10us", value_name = "TIME")]
    threshold: Nanos,
    /// Page faults: say in the end whether they explain stalls of this length.
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    spike: Option<Nanos>,
    /// How page faults are measured [default: the best that works]
    #[arg(long, value_name = "HOW", value_parser = values::one_of(&BackEnd::CHOICES))]
    fault_backend: Option<BackEnd>,
    /// How accesses are seen.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = AccessBackEnd::Faults)]
    backend: AccessBackEnd,
    /// Accesses: how faults are told one by one [default: the best that works]
    #[arg(long, value_name = "HOW", value_enum)]
    access_events: Option<AccessEvents>,
    /// Accesses, exact: a row for each access, not for each page, thread and interval.
    #[arg(long)]
    every: bool,
    /// Accesses, sample: time between two samples of a thread; by the processor, so many of its events.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = values::interval)]
    period: Nanos,
    /// Make a recording of a file of another tool: a perf.data.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "command"])]
    import: Option<PathBuf>,
    /// Accesses: length of an interval, in time that the command would take unrecorded.
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = values::interval)]
    access_interval: Nanos,
    /// Accesses: longer intervals, so that the command takes at most this many times as long.
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    budget: Option<f64>,
    /// Accesses: how much one fault brings into view, 4K or 64K; more is cheaper and less exact.
    #[arg(long, default_value = "4K", value_name = "SIZE")]
    granule: Bytes,
    /// Accesses: do not preload the library that notes which code asks for memory.
    #[arg(long)]
    no_names: bool,
    /// Say what recording costs this command: it runs so many times as it is and recorded, in turn [5 if no number is
    /// given]; its output is that of the last run.
    #[arg(long, value_name = "RUNS", num_args = 0..=1, require_equals = true, default_missing_value = "5", conflicts_with_all = ["pid", "import"], value_parser = clap::value_parser!(u32).range(1..=1000))]
    overhead: Option<u32>,
    /// Configuration of the heap that the command runs on [default: $PAGEMILL_MESH or 1y]
    #[arg(long, visible_alias = "heap", value_name = "CONFIG", conflicts_with = "pid")]
    mesh: Option<String>,
    /// Attach to a running process.
    #[arg(short, long, value_name = "PID", value_parser = values::process)]
    pid: Option<Pid>,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD", conflicts_with = "pid")]
    command: Vec<OsString>,
}

/// How accesses are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AccessBackEnd {
    /// By page faults: all pages, and who touched them first
    Faults,
    /// In an emulator: every access, counted; needs qemu-user
    Exact,
    /// Samples by the processor, or by the clock with the instruction decoded; cheap
    Sample,
}

/// The shortest interval: a sample walks the page tables of the process.
const INTERVAL_FLOOR: Nanos = Nanos(1_000_000);

/// How many times as long: `1.5` or `1.5x`.
fn factor(text: &str) -> std::result::Result<f64, String> {
    let number = text.strip_suffix(['x', 'X']).unwrap_or(text).parse::<f64>();
    number
        .ok()
        .filter(|factor| (1.01..=1000.0).contains(factor))
        .ok_or_else(|| "expected 1.01 to 1000, such as 1.5 or 1.5x".into())
}

impl Arguments {
    /// Whether a word is among those of `--with`.
    fn records(&self, name: &str) -> bool {
        self.with.iter().any(|kind| kind.name == name)
    }

    /// What is asked of recorders.
    fn options(&self) -> Options {
        let interval = Duration::from(self.interval.max(INTERVAL_FLOOR));
        let faults = faults::Options {
            threshold: self.threshold,
            sum: Some(SUM),
            back_end: self.fault_backend,
            interval: self.interval.into(),
        };
        Options { interval, faults, period: self.period }
    }
}

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
            "nothing to record: give a command (-- CMD), a running process (-p PID), or a file of another tool (--import FILE)"
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
        return Ok(Exit::Code(wrong_usage(arguments)));
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
        _ => supervise(&signals, Pid(child.id()), || child.try_wait())?,
    };
    if let Err(error) = recorded {
        eprintln!("pagemill: recording failed, the program was not disturbed: {error:#}");
    }
    Ok(exit_of(status))
}

/// As the program ended, so do we.
fn exit_of(status: ExitStatus) -> Exit {
    match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(code_of(status)),
    }
}

/// The exit status of wrong usage: env(1)'s for a wrapper, whose program never ran.
fn wrong_usage(arguments: &Arguments) -> u8 {
    if arguments.command.is_empty() { 2 } else { 125 }
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
    let prepared = if starts().any(|start| matches!(start, Start::OnHeap)) {
        prepare::configuration(arguments.mesh.clone()).and_then(|config| {
            let prepared = prepare::prepare(&arguments.command, &config)?;
            if matches!(prepared, Prepared::Ready(..)) {
                eprintln!(
                    "pagemill: the command runs on pagemill's heap ({config}), in place of its own malloc (to record that: start it, then record -p PID)"
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

/// The process, told apart from a later one with its number; an error if there is none.
fn alive(linux: &Linux, pid: Pid) -> Result<Stat, Error> {
    linux.stat(pid).map_err(|error| match error.kind() {
        Kind::NotFound | Kind::Gone => {
            let object = format_args!("process {pid}");
            Error::new(Kind::Gone, "look at", object, "there is no such process")
        }
        _ => error,
    })
}

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
    let stat = alive(&linux, pid)?;
    let interval = Duration::from(arguments.interval.max(INTERVAL_FLOOR));
    let mut meta = meta(arguments, &stat, interval);
    // A process that may not be looked into is refused before anything is written.
    let process = Process { pid, started: child.is_some() };
    attach(arguments, &linux, process, &mut meta, &mut recorders)?;
    let output = arguments.output.clone().unwrap_or_else(|| default_name(&stat.comm, pid));
    let mut writer = Writer::create(&output, meta, arguments.force, arguments.max_size)?;
    flush(arguments, &mut writer);
    let begun = Instant::now();
    let end = arguments.duration.map(|duration| begun + Duration::from(duration));
    let mut due = vec![begun; recorders.len()];
    let mut progress = Progress::new("recording");
    let mut status = None;
    loop {
        collect_due(&mut recorders, &mut due, &mut writer)?;
        if !progress.is_hidden() {
            progress.say(&format!("{}, {}", amount(&recorders), writer.size().to_string().trim()));
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
    meta.exit_status = status.map(|status| u64::from(code_of(status)));
    meta.exit_signal = status.and_then(|status| status.signal()).map(|signal| signal as u64);
    let comm = meta.comm.clone();
    let path = writer.finish(Nanos::from(clock::monotonic()))?;
    eprintln!("recorded {} of {comm} ({pid}) in {}", amount(&recorders), path.display());
    if recorders.iter().all(|recorder| recorder.is_empty()) {
        let why = format!(
            "there is nothing in it: {comm} ended before it was first looked at, or did nothing"
        );
        // A command's own status is passed on.
        anyhow::ensure!(arguments.pid.is_none(), "{why}");
        eprintln!("pagemill: {why}");
        return Ok(status);
    }
    if arguments.records(faults::KIND.name) {
        closing(&path, arguments.spike);
    }
    eprintln!("next: pagemill report {}", path.display());
    Ok(status)
}

/// Says at once what a section of the report has to say at once.
fn closing(path: &Path, spike: Option<Nanos>) {
    let asked = Asked { allow_loss: false, spike };
    let read = Reader::open(path).and_then(|mut reader| Sections::read(path, &mut reader, asked));
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
                // The terminal has sent its keys to the program too.
                // It may have ended a moment ago; then there is nobody to tell.
                Some(child) if !received.from_kernel => {
                    let _ = signal::send(Pid(child.id()), received.signal);
                }
                Some(_) => {}
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

/// Waits for a child, passing signals on.
fn supervise(
    signals: &Signals,
    child: Pid,
    mut try_wait: impl FnMut() -> std::io::Result<Option<ExitStatus>>,
) -> Result<ExitStatus> {
    loop {
        if let Some(status) = try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        match signals.wait(Duration::from_secs(1))? {
            Some(received) if received.signal != signal::CHILD && !received.from_kernel => {
                // It may have ended a moment ago; then there is nobody to tell.
                let _ = signal::send(child, received.signal);
            }
            _ => {}
        }
    }
}

/// Whether a signal asks a recorder to stop, rather than telling it of the terminal.
fn ends(signal: i32) -> bool {
    // SIGHUP, SIGINT, SIGQUIT and SIGTERM have these numbers on every Linux.
    matches!(signal, 1 | 2 | 3 | 15)
}

/// The exit code that a shell would show.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(125)
}

/// `pagemill-COMM.PID` in the working directory.
fn default_name(comm: &str, pid: Pid) -> PathBuf {
    let plain: String = comm
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    PathBuf::from(format!("pagemill-{plain}.{pid}"))
}

fn meta(arguments: &Arguments, stat: &Stat, interval: Duration) -> Meta {
    let words = |words: &[OsString]| {
        words.iter().map(|word| OsStr::to_string_lossy(word).into_owned()).collect()
    };
    let machine = pagemill_launch::context::machine();
    let attached = || {
        let cmdline = whole::read(&machine.process_file(stat.pid, "cmdline"), TEXT).ok()?;
        pagemill_launch::program::arguments(&cmdline)
    };
    let attached = arguments.pid.and_then(|_| attached()).unwrap_or_default();
    Meta {
        command: words(&arguments.command),
        attached_command: words(&attached),
        pid: stat.pid.into(),
        comm: stat.comm.clone(),
        interval: Nanos::from(interval),
        ..pagemill_launch::context::meta(&machine)
    }
}

/// Parts are written as often as was asked for.
fn flush(arguments: &Arguments, writer: &mut Writer) {
    if let Some(age) = arguments.flush {
        writer.flush_after(age);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_a_plain_file_name() {
        assert_eq!(default_name("redis-server", Pid(7)), PathBuf::from("pagemill-redis-server.7"));
        assert_eq!(default_name("../../etc", Pid(7)), PathBuf::from("pagemill-.._.._etc.7"));
        assert_eq!(default_name("a b\n", Pid(7)), PathBuf::from("pagemill-a_b_.7"));
    }
}

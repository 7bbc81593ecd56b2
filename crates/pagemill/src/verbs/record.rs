//! `record`: a timeline of a program's memory, written to a recording.
//!
//! With a command this is a wrapper: the program keeps its terminal and signals, and its exit status
//! is passed on. With `-p` a running process is watched and never touched. Ctrl-C, the end of the
//! process or `--for` end the recording; what was recorded stays.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Error, Kind, clock};
use pagemill_model::dataset::Row as _;
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{Bytes, HeapSample, Nanos, Source as _};

use crate::exit::Exit;
use crate::sampler::{Sampler, nanos};
use crate::verbs::run::{self, Prepared};

const EXAMPLES: &str = "\
Examples:
  pagemill record --with heap -- redis-server --save ''
  pagemill record --with heap -p 4711 --for 30s
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
    #[arg(long, value_delimiter = ',', default_value = "heap", value_name = "WHAT", value_enum)]
    with: Vec<What>,
    /// Directory to write [default: pagemill-COMM.PID].
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Overwrite DIR if it is a recording.
    #[arg(short, long)]
    force: bool,
    /// Time between samples.
    #[arg(long, default_value = "100ms", value_name = "TIME")]
    interval: Nanos,
    /// Stop recording after this long; a command goes on without being recorded.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,
    /// Keep at most this much on disk: the oldest samples go first.
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Bytes>,
    /// Configuration of the heap that the command runs on [default: $PAGEMILL_MESH or 1y]
    #[arg(long, value_name = "CONFIG", conflicts_with = "pid")]
    mesh: Option<String>,
    /// Attach to a running process.
    #[arg(short, long, value_name = "PID", required_unless_present = "command")]
    pid: Option<u32>,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD", conflicts_with = "pid")]
    command: Vec<OsString>,
}

/// What can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// The heap's statistics and the kernel's accounting of the process.
    Heap,
}

/// The shortest interval: a sample walks the page tables of the process.
const INTERVAL_FLOOR: Nanos = Nanos(1_000_000);

/// How often the progress line is written.
const PROGRESS: Duration = Duration::from_millis(500);

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut ignored: Vec<i32> = signal::SENT_TO_PROGRAMS.to_vec();
    ignored.push(signal::CHILD);
    let signals = Signals::block(&ignored)?;
    let mut child = None;
    // Found out before a command is started: it was started to be recorded.
    let fits = match &arguments.output {
        Some(output) => Writer::check(output, arguments.force).and_then(|_| Writer::probe(output)),
        None => Writer::probe(Path::new("")),
    };
    if let Err(error) = fits {
        let error = anyhow::Error::new(error).context("nothing is recorded");
        eprintln!("pagemill: {error:#}");
        return Ok(Exit::Code(if arguments.pid.is_some() { 2 } else { 125 }));
    }
    let pid = match arguments.pid {
        Some(pid) => pid,
        None => match launch(arguments, &signals)? {
            Launched::Running(running) => child.insert(running).id(),
            Launched::Refused(exit) => return Ok(exit),
        },
    };
    let recorded = record(arguments, &signals, pid, child.as_mut());
    let Some(mut child) = child else { return attached(recorded) };
    // The program is never left behind because recording it failed: it ends in its own time.
    let status = match &recorded {
        Ok(Some(status)) => *status,
        _ => supervise(&signals, &mut child)?,
    };
    if let Err(error) = recorded {
        eprintln!("pagemill: recording failed, the program was not disturbed: {error:#}");
    }
    Ok(match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(code_of(status)),
    })
}

/// How recording an attached process ended.
fn attached(recorded: Result<Option<ExitStatus>>) -> Result<Exit> {
    match recorded {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => match error.downcast_ref::<Error>() {
            Some(kernel) if kernel.kind() == Kind::Permission => {
                eprintln!("pagemill: {kernel}");
                Ok(Exit::Permission)
            }
            _ => Err(error),
        },
    }
}

enum Launched {
    Running(Child),
    /// Not started; the reason has been said.
    Refused(Exit),
}

/// Starts the command under the heap.
fn launch(arguments: &Arguments, signals: &Signals) -> Result<Launched> {
    let prepared = run::configuration(arguments.mesh.clone())
        .and_then(|config| run::prepare(&arguments.command, &config));
    let (mut command, path) = match prepared {
        Ok(Prepared::Ready(command, path)) => (*command, path),
        Ok(Prepared::Refused(exit)) => return Ok(Launched::Refused(exit)),
        Err(error) => {
            eprintln!("pagemill: {error:#}");
            return Ok(Launched::Refused(Exit::Code(125)));
        }
    };
    signals.restore_in(&mut command);
    Ok(match command.spawn() {
        Ok(child) => Launched::Running(child),
        Err(error) => Launched::Refused(run::cannot_execute(&path, &error)),
    })
}

/// Records until the process ends, `--for` is over or a signal asks to stop. The child's status if it
/// has ended.
fn record(
    arguments: &Arguments,
    signals: &Signals,
    pid: u32,
    mut child: Option<&mut Child>,
) -> Result<Option<ExitStatus>> {
    let mut sampler = Sampler::attach(super::machine(), pid)?;
    // A process that may not be looked into is refused before anything is written.
    let mut event = sampler.sample()?.map(|sample| pagemill_model::Event::Heap(Box::new(sample)));
    let output = arguments.output.clone().unwrap_or_else(|| default_name(sampler.comm(), pid));
    let interval = Duration::from(arguments.interval.max(INTERVAL_FLOOR));
    let mut meta = meta(arguments, &sampler, pid, interval);
    if let Some(first) = &event {
        meta.started = first.time();
    }
    let mut writer = Writer::create(&output, meta, arguments.force, arguments.max_size)?;
    let begun = Instant::now();
    let end = arguments.duration.map(|duration| begun + Duration::from(duration));
    let mut due = begun;
    let mut progress = Progress::new(begun);
    let mut samples = 0;
    let mut status = None;
    while let Some(sample) = event.take() {
        writer.event(&sample)?;
        samples += 1;
        progress.show(samples, writer.size());
        due += interval;
        // A late recorder takes its next sample at the next moment of the raster and counts the
        // ones it skipped.
        let now = Instant::now();
        while due + interval < now {
            due += interval;
            writer.meta_mut().losses.missed_samples += 1;
        }
        let stop = loop {
            let until = end.map_or(due, |end| end.min(due));
            match signals.wait(until.saturating_duration_since(Instant::now()))? {
                None if Instant::now() < until => {}
                None => break end.is_some_and(|end| Instant::now() >= end),
                Some(received) if received.signal == signal::CHILD => {
                    if let Some(child) = child.as_deref_mut() {
                        status = child.try_wait().context("cannot wait for the program")?;
                        if status.is_some() {
                            break true;
                        }
                    }
                }
                Some(received) => match &child {
                    // The terminal has sent its keys to the program too.
                    Some(child) if !received.from_kernel => pass_on(child, received.signal),
                    Some(_) => {}
                    None if ends(received.signal) => break true,
                    None => {}
                },
            }
        };
        if stop {
            break;
        }
        event = sampler.next_event()?;
    }
    progress.clear();
    if let Some(child) = child.filter(|_| status.is_none()) {
        status = child.try_wait().context("cannot wait for the program")?;
    }
    let meta = writer.meta_mut();
    sampler.comm().clone_into(&mut meta.comm);
    meta.not_measured.extend(sampler.not_measured());
    meta.capabilities = sampler.used();
    meta.exit_status = status.map(|status| u64::from(code_of(status)));
    let path = writer.finish(nanos(clock::monotonic()))?;
    eprintln!("recorded {samples} samples of {} ({pid}) in {}", sampler.comm(), path.display());
    eprintln!("next: pagemill report {}", path.display());
    Ok(status)
}

/// Waits for the program, passing signals on.
fn supervise(signals: &Signals, child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        match signals.wait(Duration::from_secs(1))? {
            Some(received) if received.signal != signal::CHILD && !received.from_kernel => {
                pass_on(child, received.signal);
            }
            _ => {}
        }
    }
}

fn pass_on(child: &Child, signal: i32) {
    // It may have ended a moment ago; then there is nobody to tell.
    let _ = signal::send(child.id(), signal);
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
fn default_name(comm: &str, pid: u32) -> PathBuf {
    let plain: String = comm
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    PathBuf::from(format!("pagemill-{plain}.{pid}"))
}

fn meta(arguments: &Arguments, sampler: &Sampler, pid: u32, interval: Duration) -> Meta {
    let words = |words: &[OsString]| {
        words.iter().map(|word| OsStr::to_string_lossy(word).into_owned()).collect()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Meta {
        tool: concat!("pagemill ", env!("CARGO_PKG_VERSION")).into(),
        command: words(&arguments.command),
        pid: pid.into(),
        comm: sampler.comm().into(),
        kernel: release.trim().into(),
        machine: std::env::consts::ARCH.into(),
        page_size: Bytes(pagemill_kernel::page_size() as u64),
        clock: "CLOCK_MONOTONIC".into(),
        started: nanos(clock::monotonic()),
        started_unix: nanos(unix),
        interval: nanos(interval),
        datasets: vec![HeapSample::DATASET.into()],
        not_measured: vec![NotMeasured {
            what: "child processes".into(),
            why: "a recording follows one process (record a child with -p)".into(),
        }],
        ..Meta::default()
    }
}

/// A line on the terminal that says how far the recording is; nothing where stderr is no terminal.
struct Progress {
    shown: bool,
    begun: Instant,
    next: Instant,
}

impl Progress {
    fn new(begun: Instant) -> Self {
        Self { shown: std::io::stderr().is_terminal(), begun, next: begun + PROGRESS }
    }

    fn show(&mut self, samples: u64, size: Bytes) {
        if self.shown && Instant::now() >= self.next {
            let elapsed = self.begun.elapsed().as_secs_f64();
            let size = size.to_string();
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[Krecording: {elapsed:.1} s, {samples} samples, {}",
                size.trim()
            );
            self.next = Instant::now() + PROGRESS;
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_a_plain_file_name() {
        assert_eq!(default_name("redis-server", 7), PathBuf::from("pagemill-redis-server.7"));
        assert_eq!(default_name("../../etc", 7), PathBuf::from("pagemill-.._.._etc.7"));
        assert_eq!(default_name("a b\n", 7), PathBuf::from("pagemill-a_b_.7"));
    }
}

//! What `record` is asked.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pagemill_kernel::process::Stat;
use pagemill_launch::exit::Exit;
use pagemill_model::fault::SUM;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::whole::{self, TEXT};
use pagemill_model::{Bytes, Nanos, Pid};
use pagemill_record::recorders::faults::{self, BackEnd};
use pagemill_record::recorders::{Options, RecorderKind};

use crate::values::{self, AccessEvents};

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
  pagemill record --with heap --heap compact-shuffle --interval 10ms -o rec -- ruby churn.rb
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
    pub(super) with: Vec<&'static RecorderKind>,
    /// Directory to write [default: pagemill-COMM.PID].
    #[arg(short, long, value_name = "DIR", value_parser = crate::values::directory())]
    pub(super) output: Option<PathBuf>,
    /// Overwrite DIR if it is a recording.
    #[arg(short, long)]
    pub(super) force: bool,
    /// Time between samples; of faults, between counts.
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = values::interval)]
    pub(super) interval: Nanos,
    /// Stop recording after this long; a command goes on without being recorded.
    #[arg(long = "for", value_name = "TIME", value_parser = values::length)]
    pub(super) duration: Option<Nanos>,
    /// Keep at most this much on disk: the oldest samples go first.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(super) max_size: Option<Bytes>,
    /// Write to disk what is this old: what is lost at most if the recorder is killed [default: 1s, doubling up to 30s]
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    pub(super) flush: Option<Nanos>,
    /// Page faults that take this long or longer are recorded one by one; all are counted.
    #[arg(long, default_value = "10us", value_name = "TIME")]
    pub(super) threshold: Nanos,
    /// Page faults: say in the end whether they explain stalls of this length.
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    pub(super) spike: Option<Nanos>,
    /// How page faults are measured [default: the best that works]
    #[arg(long, value_name = "HOW", value_parser = values::one_of(&BackEnd::CHOICES))]
    pub(super) fault_backend: Option<BackEnd>,
    /// How accesses are seen.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = AccessBackEnd::Faults)]
    pub(super) backend: AccessBackEnd,
    /// Accesses: how faults are told one by one [default: the best that works]
    #[arg(long, value_name = "HOW", value_enum)]
    pub(super) access_events: Option<AccessEvents>,
    /// Accesses, exact: a row for each access, not for each page, thread and interval.
    #[arg(long)]
    pub(super) every: bool,
    /// Accesses, sample: time between two samples of a thread; by the processor, so many of its events.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = values::interval)]
    pub(super) period: Nanos,
    /// Make a recording of a file of another tool: a perf.data.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "command"])]
    pub(super) import: Option<PathBuf>,
    /// Accesses: length of an interval, in time that the command would take unrecorded.
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = values::interval)]
    pub(super) access_interval: Nanos,
    /// Accesses: longer intervals, so that the command takes at most this many times as long.
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub(super) budget: Option<f64>,
    /// Accesses: how much one fault brings into view, 4K or 64K; more is cheaper and less exact.
    #[arg(long, default_value = "4K", value_name = "SIZE")]
    pub(super) granule: Bytes,
    /// Accesses: do not preload the library that notes which code asks for memory.
    #[arg(long, alias = "no-names")]
    pub(super) no_sites: bool,
    /// Say what recording costs this command: it runs so many times as it is and recorded, in turn [5 if no number is
    /// given]; its output is that of the last run.
    #[arg(
        long, value_name = "RUNS", num_args = 0..=1, require_equals = true, default_missing_value = "5",
        conflicts_with_all = ["pid", "import"], value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub(super) overhead: Option<u32>,
    /// Configuration of the heap that the command runs on; `none`: it runs on its own malloc, which is asked what it
    /// keeps free [default: $PAGEMILL_HEAP or 1y]
    #[arg(long, visible_alias = "mesh", value_name = "CONFIG", conflicts_with = "pid")]
    pub(super) heap: Option<String>,
    /// Attach to a running process.
    #[arg(short, long, value_name = "PID", value_parser = values::process)]
    pub(super) pid: Option<Pid>,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD", conflicts_with = "pid")]
    pub(super) command: Vec<OsString>,
}

/// How accesses are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AccessBackEnd {
    /// By page faults: all pages, and who touched them first
    Faults,
    /// In an emulator: every access, counted; needs qemu-user
    Exact,
    /// Samples by the processor, or by the clock with the instruction decoded; cheap
    Sample,
}

/// The shortest interval: a sample walks the page tables of the process.
pub(super) const INTERVAL_FLOOR: Nanos = Nanos(1_000_000);

/// The word of `--heap` for the command's own malloc.
const OWN_MALLOC: &str = "none";

/// How many times as long: `1.5` or `1.5x`.
fn factor(text: &str) -> std::result::Result<f64, String> {
    values::times(text)
        .ok()
        .filter(|factor| (1.01..=1000.0).contains(factor))
        .ok_or_else(|| "expected 1.01 to 1000, such as 1.5 or 1.5x".into())
}

impl Arguments {
    /// Whether a word is among those of `--with`.
    pub(super) fn records(&self, name: &str) -> bool {
        self.with.iter().any(|kind| kind.name == name)
    }

    /// Whether a command whose heap is recorded runs on its own malloc.
    pub(super) fn own_malloc(&self) -> bool {
        self.heap.as_deref() == Some(OWN_MALLOC)
    }

    /// What is asked of recorders.
    pub(super) fn options(&self) -> Options {
        let interval = Duration::from(self.interval.max(INTERVAL_FLOOR));
        let faults = faults::Options {
            threshold: self.threshold,
            sum: Some(SUM),
            back_end: self.fault_backend,
            interval: self.interval.into(),
        };
        let own_malloc = self.own_malloc();
        Options { interval, faults, period: self.period, own_malloc, marks: false }
    }

    /// The exit status of wrong usage: env(1)'s for a wrapper, whose program never ran.
    pub(super) const fn wrong_usage(&self) -> Exit {
        if self.command.is_empty() { Exit::Failed } else { Exit::WrapperFailed }
    }

    /// What is known of a recording of the process of `stat` before it begins.
    pub(super) fn meta(&self, stat: &Stat, interval: Duration) -> Meta {
        let words = |words: &[OsString]| {
            words.iter().map(|word| OsStr::to_string_lossy(word).into_owned()).collect()
        };
        let machine = pagemill_launch::context::machine();
        let attached = || {
            let cmdline = whole::read(&machine.process_file(stat.pid, "cmdline"), TEXT).ok()?;
            pagemill_launch::program::arguments(&cmdline)
        };
        let attached = self.pid.and_then(|_| attached()).unwrap_or_default();
        Meta {
            command: words(&self.command),
            attached_command: words(&attached),
            pid: stat.pid.into(),
            comm: stat.comm.clone(),
            interval: Nanos::from(interval),
            ..pagemill_launch::context::meta(&machine)
        }
    }

    /// The recording's directory, for a process with this name and number.
    pub(super) fn directory(&self, comm: &str, pid: Pid) -> PathBuf {
        self.output.clone().unwrap_or_else(|| default_name(comm, pid))
    }

    /// Has parts written as often as was asked for.
    pub(super) fn flush(&self, writer: &mut Writer) {
        if let Some(age) = self.flush {
            writer.flush_after(age);
        }
    }
}

/// `pagemill-COMM.PID` in the working directory.
fn default_name(comm: &str, pid: Pid) -> PathBuf {
    let plain: String = comm
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    PathBuf::from(format!("pagemill-{plain}.{pid}"))
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

//! What `advise` is asked.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use pagemill_advise::levers;
use pagemill_advise::rule::LEAST;
use pagemill_model::{Nanos, Pid};

use super::places::Places;

const EXAMPLES: &str = "\
Examples:
  pagemill advise -- ./solver input.dat           which lever, and what does it buy me?
  pagemill advise --goal speed -- xz -9 -k -c big.tar
  pagemill advise --load 'redis-benchmark -q -t set,get -n 100000' --metric 'GET: ([0-9.]+)' -- redis-server --save ''
  pagemill advise -p 4711                         what may help a process that runs already; nothing is tried
  pagemill advise REC                             of a recording: with accesses, what slower memory would cost
  pagemill advise --metric 'ops/s: ([0-9.]+)' --html advice.html -- ./bench
  pagemill advise --counters -- ./solver          with and without huge pages: time, page faults, TLB misses
  pagemill advise --places -o profile.csv -- ./solver    what huge pages are worth where, by 50 runs of it
";

const AFTER: &str = "\
Exit status: 0 all is well as it is, or nothing was tried (-p, REC); 1 a lever helps; 2 usage or error, the command \
fails by itself, or undecided: time was short for levers that may help; with --counters 0, or 1 if some runs failed; \
4 this user may not look (-p); 126 it cannot be executed, 127 it was not found; 128 and the signal's number if one \
ended it: what was measured until then is printed (130 Ctrl-C, 143 SIGTERM).";

/// What to find a lever for, and what counts.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// What is wanted. Default: the least memory, no slower; where no lever is worth it for that, less time at no more
    /// memory.
    #[arg(long, value_enum)]
    pub(super) goal: Option<Goal>,
    /// A gain that is worth a lever, percent. Default: 5%.
    #[arg(long, value_name = "PERCENT", value_parser = crate::values::share, allow_hyphen_values = true)]
    pub(super) worth: Option<f64>,
    /// What counts as no slower, and as no more memory, percent. Default: 2%.
    #[arg(long, value_name = "PERCENT", value_parser = crate::values::share, allow_hyphen_values = true)]
    pub(super) slower: Option<f64>,
    /// Time for all runs together: none is begun that would not fit. Default: 54 s, or 20 times what a run takes, and
    /// up to three times that on a busy machine; of a server 160 s, or eight turns.
    #[arg(long, value_name = "TIME", value_parser = crate::values::length)]
    pub(super) within: Option<Nanos>,
    /// A number that the command prints and that counts in place of time: a regular expression whose group is the
    /// number. The last match of a run is taken.
    #[arg(long, value_name = "REGEX")]
    pub(super) metric: Option<String>,
    /// Less of the metric is better, as of a latency.
    #[arg(long, requires = "metric")]
    pub(super) less_is_better: bool,
    /// The command is a server, and this is its client, a line for sh: the server is started anew for each turn, asked
    /// when it listens, left alone for a second and ended.
    #[arg(long, value_name = "CLIENT")]
    pub(super) load: Option<String>,
    /// How long the client (--load) asks at the most; it is then ended. With -p, how long the process is looked at.
    /// Default: 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = crate::values::length)]
    pub(super) time: Option<Nanos>,
    /// Try these levers only, whatever they are expected to bring.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) levers: Vec<String>,
    /// Try every lever that can be tried, seven runs each (--runs), however clear the answer is.
    #[arg(long)]
    pub(super) all: bool,
    /// So many runs of each, three at the least, however clear the answer is. With --places: of all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) runs: Option<u32>,
    /// Try the command without huge pages, as it is, and with a malloc that asks for them, five runs each (--runs), and
    /// show what the kernel and the processor counted: page faults, huge pages, TLB misses.
    #[arg(long, requires = "command", conflicts_with_all = [
        "goal", "worth", "slower", "metric", "load", "levers", "all", "html",
    ])]
    pub(super) counters: bool,
    /// Seed of the order of the runs. Default: 1.
    #[arg(long, value_name = "SEED")]
    pub(super) seed: Option<u64>,
    /// Write the answer as a page, too, also of a process or a recording.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(short, long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) printed: crate::values::Printed,
    #[command(flatten)]
    pub(super) redact: crate::values::Redact,
    /// A process that runs already: what levers may bring to it is estimated from what is seen of it; nothing is tried.
    #[arg(short, long, value_name = "PID", conflicts_with = "command", value_parser = crate::values::process)]
    pub(super) pid: Option<Pid>,
    /// A recording of its memory (`record --with heap,hugepages`): the same; of its accesses (`--with accesses`): what
    /// slower memory would cost, by the size of the fast one.
    #[arg(value_name = "REC", conflicts_with_all = ["command", "pid"])]
    pub(super) recording: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
    #[command(flatten)]
    pub(super) places: Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Goal {
    /// The least memory, no slower
    Memory,
    /// The least time, or the best metric
    Speed,
    /// The least of a metric that is a latency
    Tail,
}

impl Arguments {
    /// That each option goes with what is asked about: nothing is ignored.
    pub(super) fn ensure_meant(&self) -> Result<()> {
        let trials = [
            ("--goal", self.goal.is_some()),
            ("--worth", self.worth.is_some()),
            ("--slower", self.slower.is_some()),
            ("--within", self.within.is_some()),
            ("--metric", self.metric.is_some()),
            ("--load", self.load.is_some()),
            ("--levers", !self.levers.is_empty()),
            ("--all", self.all),
            ("--runs", self.runs.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        if self.command.is_empty() {
            let beside: Vec<&str> =
                trials.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
            ensure!(
                beside.is_empty(),
                "{} only with a command (-- CMD): nothing is tried on a process (-p PID) or a recording (REC)",
                goes(&beside)
            );
        }
        ensure!(
            self.time.is_none() || self.pid.is_some() || self.load.is_some(),
            "--for goes with -p PID or --load CLIENT (--within TIME is for all runs of a command)"
        );
        ensure!(
            !self.force || self.html.is_some() || self.places.output.is_some(),
            "--force goes with a file to write (--html FILE)"
        );
        let fewest = if self.places.places { 1 } else { LEAST };
        ensure!(
            self.runs.is_none_or(|runs| runs as usize >= fewest),
            "--runs {} is too few: runs of the same differ, and it takes {LEAST} of each to tell (--runs {LEAST})",
            self.runs.unwrap_or_default()
        );
        levers::check(&self.levers)
    }
}

/// Names, and the verb that follows them.
fn goes(names: &[&str]) -> String {
    match names {
        [one] => format!("{one} goes"),
        names => format!("{} go", names.join(", ")),
    }
}

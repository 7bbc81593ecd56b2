//! What every program is: how much work it is to do, and what it says it did.

use std::fmt;
use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_model::Pid;

use crate::address::Address;
use crate::graph::kind::Kind;
use crate::mixes::Mix;
use crate::nas::class::Class;

/// How much work to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Worker threads (of `xmalloc` this many producers and as many consumers), or connections of a client.
    pub threads: usize,
    /// How long the programs that run for a time run (`larson`, `xmalloc`, `gups`).
    pub time: Duration,
    /// Share of the full size that the programs of fixed work do; 1.0 is the published size.
    pub scale: f64,
    /// How long `churn` and `unfragmented` stay idle before they read their memory at the end.
    pub hold: Duration,
    /// Seed of everything random.
    pub seed: u64,
    /// Problem size of the [`nas`](crate::nas) and [`graph`](crate::graph) kernels.
    pub class: Class,
    /// Graph of the [`graph`](crate::graph) kernels.
    pub graph: Kind,
    /// Edges that are drawn for each of its vertices.
    pub degree: usize,
    /// Workload of the programs that run YCSB.
    pub mix: Mix,
    /// Where the server of a `ycsb` client listens.
    pub server: Option<Address>,
    /// Operations per second that a `ycsb` client begins; 0: as many as are answered.
    pub rate: f64,
    /// Time that the programs of [`growth`](crate::growth) spend between two requests.
    pub think: Duration,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            threads: 2,
            time: Duration::from_secs(5),
            scale: 1.0,
            hold: Duration::from_secs(1),
            seed: 1,
            class: Class::S,
            graph: Kind::Kronecker,
            degree: 16,
            mix: Mix::A,
            server: None,
            rate: 0.0,
            think: Duration::ZERO,
        }
    }
}

impl Params {
    /// `full` operations scaled, at least one.
    pub(crate) fn scaled(&self, full: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(1)
    }

    /// Each thread's share of `full` operations scaled, at least one.
    pub(crate) fn share(&self, full: usize) -> usize {
        self.scaled(full).div_ceil(self.threads.max(1))
    }
}

/// What a program did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Calls of the allocator (allocations plus frees), or the program's own unit of work where
    /// its documentation says so; one at least.
    pub operations: u64,
    /// Wall time of the measured part.
    pub seconds: f64,
    /// Further results: name with unit, and value.
    pub metrics: Vec<(&'static str, f64)>,
    /// What the self check established, in words.
    pub check: String,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The self check failed, which means that the allocator under test damaged memory or that the program is wrong.
    Check(String),
    /// The program could not do its work: a server went away, memory was refused.
    Outside(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Check(what) | Self::Outside(what) => out.write_str(what),
        }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Check(what)
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl From<pagemill_kernel::Error> for Failure {
    fn from(error: pagemill_kernel::Error) -> Self {
        Self::Outside(error.to_string())
    }
}

/// What comes of a program.
pub type Outcome = Result<Report, Failure>;

/// A program: name, one line for the help, and the function.
pub struct Program {
    /// Name on the command line.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// The options of the verb that it goes by, separated by spaces; it passes over all other [`Params`].
    pub takes: &'static str,
    pub(crate) work: fn(&Params) -> Outcome,
}

impl Program {
    /// Runs it.
    ///
    /// # Errors
    /// Where its self check failed, it could not do its work, or did none.
    pub fn run(&self, params: &Params) -> Outcome {
        let report = (self.work)(params)?;
        if report.operations == 0 {
            return Err(Failure::Check("nothing was done, so nothing was verified".into()));
        }
        Ok(report)
    }

    /// Whether it goes by this option, named without its dashes.
    pub fn takes(&self, option: &str) -> bool {
        self.takes.split(' ').any(|taken| taken == option)
    }

    /// The options that it goes by, as they are typed.
    pub fn options(&self) -> String {
        format!("--{}", self.takes.replace(' ', " --"))
    }
}

/// Memory of this process in bytes, Pss and the pages of memfds that no page table has, or `None` where that cannot be
/// found out (`/proc/self/smaps_rollup`, Linux 4.14; with memfds, as root).
pub(crate) fn own_pss() -> Option<f64> {
    Linux::live().memory(Pid::own()).ok()?.map(|bytes| bytes as f64)
}

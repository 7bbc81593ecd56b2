//! Faults one by one: who, when, which byte. The *fallbacks*, ways to be told of them, best first:
//!
//! | source | tells | needs |
//! |---|---|---|
//! | `bpf` | all of it, inside system calls too | CAP_BPF and CAP_PERFMON, or root |
//! | `perf-tracepoint` | the same, at a higher price | CAP_PERFMON, or root, and tracefs |
//! | `perf-software` | no writes as such; for users, not inside system calls | `perf_event_paranoid` of 2 or less |
//! | `scan` | nothing: the page tables alone | nothing |
//!
//! Pages do not depend on it: which were touched is what the page tables say. On the two lower ones they say
//! too which were written (`written`).

use pagemill_kernel::trace::access_faults::{Faults, Source};
use pagemill_kernel::trace::bpf::accesses::{Access, Accesses};
use pagemill_kernel::{Error, Kind, Linux, Result};
use pagemill_model::{Pid, named};

named! {
    /// A way to be told of faults; the best is the first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum FaultSource {
        /// BPF programs on the page fault tracepoints.
        Bpf = "bpf",
        /// Samples of these tracepoints.
        PerfTracepoint = "perf-tracepoint",
        /// Samples of the software event for page faults.
        PerfSoftware = "perf-software",
        /// None.
        Scan = "scan",
    }
}

impl FaultSource {
    /// Whether faults say if they were writes.
    pub fn tells_writes(self) -> bool {
        self <= Self::PerfTracepoint
    }
}

/// Who tells of faults.
pub(crate) enum Events {
    Bpf(Box<Accesses>),
    Perf(Faults),
    None,
}

impl Events {
    /// Takes the best source that works, from `first` on down; why the ones above it do not.
    pub(crate) fn best(linux: &Linux, first: FaultSource) -> (Self, FaultSource, Vec<String>) {
        let mut not_used = Vec::new();
        for source in FaultSource::ALL.into_iter().filter(|source| *source >= first) {
            let found = match source {
                FaultSource::Bpf if !linux.in_first_pid_namespace() => {
                    let why = "BPF programs are told the numbers of processes in the first one";
                    Err(Error::new(Kind::Unsupported, "use", "BPF in a PID namespace", why))
                }
                FaultSource::Bpf => Accesses::load().map(|accesses| Self::Bpf(Box::new(accesses))),
                FaultSource::PerfTracepoint => {
                    Faults::prepare(linux, Source::Tracepoint).map(Self::Perf)
                }
                FaultSource::PerfSoftware => {
                    Faults::prepare(linux, Source::Software).map(Self::Perf)
                }
                FaultSource::Scan => Ok(Self::None),
            };
            match found {
                Ok(events) => {
                    if let Self::Bpf(accesses) = &events
                        && let Some(why) = accesses.not_told()
                    {
                        not_used.push(format!("pages that the kernel takes for futexes: {why}"));
                    }
                    return (events, source, not_used);
                }
                Err(error) => not_used.push(format!("{}: {error}", source.name())),
            }
        }
        (Self::None, FaultSource::Scan, not_used)
    }

    /// Tells of `process` from now on.
    pub(crate) fn follow(&mut self, process: Pid) -> Result<()> {
        match self {
            Self::Bpf(accesses) => accesses.follow(process),
            Self::Perf(faults) => faults.follow(process),
            Self::None => Ok(()),
        }
    }

    /// No more of `process`.
    pub(crate) fn leave(&mut self, process: Pid) {
        match self {
            Self::Bpf(accesses) => accesses.leave(process),
            Self::Perf(faults) => faults.leave(process),
            Self::None => {}
        }
    }

    /// Hands on what was told since the last call.
    pub(crate) fn read(&mut self, each: impl FnMut(Access)) {
        match self {
            Self::Bpf(accesses) => accesses.read(each),
            Self::Perf(faults) => faults.read(each),
            Self::None => {}
        }
    }

    /// Faults that were lost.
    pub(crate) fn lost(&self) -> Result<u64> {
        match self {
            Self::Bpf(accesses) => accesses.lost(),
            Self::Perf(faults) => Ok(faults.lost()),
            Self::None => Ok(0),
        }
    }
}

//! Formats of other tools.

use clap::ValueEnum;

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Page faults as CBMM's kernel traces them, with a .rejected file beside
    Pftrace,
    /// Accesses with object and line, one table
    Parquet,
    /// Accesses as CSV in Moca's columns: pages, intervals, threads
    Moca,
    /// Accesses as CSV in the columns of TABARNAC's pages
    Tabarnac,
    /// Accesses as CSV in the columns of Mitos's samples
    Mitos,
    /// Accesses, page faults, heap and huge pages as trace events in JSON, which Perfetto opens
    Perfetto,
    /// Accesses as a profile for the Firefox Profiler
    Firefox,
    /// Resident memory by call stack and time of its last touch, as lines for flamegraph.pl and its like
    Folded,
    /// The same as a profile for speedscope
    Speedscope,
}

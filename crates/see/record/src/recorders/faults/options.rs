//! What is asked of the recorder of page faults.

use std::time::Duration;

use pagemill_model::Nanos;

/// A way of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// BPF at entry and exit of handle_mm_fault.
    BpfFexit,
    /// BPF at tracepoints and software events.
    BpfTracepoints,
    /// Pairs of samples in rings; works without privileges.
    Perf,
    /// The kernel's counters only: how many, not how long.
    Counters,
}

impl BackEnd {
    /// Best first: its name on the command line and in the header of a recording, and what it is.
    pub const CHOICES: [(&str, &str, Self); 4] = [
        ("bpf-fexit", "BPF at entry and exit of handle_mm_fault", Self::BpfFexit),
        ("bpf-tracepoints", "BPF at tracepoints and software events", Self::BpfTracepoints),
        ("perf", "Pairs of samples in rings; works without privileges", Self::Perf),
        ("counters", "The kernel's counters only: how many, not how long", Self::Counters),
    ];

    /// Its name on the command line and in the header of a recording.
    pub fn name(self) -> &'static str {
        Self::CHOICES.iter().find(|(.., this)| *this == self).map_or("", |(name, ..)| name)
    }
}

/// What is asked of the recorder.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Faults from here on have a row of their own.
    pub threshold: Nanos,
    /// Shorter ones of a thread have a row together each time that they took so long, if at all.
    pub sum: Option<Nanos>,
    /// This back end and no other.
    pub back_end: Option<BackEnd>,
    /// Time between counts.
    pub interval: Duration,
}

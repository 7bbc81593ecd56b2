//! A process at one moment.

use pagemill_analysis::latency::Histogram;
use pagemill_kernel::process::Stat;
use pagemill_model::{HeapSample, Pid};

/// A process at one moment.
#[derive(Debug)]
pub(super) struct ProcessSnapshot {
    pub(super) pid: Pid,
    pub(super) comm: String,
    pub(super) cgroup: String,
    pub(super) stat: Stat,
    pub(super) sample: HeapSample,
    pub(super) faults: Option<Histogram>,
}

//! What a recording says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::access::AccessSetup;
use crate::fault::FaultSetup;
use crate::units::{Bytes, Nanos};

/// Version of the directory layout and of the meaning of columns. New columns do not change it.
pub const SCHEMA: u64 = 1;

/// The content of `meta.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// [`SCHEMA`] of the writer; also what marks the file as ours.
    pub pagemill_recording: u64,
    /// Whether the writer has finished.
    pub state: State,
    /// Name and version of the writer.
    pub tool: String,
    /// The command that was started; empty if a running process was attached to.
    pub command: Vec<String>,
    /// The command by which a process was started that was attached to; empty if it has written a title over it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attached_command: Vec<String>,
    /// The process.
    pub pid: u64,
    /// Its name (`/proc/PID/comm`).
    pub comm: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine type, such as `x86_64`.
    pub machine: String,
    /// Page size, bytes.
    #[serde(rename = "page_size_bytes")]
    pub page_size: Bytes,
    /// The clock of all stamps.
    pub clock: String,
    /// That clock when the recording began.
    #[serde(rename = "started_ns")]
    pub started: Nanos,
    /// Wall clock at the same moment, ns since 1970 UTC.
    #[serde(rename = "started_unix_ns")]
    pub started_unix: Nanos,
    /// The clock when it ended; `None` for a run that was cut off.
    #[serde(rename = "ended_ns")]
    pub ended: Option<Nanos>,
    /// Time between samples that was asked for.
    #[serde(rename = "interval_ns")]
    pub interval: Nanos,
    /// Datasets, which are the names of directories.
    pub datasets: Vec<String>,
    /// The finished parts of each dataset, by its name; a dataset without one is not listed.
    pub parts: BTreeMap<String, Parts>,
    /// What the recorder used: kernel interfaces and the like.
    pub capabilities: Vec<String>,
    /// What it could not measure.
    pub not_measured: Vec<NotMeasured>,
    /// How page faults were measured, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultSetup>,
    /// How accesses were seen, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<AccessSetup>,
    /// What it measured and lost.
    pub losses: Losses,
    /// The most threads that its processes were seen to have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// Whether a summary is kept beside the parts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub summary: bool,
    /// Exit status of the command as a shell shows it; `None` if it was attached to or is unknown.
    pub exit_status: Option<u64>,
    /// Signal that ended the command, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<u64>,
}

/// Whether the writer has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// In the making, or cut off.
    #[default]
    Recording,
    /// Whole.
    Finished,
}

/// Which parts of a dataset are finished and have not been removed to stay below the size limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// Number of the oldest.
    pub first: u64,
    /// One more than the number of the newest.
    pub next: u64,
    /// Rows in all of them.
    pub rows: u64,
}

/// A quantity without values, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotMeasured {
    /// Columns or a group of them.
    pub what: String,
    /// The reason, with the remedy if there is one.
    pub why: String,
}

impl Meta {
    /// Whether the control group whose charge is recorded holds other processes, too.
    pub fn shares_cgroup(&self) -> bool {
        self.not_measured.iter().any(|missing| missing.what == NotMeasured::OWN_CHARGE)
    }
}

impl Meta {
    /// Notes a quantity that has no values, and why.
    pub fn lacks(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.not_measured.push(NotMeasured { what: what.into(), why: why.into() });
    }
}

impl NotMeasured {
    /// What processes that the recorded one starts take.
    pub const CHILDREN: &str = "memory of child processes";
    /// The same, of a command whose work they did.
    pub const WORKERS: &str = "memory of child processes, which did most of the work";
    /// Free memory inside the arenas of CPython's own allocator, of a process that is CPython.
    pub const PYMALLOC: &str = "what pymalloc keeps free (CPython's arenas)";
    /// The charge of a control group that holds more than the recorded process.
    pub const OWN_CHARGE: &str = "the cgroup charge of this process alone";
    /// Which code asked for memory, or a part of that.
    pub const ALLOCATIONS: &str = "allocations: which code asked for memory";
}

/// What was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// Samples that were due and not taken because the recorder was late.
    pub missed_samples: u64,
    /// Samples in parts that were removed to stay below the size limit.
    pub removed_samples: u64,
    /// Of [`Self::notes`], those that were overwritten before they were read, or are not whole.
    pub lost_notes: u64,
    /// What the recorded program noted of its allocations: a note each time that memory is taken or given back.
    pub notes: u64,
}

impl Losses {
    /// The part of the notes of allocations that was lost, 0 to 1.
    pub fn part_of_notes(&self) -> f64 {
        self.lost_notes as f64 / self.notes.max(1) as f64
    }
}

//! What a trace is to be like, who takes what it finds, and how it ends.

use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::supervised::Supervisor;
use pagemill_kernel::trace::bpf::accesses::Access;
use pagemill_model::Pid;

use crate::Granule;
use crate::events::FaultSource;
use crate::interval::Interval;

/// What a trace is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of an interval in useful time: time that the program would have taken untraced.
    pub interval: Duration,
    /// At most this much slower, by longer intervals; `None`: intervals stay what they are.
    pub budget: Option<f64>,
    /// How faults are told one by one; `None`: the best way that works.
    pub events: Option<FaultSource>,
    /// What one fault brings into view.
    pub granule: Granule,
    /// Let the program go after this long.
    pub duration: Option<Duration>,
    /// Let the program go, and end, when this one has ended.
    pub supervisor: Option<Supervisor>,
    /// Why the memory of a program that a process has just executed may not be changed, if it may not.
    pub refuse: Option<fn(&Linux, Pid) -> Option<String>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            budget: None,
            events: None,
            granule: Granule::Page,
            duration: None,
            supervisor: None,
            refuse: None,
        }
    }
}

/// A range of memory whose accesses are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untraced {
    /// Process.
    pub process: Pid,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Why not.
    pub why: String,
}

impl Untraced {
    /// Of a process as a whole.
    pub(crate) fn of(process: Pid, why: impl Into<String>) -> Self {
        Self { process, start: 0, end: 0, why: why.into() }
    }

    /// One mapping of it.
    pub(crate) fn mapping(process: Pid, mapping: &Mapping, why: &str) -> Self {
        let why = format!("{why}: {}", mapping.name);
        Self { process, start: mapping.start, end: mapping.end, why }
    }
}

/// Whether the sink wants more.
pub type SinkResult = std::result::Result<(), Stopped>;

/// Who takes what the tracer finds; what it has no use for it need not name.
pub trait Sink {
    /// A fault: the first access to a page in an interval, or its first write.
    ///
    /// # Errors
    /// What ends the tracing.
    fn access(&mut self, _access: &Access) -> SinkResult {
        Ok(())
    }
    /// The end of an interval of a process.
    ///
    /// # Errors
    /// What ends the tracing.
    fn interval(&mut self, _interval: Interval) -> SinkResult {
        Ok(())
    }
    /// A process is traced from now on; its memory was laid out like this.
    ///
    /// # Errors
    /// What ends the tracing.
    fn process(&mut self, _pid: Pid, _mappings: &[Mapping]) -> SinkResult {
        Ok(())
    }
    /// A process forked a child, which is traced from now on; its memory is laid out like its parent's.
    ///
    /// # Errors
    /// What ends the tracing.
    fn forked(&mut self, _parent: Pid, _child: Pid) -> SinkResult {
        Ok(())
    }
}

/// The sink wants no more: the program goes on untraced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// Not at all: it runs on by itself.
    LetGo,
}

//! What `record --with` can record: one recorder a word ([`RECORDERS`]), all writing into one recording.
//!
//! ```text
//!  attach (program suspended, if the recorder wants its first instruction) ──► collect, collect, … ──► finish
//! ```
//!
//! A new one is its file here and its line in [`RECORDERS`]; every kind of event has a recorder there, or a writer
//! among [`ELSEWHERE`].
//!
//! A recorder looks at the process when its interval is over and writes what it saw; the loop that
//! calls it (`record`) owns the clock, the signals and the end.

mod access_kinds;
#[cfg(target_arch = "x86_64")]
pub mod accesses;
#[cfg(target_arch = "x86_64")]
pub mod allocations;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
pub mod exact;
pub mod faults;
pub mod frag;
pub mod heap;
#[cfg(target_arch = "x86_64")]
mod held;
pub mod mappings;
#[cfg(target_arch = "x86_64")]
mod nearest;
pub mod pressure;
#[cfg(target_arch = "x86_64")]
pub mod samples;
#[cfg(target_arch = "x86_64")]
pub mod sites;
#[cfg(target_arch = "x86_64")]
mod surroundings;
#[cfg(target_arch = "x86_64")]
pub mod written;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{EventKind, Nanos, Pid};

/// One kind of thing that is recorded.
pub trait Recorder {
    /// Time between two collections.
    fn interval(&self) -> Duration;

    /// Says in the header of a recording that is about to begin what is known by now.
    fn begin(&self, _meta: &mut Meta) {}

    /// Looks at the process and writes what it saw. A process that has ended is no error.
    fn collect(&mut self, writer: &mut Writer) -> Result<()>;

    /// Somebody is about to see what there is: writes what is known by now and held back for a later moment.
    fn settle(&mut self, _writer: &mut Writer) -> Result<()> {
        Ok(())
    }

    /// A moment of the raster went by without one: the loop was late.
    fn missed(&mut self, _writer: &mut Writer) {}

    /// Writes what is left and completes the header. The process may have ended.
    fn finish(&mut self, writer: &mut Writer) -> Result<()>;

    /// How much there is so far, such as `120 samples`.
    fn amount(&self) -> String;

    /// Whether that is nothing at all, where nothing is no answer.
    fn is_empty(&self) -> bool {
        false
    }
}

/// What is asked of recorders.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time between samples.
    pub interval: Duration,
    /// Of page faults.
    pub faults: faults::Options,
    /// Of samples of accesses: time between two of a thread.
    pub period: Nanos,
}

/// The process that is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// It was started to be recorded.
    pub started: bool,
}

/// How a program is started for a recorder.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// As it is; the recorder is attached when it runs.
    Plain,
    /// On the compacting heap; the recorder is attached when it runs.
    OnHeap,
    /// Suspended before its first instruction until the recorder is attached.
    Suspended,
    /// With what the recorder adds to its command; the program is at the path.
    With(fn(&Linux, &Path, &mut Command) -> Result<Box<dyn Recorder>>),
}

/// A recorder that follows a process; nothing if that has ended.
pub type Attached = Result<Option<Box<dyn Recorder>>>;

/// A word of `record --with`.
#[derive(Clone, Copy, Debug)]
pub struct RecorderKind {
    /// The word.
    pub name: &'static str,
    /// What it records.
    pub about: &'static str,
    /// The kinds of events that it writes.
    pub writes: &'static [EventKind],
    /// How a program is started for it.
    pub start: Start,
    /// Begins to follow a process.
    pub attach: fn(&Linux, Process, &Options) -> Attached,
}

/// All words, in the order of the help.
pub const RECORDERS: &[RecorderKind] = &[
    heap::KIND,
    faults::KIND,
    access_kinds::ACCESSES,
    mappings::KIND,
    frag::KIND,
    pressure::KIND,
    access_kinds::SITES,
];

/// The kinds of events that no recorder writes, and who does.
pub const ELSEWHERE: &[(EventKind, &str)] = &[
    (EventKind::Huge, "run --huge --log"),
    (EventKind::TierView, "tier --record"),
    (EventKind::TierDecision, "tier --record"),
    (EventKind::TierOutcome, "tier --record"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_has_a_recorder_or_a_writer_and_not_both() {
        for kind in EventKind::ALL {
            let recorders = RECORDERS.iter().filter(|recorder| recorder.writes.contains(kind));
            let elsewhere = ELSEWHERE.iter().filter(|(other, _)| other == kind);
            let (recorders, elsewhere) = (recorders.count(), elsewhere.count());
            assert!(recorders > 0 || elsewhere == 1, "nobody records {kind:?}");
            assert!(recorders == 0 || elsewhere == 0, "{kind:?} has a recorder");
        }
        let mut names: Vec<_> = RECORDERS.iter().map(|recorder| recorder.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RECORDERS.len());
    }
}

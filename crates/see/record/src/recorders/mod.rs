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
pub mod blocks;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
pub mod exact;
pub mod faults;
pub mod frag;
pub mod heap;
pub mod mappings;
#[cfg(target_arch = "x86_64")]
pub mod nearest;
pub mod pressure;
mod recorder;
#[cfg(target_arch = "x86_64")]
mod registers;
#[cfg(target_arch = "x86_64")]
pub mod samples;
#[cfg(target_arch = "x86_64")]
pub mod sites;
#[cfg(target_arch = "x86_64")]
mod surroundings;
#[cfg(target_arch = "x86_64")]
pub mod untraceable;
#[cfg(target_arch = "x86_64")]
pub mod written;

pub use access_kinds::ACCESSES;
pub use recorder::{Attached, Options, Process, Recorder, RecorderKind, Start};

use pagemill_model::EventKind;

/// All words, in the order of the help.
pub const RECORDERS: &[RecorderKind] = &[
    heap::KIND,
    faults::KIND,
    ACCESSES,
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

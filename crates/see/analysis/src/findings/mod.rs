//! What a recording comes to: at most five findings, in sentences with numbers, each with what it was concluded from
//! and the command to type next.
//!
//! Terms:
//! - the *stake* of a finding is what could be gained at most: bytes of memory, or time.
//! - its *share* is the stake by all there is of its kind in the recording: of the memory, of the time. Findings of
//!   bytes and of time are ordered by it.
//!
//! ```text
//!  views of the recording ──► Seen ──► one file a subject: candidates above a threshold ──► the five largest
//! ```
//!
//! Always true: the same views give the same findings; nothing is concluded from what was not measured, and what was
//! asked of a recording and cannot be told from it is [`Inconclusive`], so no finding and nothing inconclusive is an
//! answer.

mod cold;
mod faults;
mod finding;
mod fragmentation;
mod growth;
mod heap;
mod huge;
mod sparse;

pub use cold::is_stored;
pub use finding::{Finding, Inconclusive, RecordedViews, Stake};
pub use huge::BloatFold;

/// Findings at most.
pub const MOST: usize = 5;

/// What a recording comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conclusions {
    /// What is most at stake first; at most [`MOST`].
    pub findings: Vec<Finding>,
    /// What could not be told from it.
    pub inconclusive: Vec<Inconclusive>,
    /// What was not asked of it; none where there are findings.
    pub not_recorded: Option<NotRecorded>,
}

/// Kinds of events that a recording does not have and that findings are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRecorded {
    /// What they would tell, each a few words.
    pub what: Vec<&'static str>,
    /// The command that records them.
    pub next: String,
}

impl NotRecorded {
    fn of(seen: &RecordedViews<'_>) -> Option<Self> {
        let kinds = [
            ("accesses", "what memory is cold (accesses)", seen.accesses.is_some()),
            ("faults", "whether page faults stall it (faults)", seen.faults.is_some()),
            ("heap", "what its malloc keeps free (heap)", seen.heap.is_some()),
        ];
        let missing: Vec<_> = kinds.into_iter().filter(|(.., is_there)| !is_there).collect();
        // Accesses are recorded by themselves.
        let words = missing.iter().map(|(word, ..)| *word);
        let (alone, others): (Vec<&str>, Vec<&str>) = words.partition(|word| *word == "accesses");
        let runs = [alone, others].into_iter().filter(|words| !words.is_empty());
        let next = runs
            .map(|words| format!("pagemill record --with {} {}", words.join(","), seen.program()));
        (!missing.is_empty()).then(|| Self {
            what: missing.iter().map(|(_, what, _)| *what).collect(),
            next: next.collect::<Vec<_>>().join("; "),
        })
    }
}

/// What the views of a recording come to.
pub fn conclude(seen: &RecordedViews<'_>) -> Conclusions {
    let mut found = Vec::new();
    found.extend(cold::find(seen));
    found.extend(sparse::find(seen));
    found.extend(growth::find(seen));
    found.extend(heap::find(seen));
    found.extend(faults::find(seen));
    found.extend(huge::find(seen));
    found.extend(fragmentation::find(seen));
    found.sort_by(|a: &Finding, b| b.share.total_cmp(&a.share).then(a.subject.cmp(b.subject)));
    // What the others are a part of stands first.
    found.splice(0..0, heap::children(seen));
    found.truncate(MOST);
    let inconclusive = [
        heap::elsewhere(seen),
        cold::inconclusive(seen),
        sparse::inconclusive(seen),
        heap::inconclusive(seen),
        heap::replaced(seen),
        faults::inconclusive(seen),
        huge::inconclusive(seen),
    ];
    let not_recorded = if found.is_empty() { NotRecorded::of(seen) } else { None };
    let inconclusive = inconclusive.into_iter().flatten().collect();
    Conclusions { findings: found, inconclusive, not_recorded }
}

#[cfg(test)]
mod tests;

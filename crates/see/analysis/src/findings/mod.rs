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
//! Always true: the same views give the same findings; nothing is said of what was not measured; where nothing is
//! worth naming there is no finding, which is an answer.

mod cold;
mod faults;
mod fragmentation;
mod heap;
mod huge;
mod sparse;

pub use huge::BloatFold;

use pagemill_model::recording::Meta;
use pagemill_model::{AccessSetup, Bytes, FaultSetup, Nanos};

use crate::accesses::AccessView;
use crate::faults::FaultView;
use crate::fragmentation::timeline::FragView;
use crate::heap::HeapView;
use crate::heat::HeatView;
use crate::hugepages::HugePageView;

/// Findings at most.
pub const MOST: usize = 5;

/// What could be gained at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stake {
    /// Memory.
    Memory(Bytes),
    /// Time.
    Time(Nanos),
}

/// One conclusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it is about, in a word: `cold`, `write-once`, `sparse`, `heap-free`, `faults`, `tail`, `bloat`, `huge`,
    /// `fragmentation`.
    pub subject: &'static str,
    /// What is, with numbers, and what could be done.
    pub text: String,
    /// What it was concluded from.
    pub evidence: String,
    /// The command to type next.
    pub next: String,
    /// What could be gained at most.
    pub stake: Stake,
    /// The stake's part of all there is of its kind, 0 to 1.
    pub share: f64,
}

/// The views of a recording, as far as it has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    /// Where the recording is, for commands.
    pub recording: &'a str,
    /// Its header.
    pub meta: Option<&'a Meta>,
    /// The process and its heap.
    pub heap: Option<&'a HeapView>,
    /// Page faults.
    pub faults: Option<(&'a FaultSetup, &'a FaultView)>,
    /// Mappings and the huge pages in them.
    pub hugepages: Option<&'a HugePageView>,
    /// Zeros on huge pages, where a policy looked for them.
    pub bloat: Option<Bytes>,
    /// Free memory of the machine.
    pub frag: Option<&'a FragView>,
    /// Accesses: how they were seen, by page, by object.
    pub accesses: Option<(&'a AccessSetup, &'a AccessView, &'a HeatView)>,
}

/// The findings, what is most at stake first.
pub fn conclude(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(cold::find(seen));
    found.extend(sparse::find(seen));
    found.extend(heap::find(seen));
    found.extend(faults::find(seen));
    found.extend(huge::find(seen));
    found.extend(fragmentation::find(seen));
    found.sort_by(|a: &Finding, b| b.share.total_cmp(&a.share).then(a.subject.cmp(b.subject)));
    found.truncate(MOST);
    found
}

impl Seen<'_> {
    /// The program as the end of a command: `-- CMD`, or `-p PID` of one that was attached to.
    fn program(&self) -> String {
        let Some(meta) = self.meta else { return "-- CMD".into() };
        if meta.command.is_empty() {
            return format!("-p {}", meta.pid);
        }
        let quoted = |word: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
            match !word.is_empty() && word.chars().all(plain) {
                true => word.clone(),
                false => format!("'{}'", word.replace('\'', r"'\''")),
            }
        };
        format!("-- {}", meta.command.iter().map(quoted).collect::<Vec<_>>().join(" "))
    }

    /// How a program is started again, for what cannot be done to one that runs.
    fn again(&self) -> String {
        match self.meta {
            Some(meta) if meta.command.is_empty() => "-- CMD".into(),
            _ => self.program(),
        }
    }

    /// Whether some allocations, or all, were not seen.
    fn lacks_allocations(&self) -> bool {
        self.meta.is_some_and(|meta| {
            meta.not_measured.iter().any(|missing| missing.what.starts_with("allocations"))
        })
    }

    /// So many pages in bytes.
    fn bytes(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.meta.map_or(4096, |meta| meta.page_size.0.max(1)))
    }
}

/// A sum that a damaged recording does not overflow.
fn total(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, u64::saturating_add)
}

/// A size as a sentence has it.
fn size(bytes: u64) -> String {
    Bytes(bytes).to_string().trim().to_owned()
}

/// A time as a sentence has it.
fn time(nanos: u64) -> String {
    Nanos(nanos).to_string().trim().to_owned()
}

/// A share in percent.
fn percent(share: f64) -> String {
    match share * 100.0 {
        share if share < 10.0 => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}

/// A function and its line, the function as code.
fn code(name: &str) -> String {
    match name.split_once(" (") {
        Some((function, line)) => format!("`{function}` ({line}"),
        None => format!("`{name}`"),
    }
}

#[cfg(test)]
mod tests;

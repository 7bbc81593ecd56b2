//! What a heat map says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::residency::{LiveMemory, SparseSite};
use pagemill_model::sums::add;
use pagemill_model::{Bytes, Nanos};

/// What happened in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heat {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Pages that nobody had touched before.
    pub first: u64,
    /// The threads, one bit each by their number in [`HeatView::threads`]; the last bit stands for all from there on.
    pub threads: u64,
}

impl Heat {
    pub(super) fn add(&mut self, other: &Self) {
        add(&mut self.reads, other.reads);
        add(&mut self.writes, other.writes);
        add(&mut self.first, other.first);
        self.threads |= other.threads;
    }

    /// Reads and writes.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// A cell: part, step, and what happened.
pub type Cell = (u64, u64, Heat);

/// A step of time, and how many pages were last used in it.
pub type LastUse = (u64, u64);

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectHeat {
    /// What it is called.
    pub name: String,
    /// `global`, `allocation`, `stack` or `mapping`.
    pub kind: String,
    /// For an allocation, who asked for it, innermost first; for a global, its file.
    pub detail: Vec<String>,
    /// Bytes of the largest that has this name; 0 where that is not known.
    pub bytes: u64,
    /// Pages that were touched.
    pub pages: u64,
    /// Of them, written.
    pub written: u64,
    /// All of its cells together.
    pub total: Heat,
    /// Pages that each thread touched first: number of the thread, pages; the most first.
    pub first_by: Vec<(usize, u64)>,
    /// Lines of code that accessed it most: number in [`HeatView::lines`], reads, writes.
    pub lines: Vec<(usize, u64, u64)>,
    /// Parts that it is cut into.
    pub slices: u64,
    /// What happened in it, by part and step.
    pub cells: Vec<Cell>,
    /// Its pages that hold something near the end (at the end, or until the last eighth of the recording), by the step
    /// in which they were used last, or in which the interval of that touch ended: before a rest that was most of their
    /// life and lasted into the last eighth, else when they were touched last.
    #[serde(default)]
    pub last_touched: Vec<LastUse>,
    /// Those of them in which nothing of it lives, for it was freed: what keeps them is another's.
    #[serde(default)]
    pub last_touched_freed: Vec<LastUse>,
    /// Those of them that were written, likewise by the last write.
    #[serde(default)]
    pub last_written: Vec<LastUse>,
    /// Those of them that rested into the last eighth, by the step in which they were touched or given back then.
    #[serde(default)]
    pub rested_until: Vec<LastUse>,
    /// How many of those were given back.
    #[serde(default)]
    pub rested_freed: u64,
}

/// A place in the code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineHeat {
    /// Function, file and line.
    pub name: String,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl HeatView {
    /// Of a view that has last touches and writes by the first access in their interval, as earlier versions did: by
    /// the interval's end at the latest, where the `longest` took so many ns.
    pub fn until_intervals_end(&mut self, longest: u64) {
        let (later, last) = (longest.div_ceil(self.step.max(1)), self.steps.saturating_sub(1));
        let ends = |uses: &mut Vec<LastUse>| {
            let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
            for (step, pages) in uses.drain(..) {
                add(ended.entry(step.saturating_add(later).min(last)).or_default(), pages);
            }
            uses.extend(ended);
        };
        for object in &mut self.objects {
            ends(&mut object.last_touched);
            ends(&mut object.last_touched_freed);
            ends(&mut object.last_written);
        }
    }
}

/// What the events add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatView {
    /// Length of a step, ns.
    pub step: u64,
    /// Steps until the last event.
    pub steps: u64,
    /// Threads, in the order in which they were seen.
    pub threads: Vec<u64>,
    /// Objects, the most accesses first; the last may be all others.
    pub objects: Vec<ObjectHeat>,
    /// Objects that are in the last one.
    pub others: u64,
    /// Lines of code, the most accesses first.
    pub lines: Vec<LineHeat>,
    /// Largest working set of an interval in each step, pages.
    pub working_set: Vec<u64>,
    /// Accesses to objects that have a name of their own: globals, allocations, stacks.
    pub in_objects: u64,
    /// All accesses.
    pub accesses: u64,
    /// Call sites that keep sparse pages, the most pages first.
    #[serde(default)]
    pub sparse: Vec<SparseSite>,
    /// What was live of what was allocated.
    #[serde(default)]
    pub kept: LiveMemory,
    /// How much was live of what the process had allocated that had most, since the recording began.
    #[serde(default)]
    pub live: Vec<(Nanos, Bytes)>,
    /// Touched and written pages of intervals, and accesses to further pages, that were left out, for there were more
    /// than the [`super::Bounds`].
    #[serde(default)]
    pub left_out: u64,
}

//! What a validation says.

use std::collections::BTreeMap;

use pagemill_model::Pid;
use serde::Serialize;

/// Kinds of memory, in the order of reports.
pub const KINDS: [&str; 5] = ["image", "libraries", "heap", "stack", "anonymous"];

/// How many pages agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Pages (or pages in intervals) that were accessed for certain.
    pub exact: u64,
    /// Of them, not told.
    pub missing: u64,
    /// Told, and accessed by nobody.
    pub extra: u64,
    /// Told, and accessed by the kernel alone.
    pub kernel: u64,
    /// Told, and accessed by the emulator alone.
    pub emulator: u64,
    /// Told, of a file, and mapped by the kernel around a fault on a page near it.
    pub around: u64,
    /// Told, and kept since the interval before, as its row counts.
    pub kept: u64,
}

/// One page that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Whether the page is missing rather than extra.
    pub missing: bool,
    /// Whether this is about writes.
    pub written: bool,
    /// Process.
    pub pid: Pid,
    /// First address of the page.
    pub address: u64,
    /// What lies there.
    pub name: String,
    /// The interval; `None`: in the whole run.
    pub interval: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ValidationView {
    /// Touched pages of the whole run, by [`KINDS`].
    pub touched: BTreeMap<&'static str, Tally>,
    /// Written pages of the whole run, by [`KINDS`].
    pub written: BTreeMap<&'static str, Tally>,
    /// Touched pages in intervals.
    pub touched_in_intervals: Tally,
    /// Written pages in intervals.
    pub written_in_intervals: Tally,
    /// Intervals looked at.
    pub intervals: u64,
    /// Windows that may belong to more than one interval.
    pub on_borders: u64,
    /// The first pages that differ.
    pub differences: Vec<Difference>,
}

impl ValidationView {
    /// Whether nothing is missing and nothing extra.
    pub fn agrees(&self) -> bool {
        let whole = self.touched.values().chain(self.written.values());
        let parts = [&self.touched_in_intervals, &self.written_in_intervals];
        self.intervals > 0 && whole.chain(parts).all(|tally| tally.missing == 0 && tally.extra == 0)
    }
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.exact += other.exact;
        self.missing += other.missing;
        self.extra += other.extra;
        self.kernel += other.kernel;
        self.emulator += other.emulator;
        self.around += other.around;
        self.kept += other.kept;
    }
}

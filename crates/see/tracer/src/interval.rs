//! What a process touched in an interval.

use pagemill_kernel::clock;

/// Pages side by side: first address and first address after them.
pub type Pages = (u64, u64);

/// What a process touched between two ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Process.
    pub process: u32,
    /// Its number, from 0 for each process.
    pub number: u64,
    /// When it began, ns of CLOCK_MONOTONIC.
    pub began: u64,
    /// When its scan began.
    pub scanned: u64,
    /// When the next interval began.
    pub ended: u64,
    /// Pages touched, in address order, none twice.
    pub touched: Vec<Pages>,
    /// Pages written, of all that may be written to, in address order, none twice; `None` where the page tables
    /// do not say.
    pub written: Option<Vec<Pages>>,
    /// Where the heap lay at its end: what `brk` gave the program.
    pub heap: Pages,
    /// Pages that may be in `touched` without having been touched in this interval, for their entries cannot be
    /// dropped: private memory since a fork, and private writable mappings of files.
    pub kept: u64,
}

/// Sorted, without overlap.
pub(crate) fn normal(mut pages: Vec<Pages>) -> Vec<Pages> {
    pages.sort_unstable();
    pages.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
    pages
}

/// The time by which intervals are told, ns of CLOCK_MONOTONIC.
pub(crate) fn now() -> u64 {
    u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn pages_that_overlap_or_touch_become_one_run() {
        assert_eq!(normal(vec![(8, 9), (1, 4), (4, 6), (2, 3)]), [(1, 6), (8, 9)]);
    }
}

//! What a process touched in an interval.

use pagemill_kernel::clock;
use pagemill_model::{PageRange, Pid};

/// What a process touched between two ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Process.
    pub process: Pid,
    /// Its number, from 0 for each process.
    pub number: u64,
    /// When it began, ns of CLOCK_MONOTONIC.
    pub began: u64,
    /// When its scan began.
    pub scanned: u64,
    /// When the next interval began.
    pub ended: u64,
    /// Pages touched, in address order, none twice.
    pub touched: Vec<PageRange>,
    /// Pages written, of all that may be written to, in address order, none twice; `None` where the page tables
    /// do not say.
    pub written: Option<Vec<PageRange>>,
    /// Where the heap lay at its end: what `brk` gave the program.
    pub heap: PageRange,
    /// Pages that may be in `touched` without having been touched in this interval, for their entries could not be
    /// dropped at the end of the one before: private memory since a fork, and private writable mappings of files.
    pub kept: u64,
    /// Pages whose entries stay at its end.
    pub stays: u64,
}

/// Sorted, without overlap.
pub(crate) fn normal(mut pages: Vec<PageRange>) -> Vec<PageRange> {
    pages.sort_unstable();
    pages.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        if joins {
            before.end = before.end.max(next.end);
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
    use pagemill_model::PageRange;

    use super::normal;

    #[test]
    fn pages_that_overlap_or_touch_become_one_run() {
        let ranges = |of: &[(u64, u64)]| -> Vec<PageRange> {
            of.iter().map(|&(start, end)| PageRange::new(start..end)).collect()
        };
        assert_eq!(normal(ranges(&[(8, 9), (1, 4), (4, 6), (2, 3)])), ranges(&[(1, 6), (8, 9)]));
    }
}

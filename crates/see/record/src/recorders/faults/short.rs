//! The short faults of each thread, summed up: where samples are all there is, as `faults.bpf.c` does it in the kernel.
//!
//! Always true: a sum took as long as it is to, within [`SUM_WITHIN`]; no fault is in two sums.

use std::collections::HashMap;

use pagemill_model::fault::SUM_WITHIN;
use pagemill_model::{FaultSum, Nanos, Pid};

/// Faults of a thread that have no row yet.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadFaults {
    began: u64,
    took: u64,
    faults: u64,
}

/// The sums in the making.
#[derive(Debug, Default)]
pub struct ShortFaults {
    /// How long the faults of a row take; `None` without rows.
    sum: Option<Nanos>,
    threads: HashMap<Pid, ThreadFaults>,
}

impl ShortFaults {
    /// Sums of so long, if any.
    pub fn new(sum: Option<Nanos>) -> Self {
        Self { sum, threads: HashMap::new() }
    }

    /// Adds a fault of a thread (process, thread) that took `latency` and ended at `ended`; the row of all if that is
    /// enough.
    pub fn add(
        &mut self,
        (process, thread): (Pid, Pid),
        ended: u64,
        latency: u64,
    ) -> Option<FaultSum> {
        let enough = self.sum?;
        let since = self.threads.entry(thread).or_default();
        if ended.saturating_sub(since.began) > SUM_WITHIN.0 {
            *since =
                ThreadFaults { began: ended.saturating_sub(latency), ..ThreadFaults::default() };
        }
        since.took = since.took.saturating_add(latency);
        since.faults += 1;
        if since.took < enough.0 {
            return None;
        }
        let ThreadFaults { began, took, faults } = self.threads.remove(&thread)?;
        Some(FaultSum {
            time: Nanos(ended),
            span: Some(Nanos(ended.saturating_sub(began))),
            took: Some(Nanos(took)),
            faults: Some(faults),
            pid: Some(process.into()),
            tid: Some(thread.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u64 = 1000;

    /// The rows of faults of 2 us, one each `every` us, of two threads in turn.
    fn rows(every: u64) -> Vec<FaultSum> {
        let mut short = ShortFaults::new(Some(Nanos(100_000)));
        let fault = |at: u64| {
            let ended = 10_000_000 + at * every * 1000;
            short.add((Pid(1), Pid(2 + (at % 2) as u32)), ended, 2000)
        };
        (0..MANY).filter_map(fault).collect()
    }

    #[test]
    fn faults_close_upon_each_other_have_a_row_and_sparse_ones_none() {
        let dense = rows(3);
        assert_eq!(dense.len() as u64, MANY / 50);
        for row in &dense {
            assert_eq!((row.faults, row.took), (Some(50), Some(Nanos(100_000))));
            // From the beginning of the first to the end of the last, each second one the other thread's.
            assert_eq!(row.span, Some(Nanos(49 * 6000 + 2000)));
        }
        assert!(rows(20).is_empty(), "a twentieth of each thread's time");
        assert_eq!(ShortFaults::new(None).add((Pid(1), Pid(2)), 10_000_000, 1_000_000), None);
    }
}

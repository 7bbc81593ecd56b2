//! The benefit of each slice of a program's memory from the processor's counters: how long page walks took is counted,
//! where they were is sampled.
//!
//! ```text
//!   runs without huge pages   walks W0, cycles in the kernel K0
//!   runs with all on them     walks W1, cycles in the kernel K1
//!   one more run, sampled     s_j of the walks were in slice j
//!
//!   b_j = (W0 - W1) s_j / Σ s  +  (K0 - K1) p_j / Σ p                 p_j: base pages used in slice j
//! ```
//!
//! The first term is what the published profiler takes from the same counters, a run a slice; the second one is faults,
//! which the kernel serves page by page. The published profiler leaves it out, and so does this one where the kernel's
//! cycles may not be counted.
//!
//! Always true: the benefits add up to what was counted, if a walk was sampled and a page used; a slice without walks
//! and pages is worth nothing; the deviation of a share falls with the root of the samples.

use pagemill_model::perf_data::walked;
use pagemill_model::{Event, Fold, Pid};

use crate::addresses::ProcessAddress;
use crate::slices::Benefit;
use crate::statistics::mean;

/// What was counted in a run, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Walks of page tables, in user mode.
    pub walks: f64,
    /// Time in the kernel; absent if it may not be counted.
    pub kernel: Option<f64>,
}

/// A slice: walks that were sampled in it, and base pages that were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Samples of accesses that walked.
    pub walks: u64,
    /// Base pages.
    pub pages: u64,
}

/// Mean and variance of the mean.
fn of(values: &[f64]) -> (f64, f64) {
    let (runs, mean) = (values.len() as f64, mean(values).unwrap_or(0.0));
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, squares / (runs - 1.0).max(1.0) / runs.max(1.0))
}

/// The benefit of each slice, seconds; `None` without a run of each kind.
pub fn benefits(none: &[Counted], all: &[Counted], slices: &[Sampled]) -> Option<Vec<Benefit>> {
    if none.is_empty() || all.is_empty() {
        return None;
    }
    let spared = |of_run: &dyn Fn(&Counted) -> f64| {
        let values = |runs: &[Counted]| of(&runs.iter().map(of_run).collect::<Vec<_>>());
        let ((without, doubt), (with, other)) = (values(none), values(all));
        (without - with, doubt + other)
    };
    let walks = spared(&|run| run.walks);
    let timed = none.iter().chain(all).all(|run| run.kernel.is_some());
    let kernel = if timed { spared(&|run| run.kernel.unwrap_or(0.0)) } else { (0.0, 0.0) };
    let sum = |part: &dyn Fn(&Sampled) -> u64| slices.iter().map(part).sum::<u64>().max(1) as f64;
    let (walked, used) = (sum(&|slice| slice.walks), sum(&|slice| slice.pages));
    let benefit = |slice: &Sampled| {
        let share = slice.walks as f64 / walked;
        let part = slice.pages as f64 / used;
        // Of a share that is sampled: that of a binomial distribution, as if one more sample had been there.
        let doubt = (share + 1.0 / walked) * (1.0 - share).max(0.0) / walked;
        let variance = walks.0 * walks.0 * doubt + share * share * walks.1 + part * part * kernel.1;
        Benefit { mean: walks.0 * share + kernel.0 * part, deviation: variance.sqrt() }
    };
    Some(slices.iter().map(benefit).collect())
}

/// Samples of accesses in a recording: how many told of the TLB, and where those were that walked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkFold {
    told: u64,
    walks: Vec<ProcessAddress>,
}

/// What the samples say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// Samples that told whether their access hit a TLB.
    pub told: u64,
    /// Of each access that walked the page tables, in order.
    pub at: Vec<ProcessAddress>,
}

impl Walks {
    /// Accesses that walked in a part of a process's memory.
    pub fn of(&self, pid: Pid, range: std::ops::Range<u64>) -> &[ProcessAddress] {
        let before =
            |address| self.at.partition_point(|at| *at < ProcessAddress::new(pid, address));
        &self.at[before(range.start)..before(range.end.max(range.start))]
    }
}

impl Fold for WalkFold {
    type View = Walks;

    fn event(&mut self, event: &Event) {
        let Event::Access(access) = event else { return };
        let Some(missed) = access.data_source.and_then(walked) else { return };
        self.told += 1;
        if let (true, Some(address)) = (missed, access.address) {
            self.walks.push(ProcessAddress::new(Pid::told(access.pid.unwrap_or(0)), address));
        }
    }

    fn view(&self) -> Walks {
        let mut at = self.walks.clone();
        at.sort_unstable();
        Walks { told: self.told, at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pagemill_model::Access;

    fn run(walks: f64, kernel: f64) -> Counted {
        Counted { walks, kernel: Some(kernel) }
    }

    #[test]
    fn walks_go_where_they_were_sampled_and_faults_where_pages_were_used() {
        let slices = [
            Sampled { walks: 90, pages: 100 },
            Sampled { walks: 10, pages: 300 },
            Sampled::default(),
        ];
        let none = [run(2.1, 0.5), run(1.9, 0.7)];
        let all = [run(0.5, 0.2), run(0.5, 0.2)];
        let found = benefits(&none, &all, &slices).unwrap();
        let expected = [1.5 * 0.9 + 0.4 * 0.25, 1.5 * 0.1 + 0.4 * 0.75, 0.0];
        for (benefit, expected) in found.iter().zip(expected) {
            assert!((benefit.mean - expected).abs() < 1e-9, "{found:?}");
        }
        assert!(found[0].sure() && !found[2].sure(), "{found:?}");
        let unseen = [Counted { kernel: None, ..none[0] }];
        let walks_alone = benefits(&unseen, &all, &slices).unwrap();
        assert!((walks_alone[1].mean - 0.16).abs() < 1e-9, "{walks_alone:?}");
        assert_eq!(benefits(&none, &[], &slices), None);
    }

    /// Hit in the first level, found in the second, walked, and a sample that does not tell.
    #[test]
    fn samples_that_missed_both_levels_are_walks() {
        let source = |bits: u64| bits << 26;
        let mut fold = WalkFold::default();
        for (address, tlb) in [(1, 0x0a), (2, 0x12), (7, 0x14), (9, 0x01), (5, 0x24), (6, 0x0c)] {
            fold.event(&Event::Access(Box::new(Access {
                pid: Some(3),
                address: Some(address),
                data_source: Some(source(tlb)),
                ..Access::default()
            })));
        }
        let walks = fold.view();
        assert_eq!(
            (walks.told, &walks.at[..]),
            (5, &[5, 7].map(|address| ProcessAddress::new(Pid(3), address))[..])
        );
        assert_eq!(
            (
                walks.of(Pid(3), 5..7).len(),
                walks.of(Pid(3), 5..8).len(),
                walks.of(Pid(4), 0..9).len()
            ),
            (1, 2, 0)
        );
    }

    proptest! {
        #[test]
        fn benefits_add_up_to_what_was_counted(
            slices in prop::collection::vec((0..1000_u64, 0..512_u64), 1..50),
            runs in prop::collection::vec((0.0..10.0, 0.0..10.0, 0.0..10.0, 0.0..10.0), 1..6),
        ) {
            let slices: Vec<Sampled> =
                slices.into_iter().map(|(walks, pages)| Sampled { walks: walks + 1, pages: pages + 1 }).collect();
            let none: Vec<Counted> = runs.iter().map(|each| run(each.0, each.1)).collect();
            let all: Vec<Counted> = runs.iter().map(|each| run(each.2, each.3)).collect();
            let total: f64 = benefits(&none, &all, &slices).unwrap().iter().map(|benefit| benefit.mean).sum();
            let counted = |runs: &[Counted]| {
                let walks = runs.iter().map(|run| run.walks + run.kernel.unwrap());
                walks.sum::<f64>() / runs.len() as f64
            };
            prop_assert!((total - (counted(&none) - counted(&all))).abs() < 1e-6);
            let more = slices.iter().map(|slice| Sampled { walks: slice.walks * 100, ..*slice });
            let more: Vec<Sampled> = more.collect();
            let all_more = benefits(&none, &all, &more).unwrap();
            for (few, many) in benefits(&none, &all, &slices).unwrap().iter().zip(all_more) {
                prop_assert!(many.deviation <= few.deviation + 1e-9);
            }
        }
    }
}

//! What `record --with accesses` costs: the NAS kernels, single steps, and how long a large recording takes to make and
//! to open. Times of kernels are CPU time as the kernel tells it.

use std::path::Path;

use pagemill_analysis::statistics::{self, median};

use super::options::{BUDGET, NATIVE, OPENING, RECORDED, STEPS};
use super::outcome::{Goal, Outcome, at_most, shown};
use crate::coverage;
use crate::moca;
use crate::tabled::Table;

/// Bytes of all files in a directory and below.
pub(super) fn bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What Moca had of IS, class A, with wake-ups every 50 ms: accesses, and how many wake-ups.
fn of_moca() -> (f64, f64) {
    let sweep = |metric| coverage::number(&moca::SOURCE, "sweep", "50 ms", metric);
    let (events, seconds) = sweep("events").zip(sweep("time")).unwrap_or((f64::NAN, f64::NAN));
    (events, seconds / 0.05)
}

impl Outcome {
    fn kernels(&self) -> &'static [String] {
        &self.options.runs().kernels
    }

    fn slowdown(&self, kernel: &str, arm: &str) -> Option<f64> {
        let cpu = |arm| self.middle(kernel, arm, "cpu_seconds");
        Some(cpu(arm)? / cpu(NATIVE)?)
    }

    fn slowdowns(&self, arm: &str) -> Vec<f64> {
        self.kernels().iter().filter_map(|kernel| self.slowdown(kernel, arm)).collect()
    }

    pub(super) fn of_accesses(&self) -> [Table; 3] {
        let arms = [(RECORDED, "recorded"), (BUDGET, "with --budget 2")];
        let rows = self.kernels().iter().flat_map(|kernel| {
            arms.map(|(arm, name)| {
                let middle = |figure| self.middle(kernel, arm, figure);
                let (events, native) =
                    (middle("accesses"), self.values(kernel, NATIVE, "cpu_seconds"));
                let each = middle("bytes").zip(events).map(|(size, events)| size / events.max(1.0));
                vec![
                    kernel.clone(),
                    name.to_owned(),
                    native.len().to_string(),
                    shown(median(&native), 3),
                    shown(self.slowdown(kernel, arm), 2),
                    shown(events, 0),
                    shown(middle("intervals"), 0),
                    shown(each, 1),
                    self.values(kernel, arm, "lost").iter().sum::<f64>().to_string(),
                    self.why(kernel, arm).unwrap_or_default(),
                ]
            })
        });
        let class = &self.options.runs().class;
        let kernels = Table::new(
            format!(
                "accesses of the NAS kernels, class {class}, one thread, intervals of 50 ms: medians"
            ),
            "kernel||runs|native, CPU s|times|accesses|intervals|bytes each on disk|lost|",
            rows,
        );
        let first = self.cells(STEPS, NATIVE).find_map(|ran| ran.as_ref().ok());
        let rows = first.into_iter().flat_map(|ran| ran.metrics.keys()).map(|name| {
            let step = |arm| self.middle(STEPS, arm, name);
            vec![
                name.clone(),
                shown(step(NATIVE), 2),
                shown(step(RECORDED), 2),
                shown(self.adds(name), 2),
            ]
        });
        let steps = Table::new(
            format!("single steps: medians of {} runs", self.options.accesses),
            "step|native|recorded|added",
            rows.chain(self.why(STEPS, RECORDED).map(|why| vec![why])),
        );
        let count = self.options.runs().opened;
        let time = |figure| self.middle(OPENING, RECORDED, figure);
        let rows = [
            ("made up, written and folded", "made_seconds", 1e9 / count as f64),
            ("opened: its page with the heat map", "opened_seconds", f64::NAN),
        ]
        .map(|(what, figure, each)| {
            let each = time(figure).map(|made| made * each).filter(|each| each.is_finite());
            vec![what.to_owned(), shown(time(figure), 2), shown(each, 0)]
        });
        let opened = Table::new(
            format!("a recording of {count} accesses"),
            "|seconds|ns an access",
            rows.to_vec(),
        );
        [kernels, steps, opened]
    }

    /// What recording adds to a step.
    fn adds(&self, name: &str) -> Option<f64> {
        Some(self.middle(STEPS, RECORDED, name)? - self.middle(STEPS, NATIVE, name)?)
    }

    pub(super) fn goals_of_accesses(&self) -> Vec<Goal> {
        let at_least = |goal: &str, least: f64, here: Option<f64>| {
            let limit = format!("at least {least:.0}");
            (goal.to_owned(), limit, here, 0, here.map(|here| here >= least))
        };
        let adds = |goal, most, digits, step| at_most(goal, most, self.adds(step), digits);
        let recorded = |case, figure| self.middle(case, RECORDED, figure);
        let worst = |arm| self.slowdowns(arm).into_iter().reduce(f64::max);
        let each = |figure| {
            let of = move |kernel: &String| {
                [RECORDED, BUDGET].map(|arm| self.values(kernel, arm, figure))
            };
            self.kernels().iter().flat_map(of).flatten().collect::<Vec<f64>>()
        };
        let (lost, accesses) = (each("lost"), each("accesses"));
        let bytes = each("bytes").into_iter().zip(&accesses).filter(|(_, all)| **all > 0.0);
        let of_is = |figure| {
            let is_published = self.options.runs().class == "A";
            is_published.then(|| self.middle("nas-is", RECORDED, figure)).flatten()
        };
        let (moca, seen) = (of_moca(), of_is("accesses"));
        let a_wake_up =
            seen.zip(of_is("intervals")).map(|(seen, wake_ups)| seen / wake_ups.max(1.0));
        vec![
            at_most(
                "accesses: times native, geometric mean",
                1.8,
                statistics::geomean(&self.slowdowns(RECORDED)),
                2,
            ),
            at_most("accesses: times native, worst", 4.0, worst(RECORDED), 2),
            at_most("accesses: times native with --budget 2, worst", 2.0, worst(BUDGET), 2),
            at_most("accesses lost", 0.0, lost.first().map(|_| lost.iter().sum()), 0),
            at_most(
                "bytes an access on disk, worst",
                16.0,
                bytes.map(|(bytes, all)| bytes / all).reduce(f64::max),
                1,
            ),
            at_least(
                "IS class A: accesses (three times Moca's, same length of interval)",
                3.0 * moca.0,
                seen,
            ),
            at_least(
                "IS class A: accesses a wake-up (three times Moca's)",
                3.0 * moca.0 / moca.1,
                a_wake_up,
            ),
            adds("told of a fault, ns over the bare fault", 150.0, 0, "fault_again_ns"),
            adds("start of a program, ms more", 10.0, 2, "start_ms"),
            at_most("mmap and munmap, us", 10.0, recorded(STEPS, "map_and_unmap_us"), 1),
            adds("note of a small block, ns a call", 60.0, 0, "small_block_call_ns"),
            adds("note of a large block, ns a call", 60.0, 0, "large_block_call_ns"),
            at_most("a large recording opens, s", 3.0, recorded(OPENING, "opened_seconds"), 2),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::outcome;
    use super::*;

    #[test]
    fn slowdowns_are_of_medians_and_goals_say_what_is_missed() {
        assert!(outcome(false, &[]).targets().iter().all(|goal| goal.4.is_none()));
        let counts = [("accesses", 1e5), ("intervals", 10.0), ("lost", 0.0), ("bytes", 7e5)];
        let run = |cpu| [("cpu_seconds", cpu)].into_iter().chain(counts).collect::<Vec<_>>();
        let (recorded, budget) = (run(3.0), run(5.0));
        let outcome = outcome(
            false,
            &[
                ("nas-is", NATIVE, &[("cpu_seconds", 1.0)]),
                ("nas-is", NATIVE, &[("cpu_seconds", 2.0)]),
                ("nas-is", NATIVE, &[("cpu_seconds", 9.0)]),
                ("nas-is", RECORDED, &recorded),
                ("nas-is", BUDGET, &budget),
                (STEPS, NATIVE, &[("map_and_unmap_us", 3.0)]),
                (STEPS, RECORDED, &[("map_and_unmap_us", 9.0)]),
            ],
        );
        let goals = outcome.goals_of_accesses();
        let of = |start: &str| goals.iter().find(|goal| goal.0.starts_with(start)).unwrap();
        assert_eq!(of("accesses: times native, geometric mean").2, Some(1.5));
        assert_eq!(of("accesses: times native with --budget").4, Some(false));
        assert_eq!(of("bytes an access").2, Some(7.0));
        assert_eq!(of("IS class A: accesses (").4, Some(false));
        assert_eq!(of("IS class A: accesses a wake-up").4, Some(true));
        assert_eq!(of("mmap and munmap").4, Some(true));
        assert_eq!(of("start of a program").4, None);
        let rows = &outcome.of_accesses()[0].rows;
        assert!(rows.iter().any(|row| row[0] == "nas-is" && row[4] == "1.50"), "{rows:?}");
    }
}

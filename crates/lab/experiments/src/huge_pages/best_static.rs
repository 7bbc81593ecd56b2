//! `auto` beside the best static setting of each program: the CPU time of the program and of whoever is beside it, a
//! client apart, in runs of one repetition.
//!
//! The best is the setting with the least median of the same runs, chosen after the fact: a user would have to try all
//! four to know it. What it differs by from itself, run once more in each repetition, is the noise.

use std::collections::BTreeMap;

use pagemill_analysis::statistics::{geomean, median, quantile};
use pagemill_report::draw::chart::number;

use super::programs::{OWN, by_kernel};
use super::{AUTO, Cell, Key, Outcome, STATES};
use crate::claim::met;
use crate::tabled::{Table, dash};

/// What it may lose.
const MOST: f64 = 1.02;

/// Ratios of runs of one repetition, the quartile below, the median and the quartile above.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio([f64; 3]);

impl Ratio {
    fn of(ratios: &[f64]) -> Option<Self> {
        let at = |share| quantile(ratios, share);
        Some(Self([at(0.25)?, at(0.5)?, at(0.75)?]))
    }

    fn middle(self) -> f64 {
        self.0[1]
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([low, middle, high]) = self;
        write!(f, "{middle:.3} [{low:.3}, {high:.3}]")
    }
}

/// A figure of the runs of `cells` over that of `below` in the same repetition. Of a program that ended before it was
/// looked at there is no memory to compare.
fn ratios<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    below: impl Fn(Option<u32>) -> Option<&'a BTreeMap<String, f64>>,
    figure: &str,
) -> Vec<f64> {
    let ratio = |cell: &Cell| {
        let above = cell.outcome.as_ref().ok()?.get(figure)?;
        Some(above / below(cell.round)?.get(figure)?)
    };
    cells.filter_map(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect()
}

impl Outcome {
    /// The static setting under which a program has taken least CPU time.
    pub(super) fn cheapest(
        &self,
        state: &'static str,
        program: &'static str,
    ) -> Option<&'static str> {
        let spent = |arm| Some((arm, median(&self.values((state, program, arm), OWN))?));
        let known = by_kernel().filter_map(spent);
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(arm, _)| arm)
    }

    /// Runs of `cells` over those of another arm.
    fn over<'a>(&'a self, cells: &'a [Cell], key: Key, other: Key, figure: &str) -> Vec<f64> {
        let is = |cell: &&Cell, key: Key| (cell.state, cell.program, cell.arm) == key;
        let below = |round| {
            let mut others = self.cells.iter().filter(|cell| is(cell, other));
            others.find(|cell| cell.round == round)?.outcome.as_ref().ok()
        };
        ratios(cells.iter().filter(|cell| is(cell, key)), below, figure)
    }

    /// The conclusion and the table; `None` without `auto`, or without a static setting.
    pub(super) fn beside_best(&self) -> Option<(String, Table)> {
        let (mut rows, mut all, mut noise) = (Vec::new(), Vec::new(), Vec::new());
        for state in STATES {
            for &program in &self.options.programs {
                let Some(arm) = self.cheapest(state, program) else { continue };
                let (best, auto) = ((state, program, arm), (state, program, AUTO));
                let Some(ratio) = Ratio::of(&self.over(&self.cells, auto, best, OWN)) else {
                    continue;
                };
                let again = Ratio::of(&self.over(&self.again, best, best, OWN));
                let memory = Ratio::of(&self.over(&self.cells, auto, best, "resident"));
                let spent = |key| dash(median(&self.values(key, OWN)).map(number));
                let helper = median(&self.values(auto, "helper"));
                let share =
                    helper.zip(median(&self.values(auto, OWN))).map(|(helper, all)| helper / all);
                all.push(ratio.middle());
                noise.extend(again.map(Ratio::middle));
                rows.push(vec![
                    program.to_owned(),
                    state.to_owned(),
                    arm.to_owned(),
                    spent(best),
                    spent(auto),
                    ratio.to_string(),
                    dash(again.map(|ratio| ratio.to_string())),
                    dash(share.map(|share| format!("{:.1} %", share * 100.0))),
                    dash(memory.map(|ratio| format!("{:.2}", ratio.middle()))),
                    dash(median(&self.values(auto, "earlier")).map(|runs| format!("{runs:.0}"))),
                    met(ratio.middle() <= MOST).to_owned(),
                ]);
            }
        }
        let held = all.iter().filter(|ratio| **ratio <= MOST).count();
        let worst = all.iter().copied().fold(f64::MIN, f64::max);
        let conclusion = format!(
            "auto takes at most {MOST} times the CPU time of the best static setting in {held} of {} cells, {worst:.2} \
             in the worst; geometric mean {:.3}. The best over itself: {}.",
            all.len(),
            geomean(&all)?,
            dash(geomean(&noise).map(|mean| format!("{mean:.3}"))),
        );
        let title = format!("auto beside the best static setting, CPU time (goal {MOST})");
        let columns = "program|memory|best|best, CPU s|auto, CPU s|auto / best|best again / best|helper|peak memory|\
                       earlier runs|";
        Some((conclusion, Table::new(title, columns, rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge_pages::{Options, figures};

    #[test]
    fn auto_is_compared_in_each_repetition_with_the_cheapest_static_setting() {
        let cell = |arm, round, cpu: f64| Cell {
            state: STATES[0],
            program: "xz",
            arm,
            round: Some(round),
            outcome: Ok(figures([(OWN, cpu), ("helper", 0.01), ("resident", 1e6)])),
        };
        let cells = (1..=3).flat_map(|round| {
            let hour = f64::from(round);
            [
                cell("linux-never", round, 2.0 * hour),
                cell("linux-64k", round, hour),
                cell(AUTO, round, 1.01 * hour),
            ]
        });
        let mut outcome = Outcome {
            options: Options::new(true, None, 1.0, 1),
            cells: cells.collect(),
            again: vec![cell("linux-64k", 2, 2.2)],
            faults: BTreeMap::new(),
            notes: vec![],
            interrupted: false,
        };
        outcome.options.programs = vec!["xz"];
        assert_eq!(outcome.cheapest(STATES[0], "xz"), Some("linux-64k"));
        let (conclusion, table) = outcome.beside_best().unwrap();
        assert!(conclusion.contains("in 1 of 1 cells, 1.01"), "{conclusion}");
        assert!(conclusion.ends_with("itself: 1.100."), "{conclusion}");
        assert_eq!(table.rows[0][5], "1.010 [1.010, 1.010]");
        assert_eq!(table.rows[0][10], "met");
        for cell in &mut outcome.cells {
            cell.outcome.as_mut().unwrap().insert("resident".into(), 0.0);
        }
        assert_eq!(outcome.beside_best().unwrap().1.rows[0][8], "-");
        let text = crate::tabled::Tables::text(&outcome);
        assert!(text.find("auto takes at most").unwrap() < text.find("beside the best").unwrap());
        outcome.cells.retain(|cell| cell.arm != AUTO);
        assert_eq!(outcome.beside_best().map(|(conclusion, _)| conclusion), None);
    }
}

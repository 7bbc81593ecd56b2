//! What runs came to: their figures, and whether goals are met.

use pagemill_analysis::statistics::median;

use super::options::Options;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::Finished;
use crate::tabled::dash;

/// What came of it.
pub struct Outcome {
    pub(super) options: Options,
    pub(super) finished: Vec<Finished>,
}

impl Outcome {
    /// What cells that were run anywhere came to.
    pub(crate) fn collected(finished: &[Finished], of: CellKey) -> Self {
        let options = Options::new(of.scale < 1.0, None, of.seed);
        Self { options, finished: finished.to_vec() }
    }

    pub(super) fn cells(
        &self,
        case: &str,
        arm: &str,
    ) -> impl Iterator<Item = &Result<Ran, String>> {
        let cells = self.finished.iter();
        cells.filter(move |(cell, _)| cell.case == case && cell.arm == arm).map(|(_, ran)| ran)
    }

    /// A figure of each run.
    pub(super) fn values(&self, case: &str, arm: &str, figure: &str) -> Vec<f64> {
        let ran = self.cells(case, arm).filter_map(|ran| ran.as_ref().ok());
        ran.filter_map(|ran| ran.metrics.get(figure).copied()).collect()
    }

    pub(super) fn middle(&self, case: &str, arm: &str, figure: &str) -> Option<f64> {
        median(&self.values(case, arm, figure))
    }

    /// Why an arm has no figures.
    pub(super) fn why(&self, case: &str, arm: &str) -> Option<String> {
        self.cells(case, arm).find_map(|ran| match ran {
            Ok(ran) => ran.notes.first().cloned(),
            Err(why) => Some(why.clone()),
        })
    }
}

/// A goal: what, the limit, the figure, its digits, whether it is met.
pub(super) type Goal = (String, String, Option<f64>, usize, Option<bool>);

/// A goal that is met up to a limit.
pub(super) fn at_most(goal: &str, most: f64, here: Option<f64>, digits: usize) -> Goal {
    (goal.to_owned(), format!("{most}"), here, digits, here.map(|here| here <= most))
}

pub(super) fn shown(value: Option<f64>, digits: usize) -> String {
    dash(value.map(|value| format!("{value:.digits$}")))
}

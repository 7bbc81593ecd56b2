//! Medians and ratios of what the cells of an experiment measured.

use pagemill_analysis::statistics::{self, Bootstrap, Estimate};
use serde::Serialize;

use super::outcome::TOO_SHORT;
use super::series::Finished;

/// A median or a ratio of medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// Ends of its interval, if there were two runs or more.
    pub interval: Option<(f64, f64)>,
    /// Runs.
    pub runs: usize,
}

/// The measured values of an experiment.
pub struct Measured<'a> {
    pub(super) finished: Vec<&'a Finished>,
    how: Bootstrap,
}

impl<'a> Measured<'a> {
    /// The cells of one experiment.
    pub fn new(finished: &'a [Finished], experiment: &str, seed: u64) -> Self {
        let finished = finished.iter().filter(|(cell, _)| cell.experiment == experiment).collect();
        Self { finished, how: Bootstrap::seeded(seed) }
    }

    /// Values of a metric, one a run.
    pub fn values(&self, case: &str, arm: &str, metric: &str) -> Vec<f64> {
        self.finished
            .iter()
            .filter(|(cell, _)| cell.case == case && cell.arm == arm)
            .filter_map(|(_, outcome)| outcome.as_ref().ok()?.metrics.get(metric).copied())
            .collect()
    }

    /// Whether runs of an arm were too short to be measured, in words.
    pub(super) fn too_short(&self, arm: &str) -> Option<String> {
        let mut of = self.finished.iter().filter(|(cell, _)| cell.arm == arm);
        let is_short = of.any(|(_, ran)| ran.as_ref().is_ok_and(|ran| ran.notes == [TOO_SHORT]));
        is_short.then(|| TOO_SHORT.to_owned())
    }

    /// The median.
    pub fn median(&self, case: &str, arm: &str, metric: &str) -> Option<Figure> {
        let values = self.values(case, arm, metric);
        Some(figure(statistics::median_estimate(&values, &self.how)?, values.len()))
    }

    /// The ratio of medians, as a geometric mean over cases.
    pub fn ratio(
        &self,
        cases: &[String],
        metric: &str,
        arm: &str,
        against: &str,
    ) -> Option<Figure> {
        let samples: Vec<Vec<f64>> = cases
            .iter()
            .flat_map(|case| [self.values(case, arm, metric), self.values(case, against, metric)])
            .collect();
        let views: Vec<&[f64]> = samples.iter().map(Vec::as_slice).collect();
        let ratio = |samples: &[&[f64]]| {
            let ratios: Option<Vec<f64>> = samples
                .chunks(2)
                .map(|pair| Some(statistics::median(pair[0])? / statistics::median(pair[1])?))
                .collect();
            statistics::geomean(&ratios?)
        };
        let runs = views.iter().map(|view| view.len()).min()?;
        Some(figure(statistics::bootstrap(&views, ratio, &self.how)?, runs))
    }
}

fn figure(estimate: Estimate, runs: usize) -> Figure {
    let interval = estimate.interval.map(|interval| (interval.low, interval.high));
    Figure { value: estimate.value, interval, runs }
}

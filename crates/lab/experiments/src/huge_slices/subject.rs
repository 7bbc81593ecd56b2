//! What is kept of a program: what its slices are worth, and a run of it.

use serde::{Deserialize, Serialize};

/// What the slices of a program are worth.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Subject {
    pub(super) runs: usize,
    /// Seconds without huge pages, and with all.
    pub(super) none: Option<f64>,
    pub(super) all: Option<f64>,
    /// Of a run, in seconds.
    pub(super) error: f64,
    /// Of each slice: seconds that it is worth, and their deviation.
    pub(super) benefits: Vec<(f64, f64)>,
    pub(super) intervals: Vec<(f64, f64)>,
    /// How many are told apart from none.
    pub(super) sure: usize,
    pub(super) profile: String,
    /// Chunks: whether on the heap, and where.
    pub(super) places: Vec<(bool, u64)>,
    /// Of the parts of `slices` that are chased, how many are the greatest.
    pub(super) found: Option<usize>,
}

impl Subject {
    /// Share of all benefit that the greatest tenth of the slices has.
    pub(super) fn top_tenth(&self) -> Option<f64> {
        let mut gains: Vec<f64> = self.benefits.iter().map(|(mean, _)| mean.max(0.0)).collect();
        gains.sort_by(|a, b| b.total_cmp(a));
        let all: f64 = gains.iter().sum();
        let top: f64 = gains.iter().take(gains.len().div_ceil(10)).sum();
        (all > 0.0).then(|| top / all)
    }
}

/// A run under a profile.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Arm {
    pub(super) name: String,
    pub(super) huge: usize,
    pub(super) seconds: f64,
}

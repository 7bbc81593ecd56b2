//! What a run came to: its cells and how they compare, runs over time, what each parameter does.

use serde::{Deserialize, Serialize};

use super::cell::Cell;

/// How the cells of a figure compare.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Score {
    /// The figure and metric.
    pub what: String,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// What was aimed at: mean, greatest.
    pub goal: (f64, f64),
    /// Cells compared.
    pub cells: usize,
}

/// A run over time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Line {
    /// Its chart.
    pub chart: String,
    /// Its policy.
    pub name: String,
    /// Seconds, units a second, share of reads on the default tier.
    pub points: Vec<[f64; 3]>,
    /// The best static placement at the end, in units a second.
    pub best: f64,
}

/// What one parameter does to the cells of 6c and 8b.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Influence {
    /// The parameter.
    pub key: String,
    /// Relative change of each cell at a tenth less and a tenth more: row, column, less, more.
    pub cells: Vec<(String, String, f64, f64)>,
}

impl Influence {
    /// The greatest change of any cell.
    #[must_use]
    pub fn greatest(&self) -> f64 {
        self.cells.iter().flat_map(|cell| [cell.2.abs(), cell.3.abs()]).fold(0.0, f64::max)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Report {
    /// All cells.
    pub cells: Vec<Cell>,
    /// How they compare.
    pub scores: Vec<Score>,
    /// Sensitivity, most influential first.
    pub sensitivity: Vec<Influence>,
    /// Throughput and share over time.
    pub lines: Vec<Line>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Report {
    pub(super) fn add(&mut self, part: Self) {
        self.cells.extend(part.cells);
        self.scores.extend(part.scores);
        self.sensitivity.extend(part.sensitivity);
        self.lines.extend(part.lines);
        self.notes.extend(part.notes);
    }
}

pub(super) fn score(
    report: &mut Report,
    first: usize,
    figure: &str,
    metric: &str,
    goal: (f64, f64),
) {
    let errors: Vec<f64> = report.cells[first..]
        .iter()
        .filter(|cell| cell.metric == metric)
        .filter_map(Cell::error)
        .map(f64::abs)
        .collect();
    if errors.is_empty() {
        return;
    }
    report.scores.push(Score {
        what: format!("figure {figure}, {metric}"),
        mean: errors.iter().sum::<f64>() / errors.len() as f64,
        max: errors.iter().copied().fold(0.0, f64::max),
        goal,
        cells: errors.len(),
    });
}

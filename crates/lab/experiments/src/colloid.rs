//! The published evaluation of Colloid on the simulated machine: each figure's cells, the published number
//! where there is one, ours, and the error. All of ours is *modelled*.
//!
//! | figure | what |
//! |---|---|
//! | setup | facts of the evaluation's set-up that no scored figure contains: the antagonist alone, the default tier's latency under load, the artifact's sample log |
//! | 4 | GUPS, the three systems without and with Colloid and the best static placement, by background load |
//! | 6a, 6b, 6c | GUPS under HeMem, MEMTIS, TPP: throughput with Colloid over throughput without, by unloaded latency of the alternate tier and background load |
//! | 7 | dynamics: the hot set moves, the antagonist starts; time to recover and regret against the best static placement |
//! | 8a, 8b, 8c | `PageRank`, Silo, `CacheLib` under TPP without and with Colloid |
//! | regret | what placers lose against brute force over random machines, loads at rest and that change |
//!
//! Parameters live in the machine file and in `sim::workload`; nothing here adjusts any of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::Result;
use pagemill_sim::machine::Machine;
use serde::{Deserialize, Deserializer, Serialize};

mod figures;
mod html;
mod regret;
mod sensitivity;
mod text;

use super::checkpoints::{self, Checkpoints};
use figures::Bench;
pub use html::render as page;

/// The published numbers: `experiment,subject,metric,unit,value,note`.
const PUBLISHED: &str = include_str!("../../../../experiments/published/colloid.csv");

/// The figures, by name.
pub const FIGURES: &[&str] = &["setup", "4", "6a", "6b", "6c", "7", "8a", "8b", "8c", "regret"];

const LATENCIES: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
const LOADS: [f64; 4] = [0.0, 1.0, 2.0, 3.0];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// Some of [`FIGURES`].
    pub figures: Vec<String>,
    /// Fewer pages and fewer random points.
    pub quick: bool,
    /// What a tenth more or less of each parameter does to each cell of 6c and 8b.
    pub sensitivity: bool,
    /// Seed.
    pub seed: u64,
    /// The random machines and loads of `regret`, by their seeds; otherwise the first few.
    pub points: Option<(u64, u64)>,
}

impl Options {
    /// The seeds of the machines and loads that `regret` runs.
    pub(crate) fn points(&self) -> RangeInclusive<u64> {
        let (first, last) = self.points.unwrap_or((1, if self.quick { 20 } else { 100 }));
        first..=last
    }

    /// What is kept of a run in a results directory.
    ///
    /// # Errors
    /// As [`Checkpoints::new`].
    pub fn checkpoints(&self, results: &Path) -> Result<Checkpoints> {
        let mut machine = DefaultHasher::new();
        format!("{:?}", self.machine).hash(&mut machine);
        let size = if self.quick { "quick" } else { "full" };
        let points = self.points();
        let of = format!(
            "seed {}, {size}, machine {:016x}, points {} to {}",
            self.seed,
            machine.finish(),
            points.start(),
            points.end()
        );
        Checkpoints::new(results.join("colloid"), &of)
    }
}

/// One cell of a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    /// Its figure.
    pub figure: String,
    /// Its row.
    pub row: String,
    /// Its column.
    pub column: String,
    /// What it counts.
    pub metric: String,
    /// Ours, modelled; infinite (in JSON: null) where a run did not get there.
    #[serde(deserialize_with = "null_is_infinite")]
    pub modelled: f64,
    /// The published number.
    pub published: Option<f64>,
    /// Whether a parameter was set from this very number, so that it says nothing.
    pub input: bool,
}

impl Cell {
    /// One without a published number.
    fn of(figure: &str, row: &str, column: &str, metric: &str, modelled: f64) -> Self {
        Self {
            figure: figure.to_owned(),
            row: row.to_owned(),
            column: column.to_owned(),
            metric: metric.to_owned(),
            modelled,
            published: None,
            input: false,
        }
    }

    /// Relative error, where there is a published number that was not an input.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        self.published.filter(|_| !self.input).map(|published| self.modelled / published - 1.0)
    }
}

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

fn null_is_infinite<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::INFINITY))
}

impl Report {
    fn add(&mut self, part: Self) {
        self.cells.extend(part.cells);
        self.scores.extend(part.scores);
        self.sensitivity.extend(part.sensitivity);
        self.lines.extend(part.lines);
        self.notes.extend(part.notes);
    }
}

/// Runs the figures. `progress` is told what begins and how much of all is done; `finished` gets the report so far
/// after each figure. What is kept of an earlier run of the same kind is not made again.
///
/// # Errors
/// For a figure that is none of [`FIGURES`]; from `finished`; where a part cannot be written.
pub fn run(
    options: &Options,
    checkpoints: Option<&Checkpoints>,
    progress: &mut dyn FnMut(&str, f64),
    finished: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<Report> {
    if let Some(unknown) = options.figures.iter().find(|name| !FIGURES.contains(&name.as_str())) {
        anyhow::bail!("no figure '{unknown}'; valid: {}", FIGURES.join(", "));
    }
    let mut report = Report::default();
    let mut bench = Bench::new(options);
    let all = (options.figures.len() + usize::from(options.sensitivity)) as f64;
    for (at, figure) in options.figures.iter().enumerate() {
        let mut tick = |what: &str, part: f64| {
            progress(&format!("figure {figure}: {what}"), (at as f64 + part) / all);
        };
        report.add(checkpoints::part(checkpoints, figure, || {
            let mut part = Report::default();
            match figure.as_str() {
                "6a" => bench.gups("6a", "hemem", &mut part, &mut tick),
                "6b" => bench.gups("6b", "memtis", &mut part, &mut tick),
                "6c" => bench.gups("6c", "tpp", &mut part, &mut tick),
                "setup" => bench.facts(&mut part, &mut tick),
                "4" => bench.loads(&mut part, &mut tick),
                "7" => bench.dynamics(&mut part, &mut tick),
                "8a" => bench.application("8a", "pagerank", &mut part, &mut tick),
                "8b" => bench.application("8b", "silo", &mut part, &mut tick),
                "8c" => bench.application("8c", "cachelib", &mut part, &mut tick),
                _ => regret::run(options, &mut part, &mut tick),
            }
            part
        })?);
        finished(&report)?;
    }
    if options.sensitivity {
        sensitivity::run(options, checkpoints, &mut report, &mut |what, part| {
            progress(&format!("sensitivity: {what}"), (all - 1.0 + part) / all);
        })?;
    }
    Ok(report)
}

fn published(experiment: &str, subject: &str, metric: &str) -> Option<f64> {
    PUBLISHED.lines().find_map(|line| {
        let mut fields = line.rsplitn(6, ',').collect::<Vec<_>>();
        fields.reverse();
        (fields.len() == 6
            && fields[0].contains(experiment)
            && fields[1] == subject
            && fields[2] == metric)
            .then(|| {
                super::coverage::looked_up(line);
                fields[4].parse().ok()
            })?
    })
}

fn score(report: &mut Report, first: usize, figure: &str, metric: &str, goal: (f64, f64)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_sim::machine::ICELAKE;

    #[test]
    fn every_published_cell_of_6c_and_8b_is_found() {
        crate::coverage::tests::is_complete(crate::coverage::COLLOID, look_all_up);
    }

    fn look_all_up() {
        for latency in LATENCIES {
            for steps in LOADS {
                let metric = "TPP+colloid throughput / TPP throughput";
                assert!(published("Fig 6c", &format!("{latency}ns at {steps}x"), metric).is_some());
            }
        }
        for steps in LOADS {
            for system in ["TPP", "TPP+colloid"] {
                assert!(
                    published("Fig 8b", &format!("{system} at {steps}x"), "throughput").is_some()
                );
            }
        }
    }

    #[test]
    fn an_input_cell_has_no_error() {
        let mut cell = Cell {
            figure: "8b".into(),
            row: "TPP".into(),
            column: "0x".into(),
            metric: "transactions/s".into(),
            modelled: 2.0,
            published: Some(1.0),
            input: true,
        };
        assert_eq!(cell.error(), None);
        cell.input = false;
        assert_eq!(cell.error(), Some(1.0));
    }

    #[test]
    fn an_unknown_figure_lists_the_known_ones() {
        let options = Options {
            machine: Machine::parse(ICELAKE).unwrap(),
            figures: vec!["9z".into()],
            quick: true,
            sensitivity: false,
            seed: 1,
            points: None,
        };
        let error = run(&options, None, &mut |_, _| {}, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("6c") && error.contains("9z"), "{error}");
    }

    #[test]
    fn a_kept_figure_comes_back_to_a_run_of_the_same_seed_only() {
        let results = tempfile::tempdir().unwrap();
        let options = |seed| Options {
            machine: Machine::parse(ICELAKE).unwrap(),
            figures: Vec::new(),
            quick: true,
            sensitivity: false,
            seed,
            points: None,
        };
        let cell = Cell::of("7", "tpp", "moves", "s to 95 %", f64::INFINITY);
        let made = Report { cells: vec![cell], ..Report::default() };
        let of = |seed| options(seed).checkpoints(results.path()).unwrap();
        checkpoints::part(Some(&of(1)), "7", || made.clone()).unwrap();
        let again: Report = checkpoints::part(Some(&of(1)), "7", || panic!("it was kept")).unwrap();
        assert_eq!(again.cells[0].modelled, f64::INFINITY);
        let other = checkpoints::part(Some(&of(2)), "7", Report::default).unwrap();
        assert!(other.cells.is_empty());
    }
}

//! From cells to figures: medians with intervals, ratios to jemalloc and glibc, verdicts.
//!
//! Intervals are bootstrap intervals at 95 % (see `analysis::statistics`), seeded, so the same cells
//! give the same summary. A single run has no interval.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::experiment::{Experiment, Unit};
use super::measured::{Figure, Measured};
use super::plan::{Plan, Skipped};
use super::series::Finished;
use super::verdict::{self, Judged, Reached};

/// Arms that others are compared with, where an experiment has them; `own` is a browser with its own allocator.
pub const REFERENCES: [&str; 3] = ["jemalloc", "glibc", "own"];

/// One arm in one case.
#[derive(Clone, Debug, Serialize)]
pub struct ArmRow {
    /// The arm.
    pub arm: String,
    /// Medians by metric.
    pub figures: BTreeMap<String, Figure>,
    /// Ratios by metric and reference arm, for the memory and the time figure.
    pub ratios: BTreeMap<String, BTreeMap<String, Figure>>,
    /// Notes of its cells, each once.
    pub notes: Vec<String>,
}

/// One case of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The case.
    pub case: String,
    /// Its arms.
    pub rows: Vec<ArmRow>,
    /// Memory over time of the first run of each arm: seconds and bytes.
    pub timelines: Vec<Timeline>,
}

impl Table {
    /// Those of [`REFERENCES`] that it has.
    pub fn references(&self) -> impl Iterator<Item = &'static str> + '_ {
        REFERENCES.into_iter().filter(|name| self.rows.iter().any(|row| row.arm == *name))
    }
}

/// Memory over time.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// The arm.
    pub arm: String,
    /// Seconds and proportional set size in bytes.
    pub pss: Vec<(f64, f64)>,
}

/// A column of the tables.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Name in the results.
    pub name: String,
    /// Name in tables.
    pub label: String,
    /// Unit.
    #[serde(skip)]
    pub unit: Unit,
}

/// One experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Its name.
    pub experiment: String,
    /// Its heading.
    pub title: String,
    /// What happens in it.
    pub about: String,
    /// Share of its full size.
    pub scale: f64,
    /// Runs asked for of each arm.
    pub repetitions: u32,
    /// Interval between samples.
    pub sampled_every_ms: u64,
    /// The memory figure.
    pub memory: Column,
    /// The time figure.
    pub time: Column,
    /// The other figures.
    pub others: Vec<Column>,
    /// By case.
    pub tables: Vec<Table>,
    /// Published claims beside ours.
    pub claims: Vec<Judged>,
    /// Targets.
    pub goals: Vec<Reached>,
    /// Cells that failed: case, arm, repetition and reason.
    pub failed: Vec<String>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Version of this layout; fields are only ever added.
    pub schema: u32,
    /// What it is of.
    #[serde(flatten)]
    pub of: Circumstances,
    /// By experiment.
    pub sections: Vec<Section>,
}

/// An experiment whose cells are shown.
pub struct ShownExperiment {
    /// The experiment.
    pub experiment: Experiment,
    /// Its arms, in the order of the tables.
    pub arms: Vec<&'static str>,
    /// Runs asked for of each arm.
    pub repetitions: u32,
    /// Share of its full size.
    pub scale: f64,
}

impl ShownExperiment {
    /// The experiments of a plan.
    pub fn of(plan: &Plan) -> Vec<Self> {
        let shown = plan.scheduled.iter().map(|scheduled| Self {
            experiment: scheduled.experiment.clone(),
            arms: scheduled.arms.iter().map(|arm| arm.name).collect(),
            repetitions: scheduled.repetitions,
            scale: scheduled.scale,
        });
        shown.collect()
    }
}

/// What is known of a run beside its cells.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Circumstances {
    /// Whether it was shortened.
    pub quick: bool,
    /// Whether it was ended before it was through.
    pub interrupted: bool,
    /// Its seed.
    pub seed: u64,
    /// The machine, in words.
    pub machine: Vec<String>,
    /// What did not run, and why.
    pub skipped: Vec<Skipped>,
}

/// Summarises a run.
///
/// # Errors
/// As of [`verdict::claims`](super::verdict::claims).
pub fn summarise(
    shown: &[ShownExperiment],
    finished: &[Finished],
    circumstances: Circumstances,
) -> Result<Summary> {
    let Circumstances { seed, skipped, .. } = &circumstances;
    let sections = shown
        .iter()
        .map(|shown| {
            let experiment = &shown.experiment;
            let measured = Measured::new(finished, &experiment.name, *seed);
            let column = |wanted: fn(&super::experiment::Metric) -> bool| {
                let metric = experiment.metrics.iter().find(|metric| wanted(metric));
                column(metric.expect("each experiment file was checked to have one"))
            };
            Ok(Section {
                experiment: experiment.name.clone(),
                title: experiment.title.clone(),
                about: experiment.about.trim().to_owned(),
                scale: shown.scale,
                repetitions: shown.repetitions,
                sampled_every_ms: experiment.sampling.every_ms,
                memory: column(|metric| metric.memory),
                time: column(|metric| metric.time),
                others: experiment
                    .metrics
                    .iter()
                    .filter(|metric| !metric.memory && !metric.time)
                    .map(self::column)
                    .collect(),
                tables: experiment
                    .cases()
                    .iter()
                    .map(|case| table(experiment, case, &shown.arms, &measured))
                    .collect(),
                claims: verdict::claims(experiment, &measured, skipped)?,
                goals: verdict::goals(experiment, &measured, skipped),
                failed: failures(&measured),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Summary { schema: 1, of: circumstances, sections })
}

fn column(metric: &super::experiment::Metric) -> Column {
    Column { name: metric.name.clone(), label: metric.label.clone(), unit: metric.unit }
}

fn table(experiment: &Experiment, case: &str, arms: &[&str], measured: &Measured<'_>) -> Table {
    let one = [case.to_owned()];
    let rows = arms.iter().map(|&arm| {
        let figures = experiment
            .metrics
            .iter()
            .filter_map(|metric| {
                Some((metric.name.clone(), measured.median(case, arm, &metric.name)?))
            })
            .collect();
        let ratios = experiment
            .metrics
            .iter()
            .filter(|metric| metric.memory || metric.time)
            .map(|metric| {
                let against = REFERENCES.iter().filter(|&&against| against != arm);
                let ratios = against.filter_map(|&against| {
                    let ratio = measured.ratio(&one, &metric.name, arm, against)?;
                    Some((against.to_owned(), ratio))
                });
                (metric.name.clone(), ratios.collect())
            })
            .collect();
        let mut notes: Vec<String> = Vec::new();
        for (cell, outcome) in &measured.finished {
            if cell.case == case && cell.arm == arm {
                notes.extend(outcome.iter().flat_map(|outcome| outcome.notes.clone()));
            }
        }
        notes.sort();
        notes.dedup();
        ArmRow { arm: arm.to_owned(), figures, ratios, notes }
    });
    let timelines = arms.iter().filter_map(|&arm| {
        let mut runs =
            measured.finished.iter().filter(|(cell, _)| cell.case == case && cell.arm == arm);
        let outcome = runs.find_map(|(_, outcome)| outcome.as_ref().ok())?;
        let pss =
            outcome.samples.iter().map(|sample| (sample.seconds, sample.pss as f64)).collect();
        Some(Timeline { arm: arm.to_owned(), pss })
    });
    Table { case: case.to_owned(), rows: rows.collect(), timelines: timelines.collect() }
}

fn failures(measured: &Measured<'_>) -> Vec<String> {
    let failed = measured.finished.iter().filter_map(|(cell, outcome)| {
        let reason = outcome.as_ref().err()?;
        Some(format!("{} {} #{}: {reason}", cell.case, cell.arm, cell.repetition))
    });
    failed.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::reproduce::cell::Cell;
    use crate::reproduce::outcome::Outcome;

    /// Cells of one case with the values of one metric for each arm.
    pub fn cells(
        experiment: &str,
        case: &str,
        metric: &str,
        arms: &[(&'static str, &[f64])],
    ) -> Vec<Finished> {
        let mut finished = Vec::new();
        for &(arm, values) in arms {
            for (index, &value) in values.iter().enumerate() {
                let cell = Cell {
                    experiment: experiment.into(),
                    case: case.into(),
                    arm,
                    repetition: index as u32 + 1,
                };
                let metrics = [(metric.to_owned(), value)].into();
                finished.push((cell, Ok(Outcome { metrics, ..Outcome::default() })));
            }
        }
        finished
    }

    #[test]
    fn a_ratio_is_that_of_the_medians_and_lies_in_its_interval() {
        let cells =
            cells("e", "c", "cpu", &[("glibc", &[2.0, 2.2, 9.0]), ("jemalloc", &[1.0, 1.1, 1.2])]);
        let measured = Measured::new(&cells, "e", 1);
        let ratio = measured.ratio(&["c".into()], "cpu", "glibc", "jemalloc").unwrap();
        assert!((ratio.value - 2.0).abs() < 1e-12, "{ratio:?}");
        let (low, high) = ratio.interval.unwrap();
        assert!(low <= 2.0 && 2.0 <= high && low < high, "{ratio:?}");
        assert_eq!(ratio.runs, 3);
        assert!(measured.ratio(&["c".into()], "cpu", "glibc", "mesh").is_none());
        assert!(Measured::new(&cells, "other", 1).median("c", "glibc", "cpu").is_none());
    }

    #[test]
    fn one_run_has_no_interval() {
        let cells = cells("e", "c", "cpu", &[("glibc", &[2.0])]);
        let median = Measured::new(&cells, "e", 1).median("c", "glibc", "cpu").unwrap();
        assert_eq!((median.value, median.interval), (2.0, None));
    }

    #[test]
    fn a_geometric_mean_over_cases_weighs_them_alike() {
        let mut all =
            cells("e", "a", "cpu", &[("1y-remap", &[4.0, 4.0]), ("mimalloc", &[1.0, 1.0])]);
        all.extend(cells(
            "e",
            "b",
            "cpu",
            &[("1y-remap", &[25.0, 25.0]), ("mimalloc", &[100.0, 100.0])],
        ));
        let measured = Measured::new(&all, "e", 1);
        let cases = ["a".to_owned(), "b".to_owned()];
        let ratio = measured.ratio(&cases, "cpu", "1y-remap", "mimalloc").unwrap();
        assert!((ratio.value - 1.0).abs() < 1e-12, "{ratio:?}");
    }
}

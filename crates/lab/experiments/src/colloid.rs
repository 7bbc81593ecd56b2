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
//! | 6c+thp, 8b+thp | 6c and 8b where the kernel's pages are of 2 MiB, and 8b under MEMTIS, whose are so |
//! | regret | what placers lose against brute force over random machines, loads at rest and that change |
//!
//! Parameters live in the machine file and in `sim::workload`; nothing here adjusts any of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pagemill_kernel::Linux;
use pagemill_kernel::signal::Signals;
use pagemill_sim::machine::{ICELAKE, Machine};
use serde::{Deserialize, Deserializer, Serialize};

mod figures;
mod html;
mod regret;
mod sensitivity;
mod text;

use crate::coverage::{self, COLLOID};
use crate::reproduce::cell::Cell as Run;
use crate::reproduce::definition::{self, Definition};
use crate::reproduce::experiment::chosen;
use crate::reproduce::keep::{Keep, Of};
use crate::reproduce::outcome::Outcome;
use crate::reproduce::series::{self, Finished, Series, Turn};
use crate::reproduce::store::Store;
use crate::reproduce::target::Stage;
use figures::Bench;
pub use html::render as page;

/// Its name on the command line.
pub const NAME: &str = "colloid";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// The figures, by name.
    pub figures: Vec<String>,
    /// Whether the sensitivity table is made, too.
    pub sensitivity: bool,
    /// Random machines and loads of `regret`.
    points: u64,
}

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> =
    LazyLock::new(|| definition::read(include_str!("../../../../experiments/colloid.toml")));

const LATENCIES: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
const LOADS: [f64; 4] = [0.0, 1.0, 2.0, 3.0];

/// What is compared: without and with Colloid.
const SYSTEMS: [&str; 2] = ["TPP", "TPP+colloid"];
const GAIN: &str = "with/without Colloid";
/// The published tables.
const GUPS: &str = "GUPS: alternate tier unloaded latency x background load (Fig 6c)";
const SILO: &str = "Silo (Fig 8b)";
/// Facts of the set-up: metric and row.
const ALONE: [&str; 2] = ["antagonist alone", "part of the peak that it draws"];
const LOADED: [&str; 2] = ["default tier under load", "ns, hot set on it"];
const LOG: &str = "HeMem's sample log, share 0.934";
const SAMPLE_LOG: [&str; 3] = ["updates/s", "default tier, ns", "alternate tier, ns"];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// Some of those in [`FILE`].
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
    /// As the file has it, on the machine of the publication.
    ///
    /// # Errors
    /// None where this binary's machine is whole.
    pub fn new(quick: bool, seed: u64) -> Result<Self> {
        let runs = &FILE.size(quick).runs;
        Ok(Self {
            machine: Machine::parse(ICELAKE).context("the built-in machine")?,
            figures: runs.figures.clone(),
            quick,
            sensitivity: runs.sensitivity,
            seed,
            points: None,
        })
    }

    /// Some figures only, without the sensitivity table.
    ///
    /// # Errors
    /// For a figure that there is none of, with the one that may have been meant.
    pub fn only(&mut self, figures: Option<&[String]>) -> Result<()> {
        if let Some(figures) = figures {
            let known: Vec<&str> = FILE.full.runs.figures.iter().map(String::as_str).collect();
            let figures = chosen("figure", &known, figures)?;
            self.figures = figures.into_iter().map(str::to_owned).collect();
            self.sensitivity = false;
        }
        Ok(())
    }

    /// The seeds of the machines and loads that `regret` runs.
    pub(crate) fn points(&self) -> RangeInclusive<u64> {
        let (first, last) = self.points.unwrap_or((1, FILE.size(self.quick).runs.points));
        first..=last
    }

    /// What is kept of runs on this machine and these points.
    #[must_use]
    pub fn keep(&self, keep: Keep) -> Keep {
        let mut machine = DefaultHasher::new();
        format!("{:?}", self.machine).hash(&mut machine);
        let points = self.points();
        keep.of(&format!(
            ", machine {:016x}, points {} to {}",
            machine.finish(),
            points.start(),
            points.end()
        ))
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
    /// One of ours, with the published number if [`claims`] has it.
    fn of(figure: &str, row: &str, column: &str, metric: &str, modelled: f64) -> Self {
        let own = Self::published(figure, row, column, metric, None);
        let known = claims().into_iter().find(|cell| cell.place() == own.place()).unwrap_or(own);
        Self { modelled, ..known }
    }

    /// One that is not made yet.
    fn published(
        figure: &str,
        row: &str,
        column: &str,
        metric: &str,
        published: Option<f64>,
    ) -> Self {
        Self {
            figure: figure.to_owned(),
            row: row.to_owned(),
            column: column.to_owned(),
            metric: metric.to_owned(),
            modelled: f64::NAN,
            published,
            input: false,
        }
    }

    /// What names it.
    pub(crate) fn place(&self) -> [&str; 4] {
        [&self.figure, &self.row, &self.column, &self.metric]
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
    /// What cells that were made anywhere came to.
    ///
    /// # Errors
    /// None for cells that this made.
    pub fn of(finished: &[Finished], of: Of) -> Result<Self> {
        let all = Options::new(of.scale < 1.0, of.seed)?;
        let made = |name: &String| finished.iter().any(|(cell, _)| cell.case == *name);
        let figures: Vec<String> =
            FILE.full.runs.figures.iter().filter(|name| made(name)).cloned().collect();
        let sensitivity = figures.len() < finished.len();
        Ok(Modelled::new(Options { figures, sensitivity, ..all }).report(finished))
    }

    fn add(&mut self, part: Self) {
        self.cells.extend(part.cells);
        self.scores.extend(part.scores);
        self.sensitivity.extend(part.sensitivity);
        self.lines.extend(part.lines);
        self.notes.extend(part.notes);
    }
}

/// The figures and sums, to be made.
pub struct Modelled {
    options: Options,
    bench: Bench,
    sums: sensitivity::Sums,
}

impl Modelled {
    /// Those of some options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let (bench, sums) = (Bench::new(&options), sensitivity::Sums::new(&options));
        Self { options, bench, sums }
    }

    /// What the cells that are finished came to, figure by figure.
    #[must_use]
    pub fn report(&self, finished: &[Finished]) -> Report {
        let made: HashMap<&str, &Outcome> = finished
            .iter()
            .filter_map(|(cell, outcome)| Some((cell.case.as_str(), outcome.as_ref().ok()?)))
            .collect();
        let mut report = Report::default();
        let parts = self.options.figures.iter();
        for part in parts.filter_map(|figure| made.get(figure.as_str())?.read()) {
            report.add(part);
        }
        if self.options.sensitivity {
            self.sums.table(&mut |name| made.get(name)?.read(), &mut report);
        }
        report
    }
}

impl Series for Modelled {
    fn turns(&self) -> Vec<Turn> {
        let size = FILE.size(self.options.quick);
        let of = Of { seed: self.options.seed, scale: size.scale, window: None };
        let processors = std::thread::available_parallelism().map_or(1.0, |all| all.get() as f64);
        let sums = self.options.sensitivity.then(|| self.sums.names());
        let names = self.options.figures.iter().cloned().chain(sums.into_iter().flatten());
        let cell = |case| Run {
            experiment: NAME.to_owned(),
            case,
            arm: FILE.arms.first().map_or("", String::as_str),
            repetition: 1,
        };
        names
            .map(|case| Turn { cell: cell(case), of, seconds: size.seconds / processors })
            .collect()
    }

    fn run(&mut self, cell: &Run, _: &[Finished], say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let mut tick = |what: &str, part: f64| say(&format!("{what} ({:.0} %)", part * 100.0));
        let (bench, mut part) = (&mut self.bench, Report::default());
        match cell.case.as_str() {
            "6a" => bench.gups("6a", "hemem", &mut part, &mut tick),
            "6b" => bench.gups("6b", "memtis", &mut part, &mut tick),
            "6c" | "6c+thp" => bench.gups(&cell.case, "tpp", &mut part, &mut tick),
            "setup" => bench.facts(&mut part, &mut tick),
            "4" => bench.loads(&mut part, &mut tick),
            "7" => bench.dynamics(&mut part, &mut tick),
            "8a" => bench.application("8a", "pagerank", &mut part, &mut tick),
            "8b" | "8b+thp" => bench.application(&cell.case, "silo", &mut part, &mut tick),
            "8c" => bench.application("8c", "cachelib", &mut part, &mut tick),
            "regret" => regret::run(&self.options, &mut part, &mut tick),
            sum => return Outcome::of(&self.sums.make(sum, &mut tick)?),
        }
        Outcome::of(&part)
    }
}

/// Makes all that is not kept. `progress` hears of each step, `made` the report so far after each cell.
///
/// # Errors
/// Where a cell cannot be kept; from `made`.
pub fn run(
    options: &Options,
    kept: (Option<&Store>, &Keep),
    progress: &mut dyn FnMut(&str),
    made: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<Report> {
    let (mut series, reader) = (Modelled::new(options.clone()), Modelled::new(options.clone()));
    // A signal ends a simulation as it ends any program: what is made is kept.
    let (signals, executable) = (Signals::block(&[])?, PathBuf::new());
    let (linux, every) = (Linux::live(), Duration::ZERO);
    let stage = Stage { linux, executable, signals: &signals, every };
    let (finished, _) = series::all(&mut series, &stage, kept, &mut |step| {
        progress(&step.words());
        match step.so_far {
            [_, ..] if step.doing.is_empty() => made(&reader.report(step.so_far)),
            _ => Ok(()),
        }
    })?;
    if let Some((cell, Err(why))) = finished.iter().find(|(_, outcome)| outcome.is_err()) {
        bail!("{} failed: {why}", cell.name());
    }
    Ok(reader.report(&finished))
}

/// A column of the tables: so much background load.
fn at(steps: f64) -> String {
    format!("{steps}x")
}

/// The cells for which a number was published, none of them made.
pub(crate) fn claims() -> Vec<Cell> {
    let published =
        |experiment, subject: &str, metric| coverage::number(COLLOID, experiment, subject, metric);
    let mut cells = Vec::new();
    for steps in &LOADS[1..] {
        for ([what, row], metric) in [(ALONE, "part of the peak"), (LOADED, "latency")] {
            let number = published("set-up", &format!("{what} at {}", at(*steps)), metric);
            cells.push(Cell::published("setup", row, &at(*steps), what, number));
        }
    }
    let logged = ["throughput", "default tier latency", "alternate tier latency"];
    for (row, metric) in SAMPLE_LOG.into_iter().zip(logged) {
        let number = published("set-up", "sample log", metric);
        cells.push(Cell::published("setup", row, &at(0.0), LOG, number));
    }
    for latency in LATENCIES {
        for steps in LOADS {
            let subject = format!("{latency}ns at {}", at(steps));
            let metric = "TPP+colloid throughput / TPP throughput";
            let number = published(GUPS, &subject, metric);
            cells.push(Cell::published("6c", &format!("{latency} ns"), &at(steps), GAIN, number));
        }
    }
    for steps in LOADS {
        for system in SYSTEMS {
            let number = published(SILO, &format!("{system} at {}", at(steps)), "throughput");
            let cell = Cell::published("8b", system, &at(steps), "transactions/s", number);
            cells.push(Cell { input: system == SYSTEMS[0] && steps == 0.0, ..cell });
        }
    }
    cells
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

    #[test]
    fn every_published_cell_of_6c_and_8b_is_found() {
        crate::coverage::tests::is_complete(crate::coverage::COLLOID, look_all_up);
    }

    fn look_all_up() {
        let cells = claims();
        assert!(cells.iter().all(|cell| cell.published.is_some()), "{cells:?}");
        assert_eq!(cells.iter().filter(|cell| cell.error().is_none()).count(), 1, "the input");
        for (at, cell) in cells.iter().enumerate() {
            assert!(cells[..at].iter().all(|other| other.place() != cell.place()), "{cell:?}");
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

    fn options(seed: u64) -> Options {
        Options { figures: Vec::new(), ..Options::new(true, seed).unwrap() }
    }

    #[test]
    fn an_unknown_figure_lists_the_known_ones() {
        let error = options(1).only(Some(&["6cc".into()])).unwrap_err().to_string();
        assert!(error.contains("6cc") && error.contains("did you mean \"6c\""), "{error}");
    }

    #[test]
    fn each_figure_and_each_sum_is_a_cell_and_what_is_there_makes_the_report() {
        let full = Modelled::new(Options::new(false, 1).unwrap());
        let names: Vec<String> = full.turns().into_iter().map(|turn| turn.cell.name()).collect();
        assert_eq!(names[0], "colloid/setup/modelled/1");
        assert!(
            names.contains(&"colloid/at-rest.dram.clock_ns.less/modelled/1".into()),
            "{names:?}"
        );
        assert!(names.iter().any(|name| name.starts_with("colloid/in-runs.kernel.")), "{names:?}");
        assert!(names.iter().all(|name| !name.contains([' ', '(', ','])), "{names:?}");
        // An infinite value is null in JSON.
        let cell = Cell::of("7", "tpp", "moves", "s to 95 %", f64::INFINITY);
        let made = Report { cells: vec![cell], ..Report::default() };
        let outcome = Outcome::of(&made).unwrap();
        let turns = full.turns();
        let turn = turns.iter().find(|turn| turn.cell.case == "7").unwrap();
        let report = full.report(&[(turn.cell.clone(), Ok(outcome))]);
        assert_eq!(report.cells[0].modelled, f64::INFINITY);
        assert!(report.sensitivity.is_empty(), "of half a table nothing is said");
    }

    #[test]
    fn what_is_kept_is_taken_by_a_run_on_the_same_machine_only() {
        let room = tempfile::tempdir().unwrap();
        let keep = |options: &Options| options.keep(Keep::new(room.path()).unwrap());
        let signals = Signals::block(&[]).unwrap();
        let (executable, every) = (PathBuf::new(), Duration::ZERO);
        let stage = Stage { linux: Linux::live(), executable, signals: &signals, every };
        let one = Options { figures: vec!["setup".into()], ..options(1) };
        let Turn { cell, of, .. } = Modelled::new(one.clone()).turns().remove(0);
        let made = || Outcome::of(&Report::default());
        assert!(keep(&one).once(&cell, of, &stage, made).unwrap().1);
        assert!(!keep(&one).once(&cell, of, &stage, made).unwrap().1, "it was kept");
        let machine = one.machine.with("tier.default.channels", 3.0);
        for other in [Options { machine, ..one.clone() }, Options { points: Some((1, 2)), ..one }] {
            assert!(keep(&other).taken(&cell, of).is_none());
        }
    }
}

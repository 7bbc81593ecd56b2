//! The published evaluation of Colloid on the simulated machine: each figure's cells, the published number
//! where there is one, ours, and the error. All of ours is *modelled*.
//!
//! | figure | what |
//! |---|---|
//! | setup | facts of the evaluation's set-up that no scored figure contains |
//! | 4 | GUPS, the three systems without and with Colloid and the best static placement, by background load |
//! | 6a, 6b, 6c | GUPS under HeMem, MEMTIS, TPP: throughput with Colloid over throughput without |
//! | 7 | dynamics: the hot set moves, the antagonist starts; time to recover, regret against the best static one |
//! | 8a, 8b, 8c | `PageRank`, Silo, `CacheLib` under TPP without and with Colloid |
//! | 6c+thp, 8b+thp | 6c and 8b where the kernel's pages are of 2 MiB, and 8b under MEMTIS, whose are so |
//! | regret | what placers lose against brute force over random machines, loads at rest and that change |
//!
//! The facts of the set-up are the antagonist alone, the default tier's latency under load, and the artifact's sample
//! log; figure 6 is by unloaded latency of the alternate tier and background load.
//!
//! Parameters live in the machine file and in `sim::workload`; nothing here adjusts any of them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::Signals;

mod cell;
mod figures;
mod html;
mod options;
mod regret;
mod report;
mod sensitivity;
mod text;

use crate::reproduce::cell::Cell as Run;
use crate::reproduce::keep::{CellKey, Keep};
use crate::reproduce::outcome::Outcome;
use crate::reproduce::series::{self, Finished, PlannedCell, Series};
use crate::reproduce::store::Store;
use crate::reproduce::target::Stage;
use crate::tabled::{Choices, TabledExperiment};
pub use cell::Cell;
pub(crate) use cell::{SOURCE, claims};
use figures::Bench;
pub use html::render as page;
pub use options::{FILE, NAME, Options, Runs};
pub use report::{Influence, Line, Report, Score};
pub(crate) use text::value;

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: options::TEXT,
    source: Some(&SOURCE),
    choices: Choices { arms: false, programs: true, scale: false },
    is_roots: false,
    measured: None,
    kept: None,
};

impl Report {
    /// What cells that were made anywhere came to.
    ///
    /// # Errors
    /// None for cells that this made.
    pub fn of(finished: &[Finished], of: CellKey) -> Result<Self> {
        let all = Options::new(of.scale < 1.0, of.seed)?;
        let made = |name: &String| finished.iter().any(|(cell, _)| cell.case == *name);
        let figures: Vec<String> =
            FILE.full.runs.figures.iter().filter(|name| made(name)).cloned().collect();
        let sensitivity = figures.len() < finished.len();
        Ok(Modelled::new(Options { figures, sensitivity, ..all }).report(finished))
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
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let size = FILE.size(self.options.quick);
        let of = CellKey { seed: self.options.seed, scale: size.scale, window: None };
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
            .map(|case| PlannedCell { cell: cell(case), of, seconds: size.seconds / processors })
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let names: Vec<String> =
            full.planned_cells().into_iter().map(|planned| planned.cell.name()).collect();
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
        let planned_cells = full.planned_cells();
        let planned = planned_cells.iter().find(|planned| planned.cell.case == "7").unwrap();
        let report = full.report(&[(planned.cell.clone(), Ok(outcome))]);
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
        let PlannedCell { cell, of, .. } = Modelled::new(one.clone()).planned_cells().remove(0);
        let made = || Outcome::of(&Report::default());
        assert!(keep(&one).once(&cell, of, &stage, made).unwrap().1);
        assert!(!keep(&one).once(&cell, of, &stage, made).unwrap().1, "it was kept");
        let machine = one.machine.with("tier.default.channels", 3.0);
        for other in [Options { machine, ..one.clone() }, Options { points: Some((1, 2)), ..one }] {
            assert!(keep(&other).taken(&cell, of).is_none());
        }
    }
}

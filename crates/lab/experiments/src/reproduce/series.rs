//! Cells one after the other, whatever they are of.
//!
//! ```text
//!  experiments/NAME.toml ──► its cells, in order ──► each: kept? taken; else run under its lock, and kept
//!                                                     │ in one process, or each by a command of its own
//!                                                     ▼
//!                                                    what the experiment makes of those that are there: its tables
//! ```
//!
//! Always true: a cell brings about what it needs, so that it may be the first of a process, and the only one; what a
//! table says is made from finished cells alone.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_launch::progress::minutes;

use super::cell::Cell;
use super::keep::Keep;
pub use super::keep::PlannedCell;
use super::outcome::Outcome;
use super::store::Store;
use super::target::Stage;
use pagemill_launch::exit::Interrupted;

/// A finished cell: results, or the reason why there are none.
pub type Finished = (Cell, Result<Outcome, String>);

/// Cells that know how to run.
pub trait Series {
    /// All of them, in the order in which they run.
    fn planned_cells(&self) -> Vec<PlannedCell>;

    /// Leaves out what cannot run here, with the reasons; what can be built first is, if `say` is there to hear of it.
    fn leave_out(&mut self, _say: Option<&mut dyn FnMut(&str)>) -> Vec<String> {
        Vec::new()
    }

    /// Gives back what it has on loan, when no further cell is to run.
    ///
    /// # Errors
    /// Where that fails; the next start then does it.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether one that is not finished is to run now; else it is left for another time.
    fn wants(&mut self, _cell: &Cell) -> bool {
        true
    }

    /// Runs one. `so_far` are those that are finished; `say` hears what is being done.
    ///
    /// # Errors
    /// The reason why it has no results; [`Interrupted`] by a signal.
    fn run(
        &mut self,
        cell: &Cell,
        so_far: &[Finished],
        say: &mut dyn FnMut(&str),
    ) -> Result<Outcome>;
}

/// How far a run is.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// The cell that is next.
    pub cell: &'a Cell,
    /// Its number, from 1, and how many there are.
    pub number: (usize, usize),
    /// Roughly how long it and those after it take.
    pub left: Duration,
    /// What is being done for it; nothing when it begins.
    pub doing: &'a str,
    /// The cells before it.
    pub so_far: &'a [Finished],
}

impl Step<'_> {
    /// For people.
    pub fn words(&self) -> String {
        let (number, all) = self.number;
        let doing = if self.doing.is_empty() { "" } else { ": " };
        let left = minutes(self.left);
        format!("[{number}/{all}] {}, {left} left{doing}{}", self.cell.words(), self.doing)
    }
}

/// Runs all of a series that is not kept; the flag says whether a signal ended it. `report` hears of each step.
///
/// # Errors
/// Where a cell cannot be kept; from `report`.
pub fn all(
    series: &mut dyn Series,
    stage: &Stage<'_>,
    kept: (Option<&Store>, &Keep),
    report: &mut dyn FnMut(&Step<'_>) -> Result<()>,
) -> Result<(Vec<Finished>, Option<Interrupted>)> {
    let run = each(series, stage, kept, report);
    let closed = series.close();
    run.and_then(|run| closed.map(|()| run))
}

fn each(
    series: &mut dyn Series,
    stage: &Stage<'_>,
    (store, keep): (Option<&Store>, &Keep),
    report: &mut dyn FnMut(&Step<'_>) -> Result<()>,
) -> Result<(Vec<Finished>, Option<Interrupted>)> {
    let planned_cells = series.planned_cells();
    let mut finished: Vec<Finished> = Vec::new();
    let (mut digests, mut pace) = (Digests::new(), Pace::default());
    // What is kept takes no time.
    let kept: Vec<bool> = planned_cells
        .iter()
        .map(|planned| keep.taken(&planned.cell, planned.of).is_some())
        .collect();
    for (at, PlannedCell { cell, of, .. }) in planned_cells.iter().enumerate() {
        if !kept[at] && !series.wants(cell) {
            continue;
        }
        let left = planned_cells[at..].iter().zip(&kept[at..]).filter(|(_, kept)| !**kept);
        let (number, left) =
            ((at + 1, planned_cells.len()), pace.left(left.map(|(planned, _)| planned)));
        let step = Step { cell, number, left, doing: "", so_far: &finished };
        report(&step)?;
        let began = Instant::now();
        let mut failed = None;
        let run = keep.once(cell, *of, stage, || {
            series.run(cell, &finished, &mut |doing| {
                failed = report(&Step { doing, ..step }).err().or(failed.take());
            })
        });
        failed.map_or(Ok(()), Err)?;
        let (outcome, ran) = match run {
            Err(error) => return error.downcast().map(|by| (finished, Some(by))),
            Ok(run) => run,
        };
        let outcome = outcome.and_then(|outcome| agrees(&mut digests, cell, outcome));
        if ran {
            pace.saw(cell, began.elapsed());
        }
        if let Some(store) = store {
            store.append(at + 1, cell, &outcome)?;
        }
        finished.push((cell.clone(), outcome));
    }
    Ok((finished, None))
}

/// How much of a series there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Its cells.
    pub cells: usize,
    /// Those that are kept.
    pub kept: usize,
    /// Roughly how long the others take.
    pub time: Duration,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cells, kept, time } = self;
        let kept = if *kept > 0 { format!(", {kept} of them kept") } else { String::new() };
        write!(f, "{cells} cells{kept}, about {}", minutes(*time))
    }
}

/// Cells of a series, those that are kept, and roughly how long the others take.
pub fn amount(series: &dyn Series, keep: Option<&Keep>) -> Amount {
    let planned_cells = series.planned_cells();
    let is_kept = |planned: &&PlannedCell| {
        keep.is_some_and(|it| it.taken(&planned.cell, planned.of).is_some())
    };
    let (kept, left): (Vec<&PlannedCell>, Vec<&PlannedCell>) =
        planned_cells.iter().partition(is_kept);
    Amount {
        cells: planned_cells.len(),
        kept: kept.len(),
        time: Pace::default().left(left.into_iter()),
    }
}

/// Runs one of a series, unless it is kept, and returns what came of it; `None` if there is no such cell.
///
/// # Errors
/// Where it cannot be kept; [`Interrupted`] by a signal.
pub fn one(
    series: &mut dyn Series,
    cell: &Cell,
    so_far: &[Finished],
    stage: &Stage<'_>,
    keep: &Keep,
) -> Result<Option<Result<Outcome, String>>> {
    let Some(planned) = series.planned_cells().into_iter().find(|planned| planned.cell == *cell)
    else {
        return Ok(None);
    };
    let run = keep.once(cell, planned.of, stage, || series.run(cell, so_far, &mut |_| {}));
    let closed = series.close();
    let (outcome, _) = run?;
    closed.map(|()| Some(outcome))
}

/// How long cells have taken so far.
#[derive(Default)]
struct Pace(HashMap<(String, String), (Duration, u32)>);

impl Pace {
    fn saw(&mut self, cell: &Cell, took: Duration) {
        let sum = self.0.entry((cell.experiment.clone(), cell.case.clone())).or_default();
        *sum = (sum.0 + took, sum.1 + 1);
    }

    /// Time for these.
    fn left<'a>(&self, planned_cells: impl Iterator<Item = &'a PlannedCell>) -> Duration {
        let seconds = planned_cells.map(|PlannedCell { cell, seconds, .. }| {
            match self.0.get(&(cell.experiment.clone(), cell.case.clone())) {
                Some((sum, count)) => sum.as_secs_f64() / f64::from(*count),
                None => *seconds,
            }
        });
        Duration::from_secs_f64(seconds.sum())
    }
}

/// The output of each case that was seen first, and the arm that made it.
pub type Digests = HashMap<(String, String), (u64, &'static str)>;

/// Arms must agree on the output: an allocator that changes it is broken.
///
/// # Errors
/// It does not agree with the first one's.
pub fn agrees(digests: &mut Digests, cell: &Cell, outcome: Outcome) -> Result<Outcome, String> {
    let Some(digest) = outcome.digest else { return Ok(outcome) };
    let key = (cell.experiment.clone(), cell.case.clone());
    let (first, arm) = *digests.entry(key).or_insert((digest, cell.arm));
    if first == digest {
        Ok(outcome)
    } else {
        Err(format!("the program's output differs from the one in arm {arm}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_whose_output_differs_has_failed() {
        let mut digests = HashMap::new();
        let cell = |arm| Cell { experiment: "e".into(), case: "c".into(), arm, repetition: 1 };
        let outcome = |digest| Outcome { digest, ..Outcome::default() };
        assert!(agrees(&mut digests, &cell("glibc"), outcome(Some(1))).is_ok());
        assert!(agrees(&mut digests, &cell("1y-ksm"), outcome(Some(1))).is_ok());
        let error = agrees(&mut digests, &cell("1y-ksm"), outcome(Some(2))).unwrap_err();
        assert!(error.contains("glibc"), "{error}");
        assert!(agrees(&mut digests, &cell("mesh"), outcome(None)).is_ok());
    }

    /// Two cells that take as long as they say.
    struct Two;

    impl Series for Two {
        fn planned_cells(&self) -> Vec<PlannedCell> {
            let of = super::super::keep::CellKey { seed: 1, scale: 1.0, window: None };
            let planned = |repetition: u32| {
                let (experiment, case) = ("e".into(), format!("c{repetition}"));
                let cell = Cell { experiment, case, arm: "glibc", repetition };
                PlannedCell { cell, of, seconds: f64::from(repetition) * 10.0 }
            };
            vec![planned(1), planned(2)]
        }

        fn run(&mut self, _: &Cell, _: &[Finished], _: &mut dyn FnMut(&str)) -> Result<Outcome> {
            Ok(Outcome::default())
        }
    }

    /// A run that went on told the time of what it had, too.
    #[test]
    fn what_is_kept_takes_no_time() {
        let room = tempfile::tempdir().unwrap();
        let keep = Keep::new(room.path()).unwrap();
        let signals = pagemill_kernel::process::signal::Signals::block(&[]).unwrap();
        let (linux, executable) = (pagemill_kernel::Linux::live(), std::path::PathBuf::new());
        let stage = Stage { linux, executable, signals: &signals, every: Duration::ZERO };
        let told = |keep| amount(&Two, Some(keep)).to_string();
        assert_eq!(told(&keep), "2 cells, about 30 s");
        let PlannedCell { cell, of, .. } = Two.planned_cells().remove(1);
        keep.once(&cell, of, &stage, || Ok(Outcome::default())).unwrap().0.unwrap();
        assert_eq!(told(&keep), "2 cells, 1 of them kept, about 10 s");
        let mut left = Vec::new();
        let run = all(&mut Two, &stage, (None, &keep), &mut |step| {
            left.push(step.left.as_secs());
            Ok(())
        });
        assert_eq!((run.unwrap().0.len(), left), (2, vec![10, 0]));
    }
}

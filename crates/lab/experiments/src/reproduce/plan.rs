//! Which cells run, in which order, and running them.
//!
//! Experiments run one after the other. Within one, each repetition runs every case in every arm
//! once, in an order shuffled from the seed: a slow minute of the machine hits all arms alike.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_model::random::Random;

use super::arm::{self, Arm, Machine};
use super::browser;
use super::cell::{self, Cell};
use super::experiment::{Experiment, Program};
use super::found::Unsuitable;
use super::input::Inputs;
use super::keep::{Begun, Keep, Of};
use super::outcome::Outcome;
use super::store::Store;
use super::target::{Interrupted, Stage};

/// What the user chose.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Options {
    /// Smaller sizes, fewer arms and runs.
    pub quick: bool,
    /// Runs of each arm, instead of the experiment's.
    pub repetitions: Option<u32>,
    /// Arms, instead of the experiment's.
    pub arms: Option<Vec<String>>,
    /// Factor on sizes and times.
    pub scale: f64,
    /// Length of the Redis window, instead of the published one.
    pub settle: Option<f64>,
    /// Seed of the order and of all inputs.
    pub seed: u64,
}

/// Something that does not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Skipped {
    /// The experiment.
    pub experiment: String,
    /// The arm; all of them if none is named.
    pub arm: Option<String>,
    /// Why.
    pub reason: String,
}

/// An experiment with the arms that can run and the order of its cells.
pub struct Scheduled {
    /// The experiment.
    pub experiment: Experiment,
    /// Its arms.
    pub arms: Vec<Arm>,
    /// Runs of each arm.
    pub repetitions: u32,
    /// Factor on its full size.
    pub scale: f64,
    cells: Vec<(usize, Cell)>,
}

impl Options {
    /// What the figures of an experiment's cells depend on, beside the program and the machine.
    fn of(&self, experiment: &Experiment) -> Of {
        let share = if self.quick { experiment.quick.scale } else { 1.0 };
        Of { seed: self.seed, scale: self.scale * share, window: self.settle }
    }
}

impl Scheduled {
    /// Its cells, in the order in which they run.
    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().map(|(_, cell)| cell)
    }
}

/// Everything that is to run.
pub struct Plan {
    /// By experiment.
    pub scheduled: Vec<Scheduled>,
    /// What does not run.
    pub skipped: Vec<Skipped>,
}

/// A finished cell: results, or the reason why there are none.
pub type Finished = (Cell, Result<Outcome, String>);

impl Plan {
    /// Plans `experiments`. Fails for arms that do not exist; what cannot run here is skipped with
    /// its reason.
    pub fn new(
        experiments: Vec<Experiment>,
        options: &Options,
        machine: &mut Machine,
        inputs: &Inputs,
    ) -> Result<Self> {
        let mut plan = Self { scheduled: Vec::new(), skipped: Vec::new() };
        let mut random = Random::new(options.seed);
        for mut experiment in experiments {
            if options.quick
                && let Program::Redis(redis) = &mut experiment.program
            {
                redis.loads.retain(|load| !experiment.quick.without_loads.contains(load));
            }
            leave_out(&mut experiment, inputs, &mut plan.skipped);
            let quick = options.quick.then_some(&experiment.quick);
            let named = quick.map_or(&experiment.arms, |quick| &quick.arms);
            let names = arm::expand(options.arms.as_ref().unwrap_or(named))?;
            let scale = options.of(&experiment).scale;
            let fewer = quick.map(|quick| quick.repetitions);
            let repetitions = options.repetitions.or(fewer).unwrap_or(experiment.repetitions);
            let skip = |arm: Option<&str>, reason: String| Skipped {
                experiment: experiment.name.clone(),
                arm: arm.map(str::to_owned),
                reason,
            };
            let first = &experiment.cases()[0];
            if let Err(error) = inputs.ready(&experiment, first, scale) {
                if !error.is::<Unsuitable>() {
                    return Err(error);
                }
                plan.skipped.push(skip(None, error.to_string()));
                continue;
            }
            let mut arms = Vec::new();
            for name in names {
                match machine.arm(name, &experiment.program) {
                    Ok(arm) => arms.push(arm),
                    Err(reason) => plan.skipped.push(skip(Some(name), reason)),
                }
            }
            let once: &[String] = quick.map_or(&[], |quick| &quick.once);
            let cells = order(&experiment, &arms, repetitions, once, &mut random);
            plan.scheduled.push(Scheduled { experiment, arms, repetitions, scale, cells });
        }
        Ok(plan)
    }

    /// Cells in all.
    pub fn cells(&self) -> usize {
        self.scheduled.iter().map(|scheduled| scheduled.cells.len()).sum()
    }

    /// Each cell, with whether such a run has finished it.
    pub fn kept<'a>(
        &'a self,
        options: &'a Options,
        keep: &'a Keep,
    ) -> impl Iterator<Item = (&'a Cell, bool)> {
        self.scheduled.iter().flat_map(move |scheduled| {
            let of = options.of(&scheduled.experiment);
            let cells = scheduled.cells.iter().map(|(_, cell)| cell);
            cells.map(move |cell| (cell, keep.taken(cell, of).is_some()))
        })
    }

    /// How long everything takes, as far as the files say.
    pub fn estimate(&self) -> Duration {
        let seconds = self.scheduled.iter().map(|scheduled| {
            scheduled.experiment.seconds * scheduled.scale * scheduled.cells.len() as f64
        });
        Duration::from_secs_f64(seconds.sum())
    }

    /// Runs everything; `report` hears of each cell before it starts. The flag says whether the
    /// run was interrupted; what was finished by then is returned and on disk. What such a run has finished before is
    /// taken.
    pub fn run(
        &self,
        stage: &mut Stage<'_>,
        inputs: &Inputs,
        options: &Options,
        (store, keep): (&mut Store, &Keep),
        report: &mut dyn FnMut(&Cell, usize, Duration),
    ) -> Result<(Vec<Finished>, bool)> {
        let mut finished: Vec<Finished> = Vec::new();
        let mut digests = Digests::new();
        let mut pace = Pace::default();
        for scheduled in &self.scheduled {
            stage.every = Duration::from_millis(scheduled.experiment.sampling.every_ms);
            for (arm, cell) in &scheduled.cells {
                report(cell, finished.len() + 1, self.left(finished.len(), &pace));
                let began = Instant::now();
                let (outcome, ran) = match scheduled.one(
                    &scheduled.arms[*arm],
                    cell,
                    stage,
                    inputs,
                    options,
                    keep,
                ) {
                    Err(error) if error.is::<Interrupted>() => return Ok((finished, true)),
                    outcome => outcome?,
                };
                let outcome = outcome.and_then(|outcome| agrees(&mut digests, cell, outcome));
                if ran {
                    pace.saw(&cell.experiment, &cell.case, began.elapsed());
                }
                store.append(finished.len() + 1, cell, &outcome)?;
                finished.push((cell.clone(), outcome));
            }
        }
        Ok((finished, false))
    }

    /// Runs a cell of this plan of its experiment alone, unless it is finished, and returns what came of it. What
    /// cannot run here has failed with the reason.
    ///
    /// # Errors
    /// Where it cannot be kept; [`Interrupted`] by a signal.
    pub fn run_cell(
        &self,
        (cell, experiment): (&Cell, &Experiment),
        stage: &mut Stage<'_>,
        inputs: &Inputs,
        options: &Options,
        keep: &Keep,
    ) -> Result<Result<Outcome, String>> {
        for scheduled in &self.scheduled {
            if let Some((arm, cell)) = scheduled.cells.iter().find(|(_, one)| one == cell) {
                stage.every = Duration::from_millis(scheduled.experiment.sampling.every_ms);
                let arm = &scheduled.arms[*arm];
                return Ok(scheduled.one(arm, cell, stage, inputs, options, keep)?.0);
            }
        }
        let of = options.of(experiment);
        let lock = match keep.begin(cell, of, stage)? {
            Begun::Done(outcome) => return Ok(Ok(outcome)),
            Begun::Mine(lock) => lock,
        };
        let why = self.skipped.first().map(|one| one.reason.clone());
        let outcome = Err(why.unwrap_or_else(|| "it is no cell of its experiment here".to_owned()));
        keep.end(lock, cell, of, Duration::ZERO, &outcome)?;
        Ok(outcome)
    }

    /// Time for the cells after the first `done`.
    fn left(&self, done: usize, pace: &Pace) -> Duration {
        let all = self
            .scheduled
            .iter()
            .flat_map(|scheduled| scheduled.cells.iter().map(move |(_, cell)| (scheduled, cell)));
        let seconds = all.skip(done).map(|(scheduled, cell)| {
            pace.mean(&cell.experiment, &cell.case)
                .unwrap_or(scheduled.experiment.seconds * scheduled.scale)
        });
        Duration::from_secs_f64(seconds.sum())
    }
}

/// Leaves out the programs of an experiment that are not here, with the reason, unless that is all of them.
fn leave_out(experiment: &mut Experiment, inputs: &Inputs, skipped: &mut Vec<Skipped>) {
    let lacking = |case: &str, why: Option<String>| Some((case.to_owned(), why?));
    let missing: Vec<(String, String)> = match &experiment.program {
        Program::Packaged(programs) => programs
            .iter()
            .filter_map(|one| {
                lacking(&one.case, inputs.path_of(one).err().map(|why| why.to_string()))
            })
            .collect(),
        Program::Browser(page) => page
            .browsers
            .iter()
            .filter_map(|one| lacking(one.name(), browser::missing(*one)))
            .collect(),
        _ => return,
    };
    if missing.len() == experiment.cases().len() {
        return;
    }
    let is_here = |case: &str| missing.iter().all(|(lacking, _)| lacking != case);
    match &mut experiment.program {
        Program::Packaged(programs) => programs.retain(|one| is_here(&one.case)),
        Program::Browser(page) => page.browsers.retain(|one| is_here(one.name())),
        _ => {}
    }
    for (case, reason) in missing {
        let name = format!("{} {case}", experiment.name);
        skipped.push(Skipped { experiment: name, arm: None, reason });
    }
}

impl Scheduled {
    /// Runs a cell, or takes what such a run came to, which the flag tells.
    fn one(
        &self,
        arm: &Arm,
        cell: &Cell,
        stage: &Stage<'_>,
        inputs: &Inputs,
        options: &Options,
        keep: &Keep,
    ) -> Result<(Result<Outcome, String>, bool)> {
        let of = options.of(&self.experiment);
        let lock = match keep.begin(cell, of, stage)? {
            Begun::Done(outcome) => return Ok((Ok(outcome), false)),
            Begun::Mine(lock) => lock,
        };
        let began = Instant::now();
        let Self { experiment, scale, .. } = self;
        let run = cell::run(stage, inputs, experiment, &cell.case, arm, *scale, options.settle);
        let outcome = match run {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            run => run.map_err(|error| format!("{error:#}")),
        };
        keep.end(lock, cell, of, began.elapsed(), &outcome)?;
        Ok((outcome, true))
    }
}

/// Cells of an experiment where everything is installed, and roughly how long they take.
///
/// # Errors
/// For an arm that does not exist.
pub fn amount(experiment: &Experiment, quick: bool) -> Result<(usize, Duration)> {
    let short = quick.then_some(&experiment.quick);
    let arms = arm::expand(short.map_or(&experiment.arms, |quick| &quick.arms))?;
    let mut cases = experiment.cases();
    let mut per_case = arms.len() * experiment.repetitions as usize;
    let mut scale = 1.0;
    if let Some(quick) = short {
        cases.retain(|case| !quick.without_loads.iter().any(|load| load.name() == case));
        let once = arms.iter().filter(|arm| quick.once.iter().any(|name| name == *arm)).count();
        per_case = (arms.len() - once) * quick.repetitions as usize + once;
        scale = quick.scale;
    }
    let cells = cases.len() * per_case;
    Ok((cells, Duration::from_secs_f64(experiment.seconds * scale * cells as f64)))
}

/// All cells of an experiment, arms interleaved; those of `once` are in the first repetition only.
fn order(
    experiment: &Experiment,
    arms: &[Arm],
    repetitions: u32,
    once: &[String],
    random: &mut Random,
) -> Vec<(usize, Cell)> {
    let mut cells = Vec::new();
    for repetition in 1..=repetitions {
        let mut round: Vec<(usize, Cell)> = experiment
            .cases()
            .into_iter()
            .flat_map(|case| {
                arms.iter().enumerate().map(move |(index, arm)| (index, arm.name, case.clone()))
            })
            .filter(|(_, arm, _)| repetition == 1 || !once.iter().any(|name| name == arm))
            .map(|(index, arm, case)| {
                (index, Cell { experiment: experiment.name.clone(), case, arm, repetition })
            })
            .collect();
        random.shuffle(&mut round);
        cells.extend(round);
    }
    cells
}

/// The output of each case that was seen first, and the arm that made it.
pub type Digests = HashMap<(String, String), (u64, &'static str)>;

/// Arms must agree on the output: an allocator that changes it is broken.
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

/// How long cells have taken so far.
#[derive(Default)]
struct Pace(HashMap<(String, String), (Duration, u32)>);

impl Pace {
    fn saw(&mut self, experiment: &str, case: &str, took: Duration) {
        let sum = self.0.entry((experiment.to_owned(), case.to_owned())).or_default();
        *sum = (sum.0 + took, sum.1 + 1);
    }

    fn mean(&self, experiment: &str, case: &str) -> Option<f64> {
        let (sum, count) = self.0.get(&(experiment.to_owned(), case.to_owned()))?;
        Some(sum.as_secs_f64() / f64::from(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::arm::Allocator;
    use crate::reproduce::experiment;

    fn arms() -> Vec<Arm> {
        ["glibc", "jemalloc", "mimalloc"]
            .map(|name| Arm { name, allocator: Allocator::Library("x".into()) })
            .to_vec()
    }

    #[test]
    fn every_arm_runs_once_a_repetition_and_the_order_follows_the_seed() {
        let experiment = &experiment::select(&["throughput".into()], &[]).unwrap()[0];
        let cells = order(experiment, &arms(), 4, &[], &mut Random::new(9));
        assert_eq!(cells.len(), 4 * 5 * 3);
        for (number, round) in cells.chunks(15).enumerate() {
            let mut seen: Vec<_> = round.iter().map(|(_, cell)| (&cell.case, cell.arm)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 15, "each pair once");
            assert!(round.iter().all(|(_, cell)| cell.repetition as usize == number + 1));
        }
        assert_eq!(cells, order(experiment, &arms(), 4, &[], &mut Random::new(9)));
        assert_ne!(cells, order(experiment, &arms(), 4, &[], &mut Random::new(10)));
    }

    #[test]
    fn the_amount_is_that_of_a_plan_with_all_arms() {
        for experiment in experiment::all().unwrap() {
            let named = arm::expand(&experiment.quick.arms).unwrap();
            let allocator = Allocator::Library("x".into());
            let arms: Vec<Arm> =
                named.iter().map(|&name| Arm { name, allocator: allocator.clone() }).collect();
            let mut short = experiment.clone();
            if let Program::Redis(redis) = &mut short.program {
                redis.loads.retain(|load| !experiment.quick.without_loads.contains(load));
            }
            let quick = &experiment.quick;
            let cells = order(&short, &arms, quick.repetitions, &quick.once, &mut Random::new(1));
            assert_eq!(amount(&experiment, true).unwrap().0, cells.len(), "{}", experiment.name);
        }
    }

    #[test]
    fn an_arm_that_takes_long_runs_once() {
        let experiment = &experiment::select(&["sqlite".into()], &[]).unwrap()[0];
        let once = ["jemalloc".to_owned()];
        let cells = order(experiment, &arms(), 3, &once, &mut Random::new(1));
        let runs = |name| cells.iter().filter(|(_, cell)| cell.arm == name).count();
        assert_eq!((runs("glibc"), runs("jemalloc")), (3, 1));
    }

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
}

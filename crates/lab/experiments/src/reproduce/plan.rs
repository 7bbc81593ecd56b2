//! Which cells run, in which order, and running them.
//!
//! Experiments run one after the other. Within one, each repetition runs every case in every arm
//! once, in an order shuffled from the seed: a slow minute of the machine hits all arms alike.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pagemill_model::random::Random;

use super::arm::{self, Arm, Machine};
use super::browser;
use super::cell::{self, Cell};
use super::experiment::{Experiment, Program};
use super::input::Inputs;
use super::keep::{CellKey, Keep};
use super::outcome::Outcome;
use super::packages::Unsuitable;
use super::series::{self, Finished, PlannedCell, Series};
use super::target::Stage;

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
    #[serde(rename = "settle")]
    pub window: Option<f64>,
    /// Seed of the order and of all inputs.
    pub seed: u64,
    /// The sizes of the publication, of experiments whose full run has smaller ones.
    #[serde(default)]
    pub full_size: bool,
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

/// Says what does not run, and why.
pub fn say_skipped(skipped: &[Skipped]) {
    for skip in skipped {
        let arm = skip.arm.as_deref().map_or(String::new(), |arm| format!(" {arm}"));
        notice!("skipped {}{arm}: {}", skip.experiment, skip.reason);
    }
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
    fn of(&self, experiment: &Experiment) -> CellKey {
        let share = if self.quick { experiment.quick.scale } else { 1.0 };
        CellKey { seed: self.seed, scale: self.scale * share, window: self.window }
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

impl Plan {
    /// Plans `experiments`; what cannot run here is skipped with its reason.
    ///
    /// # Errors
    /// There is no arm of a name.
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
            if let Err(error) = inputs.build(&experiment, first, scale) {
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

    /// Whether something does not run because it is root's.
    pub fn is_roots(&self) -> bool {
        self.skipped.iter().any(|skip| skip.reason == arm::ROOTS)
    }

    /// Runs a cell of this plan of its experiment alone, unless it is finished, and returns what came of it. What
    /// cannot run here has failed with the reason.
    ///
    /// # Errors
    /// Where it cannot be kept; [`pagemill_launch::exit::Interrupted`] by a signal.
    pub fn run_cell(
        &self,
        (cell, experiment): (&Cell, &Experiment),
        stage: &Stage<'_>,
        inputs: &Inputs,
        options: &Options,
        keep: &Keep,
    ) -> Result<Result<Outcome, String>> {
        let mut runs = self.runs(stage, inputs, options);
        if let Some(outcome) = series::one(&mut runs, cell, &[], stage, keep)? {
            return Ok(outcome);
        }
        let why = self.skipped.first().map(|one| one.reason.clone());
        let why = why.unwrap_or_else(|| "it is no cell of its experiment here".to_owned());
        Ok(keep.once(cell, options.of(experiment), stage, || bail!(why))?.0)
    }

    /// Its cells, to be run.
    pub fn runs<'a>(
        &'a self,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
        options: &'a Options,
    ) -> Runs<'a> {
        Runs { plan: self, stage, inputs, options }
    }
}

/// The cells of a plan, to be run.
pub struct Runs<'a> {
    plan: &'a Plan,
    stage: &'a Stage<'a>,
    inputs: &'a Inputs,
    options: &'a Options,
}

impl Series for Runs<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let of = |one: &Scheduled| {
            let (of, seconds) =
                (self.options.of(&one.experiment), one.experiment.seconds * one.scale);
            let planned = move |cell: &Cell| PlannedCell { cell: cell.clone(), of, seconds };
            one.cells().map(planned).collect::<Vec<_>>()
        };
        self.plan.scheduled.iter().flat_map(of).collect()
    }

    fn run(&mut self, cell: &Cell, _: &[Finished], _: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let found = self.plan.scheduled.iter().find_map(|one| {
            let (arm, _) = one.cells.iter().find(|(_, known)| known == cell)?;
            Some((one, &one.arms[*arm]))
        });
        let (Scheduled { experiment, scale, .. }, arm) = found.context("no cell of this plan")?;
        let every = Duration::from_millis(experiment.sampling.every_ms);
        let Stage { linux, executable, signals, .. } = self.stage;
        let (linux, executable) = (linux.clone(), executable.clone());
        let stage = Stage { linux, executable, signals, every };
        cell::run(&stage, self.inputs, experiment, &cell.case, arm, *scale, self.options.window)
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

/// Cells of an experiment where everything is installed, and roughly how long they take.
///
/// # Errors
/// For an arm that does not exist.
pub fn amount(experiment: &Experiment, options: &Options) -> Result<(usize, Duration)> {
    let short = options.quick.then_some(&experiment.quick);
    let named = short.map_or(&experiment.arms, |quick| &quick.arms);
    let arms = arm::expand(options.arms.as_ref().unwrap_or(named))?;
    let mut cases = experiment.cases();
    let own = short.map_or(experiment.repetitions, |quick| quick.repetitions);
    let repetitions = options.repetitions.unwrap_or(own) as usize;
    let mut per_case = arms.len() * repetitions;
    if let Some(quick) = short {
        cases.retain(|case| !quick.without_loads.iter().any(|load| load.name() == case));
        let once = arms.iter().filter(|arm| quick.once.iter().any(|name| name == *arm)).count();
        per_case -= once * (repetitions - 1);
    }
    let cells = cases.len() * per_case;
    let seconds = experiment.seconds * options.of(experiment).scale * cells as f64;
    Ok((cells, Duration::from_secs_f64(seconds)))
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
            let options = Options {
                quick: true,
                repetitions: None,
                arms: None,
                scale: 1.0,
                window: None,
                seed: 1,
                full_size: false,
            };
            let (count, _) = amount(&experiment, &options).unwrap();
            assert_eq!(count, cells.len(), "{}", experiment.name);
            let asked =
                Options { repetitions: Some(5), arms: Some(vec!["glibc".into()]), ..options };
            let (count, _) = amount(&experiment, &asked).unwrap();
            assert!(count % 5 == 0 || quick.once.contains(&"glibc".to_owned()), "{count}");
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
}

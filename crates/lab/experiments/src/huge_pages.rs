//! Programs under huge page policies, on memory as it is and on fragmented memory: how long the slowest page faults
//! take, how long the programs take, and how much of them is on huge pages (CBMM, ATC 2022, figures 2 and 4, 5, 6).
//!
//! ```text
//!  for memory unfragmented, fragmented:
//!    for each repetition: programs and arms in seeded random order
//!      (fragment again what the last run mended) ──► warm ──► run, measured
//!    once each, if cbmm+ is among the arms: the same with page faults recorded, for the faults alone
//! ```
//!
//! Where `auto` and a static setting are among the arms, the static setting that is best so far runs once more in each
//! repetition but the first: what two equal arms differ by is the noise ([`best_static`]).
//!
//! A cell is one run: `huge-pages/xz.fragmented/cbmm+/2`, or with its page faults recorded
//! `huge-pages/xz.fragmented.faults/cbmm+/1`. It brings memory into its state if it is not in it.
//!
//! Terms. An **arm** is a policy of `pagemill run --huge`. Memory is **warm** if the host has it: right before each
//! run as much as it takes, and some, is touched and given back, in huge pages and in base pages (fragmented: base
//! pages, so that nothing is mended), for a cold page costs ten to fifty times a warm one and would be all that is
//! measured.
//!
//! The settings are the artifact's: huge pages are on for `linux-always` and where asked for in all other arms, and a
//! fault may compact (`defrag` is `always`). Unfragmented means compacted first as far as the kernel would.
//!
//! Always true: the settings are on loan, the fragmenter's memory goes with it; a published number is shown and
//! never used; a run that failed is in the results with its reason.

mod applications;
mod best_static;
pub mod programs;
mod report;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pagemill_analysis::latency::Histogram;
use pagemill_analysis::statistics::{Bootstrap, Estimate, median_estimate, ratio_of_medians};
use pagemill_kernel::memory::anonymous::{self, HUGE};
use pagemill_kernel::settings::loan::{Files, Loan};
use pagemill_kernel::{Linux, settings::thp};
use pagemill_model::random::Random;
use pagemill_policy::huge::{self as policy, ThpMode};
use serde::{Deserialize, Serialize};

use crate::coverage::Source;
use crate::prepared_memory::{ORDER, PreparedMemory};
use crate::reproduce::cell::Cell as Run;
use crate::reproduce::definition::{self, Definition};
use crate::reproduce::experiment::chosen;
use crate::reproduce::input::Inputs;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::{Finished, PlannedCell, Series};
use crate::reproduce::target::Stage;
use crate::reproduce::wiredtiger;
use crate::tabled::{Choices, MeasuredExperiment, Tabled, TabledExperiment, Tables};
use pagemill_control::fragmentation::induce::{End, Fragmenter};
use pagemill_launch::exit::Interrupted;
use pagemill_record::free_memory::FreeMemory;
use programs::{Bench, Earlier, learns};

/// Its name on the command line.
pub const NAME: &str = "huge-pages";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runs {
    programs: Vec<String>,
    policies: Vec<String>,
    /// How long fragmenting may take.
    patience_seconds: f64,
    /// How long a program runs before under an arm that learns from earlier runs; never, where there is none.
    earlier_seconds: Option<f64>,
    /// When to begin no further run.
    budget_seconds: Option<f64>,
}

/// Whose figures these are held against.
pub(crate) static SOURCE: Source =
    Source { name: "CBMM", figures: include_str!("../../../../experiments/published/cbmm.csv") };

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: include_str!("../../../../experiments/huge-pages.toml"),
    source: Some(&SOURCE),
    choices: Choices { arms: true, programs: true, scale: true },
    is_roots: true,
    measured: Some(MeasuredExperiment {
        cells: |asked| {
            let of = asked.options;
            let mut options = Options::new(of.quick, of.repetitions, of.scale, of.seed);
            options.only(asked.programs, asked.arms)?;
            Ok(Box::new(Policies::new(options, asked.stage, asked.inputs)))
        },
        nothing: Some(|| Box::new(Outcome::nothing())),
        collected: |cells, of, interrupted| {
            Ok(Box::new(Outcome::collected(cells, of, interrupted)))
        },
    }),
    kept: None,
};

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(EXPERIMENT.file));

/// All programs.
pub(crate) fn programs() -> Vec<&'static str> {
    FILE.full.runs.programs.iter().map(String::as_str).collect()
}

/// All policies.
pub(crate) fn policies() -> Vec<&'static str> {
    FILE.full.runs.policies.iter().map(String::as_str).collect()
}

/// The arm of the static setting that is best so far.
const AGAIN: &str = "best-static";

/// Of how many earlier runs an arm learns at most.
const EARLIER: usize = 64;

/// What the publication compares with.
const BASELINE: &str = "linux-always";

/// The policy that is to win.
const OURS: &str = "cbmm+";

/// The policy that is to lose nowhere.
const AUTO: &str = "auto";

/// What free memory can be.
const FRAGMENTED: &str = "fragmented";

/// The states of free memory.
const STATES: [&str; 2] = ["unfragmented", FRAGMENTED];

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    quick: bool,
    programs: Vec<&'static str>,
    arms: Vec<&'static str>,
    repetitions: u32,
    scale: f64,
    seed: u64,
}

impl Options {
    /// As published, or in two minutes.
    pub fn new(quick: bool, repetitions: Option<u32>, scale: f64, seed: u64) -> Self {
        let size = FILE.size(quick);
        let named = |names: &'static [String]| names.iter().map(String::as_str).collect();
        Self {
            quick,
            programs: named(&size.runs.programs),
            arms: named(&size.runs.policies),
            repetitions: repetitions.unwrap_or(size.repetitions),
            scale: scale * size.scale,
            seed,
        }
    }

    /// Some programs, some arms.
    ///
    /// # Errors
    /// There is no program or arm of a name.
    pub fn only(&mut self, names: Option<&[String]>, arms: Option<&[String]>) -> Result<()> {
        if let Some(names) = names {
            self.programs = chosen("program", &programs(), names)?;
            if self.quick && self.programs.len() > 3 {
                // Smaller instead of fewer.
                self.scale *= 0.4;
            }
        }
        if let Some(names) = arms {
            self.arms = chosen("policy", &policies(), names)?;
        }
        Ok(())
    }
}

/// One run.
#[derive(Clone, Debug)]
struct Cell {
    state: &'static str,
    program: &'static str,
    arm: &'static str,
    /// Which repetition; `None` for the run whose page faults were recorded.
    round: Option<u32>,
    outcome: Result<BTreeMap<String, f64>, String>,
}

/// Which runs belong together.
type Key = (&'static str, &'static str, &'static str);

/// What came of it.
pub struct Outcome {
    options: Options,
    cells: Vec<Cell>,
    /// Runs under the best static setting, once more in each repetition.
    again: Vec<Cell>,
    /// Page faults of the traced runs.
    faults: BTreeMap<Key, Histogram>,
    /// What a reader should know: scores, what was left out and why.
    notes: Vec<String>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// What a cell tells beside its figures.
#[derive(Debug, Default, Deserialize, Serialize)]
struct CellDetails {
    /// The unusable free space index at the order of a huge page, before it ran.
    score: f64,
    /// Page faults, of a run that had them recorded.
    faults: Option<Histogram>,
    /// The static setting that ran once more.
    again: Option<String>,
}

/// What a cell is of: which runs, and whether page faults are recorded.
fn place(cell: &Run) -> Option<(Key, bool)> {
    let mut parts = cell.case.split('.');
    let (program, state, rest) = (parts.next()?, parts.next()?, parts.next());
    let program = programs().into_iter().find(|known| *known == program)?;
    let state = STATES.into_iter().find(|known| *known == state)?;
    Some(((state, program, cell.arm), rest == Some("faults")))
}

/// Memory in a state.
struct Memory {
    state: &'static str,
    prepared: PreparedMemory,
}

impl Memory {
    fn new(linux: &Linux) -> Result<Self> {
        let borrowed = [thp::ENABLED, thp::DEFRAG, thp::MEDIUM];
        Ok(Self { state: "", prepared: PreparedMemory::borrow(linux, &borrowed)? })
    }

    /// Brings it into a state, unless it is in it.
    fn bring_about(
        &mut self,
        linux: &Linux,
        state: &'static str,
        patience: f64,
        say: &mut dyn FnMut(&str),
    ) -> Result<()> {
        if self.state == state {
            return Ok(());
        }
        say(&format!("{state} memory: making it so"));
        self.state = "";
        if state == FRAGMENTED {
            self.prepared.fragmenter(linux, Duration::from_secs_f64(patience))?;
        } else {
            self.prepared.compact(linux)?;
        }
        self.state = state;
        Ok(())
    }
}

/// The cells of the experiment, and the memory that they run on.
pub struct Policies<'a> {
    options: Options,
    bench: Bench<'a>,
    memory: Option<Memory>,
    began: Option<Instant>,
    /// Programs that ran before under an arm that learns.
    taught: BTreeSet<Key>,
    /// What a reader should know: what was left out, and why.
    pub notes: Vec<String>,
}

impl<'a> Policies<'a> {
    /// Those of some options; nothing is touched before the first cell.
    #[must_use]
    pub fn new(options: Options, stage: &'a Stage<'a>, inputs: &'a Inputs) -> Self {
        let Stage { linux, executable, signals, .. } = stage;
        let (executable, scale, cluster) = (executable.clone(), options.scale, OnceCell::new());
        let bench = Bench { linux, executable, inputs, signals, scale, cluster };
        Self {
            options,
            bench,
            memory: None,
            began: None,
            taught: BTreeSet::new(),
            notes: Vec::new(),
        }
    }
}

impl Tabled for Policies<'_> {
    fn missing(&self) -> Option<String> {
        crate::fragmentation::missing(self.bench.linux)
    }

    fn outcome(&self, finished: &[Finished], interrupted: bool) -> Result<Box<dyn Tables>, String> {
        let notes = self.notes.clone();
        Ok(Box::new(Outcome::of(self.options.clone(), finished, notes, interrupted)))
    }
}

impl Series for Policies<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let Options { programs, arms, repetitions, seed, scale, quick } = &self.options;
        let seconds = FILE.size(*quick).seconds * scale / FILE.size(*quick).scale;
        let of = CellKey { seed: *seed, scale: *scale, window: None };
        let mut planned_cells = Vec::new();
        for state in STATES {
            let mut random = Random::new(*seed);
            // Page faults second: where time is short the last repetition is missed least.
            let mut rounds: Vec<Option<u32>> = (1..=*repetitions).map(Some).collect();
            if arms.contains(&OURS) {
                rounds.insert(1, None);
            }
            for round in rounds {
                let is_again = round > Some(1) && arms.contains(&AUTO);
                let all = arms.iter().copied().chain(is_again.then_some(AGAIN));
                let mut runs: Vec<Run> = programs
                    .iter()
                    .flat_map(|program| all.clone().map(move |arm| (program, arm)))
                    .map(|(program, arm)| Run {
                        experiment: NAME.to_owned(),
                        case: format!(
                            "{program}.{state}{}",
                            if round.is_none() { ".faults" } else { "" }
                        ),
                        arm,
                        repetition: round.unwrap_or(1),
                    })
                    .collect();
                random.shuffle(&mut runs);
                planned_cells.extend(runs.into_iter().map(|cell| PlannedCell {
                    cell,
                    of,
                    seconds,
                }));
            }
        }
        // No more cells begin than its time allows.
        if let Some(budget) = FILE.size(*quick).runs.budget_seconds {
            let most = budget / planned_cells.len().max(1) as f64;
            planned_cells
                .iter_mut()
                .for_each(|planned| planned.seconds = planned.seconds.min(most));
        }
        planned_cells
    }

    fn leave_out(&mut self, say: Option<&mut dyn FnMut(&str)>) -> Vec<String> {
        let Self { options, notes, bench, .. } = self;
        if options.programs.contains(&"wiredtiger")
            && let Some(mut say) = say
            && let Err(why) = wiredtiger::build(&mut say)
        {
            notes.push(format!("{why:#}"));
        }
        options.programs.retain(|program| match programs::missing(program) {
            Some(why) => {
                notes.push(format!("{program} was left out: {why}"));
                false
            }
            None => true,
        });
        options.arms.retain(|arm| {
            let missing =
                thp_mode(arm) == Some(ThpMode::Medium) && bench.linux.thp_medium().is_none();
            if missing {
                notes.push(format!("{arm} was left out: this kernel has no pages of 64 KiB"));
            }
            !missing
        });
        notes.clone()
    }

    /// Each state has its share of the time.
    fn wants(&mut self, cell: &Run) -> bool {
        let Some(((state, ..), _)) = place(cell) else { return true };
        let Some(budget) = FILE.size(self.options.quick).runs.budget_seconds else { return true };
        let number = if state == FRAGMENTED { 1.0 } else { 0.5 };
        let over =
            self.began.get_or_insert_with(Instant::now).elapsed().as_secs_f64() > budget * number;
        let said = used_up(state);
        if over && !self.notes.iter().any(|note| note.starts_with(&said)) {
            self.notes.push(format!("{said}{}; -f -o with this directory goes on", cell.words()));
        }
        !over
    }

    fn run(&mut self, cell: &Run, so_far: &[Finished], say: &mut dyn FnMut(&str)) -> Result<Ran> {
        let (key, is_traced) = place(cell).context("it is no cell of this")?;
        let (state, program, mut arm) = key;
        let mut told = CellDetails::default();
        if arm == AGAIN {
            let before = Outcome::of(self.options.clone(), so_far, Vec::new(), false);
            let Some(best) = before.cheapest(state, program) else {
                let note = "no static setting has run before it, so none ran once more".to_owned();
                return Ok(Ran { notes: vec![note], ..Ran::default() });
            };
            (arm, told.again) = (best, Some(best.to_owned()));
        }
        let bench = &self.bench;
        let memory = match &mut self.memory {
            Some(memory) => memory,
            None => self.memory.insert(Memory::new(bench.linux)?),
        };
        let patience = FILE.size(self.options.quick).runs.patience_seconds;
        memory.bring_about(bench.linux, state, patience, say)?;
        let key = (state, program, arm);
        let earlier = FILE.size(self.options.quick).runs.earlier_seconds.filter(|_| learns(arm));
        if !is_traced
            && let Some(seconds) = earlier
            && !self.taught.contains(&key)
        {
            say(&format!("{program}, {state}: runs under {arm} that it learns from"));
            run_before(bench, memory, (program, arm), Duration::from_secs_f64(seconds))?;
            self.taught.insert(key);
        }
        told.score = prepare(bench, memory.prepared.fragmenter.as_mut())?;
        let PreparedMemory { fragmenter, loan } = &memory.prepared;
        warm_up(bench, loan, (program, arm), fragmenter.is_none())?;
        let mut figures = BTreeMap::new();
        if is_traced {
            told.faults = Some(bench.faults(program, arm)?);
        } else {
            let memory = if earlier.is_some() { Earlier::Known } else { Earlier::Forgotten };
            let measured = bench.measure(program, arm, memory)?.into_iter();
            figures.extend(measured.map(|(name, value)| (name.to_owned(), value)));
        }
        Ok(Ran { metrics: figures, ..Ran::of(&told)? })
    }

    fn close(&mut self) -> Result<()> {
        self.memory.take().map_or(Ok(()), |memory| memory.prepared.give_back())
    }
}

impl Outcome {
    /// What finished cells came to.
    #[must_use]
    pub fn of(
        options: Options,
        finished: &[Finished],
        notes: Vec<String>,
        interrupted: bool,
    ) -> Self {
        let (cells, again, faults) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut outcome = Self { options, cells, again, faults, notes, interrupted };
        let mut scores: BTreeMap<&str, f64> = BTreeMap::new();
        for (cell, ran) in finished {
            let Some(((state, program, mut arm), is_traced)) = place(cell) else { continue };
            let told: Option<CellDetails> = ran.as_ref().ok().and_then(Ran::read);
            if let Some(CellDetails { score, faults, again }) = told {
                scores.entry(state).or_insert(score);
                if let Some(known) =
                    again.and_then(|again| policies().into_iter().find(|arm| *arm == again))
                {
                    arm = known;
                }
                outcome.faults.extend(faults.map(|times| ((state, program, arm), times)));
            } else if ran.is_ok() {
                // Nothing ran.
                continue;
            }
            let round = (!is_traced).then_some(cell.repetition);
            let figures = ran.as_ref().map(|ran| ran.metrics.clone()).map_err(Clone::clone);
            let cells = if cell.arm == AGAIN { &mut outcome.again } else { &mut outcome.cells };
            cells.push(Cell { state, program, arm, round, outcome: figures });
        }
        for (state, score) in STATES.iter().filter_map(|state| scores.get_key_value(state)) {
            let note = format!("{state}: unusable free space index at order {ORDER}: {score:.3}");
            outcome.notes.push(note);
        }
        outcome
    }

    /// What cells that were run anywhere came to.
    #[must_use]
    pub fn collected(finished: &[Finished], of: CellKey, interrupted: bool) -> Self {
        let ran = |name: &str, which: fn(Key) -> &'static str| {
            finished.iter().filter_map(|(cell, _)| place(cell)).any(|(key, _)| which(key) == name)
        };
        let repetitions = finished.iter().map(|(cell, _)| cell.repetition).max();
        let mut options =
            Options { scale: of.scale, ..Options::new(false, repetitions, 1.0, of.seed) };
        options.programs.retain(|name| ran(name, |key| key.1));
        options.arms.retain(|name| ran(name, |key| key.2));
        Self::of(options, finished, Vec::new(), interrupted)
    }

    /// Of which nothing ran.
    pub(crate) fn nothing() -> Self {
        Self::of(Options::new(false, None, 1.0, 1), &[], Vec::new(), false)
    }

    /// The values of a figure in all repetitions.
    fn values(&self, (state, program, arm): Key, figure: &str) -> Vec<f64> {
        let ours = |cell: &&Cell| (cell.state, cell.program, cell.arm) == (state, program, arm);
        let figures = self.cells.iter().filter(ours).filter_map(|cell| cell.outcome.as_ref().ok());
        figures.filter_map(|figures| figures.get(figure).copied()).collect()
    }

    fn median(&self, key: Key, figure: &str) -> Option<Estimate> {
        median_estimate(&self.values(key, figure), &Bootstrap::seeded(self.options.seed))
    }

    /// A figure of one arm over the same of another.
    fn ratio(&self, key: Key, other: Key, figure: &str) -> Option<Estimate> {
        let (above, below) = (self.values(key, figure), self.values(other, figure));
        ratio_of_medians(&above, &below, &Bootstrap::seeded(self.options.seed))
    }
}

/// How a note begins that says where the time of a state of memory was used up.
fn used_up(state: &str) -> String {
    format!("{state}: the time was used up at ")
}

/// Fragments memory, or again what the last program mended; the score.
fn prepare(bench: &Bench<'_>, fragmenter: Option<&mut Fragmenter>) -> Result<f64> {
    if let Some(fragmenter) = fragmenter {
        let reached = fragmenter.run(Some(bench.signals), |_, _| {})?;
        return match reached.end {
            End::Interrupted(signal) => Err(Interrupted(signal).into()),
            _ => Ok(reached.score),
        };
    }
    let score = FreeMemory::quick(bench.linux)?.unusable(ORDER);
    Ok(score.0 as f64 / 1000.0)
}

/// Where the kernel gives huge pages by itself under an arm.
fn thp_mode(arm: &str) -> Option<ThpMode> {
    policy::find(arm).map(|policy| policy.mechanism().thp)
}

/// Runs a program under an arm that learns, for a while or [`EARLIER`] times; of what ran before them nothing counts.
fn run_before(
    bench: &Bench<'_>,
    memory: &mut Memory,
    (program, arm): (&str, &str),
    time: Duration,
) -> Result<()> {
    let began = Instant::now();
    for run in 0..EARLIER {
        prepare(bench, memory.prepared.fragmenter.as_mut())?;
        let PreparedMemory { fragmenter, loan } = &memory.prepared;
        warm_up(bench, loan, (program, arm), fragmenter.is_none())?;
        bench.measure(program, arm, if run == 0 { Earlier::Forgotten } else { Earlier::Known })?;
        if began.elapsed() > time {
            break;
        }
    }
    Ok(())
}

/// Makes the settings those of an arm, and memory warm.
fn warm_up(
    bench: &Bench<'_>,
    loan: &Loan<Files>,
    (program, arm): (&str, &str),
    huge: bool,
) -> Result<()> {
    let everywhere = thp_mode(arm) == Some(ThpMode::Always);
    loan.set(thp::ENABLED, if everywhere { "always" } else { "madvise" })?;
    loan.set(thp::DEFRAG, "always")?;
    if loan.found().value(thp::MEDIUM).is_some() {
        // Arms that use them borrow it by themselves.
        loan.set(thp::MEDIUM, "never")?;
    }
    let length = bench.memory(program) as usize / HUGE * HUGE + HUGE;
    if huge {
        anonymous::warm(length, true)?;
    }
    anonymous::warm(length, false)?;
    bench.go_on(Duration::ZERO)
}

#[cfg(test)]
fn figures<const N: usize>(pairs: [(&str, f64); N]) -> BTreeMap<String, f64> {
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::process::signal::Signals;

    fn planned_cells(options: Options) -> Vec<Run> {
        planned(options).into_iter().map(|planned| planned.cell).collect()
    }

    fn planned(options: Options) -> Vec<PlannedCell> {
        let inputs = Inputs::new("pagemill".into(), 1).unwrap();
        let signals = Signals::block(&[]).unwrap();
        let (linux, executable, every) = (Linux::live(), "pagemill".into(), Duration::ZERO);
        let stage = Stage { linux, executable, signals: &signals, every };
        Policies::new(options, &stage, &inputs).planned_cells()
    }

    /// `--list` said six minutes of a quick run that ends after two.
    #[test]
    fn an_estimate_is_no_longer_than_the_time_that_a_run_may_take() {
        let takes = |quick| -> f64 {
            let options = Options::new(quick, None, 1.0, 1);
            planned(options).iter().map(|planned| planned.seconds).sum()
        };
        let budget = FILE.quick.runs.budget_seconds.unwrap();
        assert!((takes(true) - budget).abs() < 1.0, "{}", takes(true));
        assert!(takes(false) > 3600.0);
    }

    #[test]
    fn each_repetition_runs_each_program_under_each_policy_and_page_faults_come_second() {
        let mut options = Options::new(true, Some(2), 1.0, 7);
        options
            .only(Some(&["xz".into(), "gcc".into()]), Some(&["cbmm+".into(), "auto".into()]))
            .unwrap();
        let cells = planned_cells(options.clone());
        assert_eq!(cells, planned_cells(options.clone()), "the order follows the seed");
        let names: Vec<String> = cells.iter().map(Run::name).collect();
        // Two repetitions and the page faults of two policies, and the best static setting once more in the second.
        assert_eq!(names.len(), STATES.len() * 2 * (3 * 2 + 1));
        assert!(names[4..8].iter().all(|name| name.contains(".unfragmented.faults/")), "{names:?}");
        assert!(names.contains(&"huge-pages/xz.fragmented/best-static/2".to_owned()), "{names:?}");
        assert!(cells.iter().all(|cell| place(cell).is_some()));
        assert_ne!(cells, planned_cells(Options { seed: 8, ..options }));
    }

    #[test]
    fn what_cells_told_comes_together_by_state_program_and_policy() {
        let cell = |case: &str, arm: &'static str, repetition| Run {
            experiment: NAME.into(),
            case: case.into(),
            arm,
            repetition,
        };
        let ran = |told: &CellDetails| Ran {
            metrics: figures([("time", 2.0)]),
            ..Ran::of(told).unwrap()
        };
        let mut times = Histogram::default();
        times.add(10, 5);
        let finished = [
            (
                cell("xz.fragmented", "linux-never", 1),
                Ok(ran(&CellDetails { score: 0.9, ..CellDetails::default() })),
            ),
            (
                cell("xz.fragmented.faults", "cbmm+", 1),
                Ok(ran(&CellDetails { faults: Some(times.clone()), ..CellDetails::default() })),
            ),
            (
                cell("xz.fragmented", AGAIN, 2),
                Ok(ran(&CellDetails {
                    again: Some("linux-never".into()),
                    ..CellDetails::default()
                })),
            ),
            (cell("xz.fragmented", AGAIN, 3), Ok(Ran::default())),
            (cell("gcc.fragmented", "auto", 1), Err("it died".to_owned())),
        ];
        let of = CellKey { seed: 1, scale: 0.2, window: None };
        let outcome = Outcome::collected(&finished, of, false);
        assert_eq!(outcome.options.programs, ["xz", "gcc"]);
        assert_eq!(outcome.options.arms, ["linux-never", "cbmm+", "auto"]);
        assert_eq!(outcome.faults[&(FRAGMENTED, "xz", "cbmm+")], times);
        assert_eq!((outcome.cells.len(), outcome.again.len()), (3, 1));
        assert_eq!(outcome.again[0].arm, "linux-never");
        assert_eq!(outcome.notes, ["fragmented: unusable free space index at order 9: 0.900"]);
    }
}

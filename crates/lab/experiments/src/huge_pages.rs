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
//! repetition: what two equal arms differ by is the noise ([`best_static`]).
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

mod best_static;
mod everyday;
pub mod programs;
mod report;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pagemill_analysis::latency::Histogram;
use pagemill_analysis::statistics::{Bootstrap, Estimate, median_estimate, ratio_of_medians};
use pagemill_kernel::anonymous::{Advice, Anonymous, HUGE, PAGE};
use pagemill_kernel::loan::{Files, Loan};
use pagemill_kernel::signal::Signals;
use pagemill_kernel::{Linux, thp};
use pagemill_model::Order;
use pagemill_model::random::Random;

use crate::reproduce::input::Inputs;
use crate::reproduce::target::Interrupted;
use crate::reproduce::wiredtiger;
use pagemill_control::fragmentation::induce::{Fragmenter, Goal};
use pagemill_control::fragmentation::{compact, journals};
use pagemill_record::free_memory::FreeMemory;
use programs::{Bench, Figures};

/// Its name on the command line.
pub const NAME: &str = "huge-pages";

/// What it is, in a line.
pub const TITLE: &str =
    "fault tails, run time and huge pages used under huge page policies (CBMM, figures 2, 4, 5, 6)";

/// The policies.
pub const ARMS: [&str; 9] = [
    "linux-always",
    "linux-madvise",
    MEDIUM,
    "linux-never",
    "ingens",
    "hawkeye",
    "cbmm",
    "cbmm+",
    "auto",
];

/// The arm that only kernels with pages of that size have.
const MEDIUM: &str = "linux-64k";

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

/// The order of a huge page on x86-64.
const ORDER: Order = Order(9);

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    programs: Vec<&'static str>,
    arms: Vec<&'static str>,
    repetitions: u32,
    scale: f64,
    seed: u64,
    patience: Duration,
    /// When to begin no further run.
    budget: Duration,
}

impl Options {
    /// As published, or in two minutes.
    pub fn new(quick: bool, repetitions: Option<u32>, scale: f64, seed: u64) -> Self {
        let full = Self {
            programs: programs::NAMES.to_vec(),
            arms: ARMS.to_vec(),
            repetitions: repetitions.unwrap_or(5),
            scale,
            seed,
            patience: Duration::from_secs(90),
            budget: Duration::MAX,
        };
        if !quick {
            return full;
        }
        Self {
            programs: vec!["growing-server", "redis", "memcached"],
            arms: vec!["linux-always", MEDIUM, "linux-never", "cbmm+", "auto"],
            repetitions: repetitions.unwrap_or(3),
            scale: scale * 0.5,
            patience: Duration::from_secs(25),
            budget: Duration::from_secs(130),
            ..full
        }
    }

    /// Some programs, some arms.
    pub fn only(&mut self, programs: Option<&[String]>, arms: Option<&[String]>) -> Result<()> {
        let choose = |all: &[&'static str], names: &[String]| -> Result<Vec<&'static str>> {
            let one = |name: &String| {
                let known = all.iter().copied().find(|known| known == name);
                known.with_context(|| format!("no {name:?} among {}", all.join(" ")))
            };
            names.iter().map(one).collect()
        };
        if let Some(names) = programs {
            self.programs = choose(&programs::NAMES, names)?;
            if self.budget < Duration::MAX && self.programs.len() > 3 {
                // Smaller instead of fewer.
                self.scale *= 0.4;
            }
        }
        if let Some(names) = arms {
            self.arms = choose(&ARMS, names)?;
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
    outcome: Result<Figures, String>,
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

/// Why it cannot run here; `None` if it can.
pub fn missing(linux: &Linux) -> Option<String> {
    super::fragmentation::missing(linux)
}

/// Runs it; `say` hears of each step.
pub fn run(
    linux: &Linux,
    options: Options,
    inputs: &Inputs,
    executable: PathBuf,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Outcome> {
    let scale = options.scale;
    let bench = Bench { linux, executable, inputs, signals, scale, cluster: OnceCell::new() };
    let mut outcome = Outcome {
        cells: Vec::new(),
        again: Vec::new(),
        faults: BTreeMap::new(),
        notes: Vec::new(),
        interrupted: false,
        options,
    };
    if outcome.options.programs.contains(&"wiredtiger")
        && let Err(why) = wiredtiger::build(&mut say)
    {
        outcome.notes.push(format!("{why:#}"));
    }
    outcome.options.programs.retain(|program| match programs::missing(program) {
        Some(why) => {
            outcome.notes.push(format!("{program} was left out: {why}"));
            false
        }
        None => true,
    });
    if linux.thp_medium().is_none() {
        outcome.options.arms.retain(|arm| *arm != MEDIUM);
        outcome.notes.push(format!("{MEDIUM} was left out: this kernel has no pages of 64 KiB"));
    }
    let borrowed = [thp::ENABLED, thp::DEFRAG, thp::MEDIUM];
    let loan = Loan::files(linux, &journals(linux), thp::LOAN, &borrowed)?;
    match outcome.all(&bench, &loan, &mut say) {
        Err(error) if error.is::<Interrupted>() => outcome.interrupted = true,
        done => done?,
    }
    loan.give_back()?;
    Ok(outcome)
}

impl Outcome {
    fn all(
        &mut self,
        bench: &Bench<'_>,
        loan: &Loan<Files>,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let began = Instant::now();
        for (number, state) in (1..).zip(STATES) {
            // Each state has its share of the time.
            let until = began.checked_add(self.options.budget / STATES.len() as u32 * number);
            say(&format!("{state} memory: making it so"));
            let mut fragmenter = None;
            if state == FRAGMENTED {
                let (order, patience) = (ORDER, self.options.patience);
                let goal = Goal { order, target: 1.0, pinned: false, patience };
                fragmenter = Some(Fragmenter::new(bench.linux, goal)?);
            } else {
                let goal = compact::Goal {
                    order: ORDER,
                    target: 0.05,
                    sweep: true,
                    caches: compact::Caches::Kept,
                };
                compact::run(bench.linux, goal, |_| {})?;
            }
            self.state(bench, loan, state, fragmenter, until, say)?;
        }
        Ok(())
    }

    /// All runs on memory in one state.
    fn state(
        &mut self,
        bench: &Bench<'_>,
        loan: &Loan<Files>,
        state: &'static str,
        mut fragmenter: Option<Fragmenter>,
        until: Option<Instant>,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let score = prepare(bench, fragmenter.as_mut())?;
        let note = format!("{state}: unusable free space index at order {ORDER}: {score:.3}");
        self.notes.push(note);
        let mut random = Random::new(self.options.seed);
        let mut order: Vec<(&str, &str)> = Vec::new();
        for program in &self.options.programs {
            order.extend(self.options.arms.iter().map(|arm| (*program, *arm)));
        }
        // Page faults second: where time is short the last repetition is missed least.
        let measured = (1..=self.options.repetitions).map(Some);
        let mut rounds: Vec<Option<u32>> = measured.collect();
        if self.options.arms.contains(&OURS) {
            rounds.insert(1, None);
        }
        for round in rounds {
            let named = round.map_or("page faults".into(), |round| format!("repetition {round}"));
            let mut runs: Vec<_> =
                order.iter().map(|&(program, arm)| (program, arm, false)).collect();
            let best =
                |program: &&'static str| Some((*program, self.cheapest(state, program)?, true));
            if round.is_some() && self.options.arms.contains(&AUTO) {
                runs.extend(self.options.programs.iter().filter_map(best));
            }
            random.shuffle(&mut runs);
            for (program, arm, again) in runs {
                let this = format!("{state}, {named}: {program} under {arm}");
                if until.is_some_and(|until| Instant::now() > until) {
                    self.notes.push(format!("{this} and what follows: the time was used up"));
                    return Ok(());
                }
                say(&this);
                if fragmenter.is_some() {
                    prepare(bench, fragmenter.as_mut())?;
                }
                warm_up(bench, loan, (program, arm), fragmenter.is_none())?;
                let outcome = match round {
                    Some(_) => bench.measure(program, arm),
                    None => bench.faults(program, arm).map(|times| {
                        self.faults.insert((state, program, arm), times);
                        Figures::new()
                    }),
                };
                let outcome = match outcome {
                    Err(error) if error.is::<Interrupted>() => return Err(error),
                    outcome => outcome.map_err(|error| format!("{error:#}")),
                };
                let cells = if again { &mut self.again } else { &mut self.cells };
                cells.push(Cell { state, program, arm, round, outcome });
            }
        }
        Ok(())
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

    /// Whether a run failed.
    pub fn has_failures(&self) -> bool {
        self.cells.iter().chain(&self.again).any(|cell| cell.outcome.is_err())
    }
}

/// Fragments memory, or again what the last program mended; the score.
fn prepare(bench: &Bench<'_>, fragmenter: Option<&mut Fragmenter>) -> Result<f64> {
    if let Some(fragmenter) = fragmenter {
        return Ok(fragmenter.run(Some(bench.signals), |_, _| {})?.score);
    }
    let score = FreeMemory::quick(bench.linux)?.unusable(ORDER);
    Ok(score.0 as f64 / 1000.0)
}

/// Makes the settings those of an arm, and memory warm.
fn warm_up(
    bench: &Bench<'_>,
    loan: &Loan<Files>,
    (program, arm): (&str, &str),
    huge: bool,
) -> Result<()> {
    loan.set(thp::ENABLED, if arm == BASELINE { "always" } else { "madvise" })?;
    loan.set(thp::DEFRAG, "always")?;
    if loan.found().value(thp::MEDIUM).is_some() {
        // Arms that use them borrow it by themselves.
        loan.set(thp::MEDIUM, "never")?;
    }
    warm(bench.memory(program), huge)?;
    bench.go_on(Duration::ZERO)
}

/// Touches as much memory as the program takes and gives it back, so that the host has it.
fn warm(bytes: f64, huge: bool) -> Result<()> {
    let len = bytes as usize / HUGE * HUGE + HUGE;
    let mut ways = vec![(Advice::NoHuge, PAGE)];
    if huge {
        ways.insert(0, (Advice::Huge, HUGE));
    }
    for (advice, step) in ways {
        let area = Anonymous::map(len, 0)?;
        area.advise(0, len, advice)?;
        (0..len).step_by(step).for_each(|at| area.touch(at));
    }
    Ok(())
}

//! The tables of the fragmentation study: the unusable free space index of each zone and order with
//! huge pages off and on; memory compacted, fragmented, and compacted while fragmented; and how long
//! the study's programs take in each state, with TLB and cache misses where the processor counts them.
//!
//! ```text
//!  for huge pages off, on:
//!    compact ──► look, run the programs ──► fragment, hold ──► look, run ──► the kernel compacts ──► look, run ──► give back
//! ```
//!
//! The study fragmented with a program that fills memory and frees parts of it; here `frag induce` does
//! it, to a score of 1 at order 9. So the states are the study's and the degree is ours; the published
//! rows are those of its own program. Huge pages off means off for the programs, too. Its programs, canneal, fmm and
//! streamcluster, are the built-in ones, at a share of its sizes.
//!
//! Each run is kept in the results directory when it ends: a run of all that was ended goes on with what is left,
//! having brought memory into the state again.
//!
//! Always true: the settings are on loan; a published number is shown and never used.

mod tables;

use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagemill_kernel::loan::Loan;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Linux, huge_costs, pidfd, poll, thp};
use pagemill_model::{Order, Pid};
use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoints;
use pagemill_control::fragmentation::compact;
use pagemill_control::fragmentation::induce::{End, Fragmenter, Goal};
use pagemill_control::fragmentation::journals;
use pagemill_control::run_cost;
use pagemill_record::free_memory::{FreeMemory, ZoneFreeMemory};

/// Its name on the command line.
pub const NAME: &str = "fragmentation";

/// What it is, in a line.
pub const TITLE: &str =
    "unusable free space by zone and order, huge pages off and on (the fragmentation study)";

/// The order of a huge page on x86-64.
const ORDER: Order = Order(9);

/// Huge pages off and on, and the system's setting for it.
const MODES: [(&str, &str); 2] = [("thp off", "never"), ("thp on", "always")];

/// States, with the name that the publication gives them.
const STATES: [(&str, &str); 3] = [
    ("compacted", "compacted"),
    ("fragmented", "fragmented (study's program)"),
    ("compacted while fragmented", "compacted while fragmented (study's program)"),
];

/// The study's programs, each with its share of the full size: as published where time allows, and for `--quick`.
const PROGRAMS: [(&str, &str, &str); 3] =
    [("canneal", "0.1", "0.02"), ("fmm", "32", "4"), ("streamcluster", "0.05", "0.005")];

/// What a run takes on average, as measured on one machine, and with `--quick`.
const AT_ONE: Duration = Duration::from_secs(12);
const AT_ONE_QUICK: Duration = Duration::from_secs(2);

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Small.
    pub quick: bool,
    /// Runs of each program in each state.
    pub repetitions: u32,
}

impl Options {
    /// As published, or in a minute.
    pub fn new(quick: bool, repetitions: Option<u32>) -> Self {
        Self { quick, repetitions: repetitions.unwrap_or(if quick { 2 } else { 5 }) }
    }

    /// What is about to run, in words.
    pub fn announcement(self) -> String {
        let runs = (MODES.len() * STATES.len() * PROGRAMS.len()) as u32 * self.repetitions;
        let each = if self.quick { AT_ONE_QUICK } else { AT_ONE };
        let minutes = (runs * each).as_secs().div_ceil(60);
        format!("{runs} runs of programs, about {minutes} min")
    }

    /// How long fragmenting may take.
    fn patience(self) -> Duration {
        Duration::from_secs(if self.quick { 20 } else { 90 })
    }

    fn scale(self, program: usize) -> &'static str {
        let (_, full, quick) = PROGRAMS[program];
        if self.quick { quick } else { full }
    }
}

/// One state with huge pages off or on.
struct State {
    thp: &'static str,
    name: &'static str,
    published: &'static str,
    measured: Measured,
}

/// What was measured in a state; what is kept of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Measured {
    /// Memory when the state was first brought about, and how that went.
    zones: Vec<ZoneFreeMemory>,
    note: String,
    /// In the order of [`PROGRAMS`].
    programs: [Runs; PROGRAMS.len()],
}

/// The runs of a program in a state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Runs {
    /// Of each run: name and value of what was measured.
    each: Vec<Vec<(String, f64)>>,
    /// Huge pages that faults were given during these runs, and stalls for compaction.
    huge: Option<u64>,
    stalls: Option<u64>,
}

impl Runs {
    fn values(&self, name: &str) -> Vec<f64> {
        self.each.iter().flatten().filter(|(known, _)| known == name).map(|run| run.1).collect()
    }
}

impl Measured {
    /// The program to run next: the first of those with the fewest runs, so that each has some if it ends early.
    fn next(&self, repetitions: u32) -> Option<usize> {
        let runs = |at: &usize| self.programs[*at].each.len();
        (0..PROGRAMS.len()).min_by_key(runs).filter(|at| runs(at) < repetitions as usize)
    }
}

/// What came of it.
pub struct Outcome {
    states: Vec<State>,
    options: Options,
    /// A dependent random read on base and on huge pages, nanoseconds, where the processor does not count misses.
    reads: Option<[f64; 2]>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// Why it cannot run here; `None` if it can.
pub fn missing(linux: &Linux) -> Option<String> {
    if let Err(error) = linux.may_compact() {
        return Some(format!("fragmenting and compacting memory is root's: {error}"));
    }
    linux.thp_pmd_size().err().map(|error| error.to_string())
}

/// Runs what an ended run has not left in the directory `results`; `say` hears of each step.
pub fn run(
    linux: &Linux,
    options: Options,
    results: &Path,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Outcome> {
    let size = if options.quick { "quick" } else { "full" };
    let checkpoints = Checkpoints::new(results.join(NAME), size)?;
    let mut outcome = Outcome { states: Vec::new(), options, reads: None, interrupted: false };
    if run_cost::processor().is_err() {
        say("what page walks cost");
        let costs = huge_costs::measure(linux)?;
        let nanoseconds = |picoseconds: u64| picoseconds as f64 / 1e3;
        let both = costs.read_base_ps.zip(costs.read_huge_ps);
        outcome.reads = both.map(|(base, huge)| [base, huge].map(nanoseconds));
    }
    let loan = Loan::files(linux, &journals(linux), thp::LOAN, &[thp::ENABLED, thp::DEFRAG])?;
    let defrag = loan.found().value(thp::DEFRAG).unwrap_or("madvise").to_owned();
    for (mode, setting) in MODES {
        let part = |name: &str| format!("{mode}, {name}").replace([',', ' '], "-");
        let mut fragmenter = None;
        let mut all =
            STATES.map(|(name, _)| checkpoints.read::<Measured>(&part(name)).unwrap_or_default());
        for (at, (name, published)) in STATES.into_iter().enumerate() {
            let is_left = |one: &Measured| one.next(options.repetitions).is_some();
            // Memory is compacted while it is fragmented.
            let is_needed = name == "fragmented" && all[at..].iter().any(is_left);
            let mut measured = std::mem::take(&mut all[at]);
            if is_needed || is_left(&measured) {
                say(&format!("{mode}, {name}"));
                let brought = bring_about(linux, options, name, signals, &mut fragmenter)?;
                let Some(note) = brought else {
                    outcome.interrupted = true;
                    return Ok(outcome);
                };
                // The fragmenter borrows these settings, too, and leaves them as it needed them.
                loan.set(thp::ENABLED, setting)?;
                loan.set(thp::DEFRAG, &defrag)?;
                if measured.zones.is_empty() {
                    (measured.zones, measured.note) = (FreeMemory::quick(linux)?.zones, note);
                }
            }
            while let Some(program) = measured.next(options.repetitions) {
                if signals.wait(Duration::ZERO)?.is_some() {
                    outcome.interrupted = true;
                    break;
                }
                let runs = measured.programs[program].each.len() + 1;
                let (word, scale) = (PROGRAMS[program].0, options.scale(program));
                say(&format!("{mode}, {name}: {word}, run {runs} of {}", options.repetitions));
                let before = linux.vmstat().unwrap_or_default();
                let Some(run) = once(linux, [word, "--scale", scale], signals)? else {
                    outcome.interrupted = true;
                    break;
                };
                let after = linux.vmstat().unwrap_or_default();
                let Runs { each, huge, stalls } = &mut measured.programs[program];
                each.push(run);
                for (sum, name) in [(huge, "thp_fault_alloc"), (stalls, "compact_stall")] {
                    *sum = after.since(&before, name).map(|count| sum.unwrap_or(0) + count);
                }
                checkpoints.write(&part(name), &measured)?;
            }
            outcome.states.push(State { thp: mode, name, published, measured });
            if outcome.interrupted {
                return Ok(outcome);
            }
        }
    }
    loan.give_back()?;
    Ok(outcome)
}

/// Brings memory into a state, and says how that went; `None` if a signal came.
fn bring_about(
    linux: &Linux,
    options: Options,
    state: &str,
    signals: &Signals,
    fragmenter: &mut Option<Fragmenter>,
) -> Result<Option<String>> {
    if state == "fragmented" {
        let patience = options.patience();
        let goal = Goal { order: ORDER, target: 1.0, pinned: false, patience };
        let holding = fragmenter.insert(Fragmenter::new(linux, goal)?);
        let reached = holding.run(Some(signals), |_, _| {})?;
        if let End::Interrupted(_) = reached.end {
            return Ok(None);
        }
        return Ok(Some(format!(
            "score {:.3}, {} huge pages broken up in {:.1} s ({:?})",
            reached.score,
            reached.units,
            reached.took.as_secs_f64(),
            reached.end
        )));
    }
    // While it is fragmented the kernel compacts as it does by itself.
    let sweep = state == "compacted";
    let target = if sweep { 0.05 } else { 0.0 };
    let goal = compact::Goal { order: ORDER, target, sweep, caches: compact::Caches::Kept };
    let steps = compact::run(linux, goal, |_| {})?;
    Ok(Some(steps.iter().find_map(|step| step.gave_up.clone()).unwrap_or_default()))
}

/// Runs a program once, and returns what [`counters`] measures of a run; `None` if a signal ended it.
fn once(linux: &Linux, words: [&str; 3], signals: &Signals) -> Result<Option<Vec<(String, f64)>>> {
    let executable = std::env::current_exe().context("cannot find this binary")?;
    let mut command = Command::new(executable);
    command.arg("workload").args(words).args(["--threads", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    signals.restore_in(&mut command);
    let mut interrupted = false;
    let wait = |child: &mut Child| attend(child, signals, &mut interrupted);
    let (run, status) = run_cost::measured(linux, command, wait)??;
    // The terminal sends its signals to the program, too.
    if interrupted || signals.wait(Duration::ZERO)?.is_some() {
        return Ok(None);
    }
    if !status.success() {
        bail!("workload {} ended with {status}", words.join(" "));
    }
    Ok(Some(run.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
}

/// Waits for the program; a signal ends it.
fn attend(child: &mut Child, signals: &Signals, interrupted: &mut bool) -> Result<ExitStatus> {
    let (program, pending) = (pidfd::open(Pid(child.id()))?, signals.descriptor()?);
    loop {
        poll::sleep(&[program.as_fd(), pending.as_fd()], Duration::from_secs(1))?;
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(received) = signals.wait(Duration::ZERO)? {
            *interrupted = true;
            signal::send(Pid(child.id()), received.signal)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_in_turn_until_each_has_its_runs() {
        let mut measured = Measured::default();
        let mut order = Vec::new();
        while let Some(program) = measured.next(2) {
            order.push(program);
            measured.programs[program].each.push(Vec::new());
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
        // More runs are asked for later.
        assert_eq!(measured.next(3), Some(0));
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let room = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(room.path().join(NAME), "full").unwrap();
        let mut measured = Measured { note: "so".to_owned(), ..Measured::default() };
        measured.programs[1].each.push(vec![("seconds".to_owned(), 1.5)]);
        measured.programs[1].stalls = Some(3);
        checkpoints.write("thp-on--fragmented", &measured).unwrap();
        assert_eq!(checkpoints.read("thp-on--fragmented"), Some(measured));
        let quick = Checkpoints::new(room.path().join(NAME), "quick").unwrap();
        assert_eq!(quick.read::<Measured>("thp-on--fragmented"), None);
    }
}

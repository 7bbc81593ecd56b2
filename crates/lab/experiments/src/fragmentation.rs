//! The tables of the fragmentation study: the unusable free space index of each zone and order with
//! huge pages off and on; memory compacted, fragmented, and compacted while fragmented; and how long
//! the study's programs take in each state, with TLB and cache misses where the processor counts them.
//!
//! ```text
//!  for huge pages off, on:
//!    compact ──► look, run the programs ──► fragment, hold ──► look, run ──► the kernel compacts ──► look, run
//!    ──► give back
//! ```
//!
//! The study fragmented with a program that fills memory and frees parts of it; here `frag induce` does
//! it, to a score of 1 at order 9. So the states are the study's and the degree is ours; the published
//! rows are those of its own program. Huge pages off means off for the programs, too. Its programs, canneal, fmm and
//! streamcluster, are the built-in ones, at a share of its sizes.
//!
//! A cell is one run of a program in a state: it brings memory into that state if it is not in it, and the first that
//! does tells what memory looks like then.
//!
//! Always true: the settings are on loan; a published number is shown and never used.

mod tables;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Linux, memory::huge_costs, poll, process::pidfd, settings::thp};
use pagemill_model::Pid;
use serde::{Deserialize, Serialize};

use crate::coverage::Source;
use crate::prepared_memory::PreparedMemory;
use crate::reproduce::cell::Cell;
use crate::reproduce::definition::{self, Definition, Size};
use crate::reproduce::experiment::chosen;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::{Finished, PlannedCell, Series};
use crate::reproduce::target::Stage;
use crate::tabled::{Choices, MeasuredExperiment, Tabled, TabledExperiment, Tables};
use pagemill_control::fragmentation::induce::End;
use pagemill_control::run_cost;
use pagemill_launch::exit::Interrupted;
use pagemill_record::free_memory::{FreeMemory, ZoneFreeMemory};

/// Its name on the command line.
pub const NAME: &str = "fragmentation";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runs {
    /// How long fragmenting may take.
    patience_seconds: f64,
    /// The share of its full size that each of [`PROGRAMS`] runs at.
    scales: BTreeMap<String, String>,
}

/// Whose figures these are held against.
pub(crate) static SOURCE: Source = Source {
    name: "fragmentation",
    figures: include_str!("../../../../experiments/published/fragmentation.csv"),
};

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: include_str!("../../../../experiments/fragmentation.toml"),
    source: Some(&SOURCE),
    choices: Choices { arms: true, programs: true, scale: false },
    is_roots: true,
    measured: Some(MeasuredExperiment {
        cells: |asked| {
            let of = asked.options;
            let mut options = Options::new(of.quick, of.full_size, of.repetitions);
            options.only(asked.programs, asked.arms)?;
            Ok(Box::new(Study::new(options, asked.stage)))
        },
        nothing: Some(|| Box::new(Outcome::nothing())),
        collected: |cells, of, interrupted| {
            Ok(Box::new(Outcome::collected(cells, of, interrupted)))
        },
    }),
    kept: None,
};

/// Its file. Its arms are [`MODES`] by [`STATES`].
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(EXPERIMENT.file));

/// Huge pages off and on, and the system's setting for it.
const MODES: [(&str, &str); 2] = [("thp off", "never"), ("thp on", "always")];

/// States, with the name that the publication gives them.
const STATES: [(&str, &str); 3] = [
    ("compacted", "compacted"),
    ("fragmented", "fragmented (study's program)"),
    ("compacted while fragmented", "compacted while fragmented (study's program)"),
];

/// The study's programs.
const PROGRAMS: [&str; 3] = ["canneal", "fmm", "streamcluster"];

/// Counters of the kernel over a run: huge pages that faults were given, and stalls for compaction.
const COUNTERS: [&str; 2] = ["thp_fault_alloc", "compact_stall"];

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    size: &'static Size<Runs>,
    /// Runs of each program in each state.
    pub repetitions: u32,
    programs: Vec<&'static str>,
    arms: Vec<&'static str>,
}

impl Options {
    /// In minutes, or in one; or with the programs at the study's sizes, in hours.
    pub fn new(quick: bool, full_size: bool, repetitions: Option<u32>) -> Self {
        let size = FILE.full_size.as_ref().filter(|_| full_size).unwrap_or(FILE.size(quick));
        let repetitions = repetitions.unwrap_or(size.repetitions);
        let arms = FILE.arms.iter().map(String::as_str).collect();
        Self { size, repetitions, programs: PROGRAMS.to_vec(), arms }
    }

    /// Some programs and some arms only.
    ///
    /// # Errors
    /// For what is none, with the one that may have been meant.
    pub fn only(&mut self, programs: Option<&[String]>, arms: Option<&[String]>) -> Result<()> {
        for (what, all, names) in
            [("program", &mut self.programs, programs), ("arm", &mut self.arms, arms)]
        {
            *all = names.map_or(Ok(all.clone()), |names| chosen(what, all, names))?;
        }
        Ok(())
    }

    /// The share of its full size that a program runs at.
    fn scale(&self, program: &str) -> &'static str {
        self.size.runs.scales.get(program).map_or("1", String::as_str)
    }
}

/// The mode and the state that an arm is.
fn place(arm: &str) -> Option<(usize, usize)> {
    let at = FILE.arms.iter().position(|known| known == arm)?;
    Some((at / STATES.len(), at % STATES.len())).filter(|(mode, _)| *mode < MODES.len())
}

/// One state with huge pages off or on.
struct State {
    thp: &'static str,
    name: &'static str,
    published: &'static str,
    measured: Measured,
}

/// What was measured in a state.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    /// Memory when the state was first brought about, and how that went.
    zones: Vec<ZoneFreeMemory>,
    note: String,
    /// In the order of [`PROGRAMS`].
    programs: [Ended; PROGRAMS.len()],
}

/// What a cell tells that has brought memory into its state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct MemoryState {
    zones: Vec<ZoneFreeMemory>,
    note: String,
    reads: Option<[f64; 2]>,
}

/// The runs of a program in a state.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ended {
    /// Of each run: name and value of what was measured.
    each: Vec<Vec<(String, f64)>>,
    /// Huge pages that faults were given during these runs, and stalls for compaction.
    huge: Option<u64>,
    stalls: Option<u64>,
    /// Runs that failed, with the reason.
    failed: Vec<String>,
}

impl Ended {
    fn values(&self, name: &str) -> Vec<f64> {
        self.each.iter().flatten().filter(|(known, _)| known == name).map(|run| run.1).collect()
    }

    /// Adds what came of a run.
    fn add(&mut self, cell: &Cell, outcome: &Result<Ran, String>) {
        let ran = match outcome {
            Ok(ran) => ran,
            Err(why) => {
                let Cell { case, repetition, .. } = cell;
                return self.failed.push(format!("{case}, run {repetition} failed: {why}"));
            }
        };
        let figures = ran.metrics.iter().map(|(name, value)| (name.clone(), *value));
        self.each.push(figures.filter(|(name, _)| !COUNTERS.contains(&name.as_str())).collect());
        for (sum, name) in [&mut self.huge, &mut self.stalls].into_iter().zip(COUNTERS) {
            let count = ran.metrics.get(name).map(|count| *count as u64);
            *sum = count.map(|count| sum.unwrap_or(0) + count);
        }
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

impl Outcome {
    /// What finished cells came to.
    #[must_use]
    pub fn of(options: Options, finished: &[Finished], interrupted: bool) -> Self {
        let mut outcome = Self { states: Vec::new(), options, reads: None, interrupted };
        for arm in &FILE.arms {
            let Some((mode, state)) = place(arm) else { continue };
            let mut measured = Measured::default();
            for (cell, ran) in finished.iter().filter(|(cell, _)| cell.arm == arm) {
                let program = PROGRAMS.iter().position(|program| *program == cell.case);
                let Some(program) = program.and_then(|at| measured.programs.get_mut(at)) else {
                    continue;
                };
                program.add(cell, ran);
                let look: Option<MemoryState> = ran.as_ref().ok().and_then(Ran::read);
                let Some(look) = look else { continue };
                outcome.reads = outcome.reads.or(look.reads);
                if measured.zones.is_empty() {
                    (measured.zones, measured.note) = (look.zones, look.note);
                }
            }
            let (name, published) = STATES[state];
            if measured != Measured::default() {
                outcome.states.push(State { thp: MODES[mode].0, name, published, measured });
            }
        }
        outcome
    }

    /// What cells that were run anywhere came to.
    pub(crate) fn collected(finished: &[Finished], of: CellKey, interrupted: bool) -> Self {
        let repetitions = finished.iter().map(|(cell, _)| cell.repetition).max();
        Self::of(Options::new(of.scale < 1.0, of.scale > 1.0, repetitions), finished, interrupted)
    }

    /// Of which nothing ran.
    pub(crate) fn nothing() -> Self {
        Self::of(Options::new(false, false, None), &[], false)
    }
}

/// The cells of the study, and the memory that they run on.
pub struct Study<'a> {
    options: Options,
    stage: &'a Stage<'a>,
    memory: Option<Memory>,
}

/// Memory that was brought into a state.
struct Memory {
    /// The arm whose state it is in.
    arm: String,
    prepared: PreparedMemory,
    /// A dependent random read on base and on huge pages, where the processor does not count misses.
    reads: Option<[f64; 2]>,
}

impl<'a> Study<'a> {
    /// Those of some options; nothing is touched before the first cell.
    #[must_use]
    pub fn new(options: Options, stage: &'a Stage<'a>) -> Self {
        Self { options, stage, memory: None }
    }

    /// Brings memory into the state of an arm, unless it is in it; what it is like then.
    fn bring_about(&mut self, arm: &str, say: &mut dyn FnMut(&str)) -> Result<Option<MemoryState>> {
        let (mode, state) = place(arm).with_context(|| format!("there is no arm {arm:?}"))?;
        let Stage { linux, signals, .. } = self.stage;
        let memory = match &mut self.memory {
            Some(memory) if memory.arm == arm => return Ok(None),
            Some(memory) => memory,
            None => {
                say("what page walks cost");
                self.memory.insert(Memory::new(linux)?)
            }
        };
        let before = place(&memory.arm);
        memory.arm.clear();
        say("bringing memory into its state");
        let patience = Duration::from_secs_f64(self.options.size.runs.patience_seconds);
        let defrag =
            memory.prepared.loan.found().value(thp::DEFRAG).unwrap_or("madvise").to_owned();
        // Memory is compacted while it is fragmented, as it was in this mode.
        let states = match (STATES[state].0, before) {
            ("compacted", _) => &STATES[..1],
            ("fragmented", _) => &STATES[1..2],
            (_, Some((same, 1))) if same == mode => &STATES[2..],
            _ => &STATES[1..],
        };
        let mut note = String::new();
        for (name, _) in states {
            note = bring_about(linux, patience, name, signals, &mut memory.prepared)?;
        }
        // The fragmenter borrows these settings, too, and leaves them as it needed them.
        let loan = &memory.prepared.loan;
        loan.set(thp::ENABLED, MODES[mode].1)?;
        loan.set(thp::DEFRAG, &defrag)?;
        arm.clone_into(&mut memory.arm);
        let zones = FreeMemory::quick(linux)?.zones;
        Ok(Some(MemoryState { zones, note, reads: memory.reads }))
    }
}

impl Memory {
    fn new(linux: &Linux) -> Result<Self> {
        let mut reads = None;
        if run_cost::processor().is_err() {
            let costs = huge_costs::measure(linux)?;
            let nanoseconds = |picoseconds: u64| picoseconds as f64 / 1e3;
            let both = costs.read_base_ps.zip(costs.read_huge_ps);
            reads = both.map(|(base, huge)| [base, huge].map(nanoseconds));
        }
        let prepared = PreparedMemory::borrow(linux, &[thp::ENABLED, thp::DEFRAG])?;
        Ok(Self { arm: String::new(), prepared, reads })
    }
}

impl Tabled for Study<'_> {
    fn missing(&self) -> Option<String> {
        missing(&self.stage.linux)
    }

    fn outcome(&self, finished: &[Finished], interrupted: bool) -> Result<Box<dyn Tables>, String> {
        Ok(Box::new(Outcome::of(self.options.clone(), finished, interrupted)))
    }
}

impl Series for Study<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let Options { repetitions, programs, arms, .. } = &self.options;
        let Size { seconds, scale, .. } = *self.options.size;
        let of = CellKey { seed: 1, scale, window: None };
        let mut planned_cells = Vec::new();
        for arm in arms {
            // In turn, so that each has some if it ends early.
            for repetition in 1..=*repetitions {
                planned_cells.extend(programs.iter().map(|program| {
                    let (experiment, case) = (NAME.to_owned(), (*program).to_owned());
                    PlannedCell { cell: Cell { experiment, case, arm, repetition }, of, seconds }
                }));
            }
        }
        planned_cells
    }

    fn run(&mut self, cell: &Cell, _: &[Finished], say: &mut dyn FnMut(&str)) -> Result<Ran> {
        self.stage.wait(Duration::ZERO)?;
        let look = self.bring_about(cell.arm, say)?;
        let Stage { linux, signals, executable, .. } = self.stage;
        let before = linux.vmstat().unwrap_or_default();
        let words = [cell.case.as_str(), "--scale", self.options.scale(&cell.case)];
        let mut metrics = once(linux, executable, words, signals)?;
        let after = linux.vmstat().unwrap_or_default();
        metrics.extend(
            COUNTERS
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), after.since(&before, name)? as f64))),
        );
        let mut ran = look.map_or(Ok(Ran::default()), |look| Ran::of(&look))?;
        ran.metrics = metrics;
        Ok(ran)
    }

    fn close(&mut self) -> Result<()> {
        self.memory.take().map_or(Ok(()), |memory| memory.prepared.give_back())
    }
}

/// Brings memory into a state, and says how that went; [`Interrupted`] if a signal came.
fn bring_about(
    linux: &Linux,
    patience: Duration,
    state: &str,
    signals: &Signals,
    prepared: &mut PreparedMemory,
) -> Result<String> {
    if state == "fragmented" {
        let reached = prepared.fragmenter(linux, patience)?.run(Some(signals), |_, _| {})?;
        if let End::Interrupted(signal) = reached.end {
            return Err(Interrupted(signal).into());
        }
        return Ok(format!(
            "score {:.3}, {} huge pages broken up in {:.1} s{}",
            reached.score,
            reached.units,
            reached.took.as_secs_f64(),
            words(reached.end)
        ));
    }
    // While it is fragmented the kernel compacts as it does by itself.
    let sweep = state == "compacted";
    let steps = if sweep { prepared.compact(linux)? } else { prepared.compact_once(linux)? };
    Ok(steps.iter().find_map(|step| step.gave_up.clone()).unwrap_or_default())
}

/// Why no more was broken up, where that was not as planned.
fn words(end: End) -> &'static str {
    match end {
        End::Reached | End::Interrupted(_) => "",
        End::NoHugePage => ": no other was free",
        End::Above => ": it was as high before",
        End::Late => {
            ": its time was over (memory that others use and free undoes it: end what else runs here)"
        }
    }
}

/// Runs a program once, and returns what [`counters`] measures of a run.
fn once(
    linux: &Linux,
    executable: &Path,
    words: [&str; 3],
    signals: &Signals,
) -> Result<BTreeMap<String, f64>> {
    let mut command = Command::new(executable);
    command.arg("workload").args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    signals.restore_in(&mut command);
    let mut interrupted = None;
    let wait = |child: &mut Child| attend(child, signals, &mut interrupted);
    let (run, status) = run_cost::measured(linux, command, wait)??;
    // The terminal sends its signals to the program, too.
    let late = signals.wait(Duration::ZERO)?.map(|received| Interrupted(received.signal));
    if let Some(by) = interrupted.or(late) {
        return Err(by.into());
    }
    if !status.success() {
        bail!("workload {} ended with {status}", words.join(" "));
    }
    Ok(run.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Waits for the program; a signal ends it.
fn attend(
    child: &mut Child,
    signals: &Signals,
    interrupted: &mut Option<Interrupted>,
) -> Result<ExitStatus> {
    let (program, pending) = (pidfd::open(Pid(child.id()))?, signals.descriptor()?);
    loop {
        poll::sleep(&[program.as_fd(), pending.as_fd()], Duration::from_secs(1))?;
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(received) = signals.wait(Duration::ZERO)? {
            *interrupted = Some(Interrupted(received.signal));
            signal::send(Pid(child.id()), received.signal)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_the_states_huge_pages_off_and_on_and_each_program_has_a_size() {
        let named = MODES.iter().flat_map(|(mode, _)| {
            STATES.map(|(state, _)| format!("{mode}.{state}").replace(' ', "-"))
        });
        assert_eq!(FILE.arms, named.collect::<Vec<_>>());
        assert_eq!(FILE.name, NAME);
        for size in [Some(&FILE.full), Some(&FILE.quick), FILE.full_size.as_ref()] {
            let size = size.unwrap();
            assert!(size.runs.scales.keys().eq(PROGRAMS), "{:?}", size.runs.scales);
        }
    }

    #[test]
    fn programs_run_in_turn_until_each_has_its_runs() {
        let signals = Signals::block(&[]).unwrap();
        let (executable, every) = (std::path::PathBuf::new(), Duration::ZERO);
        let stage = Stage { linux: Linux::live(), executable, signals: &signals, every };
        let planned_cells = Study::new(Options::new(true, false, Some(2)), &stage).planned_cells();
        let names: Vec<String> = planned_cells.iter().map(|planned| planned.cell.name()).collect();
        assert_eq!(
            names[1..4],
            [
                "fmm/thp-off.compacted/1",
                "streamcluster/thp-off.compacted/1",
                "canneal/thp-off.compacted/2"
            ]
            .map(|name| format!("fragmentation/{name}"))
        );
        assert_eq!(names.len(), MODES.len() * STATES.len() * PROGRAMS.len() * 2);
        let error = Options::new(true, false, None)
            .only(Some(&["canneel".into()]), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean \"canneal\""), "{error}");
    }

    #[test]
    fn what_cells_measured_adds_up_and_the_first_look_is_the_state_s() {
        let cell = |repetition| Cell {
            experiment: NAME.into(),
            case: "fmm".into(),
            arm: &FILE.arms[4],
            repetition,
        };
        let look = |note: &str| MemoryState {
            note: note.into(),
            zones: vec![ZoneFreeMemory {
                node: 0,
                zone: "Normal".into(),
                blocks: vec![1],
                hidden: None,
                managed: None,
            }],
            reads: Some([2.0, 1.0]),
        };
        let ran = |note: &str| {
            let metrics = [("seconds", 1.5), (COUNTERS[0], 3.0)];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
            Ran { metrics, ..Ran::of(&look(note)).unwrap() }
        };
        let finished = [
            (cell(1), Ok(ran("first"))),
            (cell(2), Ok(ran("again"))),
            (cell(3), Err("it died".to_owned())),
        ];
        let outcome = Outcome::of(Options::new(false, false, None), &finished, false);
        assert_eq!(outcome.reads, Some([2.0, 1.0]));
        let [state] = &outcome.states[..] else { panic!("one state") };
        assert_eq!((state.thp, state.name), ("thp on", "fragmented"));
        assert_eq!(state.measured.note, "first");
        let fmm = &state.measured.programs[1];
        assert_eq!((fmm.values("seconds"), fmm.huge, fmm.stalls), (vec![1.5; 2], Some(6), None));
        assert_eq!(fmm.failed, ["fmm, run 3 failed: it died"]);
    }
}

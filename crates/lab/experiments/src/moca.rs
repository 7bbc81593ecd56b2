//! `moca`: what traces of memory accesses cost and find, on the kernels that Moca and its rivals were
//! compared on (Beniamine et al., 2016; per-kernel figures from the author's thesis).
//!
//! Each kernel runs as it is and under each back end in turn, as a process of its own. *Slowdown* is CPU time of
//! the program by CPU time of the same run untraced; both are told by the program itself, so the tracer's own time is
//! not in it. *Events* are recorded accesses, *pages* distinct pages.
//!
//! | back end | stands beside | its trace has |
//! |---|---|---|
//! | `faults` | Moca | all pages of each interval, the first accesses to them |
//! | `faults, names` | MocaPin | the same, and which code allocated what |
//! | `exact` | TABARNAC | every access, in an emulator |
//! | `sample` | Mitos, MemProf | samples; their source is `pebs`, `ibs` or `clock` |
//!
//! The emulator runs a smaller class. There too `validate` tells page by page whether the pages of `faults` are the
//! right ones: the traced program and the emulator's account of it are one run. The share of pages of samples is by
//! number, of those of `exact` in the same class.
//!
//! What runs in the emulator, and beside it, has one thread; all else runs with each number of threads in turn, and the
//! claims are judged by the first of them.
//!
//! A cell is one run: `moca/bt.A.2/faults/1` is BT of class A with two threads under `faults`, which is held against
//! `moca/bt.A.2/untraced/1`; `moca/bt.W.1/validated/1` has its pages held against the emulator's; `moca/sweep.20.500/…`
//! is IS by one pair of intervals. A run of some kernels is a part that a run of all takes from the same directory.
//!
//! The sweep runs IS with the two intervals of the original: *monitor wake-up*, after which page table entries are
//! dropped again, and *log wake-up*, after which what was seen is written out (`--flush`). One more step makes as many
//! wake-ups as the published run had, which took eight times as long for the same work.

mod experiment;
pub mod kept;
mod report;

use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pagemill_analysis::statistics::median;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::coverage::{self, Source};
use crate::reproduce::cell::Cell;
use crate::reproduce::definition::{self, Definition};
use crate::reproduce::experiment::chosen;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::{Finished, PlannedCell, Series};
use crate::reproduce::target::Stage;
use crate::tabled::{Tabled, Tables};
pub(crate) use experiment::EXPERIMENT;
use pagemill_launch::exit::Interrupted;
use pagemill_record::summary;

/// Its name on the command line.
pub const NAME: &str = "moca";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runs {
    /// Kernels, in the order of the published figures.
    kernels: Vec<String>,
    class: String,
    /// The class of what runs in the emulator, and beside it.
    smaller_class: String,
    /// Numbers of threads that the kernels run with.
    threads: Vec<usize>,
    /// Monitor wake-ups of the sweep.
    monitor_ms: Vec<u64>,
    /// Log wake-ups of it.
    log_ms: Vec<u64>,
}

/// Whose figures these are held against.
pub(crate) static SOURCE: Source =
    Source { name: "Moca", figures: include_str!("../../../../experiments/published/moca.csv") };

/// The text of its file.
const TEXT: &str = include_str!("../../../../experiments/moca.toml");

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(TEXT));

/// All kernels.
fn kernels() -> Vec<&'static str> {
    FILE.full.runs.kernels.iter().map(String::as_str).collect()
}

/// Classes that a run may be of.
const CLASSES: [&str; 4] = ["S", "W", "A", "B"];

/// All back ends.
const BACK_ENDS: [&str; 4] = [FAULTS, NAMES, EXACT, SAMPLE];

/// Tools whose slowdown was published.
const TOOLS: [&str; 5] = ["Moca", "MocaPin", "TABARNAC", "Mitos", "MemProf"];

/// What the names of the cells of IS by the two intervals begin with.
const SWEEP: &str = "sweep";

/// Its class.
const SWEEP_CLASS: &str = "A";

/// The step of it that is woken up as often as the published run was.
const AS_PUBLISHED: &str = "sweep.published";

/// A kernel as it is.
const UNTRACED: &str = "untraced";

/// A kernel whose pages are held against the emulator's.
const VALIDATED: &str = "validated";

/// The intervals of the published defaults, ms.
const DEFAULT: (u64, u64) = (50, 500);

const FAULTS: &str = "faults";
const NAMES: &str = "faults, names";
const EXACT: &str = "exact";
const SAMPLE: &str = "sample";

/// What runs of each kernel: name here, the arguments that choose it, and whether on the smaller class.
const ARMS: [(&str, &[&str], bool); 5] = [
    (FAULTS, &["--no-sites"], false),
    (NAMES, &[], false),
    (SAMPLE, &["--backend", "sample"], false),
    (EXACT, &["--backend", "exact"], true),
    (SAMPLE, &["--backend", "sample"], true),
];

/// How much of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    quick: bool,
    kernels: Vec<&'static str>,
    repetitions: u32,
    class: &'static str,
    /// Of what runs in the emulator, and beside it.
    smaller: &'static str,
    threads: Vec<usize>,
    log: Vec<u64>,
    /// Whether anything but runs of kernels is wanted.
    sweep: bool,
}

impl Options {
    /// All kernels, class A, 1 and 2 threads; or some, class W, 1 thread, to be quick.
    #[must_use]
    pub fn new(quick: bool, repetitions: Option<u32>) -> Self {
        let size = FILE.size(quick);
        let Runs { kernels, class, smaller_class, threads, log_ms, .. } = &size.runs;
        Self {
            quick,
            kernels: kernels.iter().map(String::as_str).collect(),
            repetitions: repetitions.unwrap_or(size.repetitions),
            class,
            smaller: smaller_class,
            threads: threads.clone(),
            log: log_ms.clone(),
            sweep: true,
        }
    }

    /// Some kernels only, `sweep` (IS by the two intervals) among them.
    ///
    /// # Errors
    /// For what is no kernel, with the one that may have been meant.
    pub fn only(&mut self, names: Option<&[String]>) -> Result<()> {
        let Some(names) = names else { return Ok(()) };
        let known: Vec<_> = kernels().into_iter().chain([SWEEP]).collect();
        self.kernels = chosen("kernel", &known, names)?;
        self.kernels.retain(|kernel| *kernel != SWEEP);
        self.sweep = names.iter().any(|name| name == SWEEP);
        Ok(())
    }
}

/// One run under a back end.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Traced {
    cpu: f64,
    events: u64,
    pages: u64,
    intervals: u64,
    lost: u64,
}

/// A kernel under one back end, and untraced.
#[derive(Clone, Debug, PartialEq)]
struct KernelRow {
    kernel: &'static str,
    class: &'static str,
    threads: usize,
    back_end: &'static str,
    native: Vec<f64>,
    traced: Vec<Traced>,
    /// Why it did not run.
    missing: Option<String>,
}

/// What `validate` found of a kernel: pages that the emulator saw, of them told by the tracer, and told ones that were
/// not touched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Checked {
    kernel: &'static str,
    touched: PageAgreement,
    written: PageAgreement,
    touched_in_intervals: PageAgreement,
    written_in_intervals: PageAgreement,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
struct PageAgreement {
    exact: u64,
    missing: u64,
    extra: u64,
}

impl PageAgreement {
    /// Sums the kinds of memory, or is one figure.
    fn of(value: &Value) -> Self {
        let number = |value: &Value, name| value[name].as_u64().unwrap_or(0);
        let one = |value: &Value| Self {
            exact: number(value, "exact"),
            missing: number(value, "missing"),
            extra: number(value, "extra"),
        };
        if value["exact"].is_u64() {
            return one(value);
        }
        value.as_object().into_iter().flatten().map(|(_, kind)| one(kind)).fold(
            Self::default(),
            |sum, kind| Self {
                exact: sum.exact + kind.exact,
                missing: sum.missing + kind.missing,
                extra: sum.extra + kind.extra,
            },
        )
    }

    /// Percent of the pages that are told.
    fn share(self) -> f64 {
        (self.exact - self.missing.min(self.exact)) as f64 * 100.0 / self.exact.max(1) as f64
    }
}

/// IS with one pair of intervals.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Step {
    /// Monitor wake-up, ms.
    monitor: f64,
    /// Log wake-up, ms.
    log: u64,
    native: f64,
    traced: Traced,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    options: Options,
    rows: Vec<KernelRow>,
    checked: Vec<Checked>,
    sweep: Vec<Step>,
    /// Where the back ends had their events from.
    events_by: Vec<(&'static str, String)>,
    /// What did not run, and why.
    skipped: Vec<String>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

impl Outcome {
    /// Nothing yet.
    fn new(options: Options) -> Self {
        Self {
            options,
            rows: Vec::new(),
            checked: Vec::new(),
            sweep: Vec::new(),
            events_by: Vec::new(),
            skipped: Vec::new(),
            interrupted: false,
        }
    }
}

fn of(values: impl Iterator<Item = f64>) -> Option<f64> {
    median(&values.collect::<Vec<_>>())
}

impl KernelRow {
    fn slowdown(&self) -> Option<f64> {
        Some(of(self.traced.iter().map(|run| run.cpu))? / of(self.native.iter().copied())?)
    }

    fn events(&self) -> Option<f64> {
        of(self.traced.iter().map(|run| run.events as f64))
    }

    fn pages(&self) -> Option<f64> {
        of(self.traced.iter().map(|run| run.pages as f64))
    }
}

/// A published figure.
fn published(experiment: &str, subject: &str, metric: &str) -> Option<f64> {
    coverage::number(&SOURCE, experiment, subject, metric)
}

/// The program's own word on its CPU time; the kernel has checked its result.
fn cpu(output: &[u8]) -> Result<f64> {
    let line: Value = serde_json::from_slice(output).context("the kernel's line of results")?;
    line["cpu_seconds"].as_f64().context("the kernel did not tell its CPU time")
}

/// What a cell tells beside its figures.
#[derive(Debug, Deserialize, Serialize)]
enum CellDetails {
    /// Where a back end had its events from.
    By(String),
    /// Why it does not run here.
    Missing(String),
    /// Pages touched and written, by interval after that.
    Checked([PageAgreement; 4]),
    /// IS by one pair of intervals.
    Step(Step),
}

/// The cells of the experiment.
pub struct Traces<'a> {
    options: Options,
    stage: &'a Stage<'a>,
    room: tempfile::TempDir,
    /// Whether accesses cannot be traced here at all, and whether pages cannot be held against the emulator's.
    hopeless: [bool; 2],
}

impl<'a> Traces<'a> {
    /// Those of some options.
    ///
    /// # Errors
    /// Where there is no room for recordings.
    pub fn new(options: Options, stage: &'a Stage<'a>) -> Result<Self> {
        Ok(Self { options, stage, room: tempfile::tempdir()?, hopeless: [false; 2] })
    }

    fn workload(kernel: &str, class: &str, threads: usize) -> Vec<String> {
        let words = [
            "workload",
            &format!("nas-{kernel}"),
            "--class",
            class,
            "--threads",
            &threads.to_string(),
        ];
        words.map(str::to_owned).to_vec()
    }

    fn output(&self, command: &mut Command) -> Result<std::process::Output> {
        self.stage.signals.restore_in(command);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    fn native(&self, workload: &[String]) -> Result<f64> {
        let output = self.output(Command::new(&self.stage.executable).args(workload))?;
        ensure!(output.status.success(), "{} ended with {}", workload.join(" "), output.status);
        cpu(&output.stdout)
    }

    /// The inner error: it cannot be traced here, and why.
    fn traced(
        &self,
        back_end: &[&str],
        (monitor, log): (f64, u64),
        workload: &[String],
    ) -> Result<Result<(Traced, String), String>> {
        let recording = self.room.path().join("recording");
        let (monitor, log) = (format!("{:.0}us", monitor * 1e3), format!("{log}ms"));
        let executable = &self.stage.executable;
        let mut command = Command::new(executable);
        command.args(["record", "--with", "accesses", "--access-interval", &monitor]);
        command.args(["--flush", &log, "-f", "-o"]).arg(&recording).args(back_end);
        command.arg("--").arg(executable).args(workload);
        let output = self.output(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if matches!(output.status.code(), Some(3 | 4 | 125)) {
            return Ok(Err(said));
        }
        ensure!(
            output.status.success(),
            "{} under the tracer ended with {}: {said}",
            workload.join(" "),
            output.status
        );
        let summary = summary::of(&recording)?;
        let reader = pagemill_model::recording::Reader::open(&recording)?;
        let setup = reader.meta().accesses.clone().unwrap_or_default();
        let traced = Traced {
            cpu: cpu(&output.stdout)?,
            events: summary.accesses.total.accesses,
            pages: summary.accesses.total.pages,
            intervals: summary.accesses.intervals,
            lost: setup.lost,
        };
        Ok(Ok((traced, setup.back_end)))
    }

    /// The pages of one run, by the tracer and by the emulator that the program ran in.
    fn checked(&self, kernel: &str, class: &str) -> Result<Result<[PageAgreement; 4], String>> {
        let both = self.room.path().join(format!("both-{kernel}"));
        let executable = &self.stage.executable;
        let mut command = Command::new(executable);
        command.args(["validate", "-o"]).arg(&both).arg("--").arg(executable);
        let output = self.output(command.args(Self::workload(kernel, class, 1)))?;
        if !both.join("exact").is_dir() || !matches!(output.status.code(), Some(0 | 1)) {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let output =
            self.output(Command::new(executable).args(["validate", "--json"]).arg(&both))?;
        let view: Value = serde_json::from_slice(&output.stdout).context("what validate says")?;
        std::fs::remove_dir_all(&both)?;
        let found = |name: &str| PageAgreement::of(&view[name]);
        Ok(Ok(["touched", "written", "touched_in_intervals", "written_in_intervals"].map(found)))
    }

    /// A run under a back end; `arm` is its place in [`ARMS`].
    fn arm(&self, arm: usize, workload: &[String]) -> Result<Ran> {
        let traced = self.traced(ARMS[arm].1, (DEFAULT.0 as f64, DEFAULT.1), workload);
        // A signal from a terminal ends the program, too.
        self.stage.wait(Duration::ZERO)?;
        let (traced, by) = match traced? {
            Ok(traced) => traced,
            Err(why) if ARMS[arm].0 == FAULTS => {
                bail!("accesses cannot be traced: {}", last_line(&why))
            }
            Err(why) => return Ran::of(&CellDetails::Missing(last_line(&why))),
        };
        let count = |count: u64| count as f64;
        let Traced { cpu, events, pages, intervals, lost } = traced;
        let figures = [count(events), count(pages), count(intervals), count(lost)];
        let names = FIGURES.map(str::to_owned).into_iter();
        let metrics = names.zip([cpu].into_iter().chain(figures)).collect();
        Ok(Ran { metrics, ..Ran::of(&CellDetails::By(by))? })
    }

    /// IS by one pair of intervals.
    fn step(&self, case: &str) -> Result<Ran> {
        let workload = Self::workload("is", SWEEP_CLASS, 1);
        let native = self.native(&workload)?;
        let (monitor, log) = match numbers(case) {
            Some((monitor, log)) => (monitor as f64, log),
            None => {
                let seconds = published("sweep", "50 ms", "time").context("no published sweep")?;
                let wake_ups = seconds * 1e3 / DEFAULT.0 as f64;
                ((native * 1e3 / wake_ups).max(1.0), DEFAULT.1)
            }
        };
        let traced = self.traced(ARMS[0].1, (monitor, log), &workload);
        self.stage.wait(Duration::ZERO)?;
        match traced? {
            Ok((traced, _)) => Ran::of(&CellDetails::Step(Step { monitor, log, native, traced })),
            Err(why) => bail!("accesses cannot be traced: {}", last_line(&why)),
        }
    }
}

/// The figures of a run under a back end.
const FIGURES: [&str; 5] = ["cpu", "events", "pages", "intervals", "lost"];

/// The intervals that a step of the sweep is named by.
fn numbers(case: &str) -> Option<(u64, u64)> {
    let (monitor, log) = case.strip_prefix(SWEEP)?.strip_prefix('.')?.split_once('.')?;
    Some((monitor.parse().ok()?, log.parse().ok()?))
}

/// Kernel, class and threads of a case.
fn place(case: &str) -> Option<(&'static str, &'static str, usize)> {
    let mut parts = case.split('.');
    let (kernel, class) = (parts.next()?, parts.next()?);
    let threads = parts.next()?.parse().ok()?;
    let known = |names: &[&'static str], name| names.iter().copied().find(|known| *known == name);
    Some((known(&kernels(), kernel)?, known(&CLASSES, class)?, threads))
}

/// The arm of a back end, as it is named in a cell.
fn arm(back_end: &str) -> &'static str {
    let name = back_end.replace(", ", "-");
    FILE.arms.iter().find(|arm| **arm == name).map_or("", String::as_str)
}

/// What a back end said when it did not run, in a line.
fn last_line(said: &str) -> String {
    said.lines().last().unwrap_or("it failed").trim_start_matches("pagemill: ").to_owned()
}

impl Series for Traces<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let Options { quick, kernels, repetitions, class, smaller, threads, log, sweep } =
            &self.options;
        let size = FILE.size(*quick);
        let of = CellKey { seed: 1, scale: size.scale, window: None };
        let mut planned_cells = Vec::new();
        let mut add = |case: String, arm, repetition| {
            let cell = Cell { experiment: NAME.to_owned(), case, arm, repetition };
            planned_cells.push(PlannedCell { cell, of, seconds: size.seconds });
        };
        for (at, threads) in threads.iter().enumerate() {
            for kernel in kernels {
                for repetition in 1..=*repetitions {
                    // The emulator's factor is large and varies little.
                    let classes = [(*class, false), (*smaller, true)];
                    let with = if at == 0 && repetition == 1 { 2 } else { 1 };
                    for (class, is_smaller) in &classes[..with] {
                        let case = || format!("{kernel}.{class}.{threads}");
                        add(case(), arm(UNTRACED), repetition);
                        for (back_end, ..) in ARMS.iter().filter(|(.., of)| of == is_smaller) {
                            add(case(), arm(back_end), repetition);
                        }
                    }
                }
            }
            // What is held against the emulator, and the sweep, come before further numbers of threads.
            if at > 0 {
                continue;
            }
            for kernel in kernels {
                add(format!("{kernel}.{smaller}.1"), arm(VALIDATED), 1);
            }
            if *sweep {
                let pairs =
                    log.iter().flat_map(|log| size.runs.monitor_ms.iter().map(move |at| (at, log)));
                pairs.for_each(|(monitor, log)| {
                    add(format!("{SWEEP}.{monitor}.{log}"), arm(FAULTS), 1)
                });
                add(AS_PUBLISHED.to_owned(), arm(FAULTS), 1);
            }
        }
        planned_cells
    }

    fn wants(&mut self, cell: &Cell) -> bool {
        let [traces, checks] = self.hopeless;
        !(traces || checks && cell.arm == VALIDATED)
    }

    fn run(&mut self, cell: &Cell, _: &[Finished], say: &mut dyn FnMut(&str)) -> Result<Ran> {
        self.stage.wait(Duration::ZERO)?;
        if cell.case.starts_with(SWEEP) {
            return self.step(&cell.case);
        }
        let (kernel, class, threads) = place(&cell.case).context("it is no cell of this")?;
        let workload = Self::workload(kernel, class, threads);
        if cell.arm == UNTRACED {
            let native = self.native(&workload);
            self.stage.wait(Duration::ZERO)?;
            return Ok(Ran {
                metrics: [(FIGURES[0].to_owned(), native?)].into(),
                ..Ran::default()
            });
        }
        if cell.arm == VALIDATED {
            say("pages held against the emulator's");
            let checked = self.checked(kernel, class);
            // A signal ends the emulator, too.
            self.stage.wait(Duration::ZERO)?;
            return Ran::of(&match checked? {
                Ok(found) => CellDetails::Checked(found),
                Err(why) => {
                    self.hopeless[1] = true;
                    CellDetails::Missing(last_line(&why))
                }
            });
        }
        let at = ARMS.iter().position(|(back_end, ..)| arm(back_end) == cell.arm);
        let ran = self.arm(at.context("it is no back end of this")?, &workload);
        self.hopeless[0] |=
            cell.arm == FAULTS && ran.as_ref().is_err_and(|why| !why.is::<Interrupted>());
        ran
    }
}

impl Tabled for Traces<'_> {
    fn outcome(&self, finished: &[Finished], interrupted: bool) -> Result<Box<dyn Tables>, String> {
        Ok(Box::new(Outcome::of(self.options.clone(), finished, interrupted)?))
    }
}

impl Outcome {
    /// What finished cells came to. The inner error: accesses cannot be traced, and why.
    ///
    /// # Errors
    /// See above.
    pub fn of(options: Options, finished: &[Finished], interrupted: bool) -> Result<Self, String> {
        let mut outcome = Self { interrupted, ..Self::new(options.clone()) };
        for (cell, ran) in finished {
            match ran {
                Ok(ran) => outcome.take(cell, ran, finished),
                Err(why) => outcome.skip(format!("{} failed: {why}", cell.words())),
            }
        }
        let is_traced = outcome.rows.iter().any(|row| !row.traced.is_empty());
        let failed = finished.iter().find(|(cell, ran)| cell.arm == FAULTS && ran.is_err());
        if let Some((_, Err(why))) = failed.filter(|_| !is_traced) {
            return Err(why.clone());
        }
        for row in outcome.rows.clone() {
            if let Some(why) = row.missing {
                outcome.skip(format!("{}: {why}", row.back_end));
            }
        }
        Ok(outcome)
    }

    /// What cells that were run anywhere came to.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn collected(
        finished: &[Finished],
        of: CellKey,
        interrupted: bool,
    ) -> Result<Self, String> {
        let repetitions = finished.iter().map(|(cell, _)| cell.repetition).max();
        let mut options = Options::new(of.scale < 1.0, repetitions);
        let places: Vec<_> = finished.iter().filter_map(|(cell, _)| place(&cell.case)).collect();
        options.kernels.retain(|kernel| places.iter().any(|place| place.0 == *kernel));
        options.threads.retain(|threads| places.iter().any(|place| place.2 == *threads));
        Self::of(options, finished, interrupted)
    }

    /// Of which nothing ran.
    pub(crate) fn nothing() -> Self {
        Self::new(Options::new(false, None))
    }

    fn skip(&mut self, line: String) {
        if !self.skipped.contains(&line) {
            self.skipped.push(line);
        }
    }

    /// Takes what a cell came to.
    fn take(&mut self, cell: &Cell, ran: &Ran, finished: &[Finished]) {
        let told: Option<CellDetails> = ran.read();
        let of = place(&cell.case);
        let (by, missing) = match (told, of) {
            (Some(CellDetails::Step(step)), _) => return self.sweep.push(step),
            (Some(CellDetails::Checked(found)), Some((kernel, ..))) => {
                let [touched, written, touched_in_intervals, written_in_intervals] = found;
                let pages = Checked {
                    kernel,
                    touched,
                    written,
                    touched_in_intervals,
                    written_in_intervals,
                };
                return self.checked.push(pages);
            }
            (Some(CellDetails::Missing(why)), _) if cell.arm == VALIDATED => {
                return self.skip(format!("pages held against the emulator's: {why}"));
            }
            (Some(CellDetails::Missing(why)), _) => (None, Some(why)),
            (Some(CellDetails::By(by)), _) => (Some(by), None),
            _ => return,
        };
        let back_end = BACK_ENDS.into_iter().find(|back_end| arm(back_end) == cell.arm);
        let (Some(back_end), Some((kernel, class, threads))) = (back_end, of) else { return };
        let known = self.events_by.iter().any(|(known, _)| *known == back_end);
        self.events_by.extend(by.filter(|_| !known).map(|by| (back_end, by)));
        let untraced = finished.iter().find_map(|(other, ran)| {
            let same = (&other.case, other.repetition) == (&cell.case, cell.repetition);
            (same && other.arm == UNTRACED)
                .then(|| ran.as_ref().ok()?.metrics.get(FIGURES[0]).copied())?
        });
        let key = (kernel, class, threads, back_end);
        let same = |row: &KernelRow| (row.kernel, row.class, row.threads, row.back_end) == key;
        let at = self.rows.iter().position(same).unwrap_or(self.rows.len());
        if at == self.rows.len() {
            let (native, traced) = (Vec::new(), Vec::new());
            self.rows.push(KernelRow {
                kernel,
                class,
                threads,
                back_end,
                native,
                traced,
                missing: None,
            });
        }
        let row = &mut self.rows[at];
        row.missing = row.missing.take().or(missing);
        let number = |name: &str| ran.metrics.get(name).copied();
        let [cpu, events, pages, intervals, lost] = FIGURES.map(number);
        let count = |value: Option<f64>| value.map_or(0, |value| value as u64);
        if let (Some(cpu), Some(untraced)) = (cpu, untraced) {
            row.native.push(untraced);
            let (events, pages) = (count(events), count(pages));
            let (intervals, lost) = (count(intervals), count(lost));
            row.traced.push(Traced { cpu, events, pages, intervals, lost });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::Linux;
    use pagemill_kernel::process::signal::Signals;

    fn names(options: Options) -> Vec<String> {
        let signals = Signals::block(&[]).unwrap();
        let (linux, executable, every) = (Linux::live(), "pagemill".into(), Duration::ZERO);
        let stage = Stage { linux, executable, signals: &signals, every };
        let planned_cells = Traces::new(options, &stage).unwrap().planned_cells();
        planned_cells.iter().map(|planned| planned.cell.name()).collect()
    }

    #[test]
    fn each_kernel_runs_as_it_is_and_under_each_back_end_and_the_emulator_s_class_once() {
        let mut options = Options::new(false, Some(2));
        options.only(Some(&["bt".into()])).unwrap();
        let names = names(options);
        let of = |case: &str, arms: &[&str]| {
            let names = arms.iter().map(|arm| format!("moca/{case}/{arm}"));
            names.collect::<Vec<_>>()
        };
        let wanted = [
            of("bt.A.1", &["untraced/1", "faults/1", "faults-names/1", "sample/1"]),
            of("bt.W.1", &["untraced/1", "exact/1", "sample/1"]),
            of("bt.A.1", &["untraced/2", "faults/2", "faults-names/2", "sample/2"]),
            of("bt.W.1", &["validated/1"]),
            of("bt.A.2", &["untraced/1", "faults/1", "faults-names/1", "sample/1"]),
            of("bt.A.2", &["untraced/2", "faults/2", "faults-names/2", "sample/2"]),
        ];
        assert_eq!(names, wanted.concat());
        assert!(ARMS.iter().all(|(back_end, ..)| !arm(back_end).is_empty()));
    }

    #[test]
    fn kernels_are_chosen_by_name_and_the_nearest_is_suggested() {
        let mut options = Options::new(false, None);
        assert_eq!((options.kernels.len(), options.sweep), (10, true));
        options.only(Some(&["sp".to_owned(), "bt".to_owned()])).unwrap();
        assert_eq!((&options.kernels[..], options.sweep), (&["bt", "sp"][..], false));
        let mut options = Options::new(false, None);
        options.only(Some(&["sweep".to_owned()])).unwrap();
        let names = names(options.clone());
        assert_eq!(names.len(), 10, "{names:?}");
        assert!(
            names[0] == "moca/sweep.20.100/faults/1" && names[9].contains(AS_PUBLISHED),
            "{names:?}"
        );
        let error = options.only(Some(&["btt".to_owned()])).unwrap_err().to_string();
        assert!(error.contains("did you mean \"bt\""), "{error}");
    }

    #[test]
    fn runs_are_held_against_the_untraced_one_of_their_repetition_and_a_back_end_is_named_once() {
        let cell = |case: &str, arm: &'static str, repetition| Cell {
            experiment: NAME.into(),
            case: case.into(),
            arm,
            repetition,
        };
        let ran = |cpu: f64, told: Option<CellDetails>| {
            let metrics = [(FIGURES[0].to_owned(), cpu), (FIGURES[1].to_owned(), 7.0)].into();
            Ran { metrics, ..told.map_or_else(Ran::default, |told| Ran::of(&told).unwrap()) }
        };
        let by = || Some(CellDetails::By("bpf".into()));
        let step = Step { monitor: 20.0, log: 500, native: 1.0, traced: Traced::default() };
        let found = PageAgreement { exact: 9, missing: 1, extra: 2 };
        let missing = CellDetails::Missing("no emulator".into());
        let finished = [
            (cell("bt.A.1", UNTRACED, 1), Ok(ran(1.0, None))),
            (cell("bt.A.1", UNTRACED, 2), Ok(ran(2.0, None))),
            (cell("bt.A.1", FAULTS, 1), Ok(ran(3.0, by()))),
            (cell("bt.A.1", FAULTS, 2), Ok(ran(8.0, by()))),
            (cell("bt.W.1", EXACT, 1), Ok(Ran::of(&missing).unwrap())),
            (cell("bt.W.1", VALIDATED, 1), Ok(Ran::of(&CellDetails::Checked([found; 4])).unwrap())),
            (
                cell("sweep.20.500", FAULTS, 1),
                Ok(Ran::of(&CellDetails::Step(step.clone())).unwrap()),
            ),
            (cell("bt.A.2", arm(NAMES), 1), Err("it died".to_owned())),
        ];
        let of = CellKey { seed: 1, scale: 1.0, window: None };
        let outcome = Outcome::collected(&finished, of, false).unwrap();
        assert_eq!((outcome.rows[0].native.clone(), outcome.rows.len()), (vec![1.0, 2.0], 2));
        assert_eq!(outcome.rows[0].traced.iter().map(|run| run.cpu).sum::<f64>(), 11.0);
        assert_eq!(outcome.rows[0].traced[0].events, 7);
        assert_eq!(outcome.events_by, [(FAULTS, "bpf".to_owned())]);
        assert_eq!((outcome.checked[0].written, &outcome.sweep[..]), (found, &[step][..]));
        assert_eq!(
            outcome.skipped,
            ["moca bt.A.2 faults-names #1 failed: it died", "exact: no emulator"]
        );
        let refused = [(cell("bt.A.1", FAULTS, 1), Err("no rights".to_owned()))];
        assert_eq!(Outcome::collected(&refused, of, false).unwrap_err(), "no rights");
    }
}

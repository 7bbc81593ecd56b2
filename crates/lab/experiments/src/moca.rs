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
//! Each kernel's runs are kept in the results directory when they end: a run of all that was ended goes on with what is
//! left. With some kernels only it is a part, which a run of all takes from the same directory.
//!
//! The sweep runs IS with the two intervals of the original: *monitor wake-up*, after which page table entries are
//! dropped again, and *log wake-up*, after which what was seen is written out (`--flush`). One more step makes as many
//! wake-ups as the published run had, which took eight times as long for the same work.

pub mod kept;
mod parts;
mod report;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pagemill_analysis::statistics::median;
use pagemill_kernel::signal::Signals;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::checkpoints::Checkpoints;
use super::coverage;
use crate::reproduce::experiment::meant;
use pagemill_record::summary;
use parts::Part;

/// Its name on the command line.
pub const NAME: &str = "moca";

/// What it is, in a line.
pub const TITLE: &str =
    "cost and completeness of access traces on NAS kernels (Moca, TABARNAC, Mitos, MemProf)";

const PUBLISHED: &str = include_str!("../../../../experiments/published/moca.csv");

/// All kernels, in the order of the published figures.
const KERNELS: [&str; 10] = ["bt", "cg", "dc", "ep", "ft", "is", "lu", "mg", "sp", "ua"];

/// Those of a quick run: of each kind of use of memory one.
const QUICK: [&str; 5] = ["cg", "ep", "ft", "is", "mg"];

/// Tools whose slowdown was published.
const TOOLS: [&str; 5] = ["Moca", "MocaPin", "TABARNAC", "Mitos", "MemProf"];

/// Numbers of threads that the kernels run with.
const THREADS: [usize; 2] = [1, 2];

/// The name of the part that is IS by the two intervals.
const SWEEP: &str = "sweep";

/// Monitor wake-ups of the published sweep, ms.
const MONITOR: [u64; 3] = [20, 50, 100];

/// Log wake-ups of it: its ends and middle, ms.
const LOG: [u64; 3] = [100, 500, 900];

/// The intervals of the published defaults, ms.
const DEFAULT: (u64, u64) = (50, 500);

const FAULTS: &str = "faults";
const NAMES: &str = "faults, names";
const EXACT: &str = "exact";
const SAMPLE: &str = "sample";

/// What runs of each kernel: name here, the arguments that choose it, and whether on the smaller class.
const ARMS: [(&str, &[&str], bool); 5] = [
    (FAULTS, &["--no-names"], false),
    (NAMES, &[], false),
    (SAMPLE, &["--backend", "sample"], false),
    (EXACT, &["--backend", "exact"], true),
    (SAMPLE, &["--backend", "sample"], true),
];

/// How much of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
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
        let (class, smaller) = if quick { ("W", "S") } else { ("A", "W") };
        let repetitions = repetitions.unwrap_or(if quick { 1 } else { 3 });
        let log = if quick { LOG[1..2].to_vec() } else { LOG.to_vec() };
        let kernels = if quick { QUICK.to_vec() } else { KERNELS.to_vec() };
        let threads = if quick { vec![1] } else { THREADS.to_vec() };
        Self { kernels, repetitions, class, smaller, threads, log, sweep: true }
    }

    /// Some kernels only, `sweep` (IS by the two intervals) among them.
    ///
    /// # Errors
    /// For what is no kernel, with the one that may have been meant.
    pub fn only(&mut self, names: Option<&[String]>) -> Result<()> {
        let Some(names) = names else { return Ok(()) };
        let known = || KERNELS.into_iter().chain([SWEEP]);
        for name in names {
            if !known().any(|one| one == name) {
                let meant = meant(name, known());
                bail!("there is no kernel {name:?}{meant}; valid: {}, {SWEEP}", KERNELS.join(", "));
            }
        }
        self.kernels = KERNELS.into_iter().filter(|one| names.iter().any(|it| it == one)).collect();
        self.sweep = names.iter().any(|name| name == SWEEP);
        Ok(())
    }

    /// What it can be done in parts of: the kernels, and the sweep.
    #[must_use]
    pub fn parts(&self) -> Vec<&'static str> {
        self.kernels.iter().copied().chain(self.sweep.then_some(SWEEP)).collect()
    }

    /// What is kept of a run in a results directory.
    ///
    /// # Errors
    /// As [`Checkpoints::new`].
    pub fn checkpoints(&self, results: &Path) -> Result<Checkpoints> {
        let Self { class, smaller, repetitions, .. } = self;
        let of = format!("class {class}, smaller {smaller}, {repetitions} runs");
        Checkpoints::new(results.join(NAME), &of)
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

/// One of the names that there are.
type Name = &'static str;

/// A kernel under one back end, and untraced.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Row {
    #[serde(deserialize_with = "parts::kernel")]
    kernel: Name,
    #[serde(deserialize_with = "parts::class")]
    class: Name,
    threads: usize,
    #[serde(deserialize_with = "parts::back_end")]
    back_end: Name,
    native: Vec<f64>,
    traced: Vec<Traced>,
    /// Why it did not run.
    missing: Option<String>,
}

/// What `validate` found of a kernel: pages that the emulator saw, of them told by the tracer, and told ones that were
/// not touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Checked {
    #[serde(deserialize_with = "parts::kernel")]
    kernel: Name,
    touched: Found,
    written: Found,
    touched_in_intervals: Found,
    written_in_intervals: Found,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Found {
    exact: u64,
    missing: u64,
    extra: u64,
}

impl Found {
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
    rows: Vec<Row>,
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

impl Row {
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
    PUBLISHED.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.splitn(6, ',').collect();
        let found = fields.len() == 6 && fields[..3] == [experiment, subject, metric];
        found.then(|| coverage::looked_up(line));
        found.then(|| fields[4].parse().ok()).flatten()
    })
}

/// The program's own word on its CPU time; the kernel has checked its result.
fn cpu(output: &[u8]) -> Result<f64> {
    let line: Value = serde_json::from_slice(output).context("the kernel's line of results")?;
    line["cpu_seconds"].as_f64().context("the kernel did not tell its CPU time")
}

struct Stage<'a> {
    executable: &'a Path,
    signals: &'a Signals,
    room: tempfile::TempDir,
}

impl Stage<'_> {
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
        self.signals.restore_in(command);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    fn native(&self, workload: &[String]) -> Result<f64> {
        let output = self.output(Command::new(self.executable).args(workload))?;
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
        let mut command = Command::new(self.executable);
        command.args(["record", "--with", "accesses", "--access-interval", &monitor]);
        command.args(["--flush", &log, "-f", "-o"]).arg(&recording).args(back_end);
        command.arg("--").arg(self.executable).args(workload);
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
    fn checked(&self, kernel: &'static str, class: &str) -> Result<Result<Checked, String>> {
        let both = self.room.path().join(format!("both-{kernel}"));
        let mut command = Command::new(self.executable);
        command.args(["validate", "-o"]).arg(&both).arg("--").arg(self.executable);
        let output = self.output(command.args(Self::workload(kernel, class, 1)))?;
        if !both.join("exact").is_dir() || !matches!(output.status.code(), Some(0 | 1)) {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let output =
            self.output(Command::new(self.executable).args(["validate", "--json"]).arg(&both))?;
        let view: Value = serde_json::from_slice(&output.stdout).context("what validate says")?;
        std::fs::remove_dir_all(&both)?;
        let found = |name: &str| Found::of(&view[name]);
        Ok(Ok(Checked {
            kernel,
            touched: found("touched"),
            written: found("written"),
            touched_in_intervals: found("touched_in_intervals"),
            written_in_intervals: found("written_in_intervals"),
        }))
    }

    fn ended(&self) -> Result<bool> {
        Ok(self.signals.wait(Duration::ZERO)?.is_some())
    }
}

/// What a back end said when it did not run, in a line.
fn last_line(said: &str) -> String {
    said.lines().last().unwrap_or("it failed").trim_start_matches("pagemill: ").to_owned()
}

/// Runs what an ended run has not left in the directory `results`; `say` hears of each step. The inner error: accesses
/// cannot be traced here, and why.
///
/// # Errors
/// Where a kernel fails, or its recording cannot be read.
pub fn run(
    executable: &Path,
    options: Options,
    results: &Path,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Result<Outcome, String>> {
    let stage = Stage { executable, signals, room: tempfile::tempdir()? };
    let checkpoints = options.checkpoints(results)?;
    let mut outcome = Outcome::new(options.clone());
    for (at, &threads) in options.threads.iter().enumerate() {
        for &kernel in &options.kernels {
            let run = Runs { kernel, threads, smaller: at == 0 };
            let name = format!("{kernel}-{threads}");
            let part = match checkpoints.read::<Part>(&name) {
                Some(part) => part,
                None => match stage.arms(&run, &options, &mut say)? {
                    Ok(Some(part)) => {
                        checkpoints.write(&name, &part)?;
                        part
                    }
                    Ok(None) => return Ok(Ok(outcome.ended())),
                    Err(why) => return Ok(Err(why)),
                },
            };
            outcome.add(part);
        }
        // What is held against the emulator, and the sweep, come before further numbers of threads.
        let whole = at > 0
            || stage.all_checked(&mut outcome, &checkpoints, &mut say)?
                && stage.sweep(&mut outcome, &checkpoints, &mut say)?;
        if !whole {
            return Ok(Ok(outcome.ended()));
        }
    }
    for row in &outcome.rows {
        let skipped = row.missing.as_ref().map(|why| format!("{}: {why}", row.back_end));
        outcome.skipped.extend(skipped.filter(|line| !outcome.skipped.contains(line)));
    }
    Ok(Ok(outcome))
}

/// The runs of a kernel.
struct Runs {
    kernel: &'static str,
    threads: usize,
    /// Whether those on the smaller class are among them.
    smaller: bool,
}

impl Stage<'_> {
    /// All runs of a kernel, a row for each arm; `None` if a signal came. The inner error: accesses cannot be traced.
    fn arms(
        &self,
        &Runs { kernel, threads, smaller: with_smaller }: &Runs,
        options: &Options,
        say: &mut impl FnMut(&str),
    ) -> Result<Result<Option<Part>, String>> {
        let default = (DEFAULT.0 as f64, DEFAULT.1);
        let mut part = Part::default();
        let arms = || ARMS.into_iter().filter(|(_, _, smaller)| with_smaller || !smaller);
        part.rows.extend(arms().map(|(back_end, _, smaller)| Row {
            kernel,
            class: if smaller { options.smaller } else { options.class },
            threads,
            back_end,
            native: Vec::new(),
            traced: Vec::new(),
            missing: None,
        }));
        for repetition in 0..options.repetitions {
            let mut native: Option<(&str, f64)> = None;
            for (row, (back_end, arguments, smaller)) in part.rows.iter_mut().zip(arms()) {
                // The emulator's factor is large and varies little.
                if row.missing.is_some() || smaller && repetition > 0 {
                    continue;
                }
                if self.ended()? {
                    return Ok(Ok(None));
                }
                let class = row.class;
                say(&format!(
                    "{kernel}, class {class}, {threads} threads, run {}, {back_end}",
                    repetition + 1
                ));
                let workload = Self::workload(kernel, class, threads);
                let alone = match native {
                    Some((of, seconds)) if of == class => seconds,
                    _ => self.native(&workload)?,
                };
                native = Some((class, alone));
                row.native.push(alone);
                let traced = match self.traced(arguments, default, &workload) {
                    // A signal from a terminal ends the program, too.
                    Err(_) if self.ended()? => return Ok(Ok(None)),
                    traced => traced?,
                };
                match traced {
                    Ok((traced, by)) => {
                        row.traced.push(traced);
                        part.events_by.push((back_end.to_owned(), by));
                    }
                    Err(why) if back_end == FAULTS => return Ok(Err(last_line(&why))),
                    Err(why) => row.missing = Some(last_line(&why)),
                }
            }
        }
        Ok(Ok(Some(part)))
    }

    /// The pages of each kernel held against the emulator's; whether no signal came.
    fn all_checked(
        &self,
        outcome: &mut Outcome,
        checkpoints: &Checkpoints,
        say: &mut impl FnMut(&str),
    ) -> Result<bool> {
        for kernel in outcome.options.kernels.clone() {
            let (name, smaller) = (format!("{kernel}-checked"), outcome.options.smaller);
            if let Some(part) = checkpoints.read::<Part>(&name) {
                outcome.add(part);
                continue;
            }
            if self.ended()? {
                return Ok(false);
            }
            say(&format!("{kernel}, class {smaller}, pages held against the emulator's"));
            match self.checked(kernel, smaller)? {
                Ok(checked) => {
                    let part = Part { checked: vec![checked], ..Part::default() };
                    checkpoints.write(&name, &part)?;
                    outcome.add(part);
                }
                // A signal ends the emulator, too.
                Err(_) if self.ended()? => return Ok(false),
                Err(why) => {
                    let why = last_line(&why);
                    outcome.skipped.push(format!("pages held against the emulator's: {why}"));
                    break;
                }
            }
        }
        Ok(true)
    }

    /// IS by the two intervals; whether no signal came.
    fn sweep(
        &self,
        outcome: &mut Outcome,
        checkpoints: &Checkpoints,
        say: &mut impl FnMut(&str),
    ) -> Result<bool> {
        if !outcome.options.sweep {
            return Ok(true);
        }
        if let Some(part) = checkpoints.read::<Part>(SWEEP) {
            outcome.add(part);
            return Ok(true);
        }
        let workload = Self::workload("is", "A", 1);
        let mut steps: Vec<(f64, u64)> = Vec::new();
        for &log in &outcome.options.log {
            steps.extend(MONITOR.map(|monitor| (monitor as f64, log)));
        }
        // As often as the published run was woken up.
        let native = self.native(&workload)?;
        if let Some(seconds) = published("sweep", "50 ms", "time") {
            let wake_ups = seconds * 1e3 / DEFAULT.0 as f64;
            steps.push(((native * 1e3 / wake_ups).max(1.0), DEFAULT.1));
        }
        let mut part = Part::default();
        for step in steps {
            if self.ended()? {
                outcome.add(part);
                return Ok(false);
            }
            let (monitor, log) = step;
            say(&format!("is, class A, wake-ups of {monitor:.1} and {log} ms"));
            let native = self.native(&workload)?;
            if let Ok((traced, _)) = self.traced(ARMS[0].1, step, &workload)? {
                part.sweep.push(Step { monitor, log, native, traced });
            }
        }
        checkpoints.write(SWEEP, &part)?;
        outcome.add(part);
        Ok(true)
    }
}

//! What measuring costs: a program that does nothing but take page faults, with each back end of `record --with
//! faults`; and programs whose accesses are recorded ([`accesses`]).
//!
//! ```text
//!  faults     pagemill [record --with faults …] workload touch      arms in seeded random order, `repetitions` times
//! ```
//!
//! A touch is timed by the program itself; what a back end adds is the difference of the medians. Whether the back ends
//! agree is told by the median that each recorded in the kernel.
//!
//! Always true: an arm that does not run here is in the table with the reason; of what a signal ends early, the tables
//! have what was measured by then and say so.

mod accesses;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use pagemill_analysis::statistics::{Random, median};
use pagemill_kernel::signal::Signals;
use pagemill_kernel::{Linux, thp};
use pagemill_model::Pid;
use pagemill_model::recording::Reader;
use serde_json::{Value, json};

use super::Table;

/// Its name on the command line.
pub const NAME: &str = "overhead";

/// What it is, in a line.
pub const TITLE: &str =
    "what measuring costs: page faults with each back end, accesses of the NAS kernels";

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs of each arm.
    pub repetitions: u32,
    /// Scale of the program that touches memory.
    pub scale: &'static str,
    accesses: accesses::Options,
    /// Seed of the order.
    pub seed: u64,
}

impl Options {
    /// As in the documentation, or in a minute.
    pub fn new(quick: bool, repetitions: Option<u32>, seed: u64) -> Self {
        let kernels: &[&str] = &["nas-is", "nas-cg", "nas-mg", "nas-ft", "nas-ep"];
        let (repetitions, runs) = match repetitions {
            Some(all) => (all, all),
            None if quick => (3, 1),
            None => (6, 3),
        };
        let (scale, class, of_steps, opened) = match quick {
            true => ("0.2", "S", "0.2", 200_000),
            false => ("1", "A", "1", 20_000_000),
        };
        let kernels = if quick { &kernels[..3] } else { kernels };
        let accesses =
            accesses::Options { repetitions: runs, class, kernels, scale: of_steps, opened };
        Self { repetitions, scale, accesses, seed }
    }
}

/// A way of measuring faults.
struct Arm {
    name: &'static str,
    /// Back end and threshold; none: the program alone.
    how: Option<[&'static str; 2]>,
    /// As a user without rights.
    nobody: bool,
}

const fn arm(name: &'static str, back_end: &'static str, threshold: &'static str) -> Arm {
    Arm { name, how: Some([back_end, threshold]), nobody: false }
}

const ARMS: [Arm; 7] = [
    Arm { name: "without pagemill", how: None, nobody: false },
    arm("bpf-fexit", "bpf-fexit", "10us"),
    arm("bpf-tracepoints", "bpf-tracepoints", "10us"),
    arm("bpf-tracepoints, no rows", "bpf-tracepoints", "1s"),
    arm("perf", "perf", "10us"),
    Arm { name: "perf, user nobody", how: Some(["perf", "10us"]), nobody: true },
    arm("counters", "counters", "10us"),
];

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// What a run of an arm showed.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// A touch as the program sees it: median and mean, microseconds.
    touch: f64,
    mean: f64,
    /// Faults a second, while the program ran.
    rate: f64,
    /// Median in the kernel, ns.
    kernel: Option<f64>,
    counted: u64,
    lost: u64,
    untimed: u64,
    accounted: Option<u64>,
}

/// An arm's runs, or why it has none.
type Runs = std::result::Result<Vec<Run>, String>;

/// What came of it.
pub struct Outcome {
    faults: Vec<(&'static str, Runs)>,
    accesses: accesses::Outcome,
    options: Options,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// Runs it; `say` hears of each step.
pub fn run(
    linux: &Linux,
    options: Options,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Outcome> {
    let room = tempfile::Builder::new().prefix("pagemill-overhead-").tempdir()?;
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o777))?;
    let root = linux.status(Pid::own())?.effective_uid == 0;
    let bench =
        Bench { executable: std::env::current_exe()?, room: room.path().to_owned(), signals };
    let mut random = Random::new(options.seed);
    let mut outcome = Outcome {
        faults: ARMS.iter().map(|arm| (arm.name, Ok(Vec::new()))).collect(),
        accesses: accesses::Outcome::new(options.accesses),
        options,
        interrupted: false,
    };
    let mut order: Vec<usize> = (0..ARMS.len()).collect();
    for repetition in 0..options.repetitions {
        random.shuffle(&mut order);
        for &at in &order {
            if signals.wait(Duration::ZERO)?.is_some() {
                outcome.interrupted = true;
                return Ok(outcome);
            }
            let (arm, runs) = (&ARMS[at], &mut outcome.faults[at].1);
            say(&format!("{}, run {} of {}", arm.name, repetition + 1, options.repetitions));
            let Ok(done) = runs else { continue };
            if arm.nobody && !root {
                *runs = Err("only root can run it as another user".into());
                continue;
            }
            match bench.faults(arm, options.scale)? {
                Measured::Run(run) => done.push(run),
                Measured::Failed(why) => *runs = Err(why),
                Measured::Interrupted => {
                    outcome.interrupted = true;
                    return Ok(outcome);
                }
            }
        }
    }
    outcome.interrupted = outcome.accesses.run(&bench, &mut say)?;
    Ok(outcome)
}

/// What became of a command that prints one line of JSON.
enum Ran {
    Said(Value),
    Failed(String),
    /// By a signal to us, which the command may have got, too.
    Interrupted,
}

/// What became of a run of an arm.
enum Measured {
    Run(Run),
    Failed(String),
    Interrupted,
}

/// What all runs have in common.
struct Bench<'a> {
    executable: PathBuf,
    room: PathBuf,
    signals: &'a Signals,
}

impl Bench<'_> {
    /// Where accesses are recorded to.
    fn recording(&self) -> PathBuf {
        self.room.join("accesses")
    }

    /// This program, or this program recording its own accesses in that way.
    fn recorded(&self, how: Option<&[&str]>) -> Command {
        let mut command = Command::new(&self.executable);
        if let Some(how) = how {
            command.args(["record", "--with", "accesses", "-o"]).arg(self.recording());
            command.args(how).arg("--").arg(&self.executable);
        }
        command
    }

    /// What a command printed; `None` if a signal came meanwhile.
    fn output(&self, mut command: Command) -> Result<Option<Output>> {
        if self.signals.wait(Duration::ZERO)?.is_some() {
            return Ok(None);
        }
        thp::switch_off_in(&mut command);
        self.signals.restore_in(&mut command);
        let output = command.stdin(Stdio::null()).current_dir(&self.room).output()?;
        Ok(self.signals.wait(Duration::ZERO)?.is_none().then_some(output))
    }

    /// Runs a command that may record into `recording`.
    fn once(&self, command: Command, recording: &Path) -> Result<Ran> {
        // What an earlier run has left.
        let _ = fs::remove_dir_all(recording);
        let Some(output) = self.output(command)? else { return Ok(Ran::Interrupted) };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Ok(Ran::Failed(said.lines().last().unwrap_or("it failed").to_owned()));
        }
        let line =
            serde_json::from_slice(&output.stdout).context("the workload printed no JSON")?;
        Ok(Ran::Said(line))
    }

    fn faults(&self, arm: &Arm, scale: &str) -> Result<Measured> {
        let recording = self.room.join(if arm.nobody { "nobody" } else { "recording" });
        let mut command = Command::new(&self.executable);
        if let Some([back_end, threshold]) = arm.how {
            command.args(["record", "--with", "faults", "--fault-backend", back_end]);
            command.args(["--threshold", threshold, "-o"]).arg(&recording);
            command.arg("--").arg(&self.executable);
        }
        command.args(["workload", "touch", "--scale", scale]);
        if arm.nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let line = match self.once(command, &recording)? {
            Ran::Said(line) => line,
            Ran::Failed(why) => return Ok(Measured::Failed(why)),
            Ran::Interrupted => return Ok(Measured::Interrupted),
        };
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let metrics = &line["metrics"];
        let mut run = Run {
            touch: number(&metrics["p50_ns"]) / 1e3,
            mean: number(&metrics["mean_ns"]) / 1e3,
            rate: number(&line["operations"]) / number(&line["seconds"]),
            ..Run::default()
        };
        if arm.how.is_some() {
            let setup = Reader::open(&recording)?.meta().faults.clone().unwrap_or_default();
            (run.counted, run.lost) = (setup.counted, setup.lost + setup.lost_rows);
            (run.untimed, run.accounted) = (setup.untimed, setup.accounted);
            let mut report = Command::new(&self.executable);
            report.args(["report", "--json"]).arg(&recording);
            let Some(report) = self.output(report)? else { return Ok(Measured::Interrupted) };
            let report: Value =
                serde_json::from_slice(&report.stdout).context("the report is no JSON")?;
            run.kernel = report["faults"]["all"]["p50_ns"].as_f64();
        }
        Ok(Measured::Run(run))
    }
}

fn of(runs: &Runs, what: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.as_ref().ok()?.iter().filter_map(what).collect();
    median(&values)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

impl Outcome {
    fn arm(&self, name: &str) -> Option<&Runs> {
        self.faults.iter().find(|(arm, _)| *arm == name).map(|(_, runs)| runs)
    }

    /// What an arm adds to a touch, microseconds.
    fn added(&self, name: &str) -> Option<f64> {
        let touch = |name| of(self.arm(name)?, |run| Some(run.touch));
        Some(touch(name)? - touch(ARMS[0].name)?)
    }

    /// The tables.
    pub fn tables(&self) -> Vec<Table> {
        let rows = self.faults.iter().map(|(name, runs)| {
            let sum = |what: fn(&Run) -> u64| match runs {
                Ok(runs) => runs.iter().map(what).sum::<u64>().to_string(),
                Err(_) => "-".into(),
            };
            vec![
                (*name).to_owned(),
                shown(of(runs, |run| Some(run.touch)), 3),
                shown(self.added(name).filter(|_| *name != ARMS[0].name), 3),
                shown(of(runs, |run| Some(run.mean)), 3),
                shown(of(runs, |run| run.kernel), 0),
                shown(of(runs, |run| Some(run.rate)), 0),
                sum(|run| run.counted),
                sum(|run| run.lost),
                runs.as_ref().err().cloned().unwrap_or_default(),
            ]
        });
        let header = vec![
            "arm",
            "us a touch",
            "added",
            "mean",
            "p50 in the kernel, ns",
            "a second",
            "faults",
            "lost",
            "",
        ];
        let title = format!(
            "page faults: medians of {} runs, arms in random order",
            self.options.repetitions
        );
        let faults = Table { title, header, rows: rows.collect() };
        let title = "goals".to_owned();
        let goals =
            Table { title, header: vec!["goal", "at most", "here", ""], rows: self.goals() };
        let mut tables = vec![faults];
        tables.extend(self.accesses.tables());
        tables.push(goals);
        if self.interrupted {
            for table in &mut tables {
                table.title.push_str(" (interrupted: what was measured by then)");
            }
        }
        tables
    }

    fn goals(&self) -> Vec<Vec<String>> {
        let row = |goal: &str, most: &str, here: Option<f64>, digits, met: Option<bool>| {
            let verdict = met.map_or("not measured", |met| if met { "met" } else { "MISSED" });
            vec![goal.to_owned(), most.to_owned(), shown(here, digits), verdict.to_owned()]
        };
        let most = |goal, name: &str, most: f64| {
            let added = self.added(name);
            row(goal, &format!("{most}"), added, 3, added.map(|added| added <= most))
        };
        let recorded = || self.faults.iter().filter_map(|(_, runs)| runs.as_ref().ok()).flatten();
        let lost: u64 = recorded().map(|run| run.lost).sum();
        let timed = recorded().filter(|run| run.kernel.is_some()).count();
        let apart: u64 =
            recorded().filter_map(|run| Some(run.accounted?.abs_diff(run.counted))).sum();
        let medians: Vec<f64> =
            self.faults.iter().filter_map(|(_, runs)| of(runs, |run| run.kernel)).collect();
        let (low, high) = medians.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
        let spread = (medians.len() > 1).then(|| (high / low - 1.0) * 100.0);
        let mut goals = vec![
            most("BPF adds to a fault, us", "bpf-tracepoints", 0.6),
            most("unprivileged, us", "perf, user nobody", 1.2),
            row("faults lost", "0", Some(lost as f64), 0, (timed > 0).then_some(lost == 0)),
            row(
                "counts differ from getrusage's by",
                "0",
                Some(apart as f64),
                0,
                (timed > 0).then_some(apart == 0),
            ),
            row(
                "back ends' p50 in the kernel differ by, %",
                "5",
                spread,
                1,
                spread.map(|spread| spread <= 5.0),
            ),
        ];
        let accesses = self.accesses.goals().into_iter();
        goals.extend(
            accesses.map(|(goal, most, here, digits, met)| row(&goal, &most, here, digits, met)),
        );
        goals
    }

    /// Every figure.
    pub fn json(&self) -> Value {
        let faults = self.faults.iter().map(|(name, runs)| match runs {
            Ok(runs) => json!({
                "arm": name,
                "added_us": self.added(name),
                "runs": runs.iter().map(|run| json!({
                    "touch_p50_us": run.touch, "touch_mean_us": run.mean, "a_second": run.rate,
                    "kernel_p50_ns": run.kernel, "counted": run.counted, "lost": run.lost,
                    "untimed": run.untimed, "accounted": run.accounted,
                })).collect::<Vec<_>>(),
            }),
            Err(why) => json!({ "arm": name, "not_run": why }),
        });
        json!({
            "schema": 2, "experiment": NAME, "interrupted": self.interrupted,
            "faults": faults.collect::<Vec<_>>(), "accesses": self.accesses.json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_a_difference_of_medians_and_a_missed_goal_is_said() {
        let runs = |touches: &[f64], kernel: f64| -> Runs {
            let run = |touch: &f64| Run {
                touch: *touch,
                kernel: (kernel > 0.0).then_some(kernel),
                counted: 10,
                accounted: Some(10),
                ..Run::default()
            };
            Ok(touches.iter().map(run).collect())
        };
        let outcome = Outcome {
            faults: vec![
                (ARMS[0].name, runs(&[1.0, 1.2, 9.0], 0.0)),
                ("bpf-tracepoints", runs(&[1.5, 1.4, 1.6], 1000.0)),
                ("perf, user nobody", runs(&[3.0, 2.9, 3.1], 1100.0)),
                ("bpf-fexit", Err("refused".into())),
            ],
            accesses: accesses::Outcome::new(Options::new(true, None, 1).accesses),
            options: Options::new(true, None, 1),
            interrupted: false,
        };
        let goals = outcome.goals();
        let verdicts: Vec<&str> = goals.iter().map(|row| row[3].as_str()).collect();
        assert_eq!(verdicts[..5], ["met", "MISSED", "met", "met", "MISSED"], "{goals:?}");
        assert!(verdicts[5..].iter().all(|verdict| *verdict == "not measured"), "{goals:?}");
        assert_eq!(goals[0][2], "0.300");
        assert_eq!(goals[4][2], "10.0");
        assert_eq!(outcome.json()["faults"][3]["not_run"], "refused");
    }
}

//! What measuring costs: a program that does nothing but take page faults, with each back end of `record --with
//! faults`; and programs whose accesses are recorded ([`accesses`]).
//!
//! ```text
//!  faults     pagemill [record --with faults …] workload touch      arms in seeded random order, `repetitions` times
//!  kernels    pagemill [record --with accesses …] workload nas-…    alone, recorded, and with --budget 2
//!  steps      pagemill [record --with accesses …] workload steps    the program times its own steps
//!  opening    pagemill generate recording, pagemill report --html
//! ```
//!
//! A cell is one run, `overhead/faults/perf/2` or `overhead/nas-is/recorded/1`. A touch is timed by the program itself;
//! what a back end adds is the difference of the medians. Whether the back ends agree is told by the median that each
//! recorded in the kernel.
//!
//! Always true: an arm that does not run here is in the table with the reason; of what a signal ends early, the tables
//! have what was measured by then.

mod accesses;
mod options;
mod outcome;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_kernel::settings::thp;
use pagemill_model::random::Random;
use pagemill_model::recording::Reader;
use serde_json::{Value, json};

use crate::claim::ClaimRow;
use crate::reproduce::cell::Cell;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::{Finished, PlannedCell, Series};
use crate::reproduce::target::Stage;
use crate::tabled::{Choices, MeasuredExperiment, Table, Tabled, TabledExperiment, Tables};
use options::{BUDGET, FAULTS, NATIVE, OPENING, RECORDED, STEPS};
pub use options::{FILE, NAME, Options, Runs};
pub use outcome::Outcome;
use outcome::{Goal, at_most, shown};

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: options::TEXT,
    source: None,
    choices: Choices { arms: false, programs: false, scale: false },
    is_roots: false,
    measured: Some(MeasuredExperiment {
        cells: |asked| {
            let of = asked.options;
            let options = Options::new(of.quick, of.repetitions, of.seed);
            Ok(Box::new(Costs::new(options, asked.stage)?))
        },
        nothing: None,
        collected: |cells, of, _| Ok(Box::new(Outcome::collected(cells, of))),
    }),
    kept: None,
};
/// The arm that runs as the user `nobody`, and that user.
const AS_NOBODY: &str = "perf-nobody";
const NOBODY: u32 = 65534;

/// How faults are measured: arm, back end and threshold.
const BACK_ENDS: [(&str, Option<[&str; 2]>); 7] = [
    (NATIVE, None),
    ("bpf-fexit", Some(["bpf-fexit", "10us"])),
    ("bpf-tracepoints", Some(["bpf-tracepoints", "10us"])),
    ("bpf-tracepoints-no-rows", Some(["bpf-tracepoints", "1s"])),
    ("perf", Some(["perf", "10us"])),
    (AS_NOBODY, Some(["perf", "10us"])),
    ("counters", Some(["counters", "10us"])),
];

/// Figures of a run, by name.
type Figures = BTreeMap<String, f64>;

/// The cells of the experiment.
pub struct Costs<'a> {
    options: Options,
    stage: &'a Stage<'a>,
    room: tempfile::TempDir,
}

impl<'a> Costs<'a> {
    /// Those of some options.
    ///
    /// # Errors
    /// Where there is no room for recordings.
    pub fn new(options: Options, stage: &'a Stage<'a>) -> Result<Self> {
        let room = tempfile::Builder::new().prefix("pagemill-overhead-").tempdir()?;
        fs::set_permissions(room.path(), fs::Permissions::from_mode(0o777))?;
        Ok(Self { options, stage, room })
    }

    /// What a command printed.
    fn output(&self, mut command: Command) -> Result<Output> {
        self.stage.wait(Duration::ZERO)?;
        thp::switch_off_in(&mut command);
        self.stage.signals.restore_in(&mut command);
        let output = command.stdin(Stdio::null()).current_dir(self.room.path()).output()?;
        // The command may have got the same signal.
        self.stage.wait(Duration::ZERO)?;
        Ok(output)
    }

    /// Runs this program's `workload`, recorded into `recording` in that way; the line that it prints. The inner error:
    /// it cannot be recorded so here, and why.
    fn once(
        &self,
        how: Option<&[&str]>,
        recording: &PathBuf,
        workload: &[&str],
        nobody: bool,
    ) -> Result<Result<Value, String>> {
        // What an earlier run has left.
        let _ = fs::remove_dir_all(recording);
        let executable = &self.stage.executable;
        let mut command = Command::new(executable);
        if let Some(how) = how {
            command.arg("record").args(how).arg("-o").arg(recording).arg("--").arg(executable);
        }
        command.arg("workload").args(workload);
        if nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = self.output(command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().last().unwrap_or("it failed");
        match output.status.code() {
            Some(0) => {}
            Some(3 | 4 | 125 | 126) => return Ok(Err(said.to_owned())),
            _ => bail!("{} ended with {}: {said}", workload.join(" "), output.status),
        }
        Ok(Ok(serde_json::from_slice(&output.stdout).context("the workload printed no JSON")?))
    }

    /// Page faults, with a back end.
    fn faults(&self, arm: &str) -> Result<Result<Figures, String>> {
        let known = BACK_ENDS.iter().find(|(name, _)| *name == arm);
        let (_, how) = known.context("it is no back end of this")?;
        let nobody = arm == AS_NOBODY;
        if nobody && !self.stage.linux.is_root() {
            return Ok(Err("only root can run it as another user".to_owned()));
        }
        let recording = self.room.path().join(if nobody { "nobody" } else { "recording" });
        let how = how.map(|[back_end, threshold]| {
            ["--with", "faults", "--fault-backend", back_end, "--threshold", threshold]
        });
        let touch = ["touch", "--scale", &self.options.runs().touch];
        let line = match self.once(how.as_ref().map(|how| &how[..]), &recording, &touch, nobody)? {
            Ok(line) => line,
            Err(why) => return Ok(Err(why)),
        };
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let metrics = &line["metrics"];
        let mut run = vec![
            ("touch_p50_us", number(&metrics["p50_ns"]) / 1e3),
            ("touch_mean_us", number(&metrics["mean_ns"]) / 1e3),
            ("a_second", number(&line["operations"]) / number(&line["seconds"])),
        ];
        if how.is_some() {
            let setup = Reader::open(&recording)?.meta().faults.clone().unwrap_or_default();
            run.push(("counted", setup.counted as f64));
            run.push(("lost", (setup.lost + setup.lost_rows) as f64));
            run.push(("untimed", setup.untimed as f64));
            run.extend(setup.accounted.map(|accounted| ("accounted", accounted as f64)));
            let mut report = Command::new(&self.stage.executable);
            report.args(["report", "--json"]).arg(&recording);
            let report: Value = serde_json::from_slice(&self.output(report)?.stdout)
                .context("the report is no JSON")?;
            let kernel = report["faults"]["all"]["p50_ns"].as_f64();
            run.extend(kernel.map(|kernel| ("kernel_p50_ns", kernel)));
        }
        Ok(Ok(run.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
    }

    /// Single steps, as they are or recorded.
    fn steps(&self, arm: &str) -> Result<Result<Figures, String>> {
        let how = ["--with", "accesses", "--access-interval", "10s"];
        let how = (arm != NATIVE).then_some(&how[..]);
        let steps = ["steps", "--scale", &self.options.runs().steps];
        let line = self.once(how, &self.room.path().join("recording"), &steps, false)?;
        Ok(line.map(|line| {
            let all = line["metrics"].as_object().into_iter().flatten();
            all.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
        }))
    }

    /// A kernel, as it is or recorded.
    fn kernel(&self, kernel: &str, arm: &str) -> Result<Result<Figures, String>> {
        let how = match arm {
            NATIVE => None,
            BUDGET => Some(&["--with", "accesses", "--budget", "2"][..]),
            _ => Some(&["--with", "accesses"][..]),
        };
        let recording = self.room.path().join("recording");
        let class = &self.options.runs().class;
        let line =
            self.once(how, &recording, &[kernel, "--threads", "1", "--class", class], false)?;
        let line = match line {
            Ok(line) => line,
            Err(why) => return Ok(Err(why)),
        };
        let cpu = line["cpu_seconds"].as_f64().context("the kernel told no CPU time")?;
        let mut run = Figures::from([("cpu_seconds".to_owned(), cpu)]);
        if how.is_some() {
            let reader = Reader::open(&recording)?;
            let rows = |name| reader.meta().parts.get(name).map_or(0, |parts| parts.rows);
            let lost = reader.meta().accesses.as_ref().map_or(0, |setup| setup.lost);
            let figures = [
                ("accesses", rows("accesses")),
                ("intervals", rows("touched")),
                ("lost", lost),
                ("bytes", accesses::bytes(&recording)),
            ];
            run.extend(figures.map(|(name, count)| (name.to_owned(), count as f64)));
        }
        Ok(Ok(run))
    }

    /// How long a large recording takes to make and to open.
    fn opening(&self) -> Result<Figures> {
        let (made, page) =
            (self.room.path().join("made-up"), self.room.path().join("made-up.html"));
        let timed = |command: Command| -> Result<f64> {
            let begun = Instant::now();
            let output = self.output(command)?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}", said.lines().last().unwrap_or("it failed"));
            Ok(begun.elapsed().as_secs_f64())
        };
        let ours = || Command::new(&self.stage.executable);
        let (mut make, mut open) = (ours(), ours());
        let events = self.options.runs().opened.to_string();
        make.args(["generate", "recording", "--events", &events, "-o"]).arg(&made);
        open.arg("report").arg(&made).arg("--html").arg(page);
        let figures = [("made_seconds", timed(make)?), ("opened_seconds", timed(open)?)];
        fs::remove_dir_all(&made)?;
        Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl Series for Costs<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let Options { quick, repetitions, accesses, seed } = self.options;
        let size = FILE.size(quick);
        let of = CellKey { seed, scale: size.scale, window: None };
        let planned = |case: &str, arm, repetition| {
            let cell = Cell { experiment: NAME.into(), case: case.into(), arm, repetition };
            PlannedCell { cell, of, seconds: size.seconds }
        };
        let mut random = Random::new(seed);
        let mut planned_cells = Vec::new();
        for repetition in 1..=repetitions {
            let mut round = BACK_ENDS.map(|(arm, _)| planned(FAULTS, arm, repetition));
            random.shuffle(&mut round);
            planned_cells.extend(round);
        }
        for repetition in 1..=accesses {
            planned_cells.extend([NATIVE, RECORDED].map(|arm| planned(STEPS, arm, repetition)));
        }
        planned_cells.push(planned(OPENING, RECORDED, 1));
        for repetition in 1..=accesses {
            for kernel in &size.runs.kernels {
                planned_cells
                    .extend([NATIVE, RECORDED, BUDGET].map(|arm| planned(kernel, arm, repetition)));
            }
        }
        planned_cells
    }

    fn run(&mut self, cell: &Cell, _: &[Finished], _: &mut dyn FnMut(&str)) -> Result<Ran> {
        let figures = match cell.case.as_str() {
            FAULTS => self.faults(cell.arm)?,
            STEPS => self.steps(cell.arm)?,
            OPENING => Ok(self.opening()?),
            kernel => self.kernel(kernel, cell.arm)?,
        };
        Ok(match figures {
            Ok(metrics) => Ran { metrics, ..Ran::default() },
            Err(why) => Ran { notes: vec![why], ..Ran::default() },
        })
    }
}

impl Tabled for Costs<'_> {
    fn outcome(&self, finished: &[Finished], _: bool) -> Result<Box<dyn Tables>, String> {
        Ok(Box::new(Outcome { options: self.options, finished: finished.to_vec() }))
    }
}

impl Outcome {
    /// What an arm adds to a touch, microseconds.
    fn added(&self, arm: &str) -> Option<f64> {
        let touch = |arm| self.middle(FAULTS, arm, "touch_p50_us");
        Some(touch(arm)? - touch(NATIVE)?)
    }

    fn targets(&self) -> Vec<Goal> {
        let recorded = BACK_ENDS.iter().filter(|(arm, _)| *arm != NATIVE);
        let all =
            |figure| recorded.clone().flat_map(move |(arm, _)| self.values(FAULTS, arm, figure));
        let any = all("kernel_p50_ns").next().is_some();
        let medians = recorded.clone();
        let medians = medians.filter_map(|(arm, _)| self.middle(FAULTS, arm, "kernel_p50_ns"));
        let medians: Vec<f64> = medians.collect();
        let (low, high) = medians.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
        let spread = (medians.len() > 1).then(|| (high / low - 1.0) * 100.0);
        let told = self.finished.iter().filter_map(|(_, ran)| Some(&ran.as_ref().ok()?.metrics));
        let apart =
            told.filter_map(|run| Some((run.get("accounted")? - run.get("counted")?).abs()));
        let apart: f64 = apart.sum();
        let goals = [
            at_most("BPF adds to a fault, us", 0.6, self.added("bpf-tracepoints"), 3),
            at_most("unprivileged, us", 1.2, self.added(AS_NOBODY), 3),
            at_most("faults lost", 0.0, any.then(|| all("lost").sum()), 0),
            at_most("counts differ from getrusage's by", 0.0, any.then_some(apart), 0),
            at_most("back ends' p50 in the kernel differ by, %", 5.0, spread, 1),
        ];
        goals.into_iter().chain(self.goals_of_accesses()).collect()
    }
}

impl Tables for Outcome {
    fn head(&self) -> (&'static str, &'static str) {
        (NAME, &FILE.title)
    }

    fn tables(&self) -> Vec<Table> {
        let rows = BACK_ENDS.map(|(arm, _)| {
            let middle = |figure, digits| shown(self.middle(FAULTS, arm, figure), digits);
            let sum = |figure| self.values(FAULTS, arm, figure).iter().sum::<f64>().to_string();
            vec![
                arm.to_owned(),
                middle("touch_p50_us", 3),
                shown(self.added(arm).filter(|_| arm != NATIVE), 3),
                middle("touch_mean_us", 3),
                middle("kernel_p50_ns", 0),
                middle("a_second", 0),
                sum("counted"),
                sum("lost"),
                self.why(FAULTS, arm).unwrap_or_default(),
            ]
        });
        let faults = Table::new(
            format!(
                "page faults: medians of {} runs, arms in random order",
                self.options.repetitions
            ),
            "arm|us a touch|added|mean|p50 in the kernel, ns|a second|faults|lost|",
            rows.to_vec(),
        );
        let goals = self.targets().into_iter().map(|(goal, most, here, digits, met)| {
            let verdict = met.map_or("not measured", |met| if met { "met" } else { "MISSED" });
            vec![goal, most, shown(here, digits), verdict.to_owned()]
        });
        let goals = Table::new("goals", "goal|at most|here|", goals);
        [faults].into_iter().chain(self.of_accesses()).chain([goals]).collect()
    }

    fn claims(&self) -> Vec<ClaimRow> {
        Vec::new()
    }

    fn goals(&self) -> Vec<bool> {
        self.targets().into_iter().filter_map(|(.., met)| met).collect()
    }

    fn json(&self) -> Value {
        let runs = self.finished.iter().map(|(cell, ran)| {
            let why = || self.why(&cell.case, cell.arm);
            json!({
                "case": cell.case, "arm": cell.arm, "repetition": cell.repetition,
                "figures": ran.as_ref().ok().map(|ran| &ran.metrics), "not_run": why(),
            })
        });
        let added = BACK_ENDS.iter().map(|(arm, _)| ((*arm).to_owned(), json!(self.added(arm))));
        json!({
            "schema": 3, "experiment": NAME, "class": self.options.runs().class,
            "added_us": Value::Object(added.collect()), "runs": runs.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run: case, arm and figures.
    type Came<'a> = (&'a str, &'static str, &'a [(&'a str, f64)]);

    /// What runs came to.
    pub(super) fn outcome(quick: bool, runs: &[Came<'_>]) -> Outcome {
        let finished = runs.iter().enumerate().map(|(at, (case, arm, figures))| {
            let case = (*case).to_owned();
            let cell = Cell { experiment: NAME.into(), case, arm, repetition: at as u32 + 1 };
            let metrics =
                figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            (cell, Ok(Ran { metrics, ..Ran::default() }))
        });
        Outcome { options: Options::new(quick, None, 1), finished: finished.collect() }
    }

    #[test]
    fn what_is_added_is_a_difference_of_medians_and_a_missed_goal_is_said() {
        let mut runs = Vec::new();
        let bare = [1.0, 1.2, 9.0].map(|touch| [("touch_p50_us", touch)]);
        let of = |touches: [f64; 3], kernel: f64| {
            touches.map(|touch| {
                let counts = [("counted", 10.0), ("accounted", 10.0), ("lost", 0.0)];
                [("touch_p50_us", touch), ("kernel_p50_ns", kernel)]
                    .into_iter()
                    .chain(counts)
                    .collect()
            })
        };
        let bpf: [Vec<_>; 3] = of([1.5, 1.4, 1.6], 1000.0);
        let perf: [Vec<_>; 3] = of([3.0, 2.9, 3.1], 1100.0);
        runs.extend(bare.iter().map(|run| (FAULTS, NATIVE, &run[..])));
        runs.extend(bpf.iter().map(|run| (FAULTS, "bpf-tracepoints", &run[..])));
        runs.extend(perf.iter().map(|run| (FAULTS, AS_NOBODY, &run[..])));
        let mut outcome = outcome(true, &runs);
        let cell =
            Cell { experiment: NAME.into(), case: FAULTS.into(), arm: "bpf-fexit", repetition: 1 };
        let refused = Ran { notes: vec!["refused".into()], ..Ran::default() };
        outcome.finished.push((cell, Ok(refused)));
        let goals = outcome.targets();
        let met: Vec<Option<bool>> = goals.iter().map(|goal| goal.4).collect();
        assert_eq!(met[..5], [true, false, true, true, false].map(Some), "{goals:?}");
        assert!(met[5..].iter().all(Option::is_none), "{goals:?}");
        assert!(goals[0].2.is_some_and(|added| (added - 0.3).abs() < 1e-9));
        assert!(goals[4].2.is_some_and(|spread| (spread - 10.0).abs() < 1e-9));
        assert_eq!(outcome.goals().into_iter().filter(|met| *met).count(), 3);
        assert!(outcome.text().contains("refused"), "{}", outcome.text());
    }

    #[test]
    fn each_arm_runs_in_turn_and_its_file_has_them_all() {
        let signals = pagemill_kernel::process::signal::Signals::block(&[]).unwrap();
        let (linux, executable) = (pagemill_kernel::Linux::live(), PathBuf::new());
        let stage = Stage { linux, executable, signals: &signals, every: Duration::ZERO };
        for (quick, count) in [(true, 3 * 7 + 2 + 1 + 9), (false, 6 * 7 + 6 + 1 + 45)] {
            let planned_cells =
                Costs::new(Options::new(quick, None, 1), &stage).unwrap().planned_cells();
            assert_eq!(planned_cells.len(), count);
            assert!(
                planned_cells
                    .iter()
                    .all(|planned| FILE.arms.iter().any(|arm| arm == planned.cell.arm))
            );
        }
        assert_eq!(FILE.name, NAME);
    }
}

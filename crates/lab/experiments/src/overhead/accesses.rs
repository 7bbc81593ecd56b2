//! What `record --with accesses` costs: the NAS kernels, single steps, and how long a large recording takes to make and
//! to open.
//!
//! ```text
//!  kernels   pagemill workload nas-…     alone, recorded, and with --budget 2, in turn; CPU time as the kernel tells it
//!  steps     pagemill workload steps     alone and recorded, in turn; the program times its own steps
//!  opening   pagemill generate recording, pagemill report --html
//! ```
//!
//! Always true: what a signal or a failure cut short keeps the runs that were whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use pagemill_analysis::statistics::median;
use pagemill_model::recording::Reader;
use serde_json::{Value, json};

use super::super::Table;
use super::{Bench, Ran, shown};

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Runs of each arm.
    pub(super) repetitions: u32,
    /// Class of the NAS kernels.
    pub(super) class: &'static str,
    /// The kernels.
    pub(super) kernels: &'static [&'static str],
    /// Scale of the program of single steps.
    pub(super) scale: &'static str,
    /// Accesses of the recording that is opened.
    pub(super) opened: u64,
}

/// How a kernel is recorded.
const ARMS: [(&str, &[&str]); 2] = [("recorded", &[]), ("with --budget 2", &["--budget", "2"])];

/// A recorded run of a kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    cpu: f64,
    accesses: u64,
    intervals: u64,
    lost: u64,
    /// On disk.
    bytes: u64,
}

#[derive(Debug, Default)]
struct Kernel {
    name: &'static str,
    native: Vec<f64>,
    arms: [Vec<Run>; ARMS.len()],
    /// Why there is no more.
    missing: Option<String>,
}

impl Kernel {
    fn slowdown(&self, arm: usize) -> Option<f64> {
        let of = |values: Vec<f64>| median(&values);
        Some(of(self.arms[arm].iter().map(|run| run.cpu).collect())? / median(&self.native)?)
    }

    fn middle(&self, arm: usize, what: impl Fn(&Run) -> u64) -> Option<f64> {
        let values: Vec<f64> = self.arms[arm].iter().map(|run| what(run) as f64).collect();
        median(&values)
    }
}

/// Metrics of the program of single steps.
type Metrics = BTreeMap<String, f64>;

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    options: Options,
    kernels: Vec<Kernel>,
    steps: [Vec<Metrics>; 2],
    /// Why there are no more steps.
    missing: Option<String>,
    /// Seconds to make and to open the recording.
    opened: Option<(f64, f64)>,
}

/// Bytes of all files in a directory and below.
fn bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

impl Outcome {
    pub(super) fn new(options: Options) -> Self {
        let kernel = |name: &&'static str| Kernel { name, ..Kernel::default() };
        let kernels = options.kernels.iter().map(kernel).collect();
        Self { options, kernels, steps: [Vec::new(), Vec::new()], missing: None, opened: None }
    }

    /// Runs all of it, into itself; whether a signal ended it early.
    pub(super) fn run(&mut self, bench: &Bench<'_>, say: &mut impl FnMut(&str)) -> Result<bool> {
        let Options { repetitions, class, scale, opened, .. } = self.options;
        for repetition in 0..repetitions {
            say(&format!("single steps, run {} of {repetitions}", repetition + 1));
            for (recorded, into) in self.steps.iter_mut().enumerate() {
                let mut command =
                    bench.recorded((recorded > 0).then_some(&["--access-interval", "10s"]));
                command.args(["workload", "steps", "--scale", scale]);
                match bench.once(command, &bench.recording())? {
                    Ran::Interrupted => return Ok(true),
                    Ran::Failed(why) => self.missing = Some(why),
                    Ran::Said(line) => into.push(metrics(&line)),
                }
            }
        }
        say(&format!("a recording of {opened} accesses"));
        let made = bench.room.join("made-up");
        let begun = Instant::now();
        let mut command = Command::new(&bench.executable);
        command.args(["generate", "recording", "--events", &opened.to_string(), "-o"]).arg(&made);
        if bench.output(command)?.is_none() {
            return Ok(true);
        }
        let making = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let mut command = Command::new(&bench.executable);
        command.arg("report").arg(&made).arg("--html").arg(bench.room.join("made-up.html"));
        if bench.output(command)?.is_none() {
            return Ok(true);
        }
        self.opened = Some((making, begun.elapsed().as_secs_f64()));
        std::fs::remove_dir_all(&made)?;
        for repetition in 0..repetitions {
            for kernel in &mut self.kernels {
                if kernel.missing.is_some() {
                    continue;
                }
                say(&format!(
                    "{}, class {class}, run {} of {repetitions}",
                    kernel.name,
                    repetition + 1
                ));
                if kernel.once(bench, class)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn metrics(line: &Value) -> Metrics {
    let all = line["metrics"].as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

impl Kernel {
    /// One run alone and of each arm; whether a signal ended it early.
    fn once(&mut self, bench: &Bench<'_>, class: &str) -> Result<bool> {
        let mut cpu = [0.0; ARMS.len() + 1];
        let mut runs = [Run::default(); ARMS.len()];
        for (at, cpu) in cpu.iter_mut().enumerate() {
            let arm = at.checked_sub(1);
            let mut command = bench.recorded(arm.map(|arm| ARMS[arm].1));
            command.args(["workload", self.name, "--threads", "1", "--class", class]);
            let line = match bench.once(command, &bench.recording())? {
                Ran::Interrupted => return Ok(true),
                Ran::Failed(why) => {
                    self.missing = Some(why);
                    return Ok(false);
                }
                Ran::Said(line) => line,
            };
            *cpu = line["cpu_seconds"].as_f64().context("the kernel told no CPU time")?;
            if let Some(arm) = arm {
                let reader = Reader::open(&bench.recording())?;
                let rows = |name| reader.meta().parts.get(name).map_or(0, |parts| parts.rows);
                runs[arm] = Run {
                    cpu: *cpu,
                    accesses: rows("accesses"),
                    intervals: rows("touched"),
                    lost: reader.meta().accesses.as_ref().map_or(0, |setup| setup.lost),
                    bytes: bytes(&bench.recording()),
                };
            }
        }
        self.native.push(cpu[0]);
        self.arms.iter_mut().zip(runs).for_each(|(arm, run)| arm.push(run));
        Ok(false)
    }
}

fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

/// Goal, limit, figure, digits, whether it is met.
pub(super) type Goal = (String, String, Option<f64>, usize, Option<bool>);

/// What Moca had of IS, class A, with wake-ups every 50 ms: accesses, and seconds of the run.
const MOCA: (f64, f64) = (89_000.0, 4.3);

impl Outcome {
    fn step(&self, recorded: usize, name: &str) -> Option<f64> {
        let values: Vec<f64> =
            self.steps[recorded].iter().filter_map(|run| run.get(name).copied()).collect();
        median(&values)
    }

    fn slowdowns(&self, arm: usize) -> Vec<f64> {
        self.kernels.iter().filter_map(|kernel| kernel.slowdown(arm)).collect()
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        let rows = self.kernels.iter().flat_map(|kernel| {
            ARMS.iter().enumerate().map(|(arm, (name, _))| {
                let events = kernel.middle(arm, |run| run.accesses);
                let size = kernel.middle(arm, |run| run.bytes);
                vec![
                    kernel.name.to_owned(),
                    (*name).to_owned(),
                    kernel.native.len().to_string(),
                    shown(median(&kernel.native), 3),
                    shown(kernel.slowdown(arm), 2),
                    shown(events, 0),
                    shown(kernel.middle(arm, |run| run.intervals), 0),
                    shown(size.zip(events).map(|(size, events)| size / events.max(1.0)), 1),
                    kernel.arms[arm].iter().map(|run| run.lost).sum::<u64>().to_string(),
                    kernel.missing.clone().unwrap_or_default(),
                ]
            })
        });
        let header = vec![
            "kernel",
            "",
            "runs",
            "native, CPU s",
            "times",
            "accesses",
            "intervals",
            "bytes each on disk",
            "lost",
            "",
        ];
        let class = self.options.class;
        let title = format!(
            "accesses of the NAS kernels, class {class}, one thread, intervals of 50 ms: medians"
        );
        let kernels = Table { title, header, rows: rows.collect() };
        let names: Vec<&String> =
            self.steps[0].first().into_iter().flatten().map(|of| of.0).collect();
        let rows = names.iter().map(|name| {
            let (native, recorded) = (self.step(0, name), self.step(1, name));
            let added = native.zip(recorded).map(|(native, recorded)| recorded - native);
            vec![(*name).clone(), shown(native, 2), shown(recorded, 2), shown(added, 2)]
        });
        let steps = Table {
            title: format!("single steps: medians of {} runs", self.steps[1].len()),
            header: vec!["step", "native", "recorded", "added"],
            rows: rows.chain(self.missing.iter().map(|why| vec![why.clone()])).collect(),
        };
        let opened = Table {
            title: format!("a recording of {} accesses", self.options.opened),
            header: vec!["", "seconds", "ns an access"],
            rows: self
                .opened
                .iter()
                .flat_map(|&(made, opened)| {
                    let each = made * 1e9 / self.options.opened as f64;
                    [
                        vec![
                            "made up, written and folded".into(),
                            shown(Some(made), 2),
                            shown(Some(each), 0),
                        ],
                        vec![
                            "opened: its page with the heat map".into(),
                            shown(Some(opened), 2),
                            String::new(),
                        ],
                    ]
                })
                .collect(),
        };
        vec![kernels, steps, opened]
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let at_most = |goal: &str, most: f64, here: Option<f64>, digits| {
            (goal.to_owned(), format!("{most}"), here, digits, here.map(|here| here <= most))
        };
        let at_least = |goal: &str, least: f64, here: Option<f64>| {
            let limit = format!("at least {least:.0}");
            (goal.to_owned(), limit, here, 0, here.map(|here| here >= least))
        };
        let added = |name| Some(self.step(1, name)? - self.step(0, name)?);
        let worst = |arm| self.slowdowns(arm).into_iter().reduce(f64::max);
        let runs = || self.kernels.iter().flat_map(|kernel| kernel.arms.iter().flatten());
        let lost = runs().map(|run| run.lost).sum::<u64>();
        let bytes =
            runs().filter(|run| run.accesses > 0).map(|run| run.bytes as f64 / run.accesses as f64);
        let is =
            self.kernels.iter().find(|kernel| kernel.name == "nas-is" && self.options.class == "A");
        let accesses = is.and_then(|is| is.middle(0, |run| run.accesses));
        let wake_ups = is.and_then(|is| is.middle(0, |run| run.intervals));
        vec![
            at_most(
                "accesses: times native, geometric mean",
                1.8,
                geometric_mean(&self.slowdowns(0)),
                2,
            ),
            at_most("accesses: times native, worst", 4.0, worst(0), 2),
            at_most("accesses: times native with --budget 2, worst", 2.0, worst(1), 2),
            at_most("accesses lost", 0.0, runs().next().map(|_| lost as f64), 0),
            at_most("bytes an access on disk, worst", 16.0, bytes.reduce(f64::max), 1),
            at_least(
                "IS class A: accesses (three times Moca's, same length of interval)",
                3.0 * MOCA.0,
                accesses,
            ),
            at_least(
                "IS class A: accesses a wake-up (three times Moca's)",
                3.0 * MOCA.0 / (MOCA.1 / 0.05),
                accesses.zip(wake_ups).map(|(accesses, wake_ups)| accesses / wake_ups.max(1.0)),
            ),
            at_most("told of a fault, ns over the bare fault", 150.0, added("fault_again_ns"), 0),
            at_most("start of a program, ms more", 10.0, added("start_ms"), 2),
            at_most("mmap and munmap, us", 10.0, self.step(1, "map_and_unmap_us"), 1),
            at_most("note of a small block, ns a call", 60.0, added("small_block_call_ns"), 0),
            at_most("note of a large block, ns a call", 60.0, added("large_block_call_ns"), 0),
            at_most("a large recording opens, s", 3.0, self.opened.map(|opened| opened.1), 2),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let run = |run: &Run| {
            json!({
                "cpu_seconds": run.cpu, "accesses": run.accesses, "intervals": run.intervals,
                "lost": run.lost, "bytes": run.bytes,
            })
        };
        let kernels = self.kernels.iter().map(|kernel| {
            json!({
                "kernel": kernel.name, "not_run": kernel.missing, "cpu_seconds": kernel.native,
                "recorded": kernel.arms[0].iter().map(run).collect::<Vec<_>>(),
                "within_budget": kernel.arms[1].iter().map(run).collect::<Vec<_>>(),
            })
        });
        json!({
            "class": self.options.class,
            "kernels": kernels.collect::<Vec<_>>(),
            "steps": { "native": self.steps[0], "recorded": self.steps[1], "not_run": self.missing },
            "opened": self.opened.map(|(made, opened)| json!({
                "accesses": self.options.opened, "made_seconds": made, "opened_seconds": opened,
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_are_of_medians_and_goals_say_what_is_missed() {
        let options =
            Options { repetitions: 1, class: "A", kernels: &["nas-is"], scale: "1", opened: 1 };
        let mut outcome = Outcome::new(options);
        assert!(outcome.goals().iter().all(|goal| goal.4.is_none()), "{:?}", outcome.goals());
        let run = |cpu| Run { cpu, accesses: 100_000, intervals: 10, lost: 0, bytes: 700_000 };
        let kernel = &mut outcome.kernels[0];
        kernel.native = vec![1.0, 2.0, 9.0];
        kernel.arms = [vec![run(3.0)], vec![run(5.0)]];
        outcome.steps[0].push([("map_and_unmap_us".into(), 3.0)].into());
        outcome.steps[1].push([("map_and_unmap_us".into(), 9.0)].into());
        let goals = outcome.goals();
        let of = |start: &str| goals.iter().find(|goal| goal.0.starts_with(start)).unwrap();
        assert_eq!(of("accesses: times native, geometric mean").2, Some(1.5));
        assert_eq!(of("accesses: times native with --budget").4, Some(false));
        assert_eq!(of("bytes an access").2, Some(7.0));
        assert_eq!(of("IS class A: accesses (").4, Some(false));
        assert_eq!(of("IS class A: accesses a wake-up").4, Some(true));
        assert_eq!(of("mmap and munmap").4, Some(true));
        assert_eq!(of("start of a program").4, None);
        assert_eq!(outcome.tables()[0].rows[0][4], "1.50");
    }
}

//! `moca`: what complete traces of memory accesses cost and find, on the kernels that Moca and its rivals were
//! compared on (Beniamine et al., 2016; per-kernel figures from the author's thesis).
//!
//! Each kernel runs as it is and under each back end in turn, as a process of its own. *Slowdown* is CPU time of
//! the program by CPU time of the same run untraced; both are told by the program itself, so the tracer's own time is not in
//! it. *Events* are recorded accesses, *pages* distinct pages. The sweep runs IS with intervals of the published
//! lengths. The second interval of the original, after which its log is emptied, has no counterpart: events
//! leave through a ring that is emptied all the time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagemill_analysis::statistics::median;
use pagemill_kernel::signal::Signals;
use serde_json::{Value, json};

use super::Table;
use crate::report::chart::{Heat, HeatMap};
use crate::report::html::Page;
use crate::summary;

/// Its name on the command line.
pub const NAME: &str = "moca";

/// What it is, in a line.
pub const TITLE: &str =
    "cost and completeness of access traces on NAS kernels (Moca, TABARNAC, Mitos, MemProf)";

const PUBLISHED: &str = include_str!("../../../../experiments/published/moca.csv");

/// The kernels that are built in, in the order of the published figures.
const KERNELS: [&str; 5] = ["cg", "ep", "ft", "is", "mg"];

/// Tools whose slowdown was published.
const TOOLS: [&str; 5] = ["Moca", "MocaPin", "TABARNAC", "Mitos", "MemProf"];

/// Lengths of an interval in the published sweep, ms.
const SWEEP: [u64; 3] = [20, 50, 100];

/// Back ends: name here, and the arguments that choose it.
const BACK_ENDS: [(&str, &[&str]); 1] = [("faults", &[])];

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    repetitions: u32,
    class: &'static str,
    threads: usize,
}

impl Options {
    /// Class A, or W to be quick.
    pub fn new(quick: bool, repetitions: Option<u32>) -> Self {
        let class = if quick { "W" } else { "A" };
        Self { repetitions: repetitions.unwrap_or(if quick { 1 } else { 3 }), class, threads: 1 }
    }
}

/// One run under a back end.
#[derive(Clone, Debug)]
struct Traced {
    cpu: f64,
    events: u64,
    pages: u64,
    lost: u64,
}

/// A kernel, untraced and under one back end.
#[derive(Clone, Debug)]
struct Row {
    kernel: &'static str,
    back_end: &'static str,
    native: Vec<f64>,
    traced: Vec<Traced>,
}

/// IS with one length of interval.
#[derive(Clone, Debug)]
struct Step {
    interval: u64,
    native: f64,
    traced: Traced,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    options: Options,
    rows: Vec<Row>,
    sweep: Vec<Step>,
    events_by: String,
    /// Whether a signal ended it early.
    pub interrupted: bool,
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
        found.then(|| fields[4].parse().ok()).flatten()
    })
}

fn geomean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
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
    fn workload(&self, kernel: &str, class: &str, threads: usize) -> Vec<String> {
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
        interval: u64,
        workload: &[String],
    ) -> Result<Result<(Traced, String), String>> {
        let recording = self.room.path().join("recording");
        let interval = format!("{interval}ms");
        let mut command = Command::new(self.executable);
        command.args(["record", "--with", "accesses", "--access-interval", &interval, "-f", "-o"]);
        command.arg(&recording).args(back_end).arg("--").arg(self.executable).args(workload);
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
            lost: setup.lost,
        };
        Ok(Ok((traced, setup.back_end)))
    }

    fn ended(&self) -> Result<bool> {
        Ok(self.signals.wait(Duration::ZERO)?.is_some())
    }
}

/// Runs it; `say` hears of each step. The inner error: accesses cannot be traced here, and why.
pub fn run(
    executable: &Path,
    options: Options,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Result<Outcome, String>> {
    let stage = Stage { executable, signals, room: tempfile::tempdir()? };
    let mut outcome = Outcome {
        options,
        rows: Vec::new(),
        sweep: Vec::new(),
        events_by: String::new(),
        interrupted: false,
    };
    for kernel in KERNELS {
        let workload = stage.workload(kernel, options.class, options.threads);
        let mut native = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        for repetition in 0..options.repetitions {
            if stage.ended()? {
                outcome.interrupted = true;
                return Ok(Ok(outcome));
            }
            say(&format!("{kernel}, class {}, run {}", options.class, repetition + 1));
            native.push(stage.native(&workload)?);
            for (at, (back_end, arguments)) in BACK_ENDS.into_iter().enumerate() {
                let (traced, by) = match stage.traced(arguments, 50, &workload)? {
                    Ok(traced) => traced,
                    Err(why) => return Ok(Err(why)),
                };
                outcome.events_by = by;
                match rows.get_mut(at) {
                    Some(row) => row.traced.push(traced),
                    None => rows.push(Row {
                        kernel,
                        back_end,
                        native: Vec::new(),
                        traced: vec![traced],
                    }),
                }
            }
        }
        rows.iter_mut().for_each(|row| row.native.clone_from(&native));
        outcome.rows.extend(rows);
    }
    let workload = stage.workload("is", "A", options.threads);
    for interval in SWEEP {
        if stage.ended()? {
            outcome.interrupted = true;
            break;
        }
        say(&format!("is, class A, intervals of {interval} ms"));
        let native = stage.native(&workload)?;
        if let Ok((traced, _)) = stage.traced(&[], interval, &workload)? {
            outcome.sweep.push(Step { interval, native, traced });
        }
    }
    Ok(Ok(outcome))
}

fn ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

fn count(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

impl Outcome {
    fn slowdowns(&self) -> Table {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in &self.rows {
            let mut cells =
                vec![row.kernel.to_uppercase(), row.back_end.to_owned(), ratio(row.slowdown())];
            cells.extend(TOOLS.map(|tool| ratio(published("slowdown", row.kernel, tool))));
            rows.push(cells);
        }
        let mut cells = vec!["geometric mean".to_owned(), String::new()];
        cells.push(ratio(geomean(self.rows.iter().filter_map(Row::slowdown))));
        cells.extend(TOOLS.map(|tool| {
            ratio(geomean(
                self.rows.iter().filter_map(|row| published("slowdown", row.kernel, tool)),
            ))
        }));
        rows.push(cells);
        let mut header = vec!["kernel", "back end", "here"];
        header.extend(TOOLS);
        let Options { class, threads, repetitions } = self.options;
        let title = format!(
            "slowdown: here class {class}, {threads} thread, medians of {repetitions}; published class A, 8 threads"
        );
        Table { title, header, rows }
    }

    /// The tables.
    pub fn tables(&self) -> Vec<Table> {
        let found = self.rows.iter().map(|row| {
            let second = row.traced.iter().map(|run| run.events as f64 / run.cpu);
            let lost: u64 = row.traced.iter().map(|run| run.lost).sum();
            let share = |experiment, tool| ratio(published(experiment, row.kernel, tool));
            vec![
                row.kernel.to_uppercase(),
                row.back_end.to_owned(),
                count(row.pages()),
                count(row.events()),
                count(of(second)),
                lost.to_string(),
                share("pages", "Moca"),
                share("pages", "Mitos"),
                share("pages", "MemProf"),
                share("events", "Mitos"),
                share("events", "MemProf"),
            ]
        });
        let found = Table {
            title:
                "pages and events here; published: pages in % of TABARNAC's, events in % of Moca's"
                    .into(),
            header: vec![
                "kernel",
                "back end",
                "pages",
                "events",
                "events/s",
                "lost",
                "pages: Moca",
                "Mitos",
                "MemProf",
                "events: Mitos",
                "MemProf",
            ],
            rows: found.collect(),
        };
        let sweep = self.sweep.iter().map(|step| {
            let subject = format!("{} ms", step.interval);
            vec![
                subject.clone(),
                step.traced.events.to_string(),
                format!("{:.2}", step.traced.cpu / step.native),
                count(published("sweep", &subject, "events")),
                ratio(published("sweep", &subject, "time")),
            ]
        });
        let sweep = Table {
            title: "IS, class A, by length of an interval (monitor wake-up); the log wake-up has no counterpart here".into(),
            header: vec!["interval", "events here", "slowdown here", "events of Moca", "seconds of Moca"],
            rows: sweep.collect(),
        };
        let claims = Table {
            title: "what was published, and whether it is so here".into(),
            header: vec!["claim", "published", "here", ""],
            rows: self.claims(),
        };
        vec![self.slowdowns(), found, sweep, claims]
    }

    fn claims(&self) -> Vec<Vec<String>> {
        let verdict = |holds: bool| if holds { "so here" } else { "not so here" }.to_owned();
        let mut rows = Vec::new();
        let slow: Vec<(&str, f64)> =
            self.rows.iter().filter_map(|row| Some((row.kernel, row.slowdown()?))).collect();
        let least = slow.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let most = slow.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(least), Some(most)) = (least, most)
            && slow.len() == KERNELS.len()
        {
            let word = |(kernel, slowdown): &(&str, f64)| {
                format!("{} {slowdown:.2}", kernel.to_uppercase())
            };
            rows.push(vec![
                "a complete trace costs EP least".into(),
                "EP 1.08".into(),
                word(least),
                verdict(least.0 == "ep"),
            ]);
            rows.push(vec![
                "and MG most".into(),
                "MG 617.80".into(),
                word(most),
                verdict(most.0 == "mg"),
            ]);
        }
        if let [short, default, ..] = self.sweep.as_slice() {
            let (few, many) = (default.traced.events, short.traced.events);
            let published = |subject| published("sweep", subject, "events").unwrap_or(0.0);
            rows.push(vec![
                "50 ms give more than two thirds of the events of shorter intervals".into(),
                format!("{:.0} of {:.0}", published("50 ms"), published("20 ms")),
                format!("{few} of {many}"),
                verdict(few * 3 > many * 2),
            ]);
        }
        if let Some(step) = self.sweep.iter().find(|step| step.interval == 50) {
            let theirs = published("sweep", "50 ms", "events").unwrap_or(0.0);
            let times = step.traced.events as f64 / theirs;
            rows.push(vec![
                "events of IS at 50 ms, and our goal of three times as many".into(),
                format!("{theirs:.0}"),
                format!("{}, {times:.1} times", step.traced.events),
                if times >= 3.0 { "goal met" } else { "goal missed" }.into(),
            ]);
        }
        rows
    }

    /// Tables and the figure as one HTML page.
    pub fn html(&self) -> String {
        let mut page = Page::new("pagemill reproduce moca");
        page.paragraph(TITLE);
        let Table { header, rows, .. } = self.slowdowns();
        let cell = |text: String| {
            // 1 has no colour, 1000 all of it.
            let shade = text.parse::<f64>().map_or(f64::NAN, |slowdown| slowdown.log10() / 3.0);
            Heat { text, shade }
        };
        let chart = HeatMap {
            title: "slowdown, by powers of ten".into(),
            columns: header[2..].iter().map(|name| (*name).to_owned()).collect(),
            rows: rows
                .into_iter()
                .map(|mut row| {
                    let cells = row.split_off(2).into_iter().map(cell).collect();
                    (row.join(" "), cells)
                })
                .collect(),
        };
        page.chart(&chart.svg());
        for Table { title, header, rows } in self.tables() {
            page.heading(&title).table(&header, &rows);
        }
        page.finish()
    }

    /// One row a run.
    pub fn csv(&self) -> String {
        let mut out = "kernel,class,threads,back_end,interval_ms,repetition,native_cpu_s,cpu_s,events,pages,lost\n".to_owned();
        let Options { class, threads, .. } = self.options;
        let line = |kernel: &str,
                    class: &str,
                    back_end: &str,
                    interval: u64,
                    at: usize,
                    native: f64,
                    run: &Traced| {
            let Traced { cpu, events, pages, lost } = run;
            format!(
                "{kernel},{class},{threads},{back_end},{interval},{at},{native:.6},{cpu:.6},{events},{pages},{lost}\n"
            )
        };
        for row in &self.rows {
            for (at, (native, run)) in row.native.iter().zip(&row.traced).enumerate() {
                out += &line(row.kernel, class, row.back_end, 50, at + 1, *native, run);
            }
        }
        for step in &self.sweep {
            out += &line("is", "A", "faults", step.interval, 1, step.native, &step.traced);
        }
        out
    }

    /// Every figure.
    pub fn json(&self) -> Value {
        let traced = |run: &Traced| json!({ "cpu_seconds": run.cpu, "events": run.events, "pages": run.pages, "lost": run.lost });
        let rows = self.rows.iter().map(|row| {
            let theirs = |tool| (tool, published("slowdown", row.kernel, tool));
            json!({
                "kernel": row.kernel, "back_end": row.back_end, "native_cpu_seconds": row.native,
                "traced": row.traced.iter().map(traced).collect::<Vec<_>>(), "slowdown": row.slowdown(),
                "published_slowdown": TOOLS.map(theirs).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            })
        });
        let sweep = self.sweep.iter().map(|step| {
            json!({ "interval_ms": step.interval, "native_cpu_seconds": step.native, "traced": traced(&step.traced) })
        });
        json!({
            "schema": 1, "experiment": NAME, "interrupted": self.interrupted, "class": self.options.class,
            "threads": self.options.threads, "events_by": self.events_by,
            "kernels": rows.collect::<Vec<_>>(), "sweep": sweep.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let traced = |cpu: f64, events: u64| Traced { cpu, events, pages: 7, lost: 0 };
        let row = |(at, kernel): (usize, &&'static str)| Row {
            kernel,
            back_end: "faults",
            native: vec![1.0],
            traced: vec![traced(1.0 + at as f64, 100)],
        };
        let step = |interval: u64| Step {
            interval,
            native: 1.0,
            traced: traced(1.5, 30_000_000 / interval),
        };
        Outcome {
            options: Options::new(true, None),
            rows: KERNELS.iter().enumerate().map(row).collect(),
            sweep: SWEEP.map(step).to_vec(),
            events_by: "bpf".into(),
            interrupted: false,
        }
    }

    #[test]
    fn the_published_figures_of_every_kernel_are_found() {
        for kernel in KERNELS {
            for tool in TOOLS {
                assert!(published("slowdown", kernel, tool).is_some(), "{kernel} {tool}");
            }
            assert!(published("pages", kernel, "Moca").is_some_and(|share| share > 99.0));
        }
        assert_eq!(published("slowdown", "mg", "Moca"), Some(617.8));
        assert_eq!(published("sweep", "50 ms", "events"), Some(89000.0));
    }

    #[test]
    fn what_is_not_so_here_is_said() {
        let outcome = outcome();
        let claims = outcome.claims();
        let verdict = |at: usize| claims[at].last().unwrap().as_str();
        // CG was least; MG, the last, most. 600,000 of 1,500,000 events; 6.7 times as many as Moca.
        assert_eq!((verdict(0), verdict(1)), ("not so here", "so here"));
        assert_eq!((verdict(2), verdict(3)), ("not so here", "goal met"));
        assert!(super::super::as_text(NAME, TITLE, &outcome.tables()).contains("617.80"));
        assert_eq!(outcome.csv().lines().count(), 1 + 5 + 3);
    }
}

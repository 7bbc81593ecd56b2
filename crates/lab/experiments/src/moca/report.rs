//! What came of `moca`, as tables, a figure, CSV and JSON, and each published claim in words.

use serde_json::{Value, json};

use super::kept::write;
use super::{
    DEFAULT, EXACT, FAULTS, FILE, KernelRow, NAME, NAMES, Outcome, SAMPLE, SOURCE, Step, TOOLS,
    Traced, kernels, published,
};
use crate::claim::{ClaimRow, met};
use crate::coverage;
use crate::tabled::{CLAIMS, Table, Tables};
use pagemill_analysis::statistics;
use pagemill_model::page::BASE;
use pagemill_report::draw::chart::Svg;
use pagemill_report::draw::chart::{Heat, HeatMap};

const READING: &str = "\
Slowdown is CPU time by that of the same run untraced. Published figures are of class A with 8 threads on other \
                       machines: how \
tools compare on one of them can be held against how back ends compare here, absolute figures cannot.";

fn ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

fn count(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

fn geomean(values: impl Iterator<Item = f64>) -> Option<f64> {
    statistics::geomean(&values.collect::<Vec<_>>())
}

/// A claim of the publication in its own words.
fn in_words(subject: &str, metric: &str) -> &'static str {
    coverage::figure(&SOURCE, "in words", subject, metric).unwrap_or("-")
}

/// The published tools that sample accesses.
const SAMPLERS: [&str; 2] = ["Mitos", "MemProf"];

/// One claim: what was said, what was published, and what is here with whether it holds, or why it cannot be told.
fn claim(said: &str, theirs: String, told: Result<(String, bool), String>) -> ClaimRow {
    ClaimRow::new(said, theirs, told.map(|(ours, holds)| (ours, holds, false)))
}

/// The kernels that ran under a back end with their slowdown, or why a claim about them cannot be told.
type KernelSlowdowns = Result<Vec<(&'static str, f64)>, String>;

/// The slowdown that was published of a kernel under a tool.
fn published_slowdown(kernel: &str, tool: &str) -> f64 {
    published("slowdown", kernel, tool).unwrap_or(f64::NAN)
}

/// The least and the most that was published of some kernels under some tools.
fn range(experiment: &str, kernels: &[&str], tools: &[&str], digits: usize) -> String {
    let all = kernels
        .iter()
        .flat_map(|kernel| tools.iter().filter_map(|tool| published(experiment, kernel, tool)));
    let ends = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    match all.map(|value| (value, value)).reduce(|so_far, (value, _)| ends(so_far, value)) {
        Some((low, high)) => format!("{low:.digits$} to {high:.digits$}"),
        None => "-".to_owned(),
    }
}

/// A kernel and its slowdown.
fn word((kernel, slowdown): &(&str, f64)) -> String {
    format!("{} {slowdown:.2}", kernel.to_uppercase())
}

/// What ran, if each of these kernels did: of others no claim about them is told.
fn each<'a>(
    kernels: &[&str],
    ran: &'a KernelSlowdowns,
) -> Result<&'a [(&'static str, f64)], String> {
    let ran = ran.as_ref().map_err(String::clone)?;
    let lacks = |kernel: &&&str| ran.iter().all(|one| one.0 != **kernel);
    let lacking: Vec<&str> = kernels.iter().filter(lacks).copied().collect();
    match lacking.as_slice() {
        [] => Ok(ran),
        some => Err(format!("these kernels have not run: {}", some.join(" ").to_uppercase())),
    }
}

/// Which kernels, of all there are, a complete trace slows down least and most.
fn claims_of_faults(faults: &KernelSlowdowns, rows: &mut Vec<ClaimRow>) {
    let order = |a: &&(&str, f64), b: &&(&str, f64)| a.1.total_cmp(&b.1);
    let all = each(&kernels(), faults);
    let is = |kernel: &str, one: Option<&(&str, f64)>| {
        let one = one.ok_or("no kernel has run")?;
        Ok((word(one), one.0 == kernel))
    };
    let least = all.clone().and_then(|ran| is("ep", ran.iter().min_by(order)));
    let theirs = |kernel| word(&(kernel, published_slowdown(kernel, "Moca")));
    rows.push(claim("a complete trace costs EP least", theirs("ep"), least));
    let most = all.and_then(|ran| is("mg", ran.iter().max_by(order)));
    rows.push(claim("and MG most", theirs("mg"), most));
}

/// Where a complete trace is faster and slower than a tool that sees every access: of kernels that a claim names, those
/// that this run has.
fn claims_beside_emulator(
    asked: &[&'static str],
    faults: &KernelSlowdowns,
    exact: &KernelSlowdowns,
    rows: &mut Vec<ClaimRow>,
) {
    let compared = |kernels: &[&'static str], slower: bool| {
        let some: Vec<_> = kernels.iter().filter(|one| asked.contains(one)).copied().collect();
        let some = if some.is_empty() { kernels } else { &some };
        let (faults, exact) = (each(some, faults)?, each(some, exact)?);
        let pick =
            |of: &[(&str, f64)], kernel| of.iter().find(|one| one.0 == kernel).map(|one| one.1);
        let here = some.iter().filter_map(|kernel| {
            Some((kernel.to_uppercase(), pick(faults, *kernel)?, pick(exact, *kernel)?))
        });
        let here: Vec<(String, f64, f64)> = here.collect();
        let text = here.iter().map(|(kernel, a, b)| format!("{kernel} {a:.2} against {b:.1}"));
        let mut text = text.collect::<Vec<_>>().join(", ");
        if here.len() < kernels.len() {
            text += &format!("; {} of {} kernels have run", here.len(), kernels.len());
        }
        Ok((text, here.iter().all(|(_, a, b)| (a > b) == slower && a != b)))
    };
    let words: Vec<&str> = in_words("Moca beside TABARNAC", "slowdown").split("; ").collect();
    let published = |at: usize, kernels: &[&str]| {
        let text = kernels.iter().map(|kernel| {
            let (a, b) =
                (published_slowdown(kernel, "Moca"), published_slowdown(kernel, "TABARNAC"));
            format!("{} {a:.2} against {b:.1}", kernel.to_uppercase())
        });
        let said = words.get(at).copied().unwrap_or("-");
        format!("{said}: {}", text.collect::<Vec<_>>().join(", "))
    };
    let claims = [
        (
            "much faster than a tool that sees every access: BT CG DC EP LU SP UA",
            &["bt", "cg", "dc", "ep", "lu", "sp", "ua"][..],
            false,
        ),
        ("as good as it, or a bit faster: IS", &["is"], false),
        // Its figures say so of FT, too, not its words.
        ("slower than it: FT MG", &["ft", "mg"], true),
    ];
    for (at, (said, kernels, slower)) in claims.into_iter().enumerate() {
        rows.push(claim(said, published(at, kernels), compared(kernels, slower)));
    }
}

impl Outcome {
    fn rows_of(&self, back_end: &str) -> impl Iterator<Item = &KernelRow> {
        self.rows.iter().filter(move |row| row.back_end == back_end && !row.traced.is_empty())
    }

    /// The kernels of this run.
    fn kernels(&self) -> &[&'static str] {
        &self.options.kernels
    }

    /// KernelRow of a kernel under a back end, in the class of most runs and the first number of threads.
    fn row(&self, kernel: &str, back_end: &str) -> Option<&KernelRow> {
        self.rows_of(back_end).find(|row| row.kernel == kernel)
    }

    fn slowdown(&self, kernel: &str, back_end: &str) -> Option<f64> {
        self.row(kernel, back_end)?.slowdown()
    }

    /// Of the kernels that have run with so many threads, as far as there are any.
    fn mean_slowdown(&self, back_end: &str, threads: usize) -> Option<f64> {
        let first = |kernel: &&str| {
            let mut rows = self.rows_of(back_end);
            rows.find(|row| row.kernel == *kernel && row.threads == threads)?.slowdown()
        };
        geomean(self.kernels().iter().filter_map(first))
    }

    /// Pages of a row in percent of those that the emulator saw in the same class.
    fn share_of_pages(&self, row: &KernelRow) -> Option<f64> {
        let exact = self.rows_of(EXACT).find(|exact| {
            exact.kernel == row.kernel && exact.class == row.class && exact.back_end != row.back_end
        })?;
        Some(row.pages()? * 100.0 / exact.pages()?)
    }

    /// Events of a row in percent of those of `faults`.
    fn share_of_events(&self, row: &KernelRow) -> Option<f64> {
        let same =
            |faults: &&KernelRow| (faults.kernel, faults.threads) == (row.kernel, row.threads);
        let faults = self.rows_of(FAULTS).find(same)?;
        let comparable = row.back_end != FAULTS && row.class == faults.class;
        comparable.then(|| Some(row.events()? * 100.0 / faults.events()?)).flatten()
    }

    fn slowdowns(&self) -> Table {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.traced.is_empty()) {
            let kernel = row.kernel.to_uppercase();
            let threads = row.threads.to_string();
            let mut cells = vec![kernel, row.class.into(), threads, row.back_end.to_owned()];
            cells.extend([ratio(of_native(row)), ratio(row.slowdown())]);
            cells.extend(TOOLS.map(|tool| ratio(published("slowdown", row.kernel, tool))));
            rows.push(cells);
        }
        let means = self.options.threads.iter().flat_map(|threads| {
            [FAULTS, NAMES, EXACT, SAMPLE].map(|back_end| (*threads, back_end))
        });
        for (threads, back_end) in means {
            let Some(mean) = self.mean_slowdown(back_end, threads) else { continue };
            let mut cells = vec!["geometric mean".to_owned(), String::new(), threads.to_string()];
            cells.push(back_end.to_owned());
            cells.extend([String::new(), format!("{mean:.2}")]);
            cells.extend(TOOLS.map(|tool| {
                ratio(geomean(
                    self.kernels().iter().filter_map(|kernel| published("slowdown", kernel, tool)),
                ))
            }));
            rows.push(cells);
        }
        let mut header = vec!["kernel", "class", "threads", "back end", "native s", "here"];
        header.extend(TOOLS);
        let title = format!(
            "slowdown: here medians of {}; published class A, 8 threads",
            self.options.repetitions
        );
        Table { title, header, rows }
    }

    fn found(&self) -> Table {
        let rows = self.rows.iter().filter(|row| !row.traced.is_empty()).map(|row| {
            let second = row.traced.iter().map(|run| run.events as f64 / run.cpu);
            let lost: u64 = row.traced.iter().map(|run| run.lost).sum();
            let share = |experiment, tool| ratio(published(experiment, row.kernel, tool));
            vec![
                row.kernel.to_uppercase(),
                row.class.into(),
                row.threads.to_string(),
                row.back_end.to_owned(),
                count(row.pages()),
                ratio(self.share_of_pages(row)),
                count(row.events()),
                ratio(self.share_of_events(row)),
                count(super::of(second)),
                lost.to_string(),
                share("pages", "Moca"),
                share("pages", "Mitos"),
                share("pages", "MemProf"),
                share("events", "Mitos"),
                share("events", "MemProf"),
                count(row.pages().map(|pages| pages * BASE as f64 / f64::from(1 << 20))),
                count(match row.class {
                    "A" => published("footprint", row.kernel, "maximum memory"),
                    _ => None,
                }),
            ]
        });
        Table::new(
            "pages, in % of those of the emulator, and events, in % of those of faults; published: in % of \
             TABARNAC's, and of Moca's",
            "kernel|class|threads|back end|pages|%|events|%|events/s|lost|pages: Moca|Mitos|MemProf|events: \
             Mitos|MemProf|MiB|class A, all its memory",
            rows,
        )
    }

    fn validated(&self) -> Table {
        let rows = self.checked.iter().map(|one| {
            let mut cells = vec![one.kernel.to_uppercase(), one.touched.exact.to_string()];
            for found in
                [one.touched, one.written, one.touched_in_intervals, one.written_in_intervals]
            {
                cells.push(format!("{:.2}", found.share()));
                cells.push(found.extra.to_string());
            }
            cells.push(ratio(published("pages", one.kernel, "Moca")));
            cells
        });
        let title = format!(
            "pages of faults held against the emulator's account of the same run, class {}: % found, and extra ones",
            self.options.smaller
        );
        Table::new(
            title,
            "kernel|pages|touched %|extra|written %|extra|in intervals: touched %|extra|written %|extra|Moca: \
             touched %",
            rows,
        )
    }

    fn sweep_table(&self) -> Table {
        let rows = self.sweep.iter().map(|step| {
            let Traced { events, intervals, lost, .. } = step.traced;
            let subject = format!("{:.0} ms", step.monitor);
            let theirs = |metric| published("sweep", &subject, metric);
            vec![
                format!("{:.1} ms", step.monitor),
                format!("{} ms", step.log),
                intervals.to_string(),
                events.to_string(),
                count(Some(events as f64 / intervals.max(1) as f64)),
                lost.to_string(),
                ratio(Some(step.traced.cpu / step.native)),
                count(Self::wake_ups(&subject)),
                count(theirs("events")),
                count(theirs("events").zip(Self::wake_ups(&subject)).map(|(all, by)| all / by)),
                ratio(theirs("time")),
            ]
        });
        Table::new(
            "IS, class A, by the two wake-up intervals; ours are useful time, Moca's time by the clock",
            "monitor|log|wake-ups|events|a wake-up|lost|slowdown|Moca: wake-ups|events|a wake-up|seconds",
            rows,
        )
    }

    /// How often Moca woke up in its run of IS.
    fn wake_ups(monitor: &str) -> Option<f64> {
        let length: f64 = monitor.strip_suffix(" ms")?.parse().ok()?;
        Some(published("sweep", monitor, "time")? * 1e3 / length)
    }

    /// The kernels that ran under a back end, with their slowdown.
    fn slowdowns_of(&self, back_end: &str) -> Vec<(&'static str, f64)> {
        let known = self.kernels().iter();
        known.filter_map(|kernel| Some((*kernel, self.slowdown(kernel, back_end)?))).collect()
    }

    /// The same, if that is all of them.
    fn ran(&self, back_end: &str) -> KernelSlowdowns {
        let (ran, all) = (self.slowdowns_of(back_end), self.kernels().len());
        if ran.len() == all && all > 0 {
            return Ok(ran);
        }
        Err(self
            .why(back_end)
            .unwrap_or_else(|| format!("of {all} kernels {} have run under {back_end}", ran.len())))
    }

    /// Why something was skipped.
    fn why(&self, what: &str) -> Option<String> {
        let mut skipped = self.skipped.iter();
        Some(skipped.find_map(|line| line.strip_prefix(what)?.strip_prefix(": "))?.to_owned())
    }

    /// What samples miss of a complete trace.
    fn claims_of_samples(&self, rows: &mut Vec<ClaimRow>) {
        let shares: Vec<f64> =
            self.rows_of(SAMPLE).filter_map(|row| self.share_of_pages(row)).collect();
        let none = || {
            let why = self.why(SAMPLE).or_else(|| self.why(EXACT));
            why.unwrap_or_else(|| format!("no kernel has run under {SAMPLE} and a complete trace"))
        };
        let told = |words: Vec<String>, holds: bool| match words.as_slice() {
            [] => Err(none()),
            words => Ok((words.join(", "), holds)),
        };
        let few = shares.iter().filter(|share| **share < 50.0).count();
        let words = shares.iter().map(|share| format!("{share:.1} %")).collect();
        rows.push(claim(
            "samples miss most pages of most kernels",
            format!(
                "Mitos {}; MemProf {}: {} %",
                in_words("Mitos", "pages"),
                in_words("MemProf", "pages"),
                range("pages", self.kernels(), &SAMPLERS, 1)
            ),
            told(words, few * 2 > shares.len()),
        ));
        let shares: Vec<(&str, f64)> = self
            .rows_of(SAMPLE)
            .filter_map(|row| Some((row.kernel, self.share_of_events(row)?)))
            .collect();
        let few = shares.iter().filter(|one| one.0 == "ep" || one.1 <= 10.0).count();
        let words = shares.iter().map(|one| format!("{} {:.1} %", one.0.to_uppercase(), one.1));
        rows.push(claim(
            "and have hardly 10 % of the events of a complete trace, but for EP",
            {
                let but: Vec<&str> =
                    self.kernels().iter().filter(|one| **one != "ep").copied().collect();
                let [but, ep] = [&but[..], &["ep"]].map(|some| range("events", some, &SAMPLERS, 1));
                let said = in_words("Mitos and MemProf", "events");
                format!("{said}: {but} %, EP {ep} %")
            },
            told(words.collect(), few == shares.len()),
        ));
    }

    fn sweep_claims(&self, rows: &mut Vec<ClaimRow>) {
        let theirs = |subject, metric| published("sweep", subject, metric).unwrap_or(f64::NAN);
        let told = self.step(20).zip(self.step(50)).map(|(short, default)| {
            let (few, many) = (default.traced.events, short.traced.events);
            (format!("{few} of {many}"), few * 3 > many * 2)
        });
        rows.push(claim(
            "50 ms give more than two thirds of the events of shorter intervals",
            format!(
                "{}: {:.0} of {:.0}",
                in_words("IS at 50 ms", "events"),
                theirs("50 ms", "events"),
                theirs("20 ms", "events")
            ),
            told.ok_or_else(|| "IS was not traced at intervals of 20 and of 50 ms".to_owned()),
        ));
    }

    /// The run of the sweep with this interval, in milliseconds.
    fn step(&self, monitor: u64) -> Option<&Step> {
        self.sweep.iter().find(|step| (step.monitor, step.log) == (monitor as f64, DEFAULT.1))
    }

    /// Rows of both: what, published, here, and what became of it.
    fn claims_and_goals(&self) -> Vec<Vec<String>> {
        let goals = self.targets().into_iter().map(|(mut row, is_met)| {
            row.push(format!("goal {}", met(is_met)));
            row
        });
        self.claims().into_iter().map(ClaimRow::cells).chain(goals).collect()
    }

    /// Targets of our own: rows of what, published, here; and whether each is met.
    fn targets(&self) -> Vec<(Vec<String>, bool)> {
        let mut rows = Vec::new();
        let mut add = |row: [String; 3], times: f64| rows.push((row.to_vec(), times >= 3.0));
        let moca = published("sweep", "50 ms", "events").unwrap_or(f64::NAN);
        if let Some(Step { traced, native, .. }) = self.step(50) {
            let times = traced.events as f64 / moca;
            let row = [
                "events of IS at 50 ms in all, and our goal of three times as many".into(),
                format!("{moca:.0} in {:.0} wake-ups", Self::wake_ups("50 ms").unwrap_or(f64::NAN)),
                format!(
                    "{} in {} wake-ups, {times:.1} times: the kernel takes {native:.2} s here",
                    traced.events, traced.intervals
                ),
            ];
            add(row, times);
            let by = moca / Self::wake_ups("50 ms").unwrap_or(f64::NAN);
            let here = traced.events as f64 / traced.intervals.max(1) as f64;
            let told = format!("{here:.0}, {:.1} times", here / by);
            add(["the same for each wake-up".into(), format!("{by:.0}"), told], here / by);
        }
        let as_often = self.sweep.iter().find(|step| step.monitor.fract() != 0.0);
        if let Some(step) = as_often {
            let times = step.traced.events as f64 / moca;
            let row = [
                "and of a run that is woken up as often as the published one".into(),
                format!("{moca:.0} in {:.0} wake-ups", Self::wake_ups("50 ms").unwrap_or(f64::NAN)),
                format!(
                    "{} in {} wake-ups, each {:.1} ms: {times:.1} times",
                    step.traced.events, step.traced.intervals, step.monitor
                ),
            ];
            add(row, times);
        }
        rows
    }

    /// Slowdown of each back end here and of each tool, by kernel.
    fn figure(&self) -> HeatMap {
        let cell = |slowdown: Option<f64>| {
            // 1 has no colour, 1000 all of it.
            let shade = slowdown.map_or(f64::NAN, |slowdown| slowdown.log10() / 3.0);
            Heat { text: ratio(slowdown), shade }
        };
        let ours = [FAULTS, NAMES, EXACT, SAMPLE];
        let row = |kernel: &&'static str| {
            let here = ours.map(|back_end| cell(self.slowdown(kernel, back_end)));
            let there = TOOLS.map(|tool| cell(published("slowdown", kernel, tool)));
            (kernel.to_uppercase(), here.into_iter().chain(there).collect())
        };
        HeatMap {
            title: "slowdown by powers of ten: our back ends, then the published tools".into(),
            columns: ours.iter().chain(&TOOLS).map(|name| (*name).to_owned()).collect(),
            rows: self.kernels().iter().map(row).collect(),
        }
    }

    /// One row a run.
    fn csv(&self) -> String {
        let mut out = "kernel,class,threads,back_end,monitor_ms,log_ms,repetition,native_cpu_s,cpu_s,events,pages,\
                       intervals,lost\n"
            .to_owned();
        let line = |(kernel, class, threads): (&str, &str, usize),
                    back_end: &str,
                    at: (f64, u64, usize),
                    native: f64,
                    run: &Traced| {
            let Traced { cpu, events, pages, intervals, lost } = run;
            let (monitor, log, repetition) = at;
            let back_end = back_end.replace(", ", " with ");
            format!(
                "{kernel},{class},{threads},{back_end},{monitor:.3},{log},{repetition},{native:.6},{cpu:.6},{events},\
                     {pages},{intervals},{lost}\n"
            )
        };
        for row in &self.rows {
            for (at, (native, run)) in row.native.iter().zip(&row.traced).enumerate() {
                let place = (DEFAULT.0 as f64, DEFAULT.1, at + 1);
                out +=
                    &line((row.kernel, row.class, row.threads), row.back_end, place, *native, run);
            }
        }
        for step in &self.sweep {
            let place = (step.monitor, step.log, 1);
            out += &line(("is", "A", 1), FAULTS, place, step.native, &step.traced);
        }
        out
    }
}

impl Tables for Outcome {
    fn head(&self) -> (&'static str, &'static str) {
        (NAME, &FILE.title)
    }

    fn reading(&self) -> Vec<String> {
        vec![READING.to_owned()]
    }

    fn notes(&self) -> Vec<String> {
        let by =
            self.events_by.iter().map(|(back_end, by)| format!("events of {back_end}: by {by}"));
        by.chain(self.skipped.iter().map(|line| format!("skipped {line}"))).collect()
    }

    fn charts(&self) -> Vec<Svg> {
        vec![self.figure().svg()]
    }

    fn tables(&self) -> Vec<Table> {
        let claims = Table::new(
            "what was published, and whether it is reproduced",
            CLAIMS,
            self.claims_and_goals(),
        );
        vec![claims, self.slowdowns(), self.found(), self.validated(), self.sweep_table()]
    }

    fn claims(&self) -> Vec<ClaimRow> {
        let mut rows = Vec::new();
        let (faults, exact) = (self.ran(FAULTS), self.ran(EXACT));
        claims_of_faults(&faults, &mut rows);
        claims_beside_emulator(self.kernels(), &faults, &exact, &mut rows);
        let tool = |tool: &str| {
            geomean(self.kernels().iter().map(|kernel| published_slowdown(kernel, tool)))
        };
        let times = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        let names = self.ran(NAMES).and_then(|names| {
            let here = times(geomean_of(&names), geomean_of(&faults.clone()?));
            Ok((format!("{} times", ratio(here)), here.is_some_and(|times| times < 1.2)))
        });
        rows.push(claim(
            "names of data structures add little",
            format!(
                "{}: {} times",
                in_words("MocaPin beside Moca", "slowdown"),
                ratio(times(tool("MocaPin"), tool("Moca")))
            ),
            names,
        ));
        let sample = self.ran(SAMPLE).map(|sample| {
            let words = sample.iter().map(word).collect::<Vec<_>>().join(", ");
            (words, sample.iter().all(|one| one.1 <= 1.05))
        });
        let theirs = range("slowdown", self.kernels(), &SAMPLERS, 2);
        rows.push(claim("sampling costs next to nothing", theirs, sample));
        let shares = self.checked.iter().map(|one| one.touched.share());
        let pages = match shares.reduce(f64::min) {
            Some(least) => {
                let text = format!("{least:.2} % at least, over {} kernels", self.checked.len());
                Ok((text, least >= 99.0))
            }
            None => Err(self
                .why("pages held against the emulator's")
                .unwrap_or_else(|| "no trace was held against the emulator's pages".to_owned())),
        };
        let said = "a complete trace has nearly all pages";
        let theirs = range("pages", self.kernels(), &["Moca"], 2);
        let theirs = format!("{}: {theirs} %", in_words("Moca", "pages"));
        rows.push(claim(said, theirs, pages));
        self.claims_of_samples(&mut rows);
        self.sweep_claims(&mut rows);
        rows
    }

    fn goals(&self) -> Vec<bool> {
        self.targets().into_iter().map(|(_, met)| met).collect()
    }

    fn json(&self) -> Value {
        let traced = |run: &Traced| {
            json!({
                "cpu_seconds": run.cpu, "events": run.events, "pages": run.pages, "intervals": run.intervals,
                "lost": run.lost
            })
        };
        let rows = self.rows.iter().map(|row| {
            let theirs = |tool| (tool, published("slowdown", row.kernel, tool));
            json!({
                "kernel": row.kernel, "class": row.class, "threads": row.threads, "back_end": row.back_end,
                "native_cpu_seconds": row.native,
                "traced": row.traced.iter().map(traced).collect::<Vec<_>>(), "slowdown": row.slowdown(),
                "pages_percent_of_exact": self.share_of_pages(row),
                "events_percent_of_faults": self.share_of_events(row),
                "not_run": row.missing,
                "published_slowdown": TOOLS.map(theirs).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            })
        });
        let sweep = self.sweep.iter().map(|step| {
            json!({
                "monitor_ms": step.monitor, "log_ms": step.log, "native_cpu_seconds": step.native,
                "traced": traced(&step.traced)
            })
        });
        let checked = self.checked.iter().map(|one| {
            let found = |found: super::PageAgreement| {
                json!({ "exact": found.exact, "missing": found.missing, "extra": found.extra })
            };
            json!({
                "kernel": one.kernel, "touched": found(one.touched), "written": found(one.written),
                "touched_in_intervals": found(one.touched_in_intervals),
                "written_in_intervals": found(one.written_in_intervals),
            })
        });
        let claims = self.claims_and_goals().into_iter().map(|cells| {
            let cell = |at: usize| cells.get(at).cloned().unwrap_or_default();
            json!({ "claim": cell(0), "published": cell(1), "here": cell(2), "verdict": cell(3) })
        });
        json!({
            "schema": 1, "experiment": NAME, "interrupted": self.interrupted, "threads": self.options.threads.first(),
            "events_by": self.events_by.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "skipped": self.skipped, "claims": claims.collect::<Vec<_>>(), "kernels": rows.collect::<Vec<_>>(),
            "validated": checked.collect::<Vec<_>>(), "sweep": sweep.collect::<Vec<_>>(),
        })
    }

    fn files(&self, machine: &[String]) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![("moca.csv", self.csv().into_bytes()), ("moca.parquet", write(self, machine)?)])
    }
}

fn of_native(row: &KernelRow) -> Option<f64> {
    super::of(row.native.iter().copied())
}

fn geomean_of(of: &[(&str, f64)]) -> Option<f64> {
    geomean(of.iter().map(|one| one.1))
}

#[cfg(test)]
mod tests {
    use super::super::{ARMS, Checked, Options, PageAgreement};
    use super::*;
    use crate::claim::{Basis, Verdict};
    use pagemill_report::draw::html::Page;

    fn outcome() -> Outcome {
        of(Options::new(true, None))
    }

    fn of(options: Options) -> Outcome {
        let traced = |cpu: f64, events: u64, pages: u64| Traced {
            cpu,
            events,
            pages,
            intervals: 10,
            lost: 0,
        };
        let mut rows = Vec::new();
        for (at, &kernel) in options.kernels.iter().enumerate() {
            for (back_end, _, smaller) in ARMS {
                let (cpu, events, pages) = match back_end {
                    FAULTS => (1.0 + at as f64, 100, 7),
                    NAMES => (1.1 + at as f64, 101, 8),
                    EXACT => (4.0, 9_000, 7),
                    _ => (1.01, 5, 1),
                };
                rows.push(KernelRow {
                    kernel,
                    class: if smaller { options.smaller } else { options.class },
                    threads: 1,
                    back_end,
                    native: vec![1.0],
                    traced: vec![traced(cpu, events, pages)],
                    missing: None,
                });
            }
        }
        let step = |monitor: f64| Step {
            monitor,
            log: 500,
            native: 1.0,
            traced: traced(1.5, (30e6 / monitor) as u64, 7),
        };
        let mut sweep: Vec<Step> =
            FILE.full.runs.monitor_ms.iter().map(|monitor| step(*monitor as f64)).collect();
        sweep.push(step(6.2));
        let found = PageAgreement { exact: 1000, missing: 1, extra: 0 };
        let checked = Checked { kernel: "is", touched: found, ..Checked::default() };
        Outcome {
            options,
            rows,
            checked: vec![checked],
            sweep,
            events_by: vec![(FAULTS, "bpf".into())],
            skipped: Vec::new(),
            interrupted: false,
        }
    }

    #[test]
    fn a_claim_is_judged_by_all_the_kernels_it_names_or_says_which_have_not_run() {
        let mut rows = Vec::new();
        let (faults, exact) = (vec![("ep", 1.0), ("is", 2.0)], vec![("ep", 9.0), ("is", 1.0)]);
        let (faults, exact) = (Ok(faults), Ok(exact));
        claims_beside_emulator(&["cg", "ep", "ft", "is", "mg"], &faults, &exact, &mut rows);
        let here: Vec<&str> = rows.iter().map(|row| row.here.as_deref().unwrap_or("-")).collect();
        assert_eq!(here, ["-", "IS 2.00 against 1.0", "-"]);
        assert_eq!(rows[0].verdict.to_string(), "not measured: these kernels have not run: CG");
        assert_eq!(rows[2].verdict.to_string(), "not measured: these kernels have not run: FT MG");
        rows.clear();
        claims_beside_emulator(&["ep", "is"], &faults, &exact, &mut rows);
        let here = rows[0].here.as_deref();
        assert_eq!(here, Some("EP 1.00 against 9.0; 1 of 7 kernels have run"));
        assert_eq!(rows[2].verdict.to_string(), "not measured: these kernels have not run: FT MG");
    }

    /// A full run held its ten kernels against the ends of what was published of five.
    #[test]
    fn what_was_published_is_that_of_the_kernels_that_are_asked_for() {
        let claims = of(Options::new(false, None)).claims();
        let of = |said: &str| {
            let row = claims.iter().find(|row| row.claim.contains(said)).unwrap();
            row.published.clone()
        };
        assert!(of("nearly all pages").ends_with("99.09 to 99.97 %"), "{claims:?}");
        assert!(of("samples miss").ends_with("0.2 to 79.7 %"), "{claims:?}");
        assert!(of("sees every access").contains("UA 6.50 against 45.2"), "{claims:?}");
        let claims = outcome().claims();
        assert!(claims.iter().any(|row| row.published.ends_with("99.13 to 99.49 %")), "{claims:?}");
    }

    #[test]
    fn of_some_kernels_none_is_the_least_or_the_most_of_all() {
        let some = ["cg".to_owned(), "is".to_owned()];
        let mut few = Options::new(true, None);
        few.only(Some(&some)).unwrap();
        let mut of_all = kernels();
        of_all.retain(|kernel| !some.iter().any(|ran| ran == kernel));
        let lacking = format!("these kernels have not run: {}", of_all.join(" ").to_uppercase());
        for row in &of(few).claims()[..2] {
            assert_eq!(row.verdict, Verdict::NotMeasured(lacking.clone()), "{row:?}");
            assert_eq!(row.here, None, "{row:?}");
        }
        let claims = of(Options::new(false, None)).claims();
        for (claim, here) in claims.iter().zip(["BT 1.00", "UA 10.00"]) {
            assert_eq!(claim.here.as_deref(), Some(here));
            assert_eq!(claim.verdict, Verdict::NotReproduced(Basis::Runs));
        }
    }

    #[test]
    fn each_claim_is_a_row_whatever_ran() {
        let said = |outcome: &Outcome| -> Vec<String> {
            outcome.claims().into_iter().map(|row| row.claim).collect()
        };
        let all = said(&outcome());
        let mut random = pagemill_model::random::Random::new(7);
        for _ in 0..40 {
            let (mut some, part) = (outcome(), random.unit());
            some.rows.retain(|_| random.chance(part));
            some.checked.retain(|_| random.chance(part));
            some.sweep.retain(|_| random.chance(part));
            some.options.kernels.retain(|_| random.chance(0.9));
            assert_eq!(said(&some), all);
            for row in some.claims() {
                let untold = matches!(row.verdict, Verdict::NotMeasured(_));
                assert_eq!(row.here.is_none(), untold, "{row:?}");
            }
        }
        let mut none = Outcome::new(Options::new(true, None));
        none.skipped.push(format!("{SAMPLE}: no such counter"));
        let claims = none.claims();
        assert_eq!(said(&none), all);
        let why = Verdict::NotMeasured("no such counter".into());
        assert!(claims.iter().any(|row| row.verdict == why), "{claims:?}");
    }

    #[test]
    fn the_published_figures_of_every_kernel_are_found() {
        for kernel in kernels() {
            for tool in TOOLS {
                assert!(published("slowdown", kernel, tool).is_some(), "{kernel} {tool}");
            }
            assert!(published("pages", kernel, "Moca").is_some_and(|share| share > 99.0));
        }
        assert_eq!(published("slowdown", "mg", "Moca"), Some(617.8));
        assert_eq!(published("sweep", "50 ms", "events"), Some(89000.0));
        assert_eq!(Outcome::wake_ups("50 ms"), Some(86.0));
        assert_eq!(Outcome::wake_ups("6 ms"), None);
    }

    #[test]
    fn every_published_figure_is_beside_one_of_ours_or_named_as_not_run() {
        let full = of(Options::new(false, None));
        crate::coverage::tests::is_complete(&super::super::SOURCE, || {
            full.text();
            full.figure();
        });
    }

    #[test]
    fn each_claim_has_its_verdict_and_what_does_not_hold_is_said() {
        let claims = outcome().claims();
        let verdict = |said: &str| {
            let row = claims.iter().find(|row| row.claim.contains(said)).unwrap();
            (row.here.clone().unwrap(), row.verdict.to_string())
        };
        let no = "not reproduced";
        assert_eq!(verdict("sees every access").1, "reproduced");
        // IS costs 4, as does the emulator; FT less than it.
        assert_eq!(verdict("a bit faster: IS").1, no);
        assert_eq!(verdict("slower than it: FT MG").1, no);
        assert_eq!(verdict("add little").1, "reproduced");
        assert_eq!(
            verdict("nearly all pages"),
            ("99.90 % at least, over 1 kernels".into(), "reproduced".into())
        );
        assert_eq!(verdict("samples miss").0, "14.3 %, 14.3 %, 14.3 %, 14.3 %, 14.3 %");
        assert_eq!(verdict("hardly 10 %").1, "reproduced");
        // 600,000 of 1,500,000 events; 6.7 times as many as Moca.
        assert_eq!(verdict("two thirds").1, no);
        let targets = outcome().targets();
        let here = |at: usize| targets[at].0[2].as_str();
        assert!(targets.len() == 3 && targets.iter().all(|(_, met)| *met), "{targets:?}");
        assert!(here(1).starts_with("60000, 58.0 times"), "{targets:?}");
        assert!(here(2).contains("each 6.2 ms: 54.4 times"), "{targets:?}");
        assert!(outcome().text().contains("goal met"));
    }

    #[test]
    fn a_run_is_a_line_and_every_published_tool_is_in_the_figure() {
        let outcome = outcome();
        assert_eq!(outcome.csv().lines().count(), 1 + 5 * ARMS.len() + 4);
        assert!(outcome.text().contains("617.80"));
        let mut page = Page::new("test");
        outcome.page(&mut page);
        let html = page.finish();
        TOOLS.iter().for_each(|tool| assert!(html.contains(tool), "{tool}"));
        assert_eq!(outcome.json()["kernels"].as_array().map(Vec::len), Some(25));
    }

    #[test]
    fn found_pages_are_summed_over_kinds_of_memory() {
        let of =
            json!({ "heap": { "exact": 3, "missing": 1, "extra": 2 }, "stack": { "exact": 1 } });
        assert_eq!(PageAgreement::of(&of), PageAgreement { exact: 4, missing: 1, extra: 2 });
        assert_eq!(PageAgreement::of(&of["heap"]).share(), 200.0 / 3.0);
        assert_eq!(PageAgreement::default().share(), 0.0);
    }
}

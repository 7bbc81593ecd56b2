//! What was measured, beside what was published, and in words whether it is so here: as text, JSON, CSV and HTML.

use std::fmt::Write as _;

use pagemill_analysis::latency::Histogram;
use pagemill_analysis::statistics::{Estimate, geomean};
use pagemill_model::Nanos;
use serde_json::{Value, json};

use super::programs::by_kernel;
use super::{AUTO, BASELINE, FILE, FRAGMENTED, Key, NAME, OURS, Outcome, SOURCE, STATES, used_up};
use crate::claim::{Basis, ClaimRow, met};
use crate::coverage;
use crate::tabled::{Table, Tables, dash};
use pagemill_report::draw::chart::Svg;
use pagemill_report::draw::chart::{Bar, BarChart, Series, number};
use pagemill_report::draw::log_chart::{LogChart, Vertical};

/// What the publication's claims compare.
const COMPARED: &str = "CBMM vs Linux and HawkEye";

/// The arms that stand for what the publication compares with.
const COMPARED_WITH: [&str; 2] = [BASELINE, "hawkeye"];

/// How much longer than published a mean may be.
const CLOSE: f64 = 1.05;

/// Programs of every day, that a policy may not make worse. The others are there to show what huge pages do.
const EVERYDAY: [&str; 6] = ["redis", "memcached", "xz", "sqlite", "python", "gcc"];

/// What is asked of a figure that is shown for comparison only.
const NO_GOAL: &str = "-";

/// Goals: rows of what, asked, here, met or missed; and whether those are met for which something is asked.
#[derive(Default)]
struct Goals {
    rows: Vec<Vec<String>>,
    met: Vec<bool>,
}

impl Goals {
    fn at_least(&mut self, what: String, limit: f64, here: Option<f64>, once: bool) {
        let met = here.is_some_and(|here| here >= limit);
        self.add(what, format!(">= {limit}"), here, Some(met), once);
    }

    fn at_most(&mut self, what: String, limit: f64, here: Option<f64>, once: bool) {
        let met = here.is_some_and(|here| here <= limit);
        self.add(what, format!("<= {limit}"), here, Some(met), once);
    }

    /// A figure for which nothing is asked.
    fn none(&mut self, what: String, here: Option<f64>) {
        self.add(what, NO_GOAL.into(), here, None, false);
    }

    /// `once`: of single runs, so without an interval. What was not measured has no row.
    fn add(
        &mut self,
        what: String,
        asked: String,
        here: Option<f64>,
        is_met: Option<bool>,
        once: bool,
    ) {
        let Some(here) = here.filter(|here| here.is_finite()) else { return };
        let word = is_met.map_or("", met);
        self.met.extend(is_met);
        self.rows.push(vec![what, asked, number(here), format!("{word}{}", Basis::once(once))]);
    }
}

/// How the figures are to be read.
const READING: &str = "Times are medians with 95 % intervals (BCa bootstrap) of interleaved runs; memory was touched \
                       right before each run, so the \
host had it. Page faults are those of one more run each, recorded by pagemill record. The share on huge pages is \
                       that at the largest anonymous \
memory seen. Published figures are of another machine and, for CBMM and HawkEye, of patched kernels: shown, never \
                       used.";

/// The system of the publication that an arm stands for.
fn system(arm: &str) -> Option<&'static str> {
    match arm {
        "linux-always" => Some("Linux"),
        "hawkeye" => Some("HawkEye"),
        "cbmm" | "cbmm+" => Some("CBMM"),
        _ => None,
    }
}

/// A published figure.
fn published(experiment: &str, (state, program, arm): Key) -> Option<f64> {
    // The engine stands for the database around it.
    let program = if program == "wiredtiger" { "mongodb" } else { program };
    let subject = format!("{program} on {} {state}", system(arm)?);
    let metric = match experiment {
        "huge share" => "share of memory on huge pages",
        "longest fault" => "longest page fault",
        same => same,
    };
    coverage::number(&SOURCE, experiment, &subject, metric)
}

fn with_interval(estimate: Option<Estimate>, digits: usize) -> String {
    dash(estimate.map(|estimate| match estimate.interval {
        Some(interval) => format!(
            "{:.digits$} [{:.digits$}, {:.digits$}]",
            estimate.value, interval.low, interval.high
        ),
        None => format!("{:.digits$}", estimate.value),
    }))
}

fn micros(time: Option<Nanos>) -> String {
    dash(time.map(|time| number(time.0 as f64 / 1e3)))
}

impl Outcome {
    fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        STATES.into_iter().flat_map(move |state| {
            self.options.programs.iter().flat_map(move |program| {
                self.options.arms.iter().map(move |arm| (state, *program, *arm))
            })
        })
    }

    fn run_times(&self) -> Table {
        let rows = self.keys().map(|key| {
            let (state, program, arm) = key;
            let unfragmented = (STATES[0], program, BASELINE);
            vec![
                program.to_owned(),
                state.to_owned(),
                arm.to_owned(),
                with_interval(self.median(key, "time"), 3),
                with_interval(self.ratio(key, (state, program, BASELINE), "time"), 2),
                with_interval(self.ratio(key, unfragmented, "time"), 2),
                dash(published("run time", key).map(|ratio| format!("{ratio:.2}"))),
            ]
        });
        Table::new(
            "run time (figure 5)",
            "program|memory|policy|seconds|/ linux-always|/ linux-always unfragmented|published",
            rows,
        )
    }

    /// Page faults a second: those of the recorded run over the time that the program takes otherwise.
    fn rate(&self, key: Key) -> Option<f64> {
        Some(self.faults.get(&key)?.total() as f64 / self.median(key, "time")?.value)
    }

    fn tails(&self) -> Table {
        let rows = self.faults.iter().map(|(&key, times)| {
            let at = |share| micros(times.quantile(share));
            let linux = (key.0, key.1, BASELINE);
            vec![
                key.1.to_owned(),
                key.0.to_owned(),
                key.2.to_owned(),
                times.total().to_string(),
                at(0.5),
                at(0.99),
                at(0.999),
                micros(times.max()),
                number(times.sum().0 as f64 / 1e6),
                dash(self.rate(key).map(number)),
                dash(
                    self.rate(key).zip(self.rate(linux)).map(|(rate, linux)| number(rate / linux)),
                ),
                dash(
                    published("page fault rate", key)
                        .zip(published("page fault rate", linux))
                        .map(|(rate, linux)| number(rate / linux)),
                ),
                dash(published("longest fault", key).map(|longest| number(longest * 1e6))),
            ]
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| {
            let place = |names: &[&str], name: &str| names.iter().position(|one| *one == name);
            let (program, arm) =
                (place(&self.options.programs, &row[0]), place(&self.options.arms, &row[2]));
            (program, row[1] == FRAGMENTED, arm)
        });
        Table::new(
            "page faults that the program took (figures 2 and 4), us",
            "program|memory|policy|faults|p50|p99|p99.9|longest|all, ms|a second|/ linux-always|published|longest \
             published",
            rows,
        )
    }

    fn shares(&self) -> Table {
        let rows = self.keys().map(|key| {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            let (state, program, arm) = key;
            vec![
                program.to_owned(),
                state.to_owned(),
                arm.to_owned(),
                dash(self.median(key, "share").map(|share| percent(share.value))),
                dash(published("huge share", key).map(percent)),
                dash(
                    self.median(key, "resident")
                        .map(|bytes| number(bytes.value / f64::from(1 << 20))),
                ),
            ]
        });
        Table::new(
            "anonymous memory on huge pages (figure 6)",
            "program|memory|policy|here|published|peak resident, MiB",
            rows,
        )
    }

    /// The best of the policies that need nothing of ours: the shortest median.
    fn best_static(&self, state: &'static str, program: &'static str) -> Option<&'static str> {
        let ran = by_kernel().filter(|arm| self.options.arms.contains(arm));
        let timed =
            ran.filter_map(|arm| Some((arm, self.median((state, program, arm), "time")?.value)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(arm, _)| arm)
    }

    /// Whether a verdict on these runs would be one on a single run.
    fn once(&self, key: Key) -> bool {
        self.values(key, "time").len() == 1
    }

    /// How many times as long an arm takes as cbmm+, or as much of another figure.
    fn over_ours(&self, (state, program, arm): Key, figure: &str) -> Option<f64> {
        let ratio = self.ratio((state, program, arm), (state, program, OURS), figure);
        ratio.map(|estimate| estimate.value)
    }

    /// Whether a comparison of an arm with cbmm+ is one of single runs.
    fn once_beside_ours(&self, (state, program, arm): Key) -> bool {
        self.once((state, program, OURS)) || self.once((state, program, arm))
    }

    /// What pagemill sets itself, met or missed.
    fn targets(&self) -> Goals {
        let mut goals = Goals::default();
        for state in STATES {
            for &program in &self.options.programs {
                if program == "growing-server" {
                    self.goals_of_growth(state, &mut goals);
                }
                let Some(best) = self.best_static(state, program) else { continue };
                let key = (state, program, best);
                if program == "redis" {
                    self.goals_of_redis(key, &mut goals);
                }
                self.goals_of_all(key, &mut goals);
                self.goals_of_auto(key, &mut goals);
            }
        }
        goals
    }

    /// What growing memory is to cost the requests of a server.
    fn goals_of_growth(&self, state: &'static str, goals: &mut Goals) {
        let program = "growing-server";
        let (linux, never) = ((state, program, BASELINE), (state, program, "linux-never"));
        let (tail, time) = if state == FRAGMENTED { (20.0, None) } else { (50.0, Some(1.5)) };
        goals.at_least(
            format!("{program}, {state}: 99.9 % of requests, linux-always / cbmm+"),
            tail,
            self.over_ours(linux, "p99.9"),
            self.once_beside_ours(linux),
        );
        match time {
            Some(time) => goals.at_least(
                format!("{program}, {state}: time, linux-always / cbmm+"),
                time,
                self.over_ours(linux, "time"),
                self.once_beside_ours(linux),
            ),
            None => goals.at_most(
                format!("{program}, {state}: time, cbmm+ / linux-never"),
                1.05,
                self.over_ours(never, "time").map(|ratio| 1.0 / ratio),
                self.once_beside_ours(never),
            ),
        }
    }

    /// What Redis is to gain over `key`, the best static policy.
    fn goals_of_redis(&self, key: Key, goals: &mut Goals) {
        let (state, program, best) = key;
        let once = self.once_beside_ours(key);
        goals.at_least(
            format!("{program}, {state}: requests a second, cbmm+ / {best} (the best static)"),
            if state == FRAGMENTED { 1.15 } else { 1.35 },
            self.over_ours(key, "time"),
            once,
        );
        goals.at_most(
            format!("{program}, {state}: 99 % of requests, cbmm+ / {best}"),
            1.0,
            self.over_ours(key, "p99").map(|ratio| 1.0 / ratio),
            once,
        );
    }

    /// What no program is to lose against `key`, the best static policy.
    fn goals_of_all(&self, key: Key, goals: &mut Goals) {
        let (state, program, best) = key;
        let ours = (state, program, OURS);
        let value = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.value);
        let helper = value(self.median(ours, "helper")).zip(value(self.median(ours, "cpu")));
        let below = |figure| self.over_ours(key, figure).map(|ratio| 1.0 / ratio);
        let once = self.once_beside_ours(key);
        for (what, most, here, once) in [
            (format!("time, cbmm+ / {best} (the best static)"), Some(1.02), below("time"), once),
            (format!("peak resident memory, cbmm+ / {best}"), Some(1.03), below("resident"), once),
            (
                "the helper's share of the program's CPU time".into(),
                Some(0.05),
                helper.map(|(helper, all)| helper / all),
                self.once(ours),
            ),
            (
                format!("all CPU time (launcher and client too), cbmm+ / {best}"),
                None,
                below("cpu_all"),
                once,
            ),
        ] {
            let what = format!("{program}, {state}: {what}");
            match most.filter(|_| EVERYDAY.contains(&program)) {
                Some(most) => goals.at_most(what, most, here, once),
                None => goals.none(what, here),
            }
        }
    }

    /// What the policy that measures itself is not to lose against `key`, the best static policy.
    fn goals_of_auto(&self, key: Key, goals: &mut Goals) {
        let (state, program, best) = key;
        let auto = (state, program, AUTO);
        let once = self.once(auto) || self.once(key);
        for (figure, what, most) in
            [("time", "time", 1.02), ("resident", "peak resident memory", 1.02)]
        {
            let here = self.ratio(auto, key, figure).map(|estimate| estimate.value);
            goals.at_most(format!("{program}, {state}: {what}, {AUTO} / {best}"), most, here, once);
        }
        let value = |figure| self.median(auto, figure).map(|estimate| estimate.value);
        let helper = value("helper").zip(value("cpu")).map(|(helper, all)| helper / all);
        goals.none(format!("{program}, {state}: the helper's share under {AUTO}"), helper);
    }

    /// The publication's claims in words: about CBMM beside Linux, and beside HawkEye.
    fn judged(&self) -> Vec<ClaimRow> {
        let mut rows = Vec::new();
        for arm in ["cbmm", OURS] {
            for state in STATES {
                for beside in COMPARED_WITH {
                    rows.push(self.claim_of_faults(state, arm, beside));
                    rows.push(self.claim_of_time(state, arm, beside));
                    rows.push(self.claim_of_huge_pages(state, arm, beside));
                }
                rows.push(self.claim_of_mean_time(state, arm));
            }
        }
        rows
    }

    /// A figure under `beside` and under `arm`, of each program that has both.
    fn pairs(
        &self,
        [arm, beside]: [&'static str; 2],
        of: impl Fn(&'static str, &'static str) -> Option<f64>,
    ) -> Vec<(f64, f64)> {
        let programs = self.options.programs.iter();
        programs.filter_map(|program| Some((of(program, beside)?, of(program, arm)?))).collect()
    }

    /// What `here` says of two arms, where programs have figures of both; else why none has.
    fn where_known<T>(
        &self,
        state: &str,
        of: [&str; 2],
        programs: usize,
        here: impl FnOnce() -> T,
    ) -> Result<T, String> {
        let absent = of.into_iter().find(|arm| !self.options.arms.contains(arm));
        let failed = |cell: &super::Cell| {
            cell.outcome.is_err() && cell.state == state && of.contains(&cell.arm)
        };
        match (programs, absent) {
            (1.., _) => Ok(here()),
            (_, Some(arm)) => Err(format!("{arm} is not among the policies of this run")),
            _ if self.notes.iter().any(|note| note.starts_with(&used_up(state))) => {
                Err("the time of this run was used up before".into())
            }
            _ if self.interrupted => Err("this run was ended before".into()),
            _ if self.cells.iter().any(failed) => Err("its runs failed".into()),
            _ => Err(format!("no program has such figures of {} and of {}", of[0], of[1])),
        }
    }

    fn claim_of_faults(
        &self,
        state: &'static str,
        arm: &'static str,
        beside: &'static str,
    ) -> ClaimRow {
        let pairs = self.pairs([arm, beside], |program, arm| {
            Some(self.faults.get(&(state, program, arm))?.max()?.0 as f64 / 1e3)
        });
        let shorter = pairs.iter().filter(|(theirs, ours)| ours < theirs).count();
        ClaimRow::new(
            format!("{arm}, {state}: the longest page fault is shorter than under {beside}"),
            coverage::figure(&SOURCE, "claim 1", COMPARED, "page fault tail latency")
                .unwrap_or("-"),
            // Page faults are those of one recorded run each, whatever the repetitions.
            self.where_known(state, [arm, beside], pairs.len(), || {
                (format!("of {} programs, {shorter}", pairs.len()), shorter == pairs.len(), true)
            }),
        )
    }

    /// How many times as long programs run under an arm as beside it, each with its name.
    fn times(
        &self,
        state: &'static str,
        [arm, beside]: [&'static str; 2],
    ) -> Vec<(&'static str, f64)> {
        let programs = self.options.programs.iter();
        let ratios = programs.filter_map(|program| {
            let ratio = self.ratio((state, *program, arm), (state, *program, beside), "time")?;
            Some((*program, ratio.value))
        });
        ratios.collect()
    }

    fn claim_of_time(
        &self,
        state: &'static str,
        arm: &'static str,
        beside: &'static str,
    ) -> ClaimRow {
        let of = [arm, beside];
        let ratios = self.times(state, of);
        let worst = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
        let theirs = coverage::figure(&SOURCE, "claim 2", COMPARED, "run time").unwrap_or("-");
        ClaimRow::new(
            format!("{arm}, {state}: no program runs longer than under {beside}"),
            theirs.split("; ").nth(usize::from(state == FRAGMENTED)).unwrap_or(theirs),
            self.where_known(state, of, ratios.len(), || {
                let here = format!("the worst takes {worst:.2} times as long");
                (here, worst <= 1.02, self.any_once(state, of))
            }),
        )
    }

    /// Figure 5 in a number: the geometric mean over the programs that were published.
    fn claim_of_mean_time(&self, state: &'static str, arm: &'static str) -> ClaimRow {
        let linux = |program| match state {
            FRAGMENTED => published("run time", (state, program, BASELINE)),
            _ => Some(1.0),
        };
        let theirs =
            |program| Some(published("run time", (state, program, "cbmm"))? / linux(program)?);
        let mean = |ratios: &[f64]| geomean(ratios).unwrap_or(f64::NAN);
        let all: Vec<f64> = super::programs().into_iter().filter_map(theirs).collect();
        let (of, all) = ([arm, BASELINE], mean(&all));
        let both: Vec<(f64, f64)> = self
            .times(state, of)
            .into_iter()
            .filter_map(|(program, here)| Some((here, theirs(program)?)))
            .collect();
        let (here, same): (Vec<f64>, Vec<f64>) = both.into_iter().unzip();
        ClaimRow::new(
            format!("{arm}, {state}: run time to that under {BASELINE}, geometric mean (figure 5)"),
            format!("{all:.2}"),
            self.where_known(state, of, here.len(), || {
                let (ours, theirs) = (mean(&here), mean(&same));
                let words = format!(
                    "{ours:.2} of the {} programs that ran (published of these: {theirs:.2})",
                    here.len()
                );
                (words, ours <= theirs * CLOSE, self.any_once(state, of))
            }),
        )
    }

    fn claim_of_huge_pages(
        &self,
        state: &'static str,
        arm: &'static str,
        beside: &'static str,
    ) -> ClaimRow {
        let of = [arm, beside];
        let share = |program, arm| Some(self.median((state, program, arm), "share")?.value);
        let shares = self.pairs(of, share);
        let fewer = shares.iter().filter(|(theirs, ours)| ours <= theirs).count();
        ClaimRow::new(
            format!("{arm}, {state}: no more memory on huge pages than under {beside}"),
            coverage::figure(&SOURCE, "claim 3", COMPARED, "huge pages used").unwrap_or("-"),
            self.where_known(state, of, shares.len(), || {
                let here = format!("of {} programs, {fewer}", shares.len());
                (here, fewer == shares.len(), self.any_once(state, of))
            }),
        )
    }

    /// Whether any program ran but once under one of these arms.
    fn any_once(&self, state: &'static str, arms: [&'static str; 2]) -> bool {
        let programs = self.options.programs.iter();
        let mut keys = programs.flat_map(|program| arms.map(|arm| (state, *program, arm)));
        keys.any(|key| self.once(key))
    }

    fn failures(&self) -> Vec<String> {
        let failed = self.cells.iter().chain(&self.again).filter_map(|cell| {
            let why = cell.outcome.as_ref().err()?;
            Some(format!("FAILED {}, {} memory, {}: {why}", cell.program, cell.state, cell.arm))
        });
        failed.collect()
    }

    fn tail_chart(&self, state: &'static str, program: &'static str) -> LogChart {
        let line = |times: &Histogram| -> Vec<(f64, f64)> {
            let all = times.total().max(1) as f64;
            let tail = times.tail().into_iter();
            tail.map(|(low, above)| (low.0 as f64 / 1e3, above as f64 / all)).collect()
        };
        let arms = self.options.arms.iter().filter_map(|arm| {
            let times = self.faults.get(&(state, program, *arm))?;
            Some(Series { name: (*arm).to_owned(), points: line(times) })
        });
        LogChart {
            title: format!(
                "{program}, {state}: page faults that took at least so long (figures 2 and 4)"
            ),
            x: "latency, us".into(),
            y: "share of the page faults".into(),
            vertical: Vertical::Logarithmic,
            series: arms.collect(),
        }
    }

    fn bars(
        &self,
        program: &'static str,
        (figure, title, unit, factor): (&str, &str, &str, f64),
    ) -> BarChart {
        let bars = STATES.into_iter().flat_map(|state| {
            self.options.arms.iter().enumerate().filter_map(move |(colour, arm)| {
                let estimate = self.median((state, program, *arm), figure)?;
                Some(Bar {
                    label: format!("{arm}, {state}"),
                    value: estimate.value * factor,
                    interval: estimate.interval.map(|i| (i.low * factor, i.high * factor)),
                    colour,
                })
            })
        });
        BarChart {
            title: format!("{program}: {title}"),
            unit: unit.into(),
            bars: bars.collect(),
            reference: None,
        }
    }

    /// One row a figure.
    fn csv(&self) -> String {
        let mut out = String::from("program,memory,policy,repetition,figure,value\n");
        let first = self.cells.iter().map(|cell| (cell, ""));
        for (cell, again) in first.chain(self.again.iter().map(|cell| (cell, " again"))) {
            let whose = format!("{},{},{}{again}", cell.program, cell.state, cell.arm);
            let round = cell.round.map_or("faults".into(), |round| round.to_string());
            match &cell.outcome {
                Ok(figures) => {
                    for (name, value) in figures {
                        let _ = writeln!(out, "{whose},{round},{name},{value}");
                    }
                }
                Err(why) => {
                    let _ = writeln!(out, "{whose},{round},failed,\"{}\"", why.replace('"', "'"));
                }
            }
        }
        for ((state, program, arm), times) in &self.faults {
            for (low, count) in times.buckets() {
                let _ = writeln!(out, "{program},{state},{arm},faults,from {} ns,{count}", low.0);
            }
        }
        out
    }
}

impl Tables for Outcome {
    fn head(&self) -> (&'static str, &'static str) {
        (NAME, &FILE.title)
    }

    fn reading(&self) -> Vec<String> {
        let first = self.beside_best().map(|(conclusion, _)| conclusion).into_iter();
        first.chain([READING.to_owned()]).collect()
    }

    fn notes(&self) -> Vec<String> {
        [self.notes.clone(), self.failures()].concat()
    }

    fn charts(&self) -> Vec<Svg> {
        let programs = || self.options.programs.iter();
        let tails = STATES
            .into_iter()
            .flat_map(|state| programs().map(move |program| self.tail_chart(state, program).svg()));
        let figures = [
            ("time", "run time (figure 5)", " s", 1.0),
            ("share", "memory on huge pages (figure 6)", " %", 100.0),
        ];
        let bars = figures
            .into_iter()
            .flat_map(|figure| programs().map(move |program| self.bars(program, figure).svg()));
        tails.chain(bars).collect()
    }

    fn tables(&self) -> Vec<Table> {
        let targets =
            Table::new("what cbmm+ and auto are to reach", "|asked|here|", self.targets().rows);
        let claims = Table::of_claims(self.judged());
        let all = [self.run_times(), self.tails(), self.shares(), targets, claims];
        self.beside_best().into_iter().map(|(_, table)| table).chain(all).collect()
    }

    fn claims(&self) -> Vec<ClaimRow> {
        self.judged()
    }

    fn goals(&self) -> Vec<bool> {
        self.targets().met
    }

    fn json(&self) -> Value {
        let tables = self.tables().into_iter().map(|Table { title, header, rows }| {
            json!({ "title": title, "header": header, "rows": rows })
        });
        json!({
            "schema": 1,
            "experiment": NAME,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "failed": self.failures(),
            "tables": tables.collect::<Vec<_>>(),
        })
    }

    fn files(&self, _: &[String]) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![("huge-pages.csv", self.csv().into_bytes())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::huge_pages::{Cell, Options, figures};
    use pagemill_report::draw::html::Page;

    fn outcome(time: f64) -> Outcome {
        let cell = |state, arm, repetition, time: f64| Cell {
            state,
            program: "memcached",
            arm,
            round: Some(repetition),
            outcome: Ok(figures([("time", time), ("resident", 1e9), ("share", 0.5)])),
        };
        let cells = STATES.into_iter().flat_map(|state| {
            (1..=3).flat_map(move |n| {
                [
                    cell(state, BASELINE, n, 2.0),
                    cell(state, "linux-never", n, 1.0),
                    cell(state, "cbmm+", n, time),
                ]
            })
        });
        let mut faults = std::collections::BTreeMap::new();
        let mut times = Histogram::default();
        times.add(10, 5);
        faults.insert((FRAGMENTED, "memcached", BASELINE), times);
        let options = Options::new(true, None, 1.0, 1);
        let (cells, again) = (cells.collect(), Vec::new());
        Outcome { options, cells, again, faults, notes: vec![], interrupted: false }
    }

    #[test]
    fn published_figures_stand_beside_ours() {
        assert_eq!(published("run time", (FRAGMENTED, "memcached", BASELINE)), Some(5.22));
        assert_eq!(published("huge share", (STATES[0], "xz", "hawkeye")), Some(0.53));
        assert_eq!(published("run time", (FRAGMENTED, "redis", BASELINE)), None);
        assert_eq!(published("run time", (FRAGMENTED, "memcached", "ingens")), None);
        let text = outcome(1.0).text();
        assert!(text.contains("5.22") && text.contains("linux-never"), "{text}");
    }

    /// The tables look these up for each program under each policy in each state.
    #[test]
    fn every_published_figure_is_of_a_program_that_runs_or_named_as_not_run() {
        crate::coverage::tests::is_complete(&SOURCE, || {
            for experiment in ["run time", "huge share", "longest fault", "page fault rate"] {
                for program in super::super::programs() {
                    for state in STATES {
                        super::super::policies().into_iter().for_each(|arm| {
                            published(experiment, (state, program, arm));
                        });
                    }
                }
            }
            Outcome::nothing().claims();
            let of = crate::huge_slices::Options::new(true, None, 1);
            crate::huge_slices::Outcome::of(of, &[], Vec::new()).claims();
        });
    }

    #[test]
    fn goals_and_claims_are_met_or_missed_by_what_was_measured() {
        let worst = |time| {
            let text = outcome(time).text();
            let line =
                |needle: &str| text.lines().find(|line| line.contains(needle)).unwrap().to_owned();
            (
                line("memcached, unfragmented: time, cbmm+ / linux-never (the best static)"),
                line("cbmm+, fragmented: no program runs longer"),
            )
        };
        let (goal, claim) = worst(1.01);
        assert!(
            goal.trim_end().ends_with("met") && claim.trim_end().ends_with(" reproduced"),
            "{goal} {claim}"
        );
        let (goal, claim) = worst(2.5);
        assert!(goal.ends_with("missed") && claim.ends_with("not reproduced"), "{goal} {claim}");
    }

    /// A claim had no row where the budget of a quick run was used up before its page faults were recorded.
    #[test]
    fn each_claim_is_a_row_whatever_ran_and_one_that_cannot_be_told_says_why() {
        let whole = outcome(1.0);
        let said = |outcome: &Outcome| -> Vec<String> {
            outcome.claims().into_iter().map(|row| row.claim).collect()
        };
        let all = said(&whole);
        assert_eq!(all.len(), 28);
        let mut random = pagemill_model::random::Random::new(7);
        for _ in 0..40 {
            let mut some = outcome(1.0);
            let part = random.unit();
            some.cells.retain(|_| random.chance(part));
            some.faults.retain(|_, _| random.chance(part));
            some.options.arms.retain(|_| random.chance(0.9));
            assert_eq!(said(&some), all);
            for row in some.claims() {
                let untold = matches!(row.verdict, Verdict::NotMeasured(_));
                assert_eq!(row.here.is_none(), untold, "{row:?}");
            }
        }
        let verdict = |outcome: &Outcome| {
            let mut rows = outcome.claims().into_iter();
            let row = rows.find(|row| row.claim.starts_with("cbmm+, fragmented: the longest"));
            row.unwrap().verdict.to_string()
        };
        let mut over = outcome(1.0);
        over.notes.push(format!("{}redis", used_up(FRAGMENTED)));
        assert_eq!(verdict(&over), "not measured: the time of this run was used up before");
        over.options.arms.retain(|arm| *arm != OURS);
        assert_eq!(verdict(&over), "not measured: cbmm+ is not among the policies of this run");
    }

    /// Verdicts from one run a cell read as those from many.
    #[test]
    fn a_verdict_from_one_run_says_so() {
        let mut once = outcome(1.01);
        once.cells.retain(|cell| cell.round == Some(1));
        let ends = |outcome: &Outcome, needle: &str, end: &str| {
            let text = outcome.text();
            let line = text.lines().find(|line| line.contains(needle)).unwrap().trim_end();
            assert!(line.ends_with(end), "{line}");
        };
        let goal = "memcached, unfragmented: time, cbmm+ / linux-never (the best static)";
        ends(&once, goal, "  met (one run, no interval)");
        ends(
            &once,
            "cbmm+, fragmented: no program runs longer",
            " reproduced (one run, no interval)",
        );
        ends(&outcome(1.01), goal, "  met");
        once.cells.extend(outcome(1.01).cells.into_iter().filter(|cell| cell.arm != "cbmm+"));
        ends(&once, goal, "(one run, no interval)");
    }

    #[test]
    fn rates_of_page_faults_stand_beside_the_published_ones() {
        let key = (FRAGMENTED, "memcached", BASELINE);
        assert_eq!(outcome(1.0).rate(key), Some(2.5), "five faults in two seconds");
        assert_eq!(published("page fault rate", key), Some(1.49));
        assert_eq!(published("page fault rate", (STATES[0], "canneal", "cbmm")), Some(6.91));
    }

    #[test]
    fn the_page_and_the_table_of_figures_hold_every_run() {
        let outcome = outcome(1.0);
        let mut page = Page::new("t");
        outcome.page(&mut page);
        let html = page.finish();
        assert!(html.contains("memcached: run time") && html.contains("page faults that took"));
        let csv = outcome.csv();
        assert_eq!(csv.lines().filter(|line| line.contains(",time,")).count(), 18);
        assert!(csv.contains("memcached,fragmented,linux-always,faults,from"));
    }
}

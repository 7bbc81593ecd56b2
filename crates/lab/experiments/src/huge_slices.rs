//! What huge pages are worth in each slice of a program's memory (CBMM, ATC 2022, figure 1), and what a wrong profile
//! costs (sections 5.5 and 5.6), on programs that run.
//!
//! ```text
//!  for each program:
//!    measured      advise --places ──► benefit of each slice, profile
//!    profiles, N   profile, made wrong in each way ──► the chunks that a huge page pays in ──► a run of each
//!                  ──► CPU time
//! ```
//!
//! A chunk is on a huge page if its benefit by the profile is above what a huge page costs here (calibrated), and is
//! placed before its first touch: the profile alone decides, without policy and library ahead. `slices` is a program
//! whose truth is known; `redis`, `memcached` and `wiredtiger` are server and client in one command, of which the
//! server is sliced and the time of both counts.
//!
//! A cell is one measured profile, `huge-slices/xz/measured/1`, or one round of runs under all of them, each once in an
//! order of its own, `huge-slices/xz/profiles/2`. A round without a measured profile beside it measures one.
//!
//! Always true: the published claim is shown and not used; runs of all profiles are interleaved.

#[cfg(target_arch = "x86_64")]
mod measured;
mod options;
mod subject;

use anyhow::Result;
use pagemill_analysis::statistics::{Bootstrap, Estimate, median, ratio_of_medians};
use pagemill_workloads::programs::slices::CHASED;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::claim::ClaimRow;
use crate::coverage;
use crate::huge_pages;
use crate::reproduce::cell::Cell;
use crate::reproduce::keep::CellKey;
use crate::reproduce::outcome::Outcome as Ran;
use crate::reproduce::series::{Finished, PlannedCell, Series};
use crate::reproduce::target::Stage;
use crate::tabled::{Choices, MeasuredExperiment, Table, Tabled, TabledExperiment, Tables, dash};
use options::{ALL, EXACT, MEASURED, NONE, ROUND, programs};
pub use options::{FILE, NAME, Options, Runs};

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: options::TEXT,
    source: Some(&huge_pages::SOURCE),
    choices: Choices { arms: false, programs: true, scale: false },
    is_roots: false,
    measured: Some(MeasuredExperiment {
        cells: |asked| {
            let of = asked.options;
            let mut options = Options::new(of.quick, of.repetitions, of.seed);
            options.only(asked.programs)?;
            Ok(Box::new(Slices::new(options, asked.stage)))
        },
        nothing: Some(|| Box::new(Outcome::of(Options::new(false, None, 1), &[], Vec::new()))),
        collected: |cells, of, _| Ok(Box::new(Outcome::collected(cells, of))),
    }),
    kept: None,
};
use pagemill_report::draw::chart::Svg;
use pagemill_report::draw::chart::{self, LineChart};
use subject::{Arm, Subject};

/// What a cell tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
enum CellDetails {
    Measured(Box<Subject>),
    Round(Vec<Arm>),
}

/// What came of a program.
struct Sliced {
    name: &'static str,
    subject: Option<Subject>,
    /// Runs of each profile, in the order of the file.
    arms: Vec<(String, Vec<Arm>)>,
    failed: Vec<String>,
}

/// What came of it.
pub struct Outcome {
    programs: Vec<Sliced>,
    /// Programs left out, and why.
    notes: Vec<String>,
    options: Options,
}

/// The cells of the experiment.
pub struct Slices<'a> {
    options: Options,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nothing runs there"))]
    stage: &'a Stage<'a>,
    notes: Vec<String>,
}

impl<'a> Slices<'a> {
    /// Those of some options.
    #[must_use]
    pub fn new(options: Options, stage: &'a Stage<'a>) -> Self {
        Self { options, stage, notes: Vec::new() }
    }
}

impl Series for Slices<'_> {
    fn planned_cells(&self) -> Vec<PlannedCell> {
        let Options { quick, programs, runs, repetitions, seed } = &self.options;
        let size = FILE.size(*quick);
        let of = CellKey { seed: *seed, scale: size.scale, window: None };
        // A round is so many runs.
        let (all, round) = (*runs as f64, self.options.ways().len() as f64 + 3.0);
        let planned = |program: &str, arm, repetition, seconds| {
            let cell = Cell { experiment: NAME.into(), case: program.into(), arm, repetition };
            PlannedCell { cell, of, seconds }
        };
        let measured =
            programs.iter().map(|one| planned(one, MEASURED, 1, size.seconds * all / round));
        let rounds = (1..=*repetitions)
            .flat_map(|round| programs.iter().map(move |one| (one, round)))
            .map(|(one, round)| planned(one, ROUND, round, size.seconds));
        measured.chain(rounds).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn leave_out(&mut self, say: Option<&mut dyn FnMut(&str)>) -> Vec<String> {
        let notes = &mut self.notes;
        if self.options.programs.contains(&"wiredtiger")
            && let Some(say) = say
            && let Err(why) = crate::reproduce::wiredtiger::build(say)
        {
            notes.push(format!("{why:#}"));
        }
        self.options.programs.retain(|program| {
            let lacks = measured::lacks(program);
            notes.extend(lacks.iter().map(|why| format!("{program} was left out: {why}")));
            lacks.is_none()
        });
        notes.clone()
    }

    #[cfg(target_arch = "x86_64")]
    fn run(&mut self, cell: &Cell, so_far: &[Finished], say: &mut dyn FnMut(&str)) -> Result<Ran> {
        let Stage { linux, executable, .. } = self.stage;
        let bench = measured::Bench::new(linux, executable, &cell.case, &self.options)?;
        let mut known = so_far.iter().filter(|(one, _)| one.case == cell.case);
        let known = known.find_map(|(_, ran)| match ran.as_ref().ok()?.read() {
            Some(CellDetails::Measured(subject)) if cell.arm == ROUND => Some(*subject),
            _ => None,
        });
        let subject = known.map_or_else(|| bench.measure(say), Ok)?;
        Ran::of(&match cell.arm {
            MEASURED => CellDetails::Measured(Box::new(subject)),
            _ => CellDetails::Round(bench.round(&subject, cell.repetition, say)?),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn run(&mut self, _: &Cell, _: &[Finished], _: &mut dyn FnMut(&str)) -> Result<Ran> {
        anyhow::bail!("it runs on x86-64 only")
    }
}

impl Tabled for Slices<'_> {
    fn missing(&self) -> Option<String> {
        #[cfg(target_arch = "x86_64")]
        return measured::missing(&self.stage.linux);
        #[cfg(not(target_arch = "x86_64"))]
        return Some("it runs on x86-64 only".to_owned());
    }

    fn outcome(&self, finished: &[Finished], _: bool) -> Result<Box<dyn Tables>, String> {
        Ok(Box::new(Outcome::of(self.options.clone(), finished, self.notes.clone())))
    }
}

impl Sliced {
    fn seconds(&self, arm: &str) -> Vec<f64> {
        let runs = self.arms.iter().find(|(name, _)| name == arm).map(|(_, runs)| runs);
        runs.into_iter().flatten().map(|run| run.seconds).collect()
    }

    /// The time under a profile to that without huge pages.
    fn ratio(&self, arm: &str, seed: u64) -> Option<Estimate> {
        ratio_of_medians(&self.seconds(arm), &self.seconds(NONE), &Bootstrap::seeded(seed))
    }

    /// Whether its own profile makes it faster, as far as its runs tell.
    fn gains(&self, seed: u64) -> bool {
        let exact = self.ratio(EXACT, seed);
        exact.is_some_and(|it| it.interval.map_or(it.value, |interval| interval.high) < 1.0)
    }

    /// Of the profiles made wrong that take huge pages, names and times to that without.
    fn wrong(&self, seed: u64) -> Vec<(&str, f64)> {
        let wrong = self.arms.iter().filter(|(name, runs)| {
            ![NONE, ALL, EXACT].contains(&name.as_str()) && runs.iter().any(|run| run.huge > 0)
        });
        wrong.filter_map(|(name, _)| Some((name.as_str(), self.ratio(name, seed)?.value))).collect()
    }
}

impl Outcome {
    /// What finished cells came to.
    pub(crate) fn of(options: Options, finished: &[Finished], notes: Vec<String>) -> Self {
        let sliced = |name: &'static str| {
            let mut one = Sliced { name, subject: None, arms: Vec::new(), failed: Vec::new() };
            for (cell, ran) in finished.iter().filter(|(cell, _)| cell.case == name) {
                match ran.as_ref().map(Ran::read) {
                    Err(why) => one.failed.push(format!("{} failed: {why}", cell.words())),
                    Ok(Some(CellDetails::Measured(subject))) => one.subject = Some(*subject),
                    Ok(Some(CellDetails::Round(runs))) => {
                        for run in runs {
                            match one.arms.iter_mut().find(|(arm, _)| *arm == run.name) {
                                Some((_, known)) => known.push(run),
                                None => one.arms.push((run.name.clone(), vec![run])),
                            }
                        }
                    }
                    Ok(None) => {}
                }
            }
            one
        };
        let programs = options.programs.iter().map(|name| sliced(name)).collect();
        Self { programs, notes, options }
    }

    /// What cells that were run anywhere came to.
    pub(crate) fn collected(finished: &[Finished], of: CellKey) -> Self {
        let rounds = finished.iter().map(|(cell, _)| cell.repetition).max();
        let mut options = Options::new(of.scale < 1.0, rounds, of.seed);
        options.programs = programs();
        options.programs.retain(|name| finished.iter().any(|(cell, _)| cell.case == *name));
        Self::of(options, finished, Vec::new())
    }

    fn slices(&self) -> Table {
        let told = |one: &Sliced| {
            let subject = one.subject.clone().unwrap_or_default();
            let share =
                |time: f64| dash(subject.none.map(|none| format!("{:.1} %", time / none * 100.0)));
            let seconds = |time: Option<f64>| dash(time.map(|time| format!("{time:.3}")));
            let means = || subject.benefits.iter().map(|(mean, _)| *mean);
            let found = subject
                .found
                .map(|found| format!("{found} of {} chased parts are the greatest", CHASED.len()));
            vec![
                one.name.to_owned(),
                subject.runs.to_string(),
                subject.benefits.len().to_string(),
                seconds(subject.none),
                seconds(subject.all),
                dash(means().reduce(f64::max).map(share)),
                share(means().sum()),
                dash(subject.top_tenth().map(|share| format!("{:.0} %", share * 100.0))),
                subject.sure.to_string(),
                share(subject.error),
                found.into_iter().chain(one.failed.iter().cloned()).collect::<Vec<_>>().join("; "),
            ]
        };
        Table::new(
            "benefit of each slice, CPU time (published, figure 1: 510 runs a program)",
            "program|runs|slices|none, s|all, s|best slice|sum of slices|in a tenth|sure|a run's error|",
            self.programs.iter().map(told),
        )
    }

    /// A program under each profile.
    fn profiles(&self, one: &Sliced) -> Table {
        let rows = one.arms.iter().map(|(name, runs)| {
            let ratio = one.ratio(name, self.options.seed);
            let interval = ratio.and_then(|ratio| ratio.interval);
            let huge: Vec<f64> = runs.iter().map(|run| run.huge as f64).collect();
            vec![
                name.clone(),
                dash(median(&huge).map(|huge| format!("{huge:.0}"))),
                dash(median(&one.seconds(name)).map(|time| format!("{:.1}", time * 1e3))),
                dash(ratio.map(|ratio| format!("{:.3}", ratio.value))),
                dash(interval.map(|i| format!("[{:.3}, {:.3}]", i.low, i.high))),
            ]
        });
        let title = format!(
            "{}: profiles made wrong, {} runs each (published, claim 4: still benefits from imprecise profiles)",
            one.name, self.options.repetitions
        );
        Table::new(title, "profile|huge pages|ms of CPU|to none|95 % interval", rows)
    }

    /// Figure 1, where slices are told apart: whether a tenth of them has most of the benefit.
    fn claim_of_slices(&self) -> ClaimRow {
        let told = self.programs.iter().filter_map(|one| {
            let subject = one.subject.as_ref().filter(|subject| subject.sure > 0)?;
            Some((one.name, subject.top_tenth()?))
        });
        let told: Vec<(&str, f64)> = told.collect();
        let words = told.iter().map(|(name, share)| format!("{name} {:.0} %", share * 100.0));
        let words = words.collect::<Vec<_>>().join(", ");
        let holds = told.iter().all(|(_, share)| *share > 0.5);
        let share = coverage::figure(
            &huge_pages::SOURCE,
            "benefit",
            "xz",
            "greatest two of a hundred slices",
        );
        let theirs = share.and_then(|share| share.parse::<f64>().ok()).unwrap_or(f64::NAN);
        ClaimRow::new(
            "figure 1: a tenth of the slices has most of what huge pages are worth",
            format!("xz: {:.0} % in two of a hundred", theirs * 100.0),
            match told.is_empty() {
                true => Err(self.untold("no slice is told apart from none")),
                false => Ok((words, holds, false)),
            },
        )
    }

    /// Sections 5.5 and 5.6, on programs that gain from their own profile.
    fn claim_of_wrong_profiles(&self) -> ClaimRow {
        let seed = self.options.seed;
        let gain: Vec<&Sliced> = self.programs.iter().filter(|one| one.gains(seed)).collect();
        let wrong: Vec<_> = gain
            .iter()
            .flat_map(|one| one.wrong(seed).into_iter().map(|(way, ratio)| (one.name, way, ratio)))
            .collect();
        let faster = wrong.iter().filter(|(.., ratio)| *ratio < 1.0).count();
        let worst = wrong.iter().max_by(|a, b| a.2.total_cmp(&b.2));
        let told = worst.map(|(name, way, ratio)| {
            let here = format!(
                "of {} programs, {faster} of {} wrong profiles; the worst takes {ratio:.2} of the time ({name}, {way})",
                gain.len(),
                wrong.len()
            );
            (here, faster == wrong.len(), self.options.repetitions == 1)
        });
        ClaimRow::new(
            "claim 4: programs still gain from imprecise profiles (sections 5.5, 5.6)",
            coverage::figure(&huge_pages::SOURCE, "claim 4", "CBMM", "imprecise profiles")
                .unwrap_or("-"),
            told.ok_or_else(|| self.untold("no program gains from its own profile")),
        )
    }

    /// Why a claim cannot be told.
    fn untold(&self, why: &str) -> String {
        let ran = self.programs.iter().any(|one| one.subject.is_some());
        let failed = self.programs.iter().flat_map(|one| &one.failed).next();
        match (ran, failed) {
            (true, _) => why.to_owned(),
            (false, Some(failed)) => failed.clone(),
            (false, None) => "no program has run".to_owned(),
        }
    }
}

impl Tables for Outcome {
    fn head(&self) -> (&'static str, &'static str) {
        (NAME, &FILE.title)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn charts(&self) -> Vec<Svg> {
        // Figure 1: slices in the order of their addresses.
        let chart = |one: &Sliced| {
            let Subject { benefits, intervals, .. } = one.subject.as_ref()?;
            let line = |name: &str, values: Vec<f64>| {
                let points = values.into_iter().enumerate();
                let points = points.map(|(at, value)| (at as f64, value * 1e3)).collect();
                chart::Series { name: name.to_owned(), points }
            };
            let chart = LineChart {
                title: format!("{}: benefit of each slice (figure 1)", one.name),
                x: "slice: mappings from the top down, then the heap".into(),
                y: "ms of CPU time a run".into(),
                series: vec![
                    line("benefit", benefits.iter().map(|one| one.0).collect()),
                    line("95 % interval, low", intervals.iter().map(|one| one.0).collect()),
                    line("95 % interval, high", intervals.iter().map(|one| one.1).collect()),
                ],
            };
            Some(chart.svg())
        };
        self.programs.iter().filter_map(chart).collect()
    }

    fn tables(&self) -> Vec<Table> {
        let claims = Table::of_claims(self.claims());
        let under = self.programs.iter().filter(|one| !one.arms.is_empty());
        let under = under.map(|one| self.profiles(one));
        [claims, self.slices()].into_iter().chain(under).collect()
    }

    fn claims(&self) -> Vec<ClaimRow> {
        vec![self.claim_of_slices(), self.claim_of_wrong_profiles()]
    }

    fn json(&self) -> Value {
        let programs = self.programs.iter().map(|one| {
            let subject = one.subject.clone().unwrap_or_default();
            json!({
                "program": one.name,
                "runs": subject.runs,
                "benefits_seconds": subject.benefits,
                "profile": subject.profile,
                "chased_found": subject.found,
                "failed": one.failed,
                "profiles": one.arms.iter().map(|(name, runs)| json!({
                    "profile": name,
                    "huge_pages": runs.first().map(|run| run.huge),
                    "cpu_seconds": runs.iter().map(|run| run.seconds).collect::<Vec<_>>(),
                })).collect::<Vec<_>>(),
            })
        });
        let claims: Vec<_> = self.claims().into_iter().map(ClaimRow::cells).collect();
        json!({
            "schema": 1, "experiment": NAME, "claims": claims,
            "programs": programs.collect::<Vec<_>>(), "missing": self.notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;

    fn cell(case: &str, arm: &'static str, repetition: u32) -> Cell {
        Cell { experiment: NAME.into(), case: case.into(), arm, repetition }
    }

    fn measured(benefits: Vec<(f64, f64)>, sure: usize) -> Result<Ran, String> {
        let subject = Subject { runs: 25, none: Some(1.0), benefits, sure, ..Subject::default() };
        Ok(Ran::of(&CellDetails::Measured(Box::new(subject))).unwrap())
    }

    fn round(arms: &[(&str, usize, f64)]) -> Result<Ran, String> {
        let arm =
            |&(name, huge, seconds): &(&str, usize, f64)| Arm { name: name.into(), huge, seconds };
        Ok(Ran::of(&CellDetails::Round(arms.iter().map(arm).collect())).unwrap())
    }

    fn claims(finished: &[Finished]) -> Vec<ClaimRow> {
        Outcome::of(Options::new(true, Some(1), 1), finished, Vec::new()).claims()
    }

    /// Figure 1 of CBMM and its fourth claim had no row in a run's summary.
    #[test]
    fn the_figure_and_the_claim_are_judged_by_what_ran_and_else_say_why_not() {
        let program = Options::new(true, None, 1).programs[0];
        let few = (0..20).map(|at| if at < 2 { (0.5, 0.01) } else { (0.01, 0.01) }).collect();
        let alike = vec![(0.05, 0.01); 20];
        let good = [
            (NONE, 0, 1.0),
            (ALL, 9, 0.4),
            (EXACT, 9, 0.5),
            ("flatten", 9, 0.6),
            ("scale=0.1", 0, 1.1),
        ];
        let mut bad = good;
        bad[3].2 = 1.2;
        let ran = |benefits, arms: &[_]| {
            let finished = [
                (cell(program, MEASURED, 1), measured(benefits, 2)),
                (cell(program, ROUND, 1), round(arms)),
            ];
            claims(&finished)
        };
        let rows = ran(few, &good);
        assert!(rows.iter().all(|row| matches!(row.verdict, Verdict::Reproduced(_))), "{rows:?}");
        let here = |at: usize| rows[at].here.as_deref().unwrap();
        assert!(rows[0].published.contains("98 %") && here(0).contains("85 %"), "{rows:?}");
        assert!(here(1).contains("1 of 1 wrong profiles"), "one takes no huge page: {rows:?}");
        let rows = ran(alike, &bad);
        assert!(
            rows.iter().all(|row| matches!(row.verdict, Verdict::NotReproduced(_))),
            "{rows:?}"
        );
        for rows in [claims(&[]), claims(&[(cell(program, MEASURED, 1), Err("it died".into()))])] {
            assert_eq!(rows.len(), 2);
            assert!(
                rows.iter().all(|row| matches!(row.verdict, Verdict::NotMeasured(_))),
                "{rows:?}"
            );
        }
    }

    #[test]
    fn profiles_are_measured_first_and_rounds_follow_until_each_has_its_runs() {
        let signals = pagemill_kernel::process::signal::Signals::block(&[]).unwrap();
        let (linux, executable) = (pagemill_kernel::Linux::live(), std::path::PathBuf::new());
        let every = std::time::Duration::ZERO;
        let stage = Stage { linux, executable, signals: &signals, every };
        let mut options = Options::new(false, Some(2), 1);
        options.only(Some(&["xz".into(), "slices".into()])).unwrap();
        let planned_cells = Slices::new(options, &stage).planned_cells();
        let names: Vec<String> = planned_cells.iter().map(|planned| planned.cell.name()).collect();
        let wanted = ["measured/1", "profiles/1", "profiles/2"]
            .map(|of| ["slices", "xz"].map(|name| format!("huge-slices/{name}/{of}")));
        assert_eq!(names, wanted.concat());
        assert!(planned_cells[0].seconds > planned_cells[2].seconds);
        let error = Options::new(true, None, 1).only(Some(&["slice".into()])).unwrap_err();
        assert!(error.to_string().contains("did you mean \"slices\""), "{error}");
        for size in [&FILE.full, &FILE.quick] {
            assert!(programs().iter().all(|name| size.runs.sizes.contains_key(*name)));
        }
        assert!(FILE.arms == [MEASURED, ROUND] && FILE.name == NAME);
    }
}

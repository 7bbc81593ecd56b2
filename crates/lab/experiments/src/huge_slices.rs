//! What huge pages are worth in each slice of a program's memory (CBMM, ATC 2022, figure 1), and what a wrong profile
//! costs (sections 5.5 and 5.6), on programs that run.
//!
//! ```text
//!  for each program:
//!    advise --places ──► benefit of each slice, profile
//!    profile, made wrong in each way ──► the chunks that a huge page pays in ──► runs, in seeded random order ──► CPU time
//! ```
//!
//! A chunk is on a huge page if its benefit by the profile is above what a huge page costs here (calibrated), and is
//! placed before its first touch: the profile alone decides, without policy and library ahead. `slices` is a program
//! whose truth is known; `redis` is server and client in one command, of which the server is sliced and the time of
//! both counts.
//!
//! Always true: the published claim is shown and not used; runs of all profiles are interleaved.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use pagemill_analysis::statistics::{Bootstrap, Random, median, ratio_of_medians};
use pagemill_kernel::Linux;
use pagemill_kernel::signal::Signals;
use pagemill_policy::huge::Section;
use pagemill_policy::huge::profile::{Kind, Mapping, Profile};
use pagemill_tracer::Ended;
use pagemill_tracer::advise::{self, CHUNK, Place};
use pagemill_workloads::programs::slices::{CHASED, PART, PARTS};
use serde_json::{Value, json};

use super::Table;
use pagemill_control::huge::measure::{self, Options as Measuring, Outcome as Measured};
use pagemill_control::plan::perturb::Perturbation;
use pagemill_control::plan::{By, Means};
use pagemill_launch::program::{self, Words};
use pagemill_report::draw::chart::{LineChart, Series};

/// Its name on the command line.
pub const NAME: &str = "huge-slices";

/// What it is, in a line.
pub const TITLE: &str = "what huge pages are worth in each slice of memory, and imprecise profiles (CBMM, figure 1, sections 5.5 and 5.6)";

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which programs.
    pub programs: Vec<&'static str>,
    /// Runs by which a profile is measured.
    pub runs: usize,
    /// Runs of each profile.
    pub repetitions: u32,
    /// Whether inputs are small.
    pub quick: bool,
    /// Seed of everything random.
    pub seed: u64,
}

impl Options {
    /// As in the documentation, or in a minute.
    pub fn new(
        quick: bool,
        repetitions: Option<u32>,
        seed: u64,
        programs: Option<&[String]>,
    ) -> Result<Self> {
        let (runs, few) = if quick { (25, 3) } else { (50, 7) };
        let one = |name: &String| {
            let known = PROGRAMS.into_iter().find(|known| known == name);
            known.with_context(|| format!("no {name:?} among {}", PROGRAMS.join(" ")))
        };
        let programs = match programs {
            Some(names) => names.iter().map(one).collect::<Result<_>>()?,
            None => PROGRAMS.to_vec(),
        };
        Ok(Self { programs, runs, repetitions: repetitions.unwrap_or(few), quick, seed })
    }
}

/// The programs: all but the first three are the published ones that are free and end by themselves the same way each
/// time.
pub const PROGRAMS: [&str; 7] =
    ["slices", "growing-server", "thp-ubmk", "redis", "xz", "canneal", "sqlite3"];

/// Starts a server on the socket $1, has it set $2 new keys of 2 KB, and ends it.
const REDIS: &str = "\
redis-server --port 0 --unixsocket \"$1\" --save '' --appendonly no --daemonize no --disable-thp no > /dev/null &
server=$!
until redis-cli -s \"$1\" ping > /dev/null 2>&1; do kill -0 $server || exit 1; done
redis-benchmark -s \"$1\" -t set -d 2048 -c 8 -P 16 -n \"$2\" -r \"$2\" -q > /dev/null || exit 1
redis-cli -s \"$1\" shutdown nosave > /dev/null
wait $server
";

/// Wrong in these ways, after nothing and all, and the profile as it was measured.
const WAYS: [&str; 7] =
    ["flatten", "general", "shift=16M", "scale=0.1", "noise=1", "drop=0.5", "shuffle"];

/// Times of a profile's runs, and how many chunks were huge.
struct Arm {
    name: String,
    huge: usize,
    seconds: Vec<f64>,
}

struct Subject {
    name: &'static str,
    measured: Measured,
    /// The first without huge pages.
    arms: Vec<Arm>,
}

/// What came of it.
pub struct Outcome {
    subjects: Vec<Subject>,
    /// Programs left out, and why.
    missing: Vec<(&'static str, String)>,
    options: Options,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// A program's command, with its input in `room`; why it cannot be had otherwise.
fn command(
    name: &str,
    quick: bool,
    room: &std::path::Path,
) -> Result<std::result::Result<Vec<OsString>, String>> {
    let executable = std::env::current_exe().context("cannot find this binary")?;
    let of = |small: &'static str, full: &'static str| if quick { small } else { full };
    let built_in = |scale: &str| -> Vec<OsString> {
        let mut words = vec![executable.clone().into()];
        words.extend(["workload", name, "--scale", scale].map(OsString::from));
        words
    };
    Ok(Ok(match name {
        "slices" => built_in(of("0.1", "0.3")),
        "growing-server" => built_in(of("0.1", "0.3")),
        "thp-ubmk" => built_in(of("0.02", "0.05")),
        "canneal" => built_in(of("0.01", "0.03")),
        "redis" => {
            for needed in ["redis-server", "redis-benchmark", "redis-cli"] {
                if program::find(OsStr::new(needed), std::env::var_os("PATH").as_deref()).is_err() {
                    return Ok(Err(format!("{needed} is not installed")));
                }
            }
            let socket = room.join("redis.sock").into();
            let words = ["sh", "-c", REDIS, "redis"].map(OsString::from);
            words.into_iter().chain([socket, of("20000", "60000").into()]).collect()
        }
        "xz" => {
            // A program's own code is data of the kind that is packed.
            let data = room.join("data");
            let mut code = fs::read(&executable)?;
            code.truncate(if quick { 1 << 20 } else { 3 << 20 });
            fs::write(&data, code)?;
            ["xz", "-9", "-k", "-c"].map(OsString::from).into_iter().chain([data.into()]).collect()
        }
        _ => {
            let (script, rows) = (room.join("script.sql"), of("60000", "200000"));
            fs::write(
                &script,
                format!(
                    "create table t(a integer primary key, b text);\n\
                     with recursive n(i) as (select 1 union all select i+1 from n where i<{rows})\n\
                     insert into t select i, hex(i*2654435761%4294967296)||hex(i) from n;\n\
                     create index u on t(b);\n\
                     select count(*) from t x join t y on y.b = hex(x.a*2654435761%4294967296)||hex(x.a);\n"
                ),
            )?;
            let read = format!(".read {}", script.display());
            ["sqlite3", ":memory:", &read].map(OsString::from).to_vec()
        }
    }))
}

/// Why it cannot run here; `None` if it can.
pub fn missing(linux: &Linux) -> Option<String> {
    pagemill_control::huge::measure::allow_only_advised(linux).err().map(|error| error.to_string())
}

/// Runs it; `say` hears of each step.
pub fn run(
    linux: &Linux,
    options: Options,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Outcome> {
    let room = tempfile::Builder::new().prefix("pagemill-slices-").tempdir()?;
    let cost = pagemill_control::costs::calibrate(linux, false)?
        .measured
        .huge_ns
        .context("a huge page cannot be timed here")?;
    let mut outcome = Outcome {
        subjects: Vec::new(),
        missing: Vec::new(),
        options: options.clone(),
        interrupted: false,
    };
    for &name in &options.programs {
        let command = match command(name, options.quick, room.path())? {
            Ok(command) => command,
            Err(why) => {
                outcome.missing.push((name, why));
                continue;
            }
        };
        let words = match program::find(&command[0], std::env::var_os("PATH").as_deref()) {
            Ok(path) => Words::of(&path, Command::new(&path).args(&command[1..]), &command[0])?,
            Err(_) => {
                outcome.missing.push((name, format!("{name} is not installed")));
                continue;
            }
        };
        let measuring = Measuring {
            runs: options.runs,
            slices: if name == "slices" { PARTS } else { 60 },
            seed: options.seed,
            by: By::Cpu,
            from: Some(Means::Runs),
        };
        let measured = measure::measure(linux, &words, measuring, signals, &mut |done| {
            say(&format!("{name}: measured {done} of {} runs", options.runs));
        })?;
        let measured = match measured {
            Ok(measured) => measured,
            Err(error) => {
                outcome.missing.push((name, error.to_string()));
                continue;
            }
        };
        outcome.interrupted = measured.interrupted.is_some();
        if measured.benefits.is_empty() {
            if outcome.interrupted {
                return Ok(outcome);
            }
            outcome.missing.push((name, "its runs were too few or failed".to_owned()));
            continue;
        }
        let mut subject = Subject { name, arms: Vec::new(), measured };
        if !outcome.interrupted {
            outcome.interrupted =
                compare(linux, &words, &mut subject, cost, &options, signals, &mut say)?;
        }
        outcome.subjects.push(subject);
        if outcome.interrupted {
            break;
        }
    }
    Ok(outcome)
}

/// What a profile says that a huge page is worth at a place.
fn benefit(profile: &Profile, place: Place) -> u64 {
    const TOP: u64 = 1 << 46;
    let (section, base) = if place.heap { (Section::Heap, 0) } else { (Section::Mmap, TOP) };
    let start = if place.heap { place.offset } else { TOP - place.offset - CHUNK };
    let mapping = Mapping { start, end: start + CHUNK, section, base, ..Mapping::default() };
    profile.benefit(Kind::Huge, &mapping, start).value().unwrap_or(0)
}

/// Runs the program under each profile; whether a signal ended it.
fn compare(
    linux: &Linux,
    words: &Words,
    subject: &mut Subject,
    cost: u64,
    options: &Options,
    signals: &Signals,
    say: &mut impl FnMut(&str),
) -> Result<bool> {
    let profile = subject.measured.profile();
    let mean =
        profile.rows.iter().map(|row| row.benefit).sum::<u64>() / profile.rows.len().max(1) as u64;
    let mut profiles: Vec<(String, Option<Profile>)> =
        vec![("no huge pages".into(), Some(Profile::default())), ("all huge pages".into(), None)];
    profiles.push(("as measured".into(), Some(profile.clone())));
    for way in WAYS {
        let way = if way == "general" { format!("general={mean}") } else { way.to_owned() };
        let perturbation: Perturbation = way.parse().map_err(anyhow::Error::msg)?;
        profiles.push((way, Some(perturbation.apply(&profile, options.seed))));
    }
    let places = subject.measured.places();
    let pays = |profile: &Option<Profile>, place: Place| {
        profile.as_ref().is_none_or(|profile| benefit(profile, place) > cost)
    };
    let count =
        |profile: &Option<Profile>| places.iter().filter(|place| pays(profile, **place)).count();
    subject.arms = profiles
        .iter()
        .map(|(name, profile)| Arm {
            name: name.clone(),
            huge: count(profile),
            seconds: Vec::new(),
        })
        .collect();
    let mut order: Vec<usize> = (0..profiles.len()).collect();
    let mut random = Random::new(options.seed);
    for repetition in 0..options.repetitions {
        random.shuffle(&mut order);
        for &at in &order {
            say(&format!(
                "{}: {}, run {} of {}",
                subject.name,
                profiles[at].0,
                repetition + 1,
                options.repetitions
            ));
            let words = (&words.path, &words.arguments[..], &words.environment[..]);
            let run = advise::run(
                linux,
                words,
                signals,
                &|place| pays(&profiles[at].1, place),
                &mut advise::Alone,
            )??;
            if run.interrupted.is_some() {
                return Ok(true);
            }
            if run.ended == Ended::Exited(0) {
                subject.arms[at].seconds.push((run.used.user + run.used.system).as_secs_f64());
            }
        }
    }
    Ok(false)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

impl Subject {
    /// Share of all benefit that the greatest tenth of the slices has.
    fn top_tenth(&self) -> Option<f64> {
        let ranking = self.measured.ranking();
        let sum = |slices: &[usize]| -> f64 {
            slices.iter().map(|slice| self.measured.benefits[*slice].mean.max(0.0)).sum()
        };
        let all = sum(&ranking);
        (all > 0.0).then(|| sum(&ranking[..ranking.len().div_ceil(10)]) / all)
    }

    /// Of the parts that are chased, how many are among the greatest slices. Slices are parts if the mapping was cut as
    /// it is.
    fn found(&self) -> Option<usize> {
        if self.name != "slices" {
            return None;
        }
        let pieces = self.measured.slices.iter().flat_map(|slice| &slice.pieces);
        // The highest part is the nearest to the top of the mappings; the mapping's own rest lies below the first.
        let first = pieces.filter(|piece| !piece.heap).map(|piece| piece.from).min()?;
        let from = |part: usize| first + ((PARTS - 1 - part) * PART) as u64;
        let greatest = &self.measured.ranking()[..CHASED.len().min(self.measured.benefits.len())];
        let among = |part: usize| {
            let (low, high) = (from(part), from(part) + PART as u64);
            greatest.iter().any(|slice| {
                self.measured.slices[*slice].pieces.iter().any(|piece| {
                    let overlap = piece.to.min(high).saturating_sub(piece.from.max(low));
                    overlap * 2 > high - low
                })
            })
        };
        Some(CHASED.iter().filter(|(part, _)| among(*part)).count())
    }
}

impl Outcome {
    /// The tables.
    pub fn tables(&self) -> Vec<Table> {
        let seconds = |time: Option<f64>| time.map_or("-".into(), |time| format!("{time:.3}"));
        let rows = self.subjects.iter().map(|subject| {
            let measured = &subject.measured;
            let best = measured.ranking().first().copied();
            let sum: f64 = measured.benefits.iter().map(|benefit| benefit.mean).sum();
            let sure = measured.benefits.iter().filter(|benefit| benefit.sure()).count();
            let share = |time: f64| {
                measured
                    .uniform(false)
                    .map_or("-".into(), |none| format!("{:.1} %", time / none * 100.0))
            };
            vec![
                subject.name.to_owned(),
                (measured.runs.len() + 1).to_string(),
                measured.slices.len().to_string(),
                seconds(measured.uniform(false)),
                seconds(measured.uniform(true)),
                best.map_or("-".into(), |best| share(measured.benefits[best].mean)),
                share(sum),
                subject.top_tenth().map_or("-".into(), |share| format!("{:.0} %", share * 100.0)),
                sure.to_string(),
                share(measured.error),
                subject.found().map_or_else(String::new, |found| {
                    format!("{found} of {} chased parts are the greatest", CHASED.len())
                }),
            ]
        });
        let mut rows: Vec<Vec<String>> = rows.collect();
        for (name, why) in &self.missing {
            let mut row = vec![(*name).to_owned()];
            row.resize(10, "-".into());
            row.push(why.clone());
            rows.push(row);
        }
        let header = vec![
            "program",
            "runs",
            "slices",
            "none, s",
            "all, s",
            "best slice",
            "sum of slices",
            "in a tenth",
            "sure",
            "a run's error",
            "",
        ];
        let title =
            "benefit of each slice, CPU time (published, figure 1: 510 runs a program)".to_owned();
        let mut tables = vec![Table { title, header, rows }];
        for subject in &self.subjects {
            let base = subject.arms.first().map(|arm| arm.seconds.clone()).unwrap_or_default();
            let rows = subject.arms.iter().map(|arm| {
                let ratio =
                    ratio_of_medians(&arm.seconds, &base, &Bootstrap::seeded(self.options.seed));
                let interval = ratio.and_then(|ratio| ratio.interval);
                vec![
                    arm.name.clone(),
                    arm.huge.to_string(),
                    median(&arm.seconds).map_or("-".into(), milliseconds),
                    ratio.map_or("-".into(), |ratio| format!("{:.3}", ratio.value)),
                    interval.map_or("-".into(), |i| format!("[{:.3}, {:.3}]", i.low, i.high)),
                ]
            });
            let title = format!(
                "{}: profiles made wrong, {} runs each (published, claim 4: still benefits from imprecise profiles)",
                subject.name, self.options.repetitions
            );
            let header = vec!["profile", "huge pages", "ms of CPU", "to none", "95 % interval"];
            tables.push(Table { title, header, rows: rows.collect() });
        }
        tables
    }

    /// Figure 1: what each slice is worth, slices in the order of their addresses.
    pub fn charts(&self) -> Vec<LineChart> {
        let chart = |subject: &Subject| {
            let measured = &subject.measured;
            let line = |name: &str, value: &dyn Fn(usize) -> f64| {
                let points = (0..measured.benefits.len()).map(|at| (at as f64, value(at) * 1e3));
                Series { name: name.to_owned(), points: points.collect() }
            };
            LineChart {
                title: format!("{}: benefit of each slice (figure 1)", subject.name),
                x: "slice: mappings from the top down, then the heap".into(),
                y: "ms of CPU time a run".into(),
                series: vec![
                    line("benefit", &|at| measured.benefits[at].mean),
                    line("95 % interval, low", &|at| measured.interval(at).0),
                    line("95 % interval, high", &|at| measured.interval(at).1),
                ],
            }
        };
        self.subjects.iter().map(chart).collect()
    }

    /// Every figure.
    pub fn json(&self) -> Value {
        let subjects = self.subjects.iter().map(|subject| {
            let measured = &subject.measured;
            json!({
                "program": subject.name,
                "runs": measured.runs.len() + 1,
                "took_seconds": Duration::as_secs_f64(&measured.took),
                "benefits_seconds": measured.benefits.iter().map(|benefit| [benefit.mean, benefit.deviation]).collect::<Vec<_>>(),
                "profile": measured.profile().to_string(),
                "chased_found": subject.found(),
                "profiles": subject.arms.iter().map(|arm| json!({
                    "profile": arm.name, "huge_pages": arm.huge, "cpu_seconds": arm.seconds,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "schema": 1, "experiment": NAME, "interrupted": self.interrupted,
            "programs": subjects.collect::<Vec<_>>(),
            "missing": self.missing.iter().map(|(name, why)| json!({ "program": name, "why": why })).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_command_or_a_reason_and_no_other_is_known() {
        let room = tempfile::tempdir().unwrap();
        for name in PROGRAMS {
            let found = command(name, true, room.path()).unwrap();
            assert!(found.is_err() || found.is_ok_and(|words| words.len() >= 3), "{name}");
        }
        let only = |name: &str| Options::new(true, None, 1, Some(&[name.to_owned()]));
        assert_eq!(only("xz").unwrap().programs, ["xz"]);
        assert!(only("doom").unwrap_err().to_string().contains("among slices growing-server"));
    }

    #[test]
    fn a_profile_is_looked_up_by_place() {
        let text = "# unit: ns\nhuge,heap,7,section_off,>,0x200000,section_off,<,0x400000\n\
                    huge,mmap,9,section_off,>,0x400000,section_off,<,0x800000\n";
        let profile = Profile::parse(text).unwrap();
        let at = |heap, chunk| benefit(&profile, Place { heap, offset: chunk * CHUNK });
        assert_eq!([at(true, 0), at(true, 1), at(true, 2)], [0, 7, 0]);
        assert_eq!([at(false, 1), at(false, 2), at(false, 3), at(false, 4)], [0, 9, 9, 0]);
    }
}

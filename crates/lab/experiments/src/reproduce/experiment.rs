//! Experiments as files: what to run, on which arms, what to measure and what was published.
//!
//! The files are compiled into the binary, so that it needs nothing beside it. Unknown keys are
//! errors: a misspelt key would silently change an experiment.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use pagemill_launch::meant::meant;
use serde::Deserialize;

use crate::coverage::MESH;

/// The experiments, in the order in which they run.
const FILES: [&str; 10] = [
    include_str!("../../../../../experiments/redis-fragmentation.toml"),
    include_str!("../../../../../experiments/ruby-strings.toml"),
    include_str!("../../../../../experiments/perl.toml"),
    include_str!("../../../../../experiments/compiler.toml"),
    include_str!("../../../../../experiments/sqlite.toml"),
    include_str!("../../../../../experiments/spec.toml"),
    include_str!("../../../../../experiments/throughput.toml"),
    include_str!("../../../../../experiments/pauses.toml"),
    include_str!("../../../../../experiments/unfragmented.toml"),
    include_str!("../../../../../experiments/browsers.toml"),
];

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// Its name on the command line.
    pub name: String,
    /// The group it belongs to; naming the group runs all of it.
    pub group: String,
    /// A heading.
    pub title: String,
    /// What happens in it, in a paragraph.
    pub about: String,
    /// Arms, or `ours` for all of ours.
    pub arms: Vec<String>,
    /// Runs of each arm.
    pub repetitions: u32,
    /// Roughly how long a cell takes, until that is known.
    pub seconds: f64,
    /// What to run.
    pub program: Program,
    /// How memory is sampled.
    pub sampling: Sampling,
    /// What `--quick` changes.
    pub quick: Quick,
    /// What is measured, in the order of the table.
    #[serde(rename = "metric")]
    pub metrics: Vec<Metric>,
    /// What the publication says.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    /// What this project asks of itself.
    #[serde(rename = "goal", default)]
    pub goals: Vec<Goal>,
}

/// The program of an experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Program {
    /// A Redis server under the published load.
    Redis(Redis),
    /// The Ruby program of strings.
    #[serde(rename_all = "kebab-case")]
    Ruby {
        /// Contents held, in MiB.
        megabytes: u32,
        /// Times that the length doubles.
        rounds: u32,
        /// Sleep after each round.
        sleep_seconds: f64,
    },
    /// SpamAssassin over a generated mailbox.
    Spamassassin {
        /// Messages in it.
        messages: usize,
    },
    /// cc1 on a generated file.
    Compiler {
        /// Functions in it.
        functions: usize,
        /// Optimisation level.
        level: String,
    },
    /// The SQLite shell on a generated script.
    Sqlite {
        /// Rows that the script inserts.
        rows: usize,
    },
    /// Browsers on a page of our own.
    Browser(Browsing),
    /// Packaged programs, each a case.
    Packaged(Vec<Packaged>),
    /// Programs of our own.
    #[serde(rename_all = "kebab-case")]
    Workload {
        /// Which; each is a case.
        names: Vec<String>,
        /// Threads.
        threads: usize,
        /// Run time of those that run for a time.
        seconds: f64,
        /// Idle time before the final reading of memory.
        #[serde(default)]
        hold_seconds: f64,
    },
}

/// A page in browsers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Browsing {
    /// Which browsers; each is a case.
    pub browsers: Vec<Browser>,
    /// How often the page makes its contents anew.
    pub steps: u32,
    /// From the last step to the final reading.
    pub rest_seconds: f64,
}

/// A browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Browser {
    /// Debian's Firefox ESR, headless.
    Firefox,
    /// The `MiniBrowser` of WebKitGTK, on a virtual screen.
    Webkit,
}

impl Browser {
    /// Its name as a case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firefox => "firefox",
            Self::Webkit => "webkit",
        }
    }
}

/// A packaged program on inputs that are made for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Packaged {
    /// Its name as a case.
    pub case: String,
    /// What to start; `pagemill` is this binary, whose report is checked.
    pub run: String,
    /// The Debian package that has it.
    #[serde(default)]
    pub package: String,
    /// Arguments, in which `{NAME}` stands for an input's path, and `{out}`, `{scale}` and `{seed}` for a path to
    /// write to and for those of the run.
    pub arguments: Vec<String>,
    /// Inputs, with their size.
    #[serde(default)]
    pub inputs: BTreeMap<Input, usize>,
    /// Share of the run's scale that `{scale}` stands for.
    #[serde(default = "full")]
    pub scale: f64,
    /// The input that it reads from standard input.
    pub standard_input: Option<Input>,
    /// The file that is the same in every arm, instead of the output.
    pub same_file: Option<String>,
    /// Only lines that begin so are the same in every arm; others tell times.
    pub same_lines: Option<String>,
}

/// What can be made for a packaged program; sizes are in the unit named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// KiB of words.
    Prose,
    /// Articles in XML.
    Articles,
    /// What turns them into a table.
    Stylesheet,
    /// Proteins to search for.
    Queries,
    /// Proteins to search in.
    Proteins,
    /// Moves of each side.
    GoGame,
    /// Frames.
    Film,
    /// Spheres.
    Scene,
}

impl Input {
    /// Its name in a file and in `{NAME}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prose => "prose",
            Self::Articles => "articles",
            Self::Stylesheet => "stylesheet",
            Self::Queries => "queries",
            Self::Proteins => "proteins",
            Self::GoGame => "go-game",
            Self::Film => "film",
            Self::Scene => "scene",
        }
    }
}

/// The Redis load and when it is over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Redis {
    /// Ways of inserting; each is a case.
    pub loads: Vec<Load>,
    /// `maxmemory`, in MiB.
    pub maxmemory_mb: u64,
    /// What is inserted.
    pub phases: Vec<Phase>,
    /// Commands a pipeline.
    pub pipeline: u64,
    /// From the first insertion to the final reading.
    pub window_seconds: f64,
    /// From the last insertion to the final reading at least: a slow machine inserts for longer than the window.
    pub rest_seconds: f64,
    /// Interval of the connection that measures reply times.
    pub ping_every_ms: u64,
    /// Background saves at its end, of whose forks the shortest counts: what others do only makes one longer.
    pub forks: std::num::NonZeroU32,
    /// Memory is flat when it moved by less than this share …
    pub converged_percent: f64,
    /// … during this time.
    pub converged_seconds: f64,
    /// When to stop waiting for it.
    pub converge_at_most_seconds: f64,
}

/// A way of inserting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// A client sends commands in pipelines; the server evicts as it goes.
    Pipelined,
    /// `DEBUG POPULATE`, as in the published artifact: the server makes all values of a phase in
    /// one command and evicts after it, so its heap grows to twice the limit first. The phases are of different
    /// seconds of the server's LRU clock, as where inserting took 1.7 s: old values are evicted before young ones.
    Populate,
    /// The same in one second of that clock: old and young values are evicted alike.
    PopulateAtOnce,
}

impl Load {
    /// Its name as a case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined",
            Self::Populate => "populate",
            Self::PopulateAtOnce => "populate-at-once",
        }
    }
}

/// Values of one size.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// How many.
    pub keys: u64,
    /// How large.
    pub bytes: usize,
}

/// How memory is sampled.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sampling {
    /// Interval.
    pub every_ms: u64,
}

/// What `--quick` changes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Arms.
    pub arms: Vec<String>,
    /// Runs of each arm.
    pub repetitions: u32,
    /// Arms that run only in the first repetition, because they take long.
    #[serde(default)]
    pub once: Vec<String>,
    /// Ways of inserting that are left out.
    #[serde(default, rename = "without-loads")]
    pub without_loads: Vec<Load>,
    /// Share of the full size.
    #[serde(default = "full")]
    pub scale: f64,
}

fn full() -> f64 {
    1.0
}

/// A measured quantity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name in the results.
    pub name: String,
    /// Its name in tables.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// Whether it is the memory figure of the experiment.
    #[serde(default)]
    pub memory: bool,
    /// Whether it is the time figure of the experiment.
    #[serde(default)]
    pub time: bool,
}

/// Units that results are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A bare number.
    Count,
}

/// Names a published number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// First column.
    pub experiment: String,
    /// Second column.
    pub subject: String,
    /// Third column.
    pub metric: String,
}

/// A published statement and the measurement that answers it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// The statement, in words.
    pub says: String,
    /// The number: a change in percent, or with `published_against` the numerator of a ratio.
    pub published: Reference,
    /// The denominator.
    pub published_against: Option<Reference>,
    /// The number is no ratio: a measured value times this factor compares with it.
    pub absolute: Option<f64>,
    /// The claim is "no difference", meaning less than this share.
    pub similar: Option<f64>,
    /// The metric that answers it.
    pub metric: String,
    /// The cases that it is about, as a geometric mean; all of them if none is named.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Arms that stand for Mesh.
    pub arms: Vec<String>,
    /// The arm compared with.
    pub against: Option<String>,
}

/// A target: lower is better in all of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// What is asked, in words.
    pub says: String,
    /// The metric.
    pub metric: String,
    /// Factor on the metric, for targets in another unit.
    #[serde(default = "full")]
    pub scale: f64,
    /// The cases that it is about, as a geometric mean; all of them if none is named.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Arms that the target is for.
    pub arms: Vec<String>,
    /// The arm compared with; without one the value itself is.
    pub against: Option<String>,
    /// What must be reached.
    pub must: f64,
    /// What is hoped for.
    pub aim: f64,
}

/// A published number.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Which one.
    pub reference: Reference,
    /// Its unit, as published.
    pub unit: String,
    /// Its value, as published: a number or words.
    pub value: String,
    /// A remark.
    pub note: String,
}

impl Experiment {
    /// Cases: names of the programs of an experiment that has several, else its own name.
    pub fn cases(&self) -> Vec<String> {
        match &self.program {
            Program::Workload { names, .. } => names.clone(),
            Program::Redis(redis) => redis.loads.iter().map(|load| load.name().into()).collect(),
            Program::Packaged(programs) => programs.iter().map(|one| one.case.clone()).collect(),
            Program::Browser(page) => page.browsers.iter().map(|one| one.name().into()).collect(),
            _ => vec![self.name.clone()],
        }
    }

    /// The metric of this name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }
}

/// All experiments.
///
/// # Errors
/// A file of an experiment is malformed: which.
pub fn all() -> Result<Vec<Experiment>> {
    FILES
        .iter()
        .map(|text| {
            let experiment: Experiment =
                toml::from_str(text).context("an experiment file is malformed")?;
            check(&experiment).with_context(|| format!("experiment {}", experiment.name))?;
            Ok(experiment)
        })
        .collect()
}

/// What the format cannot say: references that lead nowhere.
fn check(experiment: &Experiment) -> Result<()> {
    let published = published()?;
    let known = |wanted: &Reference| {
        ensure!(
            published.iter().any(|number| number.reference == *wanted),
            "no published number {wanted:?}"
        );
        Ok(())
    };
    let cases = experiment.cases();
    let has_case = |case: &String| {
        ensure!(cases.contains(case), "no case {case:?}");
        Ok(())
    };
    for claim in &experiment.claims {
        known(&claim.published)?;
        claim.published_against.as_ref().map_or(Ok(()), known)?;
        ensure!(experiment.metric(&claim.metric).is_some(), "no metric {:?}", claim.metric);
        claim.cases.iter().try_for_each(has_case)?;
    }
    for goal in &experiment.goals {
        ensure!(experiment.metric(&goal.metric).is_some(), "no metric {:?}", goal.metric);
        goal.cases.iter().try_for_each(has_case)?;
    }
    for wanted in [true, false] {
        let count = experiment
            .metrics
            .iter()
            .filter(|metric| if wanted { metric.memory } else { metric.time })
            .count();
        ensure!(count == 1, "exactly one metric is the memory and one is the time figure");
    }
    Ok(())
}

/// The experiments that `names` select: all for no name, a group for a group's name.
/// `others` are names that the caller knows.
///
/// # Errors
/// There is no experiment or group of a name.
pub fn select(names: &[String], others: &[&str]) -> Result<Vec<Experiment>> {
    let all = all()?;
    for name in names {
        if !all.iter().any(|one| one.name == *name || one.group == *name) {
            let of_mesh: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
            let known = all.iter().flat_map(|one| [one.name.as_str(), &one.group]);
            bail!(
                "there is no experiment {name:?}{}; valid names: {}, mesh (all of the following), {}",
                meant(name, known.chain(others.iter().copied())),
                others.join(", "),
                of_mesh.join(", ")
            );
        }
    }
    let chosen =
        |one: &Experiment| names.iter().any(|name| one.name == *name || one.group == *name);
    Ok(all.into_iter().filter(|one| names.is_empty() || chosen(one)).collect())
}

/// Those of `known` that are named.
///
/// # Errors
/// For a name that is none, with the one that may have been meant.
pub fn chosen(what: &str, known: &[&'static str], names: &[String]) -> Result<Vec<&'static str>> {
    if let Some(odd) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let meant = meant(odd, known.iter().copied());
        bail!("there is no {what} {odd:?}{meant}; valid: {}", known.join(", "));
    }
    Ok(known.iter().copied().filter(|one| names.iter().any(|name| name == one)).collect())
}

/// The published numbers.
///
/// # Errors
/// A line of the file is malformed.
pub fn published() -> Result<Vec<Published>> {
    MESH.figures
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.splitn(6, ',').collect();
            let [experiment, subject, metric, unit, value, note] = fields[..] else {
                bail!("published number {line:?} does not have six fields");
            };
            let [experiment, subject, metric] = [experiment, subject, metric].map(str::to_owned);
            Ok(Published {
                reference: Reference { experiment, subject, metric },
                unit: unit.to_owned(),
                value: value.to_owned(),
                note: note.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::arm;

    #[test]
    fn every_experiment_reads_and_its_references_lead_somewhere() {
        let all = all().unwrap();
        assert_eq!(all.len(), FILES.len());
        for experiment in all {
            let named = experiment.arms.iter().chain(&experiment.quick.arms);
            let judged = experiment.claims.iter().flat_map(|claim| &claim.arms);
            let aimed = experiment.goals.iter().flat_map(|goal| &goal.arms);
            for name in named.chain(judged).chain(aimed) {
                assert!(arm::expand(std::slice::from_ref(name)).is_ok(), "{name}");
            }
            for case in experiment.cases() {
                let ours = matches!(experiment.program, Program::Workload { .. });
                assert!(!ours || pagemill_workloads::programs::find(&case).is_some(), "{case}");
            }
        }
    }

    #[test]
    fn a_group_is_all_of_its_experiments_and_an_unknown_name_lists_the_valid_ones() {
        assert_eq!(select(&["mesh".into()], &[]).unwrap().len(), FILES.len());
        assert_eq!(select(&[], &[]).unwrap().len(), FILES.len());
        assert_eq!(select(&["perl".into()], &[]).unwrap()[0].name, "perl");
        let error = select(&["pearl".into()], &[]).unwrap_err().to_string();
        assert!(error.contains("\"pearl\" (did you mean \"perl\"?)"), "{error}");
        assert!(error.contains("redis-fragmentation"), "{error}");
    }

    #[test]
    fn every_published_figure_is_claimed_by_an_experiment_or_named_as_not_run() {
        crate::coverage::tests::is_complete(&crate::coverage::MESH, || {
            let experiments = all().unwrap();
            let claims = experiments.iter().flat_map(|one| &one.claims);
            let named =
                claims.flat_map(|one| [Some(&one.published), one.published_against.as_ref()]);
            let named: Vec<&Reference> = named.flatten().collect();
            for line in MESH.figures.lines() {
                let start =
                    |of: &Reference| format!("{},{},{},", of.experiment, of.subject, of.metric);
                if named.iter().any(|of| line.starts_with(&start(of))) {
                    crate::coverage::looked_up(line);
                }
            }
        });
    }

    #[test]
    fn a_misspelt_key_is_an_error() {
        let text = FILES[0].replacen("repetitions = ", "repetition = ", 1);
        assert_ne!(text, FILES[0]);
        assert!(toml::from_str::<Experiment>(&text).is_err());
    }

    #[test]
    fn published_numbers_keep_their_notes() {
        let all = published().unwrap();
        let saved = all.iter().find(|one| one.reference.metric == "heap change").unwrap();
        assert_eq!((saved.unit.as_str(), saved.value.as_str()), ("percent", "-39"));
        assert!(saved.note.contains("activedefrag"));
    }
}

//! `pagemill simulate`: a workload on the simulated two-tier machine, any set of policies side by side.

mod huge;
mod sweep;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_launch::progress::Progress;
use pagemill_model::Bytes;
use pagemill_policy::tier::compose;
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::run::{Report, Setup};
use pagemill_sim::surface::Effort;
use pagemill_sim::workload;
use serde::Serialize;

use pagemill_experiments::reproduce::experiment::meant;
use pagemill_experiments::reproduce::keep::Keep;
use pagemill_experiments::{colloid, recorded};
use pagemill_launch::exit::Exit;
use pagemill_launch::input;

/// Runs a workload on a simulated machine with two memory tiers, under one or more placement policies.
///
/// Everything it prints is modelled.
#[derive(Debug, Args)]
#[command(
    before_help = "Examples:
  pagemill simulate gups --policy tpp,tpp+colloid --antagonist 3
  pagemill simulate zipf --policy hemem,hemem+colloid,memtis --seconds 60
  pagemill simulate moving --policy hemem+watermark --move-at 50
  pagemill simulate scattered --policy hemem,memtis --seconds 600
  pagemill simulate gups --policy tpp,damon --seconds 7200
  pagemill simulate rec --tiers fast=2G,slow=8G --policy none,hemem,hemem+colloid
  pagemill simulate rec --sweep                        how much fast memory the program needs
  pagemill simulate grow --huge linux-always,linux-never,cbmm+ --fragmented 1
  pagemill plan --costs --json > costs.json; pagemill simulate rec --huge linux-always,cbmm+ --costs costs.json
  pagemill simulate --figure 6c,8b --sensitivity
  pagemill simulate --print-machine > mine.toml && pagemill simulate gups --machine mine.toml",
    after_help = "Exit status: 0 ok, 2 usage or error: of a wrong machine file the line, the key and the valid values."
)]
pub struct Arguments {
    /// The workload: gups, silo, pagerank, cachelib, chase, zipf, moving or scattered, or a recording that
    /// pagemill tier --record or pagemill record --with accesses wrote; with --huge: grow, random, hot, sparse, or a
    /// recording with faults.
    #[arg(default_value = "gups")]
    workload: String,
    #[command(flatten)]
    huge: huge::Options,
    /// Policies, separated by commas: none, damon (the kernel's tiering by DAMON), tpp, hemem, memtis; the last three
    /// +colloid (balances latencies as shipped), the last two +watermark (the paper's search) and +ucb (finds the
    /// share at which it is fastest)
    /// [default: none,tpp,tpp+colloid; with --sweep the best static placement alone].
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Throughput by the size of the fast tier, doubling from FROM to TO (up to the whole program), and how much of it
    /// 9 of 10 of the speed needs; the slow tier holds the rest.
    #[arg(
        long,
        value_name = "fast=FROM..TO",
        num_args = 0..=1,
        default_missing_value = "all",
        conflicts_with_all = ["figure", "sensitivity"]
    )]
    sweep: Option<sweep::Sizes>,
    /// Sizes of the tiers instead of the machine's: fast=2G,slow=8G (or default=, alternate=), in either order; with
    /// other names the default tier first.
    #[arg(long, value_name = "TIERS")]
    tiers: Option<String>,
    /// With a recording: what cores do between two reads is not recorded, so it is as in this workload [default: zipf].
    #[arg(long = "as", value_name = "WORKLOAD")]
    like: Option<String>,
    /// Threads that the program runs on, instead of the workload's (15 for most) or the recorded program's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// A machine file; the built-in one is that of the published evaluation.
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Unloaded latency of the alternate tier in nanoseconds, instead of the machine's.
    #[arg(long, value_name = "NS", allow_negative_numbers = true)]
    unloaded: Option<f64>,
    /// Background load on the default tier, in steps of the machine's antagonist cores.
    #[arg(long, value_name = "STEPS", default_value_t = 0.0, allow_negative_numbers = true)]
    antagonist: f64,
    /// The background load starts at this second rather than at once.
    #[arg(long, value_name = "SECOND", allow_negative_numbers = true)]
    antagonist_at: Option<f64>,
    /// The hot set moves at this second [default: half of the run for moving and recordings, never for gups].
    #[arg(long, value_name = "SECOND", allow_negative_numbers = true)]
    move_at: Option<f64>,
    /// Length of the run.
    #[arg(long, default_value_t = 120.0, allow_negative_numbers = true)]
    seconds: f64,
    /// One page in so many is simulated; 1 simulates them all.
    #[arg(long, value_name = "PAGES", allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Policies are told latencies and rates with an error of this percentage, each quantum anew.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_negative_numbers = true)]
    noise: f64,
    /// Seed: the same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Figures of the published evaluation: setup, 4, 6a, 6b, 6c, 6c+thp, 7, 8a, 8b, 8b+thp, 8c, regret.
    #[arg(long, value_delimiter = ',', value_name = "FIGURES", conflicts_with_all = OF_A_RUN)]
    figure: Vec<String>,
    /// What a tenth more or less of each parameter does to each cell of 6c and 8b: half an hour of processor time (see
    /// --keep).
    #[arg(long, conflicts_with_all = OF_A_RUN)]
    sensitivity: bool,
    /// With --figure: fewer pages and points.
    #[arg(long)]
    quick: bool,
    /// With --figure regret: the random machines and loads with these seeds, 1..100 say; 1001..1500 are for judging a
    /// placer that is finished.
    #[arg(long, value_name = "FROM..TO", value_parser = points)]
    points: Option<(u64, u64)>,
    /// With --figure or --sensitivity: keeps what is finished in this directory, and goes on from there.
    #[arg(long, value_name = "DIR", value_parser = crate::values::directory())]
    keep: Option<PathBuf>,
    /// Prints the built-in machine file, with the source of each value, and ends.
    #[arg(long)]
    print_machine: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
}

/// Bytes, to be read.
fn size(bytes: f64) -> String {
    Bytes(bytes as u64).plain()
}

/// A range of seeds, both ends included.
fn points(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| {
        Some((from.parse::<u64>().ok()?, to.trim_start_matches('=').parse::<u64>().ok()?))
    });
    match ends {
        Some((from, to)) if from <= to && to - from < 10_000 => Ok((from, to)),
        _ => {
            Err("valid: FROM..TO, both included, at most 10000 of them, such as 1..100".to_owned())
        }
    }
}

/// What is run where nothing is asked for.
const POLICIES: &str = "none,tpp,tpp+colloid";

/// What figures and sensitivity have of their own.
const OF_A_RUN: [&str; 10] = [
    "policy",
    "tiers",
    "like",
    "threads",
    "antagonist",
    "antagonist_at",
    "move_at",
    "seconds",
    "scale",
    "noise",
];

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    antagonist: f64,
    seed: u64,
    modelled: bool,
    policy: String,
    units_per_s: f64,
    unit: &'static str,
    share: f64,
    default_ns: f64,
    alternate_ns: f64,
    promoted_per_s: f64,
    demoted_per_s: f64,
    best_share: f64,
    best_units_per_s: f64,
    regret: f64,
    simulated_bytes_per_page: f64,
    /// Part of the memory whose huge pages were split.
    split: f64,
    timeline: Vec<[f64; 5]>,
}

impl Arguments {
    /// Runs the verb.
    pub fn run(self) -> Result<Exit> {
        if self.print_machine {
            pagemill_launch::stdio::is_verbatim();
            print!("{ICELAKE}");
            return Ok(Exit::Ok);
        }
        if self.huge.asked() {
            return self.huge.run(&self.workload, self.seed, self.printed.json);
        }
        let machine = self.machine()?;
        if !self.figure.is_empty() || self.sensitivity {
            return self.figures(machine);
        }
        if self.quick || self.keep.is_some() || self.points.is_some() {
            bail!(
                "--quick, --keep and --points go with --figure or --sensitivity: there is one run to make"
            );
        }
        if let Some(unknown) = self.policy.iter().find(|name| compose::find(name).is_none()) {
            let names = compose::names();
            let meant = meant(unknown, names.iter().map(AsRef::as_ref));
            bail!("no policy '{unknown}'{meant}; valid: {}", names.join(", "));
        }
        if let Some(sizes) = self.sweep {
            return self.sweep(sizes, &machine);
        }
        let machine = self.sized(machine)?;
        let load = self.load(&machine)?;
        self.fits(&machine, &load)?;
        self.in_range(&load)?;
        let mut rows = Vec::new();
        let named = self.policy.iter().map(String::as_str);
        let policies: Vec<&str> =
            if self.policy.is_empty() { POLICIES.split(',').collect() } else { named.collect() };
        for policy in policies {
            let report = self.simulate(&self.setup(&machine, &load, policy)?);
            rows.push(self.row(policy, &load, &report));
        }
        if self.printed.json {
            crate::answer::print("simulate", &rows)?;
        } else {
            self.print(&load, &rows);
        }
        Ok(Exit::Ok)
    }

    /// One policy's run.
    fn setup(&self, machine: &Machine, load: &workload::Workload, policy: &str) -> Result<Setup> {
        let recorded = load.name == "recording";
        let setup = Setup {
            machine: machine.clone(),
            workload: load.clone(),
            policy: policy.to_owned(),
            steps: if self.antagonist_at.is_some() { 0.0 } else { self.antagonist },
            later_steps: self.antagonist_at.map(|at| (self.antagonist, at)),
            // The second half of a recording is where its hot set has moved to.
            moves_at: self
                .move_at
                .or((recorded || load.name == "moving").then_some(self.seconds / 2.0)),
            seconds: self.seconds,
            scale: 1.0,
            noise: self.noise / 100.0,
            seed: self.seed,
            effort: Effort { seed: self.seed, ..Effort::default() },
        };
        let pages = load.bytes() / setup.page_bytes();
        let coarsest = setup.coarsest();
        let scale = match self.scale {
            Some(scale) if scale > coarsest => bail!(
                "--scale {scale}: {policy} would have {:.0} pages of {}; valid: 1 to {coarsest:.0}",
                pages / scale,
                size(setup.page_bytes()),
            ),
            Some(scale) => scale,
            None if recorded => (pages / f64::from(1 << 20)).max(1.0),
            None if setup.page_bytes() > 65_536.0 => coarsest.min(8.0),
            None => coarsest.min(64.0),
        };
        Ok(Setup { scale, ..setup })
    }

    /// Runs it, with progress.
    fn simulate(&self, setup: &Setup) -> Report {
        let policy = &setup.policy;
        let mut progress = Progress::new(policy);
        let prepared = setup.prepare(&mut |at, of| {
            progress.say(&format!("memory at {at} of {of} points"));
        });
        drop(progress);
        let mut progress = Progress::of(policy, self.seconds as u64);
        progress.say("of simulated seconds");
        setup.run(&prepared, &mut |second| progress.at(second as u64))
    }

    /// Refuses what would be passed over in silence.
    fn in_range(&self, load: &workload::Workload) -> Result<()> {
        for (flag, value, least, most) in [
            ("--antagonist", Some(self.antagonist), 0.0, 100.0),
            ("--seconds", Some(self.seconds), 0.02, 1e6),
            ("--scale", self.scale, 1.0, 1e6),
            ("--noise", Some(self.noise), 0.0, 100.0),
            ("--move-at", self.move_at, 0.0, self.seconds),
            ("--antagonist-at", self.antagonist_at, 0.0, self.seconds),
        ] {
            if let Some(value) = value
                && !(least..=most).contains(&value)
            {
                bail!("{flag} {value} is out of range; valid: {least} to {most}");
            }
        }
        if self.antagonist_at.is_some() && self.antagonist == 0.0 {
            bail!("--antagonist-at: there is no antagonist; valid: with --antagonist STEPS");
        }
        if self.like.is_some() && load.name != "recording" {
            bail!("--as says what a recording does not; {} is none", load.name);
        }
        if self.move_at.is_some() && load.classes.iter().all(|class| class.later == class.weight) {
            bail!(
                "--move-at: {} has no hot set that moves; valid: gups, moving or a recording",
                load.name
            );
        }
        Ok(())
    }

    /// Whether the memory of both tiers is enough.
    fn fits(&self, machine: &Machine, load: &workload::Workload) -> Result<()> {
        let room =
            machine.get("tier.default.capacity_gib") + machine.get("tier.alternate.capacity_gib");
        if load.bytes() <= room * workload::GIB {
            return Ok(());
        }
        let whose = match (&self.tiers, &self.machine) {
            (Some(tiers), _) => format!("--tiers {tiers}"),
            (None, Some(file)) => format!("{}: tier.*.capacity_gib", file.display()),
            (None, None) => "the machine (--tiers sets its sizes)".to_owned(),
        };
        bail!(
            "{whose}: {} of {} do not fit into {}",
            size(load.bytes()),
            load.name,
            size(room * workload::GIB)
        );
    }

    fn machine(&self) -> Result<Machine> {
        let machine = match &self.machine {
            None => Machine::parse(ICELAKE).context("the built-in machine")?,
            Some(path) => {
                let text = input::text(path)?;
                Machine::parse(&text).with_context(|| format!("{}", path.display()))?
            }
        };
        Ok(match self.unloaded {
            Some(ns) if !(1.0..=10_000.0).contains(&ns) => {
                bail!("--unloaded {ns} is out of range; valid: 1 to 10000 ns")
            }
            Some(ns) => {
                let machine = machine.with("tier.alternate.unloaded_ns", ns);
                if let Err(error) = machine.check() {
                    bail!("--unloaded {ns}: {}; valid: {}", error.what, error.valid);
                }
                machine
            }
            None => machine,
        })
    }

    /// A workload by name, or a recording.
    fn load(&self, machine: &Machine) -> Result<workload::Workload> {
        let mut load = self.program(machine)?;
        load.cores = match self.threads {
            Some(threads) => usize::from(threads),
            None => load.cores,
        };
        // What the evaluation gave a workload holds on its machine only.
        let size = |machine: &Machine| machine.get("tier.default.capacity_gib");
        if self.tiers.is_some() || size(machine) != size(&Machine::parse(ICELAKE)?) {
            load.default_gib = None;
        }
        Ok(load)
    }

    fn program(&self, machine: &Machine) -> Result<workload::Workload> {
        let named = |name: &str| {
            workload::named(name, machine).with_context(|| {
                let meant = meant(name, workload::NAMES.iter().copied());
                format!("no workload '{name}'{meant}; valid: {}", workload::NAMES.join(", "))
            })
        };
        let path = Path::new(&self.workload);
        if !path.is_dir() {
            let hint =
                if self.workload.contains('/') { " or the directory of a recording" } else { "" };
            return named(&self.workload).map_err(|error| anyhow::anyhow!("{error:#}{hint}"));
        }
        let like = named(self.like.as_deref().unwrap_or("zipf"))?;
        let (load, guessed) = recorded::program(path, &like)?;
        if guessed && self.threads.is_none() {
            eprintln!(
                "pagemill: {} does not say how many threads the program had: {}, as in {} (--threads N)",
                path.display(),
                load.cores,
                like.name
            );
        }
        Ok(load)
    }

    /// The machine with the sizes of `--tiers`.
    fn sized(&self, machine: Machine) -> Result<Machine> {
        let Some(text) = &self.tiers else { return Ok(machine) };
        let valid = "valid: two tiers, the faster first, such as fast=2G,slow=8G";
        let parts: Vec<&str> = text.split(',').collect();
        let [first, second] = parts.as_slice() else {
            bail!("--tiers {text}: it has {} tiers; {valid}", parts.len());
        };
        // Which tier is the default one is in the name, where the name says it.
        let faster = |part: &str| match part.split('=').next() {
            Some("fast" | "default") => Some(true),
            Some("slow" | "alternate") => Some(false),
            _ => None,
        };
        let (fast, slow) = match (faster(first), faster(second)) {
            (Some(one), Some(other)) if one == other => {
                bail!("--tiers {text}: both are the same tier by their names; {valid}")
            }
            (Some(false), _) | (_, Some(true)) => (second, first),
            _ => (first, second),
        };
        eprintln!("pagemill: default tier (the faster one) {fast}, alternate tier {slow}");
        let mut machine = machine;
        for (key, part) in ["tier.default.capacity_gib", "tier.alternate.capacity_gib"]
            .into_iter()
            .zip([fast, slow])
        {
            let (name, size) = part
                .split_once('=')
                .with_context(|| format!("--tiers {part}: no size; {valid}"))?;
            let size: Bytes = size.parse().with_context(|| format!("--tiers {name}"))?;
            if !(1 << 20..=1 << 46).contains(&size.0) {
                bail!("--tiers {name}: {}; valid: 1M to 64T", size.plain());
            }
            machine = machine.with(key, size.0 as f64 / workload::GIB);
        }
        Ok(machine)
    }

    fn figures(&self, machine: Machine) -> Result<Exit> {
        let mut options = colloid::Options::new(self.quick, self.seed)?;
        options.only(Some(&self.figure))?;
        options = colloid::Options {
            machine,
            sensitivity: self.sensitivity,
            points: self.points,
            ..options
        };
        let mut progress = Progress::new("simulate");
        let scratch = tempfile::tempdir()?;
        let directory = self.keep.as_deref().unwrap_or(scratch.path());
        let keep = options.keep(Keep::new(directory)?);
        let report =
            colloid::run(&options, (None, &keep), &mut |step| progress.say(step), &mut |_| Ok(()))?;
        drop(progress);
        if self.printed.json {
            crate::answer::print("simulate-figures", report.json()?)?;
        } else {
            print!("{}", report.text());
        }
        Ok(Exit::Ok)
    }

    fn row(&self, policy: &str, load: &workload::Workload, report: &Report) -> Row {
        let last = report.last;
        Row {
            workload: load.name,
            antagonist: self.antagonist,
            seed: self.seed,
            modelled: true,
            policy: policy.to_owned(),
            units_per_s: last.units_per_s,
            unit: load.unit,
            share: last.share,
            default_ns: last.default_ns,
            alternate_ns: last.alternate_ns,
            promoted_per_s: last.promoted,
            demoted_per_s: last.demoted,
            best_share: report.best.0,
            best_units_per_s: report.best.1,
            regret: 1.0 - last.units_per_s / report.best.1.max(f64::MIN_POSITIVE),
            simulated_bytes_per_page: report.bytes_per_page,
            split: report.split,
            timeline: report
                .samples
                .iter()
                .map(|s| [s.second, s.units_per_s, s.share, s.default_ns, s.alternate_ns])
                .collect(),
        }
    }

    fn print(&self, load: &workload::Workload, rows: &[Row]) {
        println!(
            "{} on {:.1} GiB, antagonist {}x, modelled (one run, seed {})",
            load.name,
            load.bytes() / workload::GIB,
            self.antagonist,
            self.seed
        );
        println!(
            "{:<18} {:>12} {:>7} {:>9} {:>9} {:>11} {:>11} {:>8}",
            "policy",
            load.unit,
            "share",
            "default",
            "alternate",
            "promoted/s",
            "demoted/s",
            "regret"
        );
        for row in rows {
            println!(
                "{:<18} {:>11.2}M {:>7.3} {:>6.0} ns {:>6.0} ns {:>11.0} {:>11.0} {:>6.1} %",
                row.policy,
                row.units_per_s / 1e6,
                row.share,
                row.default_ns,
                row.alternate_ns,
                row.promoted_per_s,
                row.demoted_per_s,
                // A little below nothing is nothing.
                (row.regret * 1000.0).round() / 10.0 + 0.0
            );
        }
        for row in rows.iter().filter(|row| row.split > 0.0) {
            println!(
                "{} split the huge pages of {:.0} % of the memory",
                row.policy,
                row.split * 100.0
            );
        }
        println!(
            "share: reads on the default tier; regret: against the best static placement by brute force; means of the end of the run"
        );
    }
}

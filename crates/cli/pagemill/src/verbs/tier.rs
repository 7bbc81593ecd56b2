//! `tier`: where the pages of running programs should live on a machine with two memory tiers.
//!
//! Dry by default: it says what it would move. With `--apply` it moves.

mod probe;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use pagemill_kernel::process::signal::{ENDS, Signals};
use pagemill_kernel::{
    Kind, Linux,
    settings::{cgroup, loan},
};
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{Bytes, Nanos, Pid};
use pagemill_policy::tier::live::Live;

use crate::answer::{self, Layout};
use crate::policies;
use crate::values::Printed;
use pagemill_control::tier::access_sources::SourceChoice;
use pagemill_control::tier::daemon::{self, ActuatorKind, Options, Scope};
use pagemill_control::tier::latency::{Latency, LatencySource, SOURCES};
use pagemill_control::tier::{Tiers, doctor, overview, replay, status};
use pagemill_launch::exit::{self, Exit};

/// What `tier-doctor` is in JSON.
const TIER_DOCTOR_LAYOUT: Layout = Layout::new("tier-doctor", 1, "findings");
/// What `tier-status` is in JSON.
const TIER_STATUS_LAYOUT: Layout = Layout::new("tier-status", 1, "nodes");
/// What `tier-replay` is in JSON.
const TIER_REPLAY_LAYOUT: Layout = Layout::new("tier-replay", 1, "");

const EXAMPLES: &str = "\
Examples:
  pagemill tier doctor                              why pages can or cannot move here
  pagemill tier -p 4711                             what would move, second by second
  pagemill tier -p 4711 --apply --rate 200M         moves it, at most 200 MiB a second
  pagemill tier --cgroup web.slice --policy tpp+colloid --apply
  pagemill tier probe > machine.toml                this machine's tiers, for simulate --machine
  pagemill tier status --prometheus                 what running daemons did
  pagemill tier -p 4711 --record rec && pagemill tier replay rec
";

const AFTER: &str = "\
Exit status: 0 ok, 1 a replay that decides differently, 2 usage or error, 3 this machine has no two tiers, 4 \
                     permission. \
Every setting that is changed is put back at the end, on a signal, and after kill -9 by the next start.";

/// What to place, and how.
#[derive(Debug, Args)]
#[command(
    before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER,
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

/// What else there is to ask.
#[derive(Debug, Subcommand)]
enum Command {
    /// Say why pages can or cannot move here, and what to change
    Doctor {
        #[command(flatten)]
        nodes: Nodes,
        #[command(flatten)]
        printed: Printed,
    },
    /// Show tiers, and what running daemons did
    Status {
        #[command(flatten)]
        printed: Printed,
        /// Print metrics in the text format of Prometheus
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
    },
    /// Decide over a recording again, and compare with what was decided then
    Replay {
        /// Directory that --record wrote
        #[arg(value_name = "REC")]
        recording: PathBuf,
        /// Decide by another policy, and say how often it would have decided differently
        #[arg(long, value_name = "POLICY")]
        policy: Option<String>,
        #[command(flatten)]
        printed: Printed,
    },
    /// Measure latency against bandwidth of each memory node, and print a machine file for simulate
    Probe(probe::Arguments),
    /// Put back settings that a killed daemon left changed
    Restore,
}

#[derive(Clone, Copy, Debug, Args)]
struct Nodes {
    /// Memory node of the default tier [default: the one that answers sooner]
    #[arg(long, value_name = "NODE")]
    default_node: Option<u32>,
    /// Memory node of the alternate tier
    #[arg(long, value_name = "NODE")]
    alternate_node: Option<u32>,
}

impl Nodes {
    fn named(self) -> [Option<u32>; 2] {
        [self.default_node, self.alternate_node]
    }
}

#[derive(Debug, Args)]
struct Run {
    /// Place the memory of these processes and of their children
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = crate::values::process)]
    pid: Vec<Pid>,
    /// Of -p, leave the children alone [default: they are placed too, and theirs]
    #[arg(long, requires = "pid")]
    no_children: bool,
    /// Place the memory of all processes in this cgroup: a path, or a name below /sys/fs/cgroup
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    cgroup: Option<PathBuf>,
    /// Move pages; without this it only says what would move
    #[arg(long)]
    apply: bool,
    /// Who is hot, and how much goes where
    #[arg(long, value_name = "POLICY", default_value = "hemem+colloid")]
    policy: String,
    #[arg(long, value_name = "SOURCE", default_value = "auto", help = format!(
        "Where the tiers' latencies come from: {SOURCES}"
    ))]
    latency: LatencySource,
    /// Who sees what is hot
    #[arg(long, value_name = "HOW", default_value = "auto",
        value_parser = crate::values::one_of(&SourceChoice::CHOICES))]
    track: SourceChoice,
    #[arg(long, value_enum, value_name = "HOW", help = format!(
        "How to act [default: kernel for {}; else move-pages; not with damon]",
        policies::by_faults()
    ))]
    act: Option<ActuatorChoice>,
    /// Move at most this much a second
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    rate: Bytes,
    /// Time between two decisions
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::values::interval)]
    quantum: Nanos,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = crate::values::length)]
    length: Option<Nanos>,
    /// Percent of one core that tracking may take; above it, the source of accesses rests
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = crate::values::percent)]
    cpu: f64,
    /// Memory of each tier that is left free
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    reserve: Bytes,
    #[command(flatten)]
    nodes: Nodes,
    /// Record views, decisions and outcomes into this directory
    #[arg(long, value_name = "DIR", value_parser = crate::values::directory())]
    record: Option<PathBuf>,
    /// Overwrite DIR if it is a recording
    #[arg(short, long)]
    force: bool,
}

/// How to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ActuatorChoice {
    /// Move the pages that the policy names
    MovePages,
    /// Let DAMON move as much as the policy names, hottest or coldest first
    Damos,
    /// Let the kernel promote by hint faults, or not
    Kernel,
    /// Set the weights of weighted interleaving
    Interleave,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    match &arguments.command {
        Some(Command::Doctor { nodes, printed: Printed { json, .. } }) => {
            let answer = doctor::examine(&linux, nodes.named())?;
            answer::tell(*json, &TIER_DOCTOR_LAYOUT, || &answer, || answer.text())?;
            Ok(if answer.daemon { Exit::Ok } else { Exit::Unsupported })
        }
        Some(Command::Probe(arguments)) => probe::run(&linux, arguments),
        Some(Command::Status { printed: Printed { json, .. }, prometheus }) => {
            let (nodes, daemons) = (linux.memory_nodes()?, status::all(&loan::directory(&linux)));
            if *prometheus {
                pagemill_launch::stdio::is_verbatim();
                print!("{}", status::prometheus(&nodes, &daemons));
            } else {
                let text = || overview::text(&nodes, &daemons);
                answer::tell(
                    *json,
                    &TIER_STATUS_LAYOUT,
                    || overview::json(&nodes, &daemons),
                    text,
                )?;
            }
            Ok(Exit::Ok)
        }
        Some(Command::Replay { recording, policy, printed: Printed { json, .. } }) => {
            let replayed = replay::replay(recording, policy.as_deref())?;
            answer::tell(*json, &TIER_REPLAY_LAYOUT, || &replayed, || replayed.text())?;
            Ok(if replayed.same == replayed.decisions { Exit::Ok } else { Exit::Finding })
        }
        Some(Command::Restore) => permitted(restore(&linux)),
        None => permitted(place(&linux, &arguments.run)),
    }
}

/// What a permission or the machine refuses ends with their own codes.
fn permitted(outcome: Result<Exit>) -> Result<Exit> {
    match exit::permitted(outcome) {
        Err(error) if matches!(exit::kind(&error), Some(Kind::Unsupported | Kind::Busy)) => {
            notice!("{error:#}");
            eprintln!("next: pagemill tier doctor");
            Ok(Exit::Unsupported)
        }
        outcome => outcome,
    }
}

fn restore(linux: &Linux) -> Result<Exit> {
    let restored = daemon::restore(linux)?;
    restored.iter().for_each(|what| eprintln!("restored {what}"));
    if restored.is_empty() {
        eprintln!("nothing was left changed");
    }
    Ok(Exit::Ok)
}

/// Refuses flags that make no sense together, and says who moves the pages.
fn actuator(run: &Run, policy: &Live) -> Result<ActuatorKind> {
    let quantum = Duration::from(run.quantum);
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&quantum) {
        bail!("--quantum {}: valid: 100ms to 1h", run.quantum.plain());
    }
    if !(0.01..=100.0).contains(&run.cpu) {
        bail!("--cpu {}: valid: 0.01 to 100", run.cpu);
    }
    if run.rate.0 < 4 << 20 {
        bail!("--rate {}: valid: 4M and more", run.rate.plain());
    }
    if policy.leaves_it_to_damon() {
        if run.act.is_some() || run.cgroup.is_none() {
            bail!(
                "--policy {} is done by the kernel in the memory of a cgroup; valid: --cgroup GROUP, without -p and \
                 --act",
                run.policy
            );
        }
        return Ok(ActuatorKind::Tiering);
    }
    Ok(match (run.act, policy.moves_pages()) {
        (Some(ActuatorChoice::Kernel), false) | (None, false) => ActuatorKind::Kernel,
        (Some(ActuatorChoice::MovePages), true) | (None, true) => ActuatorKind::MovePages,
        (Some(ActuatorChoice::Damos), true)
            if matches!(run.track, SourceChoice::Auto | SourceChoice::Damon) =>
        {
            ActuatorKind::Damos
        }
        (Some(ActuatorChoice::Interleave), true) if policy.needs_latency() => {
            ActuatorKind::Interleave
        }
        (Some(how), _) => bail!(
            "--act {} does not go with --policy {}; valid: kernel for {}; move-pages for the others; \
             damos for the same, with --track damon; interleave for those that balance ({})",
            clap::ValueEnum::to_possible_value(&how)
                .map_or_else(String::new, |value| value.get_name().to_owned()),
            run.policy,
            policies::by_faults(),
            policies::balancing()
        ),
    })
}

fn place(linux: &Linux, run: &Run) -> Result<Exit> {
    let policy = replay::policy(&run.policy)?;
    let act = actuator(run, &policy)?;
    // A wrong script or recording is said before anything else is.
    if let LatencySource::Replay(_) = run.latency {
        Latency::open(linux, Tiers([0, 0]), &run.latency)?;
    }
    if let Some(output) = &run.record {
        Writer::check(output, run.force)?;
    }
    let scope = scope(linux, run)?;
    let nodes = linux.memory_nodes()?;
    if nodes.len() < 2 {
        notice!("this machine has one memory node, so there is nowhere to move pages to");
        eprintln!("  {}", doctor::ONE_NODE);
        eprintln!("next: pagemill tier doctor");
        return Ok(Exit::Unsupported);
    }
    let tiers = Tiers::choose(&nodes, run.nodes.named())?;
    let restored = daemon::restore(linux);
    match restored {
        Ok(restored) => restored.iter().for_each(|what| eprintln!("restored {what}")),
        // Somebody who may not change settings has none to restore.
        Err(error) if !run.apply && error.kind() == Kind::Permission => {}
        Err(error) => return Err(error.into()),
    }
    let latency = Latency::open(linux, tiers, &run.latency)
        .with_context(|| format!("no latencies (valid: {SOURCES})"))?;
    let signals = Signals::block(ENDS)?;
    let writer = match &run.record {
        Some(path) => {
            Some(Writer::create(path, meta(linux, run, &scope, &latency), run.force, None)?)
        }
        None => None,
    };
    let moves = if run.apply { "moving" } else { "dry run (--apply moves)" };
    eprintln!(
        "pagemill tier: {}, latencies from {}, node {} and node {}, {moves}; Ctrl-C ends it",
        run.policy,
        latency.name(),
        tiers.0[0],
        tiers.0[1]
    );
    let options = Options {
        scope,
        tiers,
        policy,
        track: run.track,
        act,
        apply: run.apply,
        quantum: Duration::from(run.quantum),
        length: run.length.map(Duration::from),
        rate: run.rate,
        cpu: run.cpu / 100.0,
        reserve: run.reserve,
        told: |line| println!("{line}"),
    };
    daemon::run(linux, options, latency, writer, &signals)?;
    Ok(Exit::Ok)
}

fn scope(linux: &Linux, run: &Run) -> Result<Scope> {
    if let Some(name) = &run.cgroup {
        return Ok(Scope::Group(cgroup::find(linux, name)?));
    }
    if run.pid.is_empty() {
        bail!("whose memory? valid: -p PID[,PID…] or --cgroup GROUP (see pagemill tier --help)");
    }
    for &pid in &run.pid {
        linux.stat(pid).with_context(|| format!("-p {pid}"))?;
    }
    Ok(Scope::Processes { pids: run.pid.clone(), children: !run.no_children })
}

fn meta(linux: &Linux, run: &Run, scope: &Scope, latency: &Latency) -> Meta {
    let source = latency.name();
    let pid = match scope {
        Scope::Processes { pids, .. } => pids.first().copied().unwrap_or_default(),
        Scope::Group(_) => Pid(0),
    };
    let mut not_measured = Vec::new();
    if !latency.counts_reads() {
        not_measured.push(NotMeasured {
            what: "reads_per_s".into(),
            why: format!(
                "{source} counts no reads; a tier's part of the heat stands for its part of them"
            ),
        });
    }
    Meta {
        pid: pid.into(),
        threads: match scope {
            Scope::Group(_) => None,
            Scope::Processes { pids, .. } => {
                let threads = pids.iter().filter_map(|pid| Some(linux.stat(*pid).ok()?.threads));
                Some(threads.sum())
            }
        },
        comm: linux.stat(pid).map(|stat| stat.comm).unwrap_or_default(),
        interval: run.quantum,
        capabilities: vec!["move_pages".into(), format!("latency: {source}")],
        not_measured,
        ..pagemill_launch::context::meta(linux)
    }
}

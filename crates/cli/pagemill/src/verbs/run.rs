//! `pagemill run`: a program, unchanged, on the compacting heap, or under a huge page policy, or both.
//!
//! Everything that can go wrong is found out before the program is executed. Then this process
//! becomes the program. Only with `--ksm`, or with a policy of `--huge` that the kernel does not carry out alone, it
//! stays as the parent, to govern `ksmd` or to decide; it then passes signals on and ends as the program did.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pagemill_heap::config::Config;
use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Linux, settings::ksm_loan};
use pagemill_model::Pid;
use pagemill_policy::huge::profile::Profile;
use pagemill_policy::huge::{Goal, POLICIES, Policy, ProfileUse, find, names};

use crate::policies;
use pagemill_control::governor::{Governor, Start};
use pagemill_control::huge::delivery;
use pagemill_control::huge::isolate::Isolation;
use pagemill_control::huge::launcher::{Launcher, Options};
use pagemill_control::plan;
use pagemill_launch::exit::{Exit, of_wrapper};
use pagemill_launch::prepare::{
    Prepared, cannot_execute, configuration, plain, prepare, trimmed, variable,
};
use pagemill_launch::supervise::{hold_signals, supervise};

const EXAMPLES: &str = "\
Examples:
  pagemill run -- redis-server --save ''      with the default configuration, 1y
  pagemill run --heap compact-shuffle -- ruby app.rb
  sudo pagemill run --ksm -- redis-server     let the kernel merge the pages (back end ksm)
  pagemill run --heap plain -- ./bench        the same heap without compaction
  pagemill run --huge cbmm+ -- ./server       its own malloc, memory ahead of its growth
  pagemill run --huge cbmm+ --dry -- ./server decide and say what would be done, do nothing
  pagemill run --huge cbmm --profile p.csv --log rec -- ./server
  pagemill run --huge auto -- ./server        try what its growth costs on which pages, here and now, and keep the best
  pagemill run --trim -- ./server             its own malloc, whose free memory is given back whenever it rests
  sudo pagemill run --huge ingens -p 4711     a program that runs already, from outside, until Ctrl-C
";

const AFTER: &str = "\
The program keeps its standard streams, and its exit status is passed through. Other exits:
125 pagemill itself failed, or the library cannot work in this program; 126 the program cannot be
executed; 127 it was not found.";

/// What to run, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Configuration of the heap: plain (0n), refill-shuffle (1n) and shuffle (2n) do not compact, compact-ordered
    /// (0y), compact (1y) and compact-shuffle (2y) do (the digit is the degree of randomisation), hardened is h
    /// [default: $PAGEMILL_HEAP or 1y]
    #[arg(long, visible_alias = "mesh", value_name = "CONFIG")]
    heap: Option<String>,

    /// Let ksmd, the kernel's merging thread, do the merging: run it while the program has pages
    /// for it, and restore its settings afterwards. Needs root; opens a side channel between
    /// programs that offer memory to it (docs/concepts/ksm.md)
    #[arg(long)]
    ksm: bool,

    /// How pages are compacted [default: $PAGEMILL_BACKEND or auto]
    #[arg(long, value_enum)]
    backend: Option<Backend>,

    #[arg(long, value_name = "POLICY", help = format!(
        "Decide by this policy which memory is on huge pages, and provide memory ahead of the program's growth: {}. \
         The program keeps its own malloc unless --heap is given",
        policies::huge()
    ))]
    huge: Option<String>,

    /// What auto is to gain: throughput (the least CPU time), tail (the least waiting) or memory (no page that is not
    /// touched)
    #[arg(long, value_name = "GOAL", requires = "huge", value_parser = Goal::ALL.map(Goal::name))]
    goal: Option<String>,

    /// Forget what earlier runs of the same command have taught auto
    #[arg(long, requires = "huge")]
    forget: bool,

    /// Have glibc's malloc give its free memory back (malloc_trim) whenever the program rests. It keeps its own malloc;
    /// a program that never holds a heap worth it is left alone
    #[arg(long, conflicts_with_all = ["heap", "ksm", "backend", "huge"])]
    trim: bool,

    /// Benefits of huge pages and eager paging by place, as `pagemill plan` writes them
    #[arg(long, value_name = "FILE", requires = "huge")]
    profile: Option<PathBuf>,

    /// Record each decision of --huge with its why
    #[arg(long, value_name = "DIR", requires = "huge")]
    log: Option<PathBuf>,

    /// Overwrite the recording in DIR, and FILE
    #[arg(short, long, requires = "huge")]
    force: bool,

    /// Write what the prefault library has counted to FILE at the end, as JSON
    #[arg(long, value_name = "FILE", requires = "huge")]
    stats: Option<PathBuf>,

    /// Decide, record, and do nothing
    #[arg(long, requires = "huge")]
    dry: bool,

    #[arg(
        help = format!(
            "Instead of a command, a process that runs already: its memory in use is collapsed into huge pages from \
             outside by {}, until it ends or a signal ends this. Nothing is provided ahead",
            policies::from_outside()
        ),
        short, long, value_name = "PID", requires = "huge",
        conflicts_with_all = ["command", "heap", "ksm", "backend", "trim"],
        value_parser = crate::values::process
    )]
    pid: Option<Pid>,

    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// ksm where ksmd runs, otherwise remap
    Auto,
    /// Identical pages, merged by the kernel
    Ksm,
    /// Pages remapped onto one image
    Remap,
    /// No compaction
    None,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ksm => "ksm",
            Self::Remap => "remap",
            Self::None => "none",
        }
    }
}

/// Runs the program. A failure of our own is 125, as for any wrapper.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    of_wrapper(true, prepare_and_run(arguments))
}

fn prepare_and_run(arguments: &Arguments) -> Result<Exit> {
    if let Some(policy) = &arguments.huge {
        return run_huge(arguments, policy);
    }
    if arguments.trim {
        return Ok(match trimmed(&arguments.command)? {
            Prepared::Ready(mut command, path) => cannot_execute(&path, &command.exec()),
            Prepared::Refused(exit) => exit,
        });
    }
    let config = configuration(arguments.heap.clone())?;
    let backend = backend(arguments, &config)?;
    let (mut command, path) = match prepare(&arguments.command, &config)? {
        Prepared::Ready(command, path) => (*command, path),
        Prepared::Refused(exit) => return Ok(exit),
    };
    command.env("PAGEMILL_BACKEND", backend.name());

    let linux = pagemill_launch::context::machine();
    recover(&linux);
    if arguments.ksm {
        pagemill_launch::context::ensure_room()?;
        let signals = hold_signals()?;
        match Governor::start(&linux) {
            Ok(Start::Governor(governor)) => return supervise(command, &path, *governor, &signals),
            Ok(Start::Running) => {} // ksmd runs by somebody else's will, which we leave alone.
            Err(error) => {
                notice!("--ksm has no effect, the back end is chosen as without it: {error:#}");
                command.env("PAGEMILL_BACKEND", Backend::Auto.name());
            }
        }
    }
    Ok(cannot_execute(&path, &command.exec()))
}

/// Runs the program under a huge page policy, on the heap too if a configuration is given.
fn run_huge(arguments: &Arguments, name: &str) -> Result<Exit> {
    let policy = find(name).with_context(|| {
        let valid: Vec<&str> = names().collect();
        format!("unknown huge page policy {name:?} (choose one of: {})", valid.join(" "))
    })?;
    let policy = with_goal(policy, arguments.goal.as_deref())?;
    anyhow::ensure!(
        !arguments.ksm && arguments.backend != Some(Backend::Ksm),
        "--ksm and --huge contradict each other: pages that ksmd merges are base pages"
    );
    let profile = arguments.profile.as_deref().map(plan::read_profile).transpose()?;
    if profile.is_some() && policy.mechanism().profile == ProfileUse::Unused {
        let looks = |policy: &&&dyn Policy| policy.mechanism().profile != ProfileUse::Unused;
        let others: Vec<&str> = POLICIES.iter().filter(looks).map(|policy| policy.name()).collect();
        let others = others.join(" and ");
        notice!("--profile has no effect: {name} looks at none ({others} do)");
    }
    let linux = pagemill_launch::context::machine();
    recover(&linux);
    if let Some(pid) = arguments.pid {
        return help_from_outside(arguments, policy, profile, &linux, pid);
    }
    let (mut command, path) = if arguments.heap.is_some() {
        let config = configuration(arguments.heap.clone())?;
        match prepare(&arguments.command, &config)? {
            Prepared::Ready(mut command, path) => {
                command.env("PAGEMILL_BACKEND", backend(arguments, &config)?.name());
                (*command, path)
            }
            Prepared::Refused(exit) => return Ok(exit),
        }
    } else {
        match plain(&arguments.command)? {
            Prepared::Ready(command, path) => (*command, path),
            Prepared::Refused(exit) => return Ok(exit),
        }
    };
    let watched = arguments.log.is_some() || arguments.stats.is_some() || arguments.dry;
    if !policy.mechanism().needs_supervisor() && !watched {
        // The kernel does it all, and nothing is borrowed: nobody need stay beside the program.
        Isolation::of(&linux, policy, None)?;
        return Ok(cannot_execute(&path, &command.exec()));
    }
    pagemill_launch::context::ensure_room()?;
    let signals = hold_signals()?;
    let mut launcher = Launcher::new(&linux, huge_options(arguments, policy, profile))?;
    delivery::inside(&mut launcher, &path, &mut command)?;
    supervise(command, &path, launcher, &signals)
}

/// The policy with the goal that the flag names.
fn with_goal(policy: &'static dyn Policy, goal: Option<&str>) -> Result<&'static dyn Policy> {
    let Some(goal) = goal.and_then(|name| Goal::ALL.into_iter().find(|goal| goal.name() == name))
    else {
        return Ok(policy);
    };
    let tries = policy.tries().with_context(|| {
        let with: Vec<&str> =
            names().filter(|name| find(name).is_some_and(|one| one.tries().is_some())).collect();
        format!(
            "--goal is for policies that measure themselves ({}), which {} does not",
            with.join(" "),
            policy.name()
        )
    })?;
    Ok(tries.with_goal(goal))
}

fn huge_options(
    arguments: &Arguments,
    policy: &'static dyn Policy,
    profile: Option<Profile>,
) -> Options {
    let words = arguments.command.iter().map(|word| word.to_string_lossy().into_owned());
    Options {
        policy,
        profile,
        log: arguments.log.clone(),
        force: arguments.force,
        dry: arguments.dry,
        stats: arguments.stats.clone(),
        command: words.collect(),
        pid: arguments.pid,
        forget: arguments.forget,
    }
}

/// Collapses what a running process uses, from here, until it ends or a signal comes.
fn help_from_outside(
    arguments: &Arguments,
    policy: &'static dyn Policy,
    profile: Option<Profile>,
    linux: &Linux,
    pid: Pid,
) -> Result<Exit> {
    anyhow::ensure!(
        policy.mechanism().scans_with(profile.is_some()),
        "from outside, huge pages come by {}; other policies have to start the program",
        policies::from_outside()
    );
    let process = linux.stat(pid).with_context(|| format!("process {pid} cannot be helped"))?;
    Pages::of(linux, pid)?.may_collapse()?;
    let signals = Signals::block(signal::ENDS)?;
    let launcher = Launcher::new(linux, huge_options(arguments, policy, profile))?;
    if launcher.needs_sites() {
        notice!(
            "rows of the profile that name a site have no effect: a running program cannot be made to note \
             call sites"
        );
    }
    delivery::outside(launcher, linux, &process, &signals)?;
    Ok(Exit::Ok)
}

/// The back end that the flags ask for, or else the environment.
fn backend(arguments: &Arguments, config: &str) -> Result<Backend> {
    let compacts = Config::parse(config.as_bytes()).is_some_and(|config| config.compact);
    if !arguments.ksm {
        let named = match (arguments.backend, variable("PAGEMILL_BACKEND")) {
            (Some(backend), _) => backend,
            (None, Some(name)) => Backend::from_str(&name, false).map_err(|_| {
                let names = Backend::value_variants().iter().map(|backend| backend.name());
                let names: Vec<_> = names.collect();
                anyhow::anyhow!(
                    "unknown back end PAGEMILL_BACKEND={name:?} (choose one of: {})",
                    names.join(" ")
                )
            })?,
            (None, None) => Backend::Auto,
        };
        anyhow::ensure!(
            compacts || !matches!(arguments.backend, Some(Backend::Remap | Backend::Ksm)),
            "--backend {} has nothing to merge under configuration {config}, which does not compact (choose 0y, 1y \
             or 2y)",
            named.name()
        );
        return Ok(named);
    }
    anyhow::ensure!(
        compacts,
        "--ksm has nothing to merge under configuration {config}, which does not compact (choose 0y, 1y or 2y)"
    );
    if let Some(other @ (Backend::Remap | Backend::None)) = arguments.backend {
        anyhow::bail!("--ksm and --backend {} contradict each other", other.name());
    }
    Ok(Backend::Ksm)
}

/// Restores what a governor that was killed has left behind.
fn recover(linux: &Linux) {
    let directory = pagemill_kernel::settings::loan::directory(linux);
    match ksm_loan::recover(linux, &directory) {
        Ok(None) => {}
        Ok(Some(_)) => {
            notice!(
                "restored the settings of ksmd, which a killed pagemill run --ksm had left changed"
            );
        }
        // Without the right to look there is nothing that this user could have left.
        Err(error) if error.kind() == pagemill_kernel::Kind::Permission => {}
        Err(error) => notice!("{error:#}"),
    }
}

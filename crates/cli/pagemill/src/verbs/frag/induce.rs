//! `frag induce`: fragments free memory to a chosen degree, and holds it there.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Linux, memory::oom};
use pagemill_launch::progress::Progress;
use pagemill_launch::supervise;
use pagemill_model::{Nanos, Order, Pid};
use serde_json::json;

use super::orders::{check_order, order, score};
use crate::answer::{self, Layout};
use pagemill_control::fragmentation::compact;
use pagemill_control::fragmentation::induce::{End, Fragmenter, Goal};
use pagemill_launch::exit::{Exit, of_wrapper};
use pagemill_record::free_memory::FreeMemory;
use pagemill_report::free_memory::{before_after, json as shown};

/// What it answers.
const LAYOUT: Layout = Layout::new("frag-induce", 1, "after.zones");

const EXAMPLES: &str = "\
Examples:
  sudo pagemill frag induce --target 0.85 -- ./bench     for as long as ./bench runs
  sudo pagemill frag induce --target 1 --pinned --hold   until a signal comes; nothing can compact it
  pagemill frag induce --target 0.6 --dry-run            what it would take
";

const AFTER: &str = "\
All is given back when it ends, however it ends, and the settings it changes are as found.
Exit status: 0 reached; 1 not reached, and how far it got; 2 error; 3 no huge pages here; 4 not root.
With a command: the command's own, 125 if the target is not reached, 126 and 127 as env(1).";

/// How far to fragment, and for how long.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The order of the score; 9 is that of a 2 MiB page
    #[arg(long, default_value = "9", value_parser = order)]
    order: Order,
    /// The score to reach: the share of free memory that is in blocks too small for the order
    #[arg(long, value_name = "SCORE", value_parser = score, allow_negative_numbers = true)]
    target: f64,
    /// Pin the pages that are kept, so that compaction cannot move them
    #[arg(long)]
    pinned: bool,
    /// Hold it until a signal comes
    #[arg(long, conflicts_with = "command")]
    hold: bool,
    /// Change nothing; say what it would take
    #[arg(long, conflicts_with_all = ["hold", "command"])]
    dry_run: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = crate::values::length)]
    patience: Nanos,
    /// Leave memory as it is when it is more fragmented than asked for, instead of mending it first
    #[arg(long)]
    no_compact: bool,
    /// The program to run meanwhile, and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["json", "csv"])]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<Exit> {
    of_wrapper(!arguments.command.is_empty(), induced(arguments))
}

fn induced(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let before = FreeMemory::take(&linux)?;
    check_order(arguments.order, before.orders())?;
    let goal = Goal {
        order: arguments.order,
        target: arguments.target,
        pinned: arguments.pinned,
        patience: arguments.patience.into(),
    };
    if arguments.dry_run {
        let would = goal.estimate(&linux, &before)?;
        answer::tell(arguments.printed.json, &LAYOUT, || would, || would.text())?;
        return Ok(if would.enough { Exit::Ok } else { Exit::Finding });
    }
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::SENT_TO_PROGRAMS);
    let signals = Signals::block(&watched)?;
    let adjustment = Linux::live().oom_score_adj(Pid::own())?;
    let mended = (!arguments.no_compact).then(|| goal.mended_first(&linux, &before)).transpose()?;
    if let Some((order, target)) = mended.flatten() {
        let caches = compact::Caches::Kept;
        compact::run(&linux, compact::Goal { order, target, sweep: true, caches }, |_| {})?;
    }
    let mut fragmenter = Fragmenter::new(&linux, goal)?;
    let mut progress = Progress::new("inducing");
    let outcome = fragmenter.run(Some(&signals), |score, units| {
        progress.say(&format!("score {score:.3}, {units} huge pages broken up"));
    })?;
    drop(progress);
    let after = FreeMemory::take(&linux)?;
    let reached = outcome.reached(&goal);
    let peak = Linux::live().status(Pid::own()).ok().and_then(|status| status.peak_rss);
    if arguments.printed.json {
        let mut value = outcome.json(&goal);
        value["peak_rss_bytes"] = json!(peak);
        value["before"] = shown(&before);
        value["after"] = shown(&after);
        answer::print(&LAYOUT, value)?;
    } else if arguments.command.is_empty() {
        println!("unusable free space index\n\n{}", before_after(&before, &after));
    }
    if !arguments.printed.json {
        notice!("{}", outcome.text(&goal));
    }
    if let End::Interrupted(signal) = outcome.end {
        drop(fragmenter);
        return Ok(Exit::Signal(signal));
    }
    if !reached {
        drop(fragmenter);
        notice!("all memory was given back");
        return Ok(if arguments.command.is_empty() { Exit::Finding } else { Exit::WrapperFailed });
    }
    if let Some((program, rest)) = arguments.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest);
        signals.restore_in(&mut command);
        return with(command, adjustment, &signals, fragmenter);
    }
    if arguments.hold {
        notice!("holding; end it with Ctrl-C or: kill {}", std::process::id());
        hold(&signals)?;
    } else if !arguments.printed.json {
        notice!("given back (--hold or -- COMMAND keeps it)");
    }
    drop(fragmenter);
    Ok(Exit::Ok)
}

/// Waits for a signal that ends programs.
fn hold(signals: &Signals) -> Result<()> {
    loop {
        let received = signals.wait(Duration::from_secs(3600))?;
        if received.is_some_and(|received| signal::ENDS.contains(&received.signal)) {
            return Ok(());
        }
    }
}

/// Runs the command while memory is held, and ends as it does.
fn with(
    mut command: Command,
    adjustment: i32,
    signals: &Signals,
    fragmenter: Fragmenter,
) -> Result<Exit> {
    // The command is not to be ended first only because we want to be.
    oom::set_in(&mut command, adjustment);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = std::path::PathBuf::from(command.get_program());
            return Ok(pagemill_launch::prepare::cannot_execute(&program, &error));
        }
    };
    let pause = Duration::from_secs(1);
    let status = supervise::pass_on(signals, Pid(child.id()), pause, || child.try_wait())?;
    drop(fragmenter);
    Ok(Exit::of(status))
}

//! `frag induce`: fragments free memory to a chosen degree, and holds it there.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pagemill_analysis::fragmentation::{free_pages, pages_from};
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Linux, oom, page_size};
use pagemill_launch::progress::Progress;
use pagemill_launch::supervise;
use pagemill_model::{Bytes, Nanos, Order, Pid};
use serde_json::json;

use super::orders::{check_order, order, score};
use super::tables;
use pagemill_control::fragmentation::compact;
use pagemill_control::fragmentation::induce::{End, Fragmenter, Goal, Outcome, TOLERANCE};
use pagemill_launch::exit::{Exit, of_wrapper};
use pagemill_record::free_memory::FreeMemory;

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
    if arguments.dry_run {
        return dry_run(&linux, arguments, &before);
    }
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::SENT_TO_PROGRAMS);
    let signals = Signals::block(&watched)?;
    let adjustment = Linux::live().oom_score_adj(Pid::own())?;
    if let Some((order, target)) = mended_first(&before, &linux, arguments)? {
        let caches = compact::Caches::Kept;
        compact::run(&linux, compact::Goal { order, target, sweep: true, caches }, |_| {})?;
    }
    let goal = Goal {
        order: arguments.order,
        target: arguments.target,
        pinned: arguments.pinned,
        patience: arguments.patience.into(),
    };
    let mut fragmenter = Fragmenter::new(&linux, goal)?;
    let mut progress = Progress::new("inducing");
    let outcome = fragmenter.run(Some(&signals), |score, units| {
        progress.say(&format!("score {score:.3}, {units} huge pages broken up"));
    })?;
    drop(progress);
    let after = FreeMemory::take(&linux)?;
    let reached = (outcome.score - arguments.target).abs() <= TOLERANCE;
    let peak = Linux::live().status(Pid::own()).ok().and_then(|status| status.peak_rss);
    if arguments.printed.json {
        let value = report(arguments, &outcome, reached, peak, &before, &after);
        crate::answer::print("frag-induce", value)?;
    } else if arguments.command.is_empty() {
        println!("unusable free space index\n\n{}", tables::before_after(&before, &after));
    }
    if !arguments.printed.json {
        eprintln!("pagemill: {}", words(arguments, &outcome));
    }
    if let End::Interrupted(signal) = outcome.end {
        drop(fragmenter);
        return Ok(Exit::Signal(signal));
    }
    if !reached {
        drop(fragmenter);
        eprintln!("pagemill: all memory was given back");
        return Ok(if arguments.command.is_empty() { Exit::Finding } else { Exit::Code(125) });
    }
    if let Some((program, rest)) = arguments.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest);
        signals.restore_in(&mut command);
        return with(command, adjustment, &signals, fragmenter);
    }
    if arguments.hold {
        eprintln!("pagemill: holding; end it with Ctrl-C or: kill {}", std::process::id());
        hold(&signals)?;
    } else if !arguments.printed.json {
        eprintln!("pagemill: given back (--hold or -- COMMAND keeps it)");
    }
    drop(fragmenter);
    Ok(Exit::Ok)
}

/// Order and score to which memory is compacted first, if it must be: what is more fragmented than asked for; and for a
/// small order, free memory in blocks that are large enough for it and too small to be a huge page, for only huge pages
/// are broken up.
fn mended_first(
    look: &FreeMemory,
    linux: &Linux,
    arguments: &Arguments,
) -> Result<Option<(Order, f64)>> {
    let Arguments { order, target, .. } = *arguments;
    let huge = usize::try_from(linux.thp_pmd_size()?)? / page_size();
    let huge = order.max(Order(huge.trailing_zeros() as u8));
    let blocks = look.blocks();
    Ok(match arguments.no_compact {
        true => None,
        _ if look.unusable(order).value() > target => Some((order, target)),
        _ if out_of_reach(&blocks, order, huge) > 1.0 - target => Some((huge, 1.0 - target)),
        _ => None,
    })
}

/// The share of free memory that lies in blocks of an order up to below that of a huge page.
fn out_of_reach(blocks: &[u64], order: Order, huge: Order) -> f64 {
    let between = pages_from(blocks, order) - pages_from(blocks, huge);
    between as f64 / free_pages(blocks).max(1) as f64
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

fn words(arguments: &Arguments, outcome: &Outcome) -> String {
    let Arguments { order, target, .. } = arguments;
    let kind = if arguments.pinned { "pinned" } else { "movable" };
    let size = |bytes: u64| Bytes(bytes).plain();
    let base = format!(
        "score {:.3} of order {order} (target {target}) after {:.1} s: {} huge pages broken up, {} {kind} pages and \
         {} held",
        outcome.score,
        outcome.took.as_secs_f64(),
        outcome.units,
        outcome.pages,
        size(outcome.held),
    );
    let reason = match outcome.end {
        End::Reached | End::Interrupted(_) => return base,
        End::NoHugePage => {
            "no more huge pages are free: what is left lies in reserves of the kernel, or in smaller blocks"
        }
        End::Above => {
            "memory is more fragmented than that by others, and compaction did not help (frag compact says why)"
        }
        End::Late => {
            "the time is over (--patience), or other programs move the score faster than this"
        }
    };
    format!("{base}; not reached: {reason}")
}

fn report(
    arguments: &Arguments,
    outcome: &Outcome,
    reached: bool,
    peak: Option<u64>,
    before: &FreeMemory,
    after: &FreeMemory,
) -> serde_json::Value {
    json!({
                "order": arguments.order,
        "target": arguments.target,
        "pinned": arguments.pinned,
        "reached": reached,
        "end": format!("{:?}", outcome.end),
        "score": outcome.score,
        "huge_pages": outcome.units,
        "pages": outcome.pages,
        "held_bytes": outcome.held,
        "peak_rss_bytes": peak,
        "seconds": outcome.took.as_secs_f64(),
        "before": tables::json(before),
        "after": tables::json(after),
    })
}

fn dry_run(linux: &Linux, arguments: &Arguments, look: &FreeMemory) -> Result<Exit> {
    let huge =
        usize::try_from(linux.thp_pmd_size().context("huge pages are needed")?)? / page_size();
    ensure!(huge > 1, "huge pages are as small as pages here");
    let blocks = look.blocks();
    let (free, large) = (free_pages(&blocks) as f64, pages_from(&blocks, arguments.order) as f64);
    let score = if free > 0.0 { 1.0 - large / free } else { 1.0 };
    let surplus = large - (1.0 - arguments.target) * free;
    let of_a_unit = huge.max(arguments.order.pages() as usize);
    let units = (surplus / of_a_unit as f64).max(0.0).ceil() as usize;
    let kept = units * huge.div_ceil(arguments.order.pages() as usize)
        + if arguments.pinned { 0 } else { units };
    let have = pages_from(&blocks, Order(huge.trailing_zeros() as u8)) as usize / huge;
    let held = Bytes((kept * page_size()) as u64);
    if arguments.printed.json {
        let value = json!({
                        "order": arguments.order,
            "score": score,
            "target": arguments.target,
            "pinned": arguments.pinned,
            "huge_pages_to_break": units,
            "huge_pages_free": have,
            "held_bytes": held.0,
            "compacted_first": surplus < 0.0,
            "enough": units <= have,
        });
        crate::answer::print("frag-induce", value)?;
    } else {
        println!(
            "the score of order {} is {score:.3}; {:.3} would take about {units} of {have} free huge pages, broken \
             up at most 64 at a time; {} would be held",
            arguments.order,
            arguments.target,
            held.plain()
        );
        if surplus < 0.0 {
            println!("it is above that already: memory would be compacted first");
        }
    }
    Ok(if units > have { Exit::Finding } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_between_the_order_and_a_huge_page_cannot_be_broken_up() {
        // 16 pages in each of orders 0, 2, 3 and 4.
        let blocks = [16, 0, 4, 2, 1];
        assert_eq!(out_of_reach(&blocks, Order(2), Order(4)), 0.5);
        assert_eq!(out_of_reach(&blocks, Order(4), Order(4)), 0.0);
        assert_eq!(out_of_reach(&[0, 0], Order(0), Order(1)), 0.0);
    }
}

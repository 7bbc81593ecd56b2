//! `frag show`: scores of each node, zone and order.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use pagemill_kernel::Linux;
use pagemill_launch::progress::Progress;
use pagemill_model::{Nanos, Order, whole};
use serde_json::json;

use super::orders::{check_order, order};
use crate::answer::{self, Layout};
use pagemill_launch::exit::Exit;
use pagemill_record::free_memory::FreeMemory;
use pagemill_record::kernel_scores::{self, ScoreCheck};
use pagemill_report::free_memory::{before_after, json as shown, parse, text};

/// What `frag-show` is in JSON.
const FRAG_SHOW_LAYOUT: Layout = Layout::new("frag-show", 1, "zones");
/// What `frag-check` is in JSON.
const FRAG_CHECK_LAYOUT: Layout = Layout::new("frag-check", 1, "");

const EXAMPLES: &str = "\
Examples:
  pagemill frag show
  pagemill frag show --watch 1s
  pagemill frag show --json > before.json
  pagemill frag show --against before.json      before, after, and the change
  sudo pagemill frag show --check 100000        compare with the kernel's own scores
";

const AFTER: &str = "\
Exit status: 0 shown; 1 --check found a score that is not the kernel's; 2 error; 4 --check needs root.";

/// How to show free memory.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The order that the tables by mobility are about; 9 is that of a 2 MiB page
    #[arg(long, default_value = "9", value_parser = order)]
    order: Order,
    #[command(flatten)]
    printed: crate::values::Printed,
    /// Print a frame again and again, every INTERVAL
    #[arg(
        long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s",
        value_parser = crate::values::interval
    )]
    watch: Option<Nanos>,
    /// Show an earlier look (a file of --json) and this one, before and after
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "json"])]
    against: Option<PathBuf>,
    /// Compare this many scores with /sys/kernel/debug/extfrag, which is mounted for it if need be
    #[arg(
        long, value_name = "SCORES", conflicts_with_all = ["watch", "against"],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    check: Option<u64>,
}

pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    if let Some(scores) = arguments.check {
        return check(&linux, scores, arguments.printed.json);
    }
    let first = FreeMemory::take(&linux)?;
    check_order(arguments.order, first.orders())?;
    if let Some(path) = &arguments.against {
        let text = whole::text(path).with_context(|| format!("cannot read {}", path.display()))?;
        let before = parse(&text).with_context(|| format!("{}", path.display()))?;
        print!("unusable free space index\n\n{}", before_after(&before, &first));
        return Ok(Exit::Ok);
    }
    let mut look = first;
    let clears = arguments.watch.is_some() && !arguments.printed.json;
    let mut is_first = true;
    loop {
        let several = arguments.watch.map(|_| is_first);
        let text = match arguments.printed.json {
            true => answer::text(&FRAG_SHOW_LAYOUT, shown(&look), several)?,
            false => text(&look, arguments.order),
        };
        is_first = false;
        // Whoever read us has seen enough.
        if !pagemill_launch::stdio::frame(&text, clears) {
            return Ok(Exit::Ok);
        }
        let Some(interval) = arguments.watch else { return Ok(Exit::Ok) };
        thread::sleep(Duration::from(interval).max(Duration::from_millis(10)));
        look = FreeMemory::take(&linux)?;
    }
}

/// Compares scores with the kernel's own until `wanted` have been compared.
fn check(linux: &Linux, wanted: u64, as_json: bool) -> Result<Exit> {
    let mut progress = Progress::of("comparing scores", wanted);
    let ScoreCheck { equal, unequal, changed } =
        kernel_scores::check(linux, wanted, |done| progress.at(done))?;
    drop(progress);
    if as_json {
        answer::print(
            &FRAG_CHECK_LAYOUT,
            json!({ "equal": equal, "unequal": unequal, "zones_that_changed": changed }),
        )?;
    } else {
        println!(
            "{equal} scores equal to the kernel's, {unequal} not; {changed} looks at a zone not compared, for its \
             memory changed meanwhile"
        );
    }
    Ok(if unequal == 0 { Exit::Ok } else { Exit::Finding })
}

//! `frag compact`: mends fragmented memory and says what each step achieved.

use anyhow::Result;
use clap::Args;
use pagemill_kernel::Linux;
use pagemill_launch::progress::Progress;
use pagemill_model::Order;
use serde_json::json;

use super::orders::{check_order, order, score};
use crate::answer::{self, Layout};
use pagemill_control::fragmentation::compact::{self, Caches, Goal};
use pagemill_control::fragmentation::pageblocks::PageblockOccupants;
use pagemill_launch::exit::Exit;
use pagemill_record::free_memory::FreeMemory;
use pagemill_report::free_memory::{before_after, json as shown, left, leftover};

/// What it answers.
const LAYOUT: Layout = Layout::new("frag-compact", 1, "steps");

const EXAMPLES: &str = "\
Examples:
  sudo pagemill frag compact
  sudo pagemill frag compact --no-sweep        only what the kernel's own compaction does
  sudo pagemill frag compact --keep-caches     no clean files dropped, even if the target is missed
  sudo pagemill frag compact --target 0.2 --json
  sudo pagemill frag compact --dry-run         what it would do
";

const AFTER: &str = "\
Exit status: 0 the score is at most the target; 1 it is not, and why; 2 error; 4 not root.";

/// How far to go.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The order of the score; 9 is that of a 2 MiB page
    #[arg(long, default_value = "9", value_parser = order)]
    order: Order,
    /// Stop once the score is at most this
    #[arg(long, value_name = "SCORE", default_value = "0.05", value_parser = score, allow_negative_numbers = true)]
    target: f64,
    /// Leave the sweep out, which reserves free memory as huge pages for a moment
    #[arg(long)]
    no_sweep: bool,
    /// Keep clean files and what is known of them, which are dropped otherwise if the target is not reached without.
    /// Programs read what they miss from disk again afterwards
    #[arg(long)]
    keep_caches: bool,
    /// Change nothing; say what it would do
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
}

pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let before = FreeMemory::take(&linux)?;
    check_order(arguments.order, before.orders())?;
    let goal = Goal {
        order: arguments.order,
        target: arguments.target,
        sweep: !arguments.no_sweep,
        caches: if arguments.keep_caches { Caches::Kept } else { Caches::Dropped },
    };
    if arguments.dry_run {
        let would = compact::Estimate::of(&linux, goal, &before)?;
        answer::tell(arguments.printed.json, &LAYOUT, || would, || would.text())?;
        return Ok(Exit::Ok);
    }
    let mut progress = Progress::new("compacting");
    let steps = compact::run(&linux, goal, |step| {
        progress.say(&format!("{}: score {:.3}", step.name, step.after));
    })?;
    drop(progress);
    let after = FreeMemory::take(&linux)?;
    let score = steps.last().map_or(0.0, |step| step.after);
    let missed = score > arguments.target;
    let occupants = missed.then(|| occupants(&linux, &after)).flatten();
    if arguments.printed.json {
        let value = json!({
            "order": arguments.order,
            "target": arguments.target,
            "steps": steps.iter().map(compact::json).collect::<Vec<_>>(),
            "left_pages": left(&after, arguments.order),
            "pageblocks": occupants.map(PageblockOccupants::json),
            "before": shown(&before),
            "after": shown(&after),
        });
        answer::print(&LAYOUT, value)?;
    } else {
        println!("unusable free space index\n\n{}", before_after(&before, &after));
        print!("{}{}", compact::table(&steps), leftover(&after, arguments.order));
        print!("{}", occupants.map_or(String::new(), PageblockOccupants::text));
    }
    if missed && arguments.keep_caches {
        notice!(
            "the score is above {}: without --keep-caches clean files would be dropped for it",
            arguments.target
        );
    }
    Ok(if missed { Exit::Finding } else { Exit::Ok })
}

/// Who sits in pageblocks that are partly free; root's to see.
fn occupants(linux: &Linux, look: &FreeMemory) -> Option<PageblockOccupants> {
    PageblockOccupants::count(linux, look.types.as_ref()?.pageblock_order.pages() as usize).ok()
}

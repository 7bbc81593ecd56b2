//! `frag show`: scores of each node, zone and order.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use pagemill_analysis::fragmentation::{external, unusable};
use pagemill_kernel::extfrag::{Extfrag, Scores};
use pagemill_kernel::{Linux, page_size};
use pagemill_launch::progress::Progress;
use pagemill_model::{Bytes, Nanos, Order, whole};
use serde_json::json;

use super::orders::{check_order, order};
use super::tables;
use pagemill_launch::exit::Exit;
use pagemill_record::free_memory::FreeMemory;

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
        let before = tables::parse(&text).with_context(|| format!("{}", path.display()))?;
        print!("unusable free space index\n\n{}", tables::before_after(&before, &first));
        return Ok(Exit::Ok);
    }
    let mut look = first;
    let clears = arguments.watch.is_some() && !arguments.printed.json;
    let mut is_first = true;
    loop {
        let several = arguments.watch.map(|_| is_first);
        let text = match arguments.printed.json {
            true => crate::answer::text("frag-show", tables::json(&look), several)?,
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

fn text(look: &FreeMemory, order: Order) -> String {
    let mut text = format!(
        "unusable free space index: the share of free memory in blocks too small for the order\n{}\n",
        tables::unusable_table(look)
    );
    text += &format!(
        "external fragmentation index: -1.000 a block is free; else near 1 fragmented, near 0 out of memory\n{}\n",
        tables::external_table(look)
    );
    text += &format!("free blocks\n{}\n", tables::blocks_table(look));
    if let Some(hidden) = look.hidden() {
        let hidden = Bytes(hidden * page_size() as u64).to_string();
        text += &format!(
            "hidden: {} of free memory is on lists of the processors, in no block and no score (frag compact drains \
             them)\n\n",
            hidden.trim()
        );
    }
    match tables::mobility_table(look, order) {
        Some(table) => text += &format!("mobility\n{table}"),
        None => text += "mobility: not measured (/proc/pagetypeinfo is root's to read)\n",
    }
    text
}

/// Compares scores with the kernel's own until `wanted` have been compared. A zone whose free memory changed between
/// the two readings is not compared.
fn check(linux: &Linux, wanted: u64, as_json: bool) -> Result<Exit> {
    let files = Extfrag::open(linux)?;
    let (mut equal, mut unequal, mut changed) = (0_u64, 0_u64, 0_u64);
    let mut progress = Progress::of("comparing scores", wanted);
    while equal + unequal < wanted {
        let before = linux.buddyinfo()?;
        let (ours_unusable, ours_external) = (files.unusable()?, files.external()?);
        let after = linux.buddyinfo()?;
        progress.at(equal + unequal);
        for (zone, later) in before.iter().zip(&after) {
            if zone != later {
                changed += 1;
                continue;
            }
            let of = |scores: &[Scores]| {
                let found =
                    scores.iter().find(|s| (s.node, &s.zone) == (zone.node, &zone.zone)).cloned();
                found.map(|scores| scores.printed).unwrap_or_default()
            };
            for (index, theirs) in
                [unusable, external].into_iter().zip([of(&ours_unusable), of(&ours_external)])
            {
                for (order, theirs) in Order::first(theirs.len()).zip(&theirs) {
                    let ours = index(&zone.blocks, order).to_string();
                    if ours == *theirs {
                        equal += 1;
                    } else {
                        unequal += 1;
                        eprintln!(
                            "pagemill: node {} {} order {order}: {ours}, the kernel says {theirs}, of {:?}",
                            zone.node, zone.zone, zone.blocks
                        );
                    }
                }
            }
        }
    }
    drop(progress);
    if as_json {
        crate::answer::print(
            "frag-check",
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

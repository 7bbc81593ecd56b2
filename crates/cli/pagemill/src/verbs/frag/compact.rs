//! `frag compact`: mends fragmented memory and says what each step achieved.

use anyhow::Result;
use clap::Args;
use pagemill_kernel::Linux;
use pagemill_launch::progress::Progress;
use pagemill_model::{Bytes, Order};
use serde_json::json;

use super::orders::{check_order, order, score};
use super::tables;
use pagemill_control::fragmentation::compact::{self, Caches, Goal, Step};
use pagemill_control::fragmentation::pageblocks::PageblockOccupants;
use pagemill_launch::exit::Exit;
use pagemill_record::free_memory::{FreeMemory, ZoneFreeMemory};
use pagemill_report::draw::text;

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
        return dry_run(&linux, arguments, goal, &before);
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
            "steps": steps.iter().map(step_json).collect::<Vec<_>>(),
            "left_pages": left(&after, arguments.order),
            "pageblocks": occupants.map(|blocks| json!({
                "partly_free": blocks.partly_free,
                "all_movable": blocks.movable,
                "with_slab": blocks.slab,
                "with_page_tables": blocks.page_tables,
                "with_other_kernel_memory": blocks.other,
                "free_pages_beside_kernel_memory": blocks.beside,
            })),
            "before": tables::json(&before),
            "after": tables::json(&after),
        });
        crate::answer::print("frag-compact", value)?;
    } else {
        println!("unusable free space index\n\n{}", tables::before_after(&before, &after));
        print!("{}{}", step_table(&steps), leftover(&after, arguments.order));
        print!("{}", occupants.map_or(String::new(), words));
    }
    if missed && arguments.keep_caches {
        eprintln!(
            "pagemill: the score is above {}: without --keep-caches clean files would be dropped for it",
            arguments.target
        );
    }
    Ok(if missed { Exit::Finding } else { Exit::Ok })
}

/// Who sits in pageblocks that are partly free; root's to see.
fn occupants(linux: &Linux, look: &FreeMemory) -> Option<PageblockOccupants> {
    PageblockOccupants::count(linux, look.types.as_ref()?.pageblock_order.pages() as usize).ok()
}

/// Says what would be done, in the order in which it would.
fn dry_run(linux: &Linux, arguments: &Arguments, goal: Goal, look: &FreeMemory) -> Result<Exit> {
    let size = |pages: u64| Bytes(pages * pagemill_kernel::page_size() as u64).plain();
    let score = look.unusable(goal.order).value();
    let sweep = if goal.sweep { compact::asked(linux, goal).ok() } else { None };
    let vmstat = linux.vmstat()?;
    let files = ["nr_active_file", "nr_inactive_file"];
    let files: u64 = files.iter().filter_map(|name| vmstat.get(name)).sum();
    let dirty = vmstat.get("nr_dirty").unwrap_or(0);
    let files = (goal.caches == Caches::Dropped).then_some(files.saturating_sub(dirty));
    if arguments.printed.json {
        let value = json!({
                        "order": goal.order,
            "target": goal.target,
            "score": score,
            "hidden_pages": look.hidden(),
            "sweep_huge_pages": sweep,
            "clean_file_pages": files,
        });
        crate::answer::print("frag-compact", value)?;
        return Ok(Exit::Ok);
    }
    println!("the score of order {} is {score:.3}, the target {}", goal.order, goal.target);
    let hidden = look.hidden().map_or("not known how much".into(), size);
    println!("drain     {hidden} of free memory is on lists of the processors");
    println!("as long as the score is above the target:");
    println!("compact   every zone, by the kernel");
    if let Some(pages) = sweep {
        println!("sweep     {pages} huge pages would be reserved for a moment");
    }
    if let Some(pages) = files {
        println!(
            "drop      at most {} of clean files, then names and attributes of files",
            size(pages)
        );
    }
    Ok(Exit::Ok)
}

/// Free pages in blocks below `order`, by mobility of the pageblocks that they lie in, most first.
fn left(look: &FreeMemory, order: Order) -> Vec<(String, u64)> {
    let mut pages: Vec<(String, u64)> = Vec::new();
    for free in look.types.iter().flat_map(|types| &types.free) {
        let large = |zone: &&ZoneFreeMemory| zone.zone == free.zone && look.is_large(zone);
        if look.zones.iter().find(large).is_none() {
            continue;
        }
        let below: u64 =
            (0..).zip(free.blocks.iter().take(order.index())).map(|(k, n)| n << k).sum();
        match pages.iter_mut().find(|(mobility, _)| *mobility == free.mobility) {
            Some((_, sum)) => *sum += below,
            None => pages.push((free.mobility.clone(), below)),
        }
    }
    pages.retain(|(_, pages)| *pages > 0);
    pages.sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
    pages
}

/// Where the rest is that is still in small blocks: compaction fills no pageblock that is not movable.
fn leftover(look: &FreeMemory, order: Order) -> String {
    let page = pagemill_kernel::page_size() as u64;
    let size = |pages: u64| Bytes(pages * page).plain();
    let left = left(look, order);
    if left.is_empty() {
        return String::new();
    }
    let each = left.iter().map(|(mobility, pages)| {
        format!("{} in {} pageblocks", size(*pages), mobility.to_lowercase())
    });
    let sum = left.iter().map(|(_, pages)| pages).sum();
    let each = each.collect::<Vec<_>>().join(", ");
    format!(
        "\nstill in blocks below order {order}: {}: {each}; compaction fills only movable ones\n",
        size(sum)
    )
}

/// Who keeps pageblocks from becoming whole.
fn words(blocks: PageblockOccupants) -> String {
    let PageblockOccupants { partly_free, movable, slab, page_tables, other, beside } = blocks;
    let beside = Bytes(beside * pagemill_kernel::page_size() as u64).to_string();
    format!(
        "{partly_free} pageblocks are partly free: {movable} with nothing in use that could not be moved; objects of \
         the kernel are in {slab}, page tables in \
         {page_tables}, other memory of the kernel in {other}, and these stay where they are, {} of free memory \
         beside them\n",
        beside.trim()
    )
}

fn step_table(steps: &[Step]) -> String {
    let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            vec![
                step.name.to_owned(),
                format!("{:.3}", step.before),
                format!("{:.3}", step.after),
                format!("{:.2} s", step.took.as_secs_f64()),
                count(step.counters.migrated),
                count(step.counters.failed),
                count(step.counters.scanned),
                step.gave_up.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let header =
        ["step", "before", "after", "took", "pages moved", "not moved", "looked at", "gave up"];
    text::table(&header, &rows)
}

fn step_json(step: &Step) -> serde_json::Value {
    json!({
        "step": step.name,
        "before": step.before,
        "after": step.after,
        "seconds": step.took.as_secs_f64(),
        "pages_scanned": step.counters.scanned,
        "free_pages_scanned": step.counters.free_scanned,
        "pages_migrated": step.counters.migrated,
        "pages_failed": step.counters.failed,
        "gave_up": step.gave_up,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::pagetypeinfo::{Free, PageTypes};

    #[test]
    fn what_is_left_is_told_by_mobility_and_small_zones_are_left_out() {
        let zone = |name: &str, managed| ZoneFreeMemory {
            node: 0,
            zone: name.into(),
            blocks: vec![0; 11],
            hidden: None,
            managed: Some(managed),
        };
        let free = |zone: &str, mobility: &str, blocks: &[u64]| Free {
            node: 0,
            zone: zone.into(),
            mobility: mobility.into(),
            blocks: blocks.to_vec(),
        };
        let types = PageTypes {
            free: vec![
                free("DMA", "Unmovable", &[100, 0, 0]),
                free("Normal", "Movable", &[1, 1, 9]),
                free("Normal", "Unmovable", &[2, 3, 9]),
            ],
            ..PageTypes::default()
        };
        let zones = vec![zone("DMA", 10), zone("Normal", 100_000)];
        let look = FreeMemory { time: std::time::Duration::ZERO, zones, types: Some(types) };
        assert_eq!(left(&look, Order(2)), [("Unmovable".to_owned(), 8), ("Movable".to_owned(), 3)]);
        assert!(
            leftover(&look, Order(2))
                .contains("32.0 KiB in unmovable pageblocks, 12.0 KiB in movable")
        );
    }
}

//! Mends fragmented memory, further than the kernel's own compaction goes.
//!
//! ```text
//!  drain      pages on the processors' lists join their buddies; nothing moves
//!  compact    the kernel's compaction of all zones, which may give up: large pages of the page cache find no
//!             block to move to, and it stops there (`contended`)
//!  sweep      the pool of reserved huge pages asks for all that free memory could hold, again and again: each
//!             request compacts for itself and reclaims a little if it must, and goes on behind the page at which the
//!             one before gave up; then the pool is given back. Nobody touches the pages, so the sweep costs no
//!             zeroing, and no memory in the end
//!  drain      as before
//!  drop       if all that was not enough: clean files go, and if that was not enough names and attributes of files,
//!             and slabs that are empty then
//! ```
//!
//! Compacting and sweeping go on in turns while the score is above the goal and a round helps, and again after
//! something was dropped. Why it takes that: where files fill much of memory, pageblocks stay in which a part is free
//! and nothing that is in use moves, however often one compacts and however much is free elsewhere. Always true: the
//! size of the pool and the preference for swap are on loan, so that they are as found after any end.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_analysis::fragmentation::free_pages;
use pagemill_kernel::memory::compaction::{Cache, RESERVED_HUGE_PAGES, RESERVED_LOAN, SWAPPINESS};
use pagemill_kernel::memory::vmstat::Vmstat;
use pagemill_kernel::memory::zoneinfo::Zone;
use pagemill_kernel::process::signal::{ENDS, Signals};
use pagemill_kernel::settings::loan::Loan;
use pagemill_kernel::trace::tracefs::{CompactionEnd, Trace};
use pagemill_kernel::{Linux, page_size};
use pagemill_model::{Bytes, Order};
use pagemill_record::free_memory::FreeMemory;
use pagemill_report::draw::text;
use serde::Serialize;
use serde_json::{Value, json};

use super::{journals, score};

/// Rounds of compacting and sweeping at most: each makes room for the next one.
const ROUNDS: usize = 6;

/// A round that improves the score by less than this is the last.
const WORTH: f64 = 0.005;

/// The share of free memory that the sweep leaves alone, and what it has reclaimed of clean files, if
/// there are four times as much, as a share of free memory.
const LEFT_FREE: f64 = 0.05;
const RECLAIMED: f64 = 0.10;

/// How often names and attributes of files are dropped: a few times brings what once leaves.
const SLAB_TURNS: usize = 4;

/// A request that fails puts off the next ones, at most 64 of them, before the kernel compacts for one again; then it
/// goes on where it was, behind the page that it could not move. So the pool asks that often in vain before it is done.
const DEFERRED: u32 = 70;

/// For how long a sweep asks.
const SWEEP_LIMIT: Duration = Duration::from_secs(10);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Order of the score.
    pub order: Order,
    /// Nothing more is done once the score is at most this.
    pub target: f64,
    /// Whether to sweep if need be.
    pub sweep: bool,
    /// What becomes of clean caches.
    pub caches: Caches,
}

/// What becomes of clean caches, of which programs read again what they miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caches {
    /// The sweep takes a little of them.
    #[default]
    Kept,
    /// They are dropped if the goal is not reached without.
    Dropped,
}

/// One step, and what it achieved.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `drain`, `compact`, `sweep` or `drop`.
    pub name: &'static str,
    /// Score before.
    pub before: f64,
    /// Score after.
    pub after: f64,
    /// How long it took.
    pub took: Duration,
    /// What the kernel's counters say of it.
    pub counters: Counters,
    /// Why it did not do all, in words; `None` if there was nothing more for it to do.
    pub gave_up: Option<String>,
}

/// Pages, over one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Looked at for moving away.
    pub scanned: Option<u64>,
    /// Looked at for moving to.
    pub free_scanned: Option<u64>,
    /// Moved.
    pub migrated: Option<u64>,
    /// That could not be moved.
    pub failed: Option<u64>,
}

impl Counters {
    fn between(before: &Vmstat, after: &Vmstat) -> Self {
        Self {
            scanned: after.since(before, "compact_migrate_scanned"),
            free_scanned: after.since(before, "compact_free_scanned"),
            migrated: after.since(before, "pgmigrate_success"),
            failed: after.since(before, "pgmigrate_fail"),
        }
    }
}

/// Does all steps that the goal needs; `done` hears of each. Needs root.
///
/// # Errors
/// The caller is not root, or a file of the kernel cannot be read or written.
pub fn run(linux: &Linux, goal: Goal, mut done: impl FnMut(&Step)) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |step: Step| {
        done(&step);
        steps.push(step);
        steps.last().map_or(0.0, |step| step.after)
    };
    let drain = || {
        step(linux, goal, "drain", || {
            linux.drain_lists(&journals(linux))?;
            Ok(None)
        })
    };
    let mut score = add(drain()?);
    let mut left = match goal.caches {
        Caches::Kept => [].iter(),
        Caches::Dropped => [Cache::Pages, Cache::Slab].iter(),
    };
    loop {
        for _ in 0..ROUNDS {
            if score <= goal.target {
                return Ok(steps);
            }
            add(step(linux, goal, "compact", || compact(linux))?);
            let mut after = add(drain()?);
            if goal.sweep && after > goal.target {
                add(step(linux, goal, "sweep", || sweep(linux, goal))?);
                after = add(drain()?);
            }
            let before = std::mem::replace(&mut score, after);
            if after > before - WORTH {
                break;
            }
        }
        let Some(cache) = left.next().filter(|_| score > goal.target) else { break };
        add(step(linux, goal, "drop", || drop_cache(linux, *cache))?);
        score = add(drain()?);
    }
    Ok(steps)
}

fn step(
    linux: &Linux,
    goal: Goal,
    name: &'static str,
    act: impl FnOnce() -> Result<Option<String>>,
) -> Result<Step> {
    let score = || -> Result<f64> { Ok(score(&FreeMemory::quick(linux)?.blocks(), goal.order)) };
    // Settings are on loan within a step: a signal to end is taken after it.
    let _held = Signals::block(ENDS)?;
    let (before, counters) = (score()?, linux.vmstat().unwrap_or_default());
    let began = Instant::now();
    let gave_up = act()?;
    let took = began.elapsed();
    let counters = Counters::between(&counters, &linux.vmstat().unwrap_or_default());
    Ok(Step { name, before, after: score()?, took, counters, gave_up })
}

/// Drops a cache. Names and attributes go in turns: those that were used lately stay once, and what they refer to after
/// them.
fn drop_cache(linux: &Linux, cache: Cache) -> Result<Option<String>> {
    if cache == Cache::Pages {
        linux.drop_caches(cache)?;
        return Ok(None);
    }
    for _ in 0..SLAB_TURNS {
        linux.drop_caches(cache)?;
        linux.shrink_slabs();
    }
    Ok(None)
}

/// Has the kernel compact, and finds out from its tracepoint whether it went through every zone.
fn compact(linux: &Linux) -> Result<Option<String>> {
    let trace = Trace::start(linux, &["compaction/mm_compaction_end"]);
    linux.compact_memory()?;
    let ends = match trace.and_then(|trace| trace.compactions()) {
        Ok(ends) => ends,
        Err(error) => return Ok(Some(format!("not known: {error}"))),
    };
    let zones = linux.zoneinfo().unwrap_or_default();
    Ok(why(&ends, &zones))
}

/// Which zones the kernel gave up, how far it had come, and why.
fn why(ends: &[CompactionEnd], zones: &[Zone]) -> Option<String> {
    let mut words = Vec::new();
    for end in ends {
        let reason = match end.status.as_str() {
            "complete" | "partial_skipped" | "success" => continue,
            // compact_zone() says so, too, when no free block is as large as the page it is to move.
            "contended" => {
                "contended: a page in use found no free block of its size, or the lock was wanted"
            }
            other => other,
        };
        let zone = zones.iter().find(|zone| zone.start == end.zone_start && zone.managed > 0);
        let name =
            zone.map_or_else(|| format!("zone at {:#x}", end.zone_start), |z| z.zone.clone());
        let length = end.zone_end.saturating_sub(end.zone_start).max(1);
        let passed = end.migrate.saturating_sub(end.zone_start)
            + end.zone_end.saturating_sub(end.free.max(end.migrate));
        let share = 100.0 * passed.min(length) as f64 / length as f64;
        words.push(format!("{name} after {share:.0} %: {reason}"));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// Huge pages that a sweep asks for.
///
/// # Errors
/// A file of the kernel cannot be read.
pub fn asked(linux: &Linux, goal: Goal) -> Result<u64> {
    let free = free_pages(&FreeMemory::quick(linux)?.blocks()) * page_size() as u64;
    let huge_size =
        linux.thp_pmd_size()?.max(goal.order.pages().saturating_mul(page_size() as u64));
    // Where the page cache has plenty to give, the kernel reclaims the last part of it.
    let cache = linux.vmstat()?.get("nr_inactive_file").unwrap_or(0) * page_size() as u64;
    let reclaimed = (free as f64 * RECLAIMED).min(cache as f64 / 4.0);
    Ok((free as f64 * (1.0 - LEFT_FREE) + reclaimed) as u64 / huge_size)
}

/// Has the pool of reserved huge pages fetch all that free memory could hold, and gives it back.
fn sweep(linux: &Linux, goal: Goal) -> Result<Option<String>> {
    let borrowed = [RESERVED_HUGE_PAGES, SWAPPINESS];
    let loan = Loan::files(linux, &journals(linux), RESERVED_LOAN, &borrowed)?;
    let Some(found) = loan.found().value(RESERVED_HUGE_PAGES) else {
        return Ok(Some(
            "this kernel has no pool of reserved huge pages (CONFIG_HUGETLBFS)".into(),
        ));
    };
    let found: u64 = found.parse()?;
    let wanted = asked(linux, goal)?;
    // What is reclaimed are files, not memory of programs, which would go to swap.
    if loan.found().value(SWAPPINESS).is_some() {
        loan.set(SWAPPINESS, "0")?;
    }
    let (mut got, mut in_vain, began) = (0, 0, Instant::now());
    while got < wanted && in_vain < DEFERRED && began.elapsed() < SWEEP_LIMIT {
        loan.set(RESERVED_HUGE_PAGES, &(found + wanted).to_string())?;
        let now = linux.reserved_huge_pages()?.saturating_sub(found);
        in_vain = if now > got { 0 } else { in_vain + 1 };
        got = now;
    }
    loan.give_back()?;
    let missed = got * 10 < wanted * 9;
    Ok(missed.then(|| format!("it got {got} of {wanted} huge pages")))
}

/// What would be done; the members of its JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimate {
    order: Order,
    target: f64,
    /// Just now.
    score: f64,
    /// On the lists of the processors.
    hidden_pages: Option<u64>,
    /// That a sweep would ask for.
    sweep_huge_pages: Option<u64>,
    /// That would be dropped, at the most.
    clean_file_pages: Option<u64>,
}

impl Estimate {
    /// From what free memory is just now. Changes nothing.
    ///
    /// # Errors
    /// A file of the kernel cannot be read.
    pub fn of(linux: &Linux, goal: Goal, memory: &FreeMemory) -> Result<Self> {
        let vmstat = linux.vmstat()?;
        let files = ["nr_active_file", "nr_inactive_file"];
        let files: u64 = files.iter().filter_map(|name| vmstat.get(name)).sum();
        let clean = files.saturating_sub(vmstat.get("nr_dirty").unwrap_or(0));
        Ok(Self {
            order: goal.order,
            target: goal.target,
            score: memory.unusable(goal.order).value(),
            hidden_pages: memory.hidden(),
            sweep_huge_pages: if goal.sweep { asked(linux, goal).ok() } else { None },
            clean_file_pages: (goal.caches == Caches::Dropped).then_some(clean),
        })
    }

    /// In words, in the order in which it would be done.
    pub fn text(&self) -> String {
        let Self { order, target, score, .. } = self;
        let size = |pages: u64| Bytes(pages * page_size() as u64).plain();
        let hidden = self.hidden_pages.map_or("not known how much".into(), size);
        let mut text = format!(
            "the score of order {order} is {score:.3}, the target {target}\ndrain     {hidden} of free memory is on \
             lists of \
             the processors\nas long as the score is above the target:\ncompact   every zone, by the kernel\n"
        );
        if let Some(pages) = self.sweep_huge_pages {
            text += &format!("sweep     {pages} huge pages would be reserved for a moment\n");
        }
        if let Some(pages) = self.clean_file_pages {
            let most = size(pages);
            text += &format!(
                "drop      at most {most} of clean files, then names and attributes of files\n"
            );
        }
        text
    }
}

/// The steps as a table.
pub fn table(steps: &[Step]) -> String {
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

/// A step as JSON.
pub fn json(step: &Step) -> Value {
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

    #[test]
    fn a_zone_that_was_given_up_is_named_with_the_reason_and_one_that_was_not_is_not() {
        let zone =
            |start, name: &str| Zone { start, zone: name.into(), managed: 1, ..Zone::default() };
        let zones = [zone(0x1000, "DMA32"), zone(0x10_0000, "Normal")];
        let end = |zone_start, migrate, status: &str| CompactionEnd {
            zone_start,
            migrate,
            free: zone_start + 1000,
            zone_end: zone_start + 1000,
            status: status.into(),
        };
        let ends =
            [end(0x1000, 0x1000 + 500, "complete"), end(0x10_0000, 0x10_0000 + 10, "contended")];
        let words = why(&ends, &zones).unwrap();
        assert!(words.starts_with("Normal after 1 %: contended"), "{words}");
        assert_eq!(why(&ends[..1], &zones), None);
    }
}

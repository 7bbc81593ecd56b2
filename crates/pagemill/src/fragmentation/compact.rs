//! Mends fragmented memory, further than the kernel's own compaction goes.
//!
//! ```text
//!  drain      pages on the processors' lists join their buddies; nothing moves
//!  compact    the kernel's compaction of all zones, which may give up: large pages of the page cache find no
//!             block to move to, and it stops there (`contended`)
//!  sweep      the pool of reserved huge pages asks for all that free memory could hold: each
//!             request compacts for itself and reclaims a little if it must; then the pool is given back. Nobody touches
//!             the pages, so the sweep costs no zeroing, and no memory in the end
//!  drain      as before
//! ```
//!
//! The sweep runs while the score is above the goal and it helps. Always true: the size of the pool is on
//! loan, so that it is as found after any end.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_analysis::fragmentation::{free_pages, pages_from};
use pagemill_kernel::compaction::{RESERVED_HUGE_PAGES, RESERVED_LOAN};
use pagemill_kernel::loan::Loan;
use pagemill_kernel::vmstat::Vmstat;
use pagemill_kernel::{Linux, page_size};

use super::journals;
use super::look::Look;

/// Sweeps at most: each later one gets what the earlier ones made room for.
const SWEEPS: usize = 4;

/// The share of free memory that the sweep leaves alone.
const LEFT_FREE: f64 = 0.05;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Order of the score.
    pub order: usize,
    /// Nothing more is done once the score is at most this.
    pub target: f64,
    /// Whether to sweep if need be.
    pub sweep: bool,
}

/// One step, and what it achieved.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `drain`, `compact` or `sweep`.
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
    if score > goal.target {
        score = add(step(linux, goal, "compact", || compact(linux))?);
        score = add(drain()?).min(score);
    }
    for _ in 0..SWEEPS {
        if !goal.sweep || score <= goal.target {
            break;
        }
        add(step(linux, goal, "sweep", || sweep(linux, goal.order))?);
        let after = add(drain()?);
        if after > score - 0.005 {
            break;
        }
        score = after;
    }
    Ok(steps)
}

fn step(
    linux: &Linux,
    goal: Goal,
    name: &'static str,
    act: impl FnOnce() -> Result<Option<String>>,
) -> Result<Step> {
    let score = || -> Result<f64> {
        let blocks = Look::quick(linux)?.blocks();
        let free = free_pages(&blocks) as f64;
        let large = pages_from(&blocks, goal.order) as f64;
        Ok(if free > 0.0 { 1.0 - large / free } else { 1.0 })
    };
    let (before, counters) = (score()?, linux.vmstat().unwrap_or_default());
    let began = Instant::now();
    let gave_up = act()?;
    let took = began.elapsed();
    let counters = Counters::between(&counters, &linux.vmstat().unwrap_or_default());
    Ok(Step { name, before, after: score()?, took, counters, gave_up })
}

/// Has the kernel compact, and finds out whether it went through.
fn compact(linux: &Linux) -> Result<Option<String>> {
    linux.compact_memory()?;
    Ok(None)
}

/// Has the pool of reserved huge pages fetch all that free memory could hold, and gives it back.
fn sweep(linux: &Linux, order: usize) -> Result<Option<String>> {
    let loan = Loan::files(linux, &journals(linux), RESERVED_LOAN, &[RESERVED_HUGE_PAGES])?;
    let Some(found) = loan.found().value(RESERVED_HUGE_PAGES) else {
        return Ok(Some(
            "this kernel has no pool of reserved huge pages (CONFIG_HUGETLBFS)".into(),
        ));
    };
    let found: u64 = found.parse()?;
    let free = free_pages(&Look::quick(linux)?.blocks()) * page_size() as u64;
    let huge_size = linux.thp_pmd_size()?.max((page_size() as u64) << order);
    let wanted = (free as f64 * (1.0 - LEFT_FREE)) as u64 / huge_size;
    loan.set(RESERVED_HUGE_PAGES, &(found + wanted).to_string())?;
    let got = linux.reserved_huge_pages()?.saturating_sub(found);
    loan.give_back()?;
    let missed = got * 10 < wanted * 9;
    Ok(missed.then(|| format!("it got {got} of {wanted} huge pages")))
}

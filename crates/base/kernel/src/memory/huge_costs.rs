//! What base and huge pages cost on this machine, found out by using some: under two seconds, at most 256 MiB.
//!
//! ```text
//!   first touch of new memory      fresh: may be cold (the host provides it) or warm
//!   give back, touch again         warm: the kernel hands out the pages last given back first
//! ```
//!
//! Fresh touches that take more than [`COLD`] times the warm median are cold; their share is the chance of cold and
//! their median the cold cost. Costs are medians. What the machine does not do (huge pages switched off, no
//! `MADV_COLLAPSE`, no 64 KiB pages) has no value and a reason.
//!
//! Always true: nothing outlives the measurement but the time that it took.

use std::time::Duration;

use pagemill_model::Pid;
use serde::{Deserialize, Serialize};

use crate::memory::anonymous::{Advice, Anonymous, HUGE, PAGE};
use crate::{Linux, Result, clock};

/// How many times the warm median a touch must take to be called cold.
pub const COLD: u64 = 4;
/// Regions to try huge pages on.
const REGIONS: usize = 32;
/// Base pages to try, in batches: the clock takes a good part of what a page does.
const BATCH: usize = 16;
const BATCHES: usize = 1024;
/// Bytes of a page of medium size.
const MEDIUM: usize = 64 << 10;
/// Memory for the reads: beyond what the TLB covers with base pages, and most of a cache.
const READ_AREA: usize = 256 << 20;
const READS: u64 = 400_000;
/// When to stop beginning new parts.
const BUDGET: Duration = Duration::from_millis(1500);

/// Costs in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugeCosts {
    /// A fault that brings a base page, warm.
    pub base_ns: Option<u64>,
    /// The same, cold.
    pub base_cold_ns: Option<u64>,
    /// A fault that brings 64 KiB, warm.
    pub medium_ns: Option<u64>,
    /// A fault that brings a huge page, warm.
    pub huge_ns: Option<u64>,
    /// The same, cold.
    pub huge_cold_ns: Option<u64>,
    /// Collapsing 512 base pages.
    pub collapse_ns: Option<u64>,
    /// Moving a huge page that is there into place (mremap(2)).
    pub deliver_ns: Option<u64>,
    /// What filling 2 MiB takes longer where another thread had the kernel provide it, a while ago.
    pub fetch_ns: Option<u64>,
    /// Share of fresh touches that were cold, thousandths.
    pub cold_permille: Option<u64>,
    /// A dependent random read in 256 MiB of base pages, picoseconds.
    pub read_base_ps: Option<u64>,
    /// The same in huge pages, picoseconds.
    pub read_huge_ps: Option<u64>,
    /// What has no value, and why.
    pub not_measured: Vec<(String, String)>,
    /// How long all of it took, ns.
    pub took_ns: u64,
}

impl HugeCosts {
    fn lacks(&mut self, what: &str, why: impl ToString) {
        self.not_measured.push((what.to_owned(), why.to_string()));
    }
}

fn now() -> u64 {
    u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

fn timed(work: impl FnOnce()) -> u64 {
    let begun = now();
    work();
    now() - begun
}

fn median(times: &mut [u64]) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Warm median, cold median and share of cold touches in thousandths.
fn split(fresh: &[u64], warm: &mut [u64]) -> (Option<u64>, Option<u64>, Option<u64>) {
    let Some(usual) = median(warm) else { return (None, None, None) };
    let mut cold: Vec<u64> =
        fresh.iter().copied().filter(|time| *time > usual.saturating_mul(COLD)).collect();
    let share = cold.len() * 1000 / fresh.len().max(1);
    (Some(usual), median(&mut cold), u64::try_from(share).ok())
}

/// Measures.
///
/// # Errors
/// Nothing could be mapped; what cannot be measured for other reasons is named in the result.
pub fn measure(linux: &Linux) -> Result<HugeCosts> {
    let begun = clock::monotonic();
    let mut costs = HugeCosts::default();
    let late = || clock::monotonic().saturating_sub(begun) > BUDGET;
    base(&mut costs)?;
    let huge = huge(linux, &mut costs)?;
    match fetch() {
        Ok(time) => costs.fetch_ns = Some(time),
        Err(error) => costs.lacks("fetch", error),
    }
    const LATE: &str = "the time for measuring was used up";
    if late() {
        costs.lacks("medium", LATE);
    } else {
        medium(linux, &mut costs)?;
    }
    if !huge {
        let why = "huge pages could not be had (see thp)";
        ["collapse", "deliver", "reads"].into_iter().for_each(|what| costs.lacks(what, why));
    } else if late() {
        ["collapse", "deliver", "reads"].into_iter().for_each(|what| costs.lacks(what, LATE));
    } else {
        collapse(&mut costs)?;
        deliver(&mut costs)?;
        if late() {
            costs.lacks("reads", LATE);
        } else {
            reads(linux, &mut costs, &late)?;
        }
    }
    let took = clock::monotonic().saturating_sub(begun);
    costs.took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    Ok(costs)
}

fn base(costs: &mut HugeCosts) -> Result<()> {
    let area = Anonymous::map(BATCHES * BATCH * PAGE, 0)?;
    // Refused where the kernel has no huge pages, which is what is wanted here.
    let _ = area.advise(0, area.len(), Advice::NoHuge);
    let touch = || -> Vec<u64> {
        let batch = |at: usize| {
            timed(|| (0..BATCH).for_each(|page| area.touch((at * BATCH + page) * PAGE)))
        };
        (0..BATCHES).map(|at| batch(at) / BATCH as u64).collect()
    };
    let fresh = touch();
    area.advise(0, area.len(), Advice::DontNeed)?;
    let mut warm = touch();
    (costs.base_ns, costs.base_cold_ns, costs.cold_permille) = split(&fresh, &mut warm);
    if costs.base_cold_ns.is_none() {
        costs.lacks("base_cold", "no fresh page was cold");
    }
    Ok(())
}

/// Whether huge pages could be had.
fn huge(linux: &Linux, costs: &mut HugeCosts) -> Result<bool> {
    let area = Anonymous::map(REGIONS * HUGE, 0)?;
    if let Err(error) = area.advise(0, area.len(), Advice::Huge) {
        costs.lacks("huge", error);
        return Ok(false);
    }
    let touch = || -> Vec<u64> { (0..REGIONS).map(|at| timed(|| area.touch(at * HUGE))).collect() };
    let fresh = touch();
    let on_huge = linux.smaps(Pid::own()).ok().and_then(|mappings| {
        let start = area.address() as u64;
        let ours = mappings.into_iter().find(|m| m.mapping.start <= start && start < m.mapping.end);
        ours.and_then(|ours| ours.usage.anon_huge_pages)
    });
    if on_huge.is_none_or(|bytes| bytes < (REGIONS * HUGE / 2) as u64) {
        let why =
            "most first touches brought base pages: no free blocks, or huge pages are switched off";
        costs.lacks("huge", why);
        return Ok(false);
    }
    area.advise(0, area.len(), Advice::DontNeed)?;
    let mut warm = touch();
    let cold;
    (costs.huge_ns, costs.huge_cold_ns, cold) = split(&fresh, &mut warm);
    // Of the two, huge pages tell more: 2 MiB at once, and 64 MiB of them.
    costs.cold_permille = cold.or(costs.cold_permille);
    if costs.huge_cold_ns.is_none() {
        costs.lacks("huge_cold", "no fresh page was cold");
    }
    Ok(true)
}

fn medium(linux: &Linux, costs: &mut HugeCosts) -> Result<()> {
    let sizes = linux.thp_sizes().unwrap_or_default();
    let enabled = sizes.iter().find(|size| size.bytes == MEDIUM as u64);
    let word = enabled.and_then(|size| size.enabled.as_ref()).map(|choice| choice.active.clone());
    match word.as_deref() {
        None => {
            costs.lacks("medium", "this kernel has no pages of 64 KiB");
            return Ok(());
        }
        Some("never") => {
            let why = "hugepages-64kB/enabled is never (sudo sh -c 'echo madvise > \
                       /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled')";
            costs.lacks("medium", why);
            return Ok(());
        }
        Some(_) => {}
    }
    // A base page in each region first: no huge page fits there any more. As much memory as for the other sizes, for
    // what goes around in a cache is zeroed three times as fast as what a growing program takes.
    let area = Anonymous::map(REGIONS * HUGE, 0)?;
    let touch = || -> Result<Vec<u64>> {
        area.advise(0, area.len(), Advice::NoHuge)?;
        (0..REGIONS).for_each(|at| area.touch(at * HUGE));
        area.advise(0, area.len(), Advice::Huge)?;
        let units = (0..area.len()).step_by(MEDIUM).filter(|at| at % HUGE != 0);
        Ok(units.map(|at| timed(|| area.touch(at))).collect())
    };
    touch()?;
    area.advise(0, area.len(), Advice::DontNeed)?;
    costs.medium_ns = median(&mut touch()?);
    Ok(())
}

/// How much longer it takes to fill memory that another thread has provided, mostly on another CPU, than memory that
/// was just provided here: it is in another cache, or in none any more.
fn fetch() -> Result<u64> {
    const CHUNKS: usize = 16;
    const LINE: usize = 64;
    let fill = |area: &Anonymous, at: usize| {
        let lines = (at * HUGE..(at + 1) * HUGE).step_by(LINE);
        timed(|| lines.for_each(|line| area.write(line, 1)))
    };
    let area = Anonymous::map(CHUNKS * HUGE, 0)?;
    // Refused where the kernel has no huge pages; base pages tell the same.
    let _ = area.advise(0, area.len(), Advice::Huge);
    let mut own = Vec::with_capacity(CHUNKS);
    for at in 0..CHUNKS {
        area.advise(at * HUGE, HUGE, Advice::Populate)?;
        own.push(fill(&area, at));
    }
    area.advise(0, area.len(), Advice::DontNeed)?;
    let provide = move || area.advise(0, area.len(), Advice::Populate).map(|()| area);
    let other = crate::process::thread::start(provide)?.join();
    let area = other.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let mut others: Vec<u64> = (0..CHUNKS).map(|at| fill(&area, at)).collect();
    let (own, others) = (median(&mut own).unwrap_or(0), median(&mut others).unwrap_or(0));
    Ok(others.saturating_sub(own))
}

fn collapse(costs: &mut HugeCosts) -> Result<()> {
    let area = Anonymous::map(REGIONS / 4 * HUGE, 0)?;
    area.advise(0, area.len(), Advice::NoHuge)?;
    (0..area.len() / PAGE).for_each(|page| area.touch(page * PAGE));
    area.advise(0, area.len(), Advice::Huge)?;
    let mut times = Vec::new();
    for at in 0..REGIONS / 4 {
        let mut outcome = Ok(());
        let time = timed(|| outcome = area.advise(at * HUGE, HUGE, Advice::Collapse));
        match outcome {
            Ok(()) => times.push(time),
            Err(error) => {
                costs.lacks("collapse", error);
                return Ok(());
            }
        }
    }
    costs.collapse_ns = median(&mut times);
    Ok(())
}

fn deliver(costs: &mut HugeCosts) -> Result<()> {
    let target = Anonymous::map(REGIONS / 4 * HUGE, 0)?;
    let mut times = Vec::new();
    for at in 0..REGIONS / 4 {
        let page = Anonymous::map(HUGE, 0)?;
        page.advise(0, HUGE, Advice::Huge)?;
        page.touch(0);
        let mut outcome = Ok(());
        times.push(timed(|| outcome = page.remap(&target, at * HUGE)));
        outcome?;
    }
    costs.deliver_ns = median(&mut times);
    Ok(())
}

/// A chain of reads in which each place follows from the one before and from what was read there.
fn chase(area: &Anonymous) -> u64 {
    let lines = (area.len() / 64) as u64;
    let mut at = 1_u64;
    let time = timed(|| {
        for _ in 0..READS {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let line = ((u128::from(at) * u128::from(lines)) >> 64) as usize;
            at = at.wrapping_add(area.read(line * 64));
        }
    });
    std::hint::black_box(at);
    time * 1000 / READS
}

fn reads(linux: &Linux, costs: &mut HugeCosts, late: &impl Fn() -> bool) -> Result<()> {
    let available = linux.load()?.available;
    if available < 4 * READ_AREA as u64 {
        costs.lacks("reads", format!("only {available} bytes of memory are available"));
        return Ok(());
    }
    let area = Anonymous::map(READ_AREA, 0)?;
    area.advise(0, area.len(), Advice::Huge)?;
    for at in 0..area.len() / HUGE {
        area.touch(at * HUGE);
        if late() {
            costs.lacks("reads", "providing memory took too long (cold)");
            return Ok(());
        }
    }
    let huge = chase(&area).min(chase(&area));
    area.advise(0, area.len(), Advice::DontNeed)?;
    area.advise(0, area.len(), Advice::NoHuge)?;
    (0..area.len() / PAGE).for_each(|page| area.touch(page * PAGE));
    costs.read_huge_ps = Some(huge);
    costs.read_base_ps = Some(chase(&area).min(chase(&area)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_value_has_a_reason_and_costs_are_positive() {
        let costs = measure(&Linux::live()).unwrap();
        assert!(costs.base_ns.is_some_and(|time| time > 0), "{costs:?}");
        for (what, value) in [
            ("huge", costs.huge_ns),
            ("medium", costs.medium_ns),
            ("base_cold", costs.base_cold_ns),
            ("collapse", costs.collapse_ns),
            ("deliver", costs.deliver_ns),
            ("reads", costs.read_base_ps),
        ] {
            let reason =
                costs.not_measured.iter().any(|(name, why)| *name == what && !why.is_empty());
            assert!(value.map_or(reason, |time| time > 0), "{what}: {costs:?}");
        }
        assert!(
            costs.fetch_ns.is_some() || costs.not_measured.iter().any(|(name, _)| *name == "fetch")
        );
        if let (Some(huge), Some(base)) = (costs.huge_ns, costs.base_ns) {
            assert!(huge > base, "{costs:?}");
        }
    }

    #[test]
    fn cold_touches_are_told_from_warm_ones() {
        let fresh = [100, 110, 90, 1000, 1200, 105, 95, 1100];
        assert_eq!(split(&fresh, &mut [100, 90, 110]), (Some(100), Some(1100), Some(375)));
        assert_eq!(split(&[100, 110], &mut [100]), (Some(100), None, Some(0)));
    }
}

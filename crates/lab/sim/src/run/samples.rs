//! A quantum under HeMem or MEMTIS: samples, huge pages split, pages exchanged.

use pagemill_policy::tier::drive::{Limits, Placement, Sampled};
use pagemill_policy::tier::place::Swap;
use pagemill_policy::tier::track::split::{BASE, Splitter};
use pagemill_policy::tier::track::{Counter, hemem};
use pagemill_policy::tier::{Loads, Page, Tier};

use super::{QUANTUM_NS, State};
use crate::workload::GIB;

impl State<'_> {
    /// The unit that serves a read of `page`; MEMTIS looks at where in it that is, and may split.
    fn inside(&mut self, page: u32, driver: &mut Sampled, loads: Loads) -> u32 {
        let (Some(splitter), Some(split_pages)) = (&mut self.splitter, self.pages.split_pages())
        else {
            return page;
        };
        let (base, unit) = split_pages.draw(page, BASE, &mut self.random);
        if splitter.sample(Page(page), base, self.pages.tier(unit)) {
            let (default_ns, alternate_ns) = (loads.default.latency_ns, loads.alternate.latency_ns);
            let chosen = splitter.decide(default_ns, alternate_ns, |_| true);
            let together = split_pages.together();
            for tier in [Tier::Default, Tier::Alternate] {
                let here: Vec<Page> =
                    chosen.iter().copied().filter(|page| self.pages.tier(page.0) == tier).collect();
                for group in here.chunks_exact(together) {
                    self.pages.split(group);
                    count_units(splitter, driver.counter(), group, BASE / together);
                }
            }
        }
        unit
    }

    pub(super) fn by_samples(
        &mut self,
        driver: &mut Sampled,
        loads: Loads,
        weights: &[f64],
        reads_per_ns: f64,
    ) -> (usize, usize) {
        let reads = reads_per_ns * QUANTUM_NS / hemem::PERIOD as f64 / self.setup.scale;
        let mut seen = 0;
        for (class, weight) in weights.iter().enumerate() {
            let samples = self.random.poisson(reads * weight);
            seen += samples;
            for _ in 0..samples {
                let page = self.pages.draw(class, &mut self.random);
                let unit = self.inside(page, driver, loads);
                driver.sample(Page(unit));
                self.sampled += 1.0;
            }
        }
        let progress = self.errors.measured(seen as f64, self.setup.noise).round() as u64;
        let page = self.setup.page_bytes();
        let per_quantum = self.setup.machine.get("hemem.copy_gb_per_s") * QUANTUM_NS / page;
        self.copy_debt = (self.copy_debt + per_quantum / self.setup.scale).min(8.0 * per_quantum);
        let tiers: Vec<Tier> =
            (0..self.pages.len() as u32).map(|page| self.pages.tier(page)).collect();
        let alternate = self.setup.machine.get("tier.alternate.capacity_gib") * GIB / page;
        let placement = Placement {
            tiers: &tiers,
            default_frames: self.pages.default_frames(),
            alternate_frames: (alternate / self.setup.scale) as usize,
        };
        let limits = Limits {
            pages: self.copy_debt as usize,
            page_bytes: page * self.setup.scale,
            quantum_ns: QUANTUM_NS,
        };
        let swaps = exchange(driver, (loads, progress), placement, limits);
        let (mut promoted, mut demoted) = (0, 0);
        for swap in swaps {
            self.copy_debt -= swap.pages() as f64;
            let (up, down) = match swap.from {
                Tier::Alternate => (Some(swap.moved), swap.back),
                Tier::Default => (swap.back, Some(swap.moved)),
            };
            demoted += usize::from(down.is_some_and(|page| self.pages.demote(page.0)));
            promoted += usize::from(up.is_some_and(|page| self.pages.promote(page.0, 0)));
        }
        (promoted, demoted)
    }
}

/// The pages that change places in a quantum, by the loads of both tiers and what the program has read since the last
/// one, in any unit.
pub fn exchange(
    driver: &mut Sampled,
    (loads, progress): (Loads, u64),
    placement: Placement<'_>,
    limits: Limits,
) -> Vec<Swap> {
    driver.progressed(progress);
    driver.decide(loads, placement, limits)
}

/// Counts the units of a group that has just been split: `hot` base pages of each page make the first one up. A base
/// page counts for all 512, as in the published kernel, so a unit counts what its base pages do.
fn count_units(splitter: &mut Splitter, counter: &mut dyn Counter, group: &[Page], hot: usize) {
    let counts = |page: &Page| -> (u32, u32) {
        let counts: Vec<u32> = splitter.counts(*page).collect();
        (counts[..hot].iter().sum(), counts[hot..].iter().sum())
    };
    let (first, rest) =
        group.iter().map(counts).fold((0, 0), |all, more| (all.0 + more.0, all.1 + more.1));
    for (at, &page) in group.iter().enumerate() {
        let others = (group.len() as u32 - 1).max(1);
        counter.set(page, if at == 0 { first } else { rest / others });
        splitter.done(page);
    }
}

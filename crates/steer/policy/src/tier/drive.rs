//! Composes a tracker and a placer into the decisions of one quantum.
//!
//! [`Sampled`] drives the trackers that count (HeMem, MEMTIS); [`FaultDriven`] drives those that
//! decide fault by fault (TPP). Both take latencies through an exponentially weighted average.
//!
//! Always so: `Sampled` copies no more pages a quantum than its limit, and with Colloid no more bytes
//! than the shift itself generates.

use std::cell::LazyCell;

use super::place::{Placer, Ranking, Reading, Swap, pack};
use super::place::{Shift, colloid};
use super::track::{Counter, Fault, FaultTracker, Verdict};
use super::{Load, Loads, Page, SmoothedLoad, Tier};

/// Smoothed loads of both tiers.
#[derive(Clone, Copy, Debug)]
struct Smoothed {
    default: SmoothedLoad,
    alternate: SmoothedLoad,
}

impl Smoothed {
    fn new(weight: f64) -> Self {
        Self { default: SmoothedLoad::new(weight), alternate: SmoothedLoad::new(weight) }
    }

    fn update(&mut self, loads: Loads) -> Loads {
        Loads {
            default: self.default.update(loads.default),
            alternate: self.alternate.update(loads.alternate),
        }
    }
}

/// Where the pages are, for a counting driver.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The tier of each page; the index is the page.
    pub tiers: &'a [Tier],
    /// Frames of the default tier.
    pub default_frames: usize,
    /// Frames of the alternate tier.
    pub alternate_frames: usize,
}

/// What bounds a quantum's copies.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pages copied in one quantum.
    pub pages: usize,
    /// Size of a page in bytes.
    pub page_bytes: f64,
    /// Length of the quantum in nanoseconds; infinite where the loads' rates are known only in
    /// proportion to each other, which says nothing of the bytes that a shift generates.
    pub quantum_ns: f64,
}

/// What was chosen in a quantum, and from what.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The pages to copy.
    pub swaps: Vec<Swap>,
    /// The shift that they make up; none where the hottest come first.
    pub shift: Option<Shift>,
    /// The smoothed loads.
    pub loads: Loads,
}

/// A counting tracker and a placer.
#[derive(Debug)]
pub struct Sampled {
    counter: Box<dyn Counter>,
    placer: Box<dyn Placer>,
    smoothed: Smoothed,
    /// Samples since the last decision.
    seen: u64,
}

/// Reads that a byte limit counts for each read that changes tier in a quantum (`18 * 64` bytes in the artifact).
const READS_PER_SHIFT: f64 = 18.0;
const LINE_BYTES: f64 = 64.0;

impl Sampled {
    /// A driver that has seen nothing; `weight` is that of one quantum in the smoothed loads.
    #[must_use]
    pub fn new(counter: Box<dyn Counter>, placer: Box<dyn Placer>, weight: f64) -> Self {
        Self { counter, placer, smoothed: Smoothed::new(weight), seen: 0 }
    }

    /// Counts one sampled load.
    pub fn sample(&mut self, page: Page) {
        self.counter.sample(page);
        self.seen += 1;
    }

    /// The program has read so much since the last decision, which is known better than by what was sampled.
    pub fn progressed(&mut self, reads: u64) {
        self.seen = reads;
    }

    /// The tracker.
    pub fn counter(&mut self) -> &mut dyn Counter {
        &mut *self.counter
    }

    /// Decides one quantum.
    pub fn decide(&mut self, loads: Loads, placement: Placement<'_>, limits: Limits) -> Vec<Swap> {
        let rank = |counter: &dyn Counter| self::ranking(counter, placement);
        self.decide_among(loads, placement.default_frames, limits, rank).swaps
    }

    /// Decides one quantum among the pages that `rank` ranks, if it comes to that; `frames` are those
    /// of the default tier.
    pub fn decide_among(
        &mut self,
        loads: Loads,
        frames: usize,
        limits: Limits,
        rank: impl FnOnce(&dyn Counter) -> Ranking,
    ) -> Choice {
        let loads = self.smoothed.update(loads);
        let rate = std::mem::take(&mut self.seen) as f64;
        let counter = &*self.counter;
        let ranking = LazyCell::new(|| rank(counter));
        let share = if self.placer.asks_share() { ranking.share() } else { None };
        let share = share.unwrap_or_else(|| loads.share());
        let Some(shift) = self.placer.shift(&Reading { loads, share, rate }) else {
            let swaps = pack::choose(&ranking, counter.hot(frames), limits.pages);
            return Choice { swaps, shift: None, loads };
        };
        let pages = limits.pages.min(self::generated(shift, loads, limits));
        let swaps = if shift.size <= 0.0 || pages == 0 {
            Vec::new()
        } else {
            colloid::choose(&ranking, shift, pages)
        };
        // Where there was room for a pair, it is the shift that was too little.
        if limits.pages >= 2 {
            self.placer.came(shift, !swaps.is_empty(), loads);
        }
        Choice { swaps, shift: Some(shift), loads }
    }
}

fn ranking(counter: &dyn Counter, placement: Placement<'_>) -> Ranking {
    let pages = placement.tiers.iter().enumerate().map(|(at, &tier)| (Page(at as u32), tier));
    let mut ranking = Ranking::of_pages(pages, |page| counter.heat(page));
    ranking.default_free = placement.default_frames.saturating_sub(ranking.default.len());
    ranking.alternate_free = placement.alternate_frames.saturating_sub(ranking.alternate.len());
    ranking
}

/// Pages whose copies cost no more bytes than the shifted reads bring.
fn generated(shift: Shift, loads: Loads, limits: Limits) -> usize {
    let reads = (loads.default.reads_per_ns + loads.alternate.reads_per_ns) * limits.quantum_ns;
    (shift.size * reads * READS_PER_SHIFT * LINE_BYTES / limits.page_bytes) as usize
}

/// A tracker that decides fault by fault, alone or under Colloid's boolean.
#[derive(Debug)]
pub struct FaultDriven {
    tracker: Box<dyn FaultTracker>,
    smoothed: Smoothed,
    overloaded: bool,
}

impl FaultDriven {
    /// A driver that has seen nothing; `weight` is that of one quantum in the smoothed latencies.
    #[must_use]
    pub fn new(tracker: Box<dyn FaultTracker>, weight: f64) -> Self {
        Self { tracker, smoothed: Smoothed::new(weight), overloaded: false }
    }

    /// Takes the loads of a quantum in.
    pub fn observe(&mut self, loads: Loads) {
        let Loads { default: Load { latency_ns: default, .. }, alternate } =
            self.smoothed.update(loads);
        self.overloaded = colloid::overloaded(default, alternate.latency_ns);
    }

    /// Whether the default tier answers more slowly, by the smoothed latencies.
    #[must_use]
    pub fn overloaded(&self) -> bool {
        self.overloaded
    }

    /// Whether the scanner should stamp pages of this tier.
    #[must_use]
    pub fn stamps(&self, tier: Tier) -> bool {
        self.tracker.stamps(tier)
    }

    /// Decides one hint fault.
    pub fn fault(&mut self, now_ms: u64, tier: Tier, latency_ms: f64, room: bool) -> Verdict {
        self.tracker.fault(Fault { now_ms, tier, latency_ms, room, overloaded: self.overloaded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::compose::{Engine, compose};
    use crate::tier::kind::{HintFaultSettings, Terms};
    use crate::tier::track::tpp::Tpp;
    use proptest::prelude::*;

    fn loads(default: f64, alternate: f64) -> Loads {
        Loads {
            default: Load { latency_ns: default, reads_per_ns: 0.3 },
            alternate: Load { latency_ns: alternate, reads_per_ns: 0.3 },
        }
    }

    proptest! {
        #[test]
        fn a_quantum_copies_no_more_than_its_limit_and_keeps_both_tiers_within_their_frames(
            samples in prop::collection::vec(0_u32..64, 0..800), limit in 0_usize..30,
            default in 50.0_f64..500.0, alternate in 50.0_f64..500.0, which in 0_usize..3,
            frames in 16_usize..64,
        ) {
            let name = ["hemem", "hemem+colloid", "hemem+watermark"][which];
            let terms = Terms { pages: 64, ..Terms::TEN_MS };
            let Engine::Samples(mut driver) = compose(name, &terms).unwrap().engine else { panic!() };
            samples.into_iter().for_each(|page| driver.sample(Page(page)));
            let mut tiers: Vec<Tier> =
                (0..64).map(|at| if at < frames { Tier::Default } else { Tier::Alternate }).collect();
            for _ in 0..10 {
                let swaps = driver.decide(
                    loads(default, alternate),
                    Placement { tiers: &tiers, default_frames: frames, alternate_frames: 100 },
                    Limits { pages: limit, page_bytes: 4096.0, quantum_ns: 1e7 },
                );
                prop_assert!(swaps.iter().map(Swap::pages).sum::<usize>() <= limit);
                for swap in swaps {
                    prop_assert_eq!(tiers[swap.moved.0 as usize], swap.from);
                    tiers[swap.moved.0 as usize] = swap.from.other();
                    if let Some(back) = swap.back {
                        prop_assert_eq!(tiers[back.0 as usize], swap.from.other());
                        tiers[back.0 as usize] = swap.from;
                    }
                }
                prop_assert!(tiers.iter().filter(|t| **t == Tier::Default).count() <= frames);
            }
        }
    }

    #[test]
    fn the_boolean_follows_the_smoothed_latencies_not_one_reading() {
        let settings = HintFaultSettings {
            threshold_ms: 1000.0,
            pages_per_second: 1000,
            adapt_ms: 1000,
            colloid: true,
        };
        let mut driver = FaultDriven::new(Box::new(Tpp::new(settings)), 0.1);
        driver.observe(loads(100.0, 140.0));
        driver.observe(loads(300.0, 140.0));
        assert_eq!(driver.fault(0, Tier::Default, 1.0, false), Verdict::Stay);
        (0..20).for_each(|_| driver.observe(loads(300.0, 140.0)));
        assert_eq!(driver.fault(1, Tier::Default, 1.0, false), Verdict::Demote);
    }
}

//! Balance of loaded latencies: Colloid (Vuppalapati and Agarwal, SOSP 2024). Memory below a
//! contended tier is not slow by nature but by load, so reads should be spread until both tiers
//! answer equally fast, or until one of them holds all it can.
//!
//! Terms: `share` is the part of reads on the default tier; `L_D`, `L_A` the loaded latencies. Where
//! `L_D < L_A` the share should grow, otherwise shrink. Three published forms decide by how much:
//!
//! - [`Watermark`], section 4 of the paper: a binary search for the balance point between `low` and
//!   `high`. Each step proves one side wrong and aims at the middle. When the interval has collapsed
//!   but latencies still differ, the balance point has moved: the interval re-opens on that side.
//! - [`proportional`], the step that the HeMem port of the artifact compiles in:
//!   `p(1-p)|L_D - L_A| / ((1-p) L_D + p L_A)`. It is the step that would bring the latencies
//!   together if they did not depend on the share, so it shrinks as they meet.
//! - [`overloaded`], all that the TPP port uses: promote while `L_D <= L_A`, demote otherwise.
//!
//! [`choose`] turns a shift into pages: hottest of the overloaded tier first, against the coldest of
//! the other, each pair moving no more than what remains of the shift.
//!
//! Deviations, each because what is published stops short or never rests:
//! - where one tier serves next to nothing, `p(1-p)` is next to nothing too, however far the latencies are apart, and
//!   the share would never come back. [`escaping`] takes `p` within [`EDGE`] of 0 and 1 for [`EDGE`]; in between it is
//!   the published step;
//! - a page that is more than what remains is passed over, so with few hot pages none ever fits. What could not be
//!   moved is *carried* to the next decision ([`CarriedShift`]) until one does. If the latencies then cross, the page
//!   was too large: nothing is carried again before they are further apart than they were;
//! - counts differ by chance. A pair is exchanged only if its difference is [`SURE`] times what chance explains (the
//!   square root of both counts: they are numbers of rare events); otherwise cold pages change places for ever. A page
//!   that moves to a free frame displaces none, and needs no more than a count;
//! - [`escaping`] is content with latencies within its `delta`, as the paper's search is and the shipped step is not.
//!
//! Always so: a shift keeps the share in 0..=1; a constant balance point is approached to within
//! `delta`; a moved one is found again; no more pages are copied than the limit.

use super::placer::{Placer, Ranked, Ranking, Reading, Shift, Swap};
use crate::tier::kind::PlacerKind;
use crate::tier::{Loads, Tier};

/// `+colloid`: the proportional step, or the boolean where hint faults decide.
pub const PROPORTIONAL: PlacerKind = PlacerKind {
    name: "colloid",
    make: |terms| Box::new(Proportional { delta: terms.delta, carried: CarriedShift::default() }),
    balances: true,
    by_faults: true,
};

/// `+watermark`: the binary search.
pub const WATERMARK: PlacerKind = PlacerKind {
    name: "watermark",
    make: |terms| Box::new(Watermark::new(terms.search_delta, terms.search_epsilon)),
    balances: true,
    by_faults: false,
};

/// [`escaping`], with what is [`CarriedShift`].
#[derive(Clone, Copy, Debug)]
pub struct Proportional {
    delta: f64,
    carried: CarriedShift,
}

impl Placer for Proportional {
    fn shift(&mut self, reading: &Reading) -> Option<Shift> {
        let loads = reading.loads;
        let (default, alternate) = (loads.default.latency_ns, loads.alternate.latency_ns);
        let share = loads.share();
        let shift = escaping(share, default, alternate, self.delta);
        Some(self.carried.with(shift, share, default, alternate))
    }

    fn came(&mut self, shift: Shift, found: bool, loads: Loads) {
        self.carried.came(shift, found, loads.default.latency_ns, loads.alternate.latency_ns);
    }
}

impl Placer for Watermark {
    fn shift(&mut self, reading: &Reading) -> Option<Shift> {
        let loads = reading.loads;
        Some(self.step(loads.share(), loads.default.latency_ns, loads.alternate.latency_ns))
    }
}

/// True where the default tier answers more slowly than the alternate one.
#[must_use]
pub fn overloaded(default_ns: f64, alternate_ns: f64) -> bool {
    default_ns > alternate_ns
}

/// The proportional step, as shipped.
#[must_use]
pub fn proportional(share: f64, default_ns: f64, alternate_ns: f64) -> Shift {
    let share = share.clamp(0.0, 1.0);
    let scale = (1.0 - share) * default_ns + share * alternate_ns;
    let size = if scale > 0.0 {
        share * (1.0 - share) * (default_ns - alternate_ns).abs() / scale
    } else {
        0.0
    };
    bounded(share, size, default_ns, alternate_ns)
}

/// The share, from either end, below which the escaping step does not shrink.
pub const EDGE: f64 = 0.05;

/// [`proportional`], with a way out where one tier serves next to nothing, and none where latencies are within `delta`
/// of each other.
#[must_use]
pub fn escaping(share: f64, default_ns: f64, alternate_ns: f64, delta: f64) -> Shift {
    let share = share.clamp(0.0, 1.0);
    if (default_ns - alternate_ns).abs() <= delta * default_ns {
        return bounded(share, 0.0, default_ns, alternate_ns);
    }
    let Shift { size, .. } = proportional(share.clamp(EDGE, 1.0 - EDGE), default_ns, alternate_ns);
    bounded(share, size, default_ns, alternate_ns)
}

/// What was to be shifted and was too little for any page.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedShift {
    shift: Option<Shift>,
    /// How far apart the latencies were when what was carried moved, and which way.
    moved: Option<(Tier, f64)>,
    /// Nothing is carried while they are no further apart than this.
    refuted: f64,
}

/// Latencies this much further apart than where a page was too large are another situation.
const FURTHER: f64 = 1.1;

impl CarriedShift {
    /// The shift with what is carried.
    pub fn with(&mut self, shift: Shift, share: f64, default_ns: f64, alternate_ns: f64) -> Shift {
        let apart = (default_ns - alternate_ns).abs() / default_ns.max(1.0);
        if let Some((_, before)) = self.moved.filter(|(from, _)| *from != shift.from) {
            (self.refuted, self.moved) = (before * FURTHER, None);
        }
        if shift.size <= 0.0 || apart <= self.refuted {
            self.shift = None;
        } else if apart > self.refuted && self.refuted > 0.0 {
            self.refuted = 0.0;
        }
        match self.shift {
            Some(carried) if carried.from == shift.from => {
                let most = if shift.from == Tier::Default { share } else { 1.0 - share };
                Shift { size: (shift.size + carried.size).min(most), ..shift }
            }
            _ => shift,
        }
    }

    /// Takes in whether the shift found a page.
    pub fn came(&mut self, shift: Shift, found: bool, default_ns: f64, alternate_ns: f64) {
        let apart = (default_ns - alternate_ns).abs() / default_ns.max(1.0);
        if found {
            if self.shift.take().is_some() {
                self.moved = Some((shift.from, apart));
            }
        } else if shift.size > 0.0 && apart > self.refuted {
            self.shift = Some(shift);
        }
    }
}

fn bounded(share: f64, size: f64, default_ns: f64, alternate_ns: f64) -> Shift {
    if overloaded(default_ns, alternate_ns) {
        Shift { from: Tier::Default, size: size.clamp(0.0, share) }
    } else {
        Shift { from: Tier::Alternate, size: size.clamp(0.0, 1.0 - share) }
    }
}

/// The binary search of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Watermark {
    low: f64,
    high: f64,
    delta: f64,
    epsilon: f64,
}

impl Default for Watermark {
    /// The published constants: latencies within 5 % are equal, an interval below 1 % is closed.
    fn default() -> Self {
        Self::new(0.05, 0.01)
    }
}

impl Watermark {
    /// A search that is content with latencies within `delta` of each other (a part of the default
    /// tier's) and calls an interval below `epsilon` closed.
    #[must_use]
    pub const fn new(delta: f64, epsilon: f64) -> Self {
        Self { low: 0.0, high: 1.0, delta, epsilon }
    }

    /// The interval that holds the balance point, as far as is known.
    #[must_use]
    pub const fn interval(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Takes one measurement in and says what to shift.
    pub fn step(&mut self, share: f64, default_ns: f64, alternate_ns: f64) -> Shift {
        let share = share.clamp(0.0, 1.0);
        if (default_ns - alternate_ns).abs() < self.delta * default_ns {
            return bounded(share, 0.0, default_ns, alternate_ns);
        }
        let grow = !overloaded(default_ns, alternate_ns);
        if grow {
            self.low = share;
            if self.high <= self.low {
                self.high = 1.0;
            }
        } else {
            self.high = share;
            if self.low >= self.high {
                self.low = 0.0;
            }
        }
        if (self.high - self.low).abs() < self.epsilon {
            if grow {
                self.high = 1.0;
            } else {
                self.low = 0.0;
            }
        }
        let size = (f64::midpoint(self.low, self.high) - share).abs();
        bounded(share, size, default_ns, alternate_ns)
    }
}

/// How many standard deviations the counts of a pair must be apart.
pub const SURE: f64 = 2.5;

/// Whether a page is hotter than another one by more than chance.
fn surely(hot: &Ranked, cold: &Ranked) -> bool {
    let (hot, cold) = (f64::from(hot.heat), f64::from(cold.heat));
    hot - cold > SURE * (hot + cold).sqrt()
}

/// The pages that make up a shift.
///
/// `limit` bounds the pages copied. A pair moves the difference of its two heats, if it is more than chance; a page
/// without heat is not copied back where the other tier has a free frame.
#[must_use]
pub fn choose(ranking: &Ranking, shift: Shift, limit: usize) -> Vec<Swap> {
    let total = ranking.total();
    let hottest = ranking.of(shift.from);
    let coldest = ranking.of(shift.from.other());
    let mut free = ranking.free(shift.from.other());
    let (mut remaining, mut copied) = (shift.size * total, 0);
    let mut swaps = Vec::new();
    let mut partner = coldest.len();
    for candidate in hottest {
        let back = match partner.checked_sub(1).map(|at| coldest[at]) {
            // Where there is room, one that may be as hot need not come back.
            Some(page) if free == 0 || (page.heat > 0 && surely(candidate, &page)) => Some(page),
            None if free == 0 => break,
            _ => None,
        };
        let gain = f64::from(candidate.heat) - back.map_or(0.0, |page| f64::from(page.heat));
        if gain <= 0.0 || back.is_some_and(|page| !surely(candidate, &page)) {
            break;
        }
        if gain > remaining {
            continue;
        }
        let swap = Swap { from: shift.from, moved: candidate.page, back: back.map(|p| p.page) };
        if copied + swap.pages() > limit {
            break;
        }
        copied += swap.pages();
        remaining -= gain;
        if back.is_some() {
            partner -= 1;
        } else {
            free -= 1;
        }
        swaps.push(swap);
    }
    swaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::Page;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Two tiers whose latencies rise with their share; balanced at `balance`.
    fn latencies(share: f64, balance: f64, slope: f64) -> (f64, f64) {
        (150.0 + slope * (share - balance), 150.0 - slope * (share - balance))
    }

    fn apply(share: f64, shift: Shift) -> f64 {
        match shift.from {
            Tier::Default => share - shift.size,
            Tier::Alternate => share + shift.size,
        }
    }

    fn converge(
        step: &mut impl FnMut(f64, f64, f64) -> Shift,
        mut share: f64,
        balance: f64,
        slope: f64,
    ) -> f64 {
        for _ in 0..200 {
            let (default, alternate) = latencies(share, balance, slope);
            share = apply(share, step(share, default, alternate));
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
        share
    }

    proptest! {
        #[test]
        fn the_watermark_search_settles_and_follows_a_moved_balance_point(
            start in 0.0_f64..1.0, first in 0.05_f64..0.95, second in 0.05_f64..0.95,
            slope in 40.0_f64..140.0,
        ) {
            let mut search = Watermark::default();
            let mut step = |p, d, a| search.step(p, d, a);
            // Content within delta: 2*slope*(share-balance) < 5 % of about 150 ns, and epsilon.
            let tolerance = 0.05 * 160.0 / (2.0 * slope) + 0.01;
            let share = converge(&mut step, start, first, slope);
            prop_assert!((share - first).abs() <= tolerance, "{share} for {first}");
            let share = converge(&mut step, share, second, slope);
            prop_assert!((share - second).abs() <= tolerance, "{share} for {second}");
        }

        #[test]
        fn the_proportional_step_settles(
            start in 0.02_f64..0.98, balance in 0.05_f64..0.95, slope in 40.0_f64..140.0,
        ) {
            let share = converge(&mut proportional, start, balance, slope);
            prop_assert!((share - balance).abs() < 0.02, "{share} for {balance}");
        }

        #[test]
        fn any_measurement_keeps_the_share_in_range(
            readings in prop::collection::vec((0.0_f64..=1.0, 0.0_f64..1e4, 0.0_f64..1e4), 1..50),
        ) {
            let mut search = Watermark::default();
            for (share, default, alternate) in readings {
                for shift in [search.step(share, default, alternate),
                              proportional(share, default, alternate)] {
                    prop_assert!((0.0..=1.0).contains(&apply(share, shift)));
                    prop_assert!(shift.size >= 0.0);
                }
                let (low, high) = search.interval();
                prop_assert!(low >= 0.0 && high <= 1.0);
            }
        }

        #[test]
        fn chosen_pages_respect_limit_and_shift_and_appear_once(
            default in prop::collection::vec(0_u32..50, 0..60),
            alternate in prop::collection::vec(0_u32..50, 0..60),
            frees in (0_usize..4, 0_usize..4), size in 0.0_f64..1.0, limit in 0_usize..40,
            from_default in any::<bool>(),
        ) {
            let rank = |heats: &[u32], first: u32| {
                let mut pages: Vec<Ranked> = heats.iter().enumerate()
                    .map(|(at, &heat)| Ranked { page: Page(first + at as u32), heat }).collect();
                pages.sort_by_key(|p| std::cmp::Reverse(p.heat));
                pages
            };
            let ranking = Ranking {
                default: rank(&default, 0), alternate: rank(&alternate, 10_000),
                default_free: frees.0, alternate_free: frees.1,
            };
            let from = if from_default { Tier::Default } else { Tier::Alternate };
            let swaps = choose(&ranking, Shift { from, size }, limit);
            prop_assert!(swaps.iter().map(Swap::pages).sum::<usize>() <= limit);
            let heat = |page: Page| f64::from(ranking.default.iter().chain(&ranking.alternate)
                .find(|r| r.page == page).map(|r| r.heat).unwrap());
            let mut seen = HashSet::new();
            let mut moved = 0.0;
            for swap in &swaps {
                prop_assert!(seen.insert(swap.moved));
                moved += heat(swap.moved);
                if let Some(back) = swap.back {
                    prop_assert!(seen.insert(back));
                    moved -= heat(back);
                }
            }
            prop_assert!(moved <= size * ranking.total() + 1e-9);
            let one_way = swaps.iter().filter(|s| s.back.is_none()).count();
            prop_assert!(one_way <= ranking.free(from.other()));
        }
    }

    /// The shipped step is a part `p(1-p)` of nothing there.
    #[test]
    fn a_share_of_next_to_nothing_comes_back_where_the_default_tier_answers_faster() {
        for (start, latencies) in [(0.0, (70.0, 140.0)), (1.0, (300.0, 140.0))] {
            assert!(proportional(start, latencies.0, latencies.1).size < 1e-9);
            let mut share = start;
            for _ in 0..200 {
                share = apply(share, escaping(share, latencies.0, latencies.1, 0.01));
            }
            assert!((share - start).abs() > 0.99, "{start}: {share}");
        }
    }

    proptest! {
        #[test]
        fn the_escaping_step_settles_from_anywhere_and_rests_there(
            start in 0.0_f64..=1.0, balance in 0.05_f64..0.95, slope in 40.0_f64..140.0,
        ) {
            let mut step = |p, d, a| escaping(p, d, a, 0.01);
            let share = converge(&mut step, start, balance, slope);
            prop_assert!((share - balance).abs() < 0.01 * 160.0 / slope, "{share} for {balance}");
            let (default, alternate) = latencies(share, balance, slope);
            prop_assert!(escaping(share, default, alternate, 0.01).size <= 0.0);
        }

        /// A shift that no page fits into is carried until one does; one that is too large moves at most once and back.
        /// The least step, `EDGE (1 - EDGE) delta`, takes 2106 quanta to add up to the only page there is.
        #[test]
        fn few_hot_pages_move_and_come_to_rest(
            hot in 1_usize..6, balance in 0.0_f64..1.0, from_default in any::<bool>(),
        ) {
            let mut carried = CarriedShift::default();
            let page = |at: usize, heat| Ranked { page: Page(at as u32), heat };
            let mut on_default = vec![from_default; hot];
            let (mut moves, mut share) = (0, 0.0);
            for quantum in 0..5000 {
                let of = |tier: bool| -> Vec<Ranked> {
                    (0..hot).filter(|&at| on_default[at] == tier).map(|at| page(at, 15)).collect()
                };
                let ranking = Ranking {
                    default: of(true), alternate: of(false), default_free: 9, alternate_free: 9,
                };
                share = ranking.default.len() as f64 / hot as f64;
                let (default, alternate) = latencies(share, balance, 100.0);
                let shift = escaping(share, default, alternate, 0.01);
                let shift = carried.with(shift, share, default, alternate);
                prop_assert!((0.0..=1.0).contains(&apply(share, shift)));
                let swaps = choose(&ranking, shift, 10);
                carried.came(shift, !swaps.is_empty(), default, alternate);
                for swap in swaps {
                    on_default[swap.moved.0 as usize] = swap.from == Tier::Alternate;
                    moves += usize::from(quantum >= 3000);
                }
            }
            prop_assert_eq!(moves, 0);
            // Within a page, or as near as the pages allow.
            prop_assert!((share - balance).abs() <= 1.0 / hot as f64 + 0.02, "{share} of {balance}");
        }

        /// Pages that are equally hot are counted by chance, here by all but its rarest thousandth; nothing changes
        /// places for it.
        #[test]
        fn at_rest_nothing_is_exchanged(
            seeds in prop::collection::vec(0.0_f64..1.0, 400), mean in 0.2_f64..1.2, size in 0.0_f64..1.0,
        ) {
            let poisson = |uniform: f64| {
                let (mut term, mut sum, mut count) = ((-mean).exp(), (-mean).exp(), 0);
                while sum < uniform && count < 30 {
                    count += 1;
                    term *= mean / f64::from(count);
                    sum += term;
                }
                count as u32
            };
            let pages = seeds.iter().enumerate().map(|(at, _)| {
                (Page(at as u32), if at % 2 == 0 { Tier::Default } else { Tier::Alternate })
            });
            let ranking = Ranking::of_pages(pages, |page| poisson(seeds[page.0 as usize].min(0.999)));
            let swaps = choose(&ranking, Shift { from: Tier::Alternate, size }, 1000);
            prop_assert!(swaps.is_empty(), "{swaps:?}");
        }
    }

    #[test]
    fn equal_latencies_move_nothing() {
        assert!(Watermark::default().step(0.4, 100.0, 104.0).size.abs() < f64::EPSILON);
        assert!(proportional(0.4, 100.0, 100.0).size.abs() < f64::EPSILON);
    }
}

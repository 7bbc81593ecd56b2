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
//! Always so: a shift keeps the share in 0..=1; a constant balance point is approached to within
//! `delta`; a moved one is found again; no more pages are copied than the limit.

use super::{Ranking, Swap};
use crate::tier::Tier;

/// How much of all reads should change tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The tier that serves too many reads.
    pub from: Tier,
    /// The part of all reads that should leave it, in 0..=1.
    pub size: f64,
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

/// The pages that make up a shift.
///
/// `limit` bounds the pages copied. A pair moves the difference of its two heats; a page without
/// heat is not copied back where the other tier has a free frame.
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
            // Where there is room, one that is as hot need not come back.
            Some(page) if free == 0 || (page.heat > 0 && page.heat < candidate.heat) => Some(page),
            None if free == 0 => break,
            _ => None,
        };
        let gain = f64::from(candidate.heat) - back.map_or(0.0, |page| f64::from(page.heat));
        if gain <= 0.0 {
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
    use crate::tier::place::Ranked;
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

    fn settle(
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
            let share = settle(&mut step, start, first, slope);
            prop_assert!((share - first).abs() <= tolerance, "{share} for {first}");
            let share = settle(&mut step, share, second, slope);
            prop_assert!((share - second).abs() <= tolerance, "{share} for {second}");
        }

        #[test]
        fn the_proportional_step_settles(
            start in 0.02_f64..0.98, balance in 0.05_f64..0.95, slope in 40.0_f64..140.0,
        ) {
            let share = settle(&mut proportional, start, balance, slope);
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

    #[test]
    fn equal_latencies_move_nothing() {
        assert!(Watermark::default().step(0.4, 100.0, 104.0).size.abs() < f64::EPSILON);
        assert!(proportional(0.4, 100.0, 100.0).size.abs() < f64::EPSILON);
    }
}

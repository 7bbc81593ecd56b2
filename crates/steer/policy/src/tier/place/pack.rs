//! Hottest first: fill the default tier with the hottest pages, whatever the tiers' latencies are.
//! This is what TPP, HeMem and MEMTIS do.
//!
//! Algorithm: walk the alternate tier from its hottest page and the default tier from its coldest;
//! exchange the two as long as the first is *hot* by the tracker's rule and hotter than the second.
//!
//! Always so: no more than `limit` pages are copied; each page appears at most once; every exchange
//! raises the sum of heat on the default tier.

use super::placer::Shift;
use super::{Placer, Ranking, Reading, Swap};
use crate::tier::Tier;
use crate::tier::kind::PlacerKind;

/// What a tracker's name alone stands for.
pub const KIND: PlacerKind =
    PlacerKind { name: "", make: |_| Box::new(Pack), balances: false, by_faults: true };

/// Hottest first.
#[derive(Clone, Copy, Debug)]
pub struct Pack;

impl Placer for Pack {
    fn shift(&mut self, _: &Reading) -> Option<Shift> {
        None
    }
}

/// Chooses the exchanges of one quantum.
///
/// `hot` is the least heat that deserves the default tier; `limit` bounds the pages copied.
#[must_use]
pub fn choose(ranking: &Ranking, hot: u32, limit: usize) -> Vec<Swap> {
    let mut swaps = Vec::new();
    let mut copied = 0;
    let mut free = ranking.default_free;
    let mut coldest = ranking.default.iter().rev();
    for candidate in ranking.alternate.iter().take_while(|page| page.heat >= hot.max(1)) {
        if free > 0 {
            if copied + 1 > limit {
                break;
            }
            free -= 1;
            copied += 1;
            swaps.push(Swap { from: Tier::Alternate, moved: candidate.page, back: None });
            continue;
        }
        let Some(victim) = coldest.next().filter(|victim| victim.heat < candidate.heat) else {
            break;
        };
        if copied + 2 > limit {
            break;
        }
        copied += 2;
        swaps.push(Swap { from: Tier::Alternate, moved: candidate.page, back: Some(victim.page) });
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

    fn ranking(default: Vec<u32>, alternate: Vec<u32>, free: usize) -> Ranking {
        let rank = |heats: Vec<u32>, first: u32| {
            let mut pages: Vec<Ranked> = heats
                .into_iter()
                .enumerate()
                .map(|(at, heat)| Ranked { page: Page(first + at as u32), heat })
                .collect();
            pages.sort_by_key(|page| std::cmp::Reverse(page.heat));
            pages
        };
        Ranking {
            default: rank(default, 0),
            alternate: rank(alternate, 10_000),
            default_free: free,
            alternate_free: usize::MAX,
        }
    }

    proptest! {
        #[test]
        fn exchanges_stay_below_the_limit_use_a_page_once_and_gain_heat(
            default in prop::collection::vec(0_u32..50, 0..60),
            alternate in prop::collection::vec(0_u32..50, 0..60),
            free in 0_usize..5, hot in 0_u32..20, limit in 0_usize..40,
        ) {
            let ranking = ranking(default, alternate, free);
            let heat = |page: Page| {
                ranking.default.iter().chain(&ranking.alternate)
                    .find(|r| r.page == page).map(|r| r.heat).unwrap()
            };
            let swaps = choose(&ranking, hot, limit);
            prop_assert!(swaps.iter().map(Swap::pages).sum::<usize>() <= limit);
            let mut seen = HashSet::new();
            for swap in &swaps {
                prop_assert!(seen.insert(swap.moved));
                if let Some(back) = swap.back {
                    prop_assert!(seen.insert(back));
                    prop_assert!(heat(swap.moved) > heat(back));
                }
                prop_assert!(heat(swap.moved) >= hot);
            }
            prop_assert!(swaps.iter().filter(|s| s.back.is_none()).count() <= free);
        }
    }
}

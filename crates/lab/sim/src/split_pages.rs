//! Huge pages that have been split into base pages.
//!
//! Terms: a *unit* is the memory of one huge page: a huge page, or as many base pages of split ones, all read alike.
//! Where a part `1/k` of each huge page is read more than the rest ([`HotSpots`]), `k` pages of the same tier are split
//! together, a *group*, into one unit with what is hot in them and `k - 1` with what is not, in their places. So all
//! units are of one size, and placement goes on as before.
//!
//! Always so: units serve all reads of their pages, no more and no less.

use pagemill_policy::tier::Page;

use pagemill_model::random::Random;

/// Heat inside of a huge page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotSpots {
    /// One base page in so many is hot.
    pub one_in: usize,
    /// Part of the page's reads on those.
    pub weight: f64,
}

/// Which unit serves which page.
#[derive(Clone, Debug)]
pub struct SplitPages {
    spots: HotSpots,
    /// The group of each page; [`WHOLE`] before it is split.
    group: Vec<u32>,
    /// Pages of each group; the first is the hot unit's place.
    groups: Vec<Vec<Page>>,
}

const WHOLE: u32 = u32::MAX;

impl SplitPages {
    /// Whole pages.
    #[must_use]
    pub fn new(pages: usize, spots: HotSpots) -> Self {
        Self { spots, group: vec![WHOLE; pages], groups: Vec::new() }
    }

    /// Pages of a group.
    #[must_use]
    pub const fn together(&self) -> usize {
        self.spots.one_in
    }

    /// Splits a group of whole pages.
    pub fn split(&mut self, pages: &[Page]) {
        let group = self.groups.len() as u32;
        pages.iter().for_each(|page| self.group[page.0 as usize] = group);
        self.groups.push(pages.to_vec());
    }

    /// The part of all pages that have been split.
    #[must_use]
    pub fn part_split(&self) -> f64 {
        (self.groups.len() * self.spots.one_in) as f64 / self.group.len().max(1) as f64
    }

    /// The reads of a unit for each read of an average page.
    #[must_use]
    pub fn rate(&self, unit: u32) -> f64 {
        let Some(group) = self.groups.get(self.group[unit as usize] as usize) else {
            return 1.0;
        };
        let pages = group.len() as f64;
        if group[0].0 == unit {
            pages * self.spots.weight
        } else {
            pages * (1.0 - self.spots.weight) / (pages - 1.0)
        }
    }

    /// Draws a read of `page`: its base page of `of`, and the unit that serves it.
    pub fn draw(&self, page: u32, of: usize, random: &mut Random) -> (usize, u32) {
        let hot = of / self.spots.one_in;
        let in_hot = random.chance(self.spots.weight);
        let base = if in_hot {
            random.below(hot as u64) as usize
        } else {
            hot + random.below((of - hot) as u64) as usize
        };
        let Some(group) = self.groups.get(self.group[page as usize] as usize) else {
            return (base, page);
        };
        let at = if in_hot { 0 } else { 1 + random.below(group.len() as u64 - 1) as usize };
        (base, group[at].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn units_serve_all_reads(one_in in 2_usize..9, weight in 0.1_f64..0.99, groups in 0_usize..5) {
            let pages = one_in * 6;
            let mut split = SplitPages::new(pages, HotSpots { one_in, weight });
            for group in 0..groups {
                let first = (group * one_in) as u32;
                split.split(&(first..first + one_in as u32).map(Page).collect::<Vec<_>>());
            }
            let rates: f64 = (0..pages as u32).map(|unit| split.rate(unit)).sum();
            prop_assert!((rates - pages as f64).abs() < 1e-9);
            let mut random = Random::new(3);
            let mut served = vec![0.0; pages];
            for at in 0..4000 {
                let (base, unit) = split.draw(at % pages as u32, 512, &mut random);
                prop_assert!(base < 512);
                served[unit as usize] += 1.0;
            }
            if groups > 0 {
                let expected = split.rate(0) * 4000.0 / pages as f64;
                prop_assert!((served[0] - expected).abs() < 6.0 * expected.sqrt() + 6.0);
            }
        }
    }
}

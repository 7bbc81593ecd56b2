//! How often pages come back at the least, whatever the order in which each interval touched its pages.
//!
//! Two bounds hold for an interval and a memory of `n` pages, and the larger one is taken:
//! - a page comes back if `n` others or more were touched in the intervals between its last one and this one,
//! - of `r` pages that were touched before, `n` at the most are still there when the interval begins: `r - n` come
//!   back.
//!
//! The `i`-th largest need of an interval's pages is then the larger of their `i`-th largest by the first bound and
//! `r - i + 1`. Needs are rounded down, by a 32nd at the most, so that few differ.
//!
//! What comes back once while a program sets itself up is no cost of a longer run, so stretches of intervals are told
//! apart, and the first half of them can be left out.

use std::collections::BTreeMap;

use pagemill_model::sums::{add, sum};

/// Stretches that are told apart at the most.
const STRETCHES: usize = 64;

/// Pages that an interval touched again, so many, and the pages of fast memory that each needs whatever the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reuse {
    pub(super) need: u64,
    pub(super) pages: u64,
}

/// Takes in intervals, one by one.
#[derive(Clone, Debug)]
pub(super) struct LeastFold {
    /// Of each stretch, touches that come back by the pages of fast memory that might keep them; the last one may be
    /// shorter than the others.
    stretches: Vec<BTreeMap<u64, u64>>,
    /// Intervals of a stretch, and all of them.
    length: u64,
    intervals: u64,
}

impl Default for LeastFold {
    fn default() -> Self {
        Self { stretches: Vec::new(), length: 1, intervals: 0 }
    }
}

impl LeastFold {
    /// An interval touched pages that had been touched before, the largest need first.
    pub(super) fn interval(&mut self, again: &[Reuse]) {
        if self.intervals.is_multiple_of(self.length) {
            self.begin();
        }
        self.intervals += 1;
        let Some(stretch) = self.stretches.last_mut() else { return };
        // Pages of this rank or a later one, and so what this one needs by the second bound.
        let mut left = sum(again.iter().map(|group| group.pages));
        for Reuse { need, pages } in again {
            let (need, end) = (rounded(*need), left.saturating_sub(*pages));
            while left > end {
                let key = rounded(left).max(need);
                // As many as have the same need.
                let next = if key > need { (key - 1).max(end) } else { end };
                add(stretch.entry(key).or_default(), left - next);
                left = next;
            }
        }
    }

    fn begin(&mut self) {
        if self.stretches.len() == STRETCHES {
            let mut all = std::mem::take(&mut self.stretches).into_iter();
            while let (Some(mut first), Some(second)) = (all.next(), all.next()) {
                merge(&mut first, &second);
                self.stretches.push(first);
            }
            self.length = self.length.saturating_mul(2);
        }
        self.stretches.push(BTreeMap::new());
    }

    /// What the second half of the intervals comes to, and how many those are.
    pub(super) fn second_half(&self) -> (BTreeMap<u64, u64>, u64) {
        let from = self.stretches.len().div_ceil(2).min(self.stretches.len().saturating_sub(1));
        let left = self.intervals.saturating_sub(self.length.saturating_mul(from as u64));
        (self.after(from), left)
    }

    fn after(&self, from: usize) -> BTreeMap<u64, u64> {
        let mut all = BTreeMap::new();
        self.stretches.iter().skip(from).for_each(|stretch| merge(&mut all, stretch));
        all
    }
}

fn merge(all: &mut BTreeMap<u64, u64>, more: &BTreeMap<u64, u64>) {
    for (need, touches) in more {
        add(all.entry(*need).or_default(), *touches);
    }
}

/// Down, by a 32nd at the most.
fn rounded(need: u64) -> u64 {
    let bits = need.checked_ilog2().unwrap_or(0).saturating_sub(5);
    need >> bits << bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn beyond(of: &BTreeMap<u64, u64>, pages: u64) -> u64 {
        of.range(pages + 1..).map(|(_, touches)| *touches).sum()
    }

    /// The same by its definition, without rounding.
    fn slowly(again: &[Reuse], pages: u64) -> u64 {
        let all: u64 = again.iter().map(|group| group.pages).sum();
        let sure = again.iter().filter(|group| group.need > pages).map(|group| group.pages);
        sure.sum::<u64>().max(all.saturating_sub(pages))
    }

    #[test]
    fn the_first_half_is_left_out_however_many_intervals_there_are() {
        let mut fold = LeastFold::default();
        for interval in 0..1000 {
            fold.interval(&[Reuse { need: if interval < 400 { 9 } else { 3 }, pages: 1 }]);
        }
        assert!(fold.stretches.len() <= STRETCHES);
        let (least, intervals) = fold.second_half();
        assert!((480..=520).contains(&intervals), "{intervals}");
        assert_eq!(least, BTreeMap::from([(3, intervals)]));
        assert_eq!(LeastFold::default().second_half(), (BTreeMap::new(), 0));
    }

    proptest! {
        #[test]
        fn an_interval_has_the_larger_of_two_bounds(
            mut again in prop::collection::vec((1_u64..5000, 1_u64..900), 0..6), pages in 0_u64..5000,
        ) {
            again.sort_unstable_by(|a, b| b.cmp(a));
            let again: Vec<Reuse> =
                again.into_iter().map(|(need, pages)| Reuse { need, pages }).collect();
            let mut fold = LeastFold::default();
            fold.interval(&again);
            let of = fold.after(0);
            let touches: u64 = again.iter().map(|group| group.pages).sum();
            prop_assert_eq!(beyond(&of, 0), touches);
            prop_assert!(beyond(&of, pages) <= slowly(&again, pages));
            prop_assert!(beyond(&of, pages) >= slowly(&again, pages + pages / 31 + 1));
        }
    }
}

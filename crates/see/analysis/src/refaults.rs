//! How often pages come back that a fast memory of some size could not keep: the miss curve of an access trace.
//!
//! Fast memory keeps the pages that were used last (LRU). A touch of a page *comes back* to a memory of `n` pages if
//! `n` or more pages, itself among them, were touched since its touch before. A recording tells which pages were
//! touched in an interval and not in which order, so all pages of both intervals and of those between them count: no
//! order makes more of them come back; at the least so many do as no order spares ([`least`]). One pass gives the
//! curve for all sizes (Mattson et al., Evaluation techniques for storage hierarchies, 1970), by a Fenwick tree over
//! intervals.
//!
//! Always true: more memory makes no page more come back; memory for all pages none; the first touch of a page is none.
//! Of one process, what an LRU memory misses lies between both bounds for every order.

mod least;

use std::collections::BTreeMap;

use pagemill_model::page::BASE;
use pagemill_model::{Event, Fold, Pid};

use crate::addresses::ProcessPage;
use crate::heat::Bounds;
use crate::pages::runs;
use crate::recent::Table;
use least::{LeastFold, Reuse};
use pagemill_model::sums::{add, sum};

/// Sums over the beginnings of a growing sequence of counts.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// The counts themselves.
    of: Vec<u64>,
    /// At `i`, counted from 1, the sum of the `i & -i` counts that end there.
    tree: Vec<u64>,
}

impl Counts {
    fn push(&mut self, count: u64) {
        self.of.push(count);
        let (at, mut total) = (self.of.len(), count);
        let mut step = 1;
        while step < at & at.wrapping_neg() {
            total += self.tree[at - step - 1];
            step *= 2;
        }
        self.tree.push(total);
    }

    fn take(&mut self, at: usize, count: u64) {
        self.of[at] -= count;
        let mut node = at + 1;
        while node <= self.tree.len() {
            self.tree[node - 1] -= count;
            node += node & node.wrapping_neg();
        }
    }

    /// Of all before `at`.
    fn before(&self, at: usize) -> u64 {
        let (mut node, mut total) = (at, 0);
        while node > 0 {
            total += self.tree[node - 1];
            node -= node & node.wrapping_neg();
        }
        total
    }
}

/// Folds touched pages into a [`RefaultView`].
#[derive(Clone, Debug, Default)]
pub struct RefaultFold {
    bounds: Bounds,
    /// In which interval each page was touched last.
    last: Table<ProcessPage, usize>,
    /// Pages by the interval in which they were touched last.
    counts: Counts,
    least: LeastFold,
    /// Pages that each interval touched.
    widths: Vec<u64>,
    view: RefaultView,
}

/// What touches come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefaultView {
    /// Pages that were touched.
    pub pages: u64,
    /// Intervals of a process, all processes together.
    pub intervals: u64,
    /// Touches that are no page's first, by the pages of fast memory that certainly keep it until then.
    pub needs: BTreeMap<u64, u64>,
    /// Of the second half of the intervals, when a program has what it goes on with: touches that are no page's first,
    /// by the pages of fast memory that keep them until then if each interval has the best order.
    pub least: BTreeMap<u64, u64>,
    /// How many intervals those are.
    pub steady: u64,
    /// Pages that one of them touched, the most: how often a page of an interval comes back within it is not recorded,
    /// so of a smaller memory it is not told what comes back at the most.
    pub widest: u64,
    /// Touches that were left out: there are more than are looked at.
    pub left_out: u64,
}

impl RefaultView {
    /// Touches that come back to a fast memory of so many pages, at the most, an interval's to a page taken as one.
    pub fn come_back(&self, pages: u64) -> u64 {
        beyond(&self.needs, pages)
    }

    /// Touches of the second half of the intervals that come back to it, at the least.
    pub fn surely_come_back(&self, pages: u64) -> u64 {
        beyond(&self.least, pages)
    }
}

fn beyond(needs: &BTreeMap<u64, u64>, pages: u64) -> u64 {
    sum(needs.range(pages.saturating_add(1)..).map(|(_, touches)| *touches))
}

impl RefaultFold {
    /// Nothing yet; looks at no more pages than that.
    pub fn within(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    fn interval(&mut self, pid: Pid, touched: impl Iterator<Item = std::ops::Range<u64>>) {
        let now = self.counts.of.len();
        // By the interval before: none, for those that are new.
        let mut before: BTreeMap<Option<usize>, u64> = BTreeMap::new();
        for run in touched {
            for number in run.clone() {
                let looks = self.bounds.looks;
                let page = ProcessPage::new(pid, number);
                let new = !self.last.contains_key(&page);
                if looks == 0 || (new && self.last.len() >= self.bounds.pages) {
                    add(&mut self.view.left_out, run.end - number);
                    break;
                }
                self.bounds.looks = looks - 1;
                let last = self.last.insert(page, now);
                if last != Some(now) {
                    *before.entry(last).or_default() += 1;
                }
            }
        }
        // Those of this interval that were last touched before the one in question, or never.
        let (known, mut older) = (self.counts.before(now), 0);
        let mut surely = Vec::new();
        for (last, pages) in &before {
            if let Some(at) = *last {
                let since = known - self.counts.before(at);
                *self.view.needs.entry(since + older).or_default() += pages;
                // The page itself, and what was touched in between.
                let need = known - self.counts.before(at + 1) + 1;
                surely.push(Reuse { need, pages: *pages });
            }
            older += pages;
        }
        self.least.interval(&surely);
        for (last, pages) in &before {
            if let Some(at) = *last {
                self.counts.take(at, *pages);
            }
        }
        self.counts.push(older);
        self.widths.push(older);
        self.view.intervals += 1;
    }
}

impl Fold for RefaultFold {
    type View = RefaultView;

    fn event(&mut self, event: &Event) {
        if let Event::Touched(row) = event {
            self.interval(Pid::told(row.pid.unwrap_or(0)), runs(&row.starts, &row.pages, BASE));
        }
    }

    fn view(&self) -> RefaultView {
        let (least, steady) = self.least.second_half();
        let settled = self.widths.iter().rev().take(steady as usize);
        let widest = settled.copied().max().unwrap_or(0);
        RefaultView { pages: self.last.len() as u64, least, steady, widest, ..self.view.clone() }
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::Touched;
    use proptest::prelude::*;

    use super::*;

    fn touched(pid: u64, pages: &[u64]) -> Event {
        Event::Touched(Box::new(Touched {
            pid: Some(pid),
            starts: Some(pages.iter().map(|page| page * BASE).collect()),
            pages: Some(vec![1; pages.len()]),
            ..Touched::default()
        }))
    }

    fn view(rows: &[(u64, Vec<u64>)]) -> RefaultView {
        let mut fold = RefaultFold::default();
        rows.iter().for_each(|(pid, pages)| fold.event(&touched(*pid, pages)));
        fold.view()
    }

    #[test]
    fn what_is_touched_again_needs_all_that_was_touched_since() {
        let rows = [vec![1, 2], vec![3], vec![1, 4], vec![1]].map(|pages| (7, pages));
        let view = view(&rows);
        assert_eq!((view.pages, view.intervals), (4, 4));
        // Page 1: with 2, 3 and 4 in between; then with 4.
        assert_eq!(view.needs, BTreeMap::from([(4, 1), (2, 1)]));
        assert_eq!([0, 1, 2, 3, 4].map(|pages| view.come_back(pages)), [2, 2, 1, 1, 0]);
    }

    /// What is used all the time was said to need memory for what was written once beside it, and no more.
    #[test]
    fn what_is_written_once_is_not_needed_for_what_is_used_all_the_time() {
        // In one interval an archive is written and what is used from then on is touched first.
        let mut rows = vec![(7, (0..1000).collect::<Vec<u64>>())];
        rows.extend((0..40).map(|_| (7, (900..960).collect())));
        let view = view(&rows);
        assert_eq!(view.widest, 60, "settled");
        assert_eq!((view.come_back(500), view.surely_come_back(500)), (60, 0));
        assert_eq!((view.come_back(60), view.surely_come_back(60)), (60, 0));
        assert_eq!((view.come_back(54), view.surely_come_back(54)), (2400, view.steady * 6));
    }

    #[test]
    fn a_row_that_says_it_touched_everything_is_bounded_and_told() {
        let mut fold = RefaultFold::within(Bounds { looks: 10, pages: 4 });
        fold.event(&Event::Touched(Box::new(Touched {
            starts: Some(vec![0]),
            pages: Some(vec![u64::MAX]),
            ..Touched::default()
        })));
        assert_eq!(fold.view().pages, 4);
        assert!(fold.view().left_out > 1 << 40);
        fold.event(&touched(0, &[0, 1, 2, 3]));
        fold.event(&touched(0, &[0, 1, 2, 3]));
        let view = fold.view();
        assert_eq!(view.needs.values().sum::<u64>(), 6, "ten looks: {view:?}");
    }

    /// The same by its definition.
    fn slowly(rows: &[(u64, Vec<u64>)]) -> BTreeMap<u64, u64> {
        let mut needs = BTreeMap::new();
        let set =
            |row: &(u64, Vec<u64>)| row.1.iter().map(|page| (row.0, *page)).collect::<Vec<_>>();
        for (at, row) in rows.iter().enumerate() {
            let mut own = set(row);
            own.sort_unstable();
            own.dedup();
            for page in own {
                let Some(last) = (0..at).rev().find(|other| set(&rows[*other]).contains(&page))
                else {
                    continue;
                };
                let mut between: Vec<_> = rows[last..=at].iter().flat_map(set).collect();
                between.sort_unstable();
                between.dedup();
                *needs.entry(between.len() as u64).or_default() += 1;
            }
        }
        needs
    }

    proptest! {
        #[test]
        fn one_pass_is_the_definition(
            rows in prop::collection::vec((0_u64..2, prop::collection::vec(0_u64..12, 0..6)), 0..40),
        ) {
            let view = view(&rows);
            prop_assert_eq!(&view.needs, &slowly(&rows));
            prop_assert_eq!(view.come_back(view.pages), 0);
        }

        #[test]
        fn what_a_memory_misses_lies_between_the_bounds_for_every_order(
            rows in prop::collection::vec(prop::collection::vec(0_u64..12, 0..8), 2..30), seed in any::<u64>(),
            memory in 0_u64..14,
        ) {
            let rows: Vec<_> = rows.into_iter().map(|pages| (7, pages)).collect();
            let view = view(&rows);
            let from = rows.len() - view.steady as usize;
            // The most recently used last.
            let (mut kept, mut known) = (Vec::new(), Vec::new());
            let (mut missed, mut steady, mut random) = (0, 0, seed | 1);
            for (number, (_, pages)) in rows.iter().enumerate() {
                let mut pages = pages.clone();
                pages.sort_by_key(|page| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(*page | 1);
                    random >> 33
                });
                for page in pages {
                    let there = kept.iter().position(|other| *other == page);
                    if there.is_none() && known.contains(&page) {
                        missed += 1;
                        steady += u64::from(number >= from);
                    }
                    if let Some(at) = there {
                        kept.remove(at);
                    }
                    known.push(page);
                    kept.push(page);
                    if kept.len() as u64 > memory {
                        kept.remove(0);
                    }
                }
            }
            prop_assert!(view.surely_come_back(memory) <= steady, "{steady}: {view:?}");
            // A page that an interval touches twice is one touch of it.
            let once = rows.iter().all(|row| {
                row.1.iter().collect::<std::collections::BTreeSet<_>>().len() == row.1.len()
            });
            prop_assert!(!once || missed <= view.come_back(memory), "{missed}: {view:?}");
        }
    }
}

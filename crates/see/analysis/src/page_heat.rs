//! Heat of memory over time: how often each page of a process was seen accessed, before and after a
//! moment.
//!
//! Fed by placement views ([`Event::TierView`], what `pagemill tier --record` writes, for pages of 2 MiB) and by
//! the pages touched in each interval ([`Event::Touched`], what `pagemill record --with accesses` writes, for pages of
//! 4 KiB: an interval in which a page was touched counts once). Heap statistics and page faults say nothing of heat: a
//! recording of those alone has no pages here, which is not the same as cold ones.
//!
//! A run of touched pages is kept as where it begins and ends, however many pages it says it has: pages are told apart
//! when they are asked for, and if there are no more than [`MOST`].
//!
//! Always so: each access is counted once, on one side of the moment; a page that was tracked and never
//! seen accessed is there with no accesses.

use std::collections::BTreeMap;
use std::ops::Range;

use pagemill_model::page::BASE;
use pagemill_model::{Event, Fold, Nanos, Pid};

use crate::addresses::{ProcessAddress, ProcessPage};
use crate::pages::runs;

/// Pages that are told apart: 256 GiB of touched memory.
pub const MOST: u64 = if cfg!(test) { 1 << 12 } else { 1 << 26 };

/// One page's heat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHeat {
    /// Accesses seen before the moment.
    pub before: u64,
    /// Accesses seen from then on.
    pub after: u64,
}

/// Counts accesses.
#[derive(Clone, Debug)]
pub struct PageHeatFold {
    moment: Nanos,
    bytes: u64,
    pages: BTreeMap<ProcessAddress, PageHeat>,
    /// Of runs of base pages: how many begin there, how many ended before.
    edges: BTreeMap<ProcessPage, [PageHeat; 2]>,
}

impl PageHeatFold {
    /// Nothing yet, for pages of `bytes`; `moment` is on the clock of the events.
    pub fn new(moment: Nanos, bytes: u64) -> Self {
        Self { moment, bytes: bytes.max(1), pages: BTreeMap::new(), edges: BTreeMap::new() }
    }

    /// Counts accesses of a process to the page that holds `address`; zero of them make it known.
    pub fn access(&mut self, time: Nanos, pid: Pid, address: u64, count: u64) {
        let heat =
            self.pages.entry(ProcessAddress::new(pid, address - address % self.bytes)).or_default();
        heat.add(time < self.moment, count);
    }

    /// Touched base pages between two edges and how often each was.
    fn touched(&self) -> impl Iterator<Item = (Pid, Range<u64>, PageHeat)> {
        let mut open = PageHeat::default();
        let next = self.edges.keys().skip(1).copied().map(Some).chain([None]);
        self.edges.iter().zip(next).filter_map(move |((at, [begin, end]), next)| {
            // In this order none is below zero: what ends has begun.
            open.before = open.before.saturating_add(begin.before).saturating_sub(end.before);
            open.after = open.after.saturating_add(begin.after).saturating_sub(end.after);
            let until = next.filter(|next| next.pid == at.pid)?.vpn.0;
            (open != PageHeat::default()).then_some((at.pid, at.vpn.0..until, open))
        })
    }

    /// How many pages there are: more than [`MOST`] are not told apart.
    pub fn pages(&self) -> u64 {
        let touched = self.touched().map(|(_, run, _)| run.end - run.start);
        touched.fold(self.pages.len() as u64, u64::saturating_add)
    }
}

impl PageHeat {
    fn add(&mut self, before: bool, count: u64) {
        let sum = if before { &mut self.before } else { &mut self.after };
        *sum = sum.saturating_add(count);
    }
}

impl Fold for PageHeatFold {
    /// Each page by its first address.
    type View = BTreeMap<ProcessAddress, PageHeat>;

    fn event(&mut self, event: &Event) {
        let list = |list: &Option<Vec<u64>>| list.clone().unwrap_or_default();
        match event {
            Event::TierView(view) => {
                let places = list(&view.page_pid).into_iter().zip(list(&view.page_address));
                for ((pid, address), samples) in places.zip(list(&view.page_samples)) {
                    self.access(view.time, Pid::told(pid), address, samples);
                }
            }
            Event::Touched(touched) => {
                let pid = Pid::told(touched.pid.unwrap_or(0));
                let before = touched.time < self.moment;
                for run in runs(&touched.starts, &touched.pages, BASE) {
                    for (edge, number) in [(0, run.start), (1, run.end)] {
                        self.edges.entry(ProcessPage::new(pid, number)).or_default()[edge]
                            .add(before, 1);
                    }
                }
            }
            _ => {}
        }
    }

    /// Nothing, of more than [`MOST`] pages.
    fn view(&self) -> Self::View {
        if self.pages() > MOST {
            return BTreeMap::new();
        }
        let mut pages = self.pages.clone();
        for (pid, run, heat) in self.touched() {
            for number in run {
                let address = number * BASE;
                let sum = pages
                    .entry(ProcessAddress::new(pid, address - address % self.bytes))
                    .or_default();
                sum.add(true, heat.before);
                sum.add(false, heat.after);
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::page::HUGE;
    use pagemill_model::{TierView, Touched};
    use proptest::prelude::*;

    use super::*;

    fn view(time: u64, rows: &[(u64, u64, u64)]) -> Event {
        let list = |value: fn(&(u64, u64, u64)) -> u64| Some(rows.iter().map(value).collect());
        Event::TierView(Box::new(TierView {
            time: Nanos(time),
            page: list(|row| row.0),
            page_pid: list(|_| 7),
            page_address: list(|row| row.1),
            page_samples: list(|row| row.2),
            ..TierView::default()
        }))
    }

    #[test]
    fn the_parts_of_a_page_are_one_page_and_halves_are_told_apart() {
        let mut fold = PageHeatFold::new(Nanos(100), HUGE);
        fold.event(&view(10, &[(0, HUGE + 4096, 3), (1, 4 * HUGE, 0)]));
        fold.event(&view(100, &[(0, HUGE + 4096, 5), (2, HUGE, 1)]));
        let pages = fold.view();
        assert_eq!(pages[&ProcessAddress::new(Pid(7), HUGE)], PageHeat { before: 3, after: 6 });
        assert_eq!(pages[&ProcessAddress::new(Pid(7), 4 * HUGE)], PageHeat::default());
        assert_eq!(pages.len(), 2);
    }

    #[test]
    fn a_touched_page_counts_once_an_interval() {
        let mut fold = PageHeatFold::new(Nanos(100), BASE);
        for time in [50, 60, 100] {
            fold.event(&Event::Touched(Box::new(Touched {
                time: Nanos(time),
                pid: Some(7),
                starts: Some(vec![0x1000, 0x8000]),
                pages: Some(vec![2, 1]),
                ..Touched::default()
            })));
        }
        let pages = fold.view();
        assert_eq!(pages.len(), 3);
        assert!(pages.values().all(|heat| *heat == PageHeat { before: 2, after: 1 }), "{pages:?}");
    }

    #[test]
    fn a_run_of_more_pages_than_there_are_addresses_is_kept_and_not_worked_through() {
        let mut fold = PageHeatFold::new(Nanos(100), BASE);
        for time in [50, 100] {
            fold.event(&Event::Touched(Box::new(Touched {
                time: Nanos(time),
                pid: Some(7),
                starts: Some(vec![0x1000, 0x3000]),
                pages: Some(vec![u64::MAX, 1]),
                ..Touched::default()
            })));
        }
        assert_eq!(fold.pages(), (1 << 45) - 1);
        assert!(fold.view().is_empty());
        let all: Vec<_> = fold.touched().collect();
        let heat = |count| PageHeat { before: count, after: count };
        let expected =
            [(1..3, 1), (3..4, 2), (4..1 << 45, 1)].map(|(run, count)| (Pid(7), run, heat(count)));
        assert_eq!(all, expected);
    }

    proptest! {
        #[test]
        fn every_access_is_counted_once(
            accesses in prop::collection::vec((0_u64..200, 0_u64..1 << 26, 0_u64..9), 0..80),
        ) {
            let mut fold = PageHeatFold::new(Nanos(100), HUGE);
            for &(time, address, count) in &accesses {
                fold.access(Nanos(time), Pid(1), address, count);
            }
            let counted: u64 = fold.view().values().map(|heat| heat.before + heat.after).sum();
            prop_assert_eq!(counted, accesses.iter().map(|access| access.2).sum::<u64>());
        }
    }
}

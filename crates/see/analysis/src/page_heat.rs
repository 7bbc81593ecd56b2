//! Heat of memory over time: how often each page of a process was seen accessed, before and after a
//! moment.
//!
//! Fed by placement views ([`Event::TierView`], what `pagemill tier --record` writes, for pages of 2 MiB) and by
//! the pages touched in each interval ([`Event::Touched`], what `pagemill record --with accesses` writes, for pages of
//! 4 KiB: an interval in which a page was touched counts once). Heap statistics and page faults say nothing of heat: a
//! recording of those alone has no pages here, which is not the same as cold ones.
//!
//! Always so: each access is counted once, on one side of the moment; a page that was tracked and never
//! seen accessed is there with no accesses.

use std::collections::BTreeMap;

use pagemill_model::page::BASE;
use pagemill_model::{Event, Fold, Nanos};

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
    pages: BTreeMap<(u64, u64), PageHeat>,
}

impl PageHeatFold {
    /// Nothing yet, for pages of `bytes`; `moment` is on the clock of the events.
    pub fn new(moment: Nanos, bytes: u64) -> Self {
        Self { moment, bytes: bytes.max(1), pages: BTreeMap::new() }
    }

    /// Counts accesses of a process to the page that holds `address`; zero of them make it known.
    pub fn access(&mut self, time: Nanos, pid: u64, address: u64, count: u64) {
        let heat = self.pages.entry((pid, address - address % self.bytes)).or_default();
        *(if time < self.moment { &mut heat.before } else { &mut heat.after }) += count;
    }
}

impl Fold for PageHeatFold {
    /// Each page by process and address.
    type View = BTreeMap<(u64, u64), PageHeat>;

    fn event(&mut self, event: &Event) {
        let list = |list: &Option<Vec<u64>>| list.clone().unwrap_or_default();
        match event {
            Event::TierView(view) => {
                let places = list(&view.page_pid).into_iter().zip(list(&view.page_address));
                for ((pid, address), samples) in places.zip(list(&view.page_samples)) {
                    self.access(view.time, pid, address, samples);
                }
            }
            Event::Touched(touched) => {
                let pid = touched.pid.unwrap_or(0);
                for (start, pages) in list(&touched.starts).into_iter().zip(list(&touched.pages)) {
                    for page in 0..pages {
                        self.access(touched.time, pid, start + page * BASE, 1);
                    }
                }
            }
            _ => {}
        }
    }

    fn view(&self) -> Self::View {
        self.pages.clone()
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
        assert_eq!(pages[&(7, HUGE)], PageHeat { before: 3, after: 6 });
        assert_eq!(pages[&(7, 4 * HUGE)], PageHeat::default());
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

    proptest! {
        #[test]
        fn every_access_is_counted_once(
            accesses in prop::collection::vec((0_u64..200, 0_u64..1 << 26, 0_u64..9), 0..80),
        ) {
            let mut fold = PageHeatFold::new(Nanos(100), HUGE);
            for &(time, address, count) in &accesses {
                fold.access(Nanos(time), 1, address, count);
            }
            let counted: u64 = fold.view().values().map(|heat| heat.before + heat.after).sum();
            prop_assert_eq!(counted, accesses.iter().map(|access| access.2).sum::<u64>());
        }
    }
}

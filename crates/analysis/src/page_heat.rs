//! Heat of memory over time: how often each 2 MiB of a process was seen accessed, before and after a
//! moment.
//!
//! Fed by placement views ([`Event::TierView`], what `pagemill tier --record` writes). Whatever else
//! knows which address was accessed when says it through [`PageHeatFold::access`], so a dataset of
//! accesses is one more line in [`Fold::event`]. Heap statistics and page faults say nothing of heat:
//! a recording of those alone has no pages here, which is not the same as cold ones.
//!
//! Always so: each access is counted once, on one side of the moment; a page that was tracked and never
//! seen accessed is there with no accesses.

use std::collections::BTreeMap;

use pagemill_model::{Event, Fold, Nanos};

/// Bytes that heat is told apart for.
pub const PAGE: u64 = 2 << 20;

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
    pages: BTreeMap<(u64, u64), PageHeat>,
}

impl PageHeatFold {
    /// Nothing yet; `moment` is on the clock of the events.
    pub fn new(moment: Nanos) -> Self {
        Self { moment, pages: BTreeMap::new() }
    }

    /// Counts accesses of a process to the page that holds `address`; zero of them make it known.
    pub fn access(&mut self, time: Nanos, pid: u64, address: u64, count: u64) {
        let heat = self.pages.entry((pid, address - address % PAGE)).or_default();
        *(if time < self.moment { &mut heat.before } else { &mut heat.after }) += count;
    }
}

impl Fold for PageHeatFold {
    /// Each page by process and address.
    type View = BTreeMap<(u64, u64), PageHeat>;

    fn event(&mut self, event: &Event) {
        let Event::TierView(view) = event else { return };
        let list = |list: &Option<Vec<u64>>| list.clone().unwrap_or_default();
        let places = list(&view.page_pid).into_iter().zip(list(&view.page_address));
        for ((pid, address), samples) in places.zip(list(&view.page_samples)) {
            self.access(view.time, pid, address, samples);
        }
    }

    fn view(&self) -> Self::View {
        self.pages.clone()
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::TierView;
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
        let mut fold = PageHeatFold::new(Nanos(100));
        fold.event(&view(10, &[(0, PAGE + 4096, 3), (1, 4 * PAGE, 0)]));
        fold.event(&view(100, &[(0, PAGE + 4096, 5), (2, PAGE, 1)]));
        let pages = fold.view();
        assert_eq!(pages[&(7, PAGE)], PageHeat { before: 3, after: 6 });
        assert_eq!(pages[&(7, 4 * PAGE)], PageHeat::default());
        assert_eq!(pages.len(), 2);
    }

    proptest! {
        #[test]
        fn every_access_is_counted_once(
            accesses in prop::collection::vec((0_u64..200, 0_u64..1 << 26, 0_u64..9), 0..80),
        ) {
            let mut fold = PageHeatFold::new(Nanos(100));
            for &(time, address, count) in &accesses {
                fold.access(Nanos(time), 1, address, count);
            }
            let counted: u64 = fold.view().values().map(|heat| heat.before + heat.after).sum();
            prop_assert_eq!(counted, accesses.iter().map(|access| access.2).sum::<u64>());
        }
    }
}

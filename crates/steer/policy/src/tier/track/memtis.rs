//! A histogram of sampled counters: MEMTIS (Lee et al., SOSP 2023).
//!
//! Terms: a page with count `c` stands in bin `floor(log2(c)) + 1`, untouched pages in bin 0. The hot
//! *threshold* is the lowest bin such that all pages from it upwards fit the default tier. Counts are
//! halved every `cooling` samples, which moves each page down one bin.
//!
//! Which huge pages are split: [`super::split`].
//!
//! Deviations: `htmm_cooling_period` and the fitting threshold are those of the published kernel (`mm/htmm_core.c`);
//! its bins begin at 2^i - 1, ours at 2^(i-1), and its warm pages, which neither rise nor fall, are not there.
//!
//! Always so: the histogram counts every page once; pages at or above the threshold fit the capacity.

use crate::tier::Page;
use crate::tier::kind::{PageSize, TrackerKind, Watches};
use crate::tier::track::Counter;

/// `memtis`.
pub const KIND: TrackerKind = TrackerKind {
    name: "memtis",
    watches: Watches::Samples(|terms| Box::new(Memtis::new(terms.pages, terms.cooling))),
    page: PageSize::Huge,
    splits: true,
};

/// Bins of the histogram.
pub const BINS: usize = 16;

/// Counters and their histogram.
#[derive(Clone, Debug)]
pub struct Memtis {
    counts: Vec<u32>,
    bins: [usize; BINS],
    cooling: u64,
    seen: u64,
}

fn bin(count: u32) -> usize {
    ((u32::BITS - count.leading_zeros()) as usize).min(BINS - 1)
}

impl Memtis {
    /// Counters at zero for pages `0..pages`, halved every `cooling` samples.
    #[must_use]
    pub fn new(pages: usize, cooling: u64) -> Self {
        let mut bins = [0; BINS];
        bins[0] = pages;
        Self { counts: vec![0; pages], bins, cooling: cooling.max(1), seen: 0 }
    }

    /// The histogram, untouched pages first.
    #[must_use]
    pub const fn histogram(&self) -> &[usize; BINS] {
        &self.bins
    }
}

impl Counter for Memtis {
    fn sample(&mut self, page: Page) {
        let Some(count) = self.counts.get_mut(page.0 as usize) else {
            return;
        };
        self.bins[bin(*count)] -= 1;
        *count += 1;
        self.bins[bin(*count)] += 1;
        self.seen += 1;
        if self.seen.is_multiple_of(self.cooling) {
            self.bins = [0; BINS];
            for count in &mut self.counts {
                *count /= 2;
                self.bins[bin(*count)] += 1;
            }
        }
    }

    fn heat(&self, page: Page) -> u32 {
        self.counts.get(page.0 as usize).copied().unwrap_or(0)
    }

    fn grow(&mut self, pages: usize) {
        let added = pages.saturating_sub(self.counts.len());
        self.counts.resize(self.counts.len() + added, 0);
        self.bins[0] += added;
    }

    fn forget(&mut self, page: Page) {
        self.set(page, 0);
    }

    /// The lowest bin from which all fit; at least 1.
    fn hot(&self, capacity: usize) -> u32 {
        let mut held = 0;
        for at in (1..BINS).rev() {
            held += self.bins[at];
            if held > capacity {
                return if at + 1 >= BINS { u32::MAX } else { 1 << at };
            }
        }
        1
    }

    fn set(&mut self, page: Page, count: u32) {
        if let Some(held) = self.counts.get_mut(page.0 as usize) {
            self.bins[bin(*held)] -= 1;
            self.bins[bin(count)] += 1;
            *held = count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_histogram_counts_every_page_once_and_the_hot_ones_fit(
            samples in prop::collection::vec(0_u32..40, 0..3000), capacity in 0_usize..40,
            cooling in 10_u64..500,
        ) {
            let mut tracker = Memtis::new(40, cooling);
            for page in samples {
                tracker.sample(Page(page));
            }
            prop_assert_eq!(tracker.histogram().iter().sum::<usize>(), 40);
            let threshold = tracker.hot(capacity);
            let hot = (0..40).filter(|&p| tracker.heat(Page(p)) >= threshold).count();
            prop_assert!(hot <= capacity, "{hot} pages at {threshold} for {capacity}");
        }
    }
}

//! A histogram of sampled counters: MEMTIS (Lee et al., SOSP 2023).
//!
//! Terms: a page with count `c` stands in bin `floor(log2(c)) + 1`, untouched pages in bin 0. The hot
//! *threshold* is the lowest bin such that all pages from it upwards fit the default tier. Counts are
//! halved every `cooling` samples, which moves each page down one bin.
//!
//! Huge pages (section 4.3): a huge page whose heat sits on few of its 4 KiB pages wastes the default
//! tier. Its *skew* is the sum of the squared subpage counts over the square of the number of
//! touched subpages; [`splits`] says how many of the most skewed pages to split, from the hit ratio that
//! 4 KiB placement would have (`estimated`) and the one seen (`actual`).
//!
//! Deviation: bins and constants follow the paper as remembered from its text; the published kernel
//! was not at hand.
//!
//! Always so: the histogram counts every page once; pages at or above the threshold fit the capacity.

use crate::tier::Page;

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

    /// Tracks pages `0..pages` at least.
    pub fn grow(&mut self, pages: usize) {
        let added = pages.saturating_sub(self.counts.len());
        self.counts.resize(self.counts.len() + added, 0);
        self.bins[0] += added;
    }

    /// Forgets what was seen of a page.
    pub fn forget(&mut self, page: Page) {
        if let Some(count) = self.counts.get_mut(page.0 as usize) {
            self.bins[bin(*count)] -= 1;
            self.bins[0] += 1;
            *count = 0;
        }
    }

    /// Counts one sampled load. Pages out of range are ignored.
    pub fn sample(&mut self, page: Page) {
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

    /// A page's count.
    #[must_use]
    pub fn heat(&self, page: Page) -> u32 {
        self.counts.get(page.0 as usize).copied().unwrap_or(0)
    }

    /// The least count that deserves a default tier of `capacity` pages; at least 1.
    #[must_use]
    pub fn threshold(&self, capacity: usize) -> u32 {
        let mut held = 0;
        for at in (1..BINS).rev() {
            held += self.bins[at];
            if held > capacity {
                return if at + 1 >= BINS { u32::MAX } else { 1 << at };
            }
        }
        1
    }

    /// The histogram, untouched pages first.
    #[must_use]
    pub const fn histogram(&self) -> &[usize; BINS] {
        &self.bins
    }
}

/// How unevenly a huge page's heat lies on its subpages; 0 for an untouched one.
#[must_use]
pub fn skew(subpages: &[u32]) -> f64 {
    let touched = subpages.iter().filter(|&&count| count > 0).count();
    if touched == 0 {
        return 0.0;
    }
    subpages.iter().map(|&count| f64::from(count).powi(2)).sum::<f64>() / (touched as f64).powi(2)
}

/// How many huge pages to split: the hits that better placement would win, weighed by the latency
/// they save against that of the default tier, over the samples an average hot huge page draws.
#[must_use]
pub fn splits(
    estimated: f64,
    actual: f64,
    samples: u64,
    default_ns: f64,
    alternate_ns: f64,
    samples_per_hot_page: f64,
) -> usize {
    let gain = (estimated - actual).max(0.0) * samples as f64;
    let weight = ((alternate_ns - default_ns) / default_ns.max(1.0)).max(0.0);
    (gain * weight / samples_per_hot_page.max(1.0)) as usize
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
            let threshold = tracker.threshold(capacity);
            let hot = (0..40).filter(|&p| tracker.heat(Page(p)) >= threshold).count();
            prop_assert!(hot <= capacity, "{hot} pages at {threshold} for {capacity}");
        }
    }

    #[test]
    fn heat_on_one_subpage_is_more_skewed_than_the_same_heat_on_all() {
        let mut one = [0; 512];
        one[7] = 512;
        assert!(skew(&one) > skew(&[1; 512]) * 1000.0);
    }

    #[test]
    fn nothing_is_split_where_placement_is_as_good_as_it_can_be() {
        assert_eq!(splits(0.9, 0.9, 1_000_000, 70.0, 135.0, 20.0), 0);
        assert_eq!(splits(0.9, 0.5, 1000, 70.0, 140.0, 20.0), 20);
        assert_eq!(splits(0.9, 0.5, 1000, 200.0, 140.0, 20.0), 0);
    }
}

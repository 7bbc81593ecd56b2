//! Which huge pages to split: MEMTIS, section 4.3.
//!
//! Terms: a huge page whose reads fall on few of its 512 *base* pages wastes the default tier. The *expected* hits are
//! the samples that the default tier would have served if every base page were placed by its own count; the *actual*
//! ones are those that it did serve. A huge page's *skew* is the sum of its squared base counts over the square of how
//! many of them were touched.
//!
//! Algorithm, as in the published kernel (`mm/htmm_core.c`): base pages are counted like huge ones, with a threshold of
//! their own. A sample is an expected hit if the sample before left its base page at or above that threshold, so that
//! the past predicts and noise does not. When counts are halved, and more samples than base pages of the default tier
//! (and than a quarter of all) have come since the last time: if [`CERTAIN`] of the expected hits exceed the actual
//! ones, split as many of the most skewed pages as [`splits`] says. If that did not raise the actual hits by
//! [`IMPROVED`], never split again.
//!
//! Deviations: what a hit saves is taken from the loaded latencies, where the kernel has two constants. The most skewed
//! pages are sorted, where the kernel has 21 classes of skew.
//!
//! Always so: no page is split twice; none is split where the default tier answers no faster than the alternate one.

use super::Counter;
use super::memtis::Memtis;
use crate::tier::{Page, Tier};

/// Base pages of a huge page.
pub const BASE: usize = pagemill_model::page::PER_HUGE as usize;
/// Samples between two coolings (`htmm_cooling_period`).
pub const COOLING: u64 = 2_000_000;
/// Part of the expected hits that is believed.
const CERTAIN: f64 = 0.95;
/// Part of the computed number that is split at once (`htmm_gamma`).
const GAMMA: f64 = 0.4;
/// By how much actual hits must have risen after a split.
const IMPROVED: f64 = 1.03;

/// The state of the decision.
#[derive(Clone, Debug)]
pub struct Splitter {
    base: Memtis,
    /// Whether the last sample of a base page left it at or above the threshold.
    hot: Vec<bool>,
    split: Vec<bool>,
    frames: usize,
    threshold: u32,
    cooling: u64,
    seen: u64,
    /// Since the last decision.
    waited: u64,
    /// Of this period, and of all before, halved each time.
    expected: [f64; 2],
    actual: [f64; 2],
    tried: bool,
    ended: bool,
}

impl Splitter {
    /// Nothing seen of `pages` huge pages, with room for `frames` base pages on the default tier; counts are halved
    /// every `cooling` samples.
    #[must_use]
    pub fn new(pages: usize, frames: usize, cooling: u64) -> Self {
        Self {
            base: Memtis::new(pages * BASE, cooling),
            hot: vec![false; pages * BASE],
            split: vec![false; pages],
            frames,
            threshold: 1,
            cooling: cooling.max(1),
            seen: 0,
            waited: 0,
            expected: [0.0; 2],
            actual: [0.0; 2],
            tried: false,
            ended: false,
        }
    }

    /// The counts of a page's base pages.
    pub fn counts(&self, page: Page) -> impl Iterator<Item = u32> {
        let first = page.0 as usize * BASE;
        (first..first + BASE).map(|at| self.base.heat(Page(at as u32)))
    }

    /// Counts a sampled load of base page `base` of `page`, served by `tier`. True where it is time to decide.
    pub fn sample(&mut self, page: Page, base: usize, tier: Tier) -> bool {
        let at = page.0 as usize * BASE + base;
        self.expected[0] += f64::from(u8::from(self.hot[at]));
        self.actual[0] += f64::from(u8::from(tier == Tier::Default));
        self.base.sample(Page(at as u32));
        self.hot[at] = self.base.heat(Page(at as u32)) >= self.threshold;
        self.seen += 1;
        self.waited += 1;
        // `htmm_adaptation_period` is a twentieth of the cooling period.
        if self.seen.is_multiple_of((self.cooling / 20).max(1)) {
            self.threshold = self.base.hot(self.frames);
        }
        self.seen.is_multiple_of(self.cooling)
    }

    /// Decides: the pages to split now, most skewed first. `may` says which can be.
    pub fn decide(
        &mut self,
        default_ns: f64,
        alternate_ns: f64,
        may: impl Fn(Page) -> bool,
    ) -> Vec<Page> {
        let before = self.actual[1];
        for hits in [&mut self.expected, &mut self.actual] {
            *hits = [0.0, hits[1] / 2.0 + hits[0]];
        }
        let pages = self.split.len();
        if self.ended || self.waited <= self.frames.max(pages * BASE / 4) as u64 {
            return Vec::new();
        }
        self.waited = 0;
        if self.tried && self.actual[1] < before * IMPROVED {
            self.ended = true;
            return Vec::new();
        }
        self.tried = false;
        let mut skewed: Vec<(f64, Page)> = Vec::new();
        let (mut samples, mut touched) = (0, 0);
        for page in (0..pages as u32).map(Page).filter(|page| !self.split[page.0 as usize]) {
            let counts: Vec<u32> = self.counts(page).collect();
            let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            samples += sum;
            touched += u64::from(sum > 0);
            if sum > 0 && may(page) {
                skewed.push((skew(&counts), page));
            }
        }
        let average = samples as f64 / touched.max(1) as f64;
        let missed = CERTAIN * self.expected[1] - self.actual[1];
        let count = (GAMMA * splits(missed, default_ns, alternate_ns, average)) as usize;
        skewed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.0.cmp(&b.1.0)));
        skewed.into_iter().take(count).map(|(_, page)| page).collect()
    }

    /// Notes that a page has been split.
    pub fn done(&mut self, page: Page) {
        self.split[page.0 as usize] = true;
        self.tried = true;
    }
}

/// How unevenly a huge page's heat lies on its base pages; 0 for an untouched one.
#[must_use]
pub fn skew(counts: &[u32]) -> f64 {
    let touched = counts.iter().filter(|&&count| count > 0).count();
    if touched == 0 {
        return 0.0;
    }
    counts.iter().map(|&count| f64::from(count).powi(2)).sum::<f64>() / (touched as f64).powi(2)
}

/// How many huge pages would have to be split: the hits missed, weighed by the latency that each saves against that of
/// the default tier, over the samples that an average huge page draws.
#[must_use]
pub fn splits(missed: f64, default_ns: f64, alternate_ns: f64, average: f64) -> f64 {
    let saved = ((alternate_ns - default_ns) / default_ns.max(1.0)).max(0.0);
    missed.max(0.0) * saved / average.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Samples on base pages `0..reach` of every page, in turn, until a decision that says something.
    fn decided(reach: usize, tier: Tier, alternate_ns: f64) -> (Splitter, Vec<Page>) {
        let mut splitter = Splitter::new(8, 8 * reach.min(64), 4000);
        for at in 0..200_000_usize {
            let (page, base) = (Page((at % 8) as u32), at / 8 % reach);
            if splitter.sample(page, base, tier) {
                let pages = splitter.decide(70.0, alternate_ns, |_| true);
                if !pages.is_empty() {
                    return (splitter, pages);
                }
            }
        }
        (splitter, Vec::new())
    }

    #[test]
    fn heat_on_one_base_page_is_more_skewed_than_the_same_heat_on_all() {
        let mut one = [0; BASE];
        one[7] = 512;
        assert!(skew(&one) > skew(&[1; BASE]) * 1000.0);
    }

    #[test]
    fn pages_read_in_few_places_are_split_where_the_default_tier_misses_them() {
        assert!(!decided(16, Tier::Alternate, 140.0).1.is_empty());
        // It serves them already; it answers no faster; nothing is in few places.
        assert!(decided(16, Tier::Default, 140.0).1.is_empty());
        assert!(decided(16, Tier::Alternate, 70.0).1.is_empty());
        assert!(decided(BASE, Tier::Alternate, 140.0).1.is_empty());
    }

    #[test]
    fn a_split_that_does_not_help_is_the_last() {
        let (mut splitter, pages) = decided(16, Tier::Alternate, 140.0);
        splitter.done(pages[0]);
        let mut more = 0;
        for at in 0..400_000_usize {
            let (page, base) = (Page((at % 8) as u32), at / 8 % 16);
            // As many hits as before: none would be no improvement on none.
            let tier = if at % 10 == 0 { Tier::Default } else { Tier::Alternate };
            if splitter.sample(page, base, tier)
                && let Some(&page) = splitter.decide(70.0, 140.0, |_| true).first()
            {
                splitter.done(page);
                more += 1;
            }
        }
        // Until the mean of hits, which begins at none, has come to rest.
        assert!(splitter.ended && more < 7, "{more}");
    }

    proptest! {
        #[test]
        fn no_page_is_split_twice_and_none_where_it_saves_nothing(
            samples in prop::collection::vec((0_u32..6, 0_usize..BASE, any::<bool>()), 1..4000),
            default_ns in 50.0_f64..300.0, alternate_ns in 50.0_f64..300.0,
        ) {
            let mut splitter = Splitter::new(6, 100, 64);
            let mut split = std::collections::HashSet::new();
            for (page, base, default) in samples {
                let tier = if default { Tier::Default } else { Tier::Alternate };
                if splitter.sample(Page(page), base % 3, tier) {
                    for page in splitter.decide(default_ns, alternate_ns, |_| true) {
                        prop_assert!(alternate_ns > default_ns);
                        prop_assert!(split.insert(page.0));
                        splitter.done(page);
                    }
                }
            }
        }
    }
}

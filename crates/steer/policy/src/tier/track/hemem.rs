//! Sampled counters with cooling: HeMem (Raybuck et al., SOSP 2021), with the constants of the
//! version that the Colloid artifact ships.
//!
//! Terms: every 5003rd load is sampled and counted for its 2 MiB page. A page with [`HOT`] samples or
//! more is hot. When any page passes [`COOL`], every count is halved: old heat fades.
//!
//! Deviation: the artifact cools each page lazily, when it is next sampled; here all are halved at
//! once. A page that is never sampled again is treated the same by both, for it is cold in both.
//!
//! Always so: no count exceeds [`COOL`] after a sample; cooling never changes who is hotter.

use crate::tier::Page;
use crate::tier::kind::{PageSize, TrackerKind, Watches};
use crate::tier::track::Counter;

/// `hemem`.
pub const KIND: TrackerKind = TrackerKind {
    name: "hemem",
    watches: Watches::Samples(|terms| Box::new(Hemem::new(terms.pages))),
    page: PageSize::Huge,
    splits: false,
};

/// Loads between two samples.
pub const PERIOD: u64 = 5003;
/// Samples that make a page hot.
pub const HOT: u32 = 8;
/// Samples of one page that halve all counts.
pub const COOL: u32 = 18;

/// Counters, one a page.
#[derive(Clone, Debug)]
pub struct Hemem {
    counts: Vec<u32>,
}

impl Hemem {
    /// Counters at zero for pages `0..pages`.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self { counts: vec![0; pages] }
    }
}

impl Counter for Hemem {
    fn sample(&mut self, page: Page) {
        let Some(count) = self.counts.get_mut(page.0 as usize) else {
            return;
        };
        *count += 1;
        if *count >= COOL {
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }

    fn heat(&self, page: Page) -> u32 {
        self.counts.get(page.0 as usize).copied().unwrap_or(0)
    }

    fn grow(&mut self, pages: usize) {
        self.counts.resize(pages.max(self.counts.len()), 0);
    }

    fn forget(&mut self, page: Page) {
        if let Some(count) = self.counts.get_mut(page.0 as usize) {
            *count = 0;
        }
    }

    fn hot(&self, _capacity: usize) -> u32 {
        HOT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_stay_below_the_cooling_mark_and_order_is_kept(
            samples in prop::collection::vec(0_u32..20, 0..2000),
        ) {
            let mut tracker = Hemem::new(20);
            for page in samples {
                let before: Vec<u32> = (0..20).map(|p| tracker.heat(Page(p))).collect();
                tracker.sample(Page(page));
                for a in 0..20_u32 {
                    prop_assert!(tracker.heat(Page(a)) < COOL);
                    for b in 0..20_u32 {
                        if a != page && b != page && before[a as usize] >= before[b as usize] {
                            prop_assert!(tracker.heat(Page(a)) >= tracker.heat(Page(b)));
                        }
                    }
                }
            }
        }
    }
}

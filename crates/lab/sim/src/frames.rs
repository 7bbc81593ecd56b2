//! Frames of both nodes, the pages that they hold, and accessed bits: what a kernel sees that looks at memory by its
//! physical address.
//!
//! Frames are filled in the order of first touches. A page that moves takes the frame that was freed last.
//!
//! A bit is drawn when it is looked at, from the page's reads and the time since it was cleared. What was drawn stays:
//! a bit that is set is set until it is cleared, and one that is not has been looked at until then.
//!
//! Always so: a page is in one frame and a frame holds one page or none.

use pagemill_model::random::Random;
use pagemill_policy::tier::Tier;

use crate::pages::Pages;

const NOTHING: u32 = u32::MAX;
/// The time since which a bit is clear, of one that is set.
const SET: u64 = u64::MAX;

/// The frames of a run. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The page of each frame.
    pages: [Vec<u32>; 2],
    free: [Vec<u32>; 2],
    /// Since when each page has not been accessed.
    clear_since: Vec<u64>,
}

impl Frames {
    /// Frames that hold `pages`; the alternate tier has `alternate` frames, or as many as its pages need.
    #[must_use]
    pub fn holding(pages: &Pages, alternate: usize) -> Self {
        let mut held: [Vec<u32>; 2] = Default::default();
        for page in (0..pages.len()).map(|at| pages.touched(at) as u32) {
            held[pages.tier(page) as usize].push(page);
        }
        let free = |frames: &mut Vec<u32>, all: usize| {
            let used = frames.len();
            frames.resize(used.max(all), NOTHING);
            (used as u32..frames.len() as u32).rev().collect()
        };
        let free = [free(&mut held[0], pages.default_frames()), free(&mut held[1], alternate)];
        Self { pages: held, free, clear_since: vec![SET; pages.len()] }
    }

    /// How many frames a tier has.
    #[must_use]
    pub fn of(&self, tier: Tier) -> usize {
        self.pages[tier as usize].len()
    }

    /// The page in a frame.
    #[must_use]
    pub fn page(&self, tier: Tier, frame: usize) -> Option<u32> {
        Some(self.pages[tier as usize][frame]).filter(|page| *page != NOTHING)
    }

    /// Clears the accessed bit of a page.
    pub fn make_old(&mut self, page: u32, now_us: u64) {
        self.clear_since[page as usize] = now_us;
    }

    /// Whether the accessed bit of a page is set, which is read so often a microsecond.
    pub fn young(
        &mut self,
        page: u32,
        now_us: u64,
        reads_per_us: f64,
        random: &mut Random,
    ) -> bool {
        let since = &mut self.clear_since[page as usize];
        if *since == SET {
            return true;
        }
        let elapsed = now_us.saturating_sub(*since) as f64;
        let accessed = random.chance(1.0 - (-reads_per_us * elapsed).exp());
        *since = if accessed { SET } else { now_us.max(*since) };
        accessed
    }

    /// Moves the page of a frame to a free frame of the other tier; the page, unless there is none or no room.
    pub fn migrate(&mut self, tier: Tier, frame: usize) -> Option<u32> {
        let page = self.page(tier, frame)?;
        let (here, there) = (tier as usize, tier.other() as usize);
        let to = self.free[there].pop()?;
        self.pages[there][to as usize] = page;
        self.pages[here][frame] = NOTHING;
        self.free[here].push(frame as u32);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{GIB, gups};
    use proptest::prelude::*;

    fn pages() -> Pages {
        Pages::first_touch(&gups(64.0), 4096.0, 32.0 * GIB, 16384.0)
    }

    #[test]
    fn a_bit_that_was_seen_stays_and_one_that_was_not_is_looked_at_from_then_on() {
        let mut frames = Frames::holding(&pages(), 2000);
        let mut random = Random::new(3);
        assert!(frames.young(0, 5, 0.0, &mut random), "memory has been written to");
        let (mut seen, rounds) = (0, 20_000);
        for _ in 0..rounds {
            frames.make_old(0, 0);
            // Ten looks find as many accesses as one would.
            let young = (1..=10).map(|at| frames.young(0, at * 10, 0.005, &mut random));
            let young: Vec<bool> = young.collect();
            assert!(young.is_sorted(), "{young:?}");
            seen += usize::from(young[9]);
        }
        let part = seen as f64 / f64::from(rounds);
        assert!((part - (1.0 - (-0.5_f64).exp())).abs() < 0.02, "{part}");
    }

    proptest! {
        #[test]
        fn a_page_is_in_one_frame_of_its_tier(
            moves in prop::collection::vec((any::<bool>(), any::<usize>()), 0..600),
        ) {
            let mut pages = pages();
            let mut frames = Frames::holding(&pages, 0);
            for (up, frame) in moves {
                let tier = if up { Tier::Alternate } else { Tier::Default };
                let frame = frame % frames.of(tier);
                if let Some(page) = frames.migrate(tier, frame) {
                    let moved = if up { pages.promote(page, 0) } else { pages.demote(page) };
                    prop_assert!(moved);
                }
            }
            let mut found = vec![0; pages.len()];
            for tier in [Tier::Default, Tier::Alternate] {
                for page in (0..frames.of(tier)).filter_map(|frame| frames.page(tier, frame)) {
                    prop_assert_eq!(pages.tier(page), tier);
                    found[page as usize] += 1;
                }
            }
            prop_assert!(found.iter().all(|count| *count == 1));
        }
    }
}

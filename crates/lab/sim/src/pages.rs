//! Every page of a run: where it is, when the scanner stamped it, when its accessed bit was last
//! cleared; and the two lists by which the kernel ages the default tier.
//!
//! A page takes 9 bytes, and 4 more for its place on a list: 13 (at most 16 counted with stale places).
//! A run may hold one page in `scale`; rates a page stay as they are and the kernel's budgets are divided.
//!
//! Ageing, as Linux does it for anonymous memory (`folio_check_references`): a page at the head of the inactive list
//! whose accessed bit is set is kept and marked the first time and goes to the active list the second time; one
//! whose bit is not set is demoted. When the inactive list is short, the head of
//! the active list moves over with its bit cleared. A promoted page enters the inactive list. Accessed bits are drawn
//! from the page's read rate and the time since the bit was cleared, so no access is simulated one by one. Within a
//! quantum that time is what the ageing itself has taken: a short list comes round several times.
//!
//! Always so: the pages of both tiers add up; no page is on two tiers.

use std::collections::VecDeque;

use pagemill_policy::tier::{Page, Tier};

use crate::split_pages::SplitPages;
use crate::workload::Workload;
use pagemill_model::random::Random;

const NOWHERE: u8 = 0;
const ACTIVE: u8 = 1;
const INACTIVE: u8 = 2;
/// On the inactive list, seen accessed once.
const MARKED: u8 = 3;
const ALTERNATE: u8 = 4;
const NEVER: u32 = u32::MAX;

/// Parts of a quantum in which the time of a cleared bit is kept; it wraps round after 46 hours.
const PARTS: u32 = 256;

/// What ageing costs, in microseconds of its own time.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// To look at a page.
    pub scan_us: f64,
    /// To demote one.
    pub demote_us: f64,
    /// A whole quantum.
    pub quantum_us: f64,
}

/// The pages of a run. Times are in quanta, `cleared` in [`PARTS`] of one.
#[derive(Clone, Debug)]
pub struct Pages {
    segment: usize,
    /// Segments that are first touched together; one where pages are touched in their order.
    together: usize,
    ends: Vec<usize>,
    sizes: Vec<usize>,
    state: Vec<u8>,
    stamp: Vec<u32>,
    cleared: Vec<u32>,
    active: VecDeque<u32>,
    inactive: VecDeque<u32>,
    /// Pages of each class that the default tier serves, by the reads of its units.
    served: Vec<f64>,
    /// Where huge pages may be split.
    split_pages: Option<SplitPages>,
    default_frames: usize,
    used: usize,
}

impl Pages {
    /// Places pages of `page_bytes` by first touch: the default tier's `default_bytes` first.
    #[must_use]
    pub fn first_touch(
        workload: &Workload,
        page_bytes: f64,
        default_bytes: f64,
        scale: f64,
    ) -> Self {
        let pages = |bytes: f64| bytes / page_bytes / scale;
        let smallest = workload.classes.iter().map(|c| pages(c.bytes)).fold(f64::MAX, f64::min);
        let segments = workload.segments.min(smallest.max(1.0) as usize).max(1);
        let mut ends = Vec::new();
        let mut segment = 0;
        for class in &workload.classes {
            segment += ((pages(class.bytes) / segments as f64).round() as usize).max(1);
            ends.push(segment);
        }
        let count = segment * segments;
        let mut this = Self {
            sizes: ends
                .iter()
                .scan(0, |before, &end| Some((end - std::mem::replace(before, end)) * segments))
                .collect(),
            served: vec![0.0; ends.len()],
            split_pages: None,
            segment,
            together: if workload.together { segments } else { 1 },
            ends,
            state: vec![ALTERNATE; count],
            stamp: vec![NEVER; count],
            cleared: vec![0; count],
            active: VecDeque::new(),
            inactive: VecDeque::new(),
            default_frames: pages(default_bytes) as usize,
            used: 0,
        };
        for at in 0..count {
            let page = this.touched(at);
            if this.used < this.default_frames {
                this.state[page] = INACTIVE;
                this.inactive.push_back(page as u32);
                let class = this.class_of(page as u32);
                this.served[class] += 1.0;
                this.used += 1;
            }
        }
        this
    }

    /// The page that was first touched as number `at`.
    #[must_use]
    pub fn touched(&self, at: usize) -> usize {
        at % self.together * (self.len() / self.together) + at / self.together
    }

    /// How many pages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// True for a run without pages, which [`Self::first_touch`] never makes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// The class of a page.
    #[must_use]
    pub fn class_of(&self, page: u32) -> usize {
        let inside = page as usize % self.segment;
        self.ends.partition_point(|&end| end <= inside)
    }

    /// Pages of a class.
    #[must_use]
    pub fn size_of(&self, class: usize) -> usize {
        self.sizes[class]
    }

    /// The part of a class that is on the default tier.
    #[must_use]
    pub fn part_on_default(&self, class: usize) -> f64 {
        self.served[class] / self.sizes[class] as f64
    }

    /// A random page of a class.
    pub fn draw(&self, class: usize, random: &mut Random) -> u32 {
        let begin = if class == 0 { 0 } else { self.ends[class - 1] };
        let width = self.ends[class] - begin;
        let at = random.below(self.sizes[class] as u64) as usize;
        (at / width * self.segment + begin + at % width) as u32
    }

    /// Where a page is.
    #[must_use]
    pub fn tier(&self, page: u32) -> Tier {
        if self.state[page as usize] == ALTERNATE { Tier::Alternate } else { Tier::Default }
    }

    /// Frames of the default tier.
    #[must_use]
    pub const fn default_frames(&self) -> usize {
        self.default_frames
    }

    /// Frames of the default tier that hold nothing.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.default_frames - self.used
    }

    /// Takes access away from a page at `now`.
    pub fn stamp(&mut self, page: u32, now: u32) {
        self.stamp[page as usize] = now;
    }

    /// Gives access back if the page was stamped at `at`; false if it was not.
    pub fn unstamp(&mut self, page: u32, at: u32) -> bool {
        let stamped = self.stamp[page as usize] == at;
        if stamped {
            self.stamp[page as usize] = NEVER;
        }
        stamped
    }

    /// True where access is taken away.
    #[must_use]
    pub fn stamped(&self, page: u32) -> bool {
        self.stamp[page as usize] != NEVER
    }

    /// Moves a page to the default tier; false if it is there or no frame is free.
    pub fn promote(&mut self, page: u32, now: u32) -> bool {
        if self.tier(page) == Tier::Default || self.free() == 0 {
            return false;
        }
        self.used += 1;
        self.state[page as usize] = INACTIVE;
        // It was read just now, by the read that faulted.
        self.cleared[page as usize] = now.saturating_sub(1).wrapping_mul(PARTS);
        self.inactive.push_back(page);
        self.serve(page, 1.0);
        if self.inactive.len() > 2 * self.default_frames {
            let state = &self.state;
            self.inactive.retain(|&page| matches!(state[page as usize], INACTIVE | MARKED));
        }
        true
    }

    /// Moves a page to the alternate tier; false if it is there.
    pub fn demote(&mut self, page: u32) -> bool {
        if self.tier(page) == Tier::Alternate {
            return false;
        }
        self.used -= 1;
        self.state[page as usize] = ALTERNATE;
        self.serve(page, -1.0);
        true
    }

    fn serve(&mut self, page: u32, sign: f64) {
        let class = self.class_of(page);
        self.served[class] +=
            sign * self.split_pages.as_ref().map_or(1.0, |split| split.rate(page));
    }

    /// Lets huge pages be split.
    pub fn splittable(&mut self, split_pages: SplitPages) {
        self.split_pages = Some(split_pages);
    }

    /// The units, where huge pages may be split.
    #[must_use]
    pub const fn split_pages(&self) -> Option<&SplitPages> {
        self.split_pages.as_ref()
    }

    /// Splits whole pages of one tier together.
    pub fn split(&mut self, group: &[Page]) {
        let on_default: Vec<u32> = group
            .iter()
            .map(|page| page.0)
            .filter(|&page| self.tier(page) == Tier::Default)
            .collect();
        on_default.iter().for_each(|&page| self.serve(page, -1.0));
        if let Some(split_pages) = &mut self.split_pages {
            split_pages.split(group);
        }
        on_default.iter().for_each(|&page| self.serve(page, 1.0));
    }

    /// Ages the default tier until `wanted` frames are free or `budget_us` is spent. `rates` gives the reads of a page
    /// by class and quantum. Returns the pages demoted and the time spent.
    pub fn age(
        &mut self,
        now: u32,
        wanted: usize,
        budget_us: f64,
        costs: Costs,
        rates: &[f64],
        random: &mut Random,
    ) -> (usize, f64) {
        let Costs { scan_us, demote_us, quantum_us } = costs;
        let at = |spent: f64| {
            let part = (spent / quantum_us.max(1e-9) * f64::from(PARTS)) as u32;
            now.wrapping_mul(PARTS).wrapping_add(part)
        };
        let (mut spent, mut demoted) = (0.0, 0);
        while self.free() < wanted && spent < budget_us {
            if self.inactive.len() * (INACTIVE_RATIO + 1) < self.used
                && let Some(page) = self.active.pop_front()
            {
                if self.state[page as usize] == ACTIVE {
                    spent += scan_us;
                    self.state[page as usize] = INACTIVE;
                    self.cleared[page as usize] = at(spent);
                    self.inactive.push_back(page);
                }
                continue;
            }
            let Some(page) = self.inactive.pop_front() else {
                break;
            };
            let state = self.state[page as usize];
            if !matches!(state, INACTIVE | MARKED) {
                continue;
            }
            spent += scan_us;
            let class = self.class_of(page);
            let since = at(spent).wrapping_sub(self.cleared[page as usize]);
            let elapsed = f64::from(since) / f64::from(PARTS);
            if random.chance(1.0 - (-rates[class] * elapsed).exp()) {
                self.cleared[page as usize] = at(spent);
                if state == MARKED {
                    self.state[page as usize] = ACTIVE;
                    self.active.push_back(page);
                } else {
                    self.state[page as usize] = MARKED;
                    self.inactive.push_back(page);
                }
            } else {
                self.state[page as usize] = NOWHERE;
                self.demote(page);
                spent += demote_us;
                demoted += 1;
            }
        }
        (demoted, spent)
    }

    /// Bytes that a page takes, lists included.
    #[must_use]
    pub fn bytes_per_page(&self) -> f64 {
        let lists = (self.active.capacity() + self.inactive.capacity()) * size_of::<u32>();
        9.0 + lists as f64 / self.len() as f64
    }
}

/// Active pages for each inactive one: Linux's `int_sqrt(10 * GiB)`, for 32 GiB.
const INACTIVE_RATIO: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::gups;
    use proptest::prelude::*;

    const COSTS: Costs = Costs { scan_us: 0.5, demote_us: 5.0, quantum_us: 50.0 };
    const FREE: Costs = Costs { scan_us: 0.0, demote_us: 0.0, quantum_us: 1.0 };

    /// Bits were taken for cleared when the quantum began, so a second look found no page accessed.
    #[test]
    fn a_page_that_is_read_often_is_seen_accessed_at_each_look_of_a_quantum() {
        let mut pages = pages();
        let mut random = Random::new(1);
        // Most of the default tier is active, so its inactive list comes round many times in a quantum.
        pages.age(1, 0, 0.0, FREE, &[0.0, 0.0, 0.0], &mut random);
        let costs = Costs { scan_us: 1.0, demote_us: 0.0, quantum_us: 10_000.0 };
        let busy = [1e6, 1e6, 1e6];
        for now in 2..40 {
            let (demoted, _) = pages.age(now, 1, 10_000.0, costs, &busy, &mut random);
            assert_eq!(demoted, 0, "in quantum {now}");
        }
    }

    fn pages() -> Pages {
        Pages::first_touch(&gups(64.0), 4096.0, 32.0 * crate::workload::GIB, 4096.0)
    }

    #[test]
    fn first_touch_fills_the_default_tier_with_cold_pages() {
        let pages = pages();
        assert!(pages.part_on_default(2) < 1e-9);
        assert_eq!(pages.free(), 0);
    }

    #[test]
    fn ageing_demotes_the_cold_and_spares_the_hot() {
        let mut pages = pages();
        let mut random = Random::new(1);
        for page in 0..pages.len() as u32 {
            if pages.class_of(page) == 2 {
                pages.age(1, 1, 1e9, FREE, &[0.0, 0.0, 1.0], &mut random);
                pages.promote(page, 1);
            }
        }
        for now in 2..400 {
            pages.age(now, 40, 1e9, FREE, &[0.001, 0.001, 1.0], &mut random);
        }
        assert!(pages.part_on_default(2) > 0.95, "{}", pages.part_on_default(2));
    }

    proptest! {
        #[test]
        fn pages_are_conserved_and_the_default_tier_never_overflows(
            moves in prop::collection::vec((any::<u32>(), any::<bool>(), 0_usize..20), 1..400),
        ) {
            let mut pages = pages();
            let mut random = Random::new(5);
            for (now, (page, up, wanted)) in moves.into_iter().enumerate() {
                let page = page % pages.len() as u32;
                if up { pages.promote(page, now as u32); } else { pages.demote(page); }
                pages.age(now as u32, wanted, 50.0, COSTS, &[0.01, 0.01, 1.0], &mut random);
                let default =
                    (0..pages.len() as u32).filter(|&p| pages.tier(p) == Tier::Default).count();
                prop_assert_eq!(default + pages.free(), pages.default_frames());
                let counted: f64 = pages.served.iter().sum();
                prop_assert!((default as f64 - counted).abs() < 1e-9);
            }
        }
    }
}

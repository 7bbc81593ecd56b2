//! Regions: DAMON (Park et al., HPDC 2022) as it stands in Linux 6.18 (`mm/damon/core.c`, `mm/damon/paddr.c`), with the
//! attributes of the kernel's own tiering by it (`samples/damon/mtier.c`).
//!
//! | word | meaning |
//! |---|---|
//! | frame | a page of one node's physical memory, by its number in the node |
//! | region | adjacent frames that are taken for alike; one of them, at random, is looked at each sampling interval |
//! | accesses | sampling intervals of an aggregation ([`SAMPLES`] of them) in which that frame was accessed |
//! | age | aggregations for which a region's accesses have stayed within the threshold of a merge |
//!
//! Algorithm:
//! 1. each sampling interval: clear the accessed bit of a random frame of each region, wait, look at it;
//! 2. each aggregation: regions that changed by more than a tenth of the most accesses begin at age 0 again;
//!    neighbours that differ by no more become one of their weighted mean, up to a tenth of the node;
//! 3. the schemes act ([`super::schemes`]);
//! 4. each third aggregation the intervals are tuned, so that 4 % of all samples find an access;
//! 5. counts begin again, and each region is cut in two (in three, where their number did not change and is below a
//!    third of [`MOST`]) at a random tenth of its length, unless there are more than half of [`MOST`].
//!
//! A change of the intervals also starts the wait of the schemes anew (`damon_set_attrs`), so a scheme whose interval
//! is longer than [`TUNED`] aggregations never acts while they change each time.
//!
//! Deviations: the operations' update does nothing for physical memory and is left out.
//!
//! Always so: regions cover the node without gap or overlap and none is empty; a merge keeps the sum of accesses by
//! size but for rounding down; there are no more than [`MOST`] regions after an aggregation; the sampling interval
//! stays within its bounds.

use pagemill_model::random::Random;

/// Samples of an aggregation: 100 ms of 5 ms each to begin with.
pub const SAMPLES: u32 = 20;
/// Regions that a node is divided into at least, by a bound on their size, and at most.
pub const FEWEST: usize = 10;
/// And at most.
pub const MOST: usize = 1000;
/// The shortest sampling interval, which is the first, and the longest, in microseconds.
pub const SHORTEST_US: u64 = 5_000;
/// And the longest.
pub const LONGEST_US: u64 = 10_000_000;
/// Part of the samples, in 10,000ths, that should find an access.
pub const ACCESSED_BP: u64 = 400;
/// Aggregations between two times that the intervals are tuned.
pub const TUNED: u64 = 3;
/// A whole, in the 10,000ths that the kernel counts in.
pub const WHOLE_BP: u64 = 10_000;

/// The next input of a loop that should reach a score of [`WHOLE_BP`] and has reached `score` with `last`
/// (`damon_feed_loop_next_input`).
#[must_use]
pub fn next_input(last: u64, score: u64) -> u64 {
    const LEAST: u64 = 10_000;
    if score == WHOLE_BP {
        return last;
    }
    if score >= 2 * WHOLE_BP {
        return LEAST;
    }
    let apart = score.abs_diff(WHOLE_BP);
    let compensation = match last < u64::MAX / apart {
        true => last * apart / WHOLE_BP,
        false => last / WHOLE_BP * apart,
    };
    match score > WHOLE_BP {
        true => (last - compensation).max(LEAST),
        false => last.saturating_add(compensation),
    }
}

/// Frames that are taken for alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first frame.
    pub start: usize,
    /// The first frame after it.
    pub end: usize,
    /// Accesses in this aggregation.
    pub accesses: u32,
    /// Aggregations for which it has been like that.
    pub age: u32,
    /// Accesses in the aggregation before.
    before: u32,
    /// Accesses in the last [`SAMPLES`] samples, as far as that can be told, in 10,000ths.
    moving_bp: u32,
    /// The frame that is looked at.
    sampled: usize,
}

impl Region {
    /// A region of which nothing is known.
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end, accesses: 0, age: 0, before: 0, moving_bp: 0, sampled: start }
    }

    /// Its frames.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.end - self.start
    }

    /// Accesses of an aggregation that ended now.
    #[must_use]
    pub const fn lately(&self) -> u32 {
        self.moving_bp / WHOLE_BP as u32
    }

    fn count(&mut self, accessed: bool) {
        let one = WHOLE_BP as u32;
        let leaves = self.before * one / SAMPLES;
        self.moving_bp = (self.moving_bp + one * u32::from(accessed)).saturating_sub(leaves);
        self.accesses += u32::from(accessed);
    }

    /// Takes the region after it in.
    fn merge(&mut self, next: &Self) {
        let (mine, others) = (self.frames() as u64, next.frames() as u64);
        let mean = |a: u32, b: u32| {
            ((u64::from(a) * mine + u64::from(b) * others) / (mine + others)) as u32
        };
        self.accesses = mean(self.accesses, next.accesses);
        self.moving_bp = self.accesses * WHOLE_BP as u32;
        self.age = mean(self.age, next.age);
        self.end = next.end;
    }
}

/// What watches one node.
#[derive(Clone, Debug)]
pub struct Monitor {
    regions: Vec<Region>,
    largest: usize,
    sample_us: u64,
    /// Samples so far, and at which the aggregation ends and the intervals are tuned.
    passed: u64,
    aggregates_at: u64,
    tunes_at: u64,
    /// The most accesses of a region at the last sample.
    most: u32,
    /// Regions when they were last split.
    count: usize,
    random: Random,
}

impl Monitor {
    /// A monitor of a node of so many frames, of which nothing is known.
    #[must_use]
    pub fn new(frames: usize, seed: u64) -> Self {
        Self {
            regions: if frames == 0 { Vec::new() } else { vec![Region::new(0, frames)] },
            largest: (frames / FEWEST).max(1),
            sample_us: SHORTEST_US,
            passed: 0,
            aggregates_at: SAMPLES.into(),
            tunes_at: TUNED * u64::from(SAMPLES),
            most: 0,
            count: 0,
            random: Random::new(seed),
        }
    }

    /// Its regions, in the order of their frames.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// One of them, to be acted on.
    pub fn region(&mut self, at: usize) -> &mut Region {
        &mut self.regions[at]
    }

    /// Time between two samples, in microseconds.
    #[must_use]
    pub const fn sample_us(&self) -> u64 {
        self.sample_us
    }

    /// Time over which accesses are counted, in microseconds.
    #[must_use]
    pub const fn aggregate_us(&self) -> u64 {
        self.sample_us * SAMPLES as u64
    }

    /// Samples so far.
    #[must_use]
    pub const fn passed(&self) -> u64 {
        self.passed
    }

    /// A sampling interval begins: `make_old` clears the accessed bit of a frame.
    pub fn prepare(&mut self, make_old: &mut dyn FnMut(usize)) {
        for region in &mut self.regions {
            region.sampled = region.start + self.random.index(region.frames());
            make_old(region.sampled);
        }
    }

    /// It ends: `young` says whether a frame has been accessed.
    pub fn check(&mut self, young: &mut dyn FnMut(usize) -> bool) {
        self.passed += 1;
        self.most = 0;
        for region in &mut self.regions {
            region.count(young(region.sampled));
            self.most = self.most.max(region.accesses);
        }
        if self.aggregated() {
            self.merge_regions(self.most / 10);
        }
    }

    /// Whether an aggregation has just ended.
    #[must_use]
    pub const fn aggregated(&self) -> bool {
        self.passed >= self.aggregates_at
    }

    /// Ends an aggregation, once what acts on it has acted; whether the intervals were set anew.
    pub fn conclude(&mut self) -> bool {
        if !self.aggregated() {
            return false;
        }
        let tunes = self.passed >= self.tunes_at;
        let tuned = tunes && self.tune();
        if tunes {
            self.tunes_at += TUNED * u64::from(SAMPLES);
        }
        self.aggregates_at += u64::from(SAMPLES);
        for region in &mut self.regions {
            region.before = std::mem::take(&mut region.accesses);
        }
        self.split_regions();
        tuned
    }

    fn merge_regions(&mut self, threshold: u32) {
        let mut threshold = threshold;
        loop {
            self.merge_alike(threshold);
            threshold = (threshold * 2).max(1);
            if self.regions.len() <= MOST || threshold / 2 >= SAMPLES {
                break;
            }
        }
    }

    fn merge_alike(&mut self, threshold: u32) {
        let mut merged: Vec<Region> = Vec::with_capacity(self.regions.len());
        for mut region in self.regions.drain(..) {
            let changed = region.accesses.abs_diff(region.before) > threshold;
            region.age = if changed { 0 } else { region.age + 1 };
            match merged.last_mut() {
                Some(last)
                    if last.accesses.abs_diff(region.accesses) <= threshold
                        && last.frames() + region.frames() <= self.largest =>
                {
                    last.merge(&region);
                }
                _ => merged.push(region),
            }
        }
        self.regions = merged;
    }

    /// Cuts region `at` so that its first `frames` are a region of their own.
    pub fn cut(&mut self, at: usize, frames: usize) {
        let region = &mut self.regions[at];
        let rest = Region { start: region.start + frames, ..*region };
        region.end = rest.start;
        self.regions.insert(at + 1, rest);
    }

    fn split_regions(&mut self) {
        let count = self.regions.len();
        if count > MOST / 2 {
            return;
        }
        let parts = if self.count == count && count < MOST / 3 { 3 } else { 2 };
        self.count = count;
        let mut split = Vec::with_capacity(count * parts);
        for mut region in self.regions.drain(..) {
            let mut rest = Vec::new();
            for _ in 1..parts {
                let frames = region.frames();
                if frames <= 2 {
                    break;
                }
                let first = (1 + self.random.index(9)) * frames / 10;
                if first > 0 {
                    rest.push(Region { start: region.start + first, ..region });
                    region.end = region.start + first;
                }
            }
            split.push(region);
            split.extend(rest.into_iter().rev());
        }
        self.regions = split;
    }

    /// How much of the goal for accessed samples is met, in 10,000ths.
    fn accessed_bp(&self) -> u64 {
        let sum = |of: fn(&Region) -> u64| -> u64 {
            self.regions.iter().map(|region| region.frames() as u64 * of(region)).sum()
        };
        let wanted = sum(|_| SAMPLES.into()) * ACCESSED_BP / WHOLE_BP;
        sum(|region| region.accesses.into()) * WHOLE_BP / wanted.max(1)
    }

    /// Tunes the intervals; whether they were set, be it to what they were.
    fn tune(&mut self) -> bool {
        let factor_bp = next_input(WHOLE_BP * WHOLE_BP, self.accessed_bp()) / WHOLE_BP;
        // Not by more than a half at a time.
        let factor_bp =
            if factor_bp <= WHOLE_BP { WHOLE_BP / 2 + factor_bp / 2 } else { factor_bp };
        if factor_bp == WHOLE_BP {
            return false;
        }
        let old = self.aggregate_us();
        self.sample_us = (self.sample_us * factor_bp / WHOLE_BP).clamp(SHORTEST_US, LONGEST_US);
        let new = self.aggregate_us();
        for region in &mut self.regions {
            region.moving_bp = region.accesses * WHOLE_BP as u32;
            region.age = (u64::from(region.age) * old / new) as u32;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `count` aggregations of a node in which frames of `hot` are always accessed and no others.
    fn watched(frames: usize, hot: std::ops::Range<usize>, count: usize) -> Monitor {
        let mut monitor = Monitor::new(frames, 7);
        for _ in 0..count * SAMPLES as usize {
            monitor.prepare(&mut |_| ());
            monitor.check(&mut |frame| hot.contains(&frame));
            monitor.conclude();
        }
        monitor
    }

    /// Computed by hand from the kernel's function: what is missed is added as a part, what is exceeded taken off,
    /// twice the goal and more starts anew.
    #[test]
    fn the_loop_answers_as_the_kernels_does() {
        for (last, score, next) in [
            (10_000, 0, 20_000),
            (10_000, 10_000, 10_000),
            (10_000, 9_979, 10_021),
            (1_000_000, 5_000, 1_500_000),
            (1_000_000, 12_000, 800_000),
            (1_000_000, 19_999, 10_000),
            (1_000_000, 20_000, 10_000),
            (100_000_000, 5_000, 150_000_000),
            (123_457, 9_999, 123_469),
            (u64::MAX, 0, u64::MAX),
            (u64::MAX / 3, 7_000, 7_993_589_098_607_470_205),
            (u64::MAX / 4_000, 5_000, 6_917_529_027_637_387),
        ] {
            assert_eq!(next_input(last, score), next, "{last} at {score}");
        }
    }

    #[test]
    fn a_hot_part_of_a_node_becomes_regions_of_its_own() {
        let monitor = watched(100_000, 30_000..45_000, 60);
        let wrong: usize = monitor
            .regions()
            .iter()
            .map(|region| {
                let hot = (30_000..45_000).contains(&((region.start + region.end) / 2));
                if hot == (region.before > SAMPLES / 2) { 0 } else { region.frames() }
            })
            .sum();
        assert!(wrong < 3_000, "{wrong} frames are taken for what they are not");
        assert!(monitor.regions().iter().any(|region| region.age > 20));
    }

    #[test]
    fn a_node_that_is_seldom_accessed_is_looked_at_less_often_and_one_that_is_much_accessed_more() {
        assert_eq!(watched(10_000, 0..0, 30).sample_us(), 5_120_000);
        assert_eq!(watched(10_000, 0..0, 60).sample_us(), LONGEST_US);
        assert_eq!(watched(10_000, 0..10_000, 60).sample_us(), SHORTEST_US);
        // From a long interval it comes back by halves: each time all of the samples find an access.
        let mut monitor = watched(10_000, 0..0, 60);
        for _ in 0..6 * SAMPLES {
            monitor.prepare(&mut |_| ());
            monitor.check(&mut |_| true);
            monitor.conclude();
        }
        assert_eq!(monitor.sample_us(), LONGEST_US / 4);
    }

    #[test]
    fn a_merge_is_the_mean_by_size_and_a_split_keeps_what_was_known() {
        let mut monitor = Monitor::new(100, 1);
        monitor.cut(0, 25);
        let known = |accesses, age| {
            move |region: &mut Region| {
                (region.accesses, region.before, region.age) = (accesses, accesses, age);
            }
        };
        known(8, 3)(monitor.region(0));
        known(9, 10)(monitor.region(1));
        monitor.largest = 100;
        monitor.merge_alike(1);
        // (8 * 25 + 9 * 75) / 100 and (4 * 25 + 11 * 75) / 100, rounded down.
        let [one] = monitor.regions() else { panic!("{:?}", monitor.regions()) };
        assert_eq!((one.start, one.end, one.accesses, one.age), (0, 100, 8, 9));
        assert_eq!(one.lately(), 8);
        monitor.split_regions();
        assert!(monitor.regions().len() > 1);
        assert!(monitor.regions().iter().all(|region| (region.accesses, region.age) == (8, 9)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn regions_cover_the_node_whatever_is_accessed_and_are_never_too_many(
            frames in 1_usize..50_000, seed in any::<u64>(), odds in prop::collection::vec(0_u64..101, 1..8),
            aggregations in 1_usize..40,
        ) {
            let mut monitor = Monitor::new(frames, seed);
            let mut random = Random::new(seed);
            for _ in 0..aggregations * SAMPLES as usize {
                monitor.prepare(&mut |frame| assert!(frame < frames));
                monitor.check(&mut |frame| {
                    random.below(100) < odds[frame * odds.len() / frames]
                });
                let ended = monitor.aggregated();
                prop_assert!(!ended || monitor.regions().len() <= MOST);
                prop_assert!(monitor.regions().iter().all(|r| r.accesses <= SAMPLES));
                monitor.conclude();
                prop_assert!((SHORTEST_US..=LONGEST_US).contains(&monitor.sample_us()));
                let mut next = 0;
                for region in monitor.regions() {
                    prop_assert_eq!(region.start, next);
                    prop_assert!(region.end > region.start);
                    next = region.end;
                }
                prop_assert_eq!(next, frames);
            }
        }
    }
}

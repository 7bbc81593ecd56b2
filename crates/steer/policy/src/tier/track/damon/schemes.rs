//! The kernel's tiering by DAMON: Linux 6.18, `samples/damon/mtier.c` with `mm/damon/core.c`.
//!
//! Two threads, each with a [`Monitor`] of one node's physical memory and one *scheme*: that of the alternate tier
//! promotes regions with accesses, hottest first, until 99.7 % of the default tier's node are used; that of the default
//! tier demotes regions without any, coldest first, until 0.5 % of it are free. Neither knows how fast the tiers are.
//!
//! Algorithm, each second, unless the wait began anew:
//! 1. the *quota*, bytes that may be acted on, grows by the part of its goal that is missed and shrinks by the part
//!    that is exceeded ([`next_input`]); at most 200 MiB a second;
//! 2. regions that fit are scored by accesses and age, alike in weight; the least score is set such that those above it
//!    make up the quota;
//! 3. region by region, from where the last quota ended, those with that score are acted on: of a region to be promoted
//!    the pages that have been accessed since their bit was last cleared, of one to be demoted the others; looking
//!    clears the bit. A region counts against the quota whole and begins at age 0 again.
//!
//! Deviations: what a quota leaves over, less than a frame, is kept for the next one, so that a simulated frame that
//! stands for many gets what they would; a new quota begins exactly where the last one ended, not a page later.
//! A promotion that finds no free frame wakes kswapd in the kernel, which has nowhere to put anonymous memory unless
//! demotion by reclaim is on; here it fails.
//!
//! Always so: no window acts on more than its quota and what one frame left over; a quota never falls below a byte nor
//! exceeds 200 MiB; the regions still cover their node afterwards; only pages of the node that is watched move.

use super::monitor::{Monitor, Region, SAMPLES, WHOLE_BP, next_input};
use crate::tier::Tier;
use crate::tier::track::{NodeMemory, Nodes, RegionTracker};

/// Microseconds between two times that a scheme acts, and of a window of its quota.
pub const INTERVAL_US: u64 = 1_000_000;
/// Bytes that a window may act on at most.
pub const LIMIT: u64 = 200 << 20;
/// Used part of the default tier's node that promotion aims at, in 10,000ths.
pub const USED_BP: u64 = 9_970;
/// Free part of it that demotion aims at, in 10,000ths.
pub const FREE_BP: u64 = 50;
/// The greatest score of a region.
const MOST_SCORE: u32 = 99;

/// How hot a region is, 0 to 99 (`damon_hot_score`): half by its accesses, half by its age, which makes one without
/// accesses colder.
#[must_use]
pub fn hotness(region: &Region, aggregate_us: u64) -> u32 {
    const AGES: i32 = 32;
    let accesses = region.accesses * 100 / SAMPLES;
    let seconds = u64::from(region.age) * aggregate_us / 1_000_000;
    let doublings = ((u64::BITS - seconds.leading_zeros()) as i32).min(AGES);
    let age = if accesses == 0 { AGES - doublings } else { AGES + doublings };
    let age = age as u32 * 100 / AGES as u32 / 2;
    u32::midpoint(accesses, age) * MOST_SCORE / 100
}

/// What a scheme may still do.
#[derive(Clone, Debug, Default)]
struct Quota {
    /// The input of the loop, in 10,000ths of a byte.
    input: u64,
    /// Bytes of this window that are left.
    left: u64,
    /// When the window began.
    began_us: Option<u64>,
    /// The frame at which the last window ended.
    from: Option<usize>,
}

impl Quota {
    /// Begins a window if it is time to; `score` is how much of the goal is met, in 10,000ths.
    fn window(&mut self, now_us: u64, score: u64, frame_bytes: u64) {
        if self.began_us.is_some_and(|began| now_us < began + INTERVAL_US) {
            return;
        }
        self.began_us = Some(now_us);
        self.input = next_input(self.input.max(WHOLE_BP), score);
        self.left = self.left % frame_bytes + (self.input / WHOLE_BP).min(LIMIT);
    }
}

/// One thread: a node, and what is done with it.
#[derive(Clone, Debug)]
struct Thread {
    node: Tier,
    monitor: Monitor,
    quota: Quota,
    /// When the sampling interval ends, and the sample at which the scheme acts.
    due_us: u64,
    acts_at: u64,
}

impl Thread {
    fn start(node: Tier, seed: u64, now_us: u64, nodes: &mut dyn Nodes) -> Self {
        let mut monitor = Monitor::new(nodes.frames(node), seed);
        monitor.prepare(&mut |frame| nodes.make_old(node, frame, now_us));
        let due_us = now_us + monitor.sample_us();
        let acts_at = INTERVAL_US / monitor.sample_us();
        Self { node, monitor, quota: Quota::default(), due_us, acts_at }
    }

    fn run(&mut self, until_us: u64, nodes: &mut dyn Nodes) {
        let node = self.node;
        while self.due_us <= until_us {
            let now_us = self.due_us;
            self.monitor.check(&mut |frame| nodes.young(node, frame, now_us));
            let waits = |monitor: &Monitor| monitor.passed() + INTERVAL_US / monitor.sample_us();
            if self.monitor.passed() >= self.acts_at {
                self.act(now_us, nodes);
                self.acts_at = waits(&self.monitor);
            }
            if self.monitor.conclude() {
                self.acts_at = waits(&self.monitor);
            }
            self.monitor.prepare(&mut |frame| nodes.make_old(node, frame, now_us));
            self.due_us = now_us + self.monitor.sample_us();
        }
    }

    /// The region's score, if it is one to be acted on at all.
    fn score(&self, region: &Region) -> Option<u32> {
        let hotness = hotness(region, self.monitor.aggregate_us());
        match (self.node, region.lately()) {
            (Tier::Alternate, 1..) => Some(hotness),
            (Tier::Default, 0) => Some(MOST_SCORE - hotness),
            _ => None,
        }
    }

    /// The score from which on regions make up the quota.
    fn least_score(&self, frame_bytes: u64) -> u32 {
        let mut bytes = [0; MOST_SCORE as usize + 1];
        for region in self.monitor.regions() {
            if let Some(score) = self.score(region) {
                bytes[score as usize] += region.frames() as u64 * frame_bytes;
            }
        }
        let mut sum = 0;
        let enough = |score: &u32| {
            sum += bytes[*score as usize];
            sum >= self.quota.left
        };
        (0..=MOST_SCORE).rev().find(enough).unwrap_or(0)
    }

    fn act(&mut self, now_us: u64, nodes: &mut dyn Nodes) {
        let NodeMemory { free, all } = nodes.memory();
        let part_bp = |part: u64| part * WHOLE_BP / all.max(1);
        let score = match self.node {
            Tier::Alternate => part_bp(all - free) * WHOLE_BP / USED_BP,
            Tier::Default => part_bp(free) * WHOLE_BP / FREE_BP,
        };
        let frame_bytes = nodes.frame_bytes();
        self.quota.window(now_us, score, frame_bytes);
        let least = self.least_score(frame_bytes);
        let mut at = 0;
        while at < self.monitor.regions().len() && self.quota.left >= frame_bytes {
            if self.skips(&mut at) {
                at += 1;
                continue;
            }
            let region = self.monitor.regions()[at];
            if self.score(&region).is_some_and(|score| score >= least) {
                let frames = region.frames().min((self.quota.left / frame_bytes) as usize);
                if frames < region.frames() {
                    self.monitor.cut(at, frames);
                }
                self.migrate(at, now_us, nodes);
                self.quota.left -= frames as u64 * frame_bytes;
                if self.quota.left < frame_bytes {
                    self.quota.from = Some(region.start + frames);
                }
            }
            at += 1;
        }
    }

    /// Whether region `at` was acted on in the window before; where a part of it was, `at` becomes the rest.
    fn skips(&mut self, at: &mut usize) -> bool {
        let Some(from) = self.quota.from else { return false };
        let region = self.monitor.regions()[*at];
        let last = *at + 1 == self.monitor.regions().len();
        if last || region.end > from {
            self.quota.from = None;
        }
        if last || region.end <= from {
            return true;
        }
        if region.start < from {
            self.monitor.cut(*at, from - region.start);
            *at += 1;
        }
        false
    }

    fn migrate(&mut self, at: usize, now_us: u64, nodes: &mut dyn Nodes) {
        let region = self.monitor.region(at);
        region.age = 0;
        for frame in region.start..region.end {
            let young = nodes.young(self.node, frame, now_us);
            if young {
                nodes.make_old(self.node, frame, now_us);
            }
            if young == (self.node == Tier::Alternate) {
                nodes.migrate(self.node, frame);
            }
        }
    }
}

/// Both threads, started when they are first asked to run.
#[derive(Clone, Debug, Default)]
pub struct Damos {
    threads: Vec<Thread>,
}

impl RegionTracker for Damos {
    fn run(&mut self, from_us: u64, until_us: u64, nodes: &mut dyn Nodes) {
        if self.threads.is_empty() {
            self.threads = [(Tier::Alternate, 1), (Tier::Default, 2)]
                .map(|(node, seed)| Thread::start(node, seed, from_us, nodes))
                .into();
        }
        self.threads.iter_mut().for_each(|thread| thread.run(until_us, nodes));
    }
}

impl Damos {
    /// Bytes that promotion and demotion may act on in a window.
    #[must_use]
    pub fn quotas(&self) -> Vec<u64> {
        self.threads.iter().map(|thread| (thread.quota.input / WHOLE_BP).min(LIMIT)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// Two nodes whose pages are accessed always or never; a frame without a page holds `None`.
    struct Fake {
        pages: [Vec<Option<bool>>; 2],
        bytes: u64,
        moved: [usize; 2],
    }

    impl Fake {
        fn new(default: &[Option<bool>], alternate: &[Option<bool>], bytes: u64) -> Self {
            Self { pages: [default.to_vec(), alternate.to_vec()], bytes, moved: [0; 2] }
        }

        fn hot_on(&self, tier: Tier) -> usize {
            self.pages[tier as usize].iter().filter(|page| **page == Some(true)).count()
        }

        fn all(&self) -> usize {
            self.pages.iter().flatten().flatten().count()
        }
    }

    impl Nodes for Fake {
        fn frames(&self, tier: Tier) -> usize {
            self.pages[tier as usize].len()
        }

        fn frame_bytes(&self) -> u64 {
            self.bytes
        }

        fn make_old(&mut self, _: Tier, _: usize, _: u64) {}

        fn young(&mut self, tier: Tier, frame: usize, _: u64) -> bool {
            self.pages[tier as usize][frame] == Some(true)
        }

        fn memory(&self) -> NodeMemory {
            let free = self.pages[0].iter().filter(|page| page.is_none()).count() as u64;
            NodeMemory { free: free * self.bytes, all: self.pages[0].len() as u64 * self.bytes }
        }

        fn migrate(&mut self, tier: Tier, frame: usize) {
            let to = tier.other() as usize;
            let Some(free) = self.pages[to].iter().position(Option::is_none) else { return };
            let Some(page) = self.pages[tier as usize][frame].take() else { return };
            self.pages[to][free] = Some(page);
            self.moved[tier as usize] += 1;
        }
    }

    fn region(accesses: u32, age: u32) -> Region {
        let mut region = Region::new(0, 1);
        (region.accesses, region.age) = (accesses, age);
        region
    }

    /// By hand from the kernel's function: 100 ms of 20 samples, both weights alike.
    #[test]
    fn a_region_is_as_hot_as_the_kernel_says() {
        for (accesses, age, expected) in [
            (0, 0, 24),
            (20, 0, 74),
            (10, 0, 49),
            (1, 0, 26),
            // 10 s: four doublings. (32 + 4) * 100 / 32 / 2 = 56; (100 + 56) / 2 = 78.
            (20, 100, 77),
            (0, 100, 20),
            // 2^32 aggregations are 2^32 / 10 s: 29 doublings.
            (0, u32::MAX, 1),
            (20, u32::MAX, 96),
        ] {
            assert_eq!(hotness(&region(accesses, age), 100_000), expected, "{accesses}, {age}");
        }
    }

    /// The goal of used memory is met within 0.3 %: from one byte a second the quota grows by 0.2 % a second.
    #[test]
    fn a_quota_grows_by_the_part_of_the_goal_that_is_missed() {
        let mut quota = Quota::default();
        let inputs: Vec<u64> = (0..30)
            .map(|second| {
                quota.window(second * INTERVAL_US, 0, 4096);
                quota.input / WHOLE_BP
            })
            .collect();
        assert_eq!((inputs[0], inputs[10], inputs[27]), (2, 2048, 1 << 28));
        assert!(quota.left <= LIMIT + 4096);
        let mut quota = Quota { input: WHOLE_BP, ..Quota::default() };
        (0..1000).for_each(|second| quota.window(second * INTERVAL_US, 9_979, 4096));
        assert_eq!(quota.input / WHOLE_BP, 7);
        // Within the window nothing changes.
        let input = quota.input;
        quota.window(999 * INTERVAL_US + 1, 0, 4096);
        assert_eq!(quota.input, input);
    }

    #[test]
    fn an_empty_default_tier_takes_what_is_hot_in() {
        let alternate: Vec<_> = (0..4000).map(|at| Some((1000..1100).contains(&at))).collect();
        let mut nodes = Fake::new(&vec![None; 2000], &alternate, 4096);
        let mut damos = Damos::default();
        damos.run(0, 600 * INTERVAL_US, &mut nodes);
        assert_eq!(nodes.all(), 4000);
        assert!(nodes.hot_on(Tier::Default) > 70, "{}", nodes.hot_on(Tier::Default));
    }

    /// What is read all of the time is looked at every 5 ms, the intervals are set each 300 ms, to what they are, and
    /// the second after which the scheme would act begins anew each time.
    #[test]
    fn a_node_that_is_busy_all_over_is_never_acted_on() {
        let mut nodes = Fake::new(&vec![None; 2000], &vec![Some(true); 4000], 4096);
        let mut damos = Damos::default();
        damos.run(0, 60 * INTERVAL_US, &mut nodes);
        assert_eq!((nodes.moved, damos.quotas()[0]), ([0, 0], 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn pages_are_kept_and_no_second_moves_more_than_its_limit(
            default in prop::collection::vec(prop::option::of(any::<bool>()), 1..60),
            alternate in prop::collection::vec(prop::option::weighted(0.7, prop::bool::weighted(0.03)), 1..120),
            bytes in prop::sample::select(vec![4096_u64, 2 << 20, 64 << 20]),
        ) {
            let mut nodes = Fake::new(&default, &alternate, bytes);
            let (all, mut damos) = (nodes.all(), Damos::default());
            for second in 0..60 {
                let before = nodes.moved;
                damos.run(second * INTERVAL_US, (second + 1) * INTERVAL_US, &mut nodes);
                prop_assert_eq!(nodes.all(), all);
                for (before, after) in before.into_iter().zip(nodes.moved) {
                    prop_assert!((after - before) as u64 * bytes <= LIMIT + bytes);
                }
                for thread in &damos.threads {
                    let frames: usize = thread.monitor.regions().iter().map(Region::frames).sum();
                    prop_assert_eq!(frames, nodes.frames(thread.node));
                }
            }
        }
    }
}

//! The same policy value runs in both: every name that `compose` knows, in the simulated machine's step and in the
//! daemon's, from its view to its actuator. On the same readings both decide the same.
//!
//! | policy | decides | compared |
//! |---|---|---|
//! | `none` | nothing | that neither moves anything |
//! | `hemem…`, `memtis…` | page by page | the pages and where they go, each quantum |
//! | `tpp…` | fault by fault | whether a hint fault on the alternate tier promotes, each quantum |
//! | `damon` | the kernel, region by region | what it is told to do, with what the simulated threads do |

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::collections::BTreeMap;
use std::fs;

use pagemill_control::tier::actuators::{Log, tiering};
use pagemill_control::tier::{Tiers, daemon};
use pagemill_kernel::{Linux, settings::damon};
use pagemill_model::page::HUGE;
use pagemill_model::random::Random;
use pagemill_model::{Actuator, Bytes, Event, Nanos, TierDecision, TierOutcome, TierView};
use pagemill_policy::tier::compose::{self, Engine};
use pagemill_policy::tier::drive::{FaultDriven, Limits, Placement, Sampled};
use pagemill_policy::tier::kind::Terms;
use pagemill_policy::tier::live::Live;
use pagemill_policy::tier::track::damon::schemes::Damos;
use pagemill_policy::tier::track::{NodeMemory, Nodes, RegionTracker, Verdict};
use pagemill_policy::tier::{Load, Loads, Page, Tier};
use pagemill_sim::run;

/// Pages, of which the first half begins on the default tier.
const PAGES: u64 = 16;
/// Pages that a quantum may copy, and that each tier has room for.
const LIMIT: u64 = 6;
const ROOM: [u64; 2] = [1, 9];
const QUANTA: u64 = 200;

/// What is read in a quantum.
struct Readings {
    /// Of each page.
    samples: Vec<u64>,
    /// Of each tier, picoseconds.
    latency: [u64; 2],
    /// Of each tier, a second.
    reads: [u64; 2],
}

impl Readings {
    fn draw(random: &mut Random, quantum: u64) -> Self {
        // The hot pages change now and then.
        let samples = (0..PAGES).map(|page| random.below(1 + (page + quantum / 25) % 5));
        Self {
            samples: samples.collect(),
            latency: [(); 2].map(|()| (50 + random.below(300)) * 1000),
            reads: [(); 2].map(|()| 1 + random.below(1 << 30)),
        }
    }

    fn loads(&self) -> Loads {
        let load = |tier: usize| Load {
            latency_ns: self.latency[tier] as f64 / 1e3,
            reads_per_ns: self.reads[tier] as f64 / 1e9,
        };
        Loads { default: load(0), alternate: load(1) }
    }

    fn view(&self, quantum: u64, tiers: &[u64]) -> TierView {
        TierView {
            time: Nanos(quantum * 1_000_000_000),
            quantum: Some(quantum),
            length: Some(Nanos(1_000_000_000)),
            latency: Some(self.latency.to_vec()),
            reads: Some(self.reads.to_vec()),
            page_size: Some(Bytes(HUGE)),
            room: Some(ROOM.to_vec()),
            limit: Some(LIMIT),
            page: Some((0..PAGES).collect()),
            page_tier: Some(tiers.to_vec()),
            page_samples: Some(self.samples.clone()),
            ..TierView::default()
        }
    }
}

/// The machine below the daemon: pages go where they are sent.
struct Machine(Vec<u64>);

impl Actuator for Machine {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let (pages, to) = (decision.page.iter().flatten(), decision.to.iter().flatten());
        pages.zip(to).for_each(|(page, tier)| self.0[*page as usize] = *tier);
        TierOutcome { quantum: decision.quantum, ..TierOutcome::default() }
    }
}

/// What the simulated machine's policy moves: pages and their new tiers.
fn simulated(driver: &mut Sampled, readings: &Readings, tiers: &[u64]) -> BTreeMap<u64, u64> {
    for (page, count) in readings.samples.iter().enumerate() {
        (0..*count).for_each(|_| driver.sample(Page(page as u32)));
    }
    let tiers: Vec<Tier> =
        tiers.iter().map(|tier| [Tier::Default, Tier::Alternate][*tier as usize]).collect();
    let on = |tier| tiers.iter().filter(|held| **held == tier).count();
    let placement = Placement {
        tiers: &tiers,
        default_frames: on(Tier::Default) + ROOM[0] as usize,
        alternate_frames: on(Tier::Alternate) + ROOM[1] as usize,
    };
    let limits = Limits { pages: LIMIT as usize, page_bytes: HUGE as f64, quantum_ns: 1e9 };
    let read = (readings.loads(), readings.reads.iter().sum());
    let mut moved = BTreeMap::new();
    for swap in run::exchange(driver, read, placement, limits) {
        let to = u64::from(swap.from == Tier::Default);
        moved.insert(u64::from(swap.moved.0), to);
        moved.extend(swap.back.map(|page| (u64::from(page.0), 1 - to)));
    }
    moved
}

/// Whether a hint fault on a page of the alternate tier promotes it in the simulated machine.
fn promotes(driver: &mut FaultDriven, readings: &Readings, quantum: u64) -> bool {
    driver.observe(readings.loads());
    driver.fault(quantum * 1000, Tier::Alternate, 1.0, true) == Verdict::Promote
}

#[test]
fn every_policy_decides_the_same_in_the_simulated_machine_and_in_the_daemon() {
    let terms = Terms { pages: PAGES as usize, ..Terms::TEN_MS };
    for name in compose::names() {
        let mut policy = Live::under(&name, &terms).unwrap();
        let mut engine = run::policy(&name, &terms);
        let mut random = Random::new(7);
        let (mut written, mut moved, mut promoted) = (Vec::new(), 0, 0);
        let mut tiers: Vec<u64> = (0..PAGES).map(|page| u64::from(page >= PAGES / 2)).collect();
        for quantum in 0..QUANTA {
            let readings = Readings::draw(&mut random, quantum);
            let view = readings.view(quantum, &tiers);
            let mut actuator = Log::new(|event| written.push(event), Machine(tiers.clone()));
            let (decision, _) = daemon::carry_out(&view, &mut policy, &mut actuator, |_| {});
            let (pages, to) = (decision.page.clone(), decision.to.clone());
            let found: BTreeMap<u64, u64> =
                pages.into_iter().flatten().zip(to.into_iter().flatten()).collect();
            let expected = match &mut engine {
                Engine::Samples(driver) => simulated(driver, &readings, &tiers),
                Engine::Faults(driver) => {
                    let expected = promotes(driver, &readings, quantum);
                    assert_eq!(decision.kernel_promotes, Some(expected.into()), "{name} {quantum}");
                    promoted += u64::from(expected);
                    BTreeMap::new()
                }
                // The kernel's threads run, whatever is read.
                Engine::Regions(_) => {
                    assert_eq!(decision.kernel_promotes, Some(1), "{name} {quantum}");
                    BTreeMap::new()
                }
                Engine::Still => {
                    assert_eq!(decision.kernel_promotes, None, "{name} {quantum}");
                    BTreeMap::new()
                }
            };
            assert_eq!(found, expected, "{name} {quantum}");
            moved += found.len();
            found.into_iter().for_each(|(page, tier)| tiers[page as usize] = tier);
        }
        // What the daemon does is what it recorded, a decision and an outcome a quantum.
        assert_eq!(written.len() as u64, 2 * QUANTA, "{name}");
        let recorded = written.iter().filter_map(|event| match event {
            Event::TierDecision(decision) => decision.page.as_ref(),
            _ => None,
        });
        assert_eq!(recorded.flatten().count(), moved, "{name}");
        // That which never moves a page, or never holds, would be equal to anything.
        match &engine {
            Engine::Samples(_) => assert!(moved > 0, "{name}: {moved}"),
            Engine::Faults(_) => {
                let all = name == "tpp";
                assert!(if all { promoted == QUANTA } else { (20..180).contains(&promoted) });
            }
            Engine::Regions(_) | Engine::Still => assert_eq!(moved, 0, "{name}"),
        }
    }
}

/// Two nodes; a frame holds a page that is accessed always or never, or none.
struct Memory {
    frames: [Vec<Option<bool>>; 2],
    moved: u64,
}

impl Nodes for Memory {
    fn frames(&self, tier: Tier) -> usize {
        self.frames[tier as usize].len()
    }

    fn frame_bytes(&self) -> u64 {
        HUGE
    }

    fn make_old(&mut self, _: Tier, _: usize, _: u64) {}

    fn young(&mut self, tier: Tier, frame: usize, _: u64) -> bool {
        self.frames[tier as usize][frame] == Some(true)
    }

    fn memory(&self) -> NodeMemory {
        let default = &self.frames[0];
        let free = default.iter().filter(|page| page.is_none()).count();
        NodeMemory { free: free as u64 * HUGE, all: default.len() as u64 * HUGE }
    }

    fn migrate(&mut self, tier: Tier, frame: usize) {
        let free = self.frames[1 - tier as usize].iter().position(Option::is_none);
        if let Some(to) = free
            && let Some(page) = self.frames[tier as usize][frame].take()
        {
            self.frames[1 - tier as usize][to] = Some(page);
            self.moved += 1;
        }
    }
}

/// What the daemon writes for the kernel's thread of this number, by the end of the file's name.
fn written(thread: usize, file: &str) -> String {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/devices/system/memory/block_size_bytes", "8000000\n");
    put("sys/devices/system/node/node0/memory0/online", "1\n");
    put("sys/devices/system/node/node1/memory8/online", "1\n");
    let linux = Linux::at(root.path());
    // More than the kernel's own tiering moves is never asked for.
    let (watches, attributes) = tiering(&linux, Tiers([0, 1]), None, Bytes(u64::MAX)).unwrap();
    let thread = format!("/kdamonds/{thread}/");
    let mut writes = damon::writes(&watches, attributes).into_iter();
    writes.find(|(path, _)| path.contains(&thread) && path.ends_with(file)).unwrap().1
}

/// The daemon lets the kernel's threads decide; the simulated machine has threads of its own. They do what the kernel
/// is told to: which accesses count, how much a second, and up to where.
#[test]
fn damons_simulated_threads_do_what_the_kernel_is_told_to() {
    const FRAMES: usize = 1000;
    let number = |thread, file: &str| written(thread, file).parse::<u64>().unwrap();
    for (thread, action, hot) in [(0, "migrate_hot", true), (1, "migrate_cold", false)] {
        assert_eq!(written(thread, "schemes/0/action"), action);
        let pages = |count, page| vec![page; count];
        // Hot pages that may come to an empty node, or cold ones that may leave a full one. A node of which more than
        // a 25th is accessed is looked at all of the time and never acted on.
        let some = |at| Some((10_000..11_200).contains(&at));
        let frames = match hot {
            true => [pages(FRAMES, None), (0..48 * FRAMES).map(some).collect()],
            false => [pages(FRAMES, Some(false)), pages(2 * FRAMES, None)],
        };
        let mut memory = Memory { frames, moved: 0 };
        let mut threads = Damos::default();
        let mut most = 0;
        for second in 0..3000 {
            let before = memory.moved;
            threads.run(second * 1_000_000, (second + 1) * 1_000_000, &mut memory);
            most = most.max((memory.moved - before) * HUGE);
        }
        let quota = number(thread, "quotas/bytes");
        // And what one frame left over.
        assert!(most > 0 && most <= quota + HUGE, "{most} of {quota}");
        let NodeMemory { free, all } = memory.memory();
        let (reached, metric) = match hot {
            true => (all - free, "node_mem_used_bp"),
            false => (free, "node_mem_free_bp"),
        };
        assert_eq!(written(thread, "goals/0/target_metric"), metric);
        let (reached, aim) = (reached * 10_000 / all, number(thread, "goals/0/target_value"));
        // Up to there and no further, to half a hundredth of the node. Not all that is hot is found.
        let least = if hot { aim - aim / 10 } else { aim / 2 };
        assert!((least..=aim + 50).contains(&reached), "{action}: {reached} for {aim}");
        // Neither touches what the other is told of: a node whose pages are of the other sort stays as it is.
        let frames = match hot {
            true => [pages(FRAMES, None), pages(2 * FRAMES, Some(false))],
            false => [pages(FRAMES, Some(true)), pages(2 * FRAMES, None)],
        };
        let mut memory = Memory { frames, moved: 0 };
        Damos::default().run(0, 60_000_000, &mut memory);
        assert_eq!(memory.moved, 0, "{action}");
        let least = number(thread, "access_pattern/nr_accesses/min");
        let greatest = number(thread, "access_pattern/nr_accesses/max");
        assert_eq!((least > 0, greatest > 0), (hot, hot), "{action}");
    }
}

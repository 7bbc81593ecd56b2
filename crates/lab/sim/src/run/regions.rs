//! A quantum under the kernel's tiering by DAMON. Its threads have processors of their own; what they copy is traffic,
//! and costs the program nothing else. The kernel does not flush the TLB when it clears an accessed bit, so a bit may
//! stay clear that should not; here none does.

use pagemill_model::random::Random;
use pagemill_policy::tier::Tier;
use pagemill_policy::tier::track::{NodeMemory, Nodes, RegionTracker};

use super::{QUANTUM_NS, State};
use crate::frames::Frames;
use crate::pages::Pages;
use crate::workload::GIB;

const QUANTUM_US: u64 = (QUANTUM_NS / 1e3) as u64;

impl State<'_> {
    /// Lets the threads run; pages promoted and demoted.
    pub(super) fn by_regions(
        &mut self,
        driver: &mut dyn RegionTracker,
        now: u32,
        rates: &[f64],
    ) -> (usize, usize) {
        let Some(frames) = &mut self.frames else { return (0, 0) };
        let mut nodes = SimulatedNodes {
            frames,
            pages: &mut self.pages,
            random: &mut self.random,
            rates,
            now,
            frame_bytes: (self.setup.page_bytes() * self.setup.scale) as u64,
            default_bytes: (self.setup.machine.get("kernel.node_gib") * GIB) as u64,
            moved: [0; 2],
        };
        let begins_us = u64::from(now) * QUANTUM_US;
        driver.run(begins_us, begins_us + QUANTUM_US, &mut nodes);
        let [demoted, promoted] = nodes.moved;
        (promoted, demoted)
    }
}

struct SimulatedNodes<'a> {
    frames: &'a mut Frames,
    pages: &'a mut Pages,
    random: &'a mut Random,
    /// Reads of a page by class and quantum.
    rates: &'a [f64],
    now: u32,
    frame_bytes: u64,
    default_bytes: u64,
    /// Pages that left each tier.
    moved: [usize; 2],
}

impl Nodes for SimulatedNodes<'_> {
    fn frames(&self, tier: Tier) -> usize {
        self.frames.of(tier)
    }

    fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    fn make_old(&mut self, tier: Tier, frame: usize, now_us: u64) {
        if let Some(page) = self.frames.page(tier, frame) {
            self.frames.make_old(page, now_us);
        }
    }

    fn young(&mut self, tier: Tier, frame: usize, now_us: u64) -> bool {
        let Some(page) = self.frames.page(tier, frame) else { return false };
        let reads_per_us = self.rates[self.pages.class_of(page)] / QUANTUM_US as f64;
        self.frames.young(page, now_us, reads_per_us, self.random)
    }

    fn memory(&self) -> NodeMemory {
        NodeMemory { free: self.pages.free() as u64 * self.frame_bytes, all: self.default_bytes }
    }

    fn migrate(&mut self, tier: Tier, frame: usize) {
        let Some(page) = self.frames.migrate(tier, frame) else { return };
        let moved = match tier {
            Tier::Alternate => self.pages.promote(page, self.now),
            Tier::Default => self.pages.demote(page),
        };
        self.moved[tier as usize] += usize::from(moved);
    }
}

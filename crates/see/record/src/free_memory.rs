//! The free memory of the machine, by zone and order.

use std::time::Duration;

use anyhow::Result;
use pagemill_analysis::fragmentation::{self, Score};
use pagemill_kernel::memory::pagetypeinfo::PageTypes;
use pagemill_kernel::memory::zoneinfo::Zone;
use pagemill_kernel::{Kind, Linux, clock};
use pagemill_model::Order;
use pagemill_model::sums::sum;
use serde::{Deserialize, Serialize};

/// Zones with less than this share of all memory are too small to serve programs: their score says
/// nothing about what a program gets.
const SMALL: f64 = 0.01;

/// The machine's free memory at one moment.
#[derive(Clone, Debug)]
pub struct FreeMemory {
    /// When, since some moment before boot.
    pub time: Duration,
    /// Every zone with memory, in the kernel's order.
    pub zones: Vec<ZoneFreeMemory>,
    /// By mobility; absent without root.
    pub types: Option<PageTypes>,
}

/// One zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneFreeMemory {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// Entry k: free blocks of 2^k pages.
    pub blocks: Vec<u64>,
    /// Free pages on the lists of the processors, which are in no block.
    pub hidden: Option<u64>,
    /// Pages in the care of the page allocator.
    pub managed: Option<u64>,
}

impl FreeMemory {
    /// Looks at everything.
    ///
    /// # Errors
    /// A file of the kernel cannot be read, or is not of the form that is known.
    pub fn take(linux: &Linux) -> Result<Self> {
        let mut look = Self::quick(linux)?;
        look.types = match linux.pagetypeinfo() {
            Ok(types) => Some(types),
            Err(error) if matches!(error.kind(), Kind::Permission | Kind::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(look)
    }

    /// As [`FreeMemory::take`], without the mobilities, for which the kernel walks all of memory.
    ///
    /// # Errors
    /// As of [`FreeMemory::take`].
    pub fn quick(linux: &Linux) -> Result<Self> {
        let of = |zones: &[Zone], node: u32, name: &str| {
            zones.iter().find(|zone| zone.node == node && zone.zone == name).cloned()
        };
        let infos = linux.zoneinfo().ok();
        let zones = linux.buddyinfo()?.into_iter().map(|zone| {
            let info = infos.as_deref().and_then(|infos| of(infos, zone.node, &zone.zone));
            ZoneFreeMemory {
                hidden: info.as_ref().map(Zone::hidden),
                managed: info.map(|info| info.managed),
                node: zone.node,
                zone: zone.zone,
                blocks: zone.blocks,
            }
        });
        Ok(Self { time: clock::monotonic(), zones: zones.collect(), types: None })
    }

    /// Whether the zone holds more than a small share of all memory.
    pub fn is_large(&self, zone: &ZoneFreeMemory) -> bool {
        // A file that a user names may say anything.
        let all = sum(self.zones.iter().filter_map(|zone| zone.managed));
        zone.managed.is_none_or(|managed| managed as f64 >= SMALL * all as f64)
    }

    /// The free blocks of all large zones together.
    pub fn blocks(&self) -> Vec<u64> {
        let large = self.zones.iter().filter(|zone| self.is_large(zone));
        fragmentation::together(large.map(|zone| zone.blocks.as_slice()))
    }

    /// The unusable free space index of all large zones together.
    pub fn unusable(&self, order: Order) -> Score {
        fragmentation::unusable(&self.blocks(), order)
    }

    /// Orders that this kernel has: 0 to one less.
    pub fn orders(&self) -> usize {
        self.zones.iter().map(|zone| zone.blocks.len()).max().unwrap_or(0)
    }

    /// Free pages on the lists of the processors.
    pub fn hidden(&self) -> Option<u64> {
        self.zones.iter().map(|zone| zone.hidden).sum()
    }
}

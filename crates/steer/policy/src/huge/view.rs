//! What a policy may look at: figures of a region, of the program and of the machine.

use pagemill_model::named;

use super::account::Unit;
use super::action::Moment;
use super::trials::Trials;

/// A number and where it comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Figure {
    /// Nobody knows. Never to be read as zero.
    #[default]
    Absent,
    /// Seen on the machine that the decision is for.
    Measured(u64),
    /// Computed, assumed or taken from a profile of another run.
    Modelled(u64),
}

impl Figure {
    /// The number, unless it is absent.
    #[must_use]
    pub const fn value(self) -> Option<u64> {
        match self {
            Self::Absent => None,
            Self::Measured(value) | Self::Modelled(value) => Some(value),
        }
    }

    /// Whether it is known and not zero.
    #[must_use]
    pub fn some(self) -> bool {
        self.value().is_some_and(|value| value > 0)
    }
}

named! {
    /// Part of an address space, in the words of the profile.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Section {
        /// The program's text.
        Code = "code",
        /// The program's initialised and zeroed data.
        Data = "data",
        /// What `brk` grows.
        Heap = "heap",
        /// Everything else that is mapped.
        #[default]
        Mmap = "mmap",
    }
}

/// What the mechanisms cost on a machine, nanoseconds each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// A fault that brings a base page, warm memory.
    pub base: Figure,
    /// The same from cold memory.
    pub base_cold: Figure,
    /// A fault that brings 64 KiB at once, warm memory.
    pub medium: Figure,
    /// A fault that brings a huge page, warm memory and a free block.
    pub huge: Figure,
    /// The same from cold memory.
    pub huge_cold: Figure,
    /// Collapsing 512 base pages into a huge page.
    pub collapse: Figure,
    /// Putting a huge page of the pool in place.
    pub deliver: Figure,
    /// What a huge page allocation waits for when no block is free: compaction, reclaim.
    pub stall: Figure,
    /// What filling a whole region takes longer where another thread has provided it: it is in another cache, or in
    /// none.
    pub fetch: Figure,
    /// What a memory reference beyond the reach of the TLB takes longer on base pages.
    pub walk: Figure,
}

/// Everything a policy may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Why a decision is due.
    pub moment: Moment,
    /// First address of the region.
    pub address: u64,
    /// The section that it lies in.
    pub section: Section,
    /// Whether the region is on a huge page now.
    pub huge: bool,
    /// Whether the program asked for huge pages here (`MADV_HUGEPAGE`).
    pub advised: bool,
    /// CPUs online.
    pub cpus: u64,
    /// Cycles in a microsecond.
    pub mhz: u64,
    /// Regions that an action at [`Moment::Idle`] would be for.
    pub batch: u64,
    /// Base pages of the region that are present.
    pub present: Figure,
    /// Base pages that will have been touched in the end, those that are present included.
    pub expected: Figure,
    /// Base pages accessed in the last window of sampling.
    pub accessed: Figure,
    /// Present base pages that hold only zeros.
    pub zeros: Figure,
    /// Benefit of a huge page by the profile, in `unit`.
    pub profile_huge: Figure,
    /// Benefit of eager paging by the profile, in `unit`.
    pub profile_eager: Figure,
    /// Unit of the profile.
    pub unit: Unit,
    /// Free blocks of order 9 and above.
    pub free_huge: Figure,
    /// Huge pages in the pool.
    pub pool: Figure,
    /// Huge pages that were taken from the pool of late.
    pub pool_used: Figure,
    /// Load average of the last minute, in hundredths.
    pub load: Figure,
    /// Unusable free space index at order 9, in thousandths.
    pub unusable: Figure,
    /// Share of memory in use, in thousandths.
    pub used: Figure,
    /// Share of the process's resident memory that was never touched, in thousandths.
    pub bloat: Figure,
    /// Chance that fresh memory is cold, in thousandths.
    pub cold: Figure,
    /// How fast the process's memory grows, bytes a millisecond.
    pub growth: Figure,
    /// What the mechanisms cost here.
    pub costs: Costs,
    /// What trying them on this program has cost.
    pub trials: Trials,
}

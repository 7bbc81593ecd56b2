//! DAMON, as the kernel tiers memory by it: a [`monitor`] of each node's regions, and the [`schemes`] that act on them.

use super::RegionTracker;
use crate::tier::kind::{PageSize, TrackerKind, Watches};

pub mod monitor;
pub mod schemes;

/// `damon`.
pub const KIND: TrackerKind = TrackerKind {
    name: "damon",
    watches: Watches::AccessedBits(|| Box::<schemes::Damos>::default() as Box<dyn RegionTracker>),
    page: PageSize::Base,
    splits: false,
};

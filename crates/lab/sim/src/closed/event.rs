//! Events: what happens, and to whom.

/// What happens, in the upper four bits of an event; to whom, in the others.
pub(super) mod what {
    /// An operation issues: slot and core.
    pub const ISSUE: u32 = 0;
    /// A request reaches its channel.
    pub const ARRIVE: u32 = 1;
    /// The channel has sent the line.
    pub const DATA: u32 = 2;
    /// The line has come.
    pub const DONE: u32 = 3;
    /// A channel may commit.
    pub const WAKE: u32 = 4;
    /// A page copier reads.
    pub const COPY: u32 = 5;
    /// A walk that hit the caches ends: slot and core.
    pub const WALKED: u32 = 6;
    /// A line has come from the L2 cache: slot and core.
    pub const NEAR: u32 = 7;
}

pub(super) const CORES: u32 = 12;

pub(super) const fn of(kind: u32, core: u32, slot: u32) -> u32 {
    kind << 28 | slot << CORES | core
}

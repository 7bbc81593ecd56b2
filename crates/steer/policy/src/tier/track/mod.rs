//! Who is hot: from hint faults ([`tpp`]), accessed bits of regions ([`damon`]), sampled counters ([`hemem`]) or a
//! histogram of sampled counters ([`memtis`]), which also says which huge pages to split ([`split`]).

use super::{Page, Tier};

pub mod damon;
pub mod hemem;
pub mod memtis;
pub mod split;
pub mod tpp;

/// A tracker that counts sampled loads. A page's *heat* is its count.
pub trait Counter: std::fmt::Debug {
    /// Counts one sampled load. Pages that are not tracked are ignored.
    fn sample(&mut self, page: Page);

    /// A page's count.
    fn heat(&self, page: Page) -> u32;

    /// Tracks pages `0..pages` at least.
    fn grow(&mut self, pages: usize);

    /// Forgets what was seen of a page.
    fn forget(&mut self, page: Page);

    /// The least count that deserves a default tier of `capacity` pages.
    fn hot(&self, capacity: usize) -> u32;

    /// Sets a page's count, after a huge page was split. A tracker that splits none leaves it.
    fn set(&mut self, _page: Page, _count: u32) {}
}

/// What a fault leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the default tier.
    Promote,
    /// To the alternate tier.
    Demote,
    /// Nowhere.
    Stay,
}

/// One hint fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When it happened, in milliseconds of the source's clock.
    pub now_ms: u64,
    /// Where the page is.
    pub tier: Tier,
    /// Time since the page was stamped.
    pub latency_ms: f64,
    /// Whether the default tier has plenty of free frames (`pgdat_free_space_enough`).
    pub room: bool,
    /// Whether the default tier answers more slowly than the alternate one; ignored without Colloid.
    pub overloaded: bool,
}

/// A tracker that decides fault by fault.
pub trait FaultTracker: std::fmt::Debug {
    /// Whether the scanner should stamp pages of this tier.
    fn stamps(&self, tier: Tier) -> bool;

    /// Decides one hint fault.
    fn fault(&mut self, fault: Fault) -> Verdict;
}

/// Memory of a node, bytes.
#[derive(Clone, Copy, Debug)]
pub struct NodeMemory {
    /// What is free of it.
    pub free: u64,
    /// All of it.
    pub all: u64,
}

/// The two nodes, as a tracker of their accessed bits sees and changes them.
pub trait Nodes {
    /// Frames of a tier.
    fn frames(&self, tier: Tier) -> usize;
    /// Bytes of a frame.
    fn frame_bytes(&self) -> u64;
    /// Clears the accessed bit of the page in a frame.
    fn make_old(&mut self, tier: Tier, frame: usize, now_us: u64);
    /// Whether a frame holds a page whose accessed bit is set.
    fn young(&mut self, tier: Tier, frame: usize, now_us: u64) -> bool;
    /// Memory of the default tier's node.
    fn memory(&self) -> NodeMemory;
    /// Moves the page of a frame to the other tier, if there is one and room for it.
    fn migrate(&mut self, tier: Tier, frame: usize);
}

/// A tracker of the accessed bits of both nodes' frames, which moves pages in its own time.
pub trait RegionTracker: std::fmt::Debug {
    /// Lets it do what it does from one time to another, in microseconds.
    fn run(&mut self, from_us: u64, until_us: u64, nodes: &mut dyn Nodes);
}

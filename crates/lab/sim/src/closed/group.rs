//! Groups of cores, and what each does.

/// Page table reads of a window core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walks {
    /// Part of operations that need a page walk.
    pub part: f64,
    /// Part of walks whose last line comes from memory.
    pub miss: f64,
    /// How long the others take, in nanoseconds.
    pub hit_ns: f64,
    /// Part of the lines from memory that lie on the default tier.
    pub default_share: f64,
}

impl Walks {
    /// No walks.
    pub const NONE: Self = Self { part: 0.0, miss: 0.0, hit_ns: 0.0, default_share: 1.0 };
}

/// What a core does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CoreKind {
    /// Operations of one read each, retired in order.
    Window {
        /// Operations in flight.
        window: usize,
        /// Least time between two operations entering the window, in nanoseconds.
        front_ns: f64,
        /// Time between entering and the read's issue, in nanoseconds.
        issue_ns: f64,
        /// Part of operations that begin with a mispredicted branch.
        mispredicted: f64,
        /// What that costs, in nanoseconds.
        penalty_ns: f64,
        /// Page table reads.
        walks: Walks,
        /// Lines of a read, fetched side by side; it ends with the last.
        lines: f64,
    },
    /// Consecutive lines, with the streamer ahead of them (see [`crate::stream`]).
    Stream {
        /// Lines in the reorder buffer.
        window: usize,
        /// Fill buffers.
        buffers: usize,
        /// Lines the streamer runs ahead.
        distance: usize,
        /// Entries of the superqueue.
        queue: usize,
        /// Time a fetched line takes from the L2 cache, in nanoseconds.
        near_ns: f64,
        /// Lines between a read and the write-back of what it brought: the size of the L2 cache.
        lag: u64,
    },
    /// Pages copied between the tiers, both ways, at a fixed rate of lines a nanosecond each way.
    Copy {
        /// Lines a nanosecond, each way.
        lines_per_ns: f64,
    },
}

/// Cores that do the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// How many.
    pub cores: usize,
    /// What each does.
    pub kind: CoreKind,
    /// Part of its reads that the default tier serves.
    pub default_share: f64,
    /// Lines written back for each line read.
    pub writes_per_read: f64,
}

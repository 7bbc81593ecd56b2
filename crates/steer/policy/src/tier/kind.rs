//! What a tracker or a placer says of itself, and what it is made under. The rows stand in [`super::compose`].

use super::place::placer::Placer;
use super::track::{Counter, FaultTracker, RegionTracker};

/// A kind of tracker.
#[derive(Debug)]
pub struct TrackerKind {
    /// Its name.
    pub name: &'static str,
    /// What it sees of the program.
    pub watches: Watches,
    /// The pages that the published system moves.
    pub page: PageSize,
    /// Whether it splits huge pages whose heat lies in few places.
    pub splits: bool,
}

/// What a tracker sees of a program, and what makes one.
#[derive(Clone, Copy, Debug)]
pub enum Watches {
    /// Nothing: no page moves.
    Nothing,
    /// Hint faults, which this decides one by one.
    HintFaults(fn(HintFaultSettings) -> Box<dyn FaultTracker>),
    /// Accessed bits of the nodes' frames, by which this moves pages.
    AccessedBits(fn() -> Box<dyn RegionTracker>),
    /// Sampled loads, which this counts.
    Samples(fn(&Terms) -> Box<dyn Counter>),
}

/// A size of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The processor's smallest.
    Base,
    /// What one entry of a page middle directory maps.
    Huge,
}

/// A kind of placer.
#[derive(Debug)]
pub struct PlacerKind {
    /// What follows the `+`; empty for the one that a tracker's name alone stands for.
    pub name: &'static str,
    /// Makes one.
    pub make: fn(&Terms) -> Box<dyn Placer>,
    /// Whether it needs the tiers' latencies.
    pub balances: bool,
    /// Whether it goes with hint faults, too.
    pub by_faults: bool,
}

/// The kernel's settings of promotion by hint faults.
#[derive(Clone, Copy, Debug)]
pub struct HintFaultSettings {
    /// `hot_threshold_ms`: the reference of the threshold.
    pub threshold_ms: f64,
    /// Pages that may be promoted in a second (`promote_rate_limit_MBps`).
    pub pages_per_second: u64,
    /// Time between adaptations (`scan_period_max`), in milliseconds.
    pub adapt_ms: u64,
    /// Whether pages of the default tier are stamped too and leave it when it is overloaded.
    pub colloid: bool,
}

/// What a policy cannot choose: how many pages there are, how long a quantum is, how exact the readings are.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Pages to begin with.
    pub pages: usize,
    /// Samples between two halvings of MEMTIS's counts.
    pub cooling: u64,
    /// Weight of a quantum in the smoothed loads, where samples are counted.
    pub weight: f64,
    /// Latencies this close, as a part of the default tier's, are equal to the proportional step.
    pub delta: f64,
    /// The same for the binary search.
    pub search_delta: f64,
    /// The binary search calls an interval of shares below this closed.
    pub search_epsilon: f64,
    /// The kernel's settings for hint faults; `colloid` is the policy's to say.
    pub kernel: HintFaultSettings,
    /// Weight of a quantum in the smoothed latencies, where hint faults decide.
    pub fault_weight: f64,
}

impl Terms {
    /// Quanta of a second or so of a live machine. The ports smooth by a sixteenth each 10 ms: over a second that
    /// average would have forgotten nearly all that was before. What a probe sees varies by some percent. The paper's
    /// hundredth of the share is finer than the heat of one page of 2 MiB in all but large programs: a shift that no
    /// page fits into would be asked for forever. The kernel moves pages at its own pace.
    pub const LIVE: Self = Self {
        pages: 0,
        cooling: 1 << 20,
        weight: 0.5,
        delta: 0.05,
        search_delta: 0.05,
        search_epsilon: 0.1,
        kernel: HintFaultSettings {
            threshold_ms: 1000.0,
            pages_per_second: u64::MAX,
            adapt_ms: 1000,
            colloid: false,
        },
        // That of the published module when it sleeps between readings.
        fault_weight: 0.5,
    };

    /// Quanta of 10 ms, read without noise: the constants of the paper and of the HeMem port.
    pub const TEN_MS: Self =
        Self { weight: 0.0625, delta: 0.01, search_epsilon: 0.01, ..Self::LIVE };
}

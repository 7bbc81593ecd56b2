//! Placement on memory tiers, as it is recorded: what the policy saw, what it decided, what came of it.
//!
//! Terms: a *tier* is a number, 0 the one with the lower unloaded latency (default), 1 the other
//! (alternate). A *page* here is what the daemon moves as one, `page_bytes` of a process's memory; it
//! has a number for as long as it is tracked. A *quantum* is the time between two decisions.
//!
//! The policy reads nothing but [`TierView`]s, in whole units, so that replaying a recording gives it
//! bit for bit what it saw live.

use crate::dataset::row;
use crate::units::{Bytes, Nanos};

row! {
    /// What a placement policy saw in one quantum.
    ///
    /// Lists of tiers have the default tier first; those of pages run in parallel and name only
    /// pages that are new, that changed tier or that were seen accessed since the view before.
    pub struct TierView in "tiers" {
        /// Moment of the view, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// Number of the quantum, from 0.
        quantum: Option<u64> = "quantum",
        /// Length of the quantum, ns.
        length: Option<Nanos> = "quantum_ns",
        /// Where the latencies come from: `uncore`, `amd-l3`, `probe`, `replay` or `none`.
        source: Option<String> = "latency_source",
        /// Mean time of a read in each tier, picoseconds, queueing included.
        latency: Option<Vec<u64>> = "latency_ps",
        /// Lower end of the 95 % interval of each latency, picoseconds.
        latency_low: Option<Vec<u64>> = "latency_low_ps",
        /// Upper end of the 95 % interval of each latency, picoseconds.
        latency_high: Option<Vec<u64>> = "latency_high_ps",
        /// Reads that each tier served a second, where the source counts them.
        reads: Option<Vec<u64>> = "reads_per_s",
        /// Bytes of one page.
        page_size: Option<Bytes> = "page_bytes",
        /// Pages that each tier had room for.
        room: Option<Vec<u64>> = "room_pages",
        /// Pages that could be copied in this quantum.
        limit: Option<u64> = "limit_pages",
        /// Numbers of the pages that this row says something about.
        page: Option<Vec<u64>> = "page",
        /// The process of each.
        page_pid: Option<Vec<u64>> = "page_pid",
        /// The first address of each.
        page_address: Option<Vec<u64>> = "page_address",
        /// The tier of each.
        page_tier: Option<Vec<u64>> = "page_tier",
        /// How often each was seen accessed since the view before.
        page_samples: Option<Vec<u64>> = "page_samples",
        /// Numbers of the pages that are tracked no more; a number may be given again later.
        gone: Option<Vec<u64>> = "gone",
        /// CPU time of the daemon so far, ns.
        cpu: Option<Nanos> = "daemon_cpu_ns",
    }
}

row! {
    /// What the policy decided in one quantum.
    pub struct TierDecision in "decisions" {
        /// Moment of the view that it follows from, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// Number of the quantum.
        quantum: Option<u64> = "quantum",
        /// The policy, such as `hemem+colloid`.
        policy: Option<String> = "policy",
        /// Part of the reads that the default tier served, millionths.
        share: Option<u64> = "share_ppm",
        /// The part that it should serve, millionths, where the policy balances.
        aim: Option<u64> = "aim_ppm",
        /// Pages to move, in order.
        page: Option<Vec<u64>> = "page",
        /// The tier that each should move to.
        to: Option<Vec<u64>> = "to_tier",
        /// 1 if the kernel may promote by hint faults, 0 if it may not; absent where pages are named.
        kernel_promotes: Option<u64> = "kernel_promotes",
        /// Why, in words.
        why: Option<String> = "why",
    }
}

row! {
    /// What came of a decision.
    pub struct TierOutcome in "outcomes" {
        /// When the decision had been carried out, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// Number of the quantum.
        quantum: Option<u64> = "quantum",
        /// 1 if pages were moved, 0 for a dry run.
        applied: Option<u64> = "applied",
        /// How: `move-pages`, `damos`, `kernel`, `interleave`, or `none` in a dry run.
        actuator: Option<String> = "actuator",
        /// The pages of the decision, in its order.
        page: Option<Vec<u64>> = "page",
        /// Bytes of each that moved, or would have in a dry run.
        moved: Option<Vec<u64>> = "page_moved_bytes",
        /// What kept each from moving: 0 nothing, 1 the rate limit, 2 shared, 3 gone or locked since,
        /// 4 no room, 5 busy, 6 anything else.
        kept: Option<Vec<u64>> = "page_kept",
        /// Bytes that came to the default tier.
        promoted: Option<Bytes> = "promoted_bytes",
        /// Bytes that left it.
        demoted: Option<Bytes> = "demoted_bytes",
        /// Bytes that went back to where they had come from within the last ten quanta.
        ping_pong: Option<Bytes> = "ping_pong_bytes",
        /// How long it took, ns.
        took: Option<Nanos> = "took_ns",
    }
}

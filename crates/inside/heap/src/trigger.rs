//! When to compact, and whether it pays: pure decisions over numbers that others measure.
//!
//! Terms: a **trigger** is a reason to begin a pass; the **gate** compares what the pass is expected to
//! save with what it is expected to cost; both are in nanoseconds of CPU time, as in CBMM (USENIX
//! ATC 2022, section 3.1), by one exchange rate for memory:
//!
//! ```text
//!  value = bytes x seconds that they stay saved x NS_PER_GIB_SECOND / 2^30
//!  run if a trigger holds, the pause after the last pass is over, value >= cost x reluctance,
//!      and the CPU share stays within its bound
//! ```
//!
//! Beside a program at work up to half of the share is left over, if a pass over all that could be merged would need
//! it: what is merged then is soon freed or filled again, and what is merged when the program rests stays. While it
//! rests, its heap as it was and its own CPU time low, [`REST_SHARE`] of the time is added to the share, and a pass
//! waits while the program works for a moment, and ends if its heap changes. Once it has been idle for [`SETTLED_NS`],
//! how short-lived its memory was at work says nothing any more: what is saved is expected to stay so for
//! [`LIFETIME_PRIOR_S`] at least, and the work for it, for which nobody waits, costs a part of what it does at work.
//!
//! How long bytes stay saved is learned from passes; and what could have been saved since the last pass, and was not,
//! for so long is expected to be there for as long again: a heap that a burst of short-lived garbage has made careful
//! is not left fragmented for ever, and what waiting costs is never more than a few times what a pass would (as in ski
//! rental). Pressure (PSI, cgroup) multiplies the value; a request passes every gate but "nothing to do". After a pass
//! that gained less than it cost the pause doubles; a good one halves it. It is the shortest again as soon as there is
//! much more to save than the last pass left. Passes that began when the program had settled have a pause of their own,
//! and are judged by what they were begun for: what passes gain in the middle of the program's work says nothing of a
//! heap that does not change any more.
//!
//! Properties that always hold (tested): a request with anything to gain runs; more gain or less
//! cost never turns "run" into "gated"; pressure never turns "run" into "gated"; neither does waiting, nor that the
//! program rests; poor passes make the next pause longer, up to a bound.

use crate::stats::Waits;

/// What memory is worth: nanoseconds of one CPU for a GiB held for a second. Public clouds price a
/// vCPU like 7.5 GiB (Google Compute Engine N2 on demand: $0.031611 a vCPU hour, $0.004237 a GiB hour).
pub const NS_PER_GIB_SECOND: u64 = 1_000_000_000 * 10 / 75;

/// How long memory is expected to stay saved before anything was measured. A heap that is
/// fragmented now was so for a while; a minute is short for a server and long for a script.
pub const LIFETIME_PRIOR_S: u32 = 60;

/// The longest that is expected.
const LIFETIME_MAX_S: u32 = 3600;

/// Share of the process's CPU time that compaction may use without pressure, in thousandths, beyond
/// [`BURST_NS`]. The bound on server CPU is 1.15 in all, helper, un-merging and faults included.
pub const CPU_SHARE: u64 = 50;

/// The same where `ksmd` merges, its CPU time included: a fifth of the work is the heap's own.
pub const KSM_SHARE: u64 = 100;

/// Share of the time since the heap started that compaction may use in addition, in thousandths of one CPU: an
/// idle process uses no CPU itself, and its memory is worth as much.
pub const TIME_SHARE: u64 = 4;

/// CPU time that compaction may use in a process that has used little itself.
pub const BURST_NS: u64 = 15_000_000;

/// Share of the time for which the program has rested that compaction may use in addition, in thousandths of one CPU:
/// as much as it takes while it pauses between its slices for as long as they last. So nothing that is worth merging
/// waits for a share of CPU time that a resting program does not earn.
pub const REST_SHARE: u64 = 500;

/// Share of one CPU, in thousandths, up to which a program whose heap does not change rests: a server without clients
/// that looks at its clock ten times a second uses five.
pub const REST_CPU: u64 = 50;

/// Fragmentation score (thousandths of resident bytes that are not live) from which on a pass is
/// considered. An allocator without churn stands at 100 to 200.
pub const SCORE: u32 = 250;

/// Score that is enough when the program is idle or memory is short.
pub const SCORE_LOW: u32 = 80;

/// The same when the program has settled.
pub const SCORE_SETTLED: u32 = 40;

/// Part of the live bytes by which these may differ in a program without activity.
const SAME_PART: usize = 1024;

/// Without activity for this long, the program counts as idle.
pub const IDLE_NS: u64 = 100_000_000;

/// Without activity for this long, it has settled: what lives now will live on.
pub const SETTLED_NS: u64 = 1_000_000_000;

/// PSI "some" share (thousandths of wall time stalled on memory) that counts as pressure; 15 % in
/// two seconds is the level at which `systemd-oomd` and `oomd` begin to look.
pub const PSI: u32 = 150;

/// Share of the cgroup's limit (thousandths) from which on memory counts as short.
pub const CGROUP: u32 = 900;

/// Pause between two passes that gain, and the longest after passes that do not.
pub const PAUSE_NS: u64 = 100_000_000;
/// See [`PAUSE_NS`].
pub const PAUSE_MAX_NS: u64 = 60_000_000_000;

/// Bytes of free pages that are given back without waiting for a pass.
const RELEASE_BYTES: u64 = 2 << 20;

/// What a pass must be expected to save without pressure: less is not worth a look at the whole heap.
const LEAST_BYTES: u64 = 256 << 10;

/// Bytes by which there must be more to save than the last pass left for the pause after it to be cut short.
const RENEWED_BYTES: u64 = 4 << 20;

/// Expected cost from which on a pass teaches how dear passes are.
const TELLING_NS: u64 = 5_000_000;

/// Times that the value must exceed the cost without any pressure: an estimate may be off by two.
const RELUCTANCE: u64 = 2;

/// How long a fork may take with compaction, in tenths of what it would take without.
const FORK_TENTHS: u64 = 13;

/// What mappings may cost a fork whatever it would take without, nanoseconds: less than a host takes a CPU away for.
const FORK_MORE_NS: u64 = 4_000_000;

/// The part of the time between two forks that this may be: a hundredth.
const FORK_SHARE: u64 = 100;

/// Mappings that are always allowed: under a millisecond a fork.
const FORK_LEAST: usize = 1024;

/// What CPU time costs a settled program, as a part of what it costs one at work: nobody waits for it, and what is
/// merged poorly to save some stays as it is for as long as the program rests.
const SETTLED_COST: u64 = 16;

/// What pressure multiplies the value of memory by.
const URGENCY: u64 = 16;

/// Work a page until it is measured, by what is done: measured on Linux 6.18, Zen 5.
pub mod cost {
    /// Giving a free page back, nanoseconds.
    pub const RELEASE_NS: u64 = 500;
    /// Merging a page by remapping units of eight, refault included, nanoseconds.
    pub const REMAP_NS: u64 = 1_600;
    /// Offering a page to `ksmd`, nanoseconds: planning and filling it.
    pub const OFFER_NS: u64 = 1_600;
    /// What `ksmd` then takes for it, nanoseconds: two looks and a merge, where it scans little else.
    pub const KSMD_NS: u64 = 6_000;
    /// What a mapping costs at each fork, nanoseconds (Redis, 2,000 to 5,000 mappings made by compaction, half of them
    /// of anonymous pages between two aliases: as much as 7 to 12 private pages; in a small program 0.33 us an alias
    /// and 0.53 what lies between).
    pub const FORK_MAPPING_NS: u64 = 600;
    /// What one more range adds: it splits a mapping in two, unless a neighbour is merged too, and its pages need not
    /// be copied any more.
    pub const FORK_RANGE_NS: u64 = 600;
    /// What a private page costs at each fork, nanoseconds (Redis on glibc's malloc, 84,000 pages: 4.5 ms).
    pub const FORK_PAGE_NS: u64 = 56;
}

/// Why a pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassCause {
    /// The user asked.
    Request,
    /// The cgroup nears its limit.
    Cgroup,
    /// Tasks stall on memory.
    Psi,
    /// The program is idle.
    Idle,
    /// The heap is fragmented.
    Score,
}

/// Why none begins although a trigger holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// There is nothing to give back or merge.
    NothingToGain,
    /// The pause after the last pass is not over.
    Resting,
    /// The memory is not worth the work.
    TooDear,
    /// Compaction has used its share of the process's CPU time.
    CpuShare,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Begin a pass.
    Run {
        /// The strongest trigger.
        why: PassCause,
        /// Whether memory is short: give everything back at once.
        urgent: bool,
    },
    /// A trigger holds, but no pass begins.
    Gated {
        /// The strongest trigger.
        why: PassCause,
        /// What stands against it.
        by: Gate,
    },
    /// No trigger holds.
    Untriggered,
}

/// What is known when the decision is made. Absent figures are 0 (limits: `u64::MAX`).
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// Monotonic clock.
    pub now_ns: u64,
    /// The user asked for a pass that has not run yet.
    pub request: bool,
    /// [`crate::compact::Scan::score`].
    pub score: u32,
    /// Time since the program last refilled or flushed a cache.
    pub idle_ns: u64,
    /// PSI "some", in thousandths of the last two seconds.
    pub psi: u32,
    /// What the cgroup is charged.
    pub cgroup_usage: u64,
    /// What it may be charged.
    pub cgroup_limit: u64,
    /// Bytes that giving pages back and merging are expected to save.
    pub gain_bytes: u64,
    /// CPU time that this is expected to take.
    pub cost_ns: u64,
    /// The same for all that could be merged, where a pass may be a part of it.
    pub whole_ns: u64,
    /// Time since the heap started.
    pub age_ns: u64,
    /// CPU time of the process so far.
    pub process_ns: u64,
    /// Time for which the program has rested so far, by [`RestTime`].
    pub rest_ns: u64,
    /// CPU time of compaction so far.
    pub spent_ns: u64,
    /// Share of the process's CPU time that it may use: [`CPU_SHARE`] or [`KSM_SHARE`].
    pub share: u64,
}

/// Whether a heap is nearly as it was, by live and mapped bytes: what a program takes and gives back when a timer rings
/// changes nothing that matters.
pub fn is_same(was: (usize, usize), is: (usize, usize)) -> bool {
    was.1 == is.1 && was.0.abs_diff(is.0) <= was.0 / SAME_PART
}

/// For how long the program has rested, by looks at its CPU time and at its heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestTime {
    at_ns: u64,
    own_ns: u64,
    total_ns: u64,
}

impl RestTime {
    /// Looks at the clock, the program's own CPU time (compaction's not included) and how long the heap has been as it
    /// is; whether the program has rested since the last look.
    pub fn observe(&mut self, now_ns: u64, own_ns: u64, idle_ns: u64) -> bool {
        let elapsed = now_ns.saturating_sub(self.at_ns);
        let used = own_ns.saturating_sub(self.own_ns);
        let first = self.at_ns == 0;
        (self.at_ns, self.own_ns) = (now_ns, own_ns);
        let rests = !first && idle_ns >= IDLE_NS && used <= elapsed / 1000 * REST_CPU;
        if rests {
            self.total_ns = self.total_ns.saturating_add(elapsed.min(idle_ns));
        }
        rests
    }

    /// For how long, in all.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }
}

/// What earlier passes taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// When the last pass ended; 0 if there was none.
    ended_ns: u64,
    /// How long to rest after it, and how long when the program has settled, by passes of such a program alone.
    pause_ns: u64,
    settled_pause_ns: u64,
    /// Bytes that it left although they could be expected to be saved.
    left_bytes: u64,
    /// How long saved bytes stay saved, in seconds, as passes taught.
    lifetime_s: u32,
    /// Bytes that could have been saved since the last pass, times the milliseconds for which they could.
    unsaved: u128,
    /// Cost of the passes so far over their estimates, in thousandths.
    cost_ratio: u32,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// Nothing learned yet.
    pub const fn new() -> Self {
        Self {
            ended_ns: 0,
            pause_ns: PAUSE_NS,
            settled_pause_ns: PAUSE_NS,
            left_bytes: 0,
            lifetime_s: LIFETIME_PRIOR_S,
            unsaved: 0,
            cost_ratio: 1000,
        }
    }

    /// Learns that `bytes` could have been saved for `elapsed_ns` and were not.
    pub fn waited(&mut self, bytes: u64, elapsed_ns: u64) {
        let more = u128::from(bytes) * u128::from(elapsed_ns / 1_000_000);
        self.unsaved = self.unsaved.saturating_add(more);
    }

    /// Learns from a pass that ended: for how long the program had been idle when it began, bytes that it saved, what
    /// it took and what had been expected.
    pub fn record(
        &mut self,
        now_ns: u64,
        idle_ns: u64,
        gained: u64,
        cost_ns: u64,
        expected_ns: u64,
    ) {
        let settled = idle_ns >= SETTLED_NS;
        let cost = if settled { cost_ns / SETTLED_COST } else { cost_ns };
        let poor = self.worth(gained, idle_ns) < u128::from(cost);
        self.unsaved = 0;
        let next = |pause_ns: u64| {
            let pause_ns = if poor { pause_ns * 2 } else { pause_ns / 2 };
            pause_ns.clamp(PAUSE_NS, PAUSE_MAX_NS)
        };
        self.pause_ns = next(self.pause_ns);
        if settled {
            self.settled_pause_ns = next(self.settled_pause_ns);
        }
        self.ended_ns = now_ns;
        // A pass with next to nothing to do costs a look at the heap; that says nothing of merging.
        if expected_ns >= TELLING_NS {
            let ratio = (cost_ns.saturating_mul(1000) / expected_ns).clamp(100, 10_000) as u32;
            self.cost_ratio = (self.cost_ratio * 3 + ratio) / 4;
        }
    }

    /// Learns how long memory stays saved: of `saved` bytes, `kept` were still so `elapsed_ns` later.
    pub fn survived(&mut self, saved: u64, kept: u64, elapsed_ns: u64) {
        let elapsed_ms = elapsed_ns / 1_000_000;
        if saved == 0 || elapsed_ms == 0 {
            return;
        }
        let lost = saved.saturating_sub(kept).max(1);
        let lifetime_ms = u128::from(elapsed_ms) * u128::from(saved) / u128::from(lost);
        let lifetime = lifetime_ms.div_ceil(1000).clamp(1, u128::from(LIFETIME_MAX_S)) as u32;
        self.lifetime_s = (self.lifetime_s + lifetime).div_ceil(2);
    }

    /// How long `bytes` saved now, the program having been idle for `idle_ns`, are expected to stay saved, in seconds.
    pub fn lifetime_s(&self, bytes: u64, idle_ns: u64) -> u32 {
        (self.byte_ms(bytes, idle_ns) / (u128::from(bytes.max(1)) * 1000)) as u32
    }

    /// What saving `bytes` now is expected to be worth, in nanoseconds of CPU time.
    fn worth(&self, bytes: u64, idle_ns: u64) -> u128 {
        price(self.byte_ms(bytes, idle_ns))
    }

    /// Bytes times the milliseconds for which they are expected to stay saved.
    fn byte_ms(&self, bytes: u64, idle_ns: u64) -> u128 {
        let for_seconds = |seconds: u32| u128::from(bytes) * u128::from(seconds) * 1000;
        let waited = self.unsaved.min(for_seconds(LIFETIME_MAX_S));
        let least = if idle_ns >= SETTLED_NS { LIFETIME_PRIOR_S } else { 0 };
        for_seconds(self.lifetime_s.max(least)).max(waited)
    }

    /// Learns what the pass that just ended left: bytes that a scan still expects to be saved.
    pub fn left(&mut self, bytes: u64) {
        self.left_bytes = bytes;
    }

    /// When the next pass may begin, if it is expected to save `gain_bytes` and the program has been idle for
    /// `idle_ns`. However poor the last one was, twice of what it left, and more, is a new situation.
    pub fn rested_at(&self, gain_bytes: u64, idle_ns: u64) -> u64 {
        let renewed = gain_bytes >= self.left_bytes.saturating_mul(2).saturating_add(RENEWED_BYTES);
        let pause_ns = match idle_ns {
            _ if renewed => PAUSE_NS,
            0..SETTLED_NS => self.pause_ns,
            _ => self.pause_ns.min(self.settled_pause_ns),
        };
        if self.ended_ns == 0 { 0 } else { self.ended_ns.saturating_add(pause_ns) }
    }
}

/// What bytes times milliseconds are worth, in nanoseconds of CPU time.
fn price(byte_ms: u128) -> u128 {
    (byte_ms.saturating_mul(u128::from(NS_PER_GIB_SECOND)) / 1000) >> 30
}

/// Bytes that a microsecond of work must save for the time they stay saved, where `gain_bytes` can be saved and the
/// program has been idle for `idle_ns`: the price that [`crate::compact::Settings::work_price`] wants.
pub fn work_price(history: &History, gain_bytes: u64, idle_ns: u64, urgent: bool) -> u32 {
    let lifetime_s = history.lifetime_s(gain_bytes, idle_ns);
    let per_us = (1u64 << 30) * 1000 / NS_PER_GIB_SECOND / u64::from(lifetime_s);
    let part = match idle_ns {
        _ if urgent => URGENCY,
        0..SETTLED_NS => 1,
        _ => SETTLED_COST,
    };
    (per_us / part).clamp(1, 1 << 16) as u32
}

/// The expected CPU time of a pass, from a scan.
pub fn expected_cost(releasable_pages: u64, mergeable_pages: u64, merge_ns: u64) -> u64 {
    releasable_pages * cost::RELEASE_NS + mergeable_pages * merge_ns
}

/// What bounds the mappings that compaction may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingBudget {
    /// How many it may hold.
    pub mappings: usize,
    /// Whether `vm.max_map_count` is what binds, and not what a fork may cost.
    pub by_limit: bool,
}

/// What is known about mappings and pages when a pass begins.
#[derive(Clone, Copy, Debug)]
pub struct Mappings {
    /// `vm.max_map_count`.
    pub limit: usize,
    /// What the process has now.
    pub present: usize,
    /// How many compaction made of these, by its own count.
    pub held: usize,
    /// Pages of the heap that a fork will copy when what is free is given back and what can be merged is merged.
    pub resident_pages: u64,
    /// Pages that it will no longer copy: given back, of spans and between them, or in an alias, whose page table
    /// entries no fork copies.
    pub spared_pages: u64,
    /// The mean time between two forks, nanoseconds.
    pub between_forks_ns: u64,
}

/// Mappings that compaction may hold: half of the limit less what others hold (a range may split a mapping in
/// two, so it counts as two), and so few that a fork takes a third longer at most than it would if nothing were given
/// back, as by a malloc that keeps what lies below its top. In a program that seldom forks it may take [`FORK_MORE_NS`]
/// longer in any case: of a small heap a third is next to nothing, and would keep it fragmented for good.
pub fn mapping_budget(now: &Mappings) -> MappingBudget {
    let others = now.present.saturating_sub(now.held);
    let by_limit = (now.limit / 2).saturating_sub(others) / 2;
    let without = (now.resident_pages + now.spared_pages) * cost::FORK_PAGE_NS;
    let with = now.resident_pages * cost::FORK_PAGE_NS + now.present as u64 * cost::FORK_MAPPING_NS;
    let more = (without * FORK_TENTHS / 10).saturating_sub(with) / cost::FORK_RANGE_NS;
    let free = FORK_MORE_NS.min(now.between_forks_ns / FORK_SHARE) / cost::FORK_RANGE_NS;
    let least = usize::try_from(free).unwrap_or(usize::MAX).max(FORK_LEAST);
    let by_fork = usize::try_from(more).unwrap_or(usize::MAX).saturating_add(now.held).max(least);
    MappingBudget { mappings: by_limit.min(by_fork), by_limit: by_limit < by_fork }
}

fn trigger(inputs: &Inputs) -> Option<(PassCause, bool)> {
    let near = inputs.cgroup_limit != u64::MAX
        && u128::from(inputs.cgroup_usage) * 1000
            >= u128::from(inputs.cgroup_limit) * u128::from(CGROUP);
    if inputs.request {
        Some((PassCause::Request, true))
    } else if near {
        Some((PassCause::Cgroup, true))
    } else if inputs.psi >= PSI {
        Some((PassCause::Psi, true))
    } else if inputs.idle_ns >= IDLE_NS && inputs.score >= SCORE_LOW
        || inputs.idle_ns >= SETTLED_NS && inputs.score >= SCORE_SETTLED
    {
        Some((PassCause::Idle, false))
    } else if inputs.score >= SCORE {
        Some((PassCause::Score, false))
    } else {
        None
    }
}

/// Decides whether a pass begins now.
pub fn decide(inputs: &Inputs, history: &History) -> Decision {
    let Some((why, urgent)) = trigger(inputs) else { return Decision::Untriggered };
    let gated = |by| Decision::Gated { why, by };
    if inputs.gain_bytes == 0 {
        return gated(Gate::NothingToGain);
    }
    if why == PassCause::Request {
        return Decision::Run { why, urgent };
    }
    if !urgent && inputs.gain_bytes < LEAST_BYTES {
        return gated(Gate::NothingToGain);
    }
    if inputs.now_ns < history.rested_at(inputs.gain_bytes, inputs.idle_ns) {
        return gated(Gate::Resting);
    }
    let worth = history.worth(inputs.gain_bytes, inputs.idle_ns);
    let cost = u128::from(inputs.cost_ns) * u128::from(history.cost_ratio) / 1000;
    let (worth, cost) = if urgent {
        (worth.saturating_mul(u128::from(URGENCY)), cost)
    } else if inputs.idle_ns >= SETTLED_NS {
        (worth, cost / u128::from(SETTLED_COST))
    } else {
        (worth, cost * u128::from(RELUCTANCE))
    };
    if worth < cost {
        return gated(Gate::TooDear);
    }
    // An estimate may be too high, so half of it must fit.
    if !urgent && inputs.cost_ns / 2 >= room_ns(inputs) {
        return gated(Gate::CpuShare);
    }
    Decision::Run { why, urgent }
}

/// What compaction waits for after this decision, and until when: 0 if no moment is known. `look_again_ns` is when the
/// heap, as it is now, is looked at again.
pub fn waits(
    decision: Decision,
    inputs: &Inputs,
    history: &History,
    look_again_ns: u64,
) -> (Waits, u64) {
    match decision {
        Decision::Run { .. } => (Waits::Pass, 0),
        Decision::Untriggered => (Waits::Fragments, look_again_ns),
        Decision::Gated { by, .. } => match by {
            Gate::NothingToGain => (Waits::Gain, look_again_ns),
            Gate::Resting => (Waits::Pause, history.rested_at(inputs.gain_bytes, inputs.idle_ns)),
            Gate::TooDear => (Waits::Worth, 0),
            Gate::CpuShare => (Waits::Share, 0),
        },
    }
}

/// CPU time that compaction may have used by now without pressure.
fn allowed_ns(inputs: &Inputs) -> u64 {
    let rest = inputs.rest_ns / 1000 * REST_SHARE;
    BURST_NS + inputs.process_ns / 1000 * inputs.share + inputs.age_ns / 1000 * TIME_SHARE + rest
}

/// CPU time that compaction may use now without pressure.
fn room_ns(inputs: &Inputs) -> u64 {
    let allowed = allowed_ns(inputs);
    let rests = inputs.idle_ns >= IDLE_NS;
    let left_over = if rests { 0 } else { inputs.whole_ns.min(allowed / 2) };
    (allowed - left_over).saturating_sub(inputs.spent_ns)
}

/// Pages that may be offered to `ksmd` now, which works for each: as many as the share of CPU time has room
/// for, all when memory is short. 0 if that is so little, of `pages`, that it is better to wait.
pub fn offers(inputs: &Inputs, urgent: bool, pages: u64) -> u64 {
    if urgent {
        return u64::MAX;
    }
    let offers = room_ns(inputs) / (cost::OFFER_NS + cost::KSMD_NS);
    if offers >= (pages / 4).min(4096) { offers } else { 0 }
}

/// Bytes that a mapping must save to be worth it: what a program that is at work frees next is not known, and its own
/// allocations fill many a sparse page again. One that has been idle for a second, or whose memory is `short`, may as
/// well pay what a mapping costs in the kernel.
pub fn mapping_price(idle_ns: u64, short: bool) -> u32 {
    match idle_ns {
        _ if short => 2048,
        0..IDLE_NS => 4096,
        IDLE_NS..SETTLED_NS => 2048,
        _ => 1024,
    }
}

/// Bytes that a mapping more must save where sparse spans side by side are cut into runs that share an image each:
/// the kernel's memory for it; what a fork may cost bounds how many there are.
pub const EXTENT_PRICE: u32 = 256;

/// Whether a pass by `ksmd` that would begin now can wait for the program to settle: it rests, and what is merged then
/// is merged better, for dense pages take part.
pub fn settles(decision: Decision, inputs: &Inputs) -> bool {
    matches!(decision, Decision::Run { urgent: false, .. })
        && (IDLE_NS..SETTLED_NS).contains(&inputs.idle_ns)
}

/// Without activity for this long, what was merged before the program settled is merged again: it takes more memory for
/// a moment.
pub const AGAIN_NS: u64 = 10_000_000_000;

/// The same where image files are remapped, which takes no more memory than new ones.
pub const RENEW_NS: u64 = 5_000_000_000;

/// Pages that a pass may merge again of those that `ksmd` has merged: each is a page of its own until it has merged
/// them anew.
pub const AGAIN: u32 = 4096;

/// How long a span must have been as it is before it is merged: an idle program has finished what it did, a busy
/// one may be in the middle of a wave of frees.
pub fn settle_ms(idle: bool) -> u32 {
    if idle { 80 } else { 400 }
}

/// Whether to give pages back now although no pass begins: `free` bytes that were free in two scans, the
/// cheapest way to save memory, which may use the share of CPU time once more; `dead` bytes of merged units, which
/// the program cannot use until they are restored, at any cost (each was paid for once, when it was merged).
pub fn may_release(inputs: &Inputs, free: u64, dead: u64) -> bool {
    dead >= RELEASE_BYTES || free >= RELEASE_BYTES && inputs.spent_ns < 2 * allowed_ns(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inputs() -> impl Strategy<Value = Inputs> {
        let flags = (any::<bool>(), 0u32..1000, 0u64..1 << 28, 0u32..400);
        let sizes = (0u64..1 << 34, 0u64..1 << 32, 0u64..1 << 36);
        (flags, sizes, 0u64..1 << 38, 0u64..1 << 34, prop::option::of(1u64..1 << 36)).prop_map(
            |(flags, (gain_bytes, cost_ns, process_ns), now_ns, spent_ns, limit)| Inputs {
                now_ns,
                age_ns: now_ns / 2,
                request: flags.0,
                score: flags.1,
                idle_ns: flags.2,
                psi: flags.3,
                cgroup_usage: 1 << 33,
                cgroup_limit: limit.unwrap_or(u64::MAX),
                gain_bytes,
                cost_ns,
                whole_ns: cost_ns.saturating_mul(2),
                process_ns,
                rest_ns: now_ns / 4,
                spent_ns,
                share: CPU_SHARE,
            },
        )
    }

    fn histories() -> impl Strategy<Value = History> {
        prop::collection::vec((0u64..1 << 30, 0u64..1 << 30, 1u64..1 << 30), 0..12).prop_map(
            |passes| {
                let mut history = History::new();
                for (index, (gained, cost, expected)) in (1u64..).zip(passes) {
                    history.record(
                        index * 1_000_000_000,
                        cost % (2 * SETTLED_NS),
                        gained,
                        cost,
                        expected,
                    );
                    history.waited(cost, expected);
                }
                history
            },
        )
    }

    fn runs(decision: Decision) -> bool {
        matches!(decision, Decision::Run { .. })
    }

    proptest! {
        #[test]
        fn a_request_with_anything_to_gain_runs(inputs in inputs(), history in histories()) {
            let inputs = Inputs { request: true, ..inputs };
            prop_assert_eq!(runs(decide(&inputs, &history)), inputs.gain_bytes > 0);
        }

        #[test]
        fn more_gain_or_less_cost_never_gates(
            inputs in inputs(), history in histories(), more in 0u64..1 << 34, less in 0u64..1 << 32,
        ) {
            let better = Inputs {
                gain_bytes: inputs.gain_bytes + more,
                cost_ns: inputs.cost_ns.saturating_sub(less),
                whole_ns: inputs.whole_ns.saturating_sub(less),
                ..inputs
            };
            prop_assert!(!runs(decide(&inputs, &history)) || runs(decide(&better, &history)));
        }

        #[test]
        fn waiting_never_gates_and_ends(inputs in inputs(), history in histories(), seconds in 0u64..1 << 12) {
            let mut later = history;
            later.waited(inputs.gain_bytes, seconds * 1_000_000_000);
            prop_assert!(!runs(decide(&inputs, &history)) || runs(decide(&inputs, &later)));
            // Whatever was learned, a gain worth its cost within the longest time expected is not put off for ever.
            later.waited(inputs.gain_bytes, u64::MAX);
            let dear = later.worth(inputs.gain_bytes, 0) / u128::from(RELUCTANCE * 10);
            let cost_ns = u128::from(inputs.cost_ns).min(dear) as u64;
            let affordable = Inputs { cost_ns, ..inputs };
            let put_off = matches!(decide(&affordable, &later), Decision::Gated { by: Gate::TooDear, .. });
            prop_assert!(!put_off);
        }

        #[test]
        fn pressure_never_gates(inputs in inputs(), history in histories()) {
            let pressed = Inputs { psi: PSI, ..inputs };
            prop_assert!(!runs(decide(&inputs, &history)) || runs(decide(&pressed, &history)));
        }

        #[test]
        fn that_the_program_rests_never_gates(inputs in inputs(), history in histories()) {
            let resting = Inputs { idle_ns: IDLE_NS.max(inputs.idle_ns), ..inputs };
            prop_assert!(!runs(decide(&inputs, &history)) || runs(decide(&resting, &history)));
            let settled = Inputs { idle_ns: SETTLED_NS.max(inputs.idle_ns), ..inputs };
            prop_assert!(!runs(decide(&resting, &history)) || runs(decide(&settled, &history)));
        }

        #[test]
        fn no_share_binds_a_program_that_has_rested_for_as_long_as_the_work_takes(
            inputs in inputs(), history in histories(),
        ) {
            let rest_ns = 2 * (inputs.spent_ns + inputs.cost_ns) + 2000;
            let rested = Inputs { idle_ns: IDLE_NS, rest_ns, ..inputs };
            let shared = matches!(decide(&rested, &history), Decision::Gated { by: Gate::CpuShare, .. });
            prop_assert!(!shared);
        }

        #[test]
        fn time_at_work_is_no_rest(
            looks in prop::collection::vec((1u64..1 << 31, 0u64..1 << 31, 0u64..1 << 31), 1..20),
        ) {
            let mut rest = RestTime::default();
            let (mut now, mut own, mut most) = (1, 0, 0);
            rest.observe(now, own, 0);
            for (elapsed, used, idle) in looks {
                (now, own) = (now + elapsed, own + used);
                let before = rest.total_ns();
                let rests = rest.observe(now, own, idle);
                prop_assert_eq!(rests, idle >= IDLE_NS && used <= elapsed / 1000 * REST_CPU);
                prop_assert_eq!(rest.total_ns() > before, rests && elapsed > 0);
                most += elapsed.min(idle);
                prop_assert!(rest.total_ns() <= most);
            }
        }

        #[test]
        fn a_pass_is_left_over_for_when_the_program_rests(inputs in inputs()) {
            let busy = Inputs { idle_ns: 0, ..inputs };
            let resting = Inputs { idle_ns: IDLE_NS, ..inputs };
            // What may be spent beside it leaves room for all that could be merged, or half of the share.
            let spent = Inputs { spent_ns: busy.spent_ns + room_ns(&busy), ..resting };
            let allowed = allowed_ns(&busy);
            prop_assert!(busy.spent_ns > allowed / 2 || room_ns(&spent) >= busy.whole_ns.min(allowed / 2));
        }

        #[test]
        fn poor_passes_rest_longer_up_to_a_bound(history in histories(), cost in 1u64..1 << 40) {
            let mut next = history;
            next.record(5, 0, 0, cost, cost);
            prop_assert!(next.pause_ns >= history.pause_ns && next.pause_ns <= PAUSE_MAX_NS);
            for pass in 0..20 {
                next.record(pass, 0, 0, cost, cost);
            }
            prop_assert_eq!(next.pause_ns, PAUSE_MAX_NS);
            next.record(5, 0, 1 << 40, 1, 1);
            prop_assert!(next.pause_ns < PAUSE_MAX_NS, "a good pass shortens the pause");
        }

        #[test]
        fn the_budget_keeps_half_of_the_limit_free(
            limit in 0usize..1 << 20, others in 0usize..1 << 20, held in 0usize..1 << 20,
            resident_pages in 0u64..1 << 30, spared_pages in 0u64..1 << 30,
        ) {
            let present = others + held;
            let between_forks_ns = u64::MAX;
            let now = Mappings { limit, present, held, resident_pages, spared_pages, between_forks_ns };
            let budget = mapping_budget(&now).mappings;
            prop_assert!(budget == 0 || budget + others <= limit / 2);
        }

        #[test]
        fn more_mappings_than_a_fork_may_cost_allow_no_more(
            present in 2000usize..1 << 20, resident_pages in 0u64..1 << 24, spared_pages in 0u64..1 << 24,
            between_forks_ns: u64,
        ) {
            let (limit, held) = (1 << 24, present);
            let now = Mappings { limit, present, held, resident_pages, spared_pages, between_forks_ns };
            let budget = mapping_budget(&now).mappings;
            prop_assert!(budget >= held, "what is there is not undone");
            let fork = |mappings: usize, pages: u64| {
                mappings as u64 * cost::FORK_MAPPING_NS + pages * cost::FORK_PAGE_NS
            };
            let before = fork(0, resident_pages + spared_pages) * FORK_TENTHS / 10;
            let more = FORK_MORE_NS.min(between_forks_ns / 100);
            let added = fork(budget - held, 0);
            prop_assert!(budget == held || fork(budget, resident_pages) <= before || added <= more);
        }

        #[test]
        fn a_program_that_seldom_forks_may_hold_more(
            present in 0usize..2000, resident_pages in 0u64..1 << 24, spared_pages in 0u64..1 << 24,
        ) {
            let allowed = |between_forks_ns| {
                let (limit, held) = (1 << 24, present);
                let now = Mappings { limit, present, held, resident_pages, spared_pages, between_forks_ns };
                mapping_budget(&now).mappings
            };
            let [never, each_second, often] = [u64::MAX, 1_000_000_000, 10_000_000].map(allowed);
            prop_assert!(never == each_second && often <= never);
            prop_assert!(never >= 6_666 && often >= 1024);
        }
    }

    #[test]
    fn ksmd_is_given_what_the_share_has_room_for_and_nothing_for_little() {
        let inputs = Inputs {
            score: 600,
            idle_ns: IDLE_NS,
            whole_ns: 1 << 33,
            process_ns: 2_000_000_000,
            spent_ns: 15_000_000,
            share: KSM_SHARE,
            ..QUIET
        };
        // A tenth of two seconds, 7.6 us a page.
        assert_eq!(offers(&inputs, false, 1 << 20), 26_315);
        assert_eq!(offers(&inputs, true, 1 << 20), u64::MAX);
        let busy = Inputs { idle_ns: 0, ..inputs };
        assert_eq!(offers(&busy, false, 1 << 20), 12_171, "half of it");
        let spent = Inputs { spent_ns: 207_400_000, ..inputs };
        assert_eq!(offers(&spent, false, 1 << 20), 0, "1,000 pages of a million");
        assert_eq!(offers(&spent, false, 2000), 1000);
    }

    #[test]
    fn new_garbage_cuts_a_long_pause_short() {
        let mut history = History::new();
        for _ in 0..12 {
            history.record(1 << 40, 0, 0, 1 << 30, 1 << 30);
        }
        history.left(10 << 20);
        let soon = (1 << 40) + PAUSE_NS;
        assert_eq!(history.rested_at(12 << 20, 0), (1 << 40) + PAUSE_MAX_NS);
        assert_eq!(history.rested_at(24 << 20, 0), soon);
        history.left(0);
        assert_eq!(history.rested_at(RENEWED_BYTES, 0), soon);
    }

    /// Redis at rest stayed at 128 and at 144 MiB for 40 s and 70 s: passes among its last evictions had gained little,
    /// and the pause after them was a minute. Passes that saved 6 MiB when all was quiet were judged by how short-lived
    /// memory had been before.
    #[test]
    fn passes_at_work_do_not_make_a_settled_program_wait() {
        let mut history = History::new();
        for _ in 0..12 {
            history.survived(1 << 20, 1 << 10, 100_000_000);
            history.record(1 << 40, 0, 0, 1 << 30, 1 << 30);
        }
        history.left(6 << 20);
        assert_eq!(history.rested_at(6 << 20, IDLE_NS), (1 << 40) + PAUSE_MAX_NS);
        assert_eq!(history.rested_at(6 << 20, SETTLED_NS), (1 << 40) + PAUSE_NS);
        // Good ones then keep the pause short, and poor ones are not repeated for ever.
        history.record(1 << 40, SETTLED_NS, 6 << 20, 20_000_000, 20_000_000);
        assert_eq!(history.rested_at(6 << 20, SETTLED_NS), (1 << 40) + PAUSE_NS);
        for _ in 0..12 {
            history.record(1 << 40, SETTLED_NS, 0, 20_000_000, 20_000_000);
        }
        assert_eq!(history.rested_at(6 << 20, SETTLED_NS), (1 << 40) + PAUSE_MAX_NS);
    }

    #[test]
    fn a_mapping_is_cheaper_the_longer_the_program_is_idle() {
        let prices = [0, IDLE_NS, 1 << 30].map(|idle| mapping_price(idle, false));
        assert!(prices.is_sorted_by(|more, less| more > less), "{prices:?}");
        assert!(mapping_price(0, true) < prices[0]);
    }

    #[test]
    fn memory_that_dies_young_is_worth_less() {
        let mut history = History::new();
        let value = |history: &History| history.worth(1 << 20, 0);
        let before = value(&history);
        for _ in 0..8 {
            history.survived(1 << 20, 1 << 18, 1_000_000_000);
        }
        assert!(history.lifetime_s(1 << 20, 0) < 10, "{history:?}");
        assert!(value(&history) < before);
        let price = |history: &History| work_price(history, 1 << 20, 0, false);
        assert!(price(&history) > price(&History::new()));
        let mut waiting = history;
        waiting.waited(1 << 20, 300_000_000_000);
        assert_eq!(waiting.lifetime_s(1 << 20, 0), 300, "it was there for five minutes");
        assert_eq!(waiting.lifetime_s(3 << 20, 0), 100, "the average counts");
        assert!(price(&waiting) < price(&History::new()));
        waiting.record(1, 0, 0, 1, 1);
        assert_eq!(waiting.lifetime_s(1 << 20, 0), history.lifetime_s(1 << 20, 0));
    }

    /// A heap without churn in a program that has been idle for long.
    const QUIET: Inputs = Inputs {
        age_ns: 0,
        now_ns: 1 << 40,
        request: false,
        score: 30,
        idle_ns: 1 << 40,
        psi: 0,
        cgroup_usage: 0,
        cgroup_limit: u64::MAX,
        gain_bytes: 1 << 30,
        cost_ns: 1,
        whole_ns: 1,
        process_ns: 1 << 40,
        rest_ns: 0,
        spent_ns: 0,
        share: CPU_SHARE,
    };

    /// Dense pages take part once a program has settled: what was merged 0.9 s earlier was merged poorly.
    #[test]
    fn ksmd_has_nothing_to_merge_until_a_program_that_rests_has_settled() {
        let idle = |idle_ns| Inputs { idle_ns, score: 600, ..QUIET };
        let waits = |inputs: &Inputs| settles(decide(inputs, &History::new()), inputs);
        assert!(!waits(&idle(0)), "at work");
        assert!(waits(&idle(IDLE_NS)));
        assert!(!waits(&idle(SETTLED_NS)));
        assert!(!waits(&Inputs { psi: PSI, ..idle(IDLE_NS) }), "memory is short");
        assert!(!waits(&Inputs { gain_bytes: 0, ..idle(IDLE_NS) }), "there is no pass");
    }

    /// The heap of a Redis at rest changed every second: what its timer takes comes with more for the thread's cache.
    #[test]
    fn what_a_timer_takes_is_no_work() {
        let was = (100 << 20, 300 << 20);
        assert!(is_same(was, was));
        assert!(is_same(was, (was.0 + 60_000, was.1)) && is_same(was, (was.0 - 60_000, was.1)));
        assert!(!is_same(was, (was.0 + (1 << 20), was.1)));
        assert!(!is_same(was, (was.0, was.1 + 4096)));
        assert!(!is_same((1000, 4096), (1001, 4096)), "little of little");
    }

    #[test]
    fn what_was_short_lived_at_work_is_merged_once_the_program_has_settled() {
        let mut history = History::new();
        for _ in 0..8 {
            history.survived(1 << 20, 1 << 18, 1_000_000_000);
        }
        // What ksmd takes for 50 MiB.
        let pages = (50 << 20) / 4096;
        let cost_ns = pages * (cost::OFFER_NS + cost::KSMD_NS);
        let work = Inputs {
            gain_bytes: 40 << 20,
            cost_ns,
            whole_ns: cost_ns,
            idle_ns: IDLE_NS,
            score: 300,
            rest_ns: 1 << 40,
            ..QUIET
        };
        assert_eq!(
            decide(&work, &history),
            Decision::Gated { why: PassCause::Idle, by: Gate::TooDear }
        );
        let settled = Inputs { idle_ns: SETTLED_NS, ..work };
        assert_eq!(
            decide(&settled, &history),
            Decision::Run { why: PassCause::Idle, urgent: false }
        );
        let price = |idle_ns| work_price(&history, 40 << 20, idle_ns, false);
        assert!(price(IDLE_NS) > price(SETTLED_NS));
        let new = work_price(&History::new(), 40 << 20, 0, false);
        assert_eq!(
            price(SETTLED_NS),
            new / SETTLED_COST as u32,
            "for as long as was expected at first"
        );
    }

    #[test]
    fn a_heap_without_churn_is_left_alone() {
        assert_eq!(decide(&QUIET, &History::new()), Decision::Untriggered);
        let worn = Inputs { score: 600, idle_ns: 0, ..QUIET };
        assert_eq!(
            decide(&worn, &History::new()),
            Decision::Run { why: PassCause::Score, urgent: false }
        );
        let dear = Inputs { cost_ns: u64::MAX, ..worn };
        assert_eq!(
            decide(&dear, &History::new()),
            Decision::Gated { why: PassCause::Score, by: Gate::TooDear }
        );
    }
}

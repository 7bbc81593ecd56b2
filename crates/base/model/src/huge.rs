//! Huge page decisions, as they are recorded: what the policy saw of a region, what it decided and why, what came of
//! it.
//!
//! Terms: a *region* is 2 MiB of address space; a *base page* has 4 KiB. One row is one decision with the whole view
//! that it was made from, so that the same policy, given the row, decides the same again. Of each figure of the view a
//! row has the number, or nothing where it is absent; those that were not measured here but computed, assumed or taken
//! from a profile are named in `modelled`.

use crate::dataset::row;
use crate::units::{Bytes, Nanos};

row! {
    /// One decision about one region.
    pub struct HugeDecision in "huge" {
        /// Moment of the decision, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// The policy, such as `cbmm+`.
        policy: Option<String> = "policy",

        /// First address of the region.
        address: Option<u64> = "address",
        /// Its section: `code`, `data`, `heap` or `mmap`.
        section: Option<String> = "section",
        /// Why a decision was due: `fault`, `ahead`, `scan` or `idle`.
        moment: Option<String> = "moment",
        /// 1 if the region was on a huge page.
        huge: Option<u64> = "huge",
        /// 1 if the program had asked for huge pages there.
        advised: Option<u64> = "advised",
        /// CPUs online.
        cpus: Option<u64> = "cpus",
        /// Cycles in a microsecond.
        mhz: Option<u64> = "mhz",
        /// Regions that an action at `idle` would be for.
        batch: Option<u64> = "batch_regions",
        /// Unit of the profile's benefits: `cycles` or `ns`.
        profile_unit: Option<String> = "profile_unit",
        /// Base pages that were present.
        present: Option<u64> = "present_pages",
        /// Base pages expected to be touched in the end.
        expected: Option<u64> = "expected_pages",
        /// Base pages accessed in the last window of sampling.
        accessed: Option<u64> = "accessed_pages",
        /// Present base pages that held only zeros.
        zeros: Option<u64> = "zero_pages",
        /// Benefit of a huge page by the profile, in its unit.
        profile_huge: Option<u64> = "profile_huge",
        /// Benefit of eager paging by the profile, in its unit.
        profile_eager: Option<u64> = "profile_eager",
        /// Free blocks of order 9 and above.
        free_huge: Option<u64> = "free_huge_blocks",
        /// Zeroed huge pages in the pool.
        pool: Option<u64> = "stock_regions",
        /// Huge pages taken from the pool of late.
        pool_used: Option<u64> = "stock_used_regions",
        /// Load average of the last minute, hundredths.
        load: Option<u64> = "load_hundredths",
        /// Unusable free space index at order 9, thousandths.
        unusable: Option<u64> = "unusable_permille",
        /// Share of memory in use, thousandths.
        used: Option<u64> = "used_permille",
        /// Share of the process's resident memory that was never touched, thousandths.
        bloat: Option<u64> = "bloat_permille",
        /// Chance that fresh memory is cold, thousandths.
        cold: Option<u64> = "cold_permille",
        /// How fast the process's memory grows, bytes a millisecond.
        growth: Option<u64> = "growth_bytes_per_ms",
        /// A fault that brings a base page, warm memory, ns.
        cost_base: Option<Nanos> = "cost_base_ns",
        /// The same from cold memory, ns.
        cost_base_cold: Option<Nanos> = "cost_base_cold_ns",
        /// A fault that brings 64 KiB, ns.
        cost_medium: Option<Nanos> = "cost_medium_ns",
        /// A fault that brings a huge page, warm memory and a free block, ns.
        cost_huge: Option<Nanos> = "cost_huge_ns",
        /// The same from cold memory, ns.
        cost_huge_cold: Option<Nanos> = "cost_huge_cold_ns",
        /// Collapsing 512 base pages, ns.
        cost_collapse: Option<Nanos> = "cost_collapse_ns",
        /// Putting a huge page of the pool in place, ns.
        cost_deliver: Option<Nanos> = "cost_deliver_ns",
        /// What a huge page waits for when no block is free, ns.
        cost_stall: Option<Nanos> = "cost_stall_ns",
        /// What filling a region takes longer where another thread has provided it, ns.
        cost_fetch: Option<Nanos> = "cost_fetch_ns",
        /// What a memory reference beyond the reach of the TLB takes longer on base pages, ns.
        cost_walk: Option<Nanos> = "cost_walk_ns",
        /// Of a policy that tries actions on the program's growth, what epochs of it have cost so far: CPU time spent
        /// and charged to trials, ns, size of an epoch in regions, and by action the costs of its last epochs, ns a
        /// region, newest first.
        trials: Option<String> = "trials",
        /// Names of the columns above, separated by spaces, that were not measured on this machine.
        modelled: Option<String> = "modelled",

        /// What was decided: `base`, `huge`, `pool`, `ahead-4k`, `ahead-64k`, `ahead-2m`, `fault-64k`, `fault-2m`,
        /// `collapse`, `demote`, `prezero` or `defragment`.
        action: Option<String> = "action",
        /// The action that cost and benefit are of, if it was turned down for `base`.
        weighed: Option<String> = "weighed",
        /// What it costs, in `unit`.
        cost: Option<u64> = "cost",
        /// What it brings, in `unit`.
        benefit: Option<u64> = "benefit",
        /// Unit of cost and benefit: `cycles`, `ns` or `rule`.
        unit: Option<String> = "unit",
        /// Why, in words.
        why: Option<String> = "why",
        /// What came of it: `applied`, `dry` or the reason why it could not be carried out.
        outcome: Option<String> = "outcome",
        /// Time that carrying it out took, ns.
        took: Option<Nanos> = "took_ns",
        /// Bytes that the action was carried out on.
        done: Option<Bytes> = "done_bytes",
    }
}

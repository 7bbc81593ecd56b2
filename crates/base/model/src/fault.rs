//! Page faults, as they are recorded: slow ones one by one, all of them counted by kind and time.
//!
//! A recording has three datasets: `faults` holds each fault that took the threshold of the header or
//! longer; `fault_sums` the shorter ones of a thread, summed up, so that many of them close upon each
//! other are seen as the stall that they are; `fault_counts` holds for each interval how many faults of
//! each kind took how long, slow ones included, so that percentiles need no row for each fast fault.
//! `mappings` says what lay at an address when.

use serde::{Deserialize, Serialize};

use crate::dataset::row;
use crate::units::{Bytes, Nanos, Order};

/// What is known of a fault, one bit each. The same bits as in the kernel's part (`faults.bpf.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(pub u64);

/// Short faults of a thread have a row together each time that they took so long.
pub const SUM: Nanos = Nanos(100_000);
/// Those that took longer to take that long have none: less than a sixteenth of the time was spent in them.
pub const SUM_WITHIN: Nanos = Nanos(16 * SUM.0);

impl Flags {
    /// By a write.
    pub const WRITE: u64 = 1 << 0;
    /// The page was there, the access was not allowed (copy on write).
    pub const PROTECTION: u64 = 1 << 1;
    /// By fetching an instruction.
    pub const EXECUTE: u64 = 1 << 2;
    /// Inside a system call.
    pub const IN_KERNEL: u64 = 1 << 3;
    /// Needed I/O.
    pub const MAJOR: u64 = 1 << 4;
    /// A huge page (one that a page-table entry of the upper level maps) was allocated.
    pub const HUGE: u64 = 1 << 5;
    /// A page larger than the base page, and not huge, was allocated.
    pub const LARGE: u64 = 1 << 6;
    /// A base page was allocated.
    pub const BASE: u64 = 1 << 7;
    /// Memory was compacted.
    pub const COMPACTION: u64 = 1 << 8;
    /// Memory was reclaimed.
    pub const RECLAIM: u64 = 1 << 9;
    /// The page came from a block of another mobility type.
    pub const STOLEN: u64 = 1 << 10;
    /// A huge page was asked for and there was none.
    pub const HUGE_FAILED: u64 = 1 << 11;
    /// Anonymous memory.
    pub const ANONYMOUS: u64 = 1 << 12;
    /// Memory of a file.
    pub const FILE: u64 = 1 << 13;
    /// Shared memory.
    pub const SHARED_MEMORY: u64 = 1 << 14;
    /// Was in swap.
    pub const SWAP: u64 = 1 << 15;
    /// The thread slept after the last page was allocated, for no lock of the kernel: somebody else answers the fault,
    /// by userfaultfd for example.
    pub const SLEPT: u64 = 1 << 16;

    /// Names of the bits, from the lowest.
    pub const NAMES: [&str; 17] = [
        "write",
        "protection",
        "execute",
        "in-kernel",
        "major",
        "huge",
        "large",
        "base",
        "compaction",
        "reclaim",
        "stolen",
        "huge-failed",
        "anonymous",
        "file",
        "shared-memory",
        "swap",
        "slept",
    ];

    /// Whether all of `bits` are set.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Order of the largest page that was allocated.
    pub fn order(self) -> u32 {
        (self.0 >> 24 & 15) as u32
    }

    /// Names of the bits that are set.
    pub fn names(self) -> Vec<&'static str> {
        let set = Self::NAMES.iter().enumerate().filter(|(bit, _)| self.has(1 << bit));
        set.map(|(_, name)| *name).collect()
    }
}

/// How faults were measured: part of a recording's header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultSetup {
    /// `bpf-fexit`, `bpf-tracepoints`, `perf`, `counters`, or `pftrace` for one that was read from a
    /// file of that format.
    pub back_end: String,
    /// The better ones, and why they were not used.
    pub not_used: Vec<String>,
    /// What flags mean: whether write, execute, order and so on are known, or only `major`.
    pub details: bool,
    /// Faults from here on have a row of their own.
    #[serde(rename = "threshold_ns")]
    pub threshold: Nanos,
    /// Shorter ones of a thread have a row together each time that they took so long; absent if they have none.
    #[serde(rename = "sum_ns")]
    pub sum: Option<Nanos>,
    /// From when on faults are measured, ns of the recording's clock; absent in earlier recordings.
    #[serde(rename = "from_ns")]
    pub from: Option<Nanos>,
    /// The length of stalls that were asked about; absent if none was.
    #[serde(rename = "spike_ns", skip_serializing_if = "Option::is_none")]
    pub spike: Option<Nanos>,
    /// Whether faults inside system calls are seen.
    pub in_kernel: bool,
    /// Whether processes that the recorded one starts are followed.
    pub children: bool,
    /// First touch of a small page that the host has, as a program sees it: the median of a thousand.
    #[serde(rename = "touch_p50_ns")]
    pub touch: Option<Nanos>,
    /// Order of a huge page.
    pub huge_order: Option<Order>,
    /// Faults that the kernel's own accounting has for the same processes and time.
    pub accounted: Option<u64>,
    /// Faults counted.
    pub counted: u64,
    /// Of these, the ones that only the kernel's accounting tells: without time and address. The kernel made them for
    /// the process by get_user_pages (arguments of execve, direct input and output), or this user may not see them.
    pub untimed: u64,
    /// Faults whose beginning or end was lost.
    pub lost: u64,
    /// Rows of slow faults that were lost; the faults are counted.
    pub lost_rows: u64,
    /// Faults that were under way when recording began.
    pub unmatched: u64,
}

row! {
    /// One page fault that took long.
    pub struct Fault in "faults" {
        /// When it ended, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// How long it took in the kernel, ns.
        latency: Nanos = "latency_ns",
        /// The address that was touched.
        address: Option<u64> = "address",
        /// The process.
        pid: Option<u64> = "pid",
        /// The thread.
        tid: Option<u64> = "tid",
        /// What is known of it: bits, see docs/concepts/faults.md.
        flags: Option<u64> = "flags",
        /// From the last allocation of a page to the end, ns: clearing or copying the page and mapping it, without what
        /// the columns below tell.
        after_allocation: Option<Nanos> = "after_allocation_ns",
        /// In compaction, ns.
        compaction: Option<Nanos> = "compaction_ns",
        /// In direct reclaim, ns.
        reclaim: Option<Nanos> = "reclaim_ns",
        /// Waiting for locks of the kernel that others held, ns.
        locks: Option<Nanos> = "locks_ns",
        /// Ready to run, and waiting for a CPU that others had, ns.
        waited: Option<Nanos> = "waited_ns",
    }
}

row! {
    /// Page faults of a thread that each took less than the threshold, and together some time.
    pub struct FaultSum in "fault_sums" {
        /// When the last of them ended, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// From the beginning of the first to the end of the last, ns.
        span: Option<Nanos> = "span_ns",
        /// How long they took in the kernel, all together, ns.
        took: Option<Nanos> = "took_ns",
        /// How many.
        faults: Option<u64> = "faults",
        /// The process.
        pid: Option<u64> = "pid",
        /// The thread.
        tid: Option<u64> = "tid",
    }
}

row! {
    /// How many faults of one kind took how long in one interval.
    pub struct FaultCounts in "fault_counts" {
        /// End of the interval, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The kind: bits as in `faults`.
        flags: Option<u64> = "flags",
        /// Numbers of the log-linear buckets that have faults; absent if no times were measured.
        buckets: Option<Vec<u64>> = "buckets",
        /// Faults in each of them; one number if no times were measured.
        counts: Option<Vec<u64>> = "counts",
    }
}

row! {
    /// One mapping of a process, looked at once.
    pub struct MappingSample in "mappings" {
        /// Moment of the look, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// First address.
        start: Option<u64> = "start",
        /// First address after it.
        end: Option<u64> = "end",
        /// Permissions as in `/proc/PID/maps`, such as `rw-p`.
        permissions: Option<String> = "permissions",
        /// Path, `[heap]`, `[stack]`, or empty.
        name: Option<String> = "name",
        /// Resident memory, bytes; absent if only the layout was looked at.
        rss: Option<Bytes> = "rss_bytes",
        /// Anonymous memory, bytes.
        anonymous: Option<Bytes> = "anonymous_bytes",
        /// Anonymous memory in huge pages, bytes.
        huge: Option<Bytes> = "anon_huge_bytes",
        /// Huge pages of shared memory and files, bytes.
        huge_other: Option<Bytes> = "other_huge_bytes",
        /// Pages in swap, bytes.
        swap: Option<Bytes> = "swap_bytes",
        /// Pages marked as accessed, bytes: since their marks were cleared, or since they were made.
        referenced: Option<Bytes> = "referenced_bytes",
        /// Whether huge pages were advised (`hg`) or refused (`nh`).
        advice: Option<String> = "advice",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_names_and_an_order() {
        let flags = Flags(Flags::WRITE | Flags::HUGE | Flags::ANONYMOUS | 9 << 24);
        assert_eq!(flags.names(), ["write", "huge", "anonymous"]);
        assert_eq!(flags.order(), 9);
        assert!(flags.has(Flags::WRITE) && !flags.has(Flags::WRITE | Flags::MAJOR));
    }
}

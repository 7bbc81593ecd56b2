//! Accesses, as they are recorded: which pages were touched in each interval, and the first accesses to
//! them one by one.
//!
//! A recording has two datasets: `touched` holds for each interval of each process exactly the pages that
//! were touched in it; `accesses` holds the first access to each page in an interval and, if that only
//! read, the first write. `mappings` says what lay at an address when, `allocations` which code asked for it.
//!
//! Exact back ends count: a row of `accesses` then stands for `count` accesses of one thread to one page,
//! all of one kind, from its stamp to `last`. Samples are rows that stand for themselves.

use serde::{Deserialize, Serialize};

use crate::dataset::row;
use crate::units::{Bytes, Nanos};

/// How accesses were seen: part of a recording's header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessSetup {
    /// How accesses were seen: `bpf`, or `scan` where only the page tables were read; `exact` in an emulator;
    /// samples: `pebs`, `ibs`, `clock`; `import` from another tool's file.
    pub back_end: String,
    /// The better ones, and why they were not used.
    pub not_used: Vec<String>,
    /// Length of an interval in useful time.
    #[serde(rename = "interval_ns")]
    pub interval: Nanos,
    /// Bytes that one fault brings into view: a page, or more, and then the touched pages are a superset.
    pub granule: Bytes,
    /// The program was to be slowed down at most this many thousandths of its time.
    pub budget_permille: Option<u64>,
    /// Rows of accesses that were lost; the touched pages are complete all the same.
    pub lost: u64,
    /// Of samples: how many are of no access that is known, and so have no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_address: Option<u64>,
    /// Of samples by the clock: what became of them.
    #[serde(rename = "yield", skip_serializing_if = "Option::is_none")]
    pub yielded: Option<Yield>,
    /// Ranges and processes whose accesses were not seen, and why.
    pub untraced: Vec<String>,
}

/// What became of samples by the clock: `taken` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Yield {
    /// Samples.
    pub taken: u64,
    /// The interrupted instruction accessed memory.
    pub interrupted: u64,
    /// The nearest access of its block had just run.
    pub behind: u64,
    /// The nearest access of its block was about to run.
    pub ahead: u64,
    /// Dropped: the block accesses no memory near.
    pub no_access: u64,
    /// Dropped: nothing ahead accesses memory, and which code had just run is not known.
    pub block_unknown: u64,
    /// Dropped: registers that the address is made of have changed since, or will have.
    pub registers_changed: u64,
    /// Dropped: the address is made of a segment's base or a vector.
    pub by_segment: u64,
    /// Dropped: the code could not be read.
    pub code_unread: u64,
}

impl Yield {
    /// Samples that have rows.
    pub fn attributed(&self) -> u64 {
        self.interrupted.saturating_add(self.behind).saturating_add(self.ahead)
    }

    /// In words: how many of how many, where the accesses were, and why the others are none.
    pub fn words(&self) -> String {
        let listed = |all: &[(u64, &str)]| {
            let some = all.iter().filter(|(count, _)| *count > 0);
            some.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
        };
        let kept = listed(&[
            (self.interrupted, "at the interrupted instruction"),
            (self.behind, "just before it"),
            (self.ahead, "just after it"),
        ]);
        let dropped = listed(&[
            (self.no_access, "no access near"),
            (self.block_unknown, "what had run not known"),
            (self.registers_changed, "registers changed"),
            (self.by_segment, "by a segment or vector"),
            (self.code_unread, "code not read"),
        ]);
        let mut words = format!("{} of {} samples are of accesses", self.attributed(), self.taken);
        if !kept.is_empty() {
            words.push_str(&format!(" ({kept})"));
        }
        if !dropped.is_empty() {
            words.push_str(&format!("; dropped: {dropped}"));
        }
        words
    }
}

row! {
    /// Memory that the program took from its allocator, or gave back.
    pub struct Allocation in "allocations" {
        /// When, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// First byte of it.
        address: Option<u64> = "address",
        /// How many bytes; absent where it was given back.
        size: Option<u64> = "size_bytes",
        /// The instruction after the call of the allocator, and for large ones what the stack held of the callers',
        /// innermost first.
        stack: Option<Vec<u64>> = "stack",
    }
}

row! {
    /// One access.
    pub struct Access in "accesses" {
        /// When, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// The thread.
        tid: Option<u64> = "tid",
        /// The processor.
        cpu: Option<u64> = "cpu",
        /// Which byte.
        address: Option<u64> = "address",
        /// The instruction that accessed it, in the program or in the kernel.
        instruction: Option<u64> = "ip",
        /// What is known of it: write, execute, in-kernel, bits as in `faults`.
        flags: Option<u64> = "flags",
        /// How many accesses the row stands for; absent: one.
        count: Option<u64> = "count",
        /// When the last of them was, ns.
        last: Option<Nanos> = "last_ns",
        /// How long the access took, in the processor's cycles.
        latency: Option<u64> = "latency_cycles",
        /// Where its data came from, as the kernel encodes it (`union perf_mem_data_src`).
        data_source: Option<u64> = "data_source",
        /// Of a sample by the clock: how many instructions after this one the program was interrupted.
        behind: Option<u64> = "behind",
        /// Of a sample by the clock: how many instructions before this one the program was interrupted.
        ahead: Option<u64> = "ahead",
    }
}

row! {
    /// The pages that a process touched in one interval.
    pub struct Touched in "touched" {
        /// End of the interval, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// Number of the interval, from 0 for each program that the process executes.
        number: Option<u64> = "interval",
        /// When it began, ns.
        began: Option<Nanos> = "began_ns",
        /// When the scan at its end began, ns: what was touched since may be in this interval or the next.
        scanned: Option<Nanos> = "scanned_ns",
        /// First addresses of the runs of touched pages, in order.
        starts: Option<Vec<u64>> = "starts",
        /// Pages in each run.
        pages: Option<Vec<u64>> = "pages",
        /// First addresses of the runs of written pages; absent if writes were not seen.
        written_starts: Option<Vec<u64>> = "written_starts",
        /// Pages in each of them.
        written_pages: Option<Vec<u64>> = "written_pages",
        /// Touched pages that may not have been touched in this interval: copies since a fork.
        kept: Option<u64> = "kept_pages",
    }
}

row! {
    /// One access with all names found: the table that `export --format parquet` writes, no dataset of a recording.
    pub struct NamedAccess in "named_accesses" {
        /// When, ns since the recording began.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",
        /// The thread.
        tid: Option<u64> = "tid",
        /// The processor.
        cpu: Option<u64> = "cpu",
        /// Which byte.
        address: Option<u64> = "address",
        /// 1 for a write.
        write: Option<u64> = "write",
        /// Accesses that the row stands for.
        count: Option<u64> = "count",
        /// 1 if it was inside a system call.
        in_kernel: Option<u64> = "in_kernel",
        /// The object that it belongs to.
        object: Option<String> = "object",
        /// Its kind: global, allocation, stack, mapping.
        kind: Option<String> = "kind",
        /// Bytes from where the object begins.
        offset: Option<u64> = "offset_bytes",
        /// The instruction.
        instruction: Option<u64> = "ip",
        /// Its function, file and line.
        line: Option<String> = "line",
        /// How long it took, cycles of the processor, where the processor says so.
        latency: Option<u64> = "latency_cycles",
        /// Where the data came from, as perf has it.
        data_source: Option<u64> = "data_source",
    }
}

//! The live statistics page: what a heap says about itself while the program runs.
//!
//! The preload library holds one [`StatsPage`] in a page-aligned static named
//! `pagemill_stats`; the CLI finds it by that ELF symbol and reads it with
//! `process_vm_readv(2)`, so the program is never stopped and no file descriptor is held. After
//! `fork` the child has its own copy-on-write copy.
//!
//! Every field is an atomic that is only ever written whole (relaxed); a reader sees each number
//! as it was at some moment, the set of them only roughly at the same moment. Fields are only
//! ever added at the end: a reader checks `magic`, takes `version` and reads `size` bytes.
//!
//! ```text
//!  0        8         16                     page end
//!  +--------+----+----+-----------------------+
//!  | magic  |ver |size| counters (u64, LE) ...|
//!  +--------+----+----+-----------------------+
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

/// `"PGMLHEAP"` read as a little-endian integer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PGMLHEAP");

/// Version of the layout; grows when a field is added.
pub const VERSION: u64 = 1;

/// Buckets of the pause histogram: bucket `i` counts pauses in `[2^i, 2^(i+1))` nanoseconds.
pub const PAUSE_BUCKETS: usize = 40;

/// Buckets of the occupancy histogram: bucket `i` counts small-object spans whose live share is
/// in `[i/10, (i+1)/10)`; the last one counts full spans.
pub const OCCUPANCY_BUCKETS: usize = 11;

/// Which back end compacts: the value of [`StatsPage::backend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Backend {
    /// Nothing is compacted (an `n` configuration, or degraded: see [`StatsPage::degraded`]).
    None = 0,
    /// Pages are made identical and merged by the kernel's `ksmd`.
    Ksm = 1,
    /// Pages are remapped onto a shared image in a memfd.
    Remap = 2,
}

/// What stops writers while a group is remapped: the value of [`StatsPage::barrier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Barrier {
    /// None is needed (KSM) or none is in force.
    None = 0,
    /// `userfaultfd` write protection; blocks user and kernel writers.
    WriteProtect = 1,
    /// `UFFDIO_MOVE`: as above, blocks readers too, refuses pinned pages.
    Move = 2,
    /// The process has one thread, which does the compaction itself.
    SingleThread = 3,
}

/// What compaction waits for: the value of [`StatsPage::waits_for`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Waits {
    /// Nothing was decided yet: there is no helper, or no back end.
    Unknown = 0,
    /// For nothing: a pass is under way.
    Pass = 1,
    /// That the heap becomes fragmented.
    Fragments = 2,
    /// That there is anything worth a pass.
    Gain = 3,
    /// The end of the pause after passes that gained too little.
    Pause = 4,
    /// That what could be saved has been there for long enough to be worth the work.
    Worth = 5,
    /// CPU time: its share is used up.
    Share = 6,
    /// The time between two passes that the user set.
    Period = 7,
}

/// The names of [`Waits`] in recordings and in JSON, by number.
pub const WAITS: [&str; 8] =
    ["unknown", "pass", "fragments", "gain", "pause", "worth", "share", "period"];

/// What the last pass ended with: the value of [`StatsPage::stopped_by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Stop {
    /// There was none.
    NoPass = 0,
    /// All that was worth merging was merged.
    Done = 1,
    /// The program, which rested, worked again.
    Work = 2,
    /// Mappings: a fork, which copies each, would take too long with more.
    Fork = 3,
    /// Mappings: half of `vm.max_map_count` less the program's own.
    Limit = 4,
    /// Pages that the share of CPU time has room for (KSM back end).
    Share = 5,
    /// Memory, images or offers that the kernel refused.
    Refused = 6,
}

/// The names of [`Stop`] in recordings and in JSON, by number.
pub const STOPS: [&str; 7] = ["none", "done", "work", "fork", "limit", "share", "refused"];

/// Why the heap does less than it was asked to: bits of [`StatsPage::degraded`].
pub mod degraded {
    /// `memfd_create` failed; the remap back end is off.
    pub const NO_MEMFD: u64 = 1 << 0;
    /// No `userfaultfd` that also stops kernel writers, and more than one thread.
    pub const NO_BARRIER: u64 = 1 << 1;
    /// The helper thread could not be started.
    pub const NO_THREAD: u64 = 1 << 2;
    /// The map count budget is used up; only groups worth more are remapped.
    pub const VMA_BUDGET: u64 = 1 << 3;
    /// The kernel refused memory at least once.
    pub const NO_MEMORY: u64 = 1 << 4;
    /// KSM was asked for and is not available.
    pub const NO_KSM: u64 = 1 << 5;
    /// Pages may be pinned (io_uring, AIO, `O_DIRECT`) and this kernel cannot tell which.
    pub const PINS: u64 = 1 << 6;
    /// A variable of the environment has a value that cannot be used; its default is in force.
    pub const BAD_CONFIG: u64 = 1 << 7;
}

macro_rules! stats_page {
    ($($(#[$doc:meta])* $name:ident $([$len:expr])?,)*) => {
        /// The page itself. All sizes are bytes and all times nanoseconds unless a field says otherwise.
        #[repr(C, align(4096))]
        pub struct StatsPage {
            $($(#[$doc])* pub $name: stats_page!(@ty $($len)?),)*
        }

        impl StatsPage {
            /// A page of zeros: no magic, so a reader knows that no heap has started.
            pub const fn zeroed() -> Self {
                Self { $($name: stats_page!(@zero $($len)?),)* }
            }
        }
    };
    (@ty) => { AtomicU64 };
    (@ty $len:expr) => { [AtomicU64; $len] };
    (@zero) => { AtomicU64::new(0) };
    (@zero $len:expr) => { [const { AtomicU64::new(0) }; $len] };
}

/// The fields of the page, in their order, given to a macro: who reads the page has the same ones.
#[macro_export]
macro_rules! with_stats_fields {
    ($with:ident) => {
        $with! {
            /// [`MAGIC`] once the heap has started.
            magic,
            /// [`VERSION`].
            version,
            /// Bytes of this struct that the writer knows.
            size,
            /// Process that the heap belongs to (changes after `fork`).
            pid,
            /// The configuration in force, as the index into [`crate::config::NAMES`].
            config,
            /// [`Backend`] in force.
            backend,
            /// [`Barrier`] in force.
            barrier,
            /// Bits of [`degraded`].
            degraded,
            /// `CLOCK_MONOTONIC` when the heap started.
            started_ns,
            /// `CLOCK_MONOTONIC` of the last refresh by the helper thread.
            refreshed_ns,
            /// Page size in use.
            page_size,

            /// Bytes in slots and large objects that are allocated or in a thread's cache.
            live_bytes,
            /// Bytes of physical memory that the heap's pages take, merged pages counted once.
            footprint_bytes,
            /// The highest value that `footprint_bytes` had at a refresh.
            footprint_peak_bytes,
            /// Bytes of address space taken from the kernel for objects.
            mapped_bytes,
            /// Bytes taken for the heap's own tables.
            metadata_bytes,
            /// Bytes in large objects (page runs and own mappings).
            large_bytes,
            /// Bytes of free pages that are still resident.
            dirty_bytes,
            /// Bytes of free slots that sit in thread caches (part of `live_bytes`).
            cached_bytes,
            /// Thread caches in use.
            threads,
            /// Small-object spans by live share.
            occupancy[OCCUPANCY_BUCKETS],

            /// Compaction passes begun.
            passes,
            /// Groups in force: sets of virtual pages that share one physical image.
            groups,
            /// Virtual bytes in those groups.
            merged_bytes,
            /// Bytes that merging saves now (`merged_bytes` less the images).
            saved_bytes,
            /// Bytes of wholly free pages inside spans that were given back, in total.
            released_bytes,
            /// Pages that lost their sharing because the program wrote to them, in total.
            unmerged_pages,
            /// Groups given up before they were committed (changed, pinned or over budget), in total.
            aborted_groups,
            /// Mappings that compaction holds now.
            vmas,
            /// Mappings that compaction may hold.
            vma_budget,
            /// Wall time that compaction took, in total.
            compact_ns,
            /// CPU time of the helper thread, in total (`ksmd` not included: it is a kernel thread).
            helper_cpu_ns,
            /// Times for which a group's pages could not be written, by duration.
            pauses[PAUSE_BUCKETS],
            /// The longest of them.
            longest_pause_ns,
            /// Passes begun because the fragmentation score was above its threshold.
            trigger_score,
            /// Passes begun because the program was idle.
            trigger_idle,
            /// Passes begun because of memory pressure (PSI).
            trigger_psi,
            /// Passes begun because the cgroup neared its limit.
            trigger_cgroup,
            /// Passes begun on request.
            trigger_request,
            /// Passes not begun because the expected gain was below the cost.
            gated,
            /// Pages made identical and offered to `ksmd` that it was not seen to have merged yet (KSM back end);
            /// looked at every two seconds at most.
            ksm_pending,

            /// Written by `pagemill heap PID --compact`: the heap compares it to `request_done`.
            request,
            /// The last `request` served.
            request_done,
            /// Pages made identical and offered to `ksmd` so far, in total (KSM back end): a governor runs `ksmd`
            /// when this has grown.
            ksm_offered,
            /// Times for which a thread of the program waited because of compaction, by duration: a pause in which it
            /// wrote to a frozen page (the whole pause counts), or a sleep on a class's lock that the compactor held.
            stalls[PAUSE_BUCKETS],
            /// The longest of them.
            longest_stall_ns,
            /// What compaction waits for: [`Waits`].
            waits_for,
            /// `CLOCK_MONOTONIC` when that ends, or when the heap is looked at again; 0 if no moment is known.
            waits_until_ns,
            /// What the last pass ended with: [`Stop`].
            stopped_by,
            /// Bytes that merging is expected to save of what it could begin with now, as the last look at every span
            /// found.
            mergeable_bytes,
            /// Bytes of pages that would take part too, of spans that are left alone for a while: what the program
            /// wrote after it was merged, and what has changed just now.
            left_alone_bytes,
        }
    };
}
with_stats_fields!(stats_page);

impl StatsPage {
    /// Counts a time for which a thread of the program waited because of compaction.
    pub fn stalled(&self, ns: u64) {
        self.stalls[pause_bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.longest_stall_ns.fetch_max(ns, Ordering::Relaxed);
    }
}

/// The bucket of a histogram of durations that `ns` belongs to.
pub(crate) fn pause_bucket(ns: u64) -> usize {
    (63 - ns.max(1).leading_zeros() as usize).min(PAUSE_BUCKETS - 1)
}

// The page is one page: readers and the fork handler rely on it.
const _: () = assert!(core::mem::size_of::<StatsPage>() == 4096);

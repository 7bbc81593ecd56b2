//! What happened: one type for each dataset of a recording, and the table of them ([`EventKind`]).
//!
//! The table is all that model, documentation and redaction know of kinds. Its order is that in which events of one
//! stamp are read back. Who records a kind, and who shows it, is in the tables of `record` and `report`, by the same
//! [`EventKind`].

use std::fmt;

use crate::access::{Access, Allocation, Touched};
use crate::dataset::{Cell, Column, Row, Shape, row};
use crate::fault::{Fault, FaultCounts, FaultSum, MappingSample};
use crate::frag::FragSample;
use crate::huge::HugeDecision;
use crate::tiers::{TierDecision, TierOutcome, TierView};
use crate::units::{Bytes, Nanos};

/// Defines the kinds of events: each a row type of its own dataset. Of two events with the same
/// stamp, the kind that stands first is read back first.
macro_rules! events {
    ($($(#[doc = $about:literal])+ $kind:ident($row:ident) $(: $retention:ident)?,)*) => {
        /// An event of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $($(#[doc = $about])+ $kind(Box<$row>),)*
        }

        impl Event {
            /// When it happened, on the clock that the recording names.
            pub fn time(&self) -> Nanos {
                match self {
                    $(Self::$kind(row) => row.time,)*
                }
            }

            /// Its kind.
            pub fn kind(&self) -> EventKind {
                match self {
                    $(Self::$kind(_) => EventKind::$kind,)*
                }
            }

            /// The cells of its row, in the order of [`EventKind::columns`].
            pub fn cells(&self) -> Vec<Cell> {
                match self {
                    $(Self::$kind(row) => row.cells(),)*
                }
            }

            /// Puts a cell into a column of its row, by its number; whether it fits.
            fn set(&mut self, column: usize, cell: Cell) -> bool {
                match self {
                    $(Self::$kind(row) => row.set(column, cell),)*
                }
            }
        }

        /// The kinds of events, in the order in which those of one stamp are read back.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($(#[doc = $about])+ $kind,)*
        }

        impl EventKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// An event of this kind with these cells, in the order of [`EventKind::columns`]; `None` if one does not
            /// fit its column.
            pub fn event(self, cells: impl IntoIterator<Item = Cell>) -> Option<Event> {
                let mut event = match self {
                    $(Self::$kind => Event::$kind(Box::default()),)*
                };
                let mut cells = cells.into_iter().enumerate();
                cells.all(|(column, cell)| event.set(column, cell)).then_some(event)
            }
        }

        $(impl Recorded for $row {
            fn of(event: &Event) -> Option<&Self> {
                match event {
                    Event::$kind(row) => Some(row),
                    _ => None,
                }
            }
            fn into_event(self) -> Event {
                Event::$kind(Box::new(self))
            }
            fn time(&self) -> Nanos {
                self.time
            }
        })*

        /// What a recording may hold: the dataset of each kind, in their order.
        pub const SCHEMA: &[Dataset] = &[$(Dataset {
            name: $row::DATASET,
            about: concat!($($about),+),
            columns: $row::COLUMNS,
            make: make::<$row>,
            retention: retention!($($retention)?),
        }),*];

        /// Names of the datasets, in the order of the kinds.
        pub const DATASETS: &[&str] = &[$($row::DATASET),*];

        /// What is made of the row of each kind, in the order of the kinds.
        pub(crate) fn of_each_kind<M: MadeOfRow>() -> Vec<M::Made> {
            vec![$(M::made::<$row>()),*]
        }
    };
}

/// How the rows of a dataset are kept beside those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// As they come, and the oldest go first.
    Plain,
    /// There are millions of them: their parts are larger, so that these are not thousands of files.
    Numerous,
    /// Other rows say little without them (where memory is, how many faults there were): they go last.
    Explaining,
}

/// That of a kind, which says it where it is not plain.
macro_rules! retention {
    () => {
        Retention::Plain
    };
    ($retention:ident) => {
        Retention::$retention
    };
}

/// A dataset as its page in the documentation describes it.
#[derive(Clone, Copy, Debug)]
pub struct Dataset {
    /// Its directory in a recording.
    pub name: &'static str,
    /// What a row is.
    pub about: &'static str,
    /// Its columns, in file order.
    pub columns: &'static [Column],
    /// An event of the kind, whose cells are asked for one by one; what does not fit its column is left out.
    pub make: fn(Cells<'_>) -> Event,
    /// How its rows are kept.
    pub retention: Retention,
}

/// What gives the cell of a column.
pub type Cells<'a> = &'a mut dyn FnMut(&Column) -> Cell;

fn make<R: Recorded>(cell: Cells<'_>) -> Event {
    let mut row = R::default();
    for (at, column) in R::COLUMNS.iter().enumerate() {
        row.set(at, cell(column));
    }
    row.into_event()
}

impl EventKind {
    fn schema(self) -> &'static Dataset {
        // In the order of the kinds, each has its entry.
        &SCHEMA[self as usize]
    }

    /// The dataset of its rows.
    pub fn dataset(self) -> &'static str {
        self.schema().name
    }

    /// What a row is.
    pub fn about(self) -> &'static str {
        self.schema().about.trim()
    }

    /// The columns of a row, in file order.
    pub fn columns(self) -> &'static [Column] {
        self.schema().columns
    }
}

impl Event {
    /// Puts every text of its row through `change`.
    pub(crate) fn change_texts(&mut self, mut change: impl FnMut(&str) -> String) {
        let columns = self.kind().columns();
        if columns.iter().all(|column| column.shape != Shape::Text) {
            return;
        }
        for (number, cell) in self.cells().into_iter().enumerate() {
            if let Cell::Text(text) = cell {
                self.set(number, Cell::Text(change(&text)));
            }
        }
    }
}

/// A row that is an event.
pub trait Recorded: Row {
    /// The row in `event`, if it is of this kind.
    fn of(event: &Event) -> Option<&Self>;
    /// The event that this row is.
    fn into_event(self) -> Event;
    /// When it happened.
    fn time(&self) -> Nanos;
}

/// What is made for each kind of event, by the type of its row.
pub(crate) trait MadeOfRow {
    /// What that is.
    type Made;
    /// That for one kind.
    fn made<R: Recorded + Clone + fmt::Debug + Send + 'static>() -> Self::Made;
}

events! {
    /// A heap and its process, looked at once.
    Heap(HeapSample),
    /// What lay in an address space.
    Mapping(MappingSample): Explaining,
    /// A page fault that took long.
    Fault(Fault),
    /// Short page faults of a thread, summed up.
    FaultSum(FaultSum),
    /// How many faults took how long.
    FaultCounts(FaultCounts): Explaining,
    /// The free memory of a zone.
    Frag(FragSample),
    /// How long tasks waited for memory.
    Pressure(PressureSample),
    /// What a placement policy saw.
    TierView(TierView),
    /// What it decided.
    TierDecision(TierDecision),
    /// What came of that.
    TierOutcome(TierOutcome),
    /// A huge page decision, with what it was made from.
    Huge(HugeDecision),
    /// Memory taken from an allocator, or given back.
    Allocation(Allocation): Numerous,
    /// An access to memory.
    Access(Access): Numerous,
    /// The pages touched in an interval.
    Touched(Touched),
}

impl HeapSample {
    /// What the column `malloc` has for glibc's.
    pub const GLIBC: &'static str = "glibc's malloc";
}

row! {
    /// One look at a process: the kernel's accounting of it, and what its heap says about itself.
    ///
    /// Columns without a value were not measured; `meta.json` says why. Totals count from the
    /// start of the process (`cpu_ns`, `ksmd_cpu_ns`: from its or the system's start), so a rate
    /// is the difference between two rows.
    pub struct HeapSample in "heap" {
        /// Moment of the sample, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// The process.
        pid: Option<u64> = "pid",

        /// Proportional set size, bytes: each page shared out among its mappings
        /// (`/proc/PID/smaps_rollup`, Pss).
        pss: Option<Bytes> = "pss_bytes",
        /// Resident set size, bytes: a page counts once for each mapping (smaps_rollup, Rss).
        rss: Option<Bytes> = "rss_bytes",
        /// Highest resident set size since the process began or executed its program, bytes, by the kernel (VmHWM of
        /// `/proc/PID/status`): what lay between two samples is in it, too. Absent in recordings of earlier versions.
        peak_rss: Option<Bytes> = "peak_rss_bytes",
        /// Anonymous part of `pss_bytes` (Pss_Anon).
        pss_anon: Option<Bytes> = "pss_anon_bytes",
        /// Shared memory part of `pss_bytes`, which holds the images of the remap back end
        /// (Pss_Shmem).
        pss_shmem: Option<Bytes> = "pss_shmem_bytes",
        /// What the process's memfds hold that no page table has, bytes, and that is therefore in no process's Pss:
        /// images of the remap back end before their next touch, and dead parts of them. 0 without a memfd.
        unmapped: Option<Bytes> = "unmapped_bytes",
        /// Proportional swapped-out size, bytes (SwapPss).
        swap: Option<Bytes> = "swap_bytes",
        /// What of the resident set the program gave back to the kernel by `MADV_FREE` and the kernel has not taken
        /// yet, bytes (LazyFree): it goes when memory is short. Absent in recordings of earlier versions.
        lazy_free: Option<Bytes> = "lazy_free_bytes",
        /// Processes with memory of their own that it had started and that still ran, and theirs, without those that
        /// may not be looked into. Absent where nobody looked (a look at many takes long and so is rare), and in
        /// recordings of earlier versions.
        children: Option<u64> = "children",
        /// Proportional set size of these processes together, bytes: what several of them, or they and the recorded
        /// one, share counts once. In none of the other columns.
        children_pss: Option<Bytes> = "children_pss_bytes",
        /// The one of them with the largest proportional set size; none where there is none.
        largest_child: Option<u64> = "largest_child_pid",
        /// Charge of the process's memory cgroup, bytes, user and kernel memory.
        cgroup: Option<Bytes> = "cgroup_bytes",
        /// Kernel memory in that charge, bytes.
        cgroup_kernel: Option<Bytes> = "cgroup_kernel_bytes",
        /// Mappings (VMAs) of the process.
        mappings: Option<u64> = "mappings",
        /// CPU time of all threads of the process, user and system, ns.
        cpu: Option<Nanos> = "cpu_ns",
        /// CPU time of the kernel's `ksmd` thread since boot, ns; it serves every process.
        ksmd_cpu: Option<Nanos> = "ksmd_cpu_ns",
        /// Pages of this process that KSM has merged, images included (`/proc/PID/ksm_stat`).
        ksm_merging_pages: Option<u64> = "ksm_merging_pages",
        /// Pages of this process that ksmd keeps an entry for and looks at (`ksm_rmap_items`).
        ksm_items: Option<u64> = "ksm_items",
        /// The same over all processes (`/sys/kernel/mm/ksm`: pages shared, sharing, unshared and
        /// volatile).
        ksm_items_all: Option<u64> = "ksm_items_all",

        /// Configuration in force, such as `1y`.
        config: Option<String> = "config",
        /// Back end in force: `none`, `ksm`, `remap`.
        backend: Option<String> = "backend",
        /// Barrier in force: `none`, `write-protect`, `move`, `single-thread`.
        barrier: Option<String> = "barrier",
        /// Why the heap does less than asked: bits, see docs/concepts/recordings.md.
        degraded: Option<u64> = "degraded",
        /// When the heap started, ns of CLOCK_MONOTONIC.
        started: Option<Nanos> = "started_ns",
        /// When the heap last refreshed its numbers, ns of CLOCK_MONOTONIC.
        refreshed: Option<Nanos> = "refreshed_ns",
        /// Bytes allocated to the program or in a thread's cache.
        live: Option<Bytes> = "live_bytes",
        /// Physical bytes behind the heap, merged pages counted once.
        footprint: Option<Bytes> = "footprint_bytes",
        /// Highest `footprint_bytes` that the heap saw.
        footprint_peak: Option<Bytes> = "footprint_peak_bytes",
        /// Address space taken for objects, bytes.
        mapped: Option<Bytes> = "mapped_bytes",
        /// The heap's own tables, bytes.
        metadata: Option<Bytes> = "metadata_bytes",
        /// Bytes in large objects.
        large: Option<Bytes> = "large_bytes",
        /// Free pages that are still resident, bytes.
        dirty: Option<Bytes> = "dirty_bytes",
        /// Free slots in thread caches, bytes (part of `live_bytes`).
        cached: Option<Bytes> = "cached_bytes",
        /// Thread caches in use.
        threads: Option<u64> = "threads",
        /// Small-object spans by live share: entry i holds shares in [i/10, (i+1)/10), the last
        /// one full spans.
        occupancy: Option<Vec<u64>> = "occupancy",
        /// Compaction passes begun.
        passes: Option<u64> = "passes",
        /// Groups of pages that share one image now.
        groups: Option<u64> = "groups",
        /// Virtual bytes in those groups.
        merged: Option<Bytes> = "merged_bytes",
        /// Bytes that merging saves now.
        saved: Option<Bytes> = "saved_bytes",
        /// Bytes of free pages given back, total.
        released: Option<Bytes> = "released_bytes",
        /// Pages that lost their sharing to a write, total.
        unmerged_pages: Option<u64> = "unmerged_pages",
        /// Groups given up before they were in force, total.
        aborted_groups: Option<u64> = "aborted_groups",
        /// Mappings that compaction holds now.
        vmas: Option<u64> = "vmas",
        /// Mappings that compaction may hold.
        vma_budget: Option<u64> = "vma_budget",
        /// Wall time of compaction, ns, total.
        compact: Option<Nanos> = "compact_ns",
        /// CPU time of the heap's helper thread, ns, total (part of `cpu_ns`).
        helper_cpu: Option<Nanos> = "helper_cpu_ns",
        /// Pauses by length, total: entry i counts those in [2^i, 2^(i+1)) ns.
        pauses: Option<Vec<u64>> = "pauses",
        /// The longest of them, ns.
        longest_pause: Option<Nanos> = "longest_pause_ns",
        /// Passes begun because of the fragmentation score, total.
        trigger_score: Option<u64> = "trigger_score",
        /// Passes begun because the program was idle, total.
        trigger_idle: Option<u64> = "trigger_idle",
        /// Passes begun because of memory pressure, total.
        trigger_psi: Option<u64> = "trigger_psi",
        /// Passes begun because the cgroup neared its limit, total.
        trigger_cgroup: Option<u64> = "trigger_cgroup",
        /// Passes begun on request, total.
        trigger_request: Option<u64> = "trigger_request",
        /// Passes not begun because the gain was below the cost, total.
        gated: Option<u64> = "gated",
        /// Pages offered to ksmd that it has not merged yet.
        ksm_pending: Option<u64> = "ksm_pending",
        /// Stalls by length, total, as `pauses`: times for which a thread of the program waited because of compaction.
        /// Absent in recordings of earlier versions.
        stalls: Option<Vec<u64>> = "stalls",
        /// The longest of them, ns.
        longest_stall: Option<Nanos> = "longest_stall_ns",
        /// What compaction waits for: `pass` (nothing, one is under way), `fragments`, `gain` (that anything is worth a
        /// pass), `pause` (after passes that gained too little), `worth` (that what could be saved is worth the work),
        /// `share` (of CPU time), `period` (that the user set). Absent in recordings of earlier versions, as the next
        /// four.
        waits_for: Option<String> = "waits_for",
        /// When that ends, or the heap is looked at again, ns of CLOCK_MONOTONIC; 0 if no moment is known.
        waits_until: Option<Nanos> = "waits_until_ns",
        /// What the last pass ended with: `none` (there was none), `done`, `work` (the program, which rested, worked
        /// again), `fork` and `limit` (the bounds on mappings), `share` (of CPU time), `refused` (by the kernel).
        stopped_by: Option<String> = "stopped_by",
        /// Bytes that merging is expected to save now.
        mergeable: Option<Bytes> = "mergeable_bytes",
        /// Bytes of sparse pages that are left alone for a while, since the program wrote them lately.
        left_alone: Option<Bytes> = "left_alone_bytes",

        /// Whose malloc the process has, where that was asked what it keeps free: `glibc's malloc` or `jemalloc`. Asked
        /// once a second at most, and not where the process is on pagemill's heap.
        malloc: Option<String> = "malloc",
        /// What it holds, bytes. Of glibc the address space of all arenas, without blocks that are mapped by
        /// themselves.
        malloc_heap: Option<Bytes> = "malloc_heap_bytes",
        /// Free in it, bytes.
        malloc_free: Option<Bytes> = "malloc_free_bytes",
        /// Of that, what is in memory in whole pages: what it could give back, bytes.
        malloc_returnable: Option<Bytes> = "malloc_returnable_bytes",
        /// Free in pieces of pages that hold data, too, bytes: no malloc gives back a part of a page.
        malloc_pieces: Option<Bytes> = "malloc_pieces_bytes",
    }
}

row! {
    /// How long tasks have waited for memory (pressure stall information): reclaim, refaults and swap. Totals count
    /// from the start of the machine or the cgroup, so a share of time is the difference between two rows.
    pub struct PressureSample in "pressure" {
        /// Moment of the look, ns of the recording's clock.
        time: Nanos = "time_ns",
        /// Time in which a task of the machine waited or more did, ns (`/proc/pressure/memory`, some).
        some: Option<Nanos> = "some_ns",
        /// Time in which all of them waited, ns (full).
        full: Option<Nanos> = "full_ns",
        /// Time in which a task of the process's memory cgroup waited or more did, ns (`memory.pressure`, some).
        cgroup_some: Option<Nanos> = "cgroup_some_ns",
        /// Time in which all of them waited, ns (full).
        cgroup_full: Option<Nanos> = "cgroup_full_ns",
    }
}

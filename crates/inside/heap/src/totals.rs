//! What the heap says about itself: totals for the C library's queries, the statistics page.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Bin;
use crate::heap::Heap;
use crate::os::Os;
use crate::size::{GRANULE, SIZES};
use crate::span::{Span, State};
use crate::stats::OCCUPANCY_BUCKETS;

/// What the heap holds of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTotals {
    /// Bytes a slot.
    pub slot_size: usize,
    /// Spans of the class.
    pub spans: usize,
    /// Slots in them.
    pub slots: usize,
    /// Slots that are allocated or in a thread's cache.
    pub live: usize,
}

/// What the heap holds, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Address space taken from the operating system for objects.
    pub mapped: usize,
    /// Taken for the heap's own tables.
    pub metadata: usize,
    /// Slots that are allocated or cached, and large objects.
    pub live: usize,
    /// Slots in threads' caches (part of `live`).
    pub cached: usize,
    /// Slots of small-object spans that are free.
    pub free_slots: usize,
    /// Large objects (part of `live`).
    pub large: usize,
    /// Number of large objects.
    pub large_count: usize,
    /// Of `large`, what is in mappings of its own.
    pub own_mappings: usize,
    /// Number of own mappings.
    pub own_mapping_count: usize,
    /// Free pages that are still resident.
    pub dirty: usize,
    /// Number of threads with a cache.
    pub threads: usize,
}

impl<O: Os> Heap<O> {
    /// Bytes of free slots in caches and between them, and the number of caches in use.
    fn cached(&self) -> (usize, usize) {
        let (mut bytes, mut threads) = (0, 0);
        let mut next = self.caches.load(Ordering::Acquire);
        // SAFETY: caches are never unmapped; `used`, `next` and the bins' tops are atomics, and their bases never
        // change.
        while let Some(cache) = unsafe { next.as_ref() } {
            threads += usize::from(cache.used.load(Ordering::Relaxed));
            let held = |(class, bin): (usize, &Bin)| bin.len() * SIZES[class] as usize;
            bytes += cache.bins.iter().enumerate().map(held).sum::<usize>();
            next = cache.next.load(Ordering::Relaxed);
        }
        for (transfer, &size) in self.transfers.iter().zip(&SIZES) {
            bytes += transfer.len() * size as usize;
        }
        (bytes, threads)
    }

    /// What the heap holds now.
    pub fn totals(&self) -> Totals {
        let (cached, threads) = self.cached();
        let large = self.large.bytes();
        let mut totals = Totals {
            mapped: self.pages.mapped() + self.large.own_bytes() + self.large.kept_bytes(),
            metadata: self.meta.bytes() + self.pages.mapped() / GRANULE * size_of::<*mut Span>(),
            live: large,
            cached,
            free_slots: 0,
            large,
            large_count: self.large.count(),
            own_mappings: self.large.own_bytes(),
            own_mapping_count: self.large.own_count(),
            dirty: self.pages.dirty() + self.large.kept_bytes(),
            threads,
        };
        self.each_class(&mut |class| {
            totals.live += class.live * class.slot_size;
            totals.free_slots += class.slots.saturating_sub(class.live) * class.slot_size;
        });
        let held = self.quarantine.held().min(totals.live - large);
        totals.live -= held;
        totals.free_slots += held;
        totals
    }

    /// Calls `f` for each size class, smallest first.
    pub fn each_class(&self, f: &mut dyn FnMut(ClassTotals)) {
        for (class, central) in self.centrals.iter().enumerate() {
            f(ClassTotals {
                slot_size: SIZES[class] as usize,
                spans: central.spans(),
                slots: central.slots(),
                live: central.live(),
            });
        }
    }

    /// Resident bytes that are in no span: large objects and free pages.
    pub fn beside_spans(&self) -> usize {
        self.large.bytes() + self.pages.dirty() + self.large.kept_bytes()
    }

    /// Brings the statistics page up to date; scans every span. The footprint only if nothing compacts (not `engine`):
    /// else it is the engine's to tell, which knows what is merged.
    pub fn refresh(&self, engine: bool) {
        let Some(stats) = self.stats() else { return };
        let store = |field: &AtomicU64, value: usize| field.store(value as u64, Ordering::Relaxed);
        let page = self.page();
        let mut resident = 0;
        let mut occupancy = [0; OCCUPANCY_BUCKETS];
        for index in 0..self.span_count() {
            let Some(span) = self.span_at(index) else { break };
            // Without the lock: each number is right at some moment, which is all that the page promises.
            let this = span.get();
            if this.state() != State::Small {
                continue;
            }
            let (len, slots) = (this.len(), usize::from(this.slots()).max(1));
            resident += (this.resident().count_ones() as usize * page).min(len);
            let share = usize::from(this.live_count()) * (OCCUPANCY_BUCKETS - 1) / slots;
            occupancy[share.min(OCCUPANCY_BUCKETS - 1)] += 1;
        }
        let totals = self.totals();
        let footprint = (resident + self.beside_spans())
            .saturating_sub(stats.saved_bytes.load(Ordering::Relaxed) as usize);
        store(&stats.live_bytes, totals.live);
        if !engine {
            store(&stats.footprint_bytes, footprint);
            stats.footprint_peak_bytes.fetch_max(footprint as u64, Ordering::Relaxed);
        }
        store(&stats.mapped_bytes, totals.mapped);
        store(&stats.metadata_bytes, totals.metadata);
        store(&stats.large_bytes, totals.large);
        store(&stats.dirty_bytes, totals.dirty);
        store(&stats.cached_bytes, totals.cached);
        store(&stats.threads, totals.threads);
        for (field, count) in stats.occupancy.iter().zip(occupancy) {
            store(field, count);
        }
        stats.refreshed_ns.store(self.os.now_ns(), Ordering::Relaxed);
    }
}

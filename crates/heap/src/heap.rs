//! The facade: one heap, as the C library functions and the compactor use it.
//!
//! Order of locks: registry, classes (ascending), held-back frees, large objects, page heap, metadata. None is
//! held over a system call, except that the tables grow (a logarithmic number of times) under the last.

use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::bits::{self, Bits};
use crate::cache::{self, Bin, Cache, Event, LOOK};
use crate::central::{self, BATCH, Batch, Central, Returns};
use crate::config::Config;
use crate::hardened::Hardened;
use crate::large::{GROWN_MIN, Large};
use crate::meta::Meta;
use crate::os::{Misuse, Os};
use crate::pagemap::PageMap;
use crate::pages::{Context, DECAY_NS, Pages, RUN_MAX};
use crate::size::{self, CLASSES, GRANULE, SIZES, SMALL_MAX};
use crate::span::{Span, SpanRef, SpanView, State};
use crate::stats::{OCCUPANCY_BUCKETS, StatsPage};
use crate::sync::{AtomicU32, Lock, Locked};

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

#[derive(Debug)]
struct Registry {
    threads: usize,
}

const NEW: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

/// A heap over an operating system. It lives in a static; all zero until [`Heap::start`].
#[derive(Debug)]
pub struct Heap<O: Os> {
    pub(crate) os: O,
    phase: AtomicU32,
    config: AtomicU32,
    page: AtomicUsize,
    key: AtomicUsize,
    stats: AtomicPtr<StatsPage>,
    /// Every cache ever made, linked by `next`; caches are never unmapped.
    caches: AtomicPtr<Cache>,
    registry: Locked<Registry>,
    pub(crate) centrals: [Central; CLASSES],
    pub(crate) hardened: Hardened,
    pub(crate) large: Large,
    pub(crate) pages: Pages,
    pub(crate) meta: Meta,
    /// When the classes' kept spans were given back last.
    kept_since: AtomicU64,
    /// What the page map holds for memory that was freed.
    tomb: Span,
    pub(crate) map: PageMap,
}

/// What a free that is not plain turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The start of a slot.
    Slot(SpanRef, usize),
    /// A large object.
    Large(SpanRef),
    /// An error.
    Wrong(Misuse),
}

fn config_bits(config: Config) -> u32 {
    u32::from(config.randomise) | u32::from(config.compact) << 2 | u32::from(config.hardened) << 3
}

impl<O: Os> Heap<O> {
    /// A heap that has not started: nothing can be allocated from it yet.
    pub const fn new(os: O) -> Self {
        Self {
            os,
            phase: AtomicU32::new(NEW),
            config: AtomicU32::new(0),
            page: AtomicUsize::new(0),
            key: AtomicUsize::new(0),
            stats: AtomicPtr::new(null_mut()),
            caches: AtomicPtr::new(null_mut()),
            registry: Locked::new(Registry { threads: 0 }),
            centrals: [const { Central::new() }; CLASSES],
            hardened: Hardened::new(),
            large: Large::new(),
            pages: Pages::new(),
            meta: Meta::new(),
            kept_since: AtomicU64::new(0),
            tomb: Span::new(),
            map: PageMap::new(),
        }
    }

    /// Starts the heap. The first call wins; others wait until it is done and change nothing.
    pub fn start(&self, config: Config, stats: &'static StatsPage) {
        let first =
            self.phase.compare_exchange(NEW, STARTING, Ordering::Acquire, Ordering::Acquire);
        if first.is_err() {
            while !self.started() {
                self.os.wait(&self.phase, STARTING);
            }
            return;
        }
        self.page.store(self.os.page_size(), Ordering::Relaxed);
        self.key.store(self.os.entropy() as usize, Ordering::Relaxed);
        self.config.store(config_bits(config), Ordering::Relaxed);
        self.stats.store((&raw const *stats).cast_mut(), Ordering::Relaxed);
        stats.page_size.store(self.os.page_size() as u64, Ordering::Relaxed);
        stats.config.store(config.index() as u64, Ordering::Relaxed);
        self.pages.set_clock(self.os.now_ns());
        self.phase.store(STARTED, Ordering::Release);
        // Waiters are woken one at a time; each that is still asleep is behind another call to `wait`,
        // which returns at once because the word has changed.
        self.os.wake(&self.phase);
    }

    /// Whether [`Heap::start`] is done.
    #[inline]
    pub fn started(&self) -> bool {
        self.phase.load(Ordering::Acquire) == STARTED
    }

    /// The configuration in force (all zero, `0n`, before the start).
    pub fn config(&self) -> Config {
        let bits = self.config.load(Ordering::Relaxed);
        Config { randomise: (bits & 3) as u8, compact: bits & 4 != 0, hardened: bits & 8 != 0 }
    }

    /// The operating system.
    #[inline]
    pub fn os(&self) -> &O {
        &self.os
    }

    /// The statistics page, once started.
    pub fn stats(&self) -> Option<&'static StatsPage> {
        // SAFETY: null, or from the `&'static StatsPage` that `start` was given.
        unsafe { self.stats.load(Ordering::Relaxed).as_ref() }
    }

    pub(crate) fn is_hardened(&self) -> bool {
        self.config().hardened
    }

    pub(crate) fn page(&self) -> usize {
        self.page.load(Ordering::Relaxed)
    }

    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed) as u64
    }

    pub(crate) fn cx(&self) -> Context<'_, O> {
        Context {
            os: &self.os,
            map: &self.map,
            meta: &self.meta,
            tomb: (&raw const self.tomb).cast_mut(),
            page: self.page(),
        }
    }

    /// A cache for the calling thread, new or recycled; null if there is no memory for one.
    pub fn attach(&self) -> *mut Cache {
        let mut registry = self.registry.lock(&self.os);
        let mut next = self.caches.load(Ordering::Relaxed);
        // SAFETY: caches are never unmapped; `used` and `next` are atomics.
        while let Some(cache) = unsafe { next.as_ref() } {
            if !cache.used.load(Ordering::Relaxed) {
                cache.used.store(true, Ordering::Relaxed);
                registry.threads += 1;
                return next;
            }
            next = cache.next.load(Ordering::Relaxed);
        }
        let cache = self.meta.allocate(&self.os, size_of::<Cache>()).cast::<Cache>();
        if cache.is_null() {
            return cache;
        }
        let seed = self.os.entropy() ^ cache.addr() as u64;
        // SAFETY: zeroed memory of this size, which nobody else has; `used` and `next` are written before others
        // can find it.
        unsafe {
            Cache::prepare(cache, self.key(), seed);
            (*cache).used.store(true, Ordering::Relaxed);
            (*cache).next.store(self.caches.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.caches.store(cache, Ordering::Release);
        registry.threads += 1;
        cache
    }

    /// Empties a cache and keeps it for another thread. Null is ignored.
    ///
    /// # Safety
    /// `cache` came from [`Heap::attach`], and nobody uses it from now on.
    pub unsafe fn detach(&self, cache: *mut Cache) {
        if cache.is_null() {
            return;
        }
        // SAFETY: the caller owns the cache.
        unsafe { self.empty_cache(cache) };
        let mut registry = self.registry.lock(&self.os);
        registry.threads -= 1;
        // SAFETY: as above; the lock orders this before the next owner's use.
        unsafe { (*cache).used.store(false, Ordering::Relaxed) };
    }

    /// Gives back everything in a cache.
    ///
    /// # Safety
    /// The caller owns the cache.
    pub(crate) unsafe fn empty_cache(&self, cache: *mut Cache) {
        for class in 0..CLASSES {
            // SAFETY: the caller owns the cache.
            let bin = unsafe { &(*cache).bins[class] };
            while bin.len() > 0 {
                // SAFETY: as above.
                unsafe { self.flush(cache, class, BATCH.min(bin.len() as usize)) };
            }
            Cache::shrink(bin, class);
        }
    }

    /// Allocates `size` bytes, aligned to 16; null if there is no memory.
    ///
    /// # Safety
    /// `cache` is null or the calling thread's own; the heap has started.
    #[inline(always)]
    pub unsafe fn allocate(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        if size <= SMALL_MAX && !cache.is_null() {
            // SAFETY: the caller owns the cache, and `class_of` is below `CLASSES`.
            let bin = unsafe { (*cache).bins.get_unchecked(size::class_of(size)) };
            // SAFETY: as above.
            if let Some(slot) = unsafe { bin.pop() } {
                // A live object never carries the mark of a free one.
                // SAFETY: a slot is at least 16 bytes and belongs to the caller now.
                unsafe { slot.cast::<u64>().add(1).write(0) };
                return slot;
            }
        }
        // SAFETY: as for this function.
        unsafe { self.allocate_slow(cache, size) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn allocate_slow(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        if size > SMALL_MAX || self.is_hardened() {
            return self.allocate_large(size, 16, false);
        }
        // SAFETY: as for `allocate`.
        unsafe { self.allocate_slot(cache, size::class_of(size)) }
    }

    fn allocate_large(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if self.is_hardened() {
            return self.hardened_allocate(size, align, zero);
        }
        self.large.allocate(self.cx(), &self.pages, size, align, zero, false)
    }

    /// A slot of a class.
    ///
    /// # Safety
    /// `cache` as for [`Heap::allocate`].
    unsafe fn allocate_slot(&self, cache: *mut Cache, class: usize) -> *mut u8 {
        let slot = if cache.is_null() {
            self.take_one(class, 0)
        } else {
            // SAFETY: the caller owns the cache.
            let bin = unsafe { &(*cache).bins[class] };
            // SAFETY: as above.
            if bin.len() == 0 && !unsafe { self.refill(cache, class) } {
                return null_mut();
            }
            // SAFETY: as above.
            unsafe { bin.pop() }
        };
        let Some(slot) = slot else { return null_mut() };
        // SAFETY: a slot is at least 16 bytes and belongs to the caller now.
        unsafe { slot.cast::<u64>().add(1).write(0) };
        slot
    }

    /// One slot straight from the class.
    pub(crate) fn take_one(&self, class: usize, from: u32) -> Option<*mut u8> {
        let mut batch = Batch::new();
        self.take(class, 1, from, &mut batch);
        let taken = batch.words().first()?;
        let (span, slot) = (taken.span(), 64 * taken.word() + taken.mask.trailing_zeros() as usize);
        Some(core::ptr::with_exposed_provenance_mut(
            span.get().start() + slot * SIZES[class] as usize,
        ))
    }

    /// Takes up to `wanted` slots of a class into `batch`, making a span if there is none.
    fn take(&self, class: usize, wanted: usize, from: u32, batch: &mut Batch) -> usize {
        let central = &self.centrals[class];
        let page = self.page();
        let taken = central.take(&self.os, None, wanted, from, page, batch);
        if taken > 0 {
            return taken;
        }
        let Some(fresh) = self.make_span(class) else { return 0 };
        central.take(&self.os, Some(fresh), wanted, from, page, batch)
    }

    fn make_span(&self, class: usize) -> Option<SpanRef> {
        let shape = size::geometry(class, self.page());
        let span = self.pages.allocate(self.cx(), shape.granules, shape.align)?;
        let this = span.get();
        let resident = if this.is_zeroed() && shape.pages > 0 { 0 } else { u16::MAX };
        let config = self.config();
        this.become_small(class, shape.slots, resident, config.randomise < 2 && !config.hardened);
        self.map.set_range(this.start(), shape.granules, span.0.as_ptr());
        Some(span)
    }

    /// Fills a bin.
    ///
    /// # Safety
    /// The caller owns the cache; the bin is empty.
    #[cold]
    unsafe fn refill(&self, cache: *mut Cache, class: usize) -> bool {
        // SAFETY: the caller owns the cache; the references are to fields that do not overlap.
        let (bin, rng) = unsafe { (&(*cache).bins[class], &mut (*cache).rng) };
        let randomise = self.config().randomise > 0;
        let wanted = (bin.cap() as usize).div_ceil(2);
        let from = if randomise { rng.next() as u32 % 256 } else { 0 };
        let mut batch = Batch::new();
        if self.take(class, wanted, from, &mut batch) == 0 {
            return false;
        }
        // SAFETY: the caller owns the cache.
        unsafe { Cache::grow(cache, class, Event::EMPTY) };
        let size = SIZES[class] as usize;
        for word in batch.words() {
            let start = word.span().get().start() + 64 * word.word() * size;
            // SAFETY: the caller owns the cache; the bin is empty and `wanted` is within its room.
            unsafe { bin.fill(start, size, word.mask, randomise.then_some(&mut *rng)) };
        }
        if !randomise {
            // The newest is popped first.
            // SAFETY: as above.
            unsafe { bin.entries() }.reverse();
        }
        // SAFETY: as above.
        unsafe { self.look(cache, class) };
        true
    }

    /// Notes that a bin was refilled or flushed, and now and then gives back half of one that was not.
    ///
    /// # Safety
    /// The caller owns the cache.
    unsafe fn look(&self, cache: *mut Cache, class: usize) {
        // SAFETY: the caller owns the cache.
        let idle = unsafe {
            (*cache).busy[class] = true;
            (*cache).events = (*cache).events.wrapping_add(1);
            if !(*cache).events.is_multiple_of(LOOK) {
                return;
            }
            let look = (*cache).look as usize;
            (*cache).look = ((look + 1) % CLASSES) as u32;
            if core::mem::take(&mut (*cache).busy[look]) {
                return;
            }
            look
        };
        // SAFETY: as above.
        let bin = unsafe { &(*cache).bins[idle] };
        if bin.len() > 0 {
            // SAFETY: as above.
            unsafe { self.flush(cache, idle, (bin.len() as usize).div_ceil(2).min(BATCH)) };
            Cache::shrink(bin, idle);
        }
    }

    /// Gives the oldest `count` entries of a bin (at most [`BATCH`]) back to the class.
    ///
    /// # Safety
    /// The caller owns the cache; the bin has that many entries.
    pub(crate) unsafe fn flush(&self, cache: *mut Cache, class: usize, count: usize) {
        // SAFETY: the caller owns the cache.
        let bin = unsafe { &(*cache).bins[class] };
        let mut returns = Returns::new();
        // SAFETY: as above; the slice is not used after `drop_oldest`.
        for &mut slot in &mut unsafe { bin.entries() }[..count] {
            let Some(span) = NonNull::new(self.map.get(slot.addr())).map(SpanRef) else {
                self.os.misuse(Misuse::WildFree, slot)
            };
            let index = size::slot_at(class, slot.addr() - span.get().start());
            if index >= usize::from(span.get().slots()) {
                self.os.misuse(Misuse::WildFree, slot);
            }
            // SAFETY: `count` is at most `BATCH`.
            if !unsafe { returns.add(span, index) } {
                self.os.misuse(Misuse::DoubleFree, slot);
            }
        }
        // SAFETY: as above.
        unsafe { bin.drop_oldest(count) };
        self.settle(self.centrals[class].give(&self.os, returns.words()));
    }

    /// Gives empty spans to the page heap, and names a double free.
    pub(crate) fn settle(&self, given: central::Given) {
        if let Some(word) = given.double {
            let (span, slot) =
                (word.span(), 64 * word.word() + word.mask.trailing_zeros() as usize);
            let object = span.get().start() + slot * span.get().slot_size() as usize;
            self.os.misuse(Misuse::DoubleFree, core::ptr::with_exposed_provenance_mut(object));
        }
        self.free_spans(given.empty);
    }

    fn free_spans(&self, mut next: *mut Span) {
        if next.is_null() {
            return;
        }
        while let Some(span) = NonNull::new(next).map(SpanRef) {
            next = span.get().next();
            self.free_span(span);
        }
        self.purge_if_due();
    }

    /// Without a helper thread, free memory is given back on the way of those who free it.
    fn purge_if_due(&self) {
        if self.pages.is_due() {
            let now = self.os.now_ns();
            if self.pages.is_late(now) {
                self.purge(now);
            }
        }
    }

    /// As [`Heap::allocate`], and the `size` bytes are zero.
    ///
    /// # Safety
    /// As [`Heap::allocate`].
    #[inline]
    pub unsafe fn allocate_zeroed(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        if size > SMALL_MAX {
            return self.allocate_large(size, 16, true);
        }
        // SAFETY: as for this function.
        let object = unsafe { self.allocate(cache, size) };
        if !object.is_null() {
            // SAFETY: the object is at least this long.
            unsafe { object.write_bytes(0, size) };
        }
        object
    }

    /// As [`Heap::allocate`], at a multiple of `align`, a power of two.
    ///
    /// # Safety
    /// As [`Heap::allocate`].
    pub unsafe fn allocate_aligned(&self, cache: *mut Cache, align: usize, size: usize) -> *mut u8 {
        match size::class_of_aligned(align, size) {
            // SAFETY: as for this function.
            Some(class) if !self.is_hardened() => unsafe {
                self.allocate(cache, SIZES[class] as usize)
            },
            _ => self.allocate_large(size, align, false),
        }
    }

    /// Frees an object. Null is ignored. A double or wild free ends the program through [`Os::misuse`].
    ///
    /// # Safety
    /// `cache` as for [`Heap::allocate`]; nobody uses the object from now on.
    #[inline(always)]
    pub unsafe fn free(&self, cache: *mut Cache, object: *mut u8) {
        let address = object.addr();
        let span = self.map.get(address);
        if !span.is_null() && !cache.is_null() {
            // SAFETY: page map entries are descriptors, which are never unmapped.
            let span = unsafe { &*span };
            let offset = address.wrapping_sub(span.start()) as u32;
            if size::is_slot_start(span.reciprocal(), offset) {
                // SAFETY: the caller owns the cache; a non-zero reciprocal comes with a class below `CLASSES`.
                let (bin, key) =
                    unsafe { ((*cache).bins.get_unchecked(span.class()), (*cache).key) };
                // SAFETY: the object is a slot of at least 16 bytes that the caller gave up.
                let second = unsafe { &mut *object.cast::<u64>().add(1) };
                let mark = cache::mark(key, address);
                // SAFETY: the caller owns the cache.
                if *second != mark && unsafe { bin.push(object) } {
                    *second = mark;
                    return;
                }
            }
        }
        // SAFETY: as for this function.
        unsafe { self.free_slow(cache, object) };
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(&self, cache: *mut Cache, object: *mut u8) {
        if object.is_null() {
            return;
        }
        match self.lookup(object.addr()) {
            Found::Wrong(misuse) => self.os.misuse(misuse, object),
            Found::Large(span) => {
                let hardened = self.is_hardened();
                if hardened {
                    self.hardened_check_large(span.get());
                }
                if !self.large.free(self.cx(), &self.pages, span, !hardened) {
                    self.os.misuse(Misuse::DoubleFree, object);
                }
                self.purge_if_due();
            }
            Found::Slot(span, slot) if self.is_hardened() => self.hardened_free(span, slot),
            Found::Slot(span, slot) => {
                let this = span.get();
                // SAFETY: the object is a slot of at least 16 bytes that the caller gave up.
                let second = unsafe { object.cast::<u64>().add(1) };
                let mark = cache::mark(self.key(), object.addr());
                // SAFETY: as above.
                if unsafe { second.read() } == mark {
                    self.os.misuse(Misuse::DoubleFree, object);
                }
                let class = this.class();
                // Objects on pages that compaction has in hand are not written to: that would undo its work.
                if cache.is_null() || this.blocked_pages() != 0 {
                    self.settle(self.centrals[class].give_one(&self.os, span, slot));
                    return;
                }
                // SAFETY: as above.
                unsafe { second.write(mark) };
                // SAFETY: the caller owns the cache.
                unsafe { self.push_slow(cache, class, object) };
            }
        }
    }

    /// Adds a slot to a bin that may be full; at randomisation level 2 it changes places with a random one.
    ///
    /// # Safety
    /// The caller owns the cache.
    unsafe fn push_slow(&self, cache: *mut Cache, class: usize, object: *mut u8) {
        // SAFETY: the caller owns the cache; the references are to fields that do not overlap.
        let (bin, rng) = unsafe { (&(*cache).bins[class], &mut (*cache).rng) };
        // SAFETY: as above.
        if !unsafe { bin.push(object) } {
            // SAFETY: as above.
            if !unsafe { Cache::grow(cache, class, Event::FULL) } {
                let half = (bin.len() as usize).div_ceil(2).min(BATCH);
                // SAFETY: as above; the bin is full, so it has that many entries.
                unsafe { self.flush(cache, class, half) };
                // SAFETY: as above.
                unsafe { self.look(cache, class) };
            }
            // SAFETY: as above; there is room now.
            unsafe { bin.push(object) };
        }
        if self.config().randomise == 2 {
            // SAFETY: as above.
            let entries = unsafe { bin.entries() };
            let last = entries.len() - 1;
            entries.swap(last, rng.below(entries.len() as u32) as usize);
        }
    }

    /// What is at an address.
    fn lookup(&self, address: usize) -> Found {
        let Some(span) = NonNull::new(self.map.get(address)).map(SpanRef) else {
            return Found::Wrong(Misuse::WildFree);
        };
        let this = span.get();
        match this.state() {
            State::Small => match central::slot_start(this, address) {
                Some(slot) => Found::Slot(span, slot),
                None => Found::Wrong(Misuse::WildFree),
            },
            State::Large | State::Mapped if this.object() == address => Found::Large(span),
            State::Large | State::Mapped => Found::Wrong(Misuse::WildFree),
            // Memory that was freed, unless a large object has been put there and this points into it.
            State::Free | State::Unused | State::Busy => match self.enclosing(address) {
                Some(_) => Found::Wrong(Misuse::WildFree),
                None => Found::Wrong(Misuse::DoubleFree),
            },
        }
    }

    /// The span in use that an address lies in, wherever in it.
    fn enclosing(&self, address: usize) -> Option<SpanRef> {
        let covers = |span: SpanRef| {
            let this = span.get();
            let used = matches!(this.state(), State::Small | State::Large | State::Mapped);
            used && (this.start()..this.end()).contains(&address)
        };
        let first = address & !(GRANULE - 1);
        for at in (0..RUN_MAX).map_while(|back| first.checked_sub(back * GRANULE)) {
            if let Some(span) = NonNull::new(self.map.get(at)).map(SpanRef) {
                if covers(span) {
                    return Some(span);
                }
                if span.get().state() != State::Unused {
                    break;
                }
            }
        }
        self.large.find(&self.os, address)
    }

    /// Resizes an object: the first `min(old, size)` bytes stay; null, and nothing changed, if there is no memory.
    /// A null `object` allocates. `size` zero is the caller's to decide: here it is a smallest object.
    ///
    /// # Safety
    /// As [`Heap::free`] on success; only the returned pointer may be used.
    pub unsafe fn reallocate(&self, cache: *mut Cache, object: *mut u8, size: usize) -> *mut u8 {
        if object.is_null() {
            // SAFETY: as for this function.
            return unsafe { self.allocate(cache, size) };
        }
        let usable = match self.lookup(object.addr()) {
            Found::Wrong(misuse) => self.os.misuse(misuse, object),
            Found::Slot(..) | Found::Large(_) if self.is_hardened() => {
                let usable = self.usable_size(object);
                if size == usable {
                    return object;
                }
                usable
            }
            Found::Slot(span, _) => {
                let usable = span.get().slot_size() as usize;
                if size <= usable && size >= usable / 2 {
                    return object;
                }
                usable
            }
            Found::Large(span) => {
                let usable = span.get().usable();
                let resized = self.large.resize(self.cx(), &self.pages, span, size);
                if !resized.is_null() {
                    return resized;
                }
                // An object that has outgrown its run is likely to grow again.
                if size > usable {
                    let wish = if size < GROWN_MIN { size + size / 8 } else { size };
                    let moved = self.large.allocate(self.cx(), &self.pages, wish, 16, false, true);
                    // SAFETY: the new object is larger than the old one.
                    return unsafe { self.replace(cache, object, moved, usable) };
                }
                usable
            }
        };
        // SAFETY: as for this function.
        let moved = unsafe { self.allocate(cache, size) };
        // SAFETY: both objects are at least that long.
        unsafe { self.replace(cache, object, moved, usable.min(size)) }
    }

    /// Copies `len` bytes of an object to its successor, unless that is null, and frees it.
    ///
    /// # Safety
    /// As [`Heap::free`]; both are at least `len` bytes long.
    unsafe fn replace(
        &self,
        cache: *mut Cache,
        object: *mut u8,
        moved: *mut u8,
        len: usize,
    ) -> *mut u8 {
        if !moved.is_null() {
            // SAFETY: both objects are at least this long and distinct; the old one is freed once.
            unsafe {
                moved.copy_from_nonoverlapping(object, len);
                self.free(cache, object);
            }
        }
        moved
    }

    /// Bytes that the program may use at `object`; 0 for null. A pointer that is not an object is named through
    /// [`Os::misuse`].
    pub fn usable_size(&self, object: *const u8) -> usize {
        if object.is_null() {
            return 0;
        }
        match self.lookup(object.addr()) {
            Found::Slot(span, _) if self.is_hardened() => {
                self.hardened_usable(span.get(), object.addr())
            }
            Found::Slot(span, _) => span.get().slot_size() as usize,
            Found::Large(span) => span.get().usable(),
            Found::Wrong(misuse) => self.os.misuse(misuse, object.cast_mut()),
        }
    }

    /// Whether `pointer` lies in an object or a span of this heap.
    pub fn owns(&self, pointer: *const u8) -> bool {
        self.enclosing(pointer.addr()).is_some()
    }

    /// Gives back at once what can be given back: the calling thread's cache, empty spans, resident free
    /// pages, kept mappings. Returns the bytes given back.
    ///
    /// # Safety
    /// `cache` as for [`Heap::allocate`].
    pub unsafe fn trim(&self, cache: *mut Cache) -> usize {
        if !cache.is_null() {
            // SAFETY: the caller owns the cache.
            unsafe { self.empty_cache(cache) };
        }
        if self.is_hardened() {
            self.hardened_drain(0, 0);
        }
        self.free_kept_spans();
        let mut given = 0;
        loop {
            let more = self.purge(u64::MAX);
            given += more;
            if more == 0 {
                return given;
            }
        }
    }

    /// Gives the empty spans that the classes have kept to the page heap.
    fn free_kept_spans(&self) {
        for central in &self.centrals {
            let mut next = central.take_empty(&self.os);
            while let Some(span) = NonNull::new(next).map(SpanRef) {
                next = span.get().next();
                self.free_span(span);
            }
        }
    }

    fn free_span(&self, span: SpanRef) {
        let (this, cx) = (span.get(), self.cx());
        self.map.set_range(this.start(), this.granules(), cx.tomb);
        self.pages.free(cx, span);
    }

    /// Gives back resident free pages and kept mappings that have been free since long before `now`
    /// ([`Os::now_ns`]), a bounded number a call. Returns the bytes given back.
    pub fn purge(&self, now: u64) -> usize {
        let cx = self.cx();
        let last = self.kept_since.load(Ordering::Relaxed);
        if now.saturating_sub(last) > DECAY_NS && now != u64::MAX {
            self.kept_since.store(now, Ordering::Relaxed);
            self.free_kept_spans();
        }
        self.large.purge(cx, now) + self.pages.purge(cx, now)
    }

    /// Bytes of free slots in caches, and the number of caches in use.
    fn cached(&self) -> (usize, usize) {
        let (mut bytes, mut threads) = (0, 0);
        let mut next = self.caches.load(Ordering::Acquire);
        // SAFETY: caches are never unmapped; `used`, `next` and the bins' lengths are atomics, and nothing else is read.
        while let Some(cache) = unsafe { next.as_ref() } {
            threads += usize::from(cache.used.load(Ordering::Relaxed));
            let held = |(class, bin): (usize, &Bin)| bin.len() as usize * SIZES[class] as usize;
            bytes += cache.bins.iter().enumerate().map(held).sum::<usize>();
            next = cache.next.load(Ordering::Relaxed);
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

    /// The locks, in the order in which they are taken.
    fn locks(&self) -> impl DoubleEndedIterator<Item = &Lock> {
        core::iter::once(self.registry.raw())
            .chain(self.centrals.iter().map(Central::lock))
            .chain([self.hardened.lock(), self.large.lock(), self.pages.lock(), self.meta.lock()])
    }

    /// Before `fork`: takes every lock, in order.
    pub fn lock_all(&self) {
        for lock in self.locks() {
            lock.acquire(&self.os);
        }
    }

    /// After `fork`, in the parent.
    ///
    /// # Safety
    /// The calling thread called [`Heap::lock_all`].
    pub unsafe fn unlock_all(&self) {
        for lock in self.locks().rev() {
            lock.release(&self.os);
        }
    }

    /// After `fork`, in the child: makes every lock free.
    ///
    /// # Safety
    /// No other thread runs in this process. If [`Heap::lock_all`] was not called (`_Fork`, raw `clone`), another
    /// thread may have been inside the heap; what it was changing is then lost to the child, not reused.
    pub unsafe fn reinitialise_locks(&self) {
        for lock in self.locks() {
            lock.reset();
        }
    }

    /// Brings the statistics page up to date; scans every span.
    pub fn refresh(&self) {
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
        let footprint = (resident + totals.large + totals.dirty)
            .saturating_sub(stats.saved_bytes.load(Ordering::Relaxed) as usize);
        store(&stats.live_bytes, totals.live);
        store(&stats.footprint_bytes, footprint);
        stats.footprint_peak_bytes.fetch_max(footprint as u64, Ordering::Relaxed);
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

    /// Number of span descriptors ever made; only grows.
    pub fn span_count(&self) -> usize {
        self.meta.count()
    }

    /// The descriptor of this index, if it was made.
    pub fn span_at(&self, index: usize) -> Option<SpanRef> {
        self.meta.at(index)
    }

    /// The class of a span, if it is a small one at the moment.
    fn class_of(&self, span: SpanRef) -> Option<(usize, &Central)> {
        if span.get().state() != State::Small {
            return None;
        }
        let class = span.get().class();
        Some((class, self.centrals.get(class)?))
    }

    /// A small-object span as it is now; `None` if the descriptor is not one at the moment.
    pub fn inspect(&self, span: SpanRef) -> Option<SpanView> {
        let (class, central) = self.class_of(span)?;
        let page = self.page();
        central.with(&self.os, class, span, None, |this| SpanView {
            start: core::ptr::with_exposed_provenance_mut(this.start()),
            class,
            slot_size: this.slot_size(),
            slots: this.slots(),
            pages: size::geometry(class, page).pages as u8,
            live: this.live_bits(),
            blocked: this.blocked_bits(),
            resident: this.resident(),
            generation: this.generation(),
        })
    }

    /// Takes whole pages of a span for the compactor: no slot that overlaps them is handed out until [`Heap::unblock`].
    /// Returns the span's live bits at that moment; `None` if the span has changed its meaning since `generation`.
    pub fn block(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> Option<[u64; 4]> {
        let (class, central) = self.class_of(span)?;
        central.block(&self.os, class, span, generation, pages, self.page())
    }

    /// Hands blocked pages out again; they are ordinary memory now. A span that is empty then goes back to the page heap.
    /// `false` if the span has changed its meaning since `generation`.
    pub fn unblock(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> bool {
        let Some((class, central)) = self.class_of(span) else { return false };
        let config = self.config();
        let fast = config.randomise < 2 && !config.hardened;
        let Some(empty) =
            central.unblock(&self.os, class, span, generation, pages, self.page(), fast)
        else {
            return false;
        };
        self.free_spans(empty);
        true
    }

    /// The live bits of a span, as [`Heap::inspect`], without the rest.
    pub fn live(&self, span: SpanRef, generation: u32) -> Option<[u64; 4]> {
        let (class, central) = self.class_of(span)?;
        central.with(&self.os, class, span, Some(generation), Span::live_bits)
    }

    /// Notes that whole pages of a span hold memory (`true`), or were given back and read as zero.
    pub fn set_resident(&self, span: SpanRef, generation: u32, pages: Range<u8>, resident: bool) {
        let Some((class, central)) = self.class_of(span) else { return };
        let bits = central::page_bits(&pages);
        central.with(&self.os, class, span, Some(generation), |this| {
            let old = this.resident();
            this.set_resident(if resident { old | bits } else { old & !bits });
        });
    }

    /// Gives the wholly free, resident, unblocked pages of a span back (blocks, decommits, unblocks).
    /// Returns the bytes given back.
    pub fn release_pages(&self, span: SpanRef, generation: u32) -> usize {
        let Some(view) = self.inspect(span) else { return 0 };
        if view.generation != generation {
            return 0;
        }
        let (page, size, slots) = (self.page(), view.slot_size as usize, usize::from(view.slots));
        let taken: Bits = core::array::from_fn(|word| view.live[word] | view.blocked[word]);
        let free = |bits: &Bits, index: u8| {
            let at = usize::from(index);
            let on = bits::slots_on(at..at + 1, page, size, slots);
            (0..4).all(|word| on[word] & bits[word] == 0)
        };
        let mut given = 0;
        for index in 0..view.pages {
            if view.resident >> index & 1 == 0 || !free(&taken, index) {
                continue;
            }
            let pages = index..index + 1;
            let Some(live) = self.block(span, generation, pages.clone()) else { break };
            if free(&live, index) {
                // SAFETY: a whole page of a span, and no live slot is on it, nor can be while it is blocked.
                unsafe {
                    self.os.decommit(view.start.wrapping_add(usize::from(index) * page), page)
                };
                self.set_resident(span, generation, pages.clone(), false);
                given += page;
            }
            self.unblock(span, generation, pages);
        }
        given
    }
}

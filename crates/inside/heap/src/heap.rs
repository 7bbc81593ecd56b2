//! The facade: one heap, as the C library functions and the compactor use it.
//!
//! Order of locks: registry, transfers and then classes (both ascending), held-back frees, large objects, page heap,
//! metadata. None is held over a system call, except that the tables grow (a logarithmic number of times) under the
//! last.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::cache::{self, Cache};
use crate::central::Central;
use crate::config::Config;
use crate::large::{GROWN_MIN, Large};
use crate::lock::{Lock, Locked};
use crate::meta::Meta;
use crate::os::{Misuse, Os};
use crate::pagemap::{Leaf, PageMap};
use crate::pages::{Context, Pages, RUN_MAX};
use crate::quarantine::Quarantine;
use crate::size::{self, CLASSES, GRANULE, SIZES, SMALL_MAX};
use crate::span::{Span, SpanRef, State};
use crate::stats::StatsPage;
use crate::transfer::Transfer;

#[derive(Debug)]
struct Registry {
    threads: usize,
}

const NEW: u64 = 0;
const STARTING: u64 = 1;
const STARTED: u64 = 2;

/// A heap over an operating system. It lives in a static; all zero until [`Heap::start`].
#[derive(Debug)]
pub struct Heap<O: Os> {
    pub(crate) os: O,
    phase: AtomicU64,
    config: AtomicU32,
    page: AtomicUsize,
    key: AtomicUsize,
    stats: AtomicPtr<StatsPage>,
    /// Every cache ever made, linked by `next`; caches are never unmapped.
    pub(crate) caches: AtomicPtr<Cache>,
    registry: Locked<Registry>,
    pub(crate) transfers: [Transfer; CLASSES],
    pub(crate) centrals: [Central; CLASSES],
    pub(crate) quarantine: Quarantine,
    pub(crate) large: Large,
    pub(crate) pages: Pages,
    pub(crate) meta: Meta,
    /// The lock of the class that the compactor works under.
    pub(crate) compacting: AtomicPtr<Lock>,
    /// When idle classes were looked for last.
    pub(crate) tidied: AtomicU64,
    /// What the page map holds for memory that was freed.
    tomb: Span,
    pub(crate) map: PageMap,
}

/// What a free that is not plain turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
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
            phase: AtomicU64::new(NEW),
            config: AtomicU32::new(0),
            page: AtomicUsize::new(0),
            key: AtomicUsize::new(0),
            stats: AtomicPtr::new(null_mut()),
            caches: AtomicPtr::new(null_mut()),
            registry: Locked::new(Registry { threads: 0 }),
            transfers: [const { Transfer::new() }; CLASSES],
            centrals: [const { Central::new() }; CLASSES],
            quarantine: Quarantine::new(),
            large: Large::new(),
            pages: Pages::new(),
            meta: Meta::new(),
            compacting: AtomicPtr::new(null_mut()),
            tidied: AtomicU64::new(0),
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
        if config.hardened {
            self.pages.use_islands();
        }
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

    /// Allocates `size` bytes, aligned to 16; null if there is no memory.
    ///
    /// # Safety
    /// `cache` is null or the calling thread's own; the heap has started.
    #[inline(always)]
    pub unsafe fn allocate(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        // SAFETY: as for this function.
        unsafe {
            match self.allocate_cached(cache, size) {
                Some(slot) => slot,
                None => self.allocate_uncached(cache, size),
            }
        }
    }

    /// As [`Heap::allocate`], if the cache has such a slot.
    ///
    /// # Safety
    /// `cache` is null or the calling thread's own.
    #[inline(always)]
    pub unsafe fn allocate_cached(&self, cache: *mut Cache, size: usize) -> Option<*mut u8> {
        if cache.is_null() || size > SMALL_MAX {
            return None;
        }
        // SAFETY: the caller owns the cache, and `class_of` is below `CLASSES`.
        let slot = unsafe { (*cache).bins.get_unchecked(size::class_of(size)).pop() }?;
        // A live object never carries the mark of a free one.
        // SAFETY: a slot is at least 16 bytes and belongs to the caller now.
        unsafe { slot.cast::<u64>().add(1).write(0) };
        Some(slot)
    }

    /// As [`Heap::allocate`], where [`Heap::allocate_cached`] gave none.
    ///
    /// # Safety
    /// As [`Heap::allocate`].
    #[cold]
    #[inline(never)]
    pub unsafe fn allocate_uncached(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        let object = if size > SMALL_MAX || self.is_hardened() {
            self.allocate_large(size, 16, false)
        } else {
            // SAFETY: as for `allocate`.
            unsafe { self.allocate_slot(cache, size::class_of(size)) }
        };
        self.os.on_slow_path();
        object
    }

    fn allocate_large(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if self.is_hardened() {
            return self.hardened_allocate(size, align);
        }
        let allocate = || self.large.allocate(self.cx(), &self.pages, size, align, zero, false);
        self.or_reclaim(allocate(), allocate)
    }

    /// `first`, or if that is null, what `again` gives once everything that can be given back was.
    pub(crate) fn or_reclaim(&self, first: *mut u8, again: impl Fn() -> *mut u8) -> *mut u8 {
        if first.is_null() && self.reclaim() { again() } else { first }
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
        // SAFETY: as for this function.
        unsafe {
            if !self.free_cached(cache, object) {
                self.free_uncached(cache, object);
            }
        }
    }

    /// As [`Heap::free`], if the object is plain, lies where the last one lay, and the cache has room; whether that is
    /// so.
    ///
    /// # Safety
    /// As [`Heap::free`].
    #[inline(always)]
    pub unsafe fn free_cached(&self, cache: *mut Cache, object: *mut u8) -> bool {
        // SAFETY: the caller owns the cache; `leaf` is the leaf of the addresses that `leaf_prefix` says, and is never
        // unmapped.
        unsafe {
            !cache.is_null()
                && object.addr() >> 32 == (*cache).leaf_prefix
                && Self::free_plain(cache, &*(*cache).leaf, object)
        }
    }

    /// Whether objects of this heap are freed to the thread's cache without further questions.
    pub(crate) fn frees_plainly(&self) -> bool {
        let config = self.config();
        config.randomise < 2 && !config.hardened
    }

    /// Frees an object that this is the leaf of, if all is as usual. Changes nothing otherwise.
    ///
    /// # Safety
    /// As [`Heap::free`]; the cache is not null.
    #[inline(always)]
    unsafe fn free_plain(cache: *mut Cache, leaf: &Leaf, object: *mut u8) -> bool {
        let address = object.addr();
        let Some(plain) = leaf.plain(address) else { return false };
        // SAFETY: the caller owns the cache, and there is a bin for each class.
        let (bin, key) = unsafe { ((*cache).bins.get_unchecked(plain.class()), (*cache).key) };
        // SAFETY: the object is a slot of at least 16 bytes that the caller gave up.
        let second = unsafe { &mut *object.cast::<u64>().add(1) };
        let mark = cache::mark(key, address);
        // SAFETY: the caller owns the cache.
        if *second == mark || !unsafe { bin.push(object) } {
            return false;
        }
        *second = mark;
        true
    }

    /// As [`Heap::free`], where [`Heap::free_cached`] did nothing.
    ///
    /// # Safety
    /// As [`Heap::free`].
    #[cold]
    #[inline(never)]
    pub unsafe fn free_uncached(&self, cache: *mut Cache, object: *mut u8) {
        if object.is_null() {
            return;
        }
        let high = object.addr() >> 32;
        // SAFETY: the cache is null or the calling thread's own.
        unsafe {
            if !cache.is_null()
                && (*cache).leaf_prefix != high
                && let Some(leaf) = self.map.leaf(object.addr())
            {
                ((*cache).leaf_prefix, (*cache).leaf) = (high, leaf);
                if Self::free_plain(cache, leaf, object) {
                    return;
                }
            }
        }
        // SAFETY: as for this function.
        unsafe { self.free_slow(cache, object) };
    }

    /// Frees an object, after every check.
    ///
    /// # Safety
    /// As [`Heap::free`]; the object is not null.
    #[inline(never)]
    unsafe fn free_slow(&self, cache: *mut Cache, object: *mut u8) {
        match self.lookup(object.addr()) {
            Lookup::Wrong(misuse) => self.os.misuse(misuse, object),
            Lookup::Large(span) => {
                let hardened = self.is_hardened();
                if hardened {
                    self.hardened_check_large(span.get());
                }
                if !self.large.free(self.cx(), &self.pages, span, !hardened) {
                    self.os.misuse(Misuse::DoubleFree, object);
                }
                self.purge_if_due();
            }
            Lookup::Slot(span, slot) if self.is_hardened() => self.hardened_free(span, slot),
            Lookup::Slot(span, slot) => {
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
                let page = (object.addr() - this.start()) / self.page();
                if this.blocked_pages() >> page & 1 == 0 {
                    // SAFETY: as above.
                    unsafe { second.write(mark) };
                }
                if cache.is_null() || this.blocked_pages() != 0 {
                    self.take_back(self.centrals[class].give_one(&self.os, span, slot));
                    return;
                }
                // SAFETY: the caller owns the cache.
                unsafe { self.push_slow(cache, class, object) };
            }
        }
        self.os.on_slow_path();
    }

    /// What is at an address.
    fn lookup(&self, address: usize) -> Lookup {
        let Some(span) = NonNull::new(self.map.get(address)).map(SpanRef) else {
            return Lookup::Wrong(Misuse::WildFree);
        };
        let this = span.get();
        match this.state() {
            State::Small => match this.slot_start(address) {
                Some(slot) if this.is_live(slot) => Lookup::Slot(span, slot),
                Some(_) => Lookup::Wrong(Misuse::DoubleFree),
                None => Lookup::Wrong(Misuse::WildFree),
            },
            State::Large | State::Mapped if this.object() == address => Lookup::Large(span),
            State::Large | State::Mapped => Lookup::Wrong(Misuse::WildFree),
            // Memory that was freed, unless a large object has been put there and this points into it.
            State::Free | State::Unused | State::Busy => match self.enclosing(address) {
                Some(_) => Lookup::Wrong(Misuse::WildFree),
                None => Lookup::Wrong(Misuse::DoubleFree),
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
        if let Some(usable) = self.plain_size(object.addr()) {
            // SAFETY: as for this function.
            return unsafe { self.resize_slot(cache, object, usable, size) };
        }
        let usable = match self.lookup(object.addr()) {
            Lookup::Wrong(misuse) => self.os.misuse(misuse, object),
            Lookup::Slot(..) | Lookup::Large(_) if self.is_hardened() => {
                let usable = self.usable_size(object);
                if size == usable {
                    return object;
                }
                usable
            }
            Lookup::Slot(span, _) => {
                let usable = span.get().slot_size() as usize;
                // SAFETY: as for this function.
                return unsafe { self.resize_slot(cache, object, usable, size) };
            }
            Lookup::Large(span) => {
                let usable = span.get().usable();
                let resized = self.large.resize(self.cx(), &self.pages, span, size);
                if !resized.is_null() {
                    return resized;
                }
                // An object that has outgrown its run is likely to grow again.
                if size > usable {
                    let wish = if size < GROWN_MIN { size + size / 8 } else { size };
                    let (cx, pages) = (self.cx(), &self.pages);
                    let allocate = || self.large.allocate(cx, pages, wish, 16, false, true);
                    let moved = self.or_reclaim(allocate(), allocate);
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

    /// As [`Heap::reallocate`], of an object in a slot of `usable` bytes.
    ///
    /// # Safety
    /// As [`Heap::reallocate`].
    unsafe fn resize_slot(
        &self,
        cache: *mut Cache,
        object: *mut u8,
        usable: usize,
        size: usize,
    ) -> *mut u8 {
        // SAFETY: the object is a slot of at least 16 bytes of which the caller says that it is live.
        if unsafe { object.cast::<u64>().add(1).read() } == cache::mark(self.key(), object.addr()) {
            self.os.misuse(Misuse::DoubleFree, object);
        }
        // Who asks for less wants the memory back: Redis trims so what it has read.
        if size <= usable && size >= usable - usable / 4 {
            return object;
        }
        // SAFETY: as for this function; both objects are at least that long.
        unsafe {
            let moved = self.allocate(cache, size);
            if moved.is_null() && size <= usable {
                return object;
            }
            self.replace(cache, object, moved, usable.min(size))
        }
    }

    /// Bytes of the slot that starts at an address, if the page map alone tells.
    #[inline(always)]
    pub fn plain_size(&self, address: usize) -> Option<usize> {
        let plain = self.map.leaf(address)?.plain(address)?;
        SIZES.get(plain.class()).map(|&size| size as usize)
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
    #[inline]
    pub fn usable_size(&self, object: *const u8) -> usize {
        match self.plain_size(object.addr()) {
            Some(size) => size,
            None => self.usable_size_by_span(object),
        }
    }

    #[cold]
    #[inline(never)]
    fn usable_size_by_span(&self, object: *const u8) -> usize {
        if object.is_null() {
            return 0;
        }
        match self.lookup(object.addr()) {
            Lookup::Slot(span, slot) if self.is_hardened() => {
                if !self.centrals[span.get().class()].is_in_use(&self.os, span, slot) {
                    self.os.misuse(Misuse::DoubleFree, object.cast_mut());
                }
                self.hardened_usable(span.get(), object.addr())
            }
            Lookup::Slot(span, _) => span.get().slot_size() as usize,
            Lookup::Large(span) => span.get().usable(),
            Lookup::Wrong(misuse) => self.os.misuse(misuse, object.cast_mut()),
        }
    }

    /// Bytes that can be read at an object, without a lock; in hardened mode they may be more than the program's.
    pub fn readable(&self, object: *const u8) -> usize {
        match self.lookup(object.addr()) {
            Lookup::Slot(span, _) => span.get().slot_size() as usize,
            Lookup::Large(span) => span.get().usable(),
            Lookup::Wrong(misuse) => self.os.misuse(misuse, object.cast_mut()),
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
            self.large.release(self.cx());
        }
        self.tidy(true);
        let mut given = 0;
        loop {
            let more = self.purge(u64::MAX);
            given += more;
            if more == 0 {
                return given;
            }
        }
    }

    /// The locks, in the order in which they are taken.
    fn locks(&self) -> impl DoubleEndedIterator<Item = &Lock> {
        core::iter::once(self.registry.raw())
            .chain(self.transfers.iter().map(Transfer::lock))
            .chain(self.centrals.iter().map(Central::lock))
            .chain([self.quarantine.raw(), self.large.lock(), self.pages.lock(), self.meta.lock()])
    }

    /// Whether another thread may sleep for a lock that the calling one holds: whether the signal handler that asks
    /// interrupted it within the heap, and nobody who waits goes on before the handler has returned.
    pub fn is_awaited(&self) -> bool {
        self.locks().any(|lock| lock.is_awaited(&self.os))
    }

    /// Before `fork`: takes every lock, in order, but those that the calling thread holds, which its handler
    /// interrupted, and those that others hold until `in_vain`.
    pub fn lock_all(&self, in_vain: impl Fn() -> bool) {
        for lock in self.locks() {
            lock.acquire_for_fork(&self.os, &in_vain);
        }
    }

    /// After `fork`, in the parent.
    ///
    /// # Safety
    /// The calling thread called [`Heap::lock_all`].
    pub unsafe fn unlock_all(&self) {
        for lock in self.locks().rev() {
            lock.release_after_fork(&self.os);
        }
    }

    /// After `fork`, in the child: makes every lock free but those that the calling thread holds.
    ///
    /// # Safety
    /// No other thread runs in this process. If [`Heap::lock_all`] was not called (`_Fork`, raw `clone`), another
    /// thread may have been inside the heap; what it was changing is then lost to the child, not reused.
    pub unsafe fn reinitialise_locks(&self) {
        for lock in self.locks() {
            lock.reset(&self.os);
        }
    }
}

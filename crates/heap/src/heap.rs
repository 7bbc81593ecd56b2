//! The facade: one heap, as the C library functions and the compactor use it.

use core::ops::Range;

use crate::cache::Cache;
use crate::config::Config;
use crate::os::Os;
use crate::span::{SpanRef, SpanView};
use crate::stats::StatsPage;

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

/// A heap over an operating system. It lives in a static; all zero until [`Heap::start`].
#[derive(Debug)]
pub struct Heap<O: Os> {
    os: O,
}

impl<O: Os> Heap<O> {
    /// A heap that has not started: nothing can be allocated from it yet.
    pub const fn new(os: O) -> Self {
        Self { os }
    }

    /// Starts the heap. The first call wins; others wait until it is done and change nothing.
    pub fn start(&self, config: Config, stats: &'static StatsPage) {
        let _ = (config, stats);
    }

    /// Whether [`Heap::start`] is done.
    #[inline]
    pub fn started(&self) -> bool {
        false
    }

    /// The configuration in force (the default before the start).
    pub fn config(&self) -> Config {
        Config::DEFAULT
    }

    /// The operating system.
    #[inline]
    pub fn os(&self) -> &O {
        &self.os
    }

    /// The statistics page, once started.
    pub fn stats(&self) -> Option<&'static StatsPage> {
        None
    }

    /// A cache for the calling thread, new or recycled; null if there is no memory for one.
    pub fn attach(&self) -> *mut Cache {
        core::ptr::null_mut()
    }

    /// Empties a cache and keeps it for another thread. Null is ignored.
    ///
    /// # Safety
    /// `cache` came from [`Heap::attach`], and nobody uses it from now on.
    pub unsafe fn detach(&self, cache: *mut Cache) {
        let _ = cache;
    }

    /// Allocates `size` bytes, aligned to 16 (to 8 at least below 16 bytes); null if there is no memory.
    ///
    /// # Safety
    /// `cache` is null or the calling thread's own; the heap has started.
    #[inline]
    pub unsafe fn allocate(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        let _ = (cache, size);
        core::ptr::null_mut()
    }

    /// As [`Heap::allocate`], and the `size` bytes are zero.
    ///
    /// # Safety
    /// As [`Heap::allocate`].
    pub unsafe fn allocate_zeroed(&self, cache: *mut Cache, size: usize) -> *mut u8 {
        let _ = (cache, size);
        core::ptr::null_mut()
    }

    /// As [`Heap::allocate`], at a multiple of `align`, a power of two.
    ///
    /// # Safety
    /// As [`Heap::allocate`].
    pub unsafe fn allocate_aligned(&self, cache: *mut Cache, align: usize, size: usize) -> *mut u8 {
        let _ = (cache, align, size);
        core::ptr::null_mut()
    }

    /// Frees an object. Null is ignored. A double or wild free ends the program through [`Os::misuse`].
    ///
    /// # Safety
    /// `cache` as for [`Heap::allocate`]; nobody uses the object from now on.
    #[inline]
    pub unsafe fn free(&self, cache: *mut Cache, object: *mut u8) {
        let _ = (cache, object);
    }

    /// Resizes an object: the first `min(old, size)` bytes stay; null, and nothing changed, if there is no memory.
    /// A null `object` allocates. `size` zero is the caller's to decide: here it is a smallest object.
    ///
    /// # Safety
    /// As [`Heap::free`] on success; only the returned pointer may be used.
    pub unsafe fn reallocate(&self, cache: *mut Cache, object: *mut u8, size: usize) -> *mut u8 {
        let _ = (cache, object, size);
        core::ptr::null_mut()
    }

    /// Bytes that the program may use at `object`; 0 for null. A pointer that is not an object is named through
    /// [`Os::misuse`].
    pub fn usable_size(&self, object: *const u8) -> usize {
        let _ = object;
        0
    }

    /// Whether `pointer` is in memory that the heap handed out or may hand out.
    pub fn owns(&self, pointer: *const u8) -> bool {
        let _ = pointer;
        false
    }

    /// Gives back at once what can be given back: the calling thread's cache, empty spans, resident free
    /// pages, kept mappings. Returns the bytes given back.
    ///
    /// # Safety
    /// `cache` as for [`Heap::allocate`].
    pub unsafe fn trim(&self, cache: *mut Cache) -> usize {
        let _ = cache;
        0
    }

    /// What the heap holds now.
    pub fn totals(&self) -> Totals {
        Totals::default()
    }

    /// Calls `f` for each size class, smallest first.
    pub fn each_class(&self, f: &mut dyn FnMut(ClassTotals)) {
        let _ = f;
    }

    /// Brings the statistics page up to date; scans every span.
    pub fn refresh(&self) {}

    /// Gives back resident free pages and kept mappings that have been free since long before `now`
    /// ([`Os::now_ns`]), a bounded number a call. Returns the bytes given back.
    pub fn purge(&self, now: u64) -> usize {
        let _ = now;
        0
    }

    /// Before `fork`: takes every lock, in order.
    pub fn lock_all(&self) {}

    /// After `fork`, in the parent.
    ///
    /// # Safety
    /// The calling thread called [`Heap::lock_all`].
    pub unsafe fn unlock_all(&self) {}

    /// After `fork`, in the child: makes every lock free.
    ///
    /// # Safety
    /// No other thread runs in this process. If [`Heap::lock_all`] was not called (`_Fork`, raw `clone`), another
    /// thread may have been inside the heap; what it was changing is then lost to the child, not reused.
    pub unsafe fn reinitialise_locks(&self) {}

    /// Number of span descriptors ever made; only grows.
    pub fn span_count(&self) -> usize {
        0
    }

    /// The descriptor of this index, if it was made.
    pub fn span_at(&self, index: usize) -> Option<SpanRef> {
        let _ = index;
        None
    }

    /// A small-object span as it is now; `None` if the descriptor is not one at the moment.
    pub fn inspect(&self, span: SpanRef) -> Option<SpanView> {
        let _ = span;
        None
    }

    /// Takes whole pages of a span for the compactor: no slot that overlaps them is handed out until [`Heap::unblock`].
    /// Returns the span's live bits at that moment; `None` if the span has changed its meaning since `generation`.
    pub fn block(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> Option<[u64; 4]> {
        let _ = (span, generation, pages);
        None
    }

    /// Hands blocked pages out again; they are ordinary memory now. A span that is empty then goes back to the page heap.
    /// `false` if the span has changed its meaning since `generation`.
    pub fn unblock(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> bool {
        let _ = (span, generation, pages);
        false
    }

    /// The live bits of a span, as [`Heap::inspect`], without the rest.
    pub fn live(&self, span: SpanRef, generation: u32) -> Option<[u64; 4]> {
        let _ = (span, generation);
        None
    }

    /// Notes that whole pages of a span hold memory (`true`), or were given back and read as zero.
    pub fn set_resident(&self, span: SpanRef, generation: u32, pages: Range<u8>, resident: bool) {
        let _ = (span, generation, pages, resident);
    }

    /// Gives the wholly free, resident, unblocked pages of a span back (blocks, decommits, unblocks).
    /// Returns the bytes given back.
    pub fn release_pages(&self, span: SpanRef, generation: u32) -> usize {
        let _ = (span, generation);
        0
    }
}

//! Large objects: page runs up to 4 MiB, mappings of their own from there on. An object that grows
//! beyond 1 MiB moves to a mapping of its own too, because that can grow further without being copied.
//!
//! Below 4 MiB too an object of more than 128 KiB is a mapping of its own while none as large was freed, as in glibc.
//! The first to be freed is unmapped, so that a use after free faults; who frees one will free more, and from then on
//! objects up to its length are runs and mappings are kept.
//!
//! A freed mapping of moderate size is kept for a while, so that a program that churns through
//! buffers of several MiB does not fault every page of each; what is kept is bounded in number and in bytes and
//! decays like free pages do.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::{Lock, Locked};
use crate::os::Os;
use crate::pages::{Context, DECAY_NS, Pages};
use crate::size::GRANULE;
use crate::span::{Span, SpanRef, State};

/// From this size on an object is a mapping of its own.
const MAPPED_MIN: usize = 4 << 20;
/// From this size on an object that grows moves to a mapping of its own.
pub const GROWN_MIN: usize = 1 << 20;
/// From this size on an object is a mapping of its own while none as large was freed.
const FRESH_MIN: usize = 128 << 10;
/// Alignments above this get a mapping of their own.
const RUN_ALIGN_MAX: usize = 256 * 1024;

const KEPT: usize = 16;
const KEPT_EACH: usize = 16 << 20;
const KEPT_BYTES: usize = 32 << 20;

/// Inaccessible bytes on either side of an object of hardened mode.
const GUARD: usize = (1 << 20) + (64 << 10);
/// Freed mappings of hardened mode whose addresses are held back.
const HELD: usize = 64;

#[derive(Debug)]
struct Inner {
    /// Mapped objects, linked by `next` and `prev`.
    objects: *mut Span,
    /// Freed mappings, the oldest first.
    kept: [*mut Span; KEPT],
    kept_count: usize,
    kept_bytes: usize,
    /// Freed mappings of hardened mode, inaccessible; the next one takes the place at `oldest`.
    held: [*mut Span; HELD],
    oldest: usize,
}

// SAFETY: the pointers are to descriptors, which are never unmapped.
unsafe impl Send for Inner {}

/// The large objects.
#[derive(Debug)]
pub struct Large {
    inner: Locked<Inner>,
    bytes: AtomicUsize,
    count: AtomicUsize,
    own_bytes: AtomicUsize,
    own_count: AtomicUsize,
    kept_bytes: AtomicUsize,
    /// Length of the longest mapping that was freed.
    churned: AtomicUsize,
}

impl Inner {
    fn link(&mut self, object: SpanRef) {
        let this = object.get();
        this.set_prev(null_mut());
        this.set_next(self.objects);
        if let Some(head) = NonNull::new(self.objects) {
            SpanRef(head).get().set_prev(object.0.as_ptr());
        }
        self.objects = object.0.as_ptr();
    }

    fn unlink(&mut self, object: SpanRef) {
        let this = object.get();
        match NonNull::new(this.prev()) {
            Some(prev) => SpanRef(prev).get().set_next(this.next()),
            None => self.objects = this.next(),
        }
        if let Some(next) = NonNull::new(this.next()) {
            SpanRef(next).get().set_prev(this.prev());
        }
    }

    fn remove_kept(&mut self, index: usize) -> Option<SpanRef> {
        let kept = NonNull::new(*self.kept.get(index)?).map(SpanRef)?;
        self.kept.copy_within(index + 1..self.kept_count, index);
        self.kept_count -= 1;
        self.kept_bytes -= kept.get().len();
        Some(kept)
    }
}

impl Large {
    /// No objects: all zero.
    pub const fn new() -> Self {
        Self {
            inner: Locked::new(Inner {
                objects: null_mut(),
                kept: [null_mut(); KEPT],
                kept_count: 0,
                kept_bytes: 0,
                held: [null_mut(); HELD],
                oldest: 0,
            }),
            bytes: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            own_bytes: AtomicUsize::new(0),
            own_count: AtomicUsize::new(0),
            kept_bytes: AtomicUsize::new(0),
            churned: AtomicUsize::new(0),
        }
    }

    /// Bytes in large objects.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of large objects.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes in objects with a mapping of their own.
    pub fn own_bytes(&self) -> usize {
        self.own_bytes.load(Ordering::Relaxed)
    }

    /// Number of objects with a mapping of their own.
    pub fn own_count(&self) -> usize {
        self.own_count.load(Ordering::Relaxed)
    }

    /// Bytes of freed mappings that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &Lock {
        self.inner.raw()
    }

    fn account(&self, span: &Span, sign: isize) {
        // Without guards.
        let bytes = span.usable().next_multiple_of(GRANULE).wrapping_mul(sign as usize);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count.fetch_add(sign as usize, Ordering::Relaxed);
        if span.state() == State::Mapped {
            self.own_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.own_count.fetch_add(sign as usize, Ordering::Relaxed);
        }
    }

    /// An object of `size` bytes at a multiple of `align`; its memory is zero if `zero`, and it is expected to grow
    /// if `grown`. Null if there is no memory.
    pub fn allocate<O: Os>(
        &self,
        cx: Context<'_, O>,
        pages: &Pages,
        size: usize,
        align: usize,
        zero: bool,
        grown: bool,
    ) -> *mut u8 {
        // As in glibc, no object is larger than half the address space: differences of pointers must fit.
        if size > (isize::MAX as usize - (1 << 20)).saturating_sub(align) {
            return null_mut();
        }
        let churned = self.churned.load(Ordering::Relaxed);
        let fresh = size >= FRESH_MIN && size > churned;
        let limit = if grown { GROWN_MIN } else { MAPPED_MIN };
        let span = if size < limit && !fresh && align <= RUN_ALIGN_MAX {
            let granules = size.div_ceil(GRANULE).max(1);
            let run = pages.allocate(cx, granules, align.div_ceil(GRANULE));
            if let Some(run) = run {
                run.get().set_state(State::Large);
            }
            // Where there is no room for whole chunks any more.
            run.or_else(|| self.map(cx, size, align))
        } else {
            self.map(cx, size, align)
        };
        let Some(span) = span else { return null_mut() };
        let this = span.get();
        this.set_object(this.start());
        this.set_usable(this.len());
        self.account(this, 1);
        let object = core::ptr::with_exposed_provenance_mut::<u8>(this.start());
        if zero && !(this.is_zeroed() && cx.page == GRANULE) {
            // SAFETY: the run or mapping is at least this long and belongs to the caller.
            unsafe { object.write_bytes(0, size) };
        }
        object
    }

    /// An object (of hardened mode) of exactly `size` bytes that ends, up to its alignment, at an inaccessible page.
    /// Null if there is no memory.
    pub fn allocate_guarded<O: Os>(
        &self,
        cx: Context<'_, O>,
        size: usize,
        align: usize,
    ) -> *mut u8 {
        if size > (isize::MAX as usize - (1 << 20)).saturating_sub(align) {
            return null_mut();
        }
        let align = align.max(16);
        let len = size.next_multiple_of(cx.page.max(align));
        // Where address space is short, a page behind has to do.
        let wide = GUARD.next_multiple_of(cx.page.max(align));
        let mapped = [(wide, wide), (0, cx.page)].into_iter().find_map(|(front, back)| {
            Some((front, back, self.map_new(cx, front + len + back, align)?))
        });
        let Some((front, back, span)) = mapped else { return null_mut() };
        let this = span.get();
        let (start, end) = (this.start(), this.start() + front + len);
        let object = end - size.next_multiple_of(align);
        // SAFETY: both ends of the mapping made above.
        unsafe {
            if front > 0 {
                cx.os.guard(core::ptr::with_exposed_provenance_mut(start), front);
            }
            cx.os.guard(core::ptr::with_exposed_provenance_mut(end), back);
        }
        this.set_object(object);
        this.set_usable(size);
        cx.map.set(start, null_mut());
        cx.map.set(object, span.0.as_ptr());
        self.account(this, 1);
        core::ptr::with_exposed_provenance_mut(object)
    }

    /// A mapping that is kept, or a new one.
    fn map<O: Os>(&self, cx: Context<'_, O>, size: usize, align: usize) -> Option<SpanRef> {
        let len = size.max(1).next_multiple_of(cx.page.max(GRANULE));
        let mut inner = self.inner.lock(cx.os);
        let fits = |span: &Span| {
            span.len() >= len && span.len() - len <= len / 4 && span.start() & (align - 1) == 0
        };
        let best = (0..inner.kept_count)
            .filter_map(|index| {
                let span = SpanRef(NonNull::new(inner.kept[index])?).get();
                fits(span).then_some((span.len(), index))
            })
            .min();
        if let Some((_, index)) = best
            && let Some(kept) = inner.remove_kept(index)
        {
            self.kept_bytes.store(inner.kept_bytes, Ordering::Relaxed);
            kept.get().set_state(State::Mapped);
            inner.link(kept);
            cx.map.set(kept.get().start(), kept.0.as_ptr());
            return Some(kept);
        }
        drop(inner);
        self.map_new(cx, len, align)
    }

    /// A new mapping.
    fn map_new<O: Os>(&self, cx: Context<'_, O>, len: usize, align: usize) -> Option<SpanRef> {
        let span = cx.meta.take(cx.os)?;
        let start = cx.os.map(len, align.max(cx.page));
        if start.is_null() || !cx.map.cover(cx.os, cx.meta, start.expose_provenance(), len) {
            if !start.is_null() {
                // SAFETY: mapped just above, not used.
                unsafe { cx.os.unmap(start, len) };
            }
            cx.meta.put(cx.os, span);
            return None;
        }
        let this = span.get();
        this.set_start(start.addr());
        this.set_granules(len / GRANULE);
        this.set_zeroed(true);
        this.set_state(State::Mapped);
        let mut inner = self.inner.lock(cx.os);
        inner.link(span);
        cx.map.set(this.start(), span.0.as_ptr());
        Some(span)
    }

    /// Frees an object, whose mapping may be kept if `keep`; `false` if another thread has freed it meanwhile.
    pub fn free<O: Os>(
        &self,
        cx: Context<'_, O>,
        pages: &Pages,
        span: SpanRef,
        keep: bool,
    ) -> bool {
        let this = span.get();
        let mut inner = self.inner.lock(cx.os);
        match this.state() {
            State::Large => {
                self.account(this, -1);
                this.set_state(State::Busy);
                drop(inner);
                pages.free(cx, span, 0);
            }
            State::Mapped => {
                self.account(this, -1);
                this.set_state(State::Busy);
                inner.unlink(span);
                cx.map.set(this.object(), cx.tomb);
                let mut goes = Some(span);
                let mut more = None;
                let first = this.len() > self.churned.fetch_max(this.len(), Ordering::Relaxed);
                // Shorter ones come from runs from now on.
                let wanted = (GROWN_MIN..=KEPT_EACH).contains(&this.len());
                if keep && !first && wanted {
                    this.set_zeroed(false);
                    this.set_stamp(pages.clock());
                    goes = None;
                    if inner.kept_count == KEPT {
                        goes = inner.remove_kept(0);
                    }
                    while inner.kept_bytes + this.len() > KEPT_BYTES {
                        let Some(old) = inner.remove_kept(0) else { break };
                        old.get()
                            .set_next(more.map_or(null_mut(), |more: SpanRef| more.0.as_ptr()));
                        more = Some(old);
                    }
                    let count = inner.kept_count;
                    inner.kept[count] = span.0.as_ptr();
                    inner.kept_count += 1;
                    inner.kept_bytes += this.len();
                    self.kept_bytes.store(inner.kept_bytes, Ordering::Relaxed);
                }
                if !keep {
                    drop(inner);
                    goes = self.hold(cx, span);
                } else {
                    drop(inner);
                }
                if let Some(span) = goes {
                    Self::unmap(cx, span);
                }
                while let Some(old) = more {
                    more = NonNull::new(old.get().next()).map(SpanRef);
                    Self::unmap(cx, old);
                }
            }
            _ => return false,
        }
        true
    }

    /// Makes a freed mapping inaccessible and holds its addresses back; the one that is held longest goes for it.
    fn hold<O: Os>(&self, cx: Context<'_, O>, span: SpanRef) -> Option<SpanRef> {
        let this = span.get();
        let first = this.object() / cx.page * cx.page;
        let len = (this.object() + this.usable()).next_multiple_of(cx.page) - first;
        // SAFETY: a mapping whose object was freed, all of it or else its pages between the guards.
        unsafe {
            if !cx.os.guard(core::ptr::with_exposed_provenance_mut(this.start()), this.len())
                && len > 0
            {
                cx.os.decommit(core::ptr::with_exposed_provenance_mut(first), len);
            }
        }
        let mut inner = self.inner.lock(cx.os);
        let oldest = inner.oldest;
        inner.oldest = (oldest + 1) % HELD;
        NonNull::new(core::mem::replace(&mut inner.held[oldest], span.0.as_ptr())).map(SpanRef)
    }

    /// Unmaps what is held back. Returns the bytes of address space.
    pub fn release<O: Os>(&self, cx: Context<'_, O>) -> usize {
        let held = core::mem::replace(&mut self.inner.lock(cx.os).held, [null_mut(); HELD]);
        held.into_iter().filter_map(NonNull::new).map(SpanRef).fold(0, |given, span| {
            let len = span.get().len();
            Self::unmap(cx, span);
            given + len
        })
    }

    fn unmap<O: Os>(cx: Context<'_, O>, span: SpanRef) {
        let this = span.get();
        let start = core::ptr::with_exposed_provenance_mut(this.start());
        // SAFETY: a whole mapping from `Os::map` or `Os::remap` whose object was freed.
        unsafe { cx.os.unmap(start, this.len()) };
        cx.meta.put(cx.os, span);
    }

    /// Unmaps what has been kept for [`DECAY_NS`] at `now` (everything at the end of time). Returns the bytes.
    pub fn purge<O: Os>(&self, cx: Context<'_, O>, now: u64) -> usize {
        let mut given = 0;
        loop {
            let mut inner = self.inner.lock(cx.os);
            let Some(oldest) = NonNull::new(inner.kept[0]).map(SpanRef) else { break };
            if inner.kept_count == 0
                || (now != u64::MAX && oldest.get().stamp().saturating_add(DECAY_NS) > now)
            {
                break;
            }
            let Some(oldest) = inner.remove_kept(0) else { break };
            self.kept_bytes.store(inner.kept_bytes, Ordering::Relaxed);
            drop(inner);
            given += oldest.get().len();
            Self::unmap(cx, oldest);
        }
        given
    }

    /// Resizes an object where it is, or by moving its mapping; null if that cannot be done and it must be copied.
    pub fn resize<O: Os>(
        &self,
        cx: Context<'_, O>,
        pages: &Pages,
        span: SpanRef,
        size: usize,
    ) -> *mut u8 {
        let this = span.get();
        match this.state() {
            State::Large if size < MAPPED_MIN => {
                let granules = size.div_ceil(GRANULE).max(1);
                let old = this.granules();
                // Copying beats fragmenting a run down to almost nothing.
                if granules < old / 4 {
                    return null_mut();
                }
                self.account(this, -1);
                let done = if granules > old {
                    pages.extend(cx, span, granules)
                } else {
                    // A tail that is small against the object is left alone: such an object often grows again.
                    if old - granules > old / 8 {
                        pages.shrink(cx, span, granules);
                    }
                    true
                };
                this.set_usable(this.len());
                self.account(this, 1);
                if done { core::ptr::with_exposed_provenance_mut(this.start()) } else { null_mut() }
            }
            State::Mapped if (FRESH_MIN / 2..isize::MAX as usize / 2).contains(&size) => {
                let (start, old) = (this.start(), this.len());
                let len = size.next_multiple_of(cx.page.max(GRANULE));
                if len == old || (len < old && old - len < old / 8) {
                    return core::ptr::with_exposed_provenance_mut(start);
                }
                // With a leaf in hand the object can be found wherever it moves to.
                let leaf = cx.map.take_leaf(cx.os, cx.meta);
                if leaf.is_null() {
                    return null_mut();
                }
                self.account(this, -1);
                // The old address may belong to someone else as soon as the mapping has moved.
                cx.map.set(start, cx.tomb);
                // SAFETY: the whole mapping of this object; `old` is its length.
                let moved =
                    unsafe { cx.os.remap(core::ptr::with_exposed_provenance_mut(start), old, len) };
                if !moved.is_null() {
                    this.set_start(moved.expose_provenance());
                    this.set_granules(len / GRANULE);
                    this.set_object(this.start());
                    this.set_usable(len);
                }
                cx.map.put_leaf(cx.os, leaf, this.start());
                cx.map.set(this.start(), span.0.as_ptr());
                self.account(this, 1);
                moved
            }
            _ => null_mut(),
        }
    }

    /// The mapped object that `address` lies in, if any; walks all of them.
    pub fn find<O: Os>(&self, os: &O, address: usize) -> Option<SpanRef> {
        let inner = self.inner.lock(os);
        let mut next = inner.objects;
        while let Some(span) = NonNull::new(next).map(SpanRef) {
            if (span.get().start()..span.get().end()).contains(&address) {
                return Some(span);
            }
            next = span.get().next();
        }
        None
    }
}

//! The page heap: runs of 4 KiB granules out of 2 MiB chunks of private anonymous memory.
//!
//! Terms: a free run is **dirty** (its memory is resident, but for granules that are known to be **absent**) or
//! **clean** (never touched or given back, reads as zero). Runs may cross chunks that lie side by side, but none is
//! longer than 16 MiB.
//!
//! ```text
//!  bins[dirty|clean][88]   exact lengths 1..=32, then eight a doubling up to 4096 granules
//!  oldest <-> ... <-> newest   dirty runs by the time they were freed
//! ```
//!
//! Algorithm: best fit, dirty before clean before a new chunk; a freed run joins its free neighbours
//! of the same kind, found through the page map. Dirty runs that stay free for the decay time are
//! taken out of the bins, given back without the lock, and put in again as clean.
//!
//! The first memory of a heap is an **island** of 1 MiB with inaccessible memory of more than that on either side: all
//! of what small programs allocate lies in it, so that a write a MiB off faults. In hardened mode all memory is
//! islands.
//!
//! Properties: every granule of a chunk is in exactly one run; no two neighbours of a kind that would
//! make a run of allowed length are both free; the first and last granule of each run map to its descriptor.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::lock::{Lock, Locked};
use crate::meta::Meta;
use crate::os::Os;
use crate::pagemap::PageMap;
use crate::size::{CHUNK, GRANULE};
use crate::span::{Span, SpanRef, State, UNLISTED};

const CHUNK_GRANULES: usize = CHUNK / GRANULE;
/// Bytes of an island, in the middle of two chunks of which the rest is inaccessible.
const ISLAND: usize = 1 << 20;
/// Granules of the longest run: 16 MiB.
pub const RUN_MAX: usize = 4096;

const BINS: usize = 88;
const DIRTY: usize = 0;
const CLEAN: usize = 1;
/// Runs of one bin that a search looks at before it goes to a larger bin.
const SCAN: usize = 16;
/// Most chunks taken from the operating system at once without need: 16 MiB.
const GROWTH_MAX: usize = RUN_MAX / CHUNK_GRANULES;

/// How long free memory stays resident, in nanoseconds.
pub const DECAY_NS: u64 = 1_000_000_000;
/// Frees of runs, and new spans, between two looks at the clock, where there is no helper thread.
const LOOK: usize = 32;
/// Runs given back in one call of [`Pages::purge`].
const PURGE_RUNS: usize = 64;

fn bin_of(granules: usize) -> usize {
    debug_assert!((1..=RUN_MAX).contains(&granules));
    if granules <= 32 {
        return granules - 1;
    }
    let doubling = (granules - 1).ilog2() as usize;
    32 + 8 * (doubling - 5) + ((granules - 1) >> (doubling - 3)) % 8
}

#[derive(Debug)]
struct Inner {
    bins: [[*mut Span; BINS]; 2],
    nonempty: [u128; 2],
    oldest: *mut Span,
    newest: *mut Span,
}

// SAFETY: the pointers are to descriptors, which are never unmapped.
unsafe impl Send for Inner {}

/// What the page heap works with.
#[derive(Debug)]
pub struct Context<'a, O: Os> {
    /// The operating system.
    pub os: &'a O,
    /// The page map.
    pub map: &'a PageMap,
    /// Memory for descriptors.
    pub meta: &'a Meta,
    /// The mark for memory that was freed.
    pub tomb: *mut Span,
    /// Page size.
    pub page: usize,
}

impl<O: Os> Clone for Context<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Os> Copy for Context<'_, O> {}

/// The page heap.
#[derive(Debug)]
pub struct Pages {
    inner: Locked<Inner>,
    mapped: AtomicUsize,
    dirty: AtomicUsize,
    clock: AtomicU64,
    frees: AtomicUsize,
    islands: AtomicBool,
}

/// A free span, or null in a list.
fn span<'a>(span: *mut Span) -> Option<&'a Span> {
    NonNull::new(span).map(|span| SpanRef(span).get())
}

impl Inner {
    fn link(&mut self, run: SpanRef, kind: usize) {
        let this = run.get();
        let bin = bin_of(this.granules());
        let head = self.bins[kind][bin];
        this.set_zeroed(kind == CLEAN);
        this.set_bucket(bin as u8);
        this.set_prev(null_mut());
        this.set_next(head);
        if let Some(head) = span(head) {
            head.set_prev(run.0.as_ptr());
        }
        self.bins[kind][bin] = run.0.as_ptr();
        self.nonempty[kind] |= 1 << bin;
        this.set_state(State::Free);
    }

    /// Puts a linked dirty run behind `older` in the list by age; null puts it first.
    fn link_age(&mut self, run: SpanRef, older: *mut Span) {
        let this = run.get();
        let newer = span(older).map_or(self.oldest, Span::newer);
        this.set_older(older);
        this.set_newer(newer);
        match span(older) {
            Some(older) => older.set_newer(run.0.as_ptr()),
            None => self.oldest = run.0.as_ptr(),
        }
        match span(newer) {
            Some(newer) => newer.set_older(run.0.as_ptr()),
            None => self.newest = run.0.as_ptr(),
        }
    }

    /// Takes a free run out of its bin; its place in the list by age is returned and lost.
    fn unlink(&mut self, run: SpanRef) -> *mut Span {
        let this = run.get();
        let kind = usize::from(this.is_zeroed());
        let bin = usize::from(this.bucket());
        match span(this.prev()) {
            Some(prev) => prev.set_next(this.next()),
            None => {
                self.bins[kind][bin] = this.next();
                if this.next().is_null() {
                    self.nonempty[kind] &= !(1 << bin);
                }
            }
        }
        if let Some(next) = span(this.next()) {
            next.set_prev(this.prev());
        }
        this.set_bucket(UNLISTED);
        this.set_state(State::Busy);
        if kind == CLEAN {
            return null_mut();
        }
        let (older, newer) = (this.older(), this.newer());
        match span(older) {
            Some(older) => older.set_newer(newer),
            None => self.oldest = newer,
        }
        match span(newer) {
            Some(newer) => newer.set_older(older),
            None => self.newest = older,
        }
        older
    }

    /// The best free run of a kind for `granules` at a multiple of `align`, and where in it.
    fn find(&self, kind: usize, granules: usize, align: usize) -> Option<(SpanRef, usize)> {
        let mut bins = self.nonempty[kind] & (u128::MAX << bin_of(granules));
        while bins != 0 {
            let bin = bins.trailing_zeros() as usize;
            bins &= bins - 1;
            let mut next = self.bins[kind][bin];
            for _ in 0..SCAN {
                let Some(run) = NonNull::new(next).map(SpanRef) else { break };
                let this = run.get();
                let at = this.start().next_multiple_of(align * GRANULE);
                if at + granules * GRANULE <= this.end() {
                    return Some((run, at));
                }
                next = this.next();
            }
        }
        None
    }
}

impl Pages {
    /// An empty page heap: all zero.
    pub const fn new() -> Self {
        Self {
            inner: Locked::new(Inner {
                bins: [[null_mut(); BINS]; 2],
                nonempty: [0; 2],
                oldest: null_mut(),
                newest: null_mut(),
            }),
            mapped: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
            frees: AtomicUsize::new(0),
            islands: AtomicBool::new(false),
        }
    }

    /// Bytes taken from the operating system.
    pub fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Bytes of dirty free runs, without what is absent.
    pub fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// The time of the last purge.
    pub fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Sets the time, before the first purge.
    pub fn set_clock(&self, now: u64) {
        self.clock.store(now, Ordering::Relaxed);
    }

    /// Whether it is worth looking at the clock: now and then.
    pub fn is_due(&self) -> bool {
        self.frees.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK)
    }

    /// Whether nobody has called [`Pages::purge`] for a while.
    pub fn is_late(&self, now: u64) -> bool {
        now.saturating_sub(self.clock()) > DECAY_NS / 2
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &Lock {
        self.inner.raw()
    }

    /// A run of `granules` (with `align`, at most [`RUN_MAX`]) at a multiple of `align` granules, in state `Busy`, its
    /// first and last granule mapped to it; [`Span::is_zeroed`] says whether its memory is zero.
    pub fn allocate<O: Os>(
        &self,
        cx: Context<'_, O>,
        granules: usize,
        align: usize,
    ) -> Option<SpanRef> {
        loop {
            let mut inner = self.inner.lock(cx.os);
            for kind in [DIRTY, CLEAN] {
                if let Some((run, at)) = inner.find(kind, granules, align) {
                    return self.carve(cx, &mut inner, run, at, granules).then_some(run);
                }
            }
            drop(inner);
            if !self.grow(cx, granules + align - 1) {
                return None;
            }
        }
    }

    /// Takes `granules` from `at` on out of a free run, which becomes them; what is left on either side becomes
    /// free runs. `false`, and nothing changed, if there is no memory for their descriptors.
    fn carve<O: Os>(
        &self,
        cx: Context<'_, O>,
        inner: &mut Inner,
        run: SpanRef,
        at: usize,
        granules: usize,
    ) -> bool {
        let this = run.get();
        let (start, end) = (this.start(), this.end());
        let (front, back) = (at - start, end - (at + granules * GRANULE));
        let mut parts = [None; 2];
        for (part, len) in parts.iter_mut().zip([front, back]) {
            if len > 0 {
                *part = cx.meta.take(cx.os);
                if part.is_none() {
                    if let Some(part) = parts[0] {
                        cx.meta.put(cx.os, part);
                    }
                    return false;
                }
            }
        }
        let dirty = !this.is_zeroed();
        let mut older = inner.unlink(run);
        // Nobody knows where in a run the absent granules are: each part has its share of them.
        let absent = if dirty { this.absent() } else { 0 };
        let share = |absent: usize, part: usize, of: usize| (absent * part).checked_div(of);
        let taken = share(absent, granules, this.granules()).unwrap_or(0);
        let in_front = share(absent - taken, front, front + back).unwrap_or(0);
        if dirty {
            self.dirty.fetch_sub((granules - taken) * GRANULE, Ordering::Relaxed);
        }
        let places = [(start, front, in_front), (end - back, back, absent - taken - in_front)];
        for (part, (start, len, absent)) in parts.into_iter().zip(places) {
            let Some(part) = part else { continue };
            part.get().set_start(start);
            part.get().set_granules(len / GRANULE);
            part.get().set_stamp(this.stamp());
            part.get().set_absent(absent);
            inner.link(part, if dirty { DIRTY } else { CLEAN });
            if dirty {
                inner.link_age(part, older);
                older = part.0.as_ptr();
            }
            Self::map_edges(cx, part);
        }
        this.set_start(at);
        this.set_granules(granules);
        this.set_absent(taken);
        Self::map_edges(cx, run);
        true
    }

    fn map_edges<O: Os>(cx: Context<'_, O>, run: SpanRef) {
        let this = run.get();
        cx.map.set(this.start(), run.0.as_ptr());
        cx.map.set(this.end() - GRANULE, run.0.as_ptr());
    }

    /// Takes chunks from the operating system, enough for a run of `granules`.
    fn grow<O: Os>(&self, cx: Context<'_, O>, granules: usize) -> bool {
        let islands = self.islands.load(Ordering::Relaxed);
        if granules <= ISLAND / GRANULE && (islands || self.mapped() == 0) {
            // A heap that has no room for an island may still have some for a chunk.
            let grown = self.grow_island(cx);
            if grown || islands {
                return grown;
            }
        }
        let need = granules.div_ceil(CHUNK_GRANULES);
        if need > GROWTH_MAX {
            return false;
        }
        // An eighth more at a time keeps the number of calls logarithmic.
        let wish = (self.mapped() / CHUNK / 8).clamp(need, GROWTH_MAX);
        for chunks in [wish, need] {
            let Some(run) = cx.meta.take(cx.os) else { return false };
            let len = chunks * CHUNK;
            let start = cx.os.map_chunks(len, CHUNK);
            if !start.is_null() {
                if cx.map.cover(cx.os, cx.meta, start.expose_provenance(), len) {
                    run.get().set_start(start.addr());
                    run.get().set_granules(len / GRANULE);
                    self.mapped.fetch_add(len, Ordering::Relaxed);
                    let mut inner = self.inner.lock(cx.os);
                    self.free_locked(cx, &mut inner, run, CLEAN);
                    return true;
                }
                // SAFETY: mapped just above, not used.
                unsafe { cx.os.unmap(start, len) };
            }
            cx.meta.put(cx.os, run);
        }
        false
    }

    /// From now on chunks are islands: what lies a MiB away from an address in one is inaccessible.
    pub fn use_islands(&self) {
        self.islands.store(true, Ordering::Relaxed);
    }

    /// Takes an island from the operating system.
    fn grow_island<O: Os>(&self, cx: Context<'_, O>) -> bool {
        let Some(run) = cx.meta.take(cx.os) else { return false };
        let len = 2 * CHUNK;
        // So aligned, an island lies across no multiple of more, where mappings are to end.
        let map = cx.os.map(len, len);
        let start = map.expose_provenance() + (len - ISLAND) / 2;
        if map.is_null() || !cx.map.cover(cx.os, cx.meta, start, ISLAND) {
            if !map.is_null() {
                // SAFETY: mapped just above, not used.
                unsafe { cx.os.unmap(map, len) };
            }
            cx.meta.put(cx.os, run);
            return false;
        }
        // SAFETY: both ends of the new mapping.
        unsafe {
            cx.os.guard(map, (len - ISLAND) / 2);
            cx.os.guard(map.add((len + ISLAND) / 2), (len - ISLAND) / 2);
        }
        run.get().set_start(start);
        run.get().set_granules(ISLAND / GRANULE);
        self.mapped.fetch_add(ISLAND, Ordering::Relaxed);
        let mut inner = self.inner.lock(cx.os);
        self.free_locked(cx, &mut inner, run, CLEAN);
        true
    }

    /// Gives a `Busy` run back, of which so many granules hold no memory. What was mapped inside it becomes the mark of
    /// freed memory.
    pub fn free<O: Os>(&self, cx: Context<'_, O>, run: SpanRef, absent: usize) {
        run.get().set_absent(absent);
        let mut inner = self.inner.lock(cx.os);
        self.free_locked(cx, &mut inner, run, DIRTY);
    }

    fn free_locked<O: Os>(&self, cx: Context<'_, O>, inner: &mut Inner, run: SpanRef, kind: usize) {
        let this = run.get();
        let (start, end) = (this.start(), this.end());
        if kind == DIRTY {
            self.dirty.fetch_add(end - start - this.absent() * GRANULE, Ordering::Relaxed);
        }
        cx.map.set(start, cx.tomb);
        cx.map.set(end - GRANULE, cx.tomb);
        let (mut low, mut high) = (start, end);
        // Beyond the edge of a region the map holds null, or an object's own mapping, which is never free.
        for edge in [start - GRANULE, end] {
            let Some(neighbour) = NonNull::new(cx.map.get(edge)).map(SpanRef) else { continue };
            let other = neighbour.get();
            if other.state() != State::Free
                || usize::from(other.is_zeroed()) != kind
                || other.len() + (high - low) > RUN_MAX * GRANULE
            {
                continue;
            }
            inner.unlink(neighbour);
            this.set_absent(this.absent() + other.absent());
            low = low.min(other.start());
            high = high.max(other.end());
            cx.map.set(other.start(), cx.tomb);
            cx.map.set(other.end() - GRANULE, cx.tomb);
            cx.meta.put(cx.os, neighbour);
        }
        this.set_start(low);
        this.set_granules((high - low) / GRANULE);
        this.set_stamp(self.clock());
        inner.link(run, kind);
        if kind == DIRTY {
            let newest = inner.newest;
            inner.link_age(run, newest);
        }
        Self::map_edges(cx, run);
    }

    /// Grows a run in place to `granules`; `false` if what follows it is not free.
    pub fn extend<O: Os>(&self, cx: Context<'_, O>, run: SpanRef, granules: usize) -> bool {
        let this = run.get();
        let end = this.end();
        let wanted = (granules - this.granules()) * GRANULE;
        let mut inner = self.inner.lock(cx.os);
        let Some(next) = NonNull::new(cx.map.get(end)).map(SpanRef) else { return false };
        let other = next.get();
        if other.state() != State::Free
            || other.len() < wanted
            || !self.carve(cx, &mut inner, next, end, wanted / GRANULE)
        {
            return false;
        }
        cx.map.set(end - GRANULE, null_mut());
        cx.map.set(end, null_mut());
        this.set_granules(granules);
        Self::map_edges(cx, run);
        cx.meta.put(cx.os, next);
        true
    }

    /// Gives the tail of a run back, so that `granules` stay; does nothing if there is no memory for a descriptor.
    pub fn shrink<O: Os>(&self, cx: Context<'_, O>, run: SpanRef, granules: usize) {
        let this = run.get();
        let Some(tail) = cx.meta.take(cx.os) else { return };
        let end = this.end();
        let mut inner = self.inner.lock(cx.os);
        this.set_granules(granules);
        Self::map_edges(cx, run);
        tail.get().set_start(this.end());
        tail.get().set_granules((end - this.end()) / GRANULE);
        tail.get().set_absent(0);
        self.free_locked(cx, &mut inner, tail, DIRTY);
    }

    /// Gives back runs that have been dirty for [`DECAY_NS`] at `now` (all runs if `now` is the end of time), a bounded
    /// number of them. Returns the bytes given back.
    pub fn purge<O: Os>(&self, cx: Context<'_, O>, now: u64) -> usize {
        if now != u64::MAX {
            self.clock.store(now, Ordering::Relaxed);
        }
        let mut given = 0;
        for _ in 0..PURGE_RUNS {
            let mut inner = self.inner.lock(cx.os);
            let Some(run) = NonNull::new(inner.oldest).map(SpanRef) else { break };
            let this = run.get();
            if now != u64::MAX && this.stamp().saturating_add(DECAY_NS) > now {
                break;
            }
            inner.unlink(run);
            drop(inner);
            let low = this.start().next_multiple_of(cx.page);
            let high = this.end() & !(cx.page - 1);
            if low < high {
                let start = core::ptr::with_exposed_provenance_mut(low);
                // SAFETY: whole pages of a run that this thread alone owns, of memory from `Os::map`.
                unsafe { cx.os.decommit(start, high - low) };
                given += high - low;
            }
            self.dirty.fetch_sub(this.len() - this.absent() * GRANULE, Ordering::Relaxed);
            this.set_absent(0);
            let mut inner = self.inner.lock(cx.os);
            self.free_locked(cx, &mut inner, run, CLEAN);
        }
        given
    }
}

impl Pages {
    /// Unmaps the whole chunks that free runs cover, for when address space is short. Returns the bytes.
    pub fn unmap_free<O: Os>(&self, cx: Context<'_, O>) -> usize {
        let mut given = 0;
        loop {
            let mut inner = self.inner.lock(cx.os);
            let islands = self.islands.load(Ordering::Relaxed);
            let found = [DIRTY, CLEAN].into_iter().find_map(|kind| {
                if islands {
                    let granules = ISLAND / GRANULE;
                    return inner.find(kind, granules, 1).map(|(run, at)| (run, at, granules));
                }
                (1..=GROWTH_MAX).rev().find_map(|chunks| {
                    let granules = chunks * CHUNK_GRANULES;
                    inner.find(kind, granules, CHUNK_GRANULES).map(|(run, at)| (run, at, granules))
                })
            });
            let Some((run, at, granules)) = found else { return given };
            if !self.carve(cx, &mut inner, run, at, granules) {
                return given;
            }
            drop(inner);
            let len = granules * GRANULE;
            cx.map.set_range(at, granules, null_mut());
            cx.meta.put(cx.os, run);
            self.mapped.fetch_sub(len, Ordering::Relaxed);
            // An island goes with what is around it.
            let (at, len) =
                if islands { (at - (2 * CHUNK - ISLAND) / 2, 2 * CHUNK) } else { (at, len) };
            // SAFETY: whole chunks of a free run, which was taken out of the page heap above.
            unsafe { cx.os.unmap(core::ptr::with_exposed_provenance_mut(at), len) };
            given += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_exact_and_then_eight_a_doubling() {
        for granules in 1..=RUN_MAX {
            let bin = bin_of(granules);
            assert!(bin < BINS);
            if granules > 1 {
                assert!(bin - bin_of(granules - 1) <= 1, "{granules}");
            }
            if granules <= 32 {
                assert_eq!(bin, granules - 1);
            }
        }
        assert_eq!(bin_of(33), 32);
        assert_eq!(bin_of(RUN_MAX), BINS - 1);
    }
}

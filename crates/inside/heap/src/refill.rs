//! Between a thread's cache and the classes: refills, flushes, and what becomes of empty spans.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use crate::bits;
use crate::cache::{self, Cache, Event, LOOK};
use crate::central::{self, BATCH, Batch, Returns, Word};
use crate::heap::Heap;
use crate::os::{Misuse, Os};
use crate::pages::DECAY_NS;
use crate::size::{self, CLASSES, GRANULE, SIZES, SLOTS_MAX, SPAN_MAX};
use crate::span::{Span, SpanRef};

/// Whether most of some slots lie near the one before them: by a few of them, as this is asked for each batch.
fn lie_together(slots: &[*mut u8]) -> bool {
    let pairs = slots.chunks_exact(8);
    let (all, near) = pairs.fold((0, 0), |(all, near), some| {
        let apart = (some[0].addr() ^ some[1].addr()) >> SPAN_MAX.trailing_zeros();
        (all + 1, near + u32::from(apart == 0))
    });
    4 * near > 3 * all
}

impl<O: Os> Heap<O> {
    /// Gives back everything in a cache.
    ///
    /// # Safety
    /// The caller owns the cache.
    pub(crate) unsafe fn empty_cache(&self, cache: *mut Cache) {
        for class in 0..CLASSES {
            // SAFETY: the caller owns the cache.
            let bin = unsafe { &(*cache).bins[class] };
            while bin.len() > 0 {
                let count = BATCH.min(bin.len());
                // SAFETY: as above.
                unsafe {
                    self.return_slots(class, &bin.entries()[..count]);
                    bin.drop_oldest(count);
                }
            }
            // SAFETY: as above.
            unsafe { Cache::shrink(bin, class) };
        }
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
        let mark = |span: &Span, granules| self.mark_granules(span, granules);
        let taken = central.take(&self.os, None, wanted, from, page, batch, mark);
        if taken > 0 {
            return taken;
        }
        let Some(fresh) = self.make_span(class) else { return 0 };
        central.take(&self.os, Some(fresh), wanted, from, page, batch, mark)
    }

    /// Marks every slot that starts in these granules of a span and is not live, under the lock of its class. From then
    /// on objects there are freed without further questions, for a slot that is not the program's tells itself. What is
    /// left of the span behind its last slot is marked like a slot.
    #[cold]
    fn mark_granules(&self, span: &Span, granules: u16) {
        if self.is_hardened() {
            return;
        }
        let (start, size, key) = (span.start(), span.slot_size() as usize, self.key());
        let mut left = granules;
        while left != 0 {
            let granule = left.trailing_zeros() as usize;
            left &= left - 1;
            let end = ((granule + 1) * GRANULE).min(span.len());
            let first = (granule * GRANULE).div_ceil(size);
            // Asked once where that takes less than to ask for each.
            let unused = size < GRANULE / 8 && {
                let here = bits::range(first..end.div_ceil(size).min(SLOTS_MAX));
                here.iter().enumerate().all(|(word, here)| span.live(word) & here == 0)
            };
            for (slot, offset) in (first..).zip((first * size..end).step_by(size)) {
                if !unused && slot < usize::from(span.slots()) && span.is_live(slot) {
                    continue;
                }
                let address = start + offset;
                let second = core::ptr::with_exposed_provenance_mut::<u64>(address + 8);
                // SAFETY: a slot, or what is left of the span, is at least 16 bytes; it is nobody's, and the lock keeps
                // it so.
                unsafe { second.write(cache::mark(key, address)) };
            }
        }
        span.set_marked(span.marked() | granules);
        self.map.set_small(span, self.frees_plainly() && span.blocked_pages() == 0);
    }

    fn make_span(&self, class: usize) -> Option<SpanRef> {
        let shape = size::geometry(class, self.page());
        let allocate = || self.pages.allocate(self.cx(), shape.granules, shape.align);
        let span = allocate().or_else(|| if self.reclaim() { allocate() } else { None })?;
        self.purge_if_due();
        let this = span.get();
        if self.is_hardened() {
            this.set_zeroed(false);
            self.hardened_prepare(this);
        }
        let empty = this.is_zeroed() || this.absent() == shape.granules;
        let resident = if empty && shape.pages > 0 { 0 } else { u16::MAX };
        this.become_small(class, shape.slots, resident);
        self.map.set_small(this, self.frees_plainly());
        Some(span)
    }

    /// Fills a bin.
    ///
    /// # Safety
    /// The caller owns the cache; the bin is empty.
    #[cold]
    pub(crate) unsafe fn refill(&self, cache: *mut Cache, class: usize) -> bool {
        // SAFETY: the caller owns the cache; the references are to fields that do not overlap.
        let (bin, rng) = unsafe { (&(*cache).bins[class], &mut (*cache).rng) };
        let transfer = &self.transfers[class];
        let level = self.config().randomise;
        // SAFETY: the caller owns the cache.
        let takes = level < 2 && unsafe { Cache::only_takes(cache, class, transfer.giver()) };
        let shuffled = level > 0 && !takes;
        let wanted = bin.cap().div_ceil(2);
        // SAFETY: the caller owns the cache; `wanted` is within the bin's room.
        if unsafe { bin.fetch(|to| transfer.fetch(&self.os, to, wanted)) } > 0 {
            if shuffled {
                // SAFETY: as above.
                rng.shuffle(unsafe { bin.entries() });
            }
            // SAFETY: as above.
            unsafe {
                Cache::grow(cache, class, Event::EMPTY);
                self.trim_idle_bin(cache, class);
            }
            return true;
        }
        let from = if level > 0 { rng.next() as u32 % 256 } else { 0 };
        let mut batch = Batch::new();
        let taken = self.take(class, wanted, from, &mut batch);
        if taken == 0 {
            return false;
        }
        // SAFETY: the caller owns the cache.
        unsafe { Cache::grow(cache, class, Event::EMPTY) };
        // SAFETY: the caller owns the cache; the bin is empty and has room for `wanted`, of which `taken` are here.
        unsafe {
            if shuffled {
                bin.fill_shuffled(batch.slots(class), rng);
            } else {
                bin.fill_in_order(batch.slots(class), taken, from % 64);
            }
        }
        // SAFETY: as above.
        unsafe { self.trim_idle_bin(cache, class) };
        true
    }

    /// Notes that a bin was refilled or flushed, and now and then gives back half of one that was not.
    ///
    /// # Safety
    /// The caller owns the cache.
    unsafe fn trim_idle_bin(&self, cache: *mut Cache, class: usize) {
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
            unsafe {
                self.flush(cache, idle, bin.len().div_ceil(2).min(BATCH));
                Cache::shrink(bin, idle);
            }
        }
    }

    /// Gives the oldest `count` entries of a bin (at most [`BATCH`]) to whoever needs them next, or to their spans.
    ///
    /// # Safety
    /// The caller owns the cache; the bin has that many entries.
    unsafe fn flush(&self, cache: *mut Cache, class: usize, count: usize) {
        // SAFETY: the caller owns the cache.
        let bin = unsafe { &(*cache).bins[class] };
        // SAFETY: as above; the slice is not used after `drop_oldest`.
        let slots = &unsafe { bin.entries() }[..count];
        if !self.transfers[class].add(&self.os, &self.meta, class, cache.addr(), slots) {
            self.return_slots(class, slots);
        }
        // SAFETY: as above.
        unsafe { bin.drop_oldest(count) };
    }

    /// Gives slots (at most [`BATCH`]) back to their spans.
    fn return_slots(&self, class: usize, slots: &[*mut u8]) {
        let slots = &slots[..slots.len().min(BATCH)];
        let mut returns = Returns::new();
        if lie_together(slots) {
            self.collect_runs(class, slots, &mut returns);
        } else {
            for &slot in slots {
                let (span, index) = self.slot_of(class, slot);
                // SAFETY: there are at most `BATCH` slots.
                if unsafe { returns.add(span, index / 64, 1 << (index % 64)) } != 0 {
                    self.os.misuse(Misuse::DoubleFree, slot);
                }
            }
        }
        self.take_back(self.centrals[class].give(&self.os, returns.words()));
    }

    /// The span of a slot of a class, and which of its slots it is.
    #[inline(always)]
    fn slot_of(&self, class: usize, slot: *mut u8) -> (SpanRef, usize) {
        let Some(span) = NonNull::new(self.map.get(slot.addr())).map(SpanRef) else {
            self.os.misuse(Misuse::WildFree, slot)
        };
        let index = size::slot_at(class, slot.addr() - span.get().start());
        if index >= usize::from(span.get().slots()) {
            self.os.misuse(Misuse::WildFree, slot);
        }
        (span, index)
    }

    /// Sorts slots by span and word, a run of slots of one span at a time.
    #[inline(always)]
    fn collect_runs(&self, class: usize, slots: &[*mut u8], returns: &mut Returns) {
        let mut left = slots;
        while let Some(&first) = left.first() {
            let (span, _) = self.slot_of(class, first);
            let start = span.get().start();
            let len = usize::from(span.get().slots()) * SIZES[class] as usize;
            let (mut words, mut run) = ([0; 4], 0);
            for &slot in left {
                let offset = slot.addr().wrapping_sub(start);
                if offset >= len {
                    break;
                }
                let index = size::slot_at(class, offset);
                let (word, bit) = (&mut words[index / 64 % 4], 1_u64 << (index % 64));
                if *word & bit != 0 {
                    self.os.misuse(Misuse::DoubleFree, slot);
                }
                *word |= bit;
                run += 1;
            }
            for (word, &mask) in words.iter().enumerate().filter(|&(_, &mask)| mask != 0) {
                // SAFETY: there are at most `BATCH` slots, and each of these words is of one of them at least.
                let twice = unsafe { returns.add(span, word, mask) };
                if twice != 0 {
                    self.name_double(Word::new(span, word, twice));
                }
            }
            left = &left[run..];
        }
    }

    /// Gives the waiting slots of a class back to their spans.
    fn drain(&self, class: usize) {
        let mut slots = [null_mut(); BATCH];
        loop {
            // SAFETY: the array has room for that many.
            let count = unsafe { self.transfers[class].fetch(&self.os, slots.as_mut_ptr(), BATCH) };
            if count == 0 {
                return;
            }
            self.return_slots(class, &slots[..count]);
        }
    }

    /// Gives empty spans to the page heap, and names a double free.
    pub(crate) fn take_back(&self, given: central::FreeOutcome) {
        if let Some(word) = given.double {
            self.name_double(word);
        }
        self.free_spans(given.empty);
    }

    /// Names a slot that was freed twice, the first of a word.
    #[cold]
    fn name_double(&self, word: Word) -> ! {
        let (span, slot) = (word.span(), 64 * word.word() + word.mask.trailing_zeros() as usize);
        let object = span.get().start() + slot * span.get().slot_size() as usize;
        self.os.misuse(Misuse::DoubleFree, core::ptr::with_exposed_provenance_mut(object))
    }

    pub(crate) fn free_spans(&self, mut next: *mut Span) {
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
    pub(crate) fn purge_if_due(&self) {
        if self.pages.dirty() + self.large.kept_bytes() > 0 && self.pages.is_due() {
            let now = self.os.now_ns();
            if self.pages.is_late(now) {
                self.purge(now);
            }
        }
    }

    /// Adds a slot to a bin that may be full; at randomisation level 2 it changes places with a random one.
    ///
    /// # Safety
    /// The caller owns the cache.
    pub(crate) unsafe fn push_slow(&self, cache: *mut Cache, class: usize, object: *mut u8) {
        // SAFETY: the caller owns the cache; the references are to fields that do not overlap.
        let (bin, rng) = unsafe { (&(*cache).bins[class], &mut (*cache).rng) };
        // SAFETY: as above.
        if !unsafe { bin.push(object) } {
            // SAFETY: as above.
            if !unsafe { Cache::grow(cache, class, Event::FULL) } {
                let half = bin.len().div_ceil(2).min(BATCH);
                // SAFETY: as above; the bin is full, so it has that many entries.
                unsafe { self.flush(cache, class, half) };
                // SAFETY: as above.
                unsafe { self.trim_idle_bin(cache, class) };
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

    /// Gives back address space, when there is none left: whatever is not an object of the program. Whether anything
    /// was given back, so that it is worth trying again.
    pub(crate) fn reclaim(&self) -> bool {
        if self.is_hardened() {
            self.hardened_drain(0, 0);
        }
        self.tidy(true);
        let cx = self.cx();
        self.large.purge(cx, u64::MAX) + self.large.release(cx) + self.pages.unmap_free(cx) > 0
    }

    /// Gives waiting slots and kept empty spans back: all of them, or those of classes that have been idle.
    pub(crate) fn tidy(&self, all: bool) {
        for (class, (transfer, central)) in self.transfers.iter().zip(&self.centrals).enumerate() {
            if transfer.is_idle() || all {
                self.drain(class);
                let mut next = central.take_empty(&self.os);
                while let Some(span) = NonNull::new(next).map(SpanRef) {
                    next = span.get().next();
                    self.free_span(span);
                }
            }
        }
    }

    fn free_span(&self, span: SpanRef) {
        let (this, cx) = (span.get(), self.cx());
        let resident = this.resident().count_ones() as usize;
        let absent = if cx.page == GRANULE { this.granules().saturating_sub(resident) } else { 0 };
        self.map.set_range(this.start(), this.granules(), cx.tomb);
        self.pages.free(cx, span, absent);
    }

    /// Gives back resident free pages and kept mappings that have been free since long before `now`
    /// ([`Os::now_ns`]), a bounded number a call. Returns the bytes given back.
    pub fn purge(&self, now: u64) -> usize {
        let cx = self.cx();
        let last = self.tidied.load(Ordering::Relaxed);
        if now.saturating_sub(last) > DECAY_NS / 4 && now != u64::MAX {
            self.tidied.store(now, Ordering::Relaxed);
            self.tidy(false);
        }
        self.large.purge(cx, now) + self.pages.purge(cx, now)
    }
}

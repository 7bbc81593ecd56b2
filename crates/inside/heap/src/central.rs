//! One size class: its spans, under one lock that is held for a few word operations.
//!
//! Spans with slots to hand out are listed by how full they are, in eighths; a refill takes from the
//! fullest, so that emptying spans are left alone to become empty. A span without slots to hand
//! out is in no list. A span that becomes empty is handed to the caller, which gives it to the
//! page heap, unless compaction holds pages of it, or it is one of the few that a class keeps for a while.
//!
//! Properties: a slot is handed out only if it is neither live nor blocked; a span is listed exactly
//! if it has such a slot; live bits, counts and lists change only under the lock.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use crate::bits::{self, Bits};
use crate::lock::{Lock, Locked};
use crate::os::Os;
use crate::size::{GRANULE, SIZES};
use crate::span::{Span, SpanRef, State, UNLISTED};
use crate::sync::{AtomicUsize, Ordering};

/// The first holds spans without live slots, the others those that are less than an eighth full, and so on.
const BUCKETS: usize = 9;
/// Bytes of empty spans that a class keeps, and their number: without them, a class whose threads allocate and free in
/// step would take spans from the page heap and give them back all the time.
const KEPT_BYTES: usize = 64 * 1024;
const KEPT_SPANS: usize = 4;

/// Bytes of a slot from which on few are taken from memory that was never used.
const SPARED: u32 = 2048;

/// Slots of one word of one span's bitmap.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The span, with the index of the word in the low bits that its alignment leaves.
    at: *mut Span,
    /// The slots.
    pub mask: u64,
}

impl Word {
    /// Slots of word `word` of a span.
    #[inline(always)]
    pub fn new(span: SpanRef, word: usize, mask: u64) -> Self {
        Self { at: span.0.as_ptr().map_addr(|address| address | word), mask }
    }

    /// The span.
    #[inline(always)]
    pub fn span(&self) -> SpanRef {
        let span = self.at.map_addr(|address| address & !3);
        // SAFETY: made of a `NonNull` with two low bits set; the alignment keeps those clear.
        SpanRef(unsafe { NonNull::new_unchecked(span) })
    }

    /// Which of its four words.
    #[inline(always)]
    pub fn word(&self) -> usize {
        self.at.addr() & 3
    }
}

/// Slots among 64 that are neighbours.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Where the first of the 64 lies.
    pub start: usize,
    /// Bytes of each.
    pub size: usize,
    /// Which of them.
    pub mask: u64,
}

#[cfg(not(loom))]
impl Run {
    /// The address of the lowest of them, which is there no more.
    #[inline(always)]
    pub fn take_first(&mut self) -> Option<usize> {
        if self.mask == 0 {
            return None;
        }
        let slot = self.mask.trailing_zeros() as usize;
        self.mask &= self.mask - 1;
        Some(self.start + slot * self.size)
    }
}

/// Most words in a batch: one for each entry of a cache bin that is flushed or filled at once.
pub const BATCH: usize = 128;

/// Slots to take or give back, by span and word. What lies beyond `len` is not initialised.
#[derive(Debug)]
pub struct Batch {
    words: [MaybeUninit<Word>; BATCH],
    len: usize,
}

impl Batch {
    /// No slots.
    #[inline(always)]
    pub fn new() -> Self {
        Self { words: [const { MaybeUninit::uninit() }; BATCH], len: 0 }
    }

    /// The words.
    #[inline(always)]
    pub fn words(&self) -> &[Word] {
        // SAFETY: `push` initialised the first `len` words.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    /// The slots, of this class, word by word.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn slots(&self, class: usize) -> impl Iterator<Item = Run> {
        let size = SIZES[class] as usize;
        self.words().iter().map(move |word| Run {
            start: word.span().get().start() + 64 * word.word() * size,
            size,
            mask: word.mask,
        })
    }

    #[inline(always)]
    fn push(&mut self, word: Word) {
        if let Some(place) = self.words.get_mut(self.len) {
            place.write(word);
            self.len += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.len == BATCH
    }
}

/// Free slots of a class about to be given back, found by span and word through a small hash table.
///
/// The slots of a batch are often of a few words in turn, so there is no branch on "the same word as the last
/// one", which no processor could predict; every slot takes the way through the table, and the only branch, whether the
/// place holds the right word, nearly always goes one way.
#[derive(Debug)]
pub struct Returns {
    /// Index into `words`; zero is an empty place.
    table: [u8; TABLE],
    /// The first is a sentinel that no slot belongs to; what lies beyond `len` is not initialised.
    words: [MaybeUninit<Word>; BATCH + 1],
    len: usize,
}

/// Twice the batch, so that a probe is short.
const TABLE: usize = 2 * BATCH;
const _: () = assert!(BATCH <= u8::MAX as usize);

impl Returns {
    /// No slots.
    #[inline(always)]
    pub fn new() -> Self {
        let mut words = [const { MaybeUninit::uninit() }; BATCH + 1];
        words[0].write(Word { at: null_mut(), mask: 0 });
        Self { table: [0; TABLE], words, len: 1 }
    }

    /// Adds slots of a word; returns those that were added before.
    ///
    /// # Safety
    /// At most [`BATCH`] slots are added, and never none at once.
    #[inline(always)]
    pub unsafe fn add(&mut self, span: SpanRef, word: usize, mask: u64) -> u64 {
        let Word { at: key, mask } = Word::new(span, word, mask);
        // Descriptors are 128 bytes apart, so these bits tell neighbours and their words apart.
        let hash = (key.addr() >> 5 | key.addr() & 3).wrapping_mul(HASH);
        let mut place = hash >> (usize::BITS - TABLE.trailing_zeros());
        loop {
            let index = usize::from(self.table[place % TABLE]);
            // SAFETY: the table holds indices below `len`, up to which the words are initialised.
            let word = unsafe { self.words.get_unchecked_mut(index).assume_init_mut() };
            if word.at == key {
                let twice = word.mask & mask;
                word.mask |= mask;
                return twice;
            }
            if index == 0 {
                break;
            }
            place += 1;
        }
        self.table[place % TABLE] = self.len as u8;
        // SAFETY: the caller adds at most `BATCH` slots, so there is a place.
        unsafe { self.words.get_unchecked_mut(self.len).write(Word { at: key, mask }) };
        self.len += 1;
        0
    }

    /// The slots, by span and word.
    #[inline(always)]
    pub fn words(&self) -> &[Word] {
        // SAFETY: the words up to `len`, which is at least 1, are initialised.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().add(1).cast(), self.len - 1) }
    }
}

/// An odd number near 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
const HASH: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;

#[derive(Debug)]
struct Lists {
    heads: [*mut Span; BUCKETS],
    nonempty: u16,
}

// SAFETY: the pointers are to descriptors, which are never unmapped.
unsafe impl Send for Lists {}

/// A size class; on cache lines of its own, as each is written by whoever has its lock.
#[derive(Debug)]
#[repr(align(128))]
pub struct Central {
    lists: Locked<Lists>,
    spans: AtomicUsize,
    slots: AtomicUsize,
    live: AtomicUsize,
    /// Empty spans that are kept.
    kept: AtomicUsize,
}

/// What [`Central::give`] found.
#[derive(Debug)]
pub struct FreeOutcome {
    /// Spans that became empty and are the caller's now, linked by `next`.
    pub empty: *mut Span,
    /// A slot that was given back though it was not live: its span, word and bits.
    pub double: Option<Word>,
}

impl Lists {
    fn unlist(&mut self, span: SpanRef) {
        let this = span.get();
        let bucket = usize::from(this.bucket());
        if bucket >= BUCKETS {
            return;
        }
        match NonNull::new(this.prev()) {
            Some(prev) => SpanRef(prev).get().set_next(this.next()),
            None => {
                self.heads[bucket] = this.next();
                if this.next().is_null() {
                    self.nonempty &= !(1 << bucket);
                }
            }
        }
        if let Some(next) = NonNull::new(this.next()) {
            SpanRef(next).get().set_prev(this.prev());
        }
        this.set_bucket(UNLISTED);
    }

    /// Puts a span into the list that its count belongs to.
    fn list(&mut self, span: SpanRef) {
        let this = span.get();
        let (live, slots) = (usize::from(this.live_count()), usize::from(this.slots()));
        let available = if this.blocked_pages() == 0 { live < slots } else { this.has_available() };
        let bucket = if !available {
            UNLISTED
        } else if live == 0 {
            0
        } else {
            // A division of 16-bit numbers is about as fast as looking up a reciprocal.
            1 + ((live * (BUCKETS - 1)) as u16 / slots as u16).min(BUCKETS as u16 - 2) as u8
        };
        if bucket == this.bucket() {
            return;
        }
        self.unlist(span);
        if bucket == UNLISTED {
            return;
        }
        let bucket = usize::from(bucket);
        let head = self.heads[bucket];
        this.set_prev(null_mut());
        this.set_next(head);
        if let Some(head) = NonNull::new(head) {
            SpanRef(head).get().set_prev(span.0.as_ptr());
        }
        self.heads[bucket] = span.0.as_ptr();
        self.nonempty |= 1 << bucket;
        this.set_bucket(bucket as u8);
    }

    fn fullest(&self) -> Option<SpanRef> {
        let bucket = self.nonempty.checked_ilog2()?;
        NonNull::new(self.heads[bucket as usize]).map(SpanRef)
    }
}

impl Central {
    /// A class without spans: all zero.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            lists: Locked::new(Lists { heads: [null_mut(); BUCKETS], nonempty: 0 }),
            spans: AtomicUsize::new(0),
            slots: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        }
    }

    /// A class without spans.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            lists: Locked::new(Lists { heads: [null_mut(); BUCKETS], nonempty: 0 }),
            spans: AtomicUsize::new(0),
            slots: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        }
    }

    /// Number of spans.
    pub fn spans(&self) -> usize {
        self.spans.load(Ordering::Relaxed)
    }

    /// Number of slots in them.
    pub fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// Number of live slots.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &Lock {
        self.lists.raw()
    }

    /// Adds to a counter that only the lock's holder writes.
    fn count(counter: &AtomicUsize, change: isize) {
        counter
            .store(counter.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Takes up to `wanted` slots (at most as many words as a batch holds) into `batch`; `from` says with which slot of
    /// a word to begin, going round. `fresh` is a span of the class that nobody knows yet: it joins the class first.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, and each is a plain fact about the request"
    )]
    pub fn take<O: Os>(
        &self,
        os: &O,
        fresh: Option<SpanRef>,
        wanted: usize,
        from: u32,
        page: usize,
        batch: &mut Batch,
        mark: impl Fn(&Span, u16),
    ) -> usize {
        let mut taken = 0;
        let mut lists = self.lists.lock(os);
        if let Some(fresh) = fresh {
            Self::count(&self.spans, 1);
            Self::count(&self.slots, isize::from(fresh.get().slots() as i16));
            fresh.get().set_state(State::Small);
            lists.list(fresh);
        }
        while taken < wanted && !batch.is_full() {
            let Some(span) = lists.fullest() else { break };
            let this = span.get();
            self.unkeep(this);
            let before = taken;
            for step in 0..4 {
                let word = (step + from as usize / 64) % 4;
                let available = this.available(word);
                if available == 0 {
                    continue;
                }
                let mut mask = bits::take(available, wanted - taken, from % 64);
                if this.marked() != u16::MAX {
                    mask = sparing(this, word, mask);
                    let missing = granules(this, word, mask) & !this.marked();
                    if missing != 0 {
                        mark(this, missing);
                    }
                }
                this.set_live(word, this.live(word) | mask);
                touch(this, word, mask, page);
                taken += mask.count_ones() as usize;
                batch.push(Word::new(span, word, mask));
                if taken >= wanted || batch.is_full() {
                    break;
                }
            }
            this.set_live_count(this.live_count() + (taken - before) as u16);
            lists.list(span);
        }
        Self::count(&self.live, taken as isize);
        taken
    }

    /// Gives slots back.
    pub fn give<O: Os>(&self, os: &O, words: &[Word]) -> FreeOutcome {
        self.give_all(os, words, false)
    }

    #[inline(always)]
    fn give_all<O: Os>(&self, os: &O, words: &[Word], held: bool) -> FreeOutcome {
        let mut given = FreeOutcome { empty: null_mut(), double: None };
        let mut freed = 0;
        let mut lists = self.lists.lock(os);
        for entry in words {
            let (span, word, mask) = (entry.span(), entry.word(), entry.mask);
            let this = span.get();
            let live = this.live(word);
            if live & mask != mask || this.state() != State::Small {
                given.double = Some(Word::new(span, word, mask & !live));
                continue;
            }
            this.set_live(word, live & !mask);
            if held {
                this.set_blocked(word, this.blocked(word) & !mask);
            }
            let count = mask.count_ones() as u16;
            freed += count;
            this.set_live_count(this.live_count() - count);
            self.relist(&mut lists, span, &mut given.empty);
        }
        Self::count(&self.live, -isize::from(freed as i16));
        given
    }

    /// Lists a span by its new count, or, if it is empty, takes it out of the class and puts it in front of `empty`.
    fn relist(&self, lists: &mut Lists, span: SpanRef, empty: &mut *mut Span) {
        let this = span.get();
        lists.list(span);
        if this.live_count() != 0 || !this.is_empty() {
            return;
        }
        if this.is_kept() {
            return;
        }
        if self.kept.load(Ordering::Relaxed) < (KEPT_BYTES / this.len()).clamp(1, KEPT_SPANS) {
            this.set_kept(true);
            Self::count(&self.kept, 1);
            return;
        }
        self.remove(lists, span);
        this.set_next(*empty);
        *empty = span.0.as_ptr();
    }

    fn remove(&self, lists: &mut Lists, span: SpanRef) {
        let this = span.get();
        lists.unlist(span);
        self.unkeep(this);
        Self::count(&self.spans, -1);
        Self::count(&self.slots, -isize::from(this.slots() as i16));
        this.become_busy();
    }

    fn unkeep(&self, span: &Span) {
        if span.is_kept() {
            span.set_kept(false);
            Self::count(&self.kept, -1);
        }
    }

    /// Takes the empty spans that the class has kept; they are linked by `next`.
    pub fn take_empty<O: Os>(&self, os: &O) -> *mut Span {
        let mut empty = null_mut();
        if self.kept.load(Ordering::Relaxed) == 0 {
            return empty;
        }
        let mut lists = self.lists.lock(os);
        let mut next = lists.heads[0];
        while let Some(span) = NonNull::new(next).map(SpanRef) {
            next = span.get().next();
            if span.get().is_empty() {
                self.remove(&mut lists, span);
                span.get().set_next(empty);
                empty = span.0.as_ptr();
            }
        }
        empty
    }

    /// Frees one slot.
    pub fn give_one<O: Os>(&self, os: &O, span: SpanRef, slot: usize) -> FreeOutcome {
        self.give_all(os, &[Word::new(span, slot / 64, 1 << (slot % 64))], false)
    }

    /// Whether a slot is live and not held back.
    pub fn is_in_use<O: Os>(&self, os: &O, span: SpanRef, slot: usize) -> bool {
        let _lists = self.lists.lock(os);
        let this = span.get();
        let (word, mask) = (slot / 64, 1 << (slot % 64));
        this.state() == State::Small && this.live(word) & !this.blocked(word) & mask != 0
    }

    /// Turns a live slot into a blocked one (hardened mode holds it back); `false` if it was not live.
    pub fn hold<O: Os>(&self, os: &O, span: SpanRef, slot: usize) -> bool {
        let _lists = self.lists.lock(os);
        let this = span.get();
        let (word, mask) = (slot / 64, 1 << (slot % 64));
        if this.state() != State::Small
            || this.live(word) & mask == 0
            || this.blocked(word) & mask != 0
        {
            return false;
        }
        // The slot stays live for the counts, so the span stays where it is.
        this.set_blocked(word, this.blocked(word) | mask);
        true
    }

    /// Frees a slot that [`Central::hold`] held back.
    pub fn release<O: Os>(&self, os: &O, span: SpanRef, slot: usize) -> FreeOutcome {
        self.give_all(os, &[Word::new(span, slot / 64, 1 << (slot % 64))], true)
    }

    /// Whether `span` is a span of this class now; under the lock.
    fn is_mine(&self, class: usize, span: SpanRef, generation: Option<u32>) -> bool {
        let this = span.get();
        this.state() == State::Small
            && this.class() == class
            && generation.is_none_or(|generation| this.generation() == generation)
    }

    /// Runs `f` on a span of this class under the lock, if it still is one.
    pub fn with<O: Os, T>(
        &self,
        os: &O,
        class: usize,
        span: SpanRef,
        generation: Option<u32>,
        f: impl FnOnce(&Span) -> T,
    ) -> Option<T> {
        let _lists = self.lists.lock(os);
        self.is_mine(class, span, generation).then(|| f(span.get()))
    }

    /// Blocks the slots on whole pages of a span; returns the live bits. `first` is called, under the lock, if no page
    /// of it was blocked before. `None` if it is no longer the span that was meant, or one of the pages is blocked
    /// already.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, and each is a plain fact about the span"
    )]
    pub fn block<O: Os>(
        &self,
        os: &O,
        class: usize,
        span: SpanRef,
        generation: u32,
        pages: Range<u8>,
        page: usize,
        first: impl FnOnce(&Span),
    ) -> Option<Bits> {
        let mut lists = self.lists.lock(os);
        if !self.is_mine(class, span, Some(generation)) {
            return None;
        }
        let this = span.get();
        if this.blocked_pages() & page_bits(&pages) != 0 {
            return None;
        }
        if this.blocked_pages() == 0 {
            first(this);
        }
        Self::set_pages(this, this.blocked_pages() | page_bits(&pages), page);
        lists.list(span);
        Some(this.live_bits())
    }

    /// Hands the slots on whole pages of a span out again; `last` is called, under the lock, if no page of it is
    /// blocked any more. `None` if it is no longer the span that was meant; else the span itself if it is empty and the
    /// caller's now.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, and each is a plain fact about the span"
    )]
    pub fn unblock<O: Os>(
        &self,
        os: &O,
        class: usize,
        span: SpanRef,
        generation: u32,
        pages: Range<u8>,
        page: usize,
        last: impl FnOnce(&Span),
    ) -> Option<*mut Span> {
        let mut lists = self.lists.lock(os);
        if !self.is_mine(class, span, Some(generation)) {
            return None;
        }
        let this = span.get();
        Self::set_pages(this, this.blocked_pages() & !page_bits(&pages), page);
        if this.blocked_pages() == 0 {
            last(this);
        }
        let mut empty = null_mut();
        self.relist(&mut lists, span, &mut empty);
        Some(empty)
    }

    /// Sets which pages are blocked, which forgets what is marked there; a slot is blocked while any page under it is.
    fn set_pages(span: &Span, pages: u16, page: usize) {
        span.set_blocked_pages(pages);
        let mut blocked = [0; 4];
        let (size, slots) = (span.slot_size() as usize, usize::from(span.slots()));
        let mut left = pages;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let on = bits::slots_on(first..first + 1, page, size, slots);
            for word in 0..4 {
                blocked[word] |= on[word];
            }
            let granules = (first * page / GRANULE) as u8..((first + 1) * page / GRANULE) as u8;
            span.set_marked(span.marked() & !page_bits(&granules));
            left &= left - 1;
        }
        for (word, bits) in blocked.into_iter().enumerate() {
            span.set_blocked(word, bits);
        }
    }
}

/// The granules that the slots `mask` of a word start in.
fn granules(span: &Span, word: usize, mask: u64) -> u16 {
    let (class, mut mask, mut found) = (span.class(), mask, 0);
    let size = SIZES[class] as usize;
    while mask != 0 {
        let granule = (64 * word + mask.trailing_zeros() as usize) * size / GRANULE;
        found |= 1 << granule;
        // On to the first slot that starts in the next one.
        let next = ((granule + 1) * GRANULE).div_ceil(size).saturating_sub(64 * word);
        mask &= !bits::below(next);
    }
    found
}

/// Of the slots `mask` of a word those to take: marking a granule makes it resident, so that of large slots, which may
/// not all be used, at most one in new memory is taken.
fn sparing(span: &Span, word: usize, mask: u64) -> u64 {
    if span.slot_size() < SPARED {
        return mask;
    }
    let (mut left, mut kept) = (mask, 0);
    while left != 0 {
        let slot = left & left.wrapping_neg();
        if granules(span, word, slot) & !span.marked() == 0 {
            kept |= slot;
        }
        left &= left - 1;
    }
    if kept != 0 { kept } else { mask & mask.wrapping_neg() }
}

/// Notes that the pages under the slots `mask` of a word, which are about to be handed out, will hold memory.
#[inline]
fn touch(span: &Span, word: usize, mask: u64, page: usize) {
    let resident = span.resident();
    if resident == u16::MAX {
        return;
    }
    let size = span.slot_size() as usize;
    let first = 64 * word + mask.trailing_zeros() as usize;
    let end = 64 * (word + 1) - mask.leading_zeros() as usize;
    let pages = (first * size / page) as u8..(end * size).div_ceil(page) as u8;
    span.set_resident(resident | page_bits(&pages));
}

/// The bits of a range of pages.
pub fn page_bits(pages: &Range<u8>) -> u16 {
    (bits::below(usize::from(pages.end)) & !bits::below(usize::from(pages.start))) as u16
}

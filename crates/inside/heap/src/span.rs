//! Span descriptors: 128 bytes each, out of band, never unmapped.
//!
//! ```text
//!  0      8      12     13    14    16        48     50      52    54     55    56         60
//!  +------+------+------+-----+-----+---------+------+-------+-----+------+-----+----------+----+
//!  |start |slot  |class |zero/|slots|live[4]  |live  |blocked|resi-|bucket|state|generation|mar-|
//!  |      |size  |      |kept |     |         |count |pages  |dent |      |     |          |ked |
//!  +------+------+------+-----+-----+---------+------+-------+-----+------+-----+----------+----+
//!  64           96     104    112       120
//!  +------------+------+------+---------+-------+
//!  |blocked[4]  |next  |prev  |granules |stamp  |
//!  +------------+------+------+---------+-------+
//! ```
//!
//! **Marked** has a bit for each granule whose slots, unless the program holds them, carry the mark of a free slot
//! (`cache.rs`): there a free of what was not handed out is told by the mark, elsewhere by the live bits.
//!
//! The first line is what frees and flushes touch. Who may write what:
//!
//! - a SMALL span: everything under its class's lock;
//! - FREE and LARGE runs: under the page heap's lock; MAPPED: under the lock of the mappings;
//! - a BUSY one: its single owner, in transition between those.
//!
//! Every field is a relaxed atomic, because fast paths and the statistics read without a lock; the
//! lock that guards the writes also orders them.

use core::ptr::NonNull;

use crate::bits::{self, Bits};
use crate::size::{CLASSES, GRANULE, SIZES, SPAN_MAX, slot_at};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const RELAXED: Ordering = Ordering::Relaxed;

/// What a descriptor means now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing; the page map's mark for "was freed" is such a descriptor.
    Unused = 0,
    /// A run of pages in the page heap.
    Free = 1,
    /// A span of slots.
    Small = 2,
    /// A large object in a run of pages.
    Large = 3,
    /// A large object in a mapping of its own.
    Mapped = 4,
    /// In transition, owned by one thread.
    Busy = 5,
}

/// [`Span::bucket`] of a span that is in no list.
pub const UNLISTED: u8 = u8::MAX;

/// The descriptor.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Span {
    start: AtomicUsize,
    slot_size: AtomicU32,
    class: AtomicU8,
    zeroed: AtomicU8,
    slots: AtomicU16,
    live: [AtomicU64; 4],
    live_count: AtomicU16,
    blocked_pages: AtomicU16,
    resident: AtomicU16,
    bucket: AtomicU8,
    state: AtomicU8,
    generation: AtomicU32,
    marked: AtomicU16,
    blocked: [AtomicU64; 4],
    next: AtomicPtr<Span>,
    prev: AtomicPtr<Span>,
    granules: AtomicUsize,
    stamp: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Span>() == 128);

macro_rules! field {
    ($name:ident, $set:ident, $type:ty) => {
        #[doc = concat!("`", stringify!($name), "` of the layout above.")]
        #[inline(always)]
        pub fn $name(&self) -> $type {
            self.$name.load(RELAXED)
        }

        #[doc = concat!("Sets `", stringify!($name), "`.")]
        #[inline(always)]
        pub fn $set(&self, value: $type) {
            self.$name.store(value, RELAXED);
        }
    };
}

impl Span {
    field!(start, set_start, usize);
    field!(slot_size, set_slot_size, u32);
    field!(slots, set_slots, u16);
    field!(live_count, set_live_count, u16);
    field!(blocked_pages, set_blocked_pages, u16);
    field!(resident, set_resident, u16);
    field!(marked, set_marked, u16);
    field!(bucket, set_bucket, u8);
    field!(generation, set_generation, u32);
    field!(next, set_next, *mut Span);
    field!(prev, set_prev, *mut Span);
    field!(granules, set_granules, usize);
    field!(stamp, set_stamp, u64);
}

impl Span {
    /// A descriptor that means nothing.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            slot_size: AtomicU32::new(0),
            class: AtomicU8::new(0),
            zeroed: AtomicU8::new(0),
            slots: AtomicU16::new(0),
            live: [const { AtomicU64::new(0) }; 4],
            live_count: AtomicU16::new(0),
            blocked_pages: AtomicU16::new(0),
            resident: AtomicU16::new(0),
            bucket: AtomicU8::new(0),
            state: AtomicU8::new(0),
            generation: AtomicU32::new(0),
            marked: AtomicU16::new(0),
            blocked: [const { AtomicU64::new(0) }; 4],
            next: AtomicPtr::new(core::ptr::null_mut()),
            prev: AtomicPtr::new(core::ptr::null_mut()),
            granules: AtomicUsize::new(0),
            stamp: AtomicU64::new(0),
        }
    }

    /// A descriptor that means nothing.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            slot_size: AtomicU32::new(0),
            class: AtomicU8::new(0),
            zeroed: AtomicU8::new(0),
            slots: AtomicU16::new(0),
            live: core::array::from_fn(|_| AtomicU64::new(0)),
            live_count: AtomicU16::new(0),
            blocked_pages: AtomicU16::new(0),
            resident: AtomicU16::new(0),
            bucket: AtomicU8::new(0),
            state: AtomicU8::new(0),
            generation: AtomicU32::new(0),
            marked: AtomicU16::new(0),
            blocked: core::array::from_fn(|_| AtomicU64::new(0)),
            next: AtomicPtr::new(core::ptr::null_mut()),
            prev: AtomicPtr::new(core::ptr::null_mut()),
            granules: AtomicUsize::new(0),
            stamp: AtomicU64::new(0),
        }
    }

    /// What the descriptor means now.
    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(RELAXED) {
            1 => State::Free,
            2 => State::Small,
            3 => State::Large,
            4 => State::Mapped,
            5 => State::Busy,
            _ => State::Unused,
        }
    }

    /// Changes what the descriptor means.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, RELAXED);
    }

    /// Size class of a small span.
    #[inline(always)]
    pub fn class(&self) -> usize {
        usize::from(self.class.load(RELAXED))
    }

    /// Whether the memory of a run that was never used, or was given back, is known to be zero.
    pub fn is_zeroed(&self) -> bool {
        self.zeroed.load(RELAXED) != 0
    }

    /// Notes whether the memory of the run is known to be zero.
    pub fn set_zeroed(&self, zeroed: bool) {
        self.zeroed.store(u8::from(zeroed), RELAXED);
    }

    /// Whether a small span is empty and its class keeps it. (The byte says something else about a run.)
    pub fn is_kept(&self) -> bool {
        self.zeroed.load(RELAXED) != 0
    }

    /// See [`Span::is_kept`].
    pub fn set_kept(&self, kept: bool) {
        self.zeroed.store(u8::from(kept), RELAXED);
    }

    /// A word of the live bits.
    #[inline(always)]
    pub fn live(&self, word: usize) -> u64 {
        self.live[word].load(RELAXED)
    }

    /// Replaces a word of the live bits.
    #[inline(always)]
    pub fn set_live(&self, word: usize, bits: u64) {
        self.live[word].store(bits, RELAXED);
    }

    /// A word of the blocked bits.
    #[inline(always)]
    pub fn blocked(&self, word: usize) -> u64 {
        self.blocked[word].load(RELAXED)
    }

    /// Replaces a word of the blocked bits.
    pub fn set_blocked(&self, word: usize, bits: u64) {
        self.blocked[word].store(bits, RELAXED);
    }

    /// Whether a slot is allocated or in some thread's cache.
    pub fn is_live(&self, slot: usize) -> bool {
        self.live(slot / 64) >> (slot % 64) & 1 != 0
    }

    /// All live bits.
    pub fn live_bits(&self) -> Bits {
        core::array::from_fn(|word| self.live(word))
    }

    /// All blocked bits.
    pub fn blocked_bits(&self) -> Bits {
        core::array::from_fn(|word| self.blocked(word))
    }

    /// The slots of a word that may be handed out.
    #[inline]
    pub fn available(&self, word: usize) -> u64 {
        bits::valid(usize::from(self.slots()), word) & !(self.live(word) | self.blocked(word))
    }

    /// Whether any slot may be handed out.
    pub fn has_available(&self) -> bool {
        (0..4).any(|word| self.available(word) != 0)
    }

    /// Whether no slot is live and none is blocked.
    pub fn is_empty(&self) -> bool {
        self.live_count() == 0 && bits::none(&self.blocked_bits())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.granules() * GRANULE
    }

    /// One past the last byte.
    pub fn end(&self) -> usize {
        self.start() + self.len()
    }

    /// The slot that begins at `address`, if the span is small and one does.
    #[inline]
    pub fn slot_start(&self, address: usize) -> Option<usize> {
        let class = self.class();
        if class >= CLASSES {
            return None;
        }
        let offset = address.wrapping_sub(self.start());
        if offset >= SPAN_MAX {
            return None;
        }
        let slot = slot_at(class, offset);
        (slot < usize::from(self.slots()) && slot * SIZES[class] as usize == offset).then_some(slot)
    }

    /// Makes the descriptor of a run that of a span of `slots` free slots. Its state stays [`State::Busy`] until its
    /// class takes it in: who finds it by its address before that may neither block nor free anything there.
    pub fn become_small(&self, class: usize, slots: usize, resident: u16) {
        self.class.store(class as u8, RELAXED);
        self.set_slots(slots as u16);
        self.set_slot_size(SIZES[class]);
        for word in 0..4 {
            self.set_live(word, 0);
            self.set_blocked(word, 0);
        }
        self.set_live_count(0);
        self.set_blocked_pages(0);
        self.set_resident(resident);
        self.set_marked(0);
        self.set_bucket(UNLISTED);
        self.set_kept(false);
        self.set_generation(self.generation().wrapping_add(1));
    }

    /// Ends the life of a small span.
    pub fn become_busy(&self) {
        self.set_state(State::Busy);
        self.set_generation(self.generation().wrapping_add(1));
    }

    /// Granules of a dirty free run that hold no memory, kept in a word that such a run has no other use for.
    pub fn absent(&self) -> usize {
        usize::from(self.resident())
    }

    /// Sets what [`Span::absent`] returns.
    pub fn set_absent(&self, granules: usize) {
        self.set_resident(granules as u16);
    }

    /// Neighbours in the list by age of a free run, kept in words that such a run has no other use for.
    pub fn older(&self) -> *mut Span {
        core::ptr::with_exposed_provenance_mut(self.live(0) as usize)
    }

    /// See [`Span::older`].
    pub fn set_older(&self, span: *mut Span) {
        self.set_live(0, span.expose_provenance() as u64);
    }

    /// See [`Span::older`].
    pub fn newer(&self) -> *mut Span {
        core::ptr::with_exposed_provenance_mut(self.live(1) as usize)
    }

    /// See [`Span::older`].
    pub fn set_newer(&self, span: *mut Span) {
        self.set_live(1, span.expose_provenance() as u64);
    }

    /// Where the object of a large span begins: its start, except in hardened mode, which puts objects against the
    /// guard behind them.
    pub fn object(&self) -> usize {
        self.live(2) as usize
    }

    /// See [`Span::object`].
    pub fn set_object(&self, object: usize) {
        self.set_live(2, object as u64);
    }

    /// Bytes that the program may use of a large object.
    pub fn usable(&self) -> usize {
        self.live(3) as usize
    }

    /// See [`Span::usable`].
    pub fn set_usable(&self, usable: usize) {
        self.set_live(3, usable as u64);
    }
}

/// A reference to a span's descriptor. Descriptors are never unmapped, so a reference is always
/// readable; whether it still means the same span is what a view's generation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanRef(pub(crate) NonNull<Span>);

// SAFETY: a `SpanRef` is an address that is always readable; every access through it goes through
// a lock or an atomic.
unsafe impl Send for SpanRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for SpanRef {}

impl SpanRef {
    /// A reference to a descriptor that is never unmapped.
    #[cfg(loom)]
    pub fn new(span: &'static Span) -> Self {
        Self(NonNull::from(span))
    }

    /// The descriptor.
    #[cfg(loom)]
    pub fn get<'a>(self) -> &'a Span {
        // SAFETY: as below.
        unsafe { self.0.as_ref() }
    }

    /// The descriptor.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn get<'a>(self) -> &'a Span {
        // SAFETY: a `SpanRef` is only made of descriptors, which are initialised before they are
        // published and never unmapped; all fields are atomics.
        unsafe { self.0.as_ref() }
    }
}

/// What a small-object span looked like at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanView {
    /// First byte of the span, a multiple of the page size if `pages` is not 0.
    pub start: *mut u8,
    /// Size class.
    pub class: usize,
    /// Bytes a slot.
    pub slot_size: u32,
    /// Slots in the span, at most 256; slot `i` begins at `start + i * slot_size`.
    pub slots: u16,
    /// Whole pages of the operating system in the span, at most 16. Zero if the span shares a page with
    /// other spans (pages larger than 4 KiB only): then nothing of it can be blocked.
    pub pages: u8,
    /// A bit a slot: allocated, or in some thread's cache.
    pub live: [u64; 4],
    /// A bit a slot: may not be handed out.
    pub blocked: [u64; 4],
    /// A bit a page: may hold memory (a clear bit: never touched, or given back; reads as zero).
    pub resident: u16,
    /// Changes whenever the descriptor comes to mean another span.
    pub generation: u32,
}

// SAFETY: the pointer is an address to compute with; using the memory behind it is unsafe anyway.
unsafe impl Send for SpanView {}

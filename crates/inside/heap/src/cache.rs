//! The cache of one thread: for each class a stack of free slots, the *shuffle vector*.
//!
//! ```text
//!  bins[class]     base               top              limit
//!                   ▼                  ▼                ▼
//!                  [ oldest .. newest | room up to cap | up to the class's bound ]
//! ```
//!
//! malloc pops the newest, free pushes. A bin that runs empty is refilled, and may from then on hold
//! twice as much; one that overflows doubles, or, at its bound, gives its older half back; from 64 entries on it
//! grows only if it does both in turn. Bounds are in bytes, so that a
//! thread that touched every class holds a bounded amount. Every few refills and flushes one bin is
//! looked at: if it saw neither since the last look, half of it goes back.
//!
//! A cache also remembers the leaf of the page map that its thread's last free needed: one leaf covers 4 GiB, which is
//! all of most heaps.
//!
//! Only the owner writes; `top` is atomic because the statistics read it from outside.

use core::cell::Cell;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::bits;
use crate::central::Run;
use crate::pagemap::Leaf;
use crate::rng::Rng;
use crate::size::{CLASSES, SIZES};

/// Bytes that a full bin holds, at most.
const BIN_BYTES: usize = 64 * 1024;
/// Most entries of a bin.
const BIN_MAX: usize = 256;
/// Entries that a bin needs for batches of good size.
const STEADY: usize = 256;
/// Entries that a bin starts with room for.
const BIN_START: usize = 8;
/// Refills and flushes between two looks for idle bins.
pub const LOOK: u32 = 8;

/// Most entries that the bin of a class may hold.
const fn bound(class: usize) -> usize {
    let entries = BIN_BYTES / SIZES[class] as usize;
    if entries > BIN_MAX {
        BIN_MAX
    } else if entries < 2 {
        2
    } else {
        entries
    }
}

const TOTAL: usize = {
    let mut total = 0;
    let mut class = 0;
    while class < CLASSES {
        total += bound(class);
        class += 1;
    }
    total
};

/// The free slots of one class.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Bin {
    /// One past the newest entry.
    top: AtomicPtr<*mut u8>,
    /// The oldest entry.
    base: *mut *mut u8,
    /// How far `top` may go.
    limit: Cell<*mut *mut u8>,
}

/// A thread's cache of free slots; made by [`crate::Heap::attach`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cache {
    pub(crate) bins: [Bin; CLASSES],
    /// Marks freed slots, see [`mark`].
    pub(crate) key: u64,
    /// The upper half of the addresses that `leaf` is for, or no address's.
    pub(crate) leaf_prefix: usize,
    pub(crate) leaf: *const Leaf,
    pub(crate) rng: Rng,
    pub(crate) events: u32,
    pub(crate) look: u32,
    /// Whether a thread has it; and the links of the registry.
    pub(crate) used: AtomicBool,
    pub(crate) next: AtomicPtr<Cache>,
    /// Whether the bin was refilled or flushed since the last look.
    pub(crate) busy: [bool; CLASSES],
    last: [Event; CLASSES],
    slots: [*mut u8; TOTAL],
}

/// What happened to a bin last, besides pops and pushes: nothing yet is zero, as in the memory of a new cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Event(u8);

impl Event {
    /// It ran empty.
    pub(crate) const EMPTY: Self = Self(1);
    /// It was full.
    pub(crate) const FULL: Self = Self(2);
}

/// What a freed slot at `address` carries in its second word.
#[inline(always)]
pub fn mark(key: u64, address: usize) -> u64 {
    key ^ address as u64
}

/// Asks for the cache line at `address`, to write it. Slots that another thread freed are in that thread's cache:
/// asked for one by one as malloc touches them, each would cost the way there and back; asked for together, all of
/// them cost it once.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; it changes no register or memory and never faults.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

impl Bin {
    /// Entries in the bin; may be read by anyone.
    #[inline(always)]
    pub fn len(&self) -> usize {
        (self.top.load(Ordering::Relaxed).addr() - self.base.addr()) / size_of::<*mut u8>()
    }

    /// Entries that the bin may hold at the moment; asked by the owner only.
    pub fn cap(&self) -> usize {
        (self.limit.get().addr() - self.base.addr()) / size_of::<*mut u8>()
    }

    /// Changes how many entries the bin may hold.
    ///
    /// # Safety
    /// There is room for as many, and there are no more now.
    pub unsafe fn set_cap(&self, cap: usize) {
        // SAFETY: within the bin's room.
        self.limit.set(unsafe { self.base.add(cap) });
    }

    /// Notes how many entries there are.
    ///
    /// # Safety
    /// The caller is the owner; that many are initialised.
    unsafe fn set_len(&self, len: usize) {
        // SAFETY: within the bin's room.
        self.top.store(unsafe { self.base.add(len) }, Ordering::Relaxed);
    }

    /// The newest entry.
    ///
    /// # Safety
    /// The caller is the owner.
    #[inline(always)]
    pub unsafe fn pop(&self) -> Option<*mut u8> {
        let top = self.top.load(Ordering::Relaxed);
        if top == self.base {
            return None;
        }
        // SAFETY: there is an entry below `top`, and all entries are initialised.
        unsafe {
            let newest = top.sub(1);
            self.top.store(newest, Ordering::Relaxed);
            Some(*newest)
        }
    }

    /// Adds an entry; `false` if the bin is full.
    ///
    /// # Safety
    /// The caller is the owner.
    #[inline(always)]
    pub unsafe fn push(&self, slot: *mut u8) -> bool {
        let top = self.top.load(Ordering::Relaxed);
        if top >= self.limit.get() {
            return false;
        }
        // SAFETY: `limit` is within the bin's room.
        unsafe {
            *top = slot;
            self.top.store(top.add(1), Ordering::Relaxed);
        }
        true
    }

    /// Fills the empty bin with slots in random order: each changes places with a random one.
    ///
    /// # Safety
    /// The caller is the owner; there is room for them.
    #[inline(always)]
    pub unsafe fn fill_shuffled(&self, runs: impl Iterator<Item = Run>, rng: &mut Rng) {
        let mut len = 0;
        for mut run in runs {
            // Four draws of 16 bits from one of 64: bins hold far less than 2^16 entries.
            let (mut bits, mut left) = (0, 0);
            while let Some(address) = run.take_first() {
                if left == 0 {
                    (bits, left) = (rng.next(), 4);
                }
                let other = ((bits & 0xffff) as usize * (len + 1)) >> 16;
                (bits, left) = (bits >> 16, left - 1);
                prefetch(address);
                // SAFETY: `other` is at most `len`, for which there is room; entries below it are initialised,
                // and an entry that is not is only copied onto itself before it is written.
                unsafe {
                    self.base.add(len).write(self.base.add(other).read());
                    self.base.add(other).write(with_exposed_provenance_mut(address));
                }
                len += 1;
            }
        }
        // SAFETY: the entries up to `len` were written above.
        unsafe { self.set_len(len) };
    }

    /// Fills the empty bin with `count` slots in the order of their addresses: the first is popped first. Of the first
    /// 64 those below slot `from` come last.
    ///
    /// # Safety
    /// The caller is the owner; there are `count` slots, and there is room for as many.
    #[inline(always)]
    pub unsafe fn fill_in_order(
        &self,
        mut runs: impl Iterator<Item = Run>,
        count: usize,
        from: u32,
    ) {
        let Some(mut first) = runs.next() else { return };
        let last = Run { mask: first.mask & bits::below(from as usize), ..first };
        first.mask ^= last.mask;
        let mut left = count;
        for mut run in [first].into_iter().chain(runs).chain([last]) {
            while let Some(address) = run.take_first() {
                prefetch(address);
                left -= 1;
                // SAFETY: below the count, for which there is room.
                unsafe { self.base.add(left).write(with_exposed_provenance_mut(address)) };
            }
        }
        debug_assert_eq!(left, 0, "there are as many as were announced");
        // SAFETY: all of them were written.
        unsafe { self.set_len(count) };
    }

    /// Lets `f` write entries into the empty bin; it returns how many.
    ///
    /// # Safety
    /// The caller is the owner; `f` writes no more than there is room for.
    pub unsafe fn fetch(&self, f: impl FnOnce(*mut *mut u8) -> usize) -> usize {
        let count = f(self.base);
        // SAFETY: the caller is the owner, and `f` wrote that many.
        unsafe { self.set_len(count) };
        count
    }

    /// All entries, oldest first.
    ///
    /// # Safety
    /// The caller is the owner, and has no other such slice.
    #[expect(clippy::mut_from_ref, reason = "the bin owns the array behind its pointer")]
    pub unsafe fn entries(&self) -> &mut [*mut u8] {
        // SAFETY: that many entries are initialised, and the owner alone uses them.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.len()) }
    }

    /// Removes the oldest `count` entries.
    ///
    /// # Safety
    /// The caller is the owner; there are at least `count` entries.
    pub unsafe fn drop_oldest(&self, count: usize) {
        let len = self.len();
        // SAFETY: both ranges are within the entries.
        unsafe {
            core::ptr::copy(self.base.add(count), self.base, len - count);
            self.set_len(len - count);
        }
    }
}

impl Cache {
    /// Prepares zeroed memory to be an empty cache.
    ///
    /// # Safety
    /// `cache` points to zeroed memory of this type that nobody else uses.
    pub unsafe fn prepare(cache: *mut Self, key: u64, seed: u64) {
        // SAFETY: the memory is valid for writes, and zero is a valid value of every field not written here.
        unsafe {
            (*cache).key = key;
            (*cache).leaf_prefix = usize::MAX;
            (*cache).rng = Rng::new(seed);
            let mut slots = (&raw mut (*cache).slots).cast::<*mut u8>();
            for class in 0..CLASSES {
                let bin = &raw mut (*cache).bins[class];
                (*bin).top = AtomicPtr::new(slots);
                (*bin).base = slots;
                (*bin).set_cap(BIN_START.min(bound(class)));
                slots = slots.add(bound(class));
            }
        }
    }

    /// Whether the thread allocates objects of a class that others free: it ran empty twice, and the cache at address
    /// `giver`, not zero, which gave slots last, is another's. Such objects are read by a thread that has to ask
    /// another processor for each of them. In the order of their addresses they are foreseen, in random order none is.
    ///
    /// # Safety
    /// The caller owns the cache.
    pub(crate) unsafe fn only_takes(cache: *mut Self, class: usize, giver: usize) -> bool {
        // SAFETY: the caller owns the cache.
        giver != 0 && giver != cache.addr() && unsafe { (*cache).last[class] } == Event::EMPTY
    }

    /// Doubles the room of a bin that ran empty or full; `false` if it stays as it is: it is at its bound, or it has
    /// room enough for a batch and does not swing between empty and full. (A thread that only allocates, or only
    /// frees what others allocate, gains nothing from more room but cache misses.)
    ///
    /// # Safety
    /// The caller owns the cache.
    pub(crate) unsafe fn grow(cache: *mut Self, class: usize, event: Event) -> bool {
        // SAFETY: the caller owns the cache.
        let (bin, last) = unsafe { (&(*cache).bins[class], &mut (*cache).last[class]) };
        let swings = core::mem::replace(last, event) != event;
        if bin.cap() >= STEADY && !swings {
            return false;
        }
        let cap = (bin.cap() * 2).min(bound(class));
        let grows = cap > bin.cap();
        // SAFETY: within the bound, for which there is room, and not below what it was.
        unsafe { bin.set_cap(cap) };
        grows
    }

    /// Halves the room of a bin that holds little.
    ///
    /// # Safety
    /// The caller owns the bin, which is of this class.
    pub(crate) unsafe fn shrink(bin: &Bin, class: usize) {
        let least = BIN_START.min(bound(class));
        // SAFETY: not above what it was or the least, and not below the number of entries.
        unsafe { bin.set_cap((bin.cap() / 2).max(bin.len()).max(least)) };
    }
}

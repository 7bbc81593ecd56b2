//! Hardened mode: every free is checked, freed memory is wiped and held back, ends are guarded.
//!
//! ```text
//!  slot    [ size bytes the program may use | slack: SLACK ... | tail word ]
//!                                                               63 ... 16   15 ... 0
//!                                                               canary      slack length
//!
//!  large   [ slack before | size bytes | slack: SLACK ... ][ guard page, inaccessible ]
//! ```
//!
//! - The tail word's canary mixes the heap's key with the slot's address; a free or a size query that finds it or the slack changed
//!   names an **overflow**.
//! - A freed slot keeps its live bit and becomes blocked, so a second free finds it blocked (or not live at all):
//!   a **double free**, always.
//! - It is wiped and waits in a first-in first-out quarantine, bounded in bytes and in number. A slot that leaves it and is
//!   not as it was wiped names a **use after free**; the others become free.
//! - Slots are taken one at a time from a random place; caches stay empty, so no fast path runs.
//! - A sized free (C23, C++) that names another size than was asked for: **wrong size**.
//! - Large objects end (up to their alignment) at the guard page and are unmapped when they are freed: a later use faults.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::central;
use crate::heap::Heap;
use crate::os::{Misuse, Os};
use crate::rng::Rng;
use crate::size::{self, SIZES};
use crate::span::{Span, SpanRef};
use crate::sync::{Lock, Locked};

/// Bytes of the tail word.
const TAIL: usize = 8;
/// What slack is filled with.
const SLACK: u8 = 0xc5;
/// What freed memory is filled with: an odd, non-canonical pointer.
const WIPED: u8 = 0xdf;
/// Most slots that are held back.
const HELD: usize = 16 * 1024;
/// Most bytes that are held back.
const HELD_BYTES: usize = 8 << 20;

#[derive(Debug)]
struct Ring {
    /// `HELD` addresses, or null before the first free.
    slots: *mut usize,
    first: usize,
    count: usize,
    bytes: usize,
}

// SAFETY: the pointer is to metadata memory that only the holder of the lock reaches.
unsafe impl Send for Ring {}

/// What hardened mode keeps.
#[derive(Debug)]
pub struct Hardened {
    ring: Locked<Ring>,
    draws: AtomicU64,
}

impl Hardened {
    /// Nothing: all zero.
    pub const fn new() -> Self {
        let ring = Ring { slots: core::ptr::null_mut(), first: 0, count: 0, bytes: 0 };
        Self { ring: Locked::new(ring), draws: AtomicU64::new(0) }
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &Lock {
        self.ring.raw()
    }
}

/// Fills bytes with a pattern.
///
/// # Safety
/// `start..start + len` belongs to the caller.
unsafe fn fill(start: usize, len: usize, byte: u8) {
    let start = core::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: as for this function.
    unsafe { start.write_bytes(byte, len) };
}

/// Whether bytes still have a pattern.
///
/// # Safety
/// `start..start + len` is readable and initialised.
unsafe fn is_filled(start: usize, len: usize, byte: u8) -> bool {
    let start = core::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: as for this function.
    unsafe { core::slice::from_raw_parts(start, len) }.iter().all(|&found| found == byte)
}

impl<O: Os> Heap<O> {
    fn canary(&self, address: usize) -> u64 {
        (self.key() ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xffff
    }

    /// An object of exactly `size` bytes at a multiple of `align`; null if there is no memory.
    pub(crate) fn hardened_allocate(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        let class = size.checked_add(TAIL).and_then(|padded| size::class_of_aligned(align, padded));
        let Some(class) = class else {
            let allocate = || self.large.allocate_guarded(self.cx(), size, align);
            let object = self.or_reclaim(allocate(), allocate);
            if !object.is_null() {
                let end = object.addr() + size;
                let slack = end.next_multiple_of(self.page()) - end;
                // SAFETY: the mapping goes on to the end of that page.
                unsafe { fill(end, slack, SLACK) };
            }
            return object;
        };
        let draw = self.hardened.draws.fetch_add(1, Ordering::Relaxed) ^ self.key();
        let Some(slot) = self.take_one(class, Rng::new(draw).next() as u32 % 256) else {
            return core::ptr::null_mut();
        };
        let (start, len) = (slot.addr(), SIZES[class] as usize);
        self.seal(start, len, size);
        if zero {
            // SAFETY: the slot is this thread's.
            unsafe { fill(start, size, 0) };
        }
        slot
    }

    /// Writes slack and tail of a slot whose object is `size` bytes.
    fn seal(&self, start: usize, len: usize, size: usize) {
        let slack = len - TAIL - size;
        let tail = core::ptr::with_exposed_provenance_mut::<u64>(start + len - TAIL);
        // SAFETY: both are within the slot, which the caller owns; a slot ends at a multiple of 16.
        unsafe {
            fill(start + size, slack, SLACK);
            tail.write(self.canary(start) | slack as u64);
        }
    }

    /// The size of the object in a slot, whose end is checked.
    pub(crate) fn hardened_usable(&self, span: &Span, start: usize) -> usize {
        let len = span.slot_size() as usize;
        let tail = core::ptr::with_exposed_provenance::<u64>(start + len - TAIL);
        // SAFETY: the slot is live, so its tail was written by `seal`.
        let tail = unsafe { tail.read() };
        let slack = (tail & 0xffff) as usize;
        let whole = tail & !0xffff == self.canary(start) && slack <= len - TAIL;
        // SAFETY: within the slot.
        if !whole || !unsafe { is_filled(start + len - TAIL - slack, slack, SLACK) } {
            let object = core::ptr::with_exposed_provenance_mut(start);
            self.os.misuse(Misuse::Overflow, object)
        }
        len - TAIL - slack
    }

    /// Checks the size that a sized free names. (An object of no bytes may have room for some.)
    pub fn check_size(&self, object: *const u8, size: usize) {
        let checked = self.is_hardened() && !object.is_null() && size != 0;
        if checked && self.usable_size(object) != size {
            self.os.misuse(Misuse::WrongSize, object.cast_mut())
        }
    }

    /// Checks what follows a large object.
    pub(crate) fn hardened_check_large(&self, span: &Span) {
        let end = span.object() + span.usable();
        let slack = end.next_multiple_of(self.page()) - end;
        // SAFETY: the mapping goes on to the end of that page, and the slack was filled.
        if !unsafe { is_filled(end, slack, SLACK) } {
            let object = core::ptr::with_exposed_provenance_mut(span.object());
            self.os.misuse(Misuse::Overflow, object)
        }
    }

    /// Frees a slot: checks, wipes and holds it back.
    pub(crate) fn hardened_free(&self, span: SpanRef, slot: usize) {
        let this = span.get();
        let class = this.class();
        let len = SIZES[class] as usize;
        let start = this.start() + slot * len;
        if !self.centrals[class].hold(&self.os, span, slot) {
            let object = core::ptr::with_exposed_provenance_mut(start);
            self.os.misuse(Misuse::DoubleFree, object)
        }
        self.hardened_usable(this, start);
        // SAFETY: the program gave the slot up, and as it is blocked nobody else gets it.
        unsafe { fill(start, len, WIPED) };
        let held = {
            let mut ring = self.hardened.ring.lock(&self.os);
            if ring.slots.is_null() {
                ring.slots = self.meta.allocate(&self.os, HELD * size_of::<usize>()).cast();
            }
            if ring.slots.is_null() || ring.count == HELD {
                false
            } else {
                let at = (ring.first + ring.count) % HELD;
                // SAFETY: below `HELD`, and the ring is not full.
                unsafe { ring.slots.add(at).write(start) };
                ring.count += 1;
                ring.bytes += len;
                true
            }
        };
        if held {
            self.hardened_drain(HELD - 1024, HELD_BYTES);
        } else {
            self.hardened_release(start);
        }
    }

    /// Frees held-back slots, the oldest first, until at most `count` of them and `bytes` are left.
    pub(crate) fn hardened_drain(&self, count: usize, bytes: usize) {
        loop {
            let mut ring = self.hardened.ring.lock(&self.os);
            if ring.count == 0 || (ring.count <= count && ring.bytes <= bytes) {
                return;
            }
            // SAFETY: the ring has an entry there.
            let start = unsafe { ring.slots.add(ring.first).read() };
            let span = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef);
            let len = span.map_or(0, |span| span.get().slot_size() as usize);
            ring.first = (ring.first + 1) % HELD;
            ring.count -= 1;
            ring.bytes -= len;
            drop(ring);
            self.hardened_release(start);
        }
    }

    fn hardened_release(&self, start: usize) {
        let object = core::ptr::with_exposed_provenance_mut(start);
        let Some(span) = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef) else { return };
        let this = span.get();
        // SAFETY: a slot that is held back belongs to the heap and was wiped.
        if !unsafe { is_filled(start, this.slot_size() as usize, WIPED) } {
            self.os.misuse(Misuse::UseAfterFree, object)
        }
        if let Some(slot) = central::slot_start(this, start) {
            self.settle(self.centrals[this.class()].release(&self.os, span, slot));
        }
    }
}

//! Hardened mode: every free is checked, freed memory is wiped and held back, ends are guarded.
//!
//! ```text
//!  slot    [ size bytes the program may use | slack: SLACK ... | tail word ]
//!                                                               63 ... 48      47 ... 0
//!                                                               slack length   canary
//!
//!  large   [ guard, 1 MiB | slack before | size bytes | slack: SLACK ... | guard, 1 MiB ]
//! ```
//!
//! - The tail word's canary mixes the heap's key with the slot's address; a free or a size query that finds it or the
//!   slack changed names an **overflow**. Its lowest byte, the first behind the object, is never zero.
//! - Every slot is whole: it ends with its tail, or all of it is WIPED (a free one, or a new one that is not sealed
//!   yet). Contents change from one to the other under the lock of the held-back frees only, so that whoever has it may
//!   check any slot of a span that cannot go away. Each call checks what was allocated and freed last, and 64 bytes on
//!   either side of it: an **out of bounds** write, or a use after free, is mostly named at the next call.
//! - Objects are zero when they are handed out.
//! - A freed slot keeps its live bit and becomes blocked, so a second free finds it blocked (or not live at all):
//!   a **double free**, always.
//! - It is wiped and waits in a first-in first-out quarantine, bounded in bytes and in number. A slot that leaves it,
//!   or is in it at the program's end, and is not as it was wiped names a **use after free**; the others become free.
//! - Slots are taken one at a time from a random place; caches stay empty, so no fast path runs.
//! - A sized free (C23, C++) that names another size than was asked for: **wrong size**.
//! - Large objects end (up to their alignment) at a guard, and begin behind one. Freed, they are inaccessible, and
//!   their addresses are held back: a later use faults. Spans lie in islands of 1 MiB with guards of more than that
//!   around (`pages.rs`).
//! - An object of no bytes lies in the guard: any use of it faults.

use crate::heap::Heap;
use crate::os::{Misuse, Os};
use crate::quarantine::{HELD, HELD_BYTES, Ring};
use crate::rng::Rng;
use crate::size::{self, SIZES};
use crate::span::{Span, SpanRef};

/// Bytes of the tail word.
const TAIL: usize = 8;
/// What slack is filled with.
const SLACK: u8 = 0xc5;
/// What freed memory is filled with: an odd, non-canonical pointer.
const WIPED: u8 = 0xdf;
/// Bytes on either side of them that are checked too.
const BESIDE: usize = 64;
/// Bytes at either end of a freed slot that are checked there; all are once it leaves the quarantine.
const SAMPLE: usize = 4096;
/// Large objects from which on objects of no bytes, which take a mapping each, are ordinary ones.
const EMPTY: usize = 4096;
/// Bits of the canary in the tail word.
const CANARY: u64 = (1 << 48) - 1;

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
    let bytes = unsafe { core::slice::from_raw_parts(start, len) };
    // Word by word, without a branch: every call looks at kilobytes.
    let (words, rest) = bytes.as_chunks::<8>();
    let wanted = u64::from_ne_bytes([byte; 8]);
    let wrong = words.iter().fold(0, |all, &word| all | (u64::from_ne_bytes(word) ^ wanted));
    wrong == 0 && rest.iter().all(|&found| found == byte)
}

impl<O: Os> Heap<O> {
    fn canary(&self, address: usize) -> u64 {
        (self.key() ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 | 1
    }

    /// An object of exactly `size` bytes at a multiple of `align`; null if there is no memory.
    pub(crate) fn hardened_allocate(&self, size: usize, align: usize) -> *mut u8 {
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
        if size == 0 && self.large.count() < EMPTY {
            let object = self.large.allocate_guarded(self.cx(), 0, align);
            if !object.is_null() {
                return object;
            }
        }
        let Some(slot) = self.take_random(class) else { return core::ptr::null_mut() };
        let (start, len) = (slot.addr(), SIZES[class] as usize);
        let mut ring = self.quarantine.lock(&self.os);
        self.check_recent(&ring);
        // SAFETY: the slot is this thread's.
        unsafe { fill(start, size, 0) };
        self.seal(start, len, size);
        ring.remember(start);
        slot
    }

    /// A slot from a random place; not the first of its span if another can be had, for what lies before that is not
    /// looked at.
    fn take_random(&self, class: usize) -> Option<*mut u8> {
        let take = || {
            let draw = self.quarantine.draw() ^ self.key();
            self.take_one(class, Rng::new(draw).next() as u32 % 256)
        };
        let first = take()?;
        let span = core::ptr::NonNull::new(self.map.get(first.addr())).map(SpanRef)?;
        if span.get().start() != first.addr() || span.get().slots() == 1 {
            return Some(first);
        }
        let Some(second) = take() else { return Some(first) };
        self.take_back(self.centrals[class].give_one(&self.os, span, 0));
        Some(second)
    }

    /// Wipes a new span, which nobody knows yet.
    pub(crate) fn hardened_prepare(&self, span: &Span) {
        // SAFETY: a run that was allocated for the span.
        unsafe { fill(span.start(), span.len(), WIPED) };
    }

    /// The slack of a slot, if its tail and slack are as they were written.
    fn slack(&self, start: usize, len: usize) -> Option<usize> {
        let tail = core::ptr::with_exposed_provenance::<u64>(start + len - TAIL);
        // SAFETY: within a slot, all of which was written when its span was made.
        let tail = unsafe { tail.read() };
        let slack = (tail >> 48) as usize;
        let whole = tail & CANARY == self.canary(start) && slack <= len - TAIL;
        // SAFETY: as above.
        (whole && unsafe { is_filled(start + len - TAIL - slack, slack, SLACK) }).then_some(slack)
    }

    /// Checks the objects that were allocated and freed last, and what is beside them; the caller has the lock.
    fn check_recent(&self, ring: &Ring) {
        ring.recent().for_each(|start| self.check_around(start));
    }

    /// Checks a slot that is live or held back, and what is beside it.
    fn check_around(&self, start: usize) {
        let Some(span) = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef) else { return };
        let (this, len) = (span.get(), span.get().slot_size() as usize);
        let slot = size::slot_at(this.class(), start - this.start());
        let wrong = |slot: usize, otherwise: Misuse| {
            let held = this.blocked(slot / 64) >> (slot % 64) & 1 != 0;
            let at = if held { this.start() + slot * len } else { start };
            let what = if held { Misuse::UseAfterFree } else { otherwise };
            self.os.misuse(what, core::ptr::with_exposed_provenance_mut(at))
        };
        // Whether the slot ends with its tail, or is wiped, as far as it is looked at: `from..from + count`.
        let whole = |at: usize, from: usize, count: usize| {
            // SAFETY: within the span, which cannot go away while one of its slots is live or held back.
            self.slack(at, len).is_some() || unsafe { is_filled(at + from, count, WIPED) }
        };
        let sample = SAMPLE.min(len);
        let ends = whole(start, 0, sample) && (sample == len || whole(start, len - sample, sample));
        if !ends {
            wrong(slot, Misuse::Overflow)
        }
        let (reach, near) = (BESIDE.div_ceil(len), BESIDE.min(len));
        for other in slot.saturating_sub(reach)..=(slot + reach).min(usize::from(this.slots()) - 1)
        {
            let from = if other < slot { len - near } else { 0 };
            if other != slot && !whole(this.start() + other * len, from, near) {
                wrong(other, Misuse::OutOfBounds)
            }
        }
    }

    /// At the end of the program: checks what is held back and what was used last.
    pub fn check_held(&self) {
        if !self.is_hardened() {
            return;
        }
        let ring = self.quarantine.lock(&self.os);
        self.check_recent(&ring);
        ring.slots().for_each(|start| self.check_wiped(start));
    }

    fn check_wiped(&self, start: usize) {
        let Some(span) = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef) else { return };
        // SAFETY: a slot that is held back belongs to the heap and was wiped.
        if !unsafe { is_filled(start, span.get().slot_size() as usize, WIPED) } {
            let object = core::ptr::with_exposed_provenance_mut(start);
            self.os.misuse(Misuse::UseAfterFree, object)
        }
    }

    /// Writes slack and tail of a slot whose object is `size` bytes.
    fn seal(&self, start: usize, len: usize, size: usize) {
        let slack = len - TAIL - size;
        let tail = core::ptr::with_exposed_provenance_mut::<u64>(start + len - TAIL);
        // SAFETY: both are within the slot, which the caller owns; a slot ends at a multiple of 16.
        unsafe {
            fill(start + size, slack, SLACK);
            tail.write(self.canary(start) | (slack as u64) << 48);
        }
    }

    /// The size of the object in a slot, whose end is checked.
    pub(crate) fn hardened_usable(&self, span: &Span, start: usize) -> usize {
        let len = span.slot_size() as usize;
        match self.slack(start, len) {
            Some(slack) => len - TAIL - slack,
            None => {
                let object = core::ptr::with_exposed_provenance_mut(start);
                self.os.misuse(Misuse::Overflow, object)
            }
        }
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
        let held = {
            let mut ring = self.quarantine.lock(&self.os);
            self.hardened_usable(this, start);
            self.check_around(start);
            self.check_recent(&ring);
            // SAFETY: the program gave the slot up, and as it is blocked nobody else gets it.
            unsafe { fill(start, len, WIPED) };
            ring.forget(start);
            let held = self.quarantine.hold(&mut ring, start, len, &self.meta, &self.os);
            if held {
                ring.remember(start);
            }
            held
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
            let mut ring = self.quarantine.lock(&self.os);
            if !ring.exceeds(count, bytes) {
                return;
            }
            let len = |start| {
                let span = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef);
                span.map_or(0, |span| span.get().slot_size() as usize)
            };
            let start = self.quarantine.release(&mut ring, len);
            drop(ring);
            if let Some(start) = start {
                self.hardened_release(start);
            }
        }
    }

    fn hardened_release(&self, start: usize) {
        self.check_wiped(start);
        let Some(span) = core::ptr::NonNull::new(self.map.get(start)).map(SpanRef) else { return };
        let this = span.get();
        if let Some(slot) = this.slot_start(start) {
            self.take_back(self.centrals[this.class()].release(&self.os, span, slot));
        }
    }
}

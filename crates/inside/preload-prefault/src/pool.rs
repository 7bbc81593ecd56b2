//! Delivering pages: made in place, or zeroed beforehand in a pool and moved into place.
//!
//! *In place* the helper has the kernel populate the range as if the program had touched it (`MADV_POPULATE_WRITE`),
//! for a huge page in a range that was advised (`MADV_HUGEPAGE`). Nothing is unmapped, so no other CPU is interrupted;
//! a move is 50 times faster but interrupts every CPU that runs the program, which costs it 10 us each time in a
//! virtual machine. The mapping is looked up right before: private, anonymous, writable. If the program replaces it
//! within those microseconds by a shared mapping of a file with holes, holes may be allocated; no byte differs.
//!
//! The *pool*:
//!
//! ```text
//!  slot 0   slot 1   …   slot 7   plain        2 MiB each; a slot is empty or one zeroed huge page
//! ```
//!
//! `plain` holds base pages on their way. The pool is not inherited by children and not part of core dumps.

use pagemill_prefault::board::{Process, ProcessWord};
use pagemill_prefault::frontier::{Grain, HEAD_BYTES, Outcome, Pages, Window};
use pagemill_prefault::{HUGE, PAGE};
use pagemill_preload_sys::sys;

use crate::kernel::{self, EAGAIN, EEXIST, Linux};

const SLOTS: u64 = 8;
const LEN: u64 = (SLOTS + 1) * HUGE;

/// What came of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was tried, with this outcome.
    Tried(Outcome),
    /// The region is not what it was: unmapped, protected, registered by somebody else.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Pool {
    start: u64,
    /// Bit i: slot i holds a huge page.
    ready: u32,
}

impl Pool {
    /// Reserves the address space; `None` if there is none.
    pub(crate) fn new() -> Option<Self> {
        let wide = (LEN + HUGE) as usize;
        let mapped = sys::map_anonymous(wide, sys::PROT_READ | sys::PROT_WRITE, 0);
        if mapped.is_null() {
            return None;
        }
        let start = (mapped.addr() as u64).next_multiple_of(HUGE);
        let before = (start - mapped.addr() as u64) as usize;
        // SAFETY: a new mapping that nobody else knows; what lies outside the slots goes back, and advice about the
        // rest discards nothing.
        unsafe {
            if before > 0 {
                sys::unmap(mapped, before);
            }
            let after = wide - before - LEN as usize;
            if after > 0 {
                sys::unmap((start + LEN) as *mut u8, after);
            }
            sys::advise(start as *mut u8, LEN as usize, sys::MADV_DONTFORK);
            sys::advise(start as *mut u8, LEN as usize, sys::MADV_DONTDUMP);
            sys::advise(start as *mut u8, (SLOTS * HUGE) as usize, sys::MADV_HUGEPAGE);
            sys::advise((start + SLOTS * HUGE) as *mut u8, HUGE as usize, sys::MADV_NOHUGEPAGE);
        }
        Some(Self { start, ready: 0 })
    }

    /// Whether an address range is (partly) the pool's own.
    pub(crate) fn owns(&self, start: u64, end: u64) -> bool {
        start < self.start + LEN && self.start < end
    }

    /// Huge pages in store.
    pub(crate) fn store(&self) -> u64 {
        u64::from(self.ready.count_ones())
    }

    fn slot(&self, number: u32) -> u64 {
        self.start + u64::from(number) * HUGE
    }

    /// Makes one more huge page; false if the pool is full or the kernel has none.
    pub(crate) fn make(&mut self, linux: &Linux, counters: Process<'_>) -> bool {
        let number = (!self.ready).trailing_zeros();
        if u64::from(number) >= SLOTS {
            return false;
        }
        let slot = self.slot(number);
        let began = sys::clock(sys::CLOCK_MONOTONIC);
        let made = kernel::populate(slot, HUGE) && linux.is_huge(slot);
        let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
        counters.smooth(ProcessWord::HugeNs, took);
        counters.set(ProcessWord::HugeMostNs, counters.get(ProcessWord::HugeMostNs).max(took));
        if made {
            self.ready |= 1 << number;
        } else {
            counters.add(ProcessWord::Refused, 1);
            empty(slot, HUGE);
        }
        made
    }

    /// Gives the store back.
    pub(crate) fn drain(&mut self) {
        if self.ready != 0 {
            self.ready = 0;
            empty(self.start, LEN);
        }
    }

    /// Delivers a window by making it where it is wanted. `advised`: the program's own faults there bring huge pages.
    pub(crate) fn make_in_place(
        window: Window,
        advised: bool,
        linux: &mut Linux,
        counters: Process<'_>,
    ) -> Delivery {
        let first = window.start + if window.marker { PAGE } else { 0 };
        let len = window.end - first;
        let there = linux.mapping_from(first);
        if !there.is_some_and(|map| map.start <= first && window.end <= map.end) {
            return Delivery::Gone;
        }
        if window.grain != Grain::Huge {
            let began = sys::clock(sys::CLOCK_MONOTONIC);
            let made = match window.grain {
                Grain::Medium => make_medium(window, advised, counters),
                _ => kernel::populate(first, len),
            };
            if !made {
                return Delivery::Gone;
            }
            let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
            if window.grain == Grain::Base {
                counters.smooth(ProcessWord::BaseNs, took * 512 / (len / PAGE).max(1));
            }
            counters.add(ProcessWord::BasePages, len / PAGE);
            return Delivery::Tried(Outcome::Provided);
        }
        if linux.first_run(first, window.end).is_some() {
            counters.add(ProcessWord::Late, 1);
            return Delivery::Tried(Outcome::Late);
        }
        let began = sys::clock(sys::CLOCK_MONOTONIC);
        if !kernel::populate(first, len) {
            return Delivery::Gone;
        }
        let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
        if linux.is_huge(first) {
            counters.smooth(ProcessWord::HugeNs, took);
            counters.set(ProcessWord::HugeMostNs, counters.get(ProcessWord::HugeMostNs).max(took));
            counters.add(ProcessWord::HugePages, 1);
        } else {
            // There was no block, or the program came in between: base pages are there now.
            counters.add(ProcessWord::Refused, 1);
            counters.add(ProcessWord::BasePages, len / PAGE);
        }
        Delivery::Tried(Outcome::Provided)
    }

    /// Makes the head of a chunk, so that no huge page fits there; the chunk is advised by the caller, after this.
    pub(crate) fn sow(window: Window, linux: &Linux, counters: Process<'_>) -> Delivery {
        let there = linux.mapping_from(window.start);
        if !there.is_some_and(|map| map.start <= window.start && window.end <= map.end) {
            return Delivery::Gone;
        }
        let began = sys::clock(sys::CLOCK_MONOTONIC);
        if !kernel::populate(window.start, HEAD_BYTES) {
            return Delivery::Gone;
        }
        let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
        counters.smooth(ProcessWord::BaseNs, took * (HUGE / HEAD_BYTES));
        counters.add(ProcessWord::Heads, 1);
        Delivery::Tried(Outcome::Provided)
    }

    /// Delivers a window from the pool.
    pub(crate) fn deliver(
        &mut self,
        window: Window,
        linux: &Linux,
        counters: Process<'_>,
    ) -> Delivery {
        let first = window.start + if window.marker { PAGE } else { 0 };
        let len = window.end - first;
        if window.grain == Grain::Huge {
            if self.ready == 0 && !self.make(linux, counters) {
                return Delivery::Tried(Outcome::Refused);
            }
            let number = self.ready.trailing_zeros();
            let source = self.slot(number);
            let delivery = deliver(linux, first, source, len);
            if delivery == Delivery::Tried(Outcome::Provided) {
                self.ready &= !(1 << number);
                counters.add(ProcessWord::HugePages, 1);
            } else if !linux.is_huge(source) {
                // Moved in part: the rest is of no use.
                self.ready &= !(1 << number);
                empty(source, HUGE);
            }
            count_late(delivery, counters);
            return delivery;
        }
        let source = self.start + SLOTS * HUGE + first % HUGE;
        let began = sys::clock(sys::CLOCK_MONOTONIC);
        if !kernel::populate(source, len) {
            empty(source, len);
            return Delivery::Tried(Outcome::Late);
        }
        let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
        counters.smooth(ProcessWord::BaseNs, took * 512 / (len / PAGE).max(1));
        let delivery = deliver(linux, first, source, len);
        if delivery == Delivery::Tried(Outcome::Provided) {
            counters.add(ProcessWord::BasePages, len / PAGE);
        } else {
            empty(source, len);
        }
        count_late(delivery, counters);
        delivery
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool's own mapping; its pages were moved away or are nobody's.
        unsafe { sys::unmap(self.start as *mut u8, LEN as usize) };
    }
}

fn count_late(delivery: Delivery, counters: Process<'_>) {
    if delivery == Delivery::Tried(Outcome::Late) {
        counters.add(ProcessWord::Late, 1);
    }
}

/// Makes a chunk of pages of 64 KiB, or smaller where the system does not give them. The first 64 KiB are base pages
/// that are there before the chunk is advised, so that no huge page fits any more; then the advice, which the system
/// asks for.
fn make_medium(window: Window, advised: bool, counters: Process<'_>) -> bool {
    let head = window.start + HEAD_BYTES;
    let first = window.start + if window.marker { PAGE } else { 0 };
    if advised {
        kernel::want_base(window.start, HEAD_BYTES);
    }
    if !kernel::populate(first, head - first) {
        return false;
    }
    kernel::want_huge(window.start, window.end - window.start);
    counters.add(ProcessWord::MediumChunks, 1);
    let began = sys::clock(sys::CLOCK_MONOTONIC);
    let made = kernel::populate(head, window.end - head);
    let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
    counters.smooth(ProcessWord::MediumNs, took * HEAD_BYTES / (window.end - head));
    made
}

/// Gives pages of the pool back.
fn empty(start: u64, len: u64) {
    // SAFETY: the pool's own pages, which hold nothing.
    unsafe { sys::advise(start as *mut u8, len as usize, sys::MADV_DONTNEED) };
}

/// Moves `len` bytes of pages from the pool to `to`, around those that the program has touched already.
fn deliver(linux: &Linux, to: u64, from: u64, len: u64) -> Delivery {
    const TRIES: u32 = 16;
    if linux.register(to, len).is_err() {
        return Delivery::Gone;
    }
    let (mut done, mut late, mut tries) = (0, false, 0);
    let mut gone = false;
    while done < len {
        let (moved, error) = linux.place(to + done, from + done, len - done);
        done += moved;
        match error {
            None => {}
            Some(EEXIST) => {
                late = true;
                if len == HUGE && done == 0 {
                    // One huge page goes whole or not at all.
                    break;
                }
                done += PAGE;
            }
            // The address space is being changed, or a page is looked at by somebody.
            Some(EAGAIN) if tries < TRIES => tries += u32::from(moved == 0),
            Some(_) => {
                gone = true;
                break;
            }
        }
    }
    linux.unregister(to, len);
    match (gone, late) {
        (true, _) => Delivery::Gone,
        (false, true) => Delivery::Tried(Outcome::Late),
        (false, false) => Delivery::Tried(Outcome::Provided),
    }
}

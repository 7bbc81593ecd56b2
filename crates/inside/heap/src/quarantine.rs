//! Held-back frees of hardened mode: a first-in first-out ring of slots, bounded in bytes and in number, and beside it
//! the slots that were allocated or freed last.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::lock::{Guard, Lock, Locked};
use crate::meta::Meta;
use crate::os::Os;

/// Most slots that are held back.
pub(crate) const HELD: usize = 16 * 1024;
/// Most bytes that are held back.
pub(crate) const HELD_BYTES: usize = 8 << 20;
/// Objects that each call checks: those that were allocated or freed last.
const RECENT: usize = 8;

#[derive(Debug)]
pub(crate) struct Ring {
    /// `HELD` addresses, or null before the first free.
    slots: *mut usize,
    first: usize,
    count: usize,
    bytes: usize,
    /// Slots, live or held back, or 0.
    recent: [usize; RECENT],
    oldest: usize,
}

// SAFETY: the pointer is to metadata memory that only the holder of the lock reaches.
unsafe impl Send for Ring {}

impl Ring {
    /// A slot was allocated or freed.
    pub(crate) fn remember(&mut self, start: usize) {
        self.forget(start);
        self.recent[self.oldest] = start;
        self.oldest = (self.oldest + 1) % RECENT;
    }

    /// A slot is not to be looked at any more.
    pub(crate) fn forget(&mut self, start: usize) {
        for recent in &mut self.recent {
            if *recent == start {
                *recent = 0;
            }
        }
    }

    /// The slots that were allocated or freed last.
    pub(crate) fn recent(&self) -> impl Iterator<Item = usize> {
        self.recent.into_iter().filter(|&start| start != 0)
    }

    /// The slots that are held back, the oldest first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        // SAFETY: the ring has that many entries.
        (0..self.count).map(|index| unsafe { self.slots.add((self.first + index) % HELD).read() })
    }

    /// Whether there are more than `count` slots or `bytes`.
    pub(crate) fn exceeds(&self, count: usize, bytes: usize) -> bool {
        self.count > 0 && (self.count > count || self.bytes > bytes)
    }
}

/// What hardened mode keeps.
#[derive(Debug)]
pub(crate) struct Quarantine {
    ring: Locked<Ring>,
    draws: AtomicU64,
    held: AtomicUsize,
}

impl Quarantine {
    /// Nothing: all zero.
    pub(crate) const fn new() -> Self {
        let ring = Ring {
            slots: null_mut(),
            first: 0,
            count: 0,
            bytes: 0,
            recent: [0; RECENT],
            oldest: 0,
        };
        Self { ring: Locked::new(ring), draws: AtomicU64::new(0), held: AtomicUsize::new(0) }
    }

    /// Bytes of slots that are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The number of a random draw, another each time.
    pub(crate) fn draw(&self) -> u64 {
        self.draws.fetch_add(1, Ordering::Relaxed)
    }

    /// The lock itself, for the fork handlers.
    pub(crate) fn raw(&self) -> &Lock {
        self.ring.raw()
    }

    /// Takes the lock until the guard is dropped.
    pub(crate) fn lock<'a, O: Os>(&'a self, os: &'a O) -> Guard<'a, Ring, O> {
        self.ring.lock(os)
    }

    /// Holds a slot of `len` bytes back; `false` if there is no room.
    pub(crate) fn hold<O: Os>(
        &self,
        ring: &mut Ring,
        start: usize,
        len: usize,
        meta: &Meta,
        os: &O,
    ) -> bool {
        if ring.slots.is_null() {
            ring.slots = meta.allocate(os, HELD * size_of::<usize>()).cast();
        }
        if ring.slots.is_null() || ring.count == HELD {
            return false;
        }
        let at = (ring.first + ring.count) % HELD;
        // SAFETY: below `HELD`, and the ring is not full.
        unsafe { ring.slots.add(at).write(start) };
        ring.count += 1;
        ring.bytes += len;
        self.held.store(ring.bytes, Ordering::Relaxed);
        true
    }

    /// Takes the oldest slot out, of the length that `len` says.
    pub(crate) fn release(&self, ring: &mut Ring, len: impl Fn(usize) -> usize) -> Option<usize> {
        let start = ring.slots().next()?;
        ring.first = (ring.first + 1) % HELD;
        ring.count -= 1;
        ring.bytes -= len(start);
        ring.forget(start);
        self.held.store(ring.bytes, Ordering::Relaxed);
        Some(start)
    }
}

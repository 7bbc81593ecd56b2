//! Between the caches and a class: freed slots that go from one thread's cache to another's as they are.
//!
//! ```text
//!  cache ──flush──►  Transfer: a stack of slots  ──refill──►  cache
//!    └── when it is full ──►  Central: bits ◄── what nobody fetched
//! ```
//!
//! A thread that allocates more than its cache holds and frees it again, or frees what another allocates, moves
//! slots in batches. Without this, each batch would be taken apart into bits and put together again, on cache lines
//! that both threads write. What is here is bounded in bytes, counts as live, and goes back to its
//! spans once nothing was fetched or added for a while.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::lock::{Lock, Locked};
use crate::meta::Meta;
use crate::os::Os;
use crate::size::SIZES;

/// Bytes of slots that wait, for each class, and their number.
const BYTES: usize = 64 * 1024;
const SLOTS: usize = 512;

/// Most slots of a class that wait.
fn bound(class: usize) -> usize {
    (BYTES / SIZES[class] as usize).min(SLOTS)
}

#[derive(Debug)]
struct Stack {
    /// Room for `bound` slots, or null before the first.
    slots: *mut *mut u8,
    len: usize,
}

// SAFETY: the pointer is to metadata memory that only the holder of the lock reaches.
unsafe impl Send for Stack {}

/// The waiting slots of a class, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Transfer {
    stack: Locked<Stack>,
    /// As in the stack, for those who look without the lock.
    len: AtomicUsize,
    /// Whether anything was added or fetched since the last look.
    busy: AtomicBool,
    /// The cache that added slots last, or zero if none did for a while.
    giver: AtomicUsize,
}

impl Transfer {
    /// Nothing waits: all zero.
    pub const fn new() -> Self {
        Self {
            stack: Locked::new(Stack { slots: null_mut(), len: 0 }),
            len: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            giver: AtomicUsize::new(0),
        }
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &Lock {
        self.stack.raw()
    }

    /// Number of slots that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether nothing was added or fetched since this was asked last: then nobody is the giver any more.
    pub fn is_idle(&self) -> bool {
        let idle = !self.busy.swap(false, Ordering::Relaxed);
        if idle {
            self.giver.store(0, Ordering::Relaxed);
        }
        idle
    }

    /// The address of the cache that added slots last, or zero if none did for a while.
    #[inline]
    pub fn giver(&self) -> usize {
        self.giver.load(Ordering::Relaxed)
    }

    /// Adds slots of the cache at address `giver`; `false`, and none added, if there is no room.
    pub fn add<O: Os>(
        &self,
        os: &O,
        meta: &Meta,
        class: usize,
        giver: usize,
        slots: &[*mut u8],
    ) -> bool {
        let bound = bound(class);
        if self.len() + slots.len() > bound {
            return false;
        }
        let mut stack = self.stack.lock(os);
        if stack.len + slots.len() > bound {
            return false;
        }
        if stack.slots.is_null() {
            stack.slots = meta.allocate(os, bound * size_of::<*mut u8>()).cast();
            if stack.slots.is_null() {
                return false;
            }
        }
        // SAFETY: there is room for them, and the source is another table.
        unsafe {
            stack.slots.add(stack.len).copy_from_nonoverlapping(slots.as_ptr(), slots.len());
        }
        stack.len += slots.len();
        self.len.store(stack.len, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        self.giver.store(giver, Ordering::Relaxed);
        true
    }

    /// Fetches up to `wanted` slots to `to`; returns how many.
    ///
    /// # Safety
    /// `to` has room for `wanted` slots.
    pub unsafe fn fetch<O: Os>(&self, os: &O, to: *mut *mut u8, wanted: usize) -> usize {
        if self.len() == 0 {
            return 0;
        }
        let mut stack = self.stack.lock(os);
        let count = wanted.min(stack.len);
        stack.len -= count;
        if count > 0 {
            // SAFETY: that many slots lie there; the caller has room for them.
            unsafe { to.copy_from_nonoverlapping(stack.slots.add(stack.len), count) };
            self.len.store(stack.len, Ordering::Relaxed);
            self.busy.store(true, Ordering::Relaxed);
        }
        count
    }
}

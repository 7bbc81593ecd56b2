//! Memory for the heap's own tables: out of band, zeroed, never unmapped.
//!
//! Small tables are cut from blocks by a bump pointer. Span descriptors come from slabs that double
//! in size, so that descriptor `i` is found without a directory:
//!
//! ```text
//!  slab 0: 512   slab 1: 1024   slab 2: 2048 ...      index i -> slab log2(i / 512 + 1)
//! ```
//!
//! A slab is address space; only the descriptors in use take memory.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::lock::Locked;
use crate::os::Os;
use crate::span::{Span, SpanRef, State};

const BLOCK: usize = 256 * 1024;
const FIRST_SLAB: usize = 512;
const SLABS: usize = 28;

#[derive(Debug)]
struct Inner {
    /// Unused part of the current block.
    next: *mut u8,
    left: usize,
    /// Descriptors that mean nothing, linked by `next`.
    spare: *mut Span,
}

// SAFETY: the pointers are to metadata memory that is never unmapped.
unsafe impl Send for Inner {}

/// The metadata allocator.
#[derive(Debug)]
pub struct Meta {
    inner: Locked<Inner>,
    slabs: [AtomicPtr<Span>; SLABS],
    made: AtomicUsize,
    bytes: AtomicUsize,
}

const fn slab_of(index: usize) -> (usize, usize) {
    let slab = (index / FIRST_SLAB + 1).ilog2() as usize;
    (slab, index - FIRST_SLAB * ((1 << slab) - 1))
}

impl Meta {
    /// Nothing yet: all zero.
    pub const fn new() -> Self {
        Self {
            inner: Locked::new(Inner { next: null_mut(), left: 0, spare: null_mut() }),
            slabs: [const { AtomicPtr::new(null_mut()) }; SLABS],
            made: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes in use (tables that are mapped as a whole but used in part are not counted here).
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The lock, for the fork handlers.
    pub fn lock(&self) -> &crate::lock::Lock {
        self.inner.raw()
    }

    /// `len` zeroed bytes aligned to 128; null if there is no memory.
    pub fn allocate<O: Os>(&self, os: &O, len: usize) -> *mut u8 {
        let len = len.next_multiple_of(128);
        let mut inner = self.inner.lock(os);
        if inner.left < len {
            let block = len.max(BLOCK).next_multiple_of(os.page_size());
            let start = os.map_tables(block, os.page_size());
            if start.is_null() {
                return null_mut();
            }
            inner.next = start;
            inner.left = block;
        }
        let start = inner.next;
        // SAFETY: at least `len` bytes of the block are left.
        inner.next = unsafe { start.add(len) };
        inner.left -= len;
        drop(inner);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        start
    }

    /// Maps a table that is used in part; null if there is no memory.
    pub fn map_table<O: Os>(&self, os: &O, len: usize) -> *mut u8 {
        os.map_tables(len.next_multiple_of(os.page_size()), os.page_size())
    }

    /// A descriptor in state `Busy`; `None` if there is no memory.
    pub fn take<O: Os>(&self, os: &O) -> Option<SpanRef> {
        let mut inner = self.inner.lock(os);
        let span = if inner.spare.is_null() {
            let index = self.made.load(Ordering::Relaxed);
            let (slab, offset) = slab_of(index);
            let mut base = self.slabs.get(slab)?.load(Ordering::Relaxed);
            if base.is_null() {
                base = self.map_table(os, size_of::<Span>() * (FIRST_SLAB << slab)).cast();
                if base.is_null() {
                    return None;
                }
                self.slabs[slab].store(base, Ordering::Release);
            }
            // SAFETY: `offset` is within the slab, which holds `FIRST_SLAB << slab` descriptors and is never unmapped.
            let span = unsafe { base.add(offset) };
            // SAFETY: as above; nobody knows this descriptor before `made` is raised.
            unsafe { span.write(Span::new()) };
            self.made.store(index + 1, Ordering::Release);
            self.bytes.fetch_add(size_of::<Span>(), Ordering::Relaxed);
            SpanRef(NonNull::new(span)?)
        } else {
            let span = SpanRef(NonNull::new(inner.spare)?);
            inner.spare = span.get().next();
            span
        };
        span.get().set_state(State::Busy);
        Some(span)
    }

    /// Takes a descriptor back.
    pub fn put<O: Os>(&self, os: &O, span: SpanRef) {
        span.get().set_state(State::Unused);
        span.get().set_generation(span.get().generation().wrapping_add(1));
        let mut inner = self.inner.lock(os);
        span.get().set_next(inner.spare);
        inner.spare = span.0.as_ptr();
    }

    /// Number of descriptors ever made.
    pub fn count(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    /// The descriptor of this index.
    pub fn at(&self, index: usize) -> Option<SpanRef> {
        if index >= self.count() {
            return None;
        }
        let (slab, offset) = slab_of(index);
        let base = self.slabs.get(slab)?.load(Ordering::Acquire);
        // SAFETY: the index is below `made`, so its slab is mapped and the descriptor initialised.
        NonNull::new(unsafe { base.add(offset) }).map(SpanRef)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_hold_consecutive_indices() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(slab_of(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == FIRST_SLAB << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}

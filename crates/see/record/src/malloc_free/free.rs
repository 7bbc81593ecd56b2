//! What is free in a heap, and what may be read to find out.

use std::ops::Range;

use pagemill_kernel::page_size;
use pagemill_kernel::pagemap::Pagemap;
use pagemill_model::PageRange;

/// Times that a heap is read, at most.
pub(super) const TRIES: usize = 3;

/// The largest heap that is read, bytes.
pub(super) const MOST: u64 = 16 << 30;

/// What a malloc holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MallocFree {
    /// Its heap, bytes. Of glibc the address space of all arenas, without blocks that are mapped by themselves: those
    /// go back when they are freed. Of jemalloc all extents but those that were given back.
    pub heap: u64,
    /// Free in it.
    pub free: u64,
    /// In memory, in whole pages of what is free: what it could give back.
    pub returnable: u64,
    /// Free in pieces of pages that hold data, too: no malloc gives back a part of a page.
    pub pieces: u64,
}

/// The bytes in a range of whole pages that are in memory.
pub(super) fn resident_bytes(pages: &Pagemap, range: Range<u64>) -> Option<u64> {
    let there = pages.resident(PageRange::new(range.start..range.end)).ok()?;
    Some(there.into_iter().filter(|there| *there).count() as u64 * page_size() as u64)
}

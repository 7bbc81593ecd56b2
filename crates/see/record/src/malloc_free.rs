//! What the malloc of a running process keeps free, read from outside: glibc's and jemalloc's.
//!
//! Nobody is stopped, and nothing in the process is called or changed. Only pages that are in memory are read, so
//! nothing is brought there, and a heap that is partly in swap has no answer.

mod glibc;
mod jemalloc;

use std::ops::Range;
use std::time::Duration;

use pagemill_kernel::pagemap::Pagemap;
use pagemill_kernel::{Linux, clock, page_size};
use pagemill_launch::allocator::Allocator;
use pagemill_model::Pid;

/// Times that a heap is read, at most.
const TRIES: usize = 3;
/// The largest heap that is read, bytes.
const MOST: u64 = 16 << 30;

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

/// What the malloc of process `pid` keeps free, and which one that is; the first is none of another than glibc's and
/// jemalloc, or if it is too large, partly in swap, cannot be read in `time` of a CPU, or changes all the time.
pub fn of(linux: &Linux, pid: Pid, time: Duration) -> (Option<MallocFree>, Option<Allocator>) {
    let allocator = Allocator::of(linux, pid);
    let until = clock::of_thread() + time;
    let (Ok(maps), Ok(pages)) = (linux.maps(pid), Pagemap::open(linux, pid)) else {
        return (None, allocator);
    };
    let named = allocator == Some(Allocator::Jemalloc);
    let program = std::fs::read_link(linux.process_file(pid, "exe")).ok();
    let program = program.as_ref().and_then(|path| path.to_str());
    // A program without symbols may carry it and not say so; a library of it that is not the malloc is not asked.
    if named || (program.is_some() && matches!(allocator, None | Some(Allocator::Glibc))) {
        let carrier = program.filter(|_| !named);
        let mut tries = 0..if named { TRIES } else { 1 };
        let found = tries.find_map(|_| jemalloc::of(pid, &maps, (&pages, until), carrier));
        if named || found.is_some() {
            return (found, Some(Allocator::Jemalloc));
        }
    }
    let glibc = allocator == Some(Allocator::Glibc);
    (glibc.then(|| glibc::of(pid, &maps, (&pages, until))).flatten(), allocator)
}

/// The bytes in a range of whole pages that are in memory.
fn resident_bytes(pages: &Pagemap, range: Range<u64>) -> Option<u64> {
    let there = pages.resident(range.start, range.end).ok()?;
    Some(there.into_iter().filter(|there| *there).count() as u64 * page_size() as u64)
}

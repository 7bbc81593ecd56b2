//! What is free in a heap, and what may be read to find out.

use std::ops::Range;
use std::time::Duration;

use pagemill_kernel::memory::pagemap::Pagemap;
use pagemill_kernel::{clock, page_size, process::process_vm};
use pagemill_model::{PageRange, Pid};

/// Times that a heap is read, at most.
pub(super) const TRIES: usize = 3;

/// The largest heap that is read, bytes.
pub const MOST: u64 = 16 << 30;

/// The memory of a process, as far as it is read.
pub trait Memory {
    /// Whether each page from address to address is in memory; `None` if that cannot be said. Never asked of more than
    /// [`MOST`] bytes.
    fn resident(&self, range: &Range<u64>) -> Option<Vec<bool>>;

    /// Fills `bytes` with what lies at `at`; `None` if that cannot be read, or takes longer than it may.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Option<()>;
}

/// A running process.
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) pages: Pagemap,
    /// Time of this thread's CPU after which nothing is read.
    pub(super) until: Duration,
}

impl Memory for Process {
    fn resident(&self, range: &Range<u64>) -> Option<Vec<bool>> {
        self.pages.resident(PageRange::new(range.start..range.end)).ok()
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Option<()> {
        (clock::of_thread() < self.until).then_some(())?;
        process_vm::read(self.pid, at, bytes).ok()
    }
}

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
pub(super) fn resident_bytes(memory: &impl Memory, range: &Range<u64>) -> Option<u64> {
    let there = memory.resident(range)?;
    Some(there.into_iter().filter(|there| *there).count() as u64 * page_size() as u64)
}

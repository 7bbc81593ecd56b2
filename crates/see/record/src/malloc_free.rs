//! What the malloc of a running process keeps free, read from outside: glibc's and jemalloc's.
//!
//! Nobody is stopped, and nothing in the process is called or changed. Only pages that are in memory are read, so
//! nothing is brought there, and a heap that is partly in swap has no answer.
//!
//! The kernel counts pages that one process reads of another as accessed: they are `Referenced` in smaps, as if the
//! process itself had touched them (`FOLL_TOUCH`, mm/gup.c). Who wants to know what the process does not access marks
//! its pages after a reading.

mod free;
mod glibc;
mod jemalloc;

use std::time::Duration;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::Pagemap;
use pagemill_kernel::{Linux, clock};
use pagemill_launch::allocator::Allocator;
use pagemill_model::Pid;

pub use free::{MOST, MallocFree, Memory};
use free::{Process, TRIES};

/// What the malloc of process `pid` keeps free, and which one that is; the first is none of another than glibc's and
/// jemalloc, or if it is too large, partly in swap, cannot be read in `time` of a CPU, or changes all the time.
pub fn of(linux: &Linux, pid: Pid, time: Duration) -> (Option<MallocFree>, Option<Allocator>) {
    let allocator = Allocator::of(linux, pid);
    let until = clock::of_thread() + time;
    let (Ok(maps), Ok(pages)) = (linux.maps(pid), Pagemap::open(linux, pid)) else {
        return (None, allocator);
    };
    let memory = Process { pid, pages, until };
    let program = std::fs::read_link(linux.process_file(pid, "exe")).ok();
    let program = program.as_ref().and_then(|path| path.to_str());
    match by(&memory, &maps, allocator, program) {
        Some((free, found)) => (free, Some(found)),
        None => (None, allocator),
    }
}

/// The same by its memory and mappings, in the order of their addresses, with the allocator that it says it has and the
/// path of its `program`; none of another allocator than these two.
pub fn by(
    memory: &impl Memory,
    maps: &[Mapping],
    allocator: Option<Allocator>,
    program: Option<&str>,
) -> Option<(Option<MallocFree>, Allocator)> {
    let named = allocator == Some(Allocator::Jemalloc);
    // A program without symbols may carry it and not say so; a library of it that is not the malloc is not asked.
    if named || (program.is_some() && matches!(allocator, None | Some(Allocator::Glibc))) {
        let carrier = program.filter(|_| !named);
        let mut tries = 0..if named { TRIES } else { 1 };
        let found = tries.find_map(|_| jemalloc::of(memory, maps, carrier));
        if named || found.is_some() {
            return Some((found, Allocator::Jemalloc));
        }
    }
    let glibc = allocator == Some(Allocator::Glibc);
    glibc.then(|| (glibc::of(memory, maps), Allocator::Glibc))
}

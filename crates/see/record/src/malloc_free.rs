//! What the malloc of a running process keeps free, read from outside: glibc's, in all arenas, by its chunks
//! ([`pagemill_analysis::chunks`]).
//!
//! Nobody is stopped, and nothing in the process is called or changed. Only pages that are in memory are read, so
//! nothing is brought there, and a heap that is partly in swap has no answer. The heap may change while it is read;
//! then it is read again, and in the end there is no answer rather than a wrong one.

use std::ops::Range;

use pagemill_analysis::chunks::{FreeChunks, walk};
use pagemill_kernel::maps::Mapping;
use pagemill_kernel::pagemap::Pagemap;
use pagemill_kernel::{Linux, page_size, process_vm};
use pagemill_model::Pid;

/// Times that a heap is read, at most.
const TRIES: usize = 3;
/// The largest heap that is read, bytes.
const MOST: u64 = 16 << 30;
/// Heaps of arenas but the first begin at multiples of this, and are no larger.
const ARENA: u64 = 64 << 20;
/// Bytes that are read at a time.
const BLOCK: u64 = 64 << 10;
/// `sizeof(struct malloc_state)` of glibc 2.26 to 2.41, give or take, as a range of where the first chunk behind it may
/// begin.
const STATE: Range<u64> = 0x870..0x8d0;

/// What a malloc holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MallocFree {
    /// Heaps of all arenas, bytes of address space. Blocks that are mapped by themselves are not among them: they go
    /// back when they are freed.
    pub heap: u64,
    /// Free in them.
    pub free: u64,
    /// In memory, in whole pages of what is free: what `malloc_trim` would give back.
    pub returnable: u64,
    /// Heaps that were read.
    pub heaps: u32,
}

/// What the malloc of process `pid` keeps free; none if it is not glibc's, is too large, is partly in swap or cannot be
/// read, or changes all the time.
pub fn of(linux: &Linux, pid: Pid) -> Option<MallocFree> {
    let maps = linux.maps(pid).ok()?;
    let glibc = |map: &Mapping| {
        let name = map.file().and_then(|file| file.rsplit('/').next()).unwrap_or_default();
        name == "libc.so.6" || (name.starts_with("libc-2.") && name.ends_with(".so"))
    };
    maps.iter().any(glibc).then_some(())?;
    let pages = Pagemap::open(linux, pid).ok()?;
    let mut sum = MallocFree::default();
    let mut all = Vec::new();
    if let Some(main) = main_heap(&maps) {
        // Without address space randomisation it begins behind the program's data, within a page.
        let found = read(pid, &pages, &main, |_| Some((main.start..main.start + 16, main.end)))?;
        all.push((main, found));
    }
    for heap in maps.iter().filter(|map| begins_arena(map)).map(Mapping::range) {
        let heap = heap.start..heap.end;
        // What merely begins there is no arena.
        if let Some(found) = read(pid, &pages, &heap, |memory| arena(memory, &heap)) {
            all.push((heap, found));
        }
    }
    for (heap, found) in all {
        sum.heaps += 1;
        sum.heap += heap.end - heap.start;
        sum.free += found.bytes;
        for range in found.pages {
            let there = pages.resident(range.start, range.end).ok()?;
            sum.returnable +=
                there.into_iter().filter(|there| *there).count() as u64 * page_size() as u64;
        }
    }
    (sum.heaps > 0).then_some(sum)
}

/// `[heap]`, which may be several mappings in a row.
fn main_heap(maps: &[Mapping]) -> Option<Range<u64>> {
    let mut parts = maps.iter().filter(|map| map.name == "[heap]");
    let first = parts.next()?;
    parts.try_fold(first.start..first.end, |heap, map| {
        (map.start == heap.end && map.end - heap.start <= MOST).then_some(heap.start..map.end)
    })
}

fn begins_arena(map: &Mapping) -> bool {
    map.start.is_multiple_of(ARENA)
        && map.len() <= ARENA
        && map.inode == 0
        && map.read
        && map.write
        && !map.shared
}

/// Where the first chunk may begin, and where the heap ends, of a heap of an arena but the first.
///
/// ```text
///  heap_info: arena │ heap before │ size │ … (32 or 48 bytes), then, in the arena's first heap, malloc_state
/// ```
fn arena(memory: &mut Reader, heap: &Range<u64>) -> Option<(Range<u64>, u64)> {
    let (state, size) = (memory.word(heap.start)?, memory.word(heap.start + 16)?);
    let end = heap.start.checked_add(size)?;
    if size < 4096 || end > heap.end || !state.is_multiple_of(16) {
        return None;
    }
    let first = heap.contains(&state) && state - heap.start <= 64;
    let begins = if first {
        state + STATE.start..state + STATE.end
    } else {
        heap.start + 32..heap.start + 64
    };
    Some((begins, end))
}

/// Reads a heap until it is sound; `bounds` tells where its first chunk may begin, and its end.
fn read(
    pid: Pid,
    pages: &Pagemap,
    heap: &Range<u64>,
    bounds: impl Fn(&mut Reader) -> Option<(Range<u64>, u64)>,
) -> Option<FreeChunks> {
    let page = page_size() as u64;
    for _ in 0..TRIES {
        let there = pages.resident(heap.start, heap.end).ok()?;
        let mut memory = Reader { pid, heap: heap.clone(), there, block: 0..0, bytes: Vec::new() };
        let Some((begins, end)) = bounds(&mut memory) else { continue };
        let mut starts = begins.step_by(16);
        let found = starts.find_map(|start| walk(start, end, page, |at| memory.word(at)));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Words of a heap, read a block at a time.
struct Reader {
    pid: Pid,
    heap: Range<u64>,
    there: Vec<bool>,
    block: Range<u64>,
    bytes: Vec<u8>,
}

impl Reader {
    fn word(&mut self, at: u64) -> Option<u64> {
        if !self.block.contains(&at) {
            self.fetch(at)?;
        }
        let from = (at - self.block.start) as usize;
        Some(u64::from_ne_bytes(self.bytes.get(from..from + 8)?.try_into().ok()?))
    }

    /// The pages from that of an address on, as far as they are there.
    fn fetch(&mut self, at: u64) -> Option<()> {
        let page = page_size() as u64;
        let first = at.checked_sub(self.heap.start)? / page;
        let there = self.there.get(first as usize..)?;
        let count = there.iter().take((BLOCK / page) as usize).take_while(|there| **there).count();
        let start = self.heap.start + first * page;
        self.block = 0..0;
        self.bytes.resize(count * page as usize, 0);
        (count > 0).then_some(())?;
        process_vm::read(self.pid, start, &mut self.bytes).ok()?;
        self.block = start..start + count as u64 * page;
        Some(())
    }
}

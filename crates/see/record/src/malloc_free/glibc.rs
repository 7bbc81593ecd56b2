//! glibc's malloc, by its chunks ([`pagemill_analysis::chunks`]). The heap may change while it is read; then it is read
//! again, and in the end there is no answer rather than a wrong one.

use std::ops::Range;

use pagemill_analysis::chunks::{FreeChunks, walk};
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::page_size;

use super::free::{MOST, MallocFree, Memory, TRIES, resident_bytes};

/// Heaps of arenas but the first begin at multiples of this, and are no larger.
const ARENA: u64 = 64 << 20;
/// Bytes that are read at a time.
const BLOCK: u64 = 64 << 10;
/// `sizeof(struct malloc_state)` of glibc 2.26 to 2.41, give or take, as a range of where the first chunk behind it may
/// begin.
const STATE: Range<u64> = 0x870..0x8d0;

/// What glibc's malloc keeps free in a process with these mappings; none if it changes all the time.
pub(super) fn of(memory: &impl Memory, maps: &[Mapping]) -> Option<MallocFree> {
    let mut sum = MallocFree::default();
    let mut all = Vec::new();
    if let Some(main) = main_heap(maps) {
        // Without address space randomisation it begins behind the program's data, within a page.
        let found = read(memory, &main, |_| Some((main.start..main.start + 16, main.end)))?;
        all.push((main, found));
    }
    for heap in maps.iter().filter(|map| begins_arena(map)).map(Mapping::range) {
        let heap = heap.start..heap.end;
        // What merely begins there is no arena.
        if let Some(found) = read(memory, &heap, |words| arena(words, &heap)) {
            all.push((heap, found));
        }
    }
    for (heap, found) in all {
        sum.heap += heap.end - heap.start;
        sum.free += found.bytes;
        let whole: u64 = found.pages.iter().map(|range| range.end - range.start).sum();
        sum.pieces += found.bytes.saturating_sub(whole);
        for range in found.pages {
            sum.returnable += resident_bytes(memory, &range)?;
        }
    }
    (sum.heap > 0).then_some(sum)
}

/// `[heap]`, which may be several mappings in a row.
fn main_heap(maps: &[Mapping]) -> Option<Range<u64>> {
    let mut parts = maps.iter().filter(|map| map.name == "[heap]");
    let first = parts.next()?;
    let all = parts.try_fold(first.start..first.end, |heap, map| {
        (map.start == heap.end).then_some(heap.start..map.end)
    });
    all.filter(|heap| heap.end - heap.start <= MOST)
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
fn arena<M: Memory>(words: &mut Words<'_, M>, heap: &Range<u64>) -> Option<(Range<u64>, u64)> {
    let (state, size) = (words.word(heap.start)?, words.word(heap.start + 16)?);
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
fn read<M: Memory>(
    memory: &M,
    heap: &Range<u64>,
    bounds: impl Fn(&mut Words<'_, M>) -> Option<(Range<u64>, u64)>,
) -> Option<FreeChunks> {
    let page = page_size() as u64;
    for _ in 0..TRIES {
        let there = memory.resident(heap)?;
        let (heap, block, bytes) = (heap.clone(), 0..0, Vec::new());
        let mut words = Words { memory, heap, there, block, bytes };
        let Some((begins, end)) = bounds(&mut words) else { continue };
        let mut starts = begins.step_by(16);
        let found = starts.find_map(|start| walk(start..end, page, |at| words.word(at)));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Words of a heap, read a block at a time.
struct Words<'a, M> {
    memory: &'a M,
    heap: Range<u64>,
    there: Vec<bool>,
    block: Range<u64>,
    bytes: Vec<u8>,
}

impl<M: Memory> Words<'_, M> {
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
        self.memory.read(start, &mut self.bytes)?;
        self.block = start..start + count as u64 * page;
        Some(())
    }
}

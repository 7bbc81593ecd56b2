//! glibc's malloc, by its chunks ([`pagemill_analysis::chunks`]). The heap may change while it is read; then it is read
//! again, and in the end there is no answer rather than a wrong one.
//!
//! Small chunks in an arena's fast lists are marked as in use, so the lists are followed, too. An arena is found by its
//! `top`, which is the last chunk of a heap; the lists stand before it (`struct malloc_state`, malloc/malloc.c):
//!
//! ```text
//!  … │ fastbinsY[10] │ top │ …       a chunk: │ size before │ size │ next of the list │ …
//! ```
//!
//! Since glibc 2.32 the address of the next is combined with where it stands (`PROTECT_PTR`).

use std::collections::BTreeMap;
use std::ops::Range;

use pagemill_analysis::chunks::{self, FAST_LISTS, FreeChunks, walk};
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::page_size;
use pagemill_model::sums::sum;

use super::free::{MOST, MallocFree, Memory, TRIES, resident_bytes};

/// Heaps of arenas but the first begin at multiples of this, and are no larger.
const ARENA: u64 = 64 << 20;
/// Bytes that are read at a time.
const BLOCK: u64 = 64 << 10;
/// `sizeof(struct malloc_state)` of glibc 2.26 to 2.41, give or take, as a range of where the first chunk behind it may
/// begin.
const STATE: Range<u64> = 0x870..0x8d0;

/// Where `top` stands in `struct malloc_state`: since glibc 2.27, and before.
const TOP: [u64; 2] = [0x60, 0x58];
/// The largest data of a program or a library that is searched for the first arena, bytes.
const DATA: u64 = 16 << 20;
/// What is in lists that change while heaps are read is no more than this part of the heaps.
const CHANGE: f64 = 0.01;

/// What glibc's malloc keeps free in a process with these mappings; none if it changes all the time.
pub(super) fn of(memory: &impl Memory, maps: &[Mapping]) -> Option<MallocFree> {
    let main = main_heap(maps);
    let mut found: BTreeMap<u64, (u64, FreeChunks)> = BTreeMap::new();
    for _ in 0..TRIES {
        let Some(mut heaps) = Heaps::open(memory, maps, main.as_ref()) else { continue };
        let Some(fast) = heaps.fast() else { continue };
        let sound: Vec<_> =
            heaps.all.iter_mut().filter_map(|heap| heap.walk(&fast.chunks)).collect();
        if !heaps.still_have(&fast) {
            continue;
        }
        let all = heaps.whole && sound.len() == heaps.all.len();
        found.extend(sound);
        if all {
            break;
        }
    }
    if main.as_ref().is_some_and(|main| !found.contains_key(&main.start)) {
        return None;
    }
    // Until it is asked for a first small block it has no heap.
    if main.is_none() && !maps.iter().any(begins_arena) {
        return Some(MallocFree::default());
    }
    let mut free = MallocFree::default();
    for (length, chunks) in found.into_values() {
        free.heap += length;
        free.free += chunks.bytes;
        let whole = sum(chunks.pages.iter().map(|range| range.end - range.start));
        free.pieces += chunks.bytes.saturating_sub(whole);
        for range in chunks.pages {
            free.returnable += resident_bytes(memory, &range)?;
        }
    }
    (free.heap > 0).then_some(free)
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

/// A heap, and where in it chunks are.
struct Heap<'a, M> {
    words: Words<'a, M>,
    /// Where the first chunk may begin.
    begins: Range<u64>,
    /// Where the last one ends.
    end: u64,
    /// Where its arena is, if that is not the first.
    arena: Option<u64>,
}

impl<'a, M: Memory> Heap<'a, M> {
    /// The first arena's.
    fn main(memory: &'a M, range: &Range<u64>) -> Option<Self> {
        let words = Words::of(memory, range)?;
        // Without address space randomisation it begins behind the program's data, within a page.
        Some(Self { words, begins: range.start..range.start + 16, end: range.end, arena: None })
    }

    /// One of another arena; none of what merely begins where one may.
    ///
    /// ```text
    ///  heap_info: arena │ heap before │ size │ … (32 or 48 bytes), then, in the arena's first heap, malloc_state
    /// ```
    fn other(memory: &'a M, range: &Range<u64>) -> Option<Self> {
        let mut words = Words::of(memory, range)?;
        let (arena, size) = (words.word(range.start)?, words.word(range.start + 16)?);
        let end = range.start.checked_add(size)?;
        if size < 4096 || end > range.end || !chunks::is_aligned(arena) {
            return None;
        }
        let first = range.contains(&arena) && arena - range.start <= 64;
        let begins = if first {
            arena + STATE.start..arena + STATE.end
        } else {
            range.start + 32..range.start + 64
        };
        Some(Self { words, begins, end, arena: Some(arena) })
    }

    /// Where it begins, its length, and what is free in it; none if it is not sound.
    fn walk(&mut self, fast: &[u64]) -> Option<(u64, (u64, FreeChunks))> {
        let Self { words, begins, end, .. } = self;
        let page = page_size() as u64;
        let start = words.heap.start;
        let fast = &fast[fast.partition_point(|chunk| *chunk < start)..];
        let mut starts = begins.clone().step_by(16);
        let free = starts.find_map(|at| walk(at..*end, page, fast, |at| words.word(at)))?;
        // What is mapped behind its end it has given back.
        Some((start, (*end - start, free)))
    }
}

/// Chunks in fast lists.
struct Fast {
    /// In the order of their addresses.
    chunks: Vec<u64>,
    bytes: u64,
    /// The lists of each arena, as they were.
    heads: Vec<[u64; FAST_LISTS]>,
}

/// All heaps.
struct Heaps<'a, M> {
    memory: &'a M,
    all: Vec<Heap<'a, M>>,
    /// Where the lists of each arena begin.
    lists: Vec<u64>,
    /// Nothing that may be an arena was left out.
    whole: bool,
}

impl<'a, M: Memory> Heaps<'a, M> {
    fn open(memory: &'a M, maps: &[Mapping], main: Option<&Range<u64>>) -> Option<Self> {
        let others = maps.iter().filter(|map| begins_arena(map));
        let others = others.filter_map(|map| Heap::other(memory, &(map.start..map.end)));
        let mut heaps = Self { memory, all: others.collect(), lists: Vec::new(), whole: true };
        let mut arenas: Vec<u64> = heaps.all.iter().filter_map(|heap| heap.arena).collect();
        arenas.sort_unstable();
        arenas.dedup();
        for arena in arenas {
            let top = |place: &u64| {
                let at = arena.checked_add(*place);
                let top = at.and_then(|at| heaps.words_at(at)?.word(at));
                top.is_some_and(|top| heaps.is_top(top))
            };
            match TOP.iter().copied().find(top) {
                Some(place) => heaps.lists.push(arena + place - FAST_LISTS as u64 * 8),
                // It changes, or is no arena.
                None => {
                    heaps.all.retain(|heap| heap.arena != Some(arena));
                    heaps.whole = false;
                }
            }
        }
        if let Some(main) = main {
            heaps.all.insert(0, Heap::main(memory, main)?);
            let lists = heaps.main_lists(maps)?;
            heaps.lists.push(lists);
        }
        Some(heaps)
    }

    fn words_at(&mut self, at: u64) -> Option<&mut Words<'a, M>> {
        let heap = self.all.iter_mut().find(|heap| heap.words.heap.contains(&at))?;
        Some(&mut heap.words)
    }

    /// Whether the last chunk of a heap begins there.
    fn is_top(&mut self, top: u64) -> bool {
        let Some(heap) = self.all.iter_mut().find(|heap| heap.words.heap.contains(&top)) else {
            return false;
        };
        let size = chunks::is_aligned(top).then(|| heap.words.word(top + 8)).flatten();
        size.is_some_and(|size| top.checked_add(chunks::size_in(size)) == Some(heap.end))
    }

    /// The lists of the first arena, which lies in the data of the library or program that has the malloc.
    fn main_lists(&mut self, maps: &[Mapping]) -> Option<u64> {
        let has_data = |map: &&Mapping| {
            map.inode != 0 && map.read && map.write && !map.shared && map.len() <= DATA
        };
        let mut data: Vec<&Mapping> = maps.iter().filter(has_data).collect();
        data.sort_by_key(|map| !map.name.contains("/libc"));
        let before = FAST_LISTS as u64 * 8;
        data.into_iter().find_map(|map| {
            let mut words = Words::of(self.memory, &(map.start..map.end))?;
            let main = self.all.first()?.words.heap.clone();
            let mut places = (map.start + before..map.end).step_by(8);
            let top = places.find(|place| {
                // A page that is not there has no arena in use.
                let top = words.word(*place).unwrap_or(0);
                main.contains(&top) && self.is_top(top)
            });
            Some(top? - before)
        })
    }

    fn heads(&self, lists: u64) -> Option<[u64; FAST_LISTS]> {
        let mut bytes = [0; FAST_LISTS * 8];
        self.memory.read(lists, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(std::array::from_fn(|list| u64::from_ne_bytes(words[list])))
    }

    /// Follows the fast lists of all arenas; none if they are not sound.
    fn fast(&mut self) -> Option<Fast> {
        let most = sum(self.all.iter().map(|heap| heap.end - heap.words.heap.start)) / 32;
        let mut fast = Fast { chunks: Vec::new(), bytes: 0, heads: Vec::new() };
        for lists in self.lists.clone() {
            let heads = self.heads(lists)?;
            for (list, head) in heads.into_iter().enumerate() {
                let mut chunk = head;
                while chunk != 0 {
                    let words = self.words_at(chunk).filter(|_| chunks::is_aligned(chunk))?;
                    let size = chunks::size_in(words.word(chunk + 8)?);
                    let link = words.word(chunk + 16)?;
                    // There are no more, or it is a circle.
                    if size != chunks::fast_size(list) || fast.chunks.len() as u64 > most {
                        return None;
                    }
                    fast.chunks.push(chunk);
                    fast.bytes += size;
                    let next = [link ^ ((chunk + 16) >> 12), link].into_iter();
                    chunk = next.into_iter().find(|next| *next == 0 || self.holds(*next))?;
                }
            }
            fast.heads.push(heads);
        }
        fast.chunks.sort_unstable();
        Some(fast)
    }

    fn holds(&self, at: u64) -> bool {
        chunks::is_aligned(at) && self.all.iter().any(|heap| heap.words.heap.contains(&at))
    }

    /// Whether what was read of the lists is still true, but for little.
    fn still_have(&self, fast: &Fast) -> bool {
        let all = sum(self.all.iter().map(|heap| heap.end - heap.words.heap.start));
        let mut lists = self.lists.iter().zip(&fast.heads);
        fast.bytes as f64 <= all as f64 * CHANGE
            || lists.all(|(lists, heads)| self.heads(*lists).as_ref() == Some(heads))
    }
}

/// Words of a heap, read a block at a time.
struct Words<'a, M> {
    memory: &'a M,
    heap: Range<u64>,
    there: Vec<bool>,
    block: Range<u64>,
    bytes: Vec<u8>,
}

impl<'a, M: Memory> Words<'a, M> {
    fn of(memory: &'a M, heap: &Range<u64>) -> Option<Self> {
        let there = memory.resident(heap)?;
        Some(Self { memory, heap: heap.clone(), there, block: 0..0, bytes: Vec::new() })
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        if !self.block.contains(&at) {
            self.fetch(at)?;
        }
        let from = (at - self.block.start) as usize;
        Some(u64::from_ne_bytes(self.bytes.get(from..from + 8)?.try_into().ok()?))
    }

    /// The pages around an address, as far as they are there without a gap.
    fn fetch(&mut self, at: u64) -> Option<()> {
        let (page, most) = (page_size() as u64, BLOCK / page_size() as u64);
        let place = at.checked_sub(self.heap.start)? / page;
        let (first, place) = ((place / most * most) as usize, place as usize);
        let block = self.there.get(first..self.there.len().min(first + most as usize))?;
        self.block = 0..0;
        block.get(place - first).filter(|there| **there)?;
        let before = block[..place - first].iter().rev().take_while(|there| **there).count();
        let behind = block[place - first..].iter().take_while(|there| **there).count();
        let start = self.heap.start + (place - before) as u64 * page;
        self.bytes.resize((before + behind) * page as usize, 0);
        self.memory.read(start, &mut self.bytes)?;
        self.block = start..start + self.bytes.len() as u64;
        Some(())
    }
}

//! The memory of another program's malloc, which may hold anything: whatever it says, no more of it is asked for than
//! a heap can have, and what comes of it fits together.
//!
//! ```text
//!  allocator 1 │ lines of /proc/PID/maps, an empty line │ pieces: address 8 │ length 4 │ bytes
//! ```

use std::ops::Range;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_launch::allocator::Allocator;
use pagemill_record::malloc_free::{self, MOST, Memory};

const PAGE: u64 = 4096;
/// The library that has the malloc, in the seeds.
const LIBRARY: &str = "/lib/libjemalloc.so.2";

/// Pieces of memory; the rest of their pages is zero, other pages are not there.
struct Pieces<'a>(Vec<(u64, &'a [u8])>);

impl<'a> Pieces<'a> {
    fn parse(mut bytes: &'a [u8]) -> Self {
        let mut all = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<12>() {
            let [a, b, c, d, e, f, g, h, length @ ..] = *head;
            let at = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let length = u32::from_le_bytes(length) as usize;
            let (piece, rest) = rest.split_at(length.min(rest.len()));
            if at.checked_add(piece.len() as u64).is_some() {
                all.push((at, piece));
            }
            bytes = rest;
        }
        Self(all)
    }

    fn has(&self, page: u64) -> bool {
        let end = page.saturating_add(PAGE);
        self.0.iter().any(|(at, piece)| *at < end && page < at + piece.len() as u64)
    }
}

impl Memory for Pieces<'_> {
    fn resident(&self, range: &Range<u64>) -> Option<Vec<bool>> {
        assert!(range.start <= range.end && range.end - range.start <= MOST, "{range:x?}");
        let mut there = vec![false; ((range.end - range.start) / PAGE) as usize];
        for (at, piece) in &self.0 {
            let first = (at / PAGE * PAGE).max(range.start);
            let end = (at + piece.len() as u64).min(range.end);
            for page in (first..end).step_by(PAGE as usize) {
                if let Some(there) = there.get_mut(((page - range.start) / PAGE) as usize) {
                    *there = true;
                }
            }
        }
        Some(there)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Option<()> {
        let end = at.checked_add(bytes.len() as u64)?;
        let whole = (at / PAGE * PAGE..end).step_by(PAGE as usize).all(|page| self.has(page));
        whole.then_some(())?;
        bytes.fill(0);
        for (start, piece) in &self.0 {
            let (from, to) = ((*start).max(at), (start + piece.len() as u64).min(end));
            if from < to {
                let piece = &piece[(from - start) as usize..(to - start) as usize];
                bytes[(from - at) as usize..(to - at) as usize].copy_from_slice(piece);
            }
        }
        Some(())
    }
}

/// What glibc's malloc or jemalloc keeps free.
pub fn malloc(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else { return };
    let Some(end) = rest.windows(2).position(|two| two == b"\n\n") else { return };
    let text = String::from_utf8_lossy(&rest[..end]);
    let maps: Vec<Mapping> = text.lines().filter_map(Mapping::parse).collect();
    let memory = Pieces::parse(&rest[end + 2..]);
    let (allocator, program) = match which % 3 {
        0 => (Some(Allocator::Glibc), None),
        1 => (Some(Allocator::Jemalloc), None),
        _ => (Some(Allocator::Glibc), Some(LIBRARY)),
    };
    if let Some((Some(free), _)) = malloc_free::by(&memory, &maps, allocator, program) {
        assert!(free.pieces <= free.free && free.free <= free.heap, "{free:?}");
    }
}

fn piece(at: u64, words: &[u64]) -> Vec<u8> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    [&at.to_le_bytes(), &(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
}

fn seed(allocator: u8, maps: &str, pieces: &[Vec<u8>]) -> Vec<u8> {
    [&[allocator], maps.as_bytes(), b"\n\n", &pieces.concat()].concat()
}

/// Heaps of both, with pieces and pages that are free.
pub fn seeds() -> Vec<Vec<u8>> {
    // Chunks of glibc: size before (of one that is free), size and flags. The second of three is free; then the top,
    // which the arena in the library's data has behind its fast lists.
    const HEAP: u64 = 0x5555_0000_0000;
    let chunks = [0, 0x21, 0, 0, 0, 0x3001];
    let behind = [0x3000, 0x30, 0, 0, 0, 0, 0, 0x1_cfb1];
    let pages = vec![0; 0x20_000 / 8];
    let maps = "555500000000-555500020000 rw-p 00000000 00:00 0 [heap]\n\
                7e0000000000-7e0000001000 rw-p 00000000 fe:00 7 /lib/libc.so.6";
    let lists = |second: u64| {
        piece(
            0x7e00_0000_0c60,
            &[[0, second], [0; 2], [0; 2], [0; 2], [0; 2], [HEAP + 0x3050, 0]].concat(),
        )
    };
    let main = [piece(HEAP, &pages), piece(HEAP, &chunks), piece(HEAP + 0x3020, &behind), lists(0)];
    // The third chunk is in the second fast list, and the last there.
    let link = piece(HEAP + 0x3030, &[(HEAP + 0x3030) >> 12]);
    let fast = [&main[..3], &[link, lists(HEAP + 0x3020)]].concat();
    // An arena's first heap: where the arena is, the heap before, its size; then the arena, with its top.
    const ARENA: u64 = 0x7f00_0000_0000;
    let arena_maps = "7f0000000000-7f0000021000 rw-p 00000000 00:00 0";
    let begins = [ARENA + 0x30, 0, 0x2_1000];
    let arena = [
        piece(ARENA, &vec![0; 0x2_1000 / 8]),
        piece(ARENA, &begins),
        piece(ARENA + 0x90, &[ARENA + 0x8d0]),
        piece(ARENA + 0x8b0, &[0, 0x21, 0, 0, 0, 0x2_0731]),
    ];
    // jemalloc: the root's word of a GiB, the leaf's of a page, and the extents: a slab of class 5 with ten regions
    // free, and one that is kept.
    let (root, leaf, data) = (0x1000_1008, 0x4000_0000, 0x4020_0000);
    let extent = |number: u64| data + number * 0x80;
    let word = |class: u64, number: u64, slab: u64| class << 48 | extent(number) | slab;
    let slab = 7 | 1 << 12 | 5 << 20 | 10 << 28;
    let kept = 7 | 1 << 17 | 232 << 20;
    let extents = [
        piece(root, &[leaf]),
        piece(leaf + 0x300 * 8, &[word(5, 0, 1), 0, 0, 0, word(5, 0, 1), word(232, 1, 0)]),
        piece(extent(0), &[slab, 0x4030_0000, 0x5000]),
        piece(extent(1), &[kept, 0x4030_5000, 0x4000]),
        piece(0x4030_5000, &[1; 512]),
    ];
    let jemalloc_maps = "10000000-10001000 rw-p 00000000 fe:00 7 /lib/libjemalloc.so.2\n\
                         10001000-10201000 rw-p 00000000 00:00 0\n\
                         40000000-41000000 rw-p 00000000 00:00 0";
    vec![
        seed(0, maps, &main),
        seed(0, maps, &fast),
        seed(0, arena_maps, &arena),
        seed(1, jemalloc_maps, &extents),
        seed(2, jemalloc_maps, &extents),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise mutated ones would say nothing about what reads whole ones.
    #[test]
    fn the_seeds_are_heaps() {
        let free = seeds().into_iter().map(|seed| {
            let end = seed.windows(2).position(|two| two == b"\n\n")?;
            let text = String::from_utf8_lossy(&seed[1..end]).into_owned();
            let maps: Vec<Mapping> = text.lines().filter_map(Mapping::parse).collect();
            let memory = Pieces::parse(&seed[end + 2..]);
            let (allocator, program) = match seed[0] {
                0 => (Allocator::Glibc, None),
                1 => (Allocator::Jemalloc, None),
                _ => (Allocator::Glibc, Some(LIBRARY)),
            };
            malloc_free::by(&memory, &maps, Some(allocator), program)?.0
        });
        let free: Vec<_> = free.map(|free| free.map(|free| (free.heap, free.free))).collect();
        let jemalloc = Some((0x9000, 10 * 80 + 0x4000));
        assert_eq!(
            free,
            [
                Some((0x20_000, 0x3000 + 0x1_cfb0)),
                Some((0x20_000, 0x3000 + 0x30 + 0x1_cfb0)),
                Some((0x2_1000, 0x2_0730)),
                jemalloc,
                jemalloc
            ]
        );
    }
}

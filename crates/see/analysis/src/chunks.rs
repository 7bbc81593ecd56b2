//! What glibc's malloc keeps free, read from its chunks as they lie in memory.
//!
//! ```text
//!  first          next                            top               end
//!  │ size │1│ …   │ size │1│ free … │ size' │     │ rest of it │1│  │
//!           │             next's flag: this one is in use    └ reaches the end exactly
//!           flags: 1 the chunk before is in use, 2 mapped by itself, 4 not of the main arena
//! ```
//!
//! A heap of malloc is chunks without gaps (`malloc/malloc.c` of glibc, "Chunks of memory are maintained using a
//! 'boundary tag' method"): each begins with two words, of which the second is its size and three flags. A chunk is
//! free where the flag of the next says so; then the word before the next's size repeats the free one's size. What
//! threads keep in caches of their own counts as in use, as it does for malloc.
//!
//! Properties:
//! - Either every chunk from the first to the end is sound, or there is no answer: a heap that changes meanwhile, or is
//!   none, has none.
//! - What would go back by `malloc_trim` are whole pages within free chunks, behind the list's words at the start of
//!   each; only those are told.

use std::ops::Range;

/// The smallest chunk, and what all sizes are multiples of, bytes.
const LEAST: u64 = 32;
const UNIT: u64 = 16;
/// Words of a free chunk that stay: sizes, and the links of its lists.
const LINKS: u64 = 48;
/// What ends a heap of an arena that has others behind it: a chunk of this size, then one of none.
const FENCE: u64 = 16;
/// The flags in a size.
const FLAGS: u64 = 7;
const BEFORE_IN_USE: u64 = 1;

/// Free memory of one heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeChunks {
    /// Free bytes, what lies at its end included.
    pub bytes: u64,
    /// Whole pages within, addresses.
    pub pages: Vec<Range<u64>>,
}

/// Walks the heap `start..end`, whose words `word` reads by address. None where it is not sound from end to end.
pub fn walk(
    Range { start, end }: Range<u64>,
    page: u64,
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Option<FreeChunks> {
    let mut free = FreeChunks::default();
    let mut at = start;
    // Where the chunk before begins.
    let mut before: Option<u64> = None;
    loop {
        let head = word(at.checked_add(8)?)?;
        let size = head & !FLAGS;
        if head & BEFORE_IN_USE == 0 {
            // The first chunk has none before it, and says that it is in use.
            let began = before?;
            if word(at)? != at - began {
                return None;
            }
            free.add(began..at, page);
        }
        let left = end.checked_sub(at)?;
        if size == FENCE && left == 2 * FENCE {
            return Some(free);
        }
        if size < LEAST || !size.is_multiple_of(UNIT) || size > left {
            return None;
        }
        if size == left {
            free.add(at..end, page);
            return Some(free);
        }
        (before, at) = (Some(at), at + size);
    }
}

impl FreeChunks {
    fn add(&mut self, Range { start, end }: Range<u64>, page: u64) {
        self.bytes += end - start;
        let pages = (start + LINKS).next_multiple_of(page)..end / page * page;
        if !pages.is_empty() {
            self.pages.push(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const START: u64 = 0x5555_0000_0000;

    /// A heap of chunks of these sizes, in units, each free or not, and its end; the last is the top.
    fn heap(chunks: &[(u64, bool)]) -> (BTreeMap<u64, u64>, u64) {
        let (mut words, mut at, mut before) = (BTreeMap::new(), START, (0, false));
        for &(units, free) in chunks {
            let size = units * UNIT;
            if before.1 {
                words.insert(at, before.0);
            }
            words.insert(at + 8, size | u64::from(!before.1));
            (at, before) = (at + size, (size, free));
        }
        (words, at)
    }

    fn walked((words, end): &(BTreeMap<u64, u64>, u64)) -> Option<FreeChunks> {
        walk(START..*end, 4096, |at| Some(words.get(&at).copied().unwrap_or(0)))
    }

    #[test]
    fn free_chunks_and_the_top_are_told_and_whole_pages_within() {
        let heap =
            heap(&[(2, false), (1024, true), (3, false), (4, true), (2, false), (600, false)]);
        let free = walked(&heap).unwrap();
        assert_eq!(free.bytes, (1024 + 4 + 600) * UNIT);
        let top = START + (2 + 1024 + 3 + 4 + 2) * UNIT;
        let ends = (top + 600 * UNIT) / 4096 * 4096;
        assert_eq!(free.pages, [START + 4096..START + 0x4000, START + 0x5000..ends]);
    }

    #[test]
    fn a_heap_that_another_follows_ends_in_fences() {
        let (mut words, end) = heap(&[(2, false), (4, true), (2, false)]);
        words.insert(end + 8, FENCE | 1);
        words.insert(end + 24, 1);
        let free = walked(&(words, end + 2 * FENCE)).unwrap();
        assert_eq!((free.bytes, free.pages.len()), (4 * UNIT, 0));
    }

    proptest! {
        /// What is free is told to the byte, and one word that is wrong, or missing, is an answer less.
        #[test]
        fn all_or_nothing(
            chunks in prop::collection::vec((2_u64..700, any::<bool>()), 1..40),
            at in any::<prop::sample::Index>(),
            flip in 4_u32..40,
        ) {
            // Two free chunks are never neighbours: malloc makes them one. The top counts as free by being last.
            let mut chunks = chunks;
            for n in 1..chunks.len() {
                chunks[n].1 &= !chunks[n - 1].1;
            }
            let last = chunks.len() - 1;
            chunks[last].1 = false;
            let heap = heap(&chunks);
            let sum: u64 = chunks[..last].iter().filter(|chunk| chunk.1).map(|chunk| chunk.0).sum();
            let told = walked(&heap).map(|free| free.bytes);
            prop_assert_eq!(told, Some((sum + chunks[last].0) * UNIT));
            let wrong = *heap.0.keys().nth(at.index(heap.0.len())).unwrap();
            let mut changed = heap.clone();
            *changed.0.get_mut(&wrong).unwrap() ^= 1 << flip;
            // It may be sound by chance where the chunk that it leads to begins where another does.
            if let Some(free) = walked(&changed) {
                prop_assert!(free.bytes <= heap.1 - START);
            }
            let missing = walk(START..heap.1, 4096, |at| {
                (at != wrong).then(|| heap.0.get(&at).copied().unwrap_or(0))
            });
            prop_assert_eq!(missing, None);
        }
    }
}

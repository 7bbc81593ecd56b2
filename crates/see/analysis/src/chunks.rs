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
//! free where the flag of the next says so; then the word before the next's size repeats the free one's size. Small
//! chunks may be free in one of an arena's ten *fast lists* instead, with the flag of one in use; `malloc_trim` makes
//! them one with their free neighbours first. What threads keep in caches of their own counts as in use, as it does for
//! malloc.
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

/// An arena's fast lists, of which each has chunks of one size, the smallest first.
pub const FAST_LISTS: usize = 10;

/// The size of the chunks in a fast list, bytes.
pub const fn fast_size(list: usize) -> u64 {
    LEAST + list as u64 * UNIT
}

/// Whether a chunk may begin there.
pub const fn is_aligned(chunk: u64) -> bool {
    chunk.is_multiple_of(UNIT)
}

/// The size in the second word of a chunk, bytes.
pub const fn size_in(word: u64) -> u64 {
    word & !FLAGS
}

/// Walks the heap `start..end`, whose words `word` reads by address, with the chunks of it that are in fast lists, in
/// order. None where it is not sound from end to end.
pub fn walk(
    Range { start, end }: Range<u64>,
    page: u64,
    fast: &[u64],
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Option<FreeChunks> {
    let mut free = FreeChunks::default();
    let mut fast = fast.iter().copied().skip_while(|chunk| *chunk < start).peekable();
    let mut at = start;
    // Where the chunk before begins, and where what is free before this one does.
    let (mut before, mut run): (Option<u64>, Option<u64>) = (None, None);
    loop {
        let head = word(at.checked_add(8)?)?;
        let size = size_in(head);
        if head & BEFORE_IN_USE == 0 {
            // The first chunk has none before it, and says that it is in use.
            let began = before?;
            if word(at)? != at - began {
                return None;
            }
            run = run.or(Some(began));
        } else if let Some(began) = before.filter(|began| fast.next_if_eq(began).is_some()) {
            run = run.or(Some(began));
        } else if let Some(began) = run.take() {
            free.add(began..before?, page);
        }
        // What was in a list and is no chunk any more.
        while fast.next_if(|chunk| *chunk < at).is_some() {}
        let left = end.checked_sub(at)?;
        let fence = size == FENCE && left == 2 * FENCE;
        if !fence && (size < LEAST || !is_aligned(size) || size > left) {
            return None;
        }
        if fence || size == left {
            let last = if fence { at } else { end };
            let began = run.unwrap_or(at);
            if began < last {
                free.add(began..last, page);
            }
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
        walk(START..*end, 4096, &[], |at| Some(words.get(&at).copied().unwrap_or(0)))
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

    /// Of 300 MiB in small chunks that had all been freed nothing was told, for they were in fast lists.
    #[test]
    fn chunks_in_fast_lists_are_one_with_their_free_neighbours() {
        let sizes =
            [(2, false), (7, false), (5, true), (7, false), (3, false), (7, false), (40, false)];
        let (words, end) = heap(&sizes);
        let starts: Vec<u64> = sizes
            .iter()
            .scan(START, |at, (units, _)| Some(std::mem::replace(at, *at + units * UNIT)))
            .collect();
        let told = |fast: &[u64]| {
            let word = |at| Some(words.get(&at).copied().unwrap_or(0));
            walk(START..end, 64, fast, word).unwrap()
        };
        let (alone, all) = (told(&[]), told(&[starts[1], starts[3], starts[5]]));
        assert_eq!(alone.bytes, (5 + 40) * UNIT);
        assert_eq!(all.bytes, (7 + 5 + 7 + 7 + 40) * UNIT);
        // 19 units from the second on, and all from the last list's on.
        let page = |at: u64| at.next_multiple_of(64);
        let runs = [starts[1] + LINKS..starts[4], starts[5] + LINKS..end];
        let pages: Vec<_> = runs.map(|run| page(run.start)..run.end / 64 * 64).into();
        assert_eq!(all.pages, pages);
        // What is no chunk any more is not counted, and does not hide what comes behind.
        assert_eq!(told(&[starts[1] + 16, starts[3]]).bytes, (5 + 7 + 40) * UNIT);
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
            let missing = walk(START..heap.1, 4096, &[], |at| {
                (at != wrong).then(|| heap.0.get(&at).copied().unwrap_or(0))
            });
            prop_assert_eq!(missing, None);
        }
    }
}

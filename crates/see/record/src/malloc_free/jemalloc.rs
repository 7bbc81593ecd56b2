//! jemalloc's extents, by its radix tree ([`pagemill_analysis::extents`]), in a library or in the program.
//!
//! ```text
//!  zeroed data of a file: … │ root: 2^18 words, one a GiB │ …      leaf: 2^18 words, one a page ──► data of an extent
//!                                     └──────────────────────────►
//! ```
//!
//! No symbol says where the root is. A word of zeroed data that points to a leaf does: the data that the leaf's first
//! word points to says which page it is of, and so which word of the root.

use std::collections::HashMap;
use std::ops::Range;

use pagemill_analysis::extents::{self, Extent};
use pagemill_kernel::memory::maps::Mapping;
use pagemill_model::sums;

use super::free::{MOST, MallocFree, Memory, resident_bytes};

const PAGE: u64 = 4096;
/// Words of the root and of a leaf.
const WORDS: u64 = 1 << 18;
/// Memory of which a leaf tells.
const GIB: u64 = WORDS * PAGE;
/// What a leaf begins at a multiple of.
const LINE: u64 = 64;

/// What jemalloc keeps free in a process with these mappings; none if it is not there, of another version than 5, or
/// changes all the time. `carrier`: the file that has it, if that is known.
pub(super) fn of(
    memory: &impl Memory,
    maps: &[Mapping],
    carrier: Option<&str>,
) -> Option<MallocFree> {
    let mut words = Words { memory, pages: HashMap::new() };
    let ours: Vec<Range<u64>> = maps.iter().filter(|map| is_plain(map)).map(bounds).collect();
    let size = sums::sum(ours.iter().map(|range| range.end - range.start));
    (size <= MOST).then_some(())?;
    let carries = |pair: &&[Mapping]| carrier.is_none_or(|file| pair[0].file() == Some(file));
    let root = maps.windows(2).filter(carries).find_map(|pair| root(&mut words, pair, &ours))?;
    let mut found = Vec::new();
    let mut gib = 0;
    for range in &ours {
        for number in (range.start / GIB).max(gib)..range.end.div_ceil(GIB) {
            gib = number + 1;
            // No word, no leaf: a page of the root that is not there was never written.
            if let Some(leaf @ 1..) = words.word(root.checked_add(number * 8)?) {
                found.extend(extents(&mut words, leaf, number)?);
            }
        }
    }
    let sum = extents::sum(&found)?;
    // What was read while it changed may say anything.
    let mut all = sum.kept.iter().map(|range| range.end - range.start);
    let kept = all.try_fold(0_u64, u64::checked_add)?;
    (sum.active.checked_add(kept)? <= MOST).then_some(())?;
    let returnable =
        sum.kept.iter().map(|range| resident_bytes(memory, range)).sum::<Option<u64>>()?;
    let pieces = sum.active - sum.live;
    Some(MallocFree { heap: sum.active + kept, free: pieces + kept, returnable, pieces })
}

fn is_plain(map: &Mapping) -> bool {
    map.inode == 0 && map.read && map.write && !map.shared
}

fn bounds(map: &Mapping) -> Range<u64> {
    map.start..map.end
}

/// The root, if it lies in the second of two mappings: what follows the data of a file.
fn root<M: Memory>(words: &mut Words<'_, M>, pair: &[Mapping], ours: &[Range<u64>]) -> Option<u64> {
    let [data, zeroed] = pair else { return None };
    let follows = data.file().is_some() && data.end == zeroed.start && is_plain(zeroed);
    (follows && zeroed.len() + PAGE >= WORDS * 8).then_some(())?;
    for page in words.resident(&bounds(zeroed)) {
        for at in (page..page + PAGE).step_by(8) {
            let leaf = words.word(at)?;
            let inside = |range: &Range<u64>| range.start <= leaf && leaf + WORDS * 8 <= range.end;
            if leaf == 0 || leaf % LINE != 0 || leaf > u64::MAX / 2 || !ours.iter().any(inside) {
                continue;
            }
            let Some(LeafWord { page, word }) = words.of_leaf(leaf).next() else { continue };
            let address = words.word(extents::data_of(word) + 8)?;
            let root = at.checked_sub(address / GIB * 8);
            if address / PAGE % WORDS == page
                && let Some(root) = root.filter(|root| *root >= data.start)
            {
                return Some(root);
            }
        }
    }
    None
}

/// What a leaf says of a page, by its number in the GiB.
struct LeafWord {
    page: u64,
    word: u64,
}

/// The extents that begin in a GiB; none where what is known of them is not in memory.
fn extents<M: Memory>(words: &mut Words<'_, M>, leaf: u64, gib: u64) -> Option<Vec<Extent>> {
    let (mut all, mut last) = (Vec::new(), 0);
    for LeafWord { page, word } in words.of_leaf(leaf).collect::<Vec<_>>() {
        // The words of a slab's pages are the same.
        if std::mem::replace(&mut last, word) == word {
            continue;
        }
        let data = extents::data_of(word);
        if data == 0 {
            // What was there is a part of a larger extent.
            continue;
        }
        let mut part = |at: u64| words.word(data.checked_add(at)?);
        let (bits, address, size) = (part(0)?, part(8)?, part(16)?);
        // The last page of an extent has a word, too.
        if address / PAGE == gib * WORDS + page {
            all.push(Extent {
                leaf: word,
                bits,
                address: address / PAGE * PAGE,
                size: size / PAGE * PAGE,
            });
        }
    }
    Some(all)
}

/// Words of a process, a page at a time; only what is in memory.
struct Words<'a, M> {
    memory: &'a M,
    pages: HashMap<u64, Option<Vec<u8>>>,
}

impl<M: Memory> Words<'_, M> {
    /// The pages in a range that are in memory.
    fn resident(&self, range: &Range<u64>) -> Vec<u64> {
        let there = self.memory.resident(range).unwrap_or_default();
        let pages = (range.start..range.end).step_by(PAGE as usize).zip(there);
        pages.filter(|(_, there)| *there).map(|(page, _)| page).collect()
    }

    /// The words of a leaf that are not zero, by page.
    fn of_leaf(&mut self, leaf: u64) -> impl Iterator<Item = LeafWord> {
        // A word that a program wrote there may be any.
        let end = leaf.checked_add(WORDS * 8).and_then(|end| end.checked_next_multiple_of(PAGE));
        let range = end.map(|end| leaf / PAGE * PAGE..end);
        let pages = range.map(|range| self.resident(&range)).unwrap_or_default();
        let all = pages.into_iter().flat_map(|page| (page..page + PAGE).step_by(8));
        let inside = all.filter_map(move |at| Some((at, at.checked_sub(leaf)? / 8)));
        let known = inside.filter(|(_, number)| *number < WORDS);
        let known =
            known.filter_map(move |(at, page)| Some(LeafWord { page, word: self.word(at)? }));
        known.filter(|known| known.word != 0)
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let page = at / PAGE * PAGE;
        if !self.pages.contains_key(&page) {
            let there = !self.resident(&(page..page.checked_add(PAGE)?)).is_empty();
            let mut bytes = vec![0; PAGE as usize];
            let read = there && self.memory.read(page, &mut bytes).is_some();
            self.pages.insert(page, read.then_some(bytes));
        }
        let from = (at - page) as usize;
        let bytes = self.pages.get(&page)?.as_ref()?.get(from..from + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

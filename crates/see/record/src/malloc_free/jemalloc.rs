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
use std::time::Duration;

use pagemill_analysis::extents::{self, Extent};
use pagemill_kernel::maps::Mapping;
use pagemill_kernel::pagemap::Pagemap;
use pagemill_kernel::{clock, process_vm};
use pagemill_model::{PageRange, Pid};

use super::free::{MOST, MallocFree, resident_bytes};

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
    pid: Pid,
    maps: &[Mapping],
    (pages, until): (&Pagemap, Duration),
    carrier: Option<&str>,
) -> Option<MallocFree> {
    let mut memory = Memory { pid, pages, until, kept: HashMap::new() };
    let ours: Vec<Range<u64>> = maps.iter().filter(|map| is_plain(map)).map(bounds).collect();
    let carries = |pair: &&[Mapping]| carrier.is_none_or(|file| pair[0].file() == Some(file));
    let root = maps.windows(2).filter(carries).find_map(|pair| root(&mut memory, pair, &ours))?;
    let mut found = Vec::new();
    let (mut gib, mut size) = (0, 0);
    for range in &ours {
        size += range.end - range.start;
        for number in (range.start / GIB).max(gib)..range.end.div_ceil(GIB) {
            gib = number + 1;
            // No word, no leaf: a page of the root that is not there was never written.
            if let Some(leaf @ 1..) = memory.word(root + number * 8) {
                found.extend(extents(&mut memory, leaf, number)?);
            }
        }
    }
    let sum = extents::sum(&found).filter(|_| size <= MOST)?;
    let kept: u64 = sum.kept.iter().map(|range| range.end - range.start).sum();
    let returnable =
        sum.kept.iter().map(|range| resident_bytes(pages, range.clone())).sum::<Option<u64>>()?;
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
fn root(memory: &mut Memory<'_>, pair: &[Mapping], ours: &[Range<u64>]) -> Option<u64> {
    let [data, zeroed] = pair else { return None };
    let follows = data.file().is_some() && data.end == zeroed.start && is_plain(zeroed);
    (follows && zeroed.len() + PAGE >= WORDS * 8).then_some(())?;
    for page in memory.resident(&bounds(zeroed)) {
        for at in (page..page + PAGE).step_by(8) {
            let leaf = memory.word(at)?;
            let inside = |range: &Range<u64>| range.start <= leaf && leaf + WORDS * 8 <= range.end;
            if leaf == 0 || leaf % LINE != 0 || leaf > u64::MAX / 2 || !ours.iter().any(inside) {
                continue;
            }
            let Some((page, word)) = words(memory, leaf).next() else { continue };
            let address = memory.word(extents::data_of(word) + 8)?;
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

/// The words of a leaf that are not zero, by page.
fn words<'a>(memory: &'a mut Memory<'_>, leaf: u64) -> impl Iterator<Item = (u64, u64)> + 'a {
    let pages = memory.resident(&(leaf / PAGE * PAGE..(leaf + WORDS * 8).next_multiple_of(PAGE)));
    let all = pages.into_iter().flat_map(|page| (page..page + PAGE).step_by(8));
    let inside = all.filter(move |at| (leaf..leaf + WORDS * 8).contains(at));
    let known = inside.filter_map(move |at| Some(((at - leaf) / 8, memory.word(at)?)));
    known.filter(|(_, word)| *word != 0)
}

/// The extents that begin in a GiB; none where what is known of them is not in memory.
fn extents(memory: &mut Memory<'_>, leaf: u64, gib: u64) -> Option<Vec<Extent>> {
    let (mut all, mut last) = (Vec::new(), 0);
    for (page, word) in words(memory, leaf).collect::<Vec<_>>() {
        // The words of a slab's pages are the same.
        if std::mem::replace(&mut last, word) == word {
            continue;
        }
        let data = extents::data_of(word);
        if data == 0 {
            // What was there is a part of a larger extent.
            continue;
        }
        let mut part = |at: u64| memory.word(data.checked_add(at)?);
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
struct Memory<'a> {
    pid: Pid,
    pages: &'a Pagemap,
    until: Duration,
    kept: HashMap<u64, Option<Vec<u8>>>,
}

impl Memory<'_> {
    /// The pages in a range that are in memory.
    fn resident(&self, range: &Range<u64>) -> Vec<u64> {
        let there = self.pages.resident(PageRange::new(range.start..range.end)).unwrap_or_default();
        let pages = (range.start..range.end).step_by(PAGE as usize).zip(there);
        pages.filter(|(_, there)| *there).map(|(page, _)| page).collect()
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let page = at / PAGE * PAGE;
        if !self.kept.contains_key(&page) {
            let there = !self.resident(&(page..page.checked_add(PAGE)?)).is_empty();
            let mut bytes = vec![0; PAGE as usize];
            let timely = clock::of_thread() < self.until;
            let read = there && timely && process_vm::read(self.pid, page, &mut bytes).is_ok();
            self.kept.insert(page, read.then_some(bytes));
        }
        let from = (at - page) as usize;
        let bytes = self.kept.get(&page)?.as_ref()?.get(from..from + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

//! Which pages of a program are resident near the end, when they were used last, what is live in them, and who keeps
//! them.
//!
//! Terms: a page is *resident* if it was touched and not given back to the system. What an allocator does with memory
//! that it is given back is not seen: it is taken to unmap allocations of [`MAPPED`] and more, as the C library does by
//! default, and to keep the pages of smaller ones. A page is *sparse* if at most a quarter of it is live; who keeps it
//! is who allocated most of that. A *free* page held allocations and holds none.
//!
//! A program may touch and free all it has as it ends, and its memory was there until then. So what was given back in
//! the last eighth of the recording counts as resident *near the end* if it had been touched before that. And a page
//! that *rested* into the last eighth, from the first half of the recording on and for half of its life at least, was
//! used last before that rest: what came then is told as the end of the rest, be it a touch or that it was given back.
//!
//! ```text
//!  first touch     used last                        end of the rest
//!       ├─────────────┤ · · · · · · rest · · · · · · · · · · ├──┤
//!  ├──────────────────┴──────┼────────────────────────┼─────────┤
//!  began                    half                 last eighth   end
//! ```
//!
//! Always true: a page counts once, for the object that was touched in it last, or last before its rest; a sparse page
//! is not free; a page that was touched between the half and the last eighth did not rest.

use std::ops::Range;

use pagemill_model::{Bytes, Nanos};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::addresses::{ProcessAddress, ProcessPage};

/// The smallest allocation that the C library maps by itself and unmaps when it is freed (`M_MMAP_THRESHOLD`).
pub(crate) const MAPPED: u64 = 128 << 10;

/// Part of a page that is live at most in a sparse one: one by this.
const SPARSE: u64 = 4;

/// Sparse pages that one call site keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseSite {
    /// Who allocated most of what is live in them.
    pub name: String,
    /// Pages.
    pub pages: u64,
    /// Bytes that are live in them, whoever allocated them.
    pub live: u64,
}

/// What was live of the allocations of the process that had most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveMemory {
    /// At the end.
    pub live: Bytes,
    /// At most.
    pub peak: Bytes,
    /// When that was, since the recording began.
    pub peaked: Nanos,
    /// Free pages at the end, of all processes.
    pub free_pages: u64,
    /// Those of them that count as resident near the end, for they were freed in the last eighth.
    #[serde(default)]
    pub free_late: u64,
    /// Those that were freed in the last eighth, and of these also those that came only then.
    #[serde(default)]
    pub free_ending: u64,
}

/// How the time of a recording is divided, ns since it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPart {
    half: u64,
    /// Where the last eighth begins.
    begins: u64,
    end: u64,
}

impl LastPart {
    /// Of a recording that ended then.
    pub(crate) fn of(end: u64) -> Self {
        Self { half: end / 2, begins: end - end / 8, end }
    }
}

/// What a page was to an object; times are ns since the recording began.
#[derive(Clone, Debug)]
pub(crate) struct PageTouches {
    /// The page.
    pub at: ProcessPage,
    /// The object.
    pub object: usize,
    /// Whether that is an allocation.
    pub allocated: bool,
    /// When it was touched first since it was given back to the system, if it was.
    pub first: u64,
    /// When it was touched last.
    pub touched: u64,
    /// When it was written last, if it was.
    pub written: Option<u64>,
    /// From when to when it rested longest.
    pub rest: Range<u64>,
    /// When memory of the object in it was given back last.
    pub freed: Option<u64>,
    /// All of it was given back to the system.
    pub gone: bool,
}

impl PageTouches {
    /// The last touch before the last eighth and the first one in it. If more than the longest rest had to be known to
    /// tell the former, the page did not rest, and it is where the last eighth begins.
    fn around(&self, part: LastPart) -> (Option<u64>, u64) {
        if self.touched < part.begins {
            (Some(self.touched), NEVER)
        } else if self.first >= part.begins {
            (None, self.first)
        } else if self.rest.start < part.begins && part.begins <= self.rest.end {
            (Some(self.rest.start), self.rest.end)
        } else {
            (Some(part.begins), part.begins)
        }
    }
}

/// A page that is resident near the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastUsed {
    /// The page.
    pub at: ProcessPage,
    /// The object.
    pub object: usize,
    /// When it was used last.
    pub touched: u64,
    /// When it was written last, if it was.
    pub written: Option<u64>,
    /// It rested until then, in the last eighth.
    pub rested_until: Option<u64>,
    /// It was given back in the last eighth.
    pub given_back: bool,
    /// The object is one or more allocations, and nothing of them lives in the page: what does is another's.
    pub freed: bool,
}

/// What the pages come to.
#[derive(Debug, Default)]
pub(crate) struct Residency {
    /// Sparse pages by the object that keeps them.
    pub sparse: FxHashMap<usize, Sparse>,
    /// Free pages, without those that rested.
    pub free: u64,
    /// Those of them that are resident near the end, for they were freed in the last eighth.
    pub free_late: u64,
    /// All of them that were freed in the last eighth.
    pub free_ending: u64,
}

/// Sparse pages of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// Pages.
    pub pages: u64,
    /// Bytes that are live in them.
    pub live: u64,
}

/// Never, as a time.
const NEVER: u64 = u64::MAX;

/// A page of all objects that were touched in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergedPage {
    /// Which was touched last.
    latest: u32,
    /// Which was touched last before the last eighth.
    rested: u32,
    /// When it was touched first, and last.
    first: u64,
    touched: u64,
    written: u64,
    /// The last touch before the last eighth; [`NEVER`] if there was none.
    from: u64,
    /// What came first in the last eighth.
    to: u64,
    live: Live,
    /// An object in it was not given back to the system.
    is_there: bool,
    /// An allocation among those is.
    allocated: bool,
    /// An allocation was touched in it, given back or not.
    noted: bool,
    /// One that was touched in it before the last eighth was given back in that.
    freed_late: bool,
    /// One was given back in that, whenever it was touched.
    freed_ending: bool,
    /// Nothing lives of the one that was touched last; of the one that was last before the last eighth.
    latest_freed: bool,
    rested_freed: bool,
}

/// What is live in a page: bytes, and the object with most of them.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    bytes: u64,
    most: (u32, u32),
}

impl MergedPage {
    const NONE: Self = Self {
        latest: 0,
        rested: 0,
        first: NEVER,
        touched: 0,
        written: NEVER,
        from: NEVER,
        to: NEVER,
        live: Live { bytes: 0, most: (0, 0) },
        is_there: false,
        allocated: false,
        noted: false,
        freed_late: false,
        freed_ending: false,
        latest_freed: false,
        rested_freed: false,
    };

    fn take(&mut self, one: &PageTouches, part: LastPart) {
        let freed_late = one.freed.filter(|freed| *freed >= part.begins);
        // Until it is known that something of it lives.
        let freed = one.allocated && freed_late.is_none();
        let object = one.object as u32;
        if self.first == NEVER || one.touched >= self.touched {
            (self.latest, self.latest_freed, self.touched) = (object, freed, one.touched);
        }
        let (before, after) = one.around(part);
        if let Some(before) = before
            && (self.from == NEVER || before >= self.from)
        {
            (self.rested, self.rested_freed, self.from) = (object, freed, before);
        }
        self.to = self.to.min(after).min(freed_late.unwrap_or(NEVER));
        self.first = self.first.min(one.first);
        let known = (self.written != NEVER).then_some(self.written);
        self.written = known.max(one.written).unwrap_or(NEVER);
        self.is_there |= !one.gone;
        self.allocated |= one.allocated && !one.gone;
        self.noted |= one.allocated;
        self.freed_ending |= freed_late.is_some();
        self.freed_late |= freed_late.is_some() && one.first < part.begins;
    }

    fn lives(&mut self, bytes: u64, object: usize) {
        let object = object as u32;
        self.live.bytes = self.live.bytes.saturating_add(bytes);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.live.most = self.live.most.max((bytes, object));
        self.latest_freed &= self.latest != object;
        self.rested_freed &= self.rested != object;
    }

    /// From its last use on it rested, and something was in it meanwhile.
    fn has_rested(&self, part: LastPart, until: &impl Fn(u64) -> u64) -> bool {
        let life = part.end.saturating_sub(self.first);
        let (from, to) = (until(self.from), self.to);
        let rested = self.from != NEVER && to != NEVER && from < part.half;
        let held = !self.noted || self.freed_late || self.live.bytes > 0;
        rested && held && to.saturating_sub(from) >= life.div_ceil(2)
    }
}

/// Of pages of `page` bytes and of the allocations at the end, each with its object: every page once, if anything of it
/// was there when the last eighth began, or is at the end.
pub(crate) fn merged(
    pages: impl Iterator<Item = PageTouches>,
    allocations: impl Iterator<Item = (ProcessAddress, u64, usize)>,
    page: u64,
    part: LastPart,
) -> FxHashMap<ProcessPage, MergedPage> {
    let mut merged: FxHashMap<ProcessPage, MergedPage> = FxHashMap::default();
    for one in pages {
        let late = one.freed.is_some_and(|freed| freed >= part.begins) && one.first < part.begins;
        if !one.gone || late {
            merged.entry(one.at).or_insert(MergedPage::NONE).take(&one, part);
        }
    }
    for (ProcessAddress { pid, address: start }, end, object) in allocations {
        let covered = |number: u64, known: &mut MergedPage| {
            let bytes = end.min((number + 1).saturating_mul(page)) - start.max(number * page);
            known.lives(bytes, object);
        };
        let numbers = start / page..end.div_ceil(page);
        if numbers.end - numbers.start > merged.len() as u64 {
            // Most of what was asked for was never touched.
            let of =
                merged.iter_mut().filter(|(at, _)| at.pid == pid && numbers.contains(&at.vpn.0));
            of.for_each(|(at, page)| covered(at.vpn.0, page));
            continue;
        }
        for number in numbers {
            if let Some(page) = merged.get_mut(&ProcessPage::new(pid, number)) {
                covered(number, page);
            }
        }
    }
    merged
}

/// What [`merged`] pages of `page` bytes come to, each of those that are resident near the end; `until` when the page
/// may have been used that was touched at a moment.
pub(crate) fn residency(
    merged: FxHashMap<ProcessPage, MergedPage>,
    page: u64,
    part: LastPart,
    until: impl Fn(u64) -> u64,
    mut each: impl FnMut(LastUsed),
) -> Residency {
    let mut all = Residency::default();
    for (at, one) in merged {
        let is_free = one.allocated && one.live.bytes == 0;
        let given_back = is_free || !one.is_there;
        let rested = one.has_rested(part, &until);
        if one.allocated && !is_free && one.live.bytes <= page / SPARSE {
            let of = all.sparse.entry(one.live.most.1 as usize).or_default();
            of.pages += 1;
            of.live += one.live.bytes;
        }
        let near_the_end = rested || one.freed_late || !given_back;
        if is_free && !rested {
            all.free += 1;
            all.free_late += u64::from(near_the_end);
            all.free_ending += u64::from(one.freed_ending);
        }
        if !near_the_end {
            continue;
        }
        let (object, touched, freed) = match rested {
            true => (one.rested, one.from, one.rested_freed),
            false => (one.latest, one.touched, one.latest_freed),
        };
        // What is written in passing as a rest ends is no more a use than what is read.
        let written = (one.written != NEVER).then(|| one.written.min(touched));
        each(LastUsed {
            at,
            object: object as usize,
            touched,
            written,
            rested_until: rested.then(|| one.to.min(part.end.saturating_sub(1))),
            given_back,
            freed,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::*;

    fn page(number: u64, object: usize, touched: u64) -> PageTouches {
        PageTouches {
            at: ProcessPage::new(Pid(7), number),
            object,
            allocated: object > 0,
            first: 1,
            touched,
            written: None,
            rest: 0..0,
            freed: None,
            gone: false,
        }
    }

    /// What becomes of the pages in a recording of 80 ns with these allocations at its end.
    fn told(pages: &[PageTouches], live: &[(u64, u64, usize)]) -> (Vec<LastUsed>, Residency) {
        let live = live.iter();
        let live = live.map(|&(from, to, of)| (ProcessAddress::new(Pid(7), from), to, of));
        let part = LastPart::of(80);
        let merged = merged(pages.iter().cloned(), live, 4096, part);
        let mut used = Vec::new();
        let all = residency(merged, 4096, part, |time| time, |page| used.push(page));
        used.sort_unstable_by_key(|page| page.at);
        (used, all)
    }

    #[test]
    fn a_page_is_its_latest_objects_and_free_sparse_or_neither_by_what_lives_in_it() {
        let pages = [
            page(1, 1, 5),
            page(1, 2, 9),
            page(2, 1, 5),
            page(3, 1, 5),
            page(4, 0, 5),
            page(5, 2, 1),
        ];
        // A full page, a sparse one that two objects keep, one that ends in the fifth.
        let live = [(4096, 8192, 1), (8192, 8200, 1), (9000, 9100, 2), (20_480, 24_000, 2)];
        let (used, all) = told(&pages, &live);
        let owner = |one: &LastUsed| (one.at.vpn.0, one.object, one.freed);
        let owners: Vec<_> = used.iter().map(owner).collect();
        // What is live in the first page is of the object that was there before.
        assert_eq!(owners, [(1, 2, true), (2, 1, false), (4, 0, false), (5, 2, false)]);
        assert_eq!(
            (all.free, all.sparse.len(), all.sparse[&2]),
            (1, 1, Sparse { pages: 1, live: 108 })
        );
    }

    /// All of it was told as touched at the very end, or as not there.
    #[test]
    fn what_is_touched_and_freed_as_a_program_ends_rested_until_then_and_was_there() {
        let freed = |at, gone, page: PageTouches| PageTouches { freed: Some(at), gone, ..page };
        let rest = |from, to, page: PageTouches| PageTouches { rest: from..to, ..page };
        let pages = [
            // Walked and freed; given back to the system without a touch; freed in time; walked and never freed.
            freed(76, false, rest(9, 75, page(1, 1, 75))),
            freed(77, true, page(2, 1, 9)),
            freed(60, true, page(3, 1, 9)),
            freed(60, false, page(4, 1, 9)),
            rest(9, 75, page(5, 0, 75)),
            // Used in between, and by another object that shares the page.
            freed(76, false, rest(30, 50, page(6, 1, 75))),
            freed(76, false, rest(9, 75, page(7, 1, 75))),
            page(7, 2, 50),
            // What was freed before lay there, and is used again by another.
            freed(10, false, page(8, 1, 9)),
            freed(76, false, PageTouches { first: 75, ..page(8, 2, 75) }),
            // It came only then.
            freed(76, true, PageTouches { first: 72, ..page(9, 1, 75) }),
        ];
        let (used, all) = told(&pages, &[]);
        let told = |one: &LastUsed| (one.at.vpn.0, one.touched, one.rested_until, one.given_back);
        let expected = [
            (1, 9, Some(75), true),
            (2, 9, Some(77), true),
            (5, 9, Some(75), false),
            (6, 75, None, true),
            (7, 75, None, true),
        ];
        let seen: Vec<_> = used.iter().map(told).filter(|one| one.0 != 8).collect();
        assert_eq!(seen, expected);
        assert_eq!((all.free, all.free_late), (4, 2));
    }
}

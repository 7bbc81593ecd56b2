//! Which pages of a program are resident at the end, what is live in them, and who keeps them.
//!
//! Terms: a page is *resident* if it was touched and not given back to the system. What an allocator does with memory
//! that it is given back is not seen: it is taken to unmap allocations of [`MAPPED`] and more, as the C library does by
//! default, and to keep the pages of smaller ones. A page is *sparse* if at most a quarter of it is live; who keeps it
//! is who allocated most of that. A *free* page held allocations and holds none.
//!
//! Always true: a page counts once, for the object that was touched in it last; a sparse page is not free.

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
}

/// A page of an object, touched and not given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// The page.
    pub at: ProcessPage,
    /// The object.
    pub object: usize,
    /// Whether that is an allocation.
    pub allocated: bool,
    /// When it was touched last, ns since the recording began.
    pub touched: u64,
    /// When it was written last, if it was.
    pub written: Option<u64>,
    /// The object is one or more allocations, and nothing of them lives in the page: what does is another's.
    pub freed: bool,
}

/// What the pages come to.
#[derive(Debug, Default)]
pub(crate) struct Residency {
    /// Each page once, without free ones.
    pub pages: Vec<Resident>,
    /// Sparse pages by the object that keeps them.
    pub sparse: FxHashMap<usize, Sparse>,
    /// Free pages.
    pub free: u64,
}

/// Sparse pages of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// Pages.
    pub pages: u64,
    /// Bytes that are live in them.
    pub live: u64,
}

/// What is live in a page: bytes, the object with most of them, and whether any are of the one that was touched last.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    bytes: u64,
    most: (u64, usize),
    own: bool,
}

/// Of pages of `page` bytes and of the allocations at the end, each with its object.
pub(crate) fn residency(
    pages: impl Iterator<Item = Resident>,
    allocations: impl Iterator<Item = (ProcessAddress, u64, usize)>,
    page: u64,
) -> Residency {
    let mut merged: FxHashMap<ProcessPage, (Resident, Live)> = FxHashMap::default();
    for one in pages {
        let begin = || (Resident { freed: one.allocated, ..one }, Live::default());
        let known = &mut merged.entry(one.at).or_insert_with(begin).0;
        let latest = if one.touched >= known.touched { one } else { *known };
        // Until it is known that something of it lives.
        let freed = if one.touched >= known.touched { one.allocated } else { known.freed };
        *known = Resident {
            freed,
            allocated: known.allocated || one.allocated,
            written: known.written.max(one.written),
            ..latest
        };
    }
    for (ProcessAddress { pid, address: start }, end, object) in allocations {
        let covered = |number: u64, (one, live): &mut (Resident, Live)| {
            let bytes = end.min((number + 1).saturating_mul(page)) - start.max(number * page);
            live.bytes = live.bytes.saturating_add(bytes);
            live.most = live.most.max((bytes, object));
            live.own |= one.object == object;
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
    let mut all = Residency::default();
    for (one, live) in merged.into_values() {
        if one.allocated && live.bytes == 0 {
            all.free += 1;
            continue;
        }
        all.pages.push(Resident { freed: one.freed && !live.own, ..one });
        if one.allocated && live.bytes <= page / SPARSE {
            let of = all.sparse.entry(live.most.1).or_default();
            of.pages += 1;
            of.live += live.bytes;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::*;

    fn page(number: u64, object: usize, touched: u64) -> Resident {
        Resident {
            at: ProcessPage::new(Pid(7), number),
            object,
            allocated: object > 0,
            touched,
            written: None,
            freed: false,
        }
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
        let all = residency(
            pages.into_iter(),
            live.into_iter()
                .map(|(from, to, object)| (ProcessAddress::new(Pid(7), from), to, object)),
            4096,
        );
        let owner = |one: &Resident| (one.at.vpn.0, one.object, one.freed);
        let mut owners: Vec<_> = all.pages.iter().map(owner).collect();
        owners.sort_unstable();
        // What is live in the first page is of the object that was there before.
        assert_eq!(owners, [(1, 2, true), (2, 1, false), (4, 0, false), (5, 2, false)]);
        assert_eq!(
            (all.free, all.sparse.len(), all.sparse[&2]),
            (1, 1, Sparse { pages: 1, live: 108 })
        );
    }
}

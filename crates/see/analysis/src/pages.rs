//! Pages and what lies there, as recordings tell them, without a page being looked at alone: a file says with a few
//! bytes that 2^52 pages were touched.

use std::collections::BTreeMap;
use std::ops::Range;

use pagemill_model::{MappingSample, PageRange, Pid};

use crate::addresses::ProcessAddress;

/// Behind the last address that a program can have (five levels of page tables).
const ADDRESSES: u64 = 1 << 57;

/// The runs of pages of a row, by the numbers of their pages; none is empty, none reaches beyond the address space.
pub(crate) fn runs<'a>(
    starts: &'a Option<Vec<u64>>,
    pages: &'a Option<Vec<u64>>,
    page: u64,
) -> impl Iterator<Item = Range<u64>> + 'a {
    let page = page.max(1);
    let runs = starts.iter().flatten().zip(pages.iter().flatten());
    runs.map(move |(start, pages)| {
        let first = start / page;
        first..first.saturating_add(*pages).min(ADDRESSES / page)
    })
    .filter(|run| !run.is_empty())
}

/// What lies where in the address spaces of processes: what comes later is in the place of what was there, and what lay
/// beside that stays.
#[derive(Clone, Debug)]
pub(crate) struct AddressLayout<T> {
    /// First address after, and what; by process and first address; none overlaps another.
    by_start: BTreeMap<ProcessAddress, (u64, T)>,
}

impl<T> Default for AddressLayout<T> {
    fn default() -> Self {
        Self { by_start: BTreeMap::new() }
    }
}

impl<T: Clone> AddressLayout<T> {
    /// Lays this where a row says that a mapping is.
    pub(crate) fn lay(&mut self, row: &MappingSample, what: T) {
        let (pid, start, end) =
            (Pid::told(row.pid.unwrap_or(0)), row.start.unwrap_or(0), row.end.unwrap_or(0));
        if start >= end {
            return;
        }
        let before = self.by_start.range(..ProcessAddress::new(pid, start)).next_back();
        let before = before.filter(|(key, _)| key.pid == pid).map(|(key, _)| *key);
        let inside =
            self.by_start.range(ProcessAddress::new(pid, start)..ProcessAddress::new(pid, end));
        let keys: Vec<ProcessAddress> =
            before.into_iter().chain(inside.map(|(key, _)| *key)).collect();
        for key in keys {
            let Some((old_end, old)) = self.by_start.remove(&key) else { continue };
            if key.address < start {
                self.by_start.insert(key, (old_end.min(start), old.clone()));
            }
            if old_end > end {
                self.by_start.insert(ProcessAddress::new(pid, end), (old_end, old));
            }
        }
        self.by_start.insert(ProcessAddress::new(pid, start), (end, what));
    }

    /// What lies at an address, and where it begins and ends.
    pub(crate) fn whole(&self, pid: Pid, address: u64) -> Option<(PageRange, &T)> {
        let before = self.by_start.range(..=ProcessAddress::new(pid, address));
        let (at, (end, what)) = before.into_iter().next_back()?;
        (at.pid == pid && *end > address).then_some((PageRange::new(at.address..*end), what))
    }

    /// What lies at an address, and where it begins.
    pub(crate) fn at(&self, pid: Pid, address: u64) -> Option<(u64, &T)> {
        self.whole(pid, address).map(|(range, what)| (range.start, what))
    }

    /// All of it: process, where, what.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Pid, PageRange, &T)> {
        let all = self.by_start.iter();
        all.map(|(at, (end, what))| (at.pid, PageRange::new(at.address..*end), what))
    }

    /// The part of a run of pages, by their numbers, whose first bytes lie in something, in pieces of one thing each.
    pub(crate) fn pieces(
        &self,
        pid: Pid,
        run: Range<u64>,
        page: u64,
    ) -> impl Iterator<Item = (Range<u64>, Option<&T>)> {
        let address = move |number: u64| number.saturating_mul(page);
        let mut at = run.start;
        std::iter::from_fn(move || {
            if at >= run.end {
                return None;
            }
            let begins = address(at);
            let (until, what) = match self.whole(pid, begins) {
                Some((range, what)) => (range.end, Some(what)),
                None => {
                    let next = self.by_start.range(ProcessAddress::new(pid, begins)..).next();
                    let next = next.filter(|(at, _)| at.pid == pid);
                    (next.map_or(u64::MAX, |(at, _)| at.address), None)
                }
            };
            let piece = at..until.div_ceil(page).clamp(at + 1, run.end);
            at = piece.end;
            Some((piece, what))
        })
    }

    /// The parts of a run of pages whose first bytes lie in something.
    pub(crate) fn parts<'a>(
        &'a self,
        pid: Pid,
        run: &Range<u64>,
        page: u64,
    ) -> impl Iterator<Item = Range<u64>> + use<'a, T> {
        let pieces = self.pieces(pid, run.clone(), page);
        pieces.filter(|(_, what)| what.is_some()).map(|(piece, _)| piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: u64, end: u64) -> MappingSample {
        let (start, end) = (Some(start), Some(end));
        MappingSample { pid: Some(7), start, end, ..MappingSample::default() }
    }

    #[test]
    fn what_lies_beside_a_newer_mapping_stays_and_pages_are_cut_where_another_begins() {
        let mut laid = AddressLayout::default();
        laid.lay(&row(0x1000, 0x9000), 'a');
        laid.lay(&row(0x3000, 0x4800), 'b');
        laid.lay(&row(0xa000, u64::MAX), 'c');
        laid.lay(&row(9, 3), 'x');
        let all: Vec<_> =
            laid.iter().map(|(_, range, what)| (range.start, range.end, *what)).collect();
        let expected = [
            (0x1000, 0x3000, 'a'),
            (0x3000, 0x4800, 'b'),
            (0x4800, 0x9000, 'a'),
            (0xa000, u64::MAX, 'c'),
        ];
        assert_eq!(all, expected);
        let pieces: Vec<_> = laid.pieces(Pid(7), 0..1 << 45, 4096).collect();
        let expected = [
            (0..1, None),
            (1..3, Some(&'a')),
            // The page in which both lie begins with this one.
            (3..5, Some(&'b')),
            (5..9, Some(&'a')),
            (9..10, None),
            (10..1 << 45, Some(&'c')),
        ];
        assert_eq!(pieces, expected);
        assert!(
            laid.whole(Pid(8), 0x1000).is_none() && laid.at(Pid(7), 0x8fff) == Some((0x4800, &'a'))
        );
    }

    #[test]
    fn runs_end_where_addresses_do() {
        let starts = Some(vec![4096, 8192, u64::MAX]);
        let pages = Some(vec![u64::MAX, 0, 5]);
        let told = runs(&starts, &pages, 4096);
        assert!(told.eq(std::iter::once(1..ADDRESSES / 4096)));
    }
}

//! What a program touched: its working set over time, what was read and written where, and by whom.
//!
//! The **working set** of an interval is the pages touched in it. Pages are counted from `touched`, which is
//! complete; who did what is counted from `accesses`, the first accesses to pages in their intervals.
//!
//! Always true: a page counts once for each address, however many intervals it was touched in; a mapping's
//! pages add up to those of all mappings.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pagemill_model::fault::Flags;
use pagemill_model::sums::{add, sum};
use pagemill_model::{Access, Event, Fold, Nanos, Pid, Touched};
use rangemap::RangeMap;
use serde::{Deserialize, Serialize};

use crate::addresses::ProcessPage;
use crate::faults::label;
use crate::objects::is_stored;
use crate::pages::{AddressLayout, runs};
use crate::recent::{Recent, Table};

/// How often memory was accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Distinct pages.
    pub pages: u64,
    /// Of them, written.
    pub written: u64,
    /// Accesses.
    pub accesses: u64,
    /// Of them, writes.
    pub writes: u64,
    /// Of them, instruction fetches.
    pub fetches: u64,
    /// Of them, by the kernel.
    pub in_kernel: u64,
}

/// What the events add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessView {
    /// Intervals of all processes.
    pub intervals: u64,
    /// Pages touched in each interval: seconds since the recording began, pages.
    pub working_set: Vec<(f64, u64)>,
    /// How long each interval lasted by the clock, ns, in the same order. Its processes' last ones are as long as they
    /// lived.
    pub lengths: Vec<u64>,
    /// Everything.
    pub total: Counts,
    /// By what lay there; the most pages first.
    pub mappings: Vec<(String, Counts)>,
    /// Accesses by thread; the most first.
    pub threads: Vec<(u64, Counts)>,
    /// Pages that may be in an interval without having been touched in it.
    pub kept: u64,
    /// Accesses that no mapping and no thread has, for they are to more pages than are told apart.
    #[serde(default)]
    pub left_out: u64,
    /// Mapped files that are stored somewhere: when their pages were touched last; by name.
    #[serde(default)]
    pub files: Vec<FileUse>,
}

/// When pages of a mapped file were touched last. The kernel maps the pages around one that is touched, and they count
/// as touched with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUse {
    /// Its name.
    pub name: String,
    /// Processes that touched it.
    pub processes: u64,
    /// Ends of intervals, since the recording began, and pages that were touched last in each; in order.
    pub last: Vec<(Nanos, u64)>,
    /// Pages that were written.
    pub written: u64,
}

/// What nothing is known of.
const BETWEEN: &str = "mapped between two looks";

/// Folds accesses and touched pages into an [`AccessView`].
#[derive(Clone, Debug)]
pub struct AccessFold {
    started: Nanos,
    page: u64,
    /// What lay where last, by name.
    mappings: AddressLayout<String>,
    /// Touched pages of each process by their numbers, and whether they were written.
    touched: Table<Pid, RangeMap<u64, bool>>,
    /// When pages of stored files, or of what is not known yet, were touched last: the end of the interval, ns since
    /// the recording began.
    files: Table<Pid, RangeMap<u64, u64>>,
    accesses: Table<ProcessPage, Counts>,
    threads: Recent<u64, (Counts, Table<u64, ()>)>,
    working_set: Vec<(f64, u64)>,
    lengths: Vec<u64>,
    kept: u64,
    /// Pages that are told apart, of all accesses and of all threads.
    most: usize,
    /// Those of threads so far.
    by_threads: usize,
    left_out: u64,
}

impl AccessFold {
    /// Nothing yet. `started` is when the recording began, `page` the bytes of a page; `most` pages are told apart.
    pub fn new(started: Nanos, page: u64, most: usize) -> Self {
        Self {
            started,
            page: page.max(1),
            mappings: AddressLayout::default(),
            touched: Table::default(),
            files: Table::default(),
            accesses: Table::default(),
            threads: Recent::default(),
            working_set: Vec::new(),
            lengths: Vec::new(),
            kept: 0,
            most,
            by_threads: 0,
            left_out: 0,
        }
    }

    fn touched(&mut self, row: &Touched) {
        let pid = Pid::told(row.pid.unwrap_or(0));
        let page = self.page;
        let of_process = self.touched.entry(pid).or_default();
        let size = sum(runs(&row.starts, &row.pages, page).map(|run| run.end - run.start));
        for run in runs(&row.starts, &row.pages, page) {
            let fresh: Vec<_> = of_process.gaps(&run).collect();
            fresh.into_iter().for_each(|gap| of_process.insert(gap, false));
        }
        for run in runs(&row.written_starts, &row.written_pages, page) {
            of_process.insert(run, true);
        }
        let end = row.time.since(self.started).0;
        for run in runs(&row.starts, &row.pages, page) {
            let pieces = self.mappings.pieces(pid, run, page);
            for (piece, _) in pieces.filter(|(_, name)| name.is_none_or(|name| is_stored(name))) {
                self.files.entry(pid).or_default().insert(piece, end);
            }
        }
        self.lengths.push(row.time.since(row.began.unwrap_or(row.time)).0);
        self.working_set.push((row.time.since(self.started).0 as f64 / 1e9, size));
        add(&mut self.kept, row.kept.unwrap_or(0));
    }

    fn access(&mut self, row: &Access) {
        let flags = Flags(row.flags.unwrap_or(0));
        let count = row.count.unwrap_or(1);
        let if_has = |bits: u64| if flags.has(bits) { count } else { 0 };
        let one = Counts {
            accesses: count,
            writes: if_has(Flags::WRITE),
            fetches: if_has(Flags::EXECUTE),
            in_kernel: if_has(Flags::IN_KERNEL),
            ..Counts::default()
        };
        let number = row.address.unwrap_or(0) / self.page;
        let page = ProcessPage::new(Pid::told(row.pid.unwrap_or(0)), number);
        if self.accesses.len().max(self.by_threads) >= self.most
            && !self.accesses.contains_key(&page)
        {
            return add(&mut self.left_out, count);
        }
        self.accesses.entry(page).or_default().add(one);
        let (counts, pages) = self.threads.of(row.tid.unwrap_or(0));
        counts.add(one);
        if self.by_threads < self.most || pages.contains_key(&number) {
            let new = pages.insert(number, ()).is_none();
            add(&mut counts.pages, new.into());
            self.by_threads += usize::from(new);
        }
    }

    fn name(&self, pid: Pid, address: u64) -> String {
        self.mappings.at(pid, address).map_or(BETWEEN, |(_, name)| name).to_owned()
    }
}

impl AccessFold {
    /// Files by name, without what was written.
    fn files(&self) -> BTreeMap<&str, FileUse> {
        let mut files: BTreeMap<&str, (BTreeMap<u64, u64>, BTreeSet<Pid>)> = BTreeMap::new();
        for (&pid, last) in &self.files {
            for (run, &end) in last.iter() {
                for (piece, name) in self.mappings.pieces(pid, run.clone(), self.page) {
                    let Some(name) = name.filter(|name| is_stored(name)) else { continue };
                    let (of_file, processes) = files.entry(name).or_default();
                    add(of_file.entry(end).or_default(), piece.end - piece.start);
                    processes.insert(pid);
                }
            }
        }
        let one = |(name, (last, processes)): (&'_ str, (BTreeMap<_, _>, BTreeSet<Pid>))| FileUse {
            name: name.to_owned(),
            processes: processes.len() as u64,
            last: last.into_iter().map(|(end, pages)| (Nanos(end), pages)).collect(),
            written: 0,
        };
        files.into_iter().map(|(name, file)| (name, one((name, file)))).collect()
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        let sums = [
            (&mut self.pages, other.pages),
            (&mut self.written, other.written),
            (&mut self.accesses, other.accesses),
            (&mut self.writes, other.writes),
            (&mut self.fetches, other.fetches),
            (&mut self.in_kernel, other.in_kernel),
        ];
        for (sum, more) in sums {
            add(sum, more);
        }
    }
}

impl Fold for AccessFold {
    type View = AccessView;

    fn event(&mut self, event: &Event) {
        match event {
            Event::Touched(row) => self.touched(row),
            Event::Access(row) => self.access(row),
            Event::Mapping(row) => self.mappings.lay(row, label(row)),
            _ => {}
        }
    }

    fn view(&self) -> AccessView {
        let mut mappings: HashMap<String, Counts> = HashMap::new();
        let mut total = Counts::default();
        for (&pid, touched) in &self.touched {
            for (run, &written) in touched.iter() {
                for (piece, name) in self.mappings.pieces(pid, run.clone(), self.page) {
                    let pages = piece.end - piece.start;
                    let written = if written { pages } else { 0 };
                    let piece = Counts { pages, written, ..Counts::default() };
                    let name = name.map_or(BETWEEN, String::as_str);
                    mappings.entry(name.to_owned()).or_default().add(piece);
                    total.add(piece);
                }
            }
        }
        for (page, counts) in &self.accesses {
            // Samples have no page sets: their pages are those that were sampled.
            let sampled = if self.touched.is_empty() {
                Counts { pages: 1, written: (counts.writes > 0).into(), ..*counts }
            } else {
                *counts
            };
            mappings
                .entry(self.name(page.pid, page.vpn.address(self.page)))
                .or_default()
                .add(sampled);
            total.add(sampled);
        }
        let mut files: Vec<FileUse> = self.files().into_values().collect();
        for file in &mut files {
            file.written = mappings.get(&file.name).map_or(0, |counts| counts.written);
        }
        let mut mappings: Vec<(String, Counts)> = mappings.into_iter().collect();
        mappings.sort_by(|a, b| (b.1.pages, &a.0).cmp(&(a.1.pages, &b.0)));
        let mut threads: Vec<(u64, Counts)> =
            self.threads.iter().map(|(thread, (counts, _))| (*thread, *counts)).collect();
        threads.sort_by_key(|(thread, counts)| (std::cmp::Reverse(counts.accesses), *thread));
        AccessView {
            intervals: self.working_set.len() as u64,
            working_set: self.working_set.clone(),
            lengths: self.lengths.clone(),
            total,
            mappings,
            threads,
            kept: self.kept,
            left_out: self.left_out,
            files,
        }
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::MappingSample;

    use super::*;

    fn fold(events: Vec<Event>) -> AccessView {
        let mut fold = AccessFold::new(Nanos(0), 4096, 100);
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    }

    #[test]
    fn what_lies_beside_a_newer_mapping_keeps_its_name() {
        let mut fold = AccessFold::new(Nanos(0), 4096, 100);
        let mut lay = |start, end, name: &str| {
            fold.event(&Event::Mapping(Box::new(MappingSample {
                pid: Some(7),
                start: Some(start),
                end: Some(end),
                name: Some(name.into()),
                ..MappingSample::default()
            })));
        };
        lay(0x1000, 0x9000, "large");
        lay(0x3000, 0x5000, "inside");
        lay(0x8000, 0xa000, "across");
        lay(0x1000, 0x2000, "front");
        let names = [0x1000, 0x2000, 0x3000, 0x4fff, 0x5000, 0x8000, 0x9fff, 0xa000];
        let names = names.map(|address| fold.name(Pid(7), address));
        let none = "mapped between two looks";
        let expected = ["front", "large", "inside", "inside", "large", "across", "across", none];
        assert_eq!(names, expected);
        assert_eq!(fold.name(Pid(8), 0x1000), none);
    }

    #[test]
    fn a_row_of_more_pages_than_there_are_addresses_is_counted_at_once() {
        let mapping = |start, end| MappingSample {
            pid: Some(7),
            start: Some(start),
            end: Some(end),
            name: Some("[heap]".into()),
            ..MappingSample::default()
        };
        let touched = Touched {
            pid: Some(7),
            starts: Some(vec![0x1000, 0x9000, u64::MAX]),
            pages: Some(vec![u64::MAX, 1 << 44, u64::MAX]),
            written_starts: Some(vec![0, 0x4000]),
            written_pages: Some(vec![0, 1 << 43]),
            kept: Some(u64::MAX),
            ..Touched::default()
        };
        let access = Access {
            pid: Some(7),
            address: Some(u64::MAX),
            flags: Some(u64::MAX),
            count: Some(u64::MAX),
            ..Access::default()
        };
        let mut events = vec![Event::Mapping(Box::new(mapping(0x2000, u64::MAX)))];
        for _ in 0..3 {
            events.push(Event::Touched(Box::new(touched.clone())));
            events.push(Event::Access(Box::new(access.clone())));
        }
        let view = fold(events);
        assert_eq!((view.total.pages, view.total.written), ((1 << 45) - 1, 1 << 43));
        assert_eq!((view.total.accesses, view.kept), (u64::MAX, u64::MAX));
        let heap = view.mappings.iter().find(|one| one.0 == "[heap]").map(|one| one.1.pages);
        assert_eq!(heap, Some((1 << 45) - 2));
    }

    /// A table of pages without a bound took what memory there was.
    #[test]
    fn accesses_to_more_pages_than_are_told_apart_are_counted_as_left_out() {
        let mut fold = AccessFold::new(Nanos(0), 4096, 3);
        for (tid, page) in [(1, 1), (1, 2), (2, 3), (2, 4), (1, 5), (1, 2), (1, 3), (2, 6)] {
            let (tid, address, count) = (Some(tid), Some(page << 12), Some(10));
            let row = Access { tid, address, count, ..Access::default() };
            fold.event(&Event::Access(Box::new(row)));
        }
        let view = fold.view();
        assert_eq!((view.total.pages, view.total.accesses, view.left_out), (3, 50, 30));
        let threads: Vec<_> = view.threads.iter().map(|(_, of)| (of.accesses, of.pages)).collect();
        assert_eq!(threads, [(40, 2), (10, 1)]);
    }

    #[test]
    fn a_page_counts_once_and_by_what_lay_there() {
        let mapping = MappingSample {
            pid: Some(7),
            start: Some(0x1000),
            end: Some(0x4000),
            name: Some("[heap]".into()),
            ..MappingSample::default()
        };
        let touched = |number: u64| Touched {
            time: Nanos(number * 1_000_000_000),
            pid: Some(7),
            number: Some(number),
            starts: Some(vec![0x1000, 0x9000]),
            pages: Some(vec![2, 1]),
            written_starts: Some(vec![0x2000]),
            written_pages: Some(vec![1]),
            ..Touched::default()
        };
        let access = Access {
            pid: Some(7),
            tid: Some(8),
            address: Some(0x2fff),
            flags: Some(Flags::WRITE),
            ..Access::default()
        };
        let view = fold(vec![
            Event::Mapping(Box::new(mapping)),
            Event::Touched(Box::new(touched(1))),
            Event::Touched(Box::new(touched(2))),
            Event::Access(Box::new(access)),
        ]);
        assert_eq!(view.working_set, [(1.0, 3), (2.0, 3)]);
        assert_eq!((view.total.pages, view.total.written, view.total.writes), (3, 1, 1));
        let heap = Counts { pages: 2, written: 1, accesses: 1, writes: 1, ..Counts::default() };
        assert_eq!(view.mappings[0], ("[heap]".into(), heap));
        assert_eq!(view.mappings[1].0, "mapped between two looks");
        assert_eq!(view.threads[0].0, 8);
    }
}

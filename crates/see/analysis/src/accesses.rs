//! What a program touched: its working set over time, what was read and written where, and by whom.
//!
//! The **working set** of an interval is the pages touched in it. Pages are counted from `touched`, which is
//! complete; who did what is counted from `accesses`, the first accesses to pages in their intervals.
//!
//! Always true: a page counts once for each address, however many intervals it was touched in; a mapping's
//! pages add up to those of all mappings.

use std::collections::{BTreeMap, HashMap};

use pagemill_model::fault::Flags;
use pagemill_model::{Access, Event, Fold, MappingSample, Nanos, Touched};
use serde::{Deserialize, Serialize};

use crate::faults::label;
use crate::heat::{Recent, Table};

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
}

/// Folds accesses and touched pages into an [`AccessView`].
#[derive(Clone, Debug)]
pub struct AccessFold {
    started: Nanos,
    page: u64,
    /// What lay where last: first address after and name, by process and first address; none overlaps another.
    mappings: BTreeMap<(u64, u64), (u64, String)>,
    touched: Table<(u64, u64), bool>,
    accesses: Table<(u64, u64), Counts>,
    threads: Recent<u64, (Counts, Table<u64, ()>)>,
    working_set: Vec<(f64, u64)>,
    lengths: Vec<u64>,
    kept: u64,
}

impl AccessFold {
    /// Nothing yet. `started` is when the recording began, `page` the bytes of a page.
    pub fn new(started: Nanos, page: u64) -> Self {
        Self {
            started,
            page: page.max(1),
            mappings: BTreeMap::new(),
            touched: Table::default(),
            accesses: Table::default(),
            threads: Recent::default(),
            working_set: Vec::new(),
            lengths: Vec::new(),
            kept: 0,
        }
    }

    fn touched(&mut self, row: &Touched) {
        let pid = row.pid.unwrap_or(0);
        let page = self.page;
        let runs = |starts: &Option<Vec<u64>>, pages: &Option<Vec<u64>>| -> Vec<(u64, u64)> {
            let (starts, pages) = (starts.iter().flatten(), pages.iter().flatten());
            starts.copied().zip(pages.copied()).collect()
        };
        let mut size = 0;
        for (start, pages) in runs(&row.starts, &row.pages) {
            size += pages;
            for number in start / page..start / page + pages {
                self.touched.entry((pid, number)).or_default();
            }
        }
        for (start, pages) in runs(&row.written_starts, &row.written_pages) {
            for number in start / page..start / page + pages {
                self.touched.insert((pid, number), true);
            }
        }
        self.lengths.push(row.time.since(row.began.unwrap_or(row.time)).0);
        self.working_set.push((row.time.since(self.started).0 as f64 / 1e9, size));
        self.kept += row.kept.unwrap_or(0);
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
        self.accesses.entry((row.pid.unwrap_or(0), number)).or_default().add(one);
        let (counts, pages) = self.threads.of(row.tid.unwrap_or(0));
        counts.add(one);
        counts.pages += u64::from(pages.insert(number, ()).is_none());
    }

    /// Takes in a mapping, in the place of what lay there; what lay beside that keeps its name.
    fn mapping(&mut self, row: &MappingSample) {
        let (pid, start, end) =
            (row.pid.unwrap_or(0), row.start.unwrap_or(0), row.end.unwrap_or(0));
        let before = self.mappings.range(..(pid, start)).next_back();
        let before = before.filter(|(key, _)| key.0 == pid).map(|(key, _)| *key);
        let inside = self.mappings.range((pid, start)..(pid, end.max(start)));
        let keys: Vec<(u64, u64)> = before.into_iter().chain(inside.map(|(key, _)| *key)).collect();
        for key in keys {
            let Some((old_end, name)) = self.mappings.remove(&key) else { continue };
            if key.1 < start {
                self.mappings.insert(key, (old_end.min(start), name.clone()));
            }
            if old_end > end {
                self.mappings.insert((pid, end), (old_end, name));
            }
        }
        self.mappings.insert((pid, start), (end, label(row)));
    }

    fn name(&self, pid: u64, address: u64) -> String {
        let before = self.mappings.range(..=(pid, address)).next_back();
        match before {
            Some(((owner, _), (end, name))) if *owner == pid && *end > address => name.clone(),
            _ => "mapped between two looks".into(),
        }
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.pages += other.pages;
        self.written += other.written;
        self.accesses += other.accesses;
        self.writes += other.writes;
        self.fetches += other.fetches;
        self.in_kernel += other.in_kernel;
    }
}

impl Fold for AccessFold {
    type View = AccessView;

    fn event(&mut self, event: &Event) {
        match event {
            Event::Touched(row) => self.touched(row),
            Event::Access(row) => self.access(row),
            Event::Mapping(row) => self.mapping(row),
            _ => {}
        }
    }

    fn view(&self) -> AccessView {
        let mut mappings: HashMap<String, Counts> = HashMap::new();
        let mut total = Counts::default();
        for (&(pid, number), &written) in &self.touched {
            let page = Counts { pages: 1, written: written.into(), ..Counts::default() };
            mappings.entry(self.name(pid, number * self.page)).or_default().add(page);
            total.add(page);
        }
        for (&(pid, number), counts) in &self.accesses {
            // Samples have no page sets: their pages are those that were sampled.
            let sampled = if self.touched.is_empty() {
                Counts { pages: 1, written: (counts.writes > 0).into(), ..*counts }
            } else {
                *counts
            };
            mappings.entry(self.name(pid, number * self.page)).or_default().add(sampled);
            total.add(sampled);
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(events: Vec<Event>) -> AccessView {
        let mut fold = AccessFold::new(Nanos(0), 4096);
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    }

    #[test]
    fn what_lies_beside_a_newer_mapping_keeps_its_name() {
        let mut fold = AccessFold::new(Nanos(0), 4096);
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
        let names = names.map(|address| fold.name(7, address));
        let none = "mapped between two looks";
        let expected = ["front", "large", "inside", "inside", "large", "across", "across", none];
        assert_eq!(names, expected);
        assert_eq!(fold.name(8, 0x1000), none);
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

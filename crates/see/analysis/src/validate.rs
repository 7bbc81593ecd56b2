//! Whether page sets that were recorded by faults are what the program touched: held against a recording of
//! every access of the same run.
//!
//! A *window* is a stretch of time in which some accesses of one kind to one page lie for certain; the exact
//! recording has one a row. An *interval* of the recording by faults begins, is scanned, and ends when the
//! scanned pages were dropped:
//!
//! ```text
//!  began(k) = ended(k-1)         scanned(k)   ended(k) = began(k+1)
//!      |── only k ───────────────────|── k or k+1 ──|── only k+1 ──
//! ```
//!
//! A window may belong to the intervals that it overlaps in this sense; mostly that is one.
//!
//! - *missing*: a window in none of whose intervals the page is told;
//! - *extra*: a page told in an interval to which no window of the page belongs. Excused, and counted, is what
//!   others did: the kernel for a system call, and the emulator itself (it reads code to translate it, writes
//!   signal frames, copies arguments), as far as the faults say so. A page told as written that had no fault at all
//!   in the interval was taken by the kernel, for a futex or direct I/O; whether it was *touched* is not excused so.
//!
//! A page of a file, told without a fault of its own, may have been mapped around a fault near it: counted, too. So is
//! a page of which the recording itself says that it may only have been kept: as many as the row counts, told in the
//! interval before or left by a fork before the first, without a fault in this one.
//!
//! For written pages the same with writes. Looked at is memory of the program alone, which is what the
//! mappings of the exact recording say.
//!
//! Always true: taking a page out of an interval to which a window belongs alone, adding one that nobody
//! touched, or turning a write into a read changes the outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use pagemill_model::fault::Flags;
use pagemill_model::sums::sum;
use pagemill_model::{Access, Event, MappingSample, Nanos, Pid, Touched};
use rangemap::RangeSet;

use crate::addresses::{ProcessAddress, ProcessPage};
use crate::pages::{AddressLayout, runs};

#[cfg(test)]
mod tests;
mod view;

pub use view::{Difference, KINDS, Tally, ValidationView};

/// For how long a fault may take, ns, on a machine with much else to do.
const IN_PROGRESS: u64 = 50_000_000;
/// Pages of one page table. With a page of a file the kernel maps those of the aligned 64 KiB around it that are in
/// memory (`fault_around_bytes`), and all of the folio that it is in, as far as the page table goes.
const PAGE_TABLE: u64 = 512;
/// Pages in intervals that are looked at: 1 TiB. More are told by nobody but who made the recording up.
pub const MOST: u64 = if cfg!(test) { 1 << 20 } else { 1 << 28 };
/// How many differences are kept one by one.
const SHOWN: usize = 20;

/// Takes in two recordings of one run.
#[derive(Clone, Debug)]
pub struct Validation {
    page: u64,
    windows: HashMap<ProcessPage, Vec<Window>>,
    ours: AddressLayout<MappingSample>,
    intervals: BTreeMap<Pid, Vec<Interval>>,
    faults: HashMap<ProcessPage, Vec<Fault>>,
    /// Of the recording by faults: whether each is of a file, and whether faults there may map more than a page.
    mappings: AddressLayout<(bool, bool)>,
}

/// What the emulator's account says of the pages of a process; an interval is known by its place in their order.
#[derive(Default)]
struct Expected {
    /// Intervals that a window belongs to, by page.
    explained: HashMap<u64, RangeSet<usize>>,
    /// Pages that were accessed.
    accessed: BTreeSet<u64>,
    /// Pages in the one interval in which they were accessed for certain.
    certain: HashSet<(usize, u64)>,
    /// Pages that were executed.
    executed: HashSet<u64>,
    /// Intervals in which the kernel may have taken a page without a fault, by page.
    served: HashMap<u64, RangeSet<usize>>,
    /// Pages that no interval tells of in which they may have been accessed, with the first of these.
    missed: BTreeSet<(usize, u64)>,
    /// Accesses that may be of one interval or the next.
    on_borders: u64,
}

/// Pages that intervals tell of.
struct TouchedPages {
    all: BTreeSet<u64>,
    /// Of these, what some interval may have kept only.
    kept: BTreeSet<u64>,
}

/// A page that differs: whether it is missing, its number, and the interval's if it is of one.
type PageDifference = (bool, u64, Option<u64>);

#[derive(Clone, Copy, Debug)]
struct Window {
    first: u64,
    last: u64,
    write: bool,
    execute: bool,
    /// While a thread was in a call about a futex in it: the kernel may have taken the page, and writable, without a
    /// fault.
    kernel: bool,
}

#[derive(Clone, Debug)]
struct Interval {
    number: u64,
    /// From when on a window may belong to it: the scan before.
    from: u64,
    ended: u64,
    touched: RangeSet<u64>,
    written: RangeSet<u64>,
    /// Pages that may only be left from the interval before.
    kept: u64,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    time: u64,
    write: bool,
    in_kernel: bool,
    instruction: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessSource {
    Program,
    Kernel,
    Emulator,
    Around,
    Kept,
}

impl Validation {
    /// Nothing yet; `page` bytes are a page.
    pub fn new(page: u64) -> Self {
        Self {
            page: page.max(1),
            windows: HashMap::new(),
            ours: AddressLayout::default(),
            intervals: BTreeMap::new(),
            faults: HashMap::new(),
            mappings: AddressLayout::default(),
        }
    }

    /// An event of the exact recording.
    pub fn exact(&mut self, event: &Event) {
        match event {
            Event::Access(row) => {
                let flags = Flags(row.flags.unwrap_or(0));
                let window = Window {
                    first: row.time.0,
                    last: row.last.unwrap_or(row.time).0,
                    write: flags.has(Flags::WRITE),
                    execute: flags.has(Flags::EXECUTE),
                    kernel: flags.has(Flags::IN_KERNEL),
                };
                self.windows.entry(self.key(row)).or_default().push(window);
            }
            Event::Mapping(row) => {
                self.ours.lay(row, (**row).clone());
            }
            _ => {}
        }
    }

    /// An event of the recording by faults.
    pub fn faults(&mut self, event: &Event) {
        match event {
            Event::Access(row) => {
                let flags = Flags(row.flags.unwrap_or(0));
                let fault = Fault {
                    time: row.time.0,
                    write: flags.has(Flags::WRITE),
                    in_kernel: flags.has(Flags::IN_KERNEL),
                    instruction: row.instruction.unwrap_or(0),
                };
                self.faults.entry(self.key(row)).or_default().push(fault);
            }
            Event::Touched(row) => self.interval(row),
            Event::Mapping(row) => {
                let file = row.name.as_ref().is_some_and(|name| name.starts_with('/'));
                // What is shared and cannot be written to cannot be watched.
                let rights = row.permissions.as_deref().unwrap_or("");
                let around = file && rights.ends_with('s') && !rights.contains('w');
                self.mappings.lay(row, (file, around));
            }
            _ => {}
        }
    }

    fn key(&self, row: &Access) -> ProcessPage {
        ProcessPage::new(Pid::told(row.pid.unwrap_or(0)), row.address.unwrap_or(0) / self.page)
    }

    fn interval(&mut self, row: &Touched) {
        let page = self.page;
        let numbers = |starts: &Option<Vec<u64>>, pages: &Option<Vec<u64>>| -> RangeSet<u64> {
            runs(starts, pages, page).collect()
        };
        let intervals = self.intervals.entry(Pid::told(row.pid.unwrap_or(0))).or_default();
        let began = row.began.unwrap_or(Nanos(0));
        intervals.push(Interval {
            number: row.number.unwrap_or(0),
            // Until the next row tells when this one was scanned, which is when that one may begin.
            from: row.scanned.unwrap_or(began).0,
            ended: row.time.0,
            touched: numbers(&row.starts, &row.pages),
            written: numbers(&row.written_starts, &row.written_pages),
            kept: row.kept.unwrap_or(0),
        });
    }

    /// The program's mapping at a page.
    fn mapping(&self, pid: Pid, number: u64) -> Option<&MappingSample> {
        self.ours.at(pid, number.saturating_mul(self.page)).map(|(_, mapping)| mapping)
    }

    /// The pages of these that lie in the program's mappings.
    fn in_mappings<'a>(
        &'a self,
        pid: Pid,
        pages: &'a RangeSet<u64>,
    ) -> impl Iterator<Item = std::ops::Range<u64>> + 'a {
        pages.iter().flat_map(move |run| self.ours.parts(pid, run, self.page))
    }

    /// Pages that [`Self::view`] looks at one by one: those of each interval that lie in the program's mappings.
    pub fn pages(&self) -> u64 {
        let rows =
            self.intervals.iter().flat_map(|(pid, rows)| rows.iter().map(move |row| (*pid, row)));
        let size = |(pid, row): (Pid, &Interval)| {
            let written = self.in_mappings(pid, &row.written);
            sum(self.in_mappings(pid, &row.touched).chain(written).map(|run| run.end - run.start))
        };
        sum(rows.map(size))
    }

    /// The kind of each of the program's mappings, by its key. The image is the first file in the address space
    /// that is no library; a little memory without a name that follows a file without a gap is its data.
    fn kinds(&self) -> HashMap<ProcessAddress, &'static str> {
        let mut images: HashMap<Pid, &str> = HashMap::new();
        let mut kinds = HashMap::new();
        let mut before = (Pid(0), 0, "anonymous");
        for (pid, range, mapping) in self.ours.iter() {
            let name = mapping.name.as_deref().unwrap_or("");
            if name.starts_with('/') && !name.contains(".so") {
                images.entry(pid).or_insert(name);
            }
            let kind = match name {
                "[heap]" => "heap",
                "[stack]" => "stack",
                name if images.get(&pid) == Some(&name) => "image",
                name if name.starts_with('/') => "libraries",
                _ if (pid, range.start) == (before.0, before.1) && range.bytes() < 1 << 20 => {
                    before.2
                }
                _ => "anonymous",
            };
            let follows = ["image", "libraries"].contains(&kind);
            before = (pid, range.end, if follows { kind } else { "anonymous" });
            kinds.insert(ProcessAddress::new(pid, range.start), kind);
        }
        kinds
    }

    /// What came of it; nothing, which agrees with nothing, of more than [`MOST`] pages.
    pub fn view(&self) -> ValidationView {
        let mut view = ValidationView::default();
        let kinds = self.kinds();
        if self.pages() > MOST {
            return view;
        }
        for written in [false, true] {
            for (&pid, rows) in &self.intervals {
                self.process(pid, &in_order(rows), written, &kinds, &mut view);
            }
        }
        view.intervals = self.intervals.values().map(|rows| rows.len() as u64).sum();
        view
    }

    fn process(
        &self,
        pid: Pid,
        intervals: &[Interval],
        written: bool,
        kinds: &HashMap<ProcessAddress, &'static str>,
        view: &mut ValidationView,
    ) {
        let expected = self.expected(pid, intervals, written);
        if !written {
            view.on_borders += expected.on_borders;
        }
        let (mut parts, mut differences) = (Tally::default(), Vec::new());
        let told =
            self.in_intervals(pid, intervals, written, &expected, (&mut parts, &mut differences));
        let whole = self.whole(pid, written, kinds, (&expected, &told), &mut differences);
        let (into, total) = match written {
            false => (&mut view.touched, &mut view.touched_in_intervals),
            true => (&mut view.written, &mut view.written_in_intervals),
        };
        for (kind, tally) in whole {
            into.entry(kind).or_default().add(tally);
        }
        total.add(parts);
        let room = SHOWN.saturating_sub(view.differences.len());
        for (missing, number, interval) in differences.into_iter().take(room) {
            let mapping = self.mapping(pid, number);
            view.differences.push(Difference {
                missing,
                written,
                pid,
                address: number.saturating_mul(self.page),
                name: mapping.map_or_else(|| "unknown memory".into(), crate::faults::label),
                interval,
            });
        }
    }

    /// What the emulator's account says of a process's pages, and which of it the intervals do not tell.
    fn expected(&self, pid: Pid, intervals: &[Interval], written: bool) -> Expected {
        let told = |interval: &'_ Interval, number: u64| match written {
            false => interval.touched.contains(&number),
            true => interval.written.contains(&number),
        };
        let mut expected = Expected::default();
        for (at, windows) in &self.windows {
            if at.pid != pid {
                continue;
            }
            let number = at.vpn.0;
            for window in windows.iter().filter(|window| window.write || window.kernel || !written)
            {
                let first = intervals.partition_point(|interval| interval.ended < window.first);
                let mine = first
                    ..intervals.len().min(
                        first
                            + intervals[first..]
                                .partition_point(|interval| interval.from <= window.last),
                    );
                if window.kernel {
                    if !mine.is_empty() {
                        expected.served.entry(number).or_default().insert(mine);
                    }
                    continue;
                }
                if !mine.is_empty() {
                    expected.explained.entry(number).or_default().insert(mine.clone());
                }
                if window.execute {
                    expected.executed.insert(number);
                    continue;
                }
                expected.accessed.insert(number);
                if mine.len() > 1 {
                    expected.on_borders += 1;
                }
                let found = intervals[mine.clone()].iter().any(|interval| told(interval, number));
                if mine.len() == 1 {
                    expected.certain.insert((mine.start, number));
                }
                if !found {
                    expected.missed.insert((mine.start, number));
                }
            }
        }
        expected
    }

    /// Holds what each interval tells against what is expected of it.
    fn in_intervals(
        &self,
        pid: Pid,
        intervals: &[Interval],
        written: bool,
        expected: &Expected,
        (parts, differences): (&mut Tally, &mut Vec<PageDifference>),
    ) -> TouchedPages {
        parts.exact = expected.certain.len() as u64;
        parts.missing = expected.missed.len() as u64;
        let (mut all, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let has = |of: &HashMap<u64, RangeSet<usize>>, number: u64, at: usize| {
            of.get(&number).is_some_and(|intervals| intervals.contains(&at))
        };
        for (at, interval) in intervals.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| intervals.get(before));
            let mut left = interval.kept;
            let told = if written { &interval.written } else { &interval.touched };
            for number in self.in_mappings(pid, told).flatten() {
                all.insert(number);
                if has(&expected.explained, number, at) {
                    continue;
                }
                match self.by(pid, number, interval, written) {
                    _ if has(&expected.served, number, at) => parts.kernel += 1,
                    AccessSource::Kernel => parts.kernel += 1,
                    AccessSource::Emulator => parts.emulator += 1,
                    AccessSource::Around => parts.around += 1,
                    AccessSource::Kept
                        if left > 0 && before.is_none_or(|row| row.touched.contains(&number)) =>
                    {
                        (parts.kept, left) = (parts.kept + 1, left - 1);
                        kept.insert(number);
                    }
                    AccessSource::Program | AccessSource::Kept => {
                        parts.extra += 1;
                        if differences.len() < SHOWN {
                            differences.push((false, number, Some(interval.number)));
                        }
                    }
                }
            }
        }
        let number_of = |at: usize| intervals.get(at).map(|interval| interval.number);
        let missed = expected.missed.iter().take(SHOWN);
        differences.extend(missed.map(|&(at, number)| (true, number, number_of(at))));
        TouchedPages { all, kept }
    }

    /// The pages of the whole run, by the kind of memory: those that are expected against those that were told.
    fn whole(
        &self,
        pid: Pid,
        written: bool,
        kinds: &HashMap<ProcessAddress, &'static str>,
        (expected, TouchedPages { all, kept }): (&Expected, &TouchedPages),
        differences: &mut Vec<PageDifference>,
    ) -> BTreeMap<&'static str, Tally> {
        let mut whole: BTreeMap<&'static str, Tally> = BTreeMap::new();
        let always = Interval {
            number: 0,
            from: 0,
            ended: u64::MAX,
            touched: RangeSet::new(),
            written: RangeSet::new(),
            kept: 0,
        };
        for &number in all.union(&expected.accessed) {
            let Some((start, _)) = self.ours.at(pid, number.saturating_mul(self.page)) else {
                // Memory that nobody told of: told as it is.
                whole.entry("anonymous").or_default().missing += 1;
                differences.push((true, number, None));
                continue;
            };
            let kind = kinds.get(&ProcessAddress::new(pid, start)).copied().unwrap_or("anonymous");
            let tally = whole.entry(kind).or_default();
            match (expected.accessed.contains(&number), all.contains(&number)) {
                (true, true) => tally.exact += 1,
                (true, false) => {
                    (tally.exact, tally.missing) = (tally.exact + 1, tally.missing + 1);
                    differences.push((true, number, None));
                }
                // Code that the emulator has read for the program.
                (false, _) if !written && expected.executed.contains(&number) => {
                    tally.emulator += 1;
                }
                (false, _) if expected.served.contains_key(&number) => tally.kernel += 1,
                (false, _) => match self.by(pid, number, &always, written) {
                    AccessSource::Kernel => tally.kernel += 1,
                    AccessSource::Emulator => tally.emulator += 1,
                    AccessSource::Around => tally.around += 1,
                    AccessSource::Kept if kept.contains(&number) => tally.kept += 1,
                    AccessSource::Program | AccessSource::Kept => {
                        tally.extra += 1;
                        differences.push((false, number, None));
                    }
                },
            }
        }
        whole
    }

    /// Who touched a page in an interval that the program did not: whoever all its faults there are by.
    fn by(&self, pid: Pid, number: u64, interval: &Interval, written: bool) -> AccessSource {
        let faults = self.faults.get(&ProcessPage::new(pid, number)).into_iter().flatten();
        let faults = faults.filter(|fault| fault.time <= interval.ended);
        // Only the kernel makes a page writable without a fault.
        if written && !faults.clone().any(|fault| fault.time >= interval.from) {
            return AccessSource::Kernel;
        }
        let faults = faults.filter(|fault| fault.write || !written);
        // A fault begins some time before its page is there.
        let before = faults
            .clone()
            .filter(|fault| fault.time < interval.from && interval.from - fault.time < IN_PROGRESS);
        let mut inside = faults.filter(|fault| fault.time >= interval.from).peekable();
        if !written && inside.peek().is_none() && self.is_around_a_fault(pid, number, interval) {
            return AccessSource::Around;
        }
        let own = inside.peek().is_some();
        let last = before.max_by_key(|fault| fault.time).filter(|_| !own);
        let mut by = None;
        for fault in inside.chain(last) {
            // The emulator's own code lies in files; what it translates to does not.
            let in_file =
                self.mappings.at(pid, fault.instruction).is_some_and(|(_, (file, _))| *file);
            match (fault.in_kernel, in_file) {
                (true, _) => by = by.or(Some(AccessSource::Kernel)),
                (_, true) => by = by.or(Some(AccessSource::Emulator)),
                _ if own => return AccessSource::Program,
                _ => return AccessSource::Kept,
            }
        }
        by.unwrap_or(AccessSource::Kept)
    }

    /// Whether the kernel may have mapped this page of a file with another that the interval has a fault on.
    fn is_around_a_fault(&self, pid: Pid, number: u64, interval: &Interval) -> bool {
        let address = number.saturating_mul(self.page);
        let Some((range, (_, true))) = self.mappings.whole(pid, address) else { return false };
        let first = number - number % PAGE_TABLE;
        let read = |page: u64| {
            let faults = self.faults.get(&ProcessPage::new(pid, page)).into_iter().flatten();
            let mut inside = faults.filter(|fault| {
                fault.time <= interval.ended
                    && fault.time.saturating_add(IN_PROGRESS) >= interval.from
            });
            page != number && inside.any(|fault| !fault.write)
        };
        let near = (first..first + PAGE_TABLE).map(|page| (page, page.saturating_mul(self.page)));
        let mut near = near.filter(|(_, address)| (range.start..range.end).contains(address));
        near.any(|(page, _)| read(page))
    }
}

/// Intervals of one process in the order of time, each with the moment from which on a window may belong to it.
fn in_order(rows: &[Interval]) -> Vec<Interval> {
    let mut intervals = rows.to_vec();
    intervals.sort_by_key(|interval| interval.ended);
    let mut from = 0;
    for interval in &mut intervals {
        // So far `from` is when it was scanned, from when on the next may begin.
        std::mem::swap(&mut interval.from, &mut from);
    }
    intervals
}

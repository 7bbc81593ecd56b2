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
use pagemill_model::{Access, Event, MappingSample, Nanos, Touched};
use rangemap::RangeSet;

use crate::pages::{Laid, runs};

/// Kinds of memory, in the order of reports.
pub const KINDS: [&str; 5] = ["image", "libraries", "heap", "stack", "anonymous"];

/// How many pages agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages (or pages in intervals) that were accessed for certain.
    pub exact: u64,
    /// Of them, not told.
    pub missing: u64,
    /// Told, and accessed by nobody.
    pub extra: u64,
    /// Told, and accessed by the kernel alone.
    pub kernel: u64,
    /// Told, and accessed by the emulator alone.
    pub emulator: u64,
    /// Told, of a file, and mapped by the kernel around a fault on a page near it.
    pub around: u64,
    /// Told, and kept since the interval before, as its row counts.
    pub kept: u64,
}

/// One page that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Whether the page is missing rather than extra.
    pub missing: bool,
    /// Whether this is about writes.
    pub written: bool,
    /// Process.
    pub pid: u64,
    /// First address of the page.
    pub address: u64,
    /// What lies there.
    pub name: String,
    /// The interval; `None`: in the whole run.
    pub interval: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationView {
    /// Touched pages of the whole run, by [`KINDS`].
    pub touched: BTreeMap<&'static str, Tally>,
    /// Written pages of the whole run, by [`KINDS`].
    pub written: BTreeMap<&'static str, Tally>,
    /// Touched pages in intervals.
    pub touched_in_intervals: Tally,
    /// Written pages in intervals.
    pub written_in_intervals: Tally,
    /// Intervals looked at.
    pub intervals: u64,
    /// Windows that may belong to more than one interval.
    pub on_borders: u64,
    /// The first pages that differ.
    pub differences: Vec<Difference>,
}

impl ValidationView {
    /// Whether nothing is missing and nothing extra.
    pub fn agrees(&self) -> bool {
        let whole = self.touched.values().chain(self.written.values());
        let parts = [&self.touched_in_intervals, &self.written_in_intervals];
        self.intervals > 0 && whole.chain(parts).all(|tally| tally.missing == 0 && tally.extra == 0)
    }
}

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
    windows: HashMap<(u64, u64), Vec<Window>>,
    ours: Laid<MappingSample>,
    intervals: BTreeMap<u64, Vec<Interval>>,
    faults: HashMap<(u64, u64), Vec<Fault>>,
    /// Of the recording by faults: whether each is of a file, and whether faults there may map more than a page.
    mappings: Laid<(bool, bool)>,
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
struct Told {
    all: BTreeSet<u64>,
    /// Of these, what some interval may have kept only.
    kept: BTreeSet<u64>,
}

/// A page that differs: whether it is missing, its number, and the interval's if it is of one.
type Differs = (bool, u64, Option<u64>);

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
enum By {
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
            ours: Laid::default(),
            intervals: BTreeMap::new(),
            faults: HashMap::new(),
            mappings: Laid::default(),
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

    fn key(&self, row: &Access) -> (u64, u64) {
        (row.pid.unwrap_or(0), row.address.unwrap_or(0) / self.page)
    }

    fn interval(&mut self, row: &Touched) {
        let page = self.page;
        let numbers = |starts: &Option<Vec<u64>>, pages: &Option<Vec<u64>>| -> RangeSet<u64> {
            runs(starts, pages, page).collect()
        };
        let intervals = self.intervals.entry(row.pid.unwrap_or(0)).or_default();
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
    fn mapping(&self, pid: u64, number: u64) -> Option<&MappingSample> {
        self.ours.at(pid, number.saturating_mul(self.page)).map(|(_, mapping)| mapping)
    }

    /// The pages of these that lie in the program's mappings.
    fn in_mappings<'a>(
        &'a self,
        pid: u64,
        pages: &'a RangeSet<u64>,
    ) -> impl Iterator<Item = std::ops::Range<u64>> + 'a {
        pages.iter().flat_map(move |run| self.ours.parts(pid, run, self.page))
    }

    /// Pages that [`Self::view`] looks at one by one: those of each interval that lie in the program's mappings.
    pub fn pages(&self) -> u64 {
        let rows =
            self.intervals.iter().flat_map(|(pid, rows)| rows.iter().map(move |row| (*pid, row)));
        let size = |(pid, row): (u64, &Interval)| {
            self.in_mappings(pid, &row.touched)
                .chain(self.in_mappings(pid, &row.written))
                .fold(0_u64, |sum, run| sum.saturating_add(run.end - run.start))
        };
        rows.map(size).fold(0, u64::saturating_add)
    }

    /// The kind of each of the program's mappings, by its key. The image is the first file in the address space
    /// that is no library; a little memory without a name that follows a file without a gap is its data.
    fn kinds(&self) -> HashMap<(u64, u64), &'static str> {
        let mut images: HashMap<u64, &str> = HashMap::new();
        let mut kinds = HashMap::new();
        let mut before = (0, 0, "anonymous");
        for (pid, start, end, mapping) in self.ours.iter() {
            let name = mapping.name.as_deref().unwrap_or("");
            let size = end - start;
            if name.starts_with('/') && !name.contains(".so") {
                images.entry(pid).or_insert(name);
            }
            let kind = match name {
                "[heap]" => "heap",
                "[stack]" => "stack",
                name if images.get(&pid) == Some(&name) => "image",
                name if name.starts_with('/') => "libraries",
                _ if (pid, start) == (before.0, before.1) && size < 1 << 20 => before.2,
                _ => "anonymous",
            };
            let follows = ["image", "libraries"].contains(&kind);
            before = (pid, end, if follows { kind } else { "anonymous" });
            kinds.insert((pid, start), kind);
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
        pid: u64,
        intervals: &[Interval],
        written: bool,
        kinds: &HashMap<(u64, u64), &'static str>,
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
    fn expected(&self, pid: u64, intervals: &[Interval], written: bool) -> Expected {
        let told = |interval: &'_ Interval, number: u64| match written {
            false => interval.touched.contains(&number),
            true => interval.written.contains(&number),
        };
        let mut expected = Expected::default();
        for (&(owner, number), windows) in &self.windows {
            if owner != pid {
                continue;
            }
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
        pid: u64,
        intervals: &[Interval],
        written: bool,
        expected: &Expected,
        (parts, differences): (&mut Tally, &mut Vec<Differs>),
    ) -> Told {
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
                    By::Kernel => parts.kernel += 1,
                    By::Emulator => parts.emulator += 1,
                    By::Around => parts.around += 1,
                    By::Kept
                        if left > 0 && before.is_none_or(|row| row.touched.contains(&number)) =>
                    {
                        (parts.kept, left) = (parts.kept + 1, left - 1);
                        kept.insert(number);
                    }
                    By::Program | By::Kept => {
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
        Told { all, kept }
    }

    /// The pages of the whole run, by the kind of memory: those that are expected against those that were told.
    fn whole(
        &self,
        pid: u64,
        written: bool,
        kinds: &HashMap<(u64, u64), &'static str>,
        (expected, Told { all, kept }): (&Expected, &Told),
        differences: &mut Vec<Differs>,
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
            let kind = kinds.get(&(pid, start)).copied().unwrap_or("anonymous");
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
                    By::Kernel => tally.kernel += 1,
                    By::Emulator => tally.emulator += 1,
                    By::Around => tally.around += 1,
                    By::Kept if kept.contains(&number) => tally.kept += 1,
                    By::Program | By::Kept => {
                        tally.extra += 1;
                        differences.push((false, number, None));
                    }
                },
            }
        }
        whole
    }

    /// Who touched a page in an interval that the program did not: whoever all its faults there are by.
    fn by(&self, pid: u64, number: u64, interval: &Interval, written: bool) -> By {
        let faults = self.faults.get(&(pid, number)).into_iter().flatten();
        let faults = faults.filter(|fault| fault.time <= interval.ended);
        // Only the kernel makes a page writable without a fault.
        if written && !faults.clone().any(|fault| fault.time >= interval.from) {
            return By::Kernel;
        }
        let faults = faults.filter(|fault| fault.write || !written);
        // A fault begins some time before its page is there.
        let before = faults
            .clone()
            .filter(|fault| fault.time < interval.from && interval.from - fault.time < IN_PROGRESS);
        let mut inside = faults.filter(|fault| fault.time >= interval.from).peekable();
        if !written && inside.peek().is_none() && self.is_around_a_fault(pid, number, interval) {
            return By::Around;
        }
        let own = inside.peek().is_some();
        let last = before.max_by_key(|fault| fault.time).filter(|_| !own);
        let mut by = None;
        for fault in inside.chain(last) {
            // The emulator's own code lies in files; what it translates to does not.
            let in_file =
                self.mappings.at(pid, fault.instruction).is_some_and(|(_, (file, _))| *file);
            match (fault.in_kernel, in_file) {
                (true, _) => by = by.or(Some(By::Kernel)),
                (_, true) => by = by.or(Some(By::Emulator)),
                _ if own => return By::Program,
                _ => return By::Kept,
            }
        }
        by.unwrap_or(By::Kept)
    }

    /// Whether the kernel may have mapped this page of a file with another that the interval has a fault on.
    fn is_around_a_fault(&self, pid: u64, number: u64, interval: &Interval) -> bool {
        let address = number.saturating_mul(self.page);
        let Some((start, end, (_, true))) = self.mappings.whole(pid, address) else { return false };
        let first = number - number % PAGE_TABLE;
        let read = |page: u64| {
            let faults = self.faults.get(&(pid, page)).into_iter().flatten();
            let mut inside = faults.filter(|fault| {
                fault.time <= interval.ended
                    && fault.time.saturating_add(IN_PROGRESS) >= interval.from
            });
            page != number && inside.any(|fault| !fault.write)
        };
        let near = (first..first + PAGE_TABLE).map(|page| (page, page.saturating_mul(self.page)));
        let mut near = near.filter(|(_, address)| (start..end).contains(address));
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

impl Tally {
    fn add(&mut self, other: Self) {
        self.exact += other.exact;
        self.missing += other.missing;
        self.extra += other.extra;
        self.kernel += other.kernel;
        self.emulator += other.emulator;
        self.around += other.around;
        self.kept += other.kept;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;
    const START: u64 = 0x10_0000;

    fn mapping() -> Event {
        Event::Mapping(Box::new(MappingSample {
            pid: Some(1),
            start: Some(START),
            end: Some(START + 64 * PAGE),
            name: Some("[heap]".into()),
            ..MappingSample::default()
        }))
    }

    fn access(page: u64, time: u64, flags: u64) -> Event {
        Event::Access(Box::new(Access {
            time: Nanos(time),
            last: Some(Nanos(time + 1)),
            pid: Some(1),
            address: Some(START + page * PAGE),
            flags: Some(flags),
            ..Access::default()
        }))
    }

    /// The interval from 100 n to 100 (n + 1), scanned ten before its end.
    fn interval(number: u64, touched: &[u64], written: &[u64]) -> Event {
        let starts = |pages: &[u64]| Some(pages.iter().map(|page| START + page * PAGE).collect());
        Event::Touched(Box::new(Touched {
            time: Nanos(100 * (number + 1)),
            pid: Some(1),
            number: Some(number),
            began: Some(Nanos(100 * number)),
            scanned: Some(Nanos(100 * number + 90)),
            starts: starts(touched),
            pages: Some(vec![1; touched.len()]),
            written_starts: starts(written),
            written_pages: Some(vec![1; written.len()]),
            kept: None,
        }))
    }

    fn view(exact: &[Event], faults: &[Event]) -> ValidationView {
        let mut validation = Validation::new(PAGE);
        validation.exact(&mapping());
        exact.iter().for_each(|event| validation.exact(event));
        faults.iter().for_each(|event| validation.faults(event));
        validation.view()
    }

    #[test]
    fn an_interval_that_says_too_much_ends_and_none_at_all_agrees_with_nothing() {
        let Event::Touched(mut row) = interval(0, &[0], &[]) else { panic!("no row") };
        row.pages = Some(vec![u64::MAX]);
        let mut validation = Validation::new(PAGE);
        let Event::Mapping(mut whole) = mapping() else { panic!("no row") };
        whole.end = Some(u64::MAX);
        validation.exact(&Event::Mapping(whole));
        for _ in 0..3 {
            validation.faults(&Event::Touched(row.clone()));
        }
        assert!(validation.pages() > MOST && !validation.view().agrees());
        assert!(!view(&[], &[]).agrees(), "a recording without an interval");
    }

    #[test]
    fn a_page_that_the_row_says_was_kept_is_excused_as_often_as_it_says() {
        let mut second = interval(1, &[1, 2, 3], &[]);
        let exact = [access(1, 50, 0), access(2, 50, 0)];
        // The third was not told before, and no row speaks of two.
        for (kept, extra) in [(0, 3), (1, 2), (2, 1), (9, 1)] {
            if let Event::Touched(row) = &mut second {
                row.kept = Some(kept);
            }
            let view = view(&exact, &[interval(0, &[1, 2], &[]), second.clone()]);
            let parts = view.touched_in_intervals;
            assert_eq!((parts.kept, parts.extra), (3 - extra, extra), "{kept}");
        }
        // The fault of the interval before is none of this one's; with one here it was touched.
        let told = [interval(0, &[1, 2], &[]), second.clone(), access(1, 80, 0)];
        assert_eq!(view(&exact, &told).touched_in_intervals.kept, 2);
        let told = [interval(0, &[1, 2], &[]), second, access(1, 150, 0)];
        assert_eq!(view(&exact, &told).touched_in_intervals.kept, 1);
    }

    #[test]
    fn what_a_fork_left_is_kept_in_the_first_interval_and_in_the_whole() {
        let mut first = interval(0, &[1, 2], &[]);
        for (kept, extra) in [(0, 1), (1, 0)] {
            if let Event::Touched(row) = &mut first {
                row.kept = Some(kept);
            }
            let view = view(&[access(1, 50, 0)], &[first.clone()]);
            let (parts, whole) = (view.touched_in_intervals, view.touched["heap"]);
            assert_eq!((parts.kept, parts.extra), (kept, extra));
            assert_eq!((whole.kept, whole.extra, whole.exact), (kept, extra, 1));
        }
    }

    /// A process that executes another program has other memory where the first had its own.
    #[test]
    fn what_is_mapped_later_is_in_the_place_of_what_was_there() {
        let told = [interval(0, &[1, 40], &[])];
        let mut validation = Validation::new(PAGE);
        let mut older = MappingSample {
            pid: Some(1),
            start: Some(START + 30 * PAGE),
            end: Some(START + 35 * PAGE),
            ..MappingSample::default()
        };
        validation.exact(&Event::Mapping(Box::new(older.clone())));
        (older.start, older.end) = (Some(START + 39 * PAGE), Some(START + 40 * PAGE));
        validation.exact(&Event::Mapping(Box::new(older)));
        validation.exact(&mapping());
        for event in [access(1, 50, 0), access(40, 50, 0)] {
            validation.exact(&event);
        }
        told.iter().for_each(|event| validation.faults(event));
        let view = validation.view();
        assert!(view.agrees() && view.touched["heap"].exact == 2, "{view:?}");
    }

    /// The kernel takes a page for a futex without a fault, which makes it writable.
    #[test]
    fn a_page_told_as_written_that_had_no_fault_was_the_kernels_if_the_program_touched_it() {
        let faults = [interval(0, &[1], &[1]), interval(1, &[1], &[1]), interval(2, &[], &[])];
        let exact = |second| [access(1, 50, Flags::WRITE), access(1, 150, second)];
        assert!(view(&exact(Flags::WRITE), &faults).agrees());
        let read = view(&exact(0), &faults);
        assert!(read.agrees() && read.written_in_intervals.kernel == 1, "{read:?}");
        // With a fault there, it is known that it was a read.
        let told = [&faults[..], &[access(1, 150, 0)]].concat();
        assert_eq!(view(&exact(0), &told).written_in_intervals.extra, 1);
        assert_eq!(view(&exact(0)[..1], &faults).touched_in_intervals.extra, 1);
    }

    #[test]
    fn what_agrees_agrees_and_an_access_during_a_scan_may_be_in_either_interval() {
        let exact =
            [access(1, 50, 0), access(1, 60, Flags::WRITE), access(2, 95, 0), access(3, 150, 0)];
        for (first, second) in [(vec![1, 2], vec![3]), (vec![1], vec![2, 3])] {
            let view = view(&exact, &[interval(0, &first, &[1]), interval(1, &second, &[])]);
            assert!(view.agrees(), "{view:?}");
            assert_eq!((view.intervals, view.on_borders), (2, 1));
            assert_eq!(view.touched["heap"].exact, 3);
            assert_eq!(view.touched_in_intervals.exact, 2);
        }
    }

    #[test]
    fn what_the_kernel_and_the_emulator_touched_is_excused_if_faults_say_so() {
        let told = interval(0, &[1, 2], &[]);
        let mut by_file = access(2, 20, 0);
        if let Event::Access(row) = &mut by_file {
            row.instruction = Some(0x7000);
        }
        let file = Event::Mapping(Box::new(MappingSample {
            pid: Some(1),
            start: Some(0x7000),
            end: Some(0x8000),
            name: Some("/usr/bin/emulator".into()),
            ..MappingSample::default()
        }));
        let excused = [file, access(1, 10, Flags::IN_KERNEL), by_file, told.clone()];
        let view_of = |faults: &[Event]| view(&[], faults);
        let heap = view_of(&excused).touched["heap"];
        assert_eq!((heap.kernel, heap.emulator, heap.extra), (1, 1, 0));
        assert!(view_of(&excused).agrees());
        assert!(!view_of(&[told]).agrees());
    }

    #[test]
    fn a_page_of_a_file_without_a_fault_near_one_with_a_fault_was_mapped_around_it() {
        let file = |name: &str, permissions: &str| {
            Event::Mapping(Box::new(MappingSample {
                pid: Some(1),
                start: Some(0x20_0000 - 64 * PAGE),
                end: Some(0x20_0000 + 64 * PAGE),
                name: Some(name.into()),
                permissions: Some(permissions.into()),
                ..MappingSample::default()
            }))
        };
        // The page table of the first two ends where the third begins.
        let first = (0x20_0000 - START) / PAGE - 2;
        let told = [interval(0, &[first, first + 1, first + 2], &[]), access(first, 50, 0)];
        let view_of = |name: &str, permissions: &str, told: &[Event]| {
            let mut validation = Validation::new(PAGE);
            validation.exact(&file(name, permissions));
            validation.exact(&access(first, 50, 0));
            validation.faults(&file(name, permissions));
            told.iter().for_each(|event| validation.faults(event));
            validation.view().touched_in_intervals
        };
        let of_file = view_of("/lib/data", "r--s", &told);
        assert_eq!((of_file.exact, of_file.around, of_file.extra), (1, 1, 1), "{of_file:?}");
        for (name, permissions) in
            [("[heap]", "r--s"), ("/lib/data", "r--p"), ("/dev/shm/x", "rw-s")]
        {
            assert_eq!(
                view_of(name, permissions, &told).extra,
                2,
                "{name} {permissions} is watched"
            );
        }
        assert_eq!(
            view_of("/lib/data", "r--s", &told[..1]).extra,
            2,
            "without a fault there is none"
        );
    }

    #[test]
    fn a_page_that_a_call_about_a_futex_has_is_the_kernels_for_as_long_as_the_call_lasts() {
        let told = [interval(0, &[1], &[1]), interval(1, &[1], &[1]), interval(2, &[1], &[])];
        let mut call = access(1, 120, Flags::IN_KERNEL);
        if let Event::Access(row) = &mut call {
            row.last = Some(Nanos(180));
        }
        let view = view(&[access(1, 50, Flags::WRITE), call], &told);
        assert_eq!((view.touched_in_intervals.kernel, view.written_in_intervals.kernel), (1, 1));
        assert_eq!((view.touched_in_intervals.extra, view.written_in_intervals.extra), (1, 0));
    }

    /// Accesses of a run, and what a recording by faults has of them.
    fn recorded(accesses: &[(u64, u64, bool)]) -> (Vec<Event>, Vec<Event>) {
        let mut sets = vec![(BTreeSet::new(), BTreeSet::new()); 8];
        let mut exact = Vec::new();
        for &(page, time, write) in accesses {
            exact.push(access(page, time, if write { Flags::WRITE } else { 0 }));
            let set = &mut sets[(time / 100) as usize];
            set.0.insert(page);
            if write {
                set.1.insert(page);
            }
        }
        let faults = sets.iter().enumerate().map(|(number, (touched, written))| {
            let list = |set: &BTreeSet<u64>| set.iter().copied().collect::<Vec<u64>>();
            interval(number as u64, &list(touched), &list(written))
        });
        (exact, faults.collect())
    }

    proptest! {
        #[test]
        fn taking_out_a_page_adding_one_or_making_a_write_a_read_is_noticed(
            // Away from ends and scans, so that every window belongs to one interval.
            accesses in prop::collection::vec((0_u64..32, 0_u64..8, 1_u64..80, any::<bool>()), 1..60),
            pick in any::<prop::sample::Index>(),
        ) {
            let accesses: Vec<(u64, u64, bool)> = accesses
                .into_iter()
                .map(|(page, interval, at, write)| (page, interval * 100 + at, write))
                .collect();
            let (exact, faults) = recorded(&accesses);
            prop_assert!(view(&exact, &faults).agrees());
            let (page, time, write) = accesses[pick.index(accesses.len())];
            let change = |change: &dyn Fn(&mut Touched)| {
                let mut faults = faults.clone();
                if let Event::Touched(row) = &mut faults[(time / 100) as usize] {
                    change(row);
                }
                view(&exact, &faults)
            };
            let at = |starts: &[u64]| starts.iter().position(|start| *start == START + page * PAGE);
            let without = change(&|row| {
                let (Some(starts), Some(pages)) = (&mut row.starts, &mut row.pages) else { return };
                if let Some(at) = at(starts) {
                    starts.remove(at);
                    pages.remove(at);
                }
            });
            prop_assert_eq!(without.touched_in_intervals.missing, 1);
            let more = change(&|row| {
                if let (Some(starts), Some(pages)) = (&mut row.starts, &mut row.pages) {
                    starts.push(START + 40 * PAGE);
                    pages.push(1);
                }
            });
            prop_assert_eq!((more.touched_in_intervals.extra, more.touched["heap"].extra), (1, 1));
            if write {
                let read = change(&|row| {
                    let (Some(starts), Some(pages)) = (&mut row.written_starts, &mut row.written_pages) else { return };
                    if let Some(at) = at(starts) {
                        starts.remove(at);
                        pages.remove(at);
                    }
                });
                prop_assert!(read.written_in_intervals.missing > 0);
            }
        }
    }
}

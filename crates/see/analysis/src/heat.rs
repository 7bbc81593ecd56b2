//! Who accessed which data structure when: the heat map of a program's memory.
//!
//! A *cell* is a part of an object in a stretch of time. Objects are cut into at most [`SLICES`] parts of whole
//! pages, time into fewer than [`STEPS`] steps, which double in length when there would be more: a recording of
//! any length folds into a table of bounded size. What is kept of a cell is a *layer* each: reads, writes,
//! pages touched for the first time, and by which threads.
//!
//! ```text
//!  access ──► object (objects.rs), part ──┐
//!  time   ──► step ───────────────────────┴─► cell
//! ```
//!
//! A recording of accesses one by one tells the first one to a page in each interval: the page may have been used until
//! the interval ended. So the last touch of a page is told by the step in which its interval ended, as is its last
//! write. Touches that come only near the end, after most of the page's life, are not its last use: `residency.rs`.
//! What a process touched is given back when it ends or executes another program: `heat/programs.rs`.
//!
//! Always true: each access is in one cell, so layers add up to the totals; doubling keeps all sums; an object's
//! pages count once however often they were touched.

use std::cell::Cell as Slot;
use std::collections::HashMap;
use std::ops::Range;

use pagemill_model::fault::Flags;
use pagemill_model::{Access, Allocation, Event, Fold, Nanos, Pid, Touched};

use crate::addresses::{ProcessAddress, ProcessPage};
use crate::objects::{Identity, KERNEL, Names, ObjectKind, ObjectLocation, Symbols};
use crate::pages::runs;
use crate::recent::{Recent, Table};
use crate::residency::MAPPED;
use pagemill_model::sums::{add, sum};

mod fill;
mod live;
mod page;
mod programs;
#[cfg(test)]
mod tests;
mod view;

use live::Live;
use page::PageUse;
use programs::Programs;
pub use view::{Cell, Heat, HeatView, LastUse, LineHeat, ObjectHeat};

/// Parts of an object at most.
pub const SLICES: u64 = 32;
/// Steps of time are fewer than this.
pub const STEPS: u64 = 1024;
/// Objects that are kept apart; the rest is one.
pub const OBJECTS: usize = 400;
/// Lines of code that are kept.
pub const LINES: usize = 400;

/// How much is looked at. More is told by nobody but who made a recording up; it is left out, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Pages that are looked at one by one where pages stand for accesses, over all intervals.
    pub looks: u64,
    /// Pages that are told apart.
    pub pages: usize,
}

impl Default for Bounds {
    /// 4 TiB, and 128 GiB, in pages of 4 KiB.
    fn default() -> Self {
        Self { looks: 1 << 30, pages: 1 << 25 }
    }
}

/// In how many slices an object is looked at, and the bytes of each.
struct Slices {
    count: u64,
    bytes: u64,
}

/// Folds accesses, mappings and allocations into a [`HeatView`].
#[derive(Debug)]
pub struct HeatFold<S> {
    names: Names<S>,
    started: Nanos,
    page: u64,
    /// Accesses are told one by one; else pages stand for them.
    events: bool,
    step: u64,
    last: u64,
    /// When the latest access was, or memory was taken or given back last, ns since the recording began.
    latest: u64,
    /// The program was seen to end.
    ended: bool,
    cells: Recent<(usize, u64, u64), Heat>,
    pages: Table<(usize, ProcessPage), PageUse>,
    sizes: Recent<usize, u64>,
    /// Reads and writes of an object by an instruction.
    lines: Recent<(usize, ProcessAddress), (u64, u64)>,
    threads: Recent<u64, Option<usize>>,
    live: Table<Pid, Live>,
    programs: Programs,
    order: Vec<u64>,
    working_set: Vec<u64>,
    /// When the last interval ended that holds the step, ns since the recording began; 0 where none does.
    used_until: Vec<u64>,
    accesses: u64,
    bounds: Bounds,
    /// Pages of rows that were looked at one by one.
    looks: u64,
    /// Pages of rows that were not.
    left_out: u64,
    /// First byte and location of the access before: often the same.
    before: Slot<Option<(ProcessAddress, ObjectLocation)>>,
}

impl<S: Symbols> HeatFold<S> {
    /// Nothing yet. `events`: whether the recording tells accesses one by one; else pages up to `bounds` stand for
    /// them.
    pub fn new(started: Nanos, page: u64, events: bool, bounds: Bounds, symbols: S) -> Self {
        Self {
            names: Names::new(symbols),
            started,
            page: page.max(1),
            events,
            step: 1_000_000,
            last: 0,
            latest: 0,
            ended: false,
            cells: Recent::default(),
            pages: Table::default(),
            sizes: Recent::default(),
            lines: Recent::default(),
            threads: Recent::default(),
            live: Table::default(),
            programs: Programs::default(),
            order: Vec::new(),
            working_set: Vec::new(),
            used_until: Vec::new(),
            accesses: 0,
            bounds,
            looks: 0,
            left_out: 0,
            before: Slot::new(None),
        }
    }

    /// The program was seen to end: what it did last it did then, however long its recorder took to tell of it.
    pub fn ended(&mut self) {
        self.ended = true;
    }

    /// The step of a moment; doubles steps until it is one.
    fn step_of(&mut self, time: Nanos) -> u64 {
        let since = time.since(self.started).0;
        while since / self.step >= STEPS {
            self.step *= 2;
            let cells = std::mem::take(&mut self.cells);
            for ((object, slice, step), heat) in cells.iter() {
                self.cells.of((*object, *slice, step / 2)).add(heat);
            }
            for steps in [&mut self.working_set, &mut self.used_until] {
                let pairs = steps.chunks(2);
                *steps = pairs.map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
            }
            self.last /= 2;
        }
        let step = since / self.step;
        self.last = self.last.max(step);
        step
    }

    fn thread(&mut self, tid: u64) -> usize {
        let (threads, order) = (&mut self.threads, &mut self.order);
        *threads.of(tid).get_or_insert_with(|| {
            order.push(tid);
            order.len() - 1
        })
    }

    fn place(&mut self, pid: Pid, address: u64) -> ObjectLocation {
        if let Some((start, place)) = self.before.get()
            && start.pid == pid
            && let Some(offset) = address.checked_sub(start.address)
            && offset < place.size
        {
            return ObjectLocation { offset, ..place };
        }
        let place = self.names.objects.at(pid, address);
        // A mapping may hold objects of better names, and offset 0 may be in front of an allocation.
        let identity = &self.names.objects.identities()[place.object];
        if place.offset > 0 && !matches!(identity, Identity::Mapping(_)) {
            let start = ProcessAddress::new(pid, address - place.offset);
            self.before.set(Some((start, place)));
        }
        place
    }

    /// The page that an address of an object lies in.
    fn page_of(&self, object: usize, pid: Pid, address: u64) -> (usize, ProcessPage) {
        let owner = self.names.objects.owner(object, pid);
        (object, ProcessPage::new(owner, address / self.page))
    }

    fn slices(&self, size: u64) -> Slices {
        let pages = size.div_ceil(self.page).max(1);
        let each = pages.div_ceil(SLICES);
        Slices { count: pages.div_ceil(each), bytes: each.saturating_mul(self.page) }
    }

    fn access(&mut self, row: &Access) {
        let (pid, address) = (Pid::told(row.pid.unwrap_or(0)), row.address.unwrap_or(0));
        let flags = Flags(row.flags.unwrap_or(0));
        let thread = self.thread(row.tid.unwrap_or(0));
        let write = flags.has(Flags::WRITE);
        // A row may stand for many accesses of one kind.
        let times = row.count.unwrap_or(1);
        if self.pages.len() >= self.bounds.pages {
            let object = self.place(pid, address).object;
            if !self.pages.contains_key(&self.page_of(object, pid, address)) {
                return add(&mut self.left_out, 1);
            }
        }
        let object = self.count((row.time, row.time), pid, address, thread, (write, times));
        let line = if flags.has(Flags::IN_KERNEL) { KERNEL } else { row.instruction.unwrap_or(0) };
        let counts = self.lines.of((object, ProcessAddress::new(pid, line)));
        add(if write { &mut counts.1 } else { &mut counts.0 }, times);
    }

    /// Memory was taken from the allocator, or given back to it.
    fn allocation(&mut self, row: &Allocation) {
        let (Some(pid), Some(start)) = (row.pid.map(Pid::told), row.address) else { return };
        let before = self.names.objects.allocated(pid, start);
        let bytes = before.map_or(0, |(end, _)| end.saturating_sub(start));
        if let Some((end, object)) = before
            && row.size.is_none()
        {
            self.given_back(object, pid, start..end, row.time);
        }
        let since = row.time.since(self.started).0;
        self.latest = self.latest.max(since);
        self.live.entry(pid).or_default().changed(since, bytes, row.size.unwrap_or(0));
    }

    /// Memory of an object was given back: the pages that it lies in, and from [`MAPPED`] on to the system.
    fn given_back(&mut self, object: usize, pid: Pid, bytes: Range<u64>, time: Nanos) {
        let numbers = bytes.start / self.page..bytes.end.div_ceil(self.page);
        let unmapped = match bytes.end.saturating_sub(bytes.start) >= MAPPED {
            true => bytes.start.div_ceil(self.page)..bytes.end / self.page,
            false => 0..0,
        };
        let (asked, known) = (numbers.end.saturating_sub(numbers.start), self.pages.len() as u64);
        // Who frees as often as it accesses would have all pages looked at each time.
        add(&mut self.looks, asked.min(known));
        if self.looks > self.bounds.looks {
            return add(&mut self.left_out, asked.min(known));
        }
        let since = time.since(self.started).0;
        if asked > known {
            // Most of what was asked for was never touched.
            for ((owner, at), page) in &mut self.pages {
                if *owner == object && at.pid == pid && numbers.contains(&at.vpn.0) {
                    page.freed(since, unmapped.contains(&at.vpn.0));
                }
            }
            return;
        }
        for number in numbers {
            if let Some(page) = self.pages.get_mut(&(object, ProcessPage::new(pid, number))) {
                page.freed(since, unmapped.contains(&number));
            }
        }
    }

    /// Counts accesses of one kind, from when on they may have been and when they were seen, whether they write and how
    /// many they are, and says to which object.
    fn count(
        &mut self,
        (began, time): (Nanos, Nanos),
        pid: Pid,
        address: u64,
        thread: usize,
        (write, times): (bool, u64),
    ) -> usize {
        let step = self.step_of(time);
        let ObjectLocation { object, offset, size } = self.place(pid, address);
        let known = self.sizes.of(object);
        *known = size.max(*known);
        let Slices { count, bytes } = self.slices(size);
        let slice = (offset / bytes).min(count - 1);
        let since = time.since(self.started).0;
        self.latest = self.latest.max(since);
        let page = self.pages.entry(self.page_of(object, pid, address));
        let mut first = 0;
        let page = page.or_insert_with(|| {
            first = 1;
            PageUse::begin(thread, since)
        });
        page.touch(began.since(self.started).0, since, write);
        add(&mut self.accesses, times);
        self.cells.of((object, slice, step)).add(&Heat {
            reads: if write { 0 } else { times },
            writes: if write { times } else { 0 },
            first,
            threads: 1 << thread.min(63),
        });
        object
    }

    fn touched(&mut self, row: &Touched) {
        let step = self.step_of(row.time) as usize;
        let pid = Pid::told(row.pid.unwrap_or(0));
        self.programs.interval(pid, row, self.started);
        let page = self.page;
        let size = sum(runs(&row.starts, &row.pages, page).map(|run| run.end - run.start));
        if self.working_set.len() <= step {
            self.working_set.resize(step + 1, 0);
        }
        self.working_set[step] = self.working_set[step].max(size);
        if self.events {
            // The end is another interval's beginning.
            let until = row.time.since(self.started).0;
            let began = row.began.unwrap_or(row.time).since(self.started).0 / self.step;
            let steps = (began as usize).min(step)..step.max(began as usize + 1);
            self.used_until.resize(self.used_until.len().max(steps.end), 0);
            self.used_until[steps].iter_mut().for_each(|known| *known = until.max(*known));
            return;
        }
        let thread = self.thread(pid.into());
        let touched = runs(&row.starts, &row.pages, page).map(|run| (run, false));
        let written = runs(&row.written_starts, &row.written_pages, page).map(|run| (run, true));
        for (run, write) in touched.chain(written) {
            let end = run.end;
            for number in run {
                let Bounds { looks, pages } = self.bounds;
                if self.looks >= looks || self.pages.len() >= pages {
                    add(&mut self.left_out, end - number);
                    break;
                }
                self.looks += 1;
                let when = (row.began.unwrap_or(row.time), row.time);
                self.count(when, pid, number * page, thread, (write, 1));
            }
        }
    }

    /// Name, kind and detail of each object; a stack is named by who touched most of it first.
    fn named(&self) -> Vec<(String, ObjectKind, Vec<String>)> {
        let mut owners: HashMap<usize, HashMap<usize, u64>> = HashMap::new();
        for ((object, ..), first) in &self.pages {
            if matches!(self.names.objects.identities()[*object], Identity::Stack(..)) {
                *owners.entry(*object).or_default().entry(first.thread()).or_default() += 1;
            }
        }
        let owner = |object: usize| {
            let most =
                owners.get(&object)?.iter().max_by_key(|(thread, pages)| (**pages, **thread))?;
            self.order.get(*most.0)
        };
        let name = |(object, identity): (usize, &Identity)| {
            let (name, kind, detail) = self.names.of(identity);
            match (kind, owner(object)) {
                (ObjectKind::Stack, Some(tid)) => (format!("stack of thread {tid}"), kind, detail),
                _ => (name, kind, detail),
            }
        };
        self.names.objects.identities().iter().enumerate().map(name).collect()
    }
}

impl<S: Symbols> Fold for HeatFold<S> {
    type View = HeatView;

    fn event(&mut self, event: &Event) {
        match event {
            Event::Access(row) => self.access(row),
            Event::Touched(row) => self.touched(row),
            Event::Mapping(_) | Event::Allocation(_) => {
                if let Event::Allocation(row) = event {
                    self.allocation(row);
                }
                self.names.event(event);
                self.before.set(None);
            }
            _ => {}
        }
    }

    fn view(&self) -> HeatView {
        self.filled()
    }
}

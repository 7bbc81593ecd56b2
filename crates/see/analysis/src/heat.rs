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
//! Always true: each access is in one cell, so layers add up to the totals; doubling keeps all sums; an object's
//! pages count once however often they were touched.

use std::cell::Cell as Slot;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use pagemill_model::fault::Flags;
use pagemill_model::{Access, Allocation, Bytes, Event, Fold, Nanos, Touched};
use serde::{Deserialize, Serialize};

use crate::objects::{Identity, KERNEL, Kind, Names, Place, Symbols};
use crate::pages::runs;
use crate::residency::{self, Kept, MAPPED, Resident, SparseSite};
use crate::sums::{add, sum};

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

/// What happened in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heat {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Pages that nobody had touched before.
    pub first: u64,
    /// The threads, one bit each by their number in [`HeatView::threads`]; the last bit stands for all from there on.
    pub threads: u64,
}

impl Heat {
    fn add(&mut self, other: &Self) {
        add(&mut self.reads, other.reads);
        add(&mut self.writes, other.writes);
        add(&mut self.first, other.first);
        self.threads |= other.threads;
    }

    /// Reads and writes.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// A cell: part, step, and what happened.
pub type Cell = (u64, u64, Heat);

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectHeat {
    /// What it is called.
    pub name: String,
    /// `global`, `allocation`, `stack` or `mapping`.
    pub kind: String,
    /// For an allocation, who asked for it, innermost first; for a global, its file.
    pub detail: Vec<String>,
    /// Bytes of the largest that has this name; 0 where that is not known.
    pub bytes: u64,
    /// Pages that were touched.
    pub pages: u64,
    /// Of them, written.
    pub written: u64,
    /// All of its cells together.
    pub total: Heat,
    /// Pages that each thread touched first: number of the thread, pages; the most first.
    pub first_by: Vec<(usize, u64)>,
    /// Lines of code that accessed it most: number in [`HeatView::lines`], reads, writes.
    pub lines: Vec<(usize, u64, u64)>,
    /// Parts that it is cut into.
    pub slices: u64,
    /// What happened in it, by part and step.
    pub cells: Vec<Cell>,
    /// Its pages that are resident at the end and hold something, by the step in which they were touched last.
    #[serde(default)]
    pub last_touched: Vec<(u64, u64)>,
    /// Those of them that were written, by the step in which that was last.
    #[serde(default)]
    pub last_written: Vec<(u64, u64)>,
}

/// A place in the code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineHeat {
    /// Function, file and line.
    pub name: String,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// What the events add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatView {
    /// Length of a step, ns.
    pub step: u64,
    /// Steps until the last event.
    pub steps: u64,
    /// Threads, in the order in which they were seen.
    pub threads: Vec<u64>,
    /// Objects, the most accesses first; the last may be all others.
    pub objects: Vec<ObjectHeat>,
    /// Objects that are in the last one.
    pub others: u64,
    /// Lines of code, the most accesses first.
    pub lines: Vec<LineHeat>,
    /// Largest working set of an interval in each step, pages.
    pub working_set: Vec<u64>,
    /// Accesses to objects that have a name of their own: globals, allocations, stacks.
    pub in_objects: u64,
    /// All accesses.
    pub accesses: u64,
    /// Call sites that keep sparse pages, the most pages first.
    #[serde(default)]
    pub sparse: Vec<SparseSite>,
    /// What was live of what was allocated.
    #[serde(default)]
    pub kept: Kept,
    /// Touched and written pages of intervals, and accesses to further pages, that were left out, for there were more
    /// than the [`Bounds`].
    #[serde(default)]
    pub left_out: u64,
}

/// Small keys that nobody chooses against us.
pub(crate) type Table<K, V> = rustc_hash::FxHashMap<K, V>;

/// A table in which the same key is looked up again and again: the latest is remembered.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    places: Table<K, usize>,
    entries: Vec<(K, V)>,
    latest: usize,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { places: Table::default(), entries: Vec::new(), latest: 0 }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V: Default> Recent<K, V> {
    /// The value of a key; new ones begin as the default.
    pub(crate) fn of(&mut self, key: K) -> &mut V {
        if self.entries.get(self.latest).is_none_or(|entry| entry.0 != key) {
            let entries = &mut self.entries;
            self.latest = *self.places.entry(key).or_insert_with(|| {
                entries.push((key, V::default()));
                entries.len() - 1
            });
        }
        &mut self.entries[self.latest].1
    }

    /// All of them, in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.entries.iter()
    }
}

/// Who first touched a page of an object, and what became of it.
#[derive(Clone, Copy, Debug)]
struct First {
    thread: usize,
    /// When it was touched last, ns since the recording began.
    touched: u64,
    /// When it was written last, if it was.
    written: Option<u64>,
    /// It was given back to the system.
    gone: bool,
}

/// Bytes of allocations of a process that are live, the most that were, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    now: u64,
    most: u64,
    at: u64,
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
    cells: Recent<(usize, u64, u64), Heat>,
    pages: Table<(usize, u64, u64), First>,
    sizes: Recent<usize, u64>,
    lines: Recent<(usize, u64, u64), (u64, u64)>,
    threads: Recent<u64, Option<usize>>,
    live: Table<u64, Live>,
    order: Vec<u64>,
    working_set: Vec<u64>,
    accesses: u64,
    bounds: Bounds,
    /// Pages of rows that were looked at one by one.
    looks: u64,
    /// Pages of rows that were not.
    left_out: u64,
    /// Process, first byte and place of the access before: often the same.
    before: Slot<Option<(u64, u64, Place)>>,
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
            cells: Recent::default(),
            pages: Table::default(),
            sizes: Recent::default(),
            lines: Recent::default(),
            threads: Recent::default(),
            live: Table::default(),
            order: Vec::new(),
            working_set: Vec::new(),
            accesses: 0,
            bounds,
            looks: 0,
            left_out: 0,
            before: Slot::new(None),
        }
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
            self.working_set = self
                .working_set
                .chunks(2)
                .map(|pair| pair.iter().copied().max().unwrap_or(0))
                .collect();
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

    fn place(&mut self, pid: u64, address: u64) -> Place {
        if let Some((owner, start, place)) = self.before.get()
            && owner == pid
            && address.checked_sub(start).is_some_and(|offset| offset < place.size)
        {
            return Place { offset: address - start, ..place };
        }
        let place = self.names.objects.at(pid, address);
        // A mapping may hold objects of better names, and offset 0 may be in front of an allocation.
        let identity = &self.names.objects.identities()[place.object];
        if place.offset > 0 && !matches!(identity, Identity::Mapping(_)) {
            self.before.set(Some((pid, address - place.offset, place)));
        }
        place
    }

    fn slices(&self, size: u64) -> (u64, u64) {
        let pages = size.div_ceil(self.page).max(1);
        let each = pages.div_ceil(SLICES);
        (pages.div_ceil(each), each.saturating_mul(self.page))
    }

    fn access(&mut self, row: &Access) {
        let (pid, address) = (row.pid.unwrap_or(0), row.address.unwrap_or(0));
        let flags = Flags(row.flags.unwrap_or(0));
        let thread = self.thread(row.tid.unwrap_or(0));
        let write = flags.has(Flags::WRITE);
        // A row may stand for many accesses of one kind.
        let times = row.count.unwrap_or(1);
        if self.pages.len() >= self.bounds.pages {
            let object = self.place(pid, address).object;
            if !self.pages.contains_key(&(object, pid, address / self.page)) {
                return add(&mut self.left_out, 1);
            }
        }
        let object = self.count(row.time, pid, address, thread, (write, times));
        let line = if flags.has(Flags::IN_KERNEL) { KERNEL } else { row.instruction.unwrap_or(0) };
        let counts = self.lines.of((object, pid, line));
        add(if write { &mut counts.1 } else { &mut counts.0 }, times);
    }

    /// Memory was taken from the allocator, or given back to it.
    fn allocation(&mut self, row: &Allocation) {
        let (Some(pid), Some(start)) = (row.pid, row.address) else { return };
        let before = self.names.objects.allocated(pid, start);
        let bytes = before.map_or(0, |(end, _)| end.saturating_sub(start));
        if let Some((end, object)) = before
            && row.size.is_none()
            && bytes >= MAPPED
        {
            self.given_back(object, pid, start.div_ceil(self.page)..end / self.page);
        }
        let live = self.live.entry(pid).or_default();
        live.now = live.now.saturating_sub(bytes);
        live.now = live.now.saturating_add(row.size.unwrap_or(0));
        if live.now > live.most {
            (live.most, live.at) = (live.now, row.time.since(self.started).0);
        }
    }

    /// Pages of an object were given back to the system.
    fn given_back(&mut self, object: usize, pid: u64, numbers: Range<u64>) {
        if numbers.end.saturating_sub(numbers.start) > self.pages.len() as u64 {
            // Most of what was asked for was never touched.
            let of =
                |at: &(usize, u64, u64)| at.0 == object && at.1 == pid && numbers.contains(&at.2);
            self.pages.iter_mut().filter(|(at, _)| of(at)).for_each(|(_, page)| page.gone = true);
            return;
        }
        for number in numbers {
            if let Some(page) = self.pages.get_mut(&(object, pid, number)) {
                page.gone = true;
            }
        }
    }

    /// Counts accesses of one kind, whether they write and how many they are, and says to which object.
    fn count(
        &mut self,
        time: Nanos,
        pid: u64,
        address: u64,
        thread: usize,
        (write, times): (bool, u64),
    ) -> usize {
        let step = self.step_of(time);
        let Place { object, offset, size } = self.place(pid, address);
        let known = self.sizes.of(object);
        *known = size.max(*known);
        let (slices, bytes) = self.slices(size);
        let slice = (offset / bytes).min(slices - 1);
        let since = time.since(self.started).0;
        let page = self.pages.entry((object, pid, address / self.page));
        let mut first = 0;
        let page = page.or_insert_with(|| {
            first = 1;
            First { thread, touched: since, written: None, gone: false }
        });
        page.touched = page.touched.max(since);
        page.written = page.written.max(write.then_some(since));
        page.gone = false;
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
        let pid = row.pid.unwrap_or(0);
        let page = self.page;
        let size = sum(runs(&row.starts, &row.pages, page).map(|run| run.end - run.start));
        if self.working_set.len() <= step {
            self.working_set.resize(step + 1, 0);
        }
        self.working_set[step] = self.working_set[step].max(size);
        if self.events {
            return;
        }
        let thread = self.thread(pid);
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
                self.count(row.time, pid, number * page, thread, (write, 1));
            }
        }
    }

    /// Name, kind and detail of each object; a stack is named by who touched most of it first.
    fn named(&self) -> Vec<(String, Kind, Vec<String>)> {
        let mut owners: HashMap<usize, HashMap<usize, u64>> = HashMap::new();
        for ((object, ..), first) in &self.pages {
            if matches!(self.names.objects.identities()[*object], Identity::Stack(..)) {
                *owners.entry(*object).or_default().entry(first.thread).or_default() += 1;
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
                (Kind::Stack, Some(tid)) => (format!("stack of thread {tid}"), kind, detail),
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
        let Grouped { mut objects, others, place } = self.grouped();
        // Rows may stand for no access at all: then there are cells and pages, and no object.
        let (lines, (sparse, kept)) = if objects.is_empty() {
            Default::default()
        } else {
            self.fill_cells(&mut objects, &place);
            self.fill_pages(&mut objects, &place);
            let lines = self.fill_lines(&mut objects, &place);
            (lines, self.fill_resident(&mut objects, &place))
        };
        let named = objects.iter().filter(|object| object.kind != "mapping");
        let in_objects = sum(named.map(|object| object.total.accesses()));
        let mut working_set = self.working_set.clone();
        working_set.resize(self.last as usize + 1, 0);
        HeatView {
            step: self.step,
            steps: self.last + 1,
            threads: self.order.clone(),
            objects,
            others,
            lines,
            working_set,
            in_objects,
            accesses: self.accesses,
            sparse,
            kept,
            left_out: self.left_out,
        }
    }
}

/// Objects of one name and kind as one, the busiest apart.
struct Grouped {
    /// The busiest, and one for all others.
    objects: Vec<ObjectHeat>,
    /// How many are in that one.
    others: u64,
    /// Where in `objects` each object is that was told apart.
    place: Vec<usize>,
}

impl<S: Symbols> HeatFold<S> {
    fn grouped(&self) -> Grouped {
        let names = self.named();
        let mut groups: HashMap<(Kind, &str), usize> = HashMap::new();
        let mut objects: Vec<ObjectHeat> = Vec::new();
        let mut group = vec![0; names.len()];
        let sizes: HashMap<usize, u64> = self.sizes.iter().copied().collect();
        for (number, (name, kind, detail)) in names.iter().enumerate() {
            let at = *groups.entry((*kind, name)).or_insert_with(|| {
                objects.push(ObjectHeat {
                    name: name.clone(),
                    kind: format!("{kind:?}").to_lowercase(),
                    detail: detail.clone(),
                    ..ObjectHeat::default()
                });
                objects.len() - 1
            });
            group[number] = at;
            let size = sizes.get(&number).copied().unwrap_or(0);
            objects[at].bytes = objects[at].bytes.max(size);
        }
        for ((number, ..), heat) in self.cells.iter() {
            objects[group[*number]].total.add(heat);
        }
        let mut order: Vec<usize> = (0..objects.len()).collect();
        order.retain(|at| objects[*at].total.accesses() > 0);
        let most = |at: usize| (Reverse(objects[at].total.accesses()), &objects[at].name);
        order.sort_by(|&a, &b| most(a).cmp(&most(b)));
        let others = order.len().saturating_sub(OBJECTS) as u64;
        let mut rank = vec![OBJECTS; objects.len()];
        for (to, from) in order.iter().enumerate() {
            rank[*from] = to.min(OBJECTS);
        }
        let mut kept: Vec<ObjectHeat> =
            order.iter().take(OBJECTS).map(|at| objects[*at].clone()).collect();
        if others > 0 {
            kept.push(ObjectHeat {
                name: format!("{others} more objects"),
                kind: "mapping".into(),
                ..ObjectHeat::default()
            });
        }
        let last = kept.len().saturating_sub(1);
        let place = group.into_iter().map(|group| rank[group].min(last)).collect();
        Grouped { objects: kept, others, place }
    }

    fn fill_cells(&self, objects: &mut [ObjectHeat], place: &[usize]) {
        let mut cells: Vec<HashMap<(u64, u64), Heat>> = vec![HashMap::new(); objects.len()];
        for ((number, slice, step), heat) in self.cells.iter() {
            cells[place[*number]].entry((*slice, *step)).or_default().add(heat);
        }
        for (object, cells) in objects.iter_mut().zip(cells) {
            object.slices = self.slices(object.bytes).0;
            object.cells =
                cells.into_iter().map(|((slice, step), heat)| (slice, step, heat)).collect();
            object.cells.sort_by_key(|cell| (cell.0, cell.1));
            object.total = Heat::default();
            for cell in &object.cells {
                object.total.add(&cell.2);
            }
        }
    }

    fn fill_pages(&self, objects: &mut [ObjectHeat], place: &[usize]) {
        let mut first_by: Vec<HashMap<usize, u64>> = vec![HashMap::new(); objects.len()];
        for ((number, ..), first) in &self.pages {
            let at = place[*number];
            objects[at].pages += 1;
            objects[at].written += u64::from(first.written.is_some());
            *first_by[at].entry(first.thread).or_default() += 1;
        }
        for (object, first_by) in objects.iter_mut().zip(first_by) {
            object.first_by = first_by.into_iter().collect();
            object.first_by.sort_by_key(|(thread, pages)| (Reverse(*pages), *thread));
            object.first_by.truncate(16);
        }
    }

    /// When pages that are resident were touched and written last; who keeps sparse ones, and what is live.
    fn fill_resident(
        &self,
        objects: &mut [ObjectHeat],
        place: &[usize],
    ) -> (Vec<SparseSite>, Kept) {
        let identities = self.names.objects.identities();
        let pages = self.pages.iter().filter(|(_, first)| !first.gone).map(|(key, first)| {
            let &(object, pid, number) = key;
            let allocated = matches!(identities[object], Identity::Allocation(..));
            let (touched, written) = (first.touched, first.written);
            Resident { at: (pid, number), object, allocated, touched, written }
        });
        let all = residency::residency(pages, self.names.objects.allocations(), self.page);
        let mut steps = vec![(BTreeMap::new(), BTreeMap::new()); objects.len()];
        for page in &all.pages {
            let (touched, written) = &mut steps[place[page.object]];
            *touched.entry(page.touched / self.step).or_insert(0) += 1;
            if let Some(time) = page.written {
                *written.entry(time / self.step).or_insert(0) += 1;
            }
        }
        for (object, (touched, written)) in objects.iter_mut().zip(steps) {
            object.last_touched = touched.into_iter().collect();
            object.last_written = written.into_iter().collect();
        }
        let mut sites: BTreeMap<String, SparseSite> = BTreeMap::new();
        for (object, (pages, live)) in &all.sparse {
            // What lives need not have been accessed.
            let name = self.names.of(&identities[*object]).0;
            let site = sites.entry(name).or_default();
            site.pages += pages;
            site.live += live;
        }
        let named = sites.into_iter().map(|(name, site)| SparseSite { name, ..site });
        let mut sparse: Vec<SparseSite> = named.collect();
        sparse.sort_by(|a, b| (b.pages, &a.name).cmp(&(a.pages, &b.name)));
        let most = self.live.iter().max_by_key(|(pid, live)| (live.most, **pid));
        let Live { now, most, at } = most.map_or_else(Live::default, |(_, live)| *live);
        let kept =
            Kept { live: Bytes(now), peak: Bytes(most), peaked: Nanos(at), free_pages: all.free };
        (sparse, kept)
    }

    /// The lines of code that accessed most; many instructions are on one.
    fn fill_lines(&self, objects: &mut [ObjectHeat], place: &[usize]) -> Vec<LineHeat> {
        let mut names: HashMap<(u64, u64), String> = HashMap::new();
        let mut lines: HashMap<String, (u64, u64)> = HashMap::new();
        let mut by_object: Vec<HashMap<String, (u64, u64)>> = vec![HashMap::new(); objects.len()];
        for ((number, pid, instruction), (reads, writes)) in self.lines.iter() {
            let key = (*pid, *instruction);
            let name = names.entry(key).or_insert_with(|| self.names.line(*pid, *instruction));
            for counts in [
                by_object[place[*number]].entry(name.clone()).or_default(),
                lines.entry(name.clone()).or_default(),
            ] {
                add(&mut counts.0, *reads);
                add(&mut counts.1, *writes);
            }
        }
        let mut lines: Vec<LineHeat> = lines
            .into_iter()
            .map(|(name, (reads, writes))| LineHeat { name, reads, writes })
            .collect();
        lines.sort_by(|a, b| {
            (b.reads.saturating_add(b.writes), &a.name)
                .cmp(&(a.reads.saturating_add(a.writes), &b.name))
        });
        lines.truncate(LINES);
        let numbers: HashMap<&str, usize> =
            lines.iter().enumerate().map(|(number, line)| (line.name.as_str(), number)).collect();
        for (object, by_object) in objects.iter_mut().zip(&by_object) {
            let numbered = by_object.iter().filter_map(|(name, counts)| {
                Some((*numbers.get(name.as_str())?, counts.0, counts.1))
            });
            object.lines = numbered.collect();
            object.lines.sort_by_key(|line| (Reverse(line.1.saturating_add(line.2)), line.0));
            object.lines.truncate(8);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::Allocation;
    use proptest::prelude::*;

    use super::*;
    use crate::objects::tests::{One, mapping};

    fn access(time: u64, tid: u64, address: u64, write: bool) -> Event {
        Event::Access(Box::new(Access {
            time: Nanos(time),
            pid: Some(7),
            tid: Some(tid),
            address: Some(address),
            instruction: Some(0x10100),
            flags: Some(if write { Flags::WRITE } else { 0 }),
            ..Access::default()
        }))
    }

    fn layout() -> Vec<Event> {
        vec![
            Event::Mapping(Box::new(mapping(0x10000, 0x14000, "rw-p", "/bin/one"))),
            Event::Mapping(Box::new(mapping(0x20000, 0x80000, "rw-p", "[heap]"))),
        ]
    }

    fn fold(events: &[Event]) -> HeatView {
        let mut fold = HeatFold::new(Nanos(0), 4096, true, Bounds::default(), One);
        layout().iter().chain(events).for_each(|event| fold.event(event));
        fold.view()
    }

    #[test]
    fn an_allocation_is_named_by_who_wanted_it_and_first_touched_by_a_thread() {
        let taken = Allocation {
            pid: Some(7),
            address: Some(0x30000),
            size: Some(0x8000),
            stack: Some(vec![0x10501, 0x10666, 0x10700]),
            ..Allocation::default()
        };
        let view = fold(&[
            Event::Allocation(Box::new(taken)),
            access(1_000, 9, 0x30000, true),
            access(2_000_000, 10, 0x30000, false),
            access(3_000_000, 10, 0x31000, false),
            access(4_000_000, 10, 0x14020, true),
        ]);
        let object = &view.objects[0];
        assert_eq!((object.name.as_str(), object.kind.as_str()), ("one::make", "allocation"));
        // 0x10666 follows no call.
        assert_eq!(object.detail, ["alloc::vec", "one::make", "one::main"]);
        assert_eq!((object.bytes, object.slices, object.pages, object.written), (0x8000, 8, 2, 1));
        assert_eq!(object.first_by, [(0, 1), (1, 1)]);
        assert_eq!(object.total, Heat { reads: 2, writes: 1, first: 2, threads: 3 });
        assert_eq!(
            (view.objects[1].name.as_str(), view.threads.as_slice()),
            ("table", &[9, 10][..])
        );
        assert_eq!((view.in_objects, view.accesses), (4, 4));
        assert_eq!(view.lines[0].name, "one::main");
    }

    #[test]
    fn rows_that_stand_for_no_access_make_no_object() {
        let Event::Access(mut row) = access(1, 9, 0x30000, false) else { panic!("no access") };
        row.count = Some(0);
        let view = fold(&[Event::Access(row)]);
        assert!(view.objects.is_empty() && view.lines.is_empty() && view.accesses == 0);
    }

    fn row(pages: u64) -> Event {
        Event::Touched(Box::new(Touched {
            pid: Some(7),
            starts: Some(vec![4096, 4096]),
            pages: Some(vec![pages, pages]),
            ..Touched::default()
        }))
    }

    #[test]
    fn a_row_of_more_pages_than_there_are_addresses_ends() {
        let bounds = Bounds { looks: 1 << 12, pages: 1 << 11 };
        let mut fold = HeatFold::new(Nanos(0), 4096, false, bounds, One);
        for _ in 0..3 {
            fold.event(&row(u64::MAX));
        }
        let view = fold.view();
        assert_eq!(view.accesses, 1 << 11);
        assert!(view.left_out > 1 << 40, "{}", view.left_out);
    }

    #[test]
    fn what_is_beyond_a_bound_is_counted_and_what_is_not_is_not() {
        for (looks, pages, left_out) in
            [(1 << 12, 1 << 11, 0), (5, 1 << 11, 15), (1 << 12, 7, 13), (20, 20, 0)]
        {
            let mut fold = HeatFold::new(Nanos(0), 4096, false, Bounds { looks, pages }, One);
            fold.event(&row(10));
            let view = fold.view();
            assert_eq!(
                (view.accesses, view.left_out),
                (20 - left_out, left_out),
                "{looks} {pages}"
            );
        }
    }

    #[test]
    fn accesses_to_more_pages_than_are_told_apart_are_counted_as_left_out() {
        let bounds = Bounds { looks: 1, pages: 3 };
        let mut fold = HeatFold::new(Nanos(0), 4096, true, bounds, One);
        for page in [1, 2, 3, 4, 5, 2, 3, 6] {
            fold.event(&access(page, 7, page << 12, false));
        }
        let view = fold.view();
        assert_eq!((view.accesses, view.left_out), (5, 3));
    }

    proptest! {
        #[test]
        fn doubling_loses_nothing_and_cells_add_up(
            accesses in prop::collection::vec((0..1u64 << 34, 0..80u64, 0x20000..0x80000u64, any::<bool>()), 1..200),
        ) {
            let mut accesses = accesses;
            accesses.sort_unstable();
            let events: Vec<Event> =
                accesses.iter().map(|&(time, tid, address, write)| access(time, tid, address, write)).collect();
            let view = fold(&events);
            prop_assert!(view.steps <= STEPS);
            let object = &view.objects[0];
            let writes = accesses.iter().filter(|access| access.3).count() as u64;
            prop_assert_eq!((object.total.accesses(), object.total.writes), (accesses.len() as u64, writes));
            prop_assert_eq!(object.total.first, object.pages);
            for (slice, step, _) in &object.cells {
                prop_assert!(*slice < object.slices && *step < view.steps);
            }
            prop_assert_eq!(view.steps - 1, accesses.last().unwrap().0 / view.step);
        }
    }
}

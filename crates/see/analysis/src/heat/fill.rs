//! From what was counted to a [`HeatView`]: objects of one name become one, and of each is kept what is shown.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use pagemill_model::{Bytes, Nanos};

use super::view::{Heat, HeatView, LineHeat, ObjectHeat};
use super::{HeatFold, LINES, Live, OBJECTS};
use crate::addresses::ProcessAddress;
use crate::objects::{Identity, ObjectKind, Symbols};
use crate::residency::{self, LastPart, LiveMemory, PageTouches, SparseSite};
use pagemill_model::sums::{add, sum};

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
    /// What the events add up to.
    pub(super) fn filled(&self) -> HeatView {
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
            live: self.largest().map(Live::points).unwrap_or_default(),
            left_out: self.left_out,
        }
    }

    /// Of the process that had most of its allocations live.
    fn largest(&self) -> Option<&Live> {
        let most = self.live.iter().max_by_key(|(pid, live)| (live.most, **pid));
        most.map(|(_, live)| live)
    }

    fn grouped(&self) -> Grouped {
        let names = self.named();
        let mut groups: HashMap<(ObjectKind, &str), usize> = HashMap::new();
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
            object.slices = self.slices(object.bytes).count;
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
            objects[at].written += u64::from(first.written().is_some());
            *first_by[at].entry(first.thread()).or_default() += 1;
        }
        for (object, first_by) in objects.iter_mut().zip(first_by) {
            object.first_by = first_by.into_iter().collect();
            object.first_by.sort_by_key(|(thread, pages)| (Reverse(*pages), *thread));
            object.first_by.truncate(16);
        }
    }

    /// When pages that are resident were used last; who keeps sparse ones, and what is live.
    fn fill_resident(
        &self,
        objects: &mut [ObjectHeat],
        place: &[usize],
    ) -> (Vec<SparseSite>, LiveMemory) {
        let identities = self.names.objects.identities();
        let pages = self.pages.iter().map(|(&(object, at), page)| {
            let ended = self.programs.ended(at.pid, page.touched).filter(|_| !page.gone);
            // Others may share it, and go on.
            let ended = ended.filter(|ended| *ended >= page.touched);
            PageTouches {
                at,
                object,
                allocated: matches!(identities[object], Identity::Allocation(..)),
                first: page.first(),
                touched: page.touched,
                written: page.written(),
                rest: page.rest(),
                freed: ended.or(page.given_back()),
                gone: page.gone || ended.is_some(),
            }
        });
        let until = |time: u64| {
            let until = self.used_until.get((time / self.step) as usize).copied().unwrap_or(0);
            until.saturating_sub(1).max(time)
        };
        let recorded = (self.last + 1).saturating_mul(self.step);
        let part = LastPart::of(if self.ended { self.latest.saturating_add(1) } else { recorded });
        let merged = residency::merged(pages, self.names.objects.allocations(), self.page, part);
        let mut steps = vec![[const { BTreeMap::new() }; 4]; objects.len()];
        let all = residency::residency(merged, self.page, part, until, |page| {
            let of = place[page.object];
            let mut count = |which: usize, time: u64| {
                *steps[of][which].entry(time / self.step).or_insert(0) += 1;
            };
            count(0, until(page.touched));
            if page.freed {
                count(1, until(page.touched));
            }
            if let Some(time) = page.written {
                count(2, until(time));
            }
            if let Some(time) = page.rested_until {
                count(3, time);
                objects[of].rested_freed += u64::from(page.given_back);
            }
        });
        for (object, steps) in objects.iter_mut().zip(steps) {
            [
                object.last_touched,
                object.last_touched_freed,
                object.last_written,
                object.rested_until,
            ] = steps.map(|steps| steps.into_iter().collect());
        }
        let mut sites: BTreeMap<String, SparseSite> = BTreeMap::new();
        for (object, sparse) in &all.sparse {
            // What lives need not have been accessed.
            let name = self.names.of(&identities[*object]).0;
            let site = sites.entry(name).or_default();
            site.pages += sparse.pages;
            site.live += sparse.live;
        }
        let named = sites.into_iter().map(|(name, site)| SparseSite { name, ..site });
        let mut sparse: Vec<SparseSite> = named.collect();
        sparse.sort_by(|a, b| (b.pages, &a.name).cmp(&(a.pages, &b.name)));
        let Live { now, most, at, .. } = self.largest().cloned().unwrap_or_default();
        let kept = LiveMemory {
            live: Bytes(now),
            peak: Bytes(most),
            peaked: Nanos(at),
            free_pages: all.free,
            free_late: all.free_late,
            free_ending: all.free_ending,
        };
        (sparse, kept)
    }

    /// The lines of code that accessed most; many instructions are on one.
    fn fill_lines(&self, objects: &mut [ObjectHeat], place: &[usize]) -> Vec<LineHeat> {
        let mut names: HashMap<ProcessAddress, String> = HashMap::new();
        let mut lines: HashMap<String, (u64, u64)> = HashMap::new();
        let mut by_object: Vec<HashMap<String, (u64, u64)>> = vec![HashMap::new(); objects.len()];
        for ((number, at), (reads, writes)) in self.lines.iter() {
            let name = names.entry(*at).or_insert_with(|| self.names.line(at.pid, at.address));
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

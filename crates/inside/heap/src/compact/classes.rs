//! Planning a class: which unit size, which units, which groups.
//!
//! Units of a class can share an image only if their slots lie alike: their **key** is the phase (by how much
//! the first slot begins before the unit) and the length. Each key is planned on its own.
//!
//! All of it in slices: each does a bounded number of looks, moves or probes, and what the plan knows so far is kept
//! in [`Plan`]. The heap goes on meanwhile, so a plan is a guess, in one slice or in many: what is live, and
//! whether a span is still the same, is seen again when its unit is blocked.

use core::ops::Range;

use super::batch::{Batch, Frozen, MEMBERS};
use super::copy::window;
use super::pass::{
    Candidate, EXTENTS, MOVES_SLICE, PAGE_WORDS, PAGES, Plan, SPANS_SLICE, ScannedSpan, Stage,
    Step, Trial, WORDS,
};
use super::sort::Sorting;
use super::state::Compactor;
use super::{Bits, Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Gain, Geometry, Limits, NONE, Packing, Scratch};
use crate::stats::{Backend, degraded};

/// Spans looked at when a class's unit size is chosen.
const SAMPLE_SPANS: usize = 512;

/// Units planned then with each size: each is tried against up to 512 others.
const SAMPLE_UNITS: usize = 1024;

/// Units of one key planned in a pass, so that what is not cut into slices stays short; the rest waits for the next
/// pass.
const UNITS_MAX: usize = 1 << 15;

/// Units whose live slots are noted in one slice, and steps of grouping in one.
const UNITS_SLICE: usize = 1024;
const PACK_SLICE: u32 = 8192;

/// Unit sizes tried, in pages.
const UNIT_SIZES: [u8; 5] = [16, 8, 4, 2, 1];

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Plans a class, a slice of it at a time: looks at its spans, tries each unit size on a sample of them, then plans
    /// the keys of the best one after the other.
    pub(super) fn plan_class(&mut self, next: usize, step: Step) -> Stage {
        let Some(&class) = self.ranking.get(next).filter(|_| self.can_merge()) else {
            return self.after_classes();
        };
        let class = usize::from(class);
        let step = match step {
            Step::Scan { at } => self.see(class, at),
            Step::Fill { at } => self.fill(at),
            Step::Sort => Some(self.sort_units()),
            Step::Mark { at } => self.mark_units(at),
            Step::Pack => self.pack_units(),
            Step::Arrange => {
                let len = usize::from(self.plan.geometry.pages) * self.page;
                self.arrange(|plan, unit| {
                    plan.units[unit - 1].start + len == plan.units[unit].start
                });
                if self.plan.trial.is_none() {
                    self.plan.next_key += 1;
                    return match self.plan.groups {
                        0 => self.after_key(next),
                        _ => Stage::Commit { at: next, group: 0 },
                    };
                }
                self.value(class);
                self.next_trial()
            }
            // Of extents.
            Step::Cut | Step::Order | Step::Name { .. } | Step::Part { .. } | Step::Index => None,
        };
        match step {
            Some(step) => Stage::Classes { next, step },
            None => self.after_key(next),
        }
    }

    pub(super) fn after_key(&mut self, at: usize) -> Stage {
        match at {
            EXTENTS => return Stage::class(0),
            PAGES => return self.after_classes(),
            _ => {}
        }
        // A class has at most one key a page of a span.
        if self.plan.next_key < 16 && self.plan.unit != 0 {
            Stage::Classes { next: at, step: Step::Fill { at: 0 } }
        } else {
            self.plan.next_key = 0;
            self.plan.unit = 0;
            Stage::class(at + 1)
        }
    }

    /// No memory for the plan of this class.
    fn no_room(&mut self) -> Option<Step> {
        self.degrade(degraded::NO_MEMORY);
        self.plan.unit = 0;
        None
    }

    /// Looks at spans of a class that can be merged; `None` if it has none.
    fn see(&mut self, class: usize, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.mixed = false;
            self.plan.seen.clear();
            self.plan.extents.clear();
            self.plan.shape = None;
            self.plan.unit = 0;
            self.plan.next_key = 0;
        }
        let now = self.seconds();
        let begin = class.checked_sub(1).map_or(0, |before| self.classes[before].end) as usize;
        let end = (self.classes[class].end as usize).min(begin + from + SPANS_SLICE);
        for at in begin + from..end {
            let index = self.listed[at];
            let Some((_, view)) = self.span_view(index as usize) else { continue };
            let live = plan::population(&view.live);
            if usize::from(view.class) != class || !self.mergeable(index as usize, &view, live, now)
            {
                continue;
            }
            self.plan.shape.get_or_insert(view);
            let seen = ScannedSpan { start: view.start, span: index, live: view.live };
            if !self.plan.seen.push(self.os, seen) {
                return self.no_room();
            }
        }
        if end < self.classes[class].end as usize {
            return Some(Step::Scan { at: end - begin });
        }
        self.plan.shape?;
        self.plan.trial = (self.backend != Backend::Ksm).then_some(Trial::NEW);
        if self.plan.trial.is_some() {
            return self.try_size(0);
        }
        self.plan.unit = 1;
        Some(Step::Fill { at: 0 })
    }

    /// Begins to plan a sample with the next unit size, from `at` on, that a span is long enough for; after the last
    /// one, the class with the best. `None` if none is worth it.
    fn try_size(&mut self, at: usize) -> Option<Step> {
        let pages = self.plan.shape?.pages;
        let trial = self.plan.trial.as_mut()?;
        let sizes = UNIT_SIZES.iter().enumerate().skip(at);
        match sizes.into_iter().find(|(_, unit)| **unit <= pages.next_power_of_two()) {
            Some((at, _)) => trial.at = at,
            None => {
                self.plan.unit = trial.unit;
                self.plan.trial = None;
                if self.plan.unit == 0 {
                    return None;
                }
            }
        }
        Some(Step::Fill { at: 0 })
    }

    fn next_trial(&mut self) -> Option<Step> {
        let at = self.plan.trial?.at;
        self.try_size(at + 1)
    }

    /// What the tried size is worth: the sample stands for the whole class, and the first key for all keys.
    fn value(&mut self, class: usize) {
        let gain = self.gain();
        let left = self.mappings_left() as i64;
        let Some(trial) = self.plan.trial.as_mut() else { return };
        let unit = UNIT_SIZES[trial.at];
        let seen = self.plan.geometry.pages as usize * self.plan.units.len();
        let whole = |part: u64| (part * self.classes[class].pages / seen.max(1) as u64) as i64;
        let saved = whole(u64::from(gain.saved()) * self.page as u64);
        let runs = whole(u64::from(gain.runs));
        let work = whole(u64::from(gain.units) * (6 + u64::from(unit) / 2));
        let mut value = saved
            - runs * i64::from(self.settings.mapping_price)
            - work * i64::from(self.settings.work_price);
        if runs > left {
            // Only a part can be mapped.
            value = value * left / runs.max(1);
        }
        if value > trial.best {
            trial.best = value;
            trial.unit = unit;
        }
    }

    /// Collects units of the class's spans that have the next of its keys (phase and length), of a sample of the spans
    /// in a trial. `None` if there is no such key, nothing to group, or no memory.
    fn fill(&mut self, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.units.clear();
        }
        let shape = self.plan.shape?;
        let (unit, key, stride) = match self.plan.trial {
            Some(trial) => {
                let unit = UNIT_SIZES[trial.at];
                let units = usize::from(shape.pages.div_ceil(unit));
                let spans = (SAMPLE_UNITS / units).clamp(16, SAMPLE_SPANS);
                (unit, 0, (self.plan.seen.len() / spans).max(1))
            }
            None => (self.plan.unit, self.plan.next_key, 1),
        };
        let Some((phase, pages)) = nth_key(&shape, unit, key, self.page) else {
            return self.no_key();
        };
        let bytes = usize::from(pages) * self.page + phase as usize;
        self.plan.slots = bytes.div_ceil(shape.slot_size as usize);
        self.plan.geometry =
            Geometry { slot_size: shape.slot_size, phase, pages, page_size: self.page as u32 };
        let mut at = from;
        while at < self.plan.seen.len() {
            if at - from >= SPANS_SLICE * stride {
                return Some(Step::Fill { at });
            }
            let seen = self.plan.seen[at];
            let merged = self.notes[seen.span as usize].merged;
            let mut page = 0;
            while page < shape.pages {
                let len = unit.min(shape.pages - page);
                let taken = merged >> page & ((1u32 << len) - 1) as u16 != 0;
                if !taken && (phase_of(&shape, page, self.page), len) == (phase, pages) {
                    let start = seen.start + usize::from(page) * self.page;
                    let candidate = Candidate { start, span: seen.span, page, seen: at as u32 };
                    if !self.plan.units.push(self.os, candidate) {
                        return self.no_room();
                    }
                }
                page += len;
            }
            // What cannot be offered to `ksmd` in this pass is not planned: the pages of a group are to lie
            // close to those of others, for it looks at all that lies between.
            if self.backend == Backend::Ksm && self.plan.units.len() >= self.offers_left()
                || self.plan.units.len() >= UNITS_MAX
            {
                break;
            }
            at += stride;
        }
        if self.plan.units.len() < 2 {
            return self.no_key();
        }
        self.plan.sorting = Sorting::new(self.plan.units.len());
        Some(Step::Sort)
    }

    /// There is nothing to group with this key: the next one, or the next size of a trial.
    fn no_key(&mut self) -> Option<Step> {
        if self.plan.trial.is_some() {
            return self.next_trial();
        }
        self.plan.next_key += 1;
        None
    }

    pub(super) fn sort_units(&mut self) -> Step {
        let Plan { sorting, units, .. } = &mut self.plan;
        if sorting.step(units, |unit| unit.start, MOVES_SLICE) {
            Step::Mark { at: 0 }
        } else {
            Step::Sort
        }
    }

    /// Notes the live slots of units; `None` if there is no memory.
    fn mark_units(&mut self, from: usize) -> Option<Step> {
        let units = self.plan.units.len();
        if from == 0 {
            let limits = Limits { members: MEMBERS as u32, ..Limits::DEFAULT };
            let room = match self.plan.slots {
                0..=64 => self.room_for::<1>(units, limits),
                65..=128 => self.room_for::<2>(units, limits),
                _ => self.room_for::<4>(units, limits),
            };
            if !room {
                return self.no_room();
            }
        }
        let end = units.min(from + UNITS_SLICE);
        let words = match self.plan.slots {
            0..=64 => 1,
            65..=128 => 2,
            _ => 4,
        };
        for unit in from..end {
            let candidate = self.plan.units[unit];
            let live = self.plan.seen[candidate.seen as usize].live;
            let bits = self.unit_bits(self.plan.geometry.slot_size, candidate.page, &live);
            for word in &bits[..words] {
                if !self.plan.bits.push(self.os, *word) {
                    return self.no_room();
                }
            }
        }
        Some(if end < units { Step::Mark { at: end } } else { Step::Pack })
    }

    fn pack_units(&mut self) -> Option<Step> {
        let units = self.plan.units.len();
        let packed = match self.plan.slots {
            0..=64 => self.pack_some::<1>(units),
            65..=128 => self.pack_some::<2>(units),
            _ => self.pack_some::<4>(units),
        };
        packed.or_else(|| self.no_room())
    }

    /// What the plan saves and costs.
    fn gain(&mut self) -> Gain {
        match self.plan.slots {
            0..=64 => self.gain_of::<1>(),
            65..=128 => self.gain_of::<2>(),
            _ => self.gain_of::<4>(),
        }
    }

    fn gain_of<const W: usize>(&mut self) -> Gain {
        let plan = &mut self.plan;
        let len = usize::from(plan.geometry.pages) * self.page;
        let (bits, _) = plan.bits.as_chunks::<W>();
        let (unions, _) = plan.unions.as_chunks_mut::<W>();
        let units = &plan.units;
        let adjacent = |unit: usize| units[unit - 1].start + len == units[unit].start;
        plan::gain(bits, adjacent, &plan.geometry, &plan.group, unions)
    }

    /// Begins to group `units` bitmaps of `W` words, which are noted next; `false` if there is no memory.
    pub(super) fn room_for<const W: usize>(&mut self, units: usize, limits: Limits) -> bool {
        let plan = &mut self.plan;
        plan.bits.clear();
        plan.unions.clear();
        plan.packing = Packing::new();
        plan.limits = limits;
        plan.groups = 0;
        plan.order.resize(self.os, units, 0)
            && plan.group.resize(self.os, units, NONE)
            && plan.sizes.resize(self.os, units, 0)
            && plan.members.resize(self.os, units, 0)
            && plan.starts.resize(self.os, units + 1, 0)
            && plan.bits.reserve(self.os, units * W)
    }

    /// Groups what the bitmaps of the plan stand for, a slice of it; `None` if there is no memory.
    pub(super) fn pack_some<const W: usize>(&mut self, units: usize) -> Option<Step> {
        let plan = &mut self.plan;
        let needed = plan.packing.unions_needed::<W>(units, PACK_SLICE) * W;
        if plan.unions.len() < needed && !plan.unions.resize(self.os, needed, 0) {
            return None;
        }
        let (bits, _) = plan.bits.as_chunks::<W>();
        let (unions, _) = plan.unions.as_chunks_mut::<W>();
        let (order, sizes) = (&mut plan.order, &mut plan.sizes);
        let mut scratch = Scratch { order, unions, sizes };
        let group = &mut plan.group;
        match plan.packing.step(bits, plan.limits, &mut scratch, group, PACK_SLICE) {
            Some(groups) => {
                plan.groups = groups;
                Some(Step::Arrange)
            }
            None => Some(Step::Pack),
        }
    }

    /// Orders the groups; `adjacent` as for [`plan::arrange`].
    pub(super) fn arrange(&mut self, adjacent: impl Fn(&Plan, usize) -> bool) {
        self.plan.growing = None;
        let plan = &mut self.plan;
        let (mut group, mut members, mut starts, mut sizes) = (
            core::mem::take(&mut plan.group),
            core::mem::take(&mut plan.members),
            core::mem::take(&mut plan.starts),
            core::mem::take(&mut plan.sizes),
        );
        let groups = plan.groups;
        let adjacent = |unit: usize| adjacent(plan, unit);
        plan::arrange(&mut group, groups, adjacent, &mut members, &mut starts, &mut sizes);
        (self.plan.group, self.plan.members) = (group, members);
        (self.plan.starts, self.plan.sizes) = (starts, sizes);
    }

    /// Blocks these units of a planned group that still fit together, and with `union`. Those that do not are left.
    /// So are those for which no mapping is `left`. Returns the member to go on with.
    pub(super) fn block_group(
        &mut self,
        group: u32,
        members: Range<u32>,
        union: &mut [u64; WORDS],
        left: &mut usize,
        batch: &mut Batch<S::Ref>,
    ) -> u32 {
        let pages = self.plan.geometry.pages;
        let len = usize::from(pages) * self.page;
        let next = members.end;
        for member in members {
            let candidate = self.plan.units[self.plan.members[member as usize] as usize];
            if !self.affords(left, candidate.start, len) {
                continue;
            }
            let Some((span, view)) = self.span_view(candidate.span as usize) else { continue };
            let page = usize::from(candidate.page) * self.page;
            if view.start + page != candidate.start || !self.same_geometry(&view) {
                continue;
            }
            let range = candidate.page..candidate.page + pages;
            let Some(live) = self.spans.block(span, view.generation, range.clone()) else {
                continue;
            };
            let live = self.unit_bits(view.slot_size, candidate.page, &live);
            if !join(union, &live) {
                self.spans.unblock(span, view.generation, range);
                continue;
            }
            batch.push(Frozen {
                span,
                index: candidate.span,
                generation: view.generation,
                page: candidate.page,
                pages,
                start: candidate.start,
                live,
                slot_size: view.slot_size,
                phase: self.plan.geometry.phase,
                image_page: 0,
                group,
                bytes: candidate.start,
                again: false,
            });
        }
        next
    }

    fn same_geometry(&self, view: &SpanView) -> bool {
        view.slot_size == self.plan.geometry.slot_size
    }

    /// The bits of `live` that belong to the unit at `page` of the plan's geometry.
    pub(crate) fn unit_bits(&self, slot_size: u32, page: u8, live: &Bits) -> Bits {
        let first = usize::from(page) * self.page / slot_size as usize;
        window(live, first, self.plan.slots)
    }
}

/// Adds the live bits of a unit to those of its group; `false` if they overlap, or the unit has none.
pub(super) fn join(union: &mut [u64; WORDS], live: &[u64; PAGE_WORDS]) -> bool {
    let overlaps = union.iter().zip(live).any(|(a, b)| a & b != 0);
    if overlaps || plan::population(live) == 0 {
        return false;
    }
    union.iter_mut().zip(live).for_each(|(a, b)| *a |= b);
    true
}

/// Bytes by which the first slot that overlaps `page` begins before it.
fn phase_of(view: &SpanView, page: u8, page_size: usize) -> u32 {
    ((usize::from(page) * page_size) % view.slot_size as usize) as u32
}

/// The `key`-th distinct (phase, pages) of the span's units, in order of address.
fn nth_key(view: &SpanView, unit: u8, key: u8, page_size: usize) -> Option<(u32, u8)> {
    let of = |page: u8| (phase_of(view, page, page_size), unit.min(view.pages - page));
    let starts = || (0..view.pages).step_by(usize::from(unit));
    let fresh =
        starts().filter(|page| !starts().any(|other| other < *page && of(other) == of(*page)));
    fresh.map(of).nth(usize::from(key))
}

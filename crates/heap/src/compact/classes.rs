//! Planning a class: which unit size, which units, which groups.
//!
//! Units of a class can share an image only if their slots lie alike: their **key** is the phase (by how much
//! the first slot begins before the unit) and the length. Each key is planned on its own.

use super::copy::window;
use super::engine::{Candidate, Compactor, Plan, Seen, Stage};
use super::strips::STRIPS;
use super::{Bits, Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Gain, Geometry, Limits, NONE, Scratch};
use crate::stats::{Backend, degraded};

/// Spans looked at when a class's unit size is chosen.
const SAMPLE_SPANS: usize = 512;

/// Units planned then with each size: each is tried against up to 512 others.
const SAMPLE_UNITS: usize = 1024;

/// Unit sizes tried, in pages.
const UNIT_SIZES: [u8; 5] = [16, 8, 4, 2, 1];

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Plans the next key of the next class that is worth it.
    pub(super) fn plan_class(&mut self, next: usize) -> Stage {
        let Some(&class) = self.ranking.get(next).filter(|_| self.can_merge()) else {
            return self.after_classes();
        };
        let class = usize::from(class);
        let planned = if self.plan.next_key == 0 { self.choose(class) } else { Some(()) };
        let planned = planned.and_then(|()| {
            let key = self.plan.next_key;
            self.plan.next_key += 1;
            self.fill(self.plan.unit, key, usize::MAX).then(|| self.pack())?
        });
        if planned.is_some_and(|gain| gain.groups > 0) {
            return Stage::Commit { at: next, group: 0 };
        }
        self.after_key(next)
    }

    pub(super) fn after_key(&mut self, at: usize) -> Stage {
        if at == STRIPS {
            return Stage::Classes { next: 0 };
        }
        // A class has at most one key a page of a span.
        if self.plan.next_key < 16 && self.plan.unit != 0 {
            Stage::Classes { next: at }
        } else {
            self.plan.next_key = 0;
            self.plan.unit = 0;
            Stage::Classes { next: at + 1 }
        }
    }

    /// Looks at the spans of a class and chooses its unit size by planning a sample with each; `None` if none is worth it.
    fn choose(&mut self, class: usize) -> Option<()> {
        self.plan.unit = 0;
        if !self.see(class) {
            self.degrade(degraded::NO_MEMORY);
            return None;
        }
        let pages = self.plan.shape?.pages;
        if self.backend == Backend::Ksm {
            self.plan.unit = 1;
            return Some(());
        }
        let held = self.groups.mappings as usize;
        let left = self.settings.mappings.saturating_sub(held) as i64;
        let mut best = 0;
        for unit in UNIT_SIZES.into_iter().filter(|unit| *unit <= pages.next_power_of_two()) {
            let units = usize::from(pages.div_ceil(unit));
            if !self.fill(unit, 0, (SAMPLE_UNITS / units).clamp(16, SAMPLE_SPANS)) {
                continue;
            }
            let Some(gain) = self.pack() else { continue };
            // The sample stands for the whole class, and the first key for all keys.
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
            if value > best {
                best = value;
                self.plan.unit = unit;
            }
        }
        if best > 0 { Some(()) } else { None }
    }

    /// Looks at the spans of a class that can be merged; `false` if there is no memory.
    fn see(&mut self, class: usize) -> bool {
        self.plan.seen.clear();
        self.plan.shape = None;
        let now = self.seconds();
        let begin = class.checked_sub(1).map_or(0, |before| self.classes[before].end);
        for at in begin..self.classes[class].end {
            let index = self.listed[at as usize];
            let Some((_, view)) = self.look(index as usize) else { continue };
            let live = plan::population(&view.live);
            if usize::from(view.class) != class || !self.mergeable(index as usize, &view, live, now)
            {
                continue;
            }
            self.plan.shape.get_or_insert(view);
            let seen = Seen { start: view.start, span: index, live: view.live };
            if !self.plan.seen.push(self.os, seen) {
                return false;
            }
        }
        true
    }

    /// Collects the units of the class's spans that have the `key`-th of its keys (phase and length), of about
    /// `spans` spans throughout; `false` if there is no such key, nothing to group, or no memory.
    fn fill(&mut self, unit: u8, key: u8, spans: usize) -> bool {
        self.plan.units.clear();
        self.plan.strips.clear();
        let Some(shape) = self.plan.shape else { return false };
        let Some((phase, pages)) = nth_key(&shape, unit, key, self.page) else { return false };
        let bytes = usize::from(pages) * self.page + phase as usize;
        self.plan.slots = bytes.div_ceil(shape.slot_size as usize);
        self.plan.geometry =
            Geometry { slot_size: shape.slot_size, phase, pages, page_size: self.page as u32 };
        let stride = (self.plan.seen.len() / spans).max(1);
        for at in (0..self.plan.seen.len()).step_by(stride) {
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
                        self.degrade(degraded::NO_MEMORY);
                        return false;
                    }
                }
                page += len;
            }
            // What cannot be offered to `ksmd` in this pass is not planned: the pages of a group are to lie
            // close to those of others, for it looks at all that lies between.
            if self.backend == Backend::Ksm && self.plan.units.len() >= self.offers_left() {
                break;
            }
        }
        self.plan.units.sort_unstable_by_key(|unit| unit.start);
        self.plan.units.len() >= 2
    }

    /// Groups the collected units; `None` if there is no memory.
    fn pack(&mut self) -> Option<Gain> {
        let packed = match self.plan.slots {
            0..=64 => self.pack_words::<1>(),
            65..=128 => self.pack_words::<2>(),
            _ => self.pack_words::<4>(),
        };
        if packed.is_none() {
            self.degrade(degraded::NO_MEMORY);
        }
        packed
    }

    fn pack_words<const W: usize>(&mut self) -> Option<Gain> {
        let n = self.plan.units.len();
        if !self.room_for::<W>(n) {
            return None;
        }
        for unit in 0..n {
            let candidate = self.plan.units[unit];
            let live = self.plan.seen[candidate.seen as usize].live;
            let bits = self.unit_bits(self.plan.geometry.slot_size, candidate.page, &live);
            self.plan.bits[unit * W..(unit + 1) * W].copy_from_slice(&bits[..W]);
        }
        let members = match self.backend {
            Backend::Ksm => super::remap::BATCH as u32,
            // A group is frozen as a whole.
            _ => self.batch_units() as u32,
        };
        let len = usize::from(self.plan.geometry.pages) * self.page;
        let adjacent = move |plan: &Plan, unit: usize| {
            plan.units[unit - 1].start + len == plan.units[unit].start
        };
        self.group_bits::<W>(Limits { members, ..Limits::DEFAULT }, adjacent);
        let plan = &mut self.plan;
        let (bits, _) = plan.bits.as_chunks::<W>();
        let (unions, _) = plan.unions.as_chunks_mut::<W>();
        let units = &plan.units;
        let adjacent = |unit: usize| units[unit - 1].start + len == units[unit].start;
        Some(plan::gain(bits, adjacent, &plan.geometry, &plan.group, unions))
    }

    /// Makes the tables of the plan as long as `units` bitmaps of `W` words need; `false` if there is no memory.
    pub(super) fn room_for<const W: usize>(&mut self, units: usize) -> bool {
        let plan = &mut self.plan;
        plan.order.resize(self.os, units, 0)
            && plan.group.resize(self.os, units, NONE)
            && plan.sizes.resize(self.os, units, 0)
            && plan.members.resize(self.os, units, 0)
            && plan.starts.resize(self.os, units + 1, 0)
            && plan.bits.resize(self.os, units * W, 0)
            && plan.unions.resize(self.os, units * W, 0)
    }

    /// Groups and orders what the bitmaps of the plan stand for; `adjacent` as for [`plan::arrange`].
    pub(super) fn group_bits<const W: usize>(
        &mut self,
        limits: Limits,
        adjacent: impl Fn(&Plan, usize) -> bool,
    ) {
        let plan = &mut self.plan;
        let (bits, _) = plan.bits.as_chunks::<W>();
        let (unions, _) = plan.unions.as_chunks_mut::<W>();
        let scratch = Scratch { order: &mut plan.order, unions, sizes: &mut plan.sizes };
        plan.groups = plan::pack(bits, limits, scratch, &mut plan.group);
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

    /// The bits of `live` that belong to the unit at `page` of the plan's geometry.
    pub(crate) fn unit_bits(&self, slot_size: u32, page: u8, live: &Bits) -> Bits {
        let first = usize::from(page) * self.page / slot_size as usize;
        window(live, first, self.plan.slots)
    }
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

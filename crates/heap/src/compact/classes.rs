//! Planning a class: which unit size, which units, which groups.
//!
//! Units of a class can share an image only if their slots lie alike: their **key** is the phase (by how much
//! the first slot begins before the unit) and the length. Each key is planned on its own.

use super::copy::window;
use super::engine::{Candidate, Compactor, Stage};
use super::{Bits, Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Gain, Geometry, Limits, NONE, Scratch};
use crate::stats::{Backend, degraded};

/// Spans looked at when a class's unit size is chosen.
const SAMPLE_SPANS: usize = 512;

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
            self.fill(class, self.plan.unit, key, usize::MAX).then(|| self.pack())?
        });
        if planned.is_some_and(|gain| gain.groups > 0) {
            return Stage::Commit { at: next, group: 0 };
        }
        self.after_key(next)
    }

    pub(super) fn after_key(&mut self, at: usize) -> Stage {
        // A class has at most one key a page of a span.
        if self.plan.next_key < 16 && self.plan.unit != 0 {
            Stage::Classes { next: at }
        } else {
            self.plan.next_key = 0;
            self.plan.unit = 0;
            Stage::Classes { next: at + 1 }
        }
    }

    /// Chooses the unit size of a class by planning a sample with each; `None` if none is worth it.
    fn choose(&mut self, class: usize) -> Option<()> {
        self.plan.unit = 0;
        if self.backend == Backend::Ksm {
            self.plan.unit = 1;
            return Some(());
        }
        let held = self.groups.units as usize;
        let left = self.settings.mappings.saturating_sub(held) as i64;
        let mut best = 0;
        for unit in UNIT_SIZES {
            if !self.fill(class, unit, 0, SAMPLE_SPANS) {
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

    /// Collects the units of a class that have the `key`-th of its keys (phase and length), at most
    /// those of `spans` spans; `false` if there is no such key, nothing to group, or no memory.
    fn fill(&mut self, class: usize, unit: u8, key: u8, spans: usize) -> bool {
        self.plan.units.clear();
        let now = self.seconds();
        let mut seen = 0;
        let begin = class.checked_sub(1).map_or(0, |before| self.classes[before].end);
        for at in begin..self.classes[class].end {
            let index = self.listed[at as usize] as usize;
            let Some((_, view)) = self.look(index) else { continue };
            let live = plan::population(&view.live);
            if usize::from(view.class) != class || !self.mergeable(index, &view, live, now) {
                continue;
            }
            let Some((phase, pages)) = nth_key(&view, unit, key, self.page) else { return false };
            let mut page = 0;
            while page < view.pages {
                let len = unit.min(view.pages - page);
                let merged = self.notes[index].merged >> page & ((1u32 << len) - 1) as u16 != 0;
                if !merged && (phase_of(&view, page, self.page), len) == (phase, pages) {
                    let start = view.start + usize::from(page) * self.page;
                    let candidate = Candidate { start, span: index as u32, page };
                    if !self.plan.units.push(self.os, candidate) {
                        self.degrade(degraded::NO_MEMORY);
                        return false;
                    }
                }
                page += len;
            }
            if seen == 0 {
                let geometry = Geometry {
                    slot_size: view.slot_size,
                    phase,
                    pages,
                    page_size: self.page as u32,
                };
                self.plan.geometry = geometry;
                let bytes = usize::from(pages) * self.page + phase as usize;
                self.plan.slots = bytes.div_ceil(view.slot_size as usize);
            }
            seen += 1;
            // What cannot be offered to `ksmd` in this pass is not planned: the pages of a group are to lie
            // close to those of others, for it looks at all that lies between.
            let enough =
                self.backend == Backend::Ksm && self.plan.units.len() >= self.offers_left();
            if seen >= spans || enough {
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
        let plan = &mut self.plan;
        let room = plan.order.resize(self.os, n, 0)
            && plan.group.resize(self.os, n, NONE)
            && plan.sizes.resize(self.os, n, 0)
            && plan.members.resize(self.os, n, 0)
            && plan.starts.resize(self.os, n + 1, 0)
            && plan.bits.resize(self.os, n * W, 0)
            && plan.unions.resize(self.os, n * W, 0);
        if !room {
            return None;
        }
        for unit in 0..n {
            let candidate = self.plan.units[unit];
            let view = self.look(candidate.span as usize).map(|(_, view)| view);
            let bits =
                view.map_or([0; 4], |view| self.unit_bits(&view, candidate.page, &view.live));
            self.plan.bits[unit * W..(unit + 1) * W].copy_from_slice(&bits[..W]);
        }
        let members = match self.backend {
            Backend::Ksm => super::remap::BATCH as u32,
            // A group is frozen as a whole.
            _ => self.batch_units() as u32,
        };
        let plan = &mut self.plan;
        let len = usize::from(plan.geometry.pages) * self.page;
        let units = &plan.units;
        let adjacent = |unit: usize| units[unit - 1].start + len == units[unit].start;
        let (bits, _) = plan.bits.as_chunks::<W>();
        let (unions, _) = plan.unions.as_chunks_mut::<W>();
        let scratch = Scratch { order: &mut plan.order, unions, sizes: &mut plan.sizes };
        let limits = Limits { members, ..Limits::DEFAULT };
        plan.groups = plan::pack(bits, limits, scratch, &mut plan.group);
        plan::arrange(
            &mut plan.group,
            plan.groups,
            adjacent,
            &mut plan.members,
            &mut plan.starts,
            &mut plan.sizes,
        );
        Some(plan::gain(bits, adjacent, &plan.geometry, &plan.group, unions))
    }

    /// The bits of `live` that belong to the unit at `page` of the plan's geometry.
    pub(crate) fn unit_bits(&self, view: &SpanView, page: u8, live: &Bits) -> Bits {
        let first = usize::from(page) * self.page / view.slot_size as usize;
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

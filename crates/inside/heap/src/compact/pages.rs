//! Pages of all classes planned together, for the KSM back end and a program that has settled.
//!
//! Most dead bytes of such a heap lie in pages of which more than half is live: no two of these can be merged, but what
//! is dead in one is room for pages of which little lives. Whatever class it is of, such a page is merged with a dense
//! one (a **host**) and needs no memory of its own:
//!
//! ```text
//!  host     ■■■■■■■■■■■■□□■■     512 bytes a slot, seven of eight live
//!  sparse   □□□□□□□□□□□□□■□□     256 bytes a slot, one of sixteen live
//!  image    ■■■■■■■■■■■■□■■■     256 bits a page, each an equal part of it: 16 bytes of 4 KiB
//! ```
//!
//! A write to a host costs a page, and its dead slots are not handed out while it is one, so only a heap that does not
//! change has them. Groups that were made while it did, of sparse pages alone, are taken apart and planned again, some
//! in a pass, for each of their pages is a page of its own from when it is filled until `ksmd` has merged it anew.
//!
//! Properties: bytes of a group are disjoint, which is checked again when its pages are blocked; a group that was
//! planned here is not planned again; a pass takes no more than [`AGAIN`] pages out of groups.

use core::ops::Range;

use super::batch::{Batch, Frozen, MEMBERS};
use super::classes::join;
use super::copy::{runs, window};
use super::extents::words_of;
use super::groups::END;
use super::pass::{Candidate, PAGE_WORDS, PAGES, Part, SPANS_SLICE, Stage, Step, WORDS};
use super::sort::Sorting;
use super::state::Compactor;
use super::{Bits, Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Limits};
use crate::stats::{Backend, degraded};
use crate::trigger::AGAIN;

/// Hosts, and other pages, that are planned at once.
const UNITS_MAX: usize = 1 << 14;

/// Pages noted in one slice, and groups looked at in one.
const UNITS_SLICE: usize = 512;
const GROUPS_SLICE: u32 = 16;

/// Live bits of a host: one with less is sparse, one with more has no room.
const HOST: Range<u32> = 128..249;

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Whether this pass plans pages of all classes together.
    pub(super) fn plans_pages(&self) -> bool {
        self.backend == Backend::Ksm && self.settings.settled && self.can_merge()
    }

    /// Plans pages, a slice of it at a time.
    pub(super) fn plan_pages(&mut self, step: Step) -> Stage {
        let next = match step {
            Step::Part { group } => Some(self.part_groups(group)),
            Step::Scan { at } => self.find_pages(at),
            Step::Sort => Some(match self.sort_units() {
                Step::Mark { .. } if self.plan.units.len() < 2 => return self.after_classes(),
                next => next,
            }),
            Step::Mark { at } => self.mark_pages(at),
            Step::Pack => self.pack_some::<PAGE_WORDS>(self.plan.units.len()),
            Step::Arrange => {
                self.arrange(|_, _| false);
                return Stage::Commit { at: PAGES, group: 0 };
            }
            Step::Fill { .. } | Step::Cut | Step::Order | Step::Name { .. } | Step::Index => {
                return self.after_classes();
            }
        };
        if next.is_none() {
            self.degrade(degraded::NO_MEMORY);
        }
        next.map_or_else(|| self.after_classes(), |step| Stage::Pages { step })
    }

    /// Pages offered to `ksmd` that it has not merged, as far as the kernel tells.
    pub fn waiting_for_ksmd(&self) -> u64 {
        let offered = self.groups.touched_pages + self.groups.lost_pages;
        self.kernel.ksm_merged().map_or(0, |merged| offered.saturating_sub(merged))
    }

    /// Takes groups that were made in haste apart, unless pages of earlier ones wait for `ksmd` still.
    fn part_groups(&mut self, first: u32) -> Step {
        if first == 0 {
            self.plan.parted = 0;
            if !self.settings.again || self.waiting_for_ksmd() > u64::from(AGAIN / 2) {
                return Step::Scan { at: 0 };
            }
        }
        let end = self.groups.groups.len().min((first + GROUPS_SLICE) as usize) as u32;
        for index in first..end {
            let group = self.groups.groups[index as usize];
            let parted = self.plan.parted + u32::from(group.members);
            if group.members == 0 || group.firm || parted > AGAIN {
                continue;
            }
            self.plan.parted = parted;
            let mut at = group.first;
            while at != END {
                let unit = self.groups.merged[at as usize];
                if let Some((span, view)) = self.span_view(unit.span as usize)
                    && view.generation == unit.generation
                {
                    self.release_unit(at, span, &view, true);
                }
                at = unit.next;
            }
        }
        if (end as usize) < self.groups.groups.len() {
            return Step::Part { group: end };
        }
        Step::Scan { at: 0 }
    }

    /// Collects pages; `None` if there is no memory.
    fn find_pages(&mut self, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.mixed = true;
            self.plan.extents.clear();
            self.plan.parts.clear();
            self.plan.units.clear();
            self.plan.hosts = 0;
        }
        let now = self.seconds();
        let end = self.notes.len().min(from + SPANS_SLICE);
        for index in from..end {
            if let Some((_, view)) = self.span_view(index)
                && self.takes_part(index, &view, now)
                && !self.add_pages(index, &view)
            {
                return None;
            }
        }
        if end < self.notes.len() {
            return Some(Step::Scan { at: end });
        }
        self.plan.sorting = Sorting::new(self.plan.units.len());
        Some(Step::Sort)
    }

    /// Whether pages of the span may be merged, be it as hosts. Slots of whole pages have no room, and a program may
    /// have changed the protection of an object that is made of whole pages.
    pub(super) fn takes_part(&self, index: usize, view: &SpanView, now: u32) -> bool {
        (view.slot_size as usize) < self.page
            && self.notes[index].merged.count_ones() < u32::from(view.pages)
            && self.is_quiet(index, now)
    }

    /// Adds the pages of a span; `false` if there is no memory.
    fn add_pages(&mut self, index: usize, view: &SpanView) -> bool {
        let (seen, merged) = (self.plan.parts.len() as u32, self.notes[index].merged);
        let mut any = false;
        for page in (0..view.pages).filter(|page| merged >> page & 1 == 0) {
            let live = plan::population(&self.page_bits(view.slot_size, page, &view.live));
            let hosts = self.plan.hosts;
            let others = self.plan.units.len() - hosts;
            let is_host = HOST.contains(&live);
            if !is_host && !(1..HOST.start).contains(&live)
                || if is_host { hosts } else { others } >= UNITS_MAX
            {
                continue;
            }
            let start = view.start + usize::from(page) * self.page;
            let candidate = Candidate { start, span: index as u32, page, seen };
            if !self.plan.units.push(self.os, candidate) {
                return false;
            }
            self.plan.hosts += usize::from(is_host);
            any = true;
        }
        let part = Part {
            start: view.start,
            span: index as u32,
            pages: view.pages,
            taken: 0,
            slot_size: view.slot_size,
            live: view.live,
        };
        !any || self.plan.parts.push(self.os, part)
    }

    /// Which equal parts of a page have live bytes.
    pub(super) fn page_bits(&self, slot_size: u32, page: u8, live: &Bits) -> [u64; PAGE_WORDS] {
        let (window, phase) = self.page_window(slot_size, &(page..page + 1), live);
        let mut bits = [0; PAGE_WORDS];
        for run in runs(window, slot_size as usize, phase as usize, self.page) {
            for (word, mask) in words_of(run, self.page) {
                bits[word] |= mask;
            }
        }
        bits
    }

    /// The live slots of some pages, the first being one that overlaps their start, and the bytes of that before them.
    pub(super) fn page_window(
        &self,
        slot_size: u32,
        pages: &Range<u8>,
        live: &Bits,
    ) -> (Bits, u32) {
        let (from, slot) = (usize::from(pages.start) * self.page, slot_size as usize);
        let (phase, len) = (from % slot, pages.len() * self.page);
        (window(live, from / slot, (phase + len).div_ceil(slot)), phase as u32)
    }

    /// Notes the live bytes of pages; `None` if there is no memory.
    fn mark_pages(&mut self, from: usize) -> Option<Step> {
        let units = self.plan.units.len();
        if from == 0 {
            let limits = Limits {
                members: MEMBERS as u32,
                dense: Some((HOST.start, HOST.end)),
                ..Limits::DEFAULT
            };
            if !self.room_for::<PAGE_WORDS>(units, limits) {
                return None;
            }
        }
        let end = units.min(from + UNITS_SLICE);
        for unit in from..end {
            let candidate = self.plan.units[unit];
            let part = self.plan.parts[candidate.seen as usize];
            for word in self.page_bits(part.slot_size, candidate.page, &part.live) {
                if !self.plan.bits.push(self.os, word) {
                    return None;
                }
            }
        }
        Some(if end < units { Step::Mark { at: end } } else { Step::Pack })
    }

    /// Blocks these pages of a planned group that still fit together. Those that do not are left.
    pub(super) fn block_pages(
        &mut self,
        group: u32,
        members: Range<u32>,
        union: &mut [u64; WORDS],
        batch: &mut Batch<S::Ref>,
    ) {
        for member in members {
            let candidate = self.plan.units[self.plan.members[member as usize] as usize];
            let part = self.plan.parts[candidate.seen as usize];
            let Some((span, view)) = self.span_view(candidate.span as usize) else { continue };
            if view.start != part.start || view.slot_size != part.slot_size {
                continue;
            }
            let range = candidate.page..candidate.page + 1;
            let Some(live) = self.spans.block(span, view.generation, range.clone()) else {
                continue;
            };
            let bits = self.page_bits(view.slot_size, candidate.page, &live);
            if !join(union, &bits) {
                self.spans.unblock(span, view.generation, range);
                continue;
            }
            let (live, phase) = self.page_window(view.slot_size, &range, &live);
            batch.push(Frozen {
                span,
                index: candidate.span,
                generation: view.generation,
                page: candidate.page,
                pages: 1,
                start: candidate.start,
                live,
                slot_size: view.slot_size,
                phase,
                image_page: 0,
                group,
                bytes: candidate.start,
                again: false,
            });
        }
    }
}

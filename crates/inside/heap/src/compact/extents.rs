//! Extents: sparse spans side by side, of whatever classes, that are merged as one.
//!
//! A fork copies every mapping, and what lies between two aliases is a mapping as well, the dearest kind: one of
//! anonymous pages. Programs fill spans of several classes in turn, so sparse spans of one class are seldom
//! neighbours, but sparse spans are. An **extent** is a run of them, at most as long as an image; extents whose
//! live *bytes* are disjoint share an image, and each is one mapping:
//!
//! ```text
//!  extent 1   |C■□□□□□□□□■□□□|a■|b□□■|a□|      256 bits a page, each an equal part of it: 16 bytes of 4 KiB
//!  extent 2   |C□□□■□□□□□□□□□|a□|b□■□|a■|
//!  image      |C■□□■□□□□□■□□□|a■|b□■■|a■|
//! ```
//!
//! Images have the size of the longest extents, and a shorter one may lie at any page of one.
//!
//! Only spans so sparse that a whole extent of them has a fair chance to fit others take part, and only extents that
//! free several pages for their mapping or need none, since they lie between two aliases; what is left is for the units
//! of single classes.
//!
//! **Where an extent ends** is a matter of price. The more lives in one, the fewer share an image, and the pages of
//! all its spans with them: about one image in `7 / r` extents whose `reluctance` is `r` bits. So to join two parts of
//! `p` and `q` pages and of `r` and `s` bits takes `(p s + q r) / 7` pages more than two extents side by side, which
//! are a mapping more. They are joined where that is less than a mapping must save (in a program at rest, since what is
//! merged stays as it is): long spans with few live slots and short ones with many are not, unless what is there is
//! too little for an extent of its own. If there are more extents then than mappings left, a mapping counts twice as
//! much, and so on.
//!
//! Properties: the units of an extent are whole spans of slots smaller than a page; an extent lies in one chunk; live
//! bytes of a group are disjoint, which is checked again with what is live when the units are blocked.

use core::ops::Range;

use super::batch::{Batch, Frozen, IMAGE_PAGES, MEMBERS, UNITS};
use super::copy::runs;
use super::pass::{
    EXTENTS, Extent, MOVES_SLICE, PAGE_WORDS, Part, Plan, SPANS_SLICE, Stage, Step, WORDS,
};
use super::sort::Sorting;
use super::state::Compactor;
use super::{Bits, CHUNK, Kernel, Spans};
use crate::os::Os;
use crate::plan::{self, Limits};
use crate::stats::{Backend, degraded};

/// Most spans in an extent.
const SPANS: usize = 8;

/// Most extents planned at once: a kilobyte each, twice.
const EXTENTS_MAX: usize = 8192;

/// Extents whose live bytes are noted in one slice.
const EXTENTS_SLICE: usize = 64;

/// Bounds on [`plan::reluctance`], in 1/256 bit: of a span, and of an extent (7 bits are one in 128).
const SPAN_RELUCTANCE: u32 = 2 * 256;
const EXTENT_RELUCTANCE: u32 = 7 * 256 / 2;

/// Places in images that an extent is tried at.
const PROBES: u32 = 4096;

/// Bits of reluctance that the probes of the planner overcome: [`plan::expected_members`].
const PROBED: u64 = 7;

/// Bytes for a mapping from which on no extent ends for its price.
const PRICE_MAX: u64 = 1 << 20;

/// Pages with live bytes that an extent must have to be worth a mapping.
const PAGES_LEAST: u32 = 3;

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Plans the extents, a slice of it at a time.
    pub(super) fn plan_extents(&mut self, step: Step) -> Stage {
        let next = match step {
            Step::Scan { at: 0 } if self.backend != Backend::Remap || !self.can_merge() => {
                return self.without_extents();
            }
            Step::Scan { at } => self.find_parts(at),
            Step::Sort => Some(self.sort_parts()),
            Step::Cut { at } => self.find_extents(at),
            Step::Mark { at } => self.mark_extents(at),
            Step::Pack => self.pack_some::<WORDS>(self.plan.extents.len()),
            Step::Arrange => {
                let page = self.page;
                self.arrange(|plan, extent| {
                    let before = plan.extents[extent - 1];
                    before.start + usize::from(before.pages) * page == plan.extents[extent].start
                });
                return match self.plan.groups {
                    0 => self.without_extents(),
                    _ => Stage::Commit { at: EXTENTS, group: 0 },
                };
            }
            // Of classes.
            Step::Fill { .. } | Step::Part { .. } => return self.without_extents(),
        };
        match next {
            Some(Step::Pack) if self.plan.extents.len() < 2 => self.without_extents(),
            Some(step) => Stage::Extents { step },
            None => {
                self.degrade(degraded::NO_MEMORY);
                self.without_extents()
            }
        }
    }

    fn without_extents(&mut self) -> Stage {
        self.plan.extents.clear();
        if self.plans_pages() {
            return Stage::Pages { step: Step::Part { group: 0 } };
        }
        Stage::class(0)
    }

    /// Collects spans that may be in an extent; `None` if there is no memory.
    fn find_parts(&mut self, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.parts.clear();
            self.plan.extents.clear();
        }
        let now = self.seconds();
        let end = self.listed.len().min(from + SPANS_SLICE);
        for at in from..end {
            let index = self.listed[at];
            if self.notes[index as usize].merged != 0 {
                continue;
            }
            let Some((_, view)) = self.span_view(index as usize) else { continue };
            let live = plan::population(&view.live);
            let reluctance = plan::reluctance(live, u32::from(view.slots));
            // Slots of whole pages save nothing, and a program may have changed the protection of an object that is
            // made of whole pages; units of single classes that save anything have no such slots.
            if view.slot_size as usize >= self.page
                || reluctance > SPAN_RELUCTANCE
                || !self.mergeable(index as usize, &view, live, now)
            {
                continue;
            }
            let touched = u32::from(view.pages) - self.free_pages(&view).count_ones();
            let part = Part {
                start: view.start,
                span: index,
                pages: view.pages,
                touched: touched as u8,
                reluctance: reluctance as u16,
                slot_size: view.slot_size,
                live: view.live,
            };
            if !self.plan.parts.push(self.os, part) {
                return None;
            }
        }
        if end < self.listed.len() {
            return Some(Step::Scan { at: end });
        }
        let work = self.unit_ns / 1000 * u64::from(self.settings.extent_work_price);
        self.plan.price = u64::from(self.settings.extent_price) + work;
        self.plan.sorting = Sorting::new(self.plan.parts.len());
        Some(Step::Sort)
    }

    fn sort_parts(&mut self) -> Step {
        let Plan { sorting, parts, .. } = &mut self.plan;
        if sorting.step(parts, |part| part.start, MOVES_SLICE) {
            Step::Cut { at: 0 }
        } else {
            Step::Sort
        }
    }

    /// Cuts parts into extents; `None` if there is no memory.
    fn find_extents(&mut self, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.extents.clear();
            self.plan.mappings = 0;
        }
        let (parts, price) = (&self.plan.parts, self.plan.price);
        let mut first = from;
        while first < parts.len() && self.plan.extents.len() < EXTENTS_MAX {
            if first - from >= SPANS_SLICE {
                return Some(Step::Cut { at: first });
            }
            let start = parts[first].start;
            let (mut pages, mut touched, mut reluctance) = (0, 0, 0);
            let mut end = first;
            for part in parts[first..].iter().take(SPANS) {
                let at = start + pages * self.page;
                let more = pages as u64 * u64::from(part.reluctance)
                    + u64::from(part.pages) * u64::from(reluctance);
                let fits = part.start == at
                    && pages + usize::from(part.pages) <= IMAGE_PAGES
                    && start / CHUNK == part.start / CHUNK
                    && reluctance + u32::from(part.reluctance) <= EXTENT_RELUCTANCE
                    && (touched < PAGES_LEAST || more * self.page as u64 <= price * PROBED * 256);
                if end > first && !fits {
                    break;
                }
                pages += usize::from(part.pages);
                touched += u32::from(part.touched);
                reluctance += u32::from(part.reluctance);
                end += 1;
            }
            let ends = |last: &Extent| last.start + usize::from(last.pages) * self.page;
            let follows = self.plan.extents.last().is_some_and(|last| ends(last) == start);
            let more = self.aliases.mappings_for(start, pages * self.page, follows);
            // What lies between two aliases is a mapping as it is.
            if touched >= PAGES_LEAST || touched > 0 && more == 0 {
                let extent = Extent {
                    start,
                    first: first as u32,
                    spans: (end - first) as u8,
                    pages: pages as u8,
                };
                self.plan.mappings += more;
                if !self.plan.extents.push(self.os, extent) {
                    return None;
                }
            }
            first = end;
        }
        if self.plan.mappings > self.mappings_left() && price < PRICE_MAX {
            self.plan.price = 2 * price;
            return Some(Step::Cut { at: 0 });
        }
        let members = 2 * MEMBERS as u32;
        let limits = Limits { members, probes: PROBES, slides: PAGE_WORDS, ..Limits::DEFAULT };
        self.room_for::<WORDS>(self.plan.extents.len(), limits).then_some(Step::Mark { at: 0 })
    }

    /// Notes the live bytes of extents; `None` if there is no memory.
    fn mark_extents(&mut self, from: usize) -> Option<Step> {
        let end = self.plan.extents.len().min(from + EXTENTS_SLICE);
        let page = self.page;
        for at in from..end {
            let extent = self.plan.extents[at];
            self.plan.moved[at] = IMAGE_PAGES as u8 - extent.pages;
            if !self.plan.bits.resize(self.os, (at + 1) * WORDS, 0) {
                return None;
            }
            for part in extent.first..extent.first + u32::from(extent.spans) {
                let part = self.plan.parts[part as usize];
                let offset = part.start - extent.start;
                let bits = &mut self.plan.bits[at * WORDS..];
                let len = usize::from(part.pages) * page;
                for run in runs(part.live, part.slot_size as usize, 0, len) {
                    for (word, mask) in words_of(offset + run.start..offset + run.end, page) {
                        bits[word] |= mask;
                    }
                }
            }
        }
        Some(if end < self.plan.extents.len() { Step::Mark { at: end } } else { Step::Pack })
    }

    /// Blocks the spans of these extents of a planned group that still fit together, and with `union`. Those that do
    /// not are left. Returns the member to go on with: a batch may be full.
    pub(super) fn block_extents(
        &mut self,
        group: u32,
        members: Range<u32>,
        union: &mut [u64; WORDS],
        left: &mut usize,
        batch: &mut Batch<S::Ref>,
    ) -> u32 {
        for member in members.clone() {
            let place = self.plan.members[member as usize] as usize;
            let (extent, moved) = (self.plan.extents[place], self.plan.moved[place]);
            if batch.len() + usize::from(extent.spans) > UNITS {
                return member;
            }
            if !self.affords(left, extent.start, usize::from(extent.pages) * self.page) {
                continue;
            }
            for part in extent.first..extent.first + u32::from(extent.spans) {
                let part = self.plan.parts[part as usize];
                let offset = part.start - extent.start + usize::from(moved) * self.page;
                let unit = self.block_part(part, offset, group, union);
                if let Some(unit) = unit {
                    let len = usize::from(part.pages) * self.page;
                    for run in runs(unit.live, unit.slot_size as usize, 0, len) {
                        for (word, mask) in
                            words_of(offset + run.start..offset + run.end, self.page)
                        {
                            union[word] |= mask;
                        }
                    }
                    batch.push(unit);
                }
            }
        }
        members.end
    }

    /// Blocks a span of an extent, `offset` bytes into the image, if it still is what was planned with and fits into
    /// `union`.
    fn block_part(
        &mut self,
        part: Part,
        offset: usize,
        group: u32,
        union: &[u64; WORDS],
    ) -> Option<Frozen<S::Ref>> {
        let (span, view) = self.span_view(part.span as usize)?;
        if view.start != part.start
            || view.slot_size != part.slot_size
            || self.notes[part.span as usize].merged != 0
        {
            return None;
        }
        let live = self.spans.block(span, view.generation, 0..part.pages)?;
        if plan::population(&live) == 0 || self.meets(&live, view.slot_size, part, offset, union) {
            self.spans.unblock(span, view.generation, 0..part.pages);
            return None;
        }
        Some(Frozen {
            span,
            index: part.span,
            generation: view.generation,
            page: 0,
            pages: part.pages,
            start: part.start,
            live,
            slot_size: view.slot_size,
            phase: 0,
            image_page: (offset / self.page) as u8,
            group,
            bytes: part.start,
        })
    }

    /// Whether live bytes of the span are taken in `union`.
    fn meets(
        &self,
        live: &Bits,
        slot_size: u32,
        part: Part,
        offset: usize,
        union: &[u64; WORDS],
    ) -> bool {
        let len = usize::from(part.pages) * self.page;
        runs(*live, slot_size as usize, 0, len).any(|run| {
            words_of(offset + run.start..offset + run.end, self.page)
                .any(|(word, mask)| union[word] & mask != 0)
        })
    }
}

/// The words, and the bits in each, of the granules that these bytes of an extent overlap: a page has 256 granules.
pub(super) fn words_of(
    bytes: Range<usize>,
    page_size: usize,
) -> impl Iterator<Item = (usize, u64)> {
    let granule = page_size / (64 * PAGE_WORDS);
    let (mut at, end) = (bytes.start / granule, bytes.end.div_ceil(granule));
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, shift) = (at / 64, at % 64);
        let count = (64 - shift).min(end - at);
        at += count;
        Some((word, u64::MAX >> (64 - count) << shift))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn granules_cover_just_what_bytes_overlap(
            start in 0usize..80_000, len in 1usize..9000, shift in 12u32..=16,
        ) {
            let page = 1usize << shift;
            let (start, end) = (start.min(31 * page), (start + len).min(IMAGE_PAGES * page));
            let mut words = [0u64; WORDS];
            for (word, mask) in words_of(start..end, page) {
                prop_assert_eq!(words[word] & mask, 0, "no bit twice");
                words[word] |= mask;
            }
            let granule = page / 256;
            for bit in 0..64 * WORDS {
                let overlaps = start < end && bit * granule < end && (bit + 1) * granule > start;
                prop_assert_eq!(words[bit / 64] >> (bit % 64) & 1 == 1, overlaps, "granule {}", bit);
            }
        }
    }
}

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
//! How long an extent is comes from where it fits: runs of sparse pages side by side are cut by [`crate::plan::cut`],
//! which fills a number of images at once. Only spans so sparse that their pages have a fair chance to fit others take
//! part; what is left is for the units of single classes.
//!
//! **How many images** is a matter of price. The fuller they get, the shorter extents are, and the more mappings it
//! takes: for each mapping more, an image that is half full saves two KiB, one that is two thirds full less than one.
//! If there are more extents then than mappings left, a mapping counts for more, as what is left suggests.
//!
//! Properties: the units of an extent are pages of one span each, with slots smaller than a page; an extent lies in one
//! chunk; live bytes of a group are disjoint, which is checked again with what is live when the units are blocked.

use core::ops::Range;

use super::batch::{Batch, Frozen, IMAGE_PAGES, UNITS};
use super::copy::runs;
use super::pass::{
    EXTENTS, Extent, MOVES_SLICE, PAGE_WORDS, Part, Plan, SPANS_SLICE, Stage, Step, WORDS,
};
use super::sort::Sorting;
use super::state::Compactor;
use super::{CHUNK, Kernel, Spans};
use crate::central::page_bits;
use crate::os::Os;
use crate::plan::cut::{Bounds, Cutting, Run, Tables};
use crate::plan::{self, NONE};
use crate::stats::{Backend, degraded};

/// Most pages planned at once: 37 bytes each.
pub(super) const PAGES_MAX: usize = 1 << 16;

/// Most pages of an extent, and so units.
const EXTENT_PAGES: usize = 32;

/// Spans whose live bytes are noted in one slice, extents named in one, and steps of cutting.
const PARTS_SLICE: usize = 64;
const EXTENTS_SLICE: usize = 1024;
const CUT_SLICE: u32 = 8192;

/// Bound on [`plan::reluctance`] of a span, in 1/256 bit.
const SPAN_RELUCTANCE: u32 = 2 * 256;

/// Places in images that an extent is tried at.
const PROBES: u32 = 4096;

/// Bytes for a mapping from which on images get no emptier for it.
const PRICE_MAX: u64 = 16 << 10;

/// Live bits, of 16 bytes of a page of 4 KiB, that an extent must hold for no further image to be begun instead.
const LEAST: u32 = 4;

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Plans the extents, a slice of it at a time.
    pub(super) fn plan_extents(&mut self, step: Step) -> Stage {
        let next = match step {
            Step::Scan { at: 0 } if self.backend != Backend::Remap || !self.can_merge() => {
                return self.without_extents();
            }
            Step::Scan { at: 0 } if self.renews && self.plan.olds.is_empty() => {
                Some(Step::Part { group: 0 })
            }
            Step::Part { group } => self.note_renewed(group),
            Step::Index => Some(self.sort_renewed()),
            Step::Scan { at } => self.find_parts(at),
            Step::Sort => Some(self.sort_parts()),
            Step::Mark { at } => self.mark_parts(at),
            Step::Cut => match self.cut_runs() {
                Some(Step::Order) if self.plan.planned.len() < 2 => return self.without_extents(),
                next => next,
            },
            Step::Order => Some(self.sort_planned()),
            Step::Name { at } => self.name_extents(at),
            Step::Arrange => {
                self.arrange(|_, _| false);
                return match self.plan.groups {
                    0 => self.without_extents(),
                    _ => Stage::Commit { at: EXTENTS, group: 0 },
                };
            }
            // Of classes.
            Step::Fill { .. } | Step::Pack => return self.without_extents(),
        };
        match next {
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
        let count = if self.renews { self.notes.len() } else { self.listed.len() };
        let end = count.min(from + SPANS_SLICE);
        for at in from..end {
            let index = if self.renews { at as u32 } else { self.listed[at] };
            let Some((_, view)) = self.span_view(index as usize) else { continue };
            let live = plan::population(&view.live);
            // Slots of whole pages save nothing, and a program may have changed the protection of an object that is
            // made of whole pages; units of single classes that save anything have no such slots.
            let fits = (view.slot_size as usize) < self.page
                && plan::reluctance(live, u32::from(view.slots)) <= SPAN_RELUCTANCE
                && self.mergeable(index as usize, &view, live, now);
            let merged = self.notes[index as usize].merged;
            let loose = self.loose(index as usize);
            if live == 0 || !fits && loose == 0 {
                continue;
            }
            let part = Part {
                start: view.start,
                span: index,
                pages: view.pages,
                taken: if fits { merged & !loose } else { !loose },
                slot_size: view.slot_size,
                live: view.live,
            };
            if !self.plan.parts.push(self.os, part) {
                return None;
            }
        }
        if end < count {
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
            Step::Mark { at: 0 }
        } else {
            Step::Sort
        }
    }

    /// Notes the live bytes of pages, and which lie side by side; `None` if there is no memory.
    fn mark_parts(&mut self, from: usize) -> Option<Step> {
        if from == 0 {
            self.plan.pages.clear();
            self.plan.begins.clear();
            self.plan.homes.clear();
            self.plan.runs.clear();
        }
        let end = self.plan.parts.len().min(from + PARTS_SLICE);
        for at in from..end {
            let part = self.plan.parts[at];
            if self.plan.pages.len() + usize::from(part.pages) > PAGES_MAX {
                self.renews_in_part = true;
                return self.begin_to_cut();
            }
            for page in (0..part.pages).filter(|page| part.taken >> page & 1 == 0) {
                self.mark_page(at as u32, part, page)?;
            }
        }
        if end < self.plan.parts.len() { Some(Step::Mark { at: end }) } else { self.begin_to_cut() }
    }

    /// Notes a page of a part; `None` if there is no memory.
    fn mark_page(&mut self, at: u32, part: Part, page: u8) -> Option<()> {
        let start = part.start + usize::from(page) * self.page;
        let number = self.plan.pages.len() as u32;
        let follows = !start.is_multiple_of(CHUNK)
            && self.plan.homes.last().is_some_and(|home| self.home(*home) + self.page == start);
        if !follows {
            let run = Run { first: number, end: number, after: Run::NOWHERE };
            self.plan.runs.push(self.os, run).then_some(())?;
        }
        if let Some(run) = self.plan.runs.last_mut() {
            run.end = number + 1;
        }
        let bits = self.page_bits(part.slot_size, page, &part.live);
        let noted = self.plan.pages.push(self.os, bits)
            && self.plan.begins.push(self.os, page == 0)
            && self.plan.homes.push(self.os, at << 4 | u32::from(page));
        noted.then_some(())
    }

    /// The address of a page by the part and the page of it.
    fn home(&self, home: u32) -> usize {
        self.plan.parts[(home >> 4) as usize].start + (home & 15) as usize * self.page
    }

    /// Begins to cut the runs, with as many mappings as are left; `None` if there is no memory.
    fn begin_to_cut(&mut self) -> Option<Step> {
        let edges = |run: &Run| {
            let start = self.home(self.plan.homes[run.first as usize]);
            self.aliases.mappings_for(start, (run.end - run.first) as usize * self.page, false)
        };
        // A run takes what its edges add, and one for each place where it is cut.
        let taken: usize = self.plan.runs.iter().map(edges).sum();
        let most = self.mappings_left().saturating_add(self.plan.runs.len()).saturating_sub(taken);
        let plan = &mut self.plan;
        plan.live = plan.pages.iter().map(|page| u64::from(plan::population(page))).sum();
        plan.begun = images(plan.live, plan.price);
        let room = (plan.begun + plan.begun / 2 + 8) as usize * IMAGE_PAGES;
        plan.cutting = Cutting::new();
        plan.planned.clear();
        plan.queue.clear();
        let is_room = plan.images.resize(self.os, room, [0; PAGE_WORDS])
            && plan.queue.resize(self.os, plan.runs.len(), Default::default())
            && plan.planned.resize(self.os, most.min(plan.pages.len()), Default::default());
        is_room.then_some(Step::Cut)
    }

    /// Cuts runs where they fit, a slice of it; `None` if there is no memory.
    fn cut_runs(&mut self) -> Option<Step> {
        let plan = &mut self.plan;
        let live = plan.live;
        let bounds = Bounds {
            image_pages: IMAGE_PAGES,
            extent_pages: EXTENT_PAGES,
            probes: PROBES,
            images: plan.begun,
            least: LEAST,
        };
        let mut tables = Tables {
            pages: &plan.pages,
            begins: &plan.begins,
            runs: &mut plan.runs,
            queue: &mut plan.queue,
            images: &mut plan.images,
            extents: &mut plan.planned,
        };
        let Some(cut) = plan.cutting.step(&mut tables, bounds, CUT_SLICE) else {
            return Some(Step::Cut);
        };
        if cut.full {
            let price = plan.price;
            let live = live.max(2);
            let left = plan.cutting.left().clamp(1, live - 1);
            // Of what is placed last a hundredth takes two hundredths of the extents and more: a price of eight
            // hundredths more made room for it in Redis, and where much is left much more is needed.
            let (more, times) = ((price * 8 * left / live).max(price / 8), live / (live - left));
            plan.price = (price + more.max(1)).max(price << (2 * times.ilog2()).min(4));
            self.lacks_mappings();
            if price < PRICE_MAX {
                return Some(Step::Mark { at: 0 });
            }
        }
        let plan = &mut self.plan;
        plan.planned.truncate(cut.extents);
        plan.groups = cut.images;
        plan.sorting = Sorting::new(cut.extents);
        Some(Step::Order)
    }

    fn sort_planned(&mut self) -> Step {
        let Plan { sorting, planned, .. } = &mut self.plan;
        if sorting.step(planned, |extent| extent.first as usize, MOVES_SLICE) {
            Step::Name { at: 0 }
        } else {
            Step::Order
        }
    }

    /// Notes where extents are and which share an image; `None` if there is no memory.
    fn name_extents(&mut self, from: usize) -> Option<Step> {
        let (extents, images) = (self.plan.planned.len(), self.plan.groups as usize);
        if from == 0 {
            let plan = &mut self.plan;
            plan.sizes.clear();
            let is_room = plan.sizes.resize(self.os, images.max(extents), 0)
                && plan.group.resize(self.os, extents, NONE)
                && plan.members.resize(self.os, extents, 0)
                && plan.starts.resize(self.os, extents + 1, 0);
            if !is_room {
                return None;
            }
        }
        let end = extents.min(from + EXTENTS_SLICE);
        for at in from..end {
            let planned = self.plan.planned[at];
            let home = self.plan.homes[planned.first as usize];
            let start = self.home(home);
            let extent = Extent { start, first: home >> 4, pages: planned.pages, at: planned.at };
            if !self.plan.extents.push(self.os, extent) {
                return None;
            }
            self.plan.group[at] = planned.image;
            self.plan.sizes[planned.image as usize] += 1;
        }
        if end < extents {
            return Some(Step::Name { at: end });
        }
        let Plan { group, sizes, groups, .. } = &mut self.plan;
        *groups = plan::drop_single(group, extents, sizes, *groups);
        Some(Step::Arrange)
    }

    /// Blocks the units of these extents of a planned group that still fit together, and with `union`. Those that do
    /// not are left. Returns the member to go on with: a batch may be full.
    pub(super) fn block_extents(
        &mut self,
        group: u32,
        members: Range<u32>,
        union: &mut [u64; WORDS],
        batch: &mut Batch<S::Ref>,
    ) -> u32 {
        for member in members.clone() {
            let place = self.plan.members[member as usize] as usize;
            let extent = self.plan.extents[place];
            if batch.len() + usize::from(extent.pages) > UNITS {
                return member;
            }
            let end = extent.start + usize::from(extent.pages) * self.page;
            let (mut at, mut next) = (extent.start, extent.first as usize);
            while at < end {
                let part = self.plan.parts[next];
                let from = ((at - part.start) / self.page) as u8;
                let to = ((end - part.start) / self.page).min(usize::from(part.pages)) as u8;
                let image_page = extent.at + ((at - extent.start) / self.page) as u8;
                let mut first = from;
                while first < to {
                    let run = first..self.alike(part, first..to);
                    let image_page = image_page + (first - from);
                    if let Some(unit) = self.block_part(part, run.clone(), image_page, group, union)
                    {
                        for (word, mask) in self.words_of_unit(&unit) {
                            union[word] |= mask;
                        }
                        batch.push(unit);
                    }
                    first = run.end;
                }
                at = part.start + usize::from(to) * self.page;
                next += 1;
            }
        }
        members.end
    }

    /// Where the first of these pages end that are all in a group, or none of them.
    fn alike(&self, part: Part, pages: Range<u8>) -> u8 {
        let loose = self.loose(part.span as usize) >> pages.start;
        let same = if loose & 1 == 1 { loose.trailing_ones() } else { loose.trailing_zeros() };
        pages.end.min(pages.start + same as u8)
    }

    /// Blocks pages of a span, if it still is what was planned with and they fit into `union`. Those of a group that
    /// are planned again are blocked.
    fn block_part(
        &mut self,
        part: Part,
        pages: Range<u8>,
        image_page: u8,
        group: u32,
        union: &[u64; WORDS],
    ) -> Option<Frozen<S::Ref>> {
        let (span, view) = self.span_view(part.span as usize)?;
        let loose = self.loose(part.span as usize);
        let merged = self.notes[part.span as usize].merged & !loose;
        let again = loose & page_bits(&pages) != 0;
        if view.start != part.start
            || view.slot_size != part.slot_size
            || merged & page_bits(&pages) != 0
            || again && self.pins
        {
            return None;
        }
        // Slots of blocked pages are not handed out, so no more of them can live than here.
        let live = match again {
            true => view.live,
            false => self.spans.block(span, view.generation, pages.clone())?,
        };
        let (live, phase) = self.page_window(view.slot_size, &pages, &live);
        let start = part.start + usize::from(pages.start) * self.page;
        let unit = Frozen {
            span,
            index: part.span,
            generation: view.generation,
            page: pages.start,
            pages: pages.len() as u8,
            start,
            live,
            slot_size: view.slot_size,
            phase,
            image_page,
            group,
            bytes: start,
            again,
        };
        let meets = self.words_of_unit(&unit).any(|(word, mask)| union[word] & mask != 0);
        if plan::population(&live) == 0 || meets {
            self.unblock_unit(&unit);
            return None;
        }
        Some(unit)
    }

    /// The words of an image, and the bits in each, that live bytes of a unit take.
    fn words_of_unit(
        &self,
        unit: &Frozen<S::Ref>,
    ) -> impl Iterator<Item = (usize, u64)> + use<S, K, O> {
        let (page, at) = (self.page, usize::from(unit.image_page) * self.page);
        let len = usize::from(unit.pages) * page;
        runs(unit.live, unit.slot_size as usize, unit.phase as usize, len)
            .flat_map(move |run| words_of(at + run.start..at + run.end, page))
    }
}

/// With how many images cutting begins for so many live bits where a mapping counts for `price` bytes: three in eight
/// of an image filled at 4 KiB, five at 1 KiB, which is where what is saved for the last mapping is worth it in Redis.
fn images(live: u64, price: u64) -> u32 {
    let price = price.clamp(1, PRICE_MAX);
    let power = u64::from(price.ilog2());
    // In 1/256 each.
    let log = power * 256 + ((price << 8 >> power) - 256);
    let share = 510u64.saturating_sub(35 * log / 256).clamp(32, 200);
    (live * 256).div_ceil(share * IMAGE_PAGES as u64 * 64 * PAGE_WORDS as u64).max(1) as u32
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

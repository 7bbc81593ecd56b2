//! What is merged now: units, groups and the image segments that hold their bytes.
//!
//! ```text
//!  Segment (one memfd)   [image][image][image]......        given out from the front, never reused
//!                           ▲
//!  Group ───────────────────┘   first ─► Merged ─► Merged ─► end
//! ```
//!
//! No byte of a unit that was ever mapped to an image is written again or punched out: a child made by `fork`, or by a
//! `clone` that no handler saw, may still map it. While a pass goes on, further members of a group add their bytes
//! where those before have none. Memory of an image comes back when its segment is closed (by every process); the
//! engine therefore empties segments of which little is left.

use core::ops::Range;

use super::table::Table;
use super::{Image, Kernel};
use crate::os::Os;

/// End of a list of [`Merged`].
pub(crate) const END: u32 = u32::MAX;

/// A unit that is in a group.
#[derive(Clone, Copy)]
pub(crate) struct Merged {
    /// Index of its span.
    pub span: u32,
    /// Generation of the span when the unit was blocked.
    pub generation: u32,
    /// Its group; [`END`] if this entry is free.
    pub group: u32,
    /// The next member of the group, or the next free entry.
    pub next: u32,
    /// First page in the span.
    pub page: u8,
    /// Pages.
    pub pages: u8,
    /// Whether it is the first unit of its mapping.
    pub leads: bool,
    /// Pages that had live slots when it was merged.
    pub touched: u16,
    /// Pages that the program has written since.
    pub lost: u16,
    /// Pass in which it was merged, its lowest bits.
    pub pass: u8,
    /// Second in which it was merged.
    pub at: u32,
}

/// A set of units with one image.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// Index of its segment; [`END`] for a group of the KSM back end, whose image is the kernel's.
    pub segment: u32,
    /// Its members.
    pub first: u32,
    /// Number of members; 0 if the entry is free.
    pub members: u16,
    /// Pages of the image that hold live bytes.
    pub image_pages: u8,
    /// Some member was seen to be merged by `ksmd` (KSM back end).
    pub seen: bool,
    /// It was made when the program had settled, and is not planned again (KSM back end).
    pub firm: bool,
}

/// A file that holds images.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    /// The file, or `None` once it is closed.
    pub image: Option<Image>,
    /// Pages in it.
    pub pages: u32,
    /// Pages given out.
    pub used: u32,
    /// Groups that were ever given a place.
    pub groups: u32,
    /// Groups still there.
    pub live: u32,
    /// Pages that hold bytes: memory until the file is closed.
    pub held: u32,
    /// What is planned again of it, if it is worth that.
    pub renewal: Renewal,
}

/// What the last scan found of a [`Segment`], and what was done about it.
#[derive(Clone, Copy)]
pub(crate) struct Renewal {
    /// Bytes of its units' slots that live, and the units' pages.
    pub live_bytes: u64,
    pub unit_pages: u32,
    /// What lived when all of it had been planned at rest, once that was looked at.
    pub lived: u64,
    /// All of it was planned at rest.
    pub done: bool,
    /// It is to be planned again in the pass that comes.
    pub due: bool,
    /// Groups in it when that pass began.
    pub groups: u32,
}

impl Renewal {
    pub(crate) const NEW: Self =
        Self { live_bytes: 0, unit_pages: 0, lived: 0, done: false, due: false, groups: 0 };
}

const _: () = assert!(size_of::<Merged>() == 28, "there is one for each unit");

impl Segment {
    fn has_room(&self, pages: u32) -> bool {
        self.image.is_some() && self.used + pages <= self.pages
    }
}

/// Everything that is merged.
pub(crate) struct Groups {
    pub merged: Table<Merged>,
    pub groups: Table<Group>,
    pub segments: Table<Segment>,
    free_merged: u32,
    free_group: u32,
    /// Groups in force.
    pub live: u64,
    /// Pages in merged units.
    pub merged_pages: u64,
    /// Pages with live slots at merge time, less those written since.
    pub touched_pages: u64,
    /// Pages of merged units that were written since.
    pub lost_pages: u64,
    /// Pages of images in force.
    pub image_pages: u64,
    /// Pages of image files that hold bytes, be it of images that are in force no more.
    pub held_pages: u64,
    /// Units of groups that are firm, and pages of their images.
    pub firm_units: u64,
    pub firm_pages: u64,
    /// Units in force.
    pub units: u64,
    /// Mappings that they were made with: those of their first units.
    pub mappings: u64,
}

impl Groups {
    pub(crate) const fn new() -> Self {
        Self {
            merged: Table::new(),
            groups: Table::new(),
            segments: Table::new(),
            free_merged: END,
            free_group: END,
            live: 0,
            merged_pages: 0,
            touched_pages: 0,
            lost_pages: 0,
            image_pages: 0,
            held_pages: 0,
            firm_units: 0,
            firm_pages: 0,
            units: 0,
            mappings: 0,
        }
    }

    /// Physical pages behind merged units that were not written: of files, or by `ksmd`.
    pub(crate) fn behind_pages(&self) -> u64 {
        if self.segments.is_empty() { self.image_pages } else { self.held_pages }
    }

    /// Physical pages saved now, by the engine's own count.
    pub(crate) fn saved_pages(&self) -> u64 {
        self.touched_pages.saturating_sub(self.behind_pages())
    }

    /// Room for so many more units and groups, so that recording a commit cannot fail.
    pub(crate) fn reserve(&mut self, os: &impl Os, units: usize, groups: usize) -> bool {
        let (merged, groups) = (self.merged.len() + units, self.groups.len() + groups);
        self.merged.reserve(os, merged) && self.groups.reserve(os, groups)
    }

    /// Records a group; the caller has reserved room. Returns its index.
    pub(crate) fn add_group(&mut self, os: &impl Os, segment: u32, image_pages: u8) -> u32 {
        let group =
            Group { segment, first: END, members: 0, image_pages, seen: false, firm: false };
        self.live += 1;
        self.image_pages += u64::from(image_pages);
        if let Some(segment) = self.segments.get_mut(segment as usize) {
            segment.live += 1;
            segment.groups += 1;
            segment.held += u32::from(image_pages);
            self.held_pages += u64::from(image_pages);
        }
        if self.free_group != END {
            let index = self.free_group;
            self.free_group = self.groups[index as usize].first;
            self.groups[index as usize] = group;
            return index;
        }
        let pushed = self.groups.push(os, group);
        debug_assert!(pushed, "room was reserved");
        self.groups.len() as u32 - 1
    }

    /// Notes that a group, which has no members yet, was made when the program had settled.
    pub(crate) fn set_firm(&mut self, group: u32) {
        self.groups[group as usize].firm = true;
        self.firm_pages += u64::from(self.groups[group as usize].image_pages);
    }

    /// Notes that the image of a group has become so many pages larger.
    pub(crate) fn widen(&mut self, group: u32, pages: u8) {
        let group = &mut self.groups[group as usize];
        group.image_pages += pages;
        self.image_pages += u64::from(pages);
        if let Some(segment) = self.segments.get_mut(group.segment as usize) {
            segment.held += u32::from(pages);
            self.held_pages += u64::from(pages);
        }
    }

    /// Records a member, and returns the index of the record; the caller has reserved room.
    pub(crate) fn add_member(&mut self, os: &impl Os, group: u32, unit: Merged) -> u32 {
        let entry = Merged { group, next: self.groups[group as usize].first, ..unit };
        let index = if self.free_merged != END {
            let index = self.free_merged;
            self.free_merged = self.merged[index as usize].next;
            self.merged[index as usize] = entry;
            index
        } else {
            let pushed = self.merged.push(os, entry);
            debug_assert!(pushed, "room was reserved");
            self.merged.len() as u32 - 1
        };
        let owner = &mut self.groups[group as usize];
        owner.first = index;
        owner.members += 1;
        self.units += 1;
        self.firm_units += u64::from(owner.firm);
        self.mappings += u64::from(unit.leads);
        self.merged_pages += u64::from(unit.pages);
        self.touched_pages += u64::from((unit.touched & !unit.lost).count_ones());
        index
    }

    /// Notes that the program wrote to pages of a unit; returns how many are new.
    pub(crate) fn mark_lost(&mut self, index: u32, lost: u16) -> u32 {
        let unit = &mut self.merged[index as usize];
        let fresh = lost & unit.touched & !unit.lost;
        unit.lost |= fresh;
        self.touched_pages -= u64::from(fresh.count_ones());
        self.lost_pages += u64::from(fresh.count_ones());
        fresh.count_ones()
    }

    /// Takes a unit out of its group. With the last one the group goes, and with the last group of a
    /// segment that is full the segment.
    pub(crate) fn remove(&mut self, kernel: &impl Kernel, index: u32) {
        let unit = self.merged[index as usize];
        let group = unit.group as usize;
        let mut at = self.groups[group].first;
        if at == index {
            self.groups[group].first = unit.next;
        } else {
            while self.merged[at as usize].next != index {
                at = self.merged[at as usize].next;
            }
            self.merged[at as usize].next = unit.next;
        }
        self.units -= 1;
        self.firm_units -= u64::from(self.groups[group].firm);
        self.mappings -= u64::from(unit.leads);
        self.merged_pages -= u64::from(unit.pages);
        self.touched_pages -= u64::from((unit.touched & !unit.lost).count_ones());
        self.lost_pages -= u64::from(unit.lost.count_ones());
        self.merged[index as usize].group = END;
        self.merged[index as usize].next = self.free_merged;
        self.free_merged = index;

        self.groups[group].members -= 1;
        if self.groups[group].members > 0 {
            return;
        }
        self.live -= 1;
        let pages = u64::from(self.groups[group].image_pages);
        self.image_pages -= pages;
        self.firm_pages -= if self.groups[group].firm { pages } else { 0 };
        let segment = self.groups[group].segment as usize;
        self.groups[group].first = self.free_group;
        self.free_group = group as u32;
        if segment < self.segments.len() {
            self.segments[segment].live -= 1;
            self.close_if_empty(kernel, segment);
        }
    }

    fn close_if_empty(&mut self, kernel: &impl Kernel, segment: usize) {
        let newest = segment + 1 == self.segments.len();
        let segment = &mut self.segments[segment];
        // The newest one may be empty because its first image has yet to be made.
        if segment.live > 0 || newest && segment.groups == 0 {
            return;
        }
        self.held_pages -= u64::from(core::mem::take(&mut segment.held));
        if let Some(image) = segment.image.take() {
            kernel.image_close(image);
        }
    }

    /// Takes pages of a unit, counted in its span, out of its group. Returns the record of the unit's pages that lie
    /// behind them if it is a new one, for which the caller has reserved room.
    pub(crate) fn give_up(
        &mut self,
        os: &impl Os,
        kernel: &impl Kernel,
        index: u32,
        pages: Range<u8>,
    ) -> Option<u32> {
        let unit = self.merged[index as usize];
        let end = unit.page + unit.pages;
        debug_assert!(unit.page <= pages.start && pages.end <= end, "pages of the unit");
        let part = |from: u8, to: u8| {
            let (shift, mask) = (from - unit.page, ((1u32 << (to - from)) - 1) as u16);
            let of = |pages: u16| (u32::from(pages) >> shift) as u16 & mask;
            let (touched, lost) = (of(unit.touched), of(unit.lost));
            Merged { page: from, pages: to - from, touched, lost, ..unit }
        };
        let (before, behind) = (part(unit.page, pages.start), part(pages.end, end));
        if before.pages == 0 && behind.pages == 0 {
            self.remove(kernel, index);
            return None;
        }
        let taken = part(pages.start, pages.end);
        self.merged_pages -= u64::from(taken.pages);
        self.touched_pages -= u64::from((taken.touched & !taken.lost).count_ones());
        self.lost_pages -= u64::from(taken.lost.count_ones());
        let behind = Merged { leads: true, ..behind };
        if before.pages == 0 {
            self.mappings += u64::from(!unit.leads);
            self.merged[index as usize] = behind;
            return None;
        }
        self.merged[index as usize] = before;
        if behind.pages == 0 {
            return None;
        }
        // Its pages are counted already.
        self.merged_pages -= u64::from(behind.pages);
        self.touched_pages -= u64::from((behind.touched & !behind.lost).count_ones());
        Some(self.add_member(os, unit.group, behind))
    }

    /// Makes sure that the current segment has room for `pages` more; `false` if no file can be made.
    pub(crate) fn ready(
        &mut self,
        os: &impl Os,
        kernel: &impl Kernel,
        pages: u32,
        page_size: usize,
    ) -> bool {
        if self.segments.last().is_some_and(|last| last.has_room(pages)) {
            return true;
        }
        // Grows with what is merged, so that the number of files stays below a hundred.
        let size = (self.image_pages / 32).clamp(2048, 1 << 18) as u32;
        let size = size.max(pages);
        let Ok(image) = kernel.image_create(size as usize * page_size) else { return false };
        let segment = Segment {
            image: Some(image),
            pages: size,
            used: 0,
            groups: 0,
            live: 0,
            held: 0,
            renewal: Renewal::NEW,
        };
        if !self.segments.push(os, segment) {
            kernel.image_close(image);
            return false;
        }
        if let Some(previous) = self.segments.len().checked_sub(2) {
            self.close_if_empty(kernel, previous);
        }
        true
    }

    /// A place for an image of `pages` pages: its segment and first page there. `None` if no file can be made.
    pub(crate) fn place(
        &mut self,
        os: &impl Os,
        kernel: &impl Kernel,
        pages: u32,
        page_size: usize,
    ) -> Option<(u32, u32)> {
        if !self.ready(os, kernel, pages, page_size) {
            return None;
        }
        let count = self.segments.len();
        let last = self.segments.last_mut()?;
        last.used += pages;
        Some((count as u32 - 1, last.used - pages))
    }

    /// Whether so little is left in the unit's segment that its groups should leave it.
    pub(crate) fn sparse_segment(&self, group: u32) -> bool {
        let index = self.groups[group as usize].segment as usize;
        index + 1 < self.segments.len() && {
            let segment = &self.segments[index];
            segment.live * 4 < segment.groups
        }
    }

    /// Forgets the files, which belong to the parent's descriptor table; the mappings stay.
    pub(crate) fn disown(&mut self) {
        for segment in self.segments.iter_mut() {
            segment.image = None;
        }
    }

    /// Frees the tables and closes the files; for when the engine ends.
    pub(crate) fn release(&mut self, os: &impl Os, kernel: &impl Kernel) {
        for segment in self.segments.iter_mut() {
            if let Some(image) = segment.image.take() {
                kernel.image_close(image);
            }
        }
        self.merged.release(os);
        self.groups.release(os);
        self.segments.release(os);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::super::memory::{Memory, PAGE};
    use super::super::{BarrierSupport, Errno, Registration, Sys};
    use super::*;

    #[derive(Default)]
    struct Files {
        images: RefCell<Vec<Vec<u8>>>,
    }

    impl Files {
        fn os(&self) -> &Memory {
            &Memory
        }

        fn entry(&self) -> u64 {
            0
        }

        fn maps(&self, _: usize, _: usize, _: Image, _: usize) -> Sys<()> {
            Err(Errno(1))
        }
    }

    impl Kernel for Files {
        kernel_on_memory!();

        fn now_ns(&self) -> u64 {
            0
        }

        fn barrier(&self) -> BarrierSupport {
            BarrierSupport::Nothing
        }

        fn write_protect(&self, _: usize, _: usize, _: bool) -> Sys<()> {
            Ok(())
        }

        fn waiters(&self) -> usize {
            0
        }

        fn wake(&self, _: usize, _: usize) {}
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

        /// Units of a span each, in groups of two, and ranges of pages that are given up, as far as they are there.
        #[test]
        fn pages_are_counted_where_they_are(
            units in prop::collection::vec((0u8..16, 1u8..=16, any::<u16>(), any::<u16>()), 2..12),
            gone in prop::collection::vec((any::<prop::sample::Index>(), 0u8..16, 1u8..=16), 0..30),
        ) {
            let (os, kernel, mut groups) = (Memory, Files::default(), Groups::new());
            // By span and page: the record, and whether it has memory of the image and was written.
            let mut model: BTreeMap<(u32, u8), (u32, bool, bool)> = BTreeMap::new();
            prop_assert!(groups.ready(&os, &kernel, 16, PAGE));
            prop_assert!(groups.reserve(&os, 64, 16));
            let mut group = END;
            for (span, &(first, pages, touched, lost)) in (0u32..).zip(&units) {
                let pages = pages.min(16 - first);
                let mask = ((1u32 << pages) - 1) as u16;
                if span.is_multiple_of(2) {
                    group = groups.add_group(&os, 0, 3);
                }
                let unit = Merged {
                    span, generation: 0, group, next: END, page: first, pages, leads: true,
                    touched: touched & mask, lost: 0, pass: 0, at: 0,
                };
                let index = groups.add_member(&os, group, unit);
                groups.mark_lost(index, lost);
                for page in 0..pages {
                    let is = |bits: u16| bits >> page & 1 == 1;
                    let entry = (index, is(touched), is(touched) && is(lost));
                    model.insert((span, first + page), entry);
                }
            }
            for (unit, from, len) in gone {
                let span = unit.index(units.len()) as u32;
                let Some((&(_, from), &(index, ..))) = model.range((span, from)..(span + 1, 0)).next()
                else { continue };
                let same = |page: &u8| model.get(&(span, *page)).is_some_and(|entry| entry.0 == index);
                let to = (from..from + len).take_while(same).last().map_or(from, |page| page + 1);
                let behind = groups.give_up(&os, &kernel, index, from..to);
                (from..to).for_each(|page| _ = model.remove(&(span, page)));
                for (&(_, page), entry) in model.range_mut((span, to)..(span + 1, 0)) {
                    if entry.0 == index && let Some(behind) = behind {
                        prop_assert!(groups.merged[behind as usize].page <= page);
                        entry.0 = behind;
                    }
                }
                let count = |is: fn(&(u32, bool, bool)) -> bool| {
                    model.values().filter(|entry| is(entry)).count() as u64
                };
                prop_assert_eq!(groups.merged_pages, model.len() as u64);
                prop_assert_eq!(groups.touched_pages, count(|entry| entry.1 && !entry.2));
                prop_assert_eq!(groups.lost_pages, count(|entry| entry.2));
                for (&(span, page), &(index, touched, lost)) in &model {
                    let unit = groups.merged[index as usize];
                    prop_assert_eq!(unit.span, span);
                    prop_assert!((unit.page..unit.page + unit.pages).contains(&page));
                    let at = page - unit.page;
                    let bits = (unit.touched >> at & 1 == 1, unit.lost >> at & 1 == 1);
                    prop_assert_eq!(bits, (touched, lost));
                }
                let records = groups.merged.iter().filter(|unit| unit.group != END);
                prop_assert_eq!(groups.units, records.clone().count() as u64);
                let leads = records.filter(|unit| unit.leads).count();
                prop_assert_eq!(groups.mappings, leads as u64);
                prop_assert_eq!(groups.held_pages > 0, groups.units > 0);
            }
            groups.release(&os, &kernel);
        }
    }
}

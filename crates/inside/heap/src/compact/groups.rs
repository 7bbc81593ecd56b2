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
    /// Pass in which it was merged.
    pub pass: u32,
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
}

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
            firm_units: 0,
            firm_pages: 0,
            units: 0,
            mappings: 0,
        }
    }

    /// Physical pages saved now, by the engine's own count.
    pub(crate) fn saved_pages(&self) -> u64 {
        self.touched_pages.saturating_sub(self.image_pages)
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
        self.groups[group as usize].image_pages += pages;
        self.image_pages += u64::from(pages);
    }

    /// Records a member; the caller has reserved room.
    pub(crate) fn add_member(&mut self, os: &impl Os, group: u32, unit: Merged) {
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
        self.touched_pages += u64::from(unit.touched.count_ones());
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
        if segment.live == 0
            && !newest
            && let Some(image) = segment.image.take()
        {
            kernel.image_close(image);
        }
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
        let size = (self.image_pages / 32).clamp(4096, 1 << 18) as u32;
        let size = size.max(pages);
        let Ok(image) = kernel.image_create(size as usize * page_size) else { return false };
        let segment = Segment { image: Some(image), pages: size, used: 0, groups: 0, live: 0 };
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

//! Image files that are planned again: what was merged in haste, or has half died since, and a program that rests.
//!
//! Memory of an image comes back when its file is closed, which holds others: a program that frees on leaves files of
//! which little lives, and what was merged among its frees lies in groups of few. Once it rests, all units of such
//! files are planned anew, as if they were in no group, with all else that can be merged. They go **from image to
//! image**: a unit is frozen where it is, its bytes are copied into its new image, and that is mapped over the old one,
//! so that no page of it needs memory of its own meanwhile. The file is closed when the last unit has left.
//!
//! ```text
//!  file 0   |■□■□|□□■□|□■□□|  a third lives            file 0   closed
//!  file 1   |□■□■|            newer, dense             file 1   |□■□■|
//!                                                      file 2   |■■■■|
//! ```
//!
//! Properties: pages of a unit stay blocked until they are dead or leave; a pass that is cut short leaves each page in
//! one group, the old or the new; what was planned again is not once more until a quarter of it has died, whatever came
//! of it.

use super::batch::Frozen;
use super::extents::PAGES_MAX;
use super::groups::{END, Renewal};
use super::pass::{MOVES_SLICE, SPANS_SLICE, Step};
use super::sort::Sorting;
use super::state::Compactor;
use super::{Kernel, Scan, Spans};
use crate::os::Os;
use crate::plan;
use crate::stats::Backend;

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    fn weighs_files(&self) -> bool {
        self.backend == Backend::Remap
            && self.settings.again
            && self.can_merge()
            && !self.groups.segments.is_empty()
    }

    /// Adds up what lives in each file, for a slice of the units; whether there are more.
    pub(super) fn weigh_files(&mut self) -> bool {
        if !self.weighs_files() {
            return false;
        }
        let first = self.scanning.unit;
        if first == 0 {
            for segment in self.groups.segments.iter_mut() {
                (segment.renewal.live_bytes, segment.renewal.unit_pages) = (0, 0);
            }
        }
        let last = self.groups.merged.len().min(first + SPANS_SLICE);
        for index in first..last {
            let unit = self.groups.merged[index];
            if unit.group == END {
                continue;
            }
            let Some((_, view)) = self.span_view(unit.span as usize) else { continue };
            let (geometry, live) = self.geometry_of(&unit, &view);
            let bytes = u64::from(plan::population(&live)) * u64::from(geometry.slot_size);
            let segment = self.groups.groups[unit.group as usize].segment as usize;
            let renewal = &mut self.groups.segments[segment].renewal;
            renewal.live_bytes += bytes;
            // Slots of whole pages are no business of extents.
            let fits = (geometry.slot_size as usize) < self.page;
            let pages = if fits { u32::from(unit.pages) } else { PAGES_MAX as u32 + 1 };
            renewal.unit_pages = renewal.unit_pages.saturating_add(pages);
        }
        self.scanning.unit = last;
        last < self.groups.merged.len()
    }

    /// Chooses the files that are worth it to be planned again, and adds what that is expected to gain.
    pub(super) fn add_renewal(&mut self, scan: &mut Scan) {
        let weighs = self.weighs_files() && self.scanning.count > 0;
        let mut room = PAGES_MAX as u32;
        for segment in self.groups.segments.iter_mut() {
            let held = u64::from(segment.held) * self.page as u64;
            let is_own = segment.image.is_some();
            let renewal = &mut segment.renewal;
            renewal.due = false;
            if !weighs || !is_own {
                continue;
            }
            if renewal.done && renewal.lived == 0 {
                renewal.lived = renewal.live_bytes.max(1);
            }
            let has_changed = !renewal.done || renewal.live_bytes <= renewal.lived / 4 * 3;
            let gain = plan::renewal(held, renewal.live_bytes);
            if has_changed && gain > 0 && renewal.unit_pages <= room {
                renewal.due = true;
                room -= renewal.unit_pages;
                scan.mergeable_bytes += gain;
                scan.mergeable_pages += u64::from(renewal.unit_pages);
            }
        }
    }

    /// Has this pass plan those files again.
    pub(super) fn begin_renewal(&mut self) {
        self.plan.olds.clear();
        self.renews = !self.urgent
            && self.weighs_files()
            && self.groups.segments.iter().any(|segment| segment.renewal.due);
        if !self.renews {
            return;
        }
        // What is left of a file leaves it.
        self.judges = true;
        self.renews_in_part = false;
        self.fresh_segments = self.groups.segments.len();
        for segment in self.groups.segments.iter_mut() {
            segment.renewal.groups = segment.live;
        }
        if let Some(last) = self.groups.segments.last_mut().filter(|last| last.renewal.due) {
            last.used = last.pages;
        }
    }

    /// Ends that: `whole` if the pass was not cut short.
    pub(super) fn end_renewal(&mut self, whole: bool) {
        if !core::mem::take(&mut self.renews) {
            return;
        }
        let (fresh, done) = (self.fresh_segments, whole && !self.renews_in_part);
        for (index, segment) in self.groups.segments.iter_mut().enumerate() {
            let Renewal { due, groups, .. } = segment.renewal;
            if due || index >= fresh {
                // What was frozen for too long was let go: the rest of a file is tried again as long as it gets less.
                let done = done && (index >= fresh || segment.live >= groups);
                segment.renewal = Renewal { done, ..Renewal::NEW };
            }
        }
    }

    /// Pages of a span that are in a group and planned again.
    pub(super) fn loose(&self, index: usize) -> u16 {
        let note = &self.notes[index];
        if self.renews { note.loose & note.merged } else { 0 }
    }

    /// Notes the pages of units that are planned again, a slice of them; `None` if there is no memory.
    pub(super) fn note_renewed(&mut self, first: u32) -> Option<Step> {
        let last = self.groups.merged.len().min(first as usize + SPANS_SLICE);
        for index in first as usize..last {
            let unit = self.groups.merged[index];
            let due = |group: u32| {
                let segment = self.groups.groups[group as usize].segment as usize;
                self.groups.segments[segment].renewal.due
            };
            if unit.group == END || !due(unit.group) {
                continue;
            }
            let Some((_, view)) = self.span_view(unit.span as usize) else { continue };
            if view.generation != unit.generation || view.slot_size as usize >= self.page {
                continue;
            }
            for page in unit.page..unit.page + unit.pages {
                let old = (unit.span << 4 | u32::from(page), index as u32);
                if !self.plan.olds.push(self.os, old) {
                    return None;
                }
                self.notes[unit.span as usize].loose |= 1 << page;
            }
            // A mapping that ends is one more for those that come.
            self.charged = self.charged.saturating_sub(usize::from(unit.leads));
        }
        if last < self.groups.merged.len() {
            return Some(Step::Part { group: last as u32 });
        }
        if self.plan.olds.is_empty() {
            self.end_renewal(true);
            return Some(Step::Scan { at: 0 });
        }
        self.plan.sorting = Sorting::new(self.plan.olds.len());
        Some(Step::Index)
    }

    pub(super) fn sort_renewed(&mut self) -> Step {
        let plan = &mut self.plan;
        if plan.sorting.step(&mut plan.olds, |old| old.0 as usize, MOVES_SLICE) {
            Step::Scan { at: 0 }
        } else {
            Step::Index
        }
    }

    /// Takes the pages of a unit that was mapped again out of the groups that they were in.
    pub(super) fn leave_old(&mut self, unit: &Frozen<S::Ref>) {
        let place = |olds: &[(u32, u32)], page: u8| {
            olds.binary_search_by_key(&(unit.index << 4 | u32::from(page)), |old| old.0)
        };
        let (mut page, end) = (unit.page, unit.page + unit.pages);
        while page < end {
            let Ok(at) = place(&self.plan.olds, page) else {
                debug_assert!(false, "what is planned again was noted");
                return;
            };
            let record = self.plan.olds[at].1;
            let old = self.groups.merged[record as usize];
            debug_assert_eq!((old.span, old.generation), (unit.index, unit.generation));
            let to = end.min(old.page + old.pages);
            if let Some(behind) = self.groups.give_up(self.os, &self.kernel, record, page..to) {
                for page in to..old.page + old.pages {
                    if let Ok(at) = place(&self.plan.olds, page) {
                        self.plan.olds[at].1 = behind;
                    }
                }
            }
            page = to;
        }
    }
}

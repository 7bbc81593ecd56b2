//! The `remap` back end: units of a group become private mappings of one image in a memfd.
//!
//! Groups are committed in **batches**, so that the question whether something may have pinned pages is asked once
//! for several groups. What lies side by side in the address space and in the image is frozen and mapped as one
//! **range**:
//!
//! ```text
//!  address space   |  span C   |a| b |a|   |  span C   |a| b |       units: C, a, b, a; each has a record of its own
//!                  '----- range -----'     '---- range ----'         ranges: one system call and one mapping each
//!  image           |  C and C  |a|b+b|a|
//! ```
//!
//! The steps:
//!
//! ```text
//!  block ─► write-protect all ─► any pin possible? ─no─► compose, write, map, wake   group by group
//!                                      └─yes─► unprotect all, then per group:
//!                                              move pages aside ─► compose, write, map, wake
//! ```
//!
//! A group of more members than may be frozen at once is committed in **parts** that share its image: the first makes
//! it, each further one adds its bytes where the ones before have none, and is mapped when they are there.
//!
//! Between write protection and wake no thread of the process can write the unit, in user mode or
//! in a system call; moved pages cannot be read either. What is copied is therefore what is there when
//! the image is mapped. Reads go on all the time while pages are write-protected: the old page
//! and the image have the same live bytes.
//!
//! A pin that exists when the pages are protected was made through something the process held
//! before; a later one faults on the protection and waits. Hence the order.

use core::sync::atomic::Ordering::Relaxed;

use super::batch::{BATCH, Batch, Frozen, IMAGE_PAGES, PageRun, UNITS};
use super::copy::{copy, runs};
use super::groups::{END, Merged};
use super::pass::PAGE_WORDS;
use super::state::{Compactor, add};
use super::{BarrierSupport, Errno, Kernel, Registration, Spans, Sys};
use crate::os::Os;
use crate::stats::{Barrier, Stop, degraded, pause_bucket};

/// How many times as long as intended a batch may be frozen before the groups that are left are let go, to be tried
/// again.
const LATE: u64 = 2;

/// The same for the rest of a group of which two ranges are mapped, which is not tried again in this pass.
const TOO_LATE: u64 = 4;

/// `ENOENT`: what `UFFDIO_WRITEPROTECT` says of a range that is not registered.
const NOT_REGISTERED: Errno = Errno(2);

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Commits the next groups of the plan as one batch, or a part of a group of which no more may be frozen at once.
    /// Returns the group to go on with, or `None` if nothing more can be merged in this pass.
    pub(crate) fn commit_remap(&mut self, first: u32) -> Option<u32> {
        let room = self.batch_room()?;
        let mut batch = Batch::new();
        // Of the plan: units of a class, or extents.
        let (mut members, mut spare) = (0, self.mappings_left());
        let mut group = first;
        while group < self.plan.groups {
            let (left, mut union) = self.plan.left_of(group);
            if members > 0 && members + left.len() > room {
                break;
            }
            let before = batch.len;
            let end = left.end.min(left.start + (room - members) as u32);
            let next = if self.plan.extents.is_empty() {
                self.block_group(group, left.start..end, &mut union, &mut spare, &mut batch)
            } else {
                self.block_extents(group, left.start..end, &mut union, &mut batch)
            };
            if next == left.start && before > 0 {
                break;
            }
            let pages = self.plan.growing(group).map_or(0, |growing| growing.pages);
            if batch.len == before && next < left.end {
                // None of these is as it was, but there are others.
                self.plan.grow(group, next, union);
                break;
            }
            let is_worth_it = if self.plan.extents.is_empty() {
                self.worth_it(&batch, before, pages)
            } else {
                let ranges = batch.stretches(before, batch.len, self.page).take(2).count();
                let shares = ranges > 1 || pages != 0 || next < left.end;
                ranges > 0 && shares && self.extents_pay(group)
            };
            if !is_worth_it {
                for unit in batch.cut(before) {
                    self.unblock_unit(&unit);
                }
                add(&self.stats.aborted_groups, 1);
                self.plan.growing = None;
            } else if next < left.end || pages != 0 {
                self.plan.grow(group, next, union);
                break;
            } else {
                members += left.len();
            }
            group += 1;
        }
        if batch.len == 0 {
            return Some(group);
        }
        let let_go = self.freeze(&mut batch);
        let Some(growing) = self.plan.growing.take() else { return let_go.or(Some(group)) };
        if let_go.is_some() {
            return let_go;
        }
        let goes_on = growing.pages != 0 && growing.next < self.plan.starts[group as usize + 1];
        self.plan.growing = goes_on.then_some(growing);
        Some(if goes_on { group } else { group + 1 })
    }

    /// How many ranges may be frozen now, all that a batch needs being there; `None` if nothing more can be merged.
    fn batch_room(&mut self) -> Option<usize> {
        // What is planned again may leave the middle of a unit.
        if !self.groups.reserve(self.os, 2 * UNITS, BATCH) || self.stage_area() == 0 {
            self.stopped = Stop::Refused;
            self.degrade(degraded::NO_MEMORY);
            return None;
        }
        // Before anything is frozen: a batch has at most half as many images as ranges.
        let pages = usize::from(self.plan.geometry.pages).max(IMAGE_PAGES / 2) * BATCH;
        if !self.groups.ready(self.os, &self.kernel, pages as u32, self.page) {
            self.stopped = Stop::Refused;
            self.imageless = true;
            self.degrade(degraded::NO_MEMFD);
            self.stats.backend.store(crate::stats::Backend::None as u64, Relaxed);
            return None;
        }
        Some(self.batch_units())
    }

    /// Whether the units from `first` on save more than their mappings and the work cost; `taken`: pages of the image
    /// that members of the group have already.
    fn worth_it(&self, batch: &Batch<S::Ref>, first: usize, taken: u64) -> bool {
        let (mut union, mut pages) = (taken, taken.count_ones());
        for unit in batch.units().skip(first) {
            let touched = unit.touched(self.page);
            union |= touched;
            pages += touched.count_ones();
        }
        let mappings = batch.stretches(first, batch.len, self.page).count() as u64;
        mappings >= if taken == 0 { 2 } else { 1 }
            && self.pays(mappings, pages - union.count_ones())
    }

    /// Whether so many mappings are worth the pages that they save.
    fn pays(&self, mappings: u64, saved: u32) -> bool {
        let work = mappings * self.unit_ns / 1000;
        u64::from(saved) * self.page as u64
            > mappings * u64::from(self.settings.mapping_price)
                + work * u64::from(self.settings.work_price)
    }

    /// Whether the extents of a group, all together, save more than their mappings and the work cost: those of a part
    /// may lie side by side in the image.
    fn extents_pay(&self, group: u32) -> bool {
        let plan = &self.plan;
        let members =
            plan.starts[group as usize] as usize..plan.starts[group as usize + 1] as usize;
        let (mut union, mut pages) = (0u64, 0);
        for member in &plan.members[members.clone()] {
            let planned = plan.planned[*member as usize];
            let own = &plan.pages[planned.first as usize..][..usize::from(planned.pages)];
            for (at, _) in own.iter().enumerate().filter(|(_, page)| **page != [0; PAGE_WORDS]) {
                union |= 1 << (usize::from(planned.at) + at);
                pages += 1;
            }
        }
        self.pays(members.len() as u64, pages - union.count_ones())
    }

    /// Freezes the batch, copies and maps its groups, and wakes the waiters. Returns the first group that was let go,
    /// if any.
    fn freeze(&mut self, batch: &mut Batch<S::Ref>) -> Option<u32> {
        let protects = matches!(self.able, BarrierSupport::WriteProtect { .. });
        let mut ranges = 0;
        for stretch in batch.stretches(0, batch.len, self.page) {
            ranges += 1;
            if !self.prepare(stretch.start, stretch.len) {
                self.degrade(degraded::NO_MEMORY);
                batch.units().for_each(|unit| self.unblock_unit(unit));
                return None;
            }
        }
        self.kernel.wait_for_space(self.stage_at);
        self.waited = false;
        let (begin, cpu) = (self.kernel.now_ns(), self.kernel.cpu_ns());
        if protects && !self.pins {
            let protected = batch
                .stretches(0, batch.len, self.page)
                .all(|stretch| self.protect(stretch.start, stretch.len).is_ok());
            // Asked after the protection: see the module's header.
            self.pins = protected && self.kernel.pin_risk();
            if !protected || self.pins {
                self.note_waiters();
                if core::mem::take(&mut self.waited) {
                    self.stats.stalled(self.kernel.now_ns().wrapping_sub(begin));
                }
                for stretch in batch.stretches(0, batch.len, self.page) {
                    // A range that is not protected is not harmed by this, and the error says just that.
                    let _ = self.kernel.write_protect(stretch.start, stretch.len, false);
                }
            }
            if !protected {
                self.degrade(degraded::NO_BARRIER);
                add(&self.stats.aborted_groups, 1);
                batch.units().for_each(|unit| self.unblock_unit(unit));
                return None;
            }
        }
        let (mut from, mut left) = (0, None);
        while from < batch.len {
            let group = batch.units[from].as_ref().map_or(0, |unit| unit.group);
            let to = (from..batch.len)
                .find(|at| batch.units[*at].as_ref().is_some_and(|unit| unit.group != group))
                .unwrap_or(batch.len);
            let moves = self.pins && protects;
            // There is no way to move pages out of an alias.
            let stays = moves && batch.units[from..to].iter().flatten().any(|unit| unit.again);
            let now = self.kernel.now_ns();
            if !moves && from > 0 && now.wrapping_sub(begin) > LATE * self.settings.pause_ns {
                self.let_go(batch, from, batch.len);
                left = Some(group);
                break;
            }
            let start = if moves { now } else { begin };
            let moved = !moves || !stays && self.move_aside(batch, from, to);
            if moved {
                self.map_group(batch, from, to, start);
            } else {
                add(&self.stats.aborted_groups, 1);
                for unit in batch.units[from..to].iter().flatten() {
                    self.unblock_unit(unit);
                }
            }
            let pause = self.kernel.now_ns().wrapping_sub(start);
            self.pause(pause);
            if moves && core::mem::take(&mut self.waited) {
                self.stats.stalled(pause);
            }
            from = to;
        }
        if self.waited {
            self.stats.stalled(self.kernel.now_ns().wrapping_sub(begin));
        }
        let spent = self.kernel.cpu_ns().wrapping_sub(cpu) / ranges.max(1);
        self.unit_ns = (self.unit_ns * 7 + spent.min(8 * self.unit_ns)) / 8;
        left
    }

    /// Leaves `batch[from..to]` as it was: those who wait for its pages have waited long enough.
    fn let_go(&mut self, batch: &Batch<S::Ref>, from: usize, to: usize) {
        self.note_waiters();
        for stretch in batch.stretches(from, to, self.page) {
            let units = &batch.units[stretch.from..stretch.to];
            self.thaw(units, stretch.start, stretch.len);
            units.iter().flatten().for_each(|unit| self.unblock_unit(unit));
        }
    }

    /// Notes whether anybody waits for what is frozen, before they are woken.
    pub(crate) fn note_waiters(&mut self) {
        self.waited |= self.kernel.waiters() > 0;
    }

    pub(crate) fn protect(&self, start: usize, len: usize) -> Sys<()> {
        match self.kernel.write_protect(start, len, true) {
            Err(NOT_REGISTERED) => {
                self.kernel.register(start, len, Registration::WriteProtect)?;
                self.kernel.write_protect(start, len, true)
            }
            other => other,
        }
    }

    /// Composes the image of `batch[from..to]`, maps it over the ranges and wakes their waiters. Ranges that
    /// cannot be mapped, or not soon enough, are as they were before. `begin` is when the group was frozen.
    fn map_group(&mut self, batch: &Batch<S::Ref>, from: usize, to: usize, begin: u64) {
        let units = &batch.units[from..to];
        let image_pages =
            units.iter().flatten().fold(0, |union, unit| union | unit.touched(self.page));
        let of_plan = units.iter().flatten().next().map_or(0, |unit| unit.group);
        let place = self.compose(of_plan, units, image_pages);
        let (mut group, mut mapped_ranges) = (END, 0);
        if let Some(before) = self.plan.growing(of_plan).filter(|growing| growing.pages != 0) {
            group = before.record;
            let more = image_pages & !before.pages;
            self.groups.widen(group, more.count_ones() as u8);
        }
        for stretch in batch.stretches(from, to, self.page) {
            let PageRun { start, len, image_page, .. } = stretch;
            let frozen_ns = self.kernel.now_ns().wrapping_sub(begin);
            if mapped_ranges >= 2 && frozen_ns > TOO_LATE * self.settings.pause_ns {
                self.let_go(batch, stretch.from, to);
                break;
            }
            let mapped = place.is_some_and(|(segment, page)| {
                let image = self.groups.segments[segment as usize].image;
                let offset = (page as usize + usize::from(image_page)) * self.page;
                image.is_some_and(|image| {
                    // SAFETY: the range is the heap's and frozen, so the bytes of its live slots are still
                    // those that `compose` wrote to this place of the image.
                    unsafe { self.kernel.map_image(start, len, image, offset) }.is_ok()
                })
            });
            if mapped {
                mapped_ranges += 1;
                let units = &batch.units[stretch.from..stretch.to];
                // An alias that was one before has neighbours that it is not one with.
                let least = units.iter().flatten().any(|unit| unit.again);
                let more = self.aliases.mappings_for(start, len, false);
                self.charged += more.max(usize::from(least));
                self.aliases.set(self.os, start, len, true);
                if group == END
                    && let Some((segment, _)) = place
                {
                    group = self.groups.add_group(self.os, segment, image_pages.count_ones() as u8);
                }
                for (at, unit) in (stretch.from..).zip(&batch.units[stretch.from..stretch.to]) {
                    if let Some(unit) = unit {
                        self.enter(group, unit, at == stretch.from);
                    }
                }
                self.note_waiters();
                self.kernel.wake(start, len);
            } else {
                self.note_waiters();
                self.degrade(if place.is_some() {
                    degraded::VMA_BUDGET
                } else {
                    degraded::NO_MEMFD
                });
                let units = &batch.units[stretch.from..stretch.to];
                self.thaw(units, start, len);
                units.iter().flatten().for_each(|unit| self.unblock_unit(unit));
            }
        }
        if group == END {
            add(&self.stats.aborted_groups, 1);
        }
        if let Some(growing) = self.plan.growing.as_mut().filter(|growing| growing.group == of_plan)
        {
            match place.filter(|_| mapped_ranges > 0) {
                Some(place) => {
                    growing.place = place;
                    growing.record = group;
                    growing.pages |= image_pages;
                }
                None => growing.next = u32::MAX,
            }
        }
        for unit in units.iter().flatten().filter(|unit| unit.bytes != unit.start) {
            // SAFETY: the area is the engine's own, and what was moved there is in the image or moved back.
            unsafe { self.kernel.decommit(unit.bytes, usize::from(unit.pages) * self.page) };
        }
    }

    /// Records a unit that was mapped; `leads` if it is the first of its range.
    fn enter(&mut self, group: u32, unit: &Frozen<S::Ref>, leads: bool) {
        let touched = (unit.touched(self.page) >> unit.image_page) as u16;
        if unit.again {
            self.leave_old(unit);
        }
        let member = Merged {
            span: unit.index,
            generation: unit.generation,
            group,
            next: END,
            page: unit.page,
            pages: unit.pages,
            leads,
            touched,
            lost: 0,
            pass: self.pass as u8,
            at: self.seconds(),
        };
        self.groups.add_member(self.os, group, member);
        let mask = ((1u32 << unit.pages) - 1) as u16;
        self.uncount(unit.index as usize, mask << unit.page);
        let note = &mut self.notes[unit.index as usize];
        note.merged |= mask << unit.page;
        // The mapping gave back the unit's free pages too.
        let free = (mask & !touched) << unit.page & !note.given;
        note.given |= free;
        note.loose &= !(mask << unit.page);
        // What was in an image had no memory of its own.
        let bytes = if unit.again { 0 } else { u64::from(free.count_ones()) * self.page as u64 };
        add(&self.stats.released_bytes, bytes);
    }

    /// Undoes the freeze of a range that was not mapped.
    fn thaw(&self, units: &[Option<Frozen<S::Ref>>], start: usize, len: usize) {
        if units.iter().flatten().any(|unit| unit.bytes != unit.start) {
            units.iter().flatten().for_each(|unit| self.move_back(unit));
        } else {
            // Without a barrier there is nothing to take off, and the error says so.
            let _ = self.kernel.write_protect(start, len, false);
        }
    }

    /// Writes the live bytes of the units to a new place in an image, or to the one that earlier members of their group
    /// have: its segment and page. `pages` has a bit for each page of the image that has live bytes of the units.
    ///
    /// What is written again of those earlier members is what is there: the stage keeps it from part to part. New bytes
    /// go where none of them had a live slot when it was mapped, so neither they nor those that a child maps change.
    fn compose(
        &mut self,
        group: u32,
        units: &[Option<Frozen<S::Ref>>],
        pages: u64,
    ) -> Option<(u32, u32)> {
        let stage = self.stage_at as *mut u8;
        let growing = self.plan.growing(group).copied();
        let place = match growing {
            Some(growing) if growing.pages != 0 => growing.place,
            _ => {
                let ends = units.iter().flatten().map(|unit| unit.image_page + unit.pages);
                let longest = growing.map_or(0, |growing| growing.length);
                let length = usize::from(ends.max()?.max(longest));
                debug_assert!(length * self.page <= self.stage_len(), "an image fits the stage");
                // SAFETY: the area is the engine's own, `stage_len` bytes long, which is the longest image.
                unsafe { stage.write_bytes(0, length * self.page) };
                self.groups.place(self.os, &self.kernel, length as u32, self.page)?
            }
        };
        let image = self.groups.segments[place.0 as usize].image?;
        for unit in units.iter().flatten() {
            let len = usize::from(unit.pages) * self.page;
            let offset = usize::from(unit.image_page) * self.page;
            for run in runs(unit.live, unit.slot_size as usize, unit.phase as usize, len) {
                // SAFETY: the run lies in the unit, which is `len` bytes of mapped heap memory (or of the area
                // that it was moved to), and in its part of the stage, which nothing else uses. Writers are
                // frozen.
                unsafe {
                    let from = (unit.bytes + run.start) as *const u8;
                    copy(stage.add(offset + run.start), from, run.len());
                }
            }
        }
        // SAFETY: the stage is `stage_len` bytes of memory from the kernel that only this thread uses.
        let bytes = unsafe { core::slice::from_raw_parts(stage, self.stage_len()) };
        let mut left = pages;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let count = (left >> first).trailing_ones() as usize;
            left &= !(u64::MAX >> (64 - count) << first);
            let offset = (place.1 as usize + first) * self.page;
            let part = &bytes[first * self.page..(first + count) * self.page];
            self.kernel.image_write(image, offset, part).ok()?;
        }
        Some(place)
    }

    /// Moves the pages of `batch[from..to]` aside, so that neither a device nor a thread can reach them.
    /// If one cannot be moved (pinned, or shared with a child), all are moved back: `false`.
    fn move_aside(&mut self, batch: &mut Batch<S::Ref>, from: usize, to: usize) -> bool {
        if !matches!(self.able, BarrierSupport::WriteProtect { moves: true }) || !self.aside_area()
        {
            self.degrade(degraded::PINS);
            return false;
        }
        self.stats.barrier.store(Barrier::Move as u64, Relaxed);
        let mut place = self.aside_at;
        for at in from..to {
            let Some(unit) = batch.units[at].as_mut() else { continue };
            let len = usize::from(unit.pages) * self.page;
            let whole = place + len <= self.aside_at + self.aside_len()
                && self.kernel.register(unit.start, len, Registration::Missing).is_ok()
                && {
                    // SAFETY: both ranges are private anonymous memory; the place was given back after its
                    // last use, and both are registered.
                    let moved = unsafe { self.kernel.move_pages(place, unit.start, len) };
                    if moved < len {
                        // SAFETY: as above with the roles changed: the pages left the unit, whose faults wait.
                        let back = unsafe { self.kernel.move_pages(unit.start, place, moved) };
                        debug_assert_eq!(back, moved, "pages that came can go back");
                    }
                    moved == len
                };
            if !whole {
                self.restore_registration(unit.start, len);
                for unit in batch.units[from..at].iter_mut().flatten() {
                    self.move_back(unit);
                    unit.bytes = unit.start;
                }
                return false;
            }
            unit.bytes = place;
            place += len;
        }
        true
    }

    fn move_back(&self, unit: &Frozen<S::Ref>) {
        let len = usize::from(unit.pages) * self.page;
        // SAFETY: the unit is empty since its pages were moved to `bytes`, and its faults wait.
        let back = unsafe { self.kernel.move_pages(unit.start, unit.bytes, len) };
        debug_assert_eq!(back, len, "pages that came can go back");
        self.restore_registration(unit.start, len);
    }

    /// Takes a unit out of the registration for missing pages, which wakes those who wait for one.
    fn restore_registration(&self, start: usize, len: usize) {
        // An error leaves the range unregistered, which `protect` recognises and mends.
        let _ = self.kernel.unregister(start, len);
        let _ = self.kernel.register(start, len, Registration::WriteProtect);
    }

    fn aside_area(&mut self) -> bool {
        if self.aside_at == 0 {
            let len = self.aside_len();
            let area = self.os.map(len, self.page);
            if area.is_null() {
                return false;
            }
            if self.kernel.register(area as usize, len, Registration::WriteProtect).is_err() {
                // SAFETY: the area was mapped above and is used by nobody.
                unsafe { self.os.unmap(area, len) };
                return false;
            }
            self.kernel.split_huge_pages(area as usize, len);
            self.aside_at = area as usize;
        }
        true
    }

    pub(crate) fn pause(&self, ns: u64) {
        add(&self.stats.pauses[pause_bucket(ns)], 1);
        self.stats.longest_pause_ns.fetch_max(ns, Relaxed);
    }
}

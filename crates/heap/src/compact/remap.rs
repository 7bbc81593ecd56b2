//! The `remap` back end: units of a group become private mappings of one image in a memfd.
//!
//! Groups are committed in **batches** of at most [`BATCH`] units, so that the question whether
//! something may have pinned pages is asked once for several groups:
//!
//! ```text
//!  block ─► write-protect all ─► any pin possible? ─no─► compose, write, map, wake   group by group
//!                                      └─yes─► unprotect all, then per group:
//!                                              move pages aside ─► compose, write, map, wake
//! ```
//!
//! Between write protection and wake no thread of the process can write the unit, in user mode or
//! in a system call; moved pages cannot be read either. What is copied is therefore what is there when
//! the image is mapped. Reads go on all the time while pages are write-protected: the old page
//! and the image have the same live bytes.
//!
//! A pin that exists when the pages are protected was made through something the process held
//! before; a later one faults on the protection and waits. Hence the order.

use core::sync::atomic::Ordering::Relaxed;

use super::copy::{copy, runs};
use super::engine::{Compactor, add};
use super::groups::{END, Merged};
use super::{Able, Bits, Errno, Kernel, Registration, SpanView, Spans, Sys};
use crate::os::Os;
use crate::plan;
use crate::stats::{Barrier, PAUSE_BUCKETS, degraded};

/// Most units frozen at once.
pub(crate) const BATCH: usize = 32;

/// `ENOENT`: what `UFFDIO_WRITEPROTECT` says of a range that is not registered.
const NOT_REGISTERED: Errno = Errno(2);

/// A blocked unit on its way into a group.
#[derive(Clone, Copy)]
pub(crate) struct Frozen<R> {
    pub span: R,
    pub index: u32,
    pub generation: u32,
    pub page: u8,
    pub start: usize,
    /// Live slots of the unit, slot 0 being the first that overlaps it.
    pub live: Bits,
    /// Group in the plan.
    pub group: u32,
    /// Where its bytes are: `start`, or where they were moved to.
    pub bytes: usize,
}

/// At most [`BATCH`] units, those of a group side by side.
pub(crate) struct Batch<R> {
    units: [Option<Frozen<R>>; BATCH],
    len: usize,
}

impl<R: Copy> Batch<R> {
    pub(crate) fn new() -> Self {
        Self { units: [None; BATCH], len: 0 }
    }

    pub(crate) fn push(&mut self, unit: Frozen<R>) {
        self.units[self.len] = Some(unit);
        self.len += 1;
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Frozen<R>> {
        self.units[..self.len].iter().flatten()
    }

    fn cut(&mut self, len: usize) -> impl Iterator<Item = Frozen<R>> {
        let end = core::mem::replace(&mut self.len, len);
        self.units[len..end].iter().copied().flatten()
    }
}

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Blocks the units of a planned group that still fit together. Those that do not are left.
    pub(crate) fn block_group(&mut self, group: u32, batch: &mut Batch<S::Ref>, room: usize) {
        let (begin, end) = (self.plan.starts[group as usize], self.plan.starts[group as usize + 1]);
        let pages = self.plan.geometry.pages;
        let mut union = [0u64; 4];
        for member in (begin..end).take(room) {
            let candidate = self.plan.units[self.plan.members[member as usize] as usize];
            let Some((span, view)) = self.look(candidate.span as usize) else { continue };
            let page = usize::from(candidate.page) * self.page;
            if view.start + page != candidate.start || !self.same_geometry(&view) {
                continue;
            }
            let range = candidate.page..candidate.page + pages;
            let Some(live) = self.spans.block(span, view.generation, range.clone()) else {
                continue;
            };
            let live = self.unit_bits(&view, candidate.page, &live);
            let overlaps = union.iter().zip(&live).any(|(a, b)| a & b != 0);
            if overlaps || plan::population(&live) == 0 {
                self.spans.unblock(span, view.generation, range);
                continue;
            }
            union.iter_mut().zip(&live).for_each(|(a, b)| *a |= b);
            batch.push(Frozen {
                span,
                index: candidate.span,
                generation: view.generation,
                page: candidate.page,
                start: candidate.start,
                live,
                group,
                bytes: candidate.start,
            });
        }
    }

    fn same_geometry(&self, view: &SpanView) -> bool {
        view.slot_size == self.plan.geometry.slot_size
    }

    pub(crate) fn unblock_unit(&self, unit: &Frozen<S::Ref>) {
        let pages = unit.page..unit.page + self.plan.geometry.pages;
        self.spans.unblock(unit.span, unit.generation, pages);
    }

    fn unit_len(&self) -> usize {
        usize::from(self.plan.geometry.pages) * self.page
    }

    /// Commits the next groups of the plan as one batch. Returns the group to go on with, or `None` if
    /// nothing more can be merged in this pass.
    pub(crate) fn commit_remap(&mut self, first: u32) -> Option<u32> {
        let held = self.groups.units as usize;
        let left = self.settings.mappings.saturating_sub(held);
        if left < 2 {
            if self.settings.by_limit {
                self.degrade(degraded::VMA_BUDGET);
            }
            return None;
        }
        let room = self.batch_units().min(left);
        if !self.groups.reserve(self.os, 2 * BATCH) || self.stage_area() == 0 {
            self.degrade(degraded::NO_MEMORY);
            return None;
        }
        // Before anything is frozen: a batch has at most half as many images as units.
        let pages = u32::from(self.plan.geometry.pages) * BATCH as u32;
        if !self.groups.ready(self.os, &self.kernel, pages, self.page) {
            self.imageless = true;
            self.degrade(degraded::NO_MEMFD);
            self.stats.backend.store(crate::stats::Backend::None as u64, Relaxed);
            return None;
        }
        let mut batch = Batch::new();
        let mut group = first;
        while group < self.plan.groups {
            let size = self.plan.starts[group as usize + 1] - self.plan.starts[group as usize];
            if batch.len > 0 && batch.len + size as usize > room {
                break;
            }
            let before = batch.len;
            self.block_group(group, &mut batch, room - before);
            if !self.worth_it(&batch, before) {
                for unit in batch.cut(before) {
                    self.unblock_unit(&unit);
                }
                add(&self.stats.aborted_groups, 1);
            }
            group += 1;
        }
        if batch.len > 0 {
            self.freeze(&mut batch);
        }
        Some(group)
    }

    /// Whether the units from `first` on save more than their mappings and the work cost.
    fn worth_it(&self, batch: &Batch<S::Ref>, first: usize) -> bool {
        let mut union = [0u64; 4];
        let mut pages = 0;
        for unit in batch.units().skip(first) {
            union.iter_mut().zip(&unit.live).for_each(|(a, b)| *a |= b);
            pages += self.plan.geometry.touched(&unit.live).count_ones();
        }
        let units = (batch.len - first) as u64;
        let image = self.plan.geometry.touched(&union).count_ones();
        let saved = u64::from(pages - image) * self.page as u64;
        let work = units * self.unit_ns / 1000;
        units >= 2
            && saved
                > units * u64::from(self.settings.mapping_price)
                    + work * u64::from(self.settings.work_price)
    }

    /// Freezes the batch, copies and maps its groups, and wakes the waiters.
    fn freeze(&mut self, batch: &mut Batch<S::Ref>) {
        let len = self.unit_len();
        let protects = matches!(self.able, Able::WriteProtect { .. });
        for at in 0..batch.len {
            if let Some(unit) = batch.units[at]
                && !self.prepare(unit.start, len)
            {
                self.degrade(degraded::NO_MEMORY);
                batch.cut(0).for_each(|unit| self.unblock_unit(&unit));
                return;
            }
        }
        let (begin, cpu) = (self.kernel.now_ns(), self.kernel.cpu_ns());
        if protects && !self.pins {
            let protected = batch.units().all(|unit| self.protect(unit.start, len).is_ok());
            // Asked after the protection: see the module's header.
            self.pins = protected && self.kernel.pin_risk();
            if !protected || self.pins {
                for unit in batch.units() {
                    // A unit that is not protected is not harmed by this, and the error says just that.
                    let _ = self.kernel.write_protect(unit.start, len, false);
                }
            }
            if !protected {
                self.degrade(degraded::NO_BARRIER);
                add(&self.stats.aborted_groups, 1);
                batch.cut(0).for_each(|unit| self.unblock_unit(&unit));
                return;
            }
        }
        let mut from = 0;
        while from < batch.len {
            let group = batch.units[from].map_or(0, |unit| unit.group);
            let to = (from..batch.len)
                .find(|at| batch.units[*at].is_some_and(|unit| unit.group != group))
                .unwrap_or(batch.len);
            let start = if self.pins && protects { self.kernel.now_ns() } else { begin };
            let moved = !(self.pins && protects) || self.move_aside(batch, from, to);
            if moved {
                self.map_group(batch, from, to);
            } else {
                add(&self.stats.aborted_groups, 1);
                for unit in batch.units[from..to].iter().flatten() {
                    self.unblock_unit(unit);
                }
            }
            self.pause(self.kernel.now_ns().wrapping_sub(start));
            from = to;
        }
        let spent = self.kernel.cpu_ns().wrapping_sub(cpu) / batch.len as u64;
        self.unit_ns = (self.unit_ns * 7 + spent.min(8 * self.unit_ns)) / 8;
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

    /// Composes the image of `batch[from..to]`, maps it over the units and wakes their waiters. Units that
    /// cannot be mapped are as they were before.
    fn map_group(&mut self, batch: &Batch<S::Ref>, from: usize, to: usize) {
        let len = self.unit_len();
        let units = &batch.units[from..to];
        let mut union = [0u64; 4];
        for unit in units.iter().flatten() {
            union.iter_mut().zip(&unit.live).for_each(|(a, b)| *a |= b);
        }
        let image_pages = self.plan.geometry.touched(&union);
        let place = self.compose(units, image_pages);
        let mut group = END;
        for unit in units.iter().flatten() {
            let mapped = place.is_some_and(|(segment, page)| {
                let image = self.groups.segments[segment as usize].image;
                image.is_some_and(|image| {
                    // SAFETY: the unit is the heap's and frozen, so the bytes of its live slots are still
                    // those that `compose` wrote to this place of the image.
                    unsafe {
                        self.kernel.map_image(unit.start, len, image, page as usize * self.page)
                    }
                    .is_ok()
                })
            });
            if mapped {
                if group == END
                    && let Some((segment, _)) = place
                {
                    group = self.groups.add_group(self.os, segment, image_pages.count_ones() as u8);
                }
                let pages = self.plan.geometry.pages;
                let touched = self.plan.geometry.touched(&unit.live);
                let member = Merged {
                    span: unit.index,
                    generation: unit.generation,
                    group,
                    next: END,
                    page: unit.page,
                    pages,
                    touched,
                    lost: 0,
                    pass: self.pass,
                    at: self.seconds(),
                };
                self.groups.add_member(self.os, group, member);
                let mask = ((1u32 << pages) - 1) as u16;
                let note = &mut self.notes[unit.index as usize];
                note.merged |= mask << unit.page;
                // The mapping gave back the unit's free pages too.
                let free = (mask & !touched) << unit.page & !note.given;
                note.given |= free;
                let bytes = u64::from(free.count_ones()) * self.page as u64;
                add(&self.stats.released_bytes, bytes);
                self.kernel.wake(unit.start, len);
            } else {
                self.degrade(if place.is_some() {
                    degraded::VMA_BUDGET
                } else {
                    degraded::NO_MEMFD
                });
                self.thaw(unit, len);
                self.unblock_unit(unit);
            }
        }
        if group == END {
            add(&self.stats.aborted_groups, 1);
        }
        let aside = units.iter().flatten().find(|unit| unit.bytes != unit.start);
        if let Some(unit) = aside {
            // SAFETY: the area is the engine's own, and what was moved there is in the image or moved back.
            unsafe { self.kernel.decommit(unit.bytes, len * (to - from)) };
        }
    }

    /// Undoes the freeze of a unit that was not mapped.
    fn thaw(&self, unit: &Frozen<S::Ref>, len: usize) {
        if unit.bytes != unit.start {
            self.move_back(unit, len);
        } else {
            // Without a barrier there is nothing to take off, and the error says so.
            let _ = self.kernel.write_protect(unit.start, len, false);
        }
    }

    /// Writes the live bytes of the units to a new place in an image: its segment and page.
    fn compose(&mut self, units: &[Option<Frozen<S::Ref>>], pages: u16) -> Option<(u32, u32)> {
        let len = self.unit_len();
        let geometry = self.plan.geometry;
        let place =
            self.groups.place(self.os, &self.kernel, u32::from(geometry.pages), self.page)?;
        let image = self.groups.segments[place.0 as usize].image?;
        let stage = self.stage_at as *mut u8;
        // SAFETY: the area is the engine's own, `stage_len` bytes long, which is the longest unit.
        unsafe { stage.write_bytes(0, len) };
        for unit in units.iter().flatten() {
            let phase = geometry.phase as usize;
            for run in runs(unit.live, geometry.slot_size as usize, phase, len) {
                // SAFETY: the run lies in the unit, which is `len` bytes of mapped heap memory (or of the area
                // that it was moved to), and in the stage, which nothing else uses. Writers are frozen.
                unsafe {
                    let from = (unit.bytes + run.start) as *const u8;
                    copy(stage.add(run.start), from, run.len());
                }
            }
        }
        // SAFETY: the stage is `stage_len` bytes of initialised memory that only this thread uses.
        let bytes = unsafe { core::slice::from_raw_parts(stage, len) };
        let mut left = pages;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let count = (left >> first).trailing_ones() as usize;
            left &= !(((1u32 << count) - 1) << first) as u16;
            let offset = (place.1 as usize + first) * self.page;
            let part = &bytes[first * self.page..(first + count) * self.page];
            self.kernel.image_write(image, offset, part).ok()?;
        }
        Some(place)
    }

    /// Moves the pages of `batch[from..to]` aside, so that neither a device nor a thread can reach them.
    /// If one cannot be moved (pinned, or shared with a child), all are moved back: `false`.
    fn move_aside(&mut self, batch: &mut Batch<S::Ref>, from: usize, to: usize) -> bool {
        let len = self.unit_len();
        if !matches!(self.able, Able::WriteProtect { moves: true }) || !self.aside_area() {
            self.degrade(degraded::PINS);
            return false;
        }
        self.stats.barrier.store(Barrier::Move as u64, Relaxed);
        for at in from..to {
            let Some(unit) = batch.units[at].as_mut() else { continue };
            let place = self.aside_at + (at - from) * len;
            let whole = self.kernel.register(unit.start, len, Registration::Missing).is_ok() && {
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
                    self.move_back(unit, len);
                    unit.bytes = unit.start;
                }
                return false;
            }
            unit.bytes = place;
        }
        true
    }

    fn move_back(&self, unit: &Frozen<S::Ref>, len: usize) {
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
            self.kernel.settle(area as usize, len);
            self.aside_at = area as usize;
        }
        true
    }

    pub(crate) fn pause(&self, ns: u64) {
        let bucket = (63 - ns.max(1).leading_zeros() as usize).min(PAUSE_BUCKETS - 1);
        add(&self.stats.pauses[bucket], 1);
        self.stats.longest_pause_ns.fetch_max(ns, Relaxed);
    }
}

//! The `ksm` back end: pages of a group are made identical, and the kernel merges them.
//!
//! ```text
//!  page A  a □ □ a □     after filling:  a b c a □     every page of the group has the same bytes
//!  page B  □ b □ □ □     (□ = zero)      a b c a □     as long as nobody writes
//!  page C  □ □ c □ □                     a b c a □
//! ```
//!
//! `ksmd` is offered the parts of each chunk that `offers.rs` says.
//!
//! Only dead slots are written, which nobody else uses while they are blocked. Live slots of other
//! pages are read while the program may be writing them: then the pages differ, `ksmd` does not
//! merge them, and nothing is lost. There is no pause, no mapping and nothing to undo at fork.

use core::sync::atomic::Ordering::Relaxed;

use super::batch::{Batch, Frozen};
use super::copy::{copy, runs};
use super::groups::{END, Merged};
use super::offers::{GRANULE, Offered, RUNS, joined, runs_of};
use super::state::{Compactor, add};
use super::{CHUNK, Kernel, Spans};
use crate::os::Os;
use crate::plan::NONE;
use crate::stats::{Stop, degraded};

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Makes the pages of one planned group identical. Returns the group to go on with, or `None` if
    /// KSM cannot be used.
    pub(crate) fn commit_ksm(&mut self, group: u32) -> Option<u32> {
        let (planned, mut union) = self.plan.left_of(group);
        let size = planned.len();
        if size > self.offers_left() {
            self.stopped = Stop::Share;
            return None;
        }
        if self.stage_area() == 0 || !self.groups.reserve(self.os, size, 1) {
            self.stopped = Stop::Refused;
            self.degrade(degraded::NO_MEMORY);
            return None;
        }
        let (mut members, mut unbounded) = (Batch::new(), usize::MAX);
        if self.plan.mixed {
            self.block_pages(group, planned, &mut union, &mut members);
        } else {
            self.block_group(group, planned, &mut union, &mut unbounded, &mut members);
        }
        if members.units().count() < 2 {
            members.units().for_each(|unit| self.unblock_unit(unit));
            add(&self.stats.aborted_groups, 1);
            return Some(group + 1);
        }
        for unit in members.units() {
            if !self.prepare(unit.start, self.page) || !self.offer(unit.start) {
                members.units().for_each(|unit| self.unblock_unit(unit));
                self.stopped = Stop::Refused;
                return None;
            }
        }
        self.gather(&members);
        let index = self.groups.add_group(self.os, END, 1);
        if self.settings.settled {
            self.groups.set_firm(index);
        }
        let at = self.seconds();
        let mut offered = 0;
        for unit in members.units() {
            self.fill_dead(unit);
            let member = Merged {
                span: unit.index,
                generation: unit.generation,
                group: index,
                next: END,
                page: unit.page,
                pages: 1,
                leads: true,
                touched: 1,
                lost: 0,
                pass: self.pass as u8,
                at,
            };
            self.groups.add_member(self.os, index, member);
            self.notes[unit.index as usize].merged |= 1 << unit.page;
            self.uncount(unit.index as usize, 1 << unit.page);
            offered += 1;
        }
        self.offers_made += offered as usize;
        add(&self.stats.ksm_pending, offered);
        add(&self.stats.ksm_offered, offered);
        Some(group + 1)
    }

    /// Offers the page at `start` to `ksmd`, with all others of its chunk that are planned; `false` if the kernel
    /// takes no offers or there is no memory to remember them.
    fn offer(&mut self, start: usize) -> bool {
        let chunk = start / CHUNK * CHUNK;
        let len = GRANULE.max(self.page);
        let granule = |address: usize| 1u128 << ((address - chunk) / len);
        let (place, before) = match self.offered.binary_search_by_key(&chunk, |entry| entry.chunk) {
            Ok(place) if self.offered[place].granules & granule(start) != 0 => return true,
            Ok(place) => (place, self.offered[place].granules),
            Err(place) => {
                if !self.offered.push(self.os, Offered { chunk, granules: 0 }) {
                    self.degrade(degraded::NO_MEMORY);
                    return false;
                }
                self.offered[place..].rotate_right(1);
                (place, 0)
            }
        };
        let units = &self.plan.units;
        let first = units.partition_point(|unit| unit.start < chunk);
        let planned = (first..units.len())
            .take_while(|&unit| units[unit].start < chunk + CHUNK)
            .filter(|&unit| self.plan.group[unit] != NONE)
            .fold(before | granule(start), |granules, unit| granules | granule(units[unit].start));
        let chunks = self.stats.mapped_bytes.load(Relaxed) as usize / CHUNK;
        let granules = joined(planned, (RUNS / chunks.max(1)).clamp(1, 32));
        for run in runs_of(granules) {
            if run & !before == 0 {
                continue;
            }
            let at = chunk + run.trailing_zeros() as usize * len;
            if self.kernel.mergeable(at, run.count_ones() as usize * len).is_err() {
                self.degrade(degraded::NO_KSM);
                return false;
            }
        }
        self.offered[place].granules = granules;
        true
    }

    /// Composes the page that all members shall be.
    fn gather(&self, members: &Batch<S::Ref>) {
        let stage = self.stage_at as *mut u8;
        // SAFETY: the stage is the engine's own, at least a page long.
        unsafe { stage.write_bytes(0, self.page) };
        for unit in members.units() {
            let phase = unit.phase as usize;
            for run in runs(unit.live, unit.slot_size as usize, phase, self.page) {
                // SAFETY: the run lies in the unit's page, which is mapped, and in the stage, which nobody else
                // uses. The program may write the slots meanwhile, which `copy` is made for.
                unsafe {
                    let from = (unit.start + run.start) as *const u8;
                    copy(stage.add(run.start), from, run.len());
                }
            }
        }
    }

    /// Fills what is not live in the unit's page with what the stage has there.
    fn fill_dead(&self, unit: &Frozen<S::Ref>) {
        let stage = self.stage_at as *const u8;
        let (mut at, phase) = (0, unit.phase as usize);
        let live = runs(unit.live, unit.slot_size as usize, phase, self.page);
        for run in live.chain(core::iter::once(self.page..self.page)) {
            // SAFETY: `at..run.start` holds dead slots only (and bytes of no slot). The page is blocked, so
            // nobody uses them but the engine; the stage is as long as a page.
            unsafe { copy((unit.start + at) as *mut u8, stage.add(at), run.start - at) };
            at = run.end;
        }
    }
}

//! Undoing merges that no longer pay: dead units, units that the program writes, sparse groups.

use core::sync::atomic::Ordering::Relaxed;

use super::copy::{copy, runs};
use super::groups::{END, Merged};
use super::state::{Compactor, add};
use super::{BarrierSupport, Kernel, SpanView, Spans, pagemap};
use crate::os::Os;
use crate::plan::{self, Geometry};
use crate::stats::{Backend, degraded};

/// Units looked at in one go.
const SLICE: usize = 64;

/// Seconds that a page is given to be merged by `ksmd` before it counts as written: since `ksmd` was
/// seen to have merged another page of its group, and if it was not (it may rest, or be slow).
const KSM_GRACE: u32 = 2;
/// See [`KSM_GRACE`].
const KSM_PATIENCE: u32 = 60;

/// First time for which a written unit is left alone, in seconds; doubles with each time, up to 2^10.
const COOL_SECONDS: u32 = 2;

/// What shall become of a merged unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitOutcome {
    Stays,
    /// All its slots are dead.
    Dead,
    /// It leaves the group with its live bytes.
    Leaves,
}

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Looks at merged units from `first` on; returns where to go on, `None` at the end.
    pub(crate) fn restore(&mut self, first: usize) -> Option<usize> {
        if first == 0 {
            self.pending = 0;
        }
        let last = (first + SLICE).min(self.groups.merged.len());
        self.sparse_seen = None;
        for index in first..last {
            let unit = self.groups.merged[index];
            // A unit of this very pass is counted as offered; there is nothing else to see yet.
            let new = unit.pass == self.pass as u8;
            self.pending += u64::from(new && unit.group != END);
            if unit.group == END || new {
                continue;
            }
            let Some((span, view)) = self.span_view(unit.span as usize) else { continue };
            if view.generation != unit.generation {
                continue;
            }
            let (outcome, written) = self.judge(index as u32, &view);
            let left = match outcome {
                UnitOutcome::Stays => false,
                UnitOutcome::Dead => self.bury(&unit, &view),
                UnitOutcome::Leaves => self.leave(&unit, &view),
            };
            if !left {
                continue;
            }
            if written {
                let now = self.seconds();
                let note = &mut self.notes[unit.span as usize];
                // Units of a span that leave together count once.
                if note.cool_at <= now {
                    note.cool_at = now.saturating_add(COOL_SECONDS << note.heat.min(10));
                    note.heat = note.heat.saturating_add(1);
                }
            }
            self.release_unit(index as u32, span, &view, outcome == UnitOutcome::Leaves);
        }
        if last < self.groups.merged.len() {
            return Some(last);
        }
        if self.backend == Backend::Ksm && self.judges {
            self.stats.ksm_pending.store(self.pending, Relaxed);
        }
        None
    }

    /// Takes every unit that can be out of its group, with its live bytes; returns how many remain. For
    /// a program that wants its heap as it was, and for tests; not sliced.
    pub fn dissolve_all(&mut self) -> u64 {
        self.able = self.kernel.barrier();
        for index in 0..self.groups.merged.len() {
            let unit = self.groups.merged[index];
            if unit.group == END {
                continue;
            }
            let Some((span, view)) = self.span_view(unit.span as usize) else { continue };
            if self.leave(&unit, &view) {
                self.release_unit(index as u32, span, &view, true);
            }
        }
        self.groups.units
    }

    /// Forgets a unit that left its group, with its live bytes if it `lives`, and unblocks its slots.
    pub(super) fn release_unit(&mut self, index: u32, span: S::Ref, view: &SpanView, lives: bool) {
        let unit = self.groups.merged[index as usize];
        let mask = (((1u32 << unit.pages) - 1) << unit.page) as u16;
        // What was live when the pages were copied has memory, and nothing else does.
        let full = if lives {
            let (geometry, live) = self.geometry_of(&unit, view);
            geometry.touched(&live) << unit.page
        } else {
            0
        };
        let note = &mut self.notes[unit.span as usize];
        note.merged &= !mask;
        note.given = note.given & !mask | mask & !full;
        self.count(unit.span as usize, full);
        self.groups.remove(&self.kernel, index);
        if self.backend == Backend::Remap {
            let start = view.start + usize::from(unit.page) * self.page;
            let len = usize::from(unit.pages) * self.page;
            self.aliases.set(self.os, start, len, false);
        }
        self.spans.set_absent(span, view.generation, mask & !full);
        self.spans.unblock(span, view.generation, unit.page..unit.page + unit.pages);
    }

    pub(super) fn geometry_of(&self, unit: &Merged, view: &SpanView) -> (Geometry, super::Bits) {
        let from = usize::from(unit.page) * self.page;
        let slot = view.slot_size as usize;
        let phase = (from % slot) as u32;
        let pages = unit.pages;
        let slots = (usize::from(pages) * self.page + phase as usize).div_ceil(slot);
        let geometry =
            Geometry { slot_size: view.slot_size, phase, pages, page_size: self.page as u32 };
        (geometry, super::copy::window(&view.live, from / slot, slots))
    }

    /// What shall become of the unit, and whether that is because the program writes to it.
    fn judge(&mut self, index: u32, view: &SpanView) -> (UnitOutcome, bool) {
        let unit = self.groups.merged[index as usize];
        let (geometry, live) = self.geometry_of(&unit, view);
        if plan::population(&live) == 0 {
            return (UnitOutcome::Dead, false);
        }
        if !self.judges {
            return (UnitOutcome::Stays, false);
        }
        let needed = geometry.touched(&live);
        let mut entries = [0u64; 16];
        let entries = &mut entries[..usize::from(unit.pages)];
        let start = view.start + usize::from(unit.page) * self.page;
        if self.kernel.pagemap(start, entries).is_err() {
            return (UnitOutcome::Stays, false);
        }
        let mut own = 0u16;
        for (page, entry) in entries.iter().enumerate() {
            let here = entry & (pagemap::PRESENT | pagemap::SWAPPED) != 0;
            let is_own = match self.backend {
                // A page of an alias is the image's until the program writes; then it is anonymous.
                Backend::Remap => here && entry & pagemap::FILE == 0,
                // A merged page is mapped more than once.
                _ => entry & pagemap::PRESENT != 0 && entry & pagemap::EXCLUSIVE != 0,
            };
            own |= u16::from(is_own) << page;
        }
        if self.backend == Backend::Ksm {
            let group = &mut self.groups.groups[unit.group as usize];
            group.seen |= own == 0 && entries[0] & pagemap::PRESENT != 0;
            let grace = if group.seen { KSM_GRACE } else { KSM_PATIENCE };
            if own != 0 && self.seconds().wrapping_sub(unit.at) < grace {
                self.pending += 1;
                return (UnitOutcome::Stays, false);
            }
        }
        let fresh = self.groups.mark_lost(index, own);
        add(&self.stats.unmerged_pages, u64::from(fresh));
        let written = (own & needed).count_ones() * 2 >= needed.count_ones();
        if written && own & needed != 0 {
            return (UnitOutcome::Leaves, true);
        }
        let lonely = self.groups.groups[unit.group as usize].members == 1;
        let leaves = lonely || self.groups.sparse_segment(unit.group) || self.sparse(unit.group);
        (if leaves { UnitOutcome::Leaves } else { UnitOutcome::Stays }, false)
    }

    /// Whether the units of a group need no more pages on their own than the image has.
    fn sparse(&mut self, index: u32) -> bool {
        // Members of a group are mostly looked at one after the other.
        match self.sparse_seen {
            Some((seen, sparse)) if seen == index => sparse,
            _ => {
                let sparse = self.needs_no_image(index);
                self.sparse_seen = Some((index, sparse));
                sparse
            }
        }
    }

    fn needs_no_image(&mut self, group: u32) -> bool {
        let Some(group) = self.groups.groups.get(group as usize).copied() else { return false };
        if group.members > u16::from(group.image_pages) {
            // Each member that lives needs a page at least.
            return false;
        }
        let mut needed = 0;
        let mut at = group.first;
        while at != END {
            let unit = self.groups.merged[at as usize];
            at = unit.next;
            if let Some((_, view)) = self.span_view(unit.span as usize) {
                let (geometry, live) = self.geometry_of(&unit, &view);
                needed += (geometry.touched(&live) | unit.lost).count_ones();
            }
        }
        needed <= u32::from(group.image_pages)
    }

    /// Gives a unit without live slots ordinary memory again; `false` if that fails.
    fn bury(&mut self, unit: &Merged, view: &SpanView) -> bool {
        let start = view.start + usize::from(unit.page) * self.page;
        let len = usize::from(unit.pages) * self.page;
        match self.backend {
            Backend::Remap => {
                // SAFETY: the unit is blocked and has no live slot, so nobody uses a byte of it (a straddling slot
                // that lived would be among its live slots).
                if unsafe { self.kernel.map_anonymous(start, len) }.is_err() {
                    self.degrade(degraded::VMA_BUDGET);
                    return false;
                }
                if matches!(self.able, BarrierSupport::WriteProtect { .. }) {
                    // Lets the mapping join its neighbours; `protect` mends it if this fails.
                    let how = super::Registration::WriteProtect;
                    let _ = self.kernel.register(start, len, how);
                }
            }
            // SAFETY: as above; the page is anonymous (KSM maps nothing).
            _ => unsafe { self.kernel.decommit(start, len) },
        }
        true
    }

    /// Gives a unit its own memory with its live bytes; `false` if that cannot be done now.
    fn leave(&mut self, unit: &Merged, view: &SpanView) -> bool {
        if self.backend != Backend::Remap {
            // The page is its own as soon as it is written; until then the kernel shares it.
            return true;
        }
        let protects = matches!(self.able, BarrierSupport::WriteProtect { .. });
        if self.able == BarrierSupport::Nothing {
            return false;
        }
        let start = view.start + usize::from(unit.page) * self.page;
        let len = usize::from(unit.pages) * self.page;
        let own = self.os.map(len, self.page);
        if own.is_null() {
            self.degrade(degraded::NO_MEMORY);
            return false;
        }
        self.kernel.wait_for_space(own as usize);
        self.waited = false;
        let begin = self.kernel.now_ns();
        let frozen = !protects || self.protect(start, len).is_ok();
        // A page that a device writes to must stay: there is no way to move pages out of an alias.
        let replaced = frozen && !(protects && self.kernel.pin_risk()) && {
            // The live bits are read again under the freeze: slots only die while the unit is blocked.
            let (geometry, live) = self.geometry_of(unit, view);
            let phase = geometry.phase as usize;
            for run in runs(live, geometry.slot_size as usize, phase, len) {
                // SAFETY: the run lies in the unit, which is mapped and frozen, and in the new mapping, which is
                // `len` bytes long and nobody else's.
                unsafe { copy(own.add(run.start), (start + run.start) as *const u8, run.len()) };
            }
            // SAFETY: the new mapping is the engine's and holds the bytes of every live slot of the unit.
            unsafe { self.kernel.replace(own as usize, start, len) }.is_ok()
        };
        self.note_waiters();
        if replaced {
            self.kernel.wake(start, len);
        } else {
            if frozen && protects {
                let _ = self.kernel.write_protect(start, len, false);
            }
            // SAFETY: the mapping was made above and is used by nobody.
            unsafe { self.os.unmap(own, len) };
        }
        let pause = self.kernel.now_ns().wrapping_sub(begin);
        self.pause(pause);
        if self.waited {
            self.stats.stalled(pause);
        }
        replaced
    }
}

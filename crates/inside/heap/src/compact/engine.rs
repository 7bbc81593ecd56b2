//! The engine: gives free pages back, plans, and commits a group or a batch at a time, by what scans have found
//! (`scan.rs`).
//!
//! A **pass** goes through the stages below, one [`Compactor::step`] at a time; a step ends when
//! its budget is used up, and the caller decides when the next one begins.
//!
//! ```text
//!  begin ─► Extents ─► Classes ─► (Commit ─► Classes)* ─► Release ─► Restore ─► idle
//!           runs of   one class: unit      groups         pages free    dead, written and
//!           spans     size, groups         in order       in two scans  sparse units undone
//! ```
//!
//! Merging a unit gives its free pages back too, so `Release` comes after; an urgent pass releases first.
//!
//! A step is made of slices, planning included: each is a bounded number of looks at spans, moves or probes, or one
//! group or batch, and after each the time is read. So is a scan.
//!
//! Properties: a step exceeds its budget by one slice at most; what is planned does not depend on how the steps are cut
//! (tested); what a step blocks it has merged or unblocked when it returns; no lock is held over a system call (the
//! heap's are taken inside [`Spans`] only).

use core::sync::atomic::Ordering::Relaxed;

use super::pass::Stage;
use super::state::{Compactor, Progress, add};
use super::{BarrierSupport, Kernel, Spans};
use crate::os::Os;
use crate::stats::{Backend, Barrier, Stop, degraded};

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Passes begun.
    pub fn passes(&self) -> u32 {
        self.pass
    }

    /// Finds out what can stop writers now, and says in the statistics what compacts.
    pub fn survey(&mut self) {
        self.able = if self.imageless { BarrierSupport::Nothing } else { self.kernel.barrier() };
        let barrier = match (self.backend, self.able) {
            (Backend::Remap, BarrierSupport::SingleThread) => Barrier::SingleThread,
            (Backend::Remap, BarrierSupport::WriteProtect { .. }) => Barrier::WriteProtect,
            _ => Barrier::None,
        };
        self.stats.barrier.store(barrier as u64, Relaxed);
        let backend = if self.can_merge() { self.backend } else { Backend::None };
        self.stats.backend.store(backend as u64, Relaxed);
        if self.backend == Backend::Remap && self.able == BarrierSupport::Nothing && !self.imageless
        {
            self.degrade(degraded::NO_BARRIER);
        }
    }

    /// Begins a pass: the next steps go through all stages. With `urgent`, pages are given back
    /// that were free only now and write-hot spans are tried again.
    pub fn begin(&mut self, urgent: bool) {
        self.survey();
        self.urgent = urgent;
        self.pins = false;
        self.offers_made = 0;
        self.stopped = Stop::Done;
        self.charged = self.groups.mappings as usize;
        self.pass = self.pass.wrapping_add(1);
        self.rank();
        let now_ms = (self.kernel.now_ns() / 1_000_000) as u32;
        self.judges = urgent || now_ms.wrapping_sub(self.judged_ms) >= self.settings.judge_ms;
        self.begin_renewal();
        if self.judges {
            self.judged_ms = now_ms;
        }
        self.stage = if urgent { Stage::Release { span: 0 } } else { Stage::PLAN };
        add(&self.stats.passes, 1);
    }

    /// Begins a pass that only gives back: pages that were free in the last two scans, and merged units that have
    /// died, whose slots the program cannot use until then. It is cheap, so it need not wait for a full pass.
    pub fn begin_release(&mut self) {
        self.urgent = false;
        self.judges = false;
        self.stage = Stage::Release { span: 0 };
        self.pass = self.pass.wrapping_add(1);
    }

    /// Begins a pass that only looks at merged units: pages that `ksmd` has not come to merge leave their groups, and
    /// can be offered again.
    pub fn begin_judging(&mut self) {
        self.urgent = false;
        self.judges = true;
        self.judged_ms = (self.kernel.now_ns() / 1_000_000) as u32;
        self.stage = Stage::Restore { unit: 0 };
        self.pass = self.pass.wrapping_add(1);
    }

    /// Plans and merges nothing more in this pass, since the program works: what is left of it gives back and undoes.
    pub fn cut_short(&mut self) {
        if matches!(
            self.stage,
            Stage::Extents { .. }
                | Stage::Pages { .. }
                | Stage::Classes { .. }
                | Stage::Commit { .. }
        ) {
            self.end_renewal(false);
            self.stage = self.after_classes();
            self.stopped = Stop::Work;
        }
    }

    /// Works for about `budget_ns`.
    pub fn step(&mut self, budget_ns: u64) -> Progress {
        let begin = self.kernel.now_ns();
        while self.stage != Stage::Idle {
            self.stage = match self.stage {
                Stage::Idle => Stage::Idle,
                Stage::Release { span } => self.release(span),
                Stage::Extents { step } => self.plan_extents(step),
                Stage::Pages { step } => self.plan_pages(step),
                Stage::Classes { next, step } => self.plan_class(next, step),
                Stage::Commit { at, group } => self.commit(at, group),
                Stage::Restore { unit } => self.restore_some(unit),
            };
            if self.kernel.now_ns().wrapping_sub(begin) >= budget_ns {
                break;
            }
        }
        let done = self.stage == Stage::Idle;
        if done {
            self.end_renewal(true);
            self.plan.release(self.os);
            self.clear_stage();
        }
        add(&self.stats.compact_ns, self.kernel.now_ns().wrapping_sub(begin));
        self.publish();
        if done { Progress::Done } else { Progress::More }
    }

    /// Makes the engine the child's own after a `fork` whose handler kept it quiet: what was merged stays
    /// merged and can be restored, images get new files, and chunks are prepared again for `kernel`, which
    /// has the child's own userfaultfd and page map. The old one is dropped and no file of it closed: the
    /// numbers mean nothing here. A child of a `fork` that no handler saw must not use the engine at all: it may have
    /// been copied in the middle of a step.
    pub fn forked(&mut self, kernel: K) {
        self.kernel = kernel;
        self.stage = Stage::Idle;
        self.renews = false;
        self.chunks.clear();
        self.groups.disown();
        if self.aside_at != 0 {
            // SAFETY: the area is the engine's own and empty between steps.
            unsafe { self.os.unmap(self.aside_at as *mut u8, self.aside_len()) };
            self.aside_at = 0;
        }
    }

    /// Frees the engine's tables. Merged units stay as they are; nothing can be restored afterwards,
    /// so this is for the end of a process's compaction.
    pub fn end(&mut self) {
        self.plan.release(self.os);
        self.groups.release(self.os, &self.kernel);
        self.aliases.release(self.os);
        self.notes.release(self.os);
        self.classes.release(self.os);
        self.listed.release(self.os);
        self.ranking.release(self.os);
        self.chunks.release(self.os);
        self.offered.release(self.os);
        for (at, len) in [(self.stage_at, self.stage_len()), (self.aside_at, self.aside_len())] {
            if at != 0 {
                // SAFETY: both areas are the engine's own mappings of these lengths and not used again.
                unsafe { self.os.unmap(at as *mut u8, len) };
            }
        }
        (self.stage_at, self.aside_at) = (0, 0);
    }

    fn commit(&mut self, at: usize, group: u32) -> Stage {
        if group >= self.plan.groups {
            return self.after_key(at);
        }
        let next = match self.backend {
            Backend::Ksm => self.commit_ksm(group),
            _ => self.commit_remap(group),
        };
        match next {
            Some(group) => Stage::Commit { at, group },
            None => self.after_classes(),
        }
    }

    fn restore_some(&mut self, unit: usize) -> Stage {
        match self.restore(unit) {
            Some(next) => Stage::Restore { unit: next },
            None => Stage::Idle,
        }
    }
}

//! The engine: gives free pages back, plans, and commits a group or a batch at a time, by what scans have found (`scan.rs`).
//!
//! A **pass** goes through the stages below, one [`Compactor::step`] at a time; a step ends when
//! its budget is used up, and the caller decides when the next one begins.
//!
//! ```text
//!  begin ─► Strips ─► Classes ─► (Commit ─► Classes)* ─► Release ─► Restore ─► idle
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
//! (tested); what a step blocks it has merged or unblocked when it returns; no lock is held over a system call (the heap's are
//! taken inside [`Spans`] only).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::classes::Trial;
use super::groups::Groups;
use super::ksm::Offered;
use super::scan::{Class, Note, Scan, Scanning};
use super::sort::Sorting;
use super::strips::{Part, Strip};
use super::table::Table;
use super::{Able, Bits, Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{Geometry, Limits, Packing};
use crate::stats::{Backend, Barrier, StatsPage, degraded};

/// Bytes of a chunk, the unit of preparation.
pub(super) const CHUNK: usize = 2 << 20;

/// Bounds and prices; see [`Settings::DEFAULT`] for the sources.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Longest time for which a batch of units should stay write-protected.
    pub pause_ns: u64,
    /// Mappings that compaction may hold: see [`crate::trigger::mapping_budget`].
    pub mappings: usize,
    /// Whether it is `vm.max_map_count` that bounds them, which the user can mend.
    pub by_limit: bool,
    /// Bytes that a mapping must save to be worth it.
    pub mapping_price: u32,
    /// Bytes that a microsecond of work must save.
    pub work_price: u32,
    /// Milliseconds for which a span's live slots must have been nearly the same before it is merged.
    pub settle_ms: u32,
    /// Milliseconds between two looks for merged units that the program wrote or that have become sparse.
    pub judge_ms: u32,
    /// Live share (in 1/256) above which a span is left alone.
    pub full: u16,
    /// Pages that a pass may offer to `ksmd`, which works for each of them (KSM back end).
    pub offers: usize,
}

impl Settings {
    /// A mapping costs 256 bytes of kernel memory and 0.2 us at each fork, which copies the entries of
    /// seven private pages in that time (measured, Linux 6.18): 1 KiB. 80 % is the paper's bound
    /// (Mesh, section 4.5).
    pub const DEFAULT: Self = Self {
        pause_ns: 200_000,
        mappings: 8192,
        by_limit: true,
        mapping_price: 1024,
        work_price: 64,
        settle_ms: 0,
        judge_ms: 0,
        full: 205,
        offers: usize::MAX,
    };
}

/// Where a step left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The pass goes on.
    More,
    /// The pass is over, or none was begun.
    Done,
}

/// A unit that takes part in a plan.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub start: usize,
    pub span: u32,
    pub page: u8,
    /// Index of what was seen of the span.
    pub(super) seen: u32,
}

/// What was seen of a span when its class was planned.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) start: usize,
    pub(super) span: u32,
    pub(super) live: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Release {
        span: usize,
    },
    Strips {
        step: Step,
    },
    /// `next` is a place in the ranking.
    Classes {
        next: usize,
        step: Step,
    },
    Commit {
        at: usize,
        group: u32,
    },
    Restore {
        unit: usize,
    },
}

impl Stage {
    /// The beginning of planning.
    pub(super) const PLAN: Self = Self::Strips { step: Step::Look { at: 0 } };

    /// The beginning of a class, by its place in the ranking.
    pub(super) const fn class(next: usize) -> Self {
        Self::Classes { next, step: Step::Look { at: 0 } }
    }
}

/// Spans looked at in one slice of planning.
pub(super) const SPANS_SLICE: usize = 512;

/// Where planning left off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Spans are looked at.
    Look { at: usize },
    /// Units of a class are collected.
    Fill { at: usize },
    /// What was found is sorted by address.
    Sort,
    /// Spans side by side are cut into strips.
    Cut { at: usize },
    /// What lives in each unit or strip is noted.
    Mark { at: usize },
    /// They are put into groups.
    Pack,
    /// The groups are put in order.
    Arrange,
}

/// The current plan.
pub(crate) struct Plan {
    /// The spans of the class that is planned, and what they have in common.
    pub(super) seen: Table<Seen>,
    pub(super) shape: Option<SpanView>,
    /// Units by address.
    pub units: Table<Candidate>,
    /// Sparse spans by address, and the strips that they make; empty while a class is planned.
    pub(super) parts: Table<Part>,
    pub strips: Table<Strip>,
    pub(super) order: Table<u32>,
    pub(super) group: Table<u32>,
    pub(super) sizes: Table<u32>,
    /// Units by group, and where each group's begin.
    pub members: Table<u32>,
    pub starts: Table<u32>,
    /// Memory for bitmaps, as words.
    pub(super) bits: Table<u64>,
    pub(super) unions: Table<u64>,
    pub groups: u32,
    pub geometry: Geometry,
    /// Slots of a unit.
    pub slots: usize,
    /// Which of the class's unit keys comes next, and the unit size chosen.
    pub(super) next_key: u8,
    pub(super) unit: u8,
    /// Which unit size is tried, while one is chosen.
    pub(super) trial: Option<Trial>,
    /// How far sorting and grouping have come.
    pub(super) sorting: Sorting,
    pub(super) packing: Packing,
    pub(super) limits: Limits,
}

/// The compaction engine of one heap.
pub struct Compactor<'a, S: Spans, K: Kernel, O: Os> {
    pub(crate) spans: S,
    pub(crate) kernel: K,
    pub(crate) os: &'a O,
    pub(crate) stats: &'a StatsPage,
    /// Bounds and prices; may be changed between steps.
    pub settings: Settings,
    pub(crate) backend: Backend,
    pub(crate) able: Able,
    pub(crate) page: usize,
    pub(super) stage: Stage,
    pub(crate) pass: u32,
    pub(crate) notes: Table<Note>,
    pub(super) classes: Table<Class>,
    /// Spans by class, each class's up to its `end`.
    pub(super) listed: Table<u32>,
    /// Classes with something to merge, those first that save most of what they hold.
    pub(super) ranking: Table<u16>,
    pub(super) chunks: Table<usize>,
    /// What of each chunk was offered to `ksmd`, by address.
    pub(super) offered: Table<Offered>,
    /// Pages that this pass has offered to `ksmd`.
    pub(super) offers_made: usize,
    pub(crate) groups: Groups,
    pub(crate) plan: Plan,
    /// Bytes to compose images in, and to move pages to.
    pub(crate) stage_at: usize,
    pub(crate) aside_at: usize,
    /// CPU time that merging a unit takes, nanoseconds: a moving mean. Not wall time: a helper that was
    /// preempted once must not find all merging too dear.
    pub(crate) unit_ns: u64,
    /// No image can be made: nothing is remapped any more.
    pub(crate) imageless: bool,
    /// Whether something that may pin pages was seen in this pass.
    pub(crate) pins: bool,
    /// Whether somebody waited for what is frozen now.
    pub(crate) waited: bool,
    /// Pages of spans that count as ordinary resident memory.
    pub(super) ordinary: u64,
    /// Pages offered to `ksmd` and not merged, counted while units are looked at.
    pub(crate) pending: u64,
    pub(super) urgent: bool,
    /// The last scan, the one that is being made, and when it began, in milliseconds.
    pub(super) last: Scan,
    pub(super) scanning: Scanning,
    pub(super) now_ms: u32,
    /// Whether this pass looks at merged units that live, and when one last did.
    pub(super) judges: bool,
    judged_ms: u32,
    /// The group that was last found to be sparse or not, while units are looked at.
    pub(super) sparse_seen: Option<(u32, bool)>,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    // Only the helper thread writes the counters of compaction, so a load and a store will do.
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl<'a, S: Spans, K: Kernel, O: Os> Compactor<'a, S, K, O> {
    /// An engine with nothing merged yet.
    ///
    /// # Safety
    /// `kernel` works on this process, and nobody else remaps or decommits pages that are blocked in
    /// `spans`. If the kernel says [`Able::Alone`], every call of [`Compactor::step`] is made by the
    /// process's only thread with all signals blocked.
    pub unsafe fn new(
        spans: S,
        kernel: K,
        os: &'a O,
        stats: &'a StatsPage,
        backend: Backend,
    ) -> Self {
        Self {
            spans,
            kernel,
            os,
            stats,
            settings: Settings::DEFAULT,
            backend,
            able: Able::Nothing,
            page: os.page_size(),
            stage: Stage::Idle,
            pass: 0,
            notes: Table::new(),
            classes: Table::new(),
            listed: Table::new(),
            ranking: Table::new(),
            chunks: Table::new(),
            offered: Table::new(),
            offers_made: 0,
            groups: Groups::new(),
            plan: Plan {
                seen: Table::new(),
                shape: None,
                units: Table::new(),
                parts: Table::new(),
                strips: Table::new(),
                order: Table::new(),
                group: Table::new(),
                sizes: Table::new(),
                members: Table::new(),
                starts: Table::new(),
                bits: Table::new(),
                unions: Table::new(),
                groups: 0,
                geometry: Geometry { slot_size: 0, phase: 0, pages: 0, page_size: 0 },
                slots: 0,
                next_key: 0,
                unit: 0,
                trial: None,
                sorting: Sorting::new(0),
                packing: Packing::new(),
                limits: Limits::DEFAULT,
            },
            stage_at: 0,
            aside_at: 0,
            unit_ns: 12_000,
            imageless: false,
            pins: false,
            waited: false,
            ordinary: 0,
            pending: 0,
            urgent: false,
            last: Scan::default(),
            scanning: Scanning::NEW,
            now_ms: 0,
            judges: true,
            judged_ms: 0,
            sparse_seen: None,
        }
    }

    /// The heap behind the engine.
    pub fn spans(&self) -> &S {
        &self.spans
    }

    /// The kernel behind the engine.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Physical bytes that merging saves now, by the engine's own count; those too that `ksmd` has still to merge.
    pub fn saved_bytes(&self) -> u64 {
        self.groups.saved_pages() * self.page as u64
    }

    /// Passes begun.
    pub fn passes(&self) -> u32 {
        self.pass
    }

    /// Finds out what can stop writers now, and says in the statistics what compacts.
    pub fn survey(&mut self) {
        self.able = if self.imageless { Able::Nothing } else { self.kernel.barrier() };
        let barrier = match (self.backend, self.able) {
            (Backend::Remap, Able::Alone) => Barrier::SingleThread,
            (Backend::Remap, Able::WriteProtect { .. }) => Barrier::WriteProtect,
            _ => Barrier::None,
        };
        self.stats.barrier.store(barrier as u64, Relaxed);
        let backend = if self.can_merge() { self.backend } else { Backend::None };
        self.stats.backend.store(backend as u64, Relaxed);
        if self.backend == Backend::Remap && self.able == Able::Nothing && !self.imageless {
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
        self.pass = self.pass.wrapping_add(1);
        self.rank();
        let now_ms = (self.kernel.now_ns() / 1_000_000) as u32;
        self.judges = urgent || now_ms.wrapping_sub(self.judged_ms) >= self.settings.judge_ms;
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

    /// Works for about `budget_ns`.
    pub fn step(&mut self, budget_ns: u64) -> Progress {
        let begin = self.kernel.now_ns();
        while self.stage != Stage::Idle {
            self.stage = match self.stage {
                Stage::Idle => Stage::Idle,
                Stage::Release { span } => self.release(span),
                Stage::Strips { step } => self.plan_strips(step),
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
            self.drop_plan();
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
        self.drop_plan();
        self.groups.release(self.os, &self.kernel);
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

    pub(crate) fn degrade(&self, bit: u64) {
        self.stats.degraded.fetch_or(bit, Relaxed);
    }

    pub(crate) fn seconds(&self) -> u32 {
        (self.kernel.now_ns() / 1_000_000_000) as u32
    }

    pub(super) fn can_merge(&self) -> bool {
        match self.backend {
            Backend::None => false,
            Backend::Ksm => true,
            Backend::Remap => self.able != Able::Nothing,
        }
    }

    /// Units that can be frozen at once without exceeding the bound on a pause.
    pub(crate) fn batch_units(&self) -> usize {
        ((self.settings.pause_ns / self.unit_ns.max(1)) as usize).clamp(4, super::remap::BATCH)
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

    pub(super) fn after_classes(&self) -> Stage {
        if self.urgent { Stage::Restore { unit: 0 } } else { Stage::Release { span: 0 } }
    }

    fn restore_some(&mut self, unit: usize) -> Stage {
        match self.restore(unit) {
            Some(next) => Stage::Restore { unit: next },
            None => Stage::Idle,
        }
    }

    /// Prepares the chunks that a range lies in, each once.
    pub(crate) fn prepare(&mut self, start: usize, len: usize) -> bool {
        let mut chunk = start / CHUNK * CHUNK;
        while chunk < start + len {
            if let Err(place) = self.chunks.binary_search(&chunk) {
                if !self.chunks.push(self.os, chunk) {
                    return false;
                }
                self.chunks[place..].rotate_right(1);
                self.kernel.settle(chunk, CHUNK);
                // The unit alone is registered where the whole chunk cannot be.
                if let (Backend::Remap, Able::WriteProtect { .. }) = (self.backend, self.able) {
                    let _ = self.kernel.register(chunk, CHUNK, super::Registration::WriteProtect);
                }
            }
            chunk += CHUNK;
        }
        true
    }

    pub(crate) fn stage_len(&self) -> usize {
        super::remap::IMAGE_PAGES * self.page
    }

    pub(crate) fn aside_len(&self) -> usize {
        super::remap::IMAGE_PAGES * self.page * super::remap::BATCH
    }

    /// The area where images are composed; 0 if there is no memory.
    pub(crate) fn stage_area(&mut self) -> usize {
        if self.stage_at == 0 {
            self.stage_at = self.os.map(self.stage_len(), self.page) as usize;
        }
        self.stage_at
    }

    fn drop_plan(&mut self) {
        let plan = &mut self.plan;
        plan.seen.release(self.os);
        plan.units.release(self.os);
        plan.parts.release(self.os);
        plan.strips.release(self.os);
        plan.order.release(self.os);
        plan.group.release(self.os);
        plan.sizes.release(self.os);
        plan.members.release(self.os);
        plan.starts.release(self.os);
        plan.bits.release(self.os);
        plan.unions.release(self.os);
        plan.groups = 0;
        plan.next_key = 0;
    }

    /// Pages behind merged units (images, what the program has written since, and what waits for `ksmd`), and how many ordinary
    /// pages `ksmd` has merged too: it looks at all of what it was offered.
    fn behind_units(&self) -> (u64, u64) {
        let groups = &self.groups;
        if self.backend != Backend::Ksm {
            return (groups.image_pages + groups.lost_pages, 0);
        }
        let offered = groups.touched_pages + groups.lost_pages;
        if offered == 0 {
            return (0, 0);
        }
        // The kernel's count is of this moment, the engine's of when it looked last.
        let waiting = self.stats.ksm_pending.load(Relaxed) + groups.lost_pages;
        let merged = self.kernel.ksm_merged().unwrap_or(offered.saturating_sub(waiting));
        let (merged, beside) = (merged.min(offered), merged.saturating_sub(offered));
        // A group has its image once `ksmd` has begun to merge it.
        (offered - merged + (groups.image_pages * merged).div_ceil(offered), beside)
    }

    /// Tells the statistics page how things are: a footprint of physical memory, merged pages counted once, and
    /// by how much merging has made it smaller.
    ///
    /// ```text
    ///  footprint = ordinary pages of spans + behind merged units + large objects + free pages
    ///  saved     = live pages of merged units when they were merged - behind merged units
    /// ```
    pub fn publish(&self) {
        let page = self.page as u64;
        let (behind, beside) = self.behind_units();
        let ordinary = self.ordinary.saturating_sub(beside);
        let footprint = (ordinary + behind) * page + self.spans.beside() as u64;
        self.stats.footprint_bytes.store(footprint, Relaxed);
        self.stats.footprint_peak_bytes.fetch_max(footprint, Relaxed);
        let saved = (self.groups.touched_pages + self.groups.lost_pages).saturating_sub(behind);
        self.stats.groups.store(self.groups.live, Relaxed);
        self.stats.merged_bytes.store(self.groups.merged_pages * page, Relaxed);
        self.stats.saved_bytes.store(saved * page, Relaxed);
        if self.backend == Backend::Remap {
            // Nearly: neighbours that follow each other in an image are one mapping, and what leaves the middle of one makes two.
            self.stats.vmas.store(self.groups.mappings, Relaxed);
            self.stats.vma_budget.store(self.settings.mappings as u64, Relaxed);
        }
    }
}

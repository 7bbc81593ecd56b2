//! What the engine is made of, and what all of its stages need: bounds, notes, the areas that it works in.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::aliases::Aliases;
use super::batch::{BATCH, Frozen, IMAGE_PAGES};
use super::census::{Class, Note, Scan, Scanning, all_pages};
use super::groups::Groups;
use super::offers::Offered;
use super::pass::{Plan, Stage};
use super::table::Table;
use super::{BarrierSupport, CHUNK, Kernel, Registration, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Geometry};
use crate::stats::{Backend, StatsPage, Stop, degraded};
use crate::trigger::EXTENT_PRICE;

/// Bounds and prices; see [`Settings::DEFAULT`] for the sources.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Longest time for which a batch of units should stay write-protected.
    pub pause_ns: u64,
    /// Mappings that compaction may hold: see [`crate::trigger::mapping_budget`]. A range counts as what it adds: two
    /// in the middle of a mapping, none between two aliases.
    pub mappings: usize,
    /// Whether it is `vm.max_map_count` that bounds them, which the user can mend.
    pub by_limit: bool,
    /// Bytes that a mapping must save to be worth it.
    pub mapping_price: u32,
    /// Bytes that a microsecond of work must save.
    pub work_price: u32,
    /// The same two where extents end, which is for good: [`crate::trigger::EXTENT_PRICE`], and what work costs a
    /// program that has settled.
    pub extent_price: u32,
    /// See [`Settings::extent_price`].
    pub extent_work_price: u32,
    /// Milliseconds for which a span's live slots must have been nearly the same before it is merged.
    pub settle_ms: u32,
    /// Milliseconds between two looks for merged units that the program wrote or that have become sparse.
    pub judge_ms: u32,
    /// Live share (in 1/256) above which a span is left alone.
    pub full: u16,
    /// Whether the program has been idle for so long that dense pages take part (KSM back end): what is live lives on.
    pub settled: bool,
    /// The same for what was merged before it had settled, which is taken apart to be merged better (KSM back end), and
    /// for image files of which little lives (`renew.rs`).
    pub again: bool,
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
        extent_price: EXTENT_PRICE,
        extent_work_price: 64,
        settle_ms: 0,
        judge_ms: 0,
        full: 205,
        settled: false,
        again: false,
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

/// The compaction engine of one heap.
pub struct Compactor<'a, S: Spans, K: Kernel, O: Os> {
    pub(crate) spans: S,
    pub(crate) kernel: K,
    pub(crate) os: &'a O,
    pub(crate) stats: &'a StatsPage,
    /// Bounds and prices; may be changed between steps.
    pub settings: Settings,
    pub(crate) backend: Backend,
    pub(crate) able: BarrierSupport,
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
    pub(crate) aliases: Aliases,
    /// Mappings that it held when the pass began, and what the pass has added.
    pub(super) charged: usize,
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
    /// What the pass that is under way, or was, ended with.
    pub(super) stopped: Stop,
    /// The last scan, the one that is being made, and when it began, in milliseconds.
    pub(super) last: Scan,
    pub(super) scanning: Scanning,
    pub(super) now_ms: u32,
    /// Whether this pass looks at merged units that live, and when one last did.
    pub(super) judges: bool,
    pub(super) judged_ms: u32,
    /// Whether this pass plans again what image files hold that the last scan found to be poor, and the first file
    /// that it makes.
    pub(super) renews: bool,
    pub(super) fresh_segments: usize,
    /// There was no room to plan all of them.
    pub(super) renews_in_part: bool,
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
    /// `spans`. If the kernel says [`BarrierSupport::SingleThread`], every call of [`Compactor::step`] is made by the
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
            able: BarrierSupport::Nothing,
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
            aliases: Aliases::new(),
            charged: 0,
            plan: Plan::new(),
            stage_at: 0,
            aside_at: 0,
            unit_ns: 12_000,
            imageless: false,
            pins: false,
            waited: false,
            ordinary: 0,
            pending: 0,
            urgent: false,
            stopped: Stop::NoPass,
            last: Scan::default(),
            scanning: Scanning::NEW,
            now_ms: 0,
            judges: true,
            judged_ms: 0,
            renews: false,
            fresh_segments: 0,
            renews_in_part: false,
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

    /// What the pass that is under way, or was, ended with.
    pub fn stopped(&self) -> Stop {
        self.stopped
    }

    pub(crate) fn degrade(&self, bit: u64) {
        self.stats.degraded.fetch_or(bit, Relaxed);
    }

    pub(crate) fn seconds(&self) -> u32 {
        (self.kernel.now_ns() / 1_000_000_000) as u32
    }

    /// Mappings that this pass may still add.
    pub(super) fn mappings_left(&self) -> usize {
        self.settings.mappings.saturating_sub(self.charged)
    }

    /// Whether a range may be mapped with what is `left` of the mappings, which becomes so many fewer.
    pub(super) fn affords(&mut self, left: &mut usize, start: usize, len: usize) -> bool {
        if self.backend != Backend::Remap {
            return true;
        }
        let rest = left.checked_sub(self.aliases.mappings_for(start, len, false));
        *left = rest.unwrap_or(*left);
        if rest.is_none() {
            self.lacks_mappings();
        }
        rest.is_some()
    }

    /// Notes that more mappings would save more.
    pub(super) fn lacks_mappings(&mut self) {
        self.stopped = if self.settings.by_limit { Stop::Limit } else { Stop::Fork };
        if self.settings.by_limit {
            self.degrade(degraded::VMA_BUDGET);
        }
    }

    pub(super) fn can_merge(&self) -> bool {
        match self.backend {
            Backend::None => false,
            Backend::Ksm => true,
            Backend::Remap => self.able != BarrierSupport::Nothing,
        }
    }

    /// Units that can be frozen at once without exceeding the bound on a pause.
    pub(crate) fn batch_units(&self) -> usize {
        ((self.settings.pause_ns / self.unit_ns.max(1)) as usize).clamp(4, BATCH)
    }

    pub(super) fn after_classes(&self) -> Stage {
        if self.urgent { Stage::Restore { unit: 0 } } else { Stage::Release { span: 0 } }
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
                self.kernel.split_huge_pages(chunk, CHUNK);
                // The unit alone is registered where the whole chunk cannot be.
                if let (Backend::Remap, BarrierSupport::WriteProtect { .. }) =
                    (self.backend, self.able)
                {
                    let _ = self.kernel.register(chunk, CHUNK, Registration::WriteProtect);
                }
            }
            chunk += CHUNK;
        }
        true
    }

    pub(crate) fn stage_len(&self) -> usize {
        IMAGE_PAGES * self.page
    }

    pub(crate) fn aside_len(&self) -> usize {
        IMAGE_PAGES * self.page * BATCH
    }

    /// The area where images are composed; 0 if there is no memory.
    pub(crate) fn stage_area(&mut self) -> usize {
        if self.stage_at == 0 {
            self.stage_at = self.os.map(self.stage_len(), self.page) as usize;
        }
        self.stage_at
    }

    /// Gives the memory of that area back until it is needed again.
    pub(super) fn clear_stage(&self) {
        if self.stage_at != 0 {
            // SAFETY: the area is the engine's own anonymous memory, and nothing in it is used between two passes.
            unsafe { self.kernel.decommit(self.stage_at, self.stage_len()) };
        }
    }

    /// Pages that this pass may still offer.
    pub(super) fn offers_left(&self) -> usize {
        self.settings.offers.saturating_sub(self.offers_made)
    }

    pub(crate) fn unblock_unit(&self, unit: &Frozen<S::Ref>) {
        if !unit.again {
            self.spans.unblock(unit.span, unit.generation, unit.page..unit.page + unit.pages);
        }
    }

    /// The span of this index, its state, and a note that belongs to it.
    pub(crate) fn span_view(&mut self, index: usize) -> Option<(S::Ref, SpanView)> {
        let span = self.spans.at(index)?;
        let view = self.spans.inspect(span)?;
        let note = self.notes.get_mut(index)?;
        if note.generation != view.generation {
            self.ordinary -= u64::from(note.counted.count_ones());
            // Blocked pages keep the generation, so nothing of this note is merged.
            *note = Note { generation: view.generation, ..Note::NEW };
        }
        Some((span, view))
    }

    pub(super) fn free_pages(&self, view: &SpanView) -> u16 {
        let geometry = Geometry {
            slot_size: view.slot_size,
            phase: 0,
            pages: view.pages,
            page_size: self.page as u32,
        };
        !geometry.touched(&view.live) & all_pages(view)
    }

    pub(super) fn mergeable(&self, index: usize, view: &SpanView, live: u32, now: u32) -> bool {
        self.is_quiet(index, now) && self.may_merge(index, view, live)
    }

    /// Whether the span is likely to stay as it is, and is not left alone for a while.
    pub(super) fn is_quiet(&self, index: usize, now: u32) -> bool {
        let note = &self.notes[index];
        self.urgent || note.cool_at <= now && self.has_settled(note)
    }

    /// The same whether or not the span is left alone for a while.
    pub(super) fn may_merge(&self, index: usize, view: &SpanView, live: u32) -> bool {
        let share = live * 256 / u32::from(view.slots).max(1);
        live > 0
            && share < u32::from(self.settings.full)
            && self.notes[index].merged.count_ones() < u32::from(view.pages)
            && plan::may_pair(share, (self.page as u32 / view.slot_size).max(1))
    }

    /// Whether the span is likely to stay as it is for long enough to pay for merging it.
    fn has_settled(&self, note: &Note) -> bool {
        self.now_ms.wrapping_sub(note.changed_ms) >= self.settings.settle_ms
    }
}

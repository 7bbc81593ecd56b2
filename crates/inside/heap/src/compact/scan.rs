//! Looking at spans: what each has to give, and which take part in merging.
//!
//! A **scan** looks at every span, notes what it found for the next one (a page is given back when two scans saw it free, a span
//! merged when its live slots have **settled**), lists the spans that take part in merging by class, and adds up what could be gained.
//!
//! Properties: a scan changes nothing but notes; it is made in slices, between which the program goes on.

use core::sync::atomic::Ordering::Relaxed;

use super::engine::{Compactor, Progress, SPANS_SLICE};
use super::{Kernel, SpanView, Spans};
use crate::os::Os;
use crate::plan::{self, Geometry};
use crate::stats::{OCCUPANCY_BUCKETS, degraded};

/// What a scan found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Spans seen.
    pub spans: u64,
    /// Bytes of their live slots.
    pub live_bytes: u64,
    /// Bytes of their pages that are believed to be resident.
    pub resident_bytes: u64,
    /// Bytes of wholly free pages that could be given back now.
    pub releasable_bytes: u64,
    /// Bytes of pages of merged units whose slots have died.
    pub dead_bytes: u64,
    /// Bytes that merging is expected to save: a bound from the live share of each class.
    pub mergeable_bytes: u64,
    /// Units that this takes, in pages.
    pub mergeable_pages: u64,
    /// Pages that are not resident as ordinary memory: given back, or in a group.
    pub absent_pages: u64,
}

impl Scan {
    /// The fragmentation score: the share of resident bytes, in thousandths, that is not live.
    pub fn score(&self) -> u32 {
        let waste = self.resident_bytes.saturating_sub(self.live_bytes);
        (waste * 1000).checked_div(self.resident_bytes).unwrap_or(0) as u32
    }
}

/// A bit for each page of a span.
fn all_pages(view: &SpanView) -> u16 {
    (u32::MAX >> (32 - u32::from(view.pages))) as u16
}

/// A scan that is being made.
pub(super) struct Scanning {
    /// The span that comes next, and how many there are.
    next: usize,
    count: usize,
    scan: Scan,
    histogram: [u64; OCCUPANCY_BUCKETS],
}

impl Scanning {
    pub(super) const NEW: Self = Self {
        next: 0,
        count: 0,
        scan: Scan {
            spans: 0,
            live_bytes: 0,
            resident_bytes: 0,
            releasable_bytes: 0,
            dead_bytes: 0,
            mergeable_bytes: 0,
            mergeable_pages: 0,
            absent_pages: 0,
        },
        histogram: [0; OCCUPANCY_BUCKETS],
    };
}

/// Class of a [`Note`] whose span does not take part in merging.
pub(super) const UNLISTED: u16 = u16::MAX;

/// What the engine remembers of a span between scans.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(super) generation: u32,
    /// Class under which the last scan listed it, or [`UNLISTED`].
    pub(super) class: u16,
    /// Pages that were wholly free at the last scan.
    pub(super) free: u16,
    /// Pages that were wholly free at the last two scans.
    pub(super) idle: u16,
    /// Pages known to be given back.
    pub given: u16,
    /// Pages in a group.
    pub merged: u16,
    /// Pages that count as ordinary resident memory: [`Compactor::footprint`].
    pub(super) counted: u16,
    /// Live slots when they last changed by more than a sixteenth, and when that was seen, in milliseconds.
    pub(super) live: u16,
    pub(super) changed_ms: u32,
    /// How often its units were written soon after being merged.
    pub heat: u8,
    /// Second before which it is left alone.
    pub cool_at: u32,
}

impl Note {
    pub(super) const NEW: Self = Self {
        generation: 0,
        class: UNLISTED,
        free: 0,
        idle: 0,
        given: 0,
        merged: 0,
        counted: 0,
        live: 0,
        changed_ms: 0,
        heat: 0,
        cool_at: 0,
    };
}

#[derive(Clone, Copy)]
pub(super) struct Class {
    /// Bytes of live slots in candidates for merging.
    pub(super) live: u64,
    /// Their pages that hold any.
    pub(super) pages: u64,
    pub(super) slot_size: u32,
    /// Where they end in the list of spans by class.
    pub(super) end: u32,
}

impl Class {
    pub(super) const NEW: Self = Self { live: 0, pages: 0, slot_size: 0, end: 0 };

    /// Bytes that merging is expected to save.
    pub(super) fn gain(&self, page: usize) -> u64 {
        let bytes = self.pages * page as u64;
        let share = (self.live * 256).checked_div(bytes);
        let slots = (page as u64).checked_div(u64::from(self.slot_size));
        let (Some(share), Some(slots)) = (share, slots) else { return 0 };
        let members = u64::from(plan::expected_members(share as u32, slots.max(1) as u32));
        // Not below what the live bytes need.
        (bytes - bytes / members).min(bytes.saturating_sub(self.live + self.live / 8))
    }

    /// Bytes that a mapping is expected to save, with the best size of unit.
    fn mapping_gain(&self, page: usize) -> u64 {
        let share = (self.live * 256).checked_div(self.pages * page as u64).unwrap_or(0);
        let of = |pages: u64| {
            let bytes = pages * page as u64;
            let slots = bytes.checked_div(u64::from(self.slot_size)).unwrap_or(0).clamp(1, 256);
            bytes - bytes / u64::from(plan::expected_members(share as u32, slots as u32))
        };
        [1, 2, 4, 8, 16].into_iter().map(of).max().unwrap_or(0)
    }
}

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// What the last scan found.
    pub fn last_scan(&self) -> Scan {
        self.last
    }

    /// Looks at every span once: occupancy histogram, score, free pages, expected gain. Write-hot spans
    /// that are left alone for a while do not count.
    pub fn scan(&mut self) -> Scan {
        self.scan_for(false)
    }

    /// As [`Compactor::scan`]; if `urgent`, write-hot spans count too, and take part in the pass that
    /// [`Compactor::begin`] begins with the same argument.
    pub fn scan_for(&mut self, urgent: bool) -> Scan {
        self.begin_scan(urgent);
        while self.scan_step(u64::MAX) == Progress::More {}
        self.last
    }

    /// Begins a scan, which [`Compactor::scan_step`] goes on with.
    pub fn begin_scan(&mut self, urgent: bool) {
        self.urgent = urgent;
        self.now_ms = (self.kernel.now_ns() / 1_000_000) as u32;
        self.classes.clear();
        self.scanning = Scanning { count: self.spans.count(), ..Scanning::NEW };
        if !self.notes.resize(self.os, self.scanning.count, Note::NEW) {
            self.degrade(degraded::NO_MEMORY);
            self.scanning.count = 0;
            self.scanning.scan = self.last;
        }
    }

    /// Scans for about `budget_ns`; [`Compactor::last_scan`] is the new one when it is done.
    pub fn scan_step(&mut self, budget_ns: u64) -> Progress {
        let begin = self.kernel.now_ns();
        while self.scanning.next < self.scanning.count {
            let end = self.scanning.count.min(self.scanning.next + SPANS_SLICE);
            for index in self.scanning.next..end {
                self.scan_span(index);
            }
            self.scanning.next = end;
            if self.kernel.now_ns().wrapping_sub(begin) >= budget_ns && end < self.scanning.count {
                return Progress::More;
            }
        }
        let mut scan = self.scanning.scan;
        if self.scanning.count > 0 {
            scan.resident_bytes += self.groups.image_pages * self.page as u64;
            for class in self.classes.iter() {
                let gain = class.gain(self.page);
                scan.mergeable_bytes += gain;
                scan.mergeable_pages += if gain > 0 { class.pages } else { 0 };
            }
        }
        self.list_by_class();
        for (counter, spans) in self.stats.occupancy.iter().zip(self.scanning.histogram) {
            counter.store(spans, Relaxed);
        }
        self.last = scan;
        self.publish();
        Progress::Done
    }

    fn scan_span(&mut self, index: usize) {
        let Some((_, view)) = self.look(index) else {
            // The descriptor may have been a span that was listed at the last scan.
            self.notes[index].class = UNLISTED;
            self.uncount(index, u16::MAX);
            return;
        };
        let (now, now_ms) = (self.now_ms / 1000, self.now_ms);
        let live = plan::population(&view.live);
        let bucket = (live * 10 / u32::from(view.slots).max(1)).min(10);
        self.scanning.histogram[bucket as usize] += 1;
        let free = self.free_pages(&view);
        let note = &mut self.notes[index];
        note.class = UNLISTED;
        let counted = note.counted;
        if u32::from(note.live).abs_diff(live) * 16 > live {
            note.live = live as u16;
            note.changed_ms = now_ms;
        }
        // A page seen with live slots is resident again.
        note.given &= free;
        let absent = note.given | note.merged;
        let resident = u64::from(view.pages) - u64::from(absent.count_ones());
        let idle = free & note.free & !absent;
        note.counted = view.resident & !absent & all_pages(&view);
        self.ordinary -= u64::from(counted.count_ones());
        self.ordinary += u64::from(note.counted.count_ones());
        let page = self.page as u64;
        let scan = &mut self.scanning.scan;
        scan.dead_bytes += u64::from((free & note.merged).count_ones()) * page;
        note.free = free;
        note.idle = idle;
        let live_bytes = u64::from(live) * u64::from(view.slot_size);
        scan.spans += 1;
        scan.live_bytes += live_bytes;
        scan.resident_bytes += resident * page;
        scan.absent_pages += u64::from(absent.count_ones());
        scan.releasable_bytes += u64::from(idle.count_ones()) * page;
        if self.mergeable(index, &view, live, now) {
            let class = usize::from(view.class);
            if class >= self.classes.len() && !self.classes.resize(self.os, class + 1, Class::NEW) {
                return;
            }
            self.notes[index].class = view.class;
            let entry = &mut self.classes[class];
            entry.end += 1;
            entry.live += live_bytes;
            entry.slot_size = view.slot_size;
            entry.pages += u64::from(view.pages) - u64::from((free | absent).count_ones());
        }
    }

    /// Sorts the spans that take part in merging by class (a counting sort).
    fn list_by_class(&mut self) {
        let mut total = 0;
        for class in self.classes.iter_mut() {
            total += core::mem::replace(&mut class.end, total);
        }
        if !self.listed.resize(self.os, total as usize, 0) {
            self.classes.clear();
            return;
        }
        for (index, note) in (0u32..).zip(self.notes.iter()) {
            if let Some(class) = self.classes.get_mut(usize::from(note.class)) {
                self.listed[class.end as usize] = index;
                class.end += 1;
            }
        }
    }

    /// Ranks the classes by what a mapping is expected to save: they are few, and go where each saves most.
    pub(super) fn rank(&mut self) {
        self.ranking.clear();
        let least = 16 * self.page as u64;
        for index in 0..self.classes.len() {
            if self.classes[index].gain(self.page) >= least
                && !self.ranking.push(self.os, index as u16)
            {
                return self.degrade(degraded::NO_MEMORY);
            }
        }
        let (classes, page) = (&self.classes, self.page);
        self.ranking.sort_unstable_by_key(|&index| {
            core::cmp::Reverse(classes[usize::from(index)].mapping_gain(page))
        });
    }

    /// The span of this index, its state, and a note that belongs to it.
    pub(crate) fn look(&mut self, index: usize) -> Option<(S::Ref, SpanView)> {
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

    /// These pages of a span are ordinary memory no more.
    pub(super) fn uncount(&mut self, index: usize, pages: u16) {
        let note = &mut self.notes[index];
        self.ordinary -= u64::from((note.counted & pages).count_ones());
        note.counted &= !pages;
    }

    /// These pages of a span are ordinary memory again.
    pub(super) fn count(&mut self, index: usize, pages: u16) {
        let note = &mut self.notes[index];
        self.ordinary += u64::from((pages & !note.counted).count_ones());
        note.counted |= pages;
    }

    pub(super) fn mergeable(&self, index: usize, view: &SpanView, live: u32, now: u32) -> bool {
        let note = &self.notes[index];
        let share = live * 256 / u32::from(view.slots).max(1);
        live > 0
            && share < u32::from(self.settings.full)
            && (self.urgent || note.cool_at <= now && self.has_settled(note))
            && note.merged.count_ones() < u32::from(view.pages)
            && plan::may_pair(share, (self.page as u32 / view.slot_size).max(1))
    }

    /// Whether the span is likely to stay as it is for long enough to pay for merging it.
    fn has_settled(&self, note: &Note) -> bool {
        self.now_ms.wrapping_sub(note.changed_ms) >= self.settings.settle_ms
    }
}

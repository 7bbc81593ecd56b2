//! Looking at spans: what each has to give, and which take part in merging.
//!
//! A **scan** looks at every span, notes what it found for the next one (a page is given back when two scans saw it
//! free, a span merged when its live slots have **settled**), lists the spans that take part in merging by class, and
//! adds up what could be gained.
//!
//! Properties: a scan changes nothing but notes; it is made in slices, between which the program goes on.

use core::sync::atomic::Ordering::Relaxed;

use super::census::{Class, Note, Scan, Scanning, UNLISTED, all_pages};
use super::pass::SPANS_SLICE;
use super::state::{Compactor, Progress};
use super::{Kernel, Spans};
use crate::os::Os;
use crate::plan;
use crate::stats::degraded;
use crate::trigger::AGAIN;

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
        while self.scanning.count > 0 && self.weigh_files() {
            if self.kernel.now_ns().wrapping_sub(begin) >= budget_ns {
                return Progress::More;
            }
        }
        let mut scan = self.scanning.scan;
        if self.scanning.count > 0 {
            scan.resident_bytes += self.groups.behind_pages() * self.page as u64;
            for class in self.classes.iter() {
                let gain = class.gain(self.page);
                scan.mergeable_bytes += gain;
                scan.mergeable_pages += if gain > 0 { class.pages } else { 0 };
            }
        }
        self.add_again(&mut scan);
        self.add_renewal(&mut scan);
        self.list_by_class();
        for (counter, spans) in self.stats.occupancy.iter().zip(self.scanning.histogram) {
            counter.store(spans, Relaxed);
        }
        self.last = scan;
        self.publish();
        Progress::Done
    }

    /// What merging again gains that was merged before the program settled, where dense pages have room for it.
    fn add_again(&self, scan: &mut Scan) {
        let units = self.groups.units - self.groups.firm_units;
        if !self.plans_pages() || !self.settings.again || units == 0 {
            return;
        }
        let images = (self.groups.image_pages - self.groups.firm_pages) * self.page as u64;
        let most = images.min(self.scanning.room / 2);
        let part = units.min(u64::from(AGAIN));
        scan.mergeable_bytes += most * part / units;
        scan.mergeable_pages += part;
    }

    fn scan_span(&mut self, index: usize) {
        let Some((_, view)) = self.span_view(index) else {
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
        note.loose = 0;
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
        scan.releasable_bytes += u64::from(idle.count_ones()) * page;
        if self.mergeable(index, &view, live, now) {
            let class = usize::from(view.class);
            if class >= self.classes.len() && !self.classes.resize(self.os, class + 1, Class::NEW) {
                return;
            }
            self.notes[index].class = view.class as u8;
            let entry = &mut self.classes[class];
            entry.end += 1;
            entry.live += live_bytes;
            entry.slot_size = view.slot_size;
            entry.pages += u64::from(view.pages) - u64::from((free | absent).count_ones());
        } else if self.takes_part(index, &view, now) {
            // Dead slots of merged pages are room no more, and count by their share.
            let dead = u64::from(u32::from(view.slots) - live);
            self.scanning.room += resident * page * dead / u64::from(view.slots).max(1);
        } else if self.may_merge(index, &view, live) {
            let pages = u64::from(view.pages) - u64::from((free | absent).count_ones());
            self.scanning.scan.left_alone_bytes += pages * page;
        }
    }

    /// Sorts the spans that take part in merging by class (a counting sort).
    fn list_by_class(&mut self) {
        let mut total = 0;
        for class in self.classes.iter_mut() {
            total += core::mem::replace(&mut class.end, total);
        }
        // Of a heap that was merged few are left.
        if self.listed.is_sparse(total as usize) {
            self.listed.release(self.os);
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
}

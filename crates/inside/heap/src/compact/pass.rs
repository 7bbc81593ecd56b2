//! What a pass does next, and what it has found out so far: the stages, and the plan of a class or of the extents.

use core::ops::Range;

use super::batch::IMAGE_PAGES;
use super::sort::Sorting;
use super::table::Table;
use super::{Bits, SpanView};
use crate::os::Os;
use crate::plan::cut::{Cutting, Page, PlannedExtent, Queued, Run};
use crate::plan::{Geometry, Limits, Packing};

/// Spans looked at in one slice of planning.
pub(super) const SPANS_SLICE: usize = 512;

/// Values sorted in one slice.
pub(super) const MOVES_SLICE: usize = 512;

/// The place of extents in [`Stage::Commit`], where classes have theirs in the ranking.
pub(super) const EXTENTS: usize = usize::MAX;

/// The same of pages of all classes.
pub(super) const PAGES: usize = usize::MAX - 1;

/// What a pass does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Release {
        span: usize,
    },
    Extents {
        step: Step,
    },
    /// Pages of all classes together (KSM back end).
    Pages {
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
    pub(super) const PLAN: Self = Self::Extents { step: Step::Scan { at: 0 } };

    /// The beginning of a class, by its place in the ranking.
    pub(super) const fn class(next: usize) -> Self {
        Self::Classes { next, step: Step::Scan { at: 0 } }
    }
}

/// Where planning left off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Spans are looked at.
    Scan { at: usize },
    /// Units of a class are collected.
    Fill { at: usize },
    /// What was found is sorted by address.
    Sort,
    /// Runs of sparse pages are cut into extents.
    Cut,
    /// These are sorted by address.
    Order,
    /// What each consists of is noted.
    Name { at: usize },
    /// What lives in each unit or extent is noted.
    Mark { at: usize },
    /// They are put into groups.
    Pack,
    /// The groups are put in order.
    Arrange,
    /// What was merged in haste is taken apart, or, one unit after the other, noted to be planned again.
    Part { group: u32 },
    /// What was noted is sorted.
    Index,
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
pub(super) struct ScannedSpan {
    pub(super) start: usize,
    pub(super) span: u32,
    pub(super) live: Bits,
}

/// Which unit size is tried, and the best so far.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    /// Index into the unit sizes tried.
    pub(super) at: usize,
    /// What the best one is worth, in bytes; 0 if none is worth anything.
    pub(super) best: i64,
    pub(super) unit: u8,
}

impl Trial {
    pub(super) const NEW: Self = Self { at: 0, best: 0, unit: 0 };
}

/// A sparse span.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(super) start: usize,
    pub(super) span: u32,
    pub(super) pages: u8,
    /// Pages that are merged already.
    pub(super) taken: u16,
    pub(super) slot_size: u32,
    pub(super) live: Bits,
}

/// Pages side by side, of spans from `parts[first]` on.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(super) start: usize,
    pub(super) first: u32,
    pub(super) pages: u8,
    /// Page of the image that its first page shares.
    pub(super) at: u8,
}

/// Words of the bitmap of a page, by byte, and of an image.
pub(super) const PAGE_WORDS: usize = 4;
pub(super) const WORDS: usize = IMAGE_PAGES * PAGE_WORDS;

/// A group that is committed in parts.
#[derive(Clone, Copy)]
pub(super) struct Growing {
    /// Its place in the plan, and which of the plan's members comes next.
    pub(super) group: u32,
    pub(super) next: u32,
    /// What is live in the members so far, as the plan's bitmaps have it.
    pub(super) union: [u64; WORDS],
    /// Pages of its image.
    pub(super) length: u8,
    /// Pages of its image that have bytes; none before the first part is mapped, and the rest is not known then.
    pub(super) pages: u64,
    /// Segment of its image and first page there.
    pub(super) place: (u32, u32),
    /// Its record.
    pub(super) record: u32,
}

/// The current plan.
pub(crate) struct Plan {
    /// The spans of the class that is planned, and what they have in common.
    pub(super) seen: Table<ScannedSpan>,
    pub(super) shape: Option<SpanView>,
    /// Units by address.
    pub units: Table<Candidate>,
    /// Sparse spans by address, and the extents that they make; empty while a class is planned.
    pub(super) parts: Table<Part>,
    /// Their pages: live bits, whether each is the first of its span, and which page of which part it is.
    pub(super) pages: Table<Page>,
    pub(super) begins: Table<bool>,
    pub(super) homes: Table<u32>,
    /// Pages side by side, and what is cut from them.
    pub(super) runs: Table<Run>,
    pub(super) queue: Table<Queued>,
    pub(super) images: Table<Page>,
    pub(super) planned: Table<PlannedExtent>,
    pub(super) cutting: Cutting,
    /// Live bits of all pages, and images that cutting begins with.
    pub(super) live: u64,
    pub(super) begun: u32,
    /// Bytes that a mapping is taken to cost where they are cut into extents.
    pub(super) price: u64,
    pub extents: Table<Extent>,
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
    /// The group that was committed in part.
    pub(super) growing: Option<Growing>,
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
    /// Whether units are pages of any class, and bits stand for bytes as in extents.
    pub(super) mixed: bool,
    /// How many of them are hosts.
    pub(super) hosts: usize,
    /// Pages that were merged in haste and are planned again.
    pub(super) parted: u32,
    /// Pages of image files that are planned again: index of the span and page of it, and the record.
    pub(super) olds: Table<(u32, u32)>,
}

impl Plan {
    pub(super) const fn new() -> Self {
        Self {
            seen: Table::new(),
            shape: None,
            units: Table::new(),
            parts: Table::new(),
            pages: Table::new(),
            begins: Table::new(),
            homes: Table::new(),
            runs: Table::new(),
            queue: Table::new(),
            images: Table::new(),
            planned: Table::new(),
            cutting: Cutting::new(),
            live: 0,
            begun: 0,
            price: 0,
            extents: Table::new(),
            order: Table::new(),
            group: Table::new(),
            sizes: Table::new(),
            members: Table::new(),
            starts: Table::new(),
            bits: Table::new(),
            unions: Table::new(),
            groups: 0,
            growing: None,
            geometry: Geometry { slot_size: 0, phase: 0, pages: 0, page_size: 0 },
            slots: 0,
            next_key: 0,
            unit: 0,
            trial: None,
            sorting: Sorting::new(0),
            packing: Packing::new(),
            limits: Limits::DEFAULT,
            mixed: false,
            hosts: 0,
            parted: 0,
            olds: Table::new(),
        }
    }

    /// The group if it is committed in parts.
    pub(super) fn growing(&self, group: u32) -> Option<&Growing> {
        self.growing.as_ref().filter(|growing| growing.group == group)
    }

    /// Which members of a group are still to be committed, and what is live in those before.
    pub(super) fn left_of(&self, group: u32) -> (Range<u32>, [u64; WORDS]) {
        let (begin, end) = (self.starts[group as usize], self.starts[group as usize + 1]);
        match self.growing(group) {
            Some(growing) => (growing.next..end, growing.union),
            None => (begin..end, [0; WORDS]),
        }
    }

    /// Notes that the members of a group before `next` are committed, with all that is live in them.
    pub(super) fn grow(&mut self, group: u32, next: u32, union: [u64; WORDS]) {
        if let Some(growing) = self.growing.as_mut().filter(|growing| growing.group == group) {
            (growing.next, growing.union) = (next, union);
            return;
        }
        let (begin, end) = (self.starts[group as usize], self.starts[group as usize + 1]);
        let members = (begin..end).map(|member| self.members[member as usize] as usize);
        let extents = &self.extents;
        let length = if extents.is_empty() {
            self.geometry.pages
        } else {
            members.map(|extent| extents[extent].pages + extents[extent].at).max().unwrap_or(0)
        };
        let (place, record) = ((0, 0), 0);
        self.growing = Some(Growing { group, next, union, length, pages: 0, place, record });
    }

    /// Frees its tables.
    pub(super) fn release<O: Os>(&mut self, os: &O) {
        self.seen.release(os);
        self.units.release(os);
        self.parts.release(os);
        self.extents.release(os);
        self.order.release(os);
        self.group.release(os);
        self.sizes.release(os);
        self.pages.release(os);
        self.begins.release(os);
        self.homes.release(os);
        self.runs.release(os);
        self.queue.release(os);
        self.images.release(os);
        self.planned.release(os);
        self.members.release(os);
        self.starts.release(os);
        self.bits.release(os);
        self.unions.release(os);
        self.olds.release(os);
        self.groups = 0;
        self.next_key = 0;
    }
}

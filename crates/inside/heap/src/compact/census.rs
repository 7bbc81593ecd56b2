//! What scans find out and remember: of all spans together, of each class, and of each span.

use super::SpanView;
use crate::plan;
use crate::stats::OCCUPANCY_BUCKETS;

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
    /// Bytes of pages that would take part in merging, of spans that are left alone for a while.
    pub left_alone_bytes: u64,
}

impl Scan {
    /// The fragmentation score: the share of resident bytes, in thousandths, that is not live.
    pub fn score(&self) -> u32 {
        let waste = self.resident_bytes.saturating_sub(self.live_bytes);
        (waste * 1000).checked_div(self.resident_bytes).unwrap_or(0) as u32
    }
}

/// A scan that is being made.
pub(super) struct Scanning {
    /// The span that comes next, and how many there are.
    pub(super) next: usize,
    pub(super) count: usize,
    /// The merged unit that comes next, where image files are judged.
    pub(super) unit: usize,
    pub(super) scan: Scan,
    /// Dead bytes in pages of spans too dense to be merged with each other.
    pub(super) room: u64,
    pub(super) histogram: [u64; OCCUPANCY_BUCKETS],
}

impl Scanning {
    pub(super) const NEW: Self = Self {
        next: 0,
        count: 0,
        unit: 0,
        scan: Scan {
            spans: 0,
            live_bytes: 0,
            resident_bytes: 0,
            releasable_bytes: 0,
            dead_bytes: 0,
            mergeable_bytes: 0,
            mergeable_pages: 0,
            left_alone_bytes: 0,
        },
        room: 0,
        histogram: [0; OCCUPANCY_BUCKETS],
    };
}

/// Class of a [`Note`] whose span does not take part in merging.
pub(super) const UNLISTED: u8 = u8::MAX;

/// What the engine remembers of a span between scans.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(super) generation: u32,
    /// Class under which the last scan listed it, or [`UNLISTED`].
    pub(super) class: u8,
    /// Pages that were wholly free at the last scan.
    pub(super) free: u16,
    /// Pages that were wholly free at the last two scans.
    pub(super) idle: u16,
    /// Pages known to be given back.
    pub given: u16,
    /// Pages in a group, and those of them that are planned again in this pass.
    pub merged: u16,
    pub(super) loose: u16,
    /// Pages that count as ordinary resident memory: `footprint.rs`.
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
        loose: 0,
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
    pub(super) fn mapping_gain(&self, page: usize) -> u64 {
        let share = (self.live * 256).checked_div(self.pages * page as u64).unwrap_or(0);
        let of = |pages: u64| {
            let bytes = pages * page as u64;
            let slots = bytes.checked_div(u64::from(self.slot_size)).unwrap_or(0).clamp(1, 256);
            bytes - bytes / u64::from(plan::expected_members(share as u32, slots as u32))
        };
        [1, 2, 4, 8, 16].into_iter().map(of).max().unwrap_or(0)
    }
}

/// A bit for each page of a span.
pub(super) fn all_pages(view: &SpanView) -> u16 {
    (u32::MAX >> (32 - u32::from(view.pages))) as u16
}

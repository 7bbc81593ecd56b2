//! Blocked units on their way into groups, and the ranges that they make: what lies side by side in the address space
//! and in the image is frozen and mapped in one call.

use super::Bits;
use crate::plan::Geometry;

/// Most ranges frozen at once.
pub(crate) const BATCH: usize = 32;

/// Most members of a group: a heap of which one slot in forty lives fills an image with so many.
pub(super) const MEMBERS: usize = 128;

/// Most units in them.
pub(crate) const UNITS: usize = 128;

/// Most pages of an image.
pub(crate) const IMAGE_PAGES: usize = 64;

/// A blocked unit on its way into a group.
#[derive(Clone, Copy)]
pub(crate) struct Frozen<R> {
    pub span: R,
    pub index: u32,
    pub generation: u32,
    pub page: u8,
    pub pages: u8,
    pub start: usize,
    /// Live slots of the unit, slot 0 being the first that overlaps it.
    pub live: Bits,
    pub slot_size: u32,
    /// Bytes by which slot 0 begins before the unit.
    pub phase: u32,
    /// Page of the image that its first page shares.
    pub image_page: u8,
    /// Group in the plan.
    pub group: u32,
    /// Where its bytes are: `start`, or where they were moved to.
    pub bytes: usize,
    /// It is in a group already, which it leaves when it is mapped; if it is not, its pages stay blocked.
    pub again: bool,
}

impl<R> Frozen<R> {
    /// One bit a page of the image that the unit has live bytes on.
    pub(crate) fn touched(&self, page_size: usize) -> u64 {
        let geometry = Geometry {
            slot_size: self.slot_size,
            phase: self.phase,
            pages: self.pages,
            page_size: page_size as u32,
        };
        u64::from(geometry.touched(&self.live)) << self.image_page
    }

    /// Whether `next` goes on where this unit ends, in the address space and in the image.
    fn continues(&self, next: &Self, page_size: usize) -> bool {
        self.group == next.group
            && self.start + usize::from(self.pages) * page_size == next.start
            && self.image_page + self.pages == next.image_page
    }
}

/// Pages to freeze and to map in one call.
#[derive(Clone, Copy)]
pub(super) struct PageRun {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Page of the image that it begins with.
    pub(super) image_page: u8,
    /// Its units in the batch.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// At most [`UNITS`] units in at most [`BATCH`] ranges, those of a group side by side.
pub(crate) struct Batch<R> {
    pub(super) units: [Option<Frozen<R>>; UNITS],
    pub(super) len: usize,
}

impl<R: Copy> Batch<R> {
    pub(crate) fn new() -> Self {
        Self { units: [None; UNITS], len: 0 }
    }

    pub(crate) fn push(&mut self, unit: Frozen<R>) {
        self.units[self.len] = Some(unit);
        self.len += 1;
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Frozen<R>> {
        self.units[..self.len].iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The ranges of the units from `from` up to `to`.
    pub(super) fn stretches(
        &self,
        from: usize,
        to: usize,
        page_size: usize,
    ) -> impl Iterator<Item = PageRun> + '_ {
        let mut at = from;
        core::iter::from_fn(move || {
            let first = self.units[at..to].first()?.as_ref()?;
            let mut stretch = PageRun {
                start: first.start,
                len: 0,
                image_page: first.image_page,
                from: at,
                to: at,
            };
            let mut last = first;
            for unit in self.units[at..to].iter().flatten() {
                if stretch.len > 0 && !last.continues(unit, page_size) {
                    break;
                }
                stretch.len += usize::from(unit.pages) * page_size;
                stretch.to += 1;
                last = unit;
            }
            at = stretch.to;
            Some(stretch)
        })
    }

    pub(super) fn cut(&mut self, len: usize) -> impl Iterator<Item = Frozen<R>> {
        let end = core::mem::replace(&mut self.len, len);
        self.units[len..end].iter().copied().flatten()
    }
}

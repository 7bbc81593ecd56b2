//! Giving back the wholly free pages of partial spans.
//!
//! Pages are blocked, given back many ranges in one call, and unblocked: each call makes every CPU that runs the
//! program forget its translations, which costs more than the pages themselves.

use core::ops::Range;

use super::census::Note;
use super::pass::Stage;
use super::state::{Compactor, add};
use super::{Kernel, SpanView, Spans};
use crate::central::page_bits;
use crate::os::Os;

/// Most ranges given back at once.
pub const RANGES: usize = 128;

/// Blocked pages without a live slot.
struct BlockedPages<R> {
    span: R,
    generation: u32,
    pages: Range<u8>,
}

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Gives pages back that were free in two scans.
    pub(super) fn release(&mut self, first: usize) -> Stage {
        let mut held: [Option<BlockedPages<S::Ref>>; RANGES] = [const { None }; RANGES];
        let mut ranges = [(0, 0); RANGES];
        let mut len = 0;
        let mut index = first;
        // A span has at most eight runs of free pages.
        while index < self.notes.len() && index < first + 1024 && len + 8 <= RANGES {
            let Some((span, view, free)) = self.releasable(index) else {
                index += 1;
                continue;
            };
            for run in page_runs(free) {
                let pages = run.trailing_zeros() as u8..(16 - run.leading_zeros()) as u8;
                let Some(live) = self.spans.block(span, view.generation, pages.clone()) else {
                    continue;
                };
                if run & !self.free_pages(&SpanView { live, ..view }) != 0 {
                    self.spans.unblock(span, view.generation, pages);
                    continue;
                }
                let bytes = usize::from(pages.end - pages.start) * self.page;
                ranges[len] = (view.start + usize::from(pages.start) * self.page, bytes);
                held[len] = Some(BlockedPages { span, generation: view.generation, pages });
                len += 1;
                self.notes[index].given |= run;
                self.uncount(index, run);
                add(&self.stats.released_bytes, bytes as u64);
            }
            index += 1;
        }
        if len > 0 {
            // SAFETY: the pages are blocked and had no live slot when they were, so nobody uses a byte of
            // them; they are anonymous, since no merged page is among them.
            unsafe { self.kernel.decommit_all(&ranges[..len]) };
        }
        for BlockedPages { span, generation, pages } in held.into_iter().flatten() {
            self.spans.set_absent(span, generation, page_bits(&pages));
            self.spans.unblock(span, generation, pages);
        }
        if index < self.notes.len() {
            return Stage::Release { span: index };
        }
        self.spans.purge(self.kernel.now_ns(), self.urgent);
        if self.urgent { Stage::PLAN } else { Stage::Restore { unit: 0 } }
    }

    /// A span and its pages to give back, if there are any.
    fn releasable(&mut self, index: usize) -> Option<(S::Ref, SpanView, u16)> {
        let wanted = |note: Note, urgent: bool| {
            (if urgent { note.free } else { note.idle }) & !note.given & !note.merged
        };
        // The note may be of an earlier span; looking at the span renews it then.
        if wanted(self.notes[index], self.urgent) == 0 {
            return None;
        }
        let (span, view) = self.span_view(index)?;
        let pages = wanted(self.notes[index], self.urgent) & self.free_pages(&view);
        (pages != 0).then_some((span, view, pages))
    }
}

/// The runs of set bits, highest first.
fn page_runs(mut pages: u16) -> impl Iterator<Item = u16> {
    core::iter::from_fn(move || {
        let from = pages.checked_ilog2()?;
        let count = (pages << (15 - from)).leading_ones();
        let run = (((1u32 << count) - 1) << (from + 1 - count)) as u16;
        pages &= !run;
        Some(run)
    })
}

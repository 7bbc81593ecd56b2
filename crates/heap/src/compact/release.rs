//! Giving back the wholly free pages of partial spans.
//!
//! Pages are blocked, given back many ranges in one call, and unblocked: each call makes every CPU that runs the
//! program forget its translations, which costs more than the pages themselves.

use core::ops::Range;

use super::engine::{Compactor, Stage, add};
use super::{Kernel, SpanView, Spans};
use crate::os::Os;

/// Most ranges given back at once.
pub const RANGES: usize = 128;

/// Blocked pages without a live slot.
struct Held<R> {
    span: R,
    generation: u32,
    pages: Range<u8>,
}

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Gives pages back that were free in two scans.
    pub(super) fn release(&mut self, first: usize) -> Stage {
        let mut held: [Option<Held<S::Ref>>; RANGES] = [const { None }; RANGES];
        let mut ranges = [(0, 0); RANGES];
        let mut len = 0;
        let mut index = first;
        // A span has at most eight runs of free pages.
        while index < self.notes.len() && index < first + 1024 && len + 8 <= RANGES {
            for run in self.releasable(index) {
                let Some((span, view)) = self.look(index) else { break };
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
                held[len] = Some(Held { span, generation: view.generation, pages });
                len += 1;
                self.notes[index].given |= run;
                add(&self.stats.released_bytes, bytes as u64);
            }
            index += 1;
        }
        if len > 0 {
            // SAFETY: the pages are blocked and had no live slot when they were, so nobody uses a byte of
            // them; they are anonymous, since no merged page is among them.
            unsafe { self.kernel.decommit_all(&ranges[..len]) };
        }
        for Held { span, generation, pages } in held.into_iter().flatten() {
            self.spans.unblock(span, generation, pages);
        }
        if index < self.notes.len() {
            return Stage::Release { span: index };
        }
        self.spans.purge(self.kernel.now_ns(), self.urgent);
        if self.urgent { Stage::Classes { next: 0 } } else { Stage::Restore { unit: 0 } }
    }

    /// The runs of pages of a span to give back, as bits.
    fn releasable(&mut self, index: usize) -> impl Iterator<Item = u16> + use<S, K, O> {
        let note = self.notes[index];
        let wanted = if self.urgent { note.free } else { note.idle };
        let mut pages = wanted & !note.given & !note.merged;
        if pages != 0 {
            // The note may be of an earlier span.
            pages = self.look(index).map_or(0, |(_, view)| {
                let note = self.notes[index];
                pages & self.free_pages(&view) & !note.given & !note.merged
            });
        }
        core::iter::from_fn(move || {
            let from = pages.checked_ilog2()?;
            let count = (pages << (15 - from)).leading_ones();
            let run = (((1u32 << count) - 1) << (from + 1 - count)) as u16;
            pages &= !run;
            Some(run)
        })
    }
}

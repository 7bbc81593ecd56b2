//! The footprint: what memory the heap holds, merged pages counted once, and by how much merging has made it smaller.

use core::sync::atomic::Ordering::Relaxed;

use super::state::Compactor;
use super::{Kernel, Spans};
use crate::os::Os;
use crate::stats::Backend;

impl<S: Spans, K: Kernel, O: Os> Compactor<'_, S, K, O> {
    /// Physical bytes that merging saves now, by the engine's own count; those too that `ksmd` has still to merge.
    pub fn saved_bytes(&self) -> u64 {
        self.groups.saved_pages() * self.page as u64
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

    /// Pages behind merged units (images, what the program has written since, and what waits for `ksmd`), and how many
    /// ordinary pages `ksmd` has merged too: it looks at all of what it was offered.
    fn behind_units(&self) -> (u64, u64) {
        let groups = &self.groups;
        if self.backend != Backend::Ksm {
            return (groups.behind_pages() + groups.lost_pages, 0);
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
        self.stats.mergeable_bytes.store(self.last.mergeable_bytes, Relaxed);
        self.stats.left_alone_bytes.store(self.last.left_alone_bytes, Relaxed);
        let saved = (self.groups.touched_pages + self.groups.lost_pages).saturating_sub(behind);
        self.stats.groups.store(self.groups.live, Relaxed);
        self.stats.merged_bytes.store(self.groups.merged_pages * page, Relaxed);
        self.stats.saved_bytes.store(saved * page, Relaxed);
        if self.backend == Backend::Remap {
            // Nearly: neighbours that follow each other in an image are one mapping, and what leaves the middle of one
            // makes two.
            self.stats.vmas.store(self.groups.mappings, Relaxed);
            self.stats.vma_budget.store(self.settings.mappings as u64, Relaxed);
        }
    }
}

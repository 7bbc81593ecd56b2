//! What sits in pageblocks that are partly free, so that they do not become whole: pages that could be moved, or such
//! of the kernel that nobody can move.
//!
//! A free block's first frame is marked, the others bear no flag, as some memory of the kernel does. So what bears none
//! counts as free behind a free one, and as memory of the kernel elsewhere: of such memory it sees too little, never
//! too much.

use pagemill_kernel::memory::page_flags::Frame;
use pagemill_kernel::{Linux, Result, page_size};
use pagemill_model::Bytes;
use serde_json::{Value, json};

/// Pageblocks by who sits in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageblockOccupants {
    /// In part free, in part in use.
    pub partly_free: u64,
    /// Of these, where all that is in use could be moved.
    pub movable: u64,
    /// Of these, where objects of the kernel are.
    pub slab: u64,
    /// Of these, where page tables are.
    pub page_tables: u64,
    /// Of these, where other memory of the kernel is.
    pub other: u64,
    /// Free pages in those where something is that nobody can move.
    pub beside: u64,
}

impl PageblockOccupants {
    /// Those of all of memory, `pages` a block. Needs root.
    ///
    /// # Errors
    /// As of [`Linux::frames`].
    pub fn count(linux: &Linux, pages: usize) -> Result<Self> {
        let mut block = Vec::with_capacity(pages);
        let mut all = Self::default();
        linux.frames(|frame| {
            block.push(frame);
            if block.len() == pages {
                all.add(&block);
                block.clear();
            }
        })?;
        Ok(all)
    }

    /// As JSON.
    pub fn json(self) -> Value {
        json!({
            "partly_free": self.partly_free,
            "all_movable": self.movable,
            "with_slab": self.slab,
            "with_page_tables": self.page_tables,
            "with_other_kernel_memory": self.other,
            "free_pages_beside_kernel_memory": self.beside,
        })
    }

    /// Who keeps pageblocks from becoming whole, in words.
    pub fn text(self) -> String {
        let PageblockOccupants { partly_free, movable, slab, page_tables, other, beside } = self;
        let beside = Bytes(beside * page_size() as u64).to_string();
        format!(
            "{partly_free} pageblocks are partly free: {movable} with nothing in use that could not be moved; \
             objects of the kernel are in {slab}, page tables in \
             {page_tables}, other memory of the kernel in {other}, and these stay where they are, {} of free memory \
             beside them\n",
            beside.trim()
        )
    }

    fn add(&mut self, block: &[Frame]) {
        let (mut free, mut movable, mut slab, mut tables, mut other) = (0_u64, 0, 0, 0, 0);
        let mut before = Frame::Other;
        for &frame in block {
            let what = match (frame, before) {
                (Frame::Plain, Frame::Free) => Frame::Free,
                (Frame::Plain, _) => Frame::Other,
                (Frame::Tail, head) => head,
                (frame, _) => frame,
            };
            match what {
                Frame::Free => free += 1,
                Frame::Movable => movable += 1,
                Frame::Slab => slab += 1,
                Frame::PageTable => tables += 1,
                Frame::Absent => return,
                _ => other += 1,
            }
            before = what;
        }
        if free == 0 || free == block.len() as u64 {
            return;
        }
        self.partly_free += 1;
        self.movable += u64::from(movable > 0 && slab + tables + other == 0);
        self.slab += u64::from(slab > 0);
        self.page_tables += u64::from(tables > 0);
        self.other += u64::from(other > 0);
        self.beside += if slab + tables + other > 0 { free } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_counted_by_what_keeps_it_from_being_whole() {
        let mut all = PageblockOccupants::default();
        // Whole; full; movable beside free; a slab of two frames; kernel memory without a flag; a page table; partly
        // absent.
        all.add(&[Frame::Free, Frame::Plain, Frame::Plain, Frame::Plain]);
        all.add(&[Frame::Movable, Frame::Tail, Frame::Tail, Frame::Tail]);
        assert_eq!(all, PageblockOccupants::default());
        all.add(&[Frame::Movable, Frame::Free, Frame::Plain, Frame::Movable]);
        all.add(&[Frame::Slab, Frame::Tail, Frame::Free, Frame::Movable]);
        all.add(&[Frame::Plain, Frame::Movable, Frame::Free, Frame::Plain]);
        all.add(&[Frame::PageTable, Frame::Slab, Frame::Free, Frame::Plain]);
        all.add(&[Frame::Free, Frame::Plain, Frame::Slab, Frame::Absent]);
        let expected = PageblockOccupants {
            partly_free: 4,
            movable: 1,
            slab: 2,
            page_tables: 1,
            other: 1,
            beside: 5,
        };
        assert_eq!(all, expected);
    }
}

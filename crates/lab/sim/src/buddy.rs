//! The page allocator of one memory zone: the binary buddy system of Linux with its two sides,
//! grouping by mobility and compaction.
//!
//! Terms. A **block** of order k is 2^k pages that begin at a multiple of 2^k. Two blocks of order
//! k that make one of order k + 1 are **buddies**. A **pageblock** is 2^9 pages, what one huge page
//! covers; each has a **mobility**: what is allocated there should all be movable, or not.
//!
//! ```text
//!  alloc(k, mobility)   the newest free block of order k of that mobility; else the smallest larger one
//!                       is split, the upper halves stay free; else a block of the other mobility:
//!                       the largest, and its pageblock changes sides if most of it is free or
//!                       fits (`claim`), or else the smallest (`steal`)
//!  free(block)          joins its buddy as long as that one is free, then waits in front
//!  compact(order)       |▒ ▒▒ ▒  |        |  ▒ ▒   |▒  ▒    |      ▒ movable, in use
//!                        ► migrate scanner            ◄ free scanner
//!                       |        |        | ▒▒▒▒▒▒▒|▒▒▒▒    |      until they meet, or a block of
//!                                                                 `order` is free
//! ```
//!
//! As in the kernel (mm/page_alloc.c, mm/compaction.c, 6.x): freed blocks are reused newest first;
//! the free scanner takes blocks out of the lists before pages move there, and never those of a
//! pageblock or more; the migrate scanner passes over blocks of a pageblock or more. Not modelled:
//! lists of each processor, reclaimable memory as a third mobility, watermarks, reserves for atomic
//! allocations, the skip hints of pageblocks, and failing migrations.
//!
//! Always true: every page is in exactly one block, free or in use; blocks are aligned; no two
//! buddies are both free below the largest order; compaction moves movable blocks only, each to one
//! block of the same order, and changes neither how much is free nor how much is in use.

/// The largest order: blocks of 4 MiB where pages have 4 KiB.
pub const MAX_ORDER: u8 = 10;

/// The number of orders.
pub const ORDERS: usize = MAX_ORDER as usize + 1;

/// The order of a pageblock, and of a huge page.
pub const PAGEBLOCK_ORDER: u8 = 9;

/// Whether the content of a block can be moved to another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mobility {
    /// It can: memory of programs, page cache.
    Movable,
    /// It cannot: the kernel's own memory, and pages that a device or a pipe refers to.
    Unmovable,
}

impl Mobility {
    const fn other(self) -> Self {
        match self {
            Self::Movable => Self::Unmovable,
            Self::Unmovable => Self::Movable,
        }
    }
}

/// 2^order pages from page `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    /// Its first page.
    pub start: u32,
    /// Its order.
    pub order: u8,
}

impl Block {
    /// Its number of pages.
    #[must_use]
    pub const fn pages(self) -> u32 {
        1 << self.order
    }
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Pages that were moved.
    pub migrated: u64,
    /// Pages that the migrate scanner passed.
    pub scanned: u64,
    /// Pages that the free scanner passed.
    pub free_scanned: u64,
    /// Blocks that either looked at: what it takes to simulate it.
    pub blocks: u64,
    /// Whether a block of the order asked for is free now. Without an order: whether the scanners
    /// met.
    pub complete: bool,
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// Part of the block that an earlier page heads.
    Inside,
    /// The first page of a free block, in the lists of this mobility.
    Free(u8, Mobility),
    /// The first page of a block in use.
    Used(u8, Mobility),
    /// The first page of a free block that the free scanner has taken out of the lists.
    Isolated(u8),
}

const NONE: u32 = u32::MAX;

/// Newest and number of the free blocks of one order and mobility.
#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    length: u64,
}

/// The allocator of one zone.
#[derive(Clone, Debug)]
pub struct Buddy {
    pages: Vec<Page>,
    /// The neighbours of a free block in its list, by its first page: newer, older.
    links: Vec<(u32, u32)>,
    lists: [[List; ORDERS]; 2],
    pageblocks: Vec<Mobility>,
    free: u64,
}

impl Buddy {
    /// A zone of this many pages, rounded down to whole blocks of the largest order, all free and
    /// movable.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        let whole = pages >> MAX_ORDER << MAX_ORDER;
        let mut zone = Self {
            pages: vec![Page::Inside; whole as usize],
            links: vec![(NONE, NONE); whole as usize],
            lists: [[List { newest: NONE, length: 0 }; ORDERS]; 2],
            pageblocks: vec![Mobility::Movable; (whole >> PAGEBLOCK_ORDER) as usize],
            free: whole.into(),
        };
        for start in (0..whole).step_by(1 << MAX_ORDER).rev() {
            zone.push(Block { start, order: MAX_ORDER }, Mobility::Movable);
        }
        zone
    }

    /// Pages of the zone.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Pages that are free.
    #[must_use]
    pub const fn free_pages(&self) -> u64 {
        self.free
    }

    /// Free blocks of each order, as `/proc/buddyinfo` has them.
    #[must_use]
    pub fn free_blocks(&self) -> [u64; ORDERS] {
        std::array::from_fn(|order| self.lists.iter().map(|lists| lists[order].length).sum())
    }

    /// Takes a block; `None` if none of this order is free. A larger order than [`MAX_ORDER`] is
    /// never to be had.
    pub fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<Block> {
        if order > MAX_ORDER {
            return None;
        }
        let block = self
            .smallest(order, mobility)
            .or_else(|| self.claim(order, mobility))
            .or_else(|| self.smallest(order, mobility.other()))?;
        let Page::Free(_, side) = self.pages[block.start as usize] else {
            unreachable!("blocks in the lists are free")
        };
        self.unlink(block);
        let mut rest = block;
        while rest.order > order {
            rest.order -= 1;
            self.push(Block { start: rest.start + rest.pages(), order: rest.order }, side);
        }
        self.pages[rest.start as usize] = Page::Used(order, mobility);
        self.free -= u64::from(rest.pages());
        Some(rest)
    }

    /// Gives back the block in use that begins at page `start`, and says which it was; `None` if none
    /// begins there.
    pub fn free(&mut self, start: u32) -> Option<Block> {
        let Page::Used(order, _) = *self.pages.get(start as usize)? else { return None };
        let block = Block { start, order };
        self.free += u64::from(block.pages());
        self.join(block);
        Some(block)
    }

    /// Makes 2^k blocks of order 0 out of the block of order k in use that begins at `start`, as when a
    /// huge page is split: each can then be freed alone. `None` if none begins there.
    pub fn split(&mut self, start: u32) -> Option<Block> {
        let Page::Used(order, mobility) = *self.pages.get(start as usize)? else { return None };
        let block = Block { start, order };
        for page in start..start + block.pages() {
            self.pages[page as usize] = Page::Used(0, mobility);
        }
        Some(block)
    }

    /// Makes the block in use that begins at `start` movable or unmovable where it is, as when a page
    /// is pinned. `None` if none begins there.
    pub fn set_mobility(&mut self, start: u32, mobility: Mobility) -> Option<Block> {
        let Page::Used(order, _) = *self.pages.get(start as usize)? else { return None };
        self.pages[start as usize] = Page::Used(order, mobility);
        Some(Block { start, order })
    }

    /// Moves movable blocks from the beginning of the zone to free places at its end, until a block
    /// of `order` is free or, without one, everywhere. `moved` hears of each: from, to.
    pub fn compact(
        &mut self,
        order: Option<u8>,
        mut moved: impl FnMut(Block, Block),
    ) -> Compaction {
        let mut done = Compaction::default();
        let mut targets = Targets::default();
        let regions = self.pages.len() as u32 >> MAX_ORDER;
        // Regions at and above this one have been given to the free scanner.
        let mut upper = regions;
        let mut lower = 0;
        let ready = |zone: &Self| order.is_some_and(|order| zone.has(order));
        'scan: while lower < upper && !ready(self) {
            // Listed first: what moves away leaves blocks that join the free ones around them.
            for block in self.blocks(Block { start: lower << MAX_ORDER, order: MAX_ORDER }) {
                done.scanned += u64::from(block.pages());
                done.blocks += 1;
                let movable = match self.pages[block.start as usize] {
                    Page::Used(_, mobility) => mobility == Mobility::Movable,
                    Page::Free(..) | Page::Isolated(_) | Page::Inside => false,
                };
                if !movable || block.order >= PAGEBLOCK_ORDER {
                    continue;
                }
                let target = loop {
                    if let Some(target) = targets.take(block.order) {
                        break target;
                    }
                    if upper <= lower + 1 {
                        break 'scan;
                    }
                    upper -= 1;
                    done.free_scanned += 1 << MAX_ORDER;
                    done.blocks += self.isolate(upper, &mut targets);
                };
                self.pages[target.start as usize] = Page::Used(block.order, Mobility::Movable);
                done.migrated += u64::from(block.pages());
                self.join(block);
                moved(block, target);
            }
            lower += 1;
        }
        for block in targets.drain() {
            self.join(block);
        }
        done.complete = order.is_none_or(|order| self.has(order));
        done
    }

    /// Whether a block of this order or a larger one is free.
    fn has(&self, order: u8) -> bool {
        let lists = self.lists.iter().flat_map(|lists| lists.iter().skip(order.into()));
        lists.into_iter().any(|list| list.length > 0)
    }

    /// The newest free block of the smallest order from `order` up.
    fn smallest(&self, order: u8, mobility: Mobility) -> Option<Block> {
        (order..=MAX_ORDER).find_map(|order| self.newest(order, mobility))
    }

    fn newest(&self, order: u8, mobility: Mobility) -> Option<Block> {
        let start = self.lists[mobility as usize][usize::from(order)].newest;
        (start != NONE).then_some(Block { start, order })
    }

    /// A block for `mobility`, after a pageblock with the largest of the other's has changed sides.
    /// `None` if a pageblock should not change sides for this.
    fn claim(&mut self, order: u8, mobility: Mobility) -> Option<Block> {
        let largest = (order..=MAX_ORDER).rev();
        let block = largest.into_iter().find_map(|order| self.newest(order, mobility.other()))?;
        if block.order >= PAGEBLOCK_ORDER {
            self.set_pageblocks(block, mobility);
            self.unlink(block);
            self.push(block, mobility);
            return Some(block);
        }
        // Movable memory can wait for its place, so it claims for large blocks only.
        if block.order < PAGEBLOCK_ORDER / 2 && mobility == Mobility::Movable {
            return None;
        }
        let start = block.start >> PAGEBLOCK_ORDER << PAGEBLOCK_ORDER;
        let pageblock = Block { start, order: PAGEBLOCK_ORDER };
        let blocks = self.blocks(pageblock);
        let fits = |block: &Block| match self.pages[block.start as usize] {
            Page::Free(..) => true,
            Page::Used(_, used) => used == mobility,
            Page::Isolated(_) | Page::Inside => false,
        };
        let fitting: u32 = blocks.iter().filter(|block| fits(block)).map(|b| b.pages()).sum();
        if fitting < pageblock.pages() / 2 {
            return None;
        }
        self.set_pageblocks(pageblock, mobility);
        for block in blocks {
            if let Page::Free(..) = self.pages[block.start as usize] {
                self.unlink(block);
                self.push(block, mobility);
            }
        }
        self.smallest(order, mobility)
    }

    /// The blocks within `outer`, which none of them crosses.
    fn blocks(&self, outer: Block) -> Vec<Block> {
        let (mut page, end) = (outer.start, outer.start + outer.pages());
        let mut blocks = Vec::new();
        while page < end {
            let order = match self.pages[page as usize] {
                Page::Free(order, _) | Page::Used(order, _) | Page::Isolated(order) => order,
                Page::Inside => unreachable!("a block begins where the one before it ends"),
            };
            let block = Block { start: page, order };
            page += block.pages();
            blocks.push(block);
        }
        blocks
    }

    fn set_pageblocks(&mut self, block: Block, mobility: Mobility) {
        let first = block.start >> PAGEBLOCK_ORDER;
        let last = (block.start + block.pages() - 1) >> PAGEBLOCK_ORDER;
        self.pageblocks[first as usize..=last as usize].fill(mobility);
    }

    /// Makes a block that is in no list free, together with its buddies.
    fn join(&mut self, mut block: Block) {
        let side = self.pageblocks[(block.start >> PAGEBLOCK_ORDER) as usize];
        while block.order < MAX_ORDER {
            let buddy = Block { start: block.start ^ block.pages(), order: block.order };
            match self.pages[buddy.start as usize] {
                Page::Free(order, _) if order == buddy.order => self.unlink(buddy),
                _ => break,
            }
            self.pages[block.start.max(buddy.start) as usize] = Page::Inside;
            block = Block { start: block.start.min(buddy.start), order: block.order + 1 };
        }
        if block.order > PAGEBLOCK_ORDER {
            self.set_pageblocks(block, side);
        }
        self.push(block, side);
    }

    /// Takes the free blocks of a region, smaller than a pageblock, out of the lists; how many it has.
    fn isolate(&mut self, region: u32, targets: &mut Targets) -> u64 {
        let blocks = self.blocks(Block { start: region << MAX_ORDER, order: MAX_ORDER });
        for &block in blocks.iter().rev() {
            let free = matches!(self.pages[block.start as usize], Page::Free(..));
            if free && block.order < PAGEBLOCK_ORDER {
                self.unlink(block);
                self.pages[block.start as usize] = Page::Isolated(block.order);
                targets.put(block);
            }
        }
        blocks.len() as u64
    }

    /// Makes a block the newest of a list.
    fn push(&mut self, block: Block, side: Mobility) {
        let list = &mut self.lists[side as usize][usize::from(block.order)];
        let older = std::mem::replace(&mut list.newest, block.start);
        list.length += 1;
        self.links[block.start as usize] = (NONE, older);
        if older != NONE {
            self.links[older as usize].0 = block.start;
        }
        self.pages[block.start as usize] = Page::Free(block.order, side);
    }

    /// Takes a free block out of its list; what the page becomes is the caller's to say.
    fn unlink(&mut self, block: Block) {
        let Page::Free(_, side) = self.pages[block.start as usize] else {
            unreachable!("only free blocks are in lists")
        };
        let (newer, older) = self.links[block.start as usize];
        let list = &mut self.lists[side as usize][usize::from(block.order)];
        list.length -= 1;
        if newer == NONE {
            list.newest = older;
        } else {
            self.links[newer as usize].1 = older;
        }
        if older != NONE {
            self.links[older as usize].0 = newer;
        }
    }
}

/// Free blocks that the free scanner holds, by order.
#[derive(Debug, Default)]
struct Targets([Vec<u32>; ORDERS]);

impl Targets {
    fn put(&mut self, block: Block) {
        self.0[usize::from(block.order)].push(block.start);
    }

    /// A block of this order, split off a larger one if need be.
    fn take(&mut self, order: u8) -> Option<Block> {
        let found = (order..=MAX_ORDER).find(|&order| !self.0[usize::from(order)].is_empty())?;
        let mut block = Block { start: self.0[usize::from(found)].pop()?, order: found };
        while block.order > order {
            block.order -= 1;
            self.put(Block { start: block.start + block.pages(), order: block.order });
        }
        Some(block)
    }

    fn drain(self) -> impl Iterator<Item = Block> {
        (0_u8..)
            .zip(self.0)
            .flat_map(|(order, starts)| starts.into_iter().map(move |start| Block { start, order }))
    }
}

#[cfg(test)]
mod tests;

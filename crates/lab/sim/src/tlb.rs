//! A translation look-aside buffer with two levels, and what a read waits for it.
//!
//! ```text
//!   first level    base pages | huge pages      each set associative, least recently used
//!   second level   both together                a hit costs a little
//!   walk           the rest                     costs more for base pages: one level deeper, and their tables
//!                                               miss caches
//! ```
//!
//! Always true: a page that was just looked up hits the first level; a buffer never holds more than its entries.

/// Sizes and costs. Costs in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Entries of the first level for base pages.
    pub base: usize,
    /// Entries of the first level for huge pages.
    pub huge: usize,
    /// Entries of the second level.
    pub second: usize,
    /// Ways of each set.
    pub ways: usize,
    /// A hit in the second level.
    pub second_ps: u64,
    /// A walk for a base page.
    pub walk_base_ps: u64,
    /// A walk for a huge page.
    pub walk_huge_ps: u64,
}

impl Default for Config {
    /// Of the size of current server cores (64, 32 and 2048 entries); the costs of walks are assumed.
    fn default() -> Self {
        Self {
            base: 64,
            huge: 32,
            second: 2048,
            ways: 8,
            second_ps: 2_500,
            walk_base_ps: 40_000,
            walk_huge_ps: 15_000,
        }
    }
}

/// Tags of one buffer; newest first in each set. 0 is empty.
#[derive(Clone, Debug)]
struct Level {
    tags: Vec<u64>,
    ways: usize,
}

impl Level {
    fn new(entries: usize, ways: usize) -> Self {
        let ways = ways.clamp(1, entries.max(1));
        Self { tags: vec![0; entries.max(ways) / ways * ways], ways }
    }

    /// Whether the tag is there; it is, and newest, afterwards.
    fn touch(&mut self, tag: u64) -> bool {
        let sets = self.tags.len() / self.ways;
        let set = (tag >> 1) as usize % sets * self.ways;
        let ways = &mut self.tags[set..set + self.ways];
        let found = ways.iter().position(|known| *known == tag);
        ways[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        ways[0] = tag;
        found.is_some()
    }

    fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        self.tags.iter_mut().filter(|tag| **tag != 0 && gone(**tag)).for_each(|tag| *tag = 0);
    }
}

/// The buffer.
#[derive(Clone, Debug)]
pub struct Tlb {
    config: Config,
    base: Level,
    huge: Level,
    second: Level,
    walks: u64,
}

impl Tlb {
    /// An empty one.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            base: Level::new(config.base, config.ways),
            huge: Level::new(config.huge, config.ways),
            second: Level::new(config.second, config.ways),
            walks: 0,
        }
    }

    /// What looking up the base page `page` costs, picoseconds; `huge` if it is part of a huge page.
    pub fn look_up(&mut self, page: u64, huge: bool) -> u64 {
        // The lowest bit tells sizes apart; the rest is never zero.
        let tag = if huge { ((page >> 9) + 1) << 1 | 1 } else { (page + 1) << 1 };
        let first = if huge { self.huge.touch(tag) } else { self.base.touch(tag) };
        if first {
            return 0;
        }
        if self.second.touch(tag) {
            return self.config.second_ps;
        }
        self.walks += 1;
        if huge { self.config.walk_huge_ps } else { self.config.walk_base_ps }
    }

    /// Forgets all of the region of 512 pages that begins at `page`, as when its pages change size.
    pub fn flush(&mut self, page: u64) {
        let region = page >> 9;
        let gone = move |tag: u64| {
            if tag & 1 == 1 { (tag >> 1) - 1 == region } else { ((tag >> 1) - 1) >> 9 == region }
        };
        self.base.forget(gone);
        self.huge.forget(gone);
        self.second.forget(gone);
    }

    /// Walks so far.
    #[must_use]
    pub const fn walks(&self) -> u64 {
        self.walks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_fits_is_walked_once_and_huge_pages_reach_further() {
        let walks = |huge| {
            let mut tlb = Tlb::new(Config::default());
            for _ in 0..5 {
                (0..16_384).for_each(|page| {
                    tlb.look_up(page, huge);
                });
            }
            tlb.walks()
        };
        assert_eq!(walks(true), 32);
        assert_eq!(walks(false), 5 * 16_384);
    }

    #[test]
    fn a_flushed_region_is_walked_again_and_others_are_not() {
        let mut tlb = Tlb::new(Config::default());
        tlb.look_up(5, false);
        tlb.look_up(600, false);
        tlb.flush(0);
        assert_eq!(tlb.look_up(600, false), 0);
        assert_eq!(tlb.look_up(5, false), Config::default().walk_base_ps);
    }

    proptest! {
        #[test]
        fn a_page_just_looked_up_is_there(pages in prop::collection::vec((0..9000_u64, any::<bool>()), 1..300)) {
            let mut tlb = Tlb::new(Config { base: 8, huge: 4, second: 16, ways: 4, ..Config::default() });
            for (page, huge) in pages {
                tlb.look_up(page, huge);
                prop_assert_eq!(tlb.look_up(page, huge), 0);
            }
            prop_assert!(tlb.base.tags.len() == 8 && tlb.huge.tags.len() == 4 && tlb.second.tags.len() == 16);
        }
    }
}

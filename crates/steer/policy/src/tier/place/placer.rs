//! What a placer is told, and what it answers.

use crate::tier::{Loads, Page, Tier};

/// How much of all reads should change tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The tier that serves too many reads.
    pub from: Tier,
    /// The part of all reads that should leave it, in 0..=1.
    pub size: f64,
}

/// What a placer is told of one quantum.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Both tiers, everybody's reads counted, smoothed over some quanta.
    pub loads: Loads,
    /// The part of the program's own reads that the default tier serves as its pages lie now, by their heat, in 0..=1.
    pub share: f64,
    /// The program's own reads in this quantum, in any unit.
    pub rate: f64,
}

/// How much goes where.
pub trait Placer: std::fmt::Debug {
    /// What part of the program's reads should change tier. None: the hottest pages come first, whatever the latencies
    /// are.
    fn shift(&mut self, reading: &Reading) -> Option<Shift>;

    /// Whether it asks for [`Reading::share`], for which pages are ranked every quantum; where it does not, that is the
    /// share of everybody's reads.
    fn asks_share(&self) -> bool {
        false
    }

    /// Takes in whether a shift found a page to move, where there was room for a pair.
    fn came(&mut self, _shift: Shift, _found: bool, _loads: Loads) {}
}

/// A page and how often its tracker saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The page.
    pub page: Page,
    /// Its count.
    pub heat: u32,
}

/// The pages of both tiers, each list hottest first.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// Pages of the default tier, hottest first.
    pub default: Vec<Ranked>,
    /// Pages of the alternate tier, hottest first.
    pub alternate: Vec<Ranked>,
    /// Frames of the default tier that hold nothing.
    pub default_free: usize,
    /// Frames of the alternate tier that hold nothing.
    pub alternate_free: usize,
}

impl Ranking {
    /// Ranks `pages`, with no free frames anywhere.
    pub fn of_pages(pages: impl Iterator<Item = (Page, Tier)>, heat: impl Fn(Page) -> u32) -> Self {
        let mut ranking = Self::default();
        for (page, tier) in pages {
            let ranked = Ranked { page, heat: heat(page) };
            match tier {
                Tier::Default => ranking.default.push(ranked),
                Tier::Alternate => ranking.alternate.push(ranked),
            }
        }
        let hottest_first = |page: &Ranked| (std::cmp::Reverse(page.heat), page.page);
        ranking.default.sort_unstable_by_key(hottest_first);
        ranking.alternate.sort_unstable_by_key(hottest_first);
        ranking
    }

    /// The sum of all heat, at least 1.
    #[must_use]
    pub fn total(&self) -> f64 {
        let sum: u64 = self.default.iter().chain(&self.alternate).map(|p| u64::from(p.heat)).sum();
        sum.max(1) as f64
    }

    /// The pages of a tier, hottest first.
    #[must_use]
    pub fn of(&self, tier: Tier) -> &[Ranked] {
        match tier {
            Tier::Default => &self.default,
            Tier::Alternate => &self.alternate,
        }
    }

    /// The part of all heat that lies on the default tier; none where nothing has been seen accessed.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let sum = |pages: &[Ranked]| pages.iter().map(|page| u64::from(page.heat)).sum::<u64>();
        let (default, alternate) = (sum(&self.default), sum(&self.alternate));
        (default + alternate > 0).then(|| default as f64 / (default + alternate) as f64)
    }

    pub(super) fn free(&self, tier: Tier) -> usize {
        match tier {
            Tier::Default => self.default_free,
            Tier::Alternate => self.alternate_free,
        }
    }
}

/// One page leaves `from`; where the other tier has no free frame, one comes back in exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The tier that `moved` leaves.
    pub from: Tier,
    /// The page that leaves.
    pub moved: Page,
    /// The page that comes back, if one does.
    pub back: Option<Page>,
}

impl Swap {
    /// Pages copied.
    #[must_use]
    pub const fn pages(&self) -> usize {
        1 + self.back.is_some() as usize
    }
}

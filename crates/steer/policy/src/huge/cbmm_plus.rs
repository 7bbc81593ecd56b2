//! CBMM with what it left out, in nanoseconds and with the costs of the machine at hand.
//!
//! ```text
//!   fresh     what a huge page costs here: huge or huge_cold by the chance of cold, + stall if no block is free,
//!             or as good as none
//!   faults    (expected - present) x a base fault here               what the program is spared
//!   walks     by the profile; without one, [`REUSED`] walks for each page expected, modelled
//!   bloat     (512 - expected) x a base fault here x pressure, which is 0 below 70 % of memory in use, 1 at 85 %, and
//!             at most 2
//!   helper    time of a helper x its price: half while a whole CPU is idle, all of it where half of one is or less
//!   fetch     missing / 512 of what fetching a region from another cache costs here
//!   watch     looks of a helper while a region grows, one each [`LOOK`], by the speed of the process; none where that
//!             is absent, and nothing is made ahead of a process that does not grow
//!
//!   action      benefits                  costs
//!   huge        walks + faults            fresh + bloat              only while fresh <= the latency budget
//!   pool        walks + faults            deliver + helper(fresh + watch) + bloat
//!   ahead-2m    walks + faults            helper(fresh + watch) + fetch + bloat
//!   ahead-4k    faults                    helper(faults + watch) + fetch
//!   ahead-64k   faults                    helper(pages of 64 KiB x medium + watch) + fetch
//!   fault-2m    walks + faults            fresh + bloat              only while fresh <= the latency budget, or rare
//!   fault-64k   faults                    pages of 64 KiB x medium
//!   collapse    walks + faults            helper(collapse) + bloat
//!   demote      zeros x base x pressure   walks + helper(collapse)
//!   prezero     useful x (fresh - deliver)   helper(n x fresh)
//! ```
//!
//! `fault-2m` and `fault-64k` are what the kernel's own settings `always` would do, in the program's own time: what
//! those gain nobody needs a helper for. *Rare*: at the speed at which the process grows, zeroing takes at most
//! [`CbmmPlus::stalled`] of its time; a program that spends more of it waiting has a tail worth a helper. Only a speed
//! that was seen counts: of a program that has just begun nobody knows whether it grows.
//!
//! Deviations from CBMM, each deliberate: base faults that a huge page spares count (there: not), so a dense region
//! needs no profile (a profile in nanoseconds, as `plan` writes it, holds them already), and where nothing is known of
//! walks some are assumed, or pages of 64 KiB, which spare the faults as well and no walk, would always win; cold
//! memory counts; memory that nobody touches has a price, and where it has reached [`CbmmPlus::bloat`] of the process
//! nothing sparse becomes huge; demotion exists; a helper's time is never free; a stall is what was measured, not 2^32;
//! a fault never zeroes a huge page beyond a budget, for an average hides a tail; collapsing and defragmenting can pay.
//! A term whose figure is absent is left out if it speaks for the action; if it speaks against it, the action is not
//! offered.

use std::ops::Range;

use pagemill_model::page::{HUGE, PER_HUGE};

use super::account::{Account, Estimate, Term, Unit};
use super::action::{Action, Moment};
use super::kind::{Mechanism, Policy, ProfileUse, Scans};
use super::view::{Figure, View};

/// Thousandths of memory in use at which bloat begins to count, and at which it counts in full (HawkEye's marks).
pub const PRESSURE: Range<u64> = 700..850;
/// Unusable free space index, in thousandths, from which on the blocks that are left are not for programs: the kernel
/// keeps a hundredth of a zone in whole pageblocks for urgent allocations (`reserve_highatomic_pageblock`).
const PIECES: u64 = 980;
/// Base pages of a 64 KiB page.
const MEDIUM: u64 = 16;
/// Page walks that a base page on a huge page spares, where no profile tells: it is used again so many times out of the
/// order in which the processor would still know where it is.
const REUSED: u64 = 4;
/// What each costs where nobody has measured it, ns.
const WALK: u64 = 40;
/// Time between two looks of a helper at a region that grows, and what one takes with waking and sleeping, ns.
const LOOK: (u64, u64) = (2_000_000, 25_000);

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CbmmPlus {
    /// The longest that a fault may take because of a huge page, ns.
    pub budget: u64,
    /// Share of a growing program's time in which its faults may zero huge pages that take longer than that, in
    /// thousandths.
    pub stalled: u64,
    /// Price of a helper's time while a CPU is idle, in thousandths: it is often the other half of a core that is not.
    pub helper: u64,
    /// Untouched share of resident memory from which on sparse regions stay on base pages, in thousandths.
    pub bloat: u64,
}

impl CbmmPlus {
    /// The usual constants.
    pub const USUAL: Self = Self { budget: 200_000, stalled: 50, helper: 500, bloat: 30 };
}

/// `amount` times `thousandths`.
fn part(amount: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(amount) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX)
}

/// Warm and cold mixed by the chance of cold. Without a figure for cold memory the warm one stands only if nothing
/// is known to be cold.
fn mixed(warm: Figure, cold: Figure, chance: Figure) -> Option<u64> {
    let warm = warm.value()?;
    match (cold.value(), chance.value().unwrap_or(0).min(1000)) {
        (_, 0) => Some(warm),
        (Some(cold), chance) => Some(part(warm, 1000 - chance).saturating_add(part(cold, chance))),
        (None, _) => None,
    }
}

impl CbmmPlus {
    /// What a base fault costs here.
    fn base(view: &View) -> Option<u64> {
        mixed(view.costs.base, view.costs.base_cold, view.cold)
    }

    /// What a huge page costs here, whoever waits for it.
    fn fresh(view: &View) -> Option<u64> {
        let zeroing = mixed(view.costs.huge, view.costs.huge_cold, view.cold)?;
        let in_pieces = view.unusable.value().is_some_and(|score| score >= PIECES);
        let stall = match view.free_huge {
            Figure::Absent => return None,
            free if free.some() && !in_pieces => 0,
            _ => view.costs.stall.value()?,
        };
        Some(zeroing.saturating_add(stall))
    }

    /// The price of a helper's time. It takes what others would use of the CPU that it runs on, and as much again by
    /// having them wait and move: measured, a server of one thread waits half as long as a helper works where client
    /// and server keep 1.4 of 2 CPUs busy, and not at all without one.
    fn helper(self, time: u64, view: &View) -> u64 {
        let others = view.cpus.saturating_sub(1).saturating_mul(100);
        let taken = view.load.value().map_or(100, |load| load.saturating_sub(others).min(50) * 2);
        part(time, self.helper + (1000 - self.helper.min(1000)) * taken / 100)
    }

    /// What a helper takes for watching a region until the program has filled it; `None` if it does not grow.
    fn watch(view: &View) -> Option<u64> {
        let Some(growth) = view.growth.value() else { return Some(0) };
        let (each, took) = LOOK;
        Some((HUGE * 1_000_000).checked_div(growth)? / each * took)
    }

    /// What the program waits longer for `pages` because they are in another cache.
    fn fetch(pages: u64, view: &View) -> Option<u64> {
        Some(part(view.costs.fetch.value()?, pages.min(PER_HUGE) * 1000 / PER_HUGE))
    }

    /// Whether the program may zero huge pages of this cost itself.
    fn may_wait(self, fresh: u64, view: &View) -> bool {
        // Nanoseconds a region times bytes a millisecond.
        let whole = u128::from(HUGE) * 1_000_000;
        let spent = |growth| u128::from(fresh) * u128::from(growth);
        let most = whole * u128::from(self.stalled) / 1000;
        let rare = match view.growth {
            Figure::Measured(growth) => spent(growth) <= most,
            Figure::Modelled(_) | Figure::Absent => false,
        };
        fresh <= self.budget || rare
    }

    fn walks(view: &View) -> u64 {
        let Some(value) = view.profile_huge.value() else {
            let walk = view.costs.walk.value().unwrap_or(WALK);
            return (Self::expected(view).unwrap_or(0) * REUSED).saturating_mul(walk);
        };
        match view.unit {
            Unit::Cycles if view.mhz > 0 => {
                u64::try_from(u128::from(value) * 1000 / u128::from(view.mhz)).unwrap_or(u64::MAX)
            }
            Unit::Cycles => 0,
            Unit::Nanos | Unit::Rule => value,
        }
    }

    /// Pages that will be touched in the end, as far as anyone knows.
    fn expected(view: &View) -> Option<u64> {
        let known = view.expected.value().or(view.present.value())?;
        Some(known.max(view.present.value().unwrap_or(0)).min(PER_HUGE))
    }

    /// Base pages that the program has yet to fault in.
    fn missing(view: &View) -> u64 {
        Self::expected(view).unwrap_or(0).saturating_sub(view.present.value().unwrap_or(0))
    }

    /// What the missing pages cost in pages of 64 KiB.
    fn medium(view: &View) -> Option<u64> {
        Some(view.costs.medium.value()?.saturating_mul(Self::missing(view).div_ceil(MEDIUM)))
    }

    /// How much an unused page matters, in thousandths. Unknown use of memory counts in full.
    fn pressure(view: &View) -> u64 {
        let Range { start: low, end: high } = PRESSURE;
        let used = view.used.value().unwrap_or(high);
        (used.saturating_sub(low).saturating_mul(1000) / (high - low)).min(2000)
    }

    /// Costs and benefits of breaking a huge page up, whose zeros come back.
    fn demote(self, view: &View) -> Option<(Account, Account)> {
        // Without a profile only a region that nobody has accessed has no walks to lose.
        if view.profile_huge == Figure::Absent && view.accessed.value()? > 0 {
            return None;
        }
        let freed = view.zeros.value()?.saturating_mul(Self::base(view)?);
        let split = self.helper(view.costs.collapse.value()?, view);
        Some((
            Account::new().with(Term::Walks, Self::walks(view)).with(Term::Helper, split),
            Account::new().with(Term::Freed, part(freed, Self::pressure(view))),
        ))
    }

    /// The price of the pages that nobody will touch; `None` if the process has too many of them already.
    fn bloat(self, view: &View) -> Option<u64> {
        let unused = PER_HUGE - Self::expected(view).unwrap_or(0);
        let full = view.bloat.value().is_some_and(|bloat| bloat >= self.bloat);
        if full && unused > 0 {
            return None;
        }
        Some(part(unused.saturating_mul(Self::base(view)?), Self::pressure(view)))
    }
}

impl Policy for CbmmPlus {
    fn name(&self) -> &'static str {
        "cbmm+"
    }

    fn mechanism(&self) -> Mechanism {
        Mechanism {
            growth: &[Moment::Ahead],
            scans: Scans::WithProfile,
            profile: ProfileUse::Optional,
            weighs_time: true,
            ..Mechanism::BESIDE
        }
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        let none = Account::new();
        let base = Self::base(view);
        let faults = Self::missing(view).saturating_mul(base.unwrap_or(0));
        // A profile in nanoseconds is one of ours and holds the faults too; a published one counts walks alone.
        let whole = view.unit == Unit::Nanos && view.profile_huge != Figure::Absent;
        let spared = if whole { 0 } else { faults };
        let watched = |work: u64| Some(self.helper(work.saturating_add(Self::watch(view)?), view));
        let huge = none.with(Term::Walks, Self::walks(view)).with(Term::Faults, spared);
        let (costs, benefits) = match action {
            Action::Huge => {
                let fresh = Self::fresh(view).filter(|fresh| *fresh <= self.budget)?;
                (none.with(Term::Preparation, fresh).with(Term::Bloat, self.bloat(view)?), huge)
            }
            Action::Pool if view.pool.some() => (
                none.with(Term::Delivery, view.costs.deliver.value()?)
                    .with(Term::Helper, watched(Self::fresh(view)?)?)
                    .with(Term::Bloat, self.bloat(view)?),
                huge,
            ),
            Action::Ahead2m => (
                none.with(Term::Helper, watched(Self::fresh(view)?)?)
                    .with(Term::Fetch, Self::fetch(Self::missing(view), view)?)
                    .with(Term::Bloat, self.bloat(view)?),
                huge,
            ),
            Action::Ahead4k => {
                base?;
                (
                    none.with(Term::Helper, watched(faults)?)
                        .with(Term::Fetch, Self::fetch(Self::missing(view), view)?),
                    none.with(Term::Faults, faults),
                )
            }
            Action::Ahead64k => (
                none.with(Term::Helper, watched(Self::medium(view)?)?)
                    .with(Term::Fetch, Self::fetch(Self::missing(view), view)?),
                none.with(Term::Faults, faults),
            ),
            Action::Fault2m => {
                let fresh = Self::fresh(view).filter(|fresh| self.may_wait(*fresh, view))?;
                (none.with(Term::Preparation, fresh).with(Term::Bloat, self.bloat(view)?), huge)
            }
            Action::Fault64k => {
                (none.with(Term::Preparation, Self::medium(view)?), none.with(Term::Faults, faults))
            }
            Action::Collapse if !view.huge => (
                none.with(Term::Helper, self.helper(view.costs.collapse.value()?, view))
                    .with(Term::Bloat, self.bloat(view)?),
                huge,
            ),
            Action::Demote if view.huge => self.demote(view)?,
            Action::Prezero => {
                let fresh = Self::fresh(view)?;
                let useful = view.batch.min(view.pool_used.value().unwrap_or(0));
                let spared = fresh.saturating_sub(view.costs.deliver.value()?);
                (
                    none.with(Term::Helper, self.helper(fresh.saturating_mul(view.batch), view)),
                    none.with(Term::Preparation, spared.saturating_mul(useful)),
                )
            }
            Action::Defragment => {
                let stall = view.costs.stall.value()?;
                let short = view.batch.saturating_sub(view.free_huge.value()?);
                let useful = short.min(view.pool_used.value().unwrap_or(0));
                (
                    none.with(Term::Helper, self.helper(stall.saturating_mul(view.batch), view)),
                    none.with(Term::Allocation, stall.saturating_mul(useful)),
                )
            }
            _ => return None,
        };
        Some(Estimate { unit: Unit::Nanos, costs, benefits })
    }
}

//! A policy that measures itself: while a program grows, successive epochs of its growth go to different arms, and what
//! each costs here decides (successive elimination on a budget; see [`super::trials`] for the words).
//!
//! ```text
//!  first        fault-64k, if 32 such faults take at most half of what 512 base faults do here, or nobody has timed
//!               any; else base
//!  learning     epochs of the first arm < 2                ─► first: what it costs
//!               its faults < 3 % of what an epoch costs     ─► first: there is nothing to gain
//!  best         of the arms that beat the first, the one that costs least; else the first
//!  beats        all of a's costs are below all of b's, by a fifth from two epochs each, by anything from three
//!  out          an arm that another beats
//!  open         not the best, not out, with fewer epochs than the best and than eight
//!  promise      of an arm: what its epochs cost; of an untried one, what the best costs but for its faults as known
//!  dear         tried, and more than twice the best
//!  trial        of the open arms the most promising, if charged + risk x (size + 3) < 1 % of the time so far; a dear
//!               one only if none else is open, and within half of that
//!  stake        what its growth costs under the best arm, within the 1 %, what a region costs at the least: a trial
//!               that costs so much beyond the best ends at the next look
//!  decision     the trial, if there is one; else the best
//! ```
//!
//! *Risk* of an arm, a region: what it has cost beyond the best; of an untried one twice what its pages are known to
//! cost here from warm memory, or what they cost from cold memory if that is more, each less half of a region's base
//! faults, for growth was seen to be dense. At least a twentieth of what the best arm costs. A huge page that was never
//! seen cold is taken to cost [`COLD`] warm ones then. What nobody has timed is not tried.
//!
//! **Regret.** At each moment, with T the program's CPU time so far: what trials have cost beyond the best arm was at
//! most [`BUDGET`] x T before the last of them began, and that one was not expected to bring it above; if it did, it
//! has ended at the next look, a region's cost beyond the best or more. So exploring costs 1 % of T, a region's cost
//! and what the program takes between two looks (in which it grows by a region at least). Looking takes a part of the
//! time that whoever looks keeps to. An arm is judged wrongly for good only if its costs lie apart by chance: at most 1
//! in 20 where three epochs each are all on one side, and each doubling of T asks again, of a dear arm too. Until
//! something is known the program has what it would have had, or pages of 64 KiB where half of them would do.
//!
//! | goal | arms | a helper's time |
//! |---|---|---|
//! | throughput | all | half while a whole CPU is idle, all of it where half of one is or less |
//! | tail | without 2 MiB at a fault where that takes more than [`STALL`] | free while a CPU is idle |
//! | memory | base pages; 64 KiB at faults where base pages have touched all but 1 in 64 | no helper |
//!
//! Under `memory` each doubling of T begins with an epoch on base pages, which tells whether that is still so: what is
//! resident and not touched is at most what it has grown by since then, and a 64th else. Under `tail` an epoch that
//! waits longer is a trial, fewer than 1 in 1,000 once it has run for some thousand epochs.
//!
//! A helper has an arm only while three quarters of a CPU are idle. Pages of 2 MiB are credited with the page walks
//! that they spare later, modelled as in `cbmm+`: an epoch's own time holds few of them, or pages of 64 KiB, which
//! spare the same faults, would win each time.

use pagemill_model::page::PER_HUGE;

use super::account::{Account, Decision, Estimate, Term, Unit};
use super::action::{Action, Moment};
use super::kind::{Goal, Mechanism, Policy, ThpMode, TrialPolicy};
use super::trials::{KEPT, Tally, has_helper};
use super::view::{Figure, View};

/// Share of the program's CPU time that trials may cost, in thousandths.
pub const BUDGET: u64 = 10;
/// The longest that a fault may take where the tail is what counts, ns.
pub const STALL: u64 = 100_000;
/// Base epochs before anything else.
const LEARNED: usize = 2;
/// Faults that are a smaller share of what growth costs are not worth a look, in hundredths.
const FAULTS: u64 = 3;
/// An arm that cost more than so many times the best is tried last, and from one part in so many of the budget.
const DEAR: u64 = 2;
/// Epochs from which costs that lie apart say something, by a fifth and by anything.
const CLEAR: usize = 2;
const APART: usize = 3;
/// Regions by which an epoch is longer, about: what settles.
const SETTLING: u64 = 3;
/// Base faults that one of 64 KiB takes as long as, where that was not measured.
const MEDIUM: u64 = 5;
/// Warm huge pages that a cold one takes as long as at the least, where none was seen.
const COLD: u64 = 10;
/// Page walks that a base page on a huge page spares later, and what one costs where nobody has measured it, ns.
const REUSED: u64 = 4;
const WALK: u64 = 40;

/// The policy for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto(Goal);

impl Auto {
    /// The program's work is done with the least CPU time.
    pub const THROUGHPUT: Self = Self(Goal::Throughput);
    /// Its requests wait least.
    pub const TAIL: Self = Self(Goal::Tail);
    /// It takes no more memory than it touches.
    pub const MEMORY: Self = Self(Goal::Memory);
}

/// Hundredths of CPUs beyond all but one that are kept busy; `None` if nobody knows.
fn beyond_one(view: &View) -> Option<u64> {
    let others = view.cpus.saturating_sub(1).saturating_mul(100);
    view.load.value().map(|load| load.saturating_sub(others))
}

/// Regions of an epoch, what settles among them.
fn regions(view: &View) -> u64 {
    view.trials.size.saturating_add(SETTLING)
}

/// What a huge page costs besides zeroing it; `None` if nobody can tell.
fn stall(view: &View) -> Option<u64> {
    match view.free_huge {
        Figure::Absent => None,
        free if free.some() => Some(0),
        _ => view.costs.stall.value(),
    }
}

/// What a region takes in faults of 64 KiB from warm memory.
fn medium(view: &View) -> Option<u64> {
    let costs = &view.costs;
    let fault = costs.medium.value().or_else(|| costs.base.value()?.checked_mul(MEDIUM))?;
    Some(fault.saturating_mul(PER_HUGE / 16))
}

/// What a region of pages takes at most beyond half of the base faults that it spares, ns: from warm memory if they
/// cost twice as much as is known, and from cold memory. `cold`: what the region costs there.
fn excess(warm: u64, cold: Option<u64>, view: &View) -> Option<u64> {
    let base = view.costs.base.value()?;
    let beyond = |cost: u64, base: u64| cost.saturating_sub(base.saturating_mul(PER_HUGE / 2));
    let base_cold = view.costs.base_cold.value().unwrap_or(base);
    let cold = cold.map_or(0, |cold| beyond(cold, base_cold));
    Some(beyond(warm.saturating_mul(2), base).max(cold))
}

/// Page walks that an arm spares later, a region.
fn credit(action: Action, view: &View) -> u64 {
    if !action.makes_huge() {
        return 0;
    }
    (PER_HUGE * REUSED).saturating_mul(view.costs.walk.value().unwrap_or(WALK))
}

/// Whether all that an arm's epochs cost, less its credit, is below all that another's do.
fn beats(one: (Tally, u64), other: (Tally, u64)) -> bool {
    let ((tally, credit), (than, its)) = (one, other);
    let (Some(range), Some(others)) = (tally.range(), than.range()) else { return false };
    let (high, low) = (range.end().saturating_sub(credit), others.start().saturating_sub(its));
    match tally.epochs().min(than.epochs()) {
        APART.. => high < low,
        CLEAR.. => high < low / 5 * 4,
        _ => false,
    }
}

impl Auto {
    /// Whether an arm may be in force now.
    fn permits(self, action: Action, view: &View) -> bool {
        let idle = beyond_one(view).is_some_and(|busy| busy <= 25);
        let fits = match (self.0, action) {
            (_, Action::Base) => true,
            (Goal::Tail, Action::Fault2m) => {
                let zeroing = view.costs.huge.value().zip(stall(view));
                zeroing.is_some_and(|(took, stall)| took.saturating_add(stall) <= STALL)
            }
            (Goal::Memory, action) => action == Action::Fault64k && view.trials.whole,
            _ => true,
        };
        view.trials.tally(action).is_offered() && fits && (idle || !has_helper(action))
    }

    fn permitted(self, view: &View) -> impl Iterator<Item = Action> + use<'_> {
        super::trials::ARMS.into_iter().filter(move |action| self.permits(*action, view))
    }

    /// Costs of an arm and its credit.
    fn known(action: Action, view: &View) -> (Tally, u64) {
        (view.trials.tally(action), credit(action, view))
    }

    /// What a region costs under an arm, its credit taken off; `None` if it was not tried.
    fn score(action: Action, view: &View) -> Option<u64> {
        let (tally, credit) = Self::known(action, view);
        Some(tally.median()?.saturating_sub(credit))
    }

    /// The arm that the program began with, if that is still permitted.
    fn begun(self, view: &View) -> Action {
        let first = view.trials.first;
        if self.permits(first, view) { first } else { Action::Base }
    }

    /// Of the permitted arms that beat the first the one that costs least.
    fn best_of(self, view: &View) -> Action {
        let first = self.begun(view);
        let its = Self::known(first, view);
        let better = self.permitted(view).filter(|arm| beats(Self::known(*arm, view), its));
        better.min_by_key(|arm| Self::score(*arm, view)).unwrap_or(first)
    }

    /// Whether some permitted arm beats this one.
    fn is_out(self, action: Action, view: &View) -> bool {
        let its = Self::known(action, view);
        self.permitted(view).any(|arm| arm != action && beats(Self::known(arm, view), its))
    }

    /// Whether faults are enough of what growth costs that something could be gained.
    fn may_gain(self, view: &View) -> bool {
        let first = self.begun(view);
        let Some(cost) = view.trials.tally(first).median() else { return false };
        let base = view.costs.base_cold.value().or(view.costs.base.value());
        let faults = match first {
            Action::Fault64k => medium(view),
            _ => base.map(|base| base.saturating_mul(PER_HUGE)),
        };
        faults.is_some_and(|faults| faults >= cost / 100 * FAULTS)
    }

    /// What a trial of an arm may cost, ns a region; `None` if nobody can tell.
    fn risk(self, action: Action, view: &View) -> Option<u64> {
        let best = view.trials.tally(self.best_of(view)).median()?;
        if let Some(seen) = view.trials.tally(action).range() {
            return Some(seen.end().saturating_sub(best).max(best / 20));
        }
        let costs = &view.costs;
        let fetch = costs.fetch.value().unwrap_or(0);
        let huge = || {
            let stall = stall(view)?;
            let warm = costs.huge.value()?;
            let cold = costs.huge_cold.value().unwrap_or(warm.saturating_mul(COLD));
            excess(warm.saturating_add(stall), Some(cold.saturating_add(stall)), view)
        };
        let own = match action {
            // What is known of others counts half of these as spared.
            Action::Base => {
                costs.base_cold.value().or(costs.base.value())?.saturating_mul(PER_HUGE / 2)
            }
            Action::Fault64k => excess(medium(view)?, None, view)?,
            Action::Fault2m => huge()?,
            Action::Ahead64k => {
                excess(medium(view)?, None, view)?.saturating_add(fetch.saturating_mul(2))
            }
            Action::Ahead2m | Action::Pool => huge()?.saturating_add(fetch.saturating_mul(2)),
            _ => return None,
        };
        Some(own.max(best / 20))
    }

    /// The account of a trial.
    fn weighed(self, action: Action, is_dear: bool, view: &View) -> Option<Estimate> {
        let risk = self.risk(action, view)?.saturating_mul(regions(view));
        let budget = view.trials.spent / 1000 * BUDGET / if is_dear { DEAR } else { 1 };
        let costs = Account::new().with(Term::Charged, view.trials.charged).with(Term::Risk, risk);
        Some(Estimate {
            unit: Unit::Nanos,
            costs,
            benefits: Account::new().with(Term::Budget, budget),
        })
    }

    /// What the faults of a region are known to take under an arm, a helper's time at its price; `None` if nobody can
    /// tell.
    fn faults(self, action: Action, view: &View) -> Option<u64> {
        let costs = &view.costs;
        let medium = || medium(view);
        let huge = || costs.huge.value()?.checked_add(stall(view)?);
        let helped = |cost: u64| {
            let helper = cost.saturating_mul(self.helper_price(view)) / 1000;
            helper.saturating_add(costs.fetch.value().unwrap_or(0))
        };
        match action {
            Action::Base => costs.base.value().map(|base| base.saturating_mul(PER_HUGE)),
            Action::Fault64k => medium(),
            Action::Fault2m => huge(),
            Action::Ahead64k => medium().map(helped),
            _ => huge().map(helped),
        }
    }

    /// What a region is likely to cost under an arm, its credit taken off: what its epochs did, or what the best arm's
    /// do but for their faults. The second is in doubt where nobody can tell.
    fn promise(self, action: Action, best: Action, view: &View) -> u64 {
        Self::score(action, view).unwrap_or_else(|| {
            let taken = |arm| self.faults(arm, view).unwrap_or(u64::MAX / 4);
            let known = Self::score(best, view).unwrap_or(0);
            let more = known.saturating_add(taken(action)).saturating_add(credit(best, view));
            more.saturating_sub(taken(best).saturating_add(credit(action, view)))
        })
    }

    /// The arm that is to be tried next: the most promising one that the budget has room for; else one that it has no
    /// room for. What cost more than [`DEAR`] times the best comes last, and has a part of the budget only.
    fn next(self, view: &View) -> Option<(Action, Estimate)> {
        let epochs = |arm: Action| view.trials.tally(arm).epochs();
        if epochs(self.begun(view)) < LEARNED || !self.may_gain(view) {
            return None;
        }
        let best = self.best_of(view);
        let open = self.permitted(view).filter(|arm| {
            *arm != best && epochs(*arm) < KEPT.min(epochs(best)) && !self.is_out(*arm, view)
        });
        let dear = Self::score(best, view).map(|cost| cost.saturating_mul(DEAR));
        let weighed = open.filter_map(|arm| {
            let promise = self.promise(arm, best, view);
            let is_dear = epochs(arm) > 0 && dear.is_some_and(|dear| promise > dear);
            Some((is_dear, promise, arm, self.weighed(arm, is_dear, view)?))
        });
        let first = weighed.min_by_key(|(is_dear, promise, _, estimate)| {
            (*is_dear, !self.worth(estimate), *promise)
        });
        first.map(|(_, _, arm, estimate)| (arm, estimate))
    }

    /// What an arm costs beside the first.
    fn compared(self, action: Action, view: &View) -> Option<Estimate> {
        let first = self.begun(view);
        if action == first {
            let spared = Self::spared(view).filter(|estimate| self.worth(estimate));
            return spared.or(Some(Estimate::rule(1)));
        }
        let least = *view.trials.tally(first).range()?.start();
        let (tally, credit) = Self::known(action, view);
        let seen = *tally.range()?.end();
        Some(Estimate {
            unit: Unit::Nanos,
            costs: Account::new().with(Term::Seen, seen),
            benefits: Account::new().with(Term::First, least).with(Term::Walks, credit),
        })
    }

    /// What faults of 64 KiB take beside half of the base faults that they spare.
    fn spared(view: &View) -> Option<Estimate> {
        let half = view.costs.base.value()?.saturating_mul(PER_HUGE / 2);
        Some(Estimate {
            unit: Unit::Nanos,
            costs: Account::new().with(Term::Preparation, medium(view)?),
            benefits: Account::new().with(Term::Faults, half),
        })
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        match self.0 {
            Goal::Throughput => "auto",
            Goal::Tail => "auto-tail",
            Goal::Memory => "auto-memory",
        }
    }

    fn mechanism(&self) -> Mechanism {
        Mechanism {
            thp: ThpMode::Inherit,
            growth: &[Moment::Ahead],
            weighs_time: true,
            ..Mechanism::BESIDE
        }
    }

    fn tries(&self) -> Option<&dyn TrialPolicy> {
        Some(self)
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        if view.moment != Moment::Ahead || !self.permits(action, view) || action == Action::Base {
            return None;
        }
        let untried = view.trials.tally(action).epochs() == 0;
        let trial = self
            .next(view)
            .filter(|(next, estimate)| *next == action && (self.worth(estimate) || untried));
        trial.map(|(_, estimate)| estimate).or_else(|| self.compared(action, view))
    }

    /// A trial where one is due and the budget has room for it; else the best arm, compared with the first.
    fn decide(&self, view: &View) -> Decision {
        if view.moment != Moment::Ahead {
            return Decision::default();
        }
        let best = self.best_of(view);
        let next = self.next(view);
        if let Some((action, estimate)) = next.filter(|(_, estimate)| self.worth(estimate)) {
            return Decision { action, weighed: action, estimate };
        }
        let estimate = self.compared(best, view).filter(|estimate| self.worth(estimate));
        if let Some(estimate) = estimate.filter(|_| best != Action::Base) {
            return Decision { action: best, weighed: best, estimate };
        }
        // Turned down: what there is no room for yet, or the arm that came nearest.
        let tried = self.permitted(view).filter(|arm| *arm != Action::Base);
        let scored = tried.filter_map(|arm| Some((Self::score(arm, view)?, arm)));
        let nearest = scored.min_by_key(|(score, _)| *score);
        let turned = next.filter(|(action, _)| *action != Action::Base).or_else(|| {
            let (_, arm) = nearest?;
            self.compared(arm, view).map(|estimate| (arm, estimate))
        });
        match turned {
            Some((weighed, estimate)) if !self.worth(&estimate) => {
                Decision { action: Action::Base, weighed, estimate }
            }
            _ => Decision::default(),
        }
    }
}

impl TrialPolicy for Auto {
    fn first(&self, view: &View) -> Action {
        let cheap = view.costs.base.value().is_none()
            || Self::spared(view).is_some_and(|estimate| self.worth(&estimate));
        let fits = self.0 != Goal::Memory && self.permits(Action::Fault64k, view);
        if cheap && fits { Action::Fault64k } else { Action::Base }
    }

    fn best(&self, view: &View) -> Action {
        self.best_of(view)
    }

    /// As much again as its growth takes under the best arm, if the budget has room for that; at the least what a
    /// region takes: by less one look differs from the next, and a helper has gone ahead by more.
    fn stake(&self, _: Action, view: &View) -> u64 {
        let best = view.trials.tally(self.best_of(view)).median().unwrap_or(0);
        best.saturating_mul(regions(view)).min(self.room(view)).max(best)
    }

    fn room(&self, view: &View) -> u64 {
        (view.trials.spent / 1000 * BUDGET).saturating_sub(view.trials.charged)
    }

    fn waits(&self) -> bool {
        self.0 != Goal::Tail
    }

    fn helper_price(&self, view: &View) -> u64 {
        let taken = beyond_one(view).map_or(100, |busy| busy.min(50) * 2);
        match self.0 {
            Goal::Tail => taken * 10,
            Goal::Throughput | Goal::Memory => 500 + taken * 5,
        }
    }

    fn with_goal(&self, goal: Goal) -> &'static dyn Policy {
        match goal {
            Goal::Throughput => &Self::THROUGHPUT,
            Goal::Tail => &Self::TAIL,
            Goal::Memory => &Self::MEMORY,
        }
    }
}

#[cfg(test)]
mod tests;

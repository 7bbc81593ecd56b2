//! A policy that measures itself: while a program grows, successive pieces of its growth go to different arms, and what
//! each costs here decides (successive elimination on a budget; see [`super::trials`] for the words).
//!
//! ```text
//!  one look     base pieces < 2                       ─► base: what being left alone costs
//!               faults < 3 % of what a piece costs    ─► base: there is nothing to gain
//!  best         of the arms that beat base, the one that costs least; else base
//!  beats        all of a's costs are below all of b's, by a fifth from two pieces each, by anything from three
//!  out          an arm that another beats
//!  trial        the arm with the fewest pieces that is not out, if charged + risk x (size + 3) < 1 % of the time so far
//!  decision     the trial, if there is one; else the best
//! ```
//!
//! *Risk* of an arm, a region: twice what its pages are known to cost here, less half of a region's base faults, for
//! growth was seen to be dense (warm or cold costs, by what base pieces cost); at least a twentieth of a base piece; and
//! where it was tried, what it has cost beyond the best.
//!
//! **Regret.** At each moment, with T the program's CPU time so far: what trials have cost beyond the best arm was at
//! most [`BUDGET`] x T before the last of them began, and that one was not expected to bring it above. So exploring
//! costs 1 % of T and what a single piece (4 to 64 regions and what settles) may cost beyond its risk. An arm is judged
//! wrongly for good only if its costs lie apart by chance: at most 1 in 20 where three pieces each are all on one side,
//! and each doubling of T asks again. Until the first decision the program has what it would have had.
//!
//! | goal | arms | a helper's time |
//! |---|---|---|
//! | throughput | all | half while a whole CPU is idle, all of it where half of one is or less |
//! | tail | without 2 MiB at a fault where that takes more than [`STALL`] | free while a CPU is idle |
//! | memory | those without pages of 2 MiB | as for throughput |
//!
//! A helper has an arm only while three quarters of a CPU are idle. Pages of 2 MiB are credited with the page walks
//! that they spare later, modelled as in `cbmm+`: a piece's own time holds few of them, and else pages of 64 KiB, which
//! spare the same faults, would win each time.

use pagemill_model::page::PER_HUGE;

use super::trials::{KEPT, Tally, has_helper};
use super::{
    Account, Action, Decision, Estimate, Figure, Given, Goal, Means, Moment, Policy, Term, Tries,
    Unit, View,
};

/// Share of the program's CPU time that trials may cost, in thousandths.
pub const BUDGET: u64 = 10;
/// The longest that a fault may take where the tail is what counts, ns.
pub const STALL: u64 = 100_000;
/// Base pieces before anything else.
const LEARNED: usize = 2;
/// Faults that are a smaller share of what growth costs are not worth a look, in hundredths.
const FAULTS: u64 = 3;
/// Pieces from which costs that lie apart say something, by a fifth and by anything.
const CLEAR: usize = 2;
const APART: usize = 3;
/// Regions by which a piece is longer, about: what settles.
const SETTLING: u64 = 3;
/// Base faults that one of 64 KiB takes as long as, where that was not measured.
const MEDIUM: u64 = 5;
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

/// Whether memory is cold now, by what growing on base pages costs: half of the pages or more, and not so much that it
/// is the program's own work.
fn is_cold(view: &View) -> bool {
    let alone = view.trials.tally(Action::Base).median();
    let cold = view.costs.base_cold.value();
    alone.zip(cold).is_some_and(|(alone, cold)| {
        let whole = PER_HUGE.saturating_mul(cold);
        (whole / 2..whole.saturating_mul(2)).contains(&alone)
    })
}

/// What a base fault costs now.
fn base(view: &View) -> Option<u64> {
    let costs = &view.costs;
    if is_cold(view) { costs.base_cold.value() } else { costs.base.value() }
}

/// What a huge page costs now, whoever waits for it.
fn huge(view: &View) -> Option<u64> {
    let costs = &view.costs;
    let zeroing = if is_cold(view) { costs.huge_cold.value()? } else { costs.huge.value()? };
    let stall = match view.free_huge {
        Figure::Absent => return None,
        free if free.some() => 0,
        _ => costs.stall.value()?,
    };
    Some(zeroing.saturating_add(stall))
}

/// What a region of pages of 64 KiB costs now.
fn medium(view: &View) -> Option<u64> {
    let figure = view.costs.medium.value().filter(|_| !is_cold(view));
    Some(figure.or_else(|| base(view)?.checked_mul(MEDIUM))?.saturating_mul(PER_HUGE / 16))
}

/// Page walks that an arm spares later, a region.
fn credit(action: Action, view: &View) -> u64 {
    if !action.makes_huge() {
        return 0;
    }
    (PER_HUGE * REUSED).saturating_mul(view.costs.walk.value().unwrap_or(WALK))
}

/// Whether all that an arm's pieces cost, less its credit, is below all that another's do.
fn beats(one: (Tally, u64), other: (Tally, u64)) -> bool {
    let ((tally, credit), (than, its)) = (one, other);
    let (Some((_, high)), Some((low, _))) = (tally.range(), than.range()) else { return false };
    let (high, low) = (high.saturating_sub(credit), low.saturating_sub(its));
    match tally.pieces().min(than.pieces()) {
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
            (Goal::Tail, Action::Fault2m) => huge(view).is_some_and(|took| took <= STALL),
            (Goal::Memory, action) => !action.makes_huge(),
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

    /// Of the permitted arms that beat being left alone the one that costs least.
    fn best_of(self, view: &View) -> Action {
        let alone = Self::known(Action::Base, view);
        let better = self.permitted(view).filter(|arm| beats(Self::known(*arm, view), alone));
        better.min_by_key(|arm| Self::score(*arm, view)).unwrap_or(Action::Base)
    }

    /// Whether some permitted arm beats this one.
    fn is_out(self, action: Action, view: &View) -> bool {
        let its = Self::known(action, view);
        self.permitted(view).any(|arm| arm != action && beats(Self::known(arm, view), its))
    }

    /// Whether faults are enough of what growth costs that something could be gained.
    fn may_gain(view: &View) -> bool {
        let Some(alone) = view.trials.tally(Action::Base).median() else { return false };
        base(view).is_some_and(|base| PER_HUGE.saturating_mul(base) >= alone / 100 * FAULTS)
    }

    /// What a trial of an arm may cost, ns a region; `None` if nobody can tell.
    fn risk(self, action: Action, view: &View) -> Option<u64> {
        let alone = view.trials.tally(Action::Base).median()?;
        let fetch = view.costs.fetch.value().unwrap_or(0);
        let own = match action {
            Action::Base => 0,
            Action::Fault64k => medium(view)?,
            Action::Fault2m => huge(view)?,
            Action::Ahead64k => medium(view)?.saturating_add(fetch),
            Action::Ahead2m | Action::Pool => huge(view)?.saturating_add(fetch),
            _ => return None,
        };
        let spared = (PER_HUGE / 2).saturating_mul(base(view)?);
        let known = own.saturating_mul(2).saturating_sub(spared).max(alone / 20);
        let seen = view.trials.tally(action).range().map_or(0, |(_, high)| high);
        let best = view.trials.tally(self.best_of(view)).median().unwrap_or(alone);
        Some(known.max(seen.saturating_sub(best)))
    }

    /// The account of a trial.
    fn weighed(self, action: Action, view: &View) -> Option<Estimate> {
        let risk = self.risk(action, view)?.saturating_mul(view.trials.size + SETTLING);
        let budget = view.trials.spent / 1000 * BUDGET;
        let costs = Account::new().with(Term::Charged, view.trials.charged).with(Term::Risk, risk);
        Some(Estimate {
            unit: Unit::Nanos,
            costs,
            benefits: Account::new().with(Term::Budget, budget),
        })
    }

    /// The arm that is to be tried next: of those that the budget has room for the one with the fewest pieces; else one
    /// that it has no room for.
    fn next(self, view: &View) -> Option<(Action, Estimate)> {
        let pieces = |arm: Action| view.trials.tally(arm).pieces();
        if pieces(Action::Base) < LEARNED || !Self::may_gain(view) {
            return None;
        }
        let best = self.best_of(view);
        let open = self.permitted(view).filter(|arm| {
            *arm != best && pieces(*arm) < KEPT.min(pieces(best)) && !self.is_out(*arm, view)
        });
        let weighed = open.filter_map(|arm| Some((arm, self.weighed(arm, view)?)));
        weighed.min_by_key(|(arm, estimate)| (!self.worth(estimate), pieces(*arm)))
    }

    /// What an arm costs beside being left alone.
    fn compared(action: Action, view: &View) -> Option<Estimate> {
        let (alone, _) = view.trials.tally(Action::Base).range()?;
        let (tally, credit) = Self::known(action, view);
        let (_, seen) = tally.range()?;
        Some(Estimate {
            unit: Unit::Nanos,
            costs: Account::new().with(Term::Seen, seen),
            benefits: Account::new().with(Term::Alone, alone).with(Term::Walks, credit),
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

    fn means(&self) -> Means {
        Means { given: Given::System, growth: &[Moment::Ahead], weighs_time: true, ..Means::BESIDE }
    }

    fn tries(&self) -> Option<&dyn Tries> {
        Some(self)
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        if view.moment != Moment::Ahead || !self.permits(action, view) || action == Action::Base {
            return None;
        }
        let untried = view.trials.tally(action).pieces() == 0;
        let trial = self
            .next(view)
            .filter(|(next, estimate)| *next == action && (self.worth(estimate) || untried));
        trial.map(|(_, estimate)| estimate).or_else(|| Self::compared(action, view))
    }

    /// A trial where one is due and the budget has room for it; else the best arm, compared with being left alone.
    fn decide(&self, view: &View) -> Decision {
        if view.moment != Moment::Ahead {
            return Decision::default();
        }
        let best = self.best_of(view);
        let next = self.next(view);
        if let Some((action, estimate)) = next.filter(|(_, estimate)| self.worth(estimate)) {
            return Decision { action, weighed: action, estimate };
        }
        if best != Action::Base {
            let estimate = Self::compared(best, view).unwrap_or_default();
            return Decision { action: best, weighed: best, estimate };
        }
        // Turned down: what there is no room for yet, or the arm that came nearest.
        let tried = self.permitted(view).filter(|arm| *arm != Action::Base);
        let scored = tried.filter_map(|arm| Some((Self::score(arm, view)?, arm)));
        let nearest = scored.min_by_key(|(score, _)| *score);
        let turned = next.filter(|(action, _)| *action != Action::Base).or_else(|| {
            let (_, arm) = nearest?;
            Self::compared(arm, view).map(|estimate| (arm, estimate))
        });
        match turned {
            Some((weighed, estimate)) if !self.worth(&estimate) => {
                Decision { action: Action::Base, weighed, estimate }
            }
            _ => Decision::default(),
        }
    }
}

impl Tries for Auto {
    fn best(&self, view: &View) -> Action {
        self.best_of(view)
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

//! What an action costs and brings, and what was decided of it: the why of a decision.

use std::fmt;

use pagemill_model::named;

use super::action::Action;

named! {
    /// Unit of costs and benefits. Only amounts of one unit are ever compared.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Unit {
        /// Cycles of the processor, as in the published profiles.
        Cycles = "cycles",
        /// Nanoseconds.
        #[default]
        Nanos = "ns",
        /// A rule without a price: one side is 1, or a rank.
        Rule = "rule",
    }
}

named! {
    /// What an amount in an account is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Term {
        /// The policy's rule, which has no price.
        Rule = "rule",
        /// Page walks that the program is spared, by the profile.
        Walks = "walks",
        /// Base faults that the program is spared.
        Faults = "faults",
        /// Getting a block of the right size.
        Allocation = "allocation",
        /// Zeroing or copying.
        Preparation = "preparation",
        /// Putting a page of the pool in place.
        Delivery = "delivery",
        /// Time of a helper that others could have used.
        Helper = "helper",
        /// Fetching what was provided from another cache, or from memory.
        Fetch = "fetch",
        /// Memory that would be resident and unused.
        Bloat = "bloat",
        /// Memory given back.
        Freed = "freed",
        /// The published allowance for eager paging.
        Allowance = "allowance",
        /// What growth costs under the action that a program began with, at the least of what was seen.
        First = "first",
        /// What it costs under the action, nearly at the most of what was seen.
        Seen = "seen",
        /// What trials may cost.
        Budget = "budget",
        /// What they have cost.
        Charged = "charged",
        /// What one more may cost.
        Risk = "risk",
    }
}

/// Named amounts that add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    terms: [Option<(Term, u64)>; 4],
}

impl Account {
    /// An empty account.
    #[must_use]
    pub const fn new() -> Self {
        Self { terms: [None; 4] }
    }

    /// The account with one more amount. A fifth one is added to the fourth.
    #[must_use]
    pub fn with(mut self, term: Term, amount: u64) -> Self {
        match self.terms.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some((term, amount)),
            None => {
                if let Some((_, last)) = &mut self.terms[3] {
                    *last = last.saturating_add(amount);
                }
            }
        }
        self
    }

    /// What the amounts add up to.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.terms().fold(0, |sum, (_, amount)| sum.saturating_add(amount))
    }

    /// The amounts.
    pub fn terms(&self) -> impl Iterator<Item = (Term, u64)> {
        self.terms.into_iter().flatten()
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (term, amount) in self.terms() {
            write!(f, "{}{} {amount}", if first { "" } else { " + " }, term.name())?;
            first = false;
        }
        if first { f.write_str("nothing") } else { Ok(()) }
    }
}

/// What an action costs and brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Unit of both accounts.
    pub unit: Unit,
    /// What it costs.
    pub costs: Account,
    /// What it brings.
    pub benefits: Account,
}

impl Estimate {
    /// Total of the costs.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.costs.total()
    }

    /// Total of the benefits.
    #[must_use]
    pub fn benefit(&self) -> u64 {
        self.benefits.total()
    }

    /// What it brings beyond its cost; zero if it costs more.
    #[must_use]
    pub fn gain(&self) -> u64 {
        self.benefit().saturating_sub(self.cost())
    }

    /// A rule that speaks for an action (with this rank, at least 1) or against it (0).
    #[must_use]
    pub fn rule(rank: u64) -> Self {
        let none = Account::new();
        let (costs, benefits) = match rank {
            0 => (none.with(Term::Rule, 1), none),
            rank => (none, none.with(Term::Rule, rank)),
        };
        Self { unit: Unit::Rule, costs, benefits }
    }
}

/// What was decided, and its estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// The action that the estimate is of: `action`, or the best one that was turned down.
    pub weighed: Action,
    /// Why.
    pub estimate: Estimate,
}

/// `ahead-2m: walks 41534456 + faults 614400 > helper 22000 (ns)`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, weighed, estimate } = self;
        if *weighed == Action::Base {
            return f.write_str("base: nothing to weigh");
        }
        let verdict = if *action == Action::Base { "base, not " } else { "" };
        let than = if *action == Action::Base { "<=" } else { ">" };
        let Estimate { unit, costs, benefits } = estimate;
        write!(f, "{verdict}{}: {benefits} {than} {costs} ({})", weighed.name(), unit.name())
    }
}

//! Which memory should be on huge pages, when, and by which means: a *policy* compares what an *action*
//! costs with what it brings, for one *region* of 2 MiB at one *moment*.
//!
//! ```text
//!   View ──► Policy::estimate(action, view) ──► Estimate { costs, benefits }
//!     │                                              │ Policy::worth
//!     └────► Policy::decide(view) ◄──────────────────┘   the worthwhile action that gains most
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | region | 2 MiB of address space, aligned: 512 base pages of 4 KiB |
//! | moment | why a decision is due: the program faults, memory is mapped, a scan passes by, the machine is idle |
//! | figure | a number with its provenance: measured, modelled, or absent |
//! | pool | huge pages that are zeroed and wait to be delivered |
//! | cold | memory that the host takes a fault to provide (a balloon, free page reporting) |
//! | account | named amounts that add up to a cost or a benefit; printed, they are the why of a decision |
//!
//! All numbers are unsigned integers, so a recorded view gives the decision again, bit for bit. Nothing in
//! this directory but [`profile`] allocates, and nothing depends on another crate.
//!
//! Always so: a decision is a function of policy and view; an absent figure is never used as a zero that
//! speaks for an action; whatever is decided was estimated as worth it, or is [`Action::Base`].

pub mod auto;
pub mod cbmm;
pub mod cbmm_plus;
pub mod hawkeye;
pub mod ingens;
pub mod linux;
pub mod profile;
#[cfg(test)]
mod tests;
pub mod trials;

use std::fmt;

use pagemill_model::named;
use trials::Trials;

/// A number and where it comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Figure {
    /// Nobody knows. Never to be read as zero.
    #[default]
    Absent,
    /// Seen on the machine that the decision is for.
    Measured(u64),
    /// Computed, assumed or taken from a profile of another run.
    Modelled(u64),
}

impl Figure {
    /// The number, unless it is absent.
    #[must_use]
    pub const fn value(self) -> Option<u64> {
        match self {
            Self::Absent => None,
            Self::Measured(value) | Self::Modelled(value) => Some(value),
        }
    }

    /// Whether it is known and not zero.
    #[must_use]
    pub fn some(self) -> bool {
        self.value().is_some_and(|value| value > 0)
    }
}

named! {
    /// Part of an address space, in the words of the profile.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Section {
        /// The program's text.
        Code = "code",
        /// The program's initialised and zeroed data.
        Data = "data",
        /// What `brk` grows.
        Heap = "heap",
        /// Everything else that is mapped.
        #[default]
        Mmap = "mmap",
    }
}

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
    /// Why a decision is due.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Moment {
        /// The program touches the region for the first time and waits.
        #[default]
        Fault = "fault",
        /// The region is mapped and not touched yet; a helper has time.
        Ahead = "ahead",
        /// A scan in the background looks at a region that is in use.
        Scan = "scan",
        /// Nothing in particular: what may be done for later?
        Idle = "idle",
    }
}

impl Moment {
    /// What can be done at this moment besides nothing, cheapest means first; of equal gains the first wins.
    #[must_use]
    pub const fn actions(self) -> &'static [Action] {
        match self {
            Self::Fault => &[Action::Pool, Action::Huge],
            Self::Ahead => &[
                Action::Fault64k,
                Action::Fault2m,
                Action::Ahead4k,
                Action::Ahead64k,
                Action::Ahead2m,
            ],
            Self::Scan => &[Action::Collapse, Action::Demote],
            Self::Idle => &[Action::Prezero, Action::Defragment],
        }
    }
}

named! {
    /// What can be done with a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Action {
        /// Nothing: the program's faults bring base pages.
        #[default]
        Base = "base",
        /// The fault takes a huge page and zeroes it while the program waits.
        Huge = "huge",
        /// A huge page of the pool is put in place.
        Pool = "pool",
        /// A helper touches the base pages before the program does.
        Ahead4k = "ahead-4k",
        /// The same with pages of 64 KiB.
        Ahead64k = "ahead-64k",
        /// A helper has the region backed by a huge page before the program touches it.
        Ahead2m = "ahead-2m",
        /// The kernel is asked to bring 64 KiB at each of the program's faults there.
        Fault64k = "fault-64k",
        /// The kernel is asked to bring huge pages at the program's faults there.
        Fault2m = "fault-2m",
        /// A helper copies the base pages in use into a huge page.
        Collapse = "collapse",
        /// The huge page is split and pages that hold only zeros are given back.
        Demote = "demote",
        /// Huge pages are zeroed for the pool.
        Prezero = "prezero",
        /// Memory is compacted so that huge pages become free.
        Defragment = "defragment",
    }
}

impl Action {
    /// Whether the region is on a huge page after it.
    #[must_use]
    pub const fn makes_huge(self) -> bool {
        matches!(self, Self::Huge | Self::Pool | Self::Ahead2m | Self::Fault2m | Self::Collapse)
    }
}

/// What the mechanisms cost on a machine, nanoseconds each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// A fault that brings a base page, warm memory.
    pub base: Figure,
    /// The same from cold memory.
    pub base_cold: Figure,
    /// A fault that brings 64 KiB at once, warm memory.
    pub medium: Figure,
    /// A fault that brings a huge page, warm memory and a free block.
    pub huge: Figure,
    /// The same from cold memory.
    pub huge_cold: Figure,
    /// Collapsing 512 base pages into a huge page.
    pub collapse: Figure,
    /// Putting a huge page of the pool in place.
    pub deliver: Figure,
    /// What a huge page allocation waits for when no block is free: compaction, reclaim.
    pub stall: Figure,
    /// What filling a whole region takes longer where another thread has provided it: it is in another cache, or in
    /// none.
    pub fetch: Figure,
    /// What a memory reference beyond the reach of the TLB takes longer on base pages.
    pub walk: Figure,
}

/// Everything a policy may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Why a decision is due.
    pub moment: Moment,
    /// First address of the region.
    pub address: u64,
    /// The section that it lies in.
    pub section: Section,
    /// Whether the region is on a huge page now.
    pub huge: bool,
    /// Whether the program asked for huge pages here (`MADV_HUGEPAGE`).
    pub advised: bool,
    /// CPUs online.
    pub cpus: u64,
    /// Cycles in a microsecond.
    pub mhz: u64,
    /// Regions that an action at [`Moment::Idle`] would be for.
    pub batch: u64,
    /// Base pages of the region that are present.
    pub present: Figure,
    /// Base pages that will have been touched in the end, those that are present included.
    pub expected: Figure,
    /// Base pages accessed in the last window of sampling.
    pub accessed: Figure,
    /// Present base pages that hold only zeros.
    pub zeros: Figure,
    /// Benefit of a huge page by the profile, in `unit`.
    pub profile_huge: Figure,
    /// Benefit of eager paging by the profile, in `unit`.
    pub profile_eager: Figure,
    /// Unit of the profile.
    pub unit: Unit,
    /// Free blocks of order 9 and above.
    pub free_huge: Figure,
    /// Huge pages in the pool.
    pub pool: Figure,
    /// Huge pages that were taken from the pool of late.
    pub pool_used: Figure,
    /// Load average of the last minute, in hundredths.
    pub load: Figure,
    /// Unusable free space index at order 9, in thousandths.
    pub unusable: Figure,
    /// Share of memory in use, in thousandths.
    pub used: Figure,
    /// Share of the process's resident memory that was never touched, in thousandths.
    pub bloat: Figure,
    /// Chance that fresh memory is cold, in thousandths.
    pub cold: Figure,
    /// How fast the process's memory grows, bytes a millisecond.
    pub growth: Figure,
    /// What the mechanisms cost here.
    pub costs: Costs,
    /// What trying them on this program has cost.
    pub trials: Trials,
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

/// Where the kernel gives huge pages under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// At every first touch.
    Everywhere,
    /// Where the system's own setting says.
    System,
    /// Where `MADV_HUGEPAGE` was said.
    Advised,
    /// The same, and elsewhere pages of 64 KiB at every first touch.
    Medium,
    /// Nowhere.
    Nowhere,
}

/// When a policy looks at which pages are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// Never.
    Never,
    /// Now and then.
    Always,
    /// Where a profile says what a huge page brings.
    WithProfile,
}

/// How a policy is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// Where the kernel gives huge pages by itself.
    pub given: Given,
    /// Whether that is all of it.
    pub by_kernel: bool,
    /// The moments at which it is asked about a region that grows, in turn.
    pub growth: &'static [Moment],
    /// When it looks at which pages are there.
    pub scans: Scans,
    /// Whether it looks into a profile.
    pub profile: bool,
    /// Whether it weighs measured times, and may choose pages of 64 KiB.
    pub weighs_time: bool,
}

impl Means {
    /// Of a policy that runs beside the kernel's `madvise` and does nothing of its own.
    pub const BESIDE: Self = Self {
        given: Given::Advised,
        by_kernel: false,
        growth: &[],
        scans: Scans::Never,
        profile: false,
        weighs_time: false,
    };

    /// Whether it looks at which pages are there, with a profile or without one.
    #[must_use]
    pub fn scans_with(&self, profile: bool) -> bool {
        match self.scans {
            Scans::Never => false,
            Scans::Always => true,
            Scans::WithProfile => profile,
        }
    }
}

named! {
    /// What is to be gained.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Goal {
        /// The program's work is done with the least CPU time.
        #[default]
        Throughput = "throughput",
        /// Its requests wait least.
        Tail = "tail",
        /// It takes no more memory than it touches.
        Memory = "memory",
    }
}

/// What a policy that tries actions on a program's growth says besides; [`trials`] has the words.
pub trait Tries {
    /// The arm that a program begins with, of which nothing is known but what the mechanisms cost.
    fn first(&self, view: &View) -> Action;

    /// The arm that is best by what is known.
    fn best(&self, view: &View) -> Action;

    /// What a trial of this arm may cost beyond the best before it ends early, ns.
    fn stake(&self, action: Action, view: &View) -> u64;

    /// Whether who carries it out may wait until a program has grown and worked for some time.
    fn waits(&self) -> bool;

    /// What a helper's time counts beside the program's, in thousandths.
    fn helper_price(&self, view: &View) -> u64;

    /// The same policy with another goal.
    fn with_goal(&self, goal: Goal) -> &'static dyn Policy;
}

/// A huge page policy.
pub trait Policy: fmt::Debug + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// How it is carried out.
    fn means(&self) -> Means;

    /// What `action` would cost and bring; `None` if the policy never takes it, or cannot tell.
    fn estimate(&self, action: Action, view: &View) -> Option<Estimate>;

    /// How it tries actions, if it does.
    fn tries(&self) -> Option<&dyn Tries> {
        None
    }

    /// Whether an action with this estimate should be taken.
    fn worth(&self, estimate: &Estimate) -> bool {
        estimate.benefit() > estimate.cost()
    }

    /// The action at this moment that is worth it and gains most; [`Action::Base`] if none is.
    fn decide(&self, view: &View) -> Decision {
        let mut best = Decision::default();
        for action in view.moment.actions() {
            let Some(estimate) = self.estimate(*action, view) else { continue };
            let worth = self.worth(&estimate);
            let taken = best.action != Action::Base;
            let better = match (worth, taken) {
                (true, false) => true,
                (true, true) => estimate.gain() > best.estimate.gain(),
                (false, true) => false,
                (false, false) => best.weighed == Action::Base,
            };
            if better {
                let decided = if worth { *action } else { Action::Base };
                best = Decision { action: decided, weighed: *action, estimate };
            }
        }
        best
    }
}

/// Every policy, in the order of the documentation. To add one: its file, and its line here.
pub static POLICIES: &[&dyn Policy] = &[
    &linux::Linux::Always,
    &linux::Linux::Madvise,
    &linux::Linux::Medium,
    &linux::Linux::Never,
    &ingens::Ingens::PUBLISHED,
    &hawkeye::Hawkeye::PUBLISHED,
    &cbmm::Cbmm,
    &cbmm_plus::CbmmPlus::USUAL,
    &auto::Auto::THROUGHPUT,
    &auto::Auto::TAIL,
    &auto::Auto::MEMORY,
];

/// The names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name())
}

/// The policy of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

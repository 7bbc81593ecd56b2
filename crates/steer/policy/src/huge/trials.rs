//! What is known of the ways to back a program's growth from having tried them on this program, here and now.
//!
//! ```text
//!  growth   ──base──┬──base──┬─settling─┬──fault-64k──┬─settling─┬──fault-2m──┬─ …      an epoch each
//!                   ▼        ▼                        ▼                       ▼
//!  counters ──► Course::advance: cost of the epoch ──► Trials, in the view ──► Policy::decide ──► Course::begin
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | arm | an action for growth that can be tried: one of [`ARMS`] |
//! | epoch | so much growth in a row under one arm: `size` regions or a little more |
//! | cost | of an epoch: what the program's threads and the helper took of CPUs in it, ns a region |
//! | tally | the costs of an arm's last [`KEPT`] epochs |
//! | settling | after a change of arm the growth that still finds what the last one has provided; it counts for none |
//! | trial | an epoch under another arm than the one that is best |
//! | stake | what a trial may cost beyond the best: the look that finds more ends it, with what it has cost by then |
//! | charged | what epochs under other arms than the one that was best have cost more than that one, so far |
//!
//! A decision stays a function of its view: all that a policy may remember is in [`Trials`], which is plain numbers and
//! one column of a recording. [`Course`] makes it from counters, live and in the simulator.
//!
//! Always so (tested): a tally holds what was measured under its own arm only; settling is in no tally, but for that of
//! a trial that ends in it; a trial is charged its stake and what a look brings at most, if a region has grown by then;
//! what is charged never shrinks; [`Trials`] is read back from its text as it was.

use std::fmt;
use std::ops::RangeInclusive;

use pagemill_model::page::HUGE;

use super::action::Action;

/// The arms, those without a helper first.
pub const ARMS: [Action; 6] = [
    Action::Base,
    Action::Fault64k,
    Action::Fault2m,
    Action::Ahead2m,
    Action::Ahead64k,
    Action::Pool,
];

/// Epochs of an arm that are remembered.
pub const KEPT: usize = 8;

/// Regions of an epoch, least and most.
pub const SIZES: RangeInclusive<u64> = 4..=64;

/// Of an arm that is not in force so many epochs stay known when the program's time has doubled.
const AGED: usize = 1;
/// And so many of the one that the program began with.
const COMPARED: usize = 3;

/// Growth is dense where at least one page in so many becomes resident.
const DENSE: u64 = 2;
/// And touched as a whole, where one in so many is not.
const WHOLE: u64 = 64;

/// The place of an arm in [`ARMS`]; `None` if it is none.
#[must_use]
pub fn arm(action: Action) -> Option<usize> {
    ARMS.iter().position(|arm| *arm == action)
}

/// Whether a helper works under an arm.
#[must_use]
pub const fn has_helper(action: Action) -> bool {
    matches!(action, Action::Ahead2m | Action::Ahead64k | Action::Pool)
}

/// Costs of an arm's last epochs, ns a region, the newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    offered: bool,
    len: usize,
    costs: [u64; KEPT],
}

impl Tally {
    /// Whether the arm can be carried out here.
    #[must_use]
    pub const fn is_offered(&self) -> bool {
        self.offered
    }

    /// Epochs that it knows.
    #[must_use]
    pub const fn epochs(&self) -> usize {
        self.len
    }

    /// One more epoch; beyond [`KEPT`] the oldest goes.
    pub fn add(&mut self, cost: u64) {
        self.costs.rotate_right(1);
        self.costs[0] = cost;
        self.len = (self.len + 1).min(KEPT);
    }

    /// Forgets all but the newest.
    fn keep(&mut self, most: usize) {
        self.len = self.len.min(most);
        self.costs[self.len..].fill(0);
    }

    fn sorted(&self) -> ([u64; KEPT], usize) {
        let mut costs = self.costs;
        costs[..self.len].sort_unstable();
        (costs, self.len)
    }

    /// The cost in the middle, the higher of two; `None` without an epoch.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        let (costs, len) = self.sorted();
        (len > 0).then(|| costs[len / 2])
    }

    /// The lowest and the highest cost, one in four left out at the top: a program that does something else for a
    /// while costs more then under any arm.
    #[must_use]
    pub fn range(&self) -> Option<RangeInclusive<u64>> {
        let (costs, len) = self.sorted();
        (len > 0).then(|| costs[0]..=costs[len - 1 - len / 4])
    }
}

/// All that a policy may remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trials {
    tallies: [Tally; ARMS.len()],
    /// The arm that the program began with.
    pub first: Action,
    /// CPU time that the program has taken, ns.
    pub spent: u64,
    /// What trials have cost, ns.
    pub charged: u64,
    /// Regions of the next epoch.
    pub size: u64,
    /// Whether epochs on base pages have touched all that they grew by, but for one page in [`WHOLE`].
    pub whole: bool,
}

impl Trials {
    /// Nothing is known of these arms.
    #[must_use]
    pub fn of(offered: impl Fn(Action) -> bool) -> Self {
        let mut trials = Self { size: *SIZES.start(), ..Self::default() };
        trials.offer(offered);
        trials
    }

    /// The same of a program that begins with an arm.
    #[must_use]
    pub const fn beginning_with(mut self, first: Action) -> Self {
        self.first = first;
        self
    }

    /// Takes over what earlier runs of the same program have taught of the arms that can be carried out, the last
    /// [`COMPARED`] epochs of each, how much time it had taken by then and what trials had cost.
    pub fn resume(&mut self, earlier: &Self) {
        for (tally, before) in self.tallies.iter_mut().zip(earlier.tallies) {
            if tally.offered {
                *tally = Tally { offered: true, ..before };
                tally.keep(COMPARED);
            }
        }
        (self.spent, self.charged) = (earlier.spent, earlier.charged);
    }

    /// The same with nothing known of what an arm costs.
    #[must_use]
    pub fn forgetting(mut self, action: Action) -> Self {
        if let Some(tally) = self.tally_mut(action) {
            tally.keep(0);
        }
        self
    }

    /// The same with nothing known of what any arm costs.
    #[must_use]
    pub fn forgetting_arms(self) -> Self {
        ARMS.into_iter().fold(self, Self::forgetting)
    }

    /// The same without the time that was taken: for a second process of a run, which has no budget of its own from
    /// earlier ones.
    #[must_use]
    pub const fn without_time(mut self) -> Self {
        (self.spent, self.charged) = (0, 0);
        self
    }

    /// Says which arms can be carried out from now on. Nothing but leaving the program alone always can.
    pub fn offer(&mut self, offered: impl Fn(Action) -> bool) {
        for (tally, action) in self.tallies.iter_mut().zip(ARMS) {
            tally.offered = action == Action::Base || offered(action);
        }
    }

    /// The tally of an arm; an empty one of what is no arm.
    #[must_use]
    pub fn tally(&self, action: Action) -> Tally {
        arm(action).map_or(Tally::default(), |at| self.tallies[at])
    }

    /// The same, to be changed; `None` of what is no arm.
    pub fn tally_mut(&mut self, action: Action) -> Option<&mut Tally> {
        arm(action).map(|at| &mut self.tallies[at])
    }

    /// The arms that can be carried out here.
    pub fn offered(&self) -> impl Iterator<Item = Action> + use<'_> {
        ARMS.into_iter().filter(|action| self.tally(*action).offered)
    }

    /// Forgets most of what was known of the arms but the best: the program and the memory that it gets have changed.
    fn age(&mut self, best: Action) {
        let first = self.first;
        self.whole = false;
        for (tally, action) in self.tallies.iter_mut().zip(ARMS) {
            if action != best {
                // Without some of what it began with there is nothing to compare with.
                tally.keep(if action == first { COMPARED } else { AGED });
            }
        }
    }
}

/// `spent 31000000 charged 120000 size 8 first base whole; base 912000 880000; fault-64k 640000; fault-2m`: the offered
/// arms, their costs newest first; `whole` only if growth is touched as a whole.
impl fmt::Display for Trials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spent, charged, size, first, whole, .. } = self;
        let whole = if *whole { " whole" } else { "" };
        write!(f, "spent {spent} charged {charged} size {size} first {}{whole}", first.name())?;
        for action in self.offered() {
            write!(f, "; {}", action.name())?;
            let tally = self.tally(action);
            for cost in &tally.costs[..tally.len] {
                write!(f, " {cost}")?;
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Trials {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NUMBER: &str = "a number is none";
        let mut parts = text.split("; ");
        let mut head = parts.next().unwrap_or_default().split(' ');
        let mut field = |name: &str| {
            let said = head.next() == Some(name);
            let value = head.next().and_then(|word| word.parse().ok()).filter(|_| said);
            value.ok_or("it does not begin with spent, charged and size")
        };
        let (spent, charged, size) = (field("spent")?, field("charged")?, field("size")?);
        let named = |name: &str| ARMS.into_iter().find(|action| action.name() == name);
        let words = (head.next(), head.next().and_then(named), head.next(), head.next());
        let (first, whole) = match words {
            (Some("first"), Some(action), None, None) => (action, false),
            (Some("first"), Some(action), Some("whole"), None) => (action, true),
            _ => return Err("it does not say which arm was first"),
        };
        let mut trials = Self { spent, charged, size, first, whole, ..Self::default() };
        for part in parts {
            let mut words = part.split(' ');
            let name = words.next().unwrap_or_default();
            let tally = named(name).and_then(|action| trials.tally_mut(action));
            let tally = tally.filter(|tally| !tally.offered).ok_or("an arm is none, or twice")?;
            tally.offered = true;
            for word in words {
                let place = tally.costs.get_mut(tally.len).ok_or("an arm has too many epochs")?;
                *place = word.parse().map_err(|_| NUMBER)?;
                tally.len += 1;
            }
        }
        Ok(trials)
    }
}

/// What has been counted of a process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes by which it has grown, in order of addresses, touched or not.
    pub grown: u64,
    /// Resident bytes.
    pub resident: u64,
    /// CPU time of its own threads, ns.
    pub program: u64,
    /// Time for which they were ready and waited for a CPU, ns.
    pub waited: u64,
    /// CPU time of the helper and of who decides, ns.
    pub helper: u64,
    /// Looks of whoever carries the orders out.
    pub rounds: u64,
}

/// An epoch that has begun.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    action: Action,
    /// The arm that is best as far as is known.
    best: Action,
    size: u64,
    /// When it began, and from when it counts.
    begun: Counters,
    from: Counters,
    /// Bytes of growth until it counts; `None` from then on.
    settles: Option<u64>,
    /// What it may cost beyond the best before it ends early, ns.
    stake: u64,
}

impl Epoch {
    /// What was taken of CPUs between two looks, ns. Where no helper works, what the program waits for is not of the
    /// arm's making.
    fn cost(&self, from: &Counters, now: &Counters, price: u64) -> u64 {
        let passed = |of: fn(&Counters) -> u64| of(now).saturating_sub(of(from));
        let helper = passed(|counted| counted.helper);
        let beside = if has_helper(self.action) {
            passed(|counted| counted.waited).saturating_add(weigh(helper, price))
        } else {
            helper
        };
        passed(|counted| counted.program).saturating_add(beside)
    }

    /// What has been taken since it began beyond what the best arm takes a region.
    fn beyond(&self, best: u64, now: &Counters, price: u64) -> u64 {
        let all = now.grown.saturating_sub(self.begun.grown);
        let expected = weigh(best, all.saturating_mul(1000) / HUGE);
        self.cost(&self.begun, now, price).saturating_sub(expected)
    }
}

/// The course of a program's growth through epochs.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    trials: Trials,
    /// The program's time in earlier runs.
    before: u64,
    epoch: Option<Epoch>,
    /// The program's time at which what is known ages.
    ages: u64,
    sparse: bool,
}

impl Course {
    /// Before anything was tried in this run.
    #[must_use]
    pub fn new(trials: Trials) -> Self {
        let ages = trials.spent.saturating_mul(2);
        Self { trials, before: trials.spent, epoch: None, ages, sparse: false }
    }

    /// What a policy may know of it. Where growth leaves more than half of the pages out no huge page is offered.
    #[must_use]
    pub fn trials(&self) -> Trials {
        let mut trials = self.trials;
        if self.sparse {
            trials.offer(|action| self.trials.tally(action).offered && !action.makes_huge());
        }
        trials
    }

    /// Which arms can be carried out from now on.
    pub fn offer(&mut self, offered: impl Fn(Action) -> bool) {
        self.trials.offer(offered);
    }

    /// What the program is under.
    #[must_use]
    pub fn in_force(&self) -> Action {
        self.epoch.map_or(self.trials.first, |epoch| epoch.action)
    }

    /// Takes in what was counted. Whether an epoch has ended, so that a decision is due. `price` of a helper's time in
    /// thousandths; `growth`: regions that the program grows by between two looks.
    pub fn advance(&mut self, now: Counters, price: u64, growth: u64) -> bool {
        let Some(epoch) = &mut self.epoch else { return true };
        let tried = epoch.best != epoch.action;
        let best = self.trials.tally(epoch.best).median().filter(|_| tried);
        let beyond = best.map_or(0, |best| epoch.beyond(best, &now, price));
        if beyond > epoch.stake && now.grown.saturating_sub(epoch.begun.grown) >= HUGE {
            // It ends with what it has cost until now, of a region at least, settled or not.
            if epoch.settles.take().is_some() || now.grown.saturating_sub(epoch.from.grown) < HUGE {
                epoch.from = epoch.begun;
            }
            epoch.size = 0;
        }
        let grown = now.grown.saturating_sub(epoch.from.grown);
        if let Some(bytes) = epoch.settles {
            // An order is seen at the next look, or while that is going on at the one after.
            if grown >= bytes && now.rounds.saturating_sub(epoch.from.rounds) >= 2 {
                (epoch.settles, epoch.from) = (None, now);
            }
            return false;
        }
        if grown < epoch.size.saturating_mul(HUGE) {
            return false;
        }
        let epoch = *epoch;
        let cost = epoch.cost(&epoch.from, &now, price);
        if let Some(tally) = self.trials.tally_mut(epoch.action) {
            tally.add(per_region(cost, grown));
        }
        self.trials.charged = self.trials.charged.saturating_add(beyond);
        self.trials.spent = self.before.saturating_add(now.program);
        self.trials.size = growth.clamp(*SIZES.start(), *SIZES.end());
        // Whose pages are small enough to tell.
        if matches!(epoch.action, Action::Base | Action::Fault64k) {
            let resident = now.resident.saturating_sub(epoch.from.resident);
            self.sparse = resident < grown / DENSE;
            let whole = resident >= grown - grown / WHOLE;
            self.trials.whole = whole && (self.trials.whole || epoch.action == Action::Base);
        }
        let spent = self.trials.spent;
        if spent >= self.ages {
            self.ages = spent.saturating_mul(2).max(1_000_000_000);
            self.trials.age(epoch.best);
        }
        true
    }

    /// Begins the next epoch under `action`, a trial if that is not the best arm: that ends early when it has cost
    /// more than its `stake` beyond the best. `provided`: bytes that lie untouched before the program.
    pub fn begin(
        &mut self,
        (action, stake): (Action, u64),
        best: Action,
        now: Counters,
        provided: u64,
    ) {
        let changed = self.in_force() != action;
        let settles = changed.then_some(provided.saturating_add(HUGE));
        let size = self.trials.size;
        self.epoch = Some(Epoch { action, best, size, begun: now, from: now, settles, stake });
    }
}

/// A cost of so many bytes, a region.
fn per_region(cost: u64, bytes: u64) -> u64 {
    let all = u128::from(cost) * u128::from(HUGE) / u128::from(bytes.max(1));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// `time` at a price in thousandths.
fn weigh(time: u64, price: u64) -> u64 {
    u64::try_from(u128::from(time) * u128::from(price) / 1000).unwrap_or(u64::MAX)
}

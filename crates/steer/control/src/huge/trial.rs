//! A process whose growth is tried under one action after the other: reads its counters, has the policy decide when a
//! epoch of growth has ended ([`pagemill_policy::huge::trials`] has the words), and gives the orders, which reach no
//! further than the epoch while they are a trial.
//!
//! What is counted comes from the library, written in one of its rounds: growth, CPU time of the program and of the
//! library's thread. This process's own time counts as a helper's. Waiting for a CPU is the kernel's account of each
//! thread (`/proc/PID/task/*/schedstat`), asked only while a helper works and of no more than [`THREADS`] threads.

use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_model::page::HUGE;
use pagemill_model::{HugeDecision, Nanos, Pid};
use pagemill_policy::huge::runs::{self, Verdict};
use pagemill_policy::huge::trials::{Counters, Course, KEPT, Trials, has_helper};
use pagemill_policy::huge::{Action, Moment, Policy, Section, TrialPolicy, View};
use pagemill_prefault::board::{Order, Process, ProcessWord, RegionWord, degraded};

use super::learned::Learned;
use super::orders::order_for;
use super::view::{Machine, RecentCosts};
use crate::decisions;

/// Threads whose waiting is asked for; of more nobody knows.
const THREADS: usize = 64;

/// An epoch of growth is at least what a program grows by in so many ms: the library looks every 2 ms then.
const PIECE_MS: u64 = 10;

/// Nothing is measured before a program has taken so much CPU time: one percent of less is no trial.
const BEGINS: Duration = Duration::from_millis(100);

/// After so many same decisions nothing is being tried.
const STEADY: u32 = 8;

/// A decision that stands is recorded again after so long.
const STANDS: Duration = Duration::from_secs(1);

/// What the system lets be done.
#[derive(Clone, Copy, Debug)]
struct Offers {
    /// Huge pages come at every first touch.
    unasked: bool,
    /// Huge pages come where they are asked for, and only there.
    advised: bool,
    /// Huge pages come where they are asked for.
    huge: bool,
    /// Pages of 64 KiB come where they are asked for, if not everywhere.
    medium: bool,
}

impl Offers {
    fn of(linux: &Linux) -> Self {
        let enabled = linux.thp_enabled().map(|choice| choice.active).unwrap_or_default();
        let medium = linux.thp_medium().map(|choice| choice.active).unwrap_or_default();
        Self {
            unasked: enabled == "always",
            advised: enabled == "madvise",
            huge: matches!(enabled.as_str(), "madvise" | "always"),
            medium: matches!(medium.as_str(), "madvise" | "always")
                || medium == "inherit" && enabled == "madvise",
        }
    }

    /// Whether an action can be carried out in a process whose library lacks what these bits say.
    fn has(self, action: Action, lacks: u64) -> bool {
        let ahead = lacks & (degraded::NO_THREAD | degraded::LIMITED | degraded::NO_SCAN) == 0;
        let willing = lacks & degraded::REFUSED_BY_PROGRAM == 0;
        ahead
            && willing
            && match action {
                Action::Fault2m => self.advised,
                Action::Ahead2m => self.huge,
                Action::Pool => self.huge && lacks & degraded::NO_MOVE == 0,
                Action::Fault64k | Action::Ahead64k => self.medium,
                _ => false,
            }
    }
}

/// What a process begins with: the arms that can be carried out on this system, what earlier runs have taught of them,
/// and which is first.
pub fn beginning(linux: &Linux, tries: &dyn TrialPolicy, view: &View, learned: &Learned) -> Trials {
    let offers = Offers::of(linux);
    let mut trials = Trials::of(|action| offers.has(action, 0));
    if offers.unasked {
        // Left alone it has those, and not the base pages that the first arm is weighed against.
        return trials;
    }
    let first = tries.first(&View { trials, ..*view });
    trials = trials.beginning_with(first);
    let Some(earlier) = learned.beginning() else { return trials };
    trials.resume(&earlier);
    // What else may be best comes when the program has grown.
    let view = View { trials, ..*view };
    let wide = tries.best(&view) == Action::Fault2m;
    match runs::judge(learned.runs(), Action::Fault2m, first, tries.room(&view)) {
        Verdict::Begins if wide => trials.beginning_with(Action::Fault2m),
        Verdict::Falls => trials.forgetting(Action::Fault2m),
        _ => trials,
    }
}

/// Whether the policy would try something in a program that begins so, or wants to know what its first arm costs.
pub fn is_due(policy: &dyn Policy, tries: &dyn TrialPolicy, view: &View) -> bool {
    let unknown = view.trials.tally(view.trials.first).epochs() < KEPT / 4;
    unknown || policy.decide(view).action != tries.best(view)
}

/// What is remembered of a process.
#[derive(Debug)]
pub struct Trial {
    linux: Linux,
    offers: Offers,
    /// Whether pages of 64 KiB come at every first touch.
    medium_unasked: bool,
    course: Course,
    /// Whether earlier runs have taken time.
    resumed: bool,
    begun: bool,
    action: Action,
    /// Whether that is a trial.
    tried: bool,
    /// How often that has been decided in a row.
    steady: u32,
    recorded: Option<Duration>,
}

impl Trial {
    /// Before anything is known of this process.
    pub fn new(linux: &Linux, trials: Trials, medium_unasked: bool) -> Self {
        Self {
            linux: linux.clone(),
            offers: Offers::of(linux),
            medium_unasked,
            course: Course::new(trials),
            resumed: trials.spent > 0,
            begun: false,
            action: trials.first,
            tried: false,
            steady: 0,
            recorded: None,
        }
    }

    /// What is known by now.
    pub fn trials(&self) -> Trials {
        self.course.trials()
    }

    /// Whether its growth should be looked at often: a trial must not outlast its epoch.
    pub fn is_brisk(&self, tries: &dyn TrialPolicy) -> bool {
        self.begun && (self.tried || !tries.waits() && self.steady < STEADY)
    }

    /// Looks at a process; what was decided, if that is to be recorded.
    pub fn step(
        &mut self,
        policy: &dyn Policy,
        tries: &dyn TrialPolicy,
        machine: &Machine,
        process: Process<'_>,
        fresh: RecentCosts,
        now: Duration,
    ) -> Option<(Action, HugeDecision)> {
        // The library counts no growth before there is much.
        self.begun = process.get(ProcessWord::Grown) > 0
            && (self.resumed || process.get(ProcessWord::ProgramNs) >= BEGINS.as_nanos() as u64);
        if !self.begun {
            return None;
        }
        let mut view = machine.next(process, Section::Mmap, Moment::Ahead, fresh);
        let counted = self.counted(process);
        let growth = fresh.growth.value().unwrap_or(0).saturating_mul(PIECE_MS).div_ceil(HUGE);
        if !self.course.advance(counted, tries.helper_price(&view), growth) {
            return None;
        }
        let lacks = process.get(ProcessWord::Degraded);
        self.course.offer(|action| self.offers.has(action, lacks));
        view.trials = self.course.trials();
        view.address = growing(process);
        let pid = Pid(process.get(ProcessWord::Pid) as u32);
        let (decision, mut row) = decisions::decide(policy, &view, Nanos::from(now), Some(pid));
        let (action, best) = (decision.action, tries.best(&view));
        let stake = tries.stake(action, &view);
        let provided = process.get(ProcessWord::Untouched);
        self.course.begin((action, stake), best, counted, provided);
        let changed = action != self.action;
        self.steady = if changed { 0 } else { self.steady.saturating_add(1) };
        (self.action, self.tried) = (action, action != best);
        let most = if action == best { 0 } else { view.trials.size.saturating_mul(HUGE) };
        give(process, self.order(action), most, self.is_brisk(tries));
        let stood = self.recorded.is_none_or(|at| at + STANDS <= now);
        if !changed && !stood {
            return None;
        }
        self.recorded = Some(now);
        row.outcome = Some("applied".into());
        Some((action, row))
    }

    /// Where every first touch brings 64 KiB base pages have to be asked for.
    fn order(&self, action: Action) -> Order {
        match action {
            Action::Base if self.medium_unasked => Order::FaultBase,
            _ => order_for(action),
        }
    }

    fn counted(&self, process: Process<'_>) -> Counters {
        let get = |word| process.get(word);
        let own = resources(UsageScope::ThisThread);
        let own = (own.user + own.system).as_nanos() as u64;
        let waited = has_helper(self.course.in_force()).then(|| {
            let (pid, helper) = (get(ProcessWord::Pid), get(ProcessWord::HelperThread));
            self.linux.waited(Pid(pid as u32), Pid(helper as u32), THREADS)
        });
        Counters {
            grown: get(ProcessWord::Grown),
            resident: get(ProcessWord::Resident),
            program: get(ProcessWord::ProgramNs),
            waited: waited.flatten().unwrap_or_default().as_nanos() as u64,
            helper: get(ProcessWord::HelperNs).saturating_add(own),
            rounds: get(ProcessWord::Rounds),
        }
    }
}

/// The chunk in which the region that grows fastest is.
fn growing(process: Process<'_>) -> u64 {
    let fastest = process.regions().max_by_key(|region| region.get(RegionWord::Rate));
    fastest.map_or(0, |region| region.get(RegionWord::Touched) / HUGE * HUGE)
}

/// Tells the library what to do about all regions that grow, in `most` bytes of each (0: all).
fn give(process: Process<'_>, order: Order, most: u64, brisk: bool) {
    for region in process.regions() {
        let generation = region.get(RegionWord::Generation);
        if generation == 0 || generation % 2 == 1 {
            continue;
        }
        let until =
            if most == 0 { 0 } else { region.get(RegionWord::Touched).saturating_add(most) };
        region.give(order, until, generation);
    }
    process.begin_with(order, most);
    process.set(ProcessWord::Brisk, brisk.into());
}

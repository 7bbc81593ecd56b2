//! Carrying decisions out. Actuators are wrapped into each other, innermost first:
//!
//! | actuator | does |
//! |---|---|
//! | [`MovePages`] | moves the pages that a decision names |
//! | [`Damos`] | lets DAMON move as many bytes as a decision names, of what it finds hot or cold itself |
//! | [`Tiering`] | lets DAMON tier by itself, as the kernel's own module does |
//! | [`KernelPromotion`] | lets the kernel promote by hint faults, or not |
//! | [`Interleave`] | sets the weights by which new memory is spread |
//! | [`DryRun`] | says what would move, and touches nothing |
//! | [`Guard`] | keeps what has ended, or is tracked no more, away from the one inside |
//! | [`RateLimit`] | lets through so many bytes a second |
//! | [`Log`] | records decision and outcome |
//!
//! Always so: an outcome of [`MovePages`] and [`DryRun`] has an entry for each page of its decision, in its order (the
//! others move no single pages); a page that a wrapper
//! kept back is never seen by the one inside; no more bytes go through a rate limit than its rate
//! allows over any time, one second's worth apart.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pagemill_kernel::nodes::mempolicy::{AUTO_WEIGHTS, weight_file};
use pagemill_kernel::nodes::move_pages::{self, PageLocation};
use pagemill_kernel::nodes::numa_balancing::{
    DEMOTION_ENABLED, NUMA_BALANCING, PROMOTE_RATE_LIMIT,
};
use pagemill_kernel::settings::damon::{
    Action, Attributes, Fill, Goal, Monitor, Scheme, Target, Tuning, Watch,
};
use pagemill_kernel::settings::loan::{Files, Loan};
use pagemill_kernel::{Linux, clock};
use pagemill_model::page::HUGE;
use pagemill_model::{Actuator, Bytes, Event, Nanos, PageRange, Pid, TierDecision, TierOutcome};
use pagemill_policy::tier::track::damon::{monitor, schemes};

use super::Tiers;
use super::access_sources::{AccessSource, DEMOTE, Moves, PROMOTE, RELIEVE};
use super::pages::{Page, Shared};

pagemill_model::named! {
    /// Why a page did not move, as `page_kept` numbers it: by its place here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u64)]
    pub enum SkipReason {
        /// It moved.
        No = "moved",
        /// The rate limit.
        RateLimit = "rate limit",
        /// Others map it too.
        Shared = "shared",
        /// It is there no more, or has been locked since.
        Gone = "gone or locked",
        /// The tier has no room.
        NoRoom = "no room",
        /// Somebody works on it.
        Busy = "busy",
        /// Anything else.
        Other = "other",
    }
}

/// A page by its number, and the tier that it is to move to.
struct Move {
    page: u64,
    to: u64,
}

fn moves(decision: &TierDecision) -> impl Iterator<Item = Move> + '_ {
    let list = |list: &'_ Option<Vec<u64>>| list.clone().unwrap_or_default();
    list(&decision.page).into_iter().zip(list(&decision.to)).map(|(page, to)| Move { page, to })
}

/// An outcome under construction.
fn outcome(decision: &TierDecision, actuator: &str) -> TierOutcome {
    TierOutcome {
        quantum: decision.quantum,
        actuator: Some(actuator.to_owned()),
        page: Some(Vec::new()),
        moved: Some(Vec::new()),
        kept: Some(Vec::new()),
        promoted: Some(Bytes(0)),
        demoted: Some(Bytes(0)),
        ping_pong: Some(Bytes(0)),
        ..TierOutcome::default()
    }
}

fn push(outcome: &mut TierOutcome, page: u64, moved: u64, kept: SkipReason) {
    for (list, value) in
        [(&mut outcome.page, page), (&mut outcome.moved, moved), (&mut outcome.kept, kept as u64)]
    {
        list.get_or_insert_default().push(value);
    }
}

fn add(sum: &mut Option<Bytes>, bytes: u64) {
    sum.get_or_insert_default().0 += bytes;
}

/// Passes the pages for which `keep` has no reason on to `inner`, and puts the others back into the
/// outcome where they were.
fn filtered(
    inner: &mut impl Actuator,
    decision: &TierDecision,
    mut keep: impl FnMut(u64) -> Option<SkipReason>,
) -> TierOutcome {
    let verdicts: Vec<(u64, u64, Option<SkipReason>)> =
        moves(decision).map(|Move { page, to }| (page, to, keep(page))).collect();
    if verdicts.iter().all(|(.., kept)| kept.is_none()) {
        return inner.apply(decision);
    }
    let passed = || verdicts.iter().filter(|(.., kept)| kept.is_none());
    let inside = inner.apply(&TierDecision {
        page: Some(passed().map(|(page, ..)| *page).collect()),
        to: Some(passed().map(|(_, to, _)| *to).collect()),
        ..decision.clone()
    });
    let lists = (inside.moved.clone().unwrap_or_default(), inside.kept.clone().unwrap_or_default());
    let mut results = lists.0.into_iter().zip(lists.1);
    let mut whole = TierOutcome {
        page: Some(Vec::new()),
        moved: Some(Vec::new()),
        kept: Some(Vec::new()),
        ..inside
    };
    for (page, _, kept) in verdicts {
        let (moved, kept) = match kept {
            Some(kept) => (0, kept as u64),
            None => results.next().unwrap_or((0, SkipReason::Other as u64)),
        };
        whole.page.get_or_insert_default().push(page);
        whole.moved.get_or_insert_default().push(moved);
        whole.kept.get_or_insert_default().push(kept);
    }
    whole
}

/// The source, if there is one: an actuator may let it move pages.
pub type SharedSource = Rc<RefCell<Option<AccessSource>>>;

/// Moves pages by `move_pages(2)`.
///
/// The kernel's own balancing is off for as long as this lives: two who move the same pages undo each
/// other's work.
#[derive(Debug)]
pub struct MovePages {
    pages: Shared,
    tiers: Tiers,
    _balancing: Loan<Files>,
}

impl MovePages {
    /// Switches the kernel's balancing off.
    ///
    /// # Errors
    /// A setting cannot be borrowed.
    pub fn start(
        linux: &Linux,
        journals: &Path,
        pages: Shared,
        tiers: Tiers,
    ) -> pagemill_kernel::Result<Self> {
        Ok(Self { pages, tiers, _balancing: still(linux, journals)? })
    }
}

/// The kernel's own balancing is off for as long as this lives.
fn still(linux: &Linux, journals: &Path) -> pagemill_kernel::Result<Loan<Files>> {
    let balancing = Loan::files(linux, journals, "tier", &[NUMA_BALANCING])?;
    if balancing.found().value(NUMA_BALANCING).is_some() {
        balancing.set(NUMA_BALANCING, "0")?;
    }
    Ok(balancing)
}

impl Actuator for MovePages {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let begun = Instant::now();
        let quantum = decision.quantum.unwrap_or(0);
        let mut outcome = outcome(decision, "move-pages");
        outcome.applied = Some(1);
        for Move { page: number, to } in moves(decision) {
            let to = usize::from(to != 0);
            let of = |page: &Page| (page.pid, PageRange::new(page.start..page.end));
            let place = self.pages.borrow().get(number).map(of);
            let Some((pid, range)) = place else {
                push(&mut outcome, number, 0, SkipReason::Gone);
                continue;
            };
            let (moved, kept) = move_range(pid, range, self.tiers.0[to]);
            if moved > 0 {
                let sum = if to == 0 { &mut outcome.promoted } else { &mut outcome.demoted };
                add(sum, moved);
                if self.pages.borrow_mut().moved(number, quantum, to, moved) {
                    add(&mut outcome.ping_pong, moved);
                }
            }
            if kept == SkipReason::Shared {
                self.pages.borrow_mut().give_up(number);
            } else if moved == 0 && kept == SkipReason::Other {
                self.pages.borrow_mut().refused(number);
            }
            push(&mut outcome, number, moved, kept);
        }
        outcome.took = Some(Nanos::from(begun.elapsed()));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// Moves what there is of a range to a node: bytes that moved, and what kept the rest.
fn move_range(pid: Pid, range: PageRange, node: u32) -> (u64, SkipReason) {
    let size = pagemill_kernel::page_size() as u64;
    let addresses: Vec<u64> = (range.start..range.end).step_by(size as usize).collect();
    let Ok(before) = move_pages::locate(pid, &addresses) else { return (0, SkipReason::Gone) };
    let elsewhere = |place: &PageLocation| matches!(place, PageLocation::Node(at) if *at != node);
    let candidates: Vec<u64> = addresses
        .iter()
        .zip(&before)
        .filter(|(_, place)| elsewhere(place))
        .map(|(address, _)| *address)
        .collect();
    if candidates.is_empty() {
        return (
            0,
            if before.contains(&PageLocation::Node(node)) {
                SkipReason::No
            } else {
                SkipReason::Gone
            },
        );
    }
    let Ok(after) = move_pages::migrate(pid, &candidates, node) else {
        return (0, SkipReason::Other);
    };
    let moved = after.iter().filter(|place| **place == PageLocation::Node(node)).count() as u64;
    let mut reasons: BTreeMap<SkipReason, usize> = BTreeMap::new();
    for place in after {
        let reason = match place {
            PageLocation::Node(at) if at == node => continue,
            PageLocation::Node(_) | PageLocation::Busy => SkipReason::Busy,
            PageLocation::Absent => SkipReason::Gone,
            PageLocation::Shared => SkipReason::Shared,
            PageLocation::NoRoom => SkipReason::NoRoom,
            PageLocation::Refused(_) => SkipReason::Other,
        };
        *reasons.entry(reason).or_default() += 1;
    }
    let most = reasons.into_iter().max_by_key(|(_, count)| *count);
    let kept =
        most.filter(|(_, count)| *count as u64 > moved).map_or(SkipReason::No, |(why, _)| why);
    (moved * size, kept)
}

/// Says what would move: each page once, for it stays where it is and is named again each quantum.
#[derive(Debug)]
pub struct DryRun {
    pages: Shared,
    /// The process, address and tier that was said last of each page, by its number.
    said: BTreeMap<u64, (Pid, u64, u64)>,
}

impl DryRun {
    /// Touches nothing.
    pub fn new(pages: Shared) -> Self {
        Self { pages, said: BTreeMap::new() }
    }
}

impl Actuator for DryRun {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let mut outcome = outcome(decision, "none");
        outcome.applied = Some(0);
        for Move { page: number, to } in moves(decision) {
            let page = self.pages.borrow().get(number).map(|page| (page.pid, page.start, page.end));
            let Some((pid, start, end)) = page else {
                push(&mut outcome, number, 0, SkipReason::Gone);
                continue;
            };
            let said = self.said.insert(number, (pid, start, to));
            let size = if said == Some((pid, start, to)) { 0 } else { end - start };
            add(if to == 0 { &mut outcome.promoted } else { &mut outcome.demoted }, size);
            self.pages.borrow_mut().count(number, usize::from(to != 0), size, false);
            push(&mut outcome, number, size, SkipReason::No);
        }
        outcome.took = Some(Nanos(0));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// Lets DAMON's threads move pages. The decision says how much; they say which.
///
/// What an outcome counts was moved since the outcome before: DAMON works while the daemon waits.
#[derive(Debug)]
pub struct Damos {
    pages: Shared,
    source: SharedSource,
    rate: Bytes,
    quantum: Duration,
    _balancing: Loan<Files>,
}

impl Damos {
    /// Switches the kernel's own balancing off, as [`MovePages::start`] does.
    ///
    /// # Errors
    /// A setting cannot be borrowed.
    pub fn start(
        linux: &Linux,
        journals: &Path,
        pages: Shared,
        source: SharedSource,
        rate: Bytes,
        quantum: Duration,
    ) -> pagemill_kernel::Result<Self> {
        Ok(Self { pages, source, rate, quantum, _balancing: still(linux, journals)? })
    }
}

/// Bytes a second that DAMON may move for a decision: no more than `rate` of them.
fn allowance(decision: &TierDecision, rate: Bytes, quantum: Duration) -> Moves {
    let mut bytes = [0_u64; 2];
    moves(decision).for_each(|page| bytes[usize::from(page.to != 0)] += HUGE);
    let per_second = |bytes: u64| (bytes as f64 / quantum.as_secs_f64()) as u64;
    let relief = matches!((decision.aim, decision.share), (Some(aim), Some(share)) if aim < share);
    let mut moves = Moves::default();
    if relief {
        // What goes back in exchange makes the room for it, and DAMON needs no room made.
        moves[RELIEVE] = per_second(bytes[1]).min(rate.0);
    } else {
        moves[PROMOTE] = per_second(bytes[0]).min(rate.0);
        moves[DEMOTE] = per_second(bytes[1]).min(rate.0 - moves[PROMOTE]);
    }
    moves
}

impl Actuator for Damos {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let begun = Instant::now();
        let mut outcome = outcome(decision, "damos");
        let allowed = allowance(decision, self.rate, self.quantum);
        let moved = self.source.borrow_mut().as_mut().map(|source| source.migrate(allowed));
        outcome.applied = Some(matches!(moved, Some(Ok(_))).into());
        for (pid, moves) in moved.into_iter().flatten().flatten() {
            let (promoted, demoted) = (moves[PROMOTE], moves[DEMOTE] + moves[RELIEVE]);
            add(&mut outcome.promoted, promoted);
            add(&mut outcome.demoted, demoted);
            self.pages.borrow_mut().add(pid, 0, promoted, false);
            self.pages.borrow_mut().add(pid, 1, demoted, false);
        }
        outcome.took = Some(Nanos::from(begun.elapsed()));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// What the kernel's own tiering by DAMON watches and does (`samples/damon/mtier.c`): a thread a node, of the memory of
/// `group` only, where one is named; `rate` bounds the bytes that each moves a second.
///
/// # Errors
/// A node's memory is not known.
pub fn tiering(
    linux: &Linux,
    Tiers([default, alternate]): Tiers,
    group: Option<&String>,
    rate: Bytes,
) -> pagemill_kernel::Result<(Vec<Watch>, Attributes)> {
    let watch = |node: u32, action, accesses, fill, accessed| {
        let scheme = Scheme {
            action,
            accesses,
            bytes_per_second: Some(schemes::LIMIT.min(rate.0)),
            cgroup: group.cloned(),
            goal: Some(Goal { node: default, fill, accessed }),
            ..Scheme::counting()
        };
        let target = Target::Physical(linux.node_addresses(node)?);
        Ok(Watch { target, schemes: vec![scheme] })
    };
    let (promote, demote) = (Action::MigrateHot(default), Action::MigrateCold(alternate));
    let watches = vec![
        watch(alternate, promote, 1..=u64::MAX, Fill::Used(schemes::USED_BP), true)?,
        watch(default, demote, 0..=0, Fill::Free(schemes::FREE_BP), false)?,
    ];
    let sample = Duration::from_micros(monitor::SHORTEST_US);
    let tuning = Tuning {
        accessed_bp: monitor::ACCESSED_BP,
        aggregations: monitor::TUNED,
        longest: Duration::from_micros(monitor::LONGEST_US),
    };
    let attributes = Attributes {
        sample,
        aggregate: sample * monitor::SAMPLES,
        regions: monitor::MOST as u64,
        tuning: Some(tuning),
    };
    Ok((watches, attributes))
}

/// Lets DAMON's threads tier by themselves. No decision is needed, and none heeded.
///
/// What an outcome counts was moved since the outcome before.
#[derive(Debug)]
pub struct Tiering {
    pages: Shared,
    monitor: Monitor,
    /// Bytes promoted and demoted when that was last asked.
    before: [u64; 2],
    _balancing: Loan<Files>,
}

impl Tiering {
    /// Starts both threads; the kernel's own balancing is off meanwhile, as in [`MovePages::start`].
    ///
    /// # Errors
    /// A setting cannot be borrowed, or as of [`Monitor::start`].
    pub fn start(
        linux: &Linux,
        journals: &Path,
        pages: Shared,
        (watches, attributes): (Vec<Watch>, Attributes),
    ) -> pagemill_kernel::Result<Self> {
        let balancing = still(linux, journals)?;
        let monitor = Monitor::start(linux, journals, &watches, attributes)?;
        Ok(Self { pages, monitor, before: [0; 2], _balancing: balancing })
    }
}

impl Actuator for Tiering {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let begun = Instant::now();
        let mut outcome = outcome(decision, "damon");
        outcome.applied = Some(1);
        for at in 0..self.before.len() {
            let Ok(stats) = self.monitor.stats(at) else {
                outcome.applied = Some(0);
                continue;
            };
            let all = stats.iter().map(|scheme| scheme.applied).sum();
            let moved = u64::saturating_sub(all, std::mem::replace(&mut self.before[at], all));
            add(if at == 0 { &mut outcome.promoted } else { &mut outcome.demoted }, moved);
            self.pages.borrow_mut().add(Pid(0), at, moved, false);
        }
        outcome.took = Some(Nanos::from(begun.elapsed()));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// Lets the kernel promote hot pages by hint faults, and demote cold ones by reclaim, or not.
#[derive(Debug)]
pub struct KernelPromotion {
    loan: Loan<Files>,
    last: Option<u64>,
}

impl KernelPromotion {
    /// Demotion is on for as long as this lives; `rate` bounds what is promoted a second.
    ///
    /// # Errors
    /// A setting cannot be borrowed.
    pub fn start(linux: &Linux, journals: &Path, rate: Bytes) -> pagemill_kernel::Result<Self> {
        let files = [NUMA_BALANCING, PROMOTE_RATE_LIMIT, DEMOTION_ENABLED];
        let loan = Loan::files(linux, journals, "tier", &files)?;
        loan.set(NUMA_BALANCING, "0")?;
        // Older kernels have no rate limit or no switch for demotion.
        let megabytes = (rate.0 >> 20).max(1).to_string();
        for (file, value) in [(PROMOTE_RATE_LIMIT, megabytes.as_str()), (DEMOTION_ENABLED, "1")] {
            if loan.found().value(file).is_some() {
                loan.set(file, value)?;
            }
        }
        Ok(Self { loan, last: None })
    }
}

impl Actuator for KernelPromotion {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let begun = Instant::now();
        let mut outcome = outcome(decision, "kernel");
        let promotes = decision.kernel_promotes.unwrap_or(0);
        let mode = if promotes == 1 { "2" } else { "0" };
        let set = self.last == Some(promotes) || self.loan.set(NUMA_BALANCING, mode).is_ok();
        self.last = set.then_some(promotes);
        outcome.applied = Some(set.into());
        outcome.took = Some(Nanos::from(begun.elapsed()));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// Sets the weights of weighted interleaving to the share that a policy aims at. Only programs that
/// ask for that memory policy see it, and only in new memory.
#[derive(Debug)]
pub struct Interleave {
    loan: Loan<Files>,
    files: [String; 2],
    last: Option<[u64; 2]>,
}

impl Interleave {
    /// The weights are on loan for as long as this lives.
    ///
    /// # Errors
    /// `Unsupported` where the kernel has no weights; they cannot be borrowed.
    pub fn start(linux: &Linux, journals: &Path, tiers: Tiers) -> pagemill_kernel::Result<Self> {
        let files = tiers.0.map(weight_file);
        // Putting a weight back switches the automatic ones off, so their switch is restored last.
        let paths = [files[0].as_str(), files[1].as_str(), AUTO_WEIGHTS];
        let loan = Loan::files(linux, journals, "interleave", &paths)?;
        if loan.found().value(&files[0]).is_none() {
            return Err(pagemill_kernel::Error::new(
                pagemill_kernel::Kind::Unsupported,
                "set",
                "the weights of weighted interleaving",
                "this kernel has none",
            )
            .advise("boot kernel 6.9 or newer"));
        }
        Ok(Self { loan, files, last: None })
    }
}

/// Whole weights, at most 32 together and at least 1 each, nearest to a share in millionths.
fn weights(share: u64) -> [u64; 2] {
    let default = ((share.min(1_000_000) * 32 + 500_000) / 1_000_000).clamp(1, 31);
    [default, 32 - default]
}

impl Actuator for Interleave {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let begun = Instant::now();
        let mut outcome = outcome(decision, "interleave");
        let wanted = decision.aim.map(weights);
        let mut done = true;
        if let Some(wanted) = wanted.filter(|wanted| self.last != Some(*wanted)) {
            for (file, weight) in self.files.iter().zip(wanted) {
                done &= self.loan.set(file, &weight.to_string()).is_ok();
            }
            self.last = done.then_some(wanted);
        }
        outcome.applied = Some(done.into());
        outcome.took = Some(Nanos::from(begun.elapsed()));
        outcome.time = Nanos::from(clock::monotonic());
        outcome
    }
}

/// Keeps back what belongs to a process that has ended, or is tracked no more.
#[derive(Debug)]
pub struct Guard<A> {
    linux: Linux,
    pages: Shared,
    inner: A,
}

impl<A: Actuator> Guard<A> {
    /// Guards `inner`.
    pub fn new(linux: &Linux, pages: Shared, inner: A) -> Self {
        Self { linux: linux.clone(), pages, inner }
    }
}

impl<A: Actuator> Actuator for Guard<A> {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        if moves(decision).next().is_some() {
            // What was locked, unmapped or replaced since the view was made drops out here.
            let pids = self.pages.borrow().pids();
            let _ = self.pages.borrow_mut().census(&self.linux, &pids);
        }
        let mut alive: BTreeMap<Pid, bool> = BTreeMap::new();
        let (pages, linux) = (self.pages.clone(), self.linux.clone());
        filtered(&mut self.inner, decision, |number| {
            let pages = pages.borrow();
            let Some(page) = pages.get(number).filter(|page| page.tier.is_some()) else {
                return Some(SkipReason::Gone);
            };
            let lives = alive.entry(page.pid).or_insert_with(|| pages.lives(&linux, page.pid));
            (!*lives).then_some(SkipReason::Gone)
        })
    }
}

/// Lets through so many bytes a second, by the stamps of decisions.
#[derive(Debug)]
pub struct RateLimit<A> {
    per_second: u64,
    /// Bytes that may go through now; at most a second's worth.
    left: u64,
    last: Option<Nanos>,
    inner: A,
}

impl<A: Actuator> RateLimit<A> {
    /// Limits `inner`; at the start, a second's worth may go through.
    pub fn new(per_second: Bytes, inner: A) -> Self {
        Self { per_second: per_second.0, left: per_second.0, last: None, inner }
    }
}

impl<A: Actuator> Actuator for RateLimit<A> {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        let since = self.last.map_or(Nanos(0), |last| decision.time.since(last));
        self.last = Some(decision.time);
        let earned = u128::from(self.per_second) * u128::from(since.0) / 1_000_000_000;
        let left = u128::from(self.left) + earned;
        self.left = left.min(u128::from(self.per_second)) as u64;
        let left = &mut self.left;
        filtered(&mut self.inner, decision, |_| match left.checked_sub(HUGE) {
            Some(rest) => {
                *left = rest;
                None
            }
            None => Some(SkipReason::RateLimit),
        })
    }
}

/// Hands each decision and its outcome to `sink`.
pub struct Log<A, S> {
    sink: S,
    inner: A,
}

impl<A: Actuator, S: FnMut(Event)> Log<A, S> {
    /// Logs what `inner` does.
    pub fn new(sink: S, inner: A) -> Self {
        Self { sink, inner }
    }
}

impl<A: Actuator, S: FnMut(Event)> Actuator for Log<A, S> {
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
        (self.sink)(Event::TierDecision(Box::new(decision.clone())));
        let outcome = self.inner.apply(decision);
        (self.sink)(Event::TierOutcome(Box::new(outcome.clone())));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::pages::Pages;

    /// Moves whatever it is told to, and remembers it.
    #[derive(Default)]
    struct Fake(Vec<u64>);

    impl Actuator for Fake {
        fn apply(&mut self, decision: &TierDecision) -> TierOutcome {
            let mut outcome = outcome(decision, "fake");
            for Move { page, .. } in moves(decision) {
                self.0.push(page);
                push(&mut outcome, page, HUGE, SkipReason::No);
            }
            outcome
        }
    }

    fn decision(millis: u64, pages: &[u64]) -> TierDecision {
        TierDecision {
            time: Nanos(millis * 1_000_000),
            page: Some(pages.to_vec()),
            to: Some(vec![0; pages.len()]),
            ..TierDecision::default()
        }
    }

    #[test]
    fn a_rate_limit_lets_so_many_through_and_says_what_it_kept() {
        let mut limited = RateLimit::new(Bytes(3 * HUGE), Fake::default());
        let kept = |outcome: TierOutcome| outcome.kept.unwrap();
        assert_eq!(kept(limited.apply(&decision(0, &[1, 2, 3, 4, 5]))), [0, 0, 0, 1, 1]);
        assert_eq!(kept(limited.apply(&decision(500, &[6, 7]))), [0, 1]);
        // However long nothing moved, a second's worth is the most.
        assert_eq!(kept(limited.apply(&decision(90_000, &[8; 5]))), [0, 0, 0, 1, 1]);
        assert_eq!(limited.inner.0, [1, 2, 3, 6, 8, 8, 8]);
    }

    #[test]
    fn what_is_kept_back_keeps_its_place_in_the_outcome() {
        let mut inner = Fake::default();
        let outcome = filtered(&mut inner, &decision(0, &[1, 2, 3, 4]), |page| {
            (page % 2 == 0).then_some(SkipReason::Gone)
        });
        assert_eq!(outcome.page.unwrap(), [1, 2, 3, 4]);
        assert_eq!(outcome.moved.unwrap(), [HUGE, 0, HUGE, 0]);
        assert_eq!(outcome.kept.unwrap(), [0, 3, 0, 3]);
        assert_eq!(inner.0, [1, 3]);
    }

    #[test]
    fn a_log_has_the_decision_before_its_outcome() {
        let mut seen = Vec::new();
        let mut log = Log::new(|event: Event| seen.push(event), Fake::default());
        log.apply(&decision(0, &[1]));
        assert!(matches!(seen.as_slice(), [Event::TierDecision(_), Event::TierOutcome(_)]));
    }

    #[test]
    fn a_dry_run_and_a_guard_name_what_is_not_there() {
        let pages = Rc::new(RefCell::new(Pages::new(Tiers([0, 1]))));
        let inner = DryRun::new(pages.clone());
        let mut guard = Guard::new(&Linux::live(), pages, inner);
        let outcome = guard.apply(&decision(0, &[5]));
        assert_eq!(
            (outcome.applied, outcome.kept.unwrap()),
            (Some(0), vec![SkipReason::Gone as u64])
        );
    }

    #[test]
    fn a_dry_run_counts_a_page_once_however_often_it_is_named() {
        let data = vec![1_u8; 8 << 20];
        let pages = Rc::new(RefCell::new(Pages::new(Tiers([0, 1]))));
        if let Err(error) = pages.borrow_mut().census(&Linux::live(), &[Pid::own()]) {
            return eprintln!("skipped: {error}");
        }
        let mut dry = DryRun::new(pages.clone());
        let mut named = |to: u64| {
            let decision = TierDecision { to: Some(vec![to]), ..decision(0, &[0]) };
            let outcome = dry.apply(&decision);
            (outcome.promoted.unwrap().0 > 0, outcome.demoted.unwrap().0 > 0)
        };
        assert_eq!(named(0), (true, false));
        assert_eq!(named(0), (false, false));
        // What would have come back is another move.
        assert_eq!(named(1), (false, true));
        assert_eq!(named(1), (false, false));
        std::hint::black_box(data);
    }

    #[test]
    fn damon_may_move_what_was_decided_and_no_more_than_the_rate() {
        let decided = |to: &[u64], share, aim| {
            let pages: Vec<u64> = (0..to.len() as u64).collect();
            TierDecision { to: Some(to.to_vec()), share, aim, ..decision(0, &pages) }
        };
        let allowed = |to: &[u64], share, aim, rate| {
            allowance(&decided(to, share, aim), Bytes(rate * HUGE), Duration::from_millis(500))
                .map(|bytes| bytes / HUGE)
        };
        // Half a second for two and one pages: twice that a second.
        assert_eq!(allowed(&[0, 0, 1], None, None, 100), [4, 2, 0]);
        assert_eq!(allowed(&[0, 0, 1], None, None, 5), [4, 1, 0]);
        assert_eq!(allowed(&[1, 0], Some(900_000), Some(500_000), 100), [0, 0, 2]);
        assert_eq!(allowed(&[1, 0], Some(500_000), Some(900_000), 100), [2, 2, 0]);
        assert_eq!(allowed(&[], Some(500_000), Some(500_000), 100), [0, 0, 0]);
    }

    #[test]
    fn weights_are_whole_and_never_zero() {
        assert_eq!(weights(0), [1, 31]);
        assert_eq!(weights(500_000), [16, 16]);
        assert_eq!(weights(1_000_000), [31, 1]);
    }
}

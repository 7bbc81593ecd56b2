//! The KSM governor: runs `ksmd` only while the heaps of a program have pages for it to merge.
//!
//! `ksmd` costs CPU time as long as it scans, and finds something only after a heap has made pages
//! identical. A heap says in its statistics page how many such pages it has offered so far
//! (`ksm_offered`). The governor looks at the pages of a program and all its descendants, and
//!
//! ```text
//!            enough pages offered          scans merge no more
//!   resting ──────────────────────► merging ─────────────────► resting
//!   (as found)                      (a scan in one go)
//! ```
//!
//! A page is merged at the second scan that finds it with the same content, and `ksmd` may have begun in the middle of
//! its round. So there are more scans while pages wait and each merges some of them: what a third does not merge, or
//! any later one, was written meanwhile.
//!
//! A scan looks at all that was ever offered, so it should have something to do: the more there is, the more
//! new pages are waited for ([`Throttle`]), the longer they have waited the fewer are enough, and what scans did not
//! merge raises the price of the next ones.
//!
//! `ksmd` sleeps when it has looked at `pages_to_scan` pages or at all, whichever comes first, and a new
//! value of `sleep_millisecs` wakes it. The governor lets it look at everything in one go ([`BATCH`]) and
//! wakes it for the second scan as soon as the first is done; it cannot begin a third one unseen.
//!
//! The settings are on loan ([`pagemill_kernel::settings::ksm_loan`]): they are put back when the governor ends, and by
//! the next one if this one is killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pagemill_kernel::memory::ksm::{Run, Settings};
use pagemill_kernel::settings::ksm_loan::{Loan, TakeOutcome};
use pagemill_kernel::{Linux, Result, settings::loan};
use pagemill_model::Pid;

use pagemill_launch::stats_page::{self, Page};
use pagemill_launch::supervise::Companion;

/// Pages that `ksmd` may look at in one go: a GiB, up to a second of work.
const BATCH: u64 = 1 << 18;

/// How long it sleeps then, milliseconds: unless it is woken. One more wakes it.
const SLEEP: u64 = 200;

/// How often new descendants are looked for; more often at first, when programs start others.
const CENSUS: Duration = Duration::from_millis(500);

/// How often the heaps are looked at while `ksmd` rests, and `ksmd` while it runs.
const RESTING: Duration = Duration::from_millis(50);
const MERGING: Duration = Duration::from_millis(5);

/// Governs `ksmd` on behalf of one program. Dropping it puts the settings back.
pub struct Governor {
    linux: Linux,
    loan: Loan,
    members: BTreeMap<Pid, Member>,
    next_census: Instant,
    census_gap: Duration,
    began: Instant,
    throttle: Throttle,
}

/// A process of the program.
#[derive(Default)]
struct Member {
    started: u64,
    page: Option<Page>,
    censuses: u64,
    /// Pages that its heap had offered at the last look, when the scans under way began, and when those
    /// began that are over.
    offered: u64,
    scanning: u64,
    served: u64,
}

/// What came of asking for a governor.
pub enum Start {
    /// `ksmd` runs already; nothing needs to be governed.
    Running,
    /// Here it is.
    Governor(Box<Governor>),
}

impl Governor {
    /// Borrows `ksmd`. Needs root.
    ///
    /// # Errors
    /// The caller is not root, or the kernel has no KSM.
    pub fn start(linux: &Linux) -> Result<Start> {
        Ok(match Loan::take(linux, &loan::directory(linux))? {
            TakeOutcome::Running(_) => Start::Running,
            TakeOutcome::Borrowed(loan) => Start::Governor(Box::new(Self {
                linux: linux.clone(),
                loan,
                members: BTreeMap::new(),
                next_census: Instant::now(),
                census_gap: RESTING,
                began: Instant::now(),
                throttle: Throttle::default(),
            })),
        })
    }

    /// What is offered, and what `ksmd` has done.
    fn observed(&mut self) -> Result<Observed> {
        let mut observed = Observed { now: self.began.elapsed(), ..Observed::default() };
        for member in self.members.values_mut() {
            let Some(page) = member.page else { continue };
            match page.read() {
                Ok(snapshot) => {
                    member.offered = snapshot.and_then(|heap| heap.ksm_offered).unwrap_or(0);
                    // Less than before is another heap: the process has executed its program anew.
                    member.scanning = member.scanning.min(member.offered);
                    member.served = member.served.min(member.offered);
                    observed.waiting += member.offered - member.served;
                }
                // Another program has been executed there, or the process has ended.
                Err(_) => *member = Member { started: member.started, ..Member::default() },
            }
        }
        if observed.waiting > 0 || self.throttle.is_merging() {
            for pid in self.members.keys() {
                // It may have ended.
                let Ok(stat) = self.linux.ksm_stat(*pid) else { continue };
                observed.known += stat.rmap_items.unwrap_or(0);
                observed.merged += stat.merging_pages.unwrap_or(0);
            }
            observed.scans = self.linux.ksm_counters()?.full_scans;
            observed.is_stopped =
                self.throttle.is_merging() && self.linux.ksm_settings()?.run != Run::Merge;
        }
        Ok(observed)
    }

    /// Strikes out who has ended, adds who is new, and looks for statistics pages.
    fn census(&mut self) {
        let mut to_visit: Vec<Pid> = self.members.keys().copied().collect();
        let mut members = BTreeMap::new();
        while let Some(pid) = to_visit.pop() {
            let Ok(stat) = self.linux.stat(pid) else { continue };
            if stat.state == 'Z' || members.contains_key(&pid) {
                continue;
            }
            let known = self.members.remove(&pid);
            let mut member = known
                .filter(|known| [0, stat.started].contains(&known.started))
                .unwrap_or_default();
            member.started = stat.started;
            member.censuses += 1;
            // A process without a page may be about to load the library, and mostly never is: it is
            // asked ever more rarely.
            if member.page.is_none() && member.censuses.is_power_of_two() {
                member.page = stats_page::locate(&self.linux, pid).unwrap_or(None);
            }
            members.insert(pid, member);
            to_visit.extend(self.linux.children(pid).unwrap_or_default());
        }
        self.members = members;
    }
}

impl Companion for Governor {
    const WHAT: &'static str = "ksmd";

    fn watch(&mut self, pid: Pid) {
        self.members.insert(pid, Member::default());
        self.next_census = Instant::now();
    }

    fn tick(&mut self) -> anyhow::Result<Duration> {
        if Instant::now() >= self.next_census {
            self.census();
            self.next_census = Instant::now() + self.census_gap;
            self.census_gap = (2 * self.census_gap).min(CENSUS);
        }
        let observed = self.observed()?;
        match self.throttle.decide(&observed) {
            Some(Action::Merge) => {
                self.members.values_mut().for_each(|member| member.scanning = member.offered);
                self.loan.set(&fast(self.loan.found(), false))?;
            }
            Some(Action::Again { odd }) => self.loan.set(&fast(self.loan.found(), odd))?,
            Some(Action::Stop) => {
                self.members.values_mut().for_each(|member| member.served = member.scanning);
                self.loan.set(self.loan.found())?;
            }
            // Another borrower may have put it to rest for its own program.
            None if observed.is_stopped => self.loan.set(&fast(self.loan.found(), false))?,
            None => {}
        }
        Ok(if self.throttle.is_merging() { MERGING } else { RESTING })
    }

    fn suspend(&mut self) -> anyhow::Result<()> {
        self.throttle = Throttle::default();
        Ok(self.loan.set(self.loan.found())?)
    }

    fn stop(self) -> anyhow::Result<()> {
        self.loan.give_back().context("the settings of ksmd are not restored")
    }
}

/// Settings under which each time that `ksmd` wakes is one whole scan. With the other value of `odd` than
/// before it wakes now.
fn fast(found: &Settings, odd: bool) -> Settings {
    Settings {
        run: Run::Merge,
        pages_to_scan: found.pages_to_scan.max(BATCH),
        sleep_millisecs: SLEEP + u64::from(odd),
        advisor_mode: found.advisor_mode.as_ref().map(|_| "none".to_owned()),
        // A page that was seen to be unique may have become identical a moment ago.
        smart_scan: found.smart_scan.map(|_| 0),
    }
}

/// What is known when a decision is made.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    /// Time since the governor began.
    now: Duration,
    /// Pages offered that no finished scans have served.
    waiting: u64,
    /// Pages that a scan looks at: those that earlier ones have seen.
    known: u64,
    /// Pages of the program that are merged.
    merged: u64,
    /// Whole scans since the machine started.
    scans: u64,
    /// `ksmd` rests although it should not.
    is_stopped: bool,
}

/// What to do with `ksmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Begin to scan.
    Merge,
    /// Begin the next scan now; `odd` alternates.
    Again { odd: bool },
    /// Stop: merged pages stay merged.
    Stop,
}

/// For so long a heap that goes on offering is waited for: one pass offers many pages.
const GROWING: Duration = Duration::from_millis(400);

/// Of the pages that a scan looks at, the part (one in so many) that should be new.
const NEW: u64 = 16;

/// Of the pages that waited, the part (one in so many) that is little: less than it need not be merged, and a scan that
/// merges less is the last.
const PART: u64 = 16;

/// Scans without a rest: pages that the program writes in between are new ones each time.
const MOST_SCANS: u64 = 8;

/// How often scans that merged little may double what the next ones need.
const MOST_BACKOFF: u32 = 6;

/// Decides when `ksmd` should run; knows no clock and no kernel.
#[derive(Debug, Default)]
struct Throttle {
    state: State,
    /// By how many doublings more new pages are wanted.
    backoff: u32,
}

#[derive(Debug)]
enum State {
    Resting {
        /// When the first of the pages that wait was seen, and how many waited at the last look.
        since: Option<Duration>,
        last: u64,
    },
    Merging {
        /// At the beginning: pages that waited, pages merged, whole scans.
        waiting: u64,
        merged: u64,
        scans: u64,
        /// Scans that `ksmd` was woken for, and pages merged when the last of them began.
        woken: u64,
        before: u64,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Resting { since: None, last: 0 }
    }
}

impl Throttle {
    fn is_merging(&self) -> bool {
        matches!(self.state, State::Merging { .. })
    }

    fn decide(&mut self, observed: &Observed) -> Option<Action> {
        match &mut self.state {
            State::Resting { since, last } => {
                let grows = observed.waiting != *last;
                *last = observed.waiting;
                if observed.waiting == 0 {
                    *since = None;
                    return None;
                }
                let waited = observed.now.saturating_sub(*since.get_or_insert(observed.now));
                let wanted = (observed.known / NEW) << self.backoff;
                // Half as many are enough after a second, a quarter after two.
                let wanted = wanted.checked_shr(waited.as_secs() as u32).unwrap_or(0);
                if grows && waited < GROWING || observed.waiting < wanted {
                    return None;
                }
                let Observed { waiting, merged, scans, .. } = *observed;
                self.state = State::Merging { waiting, merged, scans, woken: 0, before: merged };
                Some(Action::Merge)
            }
            State::Merging { waiting, merged, scans, woken, before } => {
                let done = observed.scans.saturating_sub(*scans);
                let gained = observed.merged.saturating_sub(*merged);
                if done <= *woken {
                    return None;
                }
                let last = observed.merged.saturating_sub(*before);
                (*woken, *before) = (done, observed.merged);
                let all = gained * PART >= *waiting * (PART - 1);
                if done < 2 || done < MOST_SCANS && !all && (done == 2 || last * PART >= *waiting) {
                    return Some(Action::Again { odd: done % 2 == 1 });
                }
                self.backoff = if gained * 4 >= *waiting {
                    self.backoff.saturating_sub(1)
                } else {
                    (self.backoff + 1).min(MOST_BACKOFF)
                };
                self.state = State::default();
                Some(Action::Stop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(millis: u64, waiting: u64, merged: u64, scans: u64) -> Observed {
        let now = Duration::from_millis(millis);
        Observed { now, waiting, known: 10_000, merged, scans, is_stopped: false }
    }

    #[test]
    fn two_scans_serve_what_was_offered_and_the_second_comes_at_once() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.decide(&observed(0, 0, 0, 7)), None);
        assert_eq!(throttle.decide(&observed(50, 4000, 0, 7)), None, "it may go on");
        assert_eq!(throttle.decide(&observed(100, 4000, 0, 7)), Some(Action::Merge));
        assert_eq!(throttle.decide(&observed(105, 4000, 0, 7)), None);
        assert_eq!(throttle.decide(&observed(110, 4000, 0, 8)), Some(Action::Again { odd: true }));
        assert_eq!(throttle.decide(&observed(115, 4000, 1500, 8)), None);
        assert_eq!(throttle.decide(&observed(120, 4000, 3800, 9)), Some(Action::Stop));
        assert_eq!(throttle.decide(&observed(125, 0, 3800, 9)), None);
    }

    #[test]
    fn there_are_more_scans_while_each_merges_more_and_not_for_ever() {
        let scans_of = |merged: [u64; 10]| {
            let mut throttle = Throttle::default();
            throttle.decide(&observed(0, 16_000, 0, 0));
            assert_eq!(throttle.decide(&observed(50, 16_000, 0, 0)), Some(Action::Merge));
            let scans = (1..).zip(merged);
            scans
                .map(|(scan, merged)| (scan, throttle.decide(&observed(60, 16_000, merged, scan))))
                .find(|(_, action)| *action == Some(Action::Stop))
                .map(|(scan, _)| scan)
        };
        // It began in the middle of its round, and merged half in two.
        assert_eq!(scans_of([0, 7000, 14_500, 15_900, 0, 0, 0, 0, 0, 0]), Some(4));
        assert_eq!(scans_of([0, 7000, 7100, 0, 0, 0, 0, 0, 0, 0]), Some(3));
        assert_eq!(scans_of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|scan| scan * 1000)), Some(8));
    }

    #[test]
    fn a_heap_that_goes_on_offering_is_not_waited_for_for_ever() {
        let mut throttle = Throttle::default();
        let mut begun = None;
        for tick in 0..40 {
            let now = tick * 50;
            if throttle.decide(&observed(now, 1000 + tick, 0, 0)).is_some() {
                begun = Some(now);
                break;
            }
        }
        assert_eq!(begun, Some(400));
    }

    #[test]
    fn few_new_pages_among_many_old_ones_wait_and_never_for_ever() {
        let mut throttle = Throttle::default();
        let begun = (0..1000)
            .map(|tick| tick * 50)
            .find(|now| throttle.decide(&observed(*now, 20, 9000, 0)).is_some());
        // 10,000 / 16 halved five times is at most 20.
        assert_eq!(begun, Some(5000));
    }

    #[test]
    fn pages_that_do_not_merge_get_one_more_scan_and_make_the_next_ones_wait() {
        let mut throttle = Throttle::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for round in 0..3 {
            let from = now;
            while throttle.decide(&observed(now, 700, 0, 3 * round)).is_none() {
                now += 50;
            }
            waits.push(now - from);
            for scan in 1..=2 {
                let again = throttle.decide(&observed(now, 700, 0, 3 * round + scan));
                assert!(matches!(again, Some(Action::Again { .. })), "{again:?}");
            }
            assert_eq!(throttle.decide(&observed(now, 700, 0, 3 * round + 3)), Some(Action::Stop));
            assert_eq!(throttle.decide(&observed(now, 0, 0, 3 * round + 3)), None);
        }
        assert!(waits.is_sorted() && waits[2] >= 2000, "{waits:?}");
    }
}

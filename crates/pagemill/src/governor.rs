//! The KSM governor: runs `ksmd` only while the heaps of a program have pages for it to merge.
//!
//! `ksmd` costs CPU time as long as it scans, and finds something only after a heap has made pages
//! identical. A heap says in its statistics page how many such pages are still waiting
//! (`ksm_pending`). The governor looks at the pages of a program and all its descendants, and
//!
//! ```text
//!            pending > 0                     pending = 0, or no progress
//!   resting ──────────────► merging ─────────────────────────────────────► resting
//!   (as found)              (fast, every page)
//! ```
//!
//! *No progress* is [`PATIENCE`] whole scans in which the least number pending has not fallen: what
//! is left cannot be merged now (it was written to meanwhile, or a forked child carries its parent's
//! number). Merging begins again when more pages are pending than were then.
//!
//! The settings are on loan ([`pagemill_kernel::ksm_loan`]): they are put back when the governor ends, and by
//! the next one if this one is killed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagemill_kernel::ksm::{Run, Settings};
use pagemill_kernel::ksm_loan::{Loan, Taken};
use pagemill_kernel::{Linux, Result};

use crate::stats_page::{self, Page};

/// Whole scans without progress after which merging is given up.
const PATIENCE: u64 = 4;

/// How often new descendants are looked for; more often at first, when programs start others.
const CENSUS: Duration = Duration::from_millis(500);

/// How often the number of pending pages is read while `ksmd` rests, and while it runs.
const RESTING: Duration = Duration::from_millis(50);
const MERGING: Duration = Duration::from_millis(10);

/// Where the journal of the loan lives: a place that does not survive a reboot, as the settings do
/// not.
pub fn journal_directory(linux: &Linux) -> PathBuf {
    pagemill_kernel::loan::directory(linux)
}

/// Governs `ksmd` on behalf of one program. Dropping it puts the settings back.
pub struct Governor {
    linux: Linux,
    loan: Loan,
    members: BTreeMap<u32, Member>,
    next_census: Instant,
    census_gap: Duration,
    throttle: Throttle,
}

/// A process of the program.
#[derive(Default)]
struct Member {
    started: u64,
    page: Option<Page>,
    censuses: u64,
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
    pub fn start(linux: &Linux) -> Result<Start> {
        Ok(match Loan::take(linux, &journal_directory(linux))? {
            Taken::Running(_) => Start::Running,
            Taken::Borrowed(loan) => Start::Governor(Box::new(Self {
                linux: linux.clone(),
                loan,
                members: BTreeMap::new(),
                next_census: Instant::now(),
                census_gap: RESTING,
                throttle: Throttle::default(),
            })),
        })
    }

    /// Puts the process that the program begins with, and so all its descendants, under it.
    pub fn watch(&mut self, pid: u32) {
        self.members.insert(pid, Member::default());
        self.next_census = Instant::now();
    }

    /// Looks once and sets `ksmd` accordingly; returns how long to wait before the next look.
    pub fn tick(&mut self) -> Result<Duration> {
        if Instant::now() >= self.next_census {
            self.census();
            self.next_census = Instant::now() + self.census_gap;
            self.census_gap = (2 * self.census_gap).min(CENSUS);
        }
        let pending = self.pending();
        let scans = self.linux.ksm_counters()?.full_scans;
        match self.throttle.decide(pending, scans) {
            Some(Run::Merge) => self.loan.set(&fast(self.loan.found()))?,
            Some(_) => self.rest()?,
            None => {}
        }
        Ok(if self.throttle.merging { MERGING } else { RESTING })
    }

    /// Lets `ksmd` rest as it was found to, until the next tick that finds pages pending.
    pub fn rest(&mut self) -> Result<()> {
        self.throttle = Throttle::default();
        self.loan.set(self.loan.found())
    }

    /// Puts everything back and says whether that worked.
    pub fn stop(self) -> Result<()> {
        self.loan.give_back()
    }

    /// Pages that wait to be merged, over all members.
    fn pending(&mut self) -> u64 {
        let mut sum = 0;
        for member in self.members.values_mut() {
            let Some(page) = member.page else { continue };
            match page.read() {
                Ok(snapshot) => {
                    sum += snapshot.and_then(|snapshot| snapshot.ksm_pending).unwrap_or(0)
                }
                // Another program has been executed there, or the process has ended.
                Err(_) => *member = Member { started: member.started, ..Member::default() },
            }
        }
        sum
    }

    /// Strikes out who has ended, adds who is new, and looks for statistics pages.
    fn census(&mut self) {
        let mut to_visit: Vec<u32> = self.members.keys().copied().collect();
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

/// Settings that merge what is pending in the least time. The work is the same as at a slow pace,
/// and it ends sooner.
fn fast(found: &Settings) -> Settings {
    Settings {
        run: Run::Merge,
        pages_to_scan: found.pages_to_scan.max(20_000),
        sleep_millisecs: found.sleep_millisecs.min(2),
        advisor_mode: found.advisor_mode.as_ref().map(|_| "none".to_owned()),
        // A page that was seen to be unique may have become identical a moment ago.
        smart_scan: found.smart_scan.map(|_| 0),
    }
}

/// Decides when `ksmd` should run; knows no clock and no kernel.
#[derive(Debug, Default)]
struct Throttle {
    merging: bool,
    /// The least number pending since merging began, and the scan at which that was seen.
    least: u64,
    seen_at: u64,
    /// How many pages were left when merging was given up.
    given_up: u64,
}

impl Throttle {
    /// What to change, if anything, given the pages pending and the whole scans so far.
    fn decide(&mut self, pending: u64, scans: u64) -> Option<Run> {
        // Those that were given up may merge or vanish meanwhile.
        self.given_up = self.given_up.min(pending);
        if !self.merging {
            if pending <= self.given_up {
                return None;
            }
            *self = Self { merging: true, least: pending, seen_at: scans, given_up: 0 };
            return Some(Run::Merge);
        }
        if pending < self.least {
            (self.least, self.seen_at) = (pending, scans);
        }
        if pending > 0 && scans.saturating_sub(self.seen_at) < PATIENCE {
            return None;
        }
        *self = Self { given_up: pending, ..Self::default() };
        Some(Run::Rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_while_pages_are_pending_and_rests_when_none_are() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.decide(0, 0), None);
        assert_eq!(throttle.decide(500, 0), Some(Run::Merge));
        assert_eq!(throttle.decide(300, 1), None);
        assert_eq!(throttle.decide(0, 2), Some(Run::Rest));
        assert_eq!(throttle.decide(0, 2), None);
    }

    #[test]
    fn pages_that_never_merge_do_not_keep_it_running() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.decide(500, 10), Some(Run::Merge));
        assert_eq!(throttle.decide(400, 12), None, "that was progress");
        assert_eq!(throttle.decide(400, 15), None);
        assert_eq!(throttle.decide(400, 16), Some(Run::Rest));
        assert_eq!(throttle.decide(400, 16), None, "still the same pages");
        assert_eq!(throttle.decide(401, 16), Some(Run::Merge), "a new one");
    }

    #[test]
    fn pages_given_up_are_not_held_against_new_ones_for_ever() {
        let mut throttle = Throttle::default();
        throttle.decide(500, 0);
        assert_eq!(throttle.decide(500, 4), Some(Run::Rest));
        assert_eq!(throttle.decide(0, 4), None);
        assert_eq!(throttle.decide(3, 4), Some(Run::Merge));
    }

    #[test]
    fn new_pages_while_it_runs_do_not_count_as_progress() {
        let mut throttle = Throttle::default();
        throttle.decide(10, 0);
        assert_eq!(throttle.decide(1000, 2), None);
        assert_eq!(throttle.decide(1000, 4), Some(Run::Rest));
    }
}

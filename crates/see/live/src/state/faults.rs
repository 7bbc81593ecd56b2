//! Page faults of the last minute by the second, the long ones one by one, and when short ones were a stall together.
//!
//! Terms: a *burst* is a stretch of [`STALL`] of which a thread spent half or more in shorter faults.
//!
//! Always true: the faults of a stretch of time and how long it is are those of the same rows: what is counted at the
//! end of an interval is divided by that interval.

use std::collections::{BTreeMap, VecDeque};

use pagemill_analysis::faults::{Cause, FaultFold};
use pagemill_analysis::latency::Histogram;
use pagemill_analysis::spikes::SpikeFold;
use pagemill_model::recording::Meta;
use pagemill_model::sums::{add, sum};
use pagemill_model::{Event, Fault, Fold as _, Nanos, Pid, latency};

use super::history::History;

/// A fault from here on is a stall that somebody notices.
pub const STALL: Nanos = Nanos(1_000_000);
/// What is kept second by second.
pub const MINUTE: Nanos = Nanos(60_000_000_000);
const SECOND: u64 = 1_000_000_000;
/// Seconds that a stretch of time has at least: nothing is divided by less.
const SHORTEST: f64 = 0.001;
/// Stalls of the last minute that are kept.
const STALLS: usize = 4096;

/// A fault that took long.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// When it ended.
    pub time: Nanos,
    /// How long it took.
    pub latency: Nanos,
    /// What most of that went into.
    pub cause: Cause,
    /// What lay at the address.
    pub place: String,
}

/// Faults of a second.
#[derive(Clone, Debug, Default)]
struct FaultSecond {
    times: Histogram,
    untimed: u64,
    /// From when on they were counted: the moment of the row before.
    from: Nanos,
}

/// Faults of some stretch of time together.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// Those with a time.
    pub times: Histogram,
    /// All of them.
    pub count: u64,
    /// How long the stretch is, s.
    pub seconds: f64,
    /// The longest that has a row.
    row: Option<Nanos>,
}

impl Recent {
    /// The longest: that of its row, if it has one, else the middle of its bucket.
    pub fn longest(&self) -> Option<Nanos> {
        longest(&self.times, self.row)
    }
}

/// The longest of these times: exact where a row is in the bucket of the longest.
fn longest(times: &Histogram, row: Option<Nanos>) -> Option<Nanos> {
    let middle = times.max()?;
    let exact = row.filter(|row| latency::bucket(*row) == latency::bucket(middle));
    Some(exact.unwrap_or(middle))
}

/// Page faults so far.
#[derive(Debug)]
pub struct Faults {
    seconds: BTreeMap<u64, FaultSecond>,
    /// The longest fault with a row of each second.
    rows: BTreeMap<u64, Nanos>,
    /// When faults were last counted.
    counted: Option<Nanos>,
    spikes: SpikeFold,
    /// Bursts that ended in each second of the last minute.
    bursts: BTreeMap<u64, u64>,
    /// Knows causes and places.
    fold: FaultFold,
    stalls: VecDeque<Stall>,
    /// The longest of all.
    pub longest: Option<Stall>,
    /// The longest of each second over time, ns.
    pub tail: History,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            seconds: BTreeMap::new(),
            rows: BTreeMap::new(),
            counted: None,
            spikes: SpikeFold::new(STALL),
            bursts: BTreeMap::new(),
            fold: FaultFold::default(),
            stalls: VecDeque::new(),
            longest: None,
            tail: History::default(),
        }
    }
}

impl Faults {
    /// Takes in an event. `meta` says how faults are measured.
    pub fn event(&mut self, event: &Event, meta: &Meta) {
        match event {
            Event::FaultCounts(row) => {
                let counts = row.counts.as_deref().unwrap_or_default();
                let second = row.time.0 / SECOND;
                let began = meta.faults.as_ref().and_then(|setup| setup.from);
                // Where there were none there is no row: it is not of more than an interval, or a bit more if late.
                let longest = meta.interval.0.saturating_add(meta.interval.0 / 4).max(SECOND);
                let before = self.counted.or(began).unwrap_or(meta.started).min(row.time);
                let from = before.max(Nanos(row.time.0.saturating_sub(longest)));
                self.turn(second);
                self.counted = Some(row.time);
                let bin = self
                    .seconds
                    .entry(second)
                    .or_insert(FaultSecond { from, ..FaultSecond::default() });
                match row.buckets.as_deref() {
                    Some(buckets) => {
                        let bucket = |bucket: &u64| u32::try_from(*bucket).unwrap_or(u32::MAX);
                        let rows = buckets.iter().map(bucket).zip(counts);
                        rows.for_each(|(bucket, count)| bin.times.add(bucket, *count));
                    }
                    None => {
                        add(&mut bin.untimed, sum(counts.iter().copied()));
                    }
                }
            }
            Event::FaultSum(sum) => {
                let burst = self.spikes.sum(sum);
                self.burst(burst.then_some(sum.time));
            }
            Event::Fault(fault) => {
                let burst = self.spikes.fault(fault);
                self.burst(burst.then_some(fault.time));
                meta.faults.iter().for_each(|setup| self.fold.know(setup));
                self.fault(fault);
            }
            // What lies at addresses.
            Event::Mapping(_) => self.fold.event(event),
            _ => {}
        }
    }

    /// A burst ended, if one did.
    fn burst(&mut self, ended: Option<Nanos>) {
        let Some(time) = ended else { return };
        let second = time.0 / SECOND;
        add(self.bursts.entry(second).or_default(), 1);
        let oldest = second.saturating_sub(MINUTE.0 / SECOND);
        self.bursts.retain(|at, _| *at >= oldest);
    }

    fn fault(&mut self, fault: &Fault) {
        let row = self.rows.entry(fault.time.0 / SECOND).or_default();
        *row = fault.latency.max(*row);
        let longest = self.longest.as_ref().map_or(Nanos(0), |longest| longest.latency);
        if fault.latency < STALL && fault.latency <= longest {
            return;
        }
        let at = fault.pid.zip(fault.address);
        let place = at.map(|(pid, address)| self.fold.label(Pid::told(pid), address));
        let stall = Stall {
            time: fault.time,
            latency: fault.latency,
            cause: self.fold.cause(fault),
            place: place.unwrap_or_else(|| "unknown".into()),
        };
        if longest < stall.latency {
            self.longest = Some(stall.clone());
        }
        if stall.latency >= STALL {
            self.stalls.push_back(stall);
        }
        let old = |first: &Stall| fault.time.since(first.time) > MINUTE;
        while self.stalls.len() > STALLS || self.stalls.front().is_some_and(old) {
            self.stalls.pop_front();
        }
    }

    /// A second begins: those before it are whole.
    fn turn(&mut self, second: u64) {
        if self.seconds.contains_key(&second) {
            return;
        }
        if let Some((last, bin)) = self.seconds.last_key_value().filter(|(last, _)| **last < second)
        {
            let time = Nanos(last.saturating_mul(SECOND));
            // What was counted in it may have ended in the second before.
            let row = self.rows.range(last.saturating_sub(1)..=*last).map(|(_, row)| *row).max();
            let longest = longest(&bin.times, row);
            self.tail.add(time, longest.map_or(0.0, |longest| longest.0 as f64));
        }
        let oldest = second.saturating_sub(MINUTE.0 / SECOND);
        self.rows.retain(|at, _| *at >= oldest);
        self.seconds.retain(|at, _| *at >= oldest);
    }

    /// The faults of the last `length`, up to `now`, of a program that has been looked at since `began`.
    pub fn recent(&self, length: Nanos, began: Nanos, now: Nanos) -> Recent {
        let first = now.0.saturating_sub(length.0) / SECOND + 1;
        let mut recent = Recent::default();
        // The seconds before the first that has any are a part of it.
        let whole = Nanos(now.0.saturating_sub(length.0)).max(began);
        let from = self.seconds.range(first..).next().map_or(whole, |(_, bin)| bin.from);
        for (_, bin) in self.seconds.range(first..) {
            recent.times.merge(&bin.times);
            recent.count = recent.count.saturating_add(bin.untimed);
        }
        recent.count = recent.count.saturating_add(recent.times.total());
        recent.row = self.rows.range(first.saturating_sub(1)..).map(|(_, row)| *row).max();
        recent.seconds = now.since(from.min(whole)).seconds().max(SHORTEST);
        recent
    }

    /// How long the faults of the last minute took.
    pub fn took(&self, now: Nanos) -> Nanos {
        let first = now.0.saturating_sub(MINUTE.0) / SECOND;
        Nanos(sum(self.seconds.range(first..).map(|(_, bin)| bin.times.sum().0)))
    }

    /// The bursts of the last minute.
    pub fn bursts(&self, now: Nanos) -> u64 {
        let first = now.0.saturating_sub(MINUTE.0) / SECOND;
        sum(self.bursts.range(first..).map(|(_, bursts)| *bursts))
    }

    /// The stalls of the last `length`, oldest first.
    pub fn stalls(&self, length: Nanos, now: Nanos) -> impl Iterator<Item = &Stall> {
        self.stalls.iter().filter(move |stall| now.since(stall.time) <= length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::{FaultCounts, FaultSetup};

    fn counts(millis: u64, times: &[(u64, u64)]) -> Event {
        let bucket = |(nanos, _): &(u64, u64)| u64::from(latency::bucket(Nanos(*nanos)));
        Event::FaultCounts(Box::new(FaultCounts {
            time: Nanos(millis * 1_000_000),
            flags: Some(0),
            buckets: Some(times.iter().map(bucket).collect()),
            counts: Some(times.iter().map(|(_, count)| *count).collect()),
        }))
    }

    fn slow(millis: u64, latency: u64, compaction: u64) -> Event {
        Event::Fault(Box::new(Fault {
            time: Nanos(millis * 1_000_000),
            latency: Nanos(latency),
            compaction: Some(Nanos(compaction)),
            ..Fault::default()
        }))
    }

    #[test]
    fn the_last_seconds_are_apart_from_what_was_before() {
        let (mut faults, meta) = (Faults::default(), Meta::default());
        faults.event(&counts(1_000, &[(1_000, 900), (2_000_000, 1)]), &meta);
        faults.event(&counts(30_000, &[(1_000, 100)]), &meta);
        let of = |faults: &Faults, seconds: u64| {
            let length = Nanos(seconds * SECOND);
            faults.recent(length, Nanos(0), Nanos(30_500_000_000))
        };
        assert_eq!((of(&faults, 10).count, of(&faults, 60).count), (100, 1001));
        assert!(of(&faults, 10).times.max().unwrap() < Nanos(1_100));
        assert!(of(&faults, 60).times.max().unwrap() > STALL);
        // A rest has no rows, and is a part of the stretch all the same.
        assert_eq!((of(&faults, 10).seconds, of(&faults, 60).seconds), (10.0, 30.5));
        // What is older than a minute is kept no more.
        faults.event(&counts(100_000, &[(1_000, 5)]), &meta);
        assert_eq!(faults.seconds.len(), 1);
    }

    /// Once, what was counted over an interval of seconds was divided by another time, 40 times as long in the first
    /// frame.
    #[test]
    fn a_rate_is_of_the_time_in_which_its_faults_were_counted() {
        let setup = FaultSetup { from: Some(Nanos(20 * SECOND)), ..FaultSetup::default() };
        let interval = Nanos(4 * SECOND);
        let meta = Meta { faults: Some(setup), interval, ..Meta::default() };
        let mut faults = Faults::default();
        let rate = |faults: &Faults, now: u64| {
            let began = Nanos(20_500_000_000);
            let recent = faults.recent(Nanos(10 * SECOND), began, Nanos(now * 1_000_000));
            recent.count as f64 / recent.seconds
        };
        assert_eq!(rate(&faults, 20_900), 0.0);
        faults.event(&counts(20_250, &[(1_000, 250)]), &meta);
        assert!((300.0..1000.0).contains(&rate(&faults, 20_600)), "{}", rate(&faults, 20_600));
        for second in (24..60).step_by(4) {
            faults.event(&counts(second * 1000 + 250, &[(1_000, 3000), (2_000, 1000)]), &meta);
            assert_eq!(rate(&faults, second * 1000 + 250), 1000.0, "{second}");
        }
        // After a rest, which has no rows, the interval before the next row is no longer than it can be.
        faults.event(&counts(160_000, &[(1_000, 4000)]), &meta);
        assert_eq!(rate(&faults, 160_000), 400.0, "the rest is a part of the 10 s");
    }

    /// "max 438.3 us" stood where the report says 435.3.
    #[test]
    fn the_longest_is_exact_where_it_has_a_row() {
        let (mut faults, meta) = (Faults::default(), Meta::default());
        let max = |faults: &Faults| {
            let now = Nanos(2_500_000_000);
            faults.recent(MINUTE, Nanos(0), now).longest().map(|longest| longest.0)
        };
        faults.event(&counts(1_900, &[(435_300, 1)]), &meta);
        let middle = latency::middle(latency::bucket(Nanos(435_300)));
        assert_eq!(max(&faults), Some(middle.0));
        faults.event(&slow(1_800, 435_300, 0), &meta);
        assert_eq!(max(&faults), Some(435_300));
        faults.event(&counts(2_400, &[(2_000_000, 1)]), &meta);
        assert!(max(&faults) > Some(1_900_000), "a longer one whose row was lost");
        assert_eq!(faults.tail.last(), Some(435_300.0));
    }

    #[test]
    fn a_stall_has_its_cause_and_leaves_after_a_minute_but_for_the_longest() {
        let faults = FaultSetup { details: true, ..FaultSetup::default() };
        let meta = Meta { faults: Some(faults), ..Meta::default() };
        let mut faults = Faults::default();
        faults.event(&slow(1_000, 7_000_000, 6_000_000), &meta);
        faults.event(&slow(2_000, 20_000, 0), &meta);
        faults.event(&slow(50_000, 2_000_000, 0), &meta);
        let now = Nanos(51 * SECOND);
        let causes: Vec<_> = faults.stalls(MINUTE, now).map(|stall| stall.cause).collect();
        assert_eq!(causes, [Cause::Compaction, Cause::Waiting]);
        assert_eq!(faults.stalls(Nanos(10 * SECOND), now).count(), 1);
        faults.event(&slow(90_000, 1_000_000, 0), &meta);
        assert_eq!(faults.stalls(MINUTE, Nanos(90 * SECOND)).count(), 2);
        assert_eq!(faults.longest.as_ref().unwrap().latency, Nanos(7_000_000));
    }
}

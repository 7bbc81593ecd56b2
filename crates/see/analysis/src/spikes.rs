//! Whether page faults explain stalls of a length: single ones that took so long, and stretches of that length of which
//! a thread spent half or more in shorter ones, however short each of them was.
//!
//! Terms:
//! - a *slow* fault has a row; a *sum* is a row of short ones of a thread, which took [`SUM`] together.
//! - a *burst* is such a stretch. None overlaps another of its thread.
//!
//! A sum of faults that are further apart than the length counts by the part of it that may lie within. Less than a sum
//! may be missing at both ends of a stretch, and what is spent in sparse faults (a sixteenth of the time at most) is:
//! where that matters, and where a recording has no sums, faults that may make a stall are [`Inconclusive`].

use std::collections::{BTreeMap, VecDeque};

use pagemill_model::fault::SUM;
use pagemill_model::{Fault, FaultSum, Nanos};

/// So many sums a length has at least, or they are too coarse for it.
const SUMS: u64 = 10;
/// Threads that are kept, if not all of them fault just now.
const THREADS: usize = 1024;

/// What explains stalls of a length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spikes {
    /// The length.
    pub length: Nanos,
    /// Faults that took that long or longer.
    pub faults: u64,
    /// Stretches of that length in which a thread spent half or more in shorter faults.
    pub bursts: u64,
    /// When the first and the last of all these ended.
    pub ended: Option<(Nanos, Nanos)>,
}

impl Spikes {
    /// The same, whose times count from a moment.
    #[must_use]
    pub fn since(self, started: Nanos) -> Self {
        Self {
            ended: self.ended.map(|(one, last)| (one.since(started), last.since(started))),
            ..self
        }
    }

    /// Where nothing took that long by itself, and all stretches ended in the first twentieth of a recording of this
    /// length: when the last did. A program that sets up its data says nothing of stalls later.
    pub fn only_at_the_start(&self, length: Nanos) -> Option<Nanos> {
        const START: u64 = 20;
        let (_, last) = self.ended.filter(|_| self.faults == 0 && self.bursts > 0)?;
        (last.0 <= length.0 / START).then_some(last)
    }

    fn see(&mut self, end: Nanos) {
        let (first, last) = self.ended.unwrap_or((end, end));
        self.ended = Some((first.min(end), last.max(end)));
    }
}

/// Why it cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconclusive {
    /// Faults are counted and not timed.
    Untimed,
    /// So many faults, or rows of them, were lost.
    Lost(u64),
    /// So many of all were made by the kernel inside of system calls, and are not timed.
    InCalls(u64, u64),
    /// So many faults below the threshold took so long together, and nobody knows when each was.
    Short(u64, Nanos),
}

/// Faults of a thread in the last stretch.
#[derive(Clone, Debug, Default)]
struct RecentFaults {
    /// When each ended, ns that it took.
    faults: VecDeque<(Nanos, u64)>,
    /// ns that they took together.
    took: u64,
}

/// Finds what may be stalls of a length, fault by fault.
#[derive(Clone, Debug, Default)]
pub struct SpikeFold {
    spikes: Spikes,
    threads: BTreeMap<u64, RecentFaults>,
}

impl SpikeFold {
    /// Of stalls of this length.
    pub fn new(length: Nanos) -> Self {
        Self { spikes: Spikes { length, ..Spikes::default() }, threads: BTreeMap::new() }
    }

    /// What there is so far.
    pub fn spikes(&self) -> Spikes {
        self.spikes
    }

    /// Takes in a slow fault; whether it makes a burst with those before it.
    pub fn fault(&mut self, fault: &Fault) -> bool {
        if fault.latency >= self.spikes.length {
            self.spikes.faults += 1;
            self.spikes.see(fault.time);
            return false;
        }
        self.add(fault.tid, fault.time, fault.latency.0)
    }

    /// Takes in short ones; whether they make a burst with those before them.
    pub fn sum(&mut self, sum: &FaultSum) -> bool {
        let length = self.spikes.length.0;
        let ns = |time: Option<Nanos>| time.map_or(0, |time| time.0);
        let (took, span) = (ns(sum.took), ns(sum.span));
        if sum.faults == Some(1) && took >= length {
            self.spikes.faults += 1;
            self.spikes.see(sum.time);
            return false;
        }
        let within = match span > length {
            true => u128::from(took) * u128::from(length) / u128::from(span),
            false => took.into(),
        };
        self.add(sum.tid, sum.time, u64::try_from(within).unwrap_or(u64::MAX))
    }

    fn add(&mut self, thread: Option<u64>, end: Nanos, took: u64) -> bool {
        let length = self.spikes.length;
        if self.threads.len() > THREADS {
            let ended =
                |recent: &RecentFaults| recent.faults.back().map_or(Nanos(0), |last| last.0);
            self.threads.retain(|_, recent| end.since(ended(recent)) < length);
        }
        let recent = self.threads.entry(thread.unwrap_or(0)).or_default();
        recent.faults.push_back((end, took));
        recent.took = recent.took.saturating_add(took);
        while let Some((before, took)) = recent.faults.front()
            && end.since(*before) >= length
        {
            recent.took = recent.took.saturating_sub(*took);
            recent.faults.pop_front();
        }
        let burst = recent.took >= length.0.div_ceil(2);
        if burst {
            self.spikes.bursts += 1;
            self.spikes.see(end);
            *recent = RecentFaults::default();
        }
        burst
    }
}

/// Whether sums are fine enough for stalls of a length.
pub fn are_fine(sum: Option<Nanos>, length: Nanos) -> bool {
    sum.is_some_and(|sum| length.0 / SUMS >= sum.max(SUM).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "May explain stalls" was said of a program whose stalls came all from a disk, for it had set up its data.
    #[test]
    fn stretches_at_the_start_say_nothing_of_stalls_later() {
        let of = |faults, bursts, last: u64| {
            let ended = Some((Nanos(3), Nanos(last)));
            let spikes = Spikes { length: Nanos(5), faults, bursts, ended };
            spikes.only_at_the_start(Nanos(1000)).map(|last| last.0)
        };
        assert_eq!((of(0, 3, 50), of(0, 3, 51), of(1, 3, 50)), (Some(50), None, None));
        assert_eq!(Spikes::default().only_at_the_start(Nanos(1000)), None);
    }

    const MS: u64 = 1_000_000;

    fn sum(end: u64, span: u64, took: u64, tid: u64) -> FaultSum {
        FaultSum {
            time: Nanos(end),
            span: Some(Nanos(span)),
            took: Some(Nanos(took)),
            faults: Some(50),
            pid: Some(1),
            tid: Some(tid),
        }
    }

    /// What sums of 100 us come to that end at these times, of two threads in turn or of one.
    fn spikes(length: u64, ends: impl Iterator<Item = u64>, span: u64, threads: u64) -> Spikes {
        let mut fold = SpikeFold::new(Nanos(length));
        for (number, end) in ends.enumerate() {
            fold.sum(&sum(end, span, 100_000, number as u64 % threads));
        }
        fold.spikes()
    }

    #[test]
    fn a_stall_of_many_short_faults_is_one_and_what_two_threads_share_or_what_is_sparse_is_none() {
        // 13 ms of faults: two stretches of 5 ms of which half is over, and what is left.
        let of = |every: u64, threads| spikes(5 * MS, (1..=130).map(|n| n * every), every, threads);
        assert_eq!((of(100_000, 1).faults, of(100_000, 1).bursts), (0, 5));
        assert_eq!(of(190_000, 1).bursts, 5, "just over half of the time");
        assert_eq!(of(220_000, 1).bursts, 0, "less than half");
        assert_eq!(of(190_000, 2).bursts, 0, "each of two threads has a quarter");
    }

    #[test]
    fn a_sum_that_is_longer_than_the_stall_counts_in_part() {
        // A tenth of 1 ms is spent in faults: that is no stall of 100 us.
        assert_eq!(spikes(MS / 10, (1..=9).map(|n| n * MS), MS, 1).bursts, 0);
        assert_eq!(spikes(MS / 10, (1..=9).map(|n| n * MS), MS / 10, 1).bursts, 9);
    }

    #[test]
    fn one_fault_below_a_high_threshold_is_a_stall_by_itself() {
        let mut fold = SpikeFold::new(Nanos(5 * MS));
        fold.sum(&FaultSum { faults: Some(1), ..sum(9 * MS, 6 * MS, 6 * MS, 1) });
        let Spikes { faults, bursts, ended, .. } = fold.spikes();
        assert_eq!((faults, bursts), (1, 0));
        assert!(ended.is_some_and(|(first, last)| first == last), "{ended:?}");
    }

    #[test]
    fn threads_that_ended_are_kept_in_bounded_room() {
        let mut fold = SpikeFold::new(Nanos(MS));
        let bursts = (0..10_000).filter(|tid| fold.sum(&sum((tid + 1) * MS, 100, 100, *tid)));
        assert_eq!(bursts.count(), 0);
        assert!(fold.threads.len() <= THREADS + 1, "{}", fold.threads.len());
    }
}

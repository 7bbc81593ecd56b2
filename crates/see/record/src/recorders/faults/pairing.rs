//! Samples of software events, made into faults: a thread's `page-faults` begins one, its `minor-faults`
//! or `major-faults` at the same address ends it.
//!
//! Samples come from a ring for each processor, and a thread may begin a fault on one and end it on
//! another, so what the rings held at one moment is sorted by time first; samples younger than that
//! moment wait for the next, since another ring may still get an older one.
//!
//! Always true: no end is paired twice; a fault's beginning is the last one of its thread before its end.

use std::collections::HashMap;

use pagemill_model::Pid;

/// What a sample marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// A fault begins.
    Begin,
    /// It ends; `major` if it needed I/O.
    End {
        /// Whether it needed I/O.
        major: bool,
    },
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When, ns.
    pub time: u64,
    /// What it marks.
    pub mark: Mark,
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
    /// The address that was touched.
    pub address: u64,
}

/// A fault with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paired {
    /// The sample that ended it.
    pub end: Sample,
    /// How long it took, ns.
    pub latency: u64,
}

/// Samples that wait for their other half.
#[derive(Debug, Default)]
pub struct Pairing {
    waiting: Vec<Sample>,
    /// Time and address at which each thread's fault began.
    begun: HashMap<Pid, (u64, u64)>,
    unmatched: u64,
}

impl Pairing {
    /// Takes a sample in.
    pub fn sample(&mut self, sample: Sample) {
        self.waiting.push(sample);
    }

    /// Hands each fault that ended before `until` to `each`.
    pub fn pair(&mut self, until: u64, mut each: impl FnMut(Paired)) {
        self.waiting.sort_by_key(|sample| (sample.time, sample.mark));
        let ready = self.waiting.partition_point(|sample| sample.time < until);
        for sample in self.waiting.drain(..ready) {
            match sample.mark {
                Mark::Begin => {
                    self.begun.insert(sample.thread, (sample.time, sample.address));
                }
                Mark::End { .. } => match self.begun.remove(&sample.thread) {
                    // One of another processor that came late may be older.
                    Some((begun, address)) if address == sample.address && begun <= sample.time => {
                        each(Paired { end: sample, latency: sample.time - begun });
                    }
                    _ => self.unmatched += 1,
                },
            }
        }
    }

    /// Ends without a beginning so far.
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: u64, mark: Mark, thread: Pid, address: u64) -> Sample {
        Sample { time, mark, process: Pid(1), thread, address }
    }

    const END: Mark = Mark::End { major: false };

    fn latencies(pairing: &mut Pairing, until: u64) -> Vec<u64> {
        let mut all = Vec::new();
        pairing.pair(until, |paired| all.push(paired.latency));
        all
    }

    #[test]
    fn ends_find_their_beginnings_across_rings() {
        let mut pairing = Pairing::default();
        // The second ring is read first: thread 7 ended there.
        pairing.sample(sample(50, END, Pid(7), 0x1000));
        pairing.sample(sample(20, Mark::Begin, Pid(7), 0x1000));
        pairing.sample(sample(30, Mark::Begin, Pid(8), 0x1000));
        assert_eq!(latencies(&mut pairing, 60), [30]);
        pairing.sample(sample(70, END, Pid(8), 0x1000));
        assert!(latencies(&mut pairing, 70).is_empty());
        assert_eq!(latencies(&mut pairing, 71), [40]);
        assert_eq!(pairing.unmatched(), 0);
    }

    #[test]
    fn an_end_that_comes_late_and_is_older_is_not_of_that_beginning() {
        let mut pairing = Pairing::default();
        pairing.sample(sample(20, Mark::Begin, Pid(7), 0x1000));
        assert!(latencies(&mut pairing, 30).is_empty());
        pairing.sample(sample(10, END, Pid(7), 0x1000));
        assert!(latencies(&mut pairing, 30).is_empty());
        assert_eq!(pairing.unmatched(), 1);
    }

    #[test]
    fn a_fault_that_failed_is_not_taken_for_the_next() {
        let mut pairing = Pairing::default();
        pairing.sample(sample(1, Mark::Begin, Pid(7), 0x1000));
        pairing.sample(sample(5, Mark::Begin, Pid(7), 0x2000));
        pairing.sample(sample(9, END, Pid(7), 0x2000));
        pairing.sample(sample(12, END, Pid(7), 0x3000));
        assert_eq!(latencies(&mut pairing, 100), [4]);
        assert_eq!(pairing.unmatched(), 1);
    }
}

//! Events in time order: a wheel of slots, one a clock, and a heap for what lies beyond it.
//!
//! Always so: events of a clock come out in the order in which they went in; none comes out early or twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SLOTS: u64 = 1 << 12;

/// A wheel of events that fit in 32 bits.
#[derive(Clone, Debug)]
pub struct Wheel {
    slots: Vec<Vec<u32>>,
    /// Time, order of arrival, event.
    beyond: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pushed: u64,
    now: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            slots: vec![Vec::with_capacity(8); SLOTS as usize],
            beyond: BinaryHeap::new(),
            pushed: 0,
            now: 0,
        }
    }
}

impl Wheel {
    /// The present clock.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Adds an event; one for the past comes out at the present clock.
    pub fn push(&mut self, time: u64, event: u32) {
        let time = time.max(self.now);
        if time < self.now + SLOTS {
            self.slots[(time % SLOTS) as usize].push(event);
        } else {
            self.pushed += 1;
            self.beyond.push(Reverse((time, self.pushed, event)));
        }
    }

    /// The `at`-th event of the present clock; events may be added to it meanwhile.
    #[must_use]
    pub fn event(&self, at: usize) -> Option<u32> {
        self.slots[(self.now % SLOTS) as usize].get(at).copied()
    }

    /// Goes on to the next clock.
    pub fn step(&mut self) {
        self.slots[(self.now % SLOTS) as usize].clear();
        self.now += 1;
        while let Some(&Reverse((time, _, event))) = self.beyond.peek()
            && time < self.now + SLOTS
        {
            self.beyond.pop();
            self.slots[(time % SLOTS) as usize].push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_event_comes_out_once_at_its_time(times in prop::collection::vec(0_u64..20_000, 0..300)) {
            let mut wheel = Wheel::default();
            for (event, &time) in times.iter().enumerate() {
                wheel.push(time, event as u32);
            }
            let mut seen = vec![0; times.len()];
            while wheel.now() < 20_001 {
                let mut at = 0;
                while let Some(event) = wheel.event(at) {
                    at += 1;
                    prop_assert_eq!(times[event as usize], wheel.now());
                    seen[event as usize] += 1;
                }
                wheel.step();
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }
    }
}

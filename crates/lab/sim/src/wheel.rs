//! Events in time order: a wheel of clocks, and a heap for what lies beyond it.
//!
//! Each clock of the wheel has a queue of events, linked through one pool, so that what is in use stays in the nearest
//! cache however far ahead it lies; a bit a clock says where there are any, so that empty clocks cost nothing.
//!
//! Always so: events of a clock come out in the order in which they went in; none comes out early or twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SLOTS: u64 = 1 << 10;
const WORDS: usize = (SLOTS / 64) as usize;
const NONE: u32 = u32::MAX;

/// A queue's first and last event in the pool.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

/// A wheel of events that fit in 32 bits.
#[derive(Clone, Debug)]
pub struct Wheel {
    queues: Vec<Queue>,
    /// A bit for each clock whose queue holds something.
    filled: [u64; WORDS],
    /// Events, and the place of the next one of the same clock, or of the next unused place.
    pool: Vec<(u32, u32)>,
    unused: u32,
    /// Time, order of arrival, event.
    beyond: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pushed: u64,
    now: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            queues: vec![Queue { first: NONE, last: NONE }; SLOTS as usize],
            filled: [0; WORDS],
            pool: Vec::new(),
            unused: NONE,
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
            self.append(time, event);
        } else {
            self.pushed += 1;
            self.beyond.push(Reverse((time, self.pushed, event)));
        }
    }

    fn append(&mut self, time: u64, event: u32) {
        let place = if self.unused == NONE {
            self.pool.push((event, NONE));
            self.pool.len() as u32 - 1
        } else {
            let place = self.unused;
            let entry = &mut self.pool[place as usize];
            self.unused = entry.1;
            *entry = (event, NONE);
            place
        };
        let slot = (time % SLOTS) as usize;
        let queue = &mut self.queues[slot];
        if queue.first == NONE {
            queue.first = place;
            self.filled[slot / 64] |= 1 << (slot % 64);
        } else {
            self.pool[queue.last as usize].1 = place;
        }
        queue.last = place;
    }

    /// Takes the next event of the present clock out; events may be added to it meanwhile.
    pub fn take(&mut self) -> Option<u32> {
        let slot = (self.now % SLOTS) as usize;
        let queue = &mut self.queues[slot];
        let place = queue.first;
        if place == NONE {
            return None;
        }
        let entry = &mut self.pool[place as usize];
        let (event, next) = *entry;
        entry.1 = self.unused;
        self.unused = place;
        queue.first = next;
        if next == NONE {
            self.filled[slot / 64] &= !(1 << (slot % 64));
        }
        Some(event)
    }

    /// Goes on to the next clock that has events, or to `limit` if that comes first. The present clock's must have been
    /// taken.
    pub fn advance(&mut self, limit: u64) {
        let wheel = self.ahead().unwrap_or(u64::MAX);
        let heap = self.beyond.peek().map_or(u64::MAX, |&Reverse((time, ..))| time);
        self.now = wheel.min(heap).min(limit).max(self.now);
        while let Some(&Reverse((time, _, event))) = self.beyond.peek()
            && time < self.now + SLOTS
        {
            self.beyond.pop();
            self.append(time, event);
        }
    }

    /// The next clock of the wheel that has events, from the present one on.
    fn ahead(&self) -> Option<u64> {
        let begin = (self.now % SLOTS) as usize;
        (0..=WORDS).find_map(|word| {
            let at = (begin / 64 + word) % WORDS;
            let from = u64::MAX << (begin % 64);
            // The first word is looked at from the present clock on, and up to it when the wheel has come round.
            let bits = self.filled[at]
                & match word {
                    0 => from,
                    WORDS => !from,
                    _ => u64::MAX,
                };
            let slot = (at * 64) as u64 + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| self.now + (slot + SLOTS - begin as u64) % SLOTS)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_event_comes_out_once_at_its_time_and_those_of_a_clock_in_order(
            times in prop::collection::vec(0_u64..20_000, 0..300), step in 1_u64..5_000,
        ) {
            let mut wheel = Wheel::default();
            for (event, &time) in times.iter().enumerate() {
                wheel.push(time, event as u32);
            }
            let mut seen: Vec<(u64, u32)> = Vec::new();
            let mut limit = 0;
            while wheel.now() < 20_000 {
                while let Some(event) = wheel.take() {
                    seen.push((wheel.now(), event));
                }
                if wheel.now() == limit {
                    limit += step;
                }
                wheel.advance(limit);
            }
            let mut expected: Vec<(u64, u32)> =
                times.iter().enumerate().map(|(event, &time)| (time, event as u32)).collect();
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn events_added_on_the_way_come_out_in_their_turn(gaps in prop::collection::vec(0_u64..3_000, 1..400)) {
            let mut wheel = Wheel::default();
            wheel.push(0, 0);
            let (mut due, mut last) = (0, 0);
            for (event, gap) in gaps.into_iter().enumerate() {
                while wheel.now() < due {
                    wheel.advance(u64::MAX);
                }
                prop_assert_eq!((wheel.now(), wheel.take()), (due, Some(last)));
                due += gap;
                last = event as u32 + 1;
                wheel.push(due, last);
            }
        }
    }
}

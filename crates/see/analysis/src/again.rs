//! Whether slow faults come again where there was one before: then what they brought was taken out of memory since, or
//! given back.
//!
//! Always true: places are told apart up to [`PLACES`]; at later ones nothing comes again.

use std::collections::BTreeMap;

use pagemill_model::{Nanos, Pid};

use crate::addresses::ProcessAddress;

/// Places that are told apart.
const PLACES: usize = 1 << 16;
/// The kernel reads a file around the page that is asked for, and another thread may ask for the next one meanwhile:
/// what comes in this time is not read again.
const APART: u64 = 100_000_000;

/// Slow faults of a kind, and those of them that came again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// All.
    pub faults: u64,
    /// Where there had been one.
    pub again: u64,
}

impl Repeats {
    /// Whether a good part came again.
    pub fn often(&self) -> bool {
        self.again > 0 && self.again.saturating_mul(4) >= self.faults
    }
}

/// Finds them, fault by fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepeatFold {
    first: BTreeMap<ProcessAddress, Nanos>,
    pub(crate) repeats: Repeats,
}

impl RepeatFold {
    /// A fault at an address, in a place of `size` bytes.
    pub(crate) fn fault(&mut self, pid: Pid, address: u64, size: u64, time: Nanos) {
        self.repeats.faults += 1;
        let place = ProcessAddress::new(pid, address - address % size.max(1));
        match self.first.get(&place) {
            Some(first) => self.repeats.again += u64::from(time.since(*first).0 >= APART),
            None if self.first.len() < PLACES => drop(self.first.insert(place, time)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_later_is_counted_and_the_first_time_is_not() {
        let mut fold = RepeatFold::default();
        let second = 1_000_000_000;
        for (address, time) in [(0, 0), (16, 1), (32, 0), (0, second), (16, second), (48, second)] {
            fold.fault(Pid(1), address, 16, Nanos(time));
        }
        // At once, and of another process.
        fold.fault(Pid(1), 48, 16, Nanos(second + 1));
        fold.fault(Pid(2), 0, 16, Nanos(second));
        assert_eq!(fold.repeats, Repeats { faults: 8, again: 2 });
        assert!(fold.repeats.often() && !Repeats { faults: 9, again: 2 }.often());
        assert!(!Repeats::default().often());
    }
}

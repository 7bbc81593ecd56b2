//! Uphill: move reads in small steps and keep the direction in which the program's own rate of reads rises.
//!
//! Not a published policy. Colloid balances the *mean* latencies of the tiers. The program is fastest where the
//! *marginal* ones meet: a read that joins a queue also delays those behind it, so where one tier's latency rises more
//! steeply than the other's, the best share lies below the balance point (selfish routing against the system's optimum,
//! Roughgarden and Tardos, 2002). Slopes are hard to measure; the rate is not.
//!
//! Algorithm: while the default tier answers more slowly by more than [`APART`], Colloid's step away from it: the peak
//! lies on the other side of the balance point, and far from it the rate may be flat. Otherwise wait until the share is
//! where it was meant to be, take the mean rate of some quanta, compare with the mean before the last step. Higher: go
//! on, and from the second time on half as far again. Otherwise: turn round, half as far, but never less than
//! [`LEAST`], so that a peak that moves is followed.
//!
//! The rate rises and falls by a little where it is nearly flat, so the peak may be a small one with a greater below
//! it. After some means at the least step (*rest*) a *leap* of [`LEAPS`] away from the default tier looks there, and
//! goes back as soon as the rate is lower than at rest by [`LOWER`]. A leap that arrives higher is the beginning of
//! another climb; after one that does not, the next rest is twice as long.
//!
//! A rate is measured with error. Two means are told apart only where they differ by [`SURE`] standard errors; where
//! they do not after [`LONGEST`] times as many quanta, nothing is known, and the next step is Colloid's: towards the
//! tier that answers faster, or none while both answer within [`APART`] of each other. A leap that is not surely higher
//! goes back.
//!
//! Always so: a shift keeps the share in 0..=1; on a curve with one peak the search comes to within a few least steps
//! of it; a peak below a smaller one is found where a leap reaches its slope.

use std::cmp::Ordering;

use super::colloid::{Shift, proportional};
use super::{Placer, Reading};
use crate::tier::Tier;
use crate::tier::kind::PlacerKind;

/// `+climb`.
pub const KIND: PlacerKind = PlacerKind {
    name: "climb",
    make: |terms| Box::new(Climb::new(terms.patience)),
    balances: true,
    by_faults: false,
};

/// The least step, as part of all reads.
pub const LEAST: f64 = 0.01;
/// The first step of a climb.
const FIRST: f64 = 0.08;
const GREATEST: f64 = 0.2;
/// A share this close to its target has arrived.
const ARRIVED: f64 = 0.004;
/// Quanta without movement after which a target that is not reached is given up: the share is at a bound.
const STILL: u32 = 10;
/// How much more slowly the default tier may answer, as part of the alternate one's latency.
pub const APART: f64 = 0.05;
/// Lengths of the leaps, in turn.
pub const LEAPS: [f64; 2] = [0.2, 0.4];
/// The part of the rate at rest by which a leap may be lower on its way.
pub const LOWER: f64 = 0.06;
/// Standard errors that two means must be apart.
pub const SURE: f64 = 2.0;
/// Times as many quanta, at most, in which a mean may become certain.
pub const LONGEST: u32 = 4;
/// Means at rest before the first leap, and at most.
const RESTS: (u32, u32) = (6, 256);

/// The search.
#[derive(Clone, Copy, Debug)]
pub struct Climb {
    patience: u32,
    /// Means at rest before the next leap, and leaps so far.
    wait: u32,
    leaps: usize,
    path: Path,
}

/// Where a climb is.
#[derive(Clone, Copy, Debug)]
struct Path {
    target: Option<f64>,
    /// The share of the last quantum, and for how many it has not moved.
    seen: f64,
    still: u32,
    /// The rate of the last few quanta.
    lately: f64,
    quanta: Mean,
    before: Option<Mean>,
    direction: f64,
    step: f64,
    rose: bool,
    /// Means at the least step.
    rest: Mean,
    /// Share and rate from which it leapt.
    home: Option<(f64, Mean)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    squares: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
        self.count += 1;
    }

    fn join(&mut self, other: Self) {
        self.sum += other.sum;
        self.squares += other.squares;
        self.count += other.count;
    }

    /// The squared standard error.
    fn error(self) -> f64 {
        let count = f64::from(self.count.max(2));
        (self.squares / f64::from(self.count.max(1)) - self.value().powi(2)).max(0.0)
            / (count - 1.0)
    }

    /// Which of two is greater, if it is not by chance.
    fn compared(self, other: Self) -> Option<Ordering> {
        let difference = self.value() - other.value();
        // What rounding leaves of a difference of squares is no error.
        let rounding = 1e-9 * self.value().abs();
        let chance = SURE * (self.error() + other.error()).sqrt();
        (difference.abs() >= chance.max(rounding) || chance <= rounding)
            .then(|| difference.total_cmp(&0.0))
    }

    fn value(self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }
}

impl Path {
    const fn new(step: f64) -> Self {
        Self {
            target: None,
            seen: f64::NAN,
            still: 0,
            lately: 0.0,
            quanta: Mean { sum: 0.0, squares: 0.0, count: 0 },
            before: None,
            direction: -1.0,
            step,
            rose: false,
            rest: Mean { sum: 0.0, squares: 0.0, count: 0 },
            home: None,
        }
    }

    fn higher(&mut self) {
        if self.rose {
            self.step = (self.step * 1.5).min(GREATEST);
        }
        self.rose = true;
    }

    fn turn(&mut self) {
        self.rose = false;
        self.direction = -self.direction;
        self.step = (self.step / 2.0).max(LEAST);
    }

    fn towards(&mut self, share: f64, target: f64) -> Shift {
        let target = target.clamp(0.0, 1.0);
        self.target = Some(target);
        towards(share, target)
    }
}

impl Placer for Climb {
    fn shift(&mut self, reading: &Reading) -> Option<Shift> {
        let loads = reading.loads;
        let (default, alternate) = (loads.default.latency_ns, loads.alternate.latency_ns);
        Some(self.step(loads.share(), reading.rate, default, alternate))
    }
}

impl Climb {
    /// A search that takes the mean of `patience` quanta before each step.
    #[must_use]
    pub const fn new(patience: u32) -> Self {
        Self { patience, wait: RESTS.0, leaps: 0, path: Path::new(FIRST) }
    }

    /// Takes one quantum in, with the part of reads on the default tier, the program's rate in any unit and the tiers'
    /// latencies, and says what to shift.
    pub fn step(&mut self, share: f64, rate: f64, default_ns: f64, alternate_ns: f64) -> Shift {
        let share = share.clamp(0.0, 1.0);
        let path = &mut self.path;
        path.still = if (share - path.seen).abs() < LEAST / 10.0 { path.still + 1 } else { 0 };
        path.seen = share;
        if default_ns > alternate_ns * (1.0 + APART) && path.still < STILL {
            // Close to the balance point the peak is not far below it.
            *path = Path { seen: share, still: path.still, ..Path::new(2.0 * LEAST) };
            let shift = proportional(share, default_ns, alternate_ns);
            return Shift { size: shift.size.max(LEAST).min(share), ..shift };
        }
        path.lately += (rate - path.lately) / f64::from(self.patience.clamp(1, 8));
        let lower =
            path.home.is_some_and(|(_, rested)| path.lately < rested.value() * (1.0 - LOWER));
        let target = if lower { share } else { path.target.unwrap_or(share) };
        path.target = Some(target);
        if (target - share).abs() > ARRIVED && path.still < STILL {
            return towards(share, target);
        }
        path.quanta.add(rate);
        if path.quanta.count < self.patience.max(1) {
            return towards(share, share);
        }
        let other = path.home.map(|(_, rested)| rested).or(path.before);
        let order = other.map(|other| path.quanta.compared(other));
        if order == Some(None) && path.quanta.count < self.patience.max(1) * LONGEST {
            path.still = 0;
            return towards(share, share);
        }
        let mean = std::mem::take(&mut path.quanta);
        path.still = 0;
        let order = order.flatten();
        match (path.home.take(), path.before) {
            (Some(_), _) if order == Some(Ordering::Greater) => {
                (path.step, path.rose) = (FIRST, true);
                self.wait = RESTS.0;
            }
            (Some((home, _)), _) => {
                self.wait = (self.wait * 2).min(RESTS.1);
                // What lies below is lower.
                (path.before, path.step, path.direction) = (None, LEAST, 1.0);
                return path.towards(share, home);
            }
            (None, Some(_)) if order == Some(Ordering::Greater) => path.higher(),
            (None, Some(_)) if order.is_some() => path.turn(),
            (None, Some(_)) => {
                path.turn();
                path.direction = 1.0;
                if alternate_ns <= default_ns * (1.0 + APART) {
                    path.before = Some(mean);
                    return path.towards(share, share);
                }
            }
            (None, None) => {}
        }
        path.before = Some(mean);
        if path.step > LEAST {
            path.rest = Mean::default();
        } else {
            path.rest.join(mean);
        }
        let leap = LEAPS[self.leaps % LEAPS.len()];
        if path.rest.count >= self.wait * self.patience.max(1) && share >= LEAPS[0] {
            self.leaps += 1;
            path.home = Some((share, std::mem::take(&mut path.rest)));
            path.lately = rate;
            path.direction = -1.0;
            return path.towards(share, share - leap);
        }
        path.towards(share, share + path.direction * path.step)
    }
}

fn towards(share: f64, target: f64) -> Shift {
    let from = if target < share { Tier::Default } else { Tier::Alternate };
    Shift { from, size: (target - share).abs() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settle(search: &mut Climb, mut share: f64, peak: f64, (low, high): (f64, f64)) -> f64 {
        let mut last = 0.0;
        for at in 0..600 {
            let rate = 1.0 - (share - peak).powi(2);
            let shift = search.step(share, rate, 100.0, 100.0);
            assert!((0.0..=1.0).contains(&shift.size), "{shift:?}");
            share = match shift.from {
                Tier::Default => share - shift.size,
                Tier::Alternate => share + shift.size,
            };
            assert!((-1e-9..=1.0 + 1e-9).contains(&share), "{share}");
            share = share.clamp(low, high);
            if at >= 500 {
                last += share / 100.0;
            }
        }
        last
    }

    #[test]
    fn a_default_tier_that_answers_more_slowly_is_left_though_the_rate_says_nothing() {
        let (mut search, mut share) = (Climb::new(1), 0.9);
        for _ in 0..60 {
            let shift = search.step(share, 1.0, 200.0 + 400.0 * (share - 0.3), 200.0);
            assert_eq!(shift.from, Tier::Default, "at {share}");
            share -= shift.size;
            if share < 0.33 {
                return;
            }
        }
        panic!("stayed at {share}");
    }

    #[test]
    fn a_small_peak_is_left_for_a_greater_one_below_it() {
        // Rises towards 0.1, with a dent at 0.5 that makes 0.6 a peak.
        let rate = |share: f64| {
            1.0 - 0.2 * (share - 0.1).abs() - if (0.45..0.55).contains(&share) { 0.03 } else { 0.0 }
        };
        let (mut search, mut share) = (Climb::new(1), 0.7);
        for _ in 0..400 {
            let shift = search.step(share, rate(share), 100.0, 100.0);
            share += shift.size.min(0.02) * if shift.from == Tier::Default { -1.0 } else { 1.0 };
        }
        assert!((share - 0.1).abs() < 0.1, "{share}");
    }

    proptest! {
        #[test]
        fn one_peak_is_found_and_followed_when_it_moves(
            start in 0.0_f64..1.0, first in 0.1_f64..0.9, second in 0.1_f64..0.9,
        ) {
            let mut search = Climb::new(1);
            let share = settle(&mut search, start, first, (0.0, 1.0));
            prop_assert!((share - first).abs() < 0.05, "{share} for {first}");
            let share = settle(&mut search, share, second, (0.0, 1.0));
            prop_assert!((share - second).abs() < 0.05, "{share} for {second}");
        }

        #[test]
        fn a_peak_beyond_a_bound_ends_at_the_bound(start in 0.2_f64..0.6, beyond in 0.7_f64..1.0) {
            let share = settle(&mut Climb::new(1), start, beyond, (0.1, 0.6));
            prop_assert!(share > 0.5, "{share}");
        }
    }
}

//! Whether the load has changed: by the rate, which departs from the curve, and by what the tiers do where the share
//! rests, which departs from what they did there.

use super::curve::POINTS;
use crate::tier::{Load, Loads};

/// A reading is never surer than this: the curve has bends between its points.
const LEAST_NOISE: f64 = 0.002;
/// The cumulative sum of standardised errors forgets this each quantum, and says that the load changed above that.
const SLACK: f64 = 0.5;
const ALARM: f64 = 10.0;
/// An error less than this is the curve's, not the load's.
const LEAST_ERROR: f64 = 0.015;
/// A latency, or the reads of a tier, that differ by this part from what they were at the same share.
const LATER: f64 = 0.08;
/// By how much they may differ between neighbouring points; points farther apart say nothing of each other.
const STEEP: f64 = 0.3;
const FAR: usize = 3;
/// Part of all reads below which a tier's are too few to tell.
const SOME: f64 = 0.01;

/// The variance of a reading, by the differences of successive ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    last: Option<f64>,
    variance: f64,
    count: f64,
}

impl Noise {
    /// Of readings that are off by a twentieth, until some have been seen.
    pub(super) const fn new() -> Self {
        Self { last: None, variance: 0.0025, count: 0.0 }
    }

    pub(super) fn read(&mut self, value: f64) -> f64 {
        if let Some(last) = self.last.replace(value) {
            // A load that steps is no noise.
            let most = if self.count < 8.0 { f64::INFINITY } else { 9.0 * self.variance + 1e-4 };
            let difference = ((value - last).powi(2) / 2.0).min(most);
            self.count = (self.count + 1.0).min(200.0);
            self.variance += (difference - self.variance) / (self.count + 1.0);
        }
        self.variance.max(LEAST_NOISE * LEAST_NOISE)
    }
}
/// Cumulative sums of the errors of the rate, upwards and downwards: sum, errors in it, quanta.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departure {
    sums: [(f64, f64, f64); 2],
}

impl Departure {
    /// By how much the rate has departed, if it has.
    pub(super) fn read(&mut self, error: f64, expected: f64) -> Option<f64> {
        let standard = (error / expected.sqrt().max(LEAST_ERROR)).clamp(-6.0, 6.0);
        for (sum, sign) in self.sums.iter_mut().zip([1.0, -1.0]) {
            sum.0 += sign * standard - SLACK;
            sum.1 += error;
            sum.2 += 1.0;
            if sum.0 <= 0.0 {
                *sum = (0.0, 0.0, 0.0);
            }
        }
        let alarm = self.sums.iter().find(|sum| sum.0 > ALARM).map(|sum| (sum.1 / sum.2).abs());
        if alarm.is_some() {
            *self = Self::default();
        }
        alarm
    }
}
/// What the tiers do where the share rests, as it was there and as it is: logarithms of the latency and of the reads of
/// each. A tier that nobody reads any more has no latency to depart.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatingPoint {
    /// The point, and quanta at it.
    point: usize,
    quanta: u32,
    /// Since the last departure.
    then: [Option<[f64; 4]>; POINTS],
    now: [f64; 4],
    /// Quanta since something has departed.
    departed: u32,
}

impl OperatingPoint {
    /// Quanta until what is measured says nothing of the way here any more.
    const ARRIVAL: u32 = 48;
    /// Quanta until the loads are known, and until it is known what they have changed to.
    const SETTLED: u32 = 64;

    pub(super) const NOTHING: Self =
        Self { point: 0, quanta: 0, then: [None; POINTS], now: [0.0; 4], departed: 0 };

    /// The greatest part by which something has departed from what it was.
    pub(super) fn read(&mut self, loads: Loads, point: Option<usize>, noise: f64) -> Option<f64> {
        if point != Some(self.point) {
            *self = Self { point: point.unwrap_or(POINTS), then: self.then, ..Self::NOTHING };
        }
        let point = point?;
        self.quanta = self.quanta.saturating_add(1);
        let known = self.quanta.checked_sub(Self::ARRIVAL).filter(|known| *known > 0)?;
        let latency = |load: Load| load.latency_ns.max(1e-9).ln();
        let [fast, slow] = [loads.default, loads.alternate];
        let least = SOME * (fast.reads_per_ns + slow.reads_per_ns);
        let reads = |load: Load| (load.reads_per_ns + least).max(1e-12).ln();
        let seen = [latency(fast), latency(slow), reads(fast), reads(slow)];
        let weight = (1.0 / f64::from(known)).max(2.0 / f64::from(Self::SETTLED));
        for (now, seen) in self.now.iter_mut().zip(seen) {
            *now += weight * (seen - *now);
        }
        if known <= Self::SETTLED {
            return None;
        }
        let (then, away) = self.nearest(point);
        let departed = self.departures(then, away).into_iter().fold(0.0, f64::max);
        let explained = f64::max(LATER, noise) + STEEP * away as f64;
        if departed <= explained {
            self.then[point].get_or_insert(self.now);
            self.departed = 0;
            return None;
        }
        // What has departed far is said sooner: the share may not rest here for long.
        self.departed += if departed > 2.0 * explained { 2 } else { 1 };
        (self.departed > Self::SETTLED).then_some(departed)
    }

    /// By how much each has departed from what was `away` points from here. What of a tier's reads the way from there
    /// explains is none: no more than all reads, times the difference of the shares.
    fn departures(&self, then: [f64; 4], away: usize) -> [f64; 4] {
        let all = |reads: [f64; 4]| reads[2].exp() + reads[3].exp();
        let way = away as f64 / (POINTS - 1) as f64 * all(self.now).max(all(then));
        std::array::from_fn(|at| {
            let (now, then) = (self.now[at], then[at]);
            if at < 2 || away == 0 {
                return (now - then).abs();
            }
            let (less, more) = (now.min(then).exp(), now.max(then).exp());
            (f64::max(more - way, less) / less).ln()
        })
    }

    /// What was at a point, or at the nearest of those not far off, and how far off that is: the load may have changed
    /// on the way here.
    pub(super) fn nearest(&self, point: usize) -> ([f64; 4], usize) {
        let known = self.then.iter().enumerate().filter_map(|(at, then)| Some((at, (*then)?)));
        let near =
            known.map(|(at, then)| (then, at.abs_diff(point))).filter(|(_, off)| *off <= FAR);
        near.min_by_key(|(_, off)| *off).unwrap_or((self.now, 0))
    }

    /// The load has changed: what was is no more.
    pub(super) fn forget(&mut self) {
        *self = Self { point: self.point, ..Self::NOTHING };
    }
}

//! The best share by upper confidence bounds: a curve of the program's rate over the share, with its uncertainty, and
//! the share that may be best by it.
//!
//! Not a published policy of placement. Colloid balances the *mean* latencies of the tiers; a program is fastest where
//! the *marginal* ones meet, because a read that joins a queue also delays those behind it (selfish routing against the
//! system's optimum, Roughgarden and Tardos, 2002). Slopes are hard to measure; the rate is not. Which share to try
//! next is a bandit's question, and neighbouring shares are alike: GP-UCB (Srinivas, Krause, Kakade and Seeger, ICML
//! 2010); changing the arm costs copies, so visits grow as in UCB2 (Auer, Cesa-Bianchi and Fischer, 2002); what was
//! seen fades as in TV-GP-UCB (Bogunovic, Scarlett and Cevher, AISTATS 2016), and changes of the load are found by
//! cumulative sums (Page, Biometrika 1954). The constants were chosen on random machines 1 to 500 of `simulate --figure
//! regret`.
//!
//! | word | meaning |
//! |---|---|
//! | curve | logarithm of the rate over the share at [`POINTS`] points, and how sure: a Gaussian process (Matern) |
//! | best | the point at which the curve is highest, less a standard deviation |
//! | bound of a point | how high it may be: mean and [`SURE`] deviations of its difference to the point known best |
//! | departure | the rate or a latency is not what it was at this share: the load has changed |
//! | home | the point at which it has rested longest since the last departure |
//! | account | what excursions from the best may still lose, in quanta of the best rate |
//!
//! Algorithm, each quantum: the reading moves the curve near its share (a Kalman step; the noise of a reading is taken
//! from the difference of successive ones, so no constant says how exact they are). While pages move, their copies take
//! part of the rate, more of it where a tier is nearly full of work: such readings count for little.
//!
//! - *First way*: down to the lower end, with a rest at every fourth point, no further than the rate is two thirds of
//!   the best. A curve may have its peak at the very end, behind a steep slope that nothing announces.
//! - *Visits*: to the point of the greatest bound, the way there taken off. A visit ends when the point may not be the
//!   best any more, or after a time that grows with each visit to the same point.
//! - *Departure*: the rate is not what the curve says, or where the share rests a latency or the reads of a tier are
//!   not what they were there or, if it has not rested there before, close by. The curve loses part of its form and
//!   becomes uncertain again, the more so the greater the departure, and home is visited first, for what was seen on a
//!   way may be of both loads. The same where a best far from home turns up: perhaps the load has changed while it was
//!   away.
//! - An account that holds no more than the way back costs ends all that: it goes to the best and stays.
//!
//! **What exploring costs.** An *excursion* begins where the target is not the best and ends when the best is reached.
//! Each quantum of one is charged to the account with what it loses against the best by the curve, copies among it.
//! The account begins with [`SWEEP`] quanta, is given [`AGAIN`] at a departure, at most once in [`APART`] quanta, and
//! [`TRICKLE`] a quantum; it never holds more than [`SWEEP`] and [`AGAIN`]. Nothing, the visit home after a departure
//! not excepted, begins or goes on unless the account pays for it and the way back. So what exploring loses over `n`
//! quanta, by the curve, is at most `SWEEP + AGAIN + n (AGAIN/APART + TRICKLE)` quanta of the best rate, and what the
//! curve was wrong about on ways back. Going to what is the best by now is no excursion, as a placer that knew the best
//! share would go there as well.
//!
//! Always so: a shift keeps the share in 0..=1; the same readings give the same shifts; on a curve with one peak the
//! best share is found, and one that moved is found again; a bound that the share cannot pass is kept to; where the
//! account is empty the target is the best.

use super::colloid::Shift;
use super::{Placer, Reading};
use crate::tier::kind::PlacerKind;
use crate::tier::{Load, Loads, Tier};

/// `+ucb`.
pub const KIND: PlacerKind =
    PlacerKind { name: "ucb", make: |_| Box::new(Ucb::new()), balances: true, by_faults: false };

/// Points of the curve, in equal steps from 0 to 1.
pub const POINTS: usize = 33;
/// With the loss of rate while pages move.
const STATES: usize = POINTS + 1;
/// Standard deviations of the bound.
pub const SURE: f64 = 1.5;
/// Quanta of the best rate that exploring may lose to begin with.
pub const SWEEP: f64 = 200.0;
/// And at a departure.
pub const AGAIN: f64 = 100.0;
/// Least quanta between two departures that are paid for.
pub const APART: f64 = 2_000.0;
/// And each quantum.
pub const TRICKLE: f64 = 0.004;

/// Standard deviation of the curve about its level, in logarithms of the rate.
const HEIGHT: f64 = 0.3;
/// Difference of shares over which the curve is alike.
const LENGTH: f64 = 0.45;
/// And over which it changes alike.
const CHANGE_LENGTH: f64 = 0.3;
/// Variance of the level: nothing is known of it.
const LEVEL: f64 = 1.0;
/// The greatest variance of a point.
const MOST: f64 = 16.0;
/// Standard deviation of what copies take of the rate.
const COPIES: f64 = 0.05;
/// And of how that varies.
const COPIES_VARY: f64 = 0.5;
/// A reading is never surer than this: the curve has bends between its points.
const LEAST_NOISE: f64 = 0.002;
/// Part of [`HEIGHT`] that is forgotten each quantum.
const FORGOTTEN: f64 = 1.0 / 200_000.0;
/// Quanta between two times that something is forgotten.
const FORGETS: u32 = 64;
/// What copies take at least.
const LEAST_COPIES: f64 = 0.01;
/// Quanta that what is found on a way may be good for.
const GOOD_FOR: f64 = 2_000.0;
/// A point that may be higher than the best by less is not worth a visit.
const HOLD: f64 = 0.002;
/// Quanta at a point after which it is home, and points from it to a best that is asked about at home again.
const HOME: u32 = 500;
const AWAY: usize = 3;
/// Points between two stops of the first way down.
const STOPS: usize = 4;
/// Quanta of the first visit, and how much longer each further one is.
const VISIT: f64 = 16.0;
const GROWS: f64 = 1.5;
/// A share this close to its target has arrived.
const ARRIVED: f64 = 0.5 / (POINTS - 1) as f64;
/// The share moves while it changes by more than this in a quantum, and by more than it does by itself.
const MOVES: f64 = 0.0005;
/// Quanta without movement after which a target that is not reached lies beyond a bound.
const STILL: u32 = 10;
/// Quanta after which a bound is tried again.
const TRIED: u32 = 5_000;
/// A target this near that cannot be reached lies beyond a bound.
const NEAR: f64 = 2.0 / (POINTS - 1) as f64;
/// The cumulative sum of standardised errors forgets this each quantum, and says that the load changed above that.
const SLACK: f64 = 0.5;
const ALARM: f64 = 10.0;
/// An error less than this is the curve's, not the load's.
const LEAST_ERROR: f64 = 0.015;
/// A departure of this much leaves a third or so of what is known of the form.
const FADES: f64 = 0.6;
/// A latency, or the reads of a tier, that differ by this part from what they were at the same share.
const LATER: f64 = 0.08;
/// By how much they may differ between neighbouring points; points farther apart say nothing of each other.
const STEEP: f64 = 0.3;
const FAR: usize = 3;
/// Part of all reads below which a tier's are too few to tell.
const SOME: f64 = 0.01;
/// A departure of the rate by this much makes the curve as uncertain as at first.
const WHOLE: f64 = 0.25;
/// The first way down goes no further where the rate is lower than the best by this logarithm.
const HOPELESS: f64 = 0.4;
/// Variance of the level after a departure.
const UNKNOWN: f64 = 0.25;
/// And the least.
const PARTLY: f64 = 0.05;
/// And the most, as parts of what is not known at first.
const MOST_PART: f64 = 4.0;

/// The search.
#[derive(Clone, Debug)]
pub struct Ucb {
    curve: Curve,
    noise: Noise,
    departure: Departure,
    rest: Rest,
    target: Option<usize>,
    /// The next stop of the first way down, if there is one.
    stop: Option<Option<usize>>,
    /// The point to look at first after a departure.
    landmark: Option<usize>,
    /// Quanta of this visit to the target, and visits to each point.
    visit: u32,
    visits: [u8; POINTS],
    /// Quanta at each point since the last departure.
    rested: [u32; POINTS],
    /// The share of the last quantum, and for how many it has not moved.
    seen: f64,
    still: u32,
    /// Whether something was to move in it; how much the share changes where nothing is.
    asked: bool,
    jitter: f64,
    /// The greatest part that moved in a quantum.
    greatest: f64,
    /// The least and the greatest share that was reached, where a target lay beyond.
    low: f64,
    high: f64,
    /// Quanta since a bound was found, and since a departure was paid for.
    bound_age: u32,
    paid: f64,
    quanta: u32,
    account: f64,
    /// Whether it has left the best to try something, and is not back.
    away: bool,
}

/// The logarithm of the rate over the share; the last state is what copies take.
#[derive(Clone, Debug)]
struct Curve {
    mean: [f64; STATES],
    covariance: Box<[[f64; STATES]; STATES]>,
    known: bool,
}

/// Matérn's kernel with nu = 5/2.
fn alike(a: usize, b: usize, length: f64) -> f64 {
    let apart = a.abs_diff(b) as f64 / (POINTS - 1) as f64 * 5.0_f64.sqrt() / length;
    HEIGHT * HEIGHT * (1.0 + apart + apart * apart / 3.0) * (-apart).exp()
}

fn place(point: usize) -> f64 {
    point as f64 / (POINTS - 1) as f64
}

/// The two points about a share, and the weight of the second.
fn about(share: f64) -> (usize, f64) {
    let along = share.clamp(0.0, 1.0) * (POINTS - 1) as f64;
    let first = (along as usize).min(POINTS - 2);
    (first, along - first as f64)
}

impl Curve {
    fn new() -> Self {
        let mut curve = Self {
            mean: [0.0; STATES],
            covariance: Box::new([[0.0; STATES]; STATES]),
            known: false,
        };
        curve.doubt(1.0, LEVEL, LENGTH);
        curve.covariance[POINTS][POINTS] = COPIES * COPIES;
        curve
    }

    /// Makes it less certain: by a part of what is not known of its form at first, and by the variance of its level.
    fn doubt(&mut self, part: f64, level: f64, length: f64) {
        for a in 0..POINTS {
            for b in 0..POINTS {
                self.covariance[a][b] += part * alike(a, b, length) + level;
            }
        }
        // What nobody has looked at for long is not less known than nothing.
        let greatest = (0..POINTS).map(|at| self.covariance[at][at]).fold(0.0, f64::max);
        let part = (MOST / greatest.max(MOST)).min(1.0);
        self.covariance.iter_mut().flatten().for_each(|cell| *cell *= part);
    }

    /// Forgets part of its form: `kept` of what is known of each point against the mean of all stays.
    fn fade(&mut self, kept: f64) {
        let level = self.mean[..POINTS].iter().sum::<f64>() / POINTS as f64;
        self.mean[..POINTS].iter_mut().for_each(|mean| *mean = level + kept * (*mean - level));
        let part = |state: usize| if state < POINTS { kept } else { 1.0 };
        for (a, row) in self.covariance.iter_mut().enumerate() {
            row.iter_mut().enumerate().for_each(|(b, cell)| *cell *= part(a) * part(b));
        }
    }

    /// Takes a reading in: returns its error and the variance that was expected of it.
    fn read(&mut self, share: f64, moves: f64, value: f64, variance: f64) -> (f64, f64) {
        if !self.known {
            self.mean[..POINTS].fill(value);
            self.known = true;
        }
        let (first, along) = about(share);
        let at = |row: &[f64; STATES]| {
            (1.0 - along) * row[first] + along * row[first + 1] + moves * row[POINTS]
        };
        let error = value - at(&self.mean);
        let mut gain = [0.0; STATES];
        for (gain, row) in gain.iter_mut().zip(self.covariance.iter()) {
            *gain = at(row);
        }
        let expected = at(&gain).max(0.0) + variance;
        for (row, of_row) in self.covariance.iter_mut().zip(gain) {
            let part = of_row / expected;
            row.iter_mut().zip(gain).for_each(|(cell, gain)| *cell -= part * gain);
        }
        self.mean.iter_mut().zip(gain).for_each(|(mean, gain)| *mean += gain / expected * error);
        (error, expected)
    }

    fn at(&self, share: f64) -> f64 {
        let (first, along) = about(share);
        (1.0 - along) * self.mean[first] + along * self.mean[first + 1]
    }

    /// How uncertain the difference of two points is: a standard deviation.
    fn apart(&self, point: usize, other: usize) -> f64 {
        let covariance = &self.covariance;
        let variance =
            covariance[point][point] + covariance[other][other] - 2.0 * covariance[point][other];
        variance.max(0.0).sqrt()
    }

    /// The point of some whose level is known best.
    fn known(&self, points: impl Iterator<Item = usize>) -> usize {
        let level = |point: usize| self.covariance[point][point];
        points.min_by(|a, b| level(*a).total_cmp(&level(*b))).unwrap_or(0)
    }
}

/// The variance of a reading, by the differences of successive ones.
#[derive(Clone, Copy, Debug)]
struct Noise {
    last: Option<f64>,
    variance: f64,
    count: f64,
}

impl Noise {
    fn read(&mut self, value: f64) -> f64 {
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
struct Departure {
    sums: [(f64, f64, f64); 2],
}

impl Departure {
    /// By how much the rate has departed, if it has.
    fn read(&mut self, error: f64, expected: f64) -> Option<f64> {
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
struct Rest {
    /// The point, and quanta at it.
    point: usize,
    quanta: u32,
    /// Since the last departure.
    then: [Option<[f64; 4]>; POINTS],
    now: [f64; 4],
    /// Quanta since something has departed.
    departed: u32,
}

impl Rest {
    /// Quanta until what is measured says nothing of the way here any more.
    const ARRIVAL: u32 = 48;
    /// Quanta until the loads are known, and until it is known what they have changed to.
    const SETTLED: u32 = 64;

    const NOTHING: Self =
        Self { point: 0, quanta: 0, then: [None; POINTS], now: [0.0; 4], departed: 0 };

    /// The greatest part by which something has departed from what it was.
    fn read(&mut self, loads: Loads, point: Option<usize>, noise: f64) -> Option<f64> {
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
        let departed = self.now.iter().zip(then).map(|(now, then)| (now - then).abs());
        let departed = departed.fold(0.0, f64::max);
        if departed <= f64::max(LATER, noise) + STEEP * away as f64 {
            self.then[point].get_or_insert(self.now);
            self.departed = 0;
            return None;
        }
        self.departed += 1;
        (self.departed > Self::SETTLED).then_some(departed)
    }

    /// What was at a point, or at the nearest of those not far off, and how far off that is: the load may have changed
    /// on the way here.
    fn nearest(&self, point: usize) -> ([f64; 4], usize) {
        let known = self.then.iter().enumerate().filter_map(|(at, then)| Some((at, (*then)?)));
        let near =
            known.map(|(at, then)| (then, at.abs_diff(point))).filter(|(_, off)| *off <= FAR);
        near.min_by_key(|(_, off)| *off).unwrap_or((self.now, 0))
    }

    /// The load has changed: what was is no more.
    fn forget(&mut self) {
        *self = Self { point: self.point, ..Self::NOTHING };
    }
}

impl Default for Ucb {
    fn default() -> Self {
        Self::new()
    }
}

impl Placer for Ucb {
    fn shift(&mut self, reading: &Reading) -> Option<Shift> {
        Some(self.step(reading))
    }

    fn asks_share(&self) -> bool {
        true
    }
}

impl Ucb {
    /// A search that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            curve: Curve::new(),
            noise: Noise { last: None, variance: 0.0025, count: 0.0 },
            departure: Departure::default(),
            rest: Rest::NOTHING,
            target: None,
            stop: Some(None),
            landmark: None,
            visit: 0,
            visits: [0; POINTS],
            rested: [0; POINTS],
            seen: f64::NAN,
            still: 0,
            asked: false,
            jitter: 0.0,
            greatest: 0.0,
            low: 0.0,
            high: 1.0,
            bound_age: 0,
            paid: 0.0,
            quanta: 0,
            account: SWEEP,
            away: true,
        }
    }

    /// The account: quanta of the best rate that exploring may still lose.
    #[must_use]
    pub const fn account(&self) -> f64 {
        self.account
    }

    /// Takes one quantum in and says what to shift.
    pub fn step(&mut self, reading: &Reading) -> Shift {
        let share = reading.share.clamp(0.0, 1.0);
        let moves = self.moved(share);
        self.quanta = self.quanta.wrapping_add(1);
        self.learn(reading, share, moves);
        self.bounds(share);
        let target = self.choose(share, moves);
        self.target = Some(target);
        let to = self.reach(target);
        let from = if to < share { Tier::Default } else { Tier::Alternate };
        let size = (to - share).abs();
        self.asked = size > MOVES + 2.0 * self.jitter;
        Shift { from, size: if self.asked { size } else { 0.0 } }
    }

    /// How much of what can move in a quantum has moved in the last one.
    fn moved(&mut self, share: f64) -> f64 {
        let moved = if self.seen.is_nan() { 0.0 } else { (share - self.seen).abs() };
        self.seen = share;
        if !self.asked {
            self.jitter += (moved - self.jitter) / 32.0;
        }
        if !self.asked || moved <= MOVES + 3.0 * self.jitter {
            self.still += 1;
            return 0.0;
        }
        self.still = 0;
        self.greatest = self.greatest.max(moved);
        moved / self.greatest
    }

    fn learn(&mut self, reading: &Reading, share: f64, moves: f64) {
        self.paid += 1.0;
        self.account = (self.account + TRICKLE).min(SWEEP + AGAIN);
        if self.quanta.is_multiple_of(FORGETS) {
            self.curve.doubt(FORGOTTEN * f64::from(FORGETS), 0.0, LENGTH);
        }
        if !(reading.rate > 0.0 && reading.rate.is_finite()) {
            return;
        }
        let value = reading.rate.ln();
        let variance = self.noise.read(value);
        let copies = (moves * COPIES_VARY).powi(2);
        let (error, expected) = self.curve.read(share, moves, value, variance + copies);
        let by_rate = if self.still < STILL { None } else { self.departure.read(error, expected) };
        let at =
            self.target.filter(|at| moves == 0.0 && (self.reach(*at) - share).abs() <= ARRIVED);
        let by_latency = self.rest.read(reading.loads, at, variance.sqrt());
        if let Some(departed) = by_rate.into_iter().chain(by_latency).reduce(f64::max) {
            self.departure = Departure::default();
            self.rest.forget();
            (self.low, self.high) = (0.0, 1.0);
            self.visits = [0; POINTS];
            // What was seen on a way may be of both loads: the level is told apart where it rested longest.
            self.landmark = (0..POINTS).max_by_key(|point| self.rested[*point]);
            self.rested = [0; POINTS];
            let part = (departed / WHOLE).powi(2).clamp(PARTLY, MOST_PART);
            self.curve.fade((-departed / FADES).exp());
            self.curve.doubt(part, UNKNOWN, CHANGE_LENGTH);
            if self.paid >= APART {
                self.paid = 0.0;
                self.account = (self.account + AGAIN).min(SWEEP + AGAIN);
            }
        }
    }

    /// Keeps what could not be passed: half of the way to a target far off, all of it to a near one.
    fn bounds(&mut self, share: f64) {
        self.bound_age += 1;
        if self.bound_age > TRIED {
            (self.low, self.high, self.bound_age) = (0.0, 1.0, 0);
        }
        let Some(target) = self.target.map(|target| self.reach(target)) else { return };
        let way = target - share;
        if self.still < STILL || way.abs() <= ARRIVED {
            return;
        }
        self.bound_age = 0;
        let passed = if way.abs() > NEAR { share + way / 2.0 } else { share };
        if way < 0.0 {
            self.low = self.low.max(passed.min(self.high));
        } else {
            self.high = self.high.min(passed.max(self.low));
        }
    }

    /// The share of a point, as far as it can be reached.
    fn reach(&self, point: usize) -> f64 {
        place(point).clamp(self.low, self.high)
    }

    /// The points between the bounds, and those next to them.
    fn points(&self) -> impl Iterator<Item = usize> {
        let last = (POINTS - 1) as f64;
        let (low, high) = ((self.low * last).floor() as usize, (self.high * last).ceil() as usize);
        low..=high.min(POINTS - 1)
    }

    /// The point of highest score.
    fn highest(&self, score: impl Fn(usize) -> f64) -> (usize, f64) {
        let higher =
            |most: (usize, f64), next: (usize, f64)| if next.1 > most.1 { next } else { most };
        self.points()
            .map(|point| (point, score(point)))
            .fold((POINTS / 2, f64::NEG_INFINITY), higher)
    }

    /// How high a point may be.
    fn bound(&self, point: usize, known: usize) -> f64 {
        self.curve.mean[point] + SURE * self.curve.apart(point, known)
    }

    /// The bound less a way there and back, spread over the quanta that what is found there may be good for.
    fn score(&self, point: usize, known: usize, share: f64) -> f64 {
        let copies = (-self.curve.mean[POINTS]).max(LEAST_COPIES);
        let way = (self.reach(point) - share).abs();
        self.bound(point, known) - 2.0 * way / self.greatest.max(MOVES) * copies / GOOD_FOR
    }

    /// What the way between two shares costs, in quanta of the best rate: copies, and what is lost on it.
    fn way(&self, from: f64, to: f64, best: usize) -> f64 {
        let copies = (-self.curve.mean[POINTS]).max(LEAST_COPIES);
        let lost = |share: f64| {
            1.0 - (self.curve.at(share) - self.curve.mean[best] - copies).min(0.0).exp()
        };
        (from - to).abs() / self.greatest.max(MOVES) * f64::midpoint(lost(from), lost(to))
    }

    /// The point to go to.
    fn choose(&mut self, share: f64, moves: f64) -> usize {
        let now = self.look(share);
        self.visit += u32::from(now.arrived);
        if let Some(target) = now.held.filter(|_| now.arrived) {
            self.rested[target] += 1;
        }
        let pays = self.charge(share, moves, &now);
        let target = if pays { self.explore(share, &now) } else { self.give_up(&now) };
        self.away |= target != now.best;
        target
    }

    /// What is best, and where the share is.
    fn look(&self, share: f64) -> Look {
        let curve = &self.curve;
        // Beside the one that is known best, the others' level does not matter.
        let known = curve.known(self.points());
        let (best, _) = self.highest(|point| curve.mean[point] - curve.apart(point, known));
        let held = self.target.filter(|target| self.points().any(|point| point == *target));
        let arrived = held.is_some_and(|target| (self.reach(target) - share).abs() <= ARRIVED);
        Look { known, best, held, arrived }
    }

    /// Charges the account; whether it still holds more than the way back costs.
    fn charge(&mut self, share: f64, moves: f64, now: &Look) -> bool {
        self.away &= !(now.arrived && now.held == Some(now.best));
        if self.away {
            let taken = moves * self.curve.mean[POINTS];
            let below = self.curve.at(share) + taken - self.curve.mean[now.best];
            self.account -= 1.0 - below.min(0.0).exp();
        }
        self.account > self.way(share, self.reach(now.best), now.best)
    }

    /// With nothing to spend: the best.
    fn give_up(&mut self, now: &Look) -> usize {
        (self.stop, self.landmark) = (None, None);
        if now.held != Some(now.best) {
            self.visit = 0;
        }
        now.best
    }

    /// The point to try, or the best.
    fn explore(&mut self, share: f64, now: &Look) -> usize {
        if let Some(point) = self.first_way(share, now).or_else(|| self.homeward(now)) {
            return point;
        }
        if let Some(target) = now.held.filter(|target| self.stays(*target, now)) {
            return target;
        }
        if let Some(target) = now.held.filter(|_| now.arrived) {
            self.visits[target] = (self.visits[target] + 1).min(20);
        }
        self.visit = 0;
        let Look { best, known, .. } = *now;
        let affordable = |point: usize| {
            let (to, home) = (self.reach(point), self.reach(best));
            point == best || self.account > self.way(share, to, best) + self.way(to, home, best)
        };
        let score = |point| match affordable(point) {
            true => self.score(point, known, share),
            false => f64::NEG_INFINITY,
        };
        self.highest(score).0
    }

    /// The next stop of the first way down, while there is one.
    fn first_way(&mut self, share: f64, now: &Look) -> Option<usize> {
        let stop = self.stop?.unwrap_or(about(share).0 / STOPS * STOPS);
        let hopeless = self.curve.at(share) < self.curve.mean[now.best] - HOPELESS;
        let rested = now.held == Some(stop) && now.arrived && f64::from(self.visit) >= VISIT;
        let passed = now.held.is_none() && self.target == Some(stop);
        self.visit = if rested { 0 } else { self.visit };
        self.stop = match stop.checked_sub(STOPS) {
            _ if passed || (rested && hopeless) => None,
            None if rested => None,
            Some(next) if rested => Some(Some(next)),
            _ => Some(Some(stop)),
        };
        self.stop?
    }

    /// The point to look at first after a departure. A load that changed while it was away looks like a better share:
    /// where it was at home is asked again.
    fn homeward(&mut self, now: &Look) -> Option<usize> {
        let home = (0..POINTS).max_by_key(|point| self.rested[*point]).unwrap_or(now.best);
        let far = now.best.abs_diff(home) >= AWAY;
        if self.rested[home] >= HOME && far && self.landmark.is_none() {
            self.landmark = Some(home);
            self.rested = [0; POINTS];
        }
        let landmark = self.landmark.filter(|point| self.points().any(|at| at == *point))?;
        if now.held != Some(landmark) {
            self.visit = 0;
        } else if f64::from(self.visit) >= 2.0 * VISIT {
            self.landmark = None;
        }
        Some(landmark)
    }

    /// Whether a visit to a target goes on: until it may not be the best any more, or has been long enough.
    fn stays(&self, target: usize, now: &Look) -> bool {
        let length = VISIT * GROWS.powi(i32::from(self.visits[target]));
        let bound = || self.bound(target, now.known);
        let hopeful = target == now.best || bound() > self.curve.mean[now.best] + HOLD;
        hopeful && (!now.arrived || f64::from(self.visit) < length)
    }
}

/// What is seen at the beginning of a quantum.
struct Look {
    /// The point whose level is known best, and the one that is best.
    known: usize,
    best: usize,
    /// The target of the last quantum, unless it has got out of reach; whether the share is there.
    held: Option<usize>,
    arrived: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::random::Random;
    use proptest::prelude::*;

    /// The greatest part of the reads that moves in a quantum.
    const PACE: f64 = 0.02;

    fn loads(default_ns: f64, alternate_ns: f64) -> Loads {
        let load = |latency_ns| Load { latency_ns, reads_per_ns: 0.3 };
        Loads { default: load(default_ns), alternate: load(alternate_ns) }
    }

    /// Runs a search on a curve of the rate for so many quanta; returns the part of the best rate lost in each.
    fn run(
        search: &mut Ucb,
        share: &mut f64,
        (low, high): (f64, f64),
        noise: f64,
        quanta: usize,
        default_ns: f64,
        rate: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let mut random = Random::new(7);
        let best = (0..=1000)
            .map(|at| rate(low + (high - low) * f64::from(at) / 1000.0))
            .fold(0.0, f64::max);
        let mut lost = Vec::new();
        for _ in 0..quanta {
            // About normal: the sum of twelve.
            let error = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            let reading = Reading {
                loads: loads(default_ns, 140.0),
                share: *share,
                rate: rate(*share) * (1.0 + noise * error).max(0.01),
            };
            lost.push(1.0 - rate(*share) / best);
            let shift = search.step(&reading);
            let size = shift.size.min(PACE);
            let to = if shift.from == Tier::Default { *share - size } else { *share + size };
            *share = to.clamp(low, high);
        }
        lost
    }

    fn mean(lost: &[f64]) -> f64 {
        lost.iter().sum::<f64>() / lost.len() as f64
    }

    fn peak(at: f64) -> impl Fn(f64) -> f64 {
        move |share| 1.0 - 0.8 * (share - at).powi(2)
    }

    /// Both peaks of a run in which the load changes: parts lost once each has had its time.
    fn two_loads(start: f64, first: f64, second: f64, noise: f64) -> [f64; 2] {
        let (mut search, mut share) = (Ucb::new(), start);
        let before = run(&mut search, &mut share, (0.0, 1.0), noise, 3000, 100.0, peak(first));
        // Another load has other latencies.
        let rate = |share| 1.3 * peak(second)(share);
        let after = run(&mut search, &mut share, (0.0, 1.0), noise, 4000, 150.0, rate);
        [mean(&before[2000..]), mean(&after[3000..])]
    }

    #[test]
    fn one_peak_is_found_and_found_again_when_it_moves_whatever_the_noise() {
        let mut random = Random::new(1);
        let mut unit = || random.unit();
        let lost: Vec<[f64; 2]> =
            (0..12).map(|_| two_loads(unit(), unit(), unit(), 0.08)).collect();
        assert!(lost.iter().flatten().all(|lost| *lost < 0.03), "{lost:?}");
        // The load changes while it is away from where it rested, and the rate is the same by chance.
        let lost = two_loads(
            0.516_731_894_471_892_5,
            0.393_265_578_280_866_06,
            0.925_488_777_340_355_1,
            0.08,
        );
        assert!(lost[1] < 0.03, "{lost:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn one_peak_is_found_and_found_again_when_it_moves(
            start in 0.0_f64..1.0, first in 0.0_f64..1.0, second in 0.0_f64..1.0,
        ) {
            let lost = two_loads(start, first, second, 0.0);
            prop_assert!(lost.iter().all(|lost| *lost < 0.03), "{lost:?}");
        }

        #[test]
        fn a_bound_is_kept_to(start in 0.3_f64..0.6, beyond in 0.7_f64..1.0, below in any::<bool>()) {
            let (mut search, mut share) = (Ucb::new(), start);
            let at = if below { 1.0 - beyond } else { beyond };
            let lost = run(&mut search, &mut share, (0.3, 0.7), 0.0, 2000, 100.0, peak(at));
            prop_assert!(mean(&lost[1500..]) < 0.01, "{}", mean(&lost[1500..]));
        }

        #[test]
        fn any_readings_keep_the_share_in_range_and_give_the_same_shifts_again(
            readings in prop::collection::vec(
                (0.0_f64..=1.0, prop::sample::select(vec![0.0, 1e-300, 1.0, 2.0, 1e12, f64::NAN, f64::INFINITY]),
                 0.0_f64..1e4),
                1..200),
        ) {
            let (mut search, mut again) = (Ucb::new(), Ucb::new());
            for (share, rate, default_ns) in readings {
                let reading = Reading { loads: loads(default_ns, 140.0), share, rate };
                let shift = search.step(&reading);
                prop_assert_eq!(shift, again.step(&reading));
                let most = if shift.from == Tier::Default { share } else { 1.0 - share };
                prop_assert!((0.0..=most + 1e-9).contains(&shift.size), "{shift:?} at {share}");
            }
        }

        #[test]
        fn the_account_is_overdrawn_by_no_more_than_a_way_home(at in 0.0_f64..1.0, steep in 0.5_f64..8.0) {
            let (mut search, mut share) = (Ucb::new(), 0.95);
            let rate = |share: f64| (-steep * (share - at).abs()).exp();
            for _ in 0..60 {
                run(&mut search, &mut share, (0.0, 1.0), 0.03, 100, 100.0, rate);
                prop_assert!(search.account() <= SWEEP + AGAIN);
                prop_assert!(search.account() > -1.0 / PACE, "{}", search.account());
            }
        }
    }

    #[test]
    fn a_peak_at_the_lower_end_behind_a_slope_is_found() {
        // 14 of 90 random machines are fastest with nothing on the default tier, and much slower with a little.
        let rate = |share: f64| if share < 0.02 { 1.0 } else { 0.5 - 0.3 * share };
        let (mut search, mut share) = (Ucb::new(), 0.95);
        let lost = run(&mut search, &mut share, (0.0, 1.0), 0.03, 3000, 300.0, rate);
        assert!(mean(&lost[2000..]) < 0.01, "{}", mean(&lost[2000..]));
    }

    #[test]
    fn an_empty_account_pays_for_no_visit_home_after_a_departure() {
        let (mut search, mut share) = (Ucb::new(), 0.5);
        run(&mut search, &mut share, (0.0, 1.0), 0.0, 2000, 100.0, peak(0.5));
        search.landmark = Some(POINTS - 1);
        search.account = -1000.0;
        run(&mut search, &mut share, (0.0, 1.0), 0.0, 200, 100.0, peak(0.5));
        assert!(search.landmark.is_none() && (share - 0.5).abs() < 0.1, "{share}");
        // With something to spend it goes there.
        search.account = SWEEP;
        search.landmark = Some(POINTS - 1);
        run(&mut search, &mut share, (0.0, 1.0), 0.0, 20, 100.0, peak(0.5));
        assert!(share > 0.8, "{share}");
    }

    #[test]
    fn a_load_that_changes_nothing_but_the_reads_of_a_tier_is_seen() {
        let (mut rest, mut departed) = (Rest::NOTHING, None);
        for quantum in 0..400 {
            let mut loads = loads(100.0, 140.0);
            loads.default.reads_per_ns = if quantum < 200 { 0.006 } else { 0.0 };
            departed = departed.or(rest.read(loads, Some(0), 0.0).map(|_| quantum));
        }
        assert!(departed.is_some_and(|quantum| quantum > 200), "{departed:?}");
    }

    #[test]
    fn an_empty_account_tries_nothing() {
        let (mut search, mut share) = (Ucb::new(), 0.5);
        run(&mut search, &mut share, (0.0, 1.0), 0.03, 1000, 100.0, peak(0.5));
        search.account = -1000.0;
        let lost = run(&mut search, &mut share, (0.0, 1.0), 0.03, 1000, 100.0, peak(0.5));
        assert!(lost[100..].iter().all(|lost| *lost < 0.02) && search.account() < 0.0);
    }
}

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
//! - *Visits*: to the point of the greatest bound, the way there taken off, of those no more than [`HOP`] from here:
//!   farther off nothing is known after a departure, so that all of the account would go into ways. A visit ends when
//!   the point may not be the best any more, or after a time that grows with each visit to the same point.
//! - *Hops*: where no point that near is worth a visit, but one farther off may be higher than the best and at least
//!   half of the account is there, it goes towards that one, [`HOP`] points at a time, with a short visit after each.
//!   Without them a best of which its neighbours are known to be worse is never left, however full the account is.
//! - *Departure*: the rate is not what the curve says, or where the share rests a latency or the reads of a tier are
//!   not what they were there or, if it has not rested there before, close by. The curve loses part of its form and
//!   becomes uncertain again, the more so the greater the departure, and home is visited first, for what was seen on a
//!   way may be of both loads; then, if the departure is paid for, the points [`HOP`] to both sides of it: a new load
//!   may be as fast at home as the old one, and rise where that fell. Home alone where a best far from it turns up:
//!   perhaps the load has changed while it was away.
//! - *Surprise*: what the first quanta at a point say is not what the curve said of it when the way there began, by
//!   more than [`SURPRISE`] deviations: the curve is of another load than it thinks, and becomes uncertain by as much.
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

mod curve;
mod departure;

pub use curve::POINTS;
use curve::{Curve, LENGTH, about, place};
use departure::{Departure, Noise, OperatingPoint};

use std::ops::RangeInclusive;

use super::placer::Shift;
use super::{Placer, Reading};
use crate::tier::Tier;
use crate::tier::kind::PlacerKind;

/// `+ucb`.
pub const KIND: PlacerKind =
    PlacerKind { name: "ucb", make: |_| Box::new(Ucb::new()), balances: true, by_faults: false };

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

/// And over which it changes alike.
const CHANGE_LENGTH: f64 = 0.3;
/// And of how that varies.
const COPIES_VARY: f64 = 0.5;
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
/// Points from where the share is to the farthest one to visit: what lies behind is seen from there.
const HOP: usize = 4;
/// The account, half of the most that it holds, from which on hops go towards what is farther off.
const SPARE: f64 = (SWEEP + AGAIN) / 2.0;
/// Quanta of the first visit, and how much longer each further one is.
const VISIT: f64 = 16.0;
const GROWS: f64 = 1.5;
/// A share this close to its target has arrived.
const ARRIVED: f64 = 0.5 / (POINTS - 1) as f64;
/// The share moves while it changes by more than this in a quantum, and by more than it does by itself.
const MOVES: f64 = 0.0005;
/// Quanta without movement after which a target that is not reached lies beyond a bound.
const STILL: u32 = 10;
/// And after which what is read says whether the rate has departed: a share that goes to and fro between neighbours
/// rests no longer.
const SETTLED: u32 = 6;
/// Quanta after which a bound is tried again.
const TRIED: u32 = 5_000;
/// A target this near that cannot be reached lies beyond a bound.
const NEAR: f64 = 2.0 / (POINTS - 1) as f64;
/// A departure of this much leaves a third or so of what is known of the form.
const FADES: f64 = 0.6;
/// A departure of the rate by this much makes the curve as uncertain as at first.
const WHOLE: f64 = 0.25;
/// Deviations beyond which what is found at a point says that the curve is less certain than it thinks, and the least
/// deviation that counts.
const SURPRISE: f64 = 3.0;
const LEAST_SURPRISE: f64 = 0.005;
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
    rest: OperatingPoint,
    target: Option<usize>,
    /// The next stop of the first way down, if there is one.
    stop: Option<Option<usize>>,
    /// The points to look at first after a departure, the last one first.
    landmarks: Vec<usize>,
    /// The far point that a hop goes towards.
    goal: Option<usize>,
    /// Quanta of this visit to the target, and visits to each point.
    visit: u32,
    visits: [u8; POINTS],
    /// Quanta at each point since the last departure.
    rested: [u32; POINTS],
    /// The share of the last quantum, and for how many it has not moved.
    seen: f64,
    still: u32,
    /// What the curve said of the target when it was chosen, and what is read there.
    promised: Prediction,
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
            noise: Noise::new(),
            departure: Departure::default(),
            rest: OperatingPoint::NOTHING,
            target: None,
            stop: Some(None),
            landmarks: Vec::new(),
            goal: None,
            visit: 0,
            visits: [0; POINTS],
            rested: [0; POINTS],
            seen: f64::NAN,
            still: 0,
            promised: Prediction::default(),
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
        if self.target != Some(target) {
            let (mean, variance) = (self.curve.mean[target], self.curve.covariance[target][target]);
            self.promised = Prediction { mean, variance, ..Prediction::default() };
        }
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
        let by_rate =
            if self.still < SETTLED { None } else { self.departure.read(error, expected) };
        let at =
            self.target.filter(|at| moves == 0.0 && (self.reach(*at) - share).abs() <= ARRIVED);
        let by_latency = self.rest.read(reading.loads, at, variance.sqrt());
        if at.is_some()
            && let Some(surprise) = self.promised.read(value, variance)
        {
            let part = (surprise / WHOLE).powi(2).clamp(PARTLY, MOST_PART);
            self.curve.doubt(part, 0.0, CHANGE_LENGTH);
        }
        if let Some(departed) = by_rate.into_iter().chain(by_latency).reduce(f64::max) {
            self.departure = Departure::default();
            self.rest.forget();
            (self.low, self.high) = (0.0, 1.0);
            self.visits = [0; POINTS];
            self.goal = None;
            // What was seen on a way may be of both loads: the level is told apart where it rested longest.
            let home = self.home();
            self.landmarks = vec![home];
            self.rested = [0; POINTS];
            let part = (departed / WHOLE).powi(2).clamp(PARTLY, MOST_PART);
            self.curve.fade((-departed / FADES).exp());
            self.curve.doubt(part, UNKNOWN, CHANGE_LENGTH);
            if self.paid >= APART {
                self.paid = 0.0;
                let sides = [home.checked_sub(HOP), Some(home + HOP).filter(|at| *at < POINTS)];
                self.landmarks.splice(0..0, sides.into_iter().flatten());
                self.account = (self.account + AGAIN).min(SWEEP + AGAIN);
            }
        }
    }

    /// The point at which it has rested longest since the last departure.
    fn home(&self) -> usize {
        (0..POINTS).max_by_key(|point| self.rested[*point]).unwrap_or(0)
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
    fn points(&self) -> RangeInclusive<usize> {
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
    fn move_cost(&self, from: f64, to: f64, best: usize) -> f64 {
        let copies = (-self.curve.mean[POINTS]).max(LEAST_COPIES);
        let lost = |share: f64| {
            1.0 - (self.curve.at(share) - self.curve.mean[best] - copies).min(0.0).exp()
        };
        (from - to).abs() / self.greatest.max(MOVES) * f64::midpoint(lost(from), lost(to))
    }

    /// The point to go to.
    fn choose(&mut self, share: f64, moves: f64) -> usize {
        let now = self.standing(share);
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
    fn standing(&self, share: f64) -> QuantumStart {
        let curve = &self.curve;
        // Beside the one that is known best, the others' level does not matter.
        let known = curve.known(self.points());
        let (best, _) = self.highest(|point| curve.mean[point] - curve.apart(point, known));
        let held = self.target.filter(|target| self.points().contains(target));
        let arrived = held.is_some_and(|target| (self.reach(target) - share).abs() <= ARRIVED);
        QuantumStart { known, best, held, arrived }
    }

    /// Charges the account; whether it still holds more than the way back costs.
    fn charge(&mut self, share: f64, moves: f64, now: &QuantumStart) -> bool {
        self.away &= !(now.arrived && now.held == Some(now.best));
        if self.away {
            let taken = moves * self.curve.mean[POINTS];
            let below = self.curve.at(share) + taken - self.curve.mean[now.best];
            self.account -= 1.0 - below.min(0.0).exp();
        }
        self.account > self.move_cost(share, self.reach(now.best), now.best)
    }

    /// With nothing to spend: the best.
    fn give_up(&mut self, now: &QuantumStart) -> usize {
        (self.stop, self.goal) = (None, None);
        self.landmarks.clear();
        if now.held != Some(now.best) {
            self.visit = 0;
        }
        now.best
    }

    /// The point to try, or the best.
    fn explore(&mut self, share: f64, now: &QuantumStart) -> usize {
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
        let QuantumStart { best, known, .. } = *now;
        let here = about(share).0;
        let affordable = |point: usize| {
            let (to, home) = (self.reach(point), self.reach(best));
            let near = point.abs_diff(here) <= HOP;
            point == best
                || near
                    && self.account
                        > self.move_cost(share, to, best) + self.move_cost(to, home, best)
        };
        let score = |point| match affordable(point) {
            true => self.score(point, known, share),
            false => f64::NEG_INFINITY,
        };
        let near = self.highest(score).0;
        let hop = if near == best { self.hop(share, now) } else { None };
        let hop = hop.filter(|(point, _)| affordable(*point));
        self.goal = hop.map(|(_, far)| far);
        hop.map_or(near, |(point, _)| point)
    }

    /// Where nothing near is worth a visit: the point that may be the highest of all, and a hop towards it. What is
    /// not known lies behind points that are known to be worse, so that it never comes near by itself.
    fn hop(&self, share: f64, now: &QuantumStart) -> Option<(usize, usize)> {
        let here = about(share).0;
        let (far, bound) = self.highest(|point| self.score(point, now.known, share));
        let hop = far.clamp(here.saturating_sub(HOP), here + HOP);
        let worth = bound > self.curve.mean[now.best] + HOLD && hop != now.best;
        (worth && self.account >= SPARE).then_some((hop, far))
    }

    /// The next stop of the first way down, while there is one.
    fn first_way(&mut self, share: f64, now: &QuantumStart) -> Option<usize> {
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
    fn homeward(&mut self, now: &QuantumStart) -> Option<usize> {
        let home = self.home();
        let far = now.best.abs_diff(home) >= AWAY;
        if self.rested[home] >= HOME && far && self.landmarks.is_empty() {
            self.landmarks = vec![home];
            self.rested = [0; POINTS];
        }
        let points = self.points();
        self.landmarks.retain(|point| points.contains(point));
        let landmark = *self.landmarks.last()?;
        if now.held != Some(landmark) {
            self.visit = 0;
        } else if f64::from(self.visit) >= 2.0 * VISIT {
            self.landmarks.pop();
            self.visit = 0;
        }
        Some(landmark)
    }

    /// Whether a visit to a target goes on: until it may not be the best any more, or has been long enough.
    fn stays(&self, target: usize, now: &QuantumStart) -> bool {
        let length = match self.goal {
            Some(_) => VISIT,
            None => VISIT * GROWS.powi(i32::from(self.visits[target])),
        };
        let bound = || self.bound(self.goal.unwrap_or(target), now.known);
        let at_best = self.goal.is_none() && target == now.best;
        let hopeful = at_best || bound() > self.curve.mean[now.best] + HOLD;
        hopeful && (!now.arrived || f64::from(self.visit) < length)
    }
}

/// What the curve said of a point when the way there began: a mean and its variance; and what is read there: the sum
/// of so many values.
#[derive(Clone, Copy, Debug, Default)]
struct Prediction {
    mean: f64,
    variance: f64,
    sum: f64,
    count: f64,
}

impl Prediction {
    /// Takes a reading in: by how much the point is not what was said of it, once that is known.
    fn read(&mut self, value: f64, variance: f64) -> Option<f64> {
        self.sum += value;
        self.count += 1.0;
        let error = (self.sum / self.count - self.mean).abs();
        let expected = (self.variance + variance / self.count).sqrt();
        (self.count == VISIT && error > SURPRISE * expected.max(LEAST_SURPRISE)).then_some(error)
    }
}

/// What is seen at the beginning of a quantum.
struct QuantumStart {
    /// The point whose level is known best, and the one that is best.
    known: usize,
    best: usize,
    /// The target of the last quantum, unless it has got out of reach; whether the share is there.
    held: Option<usize>,
    arrived: bool,
}

#[cfg(test)]
mod tests;

//! Whether memory grows steadily: without an end in sight, and without giving any of it back.
//!
//! The time is divided into eighths, and from one of the first five bounds on, the earliest that does:
//! - each stretch of two eighths grows by a quarter to four times as much as their median;
//! - no value lies below an earlier one by more than a twentieth of the growth;
//! - it was growing at the end: it did not rest there for much longer than between two rises before.
//!
//! Who sets itself up and is done then grows at first and no more; who fills a table that doubles grows in steps that
//! are ever farther apart: neither is steady. What comes before the first such bound, a start, does not matter.
//!
//! Always true: the growth is of the last half at least, and no more than the last value.

/// Parts of the time.
const PARTS: usize = 8;
/// The last bound from which it may begin: the last half is in it.
const LATEST: usize = 4;
/// Points below which parts tell nothing.
const POINTS: usize = 9;
/// How much less or more than the median a stretch grows at most.
const UNEVEN: f64 = 4.0;
/// Part of the growth that may be given back for a while.
const GIVEN_BACK: f64 = 0.05;
/// A rise is this part of the growth.
const RISE: f64 = 1.0 / 64.0;
/// Growth of the last half that is worth a word, bytes, and the part of the largest value.
const LEAST: f64 = 4.0 * 1024.0 * 1024.0;
const PART: f64 = 0.05;

/// Memory that grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// By how much, bytes.
    pub bytes: f64,
    /// From when on, s.
    pub from: f64,
    /// Until when, s: the last point.
    pub until: f64,
    /// The most that a value was below an earlier one, bytes.
    pub given_back: f64,
}

impl Growth {
    /// For how long, s.
    pub fn seconds(&self) -> f64 {
        self.until - self.from
    }

    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes / self.seconds().max(f64::MIN_POSITIVE)
    }
}

/// Whether these points, seconds and bytes in the order of time, grow steadily; `None` as well if they are too few.
pub fn steady(points: &[(f64, f64)]) -> Option<Growth> {
    let (first, last) = (points.first()?, points.last()?);
    let span = last.0 - first.0;
    if points.len() < POINTS || span <= 0.0 {
        return None;
    }
    let bound = |number: usize| first.0 + span * number as f64 / PARTS as f64;
    let at = |number: usize| {
        let until = points.partition_point(|point| point.0 <= bound(number));
        points[until.saturating_sub(1)].1
    };
    let levels: Vec<f64> = (0..PARTS).map(at).chain([last.1]).collect();
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    if last.1 - levels[LATEST] < LEAST.max(highest * PART) {
        return None;
    }
    let given_back = given_back(points);
    (0..=LATEST).find_map(|begin| {
        let bytes = last.1 - levels[begin];
        let from = points.partition_point(|point| point.0 < bound(begin));
        let keeps = given_back <= bytes * GIVEN_BACK;
        let steady = keeps && is_even(&levels[begin..]) && !has_ended(&points[from..], bytes);
        steady.then_some(Growth { bytes, from: bound(begin), until: last.0, given_back })
    })
}

/// Whether each stretch of two parts grows about as much as the others.
fn is_even(levels: &[f64]) -> bool {
    let grown = |stretch: &[f64]| stretch[2] - stretch[0];
    let mut grown: Vec<f64> = levels.windows(3).map(grown).collect();
    grown.sort_by(f64::total_cmp);
    let median = grown[grown.len() / 2];
    let (least, most) = (grown[0], grown[grown.len() - 1]);
    least > 0.0 && least * UNEVEN >= median && most <= median * UNEVEN
}

/// The most that a value is below an earlier one.
fn given_back(points: &[(f64, f64)]) -> f64 {
    let mut highest = f64::MIN;
    let below = points.iter().map(|(_, value)| {
        highest = highest.max(*value);
        highest - value
    });
    below.fold(0.0, f64::max)
}

/// Whether it has not risen for longer than ever before, by far.
fn has_ended(points: &[(f64, f64)], bytes: f64) -> bool {
    let Some(mut rose) = points.first().copied() else { return true };
    let (mut longest, mut before) = (0.0_f64, rose.0);
    let mut apart = 0.0_f64;
    for (time, value) in points {
        apart = apart.max(time - before);
        before = *time;
        if value - rose.1 >= bytes * RISE {
            longest = longest.max(time - rose.0);
            rose = (*time, *value);
        }
    }
    before - rose.0 > 2.0 * longest + 2.0 * apart
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: f64 = 1048576.0;

    /// A point each 100 ms for so many seconds, of a function of the time.
    fn points(seconds: f64, of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let count = (seconds * 10.0) as usize;
        (0..=count).map(|number| number as f64 / 10.0).map(|at| (at, of(at) * MIB)).collect()
    }

    fn told(seconds: f64, of: impl Fn(f64) -> f64) -> Option<(f64, f64, f64)> {
        steady(&points(seconds, of))
            .map(|growth| ((growth.bytes / MIB).round(), growth.from, growth.until))
    }

    #[test]
    fn who_grows_until_the_end_is_told_from_who_set_itself_up() {
        assert_eq!(told(8.0, |at| 25.0 + 23.25 * at), Some((186.0, 0.0, 8.0)));
        // In lumps of a second, about as long as an eighth.
        assert_eq!(told(8.2, |at| 25.0 * (at + 0.3).floor()), Some((200.0, 0.0, 8.2)));
        // After a start that took much more.
        assert_eq!(told(8.0, |at| (at * 2000.0).min(500.0) + 30.0 * at), Some((210.0, 1.0, 8.0)));
        let none: [&dyn Fn(f64) -> f64; 7] = [
            &|_| 200.0,
            // A start that takes all but the last tenth.
            &|at| 25.0 * at.min(7.2),
            // It slows down.
            &|at| 200.0 * (1.0 - (-at).exp()),
            // A table that doubles.
            &|at| (at.max(0.1) * 30.0).log2().floor().exp2(),
            // A collector that frees what it finds.
            &|at| 50.0 + 20.0 * at - 80.0 * (at / 4.5).floor(),
            // Too little of what there is.
            &|at| 1000.0 + 10.0 * at,
            // Too little.
            &|at| 0.9 * at,
        ];
        for (number, of) in none.into_iter().enumerate() {
            assert_eq!(told(8.0, of), None, "{number}");
        }
        assert_eq!(told(0.7, |at| 100.0 * at), None, "eight points");
        assert_eq!(steady(&[]), None);
        assert_eq!(steady(&[(1.0, 5.0 * MIB); 20]), None, "no time");
    }

    proptest! {
        #[test]
        fn noise_does_not_hide_a_growth_nor_make_one(
            noise in prop::collection::vec(0.0..1.0f64, 81), rate in 5.0..500.0f64, level in 0.0..100.0f64
        ) {
            let noise = |at: f64| noise[(at * 10.0).round() as usize];
            let growth = steady(&points(8.0, |at| level + rate * at + rate * 0.05 * noise(at)));
            let growth = growth.unwrap();
            prop_assert!((growth.rate() / MIB / rate - 1.0).abs() < 0.05, "{growth:?}");
            prop_assert_eq!(told(8.0, |at| level + rate * noise(at)), None);
        }
    }
}

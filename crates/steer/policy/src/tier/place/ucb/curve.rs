//! A curve of the program's rate over the share, with its uncertainty: a Gaussian process, taken in reading by reading
//! (a Kalman filter over the points).
//!
//! Always so: what is read makes no point less certain; a point's variance is at most [`MOST`].

/// Points of the curve, in equal steps from 0 to 1.
pub const POINTS: usize = 33;
/// With the loss of rate while pages move.
const STATES: usize = POINTS + 1;
/// Standard deviation of the curve about its level, in logarithms of the rate.
const HEIGHT: f64 = 0.3;
/// Difference of shares over which the curve is alike.
pub(super) const LENGTH: f64 = 0.45;
/// Standard deviation of its bends, and over which shares they are alike: where a tier fills up, a curve turns within a
/// tenth, which what lies on both sides does not announce.
const BENDS: f64 = 0.02;
const BEND_LENGTH: f64 = 0.15;
/// Variance of the level: nothing is known of it.
const LEVEL: f64 = 1.0;
/// The greatest variance of a point.
const MOST: f64 = 16.0;
/// Standard deviation of what copies take of the rate.
const COPIES: f64 = 0.05;

/// The logarithm of the rate over the share; the last state is what copies take.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) mean: [f64; STATES],
    pub(super) covariance: Box<[[f64; STATES]; STATES]>,
    known: bool,
}

/// Matérn's kernel with nu = 5/2 for the form, and with nu = 3/2 for its bends.
fn alike(a: usize, b: usize, length: f64) -> f64 {
    let apart = a.abs_diff(b) as f64 / (POINTS - 1) as f64;
    let form = apart * 5.0_f64.sqrt() / length;
    let bends = apart * 3.0_f64.sqrt() / BEND_LENGTH;
    HEIGHT * HEIGHT * (1.0 + form + form * form / 3.0) * (-form).exp()
        + BENDS * BENDS * (1.0 + bends) * (-bends).exp()
}

pub(super) fn place(point: usize) -> f64 {
    point as f64 / (POINTS - 1) as f64
}

/// The two points about a share, and the weight of the second.
pub(super) fn about(share: f64) -> (usize, f64) {
    let along = share.clamp(0.0, 1.0) * (POINTS - 1) as f64;
    let first = (along as usize).min(POINTS - 2);
    (first, along - first as f64)
}

impl Curve {
    pub(super) fn new() -> Self {
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
    pub(super) fn doubt(&mut self, part: f64, level: f64, length: f64) {
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
    pub(super) fn fade(&mut self, kept: f64) {
        let level = self.mean[..POINTS].iter().sum::<f64>() / POINTS as f64;
        self.mean[..POINTS].iter_mut().for_each(|mean| *mean = level + kept * (*mean - level));
        let part = |state: usize| if state < POINTS { kept } else { 1.0 };
        for (a, row) in self.covariance.iter_mut().enumerate() {
            row.iter_mut().enumerate().for_each(|(b, cell)| *cell *= part(a) * part(b));
        }
    }

    /// Takes a reading in: returns its error and the variance that was expected of it.
    pub(super) fn read(&mut self, share: f64, moves: f64, value: f64, variance: f64) -> (f64, f64) {
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

    pub(super) fn at(&self, share: f64) -> f64 {
        let (first, along) = about(share);
        (1.0 - along) * self.mean[first] + along * self.mean[first + 1]
    }

    /// How uncertain the difference of two points is: a standard deviation.
    pub(super) fn apart(&self, point: usize, other: usize) -> f64 {
        let covariance = &self.covariance;
        let variance =
            covariance[point][point] + covariance[other][other] - 2.0 * covariance[point][other];
        variance.max(0.0).sqrt()
    }

    /// The point of some whose level is known best.
    pub(super) fn known(&self, points: impl Iterator<Item = usize>) -> usize {
        let level = |point: usize| self.covariance[point][point];
        points.min_by(|a, b| level(*a).total_cmp(&level(*b))).unwrap_or(0)
    }
}

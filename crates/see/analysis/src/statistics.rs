//! Statistics for comparing arms of an experiment: few samples, unknown distribution, outliers.
//!
//! Terms: an *arm* is one configuration measured several times; an *estimate* is a statistic of an
//! arm with the interval in which it plausibly lies. Location is the median, because a shared machine
//! produces one-sided outliers that would own a mean.
//!
//! Intervals are BCa bootstrap intervals (Efron, "Better Bootstrap Confidence Intervals", JASA
//! 1987; the several-sample form is the one of SciPy's `scipy.stats.bootstrap`): the statistic is
//! recomputed over resamples drawn with replacement, and the percentiles taken from that
//! distribution are shifted by a bias `z0` and an acceleration `a`:
//!
//! ```text
//!   alpha' = Φ(z0 + (z0 + z) / (1 - a (z0 + z)))      z = Φ⁻¹(alpha)
//!   z0     = Φ⁻¹(share of resamples below the estimate, ties counted half)
//!   a      = Σ_k Σ_i U_ki³/n_k³ / 6 (Σ_k Σ_i U_ki²/n_k²)^1.5,   U_ki = (n_k - 1)(mean - leave-one-out_i)
//! ```
//!
//! Always true: the same seed gives the same interval; the low end is never above the high end; an
//! interval lies within what resampling can produce; a sample too small for an interval (fewer
//! than two values) has none rather than a made-up one.

mod normal;

pub use normal::{cumulative, quantile as normal_quantile};
pub use pagemill_model::random::Random;

/// The confidence level used where a caller has no reason for another one.
pub const LEVEL: f64 = 0.95;

/// The number of resamples used where a caller has no reason for another one.
pub const RESAMPLES: usize = 9_999;

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end, in the unit of the statistic.
    pub low: f64,
    /// Upper end, in the unit of the statistic.
    pub high: f64,
    /// Confidence level, in (0, 1).
    pub level: f64,
}

impl Interval {
    /// Whether `value` lies in the interval, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// A statistic of one or more samples, with its interval if there were enough values for one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The statistic over the samples as they are.
    pub value: f64,
    /// `None` with fewer than two values in a sample.
    pub interval: Option<Interval>,
}

/// How an interval is computed; recorded beside the result so that it can be computed again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// Confidence level, in (0, 1).
    pub level: f64,
    /// Resamples to draw.
    pub resamples: usize,
    /// Seed of the resampling.
    pub seed: u64,
}

impl Bootstrap {
    /// The usual level and number of resamples with this seed.
    pub fn seeded(seed: u64) -> Self {
        Self { level: LEVEL, resamples: RESAMPLES, seed }
    }
}

/// The arithmetic mean; `None` for no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The mean of a quantity over time, which was looked at in these moments (in seconds; trapezoids, for moments are not
/// exactly equidistant); the last value if no time passed; none without a look.
pub fn mean_over_time<T>(looks: &[T], at: impl Fn(&T) -> (f64, f64)) -> Option<f64> {
    let (first, last) = (at(looks.first()?), at(looks.last()?));
    let span = last.0 - first.0;
    if span <= 0.0 {
        return Some(last.1);
    }
    let area = |pair: &[T]| {
        let (from, to) = (at(&pair[0]), at(&pair[1]));
        (to.0 - from.0) * (from.1 + to.1) / 2.0
    };
    Some(looks.windows(2).map(area).sum::<f64>() / span)
}

/// The geometric mean; `None` for no values or a value that is not positive.
pub fn geomean(values: &[f64]) -> Option<f64> {
    if values.iter().any(|&value| value.is_nan() || value <= 0.0) {
        return None;
    }
    mean(&values.iter().map(|value| value.ln()).collect::<Vec<_>>()).map(f64::exp)
}

/// The median: the middle value, or the mean of the two middle values; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The median absolute deviation from the median, unscaled (multiply by 1.4826 to estimate the
/// standard deviation of a normal distribution); `None` for no values.
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    median(&values.iter().map(|value| (value - centre).abs()).collect::<Vec<_>>())
}

/// The `share`-quantile, `share` in [0, 1], by linear interpolation between order statistics
/// (type 7 of Hyndman & Fan 1996, NumPy's default); `None` for no values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, share)
}

fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = share.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    let (low, high) = (sorted[below], sorted[above]);
    if low == high {
        return Some(low);
    }
    // Clamped because rounding may leave the segment by one unit in the last place.
    Some((low + (high - low) * (position - below as f64)).clamp(low, high))
}

/// The median with its BCa interval; `None` for no values.
pub fn median_estimate(values: &[f64], how: &Bootstrap) -> Option<Estimate> {
    bootstrap(&[values], |samples| median(samples[0]), how)
}

/// `median(numerator) / median(denominator)` with its BCa interval, both samples resampled.
///
/// `None` if a sample is empty or the denominator's median is zero. Arms measured in pairs
/// (interleaved) need no pairing here: where the pairs rise and fall together the interval is
/// somewhat too wide.
pub fn ratio_of_medians(
    numerator: &[f64],
    denominator: &[f64],
    how: &Bootstrap,
) -> Option<Estimate> {
    let ratio = |samples: &[&[f64]]| {
        let below = median(samples[1])?;
        (below != 0.0).then_some(median(samples[0])? / below)
    };
    bootstrap(&[numerator, denominator], ratio, how)
}

/// A statistic of independent samples with its BCa interval.
///
/// `statistic` gets the samples in the order given; where it returns `None` for a resample, that
/// resample is left out. `None` if it returns `None` for the samples themselves.
pub fn bootstrap(
    samples: &[&[f64]],
    statistic: impl Fn(&[&[f64]]) -> Option<f64>,
    how: &Bootstrap,
) -> Option<Estimate> {
    let value = statistic(samples)?;
    if samples.iter().any(|sample| sample.len() < 2) || how.resamples == 0 {
        return Some(Estimate { value, interval: None });
    }
    let mut random = Random::new(how.seed);
    let mut drawn: Vec<Vec<f64>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let mut distribution = Vec::with_capacity(how.resamples);
    for _ in 0..how.resamples {
        for (into, from) in drawn.iter_mut().zip(samples) {
            for slot in into.iter_mut() {
                *slot = from[random.index(from.len())];
            }
        }
        let views: Vec<&[f64]> = drawn.iter().map(Vec::as_slice).collect();
        distribution.extend(statistic(&views).filter(|drawn| !drawn.is_nan()));
    }
    if distribution.is_empty() {
        return Some(Estimate { value, interval: None });
    }
    distribution.sort_by(f64::total_cmp);
    let bias = bias(&distribution, value);
    let acceleration = acceleration(samples, &statistic);
    let end = |alpha: f64| {
        let shifted = bias + normal_quantile(alpha);
        let adjusted = if bias.is_finite() {
            cumulative(bias + shifted / (1.0 - acceleration * shifted))
        } else {
            // The estimate lies outside of all resamples: BCa is undefined, the percentile
            // interval is what remains.
            alpha
        };
        quantile_of_sorted(&distribution, adjusted).expect("the distribution is not empty")
    };
    let tail = (1.0 - how.level) / 2.0;
    let (low, high) = (end(tail), end(1.0 - tail));
    // A strong acceleration can turn the ends around (the denominator passes zero).
    let (low, high) = (low.min(high), low.max(high));
    Some(Estimate { value, interval: Some(Interval { low, high, level: how.level }) })
}

/// `z0`: how far the estimate is from the median of its resamples, in standard deviations.
fn bias(sorted: &[f64], value: f64) -> f64 {
    let below = sorted.partition_point(|&drawn| drawn < value);
    let not_above = sorted.partition_point(|&drawn| drawn <= value);
    normal_quantile((below + not_above) as f64 / (2 * sorted.len()) as f64)
}

/// `a`: how fast the standard error changes with the statistic, from leaving out one value each.
/// Zero where that is undefined (a statistic that no single value moves).
fn acceleration(samples: &[&[f64]], statistic: impl Fn(&[&[f64]]) -> Option<f64>) -> f64 {
    let (mut cubes, mut squares) = (0.0, 0.0);
    for (index, sample) in samples.iter().enumerate() {
        let size = sample.len() as f64;
        let without: Vec<f64> = (0..sample.len())
            .filter_map(|left_out| {
                let mut rest = sample.to_vec();
                rest.remove(left_out);
                let mut views = samples.to_vec();
                views[index] = &rest;
                statistic(&views)
            })
            .collect();
        let Some(centre) = mean(&without) else { continue };
        for leave_one_out in &without {
            let influence = (size - 1.0) * (centre - leave_one_out) / size;
            cubes += influence.powi(3);
            squares += influence.powi(2);
        }
    }
    let acceleration = cubes / (6.0 * squares.powf(1.5));
    if acceleration.is_finite() { acceleration } else { 0.0 }
}

#[cfg(test)]
mod tests;

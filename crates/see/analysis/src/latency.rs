//! Histograms of times in the log-linear buckets of `model::latency`: percentiles, tails, sums.
//!
//! Percentiles are nearest-rank and given as the middle of their bucket, so they are right to
//! within 1.6 %. Always true: a percentile is `None` where fewer than one value lies beyond it; merging
//! and folding in any order give the same.

use std::collections::BTreeMap;

use pagemill_model::{Nanos, latency};

use pagemill_model::sums::add;
use serde::{Deserialize, Serialize};

/// Shares at which latencies are reported.
pub const SHARES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];

/// Counts by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    buckets: BTreeMap<u32, u64>,
    total: u64,
}

impl Histogram {
    /// Adds `count` values of a bucket.
    pub fn add(&mut self, bucket: u32, count: u64) {
        if count > 0 {
            add(self.buckets.entry(bucket).or_default(), count);
            add(&mut self.total, count);
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            self.add(*bucket, *count);
        }
    }

    /// Values.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Buckets with values, lowest first: lower end, count.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        self.buckets.iter().map(|(bucket, count)| (latency::lower(*bucket), *count))
    }

    /// The nearest-rank percentile; `None` for no values, or if fewer than one lies beyond it.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        let beyond = (1.0 - share) * self.total as f64;
        // 0.99 is not exact in binary: a hundred values do have one beyond it.
        if self.total == 0 || beyond < 1.0 - 1e-6 {
            return None;
        }
        let rank = ((share * self.total as f64 - 1e-6).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            add(&mut seen, **count);
            seen >= rank
        });
        found.map(|(bucket, _)| latency::middle(*bucket))
    }

    /// The middle of the highest bucket.
    pub fn max(&self) -> Option<Nanos> {
        self.buckets.keys().next_back().map(|bucket| latency::middle(*bucket))
    }

    /// Sum of all values, each taken for the middle of its bucket.
    pub fn sum(&self) -> Nanos {
        let sum = |(bucket, count): (&u32, &u64)| latency::middle(*bucket).0 as f64 * *count as f64;
        Nanos(self.buckets.iter().map(sum).sum::<f64>() as u64)
    }

    /// The tail: for each bucket with values, its lower end and how many values are there or above.
    pub fn tail(&self) -> Vec<(Nanos, u64)> {
        let mut above = self.total;
        let step = |(low, count): (Nanos, u64)| {
            let point = (low, above);
            above = above.saturating_sub(count);
            point
        };
        self.buckets().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(latency::bucket(Nanos(*value)), 1));
        histogram
    }

    #[test]
    fn a_percentile_needs_a_value_beyond_it() {
        let ninety_nine: Vec<u64> = (1..=99).collect();
        assert_eq!(of(&ninety_nine).quantile(0.99), None);
        let hundred: Vec<u64> = (1..=100).collect();
        assert!(of(&hundred).quantile(0.99).is_some());
        assert_eq!(of(&[7, 8, 9, 10]).quantile(0.5), Some(Nanos(8)));
        assert_eq!(of(&[]).quantile(0.5), None);
    }

    #[test]
    fn the_tail_counts_what_is_at_or_above() {
        assert_eq!(of(&[1, 5, 5, 9]).tail(), [(Nanos(1), 4), (Nanos(5), 3), (Nanos(9), 1)]);
        assert_eq!(of(&[1, 5, 5, 9]).sum(), Nanos(20));
    }

    proptest! {
        #[test]
        fn percentiles_are_near_the_exact_ones(
            mut values in prop::collection::vec(0..10_000_000u64, 2..400), share in 0.0..0.99f64,
        ) {
            let histogram = of(&values);
            values.sort_unstable();
            let rank = ((share * values.len() as f64 - 1e-6).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1] as f64;
            if let Some(Nanos(near)) = histogram.quantile(share) {
                prop_assert!((near as f64 - exact).abs() <= exact / 32.0 + 1.0, "{near} for {exact}");
            }
        }

        #[test]
        fn merging_is_adding(
            a in prop::collection::vec(0..1u64 << 40, 0..50),
            b in prop::collection::vec(0..1u64 << 40, 0..50),
        ) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(merged, of(&[a, b].concat()));
        }
    }
}

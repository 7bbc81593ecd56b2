//! Latencies of operations, by kind, to three digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// What an operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Update,
    Insert,
    Scan,
    Modify,
}

const KINDS: usize = 5;
const LONGEST: Duration = Duration::from_secs(3_600);
/// Significant digits.
const DIGITS: u8 = 3;
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];
/// Names of the metrics: of all operations, then of each kind.
const NAMES: [[&str; 5]; KINDS + 1] = [
    ["p50_us", "p90_us", "p99_us", "p99.9_us", "p99.99_us"],
    ["read_p50_us", "read_p90_us", "read_p99_us", "read_p99.9_us", "read_p99.99_us"],
    ["update_p50_us", "update_p90_us", "update_p99_us", "update_p99.9_us", "update_p99.99_us"],
    ["insert_p50_us", "insert_p90_us", "insert_p99_us", "insert_p99.9_us", "insert_p99.99_us"],
    ["scan_p50_us", "scan_p90_us", "scan_p99_us", "scan_p99.9_us", "scan_p99.99_us"],
    ["modify_p50_us", "modify_p90_us", "modify_p99_us", "modify_p99.9_us", "modify_p99.99_us"],
];

/// Histograms in nanoseconds.
#[derive(Debug)]
pub(super) struct Latencies([Option<Histogram<u64>>; KINDS]);

impl Latencies {
    pub(super) fn new() -> Self {
        Self([0; KINDS].map(|_| Histogram::new(DIGITS).ok()))
    }

    pub(super) fn record(&mut self, kind: Kind, latency: Duration) {
        if let Some(histogram) = &mut self.0[kind as usize] {
            // It grows; an hour is as good as any longer time.
            let _ = histogram.record(latency.min(LONGEST).as_nanos() as u64);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            if let (Some(own), Some(other)) = (own, other) {
                // Both resize themselves, so that there is room.
                let _ = own.add(other);
            }
        }
    }

    /// Quantiles, mean and maximum in microseconds, of all operations and of each kind that there was.
    pub(super) fn metrics(&self) -> Vec<(&'static str, f64)> {
        let mut all = Self::new();
        let Some(sum) = &mut all.0[0] else { return Vec::new() };
        for histogram in self.0.iter().flatten() {
            // As above.
            let _ = sum.add(histogram);
        }
        let mut metrics = vec![("mean_us", sum.mean() / 1e3), ("max_us", sum.max() as f64 / 1e3)];
        let histograms = std::iter::once(&*sum).chain(self.0.iter().flatten());
        for (histogram, names) in histograms.zip(NAMES).filter(|(of, _)| !of.is_empty()) {
            for (quantile, name) in QUANTILES.into_iter().zip(names) {
                metrics.push((name, histogram.value_at_quantile(quantile) as f64 / 1e3));
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        (1..=5_000).for_each(|at| a.record(Kind::Read, Duration::from_micros(at)));
        (5_001..=10_000).for_each(|at| b.record(Kind::Update, Duration::from_micros(at)));
        a.add(&b);
        let metrics = a.metrics();
        let of = |name: &str| metrics.iter().find(|(metric, _)| *metric == name).unwrap().1;
        for (name, expected) in [
            ("p50_us", 5e3),
            ("p99.9_us", 9_990.0),
            ("read_p50_us", 2.5e3),
            ("update_p99_us", 9_950.0),
        ] {
            assert!((of(name) / expected - 1.0).abs() < 2e-3, "{name}: {}", of(name));
        }
        assert!(!metrics.iter().any(|(name, _)| name.starts_with("scan")));
    }
}

//! Reference values come from SciPy 1.17.1 and NumPy 2.4.6:
//!
//! ```python
//! import numpy as np, scipy.stats as st
//! np.median(A), st.median_abs_deviation(A), st.gmean(A), np.quantile(A, .9)
//! st.mannwhitneyu(A, B)                                            # asymptotic: A and B share 1.60
//! st.mannwhitneyu(A[:5], B[:5])                                    # exact
//! st.bootstrap((B,), np.mean, method='BCa', n_resamples=99999, rng=s)     # s = 1, 2, 3
//! st.bootstrap((A, B), lambda u, v, axis: np.median(u, axis=axis) / np.median(v, axis=axis),
//!              method='BCa', n_resamples=99999, rng=s)
//! st.norm.cdf(z), st.norm.ppf(p)
//! ```
//!
//! Bootstrap ends depend on the generator, so they are compared within the spread that SciPy
//! itself shows over three seeds, doubled.

use proptest::prelude::*;

use super::*;

const A: [f64; 10] = [1.58, 1.47, 1.77, 1.61, 1.55, 1.72, 1.49, 1.66, 1.60, 1.52];
const B: [f64; 10] = [1.92, 1.60, 3.06, 1.86, 1.75, 2.10, 1.95, 1.83, 2.02, 1.78];

#[track_caller]
fn close(ours: f64, reference: f64, tolerance: f64) {
    assert!((ours - reference).abs() <= tolerance, "{ours} is not {reference} ± {tolerance}");
}

fn thorough(seed: u64) -> Bootstrap {
    Bootstrap { level: 0.95, resamples: 99_999, seed }
}

#[test]
fn location_matches_scipy() {
    close(median(&A).unwrap(), 1.59, 1e-15);
    close(mad(&A).unwrap(), 0.07, 1e-15);
    close(geomean(&A).unwrap(), 1.594370182198006, 1e-14);
    close(quantile(&A, 0.9).unwrap(), 1.725, 1e-15);
}

#[test]
fn normal_distribution_matches_scipy() {
    for (z, share) in [
        (-8.0, 6.22096057427174e-16),
        (-2.5, 0.006209665325776132),
        (0.0, 0.5),
        (1.0, 0.8413447460685429),
        (1.959963984540054, 0.975),
    ] {
        close(cumulative(z) / share, 1.0, 1e-13);
    }
    for (share, z) in [
        (1e-12, -7.034483825301131),
        (1e-5, -4.264890793922825),
        (0.025, -1.9599639845400545),
        (0.5, 0.0),
        (0.8, 0.8416212335729143),
        (0.999999, 4.753424308817087),
    ] {
        close(normal_quantile(share), z, 1e-9);
    }
    assert!(normal_quantile(1.5).is_nan());
}

#[test]
fn bca_intervals_match_scipy() {
    // SciPy: (1.831, 2.386), (1.832, 2.382), (1.832, 2.385); skewed by the outlier 3.06.
    let mean_of_b = bootstrap(&[&B], |samples| mean(samples[0]), &thorough(1)).unwrap();
    let interval = mean_of_b.interval.unwrap();
    close(interval.low, 1.832, 0.002);
    close(interval.high, 2.385, 0.008);

    // SciPy: (1.78, 2.025) with all three seeds.
    let median_of_b = median_estimate(&B, &thorough(2)).unwrap();
    close(median_of_b.value, 1.89, 1e-12);
    close(median_of_b.interval.unwrap().low, 1.78, 0.001);
    close(median_of_b.interval.unwrap().high, 2.025, 0.001);

    // SciPy: (0.7743, 0.9114), (0.7733, 0.9121), (0.7733, 0.9114).
    let ratio = ratio_of_medians(&A, &B, &thorough(3)).unwrap();
    close(ratio.value, 0.8412698412698413, 1e-15);
    close(ratio.interval.unwrap().low, 0.7735, 0.002);
    close(ratio.interval.unwrap().high, 0.9115, 0.002);
}

#[test]
fn a_single_value_has_no_interval() {
    let alone = median_estimate(&[4.0], &Bootstrap::seeded(1)).unwrap();
    assert_eq!(alone, Estimate { value: 4.0, interval: None });
    assert_eq!(ratio_of_medians(&[1.0, 2.0], &[0.0, 0.0], &Bootstrap::seeded(1)), None);
    assert_eq!(median_estimate(&[], &Bootstrap::seeded(1)), None);
}

#[test]
fn values_that_never_vary_have_an_interval_of_no_width() {
    let flat = median_estimate(&[2.5; 6], &Bootstrap::seeded(9)).unwrap().interval.unwrap();
    assert_eq!((flat.low, flat.high), (2.5, 2.5));
}

#[test]
fn a_nominal_95_percent_interval_covers_the_truth_most_of_the_time() {
    // 400 samples of 20 values, uniform in [0, 1): the mean 0.5 must be covered at about the
    // nominal rate (95 %; BCa is known to fall a little short with 20 values).
    let mut random = Random::new(42);
    let how = Bootstrap { level: 0.95, resamples: 999, seed: 7 };
    let covered = (0..400)
        .filter(|_| {
            let sample: Vec<f64> =
                (0..20).map(|_| random.index(1 << 30) as f64 / (1u64 << 30) as f64).collect();
            let estimate = bootstrap(&[&sample], |samples| mean(samples[0]), &how).unwrap();
            estimate.interval.unwrap().contains(0.5)
        })
        .count();
    assert!((360..=395).contains(&covered), "{covered} of 400 intervals hold the mean");
}

#[test]
fn shuffling_reaches_every_order_about_equally_often() {
    let mut random = Random::new(5);
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..6_000 {
        let mut items = [0, 1, 2];
        random.shuffle(&mut items);
        *seen.entry(items).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 6);
    assert!(seen.values().all(|&count| (850..1150).contains(&count)), "{seen:?}");
}

fn sample() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((1u32..1000).prop_map(|value| f64::from(value) / 8.0), 2..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_interval_is_ordered_repeatable_and_within_the_sample(values in sample(), seed: u64) {
        let how = Bootstrap { level: 0.9, resamples: 499, seed };
        let first = median_estimate(&values, &how).unwrap();
        prop_assert_eq!(first, median_estimate(&values, &how).unwrap());
        let interval = first.interval.unwrap();
        prop_assert!(interval.low <= interval.high);
        prop_assert!(values.iter().any(|&value| value <= interval.low));
        prop_assert!(values.iter().any(|&value| value >= interval.high));
    }

    #[test]
    fn medians_lie_in_the_middle(values in sample()) {
        let middle = median(&values).unwrap();
        let below = values.iter().filter(|&&value| value < middle).count();
        let above = values.iter().filter(|&&value| value > middle).count();
        prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
    }

    #[test]
    fn scaling_an_arm_scales_the_ratio(first in sample(), second in sample()) {
        let how = Bootstrap { level: 0.9, resamples: 199, seed: 3 };
        let doubled: Vec<f64> = first.iter().map(|value| value * 2.0).collect();
        let once = ratio_of_medians(&first, &second, &how).unwrap();
        let twice = ratio_of_medians(&doubled, &second, &how).unwrap();
        prop_assert_eq!(once.value * 2.0, twice.value);
    }
}

#[test]
fn the_mean_over_time_is_weighted_by_it() {
    let looks = [(0.0, 100.0), (1.0, 100.0), (10.0, 100.0), (11.0, 200.0)];
    let mean = mean_over_time(&looks, |look| *look).unwrap();
    assert!((mean - (10.0 * 100.0 + 150.0) / 11.0).abs() < 1e-9, "{mean}");
    assert_eq!(mean_over_time(&looks[..1], |look| *look), Some(100.0));
    assert_eq!(mean_over_time(&looks[..0], |look| *look), None);
}

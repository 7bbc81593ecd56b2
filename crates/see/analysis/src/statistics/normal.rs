//! The standard normal distribution.

/// Φ: the share of the standard normal distribution below `z`.
pub fn cumulative(z: f64) -> f64 {
    0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
}

/// Φ⁻¹: the value below which `share` of the standard normal distribution lies; infinite at 0 and
/// 1, NaN outside of [0, 1].
///
/// Acklam's rational approximation (relative error 1.2e-9), refined by one step of Halley's
/// method to the precision of [`cumulative`].
pub fn quantile(share: f64) -> f64 {
    if share.is_nan() || !(0.0..=1.0).contains(&share) {
        return f64::NAN;
    }
    if share == 0.0 {
        return f64::NEG_INFINITY;
    }
    if share == 1.0 {
        return f64::INFINITY;
    }
    let start = approximate(share);
    let error = cumulative(start) - share;
    let step = error * (2.0 * std::f64::consts::PI).sqrt() * (start * start / 2.0).exp();
    start - step / (1.0 + start * step / 2.0)
}

fn approximate(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 5] = [
        7.784695709041462e-03,
        3.224671290700398e-01,
        2.445134137142996e+00,
        3.754408661907416e+00,
        1.0,
    ];
    /// Where the tails begin.
    const TAIL: f64 = 0.02425;
    let horner =
        |coefficients: &[f64], at: f64| coefficients.iter().fold(0.0, |sum, term| sum * at + term);
    if share < TAIL {
        let q = (-2.0 * share.ln()).sqrt();
        horner(&C, q) / horner(&D, q)
    } else if share > 1.0 - TAIL {
        -approximate(1.0 - share)
    } else {
        let q = share - 0.5;
        horner(&A, q * q) * q / horner(&B, q * q)
    }
}

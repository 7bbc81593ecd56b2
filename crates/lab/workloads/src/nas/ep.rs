//! `nas-ep`: pairs of Gaussian deviates by the polar method, counted and summed.
//!
//! ```text
//!  2^m pairs (x, y) in (-1, 1)^2;  t = x^2 + y^2;  kept if t <= 1
//!  X = x sqrt(-2 ln t / t),  Y likewise;  sx += X,  sy += Y,  counted by floor(max(|X|, |Y|))
//! ```
//!
//! Check: both sums, to 1e-8. `operations` counts pairs drawn.

use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use super::pseudorandom::Stream;
use crate::program::{Outcome, Params, Report};
use crate::team;

const SEED: u64 = 271_828_183;
/// Pairs in a batch (2^16): the unit in which work is split, so sums add up in the specified order.
const BATCH: u64 = 1 << 16;
const TOLERANCE: f64 = 1e-8;

/// log2 of the pairs, and the published sums.
const SIZES: [(u32, f64, f64); 4] = [
    (24, -3.247_834_652_034_74e3, -6.958_407_078_382_297e3),
    (25, -2.863_319_731_645_753e3, -6.320_053_679_109_499e3),
    (28, -4.295_875_165_629_892e3, -1.580_732_573_678_431e4),
    (30, 4.033_815_542_441_498e4, -2.660_669_192_809_235e4),
];

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let (log_pairs, ..) = class.of(SIZES);
    let pairs = 1_u64 << log_pairs;
    let batches = (pairs / BATCH) as usize;
    let started = Instant::now();
    let parts = team::each(team::ranges(batches, params.threads), |range| {
        let mut scratch = vec![0.0; 2 * BATCH as usize];
        range
            .map(|batch| Tally::of_batch(batch as u64, &mut scratch))
            .fold(Tally::default(), Tally::and)
    });
    let tally = parts.into_iter().fold(Tally::default(), Tally::and);
    let seconds = started.elapsed().as_secs_f64();
    tally.check(class)?;
    Ok(Report {
        operations: pairs,
        seconds,
        metrics: vec![("gaussian_pairs", tally.counts.iter().sum::<u64>() as f64)],
        check: format!("class {class}: both sums are the published ones"),
    })
}

#[derive(Clone, Copy, Default)]
struct Tally {
    x: f64,
    y: f64,
    counts: [u64; 10],
}

impl Tally {
    fn of_batch(batch: u64, scratch: &mut [f64]) -> Self {
        let mut stream = Stream::new(SEED).skipped(batch * 2 * BATCH);
        for number in scratch.iter_mut() {
            *number = stream.next();
        }
        let mut tally = Self::default();
        for pair in scratch.chunks_exact(2) {
            let (x, y) = (2.0 * pair[0] - 1.0, 2.0 * pair[1] - 1.0);
            let t = x * x + y * y;
            if t <= 1.0 {
                let factor = (-2.0 * t.ln() / t).sqrt();
                let (gx, gy) = (x * factor, y * factor);
                tally.counts[gx.abs().max(gy.abs()) as usize] += 1;
                tally.x += gx;
                tally.y += gy;
            }
        }
        tally
    }

    /// Whether its sums are the published ones.
    fn check(&self, class: Class) -> Result<(), String> {
        let (_, x, y) = class.of(SIZES);
        agrees(class, "sum of X", self.x, x, TOLERANCE)?;
        agrees(class, "sum of Y", self.y, y, TOLERANCE)
    }

    fn and(mut self, other: Self) -> Self {
        self.x += other.x;
        self.y += other.y;
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_missing_is_found() {
        let (log_pairs, x, y) = Class::S.of(SIZES);
        let mut all = Tally { x, y, ..Tally::default() };
        all.check(Class::S).unwrap();
        let last = (1 << log_pairs) / BATCH - 1;
        let one = Tally::of_batch(last, &mut vec![0.0; 2 * BATCH as usize]);
        all.y -= one.y;
        assert!(all.check(Class::S).unwrap_err().contains("sum of Y"));
        all.x -= one.x;
        assert!(all.check(Class::S).unwrap_err().contains("sum of X"));
    }
}

//! The benefit of each slice of a program's memory, from few runs: group testing.
//!
//! A *slice* is a part of the memory that a run puts on huge pages or leaves on base pages; the *benefit* is the time
//! that a run is shorter for it. One run a slice, as in the published profiler (510 runs), spends all its runs on
//! differences that drown in noise. Here every run has a random half of all slices on huge pages, so each run says
//! something about every slice; and runs next to each other are compared before those far apart, for a machine is busy
//! for a while.
//!
//! ```text
//!   y = T - Σ x_j b_j + drift + noise         x_j: slice j was on huge pages; drift: what neighbours in time share
//!   b = Σ of the blocks that hold j           blocks: slices, and runs of 2, 4, 8 ... slices,
//!                                             so that what is alike is one number
//! ```
//!
//! Each block's weight has a normal prior of its own width; the widths, the noise and the drift are those under which
//! the measured times are likeliest (sparse Bayesian learning, Tipping 2001, with the update of Wipf and Nagarajan
//! 2008). Few blocks keep a width, which is what lets 50 runs tell on 100 slices. With the posterior at hand, the next
//! halves are, of several random ones, those whose outcome is least certain.
//!
//! Always true: a function of the runs and the seed; slices that no run tells apart get equal estimates, up to what a
//! larger block says; times multiplied by a number give estimates multiplied by it.

use crate::statistics::Random;

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which slices were on huge pages.
    pub huge: Vec<bool>,
    /// What it took, in any unit.
    pub time: f64,
}

/// The benefit of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Benefit {
    /// How much shorter the run is with the slice on huge pages.
    pub mean: f64,
    /// Standard deviation of that.
    pub deviation: f64,
}

impl Benefit {
    /// Whether it is above zero by three deviations: of a hundred slices some are above by two without any benefit.
    pub fn sure(&self) -> bool {
        self.mean > 3.0 * self.deviation
    }
}

/// Rounds of the search for the widths.
const ROUNDS: usize = 60;
/// Widths below this, of times of variance one, are none.
const LEAST: f64 = 1e-9;
/// Runs after which what they share has fallen to a third.
const DRIFT: f64 = 6.0;
/// Parts of the runs of which each is left out once.
const FOLDS: usize = 5;
/// Random halves among which the next is chosen.
const CANDIDATES: usize = 48;

/// What the runs say.
#[derive(Clone, Debug)]
pub struct Posterior {
    blocks: Vec<(usize, usize)>,
    /// Variance of each block's prior.
    widths: Vec<f64>,
    error: f64,
    /// Inverse of the covariance of the runs, and the runs' sums over each block.
    inverse: Vec<f64>,
    sums: Vec<Vec<f64>>,
    benefits: Vec<Benefit>,
    seen: usize,
}

impl Posterior {
    /// The benefit of each slice.
    pub fn benefits(&self) -> &[Benefit] {
        &self.benefits
    }

    /// Root mean square error of predicting a run; as the model thinks, unless it was [`validated`].
    pub fn error(&self) -> f64 {
        self.error
    }

    /// Variance of what a run with these slices on huge pages, against one with the others, would show.
    fn uncertainty(&self, huge: &[bool]) -> f64 {
        let runs = self.seen;
        let mut prior = 0.0;
        let mut cross = vec![0.0; runs];
        for (block, (from, to)) in self.blocks.iter().enumerate() {
            let width = self.widths[block];
            if width == 0.0 {
                continue;
            }
            let sum: f64 = huge[*from..*to].iter().map(|on| if *on { 1.0 } else { -1.0 }).sum();
            prior += width * sum * sum;
            for (run, cross) in cross.iter_mut().enumerate() {
                *cross += width * sum * self.sums[block][run];
            }
        }
        let mut known = 0.0;
        for (row, left) in cross.iter().enumerate() {
            for (column, right) in cross.iter().enumerate() {
                known += left * self.inverse[row * runs + column] * right;
            }
        }
        prior - known
    }
}

/// The slices by their benefits, the greatest first.
pub fn ranking(benefits: &[Benefit]) -> Vec<usize> {
    let mut ranking: Vec<usize> = (0..benefits.len()).collect();
    ranking.sort_by(|a, b| benefits[*b].mean.total_cmp(&benefits[*a].mean));
    ranking
}

/// A random half of the slices.
fn half(slices: usize, random: &mut Random) -> Vec<bool> {
    let mut order: Vec<usize> = (0..slices).collect();
    random.shuffle(&mut order);
    let mut huge = vec![false; slices];
    order.into_iter().take(slices.div_ceil(2)).for_each(|slice| huge[slice] = true);
    huge
}

/// Which slices run number `run` should have on huge pages: none, all, all, none to begin with, for halves alone do not
/// tell what all slices together are worth; then random halves; and once a posterior is at hand, of several random
/// halves that whose outcome is least certain.
pub fn design(
    run: usize,
    slices: usize,
    posterior: Option<&Posterior>,
    random: &mut Random,
) -> Vec<bool> {
    match (run, posterior) {
        (0 | 3, _) => vec![false; slices],
        (1 | 2, _) => vec![true; slices],
        (_, None) => half(slices, random),
        (_, Some(posterior)) => {
            let mut best = (f64::NEG_INFINITY, Vec::new());
            for _ in 0..CANDIDATES {
                let candidate = half(slices, random);
                let uncertainty = posterior.uncertainty(&candidate);
                if uncertainty > best.0 {
                    best = (uncertainty, candidate);
                }
            }
            best.1
        }
    }
}

/// What `runs` say about the benefit of each of `slices` slices; `None` for no runs or a run of another number of
/// slices. Deviations are those of the model, which trusts itself too much with few runs: good enough to choose the
/// next run by.
pub fn estimate(runs: &[Run], slices: usize) -> Option<Posterior> {
    Data::new(runs, slices)?.posterior(&blocks(slices), slices, 1.0)
}

/// As [`estimate`], with deviations widened by as much as runs are predicted worse than the model thinks when a fifth
/// of them is left out of learning; [`Posterior::error`] is the error of those predictions.
pub fn validated(runs: &[Run], slices: usize) -> Option<Posterior> {
    let data = Data::new(runs, slices)?;
    let count = data.times.len();
    let (mut error, mut surprise, mut told) = (0.0, 0.0, 0);
    for fold in 0..FOLDS.min(count) {
        let kept: Vec<usize> = (0..count).filter(|run| run % FOLDS != fold).collect();
        let Some(fit) = data.only(&kept).fit() else { continue };
        let Some(inverse) = inverted(&data.covariance(&fit), count) else { continue };
        let weights = product(&inverse, &data.times, count);
        for run in (fold..count).step_by(FOLDS) {
            let precision = inverse[run * count + run];
            error += (weights[run] / precision).powi(2);
            surprise += weights[run].powi(2) / precision;
            told += 1;
        }
    }
    let told = f64::from(told.max(1));
    let doubt = (surprise / told).sqrt().max(1.0);
    let mut posterior = data.posterior(&blocks(slices), slices, doubt)?;
    posterior.error = (error / told).sqrt() * data.unit;
    Some(posterior)
}

/// The runs as a regression: times of mean 0 and variance 1.
struct Data {
    unit: f64,
    times: Vec<f64>,
    /// For each block, minus its slices on huge pages in each run: benefits shorten.
    sums: Vec<Vec<f64>>,
    /// What runs share with each other, less the further apart they are.
    near: Vec<f64>,
    /// Variance of the prior of each block to begin with.
    widths: Vec<f64>,
}

/// What was learned.
struct Fit {
    widths: Vec<f64>,
    noise: f64,
    shared: f64,
}

impl Data {
    fn new(runs: &[Run], slices: usize) -> Option<Self> {
        if runs.is_empty() || slices == 0 || runs.iter().any(|run| run.huge.len() != slices) {
            return None;
        }
        let count = runs.len();
        let mean = runs.iter().map(|run| run.time).sum::<f64>() / count as f64;
        let spread = runs.iter().map(|run| (run.time - mean).powi(2)).sum::<f64>() / count as f64;
        let unit = if spread > 0.0 { spread.sqrt() } else { 1.0 };
        let sums = |(from, to): &(usize, usize)| {
            let on = |run: &Run| run.huge[*from..*to].iter().filter(|on| **on).count() as f64;
            runs.iter().map(|run| -on(run)).collect()
        };
        let near = |cell: usize| (-((cell / count).abs_diff(cell % count) as f64) / DRIFT).exp();
        let blocks = blocks(slices);
        let width =
            |(from, to): &(usize, usize)| 1.0 / slices as f64 / ((to - from) as f64).powi(2);
        Some(Self {
            unit,
            times: runs.iter().map(|run| (run.time - mean) / unit).collect(),
            sums: blocks.iter().map(sums).collect(),
            near: (0..count * count).map(near).collect(),
            widths: blocks.iter().map(width).collect(),
        })
    }

    /// The same with some of the runs.
    fn only(&self, kept: &[usize]) -> Self {
        let count = self.times.len();
        let pick = |of: &[f64]| kept.iter().map(|run| of[*run]).collect::<Vec<f64>>();
        let near = kept.iter().flat_map(|row| pick(&self.near[row * count..(row + 1) * count]));
        Self {
            unit: self.unit,
            times: pick(&self.times),
            sums: self.sums.iter().map(|sums| pick(sums)).collect(),
            near: near.collect(),
            widths: self.widths.clone(),
        }
    }

    fn covariance(&self, fit: &Fit) -> Vec<f64> {
        let count = self.times.len();
        // The run without any huge page: anything goes.
        let mut covariance: Vec<f64> =
            self.near.iter().map(|near| 100.0 + fit.shared * near).collect();
        for (sum, width) in self.sums.iter().zip(&fit.widths).filter(|(_, width)| **width > 0.0) {
            for (row, left) in sum.iter().enumerate() {
                let scaled = width * left;
                for (cell, right) in covariance[row * count..].iter_mut().zip(sum) {
                    *cell += scaled * right;
                }
            }
        }
        (0..count).for_each(|run| covariance[run * count + run] += fit.noise);
        covariance
    }

    fn fit(&self) -> Option<Fit> {
        let count = self.times.len();
        let mut fit = Fit { widths: self.widths.clone(), noise: 0.3, shared: 0.1 };
        for _ in 0..ROUNDS {
            let inverse = inverted(&self.covariance(&fit), count)?;
            let weights = product(&inverse, &self.times, count);
            for (sum, width) in self.sums.iter().zip(&mut fit.widths) {
                if *width > LEAST {
                    *width *= (dot(sum, &weights).powi(2) / quadratic(&inverse, sum, count)).sqrt();
                } else {
                    *width = 0.0;
                }
            }
            let trace: f64 = (0..count).map(|run| inverse[run * count + run]).sum();
            fit.noise = (fit.noise * (dot(&weights, &weights) / trace).sqrt()).clamp(1e-5, 1.0);
            let explained = quadratic(&self.near, &weights, count);
            let open = dot(&self.near, &inverse);
            fit.shared = (fit.shared * (explained / open).sqrt()).clamp(1e-9, 10.0);
        }
        Some(fit)
    }

    fn posterior(&self, blocks: &[(usize, usize)], slices: usize, doubt: f64) -> Option<Posterior> {
        let count = self.times.len();
        let fit = self.fit()?;
        let inverse = inverted(&self.covariance(&fit), count)?;
        let weights = product(&inverse, &self.times, count);
        let benefit = |slice: usize| {
            let mut prior = 0.0;
            let mut cross = vec![0.0; count];
            for ((from, to), (sum, width)) in blocks.iter().zip(self.sums.iter().zip(&fit.widths)) {
                if (*from..*to).contains(&slice) {
                    prior += width;
                    cross.iter_mut().zip(sum).for_each(|(cross, sum)| *cross += width * sum);
                }
            }
            let open = (prior - quadratic(&inverse, &cross, count)).max(0.0);
            Benefit {
                mean: dot(&cross, &weights) * self.unit,
                deviation: open.sqrt() * doubt * self.unit,
            }
        };
        Some(Posterior {
            blocks: blocks.to_vec(),
            benefits: (0..slices).map(benefit).collect(),
            widths: fit.widths,
            error: fit.noise.sqrt() * self.unit,
            inverse,
            sums: self.sums.clone(),
            seen: count,
        })
    }
}

/// Single slices, then aligned blocks of 2, 4, 8 … of them, as first and one after the last.
fn blocks(slices: usize) -> Vec<(usize, usize)> {
    let mut blocks = Vec::new();
    let mut length = 1;
    while length == 1 || length < slices * 2 {
        let block = |from: usize| (from, (from + length).min(slices));
        blocks.extend((0..slices).step_by(length).map(block));
        length *= 2;
    }
    blocks.dedup();
    blocks
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

fn product(matrix: &[f64], vector: &[f64], size: usize) -> Vec<f64> {
    matrix.chunks(size).map(|row| dot(row, vector)).collect()
}

fn quadratic(matrix: &[f64], vector: &[f64], size: usize) -> f64 {
    dot(&product(matrix, vector, size), vector)
}

/// The inverse of a symmetric positive matrix, by Cholesky; `None` if it is not positive.
fn inverted(matrix: &[f64], size: usize) -> Option<Vec<f64>> {
    let mut lower = vec![0.0; size * size];
    for row in 0..size {
        for column in 0..=row {
            let done: f64 = dot(
                &lower[row * size..row * size + column],
                &lower[column * size..column * size + column],
            );
            let rest = matrix[row * size + column] - done;
            lower[row * size + column] = if row == column {
                if rest <= 0.0 {
                    return None;
                }
                rest.sqrt()
            } else {
                rest / lower[column * size + column]
            };
        }
    }
    let mut inverse = vec![0.0; size * size];
    for unit in 0..size {
        let mut solution = vec![0.0; size];
        for row in unit..size {
            let done = dot(&lower[row * size..row * size + row], &solution[..row]);
            solution[row] = (f64::from(u8::from(row == unit)) - done) / lower[row * size + row];
        }
        for row in (0..size).rev() {
            let done: f64 =
                (row + 1..size).map(|below| lower[below * size + row] * solution[below]).sum();
            solution[row] = (solution[row] - done) / lower[row * size + row];
        }
        for (row, value) in solution.into_iter().enumerate() {
            inverse[row * size + unit] = value;
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests;

//! `nas-mg`: Poisson's equation on a periodic cube by multigrid.
//!
//! ```text
//!  v = -1 at the ten places with the smallest random numbers, +1 at the ten with the largest
//!  r = v - A u;  repeat: u += M r (a V-cycle);  r = v - A u
//!  V-cycle: restrict r down to 2^3;  smooth;  then at each finer grid interpolate, r - A u, smooth
//! ```
//!
//! A grid of `n^3` is stored with one ghost layer on each side, `(n + 2)^3`, x fastest. Ghosts are
//! made equal to the opposite face after each operator.
//!
//! Check: the norm of the last residual, to 1e-8. `operations` counts grid points visited by the
//! finest operators.

use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use super::pseudorandom::{SEED, Stream};
use crate::program::{Outcome, Params, Report};
use crate::team;

const TOLERANCE: f64 = 1e-8;
/// Charges of each sign.
const CHARGES: usize = 10;
/// The operator A: centre, (faces are zero), edges, corners.
const A: [f64; 4] = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];

/// Points along a side, iterations, the smoother S (centre, faces, edges), the published norm.
#[derive(Clone, Copy)]
struct Size(usize, usize, [f64; 3], f64);

const SMALL: [f64; 3] = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0];
const LARGE: [f64; 3] = [-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0];
const SIZES: [Size; 4] = [
    Size(32, 4, SMALL, 0.530_770_700_573_4e-4),
    Size(128, 4, SMALL, 0.646_732_937_533_9e-5),
    Size(256, 4, SMALL, 0.243_336_530_906_9e-5),
    Size(256, 20, LARGE, 0.180_056_440_135_5e-5),
];

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let Size(side, iterations, smoother, published) = class.of(SIZES);
    let mut cycle = Cycle::new(side, smoother, params.threads);
    // One untimed iteration, then from the start.
    cycle.residual();
    cycle.improve();
    cycle.solution.last_mut().map(Grid::clear);
    let started = Instant::now();
    cycle.residual();
    for _ in 0..iterations {
        cycle.improve();
        cycle.residual();
    }
    let seconds = started.elapsed().as_secs_f64();
    let norm = cycle.norm();
    agrees(class, "norm of the residual", norm, published, TOLERANCE)?;
    Ok(Report {
        // An improvement visits the finest grid four times, a residual once.
        operations: ((5 * iterations + 1) * side * side * side) as u64,
        seconds,
        metrics: Vec::new(),
        check: format!("class {class}: residual {norm:.10e} is the published one"),
    })
}

/// A cube with ghosts.
struct Grid {
    /// Points along a side, two ghosts among them.
    edge: usize,
    at: Vec<f64>,
}

impl Grid {
    fn new(side: usize) -> Self {
        let edge = side + 2;
        Self { edge, at: vec![0.0; edge * edge * edge] }
    }

    fn clear(&mut self) {
        self.at.fill(0.0);
    }

    /// The row of points with these z and y.
    fn row(&self, z: usize, y: usize) -> &[f64] {
        let start = (z * self.edge + y) * self.edge;
        &self.at[start..start + self.edge]
    }

    /// Rows `(z, y)`, by how far they lie from the one in the middle: the middle, its four
    /// neighbours, and the four on the diagonals.
    fn around(&self, z: usize, y: usize) -> (&[f64], [&[f64]; 4], [&[f64]; 4]) {
        (
            self.row(z, y),
            [self.row(z, y - 1), self.row(z, y + 1), self.row(z - 1, y), self.row(z + 1, y)],
            [
                self.row(z - 1, y - 1),
                self.row(z - 1, y + 1),
                self.row(z + 1, y - 1),
                self.row(z + 1, y + 1),
            ],
        )
    }

    /// Calls `work(z, y, row)` for each row that is no ghost, planes split among the threads.
    fn each_row(&mut self, threads: usize, work: impl Fn(usize, usize, &mut [f64]) + Sync) {
        let edge = self.edge;
        let plane = edge * edge;
        let inner = plane..self.at.len() - plane;
        team::each(team::slabs(&mut self.at[inner], plane, threads), |(first, slab)| {
            for (z, plane) in slab.chunks_exact_mut(plane).enumerate() {
                for y in 1..edge - 1 {
                    work(first + z + 1, y, &mut plane[y * edge..(y + 1) * edge]);
                }
            }
        });
    }

    /// Makes each ghost equal to the point that it stands for.
    fn wrap(&mut self, threads: usize) {
        let edge = self.edge;
        let plane = edge * edge;
        let inner = plane..self.at.len() - plane;
        team::each(team::slabs(&mut self.at[inner], plane, threads), |(_, slab)| {
            for plane in slab.chunks_exact_mut(plane) {
                for row in plane.chunks_exact_mut(edge) {
                    row[0] = row[edge - 2];
                    row[edge - 1] = row[1];
                }
                plane.copy_within((edge - 2) * edge..(edge - 1) * edge, 0);
                plane.copy_within(edge..2 * edge, (edge - 1) * edge);
            }
        });
        self.at.copy_within((edge - 2) * plane..(edge - 1) * plane, 0);
        self.at.copy_within(plane..2 * plane, (edge - 1) * plane);
    }
}

/// Adds four rows, each term in the order given.
fn sum(rows: [&[f64]; 4], into: &mut Vec<f64>) {
    let [a, b, c, d] = rows;
    into.clear();
    into.extend(a.iter().zip(b).zip(c.iter().zip(d)).map(|((a, b), (c, d))| a + b + c + d));
}

/// `out = v - A u`, or `out = out - A u` without a `v`.
fn residual(u: &Grid, v: Option<&Grid>, out: &mut Grid, threads: usize) {
    let edge = u.edge;
    out.each_row(threads, |z, y, out| {
        let (middle, near, far) = u.around(z, y);
        let (mut faces, mut edges) = (Vec::with_capacity(edge), Vec::with_capacity(edge));
        sum(near, &mut faces);
        sum(far, &mut edges);
        for x in 1..edge - 1 {
            let old = v.map_or(out[x], |v| v.row(z, y)[x]);
            out[x] = old
                - A[0] * middle[x]
                - A[2] * (edges[x] + faces[x - 1] + faces[x + 1])
                - A[3] * (edges[x - 1] + edges[x + 1]);
        }
    });
    out.wrap(threads);
}

/// `u += S r`.
fn smooth(r: &Grid, u: &mut Grid, smoother: [f64; 3], threads: usize) {
    let edge = r.edge;
    u.each_row(threads, |z, y, u| {
        let (middle, near, far) = r.around(z, y);
        let (mut faces, mut edges) = (Vec::with_capacity(edge), Vec::with_capacity(edge));
        sum(near, &mut faces);
        sum(far, &mut edges);
        for x in 1..edge - 1 {
            u[x] += smoother[0] * middle[x]
                + smoother[1] * (middle[x - 1] + middle[x + 1] + faces[x])
                + smoother[2] * (edges[x] + faces[x - 1] + faces[x + 1]);
        }
    });
    u.wrap(threads);
}

/// Half-weighted restriction of `fine` to `coarse`.
fn restrict(fine: &Grid, coarse: &mut Grid, threads: usize) {
    let edge = fine.edge;
    coarse.each_row(threads, |z, y, coarse| {
        let (middle, near, far) = fine.around(2 * z, 2 * y);
        let (mut faces, mut edges) = (Vec::with_capacity(edge), Vec::with_capacity(edge));
        sum(near, &mut faces);
        sum(far, &mut edges);
        for x in 1..coarse.len() - 1 {
            let at = 2 * x;
            coarse[x] = 0.5 * middle[at]
                + 0.25 * (middle[at - 1] + middle[at + 1] + faces[at])
                + 0.125 * (faces[at - 1] + faces[at + 1] + edges[at])
                + 0.0625 * (edges[at - 1] + edges[at + 1]);
        }
    });
    coarse.wrap(threads);
}

/// `fine += ` the trilinear interpolation of `coarse`.
fn interpolate(coarse: &Grid, fine: &mut Grid, threads: usize) {
    fine.each_row(threads, |z, y, fine| {
        // A fine plane of even number lies on a coarse one, an odd one between two.
        let (low, high) = (coarse.row(z / 2, y / 2), coarse.row(z.div_ceil(2), y.div_ceil(2)));
        let (left, right) = (coarse.row(z / 2, y.div_ceil(2)), coarse.row(z.div_ceil(2), y / 2));
        let between = |x: usize| 0.25 * (low[x] + high[x] + left[x] + right[x]);
        for x in 1..fine.len() - 1 {
            fine[x] += if x % 2 == 0 {
                between(x / 2)
            } else {
                0.5 * (between(x / 2) + between(x / 2 + 1))
            };
        }
    });
    fine.wrap(threads);
}

/// The grids of every level, coarsest first.
struct Cycle {
    threads: usize,
    smoother: [f64; 3],
    right: Grid,
    solution: Vec<Grid>,
    residuals: Vec<Grid>,
}

impl Cycle {
    fn new(side: usize, smoother: [f64; 3], threads: usize) -> Self {
        let levels = || (1..=side.ilog2()).map(|level| Grid::new(1 << level)).collect();
        let mut right = Grid::new(side);
        charge(&mut right, threads);
        Self { threads, smoother, right, solution: levels(), residuals: levels() }
    }

    /// `r = v - A u` on the finest level.
    fn residual(&mut self) {
        if let (Some(u), Some(r)) = (self.solution.last(), self.residuals.last_mut()) {
            residual(u, Some(&self.right), r, self.threads);
        }
    }

    /// One V-cycle.
    fn improve(&mut self) {
        let threads = self.threads;
        let finest = self.residuals.len() - 1;
        for level in (1..=finest).rev() {
            let (coarse, fine) = self.residuals.split_at_mut(level);
            restrict(&fine[0], &mut coarse[level - 1], threads);
        }
        self.solution[0].clear();
        smooth(&self.residuals[0], &mut self.solution[0], self.smoother, threads);
        for level in 1..=finest {
            let (coarse, fine) = self.solution.split_at_mut(level);
            let (coarse, fine) = (&coarse[level - 1], &mut fine[0]);
            if level < finest {
                fine.clear();
            }
            interpolate(coarse, fine, threads);
            let right = (level == finest).then_some(&self.right);
            residual(fine, right, &mut self.residuals[level], threads);
            smooth(&self.residuals[level], fine, self.smoother, threads);
        }
    }

    /// Root mean square of the finest residual.
    fn norm(&self) -> f64 {
        let Some(grid) = self.residuals.last() else { return f64::NAN };
        let inner = 1..grid.edge - 1;
        let squares =
            inner.clone().flat_map(|z| inner.clone().map(move |y| (z, y))).map(|(z, y)| {
                grid.row(z, y)[inner.clone()].iter().map(|value| value * value).sum::<f64>()
            });
        (squares.sum::<f64>() / (inner.len() as f64).powi(3)).sqrt()
    }
}

/// Puts the charges where the random numbers are extreme.
fn charge(grid: &mut Grid, threads: usize) {
    let edge = grid.edge;
    let side = edge - 2;
    grid.each_row(threads, |z, y, row| {
        let mut stream = Stream::new(SEED).skipped((((z - 1) * side + y - 1) * side) as u64);
        row[1..=side].fill_with(|| stream.next());
    });
    let mut extremes: Vec<(f64, usize)> = Vec::new();
    let inner = |at: usize| {
        [at % edge, at / edge % edge, at / edge / edge]
            .iter()
            .all(|place| (1..=side).contains(place))
    };
    // Keeps the smallest and the largest numbers seen; both ends of a sorted list.
    for (at, &number) in grid.at.iter().enumerate().filter(|&(at, _)| inner(at)) {
        let full = extremes.len() == 2 * CHARGES;
        if full && number > extremes[CHARGES - 1].0 && number < extremes[CHARGES].0 {
            continue;
        }
        let place = extremes.partition_point(|&(other, _)| other < number);
        extremes.insert(place, (number, at));
        if full {
            // Of one more than 2 x CHARGES, the one in the middle is among neither.
            extremes.remove(CHARGES);
        }
    }
    grid.clear();
    for (rank, (_, at)) in extremes.into_iter().enumerate() {
        grid.at[at] = if rank < CHARGES { -1.0 } else { 1.0 };
    }
    grid.wrap(threads);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_point_is_found() {
        let Size(side, iterations, smoother, published) = Class::S.of(SIZES);
        let mut cycle = Cycle::new(side, smoother, 1);
        cycle.residual();
        for _ in 0..iterations {
            cycle.improve();
            cycle.residual();
        }
        let check = |norm| agrees(Class::S, "norm", norm, published, TOLERANCE);
        check(cycle.norm()).unwrap();
        cycle.solution.last_mut().unwrap().at[20_000] += 1e-6;
        cycle.residual();
        assert!(check(cycle.norm()).unwrap_err().contains("norm is"));
    }
}

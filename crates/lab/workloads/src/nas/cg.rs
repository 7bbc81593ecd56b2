//! `nas-cg`: the smallest eigenvalue of a random sparse matrix by inverse iteration.
//!
//! ```text
//!  A = sum over i of ratio^i x(i) x(i)^T, x(i) sparse random, plus (rcond - shift) on the diagonal
//!  repeat: solve A z = x by 25 steps of conjugate gradient;  zeta = shift + 1 / (x . z);  x = z / |z|
//! ```
//!
//! Check: zeta to 1e-10. `operations` counts multiplications by a matrix element.

use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use super::pseudorandom::{SEED, Stream};
use crate::program::{Outcome, Params, Report};
use crate::team;

const CONDITION: f64 = 0.1;
const STEPS: usize = 25;
const TOLERANCE: f64 = 1e-10;

/// Rows, nonzeros in a generating vector, iterations, shift, and the published zeta.
#[derive(Clone, Copy)]
struct Size(usize, usize, usize, f64, f64);

const SIZES: [Size; 4] = [
    Size(1400, 7, 15, 10.0, 8.597_177_507_864_8),
    Size(7000, 8, 15, 12.0, 10.362_595_087_124),
    Size(14000, 11, 15, 20.0, 17.130_235_054_029),
    Size(75000, 13, 75, 60.0, 22.712_745_482_631),
];

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let Size(rows, nonzeros, iterations, shift, published) = class.of(SIZES);
    let mut stream = Stream::new(SEED);
    // The specification draws one number before it makes the matrix.
    stream.next();
    let matrix = Matrix::random(rows, nonzeros, shift, &mut stream);
    let mut solver = Solver::new(rows, params.threads);
    let mut x = vec![1.0; rows];
    // One untimed iteration, then from the start.
    solver.solve(&matrix, &x);
    let started = Instant::now();
    let zeta = solver.iterate(&matrix, &mut x, iterations, shift);
    let seconds = started.elapsed().as_secs_f64();
    agrees(class, "zeta", zeta, published, TOLERANCE)?;
    Ok(Report {
        operations: (iterations * STEPS * matrix.values.len()) as u64,
        seconds,
        metrics: vec![("nonzeros", matrix.values.len() as f64)],
        check: format!("class {class}: zeta {zeta:.10} is the published one"),
    })
}

/// A square matrix in compressed rows.
struct Matrix {
    /// Where each row begins; one more at the end.
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Matrix {
    fn random(rows: usize, nonzeros: usize, shift: f64, stream: &mut Stream) -> Self {
        let power = rows.next_power_of_two();
        let vectors: Vec<Vec<(u32, f64)>> =
            (0..rows).map(|row| sparse_vector(row, rows, nonzeros, power, stream)).collect();
        let mut entries: Vec<Vec<(u32, f64)>> = vec![Vec::new(); rows];
        let ratio = CONDITION.powf(1.0 / rows as f64);
        let mut size = 1.0;
        for (index, vector) in vectors.iter().enumerate() {
            for &(row, left) in vector {
                let scale = size * left;
                for &(column, right) in vector {
                    let mut value = right * scale;
                    if row == column && row as usize == index {
                        value += CONDITION - shift;
                    }
                    entries[row as usize].push((column, value));
                }
            }
            size *= ratio;
        }
        let mut matrix = Self { starts: vec![0], columns: Vec::new(), values: Vec::new() };
        for row in &mut entries {
            // A stable sort: values of one place add up in the order of their vectors.
            row.sort_by_key(|&(column, _)| column);
            for same in row.chunk_by(|left, right| left.0 == right.0) {
                matrix.columns.push(same[0].0);
                matrix.values.push(same.iter().map(|&(_, value)| value).sum());
            }
            matrix.starts.push(matrix.columns.len());
            *row = Vec::new();
        }
        matrix
    }

    /// `result = A vector` for the rows from `first` on.
    fn times(&self, vector: &[f64], first: usize, result: &mut [f64]) {
        for (row, result) in result.iter_mut().enumerate() {
            let range = self.starts[first + row]..self.starts[first + row + 1];
            let products = self.values[range.clone()]
                .iter()
                .zip(&self.columns[range])
                .map(|(value, &column)| value * vector[column as usize]);
            *result = products.sum();
        }
    }
}

/// `nonzeros` random places and values, and 0.5 at `row`.
fn sparse_vector(
    row: usize,
    rows: usize,
    nonzeros: usize,
    power: usize,
    stream: &mut Stream,
) -> Vec<(u32, f64)> {
    let mut vector: Vec<(u32, f64)> = Vec::with_capacity(nonzeros + 1);
    while vector.len() < nonzeros {
        let value = stream.next();
        let place = (power as f64 * stream.next()) as usize;
        if place < rows && vector.iter().all(|&(taken, _)| taken as usize != place) {
            vector.push((place as u32, value));
        }
    }
    match vector.iter_mut().find(|(place, _)| *place as usize == row) {
        Some((_, value)) => *value = 0.5,
        None => vector.push((row as u32, 0.5)),
    }
    vector
}

/// The vectors of a conjugate gradient.
struct Solver {
    threads: usize,
    z: Vec<f64>,
    p: Vec<f64>,
    q: Vec<f64>,
    r: Vec<f64>,
}

impl Solver {
    fn new(rows: usize, threads: usize) -> Self {
        let zero = vec![0.0; rows];
        Self { threads, z: zero.clone(), p: zero.clone(), q: zero.clone(), r: zero }
    }

    /// So many steps of inverse iteration from `x`. Returns zeta after the last.
    fn iterate(&mut self, matrix: &Matrix, x: &mut [f64], times: usize, shift: f64) -> f64 {
        let mut zeta = 0.0;
        for _ in 0..times {
            self.solve(matrix, x);
            zeta = shift + 1.0 / dot(x, &self.z);
            let scale = 1.0 / dot(&self.z, &self.z).sqrt();
            x.iter_mut().zip(&self.z).for_each(|(x, z)| *x = scale * z);
        }
        zeta
    }

    /// Leaves an approximate solution of `A z = x` in `z`.
    fn solve(&mut self, matrix: &Matrix, x: &[f64]) {
        let Self { threads, z, p, q, r } = self;
        z.fill(0.0);
        r.copy_from_slice(x);
        p.copy_from_slice(x);
        let mut rho = dot(r, r);
        for _ in 0..STEPS {
            let along = team::each(team::slabs(q, 1, *threads), |(first, q)| {
                matrix.times(p, first, q);
                dot(&p[first..first + q.len()], q)
            });
            let alpha = rho / along.iter().sum::<f64>();
            for ((z, r), (p, q)) in z.iter_mut().zip(r.iter_mut()).zip(p.iter().zip(q.iter())) {
                *z += alpha * p;
                *r -= alpha * q;
            }
            let before = rho;
            rho = dot(r, r);
            let beta = rho / before;
            for (p, r) in p.iter_mut().zip(r.iter()) {
                *p = r + beta * *p;
            }
        }
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_damaged_element_is_found() {
        let Size(rows, nonzeros, iterations, shift, published) = Class::S.of(SIZES);
        let mut stream = Stream::new(SEED);
        stream.next();
        let mut matrix = Matrix::random(rows, nonzeros, shift, &mut stream);
        let zeta = |matrix: &Matrix| {
            Solver::new(rows, 1).iterate(matrix, &mut vec![1.0; rows], iterations, shift)
        };
        let check = |zeta| agrees(Class::S, "zeta", zeta, published, TOLERANCE);
        check(zeta(&matrix)).unwrap();
        matrix.values[777] += 1e-3;
        assert!(check(zeta(&matrix)).unwrap_err().contains("zeta is"));
    }
}

//! `nas-bt`: a compressible fluid in a cube, each step implicit along x, then y, then z.
//!
//! ```text
//!  (I + dt Ax) (I + dt Ay) (I + dt Az) change = dt residual;   u += change
//!  along a line:  A(i) change(i-1) + B(i) change(i) + C(i) change(i+1) = right(i),  blocks of 5 x 5
//! ```
//!
//! Check: norms of residual and error, to 1e-8. `operations` counts blocks eliminated.
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays")]

use super::flow::{
    self, C2, CONDUCTION, DAMPING, Flow, GAMMA, Motion, NORMAL, Size, State, VISCOSITY, columns,
    sizes,
};
use crate::program::{Outcome, Params};
use crate::team;

const SIZES: [Size; 4] = sizes! {
    12 60 0.01
        [0.17034283709541312 0.012975252070034096 0.032527926989486054 0.0264364212751668 0.1921178413174443]
        [0.0004997691334581158 4.519566678296193e-05 7.397376517292135e-05 7.382123863243973e-05 0.0008926963098749145]
    24 200 0.0008
        [112.5590409344 11.80007595731 27.10329767846 24.69174937669 263.8427874317]
        [4.419655736008 0.4638531260002 1.011551749967 0.9235878729944 10.18045837718]
    64 200 0.0008
        [108.06346714637264 11.319730901220813 25.974354511582465 23.66562254467891 252.78963211748345]
        [4.2348416040525025 0.443902824969957 0.9669248013634565 0.8830206303976548 9.737990177082928]
    102 200 0.0003
        [1423.3597229287254 99.33052259015024 356.46025644535285 324.8544795908409 3270.7541254659363]
        [52.96984714093686 4.463289611567067 13.122573342210174 12.006925323559145 124.59576151035986]
};

pub(super) fn run(params: &Params) -> Outcome {
    flow::run(SIZES, step, params)
}

fn step(flow: &mut Flow, time: f64) {
    flow.residual();
    let (side, plane) = (flow.side, flow.side * flow.side);
    let Flow { solution, change, threads, .. } = flow;
    let (first, second) = ((side - 1) as f64 / 2.0 * time, ((side - 1) as f64).powi(2) * time);
    let solution = &*solution;
    let line = || Line {
        first,
        second,
        states: vec![[0.0; 5]; side],
        right: vec![[0.0; 5]; side],
        after: vec![[[0.0; 5]; 5]; side],
    };
    let end = change.len() - plane;
    let slabs = team::slabs(&mut change[plane..end], plane, *threads);
    team::each(slabs, |(slab_first, slab)| {
        let mut line = line();
        for (z, changes) in slab.chunks_exact_mut(plane).enumerate() {
            let start = (slab_first + z + 1) * plane;
            let states = &solution[start..start + plane];
            // Along x; the right side is dt times the residual.
            for y in 1..side - 1 {
                let row = y * side..(y + 1) * side;
                line.states.copy_from_slice(&states[row.clone()]);
                for (right, change) in line.right.iter_mut().zip(&changes[row.clone()]) {
                    *right = change.map(|part| part * time);
                }
                line.solve::<1>();
                changes[row].copy_from_slice(&line.right);
            }
            for x in 1..side - 1 {
                for y in 0..side {
                    line.states[y] = states[y * side + x];
                    line.right[y] = changes[y * side + x];
                }
                line.solve::<2>();
                for y in 1..side - 1 {
                    changes[y * side + x] = line.right[y];
                }
            }
        }
    });
    team::each(columns(change, side, *threads), |(rows, mut planes)| {
        let mut line = line();
        for (at, y) in rows.enumerate() {
            for x in 1..side - 1 {
                for z in 0..side {
                    line.states[z] = solution[z * plane + y * side + x];
                    line.right[z] = planes[z][at * side + x];
                }
                line.solve::<3>();
                for z in 1..side - 1 {
                    planes[z][at * side + x] = line.right[z];
                }
            }
        }
    });
    flow.apply(1.0);
}

/// Row by row.
type Block = [State; 5];

/// A line of the cube and the system of equations along it.
struct Line {
    /// `dt t1` and `dt t2`.
    first: f64,
    second: f64,
    states: Vec<State>,
    /// Right side, then the solution; zero at both ends.
    right: Vec<State>,
    /// C of the eliminated equations.
    after: Vec<Block>,
}

impl Line {
    /// Solves the system along the axis whose momentum is `N`.
    fn solve<const N: usize>(&mut self) {
        let Self { first, second, states, right, after } = self;
        let (first, second) = (*first, *second);
        let count = states.len();
        let (states, right, after) = (&states[..count], &mut right[..count], &mut after[..count]);
        let mut before = jacobians::<N>(&states[0], first, second);
        let mut here = jacobians::<N>(&states[1], first, second);
        // At the faces nothing changes.
        after[0] = [[0.0; 5]; 5];
        right[0] = [0.0; 5];
        right[count - 1] = [0.0; 5];
        for at in 1..count - 1 {
            let next = jacobians::<N>(&states[at + 1], first, second);
            let mut middle = [[0.0; 5]; 5];
            let mut c = [[0.0; 5]; 5];
            let previous = &after[at - 1];
            let mut value = right[at];
            for row in 0..5 {
                for column in 0..5 {
                    middle[row][column] = 2.0 * here.1[row][column];
                    c[row][column] = next.0[row][column] - next.1[row][column];
                }
                middle[row][row] += 1.0;
                // B - A C and right - A right, of the equation before.
                for inner in 0..5 {
                    let a = before.0[row][inner] + before.1[row][inner];
                    for column in 0..5 {
                        middle[row][column] += a * previous[inner][column];
                    }
                    value[row] += a * right[at - 1][inner];
                }
            }
            eliminate(&mut middle, &mut c, &mut value);
            after[at] = c;
            right[at] = value;
            before = here;
            here = next;
        }
        for at in (1..count - 1).rev() {
            let next = right[at + 1];
            for row in 0..5 {
                let of = &after[at][row];
                right[at][row] -= of[0] * next[0]
                    + of[1] * next[1]
                    + of[2] * next[2]
                    + of[3] * next[3]
                    + of[4] * next[4];
            }
        }
    }
}

/// Solves `block` for both right sides; the diagonal dominates, so without exchanges.
#[inline(always)]
fn eliminate(block: &mut Block, matrix: &mut Block, vector: &mut State) {
    for pivot in 0..5 {
        let scale = 1.0 / block[pivot][pivot];
        for column in pivot + 1..5 {
            block[pivot][column] *= scale;
        }
        for column in 0..5 {
            matrix[pivot][column] *= scale;
        }
        vector[pivot] *= scale;
        for row in 0..5 {
            if row == pivot {
                continue;
            }
            let factor = block[row][pivot];
            for column in pivot + 1..5 {
                block[row][column] -= factor * block[pivot][column];
            }
            for column in 0..5 {
                matrix[row][column] -= factor * matrix[pivot][column];
            }
            vector[row] -= factor * vector[pivot];
        }
    }
}

/// Jacobians of the convective flux, times `first`, and of what diffuses, damping with it, times `second`.
#[inline(always)]
fn jacobians<const N: usize>(state: &State, first: f64, second: f64) -> (Block, Block) {
    let Motion { volume, velocity, kinetic, energy } = Motion::of(state);
    let normal = velocity[N - 1];
    let mut flux = [[0.0; 5]; 5];
    let mut diffuses = [[0.0; 5]; 5];
    flux[0][N] = first;
    for part in 1..4 {
        let along = velocity[part - 1];
        flux[part][0] = -first * normal * along;
        flux[part][part] = first * normal;
        flux[4][part] = -first * C2 * along * normal;
    }
    for part in 1..4 {
        let along = velocity[part - 1];
        flux[part][N] += first * along;
        flux[N][part] -= first * C2 * along;
    }
    flux[N][0] += first * C2 * kinetic;
    flux[N][4] += first * C2;
    flux[4][0] = first * (2.0 * C2 * kinetic - GAMMA * energy) * normal;
    flux[4][N] += first * (GAMMA * energy - C2 * kinetic);
    flux[4][4] = first * GAMMA * normal;
    let viscous = second * VISCOSITY * volume;
    let conducts = second * CONDUCTION * volume;
    diffuses[4][0] = -conducts * energy;
    for part in 1..4 {
        let along = velocity[part - 1];
        let of = if part == N { NORMAL * viscous } else { viscous };
        diffuses[part][0] = -of * along;
        diffuses[part][part] = of;
        diffuses[4][0] -= (of - conducts) * along * along;
        diffuses[4][part] = (of - conducts) * along;
    }
    diffuses[4][4] = conducts;
    for (part, row) in diffuses.iter_mut().enumerate() {
        row[part] += second * DAMPING[N - 1];
    }
    (flux, diffuses)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_damaged_point_is_found() {
        super::flow::finds_damage(super::SIZES, super::step);
    }
}

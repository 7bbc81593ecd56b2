//! What BT, SP and LU share: the discrete equations of a compressible fluid in a cube (RNR-94-007, section 3.7).
//!
//! ```text
//!  du/dt = forcing + sum over x, y, z of  -t2 (F[+1] - F[-1]) + second difference of W - fourth difference of u / 4
//!  F: convective flux along the axis      W: what diffuses, plus d t1 u
//! ```
//!
//! A state is density, momentum in x, y and z, and energy. The forcing makes a known polynomial the steady solution.
//! Points lie x fastest, then y, then z; those on the faces hold the exact solution and stay as they are.
//!
//! The three axes differ in nothing but which momentum is the normal one, so that everything here has it as a constant
//! `N`: 1, 2 or 3.

use std::ops::Range;
use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use crate::program::{Outcome, Params, Report};
use crate::team;

/// Density, three momenta, energy.
pub(super) type State = [f64; 5];

/// Ratio of the specific heats.
pub(super) const GAMMA: f64 = 1.4;
/// Pressure for energy.
pub(super) const C2: f64 = GAMMA - 1.0;
/// Viscosity (`c3 c4` of the report).
pub(super) const VISCOSITY: f64 = 0.1;
/// `c1 c5` of the report: what heat conducts, as a share of the viscosity.
pub(super) const C1C5: f64 = GAMMA * GAMMA;
/// `c1 c3 c4 c5` of the report.
pub(super) const CONDUCTION: f64 = C1C5 * VISCOSITY;
/// What the normal velocity diffuses, as a share of the viscosity.
pub(super) const NORMAL: f64 = 4.0 / 3.0;
/// Factor of the fourth difference.
pub(super) const DISSIPATION: f64 = 0.25;
/// Damping by second differences along x, y and z.
pub(super) const DAMPING: [f64; 3] = [0.75, 0.75, 1.0];

const TOLERANCE: f64 = 1e-8;

/// Coefficients of the exact solution: 1; x, y, z; their squares, cubes and fourth powers.
const EXACT: [[f64; 13]; 5] = [
    [2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3],
    [1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3],
    [5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2],
];

/// The exact solution at a place of the unit cube.
fn exact(place: [f64; 3]) -> State {
    EXACT.map(|of| {
        let along = |axis: usize| {
            let at = place[axis];
            at * (of[1 + axis] + at * (of[4 + axis] + at * (of[7 + axis] + at * of[10 + axis])))
        };
        of[0] + along(0) + along(1) + along(2)
    })
}

/// Published size and results of one class.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Points along a side.
    pub(super) side: usize,
    pub(super) iterations: usize,
    pub(super) step: f64,
    /// Root mean squares of the residual and of the error, for each part of the state.
    pub(super) residual: State,
    pub(super) error: State,
}

/// A table of [`Size`]s: points along a side, iterations and their size, norms of the residual and of the error.
macro_rules! sizes {
    ($($side:literal $iterations:literal $step:literal [$($residual:literal)*] [$($error:literal)*])*) => {
        [$(Size {
            side: $side,
            iterations: $iterations,
            step: $step,
            residual: [$($residual),*],
            error: [$($error),*],
        }),*]
    };
}
pub(super) use sizes;

/// The cube, and its solution as far as it has come.
pub(super) struct Flow {
    pub(super) side: usize,
    pub(super) threads: usize,
    pub(super) solution: Vec<State>,
    /// What is to be added to the solution; zero on the faces.
    pub(super) change: Vec<State>,
    forcing: Vec<State>,
}

impl Flow {
    /// The cube at the beginning.
    pub(super) fn new(side: usize, threads: usize) -> Self {
        let points = side * side * side;
        let mut flow = Self {
            side,
            threads,
            solution: vec![[0.0; 5]; points],
            change: vec![[0.0; 5]; points],
            forcing: vec![[0.0; 5]; points],
        };
        flow.each_point(exact);
        flow.residual();
        let Self { change, forcing, .. } = &mut flow;
        for (force, change) in forcing.iter_mut().zip(change) {
            *force = change.map(|part| -part);
        }
        flow.begin();
        flow
    }

    /// Sets each point of the solution from its place in the unit cube.
    fn each_point(&mut self, state: impl Fn([f64; 3]) -> State + Sync) {
        let (side, last) = (self.side, (self.side - 1) as f64);
        let slabs = team::slabs(&mut self.solution, side * side, self.threads);
        team::each(slabs, |(first, slab)| {
            for (at, point) in slab.iter_mut().enumerate() {
                let place = [at % side, at / side % side, first + at / side / side];
                *point = state(place.map(|at| at as f64 / last));
            }
        });
    }

    /// Back to the beginning: exact on the faces, interpolated from them inside.
    pub(super) fn begin(&mut self) {
        self.each_point(|place| {
            if place.iter().any(|&at| at == 0.0 || at == 1.0) {
                return exact(place);
            }
            let between = [0, 1, 2].map(|axis| {
                let face = |at: f64| {
                    let mut on = place;
                    on[axis] = at;
                    exact(on)
                };
                let (low, high) = (face(0.0), face(1.0));
                let at = place[axis];
                [0, 1, 2, 3, 4].map(|part| at * high[part] + (1.0 - at) * low[part])
            });
            let [x, y, z] = between;
            [0, 1, 2, 3, 4].map(|part| {
                let (x, y, z) = (x[part], y[part], z[part]);
                x + y + z - x * y - x * z - y * z + x * y * z
            })
        });
    }

    /// `t1` of the report: one over the squared distance of two points.
    pub(super) fn second(&self) -> f64 {
        ((self.side - 1) as f64).powi(2)
    }

    /// `t2` of the report: one over twice the distance of two points.
    pub(super) fn first(&self) -> f64 {
        (self.side - 1) as f64 / 2.0
    }

    /// Makes `change` the time derivative of the solution.
    pub(super) fn residual(&mut self) {
        let side = self.side;
        let plane = side * side;
        let scales = Scales { first: self.first(), second: self.second() };
        let inner = plane..self.change.len() - plane;
        let (solution, forcing) = (&self.solution, &self.forcing);
        let slabs = team::slabs(&mut self.change[inner], plane, self.threads);
        team::each(slabs, |(first, slab)| {
            let first = first + 1;
            slab.copy_from_slice(&forcing[first * plane..first * plane + slab.len()]);
            let cube = Cube { solution, side, scales };
            let mut rows = Rows::new(side);
            for (z, plane) in slab.chunks_exact_mut(plane).enumerate() {
                cube.add_x(first + z, plane, &mut rows);
                cube.add_y(first + z, plane, &mut rows);
            }
            cube.add_z(first, slab, &mut rows);
        });
    }

    /// Adds the change to the solution, `factor` times.
    pub(super) fn apply(&mut self, factor: f64) {
        let change = &self.change;
        team::each(team::slabs(&mut self.solution, 1, self.threads), |(first, slab)| {
            let change = change[first..first + slab.len()].as_flattened();
            for (point, change) in slab.as_flattened_mut().iter_mut().zip(change) {
                *point += factor * change;
            }
        });
    }

    /// Root mean squares over the inner points, of the change and of the distance from the exact solution.
    pub(super) fn norms(&self) -> (State, State) {
        let (side, last) = (self.side, (self.side - 1) as f64);
        let (mut residual, mut error) = ([0.0; 5], [0.0; 5]);
        for (at, (change, point)) in self.change.iter().zip(&self.solution).enumerate() {
            let place = [at % side, at / side % side, at / side / side];
            let exact = exact(place.map(|at| at as f64 / last));
            for part in 0..5 {
                residual[part] += change[part] * change[part];
                error[part] += (point[part] - exact[part]).powi(2);
            }
        }
        let inner = ((side - 2) as f64).powi(3);
        let mean = |sums: State| sums.map(|sum| (sum / inner).sqrt());
        (mean(residual), mean(error))
    }

    /// Checks solution and residual against the published norms. Returns the first of each for the report.
    pub(super) fn check(&mut self, class: Class, size: &Size) -> Result<String, String> {
        self.residual();
        let (residual, error) = self.norms();
        for (what, found, published) in
            [("residual", residual, size.residual), ("error", error, size.error)]
        {
            for part in 0..5 {
                let what = format!("norm {} of the {what}", part + 1);
                agrees(class, &what, found[part], published[part], TOLERANCE)?;
            }
        }
        Ok(format!(
            "class {class}: residuals {:.9e}... and errors {:.9e}... are the published ones",
            residual[0], error[0]
        ))
    }
}

/// Rows of each plane of a cube, for each thread those of its range of y; inner rows only.
pub(super) fn columns(
    cube: &mut [State],
    side: usize,
    threads: usize,
) -> Vec<(Range<usize>, Vec<&mut [State]>)> {
    let ranges = team::ranges(side - 2, threads);
    let mut parts: Vec<_> = ranges
        .into_iter()
        .map(|range| (range.start + 1..range.end + 1, Vec::with_capacity(side)))
        .collect();
    for plane in cube.chunks_exact_mut(side * side) {
        let mut rest = &mut plane[side..];
        for (range, planes) in &mut parts {
            let (mine, tail) = rest.split_at_mut(range.len() * side);
            planes.push(mine);
            rest = tail;
        }
    }
    parts
}

/// Velocities and what else is needed of a state.
pub(super) struct Motion {
    /// One over the density.
    pub(super) volume: f64,
    pub(super) velocity: [f64; 3],
    /// Kinetic energy of a unit of mass.
    pub(super) kinetic: f64,
    /// Energy of a unit of mass.
    pub(super) energy: f64,
}

impl Motion {
    #[inline(always)]
    pub(super) fn of(state: &State) -> Self {
        let volume = 1.0 / state[0];
        let velocity = [state[1] * volume, state[2] * volume, state[3] * volume];
        let [x, y, z] = velocity;
        Self { volume, velocity, kinetic: 0.5 * (x * x + y * y + z * z), energy: state[4] * volume }
    }

    /// Speed of sound.
    #[inline(always)]
    pub(super) fn sound(&self) -> f64 {
        (GAMMA * C2 * (self.energy - self.kinetic)).sqrt()
    }
}

/// One over twice the distance of two points, and one over its square.
#[derive(Clone, Copy)]
struct Scales {
    first: f64,
    second: f64,
}

/// A row's convective fluxes and what of it diffuses, along one axis.
struct Rows {
    flux: [Vec<State>; 3],
    diffuses: [Vec<State>; 3],
}

impl Rows {
    fn new(side: usize) -> Self {
        let rows = || [0, 1, 2].map(|_| vec![[0.0; 5]; side]);
        Self { flux: rows(), diffuses: rows() }
    }

    /// Fills the rows of place `at`, modulo 3.
    fn fill<const N: usize>(&mut self, at: usize, states: &[State], scales: Scales) {
        let damped = DAMPING[N - 1] * scales.second;
        let viscous = VISCOSITY * scales.second;
        let rows = self.flux[at % 3].iter_mut().zip(&mut self.diffuses[at % 3]);
        for (state, (flux, diffuses)) in states.iter().zip(rows) {
            let Motion { volume: _, velocity, kinetic, energy } = Motion::of(state);
            let normal = velocity[N - 1];
            let moved = kinetic * state[0];
            *flux = [
                state[N],
                state[1] * normal,
                state[2] * normal,
                state[3] * normal,
                (GAMMA * state[4] - C2 * moved) * normal,
            ];
            flux[N] += C2 * (state[4] - moved);
            *flux = flux.map(|part| part * scales.first);
            *diffuses = [
                damped * state[0],
                damped * state[1] + viscous * velocity[0],
                damped * state[2] + viscous * velocity[1],
                damped * state[3] + viscous * velocity[2],
                damped * state[4]
                    + viscous * ((1.0 - C1C5) * kinetic + normal * normal / 6.0 + C1C5 * energy),
            ];
            diffuses[N] += viscous * (NORMAL - 1.0) * normal;
        }
    }

    /// Rows of the places before, at and after `at`.
    fn around(&self, at: usize) -> ([&[State]; 3], [&[State]; 2]) {
        let [before, here, after] = [at + 2, at, at + 1].map(|at| at % 3);
        (
            [&self.diffuses[before], &self.diffuses[here], &self.diffuses[after]],
            [&self.flux[before], &self.flux[after]],
        )
    }
}

/// Coefficients of the fourth difference at place `at` of a line: one-sided near its ends.
fn fourth(at: usize, side: usize) -> [f64; 5] {
    let mut of = [1.0, -4.0, 6.0, -4.0, 1.0];
    match at {
        1 => of[..3].copy_from_slice(&[0.0, 0.0, 5.0]),
        2 => of[0] = 0.0,
        _ if at == side - 3 => of[4] = 0.0,
        _ if at == side - 2 => of[2..].copy_from_slice(&[5.0, 0.0, 0.0]),
        _ => {}
    }
    of.map(|of| of * DISSIPATION)
}

/// Adds the differences along one axis; all slices are as long as `out`.
#[inline(always)]
fn add(
    out: &mut [State],
    solution: [&[State]; 5],
    of: [f64; 5],
    diffuses: [&[State]; 3],
    flux: [&[State]; 2],
) {
    let out = out.as_flattened_mut();
    let count = out.len();
    let [a, b, c, d, e] = solution.map(|states| &states.as_flattened()[..count]);
    let [before, here, after] = diffuses.map(|states| &states.as_flattened()[..count]);
    let [behind, ahead] = flux.map(|states| &states.as_flattened()[..count]);
    for at in 0..count {
        out[at] += before[at] - 2.0 * here[at] + after[at]
            - (ahead[at] - behind[at])
            - (of[0] * a[at] + of[1] * b[at] + of[2] * c[at] + of[3] * d[at] + of[4] * e[at]);
    }
}

/// What the differences are taken of.
struct Cube<'a> {
    solution: &'a [State],
    side: usize,
    scales: Scales,
}

impl<'a> Cube<'a> {
    fn row(&self, z: usize, y: usize) -> &'a [State] {
        let start = (z * self.side + y) * self.side;
        &self.solution[start..start + self.side]
    }

    /// Adds what the inner points of plane `z` get along x.
    fn add_x(&self, z: usize, plane: &mut [State], rows: &mut Rows) {
        let side = self.side;
        for y in 1..side - 1 {
            let row = self.row(z, y);
            rows.fill::<1>(0, row, self.scales);
            let out = &mut plane[y * side..(y + 1) * side];
            let (flux, diffuses) = (&rows.flux[0], &rows.diffuses[0]);
            let mut piece = |range: Range<usize>| {
                let count = range.len();
                let from = |by: usize| {
                    // Beyond the ends the coefficient is zero.
                    let start = (range.start + by).saturating_sub(2).min(side - count);
                    &row[start..start + count]
                };
                let start = range.start;
                add(
                    &mut out[range.clone()],
                    [from(0), from(1), from(2), from(3), from(4)],
                    fourth(start, side),
                    [&diffuses[start - 1..], &diffuses[start..], &diffuses[start + 1..]],
                    [&flux[start - 1..], &flux[start + 1..]],
                );
            };
            piece(1..2);
            piece(2..3);
            piece(3..side - 3);
            piece(side - 3..side - 2);
            piece(side - 2..side - 1);
        }
    }

    /// Adds what the inner points of plane `z` get along y.
    fn add_y(&self, z: usize, plane: &mut [State], rows: &mut Rows) {
        let side = self.side;
        rows.fill::<2>(0, self.row(z, 0), self.scales);
        rows.fill::<2>(1, self.row(z, 1), self.scales);
        for y in 1..side - 1 {
            rows.fill::<2>(y + 1, self.row(z, y + 1), self.scales);
            let near = |by: usize| &self.row(z, (y + by).saturating_sub(2).min(side - 1))[1..];
            let out = &mut plane[y * side + 1..(y + 1) * side - 1];
            let (diffuses, flux) = rows.around(y);
            add(
                out,
                [near(0), near(1), near(2), near(3), near(4)],
                fourth(y, side),
                diffuses.map(|row| &row[1..]),
                flux.map(|row| &row[1..]),
            );
        }
    }

    /// Adds what the inner points of planes `first..` get along z.
    fn add_z(&self, first: usize, slab: &mut [State], rows: &mut Rows) {
        let side = self.side;
        let planes = slab.len() / (side * side);
        for y in 1..side - 1 {
            rows.fill::<3>(first - 1, self.row(first - 1, y), self.scales);
            rows.fill::<3>(first, self.row(first, y), self.scales);
            for z in first..first + planes {
                rows.fill::<3>(z + 1, self.row(z + 1, y), self.scales);
                let near = |by: usize| &self.row((z + by).saturating_sub(2).min(side - 1), y)[1..];
                let start = ((z - first) * side + y) * side;
                let (diffuses, flux) = rows.around(z);
                add(
                    &mut slab[start + 1..start + side - 1],
                    [near(0), near(1), near(2), near(3), near(4)],
                    fourth(z, side),
                    diffuses.map(|row| &row[1..]),
                    flux.map(|row| &row[1..]),
                );
            }
        }
    }
}
/// Runs a kernel whose iteration is `step`, told the size of a step in time: BT and SP.
pub(super) fn run(sizes: [Size; 4], step: impl Fn(&mut Flow, f64), params: &Params) -> Outcome {
    let class: Class = params.class;
    let size = class.of(sizes);
    let mut flow = Flow::new(size.side, params.threads);
    // One untimed iteration, then from the start.
    step(&mut flow, size.step);
    flow.begin();
    let started = Instant::now();
    for _ in 0..size.iterations {
        step(&mut flow, size.step);
    }
    let seconds = started.elapsed().as_secs_f64();
    let check = flow.check(class, &size)?;
    Ok(Report {
        operations: (3 * size.iterations * (size.side - 2).pow(3)) as u64,
        seconds,
        metrics: Vec::new(),
        check,
    })
}

/// A damaged point at the end of a kernel whose iteration is `step` must be found.
#[cfg(test)]
pub(super) fn finds_damage(sizes: [Size; 4], step: impl Fn(&mut Flow, f64)) {
    let size = Class::S.of(sizes);
    let mut flow = Flow::new(size.side, 1);
    (0..size.iterations).for_each(|_| step(&mut flow, size.step));
    flow.check(Class::S, &size).unwrap();
    let middle = flow.solution.len() / 2 + size.side / 2;
    flow.solution[middle][2] += 1e-6;
    assert!(flow.check(Class::S, &size).unwrap_err().contains(" of the residual is"));
    flow.begin();
    assert!(flow.check(Class::S, &size).is_err(), "nothing was done");
}

//! `nas-lu`: a compressible fluid in a cube, by symmetric successive over-relaxation.
//!
//! ```text
//!  (D + w L) D^-1 (D + w U) change = dt residual;   u += change / (w (2 - w))
//!  forward:   change(i,j,k) waits for (i-1,j,k), (i,j-1,k), (i,j,k-1);   backward: for those on the other side
//! ```
//!
//! `D` of a point has entries in its first column, its last row and its diagonal only, so that it is solved in place;
//! `L` and `U` are never stored, their products with a change are those of the Jacobians of the neighbour.
//!
//! Threads own rows of y and go through the planes one behind the other: each hands the last row that it made of a
//! plane to the next thread.
//!
//! Check: norms of residual and error and the surface integral of the pressure, to 1e-8. `operations` counts points
//! swept.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use super::flow::{
    C2, CONDUCTION, DAMPING, Flow, GAMMA, Motion, NORMAL, Size, State, VISCOSITY, columns, sizes,
};
use crate::program::{Outcome, Params, Report};
use crate::team;

/// Over-relaxation.
const OMEGA: f64 = 1.2;
const TOLERANCE: f64 = 1e-8;

const SIZES: [Size; 4] = sizes! {
    12 50 0.5
        [0.016196343210976703 0.002197674516482132 0.0015179927653399185 0.0015029584435994323 0.03426407315589646]
        [0.0006422331995796092 8.414434204734792e-05 5.8588269616485187e-05 5.847422259515735e-05 0.0013103347914111294]
    33 300 0.0015
        [12.36511638192 1.317228477799 2.550120713095 2.326187750252 28.26799444189]
        [0.4867877144216 0.05064652880982 0.0928181810196 0.08570126542733 1.084277417792]
    64 250 2.0
        [779.0210760668937 63.40276525969287 194.9924972729248 178.45301160418538 1838.4760349464248]
        [29.964085685471943 2.819457636500335 7.347341269877474 6.713922568777705 70.71531568839258]
    102 250 2.0
        [3553.2672969982737 262.1475079531069 883.3372185095219 778.1277473942527 7308.796959254531]
        [114.01176380212709 8.109896365542157 28.480597317698308 25.90539456783294 260.54907504857414]
};

/// Published surface integrals.
const INTEGRALS: [f64; 4] =
    [7.841_892_886_593_708, 0.116_139_931_102_3e2, 26.030_925_604_886_277, 47.887_162_703_308_23];

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let size = class.of(SIZES);
    let mut flow = Flow::new(size.side, params.threads);
    // One untimed iteration, then from the start.
    flow.residual();
    step(&mut flow, size.step);
    flow.begin();
    flow.residual();
    let started = Instant::now();
    for _ in 0..size.iterations {
        step(&mut flow, size.step);
        flow.residual();
    }
    let seconds = started.elapsed().as_secs_f64();
    let check = flow.check(class, &size)?;
    let integral = surface_integral(&flow);
    let published = class.of(INTEGRALS);
    agrees(class, "surface integral", integral, published, TOLERANCE)?;
    Ok(Report {
        operations: (2 * size.iterations * (size.side - 2).pow(3)) as u64,
        seconds,
        metrics: vec![("surface_integral", integral)],
        check,
    })
}

/// From a residual to the next solution.
fn step(flow: &mut Flow, time: f64) {
    let side = flow.side;
    let system = System {
        side,
        time,
        solution: &flow.solution,
        first: time * flow.first(),
        second: time * flow.second(),
    };
    for direction in [Direction::Forward, Direction::Backward] {
        let parts = columns(&mut flow.change, side, flow.threads);
        let mut to = Vec::with_capacity(parts.len());
        let mut from = vec![None];
        for _ in 1..parts.len() {
            let (sender, receiver) = channel();
            to.push(Some(sender));
            from.push(Some(receiver));
        }
        to.push(None);
        if let Direction::Backward = direction {
            to.reverse();
            from.reverse();
        }
        let parts = parts.into_iter().zip(to.into_iter().zip(from)).collect();
        team::each(parts, |((rows, mut planes), (to, from))| match direction {
            Direction::Forward => system.forward(rows, &mut planes, to, from),
            Direction::Backward => system.backward(rows, &mut planes, to, from),
        });
    }
    flow.apply(1.0 / (OMEGA * (2.0 - OMEGA)));
}

#[derive(Clone, Copy)]
enum Direction {
    Forward,
    Backward,
}

type Rows = std::ops::Range<usize>;
type To = Option<Sender<Vec<State>>>;
type From = Option<Receiver<Vec<State>>>;

/// What a sweep reads.
struct System<'a> {
    side: usize,
    time: f64,
    solution: &'a [State],
    /// `dt t2` and `dt t1`.
    first: f64,
    second: f64,
}

impl<'a> System<'a> {
    fn states(&self, z: usize, y: usize) -> &'a [State] {
        let start = (z * self.side + y) * self.side;
        &self.solution[start..start + self.side]
    }

    /// The row that the thread beside this one made last; zeros on a face.
    fn neighbour(&self, from: &From) -> Vec<State> {
        let zeros = || vec![[0.0; 5]; self.side];
        from.as_ref().map_or_else(zeros, |from| from.recv().unwrap_or_else(|_| zeros()))
    }

    fn forward(&self, rows: Rows, planes: &mut [&mut [State]], to: To, from: From) {
        let side = self.side;
        for z in 1..side - 1 {
            let edge = self.neighbour(&from);
            let (below, plane) = planes.split_at_mut(z);
            let (below, plane) = (&*below[z - 1], &mut *plane[0]);
            for (at, y) in rows.clone().enumerate() {
                let (made, row) = plane.split_at_mut(at * side);
                let beside = if at == 0 { &edge[..] } else { &made[(at - 1) * side..] };
                let below = &below[at * side..(at + 1) * side];
                self.forward_row(z, y, &mut row[..side], beside, below);
            }
            if let Some(to) = &to {
                // The other thread may have ended by a panic only, which is told where it is joined.
                let _ = to.send(plane[plane.len() - side..].to_vec());
            }
        }
    }

    fn forward_row(
        &self,
        z: usize,
        y: usize,
        row: &mut [State],
        beside: &[State],
        below: &[State],
    ) {
        let side = self.side;
        let (here, behind, under) =
            (self.states(z, y), self.states(z, y - 1), self.states(z - 1, y));
        let (row, beside, below) = (&mut row[..side], &beside[..side], &below[..side]);
        let mut last = [0.0; 5];
        let mut before = Motion::of(&here[0]);
        for x in 1..side - 1 {
            let motion = Motion::of(&here[x]);
            let mut sum = [0.0; 5];
            self.product::<3>(&Motion::of(&under[x]), &below[x], -1.0, &mut sum);
            self.product::<2>(&Motion::of(&behind[x]), &beside[x], -1.0, &mut sum);
            self.product::<1>(&before, &last, -1.0, &mut sum);
            let mut value = row[x];
            for part in 0..5 {
                value[part] = self.time * value[part] - OMEGA * sum[part];
            }
            last = self.divided(&motion, value);
            row[x] = last;
            before = motion;
        }
    }

    fn backward(&self, rows: Rows, planes: &mut [&mut [State]], to: To, from: From) {
        let side = self.side;
        for z in (1..side - 1).rev() {
            let edge = self.neighbour(&from);
            let (plane, above) = planes.split_at_mut(z + 1);
            let (plane, above) = (&mut *plane[z], &*above[0]);
            for (at, y) in rows.clone().enumerate().rev() {
                let (row, made) = plane[at * side..].split_at_mut(side);
                let beside = if made.is_empty() { &edge[..] } else { &made[..side] };
                let above = &above[at * side..(at + 1) * side];
                self.backward_row(z, y, row, beside, above);
            }
            if let Some(to) = &to {
                // As above.
                let _ = to.send(plane[..side].to_vec());
            }
        }
    }

    fn backward_row(
        &self,
        z: usize,
        y: usize,
        row: &mut [State],
        beside: &[State],
        above: &[State],
    ) {
        let side = self.side;
        let (here, ahead, over) = (self.states(z, y), self.states(z, y + 1), self.states(z + 1, y));
        let (row, beside, above) = (&mut row[..side], &beside[..side], &above[..side]);
        let mut last = [0.0; 5];
        let mut after = Motion::of(&here[side - 1]);
        for x in (1..side - 1).rev() {
            let motion = Motion::of(&here[x]);
            let mut sum = [0.0; 5];
            self.product::<3>(&Motion::of(&over[x]), &above[x], 1.0, &mut sum);
            self.product::<2>(&Motion::of(&ahead[x]), &beside[x], 1.0, &mut sum);
            self.product::<1>(&after, &last, 1.0, &mut sum);
            let change = self.divided(&motion, sum.map(|part| part * OMEGA));
            last = row[x];
            for part in 0..5 {
                last[part] -= change[part];
            }
            row[x] = last;
            after = motion;
        }
    }

    /// Adds the product of a neighbour's part of the system with its change: `sign` times `dt t2` times the Jacobian
    /// of the flux along the axis of momentum `N`, less `dt t1` times that of what diffuses.
    #[inline(always)]
    fn product<const N: usize>(&self, motion: &Motion, change: &State, sign: f64, sum: &mut State) {
        let Motion { volume, velocity, kinetic, energy } = motion;
        let (first, second) = (sign * self.first, self.second);
        let mass = change[0];
        // Momenta but for what the change of mass carries along.
        let own: [f64; 3] = std::array::from_fn(|at| change[at + 1] - velocity[at] * mass);
        let normal = velocity[N - 1];
        let dot = velocity[0] * change[1] + velocity[1] * change[2] + velocity[2] * change[3];
        let pressure = C2 * (kinetic * mass - dot + change[4]);
        let enthalpy = GAMMA * energy - C2 * kinetic;
        sum[0] += first * change[N];
        for at in 0..3 {
            sum[at + 1] += first * (change[at + 1] * normal + velocity[at] * own[N - 1]);
        }
        sum[N] += first * pressure;
        sum[4] += first * ((change[4] + pressure) * normal + enthalpy * own[N - 1]);
        let mut heat = CONDUCTION * (change[4] - energy * mass);
        for at in 0..3 {
            let of = if at + 1 == N { NORMAL * VISCOSITY } else { VISCOSITY };
            sum[at + 1] -= second * of * volume * own[at];
            heat += (of - CONDUCTION) * velocity[at] * own[at];
        }
        sum[4] -= second * volume * heat;
        let damped = second * DAMPING[N - 1];
        for part in 0..5 {
            sum[part] -= damped * change[part];
        }
    }

    /// `D^-1` of a point, times `right`.
    #[inline(always)]
    fn divided(&self, motion: &Motion, right: State) -> State {
        let Motion { volume, velocity, energy, .. } = motion;
        let twice = 2.0 * self.second;
        let damped = 1.0 + twice * (DAMPING[0] + DAMPING[1] + DAMPING[2]);
        // Along its own axis a momentum diffuses more.
        let momentum = twice * VISCOSITY * volume * (NORMAL + 2.0);
        let heat = twice * 3.0 * CONDUCTION * volume;
        let mass = right[0] / damped;
        let scale = 1.0 / (damped + momentum);
        let mut change = [mass, 0.0, 0.0, 0.0, 0.0];
        let mut last = right[4] + heat * energy * mass;
        for at in 0..3 {
            change[at + 1] = (right[at + 1] + momentum * velocity[at] * mass) * scale;
            last -= (momentum - heat) * velocity[at] * (change[at + 1] - velocity[at] * mass);
        }
        change[4] = last / (damped + heat);
        change
    }
}

/// The integral of the pressure over the faces of a box a little inside of the cube.
fn surface_integral(flow: &Flow) -> f64 {
    let side = flow.side;
    // First and last place of the box along x, y and z.
    let ends = [(1, side - 2), (1, side - 3), (2, side - 2)];
    let pressure = |place: [usize; 3]| {
        let state = &flow.solution[(place[2] * side + place[1]) * side + place[0]];
        C2 * (state[4] - Motion::of(state).kinetic * state[0])
    };
    let mut sum = 0.0;
    for normal in 0..3 {
        let (across, up) = ([1, 0, 0][normal], [2, 2, 1][normal]);
        for face in [ends[normal].0, ends[normal].1] {
            for high in ends[up].0..=ends[up].1 {
                for wide in ends[across].0..=ends[across].1 {
                    let mut place = [face; 3];
                    (place[across], place[up]) = (wide, high);
                    // By the trapezoidal rule, an edge counts for half of it.
                    let weight = |at: usize, (first, last): (usize, usize)| {
                        if at == first || at == last { 0.5 } else { 1.0 }
                    };
                    sum += pressure(place) * weight(wide, ends[across]) * weight(high, ends[up]);
                }
            }
        }
    }
    sum / ((side - 1) as f64).powi(2)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_damaged_point_is_found() {
        crate::nas::flow::finds_damage(super::SIZES, |flow, time| {
            flow.residual();
            super::step(flow, time);
        });
    }
}

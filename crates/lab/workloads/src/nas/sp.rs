//! `nas-sp`: a compressible fluid in a cube, each step implicit along x, then y, then z, by characteristics.
//!
//! ```text
//!  change = T(x) P(x) T(x)^-1 T(y) P(y) T(y)^-1 T(z) P(z) T(z)^-1 dt residual;   u += change
//!  P: five scalar systems along a line, each with two neighbours on both sides; three of them are one matrix
//! ```
//!
//! The characteristics move with the fluid (three), and with sound ahead of it and behind it. Lines are solved
//! [`LANES`] at a time: a step of one elimination waits for its division, so that neighbours fill the time.
//!
//! Check: norms of residual and error, to 1e-8. `operations` counts points eliminated.
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays")]

use std::f64::consts::FRAC_1_SQRT_2;

use super::flow::{
    self, C1C5, C2, DAMPING, DISSIPATION, Flow, GAMMA, Motion, Size, State, VISCOSITY, columns,
    sizes,
};
use crate::program::{Outcome, Params};
use crate::team;

/// Lines that are solved at a time.
const LANES: usize = 4;

const SIZES: [Size; 4] = sizes! {
    12 100 0.015
        [0.02747031545133948 0.010360746705285417 0.016235745065095532 0.015840557224455615 0.03484904060936246]
        [2.7289258557377225e-05 1.0364446640837285e-05 1.615479828716647e-05 1.57507049944801e-05 3.417766618339053e-05]
    36 400 0.0015
        [0.001893253733584 0.0001717075447775 0.0002778153350936 0.0002887475409984 0.003143611161242]
        [7.542088599534e-05 6.512852253086e-06 1.049092285688e-05 1.128838671535e-05 0.0001212845639773]
    64 400 0.0015
        [2.4799822399300195 1.1276337964368832 1.5028977888770492 1.421781621169518 2.129211303513828]
        [0.0001090014029782055 3.734395176928209e-05 5.009278540654163e-05 4.767109393952825e-05 0.00013621613399213]
    102 400 0.001
        [69.03293579998 30.95134488084 41.03336647017 38.64769009604 56.43482272596]
        [0.009810006190188 0.00102282790567 0.001720597911692 0.001694479428231 0.01847456263981]
};

pub(super) fn run(params: &Params) -> Outcome {
    flow::run(SIZES, step, params)
}

fn step(flow: &mut Flow, time: f64) {
    flow.residual();
    let (side, plane) = (flow.side, flow.side * flow.side);
    let scales = [flow.first() * time, flow.second() * time, DISSIPATION * time];
    let Flow { solution, change, threads, .. } = flow;
    let solution = &*solution;
    let end = change.len() - plane;
    let slabs = team::slabs(&mut change[plane..end], plane, *threads);
    team::each(slabs, |(first, slab)| {
        let mut lines = Lines::new(side, scales);
        for (z, changes) in slab.chunks_exact_mut(plane).enumerate() {
            let start = (first + z + 1) * plane;
            let states = &solution[start..start + plane];
            for from in (1..side - 1).step_by(LANES) {
                let place = |lane: usize, at: usize| (from + lane).min(side - 2) * side + at;
                for at in 0..side {
                    for lane in 0..LANES {
                        let state = &states[place(lane, at)];
                        lines.set::<1>(at, lane, state);
                        let change = &changes[place(lane, at)];
                        lines.put(at, lane, to_characteristics(state, change, time));
                    }
                }
                lines.solve();
                for at in 1..side - 1 {
                    for lane in 0..LANES.min(side - 1 - from) {
                        changes[place(lane, at)] = x_to_y(lines.get(at, lane));
                    }
                }
            }
            for from in (1..side - 1).step_by(LANES) {
                let place = |lane: usize, at: usize| at * side + (from + lane).min(side - 2);
                for at in 0..side {
                    for lane in 0..LANES {
                        lines.set::<2>(at, lane, &states[place(lane, at)]);
                        lines.put(at, lane, changes[place(lane, at)]);
                    }
                }
                lines.solve();
                for at in 1..side - 1 {
                    for lane in 0..LANES.min(side - 1 - from) {
                        changes[place(lane, at)] = y_to_z(lines.get(at, lane));
                    }
                }
            }
        }
    });
    team::each(columns(change, side, *threads), |(rows, mut planes)| {
        let mut lines = Lines::new(side, scales);
        for (row, y) in rows.enumerate() {
            for from in (1..side - 1).step_by(LANES) {
                let x = |lane: usize| (from + lane).min(side - 2);
                for at in 0..side {
                    let states = &solution[at * plane + y * side..at * plane + (y + 1) * side];
                    for lane in 0..LANES {
                        lines.set::<3>(at, lane, &states[x(lane)]);
                        lines.put(at, lane, planes[at][row * side + x(lane)]);
                    }
                }
                lines.solve();
                for at in 1..side - 1 {
                    let states = &solution[at * plane + y * side..at * plane + (y + 1) * side];
                    for lane in 0..LANES.min(side - 1 - from) {
                        let change = lines.get(at, lane);
                        planes[at][row * side + x(lane)] = from_z(&states[x(lane)], change);
                    }
                }
            }
        }
    });
    flow.apply(1.0);
}

/// From a change of the state to those of the characteristics along x; `time` times as large.
#[inline(always)]
fn to_characteristics(state: &State, change: &State, time: f64) -> State {
    let motion = Motion::of(state);
    let [u, v, w] = motion.velocity;
    let sound = motion.sound();
    let [r1, r2, r3, r4, r5] = change.map(|part| part * time);
    let volume = motion.volume;
    let t1 = C2 / (sound * sound) * (motion.kinetic * r1 - u * r2 - v * r3 - w * r4 + r5);
    let t2 = FRAC_1_SQRT_2 * volume * (u * r1 - r2);
    let t3 = FRAC_1_SQRT_2 * volume * sound * t1;
    [r1 - t1, -volume * (w * r1 - r4), volume * (v * r1 - r3), t3 - t2, t2 + t3]
}

/// From the characteristics along x to those along y.
#[inline(always)]
fn x_to_y([r1, r2, r3, r4, r5]: State) -> State {
    let (t1, t2) = (FRAC_1_SQRT_2 * r3, 0.5 * (r4 + r5));
    [-r2, r1, FRAC_1_SQRT_2 * (r4 - r5), t2 - t1, t1 + t2]
}

/// From the characteristics along y to those along z.
#[inline(always)]
fn y_to_z([r1, r2, r3, r4, r5]: State) -> State {
    let (t1, t2) = (FRAC_1_SQRT_2 * r1, 0.5 * (r4 + r5));
    [FRAC_1_SQRT_2 * (r4 - r5), -r3, r2, t2 - t1, t1 + t2]
}

/// From the characteristics along z back to a change of the state.
#[inline(always)]
fn from_z(state: &State, [r1, r2, r3, r4, r5]: State) -> State {
    let motion = Motion::of(state);
    let [u, v, w] = motion.velocity;
    let sound = motion.sound();
    let density = state[0];
    let t1 = FRAC_1_SQRT_2 * density / sound * (r4 + r5);
    let t2 = r3 + t1;
    let t3 = FRAC_1_SQRT_2 * density * (r4 - r5);
    [
        t2,
        u * t2 - density * r2,
        v * t2 + density * r1,
        w * t2 + t3,
        density * (v * r1 - u * r2)
            + motion.kinetic * t2
            + sound * sound / (GAMMA - 1.0) * t1
            + w * t3,
    ]
}

/// The same number of each line.
type Lane = [f64; LANES];

const ZERO: Lane = [0.0; LANES];

#[inline(always)]
fn lanes(of: impl Fn(usize) -> f64) -> Lane {
    std::array::from_fn(of)
}

/// Lines of the cube and the systems of equations along them.
struct Lines {
    /// `dt t2`, `dt t1`, and `dt` times the factor of the fourth difference.
    scales: [f64; 3],
    normal: Vec<Lane>,
    sound: Vec<Lane>,
    /// Second differences: damping, and what diffuses fastest.
    damping: Vec<Lane>,
    /// Right sides, then the solution; zero at both ends.
    right: Vec<[Lane; 5]>,
    /// Of the eliminated equations of each kind: coefficients of the next place and of the one after it.
    after: Vec<[[Lane; 2]; 3]>,
}

impl Lines {
    fn new(side: usize, scales: [f64; 3]) -> Self {
        Self {
            scales,
            normal: vec![ZERO; side],
            sound: vec![ZERO; side],
            damping: vec![ZERO; side],
            right: vec![[ZERO; 5]; side],
            after: vec![[[ZERO; 2]; 3]; side],
        }
    }

    #[inline(always)]
    fn set<const N: usize>(&mut self, at: usize, lane: usize, state: &State) {
        let motion = Motion::of(state);
        self.normal[at][lane] = self.scales[0] * motion.velocity[N - 1];
        self.sound[at][lane] = self.scales[0] * motion.sound();
        // Of what diffuses, momentum across, along, and energy, the last is the fastest.
        let fastest = DAMPING[N - 1] + C1C5 * VISCOSITY * motion.volume;
        self.damping[at][lane] = self.scales[1] * fastest;
    }

    #[inline(always)]
    fn put(&mut self, at: usize, lane: usize, change: State) {
        for part in 0..5 {
            self.right[at][part][lane] = change[part];
        }
    }

    #[inline(always)]
    fn get(&self, at: usize, lane: usize) -> State {
        std::array::from_fn(|part| self.right[at][part][lane])
    }

    /// The fourth difference at place `at`: its coefficients, but for the factor.
    #[inline(always)]
    fn fourth(at: usize, side: usize) -> [f64; 5] {
        match at {
            1 => [0.0, 0.0, 5.0, -4.0, 1.0],
            2 => [0.0, -4.0, 6.0, -4.0, 1.0],
            _ if at == side - 3 => [1.0, -4.0, 6.0, -4.0, 0.0],
            _ if at == side - 2 => [1.0, -4.0, 5.0, 0.0, 0.0],
            _ => [1.0, -4.0, 6.0, -4.0, 1.0],
        }
    }

    /// Solves all systems, each equation freed of the two places before it as it is made.
    fn solve(&mut self) {
        let side = self.right.len();
        let Self { scales, normal, sound, damping, right, after } = self;
        let (normal, sound, damping) = (&normal[..side], &sound[..side], &damping[..side]);
        let (right, after) = (&mut right[..side], &mut after[..side]);
        right[0] = [ZERO; 5];
        right[side - 1] = [ZERO; 5];
        // Places before the line have no coefficients.
        let (mut two_before, mut before) = ([[ZERO; 2]; 3], [[ZERO; 2]; 3]);
        let (mut right_two_before, mut right_before) = ([ZERO; 5], [ZERO; 5]);
        for at in 1..side - 1 {
            let [a, b, c, d, e] = Self::fourth(at, side).map(|of| of * scales[2]);
            let middle = lanes(|l| 1.0 + 2.0 * damping[at][l] + c);
            let low = lanes(|l| b - normal[at - 1][l] - damping[at - 1][l]);
            let high = lanes(|l| d + normal[at + 1][l] - damping[at + 1][l]);
            let mut value = right[at];
            let mut eliminated = [[ZERO; 2]; 3];
            for kind in 0..3 {
                // With the fluid, with sound ahead, with sound behind.
                let by = [0.0, 1.0, -1.0][kind];
                let [first, second] = two_before[kind];
                let [next, far] = before[kind];
                let low = lanes(|l| low[l] - by * sound[at - 1][l] - a * first[l]);
                let middle = lanes(|l| middle[l] - a * second[l] - low[l] * next[l]);
                let high = lanes(|l| high[l] + by * sound[at + 1][l] - low[l] * far[l]);
                let scale = lanes(|l| 1.0 / middle[l]);
                eliminated[kind] = [lanes(|l| high[l] * scale[l]), lanes(|l| e * scale[l])];
                let parts = [0..3, 3..4, 4..5][kind].clone();
                for part in parts {
                    value[part] = lanes(|l| {
                        (value[part][l]
                            - a * right_two_before[part][l]
                            - low[l] * right_before[part][l])
                            * scale[l]
                    });
                }
            }
            right[at] = value;
            after[at] = eliminated;
            (right_two_before, right_before) = (right_before, value);
            (two_before, before) = (before, eliminated);
        }
        let (mut next, mut far) = ([ZERO; 5], [ZERO; 5]);
        for at in (1..side - 1).rev() {
            let mut value = right[at];
            for part in 0..5 {
                let [near, beyond] = after[at][usize::saturating_sub(part, 2)];
                value[part] =
                    lanes(|l| value[part][l] - near[l] * next[part][l] - beyond[l] * far[part][l]);
            }
            right[at] = value;
            (far, next) = (next, value);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_damaged_point_is_found() {
        super::flow::finds_damage(super::SIZES, super::step);
    }
}

//! What the request level says, tabulated for the page level: throughput and latencies over the share of
//! the default tier, without and with copy traffic between the tiers.
//!
//! A page-level run reads it every quantum by linear interpolation in both directions.

use pagemill_model::parallel;
use pagemill_policy::tier::{Load, Loads};

use crate::closed::{self, CoreKind, Group, Walks};
use crate::machine::Machine;
use crate::workload::{Workload, antagonist};

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Reads of the workload a nanosecond, page table lines apart.
    pub reads_per_ns: f64,
    /// Both tiers, all cores.
    pub loads: Loads,
}

/// A table of points.
#[derive(Clone, Debug)]
pub struct Surface {
    layers: [Vec<Point>; 2],
    /// Requests simulated to make it.
    pub requests: u64,
}

const SHARES: [f64; 13] =
    [0.0, 0.06, 0.13, 0.22, 0.32, 0.42, 0.52, 0.62, 0.71, 0.79, 0.86, 0.925, 1.0];
/// Copy traffic of the second layer: 4 GB/s each way, in lines a nanosecond.
const COPIED: f64 = 4.0 / 64.0;

/// How a surface is made.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Time to fill the queues, in nanoseconds.
    pub warm_ns: f64,
    /// Time measured for each point, in nanoseconds.
    pub measure_ns: f64,
    /// Seed.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { warm_ns: 4_000.0, measure_ns: 60_000.0, seed: 1 }
    }
}

/// One point, without a table.
#[must_use]
pub fn point(
    machine: &Machine,
    workload: &Workload,
    steps: f64,
    walks: Walks,
    share: f64,
    copied: f64,
    sampling: Sampling,
) -> (Point, u64) {
    let copies = Group {
        cores: 1,
        kind: CoreKind::Copy { lines_per_ns: copied },
        default_share: 0.5,
        writes_per_read: 0.0,
    };
    let groups = [workload.group(machine, share, walks), antagonist(machine, steps), copies];
    let outcome =
        closed::run(machine, &groups, sampling.warm_ns, sampling.measure_ns, sampling.seed);
    (Point { reads_per_ns: outcome.ops_per_ns[0], loads: outcome.loads }, outcome.requests)
}

impl Surface {
    /// Simulates every point; `tick` is called after each with its number and their count.
    #[must_use]
    pub fn build(
        machine: &Machine,
        workload: &Workload,
        steps: f64,
        walks: Walks,
        sampling: Sampling,
        tick: &mut dyn FnMut(usize, usize),
    ) -> Self {
        let places: Vec<(f64, f64)> =
            [0.0, COPIED].iter().flat_map(|&copied| SHARES.map(|share| (copied, share))).collect();
        let at = |&(copied, share): &(f64, f64)| {
            point(machine, workload, steps, walks, share, copied, sampling)
        };
        let points = parallel::map(&places, at, &mut |made| tick(made, places.len()));
        let requests = points.iter().map(|(_, served)| served).sum();
        let mut points = points.into_iter().map(|(point, _)| point);
        let still = points.by_ref().take(SHARES.len()).collect();
        Self { layers: [still, points.collect()], requests }
    }

    /// A table without copy traffic: half the work, where nothing moves.
    #[must_use]
    pub fn idle(
        machine: &Machine,
        workload: &Workload,
        steps: f64,
        walks: Walks,
        sampling: Sampling,
    ) -> Self {
        let at = |&share: &f64| point(machine, workload, steps, walks, share, 0.0, sampling);
        let points = parallel::map(&SHARES, at, &mut |_| ());
        let requests = points.iter().map(|(_, served)| served).sum();
        let layer: Vec<Point> = points.into_iter().map(|(point, _)| point).collect();
        Self { layers: [layer.clone(), layer], requests }
    }

    /// The table between this one and `other`, `along` (0..=1) of the way: a load that changes little by little.
    #[must_use]
    pub fn between(&self, other: &Self, along: f64) -> Self {
        let layer = |at: usize| {
            let pairs = self.layers[at].iter().zip(&other.layers[at]);
            pairs.map(|(a, b)| mix(a, b, along)).collect()
        };
        Self { layers: [layer(0), layer(1)], requests: 0 }
    }

    /// The point at a share and a copy traffic (lines a nanosecond each way).
    #[must_use]
    pub fn at(&self, share: f64, copied: f64) -> Point {
        let share = share.clamp(0.0, 1.0);
        let right = SHARES.iter().position(|&s| s >= share).unwrap_or(SHARES.len() - 1).max(1);
        let (a, b) = (SHARES[right - 1], SHARES[right]);
        let along = (share - a) / (b - a);
        let row =
            |layer: usize| mix(&self.layers[layer][right - 1], &self.layers[layer][right], along);
        mix(&row(0), &row(1), (copied / COPIED).min(4.0))
    }

    /// The best throughput that a placement can have whose share lies in `from..=to`: brute force.
    #[must_use]
    pub fn best(&self, from: f64, to: f64) -> (f64, f64) {
        (0..=400)
            .map(|step| from + (to - from) * f64::from(step) / 400.0)
            .map(|share| (share, self.at(share, 0.0).reads_per_ns))
            .fold((from, 0.0), |best, next| if next.1 > best.1 { next } else { best })
    }

    /// The share in `from..=to` at which the latencies meet, or the bound they point to.
    #[must_use]
    pub fn balance(&self, from: f64, to: f64) -> f64 {
        let over = |share: f64| {
            let loads = self.at(share, 0.0).loads;
            loads.default.latency_ns > loads.alternate.latency_ns
        };
        let (mut low, mut high) = (from, to);
        if over(low) {
            return low;
        }
        if !over(high) {
            return high;
        }
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if over(middle) { high = middle } else { low = middle }
        }
        low
    }
}

/// The point between two, `along` of the way from the first.
pub(crate) fn mix(a: &Point, b: &Point, along: f64) -> Point {
    let blend = |a: f64, b: f64| (a + (b - a) * along).max(0.0);
    let load = |a: Load, b: Load| Load {
        latency_ns: blend(a.latency_ns, b.latency_ns),
        reads_per_ns: blend(a.reads_per_ns, b.reads_per_ns),
    };
    Point {
        reads_per_ns: blend(a.reads_per_ns, b.reads_per_ns),
        loads: Loads {
            default: load(a.loads.default, b.loads.default),
            alternate: load(a.loads.alternate, b.loads.alternate),
        },
    }
}

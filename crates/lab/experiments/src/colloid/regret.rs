//! What placers lose on machines and loads that nobody chose: random ones, loads at rest, that step and that drift,
//! against the best share by brute force.
//!
//! A *point* is a machine, a program and a change of its load, all made from one number, the point's seed. Points 1 to
//! 500 are for those who write a placer; **points 1001 to 1500 judge it: they are run once, when it is finished** (see
//! `docs/decisions`, "Judging seeds").
//!
//! | drawn from the seed | range |
//! |---|---|
//! | unloaded latencies, channels | default 60 to 110 ns, 2 to 10; alternate 100 to 300 ns, 1 to 8 |
//! | link | 1 to 6 flits a ns |
//! | memory of the default tier | 8 to 60 GiB, which bounds the share |
//! | program | updates of 64, 256 or 1024 bytes in 72 GiB, 4 to 24 threads; 90 % of them in a hot set of 2 to 20 GiB |
//! | antagonist | 0 to 3 steps of the machine's cores |
//! | the change | another strength of the antagonist, or another number of threads |
//!
//! Every placer of the registry that balances runs here as the page simulator makes it, in quanta of 10 ms: [`BEFORE`]
//! of them under the first load, then [`AFTER`] after it has stepped to the second, or while it drifts there in
//! [`PIECES`] small steps. What a placer is told is *measured*: latencies and rate are each off by a normally
//! distributed error of 0, 3 or 8 % a quantum, and latencies are then smoothed as the drivers do; every placer meets
//! the same errors. A quantum moves no more of the reads than the copy engine can carry of the hot set, both ways, and
//! what it copies is load on both tiers.
//!
//! *Regret* is the throughput lost against the best share of each quantum, counted without error. From the start: over
//! all of the quanta before the change. At rest: over the last [`REST`] of them. After a step, and drifting: over the
//! [`AFTER`] quanta, all of them, those in which pages move to where they should be among them.
//!
//! Beside the placers: *balance*, the share at which the latencies meet, by bisection (what a perfect search for it
//! would reach); *best static*, the one share that is best over all of a run, which only who knows the future can set;
//! *oracle*, which knows the best share of each quantum and goes there as fast as pages move: nobody can lose less.

use pagemill_model::parallel;
use pagemill_model::random::Random;
use pagemill_policy::tier::compose::PLACERS;
use pagemill_policy::tier::kind::{PlacerKind, Terms};
use pagemill_policy::tier::place::Shift;
use pagemill_policy::tier::place::{Placer, Reading};
use pagemill_policy::tier::{Load, Loads, SmoothedLoad, Tier};
use pagemill_sim::surface::Surface;
use pagemill_sim::workload::{self, GIB, Workload};

use super::cell::Cell;
use super::figures::setup;
use super::options::Options;
use super::report::{Report, Score};

/// Quanta before the load changes.
const BEFORE: usize = 10_000;
/// Those that count as rest.
const REST: usize = 3_000;
/// Quanta after the load has begun to change.
const AFTER: usize = 10_000;
/// Steps of a load that drifts.
const PIECES: usize = 100;
/// Standard deviations of what is measured in a quantum.
const NOISES: [f64; 3] = [0.0, 0.03, 0.08];
/// The length of a quantum.
const QUANTUM_NS: f64 = 1e7;
/// Part of the reads that the hot set takes.
const HOT: f64 = 0.9;

/// What is counted apart, and the goals for it: mean and greatest.
const PHASES: [(&str, (f64, f64)); 4] = [
    ("from the start", (0.03, 0.10)),
    ("at rest", (0.01, 0.05)),
    ("after a step", (0.03, 0.10)),
    ("drifting", (0.03, 0.10)),
];

/// A machine and a load, and what the load becomes.
struct Point {
    /// First the load before the change, then what it goes through; the last is the load after.
    surfaces: Vec<Surface>,
    /// Best share and reads a nanosecond on each of them.
    best: Vec<(f64, f64)>,
    /// Least and greatest share.
    bounds: (f64, f64),
    /// The part of the reads that a quantum can move.
    pace: f64,
    /// Lines that change tier with all of the reads, each way.
    lines: f64,
    /// For the errors of the measurements.
    seed: u64,
}

/// GUPS with another hot set.
fn program(object_bytes: f64, threads: usize, hot_gib: f64) -> Workload {
    let mut load = Workload { cores: threads, ..workload::gups(object_bytes) };
    let cold_gib = load.bytes() / GIB - hot_gib;
    for (class, gib) in load.classes.iter_mut().zip([cold_gib / 2.0, cold_gib / 2.0, hot_gib]) {
        class.bytes = gib * GIB;
        class.weight = (1.0 - HOT) / 2.0;
    }
    load.classes[2].weight = HOT;
    load
}

impl Point {
    fn new(options: &Options, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut between = |a: f64, b: f64| a + (b - a) * random.unit();
        let machine = options
            .machine
            .with("tier.alternate.unloaded_ns", between(100.0, 300.0))
            .with("tier.default.unloaded_ns", between(60.0, 110.0))
            .with("tier.default.channels", between(2.0, 10.0).round())
            .with("tier.alternate.channels", between(1.0, 8.0).round())
            .with("tier.default.capacity_gib", between(8.0, 60.0))
            .with("link.flits_per_ns", between(1.0, 6.0));
        let hot_gib = between(2.0, 20.0);
        let object_bytes = [64.0, 256.0, 1024.0][between(0.0, 3.0) as usize % 3];
        let threads = [between(4.0, 25.0) as usize, between(4.0, 25.0) as usize];
        let steps = [between(0.0, 3.0), between(0.0, 3.0)];
        let threads_change = between(0.0, 1.0) < 0.5;
        let under = |steps: f64, threads: usize| {
            let load = program(object_bytes, threads, hot_gib);
            let mut setup = setup(options, &machine, load, "hemem+colloid", steps);
            setup.sampling.seed = seed;
            setup.sampling.measure_ns = if options.quick { 12_480.0 } else { 24_960.0 };
            let (walks, bounds) = (setup.walks(), setup.bounds());
            let surface = Surface::build(
                &machine,
                &setup.workload,
                steps,
                walks,
                setup.sampling,
                &mut |_, _| (),
            );
            (surface, bounds)
        };
        let (before, bounds) = under(steps[0], threads[0]);
        let (after, _) = match threads_change {
            true => under(steps[0], threads[1]),
            false => under(steps[1], threads[0]),
        };
        let along = |piece: usize| piece as f64 / PIECES as f64;
        let surfaces: Vec<Surface> =
            (0..=PIECES).map(|piece| before.between(&after, along(piece))).collect();
        // Pages of as many reads as go come back, so half of the engine is for each way.
        let bytes = hot_gib * GIB / HOT;
        let engine = machine.get("hemem.copy_gb_per_s") * QUANTUM_NS / 2.0;
        Self {
            best: surfaces.iter().map(|surface| surface.best(bounds.0, bounds.1)).collect(),
            surfaces,
            bounds,
            pace: engine / bytes,
            lines: bytes / 64.0,
            seed,
        }
    }

    /// The surface of each quantum of a run.
    fn at(&self, quantum: usize, drifts: bool) -> usize {
        match quantum.checked_sub(BEFORE) {
            None => 0,
            Some(after) if drifts => 1 + after * PIECES / AFTER,
            Some(_) => PIECES,
        }
    }

    /// The regret of each phase of a run in which `choose` says what share to go to: from the start, at rest, after the
    /// change.
    fn run(&self, drifts: bool, choose: &mut dyn FnMut(&Quantum) -> f64) -> [f64; 3] {
        let (mut share, mut copied) = (self.bounds.1, 0.0);
        let mut lost = [0.0; 3];
        for quantum in 0..BEFORE + AFTER {
            let surface = self.at(quantum, drifts);
            let point = self.surfaces[surface].at(share, copied);
            let part = 1.0 - point.reads_per_ns / self.best[surface].1;
            if quantum < BEFORE {
                lost[0] += part / BEFORE as f64;
            } else {
                lost[2] += part / AFTER as f64;
            }
            if (BEFORE - REST..BEFORE).contains(&quantum) {
                lost[1] += part / REST as f64;
            }
            let wanted = choose(&Quantum {
                surface,
                share,
                loads: point.loads,
                reads_per_ns: point.reads_per_ns,
            });
            let next = wanted
                .clamp(share - self.pace, share + self.pace)
                .clamp(self.bounds.0, self.bounds.1);
            copied = (next - share).abs() * self.lines / QUANTUM_NS;
            share = next;
        }
        lost
    }

    /// All phases under a placer.
    fn placed(&self, kind: &PlacerKind, noise: f64) -> [f64; 4] {
        let run = |drifts: bool| {
            let mut measured = Measured::new(kind, noise, self.seed);
            self.run(drifts, &mut |seen| measured.choose(seen))
        };
        let (stepped, drifted) = (run(false), run(true));
        [stepped[0], stepped[1], stepped[2], drifted[2]]
    }

    /// All phases under the oracle.
    fn oracle(&self) -> [f64; 4] {
        let run = |drifts: bool| self.run(drifts, &mut |seen| self.best[seen.surface].0);
        let (stepped, drifted) = (run(false), run(true));
        [stepped[0], stepped[1], stepped[2], drifted[2]]
    }

    /// The reads lost by a share that stays, over the phases; pages do not move.
    fn still(&self, share: f64, drifts: bool) -> [f64; 2] {
        let lost = |surface: usize| {
            1.0 - self.surfaces[surface].at(share, 0.0).reads_per_ns / self.best[surface].1
        };
        let after = match drifts {
            true => (1..=PIECES).map(lost).sum::<f64>() / PIECES as f64,
            false => lost(PIECES),
        };
        [lost(0), after]
    }

    /// All phases at the one share that is best for all of a run.
    fn best_static(&self) -> [f64; 4] {
        let (low, high) = self.bounds;
        let best = |drifts: bool| {
            (0..=400)
                .map(|at| self.still(low + (high - low) * f64::from(at) / 400.0, drifts))
                .min_by(|a, b| (a[0] + a[1]).total_cmp(&(b[0] + b[1])))
                .unwrap_or_default()
        };
        let (stepped, drifted) = (best(false), best(true));
        [stepped[0], stepped[0], stepped[1], drifted[1]]
    }

    /// All phases where the latencies meet.
    fn balance(&self) -> [f64; 4] {
        let lost = |surface: usize| {
            let share = self.surfaces[surface].balance(self.bounds.0, self.bounds.1);
            1.0 - self.surfaces[surface].at(share, 0.0).reads_per_ns / self.best[surface].1
        };
        let drifted = (1..=PIECES).map(lost).sum::<f64>() / PIECES as f64;
        [lost(0), lost(0), lost(PIECES), drifted]
    }
}

/// What is so in a quantum.
struct Quantum {
    surface: usize,
    share: f64,
    loads: Loads,
    reads_per_ns: f64,
}

/// A placer, and the errors of what it is told.
struct Measured {
    placer: Box<dyn Placer>,
    noise: f64,
    random: Random,
    smoothed: [SmoothedLoad; 2],
}

impl Measured {
    fn new(kind: &PlacerKind, noise: f64, seed: u64) -> Self {
        let terms = Terms::TEN_MS;
        Self {
            placer: (kind.make)(&terms),
            noise,
            random: Random::new(seed ^ 0x6e6f_6973_6500_0000),
            smoothed: [SmoothedLoad::new(terms.weight); 2],
        }
    }

    fn choose(&mut self, seen: &Quantum) -> f64 {
        let mut load = |tier: usize, load: Load| {
            let latency_ns = self.random.measured(load.latency_ns, self.noise);
            self.smoothed[tier].update(Load { latency_ns, ..load })
        };
        let loads = Loads {
            default: load(0, seen.loads.default),
            alternate: load(1, seen.loads.alternate),
        };
        let rate = self.random.measured(seen.reads_per_ns, self.noise);
        match self.placer.shift(&Reading { loads, share: seen.share, rate }) {
            Some(Shift { from: Tier::Default, size }) => seen.share - size,
            Some(Shift { from: Tier::Alternate, size }) => seen.share + size,
            None => f64::INFINITY,
        }
    }
}

pub(super) fn run(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let points: Vec<u64> = options.points().collect();
    let kinds: Vec<&PlacerKind> = PLACERS.iter().copied().filter(|kind| kind.balances).collect();
    let mut names: Vec<String> = NOISES
        .iter()
        .flat_map(|noise| {
            kinds.iter().map(move |kind| format!("{}, {:.0} % noise", kind.name, noise * 100.0))
        })
        .collect();
    names.extend(["balance", "best static", "oracle"].map(str::to_owned));
    let one = |&seed: &u64| {
        let point = Point::new(options, seed);
        let mut lost: Vec<[f64; 4]> = Vec::new();
        for noise in NOISES {
            lost.extend(kinds.iter().map(|kind| point.placed(kind, noise)));
        }
        lost.extend([point.balance(), point.best_static(), point.oracle()]);
        lost
    };
    let all = points.len();
    let lost = parallel::map(&points, one, &mut |made| {
        tick(&format!("point {made} of {all}"), made as f64 / all as f64);
    });
    for (row, name) in names.iter().enumerate() {
        for (phase, (column, goal)) in PHASES.into_iter().enumerate() {
            let regrets = || lost.iter().map(|point| point[row][phase]);
            let mean = regrets().sum::<f64>() / all.max(1) as f64;
            let max = regrets().fold(0.0, f64::max);
            for (metric, modelled) in [("mean regret", mean), ("greatest regret", max)] {
                report.cells.push(Cell::of("regret", name, column, metric, modelled));
            }
            if phase > 0 && name.ends_with("8 % noise") {
                report.scores.push(Score {
                    what: format!("regret {column}, {name}"),
                    mean,
                    max,
                    goal,
                    cells: all,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(true, 1).unwrap()
    }

    #[test]
    fn a_seed_is_a_point_and_nobody_loses_less_than_the_oracle_but_by_its_way_there() {
        let point = Point::new(&options(), 3);
        let again = Point::new(&options(), 3);
        assert_eq!((point.best.clone(), point.bounds), (again.best, again.bounds));
        assert_ne!(point.best, Point::new(&options(), 4).best);
        let oracle = point.oracle();
        assert!(oracle[1].abs() < 1e-9, "{oracle:?}");
        for kind in PLACERS.iter().filter(|kind| kind.balances) {
            let lost = point.placed(kind, 0.03);
            assert_eq!(lost, point.placed(kind, 0.03), "{}", kind.name);
            assert!((1..4).all(|phase| lost[phase] >= oracle[phase] - 0.002), "{}", kind.name);
        }
        assert!(point.best_static()[1] >= -1e-9 && point.balance()[1] >= -1e-9);
    }

    #[test]
    fn a_load_that_drifts_is_that_before_at_first_and_that_after_at_last() {
        let point = Point::new(&options(), 5);
        assert_eq!([0, BEFORE - 1].map(|quantum| point.at(quantum, true)), [0, 0]);
        assert_eq!(
            [BEFORE, BEFORE + AFTER - 1].map(|quantum| point.at(quantum, true)),
            [1, PIECES]
        );
        assert_eq!([BEFORE, BEFORE + 1].map(|quantum| point.at(quantum, false)), [PIECES; 2]);
    }
}

//! Colloid's search, left to settle on the surface of a random machine under a random load, against the best share by
//! brute force.
//!
//! A point's regret is the throughput lost at rest: the mean over the last steps, for a search that probes keeps
//! moving. A run is as long as the published ones, 100 s of 10 ms quanta. What a search is told is *measured*:
//! latencies and rate are each off by a normally distributed error of 0, 3 or 8 % a quantum, and latencies are then
//! smoothed as the drivers do. What it loses is counted without error. *Balance* is the share at which the tiers'
//! latencies meet, found by bisection: what a perfect search would reach, so what it loses is the principle's and not
//! the search's.

use pagemill_model::random::Random;
use pagemill_policy::tier::place::climb::Climb;
use pagemill_policy::tier::place::colloid::{self, Shift, Watermark};
use pagemill_policy::tier::{Littles, Load, Tier};
use pagemill_sim::surface::Surface;
use pagemill_sim::workload;

use super::figures::setup;
use super::{Cell, Options, Report, Score};

const STEPS: usize = 10_000;
const LAST: usize = 3_000;
/// Standard deviations of what is measured in a quantum.
const NOISES: [f64; 3] = [0.0, 0.03, 0.08];
/// The weight of a quantum in the smoothed latencies, as shipped.
const WEIGHT: f64 = 0.0625;
/// Quanta that `climb` takes the mean of, as in the page simulator.
const PATIENCE: u32 = 25;
/// The greatest part of the reads that one quantum moves: the copy engine's limit.
const MOVED: f64 = 0.02;

/// What a search is told.
struct Reading {
    share: f64,
    default_ns: f64,
    alternate_ns: f64,
    rate: f64,
}

/// Throughput at rest under a search.
fn settle(
    surface: &Surface,
    (low, high): (f64, f64),
    noise: f64,
    step: &mut dyn FnMut(&Reading) -> Shift,
) -> f64 {
    let (mut share, mut settled) = (high, 0.0);
    let (mut default, mut alternate) = (Littles::new(WEIGHT), Littles::new(WEIGHT));
    // Each search and point meets the same errors.
    let mut random = Random::new(1);
    let mut measured = |value: f64| value * (1.0 + noise * normal(&mut random)).max(0.0);
    for at in 0..STEPS {
        let point = surface.at(share, 0.0);
        let mut seen = |load: Load, average: &mut Littles| {
            let latency_ns = measured(load.latency_ns);
            average.update(Load { latency_ns, ..load }).latency_ns
        };
        let shift = step(&Reading {
            share,
            default_ns: seen(point.loads.default, &mut default),
            alternate_ns: seen(point.loads.alternate, &mut alternate),
            rate: measured(point.reads_per_ns),
        });
        let size = shift.size.min(MOVED);
        share = match shift.from {
            Tier::Default => share - size,
            Tier::Alternate => share + size,
        }
        .clamp(low, high);
        if at >= STEPS - LAST {
            settled += surface.at(share, 0.0).reads_per_ns / LAST as f64;
        }
    }
    settled
}

/// A standard normal number (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let (radius, angle) = (random.unit().max(f64::MIN_POSITIVE), random.unit());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

pub(super) fn run(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let points = if options.quick { 40 } else { 200 };
    let mut random = Random::new(options.seed);
    let names: Vec<String> = NOISES
        .iter()
        .flat_map(|noise| {
            ["watermark search", "shipped step", "climb (ours)"]
                .map(|name| format!("{name}, {:.0} % noise", noise * 100.0))
        })
        .chain(["balance".to_owned()])
        .collect();
    let mut regrets = vec![Vec::new(); names.len()];
    for point in 0..points {
        tick(&format!("point {} of {points}", point + 1), f64::from(point) / f64::from(points));
        let between = |random: &mut Random, a: f64, b: f64| a + (b - a) * random.unit();
        let machine = options
            .machine
            .with("tier.alternate.unloaded_ns", between(&mut random, 100.0, 300.0))
            .with("tier.default.unloaded_ns", between(&mut random, 60.0, 110.0))
            .with("tier.default.channels", between(&mut random, 2.0, 10.0).round())
            .with("tier.alternate.channels", between(&mut random, 1.0, 8.0).round())
            .with("tier.default.capacity_gib", between(&mut random, 8.0, 60.0))
            .with("link.flits_per_ns", between(&mut random, 1.0, 6.0));
        let steps = between(&mut random, 0.0, 3.0);
        let mut setup = setup(options, &machine, workload::gups(64.0), "hemem+watermark", steps);
        setup.effort.measure_ns = if options.quick { 24_960.0 } else { 62_400.0 };
        let walks = setup.walks();
        let surface = Surface::idle(&machine, &setup.workload, steps, walks, setup.effort);
        let (low, high) = setup.bounds();
        let best = surface.best(low, high);
        let bounds = (low, high);
        let mut settled = Vec::new();
        for noise in NOISES {
            let (mut search, mut climb) = (Watermark::default(), Climb::new(PATIENCE));
            settled.push(settle(&surface, bounds, noise, &mut |at| {
                search.step(at.share, at.default_ns, at.alternate_ns)
            }));
            settled.push(settle(&surface, bounds, noise, &mut |at| {
                colloid::proportional(at.share, at.default_ns, at.alternate_ns)
            }));
            settled.push(settle(&surface, bounds, noise, &mut |at| {
                climb.step(at.share, at.rate, at.default_ns, at.alternate_ns)
            }));
        }
        settled.push(surface.at(surface.balance(low, high), 0.0).reads_per_ns);
        for (at, settled) in settled.into_iter().enumerate() {
            regrets[at].push((1.0 - settled / best.1).max(0.0));
        }
    }
    for (name, regrets) in names.iter().zip(&regrets) {
        let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
        let max = regrets.iter().copied().fold(0.0, f64::max);
        let row = format!("{points} random machines and loads");
        for (metric, modelled) in [("mean regret", mean), ("greatest regret", max)] {
            report.cells.push(Cell::of("regret", &row, name, metric, modelled));
        }
        report.scores.push(Score {
            what: format!("regret of the {name} against the best static placement"),
            mean,
            max,
            goal: (0.03, 0.08),
            cells: regrets.len(),
        });
    }
}

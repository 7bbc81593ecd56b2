//! What a tenth more or less of each parameter does to each cell of 6c.

use pagemill_sim::machine::{Machine, PARAMETERS};
use pagemill_sim::surface::{self, Effort};
use pagemill_sim::workload;

use super::figures::setup;
use super::{Influence, LATENCIES, LOADS, Options, Report};

/// The settled ratio of a cell of 6c, without page dynamics: packed share against balanced share.
fn steady(machine: &Machine, steps: f64, options: &Options, effort: Effort) -> f64 {
    let setup = setup(options, machine, workload::gups(64.0), "tpp", steps);
    let (walks, (mut low, high)) = (setup.walks(), setup.bounds());
    let at =
        |share: f64| surface::point(machine, &setup.workload, steps, walks, share, 0.0, effort).0;
    let packed = at(high);
    let over =
        |point: &surface::Point| point.loads.default.latency_ns > point.loads.alternate.latency_ns;
    if !over(&packed) {
        return 1.0;
    }
    let mut balanced = at(low);
    if !over(&balanced) {
        let mut upper = high;
        for _ in 0..6 {
            let middle = f64::midpoint(low, upper);
            balanced = at(middle);
            if over(&balanced) { upper = middle } else { low = middle }
        }
    }
    balanced.reads_per_ns / packed.reads_per_ns
}

pub(super) fn run(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let rows: &[f64] = if options.quick { &LATENCIES[..1] } else { &LATENCIES };
    let effort = Effort { warm_ns: 3_000.0, measure_ns: 124_800.0, seed: options.seed };
    let with = |machine: &Machine, latency: f64| {
        let unloaded = machine.get("tier.alternate.unloaded_ns");
        let frozen = options.machine.get("tier.alternate.unloaded_ns");
        // The row's latency, scaled as the machine's own was.
        machine.with("tier.alternate.unloaded_ns", latency * unloaded / frozen)
    };
    let cells: Vec<(f64, f64)> =
        rows.iter().flat_map(|&latency| LOADS.map(|steps| (latency, steps))).collect();
    let ratios = |machine: &Machine, effort: Effort| -> Vec<f64> {
        cells.iter().map(|&(l, s)| steady(&with(machine, l), s, options, effort)).collect()
    };
    let frozen = ratios(&options.machine, effort);
    let influence = |key: &str, less: &[f64], more: &[f64]| Influence {
        key: key.to_owned(),
        cells: cells
            .iter()
            .enumerate()
            .map(|(at, &(latency, steps))| {
                let change = |new: f64| new / frozen[at] - 1.0;
                (format!("{latency} ns"), format!("{steps}x"), change(less[at]), change(more[at]))
            })
            .collect(),
    };
    let [one, two] =
        [1, 2].map(|more| ratios(&options.machine, Effort { seed: options.seed + more, ..effort }));
    let noise = influence("(other seeds: the noise)", &one, &two);
    let keys: Vec<(String, bool)> = PARAMETERS
        .iter()
        .filter(|p| p.section != "kernel" && p.section != "hemem")
        .map(|p| (format!("{}.{}", p.section, p.key), p.whole()))
        .filter(|(key, _)| options.machine.get(key) != 0.0)
        .collect();
    for (at, (key, whole)) in keys.iter().enumerate() {
        tick(key, at as f64 / keys.len() as f64);
        let [less, more] = [-1.0_f64, 1.0].map(|sign| {
            let value = options.machine.get(key);
            let step = if *whole { (value * 0.1).round().max(1.0) } else { value * 0.1 };
            ratios(&options.machine.with(key, value + sign * step), effort)
        });
        report.sensitivity.push(influence(key, &less, &more));
    }
    report.sensitivity.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
    report.sensitivity.insert(0, noise);
    report.notes.push(
        "sensitivity: cells of 6c at rest (packed share against balanced share), each parameter a tenth less and more, \
         small counts by at least one"
            .to_owned(),
    );
}

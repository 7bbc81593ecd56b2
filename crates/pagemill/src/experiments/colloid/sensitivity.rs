//! What a tenth more or less of each parameter does to each cell of 6c and 8b.
//!
//! Cells are those at rest, without page dynamics: the packed share against the balanced one, which is found by bisection and, in the last
//! interval, by a line between the two ends.

use pagemill_sim::machine::{Machine, PARAMETERS};
use pagemill_sim::surface::{self, Effort, Point};
use pagemill_sim::workload::{self, Workload};

use super::figures::setup;
use super::{Influence, LATENCIES, LOADS, Options, Report};

/// A load and what it changes: the ratio of 6c in a row, or the two throughputs of 8b.
#[derive(Clone, Copy)]
struct Case {
    /// The alternate tier's latency for a ratio of 6c.
    latency: Option<f64>,
    steps: f64,
}

const HALVINGS: usize = 3;

/// Units a nanosecond with everything hot on the default tier, and where the latencies meet.
fn steady(
    machine: &Machine,
    load: Workload,
    steps: f64,
    options: &Options,
    effort: Effort,
) -> (f64, f64) {
    let setup = setup(options, machine, load, "tpp", steps);
    let (walks, (low, high)) = (setup.walks(), setup.bounds());
    let at =
        |share: f64| surface::point(machine, &setup.workload, steps, walks, share, 0.0, effort).0;
    let over = |point: &Point| point.loads.default.latency_ns - point.loads.alternate.latency_ns;
    let rate = |point: &Point| point.reads_per_ns / setup.workload.step.per_unit;
    let packed = at(high);
    if over(&packed) <= 0.0 {
        return (rate(&packed), rate(&packed));
    }
    let (mut below, mut above) = ((low, at(low)), (high, packed));
    if over(&below.1) >= 0.0 {
        return (rate(&packed), rate(&below.1));
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(below.0, above.0);
        let point = at(middle);
        if over(&point) > 0.0 { above = (middle, point) } else { below = (middle, point) }
    }
    let along = over(&below.1) / (over(&below.1) - over(&above.1));
    (rate(&packed), rate(&below.1) + along * (rate(&above.1) - rate(&below.1)))
}

impl Case {
    /// Names of its cells: row and column.
    fn cells(self) -> Vec<(String, String)> {
        let rows = match self.latency {
            Some(latency) => vec![format!("6c, {latency} ns")],
            None => vec!["8b, TPP".to_owned(), "8b, TPP+Colloid".to_owned()],
        };
        rows.into_iter().map(|row| (row, format!("{}x", self.steps))).collect()
    }

    fn values(self, machine: &Machine, options: &Options, effort: Effort) -> Vec<f64> {
        let Some(latency) = self.latency else {
            let (packed, balanced) =
                steady(machine, workload::silo(machine), self.steps, options, effort);
            return vec![packed, balanced];
        };
        let key = "tier.alternate.unloaded_ns";
        // The row's latency, scaled as the machine's own was.
        let scaled = latency * machine.get(key) / options.machine.get(key);
        let machine = machine.with(key, scaled);
        let (packed, balanced) =
            steady(&machine, workload::gups(64.0), self.steps, options, effort);
        vec![balanced / packed]
    }
}

pub(super) fn run(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let rows: Vec<Option<f64>> = if options.quick {
        vec![Some(LATENCIES[0])]
    } else {
        LATENCIES.into_iter().map(Some).chain([None]).collect()
    };
    let effort = Effort { warm_ns: 3_000.0, measure_ns: 124_800.0, seed: options.seed };
    let cases: Vec<Case> =
        rows.into_iter().flat_map(|latency| LOADS.map(|steps| Case { latency, steps })).collect();
    let names: Vec<(String, String)> = cases.iter().flat_map(|case| case.cells()).collect();
    let values = |machine: &Machine, effort: Effort| -> Vec<f64> {
        cases.iter().flat_map(|case| case.values(machine, options, effort)).collect()
    };
    let frozen = values(&options.machine, effort);
    let influence = |key: &str, less: &[f64], more: &[f64]| Influence {
        key: key.to_owned(),
        cells: names
            .iter()
            .enumerate()
            .map(|(at, (row, column))| {
                let change = |new: f64| new / frozen[at] - 1.0;
                (row.clone(), column.clone(), change(less[at]), change(more[at]))
            })
            .collect(),
    };
    let [one, two] =
        [1, 2].map(|more| values(&options.machine, Effort { seed: options.seed + more, ..effort }));
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
            values(&options.machine.with(key, value + sign * step), effort)
        });
        report.sensitivity.push(influence(key, &less, &more));
    }
    report.sensitivity.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
    report.sensitivity.insert(0, noise);
    report.notes.push(
        "sensitivity: cells at rest (packed share against balanced share; Silo's computing time as it is), each parameter \
         a tenth less and more, small counts by at least one"
            .to_owned(),
    );
}

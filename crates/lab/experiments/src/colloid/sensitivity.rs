//! What a tenth more or less of each parameter does to each cell of 6c and 8b.
//!
//! For the machine's parameters cells are those at rest, without page dynamics: the packed share against the balanced
//! one, which is found by bisection and, in the last interval, by a line between the two ends. The kernel's parameters
//! are in page dynamics only: for them the whole runs are made, on tables of the machine as it is.

use anyhow::Result;
use pagemill_model::parallel;
use pagemill_sim::machine::{Machine, PARAMETERS, Parameter};
use pagemill_sim::run::Setup;
use pagemill_sim::surface::{self, Effort, Point};
use pagemill_sim::workload::{self, Workload};

use super::figures::{Bench, both, setup};
use super::{Influence, LATENCIES, LOADS, Options, Report};
use crate::checkpoints::{self, Checkpoints};

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

    /// The machine of its row: the row's latency, scaled as the machine's own was.
    fn machine(self, machine: &Machine, options: &Options) -> Machine {
        let key = "tier.alternate.unloaded_ns";
        match self.latency {
            Some(latency) => {
                machine.with(key, latency * machine.get(key) / options.machine.get(key))
            }
            None => machine.clone(),
        }
    }

    /// Its run under TPP, pages and all.
    fn whole_run(self, machine: &Machine, options: &Options) -> Setup {
        let machine = self.machine(machine, options);
        let load = match self.latency {
            Some(_) => workload::gups(64.0),
            None => workload::silo(&machine),
        };
        setup(options, &machine, load, "tpp", self.steps)
    }

    fn values(self, machine: &Machine, options: &Options, effort: Effort) -> Vec<f64> {
        if self.latency.is_none() {
            let (packed, balanced) =
                steady(machine, workload::silo(machine), self.steps, options, effort);
            return vec![packed, balanced];
        }
        let machine = self.machine(machine, options);
        let (packed, balanced) =
            steady(&machine, workload::gups(64.0), self.steps, options, effort);
        vec![balanced / packed]
    }
}

/// How the cells change with the parameters: those of the machine at rest, those of the kernel in whole runs.
pub(super) fn run(
    options: &Options,
    checkpoints: Option<&Checkpoints>,
    report: &mut Report,
    tick: &mut dyn FnMut(&str, f64),
) -> Result<()> {
    let rows: Vec<Option<f64>> = if options.quick {
        vec![Some(LATENCIES[0])]
    } else {
        LATENCIES.into_iter().map(Some).chain([None]).collect()
    };
    let cases: Vec<Case> =
        rows.into_iter().flat_map(|latency| LOADS.map(|steps| Case { latency, steps })).collect();
    let table = Cells { options, checkpoints, cases };
    // The sampled systems are in none of these cells, which are TPP's; a tenth of a page is no page.
    let (kernel, rest): (Vec<&Parameter>, Vec<&Parameter>) = PARAMETERS
        .iter()
        .filter(|p| p.section != "hemem" && p.key != "page_kib")
        .filter(|p| options.machine.get(&p.name()) != 0.0)
        .partition(|p| p.section == "kernel");
    let all = (kernel.len() + rest.len() + 2) as f64;
    let (noise, mut found) = table.at_rest(&rest, all, tick)?;
    let (noise_of_runs, of_runs) =
        table.in_whole_runs(&kernel, ((rest.len() + 1) as f64, all), tick)?;
    found.extend(of_runs);
    found.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
    report.sensitivity = [noise, noise_of_runs].into_iter().chain(found).collect();
    report.notes.push(
        "sensitivity: each parameter a tenth less and more, small counts by at least one; Silo's computing time as it is. The \
         machine's parameters: cells at rest (packed share against balanced share). The kernel's: whole runs of 600 s, one \
         page in 512"
            .to_owned(),
    );
    Ok(())
}

/// The cells that are made anew with each parameter changed.
struct Cells<'a> {
    options: &'a Options,
    checkpoints: Option<&'a Checkpoints>,
    cases: Vec<Case>,
}

impl Cells<'_> {
    /// What a parameter changed: the cells with less and with more of it, over those as they are.
    fn influence(&self, key: &str, frozen: &[f64], changed: &[Vec<f64>]) -> Influence {
        let names = self.cases.iter().flat_map(|case| case.cells());
        let cells = names.enumerate().map(|(at, (row, column))| {
            let change = |new: &[f64]| new[at] / frozen[at] - 1.0;
            (row, column, change(&changed[0]), change(&changed[1]))
        });
        Influence { key: key.to_owned(), cells: cells.collect() }
    }

    /// The machine with a tenth more of a parameter, or less by `sign`.
    fn changed(&self, key: &str, whole: bool, sign: f64) -> Machine {
        let machine = &self.options.machine;
        let value = machine.get(key);
        let step = if whole { (value * 0.1).round().max(1.0) } else { value * 0.1 };
        machine.with(key, value + sign * step)
    }

    /// The noise, and what each of the machine's parameters changes, in cells at rest; of `all` rows.
    fn at_rest(
        &self,
        parameters: &[&Parameter],
        all: f64,
        tick: &mut dyn FnMut(&str, f64),
    ) -> Result<(Influence, Vec<Influence>)> {
        let (options, cases) = (self.options, &self.cases);
        let effort = Effort { warm_ns: 3_000.0, measure_ns: 124_800.0, seed: options.seed };
        // Cells of a machine, as the `done`-th of all rows; each sum is kept, so that a run that was ended loses one at
        // most.
        let mut cells = |name: &str, machine: &Machine, effort: Effort, done: f64| {
            checkpoints::part(self.checkpoints, name, || {
                let values = |case: &Case| case.values(machine, options, effort);
                let mut one = |made: usize| {
                    let (part, of) = (made as f64, cases.len() as f64);
                    tick(&format!("{name}, {made} of {of} loads"), (done + part / of / 2.0) / all);
                };
                parallel::map(cases, values, &mut one).concat()
            })
        };
        let frozen = cells("as it is", &options.machine, effort, 0.0)?;
        let mut noise = Vec::new();
        for more in [1, 2] {
            let effort = Effort { seed: options.seed + more, ..effort };
            noise.push(cells(&format!("seed {}", effort.seed), &options.machine, effort, 0.5)?);
        }
        let noise = self.influence("(at rest: other seeds, the noise)", &frozen, &noise);
        let mut found = Vec::new();
        for (at, one) in parameters.iter().enumerate() {
            let (key, mut values) = (one.name(), Vec::new());
            for (sign, name) in [(-1.0, "less"), (1.0, "more")] {
                let done = at as f64 + 1.0 + (sign + 1.0) / 4.0;
                let machine = self.changed(&key, one.whole(), sign);
                values.push(cells(&format!("{key} {name}"), &machine, effort, done)?);
            }
            found.push(self.influence(&key, &frozen, &values));
        }
        Ok((noise, found))
    }

    /// The noise, and what each of the kernel's parameters changes, in whole runs; `done` of `all` rows are made.
    fn in_whole_runs(
        &self,
        parameters: &[&Parameter],
        (done, all): (f64, f64),
        tick: &mut dyn FnMut(&str, f64),
    ) -> Result<(Influence, Vec<Influence>)> {
        let (options, cases, checkpoints) = (self.options, &self.cases, self.checkpoints);
        tick("whole runs as they are", done / all);
        let small = Options { quick: true, ..options.clone() };
        let mut bench = Bench::new(&small);
        let mut runs = |machine: &Machine, seed: u64| -> Vec<f64> {
            let options = Options { seed, ..small.clone() };
            let setups: Vec<Setup> =
                cases.iter().flat_map(|case| both(&case.whole_run(machine, &options))).collect();
            let throughputs: Vec<f64> = bench.runs(&setups).into_iter().map(|run| run.0).collect();
            let cells = |(case, pair): (&Case, &[f64])| match case.latency {
                Some(_) => vec![pair[1] / pair[0]],
                None => pair.to_vec(),
            };
            cases.iter().zip(throughputs.chunks_exact(2)).flat_map(cells).collect()
        };
        let frozen =
            checkpoints::part(checkpoints, "whole-runs", || runs(&options.machine, options.seed))?;
        let noise = checkpoints::part(checkpoints, "whole-runs-noise", || {
            let values = [1, 2].map(|more| runs(&options.machine, options.seed + more));
            self.influence("(kernel: other seeds, the noise)", &frozen, &values)
        })?;
        let mut found = Vec::new();
        for (at, one) in parameters.iter().enumerate() {
            let key = one.name();
            tick(&key, (done + 1.0 + at as f64) / all);
            found.push(checkpoints::part(checkpoints, &key, || {
                let changed = |sign| self.changed(&key, one.whole(), sign);
                let values = [-1.0, 1.0].map(|sign| runs(&changed(sign), options.seed));
                self.influence(&key, &frozen, &values)
            })?);
        }
        Ok((noise, found))
    }
}

//! What a tenth more or less of each parameter does to each cell of 6c and 8b.
//!
//! For the machine's parameters cells are those at rest, without page dynamics: the packed share against the balanced
//! one, which is found by bisection and, in the last interval, by a line between the two ends. The kernel's parameters
//! are in page dynamics only: for them the whole runs are made, on tables of the machine as it is.

use anyhow::{Context as _, Result};
use pagemill_model::parallel;
use pagemill_sim::machine::{Machine, PARAMETERS, Parameter};
use pagemill_sim::run::Setup;
use pagemill_sim::surface::{self, Point, Sampling};
use pagemill_sim::workload::{self, Workload};

use super::cell::{LATENCIES, LOADS};
use super::figures::{Bench, both, setup};
use super::options::Options;
use super::report::{Influence, Report};

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
    sampling: Sampling,
) -> (f64, f64) {
    let setup = setup(options, machine, load, "tpp", steps);
    let (walks, (low, high)) = (setup.walks(), setup.bounds());
    let at =
        |share: f64| surface::point(machine, &setup.workload, steps, walks, share, 0.0, sampling).0;
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

    fn values(self, machine: &Machine, options: &Options, sampling: Sampling) -> Vec<f64> {
        if self.latency.is_none() {
            let (packed, balanced) =
                steady(machine, workload::silo(machine), self.steps, options, sampling);
            return vec![packed, balanced];
        }
        let machine = self.machine(machine, options);
        let (packed, balanced) =
            steady(&machine, workload::gups(64.0), self.steps, options, sampling);
        vec![balanced / packed]
    }
}

/// Which of the two kinds of loads.
#[derive(Clone, Copy, PartialEq)]
enum Loads {
    /// At rest, for the machine's parameters.
    AtRest,
    /// Whole runs, for the kernel's.
    InRuns,
}

/// How the cells change with the parameters: those of the machine at rest, those of the kernel in whole runs. A *sum*
/// is all loads once: as they are, with another seed, or with a parameter less or more; each is made alone.
pub(super) struct Sums {
    options: Options,
    /// What whole runs are made with: fewer pages.
    small: Options,
    cases: Vec<Case>,
    bench: Bench,
}

impl Sums {
    pub(super) fn new(options: &Options) -> Self {
        let rows: Vec<Option<f64>> = if options.quick {
            vec![Some(LATENCIES[0])]
        } else {
            LATENCIES.into_iter().map(Some).chain([None]).collect()
        };
        let case = |latency| LOADS.map(|steps| Case { latency, steps });
        let small = Options { quick: true, ..options.clone() };
        let bench = Bench::new(&small);
        let cases = rows.into_iter().flat_map(case).collect();
        Self { options: options.clone(), small, cases, bench }
    }

    /// The parameters of each kind of loads. The sampled systems are in none of these cells, which are TPP's; a tenth
    /// of a page is no page.
    fn parameters(&self, loads: Loads) -> impl Iterator<Item = &'static Parameter> {
        PARAMETERS
            .iter()
            .filter(|p| p.section != "hemem" && p.key != "page_kib")
            .filter(|p| self.options.machine.get(&p.name()) != 0.0)
            .filter(move |p| (p.section == "kernel") == (loads == Loads::InRuns))
    }

    /// The names of all sums.
    pub(super) fn names(&self) -> Vec<String> {
        let of = |loads: Loads| {
            let start = loads.start();
            let frozen = FROZEN.map(|(name, _)| format!("{start}.{name}"));
            let changed = self.parameters(loads).flat_map(move |parameter| {
                let key = parameter.name();
                SIGNS.map(|(sign, _)| format!("{start}.{key}.{sign}"))
            });
            frozen.into_iter().chain(changed).collect::<Vec<_>>()
        };
        [Loads::AtRest, Loads::InRuns].into_iter().flat_map(of).collect()
    }

    /// Makes a sum: a value of each cell.
    pub(super) fn make(&mut self, name: &str, tick: &mut dyn FnMut(&str, f64)) -> Result<Vec<f64>> {
        let loads = [Loads::AtRest, Loads::InRuns].into_iter();
        let mut found = loads.filter_map(|loads| {
            Some((loads, name.strip_prefix(loads.start())?.strip_prefix('.')?))
        });
        let (loads, what) = found.next().with_context(|| format!("there is no {name:?}"))?;
        let (machine, more) = match FROZEN.into_iter().find(|(frozen, _)| *frozen == what) {
            Some((_, more)) => (self.options.machine.clone(), more),
            None => (self.changed(loads, what)?, 0),
        };
        Ok(match loads {
            Loads::AtRest => self.at_rest(&machine, more, tick),
            Loads::InRuns => self.in_runs(&machine, more),
        })
    }

    /// The machine with a tenth less or more of the parameter that a name ends with.
    fn changed(&self, loads: Loads, what: &str) -> Result<Machine> {
        let split = what.rsplit_once('.').and_then(|(key, sign)| {
            let parameter = self.parameters(loads).find(|one| one.name() == key)?;
            Some((parameter, SIGNS.into_iter().find(|(name, _)| *name == sign)?.1))
        });
        let (parameter, sign) = split.with_context(|| format!("there is no sum {what:?}"))?;
        let (key, machine) = (parameter.name(), &self.options.machine);
        let value = machine.get(&key);
        let step = if parameter.whole() { (value * 0.1).round().max(1.0) } else { value * 0.1 };
        Ok(machine.with(&key, value + sign * step))
    }

    fn at_rest(&self, machine: &Machine, more: u64, tick: &mut dyn FnMut(&str, f64)) -> Vec<f64> {
        let (options, cases) = (&self.options, &self.cases);
        let sampling =
            Sampling { warm_ns: 3_000.0, measure_ns: 124_800.0, seed: options.seed + more };
        let all = cases.len();
        let mut one = |made: usize| {
            tick(&format!("{made} of {all} loads"), made as f64 / all as f64);
        };
        parallel::map(cases, |case| case.values(machine, options, sampling), &mut one).concat()
    }

    fn in_runs(&mut self, machine: &Machine, more: u64) -> Vec<f64> {
        let setups = |machine: &Machine, options: &Options| -> Vec<Setup> {
            self.cases.iter().flat_map(|case| both(&case.whole_run(machine, options))).collect()
        };
        // On tables of the machine as it is, whatever is made first.
        let as_it_is = setups(&self.options.machine, &self.small);
        let seed = self.small.seed + more;
        let changed = setups(machine, &Options { seed, ..self.small.clone() });
        self.bench.prepare(&as_it_is);
        let throughputs: Vec<f64> =
            self.bench.runs(&changed).into_iter().map(|run| run.0).collect();
        let cells = |(case, pair): (&Case, &[f64])| match case.latency {
            Some(_) => vec![pair[1] / pair[0]],
            None => pair.to_vec(),
        };
        self.cases.iter().zip(throughputs.chunks_exact(2)).flat_map(cells).collect()
    }

    /// What changed the cells: those of two sums over those as they are; `None` if one is missing.
    fn influence(
        &self,
        loads: Loads,
        key: &str,
        names: [String; 2],
        made: &mut dyn FnMut(&str) -> Option<Vec<f64>>,
    ) -> Option<Influence> {
        let start = loads.start();
        let frozen = made(&format!("{start}.{}", FROZEN[0].0))?;
        let [less, more] = names.map(|name| made(&format!("{start}.{name}")));
        let (less, more) = (less?, more?);
        let names = self.cases.iter().flat_map(|case| case.cells());
        let cells = names.enumerate().map(|(at, (row, column))| {
            let change = |new: &[f64]| Some(new.get(at)? / frozen.get(at)? - 1.0);
            Some((row, column, change(&less)?, change(&more)?))
        });
        Some(Influence { key: key.to_owned(), cells: cells.collect::<Option<_>>()? })
    }

    /// The table, if all of its sums are there.
    pub(super) fn table(
        &self,
        made: &mut dyn FnMut(&str) -> Option<Vec<f64>>,
        report: &mut Report,
    ) {
        let (mut noises, mut found) = (Vec::new(), Vec::new());
        for loads in [Loads::AtRest, Loads::InRuns] {
            let names = [FROZEN[1].0, FROZEN[2].0].map(str::to_owned);
            let Some(noise) = self.influence(loads, loads.noise(), names, made) else { return };
            noises.push(noise);
            for parameter in self.parameters(loads) {
                let key = parameter.name();
                let names = SIGNS.map(|(sign, _)| format!("{key}.{sign}"));
                let Some(one) = self.influence(loads, &key, names, made) else { return };
                found.push(one);
            }
        }
        found.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
        report.sensitivity = noises.into_iter().chain(found).collect();
        report.notes.push(READING.to_owned());
    }
}

const READING: &str = "sensitivity: each parameter a tenth less and more, small counts by at least one; Silo's \
                       computing time as it is. The \
     machine's parameters: cells at rest (packed share against balanced share). The kernel's: whole runs of 600 s, one \
     page in 512";

/// Sums of the machine as it is, each with what is added to the seed.
const FROZEN: [(&str, u64); 3] = [("as-it-is", 0), ("noise-1", 1), ("noise-2", 2)];

/// Ways of changing a parameter.
const SIGNS: [(&str, f64); 2] = [("less", -1.0), ("more", 1.0)];

impl Loads {
    /// What the names of its sums begin with.
    fn start(self) -> &'static str {
        match self {
            Self::AtRest => "at-rest",
            Self::InRuns => "in-runs",
        }
    }

    /// What its noise is called in the table.
    fn noise(self) -> &'static str {
        match self {
            Self::AtRest => "(at rest: other seeds, the noise)",
            Self::InRuns => "(kernel: other seeds, the noise)",
        }
    }
}

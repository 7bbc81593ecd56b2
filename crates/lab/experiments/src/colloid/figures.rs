//! The figures that run the page level: GUPS, applications, dynamics; and the facts of the set-up.

use std::collections::HashMap;

use pagemill_model::page::HUGE;
use pagemill_model::parallel;
use pagemill_policy::tier::compose;
use pagemill_policy::tier::kind::{PageSize, Watches};
use pagemill_sim::closed::{self, Walks};
use pagemill_sim::machine::Machine;
use pagemill_sim::run::{Prepared, Report as Outcome, Setup};
use pagemill_sim::surface::Sampling;
use pagemill_sim::workload::{self, Workload};

use super::cell::{ALONE, Cell, GAIN, LATENCIES, LOADED, LOADS, LOG, SAMPLE_LOG, at};
use super::options::Options;
use super::report::{Line, Report, score};

/// What the name of a figure ends in whose kernel has huge pages.
const THP: &str = "+thp";
/// The lengths of the published runs of programs, and of the kernel's tiering.
const APPLICATION_SECONDS: f64 = 600.0;

pub(super) fn setup(
    options: &Options,
    machine: &Machine,
    load: Workload,
    policy: &str,
    steps: f64,
) -> Setup {
    let huge = compose::find(policy).is_some_and(|(tracker, _)| tracker.page == PageSize::Huge);
    let scale = match (huge, options.quick) {
        (true, true) => 32.0,
        (true, false) => 8.0,
        (false, true) => 512.0,
        (false, false) => 64.0,
    };
    // As in the published runs; a program that ends runs to its end.
    let seconds = if huge && load.length.is_none() { 100.0 } else { APPLICATION_SECONDS };
    let setup = Setup {
        machine: machine.clone(),
        workload: load,
        policy: policy.to_owned(),
        steps,
        later_steps: None,
        moves_at: None,
        seconds,
        scale,
        noise: 0.0,
        seed: options.seed,
        sampling: Sampling {
            seed: options.seed,
            // Thirty-two refresh intervals, or eight.
            measure_ns: if options.quick { 60_000.0 } else { 249_600.0 },
            ..Sampling::default()
        },
    };
    // A machine with larger pages has fewer of them to leave out.
    Setup { scale: scale.min(setup.coarsest()), ..setup }
}

/// A set-up without and with Colloid.
pub(super) fn both(base: &Setup) -> [Setup; 2] {
    [base.clone(), Setup { policy: format!("{}+colloid", base.policy), ..base.clone() }]
}

/// Runs figures; policies with the same page size share what the request level said.
pub(super) struct Bench {
    options: Options,
    prepared: HashMap<String, Prepared>,
}

impl Bench {
    pub(super) fn new(options: &Options) -> Self {
        Self { options: options.clone(), prepared: HashMap::new() }
    }

    /// What a figure runs on: where its name ends so, the kernel's own tiering has huge pages.
    fn machine(&self, figure: &str) -> Machine {
        let machine = &self.options.machine;
        match figure.ends_with(THP) {
            true => machine.with("kernel.page_kib", (HUGE >> 10) as f64),
            false => machine.clone(),
        }
    }

    fn key(setup: &Setup) -> String {
        format!(
            "{} {} {} {} {:?}",
            setup.workload.name,
            setup.machine.get("tier.alternate.unloaded_ns"),
            setup.steps,
            setup.page_bytes(),
            setup.later_steps
        )
    }

    /// What the request level says of these set-ups, which others of the same key share.
    pub(super) fn prepare(&mut self, setups: &[Setup]) {
        for setup in setups {
            let key = Self::key(setup);
            self.prepared.entry(key).or_insert_with(|| setup.prepare(&mut |_, _| {}));
        }
    }

    /// Runs side by side. The throughput of each is that of the whole run for programs that end, of the last 30 seconds
    /// for those that do not, as in the published runs.
    pub(super) fn runs(&mut self, setups: &[Setup]) -> Vec<(f64, Outcome)> {
        self.prepare(setups);
        let run = |setup: &Setup| {
            let outcome = setup.run(&self.prepared[&Self::key(setup)], &mut |_| {});
            let ends = setup.workload.length.is_some();
            (if ends { outcome.whole } else { outcome.last.units_per_s }, outcome)
        };
        parallel::map(setups, run, &mut |_| ())
    }

    /// Without and with Colloid.
    fn pair(&mut self, base: &Setup) -> [(f64, Outcome); 2] {
        let runs = self.runs(&both(base));
        runs.try_into().expect("two set-ups make two runs")
    }

    pub(super) fn gups(
        &mut self,
        figure: &str,
        system: &str,
        report: &mut Report,
        tick: &mut dyn FnMut(&str, f64),
    ) {
        let first = report.cells.len();
        for (row, latency) in LATENCIES.into_iter().enumerate() {
            let machine = self.machine(figure).with("tier.alternate.unloaded_ns", latency);
            for (column, steps) in LOADS.into_iter().enumerate() {
                tick(&format!("{latency} ns at {steps}x"), (row * 4 + column) as f64 / 16.0);
                let base = setup(&self.options, &machine, workload::gups(64.0), system, steps);
                let [without, with] = self.pair(&base);
                for (metric, modelled) in [
                    (GAIN, with.0 / without.0),
                    ("share without", without.1.last.share),
                    ("share with", with.1.last.share),
                ] {
                    let row = format!("{latency} ns");
                    report.cells.push(Cell::of(figure, &row, &at(steps), metric, modelled));
                }
            }
        }
        score(report, first, figure, GAIN, (0.03, 0.08));
    }

    /// The three systems and the kernel's own by load, beside the best static placement.
    pub(super) fn loads(&mut self, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
        for (at, system) in ["hemem", "memtis", "tpp", "damon"].into_iter().enumerate() {
            for (column, steps) in LOADS.into_iter().enumerate() {
                tick(&format!("{system} at {steps}x"), (at * 4 + column) as f64 / 16.0);
                let machine = self.options.machine.clone();
                let base = setup(&self.options, &machine, workload::gups(64.0), system, steps);
                let known = |setup: &Setup| compose::find(&setup.policy).is_some();
                let setups: Vec<Setup> = both(&base).into_iter().filter(known).collect();
                let runs = self.runs(&setups);
                let mut rows: Vec<(String, f64)> = setups
                    .iter()
                    .zip(&runs)
                    .map(|(setup, run)| (setup.policy.clone(), run.0))
                    .collect();
                let best = runs.last().map(|run| (format!("{system}, best static"), run.1.best.1));
                rows.extend(best);
                for (row, value) in rows {
                    report.cells.push(Cell::of(
                        "4",
                        &row,
                        &format!("{steps}x"),
                        "updates/s",
                        value,
                    ));
                }
            }
        }
    }

    pub(super) fn application(
        &mut self,
        figure: &str,
        name: &str,
        report: &mut Report,
        tick: &mut dyn FnMut(&str, f64),
    ) {
        let first = report.cells.len();
        let machine = self.machine(figure);
        let Some(load) = workload::named(name, &machine) else {
            return;
        };
        let policies = if figure.ends_with(THP) { &["TPP", "MEMTIS"][..] } else { &["TPP"] };
        let cells: Vec<_> =
            policies.iter().flat_map(|one| LOADS.map(|steps| (*one, steps))).collect();
        for (number, &(policy, steps)) in cells.iter().enumerate() {
            tick(&format!("{policy} at {steps}x"), number as f64 / cells.len() as f64);
            let name = policy.to_lowercase();
            let base = setup(&self.options, &machine, load.clone(), &name, steps);
            let names = [policy.to_owned(), format!("{policy}+colloid")];
            for (system, run) in names.iter().zip(self.pair(&base)) {
                let column = at(steps);
                report.cells.push(Cell::of(figure, system, &column, load.unit, run.0));
                report.cells.push(Cell::of(figure, system, &column, "share", run.1.last.share));
            }
        }
        score(report, first, figure, load.unit, (0.08, 0.08));
        if figure == "8b" {
            report.notes.push(
                "8b: Silo's computing time is set from the cell 'TPP at 0x'; that cell is an input and not scored"
                    .to_owned(),
            );
        }
    }

    pub(super) fn dynamics(&mut self, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
        let systems = ["tpp+colloid", "hemem+colloid", "hemem+watermark", "memtis+colloid"];
        for (at, policy) in systems.into_iter().enumerate() {
            for (which, event) in ["hot set moves", "antagonist starts"].into_iter().enumerate() {
                tick(&format!("{policy}, {event}"), (at * 2 + which) as f64 / 8.0);
                let by_faults = compose::find(policy)
                    .is_some_and(|(tracker, _)| matches!(tracker.watches, Watches::HintFaults(_)));
                let begins = if by_faults { APPLICATION_SECONDS } else { 100.0 };
                let machine = self.options.machine.clone();
                let mut setup = setup(&self.options, &machine, workload::gups(64.0), policy, 0.0);
                setup.seconds = begins * 2.0;
                if which == 0 {
                    setup.moves_at = Some(begins);
                } else {
                    setup.later_steps = Some((3.0, begins));
                }
                let Some((_, outcome)) = self.runs(&[setup]).pop() else { continue };
                let best = outcome.best.1;
                let after: Vec<_> =
                    outcome.samples.iter().filter(|sample| sample.second > begins).collect();
                let recovered = after
                    .iter()
                    .find(|sample| sample.units_per_s >= 0.95 * best)
                    .map_or(f64::INFINITY, |sample| sample.second - begins);
                let mean =
                    after.iter().map(|s| s.units_per_s).sum::<f64>() / after.len().max(1) as f64;
                for (metric, modelled) in [
                    ("s to 95 % of the best static placement", recovered),
                    ("mean regret after", 1.0 - mean / best),
                    ("regret at the end", 1.0 - outcome.last.units_per_s / best),
                ] {
                    report.cells.push(Cell::of("7", policy, event, metric, modelled));
                }
                report.lines.push(Line {
                    chart: event.to_owned(),
                    name: policy.to_owned(),
                    points: outcome
                        .samples
                        .iter()
                        .map(|sample| [sample.second - begins, sample.units_per_s, sample.share])
                        .collect(),
                    best,
                });
            }
        }
    }

    /// What the evaluation says of its own set-up, as recalled, and what the artifact's sample log prints: none of it
    /// is an input, none is scored.
    pub(super) fn facts(&mut self, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
        let machine = &self.options.machine;
        let run = |groups: &[closed::Group]| {
            closed::run(machine, groups, 4_000.0, 124_800.0, self.options.seed)
        };
        let peak = machine.get("tier.default.channels") * 64.0
            / (machine.get("dram.burst") * machine.get("dram.clock_ns"));
        for (number, &steps) in LOADS[1..].iter().enumerate() {
            tick(&format!("antagonist {steps}x"), number as f64 / 4.0);
            let antagonist = workload::antagonist(machine, steps);
            let alone = run(&[antagonist]).lines_per_ns[0] * 64.0 / peak;
            report.cells.push(Cell::of("setup", ALONE[1], &at(steps), ALONE[0], alone));
            let base = setup(&self.options, machine, workload::gups(64.0), "tpp", steps);
            let gups = base.workload.group(machine, base.bounds().1, base.walks());
            let latency = run(&[gups, antagonist]).loads.default.latency_ns;
            report.cells.push(Cell::of("setup", LOADED[1], &at(steps), LOADED[0], latency));
        }
        tick("sample log", 0.75);
        let huge = Walks {
            part: 1.0,
            miss: 0.0,
            hit_ns: workload::gups(64.0).walk_hit_ns(machine, HUGE as f64),
            default_share: 1.0,
        };
        let log = run(&[workload::gups(64.0).group(machine, 0.934, huge)]);
        let figures =
            [log.ops_per_ns[0] * 1e9, log.loads.default.latency_ns, log.loads.alternate.latency_ns];
        for (row, modelled) in SAMPLE_LOG.into_iter().zip(figures) {
            report.cells.push(Cell::of("setup", row, &at(0.0), LOG, modelled));
        }
    }
}

//! `pagemill simulate`: a workload on the simulated two-tier machine, any set of policies side by side.

mod arguments;
mod huge;
mod setup;
mod sizes;
mod sweep;

use anyhow::{Result, bail};
use pagemill_launch::progress::Progress;
use pagemill_policy::tier::compose;
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::run::Report;
use pagemill_sim::workload;
use serde::Serialize;

use pagemill_experiments::colloid;
use pagemill_experiments::reproduce::experiment::meant;
use pagemill_experiments::reproduce::keep::Keep;
use pagemill_launch::exit::Exit;

pub use arguments::Arguments;

/// What is run where nothing is asked for.
const POLICIES: &str = "none,tpp,tpp+colloid";

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    antagonist: f64,
    seed: u64,
    modelled: bool,
    policy: String,
    units_per_s: f64,
    unit: &'static str,
    share: f64,
    default_ns: f64,
    alternate_ns: f64,
    promoted_per_s: f64,
    demoted_per_s: f64,
    best_share: f64,
    best_units_per_s: f64,
    regret: f64,
    simulated_bytes_per_page: f64,
    /// Part of the memory whose huge pages were split.
    split: f64,
    timeline: Vec<[f64; 5]>,
}

impl Arguments {
    /// Runs the verb.
    pub fn run(self) -> Result<Exit> {
        if self.print_machine {
            pagemill_launch::stdio::is_verbatim();
            print!("{ICELAKE}");
            return Ok(Exit::Ok);
        }
        if self.huge.asked() {
            return self.huge.run(&self.workload, self.seed, self.printed.json);
        }
        let machine = self.machine()?;
        if !self.figure.is_empty() || self.sensitivity {
            return self.figures(machine);
        }
        if self.quick || self.keep.is_some() || self.points.is_some() {
            bail!(
                "--quick, --keep and --points go with --figure or --sensitivity: there is one run to make"
            );
        }
        if let Some(unknown) = self.policy.iter().find(|name| compose::find(name).is_none()) {
            let names = compose::names();
            let meant = meant(unknown, names.iter().map(AsRef::as_ref));
            bail!("no policy '{unknown}'{meant}; valid: {}", names.join(", "));
        }
        if let Some(sizes) = self.sweep {
            return self.sweep(sizes, &machine);
        }
        let machine = self.sized(machine)?;
        let load = self.load(&machine)?;
        self.fits(&machine, &load)?;
        self.in_range(&load)?;
        let mut rows = Vec::new();
        let named = self.policy.iter().map(String::as_str);
        let policies: Vec<&str> =
            if self.policy.is_empty() { POLICIES.split(',').collect() } else { named.collect() };
        for policy in policies {
            let report = self.simulate(&self.setup(&machine, &load, policy)?);
            rows.push(self.row(policy, &load, &report));
        }
        if self.printed.json {
            crate::answer::print("simulate", &rows)?;
        } else {
            self.print(&load, &rows);
        }
        Ok(Exit::Ok)
    }

    fn figures(&self, machine: Machine) -> Result<Exit> {
        let mut options = colloid::Options::new(self.quick, self.seed)?;
        options.only(Some(&self.figure))?;
        options = colloid::Options {
            machine,
            sensitivity: self.sensitivity,
            points: self.points,
            ..options
        };
        let mut progress = Progress::new("simulate");
        let scratch = tempfile::tempdir()?;
        let directory = self.keep.as_deref().unwrap_or(scratch.path());
        let keep = options.keep(Keep::new(directory)?);
        let report =
            colloid::run(&options, (None, &keep), &mut |step| progress.say(step), &mut |_| Ok(()))?;
        drop(progress);
        if self.printed.json {
            crate::answer::print("simulate-figures", report.json()?)?;
        } else {
            print!("{}", report.text());
        }
        Ok(Exit::Ok)
    }

    fn row(&self, policy: &str, load: &workload::Workload, report: &Report) -> Row {
        let last = report.last;
        Row {
            workload: load.name,
            antagonist: self.antagonist,
            seed: self.seed,
            modelled: true,
            policy: policy.to_owned(),
            units_per_s: last.units_per_s,
            unit: load.unit,
            share: last.share,
            default_ns: last.default_ns,
            alternate_ns: last.alternate_ns,
            promoted_per_s: last.promoted,
            demoted_per_s: last.demoted,
            best_share: report.best.0,
            best_units_per_s: report.best.1,
            regret: 1.0 - last.units_per_s / report.best.1.max(f64::MIN_POSITIVE),
            simulated_bytes_per_page: report.bytes_per_page,
            split: report.split,
            timeline: report
                .samples
                .iter()
                .map(|s| [s.second, s.units_per_s, s.share, s.default_ns, s.alternate_ns])
                .collect(),
        }
    }

    fn print(&self, load: &workload::Workload, rows: &[Row]) {
        println!(
            "{} on {:.1} GiB, antagonist {}x, modelled (one run, seed {})",
            load.name,
            load.bytes() / workload::GIB,
            self.antagonist,
            self.seed
        );
        println!(
            "{:<18} {:>12} {:>7} {:>9} {:>9} {:>11} {:>11} {:>8}",
            "policy",
            load.unit,
            "share",
            "default",
            "alternate",
            "promoted/s",
            "demoted/s",
            "regret"
        );
        for row in rows {
            println!(
                "{:<18} {:>11.2}M {:>7.3} {:>6.0} ns {:>6.0} ns {:>11.0} {:>11.0} {:>6.1} %",
                row.policy,
                row.units_per_s / 1e6,
                row.share,
                row.default_ns,
                row.alternate_ns,
                row.promoted_per_s,
                row.demoted_per_s,
                // A little below nothing is nothing.
                (row.regret * 1000.0).round() / 10.0 + 0.0
            );
        }
        for row in rows.iter().filter(|row| row.split > 0.0) {
            println!(
                "{} split the huge pages of {:.0} % of the memory",
                row.policy,
                row.split * 100.0
            );
        }
        println!(
            "share: reads on the default tier; regret: against the best static placement by brute force; means of \
             the end of the run"
        );
    }
}

//! `pagemill simulate`: a workload on the simulated two-tier machine, any set of policies side by side.

mod arguments;
mod huge;

use anyhow::{Result, bail};
use pagemill_experiments::colloid;
use pagemill_experiments::reproduce::keep::Keep;
use pagemill_experiments::simulate::machine::{fits, machine, program, sized};
use pagemill_experiments::simulate::placement::Conditions;
use pagemill_experiments::simulate::sweep::{Sizes, sweep};
use pagemill_launch::exit::Exit;
use pagemill_launch::meant::meant;
use pagemill_launch::progress::Progress;
use pagemill_policy::tier::compose;
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::workload::Workload;

use crate::answer::{self, Layout};
pub use arguments::Arguments;
use arguments::POLICIES;

/// What `simulate` is in JSON.
const SIMULATE_LAYOUT: Layout = Layout::new("simulate", 1, "rows");
/// What `simulate-sweep` is in JSON.
const SIMULATE_SWEEP_LAYOUT: Layout = Layout::new("simulate-sweep", 1, "points");
/// What `simulate-figures` is in JSON.
const SIMULATE_FIGURES_LAYOUT: Layout = Layout::new("simulate-figures", 1, "cells");

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
}

impl Arguments {
    /// Runs the verb.
    fn run(&self) -> Result<Exit> {
        if self.print_machine {
            pagemill_launch::stdio::is_verbatim();
            print!("{ICELAKE}");
            return Ok(Exit::Ok);
        }
        if self.huge.asked() {
            return self.huge.run(&self.workload, self.seed, self.printed.json);
        }
        let machine = machine(self.machine.as_deref(), self.unloaded)?;
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
            bail!("there is no policy {unknown:?}{meant}; valid: {}", names.join(", "));
        }
        if let Some(sizes) = self.sweep {
            return self.swept(sizes, &machine);
        }
        let machine = match &self.tiers {
            Some(tiers) => sized(machine, tiers)?,
            None => machine,
        };
        let load = self.load(&machine)?;
        let whose = match (&self.tiers, &self.machine) {
            (Some(tiers), _) => format!("--tiers {tiers}"),
            (None, Some(file)) => format!("{}: tier.*.capacity_gib", file.display()),
            (None, None) => "the machine (--tiers sets its sizes)".to_owned(),
        };
        fits(&machine, &load, &whose)?;
        let conditions = self.conditions();
        conditions.check(&load)?;
        let mut rows = Vec::new();
        let named = self.policy.iter().map(String::as_str);
        let policies: Vec<&str> =
            if self.policy.is_empty() { POLICIES.split(',').collect() } else { named.collect() };
        for policy in policies {
            let report = conditions.simulate(&conditions.setup(&machine, &load, policy)?);
            rows.push(conditions.row(policy, &load, &report));
        }
        let text = || conditions.text(&load, &rows);
        answer::tell(self.printed.json, &SIMULATE_LAYOUT, || &rows, text)?;
        Ok(Exit::Ok)
    }

    fn conditions(&self) -> Conditions {
        Conditions {
            antagonist: self.antagonist,
            antagonist_at: self.antagonist_at,
            move_at: self.move_at,
            seconds: self.seconds,
            scale: self.scale,
            noise: self.noise,
            seed: self.seed,
        }
    }

    fn load(&self, machine: &Machine) -> Result<Workload> {
        let mut load = program(machine, &self.workload, self.like.as_deref(), self.threads)?;
        // What the evaluation gave a workload holds on its machine only.
        let size = |machine: &Machine| machine.get("tier.default.capacity_gib");
        if self.tiers.is_some() || size(machine) != size(&Machine::parse(ICELAKE)?) {
            load.default_gib = None;
        }
        Ok(load)
    }

    /// Throughput by the size of the fast tier.
    fn swept(&self, sizes: Sizes, machine: &Machine) -> Result<Exit> {
        if self.tiers.is_some() {
            bail!(
                "--sweep sets the size of the fast tier, and the slow one holds the rest; without --tiers"
            );
        }
        let mut load = self.load(machine)?;
        let conditions = self.conditions();
        conditions.check(&load)?;
        load.default_gib = None;
        let curve = sweep(&conditions, machine, &load, &self.policy, sizes)?;
        answer::tell(self.printed.json, &SIMULATE_SWEEP_LAYOUT, || &curve, || curve.text())?;
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
            answer::print(&SIMULATE_FIGURES_LAYOUT, report.json()?)?;
        } else {
            print!("{}", report.text());
        }
        Ok(Exit::Ok)
    }
}

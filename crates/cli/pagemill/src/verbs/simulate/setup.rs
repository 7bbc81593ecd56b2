//! What is simulated: the machine, the program on it, and the run of a policy.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use pagemill_experiments::recorded;
use pagemill_experiments::reproduce::experiment::meant;
use pagemill_launch::input;
use pagemill_launch::progress::Progress;
use pagemill_model::Bytes;
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::run::{Report, Setup};
use pagemill_sim::surface::Effort;
use pagemill_sim::workload;

use super::arguments::Arguments;

/// Bytes, to be read.
pub(super) fn size(bytes: f64) -> String {
    Bytes(bytes as u64).plain()
}

impl Arguments {
    /// One policy's run.
    pub(super) fn setup(
        &self,
        machine: &Machine,
        load: &workload::Workload,
        policy: &str,
    ) -> Result<Setup> {
        let recorded = load.name == "recording";
        let setup = Setup {
            machine: machine.clone(),
            workload: load.clone(),
            policy: policy.to_owned(),
            steps: if self.antagonist_at.is_some() { 0.0 } else { self.antagonist },
            later_steps: self.antagonist_at.map(|at| (self.antagonist, at)),
            // The second half of a recording is where its hot set has moved to.
            moves_at: self
                .move_at
                .or((recorded || load.name == "moving").then_some(self.seconds / 2.0)),
            seconds: self.seconds,
            scale: 1.0,
            noise: self.noise / 100.0,
            seed: self.seed,
            effort: Effort { seed: self.seed, ..Effort::default() },
        };
        let pages = load.bytes() / setup.page_bytes();
        let coarsest = setup.coarsest();
        let scale = match self.scale {
            Some(scale) if scale > coarsest => bail!(
                "--scale {scale}: {policy} would have {:.0} pages of {}; valid: 1 to {coarsest:.0}",
                pages / scale,
                size(setup.page_bytes()),
            ),
            Some(scale) => scale,
            None if recorded => (pages / f64::from(1 << 20)).max(1.0),
            None if setup.page_bytes() > 65_536.0 => coarsest.min(8.0),
            None => coarsest.min(64.0),
        };
        Ok(Setup { scale, ..setup })
    }

    /// Runs it, with progress.
    pub(super) fn simulate(&self, setup: &Setup) -> Report {
        let policy = &setup.policy;
        let mut progress = Progress::new(policy);
        let prepared = setup.prepare(&mut |at, of| {
            progress.say(&format!("memory at {at} of {of} points"));
        });
        drop(progress);
        let mut progress = Progress::of(policy, self.seconds as u64);
        progress.say("of simulated seconds");
        setup.run(&prepared, &mut |second| progress.at(second as u64))
    }

    /// Refuses what would be passed over in silence.
    pub(super) fn in_range(&self, load: &workload::Workload) -> Result<()> {
        for (flag, value, least, most) in [
            ("--antagonist", Some(self.antagonist), 0.0, 100.0),
            ("--seconds", Some(self.seconds), 0.02, 1e6),
            ("--scale", self.scale, 1.0, 1e6),
            ("--noise", Some(self.noise), 0.0, 100.0),
            ("--move-at", self.move_at, 0.0, self.seconds),
            ("--antagonist-at", self.antagonist_at, 0.0, self.seconds),
        ] {
            if let Some(value) = value
                && !(least..=most).contains(&value)
            {
                bail!("{flag} {value} is out of range; valid: {least} to {most}");
            }
        }
        if self.antagonist_at.is_some() && self.antagonist == 0.0 {
            bail!("--antagonist-at: there is no antagonist; valid: with --antagonist STEPS");
        }
        if self.like.is_some() && load.name != "recording" {
            bail!("--as says what a recording does not; {} is none", load.name);
        }
        if self.move_at.is_some() && load.classes.iter().all(|class| class.later == class.weight) {
            bail!(
                "--move-at: {} has no hot set that moves; valid: gups, moving or a recording",
                load.name
            );
        }
        Ok(())
    }

    /// Whether the memory of both tiers is enough.
    pub(super) fn fits(&self, machine: &Machine, load: &workload::Workload) -> Result<()> {
        let room =
            machine.get("tier.default.capacity_gib") + machine.get("tier.alternate.capacity_gib");
        if load.bytes() <= room * workload::GIB {
            return Ok(());
        }
        let whose = match (&self.tiers, &self.machine) {
            (Some(tiers), _) => format!("--tiers {tiers}"),
            (None, Some(file)) => format!("{}: tier.*.capacity_gib", file.display()),
            (None, None) => "the machine (--tiers sets its sizes)".to_owned(),
        };
        bail!(
            "{whose}: {} of {} do not fit into {}",
            size(load.bytes()),
            load.name,
            size(room * workload::GIB)
        );
    }

    pub(super) fn machine(&self) -> Result<Machine> {
        let machine = match &self.machine {
            None => Machine::parse(ICELAKE).context("the built-in machine")?,
            Some(path) => {
                let text = input::text(path)?;
                Machine::parse(&text).with_context(|| format!("{}", path.display()))?
            }
        };
        Ok(match self.unloaded {
            Some(ns) if !(1.0..=10_000.0).contains(&ns) => {
                bail!("--unloaded {ns} is out of range; valid: 1 to 10000 ns")
            }
            Some(ns) => {
                let machine = machine.with("tier.alternate.unloaded_ns", ns);
                if let Err(error) = machine.check() {
                    bail!("--unloaded {ns}: {}; valid: {}", error.what, error.valid);
                }
                machine
            }
            None => machine,
        })
    }

    /// A workload by name, or a recording.
    pub(super) fn load(&self, machine: &Machine) -> Result<workload::Workload> {
        let mut load = self.program(machine)?;
        load.cores = match self.threads {
            Some(threads) => usize::from(threads),
            None => load.cores,
        };
        // What the evaluation gave a workload holds on its machine only.
        let size = |machine: &Machine| machine.get("tier.default.capacity_gib");
        if self.tiers.is_some() || size(machine) != size(&Machine::parse(ICELAKE)?) {
            load.default_gib = None;
        }
        Ok(load)
    }

    fn program(&self, machine: &Machine) -> Result<workload::Workload> {
        let named = |name: &str| {
            workload::named(name, machine).with_context(|| {
                let meant = meant(name, workload::NAMES.iter().copied());
                format!("no workload '{name}'{meant}; valid: {}", workload::NAMES.join(", "))
            })
        };
        let path = Path::new(&self.workload);
        if !path.is_dir() {
            let hint =
                if self.workload.contains('/') { " or the directory of a recording" } else { "" };
            return named(&self.workload).map_err(|error| anyhow::anyhow!("{error:#}{hint}"));
        }
        let like = named(self.like.as_deref().unwrap_or("zipf"))?;
        let (load, guessed) = recorded::program(path, &like)?;
        if guessed && self.threads.is_none() {
            eprintln!(
                "pagemill: {} does not say how many threads the program had: {}, as in {} (--threads N)",
                path.display(),
                load.cores,
                like.name
            );
        }
        Ok(load)
    }

    /// The machine with the sizes of `--tiers`.
    pub(super) fn sized(&self, machine: Machine) -> Result<Machine> {
        let Some(text) = &self.tiers else { return Ok(machine) };
        let valid = "valid: two tiers, the faster first, such as fast=2G,slow=8G";
        let parts: Vec<&str> = text.split(',').collect();
        let [first, second] = parts.as_slice() else {
            bail!("--tiers {text}: it has {} tiers; {valid}", parts.len());
        };
        // Which tier is the default one is in the name, where the name says it.
        let faster = |part: &str| match part.split('=').next() {
            Some("fast" | "default") => Some(true),
            Some("slow" | "alternate") => Some(false),
            _ => None,
        };
        let (fast, slow) = match (faster(first), faster(second)) {
            (Some(one), Some(other)) if one == other => {
                bail!("--tiers {text}: both are the same tier by their names; {valid}")
            }
            (Some(false), _) | (_, Some(true)) => (second, first),
            _ => (first, second),
        };
        eprintln!("pagemill: default tier (the faster one) {fast}, alternate tier {slow}");
        let mut machine = machine;
        for (key, part) in ["tier.default.capacity_gib", "tier.alternate.capacity_gib"]
            .into_iter()
            .zip([fast, slow])
        {
            let (name, size) = part
                .split_once('=')
                .with_context(|| format!("--tiers {part}: no size; {valid}"))?;
            let size: Bytes = size.parse().with_context(|| format!("--tiers {name}"))?;
            if !(1 << 20..=1 << 46).contains(&size.0) {
                bail!("--tiers {name}: {}; valid: 1M to 64T", size.plain());
            }
            machine = machine.with(key, size.0 as f64 / workload::GIB);
        }
        Ok(machine)
    }
}

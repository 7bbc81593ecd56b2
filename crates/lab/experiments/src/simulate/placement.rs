//! Placement policies side by side on the simulated machine: a run of each, and its row.

use anyhow::{Result, bail};
use pagemill_launch::progress::Progress;
use pagemill_model::Bytes;
use pagemill_sim::machine::Machine;
use pagemill_sim::run::{Report, Setup};
use pagemill_sim::surface::Sampling;
use pagemill_sim::workload::Workload;
use serde::Serialize;

/// Bytes, to be read.
pub(super) fn size(bytes: f64) -> String {
    Bytes(bytes as u64).plain()
}

/// What runs are made under, as the options of `simulate` name it.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Load on the default tier besides the program's, in steps of the machine's antagonist cores.
    pub antagonist: f64,
    /// The second at which that begins, if not at once.
    pub antagonist_at: Option<f64>,
    /// The second at which the hot set moves.
    pub move_at: Option<f64>,
    /// Length of a run.
    pub seconds: f64,
    /// One page in so many is simulated.
    pub scale: Option<f64>,
    /// Error of what policies are told of latencies and rates, percent.
    pub noise: f64,
    /// The same seed gives the same run.
    pub seed: u64,
}

impl Conditions {
    /// One policy's run of a program on a machine.
    ///
    /// # Errors
    /// More pages are to stand for one than leave enough of them.
    pub fn setup(&self, machine: &Machine, load: &Workload, policy: &str) -> Result<Setup> {
        let setup = Setup {
            machine: machine.clone(),
            workload: load.clone(),
            policy: policy.to_owned(),
            steps: if self.antagonist_at.is_some() { 0.0 } else { self.antagonist },
            later_steps: self.antagonist_at.map(|at| (self.antagonist, at)),
            moves_at: self.move_at.or(load.moves.then_some(self.seconds / 2.0)),
            seconds: self.seconds,
            scale: 1.0,
            noise: self.noise / 100.0,
            seed: self.seed,
            sampling: Sampling { seed: self.seed, ..Sampling::default() },
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
            None if load.recorded => (pages / f64::from(1 << 20)).max(1.0),
            None if setup.page_bytes() > 65_536.0 => coarsest.min(8.0),
            None => coarsest.min(64.0),
        };
        Ok(Setup { scale, ..setup })
    }

    /// Runs it, with progress.
    pub fn simulate(&self, setup: &Setup) -> Report {
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

    /// Refuses what would be passed over in silence, of a run of this program.
    ///
    /// # Errors
    /// A number is out of range, or says nothing of such a program.
    pub fn check(&self, load: &Workload) -> Result<()> {
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
        if self.move_at.is_some() && load.classes.iter().all(|class| class.later == class.weight) {
            bail!(
                "--move-at: {} has no hot set that moves; valid: gups, moving or a recording",
                load.name
            );
        }
        Ok(())
    }

    /// What came of a policy's run.
    pub fn row(&self, policy: &str, load: &Workload, report: &Report) -> PolicyRow {
        let last = report.last;
        PolicyRow {
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

    /// The rows as a table.
    pub fn text(&self, load: &Workload, rows: &[PolicyRow]) -> String {
        let mut text = String::new();
        text.push_str(&format!(
            "{} on {}, antagonist {}x, modelled (one run, seed {})\n",
            load.name,
            size(load.bytes()),
            self.antagonist,
            self.seed
        ));
        text.push_str(&format!(
            "{:<18} {:>12} {:>7} {:>9} {:>9} {:>11} {:>11} {:>8}\n",
            "policy",
            load.unit,
            "share",
            "default",
            "alternate",
            "promoted/s",
            "demoted/s",
            "regret"
        ));
        for row in rows {
            text.push_str(&format!(
                "{:<18} {:>11.2}M {:>7.3} {:>6.0} ns {:>6.0} ns {:>11.0} {:>11.0} {:>6.1} %\n",
                row.policy,
                row.units_per_s / 1e6,
                row.share,
                row.default_ns,
                row.alternate_ns,
                row.promoted_per_s,
                row.demoted_per_s,
                // A little below nothing is nothing.
                (row.regret * 1000.0).round() / 10.0 + 0.0
            ));
        }
        for row in rows.iter().filter(|row| row.split > 0.0) {
            text.push_str(&format!(
                "{} split the huge pages of {:.0} % of the memory\n",
                row.policy,
                row.split * 100.0
            ));
        }
        text.push_str("share: reads on the default tier; regret: against the best static placement by brute force; \
             means of the end of the run\n");
        text
    }
}

/// What a policy makes of a program; the members of its JSON.
#[derive(Debug, Serialize)]
pub struct PolicyRow {
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

//! `simulate --huge`: huge page policies side by side on a simulated zone, TLB and helper. All of it is modelled.

use std::path::PathBuf;

use crate::answer::{self, Layout};
use crate::policies;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pagemill_experiments::simulate::huge::{self, HugeConditions, HugeProgram, TimeLimit};
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_model::Nanos;
use pagemill_policy::huge::find;
use serde_json::json;

/// What it answers.
const LAYOUT: Layout = Layout::new("simulate-huge", 1, "policies");

/// Flags of the huge page simulation.
#[derive(Debug, Args)]
pub struct Options {
    #[arg(long, value_delimiter = ',', value_name = "POLICIES", help = format!(
        "Huge page policies instead of placement policies, separated by commas: {}",
        policies::huge()
    ))]
    huge: Vec<String>,
    /// With --huge: share of the pageblocks that begin with a page in use, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = crate::values::number)]
    fragmented: f64,
    /// With --huge: those pages cannot be moved.
    #[arg(long)]
    pinned: bool,
    /// With --huge: what the policies know beforehand. A synthetic workload is one heap, so rows are by section_off; a
    /// recording has the places of its program.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// With --huge: write the profile that a perfect profiler would have made of this workload, page walks by region.
    #[arg(long, value_name = "FILE")]
    save_profile: Option<PathBuf>,
    /// With --huge: memory of a synthetic workload, in regions of 2 MiB.
    #[arg(long, value_name = "REGIONS", default_value_t = 64)]
    regions: u64,
    /// With --huge and a recording: reads beyond the caches in a millisecond of the program's own time, which a
    /// recording of faults does not tell.
    #[arg(long, value_name = "READS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=8000))]
    reads: u64,
    /// With --huge: costs of a machine, as `pagemill plan --costs --json` prints them, instead of the model's.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// With --huge: what each attempt at compaction takes besides moving and scanning pages [default: 320us]. `record
    /// --with faults` of a program on fragmented memory tells what it takes here.
    #[arg(long, value_name = "TIME")]
    compaction: Option<Nanos>,
    /// With --huge: give up after this long; the answer says how much was done by then.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = crate::values::length)]
    time_limit: Nanos,
}

impl Options {
    /// Whether the huge page simulation is asked for.
    pub fn asked(&self) -> bool {
        !self.huge.is_empty()
    }

    /// Runs it.
    pub fn run(&self, workload: &str, seed: u64, json: bool) -> Result<Exit> {
        for (flag, value, (least, most)) in [
            ("--fragmented", self.fragmented, (0.0, 1.0)),
            ("--regions", self.regions as f64, (1.0, 4096.0)),
        ] {
            ensure!(
                (least..=most).contains(&value),
                "{flag} {value} is out of range; valid: {least} to {most}"
            );
        }
        if let Some(path) = &self.save_profile {
            files::check(path, true)?;
        }
        let program = HugeProgram::named(workload, self.regions, seed, self.reads)?;
        let policies = huge::policies(&self.huge)?;
        let prices = huge::prices(self.costs.as_deref(), self.compaction)?;
        let profile = self.profile.as_deref();
        let conditions = HugeConditions {
            fragmented: self.fragmented,
            pinned: self.pinned,
            profile: profile.map(pagemill_control::plan::read_profile).transpose()?,
            compaction: self.compaction,
            prices,
            seed,
        };
        let limit = TimeLimit::of(self.time_limit);
        if let Some(path) = &self.save_profile {
            let run = |name: &str| {
                let policy = find(name).context("the policies of Linux are gone")?;
                limit.run(&conditions.setup(&program, policy))
            };
            let text = huge::perfect(&run("linux-never")?, &run("linux-always")?).to_string();
            files::write(path, text, true)?;
            eprintln!("wrote {}", path.display());
        }
        let rows = policies.iter().map(|policy| limit.run(&conditions.setup(&program, *policy)));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let (load, notes) = (&program.workload, &program.notes);
        if json {
            let rows: Vec<_> =
                self.huge.iter().zip(&rows).map(|(name, row)| huge::json(name, row)).collect();
            answer::print(
                &LAYOUT,
                json!({ "workload": load.name, "modelled": true, "policies": rows, "notes": notes }),
            )?;
        } else {
            print!("{}", conditions.text(&program, &self.huge, &rows));
            notes.iter().for_each(|note| println!("{note}"));
        }
        Ok(Exit::Ok)
    }
}

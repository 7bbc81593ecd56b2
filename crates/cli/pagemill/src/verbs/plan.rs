//! `plan`: which memory is worth huge pages or eager paging, and how much; dry by nature.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_analysis::regions::RegionFold;
use pagemill_analysis::walks::WalkFold;
use pagemill_kernel::Linux;
use pagemill_model::recording::Redactor;
use pagemill_model::{Event, Fold as _, Source as _};
use pagemill_policy::huge::Unit;
use pagemill_policy::huge::profile::Profile;
use serde_json::json;

use crate::answer::{self, Layout};
use pagemill_control::decisions;
use pagemill_control::plan::perturb::Perturbation;
use pagemill_control::plan::{advise, read_profile};
use pagemill_launch::exit::Exit;
use pagemill_launch::files;

/// What `plan-costs` is in JSON.
const PLAN_COSTS_LAYOUT: Layout = Layout::new("plan-costs", 1, "");
/// What `plan-profile` is in JSON.
const PLAN_PROFILE_LAYOUT: Layout = Layout::new("plan-profile", 1, "");
/// What `plan` is in JSON.
const PLAN_LAYOUT: Layout = Layout::new("plan", 1, "places");
/// What `plan-replay` is in JSON.
const PLAN_REPLAY_LAYOUT: Layout = Layout::new("plan-replay", 1, "differ");

const EXAMPLES: &str = "\
Examples:
  pagemill record --with faults,hugepages --threshold 0ns -o rec -- CMD; pagemill plan rec --explain -o profile.csv
  pagemill advise --places -o profile.csv -- xz -9 -c big.tar    a profile by 50 runs of the command
  pagemill plan REC --replay                             do the recorded decisions come out again?
  pagemill plan --costs                                  what base and huge pages cost on this machine
  pagemill plan --perturb shift=64M,drop=0.2 profile.csv -o wrong.csv
  pagemill plan profile.csv --original -o cbmm.csv       a profile as the original reads it
";

/// What to plan from, and where to.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    /// Directory that `pagemill record` or `pagemill run --huge` wrote; or a profile, to write it again (--perturb,
    /// --original).
    #[arg(value_name = "REC", required_unless_present_any = ["costs", "pid"])]
    input: Option<PathBuf>,
    /// Measure what base and huge pages cost on this machine (under two seconds), show it, and keep it for an hour of
    /// this boot.
    #[arg(long, conflicts_with_all = ["replay", "perturb", "input"])]
    costs: bool,
    /// Cycles of page walks that huge pages would spare, as counted (perf stat -e
    /// dtlb_load_misses.walk_active,dtlb_store_misses.walk_active, without huge pages less with them). They go where
    /// the recording's samples walked.
    #[arg(long, value_name = "CYCLES", conflicts_with_all = ["costs", "replay", "perturb"])]
    walk_cycles: Option<u64>,
    #[command(flatten)]
    redact: crate::values::Redact,
    #[command(flatten)]
    printed: crate::values::Printed,
    /// Decide what was decided in the recording again, with the same policy, and show what differs; exit 1 if anything
    /// does.
    #[arg(long)]
    replay: bool,
    /// Make a profile imprecise on purpose: shift=BYTES, scale=FACTOR, noise=DEVIATION, drop=SHARE, shuffle, flatten,
    /// general=BENEFIT, huge-only; several in their order.
    #[arg(long, value_name = "WAYS", value_delimiter = ',', conflicts_with = "replay")]
    perturb: Vec<Perturbation>,
    /// Say why, a line a place.
    #[arg(long)]
    explain: bool,
    /// Write the profile as the original reads it: cycles, no reasons, no call sites.
    #[arg(long, requires = "output")]
    original: bool,
    /// Seed of what is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the profile here.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["costs", "replay"])]
    output: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(short, long)]
    force: bool,
    /// Not here: what a process did is recorded first. Known so that the answer can say so.
    #[arg(short, long, value_name = "PID", hide = true)]
    pid: Option<String>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    if let Some(pid) = &arguments.pid {
        bail!(
            "plan reads a recording (run: pagemill record --with faults,hugepages --threshold 0ns -p {pid} --for 30s \
             -o rec; \
             pagemill plan rec)"
        );
    }
    if arguments.costs {
        return costs(arguments.printed.json);
    }
    let Some(input) = &arguments.input else { bail!("nothing to plan from: name a recording") };
    if let Some(path) = &arguments.output {
        files::check(path, arguments.force)?;
    }
    if !arguments.perturb.is_empty() || (input.is_file() && !arguments.replay) {
        return arguments.rewrite(input);
    }
    if arguments.replay {
        return replay(input, arguments);
    }
    arguments.advise(input)
}

/// Measures what base and huge pages cost on this machine, and prints it.
fn costs(json: bool) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let known = pagemill_control::costs::calibrate(&linux, true)?;
    let text = || known.text(&pagemill_control::costs::machine_view(&linux, &known));
    answer::tell(json, &PLAN_COSTS_LAYOUT, || &known, text)?;
    Ok(Exit::Ok)
}

impl Arguments {
    /// Writes a profile again: made imprecise, in the original's form, or as it is.
    fn rewrite(&self, input: &Path) -> Result<Exit> {
        let mut profile = read_profile(input)?;
        for (way, seed) in self.perturb.iter().zip(self.seed..) {
            profile = way.apply(&profile, seed);
        }
        if self.original {
            profile = original(&pagemill_launch::context::machine(), &profile)?;
        }
        if self.printed.json {
            answer::print(&PLAN_PROFILE_LAYOUT, json!({ "profile": profile.to_string() }))?;
        }
        if self.output.is_some() || !self.printed.json {
            self.write(&profile.to_string())?;
        }
        Ok(Exit::Ok)
    }

    /// Says where huge pages or eager paging would pay.
    fn advise(&self, input: &Path) -> Result<Exit> {
        let mut reader = pagemill_launch::context::recording(input, self.redact.redact)?;
        let (mut fold, mut walks) = (RegionFold::default(), WalkFold::default());
        while let Some(event) = reader.next_event()? {
            fold.event(&event);
            walks.event(&event);
        }
        let (mut regions, walks) = (fold.view(), walks.view());
        if self.original && !regions.sites.is_empty() {
            // Rows by site would be left out of the profile, and the mappings with them.
            notice!("the original knows no call sites: mappings are told apart by their size");
            regions.sites.clear();
        }
        if self.walk_cycles.is_some() && walks.at.is_empty() {
            bail!(
                "{} has no samples of accesses that walked page tables, so nobody knows where the cycles were (perf \
                 mem record -- CMD; pagemill record --import perf.data)",
                input.display()
            );
        }
        if regions.areas.is_empty() {
            let mut missing = reader.meta().not_measured.iter();
            let why = missing.find(|missing| missing.what == "mappings");
            let why = why.map_or(String::new(), |missing| format!(": {}", missing.why));
            bail!(
                "{} says nothing of mappings{why} (pagemill record --with faults,hugepages --threshold 0ns -- CMD)",
                input.display()
            );
        }
        let linux = pagemill_launch::context::machine();
        let known = pagemill_control::costs::calibrate(&linux, false)?;
        let machine = pagemill_control::costs::machine_view(&linux, &known);
        let all = advise::advise(&regions, (&walks, self.walk_cycles), &machine);
        if self.output.is_some() {
            let profile = advise::profile(&all);
            let profile = if self.original { original(&linux, &profile)? } else { profile };
            self.write(&profile.to_string())?;
        }
        if self.printed.json {
            answer::print(&PLAN_LAYOUT, advise::json(&all, &regions, &walks))?;
            return Ok(Exit::Ok);
        }
        print!("{}", advise::text(&all, self.explain));
        if !advise::complete(&regions) && regions.counted > 0 {
            println!(
                "{} of {} faults have an address: densities are averages over mappings (record with --threshold 0ns \
                 for all)",
                regions.rows, regions.counted
            );
        }
        println!(
            "costs are of this machine, measured; touched pages are of the recording; {}",
            match self.walk_cycles {
                None if walks.told == 0 => "page walks are not in it (advise --places)".to_owned(),
                None => format!(
                    "{} of {} samples walked page tables, and --walk-cycles would tell what that costs",
                    walks.at.len(),
                    walks.told
                ),
                Some(cycles) => format!(
                    "{cycles} cycles of page walks where {} of {} samples walked",
                    walks.at.len(),
                    walks.told
                ),
            }
        );
        Ok(Exit::Ok)
    }

    /// Writes a file, or to standard output.
    fn write(&self, text: &str) -> Result<()> {
        let Some(path) = &self.output else {
            pagemill_launch::stdio::is_verbatim();
            print!("{text}");
            return Ok(());
        };
        files::write(path, text, self.force)?;
        eprintln!("wrote {}", path.display());
        Ok(())
    }
}

/// A profile in the form and unit of the original; what it cannot hold is said.
fn original(linux: &Linux, profile: &Profile) -> Result<Profile> {
    let mhz = match profile.unit {
        Unit::Nanos => linux.mhz()?.context(
            "the processor's frequency is not known here (/proc/cpuinfo has no cpu MHz), so nanoseconds cannot \
             become the cycles of the original",
        )?,
        Unit::Cycles | Unit::Rule => 0,
    };
    let made = profile.to_original(mhz);
    let left = profile.rows.len() - made.rows.len();
    if left > 0 {
        notice!(
            "{left} of {} rows name a call site, which the original does not know, and were left out",
            profile.rows.len()
        );
    }
    Ok(made)
}

/// Decides all that was decided in a recording again.
fn replay(path: &Path, arguments: &Arguments) -> Result<Exit> {
    // What was decided is compared as it was; only what is told of it is redacted.
    let mut reader = pagemill_launch::context::recording(path, false)?;
    let as_json = arguments.printed.json;
    let mut redactor = arguments.redact.redact.then(Redactor::default);
    let (mut decisions, mut different) = (0_u64, Vec::new());
    while let Some(event) = reader.next_event()? {
        let Event::Huge(row) = event else { continue };
        decisions += 1;
        let told = decisions::replay(&row);
        match told.map_err(|why| anyhow::anyhow!("decision {decisions}: {why}"))? {
            None => {}
            Some(difference) => {
                let difference = difference.to_string();
                let difference = match &mut redactor {
                    Some(redactor) => redactor.text(&difference),
                    None => difference,
                };
                let address = row.address.unwrap_or(0);
                if !as_json {
                    println!("decision {decisions} at {address:#x}: {difference}");
                }
                different.push(json!({
                    "decision": decisions,
                    "address": address,
                    "difference": difference,
                }));
            }
        }
    }
    if decisions == 0 {
        bail!("{} holds no huge page decisions (pagemill run --huge records them)", path.display());
    }
    let count = different.len();
    let json = || json!({ "decisions": decisions, "differ": different });
    let text = || format!("{decisions} decisions replayed, {count} differ\n");
    answer::tell(as_json, &PLAN_REPLAY_LAYOUT, json, text)?;
    Ok(if count == 0 { Exit::Ok } else { Exit::Finding })
}

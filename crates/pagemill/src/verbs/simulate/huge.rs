//! `simulate --huge`: huge page policies side by side on a simulated zone, TLB and helper. All of it is modelled.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_model::recording::Reader;
use pagemill_model::{Event, Nanos, Source as _};
use pagemill_policy::huge::profile::{Comparator, Constraint, Kind, Profile, Quantity, Row};
use pagemill_policy::huge::{Costs, Figure, Named, PAGES, REGION, Section, Unit};
use pagemill_sim::huge::{self, Outcome, Setup, WORKLOADS, Workload};
use pagemill_sim::tlb;
use serde_json::json;

use crate::exit::Exit;

/// Cycles in a microsecond of the simulated processor.
const MHZ: u64 = 2600;

/// Flags of the huge page simulation.
#[derive(Debug, Args)]
pub struct Options {
    /// Huge page policies instead of placement policies: linux-always, linux-madvise, linux-never, ingens, hawkeye, cbmm,
    /// cbmm+, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    huge: Vec<String>,
    /// With --huge: share of the pageblocks that begin with a page in use, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    fragmented: f64,
    /// With --huge: those pages cannot be moved.
    #[arg(long)]
    pinned: bool,
    /// With --huge: what the policies know beforehand; the workload is one heap, so rows are by section_off.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// With --huge: write the profile that a perfect profiler would have made of this workload, page walks by region.
    #[arg(long, value_name = "FILE")]
    save_profile: Option<PathBuf>,
    /// With --huge: memory of a synthetic workload, in regions of 2 MiB.
    #[arg(long, value_name = "REGIONS", default_value_t = 64)]
    regions: u64,
    /// With --huge and a recording: reads after each first touch, which a recording of faults does not have.
    #[arg(long, value_name = "READS", default_value_t = 16)]
    reads: u64,
}

impl Options {
    /// Whether the huge page simulation is asked for.
    pub fn asked(&self) -> bool {
        !self.huge.is_empty()
    }

    /// Runs it.
    pub fn run(&self, workload: &str, seed: u64, json: bool) -> Result<Exit> {
        if !(0.0..=1.0).contains(&self.fragmented) {
            bail!("--fragmented {} is out of range; valid: 0 to 1", self.fragmented);
        }
        if !(1..=4096).contains(&self.regions) {
            bail!("--regions {} is out of range; valid: 1 to 4096", self.regions);
        }
        let load = match Workload::named(workload, self.regions, seed) {
            Some(load) => load,
            None if Path::new(workload).is_dir() => self.recorded(Path::new(workload))?,
            None => bail!(
                "no workload '{workload}'; valid with --huge: {}, or a recording",
                WORKLOADS.join(", ")
            ),
        };
        let mut policies = Vec::new();
        for name in &self.huge {
            let Some(policy) = Named::find(name) else {
                bail!("no huge page policy '{name}'; valid: {}", Named::NAMES.join(", "));
            };
            policies.push(policy);
        }
        let profile = self.profile.as_deref().map(super::super::plan::read_profile).transpose()?;
        let setup = |policy: Named| Setup {
            workload: load.clone(),
            policy,
            profile: profile.clone(),
            // Twice the workload, and room to spare.
            zone: u32::try_from((load.pages * 2).max(64 * PAGES)).unwrap_or(u32::MAX >> 1),
            fragmented: (self.fragmented * 1000.0).round() as u64,
            pinned: self.pinned,
            costs: Costs { stall: Figure::Modelled(500_000), ..huge::WARM },
            tlb: tlb::Config::default(),
            mhz: MHZ,
            seed,
        };
        if let Some(path) = &self.save_profile {
            let run = |name: &str| Named::find(name).map(|policy| setup(policy).run());
            let (Some(never), Some(always)) = (run("linux-never"), run("linux-always")) else {
                bail!("the policies of Linux are gone");
            };
            let text = perfect(&never, &always).to_string();
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
            eprintln!("wrote {}", path.display());
        }
        let rows: Vec<Outcome> = policies.iter().map(|policy| setup(*policy).run()).collect();
        if json {
            let rows: Vec<_> =
                self.huge.iter().zip(&rows).map(|(name, row)| value(name, row)).collect();
            println!("{:#}", json!({ "workload": load.name, "modelled": true, "policies": rows }));
        } else {
            print!("{}", self.text(&load, &rows, seed));
        }
        Ok(Exit::Ok)
    }

    fn text(&self, load: &Workload, rows: &[Outcome], seed: u64) -> String {
        let mut text = format!(
            "{} on {} regions of 2 MiB, fragmented {}{}, modelled (one run, seed {seed})\n{:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>9} {:>7}\n",
            load.name,
            load.pages / PAGES,
            self.fragmented,
            if self.pinned { " and pinned" } else { "" },
            "policy",
            "time",
            "faults",
            "walks",
            "p99",
            "p99.9",
            "longest",
            "huge",
            "bloat",
            "helper",
            "stalls"
        );
        for (name, row) in self.huge.iter().zip(rows) {
            let [_, p99, p999, longest] = row.percentiles.map(|ns| Nanos(ns).to_string());
            let huge = row.huge as f64 * 100.0 / row.regions.max(1) as f64;
            let bloat = row.bloat as f64 * 100.0 / row.resident.max(1) as f64;
            let [time, faults, walks, helper] =
                [row.time, row.faults, row.walks, row.helper].map(|ns| Nanos(ns).to_string());
            text += &format!(
                "{name:<14} {time:>9} {faults:>9} {walks:>9} {p99:>9} {p999:>9} {longest:>9} {huge:>4.0} % {bloat:>5.1} % {helper:>9} {:>7}\n",
                row.stalls
            );
        }
        text + "time: of the program; huge: regions on huge pages at the end; bloat: resident and never touched; stalls: faults that compacted\n"
    }

    /// First touches in the order of the recording's faults, of the process with most of them.
    fn recorded(&self, path: &Path) -> Result<Workload> {
        let mut reader = Reader::open(path)?;
        let mut by_process: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        while let Some(event) = reader.next_event()? {
            if let Event::Fault(fault) = event
                && let Some(address) = fault.address
            {
                by_process.entry(fault.pid.unwrap_or(0)).or_default().push(address / 4096);
            }
        }
        let Some(pages) = by_process.into_values().max_by_key(Vec::len) else {
            bail!(
                "{} holds no faults with an address (pagemill record --with faults --threshold 0ns)",
                path.display()
            );
        };
        // Regions that were used, side by side: what lies between them is not memory.
        let mut places: BTreeMap<u64, u64> = pages.iter().map(|page| (page / PAGES, 0)).collect();
        places.values_mut().zip(0..).for_each(|(place, at)| *place = at);
        let mut seen = std::collections::BTreeSet::new();
        let touches: Vec<u64> = pages
            .iter()
            .map(|page| places[&(page / PAGES)] * PAGES + page % PAGES)
            .filter(|page| seen.insert(*page))
            .collect();
        Ok(Workload {
            name: path.display().to_string(),
            pages: places.len() as u64 * PAGES,
            touches,
            reads_per_touch: self.reads,
            reads_after: 0,
            hot: 0,
        })
    }
}

/// The time in walks that huge pages spared each region, in cycles as the published profiles count them.
fn perfect(never: &Outcome, always: &Outcome) -> Profile {
    let row = |(at, (base, huge)): (u64, (&u64, &u64))| {
        let bound = |comparator, value| Constraint::Number(Quantity::SectionOff, comparator, value);
        Row {
            kind: Kind::Huge,
            section: Section::Heap,
            benefit: base.saturating_sub(*huge).saturating_mul(MHZ) / 1_000_000,
            constraints: vec![
                bound(Comparator::Greater, at * REGION),
                bound(Comparator::Less, (at + 1) * REGION),
            ],
            why: None,
        }
    };
    let rows = (0..).zip(never.walk_ps.iter().zip(&always.walk_ps)).map(row);
    Profile { unit: Unit::Cycles, rows: rows.collect() }
}

fn value(name: &str, row: &Outcome) -> serde_json::Value {
    json!({
        "policy": name,
        "time_ns": row.time,
        "faults_ns": row.faults,
        "walks_ns": row.walks,
        "fault_count": row.fault_count,
        "fault_p50_ns": row.percentiles[0],
        "fault_p99_ns": row.percentiles[1],
        "fault_p999_ns": row.percentiles[2],
        "fault_longest_ns": row.percentiles[3],
        "helper_ns": row.helper,
        "huge_regions": row.huge,
        "regions": row.regions,
        "bloat_pages": row.bloat,
        "resident_pages": row.resident,
        "stalls": row.stalls,
    })
}

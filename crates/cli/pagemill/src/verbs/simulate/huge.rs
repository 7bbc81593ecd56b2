//! `simulate --huge`: huge page policies side by side on a simulated zone, TLB and helper. All of it is modelled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pagemill_analysis::regions::{Area, Place, RegionFold, Regions};
use pagemill_kernel::Linux;
use pagemill_model::page::{BASE, HUGE, PER_HUGE};
use pagemill_model::sums::sum;
use pagemill_model::{Event, Fold as _, Nanos, Source as _, whole};
use pagemill_policy::huge::profile::{
    Comparator, Constraint, Kind, Mapping, Profile, Quantity, Row,
};
use pagemill_policy::huge::{Costs, Figure, Policy, Section, Unit, find, names};
use pagemill_sim::huge::{self, Outcome, RegionMapping, Setup, WORKLOADS, Workload};
use pagemill_sim::tlb;
use serde_json::json;

use pagemill_control::costs::Calibration;
use pagemill_control::plan::advise::complete;
use pagemill_experiments::reproduce::experiment::meant;
use pagemill_launch::exit::Exit;
use pagemill_launch::progress::{Progress, minutes};

/// Cycles in a microsecond of the simulated processor.
const MHZ: u64 = 2600;
/// Protection, flags and descriptor of private anonymous memory.
const ANONYMOUS: (u64, u64, u64) = (3, 0x22, u64::MAX);

/// Flags of the huge page simulation.
#[derive(Debug, Args)]
pub struct Options {
    /// Huge page policies instead of placement policies: linux-always, linux-madvise, linux-64k, linux-never, ingens,
    /// hawkeye, cbmm, cbmm+, auto, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    huge: Vec<String>,
    /// With --huge: share of the pageblocks that begin with a page in use, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
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

/// How long all runs together may take.
struct Clock {
    began: Instant,
    limit: Duration,
}

impl Clock {
    fn of(limit: Nanos) -> Self {
        Self { began: Instant::now(), limit: limit.into() }
    }

    /// Runs one, and says how far it is.
    fn run(&self, setup: &Setup) -> Result<Outcome> {
        let (policy, began) = (setup.policy.name(), Instant::now());
        let mut line = Progress::new(policy);
        let (mut part, mut left) = (0.0, Duration::ZERO);
        let outcome = setup.run_while(&mut |done, all| {
            part = (done as f64 / all.max(1) as f64).clamp(1e-6, 1.0);
            left = began.elapsed().mul_f64((1.0 - part) / part);
            line.say(&format!("{:.0} % done, {} left", part * 100.0, minutes(left)));
            self.began.elapsed() < self.limit
        });
        drop(line);
        outcome.with_context(|| {
            format!(
                "{} cannot be simulated within --time-limit {}: {policy} was {:.0} % done then, and its rest would \
                 take \
                 {} more",
                setup.workload.name,
                minutes(self.limit),
                (part * 100.0).floor(),
                minutes(left)
            )
        })
    }
}

/// What a recording says of its length and memory is not taken on trust: each is worked through step by step.
fn bounded(load: &Workload) -> Result<()> {
    // Of the machine's memory a quarter is enough for the tables of pages.
    const BYTES_A_PAGE: u64 = 64;
    const DAYS: u64 = 30;
    const MOST_TIME: Nanos = Nanos(DAYS * 24 * 3_600_000_000_000);
    let memory = Linux::live().load().map_or(1 << 30, |load| load.memory);
    let most = (memory / 4 / BYTES_A_PAGE).min(1 << 26);
    ensure!(load.pages <= most, "it has {} pages; valid on this machine: up to {most}", load.pages);
    let time = Nanos(sum(load.own.iter().copied()));
    ensure!(
        time <= MOST_TIME,
        "it says that its program took {} by itself; valid: up to {DAYS} days",
        time.plain()
    );
    Ok(())
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
        let (load, notes) = match Workload::named(workload, self.regions, seed) {
            Some(load) => (load, Vec::new()),
            None if Path::new(workload).is_dir() => self.recorded(Path::new(workload))?,
            None => bail!(
                "no workload '{workload}'{}; valid with --huge: {}, or a recording",
                meant(workload, WORKLOADS.iter().copied()),
                WORKLOADS.join(", ")
            ),
        };
        bounded(&load).with_context(|| format!("{workload} cannot be simulated"))?;
        let mut policies = Vec::new();
        for name in &self.huge {
            let Some(policy) = find(name) else {
                bail!(
                    "no huge page policy '{name}'{}; valid: {}",
                    meant(name, names()),
                    names().collect::<Vec<_>>().join(", ")
                );
            };
            policies.push(policy);
        }
        let (costs, tlb) = self.prices()?;
        let profile =
            self.profile.as_deref().map(pagemill_control::plan::read_profile).transpose()?;
        let setup = |policy: &'static dyn Policy| Setup {
            workload: load.clone(),
            policy,
            profile: profile.clone(),
            // Twice the workload, and room to spare.
            zone: u32::try_from((load.pages * 2).max(64 * PER_HUGE)).unwrap_or(u32::MAX >> 1),
            fragmented: (self.fragmented * 1000.0).round() as u64,
            pinned: self.pinned,
            costs,
            attempt: self.attempt(),
            tlb,
            mhz: MHZ,
            seed,
        };
        let clock = Clock::of(self.time_limit);
        if let Some(path) = &self.save_profile {
            let run = |name: &str| {
                clock.run(&setup(find(name).context("the policies of Linux are gone")?))
            };
            let text = perfect(&run("linux-never")?, &run("linux-always")?).to_string();
            pagemill_launch::files::write(path, text, true)?;
            eprintln!("wrote {}", path.display());
        }
        let rows = policies.iter().map(|policy| clock.run(&setup(*policy)));
        let rows = rows.collect::<Result<Vec<Outcome>>>()?;
        if json {
            let rows: Vec<_> =
                self.huge.iter().zip(&rows).map(|(name, row)| value(name, row)).collect();
            crate::answer::print(
                "simulate-huge",
                json!({ "workload": load.name, "modelled": true, "policies": rows, "notes": notes }),
            )?;
        } else {
            print!("{}", self.text(&load, &rows, seed));
            notes.iter().for_each(|note| println!("{note}"));
        }
        Ok(Exit::Ok)
    }

    fn text(&self, load: &Workload, rows: &[Outcome], seed: u64) -> String {
        let mut text = format!(
            "{} on {} regions of 2 MiB, fragmented {}{}, modelled (one run, seed {seed})\n{:<14} {:>9} {:>9} {:>9} \
             {:>9} {:>9} {:>9} {:>6} {:>7} {:>9} {:>7}\n",
            load.name,
            load.pages / PER_HUGE,
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
                "{name:<14} {time:>9} {faults:>9} {walks:>9} {p99:>9} {p999:>9} {longest:>9} {huge:>4.0} % \
                 {bloat:>5.1} % {helper:>9} {:>7}\n",
                row.stalls
            );
        }
        text + "time: of the program; huge: regions on huge pages at the end; bloat: resident and never touched; \
                stalls: faults that compacted\n"
    }

    /// First touches in the order of the recording's faults, and the program's own time between them, of the process
    /// with most of them.
    fn recorded(&self, path: &Path) -> Result<(Workload, Vec<String>)> {
        let Recorded { pid, mut faults, end, regions } = Recorded::read(path)?;
        let areas: Vec<&Area> =
            regions.areas.iter().filter(|(of, _)| *of == pid).map(|(_, area)| area).collect();
        let at = |address: u64| -> Option<&Area> {
            let before = areas.partition_point(|area| area.start <= address).checked_sub(1)?;
            Some(areas[before]).filter(|area| address < area.end)
        };
        let mut notes = Vec::new();
        let all = faults.len();
        if areas.is_empty() {
            notes.push("the recording has no mappings, so all memory is taken for anonymous (record --with \
                        faults,hugepages)".to_owned());
        } else {
            faults.retain(|fault| at(fault.page * BASE).is_some());
            notes.push(format!(
                "{} of {all} faults are not of anonymous memory: part of the program's own time",
                all - faults.len()
            ));
        }
        let mut seen = BTreeSet::new();
        faults.retain(|fault| seen.insert(fault.page));
        if faults.is_empty() {
            bail!("{} holds no faults of anonymous memory", path.display());
        }
        if !complete(&regions) {
            notes.push(format!(
                "{} of {} faults have an address: touches are missing (record with --threshold 0ns)",
                regions.rows, regions.counted
            ));
        }
        // Regions that were used, side by side: what lies between them is not memory.
        let mut places: BTreeMap<u64, u64> =
            faults.iter().map(|fault| (fault.page / PER_HUGE, 0)).collect();
        places.values_mut().zip(0..).for_each(|(place, at)| *place = at);
        let home = |region: u64| home(&regions, pid, at(region * HUGE), region * HUGE);
        let begins = faults.iter().skip(1).map(|fault| fault.began).chain([end]);
        let own = faults.iter().zip(begins).map(|(fault, next)| next.saturating_sub(fault.ended));
        let touches = faults
            .iter()
            .map(|fault| places[&(fault.page / PER_HUGE)] * PER_HUGE + fault.page % PER_HUGE);
        let workload = Workload {
            name: path.display().to_string(),
            pages: places.len() as u64 * PER_HUGE,
            touches: touches.collect(),
            own: own.collect(),
            reads_per_ms: self.reads,
            homes: if areas.is_empty() {
                Vec::new()
            } else {
                places.keys().copied().map(home).collect()
            },
            ..Workload::default()
        };
        Ok((workload, notes))
    }

    /// What an attempt at compaction takes besides moving and scanning pages, ns.
    fn attempt(&self) -> u64 {
        self.compaction.map_or(huge::ATTEMPT_NS, |time| time.0)
    }

    /// What the mechanisms and walks cost: as measured on the machine of a file, or as the model has it.
    fn prices(&self) -> Result<(Costs, tlb::Config)> {
        let (mut costs, mut tlb) = (
            Costs { stall: Figure::Modelled(self.attempt() + huge::MOVING_NS), ..huge::WARM },
            tlb::Config::default(),
        );
        let Some(path) = &self.costs else { return Ok((costs, tlb)) };
        let text = whole::read(path, whole::TEXT)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let known: Calibration = serde_json::from_slice(&text).with_context(|| {
            format!("{} is not what `pagemill plan --costs --json` prints", path.display())
        })?;
        let there = known.costs();
        // A tenth of a second: nothing costs as much, and sums of it stay numbers.
        const DEAREST: u64 = 100_000_000;
        let all =
            [there.base, there.huge, there.medium, there.collapse, there.deliver, there.fetch];
        let values = all.into_iter().chain([there.walk]).filter_map(|figure| figure.value());
        ensure!(
            values.max().is_none_or(|most| most <= DEAREST),
            "{} has a cost of more than {DEAREST} ns, which nothing costs",
            path.display()
        );
        if there.base.value().is_none() || there.huge.value().is_none() {
            bail!(
                "{} has no costs of base and huge pages (pagemill plan --costs --json > FILE, where huge pages can \
                 be had)",
                path.display()
            );
        }
        if let Some(walk) = there.walk.value() {
            tlb.walk_base_ps = tlb.walk_huge_ps + walk * 1000;
        }
        let or =
            |figure: Figure, other: Figure| if figure.value().is_some() { figure } else { other };
        costs = Costs {
            base: there.base,
            huge: there.huge,
            // What the file does not have stays as much above a base page as in the model.
            medium: or(there.medium, scaled(costs.medium, there.base, costs.base)),
            collapse: or(there.collapse, costs.collapse),
            deliver: or(there.deliver, costs.deliver),
            fetch: or(there.fetch, costs.fetch),
            walk: there.walk,
            ..costs
        };
        Ok((costs, tlb))
    }
}

/// `figure` times `there` over `here`.
fn scaled(figure: Figure, there: Figure, here: Figure) -> Figure {
    let (Some(value), Some(there), Some(here)) = (figure.value(), there.value(), here.value())
    else {
        return Figure::Absent;
    };
    Figure::Modelled(value * there / here.max(1))
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
                bound(Comparator::Greater, at * HUGE),
                bound(Comparator::Less, (at + 1) * HUGE),
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

/// A fault: number of its page; when it began and ended, ns.
struct Touch {
    page: u64,
    began: u64,
    ended: u64,
}

/// What a recording holds of the process with most faults.
struct Recorded {
    pid: u64,
    /// In the order of their ends.
    faults: Vec<Touch>,
    /// When the last fault that was told of ended, ns.
    end: u64,
    regions: Regions,
}

impl Recorded {
    fn read(path: &Path) -> Result<Self> {
        let mut reader = pagemill_launch::context::recording(path, false)?;
        let mut fold = RegionFold::default();
        let mut by_process: BTreeMap<u64, Vec<Touch>> = BTreeMap::new();
        let mut end = 0;
        while let Some(event) = reader.next_event()? {
            fold.event(&event);
            match event {
                Event::Fault(fault) => {
                    let Some(address) = fault.address else { continue };
                    let (began, ended) =
                        (fault.time.0.saturating_sub(fault.latency.0), fault.time.0);
                    let touch = Touch { page: address / BASE, began, ended };
                    by_process.entry(fault.pid.unwrap_or(0)).or_default().push(touch);
                    end = end.max(ended);
                }
                Event::FaultCounts(counts) => end = end.max(counts.time.0),
                _ => {}
            }
        }
        let Some((pid, mut faults)) = by_process.into_iter().max_by_key(|(_, faults)| faults.len())
        else {
            bail!(
                "{} holds no faults with an address (pagemill record --with faults,hugepages --threshold 0ns)",
                path.display()
            );
        };
        faults.sort_by_key(|fault| fault.ended);
        Ok(Self { pid, faults, end, regions: fold.view() })
    }
}

/// Where a region lies in the program, if all of it is of one area: its mapping and its address.
fn home(regions: &Regions, pid: u64, area: Option<&Area>, address: u64) -> RegionMapping {
    let area = area.filter(|area| address + HUGE <= area.end)?;
    let (section, base) = match area.place {
        Place::Heap => (Section::Heap, area.start),
        Place::Mapped => (Section::Mmap, regions.tops.get(&pid).copied().unwrap_or(area.end)),
    };
    let site = regions.sites.get(&pid).and_then(|sites| sites.at(address));
    let (prot, flags, fd) = ANONYMOUS;
    let (start, end) = (area.start, area.end);
    let mapping = Mapping { start, end, section, base, prot, flags, fd, off: 0, site };
    Some((Arc::new(mapping), address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;
    use pagemill_kernel::huge_costs::HugeCosts;
    use std::fs;

    use pagemill_model::recording::{Meta, Writer};
    use pagemill_model::{Fault, FaultCounts, MappingSample};

    fn options(words: &[&str]) -> Options {
        let command = Options::augment_args(clap::Command::new("x").no_binary_name(true));
        Options::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    /// Faults of a program with one mapping of two whole regions and a page, in a library, and in the mapping again.
    fn recording(path: &Path) {
        const START: u64 = 0x7000_0020_0000;
        let fault = |time: u64, address: u64| {
            Event::Fault(Box::new(Fault {
                time: Nanos(time),
                latency: Nanos(1_000),
                pid: Some(7),
                address: Some(address),
                ..Fault::default()
            }))
        };
        let mut writer = Writer::create(path, Meta::default(), false, None).unwrap();
        let mapping = MappingSample {
            pid: Some(7),
            start: Some(START),
            end: Some(START + 2 * HUGE + 4096),
            permissions: Some("rw-p".into()),
            name: Some(String::new()),
            ..MappingSample::default()
        };
        writer.event(&Event::Mapping(Box::new(mapping))).unwrap();
        for (time, address) in [
            (10_000, START),
            (20_000, 0x1000),
            (50_000, START + HUGE),
            (60_000, START + 8),
            (70_000, START + 2 * HUGE),
        ] {
            writer.event(&fault(time, address)).unwrap();
        }
        let counts =
            FaultCounts { time: Nanos(100_000), counts: Some(vec![5]), ..FaultCounts::default() };
        writer.event(&Event::FaultCounts(Box::new(counts))).unwrap();
        writer.finish(Nanos(100_000)).unwrap();
    }

    /// All faults were of anonymous memory, the program's own time was none, and no mapping had an end.
    #[test]
    fn a_recording_has_the_programs_own_time_and_its_mappings() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("rec");
        recording(&path);
        let (load, notes) = options(&[]).recorded(&path).unwrap();
        assert_eq!(
            load.touches,
            [0, PER_HUGE, 2 * PER_HUGE],
            "first touches, without the library's"
        );
        // To the beginning of the next first touch; a fault of a file and a second touch are its own time.
        assert_eq!(load.own, [39_000, 19_000, 30_000]);
        let whole: Vec<bool> = load.homes.iter().map(Option::is_some).collect();
        assert_eq!(whole, [true, true, false]);
        assert!(notes[0].starts_with("1 of 5 faults are not of anonymous memory"), "{notes:?}");
    }

    #[test]
    fn costs_of_a_machine_take_the_place_of_the_models() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("costs.json");
        let given = ["--costs", path.to_str().unwrap(), "--compaction", "2ms"];
        let measured = HugeCosts {
            base_ns: Some(2_200),
            huge_ns: Some(400_000),
            read_base_ps: Some(300_000),
            read_huge_ps: Some(180_000),
            ..HugeCosts::default()
        };
        let known = Calibration { measured, ..Calibration::default() };
        fs::write(&path, serde_json::to_vec(&known).unwrap()).unwrap();
        let (costs, tlb) = options(&given).prices().unwrap();
        assert_eq!((costs.base, costs.huge), (Figure::Measured(2_200), Figure::Measured(400_000)));
        assert_eq!(costs.medium, Figure::Modelled(9_000), "twice the model's, as a base page is");
        assert_eq!(costs.stall, Figure::Modelled(2_140_000));
        assert_eq!(tlb.walk_base_ps, tlb.walk_huge_ps + 120_000);
        fs::write(&path, "{}").unwrap();
        let error = options(&given).prices().unwrap_err().to_string();
        assert!(error.contains("has no costs of base and huge pages"), "{error}");
        fs::write(&path, "huge,heap,1\n").unwrap();
        let error = options(&given).prices().unwrap_err().to_string();
        assert!(error.contains("is not what `pagemill plan --costs --json` prints"), "{error}");
    }
}

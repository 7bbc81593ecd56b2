//! A recording of page faults as a workload of the simulated zone, TLB and helper.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_analysis::regions::{Area, RegionFold, RegionKind, Regions};
use pagemill_control::plan::advise::complete;
use pagemill_kernel::Linux;
use pagemill_model::page::{BASE, HUGE, PER_HUGE};
use pagemill_model::sums::sum;
use pagemill_model::{Event, Fold as _, Nanos, Pid, Source as _};
use pagemill_policy::huge::Section;
use pagemill_policy::huge::profile::Mapping;
use pagemill_sim::huge::{RegionMapping, Workload, names};

use pagemill_launch::meant::meant;

/// Protection, flags and descriptor of private anonymous memory.
const ANONYMOUS: (u64, u64, u64) = (3, 0x22, u64::MAX);

/// A program that is simulated under huge page policies.
#[derive(Clone, Debug)]
pub struct HugeProgram {
    /// What it touches, and when.
    pub workload: Workload,
    /// What a recording leaves open, a sentence each.
    pub notes: Vec<String>,
}

impl HugeProgram {
    /// A synthetic workload on so many regions of 2 MiB, or the recording at a path, whose program reads so often
    /// beyond the caches in a millisecond of its own time.
    ///
    /// # Errors
    /// It is neither, holds no faults of anonymous memory, or is longer or larger than can be worked through.
    pub fn named(name: &str, regions: u64, seed: u64, reads_per_ms: u64) -> Result<Self> {
        let program = match Workload::named(name, regions, seed) {
            Some(workload) => Self { workload, notes: Vec::new() },
            None if Path::new(name).is_dir() => recorded(Path::new(name), reads_per_ms)?,
            None => bail!(
                "there is no workload {name:?}{}; valid with --huge: {}, or a recording",
                meant(name, names()),
                names().collect::<Vec<_>>().join(", ")
            ),
        };
        bounded(&program.workload).with_context(|| format!("{name} cannot be simulated"))?;
        Ok(program)
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

/// First touches in the order of the recording's faults, and the program's own time between them, of the process
/// with most of them.
fn recorded(path: &Path, reads_per_ms: u64) -> Result<HugeProgram> {
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
        notes.push(
            "the recording has no mappings, so all memory is taken for anonymous (record --with \
                    faults,hugepages)"
                .to_owned(),
        );
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
        reads_per_ms,
        homes: if areas.is_empty() {
            Vec::new()
        } else {
            places.keys().copied().map(home).collect()
        },
        ..Workload::default()
    };
    Ok(HugeProgram { workload, notes })
}

/// A fault: number of its page; when it began and ended, ns.
struct Touch {
    page: u64,
    began: u64,
    ended: u64,
}

/// What a recording holds of the process with most faults.
struct Recorded {
    pid: Pid,
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
        let mut by_process: BTreeMap<Pid, Vec<Touch>> = BTreeMap::new();
        let mut end = 0;
        while let Some(event) = reader.next_event()? {
            fold.event(&event);
            match event {
                Event::Fault(fault) => {
                    let Some(address) = fault.address else { continue };
                    let (began, ended) =
                        (fault.time.0.saturating_sub(fault.latency.0), fault.time.0);
                    let touch = Touch { page: address / BASE, began, ended };
                    by_process.entry(Pid::told(fault.pid.unwrap_or(0))).or_default().push(touch);
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
fn home(regions: &Regions, pid: Pid, area: Option<&Area>, address: u64) -> RegionMapping {
    let area = area.filter(|area| address + HUGE <= area.end)?;
    let (section, base) = match area.place {
        RegionKind::Heap => (Section::Heap, area.start),
        RegionKind::Mapped => (Section::Mmap, regions.tops.get(&pid).copied().unwrap_or(area.end)),
    };
    let site = regions.sites.get(&pid).and_then(|sites| sites.at(address));
    let (prot, flags, fd) = ANONYMOUS;
    let (start, end) = (area.start, area.end);
    let mapping = Mapping { start, end, section, base, prot, flags, fd, off: 0, site };
    Some((Arc::new(mapping), address))
}

#[cfg(test)]
mod tests {
    use pagemill_model::recording::{Meta, Writer};
    use pagemill_model::{Fault, FaultCounts, MappingSample};

    use super::*;

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
        let HugeProgram { workload: load, notes } = recorded(&path, 1000).unwrap();
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
}

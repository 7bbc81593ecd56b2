//! Recordings with any rows, to what verbs make of them besides a report: advice, a plan for huge pages, a program for
//! the simulated machine. Runs of that machine are not in it but for short ones under a huge page policy: what they are
//! given is.

use std::path::Path;

use anyhow::Result;
use pagemill_advise::recording::{RecordingAdvice, Simulator};
use pagemill_advise::slower_memory::Tier;
use pagemill_analysis::regions::RegionFold;
use pagemill_analysis::walks::WalkFold;
use pagemill_control::plan::advise;
use pagemill_experiments::simulate::huge::{HugeConditions, prices};
use pagemill_experiments::simulate::huge_recorded::HugeProgram;
use pagemill_experiments::simulate::machine;
use pagemill_experiments::{recorded, recorded::Program};
use pagemill_kernel::Linux;
use pagemill_model::recording::{Meta, Reader};
use pagemill_model::sums::sum;
use pagemill_model::{Event, Fold as _, Source as _};
use pagemill_policy::huge::{self, View};
use pagemill_sim::huge::WARM;
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::workload;

use crate::events::Recorded;
use crate::reports::{self, rows};
use crate::scratch::in_scratch;

/// A recording, to what is advised, planned and simulated of it. The first byte says whether names are left out, and
/// which huge page policy it runs under.
pub fn advised(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let recorded = Recorded::of(bytes);
    if !recorded.heat().1 {
        return;
    }
    in_scratch(|room| {
        let recording = room.join("advised");
        if !recorded.write(&recording) {
            return;
        }
        advice(&Linux::at(room.join("none")), &recording, how & 1 != 0);
        planned(&recording, how & 1 != 0, u64::from(*how) << 20);
        placed(&recording);
        let policies = huge::names().count();
        let policy = huge::names().nth(usize::from(how >> 1) % policies);
        policy.into_iter().for_each(|policy| on_huge_pages(&recording, policy));
    });
}

/// A program whose speed is in proportion to its fast memory; what a real one is made from is made, too.
struct Proportional(Program, std::path::PathBuf);

impl Simulator for Proportional {
    fn event(&mut self, event: &Event) {
        self.0.event(event);
    }

    fn tier(self: Box<Self>) -> Option<Box<dyn Tier>> {
        let Self(program, path) = *self;
        let machine = Machine::parse(ICELAKE).ok()?;
        let (load, _) = program.workload(&path, &workload::named("zipf", &machine)?).ok()?;
        Some(Box::new(Line(load.bytes())))
    }
}

struct Line(f64);

impl Tier for Line {
    fn part(&self, fast: f64) -> [f64; 2] {
        [(fast / self.0).clamp(0.0, 1.0); 2]
    }

    fn needs(&self, part: f64) -> [f64; 2] {
        [part * self.0; 2]
    }
}

fn advice(linux: &Linux, recording: &Path, redact: bool) {
    let make = |meta: &Meta| -> Result<Box<dyn Simulator>> {
        Ok(Box::new(Proportional(Program::begin(recording, meta)?, recording.to_owned())))
    };
    if let Ok(advice) = RecordingAdvice::read(linux, recording, redact, &make) {
        let _ = (advice.text(), advice.json(), advice.html());
    }
}

fn planned(recording: &Path, redact: bool, cycles: u64) {
    let Ok(mut reader) = Reader::open(recording) else { return };
    if redact {
        reader.redact();
    }
    let (mut regions, mut walks) = (RegionFold::default(), WalkFold::default());
    while let Ok(Some(event)) = reader.next_event() {
        regions.event(&event);
        walks.event(&event);
    }
    let (regions, walks) = (regions.view(), walks.view());
    let machine = View { cpus: 2, mhz: 3000, costs: WARM, ..View::default() };
    let all = advise::advise(&regions, (&walks, Some(cycles)), &machine);
    let _ = (advise::profile(&all).to_string(), advise::text(&all, true));
    drop(advise::json(&all, &regions, &walks));
}

/// As a program for two tiers.
fn placed(recording: &Path) {
    let Ok(machine) = Machine::parse(ICELAKE) else { return };
    let like = workload::named("zipf", &machine);
    let load = like.and_then(|like| recorded::program(recording, &like).ok());
    let _ = load.map(|(load, _)| machine::fits(&machine, &load, "the machine"));
}

/// As a program on a zone of free memory, if it is a small one.
fn on_huge_pages(recording: &Path, policy: &str) {
    const MOST_PAGES: u64 = 1 << 13;
    const MOST_TIME: u64 = 10_000_000;
    let Some(name) = recording.to_str() else { return };
    let Ok(program) = HugeProgram::named(name, 0, 1, 100) else { return };
    let time = sum(program.workload.own.iter().copied());
    let (Some(policy), Ok(prices)) = (huge::find(policy), prices(None, None)) else { return };
    if program.workload.pages > MOST_PAGES || time > MOST_TIME {
        return;
    }
    let conditions = HugeConditions {
        fragmented: 0.5,
        pinned: false,
        profile: None,
        compaction: None,
        prices,
        seed: 1,
    };
    if let Some(row) = conditions.setup(&program, policy).run_while(&mut |_, _| true) {
        let _ = conditions.text(&program, &[policy.name().to_owned()], &[row]);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    // What a recording of accesses, of faults or of the heap has, each policy once.
    let mut seeds = reports::seeds();
    let how = (0..).map(|policy| policy * 2);
    seeds.extend(
        how.zip(huge::names())
            .map(|(how, _)| [vec![how, 9, 9, 2], rows("faults", 3, &[], &[97, 7])].concat()),
    );
    // Intervals before and after the middle, each of a process of its own; and samples of memory.
    for how in [0, 1] {
        let intervals = (1..60).map(|number| rows("touched", 1, &[], &[number]));
        seeds.push([vec![how, 9, 9, 2], intervals.collect::<Vec<_>>().concat()].concat());
        seeds.push([vec![how, 9, 9, 2], rows("heap", 4, &[], &[97, 7])].concat());
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds_are_advised_planned_and_simulated() {
        let (mut advised, mut placed, mut huge) = ([0; 2], 0, 0);
        let machine = Machine::parse(ICELAKE).unwrap();
        let like = workload::named("zipf", &machine).unwrap();
        for seed in seeds() {
            in_scratch(|room| {
                let recording = room.join("tried");
                if !Recorded::of(&seed[1..]).write(&recording) {
                    return;
                }
                let make = |meta: &Meta| -> Result<Box<dyn Simulator>> {
                    let program = Program::begin(&recording, meta)?;
                    Ok(Box::new(Proportional(program, recording.clone())))
                };
                let linux = Linux::at(room.join("none"));
                let read = RecordingAdvice::read(&linux, &recording, false, &make);
                if let Ok(advice) = read {
                    let is_slower = advice.text().contains("slower memory, modelled");
                    advised[usize::from(is_slower)] += 1;
                }
                placed += u32::from(recorded::program(&recording, &like).is_ok());
                let program = HugeProgram::named(recording.to_str().unwrap(), 0, 1, 100);
                huge += u32::from(program.is_ok());
            });
        }
        let all = advised.into_iter().chain([placed, huge]).all(|number| number > 1);
        assert!(all, "{advised:?} {placed} {huge}");
    }
}

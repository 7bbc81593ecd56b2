//! The tables of the fragmentation study: the unusable free space index of each zone and order with
//! huge pages off and on; memory compacted, fragmented, and compacted while fragmented; and how long
//! programs take in each state, with TLB and cache misses where the processor counts them.
//!
//! ```text
//!  for huge pages off, on:
//!    compact ──► look, run the programs ──► fragment, hold ──► look, run ──► the kernel compacts ──► look, run ──► give back
//! ```
//!
//! The study fragmented with a program that fills memory and frees parts of it; here `frag induce` does
//! it, to a score of 1 at order 9. So the states are the study's and the degree is ours; the published
//! rows are those of its own program. Huge pages off means off for the programs, too. Of its programs canneal is built in; fmm and
//! streamcluster are not, and nas-is is run beside it.
//!
//! Always true: the settings are on loan; a published number is shown and never used.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagemill_analysis::fragmentation::unusable;
use pagemill_analysis::statistics::median;
use pagemill_kernel::held::Held;
use pagemill_kernel::loan::Loan;
use pagemill_kernel::signal::Signals;
use pagemill_kernel::{Linux, thp};
use serde_json::{Map, Value, json};

use super::Table;
use crate::fragmentation::compact;
use crate::fragmentation::induce::{Fragmenter, Goal};
use crate::fragmentation::journals;
use crate::fragmentation::look::Look;
use crate::report::chart::number;
use crate::verbs::counters::Opened;

/// Its name on the command line.
pub const NAME: &str = "fragmentation";

/// What it is, in a line.
pub const TITLE: &str =
    "unusable free space by zone and order, huge pages off and on (the fragmentation study)";

const PUBLISHED: &str = include_str!("../../../../experiments/published/fragmentation.csv");

/// The order of a huge page on x86-64.
const ORDER: usize = 9;

/// What the study counted of its programs, with what the kernel calls it and we do.
const COUNTED: [(&str, &str); 4] = [
    ("time", "seconds"),
    ("dTLB-load-misses", "dtlb_load_misses"),
    ("iTLB-load-misses", "itlb_misses"),
    ("cache-misses", "cache_misses"),
];

/// Its programs.
const STUDIED: [&str; 3] = ["canneal", "fmm", "streamcluster"];

/// States, with the name that the publication gives them.
const STATES: [(&str, &str); 3] = [
    ("compacted", "compacted"),
    ("fragmented", "fragmented (study's program)"),
    ("compacted while fragmented", "compacted while fragmented (study's program)"),
];

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs of each program in each state.
    pub repetitions: u32,
    /// The programs, with what says how large they are.
    pub programs: [[&'static str; 3]; 2],
    /// How long fragmenting may take.
    pub patience: Duration,
}

impl Options {
    /// As published, or in a minute.
    pub fn new(quick: bool, repetitions: Option<u32>) -> Self {
        let repetitions = repetitions.unwrap_or(if quick { 2 } else { 5 });
        let (share, class, patience) = if quick { ("0.02", "A", 20) } else { ("0.1", "B", 90) };
        let programs = [["canneal", "--scale", share], ["nas-is", "--class", class]];
        Self { repetitions, programs, patience: Duration::from_secs(patience) }
    }
}

/// One state with huge pages off or on.
struct State {
    thp: &'static str,
    name: &'static str,
    published: &'static str,
    look: Look,
    programs: Vec<Program>,
    note: Option<String>,
}

/// A program in a state.
struct Program {
    name: &'static str,
    /// Of each run: name and value of what was measured.
    runs: Vec<Vec<(&'static str, f64)>>,
    /// Huge pages that faults were given during these runs, and stalls for compaction.
    huge: Option<u64>,
    stalls: Option<u64>,
}

impl Program {
    fn values(&self, name: &str) -> Vec<f64> {
        self.runs.iter().flatten().filter(|(known, _)| *known == name).map(|run| run.1).collect()
    }
}

/// What came of it.
pub struct Outcome {
    states: Vec<State>,
    options: Options,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// Why it cannot run here; `None` if it can.
pub fn missing(linux: &Linux) -> Option<String> {
    if let Err(error) = linux.may_compact() {
        return Some(format!("fragmenting and compacting memory is root's: {error}"));
    }
    linux.thp_pmd_size().err().map(|error| error.to_string())
}

/// Runs it; `say` hears of each step.
pub fn run(
    linux: &Linux,
    options: Options,
    signals: &Signals,
    mut say: impl FnMut(&str),
) -> Result<Outcome> {
    let mut outcome = Outcome { states: Vec::new(), options, interrupted: false };
    let loan = Loan::files(linux, &journals(linux), thp::LOAN, &[thp::ENABLED, thp::DEFRAG])?;
    let defrag = loan.found().value(thp::DEFRAG).unwrap_or("madvise").to_owned();
    for (mode, setting) in [("thp off", "never"), ("thp on", "always")] {
        // The fragmenter borrows these settings, too, and leaves them as it needed them.
        let set = || -> Result<()> {
            loan.set(thp::ENABLED, setting)?;
            Ok(loan.set(thp::DEFRAG, &defrag)?)
        };
        let mut fragmenter = None;
        for (name, published) in STATES {
            say(&format!("{mode}, {name}"));
            let mut note = None;
            match name {
                "compacted" => {
                    let goal = compact::Goal {
                        order: ORDER,
                        target: 0.05,
                        sweep: true,
                        caches: compact::Caches::Kept,
                    };
                    let steps = compact::run(linux, goal, |_| {})?;
                    note = gave_up(&steps);
                }
                "fragmented" => {
                    let goal = Goal {
                        order: ORDER,
                        target: 1.0,
                        pinned: false,
                        patience: options.patience,
                    };
                    let mut holding = Fragmenter::new(linux, goal)?;
                    let reached = holding.run(Some(signals), |_, _| {})?;
                    note = Some(format!(
                        "score {:.3}, {} huge pages broken up in {:.1} s ({:?})",
                        reached.score,
                        reached.units,
                        reached.took.as_secs_f64(),
                        reached.end
                    ));
                    fragmenter = Some(holding);
                }
                _ => {
                    let goal = compact::Goal {
                        order: ORDER,
                        target: 0.0,
                        sweep: false,
                        caches: compact::Caches::Kept,
                    };
                    let steps = compact::run(linux, goal, |_| {})?;
                    note = gave_up(&steps).or(note);
                }
            }
            set()?;
            let look = Look::quick(linux)?;
            let mut programs = Vec::new();
            for words in options.programs {
                let before = linux.vmstat().unwrap_or_default();
                let mut runs = Vec::new();
                for _ in 0..options.repetitions {
                    if signals.wait(Duration::ZERO)?.is_some() {
                        outcome.interrupted = true;
                        return Ok(outcome);
                    }
                    runs.push(once(words, signals)?);
                }
                let after = linux.vmstat().unwrap_or_default();
                programs.push(Program {
                    name: words[0],
                    runs,
                    huge: after.since(&before, "thp_fault_alloc"),
                    stalls: after.since(&before, "compact_stall"),
                });
            }
            let state = State { thp: mode, name, published, look, programs, note };
            outcome.states.push(state);
        }
        drop(fragmenter);
    }
    loan.give_back()?;
    Ok(outcome)
}

fn gave_up(steps: &[compact::Step]) -> Option<String> {
    steps.iter().find_map(|step| step.gave_up.clone())
}

/// Runs a program once, and returns how long it took and what the processor counted.
fn once(words: [&str; 3], signals: &Signals) -> Result<Vec<(&'static str, f64)>> {
    let executable = std::env::current_exe().context("cannot find this binary")?;
    let mut command = Command::new(executable);
    command.arg("workload").args(words).args(["--threads", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    signals.restore_in(&mut command);
    let held = Held::spawn(command)??;
    let counters = Opened::on(held.pid());
    let began = Instant::now();
    let status = held.release()?.wait()?;
    let took = began.elapsed().as_secs_f64();
    if !status.success() {
        bail!("workload {} ended with {status}", words.join(" "));
    }
    let mut measured = vec![("seconds", took)];
    measured.extend(counters.read()?);
    Ok(measured)
}

/// The published row of a state and zone.
fn published(thp: &str, state: &str, zone: &str) -> Vec<Option<String>> {
    let experiment = format!("{thp}: {state}");
    let find = |order: usize| {
        let order = format!("order {order}");
        PUBLISHED.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.splitn(6, ',').collect();
            (fields.len() == 6
                && fields[..4] == [experiment.as_str(), zone, order.as_str(), "index"])
            .then(|| fields[4].to_owned())
        })
    };
    (0..=10).map(find).collect()
}

/// A published figure of a program.
fn counted(program: &str, thp: &str, what: &str) -> Option<f64> {
    PUBLISHED.lines().find_map(|line| {
        let fields: Vec<&str> = line.splitn(6, ',').collect();
        (fields.len() == 6 && fields[..3] == [program, thp, what])
            .then(|| fields[4].parse().ok())?
    })
}

impl State {
    /// The row of a zone here.
    fn row(&self, zone: &str) -> Option<Vec<String>> {
        let zone = self.look.zones.iter().find(|look| look.zone == zone)?;
        Some((0..zone.blocks.len()).map(|k| unusable(&zone.blocks, k).to_string()).collect())
    }

    fn zones(&self) -> Vec<String> {
        let mut zones: Vec<String> = self.look.zones.iter().map(|zone| zone.zone.clone()).collect();
        zones.dedup();
        zones
    }
}

impl Outcome {
    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for mode in ["thp off", "thp on"] {
            let mut rows = Vec::new();
            for state in self.states.iter().filter(|state| state.thp == mode) {
                for zone in state.zones() {
                    let ours = state.row(&zone).unwrap_or_default();
                    let theirs = published(mode, state.published, &zone);
                    let lead = [state.name.to_owned(), zone];
                    let row = |whose: &str, cells: Vec<String>| {
                        lead.iter().cloned().chain([whose.to_owned()]).chain(cells).collect()
                    };
                    rows.push(row("here", ours));
                    let absent = || "-".to_owned();
                    let theirs = theirs.into_iter().map(|cell| cell.unwrap_or_else(absent));
                    rows.push(row("published", theirs.collect()));
                }
            }
            let header =
                vec!["state", "zone", "", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
            let title = format!("unusable free space index by order, {mode}");
            tables.push(Table { title, header, rows });
        }
        let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
        let programs = self
            .states
            .iter()
            .flat_map(|state| state.programs.iter().map(move |program| (state, program)));
        let rows = programs.map(|(state, program)| {
            let seconds = program.values("seconds");
            let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = seconds.iter().copied().fold(0.0, f64::max);
            vec![
                program.name.to_owned(),
                state.thp.to_owned(),
                state.name.to_owned(),
                median(&seconds).map_or("-".into(), |seconds| format!("{seconds:.2} s")),
                format!("{least:.2} to {most:.2}"),
                count(program.huge),
                count(program.stalls),
                state.note.clone().unwrap_or_default(),
            ]
        });
        let words: Vec<String> =
            self.options.programs.iter().map(|words| words.join(" ")).collect();
        let title =
            format!("time of {}, {} runs each", words.join(" and "), self.options.repetitions);
        let header = vec![
            "program",
            "",
            "state",
            "median",
            "range",
            "huge pages at faults",
            "stalls",
            "note",
        ];
        tables.push(Table { title, header, rows: rows.collect() });
        tables.push(Table {
            title: "huge pages on and off, memory compacted (misses: where the processor counts them; - where not, and of programs that are not built in)".to_owned(),
            header: vec!["program", "", "published off", "on", "on / off", "here off", "on", "on / off"],
            rows: self.off_and_on(),
        });
        tables.push(Table {
            title: "what was published, and whether it is so here".to_owned(),
            header: vec!["claim", "published", "here", ""],
            rows: self.claims(),
        });
        tables
    }

    /// What the study counted of its programs, and what was measured here.
    fn off_and_on(&self) -> Vec<Vec<String>> {
        let here = |thp: &str, program: &str, what: &str| {
            let state = self.states.iter().find(|one| (one.thp, one.name) == (thp, STATES[0].0))?;
            median(&state.programs.iter().find(|one| one.name == program)?.values(what))
        };
        let ours = self.options.programs.iter().map(|words| words[0]);
        let others = ours.filter(|name| !STUDIED.contains(name));
        let mut rows = Vec::new();
        for program in STUDIED.into_iter().chain(others) {
            for (theirs, ours) in COUNTED {
                let published = |thp| counted(program, thp, theirs);
                let pairs = [
                    (published("THP off"), published("THP on")),
                    (here("thp off", program, ours), here("thp on", program, ours)),
                ];
                if pairs == [(None, None); 2] {
                    continue;
                }
                let cells = pairs.into_iter().flat_map(|(off, on)| {
                    let ratio = off.zip(on).map(|(off, on)| format!("{:.3}", on / off));
                    [off.map(number), on.map(number), ratio]
                });
                let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".into()));
                rows.push([program.into(), theirs.into()].into_iter().chain(cells).collect());
            }
        }
        rows
    }

    /// Order 9 of the zone Normal in a state.
    fn normal(&self, thp: &str, state: &str) -> Option<f64> {
        let state = self.states.iter().find(|one| (one.thp, one.name) == (thp, state))?;
        state.row("Normal")?.get(ORDER)?.parse().ok()
    }

    fn claims(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for thp in ["thp off", "thp on"] {
            for ((from, from_published), (to, to_published), rises) in
                [(STATES[0], STATES[1], true), (STATES[1], STATES[2], false)]
            {
                let theirs = |state| published(thp, state, "Normal")[ORDER].clone();
                let (Some(a), Some(b)) = (self.normal(thp, from), self.normal(thp, to)) else {
                    continue;
                };
                let change = if rises { "raises" } else { "lowers" };
                let act = if rises { "fragmenting" } else { "compacting while fragmented" };
                let word = |state| theirs(state).unwrap_or_else(|| "-".into());
                let holds = if (b > a) == rises && a != b { "so here" } else { "not so here" };
                rows.push(vec![
                    format!("{thp}: {act} {change} order {ORDER} of Normal"),
                    format!("{} to {}", word(from_published), word(to_published)),
                    format!("{a:.3} to {b:.3}"),
                    holds.to_owned(),
                ]);
            }
        }
        rows
    }

    /// The tables as text.
    pub fn text(&self) -> String {
        super::as_text(NAME, TITLE, &self.tables())
    }

    /// The tables as one HTML page.
    pub fn html(&self) -> String {
        super::as_html(NAME, TITLE, &self.tables())
    }

    /// Every figure.
    pub fn json(&self) -> Value {
        let states = self.states.iter().map(|state| {
            let zones = state.look.zones.iter().map(|zone| {
                json!({
                    "node": zone.node,
                    "zone": zone.zone,
                    "free_blocks": zone.blocks,
                    "unusable": state.row(&zone.zone),
                    "published": published(state.thp, state.published, &zone.zone),
                })
            });
            json!({
                "thp": state.thp,
                "state": state.name,
                "zones": zones.collect::<Vec<_>>(),
                "programs": state.programs.iter().map(|program| json!({
                    "program": program.name,
                    "runs": program.runs.iter().map(|run| {
                        run.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
                    }).collect::<Vec<Map<String, Value>>>(),
                    "huge_pages_at_faults": program.huge,
                    "compaction_stalls": program.stalls,
                })).collect::<Vec<_>>(),
                "note": state.note,
            })
        });
        json!({"schema": 1, "experiment": NAME, "interrupted": self.interrupted, "states": states.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_rows_are_found_for_every_state_and_zone() {
        for thp in ["thp off", "thp on"] {
            for (_, state) in STATES {
                for zone in ["DMA", "DMA32", "Normal"] {
                    let row = published(thp, state, zone);
                    assert!(row.iter().all(Option::is_some), "{thp} {state} {zone}: {row:?}");
                }
            }
        }
        for program in STUDIED {
            for (what, _) in COUNTED {
                let figure = |thp| counted(program, thp, what).unwrap();
                assert!(figure("THP on") < figure("THP off"), "{program} {what}");
            }
        }
        let row = published("thp on", STATES[1].1, "Normal");
        assert_eq!(row[3].as_deref(), Some("0.223"));
        assert!(published("thp on", STATES[1].1, "Movable").iter().all(Option::is_none));
    }
}

//! The tables of the fragmentation study: the unusable free space index of each zone and order with
//! huge pages off and on; memory compacted, fragmented, and compacted while fragmented; and how long a
//! program takes in each state.
//!
//! ```text
//!  for huge pages off, on:
//!    compact ──► look, run the program ──► fragment, hold ──► look, run ──► the kernel compacts ──► look, run ──► give back
//! ```
//!
//! The study fragmented with a program that fills memory and frees parts of it; here `frag induce` does
//! it, to a score of 1 at order 9. So the states are the study's and the degree is ours; the published
//! rows are those of its own program. Huge pages off means off for the program, too. Its programs canneal, fmm and streamcluster are
//! not built in; the program that is run instead is named in the table.
//!
//! Always true: the settings are on loan; a published number is shown and never used.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagemill_analysis::fragmentation::unusable;
use pagemill_analysis::statistics::median;
use pagemill_kernel::loan::Loan;
use pagemill_kernel::signal::Signals;
use pagemill_kernel::{Linux, thp};
use serde_json::{Value, json};

use super::Table;
use crate::fragmentation::compact;
use crate::fragmentation::induce::{Fragmenter, Goal};
use crate::fragmentation::journals;
use crate::fragmentation::look::Look;

/// Its name on the command line.
pub const NAME: &str = "fragmentation";

/// What it is, in a line.
pub const TITLE: &str =
    "unusable free space by zone and order, huge pages off and on (the fragmentation study)";

const PUBLISHED: &str = include_str!("../../../../experiments/published/fragmentation.csv");

/// The order of a huge page on x86-64.
const ORDER: usize = 9;

/// The program that is run in each state, and its arguments.
const PROGRAM: [&str; 3] = ["workload", "nas-is", "--class"];

/// States, with the name that the publication gives them.
const STATES: [(&str, &str); 3] = [
    ("compacted", "compacted"),
    ("fragmented", "fragmented (study's program)"),
    ("compacted while fragmented", "compacted while fragmented (study's program)"),
];

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs of the program in each state.
    pub repetitions: u32,
    /// Its problem class.
    pub class: &'static str,
    /// How long fragmenting may take.
    pub patience: Duration,
}

impl Options {
    /// As published, or in a minute.
    pub fn new(quick: bool, repetitions: Option<u32>) -> Self {
        let repetitions = repetitions.unwrap_or(if quick { 2 } else { 5 });
        let (class, patience) = if quick { ("A", 20) } else { ("B", 90) };
        Self { repetitions, class, patience: Duration::from_secs(patience) }
    }
}

/// One state with huge pages off or on.
struct State {
    thp: &'static str,
    name: &'static str,
    published: &'static str,
    look: Look,
    /// Seconds of each run of the program.
    seconds: Vec<f64>,
    /// Huge pages that faults were given during these runs, and stalls for compaction.
    huge: Option<u64>,
    stalls: Option<u64>,
    note: Option<String>,
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
                        drop_caches: false,
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
                        drop_caches: false,
                    };
                    let steps = compact::run(linux, goal, |_| {})?;
                    note = gave_up(&steps).or(note);
                }
            }
            set()?;
            let look = Look::quick(linux)?;
            let before = linux.vmstat().unwrap_or_default();
            let mut seconds = Vec::new();
            for _ in 0..options.repetitions {
                if signals.wait(Duration::ZERO)?.is_some() {
                    outcome.interrupted = true;
                    return Ok(outcome);
                }
                seconds.push(program(options.class, signals)?);
            }
            let after = linux.vmstat().unwrap_or_default();
            let (huge, stalls) =
                (after.since(&before, "thp_fault_alloc"), after.since(&before, "compact_stall"));
            let state = State { thp: mode, name, published, look, seconds, huge, stalls, note };
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

/// Runs the program once and returns how long it took.
fn program(class: &str, signals: &Signals) -> Result<f64> {
    let executable = std::env::current_exe().context("cannot find this binary")?;
    let began = Instant::now();
    let mut command = Command::new(executable);
    command.args(PROGRAM).args([class, "--threads", "1"]);
    signals.restore_in(&mut command);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("{} {class} ended with {status}", PROGRAM.join(" "));
    }
    Ok(began.elapsed().as_secs_f64())
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
        let rows = self.states.iter().map(|state| {
            let seconds = |seconds: f64| format!("{seconds:.2} s");
            let least = state.seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = state.seconds.iter().copied().fold(0.0, f64::max);
            vec![
                state.thp.to_owned(),
                state.name.to_owned(),
                median(&state.seconds).map_or("-".into(), seconds),
                format!("{least:.2} to {most:.2}"),
                count(state.huge),
                count(state.stalls),
                state.note.clone().unwrap_or_default(),
            ]
        });
        let title = format!(
            "time of nas-is, class {}, {} runs each (published with canneal, fmm and streamcluster, which are not built in)",
            self.options.class, self.options.repetitions
        );
        let header = vec!["", "state", "median", "range", "huge pages at faults", "stalls", "note"];
        tables.push(Table { title, header, rows: rows.collect() });
        tables.push(Table {
            title: "what was published, and whether it is so here".to_owned(),
            header: vec!["claim", "published", "here", ""],
            rows: self.claims(),
        });
        tables
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
                "seconds": state.seconds,
                "huge_pages_at_faults": state.huge,
                "compaction_stalls": state.stalls,
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
        let row = published("thp on", STATES[1].1, "Normal");
        assert_eq!(row[3].as_deref(), Some("0.223"));
        assert!(published("thp on", STATES[1].1, "Movable").iter().all(Option::is_none));
    }
}

//! Tables of what came of the fragmentation study, the published figure beside each.

use pagemill_analysis::fragmentation::unusable;
use pagemill_analysis::statistics::median;
use pagemill_model::Order;
use serde_json::{Map, Value, json};

use super::{FILE, MODES, NAME, Outcome, PROGRAMS, SOURCE, STATES, State};
use crate::claim::{ClaimRow, Verdict};
use crate::coverage;
use crate::prepared_memory::ORDER;
use crate::tabled::{Table, Tables, dash};
use pagemill_report::draw::chart::number;

/// What the study counted of its programs, with what it is called here.
const COUNTED: [(&str, &str); 4] = [
    ("time", "seconds"),
    ("dTLB-load-misses", "dtlb_load_misses"),
    ("iTLB-load-misses", "itlb_misses"),
    ("cache-misses", "cache_misses"),
];

/// What is counted here beside it: it tells of huge pages where the processor counts nothing.
const BESIDE: [(&str, &str); 3] = [
    ("CPU time of the kernel, s", "system_seconds"),
    ("page faults", "page_faults"),
    ("share on huge pages", "huge_share"),
];

/// The published row of a state and zone.
fn published(thp: &str, state: &str, zone: &str) -> Vec<Option<String>> {
    let experiment = format!("{thp}: {state}");
    let find = |order| coverage::figure(&SOURCE, &experiment, zone, &format!("order {order}"));
    (0..=10).map(|order| find(order).map(str::to_owned)).collect()
}

/// A published figure of a program.
fn counted(program: &str, thp: &str, what: &str) -> Option<f64> {
    coverage::number(&SOURCE, program, thp, what)
}

impl State {
    /// The row of a zone here.
    fn row(&self, zone: &str) -> Option<Vec<String>> {
        let zone = self.measured.zones.iter().find(|look| look.zone == zone)?;
        Some(
            Order::first(zone.blocks.len())
                .map(|k| unusable(&zone.blocks, k).to_string())
                .collect(),
        )
    }

    fn zones(&self) -> Vec<String> {
        let zones = self.measured.zones.iter();
        let mut zones: Vec<String> = zones.map(|zone| zone.zone.clone()).collect();
        zones.dedup();
        zones
    }
}

/// Least and most of some values.
fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Both, and the second as a share of the first.
fn pair(values: (Option<f64>, Option<f64>)) -> [Option<String>; 3] {
    let ratio = values.0.zip(values.1).filter(|(off, _)| *off > 0.0);
    let ratio = ratio.map(|(off, on)| format!("{:.3}", on / off));
    [values.0.map(number), values.1.map(number), ratio]
}

impl Outcome {
    fn notes(&self) -> Vec<Vec<String>> {
        let rows = self.states.iter().flat_map(|state| {
            let note = [&state.measured.note].into_iter().filter(|note| !note.is_empty());
            let failed = state.measured.programs.iter().flat_map(|program| &program.failed);
            let row =
                |note: &String| vec![state.thp.to_owned(), state.name.to_owned(), note.clone()];
            note.chain(failed).map(row)
        });
        rows.collect()
    }

    fn times(&self) -> Vec<Vec<String>> {
        let count = |count: Option<u64>| dash(count.map(|count| count.to_string()));
        let mut rows = Vec::new();
        for (at, program) in PROGRAMS.into_iter().enumerate() {
            for state in &self.states {
                let runs = &state.measured.programs[at];
                let seconds = runs.values("seconds");
                let Some(middle) = median(&seconds) else { continue };
                let (least, most) = range(&seconds);
                rows.push(vec![
                    program.to_owned(),
                    state.thp.to_owned(),
                    state.name.to_owned(),
                    seconds.len().to_string(),
                    format!("{middle:.2} s"),
                    format!("{least:.2} to {most:.2}"),
                    count(runs.huge),
                    count(runs.stalls),
                ]);
            }
        }
        rows
    }

    /// What was measured of a program in a state.
    fn values(&self, thp: &str, state: &str, program: usize, what: &str) -> Vec<f64> {
        let state = self.states.iter().find(|one| (one.thp, one.name) == (thp, state));
        state.map_or(Vec::new(), |state| state.measured.programs[program].values(what))
    }

    /// What the study counted of its programs, and what was measured here.
    fn off_and_on(&self) -> Vec<Vec<String>> {
        let compacted = STATES[0].0;
        let mut rows = Vec::new();
        let mut row = |program: &str, what: &str, cells: [[Option<String>; 3]; 2]| {
            let cells = cells.into_iter().flatten().map(dash);
            rows.push([program.to_owned(), what.to_owned()].into_iter().chain(cells).collect());
        };
        for (at, program) in PROGRAMS.into_iter().enumerate() {
            let here = |what: &str| {
                let one = |thp| median(&self.values(thp, compacted, at, what));
                pair((one("thp off"), one("thp on")))
            };
            for (theirs, ours) in COUNTED {
                let published = |thp| counted(program, thp, theirs);
                row(
                    program,
                    theirs,
                    [pair((published("THP off"), published("THP on"))), here(ours)],
                );
            }
            for (what, ours) in BESIDE {
                row(program, what, [[const { None }; 3], here(ours)]);
            }
        }
        if let Some([base, huge]) = self.reads {
            let what = "ns a dependent random read in 256 MiB";
            row("(page walks)", what, [[const { None }; 3], pair((Some(base), Some(huge)))]);
        }
        rows
    }

    /// Whether each program is faster with huge pages on.
    fn faster(&self) -> Vec<ClaimRow> {
        let mut rows = Vec::new();
        for (at, program) in PROGRAMS.into_iter().enumerate() {
            let theirs = ["THP off", "THP on"].map(|thp| counted(program, thp, "time"));
            let ours =
                ["thp off", "thp on"].map(|thp| self.values(thp, STATES[0].0, at, "seconds"));
            let change = |off: f64, on: f64| format!("{:+.1} %", 100.0 * (on / off - 1.0));
            let [Some(off), Some(on)] = theirs else { continue };
            let holds = || match (range(&ours[0]), range(&ours[1])) {
                ((least, _), (_, most)) if most < least => Verdict::SoHere,
                ((_, most), (least, _)) if most < least => Verdict::NotSoHere,
                _ => Verdict::Overlap,
            };
            let (here, verdict) = match (median(&ours[0]), median(&ours[1])) {
                (Some(off), Some(on)) => (Some(change(off, on)), holds()),
                _ => (None, self.untold("it has not run with huge pages off and on")),
            };
            let claim = format!("{program} is faster with huge pages, memory compacted");
            rows.push(ClaimRow { claim, published: change(off, on), here, verdict });
        }
        rows
    }

    /// The verdict on a claim of which there are no figures.
    fn untold(&self, why: &str) -> Verdict {
        let why = if self.interrupted { "this run was ended before" } else { why };
        Verdict::NotMeasured(why.to_owned())
    }

    /// Order 9 of the zone Normal in a state.
    fn normal(&self, thp: &str, state: &str) -> Option<f64> {
        let state = self.states.iter().find(|one| (one.thp, one.name) == (thp, state))?;
        state.row("Normal")?.get(ORDER.index())?.parse().ok()
    }

    /// What fragmenting and compacting do.
    fn changes(&self) -> Vec<ClaimRow> {
        let mut rows = Vec::new();
        for (thp, _) in MODES {
            for ((from, from_published), (to, to_published), rises) in
                [(STATES[0], STATES[1], true), (STATES[1], STATES[2], false)]
            {
                let theirs = |state| published(thp, state, "Normal")[ORDER.index()].clone();
                let change = if rises { "raises" } else { "lowers" };
                let act = if rises { "fragmenting" } else { "compacting while fragmented" };
                let word = |state| theirs(state).unwrap_or_else(|| "-".into());
                let (here, verdict) = match (self.normal(thp, from), self.normal(thp, to)) {
                    (Some(a), Some(b)) => {
                        let holds = (b > a) == rises && a != b;
                        (Some(format!("{a:.3} to {b:.3}")), Verdict::so_here(holds))
                    }
                    _ => (None, self.untold("memory was not looked at in both states")),
                };
                rows.push(ClaimRow {
                    claim: format!("{thp}: {act} {change} order {ORDER} of Normal"),
                    published: format!("{} to {}", word(from_published), word(to_published)),
                    here,
                    verdict,
                });
            }
        }
        rows
    }
}

impl Tables for Outcome {
    fn head(&self) -> (&'static str, &'static str) {
        (NAME, &FILE.title)
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for (mode, _) in MODES {
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
                    rows.push(row("published", theirs.into_iter().map(dash).collect()));
                }
            }
            let title = format!("unusable free space index by order, {mode}");
            tables.push(Table::new(title, "state|zone||0|1|2|3|4|5|6|7|8|9|10", rows));
        }
        tables.push(Table::new("how each state was brought about", "|state|note", self.notes()));
        let words: Vec<String> =
            PROGRAMS.map(|word| format!("{word} --scale {}", self.options.scale(word))).to_vec();
        tables.push(Table::new(
            format!("time of {}", words.join(", ")),
            "program||state|runs|median|range|huge pages at faults|stalls",
            self.times(),
        ));
        let misses = match self.reads {
            None => "",
            Some(_) => {
                "; TLB and cache misses are not measured: this processor's counters cannot be read here"
            }
        };
        tables.push(Table::new(
            format!("huge pages off and on, memory compacted{misses}"),
            "program||published off|on|on / off|here off|on|on / off",
            self.off_and_on(),
        ));
        tables.push(Table::of_claims(self.claims()));
        tables
    }

    fn claims(&self) -> Vec<ClaimRow> {
        self.changes().into_iter().chain(self.faster()).collect()
    }

    fn json(&self) -> Value {
        let states = self.states.iter().map(|state| {
            let zones = state.measured.zones.iter().map(|zone| {
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
                "programs": PROGRAMS.iter().zip(&state.measured.programs).map(|(program, runs)| json!({
                    "program": program,
                    "runs": runs.each.iter().map(|run| {
                        run.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
                    }).collect::<Vec<Map<String, Value>>>(),
                    "huge_pages_at_faults": runs.huge,
                    "compaction_stalls": runs.stalls,
                })).collect::<Vec<_>>(),
                "note": state.measured.note,
            })
        });
        json!({
            "schema": 1,
            "experiment": NAME,
            "interrupted": self.interrupted,
            "quick": self.options.size.scale < 1.0,
            "scales": self.options.size.runs.scales,
            "random_read_ns": self.reads.map(|[base, huge]| json!({"base": base, "huge": huge})),
            "states": states.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Measured, Options};
    use super::*;

    #[test]
    fn the_published_rows_are_found_for_every_state_and_zone() {
        crate::coverage::tests::is_complete(&SOURCE, look_all_up);
    }

    fn look_all_up() {
        for thp in ["thp off", "thp on"] {
            for (_, state) in STATES {
                for zone in ["DMA", "DMA32", "Normal"] {
                    let row = published(thp, state, zone);
                    assert!(row.iter().all(Option::is_some), "{thp} {state} {zone}: {row:?}");
                }
            }
        }
        for program in PROGRAMS {
            for (what, _) in COUNTED {
                let figure = |thp| counted(program, thp, what).unwrap();
                assert!(figure("THP on") < figure("THP off"), "{program} {what}");
            }
        }
        let row = published("thp on", STATES[1].1, "Normal");
        assert_eq!(row[3].as_deref(), Some("0.223"));
        assert!(published("thp on", STATES[1].1, "Movable").iter().all(Option::is_none));
    }

    fn outcome(off: &[f64], on: &[f64]) -> Outcome {
        let state = |thp, seconds: &[f64]| {
            let mut measured = Measured::default();
            let run = |second: &f64| vec![("seconds".to_owned(), *second)];
            measured.programs[1].each = seconds.iter().map(run).collect();
            State { thp, name: STATES[0].0, published: STATES[0].1, measured }
        };
        Outcome {
            states: vec![state("thp off", off), state("thp on", on)],
            options: Options::new(true, false, None),
            reads: Some([100.0, 80.0]),
            interrupted: false,
        }
    }

    #[test]
    fn a_program_is_faster_only_if_no_run_was_slower() {
        let held = |off: &[f64], on: &[f64]| {
            let rows = outcome(off, on).faster();
            rows.into_iter().find(|row| row.claim.starts_with("fmm")).unwrap().verdict
        };
        assert_eq!(held(&[2.0, 2.2], &[1.5, 1.9]), Verdict::SoHere);
        assert_eq!(held(&[1.0, 1.2], &[1.5, 1.9]), Verdict::NotSoHere);
        assert_eq!(held(&[1.0, 1.6], &[1.5, 1.9]), Verdict::Overlap);
        let text = outcome(&[2.0], &[1.0]).text();
        assert!(
            text.contains("fmm is faster with huge pages") && text.contains("-50.0 %"),
            "{text}"
        );
    }

    #[test]
    fn each_claim_is_a_row_whatever_ran() {
        let said = |outcome: &Outcome| -> Vec<String> {
            outcome.claims().into_iter().map(|row| row.claim).collect()
        };
        let mut some = outcome(&[2.0], &[1.0]);
        let all = said(&some);
        while some.states.pop().is_some() {
            assert_eq!(said(&some), all);
        }
        let rows = some.claims();
        assert!(
            rows.len() > 4 && rows.iter().all(|row| matches!(row.verdict, Verdict::NotMeasured(_))),
            "{rows:?}"
        );
    }

    #[test]
    fn what_is_not_measured_is_no_number() {
        let rows = outcome(&[2.0], &[1.0]).off_and_on();
        let row = |what: &str| rows.iter().find(|row| row[0] == "fmm" && row[1] == what).unwrap();
        assert_eq!(row("time")[5..], ["2", "1", "0.500"]);
        assert_eq!(row("dTLB-load-misses")[5..], ["-", "-", "-"]);
        assert_ne!(row("dTLB-load-misses")[2], "-");
        let text = outcome(&[2.0], &[1.0]).text();
        assert!(text.contains("misses are not measured") && text.contains("0.800"), "{text}");
    }
}

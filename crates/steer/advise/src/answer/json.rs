//! What a session says, as JSON.

use serde_json::{Map, Value, json};

use super::COLUMNS;
use crate::arm::{Arm, State};
use crate::count::Count;
use crate::rule::{Aim, Quantity, Runs};
use crate::session::Advice;

impl Advice {
    /// As JSON.
    pub fn json(&self) -> Value {
        let levers = self.levers();
        let runs = self.runs(&levers);
        let named = |(arm, aim): (usize, Aim)| {
            json!({
                "lever": self.arms[arm].lever.name(),
                "aim": if aim == Aim::Memory { "memory" } else { "time" },
            })
        };
        let time = COLUMNS.iter().find(|(quantity, ..)| *quantity == self.judgement.time);
        let arms = self.arms.iter().enumerate();
        json!({
            "command": self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "helps": self.helps(),
            "undecided": self.undecided(),
            "interrupted": self.interrupted.is_some(),
            "choice": self.judgement.choice.map(named),
            "nearest": self.judgement.nearest.map(named),
            "use": self.command(),
            "conclusion": self.conclusion(),
            "modelled": self.colder(),
            "time": time.map(|(.., name)| *name),
            "worth": self.options.worth,
            "slower": self.options.slower,
            "seed": self.options.seed,
            "runs": self.runs,
            "batch": self.batch,
            "seconds": self.took.as_secs_f64(),
            "seen": self.seen.json(self.live()),
            "base": { "runs": self.base.len(), "medians": medians(&runs, None), "counted": counted(&runs, None) },
            "levers": arms.map(|(number, arm)| self.lever_json(&runs, number, arm)).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    fn lever_json(&self, runs: &Runs<'_>, number: usize, arm: &Arm) -> Value {
        let change = |quantity| {
            let change = runs.change(number, quantity)?;
            let (low, high) = change.interval().unzip();
            Some(json!({ "ratio": change.ratio, "low": low, "high": high }))
        };
        let changes: Map<String, Value> = COLUMNS
            .iter()
            .map(|(quantity, _, name)| ((*name).to_owned(), json!(change(*quantity))))
            .collect();
        json!({
            "lever": arm.lever.name(),
            "what": arm.lever.what(),
            "needs": arm.lever.needs(),
            "state": state(arm),
            "why": self.why(runs, number),
            "estimate": {
                "memory": arm.estimate.memory,
                "likely": arm.estimate.likely,
                "time": arm.estimate.time,
                "why": arm.estimate.why,
            },
            "runs": arm.runs.len(),
            "medians": medians(runs, Some(number)),
            "counted": counted(runs, Some(number)),
            "changes": changes,
            "command": arm.start.as_ref().map(|start| start.line(&self.words)),
        })
    }
}

/// The medians of an arm by the name of the quantity.
fn medians(runs: &Runs<'_>, arm: Option<usize>) -> Map<String, Value> {
    let value = |quantity| json!(runs.median(arm, quantity));
    COLUMNS.iter().map(|(quantity, _, name)| ((*name).to_owned(), value(*quantity))).collect()
}

/// The medians of what is counted beside, where it is.
fn counted(runs: &Runs<'_>, arm: Option<usize>) -> Map<String, Value> {
    let value = |what: &Count| {
        Some((what.name().to_owned(), json!(runs.median(arm, Quantity::Counted(*what))?)))
    };
    Count::ALL.iter().filter_map(value).collect()
}

/// What became of a lever, in a word.
fn state(arm: &Arm) -> &'static str {
    match &arm.state {
        State::Tried => "tried",
        State::Out => "out",
        State::NoTime => "no-time",
        State::NotTried(_) => "not-tried",
        State::Breaks(_) => "breaks",
        State::Starves(_) => "starves",
    }
}

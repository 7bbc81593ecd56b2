//! The huge page decisions of a recording: how often each was made, what it weighed, and why it was made last.
//!
//! Always true: every decision is in one row; rows are in the order in which their first decision was made.

use std::collections::HashMap;

use pagemill_model::{Bytes, Event, Fold, HugeDecision, Nanos};

use pagemill_model::sums::add;

/// Decisions that are alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// The policy.
    pub policy: String,
    /// When it is asked: `fault`, `ahead`, `scan` or `idle`.
    pub moment: String,
    /// Where.
    pub section: String,
    /// What was decided.
    pub action: String,
    /// What was turned down for it.
    pub weighed: Option<String>,
    /// What came of it, as told, addresses apart: `applied`, `dry` or a reason.
    pub outcome: String,
    /// How often.
    pub count: u64,
    /// Since the first decision of the recording.
    pub first: Nanos,
    /// The same of the last of these.
    pub last: Nanos,
    /// Why, the last time; cost and benefit are in it.
    pub why: String,
    /// Time that carrying them out took.
    pub took: Nanos,
    /// Bytes that they were carried out on, as far as told by each.
    pub done: Bytes,
}

/// What is the same for all pages that it happened to.
fn without_addresses(outcome: &str) -> String {
    let words = outcome.split(' ').map(|word| if word.starts_with("0x") { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// The fold.
#[derive(Clone, Debug, Default)]
pub struct DecisionFold {
    rows: Vec<Decided>,
    /// Where a row is, by policy, moment, section, action, what was turned down, and outcome.
    alike: HashMap<([Option<String>; 5], String), usize>,
    began: Option<Nanos>,
}

impl DecisionFold {
    fn decision(&mut self, row: &HugeDecision) {
        let began = *self.began.get_or_insert(row.time);
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let at = row.time.since(began);
        let new = Decided {
            policy: word(&row.policy),
            moment: word(&row.moment),
            section: word(&row.section),
            action: word(&row.action),
            weighed: row.weighed.clone(),
            outcome: without_addresses(&word(&row.outcome)),
            first: at,
            ..Decided::default()
        };
        let words = [&row.policy, &row.moment, &row.section, &row.action, &row.weighed];
        let alike = (words.map(Clone::clone), new.outcome.clone());
        let found = *self.alike.entry(alike).or_insert_with(|| {
            self.rows.push(new);
            self.rows.len() - 1
        });
        let known = &mut self.rows[found];
        known.count += 1;
        known.last = at;
        known.why = word(&row.why);
        add(&mut known.took.0, row.took.unwrap_or_default().0);
        add(&mut known.done.0, row.done.unwrap_or_default().0);
    }
}

impl Fold for DecisionFold {
    type View = Vec<Decided>;

    fn event(&mut self, event: &Event) {
        if let Event::Huge(row) = event {
            self.decision(row);
        }
    }

    fn view(&self) -> Vec<Decided> {
        self.rows.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_that_are_alike_are_one_row_with_the_last_why() {
        let mut fold = DecisionFold::default();
        for (time, action, why) in
            [(10, "ahead-2m", "a"), (30, "fault-64k", "b"), (50, "ahead-2m", "c")]
        {
            let row = HugeDecision {
                time: Nanos(time),
                action: Some(action.into()),
                why: Some(why.into()),
                done: Some(Bytes(4096)),
                outcome: Some(format!("no page at {time:#x} moves")),
                ..HugeDecision::default()
            };
            fold.event(&Event::Huge(Box::new(row)));
        }
        let rows = fold.view();
        let told: Vec<_> = rows
            .iter()
            .map(|row| (row.action.as_str(), row.count, row.first.0, row.last.0, row.why.as_str()))
            .collect();
        assert_eq!(told, [("ahead-2m", 2, 0, 40, "c"), ("fault-64k", 1, 20, 20, "b")]);
        assert_eq!((rows[0].done, rows[0].outcome.as_str()), (Bytes(8192), "no page at … moves"));
    }
}

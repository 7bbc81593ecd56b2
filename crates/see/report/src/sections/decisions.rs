//! Huge page decisions in a report: text and JSON.

use pagemill_analysis::decisions::{Decided, DecisionFold};
use pagemill_analysis::findings::{BloatFold, RecordedViews};
use pagemill_model::{Bytes, EventKind};
use serde_json::{Value, json};

use super::section::{Section, SectionKind, folding};
use crate::draw::html::Page;
use crate::draw::text;

/// Its line in the table.
pub const KIND: SectionKind = SectionKind {
    member: "decisions",
    shows: &[EventKind::Huge],
    begin: |_| {
        folding((DecisionFold::default(), BloatFold::default()), |(rows, bloat)| {
            (!rows.is_empty()).then(|| Box::new(Decisions(rows, bloat)) as Box<dyn Section>)
        })
    },
};

/// The huge page decisions of a recording, and the zeros on huge pages that they saw.
struct Decisions(Vec<Decided>, Option<Bytes>);

impl Section for Decisions {
    fn length(&self) -> Option<String> {
        let last = self.0.iter().map(|row| row.last).max()?;
        Some(format!("{} of decisions", last.plain()))
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.bloat = self.1;
    }

    fn text(&self) -> String {
        text(&self.0)
    }

    fn json(&self) -> Value {
        json(&self.0)
    }

    fn html(&self, page: &mut Page) {
        page.heading("Huge page decisions").preformatted(text(&self.0).trim());
    }
}

/// The section as text.
fn text(rows: &[Decided]) -> String {
    let header = ["decisions", "", "", "", "", "", "last why"];
    let seconds = |row: &Decided| {
        let (first, last) = (row.first.0 as f64 / 1e9, row.last.0 as f64 / 1e9);
        format!("{first:.2} to {last:.2} s")
    };
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let weighed = row.weighed.as_ref().map(|other| format!(" (not {other})"));
            vec![
                format!("{} {} {}", row.policy, row.moment, row.section),
                format!("{}{}", row.action, weighed.unwrap_or_default()),
                row.count.to_string(),
                seconds(row),
                row.outcome.clone(),
                if row.done > Bytes(0) { row.done.to_string() } else { String::new() },
                row.why.clone(),
            ]
        })
        .collect();
    format!(
        "\nhuge page decisions: where, what, how often, when, what came of it\n{}",
        text::table(&header, &table)
    )
}

/// The section as JSON.
fn json(rows: &[Decided]) -> Value {
    let row = |row: &Decided| {
        json!({
            "policy": row.policy,
            "moment": row.moment,
            "section": row.section,
            "action": row.action,
            "weighed": row.weighed,
            "outcome": row.outcome,
            "decisions": row.count,
            "first_ns": row.first.0,
            "last_ns": row.last.0,
            "took_ns": row.took.0,
            "done_bytes": row.done.0,
            "why": row.why,
        })
    };
    rows.iter().map(row).collect()
}

//! Huge page decisions in a report: text and JSON.

use pagemill_analysis::decisions::Decided;
use pagemill_model::Bytes;
use serde_json::{Value, json};

use pagemill_report::draw::text;

/// The section as text.
pub(crate) fn text(rows: &[Decided]) -> String {
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
pub(super) fn json(rows: &[Decided]) -> Value {
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

//! Findings as text, JSON and HTML: what a report begins with.

use pagemill_analysis::findings::{Finding, Stake};
use serde_json::{Value, json};

use crate::draw::html::Page;

/// What is said where there is none.
pub const NONE: &str = "nothing here is worth changing, as far as this recording tells";

/// As text, with an empty line in front.
pub fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("\n{NONE}\n");
    }
    let mut out = String::from("\nfindings\n");
    for (number, finding) in findings.iter().enumerate() {
        let Finding { text, evidence, next, .. } = finding;
        out.push_str(&format!("{:>3}. {text}\n", number + 1));
        out.push_str(&format!("     by: {evidence}\n     next: {next}\n"));
    }
    out
}

/// As JSON.
pub fn json(findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        let (bytes, time) = match finding.stake {
            Stake::Memory(bytes) => (Some(bytes.0), None),
            Stake::Time(time) => (None, Some(time.0)),
        };
        json!({
            "subject": finding.subject, "text": finding.text, "evidence": finding.evidence,
            "next": finding.next, "bytes": bytes, "time_ns": time, "share": finding.share,
        })
    };
    findings.iter().map(one).collect()
}

/// As the first part of a page.
pub fn html(findings: &[Finding], page: &mut Page) {
    page.heading("Findings");
    if findings.is_empty() {
        page.paragraph(NONE);
        return;
    }
    let rows = findings
        .iter()
        .map(|finding| vec![finding.text.clone(), finding.evidence.clone(), finding.next.clone()]);
    page.table(&["what", "by", "next"], &rows.collect::<Vec<_>>());
}

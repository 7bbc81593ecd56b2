//! Conclusions as text, JSON and HTML: what a report begins with.

use pagemill_analysis::findings::{Conclusions, Finding, Inconclusive, NotRecorded, Stake};
use serde_json::{Value, json};

use crate::draw::html::Page;

/// What is said where there is no finding.
fn none(conclusions: &Conclusions) -> &'static str {
    match conclusions.inconclusive.is_empty() {
        true => "nothing here is worth changing, as far as this recording tells",
        false => "nothing worth changing was found, and not all could be told",
    }
}

/// As text, with an empty line in front.
pub fn text(conclusions: &Conclusions) -> String {
    let mut out = match conclusions.findings.is_empty() {
        true => format!("\n{}\n", none(conclusions)),
        false => String::from("\nfindings\n"),
    };
    for (number, finding) in conclusions.findings.iter().enumerate() {
        let Finding { text, evidence, next, .. } = finding;
        out.push_str(&format!("{:>3}. {text}\n", number + 1));
        out.push_str(&format!("     by: {evidence}\n     next: {next}\n"));
    }
    for Inconclusive { what, why, next } in &conclusions.inconclusive {
        out.push_str(&format!("could not tell {what}: {why}\n     next: {next}\n"));
    }
    if let Some(NotRecorded { what, next }) = &conclusions.not_recorded {
        out.push_str(&format!("not recorded: {}\n     next: {next}\n", what.join(", ")));
    }
    out
}

/// As JSON: the findings, and what could not be told.
pub fn json(conclusions: &Conclusions) -> (Value, Value) {
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
    let not_told =
        |one: &Inconclusive| json!({ "what": one.what, "why": one.why, "next": one.next });
    (
        conclusions.findings.iter().map(one).collect(),
        conclusions.inconclusive.iter().map(not_told).collect(),
    )
}

/// As the first part of a page.
pub fn html(conclusions: &Conclusions, page: &mut Page) {
    page.heading("Findings");
    if conclusions.findings.is_empty() {
        page.paragraph(none(conclusions));
    } else {
        for (number, finding) in conclusions.findings.iter().enumerate() {
            let Finding { text, evidence, next, .. } = finding;
            page.prose(&format!("{}. {text}.", number + 1));
            page.prose(&format!("By: {evidence}.")).command(next);
        }
    }
    for Inconclusive { what, why, next } in &conclusions.inconclusive {
        page.prose(&format!("Could not tell {what}: {why}.")).command(next);
    }
    if let Some(NotRecorded { what, next }) = &conclusions.not_recorded {
        page.prose(&format!("Not recorded: {}.", what.join(", "))).command(next);
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::Bytes;

    use super::*;

    /// Backticks stood in the page as they are.
    #[test]
    fn names_of_functions_are_code_on_a_page_and_nothing_else_is() {
        let finding = |text: &str| Finding {
            subject: "cold",
            text: text.into(),
            evidence: "`main` <&>".into(),
            next: "pagemill report `pwd`".into(),
            stake: Stake::Memory(Bytes(1)),
            share: 0.5,
        };
        let findings = vec![finding("1 MiB of `a<b>` (a.c:1) and `c` are"), finding("one ` alone")];
        let mut page = Page::new("");
        html(&Conclusions { findings, ..Conclusions::default() }, &mut page);
        let page = page.finish();
        for expected in [
            "<p>1. 1 MiB of <code>a&lt;b&gt;</code> (a.c:1) and <code>c</code> are.</p>",
            "<p>By: <code>main</code> &lt;&amp;&gt;.</p>",
            "<p>2. one ` alone.</p>",
            ">pagemill report `pwd`</pre>",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
    }
}

//! The report's frame, for the terminal, as JSON and for HTML: who was recorded, the sections, what is missing.
//!
//! JSON has stable names; fields are only added; absent means not measured.

use pagemill_analysis::findings::Conclusions;
use pagemill_model::recording::Reader;
use pagemill_model::units::counted;
use serde_json::{Value, json};

use crate::draw::html::Page;
use crate::findings;
use crate::sections::{Section, Sections, heap};

/// A recording, and what it says.
pub struct Report {
    /// The recording, read to its end.
    pub reader: Reader,
    /// Its sections.
    pub sections: Sections,
    /// What it comes to.
    pub conclusions: Conclusions,
}

/// The whole report as text: its header, what was lost, and the rest.
pub fn text(report: &Report) -> [String; 3] {
    let line = |(label, value): (&str, String)| format!("{label:<10}{value}\n");
    let lost = lost(report).map(|lost| line(("lost", lost))).unwrap_or_default();
    let header = header(report).into_iter().map(line).collect();
    let mut out = String::new();
    if report.sections.shown().next().is_some() {
        out.push_str(&findings::text(&report.conclusions));
    }
    let sections: Vec<String> = report.sections.shown().map(Section::text).collect();
    if sections.is_empty() {
        out.push_str(&format!("\n{}\n", heap::NONE));
    }
    out.extend(sections);
    for (title, lines) in missing(report) {
        out.push_str(&format!("\n{title}\n"));
        lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
    }
    [header, lost, out]
}

/// The whole report as JSON.
pub fn json(report: &Report) -> Value {
    let mut answer = report.sections.json();
    let missing = report.reader.missing().map(|missing| {
        let ranges: Vec<_> =
            missing.parts.iter().map(|(_, range)| [range.start, range.end - 1]).collect();
        json!({ "samples": missing.rows, "heap_parts": ranges })
    });
    let truncated = report.reader.truncated_at().map(|at| at.0);
    let (found, inconclusive) = findings::json(&report.conclusions);
    answer.insert("findings".into(), found);
    answer.insert("untold".into(), inconclusive);
    answer.insert("meta".into(), json!(report.reader.meta()));
    answer.insert("truncated_at_ns".into(), json!(truncated));
    answer.insert("missing".into(), json!(missing));
    Value::Object(answer)
}

/// The whole report as an HTML file.
pub fn html(report: &Report) -> String {
    let meta = report.reader.meta();
    let mut page = Page::new(&format!("{} ({})", meta.comm, meta.pid));
    let facts = header(report).into_iter().chain(lost(report).map(|lost| ("lost", lost)));
    let facts: Vec<Vec<String>> =
        facts.map(|(label, value)| vec![label.to_owned(), value]).collect();
    page.facts(&facts);
    if report.sections.shown().next().is_none() {
        page.paragraph(heap::NONE);
    } else {
        findings::html(&report.conclusions, &mut page);
    }
    report.sections.shown().for_each(|section| section.html(&mut page));
    for (title, lines) in missing(report) {
        page.heading(&capitalized(title)).list(&lines);
    }
    page.finish()
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

/// What the report lacks, by why.
fn missing(report: &Report) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let degraded = report.sections.iter().flat_map(Section::degraded).collect();
    let lines = report.reader.meta().not_measured.iter();
    let not_measured = lines.map(|missing| format!("{}: {}", missing.what, missing.why)).collect();
    [("degraded", degraded), ("not measured", not_measured), ("losses", losses(report))]
        .into_iter()
        .filter(|(_, lines): &(_, Vec<String>)| !lines.is_empty())
}

/// Who, where, how long.
fn header(report: &Report) -> Vec<(&'static str, String)> {
    let meta = report.reader.meta();
    let mut lines = Vec::new();
    if !meta.command.is_empty() {
        lines.push(("command", meta.command.join(" ")));
    }
    lines.push(("process", format!("{} ({})", meta.comm, meta.pid)));
    lines.push(("kernel", format!("{} {}", meta.kernel, meta.machine)));
    let length = report.sections.iter().find_map(Section::length);
    let all = || meta.ended.map(|ended| ended.since(meta.started).plain());
    let mut length = length.or_else(all).unwrap_or_else(|| "unknown".into());
    if let Some(at) = report.reader.truncated_at() {
        length.push_str(&format!(
            ", truncated at {}: the recorder was killed, or is still at work",
            at.plain()
        ));
    }
    lines.push(("length", length));
    if let Some(status) = meta.exit_status {
        lines.push((
            "exit",
            match meta.exit_signal {
                Some(signal) => format!("{status}, ended by signal {signal}{}", name_of(signal)),
                None => status.to_string(),
            },
        ));
    }
    lines.extend(report.sections.iter().flat_map(Section::header));
    lines
}

/// The name of a signal that ends programs, in parentheses.
fn name_of(signal: u64) -> String {
    // The numbers of x86-64 and most others.
    const NAMES: [(u64, &str); 12] = [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (4, "ILL"),
        (5, "TRAP"),
        (6, "ABRT"),
        (7, "BUS"),
        (8, "FPE"),
        (9, "KILL"),
        (11, "SEGV"),
        (13, "PIPE"),
        (15, "TERM"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == signal);
    known.map_or_else(String::new, |(_, name)| format!(" (SIG{name})"))
}

/// What the recorder or the kernel dropped, if anything.
fn lost(report: &Report) -> Option<String> {
    let meta = report.reader.meta();
    let faults = meta.faults.as_ref().map_or((0, 0), |setup| (setup.lost, setup.lost_rows));
    let counts = [
        (meta.losses.missed_samples, "sample", "samples"),
        (meta.losses.lost_notes, "note on allocations", "notes on allocations"),
        (faults.0, "page fault", "page faults"),
        (faults.1, "row of slow faults", "rows of slow faults"),
        (meta.accesses.as_ref().map_or(0, |setup| setup.lost), "access", "accesses"),
    ];
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, one, more)| counted(count, one, more)).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

fn losses(report: &Report) -> Vec<String> {
    let losses = report.reader.meta().losses;
    let counted = [
        (losses.missed_samples, "samples missed: the recorder was late (use a longer --interval)"),
        (losses.removed_samples, "oldest samples removed to stay below --max-size"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0);
    let counted = counted.map(|(count, what)| format!("{count} {what}"));
    gone(report).into_iter().chain(counted).collect()
}

/// What the recording once had and does not have any more.
pub fn gone(report: &Report) -> Option<String> {
    let missing = report.reader.missing()?;
    let (parts, rows) = (missing.named(), missing.rows);
    Some(format!(
        "{} gone: the recording was written with {parts} and does not have them any more",
        counted(rows, "row is", "rows are")
    ))
}

//! The report's words and figures, for the terminal and for HTML.

use pagemill_analysis::heap::{HeapView, Pauses, Summary};
use pagemill_model::{Bytes, Nanos};

use super::accesses::Accesses;
use super::faults::Faults;
use pagemill_report::hugepages;

use super::{Report, decisions, frag};
use pagemill_report::draw::chart::Series;
use pagemill_report::draw::text;
use pagemill_report::heap as heap_report;

/// The whole report as text.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    for (label, value) in header(report) {
        out.push_str(&format!("{label:<10}{value}\n"));
    }
    let memory = memory(&report.view);
    let other = report.without_heap();
    if memory.is_empty() && !other {
        out.push_str("\nno memory was measured\n");
    } else if !memory.is_empty() {
        out.push('\n');
        out.push_str(&text::table(&MEMORY_HEADER, &memory));
        out.push_str(&format!("\n{FORMULA}\n\n"));
        out.push_str(&text::chart(&series(&report.view), "MiB", "s", 72, 14));
    }
    for (title, rows) in [("compaction", compaction(&report.view)), ("CPU", cpu(&report.view))] {
        if !rows.is_empty() {
            out.push_str(&format!("\n{title}\n{}", text::table(&[], &rows)));
        }
    }
    for (_, explained, header, rows) in durations(&report.view) {
        out.push_str(&format!("\n{explained}\n{}", text::table(&header, &rows)));
    }
    out.extend(report.faults.as_ref().map(Faults::text));
    out.extend(report.hugepages.as_ref().map(hugepages::text));
    out.extend(report.frag.as_ref().map(frag::text));
    out.extend(report.decisions.as_ref().map(|rows| decisions::text(rows)));
    out.extend(report.accesses.as_ref().map(Accesses::text));
    for (title, lines) in [
        ("degraded", degraded(report)),
        ("not measured", not_measured(report)),
        ("losses", losses(report)),
    ] {
        if !lines.is_empty() {
            out.push_str(&format!("\n{title}\n"));
            for line in lines {
                out.push_str(&format!("  {line}\n"));
            }
        }
    }
    out
}

pub(super) const MEMORY_HEADER: [&str; 4] = ["memory", "mean", "peak", "last"];
pub(super) const FORMULA: &str = "Pss = sum over pages of page size / mappings of the page: merged pages count once. \
Rss counts them once an alias, so it is too high.\nfragmentation score = 1 - live / footprint";

/// Who, where, how long.
pub(super) fn header(report: &Report) -> Vec<(&'static str, String)> {
    let meta = report.reader.meta();
    let view = &report.view;
    let mut lines = Vec::new();
    if !meta.command.is_empty() {
        lines.push(("command", meta.command.join(" ")));
    }
    lines.push(("process", format!("{} ({})", meta.comm, meta.pid)));
    lines.push(("kernel", format!("{} {}", meta.kernel, meta.machine)));
    let duration = view.duration.to_string();
    let mut length = match &report.faults {
        Some(faults) if view.samples == 0 => faults.view.duration.to_string().trim().to_owned(),
        None if view.samples == 0
            && let Some(accesses) = &report.accesses =>
        {
            accesses.length()
        }
        None if view.samples == 0
            && let Some(last) = report
                .decisions
                .as_ref()
                .and_then(|rows| rows.iter().map(|row| row.last).max()) =>
        {
            format!("{} of decisions", last.to_string().trim())
        }
        _ => format!("{}, {} samples", duration.trim(), view.samples),
    };
    if let Some(at) = report.reader.truncated_at() {
        length.push_str(&format!(
            ", truncated at {}: the recorder did not finish",
            at.to_string().trim()
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
    if let Some(last) = &view.last {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        if last.live.is_some() {
            lines.push((
                "heap",
                format!(
                    "{}, back end {}, barrier {}",
                    word(&last.config),
                    word(&last.backend),
                    word(&last.barrier)
                ),
            ));
        }
    }
    lines
}

/// Mean, peak and last of each quantity that was measured.
pub(super) fn memory(view: &HeapView) -> Vec<Vec<String>> {
    let sizes = [
        ("memory", &view.memory),
        ("Pss", &view.pss),
        ("cgroup charge", &view.cgroup),
        ("  kernel part", &view.cgroup_kernel),
        ("heap footprint", &view.footprint),
        ("heap live", &view.live),
        ("Rss", &view.rss),
    ];
    let size = |value: f64| Bytes(value.max(0.0) as u64).to_string();
    let mut rows = Vec::new();
    for (name, summary) in sizes {
        if let Some(Summary { mean, peak, last, .. }) = summary {
            rows.push(vec![name.to_owned(), size(*mean), size(*peak), size(*last)]);
        }
    }
    if let Some(Summary { mean, peak, last, .. }) = &view.score {
        let score = |value: &f64| format!("{value:.2}");
        rows.push(vec!["fragmentation score".into(), score(mean), score(peak), score(last)]);
    }
    rows
}

/// The lines of the chart: MiB over seconds.
pub(super) fn series(view: &HeapView) -> Vec<Series> {
    [
        ("Rss", &view.rss),
        ("memory", &view.memory),
        ("heap footprint", &view.footprint),
        ("heap live", &view.live),
    ]
    .into_iter()
    .filter_map(|(name, summary)| {
        let points = &summary.as_ref()?.points;
        let mib = |(at, bytes): &(f64, f64)| (*at, bytes / 1048576.0);
        Some(Series { name: name.into(), points: points.iter().map(mib).collect() })
    })
    .collect()
}

pub(super) fn compaction(view: &HeapView) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: Option<String>| {
        rows.extend(value.map(|value| vec![name.to_owned(), value]));
    };
    let last = view.last.as_ref();
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    row("passes", number(view.passes));
    row("time of compaction, total", view.compact.map(|time| time.to_string()));
    row("groups in force at the end", number(last.and_then(|last| last.groups)));
    row(
        "saved by merging at the end",
        last.and_then(|last| last.saved).map(|saved| saved.to_string()),
    );
    row(
        "given back as free pages",
        last.and_then(|last| last.released).map(|size| size.to_string()),
    );
    row(
        "mappings held at the end",
        last.and_then(|last| {
            let bound = heap_report::mapping_bound(last)?;
            Some(format!("{} {bound}", last.vmas?))
        }),
    );
    row("pages un-merged by writes", number(view.unmerged_pages));
    row("groups given up", number(view.aborted_groups));
    row("mean occupancy of spans", view.occupancy.map(|share| format!("{:.0} %", share * 100.0)));
    rows
}

pub(super) fn cpu(view: &HeapView) -> Vec<Vec<String>> {
    let rows = [
        ("process", view.cpu),
        ("  the heap's helper thread in that", view.helper_cpu),
        ("ksmd, by its share of pages looked at", view.ksmd_cpu),
    ];
    let row = |(name, time): (&str, Option<Nanos>)| Some(vec![name.to_owned(), time?.to_string()]);
    rows.into_iter().filter_map(row).collect()
}

/// Tables of pauses and stalls: name, explanation, header, rows.
pub(super) fn durations(
    view: &HeapView,
) -> impl Iterator<Item = (&'static str, &'static str, [&'static str; 2], Vec<Vec<String>>)> {
    let of = |name, explained, one, durations: &Option<Pauses>| {
        Some((name, explained, ["share", one], rows(durations.as_ref()?)))
    };
    [
        of("Pauses", heap_report::PAUSES, "pause", &view.pauses),
        of("Stalls", heap_report::STALLS, "stall", &view.stalls),
    ]
    .into_iter()
    .flatten()
}

fn rows(pauses: &Pauses) -> Vec<Vec<String>> {
    let mut rows = heap_report::percentiles(pauses);
    rows.push(vec!["count".into(), pauses.count.to_string()]);
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    match (pauses.longest, pauses.longest_bucket()) {
        (Some(longest), _) => row("longest, exact", longest.to_string()),
        (None, Some((from, below))) => row("longest, its bucket", format!("{from} to {below}")),
        (None, None) => {}
    }
    if let (None, Some(life)) = (pauses.longest, pauses.longest_of_life) {
        row("longest of the heap's life, before this recording", life.to_string());
    }
    rows
}

pub(super) fn degraded(report: &Report) -> Vec<String> {
    let bits = report.view.last.as_ref().and_then(|last| last.degraded);
    heap_report::degradations(bits.unwrap_or(0))
}

pub(super) fn not_measured(report: &Report) -> Vec<String> {
    let lines = report.reader.meta().not_measured.iter();
    lines.map(|missing| format!("{}: {}", missing.what, missing.why)).collect()
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

pub(super) fn losses(report: &Report) -> Vec<String> {
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
pub(super) fn gone(report: &Report) -> Option<String> {
    let missing = report.reader.missing()?;
    let (parts, rows) = (missing.named(), missing.rows);
    Some(format!(
        "{rows} rows are gone: the recording was written with {parts} and does not have them any more"
    ))
}

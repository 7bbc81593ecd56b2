//! The report as one HTML file.

use super::{Report, summary};
use pagemill_report::draw::chart::{Bar, BarChart, LineChart, Series};
use pagemill_report::draw::html::Page;
use pagemill_report::heap as heap_report;

/// The whole file.
pub(super) fn page(report: &Report) -> String {
    let meta = report.reader.meta();
    let mut page = Page::new(&format!("{} ({})", meta.comm, meta.pid));
    let header: Vec<Vec<String>> = summary::header(report)
        .into_iter()
        .map(|(label, value)| vec![label.to_owned(), value])
        .collect();
    page.facts(&header);
    if let Some(faults) = &report.faults {
        faults.html(&mut page);
    }
    if let Some(hugepages) = &report.hugepages {
        page.heading("Huge pages").preformatted(pagemill_report::hugepages::text(hugepages).trim());
    }
    if let Some(frag) = &report.frag {
        page.heading("Free memory of the machine");
        page.chart(&super::frag::chart(frag).svg());
        page.preformatted(super::frag::text(frag).trim());
    }
    if let Some(rows) = &report.decisions {
        page.heading("Huge page decisions").preformatted(super::decisions::text(rows).trim());
    }
    if let Some(accesses) = &report.accesses {
        accesses.html(&mut page);
    }
    let memory = summary::memory(&report.view);
    if memory.is_empty() && report.without_heap() {
        return end(report, page);
    }
    let chart = LineChart {
        title: "Memory over time".into(),
        x: "seconds".into(),
        y: "MiB".into(),
        series: summary::series(&report.view),
    };
    page.heading("Memory").chart(&chart.svg());
    page.table(&summary::MEMORY_HEADER, &memory);
    page.preformatted(summary::FORMULA);
    if let Some(score) = &report.view.score {
        let chart = LineChart {
            title: "Fragmentation score over time".into(),
            x: "seconds".into(),
            y: "1 - live / footprint".into(),
            series: vec![Series { name: "score".into(), points: score.points.clone() }],
        };
        page.chart(&chart.svg());
    }
    for (title, rows) in
        [("Compaction", summary::compaction(&report.view)), ("CPU", summary::cpu(&report.view))]
    {
        if !rows.is_empty() {
            page.heading(title).table(&["", ""], &rows);
        }
    }
    if let Some(histogram) = report.view.last.as_ref().and_then(|last| last.occupancy.as_ref()) {
        let bars = histogram.iter().enumerate().map(|(index, count)| Bar {
            label: heap_report::occupancy_label(index, histogram.len()),
            value: *count as f64,
            interval: None,
            colour: 0,
        });
        let chart = BarChart {
            title: "Spans by live share, at the end".into(),
            unit: "spans".into(),
            bars: bars.collect(),
            reference: None,
        };
        page.heading("Occupancy").chart(&chart.svg());
    }
    for (name, explained, header, rows) in summary::durations(&report.view) {
        page.heading(name).paragraph(explained).table(&header, &rows);
    }
    end(report, page)
}

/// What is missing, and the end of the file.
fn end(report: &Report, mut page: Page) -> String {
    for (title, lines) in [
        ("Degraded", summary::degraded(report)),
        ("Not measured", summary::not_measured(report)),
        ("Losses", summary::losses(report)),
    ] {
        if !lines.is_empty() {
            page.heading(title).list(&lines);
        }
    }
    page.finish()
}

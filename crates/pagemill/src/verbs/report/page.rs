//! The report as one HTML file.

use super::{Report, summary};
use crate::report::chart::{LineChart, Series};
use crate::report::html::Page;

/// The whole file.
pub(super) fn html(report: &Report) -> String {
    let meta = report.reader.meta();
    let mut page = Page::new(&format!("{} ({})", meta.comm, meta.pid));
    let header: Vec<Vec<String>> = summary::header(report)
        .into_iter()
        .map(|(label, value)| vec![label.to_owned(), value])
        .collect();
    page.table(&["", ""], &header);
    let chart = LineChart {
        title: "Memory over time".into(),
        x: "seconds".into(),
        y: "MiB".into(),
        series: summary::series(&report.view),
    };
    page.heading("Memory").chart(&chart.svg());
    page.table(&summary::MEMORY_HEADER, &summary::memory(&report.view));
    page.paragraph(summary::FORMULA);
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
    let pauses = summary::pauses(&report.view);
    if !pauses.is_empty() {
        page.heading("Pauses").paragraph(summary::PAUSES).table(&summary::PAUSE_HEADER, &pauses);
    }
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

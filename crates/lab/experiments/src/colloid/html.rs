//! The report as sections of an HTML page: tables, heat maps of the errors, lines over time.

use pagemill_report::draw::chart::{Heat, HeatMap, LineChart, Series};
use pagemill_report::draw::html::Page;

use super::cell::Cell;
use super::report::{Line, Report};
use super::text::{describe, unique};

/// The error at which a cell has its full colour.
const FULL: f64 = 0.2;

/// Adds the report to a page.
pub fn render(page: &mut Page, report: &Report) {
    page.heading("colloid: Tiered Memory Management: Access Latency is the Key! (SOSP 2024)");
    page.paragraph(
        "All of ours here is modelled: a simulated machine whose parameters come from documents, not a measurement. \
         Published numbers are shown beside ours and are never an input, except for the cell marked so.",
    );
    for (figure, metric) in
        unique(report.cells.iter().map(|c| (c.figure.as_str(), c.metric.as_str())))
    {
        let cells: Vec<&Cell> =
            report.cells.iter().filter(|c| c.figure == figure && c.metric == metric).collect();
        let compared = cells.iter().any(|cell| cell.published.is_some());
        let title = format!(
            "figure {figure}: {metric} (modelled{})",
            if compared { " / published / error" } else { "" }
        );
        page.chart(&map(&title, &cells, compared).svg());
    }
    page.list(&report.scores.iter().map(super::text::score).collect::<Vec<_>>());
    for chart in unique(report.lines.iter().map(|line| line.chart.as_str())) {
        for (what, value) in [
            (
                "throughput / best static placement at the end",
                relative as fn(&Line, &[f64; 3]) -> f64,
            ),
            ("share of reads on the default tier", |_, point| point[2]),
        ] {
            let series =
                report.lines.iter().filter(|line| line.chart == chart).map(|line| Series {
                    name: line.name.clone(),
                    points: line
                        .points
                        .iter()
                        .map(|point| (point[0], value(line, point)))
                        .collect(),
                });
            let drawn = LineChart {
                title: format!("figure 7: {chart} at second 0"),
                x: "seconds".into(),
                y: what.into(),
                series: series.collect(),
            };
            page.chart(&drawn.svg());
        }
    }
    if !report.sensitivity.is_empty() {
        page.paragraph(
            "Sensitivity: change of each cell of 6c in % at -10 % / +10 % of a parameter, most \
             influential first.",
        );
        let columns: Vec<String> = report.sensitivity[0]
            .cells
            .iter()
            .map(|cell| format!("{}, {}", cell.0, cell.1))
            .collect();
        let mut header = vec!["parameter"];
        header.extend(columns.iter().map(String::as_str));
        let rows: Vec<Vec<String>> = report
            .sensitivity
            .iter()
            .map(|influence| {
                std::iter::once(influence.key.clone())
                    .chain(
                        influence
                            .cells
                            .iter()
                            .map(|cell| format!("{:+.1} / {:+.1}", cell.2 * 100.0, cell.3 * 100.0)),
                    )
                    .collect()
            })
            .collect();
        page.table(&header, &rows);
    }
    page.list(&report.notes);
}

fn relative(line: &Line, point: &[f64; 3]) -> f64 {
    point[1] / line.best
}

/// Cells by row and column: coloured by error where there is a published number, by value within the table otherwise.
fn map(title: &str, cells: &[&Cell], compared: bool) -> HeatMap {
    let columns = unique(cells.iter().map(|cell| cell.column.as_str()));
    let greatest =
        cells.iter().map(|cell| cell.modelled.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let rows = unique(cells.iter().map(|cell| cell.row.as_str()));
    let heat = |row: &str, column: &str| {
        let found = cells.iter().find(|cell| cell.row == row && cell.column == column);
        found.map_or_else(Heat::default, |cell| Heat {
            text: describe(cell),
            shade: if compared {
                cell.error().map_or(f64::NAN, |error| error / FULL)
            } else {
                cell.modelled / greatest.max(f64::MIN_POSITIVE) * 0.6
            },
        })
    };
    HeatMap {
        title: title.to_owned(),
        rows: rows
            .into_iter()
            .map(|row| (row.to_owned(), columns.iter().map(|column| heat(row, column)).collect()))
            .collect(),
        columns: columns.into_iter().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_cells_errors_lines_and_sensitivity() {
        let cell = Cell { published: Some(2.0), ..Cell::of("6c", "135 ns", "3x", "ratio", 1.9) };
        let report = Report {
            cells: vec![cell, Cell::of("7", "tpp", "moves", "regret", f64::INFINITY)],
            lines: vec![Line {
                chart: "moves".into(),
                name: "tpp".into(),
                points: vec![[0.0, 5.0, 0.5], [1.0, 10.0, 0.6]],
                best: 10.0,
            }],
            sensitivity: vec![super::super::report::Influence {
                key: "dram.faw".into(),
                cells: vec![("135 ns".into(), "3x".into(), 0.01, -0.02)],
            }],
            ..Report::default()
        };
        let mut page = Page::new("test");
        render(&mut page, &report);
        let html = page.finish();
        for wanted in [
            "1.900 / 2.000 / -5.0 %",
            "not within the run",
            "dram.faw",
            "+1.0 / -2.0",
            "moves at second 0",
        ] {
            assert!(html.contains(wanted), "{wanted:?} is missing");
        }
        assert_eq!(html.matches("<figure").count(), 4, "two tables and two lines over time");
    }
}

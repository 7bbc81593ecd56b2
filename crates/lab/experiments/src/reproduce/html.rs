//! The summary as one HTML file with charts.

use super::measured::Figure;
use super::summary::{Section, Summary, Table};
use super::terminal;
use crate::colloid;
use crate::scoreboard::{Entry, STATES, Scoreboard};
use crate::tabled::Outcomes;
use pagemill_report::draw::chart::{Bar, BarChart, LineChart, Series};
use pagemill_report::draw::html::Page;

/// The whole page; `outcomes` and `simulated` follow the experiments on allocators.
pub fn render(
    summary: &Summary,
    simulated: Option<&colloid::Report>,
    outcomes: &Outcomes,
) -> String {
    let mut page = Page::new("pagemill reproduce");
    page.paragraph(
        "Published experiments, run again: each table shows what was measured here, then what was published \
         and whether it was reproduced.",
    );
    if summary.of.quick {
        page.paragraph(
            "This was a quick run: smaller sizes, fewer arms and few runs. Its intervals are wide.",
        );
    }
    if summary.of.interrupted {
        page.paragraph("The run was interrupted: what is missing was not measured.");
    }
    page.list(&summary.of.machine).contents();
    render_board(&mut page, &Scoreboard::of(Some(summary), simulated, outcomes));
    for section in &summary.sections {
        render_section(&mut page, section);
    }
    outcomes.tables.iter().for_each(|(_, tables)| tables.page(&mut page));
    if let Some(report) = simulated {
        colloid::page(&mut page, report);
    }
    let skipped = terminal::skip_lines(summary);
    if !skipped.is_empty() {
        page.heading("Skipped").list(&skipped);
    }
    page.heading("How the figures are made").paragraph(terminal::FORMULA).paragraph(RULE);
    page.finish()
}

/// How many claims are so here, and each that was judged.
fn render_board(page: &mut Page, board: &Scoreboard) {
    if board.claims.is_empty() {
        return;
    }
    let (header, rows) = board.counts();
    page.heading("What was reproduced").table(&header, &rows);
    let (met, all) = board.targets;
    if all > 0 {
        page.paragraph(&format!("Targets of our own: {met} of {all} met."));
    }
    let row = |entry: &&Entry| {
        let word =
            STATES.iter().find(|(state, _)| *state == entry.state).map_or("", |(_, word)| word);
        [&entry.claim, &entry.published, &entry.here, word].map(str::to_owned).to_vec()
    };
    page.heading("Every claim");
    let mut sources: Vec<&str> = Vec::new();
    for Entry { source, .. } in &board.claims {
        if !sources.contains(source) {
            sources.push(source);
        }
    }
    for source in sources {
        let claims = board.claims.iter().filter(|entry| entry.source == source);
        let rows: Vec<_> = claims.collect::<Vec<_>>().iter().map(row).collect();
        page.heading_below(source).table(&["claim", "published", "here", "state"], &rows);
    }
}

/// The rule of [`super::verdict`] in a paragraph.
const RULE: &str = "\
Reproduced: the published ratio lies in our interval, or ours is within 0.05 of it, on the same side of 1. Better \
                    than published: ours is \
lower. Same direction, smaller effect: a saving was published and ours is a smaller one. Not reproduced: anything \
                    else. Absolute figures \
come from another machine and are marked so. Published numbers are shown, never used.";

fn render_section(page: &mut Page, section: &Section) {
    page.heading(&format!("{}: {}", section.experiment, section.title));
    page.paragraph(&section.about).paragraph(&terminal::section_facts(section));
    let claims = terminal::claim_rows(section);
    if !claims.is_empty() {
        page.table(&terminal::CLAIM_HEADER, &claims);
    }
    let goals = terminal::goal_rows(section);
    if !goals.is_empty() {
        page.table(&terminal::GOAL_HEADER, &goals);
    }
    page.list(&terminal::unmeasured(section));
    for table in &section.tables {
        let case =
            if section.tables.len() > 1 { format!("{}: ", table.case) } else { String::new() };
        page.chart(&ratios(section, table, &case, true).svg());
        page.chart(&ratios(section, table, &case, false).svg());
        page.chart(&timeline(table, &case).svg());
        for (header, rows) in [terminal::headline(section, table), terminal::others(section, table)]
        {
            if header.len() > 1 {
                let header: Vec<&str> = header.iter().map(String::as_str).collect();
                page.table(&header, &rows);
            }
        }
        let notes = table
            .rows
            .iter()
            .flat_map(|row| row.notes.iter().map(move |note| format!("{}: {note}", row.arm)));
        page.list(&notes.collect::<Vec<_>>());
    }
    let noise = terminal::noise(section).map(|noise| format!("NOISE {noise}"));
    let failed = section.failed.iter().map(|cell| format!("FAILED {cell}"));
    page.list(&noise.into_iter().chain(failed).collect::<Vec<String>>());
}

/// Memory or time of each arm against jemalloc, or against the first reference that ran.
fn ratios(section: &Section, table: &Table, case: &str, memory: bool) -> BarChart {
    let column = if memory { &section.memory } else { &section.time };
    let has = |against: &&str| {
        table.rows.iter().any(|row| {
            row.ratios.get(&column.name).is_some_and(|ratios| ratios.contains_key(*against))
        })
    };
    let against = super::summary::REFERENCES.into_iter().find(has).unwrap_or("jemalloc");
    let itself = Figure { value: 1.0, interval: None, runs: 0 };
    let bars = table.rows.iter().enumerate().filter_map(|(index, row)| {
        let ratio = row.ratios.get(&column.name).and_then(|ratios| ratios.get(against));
        let reference =
            (row.arm == against && row.figures.contains_key(&column.name)).then_some(&itself);
        let ratio = ratio.or(reference)?;
        Some(Bar {
            label: row.arm.clone(),
            value: ratio.value,
            interval: ratio.interval,
            colour: index,
        })
    });
    BarChart {
        title: format!("{case}{} / {against}", column.label),
        unit: String::new(),
        bars: bars.collect(),
        reference: Some(1.0),
    }
}

fn timeline(table: &Table, case: &str) -> LineChart {
    let series = table.timelines.iter().map(|line| Series {
        name: line.arm.clone(),
        points: line
            .pss
            .iter()
            .map(|&(seconds, bytes)| (seconds, bytes / f64::from(1 << 20)))
            .collect(),
    });
    LineChart {
        title: format!("{case}memory over time, first run of each arm"),
        x: "seconds".into(),
        y: "memory, MiB".into(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_holds_figures_verdicts_charts_and_gaps() {
        let html = render(&terminal::tests::summary(), None, &Outcomes::default());
        for wanted in [
            "tiny: A tiny experiment",
            "About &lt;it&gt;.",
            "a &lt;machine&gt;",
            "-39 %",
            "better than published",
            "50.0 MiB",
            "memory over time, first run of each arm",
            "Pss / jemalloc",
            "FAILED tiny mesh #1: it crashed",
            "tiny mesh: MESH_LIB is not set",
        ] {
            assert!(html.contains(wanted), "{wanted:?} is missing");
        }
        assert_eq!(html.matches("<figure").count(), 3, "two bar charts and a timeline");
    }

    #[test]
    fn the_reference_itself_has_a_bar_of_one() {
        let summary = terminal::tests::summary();
        let section = &summary.sections[0];
        let chart = ratios(section, &section.tables[0], "", true);
        let bars: Vec<_> = chart.bars.iter().map(|bar| (bar.label.as_str(), bar.value)).collect();
        assert_eq!(bars, [("jemalloc", 1.0), ("1y-ksm", 0.5)]);
    }
}

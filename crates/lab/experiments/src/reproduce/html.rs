//! The summary as one HTML file with charts.

use super::measured::Figure;
use super::summary::{Section, Summary, Table};
use super::terminal;
use crate::colloid;
use crate::scoreboard::{Entry, STATES, Scoreboard, State};
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
    page.heading("Every claim");
    let mut sources: Vec<&str> = Vec::new();
    for Entry { source, .. } in &board.claims {
        if !sources.contains(source) {
            sources.push(source);
        }
    }
    for source in sources {
        let claims: Vec<_> = board.claims.iter().filter(|entry| entry.source == source).collect();
        // What became of a claim stands where a narrow screen shows it.
        page.heading_below(source)
            .table(&["state", "claim", "published", "here"], &claim_rows(&claims));
    }
}

/// A row each claim, and one for all that are not here for the same reason.
fn claim_rows(claims: &[&Entry]) -> Vec<Vec<String>> {
    /// So many with one reason are listed one by one.
    const FEW: usize = 2;
    let word =
        |of: State| STATES.iter().find(|(state, _)| *state == of).map_or("", |(_, word)| *word);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut told: Vec<&str> = Vec::new();
    for entry in claims {
        let Entry { claim, published, here, state, .. } = entry;
        let row = |claim: &str, published: &str| {
            [word(*state), claim, published, here.as_str()].map(str::to_owned).to_vec()
        };
        let why = |other: &&&Entry| other.state == State::NotRunHere && other.here == *here;
        let of: Vec<_> = claims.iter().filter(why).map(|other| other.claim.as_str()).collect();
        if *state != State::NotRunHere || of.len() <= FEW {
            rows.push(row(claim, published));
        } else if !told.contains(&here.as_str()) {
            told.push(here);
            rows.push(row(&of.join("; "), &format!("{} claims", of.len())));
        }
    }
    rows
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

    /// Sixteen rows said that their figure is not among those of the run, and all states stood off a narrow screen.
    #[test]
    fn claims_that_are_not_here_for_one_reason_are_one_row_and_the_state_stands_first() {
        let entry = |claim: &str, here: &str, state| Entry {
            source: "Moca",
            claim: claim.into(),
            published: "1.800".into(),
            here: here.into(),
            state,
        };
        let none = "not made: no figure";
        let claims = [
            entry("a", none, State::NotRunHere),
            entry("b", "1.1", State::Differs),
            entry("c", none, State::NotRunHere),
            entry("d", none, State::NotRunHere),
            entry("e", "not measured: no root", State::NotRunHere),
            entry("f", none, State::Differs),
        ];
        let rows = claim_rows(&claims.iter().collect::<Vec<_>>());
        let expected = [
            ["not run here", "a; c; d", "3 claims", none],
            ["differs", "b", "1.800", "1.1"],
            ["not run here", "e", "1.800", "not measured: no root"],
            ["differs", "f", "1.800", none],
        ];
        assert_eq!(rows, expected.map(|row| row.map(str::to_owned).to_vec()));
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

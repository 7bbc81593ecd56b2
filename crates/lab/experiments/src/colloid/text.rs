//! The report as text: tables with our cell, the published one and the error, shaded by how large it is.

use anyhow::{Context, Result};

use super::cell::Cell;
use super::report::{Report, Score};

impl Report {
    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out =
            String::from("All of ours is modelled: a simulated machine, not a measurement.\n");
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for cell in &self.cells {
            let table = (cell.figure.as_str(), cell.metric.as_str());
            if seen.contains(&table) {
                continue;
            }
            seen.push(table);
            out += &format!(
                "\nfigure {}: {} (modelled{})\n",
                table.0,
                table.1,
                if self.compared(table) { " / published / error" } else { "" }
            );
            out += &self.table(table.0, table.1);
        }
        for one in &self.scores {
            out += &format!("\n{}\n", score(one));
        }
        if !self.sensitivity.is_empty() {
            out += "\nsensitivity: change of each cell in % at -10 % / +10 % of a parameter, most influential first\n";
            for influence in &self.sensitivity {
                let cells: Vec<String> = influence
                    .cells
                    .iter()
                    .map(|c| format!("{} {} {:+.1}/{:+.1}", c.0, c.1, c.2 * 100.0, c.3 * 100.0))
                    .collect();
                out += &format!("{:<28} {}\n", influence.key, cells.join("; "));
            }
        }
        for note in &self.notes {
            out += &format!("\nnote: {note}\n");
        }
        out
    }

    fn compared(&self, table: (&str, &str)) -> bool {
        self.cells
            .iter()
            .any(|c| (c.figure.as_str(), c.metric.as_str()) == table && c.published.is_some())
    }

    fn table(&self, figure: &str, metric: &str) -> String {
        let cells: Vec<&Cell> =
            self.cells.iter().filter(|c| c.figure == figure && c.metric == metric).collect();
        let rows = unique(cells.iter().map(|cell| cell.row.as_str()));
        let columns = unique(cells.iter().map(|cell| cell.column.as_str()));
        let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut out = format!("{:width$}", "");
        for column in &columns {
            out += &format!("  {column:>28}");
        }
        out.push('\n');
        for row in rows {
            out += &format!("{row:width$}");
            for column in &columns {
                let text = cells
                    .iter()
                    .find(|cell| cell.row == row && cell.column == *column)
                    .map_or(String::new(), |cell| describe(cell));
                out += &format!("  {text:>28}");
            }
            out.push('\n');
        }
        out
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None that a finite report can cause.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self).context("cannot write the report as JSON")
    }
}

/// A score in a line.
pub(super) fn score(score: &Score) -> String {
    let met = score.mean <= score.goal.0 && score.max <= score.goal.1;
    format!(
        "{}: mean {:.1} %, greatest {:.1} % over {} (goal {:.0} %, {:.0} %): {}",
        score.what,
        score.mean * 100.0,
        score.max * 100.0,
        score.cells,
        score.goal.0 * 100.0,
        score.goal.1 * 100.0,
        if met { "met" } else { "missed" },
    )
}

/// The names, each once, in order of appearance.
pub(super) fn unique<T: PartialEq>(names: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// A figure, wherever it is told with as many digits.
pub(crate) fn value(value: f64) -> String {
    if !value.is_finite() {
        "not within the run".to_owned()
    } else if value.abs() >= 1e6 {
        format!("{:.2}M", value / 1e6)
    } else {
        format!("{value:.3}")
    }
}

/// A cell with its error, shaded by how large the error is.
pub(super) fn describe(cell: &Cell) -> String {
    match (cell.published, cell.error()) {
        (Some(published), Some(error)) => {
            let shade = match error.abs() {
                e if e <= 0.03 => ' ',
                e if e <= 0.08 => '░',
                e if e <= 0.15 => '▒',
                _ => '█',
            };
            format!(
                "{} / {} / {:+.1} % {shade}",
                value(cell.modelled),
                value(published),
                error * 100.0
            )
        }
        (Some(published), None) => {
            format!("{} / {} / input", value(cell.modelled), value(published))
        }
        _ => value(cell.modelled),
    }
}

//! Cells of the tables, with the published numbers.

use serde::{Deserialize, Deserializer, Serialize};

use crate::coverage::{self, Source};

/// Whose figures these are held against.
pub(crate) static SOURCE: Source = Source {
    name: "Colloid",
    figures: include_str!("../../../../../experiments/published/colloid.csv"),
};

pub(super) const LATENCIES: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
pub(super) const LOADS: [f64; 4] = [0.0, 1.0, 2.0, 3.0];

/// What is compared: without and with Colloid.
const SYSTEMS: [&str; 2] = ["TPP", "TPP+colloid"];
pub(super) const GAIN: &str = "with/without Colloid";
/// The published tables.
const GUPS: &str = "GUPS: alternate tier unloaded latency x background load (Fig 6c)";
const SILO: &str = "Silo (Fig 8b)";
/// Facts of the set-up: metric and row.
pub(super) const ALONE: [&str; 2] = ["antagonist alone", "part of the peak that it draws"];
pub(super) const LOADED: [&str; 2] = ["default tier under load", "ns, hot set on it"];
pub(super) const LOG: &str = "HeMem's sample log, share 0.934";
pub(super) const SAMPLE_LOG: [&str; 3] = ["updates/s", "default tier, ns", "alternate tier, ns"];

/// One cell of a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    /// Its figure.
    pub figure: String,
    /// Its row.
    pub row: String,
    /// Its column.
    pub column: String,
    /// What it counts.
    pub metric: String,
    /// Ours, modelled; infinite (in JSON: null) where a run did not get there.
    #[serde(deserialize_with = "null_is_infinite")]
    pub modelled: f64,
    /// The published number.
    pub published: Option<f64>,
    /// Whether a parameter was set from this very number, so that it says nothing.
    pub input: bool,
}

impl Cell {
    /// One of ours, with the published number if [`claims`] has it.
    pub(super) fn of(figure: &str, row: &str, column: &str, metric: &str, modelled: f64) -> Self {
        let own = Self::published(figure, row, column, metric, None);
        let known = claims().into_iter().find(|cell| cell.place() == own.place()).unwrap_or(own);
        Self { modelled, ..known }
    }

    /// One that is not made yet.
    fn published(
        figure: &str,
        row: &str,
        column: &str,
        metric: &str,
        published: Option<f64>,
    ) -> Self {
        Self {
            figure: figure.to_owned(),
            row: row.to_owned(),
            column: column.to_owned(),
            metric: metric.to_owned(),
            modelled: f64::NAN,
            published,
            input: false,
        }
    }

    /// What names it.
    pub(crate) fn place(&self) -> [&str; 4] {
        [&self.figure, &self.row, &self.column, &self.metric]
    }

    /// Relative error, where there is a published number that was not an input.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        self.published.filter(|_| !self.input).map(|published| self.modelled / published - 1.0)
    }
}

fn null_is_infinite<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::INFINITY))
}

/// A column of the tables: so much background load.
pub(super) fn at(steps: f64) -> String {
    format!("{steps}x")
}

/// The cells for which a number was published, none of them made.
pub(crate) fn claims() -> Vec<Cell> {
    let published =
        |experiment, subject: &str, metric| coverage::number(&SOURCE, experiment, subject, metric);
    let mut cells = Vec::new();
    for steps in &LOADS[1..] {
        for ([what, row], metric) in [(ALONE, "part of the peak"), (LOADED, "latency")] {
            let number = published("set-up", &format!("{what} at {}", at(*steps)), metric);
            cells.push(Cell::published("setup", row, &at(*steps), what, number));
        }
    }
    let logged = ["throughput", "default tier latency", "alternate tier latency"];
    for (row, metric) in SAMPLE_LOG.into_iter().zip(logged) {
        let number = published("set-up", "sample log", metric);
        cells.push(Cell::published("setup", row, &at(0.0), LOG, number));
    }
    for latency in LATENCIES {
        for steps in LOADS {
            let subject = format!("{latency}ns at {}", at(steps));
            let metric = "TPP+colloid throughput / TPP throughput";
            let number = published(GUPS, &subject, metric);
            cells.push(Cell::published("6c", &format!("{latency} ns"), &at(steps), GAIN, number));
        }
    }
    for steps in LOADS {
        for system in SYSTEMS {
            let number = published(SILO, &format!("{system} at {}", at(steps)), "throughput");
            let cell = Cell::published("8b", system, &at(steps), "transactions/s", number);
            cells.push(Cell { input: system == SYSTEMS[0] && steps == 0.0, ..cell });
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_cell_of_6c_and_8b_is_found() {
        crate::coverage::tests::is_complete(&SOURCE, look_all_up);
    }

    fn look_all_up() {
        let cells = claims();
        assert!(cells.iter().all(|cell| cell.published.is_some()), "{cells:?}");
        assert_eq!(cells.iter().filter(|cell| cell.error().is_none()).count(), 1, "the input");
        for (at, cell) in cells.iter().enumerate() {
            assert!(cells[..at].iter().all(|other| other.place() != cell.place()), "{cell:?}");
        }
    }

    #[test]
    fn an_input_cell_has_no_error() {
        let mut cell = Cell {
            figure: "8b".into(),
            row: "TPP".into(),
            column: "0x".into(),
            metric: "transactions/s".into(),
            modelled: 2.0,
            published: Some(1.0),
            input: true,
        };
        assert_eq!(cell.error(), None);
        cell.input = false;
        assert_eq!(cell.error(), Some(1.0));
    }
}

//! The section of a kind of event that has none of its own: what its row type says can be shown of any.
//!
//! Of each column with numbers: in how many rows it has a value, the first, the last, the least, the most and the mean;
//! of each column with text: how many different texts, and the last. Lists are counted only.

use std::collections::BTreeSet;
use std::path::Path;

use pagemill_model::dataset::{Cell, Column, Shape};
use pagemill_model::recording::Reader;
use pagemill_model::{Bytes, Event, EventKind, Nanos};
use serde_json::{Value, json};

use super::section::{Figure, Gather, Section};
use crate::draw::html::Page;
use crate::draw::text;

/// Different texts of a column that are told apart.
const TEXTS: usize = 1000;

/// What the cells of a column add up to.
#[derive(Clone, Debug, Default)]
struct Cells {
    values: u64,
    sum: f64,
    first: u64,
    last: u64,
    least: u64,
    most: u64,
    texts: BTreeSet<String>,
    last_text: Option<String>,
}

/// The rows of one kind.
struct Rows {
    kind: EventKind,
    rows: u64,
    columns: Vec<Cells>,
}

/// Nothing yet of a kind.
pub(super) fn begin(kind: EventKind) -> Box<dyn Gather> {
    let columns = vec![Cells::default(); kind.columns().len()];
    Box::new(Rows { kind, rows: 0, columns })
}

impl Gather for Rows {
    fn event(&mut self, event: &Event) {
        if event.kind() != self.kind {
            return;
        }
        self.rows += 1;
        for (cell, column) in event.cells().into_iter().zip(&mut self.columns) {
            column.add(cell);
        }
    }

    fn finish(self: Box<Self>, _: &Path, _: &Reader) -> Option<Box<dyn Section>> {
        (self.rows > 0).then_some(self as Box<dyn Section>)
    }
}

impl Cells {
    fn add(&mut self, cell: Cell) {
        self.values += u64::from(cell != Cell::Absent);
        match cell {
            Cell::Absent | Cell::Numbers(_) | Cell::Real(_) => {}
            Cell::Number(value) => {
                if self.values == 1 {
                    (self.first, self.least) = (value, value);
                }
                self.last = value;
                self.least = self.least.min(value);
                self.most = self.most.max(value);
                self.sum += value as f64;
            }
            Cell::Text(text) => {
                if self.texts.len() < TEXTS {
                    self.texts.insert(text.clone());
                }
                self.last_text = Some(text);
            }
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.values.max(1) as f64
    }
}

/// The stamp is in every row, and says nothing of what happened.
const STAMP: &str = "time_ns";

impl Rows {
    fn columns(&self) -> impl Iterator<Item = (&'static Column, &Cells)> {
        let columns = self.kind.columns().iter().zip(&self.columns);
        columns.filter(|(column, cells)| column.name != STAMP && cells.values > 0)
    }

    fn title(&self) -> String {
        let about = self.kind.about().trim_end_matches('.');
        format!("{}: {} rows ({about})", self.kind.dataset(), self.rows)
    }

    fn table(&self) -> Vec<Vec<String>> {
        let row = |(column, cells): (&Column, &Cells)| {
            let mut row = vec![column.name.to_owned(), cells.values.to_string()];
            let figure = |value: f64| match unit(column.name) {
                "B" => Bytes(value as u64).to_string(),
                "ns" => Nanos(value as u64).to_string(),
                _ if value.fract() == 0.0 => format!("{value:.0}"),
                _ => format!("{value:.2}"),
            };
            match (&cells.last_text, column.shape) {
                (Some(last), _) => {
                    let different = format!("{} different", cells.texts.len());
                    row.extend([String::new(), last.clone(), different]);
                }
                (None, Shape::Number) => {
                    let values = [cells.first, cells.last, cells.least, cells.most];
                    row.extend(values.map(|value| figure(value as f64)));
                    row.push(figure(cells.mean()));
                }
                _ => row.push("lists".into()),
            }
            row.resize(HEADER.len(), String::new());
            row
        };
        self.columns().map(row).collect()
    }
}

const HEADER: [&str; 7] = ["column", "rows", "first", "last", "least", "most", "mean"];

/// The unit that a column's name ends with.
fn unit(name: &str) -> &'static str {
    match () {
        () if name.ends_with("_bytes") => "B",
        () if name.ends_with("_ns") => "ns",
        () => "",
    }
}

impl Section for Rows {
    fn text(&self) -> String {
        format!("\n{}\n{}", self.title(), text::table(&HEADER, &self.table()))
    }

    fn json(&self) -> Value {
        let columns = self.columns().map(|(column, cells)| {
            let value = match (&cells.last_text, column.shape) {
                (Some(last), _) => {
                    json!({ "rows": cells.values, "different": cells.texts.len(), "last": last })
                }
                (None, Shape::Number) => json!({
                    "rows": cells.values, "first": cells.first, "last": cells.last,
                    "least": cells.least, "most": cells.most, "mean": cells.mean(),
                }),
                _ => json!({ "rows": cells.values }),
            };
            (column.name.to_owned(), value)
        });
        let columns: serde_json::Map<String, Value> = columns.collect();
        json!({ "rows": self.rows, "columns": columns })
    }

    fn html(&self, page: &mut Page) {
        page.heading(self.kind.dataset()).paragraph(&self.title());
        page.table(&HEADER, &self.table());
    }

    /// Means of what has a unit: numbers without one are as often names as amounts.
    fn figures(&self) -> Vec<Figure> {
        let measured = self
            .columns()
            .filter(|(column, _)| !unit(column.name).is_empty() && column.shape == Shape::Number);
        let figure = |(column, cells): (&Column, &Cells)| Figure {
            name: format!("{} {}, mean", self.kind.dataset(), column.name),
            unit: unit(column.name),
            value: cells.mean(),
        };
        measured.map(figure).collect()
    }
}

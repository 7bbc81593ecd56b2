//! Experiments with tables of their own: what all of them can do, and what a run of them came to.

use anyhow::Result;
use pagemill_report::draw::chart::Svg;
use pagemill_report::draw::html::Page;
use pagemill_report::draw::text;
use serde_json::Value;

use crate::Table;
use crate::reproduce::series::{Finished, Series};

/// One of them, with its cells.
pub trait Tabled: Series {
    /// Why it cannot run here; `None` if it can.
    fn missing(&self) -> Option<String> {
        None
    }

    /// What finished cells came to; why nothing can be told of them otherwise.
    ///
    /// # Errors
    /// See above.
    fn outcome(&self, finished: &[Finished], interrupted: bool) -> Result<Box<dyn Tables>, String>;
}

/// What one of them came to.
pub trait Tables {
    /// What was claimed, what was published, what is here, and a verdict: a row each, whatever ran.
    fn claims(&self) -> Vec<Vec<String>>;

    /// Verdicts on targets of our own.
    fn goals(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its name, and what it is, in a line.
    fn head(&self) -> (&'static str, &'static str);

    /// What came of it in a sentence, and how the figures are to be read.
    fn reading(&self) -> Vec<String> {
        Vec::new()
    }

    /// What a reader should know: what was left out and why, what failed.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Charts.
    fn charts(&self) -> Vec<Svg> {
        Vec::new()
    }

    /// The tables.
    fn tables(&self) -> Vec<Table>;

    /// The tables as text.
    fn text(&self) -> String {
        let (name, title) = self.head();
        let mut out = format!("{name}: {title}\n");
        let lines = [self.reading(), self.notes()].concat();
        out += if lines.is_empty() { "" } else { "\n" };
        lines.iter().for_each(|line| out += &format!("{line}\n"));
        for Table { title, header, rows } in self.tables() {
            out += &format!("\n{title}\n{}", text::table(&header, &rows));
        }
        out
    }

    /// Tables and charts as a section of a page.
    fn page(&self, page: &mut Page) {
        let (name, title) = self.head();
        page.heading(&format!("{name}: {title}"));
        self.reading().iter().for_each(|text| _ = page.paragraph(text));
        page.list(&self.notes());
        self.charts().iter().for_each(|chart| _ = page.chart(chart));
        for Table { title, header, rows } in self.tables() {
            page.paragraph(&title).table(&header, &rows);
        }
    }

    /// Every figure.
    fn json(&self) -> Value;

    /// Further files: their names, and what is in them. `machine` is what it ran on, in words.
    ///
    /// # Errors
    /// For what cannot be encoded.
    fn files(&self, _machine: &[String]) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(Vec::new())
    }
}

/// What those came to that were asked for.
#[derive(Default)]
pub struct Outcomes {
    /// Of each that ran, its name and what it came to.
    pub tables: Vec<(&'static str, Box<dyn Tables>)>,
    /// Those that did not run, also the simulated one: their names, and why.
    pub absent: Vec<(&'static str, String)>,
}

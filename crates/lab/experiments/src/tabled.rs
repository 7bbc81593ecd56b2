//! Experiments with tables of their own: what all of them can do, and what a run of them came to.
//!
//! Each says in its own file, as a [`TabledExperiment`], all that the command line and the summary of a run need of it;
//! the list of them stands in the crate's root.

use anyhow::Result;
use pagemill_report::draw::chart::Svg;
use pagemill_report::draw::html::Page;
use pagemill_report::draw::text;
use serde_json::Value;

use crate::claim::ClaimRow;
use crate::coverage::Source;
use crate::reproduce::input::Inputs;
use crate::reproduce::keep::CellKey;
use crate::reproduce::plan::Options;
use crate::reproduce::series::{Finished, Series};
use crate::reproduce::target::Stage;

/// An experiment with tables of its own.
pub(crate) struct TabledExperiment {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The text of its file: a [`Definition`](crate::reproduce::definition::Definition).
    pub(crate) file: &'static str,
    /// Whose figures it is held against; one that compares with no publication has none, and runs by name only.
    pub(crate) source: Option<&'static Source>,
    /// What it goes by of what is chosen on the command line.
    pub(crate) choices: Choices,
    /// Whether it is root's.
    pub(crate) is_roots: bool,
    /// How it runs on this machine; `None` for the one that is simulated, whose answer is a report.
    pub(crate) measured: Option<MeasuredExperiment>,
    /// The tables of a run whose figures were kept: of these bytes, or of the run in this binary.
    pub(crate) kept: Option<KeptReader>,
}

/// The tables of a run whose figures were kept: of these bytes, or of the run in this binary.
pub(crate) type KeptReader = fn(Option<&[u8]>) -> Result<KeptTables>;

/// Tables of finished cells; why nothing can be told of them otherwise.
pub(crate) type TablesOrReason = Result<Box<dyn Tables>, String>;

/// What of the command line an experiment goes by.
pub(crate) struct Choices {
    /// `--arms`.
    pub(crate) arms: bool,
    /// `--programs`.
    pub(crate) programs: bool,
    /// `--scale`.
    pub(crate) scale: bool,
}

/// How an experiment runs on this machine.
pub(crate) struct MeasuredExperiment {
    /// Its cells. Fails for programs and arms that it does not have.
    pub(crate) cells: for<'a> fn(&Asked<'a>) -> Result<Box<dyn Tabled + 'a>>,
    /// Its tables, of which nothing ran; of one that claims nothing there are none.
    pub(crate) nothing: Option<fn() -> Box<dyn Tables>>,
    /// What cells come to that were run anywhere; why nothing can be told of them otherwise.
    pub(crate) collected: fn(&[Finished], CellKey, bool) -> TablesOrReason,
}

/// What is asked of an experiment.
pub(crate) struct Asked<'a> {
    /// How much of it.
    pub(crate) options: &'a Options,
    /// The programs, kernels or figures that were chosen.
    pub(crate) programs: Option<&'a [String]>,
    /// The arms that were chosen.
    pub(crate) arms: Option<&'a [String]>,
    /// What it runs on.
    pub(crate) stage: &'a Stage<'a>,
    /// What its programs read.
    pub(crate) inputs: &'a Inputs,
}

/// What a run came to whose figures were kept.
pub struct KeptTables {
    /// Its tables.
    pub tables: Box<dyn Tables>,
    /// What it ran on and when, in words.
    pub machine: Vec<String>,
    /// Whether it was ended early.
    pub interrupted: bool,
}

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
    fn claims(&self) -> Vec<ClaimRow>;

    /// Whether each target of our own that was measured is met.
    fn goals(&self) -> Vec<bool> {
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

/// A table of an outcome.
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// The names of its columns stand in a line, with bars between them.
    pub(crate) fn new(
        title: impl Into<String>,
        columns: &'static str,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let (header, rows) = (columns.split('|').collect(), rows.into_iter().collect());
        Self { title: title.into(), header, rows }
    }
}

/// Columns of a table of claims.
pub(crate) const CLAIMS: &str = "claim|published|here|";

impl Table {
    /// What was published, and what became of it.
    pub(crate) fn of_claims(claims: Vec<ClaimRow>) -> Self {
        let rows = claims.into_iter().map(ClaimRow::cells);
        Self::new("what was published, and whether it is so here", CLAIMS, rows)
    }
}

/// A cell of a table, `-` where there is nothing to say.
pub(crate) fn dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

//! Published experiments made again. [`reproduce`]: programs under allocators, cell by cell. The others are no programs
//! to compare: placement on a simulated machine, and what the free memory of this one looks like; programs under huge
//! page policies; what measuring and tracing cost, and what huge pages are worth where.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

pub mod colloid;
mod coverage;
pub mod fleet;
pub mod fragmentation;
pub mod huge_pages;
pub mod huge_slices;
pub mod moca;
pub mod overhead;
mod prepared_memory;
pub mod recorded;
pub mod registry;
pub mod reproduce;
pub mod scoreboard;
pub mod simulate;
pub mod tabled;

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
    fn new(
        title: impl Into<String>,
        columns: &'static str,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let (header, rows) = (columns.split('|').collect(), rows.into_iter().collect());
        Self { title: title.into(), header, rows }
    }
}

/// A cell of a table, `-` where there is nothing to say.
fn dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

/// What is said of a verdict from one run.
const ONCE: &str = " (one run, no interval)";

/// A published claim and what is here, with whether it holds and whether that is of single runs; or why that cannot
/// be told.
fn claim(
    what: impl Into<String>,
    theirs: impl Into<String>,
    told: Result<(String, bool, bool), String>,
) -> Vec<String> {
    let (here, verdict) = match told {
        Ok((here, holds, once)) => {
            let word = if holds { "reproduced" } else { "not reproduced" };
            (here, format!("{word}{}", if once { ONCE } else { "" }))
        }
        Err(why) => (dash(None), format!("not measured: {why}")),
    };
    vec![what.into(), theirs.into(), here, verdict]
}

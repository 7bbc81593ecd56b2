//! Published experiments made again. [`reproduce`]: programs under allocators, cell by cell. The others are no programs
//! to compare: placement on a simulated machine, and what the free memory of this one looks like; programs under huge
//! page policies; what measuring and tracing cost, and what huge pages are worth where.
#![forbid(unsafe_code)]

pub mod colloid;
mod coverage;
pub mod fleet;
pub mod fragmentation;
pub mod huge_pages;
#[cfg(target_arch = "x86_64")]
pub mod huge_slices;
pub mod moca;
pub mod overhead;
pub mod recorded;
pub mod reproduce;
pub mod scoreboard;

use pagemill_report::draw::chart::LineChart;
use pagemill_report::draw::html::Page;
use pagemill_report::draw::text;

/// A table of an outcome.
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// A cell of a table, `-` where there is nothing to say.
fn dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

/// Tables as text, under what they are of.
pub fn as_text(name: &str, title: &str, tables: &[Table]) -> String {
    let mut out = format!("{name}: {title}\n\n");
    for Table { title, header, rows } in tables {
        out += &format!("{title}\n{}\n", text::table(header, rows));
    }
    out
}

/// Tables as one HTML page.
pub fn as_html(name: &str, title: &str, tables: &[Table], charts: &[LineChart]) -> String {
    let mut page = Page::new(&format!("pagemill reproduce {name}"));
    page.paragraph(title);
    for chart in charts {
        page.chart(&chart.svg());
    }
    for Table { title, header, rows } in tables {
        page.heading(title).table(header, rows);
    }
    page.finish()
}

//! The report as sections of an HTML page: tables, heat maps, lines over time.

use crate::report::html::Page;

use super::Report;

/// Adds the report to a page.
pub fn render(page: &mut Page, report: &Report) {
    page.heading("Colloid (SOSP 2024), modelled");
    page.preformatted(&report.text());
}

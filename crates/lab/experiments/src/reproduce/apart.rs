//! What experiments that are no programs on allocators came to.

use pagemill_report::draw::html::Page;

use crate::{fragmentation, huge_pages, moca};

/// Of each that ran.
#[derive(Clone, Copy, Default)]
pub struct Outcomes<'a> {
    /// Access traces.
    pub traced: Option<&'a moca::Outcome>,
    /// Huge page policies.
    pub huge: Option<&'a huge_pages::Outcome>,
    /// The study of free memory.
    pub studied: Option<&'a fragmentation::Outcome>,
    /// Experiments that were asked for, also the simulated one, and did not run: their names, and why.
    pub absent: &'a [(&'static str, String)],
}

impl Outcomes<'_> {
    /// Their sections of a page.
    pub fn render(self, page: &mut Page) {
        if let Some(outcome) = self.traced {
            outcome.page(page);
        }
        if let Some(outcome) = self.huge {
            outcome.page(page);
        }
        if let Some(outcome) = self.studied {
            outcome.page(page);
        }
    }
}

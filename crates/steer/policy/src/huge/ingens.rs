//! Ingens (Kwon, Yu, Peter, Rossbach and Witchel, OSDI 2016): no huge page at a fault; a region is promoted in the
//! background when it is used enough (section 4.2, utilisation-based promotion).
//!
//! A region is promoted when at least [`UTILISATION`] percent of its base pages are present. Of several, the one
//! with more pages accessed comes first: its rank is one plus the accessed pages (section 4.3, frequency of access).
//!
//! Deviations: the share of huge pages among processes (section 4.4) is not weighed, for one process is looked at;
//! the eager phase at low fragmentation that later work describes is left out; presence comes from whoever fills
//! the view (a bitmap in the kernel there, `PAGEMAP_SCAN` here).

use pagemill_model::page::PER_HUGE;

use super::account::Estimate;
use super::action::Action;
use super::kind::{Mechanism, Policy, Scans};
use super::view::View;

/// The published utilisation threshold, percent.
pub const UTILISATION: u64 = 90;

/// Ingens with a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingens {
    /// Percent of a region's base pages that must be present.
    pub utilisation: u64,
}

impl Ingens {
    /// The published constants.
    pub const PUBLISHED: Self = Self { utilisation: UTILISATION };
}

impl Policy for Ingens {
    fn name(&self) -> &'static str {
        "ingens"
    }

    fn mechanism(&self) -> Mechanism {
        Mechanism { scans: Scans::Always, ..Mechanism::BESIDE }
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        if action != Action::Collapse || view.huge {
            return None;
        }
        let used = view.present.value()?.saturating_mul(100) >= self.utilisation * PER_HUGE;
        let rank = view.accessed.value().unwrap_or(0).saturating_add(1);
        Some(Estimate::rule(if used { rank } else { 0 }))
    }
}

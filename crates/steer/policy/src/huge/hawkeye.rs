//! HawkEye (Panwar, Bansal and Gopinath, ASPLOS 2019): huge pages are zeroed ahead of time (section 3.1), bloat is
//! taken back under memory pressure (3.2), and regions are promoted by how much of them is accessed (3.3).
//!
//! Regions fall into [`BINS`] bins by accessed base pages; the highest bin is promoted first. Under pressure (more than
//! [`HIGH`] thousandths of memory in use) huge pages that hold base pages of zeros are split and those given
//! back, the emptiest first.
//!
//! Deviations: bins decide the order within one process, the round robin by measured address translation overhead
//! among processes is left to whoever has several; a fault takes a huge page only from the pool and never zeroes one;
//! pressure relief runs while above the high mark (the original goes on down to 700); a region without any accessed
//! page is left alone; zeros are given back, not merged.

use pagemill_model::page::PER_HUGE;

use super::account::Estimate;
use super::action::{Action, Moment};
use super::kind::{Mechanism, Policy, Scans};
use super::view::View;

/// Bins of accessed pages (`MAX_BINS` of the artifact).
pub const BINS: u64 = 12;
/// Thousandths of memory in use above which bloat is taken back (the published high mark, 85 %).
pub const HIGH: u64 = 850;

/// HawkEye, the variant without performance counters (HawkEye-G).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hawkeye {
    /// Thousandths of memory in use above which bloat is taken back.
    pub high: u64,
}

impl Hawkeye {
    /// The published constants.
    pub const PUBLISHED: Self = Self { high: HIGH };
}

/// The bin of a region with so many accessed base pages, in `0..BINS`.
#[must_use]
pub fn bin(accessed: u64) -> u64 {
    accessed.min(PER_HUGE) * (BINS - 1) / PER_HUGE
}

impl Policy for Hawkeye {
    fn name(&self) -> &'static str {
        "hawkeye"
    }

    fn mechanism(&self) -> Mechanism {
        Mechanism { growth: &[Moment::Fault], scans: Scans::Always, ..Mechanism::BESIDE }
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        let pressed = view.used.value().is_some_and(|used| used >= self.high);
        let rank = match action {
            Action::Pool => u64::from(view.pool.some() && !pressed),
            Action::Collapse if !view.huge => match view.accessed.value()? {
                0 => 0,
                accessed => u64::from(!pressed) * (1 + bin(accessed)),
            },
            Action::Demote if view.huge => u64::from(pressed) * view.zeros.value()?,
            Action::Prezero => {
                let pool = view.pool.value()?;
                u64::from(pool < view.batch && view.free_huge.some() && !pressed)
            }
            _ => return None,
        };
        Some(Estimate::rule(rank))
    }
}

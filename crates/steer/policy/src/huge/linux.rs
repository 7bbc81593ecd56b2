//! Transparent huge pages as Linux decides them (Documentation/admin-guide/mm/transhuge.rst): a rule, no price.
//!
//! `always` takes a huge page at every first touch, `madvise` where the program asked for it, `never` nowhere.
//! The fourth is the setting `always` of pages of 64 KiB (multi-size huge pages, Linux 6.8): they come at every first
//! touch, and larger ones where the program asked.
//!
//! khugepaged collapses a region of a permitted mapping that has at least one page present and no more than
//! `max_ptes_none` (511) absent ones.
//!
//! Deviations: khugepaged's pace (4096 pages each 10 s) belongs to whoever scans; `defrag` decides in the kernel
//! who waits for a block and is no part of this rule.

use pagemill_model::page::PER_HUGE;

use super::account::Estimate;
use super::action::Action;
use super::kind::{Mechanism, Policy, ThpMode};
use super::view::View;

/// khugepaged's default `max_ptes_none`.
pub const MAX_ABSENT: u64 = 511;

/// The value of `/sys/kernel/mm/transparent_hugepage/enabled`, or of that of 64 KiB beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linux {
    /// Everywhere.
    Always,
    /// Where `MADV_HUGEPAGE` was said.
    Madvise,
    /// The same, and elsewhere pages of 64 KiB.
    Medium,
    /// Nowhere.
    Never,
}

impl Policy for Linux {
    fn name(&self) -> &'static str {
        match self {
            Self::Always => "linux-always",
            Self::Madvise => "linux-madvise",
            Self::Medium => "linux-64k",
            Self::Never => "linux-never",
        }
    }

    fn mechanism(&self) -> Mechanism {
        let thp = match self {
            Self::Always => ThpMode::Always,
            Self::Madvise => ThpMode::Madvise,
            Self::Medium => ThpMode::Medium,
            Self::Never => ThpMode::Never,
        };
        Mechanism { thp, by_kernel: true, ..Mechanism::BESIDE }
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        let permitted = match self {
            Self::Always => true,
            Self::Madvise | Self::Medium => view.advised,
            Self::Never => false,
        };
        let yes = match action {
            Action::Huge => permitted,
            Action::Fault64k if *self == Self::Medium => !permitted,
            Action::Collapse => {
                let present = view.present.value()?;
                permitted
                    && !view.huge
                    && present > 0
                    && PER_HUGE.saturating_sub(present) <= MAX_ABSENT
            }
            _ => return None,
        };
        Some(Estimate::rule(u64::from(yes)))
    }
}

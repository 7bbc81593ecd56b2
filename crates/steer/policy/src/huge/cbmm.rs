//! CBMM (Mansi, Tabatabai and Swift, USENIX ATC 2022), the estimator as published, in cycles: act if and only if
//! the benefit exceeds the cost (section 3).
//!
//! | action | cost | benefit | section |
//! |---|---|---|---|
//! | huge page at a fault | [`NO_BLOCK`] without a free block; [`ZEROING`] unless zeroed | the profile's | 4.2 |
//! | eager paging | 10 us of cycles | the profile's | 4.4 |
//! | zeroing `n` pages for later | 0, or `n` times [`DAEMON_ZEROING`] | `min(n, used of late)` times [`ZEROED`] | 4.3 |
//! | defragmenting, promoting in the background | 0 or [`NO_BLOCK`] | 0, so never | 4.2 |
//! | demotion | 0 | 0, so never | |
//!
//! What is done in the background costs nothing while the load is below the number of CPUs.
//!
//! Deviations: the kernel's cost of contention on the zone lock while it zeroes has no counterpart outside of the
//! kernel and is left out, and so is reclaim for a huge page (a billion cycles more, never worth it with a published
//! profile). A profile in nanoseconds is converted with the view's frequency. What cannot be known (free blocks, load)
//! is taken as the expensive case, as the original has no absent values. Known oddities are kept: eager rows of
//! published profiles have benefit 1 and never reach 10 us; without a free block nothing below 2^32 cycles pays.

use super::account::{Account, Estimate, Term, Unit};
use super::action::{Action, Moment};
use super::kind::{Mechanism, Policy, ProfileUse};
use super::view::{Figure, View};

/// Allocation without a free block of order 9: 2^32 cycles.
pub const NO_BLOCK: u64 = 1 << 32;
/// Zeroing a huge page at a fault: 100 us of 2000 cycles.
pub const ZEROING: u64 = 100 * 2000;
/// Zeroing one huge page in the background.
pub const DAEMON_ZEROING: u64 = 100_000;
/// What a huge page that is zeroed already spares the fault that takes it.
pub const ZEROED: u64 = 1_000_000;
/// What eager paging may cost, microseconds.
pub const EAGER_MICROS: u64 = 10;

/// CBMM as published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cbmm;

/// A figure of the profile in cycles.
#[must_use]
pub fn cycles(figure: Figure, view: &View) -> u64 {
    let value = figure.value().unwrap_or(0);
    match view.unit {
        Unit::Nanos => value.saturating_mul(view.mhz) / 1000,
        Unit::Cycles | Unit::Rule => value,
    }
}

/// Whether a daemon takes time from nobody: the load, truncated as the kernel does, is below the CPUs.
#[must_use]
pub fn idle(view: &View) -> bool {
    view.load.value().is_some_and(|hundredths| hundredths / 100 < view.cpus)
}

impl Policy for Cbmm {
    fn name(&self) -> &'static str {
        "cbmm"
    }

    fn mechanism(&self) -> Mechanism {
        Mechanism {
            growth: &[Moment::Fault, Moment::Ahead],
            profile: ProfileUse::Required,
            ..Mechanism::BESIDE
        }
    }

    fn estimate(&self, action: Action, view: &View) -> Option<Estimate> {
        let none = Account::new();
        let allocation = if view.free_huge.some() { 0 } else { NO_BLOCK };
        let walks = none.with(Term::Walks, cycles(view.profile_huge, view));
        let daemon = |busy| none.with(Term::Helper, if idle(view) { 0 } else { busy });
        let (costs, benefits) = match action {
            Action::Pool if view.pool.some() => (none.with(Term::Allocation, 0), walks),
            Action::Huge => {
                (none.with(Term::Allocation, allocation).with(Term::Preparation, ZEROING), walks)
            }
            Action::Ahead4k => (
                none.with(Term::Allowance, view.mhz.saturating_mul(EAGER_MICROS)),
                none.with(Term::Faults, cycles(view.profile_eager, view)),
            ),
            Action::Prezero => {
                let useful = view.batch.min(view.pool_used.value().unwrap_or(0));
                (
                    daemon(view.batch.saturating_mul(DAEMON_ZEROING)),
                    none.with(Term::Preparation, useful.saturating_mul(ZEROED)),
                )
            }
            Action::Collapse | Action::Defragment => (daemon(NO_BLOCK), none),
            Action::Demote => (none, none),
            _ => return None,
        };
        Some(Estimate { unit: Unit::Cycles, costs, benefits })
    }
}

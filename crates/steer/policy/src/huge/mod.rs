//! Which memory should be on huge pages, when, and by which means: a *policy* compares what an *action*
//! costs with what it brings, for one *region* of 2 MiB at one *moment*.
//!
//! ```text
//!   View ──► Policy::estimate(action, view) ──► Estimate { costs, benefits }
//!     │                                              │ Policy::worth
//!     └────► Policy::decide(view) ◄──────────────────┘   the worthwhile action that gains most
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | region | 2 MiB of address space, aligned: 512 base pages of 4 KiB |
//! | moment | why a decision is due: the program faults, memory is mapped, a scan passes by, the machine is idle |
//! | figure | a number with its provenance: measured, modelled, or absent |
//! | pool | huge pages that are zeroed and wait to be delivered |
//! | cold | memory that the host takes a fault to provide (a balloon, free page reporting) |
//! | account | named amounts that add up to a cost or a benefit; printed, they are the why of a decision |
//!
//! All numbers are unsigned integers, so a recorded view gives the decision again, bit for bit. Nothing in
//! this directory but [`profile`] allocates, and nothing depends on another crate.
//!
//! Always so: a decision is a function of policy and view; an absent figure is never used as a zero that
//! speaks for an action; whatever is decided was estimated as worth it, or is [`Action::Base`].

mod account;
mod action;
pub mod auto;
pub mod cbmm;
pub mod cbmm_plus;
pub mod hawkeye;
pub mod ingens;
mod kind;
pub mod linux;
pub mod profile;
pub mod runs;
#[cfg(test)]
mod tests;
pub mod trials;
mod view;

pub use account::{Account, Decision, Estimate, Term, Unit};
pub use action::{Action, Moment};
pub use kind::{Goal, Mechanism, Policy, ProfileUse, Scans, ThpMode, TrialPolicy};
pub use view::{Costs, Figure, Section, View};

/// Every policy, in the order of the documentation. To add one: its file, and its line here.
pub static POLICIES: &[&dyn Policy] = &[
    &linux::Linux::Always,
    &linux::Linux::Madvise,
    &linux::Linux::Medium,
    &linux::Linux::Never,
    &ingens::Ingens::PUBLISHED,
    &hawkeye::Hawkeye::PUBLISHED,
    &cbmm::Cbmm,
    &cbmm_plus::CbmmPlus::USUAL,
    &auto::Auto::THROUGHPUT,
    &auto::Auto::TAIL,
    &auto::Auto::MEMORY,
];

/// The names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name())
}

/// The policy of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

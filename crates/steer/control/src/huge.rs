//! `run --huge`: which pages a program gets, decided by a policy, carried out by the prefault library inside it or from
//! outside.
//!
//! ```text
//!  library ── regions, costs ──► board ──► view ──► policy ──► order ──► board ──► library
//!                                         ▲          └── decision, why ──► recording (--log)
//!  buddyinfo, meminfo, load, profile ─────┘
//! ```
//!
//! [`isolate`] keeps the system's own huge page policy from the program (or puts it in force); [`view`] fills in what a
//! policy may look at; [`launcher`] decides and gives orders while the program runs, which [`delivery`] brings to it;
//! [`trial`] has a policy that measures itself try actions on the program's growth, beginning with what earlier runs
//! have taught ([`learned`]). Apart from these, `measure` finds
//! out by runs, or by the processor's `counters`, what huge pages are worth where (`advise --places`).

#[cfg(target_arch = "x86_64")]
mod counters;
pub mod delivery;
pub mod isolate;
pub mod launcher;
pub mod learned;
#[cfg(target_arch = "x86_64")]
pub mod measure;
#[cfg(target_arch = "x86_64")]
pub mod measured;
mod member;
mod missing;
mod orders;
mod patience;
pub mod sites;
mod trial;
mod view;

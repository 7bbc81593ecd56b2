//! `run --huge`: which pages a program gets, decided by a policy, carried out by the agent inside it or from outside.
//!
//! ```text
//!  agent ── regions, costs ──► board ──► view ──► policy ──► order ──► board ──► agent
//!                                         ▲          └── decision, why ──► recording (--log)
//!  buddyinfo, meminfo, load, profile ─────┘
//! ```
//!
//! [`isolate`] keeps the system's own huge page policy from the program (or puts it in force); [`view`] fills in what a policy
//! may look at; [`launcher`] decides and gives orders while the program runs.

pub mod isolate;
pub mod launcher;
mod view;

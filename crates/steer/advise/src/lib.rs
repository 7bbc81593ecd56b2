//! `advise`: which lever helps a program, and by how much.
//!
//! ```text
//!  command ─► look: one run as it is ─► estimate of each lever ─► trial: rounds of runs, as it is and under each
//!                                            │ cannot matter           │ lever that could matter, in seeded order
//!                                            ▼                         ▼
//!                                       not tried, why          rule: drop, go on, stop ─► answer: a table and the
//!                                                                                          one command to use
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | lever | a way to start the command: words or variables in front of it ([`lever`]) |
//! | base | the command as it is |
//! | arm | the base or a lever, with its runs |
//! | round | one run of each arm that is in play and has time ([`pace`]) |
//! | aim | what is to fall, within a bound on something else ([`rule`]) |
#![forbid(unsafe_code)]

mod accept;
pub mod answer;
pub mod arm;
pub mod count;
pub mod counted;
mod crowd;
mod ending;
pub mod estimate;
pub mod estimates;
mod free_memory;
pub mod growth;
mod holders;
pub mod lever;
pub mod levers;
mod marks;
pub mod observation;
pub mod pace;
pub mod printed;
pub mod readings;
pub mod recording;
pub mod rule;
pub mod server;
pub mod session;
pub mod slower_memory;
pub mod stall;
pub mod trial;
mod warm;
mod zeros;

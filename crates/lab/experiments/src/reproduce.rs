//! `pagemill reproduce`: runs published experiments again and shows their figures beside ours.
//!
//! Terms. An **experiment** is a file in `experiments/`: a program, arms, metrics and what the
//! publication claims. An **arm** is an allocator in a configuration. A **case** is one program of
//! an experiment that has several (most have one). A **cell** is one run: experiment, case, arm,
//! repetition.
//!
//! ```text
//!  experiments/*.toml ──► plan: cells in seeded random order, arms interleaved
//!                           │ one at a time
//!                           ▼
//!                         cell: start in its own memory cgroup, sample, finish ──► results/…/cells.csv, samples/
//!                           │
//!                           ▼
//!                         summary: medians, ratios, intervals, verdicts
//!                                  ──► terminal, report.txt, summary.json, report.html
//! ```
//!
//! Always true: a published number is shown, and compared with at the very end; it never enters a
//! measurement. A cell that fails or cannot run is in the results with its reason. A cell that is
//! finished is on disk, and a run that was cut off goes on with the others ([`keep`]). Memory is proportional set size
//! and cgroup charge, never resident set.

pub mod arm;
pub mod browser;
pub mod cell;
pub mod chosen;
pub mod definition;
pub mod embedded_redis;
pub mod experiment;
pub mod finished;
pub mod html;
pub mod input;
pub mod keep;
pub mod list;
pub mod machine;
pub mod measured;
pub mod outcome;
pub mod packages;
pub mod plan;
pub mod redis;
pub mod request;
pub mod run;
pub mod series;
pub mod store;
pub mod summary;
pub mod target;
pub mod terminal;
pub mod verdict;
pub mod wiredtiger;

//! The words of pagemill: units, events, recordings and the traits between them.
//!
//! ```text
//!  Source ──► Event ──► Fold ──► view
//!    ▲          │
//!    └─ replay ─┴──► recording::Writer ──► directory on disk ──► recording::Reader (a Source again)
//! ```
//!
//! A value that was not measured is absent (`None`), never zero.
#![forbid(unsafe_code)]

pub mod access;
pub mod dataset;
pub mod digest;
mod error;
pub mod event;
pub mod fault;
pub mod flow;
pub mod frag;
pub mod huge;
pub mod latency;
mod named;
pub mod page;
pub mod parallel;
// Read what anybody may have made: what could panic is not there.
#[deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable
)]
mod parquet_columns;
pub mod perf_data;
pub mod pftrace;
pub mod random;
pub mod recording;
pub mod results;
pub mod shell;
pub mod sums;
pub mod tiers;
pub mod units;
pub mod whole;

pub use access::{Access, AccessSetup, Allocation, NamedAccess, Touched};
pub use error::{Error, Kind, Result};
pub use event::{Event, EventKind, HeapSample};
pub use fault::{Fault, FaultCounts, FaultSetup, FaultSum, MappingSample};
pub use flow::{Actuator, Fold, Policy, Source};
pub use huge::HugeDecision;
pub use tiers::{TierDecision, TierOutcome, TierView};
pub use units::{Bytes, Nanos, Order, PageRange, Pid, Vpn};

/// This tool and its version, as the files that it writes name it.
pub const TOOL: &str = concat!("pagemill ", env!("CARGO_PKG_VERSION"));

//! The compacting allocator: `no_std`, no dependencies.
#![cfg_attr(not(test), no_std)]

mod cache;
pub mod config;
mod heap;
pub mod os;
mod span;
pub mod stats;

pub use cache::Cache;
pub use heap::{ClassTotals, Heap, Totals};
pub use span::{SpanRef, SpanView};

//! The compacting allocator: `no_std`, no dependencies.
#![cfg_attr(not(test), no_std)]

pub(crate) mod bits;
#[cfg(not(loom))]
mod cache;
pub(crate) mod central;
pub mod compact;
pub mod config;
#[cfg(not(loom))]
mod handshake;
#[cfg(not(loom))]
mod hardened;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
mod large;
mod lock;
#[cfg(not(loom))]
mod meta;
pub mod os;
#[cfg(not(loom))]
mod pagemap;
#[cfg(not(loom))]
mod pages;
pub mod plan;
#[cfg(not(loom))]
mod quarantine;
#[cfg(not(loom))]
mod refill;
#[cfg(not(loom))]
mod rng;
pub mod size;
mod span;
pub mod stats;
mod sync;
#[cfg(not(loom))]
mod totals;
#[cfg(not(loom))]
mod transfer;
pub mod trigger;

#[cfg(not(loom))]
pub use cache::Cache;
#[cfg(not(loom))]
pub use heap::Heap;
pub use span::{SpanRef, SpanView};
#[cfg(not(loom))]
pub use totals::{ClassTotals, Totals};

/// What the model test under loom works on: one class and its spans.
#[cfg(loom)]
pub mod model {
    pub use crate::central::{Batch, Central, Returns};
    pub use crate::span::Span;
}

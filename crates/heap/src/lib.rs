//! The compacting allocator: `no_std`, no dependencies.
#![cfg_attr(not(test), no_std)]

pub mod compact;
pub mod config;
pub mod os;
pub mod plan;
pub mod stats;
pub mod trigger;

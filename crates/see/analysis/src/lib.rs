//! Pure folds from events to views, and statistics.
//!
//! Nothing here opens a file, reads a clock or starts a thread: time comes from the stamps of the
//! events, randomness from a seed that the caller records.
#![forbid(unsafe_code)]

pub mod accesses;
pub mod addresses;
pub mod again;
pub mod chunks;
pub mod cold_stacks;
pub mod decisions;
pub mod extents;
pub mod faults;
pub mod findings;
pub mod fragmentation;
pub mod growth;
pub mod heap;
pub mod heat;
pub mod hugepages;
pub mod latency;
pub mod objects;
pub mod page_heat;
mod pages;
mod recent;
pub mod refaults;
pub mod regions;
pub mod residency;
pub mod sites;
pub mod slices;
pub mod spikes;
pub mod statistics;
pub mod validate;
pub mod walks;

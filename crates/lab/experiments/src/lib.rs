//! Published experiments made again. [`reproduce`]: programs under allocators, cell by cell. The others are no programs
//! to compare: placement on a simulated machine, and what the free memory of this one looks like; programs under huge
//! page policies; what measuring and tracing cost, and what huge pages are worth where.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

pub mod claim;
pub mod colloid;
mod coverage;
pub mod fleet;
pub mod fragmentation;
pub mod huge_pages;
pub mod huge_slices;
pub mod moca;
pub mod overhead;
mod prepared_memory;
pub mod recorded;
pub mod registry;
pub mod reproduce;
pub mod scoreboard;
pub mod simulate;
pub mod tabled;

/// The experiments with tables of their own, in the order in which they run: the last measured ones break up the memory
/// that the others ran on.
pub(crate) const TABLED: [&tabled::TabledExperiment; 6] = [
    &overhead::EXPERIMENT,
    &moca::EXPERIMENT,
    &huge_slices::EXPERIMENT,
    &huge_pages::EXPERIMENT,
    &fragmentation::EXPERIMENT,
    &colloid::EXPERIMENT,
];

//! What steers a live machine: huge pages, tiers, KSM, free memory; their costs, plans and capabilities.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

pub mod capability;
pub mod costs;
pub mod decisions;
pub mod fragmentation;
pub mod governor;
pub mod heap;
pub mod huge;
pub mod plan;
pub mod run_cost;
pub mod run_memory;
pub mod tier;

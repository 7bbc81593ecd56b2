//! Recorders: heap, faults, accesses, huge pages, free memory, call sites.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

mod children;
pub mod free_memory;
pub mod kernel_scores;
pub mod malloc_free;
pub mod malloc_reader;
#[cfg(target_arch = "x86_64")]
pub mod paired;
pub mod recorders;
pub mod sampler;
pub mod session;
pub mod summary;
pub mod symbols;
pub mod synthetic;

//! Kernels that experiments need and that no package provides.
//!
//! Several kinds of things live here:
//!
//! - [`programs`]: allocation-heavy programs, each with a check of its own result. They allocate
//!   through the platform's allocator (`std::alloc::System`, so `malloc`, `realloc` and `free` of
//!   the C library); under `LD_PRELOAD` the very same binary runs on another allocator.
//! - [`growth`]: programs that grow, each request or touch timed.
//! - [`nas`]: the kernels of the NAS parallel benchmarks, verified against the published results.
//! - [`graph`]: the kernels of the GAP benchmark suite, each verified.
//! - [`generate`]: deterministic inputs for packaged programs (C for a compiler, SQL, mail, Ruby).
//! - [`resp`]: a pipelining client of the Redis protocol, and [`fragment`], the published load
//!   that it sends.
//!
//! The first four are [programs](program::Program).
//!
//! Everything is a function of a seed: the same seed gives the same bytes and the same sequence
//! of calls, whatever allocator is under test.
#![forbid(unsafe_code)]

pub mod address;
mod complex;
pub mod drand48;
pub mod fragment;
pub mod generate;
pub mod graph;
pub mod growth;
pub mod memcached;
pub mod mixes;
pub mod nas;
pub mod program;
pub mod programs;
pub mod resp;
mod team;
mod threads;
mod zipf;

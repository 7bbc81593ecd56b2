//! Starting, attaching to and supervising a program; its libraries, exit codes, files and standard streams.
#![forbid(unsafe_code)]

// Before all others: they print by its macros.
#[macro_use]
pub mod stdio;

pub mod allocator;
pub mod context;
pub mod cpython;
pub mod exit;
pub mod files;
pub mod lazy_file;
pub mod library;
pub mod meant;
pub mod prepare;
pub mod program;
pub mod progress;
pub mod redirected;
pub mod stats_page;
pub mod supervise;

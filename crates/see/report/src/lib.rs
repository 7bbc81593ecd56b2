//! What a recording says, a section for each kind of event; text tables and charts, HTML pages and their drawings;
//! formats of other tools.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

pub mod comparison;
pub mod draw;
pub mod export;
pub mod exporter;
pub mod exposition;
pub mod findings;
pub mod frame;
pub mod free_memory;
pub mod heap;
pub mod heap_frame;
pub mod sections;
#[cfg(target_arch = "x86_64")]
pub mod validation;

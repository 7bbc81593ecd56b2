//! What a recording says, a section for each kind of event; text tables and charts, HTML pages and their drawings.
#![forbid(unsafe_code)]

pub mod draw;
pub mod exposition;
pub mod findings;
pub mod heap;
pub mod sections;

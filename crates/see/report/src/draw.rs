//! How results are shown: text in the terminal, one self-contained HTML file, charts in SVG.
//!
//! Nothing here knows what it shows: the verbs bring names, numbers and units.

pub mod chart;
mod flame;
mod heat_map;
pub mod html;
pub mod log_chart;
mod markup;
pub mod text;

pub use markup::with_texts;

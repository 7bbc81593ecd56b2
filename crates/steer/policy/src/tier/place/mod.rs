//! How much goes where.
//!
//! A placer sees the pages of each tier ranked by heat and answers with swaps. A page's *heat* is
//! whatever its tracker counts; only its part of the sum matters here.

pub mod colloid;
pub mod pack;
pub mod placer;
pub mod ucb;

pub use placer::{Placer, Ranked, Ranking, Reading, Shift, Swap};

//! External fragmentation of this machine: looked at, brought about on purpose, and mended.
//!
//! What a score is: `pagemill_analysis::fragmentation`. What `frag induce` and `frag compact` aim at is the
//! score of the zones that hold nearly all memory, taken together
//! ([`pagemill_record::free_memory::FreeMemory::blocks`]).

pub mod compact;
pub mod induce;
pub mod pageblocks;

use std::path::PathBuf;

use pagemill_analysis::fragmentation::{free_pages, pages_from};
use pagemill_kernel::settings::thp::Choice;
use pagemill_kernel::{Linux, settings::loan};
use pagemill_model::Order;

/// Where the journals of the loans are.
pub fn journals(linux: &Linux) -> PathBuf {
    loan::directory(linux)
}

/// Whether memory that asks for it gets huge pages; `false` if they are off for all.
pub fn gives_huge_pages(enabled: &Choice) -> bool {
    enabled.active != "never"
}

/// The score, to all digits; 1 where no memory is free.
fn score(blocks: &[u64], order: Order) -> f64 {
    let free = free_pages(blocks) as f64;
    if free > 0.0 { 1.0 - pages_from(blocks, order) as f64 / free } else { 1.0 }
}

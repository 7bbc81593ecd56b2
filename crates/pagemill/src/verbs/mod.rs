//! One file a verb. A verb parses nothing and prints its own result; what it computes lives below.

pub mod doctor;
pub mod export;
pub mod frag;
pub mod generate;
pub mod heap;
pub mod hugepages;
pub mod plan;
pub mod record;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod simulate;
pub mod workload;

use pagemill_kernel::Linux;

/// The machine: the running kernel, or the tree that `PAGEMILL_ROOT` names (for tests).
pub fn machine() -> Linux {
    std::env::var_os("PAGEMILL_ROOT").map_or_else(Linux::live, Linux::at)
}

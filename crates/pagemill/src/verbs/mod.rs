//! One file a verb. A verb parses nothing and prints its own result; what it computes lives below.

pub mod compare;
pub mod counters;
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
pub mod tier;
#[cfg(target_arch = "x86_64")]
pub mod validate;
pub mod workload;

use pagemill_kernel::{Kind, Linux};

use crate::tier::daemon;

/// The machine: the running kernel, or the tree that `PAGEMILL_ROOT` names (for tests).
pub fn machine() -> Linux {
    std::env::var_os("PAGEMILL_ROOT").map_or_else(Linux::live, Linux::at)
}

/// Restores the settings that a killed pagemill left changed. Every verb but those that say so (doctor and
/// tier) does this first.
pub fn recover_settings(linux: &Linux) {
    match daemon::restore(linux) {
        Ok(restored) => {
            for what in restored {
                eprintln!("pagemill: restored {what}, which a killed pagemill had left changed");
            }
        }
        // It is for who may to restore it.
        Err(error) if error.kind() == Kind::Permission => {}
        Err(error) => eprintln!("pagemill: {error}"),
    }
}

//! Where a cell runs, and what ends it.

use std::path::PathBuf;
use std::time::Duration;

use pagemill_experiments::reproduce::target::Stage;
use pagemill_kernel::{Linux, signal};

/// SIGINT, SIGTERM, SIGHUP.
pub(super) const ENDING: &[i32] = &[2, 15, 1];

/// Where a cell runs.
pub(super) fn stage(signals: &signal::Signals, executable: PathBuf) -> Stage<'_> {
    Stage { linux: Linux::live(), executable, signals, every: Duration::from_millis(100) }
}

//! Snapshots of real machines for the tests of this crate.

use pagemill_model::Pid;

use crate::Linux;

/// The process in the snapshot: `sleep`, started by root.
pub(crate) const PROCESS: Pid = Pid(4242);

/// The thread of the kernel that merges pages, in the snapshot.
pub(crate) const KSMD: Pid = Pid(37);

/// Debian 12 on kernel 6.18, KSM at rest, huge pages by advice.
pub(crate) fn debian() -> Linux {
    Linux::at(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/debian-12"))
}

/// QEMU with two nodes, the second without processors, Debian's kernel 7.3.
pub(crate) fn two_nodes() -> Linux {
    Linux::at(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/two-nodes"))
}

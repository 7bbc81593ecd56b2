//! Warm memory: before each run so much is touched and given back as the command takes.
//!
//! The host of a virtual machine takes free memory back (a balloon, free page reporting), and provides it anew at its
//! first touch, at ten to fifty times the price of one that it has left. Which run of which lever meets that memory is
//! chance, and would be most of what is told of it. On a machine that is no virtual one nothing is done.

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_kernel::memory::anonymous::{self, HUGE};
use pagemill_model::Bytes;

use crate::free_memory::FreeMemory;

/// The most that is touched, bytes: a second of a slow host.
const MOST: u64 = 1 << 30;
/// Of free memory, and of what a control group may have, this part at the most.
const PART: u64 = 4;

/// How much memory is warm before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warmth {
    /// Bytes, a multiple of a huge page.
    length: u64,
    /// Whether as huge pages; else free memory has too few whole ones, and would be compacted for them.
    huge: bool,
}

impl Warmth {
    /// For a command that took `peak` bytes at its highest, in a control group with this limit; none where it is of no
    /// use.
    pub fn of(
        linux: &Linux,
        free: Option<&FreeMemory>,
        peak: u64,
        limit: Option<u64>,
    ) -> Option<Self> {
        if !linux.is_virtual() {
            return None;
        }
        let FreeMemory { free, whole, .. } = *free?;
        let most = MOST.min(free / PART).min(limit.unwrap_or(u64::MAX) / PART);
        let huge = HUGE as u64;
        let length = (peak + peak / 4).min(most) / huge * huge;
        (length > 0).then_some(Self { length, huge: whole >= PART * length })
    }

    /// Makes it warm.
    pub fn bring_about(self) -> Result<()> {
        Ok(anonymous::warm(self.length as usize, self.huge)?)
    }

    /// What is to be known of it beside the figures.
    pub fn note(self) -> String {
        format!(
            "before each run {} were touched and given back: the host of this virtual machine may have taken free \
             memory, and what a run costs that has to fetch it back is not in these figures",
            Bytes(self.length)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FREE: &str = "Node 0, zone   Normal   1000   0   0   0   0   0   0   0   0   0    500\n";

    fn machine(cpuinfo: &str, buddyinfo: &str) -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        fs::write(root.path().join("proc/buddyinfo"), buddyinfo).unwrap();
        let linux = Linux::at(root.path());
        (root, linux)
    }

    #[test]
    fn as_much_as_the_command_takes_and_no_more_than_there_is_room_for() {
        let (_root, linux) = machine("flags\t\t: fpu hypervisor lahf_lm\n", FREE);
        let mib = |count: u64| count << 20;
        let warmth = |peak, limit| Warmth::of(&linux, FreeMemory::of(&linux).as_ref(), peak, limit);
        assert_eq!(warmth(mib(100), None), Some(Warmth { length: mib(124), huge: true }));
        assert_eq!(warmth(mib(100), Some(mib(128))), Some(Warmth { length: mib(32), huge: true }));
        // 2 GB are free.
        let most = Warmth { length: mib(500), huge: true };
        assert_eq!(warmth(mib(100_000), None), Some(most));
        assert_eq!(warmth(mib(1), None), None);
    }

    #[test]
    fn memory_in_pieces_is_not_compacted_for_it() {
        let pieces = "Node 0, zone   Normal \
                      500000      0      0      0      0      0      0      0      0      1      0\n";
        let (_root, linux) = machine("flags\t\t: fpu hypervisor\n", pieces);
        assert_eq!(
            Warmth::of(&linux, FreeMemory::of(&linux).as_ref(), 100 << 20, None),
            Some(Warmth { length: 124 << 20, huge: false })
        );
    }

    #[test]
    fn a_machine_of_ones_own_has_all_of_its_memory() {
        let (_root, linux) = machine("flags\t\t: fpu lahf_lm\n", FREE);
        assert_eq!(Warmth::of(&linux, FreeMemory::of(&linux).as_ref(), 100 << 20, None), None);
    }
}

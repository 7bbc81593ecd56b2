//! Whether the machine's free memory is in pieces where the command could take huge pages: then the kernel compacts
//! memory at its faults, and what they cost is the machine's state as much as the command's.

use pagemill_analysis::fragmentation::{free_pages, pages_from, together};
use pagemill_kernel::Linux;
use pagemill_kernel::memory::vmstat::Vmstat;
use pagemill_model::Order;
use pagemill_model::page::HUGE;

use crate::observation::bytes;

/// Free memory of the machine, and what was counted until then.
#[derive(Clone, Debug)]
pub(crate) struct FreeMemory {
    /// Bytes.
    pub(crate) free: u64,
    /// Bytes in blocks that a huge page fits into.
    pub(crate) whole: u64,
    counted: Vmstat,
}

impl FreeMemory {
    /// How it is; none where the kernel does not say.
    pub(crate) fn of(linux: &Linux) -> Option<Self> {
        let zones = linux.buddyinfo().ok()?;
        let blocks = together(zones.iter().map(|zone| zone.blocks.as_slice()));
        let page = pagemill_kernel::page_size() as u64;
        let huge = Order((HUGE / page).ilog2() as u8);
        Some(Self {
            free: free_pages(&blocks) * page,
            whole: pages_from(&blocks, huge) * page,
            counted: linux.vmstat().unwrap_or_default(),
        })
    }

    /// What is to be known of it, of a command with so many bytes that could be on huge pages; nothing where it had
    /// blocks for them and memory was not compacted since.
    pub(crate) fn note(&self, linux: &Linux, anonymous: u64) -> Option<String> {
        let now = linux.vmstat().unwrap_or_default();
        let stalls = now.since(&self.counted, "compact_stall").unwrap_or(0);
        if anonymous < HUGE || self.whole >= anonymous && stalls == 0 {
            return None;
        }
        let compacted = match stalls {
            0 => String::new(),
            times => format!(
                "; memory was compacted {times} times meanwhile for what was asked for at once"
            ),
        };
        let [free, whole, takes] =
            [self.free, self.whole, anonymous].map(|size| bytes(size as f64));
        Some(format!(
            "the machine's free memory is in pieces: of {free} {whole} are in blocks of 2 MiB or more, and the \
             program takes {takes}{compacted}. Huge pages cost more time here than where they are free (sudo pagemill \
             frag compact)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine(blocks: &str, stalls: u64) -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/buddyinfo"), format!("Node 0, zone   Normal {blocks}\n"))
            .unwrap();
        fs::write(root.path().join("proc/vmstat"), format!("compact_stall {stalls}\n")).unwrap();
        let linux = Linux::at(root.path());
        (root, linux)
    }

    #[test]
    fn memory_in_pieces_is_told_where_huge_pages_would_need_it() {
        let (_then, whole) = machine("256 0 0 0 0 0 0 0 0 0 64", 7);
        let memory = FreeMemory::of(&whole).unwrap();
        assert_eq!(memory.note(&whole, 200 << 20), None);
        let (_later, later) = machine("256 0 0 0 0 0 0 0 0 0 64", 107);
        let told = memory.note(&later, 200 << 20).unwrap();
        assert!(told.contains("memory was compacted 100 times"), "{told}");
        assert_eq!(memory.note(&later, 1 << 20), None, "none fits into that");
        let (_root, pieces) = machine("25600 0 0 0 0 0 0 0 0 1 0", 7);
        let told = FreeMemory::of(&pieces).unwrap().note(&pieces, 200 << 20).unwrap();
        assert!(told.contains("of 102.0 MiB 2.0 MiB are in blocks"), "{told}");
        assert!(told.contains("takes 200.0 MiB. Huge"), "{told}");
    }
}

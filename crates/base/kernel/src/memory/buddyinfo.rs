//! `/proc/buddyinfo`: the free blocks of each zone by order (Documentation/filesystems/proc.rst).
//!
//! ```text
//!  Node 0, zone   Normal  43912   8365    835 …   3005
//!                         blocks of 1 page, of 2, of 4, … of the largest order
//! ```
//!
//! Pages on the lists of a processor are not among them: see [`crate::memory::zoneinfo`].

use crate::{Error, Linux, Result};

const PATH: &str = "/proc/buddyinfo";

/// The free blocks of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBlocks {
    /// The memory node.
    pub node: u32,
    /// The zone's name, such as `Normal`.
    pub zone: String,
    /// Entry k: free blocks of 2^k pages.
    pub blocks: Vec<u64>,
}

impl Linux {
    /// The free blocks of every zone that has memory, in the kernel's order.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is not of the form that is known.
    pub fn buddyinfo(&self) -> Result<Vec<FreeBlocks>> {
        let text = self.read(PATH)?;
        let line = |line: &str| {
            let malformed = || Error::malformed(PATH, format_args!("{line:?}"));
            let (node, zone, rest) = zone_line(line).ok_or_else(malformed)?;
            let blocks: Option<Vec<u64>> =
                rest.split_whitespace().map(|word| word.parse().ok()).collect();
            let blocks = blocks.ok_or_else(malformed)?;
            Ok(FreeBlocks { node, zone: zone.to_owned(), blocks })
        };
        text.lines().map(line).collect()
    }
}

/// Node, zone and the rest of a line that begins with `Node 0, zone   Normal`.
pub(crate) fn zone_line(line: &str) -> Option<(u32, &str, &str)> {
    let (node, rest) = line.strip_prefix("Node")?.split_once(',')?;
    let rest = rest.trim_start().strip_prefix("zone")?.trim_start();
    let end = rest.find(|c: char| c.is_whitespace() || c == ',').unwrap_or(rest.len());
    let (zone, rest) = rest.split_at(end);
    Some((node.trim().parse().ok()?, zone, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_free_blocks_of_a_real_machine_read() {
        let zones = fixtures::debian().buddyinfo().unwrap();
        let names: Vec<&str> = zones.iter().map(|zone| zone.zone.as_str()).collect();
        assert_eq!(names, ["DMA", "DMA32", "Normal"]);
        assert!(zones.iter().all(|zone| zone.node == 0 && zone.blocks.len() == 11));
        assert_eq!(zones[0].blocks, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3]);
    }

    #[test]
    fn the_start_of_a_line_reads_with_any_spacing() {
        assert_eq!(zone_line("Node    0, zone      DMA, type    Unmovable  1"), {
            Some((0, "DMA", ", type    Unmovable  1"))
        });
        assert_eq!(zone_line("Node 12, zone  Movable"), Some((12, "Movable", "")));
        assert_eq!(zone_line("Free pages count"), None);
    }
}

//! `/proc/pagetypeinfo`: free blocks by order and mobility, and how many pageblocks each mobility
//! has. Only root may read it.
//!
//! A pageblock is what one huge page covers. The kernel keeps what it cannot move in as few of them
//! as possible; an unmovable page in a movable one is what compaction cannot mend.

use pagemill_model::Order;

use crate::memory::buddyinfo::zone_line;
use crate::{Error, Linux, Result};

const PATH: &str = "/proc/pagetypeinfo";

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTypes {
    /// Order of a pageblock.
    pub pageblock_order: Order,
    /// Free blocks of each zone and mobility.
    pub free: Vec<Free>,
    /// Pageblocks of each zone.
    pub blocks: Vec<Blocks>,
}

/// The free blocks of one zone and mobility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// `Unmovable`, `Movable`, `Reclaimable`, `HighAtomic`, `CMA` or `Isolate`.
    pub mobility: String,
    /// Entry k: free blocks of 2^k pages. The kernel stops counting at 100,000.
    pub blocks: Vec<u64>,
}

/// The pageblocks of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// How many of each mobility.
    pub count: Vec<(String, u64)>,
}

impl Linux {
    /// Free blocks and pageblocks by mobility. Needs root.
    ///
    /// # Errors
    /// The caller is not root, or the file is not of the form that is known.
    pub fn pagetypeinfo(&self) -> Result<PageTypes> {
        let text = self.read(PATH)?;
        parse(&text).ok_or_else(|| Error::malformed(PATH, "a line is not as documented"))
    }
}

fn parse(text: &str) -> Option<PageTypes> {
    let mut types = PageTypes::default();
    let mut mobilities = Vec::new();
    for line in text.lines() {
        if let Some(order) = line.strip_prefix("Page block order:") {
            types.pageblock_order = order.trim().parse().ok()?;
        } else if let Some(names) = line.strip_prefix("Number of blocks type") {
            mobilities = names.split_whitespace().map(str::to_owned).collect();
        } else if let Some((node, zone, rest)) = zone_line(line) {
            let zone = zone.to_owned();
            // `>100000` where the kernel has stopped counting.
            let numbers = |text: &str| -> Option<Vec<u64>> {
                let number = |word: &str| word.trim_start_matches('>').parse().ok();
                text.split_whitespace().map(number).collect()
            };
            if let Some(rest) = rest.trim_start().strip_prefix(", type") {
                let rest = rest.trim_start();
                let (mobility, rest) = rest.split_once(char::is_whitespace)?;
                let mobility = mobility.to_owned();
                types.free.push(Free { node, zone, mobility, blocks: numbers(rest)? });
            } else {
                let count = mobilities.iter().cloned().zip(numbers(rest)?).collect();
                types.blocks.push(Blocks { node, zone, count });
            }
        }
    }
    (types.pageblock_order > Order(0)).then_some(types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_mobilities_of_a_real_machine_read() {
        let types = fixtures::debian().pagetypeinfo().unwrap();
        assert_eq!(types.pageblock_order, Order(9));
        assert_eq!((types.free.len(), types.blocks.len()), (15, 3));
        assert_eq!(types.free[1].mobility, "Movable");
        assert_eq!(types.free[1].blocks, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3]);
        let dma = &types.blocks[0];
        assert_eq!(dma.count[..2], [("Unmovable".into(), 1), ("Movable".into(), 7)]);
    }

    #[test]
    fn the_mobilities_add_up_to_the_free_blocks() {
        let linux = fixtures::debian();
        let types = linux.pagetypeinfo().unwrap();
        for zone in linux.buddyinfo().unwrap() {
            let of_zone = types.free.iter().filter(|free| free.zone == zone.zone);
            let mut sum = vec![0; zone.blocks.len()];
            for free in of_zone {
                sum.iter_mut().zip(&free.blocks).for_each(|(sum, blocks)| *sum += blocks);
            }
            assert_eq!(sum, zone.blocks, "{}", zone.zone);
        }
    }

    #[test]
    fn a_count_that_the_kernel_gave_up_is_its_limit() {
        let text = "Page block order: 9\nNode 0, zone Normal, type Movable >100000 3\n";
        assert_eq!(parse(text).unwrap().free[0].blocks, [100_000, 3]);
        assert_eq!(parse("hello"), None);
    }
}

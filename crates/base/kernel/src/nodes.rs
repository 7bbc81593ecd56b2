//! `/sys/devices/system/node`: the memory nodes of a machine, how far and how fast they are, and the
//! tiers that the kernel sorts them into (Documentation/admin-guide/mm/numaperf.rst,
//! Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers).
//!
//! Firmware describes latency and bandwidth in the HMAT; the kernel shows them as *access classes*:
//! `access0` from the best initiator, `access1` from the best one with CPUs. Without that table the
//! values are absent.

pub mod mempolicy;
pub mod move_pages;
pub mod numa_balancing;
pub mod tier_latency;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::present;
use crate::{Error, Kind, Linux, Result, kibibytes};

const NODES: &str = "/sys/devices/system/node";
const TIERS: &str = "/sys/devices/virtual/memory_tiering";

/// What firmware says of the way from the best initiator to a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Latency of a read, nanoseconds.
    pub read_latency: Option<u64>,
    /// Bandwidth of reads, MB/s.
    pub read_bandwidth: Option<u64>,
}

/// One memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs; none for memory on a CXL device.
    pub cpus: Vec<u32>,
    /// Memory, bytes.
    pub total: u64,
    /// Memory that holds nothing, bytes.
    pub free: u64,
    /// Distance to each node by the firmware's SLIT, itself included (10).
    pub distances: BTreeMap<u32, u64>,
    /// What the HMAT says.
    pub access: Access,
    /// The kernel's memory tier; a lower number is faster.
    pub tier: Option<u32>,
    /// Counters of this node since boot (`vmstat`).
    pub counters: BTreeMap<String, u64>,
}

impl Node {
    /// Pages that came here because they were hot.
    pub fn promoted(&self) -> Option<u64> {
        self.counters.get("pgpromote_success").copied()
    }

    /// Pages that reclaim moved from here to a lower tier.
    pub fn demoted(&self) -> Option<u64> {
        let demoted = self.counters.iter().filter(|(name, _)| name.starts_with("pgdemote_"));
        demoted.map(|(_, count)| *count).reduce(u64::saturating_add)
    }
}

impl Linux {
    /// The nodes that have memory, in the order of their numbers. A kernel without NUMA has none.
    ///
    /// # Errors
    /// A list of nodes or a node's file cannot be read, or is not of the form that is known.
    pub fn memory_nodes(&self) -> Result<Vec<Node>> {
        let ids = match present(self.read(format!("{NODES}/has_memory")))? {
            Some(list) => parse_list(&list)
                .ok_or_else(|| Error::malformed(format!("{NODES}/has_memory"), list))?,
            None => return Ok(Vec::new()),
        };
        let online = match present(self.read(format!("{NODES}/online")))? {
            Some(list) => parse_list(&list).unwrap_or_else(|| ids.clone()),
            None => ids.clone(),
        };
        let tiers = self.memory_tiers()?;
        // One that is taken offline meanwhile is none.
        let offline = |error: &Error| matches!(error.kind(), Kind::NotFound | Kind::Unsupported);
        let node = |id| match self.memory_node(id, &online, &tiers) {
            Err(error) if offline(&error) => None,
            found => Some(found),
        };
        ids.into_iter().filter_map(node).collect()
    }

    /// The physical addresses of a node's memory; there may be holes.
    ///
    /// # Errors
    /// There is no such node, or the kernel does not tell where its memory is.
    pub fn node_addresses(&self, id: u32) -> Result<Range<u64>> {
        const BLOCK: &str = "/sys/devices/system/memory/block_size_bytes";
        let at = format!("{NODES}/node{id}");
        let text = self.read(BLOCK)?;
        let size = u64::from_str_radix(text.trim(), 16)
            .map_err(|_| Error::malformed(BLOCK, text.trim()))?;
        let entries =
            std::fs::read_dir(self.path(&at)).map_err(|error| Error::io("list", &at, error))?;
        let block = |entry: std::fs::DirEntry| {
            entry.file_name().to_str()?.strip_prefix("memory")?.parse::<u64>().ok()
        };
        let blocks: Vec<u64> = entries.flatten().filter_map(block).collect();
        match (blocks.iter().min(), blocks.iter().max()) {
            (Some(first), Some(last)) => {
                let end = last.saturating_add(1).saturating_mul(size);
                Ok(first.saturating_mul(size)..end)
            }
            _ => Err(Error::malformed(at, "it has no blocks of memory")),
        }
    }

    fn memory_node(&self, id: u32, online: &[u32], tiers: &BTreeMap<u32, u32>) -> Result<Node> {
        let at = format!("{NODES}/node{id}");
        let memory = self.read(format!("{at}/meminfo"))?;
        let bytes = |key: &str| {
            let line = memory.lines().find_map(|line| line.split_once(&format!("{key}:")))?;
            kibibytes(line.1)
        };
        let missing =
            |key: &str| Error::malformed(format!("{at}/meminfo"), format_args!("it has no {key}"));
        let distances = present(self.read(format!("{at}/distance")))?.unwrap_or_default();
        let distances =
            distances.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
        let cpus = present(self.read(format!("{at}/cpulist")))?.unwrap_or_default();
        let counters = present(self.read(format!("{at}/vmstat")))?.unwrap_or_default();
        let pair = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        };
        let access = |name: &str| {
            // Class 1 asks for an initiator with CPUs, which is who reads.
            ["access1", "access0"].iter().find_map(|class| {
                let path = format!("{at}/{class}/initiators/{name}");
                self.read_number(path).ok().filter(|value| *value > 0)
            })
        };
        Ok(Node {
            id,
            cpus: parse_list(&cpus).unwrap_or_default(),
            total: bytes("MemTotal").ok_or_else(|| missing("MemTotal"))?,
            free: bytes("MemFree").ok_or_else(|| missing("MemFree"))?,
            distances: online.iter().copied().zip(distances).collect(),
            access: Access {
                read_latency: access("read_latency"),
                read_bandwidth: access("read_bandwidth"),
            },
            tier: tiers.get(&id).copied(),
            counters: counters.lines().filter_map(pair).collect(),
        })
    }

    /// The kernel's memory tier of each node; empty where it has none (before 6.1).
    fn memory_tiers(&self) -> Result<BTreeMap<u32, u32>> {
        let mut tiers = BTreeMap::new();
        let Ok(entries) = std::fs::read_dir(self.path(TIERS)) else { return Ok(tiers) };
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let Some(Ok(tier)) = name.strip_prefix("memory_tier").map(str::parse) else { continue };
            let list = self.read(format!("{TIERS}/{name}/nodelist"))?;
            tiers.extend(parse_list(&list).unwrap_or_default().into_iter().map(|id| (id, tier)));
        }
        Ok(tiers)
    }
}

/// CPUs, and nodes.
const MANY: usize = 1 << 20;

/// Numbers and ranges such as `0-2,5`; an empty list is empty.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse().ok()?);
        // No kernel has so many CPUs or nodes.
        numbers.extend((last < MANY as u32).then_some(first..=last)?);
        (numbers.len() <= MANY).then_some(())?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-3,6"), Some(vec![0, 1, 2, 3, 6]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-x"), None);
    }

    /// A line of the kernel's length took a gibibyte and more.
    #[test]
    fn a_list_has_no_more_than_a_machine_can_have() {
        assert_eq!(parse_list("0-1048575").map(|all| all.len()), Some(MANY));
        assert_eq!(parse_list("0-1048575,0-1048575"), None);
    }

    #[test]
    fn a_node_without_cpus_is_read_with_its_latency_and_tier() {
        let nodes = fixtures::two_nodes().memory_nodes().unwrap();
        let [fast, slow] = nodes.as_slice() else { panic!("{nodes:?}") };
        assert_eq!((fast.id, slow.id), (0, 1));
        assert_eq!((fast.cpus.as_slice(), slow.cpus.as_slice()), (&[0, 1][..], &[][..]));
        assert_eq!(fast.access, Access { read_latency: Some(70), read_bandwidth: Some(204_800) });
        assert_eq!(slow.access, Access { read_latency: Some(135), read_bandwidth: Some(76_800) });
        assert_eq!((fast.tier, slow.tier), (Some(4), Some(23)));
        assert_eq!(fast.distances[&1], 20);
        assert!(fast.free < fast.total && fast.total > 900 << 20);
        assert_eq!(fast.promoted(), Some(0));
        assert_eq!(slow.demoted(), Some(0));
    }

    #[test]
    fn a_node_spans_its_blocks_of_memory() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for block in ["memory8", "memory15", "meminfo", "power"] {
            std::fs::create_dir_all(linux.path(format!("{NODES}/node1/{block}"))).unwrap();
        }
        let size = linux.path("/sys/devices/system/memory/block_size_bytes");
        std::fs::create_dir_all(size.parent().unwrap()).unwrap();
        std::fs::write(size, "8000000\n").unwrap();
        assert_eq!(linux.node_addresses(1).unwrap(), 1 << 30..2 << 30);
        assert!(linux.node_addresses(0).is_err());
    }

    #[test]
    fn a_machine_without_nodes_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Linux::at(root.path()).memory_nodes().unwrap(), []);
    }

    /// The list was read before, the node after: the placement daemon ended with an error.
    #[test]
    fn a_node_that_goes_offline_while_it_is_looked_at_is_none() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        std::fs::create_dir_all(linux.path(format!("{NODES}/node0"))).unwrap();
        std::fs::write(linux.path(format!("{NODES}/has_memory")), "0-1\n").unwrap();
        let memory = "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n";
        std::fs::write(linux.path(format!("{NODES}/node0/meminfo")), memory).unwrap();
        let nodes = linux.memory_nodes().unwrap();
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0]);
        let found = linux.memory_node(1, &[], &BTreeMap::new());
        assert_eq!(found.map_err(|error| error.kind()).unwrap_err(), Kind::NotFound);
    }

    #[test]
    fn lists_of_numbers_and_ranges_are_read() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("0-x"), None);
    }
}

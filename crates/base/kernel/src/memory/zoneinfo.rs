//! `/proc/zoneinfo`: sizes and watermarks of each zone, and the lists of free pages that each
//! processor keeps for itself.
//!
//! A page on such a list (*pcp*, per-CPU pages) is free and in no block of `/proc/buddyinfo`: until it
//! is drained it joins no buddy. Since kernel 6.7 the lists grow by themselves, to gigabytes.

use pagemill_model::sums;

use crate::error::present;
use crate::memory::buddyinfo::zone_line;
use crate::{Error, Linux, Result};

const PATH: &str = "/proc/zoneinfo";

/// One zone. All sizes are pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// Free, lists of the processors not included.
    pub free: u64,
    /// Below this only the kernel's own emergencies are served.
    pub min: u64,
    /// Below this `kswapd` wakes.
    pub low: u64,
    /// Up to this `kswapd` reclaims.
    pub high: u64,
    /// Its first page frame.
    pub start: u64,
    /// In the care of the page allocator.
    pub managed: u64,
    /// The lists, one a processor; none for a zone without memory.
    pub lists: Vec<List>,
}

/// The list of free pages that one processor keeps of one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// The processor.
    pub cpu: u32,
    /// Pages on it.
    pub count: u64,
    /// Pages that it may hold now.
    pub high: u64,
    /// Pages to which that may grow; absent before kernel 6.7.
    pub high_max: Option<u64>,
}

impl Zone {
    /// Free pages on the lists of all processors.
    pub fn hidden(&self) -> u64 {
        sums::sum(self.lists.iter().map(|list| list.count))
    }
}

impl Linux {
    /// Every zone of every node, those without memory included.
    ///
    /// # Errors
    /// The file cannot be read, or is not of the form that is known.
    pub fn zoneinfo(&self) -> Result<Vec<Zone>> {
        let zones = parse(&self.read(PATH)?);
        if zones.is_empty() {
            return Err(Error::malformed(PATH, "it has no zone"));
        }
        Ok(zones)
    }

    /// Free pages on the lists of all processors, all zones together. Absent without the file.
    ///
    /// # Errors
    /// As of [`Linux::zoneinfo`], but for a file that is not there.
    pub fn hidden_pages(&self) -> Result<Option<u64>> {
        let zones = present(self.zoneinfo())?;
        Ok(zones.map(|zones| sums::sum(zones.iter().map(Zone::hidden))))
    }
}

fn parse(text: &str) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    for line in text.lines() {
        if let Some((node, name, _)) = zone_line(line) {
            zones.push(Zone { node, zone: name.to_owned(), ..Zone::default() });
            continue;
        }
        let Some(zone) = zones.last_mut() else { continue };
        let mut words = line.split_whitespace();
        let (Some(key), Some(last)) = (words.next(), words.next_back()) else { continue };
        let Ok(value) = last.parse::<u64>() else { continue };
        let list = zone.lists.last_mut();
        match (key, list) {
            ("pages", None) => zone.free = value,
            ("min", None) => zone.min = value,
            ("low", None) => zone.low = value,
            ("high", None) => zone.high = value,
            ("managed", None) => zone.managed = value,
            ("start_pfn:", _) => zone.start = value,
            ("cpu:", _) => {
                let cpu = u32::try_from(value).unwrap_or(u32::MAX);
                zone.lists.push(List { cpu, ..List::default() });
            }
            ("count:", Some(list)) => list.count = value,
            ("high:", Some(list)) => list.high = value,
            ("high_max:", Some(list)) => list.high_max = Some(value),
            _ => {}
        }
    }
    zones
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_zones_of_a_real_machine_read() {
        let zones = fixtures::debian().zoneinfo().unwrap();
        let with_memory: Vec<&Zone> = zones.iter().filter(|zone| zone.managed > 0).collect();
        assert_eq!(with_memory.len(), 3);
        let dma = with_memory[0];
        assert_eq!((dma.zone.as_str(), dma.free, dma.managed), ("DMA", 3840, 3840));
        assert_eq!((dma.start, with_memory[1].start), (1, 4096));
        assert_eq!((dma.min, dma.low, dma.high), (10, 13, 16));
        assert_eq!((dma.lists.len(), dma.hidden()), (2, 0));
        let dma32 = with_memory[1];
        assert_eq!(dma32.lists[1], List { cpu: 1, count: 1133, high: 1444, high_max: Some(48307) });
        let hidden: u64 = with_memory.iter().map(|zone| zone.hidden()).sum();
        assert_eq!(fixtures::debian().hidden_pages().unwrap(), Some(hidden));
    }

    #[test]
    fn free_pages_are_those_of_the_free_blocks() {
        let linux = fixtures::debian();
        let zones = linux.zoneinfo().unwrap();
        for buddy in linux.buddyinfo().unwrap() {
            let zone = zones.iter().find(|zone| zone.zone == buddy.zone).unwrap();
            let pages: u64 = (0..).zip(&buddy.blocks).map(|(order, n)| n << order).sum();
            // The counter of a zone runs behind those of the processors by up to 36 pages each here.
            assert!(pages.abs_diff(zone.free) <= 72, "{}: {pages} {}", buddy.zone, zone.free);
        }
    }

    /// Found by a fuzzer: their sum was a panic.
    #[test]
    fn counts_that_are_more_than_there_can_be_do_not_overflow() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let text = std::fs::read_to_string("/proc/zoneinfo").unwrap();
        let count = |line: &str| line.trim_start().starts_with("count:");
        let much = format!("count: {}", u64::MAX);
        let lines = text.lines().map(|line| if count(line) { much.as_str() } else { line });
        let text = lines.collect::<Vec<_>>().join("\n");
        std::fs::write(root.path().join("proc/zoneinfo"), text).unwrap();
        assert_eq!(Linux::at(root.path()).hidden_pages().unwrap(), Some(u64::MAX));
    }
}

//! Call sites of memory in programs under `run --huge`, for the rows of a profile that name one
//! (`site,=,redis-server+0x7a10`).
//!
//! The library that notes large allocations is loaded beside that of prefault; its notes are read at each look. Who has
//! no site (a forked child's inherited memory, small memory) has no such row.

use std::collections::BTreeMap;

use pagemill_analysis::sites::{Images, OwnedRanges};
use pagemill_kernel::Linux;
use pagemill_model::{Allocation, Pid};

/// Notes since the last reading.
pub type Notes = Box<dyn FnMut() -> Vec<Allocation>>;

#[derive(Default)]
struct Process {
    images: Images,
    made: OwnedRanges<String>,
}

/// The sites in a program and its descendants.
pub struct Sites {
    notes: Notes,
    processes: BTreeMap<u64, Process>,
}

impl Sites {
    /// Knows nothing yet.
    pub fn new(notes: Notes) -> Self {
        Self { notes, processes: BTreeMap::new() }
    }

    /// Reads what was noted.
    pub fn read_notes(&mut self, linux: &Linux) {
        for note in (self.notes)() {
            let (Some(pid), Some(start), Some(size)) = (note.pid, note.address, note.size) else {
                continue;
            };
            let callers = note.stack.unwrap_or_default();
            let process = self.processes.entry(pid).or_default();
            if !callers.first().is_some_and(|caller| process.images.knows(*caller)) {
                for map in linux.maps(Pid(pid as u32)).unwrap_or_default() {
                    process.images.map(map.start..map.end, &map.name);
                }
            }
            if let Some(site) = process.images.site(&callers) {
                process.made.insert(start..start.saturating_add(size), site);
            }
        }
    }

    /// The site of the memory at an address, or right behind it.
    pub fn at(&self, pid: Pid, address: u64) -> Option<String> {
        self.processes.get(&u64::from(pid))?.made.at(address, 4096).cloned()
    }
}

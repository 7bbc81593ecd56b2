//! The code around instructions of running programs, read when they are first met and looked at again each time.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pagemill_kernel::maps::Mapping;
use pagemill_kernel::{Linux, process_vm};

use super::blocks::FileCode;
use super::code::LONGEST;
use super::nearest::{self, REACH, Site};

/// Bytes from an instruction on that are read.
const AHEAD: usize = REACH * LONGEST / 2;

/// Functions of more bytes before the instruction are not decoded.
const LONG: u64 = 1 << 20;

/// How often the mappings of a process are read again at most.
const AGAIN: Duration = Duration::from_millis(100);

/// What is known of code.
pub struct Surroundings {
    linux: Linux,
    files: HashMap<(u64, String), Option<Rc<FileCode>>>,
    maps: HashMap<u32, (Vec<Mapping>, Instant)>,
    sites: HashMap<(u32, u64), Known>,
}

struct Known {
    /// The code that it was decoded from, and where that begins.
    begins: u64,
    bytes: Vec<u8>,
    site: Site,
}

impl Surroundings {
    /// Knows nothing.
    pub fn new(linux: Linux) -> Self {
        Self { linux, files: HashMap::new(), maps: HashMap::new(), sites: HashMap::new() }
    }

    /// The code around an instruction of a process. Of one that has ended, what was known.
    pub fn of(&mut self, process: u32, at: u64) -> &Site {
        let key = (process, at);
        let fresh = match self.sites.get(&key) {
            Some(known) => {
                let mut now = vec![0; known.bytes.len()];
                // Another program may be there by now, or code that was made anew.
                process_vm::read(process, known.begins, &mut now).is_ok() && now != known.bytes
            }
            None => true,
        };
        if fresh {
            let known = self.read(process, at);
            self.sites.insert(key, known);
        }
        &self.sites[&key].site
    }

    fn read(&mut self, process: u32, at: u64) -> Known {
        let bytes = readable(process, at);
        let ahead = nearest::ahead(&bytes, at);
        if ahead.is_empty() {
            return Known { begins: at, bytes, site: Site::default() };
        }
        let Some((before, behind)) = self.behind(process, at, &bytes) else {
            return Known { begins: at, bytes, site: Site { ahead, behind: None } };
        };
        let begins = at - before.len() as u64;
        let bytes = [before, bytes].concat();
        Known { begins, bytes, site: Site { ahead, behind: Some(behind) } }
    }

    /// The code before an instruction from its function's beginning on, and what of it is in one block with it.
    fn behind(
        &mut self,
        process: u32,
        at: u64,
        following: &[u8],
    ) -> Option<(Vec<u8>, Vec<iced_x86::Instruction>)> {
        let mapping = self.mapping(process, at)?;
        let file = self.file(process, &mapping)?;
        // From addresses of the file to those of the process.
        let there = file.address(at - mapping.start + mapping.offset)?;
        let function = file.function(there)?;
        let length = there - function.start;
        if length > LONG || mapping.start > at - length {
            return None;
        }
        let mut before = vec![0; length as usize];
        process_vm::read(process, at - length, &mut before).ok()?;
        // Code that was changed in memory may be jumped to from anywhere.
        if file.bytes(function.start..there)? != before {
            return None;
        }
        let code = [&before[..], &following[..following.len().min(LONGEST)]].concat();
        let slid = at.wrapping_sub(there);
        let block = nearest::behind(&code, at - length, at, |range| {
            file.enters(range.start.wrapping_sub(slid)..range.end.wrapping_sub(slid))
        })?;
        // What is looked at again is what was used.
        let used = block.last().map_or(0, |first| (at - first.ip()) as usize);
        Some((before.split_off(before.len() - used), block))
    }

    fn mapping(&mut self, process: u32, at: u64) -> Option<Mapping> {
        let held = |mappings: &[Mapping]| {
            mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&at)).cloned()
        };
        if let Some((mappings, read)) = self.maps.get(&process)
            && let found = held(mappings)
            && (found.is_some() || read.elapsed() < AGAIN)
        {
            return found;
        }
        let mappings = self.linux.maps(process).ok()?;
        let found = held(&mappings);
        self.maps.insert(process, (mappings, Instant::now()));
        found
    }

    fn file(&mut self, process: u32, mapping: &Mapping) -> Option<Rc<FileCode>> {
        let name = mapping.file()?;
        let key = (mapping.inode, name.to_owned());
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        // As the process sees it, which may be in a container.
        let path = self.linux.path(format!("/proc/{process}/root{name}"));
        let found = pagemill_model::whole::read(path.as_ref(), pagemill_model::whole::DATA)
            .ok()
            .and_then(|image| FileCode::read(&image))
            .map(Rc::new);
        self.files.insert(key, found.clone());
        found
    }
}

/// The bytes from an address on, as many as there are.
fn readable(process: u32, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; AHEAD];
    if process_vm::read(process, at, &mut bytes).is_ok() {
        return bytes;
    }
    // The mapping ends before: at a page.
    let page = pagemill_kernel::page_size() as u64;
    bytes.truncate((page - at % page) as usize);
    match process_vm::read(process, at, &mut bytes) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

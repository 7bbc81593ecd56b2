//! The code around instructions of running programs, read when they are first met and looked at again each time; of
//! processes that have ended, or execute something else by now, from the files that they had mapped.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::trace::access_samples::MappedCode;
use pagemill_kernel::{Linux, process::process_vm};
use pagemill_model::Pid;

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
    maps: HashMap<Pid, (Vec<Mapping>, Instant)>,
    /// Code that processes mapped, as far as that was told, and how many programs they had executed.
    told: HashMap<Pid, (Vec<MappedCode>, u64)>,
    sites: HashMap<(Pid, u64, u64), DecodedSite>,
}

struct DecodedSite {
    /// The code that it was decoded from, and where that begins.
    begins: u64,
    bytes: Vec<u8>,
    site: Site,
}

impl Surroundings {
    /// Knows nothing.
    pub fn new(linux: Linux) -> Self {
        let (files, maps, told, sites) = Default::default();
        Self { linux, files, maps, told, sites }
    }

    /// A process mapped code.
    pub fn mapped(&mut self, process: Pid, code: MappedCode) {
        let (mapped, _) = self.told.entry(process).or_default();
        mapped.retain(|other| other.end <= code.start || code.end <= other.start);
        mapped.push(code);
    }

    /// A process forked another, which has the same code.
    pub fn forked(&mut self, parent: Pid, child: Pid) {
        let (mapped, _) = self.told.get(&parent).cloned().unwrap_or_default();
        let (own, executed) = self.told.entry(child).or_default();
        // Its number may have been another's.
        (*own, *executed) = (mapped, *executed + 1);
    }

    /// A process executes another program.
    pub fn executed(&mut self, process: Pid) {
        let (mapped, executed) = self.told.entry(process).or_default();
        mapped.clear();
        *executed += 1;
    }

    /// The code around an instruction of a process. Of one that has ended, or (`changed`) has executed another program
    /// since, what was known, or what its file says.
    pub fn of(&mut self, process: Pid, at: u64, changed: bool) -> &Site {
        let executed = self.told.get(&process).map_or(0, |told| told.1);
        let key = (process, executed, at);
        let fresh = match self.sites.get(&key) {
            Some(_) if changed => false,
            Some(known) => {
                let mut now = vec![0; known.bytes.len()];
                // Another program may be there by now, or code that was made anew.
                process_vm::read(process, known.begins, &mut now).is_ok() && now != known.bytes
            }
            None => true,
        };
        if fresh {
            let known = self.read(process, at, changed);
            self.sites.insert(key, known);
        }
        &self.sites[&key].site
    }

    fn read(&mut self, process: Pid, at: u64, changed: bool) -> DecodedSite {
        let bytes = if changed { Vec::new() } else { readable(process, at) };
        if bytes.is_empty()
            && let Some(known) = self.read_file(process, at)
        {
            return known;
        }
        let ahead = nearest::ahead(&bytes, at);
        if ahead.is_empty() {
            return DecodedSite { begins: at, bytes, site: Site::default() };
        }
        let Some((before, behind)) = self.behind(process, at, &bytes) else {
            return DecodedSite { begins: at, bytes, site: Site { ahead, behind: None } };
        };
        let begins = at - before.len() as u64;
        let bytes = [before, bytes].concat();
        DecodedSite { begins, bytes, site: Site { ahead, behind: Some(behind) } }
    }

    /// The same from the file that the process had mapped there.
    fn read_file(&mut self, process: Pid, at: u64) -> Option<DecodedSite> {
        let (mapped, _) = self.told.get(&process)?;
        let code = mapped.iter().find(|code| (code.start..code.end).contains(&at))?.clone();
        let file = self.mapped_file(&code)?;
        let there = file.address((at - code.start).checked_add(code.offset)?)?;
        let bytes = file.following(there, AHEAD)?.to_vec();
        let ahead = nearest::ahead(&bytes, at);
        let before = file
            .function(there)
            .filter(|function| there - function.start <= LONG && there - function.start <= at)
            .and_then(|function| file.bytes(function.start..there));
        let block = before.and_then(|before| block(&file, before, &bytes, at, there));
        Some(DecodedSite { begins: at, bytes, site: Site { ahead, behind: block } })
    }

    /// The code before an instruction from its function's beginning on, and what of it is in one block with it.
    fn behind(
        &mut self,
        process: Pid,
        at: u64,
        following: &[u8],
    ) -> Option<(Vec<u8>, Vec<iced_x86::Instruction>)> {
        let mapping = self.mapping(process, at)?;
        let file = self.file(process, &mapping)?;
        // From addresses of the file to those of the process.
        let there = file.address((at - mapping.start).checked_add(mapping.offset)?)?;
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
        let block = block(&file, &before, following, at, there)?;
        // What is looked at again is what was used.
        let used = block.last().map_or(0, |first| (at - first.ip()) as usize);
        Some((before.split_off(before.len() - used), block))
    }

    /// The code of a file that was mapped, if it is still that file.
    fn mapped_file(&mut self, code: &MappedCode) -> Option<Rc<FileCode>> {
        use std::os::unix::fs::MetadataExt as _;
        let key = (code.inode, code.path.clone());
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        let path = self.linux.path(&code.path);
        let same = std::fs::metadata(&path).is_ok_and(|file| file.ino() == code.inode);
        let image = || pagemill_model::whole::elf(&path);
        let found = same.then(image).flatten().and_then(|image| FileCode::read(&image));
        self.files.entry(key).or_insert(found.map(Rc::new)).clone()
    }

    fn mapping(&mut self, process: Pid, at: u64) -> Option<Mapping> {
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

    fn file(&mut self, process: Pid, mapping: &Mapping) -> Option<Rc<FileCode>> {
        let name = mapping.file()?;
        let key = (mapping.inode, name.to_owned());
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        // As the process sees it, which may be in a container.
        let path = self.linux.path(format!("/proc/{process}/root{name}"));
        let found = pagemill_model::whole::elf(path.as_ref())
            .and_then(|image| FileCode::read(&image))
            .map(Rc::new);
        self.files.insert(key, found.clone());
        found
    }
}

/// What is in one block with an instruction at `at`, which is `there` in its file, of the code `before` it from its
/// function's beginning on.
fn block(
    file: &FileCode,
    before: &[u8],
    following: &[u8],
    at: u64,
    there: u64,
) -> Option<Vec<iced_x86::Instruction>> {
    let code = [before, &following[..following.len().min(LONGEST)]].concat();
    let slid = at.wrapping_sub(there);
    nearest::behind(&code, at - before.len() as u64, at, |range| {
        file.enters(range.start.wrapping_sub(slid)..range.end.wrapping_sub(slid))
    })
}

/// The bytes from an address on, as many as there are.
fn readable(process: Pid, at: u64) -> Vec<u8> {
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

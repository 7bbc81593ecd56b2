//! The change of a program's memory, while all its threads are stopped.
//!
//! ```text
//!  before                         after
//!  private, writable        ──►   shared, of the memory file, at a fresh offset; same bytes
//!  anonymous, any access    ──►   the same: it may become writable
//!  private, of a file, r/o        unchanged: its pages are the file's
//!  shared                         unchanged
//!  huge pages, devices            unchanged, told as untraced
//! ```
//!
//! Always true: until the last mapping is changed the program has not run, and what it sees then is
//! what was there before.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering::Relaxed;

use pagemill_kernel::maps::Mapping;
use pagemill_kernel::pagemap::Pagemap;
use pagemill_kernel::resident::{self, Control, Shared};
use pagemill_kernel::watched::{self, Watched};
use pagemill_kernel::{Error, Kind, Linux, Result, page_size, pidfd, process_vm, seccomp};

use crate::inject::{Injection, refused, system_call_instruction};
use crate::process::{Process, fresh};
use crate::{PATIENCE, Untraced};

/// Bytes of the memory file: far more than any program maps.
const MEMORY_BYTES: u64 = 1 << 62;
/// The first part of the file that is given out.
const FIRST_OFFSET: u64 = 1 << 36;
/// The stack may grow to this, if its limit allows.
const STACK: u64 = 8 << 20;
/// Bytes copied at a time.
const COPY: u64 = 1 << 20;

const SHARED: i64 = 1;
const FIXED: i64 = 0x10;
const FIXED_NOREPLACE: i64 = 0x10_0000;
const MMAP: i64 = 9;
const BRK: i64 = 12;
const CLOSE: i64 = 3;
const FCNTL: i64 = 72;
const PRCTL: i64 = 157;
const OPENAT: i64 = 257;
const EVENTFD2: i64 = 290;
const SECCOMP: i64 = 317;
const MEMFD_CREATE: i64 = 319;
const USERFAULTFD: i64 = 323;
const CLOEXEC: i64 = 0o2_000_000;

/// What all processes of a trace share: the filter that they inherit, and its listener.
#[derive(Debug)]
pub(crate) struct Session {
    /// First of the descriptors of ours in a program.
    pub(crate) own_fds: u32,
    /// Our end of the filter's notifications and its number in every program, once it is installed.
    pub(crate) listener: Option<(OwnedFd, i64)>,
    /// Whether a filter may be installed without giving up set-user-ID programs.
    pub(crate) privileged: bool,
}

/// The access of a mapping as `mmap` takes it.
pub(crate) fn protection(mapping: &Mapping) -> i64 {
    i64::from(mapping.read) | i64::from(mapping.write) << 1 | i64::from(mapping.execute) << 2
}

/// What becomes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its bytes go into the memory file.
    Converted,
    /// Watched as it is.
    Watched,
    /// A page of the kernel's, which is nobody's data.
    Ignored,
    /// Told as untraced, and why.
    Untraced(&'static str),
}

fn fate(mapping: &Mapping) -> Fate {
    let named = mapping.name.as_str();
    if mapping.start >= 1 << 47 || named.starts_with("[v") {
        return Fate::Ignored;
    }
    if named.contains("hugepage") || named.starts_with("/dev/hugepages") {
        return Fate::Untraced("huge pages");
    }
    if named.starts_with("/dev/")
        && !named.starts_with("/dev/zero")
        && !named.starts_with("/dev/shm/")
    {
        return Fate::Untraced("a device");
    }
    if mapping.shared {
        return Fate::Watched;
    }
    if mapping.write || mapping.inode == 0 { Fate::Converted } else { Fate::Watched }
}

/// Changes the memory of process `pid`, whose threads are all stopped, `thread` of them at a place where
/// it can be made to do things.
pub(crate) fn convert(
    linux: &Linux,
    session: &mut Session,
    pid: u32,
    thread: u32,
    untraced: &mut Vec<Untraced>,
) -> Result<Process> {
    let instruction = system_call_instruction(linux, pid)?;
    let injection = Injection::begin(thread)?;
    let done = Conversion { linux, session, pid, thread, injection: &injection, untraced }
        .run(instruction);
    injection.finish()?;
    done
}

struct Conversion<'a> {
    linux: &'a Linux,
    session: &'a mut Session,
    pid: u32,
    thread: u32,
    injection: &'a Injection,
    untraced: &'a mut Vec<Untraced>,
}

impl Conversion<'_> {
    fn run(&mut self, instruction: u64) -> Result<Process> {
        let process = pidfd::open(self.pid)?;
        let control = self.settle(&process, instruction)?;
        let own = self.descriptors(&process, &control)?;
        let memory = File::from(pidfd::descriptor(&process, own.memory as i32)?);
        memory
            .set_len(MEMORY_BYTES)
            .map_err(|error| Error::io("size", "the memory file", error))?;
        let metadata =
            memory.metadata().map_err(|error| Error::io("look at", "the memory file", error))?;
        let watched = Watched::new(pidfd::descriptor(&process, own.userfault as i32)?)?;
        let wake = pidfd::descriptor(&process, own.wake as i32)?;
        let pagemap = Pagemap::open(self.linux, self.pid)?;

        control.process.store(self.pid as i32, Relaxed);
        control.tracer.store(std::process::id(), Relaxed);
        control.memory_fd.store(own.memory as i32, Relaxed);
        control.userfault_fd.store(own.userfault as i32, Relaxed);
        control.pagemap_fd.store(own.pagemap as i32, Relaxed);
        control.maps_fd.store(own.maps as i32, Relaxed);
        control.listener_fd.store(own.listener as i32, Relaxed);
        control.wake_fd.store(own.wake as i32, Relaxed);
        control.own_fds.store(self.session.own_fds as i32, Relaxed);
        control.inode.store(metadata.ino(), Relaxed);
        let device = metadata.dev();
        control.device_major.store((device >> 8 & 0xfff) as u32, Relaxed);
        control.device_minor.store((device & 0xff | device >> 12 & 0xfff_ff00) as u32, Relaxed);
        control.next_offset.store(FIRST_OFFSET, Relaxed);

        let mappings = self.linux.maps(self.pid)?;
        self.mappings(&control, &memory, own.memory, &pagemap, &mappings)?;
        for mapping in self.linux.maps(self.pid)? {
            if matches!(fate(&mapping), Fate::Converted | Fate::Watched) && !in_resident(&mapping) {
                watched.register(mapping.start, mapping.end);
            }
        }
        let servant = self.injection.clone(false)?;
        let mapper = self.injection.clone(true)?;
        control.mapper_process.store(mapper, Relaxed);
        control.wait_ready(&control.servant_ready, PATIENCE)?;
        control.wait_ready(&control.mapper_ready, PATIENCE)?;
        Ok(Process {
            pid: self.pid,
            control,
            memory,
            inode: metadata.ino(),
            memory_fd: own.memory,
            watched,
            wake,
            pagemap,
            servant,
            mapper,
            sharers: Vec::new(),
            fork_advice: Vec::new(),
            pending: Vec::new(),
            original: mappings.into_iter().filter(|mapping| !in_resident(mapping)).collect(),
            intervals: 0,
            began: 0,
        })
    }

    /// An injected call that must succeed.
    fn check(&self, action: &'static str, result: i64) -> Result<i64> {
        if (-4095..0).contains(&result) {
            Err(refused(action, self.thread, result))
        } else {
            Ok(result)
        }
    }

    /// Brings our code and the control page into the program.
    fn settle(&self, process: &OwnedFd, instruction: u64) -> Result<Shared> {
        // Below what the program has on its stack, with room for its red zone.
        const NAME: &[u8] = b"pagemill\0";
        let name = self.injection.stack() - 1024;
        process_vm::write(self.pid, name, NAME)?;
        let step = |action, call: &[i64; 7]| {
            self.injection.step(call, instruction).and_then(|result| self.check(action, result))
        };
        let fd = step("create a file in", &[MEMFD_CREATE, name as i64, 1, 0, 0, 0, 0])?;
        let file = File::from(pidfd::descriptor(process, fd as i32)?);
        let control = Shared::create(&file)?;
        let map = |start: u64, bytes: u64, access: i64, offset: u64| {
            [MMAP, start as i64, bytes as i64, access, SHARED | FIXED_NOREPLACE, fd, offset as i64]
        };
        step("bring code into", &map(resident::CODE, resident::CONTROL_OFFSET, 5, 0))?;
        step(
            "bring code into",
            &map(resident::CONTROL, resident::CONTROL_BYTES, 3, resident::CONTROL_OFFSET),
        )?;
        let close = self.injection.one(&[CLOSE, fd, 0, 0, 0, 0, 0])?;
        self.check("close a file of", close)?;
        Ok(control)
    }

    /// Opens what our code in the program needs, at numbers that the program does not use.
    fn descriptors(&mut self, process: &OwnedFd, control: &Control) -> Result<Own> {
        // Texts for system calls stand where ranges will.
        let text = |slot: u64, text: &str| -> Result<i64> {
            let address = Control::ranges_address() + 64 * slot;
            process_vm::write(self.pid, address, format!("{text}\0").as_bytes())?;
            Ok(address as i64)
        };
        let name = text(0, "pagemill")?;
        let pagemap = text(1, "/proc/self/pagemap")?;
        let maps = text(2, "/proc/self/maps")?;
        let program = Control::ranges_address() + 1024;
        process_vm::write(self.pid, program, &seccomp::program(program, self.session.own_fds))?;
        const READ_ONLY: i64 = CLOEXEC;
        const AT_FDCWD: i64 = -100;
        let mut calls = vec![
            [MEMFD_CREATE, name, 1, 0, 0, 0, 0],
            [USERFAULTFD, watched::OPEN_FLAGS, 0, 0, 0, 0, 0],
            [OPENAT, AT_FDCWD, pagemap, READ_ONLY, 0, 0, 0],
            [OPENAT, AT_FDCWD, maps, READ_ONLY, 0, 0, 0],
            [EVENTFD2, 0, CLOEXEC | 0o4000, 0, 0, 0, 0],
        ];
        if self.session.listener.is_none() {
            if !self.session.privileged {
                const NO_NEW_PRIVILEGES: i64 = 38;
                calls.push([PRCTL, NO_NEW_PRIVILEGES, 1, 0, 0, 0, 0]);
            }
            calls.push([SECCOMP, 1, seccomp::INSTALL_FLAGS as i64, program as i64, 0, 0, 0]);
        }
        let results = self.injection.list(control, &calls)?;
        const WHAT: [&str; 5] = [
            "create a memory file in",
            "open a userfaultfd in",
            "open the pagemap of",
            "open the maps of",
            "create an eventfd in",
        ];
        let opened: Vec<i64> = WHAT
            .iter()
            .zip(&results)
            .map(|(what, &result)| self.check(what, result))
            .collect::<Result<_>>()?;
        let limit = self.raise_limit()?;
        let own = self.session.own_fds as i64;
        const DUPLICATE: i64 = 0;
        const DUPLICATE_CLOEXEC: i64 = 1030;
        let mut calls: Vec<[i64; 7]> =
            opened.iter().map(|&fd| [FCNTL, fd, DUPLICATE_CLOEXEC, own, 0, 0, 0]).collect();
        // The listener stays open over exec: the next program inherits the filter.
        let fresh_listener = match &self.session.listener {
            None => {
                let fd = self.check("filter the system calls of", results[results.len() - 1])?;
                calls.push([FCNTL, fd, DUPLICATE, own, 0, 0, 0]);
                Some(fd)
            }
            Some(_) => None,
        };
        let duplicates = self.injection.list(control, &calls)?;
        let closes: Vec<[i64; 7]> = opened
            .iter()
            .copied()
            .chain(fresh_listener)
            .map(|fd| [CLOSE, fd, 0, 0, 0, 0, 0])
            .collect();
        self.injection.list(control, &closes)?;
        if let Some(limit) = limit {
            set_limit(self.pid, limit)?;
        }
        let moved: Vec<i64> = duplicates
            .iter()
            .map(|&fd| {
                let fd = self.check("open descriptors in", fd)?;
                if fd < own + i64::from(seccomp::OWN_DESCRIPTORS) {
                    return Ok(fd);
                }
                let why = format!("it uses descriptor {own} and following itself");
                Err(Error::new(Kind::Busy, "trace", format_args!("process {}", self.pid), why))
            })
            .collect::<Result<_>>()?;
        if fresh_listener.is_some() {
            let number = moved[moved.len() - 1];
            self.session.listener = Some((pidfd::descriptor(process, number as i32)?, number));
        }
        let listener = self.session.listener.as_ref().map_or(-1, |(_, number)| *number);
        let [memory, userfault, pagemap, maps, wake] = moved[..5] else {
            return Err(Error::new(
                Kind::Other,
                "open",
                "descriptors in the program",
                "some are missing",
            ));
        };
        Ok(Own { memory, userfault, pagemap, maps, wake, listener })
    }

    /// Lets the program have descriptors as high as ours; its own limit, to be put back.
    fn raise_limit(&self) -> Result<Option<(u64, u64)>> {
        let needed = u64::from(self.session.own_fds + seccomp::OWN_DESCRIPTORS);
        let (soft, hard) = pagemill_kernel::process::descriptor_limit(self.pid)?;
        if soft >= needed {
            return Ok(None);
        }
        set_limit(self.pid, (needed, hard.max(needed)))?;
        Ok(Some((soft, hard)))
    }

    /// Changes every mapping according to its fate.
    fn mappings(
        &mut self,
        control: &Control,
        memory: &File,
        memory_fd: i64,
        pagemap: &Pagemap,
        mappings: &[Mapping],
    ) -> Result<()> {
        let page = page_size() as u64;
        let mut calls = Vec::new();
        let mut heap = None;
        let mut before = 0;
        for mapping in mappings {
            let floor = std::mem::replace(&mut before, mapping.end);
            if in_resident(mapping) {
                continue;
            }
            match fate(mapping) {
                Fate::Ignored => {}
                Fate::Untraced(why) => self.untraced.push(Untraced {
                    process: self.pid,
                    start: mapping.start,
                    end: mapping.end,
                    why: format!("{why}: {}", mapping.name),
                }),
                Fate::Watched if mapping.shared => {}
                Fate::Watched => {
                    if !control.remember_private(mapping.start, mapping.len()) {
                        self.untraced.push(Untraced {
                            process: self.pid,
                            start: mapping.start,
                            end: mapping.end,
                            why: format!(
                                "one of more than {} mappings of files, if it becomes writable",
                                resident::PRIVATE
                            ),
                        });
                    }
                }
                Fate::Converted => {
                    let stack = mapping.name == "[stack]";
                    // A shared mapping does not grow by itself.
                    let start =
                        if stack { stack_start(mapping, floor, page) } else { mapping.start };
                    let offset = fresh(control, mapping.end - start);
                    copy(self.pid, mapping, memory, offset + (mapping.start - start), pagemap)?;
                    calls.push([
                        MMAP,
                        start as i64,
                        (mapping.end - start) as i64,
                        protection(mapping),
                        SHARED | FIXED,
                        memory_fd,
                        offset as i64,
                    ]);
                    if mapping.name == "[heap]" {
                        heap = Some((mapping.start, offset));
                    }
                }
            }
        }
        let break_end = self.injection.one(&[BRK, 0, 0, 0, 0, 0, 0])? as u64;
        let results = self.injection.list(control, &calls)?;
        for (call, result) in calls.iter().zip(results) {
            if result != call[1] {
                return Err(refused("convert a mapping of", self.thread, result));
            }
        }
        let end = break_end.next_multiple_of(page);
        let (start, offset) = heap.unwrap_or_else(|| (end, fresh(control, 1 << 40)));
        control.break_start.store(start, Relaxed);
        control.break_end.store(end, Relaxed);
        control.break_offset.store(offset, Relaxed);
        Ok(())
    }
}

/// Descriptors in the program.
struct Own {
    memory: i64,
    userfault: i64,
    pagemap: i64,
    maps: i64,
    wake: i64,
    listener: i64,
}

pub(crate) fn in_resident(mapping: &Mapping) -> bool {
    mapping.start < resident::END && mapping.end > resident::CODE
}

fn set_limit(pid: u32, limit: (u64, u64)) -> Result<()> {
    pagemill_kernel::process::set_descriptor_limit(pid, limit)
}

/// Where the stack shall begin: as far down as its usual limit, not into what lies below.
fn stack_start(mapping: &Mapping, floor: u64, page: u64) -> u64 {
    mapping.end.saturating_sub(STACK).max(floor + 256 * page).min(mapping.start)
}

/// Copies the bytes of a mapping into the memory file: all pages of a file's, the populated ones of others.
pub(crate) fn copy(
    pid: u32,
    mapping: &Mapping,
    memory: &File,
    offset: u64,
    pagemap: &Pagemap,
) -> Result<()> {
    let page = page_size() as u64;
    let mut buffer = vec![0; COPY as usize];
    let mut at = mapping.start;
    while at < mapping.end {
        let end = mapping.end.min(at + COPY);
        let wanted = if mapping.inode != 0 {
            vec![true; ((end - at) / page) as usize]
        } else {
            pagemap.populated(at, end)?
        };
        let mut index = 0;
        for run in wanted.chunk_by(|left, right| left == right) {
            let (start, bytes) = (at + index * page, run.len() as u64 * page);
            index += run.len() as u64;
            if run[0] {
                copy_run(
                    pid,
                    start,
                    &mut buffer[..bytes as usize],
                    memory,
                    offset + (start - mapping.start),
                )?;
            }
        }
        at = end;
    }
    Ok(())
}

fn copy_run(pid: u32, start: u64, buffer: &mut [u8], memory: &File, offset: u64) -> Result<()> {
    let page = page_size();
    let write = |bytes: &[u8], offset: u64| {
        memory
            .write_all_at(bytes, offset)
            .map_err(|error| Error::io("fill", "the memory file", error))
    };
    if process_vm::read(pid, start, buffer).is_ok() {
        return write(buffer, offset);
    }
    // Memory without read access, or a file that ends before its mapping: page by page, by another way.
    let path = format!("/proc/{pid}/mem");
    let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
    for (index, bytes) in buffer.chunks_mut(page).enumerate() {
        let at = (index * page) as u64;
        if file.read_exact_at(bytes, start + at).is_ok() {
            write(bytes, offset + at)?;
        }
    }
    Ok(())
}

/// A number for our descriptors that programs do not reach, within what the kernel allows a process.
pub(crate) fn own_descriptors() -> Result<u32> {
    let (_, hard) = pagemill_kernel::process::descriptor_limit(std::process::id())?;
    Ok((hard.min(1 << 14) as u32).saturating_sub(seccomp::OWN_DESCRIPTORS).max(64))
}

//! The change of a program's memory, while all its threads are stopped.
//!
//! ```text
//!  before                         after
//!  private, writable        ──►   shared, of the memory file, at a fresh offset; same bytes
//!  anonymous, any access    ──►   the same: it may become writable
//!  private, of a program's image  the same, if it is writable or has copies of its own (`of_image`)
//!  private, of another file       unchanged: its pages are the file's, or the program's own once it writes them
//!  shared                         unchanged
//!  huge pages, memory of drivers  unchanged, told as untraced, never dropped: what such an entry held may not
//!                                 come back by a fault (rings of io_uring, sockets, perf events)
//! ```
//!
//! The program is at its first instruction, or was running (then a read-only part of an image may have
//! copies of its own: it is converted too), or is a forked child that parts from its parent's file.
//!
//! Always true: until the last mapping is changed the program has not run, and what it sees then is
//! what was there before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::Pagemap;
use pagemill_kernel::memory::smaps::MappingUsage;
use pagemill_kernel::memory::watched::Watched;
use pagemill_kernel::process::LimitGuard;
use pagemill_kernel::process::injected::{self, Control, Image, Shared};
use pagemill_kernel::process::keeper::Keeper;
use pagemill_kernel::{Error, Kind, Linux, Result, memory::memfd, page_size, process::pidfd};
use pagemill_model::{PageRange, Pid};

use crate::arguments::Arguments;
use crate::calls::{
    BRK, CLOSE, Call, DONT_FORK, FIXED, FIXED_NOREPLACE, MEMFD_CREATE, MMAP, PRIVATE, SHARED,
    WIPE_ON_FORK, call,
};
use crate::copy::{copy, copy_data, own_copies};
use crate::descriptors::{Descriptors, Opening, Session};
use crate::inject::{Injection, Site, checked, refused};
use crate::layout::{
    OURS, guard, in_injected_code, map_over, of_image, own_file, stays, watch_all,
};
use crate::process::{ForkAdvice, Inherited, Process, end_helpers, fresh};
use crate::trace::Untraced;
use crate::tracer::Tracer;
use crate::{Granule, PATIENCE};

/// Bytes of the memory file: far more than any program maps.
const MEMORY_BYTES: u64 = 1 << 62;
/// The first part of the file that is given out.
const FIRST_OFFSET: u64 = 1 << 36;
/// The stack may grow to this, if its limit allows.
const STACK: u64 = 8 << 20;
/// Bytes copied before the mappings that they belong to are changed.
const FLUSH: u64 = 64 << 20;

/// Where a program stands that is to be changed.
#[derive(Debug)]
pub(crate) enum Origin {
    /// At its first instruction.
    Executed,
    /// Anywhere.
    Running,
    /// Anywhere, with private mappings of its parent's memory file.
    Forked(Inherited),
}

/// What becomes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// Its bytes go into the memory file.
    Converted,
    /// Watched as it is.
    Watched,
    /// A page of the kernel's, which is nobody's data.
    Ignored,
    /// Told as untraced, and why.
    Untraced(&'static str),
}

/// What becomes of a mapping by what the kernel says that it is, not by its name; `own`: though of a file, its data are
/// the program's own.
fn treatment(usage: &MappingUsage, own: bool) -> Treatment {
    let mapping = &usage.mapping;
    let named = mapping.name.as_str();
    if mapping.start >= 1 << 47 || named.starts_with("[v") {
        return Treatment::Ignored;
    }
    if let Some(why) = stays(usage) {
        return Treatment::Untraced(why);
    }
    if mapping.shared {
        return Treatment::Watched;
    }
    let anonymous = mapping.inode == 0 || named.starts_with("/dev/zero");
    if anonymous || own { Treatment::Converted } else { Treatment::Watched }
}

impl Tracer {
    /// Changes the memory of process `pid`, whose threads are all stopped, `thread` of them at a place where
    /// it can be made to do things.
    pub(crate) fn convert(&mut self, pid: Pid, thread: Pid, origin: &Origin) -> Result<Process> {
        let site = Site::find(&self.linux, pid)?;
        let granule = self.options.granule;
        let mut conversion = Conversion {
            linux: &self.linux,
            session: &mut self.session,
            pid,
            thread,
            origin,
            granule,
            arm: granule == Granule::Page && !self.source.tells_writes(),
            injection: &Injection::with_trampoline(thread, &site)?,
            untraced: &mut self.untraced,
            started: None,
        };
        conversion.run(&site)
    }
}

/// Starts injector and mapper beside process `pid`, and says their numbers. The mapper tells of callers by their
/// numbers in its PID namespace, so where that is not ours there is none, and the tracer receives the calls itself.
pub(crate) fn start(
    linux: &Linux,
    pid: Pid,
    by: &Injection,
    (control, keeper): (&Control, Option<&Keeper>),
) -> Result<(Pid, Option<Pid>)> {
    let nested = linux.numbers(pid)?.len() > 1;
    let injector = by.clone(false)?;
    if !nested {
        let mapper = by.clone(true)?;
        // From now on it may receive the calls of others, and die with us.
        keeper.into_iter().for_each(|keeper| keeper.also(mapper, pid));
        control.wait_ready(&control.injector_ready, PATIENCE)?;
        control.wait_ready(&control.mapper_ready, PATIENCE)?;
        return Ok((injector, Some(mapper)));
    }
    control.wait_ready(&control.injector_ready, PATIENCE)?;
    let known_as =
        |child: &Pid| linux.numbers(*child).is_ok_and(|numbers| numbers.last() == Some(&injector));
    let found = linux.children(pid)?.into_iter().find(known_as);
    let object = format_args!("process {pid}");
    let why = "the process started beside it is not among its children";
    Ok((found.ok_or_else(|| Error::new(Kind::Gone, "trace", object, why))?, None))
}

impl Process {
    /// Another injector and mapper in place of those that were dismissed, by `thread`, which is stopped.
    pub(crate) fn revive(&mut self, thread: Pid, keeper: Option<&Keeper>) -> Result<()> {
        self.control.begin_again();
        let site = Site::find(&self.linux, self.pid)?;
        let injection = Injection::with_trampoline(thread, &site)?;
        (self.injector, self.mapper) =
            start(&self.linux, self.pid, &injection, (&self.control, keeper))?;
        self.injector_on.set(None);
        self.revived = true;
        Ok(())
    }
}

struct Conversion<'a> {
    linux: &'a Linux,
    session: &'a mut Session,
    pid: Pid,
    thread: Pid,
    origin: &'a Origin,
    granule: Granule,
    arm: bool,
    injection: &'a Injection,
    untraced: &'a mut Vec<Untraced>,
    /// Injector and mapper.
    started: Option<(Pid, Option<Pid>)>,
}

impl Conversion<'_> {
    fn run(&mut self, site: &Site) -> Result<Process> {
        let process = pidfd::open(self.pid)?;
        // What is mapped now is not the program's doing.
        let _lifted = LimitGuard::of(self.pid);
        let control = self.bring_in(&process, site)?;
        let parent = match self.origin {
            Origin::Forked(parent) => Some(parent.own_fds),
            _ => None,
        };
        let (pid, thread, injection) = (self.pid, self.thread, self.injection);
        let mut opening = Opening { session: self.session, pid, thread, parent, injection };
        let own = opening.descriptors(&process, &control)?;
        match self.change(&process, &control, &own) {
            Ok(changed) => self.finished(control, &own, changed),
            Err(error) => {
                if matches!(self.origin, Origin::Running) {
                    // Its calls are filtered from now on: somebody must answer, and lets it go at once.
                    control.abandon();
                    if self.started.is_none() {
                        let _ = self.start(&control);
                    }
                } else {
                    if let Some(helpers) = self.started {
                        let keeper = self.session.keeper.as_ref();
                        let received = end_helpers(self.linux, &control, helpers, keeper);
                        self.session.received.extend(received);
                    }
                    self.undo(&own)?;
                }
                Err(error)
            }
        }
    }

    fn finished(&self, control: Shared, own: &Descriptors, changed: Changed) -> Result<Process> {
        let mut process = Process {
            linux: self.linux.clone(),
            pid: self.pid,
            control,
            memory: changed.memory,
            inode: changed.inode,
            own_fds: own.first,
            memory_fd: own.memory,
            watched: changed.watched,
            granule: self.granule,
            arm: self.arm,
            wake: changed.wake,
            pagemap: changed.pagemap,
            injector: changed.injector,
            revived: false,
            injector_on: Cell::new(None),
            mapper: changed.mapper,
            lock: changed.lock,
            sharers: Vec::new(),
            late: None,
            fork_advice: Vec::new(),
            fork_words: BTreeMap::new(),
            pending: Vec::new(),
            own_files: changed.own_files,
            written: Vec::new(),
            protected: Vec::new(),
            apart: changed.apart,
            arguments: changed.arguments,
            original: changed.original,
            intervals: 0,
            stays: 0,
            began: 0,
        };
        for ForkAdvice { range, advice } in changed.fork_advice {
            for part in process.file_mappings(range)? {
                process.remember_advice(&part, advice, true);
            }
        }
        Ok(process)
    }

    /// Starts injector and mapper.
    fn start(&self, control: &Control) -> Result<(Pid, Option<Pid>)> {
        let keeper = self.session.keeper.as_ref();
        start(self.linux, self.pid, self.injection, (control, keeper))
    }

    /// What was changed of a program that has not begun, or of a child: private again, over the file that nobody else
    /// has.
    fn undo(&self, own: &Descriptors) -> Result<()> {
        for mapping in self.linux.maps(self.pid)? {
            if mapping.shared && mapping.name.starts_with(OURS) && !in_injected_code(&mapping) {
                self.injection.one(&map_over(&mapping, PRIVATE, own.memory, mapping.offset))?;
            }
        }
        Ok(())
    }

    fn change(&mut self, pidfd: &OwnedFd, control: &Control, own: &Descriptors) -> Result<Changed> {
        // As it knows itself.
        let numbers = self.linux.numbers(self.pid)?;
        let process = numbers.last().copied().unwrap_or(self.pid).0 as i32;
        control.process.store(process, Relaxed);
        control.tracer.store(Pid::own().0, Relaxed);
        control.memory_fd.store(own.memory as i32, Relaxed);
        let userfault = if self.granule == Granule::Page { own.userfault as i32 } else { -1 };
        control.userfault_fd.store(userfault, Relaxed);
        control.pagemap_fd.store(own.pagemap as i32, Relaxed);
        control.maps_fd.store(own.maps as i32, Relaxed);
        control.listener_fd.store(own.listener as i32, Relaxed);
        control.wake_fd.store(own.wake as i32, Relaxed);
        control.own_fds.store(own.first as i32, Relaxed);
        control.next_offset.store(FIRST_OFFSET, Relaxed);
        let memory = File::from(pidfd::descriptor(pidfd, own.memory as i32)?);
        memory
            .set_len(MEMORY_BYTES)
            .map_err(|error| Error::io("size", "the memory file", error))?;
        let lock = memfd::hold(&memory)?;
        let metadata =
            memory.metadata().map_err(|error| Error::io("look at", "the memory file", error))?;
        let watched = Watched::new(pidfd::descriptor(pidfd, own.userfault as i32)?)?;
        control.arm.store(u32::from(self.arm), Relaxed);
        let wake = pidfd::descriptor(pidfd, own.wake as i32)?;
        let pagemap = Pagemap::open(self.linux, self.pid)?;

        control.inode.store(metadata.ino(), Relaxed);
        let device = metadata.dev();
        control.device_major.store((device >> 8 & 0xfff) as u32, Relaxed);
        control.device_minor.store((device & 0xff | device >> 12 & 0xfff_ff00) as u32, Relaxed);

        let usages = self.linux.smaps(self.pid)?;
        control.stack.store(self.linux.stat(self.pid)?.stack, Relaxed);
        let fork_advice = self.fork_advice(&usages);
        let guards = match self.origin {
            Origin::Executed => Vec::new(),
            Origin::Running | Origin::Forked(_) => {
                pagemap.guards(PageRange::new(0..0x7fff_ffff_f000))
            }
        };
        let arguments = match self.origin {
            Origin::Forked(parent) => parent.arguments,
            Origin::Executed | Origin::Running => {
                Arguments::keep(self.linux, self.pid, |calls| self.injection.list(control, calls))
            }
        };
        // Were we killed from here on, they would make private what is shared by then.
        let (injector, mapper) = *self.started.insert(self.start(control)?);
        self.mappings(control, &memory, own.memory, &pagemap, &usages)?;
        self.injection.list(control, &guard(&guards))?;
        let own_files = usages.iter().any(|usage| own_file(&usage.mapping));
        let apart =
            usages.iter().filter(|usage| matches!(treatment(usage, false), Treatment::Untraced(_)));
        let apart: Vec<Mapping> = apart.map(|usage| usage.mapping.clone()).collect();
        control.apart.store(apart.len() as u32, Relaxed);
        if self.granule == Granule::Page {
            watch_all(self.linux, self.pid, (&watched, self.arm), &apart)?;
        }
        Ok(Changed {
            memory,
            inode: metadata.ino(),
            watched,
            wake,
            pagemap,
            injector,
            mapper,
            lock,
            fork_advice,
            own_files,
            apart,
            arguments,
            original: usages
                .into_iter()
                .map(|usage| usage.mapping)
                .filter(|mapping| !in_injected_code(mapping))
                .collect(),
        })
    }

    /// What a running program has told the kernel to do with ranges at a fork.
    fn fork_advice(&self, usages: &[MappingUsage]) -> Vec<ForkAdvice> {
        const ADVICE: [(&str, u64); 2] = [("dc", DONT_FORK), ("wf", WIPE_ON_FORK)];
        if matches!(self.origin, Origin::Executed) {
            return Vec::new();
        }
        let mut advice = Vec::new();
        for usage in usages {
            let mapping = &usage.mapping;
            for (flag, value) in ADVICE {
                // Of the kernel's own mappings `dc` is said of the vDSO's data.
                if usage.flags.iter().any(|known| known == flag) && !mapping.name.starts_with("[v")
                {
                    advice.push(ForkAdvice { range: mapping.range(), advice: value });
                }
            }
        }
        advice
    }

    /// An injected call that must succeed.
    fn check(&self, action: &'static str, result: i64) -> Result<i64> {
        checked(action, self.thread, result)
    }

    /// Brings our code and the control page into the program.
    fn bring_in(&self, process: &OwnedFd, site: &Site) -> Result<Shared> {
        let step = |action, call: &Call| {
            self.injection
                .step(call, site.instruction)
                .and_then(|result| self.check(action, result))
        };
        let name = site.empty_text as i64;
        let fd = step("create a file in", &call(MEMFD_CREATE, [name, 1]))?;
        let file = File::from(pidfd::descriptor(process, fd as i32)?);
        let control = Shared::create(&file)?;
        // A child has its parent's there.
        let fixed = match self.origin {
            Origin::Forked(_) => FIXED,
            Origin::Executed | Origin::Running => FIXED_NOREPLACE,
        };
        let map = |start: u64, bytes: u64, access: i64, offset: u64| {
            call(MMAP, [start as i64, bytes as i64, access, SHARED | fixed, fd, offset as i64])
        };
        let words = map(injected::CONTROL, injected::CONTROL_BYTES, 3, injected::CONTROL_OFFSET);
        // In this order: were we killed between the two, the program would find code, which reads the words.
        step("bring code into", &words)?;
        step("bring code into", &map(injected::CODE, injected::CONTROL_OFFSET, 5, 0))?;
        let close = self.injection.one(&call(CLOSE, [fd]))?;
        self.check("close a file of", close)?;
        Ok(control)
    }

    /// Changes every mapping as it is to be treated.
    fn mappings(
        &mut self,
        control: &Control,
        memory: &File,
        memory_fd: i64,
        pagemap: &Pagemap,
        usages: &[MappingUsage],
    ) -> Result<()> {
        let page = page_size() as u64;
        let all: Vec<Mapping> = usages.iter().map(|usage| usage.mapping.clone()).collect();
        let break_end = self.injection.one(&call(BRK, [0]))? as u64;
        let mut heap = Heap::new(self.origin, break_end.next_multiple_of(page));
        let mut calls = Vec::new();
        let mut copied = 0;
        let mut before = 0;
        for usage in usages {
            let mapping = &usage.mapping;
            let floor = std::mem::replace(&mut before, mapping.end);
            if in_injected_code(mapping) {
                continue;
            }
            let parents = self.of_parent(mapping);
            let image = !mapping.shared && of_image(mapping, &all);
            let own_pages =
                parents || image && (mapping.write || self.has_copies(mapping, pagemap)?);
            match treatment(usage, own_pages) {
                Treatment::Ignored | Treatment::Watched => {}
                Treatment::Untraced(why) => {
                    self.untraced.push(Untraced::mapping(self.pid, mapping, why));
                }
                Treatment::Converted => {
                    let stack = mapping.name == "[stack]";
                    // A shared mapping does not grow by itself.
                    let start =
                        if stack { stack_start(mapping, floor, page) } else { mapping.start };
                    let offset = fresh(control, mapping.end - start);
                    let into = offset + (mapping.start - start);
                    copied += match (self.origin, parents) {
                        (Origin::Forked(parent), true) => {
                            copy_data(self.pid, mapping, &parent.memory, memory, into)?
                        }
                        _ => copy(self.pid, mapping, memory, into, pagemap)?,
                    };
                    let whole = Mapping { start, ..mapping.clone() };
                    calls.push(map_over(&whole, SHARED, memory_fd, offset));
                    self.remember_images(control, mapping, into, image);
                    heap.part(mapping, offset);
                    // No more than this much is in memory twice.
                    if copied >= FLUSH {
                        copied = 0;
                        self.remap(control, &mut calls)?;
                    }
                }
            }
        }
        self.remap(control, &mut calls)?;
        let HeapPlace { start, offset } = heap.place(control);
        control.break_start.store(start, Relaxed);
        control.break_end.store(heap.end, Relaxed);
        control.break_offset.store(offset, Relaxed);
        Ok(())
    }

    /// What of a mapping is of a program's image comes back from there when it is dropped.
    fn remember_images(&self, control: &Control, mapping: &Mapping, at: u64, image: bool) {
        let (length, inode, from) = (mapping.len(), mapping.inode, mapping.offset);
        if image {
            control.remember_image(Image { at, length, inode, from });
        }
        let Origin::Forked(parent) = self.origin else { return };
        for known in parent.images.iter().filter(|_| self.of_parent(mapping)) {
            let start = known.at.max(from);
            let end = (known.at + known.length).min(from + length);
            if start < end {
                control.remember_image(Image {
                    at: at + (start - from),
                    length: end - start,
                    inode: known.inode,
                    from: known.from + (start - known.at),
                });
            }
        }
    }

    fn remap(&self, control: &Control, calls: &mut Vec<Call>) -> Result<()> {
        let results = self.injection.list(control, calls)?;
        for (call, result) in calls.iter().zip(results) {
            if result != call[1] {
                return Err(refused("convert a mapping of", self.thread, result));
            }
        }
        calls.clear();
        Ok(())
    }

    /// Whether a mapping is one of the parent's memory file.
    fn of_parent(&self, mapping: &Mapping) -> bool {
        match self.origin {
            Origin::Forked(parent) => {
                mapping.inode == parent.inode && mapping.name.starts_with(OURS)
            }
            Origin::Executed | Origin::Running => false,
        }
    }

    /// Whether a read-only mapping of a file has pages that are not the file's: relocated data, say.
    fn has_copies(&self, mapping: &Mapping, pagemap: &Pagemap) -> Result<bool> {
        if matches!(self.origin, Origin::Executed)
            || mapping.shared
            || mapping.write
            || mapping.inode == 0
            || mapping.start >= 1 << 47
        {
            return Ok(false);
        }
        Ok(!own_copies(pagemap, mapping)?.is_empty())
    }
}

/// The part of the address space that `brk` moves the end of.
#[derive(Debug)]
struct Heap {
    /// Where it began at the fork, for a child.
    inherited: Option<u64>,
    end: u64,
    found: Option<HeapFound>,
}

/// The mappings of a heap that were converted.
#[derive(Clone, Copy, Debug)]
struct HeapFound {
    start: u64,
    /// Where the last of them begins,
    last: u64,
    /// and its offset in the memory file.
    offset: u64,
}

impl Heap {
    fn new(origin: &Origin, end: u64) -> Self {
        let inherited = match origin {
            Origin::Forked(parent) if !parent.heap.is_empty() => Some(parent.heap.start),
            _ => None,
        };
        Self { inherited, end, found: None }
    }

    /// A mapping that was converted, its offset in the memory file.
    fn part(&mut self, mapping: &Mapping, offset: u64) {
        let inside =
            self.inherited.is_some_and(|start| mapping.start >= start && mapping.end <= self.end);
        if mapping.name == "[heap]" || inside {
            let start = self.found.map_or(mapping.start, |found| found.start);
            self.found = Some(HeapFound { start, last: mapping.start, offset });
        }
    }

    /// Its start, and where it would be in the file if it were one mapping that ends like the last of them.
    fn place(&self, control: &Control) -> HeapPlace {
        match self.found {
            Some(HeapFound { start, last, offset }) => {
                HeapPlace { start, offset: offset.wrapping_sub(last - start) }
            }
            None => HeapPlace { start: self.end, offset: fresh(control, 1 << 40) },
        }
    }
}

/// Where a heap begins, and where in the file.
struct HeapPlace {
    start: u64,
    offset: u64,
}

/// What a conversion leaves.
struct Changed {
    memory: File,
    inode: u64,
    watched: Watched,
    wake: OwnedFd,
    pagemap: Pagemap,
    injector: Pid,
    mapper: Option<Pid>,
    lock: File,
    /// By address.
    fork_advice: Vec<ForkAdvice>,
    own_files: bool,
    apart: Vec<Mapping>,
    arguments: Option<Arguments>,
    original: Vec<Mapping>,
}

/// Where the stack shall begin: as far down as its usual limit, not into what lies below.
fn stack_start(mapping: &Mapping, floor: u64, page: u64) -> u64 {
    mapping.end.saturating_sub(STACK).max(floor + 256 * page).min(mapping.start)
}

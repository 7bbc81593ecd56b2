//! A command run with chosen parts of its memory on huge pages, and nothing else about it changed: the means of whoever
//! finds out what huge pages are worth where.
//!
//! Memory is looked at in *chunks* of 2 MiB, each known by a *place*: bytes from the start of the heap, or down from
//! the top of the area of mappings. Without randomisation a program that does the same has the same places each time.
//!
//! ```text
//!  mmap            the new range's chosen chunks are advised (MADV_HUGEPAGE) before the program sees the address
//!  brk             the kernel is asked for whole chunks, the program is told what it asked for; advised likewise
//!  mremap          the kernel refuses to move a range of two mappings, as advice makes them: they are moved one by one
//!  munmap, exit    before memory goes: which of its pages were there, and which of them huge
//! ```
//!
//! Each of these calls is a stop, so the advice is there before the first touch; between them the program runs
//! untraced. Children are followed. Static memory, stacks and mappings below 1 MiB are left alone. When the command has
//! ended, what it left running is ended.
//!
//! Always true: contents are as without it, a heap that shrank and grew again reads as zeros included; the program ends
//! with the tracer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::memory::maps::top_of_mappings;
use pagemill_kernel::process::ptrace::{self, FOLLOW_CALLS, Registers, Setup, Stop};
use pagemill_kernel::process::rest::RestWatch;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::{Resources, UsageScope, resources};
use pagemill_kernel::{Error, Kind, Linux, Result, memory::anonymous, poll};
use pagemill_model::{Bytes, PageRange, Pid};

use crate::inject::{Injection, refused};
use crate::trace::Ended;

/// Bytes of a chunk: a huge page.
pub const CHUNK: u64 = anonymous::HUGE as u64;
const PAGE: u64 = anonymous::PAGE as u64;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const MADVISE: i64 = 28;
const DONTNEED: i64 = 4;
const HUGEPAGE: i64 = 14;
const NOHUGEPAGE: i64 = 15;
const MAYMOVE: u64 = 1;
const FIXED: u64 = 2;
/// `-EFAULT`.
const FAULT: i64 = -14;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkLocation {
    /// Whether it is part of the heap, not a mapping.
    pub heap: bool,
    /// Bytes from the start of the heap to its first byte; for a mapping, down from the top to the byte behind its
    /// last.
    pub offset: u64,
}

/// What was seen of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkUse {
    /// Most base pages that were there at a time.
    pub pages: u64,
    /// Whether it was one huge page.
    pub huge: bool,
    /// Accesses that a [`Watch`] told of.
    pub accesses: u64,
}

/// Who watches a run from outside, by means of its own.
pub trait Watch {
    /// The command is there, suspended before its first instruction.
    ///
    /// # Errors
    /// What the command is not to go on with.
    fn suspended(&mut self, pid: Pid) -> Result<()>;
    /// Hands on the accesses since it was last asked: process and address.
    fn accesses(&mut self, each: &mut dyn FnMut(Pid, u64));
}

/// Nobody watches.
#[derive(Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn suspended(&mut self, _: Pid) -> Result<()> {
        Ok(())
    }

    fn accesses(&mut self, _: &mut dyn FnMut(Pid, u64)) {}
}

/// What was seen of a program: by the name that the kernel has for it.
pub type Chunks = BTreeMap<ChunkLocation, ChunkUse>;

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// The signal to us that ended it.
    pub interrupted: Option<i32>,
    /// Chunks used, by program.
    pub programs: BTreeMap<String, Chunks>,
    /// CPU time and faults of the command and its children.
    pub used: Resources,
    /// From its first instruction to its end.
    pub wall: Duration,
}

/// What a program's heap is to the kernel and to itself.
#[derive(Clone, Copy, Debug)]
struct Heap {
    start: u64,
    /// Its end as the program knows it.
    end: u64,
    /// The same as the kernel knows it: whole chunks.
    mapped: u64,
}

#[derive(Clone, Debug, Default)]
struct Image {
    /// End of the highest mapping below the stack.
    top: u64,
    heap: Option<Heap>,
    chunks: Chunks,
}

impl Image {
    fn place(&self, chunk: u64) -> Option<ChunkLocation> {
        match self.heap {
            Some(heap) if (heap.start..heap.mapped).contains(&chunk) => {
                Some(ChunkLocation { heap: true, offset: chunk - heap.start })
            }
            _ => {
                let offset = self.top.checked_sub(chunk + CHUNK)?;
                Some(ChunkLocation { heap: false, offset })
            }
        }
    }
}

/// A command that runs.
struct Command<'a> {
    linux: &'a Linux,
    /// Whether the chunk at this place of a program shall be huge.
    chosen: &'a dyn Fn(ChunkLocation) -> bool,
    watch: &'a mut dyn Watch,
    root: Pid,
    /// Threads, and the process that each is of.
    threads: BTreeMap<Pid, Pid>,
    images: BTreeMap<Pid, Image>,
    early: BTreeSet<Pid>,
    programs: BTreeMap<String, Chunks>,
    ended: Option<Ended>,
    rest: RestWatch,
    /// When it was last looked at whether it rests.
    looked: Instant,
    /// Whether it rested for too long, and was ended.
    idle: bool,
}

/// Runs `path` with these arguments (the first is its name) and environment, its standard input empty and its output
/// dropped, with the chosen chunks on huge pages. A signal other than SIGCHLD ends it. `Err` of the inner result: it
/// cannot be executed.
///
/// # Errors
/// The command cannot be traced, or as of [`Watch::suspended`].
pub fn run(
    linux: &Linux,
    (path, arguments, environment): (&CString, &[CString], &[CString]),
    signals: &Signals,
    chosen: &dyn Fn(ChunkLocation) -> bool,
    watch: &mut dyn Watch,
) -> Result<std::result::Result<Run, std::io::Error>> {
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| Error::io("open", "/dev/null", error))?;
    let setup = Setup { streams: Some(null.into()), mappings: true };
    let launched = ptrace::launch(path, arguments, environment, &setup)?;
    let root = launched.pid;
    ptrace::seize(root, FOLLOW_CALLS)?;
    watch.suspended(root)?;
    let before = resources(UsageScope::EndedChildren);
    launched.go()?;
    let mut began = Instant::now();
    let mut command = Command {
        linux,
        chosen,
        watch,
        root,
        threads: BTreeMap::from([(root, root)]),
        images: BTreeMap::new(),
        early: BTreeSet::new(),
        programs: BTreeMap::new(),
        ended: None,
        rest: RestWatch::begin(began),
        looked: began,
        idle: false,
    };
    let pending = signals.descriptor()?;
    let mut interrupted = None;
    while command.ended.is_none() || !command.threads.is_empty() {
        while let Some((thread, stop)) = ptrace::poll()? {
            if stop == Stop::Exec && command.images.is_empty() {
                began = Instant::now();
            }
            command.stopped(thread, stop)?;
        }
        command.accesses();
        if command.ended.is_some() {
            command.end_all();
            if command.threads.is_empty() {
                break;
            }
        }
        command.end_if_idle();
        poll::sleep(&[pending.as_fd()], Duration::from_millis(50))?;
        while let Some(received) = signals.wait(Duration::ZERO)? {
            if received.signal != signal::CHILD {
                interrupted = Some(received.signal);
                command.end_all();
            }
        }
    }
    if command.idle {
        let reason = format!("it did nothing for {} s and was ended", REST.as_secs());
        let error = Error::new(Kind::Other, "run", path.to_string_lossy(), reason);
        return Err(error.advise(
            "give a command that works and ends by itself: it has no terminal here, and no input",
        ));
    }
    let wall = began.elapsed();
    if command.images.is_empty() && command.programs.is_empty() && interrupted.is_none() {
        let unknown =
            || std::io::Error::other("it cannot be prepared: no seccomp filter, or no /dev/null");
        return Ok(Err(launched.failure().unwrap_or_else(unknown)));
    }
    let after = resources(UsageScope::EndedChildren);
    let used = Resources {
        user: after.user.saturating_sub(before.user),
        system: after.system.saturating_sub(before.system),
        faults: after.faults.saturating_sub(before.faults),
        resident: after.resident,
    };
    let ended = command.ended.unwrap_or(Ended::Killed(9));
    Ok(Ok(Run { ended, interrupted, programs: command.programs, used, wall }))
}

/// How long a command may do nothing.
const REST: Duration = Duration::from_secs(60);
/// How often it is looked at whether it does.
const LOOK: Duration = Duration::from_secs(1);

/// The chunks that lie whole in a range.
fn chunks(range: PageRange) -> impl Iterator<Item = u64> {
    let (first, last) = (range.start.next_multiple_of(CHUNK), range.end / CHUNK * CHUNK);
    (first..last.max(first)).step_by(CHUNK as usize)
}

impl Command<'_> {
    fn processes(&self) -> BTreeSet<Pid> {
        self.threads.values().copied().collect()
    }

    /// Ends a command that has rested for longer than it may.
    fn end_if_idle(&mut self) {
        let now = Instant::now();
        if self.idle || now.saturating_duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        let processes = self.processes().into_iter();
        let stats: Vec<_> = processes.filter_map(|pid| self.linux.stat(pid).ok()).collect();
        self.idle = self.rest.rested(&stats, now) >= REST;
        if self.idle {
            self.end_all();
        }
    }

    fn end_all(&self) {
        for process in self.processes() {
            // It may have ended a moment ago.
            let _ = signal::send(process, 9);
        }
    }

    /// Puts what the watch tells into the chunks, while it is known where they are.
    fn accesses(&mut self) {
        let images = &mut self.images;
        self.watch.accesses(&mut |process, address| {
            let Some(image) = images.get_mut(&process) else { return };
            if let Some(place) = image.place(address / CHUNK * CHUNK) {
                image.chunks.entry(place).or_default().accesses += 1;
            }
        });
    }

    /// A thread that was killed meanwhile says so by its next stop.
    fn go_on(thread: Pid, signal: i32) {
        let _ = ptrace::resume(thread, signal);
    }

    fn stopped(&mut self, thread: Pid, stop: Stop) -> Result<()> {
        if !self.threads.contains_key(&thread) && !stop.is_end() {
            self.early.insert(thread);
            return Ok(());
        }
        match stop {
            Stop::Exited(status) => self.gone(thread, Ended::Exited(status)),
            Stop::Killed(signal) => self.gone(thread, Ended::Killed(signal)),
            Stop::Exec => {
                self.executed(thread)?;
                Self::go_on(thread, 0);
            }
            Stop::Fork | Stop::Vfork | Stop::Clone => {
                let child = ptrace::message(thread)? as u32;
                self.born(thread, Pid(child))?;
                Self::go_on(thread, 0);
            }
            Stop::Exit => {
                let process = self.threads.get(&thread).copied().unwrap_or(thread);
                let others =
                    || self.threads.iter().any(|(other, of)| *of == process && *other != thread);
                // Of several threads that end together it is told once for the first and once for the last.
                if thread == process || !others() {
                    self.leave(process)?;
                }
                Self::go_on(thread, 0);
            }
            Stop::Filtered => {
                // One that was killed in the middle says so by its next stop.
                match self.call(thread) {
                    Err(error) if error.kind() != Kind::Gone => return Err(error),
                    _ => Self::go_on(thread, 0),
                }
            }
            Stop::Signal(signal) => Self::go_on(thread, signal),
            Stop::Group(_) => {
                let _ = ptrace::listen(thread);
            }
            Stop::Interrupted | Stop::SystemCall | Stop::Other(_) => Self::go_on(thread, 0),
        }
        Ok(())
    }

    fn gone(&mut self, thread: Pid, how: Ended) {
        self.threads.remove(&thread);
        if thread == self.root {
            self.ended = Some(how);
        }
    }

    /// A thread or a child, which has the memory of its parent as it is now.
    fn born(&mut self, parent: Pid, child: Pid) -> Result<()> {
        let owner = self.threads.get(&parent).copied().unwrap_or(parent);
        if !self.early.remove(&child) {
            ptrace::wait_for(child, crate::PATIENCE)?;
        }
        let process = self.linux.thread_group(child).unwrap_or(child);
        self.threads.insert(child, process);
        if process != owner
            && let Some(image) = self.images.get(&owner)
        {
            let image = Image { chunks: Chunks::new(), ..image.clone() };
            self.images.insert(process, image);
        }
        Self::go_on(child, 0);
        Ok(())
    }

    /// A new program.
    fn executed(&mut self, thread: Pid) -> Result<()> {
        // Called by another thread than the first, it goes on as the first.
        self.threads.retain(|other, process| *process != thread || *other == thread);
        self.threads.insert(thread, thread);
        let maps = self.linux.maps(thread)?;
        self.images.insert(thread, Image { top: top_of_mappings(&maps), ..Image::default() });
        Ok(())
    }

    /// A program's memory goes: what was there is told under the program's name.
    fn leave(&mut self, process: Pid) -> Result<()> {
        self.accesses();
        match self.note_present(process, PageRange::ALL) {
            // Killed meanwhile, it has nothing to look at; what was seen before counts.
            Err(error) if !matches!(error.kind(), Kind::Gone | Kind::NotFound) => {
                return Err(error);
            }
            _ => {}
        }
        let Some(image) = self.images.get_mut(&process) else { return Ok(()) };
        let name = self.linux.stat(process).map_or_else(|_| String::new(), |stat| stat.comm);
        let known = self.programs.entry(name).or_default();
        for (place, seen) in std::mem::take(&mut image.chunks) {
            let entry = known.entry(place).or_default();
            entry.pages = entry.pages.max(seen.pages);
            entry.huge |= seen.huge;
            entry.accesses += seen.accesses;
        }
        Ok(())
    }

    /// Which pages of private anonymous memory are there.
    fn note_present(&mut self, process: Pid, range: PageRange) -> Result<()> {
        let Some(image) = self.images.get_mut(&process) else { return Ok(()) };
        let pages = Pages::of(self.linux, process)?;
        for map in self.linux.maps(process)? {
            let plain = map.inode == 0 && !map.shared && !map.name.starts_with("[v");
            if !plain || map.name == "[stack]" {
                continue;
            }
            // Only what lies whole in a mapping can be one huge page.
            let (from, to) = (map.start.next_multiple_of(CHUNK), map.end / CHUNK * CHUNK);
            let PageRange { start, end } = PageRange::new(from..to).within(range);
            for run in pages.runs(PageRange::new(start..end.max(start)))? {
                for chunk in (run.start / CHUNK * CHUNK..run.end).step_by(CHUNK as usize) {
                    let Some(place) = image.place(chunk) else { continue };
                    let part = run.end.min(chunk + CHUNK) - run.start.max(chunk);
                    let seen = image.chunks.entry(place).or_default();
                    // Runs of one look add up; a later look is of the same pages or of what came in their place.
                    seen.pages = (seen.pages + part / PAGE).min(CHUNK / PAGE);
                    seen.huge |= run.huge;
                }
            }
        }
        Ok(())
    }

    /// A call for memory: made, and its memory advised. The thread is stopped before it and afterwards at its end.
    fn call(&mut self, thread: Pid) -> Result<()> {
        let process = self.threads.get(&thread).copied().unwrap_or(thread);
        let asked = ptrace::registers(thread)?;
        if !self.images.contains_key(&process) {
            return Ok(());
        }
        match asked.orig_rax {
            MUNMAP => self.note_present(process, PageRange::of_length(asked.rdi, Bytes(asked.rsi))),
            MMAP => self.map(thread, process, &asked),
            MREMAP => self.remap(thread, process, &asked),
            BRK => self.grow(thread, process, &asked),
            _ => Ok(()),
        }
    }

    /// Has the thread go to the end of its call, made with these registers; what they are then.
    fn finish(thread: Pid, registers: &Registers) -> Result<Registers> {
        ptrace::set_registers(thread, registers)?;
        ptrace::resume_to_system_call(thread, 0)?;
        loop {
            match ptrace::wait_for(thread, crate::PATIENCE)? {
                Stop::SystemCall => return ptrace::registers(thread),
                Stop::Interrupted | Stop::Group(_) => ptrace::resume_to_system_call(thread, 0)?,
                _ => {
                    let what = format!("thread {thread}");
                    let why = "it was killed meanwhile";
                    return Err(Error::new(Kind::Gone, "advise", what, why));
                }
            }
        }
    }

    fn map(&self, thread: Pid, process: Pid, asked: &Registers) -> Result<()> {
        // MAP_PRIVATE and MAP_ANONYMOUS, without MAP_SHARED, MAP_GROWSDOWN, MAP_STACK, MAP_HUGETLB.
        const WANTED: u64 = 0x22;
        const OTHERS: u64 = 0x01 | 0x100 | 0x2_0000 | 0x4_0000;
        if asked.r10 & (WANTED | OTHERS) != WANTED {
            return Ok(());
        }
        let done = Self::finish(thread, asked)?;
        if failed(done.rax) {
            return Ok(());
        }
        self.advise(thread, process, PageRange::of_length(done.rax, Bytes(asked.rsi)), &done)
    }

    /// Advises the chosen chunks of a range, by the thread at the end of a call.
    fn advise(
        &self,
        thread: Pid,
        process: Pid,
        range: PageRange,
        registers: &Registers,
    ) -> Result<()> {
        let ranges = self.chosen(process, range);
        if ranges.is_empty() {
            return Ok(());
        }
        let injection = Injection::begin(thread)?;
        for PageRange { start, end } in ranges {
            let call = [MADVISE, start as i64, (end - start) as i64, HUGEPAGE, 0, 0, 0];
            // Refused only where the program has the range otherwise mapped by now.
            injection.step(&call, registers.rip - 2)?;
        }
        Ok(())
    }

    /// The chosen chunks of a range, side by side as one.
    fn chosen(&self, process: Pid, range: PageRange) -> Vec<PageRange> {
        let mut ranges: Vec<PageRange> = Vec::new();
        let Some(image) = self.images.get(&process) else { return ranges };
        for chunk in chunks(range) {
            if !image.place(chunk).is_some_and(self.chosen) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == chunk => last.end += CHUNK,
                _ => ranges.push(PageRange::new(chunk..chunk + CHUNK)),
            }
        }
        ranges
    }

    fn remap(&mut self, thread: Pid, process: Pid, asked: &Registers) -> Result<()> {
        let (old, old_length, length) = (asked.rdi, asked.rsi, asked.rdx);
        let before = PageRange::of_length(old, Bytes(old_length));
        if self.chosen(process, before).is_empty()
            && chunks(PageRange::new(0..length)).next().is_none()
        {
            return Ok(());
        }
        self.note_present(process, before)?;
        // The call itself is left out, and made after the old range is one mapping.
        let mut skip = *asked;
        skip.orig_rax = u64::MAX;
        let mut done = Self::finish(thread, &skip)?;
        let instruction = done.rip - 2;
        let injection = Injection::begin(thread)?;
        let step = |call: [u64; 7]| injection.step(&call.map(|word| word as i64), instruction);
        let advice = |start: u64, length: u64, advice: i64| {
            step([MADVISE as u64, start, length, advice as u64, 0, 0, 0])
        };
        let parts = self.chosen(process, before);
        if !parts.is_empty() {
            advice(old, old_length, HUGEPAGE)?;
        }
        let mut at = step([MREMAP, old, old_length, length, asked.r10, asked.r8, 0])? as u64;
        // Parts that were advised differently before their first touch never become one mapping: they are moved one by
        // one.
        if at as i64 == FAULT && asked.r10 == MAYMOVE && length >= old_length {
            at = step([MMAP, 0, length, 3, 0x22, u64::MAX, 0])? as u64;
            let maps = if failed(at) { Vec::new() } else { self.linux.maps(process)? };
            for map in maps {
                let (from, to) = (map.start.max(old), map.end.min(old + old_length));
                if from < to {
                    let (length, way) = (to - from, MAYMOVE | FIXED);
                    let moved = step([MREMAP, from, length, length, way, at + (from - old), 0])?;
                    if failed(moved as u64) {
                        return Err(refused("move memory of", process, moved));
                    }
                }
            }
        }
        if !failed(at) {
            if !parts.is_empty() {
                advice(at, length, NOHUGEPAGE)?;
            }
            for PageRange { start, end } in
                self.chosen(process, PageRange::of_length(at, Bytes(length)))
            {
                advice(start, end - start, HUGEPAGE)?;
            }
        }
        done.rax = at;
        ptrace::set_registers(thread, &done)
    }

    fn grow(&mut self, thread: Pid, process: Pid, asked: &Registers) -> Result<()> {
        let Some(image) = self.images.get_mut(&process) else { return Ok(()) };
        let Some(heap) = image.heap else {
            let done = Self::finish(thread, asked)?;
            image.heap = Some(Heap { start: done.rax, end: done.rax, mapped: done.rax });
            return Ok(());
        };
        let wanted = asked.rdi;
        if wanted < heap.start {
            // A question: the kernel's answer is not the program's.
            let mut done = Self::finish(thread, asked)?;
            done.rax = heap.end;
            return ptrace::set_registers(thread, &done);
        }
        let whole = wanted.next_multiple_of(CHUNK);
        let kept = wanted.next_multiple_of(PAGE);
        if kept < heap.end {
            self.note_present(process, PageRange::new(kept..heap.mapped))?;
        }
        let mut done = Self::finish(thread, &Registers { rdi: whole, ..*asked })?;
        done.rdi = wanted;
        let mut now = Heap { end: wanted, mapped: done.rax, ..heap };
        if done.rax != whole {
            // Too much to ask for: exactly what the program wants, or nothing.
            let injection = Injection::begin(thread)?;
            let got = injection.step(&[BRK as i64, wanted as i64, 0, 0, 0, 0, 0], done.rip - 2)?;
            now.mapped = got as u64;
            now.end = if now.mapped == wanted { wanted } else { heap.end };
        } else if kept < heap.end {
            // What the program gave back reads as zeros when it comes again.
            let length = heap.end.min(whole).saturating_sub(kept).next_multiple_of(PAGE);
            if length > 0 {
                let injection = Injection::begin(thread)?;
                let call = [MADVISE, kept as i64, length as i64, DONTNEED, 0, 0, 0];
                injection.step(&call, done.rip - 2)?;
            }
        }
        if let Some(image) = self.images.get_mut(&process) {
            image.heap = Some(now);
        }
        done.rax = now.end;
        ptrace::set_registers(thread, &done)?;
        if now.mapped > heap.mapped {
            self.advise(thread, process, PageRange::new(heap.mapped..now.mapped), &done)?;
        }
        Ok(())
    }
}

/// Whether a system call returned an error.
fn failed(result: u64) -> bool {
    result > u64::MAX - 4096
}

//! A forked child, from the fork until its memory is its own.
//!
//! ```text
//!  fork      its mappings of its parent's memory file become private (`fork`): its page tables are empty there
//!            and fill with what it touches
//!  ...       nothing is dropped; what leaves its address space is scanned before
//!  adopted   it has lived for two intervals: its memory goes into a file of its own (`convert`), it gets a
//!            servant, and its parent's memory is shared again
//!  exec, end its only interval
//! ```
//!
//! Most children execute another program at once, and pay for none of this. One with more data than
//! [`LARGEST`] is not adopted: copying would take long. Its whole life is one interval.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pagemill_kernel::maps::Mapping;
use pagemill_kernel::pagemap::{self, Pagemap};
use pagemill_kernel::resident::Image;
use pagemill_kernel::seccomp::Answer;
use pagemill_kernel::watched::Watched;
use pagemill_kernel::{Error, Kind, Linux, Result, memfd, page_size, ptrace, resident, signal};

use crate::PATIENCE;
use crate::ask::{self, Question};
use crate::convert::{OURS, Origin, convert};
use crate::follow::{Tracer, now};
use crate::hold::SOON;
use crate::process::{Interval, Pages, Process, normal};
use crate::trace::Untraced;

/// Bytes of data up to which a child's memory is copied, with all its threads stopped.
const LARGEST: u64 = 256 << 20;

/// A child that is still to be adopted.
#[derive(Debug)]
pub(crate) struct Child {
    pid: u32,
    /// The file that its mappings are over, private.
    memory: File,
    inode: u64,
    pagemap: Pagemap,
    /// Keeps its mappings registered; `None` if it was forked by one that was not adopted either.
    watched: Option<Watched>,
    pending: Vec<Pages>,
    began: u64,
    number: u64,
    /// When to adopt it, and how long to wait for its threads then.
    due: Instant,
    patience: Duration,
    /// Where its parent's heap lay at the fork.
    heap: Pages,
    /// What of the file is of its program's image.
    images: Vec<Image>,
    /// Where the descriptors of ours are that it has from its parent.
    own_fds: u32,
    /// Pages in its page tables from the beginning.
    kept: u64,
    /// It is not to be adopted.
    pub(crate) stays: bool,
}

/// What a child takes over from its parent.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) memory: File,
    pub(crate) inode: u64,
    pub(crate) heap: Pages,
    pub(crate) images: Vec<Image>,
    /// Where the descriptors of ours are in the parent.
    pub(crate) own_fds: u32,
}

impl Child {
    pub(crate) fn new(
        linux: &Linux,
        pid: u32,
        from: Inherited,
        watched: Option<Watched>,
        age: Duration,
    ) -> Result<Self> {
        let pagemap = Pagemap::open(linux, pid)?;
        let Inherited { memory, inode, heap, images, own_fds } = from;
        let mut child = Self {
            pid,
            memory,
            inode,
            pagemap,
            watched,
            pending: Vec::new(),
            began: now(),
            number: 0,
            due: Instant::now() + age,
            patience: SOON,
            heap,
            images,
            own_fds,
            kept: 0,
            stays: false,
        };
        if child.watched.is_none() {
            child.see(0, u64::MAX)?;
            let here = std::mem::take(&mut child.pending);
            child.kept = here.iter().map(|pages| (pages.1 - pages.0) / page_size() as u64).sum();
        }
        Ok(child)
    }

    /// What a child of its own takes over.
    pub(crate) fn inherited(&self) -> Result<Inherited> {
        Ok(Inherited {
            memory: cloned(&self.memory)?,
            inode: self.inode,
            heap: self.heap,
            images: self.images.clone(),
            own_fds: self.own_fds,
        })
    }

    /// Adds what is in the page tables of a range to what was touched.
    fn see(&mut self, start: u64, end: u64) -> Result<()> {
        for (low, high) in [(0, resident::CODE), (resident::END, 0x7fff_ffff_f000)] {
            let (start, end) = (start.max(low), end.min(high));
            if start < end {
                let pending = &mut self.pending;
                self.pagemap.scan(start, end, pagemap::PRESENT, pagemap::PRESENT, |region| {
                    pending.push((region.start, region.end));
                })?;
            }
        }
        Ok(())
    }

    /// What it touched since the fork, or since it was told last. `scan`: its memory is still there.
    pub(crate) fn interval(&mut self, scan: bool) -> Result<Interval> {
        let scanned = now();
        if scan {
            self.see(0, u64::MAX)?;
        }
        let interval = Interval {
            process: self.pid,
            number: self.number,
            began: self.began,
            scanned,
            ended: now(),
            touched: normal(std::mem::take(&mut self.pending)),
            written: None,
            heap: self.heap,
            kept: self.kept,
        };
        (self.number, self.began) = (self.number + 1, interval.ended);
        Ok(interval)
    }

    /// Its mappings of its parent's file.
    fn mappings(&self, linux: &Linux) -> Result<Vec<Mapping>> {
        let mut maps = linux.maps(self.pid)?;
        maps.retain(|mapping| mapping.inode == self.inode && mapping.name.starts_with(OURS));
        Ok(maps)
    }

    /// Bytes of data that adopting it would copy.
    fn data(&self, linux: &Linux) -> Result<u64> {
        let mut bytes = 0;
        for mapping in self.mappings(linux)? {
            let end = mapping.offset + mapping.len();
            memfd::data(&self.memory, mapping.offset, end, |from, to| {
                bytes += to - from;
                Ok(())
            })?;
        }
        Ok(bytes)
    }

    /// What it asks: all goes on as it would, but what leaves is seen before, and memory that is to
    /// read as zeros does not read as its parent's.
    pub(crate) fn answer(&mut self, linux: &Linux, question: &Question) -> Result<Answer> {
        const DONT_NEED: u64 = 4;
        const FREE: u64 = 8;
        const REMOVE: u64 = 9;
        const INVALID: i64 = -22;
        const DONT_NEED_LOCKED: u64 = 24;
        let [start, length, advice, ..] = question.argument;
        let end = start.saturating_add(length).next_multiple_of(page_size() as u64);
        match question.number {
            ask::MUNMAP | ask::MREMAP => self.see(start, end)?,
            ask::EXECVE | ask::EXECVEAT | ask::MMAP | ask::BRK => self.see(0, u64::MAX)?,
            ask::MADVISE if matches!(advice, DONT_NEED | FREE | REMOVE | DONT_NEED_LOCKED) => {
                self.see(start, end)?;
                let mut ours = self.mappings(linux)?;
                ours.retain(|mapping| mapping.start < end && mapping.end > start);
                if ours.is_empty() {
                    return Ok(Answer::GoOn);
                }
                if advice == REMOVE {
                    return Ok(Answer::Return(INVALID));
                }
                if advice != FREE {
                    ours.iter().try_for_each(|mapping| self.zero(mapping, start, end))?;
                }
                return Ok(Answer::Return(0));
            }
            _ => {}
        }
        Ok(Answer::GoOn)
    }

    /// Writes zeros where a mapping has data.
    fn zero(&self, mapping: &Mapping, start: u64, end: u64) -> Result<()> {
        let path = format!("/proc/{}/mem", self.pid);
        let failed = |error| Error::io("write to", &path, error);
        let memory = File::options().write(true).open(&path).map_err(failed)?;
        let (from, to) = (mapping.start.max(start), mapping.end.min(end));
        let offset = |address: u64| mapping.offset + (address - mapping.start);
        memfd::data(&self.memory, offset(from), offset(to), |from, to| {
            let zeros = vec![0; (to - from) as usize];
            let at = mapping.start + (from - mapping.offset);
            memory.write_all_at(&zeros, at).map_err(failed)
        })
    }
}

pub(crate) fn cloned(file: &File) -> Result<File> {
    file.try_clone().map_err(|error| Error::io("duplicate", "the memory file", error))
}

impl Process {
    /// What a child takes over.
    pub(crate) fn inherited(&self) -> Result<Inherited> {
        let word = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed);
        let heap = (word(&self.control.break_start), word(&self.control.break_end));
        let (images, own_fds) = (self.control.images(), self.own_fds);
        Ok(Inherited { memory: cloned(&self.memory)?, inode: self.inode, heap, images, own_fds })
    }
}

impl Tracer {
    /// A child was forked by a thread of `parent`; both are stopped. Memory that it cannot have for its own it does not
    /// get to see: it would write its parent's.
    pub(crate) fn forked(&mut self, parent: u32, (forker, child): (u32, u32)) -> Result<()> {
        let Err(error) = self.part(parent, (forker, child)) else { return Ok(()) };
        let _ = signal::send(child, 9);
        let why = format!("a forked child, which was killed before it began: {error}");
        self.untraced.push(Untraced { process: child, start: 0, end: 0, why });
        Ok(())
    }

    /// Parts the memory of a child from its parent's.
    fn part(&mut self, parent: u32, (forker, child): (u32, u32)) -> Result<()> {
        // A child of a child that is not adopted yet reads the same file.
        let owner = self.reads.get(&parent).copied().unwrap_or(parent);
        let (from, watched) = if let Some(elder) = self.children.get(&parent) {
            (elder.inherited()?, None)
        } else if let Some(process) = self.processes.get_mut(&owner) {
            // Until it has ended the memory is not shared again, whatever fails.
            process.sharers.push(child);
            self.reads.insert(child, owner);
            let granule = self.options.granule;
            let (watched, frozen) = process.part(&self.linux, (forker, child), granule)?;
            if let Err(error) = frozen {
                if process.awake() {
                    return Err(error);
                }
                // Its servant was killed. Another does it, started by the thread that forks, at the end of its call; what
                // becomes of the recording is for the next look to say.
                ptrace::resume_to_system_call(forker, 0)?;
                ptrace::wait_for(forker, PATIENCE)?;
                self.unanswered.extend(process.dismiss(&self.linux));
                process.revive(forker)?;
                process.freeze(&self.linux)?;
            }
            (process.inherited()?, watched)
        } else {
            return Ok(());
        };
        if let Some(process) = self.processes.get_mut(&owner) {
            if !process.sharers.contains(&child) {
                process.sharers.push(child);
            }
            self.reads.insert(child, owner);
        }
        self.events.follow(child)?;
        let age = 2 * self.options.interval;
        let fresh = Child::new(&self.linux, child, from, watched, age)?;
        self.children.insert(child, fresh);
        self.parents.push((parent, child));
        Ok(())
    }

    /// Gives children that have lived for two intervals memory of their own.
    pub(crate) fn adopt(&mut self, sink: &mut dyn crate::Sink) -> Result<()> {
        let now = Instant::now();
        let old = |child: &&Child| !child.stays && now >= child.due;
        let ready: Vec<(u32, Duration)> =
            self.children.values().filter(old).map(|child| (child.pid, child.patience)).collect();
        for (pid, patience) in ready {
            let threads = self.siblings(pid, 0);
            let stopped = self.hold(&threads, patience)
                && !self.deferred.iter().any(|(thread, _)| threads.contains(thread));
            // One that asks something just now, or does not get a processor, is adopted later.
            if !stopped && let Some(child) = self.children.get_mut(&pid) {
                child.patience = (2 * patience).min(Duration::from_secs(1));
                child.due = Instant::now() + child.patience;
            }
            if stopped && let Err(error) = self.adopt_stopped(pid, &threads, sink) {
                if let Some(child) = self.children.get_mut(&pid) {
                    child.stays = true;
                }
                let why = format!("a forked child, all of whose life is one interval: {error}");
                self.untraced.push(Untraced { process: pid, start: 0, end: 0, why });
            }
            self.release(pid);
        }
        Ok(())
    }

    fn adopt_stopped(
        &mut self,
        pid: u32,
        threads: &[u32],
        sink: &mut dyn crate::Sink,
    ) -> Result<()> {
        // One that only shares the memory may have other descriptors.
        let own = |thread: &u32| self.threads.get(thread).is_some_and(|state| state.group == pid);
        let own: Vec<u32> = threads.iter().copied().filter(own).collect();
        let Some(thread) = crate::attach::calm(&own) else { return Ok(()) };
        let Some(child) = self.children.get_mut(&pid) else { return Ok(()) };
        let data = child.data(&self.linux)?;
        if data > LARGEST {
            let why = format!("{} MiB are too much to copy", data >> 20);
            return Err(Error::new(Kind::Unsupported, "adopt", format_args!("process {pid}"), why));
        }
        if let Some(why) = crate::attach::pins(&self.linux, pid, Some(child.own_fds))? {
            let object = format!("process {pid}");
            return Err(Error::new(Kind::Unsupported, "adopt", object, why));
        }
        let _ = sink.interval(child.interval(true)?);
        let number = child.number;
        // Its mappings are to be registered with its own.
        child.watched = None;
        let origin = Origin::Forked(child.inherited()?);
        let how = self.how();
        let mut process = convert(
            &self.linux,
            &mut self.session,
            (pid, thread),
            &origin,
            how,
            &mut self.untraced,
        )?;
        process.original.clear();
        (process.intervals, process.began) = (number, now());
        self.processes.insert(pid, process);
        self.tell_keeper();
        self.children.remove(&pid);
        self.no_longer_reads(pid)
    }
}

//! A forked child, from the fork until its memory is its own.
//!
//! ```text
//!  fork      its mappings of its parent's memory file become private (`fork`): its page tables are empty there
//!            and fill with what it touches
//!  ...       nothing is dropped; what leaves its address space is scanned before
//!  adopted   it has lived for two intervals: its memory goes into a file of its own (`convert`), it gets a
//!            injector, and its parent's memory is shared again
//!  exec, end its only interval
//! ```
//!
//! Most children execute another program at once, and pay for none of this. One with much data is not adopted
//! (`adopt`): copying would take long. Its whole life is one interval.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::{self, Pagemap};
use pagemill_kernel::memory::watched::Watched;
use pagemill_kernel::process::injected::Image;
use pagemill_kernel::process::seccomp::SyscallReply;
use pagemill_kernel::{Error, Linux, Result, memory::memfd, page_size, process::injected};
use pagemill_model::{PageRange, Pid};

use crate::SOON;
use crate::arguments::Arguments;
use crate::calls::{self, BRK, EXECVE, EXECVEAT, INVALID, MADVISE, MMAP, MREMAP, MUNMAP};
use crate::interval::{Interval, normal, now};
use crate::layout::OURS;
use crate::notification::SyscallNotification;
use crate::process::{Inherited, cloned};

/// A child that is still to be adopted.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// The file that its mappings are over, private.
    memory: File,
    inode: u64,
    pagemap: Pagemap,
    /// Keeps its mappings registered; `None` if it was forked by one that was not adopted either.
    pub(crate) watched: Option<Watched>,
    pending: Vec<PageRange>,
    began: u64,
    pub(crate) number: u64,
    /// When to adopt it, and how long to wait for its threads then.
    pub(crate) due: Instant,
    pub(crate) patience: Duration,
    /// Where its parent's heap lay at the fork.
    heap: PageRange,
    /// What of the file is of its program's image.
    images: Vec<Image>,
    arguments: Option<Arguments>,
    /// Where the descriptors of ours are that it has from its parent.
    pub(crate) own_fds: u32,
    /// Pages in its page tables from the beginning.
    kept: u64,
    /// It is not to be adopted.
    pub(crate) stays: bool,
}

impl Child {
    pub(crate) fn new(
        linux: &Linux,
        pid: Pid,
        from: Inherited,
        watched: Option<Watched>,
        age: Duration,
    ) -> Result<Self> {
        let pagemap = Pagemap::open(linux, pid)?;
        let Inherited { memory, inode, heap, images, arguments, own_fds } = from;
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
            arguments,
            own_fds,
            kept: 0,
            stays: false,
        };
        // Of memory that was private before, its parent's entries are its own, too.
        child.see(PageRange::ALL)?;
        let here = normal(std::mem::take(&mut child.pending));
        child.kept = here.iter().map(|pages| pages.bytes() / page_size() as u64).sum();
        Ok(child)
    }

    /// What a child of its own takes over.
    pub(crate) fn inherited(&self) -> Result<Inherited> {
        Ok(Inherited {
            memory: cloned(&self.memory)?,
            inode: self.inode,
            heap: self.heap,
            images: self.images.clone(),
            arguments: self.arguments,
            own_fds: self.own_fds,
        })
    }

    /// Adds what is in the page tables of a range to what was touched.
    fn see(&mut self, range: PageRange) -> Result<()> {
        for (low, high) in [(0, injected::CODE), (injected::OURS_END, 0x7fff_ffff_f000)] {
            let part = PageRange::new(low..high).within(range);
            if !part.is_empty() {
                let pending = &mut self.pending;
                let asked = pagemap::PRESENT | pagemap::FILE;
                self.pagemap.scan_any(part, pagemap::MAPPED, asked, |region| {
                    if region.is_mapped() {
                        pending.push(region.range());
                    }
                })?;
            }
        }
        Ok(())
    }

    /// What it touched since the fork, or since it was told last. `scan`: its memory is still there.
    pub(crate) fn interval(&mut self, scan: bool) -> Result<Interval> {
        let scanned = now();
        if scan {
            self.see(PageRange::ALL)?;
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
            stays: 0,
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
    pub(crate) fn data(&self, linux: &Linux) -> Result<u64> {
        let mut bytes = 0;
        for mapping in self.mappings(linux)? {
            let end = mapping.offset + mapping.len();
            memfd::data(&self.memory, mapping.offset..end, |part| {
                bytes += part.end - part.start;
                Ok(())
            })?;
        }
        Ok(bytes)
    }

    /// What it asks: all goes on as it would, but what leaves is seen before, and memory that is to
    /// read as zeros does not read as its parent's.
    pub(crate) fn answer(
        &mut self,
        linux: &Linux,
        notification: &SyscallNotification,
    ) -> Result<SyscallReply> {
        const DONT_NEED: u64 = 4;
        const FREE: u64 = 8;
        const REMOVE: u64 = 9;
        const DONT_NEED_LOCKED: u64 = calls::DONT_NEED_LOCKED as u64;
        let [start, length, advice, ..] = notification.argument;
        let end = start.saturating_add(length).next_multiple_of(page_size() as u64);
        let range = PageRange::new(start..end);
        match notification.number {
            MUNMAP | MREMAP => self.see(range)?,
            EXECVE | EXECVEAT | MMAP | BRK => self.see(PageRange::ALL)?,
            MADVISE if matches!(advice, DONT_NEED | FREE | REMOVE | DONT_NEED_LOCKED) => {
                self.see(range)?;
                let mut ours = self.mappings(linux)?;
                ours.retain(|mapping| mapping.start < end && mapping.end > start);
                if ours.is_empty() {
                    return Ok(SyscallReply::Continue);
                }
                if advice == REMOVE {
                    return Ok(SyscallReply::Return(INVALID));
                }
                if advice != FREE {
                    ours.iter().try_for_each(|mapping| self.zero(mapping, range))?;
                }
                return Ok(SyscallReply::Return(0));
            }
            _ => {}
        }
        Ok(SyscallReply::Continue)
    }

    /// Writes zeros where a mapping has data.
    fn zero(&self, mapping: &Mapping, range: PageRange) -> Result<()> {
        let path = format!("/proc/{}/mem", self.pid);
        let failed = |error| Error::io("write to", &path, error);
        let memory = File::options().write(true).open(&path).map_err(failed)?;
        let part = mapping.range().within(range);
        let offset = |address: u64| mapping.offset + (address - mapping.start);
        memfd::data(&self.memory, offset(part.start)..offset(part.end), |bytes| {
            let zeros = vec![0; (bytes.end - bytes.start) as usize];
            let at = mapping.start + (bytes.start - mapping.offset);
            memory.write_all_at(&zeros, at).map_err(failed)
        })
    }
}

//! Fork. A child must not see what its parent writes afterwards, and the other way round, but both have
//! shared mappings of one file.
//!
//! ```text
//!  freeze   before the fork, while the others are stopped: every mapping of the memory file becomes private,
//!           and so they are in the child ──► nobody writes the file; writes copy, as after any fork
//!  thaw     when no child reads the file any more (it executed a program, or ended): the parent's copies
//!           are written back and its mappings are shared again
//! ```
//!
//! While frozen, no page is dropped: one that is the file's may become the program's copy at any moment. It is told as
//! kept in every interval. Nothing is promised to private memory that the kernel could refuse (`MAP_NORESERVE`), and
//! the limits of the program do not count; if a mapping cannot be made private all the same, the child does not begin
//! ([`Tracer::forked`]).
//!
//! [`Tracer::forked`]: crate::Tracer
//!
//! What could not be made private by then, or was mapped meanwhile, is parted when the child has stopped for the first
//! time ([`Process::part`]). By then the kernel has written: the child's number into the child's memory, as every C
//! library asks for, and numbers into the parent's. Through memory that is still shared either reaches the other side.
//! So the words are noted when the fork is asked for, and put right.
//!
//! Pages that the kernel holds (buffers of an io_uring) are to stay where they are: a parent that has such keeps its
//! shared memory, and the child gets a copy of all of it before either goes on.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::watched::{self, Watched};
use pagemill_kernel::process::LimitGuard;
use pagemill_kernel::{
    Error, Linux, Result,
    process::{pidfd, process_vm},
};
use pagemill_model::{PageRange, Pid};

use crate::Granule;
use crate::calls::{
    ANONYMOUS, CLOSE, Call, DONT_FORK, FIXED, MADVISE, MMAP, MUNMAP, NORESERVE, PRIVATE, SHARED,
    USERFAULTFD, call,
};
use crate::copy::{copy_run, own_copies};
use crate::inject::{Injection, Site, refused};
use crate::layout::{OURS, guard, map_over, protection, watch_all};
use crate::notification::SyscallNotification;
use crate::pins::pins;
use crate::process::{ForkAdvice, Process, TidWords};

/// Without a promise of memory that could be refused.
const UNPROMISED: i64 = PRIVATE | NORESERVE;

impl Process {
    /// A thread is about to fork: notes what the kernel will write.
    pub(crate) fn note_words(&mut self, notification: &SyscallNotification) {
        const PIDFD: u64 = 0x1000;
        const PARENT: u64 = 0x0010_0000;
        const CHILD: u64 = 0x0100_0000;
        let Some(asked) = notification.clones(self.pid) else { return };
        let held = |address: u64| {
            let mut bytes = [0; 4];
            let read = process_vm::read(self.pid, address, &mut bytes);
            read.ok().map(|()| (address, u32::from_ne_bytes(bytes)))
        };
        let held = |flag: u64, address: u64| (asked.flags & flag != 0).then(|| held(address))?;
        let parent = [held(PARENT, asked.parent), held(PIDFD, asked.pidfd)];
        let words = TidWords {
            child: held(CHILD, asked.child).into_iter().collect(),
            parent: parent.into_iter().flatten().collect(),
        };
        self.fork_words.insert(notification.thread, words);
    }

    /// Gives the parent back what the kernel wrote over for the child; what the child's memory is to hold
    /// once it is its own.
    fn separate(&self, words: &TidWords, shared: &[Mapping]) -> Result<Vec<(u64, u32)>> {
        let place = |address: u64| {
            let holds = |mapping: &&Mapping| mapping.start <= address && address + 4 <= mapping.end;
            shared.iter().find(holds).map(|mapping| mapping.offset + (address - mapping.start))
        };
        let failed = |error| Error::io("fill", "the memory file", error);
        let mut of_child = Vec::new();
        for &(address, before) in &words.child {
            let Some(offset) = place(address) else { continue };
            let mut bytes = [0; 4];
            self.memory.read_exact_at(&mut bytes, offset).map_err(failed)?;
            self.memory.write_all_at(&before.to_ne_bytes(), offset).map_err(failed)?;
            of_child.push((address, u32::from_ne_bytes(bytes)));
        }
        let others = words.parent.iter().filter(|(address, _)| place(*address).is_some());
        of_child.extend(others);
        Ok(of_child)
    }

    /// Its mappings of the memory file.
    pub(crate) fn mappings(&self, linux: &Linux, pid: Pid) -> Result<Vec<Mapping>> {
        let mut maps = linux.maps(pid)?;
        maps.retain(|mapping| mapping.inode == self.inode && mapping.name.starts_with(OURS));
        Ok(maps)
    }

    /// Calls that map the memory file anew where these mappings are.
    fn remaps(&self, mappings: &[Mapping], kind: i64) -> Vec<Call> {
        let remap = |mapping: &Mapping| map_over(mapping, kind, self.memory_fd, mapping.offset);
        mappings.iter().map(remap).collect()
    }

    /// Whether each of these calls mapped what it was to.
    fn mapped(&self, action: &'static str, calls: &[Call], results: &[i64]) -> Result<()> {
        match calls.iter().zip(results).find(|(call, result)| **result != call[1]) {
            Some((_, &result)) => Err(refused(action, self.pid, result)),
            None => Ok(()),
        }
    }

    /// Gives the child, stopped at its first instruction like its parent, and the parent private mappings: what keeps
    /// the child's faults from mapping neighbours, and whether the parent has them ([`Self::freeze`]). Where the
    /// parent's memory `stays_shared`, the child is to be given memory of its own before either goes on.
    pub(crate) fn part(
        &mut self,
        linux: &Linux,
        (forker, child): (Pid, Pid),
        granule: Granule,
        stays_shared: bool,
    ) -> Result<(Option<Watched>, Result<()>)> {
        let words = self.fork_words.remove(&forker).unwrap_or_default();
        self.about_to_freeze()?;
        let _alone = self.control.alone();
        let mut of_child = self.mappings(linux, child)?;
        let advised = self.at_fork(&of_child);
        of_child.retain(|mapping| mapping.shared);
        let words = self.separate(&words, &of_child)?;
        let of_child = self.remaps(&of_child, UNPROMISED);
        let mut in_child = of_child.clone();
        in_child.extend(guard(&self.pagemap.guards(PageRange::new(0..0x7fff_ffff_f000))));
        in_child.extend(advised);
        in_child.push(call(USERFAULTFD, [watched::OPEN_FLAGS]));
        let _lifted = LimitGuard::of(child);
        let injection = Injection::with_trampoline(child, &Site::find(linux, child)?)?;
        let done = injection.list(&self.control, &in_child).and_then(|results| {
            let fd = results.last().copied().unwrap_or(-1);
            let watched = self.watch_child(linux, child, fd, granule);
            injection.one(&call(CLOSE, [fd]))?;
            Ok((results, watched?))
        });
        let (results, watched) = done?;
        self.mapped("make the memory private of a fork of", &of_child, &results)?;
        for (address, value) in words {
            process_vm::write(child, address, &value.to_ne_bytes())?;
        }
        Ok((watched, if stays_shared { Ok(()) } else { self.freeze_alone(linux) }))
    }

    /// Whether its memory may not become private at a fork: the kernel holds pages of it, which are to stay.
    pub(crate) fn stays_shared(&self) -> Result<bool> {
        Ok(!self.frozen() && pins(&self.linux, self.pid, Some(self.own_fds))?.is_some())
    }

    /// The entries go with the shared mappings, and their protection.
    fn about_to_freeze(&mut self) -> Result<()> {
        self.collect()?;
        self.protected.clear();
        self.control.frozen.store(1, Relaxed);
        Ok(())
    }

    /// Makes its mappings private. May be done again if it fails.
    pub(crate) fn freeze(&mut self, linux: &Linux) -> Result<()> {
        self.about_to_freeze()?;
        let _alone = self.control.alone();
        self.freeze_alone(linux)
    }

    /// The same where nothing that runs in the program maps or unmaps meanwhile: memory that went would come back.
    fn freeze_alone(&self, linux: &Linux) -> Result<()> {
        let mut own = self.mappings(linux, self.pid)?;
        own.retain(|mapping| mapping.shared);
        if own.is_empty() {
            return Ok(());
        }
        let guards = guard(&self.pagemap.guards(PageRange::new(0..0x7fff_ffff_f000)));
        let calls = self.remaps(&own, UNPROMISED);
        self.mapped("make the memory private of", &calls, &self.serve(&calls)?)?;
        self.serve(&guards)?;
        // New private mappings are not registered any more.
        for mapping in &own {
            self.watch(mapping.range());
        }
        Ok(())
    }

    /// What the program has asked a fork to do with its memory, as calls for the child.
    fn at_fork(&self, mappings: &[Mapping]) -> Vec<Call> {
        let mut calls = Vec::new();
        for &ForkAdvice { range, advice } in &self.fork_advice {
            for mapping in mappings {
                let (first, last) = (
                    mapping.offset.max(range.start),
                    (mapping.offset + mapping.len()).min(range.end),
                );
                if first >= last {
                    continue;
                }
                let start = (mapping.start + (first - mapping.offset)) as i64;
                let length = (last - first) as i64;
                if advice == DONT_FORK {
                    calls.push(call(MUNMAP, [start, length]));
                } else {
                    let kind = UNPROMISED | FIXED | ANONYMOUS;
                    calls.push(call(MMAP, [start, length, protection(mapping), kind, -1]));
                    calls.push(call(MADVISE, [start, length, advice as i64]));
                }
            }
        }
        calls
    }

    fn watch_child(
        &self,
        linux: &Linux,
        child: Pid,
        fd: i64,
        granule: Granule,
    ) -> Result<Option<Watched>> {
        if fd < 0 || granule == Granule::Around {
            return Ok(None);
        }
        let watched = Watched::new(pidfd::descriptor(&pidfd::open(child)?, fd as i32)?)?;
        watch_all(linux, child, (&watched, false), &self.apart)?;
        Ok(Some(watched))
    }

    /// Makes the memory shared again. All threads are stopped, and no child reads the file.
    pub(crate) fn thaw(&mut self, linux: &Linux) -> Result<()> {
        self.collect()?;
        let private: Vec<Mapping> =
            self.mappings(linux, self.pid)?.into_iter().filter(|mapping| !mapping.shared).collect();
        let mut buffer = Vec::new();
        for mapping in &private {
            for PageRange { start, end } in own_copies(&self.pagemap, mapping)? {
                buffer.resize((end - start) as usize, 0);
                // Guards look like copies, and cannot be read.
                copy_run(self.pid, start, &mut buffer, |bytes, more| {
                    let offset = mapping.offset + (start - mapping.start) + more;
                    let written = self.memory.write_all_at(bytes, offset);
                    written.map_err(|error| Error::io("fill", "the memory file", error))
                })?;
            }
        }
        let guards = guard(&self.pagemap.guards(PageRange::new(0..0x7fff_ffff_f000)));
        let calls = self.remaps(&private, SHARED);
        self.mapped("make the memory shared again of", &calls, &self.serve(&calls)?)?;
        self.serve(&guards)?;
        self.control.frozen.store(0, Relaxed);
        for mapping in &private {
            self.watch(mapping.range());
        }
        Ok(())
    }
}

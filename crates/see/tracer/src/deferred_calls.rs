//! System calls that the mapper leaves to the tracer: they need a file read, a fork prepared, or belong to
//! a process that has no mapper.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::injected::{Decided, Image};
use pagemill_kernel::process::seccomp::SyscallReply;
use pagemill_kernel::{Error, Kind, Result, page_size};
use pagemill_model::{Bytes, PageRange};

use crate::calls::{
    DONT_FORK, FORK, INVALID, MPROTECT, MREMAP, SHARED, WIPE_ON_FORK, call, failed,
};
use crate::copy::copy;
use crate::layout::{OURS, map_over, of_image, stays};
use crate::notification::SyscallNotification;
use crate::process::{ForkAdvice, Process};
use crate::trace::Untraced;

const DO_FORK: u64 = 11;
const KEEP_ON_FORK: u64 = 19;
impl Process {
    /// Has its injector decide a call of its own that another process's mapper received, or, `now`, one that is the
    /// tracer's to answer.
    pub(crate) fn decide(&self, notification: &SyscallNotification, now: bool) -> Result<Decided> {
        let SyscallNotification { id, thread, number, argument } = *notification;
        self.control.decide(id, thread, number, argument, now, |calls| self.serve(calls))
    }

    /// Whether a call forks: makes a process with a copy of the memory.
    pub(crate) fn forks(&self, notification: &SyscallNotification) -> bool {
        const SHARE_MEMORY: u64 = 0x100;
        let copies = |flags: u64| flags & SHARE_MEMORY == 0;
        notification.number == FORK
            || notification.clones(self.pid).is_some_and(|asked| copies(asked.flags))
    }

    /// Private writable memory of a file is about to be: mapped or moved by the injector, while the tracer looks at no
    /// page table. Whether it is done.
    pub(crate) fn own_file(&mut self, notification: &SyscallNotification) -> Result<Decided> {
        self.own_files = true;
        self.decide(notification, true)
    }

    /// A mapping of something else than a plain file, made between two looks at the page tables; and if it is a
    /// driver's memory, or huge pages, never looked at. What is not traced of it.
    pub(crate) fn map_apart(
        &mut self,
        notification: &SyscallNotification,
    ) -> Result<(SyscallReply, Vec<Untraced>)> {
        let asked = call(notification.number, notification.argument.map(|word| word as i64));
        let result = self.serve(&[asked])?[0];
        let mut untraced = Vec::new();
        if !failed(result) {
            let length = notification.argument[if notification.number == MREMAP { 2 } else { 1 }];
            let range = PageRange::of_length(result as u64, Bytes(length));
            for usage in self.linux.smaps(self.pid)? {
                let mapping = &usage.mapping;
                let part = mapping.range().within(range);
                if part.is_empty() {
                    continue;
                }
                let Some(why) = stays(&usage) else {
                    self.watch(part);
                    continue;
                };
                untraced.push(Untraced::mapping(self.pid, mapping, why));
                self.apart.push(usage.mapping);
            }
            self.tell_apart();
        }
        Ok((SyscallReply::Return(result), untraced))
    }

    /// Write access to private mappings of files: parts of programs' images become part of the memory file.
    pub(crate) fn protect(&mut self, notification: &SyscallNotification) -> Result<SyscallReply> {
        let [start, length, access, ..] = notification.argument;
        let end = start.saturating_add(length).next_multiple_of(page_size() as u64);
        let maps = self.linux.maps(self.pid)?;
        for mapping in &maps {
            if mapping.end <= start
                || mapping.start >= end
                || mapping.shared
                || mapping.inode == 0
                || mapping.write
                || mapping.name.starts_with(OURS)
            {
                continue;
            }
            let (from, to) = (mapping.start.max(start), mapping.end.min(end));
            let within = mapping.offset + (from - mapping.start);
            let at = self.fresh(to - from);
            let image = Image { at, length: to - from, inode: mapping.inode, from: within };
            if !of_image(mapping, &maps) || !self.control.remember_image(image) {
                self.own_files = true;
                continue;
            }
            let part = Mapping { start: from, end: to, offset: within, ..mapping.clone() };
            copy(self.pid, &part, &self.memory, at, &self.pagemap)?;
            self.map_shared(&part, at)?;
        }
        let asked = call(MPROTECT, [start, length, access].map(|word| word as i64));
        Ok(SyscallReply::Return(self.serve(&[asked])?[0]))
    }

    /// Puts a part of the memory file where a mapping is.
    fn map_shared(&self, part: &Mapping, offset: u64) -> Result<()> {
        let call = map_over(part, SHARED, self.memory_fd, offset);
        self.serve_one("convert a mapping of", call)?;
        self.watch(part.range());
        Ok(())
    }

    /// Advice about parts of the memory file: what a fork shall do with them, or that the bytes of a program's image
    /// are to come back.
    pub(crate) fn advise(&mut self, notification: &SyscallNotification) -> Result<SyscallReply> {
        let [start, length, advice, ..] = notification.argument;
        let end = start.saturating_add(length).next_multiple_of(page_size() as u64);
        for part in self.file_mappings(PageRange::new(start..end))? {
            match advice {
                DONT_FORK | DO_FORK => self.remember_advice(&part, DONT_FORK, advice == DONT_FORK),
                WIPE_ON_FORK | KEEP_ON_FORK => {
                    self.remember_advice(&part, WIPE_ON_FORK, advice == WIPE_ON_FORK);
                }
                // Its file is gone: what it says of other memory that cannot be dropped.
                _ if self.refill(&part).is_err() => return Ok(SyscallReply::Return(INVALID)),
                _ => {}
            }
        }
        Ok(SyscallReply::Return(0))
    }

    /// What of a range is of the memory file.
    pub(crate) fn file_mappings(&self, range: PageRange) -> Result<Vec<Mapping>> {
        let mut parts = self.mappings(&self.linux, self.pid)?;
        for part in &mut parts {
            let first = part.start;
            PageRange { start: part.start, end: part.end } = part.range().within(range);
            part.offset += part.start - first;
        }
        parts.retain(|part| part.start < part.end);
        Ok(parts)
    }

    /// By its place in the memory file, which no other mapping ever has.
    pub(crate) fn remember_advice(&mut self, part: &Mapping, advice: u64, holds: bool) {
        let (start, end) = (part.offset, part.offset + part.len());
        let of_others = |known: &ForkAdvice| {
            let PageRange { start: from, end: to } = known.range;
            let part = |from, to| ForkAdvice { range: PageRange::new(from..to), ..*known };
            let both = [part(from, to.min(start)), part(from.max(end), to)];
            let parts = if known.advice == advice { both } else { [*known, part(0, 0)] };
            parts.into_iter().filter(|part| !part.range.is_empty())
        };
        self.fork_advice = self.fork_advice.iter().flat_map(of_others).collect();
        if holds {
            let range = PageRange::new(start..end);
            self.fork_advice.push(ForkAdvice { range, advice });
        }
    }

    /// The bytes of programs' images in a part of the memory file, anew from the images.
    fn refill(&self, part: &Mapping) -> Result<()> {
        let end = part.offset + part.len();
        let mut offset = part.offset;
        let of_part = |image: &Image| image.at < end && image.at + image.length > part.offset;
        let images: Vec<Image> = self.control.images().into_iter().filter(of_part).collect();
        // Nobody may write what a child reads: another part of the memory file then.
        if self.frozen() && !images.is_empty() {
            offset = self.fresh(part.len());
        }
        for image in images {
            let (from, to) = (image.at.max(part.offset), (image.at + image.length).min(end));
            let mut bytes = vec![0; (to - from) as usize];
            self.open_image(image.inode)?
                .read_at(&mut bytes, image.from + (from - image.at))
                .and_then(|_| self.memory.write_all_at(&bytes, offset + (from - part.offset)))
                .map_err(|error| Error::io("fill", "the memory file", error))?;
            if offset != part.offset {
                let at = offset + (from - part.offset);
                let from = image.from + (from - image.at);
                let again = Image { at, length: bytes.len() as u64, inode: image.inode, from };
                self.control.remember_image(again);
            }
        }
        if offset == part.offset { Ok(()) } else { self.map_shared(part, offset) }
    }

    /// The file of a program's image, by a mapping that it still has.
    fn open_image(&self, inode: u64) -> Result<File> {
        let maps = self.linux.maps(self.pid)?;
        let found =
            maps.iter().find(|mapping| mapping.inode == inode && !mapping.name.starts_with(OURS));
        let object = format!("an image of process {}", self.pid);
        let gone = || Error::new(Kind::Gone, "read", &object, "no part of it is mapped any more");
        let mapping = found.ok_or_else(gone)?;
        let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
        // Only root may go by the mapping itself.
        let open = File::open(self.linux.process_file(self.pid, &range)).or_else(|_| {
            File::open(self.linux.process_file(self.pid, &format!("root{}", mapping.name)))
        });
        open.map_err(|error| Error::io("open", &mapping.name, error))
    }
}

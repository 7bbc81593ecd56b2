//! System calls that the mapper leaves to the tracer: they need a file read, a fork prepared, or belong to
//! a process that has no mapper.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt as _, MetadataExt as _};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use pagemill_kernel::maps::Mapping;
use pagemill_kernel::resident::Decided;
use pagemill_kernel::seccomp::{self, Answer};
use pagemill_kernel::{Linux, Result, page_size, process_vm};

use crate::Untraced;
use crate::convert::{protection, stays};
use crate::copy::copy;
use crate::process::Process;

pub(crate) const MMAP: i32 = 9;
pub(crate) const MPROTECT: i32 = 10;
pub(crate) const MUNMAP: i32 = 11;
pub(crate) const BRK: i32 = 12;
pub(crate) const MREMAP: i32 = 25;
pub(crate) const MADVISE: i32 = 28;
pub(crate) const CLONE: i32 = 56;
pub(crate) const FORK: i32 = 57;
pub(crate) const EXECVE: i32 = 59;
pub(crate) const PTRACE: i32 = 101;
pub(crate) const EXECVEAT: i32 = 322;
pub(crate) const USERFAULTFD: i32 = 323;
pub(crate) const CLONE3: i32 = 435;
pub(crate) const CLOSE_RANGE: i32 = 436;
/// -ENOSYS.
pub(crate) const NO_SUCH_CALL: i64 = -38;
/// The mapper's log is full.
pub(crate) const LOG: i32 = -1;

const SHARED: u64 = 1;
const PRIVATE: u64 = 2;
/// Number of `/dev/zero`.
const ZERO: u64 = 1 << 8 | 5;

/// A question of a mapper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    id: u64,
    /// Thread that makes the call.
    pub(crate) thread: u32,
    /// System call, or [`LOG`].
    pub(crate) number: i32,
    pub(crate) argument: [u64; 6],
}

impl Question {
    /// A call that the tracer received itself.
    pub(crate) fn of(notified: &seccomp::Notified) -> Self {
        let seccomp::Notified { id, thread, number, argument, .. } = *notified;
        Self { id, thread, number, argument }
    }

    /// Has the caller, who was asked to stop, come back without having made the call: it makes it again ([`again`]).
    pub(crate) fn put_back(&self, listener: &OwnedFd) -> Result<()> {
        self.answer(listener, Answer::Return(NO_SUCH_CALL))
    }

    /// Lets the call go on or return.
    pub(crate) fn answer(&self, listener: &OwnedFd, answer: Answer) -> Result<()> {
        match self.number {
            LOG => Ok(()),
            _ => seccomp::answer(listener, self.id, answer),
        }
    }
}

impl Process {
    /// What its mapper asks, if it does.
    pub(crate) fn question(&self) -> Option<Question> {
        if self.control.asks() { self.received() } else { None }
    }

    /// The call that its mapper received last, unless it is done with.
    pub(crate) fn received(&self) -> Option<Question> {
        let notification = &self.control.notification;
        let question = Question {
            id: notification.id.load(Acquire),
            thread: notification.pid.load(Relaxed),
            number: notification.number.load(Relaxed),
            argument: std::array::from_fn(|index| notification.argument[index].load(Relaxed)),
        };
        (question.id != 0).then_some(question)
    }

    /// Has its servant decide a call of its own that another process's mapper received.
    pub(crate) fn decide(&self, question: &Question) -> Result<Decided> {
        let Question { id, thread, number, argument } = *question;
        self.control.decide(id, thread, number, argument, |calls| self.serve(calls))
    }

    /// Whether a call forks: makes a process with a copy of the memory.
    pub(crate) fn forks(&self, question: &Question) -> bool {
        const SHARE_MEMORY: u64 = 0x100;
        match question.number {
            FORK | CLONE => true,
            CLONE3 => {
                let mut flags = [0; 8];
                let read = process_vm::read(self.pid, question.argument[0], &mut flags);
                read.is_ok() && u64::from_ne_bytes(flags) & SHARE_MEMORY == 0
            }
            _ => false,
        }
    }

    /// A mapping of something else than a plain file, made between two looks at the page tables; and if it is a driver's
    /// memory, or huge pages, never looked at. What is not traced of it.
    pub(crate) fn map_apart(&mut self, question: &Question) -> Result<(Answer, Vec<Untraced>)> {
        let call: [i64; 7] = std::array::from_fn(|index| match index {
            0 => i64::from(question.number),
            _ => question.argument[index - 1] as i64,
        });
        let result = self.serve(&[call])?[0];
        let mut untraced = Vec::new();
        if !(-4095..0).contains(&result) {
            let length = question.argument[if question.number == MREMAP { 2 } else { 1 }];
            let (start, end) = (result as u64, result as u64 + length);
            for usage in self.linux.smaps(self.pid)? {
                let mapping = &usage.mapping;
                if mapping.start >= end || mapping.end <= start {
                    continue;
                }
                let Some(why) = stays(&usage) else {
                    self.watch(mapping.start.max(start), mapping.end.min(end));
                    continue;
                };
                untraced.push(Untraced {
                    process: self.pid,
                    start: mapping.start,
                    end: mapping.end,
                    why: format!("{why}: {}", mapping.name),
                });
                self.apart.push(usage.mapping);
            }
            self.tell_apart();
        }
        Ok((Answer::Return(result), untraced))
    }

    /// Whether a call maps memory that becomes part of the memory file.
    pub(crate) fn converts(question: &Question) -> bool {
        const WRITE: u64 = 2;
        let [_, _, access, flags, ..] = question.argument;
        flags & 15 == PRIVATE && access & WRITE != 0
    }

    /// A private writable mapping of a file that the mapper did not make: its bytes go into the memory file first.
    pub(crate) fn map_file(&self, linux: &Linux, question: &Question) -> Result<Answer> {
        let [address, length, access, flags, fd, from] = question.argument;
        let path = linux.process_file(self.pid, &format!("fd/{}", fd as i32));
        // Zeros may be mapped like a file. One that cannot be read, or any other device, is the kernel's to judge.
        let plain = std::fs::metadata(&path).is_ok_and(|data| {
            data.is_file() || data.file_type().is_char_device() && data.rdev() == ZERO
        });
        let Some(file) = plain.then(|| File::open(&path).ok()).flatten() else {
            self.control.untraced.fetch_add(length, Relaxed);
            return Ok(Answer::GoOn);
        };
        let offset = self.fresh(length);
        let mut buffer = vec![0; (1 << 20).min(length as usize)];
        let mut at = 0;
        while at < length {
            let wanted = buffer.len().min((length - at) as usize);
            match file.read_at(&mut buffer[..wanted], from + at) {
                Ok(0) | Err(_) => break,
                Ok(read) => {
                    let written = self.memory.write_all_at(&buffer[..read], offset + at);
                    written.map_err(|error| {
                        pagemill_kernel::Error::io("fill", "the memory file", error)
                    })?;
                    at += read as u64;
                }
            }
        }
        let flags = (flags & !PRIVATE) | SHARED;
        let call = [
            9,
            address as i64,
            length as i64,
            access as i64,
            flags as i64,
            self.memory_fd,
            offset as i64,
        ];
        let result = self.serve(&[call])?[0];
        if result > 0 {
            let end = result as u64 + length.next_multiple_of(page_size() as u64);
            self.watch(result as u64, end);
        }
        Ok(Answer::Return(result))
    }

    /// Write access to a private mapping of a file: it becomes one of the memory file.
    pub(crate) fn protect(&self, linux: &Linux, question: &Question) -> Result<Answer> {
        let [start, length, access, ..] = question.argument;
        let end = start + length.next_multiple_of(page_size() as u64);
        for mapping in linux.maps(self.pid)? {
            if mapping.end <= start
                || mapping.start >= end
                || mapping.shared
                || mapping.inode == 0
                || mapping.write
            {
                continue;
            }
            let part =
                Mapping { start: mapping.start.max(start), end: mapping.end.min(end), ..mapping };
            let offset = self.fresh(part.len());
            copy(self.pid, &part, &self.memory, offset, &self.pagemap)?;
            let call = [
                i64::from(MMAP),
                part.start as i64,
                part.len() as i64,
                protection(&part),
                SHARED as i64 | 0x10,
                self.memory_fd,
                offset as i64,
            ];
            self.serve_one("convert a mapping of", call)?;
            self.watch(part.start, part.end);
        }
        let result = self.serve(&[[
            i64::from(MPROTECT),
            start as i64,
            length as i64,
            access as i64,
            0,
            0,
            0,
        ]])?[0];
        Ok(Answer::Return(result))
    }

    /// What a fork shall do with a range.
    pub(crate) fn advise_fork(&mut self, question: &Question) -> Answer {
        const DONT_FORK: u64 = 10;
        const WIPE_ON_FORK: u64 = 18;
        let [start, length, advice, ..] = question.argument;
        let end = start + length;
        self.fork_advice.retain(|range| range.1 <= start || range.0 >= end);
        if matches!(advice, DONT_FORK | WIPE_ON_FORK) {
            self.fork_advice.push((start, end, advice));
        }
        Answer::Return(0)
    }
}

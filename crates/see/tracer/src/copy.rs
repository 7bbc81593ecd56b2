//! A program's bytes, copied into the memory file while nobody writes them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::{self, Pagemap};
use pagemill_kernel::{Error, Result, memory::memfd, page_size, process::process_vm};
use pagemill_model::{PageRange, Pid};

use crate::calls::{ANONYMOUS, Call, MMAP, MOVE_TO, MPROTECT, MREMAP, NORESERVE, PRIVATE, call};
use crate::inject::{checked, refused};
use crate::layout::protection;

/// Bytes copied at a time; as many as [`memfd::data`] hands out.
const COPY: u64 = 1 << 20;

/// Copies the bytes of a mapping into the memory file: all pages of a file's, the populated ones of others.
/// How many bytes.
pub(crate) fn copy(
    pid: Pid,
    mapping: &Mapping,
    memory: &File,
    offset: u64,
    pagemap: &Pagemap,
) -> Result<u64> {
    let mut buffer = vec![0; COPY as usize];
    let mut copied = 0;
    let mut run = |PageRange { start, end }| -> Result<()> {
        let mut at = start;
        while at < end {
            let bytes = &mut buffer[..(end - at).min(COPY) as usize];
            copied += bytes.len() as u64;
            copy_run(pid, at, bytes, |bytes, more| {
                fill(memory, bytes, offset + (at - mapping.start) + more)
            })?;
            at += bytes.len() as u64;
        }
        Ok(())
    };
    if mapping.inode != 0 {
        run(mapping.range())?;
        return Ok(copied);
    }
    let mut populated = Vec::new();
    let any = pagemap::PRESENT | pagemap::SWAPPED;
    pagemap.scan_any(mapping.range(), any, any, |region| {
        populated.push(region.range());
    })?;
    populated.into_iter().try_for_each(|part| run(part.within(mapping.range())))?;
    Ok(copied)
}

/// Copies what a private mapping of `from`, a sparse file, holds. How many bytes.
pub(crate) fn copy_data(
    pid: Pid,
    mapping: &Mapping,
    from: &File,
    into: &File,
    offset: u64,
) -> Result<u64> {
    let mut buffer = vec![0; COPY as usize];
    let mut copied = 0;
    memfd::data(from, mapping.offset..mapping.offset + mapping.len(), |Range { start, end }| {
        copied += end - start;
        let at = start - mapping.offset;
        let bytes = &mut buffer[..(end - start) as usize];
        copy_run(pid, mapping.start + at, bytes, |bytes, more| {
            fill(into, bytes, offset + at + more)
        })
    })?;
    Ok(copied)
}

/// Reads bytes of a process and hands them to `write`, with their distance from `start`: at once, or, where
/// not all can be read so, page by page what can.
pub(crate) fn copy_run(
    pid: Pid,
    start: u64,
    buffer: &mut [u8],
    mut write: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let page = page_size();
    pagemill_kernel::process::heartbeat::beat();
    if process_vm::read(pid, start, buffer).is_ok() {
        return write(buffer, 0);
    }
    // Memory without read access, or a file that ends before its mapping: by another way.
    let path = format!("/proc/{pid}/mem");
    let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
    for (index, bytes) in buffer.chunks_mut(page).enumerate() {
        let at = (index * page) as u64;
        if file.read_exact_at(bytes, start + at).is_ok() {
            write(bytes, at)?;
        }
    }
    Ok(())
}

/// Writes into a memory file.
fn fill(memory: &File, bytes: &[u8], offset: u64) -> Result<()> {
    memory.write_all_at(bytes, offset).map_err(|error| Error::io("fill", "the memory file", error))
}

/// The pages of a mapping of a file that are the process's own copies, and guards, which look like them.
pub(crate) fn own_copies(pagemap: &Pagemap, mapping: &Mapping) -> Result<Vec<PageRange>> {
    let mut copies = Vec::new();
    let any = pagemap::PRESENT | pagemap::SWAPPED;
    pagemap.scan_any(PageRange::new(mapping.start..mapping.end), any, pagemap::FILE, |region| {
        if region.categories & pagemap::FILE == 0 {
            copies.push(region.range());
        }
    })?;
    Ok(copies)
}

/// Makes a mapping of the memory file anonymous memory with the same bytes, by system calls that the process makes.
pub(crate) fn make_own(
    pid: Pid,
    (mapping, memory): (&Mapping, &File),
    pagemap: &Pagemap,
    make: impl Fn(&Call) -> Result<i64>,
) -> Result<()> {
    const ACTION: &str = "give its own memory back to";
    // Without a promise of memory that could be refused.
    const KIND: i64 = PRIVATE | ANONYMOUS | NORESERVE;
    let (start, length) = (mapping.start as i64, mapping.len() as i64);
    let spare = checked(ACTION, pid, make(&call(MMAP, [0, length, 3, KIND, -1]))?)?;
    let mut buffer = vec![0; COPY as usize];
    let mut copied = |part: Range<u64>| {
        let to = part.end;
        part.step_by(COPY as usize).try_for_each(|from| {
            let bytes = &mut buffer[..(to - from).min(COPY) as usize];
            copy_run(pid, mapping.start + from, bytes, |bytes, offset| {
                process_vm::write(pid, spare as u64 + from + offset, bytes)
            })
        })
    };
    memfd::data(memory, mapping.offset..mapping.offset + mapping.len(), |part| {
        copied(part.start - mapping.offset..part.end - mapping.offset)
    })?;
    if !mapping.shared {
        // Pages that are its own already, and perhaps not in the file any more.
        for PageRange { start, end } in own_copies(pagemap, mapping)? {
            copied(start - mapping.start..end - mapping.start)?;
        }
    }
    make(&call(MPROTECT, [spare, length, protection(mapping)]))?;
    match make(&call(MREMAP, [spare, length, length, MOVE_TO, start]))? {
        moved if moved == start => Ok(()),
        other => Err(refused(ACTION, pid, other)),
    }
}

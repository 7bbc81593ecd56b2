//! `memfd_create(2)`: a file in memory without a name, which can be mapped at several addresses.
//!
//! A page of it is memory from its first write on, whether or not a page table has it. `Pss` counts what page tables
//! have, so a process that maps parts of a memfd anew and has not touched them since is charged for more than its `Pss`
//! says.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};
use rustix::io::Errno;

use pagemill_model::Pid;
use pagemill_model::sums::{add, sum};

use crate::memory::maps::Mapping;
use crate::{Error, Kind, Linux, Result};

/// Creates an empty file in memory. `name` shows in `/proc/PID/maps` as `/memfd:name`.
///
/// # Errors
/// The system call is not allowed here, or no descriptor is left.
pub fn create(name: &CStr) -> Result<File> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| {
        Error::io("create", format_args!("memfd {name:?}"), error.into())
            .advise("allow memfd_create(2) in the container's seccomp profile")
    });
    made.map(File::from)
}

/// Locks the first byte of a file in memory for as long as the returned file is open: others who have it can see that
/// we live, in whatever PID namespace they are.
///
/// # Errors
/// The file cannot be opened again, or somebody else holds it.
pub fn hold(file: &File) -> Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // An open file of its own, for those of one do not shut each other out.
    let own = File::options().read(true).write(true).open(&path);
    let own = own.map_err(|error| Error::io("open", &path, error))?;
    // SAFETY: zero is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (libc::F_WRLCK as libc::c_short, 1);
    // SAFETY: the descriptor is open; `lock` is valid for reads and lives through the call.
    match unsafe { libc::fcntl(own.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(own),
        _ => Err(Error::last("lock", "the memory file")),
    }
}

/// Gives the pages of `length` bytes from `offset` back; the file reads as zeros there.
///
/// # Errors
/// The file is sealed, or the kernel refuses it.
pub fn punch_hole(file: &File, offset: u64, length: u64) -> Result<()> {
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)
        .map_err(|error| Error::io("punch a hole in", "memfd", error.into()))
}

/// Bytes of a piece that [`data`] hands out, at most.
const PIECE: u64 = 1 << 20;

/// Hands each piece of a range that is no hole to `each`, in order: at most 1 MiB at a time.
///
/// # Errors
/// The file cannot be read, or what `each` returns.
pub fn data(
    file: &File,
    Range { start: from, end: to }: Range<u64>,
    mut each: impl FnMut(Range<u64>) -> Result<()>,
) -> Result<()> {
    let look = |place: SeekFrom| match seek(file, place) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(Error::io("look for data in", "memfd", error.into())),
    };
    let mut at = from;
    while at < to {
        let Some(start) = look(SeekFrom::Data(at))?.filter(|&start| start < to) else { break };
        let end = look(SeekFrom::Hole(start))?.unwrap_or(to).min(to);
        at = start;
        while at < end {
            let next = end.min(at + PIECE);
            each(at..next)?;
            at = next;
        }
    }
    Ok(())
}

/// Unit of `st_blocks` (stat(2)), bytes.
const BLOCK: u64 = 512;

impl Linux {
    /// Bytes that the memfds among these mappings of the process hold, each file once, by one of its mappings
    /// (`/proc/PID/map_files`). A file whose mappings all went in the meantime holds nothing any more.
    ///
    /// # Errors
    /// The process is another user's, or the caller lacks the right to look at `map_files` (root).
    pub fn memfd_held(&self, pid: Pid, maps: &[Mapping]) -> Result<u64> {
        let mut held = HashMap::new();
        self.add_memfds(pid, maps, &mut held)?;
        Ok(sum(held.values().copied()))
    }

    /// Adds the memfds that are not yet known by their inode, each with the bytes that it holds.
    fn add_memfds(&self, pid: Pid, maps: &[Mapping], held: &mut HashMap<u64, u64>) -> Result<()> {
        for mapping in maps.iter().filter(|mapping| mapping.name.starts_with("/memfd:")) {
            if held.contains_key(&mapping.inode) {
                continue;
            }
            let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
            let link = self.process_file(pid, &range);
            match std::fs::metadata(&link) {
                Ok(file) => drop(held.insert(mapping.inode, file.blocks().saturating_mul(BLOCK))),
                Err(error) => {
                    let error = Error::io("look at", link.display(), error);
                    if error.kind() != Kind::NotFound {
                        return Err(error.advise("run as root"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Memory of the process, bytes: its `Pss` and what its memfds hold that no page table has, so that each page of a
    /// memfd counts once. (Other shared memory that it maps is taken for a memfd's, so where it has both, less is
    /// added.) `None` where the kernel does not say (`/proc/PID/smaps_rollup`, Linux 4.14).
    ///
    /// # Errors
    /// The process has ended, or the caller may not look.
    pub fn memory(&self, pid: Pid) -> Result<Option<u64>> {
        let usage = self.smaps_rollup(pid)?;
        let held = self.memfd_held(pid, &self.maps(pid)?)?;
        Ok(usage.pss.map(|pss| pss.saturating_add(unmapped(held, usage.pss_shmem))))
    }

    /// Memory of several processes together, bytes: as [`Linux::memory`], where a memfd that several of them map counts
    /// once. Those that have ended meanwhile have none. `None` where none of them is left, or the kernel does not say.
    ///
    /// # Errors
    /// The caller may not look.
    pub fn memory_together(&self, pids: &[Pid]) -> Result<Option<u64>> {
        let (mut all, mut shared, mut held) = (None, 0, HashMap::new());
        for &pid in pids {
            let looked = self.smaps_rollup(pid).and_then(|usage| {
                let maps = self.maps(pid)?;
                self.add_memfds(pid, &maps, &mut held)?;
                Ok(usage)
            });
            match looked {
                Ok(usage) => {
                    add(&mut shared, usage.pss_shmem.unwrap_or(0));
                    all = usage.pss.map(|pss| sum([pss, all.unwrap_or(0)])).or(all);
                }
                Err(error) if matches!(error.kind(), Kind::Gone | Kind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let held = sum(held.into_values());
        Ok(all.map(|pss| sum([pss, unmapped(held, Some(shared))])))
    }
}

/// What of `held` bytes of memfds no page table has, where page tables have `mapped` bytes of shared memory.
pub fn unmapped(held: u64, mapped: Option<u64>) -> u64 {
    held.saturating_sub(mapped.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_hole_gives_pages_back_and_reads_as_zeros() {
        let file = create(c"test").unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let before = file.metadata().unwrap().blocks();
        punch_hole(&file, 0, 4096).unwrap();
        assert!(file.metadata().unwrap().blocks() < before);
        let mut bytes = [1; 4097];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[0], bytes[4096]), (0, 7));
    }

    #[test]
    fn pages_that_no_page_table_has_are_memory() {
        const PAGES: usize = 64;
        let file = create(c"unmapped").unwrap();
        file.write_all_at(&[7; PAGES * 4096], 0).unwrap();
        // SAFETY: a new mapping wherever the kernel has room.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGES * 4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(place, libc::MAP_FAILED);
        let me = Linux::live();
        let maps = me.maps(Pid::own()).unwrap();
        let own: Vec<_> = maps.into_iter().filter(|map| map.name.contains("unmapped")).collect();
        match me.memfd_held(Pid::own(), &own) {
            Ok(held) => assert_eq!(held, PAGES as u64 * 4096),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Permission, "{error}");
                eprintln!("skipped: {error}");
            }
        }
        assert_eq!(me.memfd_held(Pid::own(), &[]).unwrap(), 0);
        assert_eq!((unmapped(5, Some(3)), unmapped(5, Some(9)), unmapped(5, None)), (2, 0, 5));
        // SAFETY: the mapping made above, which nothing refers to any more.
        assert_eq!(unsafe { libc::munmap(place, PAGES * 4096) }, 0);
    }

    /// Their sum was a panic.
    #[test]
    fn memory_that_is_more_than_there_can_be_does_not_overflow() {
        let root = tempfile::tempdir().unwrap();
        let rollup = format!("0-1 ---p 0 00:00 0 [rollup]\nPss: {} kB\n", u64::MAX >> 10);
        for pid in ["1", "2"] {
            let process = root.path().join("proc").join(pid);
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("smaps_rollup"), &rollup).unwrap();
            std::fs::write(process.join("maps"), "").unwrap();
        }
        let all = Linux::at(root.path()).memory_together(&[Pid(1), Pid(2)]).unwrap();
        assert_eq!(all, Some(u64::MAX));
    }

    #[test]
    fn data_is_found_between_holes_piece_by_piece() {
        let file = create(c"test").unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[7; 4096], 1 << 30).unwrap();
        file.write_all_at(&vec![7; 3 << 19], 1 << 39).unwrap();
        let pieces = |range: Range<u64>| {
            let mut found = Vec::new();
            data(&file, range, |piece| {
                found.push(piece);
                Ok(())
            })
            .unwrap();
            found
        };
        let (first, second) = (1_u64 << 30, 1_u64 << 39);
        let all = [
            first..first + 4096,
            second..second + (1 << 20),
            second + (1 << 20)..second + (3 << 19),
        ];
        assert_eq!(pieces(0..1 << 40), all);
        assert_eq!(pieces(0..second), all[..1]);
        let within = second + 4096..second + 8192;
        assert_eq!(pieces(within.clone()), std::slice::from_ref(&within));
    }
}

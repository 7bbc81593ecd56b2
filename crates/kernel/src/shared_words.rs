//! Words in a shared file, seen by several processes at once.
//!
//! The file lives in memory (`/dev/shm`), belongs to its maker alone, and loses its name when the maker drops it; whoever has
//! it mapped keeps it. All access is by atomic words, so no process can find a word half written.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::{Error, Result};

/// The words, mapped.
#[derive(Debug)]
pub struct SharedWords {
    start: *const AtomicU64,
    count: usize,
    path: PathBuf,
    /// Kept so that nobody can shorten the file unseen by its last descriptor.
    _file: File,
}

impl SharedWords {
    /// Makes a new file of `count` words of zero. A file of that name must not exist.
    pub fn create(path: &Path, count: usize) -> Result<Self> {
        let failed = |error| Error::io("create", path.display(), error);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        let length = count * size_of::<AtomicU64>();
        let mapped = file.set_len(length as u64).map_err(failed).and_then(|()| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let fd = file.as_raw_fd();
            // All of it now: where memory runs out later, whoever writes there is killed.
            // SAFETY: an open descriptor and numbers.
            let full = unsafe { libc::posix_fallocate(fd, 0, length as libc::off_t) };
            if full != 0 {
                return Err(failed(std::io::Error::from_raw_os_error(full)));
            }
            // SAFETY: a new shared mapping, at an address of the kernel's choice, of a file that is that long.
            let start =
                unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, fd, 0) };
            if start == libc::MAP_FAILED {
                return Err(Error::last("map", path.display()));
            }
            Ok(start)
        });
        match mapped {
            Ok(start) => {
                Ok(Self { start: start.cast(), count, path: path.to_owned(), _file: file })
            }
            Err(error) => {
                // Nothing else can be done about a file that cannot be removed either.
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Where it is, for those who are to map it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, aligned to a page, and lives as long as `self`. Words that other
        // processes change are atomic. The file was made by us for us alone; who shortens it could as well kill us.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: made by `create` with this length; no reference outlives `self`.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.count * size_of::<AtomicU64>()) };
        // Who started us may have removed it before.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_is_written_shows_in_the_file_and_the_name_goes_with_the_maker() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("words");
        let shared = SharedWords::create(&path, 3).unwrap();
        assert!(SharedWords::create(&path, 3).is_err(), "made twice");
        shared.words()[2].store(77, Ordering::Relaxed);
        let mut bytes = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut bytes, 16).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 77);
        drop(shared);
        assert!(!path.exists());
    }
}

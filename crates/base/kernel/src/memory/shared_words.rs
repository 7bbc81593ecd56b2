//! Words in a shared file, seen by several processes at once.
//!
//! ```text
//!  /dev/shm/NAME.XXXXXX/words    in a locked room of its maker
//! ```
//!
//! The file loses its name when the maker drops it; whoever has it mapped keeps it. All access is by atomic words, so
//! no process can find a word half written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use crate::memory::mapped::Mapped;
use crate::process::locked_directory::LockedDirectory;
use crate::{Error, Kind, Result};

/// The words, mapped.
#[derive(Debug)]
pub struct SharedWords {
    memory: Mapped,
    count: usize,
    path: PathBuf,
    /// Kept so that nobody can shorten the file unseen by its last descriptor.
    _file: File,
    _directory: LockedDirectory,
}

impl SharedWords {
    /// Makes a file of `count` words of zero in a directory of its own, in the first of `places` that will have it.
    /// `name` is the beginning of the directory's.
    ///
    /// # Errors
    /// No place will have it: why each would not.
    pub fn create(places: &[&Path], name: &str, count: usize) -> Result<Self> {
        let mut refused = Vec::new();
        for place in places {
            let room = LockedDirectory::new_in(place, name)
                .map_err(|error| Error::io("make a directory in", place.display(), error));
            match room.and_then(|room| Self::in_directory(room, count)) {
                Ok(shared) => return Ok(shared),
                Err(error) => refused.push(error.to_string()),
            }
        }
        Err(Error::new(Kind::Other, "share memory as", name, refused.join("; ")))
    }

    fn in_directory(room: LockedDirectory, count: usize) -> Result<Self> {
        let path = room.path().join("words");
        let failed = |error| Error::io("create", path.display(), error);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        let length = count * size_of::<AtomicU64>();
        file.set_len(length as u64).map_err(failed)?;
        // All of it now: where memory runs out later, whoever writes there is killed.
        // SAFETY: an open descriptor and numbers.
        let full = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length as libc::off_t) };
        if full != 0 {
            return Err(failed(io::Error::from_raw_os_error(full)));
        }
        let memory = Mapped::file(file.as_fd(), 0, length)
            .map_err(|error| Error::io("map", path.display(), error))?;
        Ok(Self { memory, count, path, _file: file, _directory: room })
    }

    /// Where it is, for those who are to map it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, aligned to a page, and lives as long as `self`. Words that other
        // processes change are atomic. The file was made by us for us alone; who shortens it could as well kill us.
        unsafe { std::slice::from_raw_parts(self.memory.start().cast(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::process::Command;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_is_written_shows_in_the_file_and_the_name_goes_with_the_maker() {
        let place = tempfile::tempdir().unwrap();
        let shared = SharedWords::create(&[place.path()], "words", 3).unwrap();
        shared.words()[2].store(77, Ordering::Relaxed);
        let mut bytes = [0; 8];
        File::open(shared.path()).unwrap().read_exact_at(&mut bytes, 16).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 77);
        let mode = fs::metadata(shared.path().parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(shared);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_killed_makers_left_goes_and_what_living_ones_have_stays() {
        let place = tempfile::tempdir().unwrap();
        let create = || SharedWords::create(&[place.path()], "words", 3).unwrap();
        let living = create();
        // Killed: the lock is gone, the directory is not.
        let killed = place.path().join("words.killed");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join("words"), "left").unwrap();
        // What others may put there. A pipe would hold up who opens it.
        let others = ["words.1", "words", "wordsmith.1"].map(|name| place.path().join(name));
        assert!(Command::new("mkfifo").arg(&others[0]).status().unwrap().success());
        fs::write(&others[1], "somebody's").unwrap();
        fs::create_dir(&others[2]).unwrap();
        let second = create();
        assert_ne!(second.path(), living.path());
        assert!(living.path().exists() && !killed.exists());
        assert!(others.iter().all(|other| other.exists()));
    }

    #[test]
    fn where_one_place_will_not_have_it_the_next_one_does() {
        let place = tempfile::tempdir().unwrap();
        let nowhere = place.path().join("nowhere");
        let shared = SharedWords::create(&[&nowhere, place.path()], "words", 3).unwrap();
        assert!(shared.path().starts_with(place.path()));
        let error = SharedWords::create(&[&nowhere], "words", 3).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
}

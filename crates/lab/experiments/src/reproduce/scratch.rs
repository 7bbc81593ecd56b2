//! Scratch directories of a run. They go with it; those of runs that were killed go with the next one.
//!
//! ```text
//!  $TMPDIR/pagemill-reproduce-XXXXXX/lock    locked while the run that owns the directory lives
//! ```
//!
//! Always true: a directory has a lock file only once it is locked, and the kernel gives the lock back when its owner
//! is gone. What has none (just being made, or of an earlier version) or is another user's is left alone.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// How their names begin.
const PREFIX: &str = "pagemill-reproduce-";

/// A directory of this run; it goes when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    // After the directory: nobody else removes it meanwhile.
    _lock: File,
}

impl Scratch {
    /// An empty one, where temporary files are.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new() -> Result<Self> {
        Self::within(&std::env::temp_dir())
    }

    fn within(place: &Path) -> Result<Self> {
        let cannot = || format!("cannot make a scratch directory in {}", place.display());
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place);
        let directory = made.with_context(cannot)?;
        let (new, lock) = (directory.path().join("lock.new"), directory.path().join("lock"));
        let file = File::create(&new).with_context(cannot)?;
        file.lock().with_context(cannot)?;
        fs::rename(&new, lock).with_context(cannot)?;
        let user = fs::metadata(directory.path()).with_context(cannot)?.uid();
        sweep(place, user);
        Ok(Self { directory, _lock: file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes those of a user whose owners are gone. What cannot be removed now is left for the next run.
fn sweep(place: &Path, user: u32) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Of the entry itself: a link leads nowhere.
        let is_users = |about: fs::Metadata| about.is_dir() && about.uid() == user;
        if !ours || !entry.metadata().is_ok_and(is_users) {
            continue;
        }
        let path = entry.path();
        if let Ok(lock) = File::open(path.join("lock"))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_goes_with_the_next_and_what_lives_stays() {
        let room = tempfile::tempdir().unwrap();
        let lives = Scratch::within(room.path()).unwrap();
        fs::write(lives.path().join("input"), "x").unwrap();
        // As the kernel leaves one: the directory is there, its lock is given back.
        let Scratch { directory, _lock } = Scratch::within(room.path()).unwrap();
        let killed = directory.keep();
        fs::create_dir(killed.join("inner")).unwrap();
        fs::write(killed.join("inner/input"), "x").unwrap();
        drop(_lock);
        // One that is just being made, one of something else, and a link to one.
        let [bare, other] = [format!("{PREFIX}bare"), "else".to_owned()].map(|name| {
            let path = room.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        });
        fs::write(other.join("lock"), "").unwrap();
        std::os::unix::fs::symlink(&other, room.path().join(format!("{PREFIX}link"))).unwrap();
        let next = Scratch::within(room.path()).unwrap();
        assert!(!killed.exists());
        assert!(lives.path().join("input").exists() && next.path().join("lock").exists());
        assert!(bare.exists() && other.join("lock").exists());
        let user = fs::metadata(&bare).unwrap().uid();
        fs::write(bare.join("lock"), "").unwrap();
        sweep(room.path(), user + 1);
        assert!(bare.exists(), "it is another user's");
        sweep(room.path(), user);
        assert!(!bare.exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists() && lives.path().exists());
    }
}

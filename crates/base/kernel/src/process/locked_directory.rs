//! A directory of this process, which goes with it; what killed processes have left goes with the next one's.
//!
//! ```text
//!  PLACE/NAME.XXXXXX/    under a name that nobody can know before; open to its maker alone, who has it locked
//! ```
//!
//! Always true: the kernel gives the lock back when the maker is gone, in whichever namespace it was; what another user
//! has made is left alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tempfile::TempDir;

/// The directory; it goes when this is dropped.
#[derive(Debug)]
pub struct LockedDirectory {
    directory: TempDir,
    // After the directory: nobody else removes it meanwhile.
    _locked: File,
}

impl LockedDirectory {
    /// An empty one in `place`, where those of this name go first that killed processes of this user have left.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new_in(place: &Path, name: &str) -> io::Result<Self> {
        forget_the_dead(place, name);
        loop {
            let prefix = format!("{name}.");
            let mut builder = tempfile::Builder::new();
            builder.prefix(&prefix).permissions(fs::Permissions::from_mode(0o700));
            let directory = builder.tempdir_in(place)?;
            // Until it is locked another process may take it for one that was left, and remove it.
            match File::open(directory.path()) {
                Ok(locked) if locked.try_lock().is_ok() && directory.path().exists() => {
                    return Ok(Self { directory, _locked: locked });
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn forget_the_dead(place: &Path, name: &str) {
    let Ok(me) = fs::metadata("/proc/self").map(|own| own.uid()) else { return };
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let named = file_name
            .to_str()
            .is_some_and(|it| it.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
        // Of the entry itself: a link leads nowhere.
        let ours = named && entry.metadata().is_ok_and(|file| file.is_dir() && file.uid() == me);
        // It stays locked until it is gone.
        let left = ours.then(|| File::open(entry.path()).ok()).flatten();
        if let Some(_locked) = left.filter(|directory| directory.try_lock().is_ok()) {
            // It is tried again the next time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_makers_left_goes_with_the_next_and_what_lives_stays() {
        let place = tempfile::tempdir().unwrap();
        let new = || LockedDirectory::new_in(place.path(), "room").unwrap();
        let lives = new();
        fs::write(lives.path().join("input"), "x").unwrap();
        // As the kernel leaves one: the directory is there, its lock is given back.
        let LockedDirectory { directory, _locked } = new();
        let killed = directory.keep();
        fs::create_dir(killed.join("inner")).unwrap();
        fs::write(killed.join("inner/input"), "x").unwrap();
        drop(_locked);
        // One of something else, and a link to it.
        let other = place.path().join("rooms.1");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("input"), "x").unwrap();
        std::os::unix::fs::symlink(&other, place.path().join("room.link")).unwrap();
        let next = new();
        assert!(!killed.exists(), "it stayed");
        assert!(lives.path().join("input").exists() && next.path().exists());
        assert!(other.join("input").exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists() && lives.path().exists());
    }

    /// A run that began while another swept could not make its directory: it was gone before it was locked.
    #[test]
    fn many_that_begin_at_once_each_have_one() {
        let place = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let room = LockedDirectory::new_in(place.path(), "room").unwrap();
                        assert!(room.path().is_dir());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

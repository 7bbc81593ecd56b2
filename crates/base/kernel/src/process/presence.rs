//! Telling whether who left a note still lives: a file that a process holds locked for as long as it lives.
//!
//! ```text
//!  DIRECTORY/NAME.PID.N.alive     made by the process, mode 0600, locked (flock) until it ends or lets go
//! ```
//!
//! A process id says nothing to a reader in another PID namespace, and a start time nothing in another time namespace.
//! A lock belongs to the file, which all see alike, and the kernel drops it with the process, however that ends.
//!
//! The id in the file's name is for people. Nobody but the owner can open the file, so nobody else can hold its lock.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pagemill_model::Pid;

use crate::{Error, Result};

const EXTENSION: &str = "alive";

/// The mark of this process. Dropping it lets go.
#[derive(Debug)]
pub struct Presence {
    path: PathBuf,
    _locked: File,
}

impl Presence {
    /// Leaves a mark under `name` in `directory`, which exists. Descriptors are not passed on to programs.
    ///
    /// # Errors
    /// The directory cannot be written, or the mark not be locked.
    pub fn claim(directory: &Path, name: &str) -> Result<Self> {
        let pid = Pid::own();
        let mut attempt = 0_u32;
        loop {
            let path = directory.join(format!("{name}.{pid}.{attempt}.{EXTENSION}"));
            let mut options = File::options();
            let made = options.write(true).create_new(true).mode(0o600).open(&path);
            match made {
                Ok(file) => {
                    // A reader that looks just now has it for a moment; it is nobody's for longer.
                    file.lock().map_err(|error| Error::io("lock", path.display(), error))?;
                    return Ok(Self { path, _locked: file });
                }
                // Ours from before, of a dead process, or of one in another namespace with the same id.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => attempt += 1,
                Err(error) => return Err(Error::io("create", path.display(), error)),
            }
        }
    }

    /// What others ask [`lives`] about: a word without spaces.
    pub fn token(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_suffix(EXTENSION)?.strip_suffix('.')).unwrap_or_default()
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // A file that stays behind is unlocked, which says the same.
        let _ = fs::remove_file(&self.path);
    }
}

pub(crate) fn path(directory: &Path, token: &str) -> PathBuf {
    directory.join(format!("{token}.{EXTENSION}"))
}

/// Whether the process that left `token` lives. Who may not look is told that it does.
pub fn lives(directory: &Path, token: &str) -> bool {
    match File::open(path(directory, token)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Forgets a token whose process has ended.
pub fn forget(directory: &Path, token: &str) {
    // It may be gone already.
    let _ = fs::remove_file(path(directory, token));
}

/// The process id in a token, as its own namespace had it.
pub fn pid_of(token: &str) -> Option<Pid> {
    token.rsplit('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    #[test]
    fn it_lives_until_it_is_dropped_and_leaves_nothing() {
        let room = tempfile::tempdir().unwrap();
        let first = Presence::claim(room.path(), "loan").unwrap();
        let second = Presence::claim(room.path(), "loan").unwrap();
        let [one, other] = [first.token().to_owned(), second.token().to_owned()];
        assert_ne!(one, other);
        assert_eq!(pid_of(&one), Some(Pid::own()));
        assert!(lives(room.path(), &one) && lives(room.path(), &other));
        drop(first);
        assert!(!lives(room.path(), &one) && lives(room.path(), &other));
        drop(second);
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_mark_of_a_killed_process_is_dead() {
        let room = tempfile::tempdir().unwrap();
        let mark = room.path().join("loan.7.0.alive");
        // flock(1) holds the lock on a file that it makes, as a borrower in any namespace does.
        let mut holder = Command::new("flock")
            .args(["--exclusive", "--no-fork"])
            .arg(&mark)
            .args(["sh", "-c", "echo; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(lives(room.path(), "loan.7.0"));
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(!lives(room.path(), "loan.7.0"));
        forget(room.path(), "loan.7.0");
        assert!(!mark.exists());
    }

    #[test]
    fn nobody_else_can_open_it() {
        let room = tempfile::tempdir().unwrap();
        let mark = Presence::claim(room.path(), "loan").unwrap();
        let mode = fs::metadata(path(room.path(), mark.token())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

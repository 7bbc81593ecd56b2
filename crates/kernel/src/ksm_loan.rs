//! Borrowing `ksmd`: its settings are changed for a while and put back, whatever happens.
//!
//! Settings belong to the system and a borrower can be killed. So what was found is written to a
//! *journal* before the first change and removed after the last restore:
//!
//! ```text
//!  DIRECTORY/ksm.lock      taken (flock) around each step below
//!  DIRECTORY/ksm.journal   found run 0              the settings before the first borrower
//!                          found pages_to_scan 100
//!                          …
//!                          holder 1234 567890       each borrower: process id and start time
//! ```
//!
//! - *take*: whoever finds a journal whose holders have all ended restores it first. Then it is the
//!   first holder and writes what it found, or joins the living ones and what they found.
//! - *drop*: the last holder to leave restores and removes the journal; others only strike
//!   themselves out.
//! - *recover*: restores if a journal without a living holder is left over.
//!
//! Properties: as long as a setting differs from what the first borrower found, a journal says what
//! that was; a recycled process id is not taken for a holder.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::ksm::{Run, Settings};
use crate::{Error, Linux, Result};

/// One borrower: process id and start time in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    started: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Journal {
    found: Settings,
    holders: Vec<Holder>,
}

/// What [`Loan::take`] came to.
#[derive(Debug)]
pub enum Taken {
    /// `ksmd` runs already, by somebody else's will: its settings are not ours to change.
    Running(Settings),
    /// It is on loan until the value is dropped.
    Borrowed(Loan),
}

/// `ksmd` on loan. Dropping it puts the settings back.
#[derive(Debug)]
pub struct Loan {
    linux: Linux,
    directory: PathBuf,
    found: Settings,
    me: Holder,
}

impl Loan {
    /// Borrows `ksmd`; the journal lives in `directory`, which should not survive a reboot
    /// (`/run/pagemill`), as the settings do not.
    pub fn take(linux: &Linux, directory: &Path) -> Result<Taken> {
        // A borrower starts `ksmd` only while a journal exists, so this needs no lock: and hence no
        // right to take one.
        if Journal::load(directory)?.is_none() {
            let found = linux.ksm_settings()?;
            if found.run == Run::Merge {
                return Ok(Taken::Running(found));
            }
        }
        let _lock = Lock::take(directory)?;
        let mut journal = match living(linux, directory)? {
            Some(journal) => journal,
            None => Journal { found: linux.ksm_settings()?, holders: Vec::new() },
        };
        if journal.found.run == Run::Merge {
            return Ok(Taken::Running(journal.found));
        }
        let pid = std::process::id();
        let me = Holder { pid, started: Linux::live().stat(pid)?.started };
        journal.holders.push(me);
        journal.store(directory)?;
        let (linux, directory) = (linux.clone(), directory.to_owned());
        Ok(Taken::Borrowed(Self { linux, directory, found: journal.found, me }))
    }

    /// The settings before the first borrower.
    pub fn found(&self) -> &Settings {
        &self.found
    }

    /// Changes the settings for as long as the loan lasts.
    pub fn set(&self, settings: &Settings) -> Result<()> {
        self.linux.set_ksm_settings(settings)
    }

    /// Puts back what was found, now, and says whether that worked. Dropping does the same silently.
    pub fn give_back(self) -> Result<()> {
        let result = self.leave();
        std::mem::forget(self);
        result
    }

    fn leave(&self) -> Result<()> {
        let _lock = Lock::take(&self.directory)?;
        let Some(mut journal) = Journal::load(&self.directory)? else { return Ok(()) };
        journal.holders.retain(|holder| *holder != self.me && holder.lives());
        if journal.holders.is_empty() {
            journal.restore(&self.linux, &self.directory)
        } else {
            journal.store(&self.directory)
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Nobody is left to tell; a failed restore leaves the journal for `recover`.
        let _ = self.leave();
    }
}

/// Restores what a killed borrower left behind. `Some` is what was restored.
pub fn recover(linux: &Linux, directory: &Path) -> Result<Option<Settings>> {
    if left_over(directory)?.is_none() {
        return Ok(None);
    }
    let _lock = Lock::take(directory)?;
    let left = Journal::load(directory)?.filter(Journal::is_left_over);
    if left.is_some() {
        living(linux, directory)?;
    }
    Ok(left.map(|journal| journal.found))
}

/// The settings that a killed borrower should have restored, if there is one; changes nothing.
pub fn left_over(directory: &Path) -> Result<Option<Settings>> {
    Ok(Journal::load(directory)?.filter(Journal::is_left_over).map(|journal| journal.found))
}

/// The processes to which `ksmd` is on loan now; changes nothing.
pub fn borrowers(directory: &Path) -> Result<Vec<u32>> {
    let holders = Journal::load(directory)?.map(|journal| journal.holders).unwrap_or_default();
    Ok(holders.iter().filter(|holder| holder.lives()).map(|holder| holder.pid).collect())
}

/// The journal with its living holders. One without any is restored and gone.
fn living(linux: &Linux, directory: &Path) -> Result<Option<Journal>> {
    let Some(mut journal) = Journal::load(directory)? else { return Ok(None) };
    journal.holders.retain(Holder::lives);
    if journal.holders.is_empty() {
        journal.restore(linux, directory)?;
        return Ok(None);
    }
    Ok(Some(journal))
}

impl Holder {
    fn lives(&self) -> bool {
        Linux::live()
            .stat(self.pid)
            .is_ok_and(|stat| stat.started == self.started && stat.state != 'Z')
    }
}

impl Journal {
    fn path(directory: &Path) -> PathBuf {
        directory.join("ksm.journal")
    }

    fn is_left_over(&self) -> bool {
        !self.holders.iter().any(Holder::lives)
    }

    fn load(directory: &Path) -> Result<Option<Self>> {
        let path = Self::path(directory);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", path.display(), error)),
        };
        Self::parse(&text).map(Some).ok_or_else(|| {
            let remove = format!("set KSM as you want it, then run: rm {}", path.display());
            Error::malformed(path.display(), "it is no journal").advise(remove)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut found = String::new();
        let mut holders = Vec::new();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("found ") {
                found += line;
                found += "\n";
            } else {
                let (pid, started) = line.strip_prefix("holder ")?.split_once(' ')?;
                holders.push(Holder { pid: pid.parse().ok()?, started: started.parse().ok()? });
            }
        }
        Some(Self { found: Settings::parse(&found)?, holders })
    }

    /// Replaces the file whole: a reader sees the old or the new one, also after a crash.
    fn store(&self, directory: &Path) -> Result<()> {
        let mut text: String =
            self.found.to_text().lines().map(|line| format!("found {line}\n")).collect();
        for Holder { pid, started } in &self.holders {
            text += &format!("holder {pid} {started}\n");
        }
        let path = Self::path(directory);
        let fresh = path.with_extension("journal.new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|error| Error::io("write", path.display(), error))
    }

    /// Puts the settings back, then removes the journal: in this order, so that a failure or a kill
    /// between the two restores once too often and never once too seldom.
    fn restore(&self, linux: &Linux, directory: &Path) -> Result<()> {
        linux.set_ksm_settings(&self.found)?;
        let path = Self::path(directory);
        fs::remove_file(&path).map_err(|error| Error::io("remove", path.display(), error))
    }
}

/// Holds `ksm.lock` until dropped.
struct Lock {
    _file: File,
}

impl Lock {
    fn take(directory: &Path) -> Result<Self> {
        let advice = "KSM is set by root; see pagemill doctor";
        fs::create_dir_all(directory)
            .map_err(|error| Error::io("create", directory.display(), error).advise(advice))?;
        let path = directory.join("ksm.lock");
        let failed = |error| Error::io("lock", path.display(), error).advise(advice);
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A machine of its own: a copy of the snapshot's KSM directory, and a place for the journal.
    fn machine() -> (TempDir, Linux, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let to = linux.path("/sys/kernel/mm/ksm");
        fs::create_dir_all(&to).unwrap();
        let from = crate::fixtures::debian().path("/sys/kernel/mm/ksm");
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        // A real kernel answers a word with the line of words; a file keeps what was written.
        fs::remove_file(to.join("advisor_mode")).unwrap();
        let directory = root.path().join("run");
        (root, linux, directory)
    }

    fn fast(loan: &Loan) -> Settings {
        Settings { run: Run::Merge, pages_to_scan: 9999, ..loan.found().clone() }
    }

    fn borrow(linux: &Linux, directory: &Path) -> Loan {
        match Loan::take(linux, directory).unwrap() {
            Taken::Borrowed(loan) => loan,
            Taken::Running(settings) => panic!("ksmd is said to run: {settings:?}"),
        }
    }

    #[test]
    fn a_loan_that_is_dropped_restores_and_leaves_no_journal() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let loan = borrow(&linux, &directory);
        loan.set(&fast(&loan)).unwrap();
        assert_eq!(linux.ksm_settings().unwrap().pages_to_scan, 9999);
        assert_eq!(borrowers(&directory).unwrap(), [std::process::id()]);
        drop(loan);
        assert!(borrowers(&directory).unwrap().is_empty());
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert_eq!(left_over(&directory).unwrap(), None);
        assert!(!Journal::path(&directory).exists());
    }

    #[test]
    fn what_a_killed_borrower_left_is_restored_by_the_next_start() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let loan = borrow(&linux, &directory);
        loan.set(&fast(&loan)).unwrap();
        // Killed: nothing is dropped, and no living process has this start time.
        std::mem::forget(loan);
        let mut journal = Journal::load(&directory).unwrap().unwrap();
        journal.holders[0].started += 1;
        journal.store(&directory).unwrap();

        assert_eq!(left_over(&directory).unwrap(), Some(before.clone()));
        assert_eq!(recover(&linux, &directory).unwrap(), Some(before.clone()));
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert_eq!(recover(&linux, &directory).unwrap(), None, "once is enough");
    }

    #[test]
    fn a_new_borrower_after_a_killed_one_finds_the_true_settings() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let killed =
            Journal { found: before.clone(), holders: vec![Holder { pid: 1, started: 1 << 60 }] };
        Lock::take(&directory).unwrap();
        killed.store(&directory).unwrap();
        linux.set_ksm_run(Run::Merge).unwrap();

        let loan = borrow(&linux, &directory);
        assert_eq!(loan.found(), &before);
        loan.give_back().unwrap();
        assert_eq!(linux.ksm_settings().unwrap(), before);
    }

    #[test]
    fn of_two_borrowers_the_last_to_leave_restores() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let first = borrow(&linux, &directory);
        first.set(&fast(&first)).unwrap();
        // The parent of the tests stands for the second borrower: it lives on.
        let other = std::os::unix::process::parent_id();
        let started = Linux::live().stat(other).unwrap().started;
        let mut journal = Journal::load(&directory).unwrap().unwrap();
        journal.holders.push(Holder { pid: other, started });
        journal.store(&directory).unwrap();

        first.give_back().unwrap();
        assert_eq!(linux.ksm_settings().unwrap().run, Run::Merge, "the other one still needs it");
        assert_eq!(recover(&linux, &directory).unwrap(), None);

        let second = borrow(&linux, &directory);
        assert_eq!(second.found(), &before, "not what the first one had set");
        drop(second);
        assert_eq!(Journal::load(&directory).unwrap().unwrap().holders.len(), 1);
    }

    #[test]
    fn settings_of_a_running_ksmd_are_left_alone() {
        let (_root, linux, directory) = machine();
        linux.set_ksm_run(Run::Merge).unwrap();
        let before = linux.ksm_settings().unwrap();
        match Loan::take(&linux, &directory).unwrap() {
            Taken::Running(settings) => assert_eq!(settings, before),
            Taken::Borrowed(_) => panic!("it was borrowed"),
        }
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert!(!Journal::path(&directory).exists());
    }

    #[test]
    fn a_journal_that_cannot_be_read_stops_us_and_says_how_to_go_on() {
        let (_root, linux, directory) = machine();
        fs::create_dir_all(&directory).unwrap();
        fs::write(Journal::path(&directory), "hello\n").unwrap();
        let error = Loan::take(&linux, &directory).unwrap_err();
        assert!(error.to_string().contains("rm "), "{error}");
    }
}

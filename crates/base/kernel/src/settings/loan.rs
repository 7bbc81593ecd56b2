//! Borrowing settings of the system: they are changed for a while and put back, whatever happens.
//!
//! Settings belong to the system and a borrower can be killed. So what was found is written to a
//! *journal* before the first change and removed after the last restore:
//!
//! ```text
//!  DIRECTORY/NAME.lock       taken (flock) around each step below; only its owner can open it
//!  DIRECTORY/NAME.settings   found /proc/sys/vm/compaction_proactiveness 20     before the first borrower
//!                            …
//!                            holder NAME.1234.0        each borrower: its mark, a file that it keeps locked
//! ```
//!
//! - *take*: whoever finds a journal whose holders have all ended restores it first. Then it is the
//!   first holder and writes what it found, or joins the living ones and what they found. It removes what
//!   one left that was killed while it wrote the journal (`NAME.PID.new`).
//! - *drop*: the last holder to leave restores and removes the journal; others only strike
//!   themselves out.
//!   It needs no descriptor that was not there at the take, so a borrower that has used up its own can.
//! - *recover*: restores if a journal without a living holder is left over.
//!
//! Locks and marks, which somebody waits for or asks about by `flock`, are their owner's (0600). Journals and the
//! directory are everybody's to read, whatever the borrower's umask: the library in any user's program asks whether
//! `ksmd` is on loan, `doctor` and `tier status` what is. Nobody locks them, so who reads them can hold nobody up.
//!
//! What is borrowed is a [`Settings`]: [`Files`], each with one value, or a type that knows how its
//! settings hang together ([`crate::settings::ksm_loan`]).
//!
//! Properties: as long as a setting differs from what the first borrower found, a journal says what
//! that was. Whether a borrower lives is told by its mark ([`crate::process::presence`]), so the namespaces of who asks
//! do not matter. Nobody waits for the lock without a bound: who cannot borrow is told so, and who gives back does so
//! without it, for only a process that is stopped or stuck has it for longer than a moment.

use std::fmt::Debug;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pagemill_model::{Pid, whole};

use crate::process::presence::{self, Presence};
use crate::settings::thp::Choice;
use crate::{Error, Kind, Linux, Result};

/// How long the lock of a name is waited for. It is held for some file operations.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// How often it is asked for.
const PACE: Duration = Duration::from_millis(10);

/// Where journals live: a place that does not survive a reboot, as the settings do not.
pub fn directory(linux: &Linux) -> PathBuf {
    linux.path("/run/pagemill")
}

/// Settings that can be written down and put back.
pub trait Settings: Clone + Debug + PartialEq {
    /// Of the journal's file name.
    const EXTENSION: &'static str;

    /// As lines, which [`Settings::parse`] reads.
    fn to_text(&self) -> String;

    /// Reads what [`Settings::to_text`] wrote.
    fn parse(text: &str) -> Option<Self>;

    /// Puts them in force.
    ///
    /// # Errors
    /// A setting cannot be written.
    fn restore(&self, linux: &Linux) -> Result<()>;

    /// Adds those of a further borrower that this one does not have.
    fn join(&mut self, _further: Self) {}
}

/// Settings on loan. Dropping it puts them back.
#[derive(Debug)]
pub struct Loan<S: Settings> {
    linux: Linux,
    directory: PathBuf,
    name: String,
    found: S,
    /// None once it is given back.
    me: Option<Presence>,
    /// Kept open until it is given back, which takes as many.
    spare: Vec<File>,
}

/// Descriptors kept for giving back, one more than it takes: the lock, and the journal or a setting.
const SPARE: usize = 3;

impl<S: Settings> Loan<S> {
    /// Borrows what `find` finds, unless `refuse` says of what the first borrower found that it is
    /// not to be had; that is the `Err` of the inner result.
    pub(crate) fn take_unless(
        linux: &Linux,
        directory: &Path,
        name: &str,
        find: impl Fn() -> Result<S>,
        refuse: impl Fn(&S) -> bool,
    ) -> Result<std::result::Result<Self, S>> {
        let _lock = Lock::take(directory, name)?;
        // A journal is written under the lock only.
        whole::sweep(&Journal::<S>::path(directory, name));
        let mut journal = match living::<S>(linux, directory, name)? {
            Some(mut journal) => {
                journal.found.join(find()?);
                journal
            }
            None => Journal { found: find()?, holders: Vec::new() },
        };
        if refuse(&journal.found) {
            return Ok(Err(journal.found));
        }
        let me = Presence::claim(directory, name)?;
        let open = |_| File::open(directory);
        let spare = (0..SPARE).map(open).collect::<std::io::Result<_>>();
        let spare = spare.map_err(|error| Error::io("open", directory.display(), error))?;
        journal.holders.push(me.token().to_owned());
        journal.store(directory, name)?;
        let (linux, directory) = (linux.clone(), directory.to_owned());
        let (name, found, me) = (name.to_owned(), journal.found, Some(me));
        Ok(Ok(Self { linux, directory, name, found, me, spare }))
    }

    /// The settings before the first borrower.
    pub fn found(&self) -> &S {
        &self.found
    }

    pub(crate) fn linux(&self) -> &Linux {
        &self.linux
    }

    /// Puts back what was found, now, and says whether that worked. Dropping does the same silently.
    ///
    /// # Errors
    /// A setting cannot be written: the journal stays, for the next who comes.
    pub fn give_back(mut self) -> Result<()> {
        self.leave()
    }

    fn leave(&mut self) -> Result<()> {
        let Some(me) = self.me.take() else { return Ok(()) };
        self.spare.clear();
        let lock = Lock::take(&self.directory, &self.name);
        let Some(mut journal) = Journal::<S>::load(&self.directory, &self.name)? else {
            return Ok(());
        };
        journal.holders.retain(|holder| holder != me.token());
        journal.strike_out_the_dead(&self.directory);
        if journal.holders.is_empty() {
            journal.restore(&self.linux, &self.directory, &self.name)
        } else if lock.is_ok() {
            journal.store(&self.directory, &self.name)
        } else {
            // Others may be writing it. Our mark goes now, so they will find that we have left.
            Ok(())
        }
    }
}

#[cfg(test)]
impl<S: Settings> Loan<S> {
    /// As when the process is killed: its descriptors are closed, and nothing else happens.
    pub(crate) fn end_as_killed(mut self) {
        let me = self.me.take().unwrap();
        let mark = presence::path(&self.directory, me.token());
        drop(me);
        fs::write(mark, "").unwrap();
    }
}

impl<S: Settings> Drop for Loan<S> {
    fn drop(&mut self) {
        // Nobody is left to tell; a failed restore leaves the journal for `recover`.
        let _ = self.leave();
    }
}

/// Files of the kernel with the value that each had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files(Vec<(String, String)>);

impl Files {
    /// Reads the value of each file; one that this kernel does not have is left out.
    fn find(linux: &Linux, paths: &[&str]) -> Result<Self> {
        let mut files = Vec::new();
        for &path in paths {
            match linux.read(path) {
                Ok(text) => {
                    // A choice such as `always [madvise] never` is set by one of its words.
                    let value = Choice::parse(&text)
                        .map_or_else(|| text.trim().to_owned(), |choice| choice.active);
                    files.push((path.to_owned(), value));
                }
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(files))
    }

    /// The value that `path` had; `None` if this kernel does not have the file, or nobody borrowed it.
    pub fn value(&self, path: &str) -> Option<&str> {
        self.iter().find(|(file, _)| *file == path).map(|(_, value)| value)
    }

    /// Each file with its value, in the order in which they were borrowed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, value)| (path.as_str(), value.as_str()))
    }
}

impl Settings for Files {
    const EXTENSION: &'static str = "settings";

    fn to_text(&self) -> String {
        self.iter().map(|(path, value)| format!("{path} {value}\n")).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        // Nothing but the system's settings are restored.
        let line = |line: &str| {
            let (path, value) = line.split_once(' ')?;
            let ours = path.starts_with("/proc/") || path.starts_with("/sys/");
            let plain = ours && path.split('/').all(|part| part != "..");
            plain.then(|| (path.to_owned(), value.to_owned()))
        };
        text.lines().map(line).collect::<Option<_>>().map(Self)
    }

    /// All that can be restored is, whatever fails; the first failure is the result.
    fn restore(&self, linux: &Linux) -> Result<()> {
        let set = |(path, value)| linux.write(path, value);
        self.iter().map(set).fold(Ok(()), Result::and)
    }

    fn join(&mut self, further: Self) {
        for (path, value) in further.0 {
            if self.value(&path).is_none() {
                self.0.push((path, value));
            }
        }
    }
}

impl Loan<Files> {
    /// Borrows the files at `paths`, under `name`: borrowers of one name share a journal. Files that
    /// this kernel does not have are not among those that [`Loan::found`] lists.
    ///
    /// # Errors
    /// [`Kind::Busy`] if another kind of borrower has them; a file cannot be read, or the journal not be written.
    pub fn files(linux: &Linux, directory: &Path, name: &str, paths: &[&str]) -> Result<Self> {
        let find = || Files::find(linux, paths);
        let never = |_: &Files| false;
        Self::take_unless(linux, directory, name, find, never)?
            .map_err(|_| Error::new(Kind::Busy, "borrow", name, "it is not to be had"))
    }

    /// Writes `value` to one of the borrowed files, for as long as the loan lasts.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for a file that is not on loan; it cannot be written.
    pub fn set(&self, path: &str, value: &str) -> Result<()> {
        if self.found.value(path).is_none() {
            let reason = "this kernel does not have it, or it is not on loan";
            return Err(Error::new(Kind::Unsupported, "set", path, reason));
        }
        self.linux.write(path, value)
    }
}

/// Whether somebody borrows files under this name now, or has left them changed.
pub fn is_lent(directory: &Path, name: &str) -> bool {
    Journal::<Files>::path(directory, name).exists()
}

/// Restores every file that killed borrowers left changed, whatever the name of the loan. The names
/// and what was restored.
///
/// # Errors
/// A journal cannot be read, or a file not be restored.
pub fn recover_files(linux: &Linux, directory: &Path) -> Result<Vec<(String, Files)>> {
    of_each_name(directory, |name| recover(linux, directory, name))
}

/// The files that killed borrowers left changed, by the name of the loan; changes nothing.
///
/// # Errors
/// A journal cannot be read.
pub fn left_over_files(directory: &Path) -> Result<Vec<(String, Files)>> {
    of_each_name(directory, |name| left_over(directory, name))
}

fn of_each_name(
    directory: &Path,
    find: impl Fn(&str) -> Result<Option<Files>>,
) -> Result<Vec<(String, Files)>> {
    let found = |name: String| Ok(find(&name)?.map(|files| (name, files)));
    names(directory)?.into_iter().map(found).filter_map(Result::transpose).collect()
}

/// Loans of files that have a journal.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", directory.display(), error)),
    };
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(Files::EXTENSION)?.strip_suffix('.')?.to_owned())
    };
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort_unstable();
    Ok(names)
}

/// Restores what a killed borrower left behind. `Some` is what was restored.
pub(crate) fn recover<S: Settings>(
    linux: &Linux,
    directory: &Path,
    name: &str,
) -> Result<Option<S>> {
    if left_over::<S>(directory, name)?.is_none() {
        return Ok(None);
    }
    let _lock = Lock::take(directory, name)?;
    let left = Journal::<S>::load(directory, name)?.filter(|left| left.is_left_over(directory));
    if left.is_some() {
        living::<S>(linux, directory, name)?;
    }
    Ok(left.map(|journal| journal.found))
}

/// The settings that a killed borrower should have restored, if there is one; changes nothing.
pub(crate) fn left_over<S: Settings>(directory: &Path, name: &str) -> Result<Option<S>> {
    let journal = Journal::load(directory, name)?;
    Ok(journal.filter(|left| left.is_left_over(directory)).map(|journal| journal.found))
}

/// The processes that borrow `name` now; changes nothing.
pub(crate) fn borrowers<S: Settings>(directory: &Path, name: &str) -> Result<Vec<Pid>> {
    let holders = Journal::<S>::load(directory, name)?.map(|journal| journal.holders);
    let holders = holders.unwrap_or_default();
    let living = holders.iter().filter(|holder| presence::lives(directory, holder));
    Ok(living.filter_map(|holder| presence::pid_of(holder)).collect())
}

/// The journal with its living holders. One without any is restored and gone.
fn living<S: Settings>(linux: &Linux, directory: &Path, name: &str) -> Result<Option<Journal<S>>> {
    let Some(mut journal) = Journal::<S>::load(directory, name)? else { return Ok(None) };
    journal.strike_out_the_dead(directory);
    if journal.holders.is_empty() {
        journal.restore(linux, directory, name)?;
        return Ok(None);
    }
    Ok(Some(journal))
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Journal<S> {
    pub(crate) found: S,
    /// Marks of the borrowers.
    pub(crate) holders: Vec<String>,
}

impl<S: Settings> Journal<S> {
    pub(crate) fn path(directory: &Path, name: &str) -> PathBuf {
        directory.join(format!("{name}.{}", S::EXTENSION))
    }

    fn is_left_over(&self, directory: &Path) -> bool {
        !self.holders.iter().any(|holder| presence::lives(directory, holder))
    }

    fn strike_out_the_dead(&mut self, directory: &Path) {
        self.holders.retain(|holder| {
            let lives = presence::lives(directory, holder);
            if !lives {
                presence::forget(directory, holder);
            }
            lives
        });
    }

    pub(crate) fn load(directory: &Path, name: &str) -> Result<Option<Self>> {
        let path = Self::path(directory, name);
        if !is_there(directory)? {
            return Ok(None);
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", path.display(), error)),
        };
        Self::parse(&text).map(Some).ok_or_else(|| {
            let remove = format!("set {name} as you want it, then run: rm {}", path.display());
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
                let token = line.strip_prefix("holder ")?;
                // It becomes part of a path.
                let plain = !token.is_empty() && !token.contains(['/', ' ']);
                holders.push(plain.then(|| token.to_owned())?);
            }
        }
        Some(Self { found: S::parse(&found)?, holders })
    }

    /// Replaces the file whole: a reader sees the old or the new one, also after a crash.
    pub(crate) fn store(&self, directory: &Path, name: &str) -> Result<()> {
        let mut text: String =
            self.found.to_text().lines().map(|line| format!("found {line}\n")).collect();
        for holder in &self.holders {
            text += &format!("holder {holder}\n");
        }
        let path = Self::path(directory, name);
        let written = whole::replace(&path, text.as_bytes(), 0o644);
        written.map_err(|error| Error::io("write", path.display(), error))
    }

    /// Puts the settings back, then removes the journal: in this order, so that a failure or a kill
    /// between the two restores once too often and never once too seldom.
    fn restore(&self, linux: &Linux, directory: &Path, name: &str) -> Result<()> {
        self.found.restore(linux)?;
        let path = Self::path(directory, name);
        fs::remove_file(&path).map_err(|error| Error::io("remove", path.display(), error))
    }
}

/// Whether `directory` is there: root's or the caller's, and nobody else may write there. What another user put there
/// could keep whoever opens it waiting, or name settings to "restore".
fn is_there(directory: &Path) -> Result<bool> {
    let there = match fs::symlink_metadata(directory) {
        Ok(there) => there,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("use", directory.display(), error)),
    };
    let owned = there.uid() == 0 || there.uid() == rustix::process::geteuid().as_raw();
    if there.is_dir() && owned && there.mode() & 0o022 == 0 {
        return Ok(true);
    }
    let why = "it is no directory, is another user's, or others may write there: what it says cannot be believed";
    let remove = format!("remove it as root: rm -r {}", directory.display());
    Err(Error::new(Kind::Permission, "use", directory.display(), why).advise(remove))
}

/// Makes `directory` so that all may look into it, whatever the umask; one that is there stays as its maker has it.
///
/// # Errors
/// It cannot be made, or something else is there.
pub fn make(directory: &Path) -> Result<()> {
    if is_there(directory)? {
        return Ok(());
    }
    fs::create_dir_all(directory)
        .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
        .map_err(|error| Error::io("create", directory.display(), error).advise(AS_ROOT))
}

const AS_ROOT: &str = "run as root: the system's settings are root's to change";

/// Holds the lock of a name until dropped.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(directory: &Path, name: &str) -> Result<Self> {
        make(directory)?;
        let path = directory.join(format!("{name}.lock"));
        let failed = |error| Error::io("lock", path.display(), error).advise(AS_ROOT);
        let mut options = File::options();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(PACE),
                Err(TryLockError::WouldBlock) => {
                    let reason =
                        format!("another process has held it for {} s", PATIENCE.as_secs());
                    let find = format!("see who it is, and end it: fuser -v {}", path.display());
                    return Err(Error::new(Kind::Busy, "lock", path.display(), reason).advise(find));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";
    const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";

    /// A machine of its own with two settings, and a place for the journal.
    fn machine() -> (TempDir, Linux, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for (path, text) in [(PROACTIVENESS, "20\n"), (DEFRAG, "always defer [madvise] never\n")] {
            let path = linux.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let directory = directory(&linux);
        (root, linux, directory)
    }

    fn now(linux: &Linux, path: &str) -> String {
        linux.read(path).unwrap().trim().to_owned()
    }

    /// Whatever a journal named was written to.
    #[test]
    fn nothing_but_settings_of_the_system_is_restored() {
        let (_root, linux, directory) = machine();
        make(&directory).unwrap();
        for path in ["/etc/passwd", "/sys/../etc/passwd", "/proc/../run/x", "sys/x"] {
            let journal = Journal::<Files>::path(&directory, "frag");
            fs::write(&journal, format!("found {path} x\n")).unwrap();
            let refused = recover_files(&linux, &directory).unwrap_err();
            assert_eq!(refused.kind(), Kind::Malformed, "{path}");
            assert!(!linux.path("/etc").exists());
        }
    }

    #[test]
    fn a_loan_that_is_dropped_restores_a_number_and_a_choice_and_leaves_no_journal() {
        let (_root, linux, directory) = machine();
        let loan = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS, DEFRAG]).unwrap();
        loan.set(PROACTIVENESS, "0").unwrap();
        loan.set(DEFRAG, "never").unwrap();
        assert_eq!((now(&linux, PROACTIVENESS), now(&linux, DEFRAG)), ("0".into(), "never".into()));
        drop(loan);
        assert_eq!(
            (now(&linux, PROACTIVENESS), now(&linux, DEFRAG)),
            ("20".into(), "madvise".into())
        );
        assert_eq!(left_over_files(&directory).unwrap(), []);
        assert!(!Journal::<Files>::path(&directory, "frag").exists());
    }

    /// A borrower that was killed while it wrote the journal left a file that nobody removed.
    #[test]
    fn what_was_left_of_a_journal_is_swept_by_the_next_loan_of_that_name() {
        let (_root, linux, directory) = machine();
        make(&directory).unwrap();
        let left = |name: &str| directory.join(format!("{name}.4194305.new"));
        for name in ["frag", "thp"] {
            fs::write(left(name), "found").unwrap();
        }
        let loan = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap();
        assert!(!left("frag").exists() && left("thp").exists(), "others have another lock");
        loan.give_back().unwrap();
    }

    #[test]
    fn what_killed_borrowers_left_is_restored_by_the_next_start_under_every_name() {
        let (_root, linux, directory) = machine();
        for (name, path, value) in [("frag", PROACTIVENESS, "0"), ("thp", DEFRAG, "never")] {
            let loan = Loan::files(&linux, &directory, name, &[path]).unwrap();
            loan.set(path, value).unwrap();
            loan.end_as_killed();
        }
        assert_eq!(left_over_files(&directory).unwrap().len(), 2);
        let names: Vec<String> =
            recover_files(&linux, &directory).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["frag", "thp"]);
        assert_eq!(
            (now(&linux, PROACTIVENESS), now(&linux, DEFRAG)),
            ("20".into(), "madvise".into())
        );
        assert_eq!(recover_files(&linux, &directory).unwrap(), [], "once is enough");
    }

    #[test]
    fn of_two_borrowers_the_last_restores_and_a_file_of_the_second_one_is_remembered() {
        let (_root, linux, directory) = machine();
        let first = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap();
        first.set(PROACTIVENESS, "0").unwrap();
        let second = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS, DEFRAG]).unwrap();
        assert_eq!(second.found().value(PROACTIVENESS), Some("20"), "not what the first had set");
        second.set(DEFRAG, "never").unwrap();
        first.give_back().unwrap();
        assert_eq!(now(&linux, PROACTIVENESS), "0", "the second one still needs it");
        second.give_back().unwrap();
        assert_eq!(
            (now(&linux, PROACTIVENESS), now(&linux, DEFRAG)),
            ("20".into(), "madvise".into())
        );
    }

    #[test]
    fn a_file_that_this_kernel_lacks_is_not_on_loan_and_not_made() {
        let (_root, linux, directory) = machine();
        let absent = "/proc/sys/vm/percpu_pagelist_high_fraction";
        let loan = Loan::files(&linux, &directory, "pcp", &[absent, PROACTIVENESS]).unwrap();
        assert_eq!(loan.found().value(absent), None);
        assert_eq!(loan.set(absent, "8").unwrap_err().kind(), Kind::Unsupported);
        drop(loan);
        assert!(!linux.path(absent).exists());
    }

    #[test]
    fn a_journal_that_cannot_be_read_stops_us_and_says_how_to_go_on() {
        let (_root, linux, directory) = machine();
        fs::create_dir_all(&directory).unwrap();
        fs::write(Journal::<Files>::path(&directory, "frag"), "found nothing\n").unwrap();
        let error = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap_err();
        assert!(error.to_string().contains("rm "), "{error}");
        assert_eq!(now(&linux, PROACTIVENESS), "20");
    }

    #[test]
    fn who_finds_the_lock_taken_is_told_so_in_time_and_gives_back_all_the_same() {
        let (_root, linux, directory) = machine();
        let loan = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap();
        loan.set(PROACTIVENESS, "0").unwrap();
        let second = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap();
        let stuck = Lock::take(&directory, "frag").unwrap();
        let error = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().contains("fuser -v"), "{error}");
        loan.give_back().unwrap();
        assert_eq!(now(&linux, PROACTIVENESS), "0", "the second one still needs it");
        second.give_back().unwrap();
        assert_eq!(now(&linux, PROACTIVENESS), "20");
        assert!(!Journal::<Files>::path(&directory, "frag").exists());
        drop(stuck);
    }

    /// A root shell with umask 077 hid from the library of other users that `ksmd` was on loan.
    #[test]
    fn what_others_read_is_readable_and_what_is_locked_is_not() {
        const NAME: &str =
            "settings::loan::tests::what_others_read_is_readable_and_what_is_locked_is_not";
        if std::env::var_os("PAGEMILL_TEST_UMASK").is_none() {
            // The umask is the process's, and other tests are in it.
            for umask in ["077", "000"] {
                let mut shell = std::process::Command::new("sh");
                shell.arg("-c").arg(format!("umask {umask}; exec \"$0\" --exact {NAME}"));
                shell.arg(std::env::current_exe().unwrap()).env("PAGEMILL_TEST_UMASK", umask);
                let done = shell.output().unwrap();
                let said = String::from_utf8_lossy(&done.stdout);
                assert!(done.status.success() && said.contains("1 passed"), "{umask}: {said}");
            }
            return;
        }
        let (root, linux, _) = machine();
        let directory = root.path().join("run/pagemill");
        let loan = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o755);
        let mut kinds = std::collections::BTreeSet::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.extension().unwrap().to_str().unwrap().to_owned();
            let expected = if kind == "settings" { 0o644 } else { 0o600 };
            assert_eq!(mode(&path), expected, "{path:?}");
            kinds.insert(kind);
        }
        assert_eq!(kinds.len(), 3, "journal, lock and mark: {kinds:?}");
        loan.give_back().unwrap();
    }

    /// Root opened a FIFO that another user had put in place of the lock, and waited for ever; and a journal of theirs
    /// would have been "restored".
    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        let (_root, linux, directory) = machine();
        fs::create_dir_all(&directory).unwrap();
        let fifo = std::process::Command::new("mkfifo").arg(directory.join("frag.lock")).status();
        assert!(fifo.unwrap().success());
        let journal = Journal::<Files>::path(&directory, "frag");
        fs::write(&journal, format!("found {PROACTIVENESS} 99\n")).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap_err();
        assert!(format!("{refused:#}").contains("rm -r"), "{refused:#}");
        recover_files(&linux, &directory).unwrap_err();
        assert_eq!(now(&linux, PROACTIVENESS), "20");
    }

    #[test]
    fn nobody_else_can_open_the_lock_also_where_an_older_one_was_open_to_all() {
        let (_root, linux, directory) = machine();
        let mode = || {
            let lock = fs::metadata(directory.join("frag.lock")).unwrap();
            lock.permissions().mode() & 0o777
        };
        drop(Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap());
        assert_eq!(mode(), 0o600);
        let open = fs::Permissions::from_mode(0o644);
        fs::set_permissions(directory.join("frag.lock"), open).unwrap();
        drop(Loan::files(&linux, &directory, "frag", &[PROACTIVENESS]).unwrap());
        assert_eq!(mode(), 0o600);
    }
}

//! Files that are there whole or not at all: written beside their place, and put there when they are done. What was
//! there before stays until then, and stays if writing fails. `-` is standard output.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::NamedTempFile;

/// Refuses, before any work is done, what could not be written when it is done: a file that is there and not to be
/// replaced, a directory that is missing or that this user may not write to. What is no regular file is not opened.
///
/// # Errors
/// See above.
pub fn check(path: &Path, replaces: bool) -> Result<()> {
    let written_as_it_is = |there: fs::Metadata| !there.is_file() && !there.is_dir();
    if path == Path::new("-") || fs::metadata(path).is_ok_and(written_as_it_is) {
        return Ok(());
    }
    NewFile::create(path, replaces).map(drop)
}

/// A file in the making.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    replaces: bool,
    to: Destination,
}

#[derive(Debug)]
enum Destination {
    Beside(NamedTempFile),
    /// What is no regular file, such as a pipe or `/dev/stdout`, is written as it is.
    There(File),
}

impl NewFile {
    /// Refuses a file that is there, unless it is to be replaced.
    ///
    /// # Errors
    /// It is there and not to be replaced, is a directory, or cannot be made.
    pub fn create(path: &Path, replaces: bool) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if path == Path::new("-") {
            let output = crate::stdio::standard_output().as_fd().try_clone_to_owned();
            let to = Destination::There(output.context("cannot write to standard output")?.into());
            return Ok(Self { path: "standard output".into(), replaces, to });
        }
        let there = fs::metadata(path).ok();
        let to = match &there {
            Some(there) if there.is_dir() => {
                bail!("cannot write {}: it is a directory", path.display())
            }
            Some(there) if !there.is_file() => {
                Destination::There(File::options().write(true).open(path).with_context(cannot)?)
            }
            Some(_) if !replaces => bail!("{} exists (use -f to overwrite it)", path.display()),
            _ => {
                // A link stays a link.
                let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
                let mut builder = tempfile::Builder::new();
                // The user's umask takes from it.
                builder.prefix(".pagemill-").permissions(Permissions::from_mode(0o666));
                let made = builder.tempfile_in(directory.unwrap_or(Path::new(".")));
                Destination::Beside(made.map_err(unnamed).with_context(cannot)?)
            }
        };
        Ok(Self { path: path.to_owned(), replaces, to })
    }

    /// Another handle of it, for who takes one for good.
    ///
    /// # Errors
    /// No more files can be opened.
    pub fn handle(&self) -> Result<Handle> {
        let file = match &self.to {
            Destination::Beside(file) => file.as_file(),
            Destination::There(file) => file,
        };
        let file = file.try_clone();
        let file = file.with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(Handle { file, path: self.path.clone() })
    }

    /// Gives it these permissions, whatever the user's umask.
    ///
    /// # Errors
    /// They cannot be set.
    pub fn permit(&self, mode: u32) -> Result<()> {
        let Destination::Beside(file) = &self.to else { return Ok(()) };
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))
            .with_context(|| format!("cannot set who may read {}", self.path.display()))
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// It cannot be written, or has appeared meanwhile and is not to be replaced.
    pub fn finish(mut self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        self.to.writer().flush().with_context(cannot)?;
        let Destination::Beside(file) = self.to else { return Ok(()) };
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let put =
            if self.replaces { file.persist(&target) } else { file.persist_noclobber(&target) };
        put.map(drop).map_err(|error| error.error).with_context(cannot)
    }
}

/// A file in the making whose errors name it, whatever is between it and who reports them.
#[derive(Debug)]
pub struct Handle {
    file: File,
    path: PathBuf,
}

impl Handle {
    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
    }
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return written.map_err(|error| self.named(&error)),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.named(&error))
    }
}

impl Destination {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            // Its own errors would name the file beside.
            Self::Beside(file) => file.as_file_mut(),
            Self::There(file) => file,
        }
    }
}

/// The error without the name of the file in the making, of which a user knows nothing.
fn unnamed(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.rsplit_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause.to_owned()),
        None => error,
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.writer().flush()
    }
}

/// Its name, for who is told that it was written.
pub fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard output".into() } else { path.display().to_string() }
}

/// Writes a whole file.
///
/// # Errors
/// As of [`NewFile::create`] and [`NewFile::finish`]; it cannot be written.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>, replaces: bool) -> Result<()> {
    let mut file = NewFile::create(path, replaces)?;
    file.write_all(bytes.as_ref()).with_context(|| format!("cannot write {}", path.display()))?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_could_not_be_written_is_refused_before_and_nothing_is_left() {
        let room = tempfile::tempdir().unwrap();
        let said = |name: &str, replaces| {
            let checked = check(&room.path().join(name), replaces);
            checked.err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        assert!(said("missing/page.html", true).contains("cannot write"));
        assert!(said("", true).contains("directory"));
        assert_eq!(said("page.html", false), "");
        assert_eq!(names(room.path()), [""; 0]);
        fs::write(room.path().join("page.html"), "old").unwrap();
        assert!(said("page.html", false).contains("-f"));
        assert_eq!(said("page.html", true), "");
        assert_eq!(fs::read_to_string(room.path().join("page.html")).unwrap(), "old");
    }

    #[test]
    fn what_is_not_finished_leaves_what_was_there_and_nothing_else() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("page.html");
        write(&path, "old", false).unwrap();
        let mut half = NewFile::create(&path, true).unwrap();
        half.write_all(b"ne").unwrap();
        drop(half);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(room.path()), ["page.html"]);
        write(&path, "new", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let error = write(&path, "again", false).unwrap_err().to_string();
        assert!(error.contains("-f"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn an_error_names_the_file_that_was_asked_for_and_no_other() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("none").join("page.html");
        let error = format!("{:#}", write(&path, "text", false).unwrap_err());
        assert!(error.contains("page.html") && !error.contains(".pagemill-"), "{error}");
    }

    #[test]
    fn what_appears_meanwhile_is_not_overwritten() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("page.html");
        let file = NewFile::create(&path, false).unwrap();
        fs::write(&path, "somebody's").unwrap();
        file.finish().unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        assert_eq!(names(room.path()), ["page.html"]);
    }

    #[test]
    fn a_link_stays_a_link_and_a_full_device_is_an_error() {
        let room = tempfile::tempdir().unwrap();
        let (file, link) = (room.path().join("file"), room.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "new", true).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write(Path::new("/dev/full"), "much", true).unwrap_err();
        write(Path::new("/dev/null"), "much", false).unwrap();
    }
}

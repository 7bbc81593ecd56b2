//! Files that are read whole, though anybody may have made them: never more of one than is said, and where a stranger
//! may have chosen what there is, nothing but a regular file: to open another may wait for ever (a pipe), or do
//! something (a device). And files that are replaced whole.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Bytes of a header, a profile, costs and the like.
pub const TEXT: u64 = 64 << 20;
/// Bytes of a part of a recording, a trace or a perf.data.
pub const DATA: u64 = 4 << 30;

/// The bytes of a file, or an error if they are more than `most`, as those of `/dev/zero` are.
///
/// # Errors
/// It cannot be read, or is longer.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes, so it is not what is asked for here");
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The same, or an error if it is no regular file.
///
/// # Errors
/// As of [`read`]; it is no regular file.
pub fn regular(path: &Path, most: u64) -> Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    read(path, most)
}

/// The bytes of an ELF file; `None` of any other, which is not read.
pub fn elf(path: &Path) -> Option<Vec<u8>> {
    const MAGIC: &[u8; 4] = b"\x7fELF";
    // The kernel's own memory has a file, too, of a terabyte and more.
    let there = std::fs::metadata(path).ok()?;
    let mut begins = [0; MAGIC.len()];
    (there.is_file() && there.len() <= DATA)
        .then(|| File::open(path).ok()?.read_exact(&mut begins).ok())??;
    (begins == *MAGIC).then(|| read(path, DATA).ok())?
}

/// The same as [`read`], of text.
///
/// # Errors
/// Those of [`read`], and where it is not UTF-8.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(read(path, TEXT)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is no text"))
}

/// Puts a whole file in place, with these permissions, whatever the umask: a reader sees the old one or the new one,
/// also after a crash, for it is on the disk before it has its name. On an error the old one stays, and nothing else is
/// left; who is killed leaves a file for [`sweep`].
///
/// The parts and the header of a recording have the permissions of the umask, and are not waited for until the disk has
/// them: their checksums say what a crash left whole.
///
/// # Errors
/// It cannot be written or renamed.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let fresh = path.with_extension(format!("{}.{FRESH}", std::process::id()));
    put(path, &fresh, |file| {
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// Of the names of files that [`replace`] has not finished: `NAME.PID.new`, beside `NAME.EXTENSION`.
const FRESH: &str = "new";

/// Removes what was left beside a file by those who were killed while they replaced it. For whoever knows that nobody
/// is replacing it at this moment.
pub fn sweep(path: &Path) {
    let (Some(directory), Some(stem)) = (path.parent(), path.file_stem()) else { return };
    let is_left = |name: &OsStr| {
        let name = name.as_encoded_bytes().strip_prefix(stem.as_encoded_bytes());
        let number = name.and_then(|name| {
            name.strip_prefix(b".")?.strip_suffix(FRESH.as_bytes())?.strip_suffix(b".")
        });
        number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if is_left(&entry.file_name()) {
            // It may be gone already.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes a file under the name `fresh`, then gives it the name `path`. On an error nothing is left.
pub(crate) fn put(
    path: &Path,
    fresh: &Path,
    write: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let written = File::create(fresh).and_then(|mut file| write(&mut file));
    written.and_then(|()| std::fs::rename(fresh, path)).inspect_err(|_| {
        // Nobody would miss half a file.
        let _ = std::fs::remove_file(fresh);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("costs.json");
        replace(&file, b"old", 0o600).unwrap();
        replace(&file, b"new", 0o644).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let taken = room.path().join("taken.json");
        std::fs::create_dir(&taken).unwrap();
        assert!(replace(&taken, b"new", 0o644).is_err());
        assert_eq!(std::fs::read_dir(room.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn what_a_killed_writer_left_is_swept_and_nothing_else() {
        let room = tempfile::tempdir().unwrap();
        let left = ["costs.17.new", "costs.4194304.new"];
        let others = ["costs.json", "costs.new", "costs.x.new", "costs.17.0.new", "cost.17.new"];
        for name in left.into_iter().chain(others) {
            std::fs::write(room.path().join(name), "").unwrap();
        }
        sweep(&room.path().join("costs.json"));
        for (names, there) in [(&left[..], false), (&others[..], true)] {
            for name in names {
                assert_eq!(room.path().join(name).exists(), there, "{name}");
            }
        }
        sweep(&room.path().join("absent/costs.json"));
    }

    /// A recording that named a pipe as a file of the program was read for ever, and of `/dev/zero` 4 GiB were.
    #[test]
    fn what_a_stranger_names_is_read_if_it_is_a_regular_file() {
        let room = tempfile::tempdir().unwrap();
        let pipe = room.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, room.path(), Path::new("/dev/zero")] {
            let refused = regular(path, DATA).unwrap_err().to_string();
            assert_eq!(refused, "it is no regular file", "{}", path.display());
            assert_eq!(elf(path), None, "{}", path.display());
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(elf(&own), Some(std::fs::read(&own).unwrap()));
        let text = room.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        assert_eq!(elf(&text), None);
        assert_eq!(regular(&text, TEXT).unwrap(), b"no program");
    }

    #[test]
    fn a_file_without_end_and_one_that_is_no_text_are_refused() {
        let endless = read(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        assert!(endless.to_string().contains("longer than 65536 bytes"), "{endless}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a\xff").unwrap();
        assert_eq!(read(file.path(), 2).unwrap(), b"a\xff");
        assert!(text(file.path()).unwrap_err().to_string().ends_with("no text"));
    }
}

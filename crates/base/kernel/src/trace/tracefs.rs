//! Tracepoints of the kernel, written down for a while (Documentation/trace/ftrace.rst): an instance
//! of the tracer of our own, so that nobody else's tracing is disturbed.
//!
//! It needs root. Where tracefs is not mounted it is reached through a mount without a place in the
//! tree. Who made an instance keeps its directory locked (flock) while it lives, so that the next one removes what a
//! killed process left and nothing else: a process id would say nothing to who starts in another PID namespace.

use std::fs::{self, File, TryLockError};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use crate::settings::mount::detached;
use crate::{Error, Kind, Linux, Result};

const DIRECTORY: &str = "/sys/kernel/tracing";
const PREFIX: &str = "pagemill-";

/// An instance of the tracer, in which some tracepoints are on. Dropping it removes it.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    /// The directory, locked: others see that it is in use.
    _lock: File,
    _mount: Option<OwnedFd>,
}

/// How a compaction of a zone ended: `compaction:mm_compaction_end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionEnd {
    /// First page frame of the zone.
    pub zone_start: u64,
    /// Where the scanner for pages to move away was.
    pub migrate: u64,
    /// Where the scanner for places to move them to was.
    pub free: u64,
    /// The page frame after the zone's last one.
    pub zone_end: u64,
    /// `complete`, `partial_skipped`, `success`, `contended`, …
    pub status: String,
}

impl CompactionEnd {
    /// A line of the trace, if it tells of one.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once("mm_compaction_end: ")?;
        let field = |name: &str| {
            let word = fields.split([' ', ',']).find_map(|word| word.strip_prefix(name))?;
            word.strip_prefix('=')
        };
        let frame = |name| u64::from_str_radix(field(name)?.strip_prefix("0x")?, 16).ok();
        Some(Self {
            zone_start: frame("zone_start")?,
            migrate: frame("migrate_pfn")?,
            free: frame("free_pfn")?,
            zone_end: frame("zone_end")?,
            status: field("status")?.to_owned(),
        })
    }
}

impl Trace {
    /// Turns tracepoints on; each is a directory below `events`, such as
    /// `compaction/mm_compaction_end`.
    ///
    /// # Errors
    /// The kernel has no tracefs or no such event, or the caller is not root.
    pub fn start(linux: &Linux, events: &[&str]) -> Result<Self> {
        let (root, mount) = root(linux)?;
        let instances = root.join("instances");
        remove_left_over(&instances);
        let (directory, lock) = instance(&instances)?;
        let trace = Self { directory, _lock: lock, _mount: mount };
        let failed = |action, path: &PathBuf, error| Error::io(action, path.display(), error);
        for event in events {
            let path = trace.directory.join("events").join(event).join("enable");
            fs::write(&path, "1").map_err(|error| failed("turn on", &path, error))?;
        }
        Ok(trace)
    }

    /// What has been written down so far, one line an event.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn lines(&self) -> Result<Vec<String>> {
        let path = self.directory.join("trace");
        let text = fs::read(&path).map_err(|error| Error::io("read", path.display(), error))?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    }

    /// The compactions of zones that have ended so far.
    ///
    /// # Errors
    /// As of [`Trace::lines`].
    pub fn compactions(&self) -> Result<Vec<CompactionEnd>> {
        Ok(self.lines()?.iter().filter_map(|line| CompactionEnd::parse(line)).collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Nobody is left to tell; the next start removes it.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Removes the instances whose makers have ended.
fn remove_left_over(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let left = || File::open(entry.path()).ok().filter(|file| file.try_lock().is_ok());
        if ours && left().is_some() {
            // Somebody else may have removed it first.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A new instance and its lock.
fn instance(instances: &Path) -> Result<(PathBuf, File)> {
    let pid = std::process::id();
    let mut attempt = 0_u32;
    loop {
        let directory = instances.join(format!("{PREFIX}{pid}.{attempt}"));
        attempt += 1;
        match fs::create_dir(&directory) {
            Ok(()) => {}
            // Of this process, or of one in another namespace with the same id.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io("create", directory.display(), error)),
        }
        // Whoever starts at the same moment may have found it unlocked, and removed it.
        let locked = File::open(&directory).and_then(|file| match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match locked {
            Ok(Some(file)) if directory.exists() => return Ok((directory, file)),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let _ = fs::remove_dir(&directory);
                return Err(Error::io("lock", directory.display(), error));
            }
            _ => {}
        }
    }
}

/// The number that perf events know a tracepoint by; it is a directory below `events`.
///
/// # Errors
/// The kernel has no tracefs or no such event, or the caller is not root.
pub fn number(linux: &Linux, event: &str) -> Result<u64> {
    let (root, _mount) = root(linux)?;
    let path = root.join("events").join(event).join("id");
    let text =
        fs::read_to_string(&path).map_err(|error| Error::io("read", path.display(), error))?;
    text.trim().parse().map_err(|_| Error::malformed(path.display(), format_args!("{text:?}")))
}

/// The directory of tracefs, and our own mount of it if it is not mounted.
fn root(linux: &Linux) -> Result<(PathBuf, Option<OwnedFd>)> {
    let mounted = linux.path(DIRECTORY);
    if mounted.join("instances").exists() {
        return Ok((mounted, None));
    }
    if !linux.is_live() {
        let reason = "a snapshot has no tracepoints";
        return Err(Error::new(Kind::Unsupported, "open", mounted.display(), reason));
    }
    let mount = detached(c"tracefs", "boot a kernel with CONFIG_FTRACE=y, 5.2 or newer")?;
    Ok((format!("/proc/self/fd/{}", mount.as_raw_fd()).into(), Some(mount)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_compaction_reads() {
        let line = "            bash-4711    [001] .....  8123.456789: mm_compaction_end: zone_start=0x100000 \
                    migrate_pfn=0x10a400 free_pfn=0x63fe00 zone_end=0x640000, mode=sync  status=contended";
        let end = CompactionEnd::parse(line).unwrap();
        assert_eq!((end.zone_start, end.zone_end), (0x10_0000, 0x64_0000));
        assert_eq!((end.migrate, end.free), (0x10_a400, 0x63_fe00));
        assert_eq!(end.status, "contended");
        assert_eq!(CompactionEnd::parse("x: mm_compaction_begin: zone_start=0x1"), None);
    }

    #[test]
    fn a_snapshot_has_no_tracepoints() {
        let root = tempfile::tempdir().unwrap();
        let error = Trace::start(&Linux::at(root.path()), &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }

    /// What a process of another PID namespace used was removed under it: here its id is nobody's.
    #[test]
    fn an_instance_in_use_stays_whatever_its_makers_id_is_here_and_one_left_over_goes() {
        let root = tempfile::tempdir().unwrap();
        let instances = root.path().join("sys/kernel/tracing/instances");
        let [used, left, other] =
            ["pagemill-4194305", "pagemill-4194306", "trace-cmd"].map(|name| instances.join(name));
        for directory in [&used, &left, &other] {
            fs::create_dir_all(directory).unwrap();
        }
        let user = File::open(&used).unwrap();
        user.lock().unwrap();
        let linux = Linux::at(root.path());
        let [first, second] = [(); 2].map(|()| Trace::start(&linux, &[]).unwrap());
        let there = [&used, &left, &other, &first.directory, &second.directory];
        assert_eq!(there.map(|directory| directory.exists()), [true, false, true, true, true]);
        let made = first.directory.clone();
        drop(first);
        assert!(!made.exists());
    }
}

//! Tracepoints of the kernel, written down for a while (Documentation/trace/ftrace.rst): an instance
//! of the tracer of our own, so that nobody else's tracing is disturbed.
//!
//! It needs root. Where tracefs is not mounted it is reached through a mount without a place in the
//! tree. An instance is named after its process; the next one removes what a killed process left.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use crate::mount::detached;
use crate::{Error, Kind, Linux, Result};

const DIRECTORY: &str = "/sys/kernel/tracing";
const PREFIX: &str = "pagemill-";

/// An instance of the tracer, in which some tracepoints are on. Dropping it removes it.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
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

impl Trace {
    /// Turns tracepoints on; each is a directory below `events`, such as
    /// `compaction/mm_compaction_end`.
    pub fn start(linux: &Linux, events: &[&str]) -> Result<Self> {
        let (root, mount) = root(linux)?;
        let instances = root.join("instances");
        let failed = |action, path: &PathBuf, error| Error::io(action, path.display(), error);
        for entry in fs::read_dir(&instances).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            if pid.is_some_and(|pid: u32| Linux::live().stat(pid).is_err()) {
                // Somebody else may have removed it first.
                let _ = fs::remove_dir(entry.path());
            }
        }
        let directory = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| failed("create", &directory, error))?;
        let trace = Self { directory, _mount: mount };
        for event in events {
            let path = trace.directory.join("events").join(event).join("enable");
            fs::write(&path, "1").map_err(|error| failed("turn on", &path, error))?;
        }
        Ok(trace)
    }

    /// What has been written down so far, one line an event.
    pub fn lines(&self) -> Result<Vec<String>> {
        let path = self.directory.join("trace");
        let text = fs::read(&path).map_err(|error| Error::io("read", path.display(), error))?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    }

    /// The compactions of zones that have ended so far.
    pub fn compactions(&self) -> Result<Vec<CompactionEnd>> {
        Ok(self.lines()?.iter().filter_map(|line| parse_compaction_end(line)).collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Nobody is left to tell; the next start removes it.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// The number that perf events know a tracepoint by; it is a directory below `events`.
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

fn parse_compaction_end(line: &str) -> Option<CompactionEnd> {
    let (_, fields) = line.split_once("mm_compaction_end: ")?;
    let field = |name: &str| {
        let word = fields.split([' ', ',']).find_map(|word| word.strip_prefix(name))?;
        word.strip_prefix('=')
    };
    let frame = |name| u64::from_str_radix(field(name)?.strip_prefix("0x")?, 16).ok();
    Some(CompactionEnd {
        zone_start: frame("zone_start")?,
        migrate: frame("migrate_pfn")?,
        free: frame("free_pfn")?,
        zone_end: frame("zone_end")?,
        status: field("status")?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_compaction_reads() {
        let line = "            bash-4711    [001] .....  8123.456789: mm_compaction_end: zone_start=0x100000 \
                    migrate_pfn=0x10a400 free_pfn=0x63fe00 zone_end=0x640000, mode=sync  status=contended";
        let end = parse_compaction_end(line).unwrap();
        assert_eq!((end.zone_start, end.zone_end), (0x10_0000, 0x64_0000));
        assert_eq!((end.migrate, end.free), (0x10_a400, 0x63_fe00));
        assert_eq!(end.status, "contended");
        assert_eq!(parse_compaction_end("x: mm_compaction_begin: zone_start=0x1"), None);
    }

    #[test]
    fn a_snapshot_has_no_tracepoints() {
        let root = tempfile::tempdir().unwrap();
        let error = Trace::start(&Linux::at(root.path()), &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}

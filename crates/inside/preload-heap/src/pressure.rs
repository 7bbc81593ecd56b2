//! How short memory is: the share of time that tasks stall on it (PSI), and the cgroup's charge.
//!
//! The files are opened once, by the helper, and read again each round. Version 2 of the control groups is asked first,
//! then version 1; without either, or without PSI, there is no pressure to see.

use core::ffi::CStr;
use core::fmt::Write;

use pagemill_preload_sys::sys;

use crate::environment;
use crate::line::Line;

/// The files, where they exist.
#[derive(Debug)]
pub(crate) struct Pressure {
    stalls: Option<i32>,
    usage: Option<i32>,
    limit: Option<i32>,
    last: Option<(u64, u64)>,
    share: u32,
}

fn open(path: &CStr) -> Option<i32> {
    let fd = sys::open(path, sys::O_RDONLY);
    (!sys::failed(fd)).then_some(fd as i32)
}

/// Opens `root` + `group` + `file`.
fn open_in(root: &str, group: &str, file: &str) -> Option<i32> {
    let mut path = Line::new();
    // A path that does not fit is cut off and then not found.
    let _ = write!(path, "{root}{group}/{file}\0");
    open(CStr::from_bytes_with_nul(path.bytes()).ok()?)
}

impl Pressure {
    /// Opens what there is.
    pub(crate) fn open() -> Self {
        let mut buffer = [0; 1024];
        let len = environment::read_file(c"/proc/self/cgroup", &mut buffer);
        let groups = core::str::from_utf8(&buffer[..len]).unwrap_or_default();
        // Lines of "number:controllers:path"; version 2 has no controllers.
        let of = |wanted: &str| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let named = parts.next()?.split(',').any(|name| name == wanted);
                let path = parts.next()?;
                named.then_some(if path == "/" { "" } else { path })
            })
        };
        // In a container the path is that of the host, and the root is the group itself.
        let find = |root: &str, group: Option<&str>, file: &str| {
            open_in(root, group?, file).or_else(|| open_in(root, "", file))
        };
        let (second, first) = (of(""), of("memory"));
        let (v2, v1) = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory");
        Self {
            stalls: find(v2, second, "memory.pressure").or_else(|| open(c"/proc/pressure/memory")),
            usage: find(v2, second, "memory.current")
                .or_else(|| find(v1, first, "memory.usage_in_bytes")),
            limit: find(v2, second, "memory.max")
                .or_else(|| find(v1, first, "memory.limit_in_bytes")),
            last: None,
            share: 0,
        }
    }

    /// Thousandths of the last seconds for which some task stalled on memory.
    pub(crate) fn stalled(&mut self, now_ns: u64) -> u32 {
        const WINDOW_NS: u64 = 2_000_000_000;
        let Some(fd) = self.stalls else { return 0 };
        let mut buffer = [0; 256];
        // "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", microseconds.
        let total = sys::text_of(fd, &mut buffer)
            .lines()
            .find(|line| line.starts_with("some"))
            .and_then(|line| line.rsplit_once("total="))
            .and_then(|(_, number)| number.trim().parse::<u64>().ok());
        let Some(total) = total else { return 0 };
        match self.last {
            Some((then, before)) if now_ns.saturating_sub(then) >= WINDOW_NS => {
                let stalled_ns = total.saturating_sub(before).saturating_mul(1000);
                self.share = (stalled_ns.saturating_mul(1000) / (now_ns - then)).min(1000) as u32;
                self.last = Some((now_ns, total));
            }
            Some(_) => {}
            None => self.last = Some((now_ns, total)),
        }
        self.share
    }

    /// What the cgroup is charged and what it may be; no limit is `u64::MAX`.
    pub(crate) fn charge(&self) -> (u64, u64) {
        let number = |fd: Option<i32>| {
            let mut buffer = [0; 32];
            sys::text_of(fd?, &mut buffer).trim().parse::<u64>().ok()
        };
        match (number(self.usage), number(self.limit)) {
            // Version 1 writes a number near the top of 63 bits where there is no limit.
            (Some(usage), Some(limit)) if limit < 1 << 60 => (usage, limit),
            _ => (0, u64::MAX),
        }
    }
}

//! Pressure stall information (Documentation/accounting/psi.rst): how much time tasks lose waiting
//! for memory, CPU or I/O, for the system or one cgroup.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Kind, Linux, Result};

const ADVICE: &str = "boot with psi=1 on the kernel's command line";

/// What tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A processor.
    Cpu,
    /// Memory: reclaim, refaults, swap-in.
    Memory,
    /// A block device.
    Io,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// Which stalls: by who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// At least one task.
    Some,
    /// All runnable tasks at once.
    Full,
}

/// One line of a pressure file. Averages are percent of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Over the last 10 s.
    pub avg10: f64,
    /// Over the last 60 s.
    pub avg60: f64,
    /// Over the last 300 s.
    pub avg300: f64,
    /// In total since boot.
    pub total: Duration,
}

/// One pressure file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// Time in which at least one task waited.
    pub some: Stall,
    /// Time in which all waited; the kernel does not print it for everything.
    pub full: Option<Stall>,
}

impl Linux {
    /// Pressure of the whole system.
    ///
    /// # Errors
    /// The kernel keeps no such statistics, or the file is not of the form that is known.
    pub fn pressure(&self, resource: Resource) -> Result<Pressure> {
        read_file(&self.pressure_file(resource))
    }

    /// The system's pressure file, for [`Trigger::open`].
    pub fn pressure_file(&self, resource: Resource) -> PathBuf {
        self.path(format!("/proc/pressure/{}", resource.name()))
    }
}

/// Pressure that a cgroup's own file states, such as `memory.pressure` of a version 2 group.
///
/// # Errors
/// As of [`Linux::pressure`].
pub fn read_file(path: &Path) -> Result<Pressure> {
    // With psi=0 the file exists and reading it fails with EOPNOTSUPP.
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::io("read", path.display(), error).advise(ADVICE))?;
    parse(&text).ok_or_else(|| Error::malformed(path.display(), format_args!("{text:?}")))
}

fn parse(text: &str) -> Option<Pressure> {
    let line = |who: &str| {
        let mut words = text.lines().find_map(|line| line.strip_prefix(who))?.split_whitespace();
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        Some(Stall {
            avg10: value("avg10")?.parse().ok()?,
            avg60: value("avg60")?.parse().ok()?,
            avg300: value("avg300")?.parse().ok()?,
            total: Duration::from_micros(value("total")?.parse().ok()?),
        })
    };
    Some(Pressure { some: line("some ")?, full: line("full ") })
}

/// A threshold that the kernel watches: it fires when tasks wait for `stall` within `window`.
#[derive(Debug)]
pub struct Trigger {
    file: File,
}

impl Trigger {
    /// Sets a trigger on a pressure file. `window` is 0.5 to 10 s; without `CAP_SYS_RESOURCE` it must
    /// be a multiple of 2 s.
    ///
    /// # Errors
    /// The kernel keeps no such statistics, or refuses the window.
    pub fn open(path: &Path, who: StallKind, stall: Duration, window: Duration) -> Result<Self> {
        let failed = |error| Error::io("set a trigger on", path.display(), error).advise(ADVICE);
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let who = match who {
            StallKind::Some => "some",
            StallKind::Full => "full",
        };
        // The kernel wants the terminating zero byte.
        let request = format!("{who} {} {}\0", stall.as_micros(), window.as_micros());
        file.write_all(request.as_bytes()).map_err(failed)?;
        Ok(Self { file })
    }

    /// Waits until it fires or `timeout` has passed; `true` if it fired.
    ///
    /// # Errors
    /// [`Kind::Gone`] when what it watches is gone; the kernel refuses to wait.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let mut polled = [PollFd::new(&self.file, PollFlags::PRI)];
        let fired = poll(&mut polled, Timespec::try_from(timeout).ok().as_ref())
            .map_err(|error| Error::io("wait for", "a pressure trigger", error.into()))?;
        if polled[0].revents().contains(PollFlags::ERR) {
            let why = "its source is gone";
            return Err(Error::new(Kind::Gone, "wait for", "a pressure trigger", why));
        }
        Ok(fired > 0 && polled[0].revents().contains(PollFlags::PRI))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_pressure_of_a_real_machine_reads() {
        let pressure = fixtures::debian().pressure(Resource::Memory).unwrap();
        assert_eq!(pressure.some.avg10, 0.0);
        assert_eq!(pressure.full.unwrap().total, Duration::ZERO);
    }

    #[test]
    fn a_file_without_a_full_line_has_no_full_stall() {
        let pressure = parse("some avg10=1.50 avg60=0.25 avg300=0.00 total=1500\n").unwrap();
        assert_eq!((pressure.some.avg10, pressure.some.avg60), (1.5, 0.25));
        assert_eq!(pressure.some.total, Duration::from_micros(1500));
        assert_eq!(pressure.full, None);
    }

    #[test]
    fn a_machine_without_pressure_information_says_how_to_get_it() {
        let root = tempfile::tempdir().unwrap();
        let error = Linux::at(root.path()).pressure(Resource::Memory).unwrap_err();
        assert!(error.to_string().contains("psi=1"), "{error}");
    }

    #[test]
    fn a_trigger_on_an_idle_machine_does_not_fire_at_once() {
        let linux = Linux::live();
        if let Err(error) = linux.pressure(Resource::Memory) {
            eprintln!("skipped: {error}");
            return;
        }
        let window = Duration::from_secs(2);
        // A full stall of the whole window cannot have happened in the first millisecond.
        let path = linux.pressure_file(Resource::Memory);
        let trigger = Trigger::open(&path, StallKind::Full, window, window).unwrap();
        assert!(!trigger.wait(Duration::from_millis(1)).unwrap());
    }
}

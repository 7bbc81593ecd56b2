//! `--with sites`: which code of a command asks for memory of 1 MiB or more, from its allocator or by `mmap`. The
//! library that notes it is loaded into the command ([`super::allocations`]).

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::event::Recorded as _;
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;
use pagemill_model::{Allocation, Event};
use pagemill_model::{Nanos, Pid};

use super::allocations::Allocations;
use super::mappings::layout;
use super::recorder::Recorder;
use pagemill_launch::library;

/// The smallest memory that is noted.
const LEAST: u64 = 1 << 20;

/// How often the ring is read: callers are told apart by the files that a process has mapped, while it runs.
const EVERY: Duration = Duration::from_millis(20);

/// Reads the notes of a command.
pub struct Sites {
    linux: Linux,
    ring: Allocations,
    /// Processes whose files are in the recording.
    known: HashSet<Pid>,
    noted: u64,
}

/// Has the command, which runs the program at `path`, note who asks for large memory.
///
/// # Errors
/// The program takes no library, there is none, or no memory to share.
pub fn noted_by(path: &Path, command: &mut Command) -> Result<Allocations> {
    let preloaded = library::preloaded(command);
    let (ring, variables) = Allocations::begin(path, Some(LEAST), preloaded.as_deref())?;
    command.envs(variables);
    Ok(ring)
}

impl Sites {
    /// A recorder for the command, which runs the program at `path`.
    ///
    /// # Errors
    /// As of [`noted_by`].
    pub fn begin(linux: &Linux, path: &Path, command: &mut Command) -> Result<Self> {
        let ring = noted_by(path, command)?;
        Ok(Self { linux: linux.clone(), ring, known: HashSet::new(), noted: 0 })
    }

    /// The files that a process has mapped, once; libraries that are loaded later are known if another recorder looks
    /// at mappings.
    fn files(&mut self, pid: Pid, time: Nanos, writer: &mut Writer) -> Result<()> {
        if self.known.contains(&pid) {
            return Ok(());
        }
        let mappings = self.linux.maps(pid).unwrap_or_default();
        for mapping in mappings.iter().filter(|mapping| mapping.name.starts_with('/')) {
            writer.event(&Event::Mapping(Box::new(layout(time, pid, mapping))))?;
        }
        if !mappings.is_empty() {
            self.known.insert(pid);
        }
        Ok(())
    }
}

impl Recorder for Sites {
    fn interval(&self) -> Duration {
        EVERY
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        for note in self.ring.read() {
            self.files(Pid::told(note.pid.unwrap_or(0)), note.time, writer)?;
            let size = note.size;
            writer.event(&Allocation::into_event(note))?;
            self.noted += u64::from(size.is_some());
        }
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        self.collect(writer)?;
        self.ring.tell(&mut writer.meta_mut().losses);
        if self.ring.lost() > 0 {
            let (lost, all) = (self.ring.lost(), self.ring.notes());
            let why = format!("{lost} of {all} notes came faster than they were read");
            writer.meta_mut().lacks("some call sites", why);
        }
        Ok(())
    }

    fn amount(&self) -> String {
        counted(self.noted, "large allocation by call site", "large allocations by call site")
    }
}

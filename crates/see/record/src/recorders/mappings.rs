//! `--with hugepages`: what lies in the address space, and how much of it is on huge pages; and the
//! layout alone, for recorders that have addresses to explain.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::smaps::MappingUsage;
use pagemill_kernel::{Error, Kind, Linux, clock};
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;
use pagemill_model::{Bytes, Event, EventKind, MappingSample, Nanos, Pid};

use super::recorder::{Attached, Options, Process, Recorder, RecorderKind, Start};

/// The word `hugepages`.
pub const KIND: RecorderKind = RecorderKind {
    name: "hugepages",
    about: "Mappings, and how much of each is on huge pages",
    writes: &[EventKind::Mapping],
    pane: Some("mappings"),
    start: Start::Plain,
    attach,
};

fn attach(linux: &Linux, process: Process, options: &Options) -> Attached {
    let gone = |error: &Error| matches!(error.kind(), Kind::Gone | Kind::NotFound);
    match HugePages::attach(linux.clone(), process.pid, options.interval) {
        Err(error) if error.downcast_ref::<Error>().is_some_and(gone) => Ok(None),
        attached => Ok(Some(Box::new(attached?))),
    }
}

/// Looks at the mappings of a process and their memory once an interval.
pub struct HugePages {
    linux: Linux,
    pid: Pid,
    interval: Duration,
    looks: u64,
}

impl HugePages {
    /// Will look at `pid`; fails if it may not.
    ///
    /// # Errors
    /// The process has ended, or may not be looked into.
    pub fn attach(linux: Linux, pid: Pid, interval: Duration) -> Result<Self> {
        linux.smaps(pid)?;
        Ok(Self { linux, pid, interval, looks: 0 })
    }
}

impl Recorder for HugePages {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let entries = match self.linux.smaps(self.pid) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), Kind::Gone | Kind::NotFound) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let now = Nanos::from(clock::monotonic());
        for entry in &entries {
            writer.event(&Event::Mapping(Box::new(with_usage(now, self.pid, entry))))?;
        }
        self.looks += u64::from(!entries.is_empty());
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        let meta = writer.meta_mut();
        meta.capabilities.push("/proc/PID/smaps".into());
        if self.looks == 0 {
            let why = "the process ended before the first look (use a shorter --interval)";
            meta.lacks("mappings", why);
        }
        Ok(())
    }

    fn amount(&self) -> String {
        counted(self.looks, "look at the mappings", "looks at the mappings")
    }
}

/// A mapping and its memory as an event's row.
pub fn with_usage(now: Nanos, pid: Pid, entry: &MappingUsage) -> MappingSample {
    let usage = &entry.usage;
    let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(Bytes(a.unwrap_or(0) + b.unwrap_or(0))),
    };
    let advised =
        |flag: &str| entry.flags.iter().any(|known| known == flag).then(|| flag.to_owned());
    MappingSample {
        rss: usage.rss.map(Bytes),
        anonymous: usage.anonymous.map(Bytes),
        huge: usage.anon_huge_pages.map(Bytes),
        huge_other: sum(usage.shmem_pmd_mapped, usage.file_pmd_mapped),
        swap: usage.swap.map(Bytes),
        referenced: usage.referenced.map(Bytes),
        advice: advised("hg").or_else(|| advised("nh")),
        ..layout(now, pid, &entry.mapping)
    }
}

/// A mapping alone as an event's row.
pub fn layout(now: Nanos, pid: Pid, mapping: &Mapping) -> MappingSample {
    let bit = |set: bool, letter: char| if set { letter } else { '-' };
    let permissions = [
        bit(mapping.read, 'r'),
        bit(mapping.write, 'w'),
        bit(mapping.execute, 'x'),
        if mapping.shared { 's' } else { 'p' },
    ];
    MappingSample {
        time: now,
        pid: Some(pid.into()),
        start: Some(mapping.start),
        end: Some(mapping.end),
        permissions: Some(permissions.iter().collect()),
        name: Some(mapping.name.clone()),
        ..MappingSample::default()
    }
}

/// How often a process's layout is read again at most.
const AGAIN: Duration = Duration::from_millis(100);

/// The layouts of processes, as far as addresses were asked for: each mapping is written when it is
/// first seen.
pub struct Layout {
    linux: Linux,
    known: HashMap<Pid, (Vec<Mapping>, Instant)>,
}

impl Layout {
    /// Knows nothing.
    pub fn new(linux: Linux) -> Self {
        Self { linux, known: HashMap::new() }
    }

    /// Writes the mappings of `pid` that are new if none that is known holds `address`, which was touched
    /// at `time`: the rows get that stamp, so that they are read before what they explain.
    ///
    /// # Errors
    /// A row cannot be written.
    pub fn explain(
        &mut self,
        pid: Pid,
        address: u64,
        time: Nanos,
        writer: &mut Writer,
    ) -> Result<()> {
        if let Some((mappings, read)) = self.known.get(&pid) {
            let after = mappings.partition_point(|mapping| mapping.end <= address);
            let held = mappings.get(after).is_some_and(|mapping| mapping.start <= address);
            if held || read.elapsed() < AGAIN {
                return Ok(());
            }
        }
        // A process that has ended has none.
        let mappings = self.linux.maps(pid).unwrap_or_default();
        let before = self.known.remove(&pid).map(|(mappings, _)| mappings).unwrap_or_default();
        for mapping in &mappings {
            if !before.contains(mapping) {
                writer.event(&Event::Mapping(Box::new(layout(time, pid, mapping))))?;
            }
        }
        let mappings = if mappings.is_empty() { before } else { mappings };
        self.known.insert(pid, (mappings, Instant::now()));
        Ok(())
    }
}

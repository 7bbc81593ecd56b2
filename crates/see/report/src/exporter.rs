//! Metrics of processes, cgroups and free memory for Prometheus, and what its maker adds: a page each time that one is
//! asked for.
//!
//! Which processes: those that are named, those of cgroups that are named, or, where nothing is, those that run on
//! pagemill's heap. A process is looked at as `record --with heap` does; page faults are counted by the kernel's
//! account, and, where the exporter stays and processes are named, timed by the recorder of `record --with faults`.
//!
//! Always true: a page is valid exposition format with names in base units; a process that ends takes its lines with
//! it; what was not measured has no line.

mod http;
mod metrics;
mod snapshot;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use pagemill_analysis::latency::Histogram;
use pagemill_kernel::settings::cgroup::{self, Group};
use pagemill_kernel::{Error, Kind, Linux};
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Event, HeapSample, Nanos, Pid};
use pagemill_record::free_memory::FreeMemory;
use pagemill_record::malloc_reader::MallocReader;
use pagemill_record::recorders::Recorder;
use pagemill_record::recorders::faults::{self, Faults, Target};
use pagemill_record::sampler::Sampler;

pub use http::{Request, Resource, serve};
use snapshot::ProcessSnapshot;

/// Rows of single faults are not needed: this is longer than any.
const NO_ROWS: Nanos = Nanos(1 << 62);
/// What the file of a heap's library has in its name.
const LIBRARY: &str = "libpagemill_heap";

/// Whose metrics.
#[derive(Clone, Debug, Default)]
pub struct ExportScope {
    /// These processes.
    pub pids: Vec<Pid>,
    /// All processes of these groups, by their directories, and of those below them.
    pub groups: Vec<PathBuf>,
}

/// Times of the page faults of a process.
struct Times {
    recorder: Faults,
    writer: Writer,
    histogram: Histogram,
}

/// A process that is looked at.
struct Watched {
    started: u64,
    sampler: Sampler,
    malloc: MallocReader,
    group: Option<Group>,
    times: Option<Times>,
}

/// Makes pages.
pub struct Exporter {
    linux: Linux,
    which: ExportScope,
    /// Whether faults of processes are timed.
    timed: bool,
    watched: BTreeMap<Pid, Watched>,
    /// Processes whose faults cannot be timed, and why.
    untimed: Vec<(Pid, String)>,
    /// Metrics that each page ends with.
    further: fn(&Linux) -> String,
}

impl Exporter {
    /// Will look at these. `timed`: time the page faults of named processes, from now on. Each page ends with
    /// `further` metrics.
    ///
    /// # Errors
    /// A named process is not there, or may not be looked into.
    pub fn new(
        linux: &Linux,
        which: ExportScope,
        timed: bool,
        further: fn(&Linux) -> String,
    ) -> Result<Self> {
        let mut exporter = Self {
            linux: linux.clone(),
            which,
            timed,
            watched: BTreeMap::new(),
            untimed: Vec::new(),
            further,
        };
        for pid in exporter.which.pids.clone() {
            if exporter.watch(pid)?.is_none() {
                let object = format_args!("process {pid}");
                return Err(Error::new(Kind::Gone, "look at", object, "it has ended").into());
            }
        }
        Ok(exporter)
    }

    /// Whether something has to be fetched between two pages.
    pub fn is_timed(&self) -> bool {
        self.watched.values().any(|watched| watched.times.is_some())
    }

    /// Processes whose faults were to be timed and are only counted, and why.
    pub fn untimed(&self) -> &[(Pid, String)] {
        &self.untimed
    }

    /// Looks at a process: its first look, for the others are made with each page.
    fn watch(&mut self, pid: Pid) -> Result<Option<HeapSample>> {
        let mut sampler = Sampler::attach(self.linux.clone(), pid)?;
        let Some(sample) = sampler.sample()? else { return Ok(None) };
        let stat = self.linux.stat(pid)?;
        let named = self.which.pids.contains(&pid);
        let times = (self.timed && named).then(|| Times::attach(&self.linux, pid));
        let times = times.transpose().unwrap_or_else(|error| {
            self.untimed.push((pid, format!("{error:#}")));
            None
        });
        let group = self.linux.memory_cgroup(pid).ok();
        let (started, malloc) = (stat.started, MallocReader::new(self.linux.clone(), pid));
        self.watched.insert(pid, Watched { started, sampler, malloc, group, times });
        Ok(Some(sample))
    }

    /// Fetches what the kernel has gathered.
    pub fn fetch(&mut self) {
        self.watched
            .values_mut()
            .filter_map(|watched| watched.times.as_mut())
            .for_each(Times::fetch);
    }

    /// The processes that are to be looked at now.
    fn wanted(&self) -> Vec<Pid> {
        let mut wanted = self.which.pids.clone();
        for group in &self.which.groups {
            // A group may be gone by now.
            wanted.extend(cgroup::processes_below(group).unwrap_or_default());
        }
        if self.which.pids.is_empty() && self.which.groups.is_empty() {
            let on_heap = |pid: &Pid| {
                let maps = self.linux.maps(*pid).unwrap_or_default();
                maps.iter().any(|mapping| mapping.name.contains(LIBRARY))
            };
            wanted.extend(self.linux.processes().unwrap_or_default().into_iter().filter(on_heap));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Looks at one; nothing of one that has ended or may not be looked into.
    fn snapshot(&mut self, pid: Pid) -> Option<ProcessSnapshot> {
        let stat = self.linux.stat(pid).ok()?;
        if self.watched.get(&pid).is_none_or(|watched| watched.started != stat.started) {
            self.watch(pid).ok()??;
        }
        let watched = self.watched.get_mut(&pid)?;
        let mut sample = watched.sampler.sample().ok()??;
        watched.malloc.read_or_recall(&mut sample);
        Some(ProcessSnapshot {
            pid,
            comm: watched.sampler.comm().to_owned(),
            cgroup: watched.group.as_ref().map_or_else(String::new, Group::name),
            stat,
            sample,
            faults: watched.times.as_ref().map(|times| times.histogram.clone()),
        })
    }

    /// A page of all metrics.
    pub fn page(&mut self) -> String {
        self.fetch();
        let wanted = self.wanted();
        self.watched.retain(|pid, _| wanted.contains(pid));
        let looks: Vec<ProcessSnapshot> =
            wanted.into_iter().filter_map(|pid| self.snapshot(pid)).collect();
        let seen: Vec<Pid> = looks.iter().map(|look| look.pid).collect();
        self.watched.retain(|pid, _| seen.contains(pid));
        let groups: BTreeMap<String, Group> = self
            .watched
            .values()
            .filter_map(|watched| watched.group.clone())
            .map(|group| (group.name(), group))
            .collect();
        let free = FreeMemory::quick(&self.linux).ok();
        let mut page = metrics::of_processes(&looks);
        page.append(metrics::of_groups(&groups));
        page.append(metrics::of_machine(&self.linux, free.as_ref()));
        page.finish() + &(self.further)(&self.linux)
    }
}

impl Times {
    fn attach(linux: &Linux, pid: Pid) -> Result<Self> {
        let interval = Duration::from_millis(100);
        let options = faults::Options { threshold: NO_ROWS, sum: None, back_end: None, interval };
        let recorder = Faults::attach(linux, pid, Target::Attached, &options)?;
        let writer = Writer::passing(Meta::default());
        Ok(Self { recorder, writer, histogram: Histogram::default() })
    }

    fn fetch(&mut self) {
        // What fails has ended.
        let _ = self.recorder.collect(&mut self.writer);
        for event in self.writer.take() {
            let Event::FaultCounts(row) = event else { continue };
            let counts = row.counts.unwrap_or_default();
            for (bucket, count) in row.buckets.unwrap_or_default().into_iter().zip(counts) {
                self.histogram.add(u32::try_from(bucket).unwrap_or(u32::MAX), count);
            }
        }
    }
}

//! Looking at a running process again and again: the kernel's accounting of it and, if it runs on
//! the preload library, its heap's statistics page. The process is never stopped.
//!
//! What cannot be measured is found out once, kept with the reason ([`Sampler::not_measured`]) and
//! absent from the samples.
//!
//! | column | source |
//! |---|---|
//! | `pss_bytes` … `lazy_free_bytes` | `/proc/PID/smaps_rollup` |
//! | `peak_rss_bytes` | `/proc/PID/status` |
//! | `cgroup_bytes`, `cgroup_kernel_bytes` | the charge of its memory cgroup, version 1 or 2 |
//! | `cpu_ns` | `/proc/PID/stat`, in clock ticks |
//! | `ksmd_cpu_ns` | scheduler statistics of the kernel thread |
//! | `ksm_*` | `/proc/PID/ksm_stat`, `/sys/kernel/mm/ksm` |
//! | the rest | the statistics page |

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagemill_kernel::settings::cgroup::Group;
use pagemill_kernel::{Error, Kind, Linux, Result, clock, memory::memfd};
use pagemill_model::dataset::{Column, Row as _, Shape};
use pagemill_model::recording::NotMeasured;
use pagemill_model::{Bytes, Event, HeapSample, Nanos, Pid, Source};

use pagemill_launch::stats_page::{self, Page, Snapshot};

/// For how long a heap is looked for, until the process executes another program: the loader maps
/// the library a moment after the program has started.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Samples of one process, as a source of events.
#[derive(Debug)]
pub struct Sampler {
    linux: Linux,
    pid: Pid,
    comm: String,
    /// Distinguishes the process from a later one with the same number.
    started: u64,
    page: Option<Page>,
    look_until: Instant,
    program: Option<PathBuf>,
    cgroup: Option<Group>,
    ksmd: Option<Pid>,
    not_measured: BTreeMap<&'static str, String>,
    used: BTreeSet<&'static str>,
}

impl Sampler {
    /// Begins to look at `pid`.
    ///
    /// # Errors
    /// [`Kind::Gone`] if there is no such process; it may not be looked into.
    pub fn attach(linux: Linux, pid: Pid) -> Result<Self> {
        let stat = linux.stat(pid).map_err(|error| match error.kind() {
            Kind::NotFound | Kind::Gone => Error::new(
                Kind::Gone,
                "look at",
                format_args!("process {pid}"),
                "there is no such process",
            ),
            _ => error,
        })?;
        let mut sampler = Self {
            pid,
            comm: stat.comm,
            started: stat.started,
            page: None,
            look_until: Instant::now() + LOOK_FOR,
            program: None,
            cgroup: None,
            ksmd: None,
            not_measured: BTreeMap::new(),
            used: BTreeSet::new(),
            linux,
        };
        sampler.cgroup = sampler.find_cgroup();
        match sampler.linux.kernel_thread("ksmd") {
            Ok(Some(ksmd)) => sampler.ksmd = Some(ksmd),
            Ok(None) => sampler.lacks(
                "ksmd_cpu_ns",
                "no ksmd thread is visible: KSM is not built in, or this is another PID namespace",
            ),
            Err(error) => sampler.lacks("ksmd_cpu_ns", error),
        }
        Ok(sampler)
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Name of the process.
    pub fn comm(&self) -> &str {
        &self.comm
    }

    /// The statistics page, once a sample has found it.
    pub fn page(&self) -> Option<Page> {
        self.page
    }

    /// The kernel's interfaces that gave values.
    pub fn used(&self) -> Vec<String> {
        self.used.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Whether any sample had the heap's own statistics.
    pub fn saw_heap(&self) -> bool {
        self.used.contains(STATISTICS)
    }

    /// What the samples so far lack, and why.
    pub fn not_measured(&self) -> Vec<NotMeasured> {
        let entry =
            |(what, why): (&&str, &String)| NotMeasured { what: (*what).into(), why: why.clone() };
        self.not_measured.iter().map(entry).collect()
    }

    /// One sample; `None` once the process has ended.
    ///
    /// # Errors
    /// The process may not be looked into at all.
    pub fn sample(&mut self) -> Result<Option<HeapSample>> {
        let stat = match self.linux.stat(self.pid) {
            Ok(stat) if stat.started == self.started && !matches!(stat.state, 'Z' | 'X') => stat,
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), Kind::Gone | Kind::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.comm = stat.comm;
        let mut sample = HeapSample {
            time: Nanos::from(clock::monotonic()),
            pid: Some(self.pid.into()),
            cpu: Some(Nanos::from(stat.user + stat.system)),
            ..HeapSample::default()
        };
        let snapshot = self.snapshot()?;
        match self.linux.smaps_rollup(self.pid) {
            Ok(usage) => {
                self.used.insert("/proc/PID/smaps_rollup");
                let bytes = |value: Option<u64>| value.map(Bytes);
                sample.pss = bytes(usage.pss);
                sample.rss = bytes(usage.rss);
                sample.pss_anon = bytes(usage.pss_anon);
                sample.pss_shmem = bytes(usage.pss_shmem);
                (sample.swap, sample.lazy_free) = (bytes(usage.swap_pss), bytes(usage.lazy_free));
            }
            Err(error) if error.kind() == Kind::Gone => return Ok(None),
            Err(error) => self.lacks("pss_bytes, rss_bytes, swap_bytes", error),
        }
        // After what is resident now: so it is never less than that.
        match self.linux.status(self.pid) {
            Ok(status) => {
                self.used.insert("/proc/PID/status");
                sample.peak_rss = status.peak_rss.map(Bytes);
            }
            Err(error) => self.lacks("peak_rss_bytes", error),
        }
        if let Ok(maps) = self.linux.maps(self.pid) {
            sample.mappings = Some(maps.len() as u64);
            match self.linux.memfd_held(self.pid, &maps) {
                Ok(held) => {
                    let mapped = sample.pss_shmem.map(|bytes| bytes.0);
                    sample.unmapped = Some(Bytes(memfd::unmapped(held, mapped)));
                }
                Err(error) => self.lacks("unmapped_bytes", error),
            }
        }
        if let Some(group) = &self.cgroup {
            match group.charge() {
                Ok(charge) => {
                    self.used.insert("memory cgroup");
                    sample.cgroup = Some(Bytes(charge.current));
                    sample.cgroup_kernel = charge.kernel.map(Bytes);
                    if charge.kernel.is_none() {
                        self.lacks("cgroup_kernel_bytes", "this kernel does not say how much of the charge is kernel \
                                                           memory (cgroup v2 since 5.18, v1 with kmem accounting)");
                    }
                }
                Err(error) => self.lacks("cgroup_bytes", error),
            }
        }
        self.ksm(&mut sample);
        match snapshot {
            Some(snapshot) => {
                self.used.insert(STATISTICS);
                fill(&mut sample, &snapshot);
                self.not_measured.remove(HEAP);
            }
            // The reason may change: the loader maps the library a moment after the start.
            None => {
                let why = match self.page {
                    Some(_) => "the heap has not started: the program has not allocated yet",
                    None => {
                        "the process does not run on pagemill's heap (start it with: pagemill run -- CMD)"
                    }
                };
                self.not_measured.insert(HEAP, why.to_owned());
            }
        }
        Ok(Some(sample))
    }

    fn ksm(&mut self, sample: &mut HeapSample) {
        if let Some(ksmd) = self.ksmd {
            match self.linux.thread_cpu(ksmd) {
                Ok(cpu) => {
                    self.used.insert("scheduler statistics of ksmd");
                    sample.ksmd_cpu = Some(Nanos::from(cpu));
                }
                Err(error) => self.lacks("ksmd_cpu_ns", error),
            }
        }
        match self.linux.ksm_stat(self.pid) {
            Ok(stat) => {
                self.used.insert("/proc/PID/ksm_stat");
                sample.ksm_items = stat.rmap_items;
                sample.ksm_merging_pages = stat.merging_pages;
            }
            Err(error) => self.lacks("ksm_items, ksm_merging_pages", error),
        }
        match self.linux.ksm_counters() {
            Ok(all) => {
                let looked_at =
                    all.pages_shared + all.pages_sharing + all.pages_unshared + all.pages_volatile;
                sample.ksm_items_all = Some(looked_at);
            }
            Err(error) => self.lacks("ksm_items_all", error),
        }
    }

    /// Reads the statistics page, looking for it if it may have appeared.
    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        let program = fs::read_link(self.linux.process_file(self.pid, "exe")).ok();
        if program != self.program {
            self.program = program;
            self.page = None;
            self.look_until = Instant::now() + LOOK_FOR;
        }
        if let Some(page) = self.page {
            match page.read() {
                Ok(snapshot) => return Ok(snapshot),
                Err(error) if error.kind() == Kind::Permission => return Err(error),
                // The process has ended or executes the same program anew.
                Err(_) => {
                    self.page = None;
                    self.look_until = Instant::now() + LOOK_FOR;
                }
            }
        }
        if Instant::now() > self.look_until {
            return Ok(None);
        }
        match stats_page::locate(&self.linux, self.pid) {
            Ok(page) => self.page = page,
            Err(error) if error.kind() == Kind::Permission => return Err(error),
            Err(_) => return Ok(None),
        }
        match self.page.map(|page| page.read()) {
            Some(Err(error)) if error.kind() == Kind::Permission => Err(error),
            Some(Ok(snapshot)) => Ok(snapshot),
            _ => Ok(None),
        }
    }

    fn find_cgroup(&mut self) -> Option<Group> {
        match self.linux.memory_cgroup(self.pid) {
            Ok(group) => {
                let others = fs::read_to_string(group.directory().join("cgroup.procs"))
                    .map_or(0, |text| text.lines().count().saturating_sub(1));
                if others > 0 {
                    let why = format!(
                        "{others} other processes share its cgroup, and cgroup_bytes is the charge of all (a cgroup \
                         of its own: systemd-run --scope -- CMD)"
                    );
                    self.lacks(NotMeasured::OWN_CHARGE, why);
                }
                Some(group)
            }
            Err(error) => {
                self.lacks("cgroup_bytes", error);
                None
            }
        }
    }

    fn lacks(&mut self, what: &'static str, why: impl std::fmt::Display) {
        self.not_measured.entry(what).or_insert_with(|| why.to_string());
    }
}

/// The interface that gives the heap's own columns.
const STATISTICS: &str = "statistics page by process_vm_readv";

/// The name under which the columns of the statistics page are reported as missing.
const HEAP: &str = "the heap's own columns (live_bytes, footprint_bytes, pauses, …)";

impl Source for Sampler {
    fn next_event(&mut self) -> pagemill_model::Result<Option<Event>> {
        let sample = self
            .sample()
            .map_err(|error| pagemill_model::Error::new(pagemill_model::Kind::Source, error))?;
        Ok(sample.map(|sample| Event::Heap(Box::new(sample))))
    }
}

/// Copies a snapshot into the columns of the heap.
fn fill(sample: &mut HeapSample, snapshot: &Snapshot) {
    let name = |name: Option<&'static str>| name.map(str::to_owned);
    sample.config = name(snapshot.config_name());
    sample.backend = name(snapshot.backend_name());
    sample.barrier = name(snapshot.barrier_name());
    sample.waits_for = name(snapshot.waits_name());
    sample.stopped_by = name(snapshot.stop_name());
    // Its other columns are numbers that the page has by the same names.
    let own = |column: &Column| column.shape != Shape::Text && column.name != "pid";
    for (at, column) in HeapSample::COLUMNS.iter().enumerate().filter(|(_, column)| own(column)) {
        if let Some(cell) = snapshot.cell(column.name) {
            sample.set(at, cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that maps and unmaps between two looks seemed to need next to nothing.
    #[test]
    fn a_sample_has_what_was_resident_between_two_looks() {
        const BYTES: usize = 64 << 20;
        let mut sampler = Sampler::attach(Linux::live(), Pid::own()).unwrap();
        drop(std::hint::black_box(vec![1_u8; BYTES]));
        let sample = sampler.sample().unwrap().unwrap();
        let (now, highest) = sample.rss.zip(sample.peak_rss).unwrap();
        assert!(highest.0 >= BYTES as u64 && now < highest, "{now:?} {highest:?}");
    }
}

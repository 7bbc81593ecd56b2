//! A program under measurement: started in an arm and in a memory cgroup of its own, sampled by a
//! thread of ours, watched until it ends.
//!
//! What a sample costs the program: reading `smaps_rollup` walks its page tables and holds its
//! mapping lock for reading, tens of microseconds for ordinary programs and milliseconds for tens
//! of thousands of mappings. Hence the interval is an input and stands in the report.
//!
//! CPU time is the program's own (ended threads included), that of the wrapper that governs
//! `ksmd` if there is one, and what `ksmd` used meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagemill_kernel::{Linux, process::signal, settings::cgroup};
use pagemill_model::Pid;

use pagemill_launch::exit::Interrupted;

use super::arm::{Allocator, Arm};
use pagemill_launch::stats_page::{self, Snapshot};

/// How often a running program is looked at for its end.
const POLL: Duration = Duration::from_millis(3);

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Environment on top of ours.
    pub environment: Vec<(String, OsString)>,
    /// File that it reads from; nothing if none is given.
    pub input: Option<PathBuf>,
    /// File for what it prints.
    pub output: PathBuf,
    /// File for what it complains about.
    pub complaints: PathBuf,
    /// Whether what is measured is not the process that is started but those below it.
    pub below: bool,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Since the start.
    pub seconds: f64,
    /// Proportional set size, bytes.
    pub pss: u64,
    /// Charge of the cgroup, kernel memory included, bytes.
    pub charge: Option<u64>,
}

/// What the sampler has seen so far.
#[derive(Debug, Default)]
pub struct Observations {
    /// All samples, oldest first.
    pub samples: Vec<Sample>,
    /// The last statistics of our heap.
    pub heap: Option<Snapshot>,
    /// Whether the arm's library was among the mapped files.
    pub library: bool,
}

/// A running program.
pub struct Target {
    child: Child,
    pid: Pid,
    wrapped: bool,
    ksmd: Option<(Pid, Duration)>,
    started: Instant,
    below: bool,
    cpu: Duration,
    seen: Arc<Mutex<Observations>>,
    sampler: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    // Last: the group is removed after the processes in it are gone.
    group: Option<Arc<cgroup::Child>>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// From start to end.
    pub wall: Duration,
    /// CPU time, as the module describes.
    pub cpu: Duration,
    /// The part of it that `ksmd` used.
    pub ksmd: Duration,
}

/// The circumstances of all programs of a run.
pub struct Stage<'a> {
    /// The kernel.
    pub linux: Linux,
    /// This binary.
    pub executable: PathBuf,
    /// Signals that end the run.
    pub signals: &'a signal::Signals,
    /// Interval between samples.
    pub every: Duration,
}

/// SIGINT, SIGTERM, SIGHUP: what ends a run.
pub const ENDING: &[i32] = &[2, 15, 1];

impl<'a> Stage<'a> {
    /// This machine, with a sample ten times a second.
    pub fn on_this_machine(signals: &'a signal::Signals, executable: PathBuf) -> Self {
        Self { linux: Linux::live(), executable, signals, every: Duration::from_millis(100) }
    }

    /// Waits for a signal to end, at most `time`.
    ///
    /// # Errors
    /// [`Interrupted`] if one has come.
    pub fn wait(&self, time: Duration) -> Result<()> {
        match self.signals.wait(time)? {
            Some(received) => Err(Interrupted(received.signal).into()),
            None => Ok(()),
        }
    }

    /// Starts `program` in `arm`.
    ///
    /// # Errors
    /// It cannot be started, or its input not be read.
    pub fn start(&self, arm: &Arm, program: &Program) -> Result<Target> {
        let group = self.group();
        let mut command = self.command(arm, program, group.as_ref());
        command.envs(program.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(match &program.input {
            Some(path) => {
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?.into()
            }
            None => Stdio::null(),
        });
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        command.stdout(create(&program.output)?).stderr(create(&program.complaints)?);
        self.signals.restore_and_end_with_us(&mut command);
        let wrapped = matches!(arm.allocator, Allocator::Ours { ksm: true, .. });
        let ksmd = if wrapped { self.ksmd() } else { None };
        if let (Some(group), false) = (&group, wrapped) {
            group.start_inside(&mut command)?;
        }
        let started = Instant::now();
        let mut child =
            command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let pid = if wrapped { self.inner(&mut child)? } else { Pid(child.id()) };
        let wrapped = pid != Pid(child.id());
        let seen = Arc::new(Mutex::new(Observations::default()));
        let group = group.map(Arc::new);
        let measured = Measured { pid, below: program.below };
        let sampler = self.sampler(arm, measured, started, group.clone(), &seen);
        let sampler = sampler.inspect_err(|_| {
            // It may have ended by itself.
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        let cpu = Duration::ZERO;
        let (below, sampler) = (program.below, Some(sampler));
        Ok(Target { child, pid, wrapped, ksmd, started, below, cpu, seen, sampler, group })
    }

    /// A group for one program, if this user may make one.
    fn group(&self) -> Option<cgroup::Child> {
        let unique = self.linux.memory_cgroup(Pid::own()).ok()?;
        let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        unique.create(&format!("{}-{since}", std::process::id())).ok()
    }

    fn command(&self, arm: &Arm, program: &Program, group: Option<&cgroup::Child>) -> Command {
        let mut command;
        match &arm.allocator {
            Allocator::Library(library) => {
                command = Command::new(&program.path);
                command.env("LD_PRELOAD", library);
            }
            Allocator::Ours { library, config, ksm: false } => {
                command = Command::new(&program.path);
                command.env("LD_PRELOAD", library).env("PAGEMILL_HEAP", config);
                command.env("PAGEMILL_BACKEND", "remap");
            }
            Allocator::Ours { config, ksm: true, .. } => {
                command = Command::new(&self.executable);
                command.args(["run", "--ksm", "--mesh", config, "--"]);
                if let Some(group) = group {
                    // Only the program enters the group: the wrapper's memory is not its own.
                    command.args(["sh", "-c", "echo $$ > \"$1\" && shift && exec \"$@\"", "sh"]);
                    command.arg(group.directory().join("cgroup.procs"));
                }
                command.arg(&program.path);
            }
            Allocator::Bundled { server, .. } => {
                command = Command::new(server);
            }
            Allocator::Own => command = Command::new(&program.path),
        }
        command.args(&program.arguments);
        command
    }

    /// `ksmd` and the CPU time it has used.
    fn ksmd(&self) -> Option<(Pid, Duration)> {
        let pid = self.linux.kernel_thread("ksmd").ok()??;
        Some((pid, self.linux.thread_cpu(pid).ok()?))
    }

    /// The program that a wrapper has started. Where `ksmd` runs anyway, the wrapper has nothing to
    /// govern and becomes the program.
    fn inner(&self, wrapper: &mut Child) -> Result<Pid> {
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience {
            if let Some(&pid) = self.linux.children(Pid(wrapper.id()))?.first() {
                return Ok(pid);
            }
            let runs = fs::read_link(self.linux.process_file(Pid(wrapper.id()), "exe"));
            if runs.is_ok_and(|path| path != self.executable) {
                return Ok(Pid(wrapper.id()));
            }
            if let Some(status) = wrapper.try_wait()? {
                bail!("`pagemill run --ksm` ended with {status} before the program started");
            }
            thread::sleep(Duration::from_millis(1));
        }
        wrapper.kill().context("a wrapper without a program could not be ended")?;
        wrapper.wait()?;
        bail!("`pagemill run --ksm` started no program within 5 s")
    }

    fn sampler(
        &self,
        arm: &Arm,
        measured: Measured,
        started: Instant,
        group: Option<Arc<cgroup::Child>>,
        seen: &Arc<Mutex<Observations>>,
    ) -> pagemill_kernel::Result<(mpsc::Sender<()>, JoinHandle<()>)> {
        let (stop, stopped) = mpsc::channel();
        let (linux, every, seen) = (self.linux.clone(), self.every, seen.clone());
        let library = match &arm.allocator {
            Allocator::Library(path) | Allocator::Ours { library: path, .. } => {
                fs::canonicalize(path).ok()
            }
            Allocator::Bundled { .. } | Allocator::Own => None,
        };
        let pid = measured.pid;
        let ours = matches!(arm.allocator, Allocator::Ours { .. }) && !measured.below;
        let look = move || {
            let mut page = None;
            let mut next = Instant::now() + every;
            loop {
                let wait = next.saturating_duration_since(Instant::now());
                match stopped.recv_timeout(wait) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
                next += every;
                if page.is_none() && ours {
                    page = stats_page::locate(&linux, pid).ok().flatten();
                }
                let heap = page.as_ref().and_then(|page| page.read().ok().flatten());
                let sample = sample(&linux, measured, started, group.as_deref());
                let mut seen = lock(&seen);
                if !seen.library
                    && let Some(path) = &library
                    && let Ok(maps) = linux.maps(pid)
                {
                    let name = path.to_string_lossy();
                    seen.library = maps.iter().any(|mapping| mapping.name == name);
                }
                seen.samples.extend(sample);
                if heap.is_some() {
                    seen.heap = heap;
                }
            }
        };
        Ok((stop, pagemill_kernel::process::thread::start(look)?))
    }
}

fn lock(seen: &Mutex<Observations>) -> MutexGuard<'_, Observations> {
    seen.lock().expect("the sampler does not panic")
}

/// Whose memory is sampled: that of a process, or of those below it.
#[derive(Clone, Copy)]
struct Measured {
    pid: Pid,
    below: bool,
}

/// Those that a process has started, and theirs.
fn below(linux: &Linux, pid: Pid) -> Vec<Pid> {
    linux.descendants(&[pid]).split_off(1)
}

fn sample(
    linux: &Linux,
    measured: Measured,
    started: Instant,
    group: Option<&cgroup::Child>,
) -> Option<Sample> {
    let pss = match measured.below {
        true => linux.memory_together(&below(linux, measured.pid)),
        false => linux.memory(measured.pid),
    };
    let pss = pss.ok()??;
    let charge = group.and_then(|group| group.charge().ok()).map(|charge| charge.current);
    // A process that is ending has no memory left but is still there.
    (pss > 0).then(|| Sample { seconds: started.elapsed().as_secs_f64(), pss, charge })
}

impl Target {
    /// The program's process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What the sampler has seen so far.
    pub fn seen(&self) -> MutexGuard<'_, Observations> {
        lock(&self.seen)
    }

    /// A sample now, beside the sampler's.
    pub fn sample(&self, linux: &Linux) -> Option<Sample> {
        let measured = Measured { pid: self.pid, below: self.below };
        sample(linux, measured, self.started, self.group.as_deref())
    }

    /// The processes below the one that was started.
    pub fn below(&self, linux: &Linux) -> Vec<Pid> {
        below(linux, self.pid)
    }

    /// Whether the process that was started is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it, and returns what the sampler has seen when all of its processes are gone.
    ///
    /// # Errors
    /// Where it cannot be killed, or some are still there after a while.
    pub fn kill(mut self, linux: &Linux) -> Result<Observations> {
        self.stop_sampling();
        let seen = std::mem::take(&mut *lock(&self.seen));
        let processes = self.below(linux);
        if self.is_running() {
            self.child.kill().context("cannot kill the program")?;
            self.child.wait()?;
        }
        let patience = Instant::now() + Duration::from_secs(10);
        let is_left = |pid: &&Pid| linux.stat(**pid).is_ok_and(|stat| stat.state != 'Z');
        while let Some(pid) = processes.iter().find(is_left) {
            if Instant::now() > patience {
                bail!("process {pid} of the program is still there after it was killed");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(seen)
    }

    /// CPU time so far, and the part of `ksmd`.
    pub fn cpu(&mut self, linux: &Linux) -> (Duration, Duration) {
        if let Ok(stat) = linux.stat(self.pid) {
            self.cpu = self.cpu.max(stat.user + stat.system);
        }
        let wrapper = if self.wrapped { linux.stat(Pid(self.child.id())).ok() } else { None };
        let wrapper = wrapper.map_or(Duration::ZERO, |stat| stat.user + stat.system);
        let ksmd = self
            .ksmd
            .and_then(|(pid, before)| Some(linux.thread_cpu(pid).ok()?.saturating_sub(before)));
        let ksmd = ksmd.unwrap_or_default();
        (self.cpu + wrapper + ksmd, ksmd)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It is still running at `limit` after its start, or was interrupted; it is ended in both cases.
    pub fn finish(mut self, stage: &Stage<'_>, limit: Duration) -> Result<(Ended, Observations)> {
        loop {
            let (cpu, ksmd) = self.cpu(&stage.linux);
            // A zombie still has its CPU time, and nobody else waits for it; a wrapped program is
            // waited for by its wrapper.
            let ended = stage.linux.stat(Pid(self.child.id())).is_ok_and(|stat| stat.state == 'Z');
            if ended {
                let wall = self.started.elapsed();
                let status = self.child.wait()?;
                self.stop_sampling();
                let seen = std::mem::take(&mut *lock(&self.seen));
                // The signal that ends this run may have ended it, whatever its status says.
                stage.wait(Duration::ZERO)?;
                return Ok((Ended { status, wall, cpu, ksmd }, seen));
            }
            if self.started.elapsed() > limit {
                bail!("still running after {} s", limit.as_secs());
            }
            stage.wait(POLL)?;
        }
    }

    fn stop_sampling(&mut self) {
        if let Some((stop, thread)) = self.sampler.take() {
            drop(stop);
            // It panics only if this thread did, while holding the lock.
            let _ = thread.join();
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop_sampling();
        if matches!(self.child.try_wait(), Ok(None)) {
            // The wrapper passes SIGTERM on and restores what it changed; killing it would not.
            if self.wrapped {
                let _ = signal::send(Pid(self.child.id()), TERMINATE);
                let patience = Instant::now() + Duration::from_secs(5);
                while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `SIGTERM` on every Linux architecture.
const TERMINATE: i32 = 15;

/// Results of our heap in the units of the results: bytes and seconds.
pub fn heap_metrics(heap: &Snapshot) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    let mut put = |name: &str, value: Option<u64>, factor: f64| {
        if let Some(value) = value {
            metrics.insert(name.to_owned(), value as f64 * factor);
        }
    };
    // A heap that has merged nothing has no pause, which is not the same as a pause of zero.
    let some = |value: Option<u64>| value.is_some_and(|value| value > 0);
    let compacted = some(heap.passes) && (some(heap.groups) || some(heap.longest_pause_ns));
    put("heap_longest_stall", heap.longest_stall_ns.filter(|_| compacted), 1e-9);
    put("heap_longest_pause", heap.longest_pause_ns.filter(|_| compacted), 1e-9);
    put("compaction", heap.compact_ns.filter(|_| compacted), 1e-9);
    put("helper_cpu", heap.helper_cpu_ns, 1e-9);
    put("heap_saved", heap.saved_bytes, 1.0);
    put("heap_live", heap.live_bytes, 1.0);
    put("heap_footprint", heap.footprint_bytes, 1.0);
    put("heap_passes", heap.passes, 1.0);
    put("heap_groups", heap.groups, 1.0);
    put("heap_unmerged_pages", heap.unmerged_pages, 1.0);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_well_while_a_signal_to_us_waits_was_interrupted() {
        let room = tempfile::tempdir().unwrap();
        let signals = signal::Signals::block(&[signal::PIPE]).unwrap();
        let (executable, every) = (PathBuf::new(), Duration::from_secs(1));
        let stage = Stage { linux: Linux::live(), executable, signals: &signals, every };
        let (output, complaints) = (room.path().join("out"), room.path().join("err"));
        let path = PathBuf::from("/bin/true");
        let program = Program { path, output, complaints, ..Program::default() };
        let arm = Arm { name: "own", allocator: Allocator::Own };
        let ended = |signalled: bool| {
            let target = stage.start(&arm, &program).unwrap();
            let state = || stage.linux.stat(target.pid()).unwrap().state;
            while state() != 'Z' {
                thread::sleep(POLL);
            }
            if signalled {
                let (reader, mut writer) = std::io::pipe().unwrap();
                drop(reader);
                std::io::Write::write_all(&mut writer, b"x").unwrap_err();
            }
            target.finish(&stage, Duration::from_secs(60))
        };
        assert!(ended(false).unwrap().0.status.success());
        assert!(ended(true).unwrap_err().is::<Interrupted>());
    }

    #[test]
    fn a_heap_that_never_compacted_has_no_pause() {
        let heap = |passes| Snapshot {
            passes: Some(passes),
            longest_pause_ns: Some(1_500_000),
            ..Snapshot::default()
        };
        assert_eq!(heap_metrics(&heap(3))["heap_longest_pause"], 0.0015);
        assert!(!heap_metrics(&heap(0)).contains_key("heap_longest_pause"));
        let merged_nothing = Snapshot { groups: Some(0), longest_pause_ns: Some(0), ..heap(3) };
        assert!(!heap_metrics(&merged_nothing).contains_key("heap_longest_pause"));
    }
}

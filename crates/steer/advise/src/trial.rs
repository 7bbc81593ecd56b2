//! One run of a command under a lever, and what it gave.
//!
//! The command runs in a process group and, where this user may make one, in a memory control group of its own. Its
//! standard input is empty. What it prints is read, and a digest of it kept, so that a lever under which it prints
//! something else is found out. What it leaves running in the background is ended.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_control::run_cost::timed;
use pagemill_control::run_memory::{Memory, Watch, mean, whole_mean};
use pagemill_kernel::process::Resources;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{
    Linux,
    process::{orphans, scheduling},
    settings::cgroup,
};
use pagemill_launch::allocator::Allocator;
use pagemill_launch::exit::Interrupted;
use pagemill_launch::{cpython, stats_page};
use pagemill_model::Pid;
use regex::bytes::Regex;

use crate::count::Count;
use crate::ending::stop;
use crate::lever::{Start, Target};
use crate::printed::Printed;
use crate::readings::{Asking, Readings};
use crate::rule::Figures;
use crate::server::{Load, LoadOutcome, ask};
use crate::stall::{Heartbeat, Stall, StallState};
use crate::zeros::ZeroSample;

/// What the command starts may outlive it by this much and is not left behind.
const LINGER: Duration = Duration::from_millis(200);
/// Looks at a run that tell its memory, at the least.
const FEWEST: usize = 3;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this status.
    Status(ExitStatus),
    /// A server that was asked, and asked to end.
    Served,
    /// A server or its client failed, and how.
    Failed(String),
    /// It was ended, for it took too long.
    TooLong,
    /// It was ended, for the kernel had stopped it: it wants the terminal, and runs in the background. Or it waited for
    /// what somebody would type.
    Stopped,
    /// It was ended, for it did nothing for longer than it may.
    Idle,
    /// The kernel killed a process of it for want of memory, whatever became of the others. `limit`: the least of its
    /// control groups, bytes, if there is one.
    Starved {
        /// Bytes.
        limit: Option<u64>,
    },
}

/// What one run gave.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its figures.
    pub figures: Figures,
    /// How it ended.
    pub ending: Ending,
    /// What it used.
    pub used: Resources,
    /// Looks at its memory.
    pub looks: Vec<Memory>,
    /// When its pages were marked as not accessed, each time just after a look, seconds.
    pub marks: Vec<f64>,
    /// Until when a server was asked, seconds; none of another command.
    pub asked_until: Option<f64>,
    /// Live bytes of our heap at its fullest, if it ran on that.
    pub live: Option<u64>,
    /// The same in the mean of all looks.
    pub live_mean: Option<f64>,
    /// Which malloc its largest process had, if that was looked at.
    pub allocator: Option<Allocator>,
    /// Whether that is CPython with its own allocator beside malloc.
    pub pymalloc: bool,
    /// What that malloc held free, if it was asked.
    pub readings: Readings,
    /// Why that is not known, if it was to be asked.
    pub not_asked: Option<String>,
    /// What of its huge pages held only zeros, where it had the most.
    pub zeros: Option<ZeroSample>,
    /// Digest of what it printed.
    pub digest: u64,
    /// The last line of what it complained about.
    pub complaint: String,
    /// Whether something of it went on in the background.
    pub left: bool,
}

/// What all runs have in common.
pub struct TrialSetup<'a> {
    /// The command, and where.
    pub target: &'a Target,
    /// Signals that end the trial.
    pub signals: &'a Signals,
    /// What is looked for in what it prints.
    pub metric: Option<&'a Regex>,
    /// How it is asked, if it is a server.
    pub load: Option<&'a Load>,
}

/// How a run is looked at.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The longest that it may take.
    pub limit: Duration,
    /// The longest that it may do nothing.
    pub rest: Duration,
    /// Whether its pages are marked as not accessed now and then, to see which stay so.
    pub marks: bool,
}

impl TrialSetup<'_> {
    /// Runs the command once. The inner error is that it cannot be executed.
    ///
    /// # Errors
    /// It cannot be started in its group, or not be waited for.
    pub fn run(
        &self,
        start: &Start,
        options: RunOptions,
        beat: Heartbeat,
    ) -> Result<io::Result<Run>> {
        let linux = &self.target.linux;
        let group = group(linux);
        let mut command = self.command(start);
        if let Some(group) = &group {
            group.start_inside(&mut command)?;
        }
        let (out, err) = (io::pipe()?, io::pipe()?);
        command.stdin(Stdio::null()).stdout(out.1).stderr(err.1);
        let (out, err) = (Printed::read(out.0)?, Printed::read(err.0)?);
        let before = self.before(start);
        let merging = merging(linux, start);
        let merged = merging();
        // Without a group of its own it is in ours.
        let ours = linux.memory_cgroup(Pid::own()).ok();
        let kills = Kills::begin(group.as_deref().or(ours.as_ref()));
        let watched = timed(
            command,
            |pid, over| RunSamples::watch(linux, pid, over, (options, start), before.as_deref()),
            |child| self.attend(child, options, beat),
        )?;
        let (run, seen) = match watched {
            Ok(done) => done,
            Err(error) => return Ok(Err(error)),
        };
        // Without a thread beside it nothing was seen of it.
        let seen = seen.unwrap_or_default();
        let (left, merged) = (self.tidy()?, merging().saturating_sub(merged));
        let charge = group.as_ref().and_then(|group| group.charge().ok()?.peak);
        let (out, err) = (out.end()?, err.end()?);
        let (ended, asked) = run.ended;
        let looks = asked_looks(seen.looks, asked.as_ref());
        // A run of which nearly nothing was seen says nothing of its memory.
        let told = looks.len() >= FEWEST;
        let (mut used, mut wall, mut said) = (run.used, run.took, vec![&out, &err]);
        if let Some(asked) = &asked {
            (used, wall) = (asked.used, asked.wall);
            said = asked.said.iter().collect();
        }
        let complaint = match asked {
            Some(_) => last_complaint(&said, [&err, &out]),
            None => err.last_line(),
        };
        let figures = Figures {
            mean: mean(&looks).filter(|_| told),
            whole: whole_mean(&looks).filter(|_| told),
            peak: looks.iter().map(|look| look.bytes as f64).reduce(f64::max).filter(|_| told),
            cpu: Some((used.user + used.system + merged).as_secs_f64()),
            wall: Some(wall.as_secs_f64()),
            charge: charge.map(|bytes| bytes as f64),
            metric: said.iter().find_map(|printed| printed.last(self.metric?)),
            waited: waited(&looks, asked.is_some()),
            counted: counted(&used, &looks, if asked.is_some() { &[] } else { &run.counted }),
            round: 0,
        };
        Ok(Ok(Run {
            figures,
            ending: kills.ending().unwrap_or(ended),
            used,
            looks,
            marks: seen.marks,
            asked_until: asked.as_ref().map(LoadOutcome::until),
            live: seen.live,
            live_mean: pagemill_analysis::statistics::mean(&seen.lives),
            allocator: seen.allocator,
            pymalloc: seen.pymalloc,
            readings: seen.readings,
            not_asked: seen.not_asked,
            zeros: seen.zeros.map(|(_, zeros)| zeros),
            // What a server prints says when it did what.
            digest: if asked.is_some() { 0 } else { out.digest },
            complaint,
            left,
        }))
    }

    /// What runs until the command is executed, if that is this binary.
    fn before(&self, start: &Start) -> Option<PathBuf> {
        let Target { executable, path, .. } = self.target;
        (!start.words.is_empty() && executable != path).then(|| executable.clone())
    }

    /// Waits for the end of a command, or asks a server and ends it.
    fn attend(
        &self,
        child: &mut Child,
        options: RunOptions,
        beat: Heartbeat<'_>,
    ) -> Result<(Ending, Option<LoadOutcome>)> {
        let Some(load) = self.load else { return Ok((self.wait(child, options, beat)?, None)) };
        let asked = ask(&self.target.linux, child, load, self.signals, beat)?;
        let ending = asked.failed.clone().map_or(Ending::Served, Ending::Failed);
        Ok((ending, Some(asked)))
    }

    fn command(&self, start: &Start) -> Command {
        let target = self.target;
        let mut command = if start.words.is_empty() {
            let mut command = Command::new(&target.path);
            command.arg0(&target.words[0]).args(&target.words[1..]);
            command
        } else {
            let mut command = Command::new(&target.executable);
            command.args(&start.words).args(&target.words);
            command
        };
        command.envs(start.variables.iter().map(|(name, value)| (name, value))).process_group(0);
        self.signals.restore_in(&mut command);
        command
    }

    /// Waits for the end, within a limit.
    fn wait(&self, child: &mut Child, options: RunOptions, beat: Heartbeat<'_>) -> Result<Ending> {
        let (begun, limit) = (Instant::now(), options.limit);
        let mut stall = Stall::begin(&self.target.linux, Pid(child.id()), options.rest);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ending::Status(status));
            }
            if begun.elapsed() > limit {
                stop(child)?;
                return Ok(Ending::TooLong);
            }
            let rest = limit.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
            let received = self.signals.wait(rest.min(Duration::from_secs(1)))?;
            let ends = received.map(|received| received.signal);
            if let Some(signal) = ends.filter(|signal| *signal != signal::CHILD) {
                stop(child)?;
                return Err(Interrupted(signal).into());
            }
            match stall.sample(Instant::now()) {
                StallState::Stopped => {
                    stop(child)?;
                    return Ok(Ending::Stopped);
                }
                StallState::Idle => {
                    stop(child)?;
                    return Ok(Ending::Idle);
                }
                // Under levers it does as it did when it was looked at first.
                StallState::Rests(waits) if options.marks => beat(Some(waits)),
                StallState::Rests(_) | StallState::Nothing => beat(None),
            }
        }
    }

    /// Ends what the command has left behind; whether there was anything.
    fn tidy(&self) -> Result<bool> {
        let linux = &self.target.linux;
        let begun = Instant::now();
        while !orphans::left(linux, &[])?.is_empty() {
            if begun.elapsed() > LINGER {
                orphans::end(linux, &[])?;
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }
}

/// The last line of what clients `said`; of one that never asked, why its server ended, which the server says.
fn last_complaint(said: &[&Printed], server: [&Printed; 2]) -> String {
    let mut lines = said.iter().rev().copied().chain(server).map(Printed::last_line);
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// Looks at a run, of a server those since it was first asked.
fn asked_looks(looks: Vec<Memory>, asked: Option<&LoadOutcome>) -> Vec<Memory> {
    let from = asked.map_or(0.0, |asked| asked.from);
    looks.into_iter().filter(|look| look.seconds >= from).collect()
}

/// What tells the CPU time of ksmd so far, where it works for a command that is started so.
fn merging(linux: &Linux, start: &Start) -> impl Fn() -> Duration {
    let ksmd = start.merged.then(|| linux.kernel_thread("ksmd").ok().flatten()).flatten();
    move || ksmd.and_then(|ksmd| linux.thread_cpu(ksmd).ok()).unwrap_or_default()
}

/// Processes of a group that the kernel killed for want of memory.
struct Kills<'a> {
    group: Option<&'a cgroup::Group>,
    before: u64,
}

impl<'a> Kills<'a> {
    fn begin(group: Option<&'a cgroup::Group>) -> Self {
        Self { group, before: Self::counted(group) }
    }

    /// So many until now; none where nobody counts them.
    fn counted(group: Option<&cgroup::Group>) -> u64 {
        group.and_then(|group| group.events().ok()?.oom_kill).unwrap_or(0)
    }

    /// How a run ended in which there were any.
    fn ending(&self) -> Option<Ending> {
        let limit = self.group.and_then(cgroup::Group::least_limit);
        (Self::counted(self.group) > self.before).then_some(Ending::Starved { limit })
    }
}

/// A control group for one run, if this user may make one.
fn group(linux: &Linux) -> Option<cgroup::Child> {
    let mine = linux.memory_cgroup(Pid::own()).ok()?;
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    mine.create(&format!("{}-{since}", std::process::id())).ok()
}

/// What was seen of a run while it ran.
#[derive(Default)]
struct RunSamples {
    looks: Vec<Memory>,
    marks: Vec<f64>,
    live: Option<u64>,
    lives: Vec<f64>,
    allocator: Option<Allocator>,
    pymalloc: bool,
    readings: Readings,
    not_asked: Option<String>,
    zeros: Option<(u64, ZeroSample)>,
}

/// What the kernel and the processor counted in a run, in the order of [`Count`].
fn counted(
    used: &Resources,
    looks: &[Memory],
    processor: &[(&str, f64)],
) -> [Option<f64>; Count::ALL.len()] {
    let most = looks.iter().max_by_key(|look| look.anonymous);
    let kernel = [
        Some(used.user.as_secs_f64()),
        Some(used.system.as_secs_f64()),
        Some(used.faults as f64),
        most.map(|look| look.anonymous as f64 / 1048576.0),
        most.map(|look| look.huge as f64 / look.anonymous.max(1) as f64),
    ];
    let of =
        |name: &str| processor.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
    Count::ALL.map(|what| kernel.get(what as usize).copied().unwrap_or_else(|| of(what.name())))
}

/// How long the threads of a run waited for a CPU, seconds: since its start, or, `partly`, since the first look.
fn waited(looks: &[Memory], partly: bool) -> Option<f64> {
    let (first, last) = (looks.first()?.waited?, looks.last()?.waited?);
    Some(last.saturating_sub(if partly { first } else { Duration::ZERO }).as_secs_f64())
}

/// The heap of the largest process, if that is ours.
struct HeapOf<'a> {
    linux: &'a Linux,
    /// Whose: the process and what it executes.
    found: Option<((Pid, Option<PathBuf>), stats_page::Page)>,
}

impl HeapOf<'_> {
    /// Finds the heap of this process, if that is not known. One that executes another program has another heap, and
    /// the same number.
    fn locate(&mut self, pid: Pid) {
        let whose = (pid, std::fs::read_link(self.linux.process_file(pid, "exe")).ok());
        if self.found.as_ref().is_none_or(|(known, _)| *known != whose) {
            let page = stats_page::locate(self.linux, pid).ok().flatten();
            self.found = page.map(|page| (whose, page));
        }
    }

    /// Its live bytes.
    fn live(&self) -> Option<u64> {
        self.found.as_ref().and_then(|(_, page)| page.read().ok()??.live_bytes)
    }
}

/// When the pages of a run are marked as not accessed.
struct MarkSchedule {
    /// Not before, seconds.
    next: f64,
    /// Anonymous memory at the look before, bytes.
    last: u64,
}

impl Default for MarkSchedule {
    fn default() -> Self {
        Self { next: Self::FIRST, last: 0 }
    }
}

impl MarkSchedule {
    /// Pages are marked when the run is this old, seconds, and again each time that it is twice as old, or what its
    /// malloc keeps free was read.
    const FIRST: f64 = 0.1;
    /// Who has grown by this part since the look before grows.
    const GROWTH: f64 = 0.05;

    /// Whether to mark at this look: what is being made counts as accessed, so a program that grows has a mark when it
    /// has grown, or as late as its next one would come.
    fn due(&mut self, look: &Memory) -> bool {
        let grows = look.anonymous as f64 > self.last as f64 * (1.0 + Self::GROWTH);
        self.last = look.anonymous;
        look.seconds >= self.next * if grows { 2.0 } else { 1.0 }
    }

    /// Pages were marked at so many seconds.
    fn marked(&mut self, seconds: f64) {
        self.next = seconds * 2.0;
    }
}

impl RunSamples {
    /// Time between two looks where a rest and what is not accessed are to be noticed: at the least, and at the most.
    const CLOSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

    /// That time after these looks: a fifth of the run's age.
    fn close(looks: &[Memory]) -> Duration {
        let age = looks.last().map_or(0.0, |look| look.seconds);
        Duration::from_secs_f64(age / 5.0).clamp(Self::CLOSE.0, Self::CLOSE.1)
    }

    fn watch(
        linux: &Linux,
        pid: Pid,
        over: &AtomicBool,
        (RunOptions { marks, .. }, start): (RunOptions, &Start),
        before: Option<&Path>,
    ) -> Self {
        let heap = start.on_heap;
        // On a busy machine a look would come late, or not at all. Where the kernel refuses, so be it.
        let _ = scheduling::be_real_time();
        let executes = |look: &Memory| {
            let runs = std::fs::read_link(linux.process_file(look.largest, "exe"));
            look.processes > 1 || before.is_none_or(|before| runs.is_ok_and(|runs| runs != before))
        };
        let mut seen = Self::default();
        let (mut watch, mut heaps) = (Watch::begin(linux), HeapOf { linux, found: None });
        let mut asking = Asking::new(linux);
        let mut schedule = MarkSchedule::default();
        let mut largest = 0;
        while !over.load(Ordering::Relaxed) {
            if let Some(look) = watch.sample(&[pid]).filter(executes) {
                seen.looks.push(look);
                if marks {
                    // In this order: what is read counts as accessed.
                    let read = asking.ask(&look);
                    let due = schedule.due(&look);
                    if due && look.huge > seen.zeros.map_or(0, |(huge, _)| huge) {
                        let zeros = ZeroSample::of(linux, look.largest);
                        seen.zeros = zeros.map(|zeros| (look.huge, zeros)).or(seen.zeros);
                    }
                    if (due || read) && linux.clear_referenced(look.largest).is_ok() {
                        let now = watch.seconds();
                        schedule.marked(now);
                        seen.marks.push(now);
                        // Of several processes one after the other, those of the largest.
                        if look.bytes >= largest {
                            largest = look.bytes;
                            seen.allocator = Allocator::of(linux, look.largest).or(seen.allocator);
                            seen.pymalloc = cpython::has_pymalloc(linux, look.largest);
                        }
                    }
                }
                if heap {
                    heaps.locate(look.largest);
                    let live = heaps.live();
                    seen.live = seen.live.max(live);
                    seen.lives.extend(live.map(|live| live as f64));
                }
            }
            let longest = if marks { Self::close(&seen.looks) } else { Duration::MAX };
            let until = Instant::now() + watch.pause().min(longest);
            while Instant::now() < until && !over.load(Ordering::Relaxed) {
                let rest = until.saturating_duration_since(Instant::now());
                std::thread::sleep(rest.min(Duration::from_millis(4)));
            }
        }
        seen.readings = asking.readings;
        seen.not_asked = asking.why_not(seen.allocator).filter(|_| marks);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_marked_when_the_program_has_grown_and_seldom() {
        let marks = |looks: &[(f64, u64)]| {
            let mut schedule = MarkSchedule::default();
            let mut marks = Vec::new();
            for (seconds, anonymous) in looks.iter().copied() {
                if schedule.due(&Memory { seconds, anonymous, ..Memory::default() }) {
                    schedule.marked(seconds);
                    marks.push(seconds);
                }
            }
            marks
        };
        let settled = [(0.05, 100), (0.11, 100), (0.15, 102), (0.23, 102), (0.4, 100), (0.5, 100)];
        assert_eq!(marks(&settled), [0.11, 0.23, 0.5]);
        let growing = [(0.05, 10), (0.11, 40), (0.15, 100), (0.18, 101), (0.3, 101), (0.36, 101)];
        assert_eq!(marks(&growing), [0.18, 0.36], "not while it grows");
        let always = [(0.1, 10), (0.15, 20), (0.21, 40), (0.3, 80), (0.5, 160), (0.9, 320)];
        assert_eq!(marks(&always), [0.21, 0.9], "but at last");
    }
}

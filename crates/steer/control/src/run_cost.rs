//! What one run of a command cost: time, faults, memory, and what the processor counted.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use pagemill_kernel::Linux;
use pagemill_kernel::process::suspended::Suspended;
use pagemill_kernel::process::{Resources, UsageScope, resources};
use pagemill_kernel::trace::perf_event::{Attributes, Counter, Event, Target};
use pagemill_model::Pid;

/// What one run gave: name and value.
pub type Run = Vec<(&'static str, f64)>;

/// The processor's counters, and what they are called.
const COUNTERS: [(&str, Counter); 6] = [
    ("cycles", Counter::Cycles),
    ("instructions", Counter::Instructions),
    ("dtlb_load_misses", Counter::DataTlbLoadMisses),
    ("dtlb_store_misses", Counter::DataTlbStoreMisses),
    ("itlb_misses", Counter::InstructionTlbMisses),
    ("cache_misses", Counter::CacheMisses),
];

/// The processor's counters on a command; those that it has.
struct Opened(Vec<(&'static str, Event)>);

impl Opened {
    /// On the suspended process `pid` and all that it starts, in user mode, from the program that it executes.
    fn on(pid: Pid) -> Self {
        let open = |(name, what): &(&'static str, Counter)| {
            let attributes = Attributes::counting(*what).user_only().inherited().from_exec();
            Some((*name, Event::open(&attributes, Target::Thread(pid)).ok()?))
        };
        Self(COUNTERS.iter().filter_map(open).collect())
    }

    /// What they have counted, by name.
    fn read(&self) -> Result<Run> {
        let mut all = Vec::new();
        for (name, event) in &self.0 {
            let count = event.count()?;
            let share = count.running.as_secs_f64() / count.enabled.as_secs_f64().max(1e-9);
            // Counters that took turns are scaled; one that never had its turn has no value.
            if share > 0.0 {
                all.push((*name, count.value as f64 / share));
            }
        }
        Ok(all)
    }
}

/// Whether the processor counts for this user: the counter of its cycles, or why there is none.
///
/// # Errors
/// Why there is none.
pub fn processor() -> pagemill_kernel::Result<Event> {
    Event::open(&Attributes::counting(Counter::Cycles).user_only(), Target::Thread(Pid(0)))
}

/// How often the memory of a run is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A run of a command.
#[derive(Debug)]
pub struct Timed<W> {
    /// From its first instruction to its end.
    pub took: Duration,
    /// What it and all that it started and waited for used.
    pub used: Resources,
    /// What the processor counted, by name; empty where it does not.
    pub counted: Run,
    /// What `wait` says of its end.
    pub ended: W,
}

/// Runs a command, which `wait` waits for, beside `watch`, which is told its number and when it is over; `None` of it
/// where no other thread can be started. The inner error is that it cannot be executed.
///
/// # Errors
/// The command cannot be suspended, or what `wait` returned.
pub fn timed<W, M: Send>(
    command: Command,
    watch: impl FnOnce(Pid, &AtomicBool) -> M + Send,
    wait: impl FnOnce(&mut Child) -> Result<W>,
) -> Result<io::Result<(Timed<W>, Option<M>)>> {
    let suspended = match Suspended::spawn(command)? {
        Ok(suspended) => suspended,
        Err(error) => return Ok(Err(error)),
    };
    let pid = suspended.pid();
    let counters = Opened::on(pid);
    let before = resources(UsageScope::EndedChildren);
    let begun = Instant::now();
    let mut child = match suspended.release() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let over = AtomicBool::new(false);
    let (waited, took, watched) = thread::scope(|scope| {
        let looks = thread::Builder::new().spawn_scoped(scope, || watch(pid, &over)).ok();
        let waited = wait(&mut child);
        let took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        (waited, took, looks.map(ScopedJoinHandle::join))
    });
    let ended = waited.context("cannot wait for the command")?;
    let watched = watched.transpose();
    let watched = watched.map_err(|_| anyhow!("what watches the command has failed"))?;
    let after = resources(UsageScope::EndedChildren);
    let used = Resources {
        user: after.user - before.user,
        system: after.system - before.system,
        faults: after.faults - before.faults,
        resident: after.resident,
    };
    Ok(Ok((Timed { took, used, counted: counters.read()?, ended }, watched)))
}

/// Runs a command, which `wait` waits for, and returns what was measured and how it ended. The inner error is that it
/// cannot be executed.
///
/// # Errors
/// As of [`timed`]; the counters cannot be read.
pub fn measured(
    linux: &Linux,
    command: Command,
    wait: impl FnOnce(&mut Child) -> Result<ExitStatus>,
) -> Result<io::Result<(Run, ExitStatus)>> {
    let (run, memory) = match timed(command, |pid, over| watch(linux, pid, over), wait)? {
        Ok(done) => done,
        Err(error) => return Ok(Err(error)),
    };
    let mut all: Run = vec![
        ("seconds", run.took.as_secs_f64()),
        ("user_seconds", run.used.user.as_secs_f64()),
        ("system_seconds", run.used.system.as_secs_f64()),
        ("page_faults", run.used.faults as f64),
    ];
    if let Some(AnonymousMemory { all: anonymous, huge }) = memory.flatten() {
        all.push(("anonymous_mib", anonymous as f64 / 1048576.0));
        all.push(("huge_share", huge as f64 / anonymous.max(1) as f64));
    }
    all.extend(run.counted);
    Ok(Ok((all, run.ended)))
}

/// Anonymous memory, and how much of it is on huge pages; bytes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AnonymousMemory {
    all: u64,
    huge: u64,
}

/// The most anonymous memory of a run.
fn watch(linux: &Linux, pid: Pid, over: &AtomicBool) -> Option<AnonymousMemory> {
    let mut most: Option<AnonymousMemory> = None;
    while !over.load(Ordering::Relaxed) {
        if let Ok(usage) = linux.smaps_rollup(pid) {
            let seen = usage.anonymous.zip(usage.anon_huge_pages);
            most = most.max(seen.map(|(all, huge)| AnonymousMemory { all, huge }));
        }
        thread::sleep(LOOK);
    }
    most
}

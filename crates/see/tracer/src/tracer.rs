//! The tracer: what it knows, and the pace of intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use pagemill_kernel::process::ptrace::{self, Stop};
use pagemill_kernel::{Error, Kind, Linux, Result, clock};
use pagemill_model::Pid;

use crate::child::Child;
use crate::descriptors::{Session, own_descriptors};
use crate::events::{Events, FaultSource};
use crate::notification::SyscallNotification;
use crate::page_out::PagedOut;
use crate::process::Process;
use crate::trace::{Ended, Options, Sink, Untraced};

/// What one fault costs the program, for counting useful time, until more is known.
pub(crate) const FAULT: Duration = Duration::from_nanos(1300);

/// The same where its page comes back from swap.
const PAGED: Duration = Duration::from_nanos(6000);

/// Why a program is let go whose injector or mapper has ended.
pub(crate) const HELPERS: &str = "what runs for the tracer in it was killed";

/// An interval tells itself after this many times its length even if the program sleeps.
const IDLE: u32 = 10;

/// The interval under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    pub(crate) began: Option<Instant>,
    /// CPU time of the processes when it began.
    pub(crate) cpu: Duration,
    /// Useful time that the budget demands.
    pub(crate) at_least: Duration,
}

/// A traced thread.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The process whose memory it has: its own, or one that it shares the memory with.
    pub(crate) process: Pid,
    /// The process that it is a thread of.
    pub(crate) group: Pid,
    /// Stopped together with others (`hold`).
    pub(crate) held: bool,
}

/// A program being traced.
pub struct Tracer {
    pub(crate) linux: Linux,
    pub(crate) options: Options,
    pub(crate) session: Session,
    pub(crate) root: Pid,
    pub(crate) threads: BTreeMap<Pid, Thread>,
    pub(crate) processes: BTreeMap<Pid, Process>,
    /// Forked, and not adopted yet.
    pub(crate) children: BTreeMap<Pid, Child>,
    /// For these: whose memory file they still read.
    pub(crate) reads: BTreeMap<Pid, Pid>,
    /// Forks that the sink was not told of.
    pub(crate) parents: Vec<(Pid, Pid)>,
    /// Threads that will fork, with everything else of their process held, and since when.
    pub(crate) forking: BTreeMap<Pid, (Pid, Instant)>,
    /// Stops of threads that were to be held, to be looked at when they no longer are.
    pub(crate) deferred: Vec<(Pid, Stop)>,
    /// Calls that a mapper had received when it was ended, and those that the tracer received itself.
    pub(crate) unanswered: Vec<SyscallNotification>,
    /// Threads that come back from a call of theirs, asked to stop, and are to make it again.
    pub(crate) again: BTreeSet<Pid>,
    /// Threads that a failure left stopped in the middle of a fork.
    pub(crate) midway: BTreeSet<Pid>,
    /// Processes to be let go by themselves; and those that cannot be, and are asked no more.
    pub(crate) withdrawing: BTreeSet<Pid>,
    pub(crate) plain_clone: BTreeSet<Pid>,
    /// Whether the program has begun to run.
    pub(crate) begun: bool,
    /// All was let go: who stops now is let go too.
    pub(crate) released: bool,
    /// Why all was let go before its time.
    pub(crate) abandoned: Option<String>,
    /// Helpers that had ended when they were looked at last, which is when.
    pub(crate) missed: (Instant, BTreeSet<Pid>),
    /// Stopped at their first instruction before their parent told of them.
    pub(crate) early: BTreeSet<Pid>,
    /// About to end. One that leads its process is told to have ended only after all others of it.
    pub(crate) leaving: BTreeSet<Pid>,
    /// Processes that were looked at because all their threads end.
    pub(crate) ending: BTreeSet<Pid>,
    pub(crate) events: Events,
    pub(crate) source: FaultSource,
    /// Better ways to be told of faults, and why they are not used.
    pub(crate) not_used: Vec<String>,
    pub(crate) untraced: Vec<Untraced>,
    pub(crate) pace: Pace,
    /// Not started here: signals are for us.
    pub(crate) attached: bool,
    pub(crate) seen: u64,
    pub(crate) seen_at_tick: u64,
    pub(crate) lost: u64,
    /// The sink wants no more.
    pub(crate) full: bool,
    /// Instead of all this: a process that is watched from outside.
    pub(crate) paged: Option<PagedOut>,
    /// Why it is.
    pub(crate) paged_out: Option<String>,
    pub(crate) ended: Option<Ended>,
}

impl Tracer {
    /// A tracer of nothing yet.
    pub(crate) fn new(linux: Linux, options: Options, root: Pid) -> Result<Self> {
        own_processes(&linux)?;
        let (events, source, not_used) =
            Events::best(&linux, options.events.unwrap_or(FaultSource::Bpf));
        let privileged =
            linux.status(Pid::own())?.can(pagemill_kernel::process::Capability::SysAdmin);
        let session = Session {
            own_fds: own_descriptors()?,
            listener: None,
            privileged,
            keeper: None,
            received: Vec::new(),
        };
        Ok(Self {
            linux,
            options,
            session,
            root,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            children: BTreeMap::new(),
            reads: BTreeMap::new(),
            parents: Vec::new(),
            forking: BTreeMap::new(),
            deferred: Vec::new(),
            unanswered: Vec::new(),
            again: BTreeSet::new(),
            midway: BTreeSet::new(),
            withdrawing: BTreeSet::new(),
            plain_clone: BTreeSet::new(),
            begun: false,
            released: false,
            abandoned: None,
            missed: (Instant::now(), BTreeSet::new()),
            early: BTreeSet::new(),
            leaving: BTreeSet::new(),
            ending: BTreeSet::new(),
            events,
            source,
            not_used,
            untraced: Vec::new(),
            pace: Pace::default(),
            attached: false,
            seen: 0,
            seen_at_tick: 0,
            lost: 0,
            full: false,
            paged: None,
            paged_out: None,
            ended: None,
        })
    }

    /// The process that was started.
    pub fn pid(&self) -> Pid {
        self.root
    }

    /// Ranges whose accesses are not seen.
    pub fn untraced(&self) -> &[Untraced] {
        &self.untraced
    }

    /// How faults are told.
    pub fn fault_source(&self) -> FaultSource {
        self.source
    }

    /// Better ways, and why they are not used.
    pub fn not_used(&self) -> &[String] {
        &self.not_used
    }

    /// Accesses that were lost so far.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn lost(&self) -> Result<u64> {
        match &self.events {
            Events::None => Ok(self.lost),
            events => events.lost(),
        }
    }

    /// Why the program was let go before its end, or before it was asked for.
    pub fn abandoned(&self) -> Option<&str> {
        self.abandoned.as_deref()
    }

    /// Says why all is let go.
    pub(crate) fn released_because(&mut self, error: &Error) {
        let why = format!("let go before its end: {error}");
        self.untraced.push(Untraced::of(self.root, why));
        self.abandoned.get_or_insert_with(|| error.to_string());
    }

    /// Who answers when we are gone.
    pub(crate) fn tell_keeper(&self) {
        if let Some(keeper) = &self.session.keeper {
            let pair = |process: &Process| Some((process.mapper?, process.pid));
            keeper.tell(self.processes.values().filter_map(pair));
        }
    }

    /// Tells of processes that were not told of yet.
    pub(crate) fn introduce(&mut self, sink: &mut dyn Sink) {
        for (parent, child) in std::mem::take(&mut self.parents) {
            let _ = sink.forked(parent, child);
        }
        for (pid, process) in &mut self.processes {
            let original = std::mem::take(&mut process.original);
            if !original.is_empty() {
                let _ = sink.process(*pid, &original);
            }
        }
    }

    /// Hands events on.
    pub(crate) fn drain(&mut self, sink: &mut dyn Sink) {
        let (seen, full) = (&mut self.seen, &mut self.full);
        self.events.read(|access| {
            *seen += 1;
            *full |= sink.access(&access).is_err();
        });
    }

    /// CPU time of the traced processes so far. One that has just ended counts no more.
    pub(crate) fn cpu(&self) -> Duration {
        let outside = self.paged_out.as_ref().map(|_| &self.root);
        let followed = self.processes.keys().chain(self.children.keys()).chain(outside);
        followed.filter_map(|&pid| clock::of_process(pid).ok()).sum()
    }

    pub(crate) fn start_interval(&self) -> Pace {
        Pace { began: Some(Instant::now()), cpu: self.cpu(), at_least: self.pace.at_least }
    }

    /// Faults of this interval, by what is known of them.
    pub(crate) fn faults(&self) -> u64 {
        self.seen - self.seen_at_tick
    }

    /// How much of the interval is left, in useful time: the time that the program ran, without what its
    /// faults cost. One that sleeps is looked at now and then all the same.
    pub(crate) fn left(&self) -> Duration {
        let wall = self.pace.began.map_or(Duration::MAX, |began| began.elapsed());
        let interval = self.options.interval.max(self.pace.at_least);
        if wall >= interval * IDLE {
            return Duration::ZERO;
        }
        let ran = self.cpu().saturating_sub(self.pace.cpu).min(wall);
        let fault = if self.paged_out.is_some() { PAGED } else { FAULT };
        let cost = fault * u32::try_from(self.faults()).unwrap_or(u32::MAX);
        interval.saturating_sub(ran.saturating_sub(cost))
    }

    pub(crate) fn next_interval(&mut self) {
        self.seen_at_tick = self.seen;
        self.pace = self.start_interval();
    }

    /// A thread that was killed meanwhile says so by its next stop.
    pub(crate) fn go_on(&self, thread: Pid, signal: i32) {
        let _ = ptrace::resume(thread, signal);
    }
}

/// Processes are looked at by the numbers that they have here.
fn own_processes(linux: &Linux) -> Result<()> {
    let myself = std::fs::read_link(linux.path("/proc/self"));
    if myself.is_ok_and(|link| link.as_os_str() == OsStr::new(&std::process::id().to_string())) {
        return Ok(());
    }
    let why = "it shows the processes of another PID namespace";
    Err(Error::new(Kind::Unsupported, "trace processes by", "/proc", why)
        .advise("mount one of this namespace: mount -t proc proc /proc, or unshare --mount-proc"))
}

//! The daemon's loop: look, decide, act, say; once a quantum, until a signal, `--for` or the end of all
//! its processes.
//!
//! Settings are on loan: they are put back when this returns, and by the next start after a kill. The
//! source is let rest while the daemon is above its share of a core.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pagemill_kernel::process::signal::Signals;
use pagemill_kernel::settings::damon;
use pagemill_kernel::{
    Kind, Linux, clock,
    settings::{cgroup, loan},
};
use pagemill_model::page::HUGE;
use pagemill_model::recording::Writer;
use pagemill_model::{
    Actuator, Bytes, Event, Nanos, Pid, Policy as _, TierDecision, TierOutcome, TierView,
};
use pagemill_policy::tier::live::Live;

use super::Tiers;
use super::access_sources::{AccessSource, Migrate, SourceChoice};
use super::actuators::{
    Damos, DryRun, Guard, Interleave, KernelPromotion, Log, MovePages, RateLimit, SharedSource,
    SkipReason, Tiering, tiering,
};
use super::latency::{Latency, TierTraffic};
use super::pages::{Pages, Shared};
use super::status::{self, Board, Status};

/// Whose memory is placed.
#[derive(Clone, Debug)]
pub enum Scope {
    /// These processes, and those that they start if `children`.
    Processes {
        /// They.
        pids: Vec<Pid>,
        /// Whether those that they start are followed.
        children: bool,
    },
    /// All processes of a cgroup and of those below it.
    Group(PathBuf),
}

/// How pages are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActuatorKind {
    /// One by one.
    MovePages,
    /// By DAMON's threads, as much as is decided.
    Damos,
    /// By DAMON's threads alone.
    Tiering,
    /// By the kernel's hint faults.
    Kernel,
    /// By the weights for new memory.
    Interleave,
}

/// What the daemon is to do.
pub struct Options {
    /// Whose memory.
    pub scope: Scope,
    /// Both nodes.
    pub tiers: Tiers,
    /// The policy; it has seen nothing.
    pub policy: Live,
    /// Who sees what is hot.
    pub track: SourceChoice,
    /// How it acts.
    pub act: ActuatorKind,
    /// Whether it does.
    pub apply: bool,
    /// Time between two decisions.
    pub quantum: Duration,
    /// When to stop.
    pub length: Option<Duration>,
    /// Bytes that may move a second.
    pub rate: Bytes,
    /// Part of one core that tracking may take.
    pub cpu: f64,
    /// Memory of the default tier that is left free.
    pub reserve: Bytes,
    /// Takes the line about a quantum in which something moved.
    pub told: fn(&str),
}

/// Where outcomes go: the recording, and the sums of the status.
struct Sink {
    writer: Option<Writer>,
    failed: Option<pagemill_model::Error>,
}

impl Sink {
    fn event(&mut self, event: &Event) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.event(event)
        {
            self.failed = self.failed.take().or(Some(error));
        }
    }
}

/// Restores what a killed pagemill left; says what. DAMON's threads first: while they run, `DAMON_STAT`
/// cannot be switched on again.
///
/// # Errors
/// A journal cannot be read, or a setting not be restored.
pub fn restore(linux: &Linux) -> pagemill_kernel::Result<Vec<String>> {
    let journals = loan::directory(linux);
    let mut restored = Vec::new();
    if damon::recover(linux, &journals)? {
        restored.push("DAMON".to_owned());
    }
    for (name, files) in loan::recover_files(linux, &journals)? {
        restored.extend(files.iter().map(|(path, value)| format!("{path} to {value} ({name})")));
    }
    Ok(restored)
}

/// Runs until told to stop.
///
/// # Errors
/// It cannot start, or a look, a decision or a record of it fails.
pub fn run(
    linux: &Linux,
    options: Options,
    latency: Latency,
    writer: Option<Writer>,
    signals: &Signals,
) -> Result<()> {
    let mut daemon = Daemon::start(linux, options, latency, writer)?;
    let mut due = daemon.begun;
    for quantum in 0_u64.. {
        due += daemon.options.quantum;
        if !daemon.census(quantum)? {
            break;
        }
        // A node may be taken offline, and come back: nothing moves meanwhile.
        if !daemon.waits_for_a_node() {
            daemon.decide(quantum)?;
        }
        // A kill of the process that is placed, or the time asked for, ends this too.
        let end = daemon.options.length.map(|length| daemon.begun + length);
        if end.is_some_and(|end| Instant::now() >= end) || wait(signals, due, end)? {
            break;
        }
        // After a pause (a stopped machine, a long quantum) it goes on from now.
        due = due.max(Instant::now());
    }
    daemon.end()
}

/// A daemon at work.
struct Daemon<'a> {
    linux: &'a Linux,
    options: Options,
    latency: Latency,
    pages: Shared,
    sink: Rc<RefCell<Sink>>,
    source: SharedSource,
    actuator: Box<dyn Actuator>,
    /// Where its status is shown, if it can be.
    board: Option<Board>,
    /// Whether that it could not be was said.
    unwritable: bool,
    status: Status,
    begun: Instant,
    /// CPU time of this process by then.
    cpu: Duration,
    /// The last decision.
    last: Nanos,
    /// The node that had no memory when it was looked for last.
    missing: Option<u32>,
}

impl<'a> Daemon<'a> {
    /// Borrows the settings that it needs.
    fn start(
        linux: &'a Linux,
        options: Options,
        latency: Latency,
        writer: Option<Writer>,
    ) -> Result<Self> {
        let journals = loan::directory(linux);
        status::sweep(&journals);
        let board = Board::claim(&journals)
            .inspect_err(|error| {
                notice!("tier status will not see this daemon: {error}");
            })
            .ok();
        let pages: Shared = Rc::new(RefCell::new(Pages::new(options.tiers)));
        let sink = Rc::new(RefCell::new(Sink { writer, failed: None }));
        let source: SharedSource = Rc::new(RefCell::new(match options.policy.moves_pages() {
            true => Some(options.source(linux)?),
            false => None,
        }));
        let actuator = actuator(linux, &options, &pages, &source, &sink)?;
        let me = linux.stat(Pid::own()).or_else(|_| Linux::live().stat(Pid::own()))?;
        let status = Status {
            pid: me.pid,
            started: me.started,
            policy: options.policy.name().to_owned(),
            dry: !options.apply,
            latency_source: latency.name().to_owned(),
            tracker: source.borrow().as_ref().map_or("none", AccessSource::name).to_owned(),
            ..Status::default()
        };
        let cpu = linux.thread_cpu(me.pid).unwrap_or_default();
        let (begun, last) = (Instant::now(), Nanos::from(clock::monotonic()));
        let missing = None;
        Ok(Self {
            linux,
            options,
            latency,
            pages,
            sink,
            source,
            actuator,
            board,
            unwritable: false,
            status,
            begun,
            cpu,
            last,
            missing,
        })
    }

    /// Finds the processes and their pages; whether there are any.
    fn census(&mut self, quantum: u64) -> Result<bool> {
        let known = self.pages.borrow().pids();
        let pids = self.options.scope.pids(self.linux, &known)?;
        let mut pages = self.pages.borrow_mut();
        pages.census(self.linux, &pids)?;
        pages.new_notices().iter().for_each(|what| notice!("{what}"));
        if pages.pids().is_empty() {
            if quantum == 0 {
                bail!("no process to place: those named have ended (or the group is empty)");
            }
            notice!("{}", self.options.scope.ended());
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether one of the two nodes has no memory now.
    fn waits_for_a_node(&mut self) -> bool {
        let missing = missing(self.linux, self.options.tiers);
        match (missing, std::mem::replace(&mut self.missing, missing)) {
            (Some(node), before) if before != Some(node) => {
                notice!("node {node} has no memory any more: waiting until it has");
            }
            (None, Some(node)) => notice!("node {node} has memory again"),
            _ => {}
        }
        missing.is_some()
    }

    /// Looks which pages are hot, unless that has taken too much of a core.
    fn track(&mut self, quantum: u64, busy: bool) -> Result<()> {
        if let Some(source) = &mut *self.source.borrow_mut()
            && (quantum < 2 || !busy)
        {
            match source.add_heat(self.linux, &self.pages) {
                // Who has just ended is missed by the next census.
                Err(error) if error.kind() == Kind::Gone => {}
                looked => looked?,
            }
            // Where pages are changes little that this daemon does not know of.
            let all = self.pages.borrow().len();
            self.pages.borrow_mut().locate((all / 16).max(2048));
        }
        Ok(())
    }

    /// One quantum: what is seen, what is decided, what comes of it.
    fn decide(&mut self, quantum: u64) -> Result<()> {
        let Self { linux, .. } = *self;
        let cpu = linux.thread_cpu(self.status.pid).unwrap_or_default().saturating_sub(self.cpu);
        let elapsed = self.begun.elapsed();
        self.track(quantum, cpu.as_secs_f64() > self.options.cpu * elapsed.as_secs_f64())?;
        let traffic = self.latency.since_last(elapsed)?;
        let now = Nanos::from(clock::monotonic());
        let mut view = view(&self.options, &traffic, self.latency.name(), quantum, now, self.last);
        self.last = now;
        view.room = Some(room(linux, self.options.tiers, self.options.reserve)?.to_vec());
        view.cpu = Some(Nanos::from(cpu));
        self.pages.borrow_mut().report(&mut view);
        let write = |event: &Event| self.sink.borrow_mut().event(event);
        let (decision, outcome) =
            carry_out(&view, &mut self.options.policy, &mut *self.actuator, write);
        if let Some(error) = self.sink.borrow_mut().failed.take() {
            return Err(error).context("the recording cannot go on");
        }
        let seconds = elapsed.as_secs_f64();
        let source = self.source.borrow();
        let tracking = source.as_ref().and_then(|source| source.cpu(linux));
        let status = &mut self.status;
        count_kept(status, &outcome);
        status.quantum = quantum;
        status.seconds = seconds;
        status.cpu = cpu.as_secs_f64() / seconds.max(1e-9);
        status.tracker_cpu = tracking.map(|cpu| cpu / seconds.max(1e-9));
        status.share = decision.share.map(|share| share as f64 / 1e6);
        status.why = decision.why.unwrap_or_default();
        status.actuator = outcome.actuator.clone().unwrap_or_default();
        count_moved(status, &outcome, &self.pages.borrow());
        standing(status, linux, &self.pages.borrow(), &self.options, &traffic)?;
        if let Some(Err(error)) = self.board.as_ref().map(|board| board.write(status))
            && !std::mem::replace(&mut self.unwritable, true)
        {
            notice!("tier status does not see what this daemon does: {error}");
        }
        let moved = outcome.moved.iter().flatten().sum::<u64>();
        if moved > 0 {
            (self.options.told)(&line(status, &outcome));
        }
        Ok(())
    }

    /// Gives back what was borrowed, and says what was done.
    fn end(self) -> Result<()> {
        let Self { sink, source, actuator, board, status, .. } = self;
        drop(actuator);
        drop(source);
        drop(board);
        conclude(&status);
        let writer = sink.borrow_mut().writer.take();
        if let Some(writer) = writer {
            let path = writer.finish(Nanos::from(clock::monotonic()))?;
            eprintln!("recorded {} quanta in {}", status.quantum + 1, path.display());
            eprintln!("next: pagemill tier replay {}", pagemill_model::shell::quoted(path));
        }
        Ok(())
    }
}

/// A quantum from its view on: the view is written down, and what the policy decides on it is carried out.
pub fn carry_out(
    view: &TierView,
    policy: &mut Live,
    actuator: &mut dyn Actuator,
    mut write: impl FnMut(&Event),
) -> (TierDecision, TierOutcome) {
    write(&Event::TierView(Box::new(view.clone())));
    let decision = policy.decide(view);
    let outcome = actuator.apply(&decision);
    (decision, outcome)
}

/// Waits until `due` or `end`; `true` if it is time to stop.
fn wait(signals: &Signals, due: Instant, end: Option<Instant>) -> Result<bool> {
    loop {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            return Ok(true);
        }
        if now >= due {
            return Ok(false);
        }
        let until = end.map_or(due, |end| end.min(due));
        if signals.wait(until.saturating_duration_since(now))?.is_some() {
            return Ok(true);
        }
    }
}

fn actuator(
    linux: &Linux,
    options: &Options,
    pages: &Shared,
    source: &SharedSource,
    sink: &Rc<RefCell<Sink>>,
) -> Result<Box<dyn Actuator>> {
    let journals = loan::directory(linux);
    let sink = sink.clone();
    let log = move |event: Event| sink.borrow_mut().event(&event);
    let (rate, shared) = (options.rate, || pages.clone());
    Ok(match (options.apply, options.act) {
        (apply, ActuatorKind::Tiering) => {
            let group = options.scope.group(linux);
            let wanted = tiering(linux, options.tiers, group.as_ref(), rate)?;
            if apply {
                Box::new(Log::new(log, Tiering::start(linux, &journals, shared(), wanted)?))
            } else {
                for (path, value) in damon::writes(&wanted.0, wanted.1) {
                    eprintln!("would write {value} to {path}");
                }
                Box::new(Log::new(log, DryRun::new(shared())))
            }
        }
        (false, _) => {
            let inner = DryRun::new(shared());
            Box::new(Log::new(log, RateLimit::new(rate, Guard::new(linux, shared(), inner))))
        }
        (true, ActuatorKind::MovePages) => {
            let inner = MovePages::start(linux, &journals, shared(), options.tiers)?;
            Box::new(Log::new(log, RateLimit::new(rate, Guard::new(linux, shared(), inner))))
        }
        (true, ActuatorKind::Damos) => {
            let source = source.clone();
            let damos = Damos::start(linux, &journals, shared(), source, rate, options.quantum)?;
            Box::new(Log::new(log, damos))
        }
        (true, ActuatorKind::Kernel) => {
            Box::new(Log::new(log, KernelPromotion::start(linux, &journals, rate)?))
        }
        (true, ActuatorKind::Interleave) => {
            Box::new(Log::new(log, Interleave::start(linux, &journals, options.tiers)?))
        }
    })
}

impl Options {
    fn source(&self, linux: &Linux) -> pagemill_kernel::Result<AccessSource> {
        let group = self.scope.group(linux);
        let migrate = (self.apply && self.act == ActuatorKind::Damos)
            .then_some(Migrate { tiers: self.tiers, group });
        AccessSource::open(linux, self.track, self.quantum, migrate)
    }
}

/// The tier's node that has no memory, if one has none.
fn missing(linux: &Linux, tiers: Tiers) -> Option<u32> {
    let nodes = linux.memory_nodes().unwrap_or_default();
    tiers.0.into_iter().find(|id| !nodes.iter().any(|node| node.id == *id && node.total > 0))
}

impl Scope {
    /// The cgroup's path below the mount, if it is one.
    fn group(&self, linux: &Linux) -> Option<String> {
        let Self::Group(directory) = self else { return None };
        let mount = linux.path("/sys/fs/cgroup");
        directory.strip_prefix(mount).ok().map(|below| format!("/{}", below.display()))
    }

    /// Why there is nothing left to place.
    fn ended(&self) -> String {
        match self {
            Self::Processes { .. } => "all processes have ended".to_owned(),
            Self::Group(directory) if directory.exists() => {
                format!("no process is left in {}", directory.display())
            }
            Self::Group(directory) => format!("the cgroup {} has gone", directory.display()),
        }
    }

    /// Whose memory is placed now; nobody's where the cgroup has gone. `known` are those of the quantum before: a child
    /// whose parent has ended is a child still.
    fn pids(&self, linux: &Linux, known: &[Pid]) -> pagemill_kernel::Result<Vec<Pid>> {
        match self {
            Self::Processes { pids, children: false } => Ok(pids.clone()),
            Self::Processes { pids, .. } => {
                let roots: Vec<Pid> = pids.iter().chain(known).copied().collect();
                let mut all: BTreeSet<Pid> = linux.descendants(&roots).into_iter().collect();
                all.remove(&Pid::own());
                Ok(all.into_iter().collect())
            }
            Self::Group(directory) => {
                let mut pids = match cgroup::processes_below(directory) {
                    Err(_) if !directory.join("cgroup.procs").exists() => return Ok(Vec::new()),
                    found => found?,
                };
                pids.retain(|pid| *pid != Pid::own());
                Ok(pids)
            }
        }
    }
}

fn view(
    options: &Options,
    traffic: &TierTraffic,
    source: &str,
    quantum: u64,
    now: Nanos,
    last: Nanos,
) -> TierView {
    let picoseconds = |ns: f64| (ns.max(0.0) * 1e3).round() as u64;
    let length = if quantum == 0 { Nanos::from(options.quantum) } else { now.since(last) };
    let limit = u128::from(options.rate.0) * u128::from(length.0) / 1_000_000_000;
    TierView {
        time: now,
        quantum: Some(quantum),
        length: Some(length),
        source: Some(source.to_owned()),
        latency: traffic.latency.map(|pair| pair.map(picoseconds).to_vec()),
        latency_low: traffic.interval.map(|pair| pair.map(|it| picoseconds(it.0)).to_vec()),
        latency_high: traffic.interval.map(|pair| pair.map(|it| picoseconds(it.1)).to_vec()),
        reads: traffic.reads.map(|pair| pair.map(|reads| reads.max(0.0).round() as u64).to_vec()),
        page_size: Some(Bytes(HUGE)),
        limit: Some((limit / u128::from(HUGE)) as u64),
        ..TierView::default()
    }
}

/// Pages that each tier could take; a part of the default tier stays free for new memory.
fn room(linux: &Linux, tiers: Tiers, reserve: Bytes) -> Result<[u64; 2]> {
    let nodes = linux.memory_nodes()?;
    let free = |id: u32| nodes.iter().find(|node| node.id == id).map_or(0, |node| node.free);
    Ok(tiers.0.map(|id| free(id).saturating_sub(reserve.0) / HUGE))
}

fn count_kept(status: &mut Status, outcome: &TierOutcome) {
    for kept in outcome.kept.iter().flatten().filter(|kept| **kept > 0) {
        let reason = SkipReason::ALL.get(*kept as usize).unwrap_or(&SkipReason::Other);
        *status.kept.entry(reason.name().to_owned()).or_default() += 1;
    }
}

/// Adds what moved to the sums of both tiers.
fn count_moved(status: &mut Status, outcome: &TierOutcome, pages: &Pages) {
    let moved = [outcome.promoted, outcome.demoted].map(|bytes| bytes.unwrap_or_default().0);
    let back = pages.ping_pong();
    status.tiers.resize(2, status::Tier::default());
    for tier in 0..2 {
        let sums = &mut status.tiers[tier];
        sums.came_bytes += moved[tier];
        sums.left_bytes += moved[1 - tier];
        sums.ping_pong_bytes = back[tier];
    }
}

fn standing(
    status: &mut Status,
    linux: &Linux,
    pages: &Pages,
    options: &Options,
    traffic: &TierTraffic,
) -> Result<()> {
    let nodes = linux.memory_nodes()?;
    let processes = pages.processes();
    status.tiers = std::mem::take(&mut status.tiers)
        .into_iter()
        .enumerate()
        .map(|(tier, sums)| {
            let node = options.tiers.0[tier];
            status::Tier {
                name: ["default", "alternate"][tier].to_owned(),
                node,
                latency_ns: traffic.latency.map(|pair| pair[tier]),
                latency_interval_ns: traffic.interval.map(|pair| pair[tier]),
                reads_per_s: traffic.reads.map(|pair| pair[tier]),
                free_bytes: nodes.iter().find(|known| known.id == node).map_or(0, |n| n.free),
                tracked_bytes: processes.values().map(|process| process.bytes[tier]).sum(),
                ..sums
            }
        })
        .collect();
    status.processes = processes
        .into_iter()
        .map(|(pid, process)| status::Process {
            pid,
            comm: process.comm,
            default_bytes: process.bytes[0],
            alternate_bytes: process.bytes[1],
            promoted_bytes: process.totals.promoted,
            demoted_bytes: process.totals.demoted,
            ping_pong_bytes: process.totals.ping_pong.iter().sum(),
            share: process.totals.share(),
        })
        .collect();
    Ok(())
}

/// What came of it, also where nothing did.
fn conclude(status: &Status) {
    let bytes = |bytes: u64| Bytes(bytes).plain();
    let tracked = status.tiers.iter().map(|tier| tier.tracked_bytes).sum::<u64>();
    let moved = status.tiers.iter().map(|tier| tier.came_bytes).sum::<u64>();
    let would = if status.dry { "would have moved" } else { "moved" };
    let kept: Vec<String> =
        status.kept.iter().map(|(why, pages)| format!("{pages} stayed: {why}")).collect();
    eprintln!(
        "{} {}, {} tracked, {would} {}; at the end: {}{}{}",
        status.quantum + 1,
        if status.quantum == 0 { "quantum" } else { "quanta" },
        bytes(tracked),
        bytes(moved),
        if tracked == 0 && status.tracker != "none" {
            "no private anonymous memory was seen"
        } else {
            &status.why
        },
        if kept.is_empty() { "" } else { "; pages that " },
        kept.join(", ")
    );
}

/// What moved in a quantum.
fn line(status: &Status, outcome: &TierOutcome) -> String {
    let bytes = |bytes: Option<Bytes>| bytes.unwrap_or_default().plain();
    let would = if status.dry { "would move" } else { "moved" };
    format!(
        "{:>7.1} s  {would} {} to the default tier, {} away: {}",
        status.seconds,
        bytes(outcome.promoted),
        bytes(outcome.demoted),
        status.why
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_are_followed_also_when_their_parent_has_ended_and_a_cgroup_that_has_gone_is_empty()
    {
        let linux = Linux::live();
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 > /dev/null 2>&1 < /dev/null & echo $! ; exec >&- ; read wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut shell.stdout.take().unwrap(), &mut said).unwrap_or(0);
        let sleeper: Pid = said.trim().parse().unwrap();
        let of = |children| Scope::Processes { pids: vec![Pid(shell.id())], children };
        let (alone, all) = (of(false), of(true));
        let parent = Pid(shell.id());
        assert_eq!(alone.pids(&linux, &[]).unwrap(), [parent]);
        let followed = all.pids(&linux, &[]).unwrap();
        assert!(followed.contains(&sleeper) && followed.contains(&parent), "{followed:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(all.pids(&linux, &followed).unwrap().contains(&sleeper));
        Command::new("kill").arg(sleeper.to_string()).status().unwrap();
        let gone = Scope::Group("/nonexistent/group".into());
        assert!(gone.pids(&linux, &[]).unwrap().is_empty());
        assert!(gone.ended().contains("has gone"), "{}", gone.ended());
        assert_eq!(missing(&linux, Tiers([0, 1023])), Some(1023));
    }
}

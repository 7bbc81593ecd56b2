//! The launcher's side of `run --huge`: looks at what the libraries report, decides, gives orders, records.
//!
//! A region gets a decision when it is first seen, when what was decided would change, and at the latest once a second.
//! Until the first, the library follows the order for a region that grows in order, which is decided beforehand, so
//! that a program need not wait for the launcher. Every decision is that of the policy for a recorded view (see
//! `decisions`).
//!
//! | decision | order, or what is done |
//! |---|---|
//! | `ahead-2m` | huge pages ahead of the growth, made in place |
//! | `pool` | the same, zeroed beforehand in the library's pool and moved into place |
//! | `ahead-64k` | the same with pages of 64 KiB, for which the system's setting is borrowed ([`super::isolate`]) |
//! | `ahead-4k` | base pages ahead of it |
//! | `fault-64k` | pages of 64 KiB at the program's own faults: chunks with no room for a huge page are advised |
//! | `huge`, `fault-2m` | `MADV_HUGEPAGE`: the program's own faults bring huge pages |
//! | `collapse` | `process_madvise(MADV_COLLAPSE)` from here; by the library where that needs rights that we lack |
//! | `demote` | `process_madvise(MADV_COLD)` on a part of it, where memory is short |
//!
//! For `MADV_COLD` on a part of a huge page the kernel breaks it up and, since 6.12, gives its zeros back.
//!
//! Nothing of it stops the program, and nothing needs undoing: the board goes, and with it the orders.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::memory::shared_words::SharedWords;
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_kernel::{Linux, clock};
use pagemill_model::dataset::Row as _;
use pagemill_model::event::Recorded as _;
use pagemill_model::page::{HUGE, PER_HUGE};
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::sums::sum;
use pagemill_model::{Bytes, HugeDecision, Nanos, PageRange, Pid};
use pagemill_policy::huge::cbmm_plus::PRESSURE;
use pagemill_policy::huge::profile::{Mapping, Profile};
use pagemill_policy::huge::runs::RunCost;
use pagemill_policy::huge::trials::Trials;
use pagemill_policy::huge::{Action, Figure, Moment, Policy, Section, ThpMode, TrialPolicy, View};
use pagemill_prefault::board::{
    Board, Head, Order, Process, ProcessWord, Region, RegionWord, WORDS,
};

use serde_json::{Value, json};

use super::isolate::{self, Isolation};
use super::learned::Learned;
use super::member::{Decided, Member};
use super::missing;
use super::orders::{counters, first_order, order_for};
use super::patience::{self, Patience};
use super::sites::Sites;
use super::trial::{self, Trial};
use super::view::{self, Machine, RecentCosts};
use crate::decisions;
use pagemill_launch::files::NewFile;
use pagemill_launch::supervise::Companion;

/// Time between two looks at the board while a program grows, and else. Each takes a CPU that the program may be using;
/// between them the library acts on its own.
const ROUND: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_millis(100);
/// The same while growth is being measured.
const BRISK: Duration = Duration::from_millis(5);
/// For so long after growth it counts as growing.
const GROWING: Duration = Duration::from_millis(200);

/// Time between two looks at memory and load.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two scans of pages in use.
const SCAN: Duration = Duration::from_millis(100);
/// The longest that a decision stands.
const STANDS: Duration = Duration::from_secs(1);
/// A run of which the second that measuring costs takes is not noticed any more.
const LONG: Duration = Duration::from_secs(60);
/// Huge pages whose zeros are counted in a scan; each takes some 100 us.
const LOOKED: u32 = 32;
/// Collapsing and breaking up take at most this share of the time, in thousandths of one CPU.
const COLLAPSE_SHARE: u64 = 50;

/// What to run under.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy.
    pub policy: &'static dyn Policy,
    /// Benefits by place.
    pub profile: Option<Profile>,
    /// Where decisions are recorded.
    pub log: Option<PathBuf>,
    /// Whether a recording there, and a file of counters, is replaced.
    pub force: bool,
    /// Decide and record, but do nothing.
    pub dry: bool,
    /// Where the libraries' counters go at the end, as JSON.
    pub stats: Option<PathBuf>,
    /// The command, for the recording's header.
    pub command: Vec<String>,
    /// A process that runs already, to be helped from outside.
    pub pid: Option<Pid>,
    /// Whether what earlier runs of the command have taught is to be forgotten.
    pub forget: bool,
}

/// What the policy is asked about the regions of a process, and by whom.
struct Asking<'a> {
    options: &'a Options,
    machine: &'a Machine,
    sites: Option<&'a Sites>,
    process: Process<'a>,
    fresh: RecentCosts,
    now: Duration,
}

impl Asking<'_> {
    /// Asks about a region and gives its order. What was decided, if that is new or was decided long ago.
    fn about(
        &self,
        region: Region<'_>,
        top: u64,
        decided: &mut Decided,
    ) -> Option<(Action, HugeDecision)> {
        let (options, pid) = (self.options, pid_of(self.process));
        let generation = region.get(RegionWord::Generation);
        if generation == 0 || generation % 2 == 1 || region.get(RegionWord::End) == 0 {
            return None;
        }
        let due = decided.generation != generation || decided.at + STANDS <= self.now;
        let mut told = None;
        for &moment in options.policy.mechanism().growth {
            let mut view = self.machine.of(self.process, region, moment, self.fresh);
            if let Some(profile) = &options.profile {
                let at = view.address.max(region.get(RegionWord::Start));
                let site = self.sites.and_then(|sites| sites.at(pid, at));
                view::profiled(&mut view, profile, region, top, site);
            }
            let action = options.policy.decide(&view).action;
            if due || action != decided.action {
                told = Some(decisions::decide(
                    options.policy,
                    &view,
                    Nanos::from(self.now),
                    Some(pid),
                ));
            }
            let speaks = told.as_ref().is_some_and(|(decision, _)| decision.action != Action::Base);
            if speaks || action != Action::Base {
                break;
            }
        }
        let (decision, mut row) = told?;
        *decided = Decided { generation, action: decision.action, at: self.now };
        row.outcome = Some(if options.dry { "dry".into() } else { "applied".into() });
        if !options.dry {
            region.give(order_for(decision.action), 0, generation);
        }
        Some((decision.action, row))
    }
}

/// Decides for a program and its descendants.
pub struct Launcher {
    linux: Linux,
    options: Options,
    isolation: Option<Isolation>,
    shared: SharedWords,
    machine: Machine,
    members: BTreeMap<Pid, Member>,
    writer: Option<Writer>,
    stats: Option<NewFile>,
    child: Pid,
    next_look: Duration,
    next_scan: Duration,
    collapsing: Duration,
    /// When a program was last seen to have grown.
    grown: Duration,
    /// Whether a program's growth is being measured, and what each begins with.
    brisk: bool,
    trials: Trials,
    /// What earlier runs have taught, and how long nothing is tried.
    learned: Option<Learned>,
    patience: Patience,
    /// What programs of which nothing is known begin with.
    usual: Action,
    /// Whether memory of which nobody has said anything gets huge pages, of ours or not, or pages of 64 KiB.
    huge_unasked: bool,
    huge_lent: bool,
    medium_unasked: bool,
    began: Duration,
    said: u64,
    decisions: BTreeMap<&'static str, u64>,
    ended: Vec<Value>,
    sites: Option<Sites>,
}

impl Launcher {
    /// Prepares everything that can fail.
    ///
    /// # Errors
    /// A setting cannot be borrowed, a file not be created, or what a policy needs not be measured.
    pub fn new(linux: &Linux, options: Options) -> Result<Self> {
        let inside = options.pid.is_none() && !options.dry;
        let medium = inside.then(|| isolate::medium(linux, options.policy)).flatten();
        // Timed before this process is kept from huge pages.
        let recent = options.policy.mechanism().weighs_time;
        let waits = options.policy.tries().is_some_and(TrialPolicy::waits);
        let machine = if waits { Machine::unseen } else { Machine::new }(linux, recent)?;
        let stats = options.stats.as_ref().map(|path| NewFile::create(path, options.force));
        let stats = stats.transpose()?;
        let writer = match &options.log {
            Some(path) => Some(Writer::create(path, meta(linux, &options), options.force, None)?),
            None => None,
        };
        // A dry run leaves the program the system's huge pages, as a running one has them.
        let isolation = match options.pid {
            None if !options.dry => Some(Isolation::of(linux, options.policy, medium)?),
            _ => None,
        };
        let places = [Path::new("/dev/shm"), &std::env::temp_dir()];
        let shared = SharedWords::create(&places, BOARD, WORDS)
            .context("no place for the board of run --huge ($TMPDIR may name one)")?;
        let now = clock::monotonic();
        let mut launcher = Self {
            linux: linux.clone(),
            options,
            isolation,
            shared,
            machine,
            members: BTreeMap::new(),
            writer,
            stats,
            child: Pid(0),
            next_look: now,
            next_scan: now,
            collapsing: Duration::ZERO,
            grown: now,
            brisk: false,
            trials: Trials::default(),
            learned: None,
            patience: Patience::Usual,
            usual: Action::Base,
            huge_unasked: false,
            huge_lent: false,
            medium_unasked: false,
            began: now,
            said: 0,
            decisions: BTreeMap::new(),
            ended: Vec::new(),
            sites: None,
        };
        launcher.huge_unasked = launcher.options.policy.mechanism().thp == ThpMode::Inherit
            && linux.thp_enabled().is_ok_and(|choice| choice.active == "always");
        if let Some(tries) = launcher.options.policy.tries() {
            launcher.begin(tries);
        }
        launcher.found();
        if let Some(pid) = launcher.options.pid {
            launcher.watch(pid);
        }
        Ok(launcher)
    }

    /// Finds out what programs begin with, and borrows what that needs.
    fn begin(&mut self, tries: &dyn TrialPolicy) {
        let Options { policy, command, forget, .. } = &self.options;
        let learned = Learned::of(&self.linux, policy.name(), command, *forget);
        let view = self.machine.typical(Moment::Ahead, Section::Mmap);
        self.trials = trial::beginning(&self.linux, tries, &view, &learned);
        self.usual = tries.first(&View { trials: self.trials, ..view });
        let view = View { trials: self.trials, ..view };
        if learned.has_room() && trial::is_due(*policy, tries, &view) {
            self.patience = Patience::Short;
        }
        self.learned = Some(learned);
        if self.trials.first == Action::Fault2m && !self.huge_unasked {
            let isolation = self.isolation.as_mut();
            self.huge_lent =
                isolation.is_some_and(|isolation| isolation.widen_to_huge(&self.linux));
            self.huge_unasked = self.huge_lent;
            if self.huge_lent {
                self.patience = Patience::Endless;
            } else {
                self.trials = self.trials.beginning_with(self.usual);
            }
        }
        let wide = self.huge_lent || self.trials.first == Action::Fault64k && !self.huge_unasked;
        let isolation = self.isolation.as_ref().filter(|_| wide);
        self.medium_unasked = isolation.is_some_and(|isolation| isolation.widen(&self.linux));
    }

    /// Whether the policy does anything inside the program. Linux's own are carried out by the kernel.
    pub fn needs_library(&self) -> bool {
        !self.options.policy.mechanism().by_kernel
    }

    /// Whether the profile has rows that name the code that made a mapping.
    pub fn needs_sites(&self) -> bool {
        self.options.profile.as_ref().is_some_and(Profile::names_sites)
    }

    /// Who tells which code that is.
    pub fn know_sites(&mut self, sites: Sites) {
        self.sites = Some(sites);
    }

    /// The value of `PAGEMILL_PREFAULT`.
    pub fn board_path(&self) -> &Path {
        self.shared.path()
    }

    fn board(&self) -> Board<'_> {
        Board::new(self.shared.words()).expect("the file was made with room for a board")
    }

    /// Fills in the head of the board.
    fn found(&mut self) {
        let order = self.first();
        // Nothing is provided before the first look around where that is waited for.
        let headroom = if self.waits() { 0 } else { self.headroom() };
        let own = self.linux.status(Pid::own()).ok();
        let filters = own.and_then(|own| own.seccomp_filters).unwrap_or(0);
        let board = self.board();
        board.set(Head::LeadPerMille, 28);
        board.set(Head::HorizonNs, 20_000_000);
        board.set(Head::LeadMost, 64 << 20);
        board.set(Head::Lend, 100);
        board.set(Head::Headroom, headroom);
        board.set(Head::Filters, filters);
        board.set(Head::HugeUnasked, self.huge_unasked.into());
        board.set(Head::MediumUnasked, self.medium_unasked.into());
        if self.waits() {
            patience::tell(board, self.patience);
        }
        board.set(Head::First, order as u64);
        board.set(Head::Heartbeat, clock::monotonic().as_nanos() as u64);
        board.found();
    }

    /// Whether libraries do nothing in a program before that has grown and worked.
    fn waits(&self) -> bool {
        self.options.policy.tries().is_some_and(TrialPolicy::waits)
    }

    /// CPU time of the libraries' threads, those of ended programs apart.
    fn helpers(&self) -> Duration {
        let living = self.board().processes().filter(|process| pid_of(*process) != Pid(0));
        Duration::from_nanos(sum(living.map(|process| process.get(ProcessWord::HelperNs))))
    }

    /// Memory may be provided as long as there is plenty: a sixteenth of what is free, a quarter of the room in the
    /// control group.
    fn headroom(&self) -> u64 {
        let group = self.linux.memory_cgroup(Pid::own()).and_then(|group| group.charge());
        let room = group.ok().and_then(|charge| Some(charge.limit?.saturating_sub(charge.current)));
        (self.machine.available() / 16).min(room.map_or(u64::MAX, |room| room / 4))
    }

    /// Whether the policy wants to know which pages are there.
    fn scans(&self) -> bool {
        self.options.policy.mechanism().scans_with(self.options.profile.is_some())
    }

    /// The order for a region that nobody has looked at.
    fn first(&self) -> Order {
        if self.options.profile.is_some() || self.options.dry {
            return Order::Nothing;
        }
        if self.options.policy.tries().is_some() {
            return order_for(self.trials.first);
        }
        first_order(self.options.policy, |moment| self.machine.typical(moment, Section::Mmap))
    }

    /// A look at a moment of `CLOCK_MONOTONIC`: decides, gives orders and records; after how long the next one is due.
    ///
    /// # Errors
    /// What was decided cannot be recorded.
    pub fn tick_at(&mut self, now: Duration) -> Result<Duration> {
        if now >= self.next_look {
            self.look_around(now);
        }
        self.board().set(Head::Heartbeat, now.as_nanos() as u64);
        if let Some(sites) = &mut self.sites {
            sites.read_notes(&self.linux);
        }
        for (action, row) in self.decide_growth(now) {
            self.record(action, row)?;
        }
        if self.scans() && now >= self.next_scan {
            self.next_scan = now + SCAN;
            self.scan(now)?;
        }
        self.say_what_is_missing();
        Ok(if !self.needs_library() {
            // The kernel alone carries it out.
            STANDS
        } else if now < self.grown + GROWING {
            if self.brisk { BRISK } else { ROUND }
        } else {
            REST
        })
    }

    /// Takes in how the machine is, and tells the libraries.
    fn look_around(&mut self, now: Duration) {
        self.next_look = now + LOOK;
        let helpers = self.helpers();
        self.machine.refresh(helpers);
        self.leave_the_dead();
        let (first, headroom) = (self.first(), self.headroom());
        let board = self.board();
        board.set(Head::First, first as u64);
        board.set(Head::Headroom, headroom);
    }

    /// Decides about the regions that grow, and gives the orders; what was decided anew.
    fn decide_growth(&mut self, now: Duration) -> Vec<(Action, HugeDecision)> {
        let Self {
            shared,
            members,
            options,
            machine,
            linux,
            sites,
            grown,
            brisk,
            trials,
            huge_lent,
            ..
        } = self;
        let medium_unasked = self.medium_unasked;
        *brisk = false;
        let board = Board::new(shared.words()).expect("the file was made with room for a board");
        let mut rows = Vec::new();
        for process in board.processes().filter(|process| pid_of(*process) != Pid(0)) {
            let member = members.entry(pid_of(process)).or_default();
            let (fresh, grew) = member.seen(linux, process, now);
            if grew {
                *grown = now;
            }
            if *huge_lent {
                // The kernel does it all, and no other arm could be carried out.
                continue;
            }
            if let Some(tries) = options.policy.tries().filter(|_| !options.dry) {
                let trial = member.trial.get_or_insert_with(|| {
                    let own = trials.without_time();
                    Trial::new(linux, std::mem::replace(trials, own), medium_unasked)
                });
                rows.extend(trial.step(options.policy, tries, machine, process, fresh, now));
                *brisk |= trial.is_brisk(tries);
                continue;
            }
            let asking = Asking { options, machine, sites: sites.as_ref(), process, fresh, now };
            if options.profile.is_none() && !options.dry {
                let view = |moment| machine.next(process, Section::Mmap, moment, fresh);
                process.begin_with(first_order(options.policy, view), 0);
            }
            let decided = process.regions().zip(&mut member.decided);
            rows.extend(
                decided.filter_map(|(region, decided)| asking.about(region, member.top, decided)),
            );
        }
        rows
    }

    fn record(&mut self, action: Action, row: HugeDecision) -> Result<()> {
        *self.decisions.entry(action.name()).or_default() += 1;
        if let Some(writer) = &mut self.writer {
            writer.event(&row.into_event())?;
        }
        Ok(())
    }

    /// Looks at the pages of each process and collapses what the policy finds worth it, most worthwhile first.
    fn scan(&mut self, now: Duration) -> Result<()> {
        let share = COLLAPSE_SHARE as f64 / 1000.0;
        let pids: Vec<Pid> = match self.members.is_empty() {
            // A program without a library: static, or one that changed its user.
            true => vec![self.child],
            false => self.members.keys().copied().collect(),
        };
        for pid in pids {
            let mut candidates = self.candidates(pid);
            candidates.sort_by_key(|(view, gain)| (std::cmp::Reverse(*gain), view.address));
            for (view, _) in candidates {
                if self.collapsing > (now - self.began).mul_f64(share) + Duration::from_millis(5) {
                    return Ok(());
                }
                let (decision, mut row) = decisions::decide(
                    self.options.policy,
                    &view,
                    Nanos::from(clock::monotonic()),
                    Some(pid),
                );
                row.outcome = Some(if self.options.dry {
                    "dry".to_owned()
                } else {
                    let began = clock::monotonic();
                    let outcome = match decision.action {
                        Action::Demote => self.demote(pid, view.address),
                        _ => self.collapse(pid, view.address),
                    };
                    let took = clock::monotonic() - began;
                    self.collapsing += took;
                    row.took = Some(Nanos::from(took));
                    row.done = outcome.is_ok().then_some(Bytes(HUGE));
                    outcome.map_or_else(|why| why, |()| "applied".to_owned())
                });
                self.record(decision.action, row)?;
            }
        }
        Ok(())
    }

    /// The chunks of a process about which the policy would do something, with what it gains.
    fn candidates(&mut self, pid: Pid) -> Vec<(View, u64)> {
        let Ok(maps) = self.linux.maps(pid) else { return Vec::new() };
        let member = self.members.entry(pid).or_default();
        if member.pages.is_none() {
            member.pages = Pages::of(&self.linux, pid).ok();
        }
        let Some(pages) = &member.pages else { return Vec::new() };
        let mut found = Vec::new();
        let used = self.machine.typical(Moment::Scan, Section::Mmap).used.value();
        let short = used.is_some_and(|used| used >= PRESSURE.start);
        // Where the last scan ended.
        let (from, mut looked, mut counted) = (member.looked, 0, 0);
        let grows = maps.iter().filter(|map| {
            let ours = map.name.is_empty() || map.name == HEAP || map.name.starts_with("[anon:");
            map.write && !map.shared && map.inode == 0 && ours && map.len() >= HUGE
        });
        for map in grows {
            let (first, last) = (map.start.next_multiple_of(HUGE), map.end / HUGE * HUGE);
            let Ok(runs) = pages.runs(PageRange::new(first..last.max(first))) else { continue };
            let mut chunks: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            for run in runs {
                let mut at = run.start;
                while at < run.end {
                    let chunk = at / HUGE * HUGE;
                    let end = run.end.min(chunk + HUGE);
                    let entry = chunks.entry(chunk).or_default();
                    entry.0 += (end - at) / 4096;
                    entry.1 |= run.huge;
                    at = end;
                }
            }
            let section = if map.name == HEAP { Section::Heap } else { Section::Mmap };
            for (chunk, (present, huge)) in chunks {
                let mut view = self.machine.typical(Moment::Scan, section);
                view.address = chunk;
                view.huge = huge;
                view.present = Figure::Measured(present);
                view.expected = Figure::Modelled(present.min(PER_HUGE));
                // Without idle page tracking nobody knows what was accessed; what is there counts.
                view.accessed = Figure::Modelled(present);
                if huge && short && chunk > from && looked < LOOKED {
                    (looked, counted) = (looked + 1, chunk);
                    let zeros = pages.zeros(PageRange::of_huge(chunk));
                    view.zeros = zeros.map_or(Figure::Absent, Figure::Measured);
                }
                if let Some(profile) = &self.options.profile {
                    let base = if section == Section::Heap { map.start } else { member.top };
                    let (start, end) = (map.start, map.end);
                    let site = self.sites.as_ref().and_then(|sites| sites.at(pid, chunk));
                    let mapping = Mapping { start, end, section, base, site, ..Mapping::default() };
                    view::profiled_in(&mut view, profile, &mapping);
                }
                let decision = self.options.policy.decide(&view);
                if decision.action != Action::Base {
                    found.push((view, decision.estimate.gain()));
                }
            }
        }
        if let Some(member) = self.members.get_mut(&pid) {
            member.looked = if looked < LOOKED { 0 } else { counted };
        }
        found
    }

    fn demote(&self, pid: Pid, chunk: u64) -> std::result::Result<(), String> {
        let pages = self.members.get(&pid).and_then(|member| member.pages.as_ref());
        let pages = pages.ok_or("the process's pages cannot be looked at")?;
        pages.demote(PageRange::of_huge(chunk)).map_err(|error| error.to_string())
    }

    fn collapse(&self, pid: Pid, chunk: u64) -> std::result::Result<(), String> {
        let pages = self.members.get(&pid).and_then(|member| member.pages.as_ref());
        let outside = pages.map(|pages| pages.collapse(PageRange::of_huge(chunk)));
        match outside {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.kind() == pagemill_kernel::Kind::Permission => {
                let mut processes = self.board().processes();
                match processes.find(|process| pid_of(*process) == pid) {
                    None => Err(error.to_string()),
                    Some(busy) if busy.get(ProcessWord::CollapseAt) != 0 => {
                        Err("left for later: the library has one to collapse".to_owned())
                    }
                    Some(free) => {
                        free.set(ProcessWord::CollapseAt, chunk);
                        Ok(())
                    }
                }
            }
            Some(Err(error)) => Err(error.reason().to_owned()),
            None => Err("the process's pages cannot be looked at".to_owned()),
        }
    }

    /// Gives the places of ended processes back.
    fn leave_the_dead(&mut self) {
        let mut gone = Vec::new();
        for process in self.board().processes() {
            let pid = pid_of(process);
            if pid != Pid(0) && !self.linux.process_file(pid, "stat").exists() {
                gone.push((pid, counters(process)));
                process.set(ProcessWord::Pid, 0);
            }
        }
        for (pid, counters) in gone {
            self.take_in(pid);
            if self.options.stats.is_some() {
                self.ended.push(counters);
            }
        }
    }

    /// Keeps what an ended process has taught.
    fn take_in(&mut self, pid: Pid) {
        let trial = self.members.remove(&pid).and_then(|member| member.trial);
        if let (Some(learned), Some(trial)) = (&mut self.learned, trial) {
            learned.taught(trial.trials());
        }
    }

    /// Keeps what the run has taught for the next of its command.
    fn learn(&mut self) {
        for pid in self.members.keys().copied().collect::<Vec<_>>() {
            self.take_in(pid);
        }
        let used = resources(UsageScope::EndedChildren);
        let cpu = (used.user + used.system).as_nanos() as u64;
        let run = RunCost { first: self.trials.first, cpu, peak: used.resident };
        if let Some(learned) = self.learned.as_ref().filter(|_| !self.options.dry) {
            learned.keep(self.trials, self.usual, run);
        }
    }

    /// Says once what the libraries lack.
    fn say_what_is_missing(&mut self) {
        let board = self.board();
        let found =
            board.processes().fold(0, |bits, process| bits | process.get(ProcessWord::Degraded));
        self.said |= missing::say(found & !self.said);
    }

    /// What all libraries have counted.
    fn counters(&self) -> Value {
        let board = self.board();
        let living = board.processes().filter(|process| pid_of(*process) != Pid(0));
        let all: Vec<Value> = self.ended.iter().cloned().chain(living.map(counters)).collect();
        let tries = self.options.policy.tries();
        json!({
            "policy": self.options.policy.name(),
            "begins_with": tries.map(|_| self.trials.first.name()),
            "earlier_runs": self.learned.as_ref().map(Learned::count),
            "decisions": self.decisions,
            "processes": all,
        })
    }
}

impl Companion for Launcher {
    const WHAT: &'static str = "the use of huge pages";

    fn never_started(&mut self) {
        self.stats = None;
        if let Some(writer) = self.writer.take() {
            writer.abandon();
        }
    }

    fn watch(&mut self, pid: Pid) {
        self.child = pid;
        if let Some(writer) = &mut self.writer {
            let meta = writer.meta_mut();
            meta.pid = pid.into();
            // A process that runs already has no command here.
            if meta.comm.is_empty() {
                meta.comm = self.linux.stat(pid).map(|stat| stat.comm).unwrap_or_default();
            }
        }
    }

    fn tick(&mut self) -> Result<Duration> {
        let now = clock::monotonic();
        if self.waits() && !patience::is_over(self.board()) {
            self.board().set(Head::Heartbeat, now.as_nanos() as u64);
            self.leave_the_dead();
            return Ok(patience::wait_time(now - self.began, self.patience));
        }
        let before = patience::own_time();
        let pause = self.tick_at(now)?;
        let waits = self.waits() && !self.brisk;
        Ok(if waits { pause.max(patience::after(patience::own_time() - before)) } else { pause })
    }

    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        let long = self.needs_library() && clock::monotonic() >= self.began + LONG;
        self.learn();
        // While pages of 64 KiB are still to be had.
        let renewed = if long { self.machine.renew() } else { Ok(()) };
        let isolation = self.isolation.take().map_or(Ok(()), Isolation::end);
        let isolation = isolation.context("the system's huge page settings are not restored");
        let recorded = match self.writer.take() {
            Some(writer) => writer.finish(Nanos::from(clock::monotonic())).map(|path| {
                eprintln!("next: pagemill report {}", pagemill_model::shell::quoted(path));
            }),
            None => Ok(()),
        };
        let told = match (self.stats.take(), &self.options.stats) {
            (Some(mut file), Some(path)) => {
                let text = format!("{:#}\n", self.counters());
                let written = file.write_all(text.as_bytes());
                let written = written.with_context(|| format!("cannot write {}", path.display()));
                written.and_then(|()| file.finish())
            }
            _ => Ok(()),
        };
        if self.options.dry {
            let told: Vec<String> =
                self.decisions.iter().map(|(action, count)| format!("{action} {count}")).collect();
            let told = if told.is_empty() { "none".to_owned() } else { told.join(", ") };
            notice!("dry run, nothing was done; decisions: {told}");
        }
        isolation.and(recorded.map_err(Into::into)).and(told).and(renewed)
    }
}
/// The process of a place on the board; 0 of a free one.
fn pid_of(process: Process<'_>) -> Pid {
    Pid(process.get(ProcessWord::Pid) as u32)
}

/// The kernel's name of what `brk` grows.
const HEAP: &str = "[heap]";

/// Beginning of a board's file name.
const BOARD: &str = "pagemill-huge";

fn meta(linux: &Linux, options: &Options) -> Meta {
    let program = options.command.first().and_then(|word| Path::new(word).file_name());
    Meta {
        command: options.command.clone(),
        comm: program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        datasets: vec![HugeDecision::DATASET.into()],
        capabilities: vec!["PAGEMAP_SCAN".into(), "UFFDIO_MOVE".into(), "process_madvise".into()],
        ..pagemill_launch::context::meta(linux)
    }
}

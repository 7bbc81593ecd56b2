//! Who is accessed: what the daemon takes its heat from.
//!
//! | source | a count is | bounded by | where |
//! |---|---|---|---|
//! | `damon` | one of ten samples a quantum half that found a region accessed | [`REGIONS`] | `CONFIG_DAMON_VADDR` |
//! | `idle` | a 4 KiB page touched since the last look | [`PAGES`] pages a look | `CONFIG_IDLE_PAGE_TRACKING`, root |
//! | `samples` | a sampled load (PEBS, IBS) | a ring a processor; what finds no room is lost | on the metal, root |
//!
//! DAMON's regions are sampled by a thread of the kernel; idle pages are of 2 MiB, have [`PARTS`] marks each, and are
//! looked at in turn. `auto` takes the first of the three that this machine has. DAMON can act too: under [`Migrate`]
//! its threads move what they find hot or cold themselves, as much as they are let ([`AccessSource::migrate`]).
//!
//! Always so: an idle mark counts only if its address still has the frame that was marked, so a page that has
//! moved since is not taken for a touched one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pagemill_kernel::memory::page_idle::Frames;
use pagemill_kernel::memory::pagemap::Pagemap;
use pagemill_kernel::settings::damon::{self, Action, Attributes, Monitor, Scheme, Target, Watch};
use pagemill_kernel::trace::load_samples::Loads;
use pagemill_kernel::{Error, Kind, Linux, Result, settings::loan};
use pagemill_model::page::BASE;
use pagemill_model::{PageRange, Pid};

use super::Tiers;
use super::pages::Shared;

/// Regions over all processes: the bound of what reading them costs.
const REGIONS: u64 = 1000;
/// Pages of which one look marks parts.
const PAGES: usize = 512;
/// Parts of a page that are marked.
const PARTS: u64 = 4;

/// Which source was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceChoice {
    /// The first that this machine has.
    Auto,
    /// DAMON's regions.
    Damon,
    /// Idle bits of frames.
    Idle,
    /// Sampled loads: PEBS or IBS.
    Samples,
}

impl SourceChoice {
    /// Its names, what each is, and the value.
    pub const CHOICES: [(&str, &str, Self); 4] = [
        ("auto", "The first that this machine has", Self::Auto),
        ("damon", "DAMON's regions", Self::Damon),
        ("idle", "Idle bits of frames", Self::Idle),
        ("samples", "Sampled loads: PEBS or IBS", Self::Samples),
    ];
}

/// What DAMON itself may move.
#[derive(Clone, Debug)]
pub struct Migrate {
    /// Between which nodes.
    pub tiers: Tiers,
    /// The cgroup that is placed, by its path below the mount, if one is.
    pub group: Option<String>,
}

/// Bytes that DAMON may move, or has moved: by [`PROMOTE`], [`DEMOTE`] and [`RELIEVE`].
pub type Moves = [u64; 3];
/// Hot ones to the default tier.
pub const PROMOTE: usize = 0;
/// Cold ones to the alternate tier.
pub const DEMOTE: usize = 1;
/// Hot ones to the alternate tier, while the default one is overloaded.
pub const RELIEVE: usize = 2;

/// An open source.
#[derive(Debug)]
pub enum AccessSource {
    /// DAMON.
    Damon(Box<Damon>),
    /// Idle bits.
    Idle(Idle),
    /// Sampled loads.
    Samples(Loads),
}

impl AccessSource {
    /// Opens what is wanted; `migrate` says that DAMON is to move pages too.
    ///
    /// # Errors
    /// What is wanted does not work here.
    pub fn open(
        linux: &Linux,
        wanted: SourceChoice,
        quantum: Duration,
        migrate: Option<Migrate>,
    ) -> Result<Self> {
        let idle = || Idle::open(linux).map(Self::Idle);
        let samples = || Loads::open(linux).map(Self::Samples);
        let damon = || {
            Damon::open(linux, quantum, migrate.clone()).map(|damon| Self::Damon(Box::new(damon)))
        };
        let absent = |error: &Error| matches!(error.kind(), Kind::NotFound | Kind::Unsupported);
        match wanted {
            SourceChoice::Damon => damon(),
            SourceChoice::Idle => idle(),
            SourceChoice::Samples => samples(),
            SourceChoice::Auto if migrate.is_some() => damon(),
            SourceChoice::Auto => match damon::probe(linux) {
                Err(error) if absent(&error) => idle().or_else(|_| samples()).map_err(|_| error),
                // Somebody else's DAMON is said by name, and not worked around.
                _ => damon(),
            },
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Damon(_) => "damon",
            Self::Idle(_) => "idle",
            Self::Samples(loads) => loads.name(),
        }
    }

    /// Adds what was seen since the last look to the heat of `pages`.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn add_heat(&mut self, linux: &Linux, pages: &Shared) -> Result<()> {
        match self {
            Self::Damon(damon) => damon.add_heat(linux, pages),
            Self::Idle(idle) => idle.add_heat(linux, pages),
            Self::Samples(loads) => {
                let mut pages = pages.borrow_mut();
                // Lost samples make heat older, not wrong.
                loads.read(|pid, address| pages.sampled(pid, address));
                Ok(())
            }
        }
    }

    /// Seconds of CPU that the kernel's threads took so far, where they can be seen.
    pub fn cpu(&self, linux: &Linux) -> Option<f64> {
        match self {
            Self::Damon(damon) => damon.cpu(linux),
            Self::Idle(_) | Self::Samples(_) => None,
        }
    }

    /// Lets DAMON move so many bytes a second from now on; says what it has moved of which process (all of
    /// them: 0) since this was last asked.
    ///
    /// # Errors
    /// DAMON has stopped, or refuses a value.
    pub fn migrate(&mut self, per_second: Moves) -> Result<Vec<(Pid, Moves)>> {
        match self {
            Self::Damon(damon) => damon.migrate(per_second),
            Self::Idle(_) | Self::Samples(_) => Ok(Vec::new()),
        }
    }
}

/// Where DAMON finds what it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressSpace {
    /// In the address space of each process.
    Virtual,
    /// In the memory of each node, of one cgroup only.
    Physical,
}

/// DAMON over the processes; started anew when they change.
#[derive(Debug)]
pub struct Damon {
    monitor: Option<Monitor>,
    attributes: Attributes,
    migrate: Option<(AddressSpace, Migrate)>,
    journals: PathBuf,
    cpu_before: f64,
    allowed: Moves,
    /// What each scheme had moved when it was last asked: kernel thread, scheme, bytes.
    known: BTreeMap<(usize, usize), u64>,
}

impl Damon {
    fn open(linux: &Linux, quantum: Duration, migrate: Option<Migrate>) -> Result<Self> {
        let journals = loan::directory(linux);
        let migrate = match migrate {
            None => None,
            Some(migrate) if damon::migrates_virtual(linux, &journals)? => {
                Some((AddressSpace::Virtual, migrate))
            }
            Some(migrate) if migrate.group.is_some() => Some((AddressSpace::Physical, migrate)),
            Some(_) => {
                return Err(Error::new(
                    Kind::Unsupported,
                    "move pages with",
                    "DAMON",
                    "this kernel's moves physical memory only, which belongs to no process",
                )
                .advise(
                    "name a cgroup (--cgroup), or --act move-pages, or boot kernel 6.17 or newer",
                ));
            }
        };
        // An aggregation of half a quantum ends within each; ten samples of it tell heat apart.
        let aggregate = (quantum / 2).max(Duration::from_millis(50));
        let attributes =
            Attributes { sample: aggregate / 10, aggregate, regions: REGIONS, tuning: None };
        Ok(Self {
            monitor: None,
            attributes,
            migrate,
            journals,
            cpu_before: 0.0,
            allowed: Moves::default(),
            known: BTreeMap::new(),
        })
    }

    fn add_heat(&mut self, linux: &Linux, pages: &Shared) -> Result<()> {
        let pids = pages.borrow().pids();
        let process = |watch: &Watch| match watch.target {
            Target::Process(pid) => Some(pid),
            Target::Physical(..) => None,
        };
        let watched = |monitor: &Monitor| {
            monitor.watches().iter().filter_map(process).eq(pids.iter().copied())
        };
        if self.monitor.as_ref().is_none_or(|monitor| !watched(monitor)) {
            self.cpu_before = self.cpu(linux).unwrap_or(self.cpu_before);
            self.monitor = None;
            self.known.clear();
            self.allowed = Moves::default();
            let attributes = Attributes {
                regions: (REGIONS / pids.len().max(1) as u64).max(10),
                ..self.attributes
            };
            let watches = self.watches(linux, &pids)?;
            self.monitor = Some(Monitor::start(linux, &self.journals, &watches, attributes)?);
        }
        let Some(monitor) = &self.monitor else { return Ok(()) };
        for (at, pid) in pids.into_iter().enumerate() {
            // A process that has just ended takes its thread with it.
            if let Ok(regions) = monitor.regions(at) {
                pages.borrow_mut().heat(pid, &regions);
            }
        }
        Ok(())
    }

    /// The processes, in their order; then the nodes, where physical memory is moved.
    fn watches(&self, linux: &Linux, pids: &[Pid]) -> Result<Vec<Watch>> {
        let migrations = |group: Option<&String>, Tiers([default, alternate])| {
            let scheme = |action, accesses| Scheme {
                action,
                accesses,
                // Nothing yet.
                bytes_per_second: Some(0),
                cgroup: group.cloned(),
                ..Scheme::counting()
            };
            [
                scheme(Action::MigrateHot(default), 1..=u64::MAX),
                scheme(Action::MigrateCold(alternate), 0..=0),
                scheme(Action::MigrateHot(alternate), 1..=u64::MAX),
            ]
        };
        let mut schemes = vec![Scheme::counting()];
        if let Some((AddressSpace::Virtual, Migrate { tiers, .. })) = &self.migrate {
            schemes.extend(migrations(None, *tiers));
        }
        let process = |&pid: &Pid| Watch { target: Target::Process(pid), schemes: schemes.clone() };
        let mut watches: Vec<Watch> = pids.iter().map(process).collect();
        if let Some((AddressSpace::Physical, Migrate { tiers, group })) = &self.migrate {
            let [promote, demote, relieve] = migrations(group.as_ref(), *tiers);
            let node = |tier: usize| linux.node_addresses(tiers.0[tier]).map(Target::Physical);
            watches.push(Watch { target: node(1)?, schemes: vec![promote] });
            watches.push(Watch { target: node(0)?, schemes: vec![demote, relieve] });
        }
        Ok(watches)
    }

    fn migrate(&mut self, per_second: Moves) -> Result<Vec<(Pid, Moves)>> {
        let (Some(monitor), Some((_, Migrate { tiers, .. }))) = (&self.monitor, &self.migrate)
        else {
            return Ok(Vec::new());
        };
        let kind = |scheme: &Scheme| match scheme.action {
            Action::Stat => None,
            Action::MigrateHot(node) if node == tiers.0[0] => Some(PROMOTE),
            Action::MigrateHot(_) => Some(RELIEVE),
            Action::MigrateCold(_) => Some(DEMOTE),
        };
        let kinds: Vec<Vec<Option<usize>>> = monitor
            .watches()
            .iter()
            .map(|watch| watch.schemes.iter().map(kind).collect())
            .collect();
        let mut moved = Vec::new();
        for (at, (watch, kinds)) in monitor.watches().iter().zip(&kinds).enumerate() {
            if kinds.iter().all(Option::is_none) {
                continue;
            }
            // A process that has just ended takes its thread with it.
            let Ok(stats) = monitor.stats(at) else { continue };
            let mut moves = Moves::default();
            for (scheme, (kind, stats)) in kinds.iter().zip(stats).enumerate() {
                let before = self.known.insert((at, scheme), stats.applied).unwrap_or(0);
                if let Some(kind) = kind {
                    moves[*kind] += stats.applied.saturating_sub(before);
                }
            }
            let pid = match watch.target {
                Target::Process(pid) => pid,
                Target::Physical(..) => Pid(0),
            };
            moved.push((pid, moves));
        }
        if per_second != self.allowed {
            // All of those who do the same have the allowance together.
            let sharers = |kind: usize| {
                kinds.iter().filter(|kinds| kinds.contains(&Some(kind))).count().max(1) as u64
            };
            for (at, kinds) in kinds.iter().enumerate() {
                let limits: Vec<(usize, u64)> = kinds
                    .iter()
                    .enumerate()
                    .filter_map(|(scheme, kind)| {
                        let kind = (*kind)?;
                        Some((scheme, per_second[kind] / sharers(kind)))
                    })
                    .collect();
                if !limits.is_empty() {
                    // As above: one that has ended moves nothing.
                    let _ = monitor.limit(at, &limits);
                }
            }
            self.allowed = per_second;
        }
        Ok(moved)
    }

    /// Seconds of CPU that the kernel's threads took so far.
    fn cpu(&self, linux: &Linux) -> Option<f64> {
        let monitor = self.monitor.as_ref()?;
        let mut sum = self.cpu_before;
        for at in 0..monitor.watches().len() {
            sum += linux.thread_cpu(monitor.thread(at).ok()?).ok()?.as_secs_f64();
        }
        Some(sum)
    }
}

/// Idle bits of a few frames of some pages, going round.
#[derive(Debug)]
pub struct Idle {
    frames: Frames,
    marked: Vec<Mark>,
    cursor: usize,
    round: u64,
}

/// A marked frame, and the page that it is a part of.
#[derive(Clone, Copy, Debug)]
struct Mark {
    pid: Pid,
    page: PageRange,
    address: u64,
    /// The frame of the address, and the one that stands for it: the first of its huge page, if it is in one.
    frame: u64,
    marked: u64,
}

/// Address of part `part` of a page in round `round`: another one each round.
fn part(page: PageRange, round: u64, part: u64) -> u64 {
    let pages = (page.bytes() / BASE).max(1);
    let step = (round * PARTS + part).wrapping_mul(0x9e37_79b9) % pages;
    page.start + step * BASE
}

impl Idle {
    fn open(linux: &Linux) -> Result<Self> {
        Ok(Self { frames: Frames::open(linux)?, marked: Vec::new(), cursor: 0, round: 0 })
    }

    fn add_heat(&mut self, linux: &Linux, pages: &Shared) -> Result<()> {
        let mut tables: BTreeMap<Pid, Option<Pagemap>> = BTreeMap::new();
        // A process that has ended has no page tables.
        let mut frame = |pid: Pid, address: u64| -> Result<Option<u64>> {
            let tables = tables.entry(pid).or_insert_with(|| Pagemap::open(linux, pid).ok());
            tables.as_ref().map_or(Ok(None), |tables| tables.frame(address))
        };
        let mut pages = pages.borrow_mut();
        for mark in std::mem::take(&mut self.marked) {
            if !self.frames.idle(mark.marked)? && frame(mark.pid, mark.address)? == Some(mark.frame)
            {
                pages.touched(mark.pid, mark.page);
            }
        }
        for (pid, page) in pages.round(&mut self.cursor, PAGES) {
            for number in 0..PARTS {
                let address = part(page, self.round, number);
                let Some(frame) = frame(pid, address)? else { continue };
                if let Some(marked) = self.frames.mark(frame)? {
                    self.marked.push(Mark { pid, page, address, frame, marked });
                }
            }
        }
        self.round += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside_of_their_page_and_differ_from_round_to_round() {
        let page = PageRange::new(0x7000_0000..0x7020_0000);
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..64 {
            for number in 0..PARTS {
                let address = part(page, round, number);
                assert!((page.start..page.end).contains(&address) && address.is_multiple_of(4096));
                seen.insert(address);
            }
        }
        assert!(seen.len() > 200, "{} of 256 differ", seen.len());
        assert_eq!(part(PageRange::new(4096..8192), 7, 3), 4096);
    }
}

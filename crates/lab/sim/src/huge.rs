//! Huge page policies on a machine of one zone: buddy allocator, compaction, TLB, a helper on another core. Modelled.
//!
//! ```text
//!   program   touches a page for the first time ─► Moment::Fault ─► base page, huge page or one of the pool
//!             reads pages                        ─► TLB: walks
//!   helper    the region after the one touched   ─► Moment::Ahead   a window ahead, if it has time left
//!             every 10 ms a few regions          ─► Moment::Scan    collapse, demote
//!             when it has nothing to do          ─► Moment::Idle    pool
//! ```
//!
//! A synthetic workload reads between touches, and time is what faults, reads and walks take. A recorded one brings its
//! own time between touches, which holds the walks that it had on base pages; of these the simulated program is spared
//! what huge pages spare, by a TLB beside one that has base pages only. So under `linux-never` a recorded program takes
//! its own time and its faults, whatever is assumed of reads.
//!
//! The policies are those of `policy::huge`, the same values as live. Time is the program's: faults, reads and walks;
//! the helper has a clock of its own that runs beside it and only works when it is not ahead of the program's. A huge
//! page without a free block waits for `Buddy::compact`, at a price a page scanned and moved; the program waits if it
//! asked, the helper if it did. A zone begins fragmented to a degree: that share of its pageblocks keeps one page in
//! use.
//!
//! Left out: caches (but what a page that the helper provided takes longer to fetch, where a machine's costs say so),
//! NUMA, several programs, zeroing by reads, the kernel's per-CPU lists and reclaim. Pages of 64 KiB are sixteen base
//! pages that come at one price, wherever they lie.
//!
//! Always true: a page is backed by one frame and frames in use are the zone's; a run is a function of its setup; the
//! faults of a run touch each page of its workload at most once, ahead or not; a region that lies whole in no mapping
//! is never on a huge page.

mod workload;

use std::sync::Arc;

use pagemill_policy::huge::profile::{Kind, Mapping, Profile};
use pagemill_policy::huge::trials::{Counters, Course, Trials};
use pagemill_policy::huge::{Action, Costs, Figure, Moment, Policy, Section, View};

use crate::buddy::{Block, Buddy, Mobility, PAGEBLOCK_ORDER};
use crate::tlb::{Config as TlbConfig, Tlb};
use pagemill_model::page::{HUGE, PER_HUGE};
use pagemill_model::random::Random;
use pagemill_model::sums::sum;

pub use workload::{RegionMapping, Workload, names};

/// Costs as measured once on a virtual machine with warm memory (docs/verbs/simulate.md); what a fault that compacts
/// takes is not known.
pub const WARM: Costs = {
    use Figure::{Absent, Modelled};
    Costs {
        base: Modelled(1_100),
        base_cold: Modelled(11_300),
        medium: Modelled(4_500),
        huge: Modelled(90_000),
        huge_cold: Modelled(5_100_000),
        collapse: Modelled(620_000),
        deliver: Modelled(6_200),
        stall: Absent,
        // No caches in this model, unless the costs of a machine are given.
        fetch: Modelled(0),
        walk: Absent,
    }
};

/// One simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What runs.
    pub workload: Workload,
    /// The policy.
    pub policy: &'static dyn Policy,
    /// What the policy knows beforehand, by address: the workload's page 0 is at [`BASE`].
    pub profile: Option<Profile>,
    /// Base pages of the zone.
    pub zone: u32,
    /// Share of pageblocks that keep a page in use, thousandths.
    pub fragmented: u64,
    /// Whether those pages cannot move.
    pub pinned: bool,
    /// Costs of the mechanisms.
    pub costs: Costs,
    /// What each attempt at compaction takes besides pages moved and scanned, ns ([`ATTEMPT_NS`]).
    pub attempt: u64,
    /// The TLB.
    pub tlb: TlbConfig,
    /// Cycles in a microsecond, for profiles in cycles.
    pub mhz: u64,
    /// Seed.
    pub seed: u64,
}

/// Address of a workload's first page.
pub const BASE: u64 = 0x1000_0000_0000;
/// A read that hits the TLB, picoseconds.
const READ_PS: u64 = 80_000;
/// The longest time of its own that a recorded program runs before the helper looks again.
const STEP_NS: u64 = 2_000_000;
/// Reads of a recorded program that are simulated at most, about; beyond, each stands for several.
const READS: u64 = 1_000_000;
/// Regions that the helper looks ahead.
const WINDOW: u64 = 16;
/// The helper's scan.
const SCAN_NS: u64 = 10_000_000;
const SCAN_REGIONS: usize = 16;
/// Base pages of 64 KiB.
const MEDIUM: u32 = 16;
/// Huge pages that the pool holds at most.
const POOL: u64 = 16;
/// Compaction: a page moved, and a page scanned, nanoseconds; assumed.
const MOVE_NS: u64 = 900;
const SCANNED_NS: u64 = 4;
/// What an attempt at compaction takes besides, ns: draining lists on all processors, locks, retries. With it a huge
/// page from movable fragmented memory takes the 0.46 ms that 192 faults took on the machine of [`WARM`], on average.
pub const ATTEMPT_NS: u64 = 320_000;
/// What an attempt takes that moves one page, on average, beyond its [`Setup::attempt`].
pub const MOVING_NS: u64 = 140_000;

/// What came of a run. All modelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The program's time, ns.
    pub time: u64,
    /// Of it, in faults, ns.
    pub faults: u64,
    /// Of it, in page walks and the second level of the TLB, ns.
    pub walks: u64,
    /// Number of faults.
    pub fault_count: u64,
    /// Fault times at the median, 99 %, 99.9 % and the longest, ns.
    pub percentiles: [u64; 4],
    /// The helper's time, ns.
    pub helper: u64,
    /// Regions on huge pages at the end.
    pub huge: u64,
    /// Regions with any page.
    pub regions: u64,
    /// Pages of huge pages that were never touched.
    pub bloat: u64,
    /// Pages in use by the program.
    pub resident: u64,
    /// Times that the program waited for compaction.
    pub stalls: u64,
    /// Time in walks by region, ps.
    pub walk_ps: Vec<u64>,
}

/// A region of the program's memory.
#[derive(Clone, Debug, Default)]
struct Region {
    /// The frame of its huge page.
    huge: Option<u32>,
    /// Frames of its base pages, by page.
    frames: Vec<(u32, u32)>,
    /// Bits: pages that the program has touched, and how many they are.
    touched: [u64; 8],
    count: u64,
    /// Pages in use that it has not touched, as they are counted in the machine's.
    bloat: u64,
    /// Reads of late: by the scan of that number, and each one after it halves them.
    read: u64,
    scan: u64,
    /// Whether the helper has provided it, so that what the program touches is in another cache.
    provided: bool,
    /// What was decided ahead and left to the program's own faults: huge pages, or 64 KiB at a time.
    left: Action,
}

impl Region {
    fn present(&self) -> u64 {
        if self.huge.is_some() { PER_HUGE } else { self.frames.len() as u64 }
    }

    /// Reads of late, after so many scans.
    fn read(&self, scans: u64) -> u64 {
        self.read.checked_shr((scans - self.scan).min(64) as u32).unwrap_or(0)
    }

    fn has(&self, page: u32) -> bool {
        self.huge.is_some() || self.frames.binary_search_by_key(&page, |f| f.0).is_ok()
    }
}

/// The machine in a run.
struct Machine {
    setup: Setup,
    zone: Buddy,
    tlb: Tlb,
    /// As if all were base pages: what a recorded program's own time holds.
    recorded: Tlb,
    /// Reads of its own time that are due, in millionths; and how many one simulated read stands for.
    due: u64,
    weight: u64,
    regions: Vec<Region>,
    /// Who uses a frame: region and page plus one, or nobody known.
    owners: Vec<Option<(u32, u32)>>,
    /// A synthetic workload's mapping.
    heap: Arc<Mapping>,
    pool: Vec<u32>,
    pool_used: u64,
    now_ps: u64,
    helper_ns: u64,
    next_scan: u64,
    scans: u64,
    hand: usize,
    /// Pages in use that were never touched, and regions that were.
    bloat: u64,
    grown: u64,
    stall_ns: (u64, u64),
    resident: u64,
    /// The region that the program touched last, and the pages of the one that it left before.
    here: usize,
    last: Option<u64>,
    faults: Vec<u64>,
    /// How the program's growth has been tried, and how often the helper has looked.
    course: Course,
    looks: u64,
    outcome: Outcome,
    /// Steps since who waits was asked last; pieces of the program that are done, and all of them.
    steps: u64,
    done: u64,
    all: u64,
}

/// Steps after which who waits is asked whether to go on: some milliseconds.
const STEPS: u64 = 1 << 20;

/// Asked now and then with the pieces of the program that are done and all of them: whether to go on.
pub type ContinueCheck<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// What a program grows by between two looks of who measures, regions.
const GROWTH: u64 = 4;

impl Setup {
    /// Runs it.
    #[must_use]
    pub fn run(&self) -> Outcome {
        self.run_while(&mut |_, _| true).unwrap_or_default()
    }

    /// Runs it for as long as who waits goes on: a recording may ask for any number of steps.
    #[must_use]
    pub fn run_while(&self, goes_on: ContinueCheck) -> Option<Outcome> {
        let mut machine = Machine::new(self);
        machine.program(goes_on).then(|| machine.end())
    }
}

impl Machine {
    fn new(setup: &Setup) -> Self {
        let mut zone = Buddy::new(setup.zone);
        let mut random = Random::new(setup.seed);
        let blocks: Vec<u32> =
            std::iter::from_fn(|| zone.alloc(PAGEBLOCK_ORDER, Mobility::Movable))
                .map(|b| b.start)
                .collect();
        for start in blocks {
            if !random.chance(setup.fragmented as f64 / 1000.0) {
                zone.free(start);
                continue;
            }
            let kept = start + random.below(PER_HUGE) as u32;
            zone.split(start);
            (start..start + PER_HUGE as u32).filter(|page| *page != kept).for_each(|page| {
                zone.free(page);
            });
            if setup.pinned {
                zone.set_mobility(kept, Mobility::Unmovable);
            }
        }
        let count = setup.workload.pages.div_ceil(PER_HUGE) as usize;
        let load = &setup.workload;
        let own = sum(load.own.iter().copied());
        let pieces = load.own.iter().map(|own| own / STEP_NS);
        Self {
            owners: vec![None; zone.pages() as usize],
            heap: Arc::new(Mapping {
                start: BASE,
                end: BASE + count as u64 * HUGE,
                base: BASE,
                section: Section::Heap,
                ..Mapping::default()
            }),
            zone,
            tlb: Tlb::new(setup.tlb),
            recorded: Tlb::new(setup.tlb),
            due: 0,
            weight: (own / 1_000_000 * setup.workload.reads_per_ms).div_ceil(READS).max(1),
            regions: vec![Region::default(); count],
            pool: Vec::new(),
            pool_used: 0,
            now_ps: 0,
            helper_ns: 0,
            next_scan: SCAN_NS,
            scans: 0,
            hand: 0,
            bloat: 0,
            grown: 0,
            stall_ns: (0, 0),
            resident: 0,
            here: 0,
            last: None,
            faults: Vec::new(),
            course: Course::new(Trials::default()),
            looks: 0,
            steps: 0,
            done: 0,
            all: load.touches.len() as u64 + sum(pieces) + load.reads_after / 256,
            outcome: Outcome { walk_ps: vec![0; count], ..Outcome::default() },
            setup: setup.clone(),
        }
    }

    /// Runs the program; whether to its end.
    fn program(&mut self, goes_on: ContinueCheck) -> bool {
        let mut random = Random::new(self.setup.seed ^ 0x7ead);
        let touches = std::mem::take(&mut self.setup.workload.touches);
        let own = std::mem::take(&mut self.setup.workload.own);
        let (each, after) = (self.setup.workload.reads_per_touch, self.setup.workload.reads_after);
        for (at, page) in touches.iter().enumerate() {
            self.touch(*page);
            for _ in 0..each {
                self.read(&touches[..=at], &mut random);
            }
            let whole = match own.get(at) {
                Some(time) => self.own(*time, &touches[..=at], &mut random, goes_on),
                None => self.helper(*page, goes_on),
            };
            if !whole {
                return false;
            }
        }
        (0..after).all(|at| {
            self.read(&touches, &mut random);
            at % 256 > 0 || self.helper(touches.last().copied().unwrap_or(0), goes_on)
        })
    }

    /// A page to read of those touched.
    fn any(&self, touched: &[u64], random: &mut Random) -> Option<u64> {
        let hot = random.below(1000) < self.setup.workload.hot;
        let among = if hot { touched.len().div_ceil(10) } else { touched.len() };
        (among > 0).then(|| touched[random.below(among as u64) as usize])
    }

    /// Looks a page up that is read so many times by many reads like it; what the walks take.
    fn walk(&mut self, page: u64, reads: u64) -> u64 {
        self.steps += 1;
        let region = (page / PER_HUGE) as usize;
        let walk = reads * self.tlb.look_up(page, self.regions[region].huge.is_some());
        let there = &mut self.regions[region];
        (there.read, there.scan) = (there.read(self.scans) + reads, self.scans);
        self.outcome.walk_ps[region] += walk;
        self.outcome.walks += walk;
        walk
    }

    fn read(&mut self, touched: &[u64], random: &mut Random) {
        let Some(page) = self.any(touched, random) else { return };
        self.now_ps += READ_PS + self.walk(page, 1);
    }

    /// A recorded program's own time, less the walks that it is spared; whether to its end.
    fn own(
        &mut self,
        time: u64,
        touched: &[u64],
        random: &mut Random,
        goes_on: ContinueCheck,
    ) -> bool {
        let last = touched.last().copied().unwrap_or(0);
        let mut left = time;
        loop {
            let step = left.min(STEP_NS);
            self.due += step * self.setup.workload.reads_per_ms;
            let (mut walks, mut held) = (0, 0);
            while self.due >= self.weight * 1_000_000 {
                self.due -= self.weight * 1_000_000;
                if let Some(page) = self.any(touched, random) {
                    walks += self.walk(page, self.weight);
                    held += self.weight * self.recorded.look_up(page, false);
                }
            }
            let then = (self.now_ps + step * 1000 + walks).saturating_sub(held);
            self.now_ps = self.now_ps.max(then);
            left -= step;
            let whole = self.helper(last, goes_on);
            if left == 0 || !whole {
                return whole;
            }
        }
    }

    /// A region's pages, or those that were touched, are others than before.
    fn recount(&mut self, at: usize) {
        let region = &mut self.regions[at];
        let bloat = region.present().saturating_sub(region.count);
        self.bloat = self.bloat + bloat - region.bloat;
        region.bloat = bloat;
    }

    /// Whether a huge page fits a region.
    fn whole(&self, at: usize) -> bool {
        self.setup.workload.homes.get(at).is_none_or(Option::is_some)
    }

    /// Whether two regions lie in one mapping.
    fn together(&self, one: usize, other: usize) -> bool {
        let start = |at: usize| {
            let home = self.setup.workload.homes.get(at)?.as_ref()?;
            Some(home.0.start)
        };
        start(one) == start(other)
    }

    /// The program writes to a page for the first time.
    fn touch(&mut self, page: u64) {
        let (at, inside) = ((page / PER_HUGE) as usize, (page % PER_HUGE) as u32);
        if at != self.here {
            self.last = Some(self.regions[self.here].count);
            self.here = at;
        }
        let there = self.regions[at].has(inside);
        if !there {
            let fresh = self.regions[at].frames.is_empty() && self.whole(at);
            let action = match self.regions[at].left {
                Action::Fault64k => Action::Fault64k,
                Action::Fault2m if fresh => Action::Huge,
                _ if fresh => self.decide(at, Moment::Fault),
                _ => Action::Base,
            };
            let time = match action {
                Action::Fault64k => {
                    let first = inside / MEDIUM * MEDIUM;
                    for page in first..first + MEDIUM {
                        if !self.regions[at].has(page) {
                            self.base(at, page);
                        }
                    }
                    self.cost(self.setup.costs.medium)
                }
                Action::Pool => match self.pool.pop() {
                    Some(frame) => {
                        self.pool_used += 1;
                        self.install(at, frame);
                        self.cost(self.setup.costs.deliver)
                    }
                    None => self.base(at, inside),
                },
                Action::Huge => match self.huge_frame(true) {
                    (Some(frame), waited) => {
                        self.install(at, frame);
                        waited + self.cost(self.setup.costs.huge)
                    }
                    (None, waited) => waited + self.base(at, inside),
                },
                _ => self.base(at, inside),
            };
            self.faults.push(time);
            self.outcome.faults += time;
            self.now_ps += time * 1000;
        }
        let region = &mut self.regions[at];
        let (word, bit) = (&mut region.touched[(inside / 64) as usize], 1 << (inside % 64));
        if *word & bit > 0 {
            return;
        }
        if there && region.provided {
            self.now_ps += self.setup.costs.fetch.value().unwrap_or(0) * 1000 / PER_HUGE;
        }
        *word |= bit;
        region.count += 1;
        self.grown += u64::from(region.count == 1);
        self.recount(at);
    }

    fn cost(&self, figure: Figure) -> u64 {
        figure.value().unwrap_or(0)
    }

    /// Backs one page; its cost.
    fn base(&mut self, at: usize, inside: u32) -> u64 {
        if let Some(block) = self.zone.alloc(0, Mobility::Movable) {
            let frames = &mut self.regions[at].frames;
            let place = frames.partition_point(|frame| frame.0 < inside);
            frames.insert(place, (inside, block.start));
            self.owners[block.start as usize] = Some((at as u32, inside));
            self.resident += 1;
            self.recount(at);
        }
        self.cost(self.setup.costs.base)
    }

    /// A free huge frame, and what getting it took.
    fn huge_frame(&mut self, program: bool) -> (Option<u32>, u64) {
        if let Some(block) = self.zone.alloc(PAGEBLOCK_ORDER, Mobility::Movable) {
            return (Some(block.start), 0);
        }
        let (regions, owners) = (&mut self.regions, &mut self.owners);
        let done = self.zone.compact(Some(PAGEBLOCK_ORDER), |from: Block, to: Block| {
            if let Some((at, inside)) = owners[from.start as usize].take() {
                let frames = &mut regions[at as usize].frames;
                if let Ok(found) = frames.binary_search_by_key(&inside, |frame| frame.0) {
                    frames[found].1 = to.start;
                }
                owners[to.start as usize] = Some((at, inside));
            }
        });
        // Lists of blocks take longer than a look at a region.
        self.steps += 8 * done.blocks;
        let scanned = done.scanned + done.free_scanned;
        let waited = self.setup.attempt + done.migrated * MOVE_NS + scanned * SCANNED_NS;
        self.stall_ns = (self.stall_ns.0 + waited, self.stall_ns.1 + 1);
        self.outcome.stalls += u64::from(program);
        (self.zone.alloc(PAGEBLOCK_ORDER, Mobility::Movable).map(|b| b.start), waited)
    }

    /// Puts a region on a huge page, whatever backed it.
    fn install(&mut self, at: usize, frame: u32) {
        self.resident += PER_HUGE - self.regions[at].present();
        for (_, old) in std::mem::take(&mut self.regions[at].frames) {
            self.owners[old as usize] = None;
            self.zone.free(old);
        }
        self.regions[at].huge = Some(frame);
        self.recount(at);
        self.tlb.flush(at as u64 * PER_HUGE);
    }

    fn view(&self, at: usize, moment: Moment) -> View {
        let region = &self.regions[at];
        let free = self.zone.free_blocks();
        let free_huge: u64 = free[usize::from(PAGEBLOCK_ORDER)..].iter().sum();
        let pages = self.zone.pages().max(1);
        let known = Figure::Modelled;
        let home = match self.setup.workload.homes.get(at) {
            Some(home) => home.clone(),
            None => Some((self.heap.clone(), BASE + at as u64 * HUGE)),
        };
        let (mapping, address) = home.unwrap_or_default();
        let mut view = View {
            moment,
            address,
            section: mapping.section,
            huge: region.huge.is_some(),
            cpus: 2,
            mhz: self.setup.mhz,
            batch: 1,
            present: known(region.present()),
            accessed: known(region.read(self.scans).min(PER_HUGE)),
            zeros: known(if region.huge.is_some() { PER_HUGE - region.count } else { 0 }),
            free_huge: known(free_huge),
            pool: known(self.pool.len() as u64),
            pool_used: known(self.pool_used.min(1)),
            load: known(100),
            used: known((pages - self.zone.free_pages()) * 1000 / pages),
            cold: known(0),
            costs: self.setup.costs,
            ..View::default()
        };
        // What the last region that the program has left came to: a growing program repeats it.
        view.expected = self.last.map_or(Figure::Absent, known);
        if let Some(mean) = self.stall_ns.0.checked_div(self.stall_ns.1) {
            view.costs.stall = known(mean);
        }
        view.bloat = known(self.outcome.bloat * 1000 / self.resident.max(1));
        if let Some(profile) = &self.setup.profile {
            let or_nothing = |figure: Figure| known(figure.value().unwrap_or(0));
            view.unit = profile.unit;
            view.profile_huge = or_nothing(profile.benefit(Kind::Huge, &mapping, address));
            view.profile_eager = or_nothing(profile.benefit(Kind::Eager, &mapping, address));
        }
        view
    }

    fn decide(&self, at: usize, moment: Moment) -> Action {
        self.setup.policy.decide(&self.view(at, moment)).action
    }

    /// Has a policy that tries actions on the program's growth decide under which one it goes on, when an epoch of it
    /// has ended.
    fn try_growth(&mut self, at: usize) {
        let Some(tries) = self.setup.policy.tries() else { return };
        self.looks += 1;
        let now = Counters {
            grown: self.grown * HUGE,
            resident: self.resident * HUGE / PER_HUGE,
            program: self.now_ps / 1000,
            waited: 0,
            helper: self.outcome.helper,
            rounds: self.looks,
        };
        let view = self.view(at, Moment::Ahead);
        if self.looks == 1 {
            // No pool is filled for a policy that has its growth tried.
            let trials = Trials::of(|action| action != Action::Pool);
            let first = tries.first(&View { trials, ..view });
            self.course = Course::new(trials.beginning_with(first));
        }
        if self.course.advance(now, tries.helper_price(&view), GROWTH) {
            self.steps += self.regions.len() as u64;
            let view = View { trials: self.course.trials(), ..view };
            let action = self.setup.policy.decide(&view).action;
            let ahead = self.regions.iter().skip(at + 1).filter(|region| region.present() > 0);
            let provided = ahead.count() as u64 * HUGE;
            let stake = tries.stake(action, &view);
            self.course.begin((action, stake), tries.best(&view), now, provided);
        }
    }

    /// The helper, beside the program; whether to go on.
    fn helper(&mut self, page: u64, goes_on: ContinueCheck) -> bool {
        self.help(page);
        self.done += 1;
        let asks = self.steps >= STEPS;
        self.steps = if asks { 0 } else { self.steps + WINDOW };
        !asks || goes_on(self.done, self.all)
    }

    /// Works while its clock is behind the program's.
    fn help(&mut self, page: u64) {
        let now = self.now_ps / 1000;
        let at = (page / PER_HUGE) as usize;
        if page.is_multiple_of(PER_HUGE / 4) {
            self.try_growth(at);
        }
        let end = (at + 1 + WINDOW as usize).min(self.regions.len());
        for next in at + 1..end {
            if self.helper_ns > now {
                return;
            }
            if !self.together(at, next) {
                break;
            }
            if self.regions[next].present() == 0 && self.whole(next) {
                let action = match self.setup.policy.tries() {
                    Some(_) => self.course.in_force(),
                    None => self.decide(next, Moment::Ahead),
                };
                self.ahead(next, action);
            }
        }
        if self.helper_ns <= now
            && self.pool.len() < POOL as usize
            && self.decide(at, Moment::Idle) == Action::Prezero
        {
            let (frame, waited) = self.huge_frame(false);
            self.work(waited + self.cost(self.setup.costs.huge));
            self.pool.extend(frame);
        }
        if now >= self.next_scan && self.helper_ns <= now {
            self.next_scan = now + SCAN_NS;
            self.steps += SCAN_REGIONS as u64;
            self.outcome.bloat = self.bloat;
            for _ in 0..SCAN_REGIONS.min(self.regions.len()) {
                self.hand = (self.hand + 1) % self.regions.len();
                self.scan(self.hand);
            }
            self.scans += 1;
        }
    }

    fn work(&mut self, time: u64) {
        self.helper_ns = self.helper_ns.max(self.now_ps / 1000) + time;
        self.outcome.helper += time;
    }

    fn ahead(&mut self, at: usize, action: Action) {
        match action {
            Action::Ahead2m => {
                let (frame, waited) = self.huge_frame(false);
                self.work(waited + self.cost(self.setup.costs.huge));
                if let Some(frame) = frame {
                    self.install(at, frame);
                    self.regions[at].provided = true;
                }
            }
            Action::Ahead4k | Action::Ahead64k => {
                self.regions[at].provided = true;
                let mut time = 0;
                for page in 0..PER_HUGE as u32 {
                    time += self.base(at, page);
                }
                if action == Action::Ahead64k {
                    time = PER_HUGE / 16 * self.cost(self.setup.costs.medium);
                }
                self.work(time);
            }
            action => self.regions[at].left = action,
        }
    }

    fn scan(&mut self, at: usize) {
        if self.regions[at].present() == 0 || !self.whole(at) {
            return;
        }
        match self.decide(at, Moment::Scan) {
            Action::Collapse => {
                let (frame, waited) = self.huge_frame(false);
                self.work(waited + self.cost(self.setup.costs.collapse));
                if let Some(frame) = frame {
                    self.install(at, frame);
                }
            }
            Action::Demote => {
                let Some(frame) = self.regions[at].huge.take() else { return };
                self.zone.split(frame);
                let touched = self.regions[at].touched;
                for page in 0..PER_HUGE as u32 {
                    if touched[(page / 64) as usize] >> (page % 64) & 1 == 1 {
                        self.regions[at].frames.push((page, frame + page));
                        self.owners[(frame + page) as usize] = Some((at as u32, page));
                    } else {
                        self.zone.free(frame + page);
                        self.resident -= 1;
                    }
                }
                self.recount(at);
                self.tlb.flush(at as u64 * PER_HUGE);
                self.work(self.cost(self.setup.costs.collapse));
            }
            _ => {}
        }
    }

    fn end(mut self) -> Outcome {
        self.faults.sort_unstable();
        let at = |permille: usize| {
            let last = self.faults.len().checked_sub(1);
            last.map_or(0, |last| self.faults[(self.faults.len() * permille / 1000).min(last)])
        };
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.percentiles = [at(500), at(990), at(999), at(1000)];
        outcome.fault_count = self.faults.len() as u64;
        outcome.time = self.now_ps / 1000;
        outcome.walks /= 1000;
        outcome.huge = self.regions.iter().filter(|region| region.huge.is_some()).count() as u64;
        outcome.regions = self.regions.iter().filter(|region| region.present() > 0).count() as u64;
        outcome.bloat = self.bloat;
        outcome.resident = self.resident;
        outcome
    }
}

#[cfg(test)]
mod tests;

//! A run at page level: quanta of 10 ms in which the workload reads, the kernel scans and ages, and a
//! policy moves pages.
//!
//! Each quantum: the share of reads on the default tier follows from where the pages are; the surface gives
//! throughput and latencies at that share and the last quanta's copy traffic; time spent in faults and
//! copies is taken off the throughput; the tracker sees faults or samples drawn at each page's rate; the policy
//! decides; pages move.
//!
//! `scale` simulates one page in so many. A simulated page is a real one (its rate is that of a real page);
//! the kernel's budgets are divided by the scale and the traffic is multiplied by it.
//!
//! Always so: a run is a function of its set-up and seed; pages are conserved (see [`crate::pages`]).

mod faults;
mod regions;
mod samples;

pub use samples::exchange;

use pagemill_policy::tier::compose::{self, Engine};
use pagemill_policy::tier::kind::{HintFaultSettings, PageSize, Terms, TrackerKind};
use pagemill_policy::tier::track::split::{BASE, COOLING, Splitter};
use pagemill_policy::tier::{Load, Loads};

use crate::closed::Walks;
use crate::frames::Frames;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::split_pages::{HotSpots, SplitPages};
use crate::surface::{Point, Sampling, Surface, mix};
use crate::workload::{GIB, Workload};
use pagemill_model::random::Random;

/// What to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// The program.
    pub workload: Workload,
    /// One of [`compose::names`].
    pub policy: String,
    /// Antagonist: 0 to 3 times the machine's cores a step.
    pub steps: f64,
    /// A second strength of the antagonist and when it begins.
    pub later_steps: Option<(f64, f64)>,
    /// When the hot set moves, in seconds.
    pub moves_at: Option<f64>,
    /// Length in seconds.
    pub seconds: f64,
    /// One page in so many is simulated.
    pub scale: f64,
    /// Standard deviation of what policies are told of latencies and rate each quantum, as a part of it.
    pub noise: f64,
    /// Seed.
    pub seed: u64,
    /// Sampling of the surface.
    pub sampling: Sampling,
}

/// One second of a run (means over it).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its end, in seconds.
    pub second: f64,
    /// Units of the workload's metric a second.
    pub units_per_s: f64,
    /// Share of reads on the default tier.
    pub share: f64,
    /// Latency of the default tier.
    pub default_ns: f64,
    /// Latency of the alternate tier.
    pub alternate_ns: f64,
    /// Pages promoted, scaled up.
    pub promoted: f64,
    /// Pages demoted, scaled up.
    pub demoted: f64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Second by second.
    pub samples: Vec<Sample>,
    /// The means of the last 30 seconds (of the last third, in shorter runs).
    pub last: Sample,
    /// Units a second over the whole run, of a program that ends or of one that does not.
    pub whole: f64,
    /// The best static placement by brute force under the conditions of the end: share and units a second.
    pub best: (f64, f64),
    /// Bytes of simulator state for each simulated page.
    pub bytes_per_page: f64,
    /// Accesses that the run stands for.
    pub accesses: f64,
    /// Part of the memory whose huge pages were split.
    pub split: f64,
}

/// The surfaces of a set-up; policies with the same page size may share them.
#[derive(Clone, Debug)]
pub struct Prepared {
    before: Surfaces,
    after: Option<Surfaces>,
}

#[derive(Clone, Debug)]
struct Surfaces {
    whole: Surface,
    /// With all huge pages split, where a policy may: what it costs in page walks.
    split: Option<Surface>,
}

impl Surfaces {
    /// The point at a share, a copy traffic and a part of the memory that is split.
    fn at(&self, share: f64, copied: f64, split: f64) -> Point {
        let whole = self.whole.at(share, copied);
        match &self.split {
            Some(surface) if split > 0.0 => mix(&whole, &surface.at(share, copied), split),
            _ => whole,
        }
    }
}

/// Pages below which a run says little: one of them holds too much heat for a policy to place the rest.
pub const FEWEST: f64 = 1000.0;

const QUANTUM_NS: f64 = 1e7;
/// A page of a split huge page.
const SMALL: f64 = 4096.0;
const FAULT_WHEEL: usize = 4096;

impl Setup {
    /// Bytes of a page under this policy, as the machine has them: the kernel's own tiering moves base pages, HeMem and
    /// MEMTIS huge ones.
    #[must_use]
    pub fn page_bytes(&self) -> f64 {
        let huge = self.tracker().is_some_and(|tracker| tracker.page == PageSize::Huge);
        self.machine.get(if huge { "hemem.page_kib" } else { "kernel.page_kib" }) * 1024.0
    }

    fn tracker(&self) -> Option<&'static TrackerKind> {
        compose::find(&self.policy).map(|(tracker, _)| tracker)
    }

    /// The greatest scale at which the run has [`FEWEST`] pages, where it has so many.
    #[must_use]
    pub fn coarsest(&self) -> f64 {
        (self.workload.bytes() / self.page_bytes() / FEWEST).floor().max(1.0)
    }

    /// The workload as this policy's pages see it, and the heat inside of a page that may be split.
    fn load(&self) -> (Workload, Option<HotSpots>) {
        match self.workload.folded(self.page_bytes()) {
            Some((load, spots)) => {
                let splits = self.tracker().is_some_and(|tracker| tracker.splits);
                (load, splits.then_some(spots))
            }
            None => (self.workload.clone(), None),
        }
    }

    fn default_bytes(&self) -> f64 {
        let machine = self.machine.get("tier.default.capacity_gib");
        self.workload.default_gib.unwrap_or(machine) * GIB
    }

    /// Least and greatest share that a placement can reach.
    #[must_use]
    pub fn bounds(&self) -> (f64, f64) {
        self.bounds_of(&self.load().0)
    }

    fn bounds_of(&self, load: &Workload) -> (f64, f64) {
        let moved = self.moves_at.is_some();
        let mut dense: Vec<(f64, f64)> = load
            .classes
            .iter()
            .map(|class| (class.bytes, if moved { class.later } else { class.weight }))
            .collect();
        dense.sort_by(|a, b| (b.1 / b.0).total_cmp(&(a.1 / a.0)));
        let fill = |classes: &mut dyn Iterator<Item = &(f64, f64)>, mut room: f64| {
            let mut share = 0.0;
            for &(bytes, weight) in classes {
                let part = (room / bytes).clamp(0.0, 1.0);
                share += part * weight;
                room -= part * bytes;
            }
            share
        };
        let alternate = self.machine.get("tier.alternate.capacity_gib") * GIB;
        let forced = (load.bytes() - alternate).max(0.0);
        (fill(&mut dense.iter().rev(), forced), fill(&mut dense.iter(), self.default_bytes()))
    }

    /// Where page table lines come from: they stay where their pages were first touched.
    #[must_use]
    pub fn walks(&self) -> Walks {
        self.walks_of(&self.load().0, self.page_bytes())
    }

    fn walks_of(&self, load: &Workload, page_bytes: f64) -> Walks {
        let pages = Pages::first_touch(load, page_bytes, self.default_bytes(), self.scale);
        let missed = load.walk_misses(&self.machine, page_bytes);
        let (mut miss, mut on_default) = (0.0, 0.0);
        for (class, missed) in missed.iter().enumerate() {
            let weighed = load.classes[class].weight * missed;
            miss += weighed;
            on_default += weighed * pages.part_on_default(class);
        }
        Walks {
            part: load.step.walked,
            miss,
            hit_ns: load.walk_hit_ns(&self.machine, page_bytes),
            default_share: if miss > 0.0 { on_default / miss } else { 1.0 },
        }
    }

    /// Simulates the surfaces. `tick` is called after each point with its number and their count.
    #[must_use]
    pub fn prepare(&self, tick: &mut dyn FnMut(usize, usize)) -> Prepared {
        let (walks, split) = (self.walks(), self.load().1.is_some());
        // One base page in `scale` would be too few of them to say where their page tables are.
        let split =
            split.then(|| Self { scale: 1.0, ..self.clone() }.walks_of(&self.workload, SMALL));
        let mut build = |steps| {
            let mut of = |walks| {
                Surface::build(&self.machine, &self.workload, steps, walks, self.sampling, tick)
            };
            Surfaces { whole: of(walks), split: split.map(&mut of) }
        };
        Prepared {
            before: build(self.steps),
            after: self.later_steps.map(|(steps, _)| build(steps)),
        }
    }

    /// The best static placement by brute force, under the conditions of the end: share of reads on the default tier
    /// and units a second.
    #[must_use]
    pub fn best(&self, prepared: &Prepared) -> (f64, f64) {
        let surfaces = prepared.after.as_ref().unwrap_or(&prepared.before);
        let (low, high) = self.bounds();
        let whole = surfaces.whole.best(low, high);
        let (share, reads) = surfaces.split.as_ref().map_or(whole, |surface| {
            let (low, high) = self.bounds_of(&self.workload);
            let split = surface.best(low, high);
            if split.1 > whole.1 { split } else { whole }
        });
        (share, reads * 1e9 / self.workload.step.per_unit)
    }

    /// Runs the page level. `tick` is called after each simulated second with its number.
    ///
    /// # Panics
    /// For a policy that is none of [`compose::names`].
    #[must_use]
    pub fn run(&self, prepared: &Prepared, tick: &mut dyn FnMut(f64)) -> Report {
        let mut state = State::new(self);
        let quanta = (self.seconds / (QUANTUM_NS / 1e9)).round() as u32;
        let mut samples: Vec<Sample> = Vec::new();
        let mut sums = [0.0; 6];
        let mut counted = 0.0;
        let (mut accesses, mut elapsed) = (0.0, 0.0);
        for now in 0..quanta {
            let second = f64::from(now) * QUANTUM_NS / 1e9;
            let surfaces = match (self.later_steps, &prepared.after) {
                (Some((_, at)), Some(after)) if second >= at => after,
                _ => &prepared.before,
            };
            let quantum = state.quantum(now, second, surfaces);
            accesses += quantum.reads_per_ns * QUANTUM_NS;
            elapsed += QUANTUM_NS / 1e9;
            let values = [
                quantum.reads_per_ns * 1e9 / self.workload.step.per_unit,
                quantum.share,
                quantum.loads.default.latency_ns,
                quantum.loads.alternate.latency_ns,
                quantum.promoted,
                quantum.demoted,
            ];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            counted += 1.0;
            let units = accesses / self.workload.step.per_unit;
            let ended = self.workload.length.is_some_and(|length| units >= length);
            if (now + 1) % 100 == 0 || now + 1 == quanta || ended {
                let second = f64::from(now + 1) * QUANTUM_NS / 1e9;
                samples.push(Sample {
                    second,
                    units_per_s: sums[0] / counted,
                    share: sums[1] / counted,
                    default_ns: sums[2] / counted,
                    alternate_ns: sums[3] / counted,
                    promoted: sums[4],
                    demoted: sums[5],
                });
                (sums, counted) = ([0.0; 6], 0.0);
                tick(second);
            }
            if ended {
                break;
            }
        }
        Report {
            last: mean(&samples),
            whole: accesses / self.workload.step.per_unit / f64::max(elapsed, f64::MIN_POSITIVE),
            samples,
            best: self.best(prepared),
            bytes_per_page: state.pages.bytes_per_page(),
            accesses,
            split: state.part_split(),
        }
    }
}

fn mean(samples: &[Sample]) -> Sample {
    let last = samples.len().min(30).min(samples.len().div_ceil(3)).max(1);
    let tail = &samples[samples.len().saturating_sub(last)..];
    let over =
        |value: fn(&Sample) -> f64| tail.iter().map(value).sum::<f64>() / tail.len().max(1) as f64;
    Sample {
        second: tail.last().map_or(0.0, |sample| sample.second),
        units_per_s: over(|s| s.units_per_s),
        share: over(|s| s.share),
        default_ns: over(|s| s.default_ns),
        alternate_ns: over(|s| s.alternate_ns),
        promoted: over(|s| s.promoted),
        demoted: over(|s| s.demoted),
    }
}

struct Quantum {
    reads_per_ns: f64,
    share: f64,
    loads: Loads,
    promoted: f64,
    demoted: f64,
}

struct State<'a> {
    setup: &'a Setup,
    load: Workload,
    splitter: Option<Splitter>,
    pages: Pages,
    /// Where the policy looks at physical memory.
    frames: Option<Frames>,
    engine: Engine,
    random: Random,
    /// For the errors of what policies are told.
    errors: Random,
    faults: Vec<Vec<(u32, u32)>>,
    cursor: usize,
    scan_debt: f64,
    kswapd_debt: f64,
    kswapd_awake: bool,
    copy_debt: f64,
    copied: f64,
    lost: f64,
    sampled: f64,
}

/// Samples of the simulated pages between two coolings.
fn cooling(setup: &Setup) -> u64 {
    (COOLING as f64 / setup.scale) as u64
}

fn engine(setup: &Setup, pages: &Pages) -> Engine {
    let machine = &setup.machine;
    let per_second =
        machine.get("kernel.promote_mb_per_s") * 1e6 / setup.page_bytes() / setup.scale;
    let terms = Terms {
        pages: pages.len(),
        cooling: cooling(setup),
        kernel: HintFaultSettings {
            threshold_ms: machine.get("kernel.hot_threshold_ms"),
            pages_per_second: per_second as u64,
            adapt_ms: machine.get("kernel.adapt_ms") as u64,
            colloid: false,
        },
        ..Terms::TEN_MS
    };
    policy(&setup.policy, &terms)
}

/// What decides in the machine, of the policy of this name.
///
/// # Panics
/// There is none: it is none of [`compose::names`].
#[must_use]
pub fn policy(name: &str, terms: &Terms) -> Engine {
    let Some(composed) = compose::compose(name, terms) else {
        panic!("policy {name} is none of {:?}", compose::names())
    };
    composed.engine
}

impl<'a> State<'a> {
    fn new(setup: &'a Setup) -> Self {
        let (load, spots) = setup.load();
        let mut pages =
            Pages::first_touch(&load, setup.page_bytes(), setup.default_bytes(), setup.scale);
        let splitter = spots.map(|spots| {
            pages.splittable(SplitPages::new(pages.len(), spots));
            Splitter::new(pages.len(), pages.default_frames() * BASE, cooling(setup))
        });
        let engine = engine(setup, &pages);
        let alternate = setup.machine.get("tier.alternate.capacity_gib") * GIB;
        let alternate = (alternate / setup.page_bytes() / setup.scale) as usize;
        let frames =
            matches!(engine, Engine::Regions(_)).then(|| Frames::holding(&pages, alternate));
        Self {
            engine,
            frames,
            setup,
            load,
            splitter,
            pages,
            random: Random::new(setup.seed),
            errors: Random::new(setup.seed ^ 0x6e6f_6973_6500_0000),
            faults: vec![Vec::new(); FAULT_WHEEL],
            cursor: 0,
            scan_debt: 0.0,
            kswapd_debt: 0.0,
            kswapd_awake: false,
            copy_debt: 0.0,
            copied: 0.0,
            lost: 0.0,
            sampled: 0.0,
        }
    }

    fn part_split(&self) -> f64 {
        self.pages.split_pages().map_or(0.0, SplitPages::part_split)
    }

    /// The loads as they are measured.
    fn measured(&mut self, loads: Loads) -> Loads {
        let mut measured = |load: Load| {
            let latency_ns = self.errors.measured(load.latency_ns, self.setup.noise);
            Load { latency_ns, ..load }
        };
        Loads { default: measured(loads.default), alternate: measured(loads.alternate) }
    }

    fn quantum(&mut self, now: u32, second: f64, surfaces: &Surfaces) -> Quantum {
        let moved = self.setup.moves_at.is_some_and(|at| second >= at);
        let weights: Vec<f64> = self
            .load
            .classes
            .iter()
            .map(|class| if moved { class.later } else { class.weight })
            .collect();
        let share: f64 =
            weights.iter().enumerate().map(|(c, w)| w * self.pages.part_on_default(c)).sum();
        let Point { reads_per_ns, loads } = surfaces.at(share, self.copied, self.part_split());
        let reads_per_ns = reads_per_ns * (1.0 - self.lost).max(0.0);
        // Reads of one page in one quantum.
        let rates: Vec<f64> = weights
            .iter()
            .enumerate()
            .map(|(class, weight)| {
                reads_per_ns * QUANTUM_NS * weight
                    / (self.pages.size_of(class) as f64 * self.setup.scale)
            })
            .collect();
        let told = self.measured(loads);
        let mut engine = std::mem::replace(&mut self.engine, Engine::Still);
        let (promoted, demoted) = match &mut engine {
            Engine::Still => (0, 0),
            Engine::Faults(driver) => self.by_faults(driver, now, told, &rates),
            Engine::Regions(driver) => self.by_regions(&mut **driver, now, &rates),
            Engine::Samples(driver) => self.by_samples(driver, told, &weights, reads_per_ns),
        };
        self.engine = engine;
        let lines = self.setup.page_bytes() / 64.0 * self.setup.scale;
        let each_way = (promoted + demoted) as f64 / 2.0 * lines / QUANTUM_NS;
        self.copied += 0.1 * (each_way - self.copied);
        Quantum {
            reads_per_ns,
            share,
            loads,
            promoted: promoted as f64 * self.setup.scale,
            demoted: demoted as f64 * self.setup.scale,
        }
    }
}

#[cfg(test)]
mod tests;

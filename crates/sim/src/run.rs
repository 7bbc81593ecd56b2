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

use pagemill_policy::tier::drive::{Counter, FaultDriven, Limits, Placement, Placer, Sampled};
use pagemill_policy::tier::place::climb::Climb;
use pagemill_policy::tier::place::colloid::Watermark;
use pagemill_policy::tier::track::hemem::{self, Hemem};
use pagemill_policy::tier::track::memtis::Memtis;
use pagemill_policy::tier::track::tpp::{Config, Verdict};
use pagemill_policy::tier::{Loads, Page, Tier};

use crate::closed::Walks;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::random::Random;
use crate::surface::{Effort, Point, Surface};
use crate::workload::{GIB, Workload};

/// The policies a run can be under.
pub const POLICIES: &[&str] = &[
    "none",
    "tpp",
    "tpp+colloid",
    "hemem",
    "hemem+colloid",
    "hemem+watermark",
    "hemem+climb",
    "memtis",
    "memtis+colloid",
    "memtis+watermark",
    "memtis+climb",
];

/// What to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// The program.
    pub workload: Workload,
    /// One of [`POLICIES`].
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
    /// Seed.
    pub seed: u64,
    /// Effort of the surface.
    pub effort: Effort,
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
}

/// The surfaces of a set-up; policies with the same page size may share them.
#[derive(Clone, Debug)]
pub struct Prepared {
    before: Surface,
    after: Option<Surface>,
}

const QUANTUM_NS: f64 = 1e7;
const SMALL: f64 = 4096.0;
const HUGE: f64 = 2_097_152.0;
const FAULT_WHEEL: usize = 4096;

impl Setup {
    /// Bytes of a page under this policy: HeMem and MEMTIS manage 2 MiB pages, TPP 4 KiB ones.
    #[must_use]
    pub fn page_bytes(&self) -> f64 {
        if self.policy.starts_with("hemem") || self.policy.starts_with("memtis") {
            HUGE
        } else {
            SMALL
        }
    }

    fn default_bytes(&self) -> f64 {
        let machine = self.machine.get("tier.default.capacity_gib");
        self.workload.default_gib.unwrap_or(machine) * GIB
    }

    /// Least and greatest share that a placement can reach.
    #[must_use]
    pub fn bounds(&self) -> (f64, f64) {
        let moved = self.moves_at.is_some();
        let mut dense: Vec<(f64, f64)> = self
            .workload
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
        let forced = (self.workload.bytes() - alternate).max(0.0);
        (fill(&mut dense.iter().rev(), forced), fill(&mut dense.iter(), self.default_bytes()))
    }

    /// Where page table lines come from: they stay where their pages were first touched.
    #[must_use]
    pub fn walks(&self) -> Walks {
        let pages = self.pages();
        let missed = self.workload.walk_misses(&self.machine, self.page_bytes());
        let (mut miss, mut on_default) = (0.0, 0.0);
        for (class, missed) in missed.iter().enumerate() {
            let weighed = self.workload.classes[class].weight * missed;
            miss += weighed;
            on_default += weighed * pages.part_on_default(class);
        }
        Walks {
            part: self.workload.step.walked,
            miss,
            hit_ns: self.workload.walk_hit_ns(&self.machine, self.page_bytes()),
            default_share: if miss > 0.0 { on_default / miss } else { 1.0 },
        }
    }

    fn pages(&self) -> Pages {
        Pages::first_touch(&self.workload, self.page_bytes(), self.default_bytes(), self.scale)
    }

    /// Simulates the surfaces. `tick` is called after each point with its number and their count.
    #[must_use]
    pub fn prepare(&self, tick: &mut dyn FnMut(usize, usize)) -> Prepared {
        let walks = self.walks();
        let mut build =
            |steps| Surface::build(&self.machine, &self.workload, steps, walks, self.effort, tick);
        Prepared {
            before: build(self.steps),
            after: self.later_steps.map(|(steps, _)| build(steps)),
        }
    }

    /// Runs the page level. `tick` is called after each simulated second with its number.
    ///
    /// # Panics
    /// For a policy that is none of [`POLICIES`].
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
            let surface = match (self.later_steps, &prepared.after) {
                (Some((_, at)), Some(after)) if second >= at => after,
                _ => &prepared.before,
            };
            let quantum = state.quantum(now, second, surface);
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
        let surface = prepared.after.as_ref().unwrap_or(&prepared.before);
        let (low, high) = self.bounds();
        let best = surface.best(low, high);
        Report {
            last: mean(&samples),
            whole: accesses / self.workload.step.per_unit / f64::max(elapsed, f64::MIN_POSITIVE),
            samples,
            best: (best.0, best.1 * 1e9 / self.workload.step.per_unit),
            bytes_per_page: state.pages.bytes_per_page(),
            accesses,
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

enum Engine {
    Still,
    Faults(FaultDriven),
    Samples(Box<Sampled>),
}

struct State<'a> {
    setup: &'a Setup,
    pages: Pages,
    engine: Engine,
    random: Random,
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

fn engine(setup: &Setup, pages: &Pages) -> Engine {
    let machine = &setup.machine;
    let counter = |name: &str| {
        if name.starts_with("hemem") {
            Counter::Hemem(Hemem::new(pages.len()))
        } else {
            // Ten samples a page between two coolings.
            Counter::Memtis(Memtis::new(pages.len(), 10 * pages.len() as u64))
        }
    };
    match setup.policy.as_str() {
        "none" => Engine::Still,
        "tpp" | "tpp+colloid" => {
            let per_second = machine.get("kernel.promote_mb_per_s") * 1e6 / SMALL / setup.scale;
            let config = Config {
                threshold_ms: machine.get("kernel.hot_threshold_ms"),
                pages_per_second: per_second as u64,
                adapt_ms: machine.get("kernel.adapt_ms") as u64,
                colloid: setup.policy == "tpp+colloid",
            };
            // The module's weight when it sleeps 10 ms between readings.
            Engine::Faults(FaultDriven::new(config, 0.5))
        }
        name if POLICIES.contains(&name) => {
            let placer = match name.split_once('+').map(|(_, placer)| placer) {
                None => Placer::Pack,
                Some("watermark") => Placer::Watermark(Watermark::default()),
                // A quarter of a second for each mean.
                Some("climb") => Placer::Climb(Climb::new(25)),
                Some(_) => Placer::Proportional,
            };
            Engine::Samples(Box::new(Sampled::new(counter(name), placer)))
        }
        other => panic!("policy {other} is none of {POLICIES:?}"),
    }
}

impl<'a> State<'a> {
    fn new(setup: &'a Setup) -> Self {
        let pages = setup.pages();
        Self {
            engine: engine(setup, &pages),
            setup,
            pages,
            random: Random::new(setup.seed),
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

    fn quantum(&mut self, now: u32, second: f64, surface: &Surface) -> Quantum {
        let moved = self.setup.moves_at.is_some_and(|at| second >= at);
        let weights: Vec<f64> = self
            .setup
            .workload
            .classes
            .iter()
            .map(|class| if moved { class.later } else { class.weight })
            .collect();
        let share: f64 =
            weights.iter().enumerate().map(|(c, w)| w * self.pages.part_on_default(c)).sum();
        let Point { reads_per_ns, loads } = surface.at(share, self.copied);
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
        let mut engine = std::mem::replace(&mut self.engine, Engine::Still);
        let (promoted, demoted) = match &mut engine {
            Engine::Still => (0, 0),
            Engine::Faults(driver) => self.by_faults(driver, now, loads, &rates),
            Engine::Samples(driver) => self.by_samples(driver, loads, &weights, reads_per_ns),
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

    fn by_faults(
        &mut self,
        driver: &mut FaultDriven,
        now: u32,
        loads: Loads,
        rates: &[f64],
    ) -> (usize, usize) {
        let machine = &self.setup.machine;
        let quantum_ms = QUANTUM_NS / 1e6;
        // Watermarks are parts of the node, of which the workload may use some frames only: low, high and the
        // mark up to which kswapd frees when it makes room for promotions lie one margin apart.
        let node = machine.get("kernel.node_gib") * GIB / SMALL / self.setup.scale;
        let margin = (machine.get("kernel.watermark_part") * node).max(1.0);
        let frames = self.pages.default_frames();
        let mark = |margins: f64| ((margins * margin) as usize).min(frames / 8 * margins as usize);
        let (low, high, promotion) = (mark(1.0), mark(2.0), mark(3.0));
        let plenty = promotion + (machine.get("kernel.plenty_part") * node) as usize;
        driver.observe(loads);
        let (mut promoted, mut demoted, mut handled) = (0, 0, 0_u32);
        let slot = now as usize % FAULT_WHEEL;
        let mut due = std::mem::take(&mut self.faults[slot]);
        // Faults of one quantum come in any order; those stamped first must not take the free frames first.
        for at in (1..due.len()).rev() {
            due.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        for (page, stamped) in due {
            if !self.pages.unstamp(page, stamped) {
                continue;
            }
            handled += 1;
            let latency_ms = f64::from(now - stamped) * quantum_ms;
            let now_ms = (f64::from(now) * quantum_ms) as u64;
            let room = self.pages.free() > plenty;
            match driver.fault(now_ms, self.pages.tier(page), latency_ms, room) {
                Verdict::Promote if self.pages.free() > high => {
                    promoted += usize::from(self.pages.promote(page, now));
                }
                Verdict::Promote => self.kswapd_awake = true,
                Verdict::Demote => demoted += usize::from(self.pages.demote(page)),
                Verdict::Stay => {}
            }
        }
        let copies = (promoted + demoted) as f64;
        self.kswapd_awake |= self.pages.free() < low;
        if self.kswapd_awake {
            self.kswapd_debt += QUANTUM_NS / 1e3 / self.setup.scale;
            let costs = (machine.get("kernel.kswapd_scan_us"), machine.get("kernel.kswapd_us"));
            let budget = self.kswapd_debt.max(0.0);
            let (aged, spent) =
                self.pages.age(now, promotion + 1, budget, costs, rates, &mut self.random);
            self.kswapd_debt -= spent;
            demoted += aged;
            if self.pages.free() > promotion {
                self.kswapd_awake = false;
                self.kswapd_debt = self.kswapd_debt.min(0.0);
            }
        }
        self.scan(driver, now, rates);
        let spent_us = (f64::from(handled) * machine.get("kernel.fault_us")
            + copies * machine.get("kernel.migrate_us"))
            * self.setup.scale;
        let lost = spent_us / (QUANTUM_NS / 1e3 * self.setup.workload.cores as f64);
        self.lost += 0.1 * (lost - self.lost);
        (promoted, demoted)
    }

    /// Stamps the next chunk of the address space and draws when each stamped page is read next.
    fn scan(&mut self, driver: &FaultDriven, now: u32, rates: &[f64]) {
        let machine = &self.setup.machine;
        let period = (machine.get("kernel.scan_period_ms") * 1e6 / QUANTUM_NS).round().max(1.0);
        if f64::from(now) % period != 0.0 {
            return;
        }
        let chunk = machine.get("kernel.scan_mib") * 1024.0 * 1024.0;
        self.scan_debt += chunk / SMALL / self.setup.scale;
        while self.scan_debt >= 1.0 {
            self.scan_debt -= 1.0;
            let page = self.cursor as u32;
            self.cursor = (self.cursor + 1) % self.pages.len();
            if self.pages.stamped(page) || !driver.stamps(self.pages.tier(page)) {
                continue;
            }
            let rate = rates[self.pages.class_of(page)];
            let wait = self.random.exponential(1.0 / rate.max(1e-12)).ceil();
            // A page that is not read before the wheel comes round is stamped again then.
            if wait < (FAULT_WHEEL - 1) as f64 {
                self.pages.stamp(page, now);
                self.faults[(now as usize + wait as usize) % FAULT_WHEEL].push((page, now));
            }
        }
    }

    fn by_samples(
        &mut self,
        driver: &mut Sampled,
        loads: Loads,
        weights: &[f64],
        reads_per_ns: f64,
    ) -> (usize, usize) {
        let reads = reads_per_ns * QUANTUM_NS / hemem::PERIOD as f64 / self.setup.scale;
        for (class, weight) in weights.iter().enumerate() {
            for _ in 0..self.random.poisson(reads * weight) {
                driver.sample(Page(self.pages.draw(class, &mut self.random)));
                self.sampled += 1.0;
            }
        }
        let per_quantum = self.setup.machine.get("hemem.copy_gb_per_s") * QUANTUM_NS / HUGE;
        self.copy_debt = (self.copy_debt + per_quantum / self.setup.scale).min(8.0 * per_quantum);
        let tiers: Vec<Tier> =
            (0..self.pages.len() as u32).map(|page| self.pages.tier(page)).collect();
        let alternate = self.setup.machine.get("tier.alternate.capacity_gib") * GIB / HUGE;
        let swaps = driver.decide(
            loads,
            Placement {
                tiers: &tiers,
                default_frames: self.pages.default_frames(),
                alternate_frames: (alternate / self.setup.scale) as usize,
            },
            Limits {
                pages: self.copy_debt as usize,
                page_bytes: HUGE * self.setup.scale,
                quantum_ns: QUANTUM_NS,
            },
        );
        let (mut promoted, mut demoted) = (0, 0);
        for swap in swaps {
            self.copy_debt -= swap.pages() as f64;
            let (up, down) = match swap.from {
                Tier::Alternate => (Some(swap.moved), swap.back),
                Tier::Default => (swap.back, Some(swap.moved)),
            };
            demoted += usize::from(down.is_some_and(|page| self.pages.demote(page.0)));
            promoted += usize::from(up.is_some_and(|page| self.pages.promote(page.0, 0)));
        }
        (promoted, demoted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ICELAKE;
    use crate::workload::gups;

    fn setup(policy: &str, steps: f64) -> Setup {
        Setup {
            machine: Machine::parse(ICELAKE).unwrap(),
            workload: gups(64.0),
            policy: policy.to_owned(),
            steps,
            later_steps: None,
            moves_at: None,
            seconds: 120.0,
            scale: if policy.starts_with("tpp") || policy == "none" { 2048.0 } else { 64.0 },
            seed: 1,
            effort: Effort { warm_ns: 2_000.0, measure_ns: 8_000.0, seed: 1 },
        }
    }

    #[test]
    fn a_placement_can_reach_from_nothing_to_the_hot_set_and_some() {
        let (low, high) = setup("none", 0.0).bounds();
        assert!(low.abs() < 1e-9, "{low}");
        assert!((high - (0.9 + 0.1 * 12.0 / 52.0)).abs() < 1e-6, "{high}");
    }

    #[test]
    fn without_a_policy_nothing_moves() {
        let setup = Setup { seconds: 2.0, ..setup("none", 0.0) };
        let report = setup.run(&setup.prepare(&mut |_, _| {}), &mut |_| {});
        assert!(report.samples.iter().all(|s| s.promoted + s.demoted == 0.0));
        assert!((report.last.share - 0.1 * 32.0 / 52.0).abs() < 0.01, "{:?}", report.last);
    }

    #[test]
    fn every_system_finds_the_hot_set_and_colloid_leaves_it_under_load() {
        for base in ["tpp", "hemem", "memtis"] {
            // Two passes of the scanner.
            let alone =
                Setup { seconds: if base == "tpp" { 600.0 } else { 120.0 }, ..setup(base, 3.0) };
            let prepared = alone.prepare(&mut |_, _| {});
            let packed = alone.run(&prepared, &mut |_| {});
            let under = Setup { policy: format!("{base}+colloid"), ..alone.clone() };
            let balanced = under.run(&prepared, &mut |_| {});
            assert!(packed.last.share > 0.4, "{base}: {:?}", packed.last);
            assert!(balanced.last.share < packed.last.share - 0.2, "{base}: {:?}", balanced.last);
            assert!(balanced.last.units_per_s > packed.last.units_per_s, "{base}");
        }
    }

    #[test]
    fn a_seed_is_a_run() {
        let setup = Setup { seconds: 5.0, ..setup("tpp+colloid", 1.0) };
        let prepared = setup.prepare(&mut |_, _| {});
        let once = setup.run(&prepared, &mut |_| {}).samples;
        assert_eq!(once, setup.run(&prepared, &mut |_| {}).samples);
    }
}

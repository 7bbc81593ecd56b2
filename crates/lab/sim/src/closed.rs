//! Cores in a closed loop over both tiers, request by request: `X = N / (d + sum p L)` with every `L`
//! coming out of queues.
//!
//! Terms: a *window* core holds a window of operations in flight, as a reorder buffer does: an operation
//! enters when the one a window before it retires, and operations retire in order, so one slow read
//! holds up those behind it. A *stream* core reads consecutive lines, with a prefetcher ahead of it
//! ([`crate::stream`]). An operation may need a page table line first, through one of few walkers.
//!
//! A read costs: link request (alternate tier only), channel, link reply, and a constant that makes up the
//! tier's unloaded latency. A line written goes back some time; it loads the tier and delays nobody: in the order of
//! its reads for a stream, whose lines leave the L2 cache for memory, in none for a window core, whose lines leave a
//! hashed cache. Latencies are those of demand reads; what a prefetcher reads is not counted, as the counters that the
//! published systems read do not count it (event `TOR_OCCUPANCY.IA_MISS_DRD`, without `DRD_PREF`).
//!
//! Always so: in flight reads never exceed the slots; with the same seed the outcome is the same.

mod cores;
mod request_path;

use std::collections::VecDeque;

use pagemill_policy::tier::{Load, Loads};

use crate::dram::{Channel, Shape};
use crate::machine::Machine;
use crate::stream::{Ask, Stream};
use crate::wheel::Wheel;
use pagemill_model::random::Random;
use request_path::Split;

/// Page table reads of a window core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walks {
    /// Part of operations that need a page walk.
    pub part: f64,
    /// Part of walks whose last line comes from memory.
    pub miss: f64,
    /// How long the others take, in nanoseconds.
    pub hit_ns: f64,
    /// Part of the lines from memory that lie on the default tier.
    pub default_share: f64,
}

impl Walks {
    /// No walks.
    pub const NONE: Self = Self { part: 0.0, miss: 0.0, hit_ns: 0.0, default_share: 1.0 };
}

/// What a core does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Operations of one read each, retired in order.
    Window {
        /// Operations in flight.
        window: usize,
        /// Least time between two operations entering the window, in nanoseconds.
        front_ns: f64,
        /// Time between entering and the read's issue, in nanoseconds.
        issue_ns: f64,
        /// Part of operations that begin with a mispredicted branch.
        mispredicted: f64,
        /// What that costs, in nanoseconds.
        penalty_ns: f64,
        /// Page table reads.
        walks: Walks,
        /// Lines of a read, fetched side by side; it ends with the last.
        lines: f64,
    },
    /// Consecutive lines, with the streamer ahead of them (see [`crate::stream`]).
    Stream {
        /// Lines in the reorder buffer.
        window: usize,
        /// Fill buffers.
        buffers: usize,
        /// Lines the streamer runs ahead.
        distance: usize,
        /// Entries of the superqueue.
        queue: usize,
        /// Time a fetched line takes from the L2 cache, in nanoseconds.
        near_ns: f64,
        /// Lines between a read and the write-back of what it brought: the size of the L2 cache.
        lag: u64,
    },
    /// Pages copied between the tiers, both ways, at a fixed rate of lines a nanosecond each way.
    Copy {
        /// Lines a nanosecond, each way.
        lines_per_ns: f64,
    },
}

/// Cores that do the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// How many.
    pub cores: usize,
    /// What each does.
    pub kind: Kind,
    /// Part of its reads that the default tier serves.
    pub default_share: f64,
    /// Lines written back for each line read.
    pub writes_per_read: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations (lines, for a stream) a nanosecond, by group.
    pub ops_per_ns: Vec<f64>,
    /// Reads and their latency, by tier.
    pub loads: Loads,
    /// Lines moved a nanosecond, both directions, by tier: default, alternate.
    pub lines_per_ns: [f64; 2],
    /// Requests served in all.
    pub requests: u64,
}

/// What happens, in the upper four bits of an event; to whom, in the others.
mod what {
    /// An operation issues: slot and core.
    pub const ISSUE: u32 = 0;
    /// A request reaches its channel.
    pub const ARRIVE: u32 = 1;
    /// The channel has sent the line.
    pub const DATA: u32 = 2;
    /// The line has come.
    pub const DONE: u32 = 3;
    /// A channel may commit.
    pub const WAKE: u32 = 4;
    /// A page copier reads.
    pub const COPY: u32 = 5;
    /// A walk that hit the caches ends: slot and core.
    pub const WALKED: u32 = 6;
    /// A line has come from the L2 cache: slot and core.
    pub const NEAR: u32 = 7;
}

const CORES: u32 = 12;

const fn of(kind: u32, core: u32, slot: u32) -> u32 {
    kind << 28 | slot << CORES | core
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    Walk,
    Ahead,
    Write,
}

#[derive(Clone, Copy)]
struct Flight {
    purpose: Purpose,
    tier: u8,
    bank: u16,
    core: u16,
    channel: u16,
    slot: u32,
    row: u32,
    sent: u64,
    line: u64,
}

/// A place in a core's window.
#[derive(Clone, Copy, Default)]
struct Slot {
    finished: bool,
    /// Lines that its read still waits for, beside one.
    left: u32,
}

/// What a group's times are in clocks.
#[derive(Clone, Copy)]
struct Pace {
    front: f64,
    issue: f64,
    penalty: f64,
    hit: u64,
    near: u64,
}

impl Pace {
    fn of(kind: &Kind, clock: f64) -> Self {
        let whole = |ns: f64| (ns / clock).round() as u64;
        let mut pace = Self { front: 0.0, issue: 0.0, penalty: 0.0, hit: 0, near: 0 };
        match *kind {
            Kind::Window { front_ns, issue_ns, penalty_ns, walks, .. } => {
                pace.front = front_ns / clock;
                pace.issue = issue_ns / clock;
                pace.penalty = penalty_ns / clock;
                pace.hit = whole(walks.hit_ns);
            }
            Kind::Stream { near_ns, .. } => pace.near = whole(near_ns).max(1),
            Kind::Copy { .. } => {}
        }
        pace
    }
}

struct Core {
    group: usize,
    pace: Pace,
    default_share: f64,
    writes_per_read: f64,
    slots: Vec<Slot>,
    head: usize,
    front_free: f64,
    walks: usize,
    waiting: VecDeque<u32>,
    stream: Option<Stream>,
    line: u64,
    debt: f64,
}

struct Path {
    channels: std::ops::Range<usize>,
    constant: u64,
    linked: bool,
}

struct Bench<'a> {
    groups: &'a [Group],
    clock: f64,
    shape: Shape,
    split: Split,
    random: Random,
    wheel: Wheel,
    cores: Vec<Core>,
    channels: Vec<Channel>,
    wakes: Vec<u64>,
    paths: [Path; 2],
    flights: Vec<Flight>,
    free: Vec<u32>,
    link: [f64; 2],
    data: f64,
    control: f64,
    walkers: usize,
    asked: Vec<Ask>,
    measuring: bool,
    ops: Vec<u64>,
    reads: [u64; 2],
    waited: [u64; 2],
}

/// Runs the groups for `warm_ns`, then measures for `measure_ns`.
#[must_use]
pub fn run(
    machine: &Machine,
    groups: &[Group],
    warm_ns: f64,
    measure_ns: f64,
    seed: u64,
) -> Outcome {
    let refresh = machine.clocks(refresh_ns(machine));
    measure(machine, groups, warm_ns, measure_ns, seed, refresh)
}

/// What refreshes add to the latency that a pointer chase sees, in nanoseconds. A published unloaded
/// latency contains it, so it is taken off the constant part.
fn refresh_ns(machine: &Machine) -> f64 {
    let chase = Group {
        cores: 1,
        kind: Kind::Window {
            window: 1,
            front_ns: 0.0,
            issue_ns: 0.0,
            mispredicted: 0.0,
            penalty_ns: 0.0,
            walks: Walks::NONE,
            lines: 1.0,
        },
        default_share: 1.0,
        writes_per_read: 0.0,
    };
    let outcome = measure(machine, &[chase], 1_000.0, 200_000.0, 1, 0);
    (outcome.loads.default.latency_ns - machine.get("tier.default.unloaded_ns")).max(0.0)
}

fn measure(
    machine: &Machine,
    groups: &[Group],
    warm_ns: f64,
    measure_ns: f64,
    seed: u64,
    refresh: u64,
) -> Outcome {
    let mut bench = Bench::new(machine, groups, seed, refresh);
    bench.start();
    let warm = machine.clocks(warm_ns);
    let end = warm + machine.clocks(measure_ns);
    let mut before = [0, 0];
    while bench.wheel.now() < end {
        if bench.wheel.now() == warm {
            bench.measuring = true;
            before = bench.served();
        }
        bench.tick(if bench.measuring { end } else { warm });
    }
    let ns = (end - warm) as f64 * machine.get("dram.clock_ns");
    let served = bench.served();
    let load = |tier: usize| Load {
        latency_ns: if bench.reads[tier] > 0 {
            bench.waited[tier] as f64 / bench.reads[tier] as f64 * machine.get("dram.clock_ns")
        } else {
            machine.get(["tier.default.unloaded_ns", "tier.alternate.unloaded_ns"][tier])
        },
        reads_per_ns: bench.reads[tier] as f64 / ns,
    };
    Outcome {
        ops_per_ns: bench.ops.iter().map(|&ops| ops as f64 / ns).collect(),
        loads: Loads { default: load(0), alternate: load(1) },
        lines_per_ns: [0, 1].map(|tier| (served[tier] - before[tier]) as f64 / ns),
        requests: served[0] + served[1],
    }
}

impl<'a> Bench<'a> {
    fn new(machine: &'a Machine, groups: &'a [Group], seed: u64, refresh: u64) -> Self {
        let sizes = ["tier.default.channels", "tier.alternate.channels"]
            .map(|key| machine.get(key) as usize);
        let channels: Vec<Channel> = (0..sizes[0] + sizes[1])
            .map(|at| Channel::new(machine, at, sizes[0] + sizes[1]))
            .collect();
        let idle = channels[0].idle_latency() + refresh;
        let flit = 1.0 / machine.get("link.flits_per_ns") / machine.get("dram.clock_ns");
        let crossing =
            ((machine.get("link.data_flits") + machine.get("link.control_flits")) * flit) as u64;
        let constant = |key: &str| machine.clocks(machine.get(key)).saturating_sub(idle);
        let paths = [
            Path {
                channels: 0..sizes[0],
                constant: constant("tier.default.unloaded_ns"),
                linked: false,
            },
            Path {
                channels: sizes[0]..sizes[0] + sizes[1],
                constant: constant("tier.alternate.unloaded_ns").saturating_sub(crossing),
                linked: true,
            },
        ];
        let shape = Shape::of(machine);
        let clock = machine.get("dram.clock_ns");
        let mut random = Random::new(seed);
        let mut cores = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            for _ in 0..group.cores {
                let slots = match group.kind {
                    Kind::Window { window, .. } => window.max(1),
                    Kind::Stream { .. } | Kind::Copy { .. } => 0,
                };
                let line = ((cores.len() as u64) << 32) + (random.below(1 << 18) << 6);
                let stream = match group.kind {
                    Kind::Stream { window, buffers, distance, queue, .. } => {
                        Some(Stream::new(line, window, buffers, distance, queue))
                    }
                    Kind::Window { .. } | Kind::Copy { .. } => None,
                };
                cores.push(Core {
                    group: at,
                    pace: Pace::of(&group.kind, clock),
                    default_share: group.default_share,
                    writes_per_read: group.writes_per_read,
                    slots: vec![Slot::default(); slots],
                    head: 0,
                    front_free: 0.0,
                    walks: 0,
                    waiting: VecDeque::new(),
                    stream,
                    line,
                    debt: 0.0,
                });
            }
        }
        Self {
            groups,
            clock,
            shape,
            split: Split::new(sizes, &shape),
            random,
            wheel: Wheel::default(),
            cores,
            wakes: vec![u64::MAX; channels.len()],
            channels,
            paths,
            flights: Vec::new(),
            free: Vec::new(),
            link: [0.0; 2],
            data: machine.get("link.data_flits") * flit,
            control: machine.get("link.control_flits") * flit,
            walkers: machine.get("core.page_walkers") as usize,
            asked: Vec::new(),
            measuring: false,
            ops: vec![0; groups.len()],
            reads: [0; 2],
            waited: [0; 2],
        }
    }

    fn served(&self) -> [u64; 2] {
        [0, 1].map(|tier: usize| {
            self.channels[self.paths[tier].channels.clone()].iter().map(Channel::served).sum()
        })
    }

    fn kind(&self, core: u32) -> &'a Kind {
        &self.groups[self.cores[core as usize].group].kind
    }

    fn start(&mut self) {
        for core in 0..self.cores.len() as u32 {
            // Cores do not start in step.
            let offset = self.random.below(200);
            match self.kind(core) {
                Kind::Copy { .. } => self.wheel.push(1, of(what::COPY, core, 0)),
                Kind::Stream { .. } => self.wheel.push(offset, of(what::ISSUE, core, 0)),
                Kind::Window { .. } => {
                    for slot in 0..self.cores[core as usize].slots.len() as u32 {
                        let offset = self.random.below(200);
                        self.wheel.push(offset, of(what::ISSUE, core, slot));
                    }
                }
            }
        }
    }

    /// Handles the events of this clock and goes on to the next that has any, but not beyond `limit`.
    fn tick(&mut self, limit: u64) {
        while let Some(event) = self.wheel.take() {
            self.handle(event);
        }
        self.wheel.advance(limit);
    }

    fn handle(&mut self, event: u32) {
        let id = event & ((1 << 28) - 1);
        let (core, slot) = (id & ((1 << CORES) - 1), id >> CORES);
        match event >> 28 {
            what::ISSUE => match self.kind(core) {
                Kind::Stream { .. } => self.demand(core),
                Kind::Window { walks, .. } => self.issue(core, slot, walks),
                Kind::Copy { .. } => {}
            },
            what::ARRIVE => self.arrive(id),
            what::DATA => self.reply(id),
            what::DONE => self.done(id),
            // A wake that was brought forward is void.
            what::WAKE if self.wakes[id as usize] == self.wheel.now() => {
                self.wakes[id as usize] = u64::MAX;
                self.advance(id);
            }
            what::COPY => self.copy(core),
            what::WALKED => self.walked(core, slot),
            what::NEAR => {
                let line = self.near_line(core, slot);
                self.came(core, line);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

//! Cores in a closed loop over both tiers, request by request: `X = N / (d + sum p L)` with every `L`
//! coming out of queues.
//!
//! Terms: a *window* core holds a window of operations in flight, as a reorder buffer does: an operation
//! enters when the one a window before it retires, and operations retire in order, so one slow read
//! holds up those behind it. A *stream* core reads consecutive lines, with a prefetcher ahead of it ([`crate::stream`]).
//! An operation may need a page table line first, through one of few walkers.
//!
//! A read costs: link request (alternate tier only), channel, link reply, and a constant that makes up the
//! tier's unloaded latency. A line written goes back some time; it loads the tier and delays nobody: in the order of its
//! reads for a stream, whose lines leave the L2 cache for memory, in none for a window core, whose lines leave a
//! hashed cache. Latencies are those of demand reads; what a prefetcher reads is not counted, as the counters that
//! the published systems read do not count it (event `TOR_OCCUPANCY.IA_MISS_DRD`, without `DRD_PREF`).
//!
//! Always so: in flight reads never exceed the slots; with the same seed the outcome is the same.

use std::collections::VecDeque;

use pagemill_policy::tier::{Load, Loads};

use crate::dram::{Channel, Request, Shape};
use crate::machine::Machine;
use crate::random::Random;
use crate::stream::{Ask, Stream};
use crate::wheel::Wheel;

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
    core: u32,
    slot: u32,
    channel: u32,
    row: u32,
    sent: u64,
    line: u64,
}

struct Core {
    group: usize,
    slots: usize,
    finished: Vec<bool>,
    /// Lines that a slot's read still waits for, beside one.
    left: Vec<u32>,
    head: usize,
    front_free: f64,
    walks: usize,
    waiting: VecDeque<u32>,
    stream: Option<Stream>,
    line: u64,
    debt: f64,
}

/// A number to divide by, without a division where it is a power of two, as most of a channel's are.
#[derive(Clone, Copy)]
struct Divisor {
    by: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(by: u64) -> Self {
        let by = by.max(1);
        Self { by, shift: by.is_power_of_two().then(|| by.trailing_zeros()) }
    }

    /// Quotient and remainder.
    fn of(self, number: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (number >> shift, number & (self.by - 1)),
            None => (number / self.by, number % self.by),
        }
    }
}

/// What an address is cut by: channels of each tier, pairs of bank groups, lines of a row, banks beside the pair's, banks of a group.
struct Split {
    channels: [Divisor; 2],
    pair: Divisor,
    row: Divisor,
    others: Divisor,
    banks: Divisor,
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
    done: Vec<(u32, u64)>,
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
        let pair = (shape.groups as u64).min(2);
        let split = Split {
            channels: sizes.map(|size| Divisor::new(size as u64)),
            pair: Divisor::new(pair),
            row: Divisor::new(shape.row_lines),
            others: Divisor::new(shape.all() as u64 / pair),
            banks: Divisor::new(shape.banks as u64),
        };
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
                    slots,
                    finished: vec![false; slots],
                    left: vec![0; slots],
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
            clock: machine.get("dram.clock_ns"),
            shape,
            split,
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
            done: Vec::new(),
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

    fn clocks(&self, ns: f64) -> u64 {
        (ns / self.clock).round() as u64
    }

    fn start(&mut self) {
        for core in 0..self.cores.len() as u32 {
            // Cores do not start in step.
            let offset = self.random.below(200);
            match self.kind(core) {
                Kind::Copy { .. } => self.wheel.push(1, of(what::COPY, core, 0)),
                Kind::Stream { .. } => self.wheel.push(offset, of(what::ISSUE, core, 0)),
                Kind::Window { .. } => {
                    for slot in 0..self.cores[core as usize].slots as u32 {
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

    fn issue(&mut self, core: u32, slot: u32, walks: &Walks) {
        if self.random.chance(walks.part) {
            if self.cores[core as usize].walks < self.walkers {
                self.walk(core, slot, walks);
            } else {
                self.cores[core as usize].waiting.push_back(slot);
            }
        } else {
            self.read(core, slot);
        }
    }

    fn walk(&mut self, core: u32, slot: u32, walks: &Walks) {
        self.cores[core as usize].walks += 1;
        if self.random.chance(walks.miss) {
            let tier = usize::from(!self.random.chance(walks.default_share));
            self.send(core, slot, tier, Purpose::Walk, None);
        } else {
            let end = self.wheel.now() + self.clocks(walks.hit_ns);
            self.wheel.push(end, of(what::WALKED, core, slot));
        }
    }

    fn walked(&mut self, core: u32, slot: u32) {
        self.cores[core as usize].walks -= 1;
        if let Some(next) = self.cores[core as usize].waiting.pop_front()
            && let Kind::Window { walks, .. } = self.kind(core)
        {
            self.walk(core, next, walks);
        }
        self.read(core, slot);
    }

    fn read(&mut self, core: u32, slot: u32) {
        let &Kind::Window { lines, .. } = self.kind(core) else {
            return;
        };
        let tier = self.tier_of(core);
        if lines <= 1.0 {
            self.send(core, slot, tier, Purpose::Read, None);
            return;
        }
        let more = u32::from(self.random.chance(lines.fract()));
        let count = lines as u32 + more;
        self.cores[core as usize].left[slot as usize] = count - 1;
        // Neighbours: on channels in turn, within a page.
        let first = self.random.bits() >> 8 & !7;
        for line in 0..count {
            self.send(core, slot, tier, Purpose::Read, Some(first + u64::from(line)));
        }
    }

    fn tier_of(&mut self, core: u32) -> usize {
        let share = self.groups[self.cores[core as usize].group].default_share;
        usize::from(!(share >= 1.0 || self.random.chance(share)))
    }

    /// Channel of a tier, bank and row of a line of a stream: consecutive lines go to the channels in turn, and in a
    /// channel to two bank groups in turn, whose rows they fill before the next bank comes (the order that Pessl et
    /// al., USENIX Security 2016, found on Intel's DDR4 controllers: bit 7 chooses the bank group, bits from 14 the bank).
    fn place(&self, tier: usize, line: u64) -> (usize, u64, u32) {
        let (range, split) = (&self.paths[tier].channels, &self.split);
        let (inside, _) = split.channels[tier].of(line);
        let (inside_pair, group) = split.pair.of(inside);
        let (visit, _) = split.row.of(inside_pair);
        // Rows are spread over the other banks by a hash, as the controller's exclusive ors do.
        let spread = visit.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (_, other) = split.others.of(spread);
        let (pair, inside_group) = split.banks.of(other);
        let bank = (pair * split.pair.by + group) * split.banks.by + inside_group;
        // A hash of the address decides where each run of channels begins, so that streams do not march in step.
        let begin = inside.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (_, channel) = split.channels[tier].of(line + begin);
        (range.start + channel as usize, bank, visit as u32)
    }

    /// Sends a request on its way to a channel of `tier`; without a line, to any bank and row.
    fn send(&mut self, core: u32, slot: u32, tier: usize, purpose: Purpose, line: Option<u64>) {
        let (channel, bank, row) = match line {
            Some(line) => self.place(tier, line),
            None => {
                let bits = self.random.bits();
                let range = &self.paths[tier].channels;
                let pick = |bits: u64, of: usize| ((bits & 0xffff) * of as u64) >> 16;
                let channel = range.start + pick(bits, range.len()) as usize;
                (channel, pick(bits >> 16, self.shape.all()), (bits >> 32) as u32)
            }
        };
        let now = self.wheel.now();
        let flight = Flight {
            purpose,
            tier: tier as u8,
            bank: bank as u16,
            core,
            slot,
            channel: channel as u32,
            row,
            sent: now,
            line: line.unwrap_or(0),
        };
        let id = if let Some(id) = self.free.pop() {
            self.flights[id as usize] = flight;
            id
        } else {
            self.flights.push(flight);
            self.flights.len() as u32 - 1
        };
        if self.paths[tier].linked {
            let write = purpose == Purpose::Write;
            let time = self.cross(0, if write { self.data } else { self.control });
            if write {
                self.cross(1, self.control);
            }
            self.wheel.push(time, what::ARRIVE << 28 | id);
        } else {
            self.arrive(id);
        }
    }

    fn cross(&mut self, direction: usize, clocks: f64) -> u64 {
        let start = self.link[direction].max(self.wheel.now() as f64);
        self.link[direction] = start + clocks;
        self.link[direction] as u64
    }

    fn arrive(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        let arrived = self.wheel.now();
        let request = Request { id, bank: flight.bank, row: flight.row, arrived };
        let write = flight.purpose == Purpose::Write;
        self.channels[flight.channel as usize].push(request, write);
        if write {
            self.free.push(id);
        }
        self.advance(flight.channel);
    }

    fn advance(&mut self, channel: u32) {
        let (now, mut done) = (self.wheel.now(), std::mem::take(&mut self.done));
        done.clear();
        let wake = self.channels[channel as usize].advance(now, &mut done);
        for &(id, time) in &done {
            let path = &self.paths[self.flights[id as usize].tier as usize];
            if path.linked {
                self.wheel.push(time, what::DATA << 28 | id);
            } else {
                self.wheel.push(time + path.constant, what::DONE << 28 | id);
            }
        }
        self.done = done;
        if let Some(wake) = wake {
            let wake = wake.max(now + 1);
            if wake != self.wakes[channel as usize] {
                self.wakes[channel as usize] = wake;
                self.wheel.push(wake, what::WAKE << 28 | channel);
            }
        }
    }

    fn reply(&mut self, id: u32) {
        let constant = self.paths[self.flights[id as usize].tier as usize].constant;
        let time = self.cross(1, self.data) + constant;
        self.wheel.push(time, what::DONE << 28 | id);
    }

    fn done(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        self.free.push(id);
        if self.measuring && flight.purpose != Purpose::Ahead {
            self.reads[flight.tier as usize] += 1;
            self.waited[flight.tier as usize] += self.wheel.now() - flight.sent;
        }
        if flight.purpose == Purpose::Walk {
            self.walked(flight.core, flight.slot);
            return;
        }
        match self.kind(flight.core) {
            Kind::Copy { .. } => {
                let line = Some(flight.line);
                self.send(flight.core, 0, 1 - flight.tier as usize, Purpose::Write, line);
            }
            Kind::Stream { .. } => self.came(flight.core, flight.line),
            kind @ Kind::Window { .. } => {
                let left = &mut self.cores[flight.core as usize].left[flight.slot as usize];
                if *left > 0 {
                    *left -= 1;
                    return;
                }
                self.count(flight.core, None);
                self.retire(flight.core, flight.slot, kind);
            }
        }
    }

    /// Counts an operation and sends back what it wrote.
    fn count(&mut self, core: u32, line: Option<u64>) {
        let group = self.cores[core as usize].group;
        if self.measuring {
            self.ops[group] += 1;
        }
        self.cores[core as usize].debt += self.groups[group].writes_per_read;
        while self.cores[core as usize].debt >= 1.0 {
            self.cores[core as usize].debt -= 1.0;
            let tier = self.tier_of(core);
            self.send(core, 0, tier, Purpose::Write, line);
        }
    }

    /// The line that a slot of a stream core stands for: the low bits of a line that is not far from the core's.
    fn near_line(&self, core: u32, slot: u32) -> u64 {
        let line = self.cores[core as usize].line;
        let near = line & !0xffff | u64::from(slot);
        if near + 0x8000 < line {
            near + 0x1_0000
        } else if near > line + 0x8000 {
            near - 0x1_0000
        } else {
            near
        }
    }

    fn demand(&mut self, core: u32) {
        let &Kind::Stream { near_ns, .. } = self.kind(core) else {
            return;
        };
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        if let Some(stream) = &mut self.cores[core as usize].stream {
            stream.demand(&mut asked);
        }
        let near = self.wheel.now() + self.clocks(near_ns).max(1);
        for ask in asked.drain(..) {
            match ask {
                Ask::Near { line } => {
                    self.wheel.push(near, of(what::NEAR, core, (line & 0xffff) as u32));
                }
                Ask::Read { line, ahead } => {
                    let purpose = if ahead { Purpose::Ahead } else { Purpose::Read };
                    let tier = self.tier_of(core);
                    self.send(core, 0, tier, purpose, Some(line));
                }
            }
        }
        self.asked = asked;
    }

    fn came(&mut self, core: u32, line: u64) {
        let &Kind::Stream { lag, .. } = self.kind(core) else {
            return;
        };
        self.cores[core as usize].line = line;
        if let Some(stream) = &mut self.cores[core as usize].stream
            && stream.came(line)
        {
            self.count(core, Some(line.saturating_sub(lag)));
            self.demand(core);
        }
    }

    fn retire(&mut self, core: u32, slot: u32, kind: &Kind) {
        let &Kind::Window { front_ns, issue_ns, mispredicted, penalty_ns, .. } = kind else {
            return;
        };
        let (clock, now) = (self.clock, self.wheel.now() as f64);
        self.cores[core as usize].finished[slot as usize] = true;
        loop {
            let state = &mut self.cores[core as usize];
            let head = state.head;
            if !state.finished[head] {
                return;
            }
            state.finished[head] = false;
            state.head = if head + 1 == state.slots { 0 } else { head + 1 };
            let mut enter = state.front_free.max(now);
            if mispredicted > 0.0 && self.random.chance(mispredicted) {
                enter += penalty_ns / clock;
            }
            self.cores[core as usize].front_free = enter + front_ns / clock;
            let issue = (enter + issue_ns / clock).round() as u64;
            self.wheel.push(issue, of(what::ISSUE, core, head as u32));
        }
    }

    fn copy(&mut self, core: u32) {
        let &Kind::Copy { lines_per_ns } = self.kind(core) else {
            return;
        };
        if lines_per_ns <= 0.0 {
            return;
        }
        for tier in 0..2 {
            let line = self.cores[core as usize].line;
            self.cores[core as usize].line += 1;
            self.send(core, 0, tier, Purpose::Ahead, Some(line));
        }
        let gap = 1.0 / lines_per_ns / self.clock;
        let next = self.wheel.now() + self.random.exponential(gap).ceil() as u64;
        self.wheel.push(next, of(what::COPY, core, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ICELAKE;

    fn chase(window: usize) -> Group {
        Group {
            cores: 1,
            kind: Kind::Window {
                window,
                front_ns: 0.0,
                issue_ns: 0.0,
                mispredicted: 0.0,
                penalty_ns: 0.0,
                walks: Walks::NONE,
                lines: 1.0,
            },
            default_share: 1.0,
            writes_per_read: 0.0,
        }
    }

    #[test]
    fn a_pointer_chase_sees_the_unloaded_latency_of_each_tier() {
        let machine = Machine::parse(ICELAKE).unwrap();
        for (share, unloaded) in [(1.0, 70.0), (0.0, 135.0)] {
            let group = Group { default_share: share, ..chase(1) };
            let outcome = run(&machine, &[group], 2_000.0, 200_000.0, 1);
            let latency = 1.0 / outcome.ops_per_ns[0];
            assert!((0.96..1.04).contains(&(latency / unloaded)), "{latency} of {unloaded}");
        }
    }

    #[test]
    fn in_order_retirement_costs_throughput_and_never_exceeds_the_window() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let outcome = run(&machine, &[Group { cores: 15, ..chase(8) }], 5_000.0, 50_000.0, 1);
        let in_flight = outcome.ops_per_ns[0] * outcome.loads.default.latency_ns;
        assert!(in_flight <= 15.0 * 8.0 && in_flight > 15.0 * 4.0, "{in_flight}");
    }

    #[test]
    fn no_tier_moves_more_than_its_bus() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let stream = Group {
            cores: 20,
            kind: Kind::Stream {
                window: 88,
                buffers: 12,
                distance: 20,
                queue: 48,
                near_ns: 5.0,
                lag: 20_480,
            },
            default_share: 1.0,
            writes_per_read: 1.0,
        };
        let outcome = run(&machine, &[stream], 10_000.0, 20_000.0, 1);
        assert!(outcome.lines_per_ns[0] * 64.0 <= 204.8 * 1.001, "{outcome:?}");
    }

    #[test]
    fn a_seed_is_an_outcome() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let once = |seed| run(&machine, &[Group { cores: 4, ..chase(6) }], 1_000.0, 10_000.0, seed);
        assert_eq!(once(9), once(9));
        assert_ne!(once(9), once(10));
    }
}

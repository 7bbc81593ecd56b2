//! Cores in a closed loop over both tiers, request by request: `X = N / (d + sum p L)` with every `L`
//! coming out of queues.
//!
//! Terms: a *window* core holds a window of operations in flight, as a reorder buffer does: an operation
//! enters when the one a window before it retires, and operations retire in order, so one slow read
//! holds up those behind it. A *stream* core keeps slots busy with consecutive lines, as a prefetcher
//! does, without order. An operation may need a page table line first, through one of few walkers.
//!
//! A read costs: link request (alternate tier only), channel, link reply, and a constant that makes up the
//! tier's unloaded latency. A line written goes back some time; it loads the tier and delays nobody.
//!
//! Always so: in flight reads never exceed the slots; with the same seed the outcome is the same.

use pagemill_policy::tier::{Load, Loads};

use crate::dram::{Channel, Request, Shape};
use crate::machine::Machine;
use crate::random::Random;

/// Page table reads of a window core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walks {
    /// Part of operations whose page table line comes from memory.
    pub miss: f64,
    /// Part of those lines that lie on the default tier.
    pub default_share: f64,
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
    },
    /// Consecutive lines, in any order.
    Stream {
        /// Reads in flight.
        slots: usize,
        /// Time a slot spends in the core between two lines, in nanoseconds.
        delay_ns: f64,
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

const WHEEL: usize = 1 << 14;

#[derive(Clone, Copy)]
enum Event {
    Issue { core: u32, slot: u32 },
    Arrive { id: u32 },
    Data { id: u32 },
    Done { id: u32 },
    Wake { channel: u32 },
    Copy { core: u32 },
}

#[derive(Clone, Copy)]
struct Flight {
    core: u32,
    slot: u32,
    walk: bool,
    write: bool,
    tier: usize,
    channel: u32,
    bank: u16,
    row: u32,
    sent: u64,
}

struct Core {
    group: usize,
    slots: usize,
    finished: Vec<bool>,
    head: usize,
    front_free: f64,
    walks: usize,
    waiting: Vec<(u32, u32)>,
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
    delays: Vec<u64>,
    clock: f64,
    shape: Shape,
    random: Random,
    now: u64,
    wheel: Vec<Vec<(u64, Event)>>,
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
            walks: Walks { miss: 0.0, default_share: 1.0 },
        },
        default_share: 1.0,
        writes_per_read: 0.0,
    };
    let outcome = measure(machine, &[chase], 1_000.0, 300_000.0, 1, 0);
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
    while bench.now < end {
        if bench.now == warm {
            bench.measuring = true;
            before = bench.served();
        }
        bench.tick();
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
        let mut random = Random::new(seed);
        let mut cores = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            for _ in 0..group.cores {
                let slots = match group.kind {
                    Kind::Window { window, .. } => window.max(1),
                    Kind::Stream { slots, .. } => slots.max(1),
                    Kind::Copy { .. } => 0,
                };
                cores.push(Core {
                    group: at,
                    slots,
                    finished: vec![false; slots],
                    head: 0,
                    front_free: 0.0,
                    walks: 0,
                    waiting: Vec::new(),
                    line: ((cores.len() as u64) << 32) + random.below(1 << 24),
                    debt: 0.0,
                });
            }
        }
        let delays = groups
            .iter()
            .map(|group| match group.kind {
                Kind::Stream { delay_ns, .. } => machine.clocks(delay_ns),
                Kind::Window { .. } | Kind::Copy { .. } => 0,
            })
            .collect();
        Self {
            groups,
            delays,
            clock: machine.get("dram.clock_ns"),
            shape: Shape::of(machine),
            random,
            now: 0,
            wheel: vec![Vec::new(); WHEEL],
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

    fn start(&mut self) {
        for core in 0..self.cores.len() {
            if matches!(self.groups[self.cores[core].group].kind, Kind::Copy { .. }) {
                self.at(self.now + 1, Event::Copy { core: core as u32 });
            }
            for slot in 0..self.cores[core].slots {
                // Cores do not start in step.
                let offset = self.random.below(200);
                self.at(self.now + offset, Event::Issue { core: core as u32, slot: slot as u32 });
            }
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        let time = time.max(self.now);
        let slot = time.min(self.now + WHEEL as u64 - 1) as usize % WHEEL;
        self.wheel[slot].push((time, event));
    }

    fn tick(&mut self) {
        let slot = self.now as usize % WHEEL;
        let mut at = 0;
        while at < self.wheel[slot].len() {
            let (time, event) = self.wheel[slot][at];
            at += 1;
            if time > self.now {
                self.at(time, event);
            } else {
                self.handle(event);
            }
        }
        self.wheel[slot].clear();
        self.now += 1;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Issue { core, slot } => self.issue(core, slot),
            Event::Arrive { id } => self.arrive(id),
            Event::Data { id } => self.reply(id),
            Event::Done { id } => self.done(id),
            Event::Wake { channel } => {
                self.wakes[channel as usize] = u64::MAX;
                self.advance(channel);
            }
            Event::Copy { core } => self.copy(core),
        }
    }

    fn issue(&mut self, core: u32, slot: u32) {
        if let Kind::Window { walks, .. } = self.groups[self.cores[core as usize].group].kind
            && self.random.chance(walks.miss)
        {
            if self.cores[core as usize].walks < self.walkers {
                self.walk(core, slot, walks);
            } else {
                self.cores[core as usize].waiting.push((core, slot));
            }
            return;
        }
        self.read(core, slot);
    }

    fn walk(&mut self, core: u32, slot: u32, walks: Walks) {
        self.cores[core as usize].walks += 1;
        let tier = usize::from(!self.random.chance(walks.default_share));
        self.send(core, slot, tier, true, false);
    }

    fn read(&mut self, core: u32, slot: u32) {
        let group = self.groups[self.cores[core as usize].group];
        let tier = usize::from(!self.random.chance(group.default_share));
        self.send(core, slot, tier, false, false);
    }

    /// Sends a request on its way to a channel of `tier`.
    fn send(&mut self, core: u32, slot: u32, tier: usize, walk: bool, write: bool) {
        let range = self.paths[tier].channels.clone();
        let count = (range.end - range.start) as u64;
        let streams = matches!(
            self.groups[self.cores[core as usize].group].kind,
            Kind::Stream { .. } | Kind::Copy { .. }
        );
        let (channel, bank, row) = if streams && !write {
            let line = self.cores[core as usize].line;
            self.cores[core as usize].line += 1;
            let shape = self.shape;
            // Consecutive lines go to the channels in turn, then to bank groups, then to banks and ranks,
            // as closed rows want it; each row begins its turn elsewhere.
            let inside = line / count;
            let group = inside % shape.groups as u64;
            let places = (shape.ranks * shape.banks) as u64;
            let visit = inside / shape.groups as u64;
            let row = visit / places / shape.row_lines;
            let turn = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let place = (visit + turn) % places;
            let rank = place / shape.banks as u64;
            let bank = (rank * shape.groups as u64 + group) * shape.banks as u64
                + place % shape.banks as u64;
            // A hash of the address decides where each run of channels begins, so that streams do not march in step.
            let begin = inside.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            (range.start as u64 + (line + begin) % count, bank, row as u32)
        } else {
            // Write-backs too: what leaves a hashed cache leaves it in no order that a row could notice.
            (
                range.start as u64 + self.random.below(count),
                self.random.below(self.shape.all() as u64),
                self.random.bits() as u32,
            )
        };
        let flight = Flight {
            core,
            slot,
            walk,
            write,
            tier,
            channel: channel as u32,
            bank: bank as u16,
            row,
            sent: self.now,
        };
        let id = if let Some(id) = self.free.pop() {
            self.flights[id as usize] = flight;
            id
        } else {
            self.flights.push(flight);
            self.flights.len() as u32 - 1
        };
        if self.paths[tier].linked {
            let time = self.cross(0, if write { self.data } else { self.control });
            if write {
                self.cross(1, self.control);
            }
            self.at(time, Event::Arrive { id });
        } else {
            self.arrive(id);
        }
    }

    fn cross(&mut self, direction: usize, clocks: f64) -> u64 {
        let start = self.link[direction].max(self.now as f64);
        self.link[direction] = start + clocks;
        self.link[direction] as u64
    }

    fn arrive(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        let request = Request { id, bank: flight.bank, row: flight.row, arrived: self.now };
        self.channels[flight.channel as usize].push(request, flight.write);
        if flight.write {
            self.free.push(id);
        }
        self.advance(flight.channel);
    }

    fn advance(&mut self, channel: u32) {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        let wake = self.channels[channel as usize].advance(self.now, &mut done);
        for &(id, time) in &done {
            self.at(time, Event::Data { id });
        }
        self.done = done;
        if let Some(wake) = wake
            && wake < self.wakes[channel as usize]
        {
            self.wakes[channel as usize] = wake;
            self.at(wake.max(self.now + 1), Event::Wake { channel });
        }
    }

    fn reply(&mut self, id: u32) {
        let tier = self.flights[id as usize].tier;
        let constant = self.paths[tier].constant;
        let time = if self.paths[tier].linked {
            self.cross(1, self.data) + constant
        } else {
            self.now + constant
        };
        self.at(time, Event::Done { id });
    }

    fn done(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        self.free.push(id);
        if self.measuring {
            self.reads[flight.tier] += 1;
            self.waited[flight.tier] += self.now - flight.sent;
        }
        if flight.walk {
            let core = &mut self.cores[flight.core as usize];
            core.walks -= 1;
            let next = (!core.waiting.is_empty()).then(|| core.waiting.remove(0));
            let group = core.group;
            if let (Some((core, slot)), Kind::Window { walks, .. }) =
                (next, self.groups[group].kind)
            {
                self.walk(core, slot, walks);
            }
            self.read(flight.core, flight.slot);
            return;
        }
        let group = self.groups[self.cores[flight.core as usize].group];
        if self.measuring {
            self.ops[self.cores[flight.core as usize].group] += 1;
        }
        match group.kind {
            Kind::Copy { .. } => {
                self.send(flight.core, flight.slot, 1 - flight.tier, false, true);
                return;
            }
            Kind::Stream { .. } => {
                let next = self.now + self.delays[self.cores[flight.core as usize].group];
                self.at(next, Event::Issue { core: flight.core, slot: flight.slot });
            }
            Kind::Window { .. } => self.retire(flight.core, flight.slot, group.kind),
        }
        self.cores[flight.core as usize].debt += group.writes_per_read;
        while self.cores[flight.core as usize].debt >= 1.0 {
            self.cores[flight.core as usize].debt -= 1.0;
            let tier = usize::from(!self.random.chance(group.default_share));
            self.send(flight.core, flight.slot, tier, false, true);
        }
    }

    fn retire(&mut self, core: u32, slot: u32, kind: Kind) {
        let Kind::Window { front_ns, issue_ns, mispredicted, penalty_ns, .. } = kind else {
            return;
        };
        let clock = self.clock;
        self.cores[core as usize].finished[slot as usize] = true;
        loop {
            let state = &mut self.cores[core as usize];
            let head = state.head;
            if !state.finished[head] {
                return;
            }
            state.finished[head] = false;
            state.head = (head + 1) % state.slots;
            let mut enter = state.front_free.max(self.now as f64);
            if self.random.chance(mispredicted) {
                enter += penalty_ns / clock;
            }
            self.cores[core as usize].front_free = enter + front_ns / clock;
            let issue = (enter + issue_ns / clock).round() as u64;
            self.at(issue, Event::Issue { core, slot: head as u32 });
        }
    }

    fn copy(&mut self, core: u32) {
        let Kind::Copy { lines_per_ns } = self.groups[self.cores[core as usize].group].kind else {
            return;
        };
        if lines_per_ns <= 0.0 {
            return;
        }
        for tier in 0..2 {
            self.send(core, 0, tier, false, false);
        }
        let gap = 1.0 / lines_per_ns / self.clock;
        let next = self.now + self.random.exponential(gap).ceil() as u64;
        self.at(next.max(self.now + 1), Event::Copy { core });
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
                walks: Walks { miss: 0.0, default_share: 1.0 },
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
            kind: Kind::Stream { slots: 32, delay_ns: 0.0 },
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

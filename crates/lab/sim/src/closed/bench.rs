//! The bench: cores, channels, the paths between them, and what is under way.

use std::collections::VecDeque;

use pagemill_model::random::Random;

use super::group::{CoreKind, Group};
use super::split::Split;
use crate::dram::{Channel, Shape};
use crate::machine::Machine;
use crate::stream::{MemoryRequest, Stream};
use crate::wheel::Wheel;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Read,
    Walk,
    Ahead,
    Write,
}

#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub(super) purpose: RequestKind,
    pub(super) tier: u8,
    pub(super) bank: u16,
    pub(super) core: u16,
    pub(super) channel: u16,
    pub(super) slot: u32,
    pub(super) row: u32,
    pub(super) sent: u64,
    pub(super) line: u64,
}

/// A place in a core's window.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) finished: bool,
    /// Lines that its read still waits for, beside one.
    pub(super) left: u32,
}

/// What a group's times are in clocks.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub(super) front: f64,
    pub(super) issue: f64,
    pub(super) penalty: f64,
    pub(super) hit: u64,
    pub(super) near: u64,
}

impl Pace {
    fn of(kind: &CoreKind, clock: f64) -> Self {
        let whole = |ns: f64| (ns / clock).round() as u64;
        let mut pace = Self { front: 0.0, issue: 0.0, penalty: 0.0, hit: 0, near: 0 };
        match *kind {
            CoreKind::Window { front_ns, issue_ns, penalty_ns, walks, .. } => {
                pace.front = front_ns / clock;
                pace.issue = issue_ns / clock;
                pace.penalty = penalty_ns / clock;
                pace.hit = whole(walks.hit_ns);
            }
            CoreKind::Stream { near_ns, .. } => pace.near = whole(near_ns).max(1),
            CoreKind::Copy { .. } => {}
        }
        pace
    }
}

pub(super) struct Core {
    pub(super) group: usize,
    pub(super) pace: Pace,
    pub(super) default_share: f64,
    pub(super) writes_per_read: f64,
    pub(super) slots: Vec<Slot>,
    pub(super) head: usize,
    pub(super) front_free: f64,
    pub(super) walks: usize,
    pub(super) waiting: VecDeque<u32>,
    pub(super) stream: Option<Stream>,
    pub(super) line: u64,
    pub(super) debt: f64,
}

pub(super) struct Path {
    pub(super) channels: std::ops::Range<usize>,
    pub(super) constant: u64,
    pub(super) linked: bool,
}

pub(super) struct Bench<'a> {
    pub(super) groups: &'a [Group],
    pub(super) clock: f64,
    pub(super) shape: Shape,
    pub(super) split: Split,
    pub(super) random: Random,
    pub(super) wheel: Wheel,
    pub(super) cores: Vec<Core>,
    pub(super) channels: Vec<Channel>,
    pub(super) wakes: Vec<u64>,
    pub(super) paths: [Path; 2],
    pub(super) flights: Vec<Flight>,
    pub(super) free: Vec<u32>,
    pub(super) link: [f64; 2],
    pub(super) data: f64,
    pub(super) control: f64,
    pub(super) walkers: usize,
    pub(super) asked: Vec<MemoryRequest>,
    pub(super) measuring: bool,
    pub(super) ops: Vec<u64>,
    pub(super) reads: [u64; 2],
    pub(super) waited: [u64; 2],
}

impl<'a> Bench<'a> {
    pub(super) fn new(machine: &'a Machine, groups: &'a [Group], seed: u64, refresh: u64) -> Self {
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
                    CoreKind::Window { window, .. } => window.max(1),
                    CoreKind::Stream { .. } | CoreKind::Copy { .. } => 0,
                };
                let line = ((cores.len() as u64) << 32) + (random.below(1 << 18) << 6);
                let stream = match group.kind {
                    CoreKind::Stream { window, buffers, distance, queue, .. } => {
                        Some(Stream::new(line, window, buffers, distance, queue))
                    }
                    CoreKind::Window { .. } | CoreKind::Copy { .. } => None,
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

    pub(super) fn served(&self) -> [u64; 2] {
        [0, 1].map(|tier: usize| {
            self.channels[self.paths[tier].channels.clone()].iter().map(Channel::served).sum()
        })
    }

    pub(super) fn kind(&self, core: u32) -> &'a CoreKind {
        &self.groups[self.cores[core as usize].group].kind
    }
}

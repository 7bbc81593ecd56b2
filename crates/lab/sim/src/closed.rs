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

mod bench;
mod cores;
mod event;
mod group;
mod request_path;
mod split;

use pagemill_policy::tier::{Load, Loads};

use crate::machine::Machine;
use bench::Bench;
use event::{CORES, of, what};
pub use group::{CoreKind, Group, Walks};

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
        kind: CoreKind::Window {
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

impl Bench<'_> {
    fn start(&mut self) {
        for core in 0..self.cores.len() as u32 {
            // Cores do not start in step.
            let offset = self.random.below(200);
            match self.kind(core) {
                CoreKind::Copy { .. } => self.wheel.push(1, of(what::COPY, core, 0)),
                CoreKind::Stream { .. } => self.wheel.push(offset, of(what::ISSUE, core, 0)),
                CoreKind::Window { .. } => {
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
                CoreKind::Stream { .. } => self.demand(core),
                CoreKind::Window { walks, .. } => self.issue(core, slot, walks),
                CoreKind::Copy { .. } => {}
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

//! `--with faults`: each slow page fault with its details, short ones by their sums, and how many of each kind took how
//! long.
//!
//! The back end ([`engine`]) is the first of the ladder that passes its own test; the header names it,
//! and why the better ones were not used. Slow faults are fetched often, so that rings stay short;
//! counts are written as differences, once an interval.

mod engine;
pub(super) mod options;
pub mod pairing;
mod ring;
mod short;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_kernel::{Kind, Linux, clock, memory::touch, page_size};
use pagemill_model::fault::Flags;
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;
use pagemill_model::{Event, EventKind, FaultCounts, FaultSetup, Nanos, Order, Pid};

use engine::{Counts, Engine, Opened};
pub use options::{BackEnd, Options};

use super::mappings::Layout;
use super::recorder::{Recorder, RecorderKind, Start};

/// The word `faults`.
pub const KIND: RecorderKind = RecorderKind {
    name: "faults",
    about: "Page faults: how long, where, and what the time went into",
    writes: &[EventKind::Fault, EventKind::FaultSum, EventKind::FaultCounts, EventKind::Mapping],
    pane: Some("faults"),
    start: Start::Suspended,
    attach: |linux, process, options| {
        let target = if process.started { Target::Command } else { Target::Attached };
        Ok(Some(Box::new(Faults::attach(linux, process.pid, target, &options.faults)?)))
    },
};

/// How often slow faults and sums are fetched.
const FETCH: Duration = Duration::from_millis(20);
/// Counts are written at most this often: reading them takes a system call for each bucket.
const COUNT_FLOOR: Duration = Duration::from_millis(100);
/// How far the stamps of rows that arrive late may be behind.
const LATE: Nanos = Nanos(2_000_000);
/// Touches by which a first touch is timed.
const TOUCHES: usize = 1000;

/// Whether the process was started by us: then its end is known, and what it did before we looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Started by us and suspended.
    Command,
    /// Running.
    Attached,
}

/// Faults of one process and of all that it starts.
pub struct Faults {
    linux: Linux,
    pid: Pid,
    target: Target,
    back_end: BackEnd,
    engine: Engine,
    setup: FaultSetup,
    /// The kernel's own count when we began.
    accounted_before: u64,
    written: HashMap<(u32, u32), u64>,
    untimed: (u64, u64),
    pending: Vec<Event>,
    interval: Duration,
    next_counts: Instant,
    layout: Layout,
    slow: u64,
}

impl Faults {
    /// Finds the best back end and follows `pid`.
    ///
    /// # Errors
    /// The process has ended or may not be looked into, or no back end works here.
    pub fn attach(linux: &Linux, pid: Pid, target: Target, options: &Options) -> Result<Self> {
        let huge_order =
            linux.thp_pmd_size().map_or(9, |size| (size / page_size() as u64).max(1).ilog2() as u8);
        let huge_order = Order(huge_order);
        let mut times = touch::timed(TOUCHES)?;
        times.sort();
        let account = || {
            let stat = linux.stat(pid)?;
            let children = if target == Target::Command {
                resources(UsageScope::EndedChildren).faults
            } else {
                0
            };
            Ok(stat.minor_faults + stat.major_faults + children)
        };
        let Opened { back_end, engine, not_used, accounted: accounted_before } =
            engine::open(linux, pid, options, huge_order, &account)?;
        let setup = FaultSetup {
            back_end: back_end.name().into(),
            not_used,
            details: matches!(engine, Engine::Bpf { .. }),
            threshold: options.threshold,
            sum: options.sum.filter(|_| back_end != BackEnd::Counters),
            from: Some(Nanos::from(clock::monotonic())),
            in_kernel: match &engine {
                Engine::Perf(rings) => rings.in_kernel(),
                _ => true,
            },
            children: back_end != BackEnd::Counters,
            touch: times.get(times.len() / 2).copied().map(Nanos::from),
            huge_order: Some(huge_order),
            ..FaultSetup::default()
        };
        Ok(Self {
            linux: linux.clone(),
            pid,
            target,
            back_end,
            engine,
            setup,
            accounted_before,
            written: HashMap::new(),
            untimed: (0, 0),
            pending: Vec::new(),
            interval: options.interval.max(COUNT_FLOOR),
            next_counts: Instant::now(),
            layout: Layout::new(linux.clone()),
            slow: 0,
        })
    }

    /// Writes the slow faults that ended before `until`, and the sums of short ones, in order.
    fn write_told(&mut self, until: Nanos, writer: &mut Writer) -> Result<()> {
        self.pending.extend(self.engine.drain());
        self.pending.sort_by_key(Event::time);
        let ready = self.pending.partition_point(|event| event.time() < until);
        for event in self.pending.drain(..ready) {
            if let Event::Fault(fault) = &event {
                if let (Some(pid), Some(address)) = (fault.pid, fault.address) {
                    self.layout.explain(Pid(pid as u32), address, fault.time, writer)?;
                }
                self.slow += 1;
            }
            writer.event(&event)?;
        }
        Ok(())
    }

    /// Writes what was counted since the last time.
    fn write_counts(&mut self, writer: &mut Writer) -> Result<()> {
        match self.engine.counts() {
            Ok(Counts::Timed(counts)) => {
                let mut rows: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
                for (&(flags, bucket), &n) in &counts {
                    let new = n - self.written.get(&(flags, bucket)).copied().unwrap_or(0);
                    if new > 0 {
                        rows.entry(flags).or_default().insert(bucket, new);
                        self.setup.counted += new;
                    }
                }
                self.written = counts;
                for (flags, buckets) in rows {
                    let counts = buckets.values().copied().collect();
                    let buckets = buckets.keys().map(|bucket| u64::from(*bucket)).collect();
                    write_row(writer, flags.into(), Some(buckets), counts)?;
                }
            }
            Ok(Counts::Untimed(minor, major)) => {
                for (flags, new) in
                    [(0, minor - self.untimed.0), (Flags::MAJOR, major - self.untimed.1)]
                {
                    if new > 0 {
                        write_row(writer, flags, None, vec![new])?;
                        self.setup.counted += new;
                    }
                }
                self.untimed = (minor, major);
            }
            Err(error) if matches!(error.kind(), Kind::Gone | Kind::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let losses = self.engine.losses()?;
        // Of a command no fault was under way when it began. With samples, the other half may be what was lost.
        (self.setup.lost, self.setup.unmatched) = match self.target {
            Target::Command => (losses.faults.max(losses.unmatched), 0),
            Target::Attached => (losses.faults, losses.unmatched),
        };
        self.setup.lost_rows = losses.rows;
        writer.meta_mut().faults = Some(self.setup.clone());
        Ok(())
    }

    /// Faults that no event tells: what the kernel's account of a command has more than was counted or lost, and where
    /// its counters are all there is, what they say at the end.
    fn write_rest(&mut self, writer: &mut Writer) -> Result<()> {
        let known = self.setup.counted + self.setup.lost;
        let rest = self.setup.accounted.unwrap_or(0).saturating_sub(known);
        let ended = self.target == Target::Command || self.back_end == BackEnd::Counters;
        if !ended || rest == 0 {
            return Ok(());
        }
        write_row(writer, 0, None, vec![rest])?;
        self.setup.counted += rest;
        if self.back_end != BackEnd::Counters {
            self.setup.untimed = rest;
        }
        writer.meta_mut().faults = Some(self.setup.clone());
        Ok(())
    }

    /// What the kernel's accounting says happened while we measured.
    fn accounted(&self) -> Option<u64> {
        let all = match self.target {
            Target::Command => resources(UsageScope::EndedChildren).faults,
            Target::Attached => {
                let stat = self.linux.stat(self.pid).ok()?;
                stat.minor_faults + stat.major_faults
            }
        };
        all.checked_sub(self.accounted_before)
    }
}

/// How many faults of a kind there were since the row before, by how long they took if that is known.
fn write_row(
    writer: &mut Writer,
    flags: u64,
    buckets: Option<Vec<u64>>,
    counts: Vec<u64>,
) -> Result<()> {
    let time = Nanos::from(clock::monotonic());
    let row = FaultCounts { time, flags: Some(flags), buckets, counts: Some(counts) };
    Ok(writer.event(&Event::FaultCounts(Box::new(row)))?)
}

impl Recorder for Faults {
    fn interval(&self) -> Duration {
        FETCH.min(self.interval)
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let now = Nanos::from(clock::monotonic());
        self.write_told(Nanos(now.0.saturating_sub(LATE.0)), writer)?;
        if Instant::now() >= self.next_counts {
            self.write_counts(writer)?;
            self.next_counts = Instant::now() + self.interval;
        }
        Ok(())
    }

    fn flush(&mut self, writer: &mut Writer) -> Result<()> {
        self.next_counts = Instant::now();
        self.collect(writer)
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        self.engine.halt();
        self.setup.accounted = self.accounted();
        self.engine.stop();
        self.write_told(Nanos(u64::MAX), writer)?;
        self.write_counts(writer)?;
        self.write_rest(writer)?;
        let meta = writer.meta_mut();
        meta.capabilities.push(format!("page faults: {}", self.back_end.name()));
        if self.back_end == BackEnd::Counters {
            meta.lacks(
                "latency of page faults",
                "only the kernel's counters may be read here (see pagemill doctor)",
            );
        } else if !self.setup.details {
            meta.lacks(
                "what a fault's time went into, its order, and whether it was a write",
                "these need BPF (run as root; see pagemill doctor)",
            );
        }
        if !self.setup.in_kernel {
            meta.lacks(
                "page faults inside system calls",
                "this user may not see them (sudo sysctl kernel.perf_event_paranoid=1)",
            );
        }
        if let Engine::Bpf { programs, .. } = &self.engine {
            for what in programs.lacks() {
                meta.lacks(*what, "this kernel has no tracepoint for it");
            }
        }
        Ok(())
    }

    fn amount(&self) -> String {
        let faults = counted(self.setup.counted, "page fault", "page faults");
        format!("{faults}, {} of them with a row", self.slow)
    }
}

//! The ways of measuring faults, best first, and which of them works here: each is tried on faults of
//! our own before the program's.

use std::collections::HashMap;

use pagemill_kernel::process::{UsageScope, resources};
use pagemill_kernel::trace::bpf::faults::{FaultEvent, Faults, LOCKS, Points};
use pagemill_kernel::{Error, Kind, Linux, Result, memory::touch};
use pagemill_model::{Event, Fault, FaultSum, Nanos, Order, Pid};

use super::options::{BackEnd, Options};
use super::ring::Rings;

/// A back end at work.
pub enum Engine {
    /// In the kernel.
    Bpf {
        /// The programs.
        programs: Box<Faults>,
        /// Whom they follow.
        pid: Pid,
        /// What was in the histogram before the process was followed.
        before: HashMap<(u32, u32), u64>,
        /// Ends without a beginning by then.
        unmatched_before: u64,
    },
    /// By samples.
    Perf(Rings),
    /// By counting.
    Counters {
        linux: Linux,
        pid: Pid,
        /// Minor and major faults when it began.
        before: (u64, u64),
    },
}

/// Losses so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Faults not counted.
    pub faults: u64,
    /// Slow faults without a row.
    pub rows: u64,
    /// Faults whose beginning was before ours.
    pub unmatched: u64,
}

/// Faults of our own on which a back end is tried.
const TRIED: usize = 64;

/// A back end at work.
pub struct Opened {
    /// Which one.
    pub back_end: BackEnd,
    /// The same, at work.
    pub engine: Engine,
    /// Why those above it are not used.
    pub not_used: Vec<String>,
    /// What `account` said when it began.
    pub accounted: u64,
}

/// The first of the ladder that works here for `pid`, or the one that is asked for and no other. `account` is asked for
/// the kernel's own count of the faults of `pid` at the moment from which on they are measured.
pub fn open(
    linux: &Linux,
    pid: Pid,
    options: &Options,
    huge_order: Order,
    account: &dyn Fn() -> Result<u64>,
) -> Result<Opened> {
    let (mut not_used, wanted) = (Vec::new(), options.back_end);
    for (.., back_end) in BackEnd::CHOICES {
        if wanted.is_some_and(|wanted| wanted != back_end) {
            continue;
        }
        match start(back_end, linux, pid, options, huge_order, account) {
            Ok((engine, accounted)) => {
                return Ok(Opened { back_end, engine, not_used, accounted });
            }
            // Another way would not find it either.
            Err(error) if error.kind() == Kind::Gone || wanted.is_some() => return Err(error),
            Err(error) => not_used.push(format!("{}: {error}", back_end.name())),
        }
    }
    Err(Error::new(Kind::Unsupported, "measure", "page faults", not_used.join("; ")))
}

fn start(
    back_end: BackEnd,
    linux: &Linux,
    pid: Pid,
    options: &Options,
    huge_order: Order,
    account: &dyn Fn() -> Result<u64>,
) -> Result<(Engine, u64)> {
    let Options { threshold, sum, .. } = *options;
    let points = match back_end {
        BackEnd::BpfFexit => Points::Function,
        BackEnd::BpfTracepoints => Points::Events,
        BackEnd::Perf => {
            let rings = Rings::prepare(linux, pid, (threshold, sum))?;
            let accounted = account()?;
            return Ok((Engine::Perf(rings.begin()?), accounted));
        }
        BackEnd::Counters => {
            let stat = linux.stat(pid)?;
            let before = (stat.minor_faults, stat.major_faults);
            return Ok((Engine::Counters { linux: linux.clone(), pid, before }, account()?));
        }
    };
    let mut programs = Box::new(Faults::load(points, threshold, sum, huge_order)?);
    let before = tried(&mut programs)?;
    let unmatched_before = programs.tally()?.unmatched;
    let accounted = account()?;
    programs.follow(pid)?;
    Ok((Engine::Bpf { programs, pid, before, unmatched_before }, accounted))
}

/// Makes faults, and fails unless the programs count as many as the kernel's own accounting does.
fn tried(programs: &mut Faults) -> Result<HashMap<(u32, u32), u64>> {
    let me = Pid::own();
    programs.follow(me)?;
    let before = resources(UsageScope::ThisThread).faults;
    touch::pages(TRIED)?;
    let made = resources(UsageScope::ThisThread).faults - before;
    programs.leave(me);
    // Those who are told one by one are not the program's.
    programs.drain(|_| {});
    let seen: HashMap<_, _> =
        programs.histogram()?.into_iter().map(|(flags, bucket, n)| ((flags, bucket), n)).collect();
    let counted: u64 = seen.values().sum();
    // Following and leaving may fault a few times more.
    if (made..made + TRIED as u64).contains(&counted) {
        return Ok(seen);
    }
    let why = format!("{counted} of {made} faults of a test were counted");
    Err(Error::new(Kind::Unsupported, "rely on", "the BPF programs for faults", why))
}

impl Engine {
    /// The slow faults since the last call, and short ones by their sums, in no order.
    pub fn drain(&mut self) -> Vec<Event> {
        match self {
            Self::Bpf { programs, .. } => {
                let mut all = Vec::new();
                let no_locks = programs.lacks().contains(&LOCKS);
                programs.drain(|told| {
                    let detail = match told {
                        FaultEvent::One(detail) => detail,
                        FaultEvent::Short(sum) => {
                            return all.push(Event::FaultSum(Box::new(FaultSum {
                                time: Nanos(sum.ended),
                                span: Some(Nanos(sum.span)),
                                took: Some(Nanos(sum.took)),
                                faults: Some(sum.faults),
                                pid: Some(sum.process.into()),
                                tid: Some(sum.thread.into()),
                            })));
                        }
                    };
                    let some = |ns: u64| (ns > 0).then_some(Nanos(ns));
                    all.push(Event::Fault(Box::new(Fault {
                        time: Nanos(detail.ended),
                        latency: Nanos(detail.latency),
                        address: Some(detail.address),
                        pid: Some(detail.process.into()),
                        tid: Some(detail.thread.into()),
                        flags: Some(detail.flags.into()),
                        after_allocation: some(detail.after_allocation),
                        compaction: some(detail.compaction),
                        reclaim: some(detail.reclaim),
                        locks: (!no_locks).then_some(Nanos(detail.locks)),
                        waited: Some(Nanos(detail.processor)),
                    })));
                });
                all
            }
            Self::Perf(rings) => rings.drain(),
            Self::Counters { .. } => Vec::new(),
        }
    }

    /// All faults since the beginning by flags and bucket; by flags alone where no times are measured.
    pub fn counts(&mut self) -> Result<Counts> {
        match self {
            Self::Bpf { programs, before, .. } => {
                let mut timed = HashMap::new();
                for (flags, bucket, n) in programs.histogram()? {
                    let n = n - before.get(&(flags, bucket)).copied().unwrap_or(0);
                    if n > 0 {
                        timed.insert((flags, bucket), n);
                    }
                }
                Ok(Counts::Timed(timed))
            }
            Self::Perf(rings) => Ok(Counts::Timed(
                rings
                    .histogram()
                    .into_iter()
                    .map(|(flags, bucket, n)| ((flags, bucket), n))
                    .collect(),
            )),
            Self::Counters { linux, pid, before } => {
                let stat = linux.stat(*pid)?;
                Ok(Counts::Untimed(stat.minor_faults - before.0, stat.major_faults - before.1))
            }
        }
    }

    /// What was lost so far.
    pub fn losses(&self) -> Result<Losses> {
        Ok(match self {
            Self::Bpf { programs, unmatched_before, .. } => {
                let tally = programs.tally()?;
                Losses {
                    faults: tally.histogram_full,
                    rows: tally.ring_full,
                    unmatched: tally.unmatched - unmatched_before,
                }
            }
            Self::Perf(rings) => {
                Losses { faults: rings.lost(), rows: 0, unmatched: rings.unmatched() }
            }
            Self::Counters { .. } => Losses::default(),
        })
    }

    /// No fault that begins from now on is measured.
    pub fn halt(&mut self) {
        match self {
            Self::Bpf { programs, pid, .. } => programs.leave(*pid),
            Self::Perf(rings) => rings.halt(),
            Self::Counters { .. } => {}
        }
    }

    /// Waits until all that was measured can be fetched.
    pub fn stop(&mut self) {
        if let Self::Perf(rings) = self {
            rings.stop();
        }
    }
}

/// Faults since the beginning.
pub enum Counts {
    /// By flags and bucket.
    Timed(HashMap<(u32, u32), u64>),
    /// Minor and major ones.
    Untimed(u64, u64),
}

//! `--with accesses --backend sample`: a sample of the accesses, as the processor tells of them, or, where it
//! cannot, by the clock: the code around the instruction that was about to run is decoded, and its registers say
//! which bytes the nearest access is to.
//!
//! Samples by the clock are of code in proportion to the time it takes, so accesses that wait for memory are seen more
//! often. How many samples are of no access, and why, is counted. The period varies by a quarter
//! either way, so that no program is in step with it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use iced_x86::InstructionInfoFactory;
use pagemill_kernel::trace::access_samples::{Sample, Sampled, Samples, Source, ThreadEvent};
use pagemill_kernel::{Linux, clock};
use pagemill_model::access::{Access, AccessSetup, Yield};
use pagemill_model::fault::Flags;
use pagemill_model::random::Random;
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;
use pagemill_model::{Event, Nanos, Pid, perf_data};

use super::mappings::Layout;
use super::nearest::Dropped;
use super::recorder::Recorder;
use super::surroundings::Surroundings;

/// Time between two looks at the rings.
const LOOK: Duration = Duration::from_millis(20);

/// Samples that an event takes before its period is drawn anew, which costs it half a one.
const RUN: u32 = 20;
/// The shortest time between two samples of a thread.
pub const LEAST_PERIOD: Nanos = Nanos(10_000);

/// Samples of a process, its threads and what it starts.
pub struct AccessSamples {
    samples: Samples,
    layout: Layout,
    surroundings: Surroundings,
    factory: InstructionInfoFactory,
    rows: u64,
    without_address: u64,
    yielded: Yield,
    period: u64,
    random: Random,
    drawn: Instant,
}

impl AccessSamples {
    /// Will sample `pid`; a program that is suspended, from its first instruction on.
    ///
    /// # Errors
    /// The process has ended, or no source of samples works here.
    pub fn attach(linux: &Linux, pid: Pid, period: Nanos, suspended: bool) -> Result<Self> {
        let threads = linux.threads(pid)?;
        Ok(Self {
            samples: Samples::follow(linux, &threads, period.0, suspended)?,
            layout: Layout::new(linux.clone()),
            surroundings: Surroundings::new(linux.clone()),
            factory: InstructionInfoFactory::new(),
            rows: 0,
            without_address: 0,
            yielded: Yield::default(),
            period: period.0,
            random: Random::new(clock::monotonic().as_nanos() as u64),
            drawn: Instant::now(),
        })
    }

    /// The accesses that a sample is of: address, flags, latency, data source. `changed`: its process has executed
    /// another program since.
    fn accesses(&mut self, sample: &Sample, changed: bool) -> Vec<Access> {
        let base = Access {
            time: Nanos(sample.time),
            pid: Some(sample.process.into()),
            tid: Some(sample.thread.into()),
            cpu: Some(sample.cpu.into()),
            instruction: Some(sample.instruction),
            ..Access::default()
        };
        let registers = match sample.what {
            Sampled::Access { address: 0, .. } => return Vec::new(),
            Sampled::Access { address, latency, data_source } => {
                return vec![Access {
                    address: Some(address),
                    flags: perf_data::kind(data_source),
                    latency: Some(latency).filter(|cycles| *cycles != 0),
                    data_source: Some(data_source),
                    ..base
                }];
            }
            Sampled::Instruction(registers) => registers,
        };
        let count = &mut self.yielded;
        count.taken += 1;
        let site = self.surroundings.of(sample.process, sample.instruction, changed);
        let found = match site.access(&mut self.factory, &registers) {
            Ok(found) => found,
            Err(why) => {
                *match why {
                    Dropped::None => &mut count.no_access,
                    Dropped::Block => &mut count.block_unknown,
                    Dropped::Changed => &mut count.registers_changed,
                    Dropped::Segment => &mut count.by_segment,
                    Dropped::Unread => &mut count.code_unread,
                } += 1;
                return Vec::new();
            }
        };
        *match (found.behind, found.ahead) {
            (0, 0) => &mut count.interrupted,
            (_, 0) => &mut count.behind,
            _ => &mut count.ahead,
        } += 1;
        let row = |(address, write)| Access {
            address: Some(address),
            flags: Some(if write { Flags::WRITE } else { 0 }),
            instruction: Some(found.instruction),
            behind: Some(found.behind as u64),
            ahead: Some(found.ahead as u64),
            ..base.clone()
        };
        found.accesses.into_iter().map(row).collect()
    }

    /// Draws the periods anew, if it is time to.
    fn vary(&mut self) -> Result<()> {
        if self.drawn.elapsed() < LOOK.max(Duration::from_nanos(self.period) * RUN) {
            return Ok(());
        }
        self.drawn = Instant::now();
        let (random, period) = (&mut self.random, self.period);
        self.samples.vary(|| drawn(random, period))?;
        Ok(())
    }
}

/// A period that is `period` in the mean, a quarter less to a quarter more.
fn drawn(random: &mut Random, period: u64) -> u64 {
    let quarter = period / 4;
    period - quarter + random.below(2 * quarter + 1)
}

impl Recorder for AccessSamples {
    fn interval(&self) -> Duration {
        LOOK
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        self.vary()?;
        let mut all = Vec::new();
        self.samples.read(|time, told| all.push((time, told)));
        // Each processor has a ring of its own.
        all.sort_by_key(|(time, _)| *time);
        let mut executions: HashMap<Pid, u64> = HashMap::new();
        for (time, told) in &all {
            if let ThreadEvent::Executed(process) = told {
                executions.insert(*process, *time);
            }
        }
        for (time, told) in all {
            let sample = match told {
                ThreadEvent::Sample(sample) => sample,
                ThreadEvent::Mapped(process, code) => {
                    self.surroundings.mapped(process, code);
                    continue;
                }
                ThreadEvent::Forked { parent, child } => {
                    self.surroundings.forked(parent, child);
                    continue;
                }
                ThreadEvent::Executed(process) => {
                    self.surroundings.executed(process);
                    continue;
                }
            };
            let changed = executions.get(&sample.process).is_some_and(|last| *last > time);
            let accesses = self.accesses(&sample, changed);
            self.without_address += u64::from(accesses.is_empty());
            for access in accesses {
                let address = access.address.unwrap_or(0);
                self.layout.explain(sample.process, address, access.time, writer)?;
                writer.event(&Event::Access(Box::new(access)))?;
                self.rows += 1;
            }
        }
        writer.meta_mut().accesses = Some(AccessSetup {
            back_end: self.samples.source().name().into(),
            not_used: self.samples.not_used().to_vec(),
            lost: self.samples.lost(),
            without_address: Some(self.without_address),
            yielded: (self.samples.source() == Source::Clock).then_some(self.yielded),
            ..AccessSetup::default()
        });
        Ok(())
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        self.collect(writer)?;
        let meta = writer.meta_mut();
        meta.capabilities.push("perf_event_open".into());
        let why = "samples are a part of the accesses (the default back end sees all pages)";
        meta.lacks("pages that were not sampled", why);
        Ok(())
    }

    fn amount(&self) -> String {
        let sampled = counted(self.rows, "sampled access", "sampled accesses");
        match self.yielded {
            Yield { taken: 0, .. } => sampled,
            yielded => format!("{sampled} ({})", yielded.words()),
        }
    }

    fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_drawn_around_what_was_asked_for() {
        let mut random = Random::new(7);
        let all: Vec<u64> = (0..4000).map(|_| drawn(&mut random, 1_000_000)).collect();
        assert!(all.iter().all(|period| (750_000..=1_250_000).contains(period)));
        let mean = all.iter().sum::<u64>() / 4000;
        assert!((980_000..1_020_000).contains(&mean), "{mean}");
        assert_eq!(drawn(&mut random, 3), 3);
    }
}

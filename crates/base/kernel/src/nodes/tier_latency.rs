//! How long reads take in each memory tier, from counters outside the cores.
//!
//! | unit | counts | latency |
//! |---|---|---|
//! | Intel CHA | at every clock, reads under way; and reads begun | occupancy / inserts, in clocks (Little's law) |
//! | AMD L3 (Zen 4, Zen 5) | time of sampled reads, and how many were sampled | 10 ns × time / samples |
//!
//! The CHAs are those of Ice Lake, Sapphire and Emerald Rapids, and count reads that missed the last level cache.
//!
//! Reads are told apart by where their memory is: on this socket, or on another node. Every second CHA
//! counts the near memory and the others the far one, since addresses are spread over all of them
//! evenly; each also counts its clock.
//!
//! Readings are differences of two counts; a unit that had to share its counters is scaled by the time
//! that it really counted.

use std::time::Duration;

use crate::trace::perf_event::{Count, Event};
use crate::{Error, Kind, Linux, Result};

/// What one tier did between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Mean time of a read, nanoseconds.
    pub latency_ns: f64,
    /// Reads; of a sampling unit only those that it sampled.
    pub reads: f64,
}

/// Which events make up the latency of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatencyFormula {
    /// Occupancy, inserts, clock.
    Little,
    /// Time in tens of nanoseconds, samples.
    Sampled,
}

/// The sums of a tier's counters: time or occupancy, reads, and the clock of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    weight: f64,
    reads: f64,
    clocks: f64,
    units: f64,
}

/// Counters of a near and a far tier.
#[derive(Debug)]
pub struct TierCounters {
    name: &'static str,
    law: LatencyFormula,
    /// For each tier, for each event of the law, all open counters.
    tiers: [Vec<Vec<Event>>; 2],
    last: [Vec<f64>; 2],
    /// Of all units, which part counts this tier.
    part: [f64; 2],
}

const NEAR: &str = "0xc8168601";
const FAR: &str = "0xc8170601";

impl TierCounters {
    /// Opens what this machine has. `Unsupported` says which unit is missing.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where a unit is missing; the caller may not count.
    pub fn open(linux: &Linux) -> Result<Self> {
        let model = processor(&linux.read("/proc/cpuinfo")?);
        let cha = linux.pmus("uncore_cha")?;
        if let (Some(clock), false) = (cha_clock(&model), cha.is_empty()) {
            let mut tiers = [const { Vec::new() }; 2];
            for (tier, umask) in [NEAR, FAR].into_iter().enumerate() {
                let events = [
                    format!("event=0x36,umask={umask}"),
                    format!("event=0x35,umask={umask}"),
                    format!("event={clock}"),
                ];
                for event in events {
                    let units = cha.iter().skip(tier).step_by(2);
                    let open: Result<Vec<_>> = units.map(|unit| unit.open(&event)).collect();
                    tiers[tier].push(open?.into_iter().flatten().collect());
                }
            }
            return Self::start("uncore", LatencyFormula::Little, tiers, cha.len());
        }
        let l3 = linux.pmus("amd_l3")?;
        if let (true, [unit]) = (l3_samples_latency(&model), l3.as_slice()) {
            const ALL: &str = "enallslices=1,enallcores=1,sliceid=3,threadmask=3";
            let mut tiers = [const { Vec::new() }; 2];
            for (tier, umask) in ["0x01", "0x02"].into_iter().enumerate() {
                for event in ["0xac", "0xad"] {
                    tiers[tier].push(unit.open(&format!("event={event},umask={umask},{ALL}"))?);
                }
            }
            return Self::start("amd-l3", LatencyFormula::Sampled, tiers, 2);
        }
        let what = format!("{} family {} model {}", model.vendor, model.family, model.model);
        Err(Error::new(
            Kind::Unsupported,
            "measure latency with",
            "the processor's counters",
            format_args!("{what} has no uncore_cha or amd_l3 unit that is known here"),
        )
        .advise("use the probe; virtual machines rarely show these units"))
    }

    fn start(
        name: &'static str,
        law: LatencyFormula,
        tiers: [Vec<Vec<Event>>; 2],
        units: usize,
    ) -> Result<Self> {
        let far = units as f64 / 2.0;
        let part = [units.div_ceil(2) as f64 / units as f64, far.floor().max(1.0) / units as f64];
        let mut counters = Self { name, law, tiers, last: [Vec::new(), Vec::new()], part };
        counters.last = [counters.counts(0)?, counters.counts(1)?];
        Ok(counters)
    }

    /// `uncore` or `amd-l3`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the reads are all reads rather than a sample.
    pub fn counts_all(&self) -> bool {
        self.law == LatencyFormula::Little
    }

    /// What each tier did since the last look, `elapsed` ago; `None` for a tier without reads.
    ///
    /// # Errors
    /// A counter cannot be read.
    pub fn read(&mut self, elapsed: Duration) -> Result<[Option<Reading>; 2]> {
        let mut readings = [None; 2];
        for (tier, reading) in readings.iter_mut().enumerate() {
            let counts = self.counts(tier)?;
            let since = |at: usize| counts[at] - self.last[tier][at];
            let sums = Sums {
                weight: since(0),
                reads: since(1),
                clocks: if counts.len() > 2 { since(2) } else { 0.0 },
                units: self.tiers[tier].last().map_or(0, Vec::len) as f64,
            };
            *reading = self::reading(self.law, sums, self.part[tier], elapsed);
            self.last[tier] = counts;
        }
        Ok(readings)
    }

    fn counts(&self, tier: usize) -> Result<Vec<f64>> {
        let sum = |events: &Vec<Event>| {
            events.iter().map(|event| Ok(scaled(event.count()?))).sum::<Result<f64>>()
        };
        self.tiers[tier].iter().map(sum).collect()
    }
}

/// A count, as it would be had the event always had a counter.
fn scaled(count: Count) -> f64 {
    let running = count.running.as_secs_f64();
    if running > 0.0 { count.value as f64 * count.enabled.as_secs_f64() / running } else { 0.0 }
}

fn reading(law: LatencyFormula, sums: Sums, part: f64, elapsed: Duration) -> Option<Reading> {
    if sums.reads <= 0.0 {
        return None;
    }
    let latency_ns = match law {
        LatencyFormula::Sampled => 10.0 * sums.weight / sums.reads,
        LatencyFormula::Little => {
            let clocks_per_ns = sums.clocks / sums.units / elapsed.as_nanos().max(1) as f64;
            if clocks_per_ns <= 0.0 {
                return None;
            }
            sums.weight / sums.reads / clocks_per_ns
        }
    };
    let reads = if law == LatencyFormula::Little { sums.reads / part } else { sums.reads };
    Some(Reading { latency_ns, reads })
}

/// Which processor this is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Processor {
    pub(crate) vendor: String,
    pub(crate) family: u32,
    pub(crate) model: u32,
}

pub(crate) fn processor(cpuinfo: &str) -> Processor {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(key));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
    };
    Processor {
        vendor: value("vendor_id").to_owned(),
        family: value("cpu family").parse().unwrap_or(0),
        model: value("model").parse().unwrap_or(0),
    }
}

/// The event that counts the CHA's clock, for the processors whose encodings are known here: Ice Lake
/// server (106, 108) counts it as event 0, Sapphire and Emerald Rapids (143, 207) as event 1.
fn cha_clock(processor: &Processor) -> Option<&'static str> {
    match (processor.vendor.as_str(), processor.family, processor.model) {
        ("GenuineIntel", 6, 106 | 108) => Some("0x0"),
        ("GenuineIntel", 6, 143 | 207) => Some("0x1"),
        _ => None,
    }
}

/// Zen 4 (family 25, models 0x10 to 0x1f and from 0x60) and Zen 5 (family 26) sample the latency of
/// reads that miss the L3.
fn l3_samples_latency(processor: &Processor) -> bool {
    let zen4 = processor.family == 25 && matches!(processor.model, 0x10..=0x1f | 0x60..=0xaf);
    processor.vendor == "AuthenticAMD" && (zen4 || processor.family == 26)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    /// Ten milliseconds of GUPS on 32 CHAs, as the published artifact logged them for one near and one
    /// far CHA: 261 and 340 clocks a read at 2.4 GHz.
    #[test]
    fn a_logged_quantum_gives_the_latencies_that_were_published_with_it() {
        let elapsed = Duration::from_millis(10);
        let log = |inserts: f64, clocks_per_read: f64| {
            let units = 16.0;
            Sums {
                weight: units * inserts * clocks_per_read,
                reads: units * inserts,
                clocks: units * 2.4e7,
                units,
            }
        };
        let near = reading(LatencyFormula::Little, log(177_420.0, 261.0), 0.5, elapsed).unwrap();
        let far = reading(LatencyFormula::Little, log(12_456.0, 340.0), 0.5, elapsed).unwrap();
        assert!((near.latency_ns - 108.75).abs() < 0.01, "{near:?}");
        assert!((far.latency_ns - 141.67).abs() < 0.01, "{far:?}");
        // 606.8 M operations a second, each one read, were logged for the whole machine.
        let reads_per_s = (near.reads + far.reads) * 100.0;
        assert!((reads_per_s / 606.8e6 - 1.0).abs() < 0.01, "{reads_per_s}");
    }

    #[test]
    fn a_tier_without_reads_has_no_latency() {
        let idle = Sums { clocks: 2.4e7, units: 1.0, ..Sums::default() };
        assert_eq!(reading(LatencyFormula::Little, idle, 0.5, Duration::from_millis(10)), None);
        let stopped = Sums { weight: 9.0, reads: 1.0, clocks: 0.0, units: 1.0 };
        assert_eq!(reading(LatencyFormula::Little, stopped, 0.5, Duration::from_millis(10)), None);
    }

    #[test]
    fn a_sampled_latency_is_counted_in_tens_of_nanoseconds() {
        let sums = Sums { weight: 1180.0, reads: 100.0, ..Sums::default() };
        let reading = reading(LatencyFormula::Sampled, sums, 1.0, Duration::from_secs(1)).unwrap();
        assert_eq!(reading, Reading { latency_ns: 118.0, reads: 100.0 });
    }

    #[test]
    fn a_counter_that_shared_its_unit_is_scaled() {
        let count = Count {
            value: 10,
            enabled: Duration::from_millis(40),
            running: Duration::from_millis(10),
        };
        assert!((scaled(count) - 40.0).abs() < 1e-9);
        assert!(scaled(Count::default()).abs() < f64::EPSILON);
    }

    #[test]
    fn a_processor_without_known_units_is_refused_by_name() {
        let error = TierCounters::open(&fixtures::two_nodes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("AuthenticAMD family"), "{error}");
        let text = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: x\n";
        let ice_lake = processor(text);
        assert_eq!((ice_lake.family, ice_lake.model, cha_clock(&ice_lake)), (6, 106, Some("0x0")));
    }
}

//! Walks of page tables, as the processor counts them: of a command and all that it starts, from its first instruction
//! on.
//!
//! | processor | event | counts |
//! |---|---|---|
//! | Intel, Skylake to Ice Lake | `dtlb_load_misses.walk_active`, `dtlb_store_misses.walk_active` | cycles |
//! | Intel, Golden Cove and later | the same by other numbers | cycles |
//! | AMD, Zen | `ls_l1_d_tlb_miss.all_l2_miss` | walks |
//! | others | the kernel's `dTLB-load-misses` and `dTLB-store-misses` | misses |
//!
//! Cycles are what the published profiler counted. What a walk takes where only walks are counted is measured: by
//! dependent random reads on base and on huge pages ([`crate::memory::huge_costs`]). The same reads are the self test:
//! events that count none of them are not used.
//!
//! Always true: only user mode counts as walks; where counters took turns, counts are scaled.

use std::time::Duration;

use pagemill_model::Pid;

use crate::memory::huge_costs;
use crate::nodes::tier_latency::processor;
use crate::trace::perf_event::{Attributes, Counter, Event, Target};
use crate::{Error, Kind, Linux, Result};

/// Events for walks, and what one count of them is.
#[derive(Clone, Debug, PartialEq)]
pub struct PageWalks {
    /// What is counted, in the processor's words.
    pub name: &'static str,
    events: Vec<Counter>,
    /// Nanoseconds of a count; `None`: counts are cycles.
    each: Option<f64>,
}

/// Reads of the self test that are fewer than this many counts say that nothing is counted.
const LEAST: u64 = 10_000;

const CORE: u32 = 4;

/// The events of a processor: their name, and whether they count cycles.
fn events(cpuinfo: &str) -> (&'static str, Vec<Counter>, bool) {
    let processor = processor(cpuinfo);
    let raw = |config| Counter::Unit { kind: CORE, config };
    // Umask 0x10 and a threshold of one: cycles in which at least one walk was under way.
    let active = |event: u64| raw(event | 0x10 << 8 | 1 << 24);
    match (processor.vendor.as_str(), processor.family, processor.model) {
        (
            "GenuineIntel",
            6,
            78 | 94 | 85 | 142 | 158 | 106 | 108 | 125 | 126 | 140 | 141 | 165 | 166,
        ) => ("walk_active", vec![active(0x08), active(0x49)], true),
        ("GenuineIntel", 6, 143 | 151 | 154 | 173 | 174 | 183 | 186 | 191 | 207) => {
            ("walk_active", vec![active(0x12), active(0x13)], true)
        }
        ("AuthenticAMD", 0x17 | 0x19 | 0x1a, _) => ("all_l2_miss", vec![raw(0xf045)], false),
        _ => ("dTLB misses", vec![Counter::DataTlbLoadMisses, Counter::DataTlbStoreMisses], false),
    }
}

impl PageWalks {
    /// How walks are counted here, tried out; an error says why they cannot be.
    ///
    /// # Errors
    /// The processor has no such events, they do not count, or nothing can be mapped.
    pub fn find(linux: &Linux) -> Result<Self> {
        let (name, events, cycles) = events(&linux.read("/proc/cpuinfo")?);
        let open = |what: &Counter| {
            Event::open(&Attributes::counting(*what).user_only(), Target::Thread(Pid(0)))
        };
        let trial = events.iter().map(open).collect::<Result<Vec<Event>>>()?;
        trial.iter().try_for_each(Event::enable)?;
        let costs = huge_costs::measure(linux)?;
        let counted: u64 = trial.iter().map(scaled).sum::<Result<u64>>()?;
        if counted < LEAST {
            let why =
                format!("{counted} counts in {} ms of random reads", costs.took_ns / 1_000_000);
            return Err(Error::new(Kind::Unsupported, "count", name, why));
        }
        let each = match (cycles, costs.read_base_ps, costs.read_huge_ps) {
            (true, ..) => None,
            (false, Some(base), Some(huge)) if base > huge => Some((base - huge) as f64 / 1e3),
            _ => {
                let why = "what a walk takes could not be measured by random reads";
                return Err(Error::new(Kind::Unsupported, "count", name, why));
            }
        };
        Ok(Self { name, events, each })
    }

    /// Opens the events for the thread `pid`, to count from the next program that it executes.
    ///
    /// # Errors
    /// An event cannot be opened.
    pub fn open(&self, linux: &Linux, pid: Pid) -> Result<Counting> {
        let held = |attributes: Attributes| {
            Event::open(&attributes.inherited().from_exec(), Target::Thread(pid))
        };
        let walks = self.events.iter().map(|what| held(Attributes::counting(*what).user_only()));
        let cycles = Attributes::counting(Counter::Cycles);
        Ok(Counting {
            walks: walks.collect::<Result<_>>()?,
            user: held(cycles.user_only())?,
            // Needs a privilege; without it faults are left out.
            all: held(cycles).ok(),
            each: self.each,
            mhz: linux.mhz()?,
        })
    }
}

/// Events that count.
#[derive(Debug)]
pub struct Counting {
    walks: Vec<Event>,
    user: Event,
    all: Option<Event>,
    each: Option<f64>,
    mhz: Option<u64>,
}

/// What was counted, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Walks in user mode.
    pub walks: f64,
    /// Time in the kernel; absent if it may not be counted.
    pub kernel: Option<f64>,
}

impl Counting {
    /// What was counted in a run that took `cpu` of processor time.
    ///
    /// # Errors
    /// An event cannot be read, or [`Kind::Unsupported`] where cycles cannot be told as time.
    pub fn read(&self, cpu: Duration) -> Result<Counted> {
        let walks = self.walks.iter().map(scaled).sum::<Result<u64>>()?;
        let user = scaled(&self.user)?;
        let all = self.all.as_ref().map(scaled).transpose()?;
        seconds(walks, user, all, self.each, self.mhz, cpu).ok_or_else(|| {
            let why = "no cycles were counted, and /proc/cpuinfo has no cpu MHz";
            Error::new(Kind::Unsupported, "time", "cycles", why)
        })
    }
}

/// Counts as seconds: cycles by how many the run had in its time, or by the processor's frequency.
fn seconds(
    walks: u64,
    user: u64,
    all: Option<u64>,
    each: Option<f64>,
    mhz: Option<u64>,
    cpu: Duration,
) -> Option<Counted> {
    let counted = all.filter(|all| *all > 0).map(|all| cpu.as_secs_f64() / all as f64);
    let cycle = counted.or(mhz.filter(|mhz| *mhz > 0).map(|mhz| 1e-6 / mhz as f64))?;
    Some(Counted {
        walks: each.map_or(cycle, |each| each * 1e-9) * walks as f64,
        kernel: all.filter(|all| *all > 0).map(|all| all.saturating_sub(user) as f64 * cycle),
    })
}

/// A count; scaled if the event took turns with others.
fn scaled(event: &Event) -> Result<u64> {
    let count = event.count()?;
    let share = count.running.as_secs_f64() / count.enabled.as_secs_f64().max(1e-9);
    Ok(if share > 0.0 && share < 1.0 { (count.value as f64 / share) as u64 } else { count.value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_known_by_their_numbers_and_others_by_the_kernels_events() {
        let of = |vendor: &str, family: u32, model: u32| {
            events(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X\n"
            ))
        };
        let raw = |config| Counter::Unit { kind: CORE, config };
        // As tools/perf/pmu-events has them: event 0x08 and 0x49, or 0x12 and 0x13, umask 0x10, cmask 1.
        let skylake = of("GenuineIntel", 6, 85);
        assert_eq!(skylake, ("walk_active", vec![raw(0x0100_1008), raw(0x0100_1049)], true));
        let sapphire_rapids = of("GenuineIntel", 6, 143);
        assert_eq!(sapphire_rapids.1, [raw(0x0100_1012), raw(0x0100_1013)]);
        // Event 0x45, umask 0xf0.
        assert_eq!(of("AuthenticAMD", 25, 1), ("all_l2_miss", vec![raw(0xf045)], false));
        for unknown in [of("GenuineIntel", 6, 1), of("Other", 25, 1), events("")] {
            assert_eq!(unknown.1, [Counter::DataTlbLoadMisses, Counter::DataTlbStoreMisses]);
        }
    }

    #[test]
    fn cycles_are_as_long_as_the_run_says_or_the_processor() {
        let run = Duration::from_secs(2);
        let counted = seconds(1_000, 3_000, Some(4_000), None, Some(1), run).unwrap();
        assert_eq!(counted, Counted { walks: 0.5, kernel: Some(0.5) });
        let by_frequency = seconds(2_000, 3_000, None, None, Some(2_000), run).unwrap();
        assert_eq!(by_frequency, Counted { walks: 1e-6, kernel: None });
        let by_walks = seconds(1_000_000, 3_000, Some(4_000), Some(30.0), None, run).unwrap();
        assert!((by_walks.walks - 0.03).abs() < 1e-12, "{by_walks:?}");
        assert_eq!(seconds(1, 1, None, None, None, run), None);
    }

    #[test]
    fn what_this_machine_counts_is_counted_or_the_reason_is_told() {
        match PageWalks::find(&Linux::live()) {
            Ok(found) => assert!(!found.events.is_empty()),
            Err(error) => {
                assert!(!error.reason().to_string().is_empty(), "{error}");
                println!("skipped: {error}");
            }
        }
    }
}

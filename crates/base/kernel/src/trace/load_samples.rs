//! Sampled loads with the addresses of their data: PEBS on Intel, IBS on AMD.
//!
//! | unit | samples | event |
//! |---|---|---|
//! | Intel PEBS | every [`PERIOD`]th load that missed the last level cache | `MEM_LOAD_RETIRED.L3_MISS` |
//! | AMD IBS (`ibs_op`) | every [`PERIOD`]th operation, of those that missed the L3 | `l3missonly`, else `cnt_ctl` |
//!
//! PEBS: Skylake server and newer, event 0xd1, umask 0x20. IBS: before Zen 4 the unit cannot tell misses, and all
//! operations are sampled.
//!
//! One event and one ring for each processor, which needs `CAP_PERFMON`; whose loads they are is in each
//! sample. What finds no room in a ring is counted as lost.
//!
//! Written from the processors' manuals and the kernel's drivers. The records are those of any perf event
//! ([`crate::trace::perf_event`], tested on recorded bytes); the units themselves have not been met by a test.

use pagemill_model::Pid;

use crate::nodes::tier_latency::{Processor, processor};
use crate::trace::perf_event::{Attributes, Counter, Event, Record, Ring, Target};
use crate::trace::pmu::Pmu;
use crate::{Error, Kind, Linux, Result};

/// Events between two samples: a multiple of 16, as IBS wants it. HeMem takes 5,003; a fourth of its
/// samples costs a fourth of its interrupts.
pub const PERIOD: u64 = 20_000;
/// Bytes of each processor's ring: 13,000 samples.
const RING: usize = 512 << 10;
const UNITS: &str = "/sys/bus/event_source/devices";

/// Open events of all processors.
#[derive(Debug)]
pub struct Loads {
    name: &'static str,
    rings: Vec<Ring>,
}

impl Loads {
    /// Opens what this machine has and starts to sample. [`Kind::Unsupported`] says what is missing.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where the processor cannot; the caller may not sample.
    pub fn open(linux: &Linux) -> Result<Self> {
        let (name, attributes) = event(linux)?;
        let open = |processor: u32| -> Result<Ring> {
            let event =
                Event::open(&attributes.wake_at(RING as u32 / 2), Target::Processor(processor))?;
            let ring = Ring::map(event, RING)?;
            ring.event().enable()?;
            Ok(ring)
        };
        let rings: Result<Vec<Ring>> = linux.processors()?.into_iter().map(open).collect();
        Ok(Self { name, rings: rings? })
    }

    /// `pebs` or `ibs`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Hands process and address of each load sampled since the last look to `each`; says how many were lost.
    pub fn read(&mut self, mut each: impl FnMut(Pid, u64)) -> u64 {
        let mut lost = 0;
        for ring in &mut self.rings {
            ring.read(|record| match record {
                // An operation of IBS that is no load has no address.
                Record::Sample(sample) if sample.address != 0 => {
                    each(sample.process, sample.address);
                }
                Record::Sample(_) => {}
                Record::Lost(number) => lost += number,
            });
        }
        lost
    }
}

/// The unit's name and the event to open.
fn event(linux: &Linux) -> Result<(&'static str, Attributes)> {
    let model = processor(&linux.read("/proc/cpuinfo")?);
    let sampling = |unit: &Pmu, config| {
        Attributes::sampling(Counter::Unit { kind: unit.kind, config }, PERIOD)
    };
    if model.vendor == "GenuineIntel" && misses_are_event_d1(&model) {
        let precise = linux.read_number(format!("{UNITS}/cpu/caps/max_precise")).unwrap_or(0);
        if let ([unit], true) = (linux.pmus("cpu")?.as_slice(), precise >= 2) {
            let config = unit.encode("event=0xd1,umask=0x20")?;
            return Ok(("pebs", sampling(unit, config).precise().user_only()));
        }
    } else if let [unit] = linux.pmus("ibs_op")?.as_slice() {
        let config = unit.encode("l3missonly=1").or_else(|_| unit.encode("cnt_ctl=1"))?;
        return Ok(("ibs", sampling(unit, config)));
    }
    let what = format!("{} family {} model {}", model.vendor, model.family, model.model);
    Err(Error::new(
        Kind::Unsupported,
        "sample loads with",
        "PEBS or IBS",
        format_args!("{what} has neither here"),
    )
    .advise("virtual machines rarely show these units; use DAMON or idle bits"))
}

/// Server cores from Skylake on, whose event 0xd1 counts retired loads by where they hit.
fn misses_are_event_d1(processor: &Processor) -> bool {
    // Skylake and Cascade Lake, Ice Lake, Sapphire Rapids, Emerald Rapids, Granite Rapids.
    processor.family == 6 && matches!(processor.model, 85 | 106 | 108 | 143 | 207 | 173 | 174)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for (file, text) in files {
            let path = linux.path(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (root, linux)
    }

    #[test]
    fn each_vendors_unit_is_found_by_what_it_says_of_itself() {
        let intel = [
            ("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"),
            ("sys/bus/event_source/devices/cpu/type", "4\n"),
            ("sys/bus/event_source/devices/cpu/format/event", "config:0-7\n"),
            ("sys/bus/event_source/devices/cpu/format/umask", "config:8-15\n"),
            ("sys/bus/event_source/devices/cpu/caps/max_precise", "3\n"),
        ];
        let (_root, linux) = machine(&intel);
        let (name, attributes) = event(&linux).unwrap();
        assert_eq!(name, "pebs");
        let text = format!("{attributes:?}");
        assert!(text.contains("kind: 4, config: 8401"), "0x20d1: {text}");
        // A virtual machine without PEBS says so.
        fs::write(linux.path("sys/bus/event_source/devices/cpu/caps/max_precise"), "0\n").unwrap();
        assert_eq!(event(&linux).unwrap_err().kind(), Kind::Unsupported);

        let amd = [
            ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"),
            ("sys/bus/event_source/devices/ibs_op/type", "11\n"),
            ("sys/bus/event_source/devices/ibs_op/format/cnt_ctl", "config:19\n"),
        ];
        let (_root, linux) = machine(&amd);
        let text = format!("{:?}", event(&linux).unwrap());
        assert!(text.contains("\"ibs\"") && text.contains("kind: 11, config: 524288"), "{text}");
        fs::write(
            linux.path("sys/bus/event_source/devices/ibs_op/format/l3missonly"),
            "config:16\n",
        )
        .unwrap();
        let text = format!("{:?}", event(&linux).unwrap());
        assert!(text.contains("config: 65536"), "{text}");
    }

    #[test]
    fn a_machine_without_a_unit_is_refused_by_name() {
        let error = Loads::open(&fixtures::two_nodes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("AuthenticAMD family"), "{error}");
    }
}

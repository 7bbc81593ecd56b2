//! `/sys/bus/event_source/devices`: counting units outside the cores, as they describe themselves
//! (Documentation/ABI/testing/sysfs-bus-event_source-devices-format).
//!
//! ```text
//!  uncore_cha_0/type         33
//!  uncore_cha_0/cpumask      0,32                one processor for each socket
//!  uncore_cha_0/format/umask config:8-15,32-55   where the bits of a field go
//! ```
//!
//! A field's value is laid out from its lowest bit over the ranges in their order.

use std::collections::BTreeMap;

use crate::error::present;
use crate::nodes::parse_list;
use crate::trace::perf_event::{Attributes, Counter, Event, Target};
use crate::{Error, Kind, Linux, Result};

const DEVICES: &str = "/sys/bus/event_source/devices";

/// A counting unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Name of its directory.
    pub name: String,
    /// Number that perf_event_open(2) knows it by.
    pub kind: u32,
    /// Processors through which it is read, one for each instance of it; none for a unit of each core.
    pub processors: Vec<u32>,
    /// Bits of each field in `config`, first and last.
    format: BTreeMap<String, Vec<(u32, u32)>>,
}

impl Linux {
    /// The counting units whose name is `prefix`, or that followed by a number, ordered by it.
    ///
    /// # Errors
    /// A file of a unit cannot be read, or is not of the form that is known.
    pub fn pmus(&self, prefix: &str) -> Result<Vec<Pmu>> {
        let Ok(entries) = std::fs::read_dir(self.path(DEVICES)) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let Some(rest) = name.strip_prefix(prefix) else { continue };
            let number = match rest.trim_start_matches('_') {
                "" => 0,
                number => match number.parse::<u32>() {
                    Ok(number) => number,
                    Err(_) => continue,
                },
            };
            found.push((number, self.pmu(&name)?));
        }
        found.sort_by_key(|(number, _)| *number);
        Ok(found.into_iter().map(|(_, pmu)| pmu).collect())
    }

    fn pmu(&self, name: &str) -> Result<Pmu> {
        let at = format!("{DEVICES}/{name}");
        let mask = present(self.read(format!("{at}/cpumask")))?.unwrap_or_default();
        let mut format = BTreeMap::new();
        let fields = std::fs::read_dir(self.path(format!("{at}/format")));
        for field in fields.into_iter().flatten().flatten() {
            let Ok(field) = field.file_name().into_string() else { continue };
            let text = self.read(format!("{at}/format/{field}"))?;
            // Fields of config1 and config2 are filters that nothing here sets.
            if let Some(bits) = text.trim().strip_prefix("config:") {
                let range = |part: &str| {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    let range: (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                    (range.0 <= range.1 && range.1 < 64).then_some(range)
                };
                let ranges: Option<Vec<_>> = bits.split(',').map(range).collect();
                let Some(ranges) = ranges else {
                    return Err(Error::malformed(format!("{at}/format/{field}"), text.trim()));
                };
                format.insert(field, ranges);
            }
        }
        Ok(Pmu {
            name: name.to_owned(),
            kind: u32::try_from(self.read_number(format!("{at}/type"))?).unwrap_or(u32::MAX),
            processors: match mask.trim() {
                "" => Vec::new(),
                mask => parse_list(mask)
                    .ok_or_else(|| Error::malformed(format!("{at}/cpumask"), mask))?,
            },
            format,
        })
    }
}

impl Pmu {
    /// The configuration of an event given by its fields, such as `event=0x35,umask=0xc8168601`.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for a field that the unit does not have, or a value that does not fit it.
    pub fn encode(&self, event: &str) -> Result<u64> {
        let refused = |why: String| {
            Err(Error::new(
                Kind::Unsupported,
                "encode",
                format_args!("{event} for {}", self.name),
                why,
            ))
        };
        let mut config = 0;
        for part in event.split(',') {
            let (field, value) = part.split_once('=').unwrap_or((part, "1"));
            let value = match value.strip_prefix("0x") {
                Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
                None => value.parse(),
            };
            let (Some(ranges), Ok(mut left)) = (self.format.get(field), value) else {
                let known: Vec<&str> = self.format.keys().map(String::as_str).collect();
                return refused(format!("no field {field}; it has {}", known.join(", ")));
            };
            for (first, last) in ranges {
                let width = last - first + 1;
                let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
                config |= (left & mask) << first;
                left = if width == 64 { 0 } else { left >> width };
            }
            if left != 0 {
                return refused(format!("the value of {field} does not fit"));
            }
        }
        Ok(config)
    }

    /// Opens an event on each of its instances and starts to count. Needs `CAP_PERFMON`.
    ///
    /// # Errors
    /// As of [`Pmu::encode`]; the caller may not count.
    pub fn open(&self, event: &str) -> Result<Vec<Event>> {
        let what = Counter::Unit { kind: self.kind, config: self.encode(event)? };
        let open = |&processor: &u32| {
            let event = Event::open(&Attributes::counting(what), Target::Processor(processor))?;
            event.enable()?;
            Ok(event)
        };
        self.processors.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A tree with the units of an Ice Lake server, as its driver describes them.
    fn machine() -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for (number, kind) in [(0, 33), (10, 43), (1, 34)] {
            for (file, text) in [
                ("type", format!("{kind}\n")),
                ("cpumask", "0,32\n".to_owned()),
                ("format/event", "config:0-7\n".to_owned()),
                ("format/umask", "config:8-15,32-55\n".to_owned()),
                ("format/filter_tid", "config1:0-8\n".to_owned()),
            ] {
                let path = linux.path(format!("{DEVICES}/uncore_cha_{number}/{file}"));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
        (root, linux)
    }

    #[test]
    fn units_are_found_in_the_order_of_their_numbers() {
        let (_root, linux) = machine();
        let pmus = linux.pmus("uncore_cha").unwrap();
        let kinds: Vec<u32> = pmus.iter().map(|pmu| pmu.kind).collect();
        assert_eq!(kinds, [33, 34, 43]);
        assert_eq!(pmus[0].processors, [0, 32]);
        assert_eq!(linux.pmus("amd_l3").unwrap(), []);
    }

    #[test]
    fn a_field_is_spread_over_its_ranges() {
        let (_root, linux) = machine();
        let pmu = &linux.pmus("uncore_cha").unwrap()[0];
        // What the published artifact writes into the same unit's control register, enable bit apart.
        let inserts = pmu.encode("event=0x35,umask=0xc8168601").unwrap();
        assert_eq!(inserts, 0x00c8_1686_0040_0135 & !(1 << 22));
        let error = pmu.encode("event=0x35,edge=1").unwrap_err();
        assert!(error.to_string().contains("it has event, umask"), "{error}");
        assert!(pmu.encode("event=0x135").unwrap_err().to_string().contains("does not fit"));
        assert!(pmu.encode("event=x").is_err());
    }
}

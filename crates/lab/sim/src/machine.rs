//! The machine file: a TOML table of parameters, each with the document it comes from.
//!
//! ```toml
//! [tier.alternate]
//! unloaded_ns = { value = 135, source = "published evaluation, section 2" }
//! ```
//!
//! [`PARAMETERS`] is the whole language: key, unit, range, meaning. A file must give every key; an
//! unknown key, a missing one, a value out of range or of another type is an error with its line, its
//! key and the valid values. All values are numbers, so that a sensitivity study can scale each.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// One parameter of the language: section, key, unit, least and greatest value, meaning.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The table it stands in, dotted.
    pub section: &'static str,
    /// Its key.
    pub key: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The least valid value.
    pub least: f64,
    /// The greatest valid value.
    pub greatest: f64,
    /// What it means.
    pub meaning: &'static str,
}

impl Parameter {
    /// Whether it counts things that cannot be split.
    #[must_use]
    pub fn whole(&self) -> bool {
        matches!(
            self.unit,
            "walks" | "ranks" | "groups" | "banks" | "channels" | "cores" | "clocks" | "refreshes"
        ) || (self.section == "core" && self.unit == "lines")
    }

    /// Its section and key, dotted.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    fn valid(&self) -> String {
        let whole = if self.whole() { "a whole number, " } else { "" };
        format!("{whole}{} to {} {}", self.least, self.greatest, self.unit)
    }
}

/// The table below: sections, and in them key, unit, least and greatest value, meaning.
macro_rules! parameters {
    ($($section:literal { $($key:ident $unit:literal $least:literal to $most:literal $meaning:literal;)* })*) => {
        &[$($(Parameter {
            section: $section,
            key: stringify!($key),
            unit: $unit,
            least: $least,
            greatest: $most,
            meaning: $meaning,
        },)*)*]
    };
}

/// Every parameter of a machine.
pub const PARAMETERS: &[Parameter] = parameters! {
    "core" {
        frequency_ghz "GHz" 0.1 to 10.0 "core clock";
        rob_entries "micro-operations" 8.0 to 4096.0 "reorder buffer";
        issue_width "micro-operations/cycle" 1.0 to 32.0 "allocation width";
        fill_buffers "lines" 1.0 to 256.0 "outstanding L1 data misses";
        streamer_lines "lines" 0.0 to 256.0 "lines the L2 streamer runs ahead";
        superqueue "lines" 1.0 to 1024.0 "outstanding L2 misses";
        page_walkers "walks" 1.0 to 64.0 "concurrent page walks";
        mispredict_cycles "cycles" 0.0 to 200.0 "branch misprediction penalty";
        divide_cycles "cycles" 0.0 to 200.0 "latency of a 64-bit division";
        l1_cycles "cycles" 0.0 to 200.0 "L1 data cache load-to-use";
        l2_cycles "cycles" 0.0 to 200.0 "L2 load-to-use";
        stlb_cycles "cycles" 0.0 to 200.0 "second level TLB lookup";
        llc_cycles "cycles" 0.0 to 1000.0 "last level cache load-to-use";
    }
    "cache" {
        l2_kib "KiB" 0.0 to 1_048_576.0 "L2 cache of a core, not part of the last level";
        llc_mib "MiB" 0.0 to 4096.0 "last level cache";
    }
    "dram" {
        clock_ns "ns" 0.05 to 10.0 "clock of the data bus's command rate";
        cl "clocks" 1.0 to 200.0 "read command to data";
        rcd "clocks" 1.0 to 200.0 "activate to column command";
        rp "clocks" 1.0 to 200.0 "precharge to activate";
        ras "clocks" 1.0 to 400.0 "activate to precharge";
        cwl "clocks" 1.0 to 200.0 "write command to data";
        ccd_l "clocks" 1.0 to 64.0 "column to column, same bank group";
        rrd_l "clocks" 1.0 to 64.0 "activate to activate, same bank group";
        rrd_s "clocks" 1.0 to 64.0 "activate to activate, other bank group";
        faw "clocks" 1.0 to 400.0 "window of four activates";
        wtr_l "clocks" 0.0 to 64.0 "write data to read command, same rank";
        wr "clocks" 1.0 to 200.0 "write data to precharge";
        rtp "clocks" 1.0 to 200.0 "read to precharge";
        rfc "clocks" 1.0 to 4000.0 "refresh";
        rfc_sb "clocks" 0.0 to 4000.0 "refresh of one bank of each group (0: none)";
        refi "clocks" 100.0 to 100_000.0 "refresh interval";
        postponed "refreshes" 0.0 to 64.0 "refreshes that may be postponed";
        burst "clocks" 1.0 to 64.0 "data bus time of a line";
        turnaround "clocks" 0.0 to 64.0 "data bus gap between ranks or directions";
        ranks "ranks" 1.0 to 8.0 "ranks of a channel";
        bank_groups "groups" 1.0 to 16.0 "bank groups of a rank";
        banks "banks" 1.0 to 16.0 "banks of a group";
        row_lines "lines" 1.0 to 4096.0 "lines of an open row";
        write_high "lines" 1.0 to 1024.0 "queued writes that start a drain";
        write_low "lines" 0.0 to 1024.0 "queued writes that end it";
    }
    "tier.default" {
        channels "channels" 1.0 to 64.0 "memory channels";
        capacity_gib "GiB" 0.001 to 65_536.0 "memory the workload may use";
        unloaded_ns "ns" 1.0 to 10_000.0 "load latency without load";
    }
    "tier.alternate" {
        channels "channels" 1.0 to 64.0 "memory channels";
        capacity_gib "GiB" 0.001 to 65_536.0 "memory the workload may use";
        unloaded_ns "ns" 1.0 to 10_000.0 "load latency without load";
    }
    "link" {
        flits_per_ns "flits/ns" 0.01 to 1000.0 "capacity of each direction";
        data_flits "flits" 1.0 to 64.0 "a message with a line";
        control_flits "flits" 0.0 to 64.0 "a message without";
    }
    "antagonist" {
        cores_per_step "cores" 0.0 to 64.0 "cores added by each step of load";
        writes_per_read "lines" 0.0 to 4.0 "lines written back for each line read";
    }
    "kernel" {
        page_kib "KiB" 4.0 to 2048.0 "page that the kernel's tiering (tpp, none) moves";
        scan_mib "MiB" 1.0 to 65_536.0 "address space the hint fault scanner stamps a period";
        scan_period_ms "ms" 1.0 to 60_000.0 "its period";
        hot_threshold_ms "ms" 1.0 to 60_000.0 "reference fault latency of a hot page";
        promote_mb_per_s "MB/s" 0.0 to 1_000_000.0 "promotion rate limit";
        adapt_ms "ms" 1.0 to 600_000.0 "period of the threshold's adaptation";
        fault_us "us" 0.0 to 1000.0 "cost of a hint fault in the faulting thread";
        migrate_us "us" 0.0 to 1000.0 "cost of a page migration in the faulting thread";
        kswapd_us "us" 0.001 to 1000.0 "cost of one page's demotion in kswapd";
        kswapd_scan_us "us" 0.001 to 1000.0 "cost of one page's ageing in kswapd";
        node_gib "GiB" 0.001 to 65_536.0 "memory of the default tier's node, pinned or not";
        watermark_part "part" 0.0 to 0.01 "part of the node between two watermarks";
        plenty_part "part" 0.0 to 1.0 "part of the node that is free when no threshold is applied";
    }
    "hemem" {
        page_kib "KiB" 4.0 to 2048.0 "page that the sampled systems move";
        copy_gb_per_s "GB/s" 0.001 to 1000.0 "copy engine of the sampled systems";
    }
};

/// What is wrong with a machine file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {key}: {what}; valid: {valid}")]
pub struct MachineError {
    /// Line, from 1.
    pub line: usize,
    /// The key, dotted.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub valid: String,
}

/// A machine: a value for each of [`PARAMETERS`], with its source.
#[derive(Clone, Debug)]
pub struct Machine {
    values: BTreeMap<String, f64>,
    sources: BTreeMap<String, String>,
}

/// The two-socket Ice Lake machine of the published evaluation.
pub const ICELAKE: &str = include_str!("../machines/icelake-2s.toml");

impl Machine {
    /// Reads a machine file.
    ///
    /// # Errors
    /// The first thing wrong with it, with line, key and valid values.
    pub fn parse(text: &str) -> Result<Self, MachineError> {
        let table = DeTable::parse(text).map_err(|error| MachineError {
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            key: "(syntax)".to_owned(),
            what: error.message().to_owned(),
            valid: "TOML".to_owned(),
        })?;
        let mut machine = Self { values: BTreeMap::new(), sources: BTreeMap::new() };
        let mut lines = BTreeMap::new();
        machine.read(text, "", table.get_ref(), &mut lines)?;
        for wanted in PARAMETERS {
            let key = wanted.name();
            if machine.values.contains_key(&key) {
                continue;
            }
            let line = section_line(text, wanted.section);
            let Some(line) = line else {
                return Err(MachineError {
                    line: text.lines().count().max(1),
                    key: wanted.section.to_owned(),
                    what: "the whole table is missing".to_owned(),
                    valid: format!("[{}] with {}", wanted.section, neighbours(wanted.section)),
                });
            };
            let (what, valid) = (format!("missing ({})", wanted.meaning), wanted.valid());
            return Err(MachineError { line, key, what, valid });
        }
        machine.agrees(&lines)?;
        Ok(machine)
    }

    /// Whether its values go together, as those of a file must.
    ///
    /// # Errors
    /// The first that does not; it has no line.
    pub fn check(&self) -> Result<(), MachineError> {
        self.agrees(&BTreeMap::new())
    }

    /// Values that are valid each, but not together.
    fn agrees(&self, lines: &BTreeMap<String, usize>) -> Result<(), MachineError> {
        let fail = |key: &str, what: String, valid: String| {
            let line = lines.get(key).copied().unwrap_or(1);
            Err(MachineError { line, key: key.to_owned(), what, valid })
        };
        let (low, high) = (self.get("dram.write_low"), self.get("dram.write_high"));
        if low >= high {
            let what = format!("{low} is not below dram.write_high, {high}");
            return fail("dram.write_low", what, format!("0 to {} lines", high - 1.0));
        }
        let (busy, interval) = (self.get("dram.rfc"), self.get("dram.refi"));
        if busy >= interval {
            let what = format!("{interval} is not above dram.rfc, {busy}: nothing but refreshes");
            return fail("dram.refi", what, format!("{} to 100000 clocks", busy + 1.0));
        }
        let (busy, turns) = (self.get("dram.rfc_sb"), self.get("dram.banks"));
        if busy * turns >= interval {
            let what =
                format!("{busy} for each of {turns} banks is not below dram.refi, {interval}");
            let most = ((interval - 1.0) / turns).floor();
            return fail("dram.rfc_sb", what, format!("0 to {most} clocks"));
        }
        let dram =
            ["dram.rcd", "dram.cl", "dram.burst"].map(|key| self.get(key)).iter().sum::<f64>()
                * self.get("dram.clock_ns");
        let flits = self.get("link.data_flits") + self.get("link.control_flits");
        let link = flits / self.get("link.flits_per_ns");
        for (key, least) in
            [("tier.default.unloaded_ns", dram), ("tier.alternate.unloaded_ns", dram + link)]
        {
            let ns = self.get(key);
            if ns < least {
                let what = format!("{ns} is less than DRAM and link take by themselves");
                return fail(key, what, format!("{} to 10000 ns", least.ceil()));
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        text: &str,
        section: &str,
        table: &DeTable<'_>,
        lines: &mut BTreeMap<String, usize>,
    ) -> Result<(), MachineError> {
        for (name, value) in table {
            let key = if section.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{section}.{}", name.get_ref())
            };
            let known = PARAMETERS.iter().find(|p| p.name() == key);
            lines.insert(key.clone(), line_of(text, name.span().start));
            let fail = |what: &str, valid: String| MachineError {
                line: line_of(text, name.span().start),
                key: key.clone(),
                what: what.to_owned(),
                valid,
            };
            match (known, value.get_ref()) {
                (Some(parameter), value) => {
                    let (number, source) =
                        number_and_source(value).map_err(|what| fail(&what, parameter.valid()))?;
                    if !(parameter.least..=parameter.greatest).contains(&number) {
                        return Err(fail(&format!("{number} is out of range"), parameter.valid()));
                    }
                    if parameter.whole() && number.fract() != 0.0 {
                        return Err(fail(&format!("{number} cannot be split"), parameter.valid()));
                    }
                    self.sources.insert(key.clone(), source);
                    self.values.insert(key, number);
                }
                (None, DeValue::Table(inner)) if is_section(&key) => {
                    self.read(text, &key, inner, lines)?
                }
                (None, _) => return Err(fail("unknown key", neighbours(section))),
            }
        }
        Ok(())
    }

    /// A parameter's value. The key is one of [`PARAMETERS`], dotted.
    #[must_use]
    pub fn get(&self, key: &str) -> f64 {
        *self
            .values
            .get(key)
            .expect("a parsed machine holds every parameter, and keys are literals of PARAMETERS")
    }

    /// Where a parameter's value comes from; empty where the file does not say.
    #[must_use]
    pub fn source(&self, key: &str) -> &str {
        self.sources.get(key).map_or("", String::as_str)
    }

    /// The machine with one parameter set to another value, held within its range.
    #[must_use]
    pub fn with(&self, key: &str, value: f64) -> Self {
        let mut machine = self.clone();
        if let Some(parameter) = PARAMETERS.iter().find(|p| p.name() == key) {
            machine.values.insert(key.to_owned(), value.clamp(parameter.least, parameter.greatest));
        }
        machine
    }

    /// The machine with one parameter as it was found somewhere.
    ///
    /// # Errors
    /// For a value out of the parameter's range, and for no parameter.
    pub fn found(&self, key: &str, value: f64, source: &str) -> Result<Self, MachineError> {
        let parameter = PARAMETERS.iter().find(|parameter| parameter.name() == key);
        let fits = |one: &&Parameter| {
            (one.least..=one.greatest).contains(&value) && (!one.whole() || value.fract() == 0.0)
        };
        if parameter.filter(fits).is_none() {
            let valid = parameter.map_or_else(|| "a parameter".to_owned(), Parameter::valid);
            let what = format!("{value} is out of range");
            return Err(MachineError { line: 1, key: key.to_owned(), what, valid });
        }
        let mut machine = self.clone();
        machine.values.insert(key.to_owned(), value);
        machine.sources.insert(key.to_owned(), source.to_owned());
        Ok(machine)
    }

    /// The machine as a machine file, which [`Machine::parse`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for parameter in PARAMETERS {
            if parameter.section != section {
                section = parameter.section;
                text.push_str(&format!("\n[{section}]\n"));
            }
            let key = parameter.name();
            let source = toml::Value::String(self.source(&key).to_owned());
            let value = self.get(&key);
            text.push_str(&format!(
                "{} = {{ value = {value}, source = {source} }}\n",
                parameter.key
            ));
        }
        text
    }

    /// A duration in nanoseconds in DRAM clocks, rounded.
    #[must_use]
    pub fn clocks(&self, ns: f64) -> u64 {
        (ns / self.get("dram.clock_ns")).round().max(0.0) as u64
    }

    /// Core cycles in nanoseconds.
    #[must_use]
    pub fn cycles_ns(&self, cycles: f64) -> f64 {
        cycles / self.get("core.frequency_ghz")
    }
}

fn number_and_source(value: &DeValue<'_>) -> Result<(f64, String), String> {
    let number = |value: &DeValue<'_>| match value {
        DeValue::Integer(text) => text.to_string().parse::<f64>().ok(),
        DeValue::Float(text) => text.to_string().parse::<f64>().ok(),
        _ => None,
    };
    if let Some(number) = number(value) {
        return Ok((number, String::new()));
    }
    let DeValue::Table(table) = value else {
        return Err("not a number".to_owned());
    };
    let mut result = (None, String::new());
    for (name, inner) in table {
        match (name.get_ref().as_ref(), inner.get_ref()) {
            ("value", inner) => result.0 = number(inner),
            ("source", DeValue::String(text)) => text.as_ref().clone_into(&mut result.1),
            (other, _) => {
                return Err(format!("unknown field '{other}' (a parameter has value and source)"));
            }
        }
    }
    Ok((result.0.ok_or("its value is not a number")?, result.1))
}

fn is_section(key: &str) -> bool {
    PARAMETERS.iter().any(|p| p.section == key || p.section.starts_with(&format!("{key}.")))
}

fn neighbours(section: &str) -> String {
    let mut names: Vec<&str> = PARAMETERS
        .iter()
        .filter_map(|p| match (section.is_empty(), p.section == section) {
            (false, true) => Some(p.key),
            _ => p
                .section
                .strip_prefix(section)
                .filter(|rest| section.is_empty() || rest.starts_with('.'))
                .map(|rest| rest.trim_start_matches('.').split('.').next().unwrap_or(rest)),
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// The line of a section's header, if it has one.
fn section_line(text: &str, section: &str) -> Option<usize> {
    text.lines().position(|line| line.trim() == format!("[{section}]")).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_machine_is_whole_and_every_value_has_a_source() {
        let machine = Machine::parse(ICELAKE).unwrap();
        for parameter in PARAMETERS {
            let key = format!("{}.{}", parameter.section, parameter.key);
            assert!(!machine.source(&key).is_empty(), "{key} names no source");
        }
    }

    #[test]
    fn what_was_found_is_written_and_read_again_and_what_cannot_be_is_refused() {
        let built_in = Machine::parse(ICELAKE).unwrap();
        let source = "measured: \"a\" 'b' \\ c";
        let machine = built_in.found("tier.default.unloaded_ns", 91.25, source).unwrap();
        let again = Machine::parse(&machine.text()).unwrap();
        for parameter in PARAMETERS {
            let key = parameter.name();
            assert_eq!(again.get(&key), machine.get(&key), "{key}");
            assert_eq!(again.source(&key), machine.source(&key), "{key}");
        }
        assert_eq!(again.get("tier.default.unloaded_ns"), 91.25);
        for (key, value) in [("tier.default.channels", 1.5), ("cache.llc_mib", -1.0), ("x.y", 1.0)]
        {
            let error = built_in.found(key, value, "").unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn a_negative_latency_names_its_line_key_and_range() {
        let at = ICELAKE.lines().position(|l| l.starts_with("unloaded_ns")).unwrap() + 1;
        let mut lines: Vec<&str> = ICELAKE.lines().collect();
        lines[at - 1] = "unloaded_ns = -70";
        let error = Machine::parse(&lines.join("\n")).unwrap_err();
        assert_eq!((error.line, error.key.as_str()), (at, "tier.default.unloaded_ns"));
        assert_eq!(error.valid, "1 to 10000 ns");
    }

    #[test]
    fn a_missing_tier_is_named() {
        let without: String = ICELAKE.split("[tier.alternate]").next().unwrap().to_owned()
            + "[link]"
            + ICELAKE.split("[link]").nth(1).unwrap();
        let error = Machine::parse(&without).unwrap_err();
        assert_eq!(error.key, "tier.alternate");
        assert_eq!(error.valid, "[tier.alternate] with capacity_gib, channels, unloaded_ns");
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn a_missing_key_is_named_with_its_table_s_line() {
        let error = Machine::parse(&ICELAKE.replacen("\nrfc =", "\n# rfc =", 1)).unwrap_err();
        let table = ICELAKE.lines().position(|line| line == "[dram]").unwrap() + 1;
        assert_eq!((error.line, error.key.as_str()), (table, "dram.rfc"));
    }

    #[test]
    fn half_a_channel_and_values_that_contradict_each_other_are_refused() {
        let wrong = |from: &str, to: &str| {
            let text = ICELAKE.replacen(from, to, 1);
            let error = Machine::parse(&text).unwrap_err();
            assert!(text.lines().nth(error.line - 1).unwrap().contains(to.trim()), "{error}");
            error.to_string()
        };
        let error = wrong("channels = { value = 8,", "channels = { value = 8.5,");
        assert!(error.contains("a whole number, 1 to 64 channels"), "{error}");
        let error = wrong("refi = { value = 12480,", "refi = { value = 880,");
        assert!(error.contains("881 to 100000 clocks"), "{error}");
        let error = wrong("rfc_sb = { value = 0,", "rfc_sb = { value = 3200,");
        assert!(error.contains("0 to 3119 clocks"), "{error}");
        let error = wrong("write_low = { value = 16,", "write_low = { value = 40,");
        assert!(error.contains("0 to 39 lines"), "{error}");
        // rcd, cl and a burst: 48 clocks of 0.625 ns.
        let error = wrong("unloaded_ns = { value = 70,", "unloaded_ns = { value = 29,");
        assert!(error.contains("30 to 10000 ns"), "{error}");
    }

    #[test]
    fn an_unknown_key_lists_the_known_ones() {
        let text = ICELAKE.replace("[cache]", "[cache]\nllc_mb = 3");
        let error = Machine::parse(&text).unwrap_err();
        assert_eq!(error.valid, "l2_kib, llc_mib");
        let error = Machine::parse("[teir.default]\nchannels = 1").unwrap_err();
        assert!(error.valid.contains("tier"), "{error}");
        assert_eq!(error.line, 1);
    }

    #[test]
    fn text_where_a_number_belongs_is_refused() {
        let error = Machine::parse("[core]\nfrequency_ghz = \"fast\"").unwrap_err();
        assert_eq!((error.line, error.key.as_str()), (2, "core.frequency_ghz"));
        assert!(error.to_string().contains("not a number"));
    }
}

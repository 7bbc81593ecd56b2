//! Which machine is simulated, and which program runs on it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use pagemill_launch::meant::meant;
use pagemill_model::{Bytes, whole};
use pagemill_sim::machine::{ICELAKE, Machine};
use pagemill_sim::workload::{self, GIB, Workload};

use super::placement::size;
use crate::recorded;

/// The machine of a file, or the built-in one; with another unloaded latency of the alternate tier, ns.
///
/// # Errors
/// The file is none, or the latency is out of range.
pub fn machine(file: Option<&Path>, unloaded: Option<f64>) -> Result<Machine> {
    let machine = match file {
        None => Machine::parse(ICELAKE).context("the built-in machine")?,
        Some(path) => {
            let text =
                whole::text(path).with_context(|| format!("cannot read {}", path.display()))?;
            Machine::parse(&text).with_context(|| format!("{}", path.display()))?
        }
    };
    Ok(match unloaded {
        Some(ns) if !(1.0..=10_000.0).contains(&ns) => {
            bail!("--unloaded {ns} is out of range; valid: 1 to 10000 ns")
        }
        Some(ns) => {
            let machine = machine.with("tier.alternate.unloaded_ns", ns);
            if let Err(error) = machine.check() {
                bail!("--unloaded {ns}: {}; valid: {}", error.what, error.valid);
            }
            machine
        }
        None => machine,
    })
}

/// The machine with tiers of these sizes, `fast=2G,slow=8G`; which is the default tier is said.
///
/// # Errors
/// They are not two sizes.
pub fn sized(machine: Machine, tiers: &str) -> Result<Machine> {
    let text = tiers;
    let valid = "valid: two tiers, the faster first, such as fast=2G,slow=8G";
    let parts: Vec<&str> = text.split(',').collect();
    let [first, second] = parts.as_slice() else {
        bail!("--tiers {text}: it has {} tiers; {valid}", parts.len());
    };
    // Which tier is the default one is in the name, where the name says it.
    let faster = |part: &str| match part.split('=').next() {
        Some("fast" | "default") => Some(true),
        Some("slow" | "alternate") => Some(false),
        _ => None,
    };
    let (fast, slow) = match (faster(first), faster(second)) {
        (Some(one), Some(other)) if one == other => {
            bail!("--tiers {text}: both are the same tier by their names; {valid}")
        }
        (Some(false), _) | (_, Some(true)) => (second, first),
        _ => (first, second),
    };
    notice!("default tier (the faster one) {fast}, alternate tier {slow}");
    let mut machine = machine;
    for (key, part) in
        ["tier.default.capacity_gib", "tier.alternate.capacity_gib"].into_iter().zip([fast, slow])
    {
        let (name, size) =
            part.split_once('=').with_context(|| format!("--tiers {part}: no size; {valid}"))?;
        let size: Bytes = size.parse().with_context(|| format!("--tiers {name}"))?;
        if !(1 << 20..=1 << 46).contains(&size.0) {
            bail!("--tiers {name}: {}; valid: 1M to 64T", size.plain());
        }
        machine = machine.with(key, size.0 as f64 / GIB);
    }
    Ok(machine)
}

/// Refuses a program that is larger than both tiers, whose sizes are those of `whose`.
///
/// # Errors
/// It does not fit.
pub fn fits(machine: &Machine, load: &Workload, whose: &str) -> Result<()> {
    let room =
        machine.get("tier.default.capacity_gib") + machine.get("tier.alternate.capacity_gib");
    if load.bytes() <= room * GIB {
        return Ok(());
    }
    bail!("{whose}: {} of {} do not fit into {}", size(load.bytes()), load.name, size(room * GIB));
}

/// A program by name, or of a recording, which does between two reads what `like` does; with so many threads, where
/// that is said.
///
/// # Errors
/// There is none of this name, or the recording does not tell how often memory was accessed.
pub fn program(
    machine: &Machine,
    name: &str,
    like: Option<&str>,
    threads: Option<u16>,
) -> Result<Workload> {
    let named = |name: &str| {
        workload::named(name, machine).with_context(|| {
            let meant = meant(name, workload::names());
            let valid = workload::names().collect::<Vec<_>>().join(", ");
            format!("there is no workload {name:?}{meant}; valid: {valid}")
        })
    };
    let path = Path::new(name);
    let mut load = if path.is_dir() {
        let like = named(like.unwrap_or("zipf"))?;
        let (load, guessed) = recorded::program(path, &like)?;
        if guessed && threads.is_none() {
            notice!(
                "{} does not say how many threads the program had: {}, as in {} (--threads N)",
                path.display(),
                load.cores,
                like.name
            );
        }
        load
    } else {
        let hint = if name.contains('/') { " or the directory of a recording" } else { "" };
        let load = named(name).map_err(|error| anyhow::anyhow!("{error:#}{hint}"))?;
        if like.is_some() {
            bail!("--as says what a recording does not; {} is none", load.name);
        }
        load
    };
    load.cores = threads.map_or(load.cores, usize::from);
    Ok(load)
}

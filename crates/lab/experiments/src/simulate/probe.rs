//! The memory nodes of this machine, measured, as a machine file.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pagemill_control::tier::Tiers;
use pagemill_control::tier::curve::{self, Curve, CurveSetup};
use pagemill_kernel::Linux;
use pagemill_kernel::nodes::Node;
use pagemill_kernel::process::scheduling::AffinityGuard;
use pagemill_launch::progress::Progress;
use pagemill_model::page::HUGE;
use pagemill_sim::machine::{ICELAKE, Machine};

/// Bytes of the chaser's ring, at least and at most.
const RING: (usize, usize) = (64 << 20, 1 << 30);
/// Bytes of each reader's buffer.
const BUFFER: usize = 32 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// A tier, with what reads it.
struct Tier {
    name: &'static str,
    node: Node,
    processors: Vec<u32>,
}

/// Measures latency against bandwidth of these nodes, or of the pair that there is, `time` a point of a curve; the text
/// of the machine file.
///
/// # Errors
/// There are no such nodes, they have no free memory or processors, or what was measured is no machine.
pub fn machine_file(linux: &Linux, nodes: &[u32], time: Duration) -> Result<String> {
    let found = tiers(linux, nodes)?;
    if let [one] = &found[..] {
        notice!(
            "only one tier was found, node {}; the file's alternate tier is as much slower \
             as the built-in machine's",
            one.node.id
        );
    }
    let built_in = Machine::parse(ICELAKE).context("the built-in machine")?;
    let cache = linux.cache_bytes(3);
    let mut machine = host(linux, as_built_in(&built_in)?, cache)?;
    let mut curves = String::new();
    for tier in &found {
        let way = curve_setup(tier, cache, time)?;
        let mut steps = Progress::logged("tier probe");
        let curve = curve::measure(&way, |point| {
            steps
                .say(&format!("node {}: {:.1} GB/s, {:.0} ns", way.node, point.gb_per_s, point.ns));
        });
        drop(steps);
        let curve = curve.with_context(|| format!("node {}", way.node))?;
        machine = with_tier(&machine, tier, &curve)?;
        curves.push_str(&comment(tier, &way, &curve));
    }
    if found.len() == 1 {
        machine = without_alternate(&built_in, machine)?;
    }
    if let Err(error) = machine.check() {
        bail!(
            "what was measured is no machine: {error:#} (were the reads served by a cache, or on a busy machine?)"
        );
    }
    Ok(format!("{}{curves}{}", header(&found), machine.text()))
}

fn header(found: &[Tier]) -> String {
    let tiers = match found {
        [_] => "Only one tier was found.",
        _ => "Both tiers were measured.",
    };
    format!(
        "# A machine file of pagemill simulate --machine, by pagemill tier probe. {tiers}\n\
         # Values whose source begins with \"not measured\" are the built-in machine's.\n"
    )
}

/// The tiers that there are, the default one first, each with the processors that read it.
fn tiers(linux: &Linux, named: &[u32]) -> Result<Vec<Tier>> {
    let nodes = linux.memory_nodes()?;
    let chosen = match *named {
        [] if nodes.len() < 2 => nodes.iter().map(|node| node.id).collect(),
        [] => Tiers::choose(&nodes, [None, None])
            .map_err(|error| anyhow::anyhow!("{error:#}").context("say which two: --nodes A,B"))?
            .0
            .to_vec(),
        [default, alternate] => Tiers::choose(&nodes, [Some(default), Some(alternate)])?.0.to_vec(),
        _ => bail!(
            "--nodes takes the node of the default tier and that of the alternate one: --nodes 0,1"
        ),
    };
    ensure!(!chosen.is_empty(), "this kernel tells no memory nodes (it is built without NUMA)");
    let node = |id: u32| nodes.iter().find(|node| node.id == id).cloned().context("no such node");
    // Both tiers are read from where the program would run, which is at the default one.
    let default = node(chosen[0])?;
    let processors = processors(&nodes, &default)?;
    let names = ["default", "alternate"];
    let tier = |(name, id): (&'static str, &u32)| {
        Ok(Tier { name, node: node(*id)?, processors: processors.clone() })
    };
    names.into_iter().zip(&chosen).map(tier).collect()
}

/// The processors of a node, or of the nearest that has some, which this process may use.
fn processors(nodes: &[Node], default: &Node) -> Result<Vec<u32>> {
    let mut near: Vec<&Node> = nodes.iter().filter(|node| !node.cpus.is_empty()).collect();
    near.sort_by_key(|node| {
        (default.distances.get(&node.id).copied().unwrap_or(u64::MAX), node.id)
    });
    let own = std::iter::once(default).filter(|node| !node.cpus.is_empty());
    let node = own.chain(near).next().context("no node has processors")?;
    let usable = |processor: &u32| AffinityGuard::to(&[*processor]).is_some();
    let processors: Vec<u32> = node.cpus.iter().copied().filter(usable).collect();
    ensure!(!processors.is_empty(), "this process may run on no processor of node {}", node.id);
    Ok(processors)
}

/// How a tier is measured: with as many readers as its free memory has room for.
fn curve_setup(tier: &Tier, cache: Option<u64>, time: Duration) -> Result<CurveSetup> {
    let cache = usize::try_from(cache.unwrap_or(0))?;
    let free = usize::try_from(tier.node.free)?;
    let ring = (4 * cache).clamp(RING.0, RING.1).next_power_of_two();
    ensure!(
        free / 2 > ring,
        "node {} has {} MiB free, and {} are needed to see past the caches",
        tier.node.id,
        free >> 20,
        (2 * ring) >> 20
    );
    let room = (free / 2 - ring) / BUFFER;
    let processors: Vec<u32> = tier.processors.iter().copied().take(1 + room).collect();
    // A few readers must not live in the caches, either.
    let buffer = BUFFER.max(ring / processors.len()).next_multiple_of(HUGE as usize);
    let buffer = if buffer * processors.len() > free / 2 { BUFFER } else { buffer };
    Ok(CurveSetup { node: tier.node.id, processors, ring, buffer, time })
}

/// The built-in machine, as one of which nothing was measured.
fn as_built_in(machine: &Machine) -> Result<Machine> {
    let mut text = machine.clone();
    for parameter in pagemill_sim::machine::PARAMETERS {
        let key = parameter.name();
        let source = format!("not measured: {}", machine.source(&key));
        text = text.found(&key, machine.get(&key), &source)?;
    }
    Ok(text)
}

/// What the kernel says of processor and caches.
fn host(linux: &Linux, machine: Machine, cache: Option<u64>) -> Result<Machine> {
    let mut machine = machine;
    let mut take = |key: &str, value: Option<f64>, source: &str| -> Result<()> {
        if let Some(value) = value.filter(|value| *value > 0.0) {
            machine = machine.found(key, (value * 1000.0).round() / 1000.0, source)?;
        }
        Ok(())
    };
    take(
        "core.frequency_ghz",
        linux.mhz().ok().flatten().map(|clock| clock as f64 / 1000.0),
        "/proc/cpuinfo: cpu MHz of the first processor",
    )?;
    let second = linux.cache_bytes(2).map(|bytes| bytes as f64 / 1024.0);
    take("cache.l2_kib", second, "the kernel's account of the first processor's caches")?;
    let last = cache.map(|bytes| bytes as f64 / (1 << 20) as f64);
    take("cache.llc_mib", last, "the kernel's account of the first processor's caches")?;
    Ok(machine)
}

/// The machine with a tier as measured.
fn with_tier(machine: &Machine, tier: &Tier, curve: &Curve) -> Result<Machine> {
    let key = |name: &str| format!("tier.{}.{name}", tier.name);
    let node = tier.node.id;
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    // What a channel carries at most: a line for each burst.
    let channel = 64.0 / (machine.get("dram.burst") * machine.get("dram.clock_ns"));
    let channels = (curve.peak() / channel).ceil().clamp(1.0, 64.0);
    let gib = (tier.node.total as f64 / GIB * 1000.0).floor() / 1000.0;
    let peak = format!(
        "measured: {:.1} GB/s were read from node {node} by {} processors; a channel of [dram] \
         carries {channel:.1}, so there are at least these",
        curve.peak(),
        curve.points.last().map_or(1, |point| point.readers + 1)
    );
    let mut machine = machine
        .found(
            &key("unloaded_ns"),
            tenth(curve.unloaded_ns()),
            &format!("measured: a pointer chase in node {node}"),
        )?
        .found(&key("channels"), channels, &peak)?
        .found(&key("capacity_gib"), gib, &format!("memory of node {node}"))?;
    if tier.name == "default" {
        machine = machine.found("kernel.node_gib", gib, &format!("memory of node {node}"))?;
    }
    Ok(machine)
}

/// The machine with an alternate tier that is as much slower than the default one as the built-in machine's.
fn without_alternate(built_in: &Machine, machine: Machine) -> Result<Machine> {
    let key = "tier.alternate.unloaded_ns";
    let ratio = built_in.get(key) / built_in.get("tier.default.unloaded_ns");
    let ns = (machine.get("tier.default.unloaded_ns") * ratio * 10.0).round() / 10.0;
    let source = "not measured: there is one tier here; the default tier's, times the built-in machine's ratio of both";
    Ok(machine.found(key, ns, source)?)
}

/// A curve, as lines that a reader of the file passes over.
fn comment(tier: &Tier, way: &CurveSetup, curve: &Curve) -> String {
    let pages = if curve.huge { "huge" } else { "base" };
    let mut text = format!(
        "#\n# {} tier: node {}, read from processor {}, on {pages} pages; loaded by {} others of \
         the same node\n#   readers  share    GB/s      ns\n",
        tier.name,
        way.node,
        way.processors[0],
        way.processors.len() - 1
    );
    for point in &curve.points {
        text.push_str(&format!(
            "#   {:7}  {:5.2}  {:6.1}  {:6.1}\n",
            point.readers, point.share, point.gb_per_s, point.ns
        ));
    }
    text
}

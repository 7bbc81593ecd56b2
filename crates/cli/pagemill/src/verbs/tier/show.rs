//! What `tier doctor`, `tier status` and `tier replay` print.

use anyhow::Result;
use pagemill_kernel::nodes::Node;
use pagemill_model::Bytes;
use serde_json::json;

use pagemill_control::capability::Status as Level;
use pagemill_control::tier::doctor::Answer;
use pagemill_control::tier::status::Status;

/// What a replay came to.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Replayed {
    pub(super) policy: String,
    pub(super) views: u64,
    pub(super) decisions: u64,
    pub(super) same: u64,
    pub(super) moves: u64,
    /// The first quantum that was decided differently.
    pub(super) first_difference: Option<u64>,
}

/// The page of `tier doctor`.
pub fn doctor(answer: &Answer, as_json: bool) -> Result<()> {
    if as_json {
        crate::answer::print("tier-doctor", answer)?;
        return Ok(());
    }
    let can = |can: bool| if can { "yes" } else { "no" };
    println!("pagemill tier can move pages here: {}", can(answer.daemon));
    println!("the kernel would by itself:        {}", can(answer.kernel));
    for finding in &answer.findings {
        let status = match finding.status {
            Level::Ok => "ok",
            Level::Degraded => "degraded",
            Level::Missing => "missing",
        };
        println!("{status:<9} {:<14} {}", finding.name, finding.finding);
        if let Some(fix) = &finding.fix {
            println!("{:24} fix: {fix}", "");
        }
    }
    Ok(())
}

/// Both views of the tiers: the kernel's, and the daemons'.
pub fn status(nodes: &[Node], daemons: &[Status], as_json: bool) -> Result<()> {
    if as_json {
        let node = |node: &Node| {
            json!({
                "node": node.id,
                "processors": node.cpus.len(),
                "total_bytes": node.total,
                "free_bytes": node.free,
                "kernel_tier": node.tier,
                "read_latency_ns": node.access.read_latency,
                "promoted_pages": node.promoted(),
                "demoted_pages": node.demoted(),
            })
        };
        let nodes: Vec<_> = nodes.iter().map(node).collect();
        crate::answer::print("tier-status", json!({ "nodes": nodes, "daemons": daemons }))?;
        return Ok(());
    }
    print_nodes(nodes);
    if daemons.is_empty() {
        println!("no pagemill tier runs");
    }
    daemons.iter().for_each(print_daemon);
    Ok(())
}

fn bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

fn print_nodes(nodes: &[Node]) {
    let absent = |value: Option<u64>, unit: &str| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
    };
    println!(
        "node  total       free        firmware  kernel tier  promoted here  demoted from here"
    );
    for node in nodes {
        println!(
            "{:<4}  {}  {}  {:>8}  {:>11}  {:>13}  {:>17}",
            node.id,
            bytes(node.total),
            bytes(node.free),
            absent(node.access.read_latency, " ns"),
            absent(node.tier.map(u64::from), ""),
            absent(node.promoted(), ""),
            absent(node.demoted(), ""),
        );
    }
    println!("promoted, demoted: pages, by the kernel, since boot");
}

fn print_daemon(daemon: &Status) {
    let dry = if daemon.dry { ", dry" } else { "" };
    println!(
        "\npagemill tier {}: {}{dry}, tracked by {}, {} quanta in {:.0} s, {:.2} % of a core (and the kernel's \
         sampling {})",
        daemon.pid,
        daemon.policy,
        daemon.tracker,
        daemon.quantum + 1,
        daemon.seconds,
        daemon.cpu * 100.0,
        daemon
            .tracker_cpu
            .map_or_else(|| "unknown".to_owned(), |cpu| format!("{:.2} %", cpu * 100.0)),
    );
    if let Some(share) = daemon.share {
        println!("p = {share:.3}: that part of the reads is the default tier's");
    }
    println!(
        "tier       node  latency  95 % interval   tracked     came        left        ping-pong"
    );
    for tier in &daemon.tiers {
        let latency = |value: f64| format!("{value:.0} ns");
        println!(
            "{:<9}  {:<4}  {:>7}  {:<13}  {}  {}  {}  {}",
            tier.name,
            tier.node,
            tier.latency_ns.map_or_else(|| "-".to_owned(), latency),
            tier.latency_interval_ns
                .map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.0} to {high:.0} ns")),
            bytes(tier.tracked_bytes),
            bytes(tier.came_bytes),
            bytes(tier.left_bytes),
            bytes(tier.ping_pong_bytes),
        );
    }
    println!("process           on default  on alternate  promoted    demoted     ping-pong   p");
    for process in &daemon.processes {
        println!(
            "{:<16}  {}  {}    {}  {}  {}  {}",
            format!("{} {}", process.pid, process.comm),
            bytes(process.default_bytes),
            bytes(process.alternate_bytes),
            bytes(process.promoted_bytes),
            bytes(process.demoted_bytes),
            bytes(process.ping_pong_bytes),
            process.share.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
        );
    }
    if !daemon.kept.is_empty() {
        let kept: Vec<String> =
            daemon.kept.iter().map(|(why, pages)| format!("{why} {pages}")).collect();
        println!("pages that stayed: {}", kept.join(", "));
    }
    println!("last decision: {}", daemon.why);
}

/// What a replay came to.
pub fn replayed(replayed: &Replayed, as_json: bool) -> Result<()> {
    if as_json {
        crate::answer::print("tier-replay", replayed)?;
        return Ok(());
    }
    println!(
        "{}: {} of {} decisions over {} views are the same; {} moves were decided",
        replayed.policy, replayed.same, replayed.decisions, replayed.views, replayed.moves
    );
    if let Some(quantum) = replayed.first_difference {
        println!("the first that differs is that of quantum {quantum}");
    }
    Ok(())
}

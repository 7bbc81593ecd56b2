//! Both views of the tiers, the kernel's and the daemons', as text and JSON: what `tier status` and `live` show.

use pagemill_kernel::nodes::Node;
use pagemill_kernel::{Linux, settings::loan};
use pagemill_model::Bytes;
use serde_json::{Value, json};

use super::status::{Status, all};

/// The answer as JSON: an object of lists of nodes and of daemons.
pub fn json(nodes: &[Node], daemons: &[Status]) -> Value {
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
    json!({ "nodes": nodes, "daemons": daemons })
}

/// The same as tables.
pub fn text(nodes: &[Node], daemons: &[Status]) -> String {
    let mut text = String::new();
    add_nodes(&mut text, nodes);
    if daemons.is_empty() {
        text.push_str("no pagemill tier runs\n");
    }
    daemons.iter().for_each(|daemon| add_daemon(&mut text, daemon));
    text
}

/// Both in a line each, of a machine with two nodes or a daemon; else one line.
pub fn lines(linux: &Linux) -> Vec<String> {
    let size = |bytes: u64| Bytes(bytes).plain();
    let nodes = linux.memory_nodes().unwrap_or_default();
    let mut lines: Vec<String> = nodes
        .iter()
        .map(|node| {
            let tier = node.tier.map_or_else(String::new, |tier| format!(", kernel tier {tier}"));
            let moved = node.promoted().zip(node.demoted()).filter(|moved| *moved != (0, 0));
            let moved = moved.map_or_else(String::new, |(up, down)| {
                format!(", {up} pages promoted here, {down} demoted from here")
            });
            format!(
                "node {}: {} of {} free{tier}{moved}",
                node.id,
                size(node.free),
                size(node.total)
            )
        })
        .collect();
    let daemons = all(&loan::directory(linux));
    if nodes.len() < 2 && daemons.is_empty() {
        return match lines.pop() {
            Some(line) => vec![format!("one: {line}")],
            None => vec!["one: this kernel has no memory nodes".into()],
        };
    }
    for daemon in &daemons {
        let dry = if daemon.dry { ", dry" } else { "" };
        let share = daemon.share.map_or_else(String::new, |share| {
            format!(", {:.0} % of the reads on the default tier", share * 100.0)
        });
        lines.push(format!("daemon {}: {}{dry}{share}; {}", daemon.pid, daemon.policy, daemon.why));
        lines.extend(daemon.tiers.iter().map(|tier| {
            format!(
                "  {}: {} tracked, {} came, {} left",
                tier.name,
                size(tier.tracked_bytes),
                size(tier.came_bytes),
                size(tier.left_bytes)
            )
        }));
    }
    if daemons.is_empty() {
        lines.push("no pagemill tier runs".into());
    }
    lines
}

fn bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

fn add_nodes(text: &mut String, nodes: &[Node]) {
    let absent = |value: Option<u64>, unit: &str| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
    };
    text.push_str(
        "node  total       free        firmware  kernel tier  promoted here  demoted from here\n",
    );
    for node in nodes {
        text.push_str(&format!(
            "{:<4}  {}  {}  {:>8}  {:>11}  {:>13}  {:>17}\n",
            node.id,
            bytes(node.total),
            bytes(node.free),
            absent(node.access.read_latency, " ns"),
            absent(node.tier.map(u64::from), ""),
            absent(node.promoted(), ""),
            absent(node.demoted(), ""),
        ));
    }
    text.push_str("promoted, demoted: pages, by the kernel, since boot\n");
}

fn add_daemon(text: &mut String, daemon: &Status) {
    let dry = if daemon.dry { ", dry" } else { "" };
    text.push_str(&format!(
        "\npagemill tier {}: {}{dry}, tracked by {}, {} quanta in {:.0} s, {:.2} % of a core (and the kernel's \
         sampling {})\n",
        daemon.pid,
        daemon.policy,
        daemon.tracker,
        daemon.quantum + 1,
        daemon.seconds,
        daemon.cpu * 100.0,
        daemon
            .tracker_cpu
            .map_or_else(|| "unknown".to_owned(), |cpu| format!("{:.2} %", cpu * 100.0)),
    ));
    if let Some(share) = daemon.share {
        text.push_str(&format!("p = {share:.3}: that part of the reads is the default tier's\n"));
    }
    text.push_str(
        "tier       node  latency  95 % interval   tracked     came        left        ping-pong\n",
    );
    for tier in &daemon.tiers {
        let latency = |value: f64| format!("{value:.0} ns");
        text.push_str(&format!(
            "{:<9}  {:<4}  {:>7}  {:<13}  {}  {}  {}  {}\n",
            tier.name,
            tier.node,
            tier.latency_ns.map_or_else(|| "-".to_owned(), latency),
            tier.latency_interval_ns
                .map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.0} to {high:.0} ns")),
            bytes(tier.tracked_bytes),
            bytes(tier.came_bytes),
            bytes(tier.left_bytes),
            bytes(tier.ping_pong_bytes),
        ));
    }
    text.push_str(
        "process           on default  on alternate  promoted    demoted     ping-pong   p\n",
    );
    for process in &daemon.processes {
        text.push_str(&format!(
            "{:<16}  {}  {}    {}  {}  {}  {}\n",
            format!("{} {}", process.pid, process.comm),
            bytes(process.default_bytes),
            bytes(process.alternate_bytes),
            bytes(process.promoted_bytes),
            bytes(process.demoted_bytes),
            bytes(process.ping_pong_bytes),
            process.share.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
        ));
    }
    if !daemon.kept.is_empty() {
        let kept: Vec<String> =
            daemon.kept.iter().map(|(why, pages)| format!("{why} {pages}")).collect();
        text.push_str(&format!("pages that stayed: {}\n", kept.join(", ")));
    }
    text.push_str(&format!("last decision: {}\n", daemon.why));
}

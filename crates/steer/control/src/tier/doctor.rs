//! Why pages can or cannot move between memory tiers here, and what to change: one finding a cause.

use pagemill_kernel::memory::page_idle::Frames;
use pagemill_kernel::nodes::Node;
use pagemill_kernel::nodes::numa_balancing::Balancing;
use pagemill_kernel::nodes::tier_latency::TierCounters;
use pagemill_kernel::settings::damon::{self, State};
use pagemill_kernel::trace::load_samples::Loads;
use pagemill_kernel::{Kind, Linux, nodes::move_pages, settings::loan};
use pagemill_model::Pid;
use serde::Serialize;

use super::Tiers;
use crate::capability::Status;

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name; never changes.
    pub name: &'static str,
    /// `missing` keeps pages from moving at all, `degraded` in part.
    pub status: Status,
    /// What was seen.
    pub finding: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What came of looking.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// Whether this daemon can move pages here.
    pub daemon: bool,
    /// Whether the kernel would by itself, as it is set.
    pub kernel: bool,
    /// The causes, most important first.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// As a page of text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let can = |can: bool| if can { "yes" } else { "no" };
        text.push_str(&format!("pagemill tier can move pages here: {}\n", can(self.daemon)));
        text.push_str(&format!("the kernel would by itself:        {}\n", can(self.kernel)));
        for finding in &self.findings {
            let status = match finding.status {
                Status::Ok => "ok",
                Status::Degraded => "degraded",
                Status::Missing => "missing",
            };
            text.push_str(&format!("{status:<9} {:<14} {}\n", finding.name, finding.finding));
            if let Some(fix) = &finding.fix {
                text.push_str(&format!("{:24} fix: {fix}\n", ""));
            }
        }
        text
    }
}

/// What to do on a machine with one node.
pub const ONE_NODE: &str = "pagemill simulate gups --policy tpp,tpp+colloid   shows what two tiers would do; \
     ./pagemill test --guest   runs the daemon in a virtual machine that has them";

fn finding(name: &'static str, status: Status, what: impl Into<String>, fix: &str) -> Finding {
    let fix = (!fix.is_empty()).then(|| fix.to_owned());
    Finding { name, status, finding: what.into(), fix }
}

/// Examines everything. Nothing that is tried outlives this.
///
/// # Errors
/// The nodes cannot be read.
pub fn examine(linux: &Linux, named: [Option<u32>; 2]) -> pagemill_kernel::Result<Examination> {
    let nodes = linux.memory_nodes()?;
    let tiers = Tiers::choose(&nodes, named);
    let mut findings = vec![two_nodes(&nodes, &tiers)];
    let mut kernel = false;
    if let Ok(Tiers([default, alternate])) = tiers {
        let node = |id: u32| nodes.iter().find(|node| node.id == id);
        let (Some(fast), Some(slow)) = (node(default), node(alternate)) else {
            return Ok(Examination { daemon: false, kernel: false, findings });
        };
        let balancing = linux.numa_balancing()?;
        let kernels = [apart(fast, slow), promotion(&balancing), demotion(&balancing)];
        kernel = kernels.iter().all(|finding| finding.status == Status::Ok);
        findings.push(firmware(fast, slow));
        findings.extend(kernels);
        findings.extend(room(slow));
    }
    findings.push(moving(findings.as_ptr() as u64 & !4095));
    findings.extend(access_sources(linux));
    findings.push(latency(linux));
    findings.extend(left_over(linux)?);
    let blocked = findings.iter().any(|finding| finding.status == Status::Missing);
    findings.sort_by_key(|finding| match finding.status {
        Status::Missing => 0,
        Status::Degraded => 1,
        Status::Ok => 2,
    });
    Ok(Examination { daemon: !blocked, kernel, findings })
}

/// Whether there are two nodes to choose.
fn two_nodes(nodes: &[Node], tiers: &anyhow::Result<Tiers>) -> Finding {
    let named = |node: &Node| {
        let cpus = if node.cpus.is_empty() { "no processors" } else { "processors" };
        format!("node {} {} MiB, {cpus}", node.id, node.total >> 20)
    };
    match tiers {
        _ if nodes.len() < 2 => {
            let what = format!("{} memory node: there is nowhere to move to", nodes.len().max(1));
            finding("nodes", Status::Missing, what, ONE_NODE)
        }
        Err(error) => {
            let fix = "name the two: --default-node N --alternate-node M";
            finding("nodes", Status::Missing, error.to_string(), fix)
        }
        Ok(_) => {
            let list: Vec<String> = nodes.iter().map(named).collect();
            finding("nodes", Status::Ok, list.join("; "), "")
        }
    }
}

/// What the firmware says of latencies.
fn firmware(fast: &Node, slow: &Node) -> Finding {
    let (default, alternate) = (fast.id, slow.id);
    match (fast.access.read_latency, slow.access.read_latency) {
        (Some(fast), Some(slow)) => finding(
            "latency-table",
            Status::Ok,
            format!("firmware says {fast} ns for node {default}, {slow} ns for node {alternate}"),
            "",
        ),
        _ => finding(
            "latency-table",
            Status::Degraded,
            "firmware has no HMAT: the kernel guesses which memory is slower",
            "name the tiers: --default-node, --alternate-node (a QEMU guest: -machine hmat=on and -numa hmat-lb)",
        ),
    }
}

/// Whether the kernel takes the two for tiers.
fn apart(fast: &Node, slow: &Node) -> Finding {
    match (fast.tier, slow.tier) {
        (Some(a), Some(b)) if a == b => finding(
            "kernel-tiers",
            Status::Degraded,
            format!(
                "both nodes are in the kernel's tier {a}: it neither promotes nor demotes between them"
            ),
            "pagemill tier moves pages all the same; for the kernel, the slow node has to be onlined through \
             dax/kmem or described in the HMAT",
        ),
        (Some(a), Some(b)) => {
            let what = format!("node {} is in tier {a}, node {} in tier {b}", fast.id, slow.id);
            finding("kernel-tiers", Status::Ok, what, "")
        }
        _ => finding(
            "kernel-tiers",
            Status::Degraded,
            "this kernel has no memory tiers",
            "boot kernel 6.1 or newer",
        ),
    }
}

/// Whether the kernel promotes.
fn promotion(balancing: &Balancing) -> Finding {
    match balancing.mode {
        None => finding(
            "promotion",
            Status::Degraded,
            "this kernel has no NUMA balancing",
            "boot a kernel with CONFIG_NUMA_BALANCING=y",
        ),
        Some(mode) if mode & 2 != 0 => {
            finding("promotion", Status::Ok, "the kernel promotes by hint faults", "")
        }
        Some(mode) => finding(
            "promotion",
            Status::Degraded,
            format!("numa_balancing is {mode}: the kernel does not promote"),
            "sudo sysctl kernel.numa_balancing=2   (pagemill tier --policy tpp does so while it runs)",
        ),
    }
}

/// Whether reclaim demotes.
fn demotion(balancing: &Balancing) -> Finding {
    match balancing.demotion {
        None => finding(
            "demotion",
            Status::Degraded,
            "this kernel does not demote",
            "boot kernel 5.15 or newer",
        ),
        Some(true) => finding("demotion", Status::Ok, "reclaim demotes", ""),
        Some(false) => finding(
            "demotion",
            Status::Degraded,
            "demotion is off: cold pages stay until they are swapped",
            "echo 1 | sudo tee /sys/kernel/mm/numa/demotion_enabled",
        ),
    }
}

/// Whether the slow node has next to no room.
fn room(slow: &Node) -> Option<Finding> {
    let (id, free) = (slow.id, slow.free >> 20);
    (slow.free < slow.total / 50).then(|| {
        finding(
            "room",
            Status::Degraded,
            format!("node {id} has {free} MiB free: nothing can be demoted to it"),
            "free memory there, or bind less to it (numactl --hardware; /proc/PID/numa_maps)",
        )
    })
}

/// Whether pages can be found and moved; `page` is one of ours.
fn moving(page: u64) -> Finding {
    match move_pages::locate(Pid::own(), &[page]) {
        Ok(_) => finding("move-pages", Status::Ok, "pages can be found and moved", ""),
        Err(error) => finding(
            "move-pages",
            Status::Missing,
            error.to_string(),
            "run as root; in a container, allow move_pages(2) in the seccomp profile",
        ),
    }
}

/// What can tell which pages are hot.
fn access_sources(linux: &Linux) -> [Finding; 3] {
    let idle = Frames::open(linux).map(|_| "frames can be marked idle (--track idle)".into());
    let loads = Loads::open(linux).map(|loads| format!("by {} (--track samples)", loads.name()));
    let others = [access_source("idle-bits", idle), access_source("load-samples", loads)];
    let mut damon = damon(linux);
    // Without DAMON another source of accesses will do; one that somebody has set up is to be said.
    let stands_in = others.iter().any(|source| source.status == Status::Ok);
    if damon.status == Status::Missing && stands_in && linux.damon().is_err() {
        damon.status = Status::Degraded;
    }
    let [idle, loads] = others;
    [damon, idle, loads]
}

/// How the latencies of the tiers are measured.
fn latency(linux: &Linux) -> Finding {
    match TierCounters::open(linux) {
        Ok(counters) => {
            let what = format!("measured by the processor's counters ({})", counters.name());
            finding("latency", Status::Ok, what, "")
        }
        Err(error) => finding(
            "latency",
            Status::Degraded,
            format!("{error}; a pointer chase in each node is used"),
            "on the metal: run as root on Ice Lake or newer, or on Zen 4 or newer",
        ),
    }
}

/// Settings that a killed daemon left changed.
fn left_over(linux: &Linux) -> pagemill_kernel::Result<Option<Finding>> {
    const OURS: [&str; 3] = ["tier", "interleave", "damon-stat"];
    let directory = loan::directory(linux);
    let files = loan::left_over_files(&directory)?;
    let left = files.iter().any(|(name, _)| OURS.contains(&name.as_str()))
        || pagemill_kernel::settings::damon::left_over(&directory)?;
    Ok(left.then(|| {
        finding(
            "left-over",
            Status::Degraded,
            "a pagemill tier was killed and left settings changed",
            "sudo pagemill tier restore   (every start of pagemill tier does so too)",
        )
    }))
}

/// A source of accesses beside DAMON: without it nothing is lost.
fn access_source(name: &'static str, opened: pagemill_kernel::Result<String>) -> Finding {
    match opened {
        Ok(what) => finding(name, Status::Ok, what, ""),
        Err(error) => {
            finding(name, Status::Degraded, error.to_string(), "not needed where DAMON is")
        }
    }
}

fn damon(linux: &Linux) -> Finding {
    const CONFIG: &str =
        "boot a kernel with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y (Debian's has both)";
    match linux.damon() {
        Err(error) if error.kind() == Kind::Permission => {
            finding("damon", Status::Missing, error.to_string(), "run as root")
        }
        Err(error) => finding("damon", Status::Missing, error.to_string(), CONFIG),
        Ok(State::Busy { threads, running }) => finding(
            "damon",
            Status::Missing,
            match (threads, running) {
                (1, 0) => "somebody has set up a thread of DAMON, which rests".to_owned(),
                (1, _) => "somebody has set up a thread of DAMON, and it runs".to_owned(),
                _ => {
                    format!("somebody has set up {threads} threads of DAMON; {running} of them run")
                }
            },
            "damo stop   (or: echo off > …/kdamonds/0/state; echo 0 > /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)",
        ),
        Ok(State::Free { stat }) => {
            let pause = if stat { "; DAMON_STAT would be paused" } else { "" };
            match damon::probe(linux) {
                Ok(()) => finding("damon", Status::Ok, format!("a process was watched{pause}"), ""),
                Err(error) if error.kind() == Kind::Permission => {
                    finding("damon", Status::Missing, error.to_string(), "run as root")
                }
                Err(error) => finding("damon", Status::Missing, error.to_string(), CONFIG),
            }
        }
    }
}

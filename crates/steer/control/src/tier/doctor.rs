//! Why pages can or cannot move between memory tiers here, and what to change: one finding a cause.

use pagemill_kernel::damon::{self, State};
use pagemill_kernel::load_samples::Loads;
use pagemill_kernel::page_idle::Frames;
use pagemill_kernel::tier_latency::TierCounters;
use pagemill_kernel::{Kind, Linux, loan, move_pages};
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
pub struct Answer {
    /// Whether this daemon can move pages here.
    pub daemon: bool,
    /// Whether the kernel would by itself, as it is set.
    pub kernel: bool,
    /// The causes, most important first.
    pub findings: Vec<Finding>,
}

/// What to do on a machine with one node.
pub const ONE_NODE: &str = "pagemill simulate gups --policy tpp,tpp+colloid   shows what two tiers would do; \
     ./pagemill test --guest   runs the daemon in a virtual machine that has them";

fn finding(name: &'static str, status: Status, what: impl Into<String>, fix: &str) -> Finding {
    let fix = (!fix.is_empty()).then(|| fix.to_owned());
    Finding { name, status, finding: what.into(), fix }
}

/// Looks at everything. Nothing that is tried outlives the look.
pub fn look(linux: &Linux, named: [Option<u32>; 2]) -> pagemill_kernel::Result<Answer> {
    use Status::{Degraded, Missing, Ok as Fine};
    let mut findings = Vec::new();
    let nodes = linux.memory_nodes()?;
    let tiers = Tiers::choose(&nodes, named);
    let list: Vec<String> = nodes
        .iter()
        .map(|node| {
            let cpus = if node.cpus.is_empty() { "no processors" } else { "processors" };
            format!("node {} {} MiB, {cpus}", node.id, node.total >> 20)
        })
        .collect();
    match &tiers {
        _ if nodes.len() < 2 => findings.push(finding(
            "nodes",
            Missing,
            format!("{} memory node: there is nowhere to move to", nodes.len().max(1)),
            ONE_NODE,
        )),
        Err(error) => {
            let fix = "name the two: --default-node N --alternate-node M";
            findings.push(finding("nodes", Missing, error.to_string(), fix));
        }
        Ok(_) => findings.push(finding("nodes", Fine, list.join("; "), "")),
    }
    let mut kernel = false;
    if let Ok(Tiers([default, alternate])) = tiers {
        let node = |id: u32| nodes.iter().find(|node| node.id == id);
        let (Some(fast), Some(slow)) = (node(default), node(alternate)) else {
            return Ok(Answer { daemon: false, kernel: false, findings });
        };
        let told = match (fast.access.read_latency, slow.access.read_latency) {
            (Some(fast), Some(slow)) => finding(
                "latency-table",
                Fine,
                format!(
                    "firmware says {fast} ns for node {default}, {slow} ns for node {alternate}"
                ),
                "",
            ),
            _ => finding(
                "latency-table",
                Degraded,
                "firmware has no HMAT: the kernel guesses which memory is slower",
                "name the tiers: --default-node, --alternate-node (a QEMU guest: -machine hmat=on and -numa hmat-lb)",
            ),
        };
        findings.push(told);
        let apart = match (fast.tier, slow.tier) {
            (Some(a), Some(b)) if a == b => finding(
                "kernel-tiers",
                Degraded,
                format!(
                    "both nodes are in the kernel's tier {a}: it neither promotes nor demotes between them"
                ),
                "pagemill tier moves pages all the same; for the kernel, the slow node has to be onlined through dax/kmem or described in the HMAT",
            ),
            (Some(a), Some(b)) => finding(
                "kernel-tiers",
                Fine,
                format!("node {default} is in tier {a}, node {alternate} in tier {b}"),
                "",
            ),
            _ => finding(
                "kernel-tiers",
                Degraded,
                "this kernel has no memory tiers",
                "boot kernel 6.1 or newer",
            ),
        };
        let apart_ok = apart.status == Fine;
        findings.push(apart);
        let balancing = linux.numa_balancing()?;
        let promotes = balancing.mode.is_some_and(|mode| mode & 2 != 0);
        findings.push(match balancing.mode {
            None => finding("promotion", Degraded, "this kernel has no NUMA balancing", "boot a kernel with CONFIG_NUMA_BALANCING=y"),
            Some(_) if promotes => finding("promotion", Fine, "the kernel promotes by hint faults", ""),
            Some(mode) => finding(
                "promotion",
                Degraded,
                format!("numa_balancing is {mode}: the kernel does not promote"),
                "sudo sysctl kernel.numa_balancing=2   (pagemill tier --policy tpp does so while it runs)",
            ),
        });
        findings.push(match balancing.demotion {
            None => finding(
                "demotion",
                Degraded,
                "this kernel does not demote",
                "boot kernel 5.15 or newer",
            ),
            Some(true) => finding("demotion", Fine, "reclaim demotes", ""),
            Some(false) => finding(
                "demotion",
                Degraded,
                "demotion is off: cold pages stay until they are swapped",
                "echo 1 | sudo tee /sys/kernel/mm/numa/demotion_enabled",
            ),
        });
        kernel = apart_ok && promotes && balancing.demotion == Some(true);
        let free = slow.free >> 20;
        if slow.free < slow.total / 50 {
            findings.push(finding(
                "room",
                Degraded,
                format!("node {alternate} has {free} MiB free: nothing can be demoted to it"),
                "free memory there, or bind less to it (numactl --hardware; /proc/PID/numa_maps)",
            ));
        }
    }
    findings.push(
        match move_pages::locate(std::process::id(), &[findings.as_ptr() as u64 & !4095]) {
            Ok(_) => finding("move-pages", Fine, "pages can be found and moved", ""),
            Err(error) => finding(
                "move-pages",
                Missing,
                error.to_string(),
                "run as root; in a container, allow move_pages(2) in the seccomp profile",
            ),
        },
    );
    let trackers = [
        tracker(
            "idle-bits",
            Frames::open(linux).map(|_| "frames can be marked idle (--track idle)".into()),
        ),
        tracker(
            "load-samples",
            Loads::open(linux).map(|loads| format!("by {} (--track samples)", loads.name())),
        ),
    ];
    let mut damon = damon(linux);
    // Without DAMON another tracker will do; one that somebody has set up is to be said.
    let stands_in = trackers.iter().any(|tracker| tracker.status == Fine);
    if damon.status == Missing && stands_in && linux.damon().is_err() {
        damon.status = Degraded;
    }
    findings.push(damon);
    findings.extend(trackers);
    findings.push(match TierCounters::open(linux) {
        Ok(counters) => finding(
            "latency",
            Fine,
            format!("measured by the processor's counters ({})", counters.name()),
            "",
        ),
        Err(error) => finding(
            "latency",
            Degraded,
            format!("{error}; a pointer chase in each node is used"),
            "on the metal: run as root on Ice Lake or newer, or on Zen 4 or newer",
        ),
    });
    let left = loan::left_over_files(&loan::directory(linux))?;
    let ours = ["tier", "interleave", "damon-stat"];
    if left.iter().any(|(name, _)| ours.contains(&name.as_str()))
        || pagemill_kernel::damon::left_over(&loan::directory(linux))?
    {
        findings.push(finding(
            "left-over",
            Degraded,
            "a pagemill tier was killed and left settings changed",
            "sudo pagemill tier restore   (every start of pagemill tier does so too)",
        ));
    }
    let blocked = findings.iter().any(|finding| finding.status == Missing);
    findings.sort_by_key(|finding| match finding.status {
        Missing => 0,
        Degraded => 1,
        Fine => 2,
    });
    Ok(Answer { daemon: !blocked, kernel, findings })
}

/// A tracker beside DAMON: without it nothing is lost.
fn tracker(name: &'static str, opened: pagemill_kernel::Result<String>) -> Finding {
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

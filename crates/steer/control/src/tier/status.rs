//! What a daemon says about itself: a file that it replaces whole in each quantum, which
//! `pagemill tier status` and monitoring read.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pagemill_kernel::loan;
use pagemill_kernel::nodes::Node;
use pagemill_kernel::presence::{self, Presence};
use pagemill_kernel::{Error, Result};
use pagemill_model::Pid;
use pagemill_report::exposition::{Exposition, Metric, labels};
use serde::{Deserialize, Serialize};

/// One daemon. Fields are only ever added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The daemon's process.
    pub pid: Pid,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// The policy.
    pub policy: String,
    /// Whether nothing is moved.
    pub dry: bool,
    /// How pages are moved.
    pub actuator: String,
    /// Where the latencies come from.
    pub latency_source: String,
    /// Who sees what is hot.
    pub tracker: String,
    /// Quanta so far.
    pub quantum: u64,
    /// Seconds so far.
    pub seconds: f64,
    /// Part of one core that the daemon took.
    pub cpu: f64,
    /// Part of one core that the kernel's sampling threads took, where they can be seen.
    pub tracker_cpu: Option<f64>,
    /// Part of the reads that the default tier serves.
    pub share: Option<f64>,
    /// Why the last decision was made.
    pub why: String,
    /// Both tiers, default first.
    pub tiers: Vec<Tier>,
    /// The processes.
    pub processes: Vec<Process>,
    /// Pages that were to move and did not, by the reason.
    pub kept: BTreeMap<String, u64>,
}

/// A tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tier {
    /// `default` or `alternate`.
    pub name: String,
    /// Its memory node.
    pub node: u32,
    /// Mean time of a read, ns.
    pub latency_ns: Option<f64>,
    /// Its 95 % interval.
    pub latency_interval_ns: Option<(f64, f64)>,
    /// Reads a second.
    pub reads_per_s: Option<f64>,
    /// Free memory.
    pub free_bytes: u64,
    /// Tracked memory on it.
    pub tracked_bytes: u64,
    /// What came to it through this daemon.
    pub came_bytes: u64,
    /// What left it.
    pub left_bytes: u64,
    /// What came back to it within ten quanta.
    pub ping_pong_bytes: u64,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub comm: String,
    /// Tracked memory on the default tier.
    pub default_bytes: u64,
    /// On the other one.
    pub alternate_bytes: u64,
    /// What was promoted.
    pub promoted_bytes: u64,
    /// What was demoted.
    pub demoted_bytes: u64,
    /// What went back within ten quanta.
    pub ping_pong_bytes: u64,
    /// Part of its accesses that the default tier served, of those seen lately.
    pub share: Option<f64>,
}

/// Where a daemon says what it does: `DIRECTORY/tier.PID.N.json`, beside the mark by which others tell that it lives.
/// Dropping it removes both.
pub struct Board {
    directory: PathBuf,
    mark: Presence,
}

fn path(directory: &Path, token: &str) -> PathBuf {
    directory.join(format!("{token}.json"))
}

impl Board {
    /// Makes the directory where it is missing.
    pub fn claim(directory: &Path) -> Result<Self> {
        loan::make(directory)?;
        Ok(Self { directory: directory.to_owned(), mark: Presence::claim(directory, "tier")? })
    }

    /// Replaces what it says, which is everybody's to read.
    pub fn write(&self, status: &Status) -> Result<()> {
        let target = path(&self.directory, self.mark.token());
        let fresh = target.with_extension("new");
        let written = serde_json::to_vec_pretty(status)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(&fresh, text))
            .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&fresh, &target));
        written.map_err(|error| Error::io("write", target.display(), error))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = fs::remove_file(path(&self.directory, self.mark.token()));
    }
}

/// The tokens of daemons' files, and whether each daemon still runs.
fn tokens(directory: &Path) -> impl Iterator<Item = (String, bool)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name();
        let token = name.to_str()?.strip_suffix(".json")?;
        token.starts_with("tier.").then(|| (token.to_owned(), presence::lives(directory, token)))
    })
}

/// The daemons that run. Files of those that were killed are passed over, where the reader may look at their marks.
pub fn all(directory: &Path) -> Vec<Status> {
    let running = tokens(directory).filter(|(_, lives)| *lives);
    let read = |token: &str| {
        serde_json::from_slice(
            &pagemill_model::whole::read(&path(directory, token), pagemill_model::whole::TEXT)
                .ok()?,
        )
        .ok()
    };
    let mut all: Vec<Status> = running.filter_map(|(token, _)| read(&token)).collect();
    all.sort_by_key(|status| status.pid);
    all
}

/// Removes the files of daemons that were killed.
pub fn sweep(directory: &Path) {
    for (token, _) in tokens(directory).filter(|(_, lives)| !lives) {
        // Another daemon may have been faster.
        let _ = fs::remove_file(path(directory, &token));
        presence::forget(directory, &token);
    }
}

/// All daemons and nodes in the text format of Prometheus.
pub fn prometheus(nodes: &[Node], daemons: &[Status]) -> String {
    let mut page = Page::default();
    page.metric(
        "daemons",
        "gauge",
        "Daemons that run.",
        vec![(String::new(), daemons.len() as f64)],
    );
    metrics_of_nodes(&mut page, nodes);
    metrics_of_tiers(&mut page, daemons);
    metrics_of_processes(&mut page, daemons);
    metrics_of_daemons(&mut page, daemons);
    page.0.finish()
}

/// The metrics of this module, which have a prefix of their own.
#[derive(Default)]
struct Page(Exposition);

impl Page {
    /// Adds a metric with its values, each with its labels; one without values is left out.
    fn metric(&mut self, name: &str, kind: &str, help: &str, values: Vec<(String, f64)>) {
        let kind = if kind == "counter" { Metric::Counter } else { Metric::Gauge };
        self.0.metric(&format!("pagemill_tier_{name}"), kind, help, &values);
    }
}

/// Nanoseconds in the unit of metrics: the number that reads best, not the quotient with its last binary digit.
fn seconds(nanos: f64) -> f64 {
    format!("{nanos}e-9").parse().unwrap_or(nanos / 1e9)
}

/// The label of a daemon.
fn label(status: &Status) -> String {
    format!("daemon=\"{}\"", status.pid)
}

fn metrics_of_nodes(page: &mut Page, nodes: &[Node]) {
    let by_node = |value: &dyn Fn(&Node) -> Option<u64>| -> Vec<(String, f64)> {
        let row = |node: &Node| Some((format!("node=\"{}\"", node.id), value(node)? as f64));
        nodes.iter().filter_map(row).collect()
    };
    let total = by_node(&|node| Some(node.total));
    page.metric("node_total_bytes", "gauge", "Memory of the node.", total);
    page.metric(
        "node_free_bytes",
        "gauge",
        "Free memory of the node.",
        by_node(&|node| Some(node.free)),
    );
    let row = |node: &Node| {
        let latency = seconds(node.access.read_latency? as f64);
        Some((format!("node=\"{}\"", node.id), latency))
    };
    let firmware = nodes.iter().filter_map(row).collect();
    let help = "Mean time of a read, by firmware.";
    page.metric("node_firmware_latency_seconds", "gauge", help, firmware);
    let promoted = by_node(&Node::promoted);
    page.metric("node_promoted_pages_total", "counter", "Promoted to it by the kernel.", promoted);
    let demoted = by_node(&Node::demoted);
    page.metric("node_demoted_pages_total", "counter", "Demoted from it by the kernel.", demoted);
}

fn metrics_of_tiers(page: &mut Page, daemons: &[Status]) {
    let tiers = |value: &dyn Fn(&Tier) -> Option<f64>| -> Vec<(String, f64)> {
        let of = |status: &Status| {
            let daemon = label(status);
            let row = |tier: &Tier| {
                let labels = format!("{daemon},tier=\"{}\",node=\"{}\"", tier.name, tier.node);
                Some((labels, value(tier)?))
            };
            status.tiers.iter().filter_map(row).collect::<Vec<_>>()
        };
        daemons.iter().flat_map(of).collect()
    };
    let latency = tiers(&|tier| tier.latency_ns.map(seconds));
    page.metric("latency_seconds", "gauge", "Mean time of a read.", latency);
    let low = tiers(&|tier| tier.latency_interval_ns.map(|interval| seconds(interval.0)));
    page.metric("latency_low_seconds", "gauge", "Lower end of its 95 % interval.", low);
    let high = tiers(&|tier| tier.latency_interval_ns.map(|interval| seconds(interval.1)));
    page.metric("latency_high_seconds", "gauge", "Upper end of its 95 % interval.", high);
    page.metric("reads_per_second", "gauge", "Reads.", tiers(&|tier| tier.reads_per_s));
    page.metric("free_bytes", "gauge", "Free memory.", tiers(&|tier| Some(tier.free_bytes as f64)));
    let tracked = tiers(&|tier| Some(tier.tracked_bytes as f64));
    page.metric("tracked_bytes", "gauge", "Tracked memory.", tracked);
    let came = tiers(&|tier| Some(tier.came_bytes as f64));
    page.metric("tier_came_bytes_total", "counter", "Moved to the tier.", came);
    let left = tiers(&|tier| Some(tier.left_bytes as f64));
    page.metric("tier_left_bytes_total", "counter", "Moved away from it.", left);
    let back = tiers(&|tier| Some(tier.ping_pong_bytes as f64));
    page.metric(
        "tier_ping_pong_bytes_total",
        "counter",
        "Moved back to it within ten quanta.",
        back,
    );
}

fn metrics_of_processes(page: &mut Page, daemons: &[Status]) {
    let processes = |value: &dyn Fn(&Process) -> Option<f64>| -> Vec<(String, f64)> {
        let of = |status: &Status| {
            let daemon = label(status);
            let row = |process: &Process| {
                let pid = process.pid.to_string();
                let labels = labels(&[("pid", pid.as_str()), ("comm", process.comm.as_str())]);
                let labels = format!("{daemon},{labels}");
                Some((labels, value(process)?))
            };
            status.processes.iter().filter_map(row).collect::<Vec<_>>()
        };
        daemons.iter().flat_map(of).collect()
    };
    let promoted = processes(&|process| Some(process.promoted_bytes as f64));
    page.metric("promoted_bytes_total", "counter", "Moved to the default tier.", promoted);
    let demoted = processes(&|process| Some(process.demoted_bytes as f64));
    page.metric("demoted_bytes_total", "counter", "Moved to the alternate tier.", demoted);
    let back = processes(&|process| Some(process.ping_pong_bytes as f64));
    page.metric("ping_pong_bytes_total", "counter", "Moved back within ten quanta.", back);
    let share = processes(&|process| process.share);
    page.metric("process_share", "gauge", "Part of its accesses on the default tier.", share);
}

fn metrics_of_daemons(page: &mut Page, daemons: &[Status]) {
    let whole = |value: &dyn Fn(&Status) -> Option<f64>| -> Vec<(String, f64)> {
        daemons.iter().filter_map(|status| Some((label(status), value(status)?))).collect()
    };
    page.metric("share", "gauge", "Part of the reads on the default tier.", whole(&|s| s.share));
    page.metric("cpu", "gauge", "Part of one core that the daemon takes.", whole(&|s| Some(s.cpu)));
    let sampling = whole(&|s| s.tracker_cpu);
    page.metric(
        "tracker_cpu",
        "gauge",
        "Part of one core that the kernel's sampling takes.",
        sampling,
    );
    page.metric(
        "dry",
        "gauge",
        "1 if nothing is moved.",
        whole(&|s| Some(f64::from(u8::from(s.dry)))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::Linux;

    fn status() -> Status {
        let stat = Linux::live().stat(Pid::own()).unwrap();
        Status {
            pid: stat.pid,
            started: stat.started,
            share: Some(0.75),
            tiers: vec![Tier {
                name: "default".into(),
                latency_ns: Some(108.5),
                latency_interval_ns: Some((107.0, 110.0)),
                came_bytes: 3,
                left_bytes: 2,
                ping_pong_bytes: 1,
                ..Tier::default()
            }],
            processes: vec![Process {
                pid: Pid(7),
                comm: "a\"b".into(),
                promoted_bytes: 4096,
                demoted_bytes: 8192,
                ping_pong_bytes: 512,
                share: Some(0.25),
                ..Process::default()
            }],
            ..Status::default()
        }
    }

    /// In another PID namespace a daemon's id is nobody's or another's: its mark tells that it lives, not its id.
    #[test]
    fn a_status_is_read_back_while_its_daemon_lives_whatever_its_id() {
        let directory = tempfile::tempdir().unwrap();
        let status = Status { pid: Pid(u32::MAX), ..status() };
        let board = Board::claim(directory.path()).unwrap();
        board.write(&status).unwrap();
        // A daemon that was killed leaves its file, and a mark that nobody locks.
        let left = |extension: &str| directory.path().join(format!("tier.1.0.{extension}"));
        fs::copy(path(directory.path(), board.mark.token()), left("json")).unwrap();
        fs::write(left("alive"), "").unwrap();
        assert_eq!(all(directory.path()), std::slice::from_ref(&status));
        sweep(directory.path());
        assert!(!left("json").exists() && !left("alive").exists());
        assert_eq!(all(directory.path()), std::slice::from_ref(&status));
        drop(board);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// Under root's umask 077 monitoring saw no daemon, and the library in other users' programs no loan.
    #[test]
    fn everybody_can_read_what_a_daemon_says_whatever_the_umask() {
        const NAME: &str =
            "tier::status::tests::everybody_can_read_what_a_daemon_says_whatever_the_umask";
        if std::env::var_os("PAGEMILL_TEST_UMASK").is_none() {
            // The umask is the process's, and other tests are in it.
            let mut shell = std::process::Command::new("sh");
            shell.arg("-c").arg(format!("umask 077; exec \"$0\" --exact {NAME}"));
            shell.arg(std::env::current_exe().unwrap()).env("PAGEMILL_TEST_UMASK", "077");
            let done = shell.output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("run/pagemill");
        let board = Board::claim(&directory).unwrap();
        board.write(&status()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o755);
        assert_eq!(mode(&path(&directory, board.mark.token())), 0o644);
    }

    #[test]
    fn every_metric_has_its_help_and_labels_are_escaped() {
        let text = prometheus(&Linux::live().memory_nodes().unwrap(), &[status()]);
        let me = std::process::id();
        let line = format!(
            "pagemill_tier_latency_seconds{{daemon=\"{me}\",tier=\"default\",node=\"0\"}} 0.0000001085\n"
        );
        assert!(text.contains(&line), "{text}");
        let tier = format!("{{daemon=\"{me}\",tier=\"default\",node=\"0\"}}");
        let process = format!("{{daemon=\"{me}\",pid=\"7\",comm=\"a\\\"b\"}}");
        for (name, labels, value) in [
            ("daemons", &String::new(), "1"),
            ("latency_low_seconds", &tier, "0.000000107"),
            ("latency_high_seconds", &tier, "0.00000011"),
            ("tier_came_bytes_total", &tier, "3"),
            ("tier_left_bytes_total", &tier, "2"),
            ("tier_ping_pong_bytes_total", &tier, "1"),
            ("promoted_bytes_total", &process, "4096"),
            ("demoted_bytes_total", &process, "8192"),
            ("ping_pong_bytes_total", &process, "512"),
            ("process_share", &process, "0.25"),
            ("share", &format!("{{daemon=\"{me}\"}}"), "0.75"),
        ] {
            let line = format!("\npagemill_tier_{name}{labels} {value}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(text.contains("\npagemill_tier_node_total_bytes{node=\"0\"} "), "{text}");
        assert!(!text.contains("reads_per_second"), "what is not known has no line");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
        }
    }
}

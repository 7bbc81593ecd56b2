//! What a daemon says about itself: a file that it replaces whole in each quantum, which
//! `pagemill tier status` and monitoring read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pagemill_kernel::nodes::Node;
use pagemill_kernel::process::presence::{self, Presence};
use pagemill_kernel::settings::loan;
use pagemill_kernel::{Error, Result};
use pagemill_model::{Pid, whole};
use pagemill_report::exposition::Metric::{Counter, Gauge};
use pagemill_report::exposition::{Exposition, MetricRow, labels};
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
    ///
    /// # Errors
    /// It cannot be made or written.
    pub fn claim(directory: &Path) -> Result<Self> {
        loan::make(directory)?;
        Ok(Self { directory: directory.to_owned(), mark: Presence::claim(directory, "tier")? })
    }

    /// Replaces what it says, which is everybody's to read.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, status: &Status) -> Result<()> {
        let target = path(&self.directory, self.mark.token());
        let written = serde_json::to_vec_pretty(status)
            .map_err(std::io::Error::from)
            .and_then(|text| whole::replace(&target, &text, 0o644));
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
        serde_json::from_slice(&whole::read(&path(directory, token), whole::TEXT).ok()?).ok()
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
        whole::sweep(&path(directory, &token));
        presence::forget(directory, &token);
    }
}

/// All daemons and nodes in the text format of Prometheus.
pub fn prometheus(nodes: &[Node], daemons: &[Status]) -> String {
    let mut page = Exposition::default();
    let count = [(String::new(), daemons.len() as f64)];
    page.metric("pagemill_tier_daemons", Gauge, "Daemons that run.", &count);
    let nodes: Vec<_> =
        nodes.iter().map(|node| (labels(&[("node", &node.id.to_string())]), node)).collect();
    let daemons: Vec<_> = daemons
        .iter()
        .map(|status| (labels(&[("daemon", &status.pid.to_string())]), status))
        .collect();
    let (mut tiers, mut processes) = (Vec::new(), Vec::new());
    for (daemon, status) in &daemons {
        tiers.extend(status.tiers.iter().map(|tier| {
            let of = labels(&[("tier", &tier.name), ("node", &tier.node.to_string())]);
            (format!("{daemon},{of}"), tier)
        }));
        processes.extend(status.processes.iter().map(|process| {
            let of = labels(&[("pid", &process.pid.to_string()), ("comm", &process.comm)]);
            (format!("{daemon},{of}"), process)
        }));
    }
    page.metrics("pagemill_tier_", &nodes, &OF_NODES);
    page.metrics("pagemill_tier_", &tiers, &OF_TIERS);
    page.metrics("pagemill_tier_", &processes, &OF_PROCESSES);
    page.metrics("pagemill_tier_", &daemons, &OF_DAEMONS);
    page.finish()
}

/// Nanoseconds in the unit of metrics: the number that reads best, not the quotient with its last binary digit.
fn seconds(nanos: f64) -> f64 {
    format!("{nanos}e-9").parse().unwrap_or(nanos / 1e9)
}

const OF_NODES: [MetricRow<Node>; 5] = [
    ("node_total_bytes", Gauge, "Memory of the node.", |n| Some(n.total as f64)),
    ("node_free_bytes", Gauge, "Free memory of the node.", |n| Some(n.free as f64)),
    ("node_firmware_latency_seconds", Gauge, "Mean time of a read, by firmware.", |n| {
        Some(seconds(n.access.read_latency? as f64))
    }),
    ("node_promoted_pages_total", Counter, "Promoted to it by the kernel.", |n| {
        Some(n.promoted()? as f64)
    }),
    ("node_demoted_pages_total", Counter, "Demoted from it by the kernel.", |n| {
        Some(n.demoted()? as f64)
    }),
];

const OF_TIERS: [MetricRow<Tier>; 9] = [
    ("latency_seconds", Gauge, "Mean time of a read.", |t| t.latency_ns.map(seconds)),
    ("latency_low_seconds", Gauge, "Lower end of its 95 % interval.", |t| {
        Some(seconds(t.latency_interval_ns?.0))
    }),
    ("latency_high_seconds", Gauge, "Upper end of its 95 % interval.", |t| {
        Some(seconds(t.latency_interval_ns?.1))
    }),
    ("reads_per_second", Gauge, "Reads.", |t| t.reads_per_s),
    ("free_bytes", Gauge, "Free memory.", |t| Some(t.free_bytes as f64)),
    ("tracked_bytes", Gauge, "Tracked memory.", |t| Some(t.tracked_bytes as f64)),
    ("tier_came_bytes_total", Counter, "Moved to the tier.", |t| Some(t.came_bytes as f64)),
    ("tier_left_bytes_total", Counter, "Moved away from it.", |t| Some(t.left_bytes as f64)),
    ("tier_ping_pong_bytes_total", Counter, "Moved back to it within ten quanta.", |t| {
        Some(t.ping_pong_bytes as f64)
    }),
];

const OF_PROCESSES: [MetricRow<Process>; 4] = [
    ("promoted_bytes_total", Counter, "Moved to the default tier.", |p| {
        Some(p.promoted_bytes as f64)
    }),
    ("demoted_bytes_total", Counter, "Moved to the alternate tier.", |p| {
        Some(p.demoted_bytes as f64)
    }),
    ("ping_pong_bytes_total", Counter, "Moved back within ten quanta.", |p| {
        Some(p.ping_pong_bytes as f64)
    }),
    ("process_share", Gauge, "Part of its accesses on the default tier.", |p| p.share),
];

const OF_DAEMONS: [MetricRow<Status>; 4] = [
    ("share", Gauge, "Part of the reads on the default tier.", |s| s.share),
    ("cpu", Gauge, "Part of one core that the daemon takes.", |s| Some(s.cpu)),
    ("tracker_cpu", Gauge, "Part of one core that the kernel's sampling takes.", |s| s.tracker_cpu),
    ("dry", Gauge, "1 if nothing is moved.", |s| Some(f64::from(u8::from(s.dry)))),
];

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::Linux;
    use std::os::unix::fs::PermissionsExt as _;

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

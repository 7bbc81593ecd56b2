//! Metrics for Prometheus: a page on standard output or in a file for node_exporter's textfile collector, or served on
//! this machine.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use pagemill_control::tier::status;
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::{ENDS, Signals};
use pagemill_kernel::settings::{cgroup, loan};
use pagemill_launch::exit::{self, Exit};
use pagemill_launch::files::NewFile;
use pagemill_model::{Pid, whole};
use pagemill_report::exporter::{self, ExportScope, Exporter};

/// What such a page begins with: a file that does is replaced without being asked.
const BEGINS: &[u8] = b"# HELP pagemill_";

/// Whose metrics, and how.
#[derive(Debug, Args)]
pub struct Metrics {
    /// Write metrics for Prometheus instead, of running processes and the machine
    #[arg(long, conflicts_with_all = ["recording", "format", "redact", "mhz"])]
    pub prometheus: bool,
    /// Metrics: serve them at http://ADDRESS/metrics until a signal, on a loopback address; port 0 is any
    #[arg(long, value_name = "ADDRESS", requires = "prometheus", conflicts_with = "output")]
    listen: Option<SocketAddr>,
    /// Metrics: of these processes, by id or name [default: all on pagemill's heap]
    #[arg(
        short,
        long,
        value_name = "PID",
        requires = "prometheus",
        value_delimiter = ',',
        value_parser = crate::values::process
    )]
    pid: Vec<Pid>,
    /// Metrics: of all processes in these cgroups, by path or by name below /sys/fs/cgroup
    #[arg(long, value_name = "GROUP", requires = "prometheus", value_delimiter = ',')]
    cgroup: Vec<PathBuf>,
}

impl Metrics {
    /// Whether something was chosen of metrics that nobody asked for. (A command line with a recording, which metrics
    /// exclude, is not told that these need `--prometheus`.)
    pub fn is_stray(&self) -> bool {
        !(self.prometheus || self.pid.is_empty() && self.cgroup.is_empty())
    }
}

/// Runs it.
pub fn run(arguments: &Metrics, output: Option<&Path>, force: bool) -> Result<Exit> {
    exit::permitted(written(arguments, output, force))
}

fn written(arguments: &Metrics, output: Option<&Path>, force: bool) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let groups: pagemill_kernel::Result<Vec<PathBuf>> =
        arguments.cgroup.iter().map(|name| cgroup::find(&linux, name)).collect();
    let which = ExportScope { pids: arguments.pid.clone(), groups: groups? };
    let mut exporter = Exporter::new(&linux, which, arguments.listen.is_some(), of_tiers)?;
    if let Some(address) = arguments.listen {
        for (pid, why) in exporter.untimed() {
            notice!("page faults of process {pid} are counted and not timed: {why}");
        }
        let signals = Signals::block(ENDS)?;
        exporter::serve(&mut exporter, address, &signals, |address| {
            notice!("metrics are at http://{address}/metrics");
        })?;
        return Ok(Exit::Ok);
    }
    let page = exporter.page();
    match output {
        Some(path) => replace(path, &page, force)?,
        None => {
            pagemill_launch::stdio::is_verbatim();
            print!("{page}");
        }
    }
    Ok(Exit::Ok)
}

/// Metrics of memory nodes and of daemons.
fn of_tiers(linux: &Linux) -> String {
    let nodes = linux.memory_nodes().unwrap_or_default();
    status::prometheus(&nodes, &status::all(&loan::directory(linux)))
}

/// Puts the page in the place of the one before, whole; readable to all, for it is another user's to collect.
fn replace(path: &Path, page: &str, force: bool) -> Result<()> {
    let there = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    if let Some(there) = &there
        && !force
    {
        let ours = there.len() == 0
            || whole::read(path, whole::TEXT).is_ok_and(|bytes| bytes.starts_with(BEGINS));
        ensure!(
            ours,
            "{} exists and holds no metrics of pagemill (use -f to overwrite it)",
            path.display()
        );
    }
    let mut file = NewFile::create(path, true)?;
    file.permit(there.map_or(0o644, |there| there.permissions().mode()))?;
    file.write_all(page.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    file.finish()
}

//! What `report` is asked.

use std::path::PathBuf;

use clap::Args;
use pagemill_model::Nanos;

const EXAMPLES: &str = "\
Examples:
  pagemill report pagemill-redis-server.4711
  pagemill report REC --json | jq .view.pss_bytes.peak
  pagemill report REC --html report.html
  pagemill report REC --spike 5ms             # do page faults explain stalls of 5 ms?
  pagemill report redis.pftrace --mhz 2600
";

const AFTER: &str = "\
Exit status: 0 shown; 2 it is no recording, or is damaged, or finished parts of it are gone (what is left is shown).";

/// Which recording to show, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Directory that `pagemill record` wrote, or a .pftrace file of CBMM's kernel.
    #[arg(value_name = "REC")]
    pub(super) recording: PathBuf,
    #[command(flatten)]
    pub(super) redact: crate::values::Redact,
    #[command(flatten)]
    pub(super) printed: crate::values::Printed,
    /// Write one self-contained HTML file instead of text.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(super) html: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(short, long)]
    pub(super) force: bool,
    /// Show percentiles although more than 1 % of the page faults were lost.
    #[arg(long)]
    pub(super) allow_loss: bool,
    /// Say whether page faults explain stalls of this length.
    #[arg(long, value_name = "TIME", value_parser = crate::values::interval)]
    pub(super) spike: Option<Nanos>,
    /// For a .pftrace: cycles in a microsecond (the file does not say).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..100_000))]
    pub(super) mhz: Option<u64>,
    /// For a .pftrace: its counts of faults below the threshold [default: FILE.rejected, if there is one].
    #[arg(long, value_name = "FILE")]
    pub(super) rejected: Option<PathBuf>,
    /// For a .pftrace: the threshold of these counts, cycles.
    #[arg(long, default_value_t = pagemill_model::pftrace::THRESHOLD, value_name = "CYCLES")]
    pub(super) pftrace_threshold: u64,
}

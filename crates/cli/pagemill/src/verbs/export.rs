//! `export`: what a recording holds, in a format of another tool; or what runs, as metrics.

mod prometheus;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_report::export::{self, Format};

const EXAMPLES: &str = "\
Examples:
  pagemill export pagemill-redis-server.4711 --format pftrace -o redis.pftrace
  pagemill export REC --format parquet -o accesses.parquet       all accesses, named
  pagemill export REC --format perfetto -o trace.json            for ui.perfetto.dev
  pagemill export REC --format speedscope -o cold.json           what is not touched any more, by call stack
  pagemill export --prometheus -p redis-server                   metrics, as text
  pagemill export --prometheus -o /var/lib/prometheus/node-exporter/pagemill.prom
  pagemill export --prometheus --listen 127.0.0.1:9818 --cgroup web.slice
";

/// Which recording, and as what.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    /// Directory that `pagemill record` wrote.
    #[arg(value_name = "REC", required_unless_present = "prometheus")]
    recording: Option<PathBuf>,
    /// The format.
    #[arg(long, value_parser = crate::values::format(), required_unless_present = "prometheus")]
    format: Option<&'static Format>,
    /// File to write; of metrics, the one before is replaced [default of metrics: standard output]
    #[arg(short, long, value_name = "FILE", required_unless_present = "prometheus")]
    output: Option<PathBuf>,
    #[command(flatten)]
    metrics: prometheus::Metrics,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// Overwrite FILE.
    #[arg(short, long)]
    force: bool,
    /// Cycles in a microsecond, for formats that have cycles; at 1000 a cycle is a nanosecond.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..100_000))]
    mhz: u64,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    if arguments.metrics.prometheus {
        return prometheus::run(&arguments.metrics, arguments.output.as_deref(), arguments.force);
    }
    ensure!(
        !arguments.metrics.is_stray(),
        "--pid and --cgroup are of metrics (--prometheus), which are of no recording"
    );
    let (Some(path), Some(format), Some(output)) =
        (&arguments.recording, arguments.format, &arguments.output)
    else {
        bail!("name a recording, its format (--format) and a file (-o), or --prometheus");
    };
    files::check(output, arguments.force)?;
    let mut reader = pagemill_launch::context::recording(path, arguments.redact.redact)?;
    let file = (output.as_path(), arguments.force);
    eprintln!("{}", export::write(&mut reader, path, format, file, arguments.mhz)?);
    Ok(Exit::Ok)
}

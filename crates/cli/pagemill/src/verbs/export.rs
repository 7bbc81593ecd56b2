//! `export`: what a recording holds, in a format of another tool; or what runs, as metrics.

mod accesses;
mod cold;
mod format;
mod prometheus;

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;
use format::Format;
use pagemill_model::pftrace::{Clock, Export, counts_beside};
use pagemill_model::recording::Reader;
use pagemill_model::{Bytes, Source as _};
use pagemill_record::summary;

use pagemill_launch::exit::Exit;
use pagemill_launch::files::{self, NewFile};

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
    #[arg(long, value_enum, required_unless_present = "prometheus")]
    format: Option<Format>,
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
    let mut reader = pagemill_launch::context::recording(path, arguments.redact.redact)?;
    let recording = path.display();
    if format != Format::Pftrace {
        if reader.meta().accesses.is_none() && format != Format::Perfetto {
            bail!("{recording} has no accesses (make one with: pagemill record --with accesses)");
        }
        if matches!(format, Format::Folded | Format::Speedscope) {
            return resident(arguments, path, &mut reader, format, output);
        }
        let file = NewFile::create(output, arguments.force)?;
        let count = accesses::write(&mut reader, format, file.handle()?)?;
        file.finish()?;
        let what = if format == Format::Perfetto { "events" } else { "accesses" };
        eprintln!("wrote {count} {what} to {}", files::shown(output));
        return Ok(Exit::Ok);
    }
    if output == Path::new("-") {
        bail!("--format pftrace writes two files, and standard output is one (name a file by -o)");
    }
    let Some(setup) = reader.meta().faults.clone() else {
        bail!("{recording} has no page faults (make one with: pagemill record --with faults)");
    };
    let clock = Clock { mhz: arguments.mhz };
    let mut export = Export::new(clock);
    while let Some(event) = reader.next_event()? {
        export.event(&event);
    }
    let (trace, rejected) = export.files();
    let beside = counts_beside(output);
    files::write(output, &trace, arguments.force)?;
    files::write(&beside, &rejected, arguments.force)?;
    let (records, counted) = export.amount();
    eprintln!(
        "wrote {records} faults to {} and {counted} counts to {}, in cycles of {} MHz; threshold {} cycles",
        output.display(),
        beside.display(),
        clock.mhz,
        u128::from(setup.threshold.0) * u128::from(clock.mhz) / 1000
    );
    eprintln!("next: pagemill report {} --mhz {}", output.display(), clock.mhz);
    Ok(Exit::Ok)
}

/// Exports what is resident, by call stack.
fn resident(
    arguments: &Arguments,
    path: &Path,
    reader: &mut Reader,
    format: Format,
    output: &Path,
) -> Result<Exit> {
    if reader.meta().accesses.as_ref().is_some_and(|setup| setup.without_address.is_some()) {
        bail!(
            "{} has samples of accesses, and samples do not tell what is not used (make one of all with: \
             pagemill record --with accesses)",
            path.display()
        );
    }
    let page = reader.meta().page_size.0;
    let summary = summary::opened(path, reader)?;
    let file = NewFile::create(output, arguments.force)?;
    let bytes = cold::write(&summary.heat, page, format, BufWriter::new(file.handle()?))?;
    file.finish()?;
    eprintln!("wrote {} of resident memory to {}", Bytes(bytes).plain(), files::shown(output));
    Ok(Exit::Ok)
}

//! `export`: what a recording holds, in a format of another tool.

mod accesses;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use pagemill_model::Source as _;
use pagemill_model::pftrace::{Clock, Export, counts_beside};

use pagemill_launch::exit::Exit;
use pagemill_launch::files::{self, NewFile};

const EXAMPLES: &str = "\
Examples:
  pagemill export pagemill-redis-server.4711 --format pftrace -o redis.pftrace
  pagemill export REC --format parquet -o accesses.parquet       all accesses, named
  pagemill export REC --format perfetto -o trace.json            for ui.perfetto.dev
";

/// Which recording, and as what.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    /// Directory that `pagemill record` wrote.
    #[arg(value_name = "REC")]
    recording: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    format: Format,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// Overwrite FILE.
    #[arg(short, long)]
    force: bool,
    /// Cycles in a microsecond, for formats that have cycles; at 1000 a cycle is a nanosecond.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..100_000))]
    mhz: u64,
}

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Page faults as CBMM's kernel traces them, with a .rejected file beside
    Pftrace,
    /// Accesses with object and line, one table
    Parquet,
    /// Accesses as CSV in Moca's columns: pages, intervals, threads
    Moca,
    /// Accesses as CSV in the columns of TABARNAC's pages
    Tabarnac,
    /// Accesses as CSV in the columns of Mitos's samples
    Mitos,
    /// Accesses, page faults, heap and huge pages as trace events in JSON, which Perfetto opens
    Perfetto,
    /// Accesses as a profile for the Firefox Profiler
    Firefox,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut reader =
        pagemill_launch::context::recording(&arguments.recording, arguments.redact.redact)?;
    let recording = arguments.recording.display();
    if arguments.format != Format::Pftrace {
        if reader.meta().accesses.is_none() && arguments.format != Format::Perfetto {
            bail!("{recording} has no accesses (make one with: pagemill record --with accesses)");
        }
        let file = NewFile::create(&arguments.output, arguments.force)?;
        let count = accesses::write(&mut reader, arguments.format, file.handle()?)?;
        file.finish()?;
        let what = if arguments.format == Format::Perfetto { "events" } else { "accesses" };
        eprintln!("wrote {count} {what} to {}", arguments.output.display());
        return Ok(Exit::Ok);
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
    let beside = counts_beside(&arguments.output);
    files::write(&arguments.output, &trace, arguments.force)?;
    files::write(&beside, &rejected, arguments.force)?;
    let (records, counted) = export.amount();
    eprintln!(
        "wrote {records} faults to {} and {counted} counts to {}, in cycles of {} MHz; threshold {} cycles",
        arguments.output.display(),
        beside.display(),
        clock.mhz,
        u128::from(setup.threshold.0) * u128::from(clock.mhz) / 1000
    );
    eprintln!("next: pagemill report {} --mhz {}", arguments.output.display(), clock.mhz);
    Ok(Exit::Ok)
}

//! `report`: what a recording says, as text, JSON or one HTML file.

mod frame;
mod pftrace;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use pagemill_analysis::findings::Conclusions;
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_model::Nanos;
use pagemill_model::recording::Reader;
use pagemill_report::sections::{Asked, Section, Sections};

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
    recording: PathBuf,
    #[command(flatten)]
    redact: crate::values::Redact,
    #[command(flatten)]
    printed: crate::values::Printed,
    /// Write one self-contained HTML file instead of text.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(short, long)]
    force: bool,
    /// Show percentiles although more than 1 % of the page faults were lost.
    #[arg(long)]
    allow_loss: bool,
    /// Say whether page faults explain stalls of this length.
    #[arg(long, value_name = "TIME", value_parser = crate::values::interval)]
    spike: Option<Nanos>,
    /// For a .pftrace: cycles in a microsecond (the file does not say).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..100_000))]
    mhz: Option<u64>,
    /// For a .pftrace: its counts of faults below the threshold [default: FILE.rejected, if there is one].
    #[arg(long, value_name = "FILE")]
    rejected: Option<PathBuf>,
    /// For a .pftrace: the threshold of these counts, cycles.
    #[arg(long, default_value_t = pagemill_model::pftrace::THRESHOLD, value_name = "CYCLES")]
    pftrace_threshold: u64,
}

/// A recording, and what it says.
struct Report {
    reader: Reader,
    sections: Sections,
    conclusions: Conclusions,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    if arguments.recording.is_file() {
        return pftrace::run(arguments);
    }
    let mut reader = Reader::open(&arguments.recording)?;
    ensure!(
        arguments.mhz.is_none() && arguments.rejected.is_none(),
        "--mhz and --rejected are of a .pftrace, and {} is a recording",
        arguments.recording.display()
    );
    if arguments.redact.redact {
        reader.redact();
    }
    let asked = Asked { allow_loss: arguments.allow_loss, spike: arguments.spike };
    let sections = Sections::read(&arguments.recording, &mut reader, asked)?;
    let conclusions = sections.conclusions(&arguments.recording, &reader);
    let report = Report { reader, sections, conclusions };
    if arguments.printed.json {
        crate::answer::print("report", frame::json(&report))?;
    } else if let Some(path) = &arguments.html {
        files::write(path, frame::html(&report), arguments.force)?;
        eprintln!("wrote {}", path.display());
    } else {
        let [header, lost, rest] = frame::text(&report);
        pagemill_launch::stdio::stdout(&header);
        pagemill_launch::stdio::alert(&lost);
        pagemill_launch::stdio::stdout(&rest);
    }
    let refusals = report.sections.iter().filter_map(Section::refusal);
    let mut exit = Exit::Ok;
    for why in frame::gone(&report).into_iter().chain(refusals) {
        eprintln!("pagemill: {}: {why}", arguments.recording.display());
        exit = Exit::Code(2);
    }
    Ok(exit)
}

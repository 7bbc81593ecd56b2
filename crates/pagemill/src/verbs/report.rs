//! `report`: what a recording says, as text, JSON or one HTML file.

mod json;
mod page;
mod summary;

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_analysis::heap::{HeapFold, HeapView};
use pagemill_model::Fold as _;
use pagemill_model::recording::Reader;

use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  pagemill report pagemill-redis-server.4711
  pagemill report REC --json | jq .view.pss_bytes.peak
  pagemill report REC --html report.html
";

const AFTER: &str = "\
Exit status: 0 shown; 2 it is no recording, or is damaged, or finished parts of it are gone (what is left is shown).";

/// Which recording to show, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Directory that `pagemill record` wrote.
    #[arg(value_name = "REC")]
    recording: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Write one self-contained HTML file instead of text.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(short, long)]
    force: bool,
}

/// A recording folded.
struct Report {
    reader: Reader,
    view: HeapView,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut reader = Reader::open(&arguments.recording)?;
    let mut fold = HeapFold::default();
    fold.drain(&mut reader)?;
    let report = Report { view: fold.view(), reader };
    if arguments.json {
        show(&format!("{:#}\n", json::value(&report)));
    } else if let Some(path) = &arguments.html {
        let html = page::html(&report);
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(true).create_new(!arguments.force);
        let mut file = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} exists (use -f to overwrite it)", path.display())
            }
            opened => opened.with_context(|| format!("cannot write {}", path.display()))?,
        };
        file.write_all(html.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    } else {
        show(&summary::text(&report));
    }
    let Some(gone) = summary::gone(&report) else { return Ok(Exit::Ok) };
    eprintln!("pagemill: {}: {gone}", arguments.recording.display());
    Ok(Exit::Code(2))
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
fn show(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

//! `report`: what a recording says, as text, JSON or one HTML file.

mod accesses;
mod decisions;
pub(crate) mod faults;
pub(crate) mod frag;
mod html;
mod json;
mod pftrace;
mod summary;

use std::path::PathBuf;

use accesses::Accesses;
use anyhow::Result;
use clap::Args;
use faults::Faults;
use pagemill_analysis::decisions::{Decided, DecisionFold};
use pagemill_analysis::faults::FaultFold;
use pagemill_analysis::fragmentation::timeline::{FragFold, FragView};
use pagemill_analysis::heap::{HeapFold, HeapView};
use pagemill_analysis::hugepages::{HugePageFold, HugePageView};
use pagemill_model::recording::Reader;
use pagemill_model::{Fold as _, Source as _};

use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_record::summary::{self as kept, Summary};

const EXAMPLES: &str = "\
Examples:
  pagemill report pagemill-redis-server.4711
  pagemill report REC --json | jq .view.pss_bytes.peak
  pagemill report REC --html report.html
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

/// A recording folded.
struct Report {
    reader: Reader,
    view: HeapView,
    faults: Option<Faults>,
    hugepages: Option<HugePageView>,
    frag: Option<FragView>,
    decisions: Option<Vec<Decided>>,
    accesses: Option<Accesses>,
}

impl Report {
    /// Whether it has something to show where no heap was recorded.
    fn without_heap(&self) -> bool {
        self.faults.is_some()
            || self.hugepages.is_some()
            || self.frag.is_some()
            || self.decisions.is_some()
            || self.accesses.is_some()
    }
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    if arguments.recording.is_file() {
        return pftrace::run(arguments);
    }
    let mut reader = Reader::open(&arguments.recording)?;
    if arguments.redact.redact {
        reader.redact();
    }
    let mut heap = HeapFold::default();
    let setup = reader.meta().faults.clone();
    let mut faults = setup.as_ref().map(|setup| FaultFold::new(setup, reader.meta().started));
    let mut hugepages = HugePageFold::default();
    let mut frag = FragFold::default();
    let mut decisions = DecisionFold::default();
    let access_setup = reader.meta().accesses.clone();
    let page = reader.meta().page_size.0;
    let known = kept::read(&mut reader);
    let folds = access_setup.is_some() && known.is_none();
    let mut accesses = folds.then(|| kept::Folds::new(&reader));
    let mut reading = kept::Reading::new(&reader);
    while let Some(event) = reader.next_event()? {
        reading.event();
        heap.event(&event);
        hugepages.event(&event);
        frag.event(&event);
        decisions.event(&event);
        if let Some(accesses) = &mut accesses {
            accesses.event(&event);
        }
        if let Some(faults) = &mut faults {
            faults.event(&event);
        }
    }
    drop(reading);
    let faults = setup.zip(faults).map(|(setup, fold)| Faults {
        setup,
        view: fold.view(),
        allow_loss: arguments.allow_loss,
    });
    let hugepages = Some(hugepages.view()).filter(|view| view.looks > 0);
    let frag = Some(frag.view()).filter(|view| view.looks > 0);
    let decisions = Some(decisions.view()).filter(|rows| !rows.is_empty());
    let known = known.or_else(|| accesses.map(|folds| folds.keep(&arguments.recording, &reader)));
    let accesses = access_setup
        .zip(known)
        .map(|(setup, Summary { accesses: view, heat, .. })| Accesses { setup, view, heat, page });
    let report = Report { view: heap.view(), faults, hugepages, frag, decisions, accesses, reader };
    if arguments.printed.json {
        crate::answer::print("report", json::value(&report))?;
    } else if let Some(path) = &arguments.html {
        files::write(path, html::page(&report), arguments.force)?;
        eprintln!("wrote {}", path.display());
    } else {
        pagemill_launch::stdio::stdout(&summary::text(&report));
    }
    let refusal = report.faults.as_ref().and_then(Faults::refusal);
    let mut exit = Exit::Ok;
    for why in summary::gone(&report).into_iter().chain(refusal) {
        eprintln!("pagemill: {}: {why}", arguments.recording.display());
        exit = Exit::Code(2);
    }
    Ok(exit)
}

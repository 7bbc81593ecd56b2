//! `report`: what a recording says, as text, JSON or one HTML file.

mod arguments;
mod pftrace;

use crate::answer::{self, Layout};
use anyhow::{Result, ensure};
pub use arguments::Arguments;
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_model::recording::Reader;
use pagemill_report::frame::{self, Report};
use pagemill_report::sections::{ReportOptions, Section, Sections};

/// What it answers.
const LAYOUT: Layout = Layout::new(
    "report",
    1,
    "accesses.objects,faults.categories,hugepages.mappings,frag.timeline,decisions,view",
);

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    if let Some(path) = &arguments.html {
        files::check(path, arguments.force)?;
    }
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
    let options = ReportOptions { allow_loss: arguments.allow_loss, spike: arguments.spike };
    let sections = Sections::read(&arguments.recording, &mut reader, options)?;
    let conclusions = sections.conclusions(&arguments.recording, &reader);
    let report = Report { reader, sections, conclusions };
    if arguments.printed.json {
        answer::print(&LAYOUT, frame::json(&report))?;
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
        notice!("{}: {why}", arguments.recording.display());
        exit = Exit::Failed;
    }
    Ok(exit)
}

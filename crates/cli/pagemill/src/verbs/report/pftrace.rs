//! The report of a `.pftrace` file: the same section as a recording's page faults.

use std::io::ErrorKind;

use anyhow::{Context, Result, bail};
use pagemill_analysis::faults::FaultFold;
use pagemill_model::Fold as _;
use pagemill_model::pftrace::{Clock, counts_beside, events, parse, parse_rejected};
use pagemill_model::whole;
use serde_json::json;

use super::arguments::Arguments;
use crate::answer::{self, Layout};
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_launch::stdio;
use pagemill_report::draw::html::Page;
use pagemill_report::sections::Section as _;
use pagemill_report::sections::faults::Faults;

/// What it answers.
const LAYOUT: Layout = Layout::new("report-pftrace", 1, "faults.categories");

/// Reads the file and shows it.
pub(super) fn run(arguments: &Arguments) -> Result<Exit> {
    let path = &arguments.recording;
    let name = path.display().to_string();
    let bytes = whole::read(path, whole::DATA).with_context(|| format!("cannot read {name}"))?;
    let (layout, records) = parse(&name, &bytes)?;
    let counts = arguments.rejected.clone().unwrap_or_else(|| counts_beside(path));
    let rejected = match whole::read(&counts, whole::TEXT) {
        Ok(bytes) => parse_rejected(&counts.display().to_string(), &bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound && arguments.rejected.is_none() => {
            notice!(
                "{} is not there: faults below the threshold are missing (name it with --rejected)",
                counts.display()
            );
            Vec::new()
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", counts.display()));
        }
    };
    let Some(mhz) = arguments.mhz else {
        bail!(
            "{name}: its times are cycles, and the file does not say how long one is (add --mhz, such as --mhz 2600)"
        );
    };
    // What has a record was not below the threshold, whatever that is said to be.
    let shortest = records.iter().map(|record| record.end.saturating_sub(record.start)).min();
    let threshold = arguments.pftrace_threshold.min(shortest.unwrap_or(u64::MAX));
    let (setup, started, events) = events(layout, &records, &rejected, threshold, Clock { mhz });
    let mut fold = FaultFold::new(&setup, started).with_spikes(arguments.spike);
    events.iter().for_each(|event| fold.event(event));
    let faults = Faults { setup, view: fold.view(), allow_loss: arguments.allow_loss };
    if arguments.printed.json {
        let value =
            json!({ "file": name, "record_bytes": layout.bytes(), "faults": faults.json() });
        answer::print(&LAYOUT, value)?;
    } else if let Some(path) = &arguments.html {
        let mut page = Page::new(&name);
        faults.html(&mut page);
        files::write(path, page.finish(), arguments.force)?;
        eprintln!("wrote {}", path.display());
    } else {
        let duration = faults.view.duration.to_string();
        let bytes = layout.bytes();
        let head = format!(
            "file      {name}\nrecords   {} of {bytes} bytes, {}\n",
            records.len(),
            duration.trim()
        );
        stdio::stdout(&format!("{head}{}", faults.text()));
    }
    Ok(Exit::Ok)
}

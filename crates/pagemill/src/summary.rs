//! What the accesses of a recording add up to, kept beside them so that they are read once.
//!
//! `record` makes the file when it ends, else the first `report` does. It holds the views of the folds over
//! accesses, with all names found, so that a recording opens as fast as its summary is read, and keeps its names when
//! programs are replaced later.
//!
//! Always true: a summary is used only for the parts that it was made of, and by the version of these folds that made
//! it; without one everything works, slower. One that cannot be written is no error: the next reader tries again.

use std::io::IsTerminal as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use pagemill_analysis::accesses::{AccessFold, AccessView};
use pagemill_analysis::heat::{HeatFold, HeatView};
use pagemill_model::recording::{Reader, SUMMARY, State};
use pagemill_model::{Event, Fold as _, Source as _};
use serde::{Deserialize, Serialize};

use crate::symbols::Files;

/// Version of the views in the file: whatever changes what they say raises it.
const VERSION: u64 = 1;

/// Datasets that it stands for.
const DATASETS: [&str; 3] = ["accesses", "allocations", "touched"];

/// The views.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    version: u64,
    fingerprint: String,
    /// Pages, by mapping and thread.
    pub accesses: AccessView,
    /// Objects over time.
    pub heat: HeatView,
}

/// The folds that it is made by.
#[derive(Debug)]
pub struct Folds {
    fingerprint: String,
    accesses: AccessFold,
    heat: HeatFold<Files>,
}

impl Folds {
    /// Nothing yet, of a recording that was just opened.
    pub fn new(reader: &Reader) -> Self {
        let meta = reader.meta();
        let page = meta.page_size.0;
        let events = meta.parts.get("accesses").is_some_and(|parts| parts.rows > 0);
        Self {
            fingerprint: reader.fingerprint(),
            accesses: AccessFold::new(meta.started, page),
            heat: HeatFold::new(meta.started, page, events, Files::default()),
        }
    }

    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        self.accesses.event(event);
        self.heat.event(event);
    }

    /// The summary, kept in the recording if that is whole.
    pub fn keep(self, recording: &Path, reader: &Reader) -> Summary {
        let Self { fingerprint, accesses, heat } = self;
        let summary =
            Summary { version: VERSION, fingerprint, accesses: accesses.view(), heat: heat.view() };
        if reader.meta().state == State::Finished && reader.missing().is_none() {
            // A recording that may only be read is as good.
            let _ = write(recording, &summary);
        }
        summary
    }
}

fn write(recording: &Path, summary: &Summary) -> Result<()> {
    let temporary = recording.join(format!(".{SUMMARY}.{}", std::process::id()));
    let written = serde_json::to_vec(summary)
        .context("the summary")
        .and_then(|text| Ok(std::fs::write(&temporary, text)?))
        .and_then(|()| Ok(std::fs::rename(&temporary, recording.join(SUMMARY))?));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// The summary that is kept in a recording, if it is of what is there now; the reader then passes over what it was
/// made of.
pub fn read(recording: &Path, reader: &mut Reader) -> Option<Summary> {
    let text = std::fs::read(recording.join(SUMMARY)).ok()?;
    let summary: Summary = serde_json::from_slice(&text).ok()?;
    let fits = summary.version == VERSION && summary.fingerprint == reader.fingerprint();
    fits.then(|| {
        DATASETS.iter().for_each(|dataset| reader.pass_over(dataset));
        summary
    })
}

/// How far the reading of accesses is, on a terminal: millions take a while.
pub struct Progress {
    shown: bool,
    read: u64,
    all: u64,
}

impl Progress {
    /// Of a recording whose rows are to be read.
    pub fn new(reader: &Reader) -> Self {
        let parts = &reader.meta().parts;
        let all = DATASETS.iter().filter_map(|dataset| parts.get(*dataset)).map(|set| set.rows);
        Self { shown: std::io::stderr().is_terminal(), read: 0, all: all.sum() }
    }

    /// One more was read.
    pub fn event(&mut self) {
        self.read += 1;
        if self.shown && self.read.is_multiple_of(1 << 20) {
            let percent = self.read as f64 * 100.0 / self.all.max(1) as f64;
            eprint!("\r\x1b[Kreading {} accesses, {:.0} %", self.all, percent.min(100.0));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.read >= 1 << 20 {
            eprint!("\r\x1b[K");
        }
    }
}

/// The summary of a recording: the kept one, or a new one that is kept.
pub fn of(recording: &Path) -> Result<Summary> {
    let mut reader = Reader::open(recording)?;
    if let Some(kept) = read(recording, &mut reader) {
        return Ok(kept);
    }
    let mut folds = Folds::new(&reader);
    let mut progress = Progress::new(&reader);
    while let Some(event) = reader.next_event()? {
        progress.event();
        folds.event(&event);
    }
    Ok(folds.keep(recording, &reader))
}

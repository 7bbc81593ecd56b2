//! Whether the page sets of two recordings of one run are what its program touched, as text and JSON.

use std::path::Path;

use anyhow::{Result, bail};
use pagemill_analysis::validate::{Difference, KINDS, MOST, Tally, Validation, ValidationView};
use pagemill_launch::context::recording;
use pagemill_model::Source as _;
use pagemill_record::paired::{EXACT, FAULTS};
use serde_json::{Value, json};

use crate::draw::text;

/// Holds the two recordings in `directory` against each other; the flag says whether both are there as they were
/// written.
///
/// # Errors
/// They are no recordings, or tell of more pages than are looked at.
pub fn validate(directory: &Path, redact: bool) -> Result<(ValidationView, bool)> {
    let mut exact = recording(&directory.join(EXACT), redact)?;
    let mut faults = recording(&directory.join(FAULTS), redact)?;
    let whole = exact.missing().is_none() && faults.missing().is_none();
    let lost = faults.meta().accesses.as_ref().map_or(0, |setup| setup.lost);
    if lost > 0 {
        notice!("{lost} faults were lost, so who touched a page is not always known");
    }
    let mut validation = Validation::new(faults.meta().page_size.0);
    while let Some(event) = exact.next_event()? {
        validation.exact(&event);
    }
    while let Some(event) = faults.next_event()? {
        validation.faults(&event);
    }
    if validation.pages() > MOST {
        bail!(
            "{} tells of {} touched pages in its intervals, more than the {MOST} that are looked at: it is damaged, or \
             of too long a run (a longer --access-interval tells fewer)",
            directory.join(FAULTS).display(),
            validation.pages()
        );
    }
    Ok((validation.view(), whole))
}

/// As JSON. `whole`: whether the recordings are; pages that agree in what is left of them say nothing.
pub fn json(view: &ValidationView, whole: bool) -> Value {
    let mut value = json!(view);
    value["agrees"] = json!((whole || !view.agrees()).then(|| view.agrees()));
    value
}

/// As text.
pub fn text(view: &ValidationView) -> String {
    let mut rows = Vec::new();
    let mut row = |name: String, tally: &Tally| {
        let found = match tally.exact {
            0 => "-".into(),
            // Rounded down: one page of a million that is missing is not 100 %.
            exact => format!(
                "{:.2} %",
                ((exact - tally.missing.min(exact)) as f64 / exact as f64 * 1e4).floor() / 100.0
            ),
        };
        let numbers =
            [tally.missing, tally.extra, tally.kernel, tally.emulator, tally.around, tally.kept];
        let words = [name, tally.exact.to_string(), found];
        rows.push(words.into_iter().chain(numbers.map(|number| number.to_string())).collect());
    };
    for (what, tallies, parts) in [
        ("touched", &view.touched, &view.touched_in_intervals),
        ("written", &view.written, &view.written_in_intervals),
    ] {
        for kind in KINDS {
            if let Some(tally) = tallies.get(kind) {
                row(format!("{what}, {kind}"), tally);
            }
        }
        row(format!("{what}, by interval"), parts);
    }
    let header = [
        "pages",
        "exact",
        "found",
        "missing",
        "extra",
        "by kernel",
        "by emulator",
        "around a fault",
        "kept",
    ];
    let table = text::table(&header, &rows);
    let mut text = format!(
        "{table}\n{} intervals; {} stretches of accesses lie across the end of one and may be in either\n",
        view.intervals, view.on_borders
    );
    for Difference { missing, written, pid, address, name, interval } in &view.differences {
        let kind = if *missing { "missing" } else { "extra" };
        let how = if *written { "written" } else { "touched" };
        let place = interval.map_or_else(String::new, |number| format!(" in interval {number}"));
        text.push_str(&format!("{kind}: {address:x} of {name}, {how}{place} (process {pid})\n"));
    }
    text
}

//! What was measured of slices of a program's memory, as text and JSON.

use std::time::Duration;

use pagemill_model::{Bytes, Nanos};
use pagemill_report::draw::text;
use serde_json::{Value, json};

use super::measure::{ChunkRange, Outcome};
use pagemill_analysis::slices::ranking;

/// Slices in the table without `--explain`.
const SHOWN: usize = 12;

/// A run that is predicted worse than this part of it hides what few slices bring.
const NOISY: f64 = 0.05;

fn short(bytes: u64) -> String {
    Bytes(bytes).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A range in words.
fn place(range: &ChunkRange) -> String {
    let (from, to) = (short(range.from), short(range.to));
    if range.heap {
        format!("heap from {from} to {to}")
    } else {
        format!("mappings {from} to {to} below the top")
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}

/// The slices that matter (`all`: every one), and what the runs were.
pub fn table(outcome: &Outcome, all: bool) -> String {
    let ranking = ranking(&outcome.benefits);
    let rows = ranking.iter().take(if all { usize::MAX } else { SHOWN }).map(|&number| {
        let slice = &outcome.slices[number];
        let (low, high) = outcome.interval(number);
        let more = match slice.ranges.len() {
            0 | 1 => String::new(),
            ranges => format!(" and {} more", ranges - 1),
        };
        vec![
            slice.ranges.first().map(place).unwrap_or_default() + &more,
            slice.chunks.to_string(),
            (slice.pages / slice.chunks.max(1)).to_string(),
            milliseconds(outcome.benefits[number].mean),
            format!("[{}, {}]", milliseconds(low), milliseconds(high)),
            Nanos(outcome.each(number)).plain(),
            if outcome.benefits[number].sure() { "sure" } else { "" }.to_owned(),
        ]
    });
    let header = ["slice", "huge pages", "used of 512", "ms a run", "95 % interval", "each", ""];
    let mut out = text::table(&header, &rows.collect::<Vec<_>>());
    let left = ranking.len().saturating_sub(SHOWN);
    if left > 0 && !all {
        out += &format!("and {left} slices with less (--explain)\n");
    }
    out + &notes(outcome)
}

fn notes(outcome: &Outcome) -> String {
    let sum: f64 = outcome.benefits.iter().map(|benefit| benefit.mean).sum();
    let seconds = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3} s"));
    let (none, all) = (outcome.uniform(false), outcome.uniform(true));
    let how = match &outcome.counters {
        Ok(name) => {
            let walks: u64 = outcome.slices.iter().map(|slice| slice.walks).sum();
            format!("page walks by the processor's counters: {name}, {walks} samples walked")
        }
        Err(why) => {
            let share = none.map_or(0.0, |none| outcome.error / none * 100.0);
            format!(
                "a run is predicted within {share:.1} %\nby runs, not by the processor's counters: {why}"
            )
        }
    };
    let mut out = format!(
        "{}: {} slices, {} runs in {} s; a run takes {} without huge pages and {} with all; all slices together {} \
         ms; {how}\n",
        outcome.program,
        outcome.slices.len(),
        outcome.runs.len() + 1,
        outcome.took.as_secs(),
        seconds(none),
        seconds(all),
        milliseconds(sum),
    );
    if outcome.counters.is_err() && none.is_some_and(|none| outcome.error > NOISY * none) {
        out += "runs differ by much for no reason that was told apart (one thread: taskset -c 1 pagemill advise \
                --places …; otherwise a quieter machine, or --runs)\n";
    }
    if outcome.huge < 0.9 {
        out += &format!(
            "only {:.0} % of the chosen memory was on huge pages (sudo pagemill frag compact; memory that shrinks or \
             is mapped in pieces has none)\n",
            outcome.huge * 100.0
        );
    }
    if outcome.same < 0.9 {
        out += &format!(
            "a run used only {:.0} % of the places of the first: the program lays its memory out differently each \
             time, so its slices are not the same memory\n",
            outcome.same * 100.0
        );
    }
    if outcome.failed > 0 {
        out += &format!("{} runs of the command failed and do not count\n", outcome.failed);
    }
    if outcome.interrupted.is_some() {
        out += "interrupted: from the runs that were finished\n";
    }
    out
}

/// As JSON, of a command of these words that was measured so.
pub fn json(outcome: &Outcome, command: &[String], by: impl std::fmt::Debug) -> Value {
    let slices = outcome.slices.iter().enumerate().map(|(number, slice)| {
        let (low, high) = outcome.interval(number);
        let ranges = slice.ranges.iter().map(|range| {
            let section = if range.heap { "heap" } else { "mmap" };
            json!({ "section": section, "from": range.from, "to": range.to })
        });
        json!({
            "pieces": ranges.collect::<Vec<_>>(),
            "huge_pages": slice.chunks,
            "pages_used": slice.pages,
            "walks_sampled": outcome.counters.is_ok().then_some(slice.walks),
            "benefit_seconds": outcome.benefits[number].mean,
            "interval_seconds": [low, high],
            "benefit_ns_each": outcome.each(number),
            "sure": outcome.benefits[number].sure(),
        })
    });
    let runs = outcome.runs.iter().map(|run| {
        let huge = run.huge.iter().enumerate().filter(|(_, on)| **on).map(|(slice, _)| slice);
        json!({ "seconds": run.time, "huge": huge.collect::<Vec<_>>() })
    });
    json!({
        "command": command,
        "program": outcome.program,
        "by": format!("{by:?}").to_lowercase(),
        "counters": outcome.counters.as_ref().ok(),
        "no_counters": outcome.counters.as_ref().err(),
        "slices": slices.collect::<Vec<_>>(),
        "error_seconds": outcome.error,
        "runs": runs.collect::<Vec<_>>(),
        "failed_runs": outcome.failed,
        "own_fault_ns": outcome.own,
        "huge_share": outcome.huge,
        "same_places": outcome.same,
        "interrupted": outcome.interrupted.is_some(),
        "seconds": Duration::as_secs_f64(&outcome.took),
        "profile": outcome.profile().to_string(),
    })
}

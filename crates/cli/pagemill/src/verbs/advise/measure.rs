//! The profile of a command by runs of it.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pagemill_kernel::signal::{self, Signals};
use pagemill_launch::progress::Progress;
use pagemill_model::{Bytes, Nanos};
use serde_json::{Value, json};

use super::arguments::Arguments;
use pagemill_control::huge::measure::{self, Options, Outcome, Piece};
use pagemill_launch::exit::{Exit, Interrupted};
use pagemill_launch::files;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::program::Words;
use pagemill_report::draw::text;

/// Runs without `--runs`, and the least that tell anything.
const RUNS: u32 = 50;
const FEWEST: u32 = 7;
/// What stands for a command that is not to be told.
const REDACTED: &str = "(redacted)";
/// Slices in the table without `--explain`.
const SHOWN: usize = 12;

/// A run that is predicted worse than this part of it hides what few slices bring.
const NOISY: f64 = 0.05;

/// Runs the command and writes what came of it.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let (asked, runs) = (&arguments.places, arguments.runs.unwrap_or(RUNS));
    ensure!(runs >= FEWEST, "--runs {runs}: --places needs {FEWEST} runs or more");
    let linux = pagemill_launch::context::machine();
    measure::allow_only_advised(&linux)?;
    let (command, path) = match prepare::plain(&arguments.command)? {
        Prepared::Ready(command, path) => (command, path),
        Prepared::Refused(exit) => return Ok(exit),
    };
    if let Some(output) = asked.output.as_ref().filter(|path| path.exists() && !arguments.force) {
        bail!("{} exists (use -f to overwrite it)", output.display());
    }
    pagemill_launch::context::ensure_room()?;
    let name = arguments.command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let words = Words::of(&path, &command, name)?;
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::ENDS);
    let signals = Signals::block(&watched)?;
    let options = Options {
        runs: runs as usize,
        slices: asked.slices as usize,
        seed: arguments.seed,
        by: asked.by,
        from: asked.from,
    };
    let mut progress = Progress::of("runs", u64::from(runs));
    let measured = measure::measure(&linux, &words, options, &signals, &mut |done| {
        progress.at(done as u64);
    });
    drop(progress);
    let mut outcome = match measured? {
        Ok(outcome) => outcome,
        Err(error) => return Ok(prepare::cannot_execute(&path, &error)),
    };
    let mut command: Vec<_> =
        arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if arguments.redact.redact {
        outcome.program = REDACTED.into();
        command = vec![REDACTED.into()];
    }
    if outcome.benefits.is_empty() {
        if let Some(signal) = outcome.interrupted {
            return Err(Interrupted(signal).into());
        }
        eprintln!("pagemill: {} runs are too few to tell anything", outcome.runs.len());
        return Ok(Exit::Finding);
    }
    if let Some(output) = &asked.output {
        files::write(output, outcome.profile().to_string(), arguments.force)?;
        eprintln!("wrote {}", output.display());
    }
    if arguments.printed.json {
        crate::answer::print("plan-measure", json(&outcome, &command, arguments))?;
    } else {
        print!("{}", table(&outcome, asked.explain));
    }
    Ok(outcome.interrupted.map_or(Exit::Ok, |signal| Interrupted(signal).exit()))
}

fn short(bytes: u64) -> String {
    Bytes(bytes).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A piece in words.
pub fn place(piece: &Piece) -> String {
    let (from, to) = (short(piece.from), short(piece.to));
    if piece.heap {
        format!("heap from {from} to {to}")
    } else {
        format!("mappings {from} to {to} below the top")
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}

/// The slices that matter, and what the runs were.
pub fn table(outcome: &Outcome, all: bool) -> String {
    let ranking = outcome.ranking();
    let rows = ranking.iter().take(if all { usize::MAX } else { SHOWN }).map(|&number| {
        let slice = &outcome.slices[number];
        let (low, high) = outcome.interval(number);
        let more = match slice.pieces.len() {
            0 | 1 => String::new(),
            pieces => format!(" and {} more", pieces - 1),
        };
        vec![
            slice.pieces.first().map(place).unwrap_or_default() + &more,
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

fn json(outcome: &Outcome, command: &[String], arguments: &Arguments) -> Value {
    let slices = outcome.slices.iter().enumerate().map(|(number, slice)| {
        let (low, high) = outcome.interval(number);
        let pieces = slice.pieces.iter().map(|piece| {
            let section = if piece.heap { "heap" } else { "mmap" };
            json!({ "section": section, "from": piece.from, "to": piece.to })
        });
        json!({
            "pieces": pieces.collect::<Vec<_>>(),
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
        "by": format!("{:?}", arguments.places.by).to_lowercase(),
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

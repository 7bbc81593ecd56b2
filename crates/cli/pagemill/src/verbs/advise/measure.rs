//! The profile of a command by runs of it.

use std::ffi::{OsStr, OsString};

use anyhow::{Result, ensure};
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_launch::progress::Progress;

use super::arguments::Arguments;
use crate::answer::{self, Layout};
use pagemill_control::huge::measure::{self, Options};
use pagemill_control::huge::measured;
use pagemill_launch::exit::{Exit, Interrupted};
use pagemill_launch::files;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::program::ExecArguments;

/// What it answers.
const LAYOUT: Layout = Layout::new("plan-measure", 1, "slices");

/// Runs without `--runs`, and the least that tell anything.
const RUNS: u32 = 50;
const FEWEST: u32 = 7;
/// What stands for a command that is not to be told.
const REDACTED: &str = "(redacted)";

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
    if let Some(output) = &asked.output {
        files::check(output, arguments.force)?;
    }
    pagemill_launch::context::ensure_room()?;
    let name = arguments.command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let words = ExecArguments::of(&path, &command, name)?;
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::ENDS);
    let signals = Signals::block(&watched)?;
    let options = Options {
        runs: runs as usize,
        slices: asked.slices as usize,
        seed: arguments.seed(),
        by: asked.by,
        from: asked.from,
    };
    let mut progress = Progress::of("runs", u64::from(runs));
    let outcome = measure::measure(&linux, &words, options, &signals, &mut |done| {
        progress.at(done as u64);
    });
    drop(progress);
    let mut outcome = match outcome? {
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
        notice!("{} runs are too few to tell anything", outcome.runs.len());
        return Ok(Exit::Finding);
    }
    if let Some(output) = &asked.output {
        files::write(output, outcome.profile().to_string(), arguments.force)?;
        eprintln!("wrote {}", output.display());
    }
    let json = || measured::json(&outcome, &command, asked.by);
    let text = || measured::table(&outcome, asked.explain);
    answer::tell(arguments.printed.json, &LAYOUT, json, text)?;
    Ok(outcome.interrupted.map_or(Exit::Ok, |signal| Interrupted(signal).exit()))
}

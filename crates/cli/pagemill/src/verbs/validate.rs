//! `validate`: whether the page sets that `record --with accesses` writes are what a program touched.
//!
//! The command runs once, in the emulator of the exact back end, and the emulator runs under the back end by
//! faults: one run and two recordings of it, which are held against each other.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_launch::exit::Exit;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_model::Nanos;
use pagemill_record::paired;
use pagemill_report::validation;
use pagemill_tracer::Ended;

use crate::answer::{self, Layout};
use crate::values::AccessEvents;

/// What it answers.
const LAYOUT: Layout = Layout::new("validate", 1, "touched");

const EXAMPLES: &str = "\
Examples:
  pagemill validate -- ./kernel                      both back ends on one run: which pages differ?
  pagemill validate -o both -- ./kernel && pagemill validate both
  pagemill validate --json -- ./kernel | jq .agrees
";

const AFTER: &str = "\
Exit status: 0 every page agrees; 1 pages are missing or extra; 2 usage, no such program, or it cannot be recorded.";

/// What to hold against each other.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Look again at the two recordings that -o kept.
    #[arg(value_name = "DIR", required_unless_present = "command", conflicts_with = "command")]
    recorded: Option<PathBuf>,
    /// Keep both recordings, as `faults` and `exact` in this directory, which must not exist.
    #[arg(short, long, value_name = "DIR", conflicts_with = "recorded", value_parser = crate::values::directory())]
    output: Option<PathBuf>,
    /// Length of an interval, in useful time.
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = crate::values::interval)]
    access_interval: Nanos,
    /// How faults are told one by one [default: the best that works]
    #[arg(long, value_name = "HOW", value_enum)]
    access_events: Option<AccessEvents>,
    #[command(flatten)]
    printed: crate::values::Printed,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let kept;
    let directory = match (&arguments.recorded, &arguments.output) {
        (Some(directory), _) => directory.as_path(),
        (None, Some(output)) => {
            std::fs::create_dir(output)
                .with_context(|| format!("cannot make the directory {}", output.display()))?;
            output.as_path()
        }
        (None, None) => {
            kept = tempfile::tempdir().context("cannot make a directory for the recordings")?;
            kept.path()
        }
    };
    if arguments.recorded.is_none() {
        // Half of it says nothing, and would be in the way of the next run.
        let forget = || _ = std::fs::remove_dir_all(directory);
        let ended = match prepare::plain(&arguments.command).inspect_err(|_| forget())? {
            Prepared::Ready(_, path) => {
                recorded(arguments, &path, directory).inspect_err(|_| forget())?
            }
            Prepared::Refused(exit) => {
                forget();
                return Ok(exit);
            }
        };
        match ended {
            Ended::Exited(0) => {}
            Ended::Exited(status) => notice!("the program ended with status {status}"),
            Ended::Killed(signal) => bail!("the program was ended by signal {signal}"),
            Ended::LetGo => bail!("the program was let go before its end"),
        }
    }
    let (view, whole) = validation::validate(directory, arguments.redact.redact)?;
    if arguments.printed.json {
        answer::print(&LAYOUT, validation::json(&view, whole))?;
    } else {
        pagemill_launch::stdio::stdout(&validation::text(&view));
        if !whole {
            println!("parts of the recordings are gone: of the whole this says nothing");
        }
    }
    Ok(if view.agrees() { Exit::Ok } else { Exit::Finding })
}

fn recorded(arguments: &Arguments, path: &Path, directory: &Path) -> Result<Ended> {
    pagemill_launch::context::ensure_room()?;
    let interval = arguments.access_interval.max(Nanos(1_000_000)).into();
    let events = arguments.access_events.map(AccessEvents::fault_source);
    let words = arguments.command.get(1..).unwrap_or_default();
    paired::record((path, words), (interval, events), directory)
}

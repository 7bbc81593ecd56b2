//! `hugepages`: how much of a program's anonymous memory is on huge pages, by mapping; of a running
//! process, or of a recording.

use pagemill_model::{Nanos, Pid};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use pagemill_analysis::hugepages::HugePageFold;
use pagemill_kernel::{Error, Kind, clock};
use pagemill_model::recording::{Meta, Redactor};
use pagemill_model::{Event, Fold as _};
use serde_json::json;

use crate::answer::{self, Layout};
use pagemill_launch::exit::Exit;
use pagemill_record::recorders::mappings::with_usage;
use pagemill_report::sections::hugepages as section;

/// What it answers.
const LAYOUT: Layout = Layout::new("hugepages", 1, "hugepages.mappings");

const EXAMPLES: &str = "\
Examples:
  pagemill hugepages -p 4711
  pagemill hugepages pagemill-redis-server.4711
  pagemill hugepages -p 4711 --json | jq .hugepages.total.share
";

/// Whose memory.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    /// A recording made with `record --with hugepages`.
    #[arg(value_name = "REC", required_unless_present = "pid", conflicts_with = "pid")]
    recording: Option<PathBuf>,
    /// A running process.
    #[arg(short, long, value_name = "PID", value_parser = crate::values::process)]
    pid: Option<Pid>,
    #[command(flatten)]
    redact: crate::values::Redact,
    #[command(flatten)]
    printed: crate::values::Printed,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut fold = HugePageFold::default();
    let whose = match (&arguments.recording, arguments.pid) {
        (Some(path), _) => {
            let mut reader = pagemill_launch::context::recording(path, arguments.redact.redact)?;
            fold.drain(&mut reader)?;
            format!("{} ({})", reader.meta().comm, reader.meta().pid)
        }
        (None, Some(pid)) => match sample(pid, &mut fold, arguments.redact.redact) {
            Ok(comm) => format!("{comm} ({pid})"),
            Err(error) if error.kind() == Kind::Permission => {
                notice!("{error:#}");
                return Ok(Exit::Permission);
            }
            Err(error) => return Err(error.into()),
        },
        (None, None) => bail!("name a recording or a process (-p PID)"),
    };
    let view = fold.view();
    if let Some(path) = arguments.recording.as_ref().filter(|_| view.looks == 0) {
        bail!(
            "{} has no looks at mappings (make one with: pagemill record --with hugepages)",
            path.display()
        );
    }
    let json = || json!({ "process": whose, "hugepages": section::json(&view) });
    let text = || format!("process   {whose}\n{}", section::text(&view));
    answer::tell(arguments.printed.json, &LAYOUT, json, text)?;
    Ok(Exit::Ok)
}

/// Samples a running process once; its name.
fn sample(pid: Pid, fold: &mut HugePageFold, redact: bool) -> Result<String, Error> {
    let linux = pagemill_launch::context::machine();
    let gone = |error: Error| match error.kind() {
        Kind::Gone | Kind::NotFound => {
            let object = format_args!("process {pid}");
            Error::new(Kind::Gone, "look at", object, "there is no such process")
        }
        _ => error,
    };
    let mut meta = Meta { comm: linux.stat(pid).map_err(gone)?.comm, ..Meta::default() };
    let entries = linux.smaps(pid).map_err(gone)?;
    let now = Nanos::from(clock::monotonic());
    let mut redactor = redact.then(Redactor::default);
    redactor.iter_mut().for_each(|redactor| redactor.meta(&mut meta));
    for entry in &entries {
        let mut event = Event::Mapping(Box::new(with_usage(now, pid, entry)));
        redactor.iter_mut().for_each(|redactor| redactor.event(&mut event));
        fold.event(&event);
    }
    Ok(meta.comm)
}

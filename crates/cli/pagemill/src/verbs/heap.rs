//! `heap`: the statistics of a running heap, without stopping the program.

use std::thread;
use std::time::Duration;

use crate::answer::{self, Layout};
use anyhow::{Result, bail};
use clap::Args;
use pagemill_analysis::heap::HeapFold;
use pagemill_control::heap;
use pagemill_launch::exit::{Exit, permitted};
use pagemill_launch::stdio;
use pagemill_model::{Event, Fold as _, Nanos, Pid};
use pagemill_record::sampler::Sampler;
use pagemill_report::heap_frame::HeapFrame;

/// What it answers.
const LAYOUT: Layout = Layout::new("heap", 1, "sample");

const EXAMPLES: &str = "\
Examples:
  pagemill heap 4711
  pagemill heap redis-server
  pagemill heap 4711 --watch 500ms
  pagemill heap 4711 --json | jq .sample.footprint_bytes
  pagemill heap 4711 --compact          ask for a compaction pass and wait for it
";

const AFTER: &str = "\
Exit status: 0 shown; 2 there is no such process or it has no pagemill heap; 4 it may not be looked into.";

/// Which process to look at, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The process: its id or its name.
    #[arg(value_name = "PID", value_parser = crate::values::process)]
    pid: Pid,
    /// Print a frame again and again, every INTERVAL, until the process ends.
    #[arg(
        long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s",
        value_parser = crate::values::interval
    )]
    watch: Option<Nanos>,
    /// Print one frame (the default).
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// Ask the heap for a compaction pass and wait until it is done.
    #[arg(long)]
    compact: bool,
}

/// The shortest time between frames: each costs the process a walk of its page tables.
const WATCH_FLOOR: Nanos = Nanos(10_000_000);

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    permitted(frames(arguments))
}

fn frames(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let redact = arguments.redact.redact;
    let mut sampler = Sampler::attach(linux.clone(), arguments.pid)?;
    let mut first = sampler.sample()?;
    if first.is_some() && sampler.page().is_none() && sampler.comm() == WRAPPER {
        let pid = heap::under_wrapper(&linux, arguments.pid)?;
        sampler = Sampler::attach(linux.clone(), pid)?;
        first = sampler.sample()?;
        let (wrapper, program) = (arguments.pid, if redact { "program" } else { sampler.comm() });
        eprintln!(
            "process {wrapper} is pagemill itself; shown is the program under it, {pid} ({program})"
        );
    }
    let pid = sampler.pid();
    if first.is_none() {
        match linux.stat(pid) {
            Ok(stat) if stat.kernel_thread => {
                bail!("process {pid} ({}) is a thread of the kernel: it has no heap", stat.comm)
            }
            _ => bail!("process {pid} has ended"),
        }
    }
    let Some(page) = sampler.page() else {
        let below = heap::below(&linux, pid);
        let way = match below.first() {
            Some(child) => format!("one of its descendants has: pagemill heap {child}"),
            None => "start the program with: pagemill run --heap compact -- CMD".to_owned(),
        };
        let comm = if redact { "program" } else { sampler.comm() };
        bail!("process {pid} ({comm}) has no pagemill heap ({way})");
    };
    if arguments.compact {
        eprintln!("{}", heap::compact(&page, pid)?);
    }
    let mut fold = HeapFold::default();
    let interval = arguments.watch.map(|interval| Duration::from(interval.max(WATCH_FLOOR)));
    let clears = interval.is_some() && !arguments.printed.json;
    let mut is_first = true;
    while let Some(sample) = sampler.sample()? {
        fold.event(&Event::Heap(Box::new(sample.clone())));
        let comm = if redact { "program" } else { sampler.comm() };
        let not_measured = sampler.not_measured();
        let frame = HeapFrame { comm, sample: &sample, view: fold.view(), not_measured };
        let text = match (arguments.printed.json, interval) {
            (true, _) => answer::text(&LAYOUT, frame.json(), interval.map(|_| is_first))?,
            (false, Some(_)) if stdio::terminal().is_none() => format!("{}\n", frame.text()),
            (false, _) => frame.text(),
        };
        is_first = false;
        // Whoever read us has seen enough.
        if !stdio::frame(&text, clears) {
            return Ok(Exit::Ok);
        }
        let Some(interval) = interval else { return Ok(Exit::Ok) };
        thread::sleep(interval);
    }
    eprintln!("process {pid} has ended");
    Ok(Exit::Ok)
}

/// The name of the process that `run --ksm` and `record` stay as, above the program.
const WRAPPER: &str = "pagemill";

//! `validate`: whether the page sets that `record --with accesses` writes are what a program touched.
//!
//! The command runs once, in the emulator of the exact back end, and the emulator runs under the back end by
//! faults: one run and two recordings of it, which `analysis::validate` holds against each other. The
//! program's memory is the emulator's at the same addresses, so that nothing has to be matched.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use pagemill_analysis::validate::{Difference, KINDS, MOST, Tally, Validation, ValidationView};
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{clock, poll};
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Nanos, Source as _};
use pagemill_tracer::Ended;
use serde_json::json;

use crate::values::AccessEvents;
use pagemill_launch::exit::Exit;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_record::recorders::accesses::{Done, Traced};
use pagemill_record::recorders::exact::{Emulated, Exact};

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

/// How finely the exact recording tells times: far finer than an interval.
const CELL: Duration = Duration::from_millis(1);

/// Names of the recordings in their directory.
const FAULTS: &str = "faults";
const EXACT: &str = "exact";

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
        let ended = record(arguments, directory).inspect_err(|_| {
            // Half of it says nothing, and would be in the way of the next run.
            let _ = std::fs::remove_dir_all(directory);
        })?;
        match ended {
            Ended::Exited(0) => {}
            Ended::Exited(status) => eprintln!("pagemill: the program ended with status {status}"),
            Ended::Killed(signal) => bail!("the program was ended by signal {signal}"),
            Ended::LetGo => bail!("the program was let go before its end"),
        }
    }
    let (view, whole) = validate(directory, arguments.redact.redact)?;
    if arguments.printed.json {
        crate::answer::print("validate", value(&view, whole))?;
    } else {
        pagemill_launch::stdio::stdout(&text(&view));
        if !whole {
            println!("parts of the recordings are gone: of the whole this says nothing");
        }
    }
    Ok(if view.agrees() { Exit::Ok } else { Exit::Finding })
}

/// Runs the command under both back ends at once; how it ended.
fn record(arguments: &Arguments, directory: &Path) -> Result<Ended> {
    let mut blocked: Vec<i32> = signal::SENT_TO_PROGRAMS.to_vec();
    blocked.push(signal::CHILD);
    let signals = Signals::block(&blocked)?;
    let Prepared::Ready(_, path) = prepare::plain(&arguments.command)? else {
        bail!("nothing is recorded");
    };
    pagemill_launch::context::ensure_room()?;
    let emulated = Emulated::prepare(CELL)?;
    let words = emulated.words(&path, arguments.command.get(1..).unwrap_or_default())?;
    let (program, rest) = words.split_first().context("the emulator has a name")?;
    let mut command = Command::new(program);
    command.args(rest);
    let interval = Duration::from(arguments.access_interval.max(Nanos(1_000_000)));
    let events = arguments.access_events.map(AccessEvents::fault_source);
    let options = pagemill_tracer::Options { interval, events, ..Default::default() };
    let traced = Traced::launch(
        pagemill_launch::context::machine(),
        options,
        Path::new(program),
        &command,
        program,
        false,
    )?
    .with_context(|| format!("cannot execute {}", program.display()))?;
    let meta = Meta {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pid: traced.pid().into(),
        interval: Nanos::from(interval),
        ..pagemill_launch::context::meta(&pagemill_launch::context::machine())
    };
    let page = meta.page_size.0;
    let create = |name: &str| Writer::create(directory.join(name), meta.clone(), false, None);
    let made = create(FAULTS).and_then(|faults| Ok((faults, create(EXACT)?)));
    let (mut faults, mut exact) = made.inspect_err(|_| {
        // It was started to be recorded, a moment ago.
        let _ = signal::send(traced.pid(), signal::KILL);
    })?;
    let (collector, room) = emulated.into_parts();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let done: Result<Done> = std::thread::scope(|scope| {
        let (exact, ended) = (&mut exact, &ended);
        let take = move || -> Result<()> {
            let (mut collector, mut sink) = (collector, Exact::new(exact, page, interval));
            loop {
                let over = ended.load(std::sync::atomic::Ordering::Acquire);
                collector.read(|told| sink.take(told))?;
                if over && !collector.busy() {
                    break;
                }
                poll::sleep(&collector.descriptors(), Duration::from_millis(20))?;
            }
            sink.finish();
            sink.failure.take().map_or(Ok(()), |error| Err(error.into()))
        };
        let taking = std::thread::Builder::new().spawn_scoped(scope, take);
        let taking =
            taking.context("cannot start a thread (raise the limit on processes: ulimit -u)")?;
        let done = traced.record(&signals, page, &mut faults);
        ended.store(true, std::sync::atomic::Ordering::Release);
        taking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    });
    drop(room);
    let Done { ended, failure, .. } = done?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    let now = Nanos::from(clock::monotonic());
    faults.finish(now)?;
    exact.finish(now)?;
    Ok(ended)
}

/// Holds the two recordings in `directory` against each other; the flag says whether both are there as they were
/// written.
fn validate(directory: &Path, redact: bool) -> Result<(ValidationView, bool)> {
    let mut exact = pagemill_launch::context::recording(&directory.join(EXACT), redact)?;
    let mut faults = pagemill_launch::context::recording(&directory.join(FAULTS), redact)?;
    let whole = exact.missing().is_none() && faults.missing().is_none();
    let lost = faults.meta().accesses.as_ref().map_or(0, |setup| setup.lost);
    if lost > 0 {
        eprintln!("pagemill: {lost} faults were lost, so who touched a page is not always known");
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

/// `whole`: whether the recordings are; pages that agree in what is left of them say nothing.
fn value(view: &ValidationView, whole: bool) -> serde_json::Value {
    let tally = |tally: &Tally| {
        json!({
            "exact": tally.exact, "missing": tally.missing, "extra": tally.extra,
            "kernel": tally.kernel, "emulator": tally.emulator, "around": tally.around, "kept": tally.kept,
        })
    };
    let kinds = |tallies: &std::collections::BTreeMap<&'static str, Tally>| {
        tallies
            .iter()
            .map(|(kind, one)| ((*kind).to_owned(), tally(one)))
            .collect::<serde_json::Map<_, _>>()
    };
    json!({
        "agrees": (whole || !view.agrees()).then(|| view.agrees()),
        "intervals": view.intervals,
        "on_borders": view.on_borders,
        "touched": kinds(&view.touched),
        "written": kinds(&view.written),
        "touched_in_intervals": tally(&view.touched_in_intervals),
        "written_in_intervals": tally(&view.written_in_intervals),
        "differences": view.differences.iter().map(|one| json!({
            "missing": one.missing, "written": one.written, "pid": one.pid,
            "address": one.address, "name": one.name, "interval": one.interval,
        })).collect::<Vec<_>>(),
    })
}

fn text(view: &ValidationView) -> String {
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
    let table = pagemill_report::draw::text::table(&header, &rows);
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

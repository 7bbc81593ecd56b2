//! One run recorded twice: each access by the exact back end, and pages by faults.
//!
//! The program's memory is the emulator's at the same addresses, so that nothing has to be matched.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{clock, poll};
use pagemill_launch::context::{machine, meta};
use pagemill_model::Nanos;
use pagemill_model::recording::{Meta, Writer};
use pagemill_tracer::{Ended, FaultSource, Options};

use crate::recorders::accesses::{TraceOutcome, Traced};
use crate::recorders::exact::{Emulated, Exact};

/// How finely the exact recording tells times: far finer than an interval.
const CELL: Duration = Duration::from_millis(1);

/// Name of the recording by faults in its directory.
pub const FAULTS: &str = "faults";
/// Name of the exact one.
pub const EXACT: &str = "exact";

/// Runs a program with these words in the emulator of the exact back end, and that under the back end by faults: two
/// recordings of one run, [`FAULTS`] and [`EXACT`] in `directory`. How it ended.
///
/// # Errors
/// It cannot be started, or not be recorded by both.
pub fn record(
    (path, arguments): (&Path, &[OsString]),
    (interval, events): (Duration, Option<FaultSource>),
    directory: &Path,
) -> Result<Ended> {
    let mut blocked: Vec<i32> = signal::SENT_TO_PROGRAMS.to_vec();
    blocked.push(signal::CHILD);
    let signals = Signals::block(&blocked)?;
    let emulated = Emulated::prepare(CELL)?;
    let words = emulated.words(path, arguments)?;
    let (program, rest) = words.split_first().context("the emulator has a name")?;
    let mut command = Command::new(program);
    command.args(rest);
    let options = Options { interval, events, ..Default::default() };
    let traced = Traced::launch(machine(), options, Path::new(program), &command, program, false)?
        .with_context(|| format!("cannot execute {}", program.display()))?;
    let header = Meta {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        pid: traced.pid().into(),
        interval: Nanos::from(interval),
        ..meta(&machine())
    };
    let page = header.page_size.0;
    let create = |name: &str| Writer::create(directory.join(name), header.clone(), false, None);
    let made = create(FAULTS).and_then(|faults| Ok((faults, create(EXACT)?)));
    let (mut faults, mut exact) = made.inspect_err(|_| {
        // It was started to be recorded, a moment ago.
        let _ = signal::send(traced.pid(), signal::KILL);
    })?;
    let (collector, room) = emulated.into_parts();
    let ended = AtomicBool::new(false);
    let done: Result<TraceOutcome> = std::thread::scope(|scope| {
        let (exact, ended) = (&mut exact, &ended);
        let take = move || -> Result<()> {
            let (mut collector, mut sink) = (collector, Exact::new(exact, page, interval));
            loop {
                let over = ended.load(Ordering::Acquire);
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
        ended.store(true, Ordering::Release);
        taking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    });
    drop(room);
    let TraceOutcome { ended, failure, .. } = done?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    let now = Nanos::from(clock::monotonic());
    faults.finish(now)?;
    exact.finish(now)?;
    Ok(ended)
}

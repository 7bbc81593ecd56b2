//! `record --with accesses --backend exact -- CMD`.

use pagemill_model::{Nanos, Pid};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::clock;
use pagemill_kernel::process::signal::Signals;
use pagemill_model::recording::Writer;
use pagemill_model::units::counted;

use super::arguments::{Arguments, INTERVAL_FLOOR};
use pagemill_launch::exit::{self, Exit};
use pagemill_launch::prepare;
use pagemill_record::recorders::exact::{Emulated, Exact};

/// Runs the command, whose file is `path`, in the emulator.
pub(super) fn record(arguments: &Arguments, signals: &Signals, path: &Path) -> Result<Exit> {
    let refused = |error: anyhow::Error| {
        notice!("nothing is recorded: {error:#}");
        Ok(Exit::WrapperFailed)
    };
    let interval = Duration::from(arguments.access_interval.max(INTERVAL_FLOOR));
    let cell = if arguments.every { Duration::ZERO } else { interval };
    let prepared = Emulated::prepare(cell).and_then(|emulated| {
        let words = emulated.words(path, arguments.command.get(1..).unwrap_or_default())?;
        Ok((emulated, words))
    });
    let (emulated, words) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return refused(error),
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    // The name that the program sees is the one that the command has.
    if let Some(name) = arguments.command.first() {
        command.arg0(name);
    }
    let myself = pagemill_launch::context::machine().stat(Pid::own())?;
    let comm = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut meta = arguments.meta(&myself, interval);
    meta.comm = comm.chars().take(15).collect();
    let output = arguments.directory(&meta.comm, myself.pid);
    let mut writer = match Writer::create(&output, meta, arguments.force, None) {
        Ok(writer) => writer,
        Err(error) => return refused(error.into()),
    };
    arguments.flush(&mut writer);
    let page = pagemill_kernel::page_size() as u64;
    let mut sink = Exact::new(&mut writer, page, interval);
    let status = match emulated.record(signals, command, &mut sink)? {
        Ok(status) => status,
        Err(error) => return Ok(prepare::cannot_execute(Path::new(&words[0]), &error)),
    };
    let (intervals, accesses, failure) = (sink.intervals, sink.accesses, sink.failure.take());
    let meta = writer.meta_mut();
    meta.exit_status = Some(exit::shown(status).into());
    meta.exit_signal = status.signal().map(|signal| signal as u64);
    if let (Some(setup), Some(signal)) = (&mut meta.accesses, status.signal()) {
        setup.untraced.push(format!(
            "the last {} ms of each thread: the program was ended by signal {signal}",
            interval.as_millis()
        ));
    }
    let comm = meta.comm.clone();
    let finished = match failure {
        Some(error) => Err(error),
        None => writer.finish(Nanos::from(clock::monotonic())),
    };
    match finished {
        Ok(path) => {
            let word = pagemill_model::shell::quoted(&path);
            let path = path.display();
            let intervals = counted(intervals, "interval", "intervals");
            let accesses = counted(accesses, "access", "accesses");
            eprintln!("recorded {intervals}, {accesses} of {comm} in {path}");
            eprintln!("next: pagemill report {word}");
        }
        Err(error) => {
            notice!("recording failed, the program was not disturbed: {error:#}")
        }
    }
    Ok(Exit::of(status))
}

//! A program that runs as our child: signals are passed on to it, and its status is ours.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pagemill_kernel::process::signal::{self, Received, Signals};
use pagemill_model::Pid;

use super::prepare::cannot_execute;
use crate::exit::Exit;

/// What stays beside a program while it runs.
pub trait Companion {
    /// What it does, as the object of "… is no longer governed" and the like.
    const WHAT: &'static str;

    /// The program has started.
    fn watch(&mut self, pid: Pid);

    /// Looks once; returns how long to wait before the next look.
    ///
    /// # Errors
    /// The program cannot be governed any more: it goes on without.
    fn tick(&mut self) -> Result<Duration>;

    /// This signal was sent to us, and so to the program.
    fn passed_on(&mut self, _: i32) {}

    /// There will be no program: it could not be executed.
    fn never_started(&mut self) {}

    /// The program is being stopped.
    ///
    /// # Errors
    /// As of [`Companion::tick`].
    fn suspend(&mut self) -> Result<()>;

    /// The program has ended: puts everything back.
    ///
    /// # Errors
    /// Something could not be put back.
    fn stop(self) -> Result<()>;
}

/// Holds the signals that [`supervise`] passes on, from before a companion changes a setting: one that came in between
/// would end this process with the setting changed.
///
/// # Errors
/// As of [`Signals::block`].
pub fn hold_signals() -> Result<Signals> {
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::SENT_TO_PROGRAMS);
    watched.extend_from_slice(signal::STOPS);
    Ok(Signals::block(&watched)?)
}

/// Ends what the companion does, and says if that did not work.
fn end(companion: impl Companion) {
    if let Err(error) = companion.stop() {
        notice!("{error:#}");
    }
}

/// Runs the program as a child in the same process group, beside its companion.
///
/// # Errors
/// The program or signals cannot be waited for; what the companion cannot do is said, and is no error.
pub fn supervise<C: Companion>(
    mut command: Command,
    path: &Path,
    mut companion: C,
    signals: &Signals,
) -> Result<Exit> {
    signals.restore_in(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let exit = cannot_execute(path, &error);
            companion.never_started();
            end(companion);
            return Ok(exit);
        }
    };
    companion.watch(Pid(child.id()));
    let status = attend(&mut child, signals, &mut companion);
    end(companion);
    Ok(Exit::of(status?))
}

/// Waits for a child, with a look at it every `pause`, and passes signals on until it has ended. `try_wait` is
/// [`Child::try_wait`], or does it.
///
/// # Errors
/// As of `try_wait`; the kernel refuses to wait for signals.
pub fn pass_on(
    signals: &Signals,
    child: Pid,
    pause: Duration,
    mut try_wait: impl FnMut() -> io::Result<Option<ExitStatus>>,
) -> Result<ExitStatus> {
    loop {
        if let Some(status) = try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        let received = signals.wait(pause)?;
        if let Some(received) = received.filter(|received| received.signal != signal::CHILD) {
            pass(received, child);
        }
    }
}

/// Passes a signal on. The terminal's own have reached the child already: it is in the same group. One that the child
/// has ended before is lost like any signal to an ended process.
pub fn pass(received: Received, child: Pid) {
    if !received.from_kernel {
        let _ = signal::send(child, received.signal);
    }
}

/// Governs and passes signals on until the child has ended.
fn attend<C: Companion>(
    child: &mut Child,
    signals: &Signals,
    companion: &mut C,
) -> Result<ExitStatus> {
    let mut failed = false;
    loop {
        let pause = if failed {
            Duration::from_secs(1)
        } else {
            companion.tick().unwrap_or_else(|error| {
                notice!("{} is no longer governed: {error:#}", C::WHAT);
                failed = true;
                Duration::from_secs(1)
            })
        };
        let received = signals.wait(pause)?;
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        let Some(received) = received.filter(|received| received.signal != signal::CHILD) else {
            continue;
        };
        companion.passed_on(received.signal);
        pass(received, Pid(child.id()));
        if signal::STOPS.contains(&received.signal) {
            // While stopped we cannot govern.
            if let Err(error) = companion.suspend() {
                notice!("{} is no longer governed: {error:#}", C::WHAT);
                failed = true;
            }
            signal::stop_myself()?;
        }
    }
}

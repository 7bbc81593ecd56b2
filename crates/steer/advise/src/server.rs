//! A run of a server: it is started, waited for until it listens, and asked by a client for a while. Then it rests for
//! a moment, so that memory is seen that comes back when nobody asks, and is asked to end.
//!
//! CPU time is what the server and all that it has started used while the client asked; the client's own is not in it.
//! Wall time is the client's. Memory is looked at from when the client begins, to the end of the rest.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pagemill_kernel::Linux;
use pagemill_kernel::process::Resources;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_launch::exit::Interrupted;
use pagemill_model::Pid;

use crate::ending::stop;
use crate::printed::{Printed, Reading};
use crate::stall::Heartbeat;

/// How a server is asked.
#[derive(Clone, Debug)]
pub struct Load {
    /// The client, a line for `sh`.
    pub client: String,
    /// For so long at the most; the client is then asked to end, which is no failure.
    pub time: Duration,
}

impl Load {
    /// How long a run takes, about, where the client asks for as long as it may.
    pub fn longest(&self) -> Duration {
        self.time + REST + SETTLED
    }
}

/// How long a server has to listen; one that does not by then is asked all the same.
const READY: Duration = Duration::from_secs(20);
/// How long a server that listens is left alone before it is asked.
const SETTLED: Duration = Duration::from_millis(100);
/// How long it rests after it was asked.
const REST: Duration = Duration::from_secs(1);
/// Time between two looks at both.
const PACE: Duration = Duration::from_millis(20);

/// What came of it.
pub(crate) struct LoadOutcome {
    /// From the start of the server to that of the client, seconds.
    pub from: f64,
    /// How long the client asked.
    pub wall: Duration,
    /// What the server used meanwhile.
    pub used: Resources,
    /// What the client printed, on either stream.
    pub said: [Printed; 2],
    /// What failed, if something did.
    pub failed: Option<String>,
}

impl LoadOutcome {
    /// From the start of the server to the end of the client, seconds.
    pub(crate) fn until(&self) -> f64 {
        self.from + self.wall.as_secs_f64()
    }
}

/// Asks a server that was just started, and ends it.
pub(crate) fn ask(
    linux: &Linux,
    server: &mut Child,
    load: &Load,
    signals: &Signals,
    beat: Heartbeat<'_>,
) -> Result<LoadOutcome> {
    let begun = Instant::now();
    let alive = wait_until_ready(linux, server, signals, beat)?;
    let from = begun.elapsed().as_secs_f64();
    let (out, err) = (std::io::pipe()?, std::io::pipe()?);
    let mut client = Command::new("sh");
    client.args(["-c", &load.client]).stdin(Stdio::null()).stdout(out.1).stderr(err.1);
    client.process_group(0);
    signals.restore_and_end_with_us(&mut client);
    let said = [Printed::read(out.0)?, Printed::read(err.0)?];
    let (before, asking) = (used_by(linux, server), Instant::now());
    let mut failed = if alive { None } else { Some(ended_early(server)?) };
    let mut used = Resources::default();
    if alive {
        let mut asks = client.spawn().context("cannot start sh for the client")?;
        failed = attend(server, &mut asks, load.time, signals, beat)?;
        let after = used_by(linux, server);
        used = Resources {
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            faults: after.faults.saturating_sub(before.faults),
            resident: 0,
        };
    }
    // With it go this process's copies of the writing ends.
    drop(client);
    let wall = asking.elapsed();
    if failed.is_none() {
        pause(server, REST, signals)?;
        if server.try_wait()?.is_some() {
            failed = Some("the server ended after it was asked".into());
        }
    }
    stop(server)?;
    let [out, err] = said.map(Reading::end);
    Ok(LoadOutcome { from, wall, used, said: [out?, err?], failed })
}

/// That a server has ended too early, and what to do where it did so as if all was well.
fn ended_early(server: &mut Child) -> Result<String> {
    let says = "the server ended before it was asked".to_owned();
    Ok(match server.try_wait()? {
        Some(status) if status.success() => {
            says + " (one that goes on in the background cannot be measured: have it stay in the foreground)"
        }
        _ => says,
    })
}

/// What a server and all that it has started and that lives have used.
fn used_by(linux: &Linux, server: &Child) -> Resources {
    let mut sum = Resources::default();
    for pid in linux.descendants(&[Pid(server.id())]) {
        // One that ends meanwhile has used nothing here.
        let Ok(stat) = linux.stat(pid) else { continue };
        sum.user += stat.user;
        sum.system += stat.system;
        sum.faults += stat.minor_faults + stat.major_faults;
    }
    sum
}

/// Waits until the server listens, or for so long as that may take; false if it ended.
fn wait_until_ready(
    linux: &Linux,
    server: &mut Child,
    signals: &Signals,
    beat: Heartbeat<'_>,
) -> Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < READY {
        beat(None);
        if server.try_wait()?.is_some() {
            return Ok(false);
        }
        let pids = linux.descendants(&[Pid(server.id())]);
        if pids.into_iter().any(|pid| linux.listens(pid).unwrap_or(false)) {
            pause(server, SETTLED, signals)?;
            break;
        }
        pause(server, PACE, signals)?;
    }
    Ok(server.try_wait()?.is_none())
}

/// Waits while the client asks; what failed, if something did.
fn attend(
    server: &mut Child,
    client: &mut Child,
    time: Duration,
    signals: &Signals,
    beat: Heartbeat<'_>,
) -> Result<Option<String>> {
    let begun = Instant::now();
    loop {
        beat(None);
        if let Some(status) = client.try_wait()? {
            return Ok((!status.success()).then(|| format!("the client ended with {status}")));
        }
        if let Some(status) = server.try_wait()? {
            stop(client)?;
            return Ok(Some(format!("the server ended with {status} while it was asked")));
        }
        if begun.elapsed() >= time {
            stop(client)?;
            return Ok(None);
        }
        let rest = time.saturating_sub(begun.elapsed()).min(PACE);
        if let Some(signal) = interrupted(rest, signals)? {
            stop(client)?;
            stop(server)?;
            return Err(Interrupted(signal).into());
        }
    }
}

/// Lets time pass; an error if this is to end.
fn pause(server: &mut Child, time: Duration, signals: &Signals) -> Result<()> {
    let until = Instant::now() + time;
    while let rest = until.saturating_duration_since(Instant::now())
        && !rest.is_zero()
    {
        if let Some(signal) = interrupted(rest.min(PACE), signals)? {
            stop(server)?;
            return Err(Interrupted(signal).into());
        }
    }
    Ok(())
}

/// Waits so long at most; the signal to end, if one came.
fn interrupted(time: Duration, signals: &Signals) -> Result<Option<i32>> {
    let received = signals.wait(time)?.map(|received| received.signal);
    Ok(received.filter(|signal| *signal != signal::CHILD))
}

//! The Redis experiment: a server in an arm, the published load, a window, and what it cost.
//!
//! ```text
//!  start ── insertion ───────────┬── settle ──────────┬─ until flat ─┬ BGSAVE (5) ─ end
//!           t0                   │  activedefrag on   │  (activedefrag
//!           │◄───────── window: 7.5 s ───────────────►│   only)      │
//!           pings every 2 ms ────────────────────────►│              │
//!                                                                    final memory, CPU
//! ```
//!
//! Where inserting takes so long that less than the rest (3 s) of the window is left, the window ends that much after
//! the last insertion: read at the moment the load ends, memory says nothing of what compaction makes of it.
//!
//! Flat means: Pss moved by less than a share of itself during a given time, both in the file of
//! the experiment; a server that does not become flat in time is reported as it was then.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagemill_workloads::fragment::{self, Phase};
use pagemill_workloads::resp::{Client, Reply};

use super::arm::{Allocator, Arm};
use super::experiment::{self, Load, Redis};
use super::outcome::{self, Outcome};
use super::target::{Program, Sample, Stage, Target};
use pagemill_launch::exit::Interrupted;

/// Patience with one reply.
const REPLY: Duration = Duration::from_secs(60);
/// Patience with a server that starts, and with one that saves or ends.
const START: Duration = Duration::from_secs(20);
const SAVE: Duration = Duration::from_secs(60);
/// Seed of the keys: the same keys in every cell.
const KEYS: u64 = 1;
/// Keys of the last phase whose values are read back at the end.
const READ_BACK: u64 = 1_000;

/// The load at `scale`: fewer keys and less memory, the same sizes of values.
pub fn scaled(load: &Redis, scale: f64, window: Option<f64>) -> Redis {
    let phases = load.phases.iter().map(|phase| experiment::Phase {
        keys: ((phase.keys as f64 * scale) as u64).max(1),
        bytes: phase.bytes,
    });
    Redis {
        phases: phases.collect(),
        // An empty server takes a megabyte, which is part of maxmemory.
        maxmemory_mb: ((load.maxmemory_mb as f64 * scale).ceil() as u64).max(4),
        window_seconds: window.unwrap_or(load.window_seconds),
        rest_seconds: window.map_or(load.rest_seconds, |asked| asked.min(load.rest_seconds)),
        ..load.clone()
    }
}

/// Runs one cell.
///
/// # Errors
/// The server does not come up or answers with an error, or a signal to end has come.
pub fn run(
    stage: &Stage<'_>,
    directory: &Path,
    program: &Program,
    arm: &Arm,
    load: &Redis,
    way: Load,
) -> Result<Outcome> {
    let socket = directory.join("redis.sock");
    let mut program = program.clone();
    let maxmemory = format!("{}mb", load.maxmemory_mb);
    for (name, value) in [
        ("--port", "0".as_ref()),
        ("--unixsocket", socket.as_os_str()),
        ("--save", "".as_ref()),
        ("--daemonize", "no".as_ref()),
        ("--dir", directory.as_os_str()),
        ("--dbfilename", "dump.rdb".as_ref()),
        ("--maxmemory", maxmemory.as_ref()),
        ("--maxmemory-policy", "allkeys-lru".as_ref()),
        // Evict at once what is too much, not in slices between commands.
        ("--maxmemory-eviction-tenacity", "100".as_ref()),
    ] {
        program.arguments.extend([name.into(), value.to_owned()]);
    }
    if !matches!(arm.allocator, Allocator::Bundled { .. }) {
        // Redis 7 asks for this; Redis 6, which the bundled one is, does not know it.
        program.arguments.extend(["--enable-debug-command".into(), "yes".into()]);
    }
    // What the last server left: a socket would only refuse, a dump would be loaded.
    let _ = fs::remove_file(&socket);
    let _ = fs::remove_file(directory.join("dump.rdb"));
    let mut target = stage.start(arm, &program)?;
    let measured = connect(stage, &mut target, &socket)
        .and_then(|client| measure(stage, &mut target, client, &socket, arm, load, way));
    let (mut outcome, mut client) = match measured {
        Ok(measured) => measured,
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => {
            let log = fs::read_to_string(&program.output).unwrap_or_default();
            return Err(error.context(format!("redis-server, {:?}", outcome::last_line(&log))));
        }
    };
    // A server that shuts down closes the connection instead of answering.
    let _ = client.command(&[b"SHUTDOWN", b"NOSAVE"]);
    let (ended, seen) = target.finish(stage, limit(load))?;
    ensure!(ended.status.success(), "redis-server ended with {}", ended.status);
    let mut checked = outcome::checked(arm, seen)?;
    // Figures taken at the right moment go before those of the last sample.
    checked.metrics.extend(std::mem::take(&mut outcome.metrics));
    checked.notes.extend(outcome.notes);
    let window = checked.metrics["ended_at"];
    checked.samples.retain(|sample| sample.seconds <= window);
    Ok(checked)
}

/// After its start, a server should be through with everything by then.
fn limit(load: &Redis) -> Duration {
    Duration::from_secs_f64(load.window_seconds + load.converge_at_most_seconds + 300.0)
}

/// Waits until the server answers.
fn connect(stage: &Stage<'_>, target: &mut Target, socket: &Path) -> Result<Client> {
    loop {
        if let Ok(mut client) = Client::connect(socket, REPLY)
            && matches!(client.command(&[b"PING"]), Ok(Reply::Status(_)))
        {
            return Ok(client);
        }
        let state = stage.linux.stat(target.pid()).map(|stat| stat.state);
        ensure!(matches!(state, Ok(state) if state != 'Z'), "the server ended at its start");
        ensure!(target.elapsed() < START, "no answer within {} s", START.as_secs());
        stage.wait(Duration::from_millis(20))?;
    }
}

fn measure(
    stage: &Stage<'_>,
    target: &mut Target,
    mut client: Client,
    socket: &Path,
    arm: &Arm,
    load: &Redis,
    way: Load,
) -> Result<(Outcome, Client)> {
    let defragments = matches!(arm.allocator, Allocator::Bundled { defragments: true, .. });
    let mut outcome = Outcome::default();
    if let Allocator::Bundled { .. } = arm.allocator {
        let server = client.info("server")?;
        let memory = client.info("memory")?;
        outcome.notes.push(format!(
            "Redis {}, {}",
            field(&server, "redis_version")?,
            field(&memory, "mem_allocator")?
        ));
    }
    let (cpu_before, _) = target.cpu(&stage.linux);
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let longest_reply = thread::scope(|scope| {
        let probe = || pings(socket, Duration::from_millis(load.ping_every_ms), &stop);
        let prober = thread::Builder::new().spawn_scoped(scope, probe);
        let prober = prober.context("no thread for the connection that measures reply times")?;
        let mut during = || -> Result<()> {
            let waited = insert(stage, &mut client, load, way)?;
            let insertion = began.elapsed().saturating_sub(waited);
            outcome.metrics.insert("insertion".into(), insertion.as_secs_f64());
            if defragments {
                defragment(&mut client)?;
            }
            let window = Duration::from_secs_f64(load.window_seconds);
            let rest = Duration::from_secs_f64(load.rest_seconds);
            stage.wait(window.saturating_sub(began.elapsed()).max(rest))
        };
        let during = during();
        stop.store(true, Ordering::Relaxed);
        let longest = prober.join().expect("the prober does not panic");
        during.and(longest.context("the connection that measures reply times broke"))
    })?;
    outcome.metrics.insert("longest_reply".into(), longest_reply.as_secs_f64());
    let sample = target.sample(&stage.linux).context("the server is gone")?;
    outcome.metrics.insert("window_pss".into(), sample.pss as f64);
    if defragments {
        let ended = Instant::now();
        let flat = until_flat(stage, target, load)?;
        let after = began.elapsed().as_secs_f64();
        outcome.metrics.insert("converged_after".into(), after);
        if !flat {
            let waited = ended.elapsed().as_secs();
            outcome.notes.push(format!("memory was not flat after {waited} s more"));
        }
    }
    let sample = target.sample(&stage.linux).context("the server is gone")?;
    let (cpu, ksmd) = target.cpu(&stage.linux);
    outcome.metrics.insert("ended_at".into(), target.elapsed().as_secs_f64());
    outcome.metrics.insert("final_pss".into(), sample.pss as f64);
    outcome.metrics.extend(sample.charge.map(|bytes| ("final_charge".into(), bytes as f64)));
    outcome.metrics.insert("cpu".into(), cpu.saturating_sub(cpu_before).as_secs_f64());
    if matches!(arm.allocator, Allocator::Ours { ksm: true, .. }) {
        outcome.metrics.insert("ksmd_cpu".into(), ksmd.as_secs_f64());
    }
    let maps = stage.linux.maps(target.pid())?.len();
    outcome.metrics.insert("vmas".into(), maps as f64);
    at_the_end(stage, &mut client, load, way, &mut outcome)?;
    Ok((outcome, client))
}

/// Inserts all phases; returns how long it waited for the server's clock.
fn insert(stage: &Stage<'_>, client: &mut Client, load: &Redis, way: Load) -> Result<Duration> {
    let mut first = 0;
    let mut waited = Duration::ZERO;
    for (index, phase) in load.phases.iter().enumerate() {
        match way {
            Load::Pipelined => {
                let phase = Phase { keys: phase.keys, bytes: phase.bytes };
                let refused = fragment::insert(client, phase, KEYS, first, load.pipeline)?.refused;
                ensure!(refused == 0, "the server refused {refused} values");
            }
            Load::Populate => {
                if index > 0 {
                    waited += next_second(stage, client)?;
                }
                push_populate(client, index, phase);
                answered(client)?;
            }
            Load::PopulateAtOnce => {
                // A server looks at its clock between two readings from a connection, not between two
                // commands that came together.
                push_populate(client, index, phase);
                if index + 1 == load.phases.len() {
                    answered(client)?;
                }
            }
        }
        first += phase.keys;
        stage.wait(Duration::ZERO)?;
    }
    Ok(waited)
}

/// Appends what populates a phase, and a command before which the server evicts.
fn push_populate(client: &mut Client, index: usize, phase: &experiment::Phase) {
    let (count, bytes) = (phase.keys.to_string(), phase.bytes.to_string());
    let prefix = prefix(index);
    client.push(&["DEBUG", "POPULATE", &count, &prefix, &bytes].map(str::as_bytes));
    client.push(&[b"PING"]);
}

/// Sends what was appended; an error if the server refuses any of it.
fn answered(client: &mut Client) -> Result<()> {
    let mut refused = None;
    client.flush(&mut |reply| {
        if let Reply::Error(why) = reply {
            refused = Some(why);
        }
    })?;
    ensure!(refused.is_none(), "the server answered {refused:?}");
    Ok(())
}

/// Waits until the server's LRU clock, which knows seconds only, has moved on; returns how long.
fn next_second(stage: &Stage<'_>, client: &mut Client) -> Result<Duration> {
    let began = Instant::now();
    let now = field(&client.info("server")?, "lru_clock")?.to_owned();
    while field(&client.info("server")?, "lru_clock")? == now {
        ensure!(began.elapsed() < START, "the server's LRU clock stands still");
        stage.wait(Duration::from_millis(10))?;
    }
    Ok(began.elapsed())
}

/// What the keys of a populated phase begin with.
fn prefix(phase: usize) -> String {
    format!("phase{phase}")
}

/// Switches defragmentation on with thresholds low enough to let it finish its work.
fn defragment(client: &mut Client) -> Result<()> {
    for (name, value) in [
        ("active-defrag-ignore-bytes", "2mb"),
        ("active-defrag-threshold-lower", "5"),
        ("active-defrag-threshold-upper", "50"),
        ("active-defrag-cycle-min", "1"),
        ("active-defrag-cycle-max", "25"),
        ("activedefrag", "yes"),
    ] {
        client.command(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()])?;
    }
    Ok(())
}

/// Waits until memory is flat; `false` if it is not in time.
fn until_flat(stage: &Stage<'_>, target: &Target, load: &Redis) -> Result<bool> {
    let started = target.elapsed().as_secs_f64();
    loop {
        let now = target.elapsed().as_secs_f64();
        if is_flat(&target.seen().samples, now, load.converged_seconds, load.converged_percent) {
            return Ok(true);
        }
        if now - started > load.converge_at_most_seconds {
            return Ok(false);
        }
        stage.wait(Duration::from_millis(250))?;
    }
}

/// Whether Pss moved by less than `percent` of itself in the `during` seconds before `now`.
fn is_flat(samples: &[Sample], now: f64, during: f64, percent: f64) -> bool {
    let recent: Vec<u64> = samples
        .iter()
        .filter(|sample| sample.seconds >= now - during)
        .map(|sample| sample.pss)
        .collect();
    let long_enough = samples.first().is_some_and(|first| first.seconds <= now - during);
    match (recent.iter().max(), recent.iter().min()) {
        (Some(&most), Some(&least)) if long_enough => {
            ((most - least) as f64) < percent / 100.0 * most as f64
        }
        _ => false,
    }
}

/// What is read when memory and CPU have been taken: the server's own view, forks for BGSAVE, contents.
fn at_the_end(
    stage: &Stage<'_>,
    client: &mut Client,
    load: &Redis,
    way: Load,
    outcome: &mut Outcome,
) -> Result<()> {
    let used: f64 = field(&client.info("memory")?, "used_memory")?.parse()?;
    outcome.metrics.insert("used_memory".into(), used);
    match client.command(&[b"DBSIZE"])? {
        Reply::Integer(keys) => outcome.metrics.insert("keys".into(), keys as f64),
        other => bail!("unexpected reply to DBSIZE: {other:?}"),
    };
    let mut fork = f64::INFINITY;
    for _ in 0..load.forks.get() {
        fork = fork.min(saved(stage, client)?);
    }
    outcome.metrics.insert("fork".into(), fork);
    read_back(client, load, way)
}

/// Saves in the background; returns how long the fork took, in seconds.
fn saved(stage: &Stage<'_>, client: &mut Client) -> Result<f64> {
    client.command(&[b"BGSAVE"])?;
    let began = Instant::now();
    loop {
        let persistence = client.info("persistence")?;
        if field(&persistence, "rdb_bgsave_in_progress")? == "0" {
            let status = field(&persistence, "rdb_last_bgsave_status")?;
            ensure!(status == "ok", "BGSAVE ended with {status:?}");
            break;
        }
        ensure!(began.elapsed() < SAVE, "BGSAVE took more than {} s", SAVE.as_secs());
        stage.wait(Duration::from_millis(50))?;
    }
    Ok(field(&client.info("stats")?, "latest_fork_usec")?.parse::<f64>()? * 1e-6)
}

/// Of the last values inserted, those that were not evicted have every byte.
fn read_back(client: &mut Client, load: &Redis, way: Load) -> Result<()> {
    let Some(last) = load.phases.last() else { return Ok(()) };
    let first: u64 = load.phases.iter().rev().skip(1).map(|phase| phase.keys).sum();
    let count = READ_BACK.min(last.keys);
    let (mut found, mut wrong) = (0, 0);
    for number in last.keys - count..last.keys {
        let (key, value) = match way {
            Load::Pipelined => {
                let key = fragment::key(KEYS, first + number);
                (key.to_vec(), vec![key[15]; last.bytes])
            }
            Load::Populate | Load::PopulateAtOnce => {
                let key = format!("{}:{number}", prefix(load.phases.len() - 1));
                let mut value = format!("value:{number}").into_bytes();
                value.resize(last.bytes, 0);
                (key.into_bytes(), value)
            }
        };
        if let Reply::Bulk(Some(stored)) = client.command(&[b"GET", &key])? {
            found += 1;
            wrong += u64::from(stored != value);
        }
    }
    ensure!(wrong == 0, "{wrong} of the last {count} values are not what was stored");
    // Redis looks for old keys by sampling and tells ages apart by seconds only, so young ones go
    // too, in a burst of eviction many of them; but never all.
    ensure!(10 * found > count, "only {found} of the last {count} values are left");
    Ok(())
}

/// Measures reply times on a connection of its own; returns the longest.
fn pings(socket: &Path, every: Duration, stop: &AtomicBool) -> io::Result<Duration> {
    let mut client = Client::connect(socket, REPLY)?;
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        client.command(&[b"PING"])?;
        longest = longest.max(sent.elapsed());
        thread::sleep(every);
    }
    Ok(longest)
}

fn field<'a>(info: &'a [(String, String)], name: &str) -> Result<&'a str> {
    let found = info.iter().find(|(field, _)| field == name);
    found.map(|(_, value)| value.as_str()).with_context(|| format!("INFO has no field {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[(f64, u64)]) -> Vec<Sample> {
        values.iter().map(|&(seconds, pss)| Sample { seconds, pss, charge: None }).collect()
    }

    #[test]
    fn falling_memory_is_not_flat_and_still_memory_is() {
        let falling = samples(&[(0.0, 1000), (5.0, 900), (10.0, 800), (15.0, 700)]);
        assert!(!is_flat(&falling, 15.0, 10.0, 1.0));
        let still = samples(&[(0.0, 1000), (5.0, 700), (10.0, 699), (15.0, 698)]);
        assert!(is_flat(&still, 15.0, 10.0, 1.0));
        assert!(!is_flat(&still, 14.0, 10.0, 0.1), "two in seven hundred is more than 0.1 %");
    }

    #[test]
    fn nothing_is_flat_before_the_time_has_passed() {
        assert!(!is_flat(&samples(&[(8.0, 10), (9.0, 10)]), 9.0, 10.0, 1.0));
        assert!(!is_flat(&[], 9.0, 10.0, 1.0));
    }
}

//! `ycsb-redis` and `ycsb-memcached`: a YCSB client for a server that runs already, with histograms of latency.
//!
//! | | |
//! |---|---|
//! | records | 100,000 of 1,000 bytes, loaded first; scaled by `--scale`, as are 1 M operations |
//! | `--mix` | the core workloads A to F, or `mongodb`; scans (E) need an index, which memcached has none of |
//! | `--threads` | connections, one thread each |
//! | `--rate` | operations per second of all connections (open loop): latency counts from when an operation should have begun; without it, each connection sends when it has the last answer (closed loop) |
//!
//! Check: each value read is one that was written for its key, whole, no older than what had been acknowledged before
//! the read and no newer than what had been sent by its end; no acknowledged record is missing. To know that, each
//! connection updates records of its own only: of those whose number modulo the connections is its own.

mod latency;
mod server;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagemill_model::random::{Random, mix};

use self::latency::{Kind, Latencies};
use self::server::Server;
pub use self::server::{Address, reach};
use crate::mixes::{Chooser, Mix, Step};
use crate::program::{Params, Report};
use crate::team;

/// Records and operations at full size.
const RECORDS: usize = 100_000;
const OPERATIONS: usize = 1_000_000;
/// Words of a value: 1,000 bytes.
const WORDS: usize = 125;
/// Before so long a wait is over, the thread spins: a timer may be late.
const SPIN: Duration = Duration::from_micros(100);

pub(super) fn redis(params: &Params) -> Result<Report, String> {
    run("ycsb-redis", params, Server::redis)
}

pub(super) fn memcached(params: &Params) -> Result<Report, String> {
    if params.mix == Mix::E {
        return Err("ycsb-memcached: workload E scans, and memcached has no order of keys".into());
    }
    run("ycsb-memcached", params, Server::memcached)
}

type Connect = fn(&Address) -> Result<Server, String>;

fn run(workload: &'static str, params: &Params, connect: Connect) -> Result<Report, String> {
    let fail = |error: String| format!("{workload}: {error}");
    let address = params.server.ok_or("name the server: --server unix:PATH or HOST:PORT");
    let address: Address = address.map_err(str::to_owned).and_then(str::parse).map_err(fail)?;
    let records = params.scaled(RECORDS).max(params.threads);
    let each = params.scaled(OPERATIONS) / params.threads;
    let versions = |count: usize| (0..count).map(|_| Versions::default()).collect();
    let load = Load {
        mix: params.mix,
        connections: params.threads as u64,
        interval: (params.rate > 0.0)
            .then(|| Duration::from_secs_f64(params.threads as f64 / params.rate)),
        chooser: Chooser::new(params.mix, records as u64),
        versions: versions(params.mix.room(records, each * params.threads)),
        next: AtomicU64::new(records as u64),
    };
    let connections: Result<Vec<Server>, String> =
        (0..params.threads).map(|_| connect(&address)).collect();
    let connections: Vec<_> = connections.map_err(fail)?.into_iter().zip(0..).collect();
    let loaded = team::each(connections, |(mut server, number)| {
        load.fill(&mut server, number, records as u64)?;
        Ok((server, number))
    });
    let connections: Result<Vec<_>, String> = loaded.into_iter().collect();
    let started = Instant::now();
    let parts = team::each(connections.map_err(fail)?, |(mut server, number)| {
        load.work(&mut server, number, each, params.seed)
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut latencies = Latencies::new();
    let mut read = 0;
    for part in parts {
        let (own, own_read) = part.map_err(fail)?;
        latencies.add(&own);
        read += own_read;
    }
    let operations = (each * params.threads) as f64;
    let mut metrics = vec![("operations_per_second", operations / seconds)];
    metrics.extend(latencies.metrics());
    Ok(Report {
        workload,
        operations: operations as u64,
        seconds,
        metrics,
        check: format!("YCSB {}: {read} values were what was written last", params.mix),
    })
}

/// Values of a record: how many were sent, and how many acknowledged.
#[derive(Debug, Default)]
struct Versions {
    sent: AtomicU32,
    done: AtomicU32,
}

struct Load {
    mix: Mix,
    connections: u64,
    /// Between two operations of a connection, in an open loop.
    interval: Option<Duration>,
    chooser: Chooser,
    versions: Vec<Versions>,
    /// Number of the next record that is inserted.
    next: AtomicU64,
}

/// The key of a record; keys are in the order of their numbers.
fn key(number: u64) -> String {
    format!("user{number:012}")
}

fn number(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.strip_prefix("user")?.parse().ok()
}

/// The value that is written for a record the `version`th time.
fn value(number: u64, version: u32) -> Vec<u8> {
    let word = |at: u64| {
        if at == 0 { u64::from(version) } else { mix(number << 40 ^ at << 32 ^ u64::from(version)) }
    };
    (0..WORDS as u64).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// Which value of the record this is, if it is one.
fn version(number: u64, found: &[u8]) -> Result<u32, String> {
    let first = found.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    match first {
        Some(version) if found == value(number, version) => Ok(version),
        _ => Err(format!(
            "{} has a value that was never written, of {} bytes",
            key(number),
            found.len()
        )),
    }
}

impl Load {
    /// Writes a connection's share of the records for the first time.
    fn fill(&self, server: &mut Server, own: u64, records: u64) -> Result<(), String> {
        if self.mix == Mix::E && own == 0 {
            server.forget_index()?;
        }
        (own..records)
            .step_by(self.connections as usize)
            .try_for_each(|number| self.write(server, number, true))
    }

    fn work(
        &self,
        server: &mut Server,
        own: u64,
        operations: usize,
        seed: u64,
    ) -> Result<(Latencies, u64), String> {
        let mut random = Random::new(mix(seed ^ mix(own)));
        let mut latencies = Latencies::new();
        let mut read = 0;
        let started = Instant::now();
        for operation in 0..operations {
            let step = self.chooser.next(&mut random, self.next.load(Ordering::Relaxed));
            let mut begun = Instant::now();
            if let Some(interval) = self.interval {
                let due = started
                    + interval.mul_f64(operation as f64 + own as f64 / self.connections as f64);
                wait_until(due);
                begun = due;
            }
            let kind = self.step(step, server, own, &mut read)?;
            latencies.record(kind, begun.elapsed());
        }
        Ok((latencies, read))
    }

    /// The nearest record that belongs to this connection.
    fn owned(&self, number: u64, own: u64) -> u64 {
        let first = number - number % self.connections + own;
        if self.versions[first as usize].done.load(Ordering::Relaxed) > 0 { first } else { own }
    }

    fn step(
        &self,
        step: Step,
        server: &mut Server,
        own: u64,
        read: &mut u64,
    ) -> Result<Kind, String> {
        Ok(match step {
            Step::Read(number) => {
                self.read(server, number, read)?;
                Kind::Read
            }
            Step::Update(number) => {
                self.write(server, self.owned(number, own), false)?;
                Kind::Update
            }
            Step::Modify(number) => {
                let number = self.owned(number, own);
                self.read(server, number, read)?;
                self.write(server, number, false)?;
                Kind::Modify
            }
            Step::Scan(first, count) => {
                *read += self.scan(server, first, count)?;
                Kind::Scan
            }
            Step::Insert => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number as usize >= self.versions.len() {
                    return Err("more records were inserted than there is room for".into());
                }
                self.write(server, number, true)?;
                Kind::Insert
            }
        })
    }

    fn write(&self, server: &mut Server, number: u64, is_new: bool) -> Result<(), String> {
        let versions = &self.versions[number as usize];
        let version = versions.sent.fetch_add(1, Ordering::AcqRel) + 1;
        let index = is_new && self.mix == Mix::E;
        server.write(&key(number), &value(number, version), index)?;
        versions.done.store(version, Ordering::Release);
        Ok(())
    }

    fn read(&self, server: &mut Server, number: u64, read: &mut u64) -> Result<(), String> {
        let done = self.versions[number as usize].done.load(Ordering::Acquire);
        match server.read(&key(number))? {
            // Not inserted yet; what may be there was left by an earlier run.
            _ if done == 0 => Ok(()),
            Some(found) => {
                self.check(number, done, &found)?;
                *read += 1;
                Ok(())
            }
            None => Err(format!("{} is gone; does the server evict?", key(number))),
        }
    }

    fn check(&self, number: u64, done: u32, found: &[u8]) -> Result<(), String> {
        let version = version(number, found)?;
        let sent = self.versions[number as usize].sent.load(Ordering::Acquire);
        if (done..=sent).contains(&version) {
            Ok(())
        } else {
            let key = key(number);
            Err(format!("{key} has value {version}; {done} were acknowledged and {sent} sent"))
        }
    }

    /// Reads records in order. Returns how many.
    fn scan(&self, server: &mut Server, first: u64, count: u64) -> Result<u64, String> {
        let numbers = first..self.versions.len() as u64;
        let done = |number: u64| self.versions[number as usize].done.load(Ordering::Acquire);
        let before: Vec<u32> = numbers.take(count as usize).map(done).collect();
        let found = server.scan(&key(first), count)?;
        let mut last = None;
        for (name, value) in &found {
            let at = number(name).filter(|&at| at >= first && Some(at) > last);
            let Some(at) = at.filter(|&at| (at as usize) < self.versions.len()) else {
                return Err(format!(
                    "a scan from {} found {}",
                    key(first),
                    String::from_utf8_lossy(name)
                ));
            };
            let known = before.get((at - first) as usize).copied().unwrap_or(0);
            self.check(at, known, value)?;
            last = Some(at);
        }
        // All that were there before are in it, as far as it reaches.
        let end = if (found.len() as u64) < count { u64::MAX } else { last.unwrap_or(first) };
        let there = (first..).zip(&before).filter(|&(at, &done)| done > 0 && at <= end).count();
        if there > found.len() {
            return Err(format!(
                "a scan from {} found {} of {there} records",
                key(first),
                found.len()
            ));
        }
        Ok(found.len() as u64)
    }
}

/// Sleeps, and spins at the end.
fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > SPIN {
            thread::sleep(left - SPIN);
        } else {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::server::tests::Fake;
    use super::*;

    fn params(fake: &Fake, mix: Mix) -> Params {
        let server: &'static str = Box::leak(fake.address().into_boxed_str());
        Params { server: Some(server), mix, scale: 1e-3, threads: 3, ..Params::default() }
    }

    #[test]
    fn every_mix_runs_over_both_protocols() {
        for mix in Mix::ALL {
            let fake = Fake::redis();
            let report = redis(&params(&fake, mix)).unwrap();
            assert_eq!(report.operations, 999);
            let has = |name: &str| report.metrics.iter().any(|(metric, _)| *metric == name);
            assert!(has("p50_us") && has("p99.99_us"), "{report:?}");
            let fake = Fake::memcached();
            let report = memcached(&params(&fake, mix));
            assert_eq!(report.is_err(), mix == Mix::E);
        }
    }

    #[test]
    fn an_open_loop_takes_as_long_as_its_rate_says() {
        let fake = Fake::redis();
        let params = Params { rate: 5_000.0, ..params(&fake, Mix::B) };
        let report = redis(&params).unwrap();
        // 333 operations of each connection, the last of them due after 332 intervals.
        assert!(report.seconds >= 332.0 * 3.0 / 5_000.0, "{report:?}");
    }

    #[test]
    fn a_value_of_another_key_an_old_one_and_a_missing_one_are_found() {
        let fake = Fake::redis();
        let load = Load {
            mix: Mix::A,
            connections: 1,
            interval: None,
            chooser: Chooser::new(Mix::A, 2),
            versions: (0..3).map(|_| Versions::default()).collect(),
            next: AtomicU64::new(2),
        };
        let mut server = Server::redis(&fake.address().parse().unwrap()).unwrap();
        let mut read = 0;
        load.write(&mut server, 0, true).unwrap();
        load.write(&mut server, 0, false).unwrap();
        load.read(&mut server, 0, &mut read).unwrap();
        server.write(&key(0), &value(0, 1), false).unwrap();
        let error = load.read(&mut server, 0, &mut read).unwrap_err();
        assert!(error.contains("has value 1; 2 were acknowledged"), "{error}");
        server.write(&key(0), &value(1, 2), false).unwrap();
        assert!(load.read(&mut server, 0, &mut read).unwrap_err().contains("never written"));
        server.write(&key(2), &value(2, 7), false).unwrap();
        load.read(&mut server, 2, &mut read).unwrap();
        assert_eq!(read, 1, "what an earlier run left counts for nothing");
        load.versions[1].done.store(1, Ordering::Relaxed);
        assert!(load.read(&mut server, 1, &mut read).unwrap_err().contains("is gone"));
    }
}

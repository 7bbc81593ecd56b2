//! `ycsb-redis` and `ycsb-memcached`: a YCSB client for a server that runs already, with histograms of latency.
//!
//! | | |
//! |---|---|
//! | records | 100,000 of 1,000 bytes, loaded first; scaled by `--scale`, as are 1 M operations |
//! | `--mix` | the core workloads A to F, or `mongodb`; scans (E) need an index, which memcached has none of |
//! | `--threads` | connections, one thread each |
//! | `--rate` | operations per second of all connections (open loop); without it, a closed loop |
//!
//! In an open loop latency counts from when an operation should have begun; in a closed one each connection sends when
//! it has the last answer.
//!
//! Check: each value read is one that was written for its key, whole, no older than what had been acknowledged before
//! the read and no newer than what had been sent by its end; no acknowledged record is missing. What was updated or
//! inserted and not read since is read at the end, untimed. To know all that, each connection updates records of its
//! own only: of those whose number modulo the connections is its own.
//!
//! Latencies are what the client sees, queues and the wire included; `server_cpu_us` is the CPU time of the server for
//! an operation, where it tells that (`INFO cpu`, `stats`).

mod latency;
mod server;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagemill_model::random::{Random, mix};

use self::latency::{Kind, Latencies};
use self::server::Server;
pub use self::server::reach;
use crate::address::Address;
use crate::mixes::{Chooser, Mix, Step};
use crate::program::{Failure, Outcome, Params, Report};
use crate::team;

/// Records and operations at full size.
const RECORDS: usize = 100_000;
const OPERATIONS: usize = 1_000_000;
/// Words of a value: 1,000 bytes.
const WORDS: usize = 125;
/// Before so long a wait is over, the thread spins: a timer may be late.
const SPIN: Duration = Duration::from_micros(100);

pub(super) fn redis(params: &Params) -> Outcome {
    run(params, Server::redis)
}

pub(super) fn memcached(params: &Params) -> Outcome {
    if params.mix == Mix::E {
        return outside(
            "workload E scans, and memcached has no order of keys; valid: A to D, F, mongodb",
        );
    }
    run(params, Server::memcached)
}

fn outside<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Outside(what.into()))
}

fn run(params: &Params, connect: fn(&Address) -> Result<Server, Failure>) -> Outcome {
    let Some(address) = &params.server else {
        return outside("name the server: --server unix:PATH or HOST:PORT");
    };
    let records = params.scaled(RECORDS).max(params.threads) as u64;
    let each = params.share(OPERATIONS);
    let load = Load::new(params, records, each);
    let connections: Result<Vec<Server>, _> =
        (0..params.threads).map(|_| connect(address)).collect();
    let mut connections = connections?;
    let all = |connections: &mut Vec<Server>,
               work: &(dyn Fn(&mut Server, u64) -> ConnectionResult + Sync)| {
        let parts = connections.iter_mut().zip(0..).collect();
        let parts = team::each(parts, |(server, own)| work(server, own));
        parts.into_iter().try_fold(Latencies::new(), |mut sum, part| {
            sum.add(&part?);
            Ok(sum)
        })
    };
    let loading = all(&mut connections, &|server, own| load.fill(server, own, records));
    loading.map_err(|failure| load.dated(failure, "while records were loaded"))?;
    let cpu = connections[0].cpu();
    let started = Instant::now();
    let work = all(&mut connections, &|server, own| load.work(server, own, each, params.seed));
    let seconds = started.elapsed().as_secs_f64();
    let done = load.answered.load(Ordering::Relaxed);
    let latencies =
        work.map_err(|failure| load.dated(failure, &format!("after {done} operations")))?;
    let cpu = connections[0].cpu().zip(cpu).map(|(now, before)| (now - before) * 1e6 / done as f64);
    let again = all(&mut connections, &|server, own| load.read_again(server, own, records));
    again.map_err(|failure| load.dated(failure, "while what was written was read again"))?;
    let mut metrics = vec![("operations_per_second", done as f64 / seconds)];
    metrics.extend(latencies.metrics());
    metrics.extend(cpu.map(|each| ("server_cpu_us", each)));
    let read = load.read.load(Ordering::Relaxed);
    Ok(Report {
        operations: done,
        seconds,
        metrics,
        check: format!("YCSB {}: {read} values were what was written last", params.mix),
    })
}

/// Values of a record: how many were sent, how many acknowledged, and the last one that was read.
#[derive(Debug, Default)]
struct Versions {
    sent: AtomicU32,
    done: AtomicU32,
    seen: AtomicU32,
}

/// How long a connection's operations took.
type ConnectionResult = Result<Latencies, Failure>;

struct Load {
    mix: Mix,
    connections: u64,
    /// Between two operations of a connection, in an open loop.
    interval: Option<Duration>,
    chooser: Chooser,
    versions: Vec<Versions>,
    /// Number of the next record that is inserted.
    next: AtomicU64,
    /// Timed operations that were answered.
    answered: AtomicU64,
    /// Values that were read and are right.
    read: AtomicU64,
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
    fn new(params: &Params, records: u64, each: usize) -> Self {
        let room = params.mix.room(records as usize, each * params.threads);
        Self {
            mix: params.mix,
            connections: params.threads as u64,
            interval: (params.rate > 0.0)
                .then(|| Duration::from_secs_f64(params.threads as f64 / params.rate)),
            chooser: Chooser::new(params.mix, records),
            versions: (0..room).map(|_| Versions::default()).collect(),
            next: AtomicU64::new(records),
            answered: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    /// Says of a server that was lost when that was.
    fn dated(&self, failure: Failure, when: &str) -> Failure {
        match failure {
            Failure::Outside(what) => Failure::Outside(format!("{what}, {when}")),
            check => check,
        }
    }

    /// The records of a connection among these.
    fn own(&self, own: u64, records: u64) -> impl Iterator<Item = u64> {
        (own..records).step_by(self.connections as usize)
    }

    /// Writes a connection's share of the records for the first time.
    fn fill(&self, server: &mut Server, own: u64, records: u64) -> ConnectionResult {
        if self.mix == Mix::E && own == 0 {
            server.forget_index()?;
        }
        self.own(own, records).try_for_each(|number| self.write(server, number, true))?;
        Ok(Latencies::new())
    }

    fn work(
        &self,
        server: &mut Server,
        own: u64,
        operations: usize,
        seed: u64,
    ) -> ConnectionResult {
        let mut random = Random::new(mix(seed ^ mix(own)));
        let mut latencies = Latencies::new();
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
            let kind = self.step(step, server, own)?;
            latencies.record(kind, begun.elapsed());
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(latencies)
    }

    /// Reads what was updated or inserted and not read since, of a connection's share.
    fn read_again(&self, server: &mut Server, own: u64, records: u64) -> ConnectionResult {
        let end = self.next.load(Ordering::Relaxed);
        for number in self.own(own, end) {
            let Versions { done, seen, .. } = &self.versions[number as usize];
            let done = done.load(Ordering::Relaxed);
            if (done > 1 || number >= records) && seen.load(Ordering::Relaxed) < done {
                self.read(server, number)?;
            }
        }
        Ok(Latencies::new())
    }

    /// The nearest record that belongs to this connection.
    fn owned(&self, number: u64, own: u64) -> u64 {
        let first = number - number % self.connections + own;
        if self.versions[first as usize].done.load(Ordering::Relaxed) > 0 { first } else { own }
    }

    fn step(&self, step: Step, server: &mut Server, own: u64) -> Result<Kind, Failure> {
        Ok(match step {
            Step::Read(number) => {
                self.read(server, number)?;
                Kind::Read
            }
            Step::Update(number) => {
                self.write(server, self.owned(number, own), false)?;
                Kind::Update
            }
            Step::Modify(number) => {
                let number = self.owned(number, own);
                self.read(server, number)?;
                self.write(server, number, false)?;
                Kind::Modify
            }
            Step::Scan(first, count) => {
                self.scan(server, first, count)?;
                Kind::Scan
            }
            Step::Insert => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number as usize >= self.versions.len() {
                    return outside("more records were inserted than there is room for");
                }
                self.write(server, number, true)?;
                Kind::Insert
            }
        })
    }

    fn write(&self, server: &mut Server, number: u64, is_new: bool) -> Result<(), Failure> {
        let versions = &self.versions[number as usize];
        let version = versions.sent.fetch_add(1, Ordering::AcqRel) + 1;
        let index = is_new && self.mix == Mix::E;
        server.write(&key(number), &value(number, version), index)?;
        versions.done.store(version, Ordering::Release);
        Ok(())
    }

    fn read(&self, server: &mut Server, number: u64) -> Result<(), Failure> {
        let done = self.versions[number as usize].done.load(Ordering::Acquire);
        match server.read(&key(number))? {
            // Not inserted yet; what may be there was left by an earlier run.
            _ if done == 0 => Ok(()),
            Some(found) => Ok(self.check(number, done, &found)?),
            None => Err(format!("{} is gone; does the server evict?", key(number)).into()),
        }
    }

    fn check(&self, number: u64, done: u32, found: &[u8]) -> Result<(), String> {
        let version = version(number, found)?;
        let versions = &self.versions[number as usize];
        let sent = versions.sent.load(Ordering::Acquire);
        if (done..=sent).contains(&version) {
            versions.seen.fetch_max(version, Ordering::Relaxed);
            self.read.fetch_add(1, Ordering::Relaxed);
            Ok(())
        } else {
            let key = key(number);
            Err(format!("{key} has value {version}; {done} were acknowledged and {sent} sent"))
        }
    }

    /// Reads records in order.
    fn scan(&self, server: &mut Server, first: u64, count: u64) -> Result<(), Failure> {
        let numbers = first..self.versions.len() as u64;
        let done = |number: u64| self.versions[number as usize].done.load(Ordering::Acquire);
        let before: Vec<u32> = numbers.take(count as usize).map(done).collect();
        let found = server.scan(&key(first), count)?;
        let mut last = None;
        for (name, value) in &found {
            let at = number(name).filter(|&at| at >= first && Some(at) > last);
            let Some(at) = at.filter(|&at| (at as usize) < self.versions.len()) else {
                let name = String::from_utf8_lossy(name);
                return Err(format!("a scan from {} found {name}", key(first)).into());
            };
            let known = before.get((at - first) as usize).copied().unwrap_or(0);
            self.check(at, known, value)?;
            last = Some(at);
        }
        // All that were there before are in it, as far as it reaches.
        let end = if (found.len() as u64) < count { u64::MAX } else { last.unwrap_or(first) };
        let there = (first..).zip(&before).filter(|&(at, &done)| done > 0 && at <= end).count();
        if there > found.len() {
            let (from, found) = (key(first), found.len());
            return Err(format!("a scan from {from} found {found} of {there} records").into());
        }
        Ok(())
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
        Params { server: Some(fake.address()), mix, scale: 1e-3, threads: 3, ..Params::default() }
    }

    #[test]
    fn every_mix_runs_over_both_protocols() {
        for mix in Mix::ALL {
            let fake = Fake::redis();
            let report = redis(&params(&fake, mix)).unwrap();
            assert_eq!(report.operations, 1002);
            let has = |name: &str| report.metrics.iter().any(|(metric, _)| *metric == name);
            assert!(has("p50_us") && has("p99.99_us") && has("server_cpu_us"), "{report:?}");
            let fake = Fake::memcached();
            let report = memcached(&params(&fake, mix));
            assert_eq!(report.is_err(), mix == Mix::E);
        }
    }

    /// It was told as damaged memory: "self check failed: SET: Broken pipe".
    #[test]
    fn a_server_that_goes_away_is_told_with_what_it_had_answered() {
        for (answers, when) in [(50, "while records were loaded"), (400, "after ")] {
            for (fake, run) in Fake::lost(answers).iter().zip([redis, memcached]) {
                let failure = run(&params(fake, Mix::A)).unwrap_err();
                let Failure::Outside(what) = &failure else { panic!("{failure:?}") };
                assert!(what.starts_with("the server closed the connection (at "), "{what}");
                assert!(what.contains(when), "{what}");
                let answered = what.split("after ").nth(1).and_then(|rest| rest.split(' ').next());
                let answered = answered.map(|count| count.parse::<i64>().unwrap());
                // Of the others 100 were loads, and one asked for the CPU time.
                assert!(answered.is_none_or(|count| (290..=300).contains(&count)), "{what}");
            }
        }
    }

    #[test]
    fn an_open_loop_takes_as_long_as_its_rate_says() {
        let fake = Fake::redis();
        let params = Params { rate: 5_000.0, ..params(&fake, Mix::B) };
        let report = redis(&params).unwrap();
        // 334 operations of each connection, the last of them due after 333 intervals.
        assert!(report.seconds >= 333.0 * 3.0 / 5_000.0, "{report:?}");
    }

    /// What was written last and never read could have been lost.
    #[test]
    fn a_write_that_is_lost_is_found_at_the_end() {
        let fake = Fake::redis();
        let load = Load::new(&Params { threads: 1, ..Params::default() }, 2, 1);
        let mut server = Server::redis(&fake.address()).unwrap();
        load.fill(&mut server, 0, 2).unwrap();
        load.write(&mut server, 1, false).unwrap();
        load.read_again(&mut server, 0, 2).unwrap();
        assert_eq!(load.read.load(Ordering::Relaxed), 1, "record 0 was not updated");
        load.write(&mut server, 1, false).unwrap();
        server.write(&key(1), &value(1, 2), false).unwrap();
        let failure = load.read_again(&mut server, 0, 2).unwrap_err();
        assert!(failure.to_string().contains("has value 2; 3 were acknowledged"), "{failure}");
    }

    #[test]
    fn a_value_of_another_key_an_old_one_and_a_missing_one_are_found() {
        let fake = Fake::redis();
        let load = Load::new(&Params { threads: 1, ..Params::default() }, 2, 1);
        let mut server = Server::redis(&fake.address()).unwrap();
        load.write(&mut server, 0, true).unwrap();
        load.write(&mut server, 0, false).unwrap();
        load.read(&mut server, 0).unwrap();
        server.write(&key(0), &value(0, 1), false).unwrap();
        let error = load.read(&mut server, 0).unwrap_err().to_string();
        assert!(error.contains("has value 1; 2 were acknowledged"), "{error}");
        server.write(&key(0), &value(1, 2), false).unwrap();
        assert!(load.read(&mut server, 0).unwrap_err().to_string().contains("never written"));
        server.write(&key(2), &value(2, 7), false).unwrap();
        load.read(&mut server, 2).unwrap();
        assert_eq!(
            load.read.load(Ordering::Relaxed),
            1,
            "what an earlier run left counts for nothing"
        );
        load.versions[1].done.store(1, Ordering::Relaxed);
        assert!(load.read(&mut server, 1).unwrap_err().to_string().contains("is gone"));
    }
}

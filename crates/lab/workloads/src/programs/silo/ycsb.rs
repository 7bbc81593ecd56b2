//! `silo-ycsb`.
//!
//! An update replaces part of a record, so it reads the rest of it in the same transaction, as a read-modify-write
//! does; both count up what the record says of how often it was modified. In the end the records must count all that
//! were committed, and as many must be there as were loaded and inserted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pagemill_model::random::{Random, mix};

use super::store::{Store, Table, Worker};
use super::tally::{Part, sum};
use super::{history, run_workers};
use crate::mixes::{Chooser, Step};
use crate::program::{Outcome, Params, Report};

/// Records and transactions at full size.
const RECORDS: usize = 1_000_000;
const TRANSACTIONS: usize = 10_000_000;
/// Words of a record: its number, how often it was modified, and what follows from these.
const WORDS: usize = 13;
/// Transactions whose history is checked, of each thread, and their steps.
const AUDITED: usize = 5_000;
const STEPS: usize = 4;

pub(crate) fn run(params: &Params) -> Outcome {
    let records = params.scaled(RECORDS);
    let transactions = params.share(TRANSACTIONS);
    let audited = params.scaled(AUDITED).max(500);
    let load = Load::new(params, records, transactions + audited * STEPS);
    let started = Instant::now();
    let parts = load.run(params, 0, transactions, 1, false);
    let seconds = started.elapsed().as_secs_f64();
    let mut traces = Vec::new();
    let timed = sum(parts, &mut traces)?;
    let all = timed.plus(sum(load.run(params, 1, audited, STEPS, true), &mut traces)?);
    history::check(&traces)?;
    load.check(&all)?;
    let committed = transactions * params.threads;
    Ok(Report {
        operations: committed as u64,
        seconds,
        metrics: vec![
            ("transactions_per_second", committed as f64 / seconds),
            ("reads", timed.of(Count::Reads) as f64),
            ("updates", timed.of(Count::Updates) as f64),
            ("inserts", timed.of(Count::Inserts) as f64),
            ("scans", timed.of(Count::Scans) as f64),
            ("modifies", timed.of(Count::Modifies) as f64),
            ("aborts", timed.of(Count::Aborts) as f64),
            ("records", load.next.load(Ordering::Relaxed) as f64),
        ],
        check: format!(
            "YCSB {}: {} records read whole; {} updates and {} inserts are in the records; a serial order for {} \
             transactions",
            params.mix,
            all.of(Count::Seen),
            all.updated(),
            all.of(Count::Inserts),
            traces.len()
        ),
    })
}

/// A record that was modified so often.
fn record(number: u64, modified: u64) -> [u64; WORDS] {
    let mut record = [0; WORDS];
    (record[0], record[1]) = (number, modified);
    for (at, word) in record.iter_mut().enumerate().skip(2) {
        *word = mix(number ^ modified << 32 ^ (at as u64) << 56);
    }
    record
}

/// How often a record was modified, if it is whole.
fn modified(number: u64, found: &[u64]) -> Result<u64, String> {
    if found == record(number, found[1]) {
        Ok(found[1])
    } else {
        Err(format!("record {number} is torn: {found:x?}"))
    }
}

/// What is counted of committed transactions: steps by their kinds, and records that were read; and how often one was
/// done again.
#[derive(Clone, Copy)]
enum Count {
    Reads,
    Updates,
    Inserts,
    Scans,
    Modifies,
    Seen,
    Aborts,
}

const COUNTS: usize = Count::Aborts as usize + 1;

type Tally = super::tally::Tally<COUNTS>;

impl Tally {
    fn add(&mut self, what: Count, amount: u64) {
        self.0[what as usize] += amount;
    }

    fn of(&self, what: Count) -> u64 {
        self.0[what as usize]
    }

    fn updated(&self) -> u64 {
        self.of(Count::Updates) + self.of(Count::Modifies)
    }
}

struct Load {
    store: Store,
    chooser: Chooser,
    /// Records that were there at the beginning.
    loaded: u64,
    /// Number of the next record that is inserted.
    next: AtomicU64,
}

impl Load {
    /// With room for what so many steps of each thread insert.
    fn new(params: &Params, records: usize, steps: usize) -> Self {
        let mut table = Table::new(params.mix.room(records, params.threads * steps), WORDS);
        (0..records).for_each(|at| table.load(at, &record(at as u64, 0)));
        Self {
            store: Store::new(vec![table]),
            chooser: Chooser::new(params.mix, records as u64),
            loaded: records as u64,
            next: AtomicU64::new(records as u64),
        }
    }

    fn run(
        &self,
        params: &Params,
        phase: u64,
        transactions: usize,
        steps: usize,
        traced: bool,
    ) -> Vec<Part<COUNTS>> {
        run_workers(&self.store, params.threads, |thread| {
            let mut random = Random::new(mix(params.seed ^ mix(phase << 32 | thread as u64)));
            let mut worker = Worker::new(&self.store);
            worker.traces = traced.then(Vec::new);
            let mut done = Tally::NONE;
            let mut found = Vec::new();
            for _ in 0..transactions {
                let chosen: Vec<(Step, u64)> = (0..steps)
                    .map(|_| {
                        let step =
                            self.chooser.next(&mut random, self.next.load(Ordering::Relaxed));
                        let insert = step == Step::Insert;
                        (step, if insert { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 })
                    })
                    .collect();
                loop {
                    worker.begin();
                    let mut own = Tally::NONE;
                    for &(step, new) in &chosen {
                        self.step(step, new, &mut worker, &mut own, &mut found)?;
                    }
                    if worker.commit() {
                        done = done.plus(own);
                        break;
                    }
                }
            }
            done.add(Count::Aborts, worker.aborts);
            Ok((done, worker.traces.unwrap_or_default()))
        })
    }

    /// Does a step; `new` is the number of what an insert inserts.
    fn step(
        &self,
        step: Step,
        new: u64,
        worker: &mut Worker<'_>,
        done: &mut Tally,
        found: &mut Vec<u64>,
    ) -> Result<(), String> {
        let mut seen = 0;
        // How often a record was modified; one that is just being inserted may be absent.
        let mut read = |number: u64, worker: &mut Worker<'_>| {
            if worker.read((0, number as usize), found) {
                seen += 1;
                modified(number, found).map(Some)
            } else if number < self.loaded {
                Err(format!("record {number} is gone"))
            } else {
                Ok(None)
            }
        };
        match step {
            Step::Read(number) => {
                read(number, worker)?;
                done.add(Count::Reads, 1);
            }
            Step::Update(number) | Step::Modify(number) => {
                if let Some(count) = read(number, worker)? {
                    worker.write((0, number as usize), &record(number, count + 1));
                    let update = matches!(step, Step::Update(_));
                    done.add(if update { Count::Updates } else { Count::Modifies }, 1);
                }
            }
            Step::Scan(first, count) => {
                for number in first..(first + count).min(self.store.tables[0].room() as u64) {
                    read(number, worker)?;
                }
                done.add(Count::Scans, 1);
            }
            Step::Insert => {
                if new as usize >= self.store.tables[0].room() {
                    return Err(format!("there is no room for record {new}"));
                }
                worker.write((0, new as usize), &record(new, 0));
                done.add(Count::Inserts, 1);
            }
        }
        done.add(Count::Seen, seen);
        Ok(())
    }

    /// Whether the records count what was committed, when no transaction runs.
    fn check(&self, done: &Tally) -> Result<(), String> {
        let (mut counted, mut there) = (0, 0);
        for number in 0..self.store.tables[0].room() {
            if let Some(found) = self.store.committed((0, number)) {
                counted += modified(number as u64, &found)?;
                there += 1;
            }
        }
        let inserted = there - self.loaded.min(there);
        for (what, found, made) in [
            ("updates", counted, done.updated()),
            ("inserted records", inserted, done.of(Count::Inserts)),
        ] {
            if found != made {
                return Err(format!("the store has {found} {what}, transactions made {made}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixes::Mix;

    #[test]
    fn every_mix_holds_on_few_records_and_many_threads() {
        for mix in Mix::ALL {
            // 50 records: transactions meet.
            let params = Params { mix, threads: 4, scale: 5e-5, ..Params::default() };
            let report = run(&params).unwrap();
            assert_eq!(report.operations, 500);
            assert!(report.check.contains("a serial order for 2000"), "{report:?}");
            let share = |name: &str| {
                report.metrics.iter().find(|(metric, _)| *metric == name).unwrap().1 / 500.0
            };
            let [reads, updates, inserts, scans, modifies] = match mix {
                Mix::A => [0.5, 0.5, 0.0, 0.0, 0.0],
                Mix::B => [0.95, 0.05, 0.0, 0.0, 0.0],
                Mix::C => [1.0, 0.0, 0.0, 0.0, 0.0],
                Mix::D => [0.95, 0.0, 0.05, 0.0, 0.0],
                Mix::E => [0.0, 0.0, 0.05, 0.95, 0.0],
                Mix::F => [0.5, 0.0, 0.0, 0.0, 0.5],
                Mix::Mongodb => [0.25, 0.375, 0.375, 0.0, 0.0],
            };
            for (name, expected) in [
                ("reads", reads),
                ("updates", updates),
                ("inserts", inserts),
                ("scans", scans),
                ("modifies", modifies),
            ] {
                let found = share(name);
                assert!((found - expected).abs() < 0.08, "{mix}: {found} {name}");
                assert_eq!(found == 0.0, expected == 0.0, "{mix}: {found} {name}");
            }
        }
    }

    /// Updates left the counts as they were, so that none could be missed.
    #[test]
    fn a_lost_update_and_a_lost_insert_are_found() {
        for mix in [Mix::A, Mix::B, Mix::D, Mix::E, Mix::F, Mix::Mongodb] {
            let params = Params { mix, ..Params::default() };
            let mut load = Load::new(&params, 50, 500);
            let done = sum(load.run(&params, 0, 500, 1, false), &mut Vec::new()).unwrap();
            load.check(&done).unwrap();
            let count = |at: usize| load.store.committed((0, at)).map_or(0, |record| record[1]);
            let updated = (0..50).map(|at| (at, count(at))).find(|&(_, count)| count > 0);
            assert_eq!(updated.is_some(), done.updated() > 0);
            let table = &mut load.store.tables[0];
            if let Some((at, count)) = updated {
                table.load(at, &record(at as u64, count - 1));
                assert!(load.check(&done).unwrap_err().contains("updates, transactions made"));
                load.store.tables[0].load(at, &record(at as u64, count));
            }
            assert_eq!(done.of(Count::Inserts) > 0, mix.inserts() > 0.0);
            if done.of(Count::Inserts) > 0 {
                load.store.tables[0].lose(50);
                assert!(load.check(&done).unwrap_err().contains("inserted records"));
            }
        }
    }

    #[test]
    fn a_torn_record_is_found() {
        let mut found = record(3, 1);
        assert_eq!(modified(3, &found), Ok(1));
        found[7] = record(3, 0)[7];
        assert!(modified(3, &found).unwrap_err().contains("torn"));
    }
}

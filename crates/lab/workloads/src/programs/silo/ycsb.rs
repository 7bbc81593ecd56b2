//! `silo-ycsb`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pagemill_model::random::{Random, mix};

use super::store::{Store, Table, Worker};
use super::{history, run_workers};
use crate::mixes::{Chooser, Step};
use crate::program::{Params, Report};

/// Records and transactions at full size.
const RECORDS: usize = 1_000_000;
const TRANSACTIONS: usize = 10_000_000;
/// Words of a record: its number, how often it was modified, and what follows from these.
const WORDS: usize = 13;
/// Transactions whose history is checked, of each thread, and their steps.
const AUDITED: usize = 5_000;
const STEPS: usize = 4;

pub(crate) fn run(params: &Params) -> Result<Report, String> {
    let records = params.scaled(RECORDS);
    let transactions = params.scaled(TRANSACTIONS) / params.threads;
    let audited = params.scaled(AUDITED).max(500);
    // Room for more inserts than are likely; when it is full, what would be inserted is updated.
    let steps = transactions + audited * STEPS;
    let room = params.mix.room(records, params.threads * steps);
    let mut table = Table::new(room, WORDS);
    (0..records).for_each(|at| table.load(at, &record(at as u64, 0)));
    let load = Load {
        store: Store::new(vec![table]),
        chooser: Chooser::new(params.mix, records as u64),
        next: AtomicU64::new(records as u64),
    };
    let started = Instant::now();
    let parts = load.run(params, 0, transactions, 1, false);
    let seconds = started.elapsed().as_secs_f64();
    let audit = load.run(params, 1, audited, STEPS, true);
    let mut sums = Done::default();
    let mut traces = Vec::new();
    let timed_aborts: u64 = parts.iter().flatten().map(|(done, _)| done.aborts).sum();
    for part in parts.into_iter().chain(audit) {
        let (done, history) = part.map_err(|error| format!("silo-ycsb: {error}"))?;
        sums.modified += done.modified;
        sums.read += done.read;
        traces.extend(history);
    }
    history::check(&traces).map_err(|error| format!("silo-ycsb: {error}"))?;
    let counted = load.modified().map_err(|error| format!("silo-ycsb: {error}"))?;
    if counted != sums.modified {
        return Err(format!("silo-ycsb: {} modifications, records count {counted}", sums.modified));
    }
    let committed = transactions * params.threads;
    Ok(Report {
        workload: "silo-ycsb",
        operations: committed as u64,
        seconds,
        metrics: vec![
            ("transactions_per_second", committed as f64 / seconds),
            ("aborts", timed_aborts as f64),
            ("records", load.next.load(Ordering::Relaxed) as f64),
        ],
        check: format!(
            "YCSB {}: {} records read whole, {counted} modifications counted, a serial order for {} transactions",
            params.mix,
            sums.read,
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

/// What one thread did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    modified: u64,
    read: u64,
    aborts: u64,
}

struct Load {
    store: Store,
    chooser: Chooser,
    /// Number of the next record that is inserted.
    next: AtomicU64,
}

type Part = Result<(Done, Vec<super::store::Trace>), String>;

impl Load {
    fn run(
        &self,
        params: &Params,
        phase: u64,
        transactions: usize,
        steps: usize,
        traced: bool,
    ) -> Vec<Part> {
        run_workers(&self.store, params.threads, |thread| {
            let mut random = Random::new(mix(params.seed ^ mix(phase << 32 | thread as u64)));
            let mut worker = Worker::new(&self.store);
            worker.traces = traced.then(Vec::new);
            let mut done = Done::default();
            let mut found = Vec::new();
            for _ in 0..transactions {
                let chosen: Vec<Step> = (0..steps)
                    .map(|_| {
                        let records = self.next.load(Ordering::Relaxed);
                        match self.chooser.next(&mut random, records) {
                            Step::Insert => self.inserted(&mut random),
                            step => step,
                        }
                    })
                    .collect();
                loop {
                    worker.begin();
                    let mut own = Done::default();
                    for &step in &chosen {
                        self.step(step, &mut worker, &mut own, &mut found)?;
                    }
                    if worker.commit() {
                        done.modified += own.modified;
                        done.read += own.read;
                        break;
                    }
                }
            }
            done.aborts = worker.aborts;
            Ok((done, worker.traces.unwrap_or_default()))
        })
    }

    /// A step on a new record, or on an old one if there is no room.
    fn inserted(&self, random: &mut Random) -> Step {
        let room = self.store.tables[0].room() as u64;
        let take = |next: u64| (next < room).then_some(next + 1);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(number) => Step::Update(number),
            Err(_) => Step::Update(random.below(room)),
        }
    }

    fn step(
        &self,
        step: Step,
        worker: &mut Worker<'_>,
        done: &mut Done,
        found: &mut Vec<u64>,
    ) -> Result<(), String> {
        let mut read = |number: u64, worker: &mut Worker<'_>, done: &mut Done| {
            // One that is just being inserted may be absent.
            if worker.read((0, number as usize), found) {
                done.read += 1;
                modified(number, found).map(Some)
            } else {
                Ok(None)
            }
        };
        match step {
            Step::Read(number) => {
                read(number, worker, done)?;
            }
            // An update keeps the count, so it reads it.
            Step::Update(number) => {
                let count = read(number, worker, done)?;
                worker.write((0, number as usize), &record(number, count.unwrap_or(0)));
            }
            Step::Modify(number) => {
                let count = read(number, worker, done)?.unwrap_or(0);
                worker.write((0, number as usize), &record(number, count + 1));
                done.modified += 1;
            }
            Step::Scan(first, count) => {
                let end = (first + count).min(self.store.tables[0].room() as u64);
                for number in first..end {
                    read(number, worker, done)?;
                }
            }
            // Made an update of a new record when it was drawn.
            Step::Insert => {}
        }
        Ok(())
    }

    /// Modifications that all records together count.
    fn modified(&self) -> Result<u64, String> {
        let mut sum = 0;
        for number in 0..self.store.tables[0].room() {
            if let Some(found) = self.store.settled((0, number)) {
                sum += modified(number as u64, &found)?;
            }
        }
        Ok(sum)
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

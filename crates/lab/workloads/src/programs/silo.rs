//! `silo-ycsb` and `silo-tpcc`: a store in memory whose transactions are optimistic (Silo, SOSP 2013).
//!
//! - `silo-ycsb`: one step of a YCSB workload each (`--mix`) on 1 M records of 100 bytes. Checked: each record read is
//!   whole; the records count the updates, and are as many as were inserted; a history of transactions of four steps
//!   has a serial order.
//! - `silo-tpcc`: the five transactions of TPC-C, 8 warehouses. Checked: consistency conditions 1 to 12, and that what
//!   was done is there; a history has a serial order.
//!
//! Written from the paper; records are found by their number instead of a tree, see [`store`]. `operations` counts
//! committed transactions.

mod history;
mod store;
mod tally;
pub(super) mod tpcc;
pub(super) mod ycsb;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use self::store::Store;
use crate::team;
use crate::threads;

/// Silo's epochs.
const EPOCH: Duration = Duration::from_millis(40);

/// Runs `work` with the number of each thread, epochs passing meanwhile.
fn run_workers<R: Send>(store: &Store, threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let epochs = threads::spawn(scope, || {
            while !done.load(Ordering::Relaxed) {
                thread::park_timeout(EPOCH);
                store.next_epoch();
            }
        });
        let results = team::each((0..threads).collect(), work);
        done.store(true, Ordering::Relaxed);
        epochs.thread().unpark();
        results
    })
}

//! `silo-tpcc`: the five transactions of TPC-C (revision 5.11).
//!
//! ```text
//!  warehouse - 10 districts - 3,000 customers each            stock of 100,000 items for each warehouse
//!                  |              |
//!                  |              payments (history)          last name -> customers by first name
//!                  orders - 5 to 15 lines each, new orders    customer -> latest order;  district -> oldest new order
//! ```
//!
//! | of 100 | transaction | reads and writes |
//! |---|---|---|
//! | 45 | New-Order | one district counts up; stock of 5 to 15 items, 1 % in another warehouse; 1 % rolls back |
//! | 43 | Payment | warehouse, district, customer (15 of 100 of another warehouse; 60 of 100 by last name), history |
//! | 4 | Order-Status | a customer's latest order and its lines |
//! | 4 | Delivery | the oldest new order of each of the ten districts |
//! | 4 | Stock-Level | the lines of a district's last twenty orders, and the stock of their items |
//!
//! Numbers are drawn as the specification has it (clauses 2.1.6 and 4.3.2: `NURand`, last names of three syllables, of
//! which only the number is kept). Records are as long as it makes them; of their fields, those that transactions
//! compute with are kept. Money is in cents. The last two lines of the picture are the secondary indexes.
//!
//! What deviates: no terminals, so no keying and think times, screens or response time limits; the next transaction is
//! drawn for itself, not from a deck of cards; deliveries are done at once, not queued; all five are serializable,
//! where Stock-Level may be less; nothing is written to a disk, so that durability is not tested; names do not change,
//! so that their index is not validated.

mod check;
mod desk;
mod shop;

use std::time::Instant;

use pagemill_model::random::{Random, mix};

use self::desk::Desk;
use self::shop::{COUNTS, Count, Shop};
use super::tally::{Part, sum};
use super::{history, run_workers};
use crate::program::{Outcome, Params, Report};

/// Warehouses and transactions at full size.
const WAREHOUSES: usize = 8;
const TRANSACTIONS: usize = 1_000_000;
/// Transactions whose history is checked, of each thread.
const AUDITED: usize = 2_000;

pub(crate) fn run(params: &Params) -> Outcome {
    let transactions = params.share(TRANSACTIONS);
    let audited = params.scaled(AUDITED).max(200);
    let shop = Shop::new(params.scaled(WAREHOUSES), (transactions + audited) * params.threads);
    let mut traces = Vec::new();
    let started = Instant::now();
    let parts = serve(&shop, params, 0, transactions, false);
    let seconds = started.elapsed().as_secs_f64();
    let timed = sum(parts, &mut traces)?;
    let all = timed.plus(sum(serve(&shop, params, 1, audited, true), &mut traces)?);
    history::check(&traces)?;
    shop.check(&all)?;
    let of = |what: Count| timed.0[what as usize] as f64;
    let kinds = [Count::Orders, Count::Payments, Count::Statuses, Count::Deliveries, Count::Levels];
    let committed: f64 = kinds.into_iter().map(of).sum();
    Ok(Report {
        operations: committed as u64,
        seconds,
        metrics: vec![
            ("transactions_per_second", committed / seconds),
            ("new_orders_per_minute", of(Count::Orders) / seconds * 60.0),
            ("new_orders", of(Count::Orders)),
            ("payments", of(Count::Payments)),
            ("order_statuses", of(Count::Statuses)),
            ("deliveries", of(Count::Deliveries)),
            ("stock_levels", of(Count::Levels)),
            ("rolled_back", of(Count::RolledBack)),
            ("orders_delivered", of(Count::Delivered)),
            ("districts_skipped", of(Count::Skipped)),
            ("by_last_name", of(Count::ByName)),
            ("remote_payments", of(Count::RemotePayments)),
            ("aborts", of(Count::Aborts)),
            ("warehouses", shop.warehouses as f64),
        ],
        check: format!(
            "consistency conditions 1 to 12, {} lines, {} orders delivered, {} cents paid; a serial order for {} \
             transactions",
            all.0[Count::Lines as usize],
            all.0[Count::Delivered as usize],
            all.0[Count::Paid as usize],
            traces.len()
        ),
    })
}

/// So many transactions of each thread.
fn serve(
    shop: &Shop,
    params: &Params,
    phase: u64,
    transactions: usize,
    traced: bool,
) -> Vec<Part<COUNTS>> {
    run_workers(&shop.store, params.threads, |thread| {
        let random = Random::new(mix(params.seed ^ mix(phase << 32 | thread as u64)));
        let mut desk = Desk::new(shop, random, traced);
        for _ in 0..transactions {
            // Each thread has a warehouse, or any if there are more of them.
            let pinned = shop.warehouses <= params.threads;
            let home = if pinned { thread } else { desk.random.index(shop.warehouses) };
            desk.serve(home % shop.warehouses)?;
        }
        Ok(desk.done())
    })
}

#[cfg(test)]
mod tests;

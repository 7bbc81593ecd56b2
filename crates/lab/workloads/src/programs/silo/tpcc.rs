//! `silo-tpcc`: new orders and payments of TPC-C.
//!
//! ```text
//!  warehouse - 10 districts - 3,000 customers each            stock of 100,000 items for each warehouse
//!                  |
//!                  orders - 5 to 15 lines each, new orders
//! ```
//!
//! Records are as long as the specification makes them; of their fields, those that transactions compute with are kept.
//! Money is in cents. Customers are chosen by number, not by name.

use std::time::Instant;

use pagemill_model::random::{Random, mix};

use super::store::{Place, Store, Table, Trace, Worker};
use super::{history, run_workers};
use crate::program::{Params, Report};

/// Warehouses and transactions at full size.
const WAREHOUSES: usize = 8;
const TRANSACTIONS: usize = 1_000_000;
/// Transactions whose history is checked, of each thread.
const AUDITED: usize = 2_000;

const DISTRICTS: usize = 10;
const CUSTOMERS: usize = 3_000;
const ITEMS: usize = 100_000;
/// Orders of a district at the beginning, and those of them that are new.
const ORDERS: usize = 3_000;
const NEW: usize = 900;
const MOST_LINES: usize = 15;
/// New orders among new orders and payments: 45 to 43 in the specification.
const NEW_ORDERS: f64 = 45.0 / 88.0;
/// Year-to-date of a district at the beginning.
const DISTRICT_SUM: u64 = 3_000_000;

// Tables, and words of their records.
const WAREHOUSE: usize = 0;
const DISTRICT: usize = 1;
const CUSTOMER: usize = 2;
const STOCK: usize = 3;
const ITEM: usize = 4;
const ORDER: usize = 5;
const NEW_ORDER: usize = 6;
const LINE: usize = 7;
const WORDS: [usize; 8] = [12, 12, 82, 39, 11, 4, 1, 7];

pub(crate) fn run(params: &Params) -> Result<Report, String> {
    let fail = |error: String| format!("silo-tpcc: {error}");
    let transactions = params.scaled(TRANSACTIONS) / params.threads + 1;
    let audited = params.scaled(AUDITED).max(200);
    let shop = Shop::new(params.scaled(WAREHOUSES), (transactions + audited) * params.threads);
    let started = Instant::now();
    let parts = shop.run(params, 0, transactions, false);
    let seconds = started.elapsed().as_secs_f64();
    let mut timed = Done::default();
    for part in parts {
        timed = timed.plus(part.map_err(fail)?.0);
    }
    let audit = shop.run(params, 1, audited, true);
    let (mut all, mut traces) = (timed, Vec::new());
    for part in audit {
        let (done, history) = part.map_err(fail)?;
        all = all.plus(done);
        traces.extend(history);
    }
    history::check(&traces).map_err(fail)?;
    shop.check(all).map_err(fail)?;
    let committed = timed.orders + timed.payments;
    Ok(Report {
        workload: "silo-tpcc",
        operations: committed,
        seconds,
        metrics: vec![
            ("transactions_per_second", committed as f64 / seconds),
            ("new_orders", timed.orders as f64),
            ("payments", timed.payments as f64),
            ("rolled_back", timed.rolled_back as f64),
            ("aborts", timed.aborts as f64),
            ("warehouses", shop.warehouses as f64),
        ],
        check: format!(
            "consistency conditions 1 to 4, {} lines, {} cents paid; a serial order for {} transactions",
            all.lines,
            all.paid,
            traces.len()
        ),
    })
}

/// What transactions did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    orders: u64,
    lines: u64,
    payments: u64,
    paid: u64,
    rolled_back: u64,
    aborts: u64,
}

impl Done {
    fn plus(self, other: Self) -> Self {
        Self {
            orders: self.orders + other.orders,
            lines: self.lines + other.lines,
            payments: self.payments + other.payments,
            paid: self.paid + other.paid,
            rolled_back: self.rolled_back + other.rolled_back,
            aborts: self.aborts + other.aborts,
        }
    }
}

struct Shop {
    warehouses: usize,
    /// Orders that a district has room for.
    room: usize,
    store: Store,
}

/// The specification's skewed choice from `0..count`.
fn skewed(random: &mut Random, mask: u64, count: usize) -> usize {
    let a = random.below(mask + 1);
    ((a | random.below(count as u64)) % count as u64) as usize
}

impl Shop {
    /// With room for so many orders, however they fall.
    fn new(warehouses: usize, transactions: usize) -> Self {
        let districts = warehouses * DISTRICTS;
        let room = ORDERS + transactions / districts + 1_000;
        let counts = [
            warehouses,
            districts,
            districts * CUSTOMERS,
            warehouses * ITEMS,
            ITEMS,
            districts * room,
            districts * room,
            districts * room * MOST_LINES,
        ];
        let mut tables: Vec<Table> =
            counts.iter().zip(WORDS).map(|(&count, words)| Table::new(count, words)).collect();
        let mut random = Random::new(42);
        for at in 0..warehouses {
            tables[WAREHOUSE].load(at, &[DISTRICT_SUM * DISTRICTS as u64]);
        }
        for at in 0..warehouses * ITEMS {
            tables[STOCK].load(at, &[10 + random.below(91), 0, 0]);
        }
        for at in 0..ITEMS {
            tables[ITEM].load(at, &[100 + random.below(9_901)]);
        }
        for district in 0..districts {
            tables[DISTRICT].load(district, &[DISTRICT_SUM, ORDERS as u64]);
            for customer in 0..CUSTOMERS {
                tables[CUSTOMER].load(district * CUSTOMERS + customer, &[1_000, 1_000, 1]);
            }
            for order in 0..ORDERS {
                let at = district * room + order;
                let lines = 5 + random.below(11);
                tables[ORDER].load(at, &[order as u64, lines, random.below(CUSTOMERS as u64)]);
                for line in 0..lines as usize {
                    tables[LINE].load(at * MOST_LINES + line, &[random.below(ITEMS as u64), 5]);
                }
                if order >= ORDERS - NEW {
                    tables[NEW_ORDER].load(at, &[order as u64]);
                }
            }
        }
        Self { warehouses, room, store: Store::new(tables) }
    }

    fn run(
        &self,
        params: &Params,
        phase: u64,
        transactions: usize,
        traced: bool,
    ) -> Vec<Result<(Done, Vec<Trace>), String>> {
        run_workers(&self.store, params.threads, |thread| {
            let mut random = Random::new(mix(params.seed ^ mix(phase << 32 | thread as u64)));
            let mut desk =
                Desk { shop: self, worker: Worker::new(&self.store), record: Vec::new() };
            desk.worker.traces = traced.then(Vec::new);
            let mut done = Done::default();
            for _ in 0..transactions {
                // Each thread has a warehouse, or any if there are more of them.
                let pinned = self.warehouses <= params.threads;
                let home = if pinned { thread } else { random.index(self.warehouses) };
                let home = home % self.warehouses;
                if random.chance(NEW_ORDERS) {
                    desk.new_order(home, &mut random, &mut done)?;
                } else {
                    desk.payment(home, &mut random, &mut done);
                }
            }
            done.aborts = desk.worker.aborts;
            Ok((done, desk.worker.traces.unwrap_or_default()))
        })
    }

    /// Another warehouse with this probability, if there is one.
    fn supplier(&self, home: usize, random: &mut Random, probability: f64) -> usize {
        if self.warehouses == 1 || !random.chance(probability) {
            return home;
        }
        (home + 1 + random.index(self.warehouses - 1)) % self.warehouses
    }

    /// The first words of a record that must be there.
    fn settled(&self, place: Place) -> Result<Vec<u64>, String> {
        self.store.settled(place).ok_or_else(|| format!("record {place:?} is absent"))
    }

    /// The consistency conditions 1 to 4 (TPC-C, clause 3.3.2), and that nothing that was done is missing.
    fn check(&self, done: Done) -> Result<(), String> {
        let (mut paid, mut lines, mut orders) = (0, 0, 0);
        for warehouse in 0..self.warehouses {
            let mut sum = 0;
            for district in warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS {
                let record = self.settled((DISTRICT, district))?;
                sum += record[0];
                paid += record[0].saturating_sub(DISTRICT_SUM);
                let next = record[1] as usize;
                lines += self.check_orders(district, next)?;
                orders += next.saturating_sub(ORDERS);
            }
            let record = self.settled((WAREHOUSE, warehouse))?;
            if record[0] != sum {
                return Err(format!(
                    "condition 1: warehouse {warehouse} took {}, its districts {sum}",
                    record[0]
                ));
            }
        }
        let mut ordered = 0;
        for at in 0..self.warehouses * ITEMS {
            ordered += self.settled((STOCK, at))?[2];
        }
        for (what, found, expected) in [
            ("cents paid", paid, done.paid),
            ("new orders", orders as u64, done.orders),
            ("lines", lines, done.lines),
            ("lines taken from stock", ordered, done.lines),
        ] {
            if found != expected {
                return Err(format!("{found} {what}, but transactions made {expected}"));
            }
        }
        Ok(())
    }

    /// Conditions 2 to 4 of a district. Returns the lines of the orders that transactions made.
    fn check_orders(&self, district: usize, next: usize) -> Result<u64, String> {
        let place = |table: usize, order: usize| (table, district * self.room + order);
        let there = |table: usize, order: usize| self.store.settled(place(table, order)).is_some();
        let end = |table: usize| {
            (0..self.room).rfind(|&order| there(table, order)).map_or(0, |order| order + 1)
        };
        let (orders, new_orders) = (end(ORDER), end(NEW_ORDER));
        if orders != next || new_orders != next {
            return Err(format!(
                "condition 2: district {district} is at order {next}, its orders end at {orders} and {new_orders}"
            ));
        }
        let new = (0..next).filter(|&order| there(NEW_ORDER, order)).count();
        if new + ORDERS - NEW != next {
            return Err(format!("condition 3: district {district} has {new} new orders"));
        }
        let (mut counted, mut made) = (0, 0);
        for order in 0..next {
            let count = self.settled(place(ORDER, order))?[1];
            counted += count;
            made += if order >= ORDERS { count } else { 0 };
        }
        let first = district * self.room * MOST_LINES;
        let lines = first..first + self.room * MOST_LINES;
        let lines = lines.filter(|&at| self.store.settled((LINE, at)).is_some()).count() as u64;
        if lines != counted {
            return Err(format!(
                "condition 4: district {district} has {lines} lines, not {counted}"
            ));
        }
        Ok(made)
    }
}

/// One thread's transactions.
struct Desk<'a> {
    shop: &'a Shop,
    worker: Worker<'a>,
    record: Vec<u64>,
}

/// A line that is to be ordered: item, the warehouse that has it, how many.
type Wanted = (usize, usize, u64);

impl Desk<'_> {
    fn new_order(
        &mut self,
        home: usize,
        random: &mut Random,
        done: &mut Done,
    ) -> Result<(), String> {
        let district = home * DISTRICTS + random.index(DISTRICTS);
        let customer = skewed(random, 1023, CUSTOMERS);
        // One order of a hundred has an item that does not exist, found out at its end.
        let fails = random.chance(0.01);
        let mut wanted: Vec<Wanted> = (0..5 + random.index(11))
            .map(|_| {
                let supplier = self.shop.supplier(home, random, 0.01);
                (skewed(random, 8191, ITEMS), supplier, 1 + random.below(10))
            })
            .collect();
        // An item of the same warehouse is on one line only, so that each line counts once.
        wanted.sort_unstable();
        wanted.dedup_by_key(|&mut (item, supplier, _)| (item, supplier));
        loop {
            self.worker.begin();
            self.order(home, district, customer, &wanted)?;
            if fails {
                done.rolled_back += 1;
                return Ok(());
            }
            if self.worker.commit() {
                done.orders += 1;
                done.lines += wanted.len() as u64;
                return Ok(());
            }
        }
    }

    /// Reads and writes of a new order.
    fn order(
        &mut self,
        home: usize,
        district: usize,
        customer: usize,
        wanted: &[Wanted],
    ) -> Result<(), String> {
        let Self { shop, worker, record } = self;
        worker.read((WAREHOUSE, home), record);
        worker.read((CUSTOMER, district * CUSTOMERS + customer), record);
        worker.read((DISTRICT, district), record);
        let number = record[1];
        if number as usize >= shop.room {
            return Err(format!("district {district} has no room for order {number}"));
        }
        record[1] += 1;
        worker.write((DISTRICT, district), record);
        let at = district * shop.room + number as usize;
        let mut fresh = [0; MOST_LINES];
        (fresh[0], fresh[1], fresh[2]) = (number, wanted.len() as u64, customer as u64);
        worker.write((ORDER, at), &fresh[..WORDS[ORDER]]);
        worker.write((NEW_ORDER, at), &fresh[..WORDS[NEW_ORDER]]);
        for (line, &(item, supplier, quantity)) in wanted.iter().enumerate() {
            worker.read((ITEM, item), record);
            let price = record[0];
            worker.read((STOCK, supplier * ITEMS + item), record);
            let left = record[0];
            record[0] = if left >= quantity + 10 { left - quantity } else { left + 91 - quantity };
            record[1] += quantity;
            record[2] += 1;
            worker.write((STOCK, supplier * ITEMS + item), record);
            let mut fresh = [0; 7];
            fresh[..4].copy_from_slice(&[item as u64, quantity, price * quantity, supplier as u64]);
            worker.write((LINE, at * MOST_LINES + line), &fresh);
        }
        Ok(())
    }

    fn payment(&mut self, home: usize, random: &mut Random, done: &mut Done) {
        let district = home * DISTRICTS + random.index(DISTRICTS);
        let amount = 100 + random.below(499_901);
        // Fifteen of a hundred customers are of another warehouse.
        let of = self.shop.supplier(home, random, 0.15);
        let customer = (of * DISTRICTS + random.index(DISTRICTS)) * CUSTOMERS
            + skewed(random, 1023, CUSTOMERS);
        let Self { worker, record, .. } = self;
        loop {
            worker.begin();
            worker.read((WAREHOUSE, home), record);
            record[0] += amount;
            worker.write((WAREHOUSE, home), record);
            worker.read((DISTRICT, district), record);
            record[0] += amount;
            worker.write((DISTRICT, district), record);
            worker.read((CUSTOMER, customer), record);
            // A balance may be negative.
            record[0] = record[0].wrapping_sub(amount);
            record[1] += amount;
            record[2] += 1;
            worker.write((CUSTOMER, customer), record);
            if worker.commit() {
                done.payments += 1;
                done.paid += amount;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_on_one_warehouse_with_many_threads_and_what_breaks_them_is_found() {
        let params = Params { threads: 4, scale: 1e-3, ..Params::default() };
        let report = run(&params).unwrap();
        assert!(report.operations > 900, "{report:?}");
        assert!(report.check.contains("conditions 1 to 4"), "{report:?}");
        let mut shop = Shop::new(1, 10);
        shop.check(Done::default()).unwrap();
        let error = shop.check(Done { paid: 5, ..Done::default() }).unwrap_err();
        assert!(error.contains("0 cents paid"), "{error}");
        let broken = |table: usize, at: usize, record: &[u64], shop: &mut Shop| {
            let was = shop.settled((table, at)).unwrap_or_default();
            shop.store.tables[table].load(at, record);
            let error = shop.check(Done::default()).unwrap_err();
            shop.store.tables[table].load(at, &was);
            error
        };
        assert!(broken(WAREHOUSE, 0, &[7], &mut shop).contains("condition 1"));
        let next = [DISTRICT_SUM, 2_999];
        assert!(broken(DISTRICT, 3, &next, &mut shop).contains("condition 2"));
        assert!(broken(ORDER, 17, &[17, 16, 0], &mut shop).contains("condition 4"));
        let early = shop.room + 12;
        assert!(broken(NEW_ORDER, early, &[12], &mut shop).contains("condition 3"));
    }
}

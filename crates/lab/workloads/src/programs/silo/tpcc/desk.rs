//! The transactions.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use pagemill_model::random::Random;

use super::super::store::{Trace, Worker};
use super::shop::{
    AMOUNT, AT, BAD, BALANCE, BUYER, BY, C_CUSTOMER, C_ITEM, C_NAME_RUN, CARRIER, CUSTOMER,
    CUSTOMERS, Count, DATA, DATE, DELIVERIES, DISCOUNT, DISTRICT, DISTRICTS, HISTORY, ITEM, ITEMS,
    LATEST, LINE, LINES, MOST_LINES, NAME, NAMES, NEW_ORDER, NEXT, OF_ITEM, OLDEST, ORDER, ORDERED,
    PAID, PAYMENTS, QUANTITY, REMOTE, STOCK, SUM, Shop, TAKEN, TAX, TIMES, Tally, WAREHOUSE, WORDS,
    skewed,
};

/// Words that a payment puts before a bad customer's data.
const NOTE: usize = 6;
/// Orders whose items Stock-Level looks at.
const RECENT: u64 = 20;

/// One thread's transactions.
pub(super) struct Desk<'a> {
    shop: &'a Shop,
    worker: Worker<'a>,
    pub(super) random: Random,
    done: Tally,
    record: Vec<u64>,
}

/// A line that is to be ordered: item, the warehouse that has it, how many.
type OrderLine = (usize, usize, u64);

impl<'a> Desk<'a> {
    pub(super) fn new(shop: &'a Shop, random: Random, traced: bool) -> Self {
        let mut worker = Worker::new(&shop.store);
        worker.traces = traced.then(Vec::new);
        Self { shop, worker, random, done: Tally::NONE, record: Vec::new() }
    }

    /// What was done, and its history.
    pub(super) fn done(mut self) -> (Tally, Vec<Trace>) {
        self.done.add(Count::Aborts, self.worker.aborts);
        (self.done, self.worker.traces.unwrap_or_default())
    }

    /// The next transaction, of a terminal of this warehouse.
    pub(super) fn serve(&mut self, home: usize) -> Result<(), String> {
        let district = home * DISTRICTS + self.random.index(DISTRICTS);
        match self.random.below(100) {
            0..45 => self.new_order(home, district),
            45..88 => self.payment(home, district),
            88..92 => self.order_status(district),
            92..96 => self.delivery(home),
            _ => self.stock_level(home, district),
        }
    }

    /// Does the reads and writes of a transaction until they are committed. Returns what they made.
    fn commit<T>(
        &mut self,
        mut steps: impl FnMut(&Shop, &mut Worker<'a>, &mut Vec<u64>) -> Result<T, String>,
    ) -> Result<T, String> {
        loop {
            self.worker.begin();
            let made = steps(self.shop, &mut self.worker, &mut self.record)?;
            if self.worker.commit() {
                return Ok(made);
            }
        }
    }

    /// Another warehouse in so many of 100, if there is one.
    fn supplier(&mut self, home: usize, of_100: u64) -> usize {
        let warehouses = self.shop.warehouses;
        if warehouses == 1 || self.random.below(100) >= of_100 {
            return home;
        }
        (home + 1 + self.random.index(warehouses - 1)) % warehouses
    }

    /// A customer of a district: 60 of 100 by last name, the middle one by first name; the others by number.
    fn customer(&mut self, district: usize) -> (usize, Option<u64>) {
        let random = &mut self.random;
        if random.below(100) >= 60 {
            let customer = skewed(random, 1_023, C_CUSTOMER, CUSTOMERS);
            return (district * CUSTOMERS + customer, None);
        }
        self.done.add(Count::ByName, 1);
        let name = skewed(random, 255, C_NAME_RUN, NAMES);
        let same = &self.shop.named[district * NAMES + name];
        let middle = same[same.len().div_ceil(2) - 1];
        (district * CUSTOMERS + middle as usize, Some(name as u64))
    }

    fn new_order(&mut self, home: usize, district: usize) -> Result<(), String> {
        let random = &mut self.random;
        let customer = skewed(random, 1_023, C_CUSTOMER, CUSTOMERS);
        let count = 5 + random.index(11);
        // One of a hundred ends with an item that does not exist.
        let fails = random.below(100) == 0;
        let mut wanted: Vec<OrderLine> = Vec::with_capacity(count);
        for _ in 0..count {
            let item = skewed(&mut self.random, 8_191, C_ITEM, ITEMS);
            let supplier = self.supplier(home, 1);
            wanted.push((item, supplier, 1 + self.random.below(10)));
        }
        if fails {
            wanted[count - 1].0 = ITEMS;
        }
        let date = self.shop.date();
        loop {
            self.worker.begin();
            let Some(total) = self.order(home, district, customer, &wanted, date)? else {
                self.done.add(Count::RolledBack, 1);
                return Ok(());
            };
            if self.worker.commit() {
                black_box(total);
                let pieces = wanted.iter().map(|line| line.2).sum();
                let remote = wanted.iter().filter(|line| line.1 != home).count() as u64;
                self.done.add(Count::Orders, 1);
                self.done.add(Count::Lines, count as u64);
                self.done.add(Count::Pieces, pieces);
                self.done.add(Count::RemoteLines, remote);
                return Ok(());
            }
        }
    }

    /// Reads and writes of a new order; what is to be paid, or none if there is no such item.
    fn order(
        &mut self,
        home: usize,
        district: usize,
        customer: usize,
        wanted: &[OrderLine],
        date: u64,
    ) -> Result<Option<u64>, String> {
        let Self { shop, worker, record, .. } = self;
        worker.read((WAREHOUSE, home), record);
        let mut tax = record[TAX];
        worker.read((DISTRICT, district), record);
        tax += record[TAX];
        let number = record[NEXT];
        if number as usize >= shop.room {
            return Err(format!("district {district} has no room for order {number}"));
        }
        record[NEXT] += 1;
        worker.write((DISTRICT, district), record);
        let buyer = district * CUSTOMERS + customer;
        worker.read((CUSTOMER, buyer), record);
        let discount = record[DISCOUNT];
        let at = district * shop.room + number as usize;
        worker.write((ORDER, at), &[customer as u64, wanted.len() as u64, 0, date]);
        worker.write((NEW_ORDER, at), &[number]);
        worker.write((LATEST, buyer), &[number]);
        let mut sum = 0;
        for (line, &(item, supplier, quantity)) in wanted.iter().enumerate() {
            if !worker.read((ITEM, item), record) {
                return Ok(None);
            }
            let amount = record[0] * quantity;
            sum += amount;
            let stock = (STOCK, supplier * ITEMS + item);
            worker.read(stock, record);
            let left = record[QUANTITY];
            record[QUANTITY] =
                if left >= quantity + 10 { left - quantity } else { left + 91 - quantity };
            record[ORDERED] += quantity;
            record[TIMES] += 1;
            record[REMOTE] += u64::from(supplier != home);
            worker.write(stock, record);
            let line = at * MOST_LINES + line;
            let fresh = [item as u64, quantity, amount, supplier as u64, 0, 0, 0];
            worker.write((LINE, line), &fresh);
        }
        Ok(Some(sum * (10_000 - discount) / 10_000 * (10_000 + tax) / 10_000))
    }

    fn payment(&mut self, home: usize, district: usize) -> Result<(), String> {
        let amount = 100 + self.random.below(499_901);
        let of = self.supplier(home, 15);
        let (customer, name) =
            // A customer of another warehouse may be of any of its districts.
            if of == home { self.customer(district) } else {
                let elsewhere = of * DISTRICTS + self.random.index(DISTRICTS);
                self.customer(elsewhere)
            };
        let number = self.shop.payments.fetch_add(1, Ordering::Relaxed) as usize;
        let date = self.shop.date();
        self.commit(|_, worker, record| {
            for place in [(WAREHOUSE, home), (DISTRICT, district)] {
                worker.read(place, record);
                record[TAKEN] += amount;
                worker.write(place, record);
            }
            worker.read((CUSTOMER, customer), record);
            if let Some(name) = name.filter(|&name| name != record[NAME]) {
                return Err(format!("customer {customer} is not of name {name}"));
            }
            record[BALANCE] = record[BALANCE].wrapping_sub(amount);
            record[PAID] += amount;
            record[PAYMENTS] += 1;
            if record[BAD] == 1 {
                let end = record.len() - NOTE;
                record.copy_within(DATA..end, DATA + NOTE);
                let note = [customer, district, home, number, amount as usize, date as usize];
                record[DATA..DATA + NOTE].copy_from_slice(&note.map(|word| word as u64));
            }
            worker.write((CUSTOMER, customer), record);
            let mut fresh = [0; WORDS[HISTORY]];
            (fresh[AT], fresh[BY], fresh[SUM]) = (district as u64, customer as u64, amount);
            (fresh[3], fresh[4]) = (home as u64, date);
            worker.write((HISTORY, number), &fresh);
            Ok(())
        })?;
        self.done.add(Count::Payments, 1);
        self.done.add(Count::Paid, amount);
        self.done.add(Count::RemotePayments, u64::from(of != home));
        Ok(())
    }

    fn order_status(&mut self, district: usize) -> Result<(), String> {
        let (customer, _) = self.customer(district);
        let (lines, carrier, dated) = self.commit(|shop, worker, record| {
            worker.read((CUSTOMER, customer), record);
            black_box(record[BALANCE]);
            worker.read((LATEST, customer), record);
            let at = district * shop.room + record[0] as usize;
            worker.read((ORDER, at), record);
            let (lines, carrier) = (record[LINES], record[CARRIER]);
            let mut dated = 0;
            for line in at * MOST_LINES..at * MOST_LINES + lines as usize {
                worker.read((LINE, line), record);
                dated += u64::from(record[DATE] > 0);
            }
            Ok((lines, carrier, dated))
        })?;
        self.done.add(Count::Statuses, 1);
        if dated != if carrier == 0 { 0 } else { lines } {
            return Err(format!(
                "customer {customer} saw {dated} of {lines} lines delivered by carrier {carrier}"
            ));
        }
        Ok(())
    }

    fn delivery(&mut self, home: usize) -> Result<(), String> {
        let carrier = 1 + self.random.below(10);
        let date = self.shop.date();
        let delivered = self.commit(|shop, worker, record| {
            let mut delivered = 0;
            for district in home * DISTRICTS..(home + 1) * DISTRICTS {
                worker.read((OLDEST, district), record);
                let number = record[0];
                let at = district * shop.room + number as usize;
                if number as usize >= shop.room || !worker.read((NEW_ORDER, at), record) {
                    continue;
                }
                worker.remove((NEW_ORDER, at));
                worker.write((OLDEST, district), &[number + 1]);
                worker.read((ORDER, at), record);
                record[CARRIER] = carrier;
                worker.write((ORDER, at), record);
                let customer = (CUSTOMER, district * CUSTOMERS + record[BUYER] as usize);
                let mut sum = 0;
                for line in at * MOST_LINES..at * MOST_LINES + record[LINES] as usize {
                    worker.read((LINE, line), record);
                    sum += record[AMOUNT];
                    record[DATE] = date;
                    worker.write((LINE, line), record);
                }
                worker.read(customer, record);
                record[BALANCE] = record[BALANCE].wrapping_add(sum);
                record[DELIVERIES] += 1;
                worker.write(customer, record);
                delivered += 1;
            }
            Ok(delivered)
        })?;
        self.done.add(Count::Deliveries, 1);
        self.done.add(Count::Delivered, delivered);
        self.done.add(Count::Skipped, DISTRICTS as u64 - delivered);
        Ok(())
    }

    fn stock_level(&mut self, home: usize, district: usize) -> Result<(), String> {
        let threshold = 10 + self.random.below(11);
        let low = self.commit(|shop, worker, record| {
            worker.read((DISTRICT, district), record);
            let next = record[NEXT];
            let mut items = Vec::new();
            for order in next - RECENT..next {
                let at = district * shop.room + order as usize;
                worker.read((ORDER, at), record);
                for line in at * MOST_LINES..at * MOST_LINES + record[LINES] as usize {
                    worker.read((LINE, line), record);
                    items.push(record[OF_ITEM] as usize);
                }
            }
            items.sort_unstable();
            items.dedup();
            Ok(items
                .into_iter()
                .filter(|item| {
                    worker.read((STOCK, home * ITEMS + item), record);
                    record[QUANTITY] < threshold
                })
                .count())
        })?;
        black_box(low);
        self.done.add(Count::Levels, 1);
        Ok(())
    }
}

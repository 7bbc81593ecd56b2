//! The records, and what they are at the beginning (clause 4.3.3).

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use pagemill_model::random::Random;

use super::super::store::{Store, Table};

pub(super) const DISTRICTS: usize = 10;
pub(super) const CUSTOMERS: usize = 3_000;
pub(super) const ITEMS: usize = 100_000;
/// Last names.
pub(super) const NAMES: usize = 1_000;
/// Orders of a district at the beginning, and those of them that are new.
pub(super) const ORDERS: usize = 3_000;
pub(super) const NEW: usize = 900;
pub(super) const MOST_LINES: usize = 15;
/// What each customer has paid at the beginning, and a district took.
pub(super) const FIRST_PAYMENT: u64 = 1_000;
pub(super) const DISTRICT_SUM: u64 = FIRST_PAYMENT * CUSTOMERS as u64;
/// The constants C of `NURand` for customers and items; of names, what the load and the run have differ by 65 to 119.
pub(super) const C_CUSTOMER: u64 = 259;
pub(super) const C_ITEM: u64 = 7_911;
pub(super) const C_NAME_LOAD: u64 = 157;
pub(super) const C_NAME_RUN: u64 = 223;

// Tables, words of their records, and the words that are used.
pub(super) const WAREHOUSE: usize = 0;
pub(super) const DISTRICT: usize = 1;
pub(super) const CUSTOMER: usize = 2;
pub(super) const STOCK: usize = 3;
pub(super) const ITEM: usize = 4;
pub(super) const ORDER: usize = 5;
pub(super) const NEW_ORDER: usize = 6;
pub(super) const LINE: usize = 7;
pub(super) const HISTORY: usize = 8;
/// Of a district: its oldest new order, or the next order if there is none.
pub(super) const OLDEST: usize = 9;
/// Of a customer: the latest order.
pub(super) const LATEST: usize = 10;
pub(super) const WORDS: [usize; 11] = [12, 12, 82, 39, 11, 4, 1, 7, 6, 1, 1];

/// Of warehouses and districts: money taken, and tax in hundredths of a per cent.
pub(super) const TAKEN: usize = 0;
pub(super) const TAX: usize = 1;
/// Of a district: the number of the next order.
pub(super) const NEXT: usize = 2;
/// Of a customer. A balance may be negative; the data of those with bad credit begin with their last payments.
pub(super) const BALANCE: usize = 0;
pub(super) const PAID: usize = 1;
pub(super) const PAYMENTS: usize = 2;
pub(super) const DELIVERIES: usize = 3;
pub(super) const NAME: usize = 4;
pub(super) const BAD: usize = 5;
pub(super) const DISCOUNT: usize = 6;
pub(super) const DATA: usize = 19;
/// Of stock.
pub(super) const QUANTITY: usize = 0;
pub(super) const ORDERED: usize = 1;
pub(super) const TIMES: usize = 2;
pub(super) const REMOTE: usize = 3;
/// Of an order. No carrier has the number 0.
pub(super) const BUYER: usize = 0;
pub(super) const LINES: usize = 1;
pub(super) const CARRIER: usize = 2;
/// Of a line. One that was not delivered has no date.
pub(super) const OF_ITEM: usize = 0;
pub(super) const AMOUNT: usize = 2;
pub(super) const DATE: usize = 4;
/// Of a payment: district, customer and amount.
pub(super) const AT: usize = 0;
pub(super) const BY: usize = 1;
pub(super) const SUM: usize = 2;

/// What is counted of transactions that were committed, and of those that were not.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Orders,
    Payments,
    Statuses,
    Deliveries,
    Levels,
    RolledBack,
    Lines,
    Pieces,
    RemoteLines,
    Paid,
    RemotePayments,
    ByName,
    Delivered,
    Skipped,
    Aborts,
}

pub(super) const COUNTS: usize = Count::Aborts as usize + 1;

pub(super) type Tally = super::super::tally::Tally<COUNTS>;

impl Tally {
    pub(super) fn add(&mut self, what: Count, amount: u64) {
        self.0[what as usize] += amount;
    }
}

/// The specification's skewed choice from `0..count`, `NURand(mask, 0, count - 1)`.
pub(super) fn skewed(random: &mut Random, mask: u64, c: u64, count: usize) -> usize {
    let either = random.below(mask + 1) | random.below(count as u64);
    ((either + c) % count as u64) as usize
}

pub(super) struct Shop {
    pub(super) warehouses: usize,
    /// Orders that a district has room for.
    pub(super) room: usize,
    pub(super) store: Store,
    /// Customers of each district and last name, by their first names.
    pub(super) named: Vec<Vec<u32>>,
    /// Number of the next payment.
    pub(super) payments: AtomicU64,
    pub(super) began: Instant,
}

impl Shop {
    /// With room for so many transactions, however they fall.
    pub(super) fn new(warehouses: usize, transactions: usize) -> Self {
        let districts = warehouses * DISTRICTS;
        let (room, customers) = (ORDERS + transactions / districts + 1_000, districts * CUSTOMERS);
        let counts = [
            warehouses,
            districts,
            customers,
            warehouses * ITEMS,
            // One that does not exist.
            ITEMS + 1,
            districts * room,
            districts * room,
            districts * room * MOST_LINES,
            customers + transactions,
            districts,
            customers,
        ];
        let mut tables: Vec<Table> =
            counts.iter().zip(WORDS).map(|(&count, words)| Table::new(count, words)).collect();
        let mut random = Random::new(42);
        for at in 0..warehouses {
            let taken = DISTRICT_SUM * DISTRICTS as u64;
            tables[WAREHOUSE].load(at, &[taken, random.below(2_001)]);
        }
        for at in 0..warehouses * ITEMS {
            tables[STOCK].load(at, &[10 + random.below(91), 0, 0, 0]);
        }
        for at in 0..ITEMS {
            tables[ITEM].load(at, &[100 + random.below(9_901)]);
        }
        let mut named = vec![Vec::new(); districts * NAMES];
        for district in 0..districts {
            let tax = random.below(2_001);
            tables[DISTRICT].load(district, &[DISTRICT_SUM, tax, ORDERS as u64]);
            tables[OLDEST].load(district, &[(ORDERS - NEW) as u64]);
            let named = &mut named[district * NAMES..(district + 1) * NAMES];
            load_customers(&mut tables, district, named, &mut random);
            load_orders(&mut tables, district, room, &mut random);
        }
        Self {
            warehouses,
            room,
            store: Store::new(tables),
            named,
            payments: AtomicU64::new(customers as u64),
            began: Instant::now(),
        }
    }

    /// The now of transactions, never 0.
    pub(super) fn date(&self) -> u64 {
        self.began.elapsed().as_micros() as u64 + 1
    }
}

/// The customers of a district; the first thousand have a last name each, ten of a hundred bad credit.
fn load_customers(
    tables: &mut [Table],
    district: usize,
    named: &mut [Vec<u32>],
    random: &mut Random,
) {
    let mut first_names = Vec::with_capacity(CUSTOMERS);
    for customer in 0..CUSTOMERS {
        let at = district * CUSTOMERS + customer;
        let name =
            if customer < NAMES { customer } else { skewed(random, 255, C_NAME_LOAD, NAMES) };
        let mut record = [0; WORDS[CUSTOMER]];
        record[BALANCE] = FIRST_PAYMENT.wrapping_neg();
        (record[PAID], record[PAYMENTS], record[NAME]) = (FIRST_PAYMENT, 1, name as u64);
        (record[BAD], record[DISCOUNT]) = (u64::from(random.below(10) == 0), random.below(5_001));
        record[DATA..].iter_mut().for_each(|word| *word = random.bits());
        tables[CUSTOMER].load(at, &record);
        tables[HISTORY].load(at, &[district as u64, at as u64, FIRST_PAYMENT]);
        named[name].push(customer as u32);
        first_names.push(random.bits());
    }
    named.iter_mut().for_each(|same| same.sort_by_key(|&at| first_names[at as usize]));
}

/// The orders of a district, one of each customer; those that are not new were delivered for nothing.
fn load_orders(tables: &mut [Table], district: usize, room: usize, random: &mut Random) {
    let mut buyers: Vec<u64> = (0..CUSTOMERS as u64).collect();
    random.shuffle(&mut buyers);
    for (order, buyer) in buyers.into_iter().enumerate() {
        let at = district * room + order;
        let (lines, new) = (5 + random.below(11), order >= ORDERS - NEW);
        let carrier = if new { 0 } else { 1 + random.below(10) };
        tables[ORDER].load(at, &[buyer, lines, carrier, 1]);
        tables[LATEST].load(district * CUSTOMERS + buyer as usize, &[order as u64]);
        for line in at * MOST_LINES..at * MOST_LINES + lines as usize {
            let (amount, date) = if new { (1 + random.below(999_999), 0) } else { (0, 1) };
            let supplier = (district / DISTRICTS) as u64;
            tables[LINE].load(line, &[random.below(ITEMS as u64), 5, amount, supplier, date]);
        }
        if new {
            tables[NEW_ORDER].load(at, &[order as u64]);
        }
    }
}

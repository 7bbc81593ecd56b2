//! The consistency conditions (TPC-C, clauses 3.3.2.1 to 3.3.2.12), and that nothing that was done is missing.
//!
//! Condition 11 is one of the population alone: 2,100 orders of a district are not new. Here deliveries count, too.

use super::super::store::Place;
use super::shop::{
    AMOUNT, AT, BALANCE, BUYER, BY, CARRIER, CUSTOMER, CUSTOMERS, Count, DATE, DELIVERIES,
    DISTRICT, DISTRICTS, HISTORY, ITEMS, LATEST, LINE, LINES, MOST_LINES, NEW, NEW_ORDER, NEXT,
    OLDEST, ORDER, ORDERED, ORDERS, PAID, PAYMENTS, REMOTE, STOCK, SUM, Shop, TAKEN, TIMES, Tally,
    WAREHOUSE,
};

/// Of a customer, what orders and payments say.
#[derive(Clone, Copy, Default)]
struct Account {
    delivered: u64,
    paid: u64,
    payments: u64,
    deliveries: u64,
}

/// What the records say that was done.
struct Books {
    accounts: Vec<Account>,
    /// Money taken by each district.
    taken: Vec<u64>,
    found: Tally,
}

fn equal(condition: u32, whose: &str, found: u64, expected: u64) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let [found, expected] = [found, expected].map(|amount| amount as i64);
    Err(format!("condition {condition}: {whose}: {found}, not {expected}"))
}

impl Shop {
    /// The first words of a record that must be there.
    fn committed(&self, place: Place) -> Result<Vec<u64>, String> {
        self.store.committed(place).ok_or_else(|| format!("record {place:?} is absent"))
    }

    /// Whether all conditions hold and the records say what was done, when no transaction runs.
    pub(super) fn check(&self, done: &Tally) -> Result<(), String> {
        let districts = self.warehouses * DISTRICTS;
        let mut books = Books {
            accounts: vec![Account::default(); districts * CUSTOMERS],
            taken: vec![0; districts],
            found: Tally::NONE,
        };
        self.check_payments(&mut books)?;
        for district in 0..districts {
            self.check_orders(district, &mut books)?;
        }
        self.check_customers(&mut books)?;
        for at in 0..self.warehouses * ITEMS {
            let stock = self.committed((STOCK, at))?;
            books.found.add(Count::Lines, stock[TIMES]);
            books.found.add(Count::Pieces, stock[ORDERED]);
            books.found.add(Count::RemoteLines, stock[REMOTE]);
        }
        for (what, count) in [
            ("new orders", Count::Orders),
            ("lines taken from stock", Count::Lines),
            ("pieces taken from stock", Count::Pieces),
            ("lines of other warehouses", Count::RemoteLines),
            ("orders delivered", Count::Delivered),
            ("payments", Count::Payments),
            ("cents paid", Count::Paid),
        ] {
            let (found, made) = (books.found.0[count as usize], done.0[count as usize]);
            if found != made {
                return Err(format!("{found} {what}, but transactions made {made}"));
            }
        }
        Ok(())
    }

    /// Conditions 1, 8 and 9: what warehouses and districts took is what was paid.
    fn check_payments(&self, books: &mut Books) -> Result<(), String> {
        for at in 0..self.store.tables[HISTORY].room() {
            let Some(payment) = self.store.committed((HISTORY, at)) else { continue };
            books.taken[payment[AT] as usize] += payment[SUM];
            let account = &mut books.accounts[payment[BY] as usize];
            account.paid += payment[SUM];
            account.payments += 1;
            if at >= books.accounts.len() {
                books.found.add(Count::Payments, 1);
                books.found.add(Count::Paid, payment[SUM]);
            }
        }
        for warehouse in 0..self.warehouses {
            let districts = warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS;
            let mut sum = 0;
            for district in districts.clone() {
                let took = self.committed((DISTRICT, district))?[TAKEN];
                let what = format!("district {district} took");
                equal(9, &what, took, books.taken[district])?;
                sum += took;
            }
            let took = self.committed((WAREHOUSE, warehouse))?[TAKEN];
            let what = format!("warehouse {warehouse} took");
            equal(1, &what, took, sum)?;
            equal(8, &what, took, books.taken[districts].iter().sum())?;
        }
        Ok(())
    }

    /// Conditions 2 to 7 and 11 of a district, and that its indexes are right.
    fn check_orders(&self, district: usize, books: &mut Books) -> Result<(), String> {
        let next = self.committed((DISTRICT, district))?[NEXT] as usize;
        let of = |table: usize, order: usize| (table, district * self.room + order);
        let all = |table: usize| {
            (0..self.room).filter(move |&order| self.store.committed(of(table, order)).is_some())
        };
        let whose = |what: &str| format!("district {district}, {what}");
        let last = all(ORDER).last().map_or(0, |order| order + 1);
        equal(2, &whose("after its last order"), last as u64, next as u64)?;
        let new: Vec<usize> = all(NEW_ORDER).collect();
        let oldest = self.committed((OLDEST, district))?[0];
        if let (Some(&first), Some(&last)) = (new.first(), new.last()) {
            equal(2, &whose("after its last new order"), last as u64 + 1, next as u64)?;
            equal(3, &whose("new orders"), new.len() as u64, (last - first) as u64 + 1)?;
        }
        let first = new.first().copied().unwrap_or(next);
        equal(3, &whose("oldest new order in the index"), oldest, first as u64)?;
        let (mut counted, mut delivered) = (0, 0);
        for number in 0..next {
            let order = self.committed(of(ORDER, number))?;
            let undelivered = u64::from(self.store.committed(of(NEW_ORDER, number)).is_some());
            let what = whose(&format!("order {number} without a carrier"));
            equal(5, &what, u64::from(order[CARRIER] == 0), undelivered)?;
            counted += order[LINES];
            delivered += 1 - undelivered;
            self.check_lines(district, number, &order, books)?;
        }
        let end = self.room * MOST_LINES;
        let lines = district * end..(district + 1) * end;
        let lines = lines.filter(|&at| self.store.committed((LINE, at)).is_some()).count();
        equal(4, &whose("lines"), lines as u64, counted)?;
        let more = (delivered + NEW as u64).saturating_sub(ORDERS as u64);
        equal(11, &whose("orders that are not new"), (next - new.len()) as u64, delivered)?;
        books.found.add(Count::Delivered, more);
        books.found.add(Count::Orders, (next - ORDERS) as u64);
        Ok(())
    }

    /// Conditions 6 and 7 of an order.
    fn check_lines(
        &self,
        district: usize,
        number: usize,
        order: &[u64],
        books: &mut Books,
    ) -> Result<(), String> {
        let first = (district * self.room + number) * MOST_LINES;
        let lines = (first..first + MOST_LINES).filter_map(|at| self.store.committed((LINE, at)));
        let lines: Vec<Vec<u64>> = lines.collect();
        let whose = |what: &str| format!("district {district}, order {number}, {what}");
        equal(6, &whose("lines"), lines.len() as u64, order[LINES])?;
        let account = &mut books.accounts[district * CUSTOMERS + order[BUYER] as usize];
        let delivered = order[CARRIER] > 0;
        for line in &lines {
            let dated = line[DATE] > 0;
            equal(7, &whose("a line with a date"), u64::from(dated), u64::from(delivered))?;
            account.delivered += if dated { line[AMOUNT] } else { 0 };
        }
        account.deliveries += u64::from(delivered && number >= ORDERS - NEW);
        Ok(())
    }

    /// Conditions 10 and 12: what customers owe.
    fn check_customers(&self, books: &mut Books) -> Result<(), String> {
        for (at, account) in books.accounts.iter().enumerate() {
            let customer = self.committed((CUSTOMER, at))?;
            let whose = |what: &str| format!("customer {at}, {what}");
            let owed = account.delivered.wrapping_sub(account.paid);
            equal(10, &whose("balance"), customer[BALANCE], owed)?;
            let sum = customer[BALANCE].wrapping_add(customer[PAID]);
            equal(12, &whose("balance and payments"), sum, account.delivered)?;
            for (what, found, expected) in [
                ("payments", customer[PAYMENTS], account.payments),
                ("deliveries", customer[DELIVERIES], account.deliveries),
            ] {
                if found != expected {
                    return Err(format!("customer {at} has {found} {what}, not {expected}"));
                }
            }
            let latest = self.committed((LATEST, at))?[0] as usize;
            let order = self.committed((ORDER, at / CUSTOMERS * self.room + latest))?;
            if order[BUYER] as usize != at % CUSTOMERS {
                return Err(format!("order {latest} is not of customer {at}, as its index says"));
            }
        }
        Ok(())
    }
}

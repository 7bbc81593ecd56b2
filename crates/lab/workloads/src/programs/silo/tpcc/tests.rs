use super::shop::*;
use super::*;

fn params(threads: usize) -> Params {
    Params { threads, ..Params::default() }
}

#[test]
fn the_conditions_hold_on_one_warehouse_with_many_threads() {
    let report = run(&Params { scale: 1e-3, ..params(4) }).unwrap();
    assert!(report.operations > 900, "{report:?}");
    assert!(report.check.contains("conditions 1 to 12"), "{report:?}");
}

/// There were two transactions of the five.
#[test]
fn the_mix_and_its_chances_are_the_specified_ones() {
    let shop = Shop::new(3, 20_000);
    let done = sum(serve(&shop, &params(2), 0, 10_000, false), &mut Vec::new()).unwrap();
    shop.check(&done).unwrap();
    let of = |what: Count| done.0[what as usize] as f64;
    let ordered = of(Count::Orders) + of(Count::RolledBack);
    for (what, found, expected, allowed) in [
        ("new orders", ordered / 2e4, 0.45, 0.02),
        ("payments", of(Count::Payments) / 2e4, 0.43, 0.02),
        ("order statuses", of(Count::Statuses) / 2e4, 0.04, 0.007),
        ("deliveries", of(Count::Deliveries) / 2e4, 0.04, 0.007),
        ("stock levels", of(Count::Levels) / 2e4, 0.04, 0.007),
        ("rolled back", of(Count::RolledBack) / ordered, 0.01, 0.004),
        ("remote payments", of(Count::RemotePayments) / of(Count::Payments), 0.15, 0.02),
        (
            "by last name",
            of(Count::ByName) / (of(Count::Payments) + of(Count::Statuses)),
            0.6,
            0.03,
        ),
        ("lines of an order", of(Count::Lines) / of(Count::Orders), 10.0, 0.2),
        ("remote lines", of(Count::RemoteLines) / of(Count::Lines), 0.01, 0.003),
        ("orders of a delivery", of(Count::Delivered) / of(Count::Deliveries), 10.0, 0.01),
    ] {
        assert!((found - expected).abs() < allowed, "{what}: {found}");
    }
}

#[test]
fn numbers_are_skewed_as_specified_and_customers_found_by_their_names() {
    let mut random = Random::new(3);
    let mut counts = [0_u32; NAMES];
    (0..100_000).for_each(|_| counts[skewed(&mut random, 255, C_NAME_RUN, NAMES)] += 1);
    // Uniform numbers would be at 100 each.
    assert!(*counts.iter().max().unwrap() > 400, "{counts:?}");
    assert!((65..120).contains(&(C_NAME_RUN - C_NAME_LOAD)));
    let shop = Shop::new(1, 1);
    for (at, same) in shop.named.iter().enumerate() {
        assert!(!same.is_empty());
        for &customer in same {
            let place = (CUSTOMER, at / NAMES * CUSTOMERS + customer as usize);
            assert_eq!(shop.store.committed(place).unwrap()[NAME], (at % NAMES) as u64);
        }
    }
    assert_eq!(shop.named.iter().map(Vec::len).sum::<usize>(), DISTRICTS * CUSTOMERS);
}

/// A record that is changed breaks a condition, and it is that one which is told.
#[test]
fn what_breaks_a_condition_is_found() {
    let mut shop = Shop::new(1, 4_000);
    let done = sum(serve(&shop, &params(1), 0, 4_000, false), &mut Vec::new()).unwrap();
    shop.check(&done).unwrap();
    let room = shop.room;
    let newest = shop.store.committed((DISTRICT, 3)).unwrap()[NEXT] as usize - 1;
    let (delivered, newest) = (3 * room + 17, 3 * room + newest);
    let mut broken = |table: usize, at: usize, change: &dyn Fn(&mut Vec<u64>), told: &str| {
        let was = shop.store.committed((table, at));
        let mut record = was.clone().unwrap_or_else(|| vec![0; WORDS[table]]);
        change(&mut record);
        let tables = &mut shop.store.tables;
        if record.is_empty() {
            tables[table].lose(at)
        } else {
            tables[table].load(at, &record)
        }
        let error = shop.check(&done).unwrap_err();
        match was {
            Some(was) => shop.store.tables[table].load(at, &was),
            None => shop.store.tables[table].lose(at),
        }
        assert!(error.contains(told), "{table} {at}: {error}");
    };
    let lose = &|record: &mut Vec<u64>| record.clear();
    broken(WAREHOUSE, 0, &|record| record[TAKEN] += 1, "condition 1:");
    broken(DISTRICT, 3, &|record| record[NEXT] += 1, "condition 2:");
    broken(ORDER, newest, lose, "condition 2:");
    broken(NEW_ORDER, newest, lose, "condition 2:");
    broken(NEW_ORDER, newest - 1, lose, "condition 3:");
    broken(NEW_ORDER, delivered, &|record| record[0] = 17, "condition 3:");
    broken(OLDEST, 3, &|record| record[0] += 1, "condition 3:");
    broken(LINE, (3 * room + 3_990) * MOST_LINES, &|_| (), "condition 4:");
    broken(ORDER, delivered, &|record| record[CARRIER] = 0, "condition 5:");
    broken(ORDER, newest, &|record| record[CARRIER] = 7, "condition 5:");
    broken(LINE, delivered * MOST_LINES, lose, "condition 6:");
    broken(LINE, delivered * MOST_LINES, &|record| record[DATE] = 0, "condition 7:");
    broken(LINE, newest * MOST_LINES, &|record| record[DATE] = 5, "condition 7:");
    broken(DISTRICT, 3, &|record| record[TAKEN] += 1, "condition 9:");
    broken(HISTORY, 7, lose, "condition 9:");
    broken(CUSTOMER, 70, &|record| record[BALANCE] += 1, "condition 10:");
    broken(CUSTOMER, 70, &|record| record[PAID] += 1, "condition 12:");
    broken(CUSTOMER, 70, &|record| record[DELIVERIES] += 1, "deliveries, not");
    broken(CUSTOMER, 70, &|record| record[PAYMENTS] += 1, "payments, not");
    broken(LATEST, 70, &|record| record[0] ^= 1, "as its index says");
    broken(STOCK, 5, &|record| record[ORDERED] += 1, "pieces taken from stock");
    broken(STOCK, 5, &|record| record[TIMES] += 1, "lines taken from stock");
    broken(STOCK, 5, &|record| record[REMOTE] += 1, "lines of other warehouses");
}

/// Transactions that were done and are in no record.
#[test]
fn what_is_missing_is_told() {
    let shop = Shop::new(1, 10);
    shop.check(&Tally::NONE).unwrap();
    for (what, count) in [
        ("new orders", Count::Orders),
        ("payments", Count::Payments),
        ("cents paid", Count::Paid),
        ("orders delivered", Count::Delivered),
    ] {
        let mut done = Tally::NONE;
        done.add(count, 1);
        let error = shop.check(&done).unwrap_err();
        assert!(error.contains(&format!("0 {what}, but transactions made 1")), "{error}");
    }
}

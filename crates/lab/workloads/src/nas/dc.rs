//! `nas-dc`: an arithmetic data cube: the sums of a measure for each combination of values of some attributes, for many
//! choices of the attributes.
//!
//! ```text
//!  tuple t: attribute i is  s (g^e)^t mod p,  each with its own prime p, generator g and exponent e
//!  view:    the tuples in the order of the chosen attributes; those with equal values are one row, measures added
//! ```
//!
//! After Frumkin and Shabanov, *Arithmetic Data Cube as a Data Intensive Benchmark*, NAS-03-005. Attributes are columns
//! of ranks; a view is made by a counting sort over its columns, last attribute first. Each thread makes whole views.
//! Of classes A and B the specification has every 64th and every 16,384th view, by size.
//!
//! Check: the sum over all rows of all views of rank times measure, modulo 31,415 each, exactly; and the number of
//! rows of each view, which number theory tells. `operations` counts tuples times views.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::class::Class;
use crate::program::{Outcome, Params, Report};
use crate::team;

/// Measures are smaller, and ranks times measures are summed modulo it.
const BOUND: u64 = 31_415;

const PRIMES: [u64; 20] = [
    421, 601, 631, 701, 883, 419, 443, 647, 21_737, 31_769, 1_427, 18_353, 22_817, 34_337, 98_717,
    3_527, 8_693, 9_677, 11_093, 18_233,
];
/// A generator of each prime's group.
const GENERATORS: [u64; 20] = [2, 7, 3, 2, 2, 2, 2, 5, 31, 7, 2, 3, 3, 3, 2, 5, 2, 2, 2, 3];

/// Tuples, exponents of the attributes, which views (one of so many, by size), the published sum.
#[derive(Clone, Copy)]
struct Size(usize, &'static [u64], usize, u64);

const SIZES: [Size; 4] = [
    Size(1_000, &[11, 13, 17, 19, 23], 1, 464_620_213),
    Size(100_000, &[4, 40, 6, 20, 42, 23, 29, 31, 4, 76], 1, 1_401_796_434_318),
    Size(
        1_000_000,
        &[4, 40, 6, 20, 42, 38, 26, 38, 1_976, 2_888, 46, 16, 736, 32, 92],
        64,
        7_141_688_178_042,
    ),
    Size(
        10_000_000,
        &[
            28, 40, 42, 140, 294, 38, 26, 38, 1_976, 2_888, 62, 496, 992, 928, 116, 86, 4, 4, 188,
            344,
        ],
        16_384,
        9_348_365_700_453,
    ),
];

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let Size(tuples, exponents, ..) = class.of(SIZES);
    let table = Table::new(tuples, exponents);
    let started = Instant::now();
    let (sum, rows, views) = cube(class, &table, params.threads)?;
    Ok(Report {
        operations: (tuples * views) as u64,
        seconds: started.elapsed().as_secs_f64(),
        metrics: vec![("views", views as f64), ("rows", rows as f64)],
        check: format!("class {class}: checksum {sum} is the published one, and so are all rows"),
    })
}

/// Makes all views of a table. Returns their checksum, rows and number, or what is not as published.
fn cube(class: Class, table: &Table, threads: usize) -> Result<(u64, u64, usize), String> {
    let Size(tuples, exponents, stride, published) = class.of(SIZES);
    let views = views(tuples, exponents, stride);
    let next = AtomicUsize::new(0);
    let parts = team::each(vec![(); threads.min(views.len())], |()| -> Result<_, String> {
        let mut sorter = Sorter::new(table);
        let (mut sum, mut rows) = (0, 0);
        while let Some(view) = views.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (view_sum, view_rows) = sorter.view(view.attributes);
            if view_rows != view.rows {
                return Err(format!(
                    "class {class}: view {:#b} has {view_rows} rows instead of {}",
                    view.attributes, view.rows
                ));
            }
            sum += view_sum;
            rows += view_rows;
        }
        Ok((sum, rows))
    });
    let (mut sum, mut rows) = (0, 0);
    for part in parts {
        let (part_sum, part_rows) = part?;
        sum += part_sum;
        rows += part_rows;
    }
    if sum != published {
        return Err(format!("class {class}: checksum is {sum}, published {published}"));
    }
    Ok((sum, rows, views.len()))
}

/// `base^exponent` modulo `prime`.
fn power(base: u64, exponent: u64, prime: u64) -> u64 {
    (0..exponent).fold(1, |power, _| power * base % prime)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// A choice of attributes, by bits, and how many rows it must have.
struct View {
    attributes: usize,
    rows: u64,
}

/// The views that are to be made: those at each `stride`th place by rows.
fn views(tuples: usize, exponents: &[u64], stride: usize) -> Vec<View> {
    // Values of an attribute come again after so many tuples.
    let period = |at: usize| {
        let order = PRIMES[at] - 1;
        order / greatest_divisor(order, exponents[at])
    };
    let rows = |attributes: usize| {
        let chosen = (0..exponents.len()).filter(|at| attributes >> at & 1 == 1);
        chosen.fold(1, |rows: u64, at| {
            let period = period(at);
            // All attributes together come again after the least common multiple.
            (rows / greatest_divisor(rows, period) * period).min(tuples as u64)
        })
    };
    let mut views: Vec<View> = (1..1 << exponents.len())
        .map(|attributes| View { attributes, rows: rows(attributes) })
        .collect();
    views.sort_by_key(|view| (view.rows, view.attributes));
    views.into_iter().step_by(stride).collect()
}

/// One attribute of all tuples: the rank of its value among all of its values.
struct Column {
    ranks: Vec<u32>,
    values: usize,
}

struct Table {
    columns: Vec<Column>,
    measures: Vec<u64>,
}

impl Table {
    fn new(tuples: usize, exponents: &[u64]) -> Self {
        let mut greatest = vec![0; tuples];
        let mut first = Vec::new();
        let mut columns = Vec::new();
        for (at, &exponent) in exponents.iter().enumerate() {
            let prime = PRIMES[at];
            let factor = power(GENERATORS[at], exponent, prime);
            let mut value = prime.div_ceil(2);
            let values: Vec<u64> = (0..tuples)
                .map(|_| {
                    value = value * factor % prime;
                    value
                })
                .collect();
            for (greatest, value) in greatest.iter_mut().zip(&values) {
                *greatest = value.max(greatest).to_owned();
            }
            let mut rank = vec![0; prime as usize];
            values.iter().for_each(|&value| rank[value as usize] = 1);
            let mut count = 0;
            for rank in &mut rank {
                count += *rank;
                *rank = count;
            }
            let ranks = values.iter().map(|&value| rank[value as usize] - 1).collect();
            columns.push(Column { ranks, values: count as usize });
            if at == 0 {
                first = values;
            }
        }
        let measure = |(first, greatest): (u64, u64)| first * greatest % BOUND;
        let measures = first.into_iter().zip(greatest).map(measure).collect();
        Self { columns, measures }
    }
}

/// One thread's room for making views.
struct Sorter<'a> {
    table: &'a Table,
    order: Vec<u32>,
    sorted: Vec<u32>,
    starts: Vec<u32>,
}

impl<'a> Sorter<'a> {
    fn new(table: &'a Table) -> Self {
        let tuples = table.measures.len();
        let most = table.columns.iter().map(|column| column.values).max().unwrap_or(0);
        Self { table, order: vec![0; tuples], sorted: vec![0; tuples], starts: vec![0; most + 1] }
    }

    /// Makes the view of these attributes. Returns its checksum and its rows.
    fn view(&mut self, attributes: usize) -> (u64, u64) {
        let chosen = self.table.columns.iter().enumerate();
        let chosen = chosen.filter(|(at, _)| attributes >> at & 1 == 1);
        let columns: Vec<&Column> = chosen.map(|(_, column)| column).collect();
        self.order.iter_mut().zip(0..).for_each(|(order, at)| *order = at);
        for column in columns.iter().rev() {
            self.sort_by(column);
        }
        let measures = &self.table.measures;
        // The last attribute differs most often between neighbours.
        let same = |a: usize, b: usize| {
            columns.iter().rev().all(|column| column.ranks[a] == column.ranks[b])
        };
        let (mut sum, mut rows, mut measure) = (0, 0, 0);
        let mut last = None;
        for &tuple in &self.order {
            let tuple = tuple as usize;
            match last {
                Some(last) if !same(last, tuple) => {
                    rows += 1;
                    sum += rows * measure % BOUND;
                    measure = 0;
                }
                _ => {}
            }
            measure += measures[tuple];
            last = Some(tuple);
        }
        rows += 1;
        (sum + rows * measure % BOUND, rows)
    }

    /// Sorts by one column; tuples that are equal in it stay in order.
    fn sort_by(&mut self, column: &Column) {
        let starts = &mut self.starts[..=column.values];
        starts.fill(0);
        for &rank in &column.ranks {
            starts[rank as usize + 1] += 1;
        }
        let mut sum = 0;
        for start in starts.iter_mut() {
            sum += *start;
            *start = sum;
        }
        for &tuple in &self.order {
            let start = &mut starts[column.ranks[tuple as usize] as usize];
            self.sorted[*start as usize] = tuple;
            *start += 1;
        }
        std::mem::swap(&mut self.order, &mut self.sorted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_damaged_tuple_is_found() {
        let Size(tuples, exponents, ..) = Class::S.of(SIZES);
        let mut table = Table::new(tuples, exponents);
        table.measures[500] ^= 1;
        assert!(cube(Class::S, &table, 1).unwrap_err().contains("checksum is"));
        table.measures[500] ^= 1;
        cube(Class::S, &table, 1).unwrap();
        table.columns[1].ranks[3] ^= 1;
        assert!(cube(Class::S, &table, 1).is_err());
    }

    #[test]
    fn a_view_is_what_grouping_in_a_map_gives() {
        let Size(tuples, exponents, ..) = SIZES[0];
        let table = Table::new(tuples, exponents);
        let mut sorter = Sorter::new(&table);
        for attributes in [0b1, 0b10110, 0b11111] {
            let mut groups: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
            for tuple in 0..tuples {
                let chosen = (0..exponents.len()).filter(|at| attributes >> at & 1 == 1);
                let key = chosen.map(|at| table.columns[at].ranks[tuple]).collect();
                *groups.entry(key).or_default() += table.measures[tuple];
            }
            let sums = groups.values().zip(1..).map(|(measure, rank)| measure * rank % BOUND);
            assert_eq!(sorter.view(attributes), (sums.sum(), groups.len() as u64));
        }
    }
}

//! `cfrac`: factoring by continued fractions with every number on the heap.
//!
//! Factors 48 products of two primes near 2^43 by the method of Morrison and Brillhart (1975):
//!
//! ```text
//!  expand sqrt(kN):  A(n)^2 = (-1)^(n+1) Q(n+1)  (mod N),  Q < 2 sqrt(kN)
//!  keep each n whose Q(n+1) factors over a base of small primes
//!  find a set of them whose exponents are all even (elimination over GF(2))
//!  X = product of A, Y = root of the product of Q:  X^2 = Y^2 (mod N)
//!  gcd(X - Y, N) is a factor unless X = +-Y; then try the next set
//! ```
//!
//! Every quotient of the trial division is a new heap block, so the program makes and frees tiny
//! short-lived objects among some long-lived ones. `operations` counts numbers factored.
//!
//! Check: the two factors are the primes that the number was made from.

use std::time::Instant;

use super::bignum::Natural;
use crate::program::{Outcome, Params, Report};
use pagemill_model::random::Random;

const NUMBERS: usize = 48;
const PRIME_BITS: u32 = 43;
/// Primes in the factor base.
const BASE: usize = 160;
/// Relations beyond the size of the base: each is another chance of a factor.
const SPARE: usize = 16;
/// Steps of the expansion after which another multiplier is tried.
const STEPS: usize = 2_000_000;

pub(super) fn run(params: &Params) -> Outcome {
    let numbers = params.scaled(NUMBERS);
    let mut random = Random::new(params.seed);
    let started = Instant::now();
    for _ in 0..numbers {
        let (p, q) = (prime(&mut random), prime(&mut random));
        let number = Natural::from(u128::from(p) * u128::from(q));
        let factor = [1, 3, 5, 7, 11, 13]
            .into_iter()
            .find_map(|multiplier| factor(&number, multiplier))
            .ok_or_else(|| format!("{p} x {q} was not factored"))?;
        let factor = factor.to_u128();
        if factor != Some(u128::from(p)) && factor != Some(u128::from(q)) {
            return Err(format!("{factor:?} is not a prime factor of {p} x {q}").into());
        }
    }
    Ok(Report {
        operations: numbers as u64,
        seconds: started.elapsed().as_secs_f64(),
        metrics: Vec::new(),
        check: format!("{numbers} numbers split into the primes they were made from"),
    })
}

/// One smooth step of the expansion.
struct Relation {
    /// A(n) mod N.
    root: Natural,
    /// Exponents of -1 and of each base prime in (-1)^(n+1) Q(n+1).
    exponents: Vec<u16>,
}

/// A proper factor of `number`, or `None` if this multiplier yields none.
fn factor(number: &Natural, multiplier: u32) -> Option<Natural> {
    let target = number.times(&Natural::from(u128::from(multiplier)));
    let base = factor_base(&target);
    let relations = relations(number, &target, &base);
    dependencies(&relations, base.len() + 1)
        .into_iter()
        .find_map(|set| factor_of(number, &base, &relations, &set))
}

/// The first primes modulo which `target` is a square: no other prime divides a Q.
fn factor_base(target: &Natural) -> Vec<u32> {
    (2..)
        .filter(|&candidate| is_prime(u64::from(candidate)))
        .filter(|&p| {
            let rest = u64::from(target.divided_by_small(p).1);
            p == 2 || rest == 0 || power(rest, u64::from(p) / 2, u64::from(p)) == 1
        })
        .take(BASE)
        .collect()
}

/// Walks the expansion until there are enough relations, the expansion repeats or
/// [`STEPS`] are done.
fn relations(number: &Natural, target: &Natural, base: &[u32]) -> Vec<Relation> {
    let floor = target.square_root();
    let one = Natural::from(1);
    let (mut p, mut q) = (Natural::from(0), one.clone());
    let (mut before, mut current) = (one.clone(), floor.modulo(number));
    let mut quotient = floor.clone();
    let mut found = Vec::new();
    for step in 0..STEPS {
        // P' = aQ - P;  Q' = (kN - P'^2) / Q;  A^2 = (-1)^(step+1) Q'  (mod N)
        p = quotient.times(&q).minus(&p);
        q = target.minus(&p.times(&p)).divided_by(&q).0;
        if q.is_zero() {
            break;
        }
        if let Some(mut exponents) = smooth(&q, base) {
            exponents[0] = u16::from(step % 2 == 0);
            found.push(Relation { root: current.clone(), exponents });
            if found.len() >= base.len() + SPARE {
                break;
            }
        }
        if q.is_one() {
            break;
        }
        quotient = floor.plus(&p).divided_by(&q).0;
        let next = quotient.times(&current).plus(&before).modulo(number);
        before = std::mem::replace(&mut current, next);
    }
    found
}

/// Exponents of `value` over the base (place 0 is left for the sign), or `None` if a larger
/// factor remains.
fn smooth(value: &Natural, base: &[u32]) -> Option<Vec<u16>> {
    let mut exponents = vec![0_u16; base.len() + 1];
    let mut rest = value.clone();
    for (place, &p) in base.iter().enumerate() {
        loop {
            let (quotient, remainder) = rest.divided_by_small(p);
            if remainder != 0 {
                break;
            }
            rest = quotient;
            exponents[place + 1] += 1;
        }
    }
    rest.is_one().then_some(exponents)
}

/// Sets of relations whose exponents sum to even numbers: elimination over GF(2) with the
/// identity carried along.
fn dependencies(relations: &[Relation], columns: usize) -> Vec<Vec<usize>> {
    let words = columns.div_ceil(64);
    let history = relations.len().div_ceil(64);
    let mut rows: Vec<Vec<u64>> = relations
        .iter()
        .enumerate()
        .map(|(index, relation)| {
            let mut row = vec![0; words + history];
            for (column, exponent) in relation.exponents.iter().enumerate() {
                row[column / 64] |= u64::from(exponent & 1) << (column % 64);
            }
            row[words + index / 64] |= 1 << (index % 64);
            row
        })
        .collect();
    let bit = |row: &[u64], column: usize| row[column / 64] >> (column % 64) & 1 == 1;
    let mut done = 0;
    for column in 0..columns {
        let Some(pivot) = (done..rows.len()).find(|&row| bit(&rows[row], column)) else { continue };
        rows.swap(done, pivot);
        let pivot = rows[done].clone();
        for row in rows.iter_mut().skip(done + 1).filter(|row| bit(row, column)) {
            row.iter_mut().zip(&pivot).for_each(|(word, other)| *word ^= other);
        }
        done += 1;
    }
    rows[done..]
        .iter()
        .map(|row| (0..relations.len()).filter(|&index| bit(&row[words..], index)).collect())
        .collect()
}

/// gcd(X - Y, N) of a dependency, if it is a proper factor.
fn factor_of(
    number: &Natural,
    base: &[u32],
    relations: &[Relation],
    set: &[usize],
) -> Option<Natural> {
    let mut x = Natural::from(1);
    let mut exponents = vec![0_u32; base.len()];
    for &index in set {
        x = x.times(&relations[index].root).modulo(number);
        for (sum, exponent) in exponents.iter_mut().zip(&relations[index].exponents[1..]) {
            *sum += u32::from(*exponent);
        }
    }
    let mut y = Natural::from(1);
    for (&p, exponent) in base.iter().zip(exponents) {
        for _ in 0..exponent / 2 {
            y = y.times(&Natural::from(u128::from(p))).modulo(number);
        }
    }
    let factor = x.plus(&number.minus(&y)).common_divisor(number);
    (!factor.is_one() && factor != *number).then_some(factor)
}

/// A random prime of [`PRIME_BITS`] bits.
fn prime(random: &mut Random) -> u64 {
    let start = 1 << (PRIME_BITS - 1) | random.bits() >> (64 - PRIME_BITS) | 1;
    (start..).step_by(2).find(|&candidate| is_prime(candidate)).expect("primes have no end")
}

/// Miller and Rabin with the bases that are exact below 3.3 * 10^24.
fn is_prime(number: u64) -> bool {
    const BASES: [u64; 13] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41];
    if number < 2 {
        return false;
    }
    if let Some(divisor) = BASES.into_iter().find(|p| number.is_multiple_of(*p)) {
        return divisor == number;
    }
    let twos = (number - 1).trailing_zeros();
    BASES.into_iter().all(|base| {
        let mut value = power(base, (number - 1) >> twos, number);
        value == 1
            || (0..twos).any(|_| {
                let minus_one = value == number - 1;
                value = (u128::from(value) * u128::from(value) % u128::from(number)) as u64;
                minus_one
            })
    })
}

/// `base^exponent mod modulus`.
fn power(base: u64, mut exponent: u64, modulus: u64) -> u64 {
    let modulus = u128::from(modulus);
    let (mut square, mut result) = (u128::from(base) % modulus, 1 % modulus);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * square % modulus;
        }
        square = square * square % modulus;
        exponent >>= 1;
    }
    result as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_told_from_composites() {
        let small: Vec<u64> = (0..60).filter(|&number| is_prime(number)).collect();
        assert_eq!(small, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]);
        assert!(is_prime((1 << 61) - 1));
        // Strong pseudoprime to the bases 2, 3, 5 and 7.
        assert!(!is_prime(3_215_031_751));
    }

    #[test]
    fn the_textbook_example_is_factored() {
        // Knuth, volume 2, section 4.5.4: 197209 = 199 x 991.
        let factor = factor(&Natural::from(197_209), 1).unwrap().to_u128().unwrap();
        assert!(factor == 199 || factor == 991, "{factor}");
    }
}

//! `nas-is`: ranks integer keys by counting, ten times.
//!
//! ```text
//!  key(i) = max/4 * (sum of four random numbers)          a bell around max/2
//!  iteration k: key(k) = k, key(k + 10) = max - k; count keys; rank(key) = keys below it
//! ```
//!
//! Check: in each iteration the ranks of five keys are the published ones, and at the end the
//! ranks put all keys in order. `operations` counts keys ranked.

use std::time::Instant;

use super::class::Class;
use super::pseudorandom::{SEED, Stream};
use crate::program::{Outcome, Params, Report};
use crate::team;

const ITERATIONS: usize = 10;

/// A problem: its sizes, and what is published of its ranks.
#[derive(Clone, Copy)]
struct Size {
    log_keys: u32,
    log_range: u32,
    /// Where the five test keys stand.
    index: [usize; 5],
    /// Their ranks before an iteration's shift.
    rank: [i64; 5],
    /// How iteration `k` shifts the rank of test key `i`: the signs, and what is added to `k`.
    sign: [i64; 5],
    offset: [i64; 5],
}

const SIZES: [Size; 4] = [
    Size {
        log_keys: 16,
        log_range: 11,
        index: [48427, 17148, 23627, 62548, 4431],
        rank: [0, 18, 346, 64917, 65463],
        sign: [1, 1, 1, -1, -1],
        offset: [0; 5],
    },
    Size {
        log_keys: 20,
        log_range: 16,
        index: [357_773, 934_767, 875_723, 898_999, 404_505],
        rank: [1249, 11698, 1_039_987, 1_043_896, 1_048_018],
        sign: [1, 1, -1, -1, -1],
        offset: [-2, -2, 0, 0, 0],
    },
    Size {
        log_keys: 23,
        log_range: 19,
        index: [2_112_377, 662_041, 5_336_171, 3_642_833, 4_250_760],
        rank: [104, 17523, 123_928, 8_288_932, 8_388_264],
        sign: [1, 1, 1, -1, -1],
        offset: [-1; 5],
    },
    Size {
        log_keys: 25,
        log_range: 21,
        index: [41869, 812_306, 5_102_857, 18_232_239, 26_860_214],
        rank: [33_422_937, 10244, 59149, 33_135_281, 99],
        sign: [-1, 1, 1, -1, 1],
        offset: [0; 5],
    },
];

impl Size {
    /// The published rank of test key `test` in iteration `iteration`.
    fn published(&self, test: usize, iteration: usize) -> i64 {
        self.rank[test] + self.sign[test] * (iteration as i64 + self.offset[test])
    }
}

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let size = class.of(SIZES);
    let range = 1_usize << size.log_range;
    let mut keys = keys(size, params.threads);
    let mut below = vec![0_u32; range];
    let mut counts = vec![vec![0_u32; range]; params.threads.max(1)];
    // As specified: one ranking before the clock starts.
    rank(&mut keys, 1, range, &mut counts, &mut below);
    let started = Instant::now();
    for iteration in 1..=ITERATIONS {
        rank(&mut keys, iteration, range, &mut counts, &mut below);
        check(class, iteration, &keys, &below)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    in_order(&keys, &mut below)
        .map_err(|at| format!("class {class}: keys {at} and {} are out of order", at + 1))?;
    Ok(Report {
        operations: (ITERATIONS * keys.len()) as u64,
        seconds,
        metrics: Vec::new(),
        check: format!(
            "class {class}: five ranks in each of {ITERATIONS} iterations are the published ones, all keys in order"
        ),
    })
}

fn keys(size: Size, threads: usize) -> Vec<u32> {
    let mut keys = vec![0; 1 << size.log_keys];
    let scale = f64::from(1_u32 << (size.log_range - 2));
    team::each(team::slabs(&mut keys, 1, threads), |(first, slab)| {
        let mut stream = Stream::new(SEED).skipped(4 * first as u64);
        for key in slab {
            let sum = stream.next() + stream.next() + stream.next() + stream.next();
            *key = (scale * sum) as u32;
        }
    });
    keys
}

/// Whether the ranks of the five test keys are the published ones.
fn check(class: Class, iteration: usize, keys: &[u32], below: &[u32]) -> Result<(), String> {
    let size = class.of(SIZES);
    for (test, index) in size.index.into_iter().enumerate() {
        let found = i64::from(below[keys[index] as usize]);
        let published = size.published(test, iteration);
        if found != published {
            return Err(format!(
                "class {class}: iteration {iteration}, test key {test} has rank {found}, published {published}"
            ));
        }
    }
    Ok(())
}

/// One iteration: changes two keys and leaves in `below` the number of keys below each value.
fn rank(
    keys: &mut [u32],
    iteration: usize,
    range: usize,
    counts: &mut [Vec<u32>],
    below: &mut [u32],
) {
    keys[iteration] = iteration as u32;
    keys[iteration + ITERATIONS] = (range - iteration) as u32;
    let keys = &*keys;
    let parts: Vec<_> =
        team::ranges(keys.len(), counts.len()).into_iter().zip(counts.iter_mut()).collect();
    team::each(parts, |(range, counts)| {
        counts.fill(0);
        for &key in &keys[range] {
            counts[key as usize] += 1;
        }
    });
    let mut sum = 0;
    for (value, below) in below.iter_mut().enumerate() {
        *below = sum;
        sum += counts.iter().map(|counts| counts[value]).sum::<u32>();
    }
}

/// Whether the ranks sort the keys; the first place where not.
fn in_order(keys: &[u32], below: &mut [u32]) -> Result<(), usize> {
    let mut sorted = vec![0; keys.len()];
    for &key in keys {
        let place = &mut below[key as usize];
        sorted[*place as usize] = key;
        *place += 1;
    }
    match sorted.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(at) => Err(at),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_rank_and_keys_out_of_order_are_found() {
        let size = Class::S.of(SIZES);
        let range = 1 << size.log_range;
        let (mut keys, mut below) = (keys(size, 1), vec![0; range]);
        rank(&mut keys, 1, range, &mut [vec![0; range]], &mut below);
        check(Class::S, 1, &keys, &below).unwrap();
        in_order(&keys, &mut below.clone()).unwrap();
        let mut damaged = below.clone();
        damaged[keys[size.index[3]] as usize] += 1;
        let error = check(Class::S, 1, &keys, &damaged).unwrap_err();
        assert!(error.contains("test key 3 has rank"), "{error}");
        below.swap(900, 901);
        assert!(in_order(&keys, &mut below).is_err());
    }
}

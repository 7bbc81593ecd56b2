//! `glibc-simple`: batches of blocks of one size.
//!
//! For each size from 16 bytes to 4 KiB and each batch length of 25, 100, 400 and 1,600: allocate
//! the batch, touch each block, free it in the order of allocation; then the same freed in
//! reverse. This is what a thread cache is best at, so it shows the length of the fast path.
//!
//! Check: each block holds its own number when it is freed.

use std::hint::black_box;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};

const SIZES: [usize; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const BATCHES: [usize; 4] = [25, 100, 400, 1_600];
/// Allocations for each pair of size and batch length.
const EACH: usize = 2_000_000;

pub(super) fn run(params: &Params) -> Outcome {
    let each = params.scaled(EACH);
    let mut batch: Vec<Vec<u8>> = Vec::with_capacity(1_600);
    let (mut operations, mut damaged) = (0_u64, 0_u64);
    let started = Instant::now();
    for size in SIZES {
        for length in BATCHES {
            for round in 0..each.div_ceil(length) {
                for number in 0..length {
                    let mut block = Vec::with_capacity(size);
                    block.push(number as u8);
                    batch.push(black_box(block));
                }
                if round % 2 == 1 {
                    batch.reverse();
                }
                for (place, block) in batch.drain(..).enumerate() {
                    let number = if round % 2 == 1 { length - 1 - place } else { place };
                    if block[0] != number as u8 {
                        damaged += 1;
                    }
                }
                operations += 2 * length as u64;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    if damaged > 0 {
        return Err(format!("{damaged} blocks lost their number").into());
    }
    Ok(Report {
        operations,
        seconds,
        metrics: Vec::new(),
        check: "every block held its own number".to_owned(),
    })
}

//! `alloc-test`: one thread, random slots, small sizes favoured.
//!
//! 20 M times: pick one of 256 K slots; if it holds a block, read it and free it, else allocate a
//! block whose size is 8 to 1,024 bytes, each power of two equally likely, and write it all.
//!
//! Check: the sum of the bytes read equals the sum of the bytes written into the same blocks.

use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use pagemill_model::random::Random;

const SLOTS: usize = 1 << 18;
const STEPS: usize = 20_000_000;

pub(super) fn run(params: &Params) -> Outcome {
    let steps = params.scaled(STEPS);
    let mut random = Random::new(params.seed);
    let mut slots: Vec<Vec<u8>> = vec![Vec::new(); SLOTS];
    let (mut written, mut read) = (0_u64, 0_u64);
    let started = Instant::now();
    for _ in 0..steps {
        let draw = random.bits();
        let slot = &mut slots[draw as usize % SLOTS];
        if slot.is_empty() {
            let power = 3 + (draw >> 20) % 7;
            let size = ((1 << power) + ((draw >> 32) & ((1 << power) - 1))) as usize;
            let byte = (draw >> 56) as u8;
            let mut block = Vec::with_capacity(size);
            block.resize(size, byte);
            written += u64::from(byte) * size as u64;
            *slot = block;
        } else {
            read += sum(slot);
            *slot = Vec::new();
        }
    }
    let live = slots.iter().filter(|slot| !slot.is_empty()).count();
    for slot in slots {
        read += sum(&slot);
    }
    let seconds = started.elapsed().as_secs_f64();
    if written != read {
        return Err(format!("bytes written sum to {written}, bytes read to {read}").into());
    }
    Ok(Report {
        operations: (steps + live) as u64,
        seconds,
        metrics: vec![("live_blocks_at_end", live as f64)],
        check: format!("bytes read back sum to {read}, as written"),
    })
}

fn sum(block: &[u8]) -> u64 {
    block.iter().map(|&byte| u64::from(byte)).sum()
}

//! `larson`: a server whose threads come and go.
//!
//! Each lane owns 5,000 blocks of 8 to 1,000 bytes. A thread replaces 100 x 5,000 randomly chosen
//! blocks (free, then allocate), ends, and a new thread takes over its blocks: every block is
//! sooner or later freed by a thread that did not allocate it, after its allocating thread has
//! died. (Larson and Krishnan, "Memory allocation for long-running server applications", 1998.)
//!
//! Check: the byte written into each block when it was made is there when it is freed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use crate::threads;
use pagemill_model::random::Random;

const BLOCKS: usize = 5_000;
const SMALLEST: usize = 8;
const LARGEST: usize = 1_000;
/// Replacements a thread makes before it hands over.
const ROUNDS: usize = 100 * BLOCKS;
/// Replacements between two looks at the clock.
const STRIDE: usize = 1_000;

struct Lane {
    blocks: Vec<Vec<u8>>,
    random: Random,
    damaged: u64,
}

/// The byte that a block of this capacity carries.
fn tag(capacity: usize) -> u8 {
    (capacity ^ (capacity >> 8)) as u8
}

fn block(random: &mut Random) -> Vec<u8> {
    let size = SMALLEST + random.index(LARGEST - SMALLEST + 1);
    let mut block = Vec::with_capacity(size);
    block.push(tag(size));
    block
}

/// One thread's life.
fn serve(mut lane: Lane, deadline: Instant, replaced: &AtomicU64) -> Lane {
    for _ in 0..ROUNDS / STRIDE {
        for _ in 0..STRIDE {
            let index = lane.random.index(BLOCKS);
            let victim = &lane.blocks[index];
            if victim.first() != Some(&tag(victim.capacity())) {
                lane.damaged += 1;
            }
            // Freed before its successor is allocated, as the original does.
            lane.blocks[index] = Vec::new();
            lane.blocks[index] = block(&mut lane.random);
        }
        replaced.fetch_add(STRIDE as u64, Ordering::Relaxed);
        if Instant::now() >= deadline {
            break;
        }
    }
    lane
}

pub(super) fn run(params: &Params) -> Outcome {
    let replaced = AtomicU64::new(0);
    let started = Instant::now();
    let deadline = started + params.time;
    let (damaged, handovers) = thread::scope(|scope| {
        let lanes: Vec<_> = (0..params.threads)
            .map(|number| {
                let replaced = &replaced;
                threads::spawn(scope, move || {
                    let mut random = Random::new(params.seed.wrapping_add(number as u64));
                    let blocks = (0..BLOCKS).map(|_| block(&mut random)).collect();
                    let mut lane = Lane { blocks, random, damaged: 0 };
                    let mut handovers = 0_u64;
                    // One at least, however late it is.
                    while handovers == 0 || Instant::now() < deadline {
                        let worker = threads::spawn(scope, move || serve(lane, deadline, replaced));
                        lane = worker.join().expect("a worker does not panic");
                        handovers += 1;
                    }
                    (lane.damaged, handovers)
                })
            })
            .collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"))
            .fold((0, 0), |(damaged, handovers), one| (damaged + one.0, handovers + one.1))
    });
    let seconds = started.elapsed().as_secs_f64();
    if damaged > 0 {
        return Err(format!("{damaged} blocks lost the byte written into them").into());
    }
    Ok(Report {
        operations: 2 * replaced.load(Ordering::Relaxed),
        seconds,
        metrics: vec![("handovers", handovers as f64)],
        check: "every replaced block still held its byte".to_owned(),
    })
}

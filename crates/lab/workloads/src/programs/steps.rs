//! The single steps that a tracer of memory accesses makes dearer, each many times over: programs started, memory
//! mapped and unmapped, blocks allocated and freed, and pages written to whose entry was dropped.
//!
//! A figure is a median of rounds: of wall time for what other processes take part in, else of CPU time of the thread.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use pagemill_analysis::statistics::median;
use pagemill_kernel::{clock, memory::touch};

use crate::program::{Failure, Outcome, Params, Report};

const ROUNDS: usize = 11;
const STARTS: usize = 40;
const PAIRS: usize = 2_000;
const BLOCKS: usize = 200_000;
const PAGES: usize = 20_000;
/// Bytes of a mapping.
const MAPPING: usize = 64 << 10;
/// Bytes of a block below a page, and above.
const SMALL: usize = 64;
const LARGE: usize = 8_192;

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// CPU time of a call of malloc or free, ns.
fn call(bytes: usize, count: usize) -> f64 {
    let begun = clock::of_thread();
    for _ in 0..count {
        drop(black_box(Vec::<u8>::with_capacity(black_box(bytes))));
    }
    let took = clock::of_thread().saturating_sub(begun);
    took.as_nanos() as f64 / (2 * count) as f64
}

pub(super) fn run(params: &Params) -> Outcome {
    let begun = Instant::now();
    let (starts, pairs) = (params.scaled(STARTS), params.scaled(PAIRS));
    let (blocks, pages) = (params.scaled(BLOCKS), params.scaled(PAGES));
    let mut started = Vec::with_capacity(starts);
    for _ in 0..starts {
        let begun = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => started.push(begun.elapsed().as_nanos() as f64 / 1e6),
            other => return Err(Failure::Outside(format!("/bin/true ended with {other:?}"))),
        }
    }

    let mut mapped = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let took = touch::mapped_and_unmapped(MAPPING, pairs)?;
        mapped.push(took.as_nanos() as f64 / pairs as f64 / 1e3);
    }
    let small: Vec<f64> = (0..ROUNDS).map(|_| call(SMALL, blocks)).collect();
    let large: Vec<f64> = (0..ROUNDS).map(|_| call(LARGE, blocks)).collect();
    let again = touch::refault_costs(pages, ROUNDS)?;
    let shortest = again.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Report {
        operations: (starts + ROUNDS * (pairs + 2 * blocks + pages)) as u64,
        seconds: begun.elapsed().as_secs_f64(),
        metrics: vec![
            ("start_ms", middle(&started)),
            ("map_and_unmap_us", middle(&mapped)),
            ("small_block_call_ns", middle(&small)),
            ("large_block_call_ns", middle(&large)),
            ("fault_again_ns", middle(&again)),
            ("fault_again_shortest_ns", shortest),
        ],
        check: format!("{starts} programs ended with status 0"),
    })
}

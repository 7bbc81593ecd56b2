//! Touches new memory page by page, each first touch timed: the shape of the `thp_ubmk` of the published huge
//! page studies. What a touch costs is what a page fault costs, as a program sees it.
//!
//! Each round allocates anew (256 MiB at full size, which malloc maps) and gives all of it back.

use std::hint::black_box;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};

const PAGE: usize = pagemill_model::page::BASE as usize;
const PAGES: usize = 65_536;
const ROUNDS: usize = 5;

pub(super) fn run(params: &Params) -> Outcome {
    let pages = params.scaled(PAGES);
    let mut times = Vec::with_capacity(ROUNDS * pages);
    // Written once, so that its own faults are not between the timed ones.
    times.resize(ROUNDS * pages, u32::MAX);
    times.clear();
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let mut memory = vec![0_u8; pages * PAGE];
        let mark = round as u8 + 1;
        for page in memory.chunks_exact_mut(PAGE) {
            let touched = Instant::now();
            page[0] = black_box(mark);
            let took = touched.elapsed().as_nanos();
            times.push(u32::try_from(took).unwrap_or(u32::MAX));
        }
        let kept = memory.chunks_exact(PAGE).all(|page| black_box(page[0]) == mark);
        if !kept {
            return Err(format!("a page of round {round} lost what was written to it").into());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let sum: f64 = times.iter().map(|time| f64::from(*time)).sum();
    times.sort_unstable();
    let at = |share: f64| {
        let index = (share * times.len() as f64) as usize;
        f64::from(times[index.min(times.len() - 1)])
    };
    Ok(Report {
        operations: times.len() as u64,
        seconds,
        metrics: vec![
            ("mean_ns", sum / times.len() as f64),
            ("p50_ns", at(0.5)),
            ("p99_ns", at(0.99)),
            ("p99_9_ns", at(0.999)),
            ("p99_99_ns", at(0.9999)),
            ("longest_ns", at(1.0)),
        ],
        check: format!("each of {} pages kept what was written to it", times.len()),
    })
}

//! Parts of memory that are used in different ways, so that what huge pages are worth in each is known beforehand: the
//! subject on which a profiler can be tested.
//!
//! ```text
//!  ········ chased ········ streamed ········ chased ····     24 parts of 8 MiB; a dot: written once
//! ```
//!
//! The *chased* parts have one line a page, or two, in one random cycle over all of them: each step is a dependent read
//! that hits the caches and misses the TLB, so nearly all that huge pages are worth is there, in proportion to the
//! lines. The *streamed* parts are read in order, where a walk serves 64 lines and is fetched ahead.

use std::hint::black_box;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use pagemill_model::page;
use pagemill_model::random::Random;

/// Bytes of a part.
pub const PART: usize = 8 << 20;
/// Parts.
pub const PARTS: usize = 24;
/// Parts that are chased, and lines of each of their pages.
pub const CHASED: [(usize, usize); 5] = [(2, 1), (7, 1), (11, 2), (16, 1), (21, 1)];
/// Parts that are streamed.
pub const STREAMED: [usize; 3] = [5, 13, 18];

const PAGE: usize = page::BASE as usize;
const LINE: usize = 64;
const WORD: usize = 8;
const HUGE: usize = page::HUGE as usize;
/// Rounds of the cycle, at full size.
const ROUNDS: usize = 3_000;
/// Readings of the streamed parts in this many rounds.
const STREAM_EVERY: usize = 60;

pub(super) fn run(params: &Params) -> Outcome {
    let mut random = Random::new(params.seed);
    let mut room = vec![0_u64; (PARTS * PART + HUGE) / WORD];
    // Parts begin where huge pages do.
    let first = room.as_ptr().align_offset(HUGE);
    let memory = &mut room[first..first + PARTS * PART / WORD];
    for (number, page) in memory.chunks_exact_mut(PAGE / WORD).enumerate() {
        page[0] = number as u64;
    }
    let mut cycle: Vec<usize> = CHASED
        .iter()
        .flat_map(|&(part, lines)| {
            (0..PART / PAGE * lines).map(move |at| (part, at / lines, at % lines))
        })
        .map(|(part, page, line)| {
            // Lines 1 to 62 of a page; which one differs from page to page, so that all cache sets are used.
            let line = 1 + (page * 7 + line * 31) % (PAGE / LINE - 2);
            (part * PART + page * PAGE + line * LINE) / WORD
        })
        .collect();
    random.shuffle(&mut cycle);
    for (at, &here) in cycle.iter().enumerate() {
        memory[here] = cycle[(at + 1) % cycle.len()] as u64;
    }
    let rounds = params.scaled(ROUNDS);
    let (mut at, mut sum, mut chased) = (cycle[0], 0_u64, 0.0);
    let begun = Instant::now();
    for round in 0..rounds {
        let began = Instant::now();
        for _ in 0..cycle.len() {
            at = black_box(memory[at] as usize);
        }
        chased += began.elapsed().as_secs_f64();
        if round % STREAM_EVERY == 0 {
            for part in STREAMED {
                let part = &memory[part * PART / WORD..(part + 1) * PART / WORD];
                sum = part.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if at != cycle[0] {
        return Err("the cycle did not come back to its first line".into());
    }
    let pages = PART / PAGE;
    let once: usize =
        STREAMED.iter().map(|part| (part * pages..(part + 1) * pages).sum::<usize>()).sum();
    let expected = once as u64 * rounds.div_ceil(STREAM_EVERY) as u64;
    if sum != expected {
        return Err(format!("the streamed parts add up to {sum}, not {expected}").into());
    }
    let steps = (rounds * cycle.len()) as u64;
    Ok(Report {
        operations: steps,
        seconds,
        metrics: vec![("chase_ns", chased * 1e9 / steps as f64), ("chase_seconds", chased)],
        check: format!("{rounds} rounds came back, streams add up to {sum}"),
    })
}

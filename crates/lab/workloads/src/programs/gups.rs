//! `gups` and `gups-antagonist`: random updates of objects of 64 bytes, most of them in a hot set, alone or beside
//! threads that stream through memory of their own.
//!
//! ```text
//!  each thread's part:  ......HHHHHHHHHHHH..................     a third is hot and gets nine of ten updates,
//!                                                                uniformly; the others go anywhere in the part
//! ```
//!
//! The shape of the microbenchmark of HeMem (SOSP 2021) and Colloid (SOSP 2024), at 1 GiB instead of 72. The antagonist
//! reads and writes its memory in order, as many threads as there are, so that bandwidth becomes scarce.
//!
//! Check: all updates are done again; they are exclusive ors, so that every word must then be what it was at the
//! beginning. The antagonist's words must have been counted up by one in each pass.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use crate::threads;
use pagemill_model::random::{Random, mix};

/// Words of an object.
const WORDS: usize = 8;
type Object = [u64; WORDS];

/// Objects of all threads, at full size: 1 GiB.
const OBJECTS: usize = 1 << 24;
/// One in so many objects is hot.
const HOT: usize = 3;
/// Share of the updates that the hot set gets.
const TO_HOT: f64 = 0.9;
/// Updates between two looks at the clock.
const BATCH: u64 = 1024;
/// Words that an antagonist streams through, at full size: 256 MiB.
const STREAM: usize = 1 << 25;
/// Words between two looks whether it is to stop.
const PIECE: usize = 1 << 16;

pub(super) fn alone(params: &Params) -> Outcome {
    run(params, 0)
}

pub(super) fn beside_antagonist(params: &Params) -> Outcome {
    run(params, params.threads)
}

fn run(params: &Params, antagonists: usize) -> Outcome {
    let each = (params.scaled(OBJECTS) / params.threads).max(HOT);
    let mut objects: Vec<Object> = (0..each * params.threads).map(initial).collect();
    let mut streams = vec![vec![0_u64; params.scaled(STREAM).max(PIECE)]; antagonists];
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let deadline = started + params.time;
    let (updates, streamed, seconds) = thread::scope(|scope| {
        let streaming: Vec<_> = streams
            .iter_mut()
            .map(|words| threads::spawn(scope, || stream(words, &stop)))
            .collect();
        let updating: Vec<_> = objects
            .chunks_exact_mut(each)
            .enumerate()
            .map(|(number, part)| {
                let mut updater = Updater::new(part, params.seed, number);
                threads::spawn(scope, move || updater.until(deadline))
            })
            .collect();
        let updates: Vec<u64> = updating.into_iter().map(joined).collect();
        let seconds = started.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        let streamed: Vec<usize> = streaming.into_iter().map(joined).collect();
        (updates, streamed, seconds)
    });
    verify(params, &mut objects, each, &updates)?;
    for (words, &streamed) in streams.iter().zip(&streamed) {
        verify_stream(words, streamed)?;
    }
    let all: u64 = updates.iter().sum();
    let bytes = streamed.iter().sum::<usize>() as f64 * size_of::<u64>() as f64;
    Ok(Report {
        operations: all,
        seconds,
        metrics: vec![
            ("gups", all as f64 / seconds / 1e9),
            ("bytes", (objects.len() * size_of::<Object>()) as f64),
            ("antagonist_bytes_per_second", bytes / seconds),
        ],
        check: format!("{all} updates done again left each of {} objects as it was", objects.len()),
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// An object before any update.
fn initial(at: usize) -> Object {
    [mix(at as u64); WORDS]
}

/// One thread's updates.
struct Updater<'a> {
    part: &'a mut [Object],
    random: Random,
    /// First object of the hot set, and how many there are.
    hot: (usize, usize),
}

impl<'a> Updater<'a> {
    fn new(part: &'a mut [Object], seed: u64, number: usize) -> Self {
        let mut random = Random::new(mix(seed ^ mix(number as u64)));
        let count = part.len() / HOT;
        let hot = (random.index(part.len() - count + 1), count);
        Self { part, random, hot }
    }

    /// Updates until the deadline, once at least. Returns how often.
    fn until(&mut self, deadline: Instant) -> u64 {
        let mut updates = 0;
        loop {
            self.update(BATCH);
            updates += BATCH;
            if Instant::now() >= deadline {
                return updates;
            }
        }
    }

    fn update(&mut self, times: u64) {
        let (first, count) = self.hot;
        for _ in 0..times {
            let at = if self.random.chance(TO_HOT) {
                first + self.random.index(count)
            } else {
                self.random.index(self.part.len())
            };
            let value = self.random.bits();
            for word in &mut self.part[at] {
                *word ^= value;
            }
        }
    }
}

/// Does the updates again; every object must then be as it was at the beginning.
fn verify(
    params: &Params,
    objects: &mut [Object],
    each: usize,
    updates: &[u64],
) -> Result<(), String> {
    thread::scope(|scope| {
        for ((number, part), &times) in objects.chunks_exact_mut(each).enumerate().zip(updates) {
            let mut updater = Updater::new(part, params.seed, number);
            threads::spawn(scope, move || updater.update(times));
        }
    });
    match objects.iter().enumerate().find(|(at, object)| **object != initial(*at)) {
        Some((at, _)) => Err(format!("object {at} is not what its updates make of it")),
        None => Ok(()),
    }
}

/// Counts each word up, in order, again and again. Returns how many were.
fn stream(words: &mut [u64], stop: &AtomicBool) -> usize {
    let mut streamed = 0;
    while !stop.load(Relaxed) {
        let at = streamed % words.len();
        let end = words.len().min(at + PIECE);
        words[at..end].iter_mut().for_each(|word| *word += 1);
        streamed += end - at;
    }
    streamed
}

fn verify_stream(words: &[u64], streamed: usize) -> Result<(), String> {
    let (passes, rest) = (streamed / words.len(), streamed % words.len());
    let expected = |at: usize| passes as u64 + u64::from(at < rest);
    match words.iter().enumerate().find(|&(at, &word)| word != expected(at)) {
        Some((at, word)) => {
            Err(format!("word {at} of an antagonist is {word}, not {}", expected(at)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_update_is_found() {
        let params = Params { threads: 2, ..Params::default() };
        let mut objects: Vec<Object> = (0..2000).map(initial).collect();
        for (number, part) in objects.chunks_exact_mut(1000).enumerate() {
            Updater::new(part, params.seed, number).update(5000);
        }
        assert_ne!(objects[..3], [0, 1, 2].map(initial));
        let mut damaged = objects.clone();
        verify(&params, &mut objects, 1000, &[5000, 5000]).unwrap();
        damaged[1234][5] ^= 1;
        let error = verify(&params, &mut damaged, 1000, &[5000, 5000]).unwrap_err();
        assert!(error.contains("object 1234"), "{error}");
    }

    #[test]
    fn nine_of_ten_updates_are_in_the_hot_set() {
        let mut objects: Vec<Object> = (0..3000).map(initial).collect();
        let mut updater = Updater::new(&mut objects, 1, 0);
        updater.update(300);
        let (first, count) = updater.hot;
        let touched =
            |range: std::ops::Range<usize>| range.filter(|&at| objects[at] != initial(at)).count();
        let (hot, all) = (touched(first..first + count), touched(0..3000));
        assert!(hot * 100 > all * 85 && hot < all, "{hot} of {all}");
    }

    #[test]
    fn a_word_that_a_stream_left_out_is_found() {
        let mut words = vec![2; 10];
        words[..4].fill(3);
        verify_stream(&words, 24).unwrap();
        assert!(verify_stream(&words, 25).unwrap_err().contains("word 4"));
    }
}

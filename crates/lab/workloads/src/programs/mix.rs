//! `matrix`, `hog` and `mix`: a matrix product, a program that takes much memory, and the two side by side.
//!
//! The mixed workload of CBMM (EuroSys 2022) has a matrix product, a memory hog and Redis at once; Redis is a program
//! of its own. The product is of blocks that fit in a cache; the hog writes all of its memory, again and again, in
//! pieces that it gives back and takes anew.
//!
//! Check: entries are small whole numbers, so that products are exact, and the product times a random vector must be
//! the factors times it (Freivalds, 1977). Each page of the hog must hold what was written to it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use crate::team;
use crate::threads;
use pagemill_model::random::{Random, mix};

/// Rows of the matrices, at full size.
const SIDE: usize = 2048;
/// Rows and columns of a block: three blocks are 96 KiB.
const BLOCK: usize = 64;
/// Vectors that a product is checked with; a wrong one passes each with a probability of a half at most.
const VECTORS: usize = 20;
/// Bytes of the hog, at full size.
const HOG: usize = 1 << 30;
/// Words of a piece: 16 MiB.
const PIECE: usize = 2 << 20;
const PAGE: usize = 512;
/// Times that the hog alone writes its memory.
const PASSES: usize = 8;

pub(super) fn matrix(params: &Params) -> Outcome {
    let product = Product::new(params);
    let (seconds, entries) = product.multiply(params.threads);
    product.verify(&entries, params.seed)?;
    Ok(product.report(seconds, Vec::new()))
}

pub(super) fn hog(params: &Params) -> Outcome {
    let mut hog = Hog::new(params);
    let started = Instant::now();
    for _ in 0..PASSES {
        hog.pass();
    }
    let seconds = started.elapsed().as_secs_f64();
    let bytes = hog.check()?;
    Ok(Report {
        operations: hog.written as u64,
        seconds,
        metrics: vec![("bytes", bytes as f64), ("bytes_per_second", hog.rate(seconds))],
        check: format!("each page of {bytes} bytes held what was written to it"),
    })
}

pub(super) fn both(params: &Params) -> Outcome {
    let product = Product::new(params);
    let mut hog = Hog::new(params);
    let stop = AtomicBool::new(false);
    let (seconds, entries) = thread::scope(|scope| {
        let beside = threads::spawn(scope, || {
            // Once at least.
            loop {
                hog.pass();
                if stop.load(Relaxed) {
                    break;
                }
            }
        });
        let made = product.multiply(params.threads);
        stop.store(true, Relaxed);
        beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        made
    });
    product.verify(&entries, params.seed)?;
    let bytes = hog.check()?;
    let metrics = vec![("hog_bytes", bytes as f64), ("hog_bytes_per_second", hog.rate(seconds))];
    Ok(product.report(seconds, metrics))
}

/// Two square matrices, row by row.
struct Product {
    side: usize,
    left: Vec<f64>,
    right: Vec<f64>,
}

impl Product {
    fn new(params: &Params) -> Self {
        let blocks = (SIDE as f64 * params.scale.cbrt() / BLOCK as f64).round().max(1.0);
        let side = blocks as usize * BLOCK;
        let mut random = Random::new(params.seed);
        let mut entries =
            || (0..side * side).map(|_| random.below(16) as f64 - 8.0).collect::<Vec<_>>();
        Self { side, left: entries(), right: entries() }
    }

    /// The product, and how long it took.
    fn multiply(&self, threads: usize) -> (f64, Vec<f64>) {
        let side = self.side;
        let mut product = vec![0.0; side * side];
        let started = Instant::now();
        let slabs = team::slabs(&mut product, side * BLOCK, threads);
        team::each(slabs, |(first, slab)| {
            for (at, rows) in slab.chunks_exact_mut(side * BLOCK).enumerate() {
                let top = (first + at) * BLOCK;
                for middle in (0..side).step_by(BLOCK) {
                    for low in (0..side).step_by(BLOCK) {
                        self.add_block(rows, top, middle, low);
                    }
                }
            }
        });
        (started.elapsed().as_secs_f64(), product)
    }

    /// Adds the product of two blocks to the rows that begin with `top`.
    fn add_block(&self, rows: &mut [f64], top: usize, middle: usize, low: usize) {
        let side = self.side;
        for (row, out) in rows.chunks_exact_mut(side).enumerate() {
            let out = &mut out[low..low + BLOCK];
            let start = (top + row) * side + middle;
            for (inner, &factor) in self.left[start..start + BLOCK].iter().enumerate() {
                let from = (middle + inner) * side + low;
                for (out, right) in out.iter_mut().zip(&self.right[from..from + BLOCK]) {
                    *out += factor * right;
                }
            }
        }
    }

    fn verify(&self, product: &[f64], seed: u64) -> Result<(), String> {
        let mut random = Random::new(mix(seed));
        let times = |matrix: &[f64], vector: &[f64]| -> Vec<f64> {
            let rows = matrix.chunks_exact(self.side);
            rows.map(|row| row.iter().zip(vector).map(|(a, b)| a * b).sum()).collect()
        };
        for _ in 0..VECTORS {
            let vector: Vec<f64> =
                (0..self.side).map(|_| f64::from(random.below(2) as u8)).collect();
            let expected = times(&self.left, &times(&self.right, &vector));
            let found = times(product, &vector);
            if let Some(row) = (0..self.side).find(|&row| found[row] != expected[row]) {
                return Err(format!("row {row} of the matrix product is wrong"));
            }
        }
        Ok(())
    }

    fn report(&self, seconds: f64, more: Vec<(&'static str, f64)>) -> Report {
        let operations = 2.0 * (self.side as f64).powi(3);
        let mut metrics = vec![("side", self.side as f64), ("flops", operations / seconds)];
        metrics.extend(more);
        Report {
            operations: operations as u64,
            seconds,
            metrics,
            check: format!("the product agrees with its factors on {VECTORS} random vectors"),
        }
    }
}

/// Much memory in pieces.
struct Hog {
    pieces: Vec<Vec<u64>>,
    words: usize,
    passes: u64,
    /// Bytes.
    written: usize,
}

impl Hog {
    fn new(params: &Params) -> Self {
        Self { pieces: Vec::new(), words: params.scaled(HOG / 8), passes: 0, written: 0 }
    }

    /// What a page holds after so many passes.
    fn of(page: usize, passes: u64) -> u64 {
        mix(page as u64 ^ passes << 40)
    }

    /// Gives each piece back, takes it anew and writes it.
    fn pass(&mut self) {
        self.passes += 1;
        for at in 0..self.words.div_ceil(PIECE) {
            let words = PIECE.min(self.words - at * PIECE);
            if let Some(piece) = self.pieces.get_mut(at) {
                *piece = Vec::new();
            } else {
                self.pieces.push(Vec::new());
            }
            let mut piece = Vec::with_capacity(words);
            let first = at * PIECE / PAGE;
            let pages = (0..words).map(|word| Self::of(first + word / PAGE, self.passes));
            piece.extend(pages);
            self.pieces[at] = piece;
            self.written += words * size_of::<u64>();
        }
    }

    /// Bytes per second.
    fn rate(&self, seconds: f64) -> f64 {
        self.written as f64 / seconds
    }

    /// The size in bytes, if all is as it was written.
    fn check(&self) -> Result<usize, String> {
        for (at, piece) in self.pieces.iter().enumerate() {
            let first = at * PIECE / PAGE;
            for (page, words) in piece.chunks(PAGE).enumerate() {
                if words.iter().any(|&word| word != Self::of(first + page, self.passes)) {
                    return Err(format!("page {} of the hog was damaged", first + page));
                }
            }
        }
        Ok(self.words * size_of::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_entry_and_a_damaged_page_are_found() {
        let params = Params { scale: 1e-3, ..Params::default() };
        let product = Product::new(&params);
        let (_, mut entries) = product.multiply(3);
        let (_, alone) = product.multiply(1);
        assert_eq!(entries, alone);
        product.verify(&entries, 1).unwrap();
        entries[product.side + 3] += 1.0;
        assert!(product.verify(&entries, 1).unwrap_err().contains("row 1"));
        let mut hog = Hog::new(&params);
        hog.pass();
        hog.pass();
        hog.check().unwrap();
        hog.pieces[0][3 * PAGE] ^= 1;
        assert!(hog.check().unwrap_err().contains("page 3"));
    }
}

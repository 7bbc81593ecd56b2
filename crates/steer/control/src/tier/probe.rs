//! A light pointer chase in each node: how long a read takes there now.
//!
//! The buffer is a ring of cache lines in an order that no prefetcher guesses; each line holds the number
//! of the next, so a read starts when the one before has ended. A look reads [`BATCHES`] batches of
//! [`READS`] lines and goes on where the last look stopped: a line comes round again only after the whole
//! buffer, which is larger than the caches, and after whatever the machine did meanwhile.
//!
//! Cost: about 2,000 reads a node and look, 0.3 ms at 150 ns. What it sees includes the core's own
//! caches being missed, as for any other reader; it counts no reads, so it gives latencies and no rates.
//!
//! Always so: the ring visits every line once before it repeats.

use std::time::Instant;

use pagemill_kernel::nodes::mempolicy::Bound;
use pagemill_model::page::BASE;

/// Bytes of each buffer.
const BUFFER: usize = 64 << 20;
pub(super) const LINE: usize = 64;
/// Batches of a look; their spread gives the interval.
const BATCHES: usize = 40;
/// Reads of a batch.
pub(super) const READS: usize = 50;

/// One node's chase.
#[derive(Debug)]
pub struct Chase {
    memory: Bound,
    at: usize,
    lines: usize,
}

/// The line after line `at` of `lines`, a power of two: a full cycle of a linear congruential generator
/// (Hull and Dobell: odd increment, multiplier 1 modulo 4).
fn next(at: usize, lines: usize) -> usize {
    at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f) & (lines - 1)
}

impl Chase {
    /// A ring on `node`.
    ///
    /// # Errors
    /// The node has no memory to give.
    pub fn on(node: u32) -> pagemill_kernel::Result<Self> {
        Self::with_size(node, BUFFER)
    }

    fn with_size(node: u32, size: usize) -> pagemill_kernel::Result<Self> {
        Ok(Self::in_memory(Bound::on(node, size)?))
    }

    /// A ring in memory that was not touched yet, of a power of two of lines.
    pub(super) fn in_memory(mut memory: Bound) -> Self {
        let lines = memory.len() / LINE;
        let bytes = memory.bytes();
        for at in 0..lines {
            let link = next(at, lines) as u64;
            bytes[at * LINE..at * LINE + 8].copy_from_slice(&link.to_ne_bytes());
        }
        Self { memory, at: 0, lines }
    }

    /// Reads something of every page, so that no read that is timed is the first of its page.
    pub(super) fn touch(&mut self) {
        let sum = self
            .memory
            .bytes()
            .iter()
            .step_by(BASE as usize)
            .fold(0_u64, |sum, byte| sum + u64::from(*byte));
        std::hint::black_box(sum);
    }

    /// Mean time of a read in each batch, nanoseconds.
    pub fn batch_means(&mut self) -> Vec<f64> {
        let lines = self.lines;
        let bytes = self.memory.bytes();
        let mut at = self.at;
        let batches = (0..BATCHES)
            .map(|_| {
                let begun = Instant::now();
                for _ in 0..READS {
                    let mut link = [0; 8];
                    link.copy_from_slice(&bytes[at * LINE..at * LINE + 8]);
                    at = u64::from_ne_bytes(link) as usize & (lines - 1);
                }
                std::hint::black_box(at);
                begun.elapsed().as_nanos() as f64 / READS as f64
            })
            .collect();
        self.at = at;
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_visits_every_line_once_before_it_repeats() {
        for lines in [8_usize, 1024] {
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at], true));
                at = next(at, lines);
            }
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn a_look_takes_time_and_goes_on_where_the_last_one_stopped() {
        let mut chase = match Chase::with_size(0, 1 << 20) {
            Ok(chase) => chase,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let first = chase.batch_means();
        assert_eq!(first.len(), BATCHES);
        assert!(first.iter().all(|time| *time > 0.0), "{first:?}");
        let stopped = chase.at;
        assert_eq!(stopped, (0..BATCHES * READS).fold(0, |at, _| next(at, chase.lines)));
        chase.batch_means();
        assert_ne!(chase.at, stopped);
    }
}

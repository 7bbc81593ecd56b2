//! How long a read takes in a memory node by how much is read there: its curve of latency against bandwidth.
//!
//! One processor of the node chases pointers (see [`super::probe`]) while others of it read the same node's memory as
//! fast as they can, or a share of the time. Each *level* is a number of such readers and their share; of each the
//! curve has a point: bytes read a second by all, and the median time of the chaser's reads.
//!
//! ```text
//!  level     none   1/4 of one   1/2   3/4   one   two  …  all others
//!  point     (GB/s, ns) each: readers are started, waited for, and read while the chaser does
//! ```
//!
//! A node without processors is read from those that are named, of the nearest node, say. Buffers are larger than the
//! caches and on huge pages where those are to be had, so that reads wait for memory and not for page tables.
//!
//! Always true: no reader is left when a measurement ends, also by an error.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pagemill_kernel::nodes::mempolicy::Bound;
use pagemill_kernel::process::scheduling::AffinityGuard;
use pagemill_kernel::process::thread;

use super::probe::{Chase, LINE, READS};

/// Bytes that a reader reads between two looks at the clock.
const PIECE: usize = 256 << 10;

/// Shares of the time that the first reader reads.
const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// Levels of more readers, at most.
const LEVELS: usize = 12;

/// Times that the level without load is measured; its point is the least. What disturbs it only adds: other programs,
/// and a host that maps this machine's pages when they are read.
const TURNS: usize = 3;

/// Looks of the chaser in each level, at least.
const LOOKS: usize = 9;

/// How a node is measured.
#[derive(Clone, Debug)]
pub struct CurveSetup {
    /// The node.
    pub node: u32,
    /// Processors that read it; the first chases.
    pub processors: Vec<u32>,
    /// Bytes of the chaser's ring, and of each reader's buffer: a power of two, and more than the caches.
    pub ring: usize,
    /// Bytes of each reader's buffer.
    pub buffer: usize,
    /// Time of each level.
    pub time: Duration,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Processors that read, beside the chaser.
    pub readers: usize,
    /// Share of the time that they read.
    pub share: f64,
    /// Read by all, 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Time of a read, nanoseconds.
    pub ns: f64,
}

/// A node's curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Points, in the order of the load.
    pub points: Vec<Point>,
    /// Whether huge pages were asked for with success.
    pub huge: bool,
}

impl Curve {
    /// Without load.
    #[must_use]
    pub fn unloaded_ns(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.ns)
    }

    /// The most that was read, 10^9 bytes a second.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.gb_per_s).fold(0.0, f64::max)
    }
}

/// The levels of a number of readers: how many read, and which share of the time.
fn levels(readers: usize) -> Vec<(usize, f64)> {
    let mut levels = vec![(0, 0.0)];
    if readers > 0 {
        levels.extend(SHARES.map(|share| (1, share)));
    }
    let step = readers.saturating_sub(1).div_ceil(LEVELS).max(1);
    let mut more: Vec<usize> = (2..=readers).rev().step_by(step).collect();
    more.reverse();
    levels.extend(more.into_iter().map(|readers| (readers, 1.0)));
    levels
}

/// A processor that reads a node's memory until this is dropped.
struct Reader {
    read: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(mut memory: Bound, processor: u32, share: f64) -> Result<Self> {
        let (read, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (read.clone(), ended.clone());
        let run = move || {
            let _near = AffinityGuard::to(&[processor]);
            let mut at = 0;
            let bytes = memory.bytes();
            while !end.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let piece = &bytes[at..(at + PIECE).min(bytes.len())];
                let sum = piece.chunks(LINE).fold(0_u64, |sum, line| sum + u64::from(line[0]));
                hint::black_box(sum);
                count.fetch_add(piece.len() as u64, Ordering::Relaxed);
                at = if at + PIECE < bytes.len() { at + PIECE } else { 0 };
                let rest = begun.elapsed().mul_f64(1.0 / share - 1.0);
                let begun = Instant::now();
                while begun.elapsed() < rest {
                    hint::spin_loop();
                }
            }
        };
        Ok(Self { read, ended, thread: Some(thread::start(run)?) })
    }

    fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Memory of a node on huge pages if those are to be had, which the flag says; touched.
fn memory(node: u32, bytes: usize, huge: &mut bool) -> Result<Bound> {
    let mut memory = Bound::on(node, bytes)?;
    *huge &= memory.ask_for_huge_pages().is_ok();
    Ok(memory)
}

/// The point of a level whose readers read, as the chaser sees it for this time.
fn point_of(chase: &mut Chase, running: &[Reader], share: f64, time: Duration) -> Result<Point> {
    chase.touch();
    let all = || running.iter().map(Reader::read).sum::<u64>();
    let (before, begun) = (all(), Instant::now());
    let mut means = Vec::new();
    for look in 0.. {
        if look >= LOOKS && begun.elapsed() >= time {
            break;
        }
        means.extend(chase.batch_means());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let read = all() - before + (means.len() * READS * LINE) as u64;
    let ns = pagemill_analysis::statistics::median(&means).context("nothing was read")?;
    Ok(Point { readers: running.len(), share, gb_per_s: read as f64 / seconds / 1e9, ns })
}

/// Measures a node; `say` hears of each point.
///
/// # Errors
/// Where the node has no memory for it, the processors may not be used, or no thread can be started.
pub fn measure(way: &CurveSetup, mut say: impl FnMut(&Point)) -> Result<Curve> {
    let CurveSetup { node, processors, ring, buffer, time } = way;
    let (chaser, readers) = processors.split_first().context("no processor reads this node")?;
    let near = AffinityGuard::to(&[*chaser]);
    ensure!(near.is_some(), "this process may not run on processor {chaser}");
    let mut huge = true;
    let mut chase = Chase::in_memory(memory(*node, *ring, &mut huge)?);
    let mut points = Vec::new();
    for (count, share) in levels(readers.len()) {
        let mut running = Vec::new();
        for processor in &readers[..count] {
            let mut memory = memory(*node, *buffer, &mut huge)?;
            // Zeros that were never written are one page for all.
            memory.bytes().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            running.push(Reader::start(memory, *processor, share)?);
        }
        // All have begun to read.
        let patience = Instant::now();
        while running.iter().any(|reader| reader.read() == 0) {
            ensure!(
                patience.elapsed() < Duration::from_secs(60),
                "a processor reads nothing in a minute"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut turn = || point_of(&mut chase, &running, share, *time);
        let turns = (0..if count == 0 { TURNS } else { 1 }).map(|_| turn());
        let turns: Vec<Point> = turns.collect::<Result<_>>()?;
        let least = turns.into_iter().min_by(|a, b| a.ns.total_cmp(&b.ns));
        let point = least.context("nothing was read")?;
        say(&point);
        points.push(point);
    }
    Ok(Curve { points, huge })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_with_all_readers_and_are_few() {
        assert_eq!(levels(0), [(0, 0.0)]);
        assert_eq!(levels(1).last(), Some(&(1, 1.0)));
        for readers in [2, 3, 13, 14, 63, 127] {
            let levels = levels(readers);
            assert_eq!(levels.last(), Some(&(readers, 1.0)));
            assert!(levels.len() <= 1 + SHARES.len() + LEVELS, "{levels:?}");
            assert!(levels.windows(2).all(|pair| pair[0] < pair[1]), "{levels:?}");
        }
    }

    #[test]
    fn every_level_is_a_point_and_no_reader_is_left() {
        let allowed: Vec<u32> =
            (0..64).filter(|processor| AffinityGuard::to(&[*processor]).is_some()).collect();
        let time = Duration::from_millis(1);
        let processors = allowed.into_iter().take(3).collect::<Vec<_>>();
        let wanted = levels(processors.len() - 1).len();
        let way = CurveSetup { node: 0, processors, ring: 1 << 20, buffer: 1 << 20, time };
        let curve = match measure(&way, |_| {}) {
            Ok(curve) => curve,
            Err(error) => return eprintln!("skipped: {error:#}"),
        };
        assert_eq!(curve.points.len(), wanted);
        assert!(
            curve.points.iter().all(|point| point.ns > 0.0 && point.gb_per_s > 0.0),
            "{curve:?}"
        );
        assert!(curve.unloaded_ns() > 0.0 && curve.peak() > 0.0);
        let none = CurveSetup { processors: Vec::new(), ..way };
        assert!(measure(&none, |_| {}).is_err());
    }
}

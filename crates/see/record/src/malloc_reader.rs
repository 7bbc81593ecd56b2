//! What the malloc of a process keeps free, into samples of the process: now and then, for a reading costs time.

use std::time::{Duration, Instant};

use pagemill_kernel::{Linux, clock};
use pagemill_launch::allocator::Allocator;
use pagemill_model::{Bytes, HeapSample, Pid};

use crate::malloc_free::{self, MallocFree};

/// Time of a CPU for a reading.
const READING: Duration = Duration::from_millis(200);
/// It is read again after so long, or so many times the CPU time that it took.
const AGAIN: (Duration, u32) = (Duration::from_secs(1), 50);
/// The same where it did not answer: a heap that is being filled has an answer when it is full.
const SOON: (Duration, u32) = (Duration::from_millis(100), 5);

/// Asks the malloc of a process that is not on pagemill's heap.
#[derive(Debug)]
pub struct MallocReader {
    linux: Linux,
    pid: Pid,
    /// When next.
    due: Instant,
    last: Option<(MallocFree, Allocator)>,
}

impl MallocReader {
    /// Of this process; the first reading is due.
    pub fn new(linux: Linux, pid: Pid) -> Self {
        Self { linux, pid, due: Instant::now(), last: None }
    }

    /// Whether it has ever answered.
    pub fn has_told(&self) -> bool {
        self.last.is_some()
    }

    /// Adds what it says to a sample of the process, if it is time to; whether it did.
    pub fn read(&mut self, sample: &mut HeapSample) -> bool {
        sample.live.is_none() && Instant::now() >= self.due && self.read_now(sample)
    }

    /// The same without waiting for its time.
    pub fn read_now(&mut self, sample: &mut HeapSample) -> bool {
        let before = clock::of_thread();
        let told = match malloc_free::of(&self.linux, self.pid, READING) {
            (Some(free), Some(allocator)) => Some((free, allocator)),
            _ => None,
        };
        let took = clock::of_thread().saturating_sub(before);
        let (again, times) = if told.is_some() { AGAIN } else { SOON };
        self.due = Instant::now() + again.max(took * times);
        self.last = told.or(self.last);
        told.is_some_and(|told| {
            add(told, sample);
            true
        })
    }

    /// Adds what it said last to a sample, after a reading if that is due.
    pub fn read_or_recall(&mut self, sample: &mut HeapSample) {
        if let (false, None, Some(last)) = (self.read(sample), sample.live, self.last) {
            add(last, sample);
        }
    }
}

fn add((free, allocator): (MallocFree, Allocator), sample: &mut HeapSample) {
    sample.malloc = Some(allocator.name().into());
    sample.malloc_heap = Some(Bytes(free.heap));
    sample.malloc_free = Some(Bytes(free.free));
    sample.malloc_returnable = Some(Bytes(free.returnable));
    sample.malloc_pieces = Some(Bytes(free.pieces));
}

//! How much memory the process has, by the kernel's accounting and by its heap's.

use pagemill_analysis::heap::{Children, held};
use pagemill_model::{Bytes, Event, HeapSample, Nanos};

use super::history::History;

/// The last look at the process, and how its memory went.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The last look.
    pub last: Option<HeapSample>,
    /// The last one that has what the process's own malloc keeps free.
    pub malloc: Option<HeapSample>,
    /// Memory over time, bytes.
    pub history: History,
    /// What of it only the program can give back over time, bytes.
    pub held: History,
    /// What is live in the heap over time, bytes.
    pub live: History,
    /// What processes that it started hold, at the last look at them; none where there are none.
    pub children: Option<Children>,
    /// The part of a CPU that the process used between the last two looks that tell.
    pub used: Option<f64>,
    /// The look from which that counts: when, and the CPU time until then.
    before: Option<(Nanos, Nanos)>,
}

/// CPU time is told in ticks of 10 ms: looks that are nearer to each other tell little.
const APART: Nanos = Nanos(200_000_000);

impl Memory {
    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        let Event::Heap(sample) = event else { return };
        if let Some(bytes) = memory(sample) {
            self.history.add(sample.time, bytes as f64);
        }
        if let Some(own) = memory(sample).filter(|_| sample.children.is_some()) {
            self.children = Children::of(sample, Bytes(own), sample.time);
        }
        if let Some(Bytes(held)) = held(sample) {
            self.held.add(sample.time, held as f64);
        }
        if let Some(Bytes(live)) = sample.live {
            self.live.add(sample.time, live as f64);
        }
        if sample.malloc.is_some() {
            self.malloc = Some((**sample).clone());
        }
        if let Some(cpu) = sample.cpu {
            let (begin, before) = *self.before.get_or_insert((sample.time, cpu));
            let span = sample.time.since(begin);
            if span >= APART {
                self.used = Some(cpu.since(before).0 as f64 / span.0 as f64);
                self.before = Some((sample.time, cpu));
            }
        }
        self.last = Some((**sample).clone());
    }
}

/// Physical memory of a process: its Pss, and what its memfds hold besides.
pub fn memory(sample: &HeapSample) -> Option<u64> {
    Some(sample.pss?.0.saturating_add(sample.unmapped.map_or(0, |bytes| bytes.0)))
}

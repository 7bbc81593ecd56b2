//! `--with heap`: samples of the heap's statistics and the kernel's accounting of the process.

use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::units::counted;
use pagemill_model::{Event, EventKind, Pid, Source as _};

use super::{Recorder, RecorderKind, Start};
use crate::sampler::Sampler;

/// The word `heap`.
pub const KIND: RecorderKind = RecorderKind {
    name: "heap",
    about: "The heap's statistics and the kernel's accounting of the process",
    writes: &[EventKind::Heap],
    start: Start::OnHeap,
    attach: |linux, process, options| {
        let heap = Heap::attach(linux.clone(), process.pid, options.interval, process.started)?;
        Ok(Some(Box::new(heap)))
    },
};

/// Writes a sample an interval.
pub struct Heap {
    sampler: Sampler,
    interval: Duration,
    /// Taken on attaching, so that a process that may not be looked into is refused before anything
    /// is written.
    first: Option<Event>,
    samples: u64,
    /// Whether the program was started on the heap.
    preloaded: bool,
}

impl Heap {
    /// Looks at `pid` for the first time. `preloaded`: it was started on the heap.
    pub fn attach(linux: Linux, pid: Pid, interval: Duration, preloaded: bool) -> Result<Self> {
        let mut sampler = Sampler::attach(linux, pid)?;
        let first = sampler.sample()?.map(|sample| Event::Heap(Box::new(sample)));
        Ok(Self { sampler, interval, first, samples: 0, preloaded })
    }
}

impl Recorder for Heap {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn begin(&self, meta: &mut Meta) {
        // When the first sample was taken.
        meta.started = self.first.as_ref().map_or(meta.started, Event::time);
        meta.datasets.push(EventKind::Heap.dataset().into());
        meta.not_measured.push(NotMeasured {
            what: "memory of child processes".into(),
            why: "a recording of the heap follows one process (record a child with -p)".into(),
        });
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => self.sampler.next_event()?,
        };
        if let Some(event) = event {
            writer.event(&event)?;
            self.samples += 1;
        }
        Ok(())
    }

    fn missed(&mut self, writer: &mut Writer) {
        writer.meta_mut().losses.missed_samples += 1;
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        let meta = writer.meta_mut();
        self.sampler.comm().clone_into(&mut meta.comm);
        meta.not_measured.extend(self.sampler.not_measured());
        meta.capabilities.extend(self.sampler.used());
        if !self.sampler.saw_heap() {
            let comm = self.sampler.comm();
            if self.preloaded {
                eprintln!(
                    "{comm} ended, or executed another program, before its heap was seen (a shorter --interval sees shorter programs)"
                );
            } else {
                eprintln!(
                    "{comm} has no pagemill heap: only its memory as the kernel accounts it is recorded (for the heap's own figures: pagemill run --mesh 1y -- CMD)"
                );
            }
        }
        Ok(())
    }

    fn amount(&self) -> String {
        counted(self.samples, "sample", "samples")
    }

    fn is_empty(&self) -> bool {
        self.samples == 0
    }
}

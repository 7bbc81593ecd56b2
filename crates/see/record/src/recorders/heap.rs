//! `--with heap`: samples of the heap's statistics and the kernel's accounting of the process; of a process that is not
//! on pagemill's heap, what its own malloc keeps free ([`MallocReader`]), now and then, and once more at the end where
//! it lives on; and what the processes hold that it started ([`Children`]).

use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_kernel::process::{Resources, UsageScope, resources};
use pagemill_launch::cpython;
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::units::counted;
use pagemill_model::{Bytes, Event, EventKind, Pid};

use super::recorder::{Options, Recorder, RecorderKind, Start};
use crate::children::Children;
use crate::malloc_reader::MallocReader;
use crate::sampler::Sampler;

/// The word `heap`.
pub const KIND: RecorderKind = RecorderKind {
    name: "heap",
    about: "The heap's statistics and the kernel's accounting of the process",
    writes: &[EventKind::Heap],
    pane: Some("memory"),
    start: Start::OnHeap,
    attach: |linux, process, options| {
        let preloaded = process.started && !options.own_malloc;
        let heap = Heap::attach(linux.clone(), process.pid, options, preloaded)?;
        Ok(Some(Box::new(heap)))
    },
};

/// Why nothing more is measured of child processes.
const FOLLOWS: &str = "a recording of the heap follows one process (record a child with -p), and has what all \
                       others that it started hold together (children_pss_bytes)";
/// What is not measured where no malloc answers, and why.
const MALLOC: &str = "what its malloc keeps free (malloc_free_bytes, …)";
const NO_MALLOC: &str = "read from outside are glibc's malloc and jemalloc, where no part of the heap is in swap and \
                         it does not change all the time";
const PYMALLOC: &str =
    "CPython has small objects in arenas of its own, beside malloc, which are not read";
/// A process that has this much more is larger.
const LARGER: u64 = 8 << 20;
/// Time between two looks whether it is CPython, as long as it is not.
const SOON: Duration = Duration::from_millis(100);
/// At the end it is read so many times at the most, so far apart: a heap that is changing just then has no answer.
const TRIES: usize = 3;
const APART: Duration = Duration::from_millis(10);

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
    malloc: MallocReader,
    /// Pages are marked as not accessed: the malloc is read just before.
    marks: bool,
    python: Python,
    children: Children,
    own: ProcessUsage,
}

/// What the process took by itself, as far as was seen.
#[derive(Default)]
struct ProcessUsage {
    /// The most that was resident, bytes.
    resident: u64,
    /// CPU time, ns.
    cpu: u64,
}

impl ProcessUsage {
    /// That other processes of a command did most of its work and one of them took more memory, if so: of a compiler's
    /// driver the recording says nothing of the compiler. `all` is what the command and all that it started have used.
    fn small_beside(&self, all: &Resources) -> Option<NotMeasured> {
        let cpu = (all.user + all.system).as_nanos();
        let larger = all.resident > self.resident + LARGER;
        (larger && u128::from(self.cpu) * 2 < cpu).then(|| NotMeasured {
            what: NotMeasured::WORKERS.into(),
            why: format!("one had up to {} resident, and {FOLLOWS}", Bytes(all.resident).plain()),
        })
    }
}

fn is_charge(missing: &NotMeasured) -> bool {
    missing.what == NotMeasured::OWN_CHARGE
}

/// Finds out whether the process is CPython, whose own allocator does not tell what it keeps free.
struct Python {
    linux: Linux,
    pid: Pid,
    /// When next.
    due: Instant,
    found: bool,
}

impl Python {
    /// A script that executes it may not have done so yet, and a program that embeds it loads it late.
    fn look(&mut self) {
        let now = Instant::now();
        if !self.found && now >= self.due {
            self.found = cpython::has_pymalloc(&self.linux, self.pid);
            self.due = now + SOON;
        }
    }
}

impl Heap {
    /// Looks at `pid` for the first time. `preloaded`: it was started on the heap.
    ///
    /// # Errors
    /// There is no such process.
    pub fn attach(linux: Linux, pid: Pid, options: &Options, preloaded: bool) -> Result<Self> {
        let Options { interval, marks, .. } = *options;
        let malloc = MallocReader::new(linux.clone(), pid);
        let due = Instant::now();
        let python = Python { linux: linux.clone(), pid, due, found: false };
        let sampler = Sampler::attach(linux, pid)?;
        let (children, own) = (Children::default(), ProcessUsage::default());
        let (first, samples) = (None, 0);
        let mut heap = Self {
            sampler,
            interval,
            first,
            samples,
            preloaded,
            malloc,
            marks,
            python,
            children,
            own,
        };
        heap.first = heap.sample()?;
        Ok(heap)
    }

    fn sample(&mut self) -> Result<Option<Event>> {
        let mut sample = self.sampler.sample()?;
        self.python.look();
        if let Some(sample) = &mut sample {
            self.children.look(&self.python.linux, sample);
        }
        // The heap of a program that was started on it may not be there yet.
        if let Some(sample) = sample.as_mut().filter(|_| !self.preloaded && !self.marks) {
            self.malloc.read(sample);
        }
        Ok(sample.map(|sample| Event::Heap(Box::new(sample))))
    }

    /// A sample at once, for what the malloc keeps free.
    fn ask(&mut self, writer: &mut Writer) -> Result<()> {
        if self.preloaded || self.sampler.saw_heap() {
            return Ok(());
        }
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(APART);
            }
            let Some(mut sample) = self.sampler.sample()? else { return Ok(()) };
            if self.malloc.read_now(&mut sample) {
                writer.event(&Event::Heap(Box::new(sample)))?;
                self.samples += 1;
                return Ok(());
            }
        }
        Ok(())
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
        meta.lacks(NotMeasured::CHILDREN, FOLLOWS);
        // A recording in the making says whose charge it has, too.
        meta.not_measured.extend(self.sampler.not_measured().into_iter().filter(is_charge));
    }

    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => self.sample()?,
        };
        if let Some(event) = event {
            if let Event::Heap(sample) = &event {
                let ProcessUsage { resident, cpu } = &mut self.own;
                *resident = (*resident).max(sample.rss.map_or(0, |bytes| bytes.0));
                *cpu = (*cpu).max(sample.cpu.map_or(0, |cpu| cpu.0));
            }
            writer.event(&event)?;
            self.samples += 1;
        }
        Ok(())
    }

    fn before_marks(&mut self, writer: &mut Writer) -> Result<()> {
        self.ask(writer)
    }

    fn missed(&mut self, writer: &mut Writer) {
        writer.meta_mut().losses.missed_samples += 1;
    }

    fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        // Of a process that lives on, what it freed since its malloc was last read. What was recorded is kept where it
        // cannot be looked at any more.
        if let Err(error) = self.ask(writer) {
            notice!("{error:#}");
        }
        let meta = writer.meta_mut();
        self.sampler.comm().clone_into(&mut meta.comm);
        meta.not_measured.retain(|missing| !is_charge(missing));
        if let Some(small) = self.own.small_beside(&resources(UsageScope::EndedChildren)) {
            meta.not_measured.retain(|missing| missing.what != NotMeasured::CHILDREN);
            meta.not_measured.push(small);
        }
        meta.not_measured.extend(self.sampler.not_measured());
        meta.capabilities.extend(self.sampler.used());
        if self.python.found {
            meta.lacks(NotMeasured::PYMALLOC, PYMALLOC);
        }
        if !self.sampler.saw_heap() {
            let comm = self.sampler.comm();
            if self.preloaded {
                eprintln!(
                    "{comm} ended, or executed another program, before its heap was seen (a shorter --interval sees \
                     shorter programs)"
                );
            } else {
                let malloc = match self.malloc.has_told() {
                    true => ", and what its own malloc keeps free,",
                    false => {
                        meta.lacks(MALLOC, NO_MALLOC);
                        ""
                    }
                };
                eprintln!(
                    "{comm} has no pagemill heap: only its memory as the kernel accounts it{malloc} is recorded (for \
                     the heap's own figures: pagemill run --heap compact -- CMD)"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_larger_processes_is_told_from_a_program_that_starts_small_ones() {
        let mib = |mib: u64| mib << 20;
        let seconds = Duration::from_secs;
        let all = |resident: u64, cpu: u64| Resources {
            resident: mib(resident),
            user: seconds(cpu),
            ..Resources::default()
        };
        let own = |resident: u64, cpu: u64| ProcessUsage {
            resident: mib(resident),
            cpu: cpu * 1_000_000_000,
        };
        let told =
            |own: ProcessUsage, all: Resources| own.small_beside(&all).map(|missing| missing.why);
        let why = told(own(3, 0), all(87, 2)).unwrap();
        assert!(why.starts_with("one had up to 87.0 MiB resident, "), "{why}");
        assert_eq!(told(own(80, 2), all(87, 2)), None, "it is that process");
        assert_eq!(told(own(3, 2), all(87, 3)), None, "it did most of the work");
        assert_eq!(told(own(3, 0), Resources::default()), None, "it has not ended");
    }
}

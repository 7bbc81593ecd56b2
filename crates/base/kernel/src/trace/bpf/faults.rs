//! The programs of `faults.bpf.c`: page faults of some processes, counted and timed in the kernel.

use pagemill_model::fault::SUM_WITHIN;
use pagemill_model::{Nanos, Order, Pid};

use super::{Bits, Counters, Histogram, Object, Ring, Set, objects};
use crate::bytes::{long, word};
use crate::trace::perf_event::{Attributes, Counter, Event, Target};
use crate::{Error, Linux, Result};

/// Where a fault's beginning and end are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Entry and exit of `handle_mm_fault`.
    Function,
    /// The tracepoints `page_fault_user` and `page_fault_kernel`, and the software events at the
    /// end of `handle_mm_fault`.
    Events,
}

/// What a kernel before 5.19 does not tell.
pub const LOCKS: &str = "waiting for locks";

/// Programs that add detail, with their tracepoints; one that this kernel lacks is left out.
const DETAILS: &[(&str, &str, &str)] = &[
    ("allocated", "mm_page_alloc", "order and time of allocation"),
    ("compaction_begins", "mm_compaction_begin", "compaction"),
    ("compaction_ends", "mm_compaction_end", "compaction"),
    ("reclaim_begins", "mm_vmscan_direct_reclaim_begin", "reclaim"),
    ("reclaim_ends", "mm_vmscan_direct_reclaim_end", "reclaim"),
    ("group_reclaim_begins", "mm_vmscan_memcg_reclaim_begin", "reclaim of a control group"),
    ("group_reclaim_ends", "mm_vmscan_memcg_reclaim_end", "reclaim of a control group"),
    ("lock_wait_begins", "contention_begin", LOCKS),
    ("lock_wait_ends", "contention_end", LOCKS),
    ("stolen", "mm_page_alloc_extfrag", "blocks taken from another mobility type"),
    ("resident", "rss_stat", "anonymous, file or shared memory"),
];

/// One fault that took the threshold or longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// When it ended, ns of CLOCK_MONOTONIC.
    pub ended: u64,
    /// How long it took, ns.
    pub latency: u64,
    /// The address.
    pub address: u64,
    /// From the last allocation of a page to the end, ns, without what is told below; 0 if no page was allocated.
    pub after_allocation: u64,
    /// In compaction, ns.
    pub compaction: u64,
    /// In direct reclaim, of the machine or of a control group at its limit, ns.
    pub reclaim: u64,
    /// Waiting for locks of the kernel that others held, ns.
    pub locks: u64,
    /// Ready to run, and waiting for a processor, ns.
    pub processor: u64,
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
    /// Flags, as in the C file.
    pub flags: u32,
    /// Processor on which it ended.
    pub cpu: u32,
}

impl Detail {
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            ended: long(bytes, 0)?,
            latency: long(bytes, 8)?,
            address: long(bytes, 16)?,
            after_allocation: long(bytes, 24)?,
            compaction: long(bytes, 32)?,
            reclaim: long(bytes, 40)?,
            locks: long(bytes, 48)?,
            processor: long(bytes, 56)?,
            process: Pid(word(bytes, 64)?),
            thread: Pid(word(bytes, 68)?),
            flags: word(bytes, 72)?,
            cpu: word(bytes, 76)?,
        })
    }
}

/// Short faults of a thread together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// When the last of them ended, ns of CLOCK_MONOTONIC.
    pub ended: u64,
    /// From the beginning of the first to the end of the last, ns.
    pub span: u64,
    /// How long they took, ns.
    pub took: u64,
    /// How many.
    pub faults: u64,
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
}

/// What the programs tell: a fault, or the sum of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEvent {
    /// A fault that took the threshold or longer.
    One(Detail),
    /// Shorter ones.
    Short(Sum),
}

impl FaultEvent {
    /// What a record of the ring says; the two are told apart by their sizes. `None` of one that is cut short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        const SUM_BYTES: usize = 40;
        if bytes.len() != SUM_BYTES {
            return Detail::parse(bytes).map(Self::One);
        }
        Some(Self::Short(Sum {
            ended: long(bytes, 0)?,
            span: long(bytes, 8)?,
            took: long(bytes, 16)?,
            faults: long(bytes, 24)?,
            process: Pid(word(bytes, 32)?),
            thread: Pid(word(bytes, 36)?),
        }))
    }
}

/// What the programs lost or could not pair, and how many details they wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Faults whose end was seen without a beginning: under way when tracing began.
    pub unmatched: u64,
    /// Details that the ring had no room for.
    pub ring_full: u64,
    /// Faults that the histogram had no room for.
    pub histogram_full: u64,
    /// Details written.
    pub recorded: u64,
}

/// The programs at work. Dropping it detaches them.
pub struct Faults {
    _object: Object,
    _events: Vec<Event>,
    processes: Set,
    departures: Bits,
    left: u64,
    histogram: Histogram,
    counters: Counters,
    details: Ring,
    lacks: Vec<&'static str>,
}

/// Has the ends of faults seen, whoever makes them: an event of a thread would miss threads that start while the events
/// of others are opened, and takes time at each switch and each fork.
fn on_every_processor(object: &mut Object) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for processor in Linux::live().processors()? {
        for (what, program) in
            [(Counter::MinorFaults, "leave_minor"), (Counter::MajorFaults, "leave_major")]
        {
            let event = Event::open(&Attributes::sampling(what, 1), Target::Processor(processor))?;
            object.attach_event(program, &event)?;
            event.enable()?;
            events.push(event);
        }
    }
    Ok(events)
}

impl Faults {
    /// Loads and attaches the programs. Faults that take `threshold` ns or longer are told one by one, shorter ones of
    /// a thread each time that they took `sum` together, if at all; a page of `huge_order` or more counts as huge.
    ///
    /// # Errors
    /// This build has no BPF programs, or the kernel does not take them.
    pub fn load(
        points: Points,
        threshold: Nanos,
        sum: Option<Nanos>,
        huge_order: Order,
    ) -> Result<Self> {
        let (threshold, huge_order) =
            (threshold.0.to_ne_bytes(), u32::from(huge_order.0).to_ne_bytes());
        let (sum, within) =
            (sum.unwrap_or(Nanos(u64::MAX)).0.to_ne_bytes(), SUM_WITHIN.0.to_ne_bytes());
        let constants = [
            ("threshold_ns", &threshold[..]),
            ("huge_order", &huge_order[..]),
            ("sum_ns", &sum[..]),
            ("sum_within_ns", &within[..]),
        ];
        let mut object = Object::open("the BPF programs for faults", objects::FAULTS, &constants)?;
        let mut events = Vec::new();
        match points {
            Points::Function => {
                object.attach_exit("leave_function", "handle_mm_fault")?;
                object.attach_entry("enter_function", "handle_mm_fault")?;
            }
            Points::Events => {
                object.load_for_events("leave_minor")?;
                object.load_for_events("leave_major")?;
                object.attach_tracepoint("enter_user", "page_fault_user")?;
                object.attach_tracepoint("enter_kernel", "page_fault_kernel")?;
                events = on_every_processor(&mut object)?;
            }
        }
        object.attach_tracepoint("forked", "sched_process_fork")?;
        object.attach_tracepoint("gone", "sched_process_free")?;
        let mut lacks = Vec::new();
        for (program, tracepoint, what) in DETAILS {
            if object.attach_tracepoint(program, tracepoint).is_err() && !lacks.contains(what) {
                lacks.push(*what);
            }
        }
        Ok(Self {
            _events: events,
            processes: object.map("processes")?,
            departures: object.map("departures")?,
            left: 0,
            histogram: object.map("histogram")?,
            counters: object.map("counters")?,
            details: Ring(object.map("details")?),
            _object: object,
            lacks,
        })
    }

    /// Details that this kernel has no tracepoint for.
    pub fn lacks(&self) -> &[&'static str] {
        &self.lacks
    }

    /// Begins to trace `process` and all that it will start, from this moment on.
    ///
    /// # Errors
    /// The map of processes is full.
    pub fn follow(&mut self, process: Pid) -> Result<()> {
        self.processes
            .insert(process.0, process.0, 0)
            .map_err(|error| super::failed("follow", format_args!("process {process}"), &error))
    }

    /// Traces `process` no longer, from this moment on; those that it started are.
    pub fn leave(&mut self, process: Pid) {
        // It is not in the set if it was never followed, or has ended.
        let _ = self.processes.remove(&process.0);
        // An array has all of its elements.
        self.left += 1;
        let _ = self.departures.set(0, self.left, 0);
    }

    /// Hands what was told since the last call to `each`. What one processor tells is in order, all of it nearly.
    pub fn drain(&mut self, mut each: impl FnMut(FaultEvent)) {
        self.details.read(|bytes| {
            if let Some(told) = FaultEvent::parse(bytes) {
                each(told);
            }
        });
    }

    /// The histogram since the beginning: (flags, bucket, faults).
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn histogram(&self) -> Result<Vec<(u32, u32, u64)>> {
        let unreadable = |error: &(dyn std::error::Error + 'static)| {
            super::failed("read", "the histogram of faults", error)
        };
        let mut all = Vec::new();
        for entry in self.histogram.iter() {
            let ([flags, bucket], counts) = entry.map_err(|error| unreadable(&error))?;
            all.push((flags, bucket, counts.iter().sum()));
        }
        Ok(all)
    }

    /// The counters since the beginning.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn tally(&self) -> Result<Tally> {
        let read = |index: u32| -> Result<u64> {
            let counts = self.counters.get(&index, 0);
            counts.map(|counts| counts.iter().sum()).map_err(|error| {
                let error: Error = super::failed("read", "the counters of faults", &error);
                error
            })
        };
        Ok(Tally {
            unmatched: read(0)?,
            ring_full: read(1)?,
            histogram_full: read(2)?,
            recorded: read(3)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use pagemill_model::fault::SUM;

    use super::*;
    use crate::{memory::mapped::Mapped, page_size};

    /// The programs, following this process; `None`, said, where they cannot be loaded.
    fn following(points: Points, threshold: u64) -> Option<Faults> {
        let faults =
            Faults::load(points, Nanos(threshold), Some(SUM), Order(9)).and_then(|mut faults| {
                faults.follow(Pid::own())?;
                Ok(faults)
            });
        match faults {
            Ok(faults) => Some(faults),
            Err(error) => {
                println!("skipped, {points:?}: {error}");
                None
            }
        }
    }

    #[test]
    fn every_fault_is_counted_once_and_told_with_its_address() {
        for points in [Points::Function, Points::Events] {
            let Some(mut faults) = following(points, 0) else { continue };
            const PAGES: usize = 300;
            let began = std::time::Instant::now();
            let start = crate::memory::touch::pages(PAGES).unwrap();
            let took = began.elapsed().as_nanos() as u64;
            let mut seen = 0;
            let mut pages = std::collections::BTreeSet::new();
            let mut latencies = 0;
            faults.drain(|told| {
                let FaultEvent::One(detail) = told else {
                    panic!("none is below a threshold of 0")
                };
                assert_eq!(detail.process, Pid::own());
                if (start..start + (PAGES * page_size()) as u64).contains(&detail.address) {
                    seen += 1;
                    pages.insert(detail.address / page_size() as u64);
                    latencies += detail.latency;
                }
            });
            assert_eq!(pages.len(), PAGES, "{points:?}");
            // Where another test forks just then, a page is taken away before it is written, and faults again.
            assert!((PAGES..PAGES + PAGES / 10).contains(&seen), "{points:?}: {seen}");
            assert!((1..=took).contains(&latencies), "{latencies} ns of {took}");
            // Other threads of this process fault on between the two: what was recorded is read first.
            let tally = faults.tally().unwrap();
            let counted: u64 = faults.histogram().unwrap().iter().map(|(_, _, n)| n).sum();
            assert!(counted >= tally.recorded && tally.recorded >= seen as u64, "{tally:?}");
            assert_eq!((tally.ring_full, tally.histogram_full), (0, 0));
        }
    }

    /// Once, all that was known of them was how many took how long, not when.
    #[test]
    fn short_faults_are_told_by_their_sum_thread_by_thread() {
        for points in [Points::Function, Points::Events] {
            let Some(mut faults) = following(points, u64::MAX) else { continue };
            const PAGES: usize = 3000;
            // SAFETY: it takes and touches no memory.
            let me = Pid(unsafe { libc::gettid() } as u32);
            let began = std::time::Instant::now();
            crate::memory::touch::pages(PAGES).unwrap();
            let elapsed = began.elapsed().as_nanos() as u64;
            let mut mine = Vec::new();
            faults.drain(|told| match told {
                FaultEvent::Short(sum) if sum.thread == me => mine.push(sum),
                FaultEvent::Short(_) => {}
                FaultEvent::One(detail) => panic!("{detail:?} took longer than for ever"),
            });
            assert!(!mine.is_empty(), "{points:?}");
            assert!(mine.is_sorted_by_key(|sum| sum.ended), "{mine:?}");
            for sum in &mine {
                assert_eq!(sum.process, Pid::own());
                assert!((SUM.0..=sum.span).contains(&sum.took) && sum.faults > 0, "{sum:?}");
            }
            let all = |of: fn(&Sum) -> u64| mine.iter().map(of).sum::<u64>();
            assert!(all(|sum| sum.took) <= elapsed, "{elapsed}: {mine:?}");
            // Others of the test's thread go with them, a few.
            assert!(all(|sum| sum.faults) <= PAGES as u64 + 100, "{mine:?}");
        }
    }

    /// Where one thread writes to what another changes the protection of, it waits for the lock of that mapping.
    #[test]
    fn what_waited_for_a_lock_says_so_and_no_moment_is_in_two_parts() {
        const MEMORY: usize = 64 << 20;
        const HALF: usize = MEMORY / 2;
        for points in [Points::Function, Points::Events] {
            let Some(mut faults) = following(points, 50_000) else { continue };
            if faults.lacks().contains(&LOCKS) {
                println!("skipped, {points:?}: this kernel does not tell of locks");
                continue;
            }
            let memory = Mapped::anonymous(MEMORY, 0).unwrap();
            memory.advise(libc::MADV_NOHUGEPAGE).unwrap();
            let (page, start) = (page_size(), memory.address());
            let touch =
                |from: usize| (from..from + HALF).step_by(page).for_each(|at| memory.touch(at));
            touch(0);
            let (mut waited, mut parts_fit) = (0, true);
            let done = AtomicBool::new(false);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        for execute in [libc::PROT_EXEC, 0] {
                            let access = libc::PROT_READ | libc::PROT_WRITE | execute;
                            // SAFETY: the mapping outlives this thread, and can be written all the time.
                            let outcome =
                                unsafe { libc::mprotect(start as *mut _, MEMORY, access) };
                            assert_eq!(outcome, 0);
                        }
                    }
                });
                while waited == 0 && std::time::Instant::now() < end {
                    memory.advise_on(HALF, HALF, libc::MADV_DONTNEED).unwrap();
                    touch(HALF);
                    faults.drain(|told| {
                        let FaultEvent::One(detail) = told else { return };
                        let Detail {
                            compaction, reclaim, locks, processor, after_allocation, ..
                        } = detail;
                        let parts = [compaction, reclaim, locks, processor, after_allocation];
                        parts_fit &= parts.iter().sum::<u64>() <= detail.latency;
                        waited += locks;
                    });
                }
                done.store(true, Relaxed);
            });
            assert!(waited > 0 && parts_fit, "{points:?}: {waited} ns for locks, {parts_fit}");
        }
    }
}

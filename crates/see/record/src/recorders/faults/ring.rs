//! Faults timed by pairs of samples in rings: software events only, so it works without privileges.
//!
//! A thread of its own reads the rings, pairs the samples and keeps what `record` has not fetched yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pagemill_kernel::trace::perf_event::{Attributes, Counter, Event, Record, Ring, Target, wait};
use pagemill_kernel::{Error, Kind, Linux, Result, clock};
use pagemill_model::fault::Flags;
use pagemill_model::{Event as ModelEvent, Fault, Nanos, Pid, latency};

use super::pairing::{Mark, Pairing, Sample};
use super::short::ShortFaults;

/// Bytes of a ring, best first: what a user may lock differs.
const SIZES: [usize; 4] = [4 << 20, 1 << 20, 256 << 10, 64 << 10];
/// How often the threads of a process are listed, until none has appeared meanwhile.
const ATTEMPTS: usize = 4;
/// For how long the reader sleeps at most.
const PAUSE: Duration = Duration::from_millis(20);

/// What the reader has and nobody has fetched.
#[derive(Default)]
struct Unfetched {
    told: Vec<ModelEvent>,
    /// Since the beginning: faults by flags and bucket.
    histogram: HashMap<(u32, u32), u64>,
    lost_records: u64,
    unmatched: u64,
}

/// The rings and their reader.
pub struct Rings {
    shelf: Arc<Mutex<Unfetched>>,
    stop: Arc<AtomicBool>,
    /// Hears when the events are off.
    off: Receiver<()>,
    reader: Option<JoinHandle<()>>,
    in_kernel: bool,
}

/// Rings whose events are not counted yet.
pub struct Prepared {
    reader: Reader,
    in_kernel: bool,
}

impl Prepared {
    /// Begins.
    pub fn begin(self) -> Result<Rings> {
        let Self { reader, in_kernel } = self;
        reader.events().try_for_each(Event::enable)?;
        let shelf = Arc::<Mutex<Unfetched>>::default();
        let stop = Arc::<AtomicBool>::default();
        let (theirs, ends) = (Arc::clone(&shelf), Arc::clone(&stop));
        let (tell, off) = channel();
        let reader = std::thread::Builder::new()
            .name("fault-rings".into())
            .spawn(move || reader.run(&theirs, &ends, &tell))
            .map_err(|error| Error::io("start", "the reader of the rings", error))?;
        Ok(Rings { shelf, stop, off, reader: Some(reader), in_kernel })
    }
}

impl Rings {
    /// Opens events that will time the faults of `process` and of all that it will start. Those of the threshold or
    /// longer are told one by one, shorter ones by sums of so long, if at all.
    pub fn prepare(
        linux: &Linux,
        process: Pid,
        (threshold, sum): (Nanos, Option<Nanos>),
    ) -> Result<Prepared> {
        let processors = linux.processors()?;
        let mut left = ATTEMPTS;
        loop {
            let threads = linux.threads(process)?;
            let mut in_kernel = true;
            let opened = match open(&processors, &threads, true) {
                Err(error) if error.kind() == Kind::Permission => {
                    in_kernel = false;
                    open(&processors, &threads, false)?
                }
                opened => opened?,
            };
            left -= 1;
            // A thread that another one started before that one had its events has none.
            let all_known = linux.threads(process)?.iter().all(|now| threads.contains(now));
            if all_known || left == 0 {
                let (rings, marks, others) = opened;
                let (pairing, short) = (Pairing::default(), ShortFaults::new(sum));
                let reader = Reader { rings, marks, others, threshold, pairing, short };
                return Ok(Prepared { reader, in_kernel });
            }
        }
    }

    /// Whether faults inside system calls are seen.
    pub fn in_kernel(&self) -> bool {
        self.in_kernel
    }

    /// Switches the events off.
    pub fn halt(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // If the reader is gone its events are, too.
        let _ = self.off.recv();
    }

    /// Stops the reader, after it has read what the rings hold.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // If it panicked the process has aborted.
            let _ = reader.join();
        }
    }

    /// The slow faults since the last call, and short ones by their sums.
    pub fn drain(&self) -> Vec<ModelEvent> {
        std::mem::take(&mut self.shelf().told)
    }

    /// All faults since the beginning: (flags, bucket, number).
    pub fn histogram(&self) -> Vec<(u32, u32, u64)> {
        let shelf = self.shelf();
        shelf.histogram.iter().map(|(&(flags, bucket), &n)| (flags, bucket, n)).collect()
    }

    /// Faults of which a sample was lost, at most.
    pub fn lost(&self) -> u64 {
        self.shelf().lost_records
    }

    /// Ends without a beginning.
    pub fn unmatched(&self) -> u64 {
        self.shelf().unmatched
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Unfetched> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Rings, what each event's samples mark, and the events that share the rings.
type Opened = (Vec<Ring>, HashMap<u64, Mark>, Vec<Event>);

fn open(processors: &[u32], threads: &[Pid], in_kernel: bool) -> Result<Opened> {
    const EVENTS: [(Counter, Mark); 3] = [
        (Counter::PageFaults, Mark::Begin),
        (Counter::MinorFaults, Mark::End { major: false }),
        (Counter::MajorFaults, Mark::End { major: true }),
    ];
    let (mut rings, mut marks, mut others) = (Vec::<Ring>::new(), HashMap::new(), Vec::new());
    for &processor in processors {
        let mut ring: Option<Ring> = None;
        for &thread in threads {
            for (what, mark) in EVENTS {
                let attributes = Attributes::sampling(what, 1).inherited().wake_at(32 << 10);
                let attributes = if in_kernel { attributes } else { attributes.user_only() };
                let target = Target::ThreadOn(thread, processor);
                let event = match Event::open(&attributes, target) {
                    Ok(event) => event,
                    // It has ended since the list was made.
                    Err(error) if error.kind() == Kind::Gone && threads.len() > 1 => break,
                    Err(error) => return Err(error),
                };
                marks.insert(event.identifier()?, mark);
                match &ring {
                    Some(ring) => {
                        event.share_ring(ring.event())?;
                        others.push(event);
                    }
                    None => ring = Some(mapped(event, &attributes, target, &mut marks, mark)?),
                }
            }
        }
        rings.extend(ring);
    }
    if rings.is_empty() {
        return Err(Error::new(Kind::Gone, "trace", "the process", "all its threads have ended"));
    }
    Ok((rings, marks, others))
}

/// The largest ring that this user may lock.
fn mapped(
    mut event: Event,
    attributes: &Attributes,
    target: Target,
    marks: &mut HashMap<u64, Mark>,
    mark: Mark,
) -> Result<Ring> {
    let mut sizes = SIZES.into_iter().peekable();
    loop {
        let Some(size) = sizes.next() else {
            return Err(Error::new(Kind::OutOfMemory, "map", "a ring", "no size is allowed"));
        };
        match Ring::map(event, size) {
            Err(_) if sizes.peek().is_some() => {
                event = Event::open(attributes, target)?;
                marks.insert(event.identifier()?, mark);
            }
            mapped => return mapped,
        }
    }
}

struct Reader {
    rings: Vec<Ring>,
    marks: HashMap<u64, Mark>,
    others: Vec<Event>,
    threshold: Nanos,
    pairing: Pairing,
    short: ShortFaults,
}

impl Reader {
    fn events(&self) -> impl Iterator<Item = &Event> {
        self.rings.iter().map(Ring::event).chain(&self.others)
    }

    fn run(mut self, shelf: &Mutex<Unfetched>, stop: &AtomicBool, off: &Sender<()>) {
        while !stop.load(Ordering::Relaxed) {
            if wait(&self.rings, PAUSE).is_err() {
                std::thread::sleep(PAUSE);
            }
            self.read(shelf, false);
        }
        for event in self.events() {
            // It fails for none that is open.
            let _ = event.disable();
        }
        // Nobody may want to know.
        let _ = off.send(());
        self.read(shelf, true);
    }

    fn read(&mut self, shelf: &Mutex<Unfetched>, all: bool) {
        let now = u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX);
        let Self { rings, marks, pairing, threshold, short, .. } = self;
        let mut lost = 0;
        for ring in rings {
            ring.read(|record| match record {
                Record::Sample(sample) => {
                    if let Some(&mark) = marks.get(&sample.identifier) {
                        pairing.sample(Sample {
                            mark,
                            time: sample.time,
                            process: sample.process,
                            thread: sample.thread,
                            address: sample.address,
                        });
                    }
                }
                Record::Lost(records) => lost += records,
            });
        }
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.lost_records += lost;
        pairing.pair(if all { u64::MAX } else { now }, |paired| {
            let flags = match paired.end.mark {
                Mark::End { major: true } => Flags::MAJOR as u32,
                _ => 0,
            };
            let latency = Nanos(paired.latency);
            *shelf.histogram.entry((flags, latency::bucket(latency))).or_default() += 1;
            let Sample { time, process, thread, address, .. } = paired.end;
            if latency >= *threshold {
                shelf.told.push(ModelEvent::Fault(Box::new(Fault {
                    time: Nanos(time),
                    latency,
                    address: Some(address),
                    pid: Some(process.into()),
                    tid: Some(thread.into()),
                    flags: Some(flags.into()),
                    ..Fault::default()
                })));
            } else if let Some(sum) = short.add((process, thread), time, paired.latency) {
                shelf.told.push(ModelEvent::FaultSum(Box::new(sum)));
            }
        });
        shelf.unmatched = pairing.unmatched();
    }
}

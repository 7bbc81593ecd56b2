//! What the accesses of a recording add up to, kept beside them so that they are read once.
//!
//! `record` folds while it records ([`Live`]) and writes the file when it ends; else the first `report` makes it. It
//! holds the views of the folds over accesses, with all names found, so that a recording opens as fast as its summary
//! is read, and keeps its names when programs are replaced later.
//!
//! Always true: a summary is used only for the parts that it was made of, and by the version of these folds that made
//! it; without one everything works, slower. One that cannot be written is no error: the next reader tries again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use pagemill_analysis::accesses::{AccessFold, AccessView};
use pagemill_analysis::heat::{Bounds, HeatFold, HeatView};
use pagemill_kernel::Linux;
use pagemill_launch::progress::Progress;
use pagemill_model::access::Access;
use pagemill_model::recording::{Meta, Reader, State, keep_summary};
use pagemill_model::sums::sum;
use pagemill_model::{Event, EventKind, Fold as _, Nanos, Pid, Source as _};
use serde::{Deserialize, Serialize};

use crate::symbols::Files;

/// Version of the views in the file: whatever changes what they say raises it.
const VERSION: u64 = 11;
/// Versions before are read as well: what they have names of may be gone by now. They do not tell what rested until a
/// program ended or when files were used last, count pages of processes that had, or those of shared memory for each
/// process that touched them.
const BEFORE: RangeInclusive<u64> = 6..=10;
/// The last that told last touches by the first one in their interval.
const BY_FIRST_IN_INTERVAL: u64 = 6;

/// The kinds of events that it stands for.
const KINDS: [EventKind; 3] = [EventKind::Access, EventKind::Allocation, EventKind::Touched];

/// The views.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    version: u64,
    fingerprint: String,
    /// Pages, by mapping and thread.
    pub accesses: AccessView,
    /// Objects over time.
    pub heat: HeatView,
}

/// Pages that are told apart on a machine with so many bytes of memory: twice as many as it has. No program of its own
/// has more at a time, and they take a quarter of its memory at most (480 bytes a page in both folds).
fn pages_of(memory: u64) -> usize {
    const LEAST: u64 = 1 << 20;
    let most = Bounds::default().pages as u64;
    (2 * (memory >> 12)).clamp(LEAST, most) as usize
}

/// How many pages are looked at. A build for tests is some thirty times slower, and meets made up recordings: its tests
/// ask for fewer.
fn bounds() -> Bounds {
    let asked = cfg!(debug_assertions).then(|| std::env::var("PAGEMILL_TEST_HEAT").ok()).flatten();
    match asked.and_then(|pages| pages.parse().ok()) {
        Some(pages) => Bounds { looks: 32 * pages as u64, pages },
        None => {
            let memory = Linux::live().load().map_or(0, |load| load.memory);
            Bounds { pages: pages_of(memory), ..Bounds::default() }
        }
    }
}

/// The folds that it is made by.
#[derive(Debug)]
pub struct Folds {
    fingerprint: String,
    accesses: AccessFold,
    heat: HeatFold<Files>,
}

impl Folds {
    /// Nothing yet, of a recording that was just opened.
    pub fn new(reader: &Reader) -> Self {
        Self::within(reader, bounds())
    }

    /// The same, that looks at no more pages than that.
    pub fn within(reader: &Reader, bounds: Bounds) -> Self {
        let meta = reader.meta();
        let page = meta.page_size.0;
        let events = meta.parts.get("accesses").is_some_and(|parts| parts.rows > 0);
        Self { fingerprint: reader.fingerprint(), ..Self::of(meta.started, page, events, bounds) }
    }

    /// Of a recording in the making.
    fn of(started: Nanos, page: u64, events: bool, bounds: Bounds) -> Self {
        Self {
            fingerprint: String::new(),
            accesses: AccessFold::new(started, page, bounds.pages),
            heat: HeatFold::new(started, page, events, bounds, Files::default()),
        }
    }

    /// Takes in what happened to a process up to some moment, all of it; what is left of it when somebody is `waiting`.
    fn batch(&mut self, mut batch: Batch, waiting: &AtomicBool) -> Option<Batch> {
        batch.accesses.sort_by_key(|access| access.time);
        batch.others.sort_by_key(Event::time);
        let mut others = batch.others.into_iter().peekable();
        let mut accesses = batch.accesses.into_iter();
        let mut event = Event::Access(Box::default());
        while let Some(brief) = accesses.next() {
            // What lies there comes before who accesses it.
            while let Some(other) = others.next_if(|other| other.time() <= brief.time) {
                self.event(&other);
            }
            if let Event::Access(row) = &mut event {
                **row = brief.row();
            }
            self.event(&event);
            if accesses.len().is_multiple_of(1024) && waiting.load(Ordering::Relaxed) {
                return Some(Batch { accesses: accesses.collect(), others: others.collect() });
            }
        }
        others.for_each(|other| self.event(&other));
        None
    }

    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        self.accesses.event(event);
        self.heat.event(event);
    }

    /// Of a recording with this header.
    fn summary(self, meta: &Meta) -> Summary {
        let Self { fingerprint, accesses, mut heat } = self;
        if meta.exit_status.is_some() || meta.exit_signal.is_some() {
            heat.ended();
        }
        Summary { version: VERSION, fingerprint, accesses: accesses.view(), heat: heat.view() }
    }

    /// The summary, kept in the recording if that is whole.
    pub fn keep(self, recording: &Path, reader: &Reader) -> Summary {
        let summary = self.summary(reader.meta());
        keep(recording, reader, &summary);
        summary
    }
}

/// An access without what is not folded.
#[derive(Clone, Copy, Debug)]
struct FoldedAccess {
    time: Nanos,
    address: u64,
    instruction: u64,
    pid: Pid,
    tid: Pid,
    flags: Option<u32>,
}

impl FoldedAccess {
    /// Of a row that counts as one access; `None` if it is more, or does not fit.
    fn of(row: &Access) -> Option<Self> {
        let small = |value: Option<u64>| u32::try_from(value.unwrap_or(0)).ok();
        Some(Self {
            time: row.time,
            address: row.address?,
            instruction: row.instruction.unwrap_or(0),
            pid: Pid(small(row.pid)?),
            tid: Pid(small(row.tid)?),
            flags: row.flags.map(u32::try_from).transpose().ok()?,
        })
        .filter(|_| row.count.is_none())
    }

    fn row(self) -> Access {
        Access {
            time: self.time,
            pid: Some(self.pid.into()),
            tid: Some(self.tid.into()),
            address: Some(self.address),
            instruction: Some(self.instruction),
            flags: self.flags.map(u64::from),
            ..Access::default()
        }
    }
}

/// What happened to one process.
#[derive(Debug, Default)]
struct Batch {
    accesses: Vec<FoldedAccess>,
    others: Vec<Event>,
}

/// Accesses that may wait to be folded; then the folds are given up, and the recording is read for them when it ends.
const WAITING: usize = 4 << 20;

/// The folds of a recording in the making, in a thread of their own, so that the recorder need not wait for them. It
/// yields to all others, which on a busy machine may leave it next to nothing: so what it has not done when the program
/// has ended is done by who waits for it.
///
/// Mappings are told after the accesses to them, as of an earlier moment. So what happened to a process is folded, by
/// time, when its interval has ended and all of it is known.
#[derive(Debug)]
pub struct Live {
    /// The folds, and what is still to be taken in; none where no thread could be started.
    thread: Option<JoinHandle<(Folds, Vec<Batch>)>>,
    /// Somebody waits for the thread.
    waited_for: Arc<AtomicBool>,
    /// None: given up.
    to: Option<SyncSender<Batch>>,
    /// By process.
    pending: BTreeMap<Pid, Batch>,
    /// Complete, while the folds are busy.
    ready: VecDeque<Batch>,
    waiting: usize,
    /// Accesses handed in.
    accesses: u64,
}

impl Live {
    /// Nothing yet. `events`: whether accesses will be told one by one.
    pub fn begin(started: Nanos, page: u64, events: bool) -> Self {
        let (to, from) = sync_channel::<Batch>(2);
        let waited_for = Arc::new(AtomicBool::new(false));
        let waiting = Arc::clone(&waited_for);
        let fold = move || {
            // The program that is recorded comes first: names of a large program take a while.
            pagemill_kernel::process::scheduling::yield_to_others();
            let mut folds = Folds::of(started, page, events, bounds());
            let mut left = Vec::new();
            for batch in from {
                match waiting.load(Ordering::Relaxed) {
                    true => left.push(batch),
                    false => left.extend(folds.batch(batch, &waiting)),
                }
            }
            (folds, left)
        };
        // Where there are no more threads, all of it is made from the recording.
        let thread = thread::Builder::new().spawn(fold).ok();
        let to = thread.as_ref().map(|_| to);
        let (pending, ready) = (BTreeMap::new(), VecDeque::new());
        Self { thread, waited_for, to, pending, ready, waiting: 0, accesses: 0 }
    }

    /// Takes in an event that was written.
    pub fn event(&mut self, event: &Event) {
        if self.to.is_none() {
            return;
        }
        let pid = match event {
            Event::Access(row) => row.pid,
            Event::Touched(row) => row.pid,
            Event::Mapping(row) => row.pid,
            Event::Allocation(row) => row.pid,
            _ => return,
        };
        let batch = self.pending.entry(Pid::told(pid.unwrap_or(0))).or_default();
        match event {
            Event::Access(row) => match FoldedAccess::of(row) {
                Some(brief) => batch.accesses.push(brief),
                None => self.to = None,
            },
            _ => batch.others.push(event.clone()),
        }
        self.accesses += u64::from(matches!(event, Event::Access(_)));
        self.waiting += 1;
        if self.waiting > WAITING {
            self.to = None;
        }
        if self.to.is_none() {
            (self.pending, self.ready) = (BTreeMap::new(), VecDeque::new());
        }
    }

    /// All that happened to a process so far has been handed in. `wait` for the folds, if they are behind.
    pub fn watermark(&mut self, pid: Pid, wait: bool) {
        self.ready.extend(self.pending.remove(&pid));
        let Some(to) = &self.to else { return };
        while let Some(batch) = self.ready.pop_front() {
            let size = batch.accesses.len() + batch.others.len();
            let sent = match wait {
                true => to.send(batch).map_err(|error| TrySendError::Disconnected(error.0)),
                false => to.try_send(batch),
            };
            match sent {
                Ok(()) => self.waiting = self.waiting.saturating_sub(size),
                Err(TrySendError::Full(batch)) => return self.ready.push_front(batch),
                Err(TrySendError::Disconnected(_)) => return self.to = None,
            }
        }
    }

    /// The recording at `path` is whole: its summary is kept, or made from it.
    ///
    /// # Errors
    /// It is made from the recording, and that cannot be read.
    pub fn finish(mut self, recording: &Path) -> Result<Summary> {
        self.waited_for.store(true, Ordering::Relaxed);
        for pid in self.pending.keys().copied().collect::<Vec<_>>() {
            self.watermark(pid, true);
        }
        self.watermark(Pid(0), true);
        let whole = self.to.take().is_some();
        // A panic of the folds is no reason to lose more than their time.
        let folded = self.thread.and_then(|thread| thread.join().ok());
        let reader = Reader::open(recording)?;
        let meta = reader.meta();
        let made = folded.filter(|_| whole).map(|(mut folds, left)| {
            let nobody = AtomicBool::new(false);
            for batch in left {
                folds.batch(batch, &nobody);
            }
            folds.summary(meta)
        });
        let rows = meta.parts.get("accesses").map_or(0, |parts| parts.rows);
        match made {
            Some(mut summary) if rows == self.accesses && meta.losses.removed_samples == 0 => {
                summary.fingerprint = reader.fingerprint();
                keep(recording, &reader, &summary);
                Ok(summary)
            }
            _ => of(recording),
        }
    }
}

/// Puts the summary into a recording that is whole.
fn keep(recording: &Path, reader: &Reader, summary: &Summary) {
    if reader.is_redacted() {
        return;
    }
    if reader.meta().state == State::Finished && reader.missing().is_none() {
        // A recording that may only be read is as good.
        let _ = write(recording, summary);
    }
}

fn write(recording: &Path, summary: &Summary) -> Result<()> {
    let text = serde_json::to_vec(summary).context("the summary")?;
    Ok(keep_summary(recording, &text)?)
}

/// The summary that is kept in a recording, if it is of what is there now; the reader then passes over what it was
/// made of.
pub fn read(reader: &mut Reader) -> Option<Summary> {
    // What is kept names everything.
    if reader.is_redacted() {
        return None;
    }
    let mut summary: Summary = serde_json::from_slice(&reader.take_summary()?).ok()?;
    // What it was made of may have been changed since; then reading says so.
    let fits = (summary.version == VERSION || BEFORE.contains(&summary.version))
        && summary.fingerprint == reader.fingerprint()
        && KINDS.iter().all(|kind| reader.is_intact(kind.dataset()));
    fits.then(|| {
        if summary.version == BY_FIRST_IN_INTERVAL {
            let longest = summary.accesses.lengths.iter().max();
            summary.heat.until_intervals_end(longest.copied().unwrap_or(0));
        }
        KINDS.iter().for_each(|kind| reader.pass_over(kind.dataset()));
        summary
    })
}

/// How far the reading of accesses is: millions take a while.
pub struct Reading {
    line: Progress,
    read: u64,
}

impl Reading {
    /// Of a recording whose rows are to be read.
    pub fn new(reader: &Reader) -> Self {
        let parts = &reader.meta().parts;
        let rows = KINDS.iter().filter_map(|kind| parts.get(kind.dataset())).map(|set| set.rows);
        Self { line: Progress::of("reading accesses", sum(rows)), read: 0 }
    }

    /// One more was read.
    pub fn event(&mut self) {
        self.read += 1;
        if self.read.is_multiple_of(1 << 20) {
            self.line.at(self.read);
        }
    }
}

/// The summary of a recording: the kept one, or a new one that is kept.
///
/// # Errors
/// It is no recording, or a part of it cannot be read.
pub fn of(recording: &Path) -> Result<Summary> {
    of_within(recording, bounds())
}

/// The same, by a look at no more pages than that.
///
/// # Errors
/// As of [`of`].
pub fn of_within(recording: &Path, bounds: Bounds) -> Result<Summary> {
    from(recording, &mut Reader::open(recording)?, bounds)
}

/// The summary of the recording that was just opened there, with its names left out where the reader leaves them out.
///
/// # Errors
/// As of [`of`].
pub fn opened(recording: &Path, reader: &mut Reader) -> Result<Summary> {
    from(recording, reader, bounds())
}

fn from(recording: &Path, reader: &mut Reader, bounds: Bounds) -> Result<Summary> {
    if let Some(kept) = read(reader) {
        return Ok(kept);
    }
    let mut folds = Folds::within(reader, bounds);
    let mut reading = Reading::new(reader);
    while let Some(event) = reader.next_event()? {
        reading.event();
        folds.event(&event);
    }
    Ok(folds.keep(recording, reader))
}

#[cfg(test)]
mod tests {
    use pagemill_model::access::Touched;
    use pagemill_model::fault::Flags;
    use pagemill_model::recording::Writer;
    use pagemill_model::{Allocation, Bytes, MappingSample};

    use super::*;

    const PAGE: u64 = 4096;

    /// Two processes; each interval's mappings are told after its accesses, as of its beginning.
    fn events() -> Vec<Event> {
        let mut events = Vec::new();
        for interval in 0..3 {
            let began = interval * 1_000_000;
            for pid in [7, 8] {
                let base = 0x10_0000 * (interval + 1);
                for page in 0..50 {
                    events.push(Event::Access(Box::new(Access {
                        time: Nanos(began + 1000 + page * 7 + pid),
                        pid: Some(pid),
                        tid: Some(pid + page % 3),
                        address: Some(base + page * PAGE + 8),
                        instruction: Some(0x1000 + page % 5),
                        flags: Some(if page % 2 == 0 { Flags::WRITE } else { 0 }),
                        ..Access::default()
                    })));
                }
                events.push(Event::Mapping(Box::new(MappingSample {
                    time: Nanos(began),
                    pid: Some(pid),
                    start: Some(base),
                    end: Some(base + 40 * PAGE),
                    name: Some(format!("/file {interval}")),
                    ..MappingSample::default()
                })));
                events.push(Event::Allocation(Box::new(Allocation {
                    time: Nanos(began + 1),
                    pid: Some(pid),
                    address: Some(base + 30 * PAGE),
                    size: Some(5 * PAGE),
                    stack: Some(vec![0x1000]),
                })));
                events.push(Event::Touched(Box::new(Touched {
                    time: Nanos(began + 1_000_000),
                    pid: Some(pid),
                    number: Some(interval),
                    starts: Some(vec![base]),
                    pages: Some(vec![50]),
                    ..Touched::default()
                })));
            }
        }
        events
    }

    /// 2^25 pages were 12 GB on any machine.
    #[test]
    fn what_a_made_up_recording_takes_goes_by_the_memory_of_the_machine() {
        for gib in [4, 24, 64] {
            assert!(480 * pages_of(gib << 30) as u64 * 4 < gib << 30, "{gib} GiB");
        }
        assert_eq!(pages_of(24 << 30), 12 << 20);
        assert_eq!((pages_of(0), pages_of(u64::MAX)), (1 << 20, 1 << 25));
    }

    #[test]
    fn what_is_folded_while_it_is_recorded_is_what_a_reading_gives() {
        let room = tempfile::tempdir().unwrap();
        let meta = Meta { page_size: Bytes(PAGE), ..Meta::default() };
        let mut writer = Writer::create(room.path().join("one"), meta, false, None).unwrap();
        let mut live = Live::begin(Nanos(0), PAGE, true);
        for event in events() {
            live.event(&event);
            writer.event(&event).unwrap();
            if let Event::Touched(row) = &event {
                live.watermark(Pid::told(row.pid.unwrap()), true);
            }
        }
        let path = writer.finish(Nanos(4_000_000)).unwrap();
        let mut folded = live.finish(&path).unwrap();
        assert_eq!((folded.heat.accesses, folded.accesses.total.pages), (300, 300));
        let kept = read(&mut Reader::open(&path).unwrap()).unwrap();
        assert_eq!(kept.heat, folded.heat);
        let mut reader = Reader::open(&path).unwrap();
        let mut folds = Folds::new(&reader);
        while let Some(event) = reader.next_event().unwrap() {
            folds.event(&event);
        }
        let mut again = folds.summary(reader.meta());
        // Threads have other numbers, by which of the processes was folded first.
        for summary in [&mut folded, &mut again] {
            let heat = &mut summary.heat;
            heat.threads.sort_unstable();
            for object in &mut heat.objects {
                object.first_by.clear();
                object.cells.iter_mut().for_each(|cell| cell.2.threads = 0);
                object.total.threads = 0;
            }
        }
        assert_eq!((&again.accesses, &again.heat), (&folded.accesses, &folded.heat));
    }

    #[test]
    fn folds_that_fall_behind_are_given_up_and_made_by_reading() {
        let room = tempfile::tempdir().unwrap();
        let meta = Meta { page_size: Bytes(PAGE), ..Meta::default() };
        let mut writer = Writer::create(room.path().join("one"), meta, false, None).unwrap();
        let mut live = Live::begin(Nanos(0), PAGE, true);
        for event in events() {
            writer.event(&event).unwrap();
        }
        live.to = None;
        let path = writer.finish(Nanos(4_000_000)).unwrap();
        assert_eq!(live.finish(&path).unwrap().heat.accesses, 300);
    }
}

//! `--with accesses`: which pages a program touches, all of them, and who touched them first.
//!
//! The tracer owns the program and the loop; this is its sink. It writes each interval's pages and each
//! access as they come, and says what lay where: mappings by the names they had before the tracer changed
//! them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::Stat;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Linux, clock, process::injected};
use pagemill_model::access::{Access, AccessSetup, Touched};
use pagemill_model::fault::Flags;
use pagemill_model::recording::{NotMeasured, Writer};
use pagemill_model::units::counted;
use pagemill_model::{Bytes, Event, MappingSample, Nanos, PageRange, Pid};
use pagemill_tracer::{
    Ended, FaultSource, Granule, Interval, Options, Sink, SinkResult, Stopped, Tracer,
};

use super::allocations::Allocations;
use super::code::{Code, LONGEST};
use super::mappings::layout;
use super::written::{End, Fault, Written};
use crate::summary::Live;
use pagemill_launch::program::ExecArguments;

/// The tracer's name for memory that it made droppable.
pub(super) const OURS: &str = "/memfd:pagemill";

/// How much a fault maps where it may map neighbours: the kernel's default.
pub const AROUND: u64 = 64 << 10;

/// A program under the tracer.
pub struct Traced {
    tracer: Tracer,
    options: Options,
    /// Who asks for memory, or why that is not known.
    allocations: Result<Allocations>,
    /// Before the program's first instruction.
    launched: Nanos,
}

/// How a traced program ended, and what of it was written.
pub struct TraceOutcome {
    /// How it ended.
    pub ended: Ended,
    /// Intervals.
    pub intervals: u64,
    /// Accesses.
    pub accesses: u64,
    /// Why writing stopped before the program did.
    pub failure: Option<pagemill_model::Error>,
    /// What was written, folded.
    pub live: Live,
    /// Why the program was let go before its end.
    pub abandoned: Option<String>,
}

impl TraceOutcome {
    /// Finishes the recording and says what came of it; `deserted` by the process that was to pass the status on.
    pub fn conclude(self, stat: &Stat, deserted: bool, mut writer: Writer) {
        let Self { ended, intervals, accesses, failure, live, abandoned } = self;
        let meta = writer.meta_mut();
        let killed = || {
            let told = deserted && ended == Ended::LetGo;
            told.then(|| {
                "the recorder was killed, and the program's status is not passed on".to_owned()
            })
        };
        if let Some(why) = abandoned.or_else(killed) {
            notice!("the program was let go and runs on, unrecorded from then on: {why}");
            let at = Nanos::from(clock::monotonic()).since(meta.started);
            let what = format!("the program from {} on, which was let go then", at.plain());
            meta.lacks(what, why);
        }
        (meta.exit_status, meta.exit_signal) = match ended {
            Ended::Exited(code) => (Some(code as u64), None),
            Ended::Killed(signal) => (Some(128 + signal as u64), Some(signal as u64)),
            Ended::LetGo => (None, None),
        };
        let untraced = meta.accesses.as_ref().map_or(0, |setup| setup.untraced.len());
        let finished = match failure {
            Some(error) => Err(error),
            None => writer.finish(Nanos::from(clock::monotonic())),
        };
        let path = match finished {
            Ok(path) => path,
            Err(error) => {
                let error = anyhow::Error::from(error);
                notice!("recording failed, the program was not disturbed: {error:#}");
                return;
            }
        };
        // While the files of the program are what they were.
        if let Err(error) = live.finish(&path) {
            notice!("{error:#}");
        }
        let (comm, pid, word) = (&stat.comm, stat.pid, pagemill_model::shell::quoted(&path));
        let path = path.display();
        let nothing = accesses == 0;
        let intervals = counted(intervals, "interval", "intervals");
        let accesses = counted(accesses, "access", "accesses");
        eprintln!("recorded {intervals}, {accesses} of {comm} ({pid}) in {path}");
        if nothing {
            notice!("there is nothing in it: {comm} ended at once, or touched no memory meanwhile");
        }
        if let Ended::Killed(signal) = ended {
            eprintln!("{comm} was ended by signal {signal}");
        }
        if untraced > 0 {
            let untraced =
                counted(untraced as u64, "range or process was", "ranges or processes were");
            eprintln!("{untraced} not traced; the report lists them");
        }
        eprintln!("next: pagemill report {word}");
    }
}

impl Traced {
    /// Starts `command`, whose file is `path`. `Err` of the inner result: it cannot be executed.
    ///
    /// # Errors
    /// The program cannot be traced.
    pub fn launch(
        linux: Linux,
        options: Options,
        path: &Path,
        command: &Command,
        name: &OsStr,
        names: bool,
    ) -> Result<std::io::Result<Self>> {
        let launched = now();
        let (allocations, variables) = match names.then(|| {
            let preloaded = std::env::var_os("LD_PRELOAD");
            Allocations::begin(path, None, preloaded.as_deref())
        }) {
            Some(Ok((ring, variables))) => (Ok(ring), variables),
            Some(Err(why)) => (Err(why), Vec::new()),
            None => (Err(anyhow::anyhow!("--no-sites")), Vec::new()),
        };
        let mut words = ExecArguments::of(path, command, name)?;
        words.set(&variables)?;
        let started = Tracer::launch(
            linux,
            options.clone(),
            &words.path,
            &words.arguments,
            &words.environment,
        )?;
        Ok(started.map(|tracer| Self { tracer, options, allocations, launched }))
    }

    /// Takes over a running process.
    ///
    /// # Errors
    /// As of [`Tracer::attach`].
    pub fn attach(linux: Linux, options: Options, pid: Pid) -> pagemill_kernel::Result<Self> {
        let allocations =
            Err(anyhow::anyhow!("a running program cannot be made to load a library"));
        let launched = now();
        let tracer = Tracer::attach(linux, options.clone(), pid)?;
        Ok(Self { tracer, options, allocations, launched })
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.tracer.pid()
    }

    /// What the header says of the tracer, as far as it is known by now.
    fn setup(&self) -> AccessSetup {
        let tracer = &self.tracer;
        let untraced = tracer.untraced().iter().map(|range| match range.end {
            0 => format!("process {}: {}", range.process, range.why),
            _ => format!(
                "process {}, {:x}-{:x}: {}",
                range.process, range.start, range.end, range.why
            ),
        });
        let interval = u64::try_from(self.options.interval.as_nanos()).unwrap_or(u64::MAX);
        let not_used = tracer
            .paged_out()
            .map(|why| format!("droppable memory: {why}; it is paged out instead"));
        let not_used = not_used.into_iter();
        let source = tracer.fault_source().name();
        AccessSetup {
            back_end: match tracer.paged_out() {
                Some(_) => format!("pageout, {source}"),
                None => source.into(),
            },
            not_used: not_used.chain(tracer.not_used().iter().cloned()).collect(),
            interval: Nanos(interval),
            granule: Bytes(match self.options.granule {
                Granule::Page => pagemill_kernel::page_size() as u64,
                Granule::Around => AROUND,
            }),
            budget_permille: self.options.budget.map(|budget| (budget * 1000.0) as u64),
            // Not known: none that is known of.
            lost: tracer.lost().unwrap_or_default(),
            untraced: untraced.collect::<BTreeSet<String>>().into_iter().collect(),
            ..AccessSetup::default()
        }
    }

    /// Runs the program to its end and writes what it touched.
    ///
    /// # Errors
    /// What was recorded cannot be written; tracing failed is part of the outcome.
    pub fn record(
        mut self,
        signals: &Signals,
        page: u64,
        writer: &mut Writer,
    ) -> Result<TraceOutcome> {
        // A recording that is cut short says how it was made, too.
        writer.meta_mut().accesses = Some(self.setup());
        if let Err(why) = &self.allocations {
            writer.meta_mut().lacks(NotMeasured::ALLOCATIONS, format!("{why:#}"));
        }
        let live = Live::begin(
            writer.meta_mut().started,
            page,
            self.tracer.fault_source() != FaultSource::Scan,
        );
        let mut sink = Writing {
            live,
            allocations: self.allocations.as_mut().ok(),
            writer,
            linux: Linux::live(),
            page,
            known: BTreeMap::new(),
            recent: (Pid(0), 0..0),
            heaps: HashMap::new(),
            looked_again: Instant::now(),
            looked: HashMap::new(),
            latest: self.launched,
            faults: HashMap::new(),
            faults_tell: self.tracer.tells_writes() && self.options.granule == Granule::Page,
            code: Code::default(),
            intervals: 0,
            accesses: 0,
            failure: None,
            untraced: BTreeSet::new(),
        };
        let ended = self.tracer.run(signals, &mut sink)?;
        // The last ones; where writing has failed there is no more to say.
        let _ = sink.tell_allocations();
        let (intervals, accesses, failure) = (sink.intervals, sink.accesses, sink.failure);
        let (later, live) = (sink.untraced, sink.live);
        if let Ok(ring) = &self.allocations {
            ring.tell(&mut writer.meta_mut().losses);
            if ring.lost() > 0 {
                let (lost, all) = (ring.lost(), ring.notes());
                let why = format!("{lost} of {all} notes were overwritten before they were read");
                writer.meta_mut().lacks(NotMeasured::ALLOCATIONS, why);
            }
        }
        let mut setup = self.setup();
        setup.untraced =
            setup.untraced.into_iter().chain(later).collect::<BTreeSet<_>>().into_iter().collect();
        writer.meta_mut().accesses = Some(setup);
        let abandoned = self.tracer.abandoned().map(str::to_owned);
        Ok(TraceOutcome { ended, intervals, accesses, failure, live, abandoned })
    }
}

/// Traces a program that ends at once. How its accesses were told, and why not better.
///
/// # Errors
/// No way to trace works here.
pub fn try_out(linux: Linux) -> pagemill_kernel::Result<(FaultSource, Vec<String>)> {
    struct Nothing;
    impl Sink for Nothing {}
    let signals = Signals::block(&[signal::CHILD])?;
    let program = c"/bin/true".to_owned();
    let arguments = std::slice::from_ref(&program);
    let failed = |why: String| {
        pagemill_kernel::Error::new(pagemill_kernel::Kind::Other, "trace", "/bin/true", why)
    };
    let launched = Tracer::launch(linux, Options::default(), &program, arguments, &[])?;
    let mut tracer = launched.map_err(|error| failed(error.to_string()))?;
    match tracer.run(&signals, &mut Nothing)? {
        Ended::Exited(0) => Ok((tracer.fault_source(), tracer.not_used().to_vec())),
        ended => Err(failed(format!("it ended otherwise than it does: {ended:?}"))),
    }
}

/// Where memory of ours stands in a program.
const OWN: std::ops::Range<u64> = injected::CODE..injected::OURS_END;

/// Between two looks at mappings for the sake of an access.
const AGAIN: Duration = Duration::from_millis(2);

/// Notes of allocations are read after so many accesses, and at the end of each interval.
const READ_AFTER: u64 = 1024;

struct Writing<'a> {
    allocations: Option<&'a mut Allocations>,
    writer: &'a mut Writer,
    live: Live,
    linux: Linux,
    page: u64,
    /// Mappings that were told, by process and start.
    known: BTreeMap<(Pid, u64), (u64, String)>,
    /// That of the access before.
    recent: (Pid, std::ops::Range<u64>),
    /// Where the heap of a process was at its last interval.
    heaps: HashMap<Pid, PageRange>,
    /// When mappings were looked at because of an access to none that was known.
    looked_again: Instant,
    /// When the mappings of a process were looked at: what is new came after that.
    looked: HashMap<Pid, Nanos>,
    /// End of the latest interval of any process.
    latest: Nanos,
    faults: HashMap<Pid, Written>,
    /// Whether faults say which pages were written.
    faults_tell: bool,
    /// For faults that do not say what they were for.
    code: Code,
    intervals: u64,
    accesses: u64,
    failure: Option<pagemill_model::Error>,
    /// Mappings that came later and are not traced.
    untraced: BTreeSet<String>,
}

impl Writing<'_> {
    /// The recording may fail (a full disk); the program does not.
    fn write(&mut self, event: &Event) -> SinkResult {
        if self.failure.is_some() {
            return Err(Stopped);
        }
        self.live.event(event);
        self.writer.event(event).map_err(|error| {
            self.failure = Some(error);
            Stopped
        })
    }

    fn tell_allocations(&mut self) -> SinkResult {
        let read = self.allocations.as_mut().map_or_else(Vec::new, |ring| ring.read());
        read.into_iter().try_for_each(|row| self.write(&Event::Allocation(Box::new(row))))
    }

    /// Tells the mappings of a process that are new, as of the look before: they may have come at any time since.
    fn tell_new_mappings(&mut self, pid: Pid, now: Nanos, mappings: &[Mapping]) -> SinkResult {
        let since = self.looked.insert(pid, now).unwrap_or(self.latest);
        let heap = self.heap(pid);
        for mapping in mappings.iter().filter(|mapping| !OWN.contains(&mapping.start)) {
            let mut mapping = mapping.clone();
            let original = self.known.get(&(pid, mapping.start));
            if mapping.name.starts_with(OURS) {
                // Its own name is that of the memory that it stands for.
                (mapping.shared, mapping.inode) = (false, 0);
                mapping.name = match original {
                    Some((_, name)) if !name.is_empty() => name.clone(),
                    _ if (heap.start..heap.end).contains(&mapping.start) => "[heap]".into(),
                    _ => String::new(),
                };
            }
            self.tell(since, pid, &mapping)?;
        }
        Ok(())
    }

    /// Where the heap of a process was at its last interval; before the first, its beginning.
    fn heap(&self, pid: Pid) -> PageRange {
        self.heaps.get(&pid).copied().unwrap_or_else(|| {
            let begins = self.linux.layout(pid).map(|layout| layout.heap).unwrap_or(0);
            PageRange::new(begins..begins.saturating_add(self.page))
        })
    }

    /// Memory that may be gone at the end of the interval is looked at while it is there: an access to no known
    /// mapping is followed by a look, if the last such was not just now.
    fn look_again(&mut self, pid: Pid, address: u64) -> SinkResult {
        if self.recent.0 == pid && self.recent.1.contains(&address) {
            return Ok(());
        }
        let before = self.known.range(..=(pid, address)).next_back();
        if let Some(((owner, start), (end, _))) = before
            && *owner == pid
            && address < *end
        {
            self.recent = (pid, *start..*end);
            return Ok(());
        }
        if self.looked_again.elapsed() < AGAIN {
            return Ok(());
        }
        self.looked_again = Instant::now();
        let mappings = self.linux.maps(pid).unwrap_or_default();
        self.tell_new_mappings(pid, now(), &mappings)
    }

    fn tell(&mut self, time: Nanos, pid: Pid, mapping: &Mapping) -> SinkResult {
        let value = (mapping.end, mapping.name.clone());
        if self.known.get(&(pid, mapping.start)) == Some(&value) {
            return Ok(());
        }
        self.known.insert((pid, mapping.start), value);
        if let Some(why) = pagemill_tracer::not_traced(mapping) {
            let Mapping { start, end, name, .. } = mapping;
            self.untraced.insert(format!("process {pid}, {start:x}-{end:x}: {why}: {name}"));
        }
        let row = layout(time, pid, mapping);
        self.write(&Event::Mapping(Box::new(row)))
    }
}

fn now() -> Nanos {
    Nanos::from(pagemill_kernel::clock::monotonic())
}

/// Starts and lengths of runs of pages.
pub(super) fn runs(numbers: impl IntoIterator<Item = u64>, page: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut starts, mut pages): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    for number in numbers {
        match (starts.last(), pages.last_mut()) {
            (Some(start), Some(length)) if start / page + *length == number => *length += 1,
            _ => {
                starts.push(number * page);
                pages.push(1);
            }
        }
    }
    (starts, pages)
}

impl Sink for Writing<'_> {
    fn access(&mut self, access: &pagemill_tracer::Access) -> SinkResult {
        if OWN.contains(&access.address) {
            return Ok(());
        }
        let pid = access.process;
        self.faults.entry(pid).or_default().fault(Fault {
            time: access.time,
            page: access.address / self.page,
            thread: access.thread,
            write: access.write(),
        });
        self.accesses += 1;
        if self.accesses.is_multiple_of(READ_AFTER) {
            self.tell_allocations()?;
        }
        self.look_again(pid, access.address)?;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let execute = access.execute()
            || !access.kind_is_known()
                && (access.instruction..access.instruction + LONGEST as u64)
                    .contains(&access.address);
        // What the kernel does for the program is not decoded.
        let write = match access.kind_is_known() {
            true => Some(access.write()),
            false if access.in_kernel() => None,
            false if execute => Some(false),
            false => self.code.writes(pid, access.instruction),
        };
        let flags = write.map(|write| {
            bit(write, Flags::WRITE)
                | bit(execute, Flags::EXECUTE)
                | bit(access.in_kernel(), Flags::IN_KERNEL)
        });
        self.write(&Event::Access(Box::new(Access {
            time: Nanos(access.time),
            pid: Some(pid.into()),
            tid: Some(access.thread.into()),
            cpu: Some(access.cpu().into()),
            address: Some(access.address),
            instruction: Some(access.instruction),
            flags,
            ..Access::default()
        })))
    }

    fn interval(&mut self, interval: Interval) -> SinkResult {
        self.tell_allocations()?;
        let pid = interval.process;
        self.heaps.insert(pid, interval.heap);
        let mappings = self.linux.maps(pid).unwrap_or_default();
        // Ours may have been written to before they were made read-only, as relocated data is.
        let fixed = |mapping: &&Mapping| !mapping.write && !mapping.name.starts_with(OURS);
        let fixed: Vec<PageRange> = mappings.iter().filter(fixed).map(Mapping::range).collect();
        self.tell_new_mappings(pid, Nanos(interval.ended), &mappings)?;
        self.latest = Nanos(interval.ended);
        self.intervals += 1;
        if let Ok(stat) = self.linux.stat(pid) {
            let threads = &mut self.writer.meta_mut().threads;
            *threads = (*threads).max(Some(stat.threads));
        }
        let numbers = |range: &PageRange| range.numbers(self.page);
        let mut touched: BTreeSet<u64> = interval.touched.iter().flat_map(numbers).collect();
        let end = End {
            scanned: interval.scanned,
            ended: interval.ended,
            present: &touched,
            fresh: interval.number > 0 && interval.kept == 0 && interval.stays == 0,
        };
        let may_write = |page: u64| {
            let at = fixed.partition_point(|range| range.end <= page * self.page);
            fixed.get(at).is_none_or(|range| range.start > page * self.page)
        };
        let (late, written) = self.faults.entry(pid).or_default().interval(&end, may_write);
        // What appeared after its part of the scan may have been dropped with its neighbours.
        touched.extend(late);
        let (starts, pages) = runs(touched, self.page);
        let told = if self.faults_tell {
            Some(written)
        } else {
            let numbers = interval.written.iter().flatten().flat_map(numbers);
            interval.written.as_ref().map(|_| numbers.filter(|page| may_write(*page)).collect())
        };
        let (written_starts, written_pages) = told.map(|pages| runs(pages, self.page)).unzip();
        self.write(&Event::Touched(Box::new(Touched {
            time: Nanos(interval.ended),
            pid: Some(pid.into()),
            number: Some(interval.number),
            began: Some(Nanos(interval.began)),
            scanned: Some(Nanos(interval.scanned)),
            starts: Some(starts),
            pages: Some(pages),
            written_starts,
            written_pages,
            kept: Some(interval.kept),
        })))?;
        self.live.watermark(pid, false);
        Ok(())
    }

    fn process(&mut self, pid: Pid, mappings: &[Mapping]) -> SinkResult {
        self.known.retain(|(owner, _), _| *owner != pid);
        self.looked.insert(pid, self.latest);
        for mapping in mappings {
            let mut mapping = mapping.clone();
            if mapping.name == "[stack]" {
                // It may grow to here.
                mapping.start = mapping.end.saturating_sub(8 << 20);
            }
            self.tell(self.latest, pid, &mapping)?;
        }
        Ok(())
    }

    fn forked(&mut self, parent: Pid, child: Pid) -> SinkResult {
        let known: Vec<(u64, (u64, String))> = self
            .known
            .iter()
            .filter(|((owner, _), _)| *owner == parent)
            .map(|((_, start), value)| (*start, value.clone()))
            .collect();
        for (start, (end, name)) in known {
            self.known.insert((child, start), (end, name.clone()));
            self.write(&Event::Mapping(Box::new(MappingSample {
                time: self.latest,
                pid: Some(child.into()),
                start: Some(start),
                end: Some(end),
                name: Some(name),
                ..MappingSample::default()
            })))?;
        }
        // And what its parent mapped since it was looked at last.
        if let Some(heap) = self.heaps.get(&parent).copied() {
            self.heaps.insert(child, heap);
        }
        self.looked.insert(child, self.latest);
        let mappings = self.linux.maps(child).unwrap_or_default();
        self.tell_new_mappings(child, now(), &mappings)
    }
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn neighbouring_pages_are_one_run() {
        assert_eq!(
            runs([1, 2, 3, 7, 9, 10], 4096),
            (vec![4096, 7 * 4096, 9 * 4096], vec![3, 1, 2])
        );
    }
}

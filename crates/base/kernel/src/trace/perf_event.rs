//! `perf_event_open(2)`: counting events, and a ring of samples of them.
//!
//! An [`Event`] counts something for a thread or a processor, and can run a BPF program or write a
//! sample into a [`Ring`] each time it has counted a period. Software events need no privilege for
//! one's own processes where `kernel.perf_event_paranoid` is 2 or less, as long as what happens inside
//! the kernel is left out ([`Attributes::user_only`]).
//!
//! ```text
//!  sample   header 8 | identifier 8 | process 4, thread 4 | time 8 | address 8
//!  lost     header 8 | identifier 8 | number 8
//!  header   type 4 | misc 2 | size 2
//! ```
//!
//! Always true: a ring is read in order and every record once; what the kernel had no room for is
//! reported as lost.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use pagemill_model::Pid;
use pagemill_model::perf_data::bit;

use crate::bytes::{long, word};
use crate::error::done;
use crate::memory::mapped::Mapped;
use crate::{Error, Kind, Linux, Result, page_size};

/// What an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Time on a processor, ns.
    TaskClock,
    /// Time of a processor, ns: sampled by its own timer.
    CpuClock,
    /// Page faults, when they begin.
    PageFaults,
    /// Page faults that needed no I/O, when they are done.
    MinorFaults,
    /// Page faults that needed I/O, when they are done.
    MajorFaults,
    /// Switches to another thread.
    ContextSwitches,
    /// Nothing: an event that only carries a ring.
    Dummy,
    /// Cycles of the processor.
    Cycles,
    /// Instructions.
    Instructions,
    /// Misses of the last-level cache.
    CacheMisses,
    /// Loads that missed the data TLB.
    DataTlbLoadMisses,
    /// Stores that missed the data TLB.
    DataTlbStoreMisses,
    /// Fetches that missed the instruction TLB.
    InstructionTlbMisses,
    /// The tracepoint with this number (`events/…/id` in tracefs).
    Tracepoint(u64),
    /// An event of a unit that describes itself in sysfs ([`crate::trace::pmu`]).
    Unit {
        /// The unit's type.
        kind: u32,
        /// The event.
        config: u64,
    },
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracepoint(number) => write!(f, "tracepoint {number}"),
            Self::Unit { kind: 4, config } => write!(f, "r{config:x} of the processor's core"),
            Self::Unit { kind, config } => write!(f, "{config:#x} of unit {kind}"),
            known => f.write_str(known.known().0),
        }
    }
}

impl Counter {
    /// Its name, as perf(1) writes it, and `type` and `config` of the attributes (perf_event_open(2)).
    fn known(self) -> (&'static str, u32, u64) {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        const TRACEPOINT: u32 = 2;
        const CACHE: u32 = 3;
        // Cache events: which | operation << 8 | outcome << 16, outcome 1 is a miss.
        match self {
            Self::CpuClock => ("cpu-clock", SOFTWARE, 0),
            Self::TaskClock => ("task-clock", SOFTWARE, 1),
            Self::PageFaults => ("page-faults", SOFTWARE, 2),
            Self::ContextSwitches => ("context-switches", SOFTWARE, 3),
            Self::MinorFaults => ("minor-faults", SOFTWARE, 5),
            Self::MajorFaults => ("major-faults", SOFTWARE, 6),
            Self::Dummy => ("dummy", SOFTWARE, 9),
            Self::Cycles => ("cycles", HARDWARE, 0),
            Self::Instructions => ("instructions", HARDWARE, 1),
            Self::CacheMisses => ("cache-misses", HARDWARE, 3),
            Self::DataTlbLoadMisses => ("dTLB-load-misses", CACHE, 3 | 1 << 16),
            Self::DataTlbStoreMisses => ("dTLB-store-misses", CACHE, 3 | 1 << 8 | 1 << 16),
            Self::InstructionTlbMisses => ("iTLB-load-misses", CACHE, 4 | 1 << 16),
            Self::Tracepoint(number) => ("", TRACEPOINT, number),
            Self::Unit { kind, config } => ("", kind, config),
        }
    }
}

/// What an event counts, and how.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    what: Counter,
    period: u64,
    flags: u64,
    wakeup: u32,
    sample: u64,
    registers: u64,
    config1: u64,
}

mod flag {
    //! Bits of the attributes' flag word.
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    /// Mappings of code, names that an execve gives, forks; each with what samples hold of thread and time.
    pub const LAYOUT: u64 = 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    /// `precise_ip` of two: the sample is of the instruction itself, with the address that it accessed.
    pub const PRECISE: u64 = 2 << 15;
    pub const WATERMARK: u64 = 1 << 14;
    pub const USE_CLOCK: u64 = 1 << 25;
}

impl Attributes {
    /// Counts; disabled until it is enabled.
    pub fn counting(what: Counter) -> Self {
        Self::sampling(what, 0).without_clock()
    }

    /// Samples every `period` counts; disabled until it is enabled.
    pub fn sampling(what: Counter, period: u64) -> Self {
        let flags = flag::DISABLED | flag::USE_CLOCK;
        Self { what, period, flags, wakeup: 0, sample: SAMPLE, registers: 0, config1: 0 }
    }

    fn without_clock(mut self) -> Self {
        self.flags &= !flag::USE_CLOCK;
        self
    }

    /// Each sample holds these things (`sample_type`) instead, of the program's registers these; read it with
    /// [`Ring::read_raw`].
    #[must_use]
    pub fn holding(mut self, sample: u64, registers: u64) -> Self {
        (self.sample, self.registers) = (sample, registers);
        self
    }

    /// The second word of configuration, for units that have one.
    #[must_use]
    pub fn config1(mut self, config1: u64) -> Self {
        self.config1 = config1;
        self
    }

    /// Threads and processes that are started later count too.
    #[must_use]
    pub fn inherited(mut self) -> Self {
        self.flags |= flag::INHERIT;
        self
    }

    /// The ring tells of code that is mapped, of programs that are executed, and of forks, too.
    #[must_use]
    pub fn telling_layout(mut self) -> Self {
        self.flags |= flag::LAYOUT;
        self
    }

    /// Leaves out what happens inside the kernel and the hypervisor, which needs no privilege.
    #[must_use]
    pub fn user_only(mut self) -> Self {
        self.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HYPERVISOR;
        self
    }

    /// Samples are of the very instruction that counted, and hold the address of its data.
    #[must_use]
    pub fn precise(mut self) -> Self {
        self.flags |= flag::PRECISE;
        self
    }

    /// Is enabled when the thread executes a program.
    #[must_use]
    pub fn from_exec(mut self) -> Self {
        self.flags |= flag::ENABLE_ON_EXEC;
        self
    }

    /// Whoever waits for the ring is woken when this many bytes are in it.
    #[must_use]
    pub fn wake_at(mut self, bytes: u32) -> Self {
        self.wakeup = bytes;
        self.flags |= flag::WATERMARK;
        self
    }
}

/// For whom an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A thread, wherever it runs.
    Thread(Pid),
    /// A thread, while it runs on a processor.
    ThreadOn(Pid, u32),
    /// Everything on a processor; needs a privilege.
    Processor(u32),
}

/// `struct perf_event_attr` up to `clockid` (version 3 of the structure).
#[repr(C)]
#[derive(Default)]
struct Raw {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branch: u64,
    registers: u64,
    stack: u32,
    clock: i32,
}

/// What each sample holds: identifier, process and thread, time, address.
const SAMPLE: u64 = bit::IDENTIFIER | bit::TID | bit::TIME | bit::ADDR;
/// Beside the count, for how long the event was enabled and for how long it counted.
const READ: u64 = 1 | 2;

/// What an event has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The count.
    pub value: u64,
    /// For how long the event was enabled.
    pub enabled: Duration,
    /// For how long of that it had a counter; the count is to be scaled by the ratio.
    pub running: Duration,
}

/// An open event.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
}

impl Event {
    /// Opens an event.
    ///
    /// # Errors
    /// The kernel or the processor does not have it, or the caller may not use it.
    pub fn open(attributes: &Attributes, target: Target) -> Result<Self> {
        let (_, kind, config) = attributes.what.known();
        let raw = Raw {
            kind,
            config,
            size: size_of::<Raw>() as u32,
            period: attributes.period,
            sample: if attributes.period > 0 { attributes.sample } else { 0 },
            registers: attributes.registers,
            config1: attributes.config1,
            read: READ,
            flags: attributes.flags,
            wakeup: attributes.wakeup,
            clock: libc::CLOCK_MONOTONIC,
            ..Raw::default()
        };
        let (thread, processor) = match target {
            Target::Thread(thread) => (thread.0 as i32, -1),
            Target::ThreadOn(thread, processor) => (thread.0 as i32, processor as i32),
            Target::Processor(processor) => (-1, processor as i32),
        };
        const CLOSE_ON_EXEC: u64 = 8;
        // SAFETY: `raw` is a `perf_event_attr` of the size that it names and lives through the call,
        // which copies it; the other arguments are numbers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                ptr::from_ref(&raw),
                thread,
                processor,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            let object = match target {
                Target::Thread(thread) | Target::ThreadOn(thread, _) => {
                    format!("the event {} of thread {thread}", attributes.what)
                }
                Target::Processor(cpu) => {
                    format!("the event {} of processor {cpu}", attributes.what)
                }
            };
            let error = Error::last("open", object);
            return Err(match error.kind() {
                Kind::Permission => error.advise(
                    "run as root, or: sudo sysctl kernel.perf_event_paranoid=1; see pagemill doctor",
                ),
                // What the processor does not count is "no such file" or "not supported".
                Kind::NotFound => Error::new(
                    Kind::Unsupported,
                    "open",
                    format_args!("the event {}", attributes.what),
                    "this machine does not count it",
                ),
                _ => error,
            });
        }
        // SAFETY: the call has just returned this descriptor, and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// Starts to count.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn enable(&self) -> Result<()> {
        self.control(0x2400, 0, "enable")
    }

    /// Stops.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn disable(&self) -> Result<()> {
        self.control(0x2401, 0, "disable")
    }

    /// Samples every `period` counts from now on; what it inherited to others stays as it is.
    ///
    /// # Errors
    /// The kernel refuses the period.
    pub fn set_period(&self, period: u64) -> Result<()> {
        // SAFETY: `PERF_EVENT_IOC_PERIOD` reads one u64 through the pointer, which is valid for it.
        done(
            unsafe { libc::ioctl(self.fd.as_raw_fd(), 0x4008_2404, &raw const period) },
            "set the period of",
            "a perf event",
        )
    }

    /// Has its samples written into the ring of `other`.
    ///
    /// # Errors
    /// The rings are of different processors or threads.
    pub fn share_ring(&self, other: &Self) -> Result<()> {
        self.control(0x2405, other.fd.as_raw_fd() as libc::c_ulong, "redirect")
    }

    /// Has the BPF program run at each overflow.
    pub(crate) fn run(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.control(0x4004_2408, program.as_raw_fd() as libc::c_ulong, "attach a program to")
    }

    fn control(
        &self,
        request: libc::c_ulong,
        argument: libc::c_ulong,
        action: &'static str,
    ) -> Result<()> {
        // SAFETY: the descriptor is open; these requests take a number as their argument.
        done(unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument) }, action, "a perf event")
    }

    /// The number that its samples carry.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn identifier(&self) -> Result<u64> {
        let mut identifier = 0_u64;
        // SAFETY: `PERF_EVENT_IOC_ID` writes one u64 through the pointer, which is valid for it.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), 0x8008_2407, &raw mut identifier) } {
            0 => Ok(identifier),
            _ => Err(Error::last("identify", "a perf event")),
        }
    }

    /// What it has counted, inherited events included.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn count(&self) -> Result<Count> {
        let mut bytes = [0_u8; 24];
        let failed = |error| Error::io("read", "a perf event", error);
        let file = File::from(self.fd.try_clone().map_err(failed)?);
        io::Read::read_exact(&mut &file, &mut bytes).map_err(failed)?;
        let number =
            |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
        Ok(Count {
            value: number(0),
            enabled: Duration::from_nanos(number(8)),
            running: Duration::from_nanos(number(16)),
        })
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// [`Event::identifier`] of the event; inherited events have their parent's.
    pub identifier: u64,
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
    /// ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// The address: of a page fault, or of the data of a load.
    pub address: u64,
}

/// A record of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// This many records found no room.
    Lost(u64),
}

/// The ring that an event's samples are written to.
#[derive(Debug)]
pub struct Ring {
    event: Event,
    memory: Mapped,
    /// Bytes of records: a power of two.
    size: usize,
}

/// Offsets in the control page (`struct perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;

impl Ring {
    /// Maps a ring of `size` bytes, rounded up to a power of two of pages, for `event`. Others
    /// may [share](Event::share_ring) it.
    ///
    /// What a user may lock is `kernel.perf_event_mlock_kb` a processor, and `RLIMIT_MEMLOCK` beyond.
    ///
    /// # Errors
    /// More would be locked than the user may.
    pub fn map(event: Event, size: usize) -> Result<Self> {
        let size = size.max(page_size()).next_power_of_two();
        let memory = Mapped::file(event.as_fd(), 0, page_size() + size).map_err(|error| {
            Error::io("map", format_args!("a ring of {size} bytes"), error)
                .advise("sudo sysctl kernel.perf_event_mlock_kb=4096, or run as root")
        })?;
        Ok(Self { event, memory, size })
    }

    /// The event that the ring belongs to.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Hands every record to `each`, oldest first, until the ring is empty.
    pub fn read(&mut self, mut each: impl FnMut(Record)) {
        self.read_raw(|kind, _, body| {
            if let Some(record) = Record::parse(kind, body) {
                each(record);
            }
        });
    }

    /// The same with each record as it is: type, `misc`, and what follows its header.
    pub fn read_raw(&mut self, mut each: impl FnMut(u32, u16, &[u8])) {
        // SAFETY: both words lie in the control page, which is mapped for as long as `self` lives, are
        // aligned to eight bytes, and are shared with the kernel, which accesses them atomically.
        let (head, tail) = unsafe {
            (
                &*self.memory.start().add(HEAD).cast::<AtomicU64>(),
                &*self.memory.start().add(TAIL).cast::<AtomicU64>(),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        let mut buffer = Vec::new();
        while at < end {
            let mut header = [0_u8; 8];
            self.copy(at, &mut header);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if length < header.len() {
                at = end; // Never seen; better to lose what is there than to loop.
                break;
            }
            buffer.resize(length - header.len(), 0);
            self.copy(at + header.len() as u64, &mut buffer);
            each(kind, u16::from_ne_bytes([header[4], header[5]]), &buffer);
            at += length as u64;
        }
        tail.store(at, Ordering::Release);
    }

    /// Copies bytes of the ring, which begin at the running position `at`.
    fn copy(&self, at: u64, into: &mut [u8]) {
        let from = (at as usize) & (self.size - 1);
        let first = into.len().min(self.size - from);
        // SAFETY: the records begin one page into the mapping and take `size` bytes: `from + first`
        // does not exceed `size`, nor does the rest from the beginning (no record is longer than the
        // ring). The kernel does not write between tail and head, and `into` is not in the mapping.
        unsafe {
            let records = self.memory.start().add(page_size());
            ptr::copy_nonoverlapping(records.add(from), into.as_mut_ptr(), first);
            let rest = (into.len() - first).min(self.size);
            ptr::copy_nonoverlapping(records, into.as_mut_ptr().add(first), rest);
        }
    }
}

impl Record {
    /// A record's content by its type (`PERF_RECORD_…`), of what follows its header; `None` for types that nobody asked
    /// for, and for one that is cut short.
    pub fn parse(kind: u32, body: &[u8]) -> Option<Self> {
        const LOST: u32 = 2;
        const SAMPLED: u32 = 9;
        match kind {
            SAMPLED => Some(Self::Sample(Sample {
                identifier: long(body, 0)?,
                process: Pid(word(body, 8)?),
                thread: Pid(word(body, 12)?),
                time: long(body, 16)?,
                address: long(body, 24)?,
            })),
            LOST => Some(Self::Lost(long(body, 8)?)),
            _ => None,
        }
    }
}

/// Waits until one of the rings has records, at most `timeout`.
///
/// # Errors
/// The kernel refuses to wait.
pub fn wait(rings: &[Ring], timeout: Duration) -> Result<()> {
    let polled = |ring| PollFd::new(ring, PollFlags::IN);
    let mut waiting: Vec<_> = rings.iter().map(Ring::event).map(polled).collect();
    let limit = Timespec::try_from(timeout.min(Duration::from_secs(60))).ok();
    let ready = poll(&mut waiting, limit.as_ref());
    // A ring whose threads have all ended is always ready: do not spin on it.
    if waiting.iter().any(|waiting| waiting.revents().contains(PollFlags::HUP)) {
        std::thread::sleep(timeout.min(Duration::from_millis(5)));
    }
    match ready {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("wait for", "perf events", error.into())),
    }
}

impl Linux {
    /// `kernel.perf_event_paranoid`: what users without privileges may measure.
    ///
    /// # Errors
    /// The file cannot be read, or holds no number.
    pub fn perf_event_paranoid(&self) -> Result<i64> {
        let path = "/proc/sys/kernel/perf_event_paranoid";
        let text = self.read(path)?;
        text.trim().parse().map_err(|_| Error::malformed(path, format_args!("{text:?}")))
    }

    /// Processors that are online.
    ///
    /// # Errors
    /// The file cannot be read, or is not of the form that is known.
    pub fn processors(&self) -> Result<Vec<u32>> {
        let path = "/sys/devices/system/cpu/online";
        let text = self.read(path)?;
        crate::nodes::parse_list(&text)
            .ok_or_else(|| Error::malformed(path, format_args!("{text:?}")))
    }

    /// The threads of `process` now.
    ///
    /// # Errors
    /// [`Kind::Gone`] for a process that is not there.
    pub fn threads(&self, process: Pid) -> Result<Vec<Pid>> {
        let tasks = self.process_file(process, "task");
        let entries = std::fs::read_dir(&tasks).map_err(|_| {
            Error::new(
                Kind::Gone,
                "trace",
                format_args!("process {process}"),
                "there is no such process",
            )
        })?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::touch;

    #[test]
    fn records_that_are_cut_short_are_none() {
        assert_eq!(Record::parse(9, &[0; 31]), None);
        assert!(matches!(Record::parse(9, &[0; 32]), Some(Record::Sample(_))));
        assert_eq!(Record::parse(2, &[1; 16]), Some(Record::Lost(0x0101_0101_0101_0101)));
        assert_eq!(Record::parse(77, &[0; 64]), None);
    }

    /// What the kernel wrote into a ring while a process touched six new pages side by side, one after
    /// another: the layout of all samples here.
    #[test]
    fn recorded_samples_have_process_time_and_address() {
        let mut bytes: &[u8] = include_bytes!("../../tests/fixtures/perf-samples.bin");
        let mut samples = Vec::new();
        while let [a, b, c, d, _, _, low, high, ..] = *bytes {
            let (record, rest) = bytes.split_at(u16::from_le_bytes([low, high]).into());
            match Record::parse(u32::from_le_bytes([a, b, c, d]), &record[8..]) {
                Some(Record::Sample(sample)) => samples.push(sample),
                other => panic!("{other:?}"),
            }
            bytes = rest;
        }
        assert_eq!(samples.len(), 7);
        assert!(
            samples
                .iter()
                .all(|sample| (sample.process, sample.thread) == (Pid(26_713), Pid(26_713)))
        );
        assert!(samples.windows(2).all(|pair| pair[0].time < pair[1].time));
        let touched = samples[1..].iter().map(|sample| sample.address);
        assert!(touched.eq((0..6).map(|page| 0x7f5a_550d_d000 + page * 4096)), "{samples:?}");
    }

    /// Events of this thread; `None`, said, where this user may not have any.
    fn mine(attributes: Attributes) -> Option<Event> {
        match Event::open(&attributes.user_only(), Target::Thread(Pid(0))) {
            Ok(event) => Some(event),
            Err(error) if error.kind() == Kind::Permission => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn faults_of_this_thread_are_counted() {
        let Some(event) = mine(Attributes::counting(Counter::MinorFaults)) else { return };
        event.enable().unwrap();
        touch::pages(2000).unwrap();
        event.disable().unwrap();
        let count = event.count().unwrap();
        assert!((2000..2100).contains(&count.value), "{count:?}");
        assert_eq!(count.enabled, count.running);
    }

    #[test]
    fn a_ring_holds_a_sample_for_each_fault_or_says_how_many_it_lost() {
        let Some(event) = mine(Attributes::sampling(Counter::MinorFaults, 1)) else { return };
        let identifier = event.identifier().unwrap();
        let mut ring = Ring::map(event, 1).unwrap();
        ring.event().enable().unwrap();
        let (mut seen, mut lost, mut last) = (0, 0, 0);
        for _ in 0..3 {
            // A ring of one page holds about a hundred.
            touch::pages(400).unwrap();
            ring.read(|record| match record {
                Record::Sample(sample) => {
                    assert_eq!(sample.identifier, identifier);
                    assert!(sample.time >= last);
                    last = sample.time;
                    seen += 1;
                }
                Record::Lost(number) => lost += number,
            });
        }
        ring.event().disable().unwrap();
        ring.read(|record| match record {
            Record::Sample(_) => seen += 1,
            Record::Lost(number) => lost += number,
        });
        // The kernel says what was lost with the next sample that finds room.
        let counted = ring.event().count().unwrap().value;
        assert!(seen > 0 && seen + lost <= counted, "{seen} + {lost} of {counted}");
        assert!(counted - seen - lost <= 400, "{seen} + {lost} of {counted}");
    }
}

//! Samples of memory accesses by `perf_event_open(2)`: by the processor's own sampling of loads and stores where
//! it has that, else of the clock, with the program's registers.
//!
//! | source | is | a sample has |
//! |---|---|---|
//! | `pebs` | Intel: `mem-loads` and `mem-stores` of the core's unit | address, latency, where the data came from |
//! | `ibs` | AMD: the unit `ibs_op` | the same |
//! | `clock` | the processor's timer | the registers before the instruction that was about to run |
//!
//! ```text
//!  hardware  identifier 8 | ip 8 | process 4, thread 4 | time 8 | address 8 | cpu 4, 0 4 | weight 8 | data source 8
//!  clock     identifier 8 | ip 8 | process 4, thread 4 | time 8 | cpu 4, 0 4 | abi 8 | registers 18 x 8
//! ```
//!
//! By the clock it is told, too, which code is mapped, executed or inherited, so that the code of a sample is known
//! when its process has ended.
//!
//! Always true: a sample is told once, in the order of its processor; what found no room is counted.

use pagemill_model::Pid;
use pagemill_model::perf_data::bit::{
    ADDR, CPU, IDENTIFIER, IP, SOURCE, TID, TIME, USER_REGISTERS, WEIGHT,
};

use crate::bytes::{long, word};
use crate::trace::perf_event::{Attributes, Counter, Event, Ring, Target};
use crate::{Error, Kind, Linux, Result};

/// Where samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Intel's sampling of loads and stores.
    Pebs,
    /// AMD's sampling of instructions.
    Ibs,
    /// The clock.
    Clock,
}

impl Source {
    /// Its name in the header of a recording.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pebs => "pebs",
            Self::Ibs => "ibs",
            Self::Clock => "clock",
        }
    }
}

/// The program's registers, in the kernel's order: ax bx cx dx si di bp sp ip flags r8 to r15.
pub type Registers = [u64; 18];
/// Their bits: all but the segments.
const REGISTERS: u64 = 0x3ff | 0xff << 16;

const HARDWARE: u64 = IDENTIFIER | IP | TID | TIME | ADDR | CPU | WEIGHT | SOURCE;
const CLOCK: u64 = IDENTIFIER | IP | TID | TIME | CPU | USER_REGISTERS;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
    /// ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// Processor.
    pub cpu: u32,
    /// The instruction.
    pub instruction: u64,
    /// What the sample is of.
    pub what: Sampled,
}

/// What a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// An access, as the processor tells of it.
    Access {
        /// Which byte; 0 if it is none.
        address: u64,
        /// In cycles; 0 if unknown.
        latency: u64,
        /// `union perf_mem_data_src`.
        data_source: u64,
    },
    /// The instruction that was about to run, with these registers.
    Instruction(Registers),
}

/// What happened in a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadEvent {
    /// A sample.
    Sample(Sample),
    /// A process mapped code of a file.
    Mapped(Pid, MappedCode),
    /// A process forked another.
    Forked {
        /// Which.
        parent: Pid,
        /// The other.
        child: Pid,
    },
    /// A process executed a program: nothing is mapped but what was told after it.
    Executed(Pid),
}

/// Code of a file in an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedCode {
    /// Where.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Of the file.
    pub inode: u64,
    /// Its path, as the process saw it.
    pub path: String,
}

/// Sampling of some threads and of all that they start.
#[derive(Debug)]
pub struct Samples {
    rings: Vec<Ring>,
    others: Vec<Event>,
    source: Source,
    not_used: Vec<String>,
    lost: u64,
    /// The event whose period is drawn next.
    turn: usize,
}

/// How many events have their periods drawn anew at a time: each interrupts the processor that it is on.
const DRAWN: usize = 64;

impl Samples {
    /// Samples `threads` and what they start, every `period` ns of their time or so many of the processor's
    /// events, from now on or, with `from_exec`, from the next program that they execute.
    ///
    /// # Errors
    /// No source can be opened: why the last could not.
    pub fn follow(linux: &Linux, threads: &[Pid], period: u64, from_exec: bool) -> Result<Self> {
        let mut not_used = Vec::new();
        for source in [Source::Pebs, Source::Ibs, Source::Clock] {
            let opened = attributes(linux, source, period)
                .and_then(|attributes| opened(linux, threads, &attributes, from_exec, &SIZES));
            match opened {
                Ok((rings, others)) => {
                    return Ok(Self { rings, others, source, not_used, lost: 0, turn: 0 });
                }
                Err(error) if source == Source::Clock => return Err(error),
                Err(error) => not_used.push(format!("{}: {error}", source.name())),
            }
        }
        Err(Error::new(Kind::Unsupported, "sample", "accesses", "there is no way to"))
    }

    /// Where they come from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The better ones, and why they are not used.
    pub fn not_used(&self) -> &[String] {
        &self.not_used
    }

    /// Samples that found no room so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Gives events of the clock periods that `draw` says, so that samples fall into no step with the program: some at
    /// a time, in turn. A period begins anew with that, so call it seldom by the length of one. Threads
    /// that are started later keep the period that their starter had then.
    ///
    /// # Errors
    /// The kernel refuses a period.
    pub fn vary(&mut self, mut draw: impl FnMut() -> u64) -> Result<()> {
        if self.source != Source::Clock {
            return Ok(());
        }
        let events: Vec<_> = self.rings.iter().map(Ring::event).chain(&self.others).collect();
        for _ in 0..events.len().min(DRAWN) {
            events[self.turn % events.len()].set_period(draw())?;
            self.turn += 1;
        }
        Ok(())
    }

    /// Hands on what there is, with its time (ns of CLOCK_MONOTONIC); what one processor tells is in order.
    pub fn read(&mut self, mut each: impl FnMut(u64, ThreadEvent)) {
        let (source, lost) = (self.source, &mut self.lost);
        for ring in &mut self.rings {
            ring.read_raw(|kind, misc, body| match kind {
                2 => *lost = lost.saturating_add(long(body, 8).unwrap_or(0)),
                _ => {
                    if let Some((time, event)) = ThreadEvent::parse(source, (kind, misc), body) {
                        each(time, event);
                    }
                }
            });
        }
    }
}

impl ThreadEvent {
    /// What a record of this type and `misc` (`struct perf_event_header`) tells, of what follows its header, and when;
    /// `None` of others, and of one that is cut short.
    pub fn parse(source: Source, (kind, misc): (u32, u16), body: &[u8]) -> Option<(u64, Self)> {
        const SAMPLED: u32 = 9;
        if kind == SAMPLED {
            return sampled(source, body).map(|sample| (sample.time, Self::Sample(sample)));
        }
        layout(kind, misc, body)
    }
}

/// What a record of another kind tells. Of a clock they end with: process 4, thread 4 | time 8 | cpu 4, 0 4 |
/// identifier 8.
fn layout(kind: u32, misc: u16, body: &[u8]) -> Option<(u64, ThreadEvent)> {
    const NAMED: u32 = 3;
    const FORKED: u32 = 7;
    const MAPPED: u32 = 10;
    const BY_EXEC: u16 = 1 << 13;
    let time = long(body, body.len().checked_sub(24)?)?;
    let pid = |at| word(body, at).map(Pid);
    let process = pid(0)?;
    let told = match kind {
        NAMED if misc & BY_EXEC != 0 => ThreadEvent::Executed(process),
        FORKED if pid(4)? != process => ThreadEvent::Forked { parent: pid(4)?, child: process },
        MAPPED => {
            let path = body.get(64..body.len().checked_sub(32)?)?;
            let path = path.split(|byte| *byte == 0).next()?;
            let (start, length) = (long(body, 8)?, long(body, 16)?);
            ThreadEvent::Mapped(
                process,
                MappedCode {
                    start,
                    end: start.checked_add(length)?,
                    offset: long(body, 24)?,
                    inode: long(body, 40)?,
                    path: String::from_utf8_lossy(path).into_owned(),
                },
            )
        }
        _ => return None,
    };
    Some((time, told))
}

fn sampled(source: Source, body: &[u8]) -> Option<Sample> {
    let hardware = source != Source::Clock;
    let cpu_at = if hardware { 40 } else { 32 };
    let what = if hardware {
        Sampled::Access {
            address: long(body, 32)?,
            latency: long(body, 48)?,
            data_source: long(body, 56)?,
        }
    } else {
        // Without registers (0): a thread of the kernel's; or of 32 bits (1), which is not decoded.
        if long(body, 40)? != 2 {
            return None;
        }
        let mut registers = [0; 18];
        for (at, register) in registers.iter_mut().enumerate() {
            *register = long(body, 48 + 8 * at)?;
        }
        Sampled::Instruction(registers)
    };
    Some(Sample {
        process: Pid(word(body, 16)?),
        thread: Pid(word(body, 20)?),
        time: long(body, 24)?,
        cpu: word(body, cpu_at)?,
        instruction: long(body, 8)?,
        what,
    })
}

/// Bytes of a ring, best first: what a user may lock differs.
const SIZES: [usize; 3] = [512 << 10, 128 << 10, 32 << 10];

pub(crate) type Opened = (Vec<Ring>, Vec<Event>);

/// Rings, one a processor, of the `sizes` the largest that this user may have, and the events that share them.
pub(crate) fn opened(
    linux: &Linux,
    threads: &[Pid],
    all: &[Attributes],
    from_exec: bool,
    sizes: &[usize],
) -> Result<Opened> {
    let (mut rings, mut others): Opened = (Vec::new(), Vec::new());
    for processor in linux.processors()? {
        let mut ring: Option<Ring> = None;
        for &thread in threads {
            for attributes in all {
                let attributes = if from_exec { attributes.from_exec() } else { *attributes };
                let target = Target::ThreadOn(thread, processor);
                let event = match Event::open(&attributes, target) {
                    Ok(event) => event,
                    // It has ended since the list was made.
                    Err(error) if error.kind() == Kind::Gone && threads.len() > 1 => break,
                    Err(error) => return Err(error),
                };
                match &ring {
                    Some(ring) => {
                        event.share_ring(ring.event())?;
                        others.push(event);
                    }
                    None => ring = Some(mapped(event, &attributes, target, sizes)?),
                }
            }
        }
        rings.extend(ring);
    }
    if rings.is_empty() {
        return Err(Error::new(Kind::Gone, "sample", "the process", "all its threads have ended"));
    }
    if !from_exec {
        for event in rings.iter().map(Ring::event).chain(&others) {
            event.enable()?;
        }
    }
    Ok((rings, others))
}

/// A ring for the event, as large as this user may have.
fn mapped(event: Event, attributes: &Attributes, target: Target, sizes: &[usize]) -> Result<Ring> {
    let mut event = event;
    for &size in sizes {
        match Ring::map(event, size) {
            Ok(ring) => return Ok(ring),
            Err(error) if sizes.last() == Some(&size) => return Err(error),
            Err(_) => event = Event::open(attributes, target)?,
        }
    }
    Err(Error::new(Kind::Unsupported, "map", "a ring", "no size is small enough"))
}

/// The events of a source.
fn attributes(linux: &Linux, source: Source, period: u64) -> Result<Vec<Attributes>> {
    match source {
        Source::Clock => {
            let clock = Attributes::sampling(Counter::CpuClock, period);
            Ok(vec![clock.holding(CLOCK, REGISTERS).inherited().user_only().telling_layout()])
        }
        Source::Ibs => {
            let kind = unit(linux, "ibs_op")?;
            // The unit counts in sixteenths.
            let event = Attributes::sampling(Counter::Unit { kind, config: 0 }, period & !15);
            Ok(vec![event.holding(HARDWARE, 0).inherited()])
        }
        Source::Pebs => {
            let kind = unit(linux, "cpu")?;
            let event = |name: &str| -> Result<Attributes> {
                let [config, config1] = described(linux, name)?;
                let event = Attributes::sampling(Counter::Unit { kind, config }, period);
                Ok(event.config1(config1).precise().holding(HARDWARE, 0).inherited().user_only())
            };
            let mut all = Vec::new();
            // Some processors tell latencies only beside this event.
            if linux.path(format!("{DEVICES}/cpu/events/mem-loads-aux")).exists() {
                all.push(event("mem-loads-aux")?);
            }
            all.push(event("mem-loads")?);
            all.push(event("mem-stores")?);
            Ok(all)
        }
    }
}

const DEVICES: &str = "/sys/bus/event_source/devices";

/// The type of a unit.
fn unit(linux: &Linux, name: &str) -> Result<u32> {
    let kind = linux.read_number(format!("{DEVICES}/{name}/type")).map_err(|_| {
        let object = format_args!("accesses by the unit {name}");
        Error::new(Kind::Unsupported, "sample", object, "this machine has none")
    })?;
    Ok(u32::try_from(kind).unwrap_or(u32::MAX))
}

/// `config` and `config1`, the two words of an event of the core's unit, as sysfs describes it, such as
/// `event=0xcd,umask=0x1,ldlat=3`.
fn described(linux: &Linux, name: &str) -> Result<[u64; 2]> {
    let path = format!("{DEVICES}/cpu/events/{name}");
    let text = linux.read(&path)?;
    let mut config = [0_u64; 2];
    for part in text.trim().split(',') {
        let malformed = || Error::malformed(&path, format_args!("{part:?}"));
        let (field, value) = part.split_once('=').unwrap_or((part, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
            None => value.parse(),
        };
        let value = value.map_err(|_| malformed())?;
        let format = linux.read(format!("{DEVICES}/cpu/format/{field}"))?;
        let (word, bits) = format.trim().split_once(':').ok_or_else(malformed)?;
        let word = match word {
            "config" => 0,
            "config1" => 1,
            _ => return Err(malformed()),
        };
        let first = bits.split(['-', ',']).next().and_then(|first| first.parse::<u32>().ok());
        config[word] |= value.checked_shl(first.ok_or_else(malformed)?).ok_or_else(malformed)?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn loads_and_stores_of_intel_are_described_by_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        for (file, text) in [
            ("type", "4\n"),
            ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("events/mem-stores", "event=0xd0,umask=0x82\n"),
            ("format/event", "config:0-7\n"),
            ("format/umask", "config:8-15\n"),
            ("format/ldlat", "config1:0-15\n"),
        ] {
            let path = linux.path(format!("{DEVICES}/cpu/{file}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(described(&linux, "mem-loads").unwrap(), [0x1cd, 3]);
        assert_eq!(described(&linux, "mem-stores").unwrap(), [0x82d0, 0]);
        assert_eq!(attributes(&linux, Source::Pebs, 1000).unwrap().len(), 2);
        let error = attributes(&linux, Source::Ibs, 1000).unwrap_err();
        assert!(error.to_string().contains("has none"), "{error}");
    }

    #[test]
    fn mappings_forks_and_programs_are_read_by_their_layout_and_short_ones_are_none() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end: Vec<u8> = words(&[9, 77, 1, 5]);
        let pair = |low: u64, high: u64| low | high << 32;
        let mut mapped: Vec<u8> = words(&[pair(8, 9), 0x1000, 0x3000, 0x2000, 0, 42, 0, 5]);
        mapped.extend_from_slice(b"/bin/one\0\0\0\0\0\0\0\0");
        mapped.extend_from_slice(&end);
        let (path, inode) = ("/bin/one".to_owned(), 42);
        let code = MappedCode { start: 0x1000, end: 0x4000, offset: 0x2000, inode, path };
        assert_eq!(layout(10, 0, &mapped), Some((77, ThreadEvent::Mapped(Pid(8), code))));
        for length in 0..95 {
            assert_eq!(layout(10, 0, &mapped[..length]), None, "{length}");
        }
        let forked: Vec<u8> = [words(&[pair(8, 3), pair(8, 4), 70]), end.clone()].concat();
        assert_eq!(
            layout(7, 0, &forked),
            Some((77, ThreadEvent::Forked { parent: Pid(3), child: Pid(8) }))
        );
        let named: Vec<u8> = [words(&[pair(8, 9), 0x6f6e65]), end].concat();
        assert_eq!(layout(3, 1 << 13, &named), Some((77, ThreadEvent::Executed(Pid(8)))));
        assert_eq!(layout(3, 0, &named), None);
    }

    #[test]
    fn samples_are_read_by_their_layout_and_short_ones_are_none() {
        let body: Vec<u8> = (0..64_u64).flat_map(u64::to_ne_bytes).collect();
        let access = sampled(Source::Pebs, &body[..64]).unwrap();
        assert_eq!(
            (access.instruction, access.process, access.time, access.cpu),
            (1, Pid(2), 3, 5)
        );
        assert_eq!(access.what, Sampled::Access { address: 4, latency: 6, data_source: 7 });
        assert_eq!(sampled(Source::Pebs, &body[..63]), None);
        let mut clock = body;
        clock[40..48].copy_from_slice(&2_u64.to_ne_bytes());
        let Some(Sample { what: Sampled::Instruction(registers), cpu: 4, .. }) =
            sampled(Source::Clock, &clock)
        else {
            panic!("no instruction");
        };
        assert_eq!((registers[0], registers[17]), (6, 23));
        assert_eq!(sampled(Source::Clock, &clock[..190]), None);
    }
}

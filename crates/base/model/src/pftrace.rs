//! The fault traces of CBMM's kernel (`/pftrace` of its artifact, commit ffc5a23, and what its `read-pftrace`
//! reads): read, written, and turned into this crate's events and back.
//!
//! ```text
//!  .pftrace    records of eight u64, little endian; times in cycles of the time stamp counter
//!    flags | start | end | alloc start | alloc end | clearing | prepare start | prepare end
//!  older       records of seven u64: without `clearing`, and with other numbers for the flags
//!  .rejected   text: flags (hexadecimal) : count, separated by spaces, then zero bytes. Faults below the
//!              threshold (10,000 cycles), of which only the number is known
//! ```
//!
//! Neither file says which it is, how fast the counter ran, or what the threshold was. The layout is told by
//! which one makes sense of more of the file; the rest has to be said by whoever reads it.
//!
//! Always true: no bytes panic; what is written reads back equal; a file is read whole or refused with the byte
//! at which it stops making sense.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::{Fault, FaultCounts, FaultSetup, Flags};
use crate::latency::bucket;
use crate::sums::sum;
use crate::units::{Nanos, Order};

/// Threshold of the original's default, cycles.
pub const THRESHOLD: u64 = 10_000;

/// Names of the flags of the newer layout, from the lowest bit.
pub const FLAGS: [&str; 24] = [
    "HUGE_PAGE",
    "VERY_HUGE_PAGE",
    "BADGER_TRAP",
    "WP",
    "EXEC",
    "NUMA",
    "SWAP",
    "NOT_ANON",
    "NOT_ANON_READ",
    "NOT_ANON_COW",
    "NOT_ANON_SHARED",
    "ZERO",
    "HUGE_ALLOC_FAILED",
    "HUGE_SPLIT",
    "HUGE_PROMOTION",
    "HUGE_PROMOTION_FAILED",
    "HUGE_COPY",
    "CLEARED_MEM",
    "ALLOC_FALLBACK",
    "ALLOC_FALLBACK_RETRY",
    "ALLOC_FALLBACK_RECLAIM",
    "ALLOC_FALLBACK_COMPACT",
    "ALLOC_PREZEROED",
    "ALLOC_NODE_RECLAIM",
];

/// Number in the newer layout of each flag of the older one.
const OLDER: [u32; 14] = [0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 14, 15, 16, 17];

/// What a fault's flags mean in the words of [`Flags`].
const MEANING: [(u32, u64); 9] = [
    (0, Flags::HUGE),
    (3, Flags::PROTECTION | Flags::WRITE),
    (4, Flags::EXECUTE),
    (6, Flags::SWAP | Flags::MAJOR),
    (10, Flags::SHARED_MEMORY),
    (12, Flags::HUGE_FAILED),
    (20, Flags::RECLAIM),
    (21, Flags::COMPACTION),
    (23, Flags::RECLAIM),
];
const NOT_ANON: u32 = 7;
const ZERO: u32 = 11;
const CLEARED: u32 = 17;
const FALLBACK: u32 = 18;

/// The original flags stand in an event's flags from this bit on, so that nothing is lost.
const ORIGINAL: u32 = 32;

/// How long a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Eight words.
    Newer,
    /// Seven words.
    Older,
}

impl Layout {
    /// Bytes of a record.
    pub fn bytes(self) -> usize {
        match self {
            Self::Newer => 64,
            Self::Older => 56,
        }
    }

    fn flag_bits(self) -> u32 {
        match self {
            // One more than there are names: the original's readers use it for "other".
            Self::Newer => FLAGS.len() as u32 + 1,
            Self::Older => OLDER.len() as u32,
        }
    }
}

/// One fault. Times are cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Flags, as the file has them.
    pub flags: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// When allocation began; 0 if nothing was allocated.
    pub alloc_start: u64,
    /// When it ended.
    pub alloc_end: u64,
    /// How long clearing took; the older layout has none.
    pub clearing: u64,
    /// When preparing the memory began.
    pub prepare_start: u64,
    /// When it ended.
    pub prepare_end: u64,
}

impl Record {
    fn parse(bytes: &[u8], layout: Layout) -> Self {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)));
        let mut next = || words.next().unwrap_or(0);
        let (flags, start, end, alloc_start, alloc_end) = (next(), next(), next(), next(), next());
        let clearing = if layout == Layout::Newer { next() } else { 0 };
        let (prepare_start, prepare_end) = (next(), next());
        Self { flags, start, end, alloc_start, alloc_end, clearing, prepare_start, prepare_end }
    }

    /// Why it is no record of this layout.
    fn nonsense(&self, layout: Layout) -> Option<String> {
        /// A day at 4 GHz.
        const LONGEST: u64 = 1 << 48;
        if self.flags >> layout.flag_bits() != 0 {
            return Some(format!("flags {:#x} have bits that mean nothing", self.flags));
        }
        for (what, from, to) in [
            ("the fault", self.start, self.end),
            ("the allocation", self.alloc_start, self.alloc_end),
            ("the preparation", self.prepare_start, self.prepare_end),
        ] {
            if to < from {
                return Some(format!("{what} ends ({to}) before it begins ({from})"));
            }
        }
        if self.start == 0 || self.end - self.start > LONGEST {
            return Some(format!("a fault from {} to {} cycles cannot be", self.start, self.end));
        }
        None
    }

    /// How long it took, cycles.
    pub fn latency(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

fn refuse(name: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Damaged, format_args!("{name}: {why}"))
}

/// The records of a `.pftrace` file; `name` is for messages.
///
/// # Errors
/// It is no whole number of records, or a record cannot be.
pub fn parse(name: &str, bytes: &[u8]) -> Result<(Layout, Vec<Record>)> {
    let whole = |layout: Layout| {
        let mut records = Vec::new();
        for chunk in bytes.chunks_exact(layout.bytes()) {
            let record = Record::parse(chunk, layout);
            if let Some(why) = record.nonsense(layout) {
                return (records, Some(why));
            }
            records.push(record);
        }
        (records, None)
    };
    let (newer, older) = (whole(Layout::Newer), whole(Layout::Older));
    let reach = |layout: Layout, records: &[Record]| records.len() * layout.bytes();
    let (layout, (records, stopped)) =
        if reach(Layout::Older, &older.0) > reach(Layout::Newer, &newer.0) {
            (Layout::Older, older)
        } else {
            (Layout::Newer, newer)
        };
    let (size, at) = (layout.bytes(), reach(layout, &records));
    let expected =
        "expected records of 64 (or 56) bytes: flags, start, end, …, as CBMM's kernel writes them";
    if records.is_empty() && !bytes.is_empty() {
        let why =
            stopped.unwrap_or_else(|| format!("{} bytes are less than one record", bytes.len()));
        return Err(refuse(name, format_args!("this is no pftrace: byte 0: {why} ({expected})")));
    }
    if let Some(why) = stopped {
        return Err(refuse(
            name,
            format_args!("byte {at}, record {}: {why} ({expected})", records.len() + 1),
        ));
    }
    let rest = bytes.len() - at;
    if rest > 0 {
        let records = records.len();
        return Err(refuse(
            name,
            format_args!(
                "truncated: after {records} records, byte {at}, there are {rest} bytes of a record of {size} (cut \
                 them off, or copy the file again)"
            ),
        ));
    }
    Ok((layout, records))
}

/// Records as the bytes of a file.
pub fn encode(layout: Layout, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(records.len() * layout.bytes());
    for record in records {
        let mut word = |value: u64| bytes.extend(value.to_le_bytes());
        let begin = [record.flags, record.start, record.end, record.alloc_start, record.alloc_end];
        begin.into_iter().for_each(&mut word);
        if layout == Layout::Newer {
            word(record.clearing);
        }
        word(record.prepare_start);
        word(record.prepare_end);
    }
    bytes
}

/// Faults below the threshold, of which no record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The flags of the original's layout.
    pub flags: u64,
    /// How many had them.
    pub count: u64,
}

/// The counts of a `.rejected` file; `name` is for messages.
///
/// # Errors
/// It is not of the form that the tool writes.
pub fn parse_rejected(name: &str, bytes: &[u8]) -> Result<Vec<Rejected>> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut counts = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let words = line.split(|byte| byte.is_ascii_whitespace());
        for word in words.filter(|word| !word.is_empty()) {
            let shown = String::from_utf8_lossy(word);
            let pair = shown.split_once(':').and_then(|(flags, count)| {
                let flags = flags.strip_prefix("0x").unwrap_or(flags);
                let flags = u64::from_str_radix(flags, 16).ok()?;
                Some(Rejected { flags, count: count.parse().ok()? })
            });
            let column = word.as_ptr() as usize - line.as_ptr() as usize + 1;
            counts.push(pair.ok_or_else(|| {
                let shown: String = shown.chars().take(40).collect();
                refuse(
                    name,
                    format_args!(
                        "line {}, column {column}: {shown:?}: expected hexadecimal flags, a colon \
                         and a number, such as 80:1234",
                        index + 1
                    ),
                )
            })?);
        }
    }
    if let Some(at) = bytes.iter().skip(text.len()).position(|byte| *byte != 0) {
        let at = text.len() + at;
        return Err(refuse(
            name,
            format_args!("byte {at}: there is something after the zero bytes that end the text"),
        ));
    }
    Ok(counts)
}

/// Counts as the bytes of a `.rejected` file.
pub fn encode_rejected(counts: &[Rejected]) -> Vec<u8> {
    let words: Vec<String> =
        counts.iter().map(|Rejected { flags, count }| format!("{flags:x}:{count}")).collect();
    words.join(" ").into_bytes()
}

/// How cycles and time go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Cycles in a microsecond.
    pub mhz: u64,
}

impl Clock {
    fn nanos(self, cycles: u64) -> Nanos {
        let nanos = u128::from(cycles) * 1000 / u128::from(self.mhz.max(1));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn cycles(self, nanos: Nanos) -> u64 {
        let cycles = u128::from(nanos.0) * u128::from(self.mhz.max(1)) / 1000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }
}

/// A file's flags in the numbers of the newer layout.
fn newer(flags: u64, layout: Layout) -> u64 {
    match layout {
        Layout::Newer => flags,
        Layout::Older => OLDER
            .iter()
            .enumerate()
            .filter(|(bit, _)| flags >> bit & 1 == 1)
            .fold(0, |all, (_, number)| all | 1 << number),
    }
}

/// Flags of an event from those of a file.
fn flags_of(flags: u64, layout: Layout) -> Flags {
    let original = newer(flags, layout);
    let has = |number: u32| original >> number & 1 == 1;
    let mut all =
        MEANING.iter().filter(|(number, _)| has(*number)).fold(0, |all, (_, ours)| all | ours);
    all |= if has(NOT_ANON) { Flags::FILE } else { Flags::ANONYMOUS };
    if has(0) {
        all |= 9 << 24;
    } else if has(CLEARED) || has(3) {
        all |= Flags::BASE;
    }
    Flags(all | (original & 0x1ff_ffff) << ORIGINAL)
}

/// Flags of a file (newer layout) from those of an event.
fn original_of(flags: Flags) -> u64 {
    let original = flags.0 >> ORIGINAL;
    if original != 0 {
        return original;
    }
    let any = |bits: u64| flags.0 & bits != 0;
    let mut all = 0;
    for (number, ours) in MEANING {
        // Major faults that read a file are no swap.
        let all_of = ours & !Flags::MAJOR;
        if number != 23 && flags.has(all_of) {
            all |= 1 << number;
        }
    }
    let anonymous = any(Flags::ANONYMOUS) || !any(Flags::FILE | Flags::SHARED_MEMORY);
    let allocated = any(Flags::HUGE | Flags::LARGE | Flags::BASE);
    for (number, set) in [
        (NOT_ANON, !anonymous),
        (8, any(Flags::FILE) && !any(Flags::WRITE)),
        (ZERO, any(Flags::ANONYMOUS) && !allocated && !any(Flags::WRITE | Flags::SWAP)),
        (CLEARED, any(Flags::ANONYMOUS) && allocated && !any(Flags::PROTECTION | Flags::SWAP)),
        (FALLBACK, any(Flags::RECLAIM | Flags::COMPACTION)),
    ] {
        all |= u64::from(set) << number;
    }
    all
}

/// The events of a trace, in order of time, and the header that goes with them. Rejected faults count as
/// taking just the threshold (cycles), as the original's reader has it.
pub fn events(
    layout: Layout,
    records: &[Record],
    rejected: &[Rejected],
    threshold: u64,
    clock: Clock,
) -> (FaultSetup, Nanos, Vec<Event>) {
    let mut records = records.to_vec();
    records.sort_by_key(|record| record.end);
    let started = clock.nanos(records.iter().map(|record| record.start).min().unwrap_or(0));
    let ended = clock.nanos(records.last().map_or(0, |record| record.end));
    let mut events = Vec::with_capacity(records.len() + 1);
    let mut counts: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for record in &records {
        let flags = flags_of(record.flags, layout);
        let latency = clock.nanos(record.latency());
        *counts.entry(flags.0).or_default().entry(bucket(latency).into()).or_default() += 1;
        let after = record.end.saturating_sub(record.alloc_end);
        events.push(Event::Fault(Box::new(Fault {
            time: clock.nanos(record.end),
            latency,
            flags: Some(flags.0),
            after_allocation: (record.alloc_end > 0).then(|| clock.nanos(after)),
            ..Fault::default()
        })));
    }
    let at_threshold = u64::from(bucket(clock.nanos(threshold)));
    for Rejected { flags, count } in rejected {
        let flags = flags_of(*flags, layout);
        *counts.entry(flags.0).or_default().entry(at_threshold).or_default() += count;
    }
    let mut counted = 0;
    for (flags, buckets) in counts {
        counted += buckets.values().sum::<u64>();
        events.push(Event::FaultCounts(Box::new(FaultCounts {
            time: ended,
            flags: Some(flags),
            buckets: Some(buckets.keys().copied().collect()),
            counts: Some(buckets.values().copied().collect()),
        })));
    }
    let setup = FaultSetup {
        back_end: "pftrace".into(),
        details: true,
        threshold: clock.nanos(threshold),
        in_kernel: true,
        huge_order: Some(Order(9)),
        counted,
        ..FaultSetup::default()
    };
    (setup, started, events)
}

/// Collects the faults of a recording for a `.pftrace` and its `.rejected`.
#[derive(Clone, Debug)]
pub struct Export {
    clock: Clock,
    records: Vec<Record>,
    /// Faults counted, less those with a record, by original flags.
    rest: BTreeMap<u64, i64>,
}

impl Export {
    /// Nothing yet; times are written in cycles of this clock.
    pub fn new(clock: Clock) -> Self {
        Self { clock, records: Vec::new(), rest: BTreeMap::new() }
    }

    /// Takes an event in; other kinds than faults and their counts are passed over.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Fault(fault) => {
                let flags = original_of(Flags(fault.flags.unwrap_or(0)));
                let (end, latency) =
                    (self.clock.cycles(fault.time), self.clock.cycles(fault.latency));
                let start = end.saturating_sub(latency);
                let after =
                    fault.after_allocation.map(|after| self.clock.cycles(after).min(latency));
                let allocated = after.map_or(0, |after| end - after);
                let when = |time: u64| if after.is_some() { time } else { 0 };
                self.records.push(Record {
                    flags,
                    start,
                    end,
                    alloc_start: when(start),
                    alloc_end: allocated,
                    clearing: if flags >> CLEARED & 1 == 1 { after.unwrap_or(0) } else { 0 },
                    prepare_start: allocated,
                    prepare_end: when(end),
                });
                *self.rest.entry(flags).or_default() -= 1;
            }
            Event::FaultCounts(row) => {
                let flags = original_of(Flags(row.flags.unwrap_or(0)));
                let counted = sum(row.counts.iter().flatten().copied());
                let rest = self.rest.entry(flags).or_default();
                *rest = rest.saturating_add(i64::try_from(counted).unwrap_or(i64::MAX));
            }
            _ => {}
        }
    }

    /// The content of the two files.
    pub fn files(&self) -> (Vec<u8>, Vec<u8>) {
        let rest = self.rest.iter().filter(|(_, count)| **count > 0);
        let rest = rest.map(|(&flags, count)| Rejected { flags, count: count.unsigned_abs() });
        let rest: Vec<Rejected> = rest.collect();
        (encode(Layout::Newer, &self.records), encode_rejected(&rest))
    }

    /// Records and rejected faults so far.
    pub fn amount(&self) -> (usize, u64) {
        let rest = self.rest.values().filter(|count| **count > 0);
        (self.records.len(), rest.map(|count| count.unsigned_abs()).sum())
    }
}

/// Where the counts of a trace are: the same name with another ending.
pub fn counts_beside(trace: &Path) -> PathBuf {
    trace.with_extension("rejected")
}

#[cfg(test)]
mod tests;

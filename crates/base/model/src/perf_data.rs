//! `perf.data`, the file that `perf record` writes (tools/perf/Documentation/perf.data-file-format.txt of
//! Linux): accesses that other machines and other tools sampled.
//!
//! ```text
//!  header   "PERFILE2" | size 8 | size of an attribute 8 | attributes: offset 8, size 8 | data: offset 8, size 8 | …
//!  attribute  perf_event_attr | identifiers: offset 8, size 8
//!  data     records: type 4 | misc 2 | size 2 | body
//!  features   of each that the header's flags name: offset 8, size 8; the last that is written
//! ```
//!
//! What a sample holds, and in which order, is said by its event's attribute; of several events, the one
//! whose identifier the sample carries.
//!
//! Always true: no bytes make the reader panic or read beyond the file; what is no such file, or ends in
//! the middle of a record, is an error that names the byte.

use std::collections::HashMap;
use std::ops::Range;

use crate::access::Access;
use crate::fault::{Flags, MappingSample};
use crate::units::Nanos;

/// A file, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerfData {
    /// Samples with an address, in the order of their times.
    pub accesses: Vec<Access>,
    /// Mappings, in the order of the file.
    pub mappings: Vec<MappingSample>,
    /// Process and name of the first program that was executed.
    pub program: Option<(u64, String)>,
    /// Samples without an address: those of events that have none.
    pub without_address: u64,
    /// Records that perf itself lost.
    pub lost: u64,
    /// Whether samples say if they read or wrote.
    pub says_kind: bool,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which byte.
    pub at: u64,
    /// What is there, and what was expected.
    pub why: String,
}

/// An event's attribute, as far as samples depend on it.
#[derive(Clone, Copy, Debug)]
struct Attribute {
    sample: u64,
    read: u64,
    branch: u64,
    user_registers: u64,
}

/// Bits of `sample_type` (perf_event_open(2)), which say what a sample holds.
#[expect(missing_docs, reason = "the manual page has them")]
pub mod bit {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCHES: u64 = 1 << 11;
    pub const USER_REGISTERS: u64 = 1 << 12;
    pub const USER_STACK: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const SOURCE: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const WEIGHTS: u64 = 1 << 24;
}

/// Bytes, read from the front.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// As many entries of so many bytes as a count says.
    fn skip(&mut self, count: u64, size: u64) -> Option<()> {
        let length = usize::try_from(count.checked_mul(size)?).ok()?;
        self.take(length).map(|_| ())
    }

    /// Text up to a NUL.
    fn text(self) -> String {
        let end = self.rest.iter().position(|byte| *byte == 0).unwrap_or(self.rest.len());
        String::from_utf8_lossy(&self.rest[..end]).into_owned()
    }
}

fn damage(at: u64, why: &str) -> Damage {
    Damage { at, why: why.to_owned() }
}

/// A part of a file, if all of it is there.
fn part(file: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let (start, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    file.get(start..start.checked_add(size)?)
}

/// Where the parts of a file are.
struct Header {
    /// Bytes of an attribute with where its identifiers are.
    entry: u64,
    attributes_at: u64,
    attributes_size: u64,
    data_at: u64,
    data_size: u64,
    /// How many features follow the records.
    features: u32,
}

impl Header {
    fn read(file: &[u8]) -> Result<Self, Damage> {
        let mut header = Bytes { rest: file };
        match header.take(8) {
            Some(b"PERFILE2") => {}
            Some(b"2ELIFREP") => {
                return Err(damage(0, "it is of a machine of the other byte order"));
            }
            _ => return Err(damage(0, "it does not begin with PERFILE2, so it is no perf.data")),
        }
        let cut = || damage(file.len() as u64, "it is cut off in its header");
        match header.long().ok_or_else(cut)? {
            16 => {
                let why = "it was written to a pipe (write a file: perf record -o FILE)";
                return Err(damage(8, why));
            }
            104.. => {}
            _ => return Err(damage(8, "its header has an unknown size")),
        }
        let mut long = || header.long().ok_or_else(cut);
        let (entry, attributes_at, attributes_size) = (long()?, long()?, long()?);
        let (data_at, data_size) = (long()?, long()?);
        if data_size == 0 {
            return Err(damage(48, "it has no records: perf record did not finish"));
        }
        long()?;
        long()?;
        let features = (0..4).map(|_| long().map(u64::count_ones)).sum::<Result<u32, Damage>>()?;
        if entry < 80 {
            return Err(damage(16, "its attributes are too short"));
        }
        Ok(Self { entry, attributes_at, attributes_size, data_at, data_size, features })
    }
}

/// The events of a file.
struct Events {
    first: Attribute,
    all: Vec<Attribute>,
    by_identifier: HashMap<u64, usize>,
}

impl Events {
    fn read(file: &[u8], header: &Header) -> Result<Self, Damage> {
        let attributes = part(file, header.attributes_at, header.attributes_size)
            .ok_or_else(|| damage(header.attributes_at, "it is cut off in its attributes"))?;
        let entry = header.entry as usize;
        let mut all: Vec<Attribute> = Vec::new();
        let mut by_identifier = HashMap::new();
        for one in attributes.chunks_exact(entry) {
            let at = |offset: usize| -> u64 {
                let (mut bytes, inside) = (Bytes { rest: one }, entry - 16);
                let found =
                    if offset + 8 <= inside { bytes.take(offset).and(bytes.long()) } else { None };
                found.unwrap_or(0)
            };
            all.push(Attribute {
                sample: at(24),
                read: at(32),
                branch: at(72),
                user_registers: at(80),
            });
            let mut identifiers = Bytes { rest: &one[entry - 16..] };
            let (offset, size) = (identifiers.long().unwrap_or(0), identifiers.long().unwrap_or(0));
            let mut identifiers = Bytes {
                rest: part(file, offset, size)
                    .ok_or_else(|| damage(offset, "it is cut off in its identifiers"))?,
            };
            while let Some(identifier) = identifiers.long() {
                by_identifier.insert(identifier, all.len() - 1);
            }
        }
        let Some(first) = all.first().copied() else {
            return Err(damage(header.attributes_at, "it names no event"));
        };
        Ok(Self { first, all, by_identifier })
    }

    /// The one that a sample is of.
    fn of(&self, body: Bytes<'_>) -> Option<Attribute> {
        if self.all.len() == 1 {
            return Some(self.first);
        }
        let at = self.by_identifier.get(&identifier(body, self.first)?)?;
        self.all.get(*at).copied()
    }
}

/// A record of a file.
struct Record<'a> {
    at: u64,
    kind: u32,
    misc: u32,
    /// Bytes, with its head.
    size: u64,
    body: Bytes<'a>,
}

impl<'a> Record<'a> {
    /// The one at a byte, which ends at `end` at the latest.
    fn read(file: &'a [u8], Range { start: at, end }: Range<u64>) -> Result<Self, Damage> {
        let head = part(file, at, 8).ok_or_else(|| damage(at, "it is cut off in its records"))?;
        let mut head = Bytes { rest: head };
        let kind = head.word().unwrap_or(0);
        let misc_and_size = head.word().unwrap_or(0);
        let (misc, size) = (misc_and_size & 0xffff, u64::from(misc_and_size >> 16));
        let body = (size >= 8).then(|| part(file, at + 8, size - 8)).flatten();
        let Some(body) = body.filter(|_| at + size <= end) else {
            let why = format!("a record of {size} bytes does not fit into what is left");
            return Err(Damage { at, why });
        };
        Ok(Self { at, kind, misc, size, body: Bytes { rest: body } })
    }

    fn too_short(&self) -> Damage {
        damage(self.at, "a record is shorter than what it should hold")
    }

    /// Bytes that follow it and are no record.
    fn content(&self, file: &[u8]) -> Result<u64, Damage> {
        if self.kind != 71 {
            return Ok(0);
        }
        let mut body = self.body;
        let content = body.long().ok_or_else(|| self.too_short())?;
        match part(file, self.at + self.size, content) {
            Some(_) => Ok(content),
            None => Err(damage(self.at, "its content is cut off")),
        }
    }
}

/// Reads a whole file.
///
/// # Errors
/// What is damaged in it, and where.
pub fn read(file: &[u8]) -> Result<PerfData, Damage> {
    let header = Header::read(file)?;
    let events = Events::read(file, &header)?;
    let mut out = PerfData::default();
    let (mut at, end) = (header.data_at, header.data_at.saturating_add(header.data_size));
    while at < end {
        let record = Record::read(file, at..end)?;
        out.take(&record, &events)?;
        at = at.saturating_add(record.content(file)?).saturating_add(record.size);
    }
    are_there(file, end, header.features)?;
    out.accesses.sort_by_key(|access| access.time);
    Ok(out)
}

impl PerfData {
    /// Takes in what a record holds.
    fn take(&mut self, record: &Record<'_>, events: &Events) -> Result<(), Damage> {
        let (mut body, misc) = (record.body, record.misc);
        let wrong = || record.too_short();
        match record.kind {
            kind @ (1 | 10) => {
                self.mappings.extend(mapping(body, kind == 10, misc).ok_or_else(wrong)?);
            }
            2 => {
                let lost = (body.long(), body.long());
                self.lost = self.lost.saturating_add(lost.1.ok_or_else(wrong)?);
            }
            3 => {
                let pid = body.word().ok_or_else(wrong)?;
                body.word().ok_or_else(wrong)?;
                // Bit 13: by executing a program, not by naming a thread.
                if misc & 1 << 13 != 0 && self.program.is_none() {
                    self.program = Some((pid.into(), body.text()));
                }
            }
            9 => {
                let event = events.of(body);
                let event =
                    event.ok_or_else(|| damage(record.at, "a sample is of no known event"))?;
                match sample(body, event, misc).ok_or_else(wrong)? {
                    Some(access) => {
                        self.says_kind |= access.flags.is_some();
                        self.accesses.push(access);
                    }
                    None => self.without_address += 1,
                }
            }
            81 | 83 => {
                let why = "its records are compressed (record without -z)";
                return Err(damage(record.at, why));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether what perf writes after the records is whole. None of it is needed here, but who finds half of a file does
/// not know what else is gone.
fn are_there(file: &[u8], at: u64, features: u32) -> Result<(), Damage> {
    let cut = |at: u64| Damage { at, why: "it is cut off after its records".to_owned() };
    let inside = |offset: u64, size: u64| {
        offset.checked_add(size).is_some_and(|end| end <= file.len() as u64)
    };
    let length = u64::from(features) * 16;
    if !inside(at, length) {
        return Err(cut(at));
    }
    let mut table = Bytes { rest: &file[at as usize..][..length as usize] };
    while let (Some(offset), Some(size)) = (table.long(), table.long()) {
        if !inside(offset, size) {
            return Err(cut(offset));
        }
    }
    Ok(())
}

/// The identifier of a sample, where all events of a file have it at the same place.
fn identifier(mut body: Bytes<'_>, attribute: Attribute) -> Option<u64> {
    if attribute.sample & bit::IDENTIFIER == 0 {
        let before = [bit::IP, bit::TID, bit::TIME, bit::ADDR];
        let before = before.iter().filter(|bit| attribute.sample & **bit != 0).count();
        if attribute.sample & bit::ID == 0 {
            return None;
        }
        body.skip(before as u64, 8)?;
    }
    body.long()
}

/// Whether the kernel was at work (the low bits of `misc`).
fn in_kernel(misc: u32) -> bool {
    misc & 7 == 1
}

/// An access; the inner `None`: the sample has no address. The outer: it is too short.
fn sample(mut body: Bytes<'_>, attribute: Attribute, misc: u32) -> Option<Option<Access>> {
    let has = |bit: u64| attribute.sample & bit != 0;
    let mut access = Access::default();
    if has(bit::IDENTIFIER) {
        body.long()?;
    }
    if has(bit::IP) {
        access.instruction = Some(body.long()?);
    }
    if has(bit::TID) {
        access.pid = Some(body.word()?.into());
        access.tid = Some(body.word()?.into());
    }
    if has(bit::TIME) {
        access.time = Nanos(body.long()?);
    }
    if has(bit::ADDR) {
        access.address = Some(body.long()?).filter(|address| *address != 0);
    }
    if has(bit::ID) {
        body.long()?;
    }
    if has(bit::STREAM) {
        body.long()?;
    }
    if has(bit::CPU) {
        access.cpu = Some(body.word()?.into());
        body.word()?;
    }
    if has(bit::PERIOD) {
        body.long()?;
    }
    skip_variable(&mut body, attribute)?;
    if has(bit::WEIGHT) {
        access.latency = Some(body.long()?).filter(|cycles| *cycles != 0);
    } else if has(bit::WEIGHTS) {
        // The first half is the latency.
        access.latency = Some(body.long()? & 0xffff_ffff).filter(|cycles| *cycles != 0);
    }
    let mut flags = None;
    if has(bit::SOURCE) {
        let source = body.long()?;
        access.data_source = Some(source);
        flags = kind(source);
    }
    if in_kernel(misc) {
        flags = flags.map(|flags| flags | Flags::IN_KERNEL);
    }
    access.flags = flags;
    Some(access.address.is_some().then_some(access))
}

/// Skips the parts of a sample whose length is said by what they hold: all between its period and its weight.
fn skip_variable(body: &mut Bytes<'_>, attribute: Attribute) -> Option<()> {
    let has = |bit: u64| attribute.sample & bit != 0;
    if has(bit::READ) {
        let read = attribute.read;
        let times = u64::from((read & 3).count_ones());
        let each = 1 + u64::from((read & (4 | 16)).count_ones());
        if read & 8 != 0 {
            let count = body.long()?;
            body.skip(times, 8)?;
            body.skip(count, each * 8)?;
        } else {
            body.skip(times + each, 8)?;
        }
    }
    if has(bit::CALLCHAIN) {
        let count = body.long()?;
        body.skip(count, 8)?;
    }
    if has(bit::RAW) {
        let size = body.word()?;
        body.skip(size.into(), 1)?;
    }
    if has(bit::BRANCHES) {
        let count = body.long()?;
        // The index into the hardware's buffer, if it was asked for.
        body.skip(attribute.branch >> 17 & 1, 8)?;
        body.skip(count, 24)?;
    }
    if has(bit::USER_REGISTERS) && body.long()? != 0 {
        body.skip(attribute.user_registers.count_ones().into(), 8)?;
    }
    if has(bit::USER_STACK) {
        let size = body.long()?;
        body.skip(size, 1)?;
        if size != 0 {
            body.long()?;
        }
    }
    Some(())
}

/// The flags of an access by its data source; `None` if that does not say whether it reads.
pub fn kind(data_source: u64) -> Option<u64> {
    match data_source & 31 {
        operation if operation & 4 != 0 => Some(Flags::WRITE),
        operation if operation & 16 != 0 => Some(Flags::EXECUTE),
        operation if operation & (2 | 8) != 0 => Some(0),
        _ => None,
    }
}

/// Whether an access found its address in no TLB, so that page tables were walked for it; `None` if its data source
/// does not say.
pub fn walked(data_source: u64) -> Option<bool> {
    // `mem_dtlb`: not available, hit, miss, first level, second level, the walker, the system.
    let tlb = data_source >> 26 & 0x7f;
    (tlb & !1 != 0).then_some(tlb & 0x60 != 0 || tlb & 0x14 == 0x14)
}

/// The mapping of a record; the inner `None`: one of the kernel.
fn mapping(mut body: Bytes<'_>, second: bool, misc: u32) -> Option<Option<MappingSample>> {
    let pid = body.word()?;
    body.word()?;
    let (start, length) = (body.long()?, body.long()?);
    body.long()?;
    let mut permissions = None;
    if second {
        // Device and inode, or a build ID: of the same length.
        body.skip(3, 8)?;
        let (protection, flags) = (body.word()?, body.word()?);
        let letter = |bit: u32, letter: char| if protection & bit != 0 { letter } else { '-' };
        let shared = if flags & 1 != 0 { 's' } else { 'p' };
        permissions =
            Some([letter(1, 'r'), letter(2, 'w'), letter(4, 'x'), shared].iter().collect());
    }
    let name = match body.text() {
        anonymous if anonymous.starts_with("//anon") => String::new(),
        name => name,
    };
    Some((!in_kernel(misc)).then(|| MappingSample {
        pid: Some(pid.into()),
        start: Some(start),
        end: Some(start.saturating_add(length)),
        permissions,
        name: Some(name),
        ..MappingSample::default()
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: u64 = bit::IDENTIFIER
        | bit::IP
        | bit::TID
        | bit::TIME
        | bit::ADDR
        | bit::CPU
        | bit::CALLCHAIN
        | bit::SOURCE;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend((body.len() as u16 + 8).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn longs(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn sampled(identifier: u64, time: u64, address: u64, source: u64) -> Vec<u8> {
        let ids = 7 | 8 << 32;
        record(9, 2, &longs(&[identifier, 0x4000, ids, time, address, 3, 2, 11, 12, source]))
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let data = records.concat();
        let attribute = |first: u64| {
            let mut one = vec![0; 112];
            one[24..32].copy_from_slice(&SAMPLE.to_le_bytes());
            [one, longs(&[first, 8])].concat()
        };
        // Header 104, two identifiers, two attributes, data.
        let attributes = [attribute(104), attribute(112)].concat();
        let data_at = 120 + attributes.len() as u64;
        let mut bytes = b"PERFILE2".to_vec();
        let lengths =
            [104, 128, 120, attributes.len() as u64, data_at, data.len() as u64, 0, 0, 0, 0, 0, 0];
        bytes.extend(longs(&lengths));
        bytes.extend(longs(&[70, 71]));
        [bytes, attributes, data].concat()
    }

    fn whole() -> Vec<u8> {
        let mut mapped = longs(&[7 | 7 << 32, 0x1000, 0x2000, 0, 0, 0, 0, 3 | 2 << 32]);
        mapped.extend(b"/bin/cat\0\0\0\0\0\0\0\0");
        let mut named = longs(&[7 | 7 << 32]);
        named.extend(b"cat\0\0\0\0\0");
        file(&[
            record(3, 1 << 13, &named),
            record(10, 2, &mapped),
            sampled(71, 20, 0x1234, 4),
            sampled(70, 10, 0x1000, 2 | 8 << 5),
            sampled(70, 30, 0, 0),
            record(2, 0, &longs(&[70, 5])),
        ])
    }

    #[test]
    fn samples_mappings_and_losses_are_read() {
        let read = read(&whole()).unwrap();
        assert_eq!(read.program, Some((7, "cat".into())));
        assert_eq!((read.lost, read.without_address, read.says_kind), (5, 1, true));
        let mapping = &read.mappings[0];
        assert_eq!((mapping.start, mapping.end), (Some(0x1000), Some(0x3000)));
        assert_eq!(mapping.permissions.as_deref(), Some("rw-p"));
        let [first, second] = &read.accesses[..] else { panic!("{read:?}") };
        assert_eq!((first.time, first.flags, first.data_source), (Nanos(10), Some(0), Some(0x102)));
        assert_eq!(
            (second.address, second.flags, second.tid),
            (Some(0x1234), Some(Flags::WRITE), Some(8))
        );
        assert_eq!(second.cpu, Some(3));
    }

    #[test]
    fn what_is_damaged_is_an_error_that_names_the_byte() {
        let bytes = whole();
        assert_eq!(read(b"PK").unwrap_err().at, 0);
        assert!(read(&bytes[..50]).unwrap_err().why.contains("header"));
        let cut = read(&bytes[..bytes.len() - 3]).unwrap_err();
        assert!(cut.at > 300 && cut.why.contains("does not fit"), "{cut:?}");
        let mut piped = bytes.clone();
        piped[8] = 16;
        assert!(read(&piped).unwrap_err().why.contains("pipe"));
        assert!(read(&file(&[sampled(99, 1, 1, 0)])).unwrap_err().why.contains("no known event"));
        assert!(read(&file(&[record(9, 0, &[0; 8])])).is_err());
    }

    /// Half of a file whose larger half stands after its records was taken for a whole one.
    #[test]
    fn every_beginning_of_a_file_is_refused() {
        let mut bytes = whole();
        bytes[72] = 1 << 2 | 1 << 3;
        let end = bytes.len() as u64;
        bytes.extend(longs(&[end + 32, 40, end + 72, 8]));
        bytes.extend([0; 48]);
        assert_eq!(read(&bytes).unwrap(), read(&whole()).unwrap());
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
    }

    #[test]
    fn content_that_is_cut_off_is_missed() {
        let auxiliary = |length: u64| {
            let head = record(71, 0, &longs(&[length, 0, 0, 0, 0]));
            read(&file(&[sampled(70, 1, 0x1000, 2), [head, vec![0; 16]].concat()]))
        };
        assert_eq!(auxiliary(16).unwrap().accesses.len(), 1);
        assert!(auxiliary(24).unwrap_err().why.contains("cut off"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = whole();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            // Whatever comes of it, it comes.
            let _ = read(&bytes);
        }
    }
}

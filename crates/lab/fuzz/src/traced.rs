//! What is told of a traced program: by the emulator's plugin, which runs within it, by the kernel's rings, and by its
//! own code, which is decoded.

use std::time::Duration;

use iced_x86::InstructionInfoFactory;
use pagemill_kernel::trace::access_samples::{Registers, Source, ThreadEvent};
use pagemill_kernel::trace::bpf::accesses;
use pagemill_kernel::trace::bpf::faults::FaultEvent;
use pagemill_kernel::trace::perf_event::Record;
use pagemill_model::page;
use pagemill_model::recording::{Meta, Writer};
use pagemill_record::recorders::blocks::FileCode;
use pagemill_record::recorders::exact::Exact;
use pagemill_record::recorders::faults::pairing::{Mark, Paired, Pairing, Sample};
use pagemill_record::recorders::nearest::{self, Site};
use pagemill_tracer::exact::Stream;
/// The stream of the emulator's plugin, in two pieces, to its rows. The first byte says how long an interval is.
pub fn emulator(bytes: &[u8]) {
    let Some((interval, bytes)) = bytes.split_first() else { return };
    let mut writer = Writer::passing(Meta::default());
    let interval = Duration::from_nanos(1 << (interval % 40));
    let mut exact = Exact::new(&mut writer, page::BASE, interval);
    let mut stream = Stream::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for piece in [first, second] {
        if !stream.take(piece, &mut |event| exact.take(event)) {
            break;
        }
    }
    exact.finish();
}

/// Records of rings: type 4, misc 2, size 2, body, as the kernel has them.
pub fn records(mut bytes: &[u8]) {
    let mut pairing = Pairing::default();
    let mut until = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let misc = u16::from_le_bytes([head[4], head[5]]);
        let size = usize::from(u16::from_le_bytes([head[6], head[7]])).saturating_sub(8);
        let (body, rest) = rest.split_at(size.min(rest.len()));
        bytes = rest;
        if let Some(Record::Sample(sample)) = Record::parse(kind, body) {
            let mark = match sample.identifier % 3 {
                0 => Mark::Begin,
                which => Mark::End { major: which == 1 },
            };
            let (process, thread) = (sample.process, sample.thread);
            let (time, address) = (sample.time, sample.address);
            pairing.sample(Sample { time, mark, process, thread, address });
            until = time;
        }
        for source in [Source::Pebs, Source::Ibs, Source::Clock] {
            let _ = ThreadEvent::parse(source, (kind, misc), body);
        }
        let _ = (FaultEvent::parse(body), accesses::Access::parse(body));
        // As when the rings are read now and then.
        if misc % 3 == 0 {
            pairing.pair(until, possible);
        }
    }
    pairing.pair(u64::MAX, possible);
}

/// A fault that lasted until it ended.
fn possible(paired: Paired) {
    assert!(paired.latency <= paired.end.time, "{paired:?}");
}

/// Registers, and the code around the instruction that was about to run: the first byte says how much of it is behind.
pub fn code(bytes: &[u8]) {
    let Some((behind, rest)) = bytes.split_first() else { return };
    let Some((registers, code)) = rest.split_first_chunk::<{ 18 * 8 }>() else { return };
    let (longs, _) = registers.as_chunks::<8>();
    let mut all: Registers = [0; 18];
    for (register, long) in all.iter_mut().zip(longs) {
        *register = u64::from_le_bytes(*long);
    }
    let at = all[8];
    let behind = usize::from(*behind).min(code.len()).min(at as usize);
    let begins = at - behind as u64;
    // One address in 32 is jumped to.
    let enters = |range: std::ops::Range<u64>| range.start / 32 < range.end / 32;
    let site = Site {
        ahead: nearest::ahead(&code[behind..], at),
        behind: nearest::behind(code, begins, at, enters),
    };
    let _ = site.access(&mut InstructionInfoFactory::new(), &all);
}

/// The code of a program's file: functions, and what is jumped to.
pub fn file_code(image: &[u8]) {
    let Some(code) = FileCode::read(image) else { return };
    for offset in [0, 1, image.len() as u64 / 2, u64::MAX] {
        let Some(address) = code.address(offset) else { continue };
        let _ = (code.following(address, 100), code.enters(address..u64::MAX));
        if let Some(function) = code.function(address) {
            let _ = code.bytes(function);
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

pub fn emulator_seeds() -> Vec<Vec<u8>> {
    const BLOCK: u32 = 0x3165_6770;
    const NAMES: u32 = 0x326d_6e70;
    let now = 1 << 50;
    let record =
        |long: [u64; 4], count: u32, kind: u32| [longs(&long), words(&[count, kind])].concat();
    let text =
        b"1000-3000 rw-p 00000000 00:00 0 [heap]\n3000-9000 r-xp 00000000 fe:00 7 /bin/true\n";
    let names = |bytes: &[u8]| [words(&[NAMES, 7, 8, bytes.len() as u32]), bytes.to_vec()].concat();
    let records = [
        record([0x1000, 0x9000, 3, 0], 0, 16),
        record([0x1000, 0x2000, 0, 0], 0, 17),
        record([0x8800, 0, 0, 0], 0, 18),
        record([0x1234, 0x5678, now, now + 5], 3, 0),
        record([0x2234, 0x5678, now + 9, now + 15], 1, 1),
        record([0x5678, 0x5678, now + 9, now + 15], 1, 2),
        record([0x2000, 0x5678, now + 900, now + (1 << 31)], 1, 20),
        record([0, 0, 0, 0], 0, 19),
    ];
    let block = [words(&[BLOCK, 7, 8, records.len() as u32]), records.concat()].concat();
    let whole = [names(text), names(b""), block.clone(), block].concat();
    vec![[vec![4], whole.clone()].concat(), [vec![29], whole].concat()]
}

pub fn records_seeds() -> Vec<Vec<u8>> {
    let record = |kind: u32, misc: u16, body: &[u8]| {
        let size = (body.len() as u16 + 8).to_le_bytes();
        [&kind.to_le_bytes(), &misc.to_le_bytes()[..], &size, body].concat()
    };
    let sample = |identifier: u64, time: u64, address: u64| {
        record(9, 1, &longs(&[identifier, 7 | 8 << 32, time, address]))
    };
    let faults = [sample(0, 10, 0x1000), sample(1, 20, 0x1000), sample(0, 15, 0x2000)].concat();
    let mut clock = longs(&(0..26).collect::<Vec<_>>());
    clock[40] = 2;
    let mut mapped = longs(&[7 | 7 << 32, 0x1000, 0x2000, 0, 0, 9, 0, 0]);
    mapped.extend(b"/bin/cat\0\0\0\0\0\0\0\0");
    mapped.extend(longs(&[7 | 7 << 32, 77, 0, 5]));
    let ends = longs(&[7 | 7 << 32, 77, 0, 5]);
    let all = [
        record(9, 3, &clock),
        record(10, 2, &mapped),
        record(7, 0, &[longs(&[8 | 7 << 32, 8 | 7 << 32, 77]), ends.clone()].concat()),
        record(3, 1 << 13, &[longs(&[7 | 7 << 32, 0x74]), ends].concat()),
        record(2, 0, &longs(&[1, 5])),
    ];
    vec![faults, all.concat()]
}

pub fn code_seeds() -> Vec<Vec<u8>> {
    // Stores, a jump, steps of registers, a load by a computed address, a call.
    let code: [&[u8]; 9] = [
        &[0x4c, 0x89, 0x03],
        &[0x75, 0xf0],
        &[0x48, 0x83, 0xc3, 0x40],
        &[0x48, 0x63, 0xd0],
        &[0x48, 0x8b, 0x54, 0xd5, 0x00],
        &[0x48, 0x8d, 0x5c, 0x3b, 0xf8],
        &[0x48, 0xc1, 0xe3, 0x03],
        &[0x53],
        &[0xe8, 0, 0, 0, 0],
    ];
    let code = code.concat();
    let mut registers: Vec<u64> = (0..18).map(|number| number << 12).collect();
    registers[8] = 0x40_0000;
    let ends = [3, 5, 9, 12, 17].map(|behind| [vec![behind], longs(&registers), code.clone()]);
    ends.map(|parts| parts.concat()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_kernel::trace::access_samples::Sampled;

    #[test]
    fn the_seeds_are_records() {
        let seed = &records_seeds()[1];
        let size = usize::from(u16::from_le_bytes([seed[6], seed[7]]));
        let sample = ThreadEvent::parse(Source::Clock, (9, 3), &seed[8..size]);
        let Some((_, ThreadEvent::Sample(sample))) = sample else { panic!("{sample:?}") };
        assert!(matches!(sample.what, Sampled::Instruction(_)), "{sample:?}");
        let mut told = 0;
        let stream = emulator_seeds().remove(0);
        assert!(Stream::default().take(&stream[1..], &mut |_| told += 1));
        assert_eq!(told, 1 + 16);
    }
}

//! Recordings of known content.

use std::path::Path;

use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Access, AccessSetup, Allocation, Bytes, Event, HeapSample, Nanos, Touched};

/// Two functions ask for memory; the 1 MiB of one are not touched after an eighth of the time, the 64 KiB of the other
/// always.
pub fn with_cold_memory(path: &Path) {
    let page_size = Bytes(4096);
    let meta = Meta { page_size, accesses: Some(AccessSetup::default()), ..Meta::default() };
    let mut writer = Writer::create(path, meta, false, None).unwrap();
    const MS: u64 = 1_000_000;
    let (page, cold, hot) = (4096_u64, 0x10_0000_u64, 0x80_0000_u64);
    for (address, pages, stack) in
        [(cold, 256, vec![0x5000, 0x6000]), (hot, 16, vec![0x7000, 0x6000])]
    {
        writer
            .event(&Event::Allocation(Box::new(Allocation {
                time: Nanos(1),
                pid: Some(7),
                address: Some(address),
                size: Some(pages * page),
                stack: Some(stack),
            })))
            .unwrap();
    }
    for interval in 0..64_u64 {
        let touched = if interval < 8 { vec![(cold, 256), (hot, 16)] } else { vec![(hot, 16)] };
        let began = Nanos(2 + interval * 10 * MS);
        for &(start, pages) in &touched {
            for number in 0..pages {
                writer
                    .event(&Event::Access(Box::new(Access {
                        time: Nanos(began.0 + number),
                        pid: Some(7),
                        tid: Some(7),
                        address: Some(start + number * page),
                        instruction: Some(0x9000),
                        flags: Some(0),
                        ..Access::default()
                    })))
                    .unwrap();
            }
        }
        writer
            .event(&Event::Touched(Box::new(Touched {
                time: Nanos(began.0 + 9 * MS),
                pid: Some(7),
                began: Some(began),
                starts: Some(touched.iter().map(|run| run.0).collect()),
                pages: Some(touched.iter().map(|run| run.1).collect()),
                ..Touched::default()
            })))
            .unwrap();
        writer
            .event(&Event::Heap(Box::new(HeapSample {
                time: Nanos(began.0 + 9 * MS),
                pss: Some(Bytes(interval << 20)),
                ..HeapSample::default()
            })))
            .unwrap();
    }
    writer.finish(Nanos(660 * MS)).unwrap();
}

use proptest::prelude::*;

use super::*;

fn record(start: u64, latency: u64, flags: u64) -> Record {
    Record {
        flags,
        start,
        end: start + latency,
        alloc_start: start,
        alloc_end: start + latency / 3,
        clearing: 0,
        prepare_start: start + latency / 3,
        prepare_end: start + latency,
    }
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (1..1u64 << 50, 1..1u64 << 30, 0..1u64 << 14);
    prop::collection::vec(
        one.prop_map(|(start, latency, flags)| record(start, latency, flags)),
        1..40,
    )
}

fn message(bytes: &[u8]) -> String {
    parse("t.pftrace", bytes).unwrap_err().to_string()
}

#[test]
fn both_layouts_are_told_apart() {
    let all: Vec<_> = (1..100).map(|i| record(i * 1_000_000, 20_000 + i, i % 0x3fff)).collect();
    for layout in [Layout::Newer, Layout::Older] {
        let bytes = encode(layout, &all);
        assert_eq!(bytes.len(), all.len() * layout.bytes());
        assert_eq!(parse("t.pftrace", &bytes).unwrap(), (layout, all.clone()));
    }
    assert_eq!(parse("t.pftrace", &[]).unwrap().1, []);
}

#[test]
fn a_truncated_file_says_where_and_how_much_is_missing() {
    let all: Vec<_> = (1..4).map(|i| record(i * 1_000_000, 20_000, 1)).collect();
    let bytes = encode(Layout::Newer, &all);
    let error = message(&bytes[..150]);
    assert!(
        error.contains(
            "t.pftrace: truncated: after 2 records, byte 128, there are 22 bytes of a record of 64"
        ),
        "{error}"
    );
    let error = message(&bytes[..30]);
    assert!(error.contains("no pftrace: byte 0: 30 bytes are less than one record"), "{error}");
}

#[test]
fn a_foreign_file_is_refused_with_what_was_expected() {
    let error = message(
        &b"\x7fELF and much more text than there is in a record of sixty-four bytes".repeat(4),
    );
    assert!(
        error.contains("this is no pftrace: byte 0: flags 0x")
            && error.contains("expected records"),
        "{error}"
    );
    let mut bytes =
        encode(Layout::Newer, &[record(5, 10, 1), record(50, 10, 1), record(90, 10, 1)]);
    bytes[64 + 8..64 + 16].fill(0xff);
    let error = message(&bytes);
    assert!(error.contains("byte 64, record 2: the fault ends (60) before it begins"), "{error}");
}

#[test]
fn rejected_counts_are_read_and_a_bad_one_named_by_line_and_column() {
    let name = "t.rejected";
    let counts = parse_rejected(name, b"80:1234 20081:7 0x1:2\0\0\0\0").unwrap();
    let of = |(flags, count)| Rejected { flags, count };
    assert_eq!(counts, [(0x80, 1234), (0x20081, 7), (1, 2)].map(of));
    assert_eq!(parse_rejected(name, b"").unwrap(), []);
    let error = parse_rejected(name, b"80:1 \n 81:x").unwrap_err().to_string();
    assert!(error.starts_with("t.rejected: line 2, column 2: \"81:x\": expected"), "{error}");
    let error = parse_rejected(name, b"80:1\0\x001").unwrap_err().to_string();
    assert!(error.contains("byte 6: there is something after"), "{error}");
}

#[test]
fn events_carry_the_meaning_of_the_flags_and_rejected_faults_are_at_the_threshold() {
    let compacted = 1 | 1 << 17 | 1 << 18 | 1 << 21;
    let all = [record(1_000_000, 2_000_000, compacted), record(9_000_000, 30_000, 1 << 7)];
    let clock = Clock { mhz: 2000 };
    let rejected = [Rejected { flags: 1 << 17, count: 500 }];
    let (setup, started, events) = events(Layout::Newer, &all, &rejected, THRESHOLD, clock);
    assert_eq!((setup.counted, setup.threshold, started), (502, Nanos(5_000), Nanos(500_000)));
    let Event::Fault(first) = &events[0] else { panic!("{events:?}") };
    let flags = Flags(first.flags.unwrap());
    assert!(flags.has(Flags::HUGE | Flags::COMPACTION | Flags::ANONYMOUS));
    assert_eq!((first.latency, flags.order()), (Nanos(1_000_000), 9));
    let counts = events.iter().filter_map(|event| match event {
        Event::FaultCounts(row) => Some((row.buckets.clone()?, row.counts.clone()?)),
        _ => None,
    });
    let at = u64::from(bucket(Nanos(5_000)));
    assert!(counts.into_iter().any(|row| row == (vec![at], vec![500])));
}

#[test]
fn the_older_flags_have_their_newer_numbers() {
    // COW, SWAP, NOT_ANON and HUGE_ALLOC_FAILED.
    let older = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
    assert_eq!(newer(older, Layout::Older), 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12);
}

proptest! {
    #[test]
    fn what_is_written_reads_back(all in records()) {
        let bytes = encode(Layout::Newer, &all);
        let (layout, read) = parse("t", &bytes).unwrap();
        prop_assert_eq!(layout, Layout::Newer);
        prop_assert_eq!(read, all);
    }

    #[test]
    fn a_trace_survives_events_and_back(
        mut all in records(),
        rejected in prop::collection::vec((1..1u64 << 24, 1..1000u64), 0..5),
    ) {
        // A cycle is a nanosecond, so nothing is rounded.
        let clock = Clock { mhz: 1000 };
        let rejected: BTreeMap<u64, u64> = rejected.into_iter().collect();
        let rejected: Vec<Rejected> =
            rejected.into_iter().map(|(flags, count)| Rejected { flags, count }).collect();
        let (_, _, events) = events(Layout::Newer, &all, &rejected, THRESHOLD, clock);
        let mut export = Export::new(clock);
        events.iter().for_each(|event| export.event(event));
        let (trace, counts) = export.files();
        let (_, read) = parse("t", &trace).unwrap();
        all.sort_by_key(|record| record.end);
        prop_assert_eq!(read.len(), all.len());
        for (read, was) in read.iter().zip(&all) {
            prop_assert_eq!((read.start, read.end, read.alloc_end), (was.start, was.end, was.alloc_end));
            prop_assert!(read.flags == was.flags || was.flags == 0);
        }
        prop_assert_eq!(parse_rejected("t", &counts).unwrap(), rejected);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = (parse("t", &bytes), parse_rejected("t", &bytes));
    }

    #[test]
    fn a_flipped_bit_is_refused_or_read(all in records(), at: prop::sample::Index, bit in 0..8u32) {
        let mut bytes = encode(Layout::Newer, &all);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok((layout, read)) = parse("t", &bytes) {
            let (_, _, events) = events(layout, &read, &[], THRESHOLD, Clock { mhz: 1 });
            prop_assert!(events.len() >= read.len());
        }
    }
}

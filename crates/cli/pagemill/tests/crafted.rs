//! Recordings that were made up to cost whoever reads them: refused by name, or answered in bounded time and memory.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[cfg(test)]
mod support;

use std::path::Path;
use std::process::Command;

use pagemill_model::page::{BASE, HUGE};
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{
    Access, AccessSetup, Allocation, Bytes, Event, Fault, FaultCounts, FaultSetup, MappingSample,
    Nanos,
};
use support::{Ran, pagemill, ran};

const SECOND: u64 = 1_000_000_000;

/// A recording of these events.
fn made(path: &Path, setup: FaultSetup, events: impl IntoIterator<Item = Event>) {
    let meta = Meta {
        page_size: Bytes(BASE),
        started: Nanos(SECOND),
        faults: Some(setup),
        accesses: Some(AccessSetup { back_end: "clock".into(), ..AccessSetup::default() }),
        ..Meta::default()
    };
    let mut writer = Writer::create(path, meta, false, None).unwrap();
    events.into_iter().for_each(|event| writer.event(&event).unwrap());
    writer.finish(Nanos(2 * SECOND)).unwrap();
}

fn fault(time: u64, address: u64, latency: u64) -> Event {
    Event::Fault(Box::new(Fault {
        time: Nanos(time),
        latency: Nanos(latency),
        pid: Some(7),
        address: Some(address),
        ..Fault::default()
    }))
}

fn mapping(start: u64, end: u64) -> Event {
    Event::Mapping(Box::new(MappingSample {
        time: Nanos(SECOND),
        pid: Some(7),
        start: Some(start),
        end: Some(end),
        permissions: Some("rw-p".into()),
        name: Some(String::new()),
        anonymous: Some(Bytes(1 << 56)),
        ..MappingSample::default()
    }))
}

fn counts(count: u64) -> Event {
    Event::FaultCounts(Box::new(FaultCounts {
        time: Nanos(2 * SECOND),
        buckets: Some(vec![100, 200]),
        counts: Some(vec![count, 1]),
        ..FaultCounts::default()
    }))
}

fn access(address: u64) -> Event {
    Event::Access(Box::new(Access {
        time: Nanos(SECOND),
        pid: Some(7),
        address: Some(address),
        ..Access::default()
    }))
}

/// A call in the room, of 8 GB and four minutes at the most: this is a build for tests, and other tests run beside it.
fn call(room: &Path, words: &str) -> Ran {
    let plain = pagemill();
    let mut command = Command::new("timeout");
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let limits = "ulimit -v 8000000; exec \"$0\" \"$@\"";
    command.args(["-s", "KILL", "240", "bash", "-c", limits]).arg(plain.get_program());
    ran(command.args(words.split(' ')).current_dir(room))
}

/// Every call that reads such a recording answers, or says why not, and ends by itself.
fn ends(events: impl IntoIterator<Item = Event>) {
    let room = tempfile::tempdir().unwrap();
    made(&room.path().join("rec"), FaultSetup { details: true, ..Default::default() }, events);
    for words in [
        "report rec",
        "report rec --html out",
        "compare rec rec",
        "plan rec",
        "hugepages rec",
        "simulate rec --huge linux-always,auto --time-limit 10",
        "simulate rec --huge ingens --fragmented 1 --pinned --time-limit 10s",
        "export rec --format perfetto -o out -f",
        "export rec --format folded -o out -f",
    ] {
        let run = call(room.path(), words);
        assert!(matches!(run.code(), Some(0..=2)), "{words}: {run:?}");
        assert!(!run.err.contains("panicked"), "{words}: {run:?}");
    }
}

/// A megabyte of faults, one a region, was simulated for longer than anybody waited.
#[test]
fn faults_all_over_the_address_space_end() {
    ends((0..20_000).map(|n| fault(SECOND + n, n * 4 * HUGE, 1000)));
}

/// So were two thousand that a day lay between.
#[test]
fn faults_over_a_day_end() {
    let faults = (0..2000).map(|n| fault(SECOND + n * 43 * SECOND, n * 4 * HUGE, 1000));
    ends(faults.chain([counts(2000)]));
}

/// Each of these mappings overlaps all others, and each had all faults.
#[test]
fn mappings_that_overlap_and_are_wider_than_any_memory_end() {
    let maps = (0..20_000).map(|n| mapping(n * HUGE, (n + 20_000) * HUGE));
    let faults = (0..20_000).map(|n| fault(SECOND + n, n * HUGE, 1000));
    let wide = (8..1000).map(|n| mapping(n << 44, (n << 44) + (1 << 43)));
    ends(maps.chain(wide).chain(faults));
}

/// Each that is given back had all pages looked at.
#[test]
fn large_allocations_that_come_and_go_end() {
    let allocation = |n: u64| {
        Event::Allocation(Box::new(Allocation {
            time: Nanos(SECOND + n),
            pid: Some(7),
            address: Some(1 << 40),
            size: (n % 2 == 1).then_some(1 << 39),
            stack: Some(vec![n]),
        }))
    };
    ends((0..50_000).map(|n| access(n * BASE)).chain((1..50_000).map(allocation)));
}

/// Sums of such figures were printed, and the exit code said that all was well.
#[test]
fn figures_that_no_machine_has_are_refused_and_named() {
    let room = tempfile::tempdir().unwrap();
    let sized = |size| {
        let (pid, address, size) = (Some(7), Some(4096), Some(size));
        let time = Nanos(SECOND);
        Event::Allocation(Box::new(Allocation { time, pid, address, size, stack: None }))
    };
    let setup = |lost| FaultSetup { details: true, lost, ..FaultSetup::default() };
    for (name, setup, event, said) in [
        ("counts", setup(0), counts(u64::MAX), "counts is 9223372036854775807"),
        ("latency", setup(0), fault(SECOND, 4096, u64::MAX / 2), "latency_ns is "),
        ("size", setup(0), sized(1 << 60), "size_bytes is "),
        ("header", setup(u64::MAX), counts(1), "faults: lost: 18446744073709551615 is more than"),
        ("rate", setup(0), counts(1 << 50), "1125899906842625 page faults in 1.0 s"),
    ] {
        made(&room.path().join(name), setup, [event]);
        for words in [format!("report {name}"), format!("report {name} --json")] {
            let run = call(room.path(), &words);
            assert_eq!(run.code(), Some(2), "{words}: {run:?}");
            let lines: Vec<&str> = run.err.lines().collect();
            assert_eq!(lines.len(), 1, "{words}: {run:?}");
            assert!(lines[0].contains(said), "{words}: {run:?}");
            assert!(lines[0].contains("made up"), "{words}: {run:?}");
        }
    }
}

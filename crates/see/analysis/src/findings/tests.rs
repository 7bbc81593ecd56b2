//! Programs of known truth, as the events that a recording of them has.

use pagemill_model::fault::Flags;
use pagemill_model::recording::{Losses, Meta, NotMeasured};
use pagemill_model::{
    Access, AccessSetup, Allocation, Bytes, Event, Fault, FaultCounts, FaultSetup, FaultSum,
};
use pagemill_model::{Fold as _, HeapSample, MappingSample, Nanos, Touched, latency};
use proptest::prelude::*;

use super::*;
use crate::accesses::AccessFold;
use crate::faults::{FaultFold, FaultView};
use crate::heap::{HeapFold, HeapView};
use crate::heat::{Bounds, HeatFold};
use crate::objects::tests::One;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Length of an interval.
const INTERVAL: u64 = 50_000_000;

fn allocated(time: u64, address: u64, size: Option<u64>, caller: u64) -> Event {
    Event::Allocation(Box::new(Allocation {
        time: Nanos(time),
        pid: Some(7),
        address: Some(address),
        size,
        stack: Some(vec![caller]),
    }))
}

/// Accesses to each page of a range.
fn accessed(time: u64, start: u64, bytes: u64, write: bool) -> impl Iterator<Item = Event> {
    (0..bytes.div_ceil(PAGE)).map(move |page| {
        Event::Access(Box::new(Access {
            time: Nanos(time),
            pid: Some(7),
            tid: Some(7),
            address: Some(start + page * PAGE),
            flags: Some(if write { Flags::WRITE } else { 0 }),
            ..Access::default()
        }))
    })
}

fn findings_of(events: &[Event]) -> Vec<Finding> {
    let Conclusions { findings, inconclusive, .. } =
        conclusions_of(events, &AccessSetup::default(), None);
    assert_eq!(inconclusive, []);
    findings
}

fn conclusions_of(events: &[Event], setup: &AccessSetup, meta: Option<&Meta>) -> Conclusions {
    let mut heat = HeatFold::new(Nanos(0), PAGE, true, Bounds::default(), One);
    let mut accesses = AccessFold::new(Nanos(0), PAGE, 1 << 20);
    for event in events {
        heat.event(event);
        accesses.event(event);
    }
    let (heat, accesses) = (heat.view(), accesses.view());
    conclude(&RecordedViews {
        recording: "rec",
        meta,
        accesses: Some((setup, &accesses, &heat)),
        ..RecordedViews::default()
    })
}

const COLD: u64 = 0x1000_0000;
const HOT: u64 = 0x9000_0000;

/// 99 MiB are written at the start and never again; 1 MiB is used all the time.
fn cold_program() -> Vec<Event> {
    let mut events =
        vec![allocated(0, COLD, Some(99 * MIB), 0x10), allocated(0, HOT, Some(MIB), 0x20)];
    events.extend(accessed(1000, COLD, 99 * MIB, true));
    for interval in 0..60 {
        events.extend(accessed(2000 + interval * INTERVAL, HOT, MIB, interval % 2 == 0));
    }
    events
}

#[test]
fn memory_that_is_written_once_and_never_read_is_cold_and_comes_first() {
    let found = findings_of(&cold_program());
    let first = &found[0];
    assert_eq!((first.subject, first.stake), ("cold", Stake::Memory(Bytes(99 * MIB))), "{found:?}");
    assert!(first.text.starts_with("99.0 MiB of "), "{}", first.text);
    assert!(first.text.contains("were not touched after"), "{}", first.text);
    assert_eq!(first.next, "pagemill simulate rec --sweep");
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_file_that_was_written_once_is_no_finding_and_memory_that_has_a_name_is() {
    let subjects = |name: &str| -> Vec<&str> {
        let mut events = vec![Event::Mapping(Box::new(MappingSample {
            time: Nanos(0),
            pid: Some(7),
            start: Some(COLD),
            end: Some(COLD + 99 * MIB),
            name: Some(name.into()),
            ..MappingSample::default()
        }))];
        let allocation = Event::kind(&cold_program()[0]);
        events.extend(cold_program().into_iter().filter(|event| event.kind() != allocation));
        findings_of(&events).iter().map(|finding| finding.subject).collect()
    };
    assert_eq!(subjects("/usr/bin/bash"), [] as [&str; 0]);
    assert_eq!(subjects("/memfd:cache (deleted)"), ["cold"]);
}

/// "nothing here is worth changing" was said of a file of 200 MiB, of which 180 were read once.
#[test]
fn pages_of_a_file_that_are_not_used_any_more_are_page_cache() {
    let told = |mib: u64, write: bool| {
        let mut events = vec![Event::Mapping(Box::new(MappingSample {
            time: Nanos(0),
            pid: Some(7),
            start: Some(COLD),
            end: Some(COLD + 200 * MIB),
            name: Some("/data.bin".into()),
            ..MappingSample::default()
        }))];
        // Of sixteen pages that are mapped together one has an access.
        let row = |interval: u64, mib: u64| {
            let (starts, pages) = (Some(vec![COLD]), Some(vec![mib * MIB / PAGE]));
            let written = |of: &Option<Vec<u64>>| of.clone().filter(|_| write && interval == 0);
            let (written_starts, written_pages) = (written(&starts), written(&pages));
            let time = Nanos((interval + 1) * INTERVAL);
            let (pid, began) = (Some(7), Some(Nanos(interval * INTERVAL)));
            let row = Touched {
                time,
                pid,
                began,
                starts,
                pages,
                written_starts,
                written_pages,
                ..Touched::default()
            };
            let accesses = accessed(interval * INTERVAL + 1000, COLD, mib * MIB, false).step_by(16);
            accesses.chain([Event::Touched(Box::new(row))])
        };
        events.extend(row(0, 20 + mib));
        (1..60).for_each(|interval| events.extend(row(interval, 20)));
        findings_of(&events)
    };
    let found = told(180, false);
    assert_eq!((found.len(), found[0].subject), (1, "cold-file"), "{found:?}");
    assert_eq!(found[0].stake, Stake::Memory(Bytes(180 * MIB)));
    let begin = "180.0 MiB of the file /data.bin were not touched after ";
    assert!(found[0].text.starts_with(begin), "{}", found[0].text);
    assert!(found[0].text.contains("page cache, clean, "), "{}", found[0].text);
    assert!(!found[0].text.contains("swapped"), "{}", found[0].text);
    assert_eq!(told(15, false), [], "too little");
    assert_eq!(told(180, true), [], "not clean");
}

/// "run --trim" was told of an interpreter that leaks, for what it frees in its last tenth of a second, and no leak.
#[test]
fn a_leak_is_told_by_its_allocations_and_what_is_freed_as_the_program_ends_is_no_lever_s() {
    const BLOCK: u64 = 100 << 10;
    let program = |intervals: u64, live: u64| {
        let mut events = Vec::new();
        let at = |number: u64| COLD + number * BLOCK.next_multiple_of(PAGE);
        for number in 0..intervals * 4 {
            let time = number * INTERVAL / 4;
            events.push(allocated(time, at(number), Some(BLOCK), 0x10));
            events.extend(accessed(time + 1, at(number), BLOCK, true));
            if number >= live {
                events.push(allocated(time + 2, at(number - live), None, 0));
            }
        }
        let kept = (intervals * 4).saturating_sub(live)..intervals * 4;
        let ends = intervals * INTERVAL;
        // It takes a tenth of a second to free them all.
        let freed = |number| ends + (number % 320) * 300_000;
        events.extend(kept.map(|number| allocated(freed(number), at(number), None, 0)));
        events
    };
    let told = |events: &[Event], exit_status| {
        let meta = Meta { command: vec!["./leak".into()], exit_status, ..Meta::default() };
        conclusions_of(events, &AccessSetup::default(), Some(&meta)).findings
    };
    let found = told(&program(80, u64::MAX / 2), Some(0));
    let growth = found.iter().find(|one| one.subject == "growth").expect("the leak");
    let text = "what it allocated and did not free grew by ";
    assert!(growth.text.starts_with(text) && growth.text.contains("until it ended"), "{growth:?}");
    assert_eq!(growth.next, "pagemill export rec --format folded -o growth.folded");
    assert!(found.iter().all(|one| !one.next.contains("--trim")), "{found:?}");
    assert!(found.iter().all(|one| !one.text.contains("live at the end")), "{found:?}");
    // Who keeps as much as before does not grow.
    let level = told(&program(80, 100), Some(0));
    assert!(level.iter().all(|one| one.subject != "growth"), "{level:?}");
    let short = told(&program(30, u64::MAX / 2), Some(0));
    assert!(short.iter().all(|one| one.subject != "growth"), "{short:?}");
}

/// Freed by the end, it was not told; and by then all of it is touched.
#[test]
fn what_was_given_back_is_cold_until_the_end_if_that_was_near() {
    let program = |walked: Option<u64>, freed: u64| {
        let mut events = cold_program();
        events.extend(walked.into_iter().flat_map(|at| accessed(at, COLD, 99 * MIB, false)));
        events.push(allocated(freed, COLD, None, 0));
        conclusions_of(&events, &AccessSetup::default(), None)
    };
    // Since when it was not used that was freed in time is another question, and not denied.
    let Conclusions { findings, inconclusive, .. } = program(None, 50 * INTERVAL);
    assert!(findings.iter().all(|finding| finding.subject != "cold"), "{findings:?}");
    let whats: Vec<_> = inconclusive.iter().map(|inconclusive| inconclusive.what).collect();
    assert_eq!(whats, ["what memory was cold before it was freed"], "{inconclusive:?}");
    assert!(inconclusive[0].why.starts_with("99.0 MiB of the 100.0 MiB"), "{inconclusive:?}");
    for walked in [None, Some(56 * INTERVAL)] {
        let all = program(walked, 56 * INTERVAL + INTERVAL / 2);
        let first = &all.findings[0];
        let says = "99.0 MiB of `0x10` were not touched from 4.0 ms to 2.8 s of 3.0 s, and then only freed: could be";
        assert!(first.text.starts_with(says), "{all:?}");
        assert_eq!((first.stake, &all.inconclusive), (Stake::Memory(Bytes(99 * MIB)), &vec![]));
    }
    // Touched in between, or in time, it was used.
    for walked in [30, 50] {
        let all = program(Some(walked * INTERVAL), 59 * INTERVAL);
        assert!(all.findings.iter().all(|one| one.subject != "cold"), "{walked}: {all:?}");
    }
}

#[test]
fn what_is_touched_near_the_end_and_not_freed_rested_until_then() {
    let mut events = cold_program();
    events.extend(accessed(57 * INTERVAL, COLD, 99 * MIB, false));
    let found = findings_of(&events);
    let says = "not touched from 4.0 ms to 2.8 s of 3.0 s, and then only near the end: could be";
    assert!(found[0].text.contains(says), "{found:?}");
    // A half of it freed.
    events.extend((0..50).map(|mib| allocated(0, COLD + mib * 2 * MIB, Some(2 * MIB), 0x10)));
    events.extend((0..25).map(|mib| allocated(58 * INTERVAL, COLD + mib * 2 * MIB, None, 0)));
    let found = findings_of(&events);
    assert!(found[0].text.contains("and then 50.0 MiB of them freed: could be"), "{found:?}");
}

#[test]
fn memory_that_is_written_once_and_read_all_the_time_is_that() {
    let mut events = vec![allocated(0, COLD, Some(8 * MIB), 0x10)];
    events.extend(accessed(1000, COLD, 8 * MIB, true));
    for interval in 0..60 {
        events.extend(accessed(2000 + interval * INTERVAL, COLD, 8 * MIB, false));
    }
    let found = findings_of(&events);
    let subjects: Vec<_> = found.iter().map(|finding| finding.subject).collect();
    assert_eq!(subjects, ["write-once"]);
}

/// Of 8 MiB of small objects one a page lives on.
fn sparse_program() -> Vec<Event> {
    let mut events = Vec::new();
    let objects = 8 * MIB / 64;
    for object in 0..objects {
        let caller = if object % 64 == 0 { 0x30 } else { 0x40 };
        events.push(allocated(object, COLD + object * 64, Some(64), caller));
    }
    for interval in 0..30 {
        events.extend(accessed(objects + interval * INTERVAL, COLD, 8 * MIB, true));
    }
    for object in (0..objects).filter(|object| object % 64 != 0) {
        events.push(allocated(30 * INTERVAL + object, COLD + object * 64, None, 0));
    }
    events.extend(accessed(31 * INTERVAL, COLD, 8 * MIB, false));
    events
}

/// A single note that was lost had nothing said of who keeps pages.
#[test]
fn who_keeps_pages_is_told_with_the_part_of_notes_that_was_lost_or_why_it_is_not() {
    let whats = |all: &Conclusions| all.inconclusive.iter().map(|one| one.what).collect::<Vec<_>>();
    let subjects =
        |all: &Conclusions| all.findings.iter().map(|one| one.subject).collect::<Vec<_>>();
    let told = |lost_notes: u64| {
        let losses = Losses { lost_notes, notes: 1_000_000, ..Losses::default() };
        let mut meta =
            Meta { losses, page_size: Bytes(PAGE), command: vec!["it".into()], ..Meta::default() };
        if lost_notes > 0 {
            meta.lacks(
                NotMeasured::ALLOCATIONS,
                format!("{lost_notes} of 1000000 notes were overwritten"),
            );
        }
        conclusions_of(&sparse_program(), &AccessSetup::default(), Some(&meta))
    };
    let few = told(10_000);
    assert_eq!((subjects(&few)[0], whats(&few)), ("sparse", vec![]), "{few:?}");
    assert!(
        few.findings[0]
            .evidence
            .ends_with("1.0 % of the notes on allocations were lost, so it is about so much")
    );
    assert!(!told(0).findings[0].evidence.contains("lost"));
    let many = told(310_000);
    assert!(!subjects(&many).contains(&"sparse"), "{many:?}");
    assert_eq!(whats(&many), ["who keeps pages resident"]);
    let why = &many.inconclusive[0].why;
    assert!(why.contains("310000 of 1000000 notes were overwritten (31 % of them"), "{why}");
    // It was the command that had just been run.
    assert_eq!(many.inconclusive[0].next, "pagemill advise -- it");
}

#[test]
fn survivors_that_keep_pages_are_sparse_and_named_and_why_memory_did_not_fall_is_said() {
    let found = findings_of(&sparse_program());
    let first = &found[0];
    assert_eq!(first.subject, "sparse", "{found:?}");
    assert!(first.text.contains("resident memory did not fall"), "{}", first.text);
    assert!(
        first.text.contains("8.0 MiB stay resident for 128.0 KiB of live data"),
        "{}",
        first.text
    );
    assert_eq!(first.next, "pagemill run --heap compact -- CMD");
}

#[test]
fn a_program_that_uses_all_it_has_has_no_finding() {
    let mut events = vec![allocated(0, HOT, Some(32 * MIB), 0x20)];
    for interval in 0..40 {
        events.extend(accessed(1000 + interval * INTERVAL, HOT, 32 * MIB, true));
    }
    assert_eq!(findings_of(&events), []);
}

#[test]
fn what_a_recording_cannot_tell_is_said_and_nothing_is_concluded_from_it() {
    let whats = |conclusions: &Conclusions| -> Vec<&str> {
        conclusions.inconclusive.iter().map(|inconclusive| inconclusive.what).collect()
    };
    let subjects = |conclusions: &Conclusions| -> Vec<&str> {
        conclusions.findings.iter().map(|finding| finding.subject).collect()
    };
    let events = cold_program();
    let sampled = AccessSetup { without_address: Some(0), ..AccessSetup::default() };
    let lossy = AccessSetup { lost: 1_000_000, ..AccessSetup::default() };
    let nexts = [
        "pagemill record --with accesses -- CMD",
        "pagemill record --with accesses --access-interval 1.0ms -- CMD",
    ];
    for (setup, next) in [sampled, lossy].into_iter().zip(nexts) {
        let conclusions = conclusions_of(&events, &setup, None);
        assert_eq!(conclusions.inconclusive[0].next, next);
        assert_eq!(whats(&conclusions), ["what memory is cold"]);
        assert_eq!(subjects(&conclusions), [] as [&str; 0]);
    }
    // An interval that is nearly all of the recording.
    let mut coarse = events.clone();
    coarse.push(Event::Touched(Box::new(Touched {
        time: Nanos(60 * INTERVAL),
        began: Some(Nanos(INTERVAL)),
        pid: Some(7),
        ..Touched::default()
    })));
    let conclusions = conclusions_of(&coarse, &AccessSetup::default(), None);
    assert_eq!(whats(&conclusions), ["what memory is cold"]);
    assert!(conclusions.inconclusive[0].why.contains("too coarse"), "{conclusions:?}");
    // Who notes each of many small blocks is late, and would be with shorter intervals, too.
    let setup = AccessSetup { interval: Nanos(INTERVAL), ..AccessSetup::default() };
    for (notes, next) in [
        (7, "pagemill record --with accesses --no-sites -- ./blocks"),
        (0, "pagemill advise -- ./blocks"),
    ] {
        let losses = Losses { notes, ..Losses::default() };
        let meta = Meta { losses, command: vec!["./blocks".into()], ..Meta::default() };
        let conclusions = conclusions_of(&coarse, &setup, Some(&meta));
        assert_eq!(conclusions.inconclusive[0].next, next);
    }
    // Shorter ones than the recorder could keep to are no way out.
    assert_eq!(conclusions.inconclusive[0].next, "pagemill advise -- CMD");
    let asked = AccessSetup { interval: Nanos(30 * INTERVAL), ..AccessSetup::default() };
    let next = &conclusions_of(&coarse, &asked, None).inconclusive[0].next;
    assert!(next.contains("--access-interval"), "{next}");
    assert_eq!(subjects(&conclusions), [] as [&str; 0]);
    // Without the library that notes allocations.
    let not_measured =
        vec![NotMeasured { what: NotMeasured::ALLOCATIONS.into(), why: "no".into() }];
    let meta = Meta { not_measured, page_size: Bytes(PAGE), ..Meta::default() };
    let command = vec!["cold".into()];
    let of_command = Meta { command, ..meta.clone() };
    // Of a Redis of 121 MiB that touched 181 pages "nothing worth changing was found", and no more.
    let attached = conclusions_of(&events, &AccessSetup::default(), Some(&meta));
    let inconclusive = ["how much memory was not touched at all", "who keeps pages resident"];
    assert_eq!(whats(&attached), inconclusive);
    let conclusions = conclusions_of(&events, &AccessSetup::default(), Some(&of_command));
    assert_eq!(whats(&conclusions), ["who keeps pages resident"]);
    assert!(conclusions.inconclusive[0].why.ends_with("not all, seen: no"), "{conclusions:?}");
    assert_eq!(subjects(&conclusions), ["cold"]);
}

fn fault(time: u64, took: u64, compaction: u64) -> Event {
    Event::Fault(Box::new(Fault {
        time: Nanos(time),
        latency: Nanos(took),
        pid: Some(7),
        tid: Some(8),
        address: Some(0x5000),
        flags: Some(Flags::BASE | Flags::WRITE),
        compaction: Some(Nanos(compaction)),
        after_allocation: Some(Nanos(100)),
        ..Fault::default()
    }))
}

/// The mapping of a file in which the faults lie.
fn mapped(file: &str) -> Event {
    Event::Mapping(Box::new(MappingSample {
        time: Nanos(0),
        pid: Some(7),
        start: Some(0x5000),
        end: Some(0x6000),
        name: Some(file.into()),
        ..MappingSample::default()
    }))
}

fn counted(time: u64, took: u64, count: u64) -> Event {
    Event::FaultCounts(Box::new(FaultCounts {
        time: Nanos(time),
        flags: Some(Flags::BASE),
        buckets: Some(vec![latency::bucket(Nanos(took)).into()]),
        counts: Some(vec![count]),
    }))
}

#[test]
fn a_tail_is_named_with_its_cause_and_faults_that_cost_nothing_are_not() {
    let setup = FaultSetup { details: true, counted: 100, ..FaultSetup::default() };
    let view = |events: &[Event]| {
        let mut fold = FaultFold::new(&setup, Nanos(0)).with_spikes(Some(Nanos(5_000_000)));
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    };
    let quiet = view(&[counted(1_000_000_000, 500, 1000)]);
    let seen = RecordedViews { faults: Some((&setup, &quiet)), ..RecordedViews::default() };
    let none = conclude(&seen);
    assert_eq!((none.findings.len(), none.inconclusive.len()), (0, 0), "{none:?}");
    // "Nothing here is worth changing" was said of a program whose time went into mmap(MAP_POPULATE).
    let populates = FaultSetup { untimed: 51_200, ..setup.clone() };
    let filled = FaultView { counted: 51_700, ..quiet.clone() };
    let seen = RecordedViews { faults: Some((&populates, &filled)), ..RecordedViews::default() };
    let untold = conclude(&seen).inconclusive.remove(0);
    let says = "51200 of 51700 faults, of 200.0 MiB or more, were made by the kernel inside of system calls and are";
    assert!(untold.why.starts_with(says), "{untold:?}");
    assert_eq!(untold.next, "strace -f -T -e trace=mmap,mlock,mlockall,madvise CMD");
    let stalled =
        view(&[fault(600_000_000, 9_000_000, 8_500_000), counted(1_000_000_000, 9_000_000, 1)]);
    let seen = RecordedViews {
        faults: Some((&setup, &stalled)),
        recording: "rec",
        ..RecordedViews::default()
    };
    let found = conclude(&seen).findings;
    assert_eq!(stalled.spikes.map(|spikes| (spikes.faults, spikes.bursts)), Some((1, 0)));
    // That one fault is long and that stalls are explained by it is one matter.
    let [stalls] = &found[..] else { panic!("{found:?}") };
    assert_eq!(stalls.subject, "stalls");
    assert!(
        stalls.evidence.contains("; the longest page fault took 9.0 ms, compaction"),
        "{stalls:?}"
    );
    let says = "page faults explain stalls of 5.0 ms: 1 of them took that long or longer; most of the time in faults";
    assert!(stalls.text.starts_with(says), "{}", stalls.text);
    assert_eq!(stalls.stake, Stake::Time(Nanos(9_000_000)));
}

/// Of a program that waited for the host's memory three of five findings said so.
#[test]
fn what_faults_took_and_the_longest_of_them_are_one_finding_where_the_cause_is_one() {
    let setup = FaultSetup { details: true, counted: 100, ..FaultSetup::default() };
    let told = |compaction: u64, spike: Option<u64>| {
        let mut fold = FaultFold::new(&setup, Nanos(0)).with_spikes(spike.map(Nanos));
        for number in 1..=20 {
            fold.event(&fault(number * 40_000_000, 9_000_000, 8_500_000));
        }
        fold.event(&fault(900_000_000, 12_000_000, compaction));
        fold.event(&counted(1_000_000_000, 9_000_000, 21));
        let view = fold.view();
        conclude(&RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() })
            .findings
    };
    let subjects = |found: &[Finding]| found.iter().map(|it| it.subject).collect::<Vec<_>>();
    let one = told(11_000_000, None);
    assert_eq!(subjects(&one), ["faults"]);
    assert!(
        one[0].evidence.contains("; the longest page fault took 12.0 ms, compaction"),
        "{one:?}"
    );
    assert_eq!(subjects(&told(0, None)), ["faults", "tail"], "another cause");
    let asked = told(11_000_000, Some(5_000_000));
    assert_eq!(subjects(&asked), ["stalls"]);
    assert!(asked[0].evidence.contains("; page faults took "), "{asked:?}");
    assert!(asked[0].share >= one[0].share, "{asked:?}");
}

/// `record --spike 5ms` said that faults may explain stalls, and the report that nothing was worth changing.
#[test]
fn stalls_of_many_short_faults_are_named_where_they_were_asked_about() {
    let setup = FaultSetup { details: true, counted: 5000, ..FaultSetup::default() };
    let told = |spike: Option<Nanos>, copies: u64| {
        let mut fold = FaultFold::new(&setup, Nanos(0)).with_spikes(spike);
        fold.event(&counted(1_000_000_000, 2000, 5000));
        fold.event(&Event::FaultCounts(Box::new(FaultCounts {
            time: Nanos(1_000_000_000),
            flags: Some(Flags::BASE | Flags::PROTECTION | Flags::WRITE),
            buckets: Some(vec![latency::bucket(Nanos(2000)).into()]),
            counts: Some(vec![copies]),
        })));
        for number in 1..=60 {
            fold.event(&Event::FaultSum(Box::new(FaultSum {
                time: Nanos(500_000_000 + number * 125_000),
                span: Some(Nanos(125_000)),
                took: Some(Nanos(100_000)),
                faults: Some(50),
                pid: Some(7),
                tid: Some(7),
            })));
        }
        let view = fold.view();
        conclude(&RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() })
            .findings
    };
    assert_eq!(told(None, 0), []);
    // Pages that a fork left shared are told where they are not the most, but much.
    let fork = "of it copying pages that a fork left shared";
    let texts = [0, 500, 2500].map(|copies| told(Some(Nanos(5_000_000)), copies)[0].text.clone());
    assert_eq!(texts.each_ref().map(|text| text.contains(fork)), [false, false, true], "{texts:?}");
    assert!(texts[2].contains(", and 33 % of it copying"), "{texts:?}");
    let found = told(Some(Nanos(5_000_000)), 0);
    assert_eq!(found[0].subject, "stalls", "{found:?}");
    assert!(found[0].text.starts_with("page faults may explain stalls of 5.0 ms: in 2 stretches"));
    assert_eq!(found[0].stake, Stake::Time(Nanos(5_000_000)));
}

/// The next command was one under which some of such spikes are longer than without, and a program of one thread was
/// advised to have fewer of them.
#[test]
fn spikes_of_new_memory_are_answered_with_fewer_faults_and_threads_are_named_where_there_are_several()
 {
    let setup = FaultSetup { details: true, counted: 5000, ..FaultSetup::default() };
    let told = |threads: u64, flags: u64, part: &str| {
        let mut fold = FaultFold::new(&setup, Nanos(0)).with_spikes(Some(Nanos(5_000_000)));
        fold.event(&Event::FaultCounts(Box::new(FaultCounts {
            time: Nanos(1_000_000_000),
            flags: Some(flags),
            buckets: Some(vec![latency::bucket(Nanos(6_000_000)).into()]),
            counts: Some(vec![20]),
        })));
        for number in 0..4 {
            fold.event(&Event::Fault(Box::new(Fault {
                time: Nanos(number * 10_000_000),
                latency: Nanos(6_000_000),
                pid: Some(7),
                tid: Some(7 + number % threads),
                address: Some(0x5000),
                flags: Some(flags),
                after_allocation: Some(Nanos(if part == "zeroing" { 5_000_000 } else { 0 })),
                locks: (part != "waiting").then_some(Nanos(if part == "locks" {
                    5_000_000
                } else {
                    0
                })),
                waited: (part != "waiting").then_some(Nanos(if part == "cpu" {
                    5_000_000
                } else {
                    0
                })),
                ..Fault::default()
            })));
        }
        let view = fold.view();
        let seen = RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() };
        let found = conclude(&seen).findings;
        found.into_iter().find(|finding| finding.subject == "stalls").unwrap()
    };
    let new = Flags::BASE | Flags::WRITE;
    for (threads, part) in [(1, "zeroing"), (1, "waiting"), (2, "waiting")] {
        let stalls = told(threads, new, part);
        assert_eq!(stalls.next, "sudo pagemill advise --goal speed -- CMD");
        assert_eq!(stalls.text.contains("fewer threads"), threads > 1, "{stalls:?}");
    }
    // What pages are is no matter to who waits for another thread, or for a CPU.
    for (part, words) in [("locks", "waiting for locks"), ("cpu", "waiting for a CPU")] {
        let stalls = told(2, new, part);
        assert!(
            stalls.text.contains(words) && !stalls.next.contains("advise --goal speed"),
            "{stalls:?}"
        );
    }
    assert!(told(2, new, "none").text.contains("lookup and allocation:"));
    // Pages of 64 KiB are what it has; pages of a file that are there are mapped, not made.
    assert_eq!(told(1, 0, "waiting").next, "pagemill advise -- CMD");
    assert_eq!(told(1, Flags::LARGE | Flags::WRITE, "waiting").next, "pagemill advise -- CMD");
}

/// What to type next ended in CMD, whatever process was attached to.
#[test]
fn a_process_that_was_attached_to_is_named_by_its_command_or_its_name() {
    let again = |attached: &[&str], comm: &str| {
        let attached_command = attached.iter().map(|word| (*word).to_owned()).collect();
        let meta = Meta { pid: 7, comm: comm.into(), attached_command, ..Meta::default() };
        RecordedViews { meta: Some(&meta), lives: true, ..RecordedViews::default() }
            .restart_command()
    };
    assert_eq!(again(&["node", "a b.js"], "node"), "-- node 'a b.js'");
    assert_eq!(again(&[], "redis-server"), "-- redis-server …");
}

/// The longest fault of a program on the heap was that which read the heap's own library.
#[test]
fn what_pagemill_s_own_library_took_to_load_is_no_finding() {
    let setup = FaultSetup { details: true, counted: 1, ..FaultSetup::default() };
    let subjects = |file: &str| -> Vec<&str> {
        let mut fold = FaultFold::new(&setup, Nanos(0));
        fold.event(&mapped(file));
        fold.event(&fault(600_000_000, 9_000_000, 0));
        let view = fold.view();
        assert_eq!(view.worst[0].place, file);
        let found =
            conclude(&RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() })
                .findings;
        found.iter().map(|finding| finding.subject).collect()
    };
    assert!(subjects("/usr/lib/libssl.so.3").contains(&"tail"));
    assert!(!subjects("/usr/lib/pagemill/libpagemill_heap.so").contains(&"tail"));
}

/// "Most of it waiting for a CPU that others had: it is no lever's of memory" was said of 48 %.
#[test]
fn what_took_less_than_half_is_not_most_and_does_not_hide_what_is_of_memory() {
    let setup = FaultSetup { details: true, ..FaultSetup::default() };
    let text = |cpu: u64| {
        let Event::Fault(mut one) = fault(600_000_000, 100_000_000, 0) else { unreachable!() };
        one.waited = Some(Nanos(cpu));
        one.locks = Some(Nanos(0));
        one.after_allocation = Some(Nanos(40_000_000));
        let mut fold = FaultFold::new(&setup, Nanos(0));
        fold.event(&Event::Fault(one));
        fold.event(&counted(1_000_000_000, 100_000_000, 1));
        let view = fold.view();
        let found =
            conclude(&RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() })
                .findings;
        found.into_iter().find(|finding| finding.subject == "faults").unwrap().text
    };
    let both = text(48_000_000);
    let says = ", 48 % of it waiting for a CPU that others had and 40 % zeroing and mapping new pages: fewer";
    assert!(both.contains(says), "{both}");
    let most = text(58_000_000);
    assert!(
        most.contains(", most of it waiting for a CPU that others had: it is no lever's"),
        "{most}"
    );
}

/// "memory that is kept and not given back is not waited for again" was said of a program that gives nothing back.
#[test]
fn memory_that_is_kept_is_advised_only_where_some_was_given_back() {
    let setup = FaultSetup { details: true, touch: Some(Nanos(500)), ..FaultSetup::default() };
    let told = |same: bool| {
        let mut fold = FaultFold::new(&setup, Nanos(0));
        for number in 1..=8_u64 {
            let Event::Fault(mut one) = fault(number * 200_000_000, 20_000_000, 0) else {
                unreachable!()
            };
            one.after_allocation = Some(Nanos(19_000_000));
            one.address = Some(if same { 0x5000 } else { 0x5000 * number });
            fold.event(&Event::Fault(one));
        }
        fold.event(&counted(1_700_000_000, 20_000_000, 8));
        let view = fold.view();
        let faults = Some((&setup, &view));
        conclude(&RecordedViews { faults, ..RecordedViews::default() }).findings[0].text.clone()
    };
    let kept = "memory that is kept and not given back";
    let (again, first) = (told(true), told(false));
    assert!(again.contains("waiting for memory that the host had to find first"), "{again}");
    assert!(again.contains(kept), "{again}");
    assert!(!first.contains(kept) && first.contains("they were first touches"), "{first}");
}

/// Under a server that forks to save "page faults do not explain stalls" was right, and the fork itself was not named.
#[test]
fn that_a_fork_itself_may_stall_is_said_where_many_pages_were_copied_after_one() {
    let told = |copies: u64, spike: Option<u64>| {
        let setup = FaultSetup { details: true, counted: copies, ..FaultSetup::default() };
        let mut fold = FaultFold::new(&setup, Nanos(0)).with_spikes(spike.map(Nanos));
        let Event::FaultCounts(mut row) = counted(1_000_000_000, 1000, copies) else {
            unreachable!()
        };
        row.flags = Some(Flags::BASE | Flags::WRITE | Flags::PROTECTION);
        fold.event(&Event::FaultCounts(row));
        let view = fold.view();
        let meta = Meta { pid: 9, comm: "redis".into(), ..Meta::default() };
        let (faults, meta) = (Some((&setup, &view)), Some(&meta));
        conclude(&RecordedViews { faults, meta, lives: true, ..RecordedViews::default() })
            .inconclusive
    };
    let forks = told(65_000, Some(5_000_000));
    assert_eq!(forks.len(), 1, "{forks:?}");
    assert_eq!(forks[0].what, "whether forks stall it");
    assert_eq!(forks[0].next, "strace -f -T -e trace=clone,clone3,fork,vfork -p 9");
    assert_eq!(told(1000, Some(5_000_000)), [], "what programs begin with");
    assert_eq!(told(65_000, None), [], "nobody asked");
}

/// Of a program whose file was read for the first time it was said that the working set does not fit.
#[test]
fn a_file_that_is_read_for_the_first_time_is_told_from_swap_and_from_one_that_is_read_again() {
    let setup = FaultSetup { details: true, counted: 1, ..FaultSetup::default() };
    let text_of = |name: &str, times: &[u64]| {
        let mut fold = FaultFold::new(&setup, Nanos(0));
        fold.event(&mapped(name));
        let major = Flags::BASE | Flags::MAJOR;
        for time in times {
            let Event::Fault(mut one) = fault(*time, 90_000_000, 0) else { unreachable!() };
            one.flags = Some(major);
            fold.event(&Event::Fault(one));
        }
        let slow = fold.view().slow;
        assert_eq!((slow.reading, slow.cold, slow.remainder()), (slow.time, Nanos(0), Nanos(0)));
        let Event::FaultCounts(mut counts) = counted(1_000_000_000, 90_000_000, 1) else {
            unreachable!()
        };
        counts.flags = Some(major);
        fold.event(&Event::FaultCounts(counts));
        let view = fold.view();
        let found =
            conclude(&RecordedViews { faults: Some((&setup, &view)), ..RecordedViews::default() })
                .findings;
        let faults = found.into_iter().find(|finding| finding.subject == "faults");
        faults.unwrap_or_else(|| panic!("{:?}", view.categories)).text
    };
    let text = |name: &str| text_of(name, &[600_000_000]);
    let first = text("/usr/bin/node");
    assert!(first.contains("reading files that were not in memory yet: a second run"), "{first}");
    // "a second run finds them there" was said of a program that drops its file's pages and reads them twelve times.
    let again = text_of("/usr/bin/node", &[300_000_000, 600_000_000, 900_000_000]);
    assert!(again.contains("parts of them were read before in this recording"), "{again}");
    assert!(!again.contains("second run"), "{again}");
    for memory in ["[heap]", "/memfd:cache (deleted)"] {
        assert!(text(memory).contains("waiting for files or swap"), "{}", text(memory));
    }
}

/// 4.4 MiB of freed blocks "could be swapped"; and another heap was named where trimming gives whole pages back.
#[test]
fn freed_blocks_are_not_cold_and_their_whole_pages_are_for_trimming() {
    // Of blocks of three quarters of a page the second of each pair is freed; where it began, the first one ends.
    let (block, pairs) = (3 * PAGE / 4, 2048);
    let at = |number: u64| HOT + number * block;
    let mut events: Vec<Event> = (0..2 * pairs)
        .map(|number| allocated(0, at(number), Some(block), 0x10 * (1 + number % 2)))
        .collect();
    events.extend(accessed(1000, HOT, 2 * pairs * block, true));
    // Whole pages that are free, and something that is used to the end.
    let whole = 20 * MIB;
    events.extend(
        (0..whole / block).map(|number| allocated(0, COLD + number * block, Some(block), 0x20)),
    );
    events.extend(accessed(1000, COLD, whole, true));
    events.extend((0..pairs).map(|pair| allocated(2000, at(2 * pair + 1), None, 0)));
    events.extend((0..whole / block).map(|number| allocated(2000, COLD + number * block, None, 0)));
    let used = HOT + 2 * pairs * block;
    for interval in 1..60 {
        events.extend(accessed(interval * INTERVAL, used, MIB, false));
    }
    let found = conclusions_of(&events, &AccessSetup::default(), None).findings;
    let named =
        |name: &str| found.iter().any(|one| one.subject == "cold" && one.text.contains(name));
    assert!(!named("0x20"), "{found:?}");
    let free = found.iter().find(|one| one.subject == "heap-free").unwrap();
    assert_eq!(free.next, "pagemill run --trim -- CMD");
    assert!(free.text.contains("run --trim calls it when the program rests"), "{}", free.text);
    let lever = |malloc: &str, work: u64| {
        let view = heap_of_malloc(malloc, 0, 0, Some(work));
        let seen = RecordedViews { heap: Some(&view), ..RecordedViews::default() };
        super::sparse::for_whole_pages(&seen).command
    };
    assert_eq!(lever("glibc's malloc", 0), "pagemill run --trim");
    assert_eq!(lever("glibc's malloc", 7), "pagemill run --heap compact");
    assert_eq!(lever("jemalloc", 0), "pagemill advise");
}

/// A compiler's driver took 1 MiB, and "nothing here is worth changing" was concluded of the compiler's 90.
#[test]
fn of_a_command_whose_work_others_did_nothing_is_concluded() {
    let mut fold = HeapFold::default();
    let sample = HeapSample { time: Nanos(5), pss: Some(Bytes(MIB)), ..HeapSample::default() };
    fold.event(&Event::Heap(Box::new(sample)));
    let view = fold.view();
    let missing = |what: &str| {
        let not_measured = vec![NotMeasured { what: what.into(), why: "one had 90 MiB".into() }];
        let command = vec!["gcc".into(), "big.c".into()];
        let meta = Meta { not_measured, command, ..Meta::default() };
        conclude(&RecordedViews {
            heap: Some(&view),
            meta: Some(&meta),
            ..RecordedViews::default()
        })
        .inconclusive
    };
    assert_eq!(missing(NotMeasured::CHILDREN), []);
    let bare = conclude(&RecordedViews { heap: Some(&view), ..RecordedViews::default() });
    let not_recorded = bare.not_recorded.unwrap();
    assert_eq!(
        not_recorded.next,
        "pagemill record --with accesses -- CMD; pagemill record --with faults -- CMD"
    );
    let inconclusive = missing(NotMeasured::WORKERS);
    assert_eq!(inconclusive[0].next, "pagemill advise -- gcc big.c");
    assert_eq!(inconclusive[0].why, "one had 90 MiB");
}

/// "nothing here is worth changing" was said of a server with 33 MiB, whose four workers had 168 more.
#[test]
fn memory_of_the_processes_that_it_started_comes_first() {
    let told = |children: Option<u64>, mib: u64, lives: bool| {
        let mut fold = HeapFold::default();
        for (time, mib) in [(0, mib / 2), (1_000_000_000, mib), (2_000_000_000, mib / 4)] {
            let sample = HeapSample {
                time: Nanos(time),
                pss: Some(Bytes(32 * MIB)),
                children,
                children_pss: children.map(|_| Bytes(mib * MIB)),
                largest_child: children.map(|_| 9),
                lazy_free: Some(Bytes(31 * MIB)),
                ..HeapSample::default()
            };
            fold.event(&Event::Heap(Box::new(sample)));
        }
        let view = fold.view();
        let why = "one had 90 MiB".into();
        let not_measured = vec![NotMeasured { what: NotMeasured::WORKERS.into(), why }];
        let meta = Meta { command: vec!["./s".into()], not_measured, ..Meta::default() };
        let (heap, meta) = (Some(&view), Some(&meta));
        conclude(&RecordedViews { heap, meta, lives, ..RecordedViews::default() })
    };
    let Conclusions { findings, inconclusive, .. } = told(Some(4), 168, false);
    let subjects: Vec<_> = findings.iter().map(|one| one.subject).collect();
    assert_eq!(subjects, ["children", "lazy-free"]);
    let text = "168.0 MiB of 200.0 MiB of memory were in 4 processes that it started, ";
    assert!(findings[0].text.starts_with(text), "{}", findings[0].text);
    assert!(findings[0].evidence.starts_with("Pss of each at 1.0 s "), "{}", findings[0].evidence);
    assert_eq!(findings[0].next, "pagemill advise -- ./s");
    assert_eq!(findings[0].stake, Stake::Memory(Bytes(168 * MIB)));
    assert!(inconclusive.iter().all(|one| !one.why.contains("90 MiB")), "said twice");
    assert_eq!(told(Some(1), 168, true).findings[0].next, "pagemill advise -p 9");
    for (children, mib) in [(None, 0), (Some(0), 0), (Some(1), 3), (Some(1), 7)] {
        let told = told(children, mib, false);
        assert_eq!(told.findings[0].subject, "lazy-free", "{children:?} {mib}");
        assert_eq!(told.inconclusive[0].why, "one had 90 MiB");
    }
}

#[test]
fn free_memory_inside_the_heap_is_named_with_what_compaction_did() {
    let sample = |time: u64, live: u64, footprint: u64| {
        Event::Heap(Box::new(HeapSample {
            time: Nanos(time),
            pid: Some(7),
            started: Some(Nanos(1)),
            live: Some(Bytes(live)),
            footprint: Some(Bytes(footprint)),
            backend: Some("none".into()),
            passes: Some(0),
            ..HeapSample::default()
        }))
    };
    let mut fold = HeapFold::default();
    fold.event(&sample(0, 100 * MIB, 101 * MIB));
    fold.event(&sample(1_000_000_000, 20 * MIB, 95 * MIB));
    let view = fold.view();
    let found = conclude(&RecordedViews { heap: Some(&view), ..RecordedViews::default() }).findings;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].stake, Stake::Memory(Bytes(75 * MIB)));
    assert!(found[0].text.contains("live data fell from 100.0 MiB"), "{}", found[0].text);
    assert!(found[0].text.ends_with("this configuration does not compact"), "{}", found[0].text);
}

/// What is concluded of a process of 200 MiB whose malloc holds so much in whole pages, and in pieces of pages, and
/// that uses so many milliseconds of CPU time a tenth of a second; its CPU time is not known without.
fn of_malloc(name: &str, returnable: u64, pieces: u64, work: Option<u64>) -> Conclusions {
    let view = heap_of_malloc(name, returnable, pieces, work);
    conclude(&RecordedViews { heap: Some(&view), ..RecordedViews::default() })
}

fn heap_of_malloc(name: &str, returnable: u64, pieces: u64, work: Option<u64>) -> HeapView {
    let bytes = |mib: u64| Some(Bytes(mib * MIB));
    let sample = |number: u64| HeapSample {
        time: Nanos(5 + number * 100_000_000),
        pid: Some(7),
        pss: bytes(200),
        cpu: work.map(|work| Nanos(number * work * 1_000_000)),
        malloc: (!name.is_empty()).then(|| name.into()),
        malloc_heap: bytes(190),
        malloc_free: bytes(returnable + pieces + 5),
        malloc_returnable: bytes(returnable),
        malloc_pieces: bytes(pieces),
        ..HeapSample::default()
    };
    let mut fold = HeapFold::default();
    (0..4).for_each(|number| fold.event(&Event::Heap(Box::new(sample(number)))));
    fold.view()
}

/// Once, nothing was said to be worth changing of a process that was free memory of its malloc for nine tenths.
#[test]
fn free_memory_of_the_programs_own_malloc_is_named_with_why_it_stays() {
    let finding = |name, returnable, pieces| {
        let found = of_malloc(name, returnable, pieces, Some(0));
        assert_eq!((found.findings.len(), found.inconclusive.len()), (1, 0), "{found:?}");
        assert_eq!(found.findings[0].subject, "malloc-free");
        assert_eq!(found.findings[0].stake, Stake::Memory(Bytes((returnable + pieces) * MIB)));
        found.findings[0].clone()
    };
    let whole = finding("glibc's malloc", 170, 10);
    assert!(whole.text.starts_with("180.0 MiB of 200.0 MiB of memory are free"), "{whole:?}");
    assert!(whole.text.contains("the end of its heap") && whole.share == 0.9, "{whole:?}");
    assert_eq!(whole.next, "pagemill run --trim -- CMD");
    let pieces = finding("glibc's malloc", 10, 150);
    assert!(pieces.text.ends_with("gives back a part of a page"), "{pieces:?}");
    assert_eq!(pieces.next, "pagemill run --heap compact -- CMD");
    let other = finding("jemalloc", 150, 10);
    assert!(other.text.contains("some time after") && other.next == "pagemill advise -- CMD");
    let none = of_malloc("glibc's malloc", 20, 10, Some(0));
    assert_eq!((none.findings.len(), none.inconclusive.len()), (0, 0), "a seventh: {none:?}");
    let found = of_malloc("", 0, 0, Some(0));
    assert_eq!((found.findings.len(), found.inconclusive.len()), (0, 1), "{found:?}");
}

/// Trimming at rest was the next command for a program that never rests: it took nothing from its memory.
#[test]
fn memory_that_only_a_rest_would_give_back_is_not_left_to_a_program_that_does_not_rest() {
    let told = |work| of_malloc("glibc's malloc", 170, 10, work).findings[0].clone();
    let busy = told(Some(7));
    assert_eq!(busy.next, "pagemill run --heap compact -- CMD");
    assert!(busy.text.ends_with("this one always used 7.0 % of a CPU or more"), "{busy:?}");
    let rests = told(Some(1));
    assert_eq!(rests.next, "pagemill run --trim -- CMD");
    assert!(rests.text.contains("it rests at times"), "{rests:?}");
    let unknown = told(None);
    assert_eq!(unknown.next, "pagemill run --heap compact -- CMD");
    assert!(unknown.text.ends_with("which was not seen"), "{unknown:?}");
}

/// Memory of a Python program was said to be nobody's.
#[test]
fn memory_in_the_arenas_of_pymalloc_is_said_to_be_there() {
    let told_of = |what: &str, anonymous: u64, times: u64| {
        let bytes = |mib: u64| Some(Bytes(mib * MIB));
        let sample = |at: u64| HeapSample {
            time: Nanos(5 + at * 200_000_000),
            pid: Some(7),
            pss: bytes(200 - times + at),
            pss_anon: bytes(anonymous - times + at),
            malloc: Some("glibc's malloc".into()),
            malloc_heap: bytes(10),
            ..HeapSample::default()
        };
        let mut fold = HeapFold::default();
        (1..=times).for_each(|at| fold.event(&Event::Heap(Box::new(sample(at)))));
        let view = fold.view();
        let mut meta = Meta { command: vec!["python3".into(), "a b.py".into()], ..Meta::default() };
        meta.lacks(what, "for a reason");
        let seen =
            RecordedViews { heap: Some(&view), meta: Some(&meta), ..RecordedViews::default() };
        conclude(&seen).findings
    };
    let told = |what: &str, anonymous: u64| told_of(what, anonymous, 1);
    let found = told(NotMeasured::PYMALLOC, 180);
    assert_eq!((found.len(), found[0].subject), (1, "pymalloc"));
    assert!(found[0].text.contains("170.0 MiB of 200.0 MiB"), "{}", found[0].text);
    assert_eq!(
        found[0].next,
        "pagemill advise --levers 'no pymalloc,compact Python' -- python3 'a b.py'"
    );
    assert_eq!(told(NotMeasured::PYMALLOC, 12), []);
    assert_eq!(told(NotMeasured::CHILDREN, 180), []);
    // It grew for eight seconds: "46.8 MiB are outside of malloc's heap", by what that held long before.
    let grows = told_of(NotMeasured::PYMALLOC, 180, 40);
    let subjects: Vec<&str> = grows.iter().map(|found| found.subject).collect();
    assert_eq!(subjects, ["growth"]);
}

/// "6.5 MiB of 10.6 MiB at the end" was told of an interpreter that held 115 until it tore itself down.
#[test]
fn of_a_program_that_ended_it_is_told_what_was_kept_while_it_worked() {
    let told = |exit_status, what: &str| {
        let bytes = |mib: u64| Some(Bytes(mib * MIB));
        let sample = |time: u64, memory: u64, kept: u64| {
            Event::Heap(Box::new(HeapSample {
                time: Nanos(time * 100_000_000),
                pid: Some(7),
                pss: bytes(memory),
                pss_anon: bytes(memory - 2),
                malloc: Some("glibc's malloc".into()),
                malloc_heap: bytes(5),
                malloc_pieces: bytes(kept),
                ..HeapSample::default()
            }))
        };
        let mut fold = HeapFold::default();
        let events = [sample(0, 125, 0), sample(30, 122, 80), sample(34, 60, 9), sample(36, 16, 6)];
        events.iter().for_each(|event| fold.event(event));
        let view = fold.view();
        let mut meta = Meta { command: vec!["python3".into()], exit_status, ..Meta::default() };
        meta.lacks(what, "for a reason");
        let seen =
            RecordedViews { heap: Some(&view), meta: Some(&meta), ..RecordedViews::default() };
        let find = |subject| {
            let found = conclude(&seen).findings;
            found.into_iter().find(|finding| finding.subject == subject)
        };
        (find("pymalloc"), find("malloc-free").unwrap())
    };
    let (arenas, malloc) = told(Some(0), NotMeasured::PYMALLOC);
    let arenas = arenas.unwrap();
    assert!(arenas.text.contains("115.0 MiB of 122.0 MiB"), "{}", arenas.text);
    assert!(arenas.evidence.ends_with("heap, as of 3.0 s of 3.6 s"), "{}", arenas.evidence);
    assert!(malloc.text.starts_with("80.0 MiB of 122.0 MiB of memory are free (as of 3.0 s"));
    // Of one that goes on, what it has now counts.
    let (arenas, malloc) = told(None, NotMeasured::PYMALLOC);
    assert!(arenas.unwrap().text.contains("9.0 MiB of 16.0 MiB"));
    assert!(malloc.text.starts_with("6.0 MiB of 16.0 MiB of memory are free, and"));
}

/// What a program freed in the last second was not known, and nobody was told.
#[test]
fn what_malloc_said_before_the_end_is_told_with_its_time() {
    let told = |end: u64| {
        let sample = |time: u64, malloc: Option<&str>| {
            Event::Heap(Box::new(HeapSample {
                time: Nanos(time),
                pid: Some(7),
                pss: Some(Bytes(200 * MIB)),
                malloc: malloc.map(str::to_owned),
                malloc_heap: Some(Bytes(190 * MIB)),
                malloc_free: Some(Bytes(180 * MIB)),
                malloc_returnable: Some(Bytes(170 * MIB)),
                ..HeapSample::default()
            }))
        };
        let mut fold = HeapFold::default();
        let events = [sample(5, None), sample(3_200_000_005, Some("jemalloc")), sample(end, None)];
        events.iter().for_each(|event| fold.event(event));
        let view = fold.view();
        let seen = RecordedViews { heap: Some(&view), ..RecordedViews::default() };
        conclude(&seen).findings.remove(0).text
    };
    let old = told(4_100_000_005);
    assert!(old.contains("are free (as of 3.2 s of 4.1 s), and jemalloc keeps them"), "{old}");
    let new = told(3_210_000_005);
    assert!(new.contains("are free, and jemalloc keeps them"), "{new}");
}

/// Once, the next command named a process that had ended.
#[test]
fn no_command_names_a_process_that_is_gone() {
    let sample = |time: u64| HeapSample {
        time: Nanos(time),
        pid: Some(7),
        started: Some(Nanos(1)),
        live: Some(Bytes(20 * MIB)),
        footprint: Some(Bytes(95 * MIB)),
        backend: Some("remap".into()),
        ..HeapSample::default()
    };
    let mut fold = HeapFold::default();
    (0..2).for_each(|time| fold.event(&Event::Heap(Box::new(sample(time)))));
    let view = fold.view();
    let next = |command: &[&str], lives| {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let meta = Meta { pid: 7, command, ..Meta::default() };
        let seen = RecordedViews {
            heap: Some(&view),
            meta: Some(&meta),
            lives,
            ..RecordedViews::default()
        };
        conclude(&seen).findings[0].next.clone()
    };
    assert_eq!(next(&["./holes"], true), "pagemill heap 7 --compact");
    assert_eq!(next(&["./holes"], false), "pagemill advise -- ./holes");
    assert_eq!(next(&[], false), "pagemill advise -- CMD");
    let meta = Meta { pid: 7, ..Meta::default() };
    let program =
        |lives| RecordedViews { meta: Some(&meta), lives, ..RecordedViews::default() }.program();
    assert_eq!((program(true), program(false)), ("-p 7".into(), "-- CMD".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn there_are_five_at_most_ordered_by_their_share_and_none_is_more_than_there_is(
        ranges in prop::collection::vec((0..400u64, 1..3u64, 0..20u64, any::<bool>()), 1..8),
    ) {
        let mut events = Vec::new();
        let mut accesses = Vec::new();
        for (number, (start, mib, last, write)) in ranges.iter().enumerate() {
            let start = COLD + start * 4 * MIB;
            events.push(allocated(0, start, Some(mib * MIB), number as u64 * 0x100));
            for interval in 0..=*last {
                accesses.extend(accessed(1000 + interval * INTERVAL, start, mib * MIB, *write));
            }
        }
        accesses.sort_by_key(Event::time);
        events.extend(accesses);
        let found = conclusions_of(&events, &AccessSetup::default(), None).findings;
        prop_assert!(found.len() <= MOST);
        prop_assert!(found.is_sorted_by(|a, b| a.share >= b.share));
        prop_assert!(found.iter().all(|finding| (0.0..=1.0).contains(&finding.share)));
    }
}

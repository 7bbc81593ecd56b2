//! Tests of heat maps.

use pagemill_model::{Allocation, MappingSample};
use proptest::prelude::*;

use super::*;
use crate::objects::tests::{One, mapping};

fn access(time: u64, tid: u64, address: u64, write: bool) -> Event {
    Event::Access(Box::new(Access {
        time: Nanos(time),
        pid: Some(7),
        tid: Some(tid),
        address: Some(address),
        instruction: Some(0x10100),
        flags: Some(if write { Flags::WRITE } else { 0 }),
        ..Access::default()
    }))
}

fn layout() -> Vec<Event> {
    vec![
        Event::Mapping(Box::new(mapping(0x10000, 0x14000, "rw-p", "/bin/one"))),
        Event::Mapping(Box::new(mapping(0x20000, 0x80000, "rw-p", "[heap]"))),
    ]
}

fn fold(events: &[Event]) -> HeatView {
    let mut fold = HeatFold::new(Nanos(0), 4096, true, Bounds::default(), One);
    layout().iter().chain(events).for_each(|event| fold.event(event));
    fold.view()
}

#[test]
fn an_allocation_is_named_by_who_wanted_it_and_first_touched_by_a_thread() {
    let taken = Allocation {
        pid: Some(7),
        address: Some(0x30000),
        size: Some(0x8000),
        stack: Some(vec![0x10501, 0x10666, 0x10700]),
        ..Allocation::default()
    };
    let view = fold(&[
        Event::Allocation(Box::new(taken)),
        access(1_000, 9, 0x30000, true),
        access(2_000_000, 10, 0x30000, false),
        access(3_000_000, 10, 0x31000, false),
        access(4_000_000, 10, 0x14020, true),
    ]);
    let object = &view.objects[0];
    assert_eq!((object.name.as_str(), object.kind.as_str()), ("one::make", "allocation"));
    // 0x10666 follows no call.
    assert_eq!(object.detail, ["alloc::vec", "one::make", "one::main"]);
    assert_eq!((object.bytes, object.slices, object.pages, object.written), (0x8000, 8, 2, 1));
    assert_eq!(object.first_by, [(0, 1), (1, 1)]);
    assert_eq!(object.total, Heat { reads: 2, writes: 1, first: 2, threads: 3 });
    assert_eq!((view.objects[1].name.as_str(), view.threads.as_slice()), ("table", &[9, 10][..]));
    assert_eq!((view.in_objects, view.accesses), (4, 4));
    assert_eq!(view.lines[0].name, "one::main");
}

/// Of a command behind a shim of many short shells 44 % of 135 MiB were told as cold; it never had more than 71.
#[test]
fn what_a_process_had_is_given_back_when_it_ends_or_executes_another_program() {
    const MS: u64 = 1_000_000;
    let touched = |pid: u64, number: u64, interval: u64| {
        Event::Touched(Box::new(Touched {
            time: Nanos((interval + 1) * 10 * MS),
            began: Some(Nanos(interval * 10 * MS)),
            pid: Some(pid),
            number: Some(number),
            ..Touched::default()
        }))
    };
    let of = |pid: u64, interval: u64, pages: std::ops::Range<u64>| {
        pages.map(move |page| {
            let Event::Access(mut row) = access(interval * 10 * MS + MS, pid, page << 12, true)
            else {
                panic!("no access")
            };
            row.pid = Some(pid);
            Event::Access(row)
        })
    };
    let told = |executes: bool, ends: bool| {
        let mut events = Vec::new();
        for interval in 0..100 {
            if interval == 0 {
                events.extend(of(7, 0, 100..120));
                events.extend(of(8, 0, 200..250));
            }
            events.extend(of(7, interval, 300..303));
            let number = if executes && interval >= 5 { interval - 5 } else { interval };
            events.push(touched(7, number, interval));
            if !ends || interval < 4 {
                events.push(touched(8, interval, interval));
            }
        }
        let view = fold(&events);
        sum(view.objects.iter().flat_map(|object| &object.last_touched).map(|(_, pages)| *pages))
    };
    assert_eq!(told(false, false), 73);
    assert_eq!(told(false, true), 23);
    assert_eq!(told(true, false), 53);
    assert_eq!(told(true, true), 3);
}

/// Of memory that four processes shared "480 MiB" were told as touched, and 120 of them as cold: those of the parent.
#[test]
fn a_page_of_memory_that_processes_share_is_one_whoever_touches_it() {
    let pages = |permissions: Option<&str>, name: &str| {
        let mapped = |pid: u64, permissions: Option<&str>| {
            Event::Mapping(Box::new(MappingSample {
                pid: Some(pid),
                start: Some(0x40000),
                end: Some(0x50000),
                permissions: permissions.map(str::to_owned),
                name: Some(name.into()),
                ..MappingSample::default()
            }))
        };
        let by = |pid: u64, time: u64| {
            let Event::Access(mut row) = access(time, pid, 0x41000, true) else {
                panic!("no access")
            };
            row.pid = Some(pid);
            Event::Access(row)
        };
        let maps = [mapped(7, permissions), mapped(8, None)];
        let later = access(9_000_000, 7, 0x30000, true);
        let view = fold(&[&maps[..], &[by(7, 1_000), by(8, 5_000_000), later]].concat());
        let object = view.objects.iter().find(|object| object.total.accesses() == 2).unwrap();
        (object.pages, object.last_touched.clone())
    };
    let (shared, last) = pages(Some("rw-s"), "/dev/zero (deleted)");
    assert_eq!((shared, last.len(), last[0].1), (1, 1, 1));
    assert!(last[0].0 > 0, "as its other process touched it: {last:?}");
    assert_eq!(pages(Some("rw-p"), "").0, 2);
}

#[test]
fn rows_that_stand_for_no_access_make_no_object() {
    let Event::Access(mut row) = access(1, 9, 0x30000, false) else { panic!("no access") };
    row.count = Some(0);
    let view = fold(&[Event::Access(row)]);
    assert!(view.objects.is_empty() && view.lines.is_empty() && view.accesses == 0);
}

fn row(pages: u64) -> Event {
    Event::Touched(Box::new(Touched {
        pid: Some(7),
        starts: Some(vec![4096, 4096]),
        pages: Some(vec![pages, pages]),
        ..Touched::default()
    }))
}

#[test]
fn a_row_of_more_pages_than_there_are_addresses_ends() {
    let bounds = Bounds { looks: 1 << 12, pages: 1 << 11 };
    let mut fold = HeatFold::new(Nanos(0), 4096, false, bounds, One);
    for _ in 0..3 {
        fold.event(&row(u64::MAX));
    }
    let view = fold.view();
    assert_eq!(view.accesses, 1 << 11);
    assert!(view.left_out > 1 << 40, "{}", view.left_out);
}

#[test]
fn what_is_beyond_a_bound_is_counted_and_what_is_not_is_not() {
    for (looks, pages, left_out) in
        [(1 << 12, 1 << 11, 0), (5, 1 << 11, 15), (1 << 12, 7, 13), (20, 20, 0)]
    {
        let mut fold = HeatFold::new(Nanos(0), 4096, false, Bounds { looks, pages }, One);
        fold.event(&row(10));
        let view = fold.view();
        assert_eq!((view.accesses, view.left_out), (20 - left_out, left_out), "{looks} {pages}");
    }
}

#[test]
fn accesses_to_more_pages_than_are_told_apart_are_counted_as_left_out() {
    let bounds = Bounds { looks: 1, pages: 3 };
    let mut fold = HeatFold::new(Nanos(0), 4096, true, bounds, One);
    for page in [1, 2, 3, 4, 5, 2, 3, 6] {
        fold.event(&access(page, 7, page << 12, false));
    }
    let view = fold.view();
    assert_eq!((view.accesses, view.left_out), (5, 3));
}

proptest! {
    #[test]
    fn doubling_loses_nothing_and_cells_add_up(
        accesses in prop::collection::vec((0..1u64 << 34, 0..80u64, 0x20000..0x80000u64, any::<bool>()), 1..200),
    ) {
        let mut accesses = accesses;
        accesses.sort_unstable();
        let events: Vec<Event> =
            accesses.iter().map(|&(time, tid, address, write)| access(time, tid, address, write)).collect();
        let view = fold(&events);
        prop_assert!(view.steps <= STEPS);
        let object = &view.objects[0];
        let writes = accesses.iter().filter(|access| access.3).count() as u64;
        prop_assert_eq!((object.total.accesses(), object.total.writes), (accesses.len() as u64, writes));
        prop_assert_eq!(object.total.first, object.pages);
        for (slice, step, _) in &object.cells {
            prop_assert!(*slice < object.slices && *step < view.steps);
        }
        prop_assert_eq!(view.steps - 1, accesses.last().unwrap().0 / view.step);
    }
}

/// Findings, folded stacks and holders said three times since when the same memory was not touched.
#[test]
fn what_was_told_in_an_interval_may_have_been_used_until_its_end() {
    let interval = |began: u64, time: u64| {
        let touched =
            Touched { time: Nanos(time), began: Some(Nanos(began)), ..Touched::default() };
        Event::Touched(Box::new(Touched { pid: Some(7), ..touched }))
    };
    let view = fold(&[
        access(2_000_000, 9, 0x30000, true),
        interval(1_000_000, 6_000_000),
        access(7_500_000, 9, 0x31000, false),
        interval(6_000_000, 9_000_000),
        access(9_200_000, 9, 0x32000, false),
    ]);
    // The last interval was never told to its end.
    assert_eq!(view.objects[0].last_touched, [(5, 1), (8, 1), (9, 1)]);
    assert_eq!(view.objects[0].last_written, [(5, 1)]);
    assert_eq!(view.steps, 10);
    let mut before = view;
    before.objects[0].last_touched = vec![(2, 1), (7, 1), (9, 1)];
    before.until_intervals_end(4_500_000);
    assert_eq!(before.objects[0].last_touched, [(7, 1), (9, 2)]);
}

/// What lies at a place until it is freed, if it is, and then the next: touches (time in units, page).
type Life = (Vec<(u64, u64)>, Option<u64>);
/// Pages of a place, and what lies there one after the other.
type Place = (u64, Vec<Life>);

/// Some ticks, ns.
const UNIT: u64 = 2 << 16;
/// Length of the recordings below in units.
const END: u64 = 800;
/// In ns and whole steps.
const ENDED: u64 = (END * UNIT).div_ceil(1_000_000) * 1_000_000;
/// Where the last eighth begins.
const LAST_PART: u64 = ENDED - ENDED / 8;

fn places() -> impl Strategy<Value = Vec<Place>> {
    // Times from parts of the recording at which rests are told apart.
    let time = || prop_oneof![0..120_u64, 300..500_u64, 650..790_u64];
    let touches = prop::collection::vec((time(), 0..48_u64), 0..8);
    let freed = prop::option::of(prop_oneof![50..150_u64, 200..500_u64, 600..795_u64]);
    let lives = prop::collection::vec((touches, freed), 1..3);
    let lives = lives.prop_map(|mut lives| {
        let mut began = 0;
        lives.retain_mut(|(touches, freed)| {
            let from = began;
            *freed = freed.filter(|at| *at > from);
            began = freed.unwrap_or(END);
            touches.retain(|(at, _)| from < *at && *at < began);
            touches.sort_unstable();
            from < END
        });
        lives
    });
    prop::collection::vec((prop_oneof![1..3_u64, 40..48_u64], lives), 1..6)
}

/// The first byte of each place and its bytes: one begins in the page in which the one before ends.
fn laid(places: &[Place]) -> Vec<(u64, u64)> {
    let mut at = 0x30000 + 16;
    let next = |place: &Place| {
        let (from, bytes) = (at, place.0 * 4096);
        at += bytes;
        (from, bytes)
    };
    places.iter().map(next).collect()
}

/// What asks for the block: what is large is one object however often it is asked for.
fn caller(place: usize, pages: u64, life: usize) -> u64 {
    let life = if pages * 4096 >= MAPPED { 0 } else { life as u64 };
    0x10501 + 32 * place as u64 + 16 * life
}

/// What an object is to a page that it was touched in.
#[derive(Default)]
struct Use {
    touches: Vec<u64>,
    freed: Option<u64>,
    unmapped: bool,
}

/// When the pages were used last, and until when those rested that did: from all touches of each.
fn naive(places: &[Place]) -> (Vec<u64>, Vec<u64>) {
    let mut pages: HashMap<u64, HashMap<u64, Use>> = HashMap::new();
    let laid = laid(places);
    let covers = |(from, bytes): &(u64, u64), page: u64| {
        *from / 4096 <= page && page <= (from + bytes - 1) / 4096
    };
    for (number, ((size, lives), (from, bytes))) in places.iter().zip(&laid).enumerate() {
        for (life, (touches, freed)) in lives.iter().enumerate() {
            let caller = caller(number, *size, life);
            for (time, page) in touches {
                let page = (from + page % size * 4096) / 4096;
                let known = pages.entry(page).or_default().entry(caller).or_default();
                if known.unmapped {
                    *known = Use::default();
                }
                known.touches.push(time * UNIT);
            }
            for (page, uses) in &mut pages {
                let known = uses.get_mut(&caller).filter(|known| !known.unmapped);
                if let (Some(known), Some(time)) = (known, freed)
                    && covers(&(*from, *bytes), *page)
                {
                    known.freed = Some(time * UNIT);
                    let inside = page * 4096 >= *from && (page + 1) * 4096 <= from + bytes;
                    known.unmapped = inside && *bytes >= MAPPED;
                }
            }
        }
    }
    let (mut last, mut until) = (Vec::new(), Vec::new());
    for (page, uses) in pages {
        let late = |one: &Use| one.freed.is_some_and(|at| at >= LAST_PART);
        let early = |one: &Use| one.touches.iter().any(|at| *at < LAST_PART);
        let uses = uses.into_values().filter(|one| !one.unmapped || late(one) && early(one));
        let uses: Vec<Use> = uses.collect();
        let live = places.iter().zip(&laid).any(|((_, lives), place)| {
            lives.last().is_some_and(|last| last.1.is_none()) && covers(place, page)
        });
        let all: Vec<u64> = uses.iter().flat_map(|one| one.touches.clone()).collect();
        let Some(first) = all.iter().min() else { continue };
        let before = all.iter().filter(|at| **at < LAST_PART).max();
        let freed = uses.iter().filter(|one| late(one)).filter_map(|one| one.freed);
        let after = all.iter().filter(|at| **at >= LAST_PART).copied().chain(freed).min();
        let held = live || uses.iter().any(|one| late(one) && early(one));
        match (before, after) {
            (Some(from), Some(to))
                if *from < ENDED / 2 && 2 * (to - from) >= ENDED - first && held =>
            {
                last.push(from / 1_000_000);
                until.push(to / 1_000_000);
            }
            _ if held => last.extend(all.iter().max().map(|at| at / 1_000_000)),
            _ => {}
        }
    }
    last.sort_unstable();
    until.sort_unstable();
    (last, until)
}

proptest! {
    #[test]
    fn what_rested_into_the_last_eighth_is_what_all_touches_of_each_page_tell(places in places()) {
        let mut events = Vec::new();
        for (number, ((size, lives), (from, bytes))) in places.iter().zip(laid(&places)).enumerate() {
            let mut began = 0;
            for (life, (touches, freed)) in lives.iter().enumerate() {
                let note = |time: u64, size: Option<u64>| {
                    let stack = Some(vec![caller(number, bytes / 4096, life)]);
                    let (pid, address, time) = (Some(7), Some(from), Nanos(time * UNIT));
                    Event::Allocation(Box::new(Allocation { time, pid, address, size, stack }))
                };
                events.push(note(began, Some(bytes)));
                let touch = |(time, page): &(u64, u64)| access(time * UNIT, 9, from + page % size * 4096, false);
                events.extend(touches.iter().map(touch));
                events.extend(freed.map(|time| note(time, None)));
                began = freed.unwrap_or(END);
            }
        }
        events.push(access(END * UNIT - 1, 9, 0x14020, true));
        events.sort_by_key(Event::time);
        let view = fold(&events);
        prop_assert_eq!((view.step, view.steps), (1_000_000, ENDED / 1_000_000));
        let told = |of: fn(&ObjectHeat) -> &Vec<LastUse>| {
            let uses = view.objects.iter().filter(|object| object.kind == "allocation").flat_map(of);
            let mut steps: Vec<u64> = uses.flat_map(|(step, pages)| vec![*step; *pages as usize]).collect();
            steps.sort_unstable();
            steps
        };
        let seen = (told(|object| &object.last_touched), told(|object| &object.rested_until));
        prop_assert_eq!(seen, naive(&places));
    }
}

/// The recorder told of the last interval a second after the program had ended, which was then the last eighth.
#[test]
fn the_end_of_a_program_that_was_seen_to_end_is_what_it_did_last() {
    let note = |time: u64, size: Option<u64>| {
        let (pid, address, stack) = (Some(7), Some(0x30000), Some(vec![0x10501]));
        Event::Allocation(Box::new(Allocation { time: Nanos(time), pid, address, size, stack }))
    };
    let mut fold = HeatFold::new(Nanos(0), 4096, true, Bounds::default(), One);
    let told = Touched { time: Nanos(16_000_000), pid: Some(7), ..Touched::default() };
    let events = [
        note(0, Some(0x1000)),
        access(1_000_000, 9, 0x30000, true),
        access(7_500_000, 9, 0x30000, true),
        note(7_600_000, None),
        access(8_000_000, 9, 0x14020, true),
        Event::Touched(Box::new(told)),
    ];
    layout().iter().chain(&events).for_each(|event| fold.event(event));
    let rested = |view: HeatView| {
        let of = view.objects.into_iter().find(|object| object.kind == "allocation").unwrap();
        (of.last_touched, of.rested_until, of.rested_freed)
    };
    assert_eq!(rested(fold.view()), (vec![], vec![], 0));
    fold.ended();
    assert_eq!(rested(fold.view()), (vec![(1, 1)], vec![(7, 1)], 1));
}

//! Tests of heat maps.

use pagemill_model::Allocation;
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

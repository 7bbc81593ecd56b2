//! Tests of what a recording by faults is held against.

use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;
const START: u64 = 0x10_0000;

fn mapping() -> Event {
    Event::Mapping(Box::new(MappingSample {
        pid: Some(1),
        start: Some(START),
        end: Some(START + 64 * PAGE),
        name: Some("[heap]".into()),
        ..MappingSample::default()
    }))
}

fn access(page: u64, time: u64, flags: u64) -> Event {
    Event::Access(Box::new(Access {
        time: Nanos(time),
        last: Some(Nanos(time + 1)),
        pid: Some(1),
        address: Some(START + page * PAGE),
        flags: Some(flags),
        ..Access::default()
    }))
}

/// The interval from 100 n to 100 (n + 1), scanned ten before its end.
fn interval(number: u64, touched: &[u64], written: &[u64]) -> Event {
    let starts = |pages: &[u64]| Some(pages.iter().map(|page| START + page * PAGE).collect());
    Event::Touched(Box::new(Touched {
        time: Nanos(100 * (number + 1)),
        pid: Some(1),
        number: Some(number),
        began: Some(Nanos(100 * number)),
        scanned: Some(Nanos(100 * number + 90)),
        starts: starts(touched),
        pages: Some(vec![1; touched.len()]),
        written_starts: starts(written),
        written_pages: Some(vec![1; written.len()]),
        kept: None,
    }))
}

fn view(exact: &[Event], faults: &[Event]) -> ValidationView {
    let mut validation = Validation::new(PAGE);
    validation.exact(&mapping());
    exact.iter().for_each(|event| validation.exact(event));
    faults.iter().for_each(|event| validation.faults(event));
    validation.view()
}

#[test]
fn an_interval_that_says_too_much_ends_and_none_at_all_agrees_with_nothing() {
    let Event::Touched(mut row) = interval(0, &[0], &[]) else { panic!("no row") };
    row.pages = Some(vec![u64::MAX]);
    let mut validation = Validation::new(PAGE);
    let Event::Mapping(mut whole) = mapping() else { panic!("no row") };
    whole.end = Some(u64::MAX);
    validation.exact(&Event::Mapping(whole));
    for _ in 0..3 {
        validation.faults(&Event::Touched(row.clone()));
    }
    assert!(validation.pages() > MOST && !validation.view().agrees());
    assert!(!view(&[], &[]).agrees(), "a recording without an interval");
}

#[test]
fn a_page_that_the_row_says_was_kept_is_excused_as_often_as_it_says() {
    let mut second = interval(1, &[1, 2, 3], &[]);
    let exact = [access(1, 50, 0), access(2, 50, 0)];
    // The third was not told before, and no row speaks of two.
    for (kept, extra) in [(0, 3), (1, 2), (2, 1), (9, 1)] {
        if let Event::Touched(row) = &mut second {
            row.kept = Some(kept);
        }
        let view = view(&exact, &[interval(0, &[1, 2], &[]), second.clone()]);
        let parts = view.touched_in_intervals;
        assert_eq!((parts.kept, parts.extra), (3 - extra, extra), "{kept}");
    }
    // The fault of the interval before is none of this one's; with one here it was touched.
    let told = [interval(0, &[1, 2], &[]), second.clone(), access(1, 80, 0)];
    assert_eq!(view(&exact, &told).touched_in_intervals.kept, 2);
    let told = [interval(0, &[1, 2], &[]), second, access(1, 150, 0)];
    assert_eq!(view(&exact, &told).touched_in_intervals.kept, 1);
}

#[test]
fn what_a_fork_left_is_kept_in_the_first_interval_and_in_the_whole() {
    let mut first = interval(0, &[1, 2], &[]);
    for (kept, extra) in [(0, 1), (1, 0)] {
        if let Event::Touched(row) = &mut first {
            row.kept = Some(kept);
        }
        let view = view(&[access(1, 50, 0)], &[first.clone()]);
        let (parts, whole) = (view.touched_in_intervals, view.touched["heap"]);
        assert_eq!((parts.kept, parts.extra), (kept, extra));
        assert_eq!((whole.kept, whole.extra, whole.exact), (kept, extra, 1));
    }
}

/// A process that executes another program has other memory where the first had its own.
#[test]
fn what_is_mapped_later_is_in_the_place_of_what_was_there() {
    let told = [interval(0, &[1, 40], &[])];
    let mut validation = Validation::new(PAGE);
    let mut older = MappingSample {
        pid: Some(1),
        start: Some(START + 30 * PAGE),
        end: Some(START + 35 * PAGE),
        ..MappingSample::default()
    };
    validation.exact(&Event::Mapping(Box::new(older.clone())));
    (older.start, older.end) = (Some(START + 39 * PAGE), Some(START + 40 * PAGE));
    validation.exact(&Event::Mapping(Box::new(older)));
    validation.exact(&mapping());
    for event in [access(1, 50, 0), access(40, 50, 0)] {
        validation.exact(&event);
    }
    told.iter().for_each(|event| validation.faults(event));
    let view = validation.view();
    assert!(view.agrees() && view.touched["heap"].exact == 2, "{view:?}");
}

/// The kernel takes a page for a futex without a fault, which makes it writable.
#[test]
fn a_page_told_as_written_that_had_no_fault_was_the_kernels_if_the_program_touched_it() {
    let faults = [interval(0, &[1], &[1]), interval(1, &[1], &[1]), interval(2, &[], &[])];
    let exact = |second| [access(1, 50, Flags::WRITE), access(1, 150, second)];
    assert!(view(&exact(Flags::WRITE), &faults).agrees());
    let read = view(&exact(0), &faults);
    assert!(read.agrees() && read.written_in_intervals.kernel == 1, "{read:?}");
    // With a fault there, it is known that it was a read.
    let told = [&faults[..], &[access(1, 150, 0)]].concat();
    assert_eq!(view(&exact(0), &told).written_in_intervals.extra, 1);
    assert_eq!(view(&exact(0)[..1], &faults).touched_in_intervals.extra, 1);
}

#[test]
fn what_agrees_agrees_and_an_access_during_a_scan_may_be_in_either_interval() {
    let exact =
        [access(1, 50, 0), access(1, 60, Flags::WRITE), access(2, 95, 0), access(3, 150, 0)];
    for (first, second) in [(vec![1, 2], vec![3]), (vec![1], vec![2, 3])] {
        let view = view(&exact, &[interval(0, &first, &[1]), interval(1, &second, &[])]);
        assert!(view.agrees(), "{view:?}");
        assert_eq!((view.intervals, view.on_borders), (2, 1));
        assert_eq!(view.touched["heap"].exact, 3);
        assert_eq!(view.touched_in_intervals.exact, 2);
    }
}

#[test]
fn what_the_kernel_and_the_emulator_touched_is_excused_if_faults_say_so() {
    let told = interval(0, &[1, 2], &[]);
    let mut by_file = access(2, 20, 0);
    if let Event::Access(row) = &mut by_file {
        row.instruction = Some(0x7000);
    }
    let file = Event::Mapping(Box::new(MappingSample {
        pid: Some(1),
        start: Some(0x7000),
        end: Some(0x8000),
        name: Some("/usr/bin/emulator".into()),
        ..MappingSample::default()
    }));
    let excused = [file, access(1, 10, Flags::IN_KERNEL), by_file, told.clone()];
    let view_of = |faults: &[Event]| view(&[], faults);
    let heap = view_of(&excused).touched["heap"];
    assert_eq!((heap.kernel, heap.emulator, heap.extra), (1, 1, 0));
    assert!(view_of(&excused).agrees());
    assert!(!view_of(&[told]).agrees());
}

#[test]
fn a_page_of_a_file_without_a_fault_near_one_with_a_fault_was_mapped_around_it() {
    let file = |name: &str, permissions: &str| {
        Event::Mapping(Box::new(MappingSample {
            pid: Some(1),
            start: Some(0x20_0000 - 64 * PAGE),
            end: Some(0x20_0000 + 64 * PAGE),
            name: Some(name.into()),
            permissions: Some(permissions.into()),
            ..MappingSample::default()
        }))
    };
    // The page table of the first two ends where the third begins.
    let first = (0x20_0000 - START) / PAGE - 2;
    let told = [interval(0, &[first, first + 1, first + 2], &[]), access(first, 50, 0)];
    let view_of = |name: &str, permissions: &str, told: &[Event]| {
        let mut validation = Validation::new(PAGE);
        validation.exact(&file(name, permissions));
        validation.exact(&access(first, 50, 0));
        validation.faults(&file(name, permissions));
        told.iter().for_each(|event| validation.faults(event));
        validation.view().touched_in_intervals
    };
    let of_file = view_of("/lib/data", "r--s", &told);
    assert_eq!((of_file.exact, of_file.around, of_file.extra), (1, 1, 1), "{of_file:?}");
    for (name, permissions) in [("[heap]", "r--s"), ("/lib/data", "r--p"), ("/dev/shm/x", "rw-s")] {
        assert_eq!(view_of(name, permissions, &told).extra, 2, "{name} {permissions} is watched");
    }
    assert_eq!(view_of("/lib/data", "r--s", &told[..1]).extra, 2, "without a fault there is none");
}

#[test]
fn a_page_that_a_call_about_a_futex_has_is_the_kernels_for_as_long_as_the_call_lasts() {
    let told = [interval(0, &[1], &[1]), interval(1, &[1], &[1]), interval(2, &[1], &[])];
    let mut call = access(1, 120, Flags::IN_KERNEL);
    if let Event::Access(row) = &mut call {
        row.last = Some(Nanos(180));
    }
    let view = view(&[access(1, 50, Flags::WRITE), call], &told);
    assert_eq!((view.touched_in_intervals.kernel, view.written_in_intervals.kernel), (1, 1));
    assert_eq!((view.touched_in_intervals.extra, view.written_in_intervals.extra), (1, 0));
}

/// Accesses of a run, and what a recording by faults has of them.
fn recorded(accesses: &[(u64, u64, bool)]) -> (Vec<Event>, Vec<Event>) {
    let mut sets = vec![(BTreeSet::new(), BTreeSet::new()); 8];
    let mut exact = Vec::new();
    for &(page, time, write) in accesses {
        exact.push(access(page, time, if write { Flags::WRITE } else { 0 }));
        let set = &mut sets[(time / 100) as usize];
        set.0.insert(page);
        if write {
            set.1.insert(page);
        }
    }
    let faults = sets.iter().enumerate().map(|(number, (touched, written))| {
        let list = |set: &BTreeSet<u64>| set.iter().copied().collect::<Vec<u64>>();
        interval(number as u64, &list(touched), &list(written))
    });
    (exact, faults.collect())
}

proptest! {
    #[test]
    fn taking_out_a_page_adding_one_or_making_a_write_a_read_is_noticed(
        // Away from ends and scans, so that every window belongs to one interval.
        accesses in prop::collection::vec((0_u64..32, 0_u64..8, 1_u64..80, any::<bool>()), 1..60),
        pick in any::<prop::sample::Index>(),
    ) {
        let accesses: Vec<(u64, u64, bool)> = accesses
            .into_iter()
            .map(|(page, interval, at, write)| (page, interval * 100 + at, write))
            .collect();
        let (exact, faults) = recorded(&accesses);
        prop_assert!(view(&exact, &faults).agrees());
        let (page, time, write) = accesses[pick.index(accesses.len())];
        let change = |change: &dyn Fn(&mut Touched)| {
            let mut faults = faults.clone();
            if let Event::Touched(row) = &mut faults[(time / 100) as usize] {
                change(row);
            }
            view(&exact, &faults)
        };
        let at = |starts: &[u64]| starts.iter().position(|start| *start == START + page * PAGE);
        let without = change(&|row| {
            let (Some(starts), Some(pages)) = (&mut row.starts, &mut row.pages) else { return };
            if let Some(at) = at(starts) {
                starts.remove(at);
                pages.remove(at);
            }
        });
        prop_assert_eq!(without.touched_in_intervals.missing, 1);
        let more = change(&|row| {
            if let (Some(starts), Some(pages)) = (&mut row.starts, &mut row.pages) {
                starts.push(START + 40 * PAGE);
                pages.push(1);
            }
        });
        prop_assert_eq!((more.touched_in_intervals.extra, more.touched["heap"].extra), (1, 1));
        if write {
            let read = change(&|row| {
                let (Some(starts), Some(pages)) = (&mut row.written_starts, &mut row.written_pages) else { return };
                if let Some(at) = at(starts) {
                    starts.remove(at);
                    pages.remove(at);
                }
            });
            prop_assert!(read.written_in_intervals.missing > 0);
        }
    }
}

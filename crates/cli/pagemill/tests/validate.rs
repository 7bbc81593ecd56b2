//! The exact back end, and `validate`: both back ends on one run, and that it notices what is wrong.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use pagemill_analysis::validate::{Validation, ValidationView};
use pagemill_model::fault::Flags;
use pagemill_model::recording::Reader;
use pagemill_model::{Event, Source as _, Touched};
use serde_json::Value;
use support::{Ran, compiled, pagemill, ran};

/// Two blocks, touched in turns that last for several intervals, on a second thread every other time.
const TURNS: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
enum { PAGES = 90, TURNS = 6, ROUNDS = 6000 };
static char *block[2];
static volatile char sum;
static void *turn(void *which) {
    char *mine = block[(long)which];
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < PAGES; i++)
            if (i % 3) mine[i * 4096L] = round; else sum += mine[i * 4096L];
    return 0;
}
int main(void) {
    for (int i = 0; i < 2; i++) block[i] = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < TURNS; i++) {
        pthread_t thread;
        if (i % 2) { pthread_create(&thread, 0, turn, (void *)1); pthread_join(thread, 0); } else turn(0);
    }
    return 0;
}
"#;

/// Whether doctor says that the exact back end does not work here; said.
fn skipped() -> bool {
    let rows = ran(pagemill().args(["doctor", "--json"]));
    let rows: Value = serde_json::from_str(&rows.out).unwrap();
    let row =
        rows["rows"].as_array().unwrap().iter().find(|row| row["name"] == "emulator").unwrap();
    let missing = row["status"] != "ok";
    if missing {
        println!("skipped: {}", row["finding"]);
    }
    missing
}

fn report(recording: &Path) -> Value {
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    serde_json::from_str(&shown.out).unwrap()
}

#[test]
fn every_access_is_counted_and_threads_forks_and_executed_programs_are_followed() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "turns", TURNS, &["-O1", "-pthread"]) else { return };
    let recorded = |name: &str, command: &[&str], status: i32| {
        let recording = directory.path().join(name);
        let run = ran(pagemill()
            .args(["record", "--with", "accesses", "--backend", "exact", "-o"])
            .arg(&recording)
            .arg("--")
            .args(command));
        assert_eq!(run.code(), Some(status), "{run:?}");
        report(&recording)
    };
    let program = program.to_str().unwrap();
    let alone = recorded("alone", &[program], 0);
    let mappings = alone["accesses"]["mappings"].as_array().unwrap();
    let blocks = mappings
        .iter()
        .find(|mapping| mapping["name"] == "anonymous, below 2 MiB")
        .unwrap_or_else(|| panic!("{mappings:?}"));
    // 2 blocks × 90 pages, of which a third is only read; 3 turns × 6000 rounds each.
    let count = |name: &str| blocks["counts"][name].as_u64().unwrap();
    assert!(count("pages") >= 180, "{blocks}");
    assert!(count("accesses") - count("writes") >= 6 * 6000 * 30, "{blocks}");
    assert!(count("writes") >= 6 * 6000 * 60, "{blocks}");
    assert_eq!(alone["meta"]["accesses"]["back_end"], "exact");
    // Three threads beside the first.
    assert_eq!(alone["accesses"]["threads"].as_array().unwrap().len(), 4, "{alone}");
    // A shell that forks and executes: the program's accesses are there all the same.
    let by_shell = recorded("by-shell", &["sh", "-c", &format!("{program} && exit 7")], 7);
    let all = |report: &Value| report["accesses"]["total"]["accesses"].as_u64().unwrap();
    assert!(all(&by_shell) > count("accesses"), "{by_shell}");
}

#[test]
fn what_cannot_be_emulated_is_refused_before_it_starts() {
    let missing = ran(pagemill().args([
        "record",
        "--with",
        "accesses",
        "--backend",
        "exact",
        "--",
        "no-such-program",
    ]));
    assert_eq!(missing.code(), Some(127));
    let without = ran(pagemill()
        .args(["record", "--with", "accesses", "--backend", "exact", "--", "/bin/true"])
        .env("PATH", "/nowhere"));
    assert_eq!(without.code(), Some(125));
    assert!(without.err.contains("apt-get install qemu-user"), "{}", without.err);
    assert_eq!(ran(pagemill().args(["validate", "no-such-directory"])).code(), Some(2));
}

/// Times are of the clock that the recording names, whether rows are of pages or of single accesses.
#[test]
fn each_access_has_its_time_by_the_clock_of_the_recording() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for options in [&["--every"][..], &[]] {
        let recording = directory.path().join(options.len().to_string());
        let began = pagemill_kernel::clock::monotonic();
        let run = ran(pagemill()
            .args(["record", "--with", "accesses", "--backend", "exact", "-o"])
            .arg(&recording)
            .args(options)
            .args(["--", "/bin/true"]));
        assert_eq!(run.code(), Some(0), "{run:?}");
        let lived = began..pagemill_kernel::clock::monotonic();
        let mut reader = Reader::open(&recording).unwrap();
        let mut rows = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let Event::Access(row) = event else { continue };
            let (first, last) = (Duration::from(row.time), Duration::from(row.last.unwrap()));
            assert!(
                first <= last && lived.contains(&first) && lived.contains(&last),
                "{row:?} in {lived:?}"
            );
            rows += 1;
        }
        assert!(rows > 100, "{rows} rows");
    }
}

/// Both recordings, held against each other after `change` to what the faults say; it is told which pages the
/// program accessed.
fn judged(directory: &Path, change: impl FnOnce(&mut [Event], &BTreeSet<u64>)) -> ValidationView {
    judged_both(directory, |_, faults, accessed| change(faults, accessed))
}

/// The same, after a change to either.
fn judged_both(
    directory: &Path,
    change: impl FnOnce(&mut Vec<Event>, &mut [Event], &BTreeSet<u64>),
) -> ValidationView {
    let events = |name: &str| {
        let mut reader = Reader::open(&directory.join(name)).unwrap();
        let mut events = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            events.push(event);
        }
        events
    };
    let mut validation = Validation::new(4096);
    let (mut exact, mut faults) = (events("exact"), events("faults"));
    let accessed = exact.iter().filter_map(|event| match event {
        Event::Access(row) => Some(row.address.unwrap() & !4095),
        _ => None,
    });
    let accessed = accessed.collect();
    change(&mut exact, &mut faults, &accessed);
    exact.iter().for_each(|event| validation.exact(event));
    faults.iter().for_each(|event| validation.faults(event));
    validation.view()
}

fn intervals(events: &mut [Event]) -> Vec<&mut Touched> {
    fn touched(event: &mut Event) -> Option<&mut Touched> {
        match event {
            Event::Touched(row) => Some(row),
            _ => None,
        }
    }
    events.iter_mut().filter_map(touched).collect()
}

/// The pages of runs.
fn pages(starts: &Option<Vec<u64>>, lengths: &Option<Vec<u64>>) -> Vec<u64> {
    let runs = starts.iter().flatten().zip(lengths.iter().flatten());
    runs.flat_map(|(start, length)| (0..*length).map(move |page| start + page * 4096)).collect()
}

/// Reads one page in eight of a file, mapped shared, which cannot be registered, and ends.
const READS_A_FILE: &str = r#"
#include <fcntl.h>
#include <sys/mman.h>
int main(int count, char **words) {
    volatile char sum = 0;
    char *file = mmap(0, 160 * 4096, PROT_READ, MAP_SHARED, open(words[1], O_RDONLY), 0);
    for (int round = 0; round < 400; round++)
        for (int i = 0; i < 160; i += 8) for (int k = 0; k < 60; k++) sum += file[i * 4096 + k];
    return 0;
}
"#;

#[test]
fn pages_of_a_file_that_are_mapped_around_a_fault_are_no_difference() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "reads", READS_A_FILE, &["-O1"]) else { return };
    let (data, both) = (directory.path().join("data"), directory.path().join("both"));
    std::fs::write(&data, vec![1; 160 * 4096]).unwrap();
    let run = ran(pagemill()
        .args(["validate", "--json", "--access-interval", "10ms", "-o"])
        .arg(&both)
        .arg("--")
        .args([&program, &data]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    // Without the row of an access that was the only one to a page of anonymous memory, something is extra.
    let view = judged_without(&both);
    assert!(view.touched.values().map(|tally| tally.extra).sum::<u64>() > 0, "{view:?}");
}

/// Both recordings, held against each other without the accesses to one page that a fault of the program's tells of.
fn judged_without(directory: &Path) -> ValidationView {
    let events = |name: &str| {
        let mut reader = Reader::open(&directory.join(name)).unwrap();
        std::iter::from_fn(move || reader.next_event().unwrap()).collect::<Vec<Event>>()
    };
    let page_of = |event: &Event| match event {
        Event::Access(row) => Some(row.address.unwrap() & !4095),
        _ => None,
    };
    let (exact, faults) = (events("exact"), events("faults"));
    let stack = exact.iter().find_map(|event| match event {
        Event::Mapping(row) if row.name.as_deref() == Some("[stack]") => {
            Some(row.start.unwrap()..row.end.unwrap())
        }
        _ => None,
    });
    let stack = stack.expect("a stack");
    let page = exact
        .iter()
        .filter_map(page_of)
        .find(|page| stack.contains(page))
        .expect("an access to it");
    let mut validation = Validation::new(4096);
    exact
        .iter()
        .filter(|event| page_of(event) != Some(page))
        .for_each(|event| validation.exact(event));
    faults.iter().for_each(|event| validation.faults(event));
    validation.view()
}

/// A shell and its children, which work at the same time on memory that they shared at the fork, each for several
/// intervals.
const SHELL: &str = r#"
for i in 1 2 3; do
    (j=0; while [ $j -lt 200 ]; do j=$((j + 1)); x=$x$j; done) &
    j=0; y=
    while [ $j -lt 400 ]; do j=$((j + 1)); y=$y$j; done
    wait
done
/bin/true
"#;

#[test]
fn of_a_shell_and_its_children_no_page_is_missing_while_their_memory_is_kept() {
    if skipped() {
        return;
    }
    let run = ran(pagemill().args([
        "validate",
        "--json",
        "--access-interval",
        "1ms",
        "--",
        "sh",
        "-c",
        SHELL,
    ]));
    if run.code() == Some(2) {
        println!("skipped: {}", run.err);
        return;
    }
    let result: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{run:?}"));
    let tallies = ["touched", "written"].iter().flat_map(|kind| result[kind].as_object().unwrap());
    let of_intervals = ["touched_in_intervals", "written_in_intervals"];
    let missing = tallies
        .map(|(_, tally)| tally)
        .chain(of_intervals.iter().map(|name| &result[name]))
        .map(|tally| tally["missing"].as_u64().unwrap());
    assert_eq!(missing.sum::<u64>(), 0, "{result}");
    assert!(result["touched_in_intervals"]["kept"].as_u64().unwrap() > 0, "{result}");
}

#[test]
fn both_back_ends_see_the_same_pages_and_the_validator_can_fail() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "turns", TURNS, &["-O1", "-pthread"]) else { return };
    let both = directory.path().join("both");
    let run: Ran = ran(pagemill()
        .args(["validate", "--json", "--access-interval", "10ms", "-o"])
        .arg(&both)
        .arg("--")
        .arg(&program));
    if run.code() == Some(2) {
        println!("skipped: {}", run.err);
        return;
    }
    assert_eq!(run.code(), Some(0), "{run:?}");
    let result: Value = serde_json::from_str(&run.out).unwrap();
    let kinds = result["touched"].as_object().unwrap();
    let seen: u64 = kinds.values().map(|kind| kind["exact"].as_u64().unwrap()).sum();
    assert!(seen >= 180, "{result}");
    assert!(result["touched_in_intervals"]["exact"].as_u64().unwrap() > 0, "{result}");
    assert!(judged(&both, |_, _| {}).agrees());

    // A range that was not dropped is found present once more, in an interval in which nobody touched it.
    let kept = judged(&both, |events, accessed| {
        let mut intervals = intervals(events);
        // What was there before, and not in the last two intervals: it was not accessed again.
        let last = intervals.len() - 1;
        let later: Vec<u64> =
            intervals[last - 1..].iter().flat_map(|row| pages(&row.starts, &row.pages)).collect();
        let page = *accessed.iter().find(|page| !later.contains(page)).unwrap();
        intervals[last].starts.as_mut().unwrap().push(page);
        intervals[last].pages.as_mut().unwrap().push(1);
    });
    assert!(kept.touched_in_intervals.extra > 0, "{kept:?}");

    // The accesses to one anonymous page are gone from the exact recording: one of the blocks of the program.
    let missed = judged_both(&both, |exact, _, accessed| {
        let blocks: BTreeSet<(u64, u64)> = exact
            .iter()
            .filter_map(|event| match event {
                Event::Mapping(row) if row.name.as_deref() == Some("") => {
                    Some((row.start.unwrap(), row.end.unwrap()))
                }
                _ => None,
            })
            .filter(|(start, end)| end - start >= 90 * 4096)
            .collect();
        let inside = |page: &&u64| blocks.iter().any(|(start, end)| (*start..*end).contains(page));
        let page = *accessed.iter().find(inside).unwrap();
        exact.retain(
            |event| !matches!(event, Event::Access(row) if row.address.unwrap() & !4095 == page),
        );
    });
    let extra = |view: &ValidationView| view.touched.values().map(|tally| tally.extra).sum::<u64>();
    assert!(missed.touched_in_intervals.extra > 0 && extra(&missed) == 1, "{missed:?}");

    // A page that nobody touched is told, in memory that is the program's: the end of the first thread's stack.
    let added = judged_both(&both, |exact, faults, accessed| {
        let start = |event: &Event| match event {
            Event::Mapping(row) if row.name.as_deref() == Some("[stack]") => row.start,
            _ => None,
        };
        let page = exact.iter().find_map(start).unwrap();
        assert!(!accessed.contains(&page));
        let row = intervals(faults).remove(0);
        row.starts.as_mut().unwrap().push(page);
        row.pages.as_mut().unwrap().push(1);
    });
    assert_eq!(added.touched_in_intervals.extra, 1, "{added:?}");
    assert_eq!(added.touched["stack"].extra, 1, "{added:?}");

    // One of a hundred events lost: those pages are not known to be written.
    let lost = judged(&both, |events, accessed| {
        let write = |event: &Event| match event {
            Event::Access(row) if row.flags == Some(Flags::WRITE) => {
                Some((row.time, row.address.unwrap() & !4095))
                    .filter(|(_, page)| accessed.contains(page))
            }
            _ => None,
        };
        let writes: Vec<_> = events.iter().filter_map(write).step_by(100).collect();
        for row in intervals(events) {
            let mut all = pages(&row.written_starts, &row.written_pages);
            all.retain(|page| {
                !writes.iter().any(|(time, other)| {
                    other == page && *time >= row.began.unwrap() && *time <= row.time
                })
            });
            row.written_pages = Some(vec![1; all.len()]);
            row.written_starts = Some(all);
        }
    });
    assert!(lost.written_in_intervals.missing > 0, "{lost:?}");

    // Reading and writing exchanged.
    let flipped = judged(&both, |events, _| {
        for row in intervals(events) {
            let written = pages(&row.written_starts, &row.written_pages);
            let mut read = pages(&row.starts, &row.pages);
            read.retain(|page| !written.contains(page));
            row.written_pages = Some(vec![1; read.len()]);
            row.written_starts = Some(read);
        }
    });
    let written = flipped.written_in_intervals;
    assert!(written.missing > 0 && written.extra > 0, "{flipped:?}");

    // A part of either recording is gone: nothing can be said.
    let again = |json: &[&str]| ran(pagemill().arg("validate").arg(&both).args(json));
    assert_eq!(again(&[]).code(), Some(0));
    for dataset in ["faults/touched", "exact/accesses"] {
        let part = std::fs::read_dir(both.join(dataset)).unwrap().next().unwrap().unwrap().path();
        let aside = directory.path().join("aside");
        std::fs::rename(&part, &aside).unwrap();
        let without = again(&[]);
        assert_eq!(without.code(), Some(2), "{without:?}");
        assert!(without.err.contains("gone since it was written"), "{}", without.err);
        assert!(without.out.contains("of the whole this says nothing"), "{without:?}");
        let result: Value = serde_json::from_str(&again(&["--json"]).out).unwrap();
        assert!(result["agrees"] != true, "{result}");
        std::fs::rename(&aside, &part).unwrap();
    }
}

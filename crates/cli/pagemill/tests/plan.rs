//! `pagemill plan` and `pagemill simulate --huge` from the outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its subject should panic")]

mod support;

use std::fs;
use std::process::{Command, Output};

use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{FaultSetup, Nanos, Pid};

fn pagemill(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_profile_is_made_wrong_as_asked_and_nothing_is_overwritten() {
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("profile.csv");
    fs::write(&profile, "huge,heap,1000,addr,>,0x0,addr,<,0x400000\neager,heap,1\n").unwrap();
    let path = profile.to_str().unwrap();
    let output = pagemill(&["plan", "--perturb", "scale=0.5,huge-only", path]);
    assert_eq!(text(&output.stdout), "huge,heap,500,addr,>,0x0,addr,<,0x400000\n");
    let output = pagemill(&["plan", "--perturb", "flatten", path, "-o", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("exists (use -f to overwrite it)"));
}

#[test]
fn a_wrong_row_is_named_by_file_line_and_column() {
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("profile.csv");
    fs::write(&profile, "huge,heap,1\nhuge,stack,5\n").unwrap();
    let path = profile.to_str().unwrap();
    let expected =
        format!("{path}:2:6: expected the section code, data, heap or mmap, found \"stack\"");
    for arguments in [
        &["plan", "--perturb", "flatten", path][..],
        &["simulate", "grow", "--huge", "cbmm", "--profile", path],
    ] {
        let output = pagemill(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    }
}

/// Whoever had recorded just that was told to record just that.
#[test]
fn a_recording_without_mappings_says_why_it_has_none() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let why = "the process ended before the first look";
    let meta = Meta {
        faults: Some(FaultSetup::default()),
        not_measured: vec![NotMeasured { what: "mappings".into(), why: why.into() }],
        ..Meta::default()
    };
    Writer::create(&rec, meta, false, None).unwrap().finish(Nanos(1)).unwrap();
    let output = pagemill(&["plan", rec.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let expected = format!("says nothing of mappings: {why} (pagemill record");
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
}

#[test]
fn bytes_that_are_no_text_are_named_by_their_place() {
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("profile.csv");
    fs::write(&profile, b"huge,heap,1\nhuge,h\xffap,5\n").unwrap();
    let path = profile.to_str().unwrap();
    let output = pagemill(&["plan", path]);
    assert_eq!(output.status.code(), Some(2));
    let expected = format!("{path}:2:7: expected text in UTF-8");
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
}

#[test]
fn a_profile_becomes_one_of_the_original_and_what_that_cannot_hold_is_said() {
    let room = tempfile::tempdir().unwrap();
    let (profile, made) = (room.path().join("profile.csv"), room.path().join("original.csv"));
    let rows = "huge,mmap,70,site,=,x+0x10\nhuge,heap,1000,addr,>,0x0,addr,<,0x400000  # why\n";
    fs::write(&profile, rows).unwrap();
    let (path, out) = (profile.to_str().unwrap(), made.to_str().unwrap());
    assert_eq!(text(&pagemill(&["plan", path]).stdout), rows);
    let output = pagemill(&["plan", path, "--original", "-o", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&made).unwrap(), "huge,heap,1000,addr,>,0x0,addr,<,0x400000\n");
    assert!(
        text(&output.stderr).contains("1 of 2 rows name a call site"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(text(&pagemill(&["plan", out]).stdout), fs::read_to_string(&made).unwrap());
}

#[test]
fn what_is_no_recording_or_no_way_is_refused() {
    let output = pagemill(&["plan", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nowhere is no recording"), "{}", text(&output.stderr));
    let output = pagemill(&["plan", "--perturb", "wobble", "x.csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("expected shift=BYTES"), "{}", text(&output.stderr));
}

/// A `perf.data` of loads by one event: heap and one anonymous mapping of 8 MiB each, and samples as address and
/// whether their access walked page tables.
fn perf_data(samples: &[(u64, bool)]) -> Vec<u8> {
    let longs = |values: &[u64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let record = |kind: u32, body: Vec<u8>| {
        let head = [longs(&[u64::from(kind) | 2 << 32 | (body.len() as u64 + 8) << 48]), body];
        head.concat()
    };
    // Process and thread, first byte, length, …, read and write, private.
    let mapping = |start: u64, name: &[u8; 8]| {
        let fixed = longs(&[7 | 7 << 32, start, 8 << 20, 0, 0, 0, 0, 3 | 2 << 32]);
        record(10, [fixed, name.to_vec()].concat())
    };
    let mut data = [mapping(HEAP, b"[heap]\0\0"), mapping(MAPPED, b"//anon\0\0")].concat();
    for (time, (address, walked)) in (1_u64..).zip(samples) {
        // A load that missed, or hit, both levels of the TLB.
        let source = 2 | (if *walked { 0x14 } else { 0x0a }) << 26;
        data.extend(record(9, longs(&[7 | 7 << 32, time, *address, source])));
    }
    // Process and thread, time, address, data source.
    let mut attribute = vec![0; 128];
    attribute[24..32].copy_from_slice(&(1_u64 << 1 | 1 << 2 | 1 << 3 | 1 << 15).to_le_bytes());
    let size = data.len() as u64;
    let header = longs(&[104, 128, 104, 128, 232, size, 0, 0, 0, 0, 0, 0]);
    [b"PERFILE2".to_vec(), header, attribute, data].concat()
}

const HEAP: u64 = 0x4000_0000;
const MAPPED: u64 = 0x7f00_0000_0000;

#[test]
fn walks_that_perf_sampled_and_counted_become_a_profile() {
    let room = tempfile::tempdir().unwrap();
    let (file, rec) = (room.path().join("perf.data"), room.path().join("rec"));
    // Of four that walk three are in the second huge page of the heap; those that hit are everywhere.
    let second = HEAP + (2 << 20);
    let walks = [second, second + 4096, second + 8192, MAPPED].map(|at| (at, true));
    let hits = (0..60).map(|at| (MAPPED + at * 4096, false));
    fs::write(&file, perf_data(&walks.into_iter().chain(hits).collect::<Vec<_>>())).unwrap();
    let (file, rec) = (file.to_str().unwrap(), rec.to_str().unwrap());
    let imported = pagemill(&["record", "--import", file, "-o", rec]);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
    let told = |more: &[&str]| -> serde_json::Value {
        let output = pagemill(&[&["plan", rec, "--json"], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let counted = told(&["--walk-cycles", "4000000000"]);
    assert_eq!(
        (&counted["samples_with_tlb"], &counted["samples_that_walked"]),
        (&64.into(), &4.into())
    );
    let walked = |told: &serde_json::Value| -> Vec<(String, u64, Option<u64>)> {
        let of = |place: &serde_json::Value| {
            let walks = place["walks_sampled"].as_u64().unwrap();
            (place["place"].as_str().unwrap().into(), walks, place["walk_cycles_each"].as_u64())
        };
        told["places"].as_array().unwrap().iter().map(of).collect()
    };
    let (heap, mapped) = ("heap from 2.0 MiB to 4.0 MiB", "mappings of 8.0 MiB to 16.0 MiB");
    let each =
        |cycles: [Option<u64>; 2]| [(heap.into(), 3, cycles[0]), (mapped.into(), 1, cycles[1])];
    assert_eq!(walked(&counted), each([Some(3_000_000_000), Some(1_000_000_000)]), "{counted}");
    // Samples alone say where, not how much.
    assert_eq!(walked(&told(&[])), each([None, None]));
    let shown = pagemill(&["plan", rec]);
    assert!(text(&shown.stdout).contains("4 of 64 samples walked"), "{}", text(&shown.stdout));
    let hits: Vec<_> = (0..3).map(|at| (HEAP + at * 4096, false)).collect();
    fs::write(file, perf_data(&hits)).unwrap();
    assert!(pagemill(&["record", "--import", file, "-f", "-o", rec]).status.success());
    let none = pagemill(&["plan", rec, "--walk-cycles", "1"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("perf mem record"), "{}", text(&none.stderr));
}

#[test]
fn the_simulation_is_the_same_for_a_seed_and_names_what_it_knows() {
    let run = || {
        let output = pagemill(&[
            "simulate",
            "grow",
            "--huge",
            "linux-always,cbmm+",
            "--regions",
            "4",
            "--json",
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let first = run();
    assert!(first.contains("\"modelled\": true"), "{first}");
    assert_eq!(first, run());
    for (arguments, expected) in [
        (["simulate", "grow", "--huge", "lru"], "there is no huge page policy \"lru\""),
        (["simulate", "gups", "--huge", "cbmm"], "valid with --huge: grow, random, hot, sparse"),
    ] {
        let output = pagemill(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

/// Heap and mappings grown, shrunk, moved and copied: what `plan --measure` must not be noticed by.
#[cfg(target_arch = "x86_64")]
const SHIFTS: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static int all(const char *from, long bytes, char value) {
    for (long i = 0; i < bytes; i++) if (from[i] != value) return 0;
    return 1;
}
int main(void) {
    const long M = 1 << 20;
    char *block = sbrk(9 * M);
    if (sbrk(0) != block + 9 * M) return 1;
    memset(block, 7, 9 * M);
    if (sbrk(-5 * M - 100) != block + 9 * M || sbrk(0) != block + 4 * M - 100) return 2;
    if (sbrk(8 * M) != block + 4 * M - 100) return 3;
    if (!all(block, 4 * M - 100, 7)) return 4;
    char *fresh = (char *)(((long)block + 4 * M - 100 + 4095) / 4096 * 4096);
    if (!all(fresh, 7 * M, 0)) return 5;
    char *map = mmap(0, 8 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(map, 3, 8 * M);
    char *wall = mmap(map + 8 * M, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (wall == MAP_FAILED) return 6;
    map = mremap(map, 8 * M, 24 * M, MREMAP_MAYMOVE);
    if (map == MAP_FAILED || !all(map, 8 * M, 3) || !all(map + 8 * M, 16 * M, 0)) return 7;
    if (mremap(map, 24 * M, 1L << 60, MREMAP_MAYMOVE) != MAP_FAILED) return 8;
    char *grown = malloc(3 * M);
    memset(grown, 5, 3 * M);
    grown = realloc(grown, 40 * M);
    if (!all(grown, 3 * M, 5)) return 9;
    pid_t child = fork();
    if (child == 0) {
        char *own = sbrk(4 * M);
        memset(own, 1, 4 * M);
        memset(block, 2, M);
        _exit(all(map, 8 * M, 3) ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 10;
    if (!all(block, M, 7)) return 11;
    free(grown);
    return munmap(map, 24 * M);
}
"#;

/// Whether this machine cannot measure, said.
#[cfg(target_arch = "x86_64")]
fn cannot(output: &Output) -> bool {
    let error = text(&output.stderr);
    let lacks = ["huge pages are off", "cannot trace", "needs Linux 6.7", "cannot be prepared"];
    let cannot = lacks.iter().any(|lack| error.contains(lack));
    if cannot {
        println!("skipped: {error}");
    }
    cannot
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_measured_program_does_what_it_does_without() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = support::compiled(&room, "shifts", SHIFTS, &["-O1"]) else { return };
    assert!(Command::new(&program).status().unwrap().success());
    let path = program.to_str().unwrap();
    let output =
        pagemill(&["plan", "--measure", "--from", "runs", "--runs", "9", "--json", "--", path]);
    if cannot(&output) {
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["failed_runs"], 0, "{told}");
    // What mremap moves comes to lie where the kernel puts it, in huge pages or not.
    assert!(told["same_places"].as_f64().unwrap() >= 0.8, "{told}");
    assert_eq!(told["runs"].as_array().unwrap().len(), 8);
    let pieces = told["slices"].as_array().unwrap().iter().flat_map(|slice| {
        assert!(slice["pages_used"].as_u64().unwrap() > 0, "{slice}");
        slice["pieces"].as_array().unwrap()
    });
    let sections: std::collections::BTreeSet<&str> =
        pieces.map(|piece| piece["section"].as_str().unwrap()).collect();
    assert_eq!(sections.into_iter().collect::<Vec<_>>(), ["heap", "mmap"]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_was_measured_before_an_interruption_is_kept() {
    let room = tempfile::tempdir().unwrap();
    let (marks, profile) = (room.path().join("marks"), room.path().join("profile.csv"));
    let each = format!(
        "echo x >> {}; exec {} workload slices --scale 0.0001",
        marks.display(),
        env!("CARGO_BIN_EXE_pagemill")
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(["plan", "--measure", "--from", "runs", "--runs", "10000", "--slices", "4"])
        .args(["--json", "-o"])
        .arg(&profile)
        .args(["--", "sh", "-c", &each])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let runs = || fs::read_to_string(&marks).map_or(0, |text| text.lines().count());
    let begun = std::time::Instant::now();
    while runs() < 10 && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed().as_secs() < 300, "{} runs in five minutes", runs());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // If it has ended it could not measure here, and says so.
    let _ = pagemill_kernel::process::signal::send(Pid(child.id()), 2);
    let output = child.wait_with_output().unwrap();
    if cannot(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["interrupted"], true);
    assert_eq!(told["program"], "pagemill");
    assert!(told["runs"].as_array().unwrap().len() >= 8, "{told}");
    assert_eq!(fs::read_to_string(&profile).unwrap(), told["profile"].as_str().unwrap());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_cannot_be_measured_is_said() {
    let missing = pagemill(&["plan", "--measure", "--", "no-such-program"]);
    if cannot(&missing) {
        return;
    }
    assert_eq!(missing.status.code(), Some(127));
    let tiny = pagemill(&["plan", "--measure", "--", "true"]);
    if cannot(&tiny) {
        return;
    }
    assert_eq!(tiny.status.code(), Some(2));
    assert!(text(&tiny.stderr).contains("uses no 2 MiB"), "{}", text(&tiny.stderr));
    // Without a processor that counts, asking for its counters is refused with the reason; by itself it measures by
    // runs.
    let counters = pagemill(&["plan", "--measure", "--from", "counters", "--", "true"]);
    assert_eq!(counters.status.code(), Some(2));
    assert!(!text(&counters.stderr).is_empty());
    let failing = pagemill(&["plan", "--measure", "--", "false"]);
    assert!(text(&failing.stderr).contains("the command failed"), "{}", text(&failing.stderr));
    assert_eq!(pagemill(&["plan", "--measure"]).status.code(), Some(2));
}

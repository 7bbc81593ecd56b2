//! `record --with accesses --backend sample`, and `record --import` of perf's own files.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{compiled, pagemill, ran};

/// Stores into one block of 8 MiB and loads from another, on two threads, until its input ends. With `SLOW` a chain of
/// divisions stands beside the store, and nobody loads; with `OVER` each load overwrites its own index.
const SPIN: &str = r#"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 8 << 20 };
static char *stored, *loaded;
static volatile long sum;
static volatile int stop;
#ifdef SLOW
#define STORE(to, i) { long a = i; __asm__ volatile("movb %%al, (%1)\n .rept 6\n xor %%edx, %%edx\n div %%rcx\n .endr" \
    : "+a"(a) : "r"(to), "c"(3L) : "rdx", "cc", "memory"); }
#else
#define STORE(to, i) *(to) = i;
#endif
static void *store(void *p) {
    volatile char *to = stored;
    while (!stop) for (long i = 0; i < SIZE; i += 64) STORE(to + i, i)
    return 0;
}
static void *load(void *p) {
    while (!stop) {
        long s = 0;
#ifdef OVER
        int i = 0;
        __asm__ volatile("1: movslq %1, %%rdx\n mov (%2,%%rdx,8), %%rdx\n add %%rdx, %0\n"
            " add $1, %1\n cmp %3, %1\n jne 1b"
            : "+r"(s), "+r"(i) : "r"(loaded), "r"(SIZE / 8) : "rdx", "cc", "memory");
#else
        for (long i = 0; i < SIZE; i += 64) s += ((volatile char *)loaded)[i];
#endif
        sum += s;
    }
    return 0;
}
int main(void) {
    pthread_t a, b;
    stored = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    mmap(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    loaded = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    pthread_create(&a, 0, store, 0);
#ifndef SLOW
    pthread_create(&b, 0, load, 0);
#endif
    char byte;
    if (write(1, "x", 1) != 1 || read(0, &byte, 1) < 0) return 1;
    stop = 1;
    pthread_join(a, 0);
#ifndef SLOW
    pthread_join(b, 0);
#endif
    return 0;
}
"#;

fn report(recording: &Path) -> Value {
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    serde_json::from_str(&shown.out).unwrap()
}

/// Whether samples may be taken here; said if not.
fn may_sample() -> bool {
    let rows: Value =
        serde_json::from_str(&ran(pagemill().args(["doctor", "--json"])).out).unwrap();
    let row =
        rows["rows"].as_array().unwrap().iter().find(|row| row["name"] == "perf-events").unwrap();
    let may = row["status"] != "missing";
    if !may {
        println!("skipped: {}", row["finding"]);
    }
    may
}

/// The accesses of two seconds of the program that was compiled with these options.
fn sampled(options: &[&str]) -> Option<Value> {
    let directory = tempfile::tempdir().unwrap();
    let options = [&["-O1", "-pthread"], options].concat();
    let program = compiled(&directory, "spin", SPIN, &options)?;
    let mut spin =
        Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The threads are there.
    std::io::Read::read_exact(&mut spin.stdout.take().unwrap(), &mut [0]).unwrap();
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--backend", "sample", "--for", "2s", "-p"])
        .arg(spin.id().to_string())
        .arg("-o")
        .arg(&recording));
    drop(spin.stdin.take());
    assert!(spin.wait().unwrap().success());
    assert_eq!(run.code(), Some(0), "{run:?}");
    let report = report(&recording);
    if let Some(yielded) = report["meta"]["accesses"].get("yield") {
        println!("{}", run.err);
        assert!(run.err.contains("samples are of accesses"), "{}", run.err);
        // Nothing is lost between what was taken, told and dropped.
        let of = |name: &str| yielded[name].as_u64().unwrap();
        let all: u64 = yielded.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(all, 2 * of("taken"), "{yielded}");
    }
    Some(report)
}

/// Of samples by the clock, how many were taken and how many of them were of accesses; another source does not say.
fn yielded(report: &Value) -> Option<(u64, u64)> {
    let yielded = report["meta"]["accesses"].get("yield")?;
    let of = |name: &str| yielded[name].as_u64().unwrap();
    Some((of("taken"), of("interrupted") + of("behind") + of("ahead")))
}

/// Accesses and writes in the mappings of this name.
fn counts(report: &Value, name: &str) -> (u64, u64) {
    let mappings = report["accesses"]["mappings"].as_array().unwrap();
    let found = mappings
        .iter()
        .find(|mapping| mapping["name"] == name)
        .unwrap_or_else(|| panic!("no {name:?} in {report}"));
    let count = |name: &str| found["counts"][name].as_u64().unwrap();
    (count("accesses"), count("writes"))
}

/// Both blocks are one kind of mapping.
const BLOCKS: &str = "anonymous, 2 to 64 MiB";

#[test]
fn samples_of_threads_have_the_bytes_that_they_load_and_store() {
    if !may_sample() {
        return;
    }
    // A load over its own index was dropped wherever it was interrupted behind it: half of all samples.
    for options in [&[][..], &["-DOVER"]] {
        let Some(report) = sampled(options) else { return };
        let (all, writes) = counts(&report, BLOCKS);
        println!("{options:?}: {all} accesses, {writes} writes");
        assert!(writes > 0 && all > writes, "{report}");
        assert!(report["accesses"]["threads"].as_array().unwrap().len() >= 2, "{report}");
        // Wherever this processor interrupts them, both loops are one block each.
        if let Some((taken, attributed)) = yielded(&report) {
            assert!(attributed * 10 >= taken * 9, "{report}");
            assert!(all * 10 >= taken * 9, "{report}");
        }
    }
}

/// Timer interrupts wait until a slow instruction is done, so a loop is interrupted behind its slowest one. On some
/// processors a thread that only stored had no store in two seconds, for none of the instructions that it was
/// interrupted at accessed memory, and their samples were dropped. Here a chain of divisions is the slow part.
#[test]
fn a_loop_that_is_never_interrupted_at_its_store_has_its_stores_told() {
    if !may_sample() {
        return;
    }
    let Some(report) = sampled(&["-DSLOW"]) else { return };
    let (all, writes) = counts(&report, BLOCKS);
    assert_eq!(all, writes, "{report}");
    let Some((taken, attributed)) = yielded(&report) else { return };
    println!("{}", report["meta"]["accesses"]["yield"]);
    assert!(attributed * 10 >= taken * 9 && writes * 10 >= taken * 9, "{report}");
}

#[test]
fn a_command_is_sampled_from_its_first_instruction_and_its_status_passed_on() {
    if !may_sample() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--backend", "sample", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 3"]));
    assert_eq!(run.code(), Some(3), "{run:?}");
    assert!(run.err.contains("sampled accesses"), "{}", run.err);
    assert!(report(&recording)["accesses"].is_object());
}

/// Stores for some milliseconds, and ends. To one place: wherever this processor interrupts the loop, no register that
/// the address is made of has changed.
const SHORT: &str = r#"
#include <time.h>
static volatile char stored[1];
int main(void) {
    struct timespec now;
    do {
        for (int i = 0; i < 4096 * 16; i++) stored[0] = i;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while (now.tv_nsec < 6000000);
    return 0;
}
"#;

/// Code is looked at every 20 ms, when such a program has ended.
#[test]
fn the_code_of_programs_that_have_ended_comes_from_their_files() {
    if !may_sample() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "short", SHORT, &["-O1"]) else { return };
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--backend", "sample", "--period", "100us", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do $0; done"])
        .arg(&program));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let report = report(&recording);
    let Some((taken, attributed)) = yielded(&report) else { return };
    let unread = report["meta"]["accesses"]["yield"]["code_unread"].as_u64().unwrap();
    println!("{}", report["meta"]["accesses"]["yield"]);
    assert!(unread * 10 < taken, "{report}");
    assert!(attributed * 2 > taken, "{report}");
}

#[test]
fn what_perf_recorded_is_imported_and_what_is_damaged_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("perf.data");
    let perf = Command::new("perf")
        .args(["record", "-q", "-d", "-e", "page-faults", "-c", "1", "-o"])
        .arg(&file)
        .args(["sh", "-c", "ls -l / > /dev/null"])
        .output();
    match perf {
        Ok(done) if done.status.success() && file.exists() => {}
        other => return println!("skipped: perf record: {other:?}"),
    }
    let recording = directory.path().join("rec");
    let run = ran(pagemill().args(["record", "--import"]).arg(&file).arg("-o").arg(&recording));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let report = report(&recording);
    let mappings = report["accesses"]["mappings"].as_array().unwrap();
    assert!(
        mappings.iter().any(|mapping| mapping["name"].as_str().unwrap().contains("libc")),
        "{mappings:?}"
    );
    assert_eq!(report["meta"]["accesses"]["back_end"], "import");

    let bytes = fs::read(&file).unwrap();
    let damaged = directory.path().join("damaged");
    for (bytes, expected) in [
        (&bytes[..bytes.len() / 2], "cut off"),
        (&bytes[..50], "cut off"),
        (&b"no perf.data at all"[..], "PERFILE2"),
        (&b""[..], "PERFILE2"),
    ] {
        fs::write(&damaged, bytes).unwrap();
        let run = ran(pagemill().args(["record", "--import"]).arg(&damaged));
        assert_eq!(run.code(), Some(2), "{run:?}");
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
        assert!(run.err.contains(expected) || run.err.contains("does not fit"), "{}", run.err);
    }
}

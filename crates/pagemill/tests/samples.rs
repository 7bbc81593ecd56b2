//! `record --with accesses --backend sample`, and `record --import` of perf's own files.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{compiled, pagemill, ran};

/// Stores into one block of 8 MiB and loads from another, on two threads, until its input ends.
const SPIN: &str = r#"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 8 << 20 };
static char *stored, *loaded;
static volatile long sum;
static volatile int stop;
static void *store(void *p) { while (!stop) for (long i = 0; i < SIZE; i += 64) ((volatile char *)stored)[i] = i; return 0; }
static void *load(void *p) { while (!stop) for (long i = 0; i < SIZE; i += 64) sum += loaded[i]; return 0; }
int main(void) {
    pthread_t a, b;
    stored = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    mmap(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    loaded = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    pthread_create(&a, 0, store, 0);
    pthread_create(&b, 0, load, 0);
    char byte;
    if (write(1, "x", 1) != 1 || read(0, &byte, 1) < 0) return 1;
    stop = 1;
    pthread_join(a, 0);
    pthread_join(b, 0);
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

#[test]
fn samples_of_threads_have_the_bytes_that_they_load_and_store() {
    if !may_sample() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "spin", SPIN, &["-O1", "-pthread"]) else { return };
    let mut spin =
        Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Both threads are there.
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
    let accesses = &report["accesses"];
    // Both blocks are one kind of mapping.
    let blocks = accesses["mappings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mapping| mapping["name"] == "anonymous, 2 to 64 MiB")
        .unwrap_or_else(|| panic!("{report}"));
    let count = |name: &str| blocks["counts"][name].as_u64().unwrap();
    let (all, writes) = (count("accesses"), count("writes"));
    assert!(writes > 0 && all > writes, "{blocks}");
    assert!(accesses["threads"].as_array().unwrap().len() >= 2, "{accesses}");
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
        .args(["--", "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3"]));
    assert_eq!(run.code(), Some(3), "{run:?}");
    assert!(run.err.contains("sampled accesses"), "{}", run.err);
    assert!(report(&recording)["accesses"].is_object());
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

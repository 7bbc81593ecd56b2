//! Findings of programs of known truth, recorded and reported as a user does.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use pagemill_kernel::process::signal;
use pagemill_model::Pid;
use serde_json::Value;
use support::{compiled, pagemill, ran};
use tempfile::TempDir;

/// `cold`: 99 MiB are written once and never again. `sparse`: of 8 MiB of small objects one a page lives and is used.
/// `hot`: all of 32 MiB is written all the time. Each goes on using something for several times as long as it took to
/// set up, however slow the machine is.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <time.h>
enum { OBJECTS = 8192, SIZE = 1000, EVERY = 4 };
static volatile char sum;
static char *volatile objects[OBJECTS];
__attribute__((noinline)) char *make_archive(void) {
    char *archive = malloc(99L << 20);
    memset(archive, 1, 99L << 20);
    return archive;
}
__attribute__((noinline)) char *keep(void) { char *p = malloc(SIZE); memset(p, 2, SIZE); return p; }
__attribute__((noinline)) char *drop(void) { char *p = malloc(SIZE); memset(p, 3, SIZE); return p; }
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
int main(int count, char **words) {
    char mode = words[1][0];
    double began = now();
    long bytes = mode == 'h' ? 32L << 20 : 1L << 20;
    volatile char *hot = malloc(bytes);
    if (mode == 'c') sum += make_archive()[5];
    if (mode == 's') {
        for (int i = 0; i < OBJECTS; i++) objects[i] = i % EVERY ? drop() : keep();
        for (int i = 0; i < OBJECTS; i++) if (i % EVERY) { free(objects[i]); objects[i] = 0; }
    }
    double enough = now() + 3 + 4 * (now() - began);
    for (long round = 0; round < 12 || now() < enough; round++) {
        for (long i = 0; i < bytes; i += 64) hot[i] = round;
        if (mode == 's' && round % 4 == 0) for (int i = 0; i < OBJECTS; i += EVERY) objects[i][0] = round;
    }
    return 0;
}
"#;

/// The report of a run in this mode; `None`, and why, if it could not be traced.
fn report(room: &TempDir, mode: &str) -> Option<Value> {
    let program = compiled(room, "truth", PROGRAM, &["-O1", "-g"])?;
    let recording = room.path().join(mode);
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--access-interval", "10ms", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .arg(mode));
    if run.code() == Some(125) {
        println!("skipped: {}", run.err);
        return None;
    }
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let text = ran(pagemill().arg("report").arg(&recording)).out;
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    for finding in report["findings"].as_array().unwrap() {
        assert!(text.contains(finding["next"].as_str().unwrap()), "{text}");
    }
    Some(report)
}

#[test]
fn what_is_written_once_and_never_read_comes_first() {
    let room = TempDir::new().unwrap();
    let Some(report) = report(&room, "cold") else { return };
    let first = &report["findings"][0];
    assert_eq!(first["subject"], "cold", "{}", report["findings"]);
    let text = first["text"].as_str().unwrap();
    assert!(text.contains("`make_archive` (") && text.starts_with("99.0 MiB"), "{text}");
}

#[test]
fn survivors_that_keep_their_pages_come_first() {
    let room = TempDir::new().unwrap();
    let Some(report) = report(&room, "sparse") else { return };
    let first = &report["findings"][0];
    assert_eq!(first["subject"], "sparse", "{}", report["findings"]);
    let text = first["text"].as_str().unwrap();
    assert!(text.contains("`keep` (") && text.contains("did not fall"), "{text}");
}

#[test]
fn a_program_that_uses_all_it_has_has_nothing_worth_changing() {
    let room = TempDir::new().unwrap();
    let Some(report) = report(&room, "hot") else { return };
    assert_eq!(report["findings"], Value::Array(Vec::new()));
}

/// Frees seven of eight small blocks, or in mode `w` all but the last, and waits for a line; in mode `l` it waits for
/// one before it frees them, too.
const FREED: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 100000, SIZE = 600 };
static char *blocks[BLOCKS];
int main(int count, char **words) {
    char line;
    int whole = words[1][0] == 'w';
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    if (words[1][0] == 'l' && (write(1, "x", 1) != 1 || read(0, &line, 1) != 1)) return 1;
    for (int i = 0; i < BLOCKS - 1; i++) if (whole || i % 8) free(blocks[i]);
    write(1, "x", 1);
    return read(0, &line, 1) != 1;
}
"#;

/// The program in this mode, once it has freed its blocks.
fn freed(room: &TempDir, mode: &str) -> Option<Child> {
    let program = compiled(room, "freed", FREED, &["-O1"])?;
    let mut child = Command::new(program)
        .arg(mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    Some(child)
}

fn concluded(recording: &std::path::Path) -> Value {
    let run = ran(pagemill().args(["report", "--json"]).arg(recording));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["untold"], Value::Array(Vec::new()), "{}", report["untold"]);
    report
}

/// Once, "nothing here is worth changing" was said of a process that was free memory of its malloc for nine tenths.
#[test]
fn what_the_own_malloc_of_a_process_keeps_free_is_found_and_told_apart() {
    let room = TempDir::new().unwrap();
    for (mode, reason, next) in [
        ("whole", "the end of its heap", "run --trim"),
        ("pieces", "no malloc gives back a part of a page", "run --heap compact"),
    ] {
        let Some(mut child) = freed(&room, mode) else { return };
        let recording = room.path().join(mode);
        let run = ran(pagemill()
            .args(["record", "--with", "heap", "--for", "300ms", "-o"])
            .arg(&recording)
            .args(["-p", &child.id().to_string()]));
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert!(run.err.contains("and what its own malloc keeps free, is recorded"), "{run:?}");
        let report = concluded(&recording);
        let first = &report["findings"][0];
        assert_eq!(first["subject"], "malloc-free", "{first}");
        let said = first["next"].as_str().unwrap();
        let command = said.strip_prefix(&format!("pagemill {next} -- ")).unwrap_or_default();
        assert!(command.starts_with('/') && command.ends_with(&format!(" {mode}")), "{first}");
        assert!(first["text"].as_str().unwrap().contains(reason), "{first}");
        assert!(first["bytes"].as_u64() > Some(40 << 20), "{first}");
        let text = ran(pagemill().arg("report").arg(&recording)).out;
        assert!(text.contains("\nmalloc    glibc's malloc holds "), "{text}");
    }
}

/// Of a command only what pagemill's heap makes of it could be recorded, and that this tells little of other mallocs
/// was not said.
#[test]
fn a_command_is_recorded_on_its_own_malloc_where_that_is_asked_for() {
    let room = TempDir::new().unwrap();
    let Some(program) = compiled(&room, "freed", FREED, &["-O1"]) else { return };
    let recorded = |heap: &str, known: &dyn Fn(&Value) -> bool| {
        let recording = room.path().join(heap);
        let mut record = pagemill();
        record.args([
            "record",
            "--with",
            "heap",
            "--heap",
            heap,
            "--interval",
            "10ms",
            "--flush",
            "10ms",
            "-o",
        ]);
        record.arg(&recording).arg("--").arg(&program).arg("whole");
        let record = record.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut record = record.spawn().unwrap();
        record.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let report = || ran(pagemill().args(["report", "--json"]).arg(&recording)).out;
        support::until("a reading", || {
            serde_json::from_str::<Value>(&report()).is_ok_and(|report| known(&report["view"]))
        });
        record.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(record.wait_with_output().unwrap().status.success());
        (serde_json::from_str::<Value>(&report()).unwrap(), recording)
    };
    let free = |view: &Value| view["malloc"]["returnable_bytes"].as_u64() > Some(40 << 20);
    let (own, _) = recorded("none", &free);
    assert_eq!(own["findings"][0]["subject"], "malloc-free", "{}", own["findings"]);
    assert_eq!(own["untold"], Value::Array(Vec::new()), "{}", own["untold"]);
    let (ours, recording) = recorded("plain", &|view| view["live_bytes"].is_object());
    let next = ours["untold"][0]["next"].as_str().unwrap_or_default();
    assert!(next.starts_with("pagemill record --with heap,hugepages --heap none -- "), "{ours:#}");
    let advice = ran(pagemill().arg("advise").arg(&recording)).out;
    assert!(
        advice.contains("hardly known: pagemill record --with heap,hugepages --heap none -- "),
        "{advice}"
    );
}

/// What was freed less than a second before the end of the recording was not known.
#[test]
fn what_was_freed_just_before_the_end_is_known_at_the_end() {
    let room = TempDir::new().unwrap();
    let Some(mut child) = freed(&room, "late") else { return };
    let recording = room.path().join("rec");
    let mut record = pagemill();
    record
        .args(["record", "--with", "heap", "--interval", "10ms", "--flush", "10ms", "-o"])
        .arg(&recording);
    let record =
        record.args(["-p", &child.id().to_string()]).stderr(Stdio::piped()).spawn().unwrap();
    let parts = || std::fs::read_dir(recording.join("heap")).is_ok_and(|parts| parts.count() > 0);
    support::until("a part of the recording", parts);
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    signal::send(Pid(record.id()), 2).unwrap();
    let told = record.wait_with_output().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success() && told.status.success(), "{told:?}");
    let report = concluded(&recording);
    let first = &report["findings"][0];
    assert_eq!(first["subject"], "malloc-free", "{first}");
    assert!(!first["text"].as_str().unwrap().contains("as of"), "{first}");
    assert_eq!(report["view"]["malloc"]["age_ns"], 0, "{}", report["view"]);
}

/// Once, only the help said that a command whose heap is recorded has another malloc than its own.
#[test]
fn a_command_whose_heap_is_recorded_is_said_to_be_on_ours() {
    let room = TempDir::new().unwrap();
    let recording = room.path().join("rec");
    let record = |with: &str| {
        let mut command = pagemill();
        command.args(["record", "--with", with, "--mesh", "1y", "--interval", "10ms", "-f", "-o"]);
        ran(command.arg(&recording).args(["--", "sleep", "0.3"])).err
    };
    let line = "the command runs on pagemill's heap (1y), in place of its own malloc";
    assert!(!record("frag").contains(line));
    let err = record("heap");
    assert!(err.contains(line), "{err}");
    let text = ran(pagemill().arg("report").arg(&recording)).out;
    assert!(text.contains("(pagemill's heap, in place of the program's own malloc)"), "{text}");
}

//! Findings of programs that touch and free all they have as they end: what rested until then is told as cold.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::ffi::OsStr;
use std::path::Path;

use pagemill_model::Bytes;
use serde_json::Value;
use support::{compiled_cpp, library, pagemill, ran};
use tempfile::TempDir;

/// Builds a list of 64 MiB, goes on for several times as long, and has the list's destructor walk and free it. In mode
/// `used` it is 16 MiB that are read all the time, in mode `parts` four times.
const LIST: &str = r#"
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
static volatile long sum;
struct Node { Node *next; char filler[8192 - 8 - 16]; };
struct List {
    Node *first = nullptr;
    __attribute__((noinline)) void grow(long mebibytes) {
        for (long bytes = 0; bytes < mebibytes << 20; bytes += 8192) {
            Node *node = new Node;
            memset(node->filler, 1, sizeof node->filler);
            node->next = first;
            first = node;
        }
    }
    void read() {
        for (Node *node = first; node; node = node->next)
            for (long at = 0; at < 8000; at += 2000) sum += node->filler[at];
    }
    ~List() {
        while (Node *node = first) {
            sum += node->filler[9];
            first = node->next;
            delete node;
        }
    }
};
static double now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
int main(int, char **words) {
    double began = now();
    auto list = std::make_unique<List>();
    list->grow(words[1][0] == 'r' ? 64 : 16);
    double built = now(), rest = 3 + 12 * (built - began);
    static char hot[1 << 20];
    for (long round = 0, part = 1; now() < built + rest; round++) {
        memset(hot, round, sizeof hot);
        bool due = now() > built + part * rest / 5;
        part += due;
        if (words[1][0] == 'u' || (words[1][0] == 'p' && due)) list->read();
    }
}
"#;

/// Builds objects, rests, and ends as every program does; says how many bytes they are.
const OBJECTS: &str = r#"
import sys, time
began = time.monotonic()
kept = [[number] * 40 for number in range(80_000)]
links = 16  # of the garbage collector, in front of each
print(sum(links + sys.getsizeof(one) + sys.getsizeof(one[0]) for one in kept), flush=True)
built = time.monotonic()
until = built + 4 + 12 * (built - began)
hot = bytearray(1 << 20)
while time.monotonic() < until:
    for at in range(0, len(hot), 4096):
        hot[at] ^= 1
"#;

/// What a program printed, and the report of its recording; `None`, and why, if it could not be traced.
fn reported<S: AsRef<OsStr>>(recording: &Path, words: &[S]) -> Option<(String, Value)> {
    let mut record = pagemill();
    record.env("PAGEMILL_SITES_LIB", library().with_file_name("libpagemill_sites.so"));
    record.args(["record", "--with", "accesses", "--access-interval", "50ms", "-f", "-o"]);
    let run = ran(record.arg(recording).arg("--").args(words));
    if run.code() == Some(125) {
        println!("skipped: {}", run.err);
        return None;
    }
    assert_eq!(run.code(), Some(0), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    Some((run.out, serde_json::from_str(&shown.out).unwrap()))
}

/// The bytes of all findings of what is cold, and their sentences.
fn cold(report: &Value) -> (f64, Vec<&str>) {
    let findings = report["findings"].as_array().unwrap().iter();
    let cold: Vec<&Value> = findings.filter(|one| one["subject"] == "cold").collect();
    let texts = cold.iter().map(|one| one["text"].as_str().unwrap()).collect();
    (cold.iter().map(|one| one["bytes"].as_f64().unwrap()).sum(), texts)
}

#[track_caller]
fn assert_near(bytes: f64, expected: f64, report: &Value) {
    let words = Bytes(expected as u64).plain();
    assert!(
        (bytes / expected - 1.0).abs() < 0.1,
        "{words}: {} {}",
        report["findings"],
        report["untold"]
    );
}

/// Of all that is freed as a program ends "what memory was cold before it was freed" could not be told.
#[test]
fn what_a_destructor_walks_and_frees_was_cold_if_it_rested() {
    let room = TempDir::new().unwrap();
    let Some(program) = compiled_cpp(&room, "list", LIST, &["-O1", "-g"]) else { return };
    // The command to type next has its name as the shell reads it.
    let recording = room.path().join("a list");
    let reported = |mode: &str| reported(&recording, &[program.as_os_str(), mode.as_ref()]);
    let Some((_, rested)) = reported("rest") else { return };
    let (bytes, texts) = cold(&rested);
    assert_near(bytes, f64::from(64 << 20), &rested);
    assert!(
        texts[0].contains("of `List::grow") && texts[0].contains(" were not touched from "),
        "{texts:?}"
    );
    assert!(texts[0].contains(", and then only freed: could be swapped"), "{texts:?}");
    let next = rested["findings"][0]["next"].as_str().unwrap();
    assert_eq!(next, format!("pagemill simulate '{}' --sweep", recording.display()));
    // The flame graph and who holds memory say the same.
    let folded = room.path().join("folded");
    ran(pagemill().arg("export").arg(&recording).args(["--format", "folded", "-o"]).arg(&folded));
    let folded = std::fs::read_to_string(folded).unwrap();
    let early = folded
        .lines()
        .filter(|line| line.contains("List::grow") && line.contains("[last touched from 0 ns"));
    let early: f64 =
        early.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    assert_near(early, bytes, &rested);
    let advice = ran(pagemill().args(["advise", "--json"]).arg(&recording)).out;
    let advice: Value = serde_json::from_str(&advice).unwrap();
    let holder = &advice["holders"][0];
    assert!(holder["name"].as_str().unwrap().starts_with("List::grow"), "{advice}");
    assert_near(holder["unused_bytes"].as_f64().unwrap(), bytes, &rested);
    for mode in ["used", "parts"] {
        let Some((_, used)) = reported(mode) else { return };
        assert_eq!(cold(&used), (0.0, Vec::new()), "{mode}");
    }
}

#[test]
fn objects_of_python_that_rested_are_cold_though_it_frees_them_at_exit() {
    let room = TempDir::new().unwrap();
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        return support::skip::<()>("there is no /usr/bin/python3").unwrap_or(());
    }
    let script = room.path().join("objects.py");
    std::fs::write(&script, OBJECTS).unwrap();
    let words = [python.as_os_str(), script.as_os_str()];
    let Some((said, report)) = reported(&room.path().join("rec"), &words) else { return };
    let (bytes, texts) = cold(&report);
    assert_near(bytes, said.trim().parse().unwrap(), &report);
    assert!(texts[0].contains(" were not touched from "), "{texts:?}");
}

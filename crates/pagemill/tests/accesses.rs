//! `record --with accesses` and `report` of it, from the outside.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use serde_json::Value;
use support::{Ran, compiled, pagemill, ran};

/// Writes every page of one block, reads every second page of another, and ends with status 5.
const WALK: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
    enum { PAGES = 3000 };
    char *written = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *read = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile char sum = 0;
    for (long round = 0; round < 20000; round++) {
        for (long i = 0; i < PAGES; i++) written[i * 4096] = 1;
        for (long i = 0; i < PAGES; i += 2) sum += read[i * 4096];
    }
    return 5;
}
"#;

/// Whether the run could not trace, said.
fn skipped(run: &Ran) -> bool {
    let cannot = run.code() == Some(125);
    if cannot {
        println!("skipped: {}", run.err);
    }
    cannot
}

#[test]
fn every_page_that_a_program_touches_is_in_the_recording_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "walk", WALK, &["-O1"]) else { return };
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--access-interval", "20ms", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    if skipped(&run) {
        return;
    }
    assert_eq!(run.code(), Some(5), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    let accesses = &report["accesses"];
    let mappings = accesses["mappings"].as_array().unwrap();
    // Both blocks lie side by side and are one kind of mapping.
    let blocks =
        mappings.iter().find(|mapping| mapping["name"] == "anonymous, 2 to 64 MiB").unwrap();
    assert_eq!(blocks["counts"]["pages"], 3000 + 1500);
    if report["meta"]["accesses"]["back_end"] == "bpf" {
        assert_eq!(blocks["counts"]["written_pages"], 3000);
        assert_eq!(report["meta"]["accesses"]["lost"], 0);
    }
    assert!(accesses["intervals"].as_u64().unwrap() > 1, "{accesses}");
    let text = ran(pagemill().arg("report").arg(&recording));
    assert!(text.out.contains("working set of an interval"), "{}", text.out);
}

#[test]
fn what_cannot_be_recorded_is_said_before_the_program_starts() {
    let missing = ran(pagemill().args(["record", "--with", "accesses", "--", "no-such-program"]));
    assert_eq!(missing.code(), Some(127));
    let mixed = ran(pagemill().args(["record", "--with", "accesses,heap", "--", "true"]));
    assert_eq!(mixed.code(), Some(125));
    assert!(mixed.err.contains("by themselves"), "{}", mixed.err);
    let granule =
        ran(pagemill().args(["record", "--with", "accesses", "--granule", "8K", "--", "true"]));
    assert_eq!(granule.code(), Some(125));
    let init = ran(pagemill().args(["record", "--with", "accesses", "-p", "1"]));
    assert!(matches!(init.code(), Some(3 | 4)), "{init:?}");
    assert!(init.err.contains("nothing is recorded"), "{}", init.err);
}

#[test]
fn a_recording_that_ends_before_the_program_leaves_it_and_its_status_alone() {
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("rec");
    let script = "my @a = map { $_ x 3000 } 1..200; my $end = time + 2; my $n = 0;
        while (time < $end) { $n++; $a[$n % 200] .= 'x'; chop $a[$n % 200] }
        my $wrong = grep { $a[$_ - 1] ne $_ x 3000 } 1..200; print \"wrong $wrong\\n\"; exit 6";
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--for", "300ms", "--granule", "64K", "-o"])
        .arg(&recording)
        .args(["--", "perl", "-e", script]));
    if skipped(&run) {
        return;
    }
    assert_eq!((run.code(), run.out.as_str()), (Some(6), "wrong 0\n"), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(report["meta"]["accesses"]["granule"], 65536);
    assert!(report["accesses"]["intervals"].as_u64().unwrap() > 0);
}

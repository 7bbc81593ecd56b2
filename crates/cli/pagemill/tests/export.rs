//! What other tools are given.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use serde_json::Value;
use support::{compiled, pagemill, ran, recording};

/// Perfetto draws what has a length as a bar, and counters as lines.
#[test]
fn heap_faults_and_huge_pages_are_in_the_trace_that_perfetto_opens() {
    let room = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(void) { for (int i = 0; i < 300; i++) { memset(malloc(20000), 1, 20000); usleep(1000); } return 0; \
                  }\n";
    let Some(program) = compiled(&room, "takes", source, &["-O1", "-fno-builtin"]) else { return };
    let (recording, file) = (room.path().join("rec"), room.path().join("trace.json"));
    let run = ran(pagemill()
        .args([
            "record",
            "--with",
            "heap,faults,hugepages",
            "--threshold",
            "0ns",
            "--interval",
            "20ms",
            "-o",
        ])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let run = ran(pagemill()
        .arg("export")
        .arg(&recording)
        .args(["--format", "perfetto", "-o"])
        .arg(&file));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| {
        events
            .iter()
            .filter(|event| event["name"].as_str().unwrap().starts_with(name))
            .collect::<Vec<_>>()
    };
    let length = events.iter().map(|event| event["ts"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!((2e5..6e7).contains(&length), "{length} us");
    let heap = named("heap, bytes");
    assert!(heap.len() >= 3, "{} looks", heap.len());
    assert!(heap.iter().all(|event| event["ph"] == "C"), "{heap:?}");
    assert!(
        heap.iter().any(|event| event["args"]["footprint"].as_u64().is_some_and(|bytes| bytes > 0)),
        "{heap:?}"
    );
    assert!(
        heap.iter().any(|event| event["args"]["pss"].as_u64().is_some_and(|bytes| bytes > 0)),
        "{heap:?}"
    );
    // Without privileges, or with the kernel's counters only, single faults may be missing: then there are counts.
    let (faults, counts) = (named("page fault, "), named("page faults, "));
    assert!(!faults.is_empty() || !counts.is_empty(), "{events:?}");
    for fault in faults {
        assert!(fault["ph"] == "X" && fault["dur"].as_f64().unwrap() > 0.0, "{fault}");
    }
}

#[test]
fn resident_memory_by_its_last_touch_is_a_flame_graph() {
    let room = tempfile::tempdir().unwrap();
    let (source, file) = (room.path().join("rec"), room.path().join("cold"));
    recording::with_cold_memory(&source);
    let export = |format: &str| {
        let mut command = pagemill();
        command.arg("export").arg(&source).args(["--format", format, "-f", "-o"]).arg(&file);
        let run = ran(&mut command);
        assert_eq!(run.code(), Some(0), "{run:?}");
        assert!(run.err.contains("wrote 1.1 MiB of resident memory"), "{run:?}");
        std::fs::read_to_string(&file).unwrap()
    };
    // The busiest first: it is not touched after the first eighth, the other one in the last.
    let folded = export("folded");
    let lines: Vec<&str> = folded.lines().collect();
    assert!(
        lines[1].starts_with("0x7000;[last touched from 56") && lines[1].ends_with("ms] 65536"),
        "{folded}"
    );
    assert!(
        lines[0].starts_with("0x5000;[last touched from 0 ns") && lines[0].ends_with("ms] 1048576"),
        "{folded}"
    );
    assert_eq!(lines.len(), 2, "{folded}");
    let profile: Value = serde_json::from_str(&export("speedscope")).unwrap();
    let all = profile["profiles"].as_array().unwrap();
    let bytes: Vec<u64> = all.iter().map(|one| one["endValue"].as_u64().unwrap()).collect();
    let cold = 1 << 20;
    assert_eq!(bytes, [cold, cold, cold, cold, cold, cold, cold, cold + 65_536], "{profile}");
}

/// They were ignored.
#[test]
fn options_of_other_inputs_are_refused() {
    let room = tempfile::tempdir().unwrap();
    let (path, file) = (room.path().join("rec"), room.path().join("out"));
    recording::with_cold_memory(&path);
    let made = ["--format", "folded", "-o"];
    for stray in [["--cgroup", "/"], ["--pid", "1"]] {
        let run = ran(pagemill().arg("export").arg(&path).args(made).arg(&file).args(stray));
        assert!(run.code() == Some(2) && run.err.contains("(--prometheus)"), "{run:?}");
        assert!(!file.exists());
    }
    for stray in [["--rejected", "counts"], ["--mhz", "1000"]] {
        let run = ran(pagemill().arg("report").arg(&path).args(stray));
        assert!(run.code() == Some(2) && run.err.contains("of a .pftrace"), "{run:?}");
    }
}

//! Recordings that pagemill 0.1.0 made on 2026-11-26 (`kept/`) open, and say what they said.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Ran, pagemill, pagemill_with, ran};

/// The path of a kept recording.
fn kept(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept").join(name);
    path.to_str().unwrap().to_owned()
}

fn answered(words: &[&str], name: &str) -> Ran {
    let ran = ran(pagemill().args(words).arg(kept(name)));
    assert_eq!(ran.code(), Some(0), "{words:?}: {ran:?}");
    ran
}

fn report(name: &str) -> Value {
    let report: Value = serde_json::from_str(&answered(&["report", "--json"], name).out).unwrap();
    assert_eq!((&report["missing"], &report["truncated_at_ns"]), (&Value::Null, &Value::Null));
    report
}

#[test]
fn a_recording_of_memory_is_read_whole() {
    let report = report("memory");
    let at = |path: &str| report.pointer(path).and_then(Value::as_u64);
    let [samples, looks] = ["/view/samples", "/other/pressure/columns/some_ns/rows"].map(at);
    assert_eq!((at("/meta/pid"), at("/faults/all/count")), (Some(15575), Some(109)));
    assert_eq!((samples, looks), (Some(7), Some(7)));
    assert!(report["frag"]["first"].is_array(), "{report}");
    answered(&["advise", "--json"], "memory");
    answered(&["compare", &kept("memory"), "--json"], "memory");
    let room = tempfile::tempdir().unwrap();
    let out = room.path().join("out.pftrace");
    let of = ["export", &kept("memory"), "--format", "pftrace", "-o", out.to_str().unwrap()];
    assert_eq!(pagemill_with(&of).code(), Some(0));
}

#[test]
fn a_recording_of_accesses_is_read_whole() {
    let report = report("accesses");
    let at = |path: &str| report.pointer(path).and_then(Value::as_u64);
    assert_eq!((at("/accesses/intervals"), at("/accesses/in_objects")), (Some(1), Some(49)));
    let room = tempfile::tempdir().unwrap();
    for format in ["parquet", "perfetto", "moca"] {
        let out = room.path().join(format);
        let of = ["export", &kept("accesses"), "--format", format, "-o", out.to_str().unwrap()];
        let ran = pagemill_with(&of);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert!(out.metadata().unwrap().len() > 1000, "{format}");
    }
}

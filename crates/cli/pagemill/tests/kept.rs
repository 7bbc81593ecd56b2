//! Recordings that pagemill 0.1.0 made on 2026-11-26 (`kept/`), and on 2026-11-23, when it was commit 61f2b6c, open and
//! say what they said.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

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

/// Members of JSON that are not what they were, each with its path; what has come to them is no matter. Numbers of
/// floating point may have been added up in another order.
fn differing(then: &Value, today: Option<&Value>, place: &str, found: &mut Vec<String>) {
    let near = |then: f64, today: f64| (then - today).abs() <= 1e-9 * then.abs().max(1e-6);
    match (then, today) {
        (_, None) => found.push(format!("{place} is gone")),
        (Value::Object(members), Some(today)) => {
            for (name, member) in members {
                differing(member, today.get(name), &format!("{place}.{name}"), found);
            }
        }
        (Value::Array(items), Some(Value::Array(others))) if items.len() == others.len() => {
            for (at, item) in items.iter().enumerate() {
                differing(item, others.get(at), &format!("{place}[{at}]"), found);
            }
        }
        // A longer list has what there was, and more.
        (Value::Array(items), Some(Value::Array(others))) => {
            for (at, item) in items.iter().enumerate() {
                let same = |other: &Value| {
                    let mut found = Vec::new();
                    differing(item, Some(other), "", &mut found);
                    found.is_empty()
                };
                if !others.iter().any(same) {
                    found.push(format!("{place}[{at}] is gone: {item}"));
                }
            }
        }
        (Value::Number(then), Some(Value::Number(today)))
            if then == today || near(then.as_f64().unwrap(), today.as_f64().unwrap()) => {}
        (then, Some(today)) if then == today => {}
        (then, Some(today)) => found.push(format!("{place}: {then} became {today}")),
    }
}

/// What the program of then answered to this call.
fn said(name: &str) -> Value {
    let path = format!("{}.json", kept(&format!("61f2b6c/said/{name}")));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Compares what is answered there to what was answered then.
fn answers_as_then(there: &Then, words: &[&str], then: &str, known: &[&str]) {
    let run = ran(pagemill().args(words).current_dir(there.path("")));
    assert_eq!(run.code(), Some(0), "{words:?}: {run:?}");
    let today: Value = serde_json::from_str(&run.out).unwrap();
    let then = said(then);
    // Lists have a name.
    let today = if then.is_array() { &today["rows"] } else { &today };
    let mut found = Vec::new();
    differing(&then, Some(today), "", &mut found);
    found.retain(|member| !known.iter().any(|known| member.starts_with(known)));
    assert!(found.is_empty(), "{words:?}: {found:#?}");
}

/// The recordings of then, in a place of their own: a report leaves a summary in one of accesses.
struct Then(tempfile::TempDir);

impl Then {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-r").arg(kept("61f2b6c")).arg(room.path()).status();
        assert!(copied.unwrap().success());
        Self(room)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join("61f2b6c").join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn recordings_of_commit_61f2b6c_say_what_they_said_then() {
    let then = Then::new();
    // What functions and data are called is looked up in the programs, where these are still there.
    let named = [".accesses.lines", ".accesses.objects", ".accesses.in_objects"];
    let report = |recording: &str, said: &str| {
        answers_as_then(&then, &["report", recording, "--json"], said, &named)
    };
    report("heap", "report-heap");
    report("faults", "report-faults");
    report("accesses", "report-accesses");
    let compared = |recording: &str, said: &str, known: &[&str]| {
        answers_as_then(&then, &["compare", recording, recording, "--json"], said, known)
    };
    compared("heap", "compare-heap", &[]);
    compared("faults", "compare-faults", &[]);
    compared("accesses", "compare-accesses", &[".objects"]);
    answers_as_then(&then, &["hugepages", "faults", "--json"], "hugepages-faults", &[]);
    let placed = ["--tiers", "fast=1M,slow=8G", "--policy", "none,hemem", "--json"];
    answers_as_then(
        &then,
        &[&["simulate", "accesses"][..], &placed].concat(),
        "simulate-accesses",
        &[],
    );
    let huge = ["--huge", "linux-always,linux-never", "--json"];
    answers_as_then(&then, &[&["simulate", "faults"][..], &huge].concat(), "simulate-huge", &[]);
    // 1 MiB that nobody read, and 512 KiB that a second thread went over again and again, under whatever names.
    let run = pagemill_with(&["report", &then.path("accesses"), "--json"]);
    let today: Value = serde_json::from_str(&run.out).unwrap();
    for mut list in [said("report-accesses"), today] {
        let objects = list["accesses"]["objects"].as_array_mut().unwrap();
        objects.retain(|one| one["kind"] == "allocation" && one["bytes"].as_u64() >= Some(1 << 19));
        let figures = ["bytes", "pages", "reads", "writes", "threads"];
        let figures = |one: &Value| figures.map(|name| one[name].as_u64().unwrap());
        let found: Vec<[u64; 5]> = objects.iter().map(figures).collect();
        assert_eq!(found, [[1 << 19, 129, 256, 385, 2], [1 << 20, 257, 1, 257, 1]]);
    }
}

#[test]
fn recordings_of_commit_61f2b6c_are_reported_compared_planned_and_exported() {
    let then = Then::new();
    let text = |words: &[&str], expected: &[&str]| {
        let run = pagemill_with(words);
        assert_eq!(run.code(), Some(0), "{words:?}: {run:?}");
        for part in expected {
            assert!(run.out.contains(part), "{words:?}: no {part:?} in {}", run.out);
        }
    };
    let [heap, faults, accesses] = ["heap", "faults", "accesses"].map(|name| then.path(name));
    text(&["report", &heap], &["./churn", "53 samples", "510", "7.9 MiB"]);
    text(&["report", &faults], &["./demo", "460", "copy on write", "x86_64-linux-gnu/libc.so.6"]);
    text(&["report", &accesses], &["3 intervals", "512.0 KiB", "1.0 MiB", "thread 29125"]);
    text(&["compare", &heap, &heap], &["memory"]);
    text(
        &["plan", &faults, "--json"],
        &["\"faults_counted\": 460", "\"faults_with_address\": 459"],
    );
    for (recording, format, part) in [
        ("accesses", "perfetto", "libc.so.6"),
        ("accesses", "moca", "29125"),
        // What rested until the program ended was said to be touched then, or not to be there.
        ("accesses", "folded", "[last touched from 464.0 ms to 620.0 ms] 1052672"),
        ("faults", "perfetto", "libc.so.6"),
        ("heap", "perfetto", "heap, bytes"),
    ] {
        let path = then.path(&format!("{recording}.{format}"));
        let from = then.path(recording);
        let run = pagemill_with(&["export", &from, "--format", format, "-o", &path]);
        assert_eq!(run.code(), Some(0), "{recording} as {format}: {run:?}");
        let written = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert!(written.contains(part), "{recording} as {format}: no {part}");
    }
}

#[test]
fn a_member_that_went_or_changed_is_found() {
    let (then, today) = (
        serde_json::json!({ "a": 1, "b": [1.0, 2], "c": { "d": "x" }, "e": null, "g": [1, 4] }),
        serde_json::json!({ "a": 1.0, "b": [1.0, 3], "c": {}, "e": 0, "f": 1, "g": [2, 1, 3] }),
    );
    let mut found = Vec::new();
    differing(&then, Some(&today), "", &mut found);
    let all = [".b[1]: 2 became 3", ".c.d is gone", ".e: null became 0", ".g[1] is gone: 4"];
    assert_eq!(found, all);
}

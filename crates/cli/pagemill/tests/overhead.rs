//! `record --overhead`: what recording costs a command.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;

use support::{pagemill, ran};

/// The command's own output and status are those of the last run, which is the one that is kept.
#[test]
fn the_cost_of_recording_is_told_from_runs_in_turn() {
    let room = tempfile::tempdir().unwrap();
    let (recording, lines) = (room.path().join("rec"), room.path().join("lines"));
    let script = format!("echo run >> {}; echo out; sleep 0.05; exit 7", lines.display());
    let run = ran(pagemill()
        .args(["record", "--overhead=3", "--with", "faults", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", &script]));
    assert_eq!((run.code(), run.out.as_str()), (Some(7), "out\n"), "{run:?}");
    assert!(run.err.contains("medians of 3 runs each, in turn"), "{}", run.err);
    let times = run.err.split("overhead of recording: ").nth(1).unwrap();
    let ratio: f64 = times.split(' ').next().unwrap().parse().unwrap();
    assert!(ratio > 0.1 && ratio < 100.0, "{ratio}");
    assert_eq!(fs::read_to_string(&lines).unwrap().lines().count(), 6);
    assert!(recording.join("meta.json").exists());
}

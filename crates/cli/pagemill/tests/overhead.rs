//! `record --overhead`: what recording costs a command.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use pagemill_kernel::{Linux, process::signal};
use pagemill_model::Pid;
use support::{pagemill, ran, until};

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

/// It was said that the command cannot be recorded, which it could elsewhere.
#[test]
fn where_there_is_no_room_for_the_first_recordings_that_is_said() {
    let room = tempfile::tempdir().unwrap();
    let script = "ulimit -f 0; exec \"$0\" record --overhead=2 --with faults -o rec -- true";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script]).arg(pagemill().get_program()).env("TMPDIR", room.path());
    let run = ran(command.current_dir(room.path()));
    assert_eq!(run.code(), Some(125), "{run:?}");
    let place = room.path().display().to_string();
    assert!(run.err.contains(&place) && run.err.contains("TMPDIR"), "{run:?}");
}

/// The command went on for as long as it liked when what measures it was asked to end: its next runs, too.
#[test]
fn who_is_asked_to_end_ends_the_command_and_begins_no_other_run() {
    let room = tempfile::tempdir().unwrap();
    let (recording, lines) = (room.path().join("rec"), room.path().join("lines"));
    let script = format!("echo $$ >> {}; exec sleep 1000", lines.display());
    let mut recorder = pagemill()
        .args(["record", "--overhead", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = || fs::read_to_string(&lines).ok()?.trim().parse().ok().map(Pid);
    until("the first run", || pid().is_some());
    signal::send(Pid(recorder.id()), signal::TERMINATE).unwrap();
    let status = recorder.wait().unwrap();
    let command = pid().unwrap();
    let lives = Linux::live().stat(command).is_ok();
    if lives {
        signal::send(command, signal::KILL).unwrap();
    }
    assert!(!lives, "the command goes on");
    assert_eq!(status.signal(), Some(signal::TERMINATE), "as the command did");
    assert_eq!(fs::read_to_string(&lines).unwrap().lines().count(), 1);
    let err = std::io::read_to_string(recorder.stderr.take().unwrap()).unwrap();
    assert!(err.contains("interrupted"), "{err}");
}

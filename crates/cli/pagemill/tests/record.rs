//! `pagemill record`: what lies on disk afterwards, and what the program noticed (nothing).

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[expect(dead_code, reason = "each test file uses its part of the stand-in")]
mod stand_in;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagemill_model::recording::{Reader, State};
use pagemill_model::{Bytes, Event, HeapSample, Pid, Source as _};
use stand_in::{LIVE, Running, StandIn, pagemill, run, wait_for};

fn read(path: &Path) -> (Reader, Vec<HeapSample>) {
    let mut reader = Reader::open(path).unwrap();
    let mut samples = Vec::new();
    while let Some(Event::Heap(sample)) = reader.next_event().unwrap() {
        samples.push(*sample);
    }
    (reader, samples)
}

fn send(signal: &str, pid: Pid) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_command_is_recorded_and_its_exit_code_passed_on() {
    let stand_in = StandIn::build(4, 0);
    let rec = stand_in.room.path().join("rec");
    let (code, out, err) = run(pagemill()
        .args(["record", "--with", "heap", "--interval", "10ms", "-o"])
        .arg(&rec)
        .args(["--", "bash", "-c", "echo out; sleep 0.3; exit 7"])
        .env("PAGEMILL_HEAP_LIB", &stand_in.library));
    assert_eq!((code, out.as_str()), (Some(7), "out\n"), "{err}");
    assert_eq!(err.lines().last().unwrap(), format!("next: pagemill report {}", rec.display()));
    let (reader, samples) = read(&rec);
    let meta = reader.meta();
    assert_eq!((meta.state, meta.exit_status), (State::Finished, Some(7)));
    assert_eq!(meta.command[0], "bash");
    assert_eq!(meta.clock, "CLOCK_MONOTONIC");
    assert!(samples.len() >= 10, "{} samples in 0.3 s", samples.len());
    assert!(samples.iter().all(|sample| sample.pss.is_some()));
    assert!(samples.is_sorted_by_key(|sample| sample.time));
    let last = samples.last().unwrap();
    assert_eq!((last.live, last.config.as_deref()), (Some(Bytes(LIVE)), Some("1y")));
}

/// `there is nothing in it` was said of directories that stayed.
#[test]
fn of_a_command_that_ends_before_it_is_looked_at_nothing_is_kept() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("a/b/c");
    // Whether it is looked at before it ends is chance.
    for _ in 0..5 {
        let (code, _, err) = run(pagemill()
            .args(["record", "--heap", "none", "-f", "-o"])
            .arg(&rec)
            .args(["--", "true"]));
        assert_eq!(code, Some(0), "{err}");
        let nothing = err.contains("nothing was recorded, so ");
        assert_ne!(nothing, err.contains("next: pagemill report "), "{err}");
        assert_eq!(rec.exists(), !nothing, "{err}");
        if nothing {
            assert!(!room.path().join("a").exists() && !err.contains("recorded 0 "), "{err}");
        }
        let _ = fs::remove_dir_all(room.path().join("a"));
    }
}

#[test]
fn a_signal_that_kills_the_program_shows_in_the_status() {
    let stand_in = StandIn::build(4, 0);
    let status = pagemill()
        .args(["record", "-o"])
        .arg(stand_in.room.path().join("rec"))
        .args(["--", "sh", "-c", "kill -KILL $$"])
        .env("PAGEMILL_HEAP_LIB", &stand_in.library)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    // The recorder ends as the program did, as `pagemill run` would.
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn signals_reach_the_program_and_the_data_stays() {
    let stand_in = StandIn::build(4, 0);
    let rec = stand_in.room.path().join("rec");
    let ready = stand_in.room.path().join("ready");
    let mut recorder = pagemill()
        .args(["record", "--interval", "10ms", "-o"])
        .arg(&rec)
        .args(["--", "bash", "-c"])
        .arg(format!(
            "trap 'exit 42' TERM; touch {}; while :; do sleep 0.02; done",
            ready.display()
        ))
        .env("PAGEMILL_HEAP_LIB", &stand_in.library)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the program to be ready", || ready.exists());
    send("-TERM", Pid(recorder.id()));
    assert_eq!(recorder.wait().unwrap().code(), Some(42));
    let (reader, samples) = read(&rec);
    assert_eq!(reader.meta().state, State::Finished);
    assert!(!samples.is_empty());
}

#[test]
fn a_process_without_the_heap_has_the_kernels_columns_and_says_what_is_missing() {
    let sleeper = Running::plain();
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let begun = Instant::now();
    let (code, _, err) = run(pagemill()
        .args(["record", "--with", "heap", "--interval", "10ms", "--for", "200ms", "-o"])
        .arg(&rec)
        .args(["-p", &sleeper.pid().to_string()]));
    assert_eq!(code, Some(0), "{err}");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let (reader, samples) = read(&rec);
    assert!(samples.iter().all(|sample| sample.pss.is_some() && sample.live.is_none()));
    assert!(samples.iter().all(|sample| sample.pauses.is_none() && sample.passes.is_none()));
    let missing = &reader.meta().not_measured;
    assert!(missing.iter().any(|missing| missing.what.contains("live_bytes")), "{missing:?}");
    assert_eq!(reader.meta().exit_status, None);
}

#[test]
fn an_interrupt_stops_the_recording_of_an_attached_process_and_not_the_process() {
    let stand_in = StandIn::build(4, 0);
    let mut sleeper = stand_in.sleeper();
    let rec = stand_in.room.path().join("rec");
    let mut recorder = pagemill()
        .args(["record", "--interval", "10ms", "-o"])
        .arg(&rec)
        .args(["-p", &sleeper.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the recording to begin", || rec.join("meta.json").exists());
    std::thread::sleep(Duration::from_millis(50));
    send("-INT", Pid(recorder.id()));
    assert_eq!(recorder.wait().unwrap().code(), Some(0));
    assert!(sleeper.0.try_wait().unwrap().is_none(), "the process goes on");
    let (reader, samples) = read(&rec);
    assert_eq!(reader.meta().state, State::Finished);
    assert!(samples.iter().all(|sample| sample.live == Some(Bytes(LIVE))));
}

#[test]
fn a_recorder_that_is_killed_leaves_a_readable_recording() {
    let sleeper = Running::plain();
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let mut recorder = pagemill()
        .args(["record", "--interval", "10ms", "-o"])
        .arg(&rec)
        .args(["-p", &sleeper.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let parts = || {
        fs::read_dir(rec.join("heap")).map_or(0, |parts| {
            parts
                .flatten()
                .filter(|part| part.path().extension().is_some_and(|e| e == "parquet"))
                .count()
        })
    };
    wait_for("the first part", || parts() > 0);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let (reader, samples) = read(&rec);
    assert!(samples.len() > 10);
    assert!(reader.truncated_at().unwrap().seconds() >= 1.0);
    let (code, out, _) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(0));
    assert!(out.contains(", truncated at "), "{out}");
}

#[test]
fn a_recording_is_not_overwritten_unless_asked() {
    let stand_in = StandIn::build(4, 0);
    let rec = stand_in.room.path().join("rec");
    let record = |flags: &[&str], program: &[&str]| {
        run(pagemill()
            .arg("record")
            .args(flags)
            .arg("-o")
            .arg(&rec)
            .arg("--")
            .args(program)
            .env("PAGEMILL_HEAP_LIB", &stand_in.library))
    };
    assert_eq!(record(&[], &["sleep", "0.3"]).0, Some(0));
    // Found out before the program is started: it was started to be recorded.
    let (code, _, err) = record(&[], &["false"]);
    assert_eq!(code, Some(125));
    assert!(err.contains("rec exists (use -f to overwrite it, or choose another name)"), "{err}");
    assert_eq!(record(&["-f"], &["sleep", "0.3"]).0, Some(0));
}

#[test]
fn a_place_that_cannot_be_written_is_found_out_before_the_program_starts() {
    let stand_in = StandIn::build(4, 0);
    let room = stand_in.room.path();
    let file = room.join("file");
    fs::write(&file, "").unwrap();
    let ran = room.join("ran");
    // Below a file, and where not even root can make a directory.
    for place in [file.join("rec"), "/proc/self/rec".into(), "/sys/kernel/new/rec".into()] {
        let (code, _, err) = run(pagemill()
            .args(["record", "-o"])
            .arg(&place)
            .args(["--", "touch"])
            .arg(&ran)
            .env("PAGEMILL_HEAP_LIB", &stand_in.library));
        assert_eq!(code, Some(125), "{err}");
        assert!(err.contains("nothing is recorded: cannot "), "{err}");
        assert!(!ran.exists(), "the program has run");
    }
    let (code, _, err) = run(pagemill()
        .args(["record", "--", "touch"])
        .arg(&ran)
        .current_dir("/proc/self")
        .env("PAGEMILL_HEAP_LIB", &stand_in.library));
    assert_eq!((code, ran.exists()), (Some(125), false), "{err}");
    assert!(err.contains("cannot write into ."), "{err}");
    // Trying leaves nothing behind, also where the program does not exist.
    let before = fs::read_dir(room).unwrap().count();
    let (code, ..) = run(pagemill()
        .args(["record", "-o"])
        .arg(room.join("a/b"))
        .args(["--", "no-such-program"])
        .env("PAGEMILL_HEAP_LIB", &stand_in.library));
    assert_eq!((code, fs::read_dir(room).unwrap().count()), (Some(127), before));
}

#[test]
fn wrong_usage_is_125_for_a_wrapper_and_2_otherwise() {
    assert_eq!(run(pagemill().args(["record", "--interval", "5", "--", "true"])).0, Some(125));
    assert_eq!(run(pagemill().args(["record", "--interval", "5", "-p", "1"])).0, Some(2));
    let (code, _, err) = run(pagemill().arg("record"));
    assert_eq!(code, Some(2));
    assert!(err.contains("-p PID"), "{err}");
    // It was passed over in silence.
    let (code, _, err) = run(pagemill().args(["record", "--spike", "5ms", "--", "true"]));
    assert_eq!(code, Some(125));
    assert!(err.contains("--spike is about page faults (add: --with faults)"), "{err}");
    for options in [["--with", "accesses,heap"], ["--granule", "8K"], ["--budget", "2x"]] {
        let with = ["record", "--with", "accesses"];
        let with = if options[0] == "--granule" { &with[..] } else { &with[..1] };
        let usage = |whose: &[&str]| run(pagemill().args(with).args(options).args(whose)).0;
        assert_eq!(usage(&["--", "true"]), Some(125), "{options:?}");
        assert_eq!(usage(&["-p", "1"]), Some(2), "{options:?}");
    }
}

#[test]
fn the_default_name_has_the_program_and_its_number() {
    let stand_in = StandIn::build(4, 0);
    let (_, _, err) = run(pagemill()
        .args(["record", "--", "sleep", "0.1"])
        .current_dir(stand_in.room.path())
        .env("PAGEMILL_HEAP_LIB", &stand_in.library));
    let name = err.lines().last().unwrap().strip_prefix("next: pagemill report ").unwrap();
    let pid = name.strip_prefix("pagemill-sleep.").unwrap();
    assert!(pid.parse::<u32>().is_ok(), "{name}");
    assert!(stand_in.room.path().join(name).join("meta.json").exists());
}

#[test]
fn a_program_that_does_not_exist_is_127_and_a_library_that_does_not_125() {
    let stand_in = StandIn::build(4, 0);
    let record = |library: &Path, program: &str| {
        run(pagemill()
            .args(["record", "--", program])
            .current_dir(stand_in.room.path())
            .env("PAGEMILL_HEAP_LIB", library))
    };
    let (code, _, err) = record(&stand_in.library, "no-such-program");
    assert_eq!(code, Some(127));
    assert!(err.contains("no-such-program"), "{err}");
    let (code, _, err) = record(Path::new("/nowhere/libpagemill_heap.so"), "true");
    assert_eq!(code, Some(125));
    assert!(err.contains("/nowhere/libpagemill_heap.so"), "{err}");
}

#[test]
fn an_unknown_configuration_lists_the_valid_ones() {
    let (code, _, err) = run(pagemill().args(["record", "--mesh", "9z", "--", "true"]));
    assert_eq!(code, Some(125));
    assert!(err.contains("0n 1n 2n 0y 1y 2y h"), "{err}");
}

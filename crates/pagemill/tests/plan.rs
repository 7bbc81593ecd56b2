//! `pagemill plan` and `pagemill simulate --huge` from the outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its subject should panic")]

use std::fs;
use std::process::{Command, Output};

fn pagemill(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_profile_is_made_wrong_as_asked_and_nothing_is_overwritten() {
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("profile.csv");
    fs::write(&profile, "huge,heap,1000,addr,>,0x0,addr,<,0x400000\neager,heap,1\n").unwrap();
    let path = profile.to_str().unwrap();
    let output = pagemill(&["plan", "--perturb", "scale=0.5,huge-only", path]);
    assert_eq!(text(&output.stdout), "huge,heap,500,addr,>,0x0,addr,<,0x400000\n");
    let output = pagemill(&["plan", "--perturb", "flatten", path, "-o", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("exists (use -f to overwrite it)"));
}

#[test]
fn a_wrong_row_is_named_by_file_line_and_column() {
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("profile.csv");
    fs::write(&profile, "huge,heap,1\nhuge,stack,5\n").unwrap();
    let path = profile.to_str().unwrap();
    let expected =
        format!("{path}:2:6: expected the section code, data, heap or mmap, found \"stack\"");
    for arguments in [
        &["plan", "--perturb", "flatten", path][..],
        &["simulate", "grow", "--huge", "cbmm", "--profile", path],
    ] {
        let output = pagemill(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    }
}

#[test]
fn what_is_no_recording_or_no_way_is_refused() {
    let output = pagemill(&["plan", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nowhere is no recording"), "{}", text(&output.stderr));
    let output = pagemill(&["plan", "--perturb", "wobble", "x.csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("expected shift=BYTES"), "{}", text(&output.stderr));
}

#[test]
fn the_simulation_is_the_same_for_a_seed_and_names_what_it_knows() {
    let run = || {
        let output = pagemill(&[
            "simulate",
            "grow",
            "--huge",
            "linux-always,cbmm+",
            "--regions",
            "4",
            "--json",
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let first = run();
    assert!(first.contains("\"modelled\": true"), "{first}");
    assert_eq!(first, run());
    for (arguments, expected) in [
        (["simulate", "grow", "--huge", "lru"], "no huge page policy 'lru'"),
        (["simulate", "gups", "--huge", "cbmm"], "valid with --huge: grow, random, hot, sparse"),
    ] {
        let output = pagemill(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

//! `pagemill simulate` from the outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its subject should panic")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill")).arg("simulate").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn machine_file(edit: impl Fn(&str) -> String) -> tempfile::NamedTempFile {
    let built_in = simulate(&["--print-machine"]);
    let text = edit(std::str::from_utf8(&built_in.stdout).unwrap());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let run = |seed: &str| {
        let output = simulate(&[
            "gups",
            "--policy",
            "tpp",
            "--seconds",
            "3",
            "--scale",
            "4096",
            "--json",
            "--seed",
            seed,
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn a_negative_latency_is_answered_with_line_key_and_valid_values() {
    let file = machine_file(|text| {
        text.replacen("unloaded_ns = { value = 70", "unloaded_ns = { value = -70", 1)
    });
    let output = simulate(&["--machine", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("line ") && text.contains("tier.default.unloaded_ns"), "{text}");
    assert!(text.contains("1 to 10000 ns"), "{text}");
}

#[test]
fn a_machine_without_its_alternate_tier_is_refused() {
    let file = machine_file(|text| {
        let (before, rest) = text.split_once("[tier.alternate]").unwrap();
        format!("{before}[link]{}", rest.split_once("[link]").unwrap().1)
    });
    let output = simulate(&["--machine", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("tier.alternate: the whole table is missing"), "{text}");
    assert!(text.contains("line ") && text.contains("channels, unloaded_ns"), "{text}");
}

#[test]
fn an_unknown_policy_workload_or_figure_lists_the_valid_ones() {
    for (arguments, valid) in [
        (&["--policy", "lru"][..], "tpp+colloid"),
        (&["quake"][..], "pagerank"),
        (&["--figure", "9z"][..], "6c"),
    ] {
        let output = simulate(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(valid), "{}", stderr(&output));
    }
}

#[test]
fn output_says_that_it_is_modelled_and_nothing_is_written_to_a_piped_stderr() {
    let output = simulate(&["chase", "--policy", "none", "--seconds", "1", "--scale", "1024"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("modelled"));
    assert_eq!(stderr(&output), "");
}

#[test]
fn what_would_be_passed_over_in_silence_is_refused() {
    for (arguments, valid) in [
        (
            &["gups", "--move-at", "9", "--seconds", "3"][..],
            "--move-at 9 is out of range; valid: 0 to 3",
        ),
        (&["gups", "--move-at", "-1"], "--move-at -1 is out of range"),
        (&["zipf", "--move-at", "1"], "no hot set that moves; valid: gups, moving or a recording"),
        (&["gups", "--antagonist-at", "1"], "with --antagonist STEPS"),
        (&["gups", "--antagonist", "1", "--antagonist-at", "900"], "valid: 0 to 120"),
        (&["gups", "--antagonist", "-1"], "--antagonist -1 is out of range; valid: 0 to 100"),
        (&["gups", "--seconds", "nan"], "expected a number of seconds, such as 90, or a time"),
        (&["gups", "--noise", "much"], "expected a number of percent, such as 5 or 5%"),
        (&["gups", "--noise", "101%"], "--noise 101 is out of range; valid: 0 to 100"),
        (&["gups", "--antagonist", "3y"], "expected how many times, such as 3 or 3x"),
        (&["gups", "--unloaded", "soon"], "expected a number of nanoseconds"),
        (&["gups", "--scale", "x"], "expected a number, such as 1 or 0.25"),
        (&["gubs"], "there is no workload \"gubs\" (did you mean \"gups\"?); valid: "),
        (
            &["gups", "--policy", "hemmem"],
            "there is no policy \"hemmem\" (did you mean \"hemem\"?)",
        ),
        (
            &["grow", "--huge", "cbmm", "--compaction", "999h"],
            "is out of range; valid: 0 to 100.0 ms",
        ),
        (&["grew", "--huge", "cbmm"], "there is no workload \"grew\" (did you mean \"grow\"?)"),
        (
            &["grow", "--huge", "cbm"],
            "there is no huge page policy \"cbm\" (did you mean \"cbmm\"?)",
        ),
        (&["gups", "--as", "zipf"], "gups is none"),
        (&["gups", "--policy", "hemem", "--scale", "1024"], "36 pages of 2.0 MiB; valid: 1 to 36"),
        (&["gups", "--tiers", "fast=1G,slow=2G"], "72.0 GiB of gups do not fit into 3.0 GiB"),
        (&["--machine", "/dev/zero"], "cannot read /dev/zero: it is longer than"),
        (&["gups", "--quick"], "--quick, --keep and --points go with --figure or --sensitivity"),
        (
            &["gups", "--keep", "here"],
            "--quick, --keep and --points go with --figure or --sensitivity",
        ),
        (
            &["--figure", "setup", "--policy", "tpp"],
            "'--figure <FIGURES>' cannot be used with '--policy <POLICY>'",
        ),
        (
            &["--sensitivity", "--seconds", "9"],
            "'--sensitivity' cannot be used with '--seconds <SECONDS>'",
        ),
    ] {
        let output = simulate(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(valid), "{arguments:?}: {}", stderr(&output));
    }
    let small = machine_file(|text| {
        text.replacen("capacity_gib = { value = 96", "capacity_gib = { value = 1", 1)
    });
    let output = simulate(&["--machine", small.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("72.0 GiB of gups do not fit"), "{}", stderr(&output));
}

fn rows(arguments: &[&str]) -> serde_json::Value {
    let output = simulate(&[arguments, &["--policy", "none", "--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let mut answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["rows"].take()
}

/// The evaluation gave Silo 19.3 GiB of the default tier, and so did `--tiers`, whatever it said.
#[test]
fn tiers_are_as_large_as_asked_for_and_programs_have_the_threads_asked_for() {
    let silo = rows(&["silo", "--tiers", "fast=64G,slow=1G", "--seconds", "0.1"]);
    assert!((silo[0]["share"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{silo}");
    let chase = |threads| rows(&["chase", "--seconds", "0.1", "--threads", threads]);
    let rate = |rows: serde_json::Value| rows[0]["units_per_s"].as_f64().unwrap();
    let (one, four) = (rate(chase("1")), rate(chase("4")));
    assert!(four > one * 3.0, "{one} and {four}");
}

/// `antagonist 3x` is what the answer prints, and percent were refused with their sign.
#[test]
fn numbers_are_taken_with_their_units() {
    for (option, value) in [
        ("--noise", "5%"),
        ("--antagonist", "3x"),
        ("--seconds", "2m"),
        ("--move-at", "50s"),
        ("--unloaded", "0.2us"),
        ("--scale", "64"),
    ] {
        let output = simulate(&["gups", option, value, "--print-machine"]);
        assert!(output.status.success(), "{option} {value}: {}", stderr(&output));
    }
}

#[test]
fn a_machine_with_larger_pages_moves_fewer_of_them() {
    let file = machine_file(|text| {
        text.replacen("page_kib = { value = 4,", "page_kib = { value = 64,", 1)
    });
    // 2 MiB of 64 KiB pages are too few where those of 4 KiB would do.
    let asked = ["chase", "--policy", "tpp", "--seconds", "0.1", "--scale", "1000"];
    let output = simulate(&[&asked[..], &["--machine", file.path().to_str().unwrap()]].concat());
    assert!(stderr(&output).contains("131 pages of 64.0 KiB"), "{}", stderr(&output));
    assert!(simulate(&asked).status.success());
}

/// A full disk was taken for a reader who had seen enough: exit 0, and a file without its end.
#[test]
fn output_that_a_full_disk_does_not_take_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(["simulate", "--print-machine"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("standard output could not be written"),
        "{}",
        stderr(&output)
    );
}

/// Where the system gave no thread more, it was aborted.
#[test]
fn a_user_who_may_have_no_more_processes_gets_the_same_answer() {
    let arguments = ["gups", "--policy", "tpp,tpp+colloid", "--seconds", "5", "--scale", "256"];
    let free = simulate(&arguments);
    let room = tempfile::tempdir().unwrap();
    let binary = room.path().join("pagemill");
    let copied = Command::new("install").arg(env!("CARGO_BIN_EXE_pagemill")).arg(&binary).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The limit binds all but root.
    let me = fs::metadata("/proc/self").unwrap().uid();
    let mut run = Command::new(if me == 0 { "setpriv" } else { "env" });
    if me == 0 {
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    run.args(["bash", "-c", "ulimit -u 1; exec \"$0\" simulate \"$@\""]);
    let limited = run.arg(&binary).args(arguments).output().unwrap();
    assert!(limited.status.success() && limited.stdout == free.stdout, "{limited:?}");
}

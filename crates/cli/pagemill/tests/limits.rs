//! What verbs do where a user may have little: a clear word or the same answer, never an abort.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[cfg(test)]
mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use support::{Ran, installed, library, prefault, ran, sites, skip};

/// The words in a room where `recording` is one, under a limit that binds: root becomes another user.
fn limited(room: &Path, limit: &str, words: &str) -> Ran {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = Command::new(if root { "setpriv" } else { "env" });
    if root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    let script = format!("ulimit {limit}; exec ./pagemill \"$@\"");
    command.args(["bash", "-c", &script, "bash"]).args(words.split(' '));
    ran(command.current_dir(room))
}

/// These were aborts, and with `RUST_BACKTRACE` waited for ever for a lock of their own.
#[test]
fn where_there_is_no_more_memory_that_is_said_in_a_line() {
    let mut short = 0;
    for limit in ["-v 60000", "-d 4000", "-d 12000"] {
        for backtrace in ["0", "1"] {
            let script = format!("ulimit {limit}; exec timeout -s KILL 120 \"$0\" doctor");
            let mut command = Command::new("bash");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_pagemill")]);
            let run = ran(command.env("RUST_BACKTRACE", backtrace));
            let said = run.err.starts_with("pagemill: there is no memory for ");
            assert!(matches!(run.code(), Some(0..=3)), "{limit} {backtrace}: {run:?}");
            assert_eq!(said, !run.err.is_empty(), "{limit} {backtrace}: {run:?}");
            short += usize::from(said && run.code() == Some(2) && run.err.lines().count() == 1);
        }
    }
    assert!(short > 0, "no limit was reached");
}

/// Fifteen of the calls below were aborted by a panic where no thread more could be started.
#[test]
fn where_no_process_more_may_be_started_verbs_answer_or_say_what_is_missing() {
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip("only with setpriv(1) does root become another user").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let binary = room.path().join("pagemill");
    installed(Path::new(env!("CARGO_BIN_EXE_pagemill")), &binary, "755");
    for library in [library(), prefault(), sites()] {
        installed(&library, &room.path().join(library.file_name().unwrap()), "755");
    }
    for (with, name) in [("faults,hugepages", "faults"), ("accesses", "accesses")] {
        let words = ["record", "--with", with, "--threshold", "0ns", "-o", name, "--"];
        let made = Command::new(&binary)
            .args(words)
            .args(["sleep", "0.3"])
            .current_dir(room.path())
            .output();
        if !made.as_ref().unwrap().status.success() {
            return skip(&String::from_utf8_lossy(&made.unwrap().stderr)).unwrap_or(());
        }
        // The summary would spare the reading of the parts.
        let _ = Command::new("chmod").args(["-R", "a+rX"]).arg(room.path().join(name)).status();
    }
    fs::create_dir(room.path().join("out")).unwrap();
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(room.path().join("out"), fs::Permissions::from_mode(0o777)).unwrap();
    let answers = [
        "report accesses",
        "report accesses --json --redact",
        "report accesses --html out/page",
        "report faults",
        "compare accesses accesses",
        "export accesses --format parquet -o out/parquet",
        "plan faults",
        "plan --costs",
        "hugepages faults",
    ];
    for words in answers {
        let run = limited(room.path(), "-u 1", words);
        assert_eq!(run.code(), Some(0), "{words}: {run:?}");
    }
    let sayings = [
        "doctor",
        "counters --runs 1 -- true",
        "run --huge cbmm+ -- true",
        "record -o out/heap --with heap -- true",
        "record -o out/faults --with faults,hugepages -- true",
        "record -o out/sites --with sites,faults -- true",
        "record -o out/accesses --with accesses -- true",
        "record -o out/sample --with accesses --backend sample -- true",
        "validate -o out/both -- true",
        "workload larson --threads 2 --seconds 0.1",
        "workload nas-is --class S --threads 2",
    ];
    for words in sayings {
        let run = limited(room.path(), "-u 1", words);
        assert_eq!(run.status.signal(), None, "{words}: {run:?}");
        assert!(!run.err.contains("panicked"), "{words}: {run:?}");
        if !words.starts_with("doctor") {
            assert!(matches!(run.code(), Some(2..=4 | 125)), "{words}: {run:?}");
            assert!(run.err.contains("pagemill: "), "{words}: {run:?}");
        }
    }
    let left: Vec<_> = fs::read_dir(room.path().join("out")).unwrap().flatten().collect();
    let names: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
    assert!(names.iter().all(|name| name == "page" || name == "parquet"), "{names:?}");
}

/// A limit was told as the program's fault: `cannot execute /usr/bin/true: Too many open files`, 126.
#[test]
fn who_may_open_few_files_is_told_so_before_anything_starts() {
    let room = tempfile::tempdir().unwrap();
    for words in
        ["advise --counters -- true", "advise --places -- true", "validate -o both -- true"]
    {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -n 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pagemill")]);
        let run = ran(command.args(words.split(' ')).current_dir(room.path()));
        assert_eq!(run.code(), Some(2), "{words}: {run:?}");
        assert!(run.err.contains("may have 8 files open and needs 32"), "{words}: {run:?}");
    }
    assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0, "nothing is left");
}

/// All verbs were aborted: "stack overflow".
#[test]
fn where_the_stack_may_be_small_verbs_have_one_that_is_large_enough() {
    for limit in ["64", "100", "256"] {
        for words in [
            "--version",
            "doctor --help",
            "simulate --print-machine",
            "generate bash",
            "run -- true",
        ] {
            let script = format!("ulimit -s {limit}; exec \"$0\" {words}");
            let run =
                ran(Command::new("bash").args(["-c", &script, env!("CARGO_BIN_EXE_pagemill")]));
            assert_eq!(run.code(), Some(0), "{limit} {words}: {run:?}");
        }
    }
    let script = "ulimit -s 64; exec \"$0\" run -- sh -c 'ulimit -s'";
    let run = ran(Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_pagemill")]));
    assert_eq!(run.out, "64\n", "a program has the limit that it would have: {run:?}");
}

//! `pagemill run`, from the outside.

#[cfg(test)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{
    Machine, compiled, installed, ksm_turn, library, pagemill, pagemill_with, ran, skip, until,
};
use tempfile::TempDir;

use pagemill_model::Pid;

const TERM: i32 = 15;
const SEGV: i32 = 11;
const KILL: i32 = 9;

#[test]
fn the_exit_status_of_the_program_is_passed_through() {
    for code in [0, 1, 3, 125, 255] {
        let script = format!("exit {code}");
        assert_eq!(pagemill_with(&["run", "--", "sh", "-c", &script]).code(), Some(code));
    }
}

#[test]
fn the_program_keeps_its_standard_streams_and_arguments() {
    let mut child = pagemill()
        .args(["run", "sh", "-c", "cat; echo \"$1 $2\" >&2", "name", "--mesh", "-x y"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in and out").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"in and out");
    assert_eq!(output.stderr, b"--mesh -x y\n");
}

#[test]
fn death_by_a_signal_is_passed_through() {
    for signal in [TERM, SEGV, KILL] {
        let script = format!("kill -{signal} $$");
        let run = pagemill_with(&["run", "--", "sh", "-c", &script]);
        assert_eq!(run.status.signal(), Some(signal), "{run:?}");
    }
}

#[test]
fn the_library_and_the_default_configuration_reach_the_program() {
    let script = "echo $LD_PRELOAD $PAGEMILL_HEAP $PAGEMILL_BACKEND";
    let run = pagemill_with(&["run", "--", "sh", "-c", script]);
    assert_eq!(run.out.trim(), format!("{} 1y auto", library().display()), "{run:?}");
}

/// `run --heap` without a word complained of `--mesh`.
#[test]
fn what_a_user_may_type_has_one_word_and_its_older_one_works() {
    let script = "echo $PAGEMILL_HEAP";
    for (flag, word, name) in [
        ("--heap", "compact-ordered", "0y"),
        ("--mesh", "refill-shuffle", "1n"),
        ("--mesh", "2y", "2y"),
    ] {
        let run = pagemill_with(&["run", flag, word, "--", "sh", "-c", script]);
        assert_eq!(run.out.trim(), name, "{run:?}");
        let run = pagemill_with(&["run", flag]);
        assert!(run.err.contains("--heap <CONFIG>") && !run.err.contains("--mesh"), "{run:?}");
        let run = pagemill_with(&["record", "--with", "heap", flag]);
        assert!(run.err.contains("--heap <CONFIG>") && !run.err.contains("--mesh"), "{run:?}");
    }
    for (set, name) in [(&["MESH"][..], "2n"), (&["MESH", "HEAP"], "0y")] {
        let mut run = pagemill();
        for word in set {
            run.env(format!("PAGEMILL_{word}"), if *word == "HEAP" { "0y" } else { "2n" });
        }
        let script = "echo $PAGEMILL_HEAP $PAGEMILL_MESH";
        assert_eq!(ran(run.args(["run", "--", "sh", "-c", script])).out.trim(), name, "{set:?}");
    }
    // The library is where either word says, and the older one does not count beside the other.
    for (set, named) in [
        (&["PAGEMILL_HEAP_LIB", "PAGEMILL_LIB"][..], "PAGEMILL_HEAP_LIB is"),
        (&["PAGEMILL_LIB"], "PAGEMILL_LIB is"),
    ] {
        let mut run = pagemill();
        run.env_remove("PAGEMILL_HEAP_LIB").args(["run", "--", "true"]);
        for variable in set {
            run.env(variable, "/no/such/library.so");
        }
        let run = ran(&mut run);
        assert!(run.code() == Some(125) && run.err.contains(named), "{run:?}");
    }
    for (set, named) in [
        (&["PAGEMILL_PREFAULT_LIB", "PAGEMILL_HUGE_LIB"][..], "PAGEMILL_PREFAULT_LIB is"),
        (&["PAGEMILL_HUGE_LIB"], "PAGEMILL_HUGE_LIB is"),
    ] {
        let mut run = pagemill();
        run.env_remove("PAGEMILL_PREFAULT_LIB").args(["run", "--huge", "cbmm", "--", "true"]);
        for variable in set {
            run.env(variable, "/no/such/library.so");
        }
        let run = ran(&mut run);
        assert!(run.code() == Some(125) && run.err.contains(named), "{run:?}");
    }
    for flag in ["--no-sites", "--no-names"] {
        let run = pagemill_with(&["record", "--with", "heap", flag, "--help"]);
        assert_eq!(run.code(), Some(0), "{run:?}");
    }
}

#[test]
fn the_library_is_really_loaded() {
    let run = pagemill_with(&["run", "--", "sh", "-c", "cat /proc/self/maps"]);
    assert!(run.out.contains(library().to_str().unwrap()), "{run:?}");
}

#[test]
fn what_was_preloaded_before_is_kept_behind_ours() {
    let directory = tempfile::tempdir().unwrap();
    let Some(other) = compiled(&directory, "other.so", "int other;", &["-shared", "-fPIC"]) else {
        return;
    };
    let mut command = pagemill();
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", &other);
    let run = ran(&mut command);
    assert_eq!(run.out.trim(), format!("{}:{}", library().display(), other.display()), "{run:?}");
}

#[test]
fn a_flag_goes_before_the_environment_and_the_environment_before_the_default() {
    let with = |arguments: &[&str]| {
        let mut command = pagemill();
        command
            .env("PAGEMILL_HEAP", "2n")
            .env("PAGEMILL_BACKEND", "remap")
            .arg("run")
            .args(arguments);
        ran(command.args(["--", "sh", "-c", "echo $PAGEMILL_HEAP $PAGEMILL_BACKEND"])).out
    };
    assert_eq!(with(&[]), "2n remap\n");
    assert_eq!(with(&["--mesh", "0y", "--backend", "none"]), "0y none\n");
}

#[test]
fn an_unknown_configuration_lists_the_valid_ones() {
    let run = pagemill_with(&["run", "--mesh", "3y", "--", "true"]);
    assert_eq!(run.code(), Some(125));
    for name in ["3y", "0n", "1n", "2n", "0y", "1y", "2y", "h"] {
        assert!(run.err.contains(name), "{name} in {}", run.err);
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_counts_as_not_set() {
    let mut command = pagemill();
    command.env("PAGEMILL_HEAP", "").env("PAGEMILL_BACKEND", "");
    command.args(["run", "--", "sh", "-c", "echo $PAGEMILL_HEAP $PAGEMILL_BACKEND"]);
    let run = ran(&mut command);
    assert_eq!((run.code(), run.out.as_str(), run.err.as_str()), (Some(0), "1y auto\n", ""));
}

#[test]
fn an_unknown_back_end_in_the_environment_lists_the_valid_ones() {
    let run = ran(pagemill().env("PAGEMILL_BACKEND", "kms").args(["run", "--", "true"]));
    assert_eq!(run.code(), Some(125));
    for name in ["kms", "auto", "ksm", "remap", "none"] {
        assert!(run.err.contains(name), "{name} in {}", run.err);
    }
}

#[test]
fn a_missing_program_is_127_and_named() {
    for name in ["no-such-program", "/no/such/program"] {
        let run = pagemill_with(&["run", "--", name]);
        assert_eq!(run.code(), Some(127), "{run:?}");
        assert!(run.err.contains(name), "{run:?}");
    }
}

#[test]
fn a_program_that_may_not_be_executed_is_126() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    fs::write(&path, "#!/bin/sh\n").unwrap();
    let run = pagemill_with(&["run", "--", path.to_str().unwrap()]);
    assert_eq!(run.code(), Some(126), "{run:?}");
    assert!(run.err.contains("chmod +x"), "{run:?}");
    let run = pagemill_with(&["run", "--", directory.path().to_str().unwrap()]);
    assert_eq!(run.code(), Some(126), "a directory: {run:?}");
}

#[test]
fn a_damaged_program_is_126_and_called_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    let whole = fs::read("/bin/sh").unwrap();
    for length in [4, 40, 5_000, whole.len() / 2] {
        fs::write(&path, &whole[..length]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let run = pagemill_with(&["run", "--", path.to_str().unwrap()]);
        assert_eq!(run.code(), Some(126), "{length}: {run:?}");
        assert!(run.err.contains("it is a damaged ELF file"), "{length}: {run:?}");
    }
}

#[test]
fn a_script_without_its_interpreter_ends_as_it_would_under_env() {
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    fs::write(&closed, "").unwrap();
    let (text, path) = (directory.path().join("text"), directory.path().join("script"));
    for (line, name) in [
        ("#!/no/such/interpreter".to_owned(), "/no/such/interpreter"),
        ("#!/usr/bin/env no-such-interpreter".to_owned(), "no-such-interpreter"),
        (format!("#!{}", closed.display()), closed.to_str().unwrap()),
    ] {
        fs::write(&text, format!("{line}\n")).unwrap();
        installed(&text, &path, "755");
        let env = ran(Command::new("env").arg(&path));
        let run = pagemill_with(&["run", "--", path.to_str().unwrap()]);
        assert_eq!(run.code(), env.code(), "{line}: {run:?}, {env:?}");
        assert!(run.err.contains(name), "{run:?}");
    }
}

#[test]
fn a_file_that_is_no_preload_library_is_125_before_the_program_starts() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "not a library").unwrap();
    let real = library();
    let half = directory.path().join("half.so");
    fs::write(&half, &fs::read(&real).unwrap()[..2_000]).unwrap();
    for (file, reason) in [
        (text.as_path(), "it is no ELF file of 64 bits"),
        (Path::new("/bin/sh"), "it does not define pagemill_stats"),
        (half.as_path(), "pagemill"),
    ] {
        let mut command = pagemill();
        command.args(["run", "--", "sh", "-c", "echo ran"]).env("PAGEMILL_HEAP_LIB", file);
        let run = ran(&mut command);
        assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
        assert!(run.err.contains(file.to_str().unwrap()), "{run:?}");
        assert!(run.err.contains(reason), "{run:?}");
    }
}

/// The library of an earlier build that stood beside the program was loaded, whatever it took its layouts for.
#[test]
fn a_library_of_other_sources_is_passed_over_and_said_where_there_is_no_other() {
    let room = tempfile::tempdir().unwrap();
    let source = "unsigned long pagemill_stats[512], pagemill_build = 1;";
    let Some(stale) = compiled(&room, "stale.so", source, &["-shared", "-fPIC"]) else { return };
    let place = |directory: &str| {
        fs::create_dir(room.path().join(directory)).unwrap();
        room.path().join(directory)
    };
    let (programs, libraries) = (place("bin"), place("lib"));
    let (name, binary) = ("libpagemill_heap.so", programs.join("pagemill"));
    let own = pagemill();
    if fs::hard_link(own.get_program(), &binary).is_err() {
        fs::copy(own.get_program(), &binary).unwrap();
    }
    fs::copy(&stale, programs.join(name)).unwrap();
    let run = || {
        ran(Command::new(&binary)
            .args(["run", "--", "echo", "ran"])
            .env_remove("PAGEMILL_HEAP_LIB"))
    };
    let refused = run();
    assert_eq!((refused.code(), refused.out.as_str()), (Some(125), ""), "{refused:?}");
    for word in
        ["bin/libpagemill_heap.so was built from other sources", "cargo build --profile preload"]
    {
        assert!(refused.err.contains(word), "{refused:?}");
    }
    fs::copy(library(), libraries.join(name)).unwrap();
    let found = run();
    assert_eq!((found.code(), found.out.as_str()), (Some(0), "ran\n"), "{found:?}");
}

#[test]
fn a_missing_library_is_125_and_says_how_to_build_it() {
    let run =
        ran(pagemill().args(["run", "--", "true"]).env("PAGEMILL_HEAP_LIB", "/no/such/lib.so"));
    assert_eq!(run.code(), Some(125));
    assert!(run.err.contains("/no/such/lib.so"), "{run:?}");
}

#[test]
fn a_static_program_is_refused_before_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }";
    let Some(path) = compiled(&directory, "program", source, &["-static"]) else { return };
    let run = pagemill_with(&["run", "--", path.to_str().unwrap()]);
    assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
    assert!(
        run.err.contains("statically linked") && run.err.contains("without -static"),
        "{run:?}"
    );
}

#[test]
fn a_program_with_an_allocator_of_its_own_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let source = "#include <stddef.h>\nvoid *je_malloc(size_t n) { (void)n; return 0; }\nint main(void) { return 0; }";
    let Some(path) = compiled(&directory, "program", source, &[]) else { return };
    let run = pagemill_with(&["run", "--", path.to_str().unwrap()]);
    assert_eq!(run.code(), Some(125), "{run:?}");
    assert!(run.err.contains("jemalloc"), "{run:?}");
}

#[test]
fn a_set_user_id_program_is_refused_with_the_reason_and_the_way() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sh");
    fs::copy("/bin/sh", &path).unwrap();
    if let Err(error) = chown(&path, Some(NOBODY), None) {
        skip::<()>(&format!("cannot give a file away: {error}"));
        return;
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    let run = pagemill_with(&["run", "--", path.to_str().unwrap(), "-c", "echo ran"]);
    assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
    assert!(run.err.contains("set-user-ID") && run.err.contains("plain copy"), "{run:?}");
}

#[test]
fn wrong_usage_is_125_because_2_may_be_the_programs() {
    for arguments in
        [&["run"][..], &["run", "--no-such-flag", "true"], &["run", "--backend", "x", "true"]]
    {
        assert_eq!(pagemill_with(arguments).code(), Some(125), "{arguments:?}");
    }
    assert_eq!(pagemill_with(&["run", "--", "sh", "-c", "exit 2"]).code(), Some(2));
    assert_eq!(pagemill_with(&["doctor", "--no-such-flag"]).code(), Some(2));
    assert_eq!(pagemill_with(&["run", "--help"]).code(), Some(0));
}

#[test]
fn the_help_begins_with_examples() {
    for verb in ["doctor", "run"] {
        for flag in ["-h", "--help"] {
            let run = pagemill_with(&[verb, flag]);
            assert!(run.out.starts_with(&format!("Examples:\n  pagemill {verb}")), "{run:?}");
        }
    }
}

#[test]
fn contradictions_are_refused() {
    let contradictions: [&[&str]; 3] = [
        &["--ksm", "--mesh", "0n"],
        &["--ksm", "--backend", "remap"],
        &["--mesh", "0n", "--backend", "remap"],
    ];
    for arguments in contradictions {
        let run = pagemill_with(&[&["run"], arguments, &["--", "true"]].concat());
        assert_eq!(run.code(), Some(125), "{run:?}");
    }
}

// From here on the governor, on a machine whose KSM settings are files.

/// A library that says that `FAKE_PENDING` pages were offered; with `FAKE_MERGE` it really offers that
/// many identical pages.
const FAKE: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((aligned(4096))) uint64_t pagemill_stats[512];
static volatile uint64_t *offered = &pagemill_stats[OFFERED];
static uint64_t pages;
static void *merge(void *unused) {
    (void)unused;
    char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 42, pages * 4096);
    madvise(memory, pages * 4096, MADV_MERGEABLE);
    *offered = pages;
    return 0;
}
__attribute__((constructor)) static void start(void) {
    const char *text = getenv("FAKE_PENDING");
    pages = text ? strtoul(text, 0, 10) : 0;
    if (!getenv("FAKE_MERGE")) *offered = pages;
    pagemill_stats[1] = 1;
    pagemill_stats[2] = 4096;
    pagemill_stats[3] = getpid();
    memcpy(pagemill_stats, "PGMLHEAP", 8);
    pthread_t thread;
    if (getenv("FAKE_MERGE")) pthread_create(&thread, 0, merge, 0);
}
"#;

fn fake_library(directory: &TempDir) -> Option<PathBuf> {
    let offset = std::mem::offset_of!(pagemill_heap::stats::StatsPage, ksm_offered) / 8;
    let define = format!("-DOFFERED={offset}");
    compiled(directory, "libpagemill-fake.so", FAKE, &["-shared", "-fPIC", "-pthread", &define])
}

/// Starts `sh -c SCRIPT` on the fake library under the governor. The script should read a line.
fn governed(root: &Path, library: &Path, pending: u64, script: &str) -> Child {
    governed_by(pagemill(), root, library, pending, script)
}

fn governed_by(
    mut pagemill: Command,
    root: &Path,
    library: &Path,
    pending: u64,
    script: &str,
) -> Child {
    pagemill
        .env("PAGEMILL_ROOT", root)
        .env("PAGEMILL_HEAP_LIB", library)
        .env("FAKE_PENDING", pending.to_string())
        .args(["run", "--ksm", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pagemill starts")
}

fn kill(pid: Pid, signal: &str) {
    assert!(
        Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(pid.to_string())
            .status()
            .expect("kill starts")
            .success()
    );
}

/// The child that `pagemill run --ksm` has started.
fn child_of(run: &Child) -> Pid {
    let file = format!("/proc/{0}/task/{0}/children", run.id());
    let mut pid = None;
    until("the child's start", || {
        let children = fs::read_to_string(&file).expect("the wrapper lives");
        pid = children.split_whitespace().next().map(|pid| pid.parse().expect("a number"));
        pid.is_some()
    });
    pid.expect("there is one by now")
}

#[test]
fn ksmd_runs_while_pages_are_pending_and_everything_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    let before = machine.ksm_settings();
    let mut run = governed(machine.root(), &library, 100, "read line; exit 7");
    until("merging", || machine.ksm("run") == "1");
    assert_ne!(machine.ksm("pages_to_scan"), "100");
    assert_eq!(machine.ksm("smart_scan"), "0");
    assert!(machine.journal().exists());
    // The pages never merge, so after some whole scans ksmd is put to rest.
    machine.set_ksm("full_scans", "1000");
    until("giving up", || machine.ksm_settings() == before);
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(7));
    assert_eq!(machine.ksm_settings(), before);
    assert!(!machine.journal().exists());
}

#[test]
fn a_program_with_nothing_to_merge_never_starts_ksmd() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    let before = machine.ksm_settings();
    let mut run = governed(machine.root(), &library, 0, "echo started; read line");
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700)); // More than one census.
    assert_eq!(machine.ksm_settings(), before);
    drop(run.stdin.take());
    run.wait().unwrap();
}

#[test]
fn a_descendant_with_pending_pages_counts() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    let script = "unset FAKE_PENDING; FAKE_PENDING=50 sh -c 'read line'; exit 0";
    let mut run = governed(machine.root(), &library, 0, script);
    until("merging", || machine.ksm("run") == "1");
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(machine.ksm("run"), "0");
}

#[test]
fn settings_of_a_running_ksmd_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    machine.set_ksm("run", "1");
    let before = machine.ksm_settings();
    let mut run = governed(machine.root(), &library, 100, "echo $PAGEMILL_BACKEND");
    let output = run.stdin.take().map(|_| run.wait_with_output().unwrap()).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ksm\n");
    assert_eq!(machine.ksm_settings(), before);
}

#[test]
fn signals_reach_the_program_and_its_death_is_passed_through() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    let before = machine.ksm_settings();
    // Ends by itself, so that a signal that does not arrive fails the test and does not hang it.
    let script = "trap 'echo usr1' USR1; echo ready; for i in $(seq 400); do sleep 0.05; done";
    let mut run = governed(machine.root(), &library, 100, script);
    let mut out = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(out.next().unwrap().unwrap(), "ready");
    kill(Pid(run.id()), "USR1");
    assert_eq!(out.next().unwrap().unwrap(), "usr1");
    kill(Pid(run.id()), "TERM");
    assert_eq!(run.wait().unwrap().signal(), Some(TERM));
    assert_eq!(machine.ksm_settings(), before);
    assert!(!machine.journal().exists());
}

#[test]
fn after_kill_9_the_next_start_restores_what_was_found() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let machine = Machine::new();
    let before = machine.ksm_settings();
    let mut run = governed(machine.root(), &library, 100, "read line");
    let child = child_of(&run);
    until("merging", || machine.ksm("run") == "1");
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(machine.ksm("run"), "1", "nobody was there to restore it");
    assert!(machine.journal().exists());

    let next = ran(pagemill().env("PAGEMILL_ROOT", machine.root()).args(["run", "--", "true"]));
    assert_eq!(next.code(), Some(0));
    assert!(next.err.contains("restored the settings of ksmd"), "{next:?}");
    assert_eq!(machine.ksm_settings(), before);
    assert!(!machine.journal().exists());
    // The program outlives its parent until its input ends; it may have ended already.
    let _ = Command::new("kill").arg(child.to_string()).stderr(Stdio::null()).status();
}

/// Borrowers were told apart by process id and start time, which another namespace sees otherwise: a living one was
/// taken for dead, and the settings were restored under it.
#[test]
fn of_three_borrowers_in_and_out_of_namespaces_the_last_restores_in_whichever_order_they_end() {
    const NAMESPACES: [&str; 5] = ["--pid", "--fork", "--mount-proc", "--time", "--boottime=86400"];
    let tried = Command::new("unshare").args(NAMESPACES).arg("true").output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return skip("only root, with unshare(1), makes namespaces").unwrap_or(());
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let within = |namespaces: &[&str]| {
        let plain = pagemill();
        if namespaces.is_empty() {
            return plain;
        }
        let mut command = Command::new("unshare");
        command.args(namespaces).arg(plain.get_program());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let machine = Machine::new();
        let before = machine.ksm_settings();
        let mut borrowers = [&NAMESPACES[..0], &NAMESPACES[..3], &NAMESPACES].map(|namespaces| {
            let script = "echo; read line; exit 0";
            let mut run = governed_by(within(namespaces), machine.root(), &library, 100, script);
            // It has borrowed by the time that its program runs.
            run.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            run
        });
        until("merging", || machine.ksm("run") == "1");
        for (ended, at) in order.into_iter().enumerate() {
            let holders = fs::read_to_string(machine.journal()).unwrap();
            assert_eq!(holders.matches("holder ").count(), 3 - ended, "{order:?}: {holders}");
            drop(borrowers[at].stdin.take());
            let mut said = String::new();
            borrowers[at].stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            assert!(borrowers[at].wait().unwrap().success(), "{order:?}, {at}: {said}");
            assert!(!said.contains("restored"), "{order:?}, {at}: {said}");
        }
        assert_eq!(machine.ksm_settings(), before, "{order:?}");
        assert!(!machine.journal().exists(), "{order:?}");
    }
}

#[test]
fn without_the_right_to_set_ksm_the_program_runs_all_the_same() {
    let machine = Machine::new();
    fs::write(machine.root().join("run"), "no directory").unwrap();
    let mut command = pagemill();
    command.env("PAGEMILL_ROOT", machine.root()).args(["run", "--ksm", "--"]);
    let run = ran(command.args(["sh", "-c", "echo $PAGEMILL_BACKEND; exit 5"]));
    assert_eq!((run.code(), run.out.as_str()), (Some(5), "auto\n"), "{run:?}");
    assert!(run.err.contains("--ksm has no effect"), "{run:?}");
}

/// On the real kernel: offers 2,000 identical pages and waits for ksmd to merge them.
#[test]
fn the_real_ksmd_merges_what_a_program_offers_and_rests_again() {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = fake_library(&directory) else { return };
    let read =
        |name: &str| fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).unwrap_or_default();
    let settings = || ["run", "pages_to_scan", "sleep_millisecs", "smart_scan"].map(read);
    let _turn = ksm_turn();
    let before = settings();
    if before[0] != "0\n"
        || fs::OpenOptions::new().write(true).open("/sys/kernel/mm/ksm/run").is_err()
    {
        skip::<()>("ksmd runs already, is absent, or may not be set by this user");
        return;
    }
    let mut run = pagemill()
        .env("PAGEMILL_HEAP_LIB", &library)
        .env("FAKE_PENDING", "2000")
        .env("FAKE_MERGE", "1")
        .args(["run", "--ksm", "--", "sh", "-c", "read line; exit 0"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let merged = format!("/proc/{}/ksm_merging_pages", child_of(&run));
    until("merging", || {
        fs::read_to_string(&merged).is_ok_and(|text| text.trim().parse::<u64>().unwrap() >= 1000)
    });
    until("resting", || settings() == before);
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(0));
}

/// A recorder that ran into a limit of its own was aborted, or blamed the program.
#[test]
fn a_limit_that_the_recorder_would_run_into_is_said_before_the_program_starts() {
    let room = tempfile::tempdir().unwrap();
    let limited = |limit: &str, arguments: &str| {
        let plain = pagemill();
        let mut run = Command::new("sh");
        run.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let script = format!("ulimit {limit}; exec \"$0\" {arguments}");
        ran(run.args(["-c", &script]).arg(plain.get_program()).current_dir(room.path()))
    };
    for (limit, word) in [("-n 12", "ulimit -n 32"), ("-v 150000", "ulimit -v unlimited")] {
        for wrapper in ["record --with accesses", "record --with faults", "run --huge cbmm+"] {
            let run = limited(limit, &format!("{wrapper} -- touch started"));
            assert_eq!(run.code(), Some(125), "{limit}, {wrapper}: {run:?}");
            assert!(run.err.contains(word), "{limit}, {wrapper}: {run:?}");
        }
    }
    assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0, "nothing was started or made");
}

/// What users were told misled them: a bare number of seconds was refused and no time at all taken, only a number was a
/// process, and answers named half of what was possible.
#[test]
fn answers_to_what_users_type_say_what_to_do() {
    for (arguments, code, words) in [
        (&["record", "-o", "x"][..], 2, &["-- CMD", "-p PID", "--import FILE"][..]),
        (&["record", "--interval", "0ms", "--", "true"], 125, &["more than no time"]),
        (&["record", "--for", "soon", "--", "true"], 125, &["1m30s"]),
        (&["record", "--with", "heap", "--every", "--", "true"], 125, &["--with accesses"]),
        (&["heap", "no-such-program"], 2, &["no process is called", "ps -eo"]),
        (&["plan", "-p", "7"], 2, &["pagemill record --with faults", "-p 7"]),
        (
            &["reproduce", "nosuch"],
            2,
            &["moca", "overhead", "huge-pages", "huge-slices", "colloid", "mesh"],
        ),
        (
            &["simulate", "gups", "--policy", "tpp", "--unloaded", "1"],
            2,
            &["--unloaded 1", "valid: 32"],
        ),
    ] {
        let run = ran(pagemill().args(arguments));
        assert_eq!(run.code(), Some(code), "{arguments:?}: {run:?}");
        for word in words {
            assert!(run.err.contains(word), "{arguments:?}: {word}: {run:?}");
        }
    }
}

#[test]
fn a_dry_run_of_induce_is_json_where_that_is_asked_for() {
    let run = ran(pagemill().args(["frag", "induce", "--dry-run", "--target", "0.5", "--json"]));
    let answer: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(answer["target"], 0.5, "{answer}");
    assert!(answer["huge_pages_to_break"].is_u64() && answer["held_bytes"].is_u64(), "{answer}");
}

#[test]
fn a_program_that_ends_at_once_is_said_to_have_ended() {
    let room = tempfile::tempdir().unwrap();
    let mut record = pagemill();
    record.args(["record", "--with", "heap", "--interval", "60s", "-o", "rec", "--", "true"]);
    let run = ran(record.current_dir(room.path()));
    assert_eq!(run.code(), Some(0), "{run:?}");
    assert!(!run.err.contains("has no pagemill heap"), "{run:?}");
}

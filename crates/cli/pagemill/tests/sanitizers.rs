//! Programs with sanitizers, and others that start a process which is to trace them, under `record --with accesses`.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{compiled, pagemill, ran, skip};
use tempfile::TempDir;

fn recorder(recording: &Path, command: &[&str]) -> Command {
    let mut recorder = pagemill();
    recorder.args(["record", "--with", "accesses", "--access-interval", "20ms", "-f", "-o"]);
    recorder.arg(recording).arg("--").args(command);
    recorder
}

/// Whether programs can be traced here at all; if not, it is said.
fn can_trace(room: &TempDir) -> bool {
    let run = ran(&mut recorder(&room.path().join("try"), &["/bin/true"]));
    if run.code() != Some(0) {
        let _: Option<()> = skip(&run.err);
    }
    run.code() == Some(0)
}

fn untraced(recording: &Path) -> String {
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    let report: Value =
        serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
    report["meta"]["accesses"]["untraced"].to_string()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
static int value;
static void *work(void *unused) { value++; return 0; }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_join(thread, 0);
    printf("%d\n", value);
    return 3;
}
"#;

#[test]
fn a_program_of_thread_sanitizer_is_refused_or_left_alone() {
    let room = tempfile::tempdir().unwrap();
    for flags in [&["-fsanitize=thread"][..], &["-fsanitize=thread", "-static-libtsan"]] {
        let Some(program) = compiled(&room, "threads", THREADS, flags) else { continue };
        if ran(&mut Command::new(&program)).code() != Some(3) || !can_trace(&room) {
            let _: Option<()> = skip("it does not run here unrecorded either");
            continue;
        }
        let (recording, program) = (room.path().join("rec"), text(&program));
        let run = ran(&mut recorder(&recording, &[program]));
        assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
        assert!(run.err.contains("ThreadSanitizer"), "{run:?}");
        let script = format!("{program}; {program}; exit $?");
        let run = ran(&mut recorder(&recording, &["sh", "-c", &script]));
        assert_eq!((run.code(), run.out.as_str()), (Some(3), "1\n1\n"), "{run:?}");
        assert!(untraced(&recording).contains("ThreadSanitizer"), "{}", untraced(&recording));
    }
}

/// Its options are in `/proc/self/environ`, which the kernel shows of anonymous memory only; and its library wants to
/// be the first.
#[test]
fn a_program_of_address_sanitizer_runs_with_its_options() {
    const LEAKS: &str = r#"
#include <stdlib.h>
int main(void) { volatile char *leak = malloc(5000); leak[4000] = 1; leak = 0; return 3; }
"#;
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "leaks", LEAKS, &["-fsanitize=address"]) else { return };
    if !can_trace(&room) {
        return;
    }
    let (recording, program) = (room.path().join("rec"), text(&program));
    let options = "ASAN_OPTIONS=detect_leaks=0";
    for words in [&["env", options, program][..], &["env", options, "sh", "-c", program]] {
        for with in ["accesses", "sites"] {
            let mut command = pagemill();
            command.args(["record", "-f", "--with", with, "-o", text(&recording), "--"]);
            let run = ran(command.args(words));
            assert_eq!(run.code(), Some(3), "{with}: {words:?}: {run:?}");
        }
    }
    let mut direct = recorder(&recording, &[program]);
    let run = ran(direct.env("ASAN_OPTIONS", "detect_leaks=0"));
    assert_eq!(run.code(), Some(3), "{run:?}");
}

/// At its end, and at those of its forked children, a process of its library stops its threads by ptrace and looks for
/// blocks that nothing points to. It could not, and below a shell its memory was mapped in the shell: it hung.
#[test]
fn leaks_are_looked_for_as_without_a_tracer() {
    const LEAKS: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *block) { free(block); return malloc(40); }
int main(int count, char **words) {
    int ended, sum = 0;
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) {
            usleep(i * 100000);
            volatile char *block = malloc(77);
            block[0] = 1;
            if (i == 1) { block = 0; return 9; }
            free((void *)block);
            return 2;
        }
        wait(&ended);
        sum = 30 * sum + WEXITSTATUS(ended);
    }
    pthread_t thread;
    void *block;
    pthread_create(&thread, 0, work, malloc(30));
    pthread_join(thread, &block);
    if (count == 1) free(block);
    return sum == 2 * 900 + 23 * 30 + 2 ? 3 : 4;
}
"#;
    let room = tempfile::tempdir().unwrap();
    let flags = ["-O0", "-pthread", "-fsanitize=leak"];
    let Some(program) = compiled(&room, "leaks", LEAKS, &flags) else { return };
    if ran(&mut Command::new(&program)).code() != Some(3) || !can_trace(&room) {
        let _: Option<()> = skip("it does not look for leaks here unrecorded either");
        return;
    }
    let (recording, program) = (room.path().join("rec"), text(&program));
    let script =
        format!("{program}; first=$?; sort </dev/null; {program} leak; exit $((first * 30 + $?))");
    let ways: [(&[&str], i32); 3] =
        [(&[program], 3), (&[program, "leak"], 23), (&["sh", "-c", &script], 3 * 30 + 23)];
    for (words, code) in ways {
        let run = ran(&mut recorder(&recording, words));
        assert_eq!(run.code(), Some(code), "{words:?}: {run:?}");
        assert!(run.err.contains("detected memory leaks"), "{words:?}: {run:?}");
        assert!(untraced(&recording).contains("leak checker"), "{}", untraced(&recording));
    }
}

/// Crash reporters read a program's memory by a process that they start so.
#[test]
fn a_program_may_start_a_process_that_traces_it() {
    const TRACED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static long value = 12345;
static int reads(void *own) {
    pid_t parent = getppid();
    int stopped;
    if (own) value = 1;
    if (ptrace(PTRACE_ATTACH, parent, 0, 0)) return 1;
    waitpid(parent, &stopped, __WALL);
    long read = ptrace(PTRACE_PEEKDATA, parent, &value, 0);
    ptrace(PTRACE_DETACH, parent, 0, 0);
    char *memory = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 1 << 20);
    munmap(memory, 1 << 20);
    return read == 12345 ? 0 : 2;
}
int main(void) {
    int wrong = 0, ended;
    for (int i = 0; i < 4; i++) {
        char *stack = malloc(65536);
        int flags = CLONE_FS | CLONE_UNTRACED | (i % 2 ? CLONE_VM : 0);
        pid_t child = clone(reads, stack + 65536, flags, i % 2 ? 0 : &value);
        while (waitpid(child, &ended, __WALL) < 0 && errno == EINTR) {}
        wrong += ended != 0;
        free(stack);
    }
    printf("%d %ld\n", wrong, value);
    return system("exit 6") >> 8;
}
"#;
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "traced", TRACED, &["-O1"]) else { return };
    if ran(&mut Command::new(&program)).out != "0 12345\n" || !can_trace(&room) {
        let _: Option<()> = skip("it cannot do so here unrecorded either");
        return;
    }
    let (recording, program) = (room.path().join("rec"), text(&program));
    let script = format!("{program}; {program}; exit $?");
    let ways: [(&[&str], &str); 2] =
        [(&[program], "0 12345\n"), (&["sh", "-c", &script], "0 12345\n0 12345\n")];
    for (words, out) in ways {
        let run = ran(&mut recorder(&recording, words));
        assert_eq!((run.code(), run.out.as_str()), (Some(6), out), "{words:?}: {run:?}");
        assert!(untraced(&recording).contains("crash reporter"), "{}", untraced(&recording));
    }
}

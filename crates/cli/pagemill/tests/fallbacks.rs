//! `record --with accesses` on each fallback, as root and as a user: the pages are the same.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagemill_kernel::Linux;
use pagemill_kernel::process::Capability;
use pagemill_model::Pid;
use serde_json::Value;
use support::{Ran, compiled, installed, pagemill, ran, sites};

const SOURCES: [&str; 4] = ["bpf", "perf-tracepoint", "perf-software", "scan"];

/// In each round, writes every page of one block, reads every page of another, and reads and then writes
/// every third page of a third one; one page of it is written between two calls that change mappings.
const USES: &str = r#"
#define _GNU_SOURCE
#include <sys/mman.h>
static char *block(void) { return mmap(0, 1200 * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
int main(void) {
    char *written = block(), *read = block(), *both = block();
    volatile char sum = 0;
    for (long round = 0; round < 15000; round++) {
        for (long i = 0; i < 1200; i++) written[i * 4096] = 1;
        for (long i = 0; i < 1200; i++) sum += read[i * 4096];
        for (long i = 0; i < 1200; i += 3) both[i * 4096] = both[i * 4096] + 1;
        if (round % 1000 == 0) {
            char *short_lived = mmap(0, 3 * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            short_lived[4096] = 1;
            sum += short_lived[8192];
            munmap(short_lived, 3 * 4096);
        }
    }
    return 3;
}
"#;

/// Pages and written pages of the three blocks, the back end, and how many intervals there were.
fn recorded(run: &Ran, recording: &Path) -> Option<(u64, u64, String, u64)> {
    if run.code() == Some(125) {
        println!("skipped: {}", run.err);
        return None;
    }
    assert_eq!(run.code(), Some(3), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    let accesses = &report["accesses"];
    let mappings = accesses["mappings"].as_array().unwrap();
    let blocks = mappings.iter().find(|one| one["name"] == "anonymous, 2 to 64 MiB").unwrap();
    Some((
        blocks["counts"]["pages"].as_u64().unwrap(),
        blocks["counts"]["written_pages"].as_u64().unwrap(),
        report["meta"]["accesses"]["back_end"].as_str().unwrap().to_owned(),
        accesses["intervals"].as_u64().unwrap(),
    ))
}

#[test]
fn touched_and_written_pages_are_the_same_from_each_fault_source() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "uses", USES, &["-O1"]) else { return };
    for source in SOURCES {
        let recording = directory.path().join(source);
        let run = ran(pagemill()
            .args(["record", "--with", "accesses", "--access-interval", "20ms"])
            .args(["--access-events", source, "-o"])
            .arg(&recording)
            .arg("--")
            .arg(&program));
        let Some((pages, written, back_end, intervals)) = recorded(&run, &recording) else {
            return;
        };
        assert_eq!((pages, written), (1200 + 1200 + 400, 1200 + 400), "{back_end}: {run:?}");
        assert!(
            SOURCES.iter().position(|one| *one == back_end)
                >= SOURCES.iter().position(|one| *one == source)
        );
        assert!(intervals > 2, "{back_end}: {intervals} intervals");
    }
}

/// A command that runs pagemill as the user nobody, with copies of what it needs where that user reads.
fn as_nobody(room: &Path) -> Option<Command> {
    let me = Linux::live().status(Pid::own()).unwrap();
    if !me.can(Capability::SysAdmin) || Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: only root, with setpriv(1), becomes another user");
        return None;
    }
    fs::set_permissions(room, fs::Permissions::from_mode(0o777)).unwrap();
    let copied = |from: &Path| -> PathBuf {
        let to = room.join(from.file_name().unwrap());
        installed(from, &to, "755");
        to
    };
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(copied(Path::new(env!("CARGO_BIN_EXE_pagemill"))));
    command.env("PAGEMILL_SITES_LIB", copied(&sites())).env("HOME", room).current_dir(room);
    Some(command)
}

#[test]
fn a_user_without_privileges_gets_the_same_pages() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "uses", USES, &["-O1"]) else { return };
    let Some(mut nobody) = as_nobody(directory.path()) else { return };
    let recording = directory.path().join("rec");
    let run = ran(nobody
        .args(["record", "--with", "accesses", "--access-interval", "20ms", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    let Some((pages, written, back_end, _)) = recorded(&run, &recording) else { return };
    assert_eq!((pages, written), (1200 + 1200 + 400, 1200 + 400), "{back_end}: {run:?}");
    assert_ne!(back_end, "bpf");
}

/// As a user's child, a set-user-ID program would not gain what it is for.
#[test]
fn a_program_that_gains_privileges_is_refused_to_a_user_before_it_starts() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut nobody) = as_nobody(directory.path()) else { return };
    let program = directory.path().join("privileged");
    installed(Path::new("/bin/true"), &program, "4755");
    let run = ran(nobody.args(["record", "--with", "accesses", "-o", "rec", "--"]).arg(&program));
    if run.code() == Some(0) {
        return println!("skipped: programs gain nothing in {}", directory.path().display());
    }
    assert_eq!(run.code(), Some(125), "{run:?}");
    assert!(run.err.contains("set-user-ID"), "{}", run.err);
    assert!(!directory.path().join("rec").exists());
}

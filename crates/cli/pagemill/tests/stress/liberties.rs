//! What programs do that a library with a thread and descriptors of its own could break.

use crate::harness::{REMAP, Run, program, root, shared, skip};

fn run(kind: &str, prints: bool) {
    let _machine = shared();
    let Some(liberties) = program("liberties.c") else { return };
    let plain = Run::new(&liberties).args([kind]).outcome();
    if !plain.status.success() {
        return skip(kind, &format!("it fails here without the library: {}", plain.stderr.trim()));
    }
    let outcome = Run::new(liberties).args([kind]).on(REMAP).outcome().succeeded();
    if prints {
        assert_eq!(outcome.stdout, "ok\n", "{outcome}");
    }
}

#[test]
fn a_seccomp_filter_for_all_threads() {
    run("seccomp-all-threads", true);
}

#[test]
fn a_user_namespace() {
    run("user-namespace", true);
}

#[test]
fn every_descriptor_is_closed_and_used_again() {
    run("close-everything", true);
}

#[test]
fn there_is_no_child_that_the_program_did_not_make() {
    run("children", true);
}

#[test]
fn another_user_and_no_way_back() {
    if root() {
        run("other-user", true);
    } else {
        skip("setuid", "not root");
    }
}

#[test]
fn exec_replaces_everything() {
    run("exec", true);
}

#[test]
fn the_main_thread_ends_first() {
    run("main-thread-ends", true);
}

#[test]
fn all_memory_is_locked() {
    run("lock-all", true);
}

#[test]
fn code_in_aligned_objects_stays_executable() {
    run("protect", true);
}

#[test]
fn no_file_may_grow() {
    run("no-file-size", false);
}

#[test]
fn nobody_reads_what_is_said() {
    run("nobody-reads", false);
}

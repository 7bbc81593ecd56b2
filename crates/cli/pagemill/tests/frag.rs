//! `pagemill frag`, from the outside. What fragments memory for real goes a hundredth of the way, so that
//! whoever shares the machine does not notice.

#[cfg(test)]
mod support;

#[cfg(test)]
mod machine {
    //! The machine that is fragmented, and the snapshot of one.

    use std::ffi::OsString;
    use std::fs::{self, File};
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::support::{Ran, installed, pagemill, pagemill_with, ran, skip};
    use serde_json::Value;
    use tempfile::TempDir;

    pub const SNAPSHOT: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../base/kernel/tests/fixtures/debian-12");

    pub const PROACTIVENESS: &str = "proc/sys/vm/compaction_proactiveness";
    pub const FRACTION: &str = "proc/sys/vm/percpu_pagelist_high_fraction";
    pub const DEFRAG: &str = "sys/kernel/mm/transparent_hugepage/defrag";
    pub const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";

    /// A machine with the real free memory and settings of its own: it can be fragmented a little without root.
    pub struct Machine {
        pub root: TempDir,
    }

    impl Machine {
        pub fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("proc")).unwrap();
            for name in ["buddyinfo", "zoneinfo", "vmstat"] {
                symlink(format!("/proc/{name}"), root.path().join("proc").join(name)).unwrap();
            }
            let machine = Self { root };
            for (path, text) in [
                (PROACTIVENESS, "20\n"),
                (FRACTION, "0\n"),
                ("proc/sys/vm/stat_refresh", ""),
                (DEFRAG, "always defer defer+madvise [madvise] never\n"),
                (ENABLED, "always [madvise] never\n"),
                ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n"),
            ] {
                let path = machine.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            machine
        }

        pub fn path(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        pub fn value(&self, path: &str) -> String {
            fs::read_to_string(self.path(path)).unwrap().trim().to_owned()
        }

        pub fn settings(&self) -> [String; 3] {
            [PROACTIVENESS, FRACTION, DEFRAG].map(|path| self.value(path))
        }

        pub fn frag(&self, arguments: &[&str]) -> Command {
            let mut command = pagemill();
            command.arg("frag").args(arguments).env("PAGEMILL_ROOT", self.root.path());
            command
        }

        /// Starts holding memory a little more fragmented than it is, and waits until it does; `None`,
        /// and why, where that cannot be had.
        pub fn hold(&self) -> Option<Child> {
            for _ in 0..5 {
                let target = near_target()?;
                let mut child = self
                    .frag(&["induce", "--target", &target, "--no-compact", "--hold"])
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
                if lines.any(|line| line.unwrap().contains("holding")) {
                    return Some(child);
                }
                // Others moved the score meanwhile: it has given up and given all back.
                assert_eq!(child.wait().unwrap().code(), Some(1));
                let line = "always [madvise] never\n";
                fs::write(self.path(ENABLED), line).unwrap();
            }
            skip("others move the score faster than it can be reached")
        }
    }

    /// One test at a time moves the score of the machine that all share.
    pub fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A score that a few huge pages reach; `None`, and why, where memory cannot be fragmented.
    pub fn near_target() -> Option<String> {
        let enabled = fs::read_to_string(format!("/{ENABLED}")).unwrap_or_default();
        if !enabled.contains("[always]") && !enabled.contains("[madvise]") {
            return skip(&format!("no program gets huge pages here: {enabled:?}"));
        }
        let look = json(&pagemill_with(&["frag", "show", "--json"]));
        let score = look["together"]["unusable"][9].as_f64().unwrap();
        let blocks = look["together"]["free_blocks"].as_array().unwrap();
        let huge = blocks[9].as_u64().unwrap() + 2 * blocks[10].as_u64().unwrap();
        if score > 0.9 || huge < 100 {
            return skip(&format!(
                "free memory is too fragmented already: {score}, {huge} huge pages"
            ));
        }
        Some(format!("{:.3}", score + 0.02))
    }

    pub fn json(ran: &Ran) -> Value {
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// The words that run pagemill as a user without privileges, if there is a way to.
    pub fn as_a_user(room: &Path) -> Option<Vec<OsString>> {
        let binary = Path::new(env!("CARGO_BIN_EXE_pagemill"));
        if File::options().write(true).open("/proc/sys/vm/compact_memory").is_err() {
            return Some(vec![binary.into()]);
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            return skip("only with setpriv(1) does root become another user");
        }
        // Where it was built may be closed to that user.
        fs::set_permissions(room, fs::Permissions::from_mode(0o777)).unwrap();
        let copy = room.join("pagemill");
        installed(binary, &copy, "755");
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Some(user.map(OsString::from).into_iter().chain([copy.into()]).collect())
    }

    /// `show` on the snapshot of a real machine.
    pub fn on_snapshot(arguments: &[&str]) -> Ran {
        ran(pagemill().arg("frag").args(arguments).env("PAGEMILL_ROOT", SNAPSHOT))
    }
}

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use machine::{
    DEFRAG, FRACTION, Machine, PROACTIVENESS, SNAPSHOT, as_a_user, json, near_target, on_snapshot,
    turn,
};
use support::{pagemill, pagemill_with, ran, skip, until};

#[test]
fn show_prints_what_the_kernel_of_the_snapshot_printed() {
    let shown = on_snapshot(&["show"]);
    assert_eq!(shown.code(), Some(0), "{shown:?}");
    let file = Path::new(SNAPSHOT).join("sys/kernel/debug/extfrag/unusable_index");
    for line in fs::read_to_string(file).unwrap().lines() {
        let scores: Vec<&str> = line.split_whitespace().skip(4).collect();
        let row = |row: &str| row.split_whitespace().skip(3).eq(scores.iter().copied());
        assert!(shown.out.lines().any(row), "{line}\n{}", shown.out);
    }
    assert!(shown.out.contains("lists of the processors"), "{}", shown.out);
    assert!(shown.out.contains("Reclaimable"), "{}", shown.out);
}

#[test]
fn every_score_of_the_snapshot_is_the_kernels_in_both_files() {
    let checked = on_snapshot(&["show", "--check", "66", "--json"]);
    assert_eq!(checked.code(), Some(0), "{checked:?}");
    let counts = json(&checked);
    assert_eq!((counts["equal"].as_u64(), counts["unequal"].as_u64()), (Some(66), Some(0)));
}

#[test]
fn a_score_that_is_not_the_kernels_is_a_finding() {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("proc/buddyinfo", "Node 0, zone Normal 1 0 1\n"),
        ("sys/kernel/debug/extfrag/unusable_index", "Node 0, zone Normal 0.000 0.200 0.300\n"),
        ("sys/kernel/debug/extfrag/extfrag_index", "Node 0, zone Normal -1.000 -1.000 -1.000\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut check = pagemill();
    check.args(["frag", "show", "--check", "6"]).env("PAGEMILL_ROOT", root.path());
    let checked = ran(&mut check);
    assert_eq!(checked.code(), Some(1), "{checked:?}");
    assert!(checked.err.contains("order 2: 0.200, the kernel says 0.300"), "{}", checked.err);
}

#[test]
fn an_earlier_look_and_this_one_make_three_tables() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("before.json");
    fs::write(&file, on_snapshot(&["show", "--json"]).out).unwrap();
    let shown = on_snapshot(&["show", "--against", file.to_str().unwrap()]);
    let heads = ["before", "after", "change"];
    assert!(heads.iter().all(|head| shown.out.lines().any(|line| line == *head)), "{}", shown.out);

    fs::write(&file, "{}").unwrap();
    let refused = on_snapshot(&["show", "--against", file.to_str().unwrap()]);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.err.contains("frag show --json"), "{}", refused.err);
}

#[test]
fn targets_and_orders_that_make_no_sense_are_refused_with_what_was_expected() {
    for target in ["1.2", "-0.1", "NaN", "much"] {
        let refused = pagemill_with(&["frag", "induce", &format!("--target={target}")]);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.err.contains("from 0 (whole) to 1"), "{}", refused.err);
    }
    let refused = pagemill_with(&["frag", "compact", "--target", "-1"]);
    assert!(refused.err.contains("from 0 (whole) to 1"), "{}", refused.err);
    for arguments in [["show", "--order", "15"], ["compact", "--order", "x"]] {
        let refused = on_snapshot(&arguments);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.err.contains("order"), "{}", refused.err);
    }
    assert_eq!(pagemill_with(&["frag", "induce"]).code(), Some(2));
    assert_eq!(pagemill_with(&["frag", "show", "--check", "0"]).code(), Some(2));
}

#[test]
fn a_user_is_told_that_it_takes_root() {
    let room = tempfile::tempdir().unwrap();
    let Some(user) = as_a_user(room.path()) else { return };
    for arguments in [
        &["frag", "induce", "--target", "1"][..],
        &["frag", "compact"],
        &["reproduce", "fragmentation", "--quick", "-o", "results"],
    ] {
        let mut command = Command::new(&user[0]);
        let refused = ran(command.args(&user[1..]).args(arguments).current_dir(room.path()));
        assert_eq!(refused.code(), Some(4), "{arguments:?}: {refused:?}");
        assert!(refused.err.contains("root"), "{arguments:?}: {}", refused.err);
    }
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would_take() {
    let machine = Machine::new();
    let before = machine.settings();
    let dry = ran(&mut machine.frag(&["induce", "--target", "0.999", "--dry-run"]));
    assert!(dry.out.contains("free huge pages"), "{dry:?}");
    let dry = ran(&mut machine.frag(&["compact", "--dry-run"]));
    assert_eq!(dry.code(), Some(0), "{dry:?}");
    assert!(dry.out.contains("huge pages would be reserved for a moment"), "{dry:?}");
    assert!(dry.out.contains("of clean files"), "{dry:?}");
    let kept = ["compact", "--dry-run", "--keep-caches", "--no-sweep", "--json"];
    let kept: serde_json::Value = serde_json::from_str(&ran(&mut machine.frag(&kept)).out).unwrap();
    assert!(kept["score"].as_f64().is_some_and(|score| (0.0..=1.0).contains(&score)), "{kept}");
    assert!(kept["sweep_huge_pages"].is_null() && kept["clean_file_pages"].is_null(), "{kept}");
    assert_eq!(machine.settings(), before);
    assert!(!machine.path("run").exists());
}

#[test]
fn the_target_is_reached_and_the_settings_are_as_found() {
    let _turn = turn();
    let Some(target) = near_target() else { return };
    let machine = Machine::new();
    let before = machine.settings();
    let induced =
        ran(&mut machine.frag(&["induce", "--target", &target, "--no-compact", "--json"]));
    let result = json(&induced);
    // Others use memory, too; only a score that was reached is to be the one asked for.
    if induced.code() == Some(0) {
        let (score, target) = (result["score"].as_f64().unwrap(), target.parse::<f64>().unwrap());
        assert!((score - target).abs() <= 0.01, "{score} {target}");
    } else {
        assert_eq!(induced.code(), Some(1), "{induced:?}");
        assert!(["Above", "NoHugePage", "Late"].contains(&result["end"].as_str().unwrap()));
    }
    assert!(result["peak_rss_bytes"].as_u64().unwrap() < 256 << 20);
    assert_eq!(machine.value(PROACTIVENESS), before[0]);
    assert_eq!(machine.value(FRACTION), before[1]);
    assert_eq!(machine.value(DEFRAG), "madvise");
}

#[test]
fn a_command_runs_meanwhile_and_its_exit_status_is_passed_on() {
    let _turn = turn();
    let Some(target) = near_target() else { return };
    let machine = Machine::new();
    let script = format!(
        "echo $(cat {}); cat /proc/self/oom_score_adj; exit 7",
        machine.path(PROACTIVENESS).display()
    );
    let wrapped = ran(&mut machine.frag(&[
        "induce",
        "--target",
        &target,
        "--no-compact",
        "--",
        "sh",
        "-c",
        &script,
    ]));
    if wrapped.code() == Some(125) {
        skip::<()>(&format!("others moved the score: {}", wrapped.err));
        return;
    }
    assert_eq!(wrapped.code(), Some(7), "{wrapped:?}");
    let mut lines = wrapped.out.lines();
    assert_eq!(lines.next(), Some("0"), "proactive compaction rests");
    let mine = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(lines.next(), Some(mine.trim()), "the command is not the first to go");
    assert_eq!(machine.value(PROACTIVENESS), "20");

    // A file keeps the word that was put back; a kernel answers with its line of words.
    let machine = Machine::new();
    let absent =
        ran(&mut machine.frag(&["induce", "--target", &target, "--no-compact", "--", "/no/such"]));
    assert!([Some(127), Some(125)].contains(&absent.code()), "{absent:?}");
}

#[test]
fn a_signal_gives_memory_and_settings_back() {
    let _turn = turn();
    let machine = Machine::new();
    let Some(mut child) = machine.hold() else { return };
    assert_eq!(machine.value(PROACTIVENESS), "0");
    assert!(machine.path("run/pagemill/compaction.settings").exists());
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(machine.value(PROACTIVENESS), "20");
    assert!(!machine.path("run/pagemill/compaction.settings").exists());
}

#[test]
fn what_a_killed_one_left_changed_the_next_start_restores() {
    let _turn = turn();
    let machine = Machine::new();
    let Some(mut child) = machine.hold() else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(machine.value(PROACTIVENESS), "0");

    let doctor =
        ran(pagemill().args(["doctor", "--json"]).env("PAGEMILL_ROOT", machine.root.path()));
    let rows = json(&doctor);
    let row = rows["rows"].as_array().unwrap().iter().find(|row| row["name"] == "fragmentation");
    assert_eq!(row.unwrap()["status"], "degraded", "{row:?}");

    until("the journal's holder to be gone", || {
        !Path::new(&format!("/proc/{}", child.id())).exists()
    });
    let next = ran(&mut machine.frag(&["show"]));
    assert_eq!(next.code(), Some(0), "{next:?}");
    assert!(
        next.err.contains("restored /proc/sys/vm/compaction_proactiveness to 20"),
        "{}",
        next.err
    );
    assert_eq!(machine.value(PROACTIVENESS), "20");
}

/// Starts to compact a machine on which that comes to a halt with a setting changed; ends it by a signal.
fn end_while_compacting(machine: &Machine, signal: &str) -> std::process::ExitStatus {
    let refresh = machine.path("proc/sys/vm/stat_refresh");
    fs::remove_file(&refresh).expect("the file is the test's own");
    let made = Command::new("mkfifo").arg(&refresh).status().expect("mkfifo is a core utility");
    assert!(made.success());
    let mut compact = machine.frag(&["compact", "--no-sweep", "--target", "0"]);
    let mut child = compact.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    until("the loan", || machine.value(FRACTION) != "0");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().expect("kill is a core utility");
    assert!(sent.success());
    // It reads the pipe a few times; opened both ways, a pipe waits for nobody.
    let mut ended = None;
    until("its end", || {
        let pipe = fs::File::options().read(true).write(true).open(&refresh);
        ended = child.try_wait().expect("it is ours");
        drop(pipe);
        ended.is_some()
    });
    ended.expect("it was waited for")
}

#[test]
fn compacting_leaves_the_settings_as_found_also_when_a_signal_ends_it() {
    let machine = Machine::new();
    let before = machine.settings();
    // Whether all of it works depends on the machine; what it borrows comes back in any case.
    let compacted = ran(&mut machine.frag(&["compact", "--no-sweep", "--target", "0"]));
    assert!(compacted.code().is_some(), "{compacted:?}");
    assert_eq!(machine.settings(), before, "{compacted:?}");
    let ended = end_while_compacting(&machine, "-TERM");
    assert_eq!(ended.signal(), Some(15), "{ended:?}");
    assert_eq!(machine.settings(), before);
}

#[test]
fn what_a_killed_compaction_left_changed_the_next_start_restores() {
    let machine = Machine::new();
    let before = machine.settings();
    let ended = end_while_compacting(&machine, "-KILL");
    assert_eq!(ended.signal(), Some(9), "{ended:?}");
    assert_ne!(machine.settings(), before, "nobody could restore it yet");
    let next = ran(&mut machine.frag(&["show"]));
    assert!(next.err.contains("restored"), "{next:?}");
    assert_eq!(machine.settings(), before);
}

#[test]
fn free_memory_is_recorded_beside_a_program_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (rec, page) = (directory.path().join("rec"), directory.path().join("page.html"));
    let path = rec.to_str().unwrap();
    let arguments = ["--interval", "20ms", "-o", path, "--", "sleep", "0.2"];
    let recorded = pagemill_with(&[&["record", "--with", "frag"][..], &arguments].concat());
    assert_eq!(recorded.code(), Some(0), "{recorded:?}");

    let report = json(&pagemill_with(&["report", path, "--json"]));
    assert!(report["frag"]["looks"].as_u64().unwrap() >= 2, "{report}");
    let shown = json(&pagemill_with(&["frag", "show", "--json"]));
    let zones = |value: &serde_json::Value| value.as_array().unwrap().len();
    assert_eq!(zones(&report["frag"]["last"]), zones(&shown["zones"]));
    let points = report["frag"]["timeline"].as_array().unwrap();
    assert!(points.iter().all(|point| (0.0..=1.0).contains(&point["unusable"].as_f64().unwrap())));

    let text = pagemill_with(&["report", path]);
    assert!(text.out.contains("large zones together"), "{text:?}");
    let html = pagemill_with(&["report", path, "--html", page.to_str().unwrap()]);
    assert_eq!(html.code(), Some(0), "{html:?}");
    assert!(fs::read_to_string(page).unwrap().contains("Free memory of the machine"));
}

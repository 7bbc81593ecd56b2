//! `pagemill heap` on running processes.

#[expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod stand_in;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use stand_in::{COMPACTED, FOOTPRINT, LIVE, Running, StandIn, pagemill, root_or_skip, run};

const CONFIG_1Y: u64 = 4;
const CONFIG_0N: u64 = 0;

/// Words apart by one space, so that a test does not depend on the width of columns.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_running_heap_is_shown_with_the_kernels_view() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    let sleeper = stand_in.sleeper();
    let (code, out, err) = run(pagemill().arg("heap").arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with(&format!(
        "sleep ({})   configuration 1y, back end remap, barrier write-protect\n",
        sleeper.pid()
    )));
    for line in [
        "footprint 64.0 MiB",
        "live 16.0 MiB",
        "fragmentation score 0.75",
        "Pss ",
        "Rss ",
        "un-merged pages ",
        "mappings held 4000 of 4000 allowed: the bound is reached, no more is merged (so that a fork,",
        "10-20 % 30 ########################################",
        "30 pauses, longest 400.0 us",
        "resting waits 41 s: last passes gained too little the last pass ended as the program worked again",
        "could be saved 3.0 MiB",
        "2 stalls, longest 300.0 us",
    ] {
        assert!(squeezed(&out).contains(line), "{line} in\n{out}");
    }
    assert!(!out.contains("degraded"), "{out}");
}

#[test]
fn the_number_of_a_wrapper_leads_to_the_program_under_it() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    // `record` stays as the parent, as `run --ksm` does.
    let mut wrapper = pagemill()
        .args(["record", "-o"])
        .arg(stand_in.room.path().join("rec"))
        .args(["--", "sleep", "600"])
        .env("PAGEMILL_HEAP_LIB", &stand_in.library)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (code, out, err) = run(pagemill().arg("heap").arg(wrapper.id().to_string()));
    let under =
        format!("process {} is pagemill itself; shown is the program under it", wrapper.id());
    let _ = std::process::Command::new("kill").arg(wrapper.id().to_string()).status();
    wrapper.wait().unwrap();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.starts_with(&under), "{err}");
    assert!(out.starts_with("sleep (") && out.contains("footprint"), "{out}");
}

#[test]
fn a_parent_without_a_heap_is_told_which_child_has_one() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    let sleeper = stand_in.sleeper();
    // This test's own process is the parent.
    let (code, _, err) = run(pagemill().arg("heap").arg(std::process::id().to_string()));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("one of its descendants has: pagemill heap "), "{err}");
    drop(sleeper);
}

#[test]
fn json_has_the_columns_of_a_recording() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    let sleeper = stand_in.sleeper();
    let (code, out, _) = run(pagemill().args(["heap", "--json"]).arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["comm"], "sleep");
    assert_eq!(json["sample"]["live_bytes"], LIVE);
    assert_eq!(json["sample"]["footprint_bytes"], FOOTPRINT);
    assert_eq!(json["sample"]["backend"], "remap");
    assert_eq!(json["fragmentation_score"], 0.75);
    assert_eq!(json["pauses"]["percentiles"][0]["below_ns"], 2048);
    assert_eq!(
        (&json["stalls"]["count"], &json["stalls"]["longest_ns"]),
        (&2.into(), &300_000.into())
    );
    assert_eq!(json["sample"]["longest_stall_ns"], 300_000);
    assert_eq!(json["resting"], "waits 41 s: last passes gained too little");
    assert_eq!(
        (&json["sample"]["waits_for"], &json["sample"]["stopped_by"]),
        (&"pause".into(), &"work".into())
    );
    assert!(json["sample"]["pss_bytes"].as_u64().unwrap() > 0);
    // Since 30 spans are at 15 % and 10 are full.
    assert!((json["mean_occupancy"].as_f64().unwrap() - 0.3625).abs() < 1e-9);
}

#[test]
fn degradations_are_told_in_words_with_the_fix() {
    let stand_in = StandIn::build(CONFIG_1Y, pagemill_heap::stats::degraded::NO_BARRIER);
    let sleeper = stand_in.sleeper();
    let (_, out, _) = run(pagemill().arg("heap").arg(sleeper.pid().to_string()));
    assert!(out.contains("degraded: no userfaultfd that also stops kernel writers"), "{out}");
    assert!(out.contains("setfacl"), "{out}");
}

#[test]
fn a_compaction_is_asked_for_and_waited_for() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    let sleeper = stand_in.sleeper();
    let (code, out, err) =
        run(pagemill().args(["heap", "--compact", "--json"]).arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("footprint 64.0 MiB -> 20.0 MiB"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["sample"]["footprint_bytes"], COMPACTED);
}

#[test]
fn a_heap_that_does_not_compact_says_so_instead_of_waiting() {
    let stand_in = StandIn::build(CONFIG_0N, 0);
    let sleeper = stand_in.sleeper();
    let (code, _, err) = run(pagemill().args(["heap", "--compact"]).arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(2));
    assert!(err.contains("does not compact: its configuration is 0n"), "{err}");
}

#[test]
fn a_heap_that_has_not_started_is_not_shown_as_an_empty_one() {
    let stand_in = StandIn::not_started();
    let sleeper = stand_in.sleeper();
    let (code, out, _) = run(pagemill().arg("heap").arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(0));
    assert!(out.starts_with(&format!("sleep ({})   the heap has not started\n", sleeper.pid())));
    assert!(!out.contains("\nfootprint") && !out.contains("\npasses"), "{out}");
    assert!(out.contains("the program has not allocated yet"), "{out}");
    let (code, _, err) = run(pagemill().args(["heap", "--compact"]).arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(2));
    assert!(err.contains("has not started: there is nothing to compact"), "{err}");
}

#[test]
fn watching_prints_a_frame_a_line_and_ends_with_the_process() {
    let stand_in = StandIn::build(CONFIG_1Y, 0);
    let sleeper = stand_in.sleeper();
    let mut watch = pagemill()
        .args(["heap", "--json", "--watch", "20ms"])
        .arg(sleeper.pid().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let frame = |line: String| serde_json::from_str::<serde_json::Value>(&line).unwrap();
    let first = frame(lines.next().unwrap().unwrap());
    let second = frame(lines.next().unwrap().unwrap());
    let time = |frame: &serde_json::Value| frame["sample"]["time_ns"].as_u64().unwrap();
    assert!(time(&second) >= time(&first) + 20_000_000);
    drop(sleeper);
    assert!(lines.all(|line| line.is_ok()));
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn a_process_that_is_gone_is_named_in_one_line() {
    let gone = Running::plain();
    let pid = gone.pid();
    drop(gone);
    let (code, out, err) = run(pagemill().arg("heap").arg(pid.to_string()));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err, format!("pagemill: cannot look at process {pid}: there is no such process\n"));
}

#[test]
fn a_process_without_the_heap_is_told_how_to_get_one() {
    let sleeper = Running::plain();
    let (code, _, err) = run(pagemill().arg("heap").arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(2));
    assert_eq!(err.lines().count(), 1);
    assert!(
        err.contains("(sleep) has no pagemill heap (start the program with: pagemill run"),
        "{err}"
    );
}

#[test]
fn a_thread_of_the_kernel_is_told_from_a_process_that_has_ended() {
    // Process 2 is the parent of the kernel's threads, except where another PID namespace hides them.
    let kernel = std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n");
    if !kernel {
        eprintln!("skipped: threads of the kernel are not visible here");
        return;
    }
    let (code, _, err) = run(pagemill().args(["heap", "2"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("process 2 (kthreadd) is a thread of the kernel"), "{err}");
}

#[test]
fn another_users_process_is_a_matter_of_permission() {
    if !root_or_skip("looking at root's process as another user") {
        return;
    }
    let sleeper = Running::plain();
    let room = tempfile::tempdir().unwrap();
    let binary = stand_in::for_everyone(env!("CARGO_BIN_EXE_pagemill").as_ref(), room.path());
    let mut nobody = std::process::Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    let (code, _, err) = run(nobody.arg("heap").arg(sleeper.pid().to_string()));
    assert_eq!(code, Some(4), "{err}");
    assert_eq!(err.lines().count(), 1);
    assert!(err.contains("permission denied (run as root or as the user"), "{err}");
}

#[test]
fn nonsense_is_refused() {
    assert_eq!(run(pagemill().args(["heap", "seven"])).0, Some(2));
    let (code, _, err) = run(pagemill().args(["heap", "1", "--watch", "100"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("expected a time such as 250us, 100ms"), "{err}");
}

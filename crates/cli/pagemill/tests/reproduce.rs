//! `pagemill reproduce` and `pagemill workload` as a user meets them.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn pagemill(arguments: &[&str], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(arguments)
        .current_dir(directory)
        .env_remove("MESH_LIB")
        .output()
        .expect("the binary was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this Debian library is installed; says so if not.
fn installed(file: &str) -> bool {
    let directories = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let found = directories.iter().any(|directory| Path::new(directory).join(file).is_file());
    if !found {
        eprintln!("skipped: {file} is not installed");
    }
    found
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

#[test]
fn list_names_every_experiment_and_arm() {
    let directory = tempfile::tempdir().unwrap();
    let output = pagemill(&["reproduce", "--list"], directory.path());
    assert!(output.status.success());
    for name in [
        "redis-fragmentation",
        "ruby-strings",
        "perl",
        "sqlite",
        "spec",
        "huge-pages",
        "cbmm+",
        "activedefrag",
        "2y-ksm",
    ] {
        assert!(stdout(&output).contains(name), "{name}");
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "listing writes nothing");
}

/// Keeps a finished cell in the run `r`: churn of `pauses`, on glibc's malloc, with seed 1 and scale 1. Its file, and
/// what is in it.
#[expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
fn keep_a_cell(directory: &Path) -> (PathBuf, &'static str) {
    let cells = directory.join("r/cells/pauses/churn");
    std::fs::create_dir_all(&cells).unwrap();
    let cell = r#"{"schema":1,"of":{"seed":1,"scale":1.0,"window":null},"build":"b","host":"h","seconds":1.0,
        "metrics":{},"notes":[],"digest":null,"samples":[]}"#;
    let file = cells.join("glibc-1.json");
    std::fs::write(&file, cell).unwrap();
    (file, cell)
}

#[test]
fn a_list_says_what_each_experiment_needs_takes_and_has_kept() {
    let directory = tempfile::tempdir().unwrap();
    keep_a_cell(directory.path());
    let output = pagemill(&["reproduce", "--list", "-o", "r"], directory.path());
    let listed = stdout(&output);
    let of = |name: &str| {
        let after = listed
            .split(&format!("\n{name} "))
            .nth(1)
            .unwrap_or_else(|| panic!("{name}: {listed}"));
        let lines = after.lines().skip(1).take_while(|line| line.starts_with(' '));
        lines.collect::<Vec<_>>().join("\n")
    };
    let pauses = of("pauses");
    for words in ["needs: nothing", "takes: ", "; quick ", "kept: 1 cells in r"] {
        assert!(pauses.contains(words), "{words}: {pauses}");
    }
    assert!(of("sqlite").contains("needs: sqlite3") && of("fragmentation").contains("needs: root"));
    assert!(of("moca").contains("kept: figures for --from-kept, of pagemill "), "{listed}");
    // Two experiments had no estimate, and what was chosen did not count.
    for name in ["overhead", "huge-slices"] {
        assert!(of(name).contains("takes: ") && of(name).contains("; quick "), "{}", of(name));
    }
    assert!(of("overhead").contains("by name only") && of("fragmentation").contains("--full-size"));
    let chosen = ["reproduce", "--list", "pauses", "--arms", "glibc", "--reps", "2"];
    let chosen = stdout(&pagemill(&chosen, directory.path()));
    assert!(
        chosen.contains("arms: glibc; 2 runs each") && chosen.contains("takes: 2 cells"),
        "{chosen}"
    );
    let nowhere = pagemill(&["reproduce", "--list", "-o", "nowhere"], directory.path());
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(stderr(&nowhere).contains("no results directory nowhere"), "{}", stderr(&nowhere));
}

/// A wrong name left a directory behind that the next start refused, and hosts were taken for experiments.
#[test]
fn a_wrong_name_is_refused_with_the_nearest_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    for (words, answer) in [
        (&["huge-pages", "--programs", "reddis"][..], "did you mean \"redis\""),
        (&["huge-pages", "--arms", "cbmm++"], "did you mean \"cbmm+\""),
        (&["huge-slices", "--programs", "slice"], "did you mean \"slices\""),
        (&["fragmentation", "--programs", "canneel"], "did you mean \"canneal\""),
        (&["moca", "--programs", "btt"], "did you mean \"bt\""),
        (&["colloid", "--programs", "6cc"], "did you mean \"6c\""),
        (&["--on", "parallel", "pauses"], "pauses is an experiment and no host"),
        (&["--on", "parallel", "huge-slices"], "huge-slices is an experiment and no host"),
        (&["--on", "slrum", "pauses"], "there is no engine \"slrum\" (did you mean \"slurm\"?)"),
        (&["pauses", "--full-size"], "--full-size is of fragmentation by itself"),
        (&["moca", "--quick", "--scale", "0.5"], "--scale is not of moca, but of"),
        (&["pauses", "--settle", "5"], "--settle is not of pauses, but of"),
        (&["moca", "--from-kept", "--seed", "2"], "cannot be used with '--seed"),
        (&["moca", "--from-kept", "--scale", "2"], "cannot be used with '--scale"),
        (&["moca", "--from-kept", "--settle", "2"], "cannot be used with '--settle"),
    ] {
        let output = pagemill(&[&["reproduce", "-o", "r"], words].concat(), directory.path());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(answer), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing was written");
}

/// Cells of another seed or scale were run over without a word.
#[test]
fn a_directory_with_cells_of_other_settings_is_refused_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (file, cell) = keep_a_cell(directory.path());
    for other in [["--seed", "2"], ["--scale", "0.01"]] {
        let words = ["reproduce", "pauses", "--arms", "glibc", "--reps", "1", "-f", "-o", "r"];
        let output = pagemill(&[&words[..], &other].concat(), directory.path());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("pauses/churn/glibc/1 with seed 1, scale 1, "), "{said}");
        assert!(
            said.contains("this run is with seed 2, scale 1 (") == (other[0] == "--seed"),
            "{said}"
        );
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), cell);
    assert_eq!(directory.path().join("r").read_dir().unwrap().count(), 1);
}

#[test]
fn tables_of_a_kept_run_are_made_without_running_and_another_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let kept = pagemill(&["reproduce", "moca", "--from-kept", "-o", "out"], directory.path());
    assert!(kept.status.success(), "{}", stderr(&kept));
    assert!(stderr(&kept).contains("nothing was run"), "{}", stderr(&kept));
    let text = stdout(&kept);
    for words in ["slowdown: here medians of", "617.80", "reproduced"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (file, words) in
        [("report.html", "Every claim"), ("report.txt", "617.80"), ("summary.json", "\"Moca\"")]
    {
        let written = std::fs::read_to_string(directory.path().join("out").join(file)).unwrap();
        assert!(written.contains(words), "{file}");
    }
    // Its file makes the same tables.
    let again = pagemill(&["reproduce", "moca", "--from-kept=out/moca.parquet"], directory.path());
    assert_eq!((again.status.code(), stdout(&again)), (Some(0), text));
    std::fs::write(directory.path().join("x"), "PAR1").unwrap();
    for (words, answer) in [
        (["moca", "--from-kept=x"], "x is no kept run"),
        (["moca", "--from-kept=y"], "cannot read y"),
        (["pauses", "--from-kept"], "--from-kept is of moca"),
    ] {
        let refused = pagemill(&[&["reproduce"], &words[..]].concat(), directory.path());
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(stderr(&refused).contains(answer), "{words:?}: {}", stderr(&refused));
    }
}

#[test]
fn an_unknown_experiment_or_arm_is_refused_with_the_valid_names() {
    let directory = tempfile::tempdir().unwrap();
    let output = pagemill(&["reproduce", "pearl"], directory.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"pearl\"") && stderr(&output).contains("unfragmented"));
    let output = pagemill(&["reproduce", "sqlite", "--arms", "hoard"], directory.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"hoard\"") && stderr(&output).contains("tcmalloc"));
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing was begun");
}

#[test]
fn arms_and_programs_that_nothing_would_go_by_are_refused_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    for (words, answer) in [
        (
            &["pauses", "--scale", "0.01", "--programs", "churn"][..],
            "--programs is not of pauses, but of",
        ),
        (&["moca", "--quick", "--arms", "foo"], "--arms is not of moca, but of"),
        (&["moca", "--quick", "--arms", "faults"], "--arms is not of moca, but of"),
        (&["colloid", "--arms", "glibc"], "--arms is not of colloid, but of"),
        (&["--on", "slurm", "moca", "--arms", "faults"], "--arms is not of moca, but of"),
        (&["moca", "--from-kept", "--programs", "cg"], "cannot be used with '--programs"),
        (&["moca", "--from-kept", "--arms", "faults"], "cannot be used with '--arms"),
    ] {
        let output = pagemill(&[&["reproduce"], words].concat(), directory.path());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(answer), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing was begun");
}

#[test]
fn where_nothing_of_what_was_asked_for_can_run_the_exit_status_says_so() {
    let directory = tempfile::tempdir().unwrap();
    for words in [
        &["throughput", "--arms", "redis-jemalloc"][..],
        &["throughput", "--arms", "own", "--json"],
        &["throughput", "--arms", "own", "--on", "slurm", "--dry-run"],
        &["browsers", "--arms", "glibc"],
    ] {
        let output = pagemill(&[&["reproduce"], words].concat(), directory.path());
        assert_eq!(output.status.code(), Some(3), "{words:?}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("skipped ") && said.contains("can run here"), "{words:?}: {said}");
        match serde_json::from_str::<Value>(&stdout(&output)) {
            Ok(answer) => {
                assert_eq!(answer["exit_code"], 3, "{words:?}: {answer}");
                let why = answer["error"].as_str().unwrap();
                assert!(why.contains("own: only the browsers have this arm"), "{why}");
            }
            Err(_) => assert_eq!(stdout(&output), "", "no empty tables"),
        }
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing was begun");
}

#[test]
fn a_reader_who_has_seen_enough_ends_no_run_and_leaves_no_scratch_directory() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(["reproduce", "pauses", "--arms", "glibc", "--reps", "1", "--scale", "0.01"])
        .args(["-o", "results"])
        .current_dir(directory.path())
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((run.stdout.take(), run.stderr.take()));
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert!(directory.path().join("results/report.txt").is_file());
    assert_eq!(scratch.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_tiny_experiment_measures_compares_and_leaves_its_results() {
    if !installed("libc.so.6") || !installed("libjemalloc.so.2") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "reproduce",
        "pauses",
        "--arms",
        "glibc,jemalloc,mesh",
        "--reps",
        "2",
        "--scale",
        "0.05",
        "--quick",
        "-o",
        "out",
    ];
    let output = pagemill(&arguments, directory.path());
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("skipped pauses mesh: MESH_LIB is not set"));
    assert!(stdout(&output).contains("memory at the end"), "{}", stdout(&output));
    let out = directory.path().join("out");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();

    let summary: Value = serde_json::from_str(&read("summary.json")).unwrap();
    let rows = summary["sections"][0]["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let memory = row["figures"]["end_pss_bytes"]["value"].as_f64().unwrap();
        // 7,500 live objects of 366 bytes on average, and a process around them.
        assert!((3e6..300e6).contains(&memory), "{memory}");
        assert!(row["figures"]["cpu"]["value"].as_f64().unwrap() >= 0.0);
        assert_eq!(row["figures"]["longest_call"]["runs"], 2);
    }
    let ratio = |arm: usize, against: &str| {
        rows[arm]["ratios"]["end_pss_bytes"][against]["value"].as_f64().unwrap()
    };
    assert!((ratio(0, "jemalloc") * ratio(1, "glibc") - 1.0).abs() < 1e-9);
    let verdict = summary["sections"][0]["claims"][0]["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("not measured"), "{verdict}");

    let cells = read("cells.csv");
    assert_eq!(cells.lines().filter(|line| line.contains(",end_pss_bytes,")).count(), 4);
    assert!(read("samples/pauses-churn-glibc-1.csv").lines().count() > 2);
    let html = read("report.html");
    assert!(html.contains("<svg") && html.contains("MESH_LIB is not set"));
    assert!(!html.contains("http:") && !html.contains("https:"), "the page opens offline");

    let again = pagemill(&arguments, directory.path());
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("not empty: it has cells"), "{}", stderr(&again));
    assert!(stderr(&again).contains("go on with it by -f"), "{}", stderr(&again));
}

#[test]
fn a_library_that_is_not_loaded_fails_its_cells() {
    // A libmesh.so that no loader accepts: the program runs, on another allocator.
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libmesh.so");
    std::fs::write(&library, "not a library").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args([
            "reproduce",
            "pauses",
            "--arms",
            "mesh",
            "--reps",
            "1",
            "--scale",
            "0.05",
            "-o",
            "o",
        ])
        .current_dir(directory.path())
        .env("MESH_LIB", &library)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("FAILED churn mesh #1"), "{}", stdout(&output));
    assert!(stdout(&output).contains("was not loaded into the program"));
}

#[test]
fn redis_is_loaded_read_back_and_measured() {
    if !on_path("redis-server") || !installed("libc.so.6") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "reproduce",
        "redis-fragmentation",
        "--arms",
        "glibc",
        "--reps",
        "1",
        "--scale",
        "0.05",
        "--settle",
        "1.5",
        "-o",
        "out",
    ];
    let output = pagemill(&arguments, directory.path());
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    let summary = std::fs::read_to_string(directory.path().join("out/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let tables = summary["sections"][0]["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 3);
    for table in tables {
        let figures = &table["rows"][0]["figures"];
        let value = |name: &str| figures[name]["value"].as_f64().unwrap();
        let limit = 5.0 * 1048576.0;
        assert!(value("used_memory") <= limit * 1.1, "{}", value("used_memory"));
        assert!(value("final_pss") >= value("used_memory"), "{figures}");
        assert!(value("peak_pss") >= value("final_pss") * 0.99, "{figures}");
        assert!(value("keys") > 1_000.0 && value("keys") < 43_500.0, "{figures}");
        assert!(value("fork") > 0.0 && value("insertion") > 0.0 && value("vmas") > 10.0);
    }
}

#[test]
fn an_interrupted_run_keeps_what_is_finished_and_leaves_no_scratch() {
    if !installed("libc.so.6") {
        return;
    }
    // To this process, as by a user; to all of its group, as by a terminal or timeout(1), and twice.
    for (how, code) in [
        ("kill -INT $1", 130),
        ("kill -s TERM -- -$1", 143),
        ("kill -s TERM $1; kill -s TERM -- -$1", 143),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagemill"))
            .args(["reproduce", "pauses", "--arms", "glibc", "--reps", "500", "--scale", "0.02"])
            .args(["-o", "o"])
            .current_dir(directory.path())
            .env("TMPDIR", scratch.path())
            .process_group(0)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let cells = directory.path().join("o/cells.csv");
        let rows = || std::fs::read_to_string(&cells).unwrap_or_default();
        let began = std::time::Instant::now();
        while rows().lines().count() < 2 {
            assert!(began.elapsed().as_secs() < 300, "no cell was finished");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let pid = child.id().to_string();
        let sent = Command::new("sh").args(["-c", how, "sh", &pid]).status().unwrap();
        assert!(sent.success(), "{how}");
        assert_eq!(child.wait().unwrap().code(), Some(code), "{how}");
        assert!(!rows().contains(",failed,"), "{how}: {}", rows());
        assert!(directory.path().join("o/report.html").is_file(), "{how}");
        assert_eq!(scratch.path().read_dir().unwrap().count(), 0, "the scratch directory is gone");
    }
}

#[test]
fn a_workload_prints_one_line_of_json_with_its_check() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        pagemill(&["workload", "xmalloc", "--threads", "1", "--seconds", "0.1"], directory.path());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["workload"], "xmalloc");
    assert!(report["operations"].as_u64().unwrap() > 0);
    assert!(report["check"].as_str().unwrap().contains("intact"));
    let unknown = pagemill(&["workload", "larsen"], directory.path());
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("larson"));
}

/// Its build takes minutes, so it is no part of the tests: `reproduce huge-pages --programs wiredtiger` makes it.
#[test]
fn a_store_of_wiredtiger_keeps_what_ycsb_writes_and_ends_when_told() {
    let server = match pagemill_experiments::reproduce::wiredtiger::built() {
        Ok(server) => server,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let room = tempfile::tempdir().unwrap();
    let (socket, data) = (room.path().join("socket"), room.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    let mut server = Command::new(server).arg(&socket).arg(&data).arg("128").spawn().unwrap();
    for mix in ["A", "E", "mongodb"] {
        let address = format!("unix:{}", socket.display());
        let mut tries = 0..1200;
        while !socket.exists() && tries.next().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let words = ["workload", "ycsb-redis", "--scale", "0.01", "--threads", "2", "--mix", mix];
        let ran = pagemill(&[&words[..], &["--server", &address]].concat(), room.path());
        assert!(ran.status.success(), "{mix}: {}", stderr(&ran));
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(report["check"].as_str().unwrap().contains(mix), "{report}");
    }
    let ended = Command::new("kill").arg(server.id().to_string()).status().unwrap();
    assert!(ended.success() && server.wait().unwrap().success());
    assert!(data.join("WiredTiger.wt").exists() && !socket.exists());
}

/// They were a panic.
#[test]
fn scales_that_are_none_are_refused_before_anything_is_estimated() {
    for option in
        ["--scale=inf", "--scale=nan", "--scale=-1", "--scale=0", "--scale=1e300", "--settle=-1"]
    {
        let run = pagemill(&["reproduce", "--list", option], Path::new("/"));
        assert_eq!(run.status.code(), Some(2), "{option}: {run:?}");
        assert!(stderr(&run).contains("expected "), "{option}: {run:?}");
    }
}

//! A directory of many machines' recordings: the queries of `docs/guide/fleets.md` on a hundred of them, and the
//! examples of `packaging` by linters.

#![expect(clippy::unwrap_used, reason = "what cannot be set up fails the test")]

#[cfg(test)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagemill_kernel::Linux;
use pagemill_model::frag::FragSample;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Bytes, Event, Fault, FaultCounts, HeapSample, Nanos, Pid, latency};
use serde_json::{Value, json};
use support::{pagemill, ran, skip};

const HOSTS: u64 = 10;
const DAYS: u64 = 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// What `./pagemill test` installs from PyPI.
fn tools() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_pagemill"));
    binary.parent().and_then(Path::parent).unwrap().join("python/bin")
}

/// A Python that has DuckDB: that of `./pagemill test`, or the machine's.
fn python() -> Option<PathBuf> {
    let own = tools().join("python");
    let has_it = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import duckdb"]).output().is_ok_and(|done| done.status.success())
    };
    let found = [own, PathBuf::from("python3")].into_iter().find(has_it);
    found.or_else(|| skip("DuckDB is not installed (pip install duckdb)"))
}

/// The code blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let starts = page.split(&start).skip(1);
    starts.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A recording of a machine and a day, of which all is known.
fn recording(fleet: &Path, host: u64, day: u64) {
    let place =
        fleet.join(format!("host=web{host}/date=2026-11-{:02}/server.{host}{day}", day + 1));
    let comm = if host == 0 { "redis-server" } else { "server" };
    let meta = Meta { comm: comm.into(), pid: 7, ..Meta::default() };
    let mut writer = Writer::create(place, meta, false, None).unwrap();
    let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
    let mib = |mib: u64| Some(Bytes(mib << 20));
    // Each host has more than the one before; web2 grows by 5 MiB a day; web7 keeps 200 MiB free in pagemill's heap,
    // and web8 150 in its own malloc.
    let peak = 100 + host + if host == 2 { 5 * day } else { 0 };
    for (second, memory) in [(1, peak - 20), (2, peak), (3, peak - 10)] {
        let kept = if host == 7 { 200 } else { 10 };
        writer
            .event(&Event::Heap(Box::new(HeapSample {
                time: at(second),
                pss: mib(memory),
                live: if host == 8 { None } else { mib(50) },
                footprint: if host == 8 { None } else { mib(50 + kept) },
                malloc_returnable: if host == 8 { mib(140) } else { None },
                malloc_pieces: if host == 8 { mib(10) } else { None },
                ..HeapSample::default()
            })))
            .unwrap();
    }
    // A thousand faults of 1 us; on web3 a hundred more of 5 ms, most of it compaction.
    let bucket = |nanos: u64| u64::from(latency::bucket(Nanos(nanos)));
    let mut counts = vec![(bucket(1_000), 1000)];
    if host == 3 {
        counts.push((bucket(5_000_000), 100));
        for number in 0..100 {
            writer
                .event(&Event::Fault(Box::new(Fault {
                    time: Nanos(2_000_000_000 + number),
                    latency: Nanos(5_000_000),
                    compaction: Some(Nanos(4_000_000)),
                    ..Fault::default()
                })))
                .unwrap();
        }
    }
    writer
        .event(&Event::FaultCounts(Box::new(FaultCounts {
            time: at(3),
            flags: Some(0),
            buckets: Some(counts.iter().map(|(bucket, _)| *bucket).collect()),
            counts: Some(counts.iter().map(|(_, count)| *count).collect()),
        })))
        .unwrap();
    // A quarter of free memory is in small blocks; on web5 three quarters.
    let (small, large) = if host == 5 { (3 * 1024, 1) } else { (1024, 3) };
    writer
        .event(&Event::Frag(Box::new(FragSample {
            time: at(3),
            node: Some(0),
            zone: Some("Normal".into()),
            free_blocks: Some(vec![small, 0, 0, 0, 0, 0, 0, 0, 0, 0, large]),
            ..FragSample::default()
        })))
        .unwrap();
    writer.finish(at(4)).unwrap();
}

/// The rows of each query, as lists.
fn answers(python: &Path, fleet: &Path, queries: &[String]) -> Vec<Vec<Value>> {
    let code = "import duckdb, json, sys\n\
                ask = lambda query: [[None if cell != cell else cell for cell in row] for row in \
                duckdb.sql(query).fetchall()]\n\
                print(json.dumps([ask(query) for query in json.load(sys.stdin)], default=float))";
    let input = fleet.with_file_name("queries");
    fs::write(&input, json!(queries).to_string()).unwrap();
    let mut command = Command::new(python);
    command.args(["-c", code]).current_dir(fleet.parent().unwrap());
    let done = command.stdin(fs::File::open(&input).unwrap()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn the_queries_of_the_guide_find_on_a_hundred_recordings_what_was_put_there() {
    let Some(python) = python() else { return };
    let room = tempfile::tempdir().unwrap();
    let fleet = room.path().join("fleet");
    (0..HOSTS).for_each(|host| (0..DAYS).for_each(|day| recording(&fleet, host, day)));
    // Of a machine of one day nobody can tell how it grows; it came first.
    recording(&fleet, HOSTS, 0);
    let page = fs::read_to_string(root().join("docs/guide/fleets.md")).unwrap();
    let queries = blocks(&page, "sql");
    let answers = answers(&python, &fleet, &queries);
    let [kept, growth, times, stalls, unusable, whose] = answers.as_slice() else {
        panic!("{} queries", answers.len());
    };
    assert_eq!(kept.len(), 5);
    assert_eq!(kept[0], json!(["web7", 107.0, 200.0]));
    assert_eq!(kept[1], json!(["web8", 108.0, 150.0]));
    assert_eq!(kept[2], json!(["web0", 100.0, 10.0]));
    assert_eq!(growth[0][0], "web2");
    assert!((growth[0][1].as_f64().unwrap() - 5.0).abs() < 1e-6, "{growth:?}");
    assert!(growth[1][1].as_f64().unwrap().abs() < 1e-6, "{growth:?}");
    // The lower end of a bucket is at most 3 % below what is in it.
    let near = |value: &Value, nanos: u64| {
        let value = value.as_f64().unwrap();
        (0.96 * nanos as f64..=nanos as f64).contains(&value)
    };
    assert_eq!((&times[0][0], times[0][1].as_f64()), (&json!("web3"), Some(11_000.0)));
    assert!(near(&times[0][2], 1_000) && near(&times[0][3], 5_000_000), "{times:?}");
    assert!(near(&times[1][3], 1_000), "{times:?}");
    assert_eq!(stalls, &[json!(["web3", 1000, 5.0, 0.8])]);
    assert_eq!(unusable[0], json!(["web5", 0.75]));
    assert_eq!(unusable[1], json!(["web0", 0.25]));
    assert_eq!(whose, &[json!(["server", 91, 10]), json!(["redis-server", 10, 1])]);
}

/// A finished cell of `pauses`, as `reproduce` leaves it, with memory of `pss` bytes at one and two seconds.
fn cell(results: &Path, arm: &str, repetition: u64, host: &str, (cpu, pss): (f64, u64)) {
    let directory = results.join("cells/pauses/churn");
    fs::create_dir_all(&directory).unwrap();
    let kept = json!({
        "schema": 1, "of": { "seed": 1, "scale": 1.0, "window": null }, "build": "b", "host": host, "seconds": 3.0,
        "metrics": { "cpu": cpu }, "notes": [], "digest": null,
        "samples": [[1.0, pss, null], [2.0, pss + 1, null]],
    });
    fs::write(directory.join(format!("{arm}-{repetition}.json")), kept.to_string()).unwrap();
}

#[test]
fn the_queries_of_the_page_on_collect_find_the_cells_of_two_machines() {
    let Some(python) = python() else { return };
    let room = tempfile::tempdir().unwrap();
    let (one, two) = (room.path().join("one"), room.path().join("two"));
    cell(&one, "glibc", 1, "n1", (2.0, 4096));
    cell(&one, "glibc", 2, "n1", (4.0, 8192));
    cell(&one, "jemalloc", 1, "n1", (1.0, 100));
    cell(&two, "glibc", 3, "n2", (3.0, 12288));
    let words = ["collect", "one", "two", "-o", "cells.parquet"];
    let collected = ran(pagemill().args(words).current_dir(room.path()));
    assert!(collected.status.success(), "{}", collected.err);
    let page = fs::read_to_string(root().join("docs/verbs/collect.md")).unwrap();
    let lines =
        page.lines().filter_map(|line| line.strip_prefix("duckdb -c \"")?.strip_suffix('"'));
    let queries: Vec<String> = lines.map(|query| format!("{query} ORDER BY ALL")).collect();
    let answers = answers(&python, &room.path().join("fleet"), &queries);
    let [medians, hosts, memory] = answers.as_slice() else { panic!("{} queries", answers.len()) };
    assert_eq!(medians, &[json!(["pauses", "glibc", 3.0]), json!(["pauses", "jemalloc", 1.0])]);
    assert_eq!(hosts, &[json!(["n1", 3]), json!(["n2", 1])]);
    assert_eq!(memory.len(), 6, "two moments of three cells: {memory:?}");
    assert_eq!((&memory[0], &memory[5]), (&json!([1.0, 4096]), &json!([2.0, 12289])));
}

#[test]
fn a_recording_goes_where_the_guide_puts_it() {
    let Some(python) = python() else { return };
    let room = tempfile::tempdir().unwrap();
    let fleet = room.path().join("fleet");
    let place = fleet.join("host=here/date=2026-11-24/sh.1");
    let mut command = pagemill();
    command.args(["record", "--with", "heap,faults,frag", "-o"]).arg(place);
    let run = ran(command.args(["--", "sh", "-c", "sleep 0.2"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let page = fs::read_to_string(root().join("docs/guide/fleets.md")).unwrap();
    let queries = blocks(&page, "sql");
    // It has all datasets but that of slow faults, perhaps.
    let some: Vec<String> =
        queries.into_iter().filter(|query| !query.contains("/faults/")).collect();
    for rows in answers(&python, &fleet, &some) {
        assert_eq!(rows.len(), 1, "{rows:?}");
    }
}

#[test]
fn a_linter_accepts_the_units() {
    let version = Command::new("systemd-analyze").arg("--version").output();
    if version.is_err() {
        return skip("systemd-analyze is not installed").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    for name in ["pagemill-exporter.service", "pagemill-record@.service"] {
        let unit = fs::read_to_string(root().join("packaging/systemd").join(name)).unwrap();
        assert!(unit.contains("/usr/bin/pagemill"), "{name}");
        // It is not installed there.
        let here = pagemill().get_program().to_str().unwrap().to_owned();
        let unit = unit.replace("/usr/bin/pagemill", &here);
        let instance = name.replace("@.", "@redis-server.");
        let path = room.path().join(&instance);
        fs::write(&path, &unit).unwrap();
        let mut command = Command::new("systemd-analyze");
        let run = ran(command.args(["verify", "--man=no"]).arg(&path));
        assert!(run.code() == Some(0) && !run.err.contains(&instance), "{run:?}");
        // It does find what is wrong.
        fs::write(&path, unit.replace("Restart=", "Restrat=")).unwrap();
        let mut command = Command::new("systemd-analyze");
        let run = ran(command.args(["verify", "--man=no"]).arg(&path));
        assert!(run.err.contains("Restrat"), "{run:?}");
    }
}

/// Where two processes had the name, the unit failed every minute and recorded none.
#[test]
fn the_unit_records_all_processes_of_its_name() {
    if Command::new("ps").arg("--version").output().is_err() {
        return skip("ps, of the package procps, is not installed").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    // Nobody else's are called so.
    let name = format!("many{}", std::process::id());
    let program = room.path().join(&name);
    support::installed(Path::new("/bin/sleep"), &program, "755");
    let unit =
        fs::read_to_string(root().join("packaging/systemd/pagemill-record@.service")).unwrap();
    let (_, line) = unit.split_once("ExecStart=/bin/sh -c '").unwrap();
    let (line, _) = line.split_once("'\n").unwrap();
    // As systemd reads it, but for the time that it takes.
    let line =
        line.replace("\\\n", " ").replace("%i", &name).replace("%H", "here").replace("%%", "%");
    assert!(line.contains("--for 24h") && line.contains("/usr/bin/pagemill "), "{line}");
    let line = line.replace("--for 24h", "--for 300ms").replace("--interval 1s", "--interval 50ms");
    let line =
        line.replace("/usr/bin/pagemill ", &format!("{} ", pagemill().get_program().display()));
    let fleet = room.path().join("fleet");
    let start = || {
        let mut shell = Command::new("/bin/sh");
        ran(shell.args(["-c", &line]).env("FLEET", &fleet))
    };
    let none = start();
    assert!(
        none.code() == Some(1) && none.err.contains(&format!("no process is called {name}")),
        "{none:?}"
    );
    let mut sleepers: Vec<_> =
        (0..2).map(|_| Command::new(&program).arg("1000").spawn().unwrap()).collect();
    for sleeper in &sleepers {
        let is_it = || Linux::live().stat(Pid(sleeper.id())).is_ok_and(|stat| stat.comm == name);
        support::until("its name", is_it);
    }
    let told = start();
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    assert_eq!(told.code(), Some(0), "{told:?}");
    let days: Vec<PathBuf> =
        fs::read_dir(fleet.join("host=here")).unwrap().map(|day| day.unwrap().path()).collect();
    let mut names: Vec<String> = days
        .iter()
        .flat_map(|day| fs::read_dir(day).unwrap())
        .map(|made| made.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 2, "{told:?}");
    for sleeper in sleepers {
        let end = format!(".{}", sleeper.id());
        assert!(
            names.iter().any(|made| made.starts_with(&name) && made.ends_with(&end)),
            "{names:?}"
        );
    }
}

/// By the schemas of Kubernetes that the package `kubernetes-validate` brings.
#[test]
fn the_schema_of_kubernetes_accepts_the_daemon_set() {
    let tool = tools().join("kubernetes-validate");
    let tool = if tool.exists() { tool } else { PathBuf::from("kubernetes-validate") };
    if Command::new(&tool).arg("--help").output().is_err() {
        return skip("kubernetes-validate is not installed (pip install kubernetes-validate)")
            .unwrap_or(());
    }
    let path = root().join("packaging/kubernetes/daemonset.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let run = ran(Command::new(&tool).arg("--strict").arg(&path));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let room = tempfile::tempdir().unwrap();
    let wrong = room.path().join("wrong.yaml");
    fs::write(&wrong, text.replace("hostPID: true", "hostPid: true")).unwrap();
    let run = ran(Command::new(&tool).arg("--strict").arg(&wrong));
    assert_ne!(run.code(), Some(0), "{run:?}");
}

/// It had metrics of programs on pagemill's heap only, of which an ordinary cluster has none.
#[test]
fn the_daemon_set_has_metrics_of_the_programs_in_pods() {
    let path = root().join("packaging/kubernetes/daemonset.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let (_, script) = text.split_once("            - |\n").unwrap();
    let (script, _) = script.split_once("          env:\n").unwrap();
    let room = tempfile::tempdir().unwrap();
    let place = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let script = script
        .replace("/host/cgroup", &place("cgroup"))
        .replace("/textfile", &place("textfile"))
        .replace("pagemill export", &format!("{} export", pagemill().get_program().display()))
        .replace("sleep 15 & wait $!", "exit 0");
    let mut pod = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::create_dir(place("textfile")).unwrap();
    let metrics = |cgroup: &str| {
        let mut shell = Command::new("/bin/sh");
        let run = ran(shell.args(["-c", &script]).env("PODS", cgroup));
        assert_eq!(run.code(), Some(0), "{run:?}");
        fs::read_to_string(place("textfile/pagemill.prom")).unwrap_or(run.err)
    };
    assert!(metrics("").contains("no metrics this time"));
    // As the kubelet has them: by systemd, by itself, and one that is named.
    for (at, named) in
        [("kubepods.slice", ""), ("memory/kubepods", ""), ("some.slice", "some.slice")]
    {
        let pods = room.path().join("cgroup").join(at);
        fs::create_dir_all(pods.join("pod1")).unwrap();
        fs::write(pods.join("cgroup.procs"), "").unwrap();
        fs::write(pods.join("pod1/cgroup.procs"), format!("{}\n", pod.id())).unwrap();
        let named =
            if named.is_empty() { String::new() } else { place(&format!("cgroup/{named}")) };
        let metrics = metrics(&named);
        let of = format!("pagemill_process_memory_bytes{{pid=\"{}\",comm=\"sleep\"", pod.id());
        assert!(metrics.contains(&of), "{at}: {metrics}");
        fs::remove_dir_all(room.path().join("cgroup")).unwrap();
        fs::remove_file(place("textfile/pagemill.prom")).unwrap();
    }
    pod.kill().unwrap();
    pod.wait().unwrap();
}

//! `pagemill tier` from the outside, on machines that are snapshots. On real nodes: `guest`.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its subject should panic")]

mod support;

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use pagemill_model::Nanos;
use pagemill_model::recording::{Meta, Writer};
use pagemill_policy::tier::compose;
use pagemill_sim::machine::Machine;
use support::daemon::{record, record_with};
use support::until;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../base/kernel/tests/fixtures").join(name)
}

fn on(machine: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill"))
        .args(arguments)
        .env("PAGEMILL_ROOT", machine)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_machine_with_one_node_is_told_why_and_what_else_there_is() {
    let output = on(&fixture("debian-12"), &["tier", "-p", "4242", "--apply"]);
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output);
    assert!(text.contains("one memory node") && text.contains("pagemill simulate"), "{text}");

    let output = on(&fixture("debian-12"), &["tier", "doctor"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("can move pages here: no"), "{}", said(&output));
}

/// A copy, because a look takes a lock beside the journals.
fn two_nodes() -> tempfile::TempDir {
    let machine = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(fixture("two-nodes").join("."))
        .arg(machine.path())
        .status();
    assert!(copied.unwrap().success());
    machine
}

#[test]
fn the_kernels_tiering_says_what_it_would_write_and_writes_nothing() {
    let machine = two_nodes();
    let write = |path: &str, value: &str| {
        let path = machine.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value).unwrap();
    };
    write("sys/devices/system/memory/block_size_bytes", "8000000\n");
    for block in ["node0/memory0", "node0/memory7", "node1/memory8", "node1/memory15"] {
        write(&format!("sys/devices/system/node/{block}/state"), "online\n");
    }
    write("sys/fs/cgroup/web/cgroup.procs", "");
    let arguments = ["tier", "--cgroup", "web", "--policy", "damon", "--latency", "none"];
    let output = on(machine.path(), &[&arguments[..], &["--rate", "64M"]].concat());
    let text = said(&output);
    for expected in [
        "would write 2 to /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
        "would write migrate_hot to /sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/action",
        "would write 1073741824 to /sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/targets/0/regions/0/start",
        "would write migrate_cold to /sys/kernel/mm/damon/admin/kdamonds/1/contexts/0/schemes/0/action",
        "would write 67108864 to /sys/kernel/mm/damon/admin/kdamonds/1/contexts/0/schemes/0/quotas/bytes",
        "would write /web to",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let count = machine.path().join("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    assert_eq!(std::fs::read_to_string(count).unwrap(), "0\n");
    let output = on(machine.path(), &["tier", "-p", "4242", "--policy", "damon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("valid: --cgroup GROUP"), "{}", said(&output));
}

#[test]
fn doctor_names_each_cause_on_two_nodes_with_its_fix() {
    let machine = two_nodes();
    let look = || said(&on(machine.path(), &["tier", "doctor"]));
    let text = look();
    for expected in [
        "firmware says 70 ns for node 0, 135 ns for node 1",
        "node 0 is in tier 4, node 1 in tier 23",
        "numa_balancing is 1: the kernel does not promote",
        "echo 1 | sudo tee /sys/kernel/mm/numa/demotion_enabled",
        "the kernel would by itself:        no",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    // The same machine, as users ask about it: both nodes in one tier; set up; full.
    let write = |path: &str, value: &str| std::fs::write(machine.path().join(path), value).unwrap();
    write("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n");
    write("sys/devices/virtual/memory_tiering/memory_tier23/nodelist", "\n");
    assert!(look().contains("both nodes are in the kernel's tier 4"), "{}", look());
    write("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n");
    write("sys/devices/virtual/memory_tiering/memory_tier23/nodelist", "1\n");
    write("proc/sys/kernel/numa_balancing", "2\n");
    write("sys/kernel/mm/numa/demotion_enabled", "true\n");
    assert!(look().contains("the kernel would by itself:        yes"), "{}", look());
    write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n");
    assert!(look().contains("somebody has set up a thread of DAMON"), "{}", look());
}

#[test]
fn wrong_input_is_answered_with_the_valid_values() {
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), "0 70 135\n3 -1 135\n").unwrap();
    let replay = format!("replay:{}", script.path().display());
    for (arguments, expected) in [
        (
            &["-p", "4242", "--policy", "lru"][..],
            "there is no policy \"lru\"; valid: none, tpp, tpp+colloid",
        ),
        (&["-p", "4242", "--latency", "pebs"], "valid: auto, uncore, amd-l3, probe, replay:FILE"),
        (&["-p", "4242", "--latency", &replay], "line 2: default_ns: -1; valid: 1 to 1000000"),
        (&["-p", "4242", "--quantum", "1ms"], "valid: 100ms to 1h"),
        (&["-p", "4242", "--cpu", "0"], "valid: 0.01 to 100"),
        (&["-p", "4242", "--rate", "1M"], "valid: 4M and more"),
        (&["--cgroup", "no/such"], "cannot find cgroup no/such"),
        (&[], "valid: -p PID"),
        (&["replay", "/nonexistent"], "no recording"),
    ] {
        let output = on(&fixture("debian-12"), &[&["tier"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(expected), "{arguments:?}: {}", said(&output));
    }
    // Without hint faults there is nothing for the kernel to hold; only DAMON's tracker can move pages.
    for arguments in [
        ["--policy", "tpp", "--act", "move-pages"],
        ["--policy", "tpp", "--act", "damos"],
        ["--track", "idle", "--act", "damos"],
    ] {
        let output = on(&fixture("two-nodes"), &[&["tier", "-p", "4242"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("damos for the same, with --track damon"));
    }
}

#[test]
fn status_shows_the_nodes_where_no_daemon_runs() {
    let output = on(&fixture("two-nodes"), &["tier", "status"]);
    assert!(output.status.success());
    let text = said(&output);
    assert!(text.contains("135 ns") && text.contains("no pagemill tier runs"), "{text}");
    let output = on(&fixture("two-nodes"), &["tier", "status", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["nodes"][1]["read_latency_ns"], 135);
    assert_eq!(json["daemons"], serde_json::json!([]));
    let output = on(&fixture("two-nodes"), &["tier", "status", "--prometheus"]);
    let text = said(&output);
    assert!(text.contains("\npagemill_tier_daemons 0\n"), "{text}");
    assert!(
        text.contains("\npagemill_tier_node_firmware_latency_seconds{node=\"1\"} 0.000000135\n"),
        "{text}"
    );
}

#[test]
fn every_policy_decides_over_a_recording_what_it_decided_then() {
    let room = tempfile::tempdir().unwrap();
    for policy in &compose::names() {
        let path = room.path().join(policy);
        record(&path, policy, false);
        let output = on(Path::new("/"), &["tier", "replay", path.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{policy}: {}", said(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["decisions"], &json["same"]), (&20.into(), &20.into()), "{policy}");
    }
    let path = room.path().join("spoilt");
    record(&path, "hemem", true);
    let output = on(Path::new("/"), &["tier", "replay", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("that of quantum 5"), "{}", said(&output));
}

#[test]
fn a_recording_is_a_workload_of_the_simulator() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    record(&path, "none", false);
    let rec = path.to_str().unwrap();
    let simulate =
        |arguments: &[&str]| on(Path::new("/"), &[&["simulate", rec], arguments].concat());
    let output =
        simulate(&["--tiers", "fast=16M,slow=64M", "--seconds", "1", "--policy", "none,hemem"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("recording on 32.0 MiB") && text.contains("modelled"), "{text}");
    for (tiers, expected) in [
        ("fast=16M", "it has 1 tiers; valid: two tiers"),
        ("fast=16M,slow=x", "expected a size"),
        ("fast=16M,slow", "slow: no size"),
        ("fast=1M,slow=2M", "do not fit"),
        ("fast=16M,default=64M", "both are the same tier by their names"),
        ("fast=1K,slow=2G", "valid: 1M to 64T"),
    ] {
        let output = simulate(&["--tiers", tiers]);
        assert_eq!(output.status.code(), Some(2), "{tiers}");
        assert!(said(&output).contains(expected), "{tiers}: {}", said(&output));
    }
    // Which tier is the default one is in its name, and said.
    let run = |tiers: &str| simulate(&["--tiers", tiers, "--seconds", "1", "--threads", "2"]);
    let (named, other) = (run("slow=64M,fast=16M"), run("fast=16M,slow=64M"));
    assert_eq!(named.stdout, other.stdout);
    assert!(said(&named).contains("default tier (the faster one) fast=16M"), "{}", said(&named));
    // The program's threads are those that were recorded, and where they were not that is said.
    let hint = "does not say how many threads";
    assert!(text.contains(hint) && !said(&named).contains(hint), "{text}");
    let one = room.path().join("one");
    record_with(&one, "none", false, Meta { threads: Some(1), ..Meta::default() });
    let rows = |rec: &Path, more: &[&str]| {
        let asked =
            ["simulate", rec.to_str().unwrap(), "--tiers", "fast=16M,slow=64M", "--seconds", "1"];
        let output = on(Path::new("/"), &[&asked, more].concat());
        assert!(output.status.success(), "{}", said(&output));
        output.stdout
    };
    assert_eq!(rows(&one, &[]), rows(&path, &["--threads", "1"]));
    assert_ne!(rows(&one, &[]), rows(&path, &["--threads", "2"]));
    // What says nothing of heat is no workload.
    let heap = room.path().join("heap");
    Writer::create(&heap, Meta::default(), false, None).unwrap().finish(Nanos(1)).unwrap();
    let output = on(Path::new("/"), &["simulate", heap.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("does not say how often memory was accessed"),
        "{}",
        said(&output)
    );
}

/// On this machine, whatever it has; on two real nodes: `guest`.
#[test]
fn a_probed_machine_is_one_that_the_simulator_runs() {
    let room = tempfile::tempdir().unwrap();
    let probed = on(Path::new("/"), &["tier", "probe", "--for", "5ms"]);
    let talk = String::from_utf8_lossy(&probed.stderr).into_owned();
    if talk.contains("tells no memory nodes") || talk.contains("are needed to see past the caches")
    {
        return eprintln!("skipped: {talk}");
    }
    assert_eq!(probed.status.code(), Some(0), "{talk}");
    let file = String::from_utf8(probed.stdout).unwrap();
    let nodes = pagemill_kernel::Linux::live().memory_nodes().unwrap();
    let one = talk.contains("only one tier was found");
    assert_eq!(
        (file.matches("# default tier: node").count(), one),
        (1, nodes.len() == 1),
        "{talk}"
    );
    assert_eq!(file.matches(" tier: node ").count(), nodes.len().min(2), "{file}");
    // A point without load, and each with its figures.
    let points = file
        .lines()
        .filter(|line| line.split_whitespace().count() == 5 && line.starts_with("#   "));
    let points: Vec<&str> = points.filter(|line| !line.contains("readers")).collect();
    assert!(points[0].starts_with("#         0   0.00 "), "{file}");
    let machine = Machine::parse(&file).unwrap();
    for key in ["tier.default.unloaded_ns", "tier.default.channels", "tier.default.capacity_gib"] {
        assert!(!machine.source(key).starts_with("not measured"), "{key}: {file}");
    }
    assert!(machine.source("dram.cl").starts_with("not measured: "));
    let path = room.path().join("machine.toml");
    std::fs::write(&path, &file).unwrap();
    let path = path.to_str().unwrap();
    let words = [
        "simulate",
        "gups",
        "--machine",
        path,
        "--policy",
        "none",
        "--seconds",
        "1",
        "--scale",
        "256",
    ];
    let simulated = on(Path::new("/"), &words);
    assert!(simulated.status.success(), "{}", said(&simulated));
    for (wrong, answer) in
        [("0,77", "no such memory node"), ("0,0", "cannot be both"), ("0", "--nodes 0,1")]
    {
        let refused = on(Path::new("/"), &["tier", "probe", "--nodes", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(said(&refused).contains(answer), "{wrong}: {}", said(&refused));
    }
}

/// A process and its child, which has 16 MiB, on a made up machine with another memory node.
struct Placed {
    machine: tempfile::TempDir,
    parent: Child,
    child: u32,
}

impl Placed {
    /// Of the machine are the node, which is the faster one, and which pages are idle, which is none.
    fn new() -> Self {
        let machine = two_nodes();
        let data = "x=$(head -c 16000000 /dev/zero | tr \"\\0\" x); echo $$; sleep 600; :";
        let program = format!("sh -c '{data}' & wait");
        let parent = Command::new("sh")
            .args(["-c", &program])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn();
        let mut parent = parent.unwrap();
        let mut said = std::io::BufReader::new(parent.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let child = line.trim().parse().unwrap();
        let placed = Self { machine, parent, child };
        placed.write("sys/kernel/mm/page_idle/bitmap", "");
        placed.access();
        symlink("/proc/self", placed.path("proc/self")).unwrap();
        [placed.parent.id(), child].into_iter().for_each(|pid| placed.shown(pid));
        placed
    }

    fn path(&self, path: &str) -> PathBuf {
        self.machine.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// A process as it is, but that it may use both nodes.
    fn shown(&self, pid: u32) {
        let list = "Mems_allowed_list:";
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let lines = status.lines().filter(|line| !line.starts_with(list)).collect::<Vec<_>>();
        self.write(&format!("proc/{pid}/status"), &format!("{}\n{list}\t0-1\n", lines.join("\n")));
        for file in ["stat", "cmdline", "maps", "smaps", "pagemap", "task", "schedstat"] {
            let real = format!("/proc/{pid}/{file}");
            symlink(&real, self.path(&real[1..])).unwrap();
        }
    }

    /// All pages are accessed.
    fn access(&self) {
        let bitmap =
            fs::OpenOptions::new().write(true).open(self.path("sys/kernel/mm/page_idle/bitmap"));
        bitmap.unwrap().write_all_at(&[0; 1 << 20], 0).unwrap();
    }

    /// A daemon that looks ten times a second.
    fn daemon(&self, arguments: &[&str]) -> Child {
        let idle = ["--track", "idle", "--latency", "none", "--policy", "hemem", "--cpu", "100"];
        Command::new(env!("CARGO_BIN_EXE_pagemill"))
            .arg("tier")
            .args(["--default-node", "1", "--alternate-node", "0", "--quantum", "100ms"])
            .args(idle)
            .args(arguments)
            .env("PAGEMILL_ROOT", self.machine.path())
            .stdout(fs::File::create(self.path("out")).unwrap())
            .stderr(fs::File::create(self.path("err")).unwrap())
            .spawn()
            .unwrap()
    }

    /// So much is said by now.
    fn said(&self) -> String {
        ["out", "err"].map(|name| fs::read_to_string(self.path(name)).unwrap()).concat()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let group = format!("-{}", self.parent.id());
        Command::new("kill").args(["-9", "--", &group]).status().ok();
        self.parent.wait().ok();
    }
}

/// MiB after a word of the daemon's last line.
fn mib(text: &str, after: &str) -> f64 {
    let rest = text.lines().last().unwrap().split_once(after).unwrap().1;
    let mut words = rest.split([' ', ';', ',']);
    let (number, unit) = (words.next().unwrap(), words.next().unwrap());
    let scale = ["B", "KiB", "MiB"].iter().position(|name| *name == unit).unwrap();
    number.parse::<f64>().unwrap() * [1.0 / 1_048_576.0, 1.0 / 1024.0, 1.0][scale]
}

/// What would move was counted again each quantum; a child's memory was nobody's.
#[test]
fn a_dry_run_counts_each_page_once_and_children_are_placed_unless_left_alone() {
    let placed = Placed::new();
    let pid = placed.parent.id().to_string();
    let run = |more: &[&str]| {
        let mut daemon = placed.daemon(&[&["-p", &pid, "--for", "3s"], more].concat());
        let ended = loop {
            match daemon.try_wait().unwrap() {
                Some(status) => break status,
                None => placed.access(),
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert_eq!(ended.code(), Some(0), "{}", placed.said());
        placed.said()
    };
    let text = run(&[]);
    if mib(&text, "would have moved ") == 0.0 {
        return println!("skipped: who is not root does not see where pages are: {text}");
    }
    let (tracked, moved) = (mib(&text, "quanta, "), mib(&text, "would have moved "));
    assert!(tracked > 15.0 && moved > 12.0 && moved <= tracked, "{text}");
    let text = run(&["--no-children"]);
    assert!(mib(&text, "quanta, ") < 8.0, "{text}");
}

/// Both ended it with 2, and what it had recorded lacked its end.
#[test]
fn a_cgroup_that_goes_away_ends_the_daemon_well_and_a_node_that_does_is_waited_for() {
    let placed = Placed::new();
    let directory = "sys/fs/cgroup/web";
    placed.write(&format!("{directory}/cgroup.procs"), &format!("{}\n", placed.child));
    let rec = placed.path("rec");
    let mut daemon = placed.daemon(&["--cgroup", "web", "--record", rec.to_str().unwrap()]);
    let node = [placed.path("sys/devices/system/node/node1"), placed.path("node1")];
    let says = |what: &str| until(what, || placed.said().contains(what));
    says("Ctrl-C ends it");
    fs::rename(&node[0], &node[1]).unwrap();
    says("node 1 has no memory any more: waiting until it has");
    fs::rename(&node[1], &node[0]).unwrap();
    says("node 1 has memory again");
    fs::remove_dir_all(placed.path(directory)).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0), "{}", placed.said());
    assert!(placed.said().contains("sys/fs/cgroup/web has gone"), "{}", placed.said());
    let replayed = on(Path::new("/"), &["tier", "replay", rec.to_str().unwrap()]);
    assert_eq!(replayed.status.code(), Some(0), "{}", said(&replayed));
}

//! `reproduce --on` and `collect` as a user meets them: three Slurm nodes on this machine, one of which dies while it
//! works; GNU parallel over an ssh that reaches this machine by other names; a run that is killed; a disk that fills.
//!
//! The controller and each node are process namespaces of their own that end with what started them, so nothing stays
//! running, however a test ends. Nothing resets the memory of this machine: scripts that would are given a tree of
//! files.

#![expect(clippy::unwrap_used, reason = "what cannot be prepared fails the test")]

mod support;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use support::{Ran, ran, skip, until};

/// A small program on two allocators, a few times.
const CELLS: [&str; 5] = ["pauses", "--arms", "glibc,jemalloc", "--scale", "0.02"];

/// The binary, on memory as it is found.
fn pagemill(room: &Path) -> Command {
    let mut command = support::pagemill();
    command.env("PAGEMILL_NODE_AS_FOUND", "1").current_dir(room);
    command
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// What one of these programs lacks here.
fn missing(programs: &[&str]) -> Option<String> {
    let absent = programs.iter().find(|program| !on_path(program));
    let jemalloc = Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    match absent {
        Some(program) => Some(format!("{program} is not installed")),
        None if !jemalloc.exists() => Some("libjemalloc2 is not installed".into()),
        None => None,
    }
}

/// Whether processes and mounts can be kept apart here.
fn apart() -> bool {
    let words = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "true"];
    let done = Command::new("unshare").args(words).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Whether the tests are root's.
fn root() -> bool {
    let asked = Command::new("id").arg("-u").output();
    asked.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The finished cells of a results directory.
fn finished(results: &Path) -> usize {
    let found = Command::new("find").arg(results.join("cells")).args(["-name", "*.json"]).output();
    String::from_utf8(found.unwrap().stdout).unwrap().lines().count()
}

fn collected(room: &Path, results: &str) -> (Ran, Value) {
    let run = ran(pagemill(room).args(["collect", results, "--json"]));
    let answer = serde_json::from_str(&run.out).unwrap_or(Value::Null);
    (run, answer)
}

/// Three nodes and their controller.
struct Cluster {
    room: PathBuf,
    daemons: Vec<Child>,
    nodes: Vec<Child>,
}

impl Cluster {
    const NODES: [&str; 3] = ["n1", "n2", "n3"];

    /// Starts it, with these scripts around jobs.
    fn start(room: &Path, prolog: &Path, epilog: &Path) -> Self {
        for name in ["state", "spool", "log"] {
            fs::create_dir(room.join(name)).unwrap();
        }
        let key: Vec<u8> =
            (0..1024_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(room.join("munge.key"), key).unwrap();
        fs::set_permissions(room.join("munge.key"), fs::Permissions::from_mode(0o600)).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        // Free ports; held until all are known, so that they differ.
        let listeners: Vec<TcpListener> =
            (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |at: usize| listeners[at].local_addr().unwrap().port();
        let mut conf = include_str!("fleet/slurm.conf").to_owned();
        for (name, value) in [
            ("@HOST@", host.trim()),
            ("@ROOM@", room.to_str().unwrap()),
            ("@PROLOG@", prolog.to_str().unwrap()),
            ("@EPILOG@", epilog.to_str().unwrap()),
            ("@PORT@", &port(0).to_string()),
        ] {
            conf = conf.replace(name, value);
        }
        for (at, name) in Self::NODES.iter().enumerate() {
            conf.push_str(&format!(
                "NodeName={name} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=500\n",
                host.trim(),
                port(at + 1)
            ));
        }
        fs::write(room.join("slurm.conf"), conf).unwrap();
        drop(listeners);
        let mut cluster = Self { room: room.to_owned(), daemons: Vec::new(), nodes: Vec::new() };
        let at = |name: &str| room.join(name).to_str().unwrap().to_owned();
        let munged = cluster.daemon(&[
            "munged",
            "--foreground",
            &format!("--socket={}", at("munge.sock")),
            &format!("--key-file={}", at("munge.key")),
            &format!("--pid-file={}", at("munge.pid")),
            &format!("--log-file={}", at("log/munge")),
            &format!("--seed-file={}", at("munge.seed")),
        ]);
        cluster.daemons.push(munged);
        until("munge's socket", || room.join("munge.sock").exists());
        let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
        let controller = cluster.daemon(&[&apart[..], &["slurmctld", "-D"]].concat());
        cluster.daemons.push(controller);
        for name in Self::NODES {
            let node = cluster.daemon(&[&apart[..], &["slurmd", "-D", "-N", name]].concat());
            cluster.nodes.push(node);
        }
        until("three idle nodes", || {
            cluster
                .ask(&["sinfo", "-h", "-N", "-o", "%T"])
                .out
                .lines()
                .filter(|line| *line == "idle")
                .count()
                == 3
        });
        cluster
    }

    /// A program that ends when this test does.
    fn daemon(&self, words: &[&str]) -> Child {
        let log = fs::File::options().append(true).create(true).open(self.room.join("log/all"));
        let log = log.unwrap();
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(words)
            .env("SLURM_CONF", self.room.join("slurm.conf"))
            .env("PAGEMILL_NODE_AS_FOUND", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn ask(&self, words: &[&str]) -> Ran {
        let mut command = Command::new(words[0]);
        ran(command.args(&words[1..]).env("SLURM_CONF", self.room.join("slurm.conf")))
    }

    /// Ends a node with all that runs on it, as a power cut does.
    fn kill(&mut self, node: &str) {
        let at = Self::NODES.iter().position(|name| *name == node).unwrap();
        self.nodes[at].kill().unwrap();
        self.nodes[at].wait().unwrap();
    }

    /// Waits until no job is left. Slurm begins a job of a node that died after two minutes, which is not waited for.
    fn drain(&self, job: &str) {
        let deadline = Instant::now() + Duration::from_secs(400);
        loop {
            let queue = self.ask(&["squeue", "-h", "-j", job, "-o", "%i %T %r"]).out;
            if queue.trim().is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{queue}");
            for line in queue.lines().filter(|line| line.ends_with("PENDING BeginTime")) {
                let task = format!("JobId={}", line.split(' ').next().unwrap());
                self.ask(&["scontrol", "update", &task, "StartTime=now"]);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nodes first: what they are told to end by a controller would outlive this.
        for child in self.nodes.iter_mut().chain(self.daemons.iter_mut().rev()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command lines of processes that name this directory.
fn running(room: &Path) -> Vec<String> {
    let named = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let name = room.to_str().unwrap();
        (line.contains(name) || environment.contains(name)).then_some(line)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(named).collect()
}

/// The script of a results directory, for a tree of files instead of this machine.
fn for_tree(results: &Path, name: &str, tree: &Path, to: &Path) {
    let script = fs::read_to_string(results.join(name)).unwrap();
    let changed = script.replacen("root=\n", &format!("root={}\n", tree.display()), 1);
    assert_ne!(script, changed);
    write(to, &changed.replace("PAGEMILL_NODE_AS_FOUND", "NOTHING"));
}

#[test]
fn a_job_array_runs_on_three_nodes_and_one_that_dies_loses_nothing() {
    let programs = ["slurmctld", "slurmd", "sbatch", "munged", "setpriv", "unshare"];
    if let Some(why) = missing(&programs) {
        return skip(&why).unwrap_or_default();
    }
    if !apart() {
        return skip("no process namespaces: nodes could outlive the test").unwrap_or_default();
    }
    let (room, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let room = room.path();
    let thp = tree.path().join("sys/kernel/mm/transparent_hugepage");
    for directory in [&thp, &tree.path().join("proc/sys/vm"), &tree.path().join("run")] {
        fs::create_dir_all(directory).unwrap();
    }
    for name in ["enabled", "defrag"] {
        fs::write(thp.join(name), "always madvise [never]\n").unwrap();
    }
    let submit = |path: Option<&str>| {
        let mut command = pagemill(room);
        command.args(["reproduce", "--on", "slurm", "-o", "r", "--reps", "4"]).args(CELLS);
        command.env("SLURM_CONF", room.join("slurm.conf"));
        if let Some(path) = path {
            command.env("PATH", path);
        }
        ran(&mut command)
    };
    let results = room.join("r");
    // Where there is no Slurm, the job is written, and it is said where it is.
    let without = submit(Some("/nowhere"));
    assert_eq!(without.code(), Some(2), "{without:?}");
    assert!(
        without.err.contains("slurm-client") && results.join("job.sh").is_file(),
        "{without:?}"
    );
    let (prolog, epilog) = (room.join("node-prolog"), room.join("node-epilog"));
    for_tree(&results, "prolog.sh", tree.path(), &prolog);
    for_tree(&results, "epilog.sh", tree.path(), &epilog);

    let mut cluster = Cluster::start(room, &prolog, &epilog);
    let submitted = submit(None);
    assert_eq!(submitted.code(), Some(0), "{submitted:?}");
    let job = job_of(&submitted);
    let mut begun = None;
    until("a cell on the second node", || {
        begun =
            fs::read_dir(results.join("cells/pauses/churn")).into_iter().flatten().flatten().find(
                |entry| {
                    fs::read_to_string(entry.path())
                        .is_ok_and(|text| text.starts_with("on n2, process"))
                },
            );
        begun.is_some()
    });
    let lock = begun.unwrap().path();
    let words = fs::read_to_string(&lock).unwrap_or_default();
    cluster.kill("n2");
    cluster.drain(job);
    // An experiment with tables of its own is cells, too, on the nodes that are left.
    let mut own = pagemill(room);
    own.args(["reproduce", "--on", "slurm", "-o", "own", "colloid", "--quick"]);
    let own = ran(own.args(["--programs", "setup"]).env("SLURM_CONF", room.join("slurm.conf")));
    assert_eq!(own.code(), Some(0), "{own:?}");
    cluster.drain(job_of(&own));
    drop(cluster);
    until("the end of all that ran", || running(room).is_empty());
    remove_group(&words);

    let (run, answer) = collected(room, "r");
    assert_eq!(run.code(), Some(0), "{run:?}");
    assert_eq!((&answer["cells"], finished(&results)), (&Value::from(8), 8));
    assert_eq!(answer["missing"], Value::Array(Vec::new()));
    let hosts = answer["hosts"].as_object().unwrap();
    assert!(hosts.contains_key("n1") && hosts.contains_key("n3"), "{hosts:?}");
    assert!(!lock.exists(), "the cell of the dead node has run elsewhere");
    let again = fs::read_to_string(lock.with_extension("json")).unwrap();
    assert!(again.contains("\"host\":\"n1\"") || again.contains("\"host\":\"n3\""), "{again}");
    let read = |name: &str| fs::read_to_string(tree.path().join(name)).unwrap();
    assert_eq!(
        (read("proc/sys/vm/drop_caches"), read("proc/sys/vm/compact_memory")),
        ("3\n".into(), "1\n".into())
    );
    let (run, answer) = collected(room, "own");
    assert_eq!((run.code(), &answer["cells"]), (Some(0), &Value::from(1)), "{run:?}");
    let modelled = answer["colloid"]["cells"].as_array().map(Vec::len);
    assert!(modelled > Some(5), "the cell's table: {answer}");
    // The file alone makes the same tables.
    let tables =
        |source: &str| ran(pagemill(room).args(["collect", source, "--html", "/dev/null"])).out;
    let figures = |text: String| text.split("Published").next().unwrap_or_default().to_owned();
    assert_eq!(figures(tables("r")), figures(tables("r/cells.parquet")));
    // All is done: nothing more is submitted, with no cluster to submit to.
    let done = submit(Some("/nowhere"));
    assert!(done.code() == Some(0) && done.err.contains("all 8 cells are finished"), "{done:?}");
}

/// The number of the job that was submitted.
fn job_of(submitted: &Ran) -> &str {
    let job = submitted.err.split("job ").nth(1).and_then(|rest| rest.split(':').next());
    job.unwrap_or_else(|| panic!("no job: {submitted:?}"))
}

/// The memory cgroup of a cell that was killed with its maker, which a real machine loses when it dies.
fn remove_group(words: &str) {
    let Some(process) = words.split("process ").nth(1).and_then(|rest| rest.split(',').next())
    else {
        return;
    };
    let name = format!("pagemill-{process}-");
    let left = || {
        let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"];
        let entries = places.map(|place| fs::read_dir(place).into_iter().flatten().flatten());
        let entries = entries.into_iter().flatten();
        let left = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
        left.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    // The program that was in it goes on to its end.
    until("the end of the killed cell's program", || {
        left().iter().for_each(|path| drop(fs::remove_dir(path)));
        left().is_empty()
    });
}

/// ssh as far as parallel and rsync use it: this machine by other names, each with results of its own. `dead` answers
/// nobody, and `fails` is down after it was asked once. A login shell that reads other words is nobody's concern.
const SSH: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        -o | -p | -l | -S) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
[ "${1-}" != -- ] || shift
if [ "$host" = dead ] || { [ "$host" = fails ] && [ -e "@ROOM@/asked" ]; }; then
    echo "ssh: connect to host $host port 22: Connection refused" >&2
    exit 255
fi
[ "$host" != fails ] || touch "@ROOM@/asked"
mkdir -p "@ROOM@/$host"
export SHELL=/bin/false
exec unshare --mount sh -c 'mount --bind "$1" "$2" && cd / && exec sh -c "$3"' sh "@ROOM@/$host" "@ROOM@/r" "$*"
"#;

#[test]
fn gnu_parallel_brings_results_from_other_machines_and_tries_cells_elsewhere() {
    if let Some(why) = missing(&["parallel", "rsync", "unshare", "perl"]) {
        return skip(&why).unwrap_or_default();
    }
    if !apart() {
        return skip("no mounts of one's own").unwrap_or_default();
    }
    let room = tempfile::tempdir().unwrap();
    let room = room.path();
    let ssh = room.join("ssh");
    write(&ssh, &SSH.replace("@ROOM@", room.to_str().unwrap()));
    let on = |hosts: &str, more: &[&str]| {
        let mut command = pagemill(room);
        command
            .args(["reproduce", "--on", "parallel", hosts, "-o", "r", "--reps", "2"])
            .args(CELLS);
        ran(command.args(more).env("PARALLEL_SSH", &ssh).env("HOME", room))
    };
    let dry = on("works,fails", &["--dry-run"]);
    assert_eq!(dry.code(), Some(0), "{dry:?}");
    assert!(dry.out.starts_with("parallel --sshlogin works,fails --jobs 1 --retries 3"), "{dry:?}");
    assert!(!room.join("r").exists(), "a dry run writes nothing");

    let nobody = on("dead", &[]);
    assert_eq!(nobody.code(), Some(3), "{nobody:?}");
    for word in
        ["host dead is down after three tries", "Connection refused", "  pauses/churn/glibc/1\n"]
    {
        assert!(nobody.err.contains(word), "{word}: {nobody:?}");
    }
    let run = on("works,dead,fails", &[]);
    assert_eq!(run.code(), Some(0), "{run:?}");
    assert!(
        run.err.contains("host dead is down") && !run.err.contains("host fails is down"),
        "{run:?}"
    );
    assert_eq!(finished(&room.join("r")), 4);
    let there = |host: &str| finished(&room.join(host));
    assert_eq!((there("works"), there("fails")), (4, 0), "cells ran on the host that works");
    let log = fs::read_to_string(room.join("r/parallel.log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\tworks\t")).count(), 4, "{log}");
    let (run, answer) = collected(room, "r");
    assert_eq!((run.code(), &answer["cells"]), (Some(0), &Value::from(4)), "{run:?}");
}

#[test]
fn arms_are_those_of_the_experiment_that_they_are_named_with_in_the_matrix_and_in_a_cell() {
    let room = tempfile::tempdir().unwrap();
    let on = |words: &[&str]| {
        let mut command = pagemill(room.path());
        ran(command.args(["reproduce", "--on", "slurm"]).args(words).env("PATH", "/nowhere"))
    };
    let chosen = [
        "fragmentation",
        "--programs",
        "fmm",
        "--arms",
        "thp-on.compacted",
        "--dry-run",
        "-o",
        "a",
    ];
    let alone = on(&chosen);
    assert!(alone.code() == Some(0) && alone.err.contains("5 of 5 cells"), "{alone:?}");
    let both = on(&["pauses", "fragmentation", "--quick", "--arms", "glibc", "-o", "b"]);
    assert!(both.err.contains("slurm-client"), "{both:?}");
    if !root() {
        return skip("fragmentation is root's").unwrap_or_default();
    }
    let cell = "fragmentation/streamcluster/thp-off.compacted/1";
    for _ in 0..2 {
        let run = ran(pagemill(room.path()).args(["reproduce", "--cell", cell, "-o", "b"]));
        assert!(run.code() == Some(0) && run.err.contains("is finished"), "{run:?}");
    }
}

/// Experiments of each kind, each so small that a run is killed in the middle: what is asked for, its cells, and
/// whether it is root's.
const KILLED: [(&[&str], usize, bool); 5] = [
    (&["pauses", "--arms", "glibc,jemalloc", "--scale", "0.02", "--reps", "3"], 6, false),
    (&["colloid", "--quick", "--programs", "setup,8b,8c"], 3, false),
    (
        &[
            "fragmentation",
            "--quick",
            "--programs",
            "streamcluster",
            "--arms",
            "thp-off.compacted,thp-on.fragmented",
        ],
        4,
        true,
    ),
    (
        &[
            "huge-pages",
            "--programs",
            "mcf",
            "--arms",
            "linux-never,auto",
            "--scale",
            "0.01",
            "--reps",
            "2",
        ],
        10,
        true,
    ),
    (&["moca", "--quick", "--programs", "is"], 8, false),
];

#[test]
fn a_run_that_is_killed_goes_on_with_what_is_left() {
    if let Some(why) = missing(&[]) {
        return skip(&why).unwrap_or_default();
    }
    for (asked, all, roots) in KILLED {
        if roots && !root() {
            let _: Option<()> = skip(&format!("{} is root's", asked[0]));
            continue;
        }
        let room = tempfile::tempdir().unwrap();
        let run = || {
            let mut command = pagemill(room.path());
            command.args(["reproduce", "-f", "-o", "r"]).args(asked).env("TMPDIR", room.path());
            command
        };
        let results = room.path().join("r");
        let mut killed = run().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("a finished cell", || results.join("cells").is_dir() && finished(&results) >= 1);
        killed.kill().unwrap();
        killed.wait().unwrap();
        remove_group(&format!("process {},", killed.id()));
        let before: Vec<(PathBuf, SystemTime)> = cells(&results);
        assert!(before.len() < all, "{asked:?} was over before it was killed");
        let (collect, answer) = collected(room.path(), "r");
        let missing = answer["missing"].as_array().map(Vec::len);
        assert_eq!((collect.code(), missing), (Some(1), Some(all - before.len())), "{collect:?}");
        let went_on = ran(&mut run());
        assert_eq!(went_on.code(), Some(0), "{asked:?}: {went_on:?}");
        let after = cells(&results);
        assert_eq!(after.len(), all, "{asked:?}");
        assert!(
            before.iter().all(|cell| after.contains(cell)),
            "{asked:?}: what was finished is as it was"
        );
        let (collect, answer) = collected(room.path(), "r");
        assert_eq!((collect.code(), &answer["cells"]), (Some(0), &Value::from(all)), "{collect:?}");
        let names = fs::read_dir(room.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let scratch =
            names.filter(|name| name.to_string_lossy().starts_with("pagemill-reproduce."));
        assert_eq!(scratch.count(), 0, "{asked:?}: what was killed left a scratch directory");
        let rows = fs::read_to_string(results.join("cells.csv")).unwrap();
        assert!(asked[0] != "pauses" || rows.matches(",cpu,").count() == all, "{rows}");
    }
}

/// Files of finished cells with their times.
fn cells(results: &Path) -> Vec<(PathBuf, SystemTime)> {
    let found = Command::new("find").arg(results.join("cells")).args(["-name", "*.json"]).output();
    let names = String::from_utf8(found.unwrap().stdout).unwrap();
    let modified = |path: &str| fs::metadata(path).unwrap().modified().unwrap();
    names.lines().map(|path| (path.into(), modified(path))).collect()
}

#[test]
fn a_disk_that_fills_ends_a_run_cleanly_and_the_same_command_goes_on() {
    if let Some(why) = missing(&["unshare"]) {
        return skip(&why).unwrap_or_default();
    }
    if !apart() {
        return skip("no mounts of one's own").unwrap_or_default();
    }
    let room = tempfile::tempdir().unwrap();
    // A disk of 64 KiB of which something else has taken 40, and that is then freed.
    let script = r#"mkdir disk && mount -t tmpfs -o size=64k none disk || exit 77
        mkdir -p disk/r/cells/pauses/churn disk/r/samples
        head -c 100000 /dev/zero > disk/full 2> /dev/null
        truncate -s 40960 disk/full
        "$@" -f -o disk/r > /dev/null 2> first; echo $?
        find disk/r/cells -name '*.json' -size 0 | wc -l
        find disk/r -name '.pagemill-*' | wc -l
        rm disk/full
        mount -o remount,size=4m disk
        "$@" -f -o disk/r > /dev/null 2> second; echo $?
        find disk/r/cells -name '*.json' | wc -l
        rm disk/r/summary.json disk/r/report.*
        head -c 9000000 /dev/zero > disk/full 2> /dev/null
        truncate -s -16384 disk/full
        "$@" -f -o disk/r > /dev/null 2> third; echo $?"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_pagemill")]);
    command.args(["reproduce", "--reps", "3"]).args(CELLS).current_dir(room.path());
    let run = ran(command.env("PAGEMILL_HEAP_LIB", support::library()));
    if run.code() == Some(77) {
        return skip("no disk of one's own can be mounted").unwrap_or_default();
    }
    let said = |name: &str| fs::read_to_string(room.path().join(name)).unwrap_or_default();
    assert_eq!(
        run.out.split_whitespace().collect::<Vec<_>>(),
        ["2", "0", "0", "0", "6", "2"],
        "{run:?} {} {} {}",
        said("first"),
        said("second"),
        said("third")
    );
    for (name, what) in [
        ("first", "is not kept; the same command goes on"),
        ("third", "all that ran is kept; the same command makes the tables"),
    ] {
        let why = said(name);
        assert!(why.contains(what) && why.contains("No space left"), "{why}");
    }
}

//! The programs of the experiment, each under any policy: started, loaded, watched, measured.
//!
//! | program | what it does | its time |
//! |---|---|---|
//! | `growing-server`, `thp-ubmk` | built in (`pagemill workload`) | as it reports |
//! | `redis` | `redis-benchmark` SET of values of 2 KB, 8 connections, 16 in flight, each key new | of the requests |
//! | `memcached` | sets of 2 KB over a Unix socket, 16 in flight, each key new | of the requests |
//! | `wiredtiger` | MongoDB's engine behind a socket, YCSB with CBMM's shares for it, checked | of the operations |
//! | `canneal` | built in: wires of a chip, moved at random | start to end |
//! | `mcf`, `mix` | built in: network simplex; a matrix product beside a memory hog | start to end |
//! | `xz` | compresses text at level 9 | start to end |
//! | `sqlite`, `gcc` | the inputs of the experiments `sqlite` and `compiler` | start to end |
//! | `python` | a dictionary of numbers and strings | start to end |
//! | `postgres` | a cluster on a Unix socket, `pgbench` selects from it | of the transactions |
//! | `pass`, `zstd`, `node`, `java`, `duckdb` | [`super::applications`] | start to end |
//!
//! Each runs as `pagemill run --huge ARM -- PROGRAM`. A traced run has `pagemill record --with faults` between the two
//! and gives only its faults. What is sampled (every 50 ms) is the same for all arms.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagemill_analysis::faults::{FaultFold, LOSS_LIMIT, loss};
use pagemill_analysis::latency::Histogram;
use pagemill_analysis::statistics::quantile;
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_model::Fold as _;
use pagemill_model::Pid;
use pagemill_model::recording::Reader;
use pagemill_policy::huge::{self, ProfileUse};
use pagemill_workloads::generate;
use serde_json::Value;

use super::applications::{self, Cluster, interpreter};
use crate::reproduce::input::{Inputs, PATIENCE, compiler_proper};
use crate::reproduce::packages::find;
use crate::reproduce::wiredtiger;
use pagemill_launch::exit::Interrupted;

/// The policies that need nothing of ours: the kernel carries them out.
pub fn by_kernel() -> impl Iterator<Item = &'static str> {
    let policies = huge::POLICIES.iter().filter(|policy| policy.mechanism().by_kernel);
    policies.map(|policy| policy.name())
}

/// Whether an arm learns from earlier runs of the same command.
pub fn learns(arm: &str) -> bool {
    huge::find(arm).is_some_and(|policy| policy.tries().is_some())
}

/// Figures of a run, by name: seconds, bytes, shares.
pub type Figures = BTreeMap<&'static str, f64>;

/// Bytes of a value that is set.
const VALUE: usize = 2048;
/// The figure of the CPU time of a program and of what is beside it, its client apart.
pub const OWN: &str = "cpu_own";
/// Requests in flight.
const PIPELINE: usize = 16;

const PYTHON: &str = "\
import sys
count = int(sys.argv[1])
words = {i: str(i) * 2 for i in range(count)}
print(sum(len(words[i]) for i in range(0, count, 7)))
";

/// For a policy that uses no huge page without a profile: this gives all of heap and mmap the benefit that the
/// artifact's tuned profiles give.
const PROFILE: &str = "huge,heap,4294967296\nhuge,mmap,4294967296\n";

/// What a policy that learns may know of earlier runs of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing.
    Forgotten,
    /// What they taught it.
    Known,
}

/// A run.
#[derive(Clone, Copy)]
struct RunOf<'a> {
    program: &'a str,
    arm: &'a str,
    earlier: Earlier,
    /// Where its page faults are recorded.
    traced: Option<&'a Path>,
}

/// What all runs share.
pub struct Bench<'a> {
    /// The machine.
    pub linux: &'a Linux,
    /// This program.
    pub executable: PathBuf,
    /// What programs read.
    pub inputs: &'a Inputs,
    /// What ends it.
    pub signals: &'a Signals,
    /// Factor on all sizes.
    pub scale: f64,
    /// The cluster of `postgres`, made when it is first wanted.
    pub cluster: OnceCell<Cluster>,
}

/// Why a program cannot be run here; `None` if it can.
pub fn missing(program: &str) -> Option<String> {
    let need = |pairs: &[(&str, &str)]| {
        pairs.iter().find_map(|(name, package)| find(name, package).err()).map(|e| e.to_string())
    };
    match program {
        "redis" => need(&[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")]),
        "memcached" => need(&[("memcached", "memcached")]),
        "wiredtiger" => wiredtiger::built().err().map(|error| error.to_string()),
        "xz" => need(&[("xz", "xz-utils")]),
        "sqlite" => need(&[("sqlite3", "sqlite3")]),
        "python" | "pass" => need(&[("python3", "python3")]),
        "gcc" => compiler_proper().err().map(|error| error.to_string()),
        _ => applications::missing(program),
    }
}

/// A wrapper with a program in it, and who watches them. Ends both when dropped.
struct Running {
    child: Child,
    /// CPU time of children that had ended when it was started.
    before: Duration,
    watch: Option<(mpsc::Sender<()>, JoinHandle<PeakUsage>)>,
}

/// Most memory seen, and how it was.
#[derive(Clone, Copy, Debug, Default)]
struct PeakUsage {
    resident: u64,
    anonymous: u64,
    huge: u64,
    /// CPU time of the program, all its threads.
    cpu: Duration,
}

impl Running {
    fn end(&mut self) -> Result<ExitStatus> {
        signal::send(Pid(self.child.id()), TERMINATE)?;
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > patience {
                bail!("it did not end within 10 s");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn seen(&mut self) -> PeakUsage {
        let Some((stop, thread)) = self.watch.take() else { return PeakUsage::default() };
        drop(stop);
        thread.join().unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.seen();
        if matches!(self.child.try_wait(), Ok(None)) && self.end().is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `SIGTERM`.
const TERMINATE: i32 = 15;

impl Bench<'_> {
    fn scaled(&self, full: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(1)
    }

    /// Bytes that a program takes at most, its client included, and some more.
    pub fn memory(&self, program: &str) -> f64 {
        let (fixed, scaled) = match program {
            "thp-ubmk" => (0.0, 2.25),
            // Its tables are for 64 MiB of text, however much there is.
            "xz" => (0.75, 0.1),
            "mix" => (0.05, 1.25),
            _ => (0.05, 1.0),
        };
        (fixed + scaled * self.scale) * (1_u64 << 30) as f64
    }

    fn cluster(&self) -> Result<&Cluster> {
        if self.cluster.get().is_none() {
            let _ = self.cluster.set(Cluster::new(self.signals, self.scaled(20))?);
        }
        self.cluster.get().context("there is no cluster")
    }

    /// Text to compress.
    fn text(&self) -> Result<PathBuf> {
        let text = self.at("text");
        if !text.exists() {
            let mut out = std::io::BufWriter::new(fs::File::create(&text)?);
            generate::sql_script(&mut out, self.scaled(60_000), 1)?;
        }
        Ok(text)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.inputs.directory().join(name)
    }

    /// Waits for a signal to end, at most `pause`.
    ///
    /// # Errors
    /// One has come.
    pub fn go_on(&self, pause: Duration) -> Result<()> {
        match self.signals.wait(pause)? {
            Some(received) => Err(Interrupted(received.signal).into()),
            None => Ok(()),
        }
    }

    /// The program's command line.
    fn command(&self, program: &str) -> Result<Vec<OsString>> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let file = |name: &str| -> Result<fs::File> { Ok(fs::File::create(self.at(name))?) };
        let built_in = |scale: f64, more: &[&str]| {
            let mut all = vec![self.executable.clone().into()];
            all.extend(words(&["workload", program, "--scale", &scale.to_string()]));
            all.extend(words(more));
            all
        };
        Ok(match program {
            // 800 MiB at full size.
            "growing-server" => built_in(self.scale, &["--think", "0.5"]),
            // 4 GiB.
            "thp-ubmk" => built_in(self.scale / 2.0, &[]),
            // 125,000 elements of the 2.5 million.
            "canneal" => built_in(self.scale / 20.0, &[]),
            // 30,000 nodes, 330,000 arcs.
            "mcf" => built_in(self.scale / 2.0, &[]),
            // 1 GiB of hog.
            "mix" => built_in(self.scale, &[]),
            "redis" | "memcached" | "wiredtiger" => self.server(program)?,
            "xz" => {
                let mut all = vec![find("xz", "xz-utils")?.into()];
                all.extend(words(&["-9", "-T1", "-k", "-c"]));
                all.push(self.text()?.into());
                all
            }
            "sqlite" => {
                let script = self.at("huge.sql");
                if !script.exists() {
                    let rows = self.scaled(100_000);
                    generate::sql_script(&mut std::io::BufWriter::new(file("huge.sql")?), rows, 1)?;
                }
                let mut all = vec![find("sqlite3", "sqlite3")?.into()];
                all.extend(words(&["-batch", "-init", "/dev/null", ":memory:"]));
                all.push(format!(".read {}", script.display()).into());
                all
            }
            "python" => {
                let count = self.scaled(2_000_000).to_string();
                let mut all = vec![interpreter()?];
                all.extend(words(&["-c", PYTHON, &count]));
                all
            }
            "gcc" => {
                let source = self.at("huge.c");
                if !source.exists() {
                    let functions = self.scaled(2000);
                    let mut out = std::io::BufWriter::new(file("huge.c")?);
                    generate::c_program(&mut out, functions, 1)?;
                }
                let mut all = vec![compiler_proper()?.into()];
                all.extend(words(&["-quiet", "-O1", "-o", "/dev/null"]));
                all.push(source.into());
                all
            }
            "pass" => vec![interpreter()?, "-c".into(), "pass".into()],
            "zstd" => {
                let mut all = vec![find("zstd", "zstd")?.into()];
                all.extend(words(&["-q", "-12", "--single-thread", "-c"]));
                all.push(self.text()?.into());
                all
            }
            "postgres" => self.cluster()?.server()?,
            "node" | "java" | "duckdb" => {
                let (mut all, name, script) = applications::script(program)?;
                fs::write(self.at(name), script)?;
                all.push(self.at(name).into());
                all.push(self.scaled(1_000_000).to_string().into());
                all
            }
            other => bail!("no program is called {other:?}"),
        })
    }

    /// The command line of a server.
    fn server(&self, program: &str) -> Result<Vec<OsString>> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        Ok(match program {
            "redis" => {
                let mut all = vec![find("redis-server", "redis-server")?.into()];
                all.extend(words(&["--port", "0", "--save", "", "--appendonly", "no"]));
                all.extend(words(&["--daemonize", "no", "--disable-thp", "no", "--unixsocket"]));
                all.push(self.at("redis.sock").into());
                all
            }
            "memcached" => {
                let mut all = vec![find("memcached", "memcached")?.into()];
                all.extend(words(&["-m", "8192", "-t", "1", "-s"]));
                all.push(self.at("memcached.sock").into());
                if self.linux.is_root() {
                    all.extend(words(&["-u", "root"]));
                }
                all
            }
            _ => {
                let (server, data) = (wiredtiger::built()?, self.at("wiredtiger"));
                // All records fit, so that what is measured is memory and not the disk.
                let cache = self.scaled(2048).max(128).to_string();
                vec![server.into(), self.at("wiredtiger.sock").into(), data.into(), cache.into()]
            }
        })
    }

    fn start(&self, RunOf { program, arm, earlier, traced }: RunOf<'_>) -> Result<Running> {
        let _ = fs::remove_file(self.at("stats.json"));
        let mut words: Vec<OsString> = vec![self.executable.clone().into()];
        words.extend(["run", "--huge", arm].map(OsString::from));
        // Nobody stays beside a program that the kernel's own settings are for, unless there is something to count.
        let mechanism = huge::find(arm).context("there is no such policy")?.mechanism();
        if !mechanism.by_kernel {
            words.extend(["--stats".into(), self.at("stats.json").into()]);
        }
        if earlier == Earlier::Forgotten && learns(arm) {
            words.push("--forget".into());
        }
        if mechanism.profile == ProfileUse::Required {
            let profile = self.at("profile.csv");
            fs::write(&profile, PROFILE)?;
            words.extend(["--profile".into(), profile.into()]);
        }
        words.push("--".into());
        if let Some(recording) = traced {
            words.push(self.executable.clone().into());
            let with = ["record", "--with", "faults", "--threshold", "1ms", "-f", "-o"];
            words.extend(with.map(OsString::from));
            words.extend([recording.into(), "--".into()]);
        }
        words.extend(self.command(program)?);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        self.signals.restore_in(&mut command);
        let create = |name: &str| fs::File::create(self.at(name));
        command.stdin(Stdio::null()).stdout(create("output")?).stderr(create("complaints")?);
        let before = of_ended();
        let mut child = command.spawn().context("cannot start this binary")?;
        let alone = !mechanism.needs_supervisor();
        let watch = traced.is_none().then(|| watch(self.linux, Pid(child.id()), alone)).transpose();
        let watch = watch.inspect_err(|_| kill(&mut child))?;
        Ok(Running { child, before, watch })
    }

    fn complaint(&self) -> String {
        let text = fs::read_to_string(self.at("complaints")).unwrap_or_default();
        crate::reproduce::outcome::last_line(&text).to_owned()
    }

    /// Runs a program and measures it.
    ///
    /// # Errors
    /// It cannot be run here, does not do what it should, or a signal to end has come.
    pub fn measure(&self, program: &str, arm: &str, earlier: Earlier) -> Result<Figures> {
        let (mut figures, seen) = self.run(RunOf { program, arm, earlier, traced: None })?;
        let client = figures.get("client").copied().unwrap_or(0.0);
        figures.insert(OWN, figures["cpu_all"] - client);
        figures.entry("resident").or_insert(seen.resident as f64);
        if seen.anonymous > 0 {
            figures.entry("share").or_insert(seen.huge as f64 / seen.anonymous as f64);
        }
        let stats = fs::read_to_string(self.at("stats.json")).unwrap_or_default();
        let stats: Value = serde_json::from_str(&stats).unwrap_or_default();
        let processes = stats["processes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let helper: u64 = processes.iter().filter_map(|p| p["helper_cpu_ns"].as_u64()).sum();
        figures.insert("helper", helper as f64 / 1e9);
        figures.extend(stats["earlier_runs"].as_f64().map(|runs| ("earlier", runs)));
        figures.insert("cpu", seen.cpu.as_secs_f64());
        Ok(figures)
    }

    /// Runs a program once more for its page faults alone.
    ///
    /// # Errors
    /// As of `measure`; no fault was recorded, or too many were lost.
    pub fn faults(&self, program: &str, arm: &str) -> Result<Histogram> {
        let recording = self.at("faults");
        self.run(RunOf { program, arm, earlier: Earlier::Forgotten, traced: Some(&recording) })?;
        let mut reader = Reader::open(&recording)?;
        let setup = reader.meta().faults.clone().context("no page fault was recorded")?;
        ensure!(loss(&setup) <= LOSS_LIMIT, "more than 1 % of the page faults were lost");
        let mut fold = FaultFold::new(&setup, reader.meta().started);
        fold.drain(&mut reader)?;
        Ok(fold.view().all)
    }

    fn run(&self, of: RunOf<'_>) -> Result<(Figures, PeakUsage)> {
        let program = of.program;
        for socket in ["redis.sock", "memcached.sock", "wiredtiger.sock"] {
            let _ = fs::remove_file(self.at(socket));
        }
        if program == "wiredtiger" {
            wiredtiger::emptied(&self.at("wiredtiger"))?;
        }
        let began = Instant::now();
        let mut running = self.start(of)?;
        let served = matches!(program, "redis" | "memcached" | "wiredtiger" | "postgres");
        let (mut figures, status) = if served {
            let mut figures = match program {
                "redis" => self.load_redis(&mut running)?,
                "memcached" => self.load_memcached(&mut running)?,
                "wiredtiger" => self.load_wiredtiger(&mut running)?,
                _ => self.load_postgres(&mut running)?,
            };
            // Nobody but clients has ended since it was started.
            figures.insert("client", of_ended().saturating_sub(running.before).as_secs_f64());
            (figures, running.end()?)
        } else {
            self.to_the_end(&mut running, began)?
        };
        // A server that handles the signal ends with 0, another one by the signal.
        ensure!(
            status.success() || served && status.code().is_none(),
            "it ended with {status}: {}",
            self.complaint()
        );
        let seen = running.seen();
        figures.insert("cpu_all", of_ended().saturating_sub(running.before).as_secs_f64());
        let reported = matches!(program, "growing-server" | "thp-ubmk");
        Ok((if reported { self.reported(figures)? } else { figures }, seen))
    }

    fn to_the_end(&self, running: &mut Running, began: Instant) -> Result<(Figures, ExitStatus)> {
        loop {
            if let Some(status) = running.child.try_wait()? {
                let figures = Figures::from([("time", began.elapsed().as_secs_f64())]);
                return Ok((figures, status));
            }
            ensure!(began.elapsed() < PATIENCE, "still running after {} s", PATIENCE.as_secs());
            self.go_on(Duration::from_millis(2))?;
        }
    }

    /// What `pagemill workload` printed.
    fn reported(&self, mut figures: Figures) -> Result<Figures> {
        let text = fs::read_to_string(self.at("output"))?;
        let report: Value = serde_json::from_str(text.trim()).context("the workload's report")?;
        let get = |value: &Value| value.as_f64().context("a figure of the workload is missing");
        figures.insert("time", get(&report["seconds"])?);
        let metrics = &report["metrics"];
        figures.insert("p99", get(&metrics["p99_us"])? / 1e6);
        figures.insert("p99.9", get(&metrics["p99_9_us"])? / 1e6);
        figures.insert("p99.99", get(&metrics["p99_99_us"])? / 1e6);
        figures.insert("resident", get(&metrics["resident_bytes"])?);
        figures.insert("share", get(&metrics["huge_bytes"])? / get(&metrics["resident_bytes"])?);
        Ok(figures)
    }

    fn connect(&self, running: &mut Running, socket: &Path) -> Result<UnixStream> {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            if let Some(status) = running.child.try_wait()? {
                bail!("the server ended with {status}: {}", self.complaint());
            }
            ensure!(Instant::now() < patience, "the server does not answer");
            self.go_on(Duration::from_millis(5))?;
        }
    }

    fn load_redis(&self, running: &mut Running) -> Result<Figures> {
        let socket = self.at("redis.sock");
        drop(self.connect(running, &socket)?);
        let count = self.scaled(300_000).to_string();
        let mut client = Command::new(find("redis-benchmark", "redis-tools")?);
        client.arg("-s").arg(&socket).args(["-t", "set", "-d", "2048", "-c", "8", "-P", "16"]);
        client.args(["-n", &count, "-r", &count, "--csv"]);
        let text = self.load(client, "redis-benchmark")?;
        benchmark(&text, self.scaled(300_000) as f64).context("redis-benchmark's figures")
    }

    /// 200,000 records of 1,000 bytes at full size, and four operations a record.
    fn load_wiredtiger(&self, running: &mut Running) -> Result<Figures> {
        let socket = self.at("wiredtiger.sock");
        drop(self.connect(running, &socket)?);
        let mut client = Command::new(&self.executable);
        client.args(["workload", "ycsb-redis", "--mix", "mongodb", "--threads", "2", "--server"]);
        client.arg(format!("unix:{}", socket.display()));
        client.arg("--scale").arg((self.scale * 0.8).to_string());
        let report: Value = serde_json::from_str(self.load(client, "the YCSB client")?.trim())?;
        let figure = |name: &str| report["metrics"][name].as_f64().map(|micros| micros / 1e6);
        let found = (report["seconds"].as_f64(), figure("p99_us"), figure("p99.9_us"));
        let (Some(time), Some(p99), Some(p999)) = found else { bail!("the YCSB client's figures") };
        Ok(Figures::from([("time", time), ("p99", p99), ("p99.9", p999)]))
    }

    fn load_postgres(&self, running: &mut Running) -> Result<Figures> {
        let cluster = self.cluster()?;
        drop(self.connect(running, &cluster.socket())?);
        let patience = Instant::now() + Duration::from_secs(20);
        while !cluster.is_ready()? {
            ensure!(Instant::now() < patience, "the server is not ready");
            self.go_on(Duration::from_millis(5))?;
        }
        let began = Instant::now();
        self.load(cluster.client(self.scaled(20_000))?, "pgbench")?;
        Ok(Figures::from([("time", began.elapsed().as_secs_f64())]))
    }

    /// Runs a client to its end. Returns what it printed.
    fn load(&self, mut client: Command, what: &str) -> Result<String> {
        self.signals.restore_in(&mut client);
        client.stderr(Stdio::null()).stdout(fs::File::create(self.at("benchmark"))?);
        let mut client = client.spawn().with_context(|| format!("cannot start {what}"))?;
        let status = loop {
            if let Some(status) = client.try_wait()? {
                break status;
            }
            if let Err(end) = self.go_on(Duration::from_millis(2)) {
                let _ = client.kill();
                let _ = client.wait();
                return Err(end);
            }
        };
        ensure!(status.success(), "{what} ended with {status}");
        Ok(fs::read_to_string(self.at("benchmark"))?)
    }

    fn load_memcached(&self, running: &mut Running) -> Result<Figures> {
        let stream = self.connect(running, &self.at("memcached.sock"))?;
        let mut replies = BufReader::new(stream.try_clone()?);
        let mut requests = stream;
        let value = vec![b'v'; VALUE];
        let batches = self.scaled(300_000) / PIPELINE;
        let mut times = Vec::with_capacity(batches);
        let (mut batch, mut line) = (Vec::new(), String::new());
        let began = Instant::now();
        for number in 0..batches {
            batch.clear();
            for key in number * PIPELINE..(number + 1) * PIPELINE {
                write!(batch, "set key:{key} 0 0 {VALUE}\r\n")?;
                batch.extend_from_slice(&value);
                batch.extend_from_slice(b"\r\n");
            }
            let asked = Instant::now();
            requests.write_all(&batch)?;
            for _ in 0..PIPELINE {
                line.clear();
                replies.read_line(&mut line)?;
                ensure!(line == "STORED\r\n", "memcached answered {line:?}");
            }
            times.push(asked.elapsed().as_secs_f64());
            if number % 256 == 0 {
                self.go_on(Duration::ZERO)?;
            }
        }
        let time = began.elapsed().as_secs_f64();
        let at = |share| quantile(&times, share).unwrap_or(f64::NAN);
        Ok(Figures::from([("time", time), ("p99", at(0.99)), ("p99.9", at(0.999))]))
    }
}

/// The figures in `redis-benchmark --csv`.
pub fn benchmark(text: &str, requests: f64) -> Option<Figures> {
    let mut lines = text.lines().map(|line| line.split(',').map(|word| word.trim_matches('"')));
    let (names, values) = (lines.next()?, lines.next()?);
    let found: BTreeMap<&str, &str> = names.zip(values).collect();
    let get = |name: &str| found.get(name)?.parse::<f64>().ok();
    Some(Figures::from([("time", requests / get("rps")?), ("p99", get("p99_latency_ms")? / 1e3)]))
}

/// CPU time of all children that have ended.
fn of_ended() -> Duration {
    let ended = resources(UsageScope::EndedChildren);
    ended.user + ended.system
}

/// Ends a program that cannot be measured.
fn kill(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill().and_then(|()| child.wait());
}

/// Looks at the program that a process runs, or is if it is `alone`, until told to stop.
fn watch(
    linux: &Linux,
    child: Pid,
    alone: bool,
) -> pagemill_kernel::Result<(mpsc::Sender<()>, JoinHandle<PeakUsage>)> {
    const EVERY: Duration = Duration::from_millis(50);
    let (stop, stopped) = mpsc::channel();
    let linux = linux.clone();
    let look = move || {
        let mut seen = PeakUsage::default();
        let mut program = alone.then_some(child);
        while stopped.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            program = program.or_else(|| linux.children(child).ok()?.first().copied());
            let Some(pid) = program else { continue };
            if let Ok(stat) = linux.stat(pid) {
                seen.cpu = seen.cpu.max(stat.user + stat.system);
            }
            let Ok(usage) = linux.smaps_rollup(pid) else { continue };
            let (resident, anonymous) = (usage.rss.unwrap_or(0), usage.anonymous.unwrap_or(0));
            seen.resident = seen.resident.max(resident);
            if anonymous >= seen.anonymous {
                seen.anonymous = anonymous;
                seen.huge = usage.anon_huge_pages.unwrap_or(0);
            }
        }
        seen
    };
    Ok((stop, pagemill_kernel::process::thread::start(look)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_redis_benchmark_are_found_by_their_names() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"p99_latency_ms\"\n\"SET\",\"200000.00\",\"0.2\",\"0.751\"\n";
        let figures = benchmark(text, 300_000.0).unwrap();
        assert_eq!(figures, Figures::from([("time", 1.5), ("p99", 0.000_751)]));
        assert_eq!(benchmark("\"test\",\"rps\"\n\"SET\",\"1\"\n", 1.0), None);
    }

    #[test]
    fn every_program_is_known_and_no_other() {
        let inputs = Inputs::new("pagemill".into(), 1).unwrap();
        let signals = Signals::block(&[]).unwrap();
        let linux = Linux::live();
        let bench = Bench {
            linux: &linux,
            executable: "pagemill".into(),
            inputs: &inputs,
            signals: &signals,
            scale: 0.001,
            cluster: OnceCell::new(),
        };
        for program in super::super::programs() {
            let command = bench.command(program);
            assert!(command.is_ok() || missing(program).is_some(), "{program}: {command:?}");
        }
        assert!(bench.command("doom").is_err());
    }
}

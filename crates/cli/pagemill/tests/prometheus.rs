//! `pagemill export --prometheus`: the page, the textfile, and a scrape by Prometheus itself.

#![expect(clippy::unwrap_used, reason = "what cannot be set up fails the test")]

#[cfg(test)]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use pagemill_kernel::Linux;
use pagemill_model::Pid;
use support::{pagemill, pagemill_with, ran, skip, until};

/// A program that is ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell that waits for a line.
struct Waiting(Running, Option<ChildStdin>);

impl Waiting {
    fn new() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let input = child.stdin.take();
        Self(Running(child), input)
    }

    fn pid(&self) -> String {
        self.0.0.id().to_string()
    }
}

/// An exporter that listens at a port of its own.
struct Listening(Running, SocketAddr);

impl Listening {
    fn start(arguments: &[&str]) -> Self {
        let mut command = pagemill();
        command.args(["export", "--prometheus", "--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut lines = said.lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("http://")).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
        Self(Running(child), address.parse().unwrap())
    }

    fn page(&self) -> String {
        get(self.1, "/metrics").unwrap()
    }
}

/// What is answered to these bytes.
fn asked(address: SocketAddr, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    // Who ends its side of the connection is taken to have gone away by Prometheus.
    stream.write_all(request)?;
    let mut answer = Vec::new();
    // Who hangs up on what is no request may do so in any way.
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8(answer).unwrap())
}

/// The body of an answer of 200.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = asked(address, request.as_bytes()).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
}

/// Holds a page against the rules of its format, by Prometheus' own tool where there is one.
fn is_valid(page: &str) {
    let mut typed = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut latest = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            latest = rest.split(' ').next().unwrap();
            assert!(typed.insert(latest), "{latest} twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        assert!(name == latest || base == Some(latest), "{line} stands below {latest}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(seen.insert(series), "{series} twice");
    }
    assert!(typed.len() > 8, "{page}");
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut checking) = tool.spawn() else {
        return skip("promtool, of the package prometheus, is not installed").unwrap_or(());
    };
    checking.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let done = checking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.success() && said.is_empty(),
        "{said}{}",
        String::from_utf8_lossy(&done.stdout)
    );
}

#[test]
fn a_page_has_the_process_its_cgroup_free_memory_and_tiers() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let run = pagemill_with(&["export", "--prometheus", "-p", &pid]);
    assert_eq!((run.code(), run.err.as_str()), (Some(0), ""), "{run:?}");
    is_valid(&run.out);
    let process = format!("{{pid=\"{pid}\",comm=\"sh\",");
    for name in [
        "process_memory_bytes",
        "process_cpu_seconds_total",
        "process_page_faults_total",
        "malloc_heap_bytes",
        "malloc_free_bytes",
        "malloc_returnable_bytes",
        "malloc_pieces_bytes",
    ] {
        assert!(run.out.contains(&format!("\npagemill_{name}{process}")), "{name} in {}", run.out);
    }
    for start in ["unusable_free_space_ratio{node=\"0\",", "tier_daemons "] {
        assert!(run.out.contains(&format!("\npagemill_{start}")), "{start} in {}", run.out);
    }
    if let Ok(group) = Linux::live().memory_cgroup(Pid(waiting.0.0.id())) {
        let line = format!("\npagemill_cgroup_memory_bytes{{cgroup=\"{}\"}} ", group.name());
        // The root group of version 2 has no charge.
        assert!(group.charge().is_err() || run.out.contains(&line), "{line} in {}", run.out);
    }
}

#[test]
fn a_process_on_our_heap_is_found_by_itself_and_has_its_heap() {
    let mut command = pagemill();
    command.args(["run", "--mesh", "1y", "--", "sh", "-c", "echo; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let child = Running(child);
    let run = pagemill_with(&["export", "--prometheus"]);
    let line = format!("\npagemill_heap_live_bytes{{pid=\"{}\",", child.0.id());
    assert!(run.out.contains(&line), "{line} in {run:?}");
    is_valid(&run.out);
}

#[test]
fn a_cgroup_is_all_its_processes() {
    let waiting = Waiting::new();
    let linux = Linux::live();
    let Ok(group) = linux.memory_cgroup(Pid(waiting.0.0.id())) else {
        return skip("no memory cgroup").unwrap_or(());
    };
    let directory = group.directory().to_str().unwrap().to_owned();
    let run = pagemill_with(&["export", "--prometheus", "--cgroup", &directory]);
    let line = format!("\npagemill_process_memory_bytes{{pid=\"{}\",", waiting.pid());
    assert!(run.out.contains(&line), "{line} in {run:?}");
    is_valid(&run.out);
}

#[test]
fn a_textfile_is_replaced_whole_and_others_are_left_alone() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("pagemill.prom");
    let write = |path: &std::path::Path, more: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(pagemill().get_program());
        shell.args(["export", "--prometheus", "-o"]).arg(path);
        ran(shell.args(more))
    };
    for _ in 0..2 {
        let run = write(&path, &[]);
        assert_eq!((run.code(), run.out.as_str()), (Some(0), ""), "{run:?}");
        is_valid(&fs::read_to_string(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }
    assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1, "nothing is left beside it");
    let other = room.path().join("notes");
    fs::write(&other, "mine").unwrap();
    let run = write(&other, &[]);
    assert_eq!(run.code(), Some(2), "{run:?}");
    assert!(run.err.contains("-f to overwrite"), "{run:?}");
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert_eq!(write(&other, &["-f"]).code(), Some(0));
}

#[test]
fn what_cannot_be_exported_is_told() {
    for (arguments, code, word) in [
        (&["--listen", "0.0.0.0:9818"][..], 2, "listen on 127.0.0.1"),
        (&["--listen", "nowhere"], 2, "invalid"),
        (&["-p", "2147483647"], 2, "no such process"),
        (&["--cgroup", "no/such"], 2, "cannot find cgroup no/such"),
        (&["--format", "parquet"], 2, "cannot be used with"),
        (&["--listen", "127.0.0.1:0", "-o", "x"], 2, "cannot be used with"),
    ] {
        let run = pagemill_with(&[&["export", "--prometheus"], arguments].concat());
        assert_eq!(run.code(), Some(code), "{arguments:?}: {run:?}");
        assert!(run.err.contains(word), "{arguments:?}: {run:?}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = pagemill_with(&["export", "--prometheus", "--listen", &address]);
    assert!(run.code() == Some(2) && run.err.contains("cannot listen on"), "{run:?}");
}

#[test]
fn whatever_comes_over_the_network_the_next_scrape_is_answered() {
    let waiting = Waiting::new();
    let exporter = Listening::start(&["-p", &waiting.pid()]);
    let long = vec![b'x'; 100_000];
    for request in [&b""[..], b"\r\n\r\n", b"GET", b"\xff\xfe\r\n\r\n", b"GET /metrics", &long] {
        // It may be hung up on while it still sends.
        let _ = asked(exporter.1, request);
    }
    let status = |request: &str| {
        let answer = asked(exporter.1, format!("{request} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status("GET /else"), "404");
    assert_eq!(status("POST /metrics"), "405");
    assert_eq!(status("GET /metrics?x=1"), "200");
    let head = asked(exporter.1, b"HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    is_valid(&exporter.page());
}

#[test]
fn faults_are_counted_up_while_it_listens_and_an_ended_process_takes_its_lines_with_it() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let mut exporter = Listening::start(&["-p", &pid]);
    let of = format!("{{pid=\"{pid}\",");
    let page = exporter.page();
    is_valid(&page);
    assert!(page.contains(&format!("\npagemill_process_memory_bytes{of}")), "{page}");
    let timed = page.contains("pagemill_process_page_fault_seconds");
    let Waiting(mut child, input) = waiting;
    drop(input);
    child.0.wait().unwrap();
    let page = exporter.page();
    assert!(
        page.contains("\npagemill_processes 0\n") || page.starts_with("# HELP pagemill_processes"),
        "{page}"
    );
    assert!(!page.contains(&of), "{page}");
    if !timed {
        println!("skipped: page faults cannot be timed here");
    }
    // A signal ends it well.
    let exporter_pid = exporter.0.0.id().to_string();
    assert!(Command::new("kill").arg(&exporter_pid).status().unwrap().success());
    assert_eq!(exporter.0.0.wait().unwrap().code(), Some(0));
}

#[test]
fn prometheus_itself_scrapes_it() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        return skip("prometheus is not installed").unwrap_or(());
    }
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let exporter = Listening::start(&["-p", &pid]);
    let room = tempfile::tempdir().unwrap();
    let config = room.path().join("prometheus.yml");
    let target = exporter.1;
    let text = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: pagemill\n    static_configs:\n      - \
         targets: ['{target}']\n"
    );
    fs::write(&config, text).unwrap();
    // A port that was free a moment ago; who takes it meanwhile makes Prometheus end, and another one is tried.
    let (_prometheus, api) = (0..10)
        .find_map(|_| {
            let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut command = Command::new("prometheus");
            command.arg(format!("--config.file={}", config.display()));
            command.arg(format!("--storage.tsdb.path={}", room.path().join("data").display()));
            command.arg(format!("--web.listen-address={api}"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut prometheus = Running(command.spawn().unwrap());
            let mut ended = false;
            until("prometheus is ready or has ended", || {
                ended = prometheus.0.try_wait().unwrap().is_some();
                ended || get(api, "/-/ready").is_some()
            });
            (!ended).then_some((prometheus, api))
        })
        .unwrap();
    let mut answer = String::new();
    let query = |what: &str| get(api, &format!("/api/v1/query?query={what}")).unwrap_or_default();
    until("a scrape of the process", || {
        answer = query("pagemill_process_memory_bytes");
        answer.contains(&format!("\"pid\":\"{pid}\""))
    });
    assert!(
        answer.contains("\"status\":\"success\"") && answer.contains("\"comm\":\"sh\""),
        "{answer}"
    );
    let up = query("up");
    assert!(up.contains(&format!("\"instance\":\"{target}\"")) && up.contains(",\"1\"]"), "{up}");
    let ratio = query("max(pagemill_unusable_free_space_ratio)");
    assert!(ratio.contains("\"result\":[{"), "{ratio}");
}

//! Compiles a program, runs it on a heap, and reads what it says of itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagemill_heap::stats::{StatsPage, degraded};
use pagemill_model::Pid;

use crate::support;

/// Says what is not tested here and why.
pub fn skip(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
}

/// Seconds for a timed test: `default`, or `PAGEMILL_SOAK`.
pub fn seconds(default: u64) -> u64 {
    soak().unwrap_or(default)
}

/// `PAGEMILL_SOAK`, if set.
pub fn soak() -> Option<u64> {
    std::env::var("PAGEMILL_SOAK")
        .ok()
        .map(|text| text.parse().expect("PAGEMILL_SOAK is a number of seconds"))
}

/// The seed of this run; every command that a failure prints contains it.
pub fn seed() -> String {
    static SEED: OnceLock<String> = OnceLock::new();
    SEED.get_or_init(|| {
        std::env::var("PAGEMILL_SEED").unwrap_or_else(|_| {
            let since =
                SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
            (since.as_millis() % 1_000_000_000).to_string()
        })
    })
    .clone()
}

/// Whether this process is root.
pub fn root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The allocator under test.
#[derive(Clone, PartialEq, Eq)]
pub enum Allocator {
    /// Ours.
    Pagemill,
    /// Another library, or the C library's own: to prove a test.
    Other(Option<PathBuf>),
}

/// The allocator under test: ours, unless `PAGEMILL_STRESS_ALLOCATOR` names another.
pub fn allocator() -> Allocator {
    match std::env::var_os("PAGEMILL_STRESS_ALLOCATOR") {
        None => Allocator::Pagemill,
        Some(name) if name == "none" => Allocator::Other(None),
        Some(name) => Allocator::Other(Some(name.into())),
    }
}

/// Our library: the file that `PAGEMILL_HEAP_LIB` names, or a fresh build.
fn library() -> PathBuf {
    std::env::var_os("PAGEMILL_HEAP_LIB").map_or_else(support::library, PathBuf::from)
}

/// A heap to run on.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// `PAGEMILL_MESH`.
    pub config: &'static str,
    /// `PAGEMILL_BACKEND`.
    pub backend: &'static str,
}

/// The configuration that most tests use: the default one, with the back end that needs no `ksmd`.
pub const REMAP: Heap = Heap { config: "1y", backend: "remap" };

/// Every configuration on the remap back end.
pub const CONFIGS: [Heap; 7] = [
    Heap { config: "0n", backend: "remap" },
    Heap { config: "1n", backend: "remap" },
    Heap { config: "2n", backend: "remap" },
    Heap { config: "0y", backend: "remap" },
    Heap { config: "1y", backend: "remap" },
    Heap { config: "2y", backend: "remap" },
    Heap { config: "h", backend: "remap" },
];

impl Heap {
    /// Whether this machine lets it compact.
    fn compacts(self) -> bool {
        self.backend == "ksm" || can_remap()
    }

    /// The variables that make a program use this heap and compact all the time.
    pub fn variables(self) -> Vec<(&'static str, String)> {
        let preload = match allocator() {
            Allocator::Pagemill => library().display().to_string(),
            Allocator::Other(path) => {
                path.map(|path| path.display().to_string()).unwrap_or_default()
            }
        };
        vec![
            ("LD_PRELOAD", preload),
            ("PAGEMILL_MESH", self.config.into()),
            ("PAGEMILL_BACKEND", self.backend.into()),
            ("PAGEMILL_HELPER_MIN", "0".into()),
            ("PAGEMILL_PERIOD_MS", "1".into()),
        ]
    }
}

/// How a program ended and what it printed.
pub struct Outcome {
    /// Its command, to be run again by hand.
    pub command: String,
    /// Its status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Panics with everything that is known, unless the program ended with status 0.
    pub fn succeeded(self) -> Self {
        assert!(self.status.success(), "the program failed\n{self}");
        self
    }

    /// The `name=number` facts on the program's `stress:` lines.
    pub fn facts(&self) -> HashMap<&str, u64> {
        self.stderr
            .lines()
            .filter_map(|line| line.strip_prefix("stress: "))
            .flat_map(|line| line.split(' '))
            .filter_map(|fact| fact.split_once('='))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect()
    }

    /// Asserts that something was merged while the program ran: else it proved nothing. Where the machine does not
    /// allow compaction, says so instead.
    pub fn compacted(&self, what: &str) {
        let facts = self.facts();
        let (Some(&merged), Some(&backend), Some(&reasons)) =
            (facts.get("merged"), facts.get("backend"), facts.get("degraded"))
        else {
            assert!(allocator() != Allocator::Pagemill, "no statistics page\n{self}");
            return skip(what, "another allocator: nothing is compacted");
        };
        if backend == 0 && !can_remap() {
            return skip(what, &format!("the heap cannot compact here: {}", reasons_of(reasons)));
        }
        assert!(
            merged > 0,
            "{what}: nothing was merged ({}), so nothing was proved\n{self}",
            reasons_of(reasons)
        );
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tail = |text: &str| -> String {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        writeln!(f, "command: {}", self.command)?;
        match self.status.signal() {
            Some(signal) => writeln!(f, "killed by signal {signal}")?,
            None => writeln!(f, "status: {}", self.status.code().unwrap_or(-1))?,
        }
        writeln!(f, "stdout:\n{}\nstderr:\n{}", tail(&self.stdout), tail(&self.stderr))
    }
}

/// Whether the remap back end must work here: root can always stop kernel writers by userfaultfd.
fn can_remap() -> bool {
    root() && File::open("/dev/userfaultfd").is_ok()
}

/// Names the bits of `degraded`.
pub fn reasons_of(bits: u64) -> String {
    let names = [
        (degraded::NO_MEMFD, "no memfd"),
        (degraded::NO_BARRIER, "no barrier against writers"),
        (degraded::NO_THREAD, "no helper thread"),
        (degraded::VMA_BUDGET, "map count used up"),
        (degraded::NO_MEMORY, "memory was refused"),
        (degraded::NO_KSM, "no KSM"),
        (degraded::PINS, "pages may be pinned"),
        (degraded::BAD_CONFIG, "unusable setting"),
    ];
    let named: Vec<&str> =
        names.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, name)| name).collect();
    if named.is_empty() { "not degraded".into() } else { named.join(", ") }
}

/// A folder of this test run's own.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stress");
        fs::create_dir_all(&path).expect("the target folder can be written");
        path
    })
}

/// Whether this command is on the path.
pub fn installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.contains('/') && Path::new(command).exists()
        || std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

/// Whether `io.c` can use io_uring.
pub fn has_liburing() -> bool {
    Path::new("/usr/include/liburing.h").exists()
}

/// The compiled program of `tests/programs` with this file name; `None` (and said) without a compiler.
pub fn program(file: &'static str) -> Option<PathBuf> {
    static COMPILED: Mutex<Option<HashMap<&str, PathBuf>>> = Mutex::new(None);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_with(|| {
        fs::write(folder().join("stats_layout.h"), layout())
            .expect("the target folder can be written");
        HashMap::new()
    });
    if let Some(path) = compiled.get(file) {
        return Some(path.clone());
    }
    let compiler = if file.ends_with(".cpp") { "g++" } else { "gcc" };
    if !installed(compiler) {
        skip(file, &format!("{compiler} is not installed (run: apt-get install {compiler})"));
        return None;
    }
    let out = folder().join(file.replace('.', "_"));
    let mut command = Command::new(compiler);
    // Without builtins: the compiler may otherwise remove an allocation that nobody looks at.
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", "-pthread", "-I"]).arg(folder());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file));
    if file == "io.c" && has_liburing() {
        command.args(["-DWITH_LIBURING", "-luring"]);
    }
    let result = command.arg("-o").arg(&out).output().expect("the compiler was found a moment ago");
    assert!(
        result.status.success(),
        "{file} does not compile:\n{}",
        String::from_utf8_lossy(&result.stderr)
    );
    compiled.insert(file, out.clone());
    Some(out)
}

/// The header with the offset of each field of the statistics page that programs read.
fn layout() -> String {
    macro_rules! offsets {
        ($($field:ident)*) => { [$((stringify!($field), offset_of!(StatsPage, $field))),*] };
    }
    let mut text = String::new();
    for (name, offset) in offsets!(groups request request_done passes backend barrier degraded aborted_groups
        unmerged_pages saved_bytes longest_pause_ns vmas vma_budget)
    {
        writeln!(text, "#define STATS_{name} {offset}").expect("writing to a string cannot fail");
    }
    text
}

/// A program with its arguments, variables, folder and time limit.
pub struct Run {
    command: Command,
    text: String,
    limit: Duration,
}

impl Run {
    /// This program, without any of the heap's variables.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // What cargo sets for this test must not change what the programs do.
            if text.starts_with("PAGEMILL_")
                || text.starts_with("CARGO_")
                || text == "LD_PRELOAD"
                || text == "LD_LIBRARY_PATH"
            {
                command.env_remove(&name);
            }
        }
        if let Some(home) = std::env::var_os("CARGO_HOME") {
            command.env("CARGO_HOME", home);
        }
        let text = program.as_ref().to_string_lossy().into_owned();
        Self { command, text, limit: Duration::from_secs(120) }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        for argument in arguments {
            let shown = argument.as_ref().to_string_lossy();
            let plain = shown.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./,:".contains(c));
            self.text += &if plain {
                format!(" {shown}")
            } else {
                format!(" '{}'", shown.replace('\'', r"'\''"))
            };
            self.command.arg(argument);
        }
        self
    }

    /// Runs on this heap.
    pub fn on(mut self, heap: Heap) -> Self {
        for (name, value) in heap.variables() {
            self = self.env(name, &value);
        }
        if heap.config.ends_with('y') && allocator() == Allocator::Pagemill && heap.compacts() {
            self = self.env("FIRE_MERGES", "1");
        }
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.text = format!("{name}={value} {}", self.text);
        self.command.env(name, value);
        self
    }

    /// Runs in this folder.
    pub fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Allows this long before the program counts as stuck.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs to the end. A program that is stuck is shown by its stacks and killed.
    pub fn outcome(mut self) -> Outcome {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = |kind: &str| folder().join(format!("{kind}-{}-{number}", std::process::id()));
        let (out, err) = (path("stdout"), path("stderr"));
        // Files rather than pipes: a grandchild that lives on cannot keep this test waiting.
        let create = |path: &Path| File::create(path).expect("the target folder can be written");
        self.command
            .stdin(Stdio::null())
            .stdout(create(&out))
            .stderr(create(&err))
            .process_group(0);
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.text));
        let start = Instant::now();
        let mut stuck = None;
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                break status;
            }
            if start.elapsed() > self.limit && stuck.is_none() {
                stuck = Some(stacks(Pid(child.id())));
                let _ = Command::new("kill")
                    .args(["-KILL", "--", &format!("-{}", child.id())])
                    .status();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |path: &Path| {
            let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
            let _ = fs::remove_file(path);
            text
        };
        let outcome =
            Outcome { command: self.text, status, stdout: read(&out), stderr: read(&err) };
        if let Some(stacks) = stuck {
            panic!("stuck for {:?}\n{outcome}\nstacks:\n{stacks}", self.limit);
        }
        outcome
    }
}

/// The stacks of a process's threads, by gdb if it is installed.
fn stacks(pid: Pid) -> String {
    Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all backtrace 12"])
        .stdin(Stdio::null())
        .output()
        .map_or_else(
            |_| "install gdb to see them".into(),
            |out| String::from_utf8_lossy(&out.stdout).into_owned(),
        )
}

static MACHINE: RwLock<()> = RwLock::new(());

/// Held by a test that others may run beside.
pub fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that changes the machine so that others would fail.
pub fn exclusive() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

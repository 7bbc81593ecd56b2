//! A stand-in for the preload library: a shared object with a statistics page of known numbers and
//! a thread that serves compaction requests. It leaves malloc alone, so what the tests expect does
//! not depend on a real heap's decisions.

use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pagemill_heap::stats::{MAGIC, StatsPage, Stop, VERSION, Waits};
use pagemill_model::Pid;

/// A directory with the compiled library; removed when dropped.
pub struct StandIn {
    /// Room for whatever a test writes.
    pub room: tempfile::TempDir,
    pub library: PathBuf,
}

/// What is known of the page: footprint 64 MiB with 16 MiB live, 30 pauses.
pub const FOOTPRINT: u64 = 64 << 20;
pub const LIVE: u64 = 16 << 20;
/// After a compaction request.
pub const COMPACTED: u64 = 20 << 20;

macro_rules! at {
    ($field:ident) => {
        offset_of!(StatsPage, $field) / 8
    };
}

impl StandIn {
    /// Builds the library for a heap in the configuration with this index.
    pub fn build(config: u64, degraded: u64) -> Self {
        Self::with_magic(MAGIC, config, degraded)
    }

    /// Builds the library for a program that never allocates.
    pub fn not_started() -> Self {
        Self::with_magic(0, 0, 0)
    }

    fn with_magic(magic: u64, config: u64, degraded: u64) -> Self {
        let room = tempfile::tempdir().unwrap();
        let words = [
            (at!(magic), magic),
            (at!(version), VERSION),
            (at!(size), size_of::<StatsPage>() as u64),
            (at!(config), config),
            (at!(backend), 2),
            (at!(barrier), 1),
            (at!(degraded), degraded),
            (at!(page_size), 4096),
            (at!(live_bytes), LIVE),
            (at!(footprint_bytes), FOOTPRINT),
            (at!(footprint_peak_bytes), FOOTPRINT),
            (at!(mapped_bytes), 80 << 20),
            (at!(occupancy) + 1, 30),
            (at!(occupancy) + 10, 10),
            (at!(passes), 3),
            (at!(groups), 12),
            (at!(saved_bytes), 9 << 20),
            (at!(unmerged_pages), 5),
            (at!(vmas), 4000),
            (at!(vma_budget), 4000),
            (at!(compact_ns), 7_000_000),
            (at!(helper_cpu_ns), 6_000_000),
            (at!(pauses) + 10, 20),
            (at!(pauses) + 18, 10),
            (at!(longest_pause_ns), 400_000),
            (at!(stalls) + 18, 2),
            (at!(longest_stall_ns), 300_000),
            (at!(waits_for), Waits::Pause as u64),
            (at!(refreshed_ns), 7_000_000_000),
            (at!(waits_until_ns), 47_500_000_000),
            (at!(stopped_by), Stop::Work as u64),
            (at!(mergeable_bytes), 3 << 20),
            (at!(request), 4),
            (at!(request_done), 4),
        ];
        let cells: String =
            words.iter().map(|(index, value)| format!("[{index}] = {value}ull, ")).collect();
        let source = format!(
            "#define _GNU_SOURCE\n#include <pthread.h>\n#include <time.h>\n#include <unistd.h>\n\
             __attribute__((aligned(4096), visibility(\"default\")))\n\
             volatile unsigned long long pagemill_stats[512] = {{ {cells} }};\n\
             static void *serve(void *unused) {{\n\
               for (;;) {{\n\
                 if (pagemill_stats[{request}] != pagemill_stats[{done}]) {{\n\
                   pagemill_stats[{footprint}] = {COMPACTED}ull;\n\
                   pagemill_stats[{done}] = pagemill_stats[{request}];\n\
                 }}\n\
                 usleep(1000);\n\
               }}\n\
               return unused;\n\
             }}\n\
             __attribute__((constructor)) static void start(void) {{\n\
               struct timespec now;\n\
               pthread_t thread;\n\
               clock_gettime(CLOCK_MONOTONIC, &now);\n\
               pagemill_stats[{started}] = now.tv_sec * 1000000000ull + now.tv_nsec;\n\
               pthread_create(&thread, 0, serve, 0);\n\
             }}\n",
            request = at!(request),
            done = at!(request_done),
            footprint = at!(footprint_bytes),
            started = at!(started_ns),
        );
        let (code, library) = (room.path().join("heap.c"), room.path().join("libpagemill_heap.so"));
        fs::write(&code, source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&code);
        assert!(compiler.status().expect("the tests need a C compiler").success());
        Self { room, library }
    }

    /// `sleep 600` with the library preloaded, once its page is there.
    pub fn sleeper(&self) -> Running {
        let child =
            Command::new("sleep").arg("600").env("LD_PRELOAD", &self.library).spawn().unwrap();
        let running = Running(child);
        wait_for("the library to be mapped", || {
            let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
            // Mapped, and past the loader: the program itself has been entered.
            maps.contains("libpagemill_heap.so") && running.sleeps()
        });
        running
    }
}

/// A process that ends with the test.
pub struct Running(pub Child);

impl Running {
    /// `sleep 600` as it is.
    pub fn plain() -> Self {
        let running = Self(Command::new("sleep").arg("600").spawn().unwrap());
        wait_for("sleep to sleep", || running.sleeps());
        running
    }

    pub fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn sleeps(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.pid()))
            .is_ok_and(|stat| stat.contains(") S "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something holds, and fails the test if it never does: the limit is far beyond what a busy
/// machine needs.
pub fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The binary under test.
pub fn pagemill() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pagemill"))
}

/// Runs to the end with its output captured.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Whether this test runs as root; says that it is skipped if not.
pub fn root_or_skip(why: &str) -> bool {
    let root =
        fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        eprintln!("skipped: {why} needs root");
    }
    root
}

/// A copy of `file` that every user can execute.
pub fn for_everyone(file: &Path, room: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(room, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = room.join("copy");
    // By a process of its own: what a thread writes here is open for a moment in whatever another thread is starting.
    let done = Command::new("install").args(["-m", "755"]).args([file, &copy]).status().unwrap();
    assert!(done.success(), "install: {done}");
    copy
}

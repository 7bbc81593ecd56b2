//! What the tests of the command line share: the binary, the preload library, small C programs, and
//! a machine of its own for what would otherwise change the real one.

#![expect(dead_code, reason = "each test file is a program of its own and uses a part of this")]

pub mod daemon;
pub mod recording;
pub mod traced;
pub mod verbs;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The library of `run --huge`, which is built with the heap library.
pub fn prefault() -> PathBuf {
    library().with_file_name("libpagemill_prefault.so")
}

/// The heap library, built once for all tests.
pub fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let target = binary().parent().and_then(Path::parent).unwrap();
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--profile", "preload", "-p", "pagemill-preload-heap"])
                .args(["-p", "pagemill-preload-prefault", "-p", "pagemill-preload-sites"])
                .args(["-p", "pagemill-preload-trim"])
                .arg("--target-dir")
                .arg(target)
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
                .status()
                .unwrap();
            assert!(built.success(), "the preload library does not build");
            target.join("preload/libpagemill_heap.so")
        })
        .clone()
}

/// The library of `run --trim`, which is built with them.
pub fn trim() -> PathBuf {
    library().with_file_name("libpagemill_trim.so")
}

/// The library that notes who asks for memory, which is built with them.
pub fn sites() -> PathBuf {
    library().with_file_name("libpagemill_sites.so")
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pagemill"))
}

/// The binary, with the library it needs and nothing else of the caller's settings.
pub fn pagemill() -> Command {
    let mut command = Command::new(binary());
    command.env("PAGEMILL_HEAP_LIB", library()).env("PAGEMILL_PREFAULT_LIB", prefault());
    command.env("PAGEMILL_SITES_LIB", sites()).env("PAGEMILL_TRIM_LIB", trim());
    // Made up recordings tell of more pages than a build for tests looks at in a moment.
    command.env("PAGEMILL_TEST_HEAT", (1 << 17).to_string());
    for name in [
        "LD_PRELOAD",
        "PAGEMILL_HEAP",
        "PAGEMILL_MESH",
        "PAGEMILL_BACKEND",
        "PAGEMILL_ROOT",
        "PAGEMILL_PREFAULT",
    ] {
        command.env_remove(name);
    }
    command
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Its exit code; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs a command to its end.
pub fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status, out: text(stdout), err: text(stderr) }
}

/// Runs `pagemill` with these arguments to its end.
pub fn pagemill_with(arguments: &[&str]) -> Ran {
    ran(pagemill().args(arguments))
}

/// Compiles a C program or library with these flags into `directory`; `None`, and a line that says
/// so, if this machine's compiler cannot.
pub fn compiled(directory: &TempDir, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    compiled_by("gcc", "c", directory, name, source, flags)
}

/// The same of a C++ program.
pub fn compiled_cpp(
    directory: &TempDir,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Option<PathBuf> {
    compiled_by("g++", "cpp", directory, name, source, flags)
}

fn compiled_by(
    compiler: &str,
    extension: &str,
    directory: &TempDir,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Option<PathBuf> {
    let output = directory.path().join(name);
    let input = output.with_extension(extension);
    fs::write(&input, source).unwrap();
    match Command::new(compiler).arg(&input).args(flags).arg("-o").arg(&output).output() {
        Ok(done) if done.status.success() => Some(output),
        Ok(done) => {
            skip(&format!("{compiler} {flags:?} fails: {}", String::from_utf8_lossy(&done.stderr)))
        }
        Err(error) => skip(&format!("{compiler}: {error}")),
    }
}

/// Puts a copy of a file where it is run from, with these permissions. A process of its own writes it: what a thread
/// writes here is open for a moment in whatever another thread is starting, and what is open for writing cannot be run
/// (`ETXTBSY`).
pub fn installed(from: &Path, to: &Path, mode: &str) {
    let done = Command::new("install").args(["-m", mode]).args([from, to]).status().unwrap();
    assert!(done.success(), "install {} {}: {done}", from.display(), to.display());
}

/// Says that a test was skipped, and why.
pub fn skip<T>(why: &str) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

/// A turn with the KSM settings of this machine, of which there is one set for all its test programs;
/// or why there is none. It ends when the file is dropped.
pub fn ksm_turn() -> Result<fs::File, String> {
    let path = "/sys/kernel/mm/ksm/run";
    fs::File::open(path)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| format!("cannot lock {path}: {error}"))
}

/// Waits until `holds`, and fails the test if it never comes about: the limit is far beyond what a busy
/// machine needs.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A machine with the real processes but KSM settings of its own: `PAGEMILL_ROOT` leads there.
pub struct Machine {
    root: TempDir,
}

impl Machine {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        symlink("/proc", root.path().join("proc")).unwrap();
        let ksm = root.path().join("sys/kernel/mm/ksm");
        fs::create_dir_all(&ksm).unwrap();
        let files = [
            ("run", "0"),
            ("pages_to_scan", "100"),
            ("sleep_millisecs", "20"),
            ("smart_scan", "1"),
            ("pages_shared", "0"),
            ("pages_sharing", "0"),
            ("pages_unshared", "0"),
            ("pages_volatile", "0"),
            ("full_scans", "0"),
        ];
        for (name, value) in files {
            fs::write(ksm.join(name), value).unwrap();
        }
        let thp = root.path().join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&thp).unwrap();
        fs::write(thp.join("enabled"), "always [madvise] never\n").unwrap();
        Self { root }
    }

    /// The setting of transparent huge pages, as it was last written.
    pub fn thp(&self) -> String {
        let path = self.root().join("sys/kernel/mm/transparent_hugepage/enabled");
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn ksm(&self, name: &str) -> String {
        let path = self.root().join("sys/kernel/mm/ksm").join(name);
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    pub fn set_ksm(&self, name: &str, value: &str) {
        fs::write(self.root().join("sys/kernel/mm/ksm").join(name), value).unwrap();
    }

    /// Run, pages to scan, sleep and smart scan.
    pub fn ksm_settings(&self) -> [String; 4] {
        ["run", "pages_to_scan", "sleep_millisecs", "smart_scan"].map(|name| self.ksm(name))
    }

    pub fn journal(&self) -> PathBuf {
        self.root().join("run/pagemill/ksm.journal")
    }
}

/// Used by nobody, so that the expectation above also holds in a test file that uses everything.
struct Unused;

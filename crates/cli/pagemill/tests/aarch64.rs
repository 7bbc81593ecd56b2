//! The libraries on 64-bit Arm, in pages of 4, 16 and 64 KiB, under QEMU's user-mode emulator. The emulator knows
//! neither the helper's `clone` nor userfaultfd, so nothing is compacted or provided ahead there: allocation, threads
//! and fork are what is tested.
//!
//! What is not installed (the target of the compiler, the cross compiler, the emulator) is named, and the test is
//! skipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Comes with the compiler.
const READER: &str = "aarch64-linux-gnu-readelf";
/// In bytes, where these tests run.
const MACHINES_PAGE: &str = "4096";
/// Where Debian keeps the C library of the other architecture.
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// Why the test cannot run here.
fn missing() -> Option<String> {
    let answers = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let sysroot = sysroot.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let core = sysroot.map(|path| Path::new(&path).join("lib/rustlib").join(TARGET));
    if !answers(COMPILER) {
        Some(format!(
            "{COMPILER} is not installed (sudo apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
        ))
    } else if !answers(EMULATOR) {
        Some(format!("{EMULATOR} is not installed (sudo apt-get install qemu-user)"))
    } else if !core.is_some_and(|path| path.is_dir()) {
        Some(format!("the compiler has no {TARGET} (rustup target add {TARGET})"))
    } else {
        None
    }
}

/// The library of this name, built for it with those that are not for x86-64 alone.
fn library(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", "preload", "-p", "pagemill-preload-heap"])
        .args(["-p", "pagemill-preload-prefault", "-p", "pagemill-preload-trim"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(target)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
        .status()
        .unwrap();
    assert!(built.success(), "the preload libraries do not build for {TARGET}");
    target.join(TARGET).join("preload").join(name)
}

fn program(name: &str) -> PathBuf {
    // Another test may be about to run the one that is written here.
    static COMPILED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload").join(name);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("aarch64-{name}.bin"));
    if compiled.contains(&binary) {
        return binary;
    }
    let status = Command::new(COMPILER)
        .args(["-O1", "-fno-builtin", "-w", "-pthread", "-o"])
        .args([&binary, &source])
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    compiled.push(binary.clone());
    binary
}

/// What the program prints in pages of this size, on the C library's heap or on ours; nothing where the emulator cannot
/// load the library: in pages larger than the machine's it loses track of what is mapped, which its own loader then
/// cannot read.
fn printed(program: &Path, page: &str, ours: Option<(&Path, &str)>) -> Option<String> {
    let mut command = Command::new(EMULATOR);
    command.args(["-p", page, "-L", ROOT]).env_remove("LD_PRELOAD");
    if let Some((library, configuration)) = ours {
        let preload = format!("LD_PRELOAD={}", library.display());
        let configuration = format!("PAGEMILL_MESH={configuration}");
        command.args(["-E", &preload, "-E", &configuration, "-E", "PAGEMILL_QUIET=1"]);
    }
    command.arg(program);
    for _ in 0..6 {
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        let loaded = !told.contains("cannot be preloaded");
        assert!(loaded || page != MACHINES_PAGE, "{told}");
        if loaded {
            assert!(output.status.success(), "{command:?}: {}\n{told}", output.status);
            return Some(String::from_utf8(output.stdout).unwrap());
        }
    }
    None
}

/// The alignments of the library's segments, in bytes.
fn alignments(library: &Path) -> Vec<u64> {
    let headers = Command::new(READER).arg("-lW").arg(library).output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    let segments = headers.lines().filter(|line| line.trim_start().starts_with("LOAD"));
    let last = segments.filter_map(|line| line.split_whitespace().last());
    last.map(|align| u64::from_str_radix(align.trim_start_matches("0x"), 16).unwrap()).collect()
}

/// What a program printed, without what the emulator itself does: it leaves an errno behind where its pages are not the
/// machine's.
fn answers(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with("success leaves errno")).collect()
}

#[test]
fn programs_run_on_the_heap_in_pages_of_each_size() {
    if let Some(why) = missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let library = library("libpagemill_heap.so");
    let (semantics, crossing) = (program("semantics.c"), program("crossing.c"));
    let alignments = alignments(&library);
    assert!(!alignments.is_empty());
    assert!(
        alignments.iter().all(|align| *align >= 65_536),
        "does not load in pages of 64 KiB: {alignments:?}"
    );
    for page in [MACHINES_PAGE, "16384", "65536"] {
        let native = printed(&semantics, page, None).unwrap();
        let expected = answers(&native);
        assert!(expected.len() > 20, "{expected:?}");
        for configuration in ["0n", "2y", "h"] {
            let ours = Some((&*library, configuration));
            let (Some(told), Some(crossed)) =
                (printed(&semantics, page, ours), printed(&crossing, page, ours))
            else {
                eprintln!(
                    "skipped: in pages of {page} bytes the emulator cannot load a library ({configuration})"
                );
                continue;
            };
            assert_eq!(answers(&told), expected, "{page} {configuration}");
            assert_eq!(crossed, format!("damaged 0, child 0, page {page}\n"), "{configuration}");
        }
    }
}

#[test]
fn programs_run_with_the_libraries_that_leave_them_their_own_malloc() {
    if let Some(why) = missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let semantics = program("semantics.c");
    for name in ["libpagemill_trim.so", "libpagemill_prefault.so"] {
        let library = library(name);
        let aligned = alignments(&library);
        assert!(
            !aligned.is_empty() && aligned.iter().all(|align| *align >= 65_536),
            "{name}: {aligned:?}"
        );
        for page in [MACHINES_PAGE, "16384", "65536"] {
            let native = printed(&semantics, page, None).unwrap();
            match printed(&semantics, page, Some((&library, "0n"))) {
                Some(told) => assert_eq!(answers(&told), answers(&native), "{name} {page}"),
                None => {
                    eprintln!("skipped: in pages of {page} bytes the emulator cannot load {name}")
                }
            }
        }
    }
}

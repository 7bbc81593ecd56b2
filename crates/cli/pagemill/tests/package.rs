//! What `./pagemill install` and `./pagemill package` put in place works from there, and goes again without a trace.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::Ran;

/// A checkout whose build is done, for a launcher that finds no cargo.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
        for name in [
            "docs",
            "README.md",
            "CHANGELOG.md",
            "ARCHITECTURE.md",
            "LICENSE-MIT",
            "LICENSE-APACHE",
        ] {
            symlink(source.join(name), room.path().join(name)).unwrap();
        }
        // What stands in packaging/ packs what it finds beside that folder.
        for name in ["crates", "experiments", "packaging"] {
            fs::create_dir(room.path().join(name)).unwrap();
        }
        support::installed(&source.join("pagemill"), &room.path().join("pagemill"), "755");
        for name in ["systemd", "kubernetes"] {
            let packaging = room.path().join("packaging");
            symlink(source.join("packaging").join(name), packaging.join(name)).unwrap();
        }
        for name in ["stage", "deb"] {
            let from = source.join("packaging").join(name);
            support::installed(&from, &room.path().join("packaging").join(name), "755");
        }
        let release = room.path().join("target/release");
        fs::create_dir_all(&release).unwrap();
        // Without what debuggers read it is a tenth as large to pack.
        let (binary, packed) = (env!("CARGO_BIN_EXE_pagemill"), release.join("pagemill"));
        let stripped = Command::new("strip").arg("-o").arg(&packed).arg(binary).status();
        if !stripped.is_ok_and(|done| done.success()) {
            symlink(binary, &packed).unwrap();
        }
        for library in [support::library(), support::prefault(), support::trim(), support::sites()]
        {
            symlink(&library, release.join(library.file_name().unwrap())).unwrap();
        }
        Self(room)
    }

    fn launch(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(self.0.path().join("pagemill"));
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        support::ran(command.env("HOME", self.0.path()))
    }
}

/// Each file and link below, by its path from there.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The program there runs another on its heap, found beside it; nothing of the environment helps.
fn works(program: &Path) {
    let mut command = Command::new(program);
    command.args(["run", "--mesh", "1y", "--", "/bin/sh", "-c", "echo \"$LD_PRELOAD\""]);
    let ran = support::ran(command.env_clear().env("PATH", "/usr/bin:/bin"));
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    let library = program.parent().unwrap().parent().unwrap().join("lib/pagemill");
    let library = library.join("libpagemill_heap.so").canonicalize().unwrap();
    assert_eq!(Path::new(ran.out.trim()), library);
}

/// Whether the launcher would build here instead of taking what is built.
fn rust_is_everywhere() -> bool {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|at| Path::new(at).join("cargo").exists())
}

#[test]
fn what_is_installed_works_from_there_and_goes_without_a_trace() {
    if rust_is_everywhere() {
        return support::skip("cargo is in /usr/bin: the launcher would build here").unwrap_or(());
    }
    let checkout = Checkout::new();
    let room = tempfile::tempdir().unwrap();
    let prefix = room.path().join("a prefix");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/other"), "not ours").unwrap();
    let before = files(room.path());

    let prefix_text = prefix.to_str().unwrap();
    let ran = checkout.launch(&["install", "--prefix", prefix_text]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    let installed = files(&prefix);
    for name in [
        "bin/pagemill",
        "lib/pagemill/libpagemill_heap.so",
        "lib/pagemill/libpagemill.so",
        "lib/pagemill/libpagemill_huge.so",
        "lib/pagemill/libpagemill_names.so",
        "share/man/man1/pagemill-run.1.gz",
        "share/bash-completion/completions/pagemill",
        "share/doc/pagemill/docs/guide/install.md",
        "share/doc/pagemill/examples/systemd/pagemill-record@.service",
        "share/doc/pagemill/examples/systemd/pagemill-exporter.service",
        "share/doc/pagemill/examples/kubernetes/daemonset.yaml",
    ] {
        assert!(installed.contains(&PathBuf::from(name)), "{name} is not in {installed:?}");
    }
    let again = checkout.launch(&["install", "--prefix", prefix_text]);
    assert_eq!((again.code(), files(&prefix)), (Some(0), installed), "{}", again.err);

    let removed = checkout.launch(&["uninstall", "--prefix", prefix_text]);
    assert_eq!(removed.code(), Some(0), "{}", removed.err);
    assert_eq!(files(room.path()), before);
    let left: Vec<_> =
        fs::read_dir(&prefix).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["bin"]);
    assert_eq!(checkout.launch(&["uninstall", "--prefix", prefix_text]).code(), Some(1));

    let plain = room.path().join("plain");
    let ran = checkout.launch(&["install", &format!("--prefix={}", plain.display())]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    works(&plain.join("bin/pagemill"));
    assert_eq!(checkout.launch(&["install", "--prefix"]).code(), Some(2));
    assert_eq!(checkout.launch(&["install", "--destination", "x"]).code(), Some(2));
}

#[test]
fn a_debian_package_is_installed_works_and_is_removed_without_a_trace() {
    let tool = |name: &str| Command::new(name).arg("--version").output().is_ok();
    if !tool("dpkg") || !tool("dpkg-deb") {
        return support::skip("dpkg is not installed").unwrap_or(());
    }
    if !Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n") {
        return support::skip("dpkg installs for root only").unwrap_or(());
    }
    let checkout = Checkout::new();
    let room = tempfile::tempdir().unwrap();
    let release = checkout.0.path().join("target/release");
    let made = support::ran(
        Command::new(checkout.0.path().join("packaging/deb"))
            .args([&release.join("pagemill"), &release])
            .arg(room.path()),
    );
    assert_eq!(made.code(), Some(0), "{}", made.err);
    let package = made.out.trim();

    // A root of its own: dpkg's list of packages there is empty, so dependencies are not looked for.
    let root = room.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |arguments: &[&str]| {
        let mut command = Command::new("dpkg");
        let root = format!("--root={}", root.display());
        support::ran(command.args([&root, "--force-depends", "--log=/dev/null"]).args(arguments))
    };
    let ran = dpkg(&["--install", package]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    assert!(root.join("usr/share/man/man1/pagemill-run.1.gz").exists());
    let examples = root.join("usr/share/doc/pagemill/examples");
    assert!(examples.join("systemd/pagemill-exporter.service").exists());
    assert!(examples.join("kubernetes/daemonset.yaml").exists());
    works(&root.join("usr/bin/pagemill"));
    let depends = dpkg(&["--status", "pagemill"]).out;
    assert!(depends.contains("Depends: libc6 (>= 2."), "{depends}");

    let ran = dpkg(&["--purge", "pagemill"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    assert!(!root.join("usr").exists(), "{:?}", files(&root));
}

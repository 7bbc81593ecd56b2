//! The launcher `./pagemill`: on a machine without Rust, and what it leaves beside the binary where there is.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Held by the one checkout that there is: a program that another thread is starting meanwhile would have the files
/// that are written open for a moment, and what is open for writing cannot be run (`ETXTBSY`).
static ONE: Mutex<()> = Mutex::new(());

/// A checkout with the launcher, a source file, and a path with the few tools it may use: no cargo.
struct Checkout(
    tempfile::TempDir,
    #[expect(dead_code, reason = "is held")] MutexGuard<'static, ()>,
);

impl Checkout {
    fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = tempfile::tempdir().unwrap();
        let root = room.path();
        let launcher = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../pagemill");
        fs::copy(launcher, root.join("pagemill")).unwrap();
        fs::create_dir_all(root.join("crates/model")).unwrap();
        fs::create_dir_all(root.join("experiments")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        for file in ["crates/model/lib.rs", "Cargo.toml", "Cargo.lock"] {
            fs::write(root.join(file), "").unwrap();
        }
        for tool in ["bash", "env", "readlink", "dirname", "find", "dpkg-query", "grep", "id", "sh"]
        {
            let tools = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool));
            if let Some(tool) = tools.iter().find(|tool| tool.exists()) {
                symlink(tool, root.join("bin").join(tool.file_name().unwrap())).unwrap();
            }
        }
        Self(room, one)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Leaves what a build leaves, older or newer than the sources.
    fn build(&self, age: Duration) {
        let release = self.file("target/release");
        fs::create_dir_all(&release).unwrap();
        let built = SystemTime::now() - age;
        for name in ["pagemill", "libpagemill_heap.so"] {
            let path = release.join(name);
            fs::write(&path, "#!/bin/sh\necho \"built $*\"\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            fs::File::open(&path).unwrap().set_modified(built).unwrap();
        }
    }

    /// A program on the path that does as these lines of sh say.
    fn stub(&self, name: &str, lines: &str) {
        let path = self.file("bin").join(name);
        // What is there may be a link to the tool itself.
        let _ = fs::remove_file(&path);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn launch(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = Command::new(self.file("pagemill"))
            .args(arguments)
            .env_clear()
            .env("PATH", self.file("bin"))
            .env("HOME", self.0.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }
}

/// Each call of another user, who has no cargo and needs none, began with "cargo not found".
#[test]
fn without_cargo_what_is_built_is_run_and_nothing_is_said_of_it() {
    let checkout = Checkout::new();
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for file in ["crates/model/lib.rs", "Cargo.toml", "Cargo.lock"] {
        fs::File::open(checkout.file(file)).unwrap().set_modified(an_hour_ago).unwrap();
    }
    checkout.build(Duration::ZERO);
    let (code, out, err) = checkout.launch(&["heap", "1"]);
    assert_eq!((code, out.as_str()), (Some(0), "built heap 1\n"), "{err}");
    assert_eq!(err, "");
}

#[test]
fn without_cargo_what_is_older_than_its_sources_is_run_and_called_so() {
    let checkout = Checkout::new();
    checkout.build(Duration::from_secs(3600));
    let (code, out, err) = checkout.launch(&["doctor"]);
    assert_eq!((code, out.as_str()), (Some(0), "built doctor\n"), "{err}");
    assert!(err.contains("running what was built before ") && err.contains("changed"), "{err}");
}

#[test]
fn without_cargo_and_without_a_build_rust_is_asked_for() {
    let checkout = Checkout::new();
    let (code, out, err) = checkout.launch(&["doctor"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("Rust 1.90 or newer") && err.contains("sh.rustup.rs"), "{err}");
    // The tests are always built.
    checkout.build(Duration::ZERO);
    assert_eq!(checkout.launch(&["test"]).0, Some(2));
}

/// Who could set `PAGEMILL_ROOT` for root's pagemill chose the files that it takes for the machine.
#[test]
fn what_is_built_for_users_takes_no_tree_of_files_for_the_machine() {
    let context = include_str!("../../../base/launch/src/context.rs");
    let begins = context.find("pub fn machine() -> Linux {").unwrap();
    let ends = begins + context[begins..].find("\n}\n").unwrap() + 3;
    let program = format!(
        "struct Linux; impl Linux {{ fn live() -> Self {{ println!(\"the machine\"); Linux }}\n\
         fn at(_: std::ffi::OsString) -> Self {{ println!(\"the tree\"); Linux }} }}\n\
         {}\nfn main() {{ machine(); }}\n",
        &context[begins..ends]
    );
    let room = tempfile::tempdir().unwrap();
    let source = room.path().join("main.rs");
    fs::write(&source, program).unwrap();
    // As profiles of tests have it, and those of users.
    for (asserts, taken) in [("on", "the tree\n"), ("off", "the machine\n")] {
        let built = room.path().join(asserts);
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let mut compiler = Command::new(rustc);
        compiler.args(["--edition", "2024", "-C", &format!("debug-assertions={asserts}")]);
        let done = compiler.arg(&source).arg("-o").arg(&built).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let run = Command::new(&built).env("PAGEMILL_ROOT", room.path()).output().unwrap();
        assert_eq!(String::from_utf8(run.stdout).unwrap(), taken, "{asserts}");
    }
    let show = |program: &Path| {
        let mut command = Command::new(program);
        let run = command.args(["frag", "show"]).env("PAGEMILL_ROOT", room.path()).output();
        run.unwrap()
    };
    let here = Path::new(env!("CARGO_BIN_EXE_pagemill"));
    assert_eq!(show(here).status.code(), Some(2), "a tree that is empty has no free memory");
    let release = here.parent().unwrap().with_file_name("release").join("pagemill");
    if !release.exists() {
        return println!("skipped: there is no {}", release.display());
    }
    let run = show(&release);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
}

/// The libraries, under their names and those of version 0.1.0.
const LIBRARIES: [(&str, &str); 3] = [
    ("libpagemill.so", "libpagemill_heap.so"),
    ("libpagemill_huge.so", "libpagemill_prefault.so"),
    ("libpagemill_names.so", "libpagemill_sites.so"),
];

impl Checkout {
    /// A checkout that is built, with a cargo that does nothing but write down that it was called.
    fn with_cargo() -> Self {
        let checkout = Self::new();
        checkout.build(Duration::ZERO);
        for tool in
            ["cmp", "cp", "ln", "mkdir", "mktemp", "stat", "touch", "chmod", "mv", "rm", "realpath"]
        {
            symlink(Path::new("/usr/bin").join(tool), checkout.file("bin").join(tool)).unwrap();
        }
        checkout.stub("cargo", &format!("echo >>{}", checkout.file("calls").display()));
        checkout.stub("cc", "");
        checkout.stub("clang", "");
        fs::write(checkout.file("rust-toolchain.toml"), "").unwrap();
        fs::create_dir_all(checkout.file("target/preload")).unwrap();
        for name in LIBRARIES.map(|(_, name)| name).into_iter().chain(["libpagemill_trim.so"]) {
            fs::write(checkout.file("target/preload").join(name), name).unwrap();
        }
        checkout
    }

    /// How often cargo was called.
    fn calls(&self) -> usize {
        fs::read_to_string(self.file("calls")).map_or(0, |text| text.lines().count())
    }
}

/// The libraries lie beside the binary, and under the names of version 0.1.0 a link to each, though a file of that
/// version lies there.
#[test]
fn the_libraries_have_links_under_their_old_names() {
    let checkout = Checkout::with_cargo();
    let release = checkout.file("target/release");
    fs::write(release.join("libpagemill.so"), "of version 0.1.0").unwrap();
    // What is there is left as it is.
    for _ in 0..2 {
        let (code, out, err) = checkout.launch(&["doctor"]);
        assert_eq!((code, out.as_str()), (Some(0), "built doctor\n"), "{err}");
        for (old, name) in LIBRARIES {
            assert_eq!(fs::read_link(release.join(old)).unwrap(), Path::new(name));
            assert_eq!(fs::read_to_string(release.join(old)).unwrap(), name);
        }
    }
}

/// Cargo takes a second and more to say that there is nothing to build.
#[test]
fn cargo_is_called_where_something_has_changed_only() {
    let checkout = Checkout::with_cargo();
    let mut before = 0;
    let mut builds = |what: &str, expected: bool| {
        let (code, out, err) = checkout.launch(&["doctor"]);
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "built doctor\n", ""), "{what}");
        let calls = checkout.calls();
        assert_eq!(calls > before, expected, "{what}: {calls} calls after {before}");
        before = calls;
    };
    builds("a checkout that this script has not built", true);
    builds("nothing has changed", false);
    let source = checkout.file("crates/model/lib.rs");
    fs::write(&source, "new").unwrap();
    builds("a source was written", true);
    builds("nothing has changed since", false);
    // As `cp -p` and archives do.
    fs::write(&source, "older").unwrap();
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(&source).unwrap().set_modified(an_hour_ago).unwrap();
    builds("an older source came in its place", true);
    builds("nothing has changed since", false);
    fs::remove_file(&source).unwrap();
    builds("a source is gone", true);
    builds("nothing has changed since", false);
    fs::write(checkout.file("Cargo.lock"), "other crates").unwrap();
    builds("other crates are used", true);
    fs::write(checkout.file("target/release/libpagemill_sites.so"), "another build's").unwrap();
    builds("a library is not the one that was built", true);
    fs::remove_file(checkout.file("target/release/libpagemill_trim.so")).unwrap();
    builds("a library is gone", true);
    builds("nothing has changed since", false);
}

/// Two minutes went by without a word where standard error is no terminal and files looked older than the binary.
#[test]
fn a_build_says_so_at_once_and_passes_on_what_cargo_says() {
    let checkout = Checkout::with_cargo();
    let cargo = |lines: &str, code: u8| {
        let text = format!("#!/bin/sh\nprintf '{lines}' >&2\nexit {code}\n");
        fs::write(checkout.file("bin/cargo"), text).unwrap();
    };
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(checkout.file("crates/model/lib.rs"))
        .unwrap()
        .set_modified(an_hour_ago)
        .unwrap();
    cargo("   Compiling pagemill v0.1.0\\n    Finished `release` profile\\n", 0);
    let (code, out, err) = checkout.launch(&["doctor"]);
    assert_eq!((code, out.as_str()), (Some(0), "built doctor\n"), "{err}");
    let told = "pagemill: building what has changed, which may take some minutes\n";
    let line = "   Compiling pagemill v0.1.0\n";
    // The libraries, then the program.
    assert_eq!(err, format!("{told}{line}{told}{line}"));
    // Of a build that fails it is cargo's status.
    cargo("error: it does not compile\\n", 101);
    fs::remove_file(checkout.file("target/release/.built")).unwrap();
    let (code, out, err) = checkout.launch(&["doctor"]);
    assert_eq!((code, out.as_str()), (Some(101), ""), "{err}");
    assert!(err.ends_with("error: it does not compile\n"), "{err}");
    // The first time it is said before cargo says anything.
    cargo("", 1);
    fs::remove_file(checkout.file("target/release/pagemill")).unwrap();
    let (_, _, err) = checkout.launch(&["--help"]);
    assert!(err.starts_with("pagemill: building for the first time"), "{err}");
}

/// `--help` of the program says nothing of what its launcher does by itself.
#[test]
fn help_names_what_the_launcher_does_by_itself() {
    let checkout = Checkout::with_cargo();
    for help in ["--help", "-h", "help"] {
        let (code, out, err) = checkout.launch(&[help]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{help}");
        assert!(out.starts_with(&format!("built {help}\n")), "{out}");
        assert!(out.contains("install, uninstall, package, test"), "{out}");
    }
    assert_eq!(checkout.launch(&["help", "run"]).1, "built help run\n");
}

/// `package --help` made a package in a directory of that name, `install --help` was a wrong option.
#[test]
fn help_and_dry_runs_build_and_change_nothing() {
    let checkout = Checkout::with_cargo();
    for tool in ["sed", "head"] {
        symlink(Path::new("/usr/bin").join(tool), checkout.file("bin").join(tool)).unwrap();
    }
    let to = checkout.file("prefix");
    let to = to.to_str().unwrap();
    fs::create_dir(checkout.file("packaging")).unwrap();
    let stage = checkout.file("packaging/stage");
    fs::write(&stage, "#!/bin/sh\necho $3/bin/pagemill\n").unwrap();
    fs::set_permissions(&stage, fs::Permissions::from_mode(0o755)).unwrap();
    for verb in ["install", "uninstall", "package", "test"] {
        for help in ["--help", "-h"] {
            let (code, out, err) = checkout.launch(&[verb, help]);
            assert_eq!((code, err.as_str()), (Some(0), ""), "{verb} {help}");
            assert!(out.starts_with(&format!("./pagemill {verb} ")), "{out}");
        }
    }
    let (code, out, _) = checkout.launch(&["install", "--prefix", to, "--dry-run"]);
    assert_eq!((code, out), (Some(0), format!("{to}/bin/pagemill\n")));
    let (code, out, err) = checkout.launch(&["package", to, "--dry-run"]);
    assert_eq!((code, out.as_str()), (Some(0), "/usr/bin/pagemill\n"));
    assert!(err.contains(&format!("would make {to}/pagemill_")), "{err}");
    let (code, _, err) = checkout.launch(&["package", "--fast"]);
    assert!(code == Some(2) && err.contains("--dry-run"), "{err}");
    assert_eq!((checkout.calls(), Path::new(to).exists()), (0, false));
}

/// The packages that the launcher installs before experiments.
fn packages() -> Vec<String> {
    let launcher = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../pagemill");
    let launcher = fs::read_to_string(launcher).unwrap();
    let (_, list) = launcher.split_once("\nreproduce_packages=(").unwrap();
    list.split_once(')').unwrap().0.split_whitespace().map(str::to_owned).collect()
}

impl Checkout {
    /// A checkout that is built, of this user, on a machine where nothing is installed, and whose lists have all
    /// packages but these.
    fn without_packages(user: u32, unknown: &str) -> Self {
        let checkout = Self::with_cargo();
        checkout.stub("id", &format!("echo {user}"));
        checkout.stub("dpkg-query", "exit 1");
        let policy = format!(
            "shift\nfor name; do\n\
             case \" {unknown} \" in *\" $name \"*) one='(none)' ;; *) one=1.2-3 ;; esac\n\
             case $name in gnugo) [ \"$one\" != '(none)' ] || continue ;; esac\n\
             printf '%s:\\n  Installed: (none)\\n  Candidate: %s\\n  Version table:\\n     1.2-3 500\\n' \
             $name \"$one\"\ndone"
        );
        checkout.stub("apt-cache", &policy);
        checkout.stub("apt-get", &format!("echo $* >>{}", checkout.file("apt").display()));
        checkout
    }

    /// What apt-get was called with, a line each.
    fn apt(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.file("apt")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

/// They installed all packages of the experiments, browsers among them.
#[test]
fn help_and_lists_of_experiments_install_nothing() {
    let checkout = Checkout::without_packages(0, "");
    for words in [
        &["--help"][..],
        &["-h"],
        &["--list"],
        &["mesh", "-o", "there", "--list"],
        &["--on", "slurm", "mesh", "--dry-run"],
        &["moca", "--from-kept"],
        &["moca", "--from-kept=figures.json"],
    ] {
        let words = [&["reproduce"], words].concat();
        let (code, out, err) = checkout.launch(&words);
        assert_eq!((code, out), (Some(0), format!("built {}\n", words.join(" "))), "{err}");
        assert_eq!((checkout.apt(), err.as_str()), (Vec::new(), ""), "{words:?}");
    }
    let (code, _, err) = checkout.launch(&["reproduce", "--quick"]);
    let installed = packages().join(" ");
    let install = format!("install -y -qq --no-install-recommends {installed}");
    assert_eq!((code, checkout.apt()), (Some(0), vec!["update -qq".to_owned(), install]), "{err}");
    assert_eq!(err, format!("pagemill: installing for the experiments: {installed}\n"));
}

/// Apt refuses all packages where it does not know one.
#[test]
fn a_package_that_a_release_does_not_have_leaves_the_others() {
    // Of the first a policy says that there is none, of the second nothing.
    let unknown = "firefox-esr gnugo";
    let mut names = packages();
    names.retain(|name| !unknown.contains(name.as_str()));
    assert_eq!(names.len() + 2, packages().len());
    let checkout = Checkout::without_packages(0, unknown);
    let (code, _, err) = checkout.launch(&["reproduce", "--quick"]);
    let install = format!("install -y -qq --no-install-recommends {}", names.join(" "));
    assert_eq!((code, checkout.apt().last()), (Some(0), Some(&install)), "{err}");
    let dropped = "not among this machine's packages, so some of the experiments is skipped: gnugo firefox-esr\n";
    assert!(err.contains(dropped), "{err}");
    drop(checkout);
    // Who is not root is told what can be installed.
    let checkout = Checkout::without_packages(1000, unknown);
    let (code, _, err) = checkout.launch(&["reproduce", "--quick"]);
    assert_eq!((code, checkout.apt()), (Some(0), Vec::new()), "{err}");
    let all = packages().join(" ");
    assert!(
        err.contains(&format!("is skipped: {all} (run: sudo apt-get install {})", names.join(" ")))
    );
    drop(checkout);
    // Nothing is installed where nothing can be, or nothing is missing.
    let checkout = Checkout::without_packages(0, &packages().join(" "));
    assert_eq!(checkout.launch(&["reproduce", "--quick"]).0, Some(0));
    assert_eq!(checkout.apt(), ["update -qq"]);
    checkout.stub("dpkg-query", "echo install ok installed");
    let (code, _, err) = checkout.launch(&["reproduce", "--quick"]);
    assert_eq!((code, err.as_str(), checkout.apt().len()), (Some(0), "", 1));
}

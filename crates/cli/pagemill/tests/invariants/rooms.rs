//! What crates depend on, and what their sources name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::sources::without_tests;
use crate::{BINARY, LADDER, texts};

/// Crates of a name that starts like this are ours.
const PREFIX: &str = "pagemill-";

/// Rooms that may not see the machine.
const PURE: [&str; 4] = ["model", "analysis", "policy", "sim"];
/// Rooms whose sources name no clock, thread, file or process; `model` reads and writes recordings.
const WITHOUT_WORLD: [&str; 3] = ["analysis", "policy", "sim"];
const WORLD: [&str; 7] =
    ["Instant", "SystemTime", "std::thread", "std::fs", "std::process", "std::net", "std::env"];
/// Crates through which a program talks to the operating system.
const SYSTEM: [&str; 6] = ["libc", "rustix", "nix", "linux-raw-sys", "syscalls", "tokio"];
/// Numbers and flags of Linux, no code: what `preload-sys` may depend on.
const CONSTANTS: &str = "linux-raw-sys";
const MAY_BE_UNSAFE: [&str; 7] = [
    "kernel",
    "heap",
    "preload-sys",
    "preload-heap",
    "preload-prefault",
    "preload-trim",
    "preload-sites",
];

/// What runs inside other programs, and all that it depends on.
const INSIDE: &[(&str, &[&str])] = &[
    ("heap", &[]),
    ("prefault", &[]),
    ("preload-sys", &[]),
    ("preload-heap", &["heap", "preload-sys"]),
    ("preload-prefault", &["prefault", "preload-sys"]),
    ("preload-trim", &["preload-sys"]),
    ("preload-sites", &["preload-sys"]),
];

/// A crate of the workspace: what it depends on (not for its tests), and its root source file.
struct Package {
    depends: BTreeSet<String>,
    root: String,
}

fn rooms(metadata: &Value) -> BTreeMap<String, Package> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let room = |package: &Value| {
        // What only a model under loom is built with is no dependency of the library.
        let run_time = |dependency: &&Value| {
            dependency["kind"] != "dev" && dependency["target"] != "cfg(loom)"
        };
        let depends = list(&package["dependencies"])
            .iter()
            .filter(run_time)
            .map(|d| text(&d["name"]))
            .collect();
        let code = |target: &&Value| {
            list(&target["kind"])
                .iter()
                .any(|kind| ["lib", "rlib", "cdylib", "bin"].iter().any(|known| kind == known))
        };
        let root = list(&package["targets"]).iter().find(code).map(|t| text(&t["src_path"]));
        (text(&package["name"]), Package { depends, root: root.unwrap_or_default() })
    };
    list(&metadata["packages"]).iter().map(room).collect()
}

/// Every crate of the workspace that `from` reaches.
fn reaches(rooms: &BTreeMap<String, Package>, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        for next in rooms.get(&name).into_iter().flat_map(|room| &room.depends) {
            if rooms.contains_key(next) && seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

/// What is wrong, one line each. `source` gives the text of a crate's files by its root file, the root
/// file first.
fn violations(metadata: &Value, source: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let rooms = rooms(metadata);
    let mut wrong = Vec::new();
    for (name, room) in &rooms {
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        let reached = reaches(&rooms, name);
        let reaches = |other: &str| reached.contains(&format!("{PREFIX}{other}"));
        if PURE.contains(&short) {
            if reaches("kernel") {
                wrong.push(format!("{short} reaches kernel"));
            }
            let system = room.depends.iter().filter(|name| SYSTEM.contains(&name.as_str()));
            wrong.extend(system.map(|name| format!("{short} depends on {name}")));
        }
        if short == "kernel" && reaches("policy") {
            wrong.push("kernel reaches policy".into());
        }
        for (inside, others) in INSIDE {
            let others = others.iter().map(|other| format!("{PREFIX}{other}")).collect();
            let mut depends = room.depends.clone();
            if short == "preload-sys" {
                depends.remove(CONSTANTS);
            }
            if short == *inside && depends != others {
                wrong.push(format!("{inside} depends on {depends:?}"));
            }
        }
        if name != BINARY && room.depends.iter().any(|name| name.starts_with("clap")) {
            wrong.push(format!("{short} depends on clap"));
        }
        let files = source(&room.root);
        if WITHOUT_WORLD.contains(&short) {
            let named = WORLD.iter().filter(|word| files.iter().any(|file| file.contains(**word)));
            wrong.extend(named.map(|word| format!("{short} names {word}")));
        }
        if let (Some(mine), Some((wing, _))) = (rung(short), wing(short)) {
            let ours = room.depends.iter().filter_map(|name| name.strip_prefix(PREFIX));
            let above = ours.filter(|other| rung(other).is_none_or(|other| other >= mine));
            wrong.extend(above.map(|other| format!("{short}, of {wing}, depends on {other}")));
            if !room.root.is_empty()
                && room.root.contains('/')
                && !room.root.contains(&format!("/{wing}/{short}/"))
            {
                wrong.push(format!("{short} stands at {}", room.root));
            }
        } else {
            wrong.push(format!("{short} stands in no wing"));
        }
        let forbids = files.first().is_some_and(|root| root.contains("#![forbid(unsafe_code)]"));
        if !MAY_BE_UNSAFE.contains(&short) && !forbids {
            wrong.push(format!("{short} does not forbid unsafe code"));
        }
    }
    wrong
}

fn wing(crate_name: &str) -> Option<(&'static str, usize)> {
    LADDER.iter().find_map(|(wing, crates)| {
        Some((*wing, crates.iter().position(|known| *known == crate_name)?))
    })
}

/// How far up the ladder a crate stands.
fn rung(crate_name: &str) -> Option<usize> {
    LADDER.iter().flat_map(|(_, crates)| *crates).position(|known| *known == crate_name)
}

#[test]
fn the_workspace_keeps_its_invariants() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for room in [
        "pagemill",
        "pagemill-heap",
        "pagemill-preload-heap",
        "pagemill-kernel",
        "pagemill-analysis",
    ] {
        assert!(rooms(&metadata).contains_key(room), "cargo metadata does not list {room}");
    }
    let wrong = violations(&metadata, texts);
    assert_eq!(wrong, Vec::<String>::new());
}

/// A workspace that keeps every rule; each test below breaks one.
fn sound() -> Value {
    let package = |name: &str, depends: &[&str], kind: &str| {
        let depends: Vec<Value> =
            depends.iter().map(|name| json!({ "name": name, "kind": null })).collect();
        json!({
            "name": name,
            "dependencies": depends,
            "targets": [{ "kind": [kind], "src_path": name }],
        })
    };
    json!({ "packages": [
        package("pagemill-model", &["serde"], "lib"),
        package("pagemill-analysis", &["pagemill-model"], "lib"),
        package("pagemill-policy", &["pagemill-model"], "lib"),
        package("pagemill-kernel", &["libc"], "lib"),
        package("pagemill-heap", &[], "lib"),
        package("pagemill-preload-sys", &["linux-raw-sys"], "lib"),
        package("pagemill-preload-heap", &["pagemill-heap", "pagemill-preload-sys"], "cdylib"),
        package("pagemill-prefault", &[], "lib"),
        package("pagemill-preload-prefault", &["pagemill-prefault", "pagemill-preload-sys"], "cdylib"),
        package("pagemill", &["clap", "pagemill-kernel", "pagemill-analysis"], "bin"),
    ] })
}

fn safe(_: &str) -> Vec<String> {
    vec!["#![forbid(unsafe_code)]".into()]
}

/// The violations after package `name` depends on `on` too.
fn with_dependency(name: &str, on: &str, kind: Value) -> Vec<String> {
    let mut metadata = sound();
    let packages = metadata["packages"].as_array_mut().unwrap();
    let package = packages.iter_mut().find(|package| package["name"] == name).unwrap();
    package["dependencies"].as_array_mut().unwrap().push(json!({ "name": on, "kind": kind }));
    violations(&metadata, safe)
}

#[test]
fn a_sound_workspace_passes() {
    assert_eq!(violations(&sound(), safe), Vec::<String>::new());
}

#[test]
fn a_pure_room_that_reaches_the_machine_is_found_even_by_a_detour() {
    assert_eq!(
        with_dependency("pagemill-analysis", "libc", Value::Null),
        ["analysis depends on libc"]
    );
    assert_eq!(
        with_dependency("pagemill-model", "pagemill-kernel", Value::Null),
        [
            "analysis reaches kernel",
            "model reaches kernel",
            "model, of base, depends on kernel",
            "policy reaches kernel"
        ]
    );
    assert_eq!(
        with_dependency("pagemill-kernel", "pagemill-policy", Value::Null),
        ["kernel reaches policy", "kernel, of base, depends on policy"]
    );
}

#[test]
fn a_heap_with_a_dependency_is_found() {
    assert_eq!(
        with_dependency("pagemill-heap", "spin", Value::Null),
        [r#"heap depends on {"spin"}"#]
    );
    assert_eq!(
        with_dependency("pagemill-preload-heap", "libc", Value::Null),
        [r#"preload-heap depends on {"libc", "pagemill-heap", "pagemill-preload-sys"}"#]
    );
    assert_eq!(
        with_dependency("pagemill-preload-prefault", "libc", Value::Null),
        [r#"preload-prefault depends on {"libc", "pagemill-prefault", "pagemill-preload-sys"}"#]
    );
    assert_eq!(
        with_dependency("pagemill-prefault", "spin", Value::Null),
        [r#"prefault depends on {"spin"}"#]
    );
    assert_eq!(
        with_dependency("pagemill-preload-sys", "spin", Value::Null),
        [r#"preload-sys depends on {"spin"}"#]
    );
    // What only builds it counts too; what only tests it does not.
    assert_eq!(with_dependency("pagemill-heap", "cc", json!("build")).len(), 1);
    assert_eq!(with_dependency("pagemill-heap", "proptest", json!("dev")), Vec::<String>::new());
}

#[test]
fn flags_outside_of_the_binary_are_found() {
    assert_eq!(with_dependency("pagemill-kernel", "clap", Value::Null), ["kernel depends on clap"]);
}

#[test]
fn a_pure_room_that_reads_the_clock_is_found() {
    let clock = |root: &str| [safe(root), vec!["use std::time::Instant;".into()]].concat();
    assert_eq!(violations(&sound(), clock), ["analysis names Instant", "policy names Instant"]);
}

#[test]
fn a_crate_that_allows_unsafe_code_is_found() {
    let wrong = violations(&sound(), |_| vec![String::new()]);
    assert_eq!(
        wrong,
        ["pagemill", "analysis", "model", "policy", "prefault"]
            .map(|name| format!("{name} does not forbid unsafe code"))
    );
}

/// The code of a library's files, by their paths: without tests, comments and files that only tests are built with.
fn built(at: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let text = fs::read_to_string(at).unwrap();
    let lines = without_tests(&text).map(|line| line.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    let stem = at.file_stem().unwrap().to_str().unwrap();
    let folder = at.parent().unwrap();
    let below = if ["lib", "mod"].contains(&stem) { folder.to_owned() } else { folder.join(stem) };
    for line in code.lines() {
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) else {
            continue;
        };
        let files = [below.join(format!("{name}.rs")), below.join(name).join("mod.rs")];
        built(files.iter().find(|file| file.exists()).unwrap(), found);
    }
    found.insert(at.to_owned(), code);
}

/// Where a library that runs in other programs may write to their standard error, and why.
const SAYS: [(&str, &str); 2] = [
    ("preload-heap/src/diagnostics.rs", "what it does less than asked, and misuse of the heap"),
    ("preload-heap/src/report.rs", "the statistics that were asked for"),
];

/// Without the standard library and `alloc` there are no `Vec`, `Box`, `String`, `format!` nor `println!`.
fn wrong_inside(place: &str, code: &str) -> Vec<String> {
    let words =
        ["extern crate ", "std::", "alloc::", "catch_unwind", "panic_unwind", "eh_personality"];
    let is_word =
        |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || ['_', ':'].contains(&c));
    let named = words.iter().filter(|word| code.match_indices(**word).any(|(at, _)| is_word(at)));
    let mut wrong: Vec<String> = named.map(|word| format!("{place}: {word}")).collect();
    let writes = code.contains("sys::write(") && !SAYS.iter().any(|(said, _)| *said == place);
    wrong.extend(writes.then(|| format!("{place} writes")));
    wrong
}

#[test]
fn what_runs_inside_programs_allocates_by_no_allocator_never_unwinds_and_says_nothing_by_the_way() {
    let inside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../inside");
    let (mut wrong, mut looked) = (Vec::new(), 0);
    for (room, _) in INSIDE {
        let mut files = BTreeMap::new();
        let root = inside.join(room).join("src/lib.rs");
        built(&root, &mut files);
        let root = &files[&root];
        let bare = ["#![no_std]", "#![cfg_attr(not(test), no_std)]"];
        assert!(root.lines().any(|line| bare.contains(&line)), "{room} has the standard library");
        looked += files.len();
        for (at, code) in &files {
            wrong.extend(wrong_inside(at.strip_prefix(&inside).unwrap().to_str().unwrap(), code));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(looked > 80, "{looked}");
    for (place, _) in SAYS {
        assert!(fs::read_to_string(inside.join(place)).unwrap().contains("sys::write("), "{place}");
    }
    let manifest = fs::read_to_string(inside.join("../../Cargo.toml")).unwrap();
    let of = |profile: &str, setting: &str| {
        let (_, rest) = manifest.split_once(&format!("[profile.{profile}]\n")).unwrap();
        rest.lines().take_while(|line| !line.starts_with('[')).any(|line| line == setting)
    };
    for profile in ["dev", "release"] {
        assert!(of(profile, "panic = \"abort\""), "{profile}");
    }
    assert!(of("preload", "inherits = \"release\"") && !of("preload", "panic = \"unwind\""));
}

#[test]
fn a_library_that_allocates_unwinds_or_writes_is_found() {
    for code in ["extern crate alloc;", "use std::vec::Vec;", "fn f() { sys::write(2, b\"a\"); }"] {
        assert_eq!(wrong_inside("preload-trim/src/lib.rs", code).len(), 1, "{code}");
    }
    let code = "fn f() { sys::write(2, b\"a\"); my_std::f() }";
    assert_eq!(wrong_inside(SAYS[0].0, code), Vec::<String>::new());
}

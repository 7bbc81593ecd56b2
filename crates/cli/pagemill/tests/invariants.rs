//! The workspace's invariants (ARCHITECTURE.md), read from `cargo metadata` and the crates' sources.
//!
//! | rule | why |
//! |---|---|
//! | `model`, `analysis`, `policy`, `sim` never reach `kernel` nor depend on `libc` and its kin | a policy is a pure function; the same value runs simulated and live |
//! | `analysis`, `policy`, `sim` name no clock, thread, file or process | replaying a recording gives what the live system gave |
//! | `kernel` never reaches `policy` | the kernel's wrappers decide nothing |
//! | `heap`, `prefault` and `preload-sys` have no dependency (the last: the kernel's constants), the preload libraries only these | what runs inside other programs must not allocate |
//! | a crate depends on what stands before it in [`LADDER`] only | the folders say what may know of what |
//! | no verb imports a verb, no file travels between crates, and modules of a crate import each other in no circle | each can be read, and moved, by itself |
//! | a policy, tracker or placer is named in its own file only | adding one touches that and one line |
//! | a kind of event stands in three files, and none but the tables lists the kinds | the same |
//! | pages and comments have at most 120 columns, links lead somewhere, the README and a page of the guide 600 words | people read them |
//! | evidence begins with its conclusion and has a date, a page of the guide ends with what comes next | the same |
//! | every page is in the book, every variable of the environment on its page | what is not found is not there |
//! | a function has at most 80 lines, a file 800, tests apart | what does one thing is that long |
//! | only the binary depends on `clap` | only it knows flags |
//! | `model`, and what reads what users name, read files whole by `model::whole` | who names the file may have made it |
//! | `forbid(unsafe_code)` everywhere but in `kernel`, `heap`, `preload-sys` and the preload libraries | unsafe has six rooms |

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use pagemill_model::EventKind;
use serde_json::{Value, json};

/// Crates of a name that starts like this are ours.
const PREFIX: &str = "pagemill-";
const BINARY: &str = "pagemill";

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
/// Reading a file whole, however long it is.
const WHOLE: [&str; 2] = ["fs::read(", "fs::read_to_string("];
/// What is read so all the same, by a part of the line: the kernel's files, what programs of an experiment wrote, and
/// what tests did (nothing else may unwrap).
const OWN: [&str; 10] = [
    "/proc/",
    "cgroup.procs",
    "|path: &str|",
    "&executable",
    "self.path(name)",
    "self.at(",
    "&program.",
    "&library",
    "(output)",
    ".unwrap();",
];
const MAY_BE_UNSAFE: [&str; 7] = [
    "kernel",
    "heap",
    "preload-sys",
    "preload-heap",
    "preload-prefault",
    "preload-trim",
    "preload-sites",
];
/// The wings from the ground up, and the crates in them from the left to the right.
const LADDER: [(&str, &[&str]); 6] = [
    (
        "inside",
        &[
            "heap",
            "prefault",
            "preload-sys",
            "preload-heap",
            "preload-prefault",
            "preload-trim",
            "preload-sites",
        ],
    ),
    ("base", &["model", "kernel", "launch"]),
    ("see", &["tracer", "analysis", "record", "report", "live"]),
    ("steer", &["policy", "control", "advise"]),
    ("lab", &["sim", "workloads", "experiments", "fuzz"]),
    ("cli", &["pagemill"]),
];
/// What reads files that users name.
const READERS: [&str; 7] =
    ["model", "launch", "record", "report", "control", "experiments", BINARY];
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
struct Room {
    depends: BTreeSet<String>,
    root: String,
}

fn rooms(metadata: &Value) -> BTreeMap<String, Room> {
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
        (text(&package["name"]), Room { depends, root: root.unwrap_or_default() })
    };
    list(&metadata["packages"]).iter().map(room).collect()
}

/// Every crate of the workspace that `from` reaches.
fn reaches(rooms: &BTreeMap<String, Room>, from: &str) -> BTreeSet<String> {
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
        if READERS.contains(&short) {
            let whole = files.iter().flat_map(|file| {
                let code = file.split("#[cfg(test)]").next().unwrap_or_default();
                code.lines().filter(|line| WHOLE.iter().any(|call| line.contains(call)))
            });
            let others = whole.filter(|line| !OWN.iter().any(|ours| line.contains(ours)));
            wrong.extend(
                others.map(|line| format!("{short} reads without a bound: {}", line.trim())),
            );
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

/// The texts of a root file and of all files below its directory.
fn files(root: &str) -> Vec<String> {
    let mut texts = vec![fs::read_to_string(root).unwrap()];
    let mut directories = vec![Path::new(root).parent().unwrap().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.push(fs::read_to_string(path).unwrap());
            }
        }
    }
    texts
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
    let wrong = violations(&metadata, files);
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

/// The modules of a crate, by their paths, and those that each imports. Tests are left out, and so are the roots of
/// folders, which say what is in them.
fn imports(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut sources = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let Some(name) = path.strip_prefix(root).unwrap().to_str().unwrap().strip_suffix(".rs")
            else {
                continue;
            };
            let name = name.strip_suffix("/mod").unwrap_or(name).replace('/', "::");
            let name = if ["lib", "main"].contains(&name.as_str()) { String::new() } else { name };
            let text = fs::read_to_string(path).unwrap();
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            let code = code.take_while(|line| {
                !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test")
            });
            sources.insert(name, code.collect::<Vec<_>>().join(" "));
        }
    }
    let known: BTreeSet<&String> = sources.keys().collect();
    let module_of = |mut path: Vec<&str>| loop {
        let name = path.join("::");
        if known.contains(&name) {
            return name;
        }
        path.pop();
    };
    let of = |(name, code): (&String, &String)| {
        let mut here: Vec<&str> = name.split("::").filter(|part| !part.is_empty()).collect();
        let found = paths(code).into_iter().filter_map(|path| {
            let mut parts = path.iter().map(String::as_str).peekable();
            let mut at = match parts.next()? {
                "crate" => Vec::new(),
                "self" => here.clone(),
                "super" => {
                    here.pop();
                    let at = here.clone();
                    here = name.split("::").filter(|part| !part.is_empty()).collect();
                    at
                }
                _ => return None,
            };
            while parts.next_if(|part| *part == "super").is_some() {
                at.pop();
            }
            at.extend(parts);
            Some(module_of(at)).filter(|other| other != name)
        });
        (name.clone(), found.collect())
    };
    sources.iter().map(of).collect()
}

/// The paths in code that begin at the crate, here or above: of `use` with all branches of its tree, and in line.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            tree(&code[at..], &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Reads one path, with the branches in its braces; returns what is left of the text.
fn tree<'a>(text: &'a str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    let depth = before.len();
    let mut rest = text;
    loop {
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                rest = tree(rest, before, found).trim_start();
                match rest.chars().next() {
                    Some(',') => rest = &rest[1..],
                    Some('}') => break rest = &rest[1..],
                    _ => break,
                }
            }
            break;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        before.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => {
                found.push(before.clone());
                break;
            }
        }
    }
    before.truncate(depth);
    // What an alias is called says nothing.
    let rest = rest.trim_start();
    match rest.strip_prefix("as ") {
        Some(alias) => {
            alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
        }
        None => rest,
    }
}

/// The groups of modules of which each reaches each other.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(name) = open.pop() {
            let next = imports.get(name).into_iter().flatten();
            open.extend(next.filter(|next| !next.is_empty() && seen.insert((*next).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|name| (name, reached(name))).collect();
    let with = |name: &&String| {
        let others = reached[name]
            .iter()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(*name)));
        let group: Vec<&str> = others.map(String::as_str).collect();
        (group.len() > 1).then(|| group.join(" "))
    };
    imports.keys().filter_map(|name| with(&name)).collect()
}

#[test]
fn modules_of_a_crate_import_each_other_in_no_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (wing, names) in LADDER {
        for name in names {
            let place = format!("{wing}/{name}");
            let found = circles(&imports(&crates.join(&place).join("src")));
            assert_eq!(found, BTreeSet::new(), "{place}");
        }
    }
}

#[test]
fn a_circle_is_found_through_braces_aliases_and_paths_in_line() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    fs::create_dir(room.path().join("b")).unwrap();
    write("lib.rs", "mod a; mod b; mod c; use crate::a::x;");
    write(
        "a.rs",
        "use crate::{c, b::{self, inner::Y as Z}};\n#[cfg(test)]\nmod tests { use super::super::c; }",
    );
    write("b/mod.rs", "mod inner;");
    write("b/inner.rs", "fn f() { super::super::a::x() } // crate::c");
    write("c.rs", "use self::d::E; mod d { }");
    let found = imports(room.path());
    let of = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((of("a"), of("b::inner"), of("c")), (vec!["b", "b::inner", "c"], vec!["a"], vec![]));
    assert_eq!(circles(&found), BTreeSet::from(["a b::inner".to_owned()]));
}

#[test]
fn no_verb_imports_a_verb_and_no_file_travels() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let verbs = imports(&crates.join("cli/pagemill/src"));
    let verb = |name: &str| {
        name.strip_prefix("verbs::").map(|rest| rest.split("::").next().unwrap().to_owned())
    };
    for (module, others) in &verbs {
        let Some(mine) = verb(module) else { continue };
        let wrong: Vec<String> =
            others.iter().filter_map(|other| verb(other)).filter(|other| *other != mine).collect();
        assert!(wrong.is_empty(), "{module} imports the verbs {wrong:?}");
    }
    for (wing, names) in LADDER {
        for name in names {
            let root = crates.join(wing).join(name).join("src");
            let file = ["lib.rs", "main.rs"]
                .map(|file| root.join(file))
                .into_iter()
                .find(|file| file.exists());
            for text in files(file.unwrap().to_str().unwrap()) {
                let travels =
                    text.lines().find(|line| line.trim_start().starts_with("#[path = \"../.."));
                assert_eq!(travels, None, "{wing}/{name}");
            }
        }
    }
}

/// `thread::spawn` and `Scope::spawn` panic where a user may have no more processes: eight verbs were aborted. In
/// tests they may.
#[test]
fn no_thread_is_started_that_may_not_fail() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (wing, rooms) in LADDER {
        for room in rooms {
            for at in files_below(&crates.join(wing).join(room).join("src"), ".rs") {
                let text = fs::read_to_string(&at).unwrap();
                let code = text.split("#[cfg(test)]\n").next().unwrap();
                let tests = at.file_name().unwrap().to_str().unwrap().ends_with("tests.rs");
                if !tests && (code.contains("thread::spawn(") || code.contains("scope.spawn(")) {
                    wrong.push(at);
                }
                looked += 1;
            }
        }
    }
    assert!(looked > 300, "{looked}");
    assert_eq!(wrong, [""; 0].map(std::path::PathBuf::from), "thread::start, Builder::spawn");
}

/// `cannot write meta.json`, and not why: `{error}` leaves out what an error is due to, `{error:#}` says it.
#[test]
fn every_verb_says_why() {
    let mut looked = 0;
    for at in files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ".rs") {
        let text = fs::read_to_string(&at).unwrap();
        let code = text.split("#[cfg(test)]\n").next().unwrap();
        for half in ["{error}", "error.to_string()"] {
            assert!(!code.contains(half), "{}: {half}", at.display());
        }
        looked += 1;
    }
    assert!(looked > 30, "{looked}");
}

/// Where the name of a policy stands beside its own file: a flag's default, a baseline, a group of the machine's
/// parameters. Published figures name the systems that they show.
const NAMED: [(&str, &str); 4] = [
    ("cli/pagemill/src/verbs/tier.rs", "hemem"),
    ("cli/pagemill/src/verbs/simulate/huge.rs", "linux-never"),
    ("cli/pagemill/src/verbs/simulate/huge.rs", "linux-always"),
    ("lab/sim/src/machine.rs", "hemem"),
];

#[test]
fn what_a_registry_lists_is_named_in_its_own_file_only() {
    use pagemill_policy::huge;
    use pagemill_policy::tier::compose::{PLACERS, TRACKERS};
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trackers = TRACKERS.iter().map(|row| row.name);
    let placers = PLACERS.iter().map(|row| row.name);
    let mut names: Vec<&str> = trackers.chain(placers).chain(huge::names()).collect();
    // Words that mean other things, too; an experiment has a placer's name, the heap's back end a policy's.
    names.retain(|name| !["", "none", "colloid", "auto"].contains(name));
    assert!(names.len() > 10, "{names:?}");
    let mut found = BTreeMap::<&str, BTreeSet<String>>::new();
    for (wing, rooms) in LADDER {
        for room in rooms {
            for at in files_below(&crates.join(wing).join(room).join("src"), ".rs") {
                let place = at.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
                let figures = place.starts_with("lab/experiments");
                if figures || place.ends_with("tests.rs") {
                    continue;
                }
                let text = fs::read_to_string(&at).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                for name in &names {
                    let composed =
                        huge::find(name).is_none() && code.contains(&format!("\"{name}+"));
                    if composed || code.contains(&format!("\"{name}\"")) {
                        found.entry(name).or_default().insert(place.clone());
                    }
                }
            }
        }
    }
    for name in names {
        let places = found.remove(name).unwrap_or_default();
        let strange = |place: &&String| {
            !place.starts_with("steer/policy/src/") && !NAMED.contains(&(place.as_str(), name))
        };
        assert_eq!(
            places.iter().filter(strange).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{name}"
        );
        let own = places.iter().filter(|place| place.starts_with("steer/policy/src/")).count();
        assert_eq!(own, 1, "{name}: {places:?}");
    }
}

/// The kinds of events that stand in a text: `Event::Heap`, `EventKind::Heap`.
fn kinds_in(text: &str) -> BTreeSet<&str> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let named = ["Event::", "EventKind::"]
        .into_iter()
        .flat_map(|start| code.match_indices(start).map(move |(at, _)| &code[at + start.len()..]));
    let word = |text| -> &str {
        let text: &str = text;
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap()
    };
    let kinds: BTreeSet<String> = EventKind::ALL.iter().map(|kind| format!("{kind:?}")).collect();
    named.map(word).filter(|word| kinds.contains(*word)).collect()
}

/// `pressure` is a kind of event with all that a kind needs: recorded, reported in every form, compared, redacted, in
/// the reference. What it touches is what the next one touches.
#[test]
fn a_kind_of_event_is_three_files_and_no_other_lists_the_kinds() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut touched, mut lists) = (BTreeSet::new(), BTreeSet::new());
    for at in files_below(&crates, ".rs") {
        let place = at.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
        if !place.contains("/src/") || place.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&at).unwrap();
        let words = ["EventKind::Pressure", "Event::Pressure", "PressureSample", "pressure::KIND"];
        if words.iter().any(|word| text.contains(word)) {
            touched.insert(place.clone());
        }
        if kinds_in(&text).len() > EventKind::ALL.len() / 2 {
            lists.insert(place);
        }
    }
    let of_pressure = [
        "base/model/src/event.rs",
        "see/record/src/recorders/mod.rs",
        "see/record/src/recorders/pressure.rs",
    ];
    assert_eq!(touched, of_pressure.map(str::to_owned).into());
    assert_eq!(lists, BTreeSet::new());
}

#[test]
fn kinds_in_a_text_are_found() {
    let text = "Event::Heap(row) | Event::Access(row) if EventKind::ALL[0] == EventKind::Huge, Event::Heapless";
    assert_eq!(kinds_in(text), ["Access", "Heap", "Huge"].into());
}

/// All files below a folder whose names end so, builds and histories left out.
fn files_below(root: &Path, ends: &str) -> Vec<std::path::PathBuf> {
    let (mut open, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if name.ends_with(ends) {
                found.push(path);
            }
        }
    }
    found
}

/// The text of a page without what stands between fences.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

#[test]
fn pages_are_narrow_short_where_they_should_be_and_their_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let too_wide = |line: &&str| line.chars().count() > 120;
    for path in files_below(&root, ".md") {
        let page = fs::read_to_string(&path).unwrap();
        let shown = path.display();
        let summary = path.ends_with("docs/SUMMARY.md");
        let wide: Vec<&str> = page.lines().filter(too_wide).filter(|_| !summary).collect();
        assert!(wide.is_empty(), "{shown}: {wide:?}");
        let text = prose(&page);
        let short = path.ends_with("../../../README.md") || shown.to_string().contains("/guide/");
        assert!(!short || text.split_whitespace().count() <= 600, "{shown} is long");
        let last = page.trim_end().rsplit("\n\n").next().unwrap();
        let guide = shown.to_string().contains("/guide/");
        assert!(
            !guide || last.starts_with("Next: "),
            "{shown} does not end with what to type next"
        );
        let evidence = shown.to_string().contains("/evidence/") && !path.ends_with("index.md");
        let concludes = page.lines().nth(2).is_some_and(|line| line.starts_with("**"));
        let mut words = page.split(|c: char| !c.is_ascii_digit() && c != '-');
        let dated = words.any(|word| word.len() == "2026-11-23".len() && word.starts_with("20"));
        assert!(!evidence || concludes && dated, "{shown}: no conclusion first, or no date");
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("http") || link.contains(' ') {
                continue;
            }
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{shown}: {link}");
            if !part.is_empty() {
                let target = fs::read_to_string(target).unwrap();
                let headings = target.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
                assert!(anchors.any(|anchor| anchor == part), "{shown}: {link}");
            }
        }
    }
    // Tables and drawings are what they are.
    let drawn = |line: &str| {
        let body = line.trim_start().trim_start_matches(['/', '!']).trim();
        body.starts_with('|')
            || body.contains("   ")
            || body.contains("──►")
            || line.contains("//!    ")
    };
    for path in files_below(&root.join("crates"), ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        let wide: Vec<&str> = comments.filter(too_wide).filter(|line| !drawn(line)).collect();
        assert!(wide.is_empty(), "{}: {wide:?}", path.display());
    }
}

/// Lines of a function at most, and of a file; tests apart.
const FUNCTION: usize = 80;
const FILE: usize = 800;
/// Functions that may be longer: each reads one format, whose parts come in the order in which they are read.
const LONGER: [(&str, &str); 2] =
    [("model/src/perf_data.rs", "read"), ("model/src/perf_data.rs", "sample")];

/// The code of a file without its tests.
fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let tests = line == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        (!tests).then_some(line)
    })
}

/// The functions of a file: name and lines. Where one ends is seen by its indentation, which rustfmt has made.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = without_tests(text).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let Some((before, after)) = body.split_once("fn ") else { continue };
        let words = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "\"C\""];
        if !before.split_whitespace().all(|word| words.contains(&word)) {
            continue;
        }
        let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        let indent = &line[..line.len() - body.len()];
        // Of a body, or of a declaration over several lines.
        let end = |line: &&str| {
            let rest = line.strip_prefix(indent);
            rest.is_some_and(|rest| rest == "}" || rest.starts_with(')') && rest.ends_with(';'))
        };
        let one = line.ends_with([';', '}']);
        let length = if one { 1 } else { 1 + lines[at..].iter().position(end).unwrap_or(0) };
        found.push((name.to_owned(), length));
    }
    found
}

#[test]
fn functions_and_files_are_short() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crates");
    let mut seen = 0;
    for path in files_below(&crates, ".rs") {
        let shown = path.display().to_string();
        if shown.contains("/tests/") || shown.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = without_tests(&text).count();
        assert!(lines <= FILE, "{shown}: {lines} lines");
        for (name, length) in functions(&text) {
            seen += 1;
            let may = LONGER.iter().any(|(file, one)| shown.ends_with(file) && *one == name);
            assert!(length <= FUNCTION || may, "{shown}: {name} has {length} lines");
        }
    }
    assert!(seen > 4000, "{seen} functions");
}

#[test]
fn functions_are_measured() {
    let text = "pub(crate) fn a() {\n    b();\n    let f = |fn_: u8| {\n    };\n}\n\nimpl X {\n    const fn c(&self) -> u8 {\n        \
                1\n    }\n    fn d();\n    fn e() {}\n}\n#[cfg(test)]\nmod tests {\nfn g() {\n}\n}\n";
    let found = functions(text);
    let expected = [("a", 5), ("c", 3), ("d", 1), ("e", 1)];
    assert_eq!(found, expected.map(|(name, lines)| (name.to_owned(), lines)));
}

/// The variables of ours that stand in a text as whole words of code.
fn variables(text: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.match_indices("PAGEMILL_").map(|(at, _)| {
        let end = text[at..].find(|c| !part(c)).map_or(text.len(), |length| at + length);
        (text[..at].chars().next_back(), &text[at..end], text[end..].chars().next())
    });
    let whole = words.filter(|(before, word, after)| {
        let quoted = matches!(before, Some('"' | '`')) && matches!(after, Some('"' | '`' | '='));
        // A shell script's.
        let exported = *before == Some(' ') && *after == Some('=');
        word.len() > "PAGEMILL_".len() && (quoted || exported)
    });
    whole.map(|(_, word, _)| word.to_owned()).collect()
}

#[test]
fn every_variable_of_the_environment_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut sources = files_below(&root.join("crates"), ".rs");
    sources.push(root.join("pagemill"));
    let code = sources.iter().filter(|path| !path.ends_with("tests/invariants.rs"));
    let read: BTreeSet<String> =
        code.flat_map(|path| variables(&fs::read_to_string(path).unwrap())).collect();
    assert!(read.len() > 20, "{read:?}");
    let page = fs::read_to_string(root.join("docs/reference/environment.md")).unwrap();
    assert_eq!(read, variables(&page), "the code, and docs/reference/environment.md");
}

#[test]
fn a_variable_in_code_is_found() {
    let text = r#"var("PAGEMILL_A") b"PAGEMILL_B=" "PAGEMILL_" X_PAGEMILL_C; export PAGEMILL_D=$e `PAGEMILL_F`"#;
    let found: Vec<String> = variables(text).into_iter().collect();
    assert_eq!(found, ["PAGEMILL_A", "PAGEMILL_B", "PAGEMILL_D", "PAGEMILL_F"]);
}

/// Every page is in the book, and everything in the book is a page.
#[test]
fn the_book_has_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed = summary.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
    let mut pages = BTreeSet::new();
    for path in files_below(&docs, ".md") {
        pages.insert(path.strip_prefix(&docs).unwrap().to_str().unwrap().to_owned());
    }
    pages.remove("SUMMARY.md");
    assert_eq!(pages, listed.collect::<BTreeSet<String>>(), "docs, and docs/SUMMARY.md");
}

#[test]
fn the_book_is_built() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let room = tempfile::tempdir().unwrap();
    let mut build = std::process::Command::new("mdbook");
    let built = match build.arg("build").arg("-d").arg(room.path()).arg(&docs).output() {
        Ok(built) => built,
        Err(error) => {
            eprintln!("skipped: mdbook: {error} (cargo install mdbook --locked)");
            return;
        }
    };
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !said.contains("WARN"), "{said}");
    assert!(room.path().join("index.html").exists(), "{said}");
}

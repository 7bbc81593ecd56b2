//! The workspace's invariants (ARCHITECTURE.md), read from `cargo metadata` and the crates' sources.
//!
//! | rule | why |
//! |---|---|
//! | `model`, `analysis`, `policy`, `sim` never reach `kernel` nor depend on `libc` and its kin | they are pure |
//! | `analysis`, `policy`, `sim` name no clock, thread, file or process | a replay gives what the live system gave |
//! | `kernel` never reaches `policy` | the kernel's wrappers decide nothing |
//! | `heap`, `prefault` and `preload-sys` have no dependency, the preload libraries these | none may allocate |
//! | these have no standard library, abort on a panic and write in two files | they are guests of any program |
//! | a crate depends on what stands before it in [`LADDER`] only | the folders say what may know of what |
//! | no verb imports a verb, no file travels between crates, modules import in no circle | each can be moved alone |
//! | a verb's module, pages and test file have its name | who knows the word finds them |
//! | a policy, tracker or placer is named in its own file only | adding one touches that and one line |
//! | a member of a kind is imported by its registry only, and the recipe of a kind has three files at most | the same |
//! | a kind of event stands in three files, and none but the tables lists the kinds | the same |
//! | pages, sources, scripts and settings have at most 120 columns, links lead somewhere | people read them |
//! | the README and a page of the guide have at most 600 words, a verb's page fewer than 1,500 | the same |
//! | evidence has its conclusion first, date and machine, a command | a figure without these says nothing |
//! | a page of the guide ends with what comes next | people read them |
//! | every page is in the book, every variable of the environment on its page | what is not found is not there |
//! | a function has at most 80 lines, a file 800, tests apart | what does one thing is that long |
//! | `base`, `see` and `steer` have no pair of plain `u64` in a signature or a public item | its halves look alike |
//! | paths that comments and pages name exist; a header's table of modules names those that there are | the same |
//! | a page that lists a kind lists all of it | the same |
//! | only the binary depends on `clap` | only it knows flags |
//! | only the binary prints answers, reads the command's words and ends the process | a library's caller says where |
//! | `model`, and what reads what users name, read files whole by `model::whole` | who names one may have made it |
//! | a variable that only tests set is read under `cfg!(debug_assertions)` | it would lead root's pagemill elsewhere |
//! | `forbid(unsafe_code)` but in `kernel`, `heap`, `preload-sys`, the preload libraries | unsafe is theirs |

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

mod imports;
mod names;
mod pages;
mod recipes;
mod rooms;
mod sources;

const BINARY: &str = "pagemill";
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

/// The texts of a root file and of all files below its directory.
fn texts(root: &str) -> Vec<String> {
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

/// A file of a crate's sources.
struct Source {
    wing: &'static str,
    room: &'static str,
    /// Its path from the folder of all crates.
    place: String,
    text: String,
}

/// The sources of all crates in the order of the ladder, without files that are for tests only.
fn sources() -> Vec<Source> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rooms = LADDER.iter().flat_map(|(wing, rooms)| rooms.iter().map(move |room| (wing, room)));
    let files = rooms.flat_map(|(wing, room)| {
        let files = files_below(&crates.join(wing).join(room).join("src"), ".rs");
        files.into_iter().map(move |at| (wing, room, at))
    });
    let source = |(wing, room, at): (&&'static str, &&'static str, PathBuf)| Source {
        wing,
        room,
        place: at.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned(),
        text: fs::read_to_string(&at).unwrap(),
    };
    files.map(source).filter(|source| !source.place.ends_with("tests.rs")).collect()
}

/// All files below a folder whose names end so, builds and histories left out.
fn files_below(root: &Path, ends: &str) -> Vec<PathBuf> {
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

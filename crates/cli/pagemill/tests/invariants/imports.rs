//! What modules of a crate import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sources::without_tests;
use crate::{LADDER, files_below};

/// The modules of a crate, by their paths, and those that each imports. Tests are left out, and so is what the root of
/// a folder, or of the crate, passes on of its own files. The crate's root has the path "".
pub(crate) fn imports(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
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
            let code = without_tests(&text).map(|line| line.split("//").next().unwrap_or_default());
            sources.insert(name, without_facade(&code.collect::<Vec<_>>().join(" ")));
        }
    }
    let known: BTreeSet<&String> = sources.keys().collect();
    let of = |(name, code): (&String, &String)| {
        let here: Vec<&str> = name.split("::").filter(|part| !part.is_empty()).collect();
        let below = |part: &str| [&here[..], &[part]].concat().join("::");
        // Names that lead to a module: its own children, and what it has imported.
        let children = known.iter().filter_map(|other| other.rsplit("::").next());
        let mut names: BTreeMap<String, String> = children
            .map(|part| (part.to_owned(), below(part)))
            .filter(|(_, module)| known.contains(module))
            .collect();
        let mut found = BTreeSet::new();
        for names_grow in [true, false] {
            let starts = names.keys().cloned().chain(["crate", "self", "super"].map(String::from));
            for path in paths(code, &starts.collect::<Vec<_>>()) {
                let Some(mut at) = absolute(&path, &here, &names) else { continue };
                let length = at.len();
                while !known.contains(&at.join("::")) {
                    at.pop();
                }
                let module = at.join("::");
                if let Some(last) = at.pop().filter(|_| names_grow && at.len() + 1 == length) {
                    names.insert(last, module.clone());
                }
                found.insert(module);
            }
        }
        found.remove(name);
        (name.clone(), found)
    };
    sources.iter().map(of).collect()
}

/// Where a path leads that begins in a module whose own path is `here`.
fn absolute(
    path: &[String],
    here: &[&str],
    names: &BTreeMap<String, String>,
) -> Option<Vec<String>> {
    let mut parts = path.iter().peekable();
    let up = here.len().saturating_sub(1);
    let own = |count: usize| here[..count].iter().map(|part| (*part).to_owned()).collect();
    let mut at: Vec<String> = match parts.next()?.as_str() {
        "crate" => Vec::new(),
        "self" => own(here.len()),
        "super" => own(up),
        name => names.get(name)?.split("::").map(str::to_owned).collect(),
    };
    while parts.next_if(|part| *part == "super").is_some() {
        at.pop();
    }
    at.extend(parts.cloned());
    Some(at)
}

/// Code without what a folder's root passes on of its own files: that says what is in the folder, and imports nothing.
fn without_facade(code: &str) -> String {
    let mut kept = String::new();
    let mut statements = code.split_inclusive(';');
    for statement in &mut statements {
        let start = statement.rfind("pub use ").or_else(|| statement.rfind("pub(crate) use "));
        let start = start.or_else(|| statement.rfind("pub(super) use "));
        let own = start.filter(|start| {
            let path = statement[*start..].split("use ").nth(1).unwrap_or_default();
            !["crate::", "super::"].iter().any(|other| path.starts_with(other))
        });
        kept.push_str(&statement[..own.unwrap_or(statement.len())]);
    }
    kept
}

/// The paths in code that begin with one of these names: of `use` with all branches of its tree, and in line.
pub(crate) fn paths(code: &str, starts: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in starts {
        for (at, _) in code.match_indices(&format!("{start}::")) {
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
            open.extend(next.filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|name| (name, reached(name))).collect();
    let with = |name: &&String| {
        let others = reached[name]
            .iter()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(*name)));
        let group: Vec<&str> =
            others.map(|other| if other.is_empty() { "crate" } else { other.as_str() }).collect();
        (group.len() > 1).then(|| group.join(" "))
    };
    imports.keys().filter_map(|name| with(&name)).collect()
}

#[test]
fn modules_of_a_crate_import_each_other_in_no_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rooms = LADDER
        .iter()
        .flat_map(|(wing, names)| names.iter().map(move |name| format!("{wing}/{name}")));
    let found: BTreeSet<(String, String)> = rooms
        .flat_map(|room| {
            let circles = circles(&imports(&crates.join(&room).join("src")));
            circles.into_iter().map(move |circle| (room.clone(), circle))
        })
        .collect();
    assert_eq!(found, BTreeSet::new());
}

#[test]
fn a_circle_is_found_through_braces_aliases_and_paths_in_line() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    fs::create_dir(room.path().join("b")).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d; mod e; use crate::a::x;");
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

/// What stands in the crate's root and is imported from there was not seen: 25 files of one library were a circle.
#[test]
fn a_circle_is_found_through_the_root_unless_that_only_declares_and_passes_on() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    write("a.rs", "use crate::ITEM; use crate::B;");
    write("b.rs", "use super::a;");
    write("c.rs", "use crate::a;");
    let root = |text: &str| {
        write("lib.rs", text);
        circles(&imports(room.path()))
    };
    assert_eq!(root("mod a; mod b; mod c; pub use b::B; pub use self::a::ITEM;"), [].into());
    assert_eq!(root("mod a; mod b; mod c; pub(crate) const ITEM: u8 = 0;"), [].into());
    let circle = |names: &str| BTreeSet::from([names.to_owned()]);
    assert_eq!(root("mod a; mod b; mod c; const ITEM: A = a::made();"), circle("crate a"));
    assert_eq!(root("mod a; mod b; mod c; use b::B; const ITEM: B = B;"), circle("crate a b"));
}

/// A parent that calls its child, and what comes behind tests in a file of their own, were not seen.
#[test]
fn a_circle_is_found_between_a_folder_and_its_files_and_behind_tests() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    for name in ["list", "facade", "verbs"] {
        fs::create_dir(room.path().join(name)).unwrap();
    }
    write("lib.rs", "mod list; mod facade; mod verbs; mod late;");
    write("list.rs", "#[cfg(test)]\nmod tests;\nmod one;\nconst ALL: &[Row] = &[one::ROW];");
    write("list/one.rs", "use super::Row;");
    write("facade.rs", "mod part; pub use part::Part; pub use self::part::Other; struct Row;");
    write("facade/part.rs", "use super::Row;");
    write("verbs/mod.rs", "mod run; mod heap;");
    write("verbs/run.rs", "");
    write("verbs/heap.rs", "use crate::verbs; fn f() { verbs::run::g() }");
    write("late.rs", "fn a() {}\n#[cfg(test)]\nfn only_tests() {}\nuse crate::facade::part::P;");
    let found = imports(room.path());
    assert_eq!(circles(&found), BTreeSet::from(["list list::one".to_owned()]));
    assert!(found["verbs::heap"].contains("verbs::run"), "{found:?}");
    assert!(found["late"].contains("facade::part"), "{found:?}");
}

#[test]
fn no_verb_imports_a_verb() {
    let verbs = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let verb = |name: &str| {
        name.strip_prefix("verbs::").map(|rest| rest.split("::").next().unwrap().to_owned())
    };
    for (module, others) in &verbs {
        let Some(mine) = verb(module) else { continue };
        let wrong: Vec<String> =
            others.iter().filter_map(|other| verb(other)).filter(|other| *other != mine).collect();
        assert!(wrong.is_empty(), "{module} imports the verbs {wrong:?}");
    }
}

/// The files that a text takes for code of its own: by `#[path]`, alone or conditional, and by `include!`. What a build
/// has made is none; of what is no plain path, the words.
fn taken(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let literal = |rest: &str| {
        let plain = rest.trim_start_matches(['r', '#']).strip_prefix('"');
        let plain = plain.and_then(|rest| rest.split_once('"')).map(|(path, _)| path.to_owned());
        plain.unwrap_or_else(|| rest.chars().take(40).collect())
    };
    let mut found = Vec::new();
    for (at, word) in code.match_indices("path=") {
        let attribute = code[..at].rfind("#[").map_or("", |start| &code[start..at]);
        if attribute == "#[" || attribute.contains("cfg_attr(") && !attribute.contains(']') {
            found.push(literal(&code[at + word.len()..]));
        }
    }
    for (at, word) in code.match_indices("include!") {
        let rest = &code[at + word.len()..];
        if !rest[1..].starts_with("concat!(env!(\"OUT_DIR\"),") {
            found.push(literal(&rest[1..]));
        }
    }
    found
}

/// Where a path of a file leads, if that is below a folder.
fn leads_below(root: &Path, file: &Path, path: &str) -> bool {
    let mut at = file.parent().unwrap().to_owned();
    for part in Path::new(path).components() {
        match part {
            std::path::Component::ParentDir => _ = at.pop(),
            part => at.push(part),
        }
    }
    at.starts_with(root) && at.exists()
}

#[test]
fn no_file_travels() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (wing, names) in LADDER {
        for name in names {
            let root = crates.join(wing).join(name);
            for at in files_below(&root, ".rs") {
                let shown = at.strip_prefix(&crates).unwrap().display().to_string();
                // Here they stand in texts.
                if shown.ends_with("tests/invariants/imports.rs") {
                    continue;
                }
                for path in taken(&fs::read_to_string(&at).unwrap()) {
                    seen += 1;
                    if !leads_below(&root, &at, &path) {
                        wrong.push(format!("{shown}: {path}"));
                    }
                }
            }
        }
    }
    assert!(seen > 2, "{seen}");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_file_that_travels_is_found_however_it_is_written() {
    for text in [
        "#[path = \"../../x.rs\"]\nmod x;",
        "#[path=\"../../x.rs\"] mod x;",
        "#[ path =\n    r#\"../../x.rs\"# ]\nmod x;",
        "#[cfg_attr(unix, path = \"../../x.rs\")]\nmod x;",
        "include!(\"../../x.rs\");",
        "include! {\n    \"../../x.rs\"\n}",
    ] {
        assert_eq!(taken(text), ["../../x.rs"], "{text}");
    }
    let built = "include!(concat!(env!(\"OUT_DIR\"), \"/x.rs\"));";
    assert_eq!(
        taken(&format!("{built}// include!(\"x\")\nlet path = \"x\"; f(path=\"x\")")),
        [""; 0]
    );
    assert_eq!(taken("include!(concat!(\"../x\"))"), ["concat!(\"../x\"))"]);
    let room = tempfile::tempdir().unwrap();
    fs::create_dir_all(room.path().join("a/src/b")).unwrap();
    fs::write(room.path().join("a/own.rs"), "").unwrap();
    fs::write(room.path().join("x.rs"), "").unwrap();
    let leads = |path| leads_below(&room.path().join("a"), &room.path().join("a/src/b/c.rs"), path);
    assert!(leads("../../own.rs") && !leads("../../../x.rs") && !leads("../../gone.rs"));
}

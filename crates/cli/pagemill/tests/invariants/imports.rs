//! What modules of a crate import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sources::without_tests;
use crate::{LADDER, files_below};

/// A file of a crate, or its root, whose path is "".
struct Module {
    /// Its code without tests, comments and what it passes on.
    code: String,
    /// What it passes on by `pub use`: the name, `*` for all, and where that leads.
    passed_on: Vec<(String, Vec<String>)>,
    /// The names by which it knows modules: its own children, and those that it imports.
    names: BTreeMap<String, String>,
}

/// The modules of a crate, by their paths, and those that each imports; tests are left out. What a module passes on is
/// imported from the file that declares it. To pass on what is below is no import, for it says what is there; to use it
/// as well is one.
pub(crate) fn imports(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules(root);
    let of = |(name, module): (&String, &Module)| {
        let here = parts(name);
        let mut names = module.names.clone();
        let mut found = BTreeSet::new();
        for names_grow in [true, false] {
            for (path, known_as) in paths_of(&module.code, &names) {
                let Some(at) = absolute(&path, &here, &names) else { continue };
                let (target, whole) = resolve(&modules, &at, 0);
                if names_grow && whole && !target.is_empty() {
                    names.insert(known_as, target.clone());
                }
                // By the names that stand in the code, what comes through all that a module passes on.
                let all = at.last().filter(|part| *part == "*").and(modules.get(&target));
                for (name, _) in all.iter().flat_map(|facade| &facade.passed_on) {
                    let through = [&at[..at.len() - 1], std::slice::from_ref(name)].concat();
                    if has_word(&module.code, name) {
                        found.insert(resolve(&modules, &through, 0).0);
                    }
                }
                found.insert(target);
            }
        }
        for (known_as, at) in &module.passed_on {
            if !at.starts_with(&here) || has_word(&module.code, known_as) {
                found.insert(resolve(&modules, at, 0).0);
            }
        }
        found.remove(name);
        (name.clone(), found)
    };
    modules.iter().map(of).collect()
}

/// The modules of a crate, by their paths.
fn modules(root: &Path) -> BTreeMap<String, Module> {
    let mut sources = BTreeMap::new();
    for path in files_below(root, ".rs") {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().strip_suffix(".rs").unwrap();
        let name = name.strip_suffix("/mod").unwrap_or(name).replace('/', "::");
        let name = if ["lib", "main"].contains(&name.as_str()) { String::new() } else { name };
        let text = fs::read_to_string(path).unwrap();
        let code = without_tests(&text).map(|line| line.split("//").next().unwrap_or_default());
        sources.insert(name, code.collect::<Vec<_>>().join(" "));
    }
    let of = |(name, code): (&String, &String)| {
        let here = parts(name);
        let (code, statements) = without_passed_on(code);
        let below = |part: &str| [&here[..], &[part.to_owned()]].concat().join("::");
        let children = sources.keys().filter_map(|other| other.rsplit("::").next());
        let mut names: BTreeMap<String, String> = children
            .map(|part| (part.to_owned(), below(part)))
            .filter(|(_, module)| sources.contains_key(module))
            .collect();
        for (path, known_as) in paths_of(&code, &names) {
            let at = absolute(&path, &here, &names).unwrap_or_default().join("::");
            if !at.is_empty() && sources.contains_key(&at) {
                names.insert(known_as, at);
            }
        }
        let mut passed_on = Vec::new();
        for statement in statements {
            let mut found = Vec::new();
            tree(&statement, &mut Vec::new(), &mut found);
            let leads = |(path, known_as): (Vec<String>, _)| {
                absolute(&path, &here, &names).map(|at| (known_as, at))
            };
            passed_on.extend(found.into_iter().filter_map(leads));
        }
        (name.clone(), Module { code, passed_on, names })
    };
    sources.iter().map(of).collect()
}

/// The module that declares what is at a path of the crate, and whether the path is that of the module itself.
fn resolve(modules: &BTreeMap<String, Module>, at: &[String], depth: u32) -> (String, bool) {
    let mut module = String::new();
    for (number, part) in at.iter().enumerate() {
        let next = if module.is_empty() { part.clone() } else { format!("{module}::{part}") };
        if modules.contains_key(&next) {
            module = next;
            continue;
        }
        let Some(facade) = modules.get(&module).filter(|_| depth < 9) else {
            return (module, false);
        };
        let rest = &at[number + 1..];
        if let Some((_, to)) = facade.passed_on.iter().find(|(name, _)| name == part) {
            return resolve(modules, &[to, rest].concat(), depth + 1);
        }
        for (_, to) in facade.passed_on.iter().filter(|(name, _)| name == "*") {
            let through = [&to[..to.len() - 1], &at[number..]].concat();
            let found = resolve(modules, &through, depth + 1);
            if modules.get(&found.0).is_some_and(|module| declares(&module.code, part)) {
                return found;
            }
        }
        return (module, false);
    }
    (module, true)
}

/// Whether code declares an item of this name.
fn declares(code: &str, name: &str) -> bool {
    let words: Vec<&str> = words(code).collect();
    let kinds = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"];
    words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == name)
}

/// Whether a name stands in code, but for the declaration of a module.
fn has_word(code: &str, name: &str) -> bool {
    let mut before = "";
    words(code).any(|word| std::mem::replace(&mut before, word) != "mod" && word == name)
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The parts of a module's path.
fn parts(name: &str) -> Vec<String> {
    name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Where a path leads that begins in a module whose own path is `here`.
fn absolute(
    path: &[String],
    here: &[String],
    names: &BTreeMap<String, String>,
) -> Option<Vec<String>> {
    let mut rest = path.iter().peekable();
    let mut at: Vec<String> = match rest.next()?.as_str() {
        "crate" => Vec::new(),
        "self" => here.to_owned(),
        "super" => here[..here.len().saturating_sub(1)].to_owned(),
        name => parts(names.get(name)?),
    };
    while rest.next_if(|part| *part == "super").is_some() {
        at.pop();
    }
    // `{self, …}` is the module before the brace.
    at.extend(rest.filter(|part| *part != "self").cloned());
    Some(at)
}

/// Code without its statements of `pub use`, of any visibility, and the trees of paths in these.
fn without_passed_on(code: &str) -> (String, Vec<String>) {
    let (mut kept, mut passed_on) = (String::new(), Vec::new());
    for statement in code.split_inclusive(';') {
        let tree_at = |(at, _): (usize, &str)| {
            let rest = &statement[at + "pub".len()..];
            let rest = match rest.strip_prefix('(') {
                Some(scope) => scope.split_once(')')?.1,
                None => rest,
            };
            Some((at, rest.trim_start().strip_prefix("use ").filter(|_| rest.starts_with(' '))?))
        };
        match statement.match_indices("pub").filter_map(tree_at).next() {
            Some((at, paths)) => {
                kept.push_str(&statement[..at]);
                passed_on.push(paths.to_owned());
            }
            None => kept.push_str(statement),
        }
    }
    (kept, passed_on)
}

/// The paths in code that begin with one of these names: of `use` with all branches of its tree, and in line.
pub(crate) fn paths(code: &str, starts: &[String]) -> Vec<Vec<String>> {
    named_paths(code, starts).into_iter().map(|(path, _)| path).collect()
}

/// Those that lead to what is in the crate, with what each is known as.
fn paths_of(code: &str, names: &BTreeMap<String, String>) -> Vec<(Vec<String>, String)> {
    let starts = names.keys().cloned().chain(["crate", "self", "super"].map(String::from));
    named_paths(code, &starts.collect::<Vec<_>>())
}

fn named_paths(code: &str, starts: &[String]) -> Vec<(Vec<String>, String)> {
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

/// Reads one path, with the branches in its braces, and what each is known as: its alias, its last part, or of
/// `{self}` the one before; returns what is left of the text.
fn tree<'a>(
    text: &'a str,
    before: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, String)>,
) -> &'a str {
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
            before.truncate(depth);
            return rest;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let end = if rest.starts_with('*') { 1 } else { end };
        before.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => break,
        }
    }
    let path = before.clone();
    before.truncate(depth);
    let last = path.iter().rev().find(|part| *part != "self" && !part.is_empty());
    let mut known_as = last.cloned().unwrap_or_default();
    rest = rest.trim_start();
    if let Some(alias) = rest.strip_prefix("as ") {
        let alias = alias.trim_start();
        let end = alias.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(alias.len());
        known_as = alias[..end].to_owned();
        rest = &alias[end..];
    }
    // Behind the last comma of braces nothing stands.
    if path.last().is_some_and(|part| !part.is_empty()) || path.len() > 1 {
        found.push((path, known_as));
    }
    rest
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
/// Nor was what the root, or a folder's, passes on.
#[test]
fn a_circle_is_found_through_the_root_unless_that_only_declares_and_passes_on() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(room.path().join(name), text).unwrap();
    fs::create_dir(room.path().join("e")).unwrap();
    write("a.rs", "use crate::ITEM;");
    write("b.rs", "use super::a; pub struct ITEM;");
    write("c.rs", "use crate::a;");
    write("d.rs", "pub struct ITEM;");
    write("e.rs", "mod f; pub(super) use f::{ITEM, Other as OTHER};");
    write("e/f.rs", "use crate::{d::*, a::A};");
    let root = |text: &str| {
        write("lib.rs", &format!("mod a; mod b; mod c; mod d; mod e; {text}"));
        circles(&imports(room.path()))
    };
    let circle = |names: &str| BTreeSet::from([names.to_owned()]);
    for text in [
        "pub use b::ITEM;",
        "pub(crate) use b::ITEM;",
        "pub use crate::b::{Other, self, ITEM};",
        "pub use self::b::Other as ITEM;",
        "pub use d::Other; pub use b::*;",
        "use crate::b as g; pub use g::ITEM;",
    ] {
        assert_eq!(root(text), circle("a b"), "{text}");
    }
    assert_eq!(root("pub use e::ITEM;"), circle("a e::f"));
    assert_eq!(root("pub use e::{f, OTHER as ITEM};"), circle("a e::f"));
    assert_eq!(root("pub use d::ITEM; pub use b::B; pub(crate) use self::a::A;"), [].into());
    assert_eq!(root("pub use d::*; pub use a::*;"), [].into());
    assert_eq!(root("pub(crate) const ITEM: u8 = 0;"), [].into());
    assert_eq!(root("const ITEM: A = a::made();"), circle("crate a"));
    assert_eq!(root("use b::B; const ITEM: B = B;"), circle("crate a b"));
    assert_eq!(root("pub use b::B; pub const ITEM: B = B;"), circle("crate a b"));
    write("a.rs", "use crate::*; const A: ITEM = ITEM;");
    assert_eq!(root("pub use b::{B, ITEM};"), circle("a b"));
    assert_eq!(root("pub use b::B; pub use d::ITEM;"), [].into());
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
    write(
        "facade.rs",
        "mod part; pub use part::{part, Part}; pub use self::part::Other; struct Row;",
    );
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

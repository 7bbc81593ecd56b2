//! What modules of a crate import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{LADDER, texts};

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
            for text in texts(file.unwrap().to_str().unwrap()) {
                let travels =
                    text.lines().find(|line| line.trim_start().starts_with("#[path = \"../.."));
                assert_eq!(travels, None, "{wing}/{name}");
            }
        }
    }
}

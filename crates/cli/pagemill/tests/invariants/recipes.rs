//! What adding one of a kind touches: the recipes of CONTRIBUTING.md, held for the members that there are.
//!
//! A member is a module that its kind's registry names in a row. Beside the registry and a member's own files nobody
//! imports it: whoever does is a place that the next member would touch, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::imports::{imports, paths};
use crate::sources::without_tests;
use crate::{Source, files_below, sources};

/// A kind of which one may be added.
struct Kind {
    /// Its recipe's name.
    recipe: &'static str,
    /// The crate of its members.
    room: &'static str,
    /// The folder of its members, as a module; "" is the crate's root.
    folder: &'static str,
    /// The module that lists them.
    registry: &'static str,
    /// Modules that the registry names, and that are no members.
    shared: &'static [&'static str],
    /// Who imports a member all the same, since it is about that one and not about its kind.
    about_one: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 10] = [
    Kind {
        recipe: "tiering tracker",
        room: "steer/policy",
        folder: "tier::track",
        registry: "tier::compose",
        shared: &["split"],
        // Samples that the machine makes, and the kernel's own tiering.
        about_one: &[
            ("lab/sim/src/run/samples.rs", "hemem"),
            ("steer/control/src/tier/actuators.rs", "damon"),
            ("tier::track::split", "memtis"),
        ],
    },
    Kind {
        recipe: "tiering placer",
        room: "steer/policy",
        folder: "tier::place",
        registry: "tier::compose",
        shared: &["placer"],
        // How pages for a shift are chosen is the same for all.
        about_one: &[("tier::drive", "colloid"), ("tier::drive", "pack")],
    },
    Kind {
        recipe: "huge page policy",
        room: "steer/policy",
        folder: "huge",
        registry: "huge",
        shared: &["account", "action", "kind", "profile", "trials", "view"],
        // Levers are of one policy each; of the memory ahead of growth there is one, too.
        about_one: &[
            ("steer/advise/src/levers/ahead.rs", "cbmm_plus"),
            ("steer/advise/src/levers/always.rs", "linux"),
            ("steer/advise/src/levers/medium.rs", "linux"),
            ("steer/advise/src/levers/never.rs", "linux"),
            ("steer/advise/src/levers/tried.rs", "auto"),
            ("steer/control/src/huge/launcher.rs", "cbmm_plus"),
            ("steer/control/src/plan/advise.rs", "cbmm_plus"),
        ],
    },
    Kind {
        recipe: "workload",
        room: "lab/workloads",
        folder: "programs",
        registry: "programs",
        shared: &[],
        // Clients of a server that the verb starts; the program whose slices are known.
        about_one: &[
            ("cli/pagemill/src/verbs/workload.rs", "ycsb"),
            ("lab/experiments/src/huge_slices.rs", "slices"),
            ("lab/experiments/src/huge_slices/measured.rs", "slices"),
        ],
    },
    Kind {
        recipe: "lever",
        room: "steer/advise",
        folder: "levers",
        registry: "levers",
        shared: &[],
        // Runs that are compared with, and what is computed from a recording of accesses.
        about_one: &[
            ("counted", "malloc_huge"),
            ("counted", "never"),
            ("estimates", "plain"),
            ("estimates", "slower_memory"),
            ("levers::compact", "plain"),
            ("levers::ksm", "plain"),
        ],
    },
    Kind {
        recipe: "experiment with tables of its own",
        room: "lab/experiments",
        folder: "",
        registry: "",
        // The simulated one, whose answer is a report, is the only one of its kind.
        shared: &["tabled", "colloid"],
        // Memory in the same state, figures of the same publication; who reads a file has its fuzz target.
        about_one: &[
            ("huge_pages", "fragmentation"),
            ("huge_slices", "huge_pages"),
            ("lab/fuzz/src/answers.rs", "huge_pages"),
            ("lab/fuzz/src/files.rs", "moca"),
            ("overhead::accesses", "moca"),
        ],
    },
    Kind {
        recipe: "format",
        room: "see/report",
        folder: "export",
        registry: "export",
        shared: &["format"],
        about_one: &[],
    },
    Kind {
        recipe: "section",
        room: "see/report",
        folder: "sections",
        registry: "sections",
        shared: &["rows", "section"],
        // Verbs that show one kind alone.
        about_one: &[
            ("cli/pagemill/src/verbs/hugepages.rs", "hugepages"),
            ("cli/pagemill/src/verbs/report/pftrace.rs", "faults"),
            ("frame", "heap"),
        ],
    },
    Kind {
        recipe: "verb",
        room: "cli/pagemill",
        folder: "verbs",
        registry: "verbs",
        shared: &[],
        about_one: &[],
    },
    Kind {
        recipe: "kind of event",
        room: "see/record",
        folder: "recorders",
        registry: "recorders",
        shared: &["recorder"],
        // Mappings say what is at an address; longest faults and spikes are options of their own.
        about_one: &[
            ("cli/pagemill/src/verbs/hugepages.rs", "mappings"),
            ("cli/pagemill/src/verbs/record.rs", "faults"),
            ("cli/pagemill/src/verbs/record/arguments.rs", "faults"),
            ("lab/fuzz/src/traced.rs", "faults"),
            ("recorders::accesses", "mappings"),
            ("recorders::exact", "mappings"),
            ("recorders::faults", "mappings"),
            ("recorders::recorder", "faults"),
            ("recorders::samples", "mappings"),
            ("recorders::sites", "mappings"),
            ("see/live/src/feed/attached.rs", "faults"),
            ("see/report/src/exporter.rs", "faults"),
        ],
    },
];

/// Experiments on programs are files that no module stands for, and allocators rows.
const WITHOUT_MODULE: [&str; 2] = ["experiment on programs", "allocator to compare with"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The code of a file, on one line.
fn code(text: &str) -> String {
    let lines = without_tests(text).map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join(" ")
}

/// The members that a registry lists: modules of `children` that are named where nothing is declared or imported.
fn listed(registry: &str, children: &BTreeSet<String>) -> BTreeSet<String> {
    let rows = without_tests(registry).map(str::trim_start).filter(|line| {
        !["//", "mod ", "pub mod ", "use ", "pub use ", "pub(crate) use "]
            .iter()
            .any(|start| line.starts_with(start))
    });
    let rows = rows.collect::<Vec<_>>().join("\n");
    let words = rows.split(|c: char| !c.is_alphanumeric() && c != '_').collect::<BTreeSet<_>>();
    children.iter().filter(|name| words.contains(name.as_str())).cloned().collect()
}

/// The child of a folder that a module is, or is below.
fn child(folder: &str, module: &str) -> Option<String> {
    let rest = match folder {
        "" => module,
        folder => module.strip_prefix(folder)?.strip_prefix("::")?,
    };
    let name = rest.split("::").next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The members of a kind, and who imports one, beside itself and the registry: who, and which.
fn importers(kind: &Kind) -> (BTreeSet<String>, BTreeSet<(String, String)>) {
    let source = crates().join(kind.room).join("src");
    let graph = imports(&source);
    let of = |module: &str| child(kind.folder, module);
    let children: BTreeSet<String> = graph.keys().filter_map(|module| of(module)).collect();
    let path = kind.registry.replace("::", "/");
    let files = [format!("{path}.rs"), format!("{path}/mod.rs"), "lib.rs".to_owned()];
    let file = files.into_iter().map(|file| source.join(file)).find(|file| file.exists());
    let mut members = listed(&fs::read_to_string(file.unwrap()).unwrap(), &children);
    members.retain(|name| !kind.shared.contains(&name.as_str()));
    let mut found = BTreeSet::new();
    for (module, others) in graph.iter().filter(|(module, _)| *module != kind.registry) {
        let mine = of(module);
        let others = others.iter().filter_map(|other| of(other));
        let others = others.filter(|name| members.contains(name) && Some(name) != mine.as_ref());
        found.extend(others.map(|name| (module.clone(), name)));
    }
    let own = kind.room.rsplit('/').next().unwrap();
    let start = [format!("pagemill_{}", own.replace('-', "_"))];
    for Source { place, text, .. } in sources().iter().filter(|one| one.room != own) {
        for path in paths(&code(text), &start) {
            let named = of(&path[1..].join("::")).filter(|name| members.contains(name));
            found.extend(named.map(|name| (place.clone(), name)));
        }
    }
    (members, found)
}

#[test]
fn a_member_is_imported_by_its_registry_only() {
    let mut wrong = Vec::new();
    for kind in &KINDS {
        let (members, mut found) = importers(kind);
        assert!(members.len() > 2, "{}: {members:?}", kind.recipe);
        for (who, member) in kind.about_one {
            let known = found.remove(&((*who).to_owned(), (*member).to_owned()));
            assert!(known, "{}: {who} does not import {member}: it is no exception", kind.recipe);
        }
        wrong
            .extend(found.into_iter().map(|(who, name)| format!("{}: {who}: {name}", kind.recipe)));
    }
    assert_eq!(wrong, Vec::<String>::new(), "what it asks a member stands in the member's row");
}

/// Verbs that the command line itself knows, beside their rows, and where: older words stand for parts of one.
const KNOWN: [(&str, &str); 2] = [("cli.rs", "advise"), ("cli.rs", "plan")];

#[test]
fn the_command_line_knows_a_verb_by_its_row() {
    let source = crates().join("cli/pagemill/src");
    let children: BTreeSet<String> =
        imports(&source).keys().filter_map(|module| child("verbs", module)).collect();
    let verbs = listed(&fs::read_to_string(source.join("verbs/mod.rs")).unwrap(), &children);
    assert_eq!(verbs, children, "a module without a row");
    let mut found = BTreeSet::new();
    for at in files_below(&source, ".rs").iter().filter(|at| !at.starts_with(source.join("verbs")))
    {
        let code = code(&fs::read_to_string(at).unwrap());
        let place = at.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        for verb in &verbs {
            let variant = format!("Verb::{}{}", verb[..1].to_uppercase(), &verb[1..]);
            let words = [format!("\"{verb}\""), variant, format!("verbs::{verb}")];
            if words.iter().any(|word| code.contains(word)) {
                found.insert((place.clone(), verb.clone()));
            }
        }
    }
    assert_eq!(found, KNOWN.map(|(at, verb)| (at.to_owned(), verb.to_owned())).into());
}

/// The files of experiments, those on programs among them, stand in one list each.
#[test]
fn the_file_of_an_experiment_is_named_once() {
    let root = crates().join("../experiments");
    let sources = sources();
    let mut looked = 0;
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".toml") {
            let named = format!("/experiments/{name}\"");
            let times: usize = sources.iter().map(|one| one.text.matches(&named).count()).sum();
            assert_eq!(times, 1, "{name}");
            looked += 1;
        }
    }
    assert!(looked > 10, "{looked}");
}

/// The recipes of a page: the name of each, and the files that it says are touched.
fn recipes(page: &str) -> Vec<(String, BTreeSet<String>)> {
    let recipes = page.split("**Recipes.**").nth(1).unwrap();
    let recipes = recipes.split("\n\n").take_while(|text| !text.starts_with("**"));
    let recipes = recipes.collect::<Vec<_>>().join("\n");
    let recipe = |text: &str| {
        let (name, says) = text.split_once("**").unwrap();
        let spans = says.split('`').skip(1).step_by(2);
        let files = spans
            .filter(|span| !span.contains(' ') && (span.contains('/') || span.ends_with(".rs")));
        (name.to_owned(), files.map(str::to_owned).collect())
    };
    recipes.split("\n- **").skip(1).map(recipe).collect()
}

#[test]
fn each_kind_has_a_recipe_of_three_files_at_the_most() {
    let page = fs::read_to_string(crates().join("../CONTRIBUTING.md")).unwrap();
    let recipes = recipes(&page);
    let named: BTreeSet<&str> = recipes.iter().map(|(name, _)| name.as_str()).collect();
    let kinds = KINDS.iter().map(|kind| kind.recipe).chain(WITHOUT_MODULE);
    assert_eq!(named, kinds.collect());
    for (name, files) in &recipes {
        assert!((2..=3).contains(&files.len()), "{name}: {files:?}");
    }
}

#[test]
fn members_and_files_of_a_recipe_are_found() {
    let registry = "//! d\nmod a;\npub mod b;\nuse c::C;\nconst ALL: &[&Row] = &[&a::ROW, C];\n";
    let children = ["a", "b", "c", "d"].map(str::to_owned).into();
    assert_eq!(listed(registry, &children), ["a".to_owned()].into());
    assert_eq!(child("x::y", "x::y::a::b"), Some("a".to_owned()));
    assert_eq!(child("x::y", "x::z"), None);
    let page = "**Recipes.** Of each:\n\n- **a**: its file in `b/`; its `mod` in `b/mod.rs`;\n  `git grep c/d`\n- \
                **e** of `f`: `g.rs`\n\n**Docs** `h/i`";
    let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        recipes(page),
        [("a".to_owned(), files(&["b/", "b/mod.rs"])), ("e".to_owned(), files(&["g.rs"]))]
    );
}

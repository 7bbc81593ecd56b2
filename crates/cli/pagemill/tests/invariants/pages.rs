//! The pages of the documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagemill_advise::levers;
use pagemill_control::capability;
use pagemill_experiments::{registry, reproduce::experiment};
use pagemill_launch::allocator::{JEMALLOC, MIMALLOC, TCMALLOC};
use pagemill_model::event::DATASETS;
use pagemill_policy::{huge, tier::compose};
use pagemill_record::recorders::RECORDERS;
use pagemill_report::export::FORMATS;
use pagemill_sim::workload;
use pagemill_workloads::programs::{CLIENTS, PROGRAMS};

use crate::{LADDER, Source, files_below, sources};

/// The text of a page without what stands between fences.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

/// What a page of evidence lacks: its conclusion, first; date and machine, in one paragraph; a command.
fn lacks(page: &str) -> Vec<&'static str> {
    let is_date = |text: &str| {
        let mut words = text.split(|c: char| !c.is_ascii_digit() && c != '-');
        words.any(|word| word.len() == "2026-11-23".len() && word.starts_with("20"))
    };
    // As many processors as it has; or the page that says it; or the machine that is modelled.
    let is_machine = |text: &str| {
        let words: Vec<&str> = text
            .split_whitespace()
            .map(|word| word.trim_matches(['(', ',', ')', '.', ';', ':']))
            .collect();
        let is_count = |word: &str| {
            ["one", "two", "four", "eight"].contains(&word) || word.parse::<u16>().is_ok()
        };
        let processors = |word: &str| ["cores", "CPUs", "processors"].contains(&word);
        let counted = |words: &[&str]| {
            is_count(words[0])
                && (processors(words[1]) || words[1] == "virtual" && processors(words[2]))
        };
        let elsewhere = text.match_indices("machine").any(|(at, _)| {
            let next = text[at..].split('.').next().unwrap();
            next.contains("](")
        });
        words.windows(3).any(counted) || elsewhere || text.contains("simulated machine")
    };
    let paragraphs: Vec<String> = page
        .split("\n\n")
        .flat_map(|part| part.split("\n- "))
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let spans = paragraphs.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
    let is_command = |span: &str| {
        let words = span.split(' ').skip_while(|word| word.contains('=') || *word == "sudo");
        let words: Vec<&str> = words.take(2).collect();
        matches!(words[..], ["pagemill" | "./pagemill", _] | ["cargo", "test" | "bench"])
    };
    let concludes = page.lines().nth(2).is_some_and(|line| line.starts_with("**"));
    let measured = |text: &String| is_date(text) && is_machine(text);
    let found = [
        ("its conclusion, first", concludes),
        ("date and machine, in one paragraph", paragraphs.iter().any(measured)),
        ("a command", spans.clone().any(is_command)),
    ];
    found.iter().filter(|(_, is_there)| !is_there).map(|(what, _)| *what).collect()
}

#[test]
fn what_a_page_of_evidence_lacks_is_found() {
    let page = "# Speed\n\n**Fast.**\n\nOn 2026-11-22, 2 virtual CPUs: `sudo pagemill run -- x`.\n";
    assert_eq!(lacks(page), [""; 0]);
    let (conclusion, measured, command) =
        ("its conclusion, first", "date and machine, in one paragraph", "a command");
    for (there, instead, what) in [
        ("**Fast.**", "Fast.", conclusion),
        ("2026-11-22", "the day before", measured),
        ("2 virtual CPUs", "a busy machine", measured),
        (", 2 virtual", ".\n\nTwo, or 2 virtual", measured),
        ("sudo pagemill run", "run", command),
        ("`sudo pagemill run -- x`", "sudo pagemill run -- x", command),
    ] {
        assert_eq!(lacks(&page.replace(there, instead)), [what], "{instead}");
    }
    for machine in [
        "[its machine](quick-run.md)",
        "two cores",
        "the machine is [there](a.md)",
        "a simulated machine",
    ] {
        assert_eq!(lacks(&page.replace("2 virtual CPUs", machine)), [""; 0], "{machine}");
    }
}

/// Whether a line should have been broken: an address alone cannot be.
fn too_wide(line: &&str) -> bool {
    let address = line.split_whitespace().find(|word| word.contains("://"));
    let rest = line.split_whitespace().filter(|word| Some(*word) != address);
    let is_alone = address.is_some() && rest.flat_map(str::chars).all(|c| "/!*#-<>`".contains(c));
    line.chars().count() > 120 && !is_alone
}

#[test]
fn what_should_have_been_broken_is_found() {
    let long = "a ".repeat(61);
    let link = format!("https://example.org/{}", "a".repeat(101));
    let broken = [
        long.clone(),
        format!("//! | {long} | table |"),
        format!("//!    {long}   drawn ──► so"),
        format!("see {link}"),
    ];
    for line in &broken {
        assert!(too_wide(&line.as_str()), "{line}");
    }
    for line in [link.clone(), format!("//! <{link}>"), format!("- {link}"), "a".repeat(120)] {
        assert!(!too_wide(&line.as_str()), "{line}");
    }
}

#[test]
fn pages_are_narrow_short_where_they_should_be_and_their_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for path in files_below(&root, ".md") {
        let page = fs::read_to_string(&path).unwrap();
        let shown = path.display();
        let wide: Vec<&str> = page.lines().filter(too_wide).collect();
        assert!(wide.is_empty(), "{shown}: {wide:?}");
        let text = prose(&page);
        let short = path.ends_with("../../../README.md") || shown.to_string().contains("/guide/");
        let words = page.split_whitespace().count();
        assert!(!short || words <= 600, "{shown} is long");
        // What goes on behind a verb stands on the pages of concepts.
        let verb = shown.to_string().contains("/verbs/");
        assert!(!verb || words < 1500, "{shown} has {words} words");
        let last = page.trim_end().rsplit("\n\n").next().unwrap();
        let guide = shown.to_string().contains("/guide/");
        assert!(
            !guide || last.starts_with("Next: "),
            "{shown} does not end with what to type next"
        );
        let evidence = shown.to_string().contains("/evidence/") && !path.ends_with("index.md");
        assert!(!evidence || lacks(&page).is_empty(), "{shown}: {:?}", lacks(&page));
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
    for path in files_below(&root.join("crates"), ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        let wide: Vec<&str> = text.lines().filter(too_wide).collect();
        assert!(wide.is_empty(), "{}: {wide:?}", path.display());
    }
}

/// Files whose lines are as long as they are: pages and Rust are looked at above; cargo writes locks and proptest its
/// seeds; a row of a table and a text of JSON are in one line; the rest is what was recorded.
const AS_THEY_ARE: [&str; 9] = [
    ".md",
    ".rs",
    ".lock",
    ".csv",
    ".json",
    ".parquet",
    "/proptest-regressions/",
    "/tests/fixtures/",
    "/tests/kept/",
];

#[test]
fn sources_of_other_languages_scripts_and_settings_are_narrow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap();
    let mut kinds = BTreeSet::new();
    let mut all = files_below(&root, "");
    all.push(root.join(".ci/run"));
    for path in all.into_iter().filter(|path| path.is_file()) {
        let name = format!("/{}", path.strip_prefix(&root).unwrap().display());
        let is_kept = |what: &&str| match what.strip_prefix('.') {
            Some(_) => name.ends_with(what),
            None => name.contains(what),
        };
        if AS_THEY_ARE.iter().any(is_kept) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let wide: Vec<&str> = text.lines().filter(too_wide).collect();
        assert!(wide.is_empty(), "{name}: {wide:?}");
        let extension = path.extension().and_then(|end| end.to_str());
        kinds.insert(extension.unwrap_or(path.file_name().unwrap().to_str().unwrap()).to_owned());
    }
    for kind in ["c", "cpp", "h", "html", "js", "pagemill", "rb", "service", "sh", "toml", "yaml"] {
        assert!(kinds.contains(kind), "no file is a {kind}: {kinds:?}");
    }
    for script in ["deb", "stage", "run"] {
        assert!(kinds.contains(script), "{script} was not looked at: {kinds:?}");
    }
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
    let code = sources.iter().filter(|path| !path.ends_with("tests/invariants/pages.rs"));
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
    // The reference is made from the command line and the row types, but for what neither knows.
    let reference = summary.split("# Reference\n").nth(1).unwrap().split("\n# ").next().unwrap();
    let listed = reference.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    let is_by_hand =
        |page: &&str| !fs::read_to_string(docs.join(page)).unwrap().starts_with("<!-- Made by: ");
    let by_hand: Vec<&str> = listed.filter(is_by_hand).collect();
    assert_eq!(by_hand, ["exit-codes.md", "reference/environment.md", "json.md"]);
}

/// What a page is called stands on it; a decision's date is in the name of its file.
#[test]
fn the_book_calls_pages_by_their_first_lines() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut compared = 0;
    for line in summary.lines().filter(|line| line.contains("](")) {
        let (title, path) = line.trim_start_matches(['-', ' ', '[']).split_once("](").unwrap();
        let path = path.trim_end_matches(')');
        let page = fs::read_to_string(docs.join(path)).unwrap();
        let first = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap();
        assert_eq!(first.replace('`', ""), title, "{path}, and docs/SUMMARY.md");
        if path.starts_with("decisions/") {
            assert!(!first.contains("20"), "{path}: {first:?} has a date");
            let third = page.lines().nth(2).unwrap();
            assert!(third.starts_with("**Context.**"), "{path} begins with {third:?}");
        }
        compared += 1;
    }
    assert!(compared > 120, "{compared}");
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
    // What a page of the book leads to is in the book.
    let mut followed = 0;
    for path in
        files_below(room.path(), ".html").iter().filter(|path| !path.ends_with("print.html"))
    {
        let page = fs::read_to_string(path).unwrap();
        let main = page.split("<main>").nth(1).and_then(|rest| rest.split("</main>").next());
        let links = main.unwrap_or_default().split("href=\"").skip(1);
        for link in links.map(|rest| rest.split('"').next().unwrap()) {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.contains(':') {
                let there = path.parent().unwrap().join(file);
                assert!(there.exists(), "{}: {link}", path.display());
                followed += 1;
            }
        }
    }
    assert!(followed > 300, "{followed}");
}

/// `linux-64k`, `damon`, `sites`, `pressure` and `prefault` were missing where all of their kind are listed.
#[test]
fn a_page_that_lists_a_kind_lists_all_of_it() {
    let trackers = compose::TRACKERS.iter().map(|one| one.name).filter(|name| *name != "none");
    let placers = compose::PLACERS.iter().map(|one| one.name).filter(|name| !name.is_empty());
    let experiments = experiment::all().unwrap();
    let experiments = experiments.iter().map(|one| one.name.as_str()).chain(registry::names());
    let programs = PROGRAMS.iter().chain(&CLIENTS).map(|one| one.name);
    let lists = [
        ("concepts/huge-pages.md", huge::names().collect()),
        ("concepts/experiments.md", experiments.collect()),
        ("verbs/advise.md", levers::REGISTRY.iter().map(|one| one.name()).collect()),
        ("verbs/doctor.md", capability::names().collect()),
        ("verbs/export.md", FORMATS.iter().map(|one| one.name).collect()),
        ("verbs/simulate.md", workload::names().collect()),
        ("verbs/workload.md", programs.collect::<Vec<&str>>()),
        ("guide/tiers.md", trackers.chain(placers).collect()),
        ("concepts/recordings.md", DATASETS.to_vec()),
        ("guide/first-recording.md", RECORDERS.iter().map(|one| one.name).collect()),
    ];
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    for (page, names) in lists {
        let text = fs::read_to_string(docs.join(page)).unwrap();
        // Names of levers are words, in the first column of their table.
        let is_there = |name: &str| {
            text.contains(&format!("`{name}`"))
                || text.lines().any(|line| {
                    let first = line.strip_prefix("| ").and_then(|line| line.split(" |").next());
                    first.is_some_and(|first| first.split(", ").any(|word| word == name))
                })
        };
        let lacks: Vec<&&str> = names.iter().filter(|name| !is_there(name)).collect();
        assert!(names.len() > 5 && lacks.is_empty(), "{page} lacks {lacks:?}");
    }
}

/// The words between two texts.
fn between<'a>(text: &'a str, begins: &str, ends: &str) -> BTreeSet<&'a str> {
    let (_, list) = text.split_once(begins).unwrap();
    list.split_once(ends).unwrap().0.split_whitespace().collect()
}

/// The page lacked seven of the packages that the launcher installs.
#[test]
fn the_packages_of_experiments_are_those_that_the_launcher_installs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let (launcher, page) = (read("pagemill"), read("docs/verbs/reproduce.md"));
    let installed = between(&launcher, "\nreproduce_packages=(", ")");
    assert!(installed.len() > 20, "{installed:?}");
    assert_eq!(between(&page, "\n- Packages: ", ".\n"), installed);
    let by_hand = between(&page, "\n- By hand, for more programs of `huge-pages`: ", ".\n");
    // What is looked for is named with its package; those of util-linux every Debian has.
    let looked_for =
        regex::Regex::new(r#"\bfind\(\s*"[^"]+",\s*"([^"]+)"|\npackage = "([^"]+)""#).unwrap();
    let experiments = files_below(&root.join("experiments"), ".toml");
    let experiments = experiments.iter().map(|path| fs::read_to_string(path).unwrap());
    let sources = sources().into_iter().filter(|source| source.room == "experiments");
    let code = sources.map(|source| source.text.split("#[cfg(test)]").next().unwrap().to_owned());
    let all = experiments.chain(code).collect::<Vec<_>>().join("\n");
    let mut asked: BTreeSet<&str> = looked_for
        .captures_iter(&all)
        .map(|found| found.get(1).or(found.get(2)).unwrap().as_str())
        .collect();
    assert!(asked.remove("util-linux") && asked.len() > 20, "{asked:?}");
    asked.extend([JEMALLOC, MIMALLOC, TCMALLOC].map(|one| one.package));
    let lacks: Vec<_> = asked.iter().filter(|name| !installed.contains(*name)).collect();
    assert!(lacks.iter().all(|name| by_hand.contains(**name)), "{lacks:?}");
}

/// The path that a word of code is meant to be, if it looks like one of ours: from the root, or from a crate's folder.
fn path_of(word: &str) -> Option<String> {
    let (first, rest) = word.split_once('/')?;
    let rooms = LADDER.iter().flat_map(|(wing, rooms)| rooms.iter().map(move |room| (wing, room)));
    let mut rooms = rooms.chain([(&"cli", &"pagemill")]);
    let of_room = ["src/", "tests/", "benches/", "examples/", "machines/"];
    let path = match first {
        "crates" | "docs" | "experiments" | "packaging" | "fuzz" => word.to_owned(),
        _ if of_room.iter().any(|folder| rest.starts_with(folder)) => {
            let (wing, room) = rooms.find(|(_, room)| **room == first)?;
            format!("crates/{wing}/{room}/{rest}")
        }
        _ => return None,
    };
    // Of one that stands for many the folder is ours; nothing holds what is made by a build.
    let end =
        path.find(['*', '{', '<', '…']).map_or(path.len(), |at| path[..at].rfind('/').unwrap());
    let is_named = path[..end].split('/').any(|part| part.starts_with("NAME"));
    (!is_named && word != "fuzz/corpus").then(|| path[..end].to_owned())
}

#[test]
fn paths_of_ours_are_found_in_words() {
    for (word, path) in [
        ("kernel/src/process", Some("crates/base/kernel/src/process")),
        ("docs/schema/*.json", Some("docs/schema")),
        ("crates/see/x.rs", Some("crates/see/x.rs")),
        ("docs/schema/NAME.json", None),
        ("proc/sys", None),
        ("kernel", None),
    ] {
        assert_eq!(path_of(word).as_deref(), path, "{word}");
    }
}

/// A comment named a folder of the kernel's crate long after that had another name.
#[test]
fn paths_that_comments_and_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let (mut looked, mut wrong) = (0, Vec::new());
    for at in files_below(&root, ".rs").into_iter().chain(files_below(&root, ".md")) {
        let is_page = at.extension().is_some_and(|end| end == "md");
        let text = fs::read_to_string(&at).unwrap();
        let lines = text.lines().filter(|line| is_page || line.trim_start().starts_with("//"));
        for word in lines.flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let Some(path) = path_of(word).filter(|_| !word.contains(' ')) else { continue };
            looked += 1;
            if !root.join(&path).exists() && !root.join(format!("{path}.rs")).exists() {
                wrong.push(format!("{}: {word}", at.display()));
            }
        }
    }
    assert!(looked > 30, "{looked}");
    assert_eq!(wrong, [""; 0]);
}

/// The modules that a table in the header of a file names, and those that the file declares, apart from tests.
fn modules(text: &str) -> Option<[BTreeSet<&str>; 2]> {
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    let mut rows = header.skip_while(|line| !line.starts_with("//! | module |"));
    rows.next()?;
    let cells =
        rows.map_while(|line| line.strip_prefix("//! |")).filter_map(|row| row.split('|').next());
    let named = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let mut declared = BTreeSet::new();
    let mut before = "";
    for line in text.lines() {
        let words = line.strip_suffix(';').unwrap_or_default().trim_start_matches("pub(crate) ");
        let name = words.trim_start_matches("pub ").strip_prefix("mod ");
        declared.extend(name.filter(|_| before != "#[cfg(test)]"));
        before = line;
    }
    Some([named, declared])
}

#[test]
fn modules_that_a_header_lists_are_those_that_there_are() {
    let example = "//! | module | is |\n//! |---|---|\n//! | [`a`], `b` | x |\n\
                   mod a;\npub mod b;\n#[cfg(test)]\nmod tests;\n";
    assert_eq!(modules(example), Some([["a", "b"].into(), ["a", "b"].into()]));
    let mut tables = 0;
    for Source { place, text, .. } in sources() {
        if let Some([named, declared]) = modules(&text) {
            assert_eq!(named, declared, "the table of {place}, and its modules");
            tables += 1;
        }
    }
    assert!(tables >= 4, "{tables}");
}

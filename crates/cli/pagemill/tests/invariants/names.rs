//! What is named where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pagemill_model::EventKind;

use crate::sources::without_tests;
use crate::{Source, files_below, sources};

/// `cannot write meta.json`, and not why: `{error}` leaves out what an error is due to, `{error:#}` says it.
#[test]
fn every_verb_says_why() {
    let mut looked = 0;
    for at in files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ".rs") {
        let text = fs::read_to_string(&at).unwrap();
        let code: String = without_tests(&text).collect();
        for half in ["{error}", "error.to_string()"] {
            assert!(!code.contains(half), "{}: {half}", at.display());
        }
        looked += 1;
    }
    assert!(looked > 30, "{looked}");
}

/// Where names of policies stand beside their own files: a flag's default, a baseline, a group of the machine's
/// parameters. Experiments name the systems that published figures show, and what they claim something of.
const NAMED: [(&str, &[&str]); 12] = [
    ("cli/pagemill/src/verbs/simulate/arguments.rs", &["tpp", "colloid"]),
    ("cli/pagemill/src/verbs/simulate/huge.rs", &["linux-never", "linux-always"]),
    ("cli/pagemill/src/verbs/tier.rs", &["colloid", "hemem"]),
    ("lab/experiments/src/colloid.rs", &["hemem", "memtis", "tpp"]),
    ("lab/experiments/src/colloid/cell.rs", &["colloid"]),
    (
        "lab/experiments/src/colloid/figures.rs",
        &["colloid", "damon", "hemem", "memtis", "tpp", "watermark"],
    ),
    ("lab/experiments/src/colloid/regret.rs", &["colloid", "hemem"]),
    ("lab/experiments/src/colloid/sensitivity.rs", &["hemem", "tpp"]),
    ("lab/experiments/src/huge_pages.rs", &["auto", "linux-always", "cbmm+"]),
    (
        "lab/experiments/src/huge_pages/report.rs",
        &["linux-always", "linux-never", "hawkeye", "cbmm", "cbmm+"],
    ),
    ("lab/sim/src/machine.rs", &["hemem"]),
    // The kernel's tiering is what it is called.
    ("steer/control/src/tier/actuators.rs", &["damon"]),
];

/// Where words that are policies' names mean something else: the kernel's DAMON as a file, a source of accesses and a
/// line of `tier doctor`; the choice that is left to the program; the experiment on Colloid.
const MEANT_OTHERWISE: [(&str, &[&str]); 9] = [
    ("base/kernel/src/settings/damon.rs", &["damon"]),
    ("cli/pagemill/src/verbs/run.rs", &["auto"]),
    ("cli/pagemill/src/verbs/tier.rs", &["auto"]),
    ("inside/preload-heap/src/environment.rs", &["auto"]),
    ("lab/experiments/src/colloid/options.rs", &["colloid"]),
    ("lab/experiments/src/reproduce/run.rs", &["colloid"]),
    ("steer/control/src/tier/doctor.rs", &["damon"]),
    ("steer/control/src/tier/latency.rs", &["auto"]),
    ("steer/control/src/tier/access_sources.rs", &["auto", "damon"]),
];

/// The text literals of code that are names, or lists of names: without spaces, cut at commas.
fn literals(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let here = &rest[at..];
        // Comments, and characters that are quotation marks.
        let skipped = ["'\"'", "'\\\"'", "b'\"'", "'\\''"].iter().find(|c| here.starts_with(**c));
        if here.starts_with("//") {
            rest = here.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(skipped) = skipped {
            rest = &here[skipped.len()..];
        } else if let Some(text) = here.strip_prefix('"') {
            let marks = rest[..at].len() - rest[..at].trim_end_matches('#').len();
            let raw = rest[..at].trim_end_matches('#').ends_with('r');
            let end = match raw {
                true => text.find(&format!("\"{}", "#".repeat(marks))),
                false => {
                    let mut escaped = false;
                    text.find(|c: char| {
                        let ends = c == '"' && !escaped;
                        escaped = c == '\\' && !escaped;
                        ends
                    })
                }
            };
            let (text, after) = text.split_at(end.unwrap_or(text.len()));
            if !text.contains(char::is_whitespace) {
                found.extend(text.split(',').map(str::to_owned));
            }
            rest = after.get(1..).unwrap_or_default();
        } else {
            rest = &here[1..];
        }
    }
    found
}

/// Whether one of the literals names a policy; a composed one its tracker, or its placer.
fn names(literals: &BTreeSet<String>, name: &str) -> bool {
    let is_huge = pagemill_policy::huge::find(name).is_some();
    let composed = |text: &String| {
        let mut parts = text.split('+');
        !is_huge && text.contains('+') && parts.any(|part| part == name)
    };
    literals.iter().any(|text| text == name || composed(text))
}

#[test]
fn names_in_lists_are_found_and_words_in_sentences_are_not() {
    let code = "const A: &str = \"none,tpp,memtis+colloid\"; // \"hemem\"\nif c == '\"' { f(\"damon\") } \
                g(r#\"auto\"#); h(\"cbmm+ and \\\" watermark\"); i(\"cbmm+\")";
    let found = literals(code);
    for name in ["tpp", "memtis", "colloid", "damon", "auto", "cbmm+"] {
        assert!(names(&found, name), "{name}: {found:?}");
    }
    for name in ["hemem", "cbmm", "watermark", "linux-never"] {
        assert!(!names(&found, name), "{name}: {found:?}");
    }
}

#[test]
fn what_a_registry_lists_is_named_in_its_own_file_only() {
    use pagemill_policy::huge;
    use pagemill_policy::tier::compose::{PLACERS, TRACKERS};
    let trackers = TRACKERS.iter().map(|row| row.name);
    let placers = PLACERS.iter().map(|row| row.name);
    let mut all: Vec<&str> = trackers.chain(placers).chain(huge::names()).collect();
    // No tracker, and no placer.
    all.retain(|name| !["", "none"].contains(name));
    assert!(all.len() > 15, "{all:?}");
    let mut found = BTreeMap::<&str, BTreeSet<String>>::new();
    for Source { place, text, .. } in sources() {
        let code = without_tests(&text).collect::<Vec<_>>().join("\n");
        let asked = |name: &&str| code.contains(&format!("starts_with(\"{name}"));
        let asked: Vec<&&str> = all.iter().filter(|name| asked(name)).collect();
        assert!(asked.is_empty(), "{place} asks for {asked:?} by name, not for what it does");
        let literals = literals(&code);
        for name in &all {
            if names(&literals, name) {
                found.entry(name).or_default().insert(place.clone());
            }
        }
    }
    let may = |place: &str, name: &str| {
        let mut may = NAMED.iter().chain(&MEANT_OTHERWISE);
        may.any(|(file, names)| *file == place && names.contains(&name))
    };
    for (place, name) in NAMED
        .iter()
        .chain(&MEANT_OTHERWISE)
        .flat_map(|(file, names)| names.iter().map(move |name| (file, name)))
    {
        let places = found.get(name).is_some_and(|places| places.contains(*place));
        assert!(places, "{place} does not name {name}: it is no exception");
    }
    for name in all {
        let places = found.remove(name).unwrap_or_default();
        let strange =
            |place: &&String| !place.starts_with("steer/policy/src/") && !may(place.as_str(), name);
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
    let named = without_tests(text).flat_map(|line| {
        let of =
            |start: &'static str| line.match_indices(start).map(move |(at, _)| at + start.len());
        ["Event::", "EventKind::"].into_iter().flat_map(of).map(move |at| &line[at..])
    });
    let word = |text| -> &str {
        let text: &str = text;
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap()
    };
    let kinds: BTreeSet<String> = EventKind::ALL.iter().map(|kind| format!("{kind:?}")).collect();
    let imported = without_tests(text).flat_map(|line| line.split("EventKind::{").skip(1));
    let imported = imported.flat_map(|line| line.split('}').next().unwrap().split(", "));
    named.map(word).chain(imported.map(word)).filter(|word| kinds.contains(*word)).collect()
}

/// As many kinds of events stand in one file at the most: accesses are of four, page faults too.
const MOST_KINDS: usize = 4;

/// `pressure` is a kind of event with all that a kind needs: recorded, reported in every form, compared, redacted, in
/// the reference. What it touches is what the next one touches.
#[test]
fn a_kind_of_event_is_three_files_and_no_other_lists_the_kinds() {
    let (mut touched, mut lists) = (BTreeSet::new(), BTreeSet::new());
    for Source { place, text, .. } in sources() {
        let words = ["EventKind::Pressure", "Event::Pressure", "PressureSample", "pressure::KIND"];
        if words.iter().any(|word| text.contains(word)) {
            touched.insert(place.clone());
        }
        let hidden = ["EventKind::*", "Event::*", "EventKind as", "EventKind::{self"];
        if kinds_in(&text).len() > MOST_KINDS || hidden.iter().any(|words| text.contains(words)) {
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
    assert_eq!(kinds_in("use x::EventKind::{Fault, Frag};"), ["Fault", "Frag"].into());
}

/// Verbs whose tests stand in a file of another name: what they read is made there.
const TESTED_BESIDE: [(&str, &str); 3] =
    [("collect", "fleet.rs"), ("compare", "output.rs"), ("hugepages", "faults.rs")];

/// Whether a test runs a verb: it is the first of the words that are given to pagemill.
fn runs(test: &str, verb: &str) -> bool {
    let code: String = test.split_whitespace().collect();
    let words = ["args([", "arg(", "&[", "vec!["];
    words.iter().any(|before| code.contains(&format!("{before}\"{verb}\"")))
}

#[test]
fn a_test_that_runs_a_verb_is_found() {
    assert!(
        runs("ran(pagemill().args([\n    \"heap\", \"-p\"", "heap")
            && runs("arg(\"heap\")", "heap")
    );
    assert!(!runs("answer[\"heap\"]; [\"--with\", \"heap\"]; arg(\"heaps\") // heap", "heap"));
}

/// `collect`, `compare` and `hugepages` had no test of their name, and the page said that each has.
#[test]
fn a_verb_has_one_name_as_a_module_on_its_pages_and_in_its_tests() {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = binary.join("../../../docs");
    let listed = fs::read_to_string(binary.join("src/verbs/mod.rs")).unwrap();
    let modules =
        listed.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let verbs: BTreeSet<String> = modules.map(str::to_owned).collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    let stems = |folder: &Path, besides: &[&str]| -> BTreeSet<String> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        paths
            .filter(|path| path.is_file())
            .map(stem)
            .filter(|stem| !besides.contains(&stem.as_str()))
            .collect()
    };
    assert_eq!(stems(&binary.join("src/verbs"), &["mod"]), verbs);
    assert_eq!(stems(&docs.join("verbs"), &[]), verbs);
    assert_eq!(stems(&docs.join("reference"), &["columns", "environment"]), verbs);
    for verb in &verbs {
        let own = format!("{verb}.rs");
        let beside = TESTED_BESIDE.iter().find(|(other, _)| other == verb).map(|(_, file)| *file);
        assert!(beside.is_none() || !binary.join("tests").join(&own).exists(), "{own} is there");
        let file = beside.unwrap_or(&own);
        let test = fs::read_to_string(binary.join("tests").join(file)).unwrap_or_default();
        assert!(runs(&test, verb), "no test in {file} runs {verb}");
    }
}

//! What is named where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pagemill_model::EventKind;

use crate::sources::without_tests;
use crate::{LADDER, files_below};

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
const NAMED: [(&str, &[&str]); 9] = [
    ("cli/pagemill/src/verbs/tier.rs", &["hemem"]),
    ("cli/pagemill/src/verbs/simulate/huge.rs", &["linux-never", "linux-always"]),
    ("lab/sim/src/machine.rs", &["hemem"]),
    ("lab/experiments/src/colloid.rs", &["hemem", "memtis", "tpp"]),
    ("lab/experiments/src/colloid/figures.rs", &["hemem", "memtis", "tpp"]),
    ("lab/experiments/src/colloid/regret.rs", &["hemem"]),
    ("lab/experiments/src/colloid/sensitivity.rs", &["hemem", "tpp"]),
    ("lab/experiments/src/huge_pages.rs", &["linux-always", "cbmm+"]),
    (
        "lab/experiments/src/huge_pages/report.rs",
        &["linux-always", "linux-never", "hawkeye", "cbmm", "cbmm+"],
    ),
];

#[test]
fn what_a_registry_lists_is_named_in_its_own_file_only() {
    use pagemill_policy::huge;
    use pagemill_policy::tier::compose::{PLACERS, TRACKERS};
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trackers = TRACKERS.iter().map(|row| row.name);
    let placers = PLACERS.iter().map(|row| row.name);
    let mut names: Vec<&str> = trackers.chain(placers).chain(huge::names()).collect();
    // Words that mean other things, too; an experiment has a placer's name, the heap's back end a policy's, and the
    // daemon's tracker is the kernel's.
    names.retain(|name| !["", "none", "colloid", "auto", "damon"].contains(name));
    assert!(names.len() > 10, "{names:?}");
    let mut found = BTreeMap::<&str, BTreeSet<String>>::new();
    for (wing, rooms) in LADDER {
        for room in rooms {
            for at in files_below(&crates.join(wing).join(room).join("src"), ".rs") {
                let place = at.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
                if place.ends_with("tests.rs") {
                    continue;
                }
                let text = fs::read_to_string(&at).unwrap();
                let code = without_tests(&text).collect::<Vec<_>>().join("\n");
                let asked = |name: &&str| code.contains(&format!("starts_with(\"{name}"));
                let asked: Vec<&&str> = names.iter().filter(|name| asked(name)).collect();
                assert!(
                    asked.is_empty(),
                    "{place} asks for {asked:?} by name, not for what it does"
                );
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
            let may = NAMED.iter().find(|(file, _)| file == *place);
            !place.starts_with("steer/policy/src/")
                && !may.is_some_and(|(_, names)| names.contains(&name))
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

//! What `--json` prints is what `docs/schema` says, for every verb that takes it.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::verbs::{Sleeping, verbs_with_json};
use support::{pagemill, pagemill_with, ran, recording, skip};

/// Layouts that no call below prints, and who looks at them.
const ELSEWHERE: [(&str, &str); 2] = [
    ("plan-replay", "a recording of run --huge, which tests/huge.rs makes"),
    ("tier-replay", "a recording of the daemon, which needs two memory nodes: the guest's"),
];

fn schemas() -> BTreeMap<String, Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/schema");
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
    };
    files.map(|file| read(file.unwrap().path())).collect()
}

/// What is wrong with `value`, a line each. As JSON Schema has it, for the words that our files use; and no member goes
/// without being described, unless none is.
fn wrong(value: &Value, schema: &Value, place: &str, found: &mut Vec<String>) {
    const WORDS: [&str; 9] = [
        "$schema",
        "title",
        "description",
        "type",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "const",
    ];
    let known = schema.as_object().unwrap();
    assert!(known.keys().all(|word| WORDS.contains(&word.as_str())), "{place}: {known:?}");
    if schema.get("const").is_some_and(|wanted| wanted != value) {
        found.push(format!("{place}: {value} is not {}", schema["const"]));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.and_then(Value::as_str).into_iter().collect(),
    };
    let fits = allowed.is_empty()
        || allowed.contains(&kind)
        || kind == "integer" && allowed.contains(&"number");
    if !fits {
        found.push(format!("{place}: {kind}, not {allowed:?}"));
    }
    match value {
        Value::Array(items) => {
            let Some(each) = schema.get("items") else { return };
            items
                .iter()
                .enumerate()
                .for_each(|(at, item)| wrong(item, each, &format!("{place}[{at}]"), found));
        }
        Value::Object(members) => {
            let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            let absent =
                required.filter_map(Value::as_str).filter(|name| !members.contains_key(*name));
            found.extend(absent.map(|name| format!("{place}: no {name}")));
            for (name, member) in members {
                let place = format!("{place}.{name}");
                let one = schema.get("properties").map(|all| all.get(name));
                match (one.flatten(), schema.get("additionalProperties")) {
                    (Some(schema), _) | (None, Some(schema)) => {
                        wrong(member, schema, &place, found)
                    }
                    (None, None) if one.is_some() => {
                        found.push(format!("{place} is not described"))
                    }
                    (None, None) => {}
                }
            }
        }
        _ => {}
    }
}

/// A recording of this kind of a short program, if it can be made here.
fn recorded(room: &Path, with: &str, options: &[&str]) -> Option<String> {
    let path = room.join(with.replace(',', "-"));
    let mut command = pagemill();
    command.args(["record", "--with", with, "-o"]).arg(&path).args(options);
    let run = ran(command.args(["--", "sh", "-c", "sleep 0.2; echo"]));
    if run.code() == Some(0) { Some(path.to_str().unwrap().to_owned()) } else { skip(&run.err) }
}

#[test]
fn every_answer_is_as_its_schema_says_and_every_verb_with_json_has_one() {
    let room = tempfile::tempdir().unwrap();
    let sleeping = Sleeping::on_heap();
    let pid = sleeping.pid();
    let fine = ["--threshold", "0ns"];
    let path = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let (trace, profile, results) = (path("trace"), path("profile.csv"), path("results"));
    let mut calls: Vec<(&str, Vec<&str>)> = vec![
        (
            "advise",
            vec![
                "advise",
                "--json",
                "--within",
                "5m",
                "--levers",
                "early trim",
                "--",
                "sleep",
                "0.1",
            ],
        ),
        ("advise-estimates", vec!["advise", "-p", &pid, "--for", "200ms", "--json"]),
        ("error", vec!["advise", "--json", "--", "false"]),
        ("counters", vec!["advise", "--counters", "--json", "--runs", "3", "--", "true"]),
        ("doctor", vec!["doctor", "--json", "--", "sh"]),
        ("frag-check", vec!["frag", "show", "--check", "100", "--json"]),
        ("frag-show", vec!["frag", "show", "--json"]),
        ("frag-compact", vec!["frag", "compact", "--dry-run", "--target", "0.5", "--json"]),
        ("frag-induce", vec!["frag", "induce", "--dry-run", "--target", "0.5", "--json"]),
        ("heap", vec!["heap", &pid, "--json"]),
        ("hugepages", vec!["hugepages", "-p", &pid, "--json"]),
        ("live", vec!["live", "-p", &pid, "--once", "--json"]),
        ("plan-costs", vec!["plan", "--costs", "--json"]),
        (
            "plan-measure",
            vec![
                "advise",
                "--places",
                "--runs",
                "7",
                "--slices",
                "2",
                "--json",
                "--",
                "python3",
                "-c",
                "bytearray(64 << 20)",
            ],
        ),
        (
            "simulate",
            vec![
                "simulate",
                "gups",
                "--policy",
                "none,tpp",
                "--seconds",
                "2",
                "--scale",
                "256",
                "--json",
            ],
        ),
        ("simulate-figures", vec!["simulate", "--figure", "setup", "--quick", "--json"]),
        (
            "simulate-sweep",
            [
                "simulate",
                "zipf",
                "--sweep",
                "fast=1G..4G",
                "--policy",
                "none",
                "--seconds",
                "1",
                "--json",
            ]
            .to_vec(),
        ),
        ("simulate-huge", vec!["simulate", "grow", "--huge", "linux-always,cbmm+", "--json"]),
        (
            "reproduce",
            vec!["reproduce", "throughput", "--quick", "--json", "-o", &results]
                .into_iter()
                .chain(["--reps", "1", "--scale", "0.01", "--arms", "glibc"])
                .collect(),
        ),
        ("collect", vec!["collect", &results, "--json"]),
        ("reproduce-list", vec!["reproduce", "--list", "--json", "-o", &results]),
        ("tier-doctor", vec!["tier", "doctor", "--json"]),
        ("tier-status", vec!["tier", "status", "--json"]),
        ("validate", vec!["validate", "--json", "--", "true"]),
    ];
    let faults = recorded(room.path(), "faults,hugepages,frag", &fine);
    let [heap, accesses] = ["heap", "accesses"].map(|with| recorded(room.path(), with, &[]));
    // Of a process that is not on pagemill's heap, most columns of a sample were required and absent.
    let foreign = path("foreign");
    let me = std::process::id().to_string();
    let made =
        pagemill_with(&["record", "--with", "heap", "--for", "50ms", "-o", &foreign, "-p", &me]);
    assert_eq!(made.code(), Some(0), "{made:?}");
    let foreign = Some(foreign);
    for recording in [&faults, &heap, &foreign, &accesses].into_iter().flatten() {
        calls.push(("report", vec!["report", recording, "--json"]));
        calls.push(("compare", vec!["compare", recording, recording, "--json"]));
    }
    if let Some(faults) = &faults {
        calls.push(("hugepages", vec!["hugepages", faults, "--json"]));
        calls.push(("plan", vec!["plan", faults, "--json"]));
        let made = pagemill_with(&["export", faults, "--format", "pftrace", "-o", &trace]);
        assert_eq!(made.code(), Some(0), "{made:?}");
        calls.push(("report-pftrace", vec!["report", &trace, "--json"]));
        let made = pagemill_with(&["plan", faults, "-o", &profile]);
        assert_eq!(made.code(), Some(0), "{made:?}");
        calls.push(("plan-profile", vec!["plan", &profile, "--perturb", "shuffle", "--json"]));
    }
    if let Some(accesses) = &accesses {
        calls.push(("advise-estimates", vec!["advise", accesses, "--json"]));
    }
    let cold = path("cold");
    recording::with_cold_memory(Path::new(&cold));
    calls.push(("advise-estimates", vec!["advise", &cold, "--json"]));
    let schemas = schemas();
    let mut seen = BTreeSet::new();
    for (layout, call) in &calls {
        let run = ran(pagemill().args(call));
        let answer: Value = serde_json::from_str(&run.out)
            .unwrap_or_else(|error| panic!("{call:?}: {error}: {run:?}"));
        if answer["layout"] == "error" && *layout != "error" {
            // What does not work here has said so.
            assert!(matches!(run.code(), Some(2..=4)) && !run.err.is_empty(), "{call:?}: {run:?}");
            println!("skipped: {}", run.err.trim());
            continue;
        }
        assert_eq!(answer["layout"], *layout, "{call:?}");
        let mut found = Vec::new();
        wrong(&answer, &schemas[*layout], layout, &mut found);
        assert!(found.is_empty(), "{call:?}: {found:#?}");
        seen.insert((*layout).to_owned());
        // What takes long is not done again.
        let is_long = call.iter().any(|word| ["--", "reproduce"].contains(word));
        if !is_long || *layout == "doctor" {
            as_csv(call);
        }
    }
    let called: BTreeSet<&str> = calls.iter().map(|(layout, _)| *layout).collect();
    let elsewhere = ELSEWHERE.map(|(layout, _)| layout);
    let forgotten: Vec<&String> = schemas
        .keys()
        .filter(|name| !called.contains(name.as_str()) && !elsewhere.contains(&name.as_str()))
        .collect();
    assert!(faults.is_none() || forgotten.is_empty(), "no call prints {forgotten:?}");
    assert!(seen.len() >= 8, "{seen:?}");
    every_verb_is_called(&calls);
}

/// A program that reads JSON got prose on standard error, and nothing else.
#[test]
fn who_asks_for_json_and_gets_no_answer_gets_why_as_json() {
    let schema = &schemas()["error"];
    let says = |code: i32, verb: Option<&str>, part: &str, call: &[&str]| {
        let run = ran(pagemill().args(call));
        let answer: Value = serde_json::from_str(&run.out)
            .unwrap_or_else(|error| panic!("{call:?}: {error}: {run:?}"));
        let mut found = Vec::new();
        wrong(&answer, schema, "error", &mut found);
        assert!(found.is_empty(), "{call:?}: {found:#?}");
        assert_eq!((run.code(), &answer["exit_code"]), (Some(code), &Value::from(code)), "{run:?}");
        assert_eq!(answer["verb"].as_str(), verb, "{call:?}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(part) && !error.contains('\n'), "{call:?}: {error}");
        assert!(!run.err.is_empty(), "{call:?}: people read it, too");
    };
    let unknown = "unexpected argument '--luck' found";
    for verb in ["advise", "heap", "report", "doctor", "compare"] {
        says(2, Some(verb), unknown, &[verb, "--json", "--luck"]);
    }
    says(125, Some("run"), "unexpected argument '--json'", &["run", "--json", "--", "true"]);
    says(2, Some("advise"), "value is required", &["advise", "--json", "--goal"]);
    says(2, Some("advise"), "invalid value 'luck'", &["advise", "--json", "--goal", "luck"]);
    says(2, Some("advise"), "a process (-p PID) or a recording", &["advise", "--json"]);
    says(2, Some("report"), "required arguments were not provided", &["report", "--json"]);
    says(2, None, unknown, &["--luck", "--json"]);
    says(2, Some("report"), "/no/such/recording", &["report", "/no/such/recording", "--json"]);
    says(2, Some("heap"), "999999999", &["heap", "999999999", "--json"]);
    // What belongs to the command asks for nothing.
    let run = ran(pagemill().args(["run", "--luck", "--", "true", "--json"]));
    assert_eq!((run.code(), run.out.as_str()), (Some(125), ""), "{run:?}");
}

/// The same call prints a table, or says that it has no rows: `plan --explain --csv` printed nothing and ended with 0.
fn as_csv(call: &[&str]) {
    let words = call.iter().map(|word| if *word == "--json" { "--csv" } else { word });
    let run = ran(pagemill().args(words));
    // `collect` writes files of its own.
    if call[0] == "collect" && run.code() == Some(2) {
        return;
    }
    let mut reader = csv::Reader::from_reader(run.out.as_bytes());
    let rows = reader.records().collect::<Result<Vec<_>, _>>().unwrap().len();
    assert!(rows > 0 || run.err.contains(" has no rows"), "{call:?} as CSV: {run:?}");
}

#[test]
fn tables_of_an_answer_are_printed_as_csv_and_a_wrong_name_is_answered_with_those_there_are() {
    let room = tempfile::tempdir().unwrap();
    let mut calls: Vec<Vec<&str>> = vec![
        vec!["doctor", "--csv"],
        vec!["frag", "show", "--csv"],
        vec!["frag", "compact", "--dry-run", "--csv"],
        vec!["frag", "show", "--csv=mobility.free"],
        vec![
            "simulate",
            "gups",
            "--policy",
            "none,tpp",
            "--seconds",
            "2",
            "--scale",
            "256",
            "--csv",
        ],
    ];
    let recording = recorded(room.path(), "faults", &[]);
    // Of a heap it was faults, or the last sample, which the text does not have.
    let heap = recorded(room.path(), "heap", &[]);
    if let Some(heap) = &heap {
        let run = pagemill_with(&["report", heap, "--csv"]);
        let columns = run.out.lines().next().unwrap_or_default();
        assert!(columns.contains("pss_bytes.peak") && columns.contains("samples"), "{run:?}");
    }
    if let Some(recording) = &recording {
        calls.push(vec!["report", recording, "--csv=faults.categories"]);
        calls.push(vec!["compare", recording, recording, "--csv"]);
        calls.push(vec!["report", recording, "--csv"]);
        let refused = pagemill_with(&["report", recording, "--csv=nothing"]);
        assert_eq!((refused.code(), refused.out.as_str()), (Some(2), ""), "{refused:?}");
        assert!(
            refused.err.contains("takes one of: ") && refused.err.contains("faults.categories"),
            "{refused:?}"
        );
    }
    for call in calls {
        let run = ran(pagemill().args(&call));
        if run.err.contains("has no table \"mobility.free\"") {
            println!("skipped: /proc/pagetypeinfo is root's to read");
            continue;
        }
        let mut reader = csv::Reader::from_reader(run.out.as_bytes());
        let columns = reader.headers().unwrap().len();
        // A row with more or fewer cells is an error.
        let rows = reader.records().collect::<Result<Vec<_>, _>>().unwrap().len();
        assert!(columns > 1 && rows > 0, "{call:?}: {run:?}");
    }
}

/// Every verb whose help names `--json` is among the calls.
fn every_verb_is_called(calls: &[(&str, Vec<&str>)]) {
    let verbs = verbs_with_json();
    let called = |verb: &String| {
        let words: Vec<&str> = verb.split(' ').collect();
        calls.iter().any(|(_, call)| call.starts_with(&words))
    };
    // A daemon, a replay of its recording, and a group of verbs.
    let others = ["tier", "tier replay", "tier restore"];
    let forgotten: Vec<&String> =
        verbs.iter().filter(|verb| !called(verb) && !others.contains(&verb.as_str())).collect();
    assert!(forgotten.is_empty(), "no call is of {forgotten:?}");
}

#[test]
fn the_check_of_a_schema_can_fail() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "a": { "type": ["integer", "null"] },
            "b": { "items": { "type": "string" } },
            "c": { "const": 1 }
        },
        "required": ["a"],
    });
    let found = |value: Value| {
        let mut found = Vec::new();
        wrong(&value, &schema, "x", &mut found);
        found
    };
    assert_eq!(found(serde_json::json!({ "a": null, "b": ["y"], "c": 1 })), [""; 0]);
    assert_eq!(
        found(serde_json::json!({ "b": [1], "c": 2 })),
        ["x: no a", "x.b[0]: integer, not [\"string\"]", "x.c: 2 is not 1"]
    );
    assert_eq!(
        found(serde_json::json!({ "a": 1.5, "d": 1 })),
        ["x.a: number, not [\"integer\", \"null\"]", "x.d is not described"]
    );
}

/// Nothing but the constants in the program and the files say which layouts there are.
#[test]
fn every_layout_that_the_program_names_is_described() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut listed = BTreeMap::<String, u64>::new();
    while let Some(at) = open.pop() {
        if at.is_dir() {
            open.extend(fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(at).unwrap();
        // In tests they are borrowed.
        for of in text.split(": Layout =").skip(1) {
            let of = of.trim_start().strip_prefix("Layout::new(").unwrap();
            let mut words = of.split([',', '(']).map(|word| word.trim().trim_matches('"'));
            let (name, version) = (words.next().unwrap(), words.next().unwrap());
            assert_eq!(listed.insert(name.to_owned(), version.parse().unwrap()), None, "{name}");
        }
    }
    let described = schemas().into_iter().map(|(name, schema)| {
        assert_eq!(schema["properties"]["layout"]["const"], *name, "{name}");
        (name, schema["properties"]["schema"]["const"].as_u64().unwrap())
    });
    assert_eq!(listed, described.collect());
}

//! `pagemill doctor`, from the outside.

#[cfg(test)]
mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use serde_json::Value;
use support::{compiled, pagemill, pagemill_with, ran, skip};

const PROGRAM: &str = "int main(void) { return 0; }";

fn json(arguments: &[&str]) -> Value {
    let run = pagemill_with(&[&["doctor", "--json"], arguments].concat());
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn row<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let rows = answer["rows"].as_array().expect("rows are an array");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}"))
}

#[test]
fn each_row_says_what_it_is_for_and_each_one_out_of_order_how_to_mend_it() {
    let answer = json(&[]);
    assert_eq!(answer["schema"], 1);
    for row in answer["rows"].as_array().unwrap() {
        for key in ["name", "status", "finding", "since", "used_for"] {
            assert!(!row[key].as_str().unwrap().is_empty(), "{row}");
        }
        assert_eq!(row.get("fix").is_none(), row["status"] == "ok", "{row}");
    }
}

#[test]
fn the_names_of_the_rows_are_stable() {
    let answer = json(&[]);
    let names: Vec<&str> = answer["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "preload-library",
            "ksm",
            "userfaultfd",
            "userfaultfd-write-protect",
            "userfaultfd-move",
            "memfd",
            "max-map-count",
            "cgroup",
            "psi",
            "real-time",
            "thp",
            "fragmentation",
            "prefault",
            "process-memory",
            "perf-events",
            "page-walks",
            "bpf",
            "bpf-tracepoints",
            "bpf-fentry",
            "access-tracing",
            "emulator",
            "memory-tiers",
            "access-trackers",
            "seccomp",
        ]
    );
}

#[test]
fn the_exit_status_is_3_exactly_when_something_is_missing() {
    let run = pagemill_with(&["doctor", "--json"]);
    let missing = run.out.contains("\"status\": \"missing\"");
    assert_eq!(run.code(), Some(if missing { 3 } else { 0 }), "{run:?}");
}

#[test]
fn the_text_has_a_line_for_each_row_and_a_fix_for_each_one_out_of_order() {
    let answer = json(&[]);
    let text = pagemill_with(&["doctor"]).out;
    for row in answer["rows"].as_array().unwrap() {
        let start =
            format!("{:<9} {:<26}", row["status"].as_str().unwrap(), row["name"].as_str().unwrap());
        assert!(text.lines().any(|line| line.starts_with(&start)), "{start:?} in {text}");
        if let Some(fix) = row.get("fix") {
            assert!(text.contains(fix.as_str().unwrap()), "{fix}");
        }
    }
}

#[test]
fn the_side_channel_of_merging_is_named_where_merging_is_possible() {
    let answer = json(&[]);
    let ksm = row(&answer, "ksm");
    if ksm["status"] == "missing" {
        skip::<()>(ksm["finding"].as_str().unwrap());
        return;
    }
    assert!(ksm["finding"].as_str().unwrap().contains("side channel"), "{ksm}");
}

#[test]
fn a_library_that_is_not_there_is_missing_and_named() {
    let run =
        ran(pagemill().args(["doctor", "--json"]).env("PAGEMILL_HEAP_LIB", "/no/such/lib.so"));
    let answer: Value = serde_json::from_str(&run.out).unwrap();
    let library = row(&answer, "preload-library");
    assert_eq!(library["status"], "missing");
    assert!(library["finding"].as_str().unwrap().contains("/no/such/lib.so"), "{library}");
    assert_eq!(run.code(), Some(3));
}

#[test]
fn an_ordinary_program_can_be_preloaded_into() {
    for arguments in [["--program", "sh"].as_slice(), &["--", "sh", "-c", "exit 1"]] {
        let program = &json(arguments)["program"];
        assert_eq!((&program["status"], program.get("kind")), (&"ok".into(), None), "{program}");
    }
}

#[test]
fn a_program_that_is_not_there_is_missing() {
    let program = &json(&["--program", "no-such-program"])["program"];
    assert_eq!((&program["status"], &program["kind"]), (&"missing".into(), &"not-found".into()));
}

#[test]
fn a_program_with_an_allocator_of_its_own_is_told_from_one_without() {
    let directory = tempfile::tempdir().unwrap();
    let own = "#include <stddef.h>\nvoid *malloc(size_t n) { (void)n; return 0; }\nvoid free(void *p) \
               { (void)p; }\nint main(void) { return 0; }";
    let jemalloc = "#include <stddef.h>\nvoid *je_malloc(size_t n) { (void)n; return 0; }\nint main(void) \
                    { return 0; }";
    for (name, source, flags, kind) in [
        ("exported", own, &["-rdynamic"][..], Value::from("bundled-allocator")),
        ("prefixed", jemalloc, &[], Value::from("bundled-allocator")),
        ("plain", PROGRAM, &[], Value::Null),
    ] {
        let Some(path) = compiled(&directory, name, source, flags) else { return };
        let program = json(&["--program", path.to_str().unwrap()])["program"].clone();
        assert_eq!(program["kind"], kind, "{program}");
    }
}

#[test]
fn a_static_program_is_told() {
    let directory = tempfile::tempdir().unwrap();
    for flags in [&["-static"][..], &["-static-pie"]] {
        let Some(path) = compiled(&directory, "program", PROGRAM, flags) else { return };
        let program = json(&["--program", path.to_str().unwrap()])["program"].clone();
        assert_eq!(program["kind"], "static", "{program}");
        assert!(program["fix"].as_str().unwrap().contains("without -static"), "{program}");
    }
}

#[test]
fn a_go_program_is_told() {
    let directory = tempfile::tempdir().unwrap();
    // What Go's linker leaves in each of its programs.
    let source = "__attribute__((section(\".go.buildinfo\"), used)) static char info[32] = \"\\xff Go \
                  buildinf:\";\nint main(void) { return 0; }";
    for flags in [&["-static"][..], &[]] {
        let Some(path) = compiled(&directory, "program", source, flags) else { return };
        let program = json(&["--program", path.to_str().unwrap()])["program"].clone();
        assert_eq!(program["kind"], "go", "{program}");
    }
}

#[test]
fn a_program_on_musl_is_told_by_its_loader() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"];
    let Some(path) = compiled(&directory, "program", PROGRAM, &flags) else { return };
    let program = json(&["--program", path.to_str().unwrap()])["program"].clone();
    assert_eq!(program["kind"], "musl", "{program}");
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let directory = tempfile::tempdir().unwrap();
    let Some(interpreter) = compiled(&directory, "interpreter", PROGRAM, &["-static"]) else {
        return;
    };
    let script = directory.path().join("script");
    fs::write(&script, format!("#!{}\n", interpreter.display())).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let program = json(&["--program", script.to_str().unwrap()])["program"].clone();
    assert_eq!(program["kind"], "static", "{program}");
    assert_eq!(program["chain"][1], interpreter.to_str().unwrap());
}

/// "ok" was said of wrappers of programs that bring their own allocator.
#[test]
fn a_wrapper_is_judged_by_what_it_executes_and_a_script_that_does_not_say_by_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let own = "#include <stddef.h>\nvoid *malloc(size_t n) { (void)n; return 0; }\nvoid free(void *p) \
               { (void)p; }\nint main(void) { return 0; }";
    let Some(bundled) = compiled(&directory, "bundled", own, &["-rdynamic"]) else { return };
    let Some(plain) = compiled(&directory, "plain", PROGRAM, &[]) else { return };
    let executes = |program: &std::path::Path| {
        format!("# exec /bin/true\nexec \"{}\" \"$@\"", program.display())
    };
    let of = |name: &str| executes(&directory.path().join(name));
    for (name, text, status, kind) in [
        ("wraps-bundled", executes(&bundled), "missing", Value::from("bundled-allocator")),
        ("wraps-plain", executes(&plain), "ok", Value::Null),
        ("says-nothing", "\"$BROWSER\" \"$@\"".to_owned(), "degraded", Value::from("script")),
        // A script that executes a script was as good as a shell.
        ("wraps-a-wrapper", of("wraps-bundled"), "missing", Value::from("bundled-allocator")),
        ("wraps-it-again", of("wraps-a-wrapper"), "missing", Value::from("bundled-allocator")),
        ("wraps-the-plain-one", of("wraps-plain"), "ok", Value::Null),
        ("wraps-what-says-nothing", of("says-nothing"), "degraded", Value::from("script")),
        ("wraps-itself", of("wraps-itself"), "degraded", Value::from("script")),
        ("by-name", "exec 3>&1\nexec true".to_owned(), "ok", Value::Null),
    ] {
        let script = directory.path().join(name);
        fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let program = json(&["--program", script.to_str().unwrap()])["program"].clone();
        assert_eq!(
            (program["status"].as_str(), &program["kind"]),
            (Some(status), &kind),
            "{program}"
        );
        if kind == "bundled-allocator" {
            let run = pagemill_with(&["run", "--", script.to_str().unwrap()]);
            let advice = format!("executes {}, which cannot use", bundled.display());
            assert!(run.err.contains(&advice), "{name}: {run:?}");
        }
    }
}

#[test]
fn a_set_user_id_program_is_told_for_others_and_not_for_its_owner() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sh");
    fs::copy("/bin/sh", &path).unwrap();
    let set = || fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    set();
    let kind = || json(&["--program", path.to_str().unwrap()])["program"]["kind"].clone();
    assert_eq!(kind(), Value::Null, "it gains nothing by becoming who it is");
    if let Err(error) = chown(&path, Some(NOBODY), None) {
        skip::<()>(&format!("cannot give a file away: {error}"));
        return;
    }
    set(); // chown(2) clears the bit.
    assert_eq!(kind(), "privileged");
}

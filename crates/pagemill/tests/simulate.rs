//! `pagemill simulate` from the outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its subject should panic")]

use std::io::Write;
use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagemill")).arg("simulate").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn machine_file(edit: impl Fn(&str) -> String) -> tempfile::NamedTempFile {
    let built_in = simulate(&["--print-machine"]);
    let text = edit(std::str::from_utf8(&built_in.stdout).unwrap());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let run = |seed: &str| {
        let output = simulate(&[
            "gups",
            "--policy",
            "tpp",
            "--seconds",
            "3",
            "--scale",
            "4096",
            "--json",
            "--seed",
            seed,
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn a_negative_latency_is_answered_with_line_key_and_valid_values() {
    let file = machine_file(|text| {
        text.replacen("unloaded_ns = { value = 70", "unloaded_ns = { value = -70", 1)
    });
    let output = simulate(&["--machine", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("line ") && text.contains("tier.default.unloaded_ns"), "{text}");
    assert!(text.contains("1 to 10000 ns"), "{text}");
}

#[test]
fn a_machine_without_its_alternate_tier_is_refused() {
    let file = machine_file(|text| {
        let (before, rest) = text.split_once("[tier.alternate]").unwrap();
        format!("{before}[link]{}", rest.split_once("[link]").unwrap().1)
    });
    let output = simulate(&["--machine", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("tier.alternate: the whole table is missing"), "{text}");
    assert!(text.contains("line ") && text.contains("channels, unloaded_ns"), "{text}");
}

#[test]
fn an_unknown_policy_workload_or_figure_lists_the_valid_ones() {
    for (arguments, valid) in [
        (&["--policy", "lru"][..], "tpp+colloid"),
        (&["quake"][..], "pagerank"),
        (&["--figure", "9z"][..], "6c"),
    ] {
        let output = simulate(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(valid), "{}", stderr(&output));
    }
}

#[test]
fn output_says_that_it_is_modelled_and_nothing_is_written_to_a_piped_stderr() {
    let output = simulate(&["chase", "--policy", "none", "--seconds", "1", "--scale", "1024"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("modelled"));
    assert_eq!(stderr(&output), "");
}

//! `pagemill workload`: which options count, and what is said of what goes wrong.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

fn workload(arguments: &str) -> Output {
    let words = arguments.split(' ');
    Command::new(env!("CARGO_BIN_EXE_pagemill")).arg("workload").args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// They were passed over, and echoed as though they counted.
#[test]
fn an_option_that_a_workload_does_not_go_by_is_refused_with_those_that_it_takes() {
    for (arguments, told) in [
        ("nas-bt --scale 0.1", "nas-bt does not go by --scale; it takes --threads --class\n"),
        ("nas-is --seed 1", "nas-is does not go by --seed"),
        ("mcf --threads 2", "mcf does not go by --threads; it takes --scale --seed\n"),
        ("silo-tpcc --class A", "silo-tpcc does not go by --class"),
        (
            "larson --scale 0.1",
            "larson does not go by --scale; it takes --threads --seconds --seed",
        ),
        ("churn --server unix:/x", "churn does not go by --server"),
    ] {
        let output = workload(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        assert!(said(&output).contains(told), "{arguments}: {output:?}");
    }
}

#[test]
fn the_line_has_the_options_that_count_and_no_others() {
    let output = workload("nas-is --threads 1");
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["options"], serde_json::json!({ "class": "S", "threads": 1 }));
    assert!(line["scale"].is_null() && line["seed"].is_null(), "{line}");
    assert_eq!(line["threads"], 1);
    let list = String::from_utf8(workload("--list").stdout).unwrap();
    let is = list.lines().find(|row| row.starts_with("nas-is")).unwrap();
    assert!(is.ends_with(": --threads --class"), "{is}");
}

/// What is verified is what was done: `--scale 1e-9` passed with 0 operations.
#[test]
fn nothing_passes_with_nothing_done() {
    for name in ["silo-ycsb", "silo-tpcc", "cache", "gap-bfs"] {
        let output = workload(&format!("{name} --scale 1e-9"));
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(line["operations"].as_u64() > Some(0), "{line}");
    }
}

#[test]
fn a_wrong_name_is_answered_with_the_nearest() {
    for (wrong, meant) in [("larsen", "larson"), ("silo-tpc", "silo-tpcc"), ("nas_is", "nas-is")] {
        let output = workload(wrong);
        assert_eq!(output.status.code(), Some(2));
        let told = format!("there is no workload {wrong:?} (did you mean {meant:?}?)");
        assert!(said(&output).contains(&told), "{output:?}");
    }
}

/// It was told as a failed self check: memory was damaged.
#[test]
fn a_server_that_closes_its_connections_is_told_as_that() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let output = workload(&format!("ycsb-redis --scale 0.001 --server {address}"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let told = said(&output);
    assert!(told.contains("ycsb-redis: the server closed the connection (at SET)"), "{told}");
    assert!(!told.contains("self check"), "{told}");
    let nobody = workload("ycsb-redis --server unix:/nonexistent");
    assert!(said(&nobody).contains("cannot connect to unix:/nonexistent"), "{nobody:?}");
    let unnamed = workload("ycsb-memcached");
    assert!(said(&unnamed).contains("name the server: --server unix:PATH"), "{unnamed:?}");
}

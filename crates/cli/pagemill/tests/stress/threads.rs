//! Threads that come and go, and what they leave behind.

use crate::harness::{Heap, REMAP, Run, program, seconds, seed, shared};

fn run(heap: Heap, arguments: [&str; 2]) {
    let Some(threads) = program("threads.cpp") else { return };
    let outcome = Run::new(threads).args(arguments).args([seed()]).on(heap).outcome().succeeded();
    eprintln!("{heap:?} {arguments:?}: {:?}", outcome.facts());
    if heap.config.ends_with('y') {
        outcome.compacted(arguments[0]);
    }
}

#[test]
fn ten_thousand_short_threads_whose_objects_others_free() {
    let _machine = shared();
    run(REMAP, ["short", "10000"]);
    run(Heap { config: "0n", ..REMAP }, ["short", "10000"]);
    run(Heap { config: "h", ..REMAP }, ["short", "3000"]);
}

#[test]
fn destructors_that_allocate_while_their_thread_ends() {
    let _machine = shared();
    for config in ["1y", "2n", "h"] {
        run(Heap { config, ..REMAP }, ["destructors", "2000"]);
    }
}

#[test]
fn objects_that_only_other_threads_free() {
    let _machine = shared();
    for config in ["1y", "2y", "0n", "h"] {
        run(Heap { config, ..REMAP }, ["exchange", &seconds(2).to_string()]);
    }
}

//! Signals during work that allocates all the time.

use crate::harness::{Heap, REMAP, Run, program, seconds, seed, shared};

fn run(heap: Heap, mode: &str) {
    let Some(signals) = program("signals.c") else { return };
    let length = seconds(2);
    let outcome = Run::new(signals)
        .args([mode, &length.to_string(), &seed()])
        .on(heap)
        .limit(length + 150)
        .outcome()
        .succeeded();
    eprintln!("{heap:?} {mode}: {:?}", outcome.facts());
    if heap.config.ends_with('y') {
        outcome.compacted(mode);
    }
}

#[test]
fn a_kilohertz_of_signals_whose_handlers_do_not_allocate() {
    let _machine = shared();
    for config in ["1y", "h"] {
        run(Heap { config, ..REMAP }, "quiet");
    }
}

#[test]
fn handlers_that_allocate_outside_malloc() {
    let _machine = shared();
    for config in ["1y", "2n"] {
        run(Heap { config, ..REMAP }, "allocate");
    }
}

#[test]
fn handlers_on_a_small_stack_that_write_to_a_pipe() {
    let _machine = shared();
    run(REMAP, "pipe");
}

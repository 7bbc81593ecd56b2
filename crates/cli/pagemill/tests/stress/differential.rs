//! The whole C interface, at random, from several threads, against the model that `differential.c` keeps.

use crate::harness::{CONFIGS, Heap, Run, program, seconds, seed, shared, skip};
use crate::setting;

fn run(heap: Heap, threads: u64, length: u64) {
    let Some(differential) = program("differential.c") else { return };
    let length = seconds(length);
    let outcome = Run::new(differential)
        .args([&length.to_string(), &seed(), &threads.to_string()])
        .on(heap)
        .limit(length + 150)
        .outcome()
        .succeeded();
    eprintln!("{heap:?} {threads} threads: {:?}", outcome.facts());
    if heap.config.ends_with('y') {
        outcome.compacted("differential");
    }
}

#[test]
fn random_calls_agree_with_the_model_in_every_configuration() {
    let _machine = shared();
    for heap in CONFIGS {
        run(heap, 3, 3);
    }
}

#[test]
fn random_calls_agree_with_the_model_on_one_thread() {
    let _machine = shared();
    for config in ["1n", "1y", "h"] {
        run(Heap { config, backend: "remap" }, 1, 2);
    }
}

#[test]
fn random_calls_agree_with_the_model_under_ksm() {
    let _machine = shared();
    match setting::ksm() {
        Ok(_ksm) => run(Heap { config: "1y", backend: "ksm" }, 3, 4),
        Err(why) => skip("the KSM back end", &why),
    }
}

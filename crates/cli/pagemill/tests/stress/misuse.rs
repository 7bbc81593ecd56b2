//! Errors of the program are named on standard error and end it by SIGABRT.

use std::os::unix::process::ExitStatusExt;

use crate::harness::{Allocator, CONFIGS, Heap, Run, allocator, program, shared, skip};

const SIGSEGV: i32 = 11;
const SIGABRT: i32 = 6;

/// In every configuration: at once, or the moment the free reaches a span.
const DOUBLE: &[&str] = &[
    "double",
    "double-later",
    "double-flushed",
    "double-thread",
    "double-after-thread",
    "double-large",
    "double-own-mapping",
    "double-realloc",
    "double-tiny",
];

const WILD: &[&str] = &[
    "wild-stack",
    "wild-interior",
    "wild-misaligned",
    "wild-interior-large",
    "wild-interior-own-mapping",
    "wild-mapping",
    "wild-static",
    "wild-small-integer",
    "wild-kernel",
    "wild-noncanonical",
    "wild-realloc",
];

/// What hardened mode finds besides, with the words that name it.
const HARDENED: &[(&str, &str)] = &[("use-after-free", "free"), ("overflow", "past the end")];

/// What is wrong with how the heap took this misuse, if anything.
fn complaint(heap: Heap, kind: &str, words: &[&str]) -> Option<String> {
    let misuse = program("misuse.c")?;
    let outcome = Run::new(misuse).args([kind]).on(heap).limit(120).outcome();
    let text = outcome.stderr.to_lowercase();
    let named = text.contains("pagemill:") && words.iter().any(|word| text.contains(word));
    (outcome.status.signal() != Some(SIGABRT) || !named).then(|| {
        format!(
            "{heap:?} {kind}: expected SIGABRT and one of {words:?} on standard error\n{outcome}"
        )
    })
}

fn all(heaps: &[Heap], kinds: &[(&str, &[&str])]) {
    let _machine = shared();
    if allocator() != Allocator::Pagemill {
        return skip("misuse", "another allocator has other words for it");
    }
    let wrong: Vec<String> = heaps
        .iter()
        .flat_map(|&heap| {
            kinds.iter().filter_map(move |&(kind, words)| complaint(heap, kind, words))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        heaps.len() * kinds.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_double_free_is_named() {
    all(&CONFIGS, &DOUBLE.iter().map(|&kind| (kind, &["double free"][..])).collect::<Vec<_>>());
}

#[test]
fn a_wild_free_is_named() {
    all(
        &CONFIGS,
        &WILD.iter().map(|&kind| (kind, &["wild free", "invalid", "not "][..])).collect::<Vec<_>>(),
    );
}

#[test]
fn hardened_mode_finds_writes_after_free_and_past_the_end() {
    let hardened = [Heap { config: "h", backend: "remap" }];
    all(
        &hardened,
        &HARDENED
            .iter()
            .map(|(kind, word)| (*kind, std::slice::from_ref(word)))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn hardened_mode_guards_large_objects() {
    let _machine = shared();
    if allocator() != Allocator::Pagemill {
        return skip("guard pages", "another allocator");
    }
    let Some(misuse) = program("misuse.c") else { return };
    let outcome = Run::new(misuse)
        .args(["overflow-large"])
        .on(Heap { config: "h", backend: "remap" })
        .limit(120)
        .outcome();
    assert_eq!(outcome.status.signal(), Some(SIGSEGV), "{outcome}");
}

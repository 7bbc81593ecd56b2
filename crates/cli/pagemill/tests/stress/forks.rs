//! Every way to make a child, while the heap is compacted.

use crate::harness::{Heap, REMAP, Run, program, seconds, seed, shared, skip, soak};
use crate::setting;

fn run(heap: Heap, way: &str, rounds: u64, alone: bool) {
    let Some(forks) = program("forks.c") else { return };
    let rounds = soak().map_or(rounds, |seconds| rounds * seconds.max(1));
    let mut run =
        Run::new(forks).args([way, &rounds.to_string(), &seed()]).on(heap).limit(90 + rounds);
    if alone {
        run = run.args(["alone"]);
    }
    // glibc and jemalloc do not promise that a child made behind their back can allocate; we do.
    if crate::harness::allocator() == crate::harness::Allocator::Pagemill {
        run = run.env("FIRE_RAW_CHILDREN_ALLOCATE", "1");
    }
    let outcome = run.outcome().succeeded();
    eprintln!("{heap:?} {way}: {:?}", outcome.facts());
    if heap.config.ends_with('y') {
        outcome.compacted(way);
    }
}

#[test]
fn children_see_what_was_there_and_nothing_that_came_later() {
    let _machine = shared();
    for way in ["fork", "_Fork", "clone", "clone3"] {
        run(REMAP, way, 16, false);
    }
}

#[test]
fn children_of_a_program_with_one_thread() {
    let _machine = shared();
    for way in ["fork", "_Fork", "clone"] {
        run(REMAP, way, 16, true);
    }
}

/// A handler that interrupted `fork` and allocated or forked, or interrupted malloc and forked, waited for ever for a
/// lock that its own thread held. The C library's own tests of this are tst-mallocfork2 and tst-mallocfork3.
#[test]
fn handlers_allocate_and_fork_wherever_they_find_the_program() {
    let _machine = shared();
    let Some(forks) = program("forks_in_handlers.c") else { return };
    let length = seconds(1);
    for config in ["0n", "1y", "2y", "h"] {
        for way in ["malloc-in-fork", "fork-in-fork", "fork-in-malloc", "threads"] {
            let run = Run::new(&forks).args([way, &length.to_string(), &seed()]);
            let outcome =
                run.on(Heap { config, ..REMAP }).limit(length + 120).outcome().succeeded();
            eprintln!("{config} {way}: {:?}", outcome.facts());
        }
    }
}

/// Under `h`, where each call holds a lock for most of its time, a child that a handler forked which had interrupted
/// malloc waited for ever for what its own thread held, and so did the handler itself.
#[test]
fn handlers_that_interrupt_the_heap_and_their_children_allocate() {
    let _machine = shared();
    let Some(forks) = program("forks_in_handlers.c") else { return };
    for config in ["0n", "2n", "0y", "1y", "2y", "h"] {
        for way in ["child-in-malloc", "malloc-in-malloc"] {
            let run = Run::new(&forks).args([way, "2", &seed()]);
            run.on(Heap { config, ..REMAP }).limit(120).outcome().succeeded();
        }
    }
}

/// Each fork waited 20 ms for what its own thread kept others from giving up, or looked for 0.5 ms whether its own
/// thread had been interrupted as it took a lock, and the next signal came before.
#[test]
fn a_timer_whose_handler_forks_lets_the_program_go_on() {
    let _machine = shared();
    let Some(forks) = program("forks_in_handlers.c") else { return };
    for config in ["0n", "2n", "0y", "1y", "2y", "h"] {
        for way in ["by-timer", "often-by-timer"] {
            let run = Run::new(&forks).args([way, "2", &seed()]);
            run.on(Heap { config, ..REMAP }).limit(120).outcome().succeeded();
        }
    }
}

/// A fork that had slept for a lock made it look as if nobody else did: who slept, slept for ever (half of the runs).
#[test]
fn threads_that_wait_for_a_lock_are_woken_after_a_fork_that_waited_for_it_too() {
    let _machine = shared();
    let Some(forks) = program("forks_among_threads.c") else { return };
    for config in ["0n", "1y", "2y", "h"] {
        for _ in 0..5 {
            let run = Run::new(&forks).args(["3", "100"]);
            run.on(Heap { config, ..REMAP }).limit(120).outcome().succeeded();
        }
    }
}

#[test]
fn vfork_and_posix_spawn() {
    let _machine = shared();
    for way in ["vfork", "spawn"] {
        run(REMAP, way, 100, false);
    }
}

#[test]
fn storms_of_children_from_several_threads() {
    let _machine = shared();
    run(REMAP, "storm", 60, false);
}

#[test]
fn the_other_configurations() {
    let _machine = shared();
    for config in ["0n", "2n", "0y", "2y", "h"] {
        run(Heap { config, ..REMAP }, "fork", 8, false);
        run(Heap { config, ..REMAP }, "_Fork", 8, false);
    }
}

#[test]
fn the_same_with_ksm() {
    let _machine = shared();
    let _ksm = match setting::ksm() {
        Ok(guard) => guard,
        Err(why) => return skip("the KSM back end", &why),
    };
    for way in ["fork", "clone"] {
        run(Heap { config: "1y", backend: "ksm" }, way, 16, false);
    }
}

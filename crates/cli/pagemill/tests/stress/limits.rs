//! Nothing is there: no memfd, no memory, no thread, no descriptors, no /proc. The program does the same work and the
//! statistics say what is missing.

use pagemill_heap::stats::degraded;

use crate::harness::{
    Allocator, CONFIGS, Heap, Outcome, REMAP, Run, allocator, exclusive, program, reasons_of, root,
    shared, skip,
};
use crate::setting::Setting;

/// Uid and gid of `nobody` on every distribution.
const NOBODY: &str = "65534";

struct Limit {
    name: &'static str,
    /// Arguments of `confine`.
    confine: &'static [&'static str],
    /// Arguments of `steady`: rounds, seed, threads and what else.
    steady: &'static [&'static str],
    root: bool,
    /// Bits of which at least one must stand in the statistics; 0 if the heap can do without.
    degraded: u64,
}

const LIMITS: &[Limit] = &[
    Limit {
        name: "no memfd",
        confine: &["--deny", "memfd_create"],
        steady: &["2", "1", "2"],
        root: false,
        degraded: degraded::NO_MEMFD,
    },
    Limit {
        name: "no userfaultfd",
        confine: &["--deny", "userfaultfd", "--uid", NOBODY],
        steady: &["2", "1", "2"],
        root: true,
        degraded: degraded::NO_BARRIER,
    },
    Limit {
        name: "no helper thread",
        confine: &["--deny", "helper"],
        steady: &["2", "1", "2"],
        root: false,
        degraded: degraded::NO_THREAD,
    },
    Limit {
        name: "no madvise",
        confine: &["--deny", "madvise"],
        steady: &["2", "1", "2"],
        root: false,
        degraded: 0,
    },
    Limit {
        name: "no mremap",
        confine: &["--deny", "mremap"],
        steady: &["2", "1", "1"],
        root: false,
        degraded: 0,
    },
    Limit {
        name: "no prctl, seccomp, capset, membarrier, rseq",
        confine: &[
            "--deny",
            "prctl",
            "--deny",
            "seccomp",
            "--deny",
            "capset",
            "--deny",
            "membarrier",
            "--deny",
            "rseq",
        ],
        steady: &["2", "1", "2"],
        root: false,
        degraded: 0,
    },
    Limit {
        name: "no randomness",
        confine: &["--deny", "getrandom"],
        steady: &["2", "1", "2"],
        root: false,
        degraded: 0,
    },
    Limit {
        name: "uid nobody, two threads",
        confine: &["--uid", NOBODY],
        steady: &["2", "1", "2"],
        root: true,
        degraded: degraded::NO_BARRIER,
    },
    Limit {
        name: "uid nobody, one thread",
        confine: &["--uid", NOBODY],
        steady: &["2", "1", "1"],
        root: true,
        degraded: 0,
    },
    Limit {
        name: "one process",
        confine: &["--uid", NOBODY, "--limit", "nproc=1"],
        steady: &["2", "1", "1"],
        root: true,
        degraded: degraded::NO_THREAD | degraded::NO_BARRIER,
    },
    Limit {
        name: "no /proc",
        confine: &["--no-proc"],
        steady: &["2", "1", "2"],
        root: true,
        degraded: 0,
    },
    Limit {
        name: "four descriptors",
        confine: &["--limit", "nofile=4"],
        steady: &["2", "1", "2"],
        root: false,
        degraded: degraded::NO_MEMFD | degraded::NO_BARRIER,
    },
    Limit {
        name: "three descriptors",
        confine: &[],
        steady: &["2", "1", "2", "nofile3"],
        root: false,
        degraded: 0,
    },
    Limit {
        name: "300 MB of addresses",
        confine: &["--limit", "as=300000000"],
        steady: &["2", "1", "1", "exhaust"],
        root: false,
        degraded: degraded::NO_MEMORY,
    },
    Limit {
        name: "100 MB of data",
        confine: &["--limit", "data=100000000"],
        steady: &["2", "1", "1", "exhaust"],
        root: false,
        degraded: degraded::NO_MEMORY,
    },
    Limit {
        name: "a small stack",
        confine: &["--limit", "stack=65536"],
        steady: &["2", "1", "1"],
        root: false,
        degraded: 0,
    },
];

fn same_work(name: &str, heap: Heap, confine: &[&str], steady: &[&str]) -> Option<Outcome> {
    let (launcher, work) = (program("confine.c")?, program("steady.c")?);
    let plain = Run::new(&work).args(&steady[..3]).outcome().succeeded();
    // Only the program itself is to run on the heap, so the launcher sets LD_PRELOAD.
    let mut run = Run::new(launcher).args(confine);
    for (variable, value) in heap.variables() {
        if variable != "LD_PRELOAD" {
            run = run.env(variable, &value);
        } else if !value.is_empty() {
            run = run.args(["--preload", &value]);
        }
    }
    let outcome = run.args(["--"]).args([&work]).args(steady).outcome();
    if outcome.status.code() == Some(125) {
        skip(name, outcome.stderr.trim());
        return None;
    }
    let outcome = outcome.succeeded();
    assert_eq!(plain.stdout, outcome.stdout, "{name}: not the same output\n{outcome}");
    Some(outcome)
}

#[test]
fn a_program_does_the_same_work_and_says_what_is_missing() {
    let _machine = shared();
    let mut wrong = Vec::new();
    for limit in LIMITS {
        if limit.root && !root() {
            skip(limit.name, "not root");
            continue;
        }
        let Some(outcome) = same_work(limit.name, REMAP, limit.confine, limit.steady) else {
            continue;
        };
        let facts = outcome.facts();
        eprintln!("{}: {facts:?}", limit.name);
        if allocator() == Allocator::Pagemill
            && limit.degraded != 0
            && facts["degraded"] & limit.degraded == 0
        {
            wrong.push(format!(
                "{}: expected \"{}\" in the statistics, found \"{}\"\n{outcome}",
                limit.name,
                reasons_of(limit.degraded),
                reasons_of(facts["degraded"])
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_configuration_works_with_next_to_nothing() {
    let _machine = shared();
    let confine = [
        "--deny",
        "memfd_create",
        "--deny",
        "userfaultfd",
        "--deny",
        "madvise",
        "--deny",
        "helper",
        "--limit",
        "as=400000000",
    ];
    for heap in CONFIGS {
        same_work(heap.config, heap, &confine, &["2", "2", "1", "exhaust"]);
    }
}

#[test]
fn a_thousand_mappings_are_enough() {
    let _machine = exclusive();
    if !root() {
        return skip("max_map_count 1000", "not root");
    }
    let guard = Setting::set("/proc/sys/vm/max_map_count", "1000");
    let _guard = match guard {
        Ok(guard) => guard,
        Err(why) => return skip("max_map_count 1000", &why),
    };
    for config in ["1y", "2y", "h"] {
        let Some(outcome) =
            same_work("max_map_count 1000", Heap { config, ..REMAP }, &[], &["3", "3", "2"])
        else {
            return;
        };
        let facts = outcome.facts();
        eprintln!("max_map_count 1000, {config}: {facts:?}");
        if allocator() == Allocator::Pagemill {
            assert!(facts["vma_budget"] < 1000, "the budget is above the limit\n{outcome}");
            assert!(
                facts["vmas"] <= facts["vma_budget"],
                "more mappings than the budget\n{outcome}"
            );
        }
    }
}

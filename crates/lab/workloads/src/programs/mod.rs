//! Allocation-heavy programs, in the shapes that the allocator literature uses.
//!
//! | name | shape | after |
//! |---|---|---|
//! | `larson` | each thread replaces random blocks, then hands all to a new one | Larson and Krishnan, ISMM 1998 |
//! | `xmalloc` | producers allocate, consumers free | Lever and Boreham, 2000 |
//! | `alloc-test` | one thread frees and allocates at random slots, small sizes favoured | the program of that name |
//! | `cfrac` | factors a number by continued fractions, every bignum on the heap | Zorn's suite, 1993 |
//! | `glibc-simple` | batches of one size, freed in order and in reverse | glibc's `bench-malloc-simple` |
//! | `churn` | fill, free three quarters, mix sizes; each call timed | the pause question of Mesh |
//! | `unfragmented` | a chained hash table of 10 M keys, nothing freed | Redis with 10 M keys |
//! | `gups`, `gups-antagonist` | random updates, most of them in a hot third | HeMem and Colloid |
//! | `silo-ycsb`, `silo-tpcc` | optimistic transactions over records | Silo, SOSP 2013 |
//! | `cache`, `cache-zipf` | a cache in slabs, sharded, least recently used | CacheLib under HeMem's load |
//! | `mcf` | network simplex over nodes and arcs | 429.mcf, 605.mcf_s |
//! | `astar`, `events` | ways across a map; a network of queues | 473.astar, 471.omnetpp |
//! | `matrix`, `hog`, `mix` | a matrix product and much memory, side by side | CBMM's mixed workload |
//! | `ycsb-redis`, `ycsb-memcached` | a client with histograms of latency | YCSB, SoCC 2010 |
//! | `slices` | parts of memory chased, streamed or left alone, of known benefit | the question of a profiler |
//! | `canneal` | a circuit placed by simulated annealing: random reads over a large netlist | PARSEC |
//! | `fmm` | particles that attract each other, by the fast multipole method | SPLASH-2 |
//! | `streamcluster` | a stream of points clustered in chunks: each step reads the whole chunk | PARSEC |
//! | `touch` | first touches of new memory, page by page; each timed | `thp_ubmk` |
//! | `steps` | programs started, memory mapped, blocks allocated, dropped pages touched | what tracing makes dearer |
//!
//! All of them are written from the description of the shape, not from the original text, so
//! their absolute times compare with nothing but themselves under another allocator.

mod alloc_test;
mod astar;
pub mod bignum;
mod cachelib;
mod canneal;
mod cfrac;
mod churn;
mod events;
mod fmm;
mod glibc_simple;
mod gups;
mod larson;
mod mcf;
mod mix;
pub mod pauses;
mod silo;
pub mod slices;
mod steps;
mod streamcluster;
mod touch;
mod unfragmented;
mod xmalloc;
pub mod ycsb;

use crate::program::Program;
use crate::{graph, growth, nas};

/// A table of programs: name, options, function and summary.
macro_rules! programs {
    ($($name:literal $takes:literal $work:path, $summary:literal;)*) => {
        [$(Program { name: $name, summary: $summary, takes: $takes, work: $work }),*]
    };
}

/// The allocation-heavy programs, in the order of the documentation.
pub const PROGRAMS: [Program; 25] = programs! {
    "larson" "threads seconds seed" larson::run,
        "threads replace random blocks and hand them to new threads (fixed time)";
    "xmalloc" "threads seconds" xmalloc::run,
        "producers allocate, consumers free (fixed time)";
    "alloc-test" "scale seed" alloc_test::run,
        "one thread, random slots, small sizes favoured (fixed work)";
    "cfrac" "scale seed" cfrac::run,
        "continued-fraction factoring with heap bignums (fixed work)";
    "glibc-simple" "scale" glibc_simple::run,
        "batches of one size, freed in order and in reverse (fixed work)";
    "churn" "scale hold seed" churn::run,
        "fill, free 75 %, mix 240 and 492 B; every call timed (fixed work)";
    "unfragmented" "scale hold" unfragmented::run,
        "a hash table of 10 M small keys, nothing freed (fixed work)";
    "slices" "scale seed" slices::run,
        "parts of memory chased, streamed or left alone, for `advise --places` (fixed work)";
    "canneal" "scale seed" canneal::run,
        "places a circuit by simulated annealing: random reads over a netlist (fixed work)";
    "fmm" "scale seed" fmm::run,
        "moves particles by the fast multipole method: a tree of power series (fixed work)";
    "streamcluster" "scale seed" streamcluster::run,
        "clusters a stream of points: sweeps over a large chunk of them (fixed work)";
    "touch" "scale" touch::run,
        "first touches of new memory, each timed: what a page fault costs (fixed work)";
    "steps" "scale" steps::run,
        "programs started, memory mapped, blocks allocated, dropped pages touched (fixed work)";
    "gups" "threads seconds scale seed" gups::alone,
        "random updates, nine of ten in a hot third (fixed time)";
    "gups-antagonist" "threads seconds scale seed" gups::beside_antagonist,
        "the same beside threads that stream through memory (fixed time)";
    "silo-ycsb" "threads scale mix seed" silo::ycsb::run,
        "optimistic transactions in memory: YCSB's (fixed work)";
    "silo-tpcc" "threads scale seed" silo::tpcc::run,
        "optimistic transactions in memory: TPC-C's five (fixed work)";
    "cache" "threads scale seed" cachelib::hot,
        "a cache of 4 KiB values, nine gets to a set, a fifth of the keys hot (fixed work)";
    "cache-zipf" "threads scale seed" cachelib::zipf,
        "the same, keys by Zipf's law (fixed work)";
    "mcf" "scale seed" mcf::run,
        "the cheapest flow through a network by the network simplex method (fixed work)";
    "astar" "scale seed" astar::run,
        "cheapest ways across a map, a block for each place seen (fixed work)";
    "events" "scale seed" events::run,
        "a network of queues event by event, messages of many sizes (fixed work)";
    "matrix" "threads scale seed" mix::matrix,
        "a product of matrices (fixed work)";
    "hog" "scale" mix::hog,
        "writes much memory, gives it back and takes it anew (fixed work)";
    "mix" "threads scale seed" mix::both,
        "`matrix` and `hog` side by side (fixed work)";
};

/// Clients of a server that runs already.
pub const CLIENTS: [Program; 2] = programs! {
    "ycsb-redis" "threads scale mix server rate seed" ycsb::redis,
        "YCSB client of Redis or WiredTiger (fixed work)";
    "ycsb-memcached" "threads scale mix server rate seed" ycsb::memcached,
        "YCSB client of memcached (fixed work)";
};

/// Every workload: these programs, the [`nas`] and [`graph`] kernels and those of [`growth`].
pub fn all() -> impl Iterator<Item = &'static Program> {
    PROGRAMS
        .iter()
        .chain(&CLIENTS)
        .chain(&nas::PROGRAMS)
        .chain(&graph::PROGRAMS)
        .chain(&growth::PROGRAMS)
}

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Program> {
    all().find(|program| program.name == name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::program::Params;

    /// Small enough for an unoptimised test run.
    fn small() -> Params {
        Params {
            threads: 2,
            time: Duration::from_millis(50),
            scale: 0.002,
            hold: Duration::ZERO,
            seed: 7,
            ..Params::default()
        }
    }

    #[test]
    fn every_program_passes_its_own_check() {
        for program in &PROGRAMS {
            let report = program.run(&small()).unwrap();
            assert!(report.operations > 0, "{report:?}");
            assert!(report.seconds > 0.0, "{report:?}");
            assert!(!report.check.is_empty(), "{report:?}");
        }
    }

    #[test]
    fn fixed_work_is_the_same_work_each_time() {
        for name in ["alloc-test", "cfrac", "glibc-simple", "churn", "unfragmented", "fmm"] {
            let program = find(name).unwrap();
            let first = program.run(&small()).unwrap();
            let second = program.run(&small()).unwrap();
            assert_eq!(first.operations, second.operations, "{name}");
            assert_eq!(first.check, second.check, "{name}");
        }
    }

    /// `--scale 1e-9` passed with nothing done.
    #[test]
    fn the_smallest_scale_does_the_smallest_instance_and_checks_it() {
        for program in all().filter(|program| program.takes("scale") && !program.takes("server")) {
            let params = Params { threads: 3, scale: 1e-9, ..small() };
            let report = program.run(&params).unwrap();
            assert!(report.operations > 0, "{}: {report:?}", program.name);
        }
    }

    #[test]
    fn a_program_that_does_nothing_does_not_pass() {
        let work = |_: &Params| {
            let check = "all of nothing is right".to_owned();
            Ok(crate::program::Report { operations: 0, seconds: 1.0, metrics: Vec::new(), check })
        };
        let idle = Program { name: "idle", summary: "", takes: "scale", work };
        let refused = idle.run(&small()).unwrap_err();
        assert!(refused.to_string().contains("nothing was done"), "{refused}");
    }

    #[test]
    fn names_are_found_and_others_are_not() {
        assert!(find("larson").is_some());
        assert!(find("Larson").is_none());
    }
}

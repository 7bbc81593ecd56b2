//! Everything that reads bytes from outside, a function a kind: files that users name, recordings, programs and their
//! memory, what pagemills leave for one another, connections, and the text and the rings of the kernel. Each is a
//! target of `cargo fuzz` (`fuzz/` at the root of the repository) and is driven by a test with mutated seeds, too,
//! which needs no nightly toolchain.
//!
//! ```text
//!  seeds ──► mutated (tests/mutated.rs, or libFuzzer) ──► body ──► a value or an error; never a panic
//! ```
#![forbid(unsafe_code)]

mod advised;
mod answers;
mod board;
mod events;
mod files;
mod followed;
mod kernel;
mod malloc;
mod network;
mod reports;
mod ring;
mod scratch;
mod seeds;
mod state;
mod traced;

/// What a fuzzer is pointed at.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, as `cargo fuzz run` has it.
    pub name: &'static str,
    /// Takes any bytes. What comes of them does not matter, but that it comes.
    pub body: fn(&[u8]),
    /// Bytes that are what they should be, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "perf_data", body: files::perf_data, seeds: seeds::perf_data },
    Target { name: "pftrace", body: files::pftrace, seeds: seeds::pftrace },
    Target { name: "profile", body: files::profile, seeds: seeds::profile },
    Target { name: "machine", body: files::machine, seeds: seeds::machine },
    Target { name: "latencies", body: files::latencies, seeds: seeds::latencies },
    Target { name: "meta", body: files::meta, seeds: seeds::meta },
    Target { name: "part", body: files::part, seeds: seeds::part },
    Target { name: "cell", body: files::cell, seeds: seeds::cell },
    Target { name: "collected", body: files::collected, seeds: seeds::collected },
    Target { name: "traces", body: files::traces, seeds: seeds::traces },
    Target { name: "program", body: files::program, seeds: seeds::program },
    Target { name: "events", body: events::events, seeds: seeds::events },
    Target { name: "kernel", body: kernel::kernel, seeds: seeds::kernel },
    Target { name: "matrix", body: files::matrix, seeds: seeds::matrix },
    Target { name: "malloc", body: malloc::malloc, seeds: malloc::seeds },
    Target { name: "emulator", body: traced::emulator, seeds: traced::emulator_seeds },
    Target { name: "records", body: traced::records, seeds: traced::records_seeds },
    Target { name: "code", body: traced::code, seeds: traced::code_seeds },
    Target { name: "state", body: state::state, seeds: state::seeds },
    Target { name: "stats_page", body: state::stats_page, seeds: state::stats_page_seeds },
    Target { name: "request", body: network::request, seeds: network::request_seeds },
    Target { name: "resp", body: network::resp, seeds: network::resp_seeds },
    Target { name: "memcached", body: network::memcached, seeds: network::memcached_seeds },
    Target { name: "free_memory", body: files::free_memory, seeds: seeds::free_memory },
    Target { name: "board", body: board::board, seeds: board::seeds },
    Target { name: "ring", body: ring::ring, seeds: ring::seeds },
    Target { name: "answers", body: answers::answers, seeds: answers::seeds },
    Target { name: "reports", body: reports::reports, seeds: reports::seeds },
    Target { name: "advised", body: advised::advised, seeds: advised::seeds },
    Target { name: "followed", body: followed::followed, seeds: followed::seeds },
    Target { name: "summary", body: reports::summary, seeds: reports::summary_seeds },
];

/// Runs a target's body; for the targets of `cargo fuzz`.
///
/// # Panics
/// There is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let Some(target) = target else { panic!("there is no target {name}") };
    (target.body)(bytes);
}

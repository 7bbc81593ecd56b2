//! The six kernels of the GAP benchmark suite, each verified.
//!
//! | name | kernel | how | how a result is verified |
//! |---|---|---|---|
//! | `gap-bfs` | breadth-first search | from the frontier or towards it, whichever has fewer edges | a serial search: each parent is a neighbour one step nearer |
//! | `gap-sssp` | shortest paths | delta-stepping | no edge shortens a path, each path has its last edge |
//! | `gap-pr` | PageRank | each vertex pulls from its neighbours | one more iteration, pushed, changes less than the tolerance |
//! | `gap-cc` | connected components | Afforest: subgraph sampling | edges join equal labels, and as many labels as serial searches find components |
//! | `gap-bc` | betweenness centrality | Brandes, four sources | the same by Brandes' serial algorithm |
//! | `gap-tc` | triangles | merging of ordered rows, hubs first | counted by marks over rows ordered by degree |
//!
//! Written from Beamer, Asanović and Patterson, *The GAP Benchmark Suite*, arXiv 1508.03619, and the papers that it
//! names, not from its text. Graphs are undirected: `--graph` kronecker or uniform, `--degree` edges for each vertex
//! (16), 2^10, 2^16, 2^20 or 2^22 vertices for `--class` S, W, A, B. The suite's numbers of trials, times `--scale`:
//! 64 for `gap-bfs` and `gap-sssp`, 16 for the others, 3 for `gap-tc`. Each trial has its own source. Building and
//! verifying are not timed. `operations` counts edges of the graph times trials.

mod bc;
mod bfs;
mod cc;
mod csr;
pub(crate) mod kind;
mod pr;
mod sssp;
mod tc;

use std::time::{Duration, Instant};

pub use kind::Kind;
use pagemill_model::random::Random;

use self::csr::Graph;
use crate::program::{Failure, Outcome, Params, Program, Report};

/// The kernels, in the order of the documentation.
pub const PROGRAMS: [Program; 6] = [
    kernel("gap-bfs", "GAP breadth-first search", bfs::run),
    kernel("gap-sssp", "GAP shortest paths by delta-stepping", sssp::run),
    kernel("gap-pr", "GAP PageRank", pr::run),
    kernel("gap-cc", "GAP connected components", cc::run),
    kernel("gap-bc", "GAP betweenness centrality", bc::run),
    kernel("gap-tc", "GAP triangle counting", tc::run),
];

const fn kernel(
    name: &'static str,
    summary: &'static str,
    work: fn(&Params) -> Outcome,
) -> Program {
    Program { name, summary, takes: "threads scale class graph degree seed", work }
}

/// Runs `trial` as often as the suite does, `full` times the scale. A trial returns how long its timed part took.
fn trials(
    params: &Params,
    graph: &Graph,
    full: usize,
    mut trial: impl FnMut(&mut Random) -> Result<Duration, String>,
) -> Outcome {
    if graph.entries() == 0 {
        return Err(Failure::Outside(EMPTY.into()));
    }
    let trials = params.scaled(full);
    let mut random = Random::new(params.seed);
    let mut seconds = Vec::with_capacity(trials);
    for _ in 0..trials {
        seconds.push(trial(&mut random)?.as_secs_f64());
    }
    let all: f64 = seconds.iter().sum();
    Ok(Report {
        operations: (graph.entries() / 2 * trials) as u64,
        seconds: all,
        metrics: vec![
            ("vertices", graph.vertices as f64),
            ("edges", (graph.entries() / 2) as f64),
            ("trials", trials as f64),
            ("trial_seconds", all / trials as f64),
        ],
        check: format!("{trials} trials on a {} graph, each result verified", params.graph),
    })
}

/// How long `work` takes, and what it makes.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let started = Instant::now();
    let made = work();
    (started.elapsed(), made)
}

/// What is said of a graph without an edge.
const EMPTY: &str = "the graph has no edge; take a larger --degree";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_verifies_itself_on_both_graphs_and_any_number_of_threads() {
        for program in &PROGRAMS {
            for graph in Kind::ALL {
                for threads in [1, 3] {
                    let params = Params { threads, graph, scale: 0.05, ..Params::default() };
                    let report = program.run(&params).unwrap();
                    assert!(report.operations > 0 && report.seconds > 0.0, "{report:?}");
                }
            }
        }
    }

    #[test]
    fn a_graph_without_an_edge_is_refused() {
        for program in &PROGRAMS {
            let params = Params { degree: 0, scale: 0.05, ..Params::default() };
            let refused = program.run(&params).unwrap_err();
            assert_eq!(refused, Failure::Outside(EMPTY.into()));
        }
    }
}

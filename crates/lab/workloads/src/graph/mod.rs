//! The six kernels of the GAP benchmark suite, each verified.
//!
//! | name | kernel | how | how a result is verified |
//! |---|---|---|---|
//! | `gap-bfs` | breadth-first search | from or towards the frontier | each parent is a neighbour one step nearer |
//! | `gap-sssp` | shortest paths | delta-stepping | no edge shortens a path, each path has its last edge |
//! | `gap-pr` | PageRank | pulled from neighbours | one more iteration, pushed, changes less than the tolerance |
//! | `gap-cc` | connected components | Afforest: subgraph sampling | edges join equal labels; their number |
//! | `gap-bc` | betweenness centrality | Brandes, four sources | the same by Brandes' serial algorithm |
//! | `gap-tc` | triangles | merging of ordered rows, hubs first | counted by marks over rows ordered by degree |
//!
//! A breadth-first step goes whichever way has fewer edges. Steps to the source, and the number of components, are held
//! against serial searches.
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
mod trial;

pub use kind::Kind;

use crate::program::{Outcome, Params, Program};

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

#[cfg(test)]
mod tests {
    use super::trial::EMPTY;
    use super::*;
    use crate::program::Failure;

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
